//! Checks by SubjectAccessReview whether a user may register agents outside the cluster. Answers are cached for a short
//! time, so that the removal of a right takes effect soon.

use std::time::Duration;

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use sha2::{Digest, Sha256};

use super::token::Holder;
use super::ttl_cache::TtlCache;
use crate::api::GROUP;
use crate::wire::{Code, Refusal};

/// How long an allowed review is cached.
const ALLOWED_TTL: Duration = Duration::from_secs(30);
/// How long a denied review is cached.
const DENIED_TTL: Duration = Duration::from_secs(5);
/// How long a review may take, as for reviews of tokens.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(5);
/// Cached reviews.
const MAX_CACHED_REVIEWS: usize = 20_000;
/// The required right: this verb on this subresource of the pool.
const EXTERNAL_AGENT_VERB: &str = "create";
const EXTERNAL_AGENT_RESOURCE: (&str, &str) = ("agentpools", "external");

type Answer = Result<(), Refusal>;

/// Reviews the rights of users. Concurrent calls that need the same answer share one review.
pub struct Authorizer {
    api: Api<SubjectAccessReview>,
    known: TtlCache<[u8; 32], Answer>,
}

impl Authorizer {
    /// The cache is empty.
    pub fn new(client: Client) -> Self {
        let keep = |answer: &Answer| match answer {
            Ok(()) => ALLOWED_TTL,
            Err(refusal) if refusal.code.is_retryable() => Duration::ZERO,
            Err(_) => DENIED_TTL,
        };
        Self { api: Api::all(client), known: TtlCache::new(keep, MAX_CACHED_REVIEWS) }
    }

    /// Whether `holder` may register agents of this pool. `may_ask` is called before a review, so that a caller that
    /// names pool after pool cannot make this process flood the API server.
    pub async fn may_register(
        &self,
        holder: &Holder,
        namespace: &str,
        pool: &str,
        may_ask: impl FnOnce() -> Result<(), Refusal>,
    ) -> Answer {
        let review = review(holder, namespace, pool);
        let user = holder.user.clone();
        let ask = |before: Option<&Answer>| {
            if !matches!(before, Some(Ok(()))) {
                may_ask()?;
            }
            let (api, review) = (self.api.clone(), review.clone());
            Ok::<_, Refusal>(async move { ask(&api, &review, &user).await })
        };
        self.known.get(digest(holder, namespace, pool), ask).await?
    }
}

/// The review of this right.
fn review(holder: &Holder, namespace: &str, pool: &str) -> SubjectAccessReview {
    let (resource, subresource) = EXTERNAL_AGENT_RESOURCE;
    let claims = holder.claims.as_deref().cloned().unwrap_or_default();
    let text = |text: &str| Some(text.to_owned());
    let attributes = ResourceAttributes {
        group: text(GROUP),
        resource: text(resource),
        subresource: text(subresource),
        verb: text(EXTERNAL_AGENT_VERB),
        namespace: text(namespace),
        name: text(pool),
        ..ResourceAttributes::default()
    };
    let spec = SubjectAccessReviewSpec {
        user: text(&holder.user),
        uid: claims.uid,
        groups: Some(claims.groups),
        extra: Some(claims.extra),
        resource_attributes: Some(attributes),
        ..SubjectAccessReviewSpec::default()
    };
    SubjectAccessReview { spec, ..SubjectAccessReview::default() }
}

/// The digest of everything that the answer depends on. Each part has its length, so that parts cannot run together.
fn digest(holder: &Holder, namespace: &str, pool: &str) -> [u8; 32] {
    let mut hash = Sha256::new();
    let mut add = |part: &str| {
        hash.update(part.len().to_le_bytes());
        hash.update(part.as_bytes());
    };
    [holder.user.as_str(), namespace, pool].into_iter().for_each(&mut add);
    if let Some(claims) = &holder.claims {
        add(claims.uid.as_deref().unwrap_or_default());
        add(&claims.groups.len().to_string());
        claims.groups.iter().for_each(|group| add(group));
        for (key, values) in &claims.extra {
            add(key);
            add(&values.len().to_string());
            values.iter().for_each(|value| add(value));
        }
    }
    hash.finalize().into()
}

