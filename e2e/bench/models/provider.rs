//! A provider of models that costs almost no time, so that it does not affect the measurement: it reads a body, looks
//! for the model's name in its first bytes, and sends a prepared answer. It counts nothing, checks no credential and
//! knows one protocol (Chat). The scripted model server is not used here, because it parses each body and counts
//! tokens.
//!
//! It runs in the process of its callers, so both use one clock. An event carries the time at which it left the
//! provider.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use futures::stream::{self, StreamExt as _};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// Name in the certificate of the provider, and of the plain proxy before it.
pub const NAME: &str = "provider.bench";
/// The model whose answer comes in one piece.
pub const WHOLE: &str = "bench-whole";
/// The model whose answer is a stream.
pub const STREAM: &str = "bench-stream";
/// The model whose stream the provider cuts after [`BEFORE_CUT`] events.
pub const CUT: &str = "bench-cut";
/// The model whose answer in one piece has [`ENDLESS_BYTES`] and never ends.
pub const ENDLESS: &str = "bench-endless";
/// The model that is out of order: 503. So is each model whose name begins with this.
pub const DOWN: &str = "bench-down";
/// The model whose calls are refused: 400.
pub const REFUSED: &str = "bench-refused";
/// See [`CUT`].
const BEFORE_CUT: usize = 5;
/// Bytes of an answer that never ends. It is below the most that a gateway may keep of one answer.
const ENDLESS_BYTES: usize = 15 * 1024 * 1024;
/// Headers that ask a provider, or a proxy in front of it, for another answer or another target. None may arrive here.
pub const STEERING: [&str; 8] = [
    "x-goog-fieldmask",
    "x-http-method-override",
    "x-original-url",
    "x-rewrite-url",
    "x-portkey-custom-host",
    "helicone-target-url",
    "x-litellm-api-key",
    "range",
];
/// Number of first bytes of a body that must contain the model's name.
const LOOK: usize = 64;

/// The answer in one piece.
pub const ANSWER: &str = r#"{"id":"c","object":"chat.completion","created":1,"model":"bench","choices":[{"index":0,"message":{"role":"assistant","content":"That is done, and it was tried: nothing is left to be mended here."},"finish_reason":"stop"}],"usage":{"prompt_tokens":200,"completion_tokens":16,"total_tokens":216}}"#;
/// The tokens that it reports.
const ANSWER_TOKENS: u64 = 216;
/// The text before the time of an event.
pub const BEFORE_TIME: &[u8] = b"\"created\":";
const REST_OF_EVENT: &str = r#","model":"bench","choices":[{"index":0,"delta":{"content":" one more word"},"finish_reason":null}]}"#;
const LAST: &str = concat!(
    r#"data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"bench","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
    "\n\n",
    r#"data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"bench","choices":[],"usage":{"prompt_tokens":200,"completion_tokens":2000,"total_tokens":2200}}"#,
    "\n\ndata: [DONE]\n\n"
);

/// Nanoseconds since the program began.
pub fn clock() -> u64 {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(BEGAN.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Size and pace of its streams.
#[derive(Clone, Copy, Debug)]
pub struct Streams {
    /// Number of events in a stream.
    pub events: usize,
    /// Time between two of them.
    pub pace: Duration,
}

/// Addresses of a provider.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Served {
    /// The address with HTTP/1.1 only.
    pub first: SocketAddr,
    /// The address with HTTP/2 too.
    pub second: SocketAddr,
    /// Its certificate, which is its own authority.
    pub certificate: String,
}

impl Served {
    /// Its origins, HTTP/1.1 first.
    pub fn origins(&self) -> [String; 2] {
        [self.first, self.second].map(|address| format!("https://{address}"))
    }
}

/// Counts of a provider.
#[derive(Debug, Default)]
pub struct Books {
    /// Tokens that its whole answers reported.
    pub tokens: AtomicU64,
    /// Headers of [`STEERING`] that arrived.
    pub steering: AtomicU64,
}

/// A running provider. It ends when this value is dropped.
pub struct Provider {
    /// Its addresses.
    pub served: Served,
    /// The key of its certificate.
    pub key: String,
    /// Its counts so far.
    pub counts: Arc<Books>,
    _tasks: JoinSet<()>,
}

type Sent = BoxBody<Bytes, io::Error>;

impl Provider {
    /// Serves at `node`, over TLS.
    pub async fn serve(node: IpAddr, streams: Streams) -> anyhow::Result<Self> {
        let issued = rcgen::generate_simple_self_signed([node.to_string(), NAME.to_owned()]).context("a certificate")?;
        let chain = vec![CertificateDer::from(issued.cert.der().to_vec())];
        let mut tasks = JoinSet::new();
        let mut addresses = Vec::new();
        let books = Arc::<Books>::default();
        for protocols in [&["http/1.1"][..], &["h2", "http/1.1"]] {
            let key = PrivateKeyDer::try_from(issued.signing_key.serialize_der()).map_err(|error| anyhow::anyhow!("a key: {error}"))?;
            let mut config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain.clone(), key)?;
            config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
            let listener = TcpListener::bind(("0.0.0.0", 0)).await?;
            addresses.push(SocketAddr::new(node, listener.local_addr()?.port()));
            tasks.spawn(accept(listener, TlsAcceptor::from(Arc::new(config)), streams, books.clone()));
        }
        let [first, second] = addresses[..] else { anyhow::bail!("two addresses") };
        let served = Served { first, second, certificate: issued.cert.pem() };
        Ok(Self { served, key: issued.signing_key.serialize_pem(), counts: books, _tasks: tasks })
    }
}

