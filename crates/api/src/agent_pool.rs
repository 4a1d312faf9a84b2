//! `AgentPool`: how many agents of which kind, from which queues, inside which walls.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolumeClaimSpec, ResourceRequirements, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

pub use crate::sandbox::{
    Changeset, ChangesetDriver, Egress, Isolation, Loopback, Outputs, Requirement, Sandbox, SeccompProfile, Software,
};
use crate::schema::{never_falls, short_command};
use crate::shared::LocalRef;
pub use crate::supervision::{Gang, Intervention, Signal, Supervision, SupervisionRule, ViolatedRule};

/// A fleet of agents of one type. Editing a pool is as powerful as creating pods in its namespace.
#[skip_serializing_none]
#[derive(CustomResource, Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[kube(
    group = "spillway.dev",
    version = "v1alpha1",
    kind = "AgentPool",
    plural = "agentpools",
    shortname = "apool",
    category = "spillway",
    namespaced,
    status = "AgentPoolStatus",
    derive = "PartialEq",
    doc = "A fleet of AI coding agents of one type: how many, working on what, inside which bulkhead.",
    scale(spec_replicas_path = ".spec.replicas", status_replicas_path = ".status.agents", label_selector_path = ".status.selector"),
    validation = Rule::new("self.metadata.name.size() <= 63 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
        .message("metadata.name must be a DNS label of at most 63 characters: it is the prefix of its agents' names and a label value"),
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.type"),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".status.desired"),
    printcolumn(name = "Agents", type_ = "integer", json_path = ".status.agents"),
    printcolumn(name = "Active", type_ = "integer", json_path = ".status.active"),
    printcolumn(name = "Idle", type_ = "integer", json_path = ".status.idle"),
    printcolumn(name = "Work", type_ = "integer", json_path = ".status.workReady"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.workspace) || !has(self.workspace.claimName) || ((has(self.replicas) ? self.replicas : ((has(self.scaling) && has(self.scaling.max)) ? self.scaling.max : 1)) <= 1)")
        .message("workspace.claimName is one volume: it needs scaling.max (or replicas) of at most 1; use volumeClaimTemplate for more")
        .field_path(".workspace"),
    validation = Rule::new("!has(self.mode) || self.mode != 'Chat' || !has(self.scaling) || !has(self.scaling.workAware) || !self.scaling.workAware")
        .message("scaling.workAware must be false in a Chat pool: it takes no work")
        .field_path(".scaling"),
    validation = Rule::new("self.type != 'drone' || !has(self.agent.maxItems) || self.agent.maxItems == 1")
        .message("agent.maxItems must be 1 or unset in a pool of type drone: a drone does one item")
        .field_path(".agent.maxItems"),
    validation = Rule::new("!has(self.whenEmpty) || self.whenEmpty.action != 'Hibernate' || (has(self.workspace) && has(self.workspace.volumeClaimTemplate))")
        .message("whenEmpty.action Hibernate needs workspace.volumeClaimTemplate: nothing else outlives the pod")
        .field_path(".whenEmpty"),
    validation = Rule::new("!has(self.sandbox) || !has(self.sandbox.software) || !has(self.sandbox.software.requireDigest) || !self.sandbox.software.requireDigest || self.agent.image.matches('@sha256:[0-9a-f]{64}$')")
        .message("agent.image must name a digest (@sha256:...) while sandbox.software.requireDigest is true")
        .field_path(".agent.image"),
    validation = Rule::new("!has(self.sandbox) || !has(self.sandbox.changeset) || !has(self.sandbox.changeset.driver) || self.sandbox.changeset.driver != 'Git' || (has(self.workspace) && has(self.workspace.git))")
        .message("sandbox.changeset.driver Git needs workspace.git: it says what is cloned")
        .field_path(".sandbox.changeset"),
    validation = Rule::new("!has(self.models) || !has(self.sandbox) || !has(self.sandbox.outputs) || !has(self.sandbox.outputs.allow) || !self.models.exists(model, self.sandbox.outputs.allow.exists(entry, entry.startsWith(model.origin.lowerAscii().substring(8))))")
        .message("sandbox.outputs.allow must not hold the host of a model: calls beside the gateway would not be counted")
        .field_path(".sandbox.outputs"),
    validation = Rule::new("self.type != 'scheduler' || !has(self.supervision) || !has(self.supervision.rules) || !self.supervision.rules.exists(rule, rule.signal in ['TokenBudgetExceeded', 'BudgetNearLimit'] && rule.do == 'Reap')")
        .message("supervision.rules must not reap on budget signals in a pool of type scheduler: schedulers are paused")
        .field_path(".supervision.rules"),
    validation = Rule::new("!has(self.external) || !has(self.mode) || self.mode != 'Chat'")
        .message("external must be unset in a Chat pool: nobody can attach to a process outside the cluster")
        .field_path(".external"),
    validation = Rule::new("!has(self.external) || !has(self.preflight) || !has(self.preflight.requireSandbox) || !self.preflight.requireSandbox")
        .message("preflight.requireSandbox must not be true in a pool with external: nothing isolates a program outside the cluster")
        .field_path(".external"),
)]
pub struct AgentPoolSpec {
    /// What the agents are: worker, drone, scheduler, prd, buddy and free are known; any DNS label is allowed.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub type_: String,
    /// Works from queues, or waits for a person to attach.
    #[serde(default)]
    #[schemars(default)]
    pub mode: PoolMode,
    /// How many. What is unset is decided by the type.
    pub scaling: Option<Scaling>,
    /// Exactly so many agents; set by `kubectl scale`. Then scaling and whenEmpty are ignored. Unset: automatic.
    #[schemars(range(min = 0, max = 10000))]
    pub replicas: Option<i32>,
    /// Queues in order of priority. An edit applies at the next claim.
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub queues: Option<Vec<QueueRef>>,
    /// What agents of a work-aware pool do for whom there is no work; unset: what the first queue says.
    pub when_empty: Option<WhenEmpty>,
    /// The walls around each agent.
    pub bulkhead: Option<Bulkhead>,
    /// Budget of the pool; unset: `default`, whose absence never blocks. A named one that is missing does.
    pub budget_ref: Option<LocalRef>,
    /// What its agents may submit and spawn; empty: nothing.
    pub may: Option<May>,
    /// The program.
    pub agent: AgentProgram,
    /// Model APIs its agents may call.
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub models: Option<Vec<ModelApi>>,
    /// Where its agents work; unset: an empty folder.
    pub workspace: Option<Workspace>,
    /// The sandbox of each agent.
    pub sandbox: Option<Sandbox>,
    /// Privileged tools, offered through the bridge. Not supported by this version.
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub toolsets: Option<Vec<LocalRef>>,
    /// How its agents are watched.
    pub supervision: Option<Supervision>,
    /// What must hold before work is taken.
    pub preflight: Option<Preflight>,
    /// Where its pods go.
    pub scheduling: Option<Scheduling>,
    /// Agents outside the cluster (`spillway-agent run`), beside those that the pool makes. Unset: there are none, and those that there
    /// were have to leave. What they run is chosen where they run: the image, the command, the hooks, the preflight, the workspace and
    /// the sandbox of the pool are not for them. Queues, models, tokens, time-outs and `may` are.
    pub external: Option<ExternalAgents>,
}

