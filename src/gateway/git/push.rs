//! The start of a push: its ref updates are read and decided before anything goes to the server. A denied push is answered as a
//! server would, so that git shows the reason beside each ref.
//!
//! It must not read objects.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use tokio::time::timeout;

use crate::policy::git::push::{PushError, denied_report};
use crate::policy::git::{Commits, Denial, Exchange, PushHead, PushHeadReader, PushRules, RefPattern, Service, decide};
use crate::wire::changeset::{COMMIT_HEADER, PendingCommit};
use crate::wire::git::GitPush;
use crate::wire::{Code, Refusal};

/// How long the ref updates may take to arrive.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the rest of a denied push may take to arrive.
const REST_TIMEOUT: Duration = Duration::from_secs(600);

/// A push whose updates are known.
pub struct Push {
    pub head: PushHead,
    /// All bytes that were read.
    pub bytes: Vec<u8>,
    /// The rest of the body.
    pub rest: Body,
}

/// Reads the updates of a push.
pub async fn read(headers: &HeaderMap, mut body: Body) -> Result<Push, Refusal> {
    if headers.contains_key(header::CONTENT_ENCODING) {
        let message = "the body of the push is encoded: git never does that";
        return Err(Refusal::new(Code::GitDenied, message).reason(Denial::InvalidRequest.reason()));
    }
    let reading = async {
        let mut reader = PushHeadReader::default();
        while let Some(part) = next_part(&mut body).await? {
            if let Some(head) = reader.push(&part).map_err(|error| invalid(&error))? {
                return Ok((head, reader.into_bytes()));
            }
        }
        Err(invalid(&PushError::Malformed))
    };
    let (head, bytes) = timeout(HEAD_TIMEOUT, reading).await.unwrap_or_else(|_| Err(cut()))?;
    Ok(Push { head, bytes, rest: body })
}

/// The next part of a body. None: it has ended.
async fn next_part(body: &mut Body) -> Result<Option<Bytes>, Refusal> {
    let Some(frame) = body.frame().await else { return Ok(None) };
    Ok(Some(frame.map_err(|_| cut())?.into_data().unwrap_or_default()))
}

fn cut() -> Refusal {
    Refusal::new(Code::InvalidBody, "the body of the push was cut off, or came too slowly")
}

fn invalid(error: &PushError) -> Refusal {
    Refusal::new(Code::GitDenied, error.to_string()).reason(Denial::InvalidRequest.reason())
}

/// The commit that the pod's supervisor announced. The sidecar names it; programs cannot set its header.
pub fn announced_commit(headers: &HeaderMap) -> Option<PendingCommit> {
    PendingCommit::parse(headers.get(COMMIT_HEADER)?.to_str().ok()?)
}

/// The denials of a push, one for each update, if any is denied. A push is allowed as a whole, or not at all, and without rules
/// nothing is.
pub fn denials(head: &PushHead, commit: Option<&PendingCommit>, allowed: Option<&GitPush>) -> Option<Vec<Option<Denial>>> {
    let rules = allowed.map(|GitPush { refs, overwrite, delete, changeset_only }| PushRules {
        refs: RefPattern::filled(refs.clone()),
        overwrite: *overwrite,
        delete: *delete,
        commits: if *changeset_only {
            Commits::Changeset(commit.map(|PendingCommit { old, new }| (old.clone(), new.clone())))
        } else {
            Commits::Any
        },
    });
    let denial = |update| rules.as_ref().map_or(Some(Denial::PushNotAllowed), |rules| decide(rules, update).err());
    let all: Vec<Option<Denial>> = head.updates.iter().map(denial).collect();
    all.iter().any(Option::is_some).then_some(all)
}

