//! One transfer of an artifact, over HTTP to the sidecar's port. A file that is got is whole and right, or not there.
//!
//! It must not keep a file in memory.

use std::convert::Infallible;
use std::error::Error as _;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{HOST, RETRY_AFTER};
use hyper::{Method, Request, Response, Uri};
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};
use spillway_wire::artifact::{Artifact, ArtifactList, SHA256_HEADER};
use spillway_wire::text::{hex, percent_escape};

use crate::asked_body::when_asked;
use crate::command::local_http::{self, Failed, ReadBody};
use crate::random;

/// The most bytes of an answer that is not a file.
const MAX_ANSWER_BYTES: usize = 256 * 1024;
/// Wait before another try, if the answer names none.
const RETRY_WAIT: Duration = Duration::from_secs(2);

type RequestBody = BoxBody<Bytes, io::Error>;

/// Why a transfer failed.
#[derive(Debug)]
pub enum Failure {
    /// A file cannot be used.
    Usage(String),
    /// It is refused.
    Refused(String),
    /// It may succeed after this time.
    Later(String, Duration),
    /// There is no sidecar.
    Unreachable(String),
}

/// The sidecar's port.
pub struct Port {
    authority: String,
    path: String,
}

impl Port {
    /// The port at a URL.
    pub fn parse(url: &str) -> Result<Self, String> {
        let wrong = || format!("{url:?} is no URL of the sidecar's port for artifacts");
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http")).ok_or_else(wrong)?.to_string();
        Ok(Self { authority, path: uri.path().trim_end_matches('/').to_owned() })
    }

    /// Sends a file.
    pub fn put(&self, file: &Path, name: &str) -> Result<Artifact, Failure> {
        let wrong = |why: &dyn std::fmt::Display| Failure::Usage(format!("{}: {why}", file.display()));
        let opened = File::open(file).map_err(|error| wrong(&error))?;
        let about = opened.metadata().map_err(|error| wrong(&error))?;
        if !about.is_file() {
            return Err(wrong(&"it is no file: put a folder into an archive first"));
        }
        let body = ReadBody::new(opened, about.len());
        self.run(async {
            let answer = self.send(Method::PUT, name, BodyExt::boxed(body)).await?;
            read_json(answer).await
        })
    }

    /// Writes the content of an artifact to a file.
    pub fn get(&self, item: &str, name: &str, output: &Path) -> Result<(), Failure> {
        let wrong = |path: &Path, error: &io::Error| Failure::Usage(format!("{}: {error}", path.display()));
        let key = random::key().map_err(|error| Failure::Unreachable(error.to_string()))?;
        let mut part = output.as_os_str().to_owned();
        part.push(format!(".{}.part", key.get(..8).unwrap_or(&key)));
        let part = Path::new(&part);
        let mut file = File::create_new(part).map_err(|error| wrong(part, &error))?;
        let got = self.receive(item, name, &mut file).and_then(|()| {
            file.sync_all().map_err(|error| wrong(part, &error))?;
            std::fs::rename(part, output).map_err(|error| wrong(output, &error))
        });
        if got.is_err() {
            let _ = std::fs::remove_file(part); // the reason of the failure matters more
        }
        got
    }

    /// Prints the content of an artifact.
    pub fn get_to_stdout(&self, item: &str, name: &str) -> Result<(), Failure> {
        self.receive(item, name, &mut io::stdout().lock())
    }

    fn receive(&self, item: &str, name: &str, output: &mut impl Write) -> Result<(), Failure> {
        self.run(async {
            let answer = self.send(Method::GET, &format!("{}/{name}", percent_escape(item)), empty()).await?;
            let said = answer.headers().get(SHA256_HEADER).and_then(|value| value.to_str().ok()).map(str::to_owned);
            let (mut body, mut digest) = (answer.into_body(), Sha256::new());
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| Failure::Later(format!("the file was cut off: {error}"), RETRY_WAIT))?;
                let Ok(data) = frame.into_data() else { continue };
                digest.update(&data);
                output.write_all(&data).map_err(|error| Failure::Usage(format!("cannot write the file: {error}")))?;
            }
            output.flush().map_err(|error| Failure::Usage(format!("cannot write the file: {error}")))?;
            let got = hex(&digest.finalize());
            match said {
                Some(said) if said != got => {
                    Err(Failure::Later(format!("the file came with another SHA-256: {got}, not {said}"), RETRY_WAIT))
                }
                Some(_) | None => Ok(()),
            }
        })
    }

    /// The artifacts of an item.
    pub fn list(&self, item: &str) -> Result<ArtifactList, Failure> {
        self.run(async {
            let answer = self.send(Method::GET, &percent_escape(item), empty()).await?;
            read_json(answer).await
        })
    }

    fn run<T>(&self, transfer: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|error| Failure::Unreachable(error.to_string()))?.block_on(transfer)
    }

    /// Sends a request, and returns the answer if it is a success.
    async fn send(&self, method: Method, path: &str, body: RequestBody) -> Result<Response<Incoming>, Failure> {
        let answer = self.exchange(method, path, body).await.map_err(|error| match error.downcast::<hyper::Error>() {
            // The file could not be read to its end.
            Ok(error) if error.is_user() => Failure::Usage(error.source().map_or_else(|| error.to_string(), ToString::to_string)),
            Ok(error) => Failure::Later(format!("the transfer broke: {error}"), RETRY_WAIT),
            Err(error) => Failure::Unreachable(error.to_string()),
        })?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status().as_u16();
        let wait = answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let text = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let words = String::from_utf8_lossy(&text).trim().to_owned();
        Err(match status {
            429 | 500 | 502..=504 => Failure::Later(words, wait.map_or(RETRY_WAIT, Duration::from_secs)),
            _ => Failure::Refused(words),
        })
    }

    async fn exchange(&self, method: Method, path: &str, body: RequestBody) -> Result<Response<Incoming>, Failed> {
        let request = Request::builder().method(method).uri(format!("{}/{path}", self.path)).header(HOST, &self.authority).body(body)?;
        local_http::send(&self.authority, when_asked(request)).await
    }
}

fn empty() -> RequestBody {
    BodyExt::boxed(Empty::new().map_err(|never: Infallible| match never {}))
}

async fn read_json<T: DeserializeOwned>(answer: Response<Incoming>) -> Result<T, Failure> {
    let late = |why: &dyn std::fmt::Display| Failure::Later(format!("the answer cannot be read: {why}"), RETRY_WAIT);
    let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect().await.map_err(|error| late(&error))?.to_bytes();
    serde_json::from_slice(&body).map_err(|error| late(&error))
}