/// Agents outside the cluster. Nothing isolates their programs, and the payloads of the queues' items leave the cluster. Who may
/// register one, RBAC says: `create` on `agentpools/external`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExternalAgents {
    /// How many may live at a time. They are outside `scaling`, `replicas` and the limits of Budgets on agents. A lower number ends none
    /// of those that live.
    #[schemars(range(min = 1, max = 100))]
    pub max_agents: i32,
}

/// How the agents of a pool get their tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum PoolMode {
    /// From queues.
    #[default]
    Perseverance,
    /// From a person who attaches.
    Chat,
}

/// How many agents.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.min) || self.min <= (has(self.max) ? self.max : 1)")
        .message("min must not be greater than max (an unset max is 1)")
        .field_path(".min"),
)]
pub struct Scaling {
    /// At least so many (a work-aware pool still goes to 0 without work). Default 0; for type scheduler 1.
    #[schemars(range(min = 0, max = 10000))]
    pub min: Option<i32>,
    /// At most so many; 0 drains the pool. Default 1.
    #[schemars(range(min = 0, max = 10000))]
    pub max: Option<i32>,
    /// Follow the work in the queues. Default true for types worker and drone, else false.
    pub work_aware: Option<bool>,
    /// Items one agent is wanted for. Default 1.
    #[schemars(range(min = 1, max = 1000))]
    pub items_per_agent: Option<i32>,
    /// Agents beyond what the work asks for. Default 0.
    #[schemars(range(min = 0, max = 1000))]
    pub idle_buffer: Option<i32>,
    /// How long a lower target must hold before agents leave, in seconds. Default 30.
    #[schemars(range(min = 0, max = 86400))]
    pub cooldown_seconds: Option<i32>,
}

