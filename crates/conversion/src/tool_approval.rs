//! Conversion of approvals: from an Agent to questions and answers, and from questions to its status. All functions are pure.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::api::shared::CurrentItem;
use crate::api::tool_approval::{ToolAnswer, ToolApproval, ToolApprovalState, ToolDecision};
use crate::api::{Agent, AgentSpec};
use crate::policy::tool_approval::{Answer, Call, Decision, HeldItem, Question, State};

/// The questions in the status of an agent.
pub fn questions(agent: &Agent) -> Vec<Question> {
    let stored = agent.status.as_ref().and_then(|status| status.tool_approvals.as_deref());
    stored.unwrap_or_default().iter().map(question).collect()
}

fn question(stored: &ToolApproval) -> Question {
    let ToolApproval { id, call, toolset, program, arguments, pod_uid, item, request_time, expire_time, state, by, reason } =
        stored.clone();
    let by = by.unwrap_or_default();
    Question {
        id,
        call: Call {
            digest: call,
            toolset,
            program,
            arguments,
            pod_uid,
            item: item.map(|CurrentItem { name, uid, epoch }| HeldItem { name, uid, epoch }),
        },
        asked_at: request_time.0.as_second(),
        expires_at: expire_time.0.as_second(),
        state: match state {
            ToolApprovalState::Waiting => State::Waiting,
            ToolApprovalState::Approved => State::Approved { by, reason },
            ToolApprovalState::Denied => State::Denied { by, reason },
            ToolApprovalState::TimedOut => State::TimedOut,
            ToolApprovalState::Used => State::Used { by, reason },
        },
    }
}

/// The status of these questions. `None`: there are none.
pub fn status(questions: &[Question]) -> Option<Vec<ToolApproval>> {
    Some(questions.iter().map(approval).collect()).filter(|all: &Vec<ToolApproval>| !all.is_empty())
}

fn approval(question: &Question) -> ToolApproval {
    let Question { id, call, asked_at, expires_at, state } = question.clone();
    let Call { digest, toolset, program, arguments, pod_uid, item } = call;
    let (state, by, reason) = match state {
        State::Waiting => (ToolApprovalState::Waiting, None, None),
        State::Approved { by, reason } => (ToolApprovalState::Approved, Some(by), reason),
        State::Denied { by, reason } => (ToolApprovalState::Denied, Some(by), reason),
        State::TimedOut => (ToolApprovalState::TimedOut, None, None),
        State::Used { by, reason } => (ToolApprovalState::Used, Some(by), reason),
    };
    ToolApproval {
        id,
        call: digest,
        toolset,
        program,
        arguments,
        pod_uid,
        item: item.map(|HeldItem { name, uid, epoch }| CurrentItem { name, uid, epoch }),
        request_time: time(asked_at),
        expire_time: time(expires_at),
        state,
        by,
        reason,
    }
}

fn time(seconds: i64) -> Time {
    Time(Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX))
}

/// The answers of people.
pub fn answers(spec: &AgentSpec) -> Vec<Answer> {
    spec.tool_approvals.iter().flatten().map(answer).collect()
}

fn answer(given: &ToolAnswer) -> Answer {
    let ToolAnswer { id, toolset, decision, user, reason } = given.clone();
    let decision = match decision {
        ToolDecision::Approve => Decision::Approve,
        ToolDecision::Deny => Decision::Deny,
    };
    Answer { id, toolset, decision, by: user, reason: reason.filter(|reason| !reason.is_empty()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_that_are_stored_and_read_again_are_the_same() {
        let call = Call {
            digest: "d".into(),
            toolset: "t".into(),
            program: "p".into(),
            arguments: "{}".into(),
            pod_uid: "u".into(),
            item: Some(HeldItem { name: "fix".into(), uid: "i".into(), epoch: 3 }),
        };
        let (by, reason) = ("alice".to_owned(), Some("because".to_owned()));
        let states = [
            State::Waiting,
            State::Approved { by: by.clone(), reason: reason.clone() },
            State::Denied { by: by.clone(), reason: None },
            State::TimedOut,
            State::Used { by, reason },
        ];
        let question = |(number, state)| Question {
            id: format!("{number}"),
            call: Call { item: call.item.clone().filter(|_| number != 0), ..call.clone() },
            asked_at: 1_700_000_000,
            expires_at: 1_700_000_900,
            state,
        };
        let all: Vec<Question> = states.into_iter().enumerate().map(question).collect();
        let spec = serde_json::json!({"poolRef": {"name": "p"}});
        let object = serde_json::json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Agent", "metadata": {"name": "a"},
            "spec": spec, "status": {"toolApprovals": status(&all)}});
        let agent: Agent = serde_json::from_value(object).expect("an Agent");
        assert_eq!(questions(&agent), all);
        assert_eq!(status(&[]), None);
    }
}
