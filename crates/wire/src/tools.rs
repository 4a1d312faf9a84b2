//! Privileged programs: calls of an agent's MCP client to the bridge of a Toolset.
//!
//! `/mcp/TOOLSET` carries one request of MCP. The gateway asks the governor where the bridge is, and for which item the agent may act
//! ([`ToolsetRequest`]). It calls the bridge with the identity of the agent in headers: those of [`crate::governor`], and
//! [`crate::meter::ITEM_HEADER`].

use serde::{Deserialize, Serialize};

use crate::body::{BoundedBody, at_most};
use crate::work::LeaseRef;

/// Start of the paths of MCP requests, at the sidecar's port for tools and at the gateway. The name of a Toolset follows.
pub const TOOLS_PATH_PREFIX: &str = "/mcp/";
/// The path of MCP at a bridge.
pub const BRIDGE_MCP_PATH: &str = "/mcp";
/// The path at a bridge of the token that proves which bridge answers.
pub const BRIDGE_IDENTITY_PATH: &str = "/identity";
/// The path at a bridge of [`BridgeStatus`].
pub const BRIDGE_STATUS_PATH: &str = "/status";
/// Header of a bridge's answer: how the call of a program ended, as `status` in the answer says.
pub const TOOL_STATUS_HEADER: &str = "spillway-tool-status";
/// The value of [`TOOL_STATUS_HEADER`] for a call that broke a rule.
pub const REJECTED_STATUS: &str = "rejected";
/// The most bytes of a request of MCP.
pub const MAX_REQUEST_BYTES: usize = 256 * 1024;
/// The most characters of the name of a Toolset in a request.
const MAX_NAME_CHARS: usize = 253;

/// `POST /governor/v1/tools`: whether an agent may call a Toolset, and where its bridge is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ToolsetRequest {
    /// The Toolset that the program calls.
    pub toolset: String,
    /// The item that the program works on, as the sidecar knows it.
    #[serde(default)]
    pub item: Option<LeaseRef>,
    /// The bridge has rejected the call: the governor counts that for the agent's supervision.
    #[serde(default)]
    pub rejected: bool,
}

/// The bridge of a Toolset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolsetTarget {
    /// Its address, as `IP:PORT`.
    pub address: String,
    /// Its ServiceAccount, in the agent's namespace. Only a pod of this account is the bridge.
    pub service_account: String,
    /// The item for which the agent acts.
    pub item: Option<LeaseRef>,
}

/// What a bridge serves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BridgeStatus {
    /// The revision of its definitions.
    pub revision: String,
    /// The names of its programs.
    pub programs: Vec<String>,
    /// File, line and rule of changed definitions that are wrong. The last right ones are served.
    #[serde(default)]
    pub problem: Option<String>,
}

impl BoundedBody for ToolsetRequest {
    fn check(&self) -> Result<(), (&'static str, String)> {
        at_most("toolset", &self.toolset, MAX_NAME_CHARS)
    }
}
