//! Approvals of calls of privileged programs: the calls that wait, in an agent's status, and people's answers, in its spec.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::shared::CurrentItem;

/// A person's answer to a call that waits for approval.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolAnswer {
    /// Id of the call in `status.toolApprovals`.
    #[schemars(length(min = 1, max = 32), regex(pattern = "^[0-9a-f]+$"))]
    pub id: String,
    /// Toolset of the call. The answer counts only if this is the Toolset in `status.toolApprovals`.
    #[schemars(length(min = 1, max = 63))]
    pub toolset: String,
    /// Decision: the call may run once (`Approve`), or it must not run (`Deny`).
    pub decision: ToolDecision,
    /// User that decides, as the API server names it. The admission policy accepts only the user's own name.
    #[schemars(length(min = 1, max = 512))]
    pub user: String,
    /// Reason, for the agent and for people.
    #[schemars(length(max = 1024))]
    pub reason: Option<String>,
}

/// What a person decides about a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(transform = crate::schema::without_enum_description)]
pub enum ToolDecision {
    /// The call may run once.
    Approve,
    /// The call must not run.
    Deny,
}

/// A call that a person approves.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolApproval {
    /// Id of this question. It is never used again, also if the agent repeats the call.
    #[schemars(length(max = 32))]
    pub id: String,
    /// Digest of all that is approved, as the bridge computed it: the program with its definition, the arguments, the agent and its item.
    #[schemars(length(max = 64))]
    pub call: String,
    /// Toolset that is called.
    #[schemars(length(max = 63))]
    pub toolset: String,
    /// Program that is called.
    #[schemars(length(max = 63))]
    pub program: String,
    /// All its arguments, as JSON. Characters that could deceive a reader are escaped.
    #[schemars(length(max = 1024))]
    pub arguments: String,
    /// Uid of the pod that calls.
    #[schemars(length(max = 64))]
    pub pod_uid: String,
    /// Item for which the agent calls. Without it the agent named none.
    pub item: Option<CurrentItem>,
    /// When the approval was requested.
    pub request_time: Time,
    /// From when on the call cannot be approved.
    pub expire_time: Time,
    /// State of the question: `Waiting` (no person has answered), `Approved` (the call may run once, and has not run), `Denied`, `TimedOut`
    /// (no person has answered in time, or the call was not repeated in time) or `Used` (the approval is spent: the call may have run).
    pub state: ToolApprovalState,
    /// User that decided.
    #[schemars(length(max = 512))]
    pub by: Option<String>,
    /// Reason, in the words of the user.
    #[schemars(length(max = 1024))]
    pub reason: Option<String>,
}

/// State of a call that a person approves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(transform = crate::schema::without_enum_description)]
pub enum ToolApprovalState {
    /// No person has answered.
    Waiting,
    /// The call may run once, and has not run.
    Approved,
    /// The call must not run.
    Denied,
    /// It can no more be approved.
    TimedOut,
    /// The approval is spent.
    Used,
}

impl ToolApprovalState {
    /// Name under which the state is stored.
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "Waiting",
            Self::Approved => "Approved",
            Self::Denied => "Denied",
            Self::TimedOut => "TimedOut",
            Self::Used => "Used",
        }
    }
}