/// A queue the pool works from.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueRef {
    /// Name of the WorkQueue.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Item types taken from it; unset or empty: all.
    #[schemars(length(max = 32), inner(length(min = 1, max = 63)))]
    pub types: Option<Vec<String>>,
}

/// What to do without work.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WhenEmpty {
    /// What.
    #[serde(default)]
    #[schemars(default)]
    pub action: EmptyAction,
    /// After how many seconds without work.
    #[serde(default = "sixty")]
    #[schemars(default = "sixty", range(min = 0, max = 86400))]
    pub after_seconds: i32,
}

fn sixty() -> i32 {
    60
}

/// What an agent does when its queues are empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum EmptyAction {
    /// Stay, without work. In a pool that follows its queues the agents leave, as with Terminate.
    #[default]
    Idle,
    /// Give the pod back, keep volume and identity, and come back when there is work. It needs
    /// `workspace.volumeClaimTemplate`; in a pool without one it is as Terminate.
    Hibernate,
    /// End.
    Terminate,
}

/// Level 2: the walls around each agent.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.commandTimeoutSeconds) || self.commandTimeoutSeconds <= (has(self.maxCommandTimeoutSeconds) ? self.maxCommandTimeoutSeconds : 3600)")
        .message("commandTimeoutSeconds must not be greater than maxCommandTimeoutSeconds (3600 when unset)")
        .field_path(".commandTimeoutSeconds"),
)]
pub struct Bulkhead {
    /// Tokens an agent may spend in its life. Default from the ClusterBudget.
    #[schemars(range(min = 1, max = 1_000_000_000_000_i64))]
    pub lifetime_tokens: Option<i64>,
    /// What is asked of the pool's budget when an agent runs out.
    pub top_up: Option<TopUp>,
    /// Seconds a command may run when it brings no time of its own. Default 120. Shells that a program runs by itself are commands too:
    /// agent.untimedCommands names what is meant to stay.
    #[schemars(range(min = 1, max = 86400))]
    pub command_timeout_seconds: Option<i32>,
    /// The most seconds a command may ask for. Default 3600.
    #[schemars(range(min = 1, max = 86400))]
    pub max_command_timeout_seconds: Option<i32>,
    /// Seconds a model turn may take. Default 600.
    #[schemars(range(min = 1, max = 86400))]
    pub model_turn_timeout_seconds: Option<i32>,
    /// Time-outs after which an agent is given up. Default 3.
    #[schemars(range(min = 1, max = 1000))]
    pub max_timeouts: Option<i32>,
    /// Agents an agent may spawn. Default 0.
    #[schemars(range(min = 0, max = 1000))]
    pub max_child_agents: Option<i32>,
}

/// More tokens for an agent that ran out.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopUp {
    /// Tokens each time.
    #[schemars(range(min = 1, max = 1_000_000_000_000_i64))]
    pub tokens: i64,
    /// How many times.
    #[schemars(range(min = 0, max = 1000))]
    pub max: i32,
}

