//! Connections: accept, TLS, HTTP/1.1 and HTTP/2, and bodies that wait, break off, or never end. Tokens are counted
//! when their bytes are sent.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, Stream};
use http_body_util::{BodyExt as _, Full, Limited, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::answer::{Answer, Provider};
use crate::chunks::{Chunk, End};
use crate::count::Key;

/// The most bytes of a request that are read.
const MAX_BODY: usize = 64 * 1024 * 1024;
/// How long a handshake may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time limit for answers that wait and for endless streams, so that they end soon after their test.
const AT_MOST: Duration = Duration::from_secs(900);

type Sent = BoxBody<Bytes, io::Error>;

/// Serves on `listener` until the task is dropped, with TLS if `tls` is set.
pub async fn serve(listener: TcpListener, tls: Option<ServerConfig>, provider: Arc<Provider>) {
    let acceptor = tls.map(|config| TlsAcceptor::from(Arc::new(config)));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(Duration::from_millis(50)).await; // probably no file descriptor is free now
            continue;
        };
        let _ = stream.set_nodelay(true);
        let (acceptor, provider) = (acceptor.clone(), provider.clone());
        tokio::spawn(async move {
            match acceptor {
                None => connection(stream, provider).await,
                Some(acceptor) => {
                    if let Ok(Ok(stream)) = timeout(PATIENCE, acceptor.accept(stream)).await {
                        connection(stream, provider).await;
                    }
                }
            }
        });
    }
}

async fn connection(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, provider: Arc<Provider>) {
    let service = service_fn(move |request| {
        let provider = provider.clone();
        async move { Ok::<_, Infallible>(call(request, provider).await) }
    });
    // Errors of the connection are ignored: many modes break it on purpose.
    let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
}

async fn call(request: Request<Incoming>, provider: Arc<Provider>) -> Response<Sent> {
    let (head, body) = request.into_parts();
    let Ok(body) = Limited::new(body, MAX_BODY).collect().await else {
        let mut response = Response::new(Full::new(Bytes::new()).map_err(|never| match never {}).boxed());
        *response.status_mut() = StatusCode::PAYLOAD_TOO_LARGE;
        return response;
    };
    let Answer { status, headers, late, waits_for_release: waits, body, key } = provider.answer(&head, &body.to_bytes());
    sleep(late).await;
    if waits {
        let _ = timeout(AT_MOST, provider.wait_for_release()).await; // after that time it is released anyway
    }
    let mut response = Response::builder().status(status).header(CONTENT_TYPE, body.content_type);
    for (name, value) in headers {
        response = response.header(name, value);
    }
    let sent = match <[Chunk; 1]>::try_from(body.pieces) {
        // With a content length, as providers send answers that are not streamed.
        Ok([piece]) if body.end == End::Proper => {
            sleep(piece.wait).await;
            if let Some(key) = &key {
                provider.counts.piece(key, &piece.charged, &piece.said);
                provider.counts.finished(key);
            }
            Full::new(piece.bytes).map_err(|never| match never {}).boxed()
        }
        Ok([piece]) => StreamBody::new(flow(vec![piece], body.end, key, provider)).boxed(),
        Err(pieces) => StreamBody::new(flow(pieces, body.end, key, provider)).boxed(),
    };
    response.body(sent).unwrap_or_default()
}

struct Flow {
    pieces: std::vec::IntoIter<Chunk>,
    end: End,
    key: Option<Key>,
    provider: Arc<Provider>,
    until: tokio::time::Instant,
}

fn flow(
    pieces: Vec<Chunk>,
    end: End,
    key: Option<Key>,
    provider: Arc<Provider>,
) -> impl Stream<Item = io::Result<Frame<Bytes>>> + Send + Sync {
    let until = tokio::time::Instant::now() + AT_MOST;
    stream::unfold(Some(Flow { pieces: pieces.into_iter(), end, key, provider, until }), |flow| async {
        let mut flow = flow?;
        let next = flow.next().await?;
        let goes_on = next.is_ok();
        Some((next.map(Frame::data), goes_on.then_some(flow)))
    })
}

impl Flow {
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        if let Some(piece) = self.pieces.next() {
            return Some(Ok(self.send(piece).await));
        }
        match &self.end {
            End::Proper => {
                if let Some(key) = &self.key {
                    self.provider.counts.finished(key);
                }
                None
            }
            End::Again(piece) if tokio::time::Instant::now() < self.until => {
                let piece = piece.clone();
                Some(Ok(self.send(piece).await))
            }
            End::Silence => {
                tokio::time::sleep_until(self.until).await;
                Some(Err(io::ErrorKind::TimedOut.into()))
            }
            End::Cut => {
                // Wait until earlier bytes are sent: an error discards bytes that are not written yet.
                sleep(Duration::from_millis(20)).await;
                Some(Err(io::ErrorKind::ConnectionAborted.into()))
            }
            End::Again(_) => Some(Err(io::ErrorKind::TimedOut.into())),
        }
    }

    async fn send(&self, piece: Chunk) -> Bytes {
        if !piece.wait.is_zero() {
            sleep(piece.wait).await;
        }
        if let Some(key) = &self.key {
            self.provider.counts.piece(key, &piece.charged, &piece.said);
        }
        piece.bytes
    }
}
