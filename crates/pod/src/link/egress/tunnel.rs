//! One connection through the gateway: the bytes to the destination are the body of a request, and the bytes from it are the body
//! of the answer.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::{BodyExt as _, Limited};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::{Method, Request};
use spillway_wire::egress::DESTINATION_HEADER;
use spillway_wire::work::LeaseRef;
use spillway_wire::{Code, Refusal};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, Join, ReadBuf, ReadHalf, WriteHalf, duplex, join, split};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::link::forwarding::set_item;
use crate::link::gateway::{Gateway, Silence, refusal};

/// How long the gateway may take to connect: it waits for a slot, the governor, the name and three addresses.
const OPEN_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of a buffer.
const BUFFER_BYTES: usize = 16 * 1024;
/// Parts that wait to be sent.
const MAX_PENDING_PARTS: usize = 2;
/// The most bytes of a refusal that are read.
const MAX_REFUSAL_BYTES: usize = 64 * 1024;

/// Why there is no connection.
pub enum Closed {
    /// The gateway refuses it.
    Refused(Refusal),
    /// The gateway does not answer.
    Silent(Silence),
}

/// Opens a connection to `destination`, for an item if there is one.
pub async fn open(gateway: &Gateway, destination: &str, item: Option<&LeaseRef>) -> Result<Tunnel, Closed> {
    let (parts, body) = mpsc::channel(MAX_PENDING_PARTS);
    let request = request(destination, item, Upload(body)).map_err(|_| {
        Closed::Refused(Refusal::new(Code::EgressDenied, format!("{destination:?} is no HOST:PORT")).reason("InvalidDestination"))
    })?;
    let answer = timeout(OPEN_TIMEOUT, gateway.carry(request)).await.unwrap_or(Err(Silence::TimeOut)).map_err(Closed::Silent)?;
    let (head, body) = answer.into_parts();
    if !head.status.is_success() {
        let text = Limited::new(body, MAX_REFUSAL_BYTES).collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        return Err(Closed::Refused(refusal(head.status.as_u16(), &text)));
    }
    let (near, far) = duplex(BUFFER_BYTES);
    let (from_program, to_program) = split(far);
    let (alive, gone) = oneshot::channel();
    let cut = Arc::new(AtomicBool::new(false));
    tokio::spawn(upload(from_program, parts));
    tokio::spawn(download(body, to_program, cut.clone(), gone));
    let (stream, to_destination) = split(near);
    Ok(join(FromDestination { stream, cut, _alive: alive }, to_destination))
}

/// The program's side of a connection.
pub type Tunnel = Join<FromDestination, WriteHalf<DuplexStream>>;

/// What the destination sends. A connection that was cut ends with an error, and not as if the destination had closed it.
pub struct FromDestination {
    stream: ReadHalf<DuplexStream>,
    cut: Arc<AtomicBool>,
    /// Dropped with this: what the destination sends is read no more.
    _alive: oneshot::Sender<()>,
}

impl AsyncRead for FromDestination {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if matches!(read, Poll::Ready(Ok(()))) && buffer.filled().len() == before && self.cut.load(Ordering::SeqCst) {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionReset, "the connection was cut")));
        }
        read
    }
}

fn request(destination: &str, item: Option<&LeaseRef>, body: Upload) -> hyper::http::Result<Request<Upload>> {
    let request = Request::builder().method(Method::POST).uri("/agent/v1/connect").header(DESTINATION_HEADER, destination);
    let mut request = request.body(body)?;
    set_item(request.headers_mut(), item)?;
    Ok(request)
}

/// The body of the request: what the program sends, as it comes.
struct Upload(mpsc::Receiver<Bytes>);

impl Body for Upload {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|part| part.map(|part| Ok(Frame::data(part))))
    }
}

/// Carries what the program sends until it sends no more, or the gateway takes no more.
async fn upload(mut from: ReadHalf<DuplexStream>, to: mpsc::Sender<Bytes>) {
    let mut buffer = vec![0; BUFFER_BYTES];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if to.send(Bytes::copy_from_slice(&buffer[..count])).await.is_err() {
            return;
        }
    }
}

/// Carries what the destination sends until it sends no more, or the program is gone.
async fn download(mut body: Incoming, mut to: WriteHalf<DuplexStream>, cut: Arc<AtomicBool>, mut gone: oneshot::Receiver<()>) {
    loop {
        let frame = tokio::select! {
            frame = body.frame() => frame,
            _ = &mut gone => return,
        };
        match frame {
            Some(Ok(frame)) => {
                let Ok(part) = frame.into_data() else { continue };
                if to.write_all(&part).await.is_err() {
                    return;
                }
            }
            Some(Err(_)) => {
                cut.store(true, Ordering::SeqCst);
                break;
            }
            None => break,
        }
    }
    let _ = to.shutdown().await; // the program may have left
}
