//! The models port: it forwards requests of the program's clients to the gateway unchanged, and the answers back.
//!
//! It knows no protocol of models and keeps nothing. A key that a client sends stays in the pod: the gateway gets the pod's token,
//! and adds the team's credential.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body_util::{Either, Full};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::{TokioIo, TokioTimer};
use spillway_wire::headers;
use spillway_wire::link::ModelCalls;
use spillway_wire::meter::CONVERSATION_HEADER;
use spillway_wire::work::LeaseRef;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::conversations::{Call, Conversations};
use super::forwarding::{set_item, strip};
use super::gateway::{Gateway, Silence};
use super::input::Input;
use crate::clock::BootTime;
use crate::{link_says, random};

/// Requests at once. The gateway accepts fewer from one agent and answers so, which is clearer than a queue that does not move.
pub const MAX_CONCURRENT_REQUESTS: usize = 32;
/// Time limit of the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// A little longer than the gateway waits for a provider, so that the gateway answers first.
const PROVIDER_SILENCE_TIMEOUT: Duration = Duration::from_secs(660);
/// Between two notes that the program is active, while an answer comes.
const ACTIVITY_INTERVAL: Duration = Duration::from_secs(1);
/// Clients of paths with this end wait after a 429, and repeat too fast after a 503.
const RESPONSES_PATH_SUFFIX: &str = "/responses";

/// The state of the port.
#[derive(Clone, Debug)]
pub struct Models {
    gateway: Arc<Gateway>,
    item: watch::Receiver<Option<LeaseRef>>,
    inputs: mpsc::Sender<Input>,
    conversations: Conversations,
    /// The required first part of each path, where other programs reach the port too; `None` in a pod.
    secret: Option<Arc<str>>,
}

type Answer = Response<Either<AnswerBody, Full<Bytes>>>;

impl Models {
    /// Forwards to `gateway`, with the item in hand, and notes the program's activity.
    pub fn new(gateway: Arc<Gateway>, item: watch::Receiver<Option<LeaseRef>>, inputs: mpsc::Sender<Input>) -> Self {
        Self { gateway, item, inputs, conversations: Conversations::default(), secret: None }
    }

    /// The same, only for callers that know this secret: other users and browser pages can reach the loopback ports of a machine.
    pub fn behind_secret(self, secret: &str) -> Self {
        Self { secret: Some(secret.into()), ..self }
    }

    /// Serves one request of a connection, so that kept connections of one client do not block other clients.
    pub async fn serve(self, stream: TcpStream) {
        let service = service_fn(|request| {
            let models = self.clone();
            async move { Ok::<_, std::convert::Infallible>(models.answer(request).await) }
        });
        let mut builder = http1::Builder::new();
        builder.keep_alive(false).timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(64 * 1024);
        let _ = builder.serve_connection(TokioIo::new(stream), service).await; // the client may have gone
    }

    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let patient = request.uri().path().ends_with(RESPONSES_PATH_SUFFIX);
        if request.method() == Method::CONNECT {
            return error_answer(StatusCode::METHOD_NOT_ALLOWED, "this port is for model calls and is no proxy");
        }
        let Some(path) = self.path(request.uri()) else {
            return error_answer(
                StatusCode::NOT_FOUND,
                "no such path: the base URLs of models are in the environment of the agent's program",
            );
        };
        // Only a POST can be a question to a model.
        let call = (request.method() == Method::POST).then(|| self.conversations.begin(BootTime::now()));
        self.tell(None);
        let carried = match self.prepare(request, &path) {
            Ok(request) => timeout(PROVIDER_SILENCE_TIMEOUT, self.gateway.carry(request)).await.unwrap_or(Err(Silence::TimeOut)),
            Err(error) => return error_answer(StatusCode::BAD_REQUEST, &error.to_string()),
        };
        match carried {
            Ok(answer) => {
                // The answer to a GET, such as a list of models, is no answer of a model.
                let answered = call.is_some() && answer.status().is_success();
                let (mut head, body) = answer.into_parts();
                head.headers.remove(CONNECTION);
                let conversation =
                    head.headers.remove(CONVERSATION_HEADER).and_then(|number| u64::from_str_radix(number.to_str().ok()?, 16).ok());
                if let (Some(call), Some(conversation)) = (&call, conversation) {
                    call.set_conversation(conversation);
                }
                if answered {
                    self.tell(Some(BootTime::now()));
                }
                Response::from_parts(head, Either::Left(AnswerBody::new(body, self.clone(), call)))
            }
            Err(silence) => {
                link_says!("a model call was not forwarded: {silence}");
                let status = if patient { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::SERVICE_UNAVAILABLE };
                let mut answer = error_answer(status, &format!("Spillway's gateway cannot be reached now ({silence}); try again"));
                answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("5"));
                answer
            }
        }
    }

    /// The path after the secret, with the query; `None`: the secret is missing.
    fn path(&self, uri: &Uri) -> Option<String> {
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let Some(secret) = &self.secret else { return Some(path.to_owned()) };
        let (shown, rest) = path.strip_prefix('/')?.split_once('/')?;
        random::same(shown, secret).then(|| format!("/{rest}"))
    }

    /// The request for the gateway.
    fn prepare(&self, mut request: Request<Incoming>, path: &str) -> hyper::http::Result<Request<Incoming>> {
        *request.uri_mut() = Uri::try_from(format!("/models{path}"))?;
        strip(request.headers_mut(), is_kept_here);
        set_item(request.headers_mut(), self.item.borrow().as_ref())?;
        Ok(request)
    }

    /// Notes that the program called a model, was answered (at this time), or got more of an answer. If the loop is busy, the note is
    /// dropped, because the next one contains it too.
    fn tell(&self, answered: Option<BootTime>) {
        let calls = ModelCalls { answered: answered.map(BootTime::millis), ..self.conversations.calls() };
        let _ = self.inputs.try_send(Input::ModelCalled(calls));
    }
}

