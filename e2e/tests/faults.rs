//! Exactly the desired number of agents, with faults: a killed leader, a cache that is half a minute old, two leaders.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use rustix::process::Signal;
use serde_json::json;
use spillway::api::Agent;
use tokio::sync::Mutex;

use crate::support::history::History;
use crate::support::proxy::Proxy;
use crate::support::{Operator, TestNamespace, audit, check_state, eventually, track, within};

const AGENTS: usize = 30;
/// Two cores carry thirty pods at once, so these tests run one after the other.
static THIRTY: Mutex<()> = Mutex::const_new(());

/// The objects that existed in the namespace, from watches. The audit log does not tell that: it shows a create whose
/// client died as failed, even if the object was created.
struct WatchedPool {
    pods: track::Pods,
    history: History,
}

impl WatchedPool {
    fn start(room: &TestNamespace) -> Self {
        Self { pods: track::Pods::start(room), history: History::start(room) }
    }

    /// Checks that all agents exist, that there were never too many, and that this does not change.
    async fn exactly(&self, room: &TestNamespace) {
        room.pool_says("many", "Ready", "True").await;
        room.pods_ready(AGENTS).await;
        assert_eq!(self.history.agents_ever().await.len(), AGENTS, "Agents ever created");
        assert_eq!(room.list::<Agent>().await.len(), AGENTS);
        assert!(self.pods.most_at_once() <= AGENTS, "{} pods lived at once", self.pods.most_at_once());
        let recorded = self.history.recorded_pods().await.len();
        assert_eq!(recorded, AGENTS, "pods that Agents ever had: one each; other pods come only from lost answers");
    }

    /// Checks that no answer was lost: each created pod was recorded.
    fn no_pod_is_unrecorded(&self) {
        assert_eq!(self.pods.total(), AGENTS, "pods ever created");
    }
}

async fn some_pods(room: &TestNamespace, least: usize) {
    eventually(&format!("{least} agents have pods"), async || {
        let with_pods =
            room.list::<Agent>().await.iter().filter(|agent| agent.status.as_ref().is_some_and(|status| status.pod_ref.is_some())).count();
        check_state(with_pods >= least, || format!("{with_pods}"))
    })
    .await;
}

#[tokio::test]
async fn the_leader_is_killed_while_thirty_scale() {
    let _one = THIRTY.lock().await;
    let room = TestNamespace::open("kill").await;
    let mut first = room.operator("first");
    first.leads(&room).await;
    let second = room.operator("second");
    let watched = WatchedPool::start(&room);
    room.apply_pool("many", json!({"replicas": AGENTS})).await;
    some_pods(&room, 5).await;
    first.signal(Signal::KILL);
    assert!(!first.ended().await.success());
    second.leads(&room).await;
    watched.exactly(&room).await;
    room.close().await;
}

#[tokio::test]
async fn the_leader_stops_cleanly_while_thirty_scale() {
    let _one = THIRTY.lock().await;
    let room = TestNamespace::open("term").await;
    let mut first = room.operator("first");
    first.leads(&room).await;
    let second = room.operator("second");
    let watched = WatchedPool::start(&room);
    room.apply_pool("many", json!({"replicas": AGENTS})).await;
    some_pods(&room, 5).await;
    first.signal(Signal::TERM);
    assert!(first.ended().await.success(), "a clean stop is a success");
    let lease = room.api::<Lease>().get("spillway-controller").await.expect("the lease");
    let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
    assert!(!first.is_holder(&holder), "the lease was released before the process ended, so no standby waits for it to expire");
    second.leads(&room).await;
    watched.exactly(&room).await;
    watched.no_pod_is_unrecorded();
    room.close().await;
}

#[tokio::test]
async fn two_leaders_at_once_make_thirty() {
    let _one = THIRTY.lock().await;
    let room = TestNamespace::open("two").await;
    let mut first = room.operator("first");
    first.leads(&room).await;
    let second = room.operator("second");
    let watched = WatchedPool::start(&room);
    room.apply_pool("many", json!({"replicas": AGENTS})).await;
    some_pods(&room, 5).await;
    first.signal(Signal::STOP);
    second.leads(&room).await; // the lease of the first has expired
    some_pods(&room, 8).await; // and the second is at work
    first.signal(Signal::CONT);
    assert!(!first.ended().await.success(), "it finds that it does not lead, and ends");
    watched.exactly(&room).await;
    let late: Vec<_> = audit::writes(&room.namespace, jiff::Timestamp::MIN)
        .into_iter()
        .filter(|write| write.is("delete", "pods") || write.is("delete", "agents"))
        .filter(|write| write.holder().is_some_and(|holder| first.is_holder(holder)))
        .collect();
    assert!(late.is_empty(), "the one that was stopped deletes nothing: {late:#?}");
    room.close().await;
}

#[tokio::test]
async fn watches_half_a_minute_late_make_thirty() {
    let room = TestNamespace::open("late").await;
    let proxy = Proxy::with_late_watches(room.client.clone(), &room.namespace, Duration::from_secs(30)).await;
    let operator = Operator::start(&room, "late", Some(&proxy.kubeconfig));
    operator.leads(&room).await;
    let watched = WatchedPool::start(&room);
    room.apply_pool("many", json!({"replicas": AGENTS})).await;
    // Each doubling takes two delays: one until the Agents are seen, and one until their pods are seen.
    within(Duration::from_secs(900), "thirty agents have pods", async || {
        let with_pods =
            room.list::<Agent>().await.iter().filter(|agent| agent.status.as_ref().is_some_and(|status| status.pod_ref.is_some())).count();
        check_state(with_pods == AGENTS, || format!("{with_pods}"))
    })
    .await;
    watched.exactly(&room).await;
    watched.no_pod_is_unrecorded();
    room.close().await;
}

#[tokio::test]
async fn a_pod_that_nobody_recorded_is_replaced_and_never_adopted() {
    let room = TestNamespace::open("foreign").await;
    // Before there is an operator, a user takes the name of the first agent's pod.
    let pool = room.apply_pool("many", json!({"replicas": 1})).await;
    let uid = pool.metadata.uid.expect("a uid");
    let name = spillway::api::names::agent_name("many", &uid, 0);
    let walls = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": true, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}});
    let squatter = serde_json::from_value(json!({"metadata": {"name": name},
        "spec": {"containers": [{"name": "agent", "image": "localhost/spillway/demo-agent:dev", "securityContext": walls}]}}))
    .expect("a pod");
    let squatter: k8s_openapi::api::core::v1::Pod = room.api().create(&Default::default(), &squatter).await.expect("a pod of our own");
    let operator = room.operator("one");
    operator.leads(&room).await;
    room.pool_says("many", "Ready", "True").await;
    let agent = room.api::<Agent>().get(&name).await.expect("the Agent");
    let recorded = agent.status.and_then(|status| status.pod_ref).expect("a pod");
    assert_ne!(Some(recorded.uid), squatter.metadata.uid, "it was not adopted");
    room.close().await;
}
