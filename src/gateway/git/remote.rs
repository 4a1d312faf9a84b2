//! The server of a repository: one request on a connection of its own, and whether its answer can be passed on.
//!
//! It must not decide what an agent may do.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio_util::task::AbortOnDropHandle;

use super::transfer::Upload;
use crate::gateway::origin_dialer::{OriginDialError, OriginDialer};
use crate::origins::Origin;
use crate::policy::git::{Denial, Exchange, GitRequest};
use crate::wire::{Code, Refusal};

/// The longest head of an answer, and the buffer for its body.
const BUFFER_BYTES: usize = 64 * 1024;
/// The most characters of a client's name that are sent. Some servers answer only clients that call themselves `git/`.
const MAX_USER_AGENT_CHARS: usize = 64;
/// The name of a client that does not call itself `git/`.
const USER_AGENT: &str = "git/2 (spillway)";
/// The header with the version of the protocol.
const GIT_PROTOCOL: &str = "git-protocol";
/// Seconds after which a program may try again.
const RETRY_SECONDS: u32 = 10;

/// An answer, and the task of its connection, which ends with it.
pub struct RemoteAnswer {
    pub response: Response<Incoming>,
    pub connection: AbortOnDropHandle<()>,
}

/// Sends one request, and waits for the head of its answer.
pub async fn send(dialer: &OriginDialer, origin: &Origin, mut request: Request<Upload>) -> Result<RemoteAnswer, Refusal> {
    let stream = dialer.dial(origin).await.map_err(|error| dial_refusal(origin, &error))?;
    if let Ok(host) = HeaderValue::try_from(origin.authority()) {
        request.headers_mut().insert(header::HOST, host);
    }
    let broken = |error: hyper::Error| unreachable(format!("{origin} broke the connection: {error}"));
    let mut builder = http1::Builder::new();
    builder.max_buf_size(BUFFER_BYTES);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(broken)?;
    // The sender reports errors of the connection.
    let connection = AbortOnDropHandle::new(tokio::spawn(async move { drop(connection.await) }));
    let response = sender.send_request(request).await.map_err(broken)?;
    Ok(RemoteAnswer { response, connection })
}

fn dial_refusal(origin: &Origin, error: &OriginDialError) -> Refusal {
    let denied = |denial: Denial| Refusal::new(Code::GitDenied, format!("{origin}: {denial}")).reason(denial.reason());
    match error {
        OriginDialError::NotListed => denied(Denial::OriginNotListed),
        OriginDialError::Address(address, _) => {
            // Not for the program, which could map the inside by such answers.
            tracing::info!(%origin, %address, "a git server has no address that may be reached");
            denied(Denial::NotPublic)
        }
        OriginDialError::Unreachable(why) => unreachable(format!("{origin} cannot be reached: {why}")),
    }
}

fn unreachable(message: String) -> Refusal {
    Refusal::new(Code::DestinationUnreachable, message).retry_after(RETRY_SECONDS)
}

/// The headers of a request for the server: those of the protocol, and nothing else that a program sends.
pub fn request_headers(from: &HeaderMap, asked: &GitRequest, credential: Option<&HeaderValue>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let text = |name: header::HeaderName| from.get(name).and_then(|value| value.to_str().ok());
    let printable = |text: &&str| text.len() <= MAX_USER_AGENT_CHARS && text.starts_with("git/");
    let agent = text(header::USER_AGENT).filter(printable).and_then(|agent| HeaderValue::try_from(agent).ok());
    headers.insert(header::USER_AGENT, agent.unwrap_or(HeaderValue::from_static(USER_AGENT)));
    let answer_type = asked.service.answer_type(asked.exchange);
    let mut set = |name, value: &str| headers.extend(HeaderValue::try_from(value).ok().map(|value| (name, value)));
    set(header::ACCEPT, &answer_type);
    if asked.exchange == Exchange::Call {
        set(header::CONTENT_TYPE, &asked.service.request_type());
    }
    if text(header::CONTENT_ENCODING) == Some("gzip") {
        set(header::CONTENT_ENCODING, "gzip");
    }
    let version = from.get(GIT_PROTOCOL).and_then(|value| value.to_str().ok());
    if let Some(version) = version.filter(|version| matches!(*version, "version=1" | "version=2")) {
        set(header::HeaderName::from_static(GIT_PROTOCOL), version);
    }
    headers.extend(credential.cloned().map(|credential| (header::AUTHORIZATION, credential)));
    headers
}

/// Refuses an answer that is none of git's protocol. The server's own words are not shown: they may repeat the credential.
pub fn check(head: &Response<Incoming>, asked: &GitRequest, remote: &str, secret: Option<&str>) -> Result<(), Refusal> {
    judge(head.status(), head.headers(), asked, remote, secret)
}

