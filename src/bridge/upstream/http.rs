//! Requests and answers of HTTP for the SDK's client. It follows no redirect, and each answer is bounded.
//!
//! An answer is read to its end here, also one that is a stream of events: of a stream the answer to the request is passed on, and nothing
//! else. So the SDK has no stream to keep open or to resume.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use axum::http::{HeaderName, HeaderValue, Request, Response, StatusCode, header};
use bytes::Bytes;
use futures::stream::BoxStream;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rmcp::model::{ClientJsonRpcMessage, ClientRequest, ErrorData, RequestId, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_client::{SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse};
use sse_stream::Sse;
use tokio::time::{Instant, timeout, timeout_at};

use super::event_stream::{EventReader, EventTooLong};
use crate::VERSION;
use crate::pki::tls;

/// How long a connection is kept unused.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the upstream is told of the end of a call or of a session.
pub const FAREWELL_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest head of an answer.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// The most bytes of a whole stream of events.
const MAX_STREAM_BYTES: usize = 64 * 1024 * 1024;
/// The most bytes of the answer to a request that is refused.
const MAX_REFUSAL_BYTES: usize = 64 * 1024;
/// Header of a session.
const SESSION_HEADER: HeaderName = HeaderName::from_static("mcp-session-id");
const JSON_TYPE: &str = "application/json";
const EVENTS_TYPE: &str = "text/event-stream";

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HttpFault {
    /// There is no connection. Nothing was sent.
    #[error("it cannot be reached: {0}")]
    NoConnection(String),
    /// It refuses the request.
    #[error("it answers with HTTP {0}")]
    Refused(u16),
    /// It sends the client to another address.
    #[error("it answers with a redirect (HTTP {0}), and redirects are not followed")]
    Redirect(u16),
    /// It fails.
    #[error("it answers with HTTP {0}")]
    Failed(u16),
    /// The connection broke.
    #[error("it broke the connection: {0}")]
    Broken(String),
    /// The answer has too many bytes.
    #[error("its answer has more than {0} bytes")]
    TooLong(usize),
    /// The answer is none of MCP.
    #[error("its answer is not one of MCP: {0}")]
    NoAnswer(String),
}

impl HttpFault {
    /// Whether the upstream may have acted upon the request.
    pub fn may_have_run(&self) -> bool {
        match self {
            Self::NoConnection(_) | Self::Redirect(307 | 308) => false,
            // A server may act, and then refuse to answer. With these it says that it did not read the request.
            Self::Refused(status) => !matches!(status, 401 | 403 | 404 | 405 | 413 | 415 | 429),
            Self::Redirect(_) | Self::Failed(_) | Self::Broken(_) | Self::TooLong(_) | Self::NoAnswer(_) => true,
        }
    }
}

/// What is known of the requests of a session.
#[derive(Debug, Default)]
pub struct SessionRecord {
    fault: Mutex<Option<HttpFault>>,
    call_begun: AtomicBool,
}

impl SessionRecord {
    /// The last fault. The SDK does not pass on all of them.
    pub fn fault(&self) -> Option<HttpFault> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the call of a tool began to be sent.
    pub fn call_begun(&self) -> bool {
        self.call_begun.load(Ordering::Acquire)
    }
}

/// Connects to one upstream. Cheap to clone.
#[derive(Clone, Debug)]
pub struct UpstreamConnector {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl UpstreamConnector {
    /// A connector that trusts the public authorities and those of `ca_bundle`.
    pub fn new(ca_bundle: &str) -> anyhow::Result<Self> {
        let connector = tls::public_connector(ca_bundle).context("caBundle")?;
        let mut builder = Client::builder(TokioExecutor::new());
        builder.pool_idle_timeout(IDLE_TIMEOUT).pool_timer(TokioTimer::new()).http1_max_buf_size(MAX_HEAD_BYTES);
        Ok(Self { client: builder.build(connector) })
    }
}

/// The client of one session.
#[derive(Clone, Debug)]
pub struct SessionHttp {
    connector: UpstreamConnector,
    authorization: Option<HeaderValue>,
    max_answer_bytes: usize,
    /// No request waits longer. The SDK's task may outlive the session that nobody waits for any more.
    until: Instant,
    record: Arc<SessionRecord>,
}

type Posted = Result<StreamableHttpPostResponse, HttpFault>;

impl SessionHttp {
    /// A client that sends `token`, reads answers of at most `max_answer_bytes`, and waits for none beyond `until`.
    pub fn new(connector: UpstreamConnector, token: Option<&str>, max_answer_bytes: usize, until: Instant) -> Result<Self, String> {
        let authorization = token.map(|token| HeaderValue::try_from(format!("Bearer {token}"))).transpose();
        let mut authorization = authorization.map_err(|_| "the credential contains characters that no token has".to_owned())?;
        if let Some(value) = &mut authorization {
            value.set_sensitive(true);
        }
        Ok(Self { connector, authorization, max_answer_bytes, until, record: Arc::default() })
    }

    /// What is known of its requests.
    pub fn record(&self) -> Arc<SessionRecord> {
        self.record.clone()
    }

    fn request(
        &self,
        method: axum::http::Method,
        uri: &str,
        session: Option<&str>,
        headers: HashMap<HeaderName, HeaderValue>,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, HttpFault> {
        let wrong = |error: axum::http::Error| HttpFault::NoConnection(error.to_string());
        let mut request = Request::builder().method(method).uri(uri).body(Full::new(body)).map_err(wrong)?;
        let all = request.headers_mut();
        all.extend(headers.into_iter().collect::<axum::http::HeaderMap>());
        all.insert(header::CONTENT_TYPE, HeaderValue::from_static(JSON_TYPE));
        all.insert(header::ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        all.insert(header::USER_AGENT, HeaderValue::try_from(format!("spillway-bridge/{VERSION}")).map_err(|error| wrong(error.into()))?);
        if let Some(authorization) = &self.authorization {
            all.insert(header::AUTHORIZATION, authorization.clone());
        }
        if let Some(session) = session {
            all.insert(SESSION_HEADER, HeaderValue::try_from(session).map_err(|error| wrong(error.into()))?);
        }
        Ok(request)
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, HttpFault> {
        self.connector.client.request(request).await.map_err(|error| match error.is_connect() {
            true => HttpFault::NoConnection(causes(&error)),
            false => HttpFault::Broken(causes(&error)),
        })
    }

    async fn post(
        &self,
        uri: &str,
        message: &ClientJsonRpcMessage,
        session: Option<&str>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Posted {
        let (mut asked, mut discovers) = (None, false);
        let body = serde_json::to_vec(message).map_err(|error| HttpFault::NoConnection(error.to_string()))?;
        let request = self.request(axum::http::Method::POST, uri, session, headers, body.into())?;
        if let ClientJsonRpcMessage::Request(request) = message {
            asked = Some(&request.id);
            discovers = matches!(request.request, ClientRequest::DiscoverRequest(_));
            if matches!(request.request, ClientRequest::CallToolRequest(_)) {
                self.record.call_begun.store(true, Ordering::Release);
            }
        }
        let response = self.send(request).await?;
        let status = response.status();
        let session = response.headers().get(SESSION_HEADER).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let Some(asked) = asked else {
            // Nothing is awaited: what is in the answer is not read.
            return if status.is_success() { Ok(StreamableHttpPostResponse::Accepted) } else { Err(refusal(status)) };
        };
        if status.is_client_error() && !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            return self.refused(response, asked, discovers).await.map(|message| StreamableHttpPostResponse::Json(message, session));
        }
        if !status.is_success() {
            return Err(refusal(status));
        }
        let message = self.answer(response, asked).await?;
        Ok(StreamableHttpPostResponse::Json(message, session))
    }

    /// The answer to a request that was refused. Servers of the older revision refuse to be discovered, each in its own way, so that this is
    /// an answer for the SDK.
    async fn refused(&self, response: Response<Incoming>, asked: &RequestId, discovers: bool) -> Result<ServerJsonRpcMessage, HttpFault> {
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_REFUSAL_BYTES).collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        match serde_json::from_slice::<ServerJsonRpcMessage>(&body) {
            Ok(ServerJsonRpcMessage::Error(error)) => Ok(ServerJsonRpcMessage::error(error.error, Some(asked.clone()))),
            Ok(_) | Err(_) if discovers => {
                let error = ErrorData::invalid_request(format!("it answers with HTTP {}", status.as_u16()), None);
                Ok(ServerJsonRpcMessage::error(error, Some(asked.clone())))
            }
            Ok(_) | Err(_) => Err(refusal(status)),
        }
    }

    /// The answer to the request with this id.
    async fn answer(&self, response: Response<Incoming>, asked: &RequestId) -> Result<ServerJsonRpcMessage, HttpFault> {
        let content_type = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        if let Some(encoding) = response.headers().get(header::CONTENT_ENCODING).filter(|encoding| *encoding != "identity") {
            return Err(HttpFault::NoAnswer(format!("it is compressed ({encoding:?}), and nobody asked for that")));
        }
        match essence.as_str() {
            JSON_TYPE => {
                let body = Limited::new(response.into_body(), self.max_answer_bytes).collect().await;
                let body = body.map_err(|error| match error.downcast_ref::<http_body_util::LengthLimitError>() {
                    Some(_) => HttpFault::TooLong(self.max_answer_bytes),
                    None => HttpFault::Broken(error.to_string()),
                });
                let message = serde_json::from_slice(&body?.to_bytes()).map_err(|error| HttpFault::NoAnswer(error.to_string()))?;
                answers(message, asked)?.ok_or_else(|| HttpFault::NoAnswer("it answers another request".to_owned()))
            }
            EVENTS_TYPE => self.answer_in_stream(response.into_body(), asked).await,
            "" => Err(HttpFault::NoAnswer("it has no Content-Type".to_owned())),
            other => Err(HttpFault::NoAnswer(format!("its Content-Type is {:?}", other.chars().take(64).collect::<String>()))),
        }
    }

    /// The answer in a stream of events. Notifications and requests of the upstream are left out.
    async fn answer_in_stream(&self, mut body: Incoming, asked: &RequestId) -> Result<ServerJsonRpcMessage, HttpFault> {
        let (mut events, mut bytes) = (EventReader::new(self.max_answer_bytes), 0);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| HttpFault::Broken(causes(&error)))?;
            let Some(data) = frame.data_ref() else { continue };
            bytes += data.len();
            if bytes > MAX_STREAM_BYTES {
                return Err(HttpFault::TooLong(MAX_STREAM_BYTES));
            }
            for event in events.feed(data).map_err(|EventTooLong| HttpFault::TooLong(self.max_answer_bytes))? {
                let message = serde_json::from_slice(&event).map_err(|error| HttpFault::NoAnswer(error.to_string()))?;
                if let Some(answer) = answers(message, asked)? {
                    return Ok(answer);
                }
            }
        }
        Err(HttpFault::Broken("its stream of events ends without an answer".to_owned()))
    }
}

/// The message if it answers the request with this id. None: it is a notification, or a request of the upstream.
fn answers(message: ServerJsonRpcMessage, asked: &RequestId) -> Result<Option<ServerJsonRpcMessage>, HttpFault> {
    let is_same = |id: &RequestId| id == asked || id.to_string() == asked.to_string();
    let other = || Err(HttpFault::NoAnswer("it answers another request".to_owned()));
    match &message {
        ServerJsonRpcMessage::Response(response) if is_same(&response.id) => Ok(Some(message)),
        ServerJsonRpcMessage::Error(error) if error.id.as_ref().is_none_or(is_same) => Ok(Some(message)),
        ServerJsonRpcMessage::Response(_) | ServerJsonRpcMessage::Error(_) => other(),
        ServerJsonRpcMessage::Request(_) | ServerJsonRpcMessage::Notification(_) => Ok(None),
    }
}

fn late() -> HttpFault {
    HttpFault::Broken("it did not answer in time".to_owned())
}

fn refusal(status: StatusCode) -> HttpFault {
    let code = status.as_u16();
    match status {
        _ if status.is_redirection() => HttpFault::Redirect(code),
        _ if status.is_client_error() => HttpFault::Refused(code),
        _ => HttpFault::Failed(code),
    }
}

/// An error with its causes.
fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut texts = vec![error.to_string()];
    let mut cause = error.source();
    while let Some(error) = cause {
        texts.push(error.to_string());
        cause = error.source();
    }
    texts.join(": ")
}

impl StreamableHttpClient for SessionHttp {
    type Error = HttpFault;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, StreamableHttpError<HttpFault>> {
        let posting = self.post(&uri, &message, session_id.as_deref(), custom_headers);
        let posted = timeout_at(self.until + FAREWELL_TIMEOUT, posting).await.unwrap_or_else(|_| Err(late()));
        posted.map_err(|fault| {
            *self.record.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault.clone());
            StreamableHttpError::Client(fault)
        })
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        _: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), StreamableHttpError<HttpFault>> {
        let request = self.request(axum::http::Method::DELETE, &uri, Some(&session_id), custom_headers, Bytes::new());
        // A server may keep its sessions, and forget them at its own time.
        let deleted = async { self.send(request?).await.map(drop) };
        timeout(FAREWELL_TIMEOUT, deleted).await.unwrap_or_else(|_| Err(late())).map_err(StreamableHttpError::Client)
    }

    /// There is no stream beside the answers: it would carry what is not passed on.
    async fn get_stream(
        &self,
        _: Arc<str>,
        _: Option<Arc<str>>,
        _: Option<String>,
        _: Option<String>,
        _: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, StreamableHttpError<HttpFault>> {
        Err(StreamableHttpError::ServerDoesNotSupportSse)
    }
}
