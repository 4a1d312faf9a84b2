//! Condition types and reasons: public API, so they are constants in one place.
//!
//! Ready: the spec was observed and can be served (a pool at zero is Ready). Reconciling: abnormal-true, only while a new
//! generation is being made real. Stalled: only for what needs a person to change something. Everything that waits for
//! quota, nodes, images, budgets or missing objects is Blocked, with a reason.

/// Condition types.
pub mod types {
    /// The spec was observed and can be served.
    pub const READY: &str = "Ready";
    /// A queue takes items.
    pub const ACCEPTING: &str = "Accepting";
    /// A queue keeps every dead letter for its whole time.
    pub const DEAD_LETTERS_KEPT: &str = "DeadLettersKept";
    /// No item of a queue is over its objectives.
    pub const OBJECTIVES_MET: &str = "ObjectivesMet";
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
    /// The agent's pod reports, and its program lives.
    pub const HEARTBEATING: &str = "Heartbeating";
    /// The agent said goodbye.
    pub const GOODBYE_REQUESTED: &str = "GoodbyeRequested";
    /// The agent is being ended by force: decided, and never taken back.
    pub const GIVEN_UP: &str = "GivenUp";
    /// The compute of a Budget is in force, as a ResourceQuota and a LimitRange.
    pub const QUOTA_APPLIED: &str = "QuotaApplied";
    /// The agent is held: it takes nothing new.
    pub const PAUSED: &str = "Paused";
    /// While the supervisor holds the agent and its item: whether `hooks.checkpoint` wrote down where it is.
    pub const CHECKPOINTED: &str = "Checkpointed";
    /// The agent asks people for more tokens.
    pub const TOKENS_REQUESTED: &str = "TokensRequested";
    /// There are tokens for the agent's model calls.
    pub const BUDGET_AVAILABLE: &str = "BudgetAvailable";
    /// So much of a budget is spent that one of its thresholds acts.
    pub const NEAR_LIMIT: &str = "NearLimit";
    /// The tokens of a Grant count.
    pub const APPLIED: &str = "Applied";
    /// The tokens of a Grant count no more.
    pub const EXPIRED: &str = "Expired";
    /// A circuit of a Breaker is open, or is being tried.
    pub const TRIPPED: &str = "Tripped";
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
    /// A Budget or a ClusterBudget leaves no room for one more agent with a pod, for its memory or for its volume; or, of the
    /// budget itself, a limit of tokens is spent: model calls are refused until its window ends or somebody raises it.
    pub const BUDGET_EXHAUSTED: &str = "BudgetExhausted";
    /// More namespaces have pools than a ClusterBudget allows, and this one is not among the first.
    pub const PROJECT_LIMIT: &str = "ProjectLimit";
    /// What a Budget says of compute is in force.
    pub const APPLIED: &str = "Applied";
    /// What a Budget says of compute is being put in force.
    pub const APPLYING: &str = "Applying";
    /// An older Budget of the namespace says what compute it may use.
    pub const COMPUTE_CONFLICT: &str = "ComputeConflict";
    /// An object that is not the Budget's has the name of its ResourceQuota or LimitRange.
    pub const NAME_TAKEN: &str = "NameTaken";
    /// The API server refuses the ResourceQuota or the LimitRange.
    pub const QUOTA_REFUSED: &str = "QuotaRefused";
    /// The Budget's mode is not Enforce: it has no ResourceQuota and no LimitRange.
    pub const NOT_ENFORCED: &str = "NotEnforced";
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
    /// The agent's pod runs and has registered with the gateway.
    pub const REGISTERED: &str = "Registered";
    /// The agent's pod runs and has not registered with the gateway yet.
    pub const NOT_REGISTERED: &str = "NotRegistered";
    /// What must not be reachable from the agent's pod is: its program is held back.
    pub const EGRESS_NOT_ENFORCED: &str = "EgressNotEnforced";
    /// What has to hold before the agent gets work does not: it is tried again, and gets none meanwhile.
    pub const PREFLIGHT_FAILED: &str = "PreflightFailed";
    /// The NetworkPolicy, or the certificates to trust, that a pool's pods need cannot be made.
    pub const WALLS_PENDING: &str = "WallsPending";
    /// The agent's pod reports.
    pub const HEARTBEATING: &str = "Heartbeating";
    /// The agent's pod was silent for `supervision.heartbeatTimeoutSeconds`.
    pub const HEARTBEAT_LOST: &str = "HeartbeatLost";
    /// The agent's program was silent, or stopped by a signal, for `supervision.heartbeatTimeoutSeconds`.
    pub const PROGRAM_SILENT: &str = "ProgramSilent";
    /// So many agents of one node or gateway are silent that something of ours is down: nobody is given up yet.
    pub const SILENT_WITH_MANY: &str = "SilentWithMany";
    /// The agent did not register within `supervision.startupTimeoutSeconds`.
    pub const START_TIMED_OUT: &str = "StartTimedOut";
    /// A rule of `supervision.rules` ended the agent.
    pub const REAPED: &str = "Reaped";
    /// The agent held an item and was silent for as long as the item's lease lasts.
    pub const LEASE_EXPIRED: &str = "LeaseExpired";
    /// The agent made no progress with its item for `stallTimeoutSeconds`.
    pub const ITEM_STALLED: &str = "ItemStalled";
    /// The agent worked on its item for `attemptTimeoutSeconds`.
    pub const ITEM_PAST_TIME: &str = "ItemPastTime";
    /// The agent was told to give its item back, because it was cancelled or late, and did not.
    pub const CANCEL_IGNORED: &str = "CancelIgnored";
    /// How much work there is is not known yet.
    pub const WORK_UNKNOWN: &str = "WorkUnknown";
    /// Fewer agents would do, and that has not been so for long enough.
    pub const COOLING_DOWN: &str = "CoolingDown";
    /// Items are given out.
    pub const SERVING: &str = "Serving";
    /// Nothing is given out, because a person said so.
    pub const SUSPENDED: &str = "Suspended";
    /// Items are accepted.
    pub const ACCEPTED: &str = "Accepted";
    /// There is room for more dead letters.
    pub const DEAD_LETTERS_FIT: &str = "DeadLettersFit";
    /// A queue has as many dead letters as it keeps: for each one more the oldest is deleted.
    pub const DEAD_LETTERS_FULL: &str = "DeadLettersFull";
    /// No item is over its queue's objectives.
    pub const OBJECTIVES_MET: &str = "ObjectivesMet";
    /// Items wait, or take, longer than their queue's objectives say.
    pub const OBJECTIVE_MISSED: &str = "ObjectiveMissed";
    /// Items are accepted, and the queue is over 80 % full; or of dead letters over 80 % of what it keeps are there.
    pub const NEARLY_FULL: &str = "NearlyFull";
    /// The namespace holds as many unfinished items as its Budgets allow, over all queues.
    pub const PROJECT_FULL: &str = "ProjectFull";
    /// A bulkhead is over 80 % full: a queue, or what a Budget or a ClusterBudget says of agents or of compute.
    pub const BULKHEAD_NEARLY_FULL: &str = "BulkheadNearlyFull";
    /// A bulkhead is full: more is refused until there is room.
    pub const BULKHEAD_FULL: &str = "BulkheadFull";
    /// The queue holds as much as it may.
    pub const QUEUE_FULL: &str = "QueueFull";
    /// The agent said goodbye.
    pub const SAID_GOODBYE: &str = "SaidGoodbye";
    /// The agent asks for more tokens; its words are in the message. Nothing is raised by that: a person grants.
    pub const ASKED_FOR_TOKENS: &str = "AskedForTokens";
    /// The agent takes back that it asked for more tokens.
    pub const TAKEN_BACK: &str = "TakenBack";
    /// The agent that asked for this one ended.
    pub const PARENT_ENDED: &str = "ParentEnded";
    /// `spec.paused` holds the agent.
    pub const PAUSED_BY_SPEC: &str = "PausedBySpec";
    /// The supervisor holds the agent; `spec.resumePause` lets it go.
    pub const PAUSED_BY_SUPERVISOR: &str = "PausedBySupervisor";
    /// The tokens of the agent's life are over and its work has some worth: it and its item go on by themselves when a Grant,
    /// or the pool, gives it more; `spec.resumePause` lets it go too.
    pub const TOKEN_BUDGET_EXCEEDED: &str = "TokenBudgetExceeded";
    /// `hooks.checkpoint` succeeded.
    pub const CHECKPOINT_TAKEN: &str = "CheckpointTaken";
    /// `hooks.checkpoint` failed, or took too long. Everything is kept all the same.
    pub const CHECKPOINT_FAILED: &str = "CheckpointFailed";
    /// The pod was told to take a checkpoint and has not said what came of it.
    pub const CHECKPOINT_ORDERED: &str = "CheckpointOrdered";
    /// The pod has not said for minutes what came of the checkpoint. Everything is kept all the same.
    pub const CHECKPOINT_UNANSWERED: &str = "CheckpointUnanswered";
    /// The pool has no `hooks.checkpoint`.
    pub const NO_CHECKPOINT_HOOK: &str = "NoCheckpointHook";
    /// The tokens of the agent's life are over and its work has no worth: it is ended, and its item counts nothing of it.
    pub const TOKENS_SPENT: &str = "TokensSpent";
    /// The agent spent all the tokens of its life on its item, in vain: that is a failure of the item.
    pub const TOKENS_EXHAUSTED: &str = "TokensExhausted";
    /// The program of an item ended after a model call was refused by a budget above its agent: the item is given back.
    pub const BUDGET_REFUSED: &str = "BudgetRefused";
    /// The program of an item ended after a model call was refused by the item's own share (`bulkhead.tokens`).
    pub const SHARE_SPENT: &str = "ShareSpent";
    /// Too many of those that work on one group failed together: all of them are ended, and their items given back.
    pub const GANG_DIVERGENCE: &str = "GangDivergence";
    /// Nobody holds the agent.
    pub const NOT_PAUSED: &str = "NotPaused";
    /// The walls of the pod stand, and no others: what is missing is in `status.sandbox`.
    pub const POD_WALLS_ONLY: &str = "PodWallsOnly";
    /// Nothing isolates its program: it runs outside the cluster.
    pub const WALLS_NOT_ENFORCED: &str = "WallsNotEnforced";
    /// It runs outside the cluster, registered, and its program is not ready to work yet.
    pub const PROCESS_NOT_READY: &str = "ProcessNotReady";
    /// It runs outside the cluster and is told to leave.
    pub const PROCESS_LEAVING: &str = "ProcessLeaving";
    /// Its pool takes no agents from outside the cluster any more.
    pub const EXTERNAL_NOT_ALLOWED: &str = "ExternalNotAllowed";
    /// The agent's containers run but do not report Ready.
    pub const POD_NOT_READY: &str = "PodNotReady";
    /// The pod ended with success.
    pub const POD_SUCCEEDED: &str = "PodSucceeded";
    /// The pod ended with failure.
    pub const POD_FAILED: &str = "PodFailed";
    /// The pod is being deleted.
    pub const POD_STOPPING: &str = "PodStopping";
    /// The agent gives its pod back, for as long as there is no work for it.
    pub const HIBERNATING: &str = "Hibernating";
    /// The agent is without a pod, for as long as there is no work for it.
    pub const HIBERNATED: &str = "Hibernated";
    /// The agent hibernated, and comes back.
    pub const WOKEN: &str = "Woken";
    /// The claim of the agent's own volume cannot be had.
    pub const VOLUME_REFUSED: &str = "VolumeRefused";
    /// The claim of the agent's own volume was gone when it woke: it begins with an empty one.
    pub const VOLUME_LOST: &str = "VolumeLost";
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
    /// The budget is counted.
    pub const METERED: &str = "Metered";
    /// Less is spent than the lowest threshold says.
    pub const BELOW_LIMIT: &str = "BelowLimit";
    /// A threshold was reached.
    pub const THRESHOLD_REACHED: &str = "ThresholdReached";
    /// There are tokens for an agent's calls.
    pub const TOKENS_LEFT: &str = "TokensLeft";
    /// The tokens of an agent's life are spent.
    pub const LIFETIME_SPENT: &str = "LifetimeSpent";
    /// A threshold pauses what is below the budget.
    pub const PAUSED_BY_THRESHOLD: &str = "PausedByThreshold";
    /// The Budget that `parentRef` names does not exist.
    pub const PARENT_MISSING: &str = "ParentMissing";
    /// A Budget is its own parent, by way of others.
    pub const PARENT_CYCLE: &str = "ParentCycle";
    /// A Budget has too many parents above it.
    pub const TOO_MANY_PARENTS: &str = "TooManyParents";
    /// What is guaranteed to a budget does not fit beside its older siblings.
    pub const GUARANTEES_EXCEED_PARENT: &str = "GuaranteesExceedParent";
    /// What is guaranteed to a budget counts nothing: a token counts otherwise at its parent.
    pub const GUARANTEE_OTHER_WEIGHTS: &str = "GuaranteeOtherWeights";
    /// Another ClusterBudget, which is older, binds a namespace already.
    pub const NAMESPACE_TAKEN: &str = "NamespaceTaken";
    /// A ClusterBudget selects more namespaces with pools than one can keep account of.
    pub const TOO_MANY_NAMESPACES: &str = "TooManyNamespaces";
    /// Nothing is wrong with the object.
    pub const NO_DEFECT: &str = "NoDefect";
    /// The tokens of a Grant are on top of the limit.
    pub const GRANTED: &str = "Granted";
    /// What a Grant names does not exist.
    pub const TARGET_MISSING: &str = "TargetMissing";
    /// What a Grant names has no such limit.
    pub const LIMIT_MISSING: &str = "LimitMissing";
    /// A Grant in this namespace may not raise what it names.
    pub const NOT_PERMITTED: &str = "NotPermitted";
    /// The time of a Grant is over.
    pub const TIME_OVER: &str = "TimeOver";
    /// The time of a Grant is not over.
    pub const NOT_OVER: &str = "NotOver";
    /// A Breaker guards its pools.
    pub const GUARDING: &str = "Guarding";
    /// No pool that a Breaker names exists.
    pub const NO_POOL: &str = "NoPool";
    /// A circuit is open: too much failed.
    pub const CIRCUIT_OPEN: &str = "CircuitOpen";
    /// It is being tried whether what a circuit guards works again.
    pub const CIRCUIT_HALF_OPEN: &str = "CircuitHalfOpen";
    /// A circuit is open until a person approves that it is tried again.
    pub const REVIEW_REQUIRED: &str = "ReviewRequired";
    /// A person holds all circuits of a Breaker open.
    pub const FORCED_OPEN: &str = "ForcedOpen";
    /// A person holds all circuits of a Breaker closed.
    pub const FORCED_CLOSED: &str = "ForcedClosed";
    /// All circuits of a Breaker are closed.
    pub const CIRCUITS_CLOSED: &str = "CircuitsClosed";
    /// The circuit of a pool's work refuses: too much failed.
    pub const BREAKER_OPEN: &str = "BreakerOpen";
    /// The cluster's store was rolled back: it was restored from a backup, or lost writes that it had acknowledged.
    pub const STORE_ROLLED_BACK: &str = "StoreRolledBack";
    /// An agent finished an item that was lost when the store was rolled back.
    pub const FINISH_LOST: &str = "FinishLost";
}
