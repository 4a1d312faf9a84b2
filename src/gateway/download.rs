//! The body of an answer for a program, which a task reads from a server or a store: within a limit, as fast as the program reads.
//!
//! It must not keep more than a few parts.

use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use tokio::sync::mpsc;

use super::streamed_body::{BodyPart, streamed};
use super::transfer_record::TransferRecord;

/// Parts of an answer that wait for the program.
const MAX_PENDING_PARTS: usize = 2;

/// The body of the answer for the program. A task reads it until its end, `ended`, or the program has left; it holds `held` so long.
/// That does not depend on whether anybody reads the body.
pub fn download(
    from: impl hyper::body::Body<Data = Bytes, Error: Send> + Send + Unpin + 'static,
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

async fn carry(mut from: impl hyper::body::Body<Data = Bytes> + Unpin, limit: u64, to: &mpsc::Sender<BodyPart>, record: &TransferRecord) {
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
