//! The turn of a write: so many of one namespace are on their way to the API server at once, and others' go beside them.
//!
//! The API server itself knows no namespaces: what one user sends it works on at the same time, and each write that it takes
//! makes all others slower. How many it takes without that is found out by how long they take ([`crate::policy::adaptive_limit`]).
//!
//! Each write that somebody waits for keeps those waiting that nobody waits for ([`super::background_writes`]).
//!
//! Not in turn: reads, watches, leases (leadership must not wait for anything), reviews of tokens.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::{Method, Request, Response, Uri};
use tower::BoxError;

use super::background_writes::{BackgroundWrite, ForegroundWrites};
use super::clock::BootTime;
use crate::policy::adaptive_limit::{AdaptiveLimit, MIN_WRITE_LIMIT};
use crate::serve::fair_semaphore::{Bounds, FairSemaphore};
use crate::telemetry::Metrics;

/// So many namespaces have all their writes on their way at once.
const NAMESPACES_AT_FULL_LIMIT: usize = 4;

/// A place is kept at most so long. A write that takes longer waits for something else than the API server's cores, as for a
/// webhook: its namespace's other writes shall not wait for that, too.
const MAX_PERMIT_HOLD: Duration = Duration::from_millis(500);

/// Who waited for longer is sent away, to decide again. That we lead was looked at before: a leader that stood still must not
/// send, when it goes on, what it decided under a lease that is another one's now. No longer than what is left of a lease when
/// its holder gives it up.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(5);

/// A layer that lets writes wait for their turn.
#[derive(Clone)]
pub struct AdaptiveLimitLayer {
    turns: FairSemaphore,
    adaptive_limit: Arc<Mutex<AdaptiveLimit>>,
    began: BootTime,
    metrics: Metrics,
    quiet: ForegroundWrites,
}

impl AdaptiveLimitLayer {
    /// Who waits is counted in `metrics`; that somebody writes, `quiet` knows.
    pub fn new(metrics: Metrics, quiet: ForegroundWrites) -> Self {
        let turns =
            FairSemaphore::new(Bounds { all: NAMESPACES_AT_FULL_LIMIT * MIN_WRITE_LIMIT, of_one: MIN_WRITE_LIMIT, waiting: usize::MAX });
        metrics.writes_at_once(MIN_WRITE_LIMIT);
        Self { turns, adaptive_limit: Arc::default(), began: BootTime::now(), metrics, quiet }
    }

    /// A write was made that began then.
    fn took(&self, began: BootTime) {
        let mut adaptive_limit = self.adaptive_limit.lock().unwrap_or_else(PoisonError::into_inner);
        let before = adaptive_limit.at_once();
        adaptive_limit.took(self.began.elapsed(), began.elapsed(), self.turns.are_wanted());
        let now = adaptive_limit.at_once();
        if now != before {
            self.turns.resize(NAMESPACES_AT_FULL_LIMIT * now, now);
            self.metrics.writes_at_once(now);
        }
    }
}

impl<S> tower::Layer<S> for AdaptiveLimitLayer {
    type Service = AdaptiveLimitService<S>;
    fn layer(&self, inner: S) -> AdaptiveLimitService<S> {
        AdaptiveLimitService { inner: Arc::new(tokio::sync::Mutex::new(inner)), adaptive_limit: self.clone() }
    }
}

/// The service that waits.
pub struct AdaptiveLimitService<S> {
    inner: Arc<tokio::sync::Mutex<S>>,
    adaptive_limit: AdaptiveLimitLayer,
}

impl<S> AdaptiveLimitService<S> {
    async fn send<B>(inner: Arc<tokio::sync::Mutex<S>>, request: Request<B>) -> Result<S::Response, S::Error>
    where
        S: tower::Service<Request<B>>,
    {
        let sending = {
            let mut inner = inner.lock().await;
            poll_fn(|cx| inner.poll_ready(cx)).await?;
            inner.call(request)
        };
        sending.await
    }
}

impl<S, B, R> tower::Service<Request<B>> for AdaptiveLimitService<S>
where
    S: tower::Service<Request<B>, Response = Response<R>, Error = BoxError> + Send + 'static,
    S::Future: Send + 'static,
    B: Send + 'static,
    R: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        // Whether it may be sent is asked when its turn has come.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (inner, adaptive_limit) = (self.inner.clone(), self.adaptive_limit.clone());
        Box::pin(async move {
            let Some(namespace) = whose(request.method(), request.uri()) else { return Self::send(inner, request).await };
            let _disturbs = request.extensions().get::<BackgroundWrite>().is_none().then(|| adaptive_limit.quiet.disturb());
            // As many may wait as want to.
            let asked = BootTime::now();
            let turn = adaptive_limit.turns.take(&namespace).await.ok();
            let began = BootTime::now();
            let waited = began.since(asked);
            adaptive_limit.metrics.write_waited(waited);
            if waited > PERMIT_TIMEOUT {
                return Err("its turn at the API server came too late, after those of its namespace's other writes".into());
            }
            let mut sending = Box::pin(Self::send(inner, request));
            let answered = tokio::time::timeout(MAX_PERMIT_HOLD, &mut sending).await.ok();
            drop(turn);
            let answer = match answered {
                Some(answer) => answer,
                None => sending.await,
            };
            // What is refused is refused at once, and says nothing of how long the others take.
            if answer.as_ref().is_ok_and(|answer| answer.status().is_success()) {
                adaptive_limit.took(began);
            }
            answer
        })
    }
}

