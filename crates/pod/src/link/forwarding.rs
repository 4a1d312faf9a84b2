//! What the ports for programs share: headers that are not forwarded, the item of a request, and answers of our own in plain text.
//!
//! It decides nothing about a request.

use http_body_util::{Either, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, InvalidHeaderValue, RETRY_AFTER};
use hyper::{HeaderMap, Response, StatusCode};
use spillway_wire::egress::DENIAL_HEADER;
use spillway_wire::meter::ITEM_HEADER;
use spillway_wire::work::LeaseRef;
use spillway_wire::{Code, Refusal};

use super::gateway::Silence;

/// An answer of the gateway, or one of our own.
pub type Answer = Response<Either<Incoming, Full<Bytes>>>;

/// Removes the headers that `is_removed` names, and those that `Connection` names.
pub fn strip(headers: &mut HeaderMap, is_removed: impl Fn(&str) -> bool) {
    let named = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    let named = named.filter_map(|name| HeaderName::try_from(name.trim()).ok());
    let removed = headers.keys().filter(|name| is_removed(name.as_str())).cloned();
    let all: Vec<HeaderName> = named.chain(removed).collect();
    all.iter().for_each(|name| drop(headers.remove(name)));
}

/// Names the item that the program works on.
pub fn set_item(headers: &mut HeaderMap, item: Option<&LeaseRef>) -> Result<(), InvalidHeaderValue> {
    if let Some(LeaseRef { uid, epoch }) = item {
        headers.insert(ITEM_HEADER, HeaderValue::try_from(format!("{uid}/{epoch}"))?);
    }
    Ok(())
}

/// The gateway refuses the request; `text` is for the program.
pub fn refused(refusal: &Refusal, text: &str) -> Answer {
    let status = match refusal.code {
        Code::EgressDenied | Code::GitDenied | Code::ToolsDenied | Code::NotWorking => StatusCode::FORBIDDEN,
        code => StatusCode::from_u16(code.status()).unwrap_or(StatusCode::BAD_GATEWAY),
    };
    // A 401 would make a program ask for a password that does not exist.
    let status = if status == StatusCode::UNAUTHORIZED { StatusCode::BAD_GATEWAY } else { status };
    let mut answer = message(status, text);
    let reason = refusal.reason.as_deref().unwrap_or_else(|| refusal.code.label());
    answer.headers_mut().extend(HeaderValue::try_from(reason).ok().map(|reason| (HeaderName::from_static(DENIAL_HEADER), reason)));
    if let Some(seconds) = refusal.retry_after_seconds {
        answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    answer
}

/// The gateway does not answer.
pub fn unreachable(silence: &Silence) -> Answer {
    let mut answer = message(StatusCode::SERVICE_UNAVAILABLE, &format!("Spillway's gateway cannot be reached now ({silence}); try again"));
    answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("5"));
    answer
}

/// An answer of our own.
pub fn message(status: StatusCode, text: &str) -> Answer {
    let mut answer = Response::new(Either::Right(Full::from(format!("{text}\n"))));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}

#[cfg(test)]
mod tests {
    use spillway_wire::headers::{HOP_BY_HOP_HEADERS, is_never_forwarded};

    use super::*;

    #[test]
    fn a_program_reads_why_a_request_is_denied_and_is_asked_for_no_password() {
        for (code, reason) in [(Code::EgressDenied, "NotListed"), (Code::GitDenied, "OtherRepository")] {
            let answer = refused(&Refusal::new(code, "denied").reason(reason), "denied");
            assert_eq!((answer.status(), answer.headers()[DENIAL_HEADER].to_str().ok()), (StatusCode::FORBIDDEN, Some(reason)));
        }
        let token = refused(&Refusal::new(Code::InvalidToken, "the token is forged"), "x");
        assert_eq!(
            (token.status(), &token.headers()[DENIAL_HEADER]),
            (StatusCode::BAD_GATEWAY, &HeaderValue::from_static("invalid_token"))
        );
        let busy = refused(&Refusal::new(Code::TooManyCalls, "too many").retry_after(5), "x");
        assert_eq!((busy.status(), &busy.headers()[RETRY_AFTER]), (StatusCode::TOO_MANY_REQUESTS, &HeaderValue::from_static("5")));
    }

    #[test]
    fn headers_of_the_connection_stay_here_and_of_the_rest_what_is_named() {
        let sent = || {
            let mut headers = HeaderMap::new();
            for (name, value) in [
                ("proxy-authorization", "a"),
                ("connection", "close, X-Hop"),
                ("x-hop", "b"),
                ("authorization", "c"),
                ("spillway-item", "forged/1"),
                ("git-protocol", "version=2"),
            ] {
                headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
            }
            headers
        };
        let left = |is_removed: fn(&str) -> bool| {
            let mut headers = sent();
            strip(&mut headers, is_removed);
            let mut names: Vec<String> = headers.keys().map(ToString::to_string).collect();
            names.sort_unstable();
            names
        };
        assert_eq!(left(|name| HOP_BY_HOP_HEADERS.contains(&name)), ["authorization", "git-protocol", "spillway-item"]);
        assert_eq!(left(is_never_forwarded), ["git-protocol"]);
    }
}
