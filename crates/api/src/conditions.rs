//! Condition types and reasons. They are public API, so they are constants in one place.
//!
//! Ready: the spec was observed and can be served (a pool at zero is Ready). Reconciling: abnormal-true, only while a new generation is
//! being applied. Stalled: a person must change something. Blocked, with a reason: the object waits for quota, nodes, images, budgets or
//! missing objects.

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
    /// A new generation is being applied.
    pub const RECONCILING: &str = "Reconciling";
    /// A person must change something.
    pub const STALLED: &str = "Stalled";
    /// The pool wants no agents now.
    pub const SCALED_TO_ZERO: &str = "ScaledToZero";
    /// The pool runs as many agents as `max` allows.
    pub const AT_MAX: &str = "AtMax";
    /// Agents that the pool wants cannot be created now; the reason says why.
    pub const BLOCKED: &str = "Blocked";
    /// The agent's sandbox is in force, as its pod reported it.
    pub const SANDBOX_ENFORCED: &str = "SandboxEnforced";
    /// The agent's pod reports, and its program is alive.
    pub const HEARTBEATING: &str = "Heartbeating";
    /// The agent said goodbye.
    pub const GOODBYE_REQUESTED: &str = "GoodbyeRequested";
    /// The agent is being ended by force. The decision is stored and is never undone.
    pub const GIVEN_UP: &str = "GivenUp";
    /// The compute limits of a Budget are in force, as a ResourceQuota and a LimitRange.
    pub const QUOTA_APPLIED: &str = "QuotaApplied";
    /// The agent is paused: it takes nothing new.
    pub const PAUSED: &str = "Paused";
    /// Result of `hooks.checkpoint`, while the supervisor pauses the agent and its item.
    pub const CHECKPOINTED: &str = "Checkpointed";
    /// The agent asks people for more tokens.
    pub const TOKENS_REQUESTED: &str = "TokensRequested";
    /// Tokens are available for the agent's model calls.
    pub const BUDGET_AVAILABLE: &str = "BudgetAvailable";
    /// The tokens spent have reached a threshold of the budget.
    pub const NEAR_LIMIT: &str = "NearLimit";
    /// The tokens of a Grant count.
    pub const APPLIED: &str = "Applied";
    /// The tokens of a Grant no longer count.
    pub const EXPIRED: &str = "Expired";
    /// The definitions of a Toolset are valid, and the bridge serves all of them.
    pub const DEFINITIONS_VALID: &str = "DefinitionsValid";
    /// A circuit of a Breaker is open or half open.
    pub const TRIPPED: &str = "Tripped";
}

