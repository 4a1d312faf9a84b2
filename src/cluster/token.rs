//! Whose token it is: asked of the API server, and remembered for a short time.
//!
//! A remembered answer may be older than the end of a token's pod; what revokes an agent at once is the governor's own
//! table, not this.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use kube::api::PostParams;
use kube::{Api, Client};
use sha2::{Digest, Sha256};

use super::clock::BootTime;
use super::together::Together;
use crate::wire::{Code, Refusal};

/// How long a yes is remembered.
const YES: Duration = Duration::from_secs(30);
/// One that is needed again shortly before its end is renewed beside the call that needs it: no call of who calls often waits
/// for the API server.
const RENEWED: Duration = Duration::from_secs(25);
/// How long a no is: a flood of bad tokens must not become a flood of reviews.
const NO: Duration = Duration::from_secs(5);
/// Answers remembered at once.
const REMEMBERED: usize = 20_000;

/// Who shows a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The user, as `system:serviceaccount:NAMESPACE:NAME`.
    pub user: String,
    /// The pod that the token is bound to.
    pub pod: Option<PodIdentity>,
}

/// A pod that a token is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodIdentity {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

type Answer = Result<Holder, Refusal>;

/// The digest of a token.
type Hash = [u8; 32];

/// Asks about tokens for one audience: once for all who show the same one at the same time, as hundreds of calls do whose token
/// was remembered for long enough.
pub struct Reviewer {
    api: Api<TokenReview>,
    audience: &'static str,
    known: Arc<Known>,
    asking: Together<Hash, Answer>,
}

/// Answers, and since when they are known.
#[derive(Default)]
struct Known(Mutex<HashMap<Hash, (BootTime, Answer)>>);

impl Reviewer {
    /// A reviewer of tokens for `audience`.
    pub fn new(client: Client, audience: &'static str) -> Self {
        Self { api: Api::all(client), audience, known: Arc::default(), asking: Together::default() }
    }

    /// Who shows the bearer token in these headers. `may_ask` is asked before the API server is: who shows token after token
    /// must not make us flood it.
    pub async fn review(&self, headers: &http::HeaderMap, may_ask: impl FnOnce() -> Result<(), Refusal>) -> Answer {
        let header = headers.get(http::header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let Some(token) = header.strip_prefix("Bearer ").map(str::trim).filter(|token| !token.is_empty()) else {
            return Err(Refusal::new(Code::NoToken, "no bearer token came with the call (header Authorization: Bearer ...)"));
        };
        let hash: Hash = Sha256::digest(token.as_bytes()).into();
        if let Some((answer, age)) = self.known.remembered(&hash) {
            if age >= RENEWED {
                self.asking.renew(hash, || self.ask(hash, token));
            }
            return answer;
        }
        let ask = || {
            // Who was vouched for lately is no stranger: its renewal must not wait behind somebody's flood from the same address.
            if !self.known.was_vouched_for(&hash) {
                may_ask()?;
            }
            Ok::<_, Refusal>(self.ask(hash, token))
        };
        self.asking.ask(hash, ask).await?
    }

    fn ask(&self, hash: Hash, token: &str) -> impl Future<Output = Answer> + Send + use<> {
        let (api, audience, known, token) = (self.api.clone(), self.audience, self.known.clone(), token.to_owned());
        async move {
            let answer = ask(&api, audience, &token).await;
            // Only what the API server said is remembered, not that it said nothing.
            if !answer.as_ref().is_err_and(|refusal| refusal.code.passes()) {
                known.remember(hash, answer.clone());
            }
            answer
        }
    }
}

impl Known {
    /// The answer, and its age.
    fn remembered(&self, hash: &Hash) -> Option<(Answer, Duration)> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, answer) = known.get(hash)?;
        let (keep, age) = (if answer.is_ok() { YES } else { NO }, since.elapsed());
        (age < keep).then(|| (answer.clone(), age))
    }

    fn was_vouched_for(&self, hash: &Hash) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(hash).is_some_and(|(_, answer)| answer.is_ok())
    }

    fn remember(&self, hash: Hash, answer: Answer) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED {
            known.retain(|_, (since, answer)| since.elapsed() < if answer.is_ok() { 4 * YES } else { NO });
        }
        if known.len() < REMEMBERED {
            known.insert(hash, (BootTime::now(), answer));
        }
    }
}

async fn ask(api: &Api<TokenReview>, audience: &str, token: &str) -> Answer {
    let spec = TokenReviewSpec { token: token.to_owned(), audiences: Some(vec![audience.to_owned()]) };
    let review = TokenReview { spec, ..TokenReview::default() };
    match api.create(&PostParams::default(), &review).await {
        Ok(review) => judge(review, audience),
        Err(error) => {
            tracing::warn!(%error, "a token could not be reviewed");
            Err(Refusal::away("the API server did not answer; try again"))
        }
    }
}

