//! HTTP from a command to a port of the sidecar. It must not reach another address.

use std::io::{self, Read};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::handshake;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Pauses between the tries of a step that needs the sidecar: it, or a gateway, may be restarting.
pub const RETRY_PAUSES: [Duration; 6] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(20),
    Duration::from_secs(30),
];
/// Bytes of a file that are read at once.
const READ_BYTES: usize = 64 * 1024;

/// Why a request failed.
pub type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Sends a request to a port, over a connection of its own.
pub async fn send<B>(authority: &str, request: Request<B>) -> Result<Response<Incoming>, Failed>
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Failed>,
{
    let stream = TcpStream::connect(authority).await?;
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move {
        let _ = connection.await; // errors appear at the answer
    });
    Ok(sender.send_request(request).await?)
}

/// So many bytes of a reader as the body of a request. Reading blocks, which keeps nobody waiting in this process.
pub struct ReadBody<R> {
    reader: R,
    left: u64,
}

impl<R> ReadBody<R> {
    /// The next `size` bytes of `reader`.
    pub fn new(reader: R, size: u64) -> Self {
        Self { reader, left: size }
    }
}

impl<R: Read + Unpin> Body for ReadBody<R> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let size = usize::try_from(self.left).unwrap_or(READ_BYTES).min(READ_BYTES);
        let mut data = vec![0; size];
        let read = match self.reader.read(&mut data) {
            Ok(0) => return Poll::Ready(Some(Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter")))),
            Ok(read) => read,
            Err(error) => return Poll::Ready(Some(Err(error))),
        };
        data.truncate(read);
        self.left -= read as u64;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(data)))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
