//! `spec.upstream` of a Toolset: an existing MCP server, and what agents may do with it.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

/// An existing MCP server whose tools agents may call, with a credential that they cannot read. As JSON it has at most 120 KiB.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Upstream {
    /// Address of the server (streamable HTTP), as `https://host[:port]/path`. `http://` is for a Service of the cluster:
    /// `http://name.namespace.svc[:port]/path`. The NetworkPolicy allows this host and port; redirects are not followed. The policy
    /// sees the pods behind a Service: if their port is another one, allow it in `spec.egress` too.
    #[schemars(length(min = 1, max = 2048), regex(pattern = "^https?://[^\\s@#]+$"))]
    pub url: String,
    /// Secret with the bearer token that the bridge sends. It is read again when it changes. If unset, the bridge sends none.
    pub credentials_ref: Option<UpstreamCredential>,
    /// Certificates of authorities that are trusted besides the public ones, as PEM.
    #[schemars(length(min = 1, max = 65536))]
    pub ca_bundle: Option<String>,
    /// Tools that agents may call. A call of another tool is rejected.
    #[schemars(length(min = 1, max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub tools: Vec<UpstreamTool>,
}

/// A Secret with a bearer token.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpstreamCredential {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Key of the Secret whose value is the token. Defaults to `token`.
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[A-Za-z0-9_-][A-Za-z0-9._-]*$"))]
    pub key: Option<String>,
}

impl UpstreamCredential {
    /// Key of the Secret whose value is the token.
    pub fn key(&self) -> &str {
        self.key.as_deref().unwrap_or("token")
    }
}

/// A tool that agents may call.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpstreamTool {
    /// Name of the tool, as the server lists it.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[A-Za-z0-9_./-]+$"))]
    pub name: String,
    /// Whether a person approves each call. Defaults to false.
    pub requires_approval: Option<bool>,
    /// Time limit of a call in seconds, at most `spec.maxExecutionSeconds`. Defaults to 60.
    #[schemars(range(min = 1, max = 86400))]
    pub timeout_seconds: Option<i32>,
    /// Other limits of calls.
    pub limits: Option<UpstreamToolLimits>,
    /// Rules for the arguments. A call may then give only the arguments that are named here. If unset, the server alone decides which
    /// arguments are valid.
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub arguments: Option<Vec<ArgumentRule>>,
    /// SHA-256 of what the server says about the tool: its title, its description and the schema of its arguments. A tool with another
    /// digest is not offered. The bridge logs the digests. If unset, agents see the tool as it was when the bridge first saw it.
    #[schemars(length(min = 64, max = 64), regex(pattern = "^[0-9a-f]+$"))]
    pub digest: Option<String>,
}

/// Limits of the calls of a tool.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpstreamToolLimits {
    /// Bytes of an answer. A longer answer is not passed on. Defaults to 262144.
    #[schemars(range(min = 1024, max = 1_048_576))]
    pub answer_bytes: Option<i32>,
    /// Calls at once. Defaults to 4.
    #[schemars(range(min = 1, max = 64))]
    pub concurrency: Option<i32>,
    /// Calls of one agent within a minute. Defaults to 30.
    #[schemars(range(min = 1, max = 6000))]
    pub per_agent_per_minute: Option<i32>,
}

/// A rule for an argument of a tool, as those of the arguments of programs.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArgumentRule {
    /// Name of the argument.
    #[schemars(length(min = 1, max = 64), regex(pattern = "^[!-~]+$"))]
    pub name: String,
    /// Type of its value. Defaults to `string`.
    #[serde(rename = "type")]
    pub type_: Option<ArgumentRuleType>,
    /// What it means. Defaults to what the server says.
    #[schemars(length(max = 256))]
    pub description: Option<String>,
    /// Whether each call must give it. Defaults to false.
    pub required: Option<bool>,
    /// Regular expression that the whole text matches.
    #[schemars(length(max = 512))]
    pub pattern: Option<String>,
    /// Most characters of the text. Defaults to 1024.
    #[schemars(range(min = 1, max = 16384))]
    pub max_length: Option<i32>,
    /// Whether the text may have several lines. Defaults to false.
    pub multiline: Option<bool>,
    /// Least number. Defaults to 0.
    pub min: Option<i64>,
    /// Greatest number.
    pub max: Option<i64>,
    /// Possible texts of the type `enum`.
    #[schemars(length(min = 1, max = 32), inner(length(max = 128)))]
    pub values: Option<Vec<String>>,
}

/// Type of the value of an argument.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ArgumentRuleType {
    /// A text.
    #[default]
    String,
    /// A whole number.
    Integer,
    /// `true` or `false`.
    Boolean,
    /// One of the texts in `values`.
    Enum,
}