fn judge(review: TokenReview, audience: &str) -> Answer {
    let status = review.status.unwrap_or_default();
    if status.authenticated != Some(true) {
        let why = status.error.unwrap_or_default();
        // The API server tells a wrong audience apart in words only.
        let code = if why.contains("audience") { Code::WrongAudience } else { Code::InvalidToken };
        return Err(Refusal::new(code, format!("the API server does not vouch for this token for the audience {audience}: {why}")));
    }
    if !status.audiences.iter().flatten().any(|one| one == audience) {
        return Err(Refusal::new(Code::WrongAudience, format!("the token is not for the audience {audience}")));
    }
    let user = status.user.unwrap_or_default();
    Ok(Holder { pod: pod(&user), user: user.username.unwrap_or_default() })
}

fn pod(user: &UserInfo) -> Option<PodIdentity> {
    let extra = |key: &str| user.extra.as_ref()?.get(&format!("authentication.kubernetes.io/{key}"))?.first().cloned();
    let namespace = user.username.as_deref()?.strip_prefix("system:serviceaccount:")?.split(':').next()?.to_owned();
    Some(PodIdentity { namespace, name: extra("pod-name")?, uid: extra("pod-uid")? })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::json;
    use tokio::sync::Semaphore;

    use super::*;

    fn judged(status: serde_json::Value) -> Answer {
        judge(serde_json::from_value(json!({"spec": {"token": "t"}, "status": status})).expect("a review"), "spillway.dev/gateway")
    }

    #[test]
    fn a_bound_token_names_its_pod() {
        let user = json!({"username": "system:serviceaccount:demo:default", "extra": {"authentication.kubernetes.io/pod-name": ["a"], "authentication.kubernetes.io/pod-uid": ["u"]}});
        let got = judged(json!({"authenticated": true, "audiences": ["spillway.dev/gateway"], "user": user}));
        let pod = PodIdentity { namespace: "demo".into(), name: "a".into(), uid: "u".into() };
        assert_eq!(got, Ok(Holder { user: "system:serviceaccount:demo:default".into(), pod: Some(pod) }));
    }

    #[test]
    fn what_is_not_vouched_for_is_refused_with_its_reason() {
        let code = |status| judged(status).expect_err("a refusal").code;
        assert_eq!(code(json!({})), Code::InvalidToken);
        assert_eq!(code(json!({"error": "token has expired"})), Code::InvalidToken);
        assert_eq!(code(json!({"error": "token audiences [\"a\"] is invalid for the target audiences"})), Code::WrongAudience);
        assert_eq!(code(json!({"authenticated": true, "audiences": ["other"], "user": {}})), Code::WrongAudience);
    }

    /// A reviewer whose API server counts questions and vouches when it is let; and headers with a token that was vouched for
    /// so long ago.
    fn reviewer(age: Duration) -> (Reviewer, Arc<(AtomicUsize, Semaphore)>, http::HeaderMap) {
        let server = Arc::new((AtomicUsize::new(0), Semaphore::new(0)));
        let own = server.clone();
        let service = tower::service_fn(move |_: http::Request<kube::client::Body>| {
            own.0.fetch_add(1, Ordering::SeqCst);
            let own = own.clone();
            async move {
                own.1.acquire().await.expect("it is open").forget();
                let review = json!({"spec": {}, "status": {"authenticated": true, "audiences": ["a"], "user": {"username": "u"}}});
                Ok::<_, std::convert::Infallible>(http::Response::new(kube::client::Body::from(review.to_string().into_bytes())))
            }
        });
        let reviewer = Reviewer::new(Client::new(service, "default"), "a");
        let since = BootTime::default().after(BootTime::now().since(BootTime::default()).saturating_sub(age));
        let holder = Holder { user: "u".into(), pod: None };
        reviewer.known.0.lock().expect("no panic").insert(Sha256::digest("t").into(), (since, Ok(holder)));
        let headers = [(http::header::AUTHORIZATION, http::HeaderValue::from_static("Bearer t"))].into_iter().collect();
        (reviewer, server, headers)
    }

    #[tokio::test]
    async fn who_calls_often_waits_for_no_renewal() {
        let (reviewer, server, headers) = reviewer(RENEWED);
        for _ in 0..3 {
            reviewer.review(&headers, || Ok(())).await.expect("it is remembered");
            tokio::task::yield_now().await;
        }
        assert_eq!(server.0.load(Ordering::SeqCst), 1, "one renewal at a time");
        server.1.add_permits(1);
        let hash: Hash = Sha256::digest("t").into();
        while reviewer.known.remembered(&hash).is_none_or(|(_, age)| age >= RENEWED) {
            tokio::task::yield_now().await;
        }
        reviewer.review(&headers, || Ok(())).await.expect("it is fresh");
        assert_eq!(server.0.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn nobody_is_believed_longer_than_that() {
        let (reviewer, server, headers) = reviewer(YES);
        let mut review = Box::pin(reviewer.review(&headers, || Ok(())));
        assert!(futures::poll!(&mut review).is_pending());
        server.1.add_permits(1);
        review.await.expect("it is asked anew");
        assert_eq!(server.0.load(Ordering::SeqCst), 1);
    }
}
