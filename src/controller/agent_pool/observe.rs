//! What is known of a pool and its Agents: from the caches, to see whether anything is to be done; live, to do it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kube::api::ListParams;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};

use crate::api::agent::AgentPhase;
use crate::api::conditions::{reasons, types};
use crate::api::sandbox::{ChangesetDriver, Requirement, SeccompProfile};
use crate::api::{Agent, AgentPool, AgentPoolSpec, names};
use crate::cluster::Error;
use crate::controller::agent::{hindrance_of, hindrance_reason};
use crate::controller::conditions::find;
use crate::controller::context::{Context, Key};
use crate::controller::stores::{AgentObject, Stores};
use crate::policy::pool::{AgentFacts, Facts, SHORT_LIFE, Standing, crashes};
use crate::policy::scaling::{self, Desired, Work};

/// What is known.
pub struct Observed {
    /// What decides.
    pub facts: Facts,
    /// How many are wanted, and why.
    pub desired: Desired,
    /// Objects that the spec names and that do not exist.
    pub missing: Vec<String>,
    /// What the spec asks for and this version cannot do.
    pub unsupported: Option<String>,
    /// What keeps Agents from running.
    pub blocked: Option<Blocked>,
    /// Agents whose pod is Ready.
    pub ready: u32,
    /// Agents that ended soon after their start, lately; with what the last of them said.
    pub crashes: Option<(u32, String)>,
    /// The uid of each Agent, by name.
    pub uids: BTreeMap<String, String>,
}

/// What keeps Agents from running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The gravest reason among them.
    pub reason: &'static str,
    /// Whose words, and which.
    pub message: String,
}

/// What the caches show.
pub fn from_cache(pool: &AgentPool, key: &Key, context: &Context) -> Observed {
    let agents = context.stores.agents_of(&key.namespace, &key.name);
    observe(pool, agents.iter().map(Arc::as_ref), context)
}

/// What the API server shows: the Agents as they are after `pool` was read.
pub async fn live(pool: &AgentPool, key: &Key, context: &Context) -> Result<Observed, Error> {
    let params = ListParams::default().fields(&format!("spec.poolRef.name={}", key.name));
    let agents = context.api::<AgentObject>(&key.namespace).list(&params).await.map_err(Error::of("listing a pool's Agents"))?;
    Ok(observe(pool, agents.items.iter(), context))
}

fn observe<'a>(pool: &AgentPool, agents: impl Iterator<Item = &'a AgentObject>, context: &Context) -> Observed {
    let spec = &pool.spec;
    let id = PoolId { name: pool.name_any(), uid: pool.metadata.uid.clone().unwrap_or_default() };
    let status = pool.status.as_ref();
    let spawned = status.and_then(|status| status.spawned).unwrap_or(0);
    let mine: Vec<(&AgentObject, Option<i64>)> = agents.filter_map(|agent| id.own(agent, spawned).map(|number| (agent, number))).collect();
    let desired = scaling::desired(&scaling::Facts {
        replicas: spec.fixed_replicas(),
        min: spec.min(),
        max: spec.max(),
        work: if spec.work_aware() { Work::NotServed } else { Work::Ignored },
        room: None,
    });
    let missing = missing_references(spec, &pool.namespace().unwrap_or_default(), &context.stores);
    let unsupported = unsupported(spec);
    let now = jiff::Timestamp::now();
    let facts = Facts {
        desired: desired.count,
        may_grow: missing.is_empty() && unsupported.is_none(),
        spawned,
        collected_below: status.and_then(|status| status.collected_below).unwrap_or(0),
        agents: mine.iter().map(|(agent, number)| agent_facts(agent, *number, now)).collect(),
        stopped_ttl: Duration::from_secs(spec.stopped_ttl_seconds().into()),
    };
    let numbered: Vec<&Agent> = mine.iter().filter(|(_, number)| number.is_some()).filter_map(|(agent, _)| agent.0.as_ref().ok()).collect();
    let ready = facts.agents.iter().filter(|agent| agent.sequence.is_some() && matches!(agent.standing, Standing::Idle | Standing::Busy));
    Observed {
        ready: u32::try_from(ready.count()).unwrap_or(u32::MAX),
        crashes: Some(crashes(&facts.agents)).filter(|crashes| *crashes > 0).map(|crashes| (crashes, last_words(&numbered))),
        blocked: blocked(&numbered),
        facts,
        desired,
        missing,
        unsupported,
        uids: mine.iter().map(|(agent, _)| (agent.name_any(), agent.uid().unwrap_or_default())).collect(),
    }
}

