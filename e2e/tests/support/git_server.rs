//! A git server at the node's address: git's own program for HTTP (`git http-backend`), behind TLS and a password, and the
//! gateway's settings for it.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use bytes::Bytes;
use futures::StreamExt as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use super::TestNamespace;
use super::operator::free_port;

/// Name of the server, for the gateway.
pub const HOST: &str = "git.example.test";
/// The team's token, which is the only one that the server accepts, with the user `robot`.
pub const TOKEN: &str = "the-teams-own-git-token";
/// The bytes of a list of updates without any.
const EMPTY_LIST_BYTES: usize = 4;
/// User and token in `Basic` authentication.
pub const BASIC: &str = "cm9ib3Q6dGhlLXRlYW1zLW93bi1naXQtdG9rZW4=";

/// A step of pushes at which the server waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    Nothing,
    /// It reads only the first part of a body.
    Bodies,
    /// It sends no answer after it has stored the push.
    Answers,
}

/// The server. It serves until the test ends.
pub struct GitServer {
    pub port: u16,
    shared: Arc<Shared>,
}

/// What the connections share.
struct Shared {
    root: PathBuf,
    requests: AtomicUsize,
    /// Pushes with objects that have begun.
    pushes: AtomicUsize,
    hold: watch::Sender<Hold>,
}

impl Shared {
    /// Waits until pushes are not held at this step.
    async fn released(&self, step: Hold) {
        let _ = self.hold.subscribe().wait_for(|now| *now != step).await; // we hold the sender
    }
}

impl GitServer {
    /// Serves the repository `team/app`, with two commits on `main`, and `team/other`. Makes the Secret `robot`, and restarts the
    /// namespace's gateway, which knows the server from now on.
    pub async fn start(namespace: &TestNamespace) -> Self {
        let port = free_port(namespace.node);
        let root = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.git", namespace.namespace));
        let _ = std::fs::remove_dir_all(&root);
        let issued = rcgen::generate_simple_self_signed([HOST.to_owned()]).expect("a certificate");
        let key = PrivateKeyDer::try_from(issued.signing_key.serialize_der()).expect("a key");
        let tls = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![issued.cert.der().clone()], key).expect("a pair");
        let (requests, pushes) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let shared = Arc::new(Shared { root, requests, pushes, hold: watch::Sender::new(Hold::Nothing) });
        let server = Self { port, shared };
        for name in ["team/app", "team/other"] {
            server.make_repository(name);
        }
        let origins = json!([{"origin": server.origin(), "allowPrivate": true, "caBundle": issued.cert.pem()}]);
        std::fs::write(namespace.git_file(), json!({"origins": origins}).to_string()).expect("a file");
        std::fs::write(namespace.hosts_file(), format!("127.0.0.1 localhost\n{} {HOST}\n", namespace.node)).expect("a file");
        server.make_secret(namespace, "robot", TOKEN).await;
        let listener = TcpListener::bind((namespace.node, port)).await.expect("a free port");
        tokio::spawn(serve(listener, TlsAcceptor::from(Arc::new(tls)), server.shared.clone()));
        namespace.kill_gateway();
        namespace.start_gateway("gateway");
        server
    }

    /// `https://host:port`.
    pub fn origin(&self) -> String {
        format!("https://{HOST}:{}", self.port)
    }

    /// URL of a repository.
    pub fn url(&self, name: &str) -> String {
        format!("{}/{name}.git", self.origin())
    }

    /// Requests so far.
    pub fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::SeqCst)
    }

    /// Pushes with objects so far, at their begin.
    pub fn pushes(&self) -> usize {
        self.shared.pushes.load(Ordering::SeqCst)
    }

    /// From now on pushes wait at this step.
    pub fn hold(&self, step: Hold) {
        self.shared.hold.send_replace(step);
    }

    /// A Secret with a token for this server.
    pub async fn make_secret(&self, namespace: &TestNamespace, name: &str, token: &str) {
        let secret: Secret = serde_json::from_value(json!({
            "metadata": {"name": name}, "type": "spillway.dev/git-credential",
            "stringData": {"origin": self.origin(), "username": "robot", "token": token},
        }))
        .expect("a Secret");
        namespace.api::<Secret>().create(&PostParams::default(), &secret).await.expect("a new Secret");
    }

    /// Runs git in a repository of the server.
    pub fn git(&self, name: &str, words: &[&str]) -> String {
        git(&self.shared.root.join(format!("{name}.git")), words)
    }

    /// Puts these files on `main`, in one commit.
    pub fn add_files(&self, name: &str, files: &[(&str, &str)]) {
        let (bare, work) = (self.shared.root.join(format!("{name}.git")), self.shared.root.join("added"));
        let _ = std::fs::remove_dir_all(&work);
        git(&self.shared.root, &["clone", "--quiet", &bare.to_string_lossy(), &work.to_string_lossy()]);
        for (path, content) in files {
            std::fs::write(work.join(path), content).expect("a file");
        }
        git(&work, &["add", "."]);
        git(&work, &["commit", "--quiet", "--message", "more files"]);
        git(&work, &["push", "--quiet", "origin", "main"]);
    }

    /// The commit of a ref, if the repository has the ref.
    pub fn commit(&self, name: &str, reference: &str) -> Option<String> {
        let all = self.git(name, &["for-each-ref", "--format=%(refname) %(objectname)"]);
        all.lines().find_map(|line| line.strip_prefix(&format!("{reference} ")).map(str::to_owned))
    }

    fn make_repository(&self, name: &str) {
        let (bare, work) = (self.shared.root.join(format!("{name}.git")), self.shared.root.join("work"));
        std::fs::create_dir_all(&bare).expect("a folder");
        git(&bare, &["init", "--quiet", "--bare", "--initial-branch=main"]);
        git(&bare, &["config", "http.receivepack", "true"]);
        git(&bare, &["config", "receive.advertisePushOptions", "true"]);
        let _ = std::fs::remove_dir_all(&work);
        std::fs::create_dir_all(&work).expect("a folder");
        git(&work, &["init", "--quiet", "--initial-branch=main"]);
        for text in ["one", "two"] {
            std::fs::write(work.join("README"), format!("{name} {text}\n")).expect("a file");
            git(&work, &["add", "."]);
            git(&work, &["commit", "--quiet", "--message", text]);
        }
        git(&work, &["push", "--quiet", &bare.to_string_lossy(), "main"]);
    }
}

