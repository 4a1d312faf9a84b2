//! Reviews tokens at the API server, and caches the answers for a short time.
//!
//! A cached answer may be older than the end of the token's pod. The governor's own table revokes an agent at once, not
//! this cache.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use kube::api::PostParams;
use kube::{Api, Client};
use sha2::{Digest, Sha256};

use super::ttl_cache::TtlCache;
use crate::wire::{Code, Refusal};

/// How long a valid token is cached.
const VALID_TOKEN_TTL: Duration = Duration::from_secs(30);
/// How long an invalid token is cached, so that a flood of bad tokens does not become a flood of reviews.
const INVALID_TOKEN_TTL: Duration = Duration::from_secs(5);
/// How long a review may take. Pods wait ten seconds for an answer. The answer that the API server hangs must come
/// earlier: else pods treat the gateway as gone, and end when that lasts.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(5);
/// Cached reviews.
const MAX_CACHED_REVIEWS: usize = 20_000;
/// The most bytes of a user's groups and extra claims.
const MAX_CLAIMS_BYTES: usize = 16 * 1024;

/// The owner of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The user, as `system:serviceaccount:NAMESPACE:NAME`.
    pub user: String,
    /// The pod that the token is bound to.
    pub pod: Option<PodIdentity>,
    /// The other claims of the user, for an authorizer. None for a pod's token, because only the pod counts.
    pub claims: Option<Arc<Claims>>,
}

/// The claims about a user that an authorizer needs in addition to the name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// The user's uid.
    pub uid: Option<String>,
    /// The groups of the user.
    pub groups: Vec<String>,
    /// Extra claims of the authenticator.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// The calling agent: the pod that a token is bound to, or the identity that a call from outside the cluster claims.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodIdentity {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Set for a call from outside the cluster: namespace, name and uid are only claimed, and this user is proved.
    pub external: Option<ExternalUser>,
}

/// The user of a call from outside the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalUser {
    /// The user of its token.
    pub user: String,
    /// The pool for which that user may register agents.
    pub pool: String,
    /// The caller has no Agent yet, and requests one.
    pub enrols: bool,
}

type Answer = Result<Holder, Refusal>;

/// The digest of a token.
type Hash = [u8; 32];

/// Reviews tokens for one audience. Concurrent calls with the same token share one review: hundreds of calls may come
/// when a cached answer expires.
pub struct Reviewer {
    api: Api<TokenReview>,
    audience: &'static str,
    /// Additional audiences that are accepted in tokens of users that are not pods.
    user_audiences: Vec<String>,
    known: TtlCache<Hash, Answer>,
}

impl Reviewer {
    /// A reviewer of tokens for `audience`.
    pub fn new(client: Client, audience: &'static str) -> Self {
        // Only answers of the API server are cached, not its failures.
        let keep = |answer: &Answer| match answer {
            Ok(_) => VALID_TOKEN_TTL,
            Err(refusal) if refusal.code.is_retryable() => Duration::ZERO,
            Err(_) => INVALID_TOKEN_TTL,
        };
        Self { api: Api::all(client), audience, user_audiences: Vec::new(), known: TtlCache::new(keep, MAX_CACHED_REVIEWS) }
    }

    /// Also accepts tokens for these audiences, of users that are not pods: an API server accepts tokens of an identity
    /// provider only for its own audiences.
    pub fn with_user_audiences(self, audiences: Vec<String>) -> Self {
        Self { user_audiences: audiences, ..self }
    }