/// Which pool it is.
struct PoolId {
    name: String,
    uid: String,
}

impl PoolId {
    /// Whether an Agent is the pool's: `Some(Some(number))` for one that the pool made, `Some(None)` for one made by hand.
    /// The name proves the first; labels and owner references prove nothing. Of an object that does not fit its type only
    /// the name is left: then all numbers given out are tried.
    fn own(&self, agent: &AgentObject, spawned: i64) -> Option<Option<i64>> {
        let name = agent.name_any();
        let number = match &agent.0 {
            Ok(agent) => agent.spec.sequence.filter(|number| names::is_agent_of(&name, *number, &self.name, &self.uid)),
            Err(_) => (0..spawned).find(|number| names::is_agent_of(&name, *number, &self.name, &self.uid)),
        };
        let owned = || agent.meta().owner_references.iter().flatten().any(|owner| owner.uid == self.uid);
        if number.is_some() { Some(number) } else { owned().then_some(None) }
    }
}

fn agent_facts(agent: &AgentObject, sequence: Option<i64>, now: jiff::Timestamp) -> AgentFacts {
    let since = |time: jiff::Timestamp| Duration::try_from(now.duration_since(time)).unwrap_or_default();
    AgentFacts {
        name: agent.name_any(),
        sequence,
        // What does not fit its type holds its place, and is not touched.
        standing: agent.0.as_ref().map_or(Standing::Leaving, |agent| standing(agent, since)),
        age: agent.creation_timestamp().map(|time| since(time.0)).unwrap_or_default(),
    }
}

fn standing(agent: &Agent, since: impl Fn(jiff::Timestamp) -> Duration) -> Standing {
    let status = agent.status.as_ref();
    let reason = reason_of(agent);
    let with_pod = status.is_some_and(|status| status.pod_ref.is_some());
    let phase = status.and_then(|status| status.phase);
    if let Some(AgentPhase::Stopped | AgentPhase::ForceStopped) = phase {
        let ago = status.and_then(|status| status.stop_time.as_ref()).map(|time| since(time.0)).unwrap_or_default();
        return Standing::Ended { ago, crashed: crashed(agent) };
    }
    if reason == Some(reasons::NODE_UNREACHABLE) {
        return Standing::Unreachable;
    }
    if agent.metadata.deletion_timestamp.is_some() {
        return Standing::Leaving;
    }
    match phase {
        Some(AgentPhase::Goodbye | AgentPhase::Stale | AgentPhase::Stopped | AgentPhase::ForceStopped) => Standing::Leaving,
        Some(AgentPhase::Active) => Standing::Busy,
        Some(AgentPhase::Running | AgentPhase::Idle | AgentPhase::Paused | AgentPhase::Hibernated) => {
            if reason == Some(reasons::POD_RUNNING) { Standing::Idle } else { Standing::Starting }
        }
        None | Some(AgentPhase::Spawning) if with_pod => Standing::Starting,
        None | Some(AgentPhase::Spawning) if reason.is_some_and(|reason| hindrance_of(reason).is_some()) => Standing::Refused,
        None | Some(AgentPhase::Spawning) => Standing::Spawning,
    }
}

