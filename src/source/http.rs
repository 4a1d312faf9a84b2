//! One request to a forge, and its answer as JSON. It does not follow redirects, so the credential goes to no other server.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

use super::forge::{Forge, ForgeRequest};
use crate::pki::tls;

/// How long a request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The most bytes of an answer.
const MAX_ANSWER_BYTES: usize = 16 * 1024 * 1024;
/// The most characters of a forge's error message.
const MAX_MESSAGE_CHARS: usize = 300;
/// The longest wait that a forge may ask for.
const MAX_WAIT: Duration = Duration::from_secs(3600);

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ForgeError {
    /// The forge asks to wait.
    #[error("the forge allows no more requests now; waiting {} s", .0.as_secs())]
    Wait(Duration),
    /// What the request names does not exist.
    #[error("{0}")]
    NotFound(String),
    /// Another failure.
    #[error("{0:#}")]
    Other(#[from] anyhow::Error),
}

/// The client of one forge.
pub struct ForgeClient {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    token: PathBuf,
}

impl ForgeClient {
    /// A client with the credential in a file, which is read for each request, because it may be replaced.
    pub fn new(token: PathBuf, ca_bundle: &str) -> anyhow::Result<Self> {
        let connector = tls::public_connector(ca_bundle).context("--ca-file")?;
        Ok(Self { client: Client::builder(TokioExecutor::new()).pool_idle_timeout(Duration::from_secs(20)).build(connector), token })
    }

    /// Sends a request. The answer is null if it has no body.
    pub async fn send(&self, forge: &Forge, asked: ForgeRequest) -> Result<Value, ForgeError> {
        let token = std::fs::read_to_string(&self.token).with_context(|| format!("cannot read {} (--token-file)", self.token.display()))?;
        let ForgeRequest { method, url, body } = asked;
        let shown = format!("{method} {}", url.split('?').next().unwrap_or_default());
        let mut request =
            Request::builder().method(method).uri(&url).header(header::USER_AGENT, concat!("spillway/", env!("CARGO_PKG_VERSION")));
        for (name, value) in forge.headers(token.trim()).map_err(|error| anyhow!(error))? {
            request = request.header(name, value);
        }
        let body = match body {
            Some(body) => {
                request = request.header(header::CONTENT_TYPE, "application/json");
                Bytes::from(body.to_string())
            }
            None => Bytes::new(),
        };
        let request = request.body(Full::new(body)).context("the request cannot be made")?;
        let exchange = async {
            let answer = self.client.request(request).await.with_context(|| shown.clone())?;
            let (head, body) = answer.into_parts();
            let bytes = Limited::new(body, MAX_ANSWER_BYTES).collect().await.map_err(|error| anyhow!("{shown}: {error}"))?.to_bytes();
            Ok::<_, anyhow::Error>((head, bytes))
        };
        let (head, bytes) = tokio::time::timeout(REQUEST_TIMEOUT, exchange).await.map_err(|_| anyhow!("{shown}: no answer in time"))??;
        if head.status.is_success() {
            return Ok(if bytes.is_empty() {
                Value::Null
            } else {
                serde_json::from_slice(&bytes).with_context(|| format!("{shown}: the answer is no JSON"))?
            });
        }
        if let Some(wait) =
            wait(head.status, |name| head.headers.get(name)?.to_str().ok()?.parse().ok(), jiff::Timestamp::now().as_second())
        {
            return Err(ForgeError::Wait(wait));
        }
        let words = format!("{shown}: the forge answers {}: {}", head.status.as_u16(), message(&bytes));
        match head.status {
            StatusCode::NOT_FOUND | StatusCode::GONE => Err(ForgeError::NotFound(words)),
            _ => Err(anyhow!(words).into()),
        }
    }
}

/// How long a forge asks to wait, by its status and its headers.
fn wait(status: StatusCode, number: impl Fn(&str) -> Option<i64>, now: i64) -> Option<Duration> {
    if !matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::FORBIDDEN | StatusCode::SERVICE_UNAVAILABLE) {
        return None;
    }
    let spent = number("x-ratelimit-remaining") == Some(0) || number("ratelimit-remaining") == Some(0);
    let reset = number("x-ratelimit-reset").or_else(|| number("ratelimit-reset")).filter(|_| spent).map(|at| at.saturating_sub(now));
    let seconds = number("retry-after").or(reset).or((status == StatusCode::TOO_MANY_REQUESTS).then_some(60))?;
    Some(Duration::from_secs(u64::try_from(seconds.max(1)).unwrap_or(1)).min(MAX_WAIT))
}

/// The message in a forge's error, as one line.
fn message(bytes: &[u8]) -> String {
    let value: Value = serde_json::from_slice(bytes).unwrap_or_default();
    let text = value.get("message").or_else(|| value.get("error")).and_then(Value::as_str).unwrap_or("no message");
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(MAX_MESSAGE_CHARS).collect()
}

/// A file of certificates; an empty text without one.
pub fn read_certificates(file: Option<&std::path::Path>) -> anyhow::Result<String> {
    let Some(file) = file else { return Ok(String::new()) };
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {} (--ca-file)", file.display()))?;
    if !text.contains("BEGIN CERTIFICATE") {
        bail!("{} (--ca-file) has no certificate", file.display());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forge_says_how_long_to_wait_in_one_of_several_ways() {
        let of = |status, headers: &[(&str, i64)]| {
            let headers: Vec<(String, i64)> = headers.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
            let seconds = wait(status, |name| headers.iter().find(|(known, _)| known == name).map(|(_, value)| *value), 1000);
            seconds.map(|seconds| seconds.as_secs())
        };
        let (many, forbidden) = (StatusCode::TOO_MANY_REQUESTS, StatusCode::FORBIDDEN);
        assert_eq!(of(many, &[("retry-after", 7)]), Some(7));
        assert_eq!(of(many, &[]), Some(60));
        assert_eq!(of(forbidden, &[("x-ratelimit-remaining", 0), ("x-ratelimit-reset", 1030)]), Some(30));
        assert_eq!(of(forbidden, &[("x-ratelimit-remaining", 5), ("x-ratelimit-reset", 1030)]), None, "it is no limit");
        assert_eq!(of(forbidden, &[("x-ratelimit-remaining", 0), ("x-ratelimit-reset", 900)]), Some(1));
        assert_eq!(of(many, &[("retry-after", 99_999)]), Some(3600));
        assert_eq!(of(StatusCode::NOT_FOUND, &[("retry-after", 7)]), None);
    }

    #[test]
    fn an_error_is_one_short_line() {
        assert_eq!(message(br#"{"message": "Bad\n credentials"}"#), "Bad credentials");
        assert_eq!(message(b"<html>"), "no message");
        assert_eq!(message(format!("{{\"error\": \"{}\"}}", "x".repeat(5000)).as_bytes()).len(), MAX_MESSAGE_CHARS);
    }
}
