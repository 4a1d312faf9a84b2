"""Tries the samples of config/samples/toolsets with the real `spillway bridge` and their real programs: samples.py BINARY FOLDER POSTGRES.

FOLDER is an empty folder outside of the folders that programs cannot read. POSTGRES is the folder of PostgreSQL's programs. Definitions
and scripts are used as they are shipped, but for paths, the names of hosts, and the limit of calls within a minute. An argument of the type
`artifact` is the path of a file here, as the program gets it.

It prints a line for each check. The exit code is 1 if one fails.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

from sample_servers import ACCOUNT_TOKEN, CHAT_TOKEN, DATABASE_PASSWORD, DEPLOY_KEY, GIT_TOKEN, SECRETS, Servers

SAMPLES = pathlib.Path(__file__).resolve().parents[2] / "config/samples/toolsets"
# Longer than anything takes on a busy machine.
GENEROUS = 60
# PostgreSQL does not run as root. This is `nobody`: its user must have a name.
DATABASE_UID = 65534
failed = 0
answers = []


def check(what, good, seen=""):
    global failed
    failed += not good
    print(("ok   " if good else "FAIL ") + what + ("" if good else f": {seen}"), flush=True)


def until(what, holds):
    end = time.monotonic() + GENEROUS
    while not (value := holds()):
        assert time.monotonic() < end, f"waited too long: {what}"
        time.sleep(0.05)
    return value


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def run(*words, **more):
    return subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True, **more).stdout.strip()


class Bridge:
    """A running bridge with the definitions of one sample."""

    def __init__(self, binary, work, sample, replaced, credentials=(), variables=None, more=()):
        folder = work / f"bridge-{sample}"
        (folder / "definitions").mkdir(parents=True)
        toolset = (SAMPLES / sample / "toolset.yaml").read_text()
        allowed = re.search(r"allowedCommands: \[(.*)\]", toolset)[1].split(", ")
        change = lambda text: self.change(text, replaced)
        for file in sorted((SAMPLES / sample).glob("*.md")):
            (folder / "definitions" / file.name).write_text(self.with_variables(change(file.read_text()), variables or {}))
        words = [binary, "bridge", "--definitions", folder / "definitions", "--listen", "127.0.0.1:0", "--audit-file", folder / "audit"]
        for name, value in dict(credentials).items():
            (folder / name).write_text(value)
            words += ["--credential", f"{name}={folder / name}"]
        words += [word for path in allowed for word in ("--allow", change(path))]
        self.audit, log = folder / "audit", folder / "stderr"
        with open(log, "wb") as errors:
            words = [str(word) for word in [*words, "--work-folder", folder, *more]]
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)

        def address():
            assert self.process.poll() is None, log.read_text()
            found = re.search(r"address=(127\.0\.0\.1:\d+)", log.read_text())
            return found and found[1]
        self.url = f"http://{until('the bridge listens', address)}/mcp"

    @staticmethod
    def change(text, replaced):
        for old, new in replaced.items():
            text = text.replace(old, str(new))
        return re.sub(r"perAgentPerMinute: \d+", "perAgentPerMinute: 600", text)

    @staticmethod
    def with_variables(text, variables):
        """Adds variables to the environment of a definition."""
        if not variables:
            return text
        pairs = ", ".join(f"{name}: {json.dumps(str(value))}" for name, value in variables.items())
        if "set: {" in text:
            return text.replace("set: {", f"set: {{{pairs}, ", 1)
        if "env: {" in text:
            return text.replace("env: {", f"env: {{set: {{{pairs}}}, ", 1)
        return text.replace("timeoutSeconds:", f"env: {{set: {{{pairs}}}}}\ntimeoutSeconds:", 1)

    def execute(self, program, **args):
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "execute", "arguments": {"program": program, "args": args}}}
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-11-25"}
        with urllib.request.urlopen(urllib.request.Request(self.url, json.dumps(call).encode(), headers), timeout=GENEROUS) as reply:
            text = reply.read().decode()
        answers.append(text)
        return json.loads(text)["result"]["structuredContent"]

    def refuses(self, program, field, **args):
        """The call is refused because of this argument, and no program starts."""
        answer = self.execute(program, **args)
        check(f"{program} refuses {args[field]!r}", (answer["status"], answer.get("field")) == ("rejected", field), answer)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        answers.append(self.audit.read_text())


def git_push(scene):
    server, work = scene.servers, scene.work
    (work / "repositories/team").mkdir(parents=True)
    remote, clone = work / "repositories/team/app.git", work / "clone"
    run("git", "init", "--quiet", "--bare", "--initial-branch=main", remote)
    run("git", "-C", remote, "config", "http.receivepack", "true")
    clone.mkdir()

    def git(*words, **more):
        return run("git", "-c", "user.name=a", "-c", "user.email=a@example.com", "-C", clone, *words, **more)

    def commit(text):
        (clone / "file").write_text(text)
        git("add", "file")
        git("commit", "--quiet", "--message", text)

    def at_server(branch):
        found = subprocess.run(["git", "-C", remote, "rev-parse", "--quiet", "--verify", f"refs/heads/{branch}"], capture_output=True, text=True, check=False)
        return found.stdout.strip()

    def bundle(name, *what):
        git("bundle", "create", "--quiet", work / name, *what)
        return str(work / name)
    git("init", "--quiet", "--initial-branch=main")
    commit("one")
    git("push", "--quiet", remote, "main")
    main = at_server("main")
    git("checkout", "--quiet", "-b", "agent/fix")
    commit("two")
    fix = bundle("fix.bundle", "main..agent/fix")
    # An agent's own settings and hooks, which would be noticed.
    hostile = work / "noticed"
    (clone / ".git/hooks/pre-push").write_text(f"#!/bin/sh\ntouch {hostile}\n")
    (clone / ".git/hooks/pre-push").chmod(0o755)
    git("config", "core.fsmonitor", f"touch {hostile}; false")
    replaced = {"https://git.example.com": scene.url, "/opt/tools": scene.tools, "    type: artifact\n": ""}
    with Bridge(scene.binary, work, "git-push", replaced, {"git-deploy-token": GIT_TOKEN}, {"GIT_SSL_CAINFO": scene.ca}) as bridge:
        answer = bridge.execute("git_push", branch="agent/fix", bundle=fix)
        pushed = git("rev-parse", "agent/fix")
        check("git_push pushes the branch of a bundle", answer["status"] == "ok" and at_server("agent/fix") == pushed and pushed in answer["stdout"], answer)
        check("no hook and no setting of the agent ran", not hostile.exists())
        git("config", "--unset", "core.fsmonitor")
        for branch in ["main", "agent/", "agent/../main", "agent/a/b", "refs/heads/main", "--mirror", "agent/x:main", "agent/x\n", "+agent/x"]:
            bridge.refuses("git_push", "branch", branch=branch, bundle=fix)
        for branch in ["agent/x.lock", "agent/a..b"]:
            answer = bridge.execute("git_push", branch=branch, bundle=fix)
            check(f"git refuses the branch {branch}", answer["status"] == "nonzero" and not at_server(branch), answer)
        answer = bridge.execute("git_push", branch="agent/other", bundle=fix)
        check("a branch that the bundle does not have is not pushed", answer["status"] == "nonzero" and not at_server("agent/other"), answer)
        (work / "no.bundle").write_text("no bundle")
        (work / "link.bundle").write_text(f"gitdir: {clone}/.git\n")
        for name, file in [("another file", "no.bundle"), ("a file that names a repository", "link.bundle"), ("a folder", "clone")]:
            answer = bridge.execute("git_push", branch="agent/fix", bundle=str(work / file))
            check(f"{name} is no bundle", answer["status"] == "nonzero", answer)
        git("checkout", "--quiet", "main")
        commit("three")
        git("branch", "agent/three")
        both = bundle("both.bundle", "main", "agent/three")
        answer = bridge.execute("git_push", branch="agent/three", bundle=both)
        check("other branches of a bundle are not pushed", answer["status"] == "ok" and at_server("agent/three") and at_server("main") == main, answer)
        git("checkout", "--quiet", "-B", "agent/fix", "main~1")
        commit("four")
        answer = bridge.execute("git_push", branch="agent/fix", bundle=bundle("forced.bundle", "agent/fix"))
        check("no push is forced", answer["status"] == "nonzero" and at_server("agent/fix") == pushed and "non-fast-forward" in answer["stderr"] + answer["stdout"], answer)
        # A tree that would be written into .git at a checkout.
        blob = git("hash-object", "-w", "--stdin", input="x")
        tree = git("mktree", input=f"100644 blob {blob}\tconfig\n")
        tree = git("mktree", input=f"040000 tree {tree}\t.git\n")
        git("update-ref", "refs/heads/agent/evil", git("commit-tree", tree, "-m", "evil"))
        answer = bridge.execute("git_push", branch="agent/evil", bundle=bundle("evil.bundle", "agent/evil"))
        check("objects that no checkout should have are refused", answer["status"] == "nonzero" and not at_server("agent/evil") and "hasDotgit" in answer["stderr"], answer)
    with Bridge(scene.binary, work / "wrong", "git-push", replaced, {"git-deploy-token": "a-wrong-token"}, {"GIT_SSL_CAINFO": scene.ca}) as bridge:
        answer = bridge.execute("git_push", branch="agent/fix", bundle=fix)
        check("without the token the server refuses", answer["status"] == "nonzero" and "Authentication failed" in answer["stderr"], answer)
    check("the token was in no list of arguments", GIT_TOKEN not in server.leaked)


def rollout(scene):
    kubectl = os.environ.get("KUBECTL") or shutil.which("kubectl")
    if not kubectl:
        print("skip rollout: kubectl is missing (KUBECTL)")
        return
    account = scene.work / "account"
    account.mkdir()
    (account / "token").write_text(ACCOUNT_TOKEN)
    # In a pod kubectl finds all this by itself.
    config = {"apiVersion": "v1", "kind": "Config", "current-context": "pod", "contexts": [{"name": "pod", "context": {"cluster": "pod", "user": "pod"}}],
              "clusters": [{"name": "pod", "cluster": {"server": scene.url, "certificate-authority": str(scene.ca)}}],
              "users": [{"name": "pod", "user": {"tokenFile": str(account / "token")}}]}
    (scene.work / "kubeconfig").write_text(json.dumps(config))
    replaced = {"/usr/bin/kubectl": os.path.realpath(kubectl)}
    more = ["--service-account", str(account)]
    with Bridge(scene.binary, scene.work, "rollout", replaced, {}, {"KUBECONFIG": scene.work / "kubeconfig"}, more) as bridge:
        answer = bridge.execute("restart", deployment="web")
        patch = json.dumps(scene.servers.restarts)
        check("restart restarts the Deployment", answer["status"] == "ok" and "restarted" in answer["stdout"] and "restartedAt" in patch, answer)
        answer = bridge.execute("pods", app="web")
        check("pods lists pods", answer["status"] == "ok" and "web-1" in answer["stdout"], answer)
        for name in ["db", "web --all", "web,pod/x", "--all", ""]:
            bridge.refuses("restart", "deployment", deployment=name)
        for app in ["web,tier=db", "web --all-namespaces", "-A", "web\n", "web)"]:
            bridge.refuses("pods", "app", app=app)
    check("the token of the ServiceAccount was in no list of arguments", ACCOUNT_TOKEN not in scene.servers.leaked)


@contextlib.contextmanager
def postgres(scene):
    """A database with orders, and the role of the sample; yields a function that runs a statement as the administrator."""
    folder, port = scene.work / "database", free_port()
    folder.mkdir()
    as_user = {}
    if os.geteuid() == 0:
        os.chown(folder, DATABASE_UID, DATABASE_UID)
        as_user = {"user": DATABASE_UID, "group": DATABASE_UID, "extra_groups": []}
    (folder / "password").write_text("planted-admin-password\n")
    run(scene.postgres / "initdb", "--pgdata", folder / "data", "--username=admin", "--auth=scram-sha-256", f"--pwfile={folder}/password", "--no-sync",
        cwd=folder, **as_user)
    for name in ("tls.crt", "tls.key"):
        shutil.copy(scene.work / name, folder / "data" / name)
        os.chmod(folder / "data" / name, 0o600)
        if as_user:
            os.chown(folder / "data" / name, DATABASE_UID, DATABASE_UID)
    settings = ["listen_addresses=127.0.0.1", f"port={port}", "unix_socket_directories=", "fsync=off", "ssl=on", "ssl_cert_file=tls.crt", "ssl_key_file=tls.key"]
    words = [str(scene.postgres / "postgres"), "-D", str(folder / "data"), *(word for one in settings for word in ("-c", one))]
    with open(scene.work / "database.log", "wb") as log:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, **as_user)
    variables = {"PGHOST": "127.0.0.1", "PGPORT": str(port), "PGSSLMODE": "require"}

    def psql(*words, user="admin", password="planted-admin-password", database="shop", **more):
        env = {**os.environ, **variables, "PGUSER": user, "PGPASSWORD": password, "PGDATABASE": database}
        return subprocess.run([scene.postgres / "psql", "--no-psqlrc", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1", *words],
                              env=env, capture_output=True, text=True, check=False, **more)
    try:
        until("the database answers", lambda: psql("--command=SELECT 1", database="postgres").returncode == 0)
        psql("--command=CREATE DATABASE shop", database="postgres").check_returncode()
        tables = """CREATE TABLE orders (id bigint PRIMARY KEY, customer text, cents bigint, day date);
            INSERT INTO orders VALUES (1, 'Ann', 1200, '2026-11-01'), (2, 'O''Brien', 500, '2026-11-02'), (3, 'Ann', 70, '2026-11-03');
            CREATE TABLE secrets (value text); INSERT INTO secrets VALUES ('planted-row');"""
        psql("--file=-", input=tables).check_returncode()
        psql(f"--set=password={DATABASE_PASSWORD}", f"--file={SAMPLES}/query/roles.sql").check_returncode()
        yield psql, port
    finally:
        process.terminate()
        process.wait()


def query(scene):
    with postgres(scene) as (psql, port):
        replaced = {"/usr/lib/postgresql/15/bin": scene.postgres, "/opt/tools": scene.tools, "PGHOST: db.example.com": f'PGHOST: localhost, PGPORT: "{port}"',
                    "/etc/ssl/certs/ca-certificates.crt": scene.ca}
        with Bridge(scene.binary, scene.work, "query", replaced, {"pgpassword": DATABASE_PASSWORD}) as bridge:
            answer = bridge.execute("orders", customer="Ann", rows=10)
            check("orders lists the orders of a customer", answer["stdout"] == "id,customer,cents,day\n3,Ann,70,2026-11-03\n1,Ann,1200,2026-11-01\n", answer)
            answer = bridge.execute("orders", customer="Ann", rows=1)
            check("and only so many", answer["stdout"].count("\n") == 2, answer)
            answer = bridge.execute("orders", customer="O'Brien", rows=10)
            check("a quotation mark is a part of a name", "2,O'Brien,500" in answer["stdout"], answer)
            answer = bridge.execute("order", id=2)
            check("order shows one order", answer["stdout"] == "id,customer,cents,day\n2,O'Brien,500,2026-11-02\n", answer)
            # Texts that would change a statement in which they were not quoted. Each is the name of no customer.
            for text in ["' OR '1'='1", "x'; DROP TABLE orders; --", "x' UNION SELECT 1, value, 1, now()::date FROM secrets --", "\\'; DROP TABLE orders; --",
                         "x\\' OR 1=1 --", "$$; DROP TABLE orders; $$", "E'\\047 OR 1=1", ":'rows'", ":rows", ":{?rows}", "\\! id", "\\copy secrets to /tmp/x",
                         "`id`", "$(id)", "%27 OR 1=1", "x\u2019 OR 1=1", "Ann' /*", "Ann%", "rows=100", "Ann=Ann", "--command=DROP TABLE orders"]:
                answer = bridge.execute("orders", customer=text, rows=10)
                check(f"orders takes {text!r} for a name", answer["status"] == "ok" and answer["stdout"] == "id,customer,cents,day\n", answer)
            for text in ["Ann\n\\! id", "x\u0000y", "x" * 81]:
                bridge.refuses("orders", "customer", customer=text, rows=10)
            for number in ["1 OR 1=1", "1", 0, 2**63, 1.5, None]:
                bridge.refuses("order", "id", id=number)
        check("nothing was changed", psql("--command=SELECT count(*) FROM orders").stdout.strip() == "3")

        def reader(statement):
            return psql("--command=SET default_transaction_read_only = off", f"--command={statement}", user="orders_reader", password=DATABASE_PASSWORD)
        for statement in ["DELETE FROM orders", "SELECT * FROM secrets", "CREATE TABLE x (y int)", "COPY orders TO PROGRAM 'id'", "SELECT pg_read_file('/etc/passwd')"]:
            said = reader(statement)
            check(f"the role may not: {statement}", said.returncode != 0 and re.search("permission denied|must be superuser", said.stderr), said)


def message(scene):
    state = scene.servers
    replaced = {"https://chat.example.com": scene.url, "/opt/tools": scene.tools}
    with Bridge(scene.binary, scene.work, "message", replaced, {"chat-token": CHAT_TOKEN}, {"CURL_CA_BUNDLE": scene.ca}) as bridge:
        answer = bridge.execute("post_message", channel="builds", text="the build is green")
        check("post_message posts a message", answer["status"] == "ok" and state.messages == [{"channel": "builds", "text": "the build is green"}], answer)
        check("the token that the server shows is taken out", "[credential chat-token]" in answer["stdout"], answer)
        for text in ["a&channel=reviews", "@/etc/passwd", "text@/etc/passwd", "x\" --output /tmp/x", "$(id) `id`", "a=b", "%0aheader", "\u00e9"]:
            answer = bridge.execute("post_message", channel="builds", text=text)
            check(f"{text!r} is a message", answer["status"] == "ok" and state.messages[-1] == {"channel": "builds", "text": text}, (answer, state.messages[-1]))
        for text in ["--output=x", "-K/etc/passwd", "a\nurl = x", "x" * 2001]:
            bridge.refuses("post_message", "text", channel="builds", text=text)
        bridge.refuses("post_message", "channel", channel="private", text="x")
        count = len(state.messages)
        answer = bridge.execute("post_message", channel="builds", text="move")
        check("a redirect is not followed", len(state.messages) == count + 1, answer)
    check("the token was in no list of arguments", CHAT_TOKEN not in state.leaked)


def deploy(scene):
    state = scene.servers
    replaced = {"https://deploy.example.com": scene.url, "/opt/tools": scene.tools}
    with Bridge(scene.binary, scene.work, "deploy", replaced, {"deploy-key": DEPLOY_KEY}, {"CURL_CA_BUNDLE": scene.ca}) as bridge:
        answer = bridge.execute("deploy", version="v1.2.0")
        check("deploy deploys a version, and waits", answer["status"] == "ok" and "staging runs v1.2.0" in answer["stdout"] and state.polls == 2, answer)
        check("to staging alone", state.deploys == [("/environments/staging", "v1.2.0")], state.deploys)
        answer = bridge.execute("deploy", version="v9")
        check("a version that is not released is not deployed", answer["status"] == "nonzero" and len(state.deploys) == 1, answer)
        for version in ["v1;id", "v1/../../environments/production", "--version", "v1 production", "v1.2.0\n", "1.2.0"]:
            bridge.refuses("deploy", "version", version=version)
    check("the key was in no list of arguments", DEPLOY_KEY not in state.leaked)


class Scene:
    def __init__(self, binary, work, postgres):
        self.binary, self.work, self.postgres = binary, work, postgres
        self.tools, self.ca = work / "tools", work / "tls.crt"
        self.tools.mkdir()
        for file in SAMPLES.glob("*/*"):
            if file.suffix == ".sql" or os.access(file, os.X_OK) and file.is_file():
                shutil.copy(file, self.tools)
        run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=localhost",
            "-addext", "subjectAltName=DNS:localhost", "-keyout", work / "tls.key", "-out", self.ca)
        self.servers = Servers(str(work / "repositories"), self.ca, work / "tls.key")
        self.url = f"https://localhost:{self.servers.port}"


def main(binary, work, postgres_folder):
    scene = Scene(binary, work, postgres_folder)
    (work / "wrong").mkdir()
    for part in (git_push, rollout, query, message, deploy):
        print(f"-- {part.__name__}", flush=True)
        part(scene)
    leaks = [secret for secret in SECRETS if any(secret in text for text in answers)]
    check("no answer and no audit log has a credential", not leaks and len(answers) > 60, leaks)


main(os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve(), pathlib.Path(sys.argv[3]).resolve())
sys.exit(failed != 0)