fn reason_of(agent: &Agent) -> Option<&str> {
    agent.status.as_ref().and_then(|status| find(&status.conditions, types::READY)).map(|ready| ready.reason.as_str())
}

/// Whether an ended Agent ended by itself, and soon after its program started (or its pod was made, if it never did).
fn crashed(agent: &Agent) -> bool {
    let by_itself = matches!(reason_of(agent), Some(reasons::POD_FAILED | reasons::POD_SUCCEEDED));
    let status = agent.status.as_ref();
    let started =
        status.and_then(|status| status.start_time.as_ref()).map(|time| time.0).or_else(|| agent.creation_timestamp().map(|time| time.0));
    let stopped = status.and_then(|status| status.stop_time.as_ref()).map(|time| time.0);
    let lived = started.zip(stopped).and_then(|(started, stopped)| Duration::try_from(stopped.duration_since(started)).ok());
    by_itself && lived.is_none_or(|lived| lived < SHORT_LIFE)
}

/// What the Agent that crashed last said.
fn last_words(agents: &[&Agent]) -> String {
    let stop = |agent: &&&Agent| agent.status.as_ref().and_then(|status| status.stop_time.as_ref()).map(|time| time.0);
    let last = agents.iter().filter(|agent| crashed(agent)).max_by_key(stop);
    let ready = last.and_then(|agent| find(&agent.status.as_ref()?.conditions, types::READY));
    last.zip(ready).map(|(agent, ready)| format!("{}: {}", agent.name_any(), ready.message)).unwrap_or_default()
}

/// The gravest hindrance among Agents, in the words of one of them, and how many more share it.
fn blocked(agents: &[&Agent]) -> Option<Blocked> {
    let mut waiting: Vec<_> = agents
        .iter()
        .filter(|agent| agent.metadata.deletion_timestamp.is_none())
        .filter_map(|agent| {
            let ready = find(&agent.status.as_ref()?.conditions, types::READY)?;
            Some((hindrance_of(&ready.reason)?, agent.name_any(), &ready.message))
        })
        .collect();
    waiting.sort();
    let (kind, name, message) = waiting.first()?;
    let others = match waiting.iter().filter(|(other, ..)| other == kind).count() - 1 {
        0 => String::new(),
        others => format!(" (and {others} more)"),
    };
    Some(Blocked { reason: hindrance_reason(*kind), message: format!("{name}: {message}{others}") })
}

/// Objects that the spec names and that the namespace does not have, as `Kind/name`.
pub fn missing_references(spec: &AgentPoolSpec, namespace: &str, stores: &Stores) -> Vec<String> {
    let mut missing = Vec::new();
    if let Some(budget) = spec.budget_ref.as_ref()
        && stores.budgets.get(&ObjectRef::new(&budget.name).within(namespace)).is_none()
    {
        missing.push(format!("{}/{}", crate::api::Budget::kind(&()), budget.name));
    }
    for queue in spec.queues.iter().flatten() {
        if stores.queues.get(&ObjectRef::new(&queue.name).within(namespace)).is_none() {
            missing.push(format!("{}/{}", crate::api::WorkQueue::kind(&()), queue.name));
        }
    }
    for toolset in spec.toolsets.iter().flatten() {
        if stores.toolsets.get(&ObjectRef::new(&toolset.name).within(namespace)).is_none() {
            missing.push(format!("{}/{}", crate::api::Toolset::kind(&()), toolset.name));
        }
    }
    missing
}