/// What agents of the pool may make.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct May {
    /// Queues they may submit to.
    #[schemars(length(max = 32), inner(length(min = 1, max = 253)))]
    pub submit_to: Option<Vec<String>>,
    /// Pools they may spawn agents in.
    #[schemars(length(max = 32), inner(length(min = 1, max = 63)))]
    pub spawn_in: Option<Vec<String>>,
}

/// The program an agent runs.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = short_command("command", 32_768),
    validation = short_command("preflightCommand", 16_384),
    validation = Rule::new("!has(self.env) || self.env.map(entry, has(entry.value) ? entry.value.size() : 0).sum() <= 65536")
        .message("the values of env must have at most 65536 characters in all: put longer ones into a file (agent.files)")
        .field_path(".env"),
)]
pub struct AgentProgram {
    /// Container image. It needs no knowledge of Spillway.
    #[schemars(length(min = 1, max = 512), regex(pattern = "^[^\\s]+$"))]
    pub image: String,
    /// Program and arguments. It is needed: Spillway's supervisor starts it, and what an image would start by itself cannot
    /// be known from outside. As in a container's command `$(NAME)` is a variable of the environment, and `$$` one dollar sign.
    #[schemars(length(min = 1, max = 64), inner(length(max = 4096)))]
    pub command: Vec<String>,
    /// Environment. No references: no secret enters an agent's pod.
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Option<Vec<EnvVar>>,
    /// Compute of each agent. Limits are always set: what is unset is filled in.
    #[serde(default)]
    #[schemars(schema_with = "crate::schema::resources")]
    pub resources: Option<ResourceRequirements>,
    /// Items after which an agent says goodbye. Unset: no end. Type drone: always 1.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_items: Option<i32>,
    /// Files from ConfigMaps. They are copied under HOME or the workspace before the program starts, and are the program's own.
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["path"]))]
    pub files: Option<Vec<ProgramFile>>,
    /// Who asks for work: the supervisor for each item, or the program itself.
    #[serde(default)]
    #[schemars(default)]
    pub run: RunMode,
    /// How an item's payload reaches the program.
    #[serde(default)]
    #[schemars(default)]
    pub input: InputMode,
    /// Prompt the program again until its item is done.
    #[serde(rename = "continue")]
    pub continue_: Option<Continue>,
    /// Must exit 0 in 30 s, without input and without a terminal, before the program is started and work is taken. It is run
    /// again while it fails.
    #[schemars(length(max = 64), inner(length(max = 4096)))]
    pub preflight_command: Option<Vec<String>>,
    /// Programs that are meant to stay, by their names (`vite`, `http.server`): a shell's command that one of them belongs to has no
    /// time. `*`: none has, unless it was run with `spillway exec`.
    #[schemars(length(max = 32), inner(length(min = 1, max = 64), regex(pattern = "^([*]|[A-Za-z0-9_][A-Za-z0-9_.+-]*)$")))]
    pub untimed_commands: Option<Vec<String>>,
    /// Commands at turning points of an agent's life.
    pub hooks: Option<Hooks>,
}

/// One environment variable.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvVar {
    /// Its name. Those that Spillway sets are refused.
    #[schemars(length(min = 1, max = 128), regex(pattern = "^[A-Za-z_][A-Za-z0-9_]*$"))]
    #[x_kube(validation = Rule::new("!self.startsWith('SPILLWAY_') && !(self.upperAscii() in ['HTTP_PROXY', 'HTTPS_PROXY', 'NO_PROXY', 'ALL_PROXY']) && !(self in ['HOME', 'TMPDIR', 'PATH', 'ANTHROPIC_BASE_URL', 'OPENAI_BASE_URL', 'GOOGLE_GEMINI_BASE_URL', 'ANTHROPIC_API_KEY', 'OPENAI_API_KEY', 'GEMINI_API_KEY'])")
        .message("name is reserved: Spillway sets SPILLWAY_*, HOME, TMPDIR, PATH, the proxy variables, the *_BASE_URL and the *_API_KEY variables of the models itself"))]
    pub name: String,
    /// Its value.
    #[schemars(length(max = 8192))]
    pub value: Option<String>,
}

