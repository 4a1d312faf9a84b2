//! Condition types and reasons: public API, so they are constants in one place.
//!
//! Ready: the spec was observed and can be served (a pool at zero is Ready). Reconciling: abnormal-true, only while a new
//! generation is being made real. Stalled: only for what needs a person to change something. Everything that waits for
//! quota, nodes, images, budgets or missing objects is Blocked, with a reason.

/// Condition types.
pub mod types {
    /// The spec was observed and can be served.
    pub const READY: &str = "Ready";
    /// A new generation is being made real.
    pub const RECONCILING: &str = "Reconciling";
    /// A person has to change something.
    pub const STALLED: &str = "Stalled";
    /// The pool wants no agents now.
    pub const SCALED_TO_ZERO: &str = "ScaledToZero";
    /// The pool runs as many agents as it may.
    pub const AT_MAX: &str = "AtMax";
    /// Agents that are wanted cannot be made now; the reason says why.
    pub const BLOCKED: &str = "Blocked";
    /// The agent's sandbox is in force, as its pod reported it.
    pub const SANDBOX_ENFORCED: &str = "SandboxEnforced";
}

/// Reasons of pools and agents.
pub mod reasons {
    /// All is as wanted.
    pub const AS_DESIRED: &str = "AsDesired";
    /// Agents are being made or ended.
    pub const SCALING: &str = "Scaling";
    /// `spec.replicas` decides.
    pub const REPLICAS_SET: &str = "ReplicasSet";
    /// `spec.scaling.min` decides.
    pub const AT_MINIMUM: &str = "AtMinimum";
    /// A work-aware pool has no eligible work.
    pub const NO_WORK: &str = "NoWork";
    /// `spec.scaling.max` is 0.
    pub const DRAINED: &str = "Drained";
    /// The pool runs as many as `max` allows.
    pub const MAX_REACHED: &str = "MaxReached";
    /// Budgets leave no more room.
    pub const NO_ROOM: &str = "NoRoom";
    /// The pool runs fewer than `max` allows.
    pub const BELOW_MAX: &str = "BelowMax";
    /// The pool wants agents.
    pub const AGENTS_WANTED: &str = "AgentsWanted";
    /// Nothing is in the way.
    pub const NOT_BLOCKED: &str = "NotBlocked";
    /// An object the spec names does not exist.
    pub const MISSING_REFERENCE: &str = "MissingReference";
    /// The namespace's ResourceQuota refuses a pod.
    pub const QUOTA_EXCEEDED: &str = "QuotaExceeded";
    /// The API server refuses a pod for another reason (admission, Pod Security, a bad value).
    pub const POD_REFUSED: &str = "PodRefused";
    /// No node takes the pod.
    pub const UNSCHEDULABLE: &str = "Unschedulable";
    /// The image cannot be pulled.
    pub const IMAGE_PULL: &str = "ImagePull";
    /// The container cannot be made or started.
    pub const CONTAINER_START: &str = "ContainerStart";
    /// The API server refuses an Agent of the pool.
    pub const AGENT_REFUSED: &str = "AgentRefused";
    /// Agents end again and again soon after their start; the next is made later and later.
    pub const CRASH_LOOP: &str = "CrashLoop";
    /// The namespace is being deleted.
    pub const NAMESPACE_TERMINATING: &str = "NamespaceTerminating";
    /// The spec asks for what this version of Spillway cannot do.
    pub const UNSUPPORTED: &str = "Unsupported";
    /// The stored object does not fit its type.
    pub const INVALID_OBJECT: &str = "InvalidObject";
    /// The new generation is in force.
    pub const OBSERVED: &str = "Observed";
    /// The pod exists and has not started.
    pub const POD_PENDING: &str = "PodPending";
    /// The pod is about to be made.
    pub const POD_CREATING: &str = "PodCreating";
    /// The agent's containers run.
    pub const POD_RUNNING: &str = "PodRunning";
    /// The agent's containers run but do not report Ready.
    pub const POD_NOT_READY: &str = "PodNotReady";
    /// The pod ended with success.
    pub const POD_SUCCEEDED: &str = "PodSucceeded";
    /// The pod ended with failure.
    pub const POD_FAILED: &str = "PodFailed";
    /// The pod is being deleted.
    pub const POD_STOPPING: &str = "PodStopping";
    /// The pod is gone.
    pub const POD_GONE: &str = "PodGone";
    /// The pod disappeared and nothing proves yet that its processes ended.
    pub const POD_MISSING: &str = "PodMissing";
    /// The node has not been heard of.
    pub const NODE_UNREACHABLE: &str = "NodeUnreachable";
    /// A pod with our name that we did not make was found and is being replaced.
    pub const FOREIGN_POD: &str = "ForeignPod";
    /// Nothing was reported yet.
    pub const NOT_REPORTED: &str = "NotReported";
    /// The pool this Agent names does not exist.
    pub const POOL_MISSING: &str = "PoolMissing";
}
