//! What is known of a pool and its Agents: from the caches, to see whether anything is to be done; live, to do it.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::api::ListParams;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};

use crate::api::agent::AgentPhase;
use crate::api::conditions::{reasons, types};
use crate::api::sandbox::SeccompProfile;
use crate::api::{Agent, AgentPool, AgentPoolSpec, names};
use crate::cluster::Error;
use crate::controller::conditions::find;
use crate::controller::context::{Context, Key};
use crate::controller::stores::{AgentObject, Stores};
use crate::policy::pool::{AgentFacts, Facts, Standing};
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
    /// What keeps Agents from running: reason, words and how many of them.
    pub blocked: Option<Blocked>,
    /// Agents whose pod is Ready.
    pub ready: u32,
    /// The uid of each Agent, by name.
    pub uids: BTreeMap<String, String>,
}

/// What keeps Agents from running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The reason that most of them share, or the gravest.
    pub reason: String,
    /// Whose words, and which.
    pub message: String,
}

/// What the caches show.
pub fn from_cache(pool: &AgentPool, key: &Key, context: &Context) -> Observed {
    let agents = context.stores.agents_of(&key.namespace, &key.name);
    observe(pool, agents.iter().filter_map(|agent| agent.0.as_ref().ok()), context)
}

/// What the API server shows: the Agents as they are after `pool` was read.
pub async fn live(pool: &AgentPool, key: &Key, context: &Context) -> Result<Observed, Error> {
    let params = ListParams::default().fields(&format!("spec.poolRef.name={}", key.name));
    let agents = context.api::<AgentObject>(&key.namespace).list(&params).await.map_err(Error::of("listing a pool's Agents"))?;
    Ok(observe(pool, agents.items.iter().filter_map(|agent| agent.0.as_ref().ok()), context))
}

fn observe<'a>(pool: &AgentPool, agents: impl Iterator<Item = &'a Agent>, context: &Context) -> Observed {
    let spec = &pool.spec;
    let uid = pool.metadata.uid.as_deref().unwrap_or_default();
    let now = jiff::Timestamp::now();
    let mine: Vec<&Agent> = agents.filter(|agent| agent.metadata.owner_references.iter().flatten().any(|owner| owner.uid == uid)).collect();
    let desired = scaling::desired(&scaling::Facts {
        replicas: spec.fixed_replicas(),
        min: spec.min(),
        max: spec.max(),
        work: if spec.work_aware() { Work::NotServed } else { Work::Ignored },
        room: None,
    });
    let missing = missing_references(spec, &pool.namespace().unwrap_or_default(), &context.stores);
    let unsupported = unsupported(spec);
    let status = pool.status.as_ref();
    let facts = Facts {
        desired: desired.count,
        may_grow: missing.is_empty() && unsupported.is_none(),
        spawned: status.and_then(|status| status.spawned).unwrap_or(0),
        collected_below: status.and_then(|status| status.collected_below).unwrap_or(0),
        agents: mine.iter().map(|agent| agent_facts(agent, &pool.name_any(), uid, now)).collect(),
        stopped_ttl: Duration::from_secs(spec.stopped_ttl_seconds().into()),
    };
    Observed {
        ready: u32::try_from(
            facts
                .agents
                .iter()
                .filter(|agent| agent.sequence.is_some() && matches!(agent.standing, Standing::Idle | Standing::Busy))
                .count(),
        )
        .unwrap_or(u32::MAX),
        facts,
        desired,
        missing,
        unsupported,
        blocked: blocked(&mine),
        uids: mine.iter().map(|agent| (agent.name_any(), agent.uid().unwrap_or_default())).collect(),
    }
}

fn agent_facts(agent: &Agent, pool: &str, pool_uid: &str, now: jiff::Timestamp) -> AgentFacts {
    let name = agent.name_any();
    let label = agent.labels().get(names::SEQUENCE_LABEL).map(String::as_str);
    let since = |time: jiff::Timestamp| Duration::try_from(now.duration_since(time)).unwrap_or_default();
    AgentFacts {
        sequence: names::sequence_of(&name, label, pool, pool_uid),
        standing: standing(agent, since),
        age: agent.creation_timestamp().map(|time| since(time.0)).unwrap_or_default(),
        name,
    }
}

