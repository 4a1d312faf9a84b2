//! Simulated agents. A pod on a KWOK node is an object without a process. For each of them this module calls the
//! gateway as the pod's sidecar would.
//!
//! Only the surroundings are imitated. The sidecar's own state machines (`link::state`, `link::work`), calls
//! (`link::calls`) and HTTP client (`link::gateway`) run here, one of each for every pod, on the measuring program's
//! runtime, with a token that the API server bound to that pod. Three parts are missing. There is no supervisor: a
//! program counts as running once it may start, and does nothing; a program that is run for each item does nothing for
//! as long as [`Hands`] says, and has then done the item. There is no isolation: nothing is probed, because this
//! process can reach the addresses that agents must not reach. There is no journal.
//!
//! Each agent has an address of its own, like a pod, and the gateway counts by it. All of 10.200.0.0/16 belongs to this
//! machine (a route of `run.sh`), and the kernel connects to such an address from the same address.

mod sidecar;

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, ResourceExt};
use serde_json::json;
use spillway::api::names::{AGENT_LABEL, CA_CONFIG_MAP};
use spillway_pod::clock::BootTime;
use spillway_pod::link::calls;
use spillway_pod::link::gateway::{Answer, Gateway, Silence};
use spillway_pod::link::kept_state::KeptState;
use spillway_pod::link::state::Link;
use spillway_wire::agent::Goodbye;
use spillway_wire::command::CommandCounts;
use spillway_wire::{CA_FILE, GATEWAY_AUDIENCE};
use tokio::sync::{OnceCell, mpsc, watch};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};

use crate::bench_namespace::{BenchNamespace, within};
use crate::hands::Hands;
use crate::report::milliseconds;
use sidecar::Sidecar;

/// Interval between two probes of the isolation, as in a pod.
const LOOK_EACH: Duration = Duration::from_secs(60);
/// How long the last reports are sent when a pod ends, as in a pod.
const FLUSH: Duration = Duration::from_secs(3);
/// Lifetime of a token, as in a pod. No benchmark takes long enough to need a renewal.
const TOKEN_SECONDS: u32 = 3600;
/// The result of every item.
const RESULT: &str = "done, as far as a program that does nothing can say";

/// The agents of one namespace: each of its running pods gets a sidecar. They end when this value is dropped.
pub struct Fleet {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

/// The outcome of one call.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Name of the call: `register`, `report`, `wanted`, `goodbye`, `claim` or `finish`.
    pub call: &'static str,
    /// Milliseconds until the answer; none for a long poll.
    pub milliseconds: Option<f64>,
    /// Why it was refused, or that it was not answered.
    pub failure: Option<String>,
}

struct Shared {
    room: BenchNamespace,
    /// The certificates to trust, once they are known.
    ca: OnceCell<PathBuf>,
    go: watch::Sender<bool>,
    /// By name of the pod.
    known: Mutex<HashMap<String, SimulatedPod>>,
    samples: Mutex<Vec<Sample>>,
    hands: Arc<Hands>,
}

struct SimulatedPod {
    leave: watch::Sender<bool>,
    goodbye: watch::Sender<Option<Goodbye>>,
    hung: watch::Sender<u64>,
    task: AbortHandle,
    progress: AgentProgress,
}

