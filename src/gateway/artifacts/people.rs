//! The content of artifacts for people: `kubectl spillway artifact get` asks through the API server's proxy of the gateways' Service.
//!
//! The API server removes a person's own credential from a proxied request. A person shows the right to read the artifacts of a
//! namespace by a token of a ServiceAccount of the namespace, for the audience of artifacts alone: only who may create such tokens
//! there has one.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;

use super::{Transfer, content_answer, find, store, valid_name};
use crate::cluster::token::PodIdentity;
use crate::gateway::caller::may_review_token;
use crate::gateway::state::Gateway;
use crate::serve::{Connection, Peer};
use crate::wire::artifact::{PEOPLE_PATH_PREFIX, PERSON_TOKEN_HEADER, PersonalRead};
use crate::wire::{Code, Refusal};

/// The governor's path.
const GOVERNOR_READ_PATH: &str = "/governor/v1/artifacts/read";
/// Start of the user names of ServiceAccounts.
const ACCOUNT_PREFIX: &str = "system:serviceaccount:";

/// Answers `GET /people/v1/artifacts/{namespace}/{item}/{name}`.
pub async fn answer(gateway: &Arc<Gateway>, request: Request) -> Result<Response, Refusal> {
    let path = request.uri().path().strip_prefix(PEOPLE_PATH_PREFIX).unwrap_or_default();
    let parts: Vec<String> = path.split('/').map(str::to_owned).collect();
    let Ok([namespace, item, name]) = <[String; 3]>::try_from(parts) else {
        return Err(Refusal::new(Code::NoSuchCall, format!("the path is {PEOPLE_PATH_PREFIX}NAMESPACE/ITEM/NAME")));
    };
    if request.method() != http::Method::GET {
        return Err(Refusal::new(Code::WrongMethod, "people only read artifacts"));
    }
    let peer = request.extensions().get::<Peer>().map(|peer| peer.0.to_string()).unwrap_or_default();
    let holder = gateway.people.review(&bearer(request.headers())?, || may_review_token(gateway, &peer)).await;
    let holder = holder.and_then(|holder| may_read(&holder.user, &namespace).map(|()| holder));
    if let Some(connection) = request.extensions().get::<Connection>() {
        match &holder {
            // The API server sends the requests of all people on its connections.
            Ok(_) => connection
                .admit(&namespace)
                .map_err(|_| Refusal::new(Code::TooManyCalls, "too many connections; try again").retry_after(1))?,
            Err(refusal) if refusal.code.is_retryable() => {}
            Err(_) => connection.refuse(),
        }
    }
    let person = PodIdentity { namespace: namespace.clone(), name: holder?.user, ..PodIdentity::default() };
    let store = store(gateway)?;
    // Many people may have tokens of one account: each artifact counts by itself.
    let slot = gateway.artifacts.slots.take(&namespace, &format!("people/{namespace}/{item}/{name}")).await?;
    let asked = PersonalRead { namespace, item, name: valid_name(&name)?.to_owned() };
    let found = find(store, || gateway.governor.call_json(GOVERNOR_READ_PATH, None, &asked)).await?;
    Ok(content_answer(Transfer { gateway: gateway.clone(), pod: person, revoked: None }, found, slot))
}

/// The token, as a reviewer expects it.
fn bearer(headers: &HeaderMap) -> Result<HeaderMap, Refusal> {
    let token = headers.get(PERSON_TOKEN_HEADER).and_then(|token| HeaderValue::try_from(format!("Bearer {}", token.to_str().ok()?)).ok());
    let token = token.ok_or_else(|| Refusal::new(Code::NoToken, format!("the call has no token (header {PERSON_TOKEN_HEADER})")))?;
    Ok([(header::AUTHORIZATION, token)].into_iter().collect())
}

/// Whether a user is a ServiceAccount of the namespace.
fn may_read(user: &str, namespace: &str) -> Result<(), Refusal> {
    let own = user.strip_prefix(ACCOUNT_PREFIX).and_then(|rest| rest.split_once(':')).map(|(of, _)| of);
    if own == Some(namespace) {
        return Ok(());
    }
    let message =
        format!("the token is of {user:?}: the artifacts of namespace {namespace:?} are read with a token of a ServiceAccount there");
    Err(Refusal::new(Code::NotAllowed, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_reads_the_artifacts_of_its_namespace_and_no_other() {
        assert!(may_read("system:serviceaccount:team:default", "team").is_ok());
        for user in
            ["system:serviceaccount:other:team", "system:serviceaccount:team", "team", "alice", "system:serviceaccount:teams:default"]
        {
            assert!(may_read(user, "team").is_err_and(|refusal| refusal.code == Code::NotAllowed), "{user}");
        }
    }

    #[test]
    fn the_token_is_in_a_header_that_the_api_server_passes_on() {
        let headers = [(http::HeaderName::from_static(PERSON_TOKEN_HEADER), HeaderValue::from_static("t"))].into_iter().collect();
        assert_eq!(bearer(&headers).expect("a token")[header::AUTHORIZATION], "Bearer t");
        assert_eq!(bearer(&HeaderMap::new()).err().map(|refusal| refusal.code), Some(Code::NoToken));
    }
}