/// The answer to a denied push, after the rest of its body: git reads no answer before it has sent all.
pub async fn denied(head: &PushHead, mut rest: Body, denials: &[Option<Denial>], allowed: Option<&GitPush>, limit: u64) -> Response {
    let reading = async {
        let mut left = limit;
        while let Ok(Some(part)) = next_part(&mut rest).await {
            let Some(less) = left.checked_sub(part.len() as u64) else { return };
            left = less;
        }
    };
    let _ = timeout(REST_TIMEOUT, reading).await; // a program that goes on sending reads no answer
    let reason = |denial: &Option<Denial>| match denial {
        Some(denial) => denial.to_string(),
        None => "another ref of this push is denied".to_owned(),
    };
    let reasons: Vec<String> = denials.iter().map(reason).collect();
    let refs = allowed.map_or("no refs", |allowed| allowed.refs.as_str());
    let message = format!("nothing was pushed. The pool allows pushes of {refs}");
    let mut response = Response::new(Body::from(denied_report(head, &reasons, &message)));
    let content_type = HeaderValue::try_from(Service::Push.answer_type(Exchange::Call));
    response.headers_mut().extend(content_type.ok().map(|value| (header::CONTENT_TYPE, value)));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZERO: &str = "0000000000000000000000000000000000000000";
    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

    fn body(names: &[&str]) -> Body {
        let mut all = String::new();
        for (at, name) in names.iter().enumerate() {
            let capabilities = if at == 0 { "\0 report-status" } else { "" };
            let line = format!("{ZERO} {A} {name}{capabilities}");
            all += &format!("{:04x}{line}", line.len() + 4);
        }
        let parts: Vec<Result<Bytes, std::io::Error>> =
            format!("{all}0000PACKobjects").into_bytes().chunks(7).map(|part| Ok(Bytes::copy_from_slice(part))).collect();
        Body::from_stream(futures::stream::iter(parts))
    }

    fn allowed() -> GitPush {
        GitPush { refs: "refs/heads/agents/*".into(), overwrite: false, delete: false, changeset_only: false }
    }

    #[tokio::test]
    async fn an_allowed_push_goes_on_byte_by_byte() {
        let push = read(&HeaderMap::new(), body(&["refs/heads/agents/x"])).await.expect("a push");
        assert_eq!(denials(&push.head, None, Some(&allowed())), None);
        assert_eq!(
            denials(&push.head, None, None),
            Some(vec![Some(Denial::PushNotAllowed)]),
            "a governor that names no rules allows nothing"
        );
        let rest = push.rest.collect().await.expect("whole").to_bytes();
        let all = [push.bytes.as_slice(), &rest].concat();
        assert_eq!(all, body(&["refs/heads/agents/x"]).collect().await.expect("whole").to_bytes());
    }

    #[tokio::test]
    async fn one_denied_ref_denies_the_push_and_git_reads_why() {
        let push = read(&HeaderMap::new(), body(&["refs/heads/agents/x", "refs/heads/main"])).await.expect("a push");
        let denials = denials(&push.head, None, Some(&allowed())).expect("one is denied");
        assert_eq!(denials, [None, Some(Denial::RefNotAllowed)]);
        let response = denied(&push.head, push.rest, &denials, Some(&allowed()), 1024).await;
        let text = response.into_body().collect().await.expect("whole").to_bytes();
        let text = String::from_utf8_lossy(&text).into_owned();
        assert!(
            text.contains("ng refs/heads/agents/x another ref") && text.contains("ng refs/heads/main the pool does not allow"),
            "{text}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn updates_that_come_slowly_are_no_push() {
        let parts = futures::stream::unfold(b"00c0".to_vec().into_iter(), async |mut bytes| {
            tokio::time::sleep(HEAD_TIMEOUT / 3).await;
            bytes.next().map(|byte| (Ok::<_, std::io::Error>(Bytes::from(vec![byte])), bytes))
        });
        let refusal = read(&HeaderMap::new(), Body::from_stream(parts)).await.err().expect("it takes too long");
        assert_eq!(refusal.code, Code::InvalidBody);
        let mut encoded = HeaderMap::new();
        encoded.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        let refusal = read(&encoded, body(&["refs/heads/agents/x"])).await.err().expect("nothing can be read in it");
        assert_eq!(refusal.reason.as_deref(), Some("InvalidRequest"));
    }

    #[tokio::test]
    async fn a_body_that_ends_early_is_no_push() {
        for text in ["", "0000", "00"] {
            let read = read(&HeaderMap::new(), Body::from(text)).await;
            assert_eq!(read.is_ok(), text == "0000", "{text:?}");
        }
    }
}
