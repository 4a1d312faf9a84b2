//! The conditions of an Agent other than Ready: heartbeat, isolation, pause, checkpoint, requested and available
//! tokens. Sets no phase.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::{CHECKPOINT_TIMEOUT_SECONDS, NOT_REGISTERED_MESSAGE, StatusFacts};
use crate::api::AgentStatus;
use crate::api::agent::{AgentPhase, SandboxReport, UnavailableSandbox};
use crate::api::conditions::{reasons, types};
use crate::controller::agent::supervise::Pause;
use crate::controller::conditions::{Builder, find};
use crate::governor::budget::availability::{self, TokenAvailability};
use crate::governor::live::HumanRequest;
use crate::policy::agent::{Activity, GiveUpReason, State};
use crate::policy::health::Finding;
use crate::policy::work::item::Phase;
use crate::wire::agent::{Checkpoint, CheckpointState};
use crate::wire::sandbox::{OBSERVED_TIER, POD_TIER};

/// `Heartbeating`. It is absent until the pod runs.
pub(super) fn heartbeating(told: &StatusFacts<'_>, conditions: &Builder<'_>, phase: AgentPhase) -> Option<Condition> {
    let stored = find(conditions.stored, types::HEARTBEATING).cloned();
    let say = |status: &str, reason: &str, words: &str| Some(conditions.with_status(types::HEARTBEATING, status, reason, words));
    match told.state {
        State::Condemned(Some((GiveUpReason::HeartbeatLost, words))) => say("False", reasons::HEARTBEAT_LOST, words),
        State::Condemned(Some((GiveUpReason::ProgramSilent, words))) => say("False", reasons::PROGRAM_SILENT, words),
        // Not ready and not registered: a running pod alone is no heartbeat.
        State::Running(Activity::Starting) if told.view.is_none_or(|view| !view.registered) => stored
            .or_else(|| conditions.with_status(types::HEARTBEATING, "Unknown", reasons::NOT_REGISTERED, NOT_REGISTERED_MESSAGE).into()),
        State::Running(Activity::Registering) => say("Unknown", reasons::NOT_REGISTERED, NOT_REGISTERED_MESSAGE),
        State::Running(_) => match told.view.map(|view| view.finding) {
            Some(Finding::SilentWithMany) => say(
                "Unknown",
                reasons::SILENT_WITH_MANY,
                "many agents of the same node or gateway are silent, and none of them is given up yet. Check the node and the gateways",
            ),
            // Only where supervision does not end the agent (mode Observe or Disabled, or a rule): else it is given up.
            Some(Finding::HeartbeatLost(_)) => {
                say("False", reasons::HEARTBEAT_LOST, "the agent has not reported for spec.supervision.heartbeatTimeoutSeconds of its pool")
            }
            Some(Finding::ProgramSilent(_)) => say(
                "False",
                reasons::PROGRAM_SILENT,
                "the agent reports, but its program did nothing for spec.supervision.heartbeatTimeoutSeconds of its pool",
            ),
            Some(
                Finding::Well
                | Finding::StartOverdue(_)
                | Finding::LeaseExpired(_)
                | Finding::ItemStalled(_)
                | Finding::ItemPastTime(_)
                | Finding::CancelIgnored(_),
            )
            | None => say("True", reasons::HEARTBEATING, "the agent reports"),
        },
        State::Ended(_) => stored.and_then(|_| say("False", reasons::POD_GONE, "the agent ended")),
        // The next pod has not registered yet.
        State::Hibernated => None,
        State::Keep
        | State::Creating
        | State::Replacing
        | State::Hindered(_)
        | State::PoolMissing
        | State::Pending(_)
        | State::Unreachable
        | State::Stopping
        | State::Hibernating
        | State::Condemned(_)
        | State::Missing(_) => stored.filter(|_| !phase.ended()),
    }
}

/// `SandboxEnforced` of an agent outside the cluster. The operator cannot verify isolation there, so it ignores what
/// the process reports.
pub(super) fn external_sandbox(conditions: &Builder<'_>) -> Condition {
    let words = "the agent runs outside the cluster. Spillway does not isolate its program, and limits nothing but its tokens";
    conditions.with_status(types::SANDBOX_ENFORCED, "False", reasons::WALLS_NOT_ENFORCED, words)
}

/// `SandboxEnforced`, as the agent's pod reports it.
pub(super) fn sandbox(told: &StatusFacts<'_>, next: &AgentStatus, conditions: &Builder<'_>) -> Condition {
    let to = |status: &str, reason: &str, words: String| conditions.with_status(types::SANDBOX_ENFORCED, status, reason, words);
    if let State::Running(Activity::ForbiddenReachable(reachable)) = told.state {
        let words = format!("the pod can reach {reachable}: its NetworkPolicy is not enforced yet, so the program does not start");
        return to("False", reasons::EGRESS_NOT_ENFORCED, words);
    }
    match &next.sandbox {
        Some(SandboxReport { unavailable: Some(UnavailableSandbox { reason, message }), .. }) => {
            to("False", reason, format!("the program does not start: {message}"))
        }
        Some(SandboxReport { tier, refused, .. }) if tier == OBSERVED_TIER => {
            let refused = refused.as_ref().map_or_else(|| "nothing so far".to_owned(), |refused| refused.join(", "));
            to(
                "False",
                reasons::SANDBOX_OBSERVED,
                format!("the sandbox only observes (spec.sandbox.isolation.mode). It would refuse: {refused}"),
            )
        }
        Some(SandboxReport { tier, missing: Some(missing), .. }) => {
            let reason = if tier == POD_TIER { reasons::POD_WALLS_ONLY } else { reasons::SANDBOX_DEGRADED };
            to("False", reason, format!("tier {tier}: the isolation of the pod is in force. Missing: {}", missing.join(", ")))
        }
        Some(SandboxReport { tier, missing: None, .. }) => to("True", reasons::ENFORCED, format!("tier {tier}: no guarantee is missing")),
        None => to("Unknown", reasons::NOT_REPORTED, "the agent's pod has not reported its isolation yet".to_owned()),
    }
}

