//! The git server of the tests ([`git_http`](super::git_http)) at the node's address, and the gateway's settings for it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Body, Frame, Incoming};
use hyper::{Request, Response};
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::TestNamespace;
use super::git_http::{self, AnswerBody};
pub use super::git_http::{BASIC, HOST, TOKEN};
use super::operator::free_port;

/// The bytes of a list of updates without any.
const EMPTY_LIST_BYTES: usize = 4;

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
        let tls = git_http::acceptor(&issued).expect("a pair");
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
        let shared = server.shared.clone();
        tokio::spawn(git_http::serve(listener, tls, move |request| answer(request, shared.clone())));
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
            let file = work.join(path);
            std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
            std::fs::write(file, content).expect("a file");
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

async fn answer(request: Request<Incoming>, shared: Arc<Shared>) -> Response<AnswerBody> {
    shared.requests.fetch_add(1, Ordering::SeqCst);
    let (head, body) = request.into_parts();
    if let Some(refusal) = git_http::refusal(&head) {
        return refusal;
    }
    if !head.uri.path().ends_with("/git-receive-pack") {
        return git_http::run_backend(&shared.root, &head, body).await;
    }
    let answer = git_http::run_backend(&shared.root, &head, Box::pin(push_body(body, shared.clone()))).await;
    answer.map(|body| held_answer(body, shared))
}

/// The body of a push. It goes on as pushes may, each time that git has read a part with objects.
fn push_body(body: Incoming, shared: Arc<Shared>) -> impl Body<Data = bytes::Bytes, Error = hyper::Error> + Send {
    let parts = futures::stream::unfold((body, 0_usize, false), move |(mut body, part_bytes, mut objects_seen)| {
        let shared = shared.clone();
        async move {
            // git tests with an empty list whether it may push.
            if part_bytes > EMPTY_LIST_BYTES {
                if !std::mem::replace(&mut objects_seen, true) {
                    shared.pushes.fetch_add(1, Ordering::SeqCst);
                }
                shared.released(Hold::Bodies).await;
            }
            let frame = body.frame().await?;
            let part_bytes = frame.as_ref().ok().and_then(Frame::data_ref).map_or(0, bytes::Bytes::len);
            Some((frame, (body, part_bytes, objects_seen)))
        }
    });
    StreamBody::new(parts)
}

/// The answer to a push, which waits as answers do.
fn held_answer(body: AnswerBody, shared: Arc<Shared>) -> AnswerBody {
    let parts = futures::stream::unfold(body, move |mut body| {
        let shared = shared.clone();
        async move {
            shared.released(Hold::Answers).await;
            let frame = body.frame().await?;
            Some((frame, body))
        }
    });
    StreamBody::new(parts).boxed_unsync()
}