/// What the spec asks for and this version cannot give: said, and not done half.
pub fn unsupported(spec: &AgentPoolSpec) -> Option<String> {
    let workspace = spec.workspace.as_ref();
    if workspace.is_some_and(|workspace| workspace.git.is_some()) {
        return Some("spec.workspace.git is not supported by this version: use empty or claimName".into());
    }
    if workspace.is_some_and(|workspace| workspace.volume_claim_template.is_some()) {
        return Some("spec.workspace.volumeClaimTemplate is not supported by this version: use empty or claimName".into());
    }
    // A wall that somebody asked for by name and that is not there is worse than none: it is refused, not left out.
    let sandbox = spec.sandbox.clone().unwrap_or_default();
    let isolation = sandbox.isolation.unwrap_or_default();
    let changeset = sandbox.changeset.and_then(|changeset| changeset.driver);
    let walls = [
        (isolation.landlock == Some(Requirement::Required), "isolation.landlock: Required"),
        (isolation.seccomp == Some(SeccompProfile::Localhost), "isolation.seccomp: Localhost"),
        (isolation.seccomp == Some(SeccompProfile::AgentStrict), "isolation.seccomp: AgentStrict"),
        (sandbox.outputs.is_some(), "outputs"),
        (matches!(changeset, Some(ChangesetDriver::Git | ChangesetDriver::Copy)), "changeset.driver"),
    ];
    if let Some((_, wall)) = walls.into_iter().find(|(asked, _)| *asked) {
        return Some(format!("spec.sandbox.{wall} is not enforced by this version: leave it unset"));
    }
    let tolerations = spec.scheduling.as_ref().and_then(|scheduling| scheduling.tolerations.as_ref());
    tolerations.into_iter().flatten().enumerate().find_map(|(at, value)| {
        let error = serde_json::from_value::<k8s_openapi::api::core::v1::Toleration>(value.clone()).err()?;
        Some(format!("spec.scheduling.tolerations[{at}] is no toleration: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn agent(status: serde_json::Value) -> Agent {
        serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Agent", "metadata": {"name": "a"}, "spec": {"poolRef": {"name": "p"}}, "status": status})).expect("an Agent")
    }
    fn ready(status: &str, reason: &str) -> serde_json::Value {
        json!([{"type": "Ready", "status": status, "reason": reason, "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}])
    }
    fn stands(status: serde_json::Value) -> Standing {
        standing(&agent(status), |_| Duration::ZERO)
    }

    #[test]
    fn where_an_agent_stands_follows_from_its_status() {
        let pod = json!({"name": "a", "uid": "u"});
        assert_eq!(stands(json!({})), Standing::Spawning);
        assert_eq!(stands(json!({"phase": "Spawning", "conditions": ready("False", "QuotaExceeded")})), Standing::Refused);
        assert_eq!(stands(json!({"phase": "Spawning", "podRef": pod, "conditions": ready("False", "ImagePull")})), Standing::Starting);
        assert_eq!(stands(json!({"phase": "Running", "podRef": pod, "conditions": ready("True", "PodRunning")})), Standing::Idle);
        assert_eq!(stands(json!({"phase": "Running", "podRef": pod, "conditions": ready("False", "PodNotReady")})), Standing::Starting);
        assert_eq!(stands(json!({"phase": "Goodbye", "podRef": pod})), Standing::Leaving);
        assert_eq!(
            stands(json!({"phase": "Stale", "podRef": pod, "conditions": ready("False", "NodeUnreachable")})),
            Standing::Unreachable
        );
        assert_eq!(stands(json!({"phase": "Stopped", "podRef": pod})), Standing::Ended { ago: Duration::ZERO, crashed: false });
    }

    #[test]
    fn an_agent_under_deletion_is_leaving_until_it_is_gone() {
        let mut agent = agent(json!({"phase": "Running", "conditions": ready("True", "PodRunning")}));
        agent.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time");
        assert_eq!(standing(&agent, |_| Duration::ZERO), Standing::Leaving);
        agent.status.as_mut().expect("a status").phase = Some(AgentPhase::Stopped);
        assert!(matches!(standing(&agent, |_| Duration::ZERO), Standing::Ended { .. }), "one that ended holds no place while it goes");
    }

    #[test]
    fn a_short_life_that_ended_by_itself_is_a_crash() {
        let ended = |reason: &str, stop: &str| {
            crashed(&agent(
                json!({"phase": "Stopped", "startTime": "2026-01-01T00:00:00Z", "stopTime": stop, "conditions": ready("False", reason)}),
            ))
        };
        assert!(ended("PodFailed", "2026-01-01T00:09:59Z") && ended("PodSucceeded", "2026-01-01T00:00:01Z"));
        assert!(!ended("PodFailed", "2026-01-01T00:10:00Z"), "it lived long enough");
        assert!(!ended("PodGone", "2026-01-01T00:00:01Z"), "somebody ended it");
    }

    #[test]
    fn membership_is_proved_by_the_name_whatever_labels_and_owners_say() {
        let pool = PoolId { name: "p".into(), uid: "u".into() };
        let object = |name: &str, extra: serde_json::Value| -> AgentObject {
            let mut value = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Agent", "metadata": {"name": name}, "spec": {"poolRef": {"name": "p"}}});
            value.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
            serde_json::from_value(value).expect("an object that may not fit")
        };
        let name = names::agent_name("p", "u", 3);
        let numbered = |number: i64| json!({"spec": {"poolRef": {"name": "p"}, "sequence": number}});
        assert_eq!(pool.own(&object(&name, numbered(3)), 9), Some(Some(3)), "no owner, no labels");
        assert_eq!(pool.own(&object(&name, numbered(4)), 9), None, "another number");
        assert_eq!(pool.own(&object("mine", json!({})), 9), None, "nobody's, or not adopted yet");
        let owned =
            json!({"metadata": {"name": "mine", "ownerReferences": [{"apiVersion": "v", "kind": "AgentPool", "name": "p", "uid": "u"}]}});
        assert_eq!(pool.own(&object("mine", owned), 9), Some(None), "made by hand");
        let malformed = object(&name, json!({"spec": 7}));
        assert!(malformed.0.is_err());
        assert_eq!(pool.own(&malformed, 9), Some(Some(3)), "what does not fit its type still holds its number");
    }

    #[test]
    fn the_gravest_hindrance_is_told_with_its_count() {
        let (quota, image) =
            (agent(json!({"conditions": ready("False", "QuotaExceeded")})), agent(json!({"conditions": ready("False", "ImagePull")})));
        let got = blocked(&[&image, &quota, &quota]).expect("blocked");
        assert_eq!((got.reason, got.message.as_str()), ("QuotaExceeded", "a: m (and 1 more)"));
        assert_eq!(blocked(&[&agent(json!({"conditions": ready("True", "PodRunning")}))]), None);
    }

    #[test]
    fn what_is_not_built_is_refused_by_name() {
        let spec = |extra: serde_json::Value| -> AgentPoolSpec {
            let mut spec = json!({"type": "free", "agent": {"image": "x"}});
            spec.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
            serde_json::from_value(spec).expect("a spec")
        };
        assert_eq!(unsupported(&spec(json!({}))), None);
        let git = unsupported(&spec(json!({"workspace": {"git": {"remote": "https://example.org/r"}}})));
        assert!(git.is_some_and(|message| message.contains("spec.workspace.git")));
        for sandbox in [
            json!({"isolation": {"landlock": "Required"}}),
            json!({"outputs": {"egress": "None"}}),
            json!({"changeset": {"driver": "Copy"}}),
        ] {
            assert!(unsupported(&spec(json!({"sandbox": sandbox}))).is_some_and(|message| message.contains("not enforced")), "{sandbox}");
        }
        assert_eq!(unsupported(&spec(json!({"sandbox": {"isolation": {"landlock": "Preferred", "seccomp": "RuntimeDefault"}}}))), None);
        let bad = unsupported(&spec(json!({"scheduling": {"tolerations": [{"tolerationSeconds": "x"}]}})));
        assert!(bad.is_some_and(|message| message.contains("tolerations[0]")));
    }
}
