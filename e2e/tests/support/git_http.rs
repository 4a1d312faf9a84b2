//! A git server: git's own program for HTTP (`git http-backend`), behind TLS and a password. The benchmarks use this file too.

use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, StreamBody};
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, UnixStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// Name of the server, for the gateway.
pub const HOST: &str = "git.example.test";
/// The team's token, which is the only one that the server accepts, with the user `robot`.
pub const TOKEN: &str = "the-teams-own-git-token";
/// User and token in `Basic` authentication.
pub const BASIC: &str = "cm9ib3Q6dGhlLXRlYW1zLW93bi1naXQtdG9rZW4=";
/// The most bytes of an answer that are read at once.
const READ_BYTES: usize = 64 * 1024;

/// The body of an answer.
pub type AnswerBody = UnsyncBoxBody<Bytes, io::Error>;

/// TLS with this certificate.
pub fn acceptor(issued: &rcgen::CertifiedKey<rcgen::KeyPair>) -> io::Result<TlsAcceptor> {
    let key = PrivateKeyDer::try_from(issued.signing_key.serialize_der()).map_err(io::Error::other)?;
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![issued.cert.der().clone()], key);
    Ok(TlsAcceptor::from(Arc::new(config.map_err(io::Error::other)?)))
}

/// Answers the requests of all connections. Dropped, it ends them.
pub async fn serve<F>(listener: TcpListener, tls: TlsAcceptor, answer: impl Fn(Request<Incoming>) -> F + Clone + Send + 'static)
where
    F: Future<Output = Response<AnswerBody>> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { continue };
                let (tls, answer) = (tls.clone(), answer.clone());
                connections.spawn(async move {
                    let _ = stream.set_nodelay(true); // slower, and still correct
                    let Ok(stream) = tls.accept(stream).await else { return };
                    let service = service_fn(move |request| {
                        let answer = answer(request);
                        async move { Ok::<_, Infallible>(answer.await) }
                    });
                    // The client sees how the connection ended.
                    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// The refusal of a request without the team's credential.
pub fn refusal(head: &Parts) -> Option<Response<AnswerBody>> {
    if text(head, "authorization") == format!("Basic {BASIC}") {
        return None;
    }
    let mut response = status(StatusCode::UNAUTHORIZED);
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"git\""));
    Some(response)
}

/// Runs `git http-backend` for one request to a repository below `root`.
pub async fn run_backend<B>(root: &Path, head: &Parts, body: B) -> Response<AnswerBody>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Send,
{
    let answered = start_backend(root, head, body).await;
    answered.unwrap_or_else(|error| {
        eprintln!("git http-backend: {}: {error}", head.uri);
        status(StatusCode::INTERNAL_SERVER_ERROR)
    })
}

fn text<'a>(head: &'a Parts, name: &str) -> &'a str {
    head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn status(code: StatusCode) -> Response<AnswerBody> {
    let mut response = Response::new(Empty::new().map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = code;
    response
}

/// A process that is killed when nobody reads its answer any more.
struct BackendProcess(Child);

impl Drop for BackendProcess {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One end for the process, and the other one.
fn pipe() -> io::Result<(Stdio, UnixStream)> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    Ok((OwnedFd::from(theirs).into(), UnixStream::from_std(ours)?))
}

/// Starts the process, and reads the head of its answer, by the rules of CGI.
async fn start_backend<B>(root: &Path, head: &Parts, mut body: B) -> io::Result<Response<AnswerBody>>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Send,
{
    let mut command = Command::new("git");
    command.arg("http-backend").env("GIT_PROJECT_ROOT", root).env("GIT_HTTP_EXPORT_ALL", "1").env("REMOTE_USER", "robot");
    command.env("GIT_CONFIG_COUNT", "1").env("GIT_CONFIG_KEY_0", "safe.directory").env("GIT_CONFIG_VALUE_0", "*");
    command.env("PATH_INFO", head.uri.path()).env("QUERY_STRING", head.uri.query().unwrap_or_default());
    command.env("REQUEST_METHOD", head.method.as_str()).env("CONTENT_TYPE", text(head, "content-type"));
    command.env("HTTP_CONTENT_ENCODING", text(head, "content-encoding")).env("GIT_PROTOCOL", text(head, "git-protocol"));
    if head.headers.contains_key(header::CONTENT_LENGTH) {
        command.env("CONTENT_LENGTH", text(head, "content-length"));
    }
    let ((input, mut to), (output, from)) = (pipe()?, pipe()?);
    let process = BackendProcess(command.stdin(input).stdout(output).stderr(Stdio::null()).spawn()?);
    // It holds the ends of the process, whose answer would never end.
    drop(command);
    tokio::spawn(async move {
        while let Some(Ok(frame)) = body.frame().await {
            let Ok(data) = frame.into_data() else { continue };
            if to.write_all(&data).await.is_err() {
                return;
            }
        }
    });
    let mut from = BufReader::with_capacity(READ_BYTES, from);
    let mut response = status(StatusCode::OK);
    loop {
        let mut line = String::new();
        if from.read_line(&mut line).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(": ").ok_or(io::ErrorKind::InvalidData)?;
        if name == "Status" {
            let code = value.split(' ').next().and_then(|code| code.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
            *response.status_mut() = code;
            continue;
        }
        response
            .headers_mut()
            .insert(HeaderName::try_from(name).map_err(io::Error::other)?, HeaderValue::try_from(value).map_err(io::Error::other)?);
    }
    Ok(response.map(|_| answer_body(from, process)))
}

/// The rest of the output of the process. It fails if the process does.
fn answer_body(from: BufReader<UnixStream>, process: BackendProcess) -> AnswerBody {
    let parts = futures::stream::unfold(Some((from, process)), async |state| {
        let (mut from, mut process) = state?;
        let mut buffer = vec![0; READ_BYTES];
        match from.read(&mut buffer).await {
            Ok(0) => match tokio::task::spawn_blocking(move || process.0.wait()).await {
                Ok(Ok(status)) if status.success() => None,
                Ok(_) | Err(_) => Some((Err(io::Error::other("git failed")), None)),
            },
            Ok(count) => {
                buffer.truncate(count);
                Some((Ok(Frame::data(Bytes::from(buffer))), Some((from, process))))
            }
            Err(error) => Some((Err(error), None)),
        }
    });
    StreamBody::new(parts).boxed_unsync()
}
