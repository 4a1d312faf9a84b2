//! One attempt to send one delivery. Redirects are not followed, and the body of an answer is not read: only its status
//! and Retry-After count.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, Uri, header};
use http_body_util::Full;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use super::settings::Webhook;
use crate::pki::tls;
use crate::policy::outbox::Outcome;

/// How long one attempt may take.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// The answer: its status, and when to try again.
pub type Answer = anyhow::Result<(StatusCode, Option<Duration>)>;

/// Sends to one webhook.
pub struct Sender {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    url: PathBuf,
    authorization: Option<PathBuf>,
}

impl Sender {
    /// Sends to this webhook. Its certificates are read here, so that an invalid one is reported at the start.
    pub fn new(webhook: &Webhook) -> anyhow::Result<Self> {
        let connector = tls::public_connector(&webhook.ca_bundle).with_context(|| format!("caBundle of the webhook {}", webhook.name))?;
        // Notices are rare, so a kept connection would be closed by the next notice.
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector);
        Ok(Self { client, url: webhook.url_file.clone(), authorization: webhook.authorization_file.clone() })
    }

    /// Sends once. An error contains no secret.
    pub async fn send(&self, id: u64, body: String) -> Answer {
        let request = self.request(id, body)?;
        let answer =
            tokio::time::timeout(SEND_TIMEOUT, self.client.request(request)).await.map_err(|_| anyhow!("the webhook does not answer"))?;
        let answer = answer?;
        let again = answer.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        Ok((answer.status(), again.map(Duration::from_secs)))
    }

    fn request(&self, id: u64, body: String) -> anyhow::Result<Request<Full<Bytes>>> {
        let url: Uri = read_secret(&self.url)?.parse().map_err(|_| anyhow!("the content of {} is not a URL", self.url.display()))?;
        if !matches!(url.scheme_str(), Some("http" | "https")) || url.host().is_none() {
            bail!("the content of {} is not a URL with http or https", self.url.display());
        }
        let mut request = Request::post(url)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::USER_AGENT, concat!("spillway/", env!("CARGO_PKG_VERSION")))
            .header("spillway-notice", id);
        if let Some(file) = &self.authorization {
            let mut value = HeaderValue::try_from(read_secret(file)?)
                .map_err(|_| anyhow!("the content of {} is not a valid header value", file.display()))?;
            value.set_sensitive(true);
            request = request.header(header::AUTHORIZATION, value);
        }
        request.body(Full::from(body)).map_err(|_| anyhow!("the content of {} is not a URL that can be called", self.url.display()))
    }
}

/// The content of a file of a Secret.
fn read_secret(file: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}: check that its Secret exists", file.display()))?;
    Ok(text.trim().to_owned())
}

/// The outcome of an attempt.
pub fn judge(answer: &Answer) -> Outcome {
    match answer {
        Err(_) => Outcome::Later(None),
        Ok((status, _)) if status.is_success() => Outcome::Taken,
        Ok((status, again)) => match status.as_u16() {
            408 | 425 | 429 | 500.. => Outcome::Later(*again),
            _ => Outcome::Refused,
        },
    }
}
