//! `Agent`: one a running agent. Made by its pool, or by hand; owns its pod.

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema, Resource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::agent_pool::AgentPool;
use crate::budget::Ledger;
use crate::schema::never_falls;
use crate::shared::LocalRef;

/// One running agent.
#[skip_serializing_none]
#[derive(CustomResource, Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[kube(
    group = "spillway.dev",
    version = "v1alpha1",
    kind = "Agent",
    plural = "agents",
    shortname = "ag",
    category = "spillway",
    namespaced,
    status = "AgentStatus",
    derive = "PartialEq",
    doc = "One AI coding agent: made by its AgentPool or by hand, owner of its pod.",
    selectable = ".status.phase",
    selectable = ".spec.poolRef.name",
    validation = Rule::new("self.metadata.name.size() <= 63 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
        .message("metadata.name must be a DNS label of at most 63 characters: it is the name of the agent's pod"),
    printcolumn(name = "Display", type_ = "string", json_path = ".spec.displayName"),
    printcolumn(name = "Pool", type_ = "string", json_path = ".spec.poolRef.name"),
    printcolumn(name = "Type", type_ = "string", json_path = r#".metadata.labels.spillway\.dev/type"#),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Item", type_ = "string", json_path = ".status.currentItem.name"),
    printcolumn(name = "Tokens", type_ = "integer", json_path = ".status.tokens.used"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "External", type_ = "string", json_path = ".spec.external.user"),
    printcolumn(name = "Action", type_ = "string", json_path = ".status.currentAction", priority = 1),
    printcolumn(name = "Pod", type_ = "string", json_path = ".status.podRef.name", priority = 1),
    printcolumn(name = "Node", type_ = "string", json_path = ".status.node", priority = 1),
    printcolumn(name = "Container", type_ = "string", json_path = ".status.containerID", priority = 1),
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.poolRef == oldSelf.poolRef").message("poolRef cannot be changed: make another Agent").field_path(".poolRef"),
    validation = Rule::new("has(self.sequence) == has(oldSelf.sequence) && (!has(self.sequence) || self.sequence == oldSelf.sequence)")
        .message("sequence cannot be changed").field_path(".sequence"),
    validation = Rule::new("!has(self.hibernated) || !self.hibernated || has(self.sequence)")
        .message("hibernated is for agents that their pool made: nobody would wake one that was made by hand").field_path(".hibernated"),
    validation = Rule::new("has(self.manual) == has(oldSelf.manual) && (!has(self.manual) || self.manual == oldSelf.manual)")
        .message("manual cannot be changed"),
    validation = Rule::new("has(self.external) == has(oldSelf.external) && (!has(self.external) || self.external == oldSelf.external)")
        .message("external cannot be changed: an agent runs in a pod or outside the cluster, and for one user").field_path(".external"),
    validation = Rule::new("!has(self.external) || !(has(self.sequence) || has(self.parentRef) || has(self.resources))")
        .message("external agents have no pod: sequence, parentRef and resources must be unset").field_path(".external"),
)]
pub struct AgentSpec {
    /// The pool whose bulkhead, program and sandbox it has.
    pub pool_ref: LocalRef,
    /// A name for people.
    #[schemars(length(min = 1, max = 63))]
    pub display_name: Option<String>,
    /// The number under which its pool made it: with the pool's uid it gives the name, which proves that it is the pool's
    /// own. Unset: made by hand.
    #[schemars(range(min = 0))]
    pub sequence: Option<i64>,
    /// The agent that spawned it.
    pub parent_ref: Option<LocalRef>,
    /// A mark of an Agent that was made by hand: it is outside min and max of its pool, never outside its bulkhead. Whether its
    /// pool made it is decided by its name and `sequence`, not by this.
    pub manual: Option<bool>,
    /// Take no work and make no model calls.
    pub paused: Option<bool>,
    /// Resume the pause of this number (`status.pauses`).
    #[schemars(range(min = 0))]
    pub resume_pause: Option<i64>,
    /// It is to be without a pod for now, and to keep its identity and its volume. Its pool sets this, and takes it back when
    /// there is work (`whenEmpty.action: Hibernate`).
    pub hibernated: Option<bool>,
    /// Compute, where it differs from the pool's.
    #[serde(default)]
    #[schemars(schema_with = "crate::schema::resources")]
    pub resources: Option<ResourceRequirements>,
    /// It runs outside the cluster and has no pod: a process that registered with the gateway. The leader makes such Agents,
    /// for pools with `external`.
    pub external: Option<ExternalProcess>,
}

