"""The servers that the programs of config/samples/toolsets call, for samples.py: git by HTTP, a chat, a deploy server, and the part of an
API server of Kubernetes that `kubectl rollout restart` and `kubectl get pods` use. All speak TLS. Each request needs its credential.

git is the real one (`git http-backend`), and the others are stand-ins.
"""

import base64
import http.server
import json
import os
import ssl
import subprocess
import threading
import urllib.parse

# Each is searched in all answers of the bridge, and in the arguments of all processes.
GIT_TOKEN, CHAT_TOKEN, DEPLOY_KEY = "planted-git-token", "planted-chat-token", "planted-deploy-key"
DATABASE_PASSWORD, ACCOUNT_TOKEN = "planted-database-password", "planted-account-token"
SECRETS = [GIT_TOKEN, CHAT_TOKEN, DEPLOY_KEY, DATABASE_PASSWORD, ACCOUNT_TOKEN]


def in_arguments():
    """The credentials that a list of arguments has now."""
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as line:
                words = line.read()
        except OSError:
            continue
        found.update(secret for secret in SECRETS if secret.encode() in words)
    return found


class Servers:
    """All of them on one port. `repositories` is the folder of the git repositories."""

    def __init__(self, repositories, certificate, key):
        self.repositories = repositories
        self.messages, self.deploys, self.restarts = [], [], []
        self.running, self.polls, self.leaked = "v1.1.0", 0, set()
        handler = type("Bound", (Handler,), {"state": self})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state = None

    def log_message(self, *_):
        pass

    def answer(self, status, body, kind="text/plain", headers=()):
        body = body if isinstance(body, bytes) else body.encode()
        self.send_response(status)
        for name, value in [("Content-Type", kind), ("Content-Length", str(len(body))), ("Connection", "close"), *headers]:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def body(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def bears(self, token):
        return self.headers.get("Authorization") == f"Bearer {token}"

    def do(self):
        self.state.leaked |= in_arguments()
        path = urllib.parse.urlsplit(self.path).path
        if path.startswith("/team/"):
            self.git(path)
        elif path.startswith("/api/messages"):
            self.chat()
        elif path.startswith(("/releases/", "/environments/")):
            self.deploy(path)
        else:
            self.kubernetes(path)

    do_GET = do_POST = do_PUT = do_PATCH = do

    def git(self, path):
        expected = "Basic " + base64.b64encode(f"git:{GIT_TOKEN}".encode()).decode()
        if self.headers.get("Authorization") != expected:
            self.answer(401, "", headers=[("WWW-Authenticate", 'Basic realm="git"')])
            return
        names = {"REQUEST_METHOD": self.command, "PATH_INFO": path, "QUERY_STRING": urllib.parse.urlsplit(self.path).query,
                 "CONTENT_TYPE": self.headers.get("Content-Type", ""), "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                 "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""), "GIT_PROJECT_ROOT": self.state.repositories,
                 "GIT_HTTP_EXPORT_ALL": "1", "REMOTE_USER": "git"}
        body = self.body()
        ran = subprocess.run(["git", "http-backend"], input=body, capture_output=True, check=False,
                             env={**os.environ, **names, "CONTENT_LENGTH": str(len(body))})
        head, _, rest = ran.stdout.partition(b"\r\n\r\n")
        headers = [tuple(line.decode().split(": ", 1)) for line in head.split(b"\r\n") if line]
        status = next((int(value.split()[0]) for name, value in headers if name == "Status"), 200)
        kind = next((value for name, value in headers if name == "Content-Type"), "text/plain")
        self.answer(status, rest, kind)

    def chat(self):
        form = dict(urllib.parse.parse_qsl(self.body().decode(), keep_blank_values=True))
        if not self.bears(CHAT_TOKEN):
            self.answer(401, "no")
            return
        self.state.messages.append(form)
        if form.get("text") == "move":
            self.answer(302, "moved", headers=[("Location", f"https://127.0.0.1:{self.state.port}/api/messages/elsewhere")])
            return
        # A server that shows too much.
        self.answer(200, f"posted with {self.headers['Authorization']}\n")

    def deploy(self, path):
        if not self.bears(DEPLOY_KEY):
            self.answer(401, "no")
        elif path.startswith("/releases/"):
            self.answer(200 if path == "/releases/v1.2.0" else 404, "")
        elif self.command == "PUT":
            version = dict(urllib.parse.parse_qsl(self.body().decode()))["version"]
            self.state.deploys.append((path, version))
            self.state.polls = 0
            self.answer(202, "")
        else:
            self.state.polls += 1
            if self.state.polls > 1:
                self.state.running = self.state.deploys[-1][1]
            self.answer(200, self.state.running)

    def kubernetes(self, path):
        def say(status, value):
            self.answer(status, json.dumps(value), "application/json")
        body = self.body()
        if not self.bears(ACCOUNT_TOKEN):
            say(401, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 401, "message": "Unauthorized", "reason": "Unauthorized"})
        elif path == "/api":
            say(200, {"kind": "APIVersions", "versions": ["v1"]})
        elif path == "/apis":
            version = {"groupVersion": "apps/v1", "version": "v1"}
            say(200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": [{"name": "apps", "versions": [version], "preferredVersion": version}]})
        elif path == "/api/v1":
            pods = {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod", "verbs": ["list"], "shortNames": ["po"]}
            say(200, {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1", "resources": [pods]})
        elif path == "/apis/apps/v1":
            one = {"name": "deployments", "singularName": "deployment", "namespaced": True, "kind": "Deployment", "verbs": ["get", "patch"]}
            say(200, {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "apps/v1", "resources": [one]})
        elif path == "/apis/apps/v1/namespaces/demo/deployments/web":
            if self.command == "PATCH":
                self.state.restarts.append(json.loads(body))
            labels = {"matchLabels": {"app": "web"}}
            template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web", "image": "web:1"}]}}
            say(200, {"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "web", "namespace": "demo"},
                      "spec": {"replicas": 1, "selector": labels, "template": template}})
        elif path == "/api/v1/namespaces/demo/pods":
            say(200, {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [
                {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "web-1", "namespace": "demo"}, "spec": {"containers": []}, "status": {"phase": "Running"}}]})
        else:
            say(404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "message": "not found", "reason": "NotFound"})
