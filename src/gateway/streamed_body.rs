//! A response body whose parts come from a task, so that the task goes on, and ends, whether or not the client reads.

use std::io;

use axum::body::Body;
use bytes::Bytes;
use futures::Stream;
use tokio::sync::mpsc;

/// A part of a body.
#[derive(Debug)]
pub enum BodyPart {
    /// Data.
    Data(Bytes),
    /// The end of a complete body. A body that ends without this was cut off, and must not look complete to the client.
    Whole,
}

/// The parts of a body, as they arrive.
pub type BodyParts = mpsc::Receiver<BodyPart>;

/// The parts as a stream that ends with an error if it was cut off.
pub fn stream(parts: BodyParts) -> impl Stream<Item = io::Result<Bytes>> + Send {
    futures::stream::unfold(Some(parts), async |parts| {
        let mut parts = parts?;
        match parts.recv().await {
            Some(BodyPart::Data(data)) => Some((Ok(data), Some(parts))),
            Some(BodyPart::Whole) => None,
            None => Some((Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the response was cut off")), None)),
        }
    })
}

/// A body that sends each part when it arrives.
pub fn streamed(parts: BodyParts) -> Body {
    Body::from_stream(stream(parts))
}
