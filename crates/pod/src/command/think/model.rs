//! HTTP calls to the sidecar's port for models, on loopback. A question is repeated if the answer allows it and time is left.
//! This module does not interpret questions.

use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::header::{CONTENT_TYPE, HOST, RETRY_AFTER};
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use super::decision::cut;
use super::dialect::{Dialect, Message, Question};

/// The most bytes of an answer that are read.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;
/// The most tries of one question.
const MAX_ATTEMPTS: u32 = 5;
/// The most bytes of an error message.
const MAX_ERROR_BYTES: usize = 400;
/// Wait after a try without an answer.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// A model.
#[derive(Clone, Debug)]
pub struct Model {
    /// Its protocol.
    pub dialect: Dialect,
    /// Its name.
    pub name: String,
    /// The base URL of its API.
    pub base: String,
    /// The key that clients send. In a pod it is a placeholder.
    pub key: String,
    /// The most tokens of an answer.
    pub max_output: u32,
    /// The time limit of an answer, with all tries.
    pub within: Duration,
}

/// The result of one try.
enum ModelTry {
    Said(String),
    /// Why there is no answer, and after which wait the question may be repeated.
    RetryAfter(String, Duration),
    Failed(String),
}

impl Model {
    /// The model's answer, or a message for people that says why there is none.
    pub fn ask(&self, system: &str, messages: &[Message]) -> Result<String, String> {
        let question = self.dialect.question(&self.name, &self.key, system, messages, self.max_output);
        let began = Instant::now();
        let mut tries = 0;
        loop {
            tries += 1;
            match self.try_once(&question, self.within.saturating_sub(began.elapsed())) {
                ModelTry::Said(text) => return Ok(text),
                ModelTry::RetryAfter(_, pause) if tries < MAX_ATTEMPTS && began.elapsed() + pause < self.within => {
                    std::thread::sleep(pause)
                }
                ModelTry::RetryAfter(why, _) | ModelTry::Failed(why) => return Err(why),
            }
        }
    }

    fn try_once(&self, question: &Question, within: Duration) -> ModelTry {
        let url = format!("{}{}", self.base.trim_end_matches('/'), question.path);
        let headers: Vec<(&str, &str)> = question.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        match exchange(Method::POST, &url, &headers, question.body.to_string(), within) {
            Ok(exchanged) => self.judge(&exchanged),
            Err(Silence::Unreachable(error)) => ModelTry::RetryAfter(format!("the model cannot be reached: {error}"), RETRY_DELAY),
            Err(Silence::Late) => ModelTry::Failed(format!("the model did not answer within {} s", self.within.as_secs())),
        }
    }

    fn judge(&self, HttpExchange { status, retry, answer }: &HttpExchange) -> ModelTry {
        if (200..300).contains(status) {
            return self.dialect.text(answer).map_or_else(|| ModelTry::Failed("the model's answer has no text".to_owned()), ModelTry::Said);
        }
        let why = format!("the model's API answers {status}: {}", error_message(answer));
        match retry {
            Some(seconds) if matches!(status, 429 | 500 | 502..=504 | 529) => {
                ModelTry::RetryAfter(why, Duration::from_secs((*seconds).max(1)))
            }
            Some(_) | None => ModelTry::Failed(why),
        }
    }
}

/// The answer to a GET.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetAnswer {
    /// The status.
    pub status: u16,
    /// The error message, if the answer is an error.
    pub words: String,
}

/// Makes one GET, or says why no answer came.
pub fn get(url: &str, headers: &[(&str, &str)], within: Duration) -> Result<GetAnswer, String> {
    match exchange(Method::GET, url, headers, String::new(), within) {
        Ok(HttpExchange { status, answer, .. }) => Ok(GetAnswer { status, words: error_message(&answer) }),
        Err(Silence::Unreachable(error)) => Err(error),
        Err(Silence::Late) => Err(format!("nothing came within {} s", within.as_secs())),
    }
}

/// The answer to a POST.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostAnswer {
    /// The status.
    pub status: u16,
    /// The body, if it is JSON.
    pub body: Value,
    /// The error message, if the answer is an error.
    pub words: String,
}

/// Makes one POST of JSON, or says why no answer came.
pub fn post(url: &str, headers: &[(&str, &str)], body: &Value, within: Duration) -> Result<PostAnswer, String> {
    match exchange(Method::POST, url, headers, body.to_string(), within) {
        Ok(HttpExchange { status, answer, .. }) => Ok(PostAnswer { status, words: error_message(&answer), body: answer }),
        Err(Silence::Unreachable(error)) => Err(error),
        Err(Silence::Late) => Err(format!("nothing came within {} s", within.as_secs())),
    }
}

/// A call and its answer.
struct HttpExchange {
    status: u16,
    /// After how many seconds to try again; none: never.
    retry: Option<u64>,
    /// The body, if it is JSON.
    answer: Value,
}

/// Why no answer came.
enum Silence {
    Unreachable(String),
    Late,
}

/// The error message in an answer, in the formats of all providers and of Spillway, in one line.
fn error_message(answer: &Value) -> String {
    let message = answer.pointer("/error/message").or_else(|| answer.get("message")).and_then(Value::as_str).unwrap_or_default();
    // A refusal may end with a manifest to apply. On one line it is of no use.
    let message = message.split_once(":\napiVersion:").map_or(message, |(before, _)| before);
    cut(&message.split_whitespace().collect::<Vec<_>>().join(" "), MAX_ERROR_BYTES).to_owned()
}

fn exchange(method: Method, url: &str, headers: &[(&str, &str)], body: String, within: Duration) -> Result<HttpExchange, Silence> {
    let unreachable = |error: &dyn std::fmt::Display| Silence::Unreachable(error.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| unreachable(&error))?;
    let answered = runtime.block_on(async { tokio::time::timeout(within, send(method, url, headers, body)).await });
    answered.map_err(|_| Silence::Late)?.map_err(|error| unreachable(&error))
}

async fn send(
    method: Method,
    url: &str,
    headers: &[(&str, &str)],
    body: String,
) -> Result<HttpExchange, Box<dyn std::error::Error + Send + Sync>> {
    let uri: Uri = url.parse()?;
    let host = uri.host().unwrap_or_default();
    let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(80))).await?;
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection); // its errors appear at the answer
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let authority = uri.authority().map_or(host, |authority| authority.as_str());
    let mut request = Request::builder().method(method).uri(path).header(HOST, authority);
    if !body.is_empty() {
        request = request.header(CONTENT_TYPE, "application/json");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer = sender.send_request(request.body(Full::new(Bytes::from(body)))?).await?;
    let header = |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok());
    let told = header(RETRY_AFTER.as_str()).map(|seconds| seconds.trim().parse().unwrap_or(1));
    let retry = if header("x-should-retry") == Some("false") { None } else { told.or(Some(1)) };
    let status = answer.status().as_u16();
    let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect().await?.to_bytes();
    Ok(HttpExchange { status, retry, answer: serde_json::from_slice(&body).unwrap_or_default() })
}
