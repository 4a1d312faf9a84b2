//! `Agent`: one object for each agent. Its pool, a person or another agent creates it. It owns its pod.

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema, Resource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::agent_pool::AgentPool;
use crate::budget::Ledger;
use crate::schema::never_decreases_rule;
pub use crate::shared::CurrentItem;
use crate::shared::LocalRef;
use crate::tool_approval::{ToolAnswer, ToolApproval};

/// Desired state of one agent.
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
    doc = "One AI coding agent. Its AgentPool, a person or another agent creates it. It owns its pod.",
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
    printcolumn(name = "Sandbox", type_ = "string", json_path = ".status.sandbox.tier", priority = 1),
    printcolumn(name = "Container", type_ = "string", json_path = ".status.containerID", priority = 1),
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.poolRef == oldSelf.poolRef").message("poolRef cannot be changed: create another Agent").field_path(".poolRef"),
    validation = Rule::new("has(self.sequence) == has(oldSelf.sequence) && (!has(self.sequence) || self.sequence == oldSelf.sequence)")
        .message("sequence cannot be changed").field_path(".sequence"),
    validation = Rule::new("!has(self.hibernated) || !self.hibernated || has(self.sequence)")
        .message("hibernated needs sequence: a pool wakes only the agents that it created").field_path(".hibernated"),
    validation = Rule::new("has(self.manual) == has(oldSelf.manual) && (!has(self.manual) || self.manual == oldSelf.manual)")
        .message("manual cannot be changed"),
    validation = Rule::new("has(self.external) == has(oldSelf.external) && (!has(self.external) || self.external == oldSelf.external)")
        .message("external cannot be changed: an agent always runs in the same place and for the same user").field_path(".external"),
    validation = Rule::new("!has(self.external) || !(has(self.sequence) || has(self.parentRef) || has(self.resources))")
        .message("external agents have no pod: sequence, parentRef and resources must be unset").field_path(".external"),
)]
pub struct AgentSpec {
    /// AgentPool whose bulkhead, program and sandbox the agent has.
    pub pool_ref: LocalRef,
    /// Name shown to people.
    #[schemars(length(min = 1, max = 63))]
    pub display_name: Option<String>,
    /// Sequence number under which the pool created the Agent. The Agent's name is derived from this number and the pool's uid, which
    /// proves that it belongs to the pool. If unset, the pool did not create it.
    #[schemars(range(min = 0))]
    pub sequence: Option<i64>,
    /// Agent that spawned this one.
    pub parent_ref: Option<LocalRef>,
    /// Marks an Agent that a person created. `min` and `max` of its pool do not count it, but its bulkhead always applies. This field does
    /// not decide whether the pool created the Agent; its name and `sequence` do.
    pub manual: Option<bool>,
    /// Whether the agent is paused: it takes no work and makes no model calls. Defaults to false.
    pub paused: Option<bool>,
    /// Number of the pause to resume from (`status.pauses`).
    #[schemars(range(min = 0))]
    pub resume_pause: Option<i64>,
    /// Whether the agent has no pod for now and keeps its identity and volume. Its pool sets this, and unsets it when there is work
    /// (`whenEmpty.action: Hibernate`).
    pub hibernated: Option<bool>,
    /// Compute resources of this agent. Defaults to those of the pool.
    #[serde(default)]
    #[schemars(schema_with = "crate::schema::resources")]
    pub resources: Option<ResourceRequirements>,
    /// Set if the agent runs outside the cluster: it has no pod, and its process registered with the gateway. The leader creates such
    /// Agents for pools with `external`.
    pub external: Option<ExternalProcess>,
    /// Answers to calls of privileged programs that wait for approval (`status.toolApprovals`). An answer needs the right `approve` on the
    /// Toolset. Answers whose ids are no more in the status have no effect.
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["id"]))]
    pub tool_approvals: Option<Vec<ToolAnswer>>,
}

/// The process of an agent outside the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExternalProcess {
    /// User whose token registered the process, as the API server names it. Calls of other users are refused.
    #[schemars(length(min = 1, max = 512))]
    pub user: String,
}