/// A file taken from a ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProgramFile {
    /// Path below HOME (`.codex/config.toml`), or below the workspace (`workspace/AGENTS.md`).
    #[schemars(length(min = 1, max = 256), regex(pattern = "^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$"))]
    #[x_kube(validation = Rule::new("!self.split('/').exists(part, part == '..' || part == '.')")
        .message("path must not contain '.' or '..' as a part"))]
    pub path: String,
    /// Where its content comes from.
    pub config_map_key_ref: ConfigMapKeyRef,
}

/// A key of a ConfigMap in the pool's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigMapKeyRef {
    /// Name of the ConfigMap.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Key in it.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

/// Who asks for work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum RunMode {
    /// The supervisor runs the command once an item.
    #[default]
    PerItem,
    /// The program runs on and asks for work itself.
    LongRunning,
}

/// How an item's payload reaches the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum InputMode {
    /// On standard input.
    #[default]
    Stdin,
    /// In `$SPILLWAY_DATA_DIR/payload`.
    File,
    /// As the last argument.
    Argument,
}

/// Prompting again.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Continue {
    /// What to say.
    #[schemars(length(min = 1, max = 4096))]
    pub prompt: String,
    /// How many times the command runs for one item at most.
    #[schemars(range(min = 1, max = 1000))]
    pub max_turns: i32,
}

/// Commands at turning points of an agent's life.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = short_command("checkpoint", 16_384),
    validation = short_command("drain", 16_384),
    validation = short_command("warn", 16_384),
)]
pub struct Hooks {
    /// Before work with value is paused.
    #[schemars(length(max = 64), inner(length(max = 4096)))]
    pub checkpoint: Option<Vec<String>>,
    /// When the agent is asked to leave.
    #[schemars(length(max = 64), inner(length(max = 4096)))]
    pub drain: Option<Vec<String>>,
    /// When the supervisor warns.
    #[schemars(length(max = 64), inner(length(max = 4096)))]
    pub warn: Option<Vec<String>>,
}

/// A model API the agents may call.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelApi {
    /// Name of the entry, part of the loopback URL.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// The protocol it speaks.
    pub dialect: Dialect,
    /// Its origin.
    #[schemars(length(min = 9, max = 253), regex(pattern = "^https://[A-Za-z0-9.-]+(:[0-9]{1,5})?$"))]
    pub origin: String,
    /// Secret that holds the credential.
    pub credentials_ref: Option<LocalRef>,
    /// Models that may be called, with `*` as wildcard; unset or empty: none.
    #[schemars(length(max = 64), inner(length(min = 1, max = 128)))]
    pub allow: Option<Vec<String>>,
    /// How the credential is sent; unset: as the dialect does.
    #[schemars(length(min = 1, max = 63))]
    pub credential_type: Option<String>,
}

/// A model protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum Dialect {
    /// Anthropic Messages.
    Anthropic,
    /// OpenAI Chat Completions.
    OpenAIChat,
    /// OpenAI Responses.
    OpenAIResponses,
    /// Gemini generateContent.
    Gemini,
}

/// Where agents work. Exactly one field is set.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("[has(self.empty), has(self.git), has(self.volumeClaimTemplate), has(self.claimName)].filter(x, x).size() == 1")
        .message("workspace must set exactly one of empty, git, volumeClaimTemplate and claimName"),
)]
pub struct Workspace {
    /// An empty folder, gone with the pod.
    pub empty: Option<EmptyWorkspace>,
    /// A clone of a git repository. Not supported by this version.
    pub git: Option<GitWorkspace>,
    /// A volume of each agent's own: a PersistentVolumeClaim's spec.
    #[serde(default)]
    #[schemars(schema_with = "crate::schema::claim_spec")]
    pub volume_claim_template: Option<PersistentVolumeClaimSpec>,
    /// An existing PersistentVolumeClaim, for a pool of at most one agent.
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: Option<String>,
}

/// An empty folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct EmptyWorkspace {}