    /// The owner of the bearer token in these headers. `may_ask` is called before a review, so that a caller that sends
    /// token after token cannot make this process flood the API server.
    pub async fn review(&self, headers: &http::HeaderMap, may_ask: impl FnOnce() -> Result<(), Refusal>) -> Answer {
        let header = headers.get(http::header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let Some(token) = header.strip_prefix("Bearer ").map(str::trim).filter(|token| !token.is_empty()) else {
            return Err(Refusal::new(Code::NoToken, "the call has no bearer token (header Authorization: Bearer ...)"));
        };
        let ask = |before: Option<&Answer>| {
            // A token that was valid lately is not unknown: its renewal must not wait behind a flood from the same
            // address.
            if !matches!(before, Some(Ok(_))) {
                may_ask()?;
            }
            let (api, audience, of_users, token) = (self.api.clone(), self.audience, self.user_audiences.clone(), token.to_owned());
            Ok::<_, Refusal>(async move { ask(&api, audience, &of_users, &token).await })
        };
        self.known.get(Sha256::digest(token.as_bytes()).into(), ask).await?
    }
}

async fn ask(api: &Api<TokenReview>, audience: &str, of_users: &[String], token: &str) -> Answer {
    let audiences = std::iter::once(audience).chain(of_users.iter().map(String::as_str)).map(str::to_owned).collect();
    let spec = TokenReviewSpec { token: token.to_owned(), audiences: Some(audiences) };
    let review = TokenReview { spec, ..TokenReview::default() };
    let why = match tokio::time::timeout(REVIEW_TIMEOUT, api.create(&PostParams::default(), &review)).await {
        Ok(Ok(review)) => return judge(review, audience, of_users),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no answer".to_owned(),
    };
    tracing::warn!(why, "cannot review a token");
    Err(Refusal::unavailable("the API server did not answer; try again"))
}

fn judge(review: TokenReview, audience: &str, of_users: &[String]) -> Answer {
    let status = review.status.unwrap_or_default();
    if status.authenticated != Some(true) {
        let why = status.error.unwrap_or_default();
        // Only the API server's message tells a wrong audience from other errors.
        let code = if why.contains("audience") { Code::WrongAudience } else { Code::InvalidToken };
        return Err(Refusal::new(code, format!("the API server does not accept this token for the audience {audience}: {why}")));
    }
    let user = status.user.unwrap_or_default();
    let pod = pod(&user);
    let is_for = |wanted: &str| status.audiences.iter().flatten().any(|one| one == wanted);
    // A pod's token for another audience, such as the API server's, is refused. So is a ServiceAccount's, because a
    // token for our audience can be requested for it.
    let of_account = user.username.as_deref().is_some_and(|name| name.starts_with("system:serviceaccount:"));
    if !is_for(audience) && (pod.is_some() || of_account || !of_users.iter().any(|one| is_for(one))) {
        return Err(Refusal::new(Code::WrongAudience, format!("the token is not for the audience {audience}")));
    }
    let claims = if pod.is_some() { None } else { Some(Arc::new(claims(&user)?)) };
    Ok(Holder { pod, user: user.username.unwrap_or_default(), claims })
}

/// The other claims of a user, if they are not too large.
fn claims(user: &UserInfo) -> Result<Claims, Refusal> {
    let claims =
        Claims { uid: user.uid.clone(), groups: user.groups.clone().unwrap_or_default(), extra: user.extra.clone().unwrap_or_default() };
    let said = claims.groups.iter().chain(claims.extra.keys()).chain(claims.extra.values().flatten()).map(String::len).sum::<usize>();
    if said > MAX_CLAIMS_BYTES {
        let message = format!("the groups and extra claims of the token's user have {said} bytes; at most {MAX_CLAIMS_BYTES} are allowed");
        return Err(Refusal::new(Code::NotAllowed, message));
    }
    Ok(claims)
}

fn pod(user: &UserInfo) -> Option<PodIdentity> {
    let extra = |key: &str| user.extra.as_ref()?.get(&format!("authentication.kubernetes.io/{key}"))?.first().cloned();
    let namespace = user.username.as_deref()?.strip_prefix("system:serviceaccount:")?.split(':').next()?.to_owned();
    Some(PodIdentity { namespace, name: extra("pod-name")?, uid: extra("pod-uid")?, external: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;
    use serde_json::json;

    fn judged(status: serde_json::Value) -> Answer {
        judged_of(status, &[])
    }

    fn judged_of(status: serde_json::Value, of_users: &[String]) -> Answer {
        judge(
            serde_json::from_value(json!({"spec": {"token": "t"}, "status": status})).expect("a review"),
            "spillway.dev/gateway",
            of_users,
        )
    }

    #[test]
    fn a_persons_token_for_another_audience_is_taken_where_that_is_said_and_a_pods_never() {
        let api = ["https://kubernetes.default.svc".to_owned()];
        let person = json!({"username": "spillway:alice", "groups": ["dev"]});
        let pods = json!({"username": "system:serviceaccount:demo:default", "extra": {"authentication.kubernetes.io/pod-name": ["a"], "authentication.kubernetes.io/pod-uid": ["u"]}});
        let status = |user: &serde_json::Value| json!({"authenticated": true, "audiences": api, "user": user});
        assert_eq!(judged_of(status(&person), &api).map(|holder| holder.user), Ok("spillway:alice".to_owned()));
        let account = json!({"username": "system:serviceaccount:demo:alice-laptop"});
        let others = ["another".to_owned()];
        for refused in [
            judged(status(&person)),
            judged_of(status(&pods), &api),
            judged_of(status(&account), &api),
            judged_of(status(&person), &others),
        ] {
            assert_eq!(refused.expect_err("refused").code, Code::WrongAudience);
        }
        let ours = json!({"authenticated": true, "audiences": ["spillway.dev/gateway"], "user": pods});
        assert!(judged_of(ours, &api).is_ok_and(|holder| holder.pod.is_some()));
    }

    #[tokio::test]
    async fn the_api_server_is_asked_for_every_audience_that_is_taken() {
        let asked = Arc::new(std::sync::Mutex::new(serde_json::Value::Null));
        let known = asked.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let known = known.clone();
            async move {
                let body = request.into_body().collect().await.expect("a body").to_bytes();
                let mut review: serde_json::Value = serde_json::from_slice(&body).expect("a review");
                *known.lock().expect("whole") = review["spec"]["audiences"].clone();
                review["status"] = json!({"authenticated": true, "audiences": ["b"], "user": {"username": "alice"}});
                let body = kube::client::Body::from(review.to_string().into_bytes());
                Ok::<_, std::convert::Infallible>(http::Response::builder().status(201).body(body).expect("an answer"))
            }
        });
        let reviewer = Reviewer::new(Client::new(service, "n"), "spillway.dev/gateway").with_user_audiences(vec!["b".into()]);
        let headers = [(http::header::AUTHORIZATION, "Bearer t".parse().expect("a header"))].into_iter().collect();
        assert_eq!(reviewer.review(&headers, || Ok(())).await.map(|holder| holder.user), Ok("alice".to_owned()));
        assert_eq!(*asked.lock().expect("whole"), json!(["spillway.dev/gateway", "b"]));
    }

    #[test]
    fn a_bound_token_names_its_pod() {
        let user = json!({"username": "system:serviceaccount:demo:default", "extra": {"authentication.kubernetes.io/pod-name": ["a"], "authentication.kubernetes.io/pod-uid": ["u"]}});
        let got = judged(json!({"authenticated": true, "audiences": ["spillway.dev/gateway"], "user": user}));
        let pod = PodIdentity { namespace: "demo".into(), name: "a".into(), uid: "u".into(), external: None };
        assert_eq!(got, Ok(Holder { user: "system:serviceaccount:demo:default".into(), pod: Some(pod), claims: None }));
    }

    #[test]
    fn of_who_is_no_pod_all_is_kept_that_an_authorizer_asks_for_and_not_without_bound() {
        let person = |groups: serde_json::Value| {
            let user = json!({"username": "alice", "uid": "7", "groups": groups, "extra": {"scopes": ["a", "b"]}});
            judged(json!({"authenticated": true, "audiences": ["spillway.dev/gateway"], "user": user}))
        };
        let claims =
            Claims { uid: Some("7".into()), groups: vec!["dev".into()], extra: [("scopes".into(), vec!["a".into(), "b".into()])].into() };
        assert_eq!(person(json!(["dev"])), Ok(Holder { user: "alice".into(), pod: None, claims: Some(Arc::new(claims)) }));
        let refusal = person(json!(["g".repeat(MAX_CLAIMS_BYTES)])).expect_err("too much");
        assert!(refusal.code == Code::NotAllowed && refusal.message.contains("groups"), "{refusal}");
    }

    #[test]
    fn what_is_not_vouched_for_is_refused_with_its_reason() {
        let code = |status| judged(status).expect_err("a refusal").code;
        assert_eq!(code(json!({})), Code::InvalidToken);
        assert_eq!(code(json!({"error": "token has expired"})), Code::InvalidToken);
        assert_eq!(code(json!({"error": "token audiences [\"a\"] is invalid for the target audiences"})), Code::WrongAudience);
        assert_eq!(code(json!({"authenticated": true, "audiences": ["other"], "user": {}})), Code::WrongAudience);
    }
}
