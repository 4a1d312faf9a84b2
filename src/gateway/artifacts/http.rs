//! The HTTP client of the S3 store: the one that trusts the authorities that gateways trust. It bounds what a server can make the
//! library keep, and how long it can let it wait.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::{HeaderMap, Method, header};
use http_body_util::{BodyExt as _, Either, Limited};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector as TcpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use object_store::ClientOptions;
use object_store::client::{
    ClientConfigKey, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse, HttpResponseBody,
    HttpService,
};
use tokio::time::{Instant, Sleep, sleep};

use crate::pki::tls;

/// How long a request may take until its answer begins. The longest one sends a part of a file.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the server may send nothing of an answer that is awaited.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a connection is kept unused.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// The most bytes of an answer that is kept in memory: all but the content of objects.
const MAX_KEPT_BYTES: usize = 8 * 1024 * 1024;
/// The largest size of an object that an answer may name.
const MAX_OBJECT_BYTES: u64 = 1 << 50;

/// The client.
#[derive(Clone, Debug)]
pub struct StoreHttp {
    client: Client<HttpsConnector<TcpConnector>, HttpRequestBody>,
    /// Whether requests without TLS are allowed.
    plain: bool,
}

impl StoreHttp {
    /// A client that trusts the public authorities and those in `ca_bundle`.
    pub fn new(ca_bundle: &str) -> anyhow::Result<Self> {
        let connector = tls::public_connector(ca_bundle).context("caBundle")?;
        let mut builder = Client::builder(TokioExecutor::new());
        builder.pool_idle_timeout(IDLE_TIMEOUT).pool_timer(TokioTimer::new());
        Ok(Self { client: builder.build(connector), plain: false })
    }
}

impl HttpConnector for StoreHttp {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        // The library allows it for an endpoint without TLS, and for the cloud's own services on the node.
        let plain = options.get_config_value(&ClientConfigKey::AllowHttp).is_some_and(|value| value == "true");
        Ok(HttpClient::new(Self { plain, ..self.clone() }))
    }
}

#[async_trait::async_trait]
impl HttpService for StoreHttp {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        if !self.plain && request.uri().scheme_str() != Some("https") {
            return Err(refused("a request without TLS is not allowed"));
        }
        // A request for the content of an object has no query.
        let of_object = request.method() == Method::GET && request.uri().query().is_none();
        let sent = tokio::time::timeout(ANSWER_TIMEOUT, self.client.request(request)).await;
        let answer = sent.map_err(|late| HttpError::new(HttpErrorKind::Timeout, late))?.map_err(|error| {
            let kind = if error.is_connect() { HttpErrorKind::Connect } else { HttpErrorKind::Interrupted };
            HttpError::new(kind, error)
        })?;
        let (head, body) = answer.into_parts();
        if !has_possible_size(&head.headers) {
            return Err(refused("the answer names an impossible size"));
        }
        let body = AwaitedBody { body, waits: None };
        let is_streamed = of_object && head.status.is_success();
        let body = if is_streamed { Either::Left(body) } else { Either::Right(Limited::new(body, MAX_KEPT_BYTES)) };
        let body = body.map_err(|error| HttpError::new_boxed(HttpErrorKind::Interrupted, error));
        Ok(HttpResponse::from_parts(head, HttpResponseBody::new(body)))
    }
}

fn refused(why: &'static str) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, std::io::Error::other(why))
}

/// Whether all sizes in the headers are possible: the library computes with them.
fn has_possible_size(headers: &HeaderMap) -> bool {
    let texts = [header::CONTENT_LENGTH, header::CONTENT_RANGE].into_iter().filter_map(|name| headers.get(name)?.to_str().ok());
    let numbers = texts.flat_map(|text| text.split(|char: char| !char.is_ascii_digit())).filter(|digits| !digits.is_empty());
    numbers.into_iter().all(|digits| digits.parse::<u64>().is_ok_and(|number| number <= MAX_OBJECT_BYTES))
}

/// A body that ends with an error when the server sends nothing for too long while somebody reads.
struct AwaitedBody {
    body: Incoming,
    waits: Option<Pin<Box<Sleep>>>,
}

impl Body for AwaitedBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
            this.waits = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let waits = this.waits.get_or_insert_with(|| Box::pin(sleep(BODY_TIMEOUT)));
        ready!(waits.as_mut().poll(context));
        waits.as_mut().reset(Instant::now() + BODY_TIMEOUT);
        Poll::Ready(Some(Err("the server sent nothing for too long".into())))
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
    use http::HeaderValue;

    use super::*;

    #[test]
    fn an_impossible_size_is_refused_before_the_library_computes_with_it() {
        let possible = |name, value: &str| {
            let headers = [(name, HeaderValue::from_str(value).expect("a value"))].into_iter().collect();
            has_possible_size(&headers)
        };
        assert!(possible(header::CONTENT_LENGTH, "0") && possible(header::CONTENT_RANGE, "bytes 0-1023/1000000000000"));
        assert!(possible(header::CONTENT_RANGE, "bytes 0-1/*"));
        for impossible in ["bytes 0-18446744073709551615/9", "bytes 0-9/99999999999999999999999", "bytes 9999999999999999-1/2"] {
            assert!(!possible(header::CONTENT_RANGE, impossible), "{impossible}");
        }
        assert!(!possible(header::CONTENT_LENGTH, "10000000000000000000"));
    }

    #[tokio::test]
    async fn without_tls_a_request_is_refused_unless_the_endpoint_has_none() {
        let store = StoreHttp::new("").expect("a client");
        let request = || http::Request::get("http://127.0.0.1:1/x").body(HttpRequestBody::empty()).expect("a request");
        let refused = store.call(request()).await.expect_err("refused").to_string();
        assert!(refused.contains("without TLS"), "{refused}");
        let plain = StoreHttp { plain: true, ..store };
        let unreachable = plain.call(request()).await.expect_err("nobody listens");
        assert_eq!(unreachable.kind(), HttpErrorKind::Connect);
    }
}