fn judge(status: StatusCode, headers: &HeaderMap, asked: &GitRequest, remote: &str, secret: Option<&str>) -> Result<(), Refusal> {
    let number = status.as_u16();
    let refused = |message: String| Err(Refusal::new(Code::GitDenied, message).reason(Denial::RemoteRefused.reason()));
    if status.is_success() {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if !text(header::CONTENT_ENCODING).is_empty() {
            return refused(format!("{remote} answers with a content encoding that was not requested"));
        }
        let expected = asked.service.answer_type(asked.exchange);
        if text(header::CONTENT_TYPE) == expected {
            return Ok(());
        }
        return refused(format!("{remote} does not serve git's smart HTTP protocol: correct spec.workspace.git.remote"));
    }
    match (number, secret) {
        (401 | 403, Some(secret)) => refused(format!(
            "{remote} refuses the credential of the Secret {secret} for a {} ({number}): correct the Secret, or the rights of its account",
            asked.service.label()
        )),
        (401 | 403, None) => refused(format!(
            "{remote} requires a credential for a {} ({number}): name a Secret in spec.workspace.git.credentialsRef",
            asked.service.label()
        )),
        (404 | 410, _) => refused(format!("{remote} does not exist, or its credential does not show it ({number})")),
        (300..=399, _) => {
            refused(format!("{remote} answers with a redirect, which is not followed: correct spec.workspace.git.remote ({number})"))
        }
        (429 | 500..=599, _) => Err(unreachable(format!("{remote} cannot answer now ({number}); try again"))),
        _ => refused(format!("{remote} refuses the request ({number})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::git::{Repository, Service};

    fn asked(service: Service, exchange: Exchange) -> GitRequest {
        GitRequest { repository: Repository::parse("git.example.com/a").expect("a repository"), service, exchange }
    }

    fn map(all: &[(&'static str, &'static str)]) -> HeaderMap {
        all.iter().map(|(name, value)| (header::HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn only_headers_of_the_protocol_go_to_the_server() {
        let from = map(&[
            ("user-agent", "git/2.47.3"),
            ("git-protocol", "version=2"),
            ("content-encoding", "gzip"),
            ("authorization", "Basic own"),
            ("cookie", "a=b"),
            ("x-forwarded-host", "evil.example.com"),
            ("accept-language", "en"),
        ]);
        let credential = HeaderValue::from_static("Basic team");
        let sent = request_headers(&from, &asked(Service::Fetch, Exchange::Call), Some(&credential));
        let mut names: Vec<&str> = sent.keys().map(header::HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["accept", "authorization", "content-encoding", "content-type", "git-protocol", "user-agent"]);
        assert_eq!((&sent["authorization"], &sent["user-agent"]), (&credential, &HeaderValue::from_static("git/2.47.3")));
        let odd = map(&[("user-agent", "curl/8"), ("git-protocol", "version=2:x"), ("content-encoding", "br")]);
        let sent = request_headers(&odd, &asked(Service::Fetch, Exchange::Advertisement), None);
        assert_eq!((sent.len(), &sent["user-agent"]), (2, &HeaderValue::from_static(USER_AGENT)), "{sent:?}");
    }

    #[test]
    fn an_answer_of_another_kind_is_refused_in_words() {
        let asked = asked(Service::Push, Exchange::Advertisement);
        let result = |status: u16, headers: HeaderMap, secret| {
            judge(StatusCode::from_u16(status).expect("a status"), &headers, &asked, "https://git.example.com/a", secret)
        };
        let good = map(&[("content-type", "application/x-git-receive-pack-advertisement")]);
        assert_eq!(result(200, good, None), Ok(()));
        for (status, headers, secret, words) in [
            (200, map(&[("content-type", "text/html")]), None, "smart HTTP"),
            (200, map(&[("content-type", "application/x-git-receive-pack-result")]), None, "smart HTTP"),
            (200, map(&[("content-encoding", "gzip")]), None, "content encoding"),
            (401, map(&[]), Some("robot"), "credential of the Secret robot for a push (401)"),
            (403, map(&[]), None, "spec.workspace.git.credentialsRef"),
            (404, map(&[]), None, "does not exist"),
            (302, map(&[]), None, "redirect"),
            (400, map(&[]), None, "refuses the request (400)"),
        ] {
            let refusal = result(status, headers, secret).expect_err(words);
            assert!(refusal.message.contains(words) && !refusal.code.is_retryable(), "{}", refusal.message);
        }
        for status in [429, 500, 503] {
            assert!(result(status, map(&[]), None).is_err_and(|refusal| refusal.code.is_retryable()), "{status}");
        }
    }
}