async fn accept(listener: TcpListener, tls: TlsAcceptor, streams: Streams, books: Arc<Books>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { continue };
                let (tls, books) = (tls.clone(), books.clone());
                connections.spawn(async move {
                    // Without it the last part of an answer waits for the client's acknowledgement of the one before.
                    let _ = stream.set_nodelay(true);
                    let Ok(stream) = tls.accept(stream).await else { return };
                    let service = service_fn(move |request| answer(request, streams, books.clone()));
                    // The client sees how the connection ended.
                    let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn answer(request: Request<Incoming>, streams: Streams, books: Arc<Books>) -> Result<Response<Sent>, Infallible> {
    let steering = STEERING.iter().filter(|name| request.headers().contains_key(**name)).count();
    books.steering.fetch_add(u64::try_from(steering).unwrap_or(u64::MAX), Ordering::Relaxed);
    // A client that leaves while it sends needs no answer.
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let head = body.get(..LOOK.min(body.len())).unwrap_or_default();
    let says = |model: &str| head.windows(model.len()).any(|part| part == model.as_bytes());
    let mut status = StatusCode::OK;
    let (kind, body) = if says(ENDLESS) {
        ("application/json", endless())
    } else if says(DOWN) || says(REFUSED) {
        status = if says(DOWN) { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::BAD_REQUEST };
        (
            "application/json",
            Full::from(r#"{"error":{"message":"no","type":"invalid_request_error"}}"#).map_err(|never| match never {}).boxed(),
        )
    } else if says(STREAM) {
        ("text/event-stream", events(streams, None))
    } else if says(CUT) {
        ("text/event-stream", events(streams, Some(BEFORE_CUT)))
    } else {
        books.tokens.fetch_add(ANSWER_TOKENS, Ordering::Relaxed);
        ("application/json", Full::from(ANSWER).map_err(|never| match never {}).boxed())
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    Ok(response)
}

/// The beginning of an answer with the probabilities of its tokens, and nothing after it.
fn endless() -> Sent {
    const PART: &[u8] = br#"{"token":"a","logprob":-0.1,"bytes":[97],"top_logprobs":[]},"#;
    static FRAME: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(PART.repeat(1024)));
    let head = Bytes::from_static(br#"{"id":"c","object":"chat.completion","choices":[{"index":0,"logprobs":{"content":["#);
    let parts = stream::iter(std::iter::once(head).chain((0..ENDLESS_BYTES / FRAME.len()).map(|_| FRAME.clone())));
    BoxBody::new(StreamBody::new(parts.map(|part| Ok(Frame::data(part))).chain(stream::pending())))
}

/// A stream of events, each with the time at which it left.
fn events(streams: Streams, cut: Option<usize>) -> Sent {
    let Streams { events, pace } = streams;
    let begun = tokio::time::Instant::now();
    let parts = stream::unfold(0_usize, move |number| async move {
        if cut == Some(number) {
            return Some((Err(io::ErrorKind::ConnectionAborted.into()), usize::MAX));
        }
        if number > events {
            return None;
        }
        tokio::time::sleep_until(begun + pace * u32::try_from(number).unwrap_or(u32::MAX)).await;
        if number == events {
            return Some((Ok(Frame::data(Bytes::from_static(LAST.as_bytes()))), usize::MAX));
        }
        let event = format!("data: {{\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":{}{REST_OF_EVENT}\n\n", clock());
        Some((Ok(Frame::data(Bytes::from(event))), number + 1))
    });
    BoxBody::new(StreamBody::new(parts))
}

/// The body of a call for this model, of `bytes` bytes. It has all fields that the gateway could have to add.
pub fn body(model: &str, bytes: usize) -> Bytes {
    let (stream, output) = if model == WHOLE { ("", 64) } else { (r#""stream":true,"stream_options":{"include_usage":true},"#, 4096) };
    let head = format!(r#"{{"model":"{model}",{stream}"max_tokens":{output},"messages":[{{"role":"user","content":""#);
    let tail = r#""}]}"#;
    let filling = "Mend what is broken. ".chars().cycle().take(bytes.saturating_sub(head.len() + tail.len()));
    Bytes::from(
        filling.fold(head, |mut text, sign| {
            text.push(sign);
            text
        }) + tail,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_as_long_as_they_shall_be_and_name_their_model_early() {
        for (model, bytes) in [(WHOLE, 1024), (WHOLE, 100 * 1024), (STREAM, 1024), (CUT, 1024)] {
            let body = body(model, bytes);
            assert_eq!(body.len(), bytes, "{model}");
            let read: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
            assert_eq!(read["model"], model);
            assert!(body[..LOOK].windows(model.len()).any(|part| part == model.as_bytes()), "{model}");
        }
    }
}
