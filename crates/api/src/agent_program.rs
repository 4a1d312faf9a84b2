//! The program that each agent of a pool runs: its container, its input, its hooks, and the model APIs that it calls.
//!
//! Types of `AgentPool`, which names them as its own. How the program is run is decided elsewhere.

use k8s_openapi::api::core::v1::ResourceRequirements;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::schema::command_length_rule;
use crate::shared::LocalRef;

/// Program that each agent runs.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = command_length_rule("command", 32_768),
    validation = command_length_rule("preflightCommand", 16_384),
    validation = Rule::new("!has(self.env) || self.env.map(entry, has(entry.value) ? entry.value.size() : 0).sum() <= 65536")
        .message("the values of env must have at most 65536 characters in all: put longer ones into a file (agent.files)")
        .field_path(".env"),
)]
pub struct AgentProgram {
    /// Container image. It needs no support for Spillway.
    #[schemars(length(min = 1, max = 512), regex(pattern = "^[^\\s]+$"))]
    pub image: String,
    /// Program and its arguments. They are required, because the supervisor starts the program and cannot read the entrypoint of the image.
    /// As in a container, `$(NAME)` is replaced by an environment variable, and `$$` is one dollar sign.
    #[schemars(length(min = 1, max = 64), inner(length(max = 4096)))]
    pub command: Vec<String>,
    /// Environment variables with literal values. `valueFrom` is not possible, because no Secret enters an agent's pod.
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Option<Vec<EnvVar>>,
    /// Compute resources of each agent. Limits always exist: a default replaces an unset limit.
    #[serde(default)]
    #[schemars(schema_with = "crate::schema::resources")]
    pub resources: Option<ResourceRequirements>,
    /// Number of items after which an agent ends. If unset, there is no limit. For type drone it is always 1.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_items: Option<i32>,
    /// Files from ConfigMaps. They are copied below HOME or the workspace before the program starts. The program may change its copies.
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["path"]))]
    pub files: Option<Vec<ProgramFile>>,
    /// How the program gets items. `PerItem` (default): the supervisor starts it once for each item. `LongRunning`: it keeps running and
    /// claims items itself.
    #[serde(default)]
    #[schemars(default)]
    pub run: RunMode,
    /// How the program gets the payload of an item: on standard input (`Stdin`, the default), in `$SPILLWAY_DATA_DIR/payload` (`File`), or
    /// as the last argument (`Argument`).
    #[serde(default)]
    #[schemars(default)]
    pub input: InputMode,
    /// Prompt with which the program runs again until its item is done.
    #[serde(rename = "continue")]
    pub continue_: Option<Continue>,
    /// Command that must exit 0 within 30 s (15 min with `workspace.git`) before the program is started and work is taken. It has no
    /// input and no terminal. It is repeated while it fails.
    #[schemars(length(max = 64), inner(length(max = 4096)))]
    pub preflight_command: Option<Vec<String>>,
    /// Names of programs that must keep running (`vite`, `http.server`). A shell command that starts one of them has no time limit. With
    /// `*`, no command has a time limit unless it runs with `spillway exec`.
    #[schemars(length(max = 32), inner(length(min = 1, max = 64), regex(pattern = "^([*]|[A-Za-z0-9_][A-Za-z0-9_.+-]*)$")))]
    pub untimed_commands: Option<Vec<String>>,
    /// Commands that run at certain points in an agent's life.
    pub hooks: Option<Hooks>,
}

/// An environment variable.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvVar {
    /// Name of the variable. Names that Spillway sets are refused.
    #[schemars(length(min = 1, max = 128), regex(pattern = "^[A-Za-z_][A-Za-z0-9_]*$"))]
    #[x_kube(validation = Rule::new("!self.startsWith('SPILLWAY_') && !(self.upperAscii() in ['HTTP_PROXY', 'HTTPS_PROXY', 'NO_PROXY', 'ALL_PROXY']) && !(self in ['HOME', 'TMPDIR', 'PATH', 'ANTHROPIC_BASE_URL', 'OPENAI_BASE_URL', 'GOOGLE_GEMINI_BASE_URL', 'ANTHROPIC_API_KEY', 'OPENAI_API_KEY', 'GEMINI_API_KEY'])")
        .message("name is reserved: Spillway sets SPILLWAY_*, HOME, TMPDIR, PATH, the proxy variables, and the *_BASE_URL and *_API_KEY variables of the models"))]
    pub name: String,
    /// Value of the variable.
    #[schemars(length(max = 8192))]
    pub value: Option<String>,
}

/// A file from a ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProgramFile {
    /// Path below HOME (`.codex/config.toml`) or below the workspace (`workspace/AGENTS.md`).
    #[schemars(length(min = 1, max = 256), regex(pattern = "^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$"))]
    #[x_kube(validation = Rule::new("!self.split('/').exists(part, part == '..' || part == '.')")
        .message("path must not contain '.' or '..' as a part"))]
    pub path: String,
    /// ConfigMap key that holds the content of the file.
    pub config_map_key_ref: ConfigMapKeyRef,
}

/// A key of a ConfigMap in the pool's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigMapKeyRef {
    /// Name of the ConfigMap.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Key in the ConfigMap.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

/// How the program gets items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum RunMode {
    /// The supervisor runs the command once for each item.
    #[default]
    PerItem,
    /// The program keeps running and claims items itself.
    LongRunning,
}

/// How the program gets the payload of an item.
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

/// Prompt with which the program runs again.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Continue {
    /// Text that replaces the payload in further runs.
    #[schemars(length(min = 1, max = 4096))]
    pub prompt: String,
    /// Maximum number of runs of the command for one item.
    #[schemars(range(min = 1, max = 1000))]
    pub max_turns: i32,
}

/// Commands that run at certain points in an agent's life.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = command_length_rule("checkpoint", 16_384),
    validation = command_length_rule("drain", 16_384),
    validation = command_length_rule("warn", 16_384),
)]
pub struct Hooks {
    /// Command that runs before an agent with progress is paused because its tokens are spent.
    #[schemars(length(max = 64), inner(length(max = 4096)))]
    pub checkpoint: Option<Vec<String>>,
    /// Command that runs before the program is asked to end.
    #[schemars(length(max = 64), inner(length(max = 4096)))]
    pub drain: Option<Vec<String>>,
    /// Command that runs when the supervisor warns the agent. The warning is its standard input.
    #[schemars(length(max = 64), inner(length(max = 4096)))]
    pub warn: Option<Vec<String>>,
}

/// A model API that the agents may call.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelApi {
    /// Name of the entry. Inside the pod, the program calls the API at `http://127.0.0.1:4101/NAME`.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Protocol of the API.
    pub dialect: Dialect,
    /// Scheme, host and port of the API, such as `https://api.anthropic.com`.
    #[schemars(length(min = 9, max = 253), regex(pattern = "^https://[A-Za-z0-9.-]+(:[0-9]{1,5})?$"))]
    pub origin: String,
    /// Secret that holds the credential. Its type is `spillway.dev/model-credential`, and its keys are `origin` and `token`.
    pub credentials_ref: Option<LocalRef>,
    /// Models that may be called, with `*` as wildcard. If unset or empty, no model may be called.
    #[schemars(length(max = 64), inner(length(min = 1, max = 128)))]
    pub allow: Option<Vec<String>>,
    /// How the credential is sent: Bearer, x-api-key, x-goog-api-key or api-key. If unset, the dialect decides.
    #[schemars(length(min = 1, max = 63))]
    pub credential_type: Option<String>,
}

/// Protocol of a model API.
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
