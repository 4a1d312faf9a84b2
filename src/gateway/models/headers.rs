//! Decides which headers of a call are sent to a provider, and which headers of its response come back. Pure.

use std::collections::HashSet;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

use crate::wire::headers::{HOP_BY_HOP_HEADERS, is_never_forwarded};
use crate::wire::shortage::LimitRoom;

/// Headers that published clients send and providers use, with any credential. All others are dropped: a header could
/// ask a provider, or a proxy before it, for another response, another path, another host or another account.
const ALLOWED_HEADERS: [&str; 14] = [
    "accept",
    "anthropic-beta",
    "anthropic-dangerous-direct-browser-access",
    "anthropic-version",
    "idempotency-key",
    "openai-beta",
    "originator",
    "session-id",
    "session_id",
    "thread-id",
    "user-agent",
    "x-client-request-id",
    "x-goog-api-client",
    "x-request-id",
];
/// The same, by prefix.
const ALLOWED_HEADER_PREFIXES: [&str; 2] = ["x-codex-", "x-stainless-"];
/// Headers about the body, which the gateway rewrites, or about the route of the request.
const GATEWAY_HEADERS: [&str; 9] = [
    "content-length",
    "content-type",
    "content-encoding",
    "accept-encoding",
    "expect",
    "forwarded",
    "via",
    "x-real-ip",
    // Selects the parts of the response, and could drop its usage.
    "x-goog-fieldmask",
];
/// Bytes of a value that is sent. Longer values are dropped.
const VALUE_BYTES: usize = 4 * 1024;
/// How many names an administrator may add.
const MAX_EXTRA_HEADERS: usize = 32;
/// Headers of a response about the provider's connection or host, or about the account of the credential.
const DROPPED_RESPONSE_HEADERS: [&str; 9] = [
    "content-length",
    "content-encoding",
    "set-cookie",
    "alt-svc",
    "strict-transport-security",
    "server",
    "openai-organization",
    "openai-project",
    "anthropic-organization-id",
];

/// Additional names of headers that are sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedHeaders(HashSet<HeaderName>);

