//! The checks that an agent must pass before it gets work, in the spec of its pool.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

/// Checks that an agent must pass before it gets work.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Preflight {
    /// Whether every guarantee of the sandbox must be in force, whatever `sandbox.isolation` says. An agent whose pod reports a missing
    /// guarantee then gets no work. If unset, `sandbox.isolation` alone decides: what it requires must be in force before the program starts.
    pub require_sandbox: Option<bool>,
    /// https URLs whose servers must answer. Only origins of `models` can be checked: a pool with any other URL is Blocked
    /// (PreflightFailed) and starts no agents.
    #[schemars(length(max = 32), inner(length(min = 1, max = 1024), regex(pattern = "^https://[^/?#@\\s]+([/?#]\\S*)?$")))]
    pub urls: Option<Vec<String>>,
    /// Whether each entry of `models` must answer with its credential. The check requests the list of models and costs no tokens. Defaults
    /// to false.
    pub models: Option<bool>,
    /// Programs that must be on the PATH of the agent's program. An item asks for them with `requires.tools`.
    #[schemars(length(max = 32), inner(length(min = 1, max = 128), regex(pattern = "^[A-Za-z0-9._+-]+$")))]
    pub tools: Option<Vec<String>>,
    /// Toolsets of `toolsets` that must answer, with the programs that they must serve. The check starts no program.
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub toolsets: Option<Vec<PreflightToolset>>,
}

/// A Toolset that must answer before an agent gets work.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PreflightToolset {
    /// Name of the Toolset. A pool whose `toolsets` does not list it is Blocked (PreflightFailed) and starts no agents.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Programs that the Toolset must serve. An item asks for them with `requires.tools`. If unset, the Toolset must only answer.
    #[schemars(length(max = 32), inner(length(min = 1, max = 63), regex(pattern = "^[a-z][a-z0-9_-]*$")))]
    pub programs: Option<Vec<String>>,
}
