//! Writes response bodies to the client.
//!
//! A response that is not streamed is sent in one piece if it is small and arrives soon. Else its head, its body and
//! its end would be three writes, each with its own TLS record, and would wake the client three times.

use std::io;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::StreamExt as _;
use tokio::time::{Instant, timeout_at};

use crate::gateway::streamed_body::{BodyPart, BodyParts, stream};

/// A response is sent in one piece if it has at most this many bytes ...
const MAX_SINGLE_PIECE_BYTES: usize = 64 * 1024;
/// ... and is complete within this time after its head. A slower response is sent as it arrives: its client may watch
/// for activity.
const SINGLE_PIECE_TIMEOUT: Duration = Duration::from_millis(50);

/// A body in one piece, with its length. If it is large or slow, a body that sends the available data and then each
/// part as it arrives. None: it was cut off before the client saw anything.
pub async fn buffered(mut parts: BodyParts) -> Option<Body> {
    let (mut all, until) = (Vec::new(), Instant::now() + SINGLE_PIECE_TIMEOUT);
    let next = loop {
        match timeout_at(until, parts.recv()).await {
            // Some responses may not have a Content-Length, not even 0.
            Ok(Some(BodyPart::Whole)) if all.is_empty() => return Some(Body::from_stream(futures::stream::empty::<io::Result<Bytes>>())),
            Ok(Some(BodyPart::Whole)) => return Some(Body::from(all)),
            Ok(Some(BodyPart::Data(part))) if all.len() + part.len() <= MAX_SINGLE_PIECE_BYTES => all.extend_from_slice(&part),
            Ok(Some(BodyPart::Data(part))) => break Some(part),
            Ok(None) => return None,
            Err(_) => break None,
        }
    };
    let first = (!all.is_empty()).then(|| Bytes::from(all));
    Some(Body::from_stream(futures::stream::iter(first.into_iter().chain(next).map(Ok)).chain(stream(parts))))
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use hyper::body::Body as _;
    use tokio::sync::mpsc;

    use super::*;
    use crate::gateway::streamed_body::streamed;

    /// The body of a response with parts of these sizes. Its end follows after `open`, if `ends`.
    async fn sent(bytes: &[usize], open: Duration, ends: bool) -> Option<Body> {
        let (giving, taking) = mpsc::channel(4);
        let parts: Vec<BodyPart> = bytes.iter().map(|bytes| BodyPart::Data(vec![b'a'; *bytes].into())).collect();
        tokio::spawn(async move {
            for part in parts {
                giving.send(part).await.expect("somebody takes it");
            }
            tokio::time::sleep(open).await;
            if ends {
                giving.send(BodyPart::Whole).await.expect("somebody takes it");
            }
        });
        buffered(taking).await
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_small_goes_out_in_one_piece() {
        let body = sent(&[1, MAX_SINGLE_PIECE_BYTES - 1], Duration::ZERO, true).await.expect("it is whole");
        assert_eq!(body.size_hint().exact(), u64::try_from(MAX_SINGLE_PIECE_BYTES).ok());
        let empty = sent(&[], Duration::ZERO, true).await.expect("it is whole");
        assert_eq!((empty.size_hint().exact(), empty.collect().await.expect("all").to_bytes().len()), (None, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_large_or_late_loses_nothing() {
        for (parts, open) in [(&[1, MAX_SINGLE_PIECE_BYTES, 5][..], Duration::ZERO), (&[7, 3], 2 * SINGLE_PIECE_TIMEOUT)] {
            let body = sent(parts, open, true).await.expect("it began");
            assert_eq!(body.size_hint().exact(), None);
            assert_eq!(body.collect().await.expect("all of it").to_bytes().len(), parts.iter().sum::<usize>());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_cut_does_not_look_whole() {
        assert!(sent(&[3], Duration::ZERO, false).await.is_none(), "its client is told in words");
        for (parts, open) in [(&[1, MAX_SINGLE_PIECE_BYTES][..], Duration::ZERO), (&[7], 2 * SINGLE_PIECE_TIMEOUT)] {
            let body = sent(parts, open, false).await.expect("it began");
            body.collect().await.expect_err("it was cut");
        }
        let (giving, taking) = mpsc::channel(4);
        giving.send(BodyPart::Data(Bytes::from_static(b"a"))).await.expect("somebody takes it");
        drop(giving);
        streamed(taking).collect().await.expect_err("it was cut");
    }
}
