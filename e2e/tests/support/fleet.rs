//! The states of a namespace's agents, from a watch of the test. It misses no short state that the API server sends.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::{self, Event};
use kube::{Api, ResourceExt};
use spillway::api::Agent;

use super::{TestNamespace, check_state, eventually};

/// One state of an agent: phase, reason of Ready, status and reason of Heartbeating, and the message of Ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    pub phase: String,
    pub ready: String,
    pub heartbeating: String,
    pub message: String,
}

/// The states of every agent, in order.
#[derive(Clone)]
pub struct Chronicle {
    states: Arc<Mutex<BTreeMap<String, Vec<State>>>>,
    _task: Arc<tokio::task::JoinHandle<()>>,
}

impl Chronicle {
    /// Starts the watch.
    pub fn start(room: &TestNamespace) -> Self {
        let told = Arc::new(Mutex::new(BTreeMap::<String, Vec<State>>::new()));
        let api: Api<Agent> = room.api();
        let writing = told.clone();
        let task = tokio::spawn(async move {
            let mut events = watcher::watcher(api, watcher::Config::default()).boxed();
            while let Some(event) = events.next().await {
                if let Event::Apply(agent) | Event::InitApply(agent) = event.expect("the test's own watch holds") {
                    let mut told = writing.lock().expect("not poisoned");
                    let states = told.entry(agent.name_any()).or_default();
                    let state = state(&agent);
                    if states.last() != Some(&state) {
                        states.push(state);
                    }
                }
            }
        });
        Self { states: told, _task: Arc::new(task) }
    }

    /// Every state in which `agent` was seen.
    pub fn states_of(&self, agent: &str) -> Vec<State> {
        self.states.lock().expect("not poisoned").get(agent).cloned().unwrap_or_default()
    }

    /// Waits until `agent` was seen in a state for which `holds` is true; the state.
    pub async fn wait_for_state(&self, agent: &str, what: &str, holds: impl Fn(&State) -> bool) -> State {
        eventually(&format!("{agent} was {what}"), async || {
            let states = self.states_of(agent);
            states.iter().find(|state| holds(state)).cloned().ok_or_else(|| format!("{states:#?}"))
        })
        .await
    }

    /// Checks that none of these agents was ever given up or counted as lost, and that there were no other agents.
    pub fn assert_undisturbed(&self, agents: &[String]) {
        let told = self.states.lock().expect("not poisoned");
        let names: Vec<_> = told.keys().cloned().collect();
        let mut expected = agents.to_vec();
        expected.sort();
        assert_eq!(names, expected, "the Agents that ever were");
        for (agent, states) in told.iter() {
            let registered = states.iter().skip_while(|state| state.phase != "Idle");
            let other: Vec<_> = registered.filter(|state| state.phase != "Idle" || state.heartbeating != "True/Heartbeating").collect();
            assert!(other.is_empty(), "{agent} was something else than idle and heard of: {other:#?}");
        }
    }
}

fn state(agent: &Agent) -> State {
    let status = agent.status.clone().unwrap_or_default();
    let find = |type_: &str| status.conditions.iter().find(|condition| condition.type_ == type_);
    State {
        phase: status.phase.map(|phase| format!("{phase:?}")).unwrap_or_default(),
        ready: find("Ready").map(|ready| ready.reason.clone()).unwrap_or_default(),
        heartbeating: find("Heartbeating").map(|one| format!("{}/{}", one.status, one.reason)).unwrap_or_default(),
        message: find("Ready").map(|ready| ready.message.clone()).unwrap_or_default(),
    }
}

/// A fleet at a moment. It must be the same before and after an outage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fleet(BTreeMap<String, Member>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Member {
    lives: bool,
    agent: String,
    pod: String,
    /// Name, id and restarts of each container.
    containers: Vec<(String, String, i32)>,
}

impl Fleet {
    /// Waits until `count` agents are idle and no other agent or pod exists; the fleet then.
    pub async fn wait_for_idle(room: &TestNamespace, count: usize) -> Self {
        room.pods_ready(count).await;
        eventually(&format!("{count} agents are idle"), async || {
            let idle = room.list::<Agent>().await.iter().filter(|agent| state(agent).phase == "Idle").count();
            check_state(idle == count, || format!("{idle} are"))
        })
        .await;
        Self::now(room).await
    }

    /// The same, but ended agents may exist too.
    pub async fn wait_for_living(room: &TestNamespace, count: usize) -> Self {
        let all = Self::wait_for_idle(room, count).await;
        Self(all.0.into_iter().filter(|(_, member)| member.lives).collect())
    }

    /// The fleet now.
    pub async fn now(room: &TestNamespace) -> Self {
        let pods: BTreeMap<String, Pod> = room.list::<Pod>().await.into_iter().map(|pod| (pod.name_any(), pod)).collect();
        let members = room.list::<Agent>().await.into_iter().map(|agent| {
            let pod = pods.get(&agent.name_any());
            let member = Member {
                lives: !matches!(state(&agent).phase.as_str(), "Stopped" | "ForceStopped"),
                agent: agent.uid().expect("a uid"),
                pod: pod.and_then(ResourceExt::uid).unwrap_or_default(),
                containers: pod.map(containers).unwrap_or_default(),
            };
            (agent.name_any(), member)
        });
        Self(members.collect())
    }

    /// The names of its agents.
    pub fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }
}

fn containers(pod: &Pod) -> Vec<(String, String, i32)> {
    let status = pod.status.clone().unwrap_or_default();
    let all = status.init_container_statuses.into_iter().flatten().chain(status.container_statuses.into_iter().flatten());
    all.map(|one| (one.name, one.container_id.unwrap_or_default(), one.restart_count)).collect()
}

/// The last step of the program of each of these agents: the demo agent prints its steps. A log without gaps shows that
/// the program never restarted and that no output was lost.
pub async fn steps(room: &TestNamespace, agents: &[String]) -> Vec<u64> {
    let mut all = Vec::new();
    for agent in agents {
        let counted = numbers(&log(room, agent, "agent").await);
        let expected: Vec<u64> = (1..).take(counted.len()).collect();
        assert_eq!(counted, expected, "{agent}: each step once, in order");
        all.push(counted.last().copied().unwrap_or_default());
    }
    all
}

/// The log of a container.
pub async fn log(room: &TestNamespace, pod: &str, container: &str) -> String {
    try_log(room, pod, container).await.expect("a log")
}

/// The log of a container, which may not have started.
pub async fn try_log(room: &TestNamespace, pod: &str, container: &str) -> Result<String, String> {
    let params = kube::api::LogParams { container: Some(container.to_owned()), ..Default::default() };
    room.api::<Pod>().logs(pod, &params).await.map_err(|error| error.to_string())
}

fn numbers(log: &str) -> Vec<u64> {
    log.lines().filter_map(|line| line.split_once(", step ")?.1.trim().parse().ok()).collect()
}