/// The process of an agent outside the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExternalProcess {
    /// The user whose token registered it, as the API server names it. Calls under other users are not its own.
    #[schemars(length(min = 1, max = 512))]
    pub user: String,
}

impl Agent {
    /// The uid under which its calls come: of its pod, or its own where it runs outside the cluster. None: it has no pod now.
    pub fn caller_uid(&self) -> Option<&str> {
        match &self.spec.external {
            Some(_) => self.metadata.uid.as_deref(),
            None => self.status.as_ref()?.pod_ref.as_ref().map(|pod| pod.uid.as_str()),
        }
    }

    /// Whether its stored phase says that its life is over.
    pub fn has_ended(&self) -> bool {
        self.status.as_ref().and_then(|status| status.phase).is_some_and(AgentPhase::ended)
    }

    /// The uid of the pool that owns it; one made by hand may have none.
    pub fn owner_uid(&self) -> Option<&str> {
        let owners = self.metadata.owner_references.iter().flatten();
        owners
            .into_iter()
            .find(|owner| owner.kind == AgentPool::kind(&()) && owner.controller == Some(true))
            .map(|owner| owner.uid.as_str())
    }
}

/// Where an agent is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
pub enum AgentPhase {
    /// Its pod is being made.
    Spawning,
    /// Its pod runs.
    Running,
    /// It holds an item.
    Active,
    /// It is registered and holds none.
    Idle,
    /// It is held.
    Paused,
    /// Its pod was given back, its volume and identity are kept.
    Hibernated,
    /// It is leaving.
    Goodbye,
    /// It ended.
    Stopped,
    /// It is silent.
    Stale,
    /// It was ended by force.
    ForceStopped,
}

impl AgentPhase {
    /// All of them, in the order of a life.
    pub const ALL: [Self; 10] = [
        Self::Spawning,
        Self::Running,
        Self::Active,
        Self::Idle,
        Self::Paused,
        Self::Hibernated,
        Self::Goodbye,
        Self::Stopped,
        Self::Stale,
        Self::ForceStopped,
    ];

    /// Its name, as it is stored.
    pub fn name(self) -> &'static str {
        match self {
            Self::Spawning => "Spawning",
            Self::Running => "Running",
            Self::Active => "Active",
            Self::Idle => "Idle",
            Self::Paused => "Paused",
            Self::Hibernated => "Hibernated",
            Self::Goodbye => "Goodbye",
            Self::Stopped => "Stopped",
            Self::Stale => "Stale",
            Self::ForceStopped => "ForceStopped",
        }
    }

    /// Whether the life of the agent is over: it never comes back and never counts.
    pub fn ended(self) -> bool {
        match self {
            Self::Stopped | Self::ForceStopped => true,
            Self::Spawning | Self::Running | Self::Active | Self::Idle | Self::Paused | Self::Hibernated | Self::Goodbye | Self::Stale => {
                false
            }
        }
    }
}

/// The pod an agent runs in: known only from our own create response.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodRef {
    /// Its name.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Its uid: the agent's identity.
    #[schemars(length(max = 64))]
    pub uid: String,
}

/// The claim of an agent's own volume.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimRef {
    /// Its name.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Its uid.
    #[schemars(length(max = 64))]
    pub uid: String,
}

/// A goodbye that was said.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Goodbye {
    /// When.
    pub time: Time,
    /// Why.
    #[schemars(length(max = 1024))]
    pub reason: Option<String>,
}

/// The item an agent holds.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CurrentItem {
    /// Its name.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Its uid.
    #[schemars(length(max = 64))]
    pub uid: String,
    /// The lease epoch it is held under.
    pub epoch: i64,
}

/// Tokens of an agent's life.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentTokens {
    /// Spent.
    pub used: Option<i64>,
    /// Held for calls in flight.
    pub held: Option<i64>,
    /// Charged for gateways that went away.
    pub lost: Option<i64>,
    /// The limit, top-ups and grants included.
    pub limit: Option<i64>,
    /// Top-ups taken.
    pub top_ups: Option<i32>,
    /// Holds are given from memory below this; raised before they are passed.
    pub high_water: Option<i64>,
    /// What makes the ledger exactly once.
    pub ledger: Option<Ledger>,
}