fn standing(agent: &Agent, since: impl Fn(jiff::Timestamp) -> Duration) -> Standing {
    let status = agent.status.as_ref();
    let reason = status.and_then(|status| find(&status.conditions, types::READY)).map(|ready| ready.reason.as_str());
    let with_pod = status.is_some_and(|status| status.pod_ref.is_some());
    let phase = status.and_then(|status| status.phase);
    if reason == Some(reasons::NODE_UNREACHABLE) {
        return Standing::Unreachable;
    }
    if agent.metadata.deletion_timestamp.is_some() {
        return Standing::Leaving;
    }
    match phase {
        Some(AgentPhase::Stopped | AgentPhase::ForceStopped) => {
            Standing::Ended(status.and_then(|status| status.stop_time.as_ref()).map(|time| since(time.0)).unwrap_or_default())
        }
        Some(AgentPhase::Goodbye | AgentPhase::Stale) => Standing::Leaving,
        Some(AgentPhase::Active) => Standing::Busy,
        Some(AgentPhase::Running | AgentPhase::Idle | AgentPhase::Paused | AgentPhase::Hibernated) => {
            if reason == Some(reasons::POD_RUNNING) { Standing::Idle } else { Standing::Starting }
        }
        None | Some(AgentPhase::Spawning) if with_pod => Standing::Starting,
        None | Some(AgentPhase::Spawning) if refused(reason) => Standing::Refused,
        None | Some(AgentPhase::Spawning) => Standing::Spawning,
    }
}

/// Reasons under which the API server, or we, refuse a pod.
fn refused(reason: Option<&str>) -> bool {
    let refusals =
        [reasons::QUOTA_EXCEEDED, reasons::POD_REFUSED, reasons::NAMESPACE_TERMINATING, reasons::MISSING_REFERENCE, reasons::UNSUPPORTED];
    reason.is_some_and(|reason| refusals.contains(&reason))
}

/// The gravest hindrance among the pool's own Agents, and how many share it.
fn blocked(agents: &[&Agent]) -> Option<Blocked> {
    let order = [
        reasons::QUOTA_EXCEEDED,
        reasons::NAMESPACE_TERMINATING,
        reasons::POD_REFUSED,
        reasons::IMAGE_PULL,
        reasons::CONTAINER_START,
        reasons::UNSCHEDULABLE,
    ];
    let waiting = |reason: &str| {
        let mut found: Vec<_> = agents
            .iter()
            .filter(|agent| agent.metadata.deletion_timestamp.is_none())
            .filter_map(|agent| Some((agent.name_any(), find(&agent.status.as_ref()?.conditions, types::READY)?)))
            .filter(|(_, ready)| ready.reason == reason)
            .map(|(name, ready)| (name, ready.message.clone()))
            .collect();
        found.sort();
        found
    };
    order.into_iter().find_map(|reason| {
        let found = waiting(reason);
        let (name, message) = found.first()?;
        let others = match found.len() - 1 {
            0 => String::new(),
            others => format!(" (and {others} more)"),
        };
        Some(Blocked { reason: reason.to_owned(), message: format!("{name}: {message}{others}") })
    })
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
    let isolation = spec.sandbox.as_ref().and_then(|sandbox| sandbox.isolation.as_ref());
    if workspace.is_some_and(|workspace| workspace.git.is_some()) {
        return Some("spec.workspace.git is not supported by this version: use empty or claimName".into());
    }
    if workspace.is_some_and(|workspace| workspace.volume_claim_template.is_some()) {
        return Some("spec.workspace.volumeClaimTemplate is not supported by this version: use empty or claimName".into());
    }
    if isolation.is_some_and(|isolation| isolation.seccomp == Some(SeccompProfile::Localhost)) {
        return Some("spec.sandbox.isolation.seccomp: Localhost is not supported by this version: leave it unset".into());
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
        assert_eq!(stands(json!({"phase": "Stopped", "podRef": pod})), Standing::Ended(Duration::ZERO));
    }

    #[test]
    fn an_agent_under_deletion_is_leaving_until_it_is_gone() {
        let mut agent = agent(json!({"phase": "Running", "conditions": ready("True", "PodRunning")}));
        agent.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time");
        assert_eq!(standing(&agent, |_| Duration::ZERO), Standing::Leaving);
    }

    #[test]
    fn the_gravest_hindrance_is_told_with_its_count() {
        let (quota, image) =
            (agent(json!({"conditions": ready("False", "QuotaExceeded")})), agent(json!({"conditions": ready("False", "ImagePull")})));
        let got = blocked(&[&image, &quota, &quota]).expect("blocked");
        assert_eq!((got.reason.as_str(), got.message.as_str()), ("QuotaExceeded", "a: m (and 1 more)"));
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
        let bad = unsupported(&spec(json!({"scheduling": {"tolerations": [{"tolerationSeconds": "x"}]}})));
        assert!(bad.is_some_and(|message| message.contains("tolerations[0]")));
    }
}