async fn ask(api: &Api<SubjectAccessReview>, review: &SubjectAccessReview, user: &str) -> Answer {
    let why = match tokio::time::timeout(REVIEW_TIMEOUT, api.create(&PostParams::default(), review)).await {
        Ok(Ok(answer)) => match answer.status.as_ref().and_then(|status| status.evaluation_error.clone()) {
            // An authorizer that failed denies by default. That does not prove that the user has no right.
            Some(why) if answer.status.as_ref().is_some_and(|status| !status.allowed && status.denied != Some(true)) => {
                tracing::warn!(why, user, "an authorizer of the cluster could not evaluate the rights of a user");
                return Err(Refusal::unavailable(format!(
                    "an authorizer of the cluster could not evaluate the rights of {user}; try again"
                )));
            }
            Some(_) | None => return judge(answer, user),
        },
        Ok(Err(kube::Error::Api(status))) if status.code == 403 => {
            tracing::error!(
                why = %status.message,
                "the gateway may not create subjectaccessreviews: set the chart's value gateway.external.enabled"
            );
            return Err(Refusal::unavailable(
                "the gateway may not create subjectaccessreviews, so it cannot check the user's rights: see its log",
            ));
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no answer".to_owned(),
    };
    tracing::warn!(why, "cannot review the rights of a user");
    Err(Refusal::unavailable("the API server did not answer; try again"))
}

fn judge(answer: SubjectAccessReview, user: &str) -> Answer {
    let status = answer.status.unwrap_or_default();
    if status.allowed && status.denied != Some(true) {
        return Ok(());
    }
    let attributes = answer.spec.resource_attributes.unwrap_or_default();
    let (pool, namespace) = (attributes.name.unwrap_or_default(), attributes.namespace.unwrap_or_default());
    let (resource, subresource) = EXTERNAL_AGENT_RESOURCE;
    let message = format!(
        "{user} may not {EXTERNAL_AGENT_VERB} {resource}/{subresource} ({GROUP}) of pool {pool} in namespace {namespace}. Agents outside \
         the cluster need this right: create a RoleBinding in that namespace to the ClusterRole spillway-external"
    );
    Err(Refusal::new(Code::NotAllowed, message))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;
    use crate::cluster::token::Claims;
    use http_body_util::BodyExt as _;
    use serde_json::json;

    fn holder(user: &str, groups: &[&str]) -> Holder {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        Holder { user: user.into(), pod: None, claims: Some(Arc::new(Claims { groups, ..Claims::default() })) }
    }

    #[test]
    fn the_question_names_the_user_its_groups_and_the_pool() {
        let asked = serde_json::to_value(review(&holder("alice", &["dev"]), "team", "laptops").spec).expect("JSON");
        assert_eq!((&asked["user"], &asked["groups"]), (&json!("alice"), &json!(["dev"])));
        let expected = json!({"group": "spillway.dev", "resource": "agentpools", "subresource": "external", "verb": "create", "namespace": "team", "name": "laptops"});
        assert_eq!(asked["resourceAttributes"], expected);
    }

    #[test]
    fn an_answer_is_remembered_for_nobody_else() {
        let of = |user: &str, groups: &[&str], namespace: &str, pool: &str| digest(&holder(user, groups), namespace, pool);
        let one = of("alice", &["a", "b"], "n", "p");
        assert_eq!(one, of("alice", &["a", "b"], "n", "p"));
        for other in [
            of("alicea", &["b"], "n", "p"),
            of("alice", &["ab"], "n", "p"),
            of("alice", &["a"], "n", "p"),
            of("alice", &["a", "b"], "np", ""),
            of("alice", &["a", "b"], "n", "q"),
        ] {
            assert_ne!(one, other);
        }
    }

    /// A cluster that gives this answer, and counts reviews.
    fn cluster(allowed: Arc<AtomicBool>, asked: Arc<AtomicUsize>) -> Client {
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            asked.fetch_add(1, Ordering::SeqCst);
            let allowed = allowed.load(Ordering::SeqCst);
            async move {
                let body = request.into_body().collect().await.expect("a body").to_bytes();
                let mut review: serde_json::Value = serde_json::from_slice(&body).expect("a review");
                review["status"] = json!({"allowed": allowed});
                let body = kube::client::Body::from(review.to_string().into_bytes());
                Ok::<_, std::convert::Infallible>(http::Response::builder().status(201).body(body).expect("an answer"))
            }
        });
        Client::new(service, "n")
    }

    #[tokio::test]
    async fn a_right_that_is_taken_away_ends_what_it_allowed_soon() {
        let (allowed, asked) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
        let authorizer = Authorizer::new(cluster(allowed.clone(), asked.clone()));
        let alice = holder("alice", &["dev"]);
        let may = async || authorizer.may_register(&alice, "team", "laptops", || Ok(())).await.map_err(|refusal| refusal.code);
        assert_eq!((may().await, may().await, asked.load(Ordering::SeqCst)), (Ok(()), Ok(()), 1), "asked once for both");
        allowed.store(false, Ordering::SeqCst);
        authorizer.known.pass(ALLOWED_TTL);
        assert_eq!(may().await, Err(Code::NotAllowed), "half a minute later at the latest");
        let busy = || Err(Refusal::new(Code::TooManyCalls, "busy"));
        authorizer.known.pass(DENIED_TTL);
        let refused = authorizer.may_register(&alice, "team", "laptops", busy).await.expect_err("not asked");
        assert_eq!(refused.code, Code::TooManyCalls, "whose answer was no is a stranger");
    }

    #[tokio::test]
    async fn who_could_not_find_out_takes_nobodys_right_away() {
        for (status, body) in [
            (
                201,
                json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "metadata": {}, "spec": {},
                "status": {"allowed": false, "evaluationError": "the webhook does not answer"}}),
            ),
            (403, json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "Forbidden", "message": "no", "code": 403})),
        ] {
            let service = tower::service_fn(move |_: http::Request<kube::client::Body>| {
                let body = kube::client::Body::from(body.to_string().into_bytes());
                async move { Ok::<_, std::convert::Infallible>(http::Response::builder().status(status).body(body).expect("an answer")) }
            });
            let authorizer = Authorizer::new(Client::new(service, "n"));
            let refusal = authorizer.may_register(&holder("alice", &[]), "team", "laptops", || Ok(())).await.expect_err("not known");
            assert!(refusal.code.is_retryable(), "{status}: {refusal}");
        }
    }

    #[test]
    fn only_a_yes_is_one_and_a_no_says_what_is_missing() {
        let said = |status: serde_json::Value| {
            let mut answer = review(&holder("alice", &[]), "team", "laptops");
            answer.status = Some(serde_json::from_value(status).expect("a status"));
            judge(answer, "alice")
        };
        assert_eq!(said(json!({"allowed": true})), Ok(()));
        for no in [json!({"allowed": false}), json!({"allowed": true, "denied": true})] {
            let refusal = said(no).expect_err("a refusal");
            assert_eq!(refusal.code, Code::NotAllowed);
            for words in ["alice", "agentpools/external", "pool laptops", "namespace team", "spillway-external"] {
                assert!(refusal.message.contains(words), "{refusal}");
            }
        }
    }
}
