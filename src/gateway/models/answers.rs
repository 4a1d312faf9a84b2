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
const SMALL: usize = 64 * 1024;
/// ... and is there so long after its head. What takes longer is sent as it comes: its client may watch for signs of life.
const SOON: Duration = Duration::from_millis(50);

/// Parts of an answer. An error among them: it was cut, and must not look whole.
type Parts = mpsc::Receiver<io::Result<Bytes>>;

fn stream(parts: Parts) -> impl Stream<Item = io::Result<Bytes>> + Send {
    futures::stream::unfold(parts, async |mut parts| Some((parts.recv().await?, parts)))
}

/// Each part when it is there.
pub fn as_it_comes(parts: Parts) -> Body {
    Body::from_stream(stream(parts))
}

/// All of it, with its length; if it is not small, or not there soon, what is there and then each part as it comes.
pub async fn whole(mut parts: Parts) -> Body {
    let (mut all, until) = (Vec::new(), Instant::now() + SOON);
    let next = loop {
        match timeout_at(until, parts.recv()).await {
            Ok(None) => return Body::from(all),
            Ok(Some(Ok(part))) if all.len() + part.len() <= SMALL => all.extend_from_slice(&part),
            Ok(next) => break next,
            Err(_) => break None,
        }
    };
    let first = (!all.is_empty()).then(|| Ok(Bytes::from(all)));
    Body::from_stream(futures::stream::iter(first.into_iter().chain(next)).chain(stream(parts)))
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use hyper::body::Body as _;

    use super::*;

    /// A sender, and the body, which is awaited while parts are sent.
    async fn sent(given: Vec<io::Result<Bytes>>, open: Duration) -> Body {
        let (giving, taking) = mpsc::channel(4);
        tokio::spawn(async move {
            for part in given {
                giving.send(part).await.expect("somebody takes it");
            }
            tokio::time::sleep(open).await;
        });
        whole(taking).await
    }

    fn part(bytes: usize) -> io::Result<Bytes> {
        Ok(Bytes::from(vec![b'a'; bytes]))
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_small_goes_out_in_one_piece() {
        let body = sent(vec![part(1), part(SMALL - 1)], Duration::ZERO).await;
        assert_eq!(body.size_hint().exact(), u64::try_from(SMALL).ok());
        assert_eq!(sent(Vec::new(), Duration::ZERO).await.size_hint().exact(), Some(0));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_large_or_late_loses_nothing() {
        for (parts, open) in [(vec![part(1), part(SMALL), part(5)], Duration::ZERO), (vec![part(7), part(3)], 2 * SOON)] {
            let bytes: usize = parts.iter().flatten().map(Bytes::len).sum();
            let body = sent(parts, open).await;
            assert_eq!(body.size_hint().exact(), None);
            assert_eq!(body.collect().await.expect("all of it").to_bytes().len(), bytes);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_cut_does_not_look_whole() {
        let cut = Err(io::ErrorKind::ConnectionAborted.into());
        let body = sent(vec![part(3), cut], Duration::ZERO).await;
        assert_eq!(body.size_hint().exact(), None);
        body.collect().await.expect_err("it was cut");
    }
}