/// Progress of an agent.
#[derive(Clone, Copy, Debug, Default)]
struct AgentProgress {
    /// It has its token.
    prepared: bool,
    registered: Option<Instant>,
    /// When it was first answered since [`Fleet::forget_answers`].
    answered: Option<Instant>,
    said_goodbye: Option<Instant>,
    /// When it learned that the breaker of its namespace's commands is open.
    open: Option<Instant>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fleet {
    /// Sidecars that start as soon as their pods run.
    pub fn start(room: &BenchNamespace) -> Self {
        Self::new(room, true)
    }

    /// Sidecars that have their tokens and wait for [`Self::release`].
    pub fn held(room: &BenchNamespace) -> Self {
        Self::new(room, false)
    }

    fn new(room: &BenchNamespace, go: bool) -> Self {
        let (ca, go, known, samples) = (OnceCell::new(), watch::Sender::new(go), Mutex::default(), Mutex::default());
        let shared = Arc::new(Shared { room: room.clone(), ca, go, known, samples, hands: Arc::default() });
        let task = tokio::spawn(follow(shared.clone()));
        Self { shared, task }
    }

    /// Lets the held sidecars begin.
    pub fn release(&self) -> Instant {
        self.shared.go.send_replace(true);
        Instant::now()
    }

    /// Waits until `wanted` agents have their tokens.
    pub async fn prepared(&self, wanted: usize, limit: Duration) -> anyhow::Result<()> {
        self.wait_for_agents(wanted, limit, "prepared", |seen| seen.prepared.then(Instant::now)).await.map(drop)
    }

    /// Waits until `wanted` agents are registered; the time of the last registration.
    pub async fn registered(&self, wanted: usize, limit: Duration) -> anyhow::Result<Instant> {
        self.wait_for_agents(wanted, limit, "registered", |seen| seen.registered).await
    }

    /// Counts answered agents from now on.
    pub fn forget_answers(&self) -> Instant {
        lock(&self.shared.known).values_mut().for_each(|one| one.progress.answered = None);
        Instant::now()
    }

    /// Waits until `wanted` agents were answered since then; the time at which the last of them had its first answer.
    pub async fn answered(&self, wanted: usize, limit: Duration) -> anyhow::Result<Instant> {
        self.wait_for_agents(wanted, limit, "answered", |seen| seen.answered).await
    }

    async fn wait_for_agents(
        &self,
        wanted: usize,
        limit: Duration,
        what: &str,
        time: fn(&AgentProgress) -> Option<Instant>,
    ) -> anyhow::Result<Instant> {
        within(limit, &format!("{wanted} agents are {what}"), async || {
            let mut times: Vec<Instant> = lock(&self.shared.known).values().filter_map(|one| time(&one.progress)).collect();
            times.sort();
            times.get(wanted.saturating_sub(1)).copied().with_context(|| format!("{} are", times.len()))
        })
        .await
    }

    /// The pods of agents that are registered.
    pub fn names(&self) -> Vec<String> {
        let known = lock(&self.shared.known);
        let mut names: Vec<String> =
            known.iter().filter(|(_, one)| one.progress.registered.is_some()).map(|(name, _)| name.clone()).collect();
        names.sort();
        names
    }

    /// Makes an agent say goodbye.
    pub fn say_goodbye(&self, pod: &str, reason: &str) -> anyhow::Result<Instant> {
        let mut known = lock(&self.shared.known);
        let one = known.get_mut(pod).with_context(|| format!("the agent in {pod} has ended"))?;
        let now = Instant::now();
        one.progress.said_goodbye = Some(now);
        one.goodbye.send_replace(Some(Goodbye { reason: reason.to_owned() }));
        Ok(now)
    }

    /// Makes one command hang in each of `count` agents.
    pub fn hang(&self, count: usize) -> Instant {
        let names = self.names();
        let known = lock(&self.shared.known);
        names.iter().take(count).filter_map(|name| known.get(name)).for_each(|one| one.hung.send_modify(|hung| *hung += 1));
        Instant::now()
    }

    /// Waits until `wanted` agents know that the breaker of their namespace's commands is open; when the last of them
    /// learned it.
    pub async fn wait_until_breaker_known_open(&self, wanted: usize, limit: Duration) -> anyhow::Result<Instant> {
        self.wait_for_agents(wanted, limit, "told that it is open", |seen| seen.open).await
    }

    /// Their work with items.
    pub fn hands(&self) -> Arc<Hands> {
        self.shared.hands.clone()
    }

    /// Takes the outcomes of calls since the last call of this.
    pub fn samples(&self) -> Vec<Sample> {
        std::mem::take(&mut lock(&self.shared.samples))
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.task.abort();
        lock(&self.shared.known).values().for_each(|one| one.task.abort());
    }
}

/// Starts a sidecar for each running pod, and ends the sidecars of pods that end.
async fn follow(shared: Arc<Shared>) {
    let pods: Api<Pod> = shared.room.api();
    let mut events = watcher::watcher(pods, watcher::Config::default().labels(AGENT_LABEL)).default_backoff().boxed();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(pod) | Event::InitApply(pod)) => {
                let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
                match (pod.metadata.deletion_timestamp.is_some(), phase) {
                    (false, Some("Running")) => begin(&shared, &pod),
                    (true, _) | (_, Some("Succeeded" | "Failed")) => leave(&shared, &pod.name_any()),
                    (false, _) => {}
                }
            }
            Ok(Event::Delete(pod)) => leave(&shared, &pod.name_any()),
            Ok(Event::Init | Event::InitDone) => {}
            Err(error) => eprintln!("the simulated agents' watch of pods broke: {error}"),
        }
    }
}

fn begin(shared: &Arc<Shared>, pod: &Pod) {
    let name = pod.name_any();
    let mut known = lock(&shared.known);
    if known.contains_key(&name) {
        return;
    }
    let (leave, left) = watch::channel(false);
    let goodbye = watch::Sender::new(None);
    let hung = watch::Sender::new(0);
    let says = Says { goodbye: goodbye.clone(), hung: hung.subscribe(), left };
    let living = live(shared.clone(), name.clone(), pod.uid().unwrap_or_default(), says);
    let task = tokio::spawn({
        let (shared, name) = (shared.clone(), name.clone());
        async move {
            if let Err(error) = living.await {
                eprintln!("the simulated agent in {name}: {error:#}");
            }
            lock(&shared.known).remove(&name);
        }
    });
    known.insert(name, SimulatedPod { leave, goodbye, hung, task: task.abort_handle(), progress: AgentProgress::default() });
}

