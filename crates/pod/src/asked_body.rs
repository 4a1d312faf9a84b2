//! A request whose body is sent when the server asks for it (`Expect: 100-continue`), so that no byte of a refused file is sent.
//!
//! Without it, a client that still sends when the refusal comes may lose the refusal with the connection.

use std::io;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll, ready};

use hyper::Request;
use hyper::body::{Body, Frame, SizeHint};
use hyper::ext::on_informational;
use hyper::header::{EXPECT, HeaderValue};
use tokio::sync::oneshot;

/// A body that waits until the server asks for it. An empty one is never asked for, and waits for nothing.
pub struct AskedBody<B> {
    body: B,
    /// None: the server has asked.
    asked: Option<oneshot::Receiver<()>>,
}

/// The request, with a body that waits. The server must either read the body or answer.
pub fn when_asked<B: Body>(request: Request<B>) -> Request<AskedBody<B>> {
    if request.body().is_end_stream() {
        return request.map(|body| AskedBody { body, asked: None });
    }
    let (asking, asked) = oneshot::channel();
    let asking = Mutex::new(Some(asking));
    let mut request = request.map(|body| AskedBody { body, asked: Some(asked) });
    request.headers_mut().insert(EXPECT, HeaderValue::from_static("100-continue"));
    on_informational(&mut request, move |answer| {
        if answer.status() == hyper::StatusCode::CONTINUE {
            let asking = asking.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
            let _ = asking.map(|asking| asking.send(())); // the request may be over
        }
    });
    request
}

impl<B: Body + Unpin> Body for AskedBody<B>
where
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Data = B::Data;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, Self::Error>>> {
        if let Some(asked) = &mut self.asked {
            if ready!(Pin::new(asked).poll(context)).is_err() {
                return Poll::Ready(Some(Err(io::Error::other("the request is over").into())));
            }
            self.asked = None;
        }
        Pin::new(&mut self.body).poll_frame(context).map_err(Into::into)
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
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body_util::{BodyExt as _, Full};
    use hyper::Response;
    use hyper::body::{Bytes, Incoming};
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// A body that counts how often it is read.
    struct Counted(Full<Bytes>, Arc<AtomicUsize>);

    impl Body for Counted {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            self.1.fetch_add(1, Ordering::SeqCst);
            Pin::new(&mut self.0).poll_frame(context)
        }

        fn size_hint(&self) -> SizeHint {
            self.0.size_hint()
        }
    }

    /// Sends a large body to a server that reads it if the path is `/take`.
    async fn send(path: &str) -> (u16, usize) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.expect("a connection");
            let service = service_fn(async |request: Request<Incoming>| {
                if request.uri().path() == "/take" {
                    let bytes = request.into_body().collect().await.expect("whole").to_bytes().len();
                    return Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(bytes.to_string()))));
                }
                Ok(Response::builder().status(403).body(Full::new(Bytes::from("no"))).expect("an answer"))
            });
            let _ = hyper::server::conn::http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), service).await;
        });
        let stream = TcpStream::connect(address).await.expect("a connection");
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
        tokio::spawn(connection);
        let reads = Arc::new(AtomicUsize::new(0));
        let body = Counted(Full::new(Bytes::from(vec![0; 50_000_000])), reads.clone());
        let request = Request::put(path).header("host", "x").body(body).expect("a request");
        let answer = sender.send_request(when_asked(request)).await.expect("an answer");
        let status = answer.status().as_u16();
        if status == 200 {
            assert_eq!(answer.into_body().collect().await.expect("whole").to_bytes(), "50000000");
        }
        (status, reads.load(Ordering::SeqCst))
    }

    #[tokio::test]
    async fn a_body_is_sent_when_the_server_reads_it_and_not_before() {
        let (status, reads) = send("/take").await;
        assert!(status == 200 && reads > 0, "{status} {reads}");
        assert_eq!(send("/refuse").await, (403, 0), "not a byte was read");
    }
}
