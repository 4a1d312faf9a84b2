//! Leadership with a fake API server that is one versioned Lease: which process leads, and when that ends.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use spillway::cluster::lease::{Identity, LeadershipTerm, acquire};
use spillway::policy::lease::{SeenLeader, StoreRollback, Timing, owner_epoch};
use spillway::wire::governor::ROLLBACK_ANNOTATION;
use tokio_util::sync::CancellationToken;

/// Short times, in the proportions of the real ones.
const TIMING: Timing =
    Timing { duration: Duration::from_millis(900), renew_deadline: Duration::from_millis(600), retry: Duration::from_millis(60) };

/// The stored Lease, and the server's behaviour.
#[derive(Default)]
struct StoredLease {
    lease: Option<Value>,
    version: u64,
    writes: u64,
    silent: bool,
}

#[derive(Clone, Default)]
struct Server(Arc<Mutex<StoredLease>>);

impl Server {
    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { server.answer(request).await }
        });
        Client::new(service, "ns")
    }

    async fn answer(self, request: Request<Body>) -> Result<Response<Body>, std::convert::Infallible> {
        if self.0.lock().expect("not poisoned").silent {
            std::future::pending::<()>().await;
        }
        let method = request.method().clone();
        let body = request.into_body().collect().await.expect("a whole body").to_bytes();
        let mut stored = self.0.lock().expect("not poisoned");
        let (status, answer) = match method {
            Method::GET => match &stored.lease {
                Some(lease) => (StatusCode::OK, lease.clone()),
                None => failure(404, "NotFound"),
            },
            Method::POST if stored.lease.is_some() => failure(409, "AlreadyExists"),
            Method::POST | Method::PUT => stored.write(serde_json::from_slice(&body).expect("a Lease")),
            _ => failure(405, "MethodNotAllowed"),
        };
        let body = Body::from(serde_json::to_vec(&answer).expect("JSON"));
        Ok(Response::builder().status(status).body(body).expect("an answer"))
    }

    fn holder(&self) -> String {
        let stored = self.0.lock().expect("not poisoned");
        stored.lease.as_ref().and_then(|lease| lease["spec"]["holderIdentity"].as_str()).unwrap_or_default().to_owned()
    }

    fn writes(&self) -> u64 {
        self.0.lock().expect("not poisoned").writes
    }

    /// A copy of the store.
    fn snapshot(&self) -> (Option<Value>, u64) {
        let stored = self.0.lock().expect("not poisoned");
        (stored.lease.clone(), stored.version)
    }

    /// Restores a copy of the store.
    fn restore(&self, (lease, version): (Option<Value>, u64)) {
        let mut stored = self.0.lock().expect("not poisoned");
        (stored.lease, stored.version) = (lease, version);
    }

    /// Another client writes the Lease unconditionally.
    fn seize(&self, holder: &str) {
        let mut stored = self.0.lock().expect("not poisoned");
        stored.version += 1;
        let version = stored.version.to_string();
        if let Some(lease) = stored.lease.as_mut() {
            lease["spec"]["holderIdentity"] = json!(holder);
            lease["metadata"]["resourceVersion"] = json!(version);
        }
    }
}

