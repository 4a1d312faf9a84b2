//! Whether persons let a checked call run.

use std::collections::BTreeMap;

use spillway_bridge::answer::{Answer, Status};
use spillway_bridge::approval::{GuardedCall, Judgement};
use spillway_bridge::audit::RecordedFile;
use spillway_bridge::definition::Definition;

use super::answers::{NotRun, refused, rejected};
use super::program_call::ProgramCall;
use crate::wire::tools::{ApprovalVerdict, CallToApprove};

/// Whether a call has the approval of a person.
pub enum Approval {
    /// It runs. The user, if its definition asks for one.
    Given(Option<String>),
    /// A person is asked.
    Needed(CallToApprove),
}

/// Whether a checked call may run as far as persons are asked.
pub fn approval(
    call: &ProgramCall,
    definition: &Definition,
    revision: &str,
    (files, artifacts): (&BTreeMap<String, String>, &BTreeMap<String, RecordedFile>),
) -> Result<Approval, NotRun> {
    if !definition.requires_approval {
        return Ok(Approval::Given(None));
    }
    let Some(provided) = &call.provided else {
        let message = format!("{} needs the approval of a person, and this bridge has nobody who approves", definition.name);
        return Err(rejected("approval", &message));
    };
    let (caller, toolset, program, arguments) = (&call.caller, provided.toolset.as_str(), definition.name.as_str(), &call.arguments);
    let guarded = GuardedCall { caller, toolset, program, revision, arguments, files, artifacts };
    let denied = |rule, message: String| Box::new(Answer::not_run(Status::Denied, rule, message));
    match guarded.judge(provided.judged.as_ref()).map_err(refused)? {
        Judgement::Ask(question) => Ok(Approval::Needed(question)),
        Judgement::Approved { by } => Ok(Approval::Given(Some(by))),
        Judgement::Denied { by: Some(by), reason } if reason.is_empty() => Err(denied("denied", format!("{by} denied this call"))),
        Judgement::Denied { by: Some(by), reason } => Err(denied("denied", format!("{by} denied this call: {reason}"))),
        Judgement::Denied { by: None, .. } => Err(denied("approvalTimeout", "nobody has approved this call in time".to_owned())),
    }
}

/// The user who denied a call whose answer has this status.
pub fn denied_by(call: &ProgramCall, status: Status) -> Option<&str> {
    match &call.provided.as_ref()?.judged.as_ref()?.verdict {
        ApprovalVerdict::Denied { by, .. } if status == Status::Denied => Some(by),
        ApprovalVerdict::Denied { .. } | ApprovalVerdict::Approved { .. } | ApprovalVerdict::Waiting | ApprovalVerdict::TimedOut => None,
    }
}
