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
/// Start of the paths at a bridge of the files of a request that is under way: `PUT /files/REQUEST/NAME`, with the id of
/// [`TOOL_REQUEST_HEADER`] and the name of an artifact.
pub const BRIDGE_FILES_PATH: &str = "/files/";
/// Header for a bridge: an id that the gateway gives one request of a program, however often it sends that to the bridge.
pub const TOOL_REQUEST_HEADER: &str = "spillway-tool-request";
/// Header for a bridge: the name of the Toolset that the program calls.
pub const TOOLSET_HEADER: &str = "spillway-toolset";
/// Header for a bridge: a [`JudgedCall`], as Base64 of JSON. Names and reasons of people may contain all characters.
pub const TOOL_VERDICT_HEADER: &str = "spillway-tool-verdict";
/// Header of a bridge's answer: how the call of a program ended, as `status` in the answer says.
pub const TOOL_STATUS_HEADER: &str = "spillway-tool-status";
/// The value of [`TOOL_STATUS_HEADER`] for a call that broke a rule.
pub const REJECTED_STATUS: &str = "rejected";
/// Hexadecimal digits of the id of a call that a person approves.
pub const APPROVAL_ID_DIGITS: usize = 64;
/// The most characters of the arguments that a person is shown.
pub const MAX_SHOWN_ARGUMENTS_CHARS: usize = 1024;
/// The most artifacts that one call may name.
pub const MAX_CALL_FILES: usize = 64;
/// The most characters of the name of a program.
const MAX_PROGRAM_CHARS: usize = 63;
/// The most bytes of a request of MCP.
pub const MAX_REQUEST_BYTES: usize = 256 * 1024;
/// The most characters of the name of a Toolset in a request.
const MAX_NAME_CHARS: usize = 253;

/// `POST /governor/v1/tools`: whether an agent may call a Toolset, and where its bridge is.
// Gateways of another version may tell more, or less.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolsetRequest {
    /// The Toolset that the program calls.
    pub toolset: String,
    /// The item that the program works on, as the sidecar knows it.
    #[serde(default)]
    pub item: Option<LeaseRef>,
    /// The step of the call.
    #[serde(default, skip_serializing_if = "ToolStep::is_call")]
    pub step: ToolStep,
}

/// A step of a call. The governor answers with the type that is named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum ToolStep {
    /// Whether the agent may call now: [`ToolsetTarget`].
    #[default]
    Call,
    /// The bridge has rejected the call: the governor counts that for the agent's supervision. No answer.
    Rejected,
    /// Whether a person approves the call: [`ApprovalVerdict`]. The gateway asks again until the verdict is not
    /// [`ApprovalVerdict::Waiting`].
    Approval(CallToApprove),
}

impl ToolStep {
    fn is_call(&self) -> bool {
        *self == Self::Call
    }
}

/// A call that a bridge has found right, and that runs only if a person approves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CallToApprove {
    /// Digest of all that is approved: the Toolset, the program with its definition, the arguments, the contents of artifacts, the agent and
    /// its item. The bridge computes it, and runs a call of no other digest.
    pub id: String,
    /// Name of the program.
    pub program: String,
    /// Its arguments as JSON, all of them. A call with more than [`MAX_SHOWN_ARGUMENTS_CHARS`] is refused.
    pub arguments: String,
}

/// What persons have said about a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum ApprovalVerdict {
    /// Nothing yet.
    Waiting,
    /// The call may run, once. The approval is used up before this is answered.
    Approved {
        /// The user, as the API server names it.
        by: String,
    },
    /// The call must not run.
    Denied {
        /// The user, as the API server names it.
        by: String,
        /// Why, in the user's words.
        reason: String,
    },
    /// Nobody has answered in time.
    TimedOut,
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

/// What a right call needs before it runs, in a bridge's answer with the status 428, which is for the gateway alone. The gateway provides it,
/// and sends the same request again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum CallNeeds {
    /// These artifacts of the item.
    Files(Vec<String>),
    /// The approval of a person.
    Approval(CallToApprove),
}

/// The verdict of persons on a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JudgedCall {
    /// [`CallToApprove::id`].
    pub id: String,
    /// What they said.
    pub verdict: ApprovalVerdict,
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
    /// What is wrong with the MCP server that it fronts.
    #[serde(default)]
    pub upstream: Option<UpstreamFault>,
}

/// What is wrong with the MCP server that a bridge fronts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpstreamFault {
    /// The kind.
    pub kind: UpstreamFaultKind,
    /// What is wrong.
    pub message: String,
}

/// The kind of an [`UpstreamFault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum UpstreamFaultKind {
    /// It does not answer, or answers something else than its tools.
    Unreachable,
    /// It does not have some of the tools that agents may call.
    ToolMissing,
    /// A tool has another digest than the Toolset names, and is not offered.
    ToolRefused,
    /// It says something else about a tool than before. Agents see what it said first.
    ToolChanged,
}

impl BoundedBody for ToolsetRequest {
    fn check(&self) -> Result<(), (&'static str, String)> {
        at_most("toolset", &self.toolset, MAX_NAME_CHARS)?;
        match &self.step {
            ToolStep::Call | ToolStep::Rejected => Ok(()),
            ToolStep::Approval(CallToApprove { id, program, arguments }) => {
                if id.len() != APPROVAL_ID_DIGITS || !id.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)) {
                    return Err(("step.approval.id", format!("must have {APPROVAL_ID_DIGITS} hexadecimal digits")));
                }
                at_most("step.approval.program", program, MAX_PROGRAM_CHARS)?;
                at_most("step.approval.arguments", arguments, MAX_SHOWN_ARGUMENTS_CHARS)
            }
        }
    }
}