impl Agent {
    /// Uid that identifies the agent's calls: that of its pod, or its own if it runs outside the cluster. `None` if it has no pod now.
    pub fn caller_uid(&self) -> Option<&str> {
        match &self.spec.external {
            Some(_) => self.metadata.uid.as_deref(),
            None => self.status.as_ref()?.pod_ref.as_ref().map(|pod| pod.uid.as_str()),
        }
    }

    /// Whether the stored phase says that the agent has ended.
    pub fn has_ended(&self) -> bool {
        self.status.as_ref().and_then(|status| status.phase).is_some_and(AgentPhase::ended)
    }

    /// Uid of the pool that owns the Agent. An Agent that a person created may have none.
    pub fn owner_uid(&self) -> Option<&str> {
        let owners = self.metadata.owner_references.iter().flatten();
        owners
            .into_iter()
            .find(|owner| owner.kind == AgentPool::kind(&()) && owner.controller == Some(true))
            .map(|owner| owner.uid.as_str())
    }
}

/// Phase of an agent. Stopped and ForceStopped are final.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[schemars(transform = crate::schema::without_enum_description)]
pub enum AgentPhase {
    /// Its pod is created or starts.
    Spawning,
    /// Its pod runs, and it may not work yet.
    Running,
    /// It holds an item, or a person uses its terminal.
    Active,
    /// It is registered and holds no item.
    Idle,
    /// It is paused and takes nothing new.
    Paused,
    /// It has no pod and keeps its volume and identity.
    Hibernated,
    /// Its pod ends with a grace period.
    Goodbye,
    /// It has ended.
    Stopped,
    /// It is given up, or its node is unreachable.
    Stale,
    /// It was ended by force.
    ForceStopped,
}

impl AgentPhase {
    /// All phases, in the order of an agent's life.
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

    /// Name under which the phase is stored.
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

    /// Whether the agent has ended. An agent that has ended never returns and is never counted.
    pub fn ended(self) -> bool {
        match self {
            Self::Stopped | Self::ForceStopped => true,
            Self::Spawning | Self::Running | Self::Active | Self::Idle | Self::Paused | Self::Hibernated | Self::Goodbye | Self::Stale => {
                false
            }
        }
    }
}

/// The pod of an agent, known only from the response to our own create request.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodRef {
    /// Name of the pod.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Uid of the pod. It is the identity of the agent.
    #[schemars(length(max = 64))]
    pub uid: String,
}

/// The PersistentVolumeClaim of an agent's own volume.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimRef {
    /// Name of the PersistentVolumeClaim.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Uid of the PersistentVolumeClaim.
    #[schemars(length(max = 64))]
    pub uid: String,
}

/// An agent's statement that its work is over.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Goodbye {
    /// Time of the goodbye.
    pub time: Time,
    /// Reason that the agent gave.
    #[schemars(length(max = 1024))]
    pub reason: Option<String>,
}

/// Lifetime tokens of an agent.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentTokens {
    /// Tokens spent.
    pub used: Option<i64>,
    /// Tokens held for calls in flight.
    pub held: Option<i64>,
    /// Tokens charged for gateways that disappeared.
    pub lost: Option<i64>,
    /// Token limit, including top-ups and grants.
    pub limit: Option<i64>,
    /// Number of top-ups taken.
    pub top_ups: Option<i32>,
    /// Total up to which tokens are given without a write. It is raised before it is reached.
    pub high_water: Option<i64>,
    /// Records with which the ledger counts each call exactly once.
    pub ledger: Option<Ledger>,
}

/// Results of an agent's items.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentItems {
    /// Number of items that succeeded.
    #[serde(default)]
    pub succeeded: i32,
    /// Number of items that failed.
    #[serde(default)]
    pub failed: i32,
}

/// The sandbox in force, as the pod reported it.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxReport {
    /// Tier of the sandbox in force.
    #[schemars(length(max = 63))]
    pub tier: String,
    /// Guarantees that are not in force.
    #[schemars(length(max = 16), inner(length(max = 128)))]
    pub missing: Option<Vec<String>>,
    /// Why the program does not start on its node: what its pool requires cannot be enforced there.
    pub unavailable: Option<UnavailableSandbox>,
    /// What the sandbox refused, or would refuse in the mode Observe, as far as there is space: names of system calls, and in the mode
    /// Observe files as `read PATH` or `write PATH`. The metric `spillway_pool_sandbox_refusals_total` counts.
    #[schemars(length(max = 16), inner(length(max = 256)))]
    pub refused: Option<Vec<String>>,
}