impl AllowedHeaders {
    /// Allows these names. Err: a name is invalid, or must never be sent.
    pub fn new(names: &[String]) -> Result<Self, String> {
        if names.len() > MAX_EXTRA_HEADERS {
            return Err(format!("{} additional headers are given; at most {MAX_EXTRA_HEADERS} are allowed", names.len()));
        }
        let read = |name: &String| {
            let name = HeaderName::try_from(name.as_str()).map_err(|_| format!("{name:?} is not a valid header name"))?;
            let ours = is_never_forwarded(name.as_str()) || GATEWAY_HEADERS.contains(&name.as_str()) || is_route_header(name.as_str());
            if ours {
                Err(format!("{name} is never sent to a provider: Spillway sets it, or it changes the counted usage"))
            } else {
                Ok(name)
            }
        };
        names.iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    fn has(&self, name: &HeaderName) -> bool {
        let text = name.as_str();
        ALLOWED_HEADERS.contains(&text) || ALLOWED_HEADER_PREFIXES.iter().any(|prefix| text.starts_with(prefix)) || self.0.contains(name)
    }
}

/// Whether the header is about proxies on the route.
fn is_route_header(name: &str) -> bool {
    ["x-forwarded-", "proxy-"].iter().any(|prefix| name.starts_with(prefix))
}

/// The headers of a call for the provider, without the credential. `has_body`: the body is JSON in UTF-8.
pub fn request_headers(client: &HeaderMap, allowed: &AllowedHeaders, has_body: bool) -> HeaderMap {
    let named = connection_names(client);
    let mut sent = HeaderMap::with_capacity(client.len());
    for (name, value) in client {
        if allowed.has(name) && value.len() <= VALUE_BYTES && !named.contains(name) {
            sent.append(name.clone(), value.clone());
        }
    }
    if has_body {
        // With the client's content type a provider could read another body than the one that was counted.
        sent.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    // A compressed response could not be metered.
    sent.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    sent
}

/// The headers of a response for the client.
pub fn response_headers(provider: &HeaderMap, room: Option<&LimitRoom>) -> HeaderMap {
    let named = connection_names(provider);
    let mut passed = HeaderMap::with_capacity(provider.len() + 3);
    for (name, value) in provider {
        let text = name.as_str();
        let budget = text.starts_with("x-budget-");
        if !HOP_BY_HOP_HEADERS.contains(&text) && !DROPPED_RESPONSE_HEADERS.contains(&text) && !named.contains(name) && !budget {
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

/// The headers that `Connection` names. They concern the connection only.
fn connection_names(headers: &HeaderMap) -> Vec<HeaderName> {
    let all = headers.get_all(header::CONNECTION).into_iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|value| value.split(',')).filter_map(|name| HeaderName::try_from(name.trim()).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::headers::CREDENTIAL_HEADERS;

    fn map(all: &[(&'static str, &'static str)]) -> HeaderMap {
        all.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    /// Headers that ask a provider, or a proxy before it, for something that is not counted.
    const STEERING: [&str; 25] = [
        "x-goog-fieldmask",
        "x-http-method-override",
        "x-method-override",
        "x-original-url",
        "x-rewrite-url",
        "x-portkey-custom-host",
        "x-portkey-config",
        "x-portkey-api-key",
        "helicone-target-url",
        "helicone-auth",
        "x-litellm-api-key",
        "ocp-apim-subscription-key",
        "x-auth-token",
        "x-session-token",
        "x-functions-key",
        "x-amz-security-token",
        "x-goog-encode-response-if-executable",
        "x-goog-request-params",
        "x-client-ip",
        "true-client-ip",
        "cf-connecting-ip",
        "range",
        "if-none-match",
        "x-forwarded-for",
        "x-invented-by-an-agent",
    ];

    #[test]
    fn only_what_is_allowed_goes_out() {
        let kept = [
            ("anthropic-version", "2023-06-01"),
            ("anthropic-beta", "x"),
            ("user-agent", "u"),
            ("x-stainless-lang", "python"),
            ("x-codex-turn-state", "t"),
            ("session-id", "s"),
        ];
        let mut client = map(&kept);
        let dropped = HOP_BY_HOP_HEADERS.iter().chain(&CREDENTIAL_HEADERS).chain(&GATEWAY_HEADERS).chain(&STEERING).chain(&[
            "host",
            "spillway-item",
            "x-of-hop",
        ]);
        for name in dropped {
            client.insert(HeaderName::from_static(name), HeaderValue::from_static("secret"));
        }
        client.insert(header::CONNECTION, HeaderValue::from_static("close, X-Of-Hop, X-Codex-Named"));
        client.insert(HeaderName::from_static("x-codex-named"), HeaderValue::from_static("of the connection"));
        client.insert(HeaderName::from_static("x-codex-long"), HeaderValue::try_from("x".repeat(4097)).expect("a value"));
        let mut expected = map(&kept);
        expected.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        assert_eq!(request_headers(&client, &AllowedHeaders::default(), false), expected);
        client.append(header::CONTENT_TYPE, HeaderValue::from_static("application/json; charset=utf-7"));
        expected.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        assert_eq!(request_headers(&client, &AllowedHeaders::default(), true), expected);
    }

    #[test]
    fn an_administrator_may_allow_more_but_nothing_that_spillway_says() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let allowed = AllowedHeaders::new(&names(&["X-Team"])).expect("names");
        let client = map(&[("x-team", "blue"), ("x-other", "red")]);
        let sent = request_headers(&client, &allowed, false);
        assert!(sent.contains_key("x-team") && !sent.contains_key("x-other"));
        for name in ["authorization", "Host", "x-goog-fieldmask", "content-type", "x-forwarded-for", "spillway-item", "a b"] {
            AllowedHeaders::new(&names(&[name])).expect_err(name);
        }
    }

    #[test]
    fn an_answer_says_what_is_left_and_a_provider_cannot() {
        let provider =
            map(&[("content-type", "text/event-stream"), ("set-cookie", "a=b"), ("x-budget-remaining", "9"), ("request-id", "r")]);
        assert_eq!(response_headers(&provider, None), map(&[("content-type", "text/event-stream"), ("request-id", "r")]));
        let kept =
            [("request-id", "r"), ("openai-processing-ms", "9"), ("anthropic-ratelimit-tokens-remaining", "9"), ("retry-after", "1")];
        let mut provider = map(&kept);
        for name in ["openai-organization", "openai-project", "anthropic-organization-id", "set-cookie", "server"] {
            provider.insert(HeaderName::from_static(name), HeaderValue::from_static("of the account"));
        }
        assert_eq!(response_headers(&provider, None), map(&kept), "nothing of the account or its provider's hosts");
        let room = LimitRoom {
            budget: "Budget/default".into(),
            name: "day".into(),
            limit: 100,
            used: 20,
            held: 30,
            left: 50,
            resets_at: Some(1_700_000_000_500),
        };
        let passed = response_headers(&HeaderMap::new(), Some(&room));
        let number = |name: &str| passed.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        assert_eq!(number("x-budget-limit").as_deref(), Some("100"));
        assert_eq!((number("x-budget-remaining").as_deref(), number("x-budget-reset").as_deref()), (Some("50"), Some("1700000000")));
    }
}
