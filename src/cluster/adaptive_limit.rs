//! Limits the writes of each namespace that are in flight to the API server, so that writes of other namespaces do not
//! wait for them.
//!
//! The API server does not separate namespaces: it works on all writes of one user at the same time, and each further
//! write makes all others slower. The limit follows from the measured durations ([`crate::policy::adaptive_limit`]).
//!
//! Foreground writes delay background writes ([`super::background_writes`]).
//!
//! Not limited: reads, watches, leases (leadership must not wait for anything), reviews of tokens.

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

/// This many namespaces may use their full limit at once.
const NAMESPACES_AT_FULL_LIMIT: usize = 4;

/// The longest time that a write keeps its permit. A slower write waits for something other than the API server's
/// cores, such as a webhook, and the other writes of its namespace must not wait for that.
const MAX_PERMIT_HOLD: Duration = Duration::from_millis(500);

/// A write that waited longer is not sent, and is decided again. Leadership was checked before the wait: a leader that
/// was suspended must not send a write after another leader has taken the Lease. So this is at most the rest of a Lease
/// when its holder gives up.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(5);

/// A layer that makes writes wait for a permit.
#[derive(Clone)]
pub struct AdaptiveLimitLayer {
    semaphore: FairSemaphore,
    adaptive_limit: Arc<Mutex<AdaptiveLimit>>,
    began: BootTime,
    metrics: Metrics,
    foreground_writes: ForegroundWrites,
}

impl AdaptiveLimitLayer {
    /// Waits are counted in `metrics`. `quiet` is told of foreground writes.
    pub fn new(metrics: Metrics, quiet: ForegroundWrites) -> Self {
        let turns = FairSemaphore::new(Bounds {
            total: NAMESPACES_AT_FULL_LIMIT * MIN_WRITE_LIMIT,
            per_namespace: MIN_WRITE_LIMIT,
            max_waiting: usize::MAX,
        });
        metrics.writes_at_once(MIN_WRITE_LIMIT);
        Self { semaphore: turns, adaptive_limit: Arc::default(), began: BootTime::now(), metrics, foreground_writes: quiet }
    }

    /// A write that began at `began` has ended.
    fn record_write(&self, began: BootTime) {
        let mut adaptive_limit = self.adaptive_limit.lock().unwrap_or_else(PoisonError::into_inner);
        let before = adaptive_limit.limit();
        adaptive_limit.record_write(self.began.elapsed(), began.elapsed(), self.semaphore.has_waiters());
        let now = adaptive_limit.limit();
        if now != before {
            self.semaphore.resize(NAMESPACES_AT_FULL_LIMIT * now, now);
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
        // The inner service is polled when the write has its permit.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (inner, adaptive_limit) = (self.inner.clone(), self.adaptive_limit.clone());
        Box::pin(async move {
            let Some(namespace) = limited_namespace(request.method(), request.uri()) else { return Self::send(inner, request).await };
            let _disturbs = request.extensions().get::<BackgroundWrite>().is_none().then(|| adaptive_limit.foreground_writes.disturb());
            // The number of waiters is not limited.
            let asked = BootTime::now();
            let turn = adaptive_limit.semaphore.take(&namespace).await.ok();
            let began = BootTime::now();
            let waited = began.since(asked);
            adaptive_limit.metrics.write_waited(waited);
            if waited > PERMIT_TIMEOUT {
                return Err("the write waited too long for other writes of its namespace, and was not sent".into());
            }
            let mut sending = Box::pin(Self::send(inner, request));
            let answered = tokio::time::timeout(MAX_PERMIT_HOLD, &mut sending).await.ok();
            drop(turn);
            let answer = match answered {
                Some(answer) => answer,
                None => sending.await,
            };
            // A refused write is answered at once, so its duration says nothing about the load.
            if answer.as_ref().is_ok_and(|answer| answer.status().is_success()) {
                adaptive_limit.record_write(began);
            }
            answer
        })
    }
}

/// The namespace whose limit applies to a request. None: no limit applies.
fn limited_namespace(method: &Method, uri: &Uri) -> Option<String> {
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

    /// Answers at once, except that writes of pods are never answered.
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
            let found = limited_namespace(&method.parse().expect("a method"), &uri.parse().expect("a path"));
            assert_eq!(found.as_deref(), expected, "{method} {uri}");
        }
    }
}