/// A required sandbox that a node cannot enforce.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnavailableSandbox {
    /// The reason, in one word.
    #[schemars(length(max = 63))]
    pub reason: String,
    /// What is wrong, and what to do.
    #[schemars(length(max = 1024))]
    pub message: String,
}

/// An intervention of the supervisor.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct InterventionRecord {
    /// Time of the intervention.
    pub time: Time,
    /// Signal that caused the intervention.
    #[schemars(length(max = 63))]
    pub signal: String,
    /// Action of the supervisor.
    #[schemars(length(max = 63))]
    pub action: String,
    /// Reason for the action, as text.
    #[schemars(length(max = 1024))]
    pub message: String,
    /// Other actions that applied at that moment and were not taken, each as `signal: action`.
    #[schemars(length(max = 16), inner(length(max = 128)))]
    pub overruled: Option<Vec<String>>,
}

/// Observed state of an agent.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = never_decreases_rule("governorEpoch")
        .message("governorEpoch must not fall: the writer has lost its leadership"),
)]
pub struct AgentStatus {
    /// Generation that this status describes; -1 before the first reconcile.
    pub observed_generation: Option<i64>,
    /// Phase of the agent: `Spawning` (its pod is created or starts), `Running` (its pod runs, and it may not work
    /// yet), `Active` (it holds an item, or a person uses its terminal), `Idle` (it is registered and holds no item),
    /// `Paused`, `Hibernated` (it has no pod), `Goodbye` (its pod ends with a grace period), `Stopped`, `Stale` (it is
    /// given up, or its node is unreachable) or `ForceStopped`. Stopped and ForceStopped are final.
    pub phase: Option<AgentPhase>,
    /// Pod of the agent, from the response to our own create request.
    pub pod_ref: Option<PodRef>,
    /// PersistentVolumeClaim of the agent's own volume. It outlives the pod.
    pub claim_ref: Option<ClaimRef>,
    /// Node on which the pod runs.
    #[schemars(length(max = 253))]
    pub node: Option<String>,
    /// Container ID, as the container runtime reports it.
    #[serde(rename = "containerID")]
    #[schemars(length(max = 256))]
    pub container_id: Option<String>,
    /// When the program started.
    pub start_time: Option<Time>,
    /// Time of the last heartbeat. It is written only together with other changes.
    pub last_heartbeat_time: Option<Time>,
    /// Time of the program's last activity. It is written only together with other changes.
    pub last_activity_time: Option<Time>,
    /// The agent's statement that its work is over.
    pub goodbye: Option<Goodbye>,
    /// Current action, as the agent reports it.
    #[schemars(length(max = 256))]
    pub current_action: Option<String>,
    /// Item that the agent holds.
    pub current_item: Option<CurrentItem>,
    /// Lifetime tokens of the agent.
    pub tokens: Option<AgentTokens>,
    /// Number of time-outs so far.
    pub timeouts: Option<i32>,
    /// Number of pauses so far.
    pub pauses: Option<i64>,
    /// Limit at which the agent was paused because its lifetime tokens were spent. It continues automatically when the limit is higher.
    pub paused_at_limit: Option<i64>,
    /// Number of living agents that it spawned.
    pub children: Option<i32>,
    /// Results of its items.
    pub items: Option<AgentItems>,
    /// The sandbox in force, as the pod reported it.
    pub sandbox: Option<SandboxReport>,
    /// The last 5 interventions of the supervisor, the newest last.
    #[schemars(length(max = 5))]
    pub interventions: Option<Vec<InterventionRecord>>,
    /// Calls of privileged programs that a person approves, the newest last.
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["id"]))]
    pub tool_approvals: Option<Vec<ToolApproval>>,
    /// When the agent ended.
    pub stop_time: Option<Time>,
    /// Owner epoch of the last writer.
    pub governor_epoch: Option<i64>,
    /// Conditions: Ready, Heartbeating, GoodbyeRequested, GivenUp, SandboxEnforced, BudgetAvailable, Paused, Checkpointed, TokensRequested.
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
