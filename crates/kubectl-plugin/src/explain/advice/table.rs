//! The table of reasons and their advice, but for those of changesets and of the sandbox: data alone. [`advice`](super) decides which advice applies.

use super::Advice;
use super::Advice::{Do, Nothing};
use crate::api::conditions::reasons;

/// Every reason with its advice. `{agent}`, `{pool}`, `{namespace}`, `{node}`, `{ended}` (an agent of the pool that ended) stand for names.
pub(super) const ADVICE_BY_REASON: &[(&str, Advice)] = &[
    // The size of a pool.
    (reasons::AS_DESIRED, Nothing("the pool runs the desired number of agents")),
    (
        reasons::SCALING,
        Nothing(
            "agents are being created or deleted. If this takes long, `kubectl spillway explain agent/AGENT -n {namespace}` shows what an agent waits for",
        ),
    ),
    (
        reasons::REPLICAS_SET,
        Nothing("spec.replicas sets the number of agents. `kubectl spillway scale {pool} --auto -n {namespace}` enables automatic scaling"),
    ),
    (
        reasons::AT_MINIMUM,
        Nothing("spec.scaling.min sets the number of agents. `kubectl spillway scale {pool} --min N -n {namespace}` changes it"),
    ),
    (
        reasons::NO_WORK,
        Do(
            "submit work to the queues of the pool. To run agents without work, set spec.scaling.workAware: false, or run `kubectl spillway scale {pool} --replicas N -n {namespace}`",
        ),
    ),
    (
        reasons::WORK_UNKNOWN,
        Nothing(
            "the amount of work is not known yet, so the pool adds and removes no agents. This takes a moment after the operator starts",
        ),
    ),
    (
        reasons::COOLING_DOWN,
        Nothing("the work needs fewer agents. Pool {pool} keeps them for spec.scaling.cooldownSeconds, in case more work arrives"),
    ),
    (
        reasons::DRAINED,
        Do("spec.scaling.max is 0, which drains the pool. `kubectl spillway scale {pool} --max N -n {namespace}` allows agents again"),
    ),
    (
        reasons::MAX_REACHED,
        Nothing("the pool runs its maximum number of agents. `kubectl spillway scale {pool} --max N -n {namespace}` allows more"),
    ),
    (
        reasons::NO_ROOM,
        Do(
            "the budgets of the pool allow no more agents: raise spec.agents.maxConcurrent of its Budget, or maxTotal of the ClusterBudget, or end other agents",
        ),
    ),
    (reasons::BELOW_MAX, Nothing("the pool runs fewer agents than its maximum")),
    (reasons::AGENTS_WANTED, Nothing("the pool wants agents")),
    (reasons::NOT_BLOCKED, Nothing("the object is not blocked")),
    (reasons::OBSERVED, Nothing("the spec is in force")),
    (
        reasons::STORE_ROLLED_BACK,
        Do(
            "submit the items, Grants and settings again that were written in the time that the message names. Agents and gateways continue",
        ),
    ),
    (reasons::FINISH_LOST, Do("submit the item again if it is still needed: an agent finished it, and the store has lost the result")),
    // Obstacles of a pool or an agent.
    (reasons::MISSING_REFERENCE, Do("create the object that the message names, or remove its name from the spec of the pool")),
    (
        reasons::QUOTA_EXCEEDED,
        Do(
            "raise the ResourceQuota that the message names (`kubectl describe quota -n {namespace}`), request less (spec.agent.resources, fewer agents), or delete objects that use the quota. The pool then continues automatically",
        ),
    ),
    (
        reasons::BUDGET_EXHAUSTED,
        Do(
            "raise the field of the budget that the message names. If there are too many agents, end other agents under that budget (stopped and hibernated agents do not count). If the tokens are spent, create a Grant or wait for the next window. Work then continues automatically",
        ),
    ),
    (
        reasons::BREAKER_OPEN,
        Do(
            "too many attempts of pool {pool}, or of all pools of its namespace together, had no success, so the pool gets no work for a while. Find out why (`kubectl spillway ls {pool} --all -n {namespace}`, and the attempts of an item). The message names the circuit, and the time of its next trial or the command of `kubectl spillway breaker` that it waits for. Items stay Ready meanwhile",
        ),
    ),
    (reasons::GUARDING, Nothing("the Breaker guards the pools that its message names")),
    (reasons::NO_POOL, Do("name pools of this namespace in spec.pools of the Breaker. Without spec.pools the Breaker guards all pools")),
    (
        reasons::CIRCUIT_OPEN,
        Nothing("too many calls, commands or attempts failed. The circuit allows a trial automatically at the time in the message"),
    ),
    (reasons::CIRCUIT_HALF_OPEN, Nothing("a trial is running: it decides whether the circuit closes or opens again")),
    (
        reasons::REVIEW_REQUIRED,
        Do("find out why the attempts fail. Then run the command in the message: `kubectl spillway breaker approve NAME -n {namespace}`"),
    ),
    (
        reasons::FORCED_OPEN,
        Do(
            "spec.force of the Breaker holds its circuits open: `kubectl spillway breaker auto NAME -n {namespace}` makes them automatic again",
        ),
    ),
    (
        reasons::FORCED_CLOSED,
        Nothing(
            "spec.force of the Breaker holds its circuits closed: `kubectl spillway breaker auto NAME -n {namespace}` makes them automatic again",
        ),
    ),
    (reasons::CIRCUITS_CLOSED, Nothing("no circuit of the Breaker is open")),
    (
        reasons::PROJECT_LIMIT,
        Do(
            "raise spec.projects.max of the ClusterBudget that the message names, or delete the pools of another namespace. The pool then continues automatically",
        ),
    ),
    (
        reasons::POD_REFUSED,
        Do(
            "the API server refuses the pod: fix what the message names (a policy, a PriorityClass, a ServiceAccount, a value of the pool). Agents without a pod use the corrected spec",
        ),
    ),
    (
        reasons::AGENT_REFUSED,
        Do("the API server refuses an Agent of the pool, because of a policy or a quota on objects: fix what the message names"),
    ),
    (
        reasons::NODE_PROFILE_MISSING,
        Do(
            "the platform team installs the profile on nodes (sandbox.nodeProfile.enabled in the values of the chart). Waiting agents then start automatically. Or set spec.sandbox.isolation.seccomp of pool {pool} to AgentStrict, and delete the waiting agents: `kubectl spillway rm {agent} -n {namespace}`",
        ),
    ),
    (
        reasons::UNSCHEDULABLE,
        Do(
            "add nodes or free capacity on them, request less (spec.agent.resources), or correct spec.scheduling. Waiting agents keep the old spec: after `kubectl spillway rm {agent} -n {namespace}` the pool creates the agent again",
        ),
    ),
    (
        reasons::IMAGE_PULL,
        Do(
            "correct spec.agent.image or spec.scheduling.imagePullSecrets of pool {pool}. Then delete the waiting agents: `kubectl spillway rm {agent} -n {namespace}`",
        ),
    ),
    (
        reasons::CONTAINER_START,
        Do(
            "the container cannot be created or started: correct the image, the command or the files of pool {pool}. Then delete the waiting agents: `kubectl spillway rm {agent} -n {namespace}`",
        ),
    ),
    (
        reasons::CRASH_LOOP,
        Do(
            "the agents of the pool end soon after their start: read the last output of one (`kubectl spillway logs {ended} -n {namespace}`; `kubectl spillway ls {pool} --all -n {namespace}` lists them), and fix the program, the image or the command. The pool then continues automatically",
        ),
    ),
    (reasons::NAMESPACE_TERMINATING, Nothing("the namespace is being deleted, with all objects in it")),
    (
        reasons::UNSUPPORTED,
        Do("this version does not support what the message names: change that field of pool {pool}, or update the operator"),
    ),
    (
        reasons::INVALID_OBJECT,
        Do("the stored object does not match its type: apply the current CustomResourceDefinitions, then apply the object again"),
    ),
    // The life of an agent.
    (
        reasons::POD_PENDING,
        Do(
            "if this takes long, read the events of the pod: `kubectl describe pod {agent} -n {namespace}` (for example a missing ConfigMap, or a volume that cannot be mounted)",
        ),
    ),
    (reasons::POD_CREATING, Nothing("the pod is about to be created")),
    (reasons::REGISTERED, Nothing("the agent runs and reports")),
    (
        reasons::NOT_REGISTERED,
        Do(
            "the agent has not reached the gateway: read the log of its sidecar (`kubectl spillway logs {agent} --link -n {namespace}`), and check that gateways run (`kubectl get pods -A -l app.kubernetes.io/component=gateway`)",
        ),
    ),
    (reasons::PROCESS_NOT_READY, Do("if this takes long, read the output of `spillway-agent run` on the machine where it runs")),
    (
        reasons::PROCESS_LEAVING,
        Nothing(
            "the process of the agent was asked to leave. The agent is gone when the process confirms that, or soon after spec.supervision.goodbyeTimeoutSeconds",
        ),
    ),
    (
        reasons::EXTERNAL_NOT_ALLOWED,
        Do(
            "pool {pool} does not accept agents from outside the cluster any more: set spec.external again, and restart `spillway-agent run`",
        ),
    ),
    (
        reasons::START_TIMED_OUT,
        Do(
            "the agent did not register within spec.supervision.startupTimeoutSeconds: read the report of the kubelet in the message, and the log of the sidecar (`kubectl spillway logs {agent} --link -n {namespace}`)",
        ),
    ),
    (reasons::OPERATOR_REMOVAL, Nothing("Spillway is being removed from the cluster. The pool continues when Spillway is installed again")),
    (
        reasons::WALLS_PENDING,
        Do(
            "the API server refuses the NetworkPolicy, or the ConfigMap spillway-ca, that the pods of the pool need: fix what the message names (a policy, a quota, a role)",
        ),
    ),
    (reasons::HEARTBEATING, Nothing("the agent reports")),
    (
        reasons::SILENT_WITH_MANY,
        Do("many agents of one node or gateway became silent together: check that node and the gateways. No agent is stopped for this yet"),
    ),
    (reasons::REAPED, Nothing("a rule of spec.supervision.rules ended the agent. The pool creates another agent if it wants one")),
    (
        reasons::LEASE_EXPIRED,
        Nothing("the agent held an item, and was silent until the lease of the item expired. Another agent gets the item"),
    ),
    (
        reasons::CANCEL_IGNORED,
        Nothing(
            "the agent was told to give its item back, because the item was cancelled or late, and did not do so. The agent is ended, and the pool creates another one",
        ),
    ),
    (reasons::SAID_GOODBYE, Nothing("the agent said goodbye. The pool creates another agent if it wants one")),
    (
        reasons::ASKED_FOR_TOKENS,
        Do("the program of the agent asks for more tokens. To give it more, run `kubectl spillway grant agent/{agent} N -n {namespace}`"),
    ),
    (reasons::TAKEN_BACK, Nothing("the agent does not need the tokens any more that it asked for")),
    (reasons::PARENT_ENDED, Nothing("the agent that asked for this agent ended, so this agent ended too")),
    (reasons::PAUSED_BY_SPEC, Do("spec.paused of the agent is true: `kubectl spillway resume {agent} -n {namespace}` resumes the agent")),
    (
        reasons::PAUSED_BY_SUPERVISOR,
        Do(
            "the supervisor paused the agent, and the interventions show why: `kubectl spillway resume {agent} -n {namespace}` resumes the agent",
        ),
    ),
    (reasons::NOT_PAUSED, Nothing("the agent is not paused")),
    (
        reasons::POD_NOT_READY,
        Do("run `kubectl describe pod {agent} -n {namespace}`, which shows the container that is not ready. The node is often the cause"),
    ),
    (
        reasons::POD_SUCCEEDED,
        Nothing(
            "the program ended with exit code 0. The pool creates another agent if it wants one. The program of a pool should keep running",
        ),
    ),
    (
        reasons::POD_FAILED,
        Do(
            "read the last output of the program: `kubectl spillway logs {agent} -n {namespace}`. The pool creates another agent if it wants one",
        ),
    ),
    (
        reasons::POD_STOPPING,
        Nothing(
            "the pod has its grace period (spec.supervision.goodbyeTimeoutSeconds) to end. `kubectl spillway rm {agent} --force -n {namespace}` shortens it to one second",
        ),
    ),
    (reasons::HIBERNATING, Nothing("there is no work for the agent: its pod is deleted, and its name and its volume stay")),
    (
        reasons::HIBERNATED,
        Nothing(
            "there is no work for the agent, so it has no pod. Its pool wakes it, with its volume, before it creates another agent. `kubectl spillway rm {agent} -n {namespace}` deletes the agent and its volume",
        ),
    ),
    (reasons::WOKEN, Nothing("there is work for the agent again")),
    (
        reasons::VOLUME_REFUSED,
        Do(
            "the PersistentVolumeClaim of the agent cannot be created or used: fix what the message names (the template in spec.workspace of pool {pool}, a policy), delete a claim that has the same name, or delete the agent: `kubectl spillway rm {agent} -n {namespace}`",
        ),
    ),
    (
        reasons::VOLUME_LOST,
        Nothing("the PersistentVolumeClaim of the agent was deleted while the agent hibernated. The agent starts with an empty volume"),
    ),
    (reasons::POD_GONE, Nothing("the pod of the agent was deleted. The pool creates another agent if it wants one")),
    (
        reasons::POD_MISSING,
        Nothing("the pod of the agent is missing. Its node proves within about a minute that the processes of the agent ended"),
    ),
    (
        reasons::NODE_UNREACHABLE,
        Do(
            "repair node {node}. If you know that the machine is off, run `kubectl taint node {node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute`",
        ),
    ),
    (
        reasons::FOREIGN_POD,
        Nothing(
            "a pod with the name of the agent, which the operator has not recorded, is being replaced. If that happens again, find out what creates pods with that name",
        ),
    ),
    (reasons::NOT_REPORTED, Nothing("the agent has not reported this yet")),
    (
        reasons::POOL_MISSING,
        Do("pool {pool} of the agent does not exist: create the pool, or delete the agent: `kubectl spillway rm {agent} -n {namespace}`"),
    ),
    // Budgets.
    (reasons::APPLIED, Nothing("spec.compute of the Budget is in force")),
    (reasons::APPLYING, Nothing("the operator is applying spec.compute of the Budget")),
    (
        reasons::COMPUTE_CONFLICT,
        Do(
            "only one Budget of a namespace may have spec.compute: remove it from this Budget, or from the older one that the message names",
        ),
    ),
    (reasons::NAME_TAKEN, Do("an object that does not belong to the Budget has the name in the message: rename or delete that object")),
    (reasons::QUOTA_REFUSED, Do("the API server refuses the objects that spec.compute of the Budget needs: fix what the message names")),
    (reasons::NOT_ENFORCED, Nothing("spec.mode of the Budget is not Enforce, so its spec.compute limits nothing")),
    // Other waits.
    (
        "SandboxUnavailable",
        Do(
            "the nodes or the RuntimeClass do not have the sandbox that spec.sandbox.isolation requires: select other nodes (spec.scheduling), or set Preferred",
        ),
    ),
    ("CredentialsForbidden", Do("let the gateway read the Secrets that models and workspace of the pool name, or correct their names")),
    // Sandbox.
    (
        reasons::EGRESS_NOT_ENFORCED,
        Do(
            "the pod of the agent reached an address that it must not reach: use a cluster network that enforces NetworkPolicy. No program starts before that",
        ),
    ),
    (
        reasons::INVALID_EGRESS,
        Do(
            "the pool creates no agents until spec.sandbox.outputs is correct. Correct the entry that the message names. An entry is HOST:PORT or *.DOMAIN:PORT with a full host name, not an address. The platform team defines the sets of allowSets in the chart's value egress.allowSets",
        ),
    ),
    (reasons::INVALID_GIT, Do("correct the field of spec.workspace.git that the message names. The chart lists servers in git.origins")),
    (
        reasons::PREFLIGHT_FAILED,
        Do(
            "the agent gets no work until its preflight passes: fix what the message names (a login, a file, a tool, a model API, the command itself: spec.preflight and spec.agent.preflightCommand of pool {pool}). The command runs again automatically, at most two minutes later. A changed command applies to agents that are created later (`kubectl spillway rm {agent} -n {namespace}` replaces this one), a changed spec.preflight.requireSandbox within half a minute",
        ),
    ),
    // Signals of the supervisor's monitors.
    (
        reasons::HEARTBEAT_LOST,
        Do(
            "the pod of the agent sends no heartbeats: check its node, and its sidecar (`kubectl spillway logs {agent} --link -n {namespace}`). The agent is stopped and replaced after spec.supervision.heartbeatTimeoutSeconds",
        ),
    ),
    (
        reasons::PROGRAM_SILENT,
        Do(
            "the program of the agent does nothing, while its pod answers: read `kubectl spillway logs {agent} -n {namespace}`. The agent is stopped and replaced after spec.supervision.heartbeatTimeoutSeconds",
        ),
    ),
    ("OOMKilled", Do("the agent needed more memory than its limit: raise spec.agent.resources.limits.memory of pool {pool}")),
    (
        "TokenBudgetExceeded",
        Do(
            "the tokens of the agent are spent, and its work is kept. Raise spec.bulkhead.lifetimeTokens or topUp of pool {pool}, or run `kubectl spillway grant agent/{agent} TOKENS -n {namespace}`: the agent then continues automatically. Or delete the agent: `kubectl spillway rm {agent} -n {namespace}`",
        ),
    ),
    (
        "BudgetNearLimit",
        Nothing(
            "a budget that applies to the agent has few tokens left. The message names the budget, and `kubectl describe` of it shows what is left",
        ),
    ),
    (
        "OperationTimeout",
        Nothing(
            "a command or a model call took too long and was ended. spec.bulkhead.commandTimeoutSeconds and modelTurnTimeoutSeconds of pool {pool} set the limits",
        ),
    ),
    (
        "ChronicTimeout",
        Do(
            "too many commands or model calls of the agent took too long (spec.bulkhead.maxTimeouts): read `kubectl spillway logs {agent} -n {namespace}`, and raise the limits if they are too short",
        ),
    ),
    (
        reasons::TOKENS_SPENT,
        Nothing(
            "the agent spent the tokens of its life and had no progress on its item. The item went back to its queue, and the attempt does not count",
        ),
    ),
    (
        reasons::TOKENS_EXHAUSTED,
        Do(
            "the agent spent all tokens of its life on one item without progress, which counts as a failure of the item: raise spec.bulkhead.lifetimeTokens or topUp of pool {pool}, or make the item smaller",
        ),
    ),
    (
        reasons::BUDGET_REFUSED,
        Do(
            "raise the field of the budget that the end of the attempt's message names, create a Grant, or wait for the next window. The attempt does not count, and the item is tried again automatically",
        ),
    ),
    (
        reasons::SHARE_SPENT,
        Do(
            "each attempt at the item may spend spec.bulkhead.tokens of the item, and that field cannot be changed: submit another item with a larger value",
        ),
    ),
    (reasons::CHECKPOINT_TAKEN, Nothing("spec.agent.hooks.checkpoint of pool {pool} succeeded. The item continues from this checkpoint")),
    (
        reasons::CHECKPOINT_FAILED,
        Do(
            "spec.agent.hooks.checkpoint of pool {pool} failed, and the message says why. The files of the agent are kept while its pod exists. Read `kubectl spillway logs {agent} -n {namespace}`",
        ),
    ),
    (reasons::CHECKPOINT_ORDERED, Nothing("the pod of the agent runs spec.agent.hooks.checkpoint of pool {pool}")),
    (
        reasons::CHECKPOINT_UNANSWERED,
        Do(
            "the pod of the agent does not report the result of the checkpoint: check its sidecar (`kubectl spillway logs {agent} --link -n {namespace}`)",
        ),
    ),
    (
        reasons::NO_CHECKPOINT_HOOK,
        Nothing("the pool has no spec.agent.hooks.checkpoint. The files of the agent are kept while its pod exists"),
    ),
    (reasons::ITEM_STALLED, Nothing("the item of the agent made no progress, and went back to its queue")),
    (reasons::ITEM_PAST_TIME, Nothing("the item of the agent took longer than its limit, and went back to its queue")),
    (
        "ObjectiveMissed",
        Nothing(
            "items wait or take longer than spec.objectives of their queue allow. More agents may help: `kubectl spillway scale {pool} --max N -n {namespace}`",
        ),
    ),
    (
        "RuleViolated",
        Do(
            "the program of the agent did what its sandbox forbids, and the message names the rule. If this is intended, allow it in spec.sandbox or spec.may of pool {pool}. Otherwise fix the program",
        ),
    ),
    ("GangDivergence", Do("too many agents of one group failed together: find what they share (the repository, a service, the prompt)")),
    (reasons::OBJECTIVES_MET, Nothing("no item waits or takes longer than spec.objectives of the queue allow")),
    // Queues. `explain queue/NAME` says more.
    (reasons::SERVING, Nothing("the queue gives items to agents")),
    (reasons::SUSPENDED, Do("the queue is paused: `kubectl spillway resume queue/QUEUE -n {namespace}` resumes it")),
    (reasons::ACCEPTED, Nothing("the queue accepts items")),
    (
        reasons::NEARLY_FULL,
        Nothing(
            "the queue is over 80 % full. At 100 % of spec.limits.maxPending it refuses items, and at 100 % of spec.deadLetters.max it deletes the oldest dead letters",
        ),
    ),
    (reasons::BULKHEAD_NEARLY_FULL, Nothing("over 80 % of the limit in the message is used. At 100 % more is refused")),
    (reasons::BULKHEAD_FULL, Do("raise the limit in the message, or wait until less of it is used. Until then more is refused")),
    (reasons::DEAD_LETTERS_FIT, Nothing("the queue keeps every dead letter for its full time")),
    (
        reasons::DEAD_LETTERS_FULL,
        Do("redrive or delete dead letters of the queue, or raise its spec.deadLetters.max: each new dead letter deletes the oldest one"),
    ),
    (
        reasons::PROJECT_FULL,
        Do("raise the field that the message names (work.maxPending), wait until more items of the namespace are done, or cancel some"),
    ),
    (reasons::QUEUE_FULL, Do("raise spec.limits.maxPending of the queue, or wait until more of its items are done")),
    // Limits and Grants.
    (reasons::METERED, Nothing("calls are counted as spec.mode says")),
    (reasons::BELOW_LIMIT, Nothing("less is spent than the lowest threshold")),
    (reasons::THRESHOLD_REACHED, Nothing("a part of a limit is spent. If its window is long, raise the limit or create a Grant")),
    (reasons::TOKENS_LEFT, Nothing("the agent has tokens for its calls")),
    (
        reasons::LIFETIME_SPENT,
        Do(
            "the tokens of the agent's life are spent: raise spec.bulkhead.lifetimeTokens or topUp of pool {pool}, or create a Grant for the agent. Or delete the agent: `kubectl spillway rm {agent} -n {namespace}`",
        ),
    ),
    (
        reasons::PAUSED_BY_THRESHOLD,
        Do("raise the limit that the message names (spec.tokens.limits), create a Grant for it, or wait until its window ends"),
    ),
    (reasons::PARENT_MISSING, Do("create the Budget that spec.parentRef names, or name another Budget")),
    (reasons::PARENT_CYCLE, Do("remove spec.parentRef from one of the Budgets that the message names")),
    (reasons::TOO_MANY_PARENTS, Do("shorten the chain of Budgets (spec.parentRef): at most 8 are allowed")),
    (
        reasons::GUARANTEES_EXCEED_PARENT,
        Do("lower guaranteed of the limit that the message names, here or in sibling Budgets, or raise the limit of the parent"),
    ),
    (reasons::GUARANTEE_OTHER_WEIGHTS, Do("set weightsPermille to that of the parent, or set guaranteed: 0")),
    (reasons::NAMESPACE_TAKEN, Do("narrow spec.namespaceSelector: one ClusterBudget applies to a namespace, and that is the oldest one")),
    (reasons::TOO_MANY_NAMESPACES, Do("narrow spec.namespaceSelector, and create a second ClusterBudget for the other namespaces")),
    (reasons::NO_DEFECT, Nothing("the spec needs no change")),
    (reasons::GRANTED, Nothing("the tokens of the Grant are added to the limit")),
    (reasons::TARGET_MISSING, Do("create the object that spec.targetRef names. The Grant then counts automatically")),
    (reasons::LIMIT_MISSING, Do("create another Grant with the name of a limit that its target has (status.windows)")),
    (reasons::NOT_PERMITTED, Do("create the Grant in the namespace in which Spillway runs")),
    (reasons::TIME_OVER, Nothing("the tokens of the Grant do not count any more")),
    (reasons::NOT_OVER, Nothing("the tokens of the Grant count")),
    // Goodbyes.
    ("ItemsDone", Nothing("the agent did spec.agent.maxItems items. The pool creates another agent if it wants one")),
];