fn git(folder: &Path, words: &[&str]) -> String {
    let mut command = std::process::Command::new("git");
    command.arg("-C").arg(folder).args(["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "safe.directory=*"]).args(words);
    let output = command.output().expect("git is installed");
    assert!(output.status.success(), "git {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

async fn serve(listener: TcpListener, tls: TlsAcceptor, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (tls, shared) = (tls.clone(), shared.clone());
        tokio::spawn(async move {
            let Ok(stream) = tls.accept(stream).await else { return };
            let service = service_fn(move |request| {
                shared.requests.fetch_add(1, Ordering::SeqCst);
                let shared = shared.clone();
                async move { Ok::<_, Infallible>(answer(request, &shared).await) }
            });
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

fn status(code: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = code;
    response
}

/// Runs `git http-backend` for one request, by the rules of CGI.
async fn answer(request: Request<Incoming>, shared: &Arc<Shared>) -> Response<Body> {
    let (head, mut body) = request.into_parts();
    let text = |name: header::HeaderName| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if text(header::AUTHORIZATION) != format!("Basic {BASIC}") {
        let mut response = status(StatusCode::UNAUTHORIZED);
        response.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Basic realm=\"git\""));
        return response;
    }
    let mut command = Command::new("git");
    command.arg("http-backend").env("GIT_PROJECT_ROOT", &shared.root).env("GIT_HTTP_EXPORT_ALL", "1").env("REMOTE_USER", "robot");
    command.env("GIT_CONFIG_COUNT", "1").env("GIT_CONFIG_KEY_0", "safe.directory").env("GIT_CONFIG_VALUE_0", "*");
    command.env("PATH_INFO", head.uri.path()).env("QUERY_STRING", head.uri.query().unwrap_or_default());
    command.env("REQUEST_METHOD", head.method.as_str()).env("CONTENT_TYPE", text(header::CONTENT_TYPE));
    command.env("HTTP_CONTENT_ENCODING", text(header::CONTENT_ENCODING));
    command.env("GIT_PROTOCOL", text(header::HeaderName::from_static("git-protocol")));
    if let Some(length) = head.headers.get(header::CONTENT_LENGTH) {
        command.env("CONTENT_LENGTH", length.to_str().unwrap_or_default());
    }
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true).spawn();
    let mut child = child.expect("git is installed");
    let (mut to, from) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
    let is_push = head.uri.path().ends_with("/git-receive-pack");
    let reading = shared.clone();
    tokio::spawn(async move {
        let mut objects_seen = false;
        while let Some(Ok(frame)) = body.frame().await {
            let Ok(data) = frame.into_data() else { continue };
            if to.write_all(&data).await.is_err() {
                return;
            }
            // git tests with an empty list whether it may push.
            if is_push && data.len() > EMPTY_LIST_BYTES {
                if !std::mem::replace(&mut objects_seen, true) {
                    reading.pushes.fetch_add(1, Ordering::SeqCst);
                }
                reading.released(Hold::Bodies).await;
            }
        }
    });
    let mut from = BufReader::new(from);
    let mut response = Response::new(Body::empty());
    loop {
        let mut line = String::new();
        if from.read_line(&mut line).await.unwrap_or(0) == 0 {
            return status(StatusCode::INTERNAL_SERVER_ERROR);
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(": ").expect("a header");
        if name == "Status" {
            *response.status_mut() = value.split(' ').next().and_then(|code| code.parse().ok()).expect("a status");
            continue;
        }
        response.headers_mut().insert(header::HeaderName::try_from(name).expect("a name"), value.parse().expect("a value"));
    }
    let held = is_push.then(|| shared.clone());
    let parts = futures::stream::unfold(Some((from, child, held)), async |state| {
        let (mut from, mut child, held) = state?;
        if let Some(shared) = &held {
            shared.released(Hold::Answers).await;
        }
        let mut buffer = vec![0; 32 * 1024];
        match from.read(&mut buffer).await {
            Ok(0) => match child.wait().await {
                Ok(status) if status.success() => None,
                Ok(_) | Err(_) => Some((Err(std::io::Error::other("git failed")), None)),
            },
            Ok(count) => {
                buffer.truncate(count);
                Some((Ok(Bytes::from(buffer)), Some((from, child, held))))
            }
            Err(error) => Some((Err(error), None)),
        }
    });
    *response.body_mut() = Body::from_stream(parts.boxed());
    response
}