/// A clone of a git repository.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GitWorkspace {
    /// URL of the repository, without a user or password in it.
    #[schemars(length(min = 9, max = 1024), regex(pattern = "^https://[^@\\s]+$"))]
    pub remote: String,
    /// Branch, tag or commit; unset: the default branch.
    #[serde(rename = "ref")]
    #[schemars(length(min = 1, max = 255))]
    pub ref_: Option<String>,
    /// Pattern of the refs that may be pushed; unset: none.
    #[schemars(length(min = 1, max = 255))]
    pub push: Option<String>,
    /// Secret that holds the credential.
    pub credentials_ref: Option<LocalRef>,
}

/// What must hold before work is taken.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Preflight {
    /// The sandbox is in force: an agent whose pod reports a missing guarantee gets no work. Unset: true, but for what this
    /// version builds nowhere (Landlock, AgentStrict).
    pub require_sandbox: Option<bool>,
    /// Who serves these https URLs answers. Agents reach the origins of models and no others: a pool with another URL starts
    /// no agents and says so.
    #[schemars(length(max = 32), inner(length(min = 1, max = 1024), regex(pattern = "^https://[^/?#@\\s]+([/?#]\\S*)?$")))]
    pub urls: Option<Vec<String>>,
    /// Each entry of models answers with its credential: its provider's list of models, which costs no tokens. Default false.
    pub models: Option<bool>,
    /// Programs that are on the path of the agents' program. Items ask for them by requires.tools.
    #[schemars(length(max = 32), inner(length(min = 1, max = 128), regex(pattern = "^[A-Za-z0-9._+-]+$")))]
    pub tools: Option<Vec<String>>,
}

/// Where pods go.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Scheduling {
    /// Labels a node must have.
    #[serde(default)]
    #[schemars(schema_with = "crate::schema::labels")]
    pub node_selector: Option<BTreeMap<String, String>>,
    /// Taints that are tolerated, as in a pod.
    #[serde(default)]
    #[schemars(schema_with = "crate::schema::tolerations")]
    pub tolerations: Option<Vec<Toleration>>,
    /// PriorityClass of the pods.
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
    /// RuntimeClass of the pods.
    #[schemars(length(min = 1, max = 253))]
    pub runtime_class_name: Option<String>,
    /// ServiceAccount of the pods; its token is never mounted.
    #[schemars(length(min = 1, max = 253))]
    pub service_account_name: Option<String>,
    /// Secrets the kubelet pulls the image with; they are never mounted.
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub image_pull_secrets: Option<Vec<LocalRef>>,
}

/// What Spillway says of a pool.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = never_falls("governorEpoch")
        .message("governorEpoch must not fall: the writer has lost its leadership"),
    validation = never_falls("spawned")
        .message("spawned must not fall: a sequence number is never given twice"),
    validation = never_falls("collectedBelow")
        .message("collectedBelow must not fall: what was collected is never made again"),
)]
pub struct AgentPoolStatus {
    /// The generation this status speaks of; -1 before the first look.
    pub observed_generation: Option<i64>,
    /// How many agents are wanted.
    pub desired: Option<i32>,
    /// How many are there: made by the pool, and not ended.
    pub agents: Option<i32>,
    /// How many of them hold an item.
    pub active: Option<i32>,
    /// How many of them are registered and hold none.
    pub idle: Option<i32>,
    /// How many hibernate: they have no pod, and are not among those.
    pub hibernated: Option<i32>,
    /// Label selector of the pods, for /scale.
    #[schemars(length(max = 512))]
    pub selector: Option<String>,
    /// Sequence numbers given out so far: the next Agent gets this one.
    pub spawned: Option<i64>,
    /// Every sequence number below this one was seen to exist once and is never made again.
    pub collected_below: Option<i64>,
    /// Ready items the pool would take.
    pub work_ready: Option<i64>,
    /// Items its agents hold.
    pub work_leased: Option<i64>,
    /// Why desired is what it is, or what is in the way.
    #[schemars(length(max = 64))]
    pub reason: Option<String>,
    /// Owner epoch of the last writer.
    pub governor_epoch: Option<i64>,
    /// Ready, Reconciling, Stalled, ScaledToZero, AtMax, Blocked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}