/// Reasons of conditions.
pub mod reasons {
    /// The object is in the desired state.
    pub const AS_DESIRED: &str = "AsDesired";
    /// Agents are being created or ended.
    pub const SCALING: &str = "Scaling";
    /// `spec.replicas` sets the number of agents.
    pub const REPLICAS_SET: &str = "ReplicasSet";
    /// `spec.scaling.min` sets the number of agents.
    pub const AT_MINIMUM: &str = "AtMinimum";
    /// A work-aware pool has no eligible work.
    pub const NO_WORK: &str = "NoWork";
    /// `spec.scaling.max` is 0.
    pub const DRAINED: &str = "Drained";
    /// The pool runs as many agents as `max` allows.
    pub const MAX_REACHED: &str = "MaxReached";
    /// Budgets leave no room for more agents.
    pub const NO_ROOM: &str = "NoRoom";
    /// The pool runs fewer agents than `max` allows.
    pub const BELOW_MAX: &str = "BelowMax";
    /// The pool wants agents.
    pub const AGENTS_WANTED: &str = "AgentsWanted";
    /// Nothing blocks the object.
    pub const NOT_BLOCKED: &str = "NotBlocked";
    /// An object that the spec names does not exist.
    pub const MISSING_REFERENCE: &str = "MissingReference";
    /// The namespace's ResourceQuota refuses a pod.
    pub const QUOTA_EXCEEDED: &str = "QuotaExceeded";
    /// A Budget or a ClusterBudget leaves no room for one more agent with a pod, for its memory or for its volume. Of the budget itself: a
    /// token limit is spent, and model calls are refused until its window ends or the limit is raised.
    pub const BUDGET_EXHAUSTED: &str = "BudgetExhausted";
    /// More namespaces have pools than a ClusterBudget allows, and this namespace is not among the first.
    pub const PROJECT_LIMIT: &str = "ProjectLimit";
    /// The compute limits of a Budget are in force.
    pub const APPLIED: &str = "Applied";
    /// The compute limits of a Budget are being applied.
    pub const APPLYING: &str = "Applying";
    /// An older Budget of the namespace sets its compute limits.
    pub const COMPUTE_CONFLICT: &str = "ComputeConflict";
    /// An object of another owner has the name of the Budget's ResourceQuota or LimitRange, or of an object of the Toolset.
    pub const NAME_TAKEN: &str = "NameTaken";
    /// The API server refuses the ResourceQuota or the LimitRange.
    pub const QUOTA_REFUSED: &str = "QuotaRefused";
    /// The Budget's mode is not Enforce: it has no ResourceQuota and no LimitRange.
    pub const NOT_ENFORCED: &str = "NotEnforced";
    /// The API server refuses a pod for another reason (admission, Pod Security, a bad value).
    pub const POD_REFUSED: &str = "PodRefused";
    /// No node that could run the pod has the profile of system calls that the pool requires (`seccomp: Localhost`).
    pub const NODE_PROFILE_MISSING: &str = "NodeProfileMissing";
    /// No node can run the pod, for another reason.
    pub const UNSCHEDULABLE: &str = "Unschedulable";
    /// The image cannot be pulled.
    pub const IMAGE_PULL: &str = "ImagePull";
    /// The container cannot be created or started.
    pub const CONTAINER_START: &str = "ContainerStart";
    /// The API server refuses an Agent of the pool.
    pub const AGENT_REFUSED: &str = "AgentRefused";
    /// Agents end repeatedly soon after their start. The pool waits longer before each new agent.
    pub const CRASH_LOOP: &str = "CrashLoop";
    /// The namespace is being deleted.
    pub const NAMESPACE_TERMINATING: &str = "NamespaceTerminating";
    /// The spec uses a field that this version of Spillway does not support.
    pub const UNSUPPORTED: &str = "Unsupported";
    /// The stored object does not fit its type.
    pub const INVALID_OBJECT: &str = "InvalidObject";
    /// The new generation is in force.
    pub const OBSERVED: &str = "Observed";
    /// The pod exists and has not started.
    pub const POD_PENDING: &str = "PodPending";
    /// The pod is about to be created.
    pub const POD_CREATING: &str = "PodCreating";
    /// The agent's pod runs and has registered with the gateway.
    pub const REGISTERED: &str = "Registered";
    /// The agent's pod runs and has not registered with the gateway yet.
    pub const NOT_REGISTERED: &str = "NotRegistered";
    /// The agent's pod can reach a destination that must be unreachable. Its program does not start.
    pub const EGRESS_NOT_ENFORCED: &str = "EgressNotEnforced";
    /// A preflight check of the agent failed. It is repeated, and the agent gets no work until it passes.
    pub const PREFLIGHT_FAILED: &str = "PreflightFailed";
    /// A list of destinations in `spec.sandbox.outputs` is wrong. The pool creates no agents.
    pub const INVALID_EGRESS: &str = "InvalidEgress";
    /// `spec.workspace.git` is wrong. The pool creates no agents.
    pub const INVALID_GIT: &str = "InvalidGit";
    /// The operator is being removed: it ends all agents and makes no new ones.
    pub const OPERATOR_REMOVAL: &str = "OperatorRemoval";
    /// The NetworkPolicy or the ConfigMap of certificates that a pool's pods need cannot be created.
    pub const WALLS_PENDING: &str = "WallsPending";
    /// The agent's pod reports.
    pub const HEARTBEATING: &str = "Heartbeating";
    /// The agent's pod was silent for `supervision.heartbeatTimeoutSeconds`.
    pub const HEARTBEAT_LOST: &str = "HeartbeatLost";
    /// The agent's program was silent, or stopped by a signal, for `supervision.heartbeatTimeoutSeconds`.
    pub const PROGRAM_SILENT: &str = "ProgramSilent";
    /// So many agents of one node or gateway are silent that a part of Spillway may be down. No agent is given up yet.
    pub const SILENT_WITH_MANY: &str = "SilentWithMany";
    /// The agent did not register within `supervision.startupTimeoutSeconds`.
    pub const START_TIMED_OUT: &str = "StartTimedOut";
    /// A rule of `supervision.rules` ended the agent.
    pub const REAPED: &str = "Reaped";
    /// The agent held an item and was silent for as long as the item's lease lasts.
    pub const LEASE_EXPIRED: &str = "LeaseExpired";
    /// The agent made no progress with its item for `stallTimeoutSeconds`.
    pub const ITEM_STALLED: &str = "ItemStalled";
    /// The agent worked on its item for longer than `attemptTimeoutSeconds`.
    pub const ITEM_PAST_TIME: &str = "ItemPastTime";
    /// The agent was told to give back its item, which was cancelled or late, and did not.
    pub const CANCEL_IGNORED: &str = "CancelIgnored";
    /// The amount of work is not known yet.
    pub const WORK_UNKNOWN: &str = "WorkUnknown";
    /// The pool needs fewer agents, but not yet for the whole cool-down.
    pub const COOLING_DOWN: &str = "CoolingDown";
    /// The queue gives out items, or the bridge of a Toolset takes calls.
    pub const SERVING: &str = "Serving";
    /// No items are given out, because a person suspended the queue.
    pub const SUSPENDED: &str = "Suspended";
    /// Items are accepted.
    pub const ACCEPTED: &str = "Accepted";
    /// There is room for more dead letters.
    pub const DEAD_LETTERS_FIT: &str = "DeadLettersFit";
    /// A queue has as many dead letters as it keeps. Each further one deletes the oldest.
    pub const DEAD_LETTERS_FULL: &str = "DeadLettersFull";
    /// No item is over its queue's objectives.
    pub const OBJECTIVES_MET: &str = "ObjectivesMet";
    /// Items wait, or take, longer than their queue's objectives allow.
    pub const OBJECTIVE_MISSED: &str = "ObjectiveMissed";
    /// Items are accepted, and the queue is over 80 % full. Of dead letters: over 80 % of the number that the queue keeps exist.
    pub const NEARLY_FULL: &str = "NearlyFull";
    /// The namespace holds as many unfinished items as its Budgets allow, over all queues.
    pub const PROJECT_FULL: &str = "ProjectFull";
    /// A bulkhead is over 80 % full: a queue, or a limit of a Budget or ClusterBudget on agents or compute.
    pub const BULKHEAD_NEARLY_FULL: &str = "BulkheadNearlyFull";
    /// A bulkhead is full. More is refused until there is room.
    pub const BULKHEAD_FULL: &str = "BulkheadFull";
    /// The queue holds as many items as it may.
    pub const QUEUE_FULL: &str = "QueueFull";
    /// The agent said goodbye.
    pub const SAID_GOODBYE: &str = "SaidGoodbye";
    /// The agent asks for more tokens; its reason is in the message. The request raises no limit: a person must grant it.
    pub const ASKED_FOR_TOKENS: &str = "AskedForTokens";
    /// The agent withdrew its request for more tokens.
    pub const TAKEN_BACK: &str = "TakenBack";
    /// The agent that asked for this one ended.
    pub const PARENT_ENDED: &str = "ParentEnded";
    /// `spec.paused` pauses the agent.
    pub const PAUSED_BY_SPEC: &str = "PausedBySpec";
    /// The supervisor pauses the agent. `spec.resumePause` resumes it.
    pub const PAUSED_BY_SUPERVISOR: &str = "PausedBySupervisor";
    /// The agent's lifetime tokens are spent and its work has progress. The agent and its item continue automatically when a Grant or the
    /// pool gives it more tokens. `spec.resumePause` resumes it too.
    pub const TOKEN_BUDGET_EXCEEDED: &str = "TokenBudgetExceeded";
    /// `hooks.checkpoint` succeeded.
    pub const CHECKPOINT_TAKEN: &str = "CheckpointTaken";
    /// `hooks.checkpoint` failed or took too long. The work is kept.
    pub const CHECKPOINT_FAILED: &str = "CheckpointFailed";
    /// The pod was told to take a checkpoint and has not reported the result.
    pub const CHECKPOINT_ORDERED: &str = "CheckpointOrdered";
    /// The pod has not reported the result of the checkpoint for minutes. The work is kept.
    pub const CHECKPOINT_UNANSWERED: &str = "CheckpointUnanswered";
    /// The pool has no `hooks.checkpoint`.
    pub const NO_CHECKPOINT_HOOK: &str = "NoCheckpointHook";
    /// The agent's lifetime tokens are spent and its work has no progress. The agent is ended, and its item counts no attempt.
    pub const TOKENS_SPENT: &str = "TokensSpent";
    /// The agent spent all its lifetime tokens on its item without progress. This is a failure of the item.
    pub const TOKENS_EXHAUSTED: &str = "TokensExhausted";
    /// The program of an item ended after a budget above its agent refused a model call. The item is given back.
    pub const BUDGET_REFUSED: &str = "BudgetRefused";
    /// The program of an item ended after the item's own token limit (`bulkhead.tokens`) refused a model call.
    pub const SHARE_SPENT: &str = "ShareSpent";
    /// Too many agents that work on one group failed together. All of them are ended, and their items are given back.
    pub const GANG_DIVERGENCE: &str = "GangDivergence";
    /// The agent is not paused.
    pub const NOT_PAUSED: &str = "NotPaused";
    /// Only the isolation of the pod is in force; `status.sandbox` lists the missing guarantees.
    pub const POD_WALLS_ONLY: &str = "PodWallsOnly";
    /// The sandbox of the agent's program is in force, and no guarantee is missing.
    pub const ENFORCED: &str = "Enforced";
    /// The sandbox of the agent's program is in force without guarantees that its pool prefers; `status.sandbox` lists them.
    pub const SANDBOX_DEGRADED: &str = "SandboxDegraded";
    /// The sandbox of the agent's program refuses nothing, and counts what it would refuse.
    pub const SANDBOX_OBSERVED: &str = "SandboxObserved";
    /// The pool requires Landlock, and the kernel of the agent's node has none.
    pub const LANDLOCK_NOT_BUILT: &str = "LandlockNotBuilt";
    /// The pool requires Landlock, and the kernel of the agent's node did not enable it.
    pub const LANDLOCK_NOT_ENABLED: &str = "LandlockNotEnabled";
    /// The pool requires Landlock, and a seccomp profile of the agent's node refuses its system calls.
    pub const LANDLOCK_REFUSED: &str = "LandlockRefused";
    /// The pool requires limits that the Landlock of the agent's node does not have.
    pub const LANDLOCK_TOO_OLD: &str = "LandlockTooOld";
    /// The pool requires AgentStrict, and the kernel of the agent's node has no seccomp filters.
    pub const SECCOMP_UNAVAILABLE: &str = "SeccompUnavailable";
    /// The pool requires a user namespace, and the agent's pod has none.
    pub const USER_NAMESPACE_MISSING: &str = "UserNamespaceMissing";
    /// The sandbox of the agent's program could not be prepared.
    pub const SANDBOX_NOT_PREPARED: &str = "SandboxNotPrepared";
    /// Nothing isolates the agent's program: it runs outside the cluster.
    pub const WALLS_NOT_ENFORCED: &str = "WallsNotEnforced";
    /// The agent runs outside the cluster and has registered, but its program is not ready to work yet.
    pub const PROCESS_NOT_READY: &str = "ProcessNotReady";
    /// The agent runs outside the cluster and was told to leave.
    pub const PROCESS_LEAVING: &str = "ProcessLeaving";
    /// The agent's pool no longer allows agents outside the cluster.
    pub const EXTERNAL_NOT_ALLOWED: &str = "ExternalNotAllowed";
    /// The agent's containers run but do not report Ready.
    pub const POD_NOT_READY: &str = "PodNotReady";
    /// The pod ended with success.
    pub const POD_SUCCEEDED: &str = "PodSucceeded";
    /// The pod ended with failure.
    pub const POD_FAILED: &str = "PodFailed";
    /// The pod is being deleted.
    pub const POD_STOPPING: &str = "PodStopping";
    /// The agent gives up its pod until there is work for it.
    pub const HIBERNATING: &str = "Hibernating";
    /// The agent has no pod until there is work for it.
    pub const HIBERNATED: &str = "Hibernated";
    /// The agent hibernated and returns.
    pub const WOKEN: &str = "Woken";
    /// The PersistentVolumeClaim of the agent's own volume cannot be used.
    pub const VOLUME_REFUSED: &str = "VolumeRefused";
    /// The PersistentVolumeClaim of the agent's own volume was gone when the agent woke. The agent begins with an empty volume.
    pub const VOLUME_LOST: &str = "VolumeLost";
    /// The pod is gone.
    pub const POD_GONE: &str = "PodGone";
    /// The pod disappeared, and nothing proves yet that its processes ended.
    pub const POD_MISSING: &str = "PodMissing";
    /// The node is unreachable.
    pub const NODE_UNREACHABLE: &str = "NodeUnreachable";
    /// A pod with the agent's name that Spillway has no record of was found and is being replaced.
    pub const FOREIGN_POD: &str = "ForeignPod";
    /// Nothing has been reported yet.
    pub const NOT_REPORTED: &str = "NotReported";
    /// The pool of the Agent does not exist.
    pub const POOL_MISSING: &str = "PoolMissing";
    /// The budget counts tokens.
    pub const METERED: &str = "Metered";
    /// The tokens spent are below the lowest threshold.
    pub const BELOW_LIMIT: &str = "BelowLimit";
    /// A threshold was reached.
    pub const THRESHOLD_REACHED: &str = "ThresholdReached";
    /// Tokens are available for the agent's calls.
    pub const TOKENS_LEFT: &str = "TokensLeft";
    /// The agent's lifetime tokens are spent.
    pub const LIFETIME_SPENT: &str = "LifetimeSpent";
    /// A threshold pauses all pools of the budget.
    pub const PAUSED_BY_THRESHOLD: &str = "PausedByThreshold";
    /// The Budget that `parentRef` names does not exist.
    pub const PARENT_MISSING: &str = "ParentMissing";
    /// A Budget is its own parent, through other Budgets.
    pub const PARENT_CYCLE: &str = "ParentCycle";
    /// A Budget has too many parents above it.
    pub const TOO_MANY_PARENTS: &str = "TooManyParents";
    /// The guaranteed tokens of a budget do not fit in its parent with those of its older siblings.
    pub const GUARANTEES_EXCEED_PARENT: &str = "GuaranteesExceedParent";
    /// The guaranteed tokens of a budget have no effect, because its parent weighs tokens differently.
    pub const GUARANTEE_OTHER_WEIGHTS: &str = "GuaranteeOtherWeights";
    /// An older ClusterBudget already binds the namespace.
    pub const NAMESPACE_TAKEN: &str = "NamespaceTaken";
    /// A ClusterBudget selects more namespaces with pools than one ClusterBudget can record.
    pub const TOO_MANY_NAMESPACES: &str = "TooManyNamespaces";
    /// Nothing is wrong with the object.
    pub const NO_DEFECT: &str = "NoDefect";
    /// The tokens of a Grant are added to the limit.
    pub const GRANTED: &str = "Granted";
    /// The target of a Grant does not exist.
    pub const TARGET_MISSING: &str = "TargetMissing";
    /// The target of a Grant has no limit of that name.
    pub const LIMIT_MISSING: &str = "LimitMissing";
    /// A Grant in this namespace may not raise the limit of its target.
    pub const NOT_PERMITTED: &str = "NotPermitted";
    /// The time of a Grant has ended.
    pub const TIME_OVER: &str = "TimeOver";
    /// The time of a Grant has not ended.
    pub const NOT_OVER: &str = "NotOver";
    /// A Breaker guards its pools.
    pub const GUARDING: &str = "Guarding";
    /// No pool that a Breaker names exists.
    pub const NO_POOL: &str = "NoPool";
    /// A circuit is open after too many failures.
    pub const CIRCUIT_OPEN: &str = "CircuitOpen";
    /// A circuit is half open: probes test whether operations succeed again.
    pub const CIRCUIT_HALF_OPEN: &str = "CircuitHalfOpen";
    /// A circuit is open until a person approves probes.
    pub const REVIEW_REQUIRED: &str = "ReviewRequired";
    /// A person holds all circuits of a Breaker open.
    pub const FORCED_OPEN: &str = "ForcedOpen";
    /// A person holds all circuits of a Breaker closed.
    pub const FORCED_CLOSED: &str = "ForcedClosed";
    /// All circuits of a Breaker are closed.
    pub const CIRCUITS_CLOSED: &str = "CircuitsClosed";
    /// The work circuit of a pool is open after too many failures.
    pub const BREAKER_OPEN: &str = "BreakerOpen";
    /// The cluster's store was rolled back: it was restored from a backup, or lost writes that it had acknowledged.
    pub const STORE_ROLLED_BACK: &str = "StoreRolledBack";
    /// The pod of a Toolset is starting.
    pub const STARTING: &str = "Starting";
    /// The bridge of a Toolset ends soon after its start.
    pub const BRIDGE_FAILING: &str = "BridgeFailing";
    /// The pod of a Toolset is ready, and the controller gets no answer from its bridge.
    pub const BRIDGE_UNREACHABLE: &str = "BridgeUnreachable";
    /// The MCP server that a Toolset fronts does not answer, or answers something else than its tools.
    pub const UPSTREAM_UNREACHABLE: &str = "UpstreamUnreachable";
    /// The MCP server that a Toolset fronts does not have some of the tools that agents may call.
    pub const UPSTREAM_TOOL_MISSING: &str = "UpstreamToolMissing";
    /// The MCP server that a Toolset fronts says something else about a tool than its digest in the Toolset, so the tool is not offered.
    pub const UPSTREAM_TOOL_REFUSED: &str = "UpstreamToolRefused";
    /// The MCP server that a Toolset fronts says something else about a tool than before. Agents see what it said first.
    pub const UPSTREAM_TOOL_CHANGED: &str = "UpstreamToolChanged";
    /// The spec asks for something that cannot be done.
    pub const INVALID_SPEC: &str = "InvalidSpec";
    /// The API server refuses an object of the Toolset.
    pub const OBJECT_REFUSED: &str = "ObjectRefused";
    /// The definitions of a new Toolset are wrong, so nothing serves it.
    pub const DEFINITIONS_INVALID: &str = "DefinitionsInvalid";
    /// The bridge serves all definitions.
    pub const DEFINITIONS_LOADED: &str = "DefinitionsLoaded";
    /// A ConfigMap with definitions does not exist.
    pub const CONFIG_MAP_NOT_FOUND: &str = "ConfigMapNotFound";
    /// A ConfigMap with definitions can be changed, and the Toolset does not allow that.
    pub const CONFIG_MAP_MUTABLE: &str = "ConfigMapMutable";
    /// Two ConfigMaps have a definition with the same key.
    pub const DUPLICATE_DEFINITION: &str = "DuplicateDefinition";
    /// A definition is wrong. The last valid definitions are served.
    pub const INVALID_DEFINITION: &str = "InvalidDefinition";
    /// An agent finished an item that was lost when the store was rolled back.
    pub const FINISH_LOST: &str = "FinishLost";
}