impl StoredLease {
    /// Compare-and-swap.
    fn write(&mut self, mut lease: Value) -> (StatusCode, Value) {
        let sent = lease["metadata"]["resourceVersion"].as_str().map(str::to_owned);
        let current = self.lease.as_ref().and_then(|lease| lease["metadata"]["resourceVersion"].as_str().map(str::to_owned));
        if sent != current {
            return failure(409, "Conflict");
        }
        self.version += 1;
        self.writes += 1;
        lease["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.lease = Some(lease.clone());
        (StatusCode::OK, lease)
    }
}

fn failure(code: u16, reason: &str) -> (StatusCode, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": reason, "reason": reason, "code": code});
    (StatusCode::from_u16(code).expect("a status"), status)
}

fn identity(holder: &str) -> Identity {
    Identity { namespace: "ns".into(), name: "l".into(), holder: holder.into(), address: None }
}

async fn lead(server: &Server, holder: &str, stop: &CancellationToken) -> LeadershipTerm {
    acquire(server.client(), identity(holder), TIMING, stop.clone()).await.expect("leadership")
}

#[tokio::test]
async fn a_free_lease_is_taken_and_a_confirmation_is_a_renewal_that_began_after_it_was_asked() {
    let server = Server::default();
    let won = lead(&server, "a", &CancellationToken::new()).await;
    assert_eq!((server.holder().as_str(), won.resource_version), ("a", 1));
    won.leadership.check().expect("leading");
    let before = server.writes();
    won.leadership.confirm().await.expect("confirmed");
    assert!(server.writes() > before);
}

#[tokio::test]
async fn a_standby_waits_for_the_lease_to_expire_on_its_own_clock_and_the_old_leader_stops_before() {
    let server = Server::default();
    let first = lead(&server, "a", &CancellationToken::new()).await;
    first.keeper.abort(); // it is stopped: it renews no more, and does not notice that
    let started = Instant::now();
    let second = lead(&server, "b", &CancellationToken::new()).await;
    assert!(started.elapsed() >= TIMING.duration, "not before");
    assert!(first.leadership.check().is_err(), "by then the first knows from its own clock that it does not lead");
    assert!(first.leadership.confirm().await.is_err());
    second.leadership.check().expect("leading");
    assert!(second.resource_version > first.resource_version, "the base of the owner epoch rises");
}

#[tokio::test]
async fn a_clean_stop_gives_the_lease_back() {
    let server = Server::default();
    let stop = CancellationToken::new();
    let first = lead(&server, "a", &stop).await;
    stop.cancel();
    first.keeper.await.expect("the keeper ends");
    assert_eq!(server.holder(), "", "free before it expires");
    let started = Instant::now();
    lead(&server, "b", &CancellationToken::new()).await;
    assert!(started.elapsed() < TIMING.duration);
}

#[tokio::test]
async fn a_lease_that_somebody_else_wrote_is_lost_at_once() {
    let server = Server::default();
    let won = lead(&server, "a", &CancellationToken::new()).await;
    server.seize("b");
    won.leadership.lost().await;
    assert!(won.leadership.check().is_err() && won.leadership.confirm().await.is_err());
    assert_eq!(server.holder(), "b", "and not taken back");
}

#[tokio::test]
async fn a_lost_answer_to_our_own_renewal_is_no_loss() {
    let server = Server::default();
    let won = lead(&server, "a", &CancellationToken::new()).await;
    server.seize("a"); // our own write with a lost answer: the version changed, and we are the holder
    won.leadership.confirm().await.expect("the record says that it is ours");
}

#[tokio::test]
async fn a_silent_server_ends_leadership_at_the_renew_deadline() {
    let server = Server::default();
    let won = lead(&server, "a", &CancellationToken::new()).await;
    server.0.lock().expect("not poisoned").silent = true;
    let started = Instant::now();
    won.leadership.lost().await;
    assert!(started.elapsed() <= TIMING.duration, "before another process may lead");
    assert!(won.leadership.check().is_err());
}

#[tokio::test]
async fn a_standby_that_is_stopped_leaves() {
    let server = Server::default();
    let _leading = lead(&server, "a", &CancellationToken::new()).await;
    let stop = CancellationToken::new();
    stop.cancel();
    assert!(acquire(server.client(), identity("b"), TIMING, stop).await.is_none());
    assert_eq!(server.holder(), "a");
}

/// Renews the Lease this number of times.
async fn renewed(won: &LeadershipTerm, times: u32) {
    for _ in 0..times {
        won.leadership.confirm().await.expect("renewed");
    }
}

fn stored_rollback(server: &Server) -> Option<StoreRollback> {
    let (lease, _) = server.snapshot();
    StoreRollback::from_text(lease.expect("a Lease")["metadata"]["annotations"][ROLLBACK_ANNOTATION].as_str()?)
}

#[tokio::test]
async fn a_lower_version_ends_leadership_at_once_and_the_next_epoch_is_above_all_lost_ones() {
    let server = Server::default();
    let first = lead(&server, "a", &CancellationToken::new()).await;
    renewed(&first, 3).await;
    let before = server.snapshot();
    renewed(&first, 20).await;
    first.leadership.lead_as(500);
    let lost = first.leadership.version();
    server.restore(before);
    let started = Instant::now();
    first.leadership.lost().await;
    assert!(started.elapsed() < TIMING.renew_deadline, "at its next renewal");
    assert!(first.leadership.check().is_err() && first.leadership.confirm().await.is_err());
    assert_eq!(server.holder(), "", "no standby has to wait for it to expire");

    let second = lead(&server, "b", &CancellationToken::new()).await;
    let rollback = second.takeover.rollback.clone().expect("it is told");
    assert_eq!((rollback.highest, stored_rollback(&server)), (500, Some(rollback.clone())), "of versions and epochs the highest");
    assert!(lost > second.resource_version);
    assert!(owner_epoch(second.resource_version, None, Some(&rollback)) > 500);
    renewed(&second, 2).await;
    assert_eq!(stored_rollback(&server), Some(rollback), "the next leader knows it too");
}

#[tokio::test]
async fn a_leader_frees_the_lease_after_a_rollback_to_an_earlier_holder() {
    let server = Server::default();
    let stop = CancellationToken::new();
    let earlier = lead(&server, "z", &stop).await;
    let before = server.snapshot();
    stop.cancel();
    earlier.keeper.await.expect("the keeper ends");
    let first = lead(&server, "a", &CancellationToken::new()).await;
    renewed(&first, 5).await;
    server.restore(before);
    assert_eq!(server.holder(), "z");
    first.leadership.lost().await;
    assert_eq!(server.holder(), "");
    assert!(stored_rollback(&server).is_some());
}

#[tokio::test]
async fn a_standby_detects_a_rollback_that_happened_without_a_leader() {
    let server = Server::default();
    let first = lead(&server, "a", &CancellationToken::new()).await;
    let before = server.snapshot();
    renewed(&first, 10).await;
    let standby = tokio::spawn({
        let server = server.clone();
        async move { lead(&server, "b", &CancellationToken::new()).await }
    });
    tokio::time::sleep(4 * TIMING.retry).await; // it checks meanwhile
    first.keeper.abort();
    server.restore(before);
    let second = standby.await.expect("it leads");
    assert!(second.takeover.rollback.is_some_and(|rollback| rollback.highest > second.resource_version));

    // No controller saw it. A gateway that saw the earlier leader proves it.
    let server = Server::default();
    let first = lead(&server, "a", &CancellationToken::new()).await;
    let before = server.snapshot();
    renewed(&first, 10).await;
    let seen = SeenLeader { epoch: 1, version: first.leadership.version() };
    first.keeper.abort();
    server.restore(before);
    let second = lead(&server, "b", &CancellationToken::new()).await;
    assert_eq!(second.takeover.rollback, None);
    assert!(second.takeover.missed_rollback(77, seen) && !second.takeover.missed_rollback(77, SeenLeader { version: 1, ..seen }));
}

#[tokio::test]
async fn a_reported_rollback_is_written_but_never_over_a_later_leader() {
    let server = Server::default();
    let first = lead(&server, "a", &CancellationToken::new()).await;
    first.leadership.report_rollback(9_000);
    assert!(first.leadership.check().is_err(), "at once");
    first.leadership.lost().await;
    assert_eq!((server.holder().as_str(), stored_rollback(&server).map(|rollback| rollback.highest)), ("", Some(9_000)));

    // A stopped leader that finds the Lease taken by a later one.
    let server = Server::default();
    let sleeper = lead(&server, "a", &CancellationToken::new()).await;
    server.seize("b");
    server.0.lock().expect("not poisoned").lease.as_mut().expect("a Lease")["spec"]["acquireTime"] = json!("2999-01-01T00:00:00.000000Z");
    sleeper.leadership.report_rollback(9_000);
    sleeper.leadership.lost().await;
    assert_eq!((server.holder().as_str(), stored_rollback(&server)), ("b", None));
}
