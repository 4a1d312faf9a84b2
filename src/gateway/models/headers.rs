//! What of a call's headers goes to a provider, and what of its answer's comes back. Pure.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

use crate::wire::headers::{HOPS, stays};
use crate::wire::meter::Room;

/// About a body that is written anew, or about whom it came by.
const OWN: [&str; 7] = ["content-length", "content-encoding", "accept-encoding", "expect", "forwarded", "via", "x-real-ip"];
/// Of an answer: what is about the provider's connection or host.
const FOREIGN: [&str; 6] = ["content-length", "content-encoding", "set-cookie", "alt-svc", "strict-transport-security", "server"];

/// The headers of a call, as the provider gets them but for the credential.
pub fn outward(client: &HeaderMap) -> HeaderMap {
    let named = connection_names(client);
    let mut sent = HeaderMap::with_capacity(client.len());
    for (name, value) in client {
        let text = name.as_str();
        let on_the_way = ["x-forwarded-", "proxy-"].iter().any(|prefix| text.starts_with(prefix));
        let dropped = stays(text) || OWN.contains(&text) || named.contains(name);
        if !on_the_way && !dropped {
            sent.append(name.clone(), value.clone());
        }
    }
    // What is metered must be read.
    sent.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    sent
}

/// The headers of an answer, as the client gets them.
pub fn inward(provider: &HeaderMap, room: Option<&Room>) -> HeaderMap {
    let named = connection_names(provider);
    let mut passed = HeaderMap::with_capacity(provider.len() + 3);
    for (name, value) in provider {
        let text = name.as_str();
        let budget = text.starts_with("x-budget-");
        if !HOPS.contains(&text) && !FOREIGN.contains(&text) && !named.contains(name) && !budget {
            passed.append(name.clone(), value.clone());
        }
    }
    if let Some(room) = room {
        for (name, value) in spillway_dialect::budget_headers(room) {
            passed.extend(HeaderValue::try_from(value).ok().map(|value| (HeaderName::from_static(name), value)));
        }
    }
    passed
}

/// Headers that `Connection` names are of the connection too.
fn connection_names(headers: &HeaderMap) -> Vec<HeaderName> {
    let all = headers.get_all(header::CONNECTION).into_iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|value| value.split(',')).filter_map(|name| HeaderName::try_from(name.trim()).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::headers::CREDENTIALS;

    fn map(all: &[(&'static str, &'static str)]) -> HeaderMap {
        all.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn no_credential_and_nothing_of_a_connection_goes_out() {
        let kept =
            [("anthropic-version", "2023-06-01"), ("anthropic-beta", "x"), ("content-type", "application/json"), ("user-agent", "u")];
        let mut client = map(&kept);
        for name in HOPS.iter().chain(&CREDENTIALS).chain(&OWN).chain(&["host", "spillway-item", "x-forwarded-for", "x-of-hop"]) {
            client.insert(HeaderName::from_static(name), HeaderValue::from_static("secret"));
        }
        client.insert(header::CONNECTION, HeaderValue::from_static("close, X-Of-Hop"));
        let mut expected = map(&kept);
        expected.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        assert_eq!(outward(&client), expected);
    }

    #[test]
    fn an_answer_says_what_is_left_and_a_provider_cannot() {
        let provider =
            map(&[("content-type", "text/event-stream"), ("set-cookie", "a=b"), ("x-budget-remaining", "9"), ("request-id", "r")]);
        assert_eq!(inward(&provider, None), map(&[("content-type", "text/event-stream"), ("request-id", "r")]));
        let room = Room {
            budget: "Budget/default".into(),
            name: "day".into(),
            limit: 100,
            used: 20,
            held: 30,
            left: 50,
            resets_at: Some(1_700_000_000_500),
        };
        let passed = inward(&HeaderMap::new(), Some(&room));
        let number = |name: &str| passed.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        assert_eq!(number("x-budget-limit").as_deref(), Some("100"));
        assert_eq!((number("x-budget-remaining").as_deref(), number("x-budget-reset").as_deref()), (Some("50"), Some("1700000000")));
    }
}
