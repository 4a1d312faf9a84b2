//! The table of reasons and their advice. Data alone: which of it applies is decided in [`advice`](super).

use super::Advice;
use super::Advice::{Do, Nothing};
use crate::api::conditions::reasons;

/// Every reason with its advice. `{agent}`, `{pool}`, `{namespace}`, `{node}` and
/// `{ended}` (an agent of the pool that ended) stand for the names.
pub(super) const ADVICE_BY_REASON: &[(&str, Advice)] = &[
    // The size of a pool.
    (reasons::AS_DESIRED, Nothing("all is as wanted")),
    (reasons::SCALING, Nothing("agents are being made or ended; if it takes long, the agents say what they wait for")),
    (
        reasons::REPLICAS_SET,
        Nothing(
            "spec.replicas decides the number; `kubectl spillway scale {pool} --auto -n {namespace}` lets min, max and the work decide",
        ),
    ),
    (
        reasons::AT_MINIMUM,
        Nothing("spec.scaling.min decides the number; `kubectl spillway scale {pool} --min N -n {namespace}` changes it"),
    ),
    (
        reasons::NO_WORK,
        Do(
            "submit work to its queues; or, for agents without work, set spec.scaling.workAware: false, or run `kubectl spillway scale {pool} --replicas N -n {namespace}`",
        ),
    ),
    (
        reasons::WORK_UNKNOWN,
        Nothing(
            "how much work there is is not known yet, so no agents are added or ended; that takes a moment after a start of the operator",
        ),
    ),
    (
        reasons::COOLING_DOWN,
        Nothing("fewer agents would do; they are kept for spec.scaling.cooldownSeconds of pool {pool}, in case more work comes"),
    ),
    (reasons::DRAINED, Do("spec.scaling.max is 0, which drains the pool: `kubectl spillway scale {pool} --max N -n {namespace}`")),
    (
        reasons::MAX_REACHED,
        Nothing("the pool runs as many agents as it may; `kubectl spillway scale {pool} --max N -n {namespace}` allows more"),
    ),
    (
        reasons::NO_ROOM,
        Do(
            "its budgets leave no room for more agents: raise spec.agents.maxConcurrent of its Budget, or maxTotal of the ClusterBudget, or end other agents",
        ),
    ),
    (reasons::BELOW_MAX, Nothing("the pool runs fewer agents than it may")),
    (reasons::AGENTS_WANTED, Nothing("the pool wants agents")),
    (reasons::NOT_BLOCKED, Nothing("nothing is in the way")),
    (reasons::OBSERVED, Nothing("the spec is in force")),
    (
        reasons::STORE_ROLLED_BACK,
        Do("submit items, Grants and settings again that were written in the time that the message names; agents and gateways go on"),
    ),
    (reasons::FINISH_LOST, Do("submit the item again if it is still needed: an agent finished it, and the store has lost it")),
    // What is in the way.
    (reasons::MISSING_REFERENCE, Do("make the object that the message names, or take its name out of the pool's spec")),
    (
        reasons::QUOTA_EXCEEDED,
        Do(
            "raise the ResourceQuota that the message names (`kubectl describe quota -n {namespace}`), ask for less (spec.agent.resources, fewer agents), or end something; it then goes on by itself",
        ),
    ),
    (
        reasons::BUDGET_EXHAUSTED,
        Do(
            "raise the field of the budget that the message names; or, where agents are too many, end others under it (stopped and hibernated ones do not count), and where tokens are over, give a Grant or wait until the window turns. It then goes on by itself",
        ),
    ),
    (
        reasons::BREAKER_OPEN,
        Do(
            "too many attempts of pool {pool}, or of all pools of its namespace together, came to nothing, so it is given no work for a while: find out why they do (`kubectl spillway ls {pool} --all -n {namespace}`, the attempts of an item). The message names the circuit and says when it is tried again, or which command of `kubectl spillway breaker` is awaited; items stay Ready meanwhile",
        ),
    ),
    (reasons::GUARDING, Nothing("the Breaker guards the pools that its message names")),
    (reasons::NO_POOL, Do("name pools of this namespace in spec.pools of the Breaker, or leave it out: then it guards all of them")),
    (reasons::CIRCUIT_OPEN, Nothing("too much failed; it is tried again by itself at the time that the message says")),
    (reasons::CIRCUIT_HALF_OPEN, Nothing("it is being tried whether things work again")),
    (
        reasons::REVIEW_REQUIRED,
        Do("find out why the attempts fail, and run the command of the message: `kubectl spillway breaker approve NAME -n {namespace}`"),
    ),
    (
        reasons::FORCED_OPEN,
        Do("a person holds the circuits of the Breaker open: `kubectl spillway breaker auto NAME -n {namespace}` lets them decide again"),
    ),
    (
        reasons::FORCED_CLOSED,
        Nothing(
            "a person holds the circuits of the Breaker closed: `kubectl spillway breaker auto NAME -n {namespace}` lets them decide again",
        ),
    ),
    (reasons::CIRCUITS_CLOSED, Nothing("no circuit of the Breaker is open")),
    (
        reasons::PROJECT_LIMIT,
        Do(
            "raise spec.projects.max of the ClusterBudget that the message names, or delete the pools of another namespace; it then goes on by itself",
        ),
    ),
    (
        reasons::POD_REFUSED,
        Do(
            "the API server refuses the pod: mend what the message names (a policy, a PriorityClass, a ServiceAccount, a value of the pool); agents without a pod take the mended spec",
        ),
    ),
    (
        reasons::AGENT_REFUSED,
        Do("the API server refuses an Agent of the pool, by a policy or a quota on objects: mend what the message names"),
    ),
    (
        reasons::UNSCHEDULABLE,
        Do(
            "free nodes or add some, ask for less (spec.agent.resources), or mend spec.scheduling; agents that wait keep the old spec: `kubectl spillway rm {agent} -n {namespace}` has them made again",
        ),
    ),
    (
        reasons::IMAGE_PULL,
        Do(
            "mend spec.agent.image or spec.scheduling.imagePullSecrets of pool {pool}, then end the agents that wait: `kubectl spillway rm {agent} -n {namespace}`",
        ),
    ),
    (
        reasons::CONTAINER_START,
        Do(
            "the container cannot be made or started: mend the image, the command or the files of pool {pool}, then end the agents that wait: `kubectl spillway rm {agent} -n {namespace}`",
        ),
    ),
    (
        reasons::CRASH_LOOP,
        Do(
            "its agents end soon after their start: read what one wrote last (`kubectl spillway logs {ended} -n {namespace}`; `kubectl spillway ls {pool} --all -n {namespace}` lists them) and mend the program, the image or the command; it then goes on by itself",
        ),
    ),
    (reasons::NAMESPACE_TERMINATING, Nothing("the namespace is being deleted, and all that is in it")),
    (reasons::UNSUPPORTED, Do("this version cannot do what the message names: change that field of pool {pool}, or update the operator")),
    (
        reasons::INVALID_OBJECT,
        Do("the stored object does not fit its type: apply the current CustomResourceDefinitions, then the object again"),
    ),
    // The life of an agent.
    (
        reasons::POD_PENDING,
        Do(
            "if it takes long, the events of the pod have the reason: `kubectl describe pod {agent} -n {namespace}` (a ConfigMap that does not exist, a volume that cannot be mounted)",
        ),
    ),
    (reasons::POD_CREATING, Nothing("the pod is about to be made")),
    (reasons::REGISTERED, Nothing("the agent runs and reports")),
    (
        reasons::NOT_REGISTERED,
        Do(
            "it has not reached the gateway: read its sidecar's words (`kubectl spillway logs {agent} --link -n {namespace}`), and whether gateways run (`kubectl get pods -A -l app.kubernetes.io/component=gateway`)",
        ),
    ),
    (
        reasons::WALLS_NOT_ENFORCED,
        Nothing("it runs outside the cluster, where nothing isolates its program; spec.external of pool {pool} allows that"),
    ),
    (reasons::PROCESS_NOT_READY, Do("if it takes long, read what `spillway-agent run` says where it runs")),
    (
        reasons::PROCESS_LEAVING,
        Nothing("its process is told to leave: it is gone when it says so, or soon after spec.supervision.goodbyeTimeoutSeconds"),
    ),
    (
        reasons::EXTERNAL_NOT_ALLOWED,
        Do("pool {pool} takes no agents from outside the cluster any more: set spec.external again, and start `spillway-agent run` anew"),
    ),
    (
        reasons::START_TIMED_OUT,
        Do(
            "it did not register within spec.supervision.startupTimeoutSeconds: the message has the kubelet's words; its sidecar's are in `kubectl spillway logs {agent} --link -n {namespace}`",
        ),
    ),
    (
        reasons::WALLS_PENDING,
        Do(
            "the API server refuses the NetworkPolicy, or the ConfigMap spillway-ca, that its pods need: mend what the message names (a policy, a quota, a role)",
        ),
    ),
    (reasons::HEARTBEATING, Nothing("it reports")),
    (
        reasons::SILENT_WITH_MANY,
        Do(
            "many agents of one node or gateway fell silent together: look at that node, and at the gateways; nobody is given up for it yet",
        ),
    ),
    (reasons::REAPED, Nothing("a rule of spec.supervision.rules ended it; the pool makes another agent if it wants one")),
    (
        reasons::LEASE_EXPIRED,
        Nothing("it held an item and was silent for as long as the item's lease lasts; the item is given to another agent"),
    ),
    (
        reasons::CANCEL_IGNORED,
        Nothing(
            "it was told to give its item back, because that was cancelled or late, and did not; it is ended, and the pool makes another",
        ),
    ),
    (reasons::SAID_GOODBYE, Nothing("it said goodbye; the pool makes another agent if it wants one")),
    (
        reasons::ASKED_FOR_TOKENS,
        Do("its program asks for more tokens; if it shall have them: `kubectl spillway grant agent/{agent} N -n {namespace}`"),
    ),
    (reasons::TAKEN_BACK, Nothing("it needs what it asked for no more")),
    (reasons::PARENT_ENDED, Nothing("the agent that asked for it ended, and it with that")),
    (reasons::PAUSED_BY_SPEC, Do("somebody holds it: `kubectl spillway resume {agent} -n {namespace}` lets it go on")),
    (
        reasons::PAUSED_BY_SUPERVISOR,
        Do("its supervisor holds it, and the interventions say why: `kubectl spillway resume {agent} -n {namespace}` lets it go on"),
    ),
    (reasons::NOT_PAUSED, Nothing("nobody holds it")),
    (
        reasons::POD_WALLS_ONLY,
        Nothing(
            "the pod's own walls stand (NetworkPolicy, seccomp RuntimeDefault, no privileges); this version has none around single commands",
        ),
    ),
    (reasons::POD_NOT_READY, Do("`kubectl describe pod {agent} -n {namespace}` says which container is not ready; often it is the node")),
    (
        reasons::POD_SUCCEEDED,
        Nothing("its program ended with 0; the pool makes another agent if it wants one. A program of a pool should run on"),
    ),
    (
        reasons::POD_FAILED,
        Do("read what it wrote last: `kubectl spillway logs {agent} -n {namespace}`; the pool makes another agent if it wants one"),
    ),
    (
        reasons::POD_STOPPING,
        Nothing(
            "it has its grace (spec.supervision.goodbyeTimeoutSeconds) to end; `kubectl spillway rm {agent} --force -n {namespace}` shortens that to a second",
        ),
    ),
    (reasons::HIBERNATING, Nothing("there is no work for it: its pod is given back; its name and its volume stay")),
    (
        reasons::HIBERNATED,
        Nothing(
            "there is no work for it: it has no pod, and its pool wakes it, with its volume, before it makes another agent; `kubectl spillway rm {agent} -n {namespace}` ends it, and its volume",
        ),
    ),
    (reasons::WOKEN, Nothing("there is work for it again")),
    (
        reasons::VOLUME_REFUSED,
        Do(
            "the claim of its own volume cannot be had: mend what the message names (the template in spec.workspace of pool {pool}, a policy), delete a claim that has its name, or end the agent: `kubectl spillway rm {agent} -n {namespace}`",
        ),
    ),
    (reasons::VOLUME_LOST, Nothing("somebody deleted its PersistentVolumeClaim while it hibernated; it begins with an empty volume")),
    (reasons::POD_GONE, Nothing("somebody deleted its pod; the pool makes another agent if it wants one")),
    (reasons::POD_MISSING, Nothing("its node proves within about a minute that its processes ended")),
    (
        reasons::NODE_UNREACHABLE,
        Do(
            "mend the node {node}; or, if you know that the machine is off, say so: `kubectl taint node {node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute`",
        ),
    ),
    (
        reasons::FOREIGN_POD,
        Nothing("a pod of its name that it has no record of is being replaced; if that repeats, look who makes pods of that name"),
    ),
    (reasons::NOT_REPORTED, Nothing("it was not reported yet")),
    (reasons::POOL_MISSING, Do("its pool {pool} does not exist: make it, or end the agent: `kubectl spillway rm {agent} -n {namespace}`")),
    // Budgets.
    (reasons::APPLIED, Nothing("what the Budget says of compute is in force")),
    (reasons::APPLYING, Nothing("what the Budget says of compute is being put in force")),
    (
        reasons::COMPUTE_CONFLICT,
        Do("one Budget of a namespace may say compute: take spec.compute out of this one, or of the older one that the message names"),
    ),
    (reasons::NAME_TAKEN, Do("an object of another has the name that the message says: rename or delete it")),
    (reasons::QUOTA_REFUSED, Do("the API server refuses what spec.compute of the Budget asks for: mend what the message names")),
    (reasons::NOT_ENFORCED, Nothing("the Budget's spec.mode is not Enforce, so its compute limits nobody")),
    // What else waits for others.
    (
        "SandboxUnavailable",
        Do(
            "the nodes or the RuntimeClass cannot give the sandbox that spec.sandbox.isolation requires: choose other nodes (spec.scheduling), or set Preferred",
        ),
    ),
    ("CredentialsForbidden", Do("let the gateway read the Secrets that the pool's models and workspace name, or mend their names")),
    // Sandbox.
    (
        reasons::EGRESS_NOT_ENFORCED,
        Do(
            "the agent's pod reached what it must not: the cluster's network has to enforce NetworkPolicy; no program starts before it does",
        ),
    ),
    (
        reasons::PREFLIGHT_FAILED,
        Do(
            "it gets no work until its preflight passes: mend what the message names (a login, a file, a tool, a model API, the command itself: spec.preflight and spec.agent.preflightCommand of pool {pool}). The command is run again by itself, at most two minutes later; an edit of the command counts for agents made from then on (`kubectl spillway rm {agent} -n {namespace}` has it made again), one of spec.preflight.requireSandbox within half a minute",
        ),
    ),
    // What the supervisor's monitors report.
    (
        reasons::HEARTBEAT_LOST,
        Do(
            "nothing was heard from its pod: look at its node, and at its sidecar (`kubectl spillway logs {agent} --link -n {namespace}`); it is stopped and replaced after spec.supervision.heartbeatTimeoutSeconds",
        ),
    ),
    (
        reasons::PROGRAM_SILENT,
        Do(
            "its program does nothing, while its pod answers: read `kubectl spillway logs {agent} -n {namespace}`; it is stopped and replaced after spec.supervision.heartbeatTimeoutSeconds",
        ),
    ),
    ("OOMKilled", Do("it needed more memory than it may have: raise spec.agent.resources.limits.memory of pool {pool}")),
    (
        "TokenBudgetExceeded",
        Do(
            "its tokens are over, and its work is kept: raise spec.bulkhead.lifetimeTokens or topUp of pool {pool}, or `kubectl spillway grant agent/{agent} TOKENS -n {namespace}`, and it goes on by itself; or end it: `kubectl spillway rm {agent} -n {namespace}`",
        ),
    ),
    (
        "BudgetNearLimit",
        Nothing("the tokens of a budget above it are nearly over; the message names it, and `kubectl describe` of it shows what is left"),
    ),
    (
        "OperationTimeout",
        Nothing(
            "a command or a model call took too long and was ended; spec.bulkhead.commandTimeoutSeconds and modelTurnTimeoutSeconds of pool {pool} are the limits",
        ),
    ),
    (
        "ChronicTimeout",
        Do(
            "too many of its commands or model calls took too long (spec.bulkhead.maxTimeouts): read `kubectl spillway logs {agent} -n {namespace}`, and raise the times if they are too short",
        ),
    ),
    (
        reasons::TOKENS_SPENT,
        Nothing("the tokens of its life were over and it had nothing to show for its item, which went back and counts nothing of it"),
    ),
    (
        reasons::TOKENS_EXHAUSTED,
        Do(
            "it spent all the tokens of its life on one item and got nowhere, which counts as a failure of that: raise spec.bulkhead.lifetimeTokens or topUp of pool {pool}, or make the item smaller",
        ),
    ),
    (
        reasons::BUDGET_REFUSED,
        Do(
            "the end of the attempt's message names the budget and the field to raise; or give a Grant, or wait until its window turns. The attempt counts nothing, and the item is tried again by itself",
        ),
    ),
    (
        reasons::SHARE_SPENT,
        Do("each attempt at the item may spend spec.bulkhead.tokens of it, which cannot be changed: submit another item with more"),
    ),
    (reasons::CHECKPOINT_TAKEN, Nothing("spec.agent.hooks.checkpoint of pool {pool} succeeded; its item goes on from there")),
    (
        reasons::CHECKPOINT_FAILED,
        Do(
            "spec.agent.hooks.checkpoint of pool {pool} failed, as the message says; its files are kept for as long as its pod is. Read `kubectl spillway logs {agent} -n {namespace}`",
        ),
    ),
    (reasons::CHECKPOINT_ORDERED, Nothing("its pod runs spec.agent.hooks.checkpoint of pool {pool}")),
    (
        reasons::CHECKPOINT_UNANSWERED,
        Do("its pod does not say what came of the checkpoint: look at its sidecar (`kubectl spillway logs {agent} --link -n {namespace}`)"),
    ),
    (reasons::NO_CHECKPOINT_HOOK, Nothing("its pool has no spec.agent.hooks.checkpoint; its files are kept for as long as its pod is")),
    (reasons::ITEM_STALLED, Nothing("its item made no progress and was given back to the queue")),
    (reasons::ITEM_PAST_TIME, Nothing("its item took longer than it may and was given back to the queue")),
    (
        "ObjectiveMissed",
        Nothing(
            "work waits or takes longer than its queue's objectives say; more agents may help: `kubectl spillway scale {pool} --max N -n {namespace}`",
        ),
    ),
    ("BadChangeset", Nothing("what it made did not pass verification and was discarded; the item is tried again")),
    (
        "RuleViolated",
        Do(
            "its program did what its sandbox forbids; the message names the rule. Allow it in spec.sandbox or spec.may of pool {pool} if it is meant to, else mend the program",
        ),
    ),
    (
        "GangDivergence",
        Do("too many agents of one group failed together: look for what they share (the repository, a service, the prompt)"),
    ),
    (reasons::OBJECTIVES_MET, Nothing("no item waits or takes longer than spec.objectives of the queue say")),
    // What a queue says of itself; `explain queue/NAME` says more.
    (reasons::SERVING, Nothing("items are given out")),
    (reasons::SUSPENDED, Do("the queue is paused: `kubectl spillway resume queue/QUEUE -n {namespace}` lets it give items out again")),
    (reasons::ACCEPTED, Nothing("items are accepted")),
    (
        reasons::NEARLY_FULL,
        Nothing(
            "the queue is over 80 % full: at all of spec.limits.maxPending more items are refused, and at all of spec.deadLetters.max the oldest dead letters are deleted",
        ),
    ),
    (reasons::BULKHEAD_NEARLY_FULL, Nothing("a limit that the message names is over 80 % used; at all of it more is refused")),
    (
        reasons::BULKHEAD_FULL,
        Do("raise the limit that the message names, or wait until what uses it has ended: more is refused until there is room"),
    ),
    (reasons::DEAD_LETTERS_FIT, Nothing("every dead letter is kept for its whole time")),
    (
        reasons::DEAD_LETTERS_FULL,
        Do("redrive or delete dead letters of the queue, or raise its spec.deadLetters.max: for each one more the oldest is deleted"),
    ),
    (
        reasons::PROJECT_FULL,
        Do("raise the field that the message names (work.maxPending), have more of the namespace's items done, or cancel some"),
    ),
    (reasons::QUEUE_FULL, Do("raise spec.limits.maxPending of the queue, or have more of its items done")),
    // What a budget or a Grant says of itself.
    (reasons::METERED, Nothing("calls are counted as spec.mode says")),
    (reasons::BELOW_LIMIT, Nothing("less is spent than the lowest threshold says")),
    (reasons::THRESHOLD_REACHED, Nothing("a part of a limit is spent; raise it, or give a Grant, if the window is long")),
    (reasons::TOKENS_LEFT, Nothing("there are tokens for its calls")),
    (
        reasons::LIFETIME_SPENT,
        Do(
            "the tokens of its life are spent: raise spec.bulkhead.lifetimeTokens or topUp of pool {pool}, or give it a Grant; or end it: `kubectl spillway rm {agent} -n {namespace}`",
        ),
    ),
    (
        reasons::PAUSED_BY_THRESHOLD,
        Do("raise the limit that the message names (spec.tokens.limits), give it a Grant, or wait until its window ends"),
    ),
    (reasons::PARENT_MISSING, Do("make the Budget that spec.parentRef names, or name another one")),
    (reasons::PARENT_CYCLE, Do("take spec.parentRef out of one of the Budgets that the message names")),
    (reasons::TOO_MANY_PARENTS, Do("have fewer Budgets above one another (spec.parentRef): 8 at most")),
    (
        reasons::GUARANTEES_EXCEED_PARENT,
        Do("lower guaranteed of the limit that the message names, here or at siblings, or raise the parent's limit"),
    ),
    (reasons::GUARANTEE_OTHER_WEIGHTS, Do("give it the weightsPermille of its parent, or set guaranteed: 0")),
    (reasons::NAMESPACE_TAKEN, Do("narrow spec.namespaceSelector: one ClusterBudget binds a namespace, and that is the oldest")),
    (reasons::TOO_MANY_NAMESPACES, Do("narrow spec.namespaceSelector, and make a second ClusterBudget for the other namespaces")),
    (reasons::NO_DEFECT, Nothing("nothing has to be changed")),
    (reasons::GRANTED, Nothing("its tokens are on top of the limit")),
    (reasons::TARGET_MISSING, Do("make what spec.targetRef names; the Grant then counts by itself")),
    (reasons::LIMIT_MISSING, Do("make another Grant with the name of a limit that its target has (status.windows)")),
    (reasons::NOT_PERMITTED, Do("make the Grant in the namespace that Spillway runs in")),
    (reasons::TIME_OVER, Nothing("its tokens count no more")),
    (reasons::NOT_OVER, Nothing("its tokens count")),
    // Goodbyes.
    ("ItemsDone", Nothing("it did as many items as spec.agent.maxItems says; the pool makes another agent if it wants one")),
];
