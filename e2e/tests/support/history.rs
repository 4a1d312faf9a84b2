//! Every state of the Agents and pods of a namespace, from watches of the test. They do not miss short states.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::ListParams;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource, ResourceExt};
use rustix::time::{ClockId, clock_gettime};
use serde::de::DeserializeOwned;
use spillway::api::Agent;
use spillway::api::agent::AgentPhase;

use super::{TestNamespace, check_state, eventually};

/// Time since the boot of the machine, as in the pods' `/proc/uptime`.
pub fn uptime() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(u64::try_from(now.tv_sec).expect("after the start"), u32::try_from(now.tv_nsec).expect("nanoseconds"))
}

/// The observed states, with their times.
type Log<K> = Arc<Mutex<Vec<(Duration, K)>>>;

/// Records states from [`start`](Self::start) on.
#[derive(Clone)]
pub struct History {
    api: Api<Agent>,
    agents: Log<Agent>,
    pods: Log<Pod>,
}

impl History {
    pub fn start(room: &TestNamespace) -> Self {
        let history = Self { api: room.api(), agents: Log::default(), pods: Log::default() };
        follow(room, history.agents.clone());
        follow(room, history.pods.clone());
        history
    }

    /// Waits until a state of an Agent fits; the first such state, and the time at which it was seen.
    pub async fn wait_for_agent(&self, what: &str, fits: impl Fn(&Agent) -> bool) -> (Duration, Agent) {
        first(&self.agents, what, fits).await
    }

    /// The same for pods.
    pub async fn wait_for_pod(&self, what: &str, fits: impl Fn(&Pod) -> bool) -> (Duration, Pod) {
        first(&self.pods, what, fits).await
    }

    /// The phases of an Agent until now, in order.
    pub async fn phases(&self, name: &str) -> Vec<AgentPhase> {
        self.wait_until_current().await;
        let all = self.agents.lock().expect("not poisoned");
        let mut phases: Vec<_> =
            all.iter().filter(|(_, agent)| agent.name_any() == name).filter_map(|(_, agent)| agent.status.as_ref()?.phase).collect();
        phases.dedup();
        phases
    }

    /// The uids of all Agents so far.
    pub async fn agents_ever(&self) -> BTreeSet<String> {
        self.of_agents(ResourceExt::uid).await
    }

    /// The uids of all pods that Agents recorded as theirs.
    pub async fn recorded_pods(&self) -> BTreeSet<String> {
        self.of_agents(|agent| Some(agent.status.as_ref()?.pod_ref.as_ref()?.uid.clone())).await
    }

    /// The values of `says` for all states of all Agents until now.
    pub async fn of_agents(&self, says: impl Fn(&Agent) -> Option<String>) -> BTreeSet<String> {
        self.wait_until_current().await;
        self.agents.lock().expect("not poisoned").iter().filter_map(|(_, agent)| says(agent)).collect()
    }

    /// Waits until the watch has sent all that a read of the API server shows now, because a watch is later than a
    /// read.
    async fn wait_until_current(&self) {
        let version = |agent: &Agent| agent.resource_version().and_then(|version| version.parse::<u64>().ok()).expect("a version");
        let now = self.api.list(&ListParams::default()).await.expect("a list").items;
        eventually("the watch has sent the state that a read shows", async || {
            let told = self.agents.lock().expect("not poisoned");
            let missing = now.iter().find(|agent| !told.iter().any(|(_, it)| it.uid() == agent.uid() && version(it) >= version(agent)));
            check_state(missing.is_none(), || format!("{missing:?}"))
        })
        .await
    }

    /// Every state of the pod with this uid.
    pub fn pods(&self, uid: &str) -> Vec<Pod> {
        let all = self.pods.lock().expect("not poisoned");
        all.iter().filter(|(_, pod)| pod.metadata.uid.as_deref() == Some(uid)).map(|(_, pod)| pod.clone()).collect()
    }
}

fn follow<K>(room: &TestNamespace, log: Log<K>)
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope> + DeserializeOwned + Clone + std::fmt::Debug + Send + 'static,
{
    let api = room.api::<K>();
    tokio::spawn(async move {
        let mut events = watcher::watcher(api, watcher::Config::default()).boxed();
        while let Some(event) = events.next().await {
            match event.expect("the test's own watch holds") {
                Event::Apply(object) | Event::InitApply(object) | Event::Delete(object) => {
                    log.lock().expect("not poisoned").push((uptime(), object))
                }
                Event::Init | Event::InitDone => {}
            }
        }
    });
}

async fn first<K: Clone>(log: &Log<K>, what: &str, fits: impl Fn(&K) -> bool) -> (Duration, K) {
    eventually(what, async || {
        let all = log.lock().expect("not poisoned");
        all.iter().find(|(_, object)| fits(object)).cloned().ok_or_else(|| format!("{} states, none of them", all.len()))
    })
    .await
}

/// The condition of an Agent with this type.
pub fn condition<'a>(agent: &'a Agent, type_: &str) -> Option<&'a Condition> {
    agent.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == type_)
}

/// Whether an Agent has this condition.
pub fn has_condition(agent: &Agent, type_: &str, status: &str, reason: &str) -> bool {
    condition(agent, type_).is_some_and(|condition| condition.status == status && condition.reason == reason)
}

pub fn phase(agent: &Agent) -> Option<AgentPhase> {
    agent.status.as_ref().and_then(|status| status.phase)
}

/// The uid of an Agent's pod, as recorded.
pub fn pod_uid(agent: &Agent) -> String {
    agent.status.as_ref().and_then(|status| status.pod_ref.as_ref()).expect("it has a pod").uid.clone()
}

impl TestNamespace {
    /// Waits until exactly `count` Agents of the pool are Idle, and no others are alive.
    pub async fn wait_until_idle(&self, pool: &str, count: usize) -> Vec<Agent> {
        eventually(&format!("{count} agents of pool {pool} are idle"), async || {
            let all: Vec<Agent> = self.list::<Agent>().await.into_iter().filter(|agent| agent.spec.pool_ref.name == pool).collect();
            let live: Vec<Agent> = all.into_iter().filter(|agent| !phase(agent).is_some_and(AgentPhase::ended)).collect();
            let idle = live.iter().filter(|agent| phase(agent) == Some(AgentPhase::Idle) && agent.metadata.deletion_timestamp.is_none());
            let (idle, all) = (idle.count(), live.len());
            check_state(idle == count && all == count, || format!("{idle} idle of {all} live")).map(|()| live)
        })
        .await
    }

    /// Waits for an event about the Agent with this reason and these words; its note.
    pub async fn wait_for_event(&self, agent: &str, reason: &str, words: &str) -> String {
        eventually(&format!("there is an event {reason} about {agent} with {words:?}"), async || {
            let events = self.list::<k8s_openapi::api::events::v1::Event>().await;
            let mut about =
                events.into_iter().filter(|event| event.regarding.as_ref().and_then(|object| object.name.as_deref()) == Some(agent));
            let all: Vec<String> =
                about.by_ref().map(|event| format!("{}: {}", event.reason.unwrap_or_default(), event.note.unwrap_or_default())).collect();
            all.iter()
                .find(|told| told.starts_with(&format!("{reason}: ")) && told.contains(words))
                .cloned()
                .ok_or_else(|| format!("{all:?}"))
        })
        .await
    }
}
