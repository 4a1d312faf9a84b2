//! Bodies of answers, as they go to the client.
//!
//! An answer that is not streamed goes out in one piece if it is small and there soon: its head, its body and its end would
//! else be three writes, each with a record of TLS, and wake the client three times.

use std::io;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

/// What goes out in one piece has at most so many bytes ...
const MAX_SINGLE_PIECE_BYTES: usize = 64 * 1024;
/// ... and is there so long after its head. What takes longer is sent as it comes: its client may watch for signs of life.
const SINGLE_PIECE_TIMEOUT: Duration = Duration::from_millis(50);

/// A part of an answer.
#[derive(Debug)]
pub enum BodyPart {
    /// Some of it.
    Data(Bytes),
    /// That was all. What ends without this was cut, whatever cut it, and must not look whole.
    Whole,
}

/// The parts of an answer, as they come.
pub type BodyParts = mpsc::Receiver<BodyPart>;

fn stream(parts: BodyParts) -> impl Stream<Item = io::Result<Bytes>> + Send {
    futures::stream::unfold(Some(parts), async |parts| {
        let mut parts = parts?;
        match parts.recv().await {
            Some(BodyPart::Data(data)) => Some((Ok(data), Some(parts))),
            Some(BodyPart::Whole) => None,
            None => Some((Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the answer was cut")), None)),
        }
    })
}

/// Each part when it is there.
pub fn as_it_comes(parts: BodyParts) -> Body {
    Body::from_stream(stream(parts))
}

/// All of it, with its length; if it is not small, or not there soon, what is there and then each part as it comes. None: it was
/// cut, and its client has not seen anything of it.
pub async fn whole(mut parts: BodyParts) -> Option<Body> {
    let (mut all, until) = (Vec::new(), Instant::now() + SINGLE_PIECE_TIMEOUT);
    let next = loop {
        match timeout_at(until, parts.recv()).await {
            // A length of nothing is more than some heads may have.
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

    use super::*;

    /// The body of an answer of parts of so many bytes, the last of which is followed by its end after `open`; or by none.
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
        whole(taking).await
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
        as_it_comes(taking).collect().await.expect_err("it was cut");
    }
}
