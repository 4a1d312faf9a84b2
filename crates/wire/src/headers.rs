//! Headers of a model call that are never forwarded. The pod's sidecar and the gateway drop the same ones. Each of them
//! may drop more.

/// Headers of one connection.
pub const HOP_BY_HOP_HEADERS: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// Headers with a client's credential, or with the account to charge. The credential of the team replaces them.
pub const CREDENTIAL_HEADERS: [&str; 10] = [
    "authorization",
    "x-api-key",
    "x-goog-api-key",
    "api-key",
    "cookie",
    "openai-organization",
    "openai-project",
    "x-goog-user-project",
    "x-goog-iam-authorization-token",
    "x-goog-authenticated-user-email",
];
/// Prefix of Spillway's own headers. No client may set them.
pub const OWN_HEADER_PREFIX: &str = "spillway-";

/// Whether a header is dropped: a header of the connection, of the client's credential, or of Spillway. Names are in
/// lower case, as in HTTP/2. The headers that `Connection` names are dropped too, by the caller, which has all headers.
pub fn is_never_forwarded(name: &str) -> bool {
    HOP_BY_HOP_HEADERS.contains(&name) || CREDENTIAL_HEADERS.contains(&name) || name == "host" || name.starts_with(OWN_HEADER_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_credential_is_carried_on_and_what_a_provider_needs_is() {
        for name in HOP_BY_HOP_HEADERS.iter().chain(&CREDENTIAL_HEADERS).chain(&["host", "spillway-item", "spillway-anything"]) {
            assert!(is_never_forwarded(name), "{name}");
        }
        for name in ["anthropic-version", "anthropic-beta", "content-type", "content-length", "user-agent", "accept", "x-request-id"] {
            assert!(!is_never_forwarded(name), "{name}");
        }
    }

    #[test]
    fn what_we_say_to_each_other_is_never_taken_from_a_client() {
        use crate::governor::{
            CALLER_AGENT_UID_HEADER, CALLER_NAMESPACE_HEADER, CALLER_POD_HEADER, CALLER_POOL_HEADER, CALLER_UID_HEADER, CALLER_USER_HEADER,
            GATEWAY_HEADER, OWNER_EPOCH_HEADER,
        };
        let callers = [
            CALLER_NAMESPACE_HEADER,
            CALLER_POD_HEADER,
            CALLER_UID_HEADER,
            CALLER_AGENT_UID_HEADER,
            CALLER_USER_HEADER,
            CALLER_POOL_HEADER,
        ];
        let others = [
            GATEWAY_HEADER,
            OWNER_EPOCH_HEADER,
            crate::meter::ITEM_HEADER,
            crate::meter::CONVERSATION_HEADER,
            crate::external::EXTERNAL_HEADER,
        ];
        for name in callers.into_iter().chain(others) {
            assert!(is_never_forwarded(name), "{name}");
        }
    }
}