/// What became of an agent's items.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentItems {
    /// Finished with success.
    #[serde(default)]
    pub succeeded: i32,
    /// Finished with failure.
    #[serde(default)]
    pub failed: i32,
}

/// The sandbox in force, as the pod reported it.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxReport {
    /// The tier in force.
    #[schemars(length(max = 63))]
    pub tier: String,
    /// Guarantees that the node cannot give.
    #[schemars(length(max = 16), inner(length(max = 128)))]
    pub missing: Option<Vec<String>>,
}

/// Something the supervisor did.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct InterventionRecord {
    /// When.
    pub time: Time,
    /// On which signal.
    #[schemars(length(max = 63))]
    pub signal: String,
    /// What.
    #[schemars(length(max = 63))]
    pub action: String,
    /// Why, in words.
    #[schemars(length(max = 1024))]
    pub message: String,
    /// What else would have been done at that moment, each as `signal: action`.
    #[schemars(length(max = 16), inner(length(max = 128)))]
    pub overruled: Option<Vec<String>>,
}

/// What Spillway says of an agent.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = never_falls("governorEpoch")
        .message("governorEpoch must not fall: the writer has lost its leadership"),
)]
pub struct AgentStatus {
    /// The generation this status speaks of; -1 before the first look.
    pub observed_generation: Option<i64>,
    /// Where it is in its life.
    pub phase: Option<AgentPhase>,
    /// Its pod, from our own create response.
    pub pod_ref: Option<PodRef>,
    /// The claim of its own volume, which outlives its pod.
    pub claim_ref: Option<ClaimRef>,
    /// The node its pod is on.
    #[schemars(length(max = 253))]
    pub node: Option<String>,
    /// Its container, as the runtime names it.
    #[serde(rename = "containerID")]
    #[schemars(length(max = 256))]
    pub container_id: Option<String>,
    /// When its program started.
    pub start_time: Option<Time>,
    /// Its last heartbeat, written only with other changes.
    pub last_heartbeat_time: Option<Time>,
    /// Its program's last activity, written only with other changes.
    pub last_activity_time: Option<Time>,
    /// The goodbye it said.
    pub goodbye: Option<Goodbye>,
    /// What it does now.
    #[schemars(length(max = 256))]
    pub current_action: Option<String>,
    /// The item it holds.
    pub current_item: Option<CurrentItem>,
    /// Tokens of its life.
    pub tokens: Option<AgentTokens>,
    /// Time-outs so far.
    pub timeouts: Option<i32>,
    /// Pauses so far.
    pub pauses: Option<i64>,
    /// It is paused because the tokens of its life were over at this limit, and goes on by itself when the limit is higher.
    pub paused_at_limit: Option<i64>,
    /// Agents it spawned that live.
    pub children: Option<i32>,
    /// What became of its items.
    pub items: Option<AgentItems>,
    /// The sandbox in force.
    pub sandbox: Option<SandboxReport>,
    /// What the supervisor did, the newest last, at most 5.
    #[schemars(length(max = 5))]
    pub interventions: Option<Vec<InterventionRecord>>,
    /// When it ended.
    pub stop_time: Option<Time>,
    /// Owner epoch of the last writer.
    pub governor_epoch: Option<i64>,
    /// Ready, Heartbeating, GoodbyeRequested, GivenUp, SandboxEnforced, BudgetAvailable, Paused, Checkpointed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_come_under_the_uid_of_the_pod_or_of_the_agent_outside_the_cluster() {
        let agent = |spec: serde_json::Value, status: serde_json::Value| -> Agent {
            let object = serde_json::json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Agent", "metadata": {"name": "a", "uid": "own"}, "spec": spec, "status": status});
            serde_json::from_value(object).expect("an Agent")
        };
        let inside = serde_json::json!({"poolRef": {"name": "p"}});
        let outside = serde_json::json!({"poolRef": {"name": "p"}, "external": {"user": "alice"}});
        let pod = serde_json::json!({"podRef": {"name": "a", "uid": "pod"}});
        assert_eq!(agent(inside.clone(), pod.clone()).caller_uid(), Some("pod"));
        assert_eq!(agent(inside, serde_json::json!({})).caller_uid(), None);
        assert_eq!(agent(outside, pod).caller_uid(), Some("own"), "whatever stands in its status");
    }

    #[test]
    fn phases_have_the_names_under_which_they_are_stored() {
        for one in AgentPhase::ALL {
            assert_eq!(serde_json::json!(one), serde_json::json!(one.name()));
        }
    }
}