/// `Paused`. `at`: the limit of the agent's lifetime tokens at which it was paused; none: it was not paused for these.
pub(super) fn paused(told: &StatusFacts<'_>, at: Option<i64>, conditions: &Builder<'_>) -> Condition {
    let (status, reason, words) = match (told.paused, at) {
        (None, _) => (false, reasons::NOT_PAUSED, ""),
        (Some(Pause::Spec), _) => (true, reasons::PAUSED_BY_SPEC, "spec.paused of the agent is true. Set it to false to resume the agent"),
        (Some(Pause::Supervisor), _) => (
            true,
            reasons::PAUSED_BY_SUPERVISOR,
            "an intervention paused the agent. To resume, set spec.resumePause to the number in status.pauses",
        ),
        (Some(Pause::Tokens), None) => (
            true,
            reasons::TOKEN_BUDGET_EXCEEDED,
            "a threshold of a Budget paused the agent. Its work is kept. To resume, set spec.resumePause to the number in status.pauses",
        ),
        (Some(Pause::Tokens), Some(_)) => (
            true,
            reasons::TOKEN_BUDGET_EXCEEDED,
            "the agent has spent its lifetime tokens. Its work is kept. It continues when a Grant or its pool gives it more tokens",
        ),
    };
    conditions.build(types::PAUSED, status, reason, words)
}

/// `Checkpointed`: the result of the checkpoint that the pause of the agent's item requested.
pub(super) fn checkpointed(told: &StatusFacts<'_>, conditions: &Builder<'_>) -> Option<Condition> {
    let say = |status: &str, reason: &str, words: String| Some(conditions.with_status(types::CHECKPOINTED, status, reason, words));
    let holding = told.holding.filter(|holding| holding.phase == Phase::Paused);
    let holding = holding.filter(|_| matches!(told.paused, Some(Pause::Supervisor | Pause::Tokens)))?;
    let said = told.view.and_then(|view| view.report.as_ref()?.0.checkpoint.as_ref());
    let since = find(conditions.stored, types::PAUSED).filter(|paused| paused.status == "True").map(|paused| paused.last_transition_time.0);
    match said.filter(|said| said.held == holding.held && said.pause == holding.pauses) {
        Some(Checkpoint { state: CheckpointState::Taken, .. }) => {
            say("True", reasons::CHECKPOINT_TAKEN, "hooks.checkpoint succeeded".to_owned())
        }
        Some(Checkpoint { state: CheckpointState::Failed, message, .. }) => {
            say("False", reasons::CHECKPOINT_FAILED, format!("hooks.checkpoint {message}. The work is kept"))
        }
        Some(Checkpoint { state: CheckpointState::NoHook, .. }) => {
            say("False", reasons::NO_CHECKPOINT_HOOK, "the agent's pool has no spec.agent.hooks.checkpoint. The work is kept".to_owned())
        }
        Some(Checkpoint { state: CheckpointState::Running, .. }) | None
            if since.is_some_and(|since| told.now.duration_since(since).as_secs() > CHECKPOINT_TIMEOUT_SECONDS) =>
        {
            let words = "the agent has not reported the result of hooks.checkpoint. The work is kept";
            say("False", reasons::CHECKPOINT_UNANSWERED, words.to_owned())
        }
        Some(Checkpoint { state: CheckpointState::Running, .. }) | None => say(
            "Unknown",
            reasons::CHECKPOINT_ORDERED,
            "the agent was told to run hooks.checkpoint, and has not reported the result yet".to_owned(),
        ),
    }
}

/// `TokensRequested`. A request that an earlier leader stored stays until the agent reports another one. A grant does
/// not change it.
pub(super) fn tokens_requested(told: &StatusFacts<'_>, conditions: &Builder<'_>) -> Option<Condition> {
    let stored = find(conditions.stored, types::TOKENS_REQUESTED);
    match told.view.and_then(|view| view.asks.as_ref()) {
        Some(HumanRequest::Tokens(words)) => {
            Some(conditions.build(types::TOKENS_REQUESTED, true, reasons::ASKED_FOR_TOKENS, words.clone()))
        }
        Some(HumanRequest::Nothing) => stored.map(|_| {
            conditions.build(
                types::TOKENS_REQUESTED,
                false,
                reasons::TAKEN_BACK,
                "the agent has withdrawn its request for tokens".to_owned(),
            )
        }),
        None => stored.cloned(),
    }
}

/// `BudgetAvailable`. The stored condition stays after the agent ended, and while the answer is unknown.
pub(super) fn budget_available(told: &StatusFacts<'_>, conditions: &Builder<'_>, phase: AgentPhase) -> Option<Condition> {
    let stored = find(conditions.stored, types::BUDGET_AVAILABLE);
    if phase.ended() {
        return stored.cloned();
    }
    match &told.tokens {
        TokenAvailability::Unknown => stored.cloned(),
        TokenAvailability::Available => {
            Some(conditions.build(types::BUDGET_AVAILABLE, true, reasons::TOKENS_LEFT, "there are tokens for the agent's calls"))
        }
        TokenAvailability::Blocked(obstacle) => {
            Some(conditions.build(types::BUDGET_AVAILABLE, false, availability::reason(obstacle), obstacle.to_string()))
        }
    }
}