/// The namespace whose turn a request takes; none: it takes none.
fn whose(method: &Method, uri: &Uri) -> Option<String> {
    let parts: Vec<&str> = uri.path().trim_matches('/').split('/').collect();
    let (namespace, resource) = match parts[..] {
        ["api", _, "namespaces", namespace, resource, ..] | ["apis", _, _, "namespaces", namespace, resource, ..] => (namespace, resource),
        _ => return None,
    };
    (*method != Method::GET && resource != "leases").then(|| namespace.to_owned())
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tower::{Layer as _, Service as _};

    use super::*;

    /// Answers at once, but never what is written to pods.
    struct Webhook;

    impl tower::Service<Request<()>> for Webhook {
        type Response = Response<()>;
        type Error = BoxError;
        type Future = BoxFuture<'static, Result<Response<()>, Self::Error>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request<()>) -> Self::Future {
            if request.uri().path().ends_with("/pods") {
                return futures::future::pending().boxed();
            }
            async { Ok(Response::new(())) }.boxed()
        }
    }

    fn post(path: &str) -> Request<()> {
        Request::post(path).body(()).expect("a request")
    }

    #[tokio::test]
    async fn what_hangs_keeps_its_namespace_from_nothing_for_long_and_others_not_at_all() {
        let mut paced = AdaptiveLimitLayer::new(Metrics::default(), ForegroundWrites::default()).layer(Webhook);
        let mut hanging: Vec<_> = (0..MIN_WRITE_LIMIT).map(|_| paced.call(post("/api/v1/namespaces/a/pods"))).collect();
        assert!(hanging.iter_mut().all(|call| call.now_or_never().is_none()));
        let mut own = paced.call(post("/api/v1/namespaces/a/events"));
        assert!((&mut own).now_or_never().is_none(), "it waits for its turn");
        assert!(paced.call(post("/api/v1/namespaces/b/events")).now_or_never().is_some(), "another one's does not");
        assert!(paced.call(Request::get("/api/v1/namespaces/a/events").body(()).expect("a request")).now_or_never().is_some());
        let hanging = tokio::spawn(futures::future::join_all(hanging));
        own.await.expect("its turn comes");
        hanging.abort();
    }

    #[tokio::test]
    async fn what_somebody_waits_for_is_no_quiet_and_what_only_shows_is() {
        let quiet = ForegroundWrites::default();
        let mut paced = AdaptiveLimitLayer::new(Metrics::default(), quiet.clone()).layer(Webhook);
        let is_quiet = || quiet.wait(Duration::MAX).now_or_never().is_some();
        let mut shows = post("/api/v1/namespaces/a/pods");
        shows.extensions_mut().insert(BackgroundWrite);
        let mut shows = paced.call(shows);
        assert!((&mut shows).now_or_never().is_none() && is_quiet());
        let mut read = paced.call(Request::get("/api/v1/namespaces/a/pods").body(()).expect("a request"));
        assert!((&mut read).now_or_never().is_none() && is_quiet());
        let mut write = paced.call(post("/api/v1/namespaces/b/pods"));
        assert!((&mut write).now_or_never().is_none() && !is_quiet());
        drop(write);
        quiet.wait(Duration::MAX).await;
    }

    #[test]
    fn what_is_sent_after_its_turn_came_is_sent_under_the_lease_that_it_was_decided_under() {
        let timing = crate::policy::lease::Timing::DEFAULT;
        assert!(timing.renew_deadline + PERMIT_TIMEOUT <= timing.duration);
    }

    #[test]
    fn writes_of_namespaces_take_turns_but_leases() {
        let cases = [
            ("PATCH", "/apis/spillway.dev/v1alpha1/namespaces/a/agents/b/status", Some("a")),
            ("POST", "/api/v1/namespaces/a/pods?fieldManager=m", Some("a")),
            ("DELETE", "/api/v1/namespaces/a/pods/b", Some("a")),
            ("GET", "/api/v1/namespaces/a/pods?watch=true", None),
            ("PUT", "/apis/coordination.k8s.io/v1/namespaces/a/leases/l", None),
            ("POST", "/apis/authentication.k8s.io/v1/tokenreviews", None),
            ("PATCH", "/apis/spillway.dev/v1alpha1/clusterbudgets/b/status", None),
            ("PATCH", "/api/v1/namespaces/a", None),
        ];
        for (method, uri, expected) in cases {
            let found = whose(&method.parse().expect("a method"), &uri.parse().expect("a path"));
            assert_eq!(found.as_deref(), expected, "{method} {uri}");
        }
    }
}
