//! One question to a model, by the sidecar's port: plain HTTP on loopback, again where the answer says so and there is time.
//! It knows nothing of what is asked.

use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::header::{CONTENT_TYPE, HOST, RETRY_AFTER};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use super::decision::cut;
use super::dialect::{Dialect, Message, Question};

/// The most bytes of an answer that are read.
const MAX_ANSWER: usize = 1024 * 1024;
/// The most tries of one question.
const MAX_TRIES: u32 = 5;
/// Before a try after one that nobody answered.
const PAUSE: Duration = Duration::from_secs(1);

/// A model.
#[derive(Clone, Debug)]
pub struct Model {
    /// Its protocol.
    pub dialect: Dialect,
    /// Its name.
    pub name: String,
    /// The base URL of its API.
    pub base: String,
    /// The key that clients show. In a pod it opens nothing.
    pub key: String,
    /// The most tokens of an answer.
    pub max_output: u32,
    /// How long an answer may take, with all tries.
    pub within: Duration,
}

/// What came of one try.
enum Tried {
    Said(String),
    /// Why there is no answer, and after how long one may come.
    Again(String, Duration),
    Never(String),
}

impl Model {
    /// What the model says; or why it says nothing, for people.
    pub fn ask(&self, system: &str, messages: &[Message]) -> Result<String, String> {
        let question = self.dialect.question(&self.name, &self.key, system, messages, self.max_output);
        let began = Instant::now();
        let mut tries = 0;
        loop {
            tries += 1;
            match self.try_once(&question, self.within.saturating_sub(began.elapsed())) {
                Tried::Said(text) => return Ok(text),
                Tried::Again(_, pause) if tries < MAX_TRIES && began.elapsed() + pause < self.within => std::thread::sleep(pause),
                Tried::Again(why, _) | Tried::Never(why) => return Err(why),
            }
        }
    }

    fn try_once(&self, question: &Question, within: Duration) -> Tried {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return Tried::Never(format!("no call can be made: {error}")),
        };
        let answered = runtime.block_on(async { tokio::time::timeout(within, self.post(question)).await });
        match answered {
            Ok(Ok((status, retry, body))) => self.judge(status, retry, &body),
            Ok(Err(error)) => Tried::Again(format!("the model cannot be reached: {error}"), PAUSE),
            Err(_) => Tried::Never(format!("the model did not answer within {} s", self.within.as_secs())),
        }
    }

    /// The status, whether and after how many seconds to try again, and the body.
    async fn post(&self, question: &Question) -> Result<(u16, Option<u64>, Bytes), Box<dyn std::error::Error + Send + Sync>> {
        let uri: Uri = format!("{}{}", self.base.trim_end_matches('/'), question.path).parse()?;
        let host = uri.host().unwrap_or_default();
        let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(80))).await?;
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection); // what goes wrong with it shows at the answer
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let authority = uri.authority().map_or(host, |authority| authority.as_str());
        let mut request = Request::post(path).header(HOST, authority).header(CONTENT_TYPE, "application/json");
        for (name, value) in &question.headers {
            request = request.header(*name, value);
        }
        let answer = sender.send_request(request.body(Full::new(Bytes::from(question.body.to_string())))?).await?;
        let header = |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok());
        let told = header(RETRY_AFTER.as_str()).map(|seconds| seconds.trim().parse().unwrap_or(1));
        let (status, retry) = (answer.status().as_u16(), if header("x-should-retry") == Some("false") { None } else { told.or(Some(1)) });
        Ok((status, retry, Limited::new(answer.into_body(), MAX_ANSWER).collect().await?.to_bytes()))
    }

    fn judge(&self, status: u16, retry: Option<u64>, body: &[u8]) -> Tried {
        let answer: Value = serde_json::from_slice(body).unwrap_or_default();
        if (200..300).contains(&status) {
            return self.dialect.text(&answer).map_or_else(|| Tried::Never("the model's answer has no text".to_owned()), Tried::Said);
        }
        let message = answer.pointer("/error/message").or_else(|| answer.get("message")).and_then(Value::as_str).unwrap_or_default();
        let words = message.split_whitespace().collect::<Vec<_>>().join(" ");
        let why = format!("the model's API answers {status}: {}", cut(&words, 400));
        match retry {
            Some(seconds) if matches!(status, 429 | 500 | 502..=504 | 529) => Tried::Again(why, Duration::from_secs(seconds.max(1))),
            Some(_) | None => Tried::Never(why),
        }
    }
}
