//! The sidecar's port for the folder, as a blocking reader and writer.
//!
//! It must not decide about an answer: it says whether another try may succeed.

use std::io::{self, Read};
use std::thread::sleep;

use http_body_util::{BodyExt as _, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::HOST;
use hyper::{Method, Request, Response, StatusCode};
use tokio::runtime::Runtime;

use crate::command::local_http::{self, Failed, RETRY_PAUSES, ReadBody};

/// The most bytes of an answer that is no copy.
const MAX_ANSWER_BYTES: usize = 16 * 1024;
/// Why a try failed.
#[derive(Debug)]
pub enum Failure {
    /// Another try may succeed.
    Passing(String),
    /// No other try succeeds.
    Final(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Final(error.to_string())
    }
}

/// Tries until it succeeds, fails for good, or has failed too often.
pub fn with_retries<T>(mut attempt: impl FnMut() -> Result<T, Failure>) -> Result<T, String> {
    for pause in RETRY_PAUSES {
        match attempt() {
            Ok(done) => return Ok(done),
            Err(Failure::Final(why)) => return Err(why),
            Err(Failure::Passing(_)) => sleep(pause),
        }
    }
    attempt().map_err(|failure| match failure {
        Failure::Passing(why) | Failure::Final(why) => why,
    })
}

/// An answer whose body is read as it comes.
pub struct Answer {
    runtime: Runtime,
    body: Incoming,
    piece: Bytes,
    /// Whether the answer is a success.
    pub status: StatusCode,
}

/// Sends a request; `content` is its body.
pub fn request(url: &str, method: Method, content: Option<(Box<dyn Read + Send + Unpin>, u64)>) -> Result<Answer, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answer = runtime.block_on(exchange(url, method, content)).map_err(|error| {
        let words = format!("the sidecar's port for the folder does not answer: {error}");
        // A file of ours that cannot be read.
        let own = error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_user);
        if own { Failure::Final(words) } else { Failure::Passing(words) }
    })?;
    let status = answer.status();
    Ok(Answer { runtime, body: answer.into_body(), piece: Bytes::new(), status })
}

async fn exchange(url: &str, method: Method, content: Option<(Box<dyn Read + Send + Unpin>, u64)>) -> Result<Response<Incoming>, Failed> {
    let uri: hyper::Uri = url.parse()?;
    let authority = uri.authority().ok_or("the URL of the sidecar's port for the folder has no host")?.to_string();
    let (reader, size) = content.unwrap_or_else(|| (Box::new(io::empty()), 0));
    let request = Request::builder().method(method).uri(uri.path()).header(HOST, &authority).body(ReadBody::new(reader, size))?;
    local_http::send(&authority, request).await
}

impl Answer {
    /// The text of an answer that is no copy.
    pub fn text(self) -> String {
        let Self { runtime, body, .. } = self;
        let text = runtime.block_on(Limited::new(body, MAX_ANSWER_BYTES).collect()).map(|body| body.to_bytes()).unwrap_or_default();
        String::from_utf8_lossy(&text).trim().to_owned()
    }
}

impl Read for Answer {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.runtime.block_on(self.body.frame()) {
                Some(Ok(frame)) => self.piece = frame.into_data().unwrap_or_default(),
                Some(Err(error)) => return Err(io::Error::other(error)),
                None => return Ok(0),
            }
        }
        let count = self.piece.len().min(buffer.len());
        let taken = self.piece.split_to(count);
        buffer.get_mut(..count).unwrap_or_default().copy_from_slice(&taken);
        Ok(count)
    }
}