/// Whether a header is not forwarded. The length follows from the body itself.
fn is_kept_here(name: &str) -> bool {
    headers::is_never_forwarded(name) || name == CONTENT_LENGTH.as_str()
}

/// An answer of our own, in the error format that clients of all dialects read.
fn error_answer(status: StatusCode, message: &str) -> Answer {
    let kind =
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS { "overloaded_error" } else { "invalid_request_error" };
    let error = serde_json::json!({"type": "error", "error": {"type": kind, "code": status.as_u16(), "message": message}});
    let mut answer = Response::new(Either::Right(Full::from(error.to_string())));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

/// The body of a forwarded answer. Each part counts as activity of the program. After a long silence the body ends with an error.
pub struct AnswerBody {
    body: Incoming,
    models: Models,
    call: Option<Call>,
    told: Instant,
    silence: Pin<Box<Sleep>>,
}

impl AnswerBody {
    fn new(body: Incoming, models: Models, call: Option<Call>) -> Self {
        // From here on the conversation of the call is known.
        models.tell(None);
        Self { body, models, call, told: Instant::now(), silence: Box::pin(sleep(PROVIDER_SILENCE_TIMEOUT)) }
    }
}

impl Drop for AnswerBody {
    fn drop(&mut self) {
        drop(self.call.take());
        self.models.tell(None);
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) else {
            ready!(this.silence.as_mut().poll(context));
            return Poll::Ready(Some(Err("the gateway sent nothing for too long".into())));
        };
        let now = Instant::now();
        this.silence.as_mut().reset(now + PROVIDER_SILENCE_TIMEOUT);
        if now.duration_since(this.told) >= ACTIVITY_INTERVAL {
            this.told = now;
            this.call.iter().for_each(|call| call.seen(BootTime::now()));
            this.models.tell(None);
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use hyper::HeaderMap;
    use hyper::header::HeaderName;

    use super::*;

    #[test]
    fn what_is_of_the_connection_or_a_key_stays_here() {
        let mut sent = HeaderMap::new();
        for name in headers::HOP_BY_HOP_HEADERS.iter().chain(&headers::CREDENTIAL_HEADERS).chain(&[
            "host",
            "spillway-item",
            "x-of-hop",
            "content-length",
        ]) {
            sent.insert(HeaderName::from_static(name), HeaderValue::from_static("x"));
        }
        sent.insert(CONNECTION, HeaderValue::from_static("close, X-Of-Hop"));
        sent.insert("anthropic-beta", HeaderValue::from_static("y"));
        strip(&mut sent, is_kept_here);
        assert_eq!(sent.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["anthropic-beta"]);
    }
}