fn leave(shared: &Shared, name: &str) {
    if let Some(one) = lock(&shared.known).get(name) {
        one.leave.send_replace(true);
    }
}

/// Inputs of a sidecar from its surroundings.
struct Says {
    goodbye: watch::Sender<Option<Goodbye>>,
    /// How many of its commands hung.
    hung: watch::Receiver<u64>,
    left: watch::Receiver<bool>,
}

/// The life of one sidecar.
async fn live(shared: Arc<Shared>, name: String, uid: String, says: Says) -> anyhow::Result<()> {
    let Says { goodbye, mut hung, mut left } = says;
    let ca = shared.ca.get_or_try_init(|| certificates(&shared.room)).await?.clone();
    let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": name, "uid": uid});
    let spec = json!({"audiences": [GATEWAY_AUDIENCE], "expirationSeconds": TOKEN_SECONDS, "boundObjectRef": bound});
    let token = shared.room.folder().join(format!("{name}.token"));
    std::fs::write(&token, shared.room.token("default", &spec).await.context("its token")?)?;
    shared.see(&name, |seen| seen.prepared = true);
    let mut go = shared.go.subscribe();
    tokio::select! {
        _ = left.wait_for(|left| *left) => return Ok(()),
        _ = go.wait_for(|go| *go) => {}
    }
    let gateway = Arc::new(Gateway::new(address(shared.room.gateway.port()).to_string(), ca, token));
    let (inputs, mut received) = mpsc::channel(64);
    let revision = watch::Sender::new(None);
    let mut lanes = JoinSet::new();
    lanes.spawn(calls::wait(gateway.clone(), revision.subscribe(), inputs.clone()));
    lanes.spawn(calls::deliver(gateway.clone(), goodbye.subscribe(), inputs.clone()));
    let mut state = Link::new(BootTime::now(), LOOK_EACH, KeptState::default());
    state.connected();
    let mut sidecar = Sidecar { shared, name, state, gateway, inputs, revision, goodbye };
    loop {
        let wake = sidecar.act();
        tokio::select! {
            Some(input) = received.recv() => sidecar.take(input),
            () = tokio::time::sleep(wake) => {}
            Ok(()) = hung.changed() => sidecar.state.set_command_counts(CommandCounts { failed: *hung.borrow_and_update(), opened: 0 }),
            _ = left.wait_for(|left| *left) => break,
        }
    }
    // Its program has ended. That, and a goodbye, are reported within a short time.
    sidecar.state.ended(BootTime::now());
    let _ = tokio::time::timeout(FLUSH, async {
        while sidecar.goodbye.borrow().is_some() || !sidecar.state.all_reported(BootTime::now()) {
            let wake = sidecar.act();
            tokio::select! {
                Some(input) = received.recv() => sidecar.take(input),
                () = tokio::time::sleep(wake) => {}
            }
        }
    })
    .await;
    Ok(())
}

/// An address of this machine with `port`, which no other agent has.
pub fn address(port: u16) -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    let [high, low] = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    (Ipv4Addr::new(10, 200, high, low), port).into()
}

/// The namespace's certificates, in a file.
async fn certificates(room: &BenchNamespace) -> anyhow::Result<PathBuf> {
    let map = room.api::<ConfigMap>().get(CA_CONFIG_MAP).await.context("the certificates to trust")?;
    let pem = map.data.and_then(|mut data| data.remove(CA_FILE)).context("certificates in the ConfigMap")?;
    let path = room.folder().join(CA_FILE);
    std::fs::write(&path, pem)?;
    Ok(path)
}

impl Shared {
    fn see(&self, name: &str, change: impl FnOnce(&mut AgentProgress)) {
        if let Some(one) = lock(&self.known).get_mut(name) {
            change(&mut one.progress);
        }
    }

    fn sample(&self, call: &'static str, took: Option<Duration>, result: &Result<Answer, Silence>) {
        let trouble = match result {
            Ok(Answer::Done(_) | Answer::Nothing) => None,
            Ok(Answer::Refused(refusal)) => Some(format!("refused: {}", refusal.code.label())),
            Err(silence) => Some(silence.to_string()),
        };
        lock(&self.samples).push(Sample { call, milliseconds: took.map(milliseconds), failure: trouble });
    }
}
