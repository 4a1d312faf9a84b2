//! The bytes of one git request: its body to the server, and the answer to the program, each within a limit.
//!
//! It must not keep more than a buffer of either.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::sync::mpsc;

use crate::gateway::streamed_body::{BodyPart, streamed};
use crate::gateway::transfer_record::TransferRecord;

/// Parts of an answer that wait for the program.
const MAX_PENDING_PARTS: usize = 2;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a request on its way to the server. A body that is cut, or too large, ends with an error: the server must not take
/// a part for the whole.
pub struct Upload {
    /// Bytes that were read before, to decide.
    head: Option<Bytes>,
    rest: Body,
    limit: u64,
    sent: u64,
    record: Arc<TransferRecord>,
    too_large: Arc<AtomicBool>,
}

impl Upload {
    /// Sends `head` and then `rest`, together at most `limit` bytes. `too_large` is set when there are more.
    pub fn new(head: Vec<u8>, rest: Body, limit: u64, record: Arc<TransferRecord>, too_large: Arc<AtomicBool>) -> Self {
        let head = Some(Bytes::from(head)).filter(|head| !head.is_empty());
        Self { head, rest, limit, sent: 0, record, too_large }
    }
}

impl hyper::body::Body for Upload {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let data = match this.head.take() {
            Some(head) => head,
            None => match ready!(Pin::new(&mut this.rest).poll_frame(context)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                // git sends no trailers.
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
            },
        };
        this.sent = this.sent.saturating_add(data.len() as u64);
        if this.sent > this.limit {
            this.too_large.store(true, Ordering::SeqCst);
            return Poll::Ready(Some(Err("the request is too large".into())));
        }
        this.record.sent(data.len());
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.head.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let head = self.head.as_ref().map_or(0, Bytes::len) as u64;
        self.rest.size_hint().exact().map_or_else(SizeHint::default, |rest| SizeHint::with_exact(rest + head))
    }
}

/// The body of the answer for the program. A task reads it from the server until its end, `ended`, or the program has left; it
/// holds `held` so long. That does not depend on whether anybody reads the body.
pub fn download(
    from: Incoming,
    limit: u64,
    record: Arc<TransferRecord>,
    ended: impl Future<Output = ()> + Send + 'static,
    held: impl Send + 'static,
) -> Body {
    let (giving, taking) = mpsc::channel(MAX_PENDING_PARTS);
    tokio::spawn(async move {
        let _held = held;
        tokio::select! {
            () = carry(from, limit, &giving, &record) => {}
            () = ended => {}
            () = record.idle() => {}
        }
    });
    streamed(taking)
}

async fn carry(mut from: Incoming, limit: u64, to: &mpsc::Sender<BodyPart>, record: &TransferRecord) {
    let mut left = limit;
    while let Some(frame) = from.frame().await {
        // A body that was cut, or is too large, ends without its last part.
        let Ok(frame) = frame else { return };
        let Ok(data) = frame.into_data() else { continue };
        let count = data.len();
        let Some(rest) = left.checked_sub(count as u64) else { return };
        left = rest;
        if to.send(BodyPart::Data(data)).await.is_err() {
            return;
        }
        record.received(count);
    }
    let _ = to.send(BodyPart::Whole).await; // the program may have left
}

#[cfg(test)]
mod tests {
    use hyper::body::Body as _;

    use super::*;
    use crate::cluster::token::PodIdentity;
    use crate::telemetry::{Metrics, TransferKind};

    fn upload(head: &[u8], rest: &'static [u8], limit: u64) -> (Upload, Arc<AtomicBool>) {
        let record = TransferRecord::new(Metrics::default(), TransferKind::Git, &PodIdentity::default(), "x".into());
        let too_large = Arc::new(AtomicBool::new(false));
        (Upload::new(head.to_vec(), Body::from(rest), limit, Arc::new(record), too_large.clone()), too_large)
    }

    #[tokio::test]
    async fn a_body_goes_on_whole_and_not_beyond_its_limit() {
        let (body, too_large) = upload(b"abc", b"defg", 7);
        assert_eq!(body.size_hint().exact(), Some(7));
        assert_eq!(body.collect().await.expect("whole").to_bytes(), "abcdefg");
        assert!(!too_large.load(Ordering::SeqCst));
        let (body, too_large) = upload(b"abc", b"defg", 6);
        assert!(body.collect().await.is_err() && too_large.load(Ordering::SeqCst));
        let (body, _) = upload(b"", b"", 0);
        assert!(body.is_end_stream());
    }
}
