//! The body of one git request on its way to the server, within a limit.
//!
//! It must not keep more than a buffer of it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

use crate::gateway::transfer_record::TransferRecord;

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

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
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
