//! From what an agent reported to what its supervisor decides: the custom resource's words turned into those of
//! `policy::hub`, and back. Pure, but for what was answered before.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::api::agent::AgentPhase;
use crate::api::agent_pool::{AgentPoolSpec, Intervention, Signal as ApiSignal, SupervisionRule, ViolatedRule};
use crate::api::conditions::{reasons, types};
use crate::api::shared::Mode as ApiMode;
use crate::api::{Agent, AgentStatus};
use crate::controller::conditions::find;
use crate::controller::context::Context;
use crate::governor::live::View;
use crate::governor::preflight;
use crate::policy::agent::{GiveUp, Life};
use crate::policy::health::Finding;
use crate::policy::hub::{Action, Decision, Mode, Raised, Rule, Signal, Violation, decide as decide_in_hub};

/// What the hub decides now about the agent with the pod `uid`; a signal that goes on standing is answered once.
pub fn decide(uid: &str, view: Option<&View>, failure: Option<&str>, spec: Option<&AgentPoolSpec>, context: &Context) -> Option<Decision> {
    let raised = raised(view, failure);
    context.live.standing(uid, &raised.iter().map(|one| one.signal).collect::<BTreeSet<_>>());
    let supervision = spec.and_then(|spec| spec.supervision.as_ref());
    let mode = match supervision.map(|supervision| supervision.mode).unwrap_or_default() {
        ApiMode::Enforce => Mode::Enforce,
        ApiMode::Observe => Mode::Observe,
        ApiMode::Disabled => Mode::Disabled,
    };
    let rules: Vec<Rule> = supervision.and_then(|supervision| supervision.rules.as_ref()).into_iter().flatten().map(rule).collect();
    decide_in_hub(mode, spec.is_some_and(|spec| spec.type_ == "scheduler"), &raised, &rules)
}

/// The signals that stand. `failure` is what the kubelet says of a pod that failed.
fn raised(view: Option<&View>, failure: Option<&str>) -> Vec<Raised> {
    let now = |signal, message: String| Raised { signal, message, ago: vec![Duration::ZERO] };
    let killed = failure.filter(|words| words.contains("OOMKilled")).map(|words| now(Signal::OomKilled, words.to_owned()));
    let Some(view) = view else { return killed.into_iter().collect() };
    let health = match view.finding {
        Finding::Well | Finding::SilentWithMany | Finding::StartOverdue(_) | Finding::LeaseExpired(_) | Finding::CancelIgnored(_) => None,
        Finding::ItemStalled(still) => {
            Some(now(Signal::ItemStalled, format!("it made no progress with its item for {} s of served time", still.as_secs())))
        }
        Finding::ItemPastTime(held) => {
            Some(now(Signal::ItemPastTime, format!("it has worked on its item for {} s of served time", held.as_secs())))
        }
        Finding::HeartbeatLost(silent) => {
            Some(now(Signal::HeartbeatLost, format!("its pod was not heard of for {} s of served time", silent.as_secs())))
        }
        Finding::ProgramSilent(silent) => Some(now(
            Signal::ProgramSilent,
            format!("its pod reports, and its program has done nothing, or has been stopped, for {} s of served time", silent.as_secs()),
        )),
    };
    let occurred = view.occurrences.iter().map(|(signal, ago)| Raised {
        signal: *signal,
        message: match signal {
            Signal::RuleViolated(Violation::TooManyChildren) => {
                "you asked for more agents than you may have: spec.bulkhead.maxChildAgents of the pool is the limit".to_owned()
            }
            Signal::ObjectiveMissed => {
                "the item that it holds is not finished within spec.objectives.completionSeconds of its queue".to_owned()
            }
            signal => {
                let said = view.words.get(signal).cloned();
                said.unwrap_or_else(|| format!("{} happened {} times lately", signal.name(), ago.len()))
            }
        },
        ago: ago.clone(),
    });
    killed.into_iter().chain(health).chain(occurred).collect()
}

/// What follows for the life of the agent.
/// `holds`: it holds an item.
pub fn life(agent: &Agent, view: Option<&View>, decision: Option<&Decision>, spec: Option<&AgentPoolSpec>, holds: bool) -> Life {
    let report = view.and_then(|view| view.report.as_ref()).map(|(report, _)| report);
    let stored = agent.status.as_ref();
    // A leader that has not heard of it yet goes by what the one before it stored.
    let was_active = stored.is_some_and(|stored| stored.phase == Some(AgentPhase::Active));
    let held_back =
        stored.and_then(|stored| find(&stored.conditions, types::READY)).filter(|ready| ready.reason == reasons::EGRESS_NOT_ENFORCED);
    let enforced = decision.filter(|decision| decision.enforced);
    let reachable = match report {
        Some(report) => Some(report.reachable.join(", ")).filter(|reachable| !reachable.is_empty()),
        None => held_back.map(|_| "what must not be reached".to_owned()),
    };
    Life {
        registered: view.is_some_and(|view| view.registered) || heartbeating(agent),
        started: view.is_some_and(|view| view.started) || was_started(agent),
        active: holds || report.map_or(was_active, |report| report.attached),
        paused: pause(agent, decision).is_some(),
        walls_down: reachable,
        preflight: preflight::verdict(agent, view, spec),
        start_overdue: view.is_some_and(|view| matches!(view.finding, Finding::StartOverdue(_))),
        give_up: of_lease(view)
            .or_else(|| enforced.and_then(|decision| Some((give_up(decision.signal, decision.action)?, decision.message.clone())))),
    }
}

/// What ends an agent whatever its pool's supervision does: an item that it holds could never be given to anybody else.
fn of_lease(view: Option<&View>) -> Option<(GiveUp, String)> {
    match view?.finding {
        Finding::LeaseExpired(silent) => Some((
            GiveUp::LeaseExpired,
            format!("it holds an item, and its pod was not heard of for {} s of served time", silent.as_secs()),
        )),
        Finding::CancelIgnored(told) => {
            Some((GiveUp::CancelIgnored, format!("it was told to give its item back {} s of served time ago", told.as_secs())))
        }
        Finding::Well
        | Finding::SilentWithMany
        | Finding::HeartbeatLost(_)
        | Finding::StartOverdue(_)
        | Finding::ProgramSilent(_)
        | Finding::ItemStalled(_)
        | Finding::ItemPastTime(_) => None,
    }
}

/// Whether a leader before us, or we, have heard of it: that is in its status.
pub fn heartbeating(agent: &Agent) -> bool {
    let stored = agent.status.as_ref().and_then(|status| find(&status.conditions, types::HEARTBEATING));
    stored.is_some_and(|stored| stored.reason != reasons::NOT_REGISTERED)
}

/// Whether its program was started, as far as its status tells: only then it is shown as being at work.
pub fn was_started(agent: &Agent) -> bool {
    match agent.status.as_ref().and_then(|status| status.phase) {
        None | Some(AgentPhase::Spawning | AgentPhase::Running | AgentPhase::Hibernated) => false,
        Some(
            AgentPhase::Active
            | AgentPhase::Idle
            | AgentPhase::Paused
            | AgentPhase::Goodbye
            | AgentPhase::Stopped
            | AgentPhase::Stale
            | AgentPhase::ForceStopped,
        ) => true,
    }
}

/// Who holds an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// `spec.paused`.
    Spec,
    /// The hub.
    Supervisor,
}

/// Whether the agent is held, and by whom. The hub's pause goes on until `spec.resumePause` names it.
pub fn pause(agent: &Agent, decision: Option<&Decision>) -> Option<Pause> {
    let status = agent.status.as_ref();
    let pauses = status.and_then(|status| status.pauses).unwrap_or(0);
    let held = status
        .and_then(|status| find(&status.conditions, types::PAUSED))
        .is_some_and(|paused| paused.status == "True" && paused.reason == reasons::PAUSED_BY_SUPERVISOR);
    let goes_on = held && agent.spec.resume_pause.unwrap_or(0) < pauses;
    let begins = decision.is_some_and(|decision| decision.enforced && decision.action == Action::Pause);
    // The hub's first: what a person adds and takes away beside it must not undo it.
    if goes_on || begins {
        return Some(Pause::Supervisor);
    }
    (agent.spec.paused == Some(true)).then_some(Pause::Spec)
}

fn give_up(signal: Signal, action: Action) -> Option<GiveUp> {
    match action {
        // The item of an agent is put back when its pod is gone, and its pool makes another agent.
        Action::Requeue | Action::Restart | Action::RestartGang | Action::Reap => Some(match signal {
            Signal::HeartbeatLost => GiveUp::HeartbeatLost,
            Signal::ProgramSilent => GiveUp::ProgramSilent,
            Signal::ItemStalled => GiveUp::ItemStalled,
            Signal::ItemPastTime => GiveUp::ItemPastTime,
            Signal::CrashLoop
            | Signal::OomKilled
            | Signal::TokenBudgetExceeded
            | Signal::BudgetNearLimit
            | Signal::OperationTimeout
            | Signal::ChronicTimeout
            | Signal::ObjectiveMissed
            | Signal::BadChangeset
            | Signal::RuleViolated(_)
            | Signal::GangDivergence => GiveUp::Reaped,
        }),
        Action::Log | Action::Warn | Action::Notify | Action::Escalate | Action::Pause => None,
    }
}

/// The reason under which an agent that is given up is shown.
pub fn reason(why: GiveUp) -> &'static str {
    match why {
        GiveUp::HeartbeatLost => reasons::HEARTBEAT_LOST,
        GiveUp::ProgramSilent => reasons::PROGRAM_SILENT,
        GiveUp::StartTimedOut => reasons::START_TIMED_OUT,
        GiveUp::Reaped => reasons::REAPED,
        GiveUp::LeaseExpired => reasons::LEASE_EXPIRED,
        GiveUp::ItemStalled => reasons::ITEM_STALLED,
        GiveUp::ItemPastTime => reasons::ITEM_PAST_TIME,
        GiveUp::CancelIgnored => reasons::CANCEL_IGNORED,
    }
}

/// Whether its end by force is decided, and stored. That is a condition of its own, written once: what becomes of its pod
/// or node meanwhile does not undo it.
pub fn condemned(status: &AgentStatus) -> bool {
    find(&status.conditions, types::GIVEN_UP).is_some_and(|given_up| given_up.status == "True")
}

fn rule(rule: &SupervisionRule) -> Rule {
    let SupervisionRule { signal, rule, count, window_seconds, do_ } = rule;
    Rule {
        signal: signal_of(*signal, *rule),
        count: count.and_then(|count| u32::try_from(count).ok()),
        window: window_seconds.and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs),
        action: match do_ {
            Intervention::Log => Action::Log,
            Intervention::Warn => Action::Warn,
            Intervention::Notify => Action::Notify,
            Intervention::Escalate => Action::Escalate,
            Intervention::Pause => Action::Pause,
            Intervention::Requeue => Action::Requeue,
            Intervention::Restart => Action::Restart,
            Intervention::RestartGang => Action::RestartGang,
            Intervention::Reap => Action::Reap,
        },
    }
}

fn signal_of(signal: ApiSignal, rule: Option<ViolatedRule>) -> Signal {
    match signal {
        ApiSignal::HeartbeatLost => Signal::HeartbeatLost,
        ApiSignal::ProgramSilent => Signal::ProgramSilent,
        ApiSignal::CrashLoop => Signal::CrashLoop,
        ApiSignal::OOMKilled => Signal::OomKilled,
        ApiSignal::TokenBudgetExceeded => Signal::TokenBudgetExceeded,
        ApiSignal::BudgetNearLimit => Signal::BudgetNearLimit,
        ApiSignal::OperationTimeout => Signal::OperationTimeout,
        ApiSignal::ChronicTimeout => Signal::ChronicTimeout,
        ApiSignal::ItemStalled => Signal::ItemStalled,
        ApiSignal::ItemPastTime => Signal::ItemPastTime,
        ApiSignal::ObjectiveMissed => Signal::ObjectiveMissed,
        ApiSignal::BadChangeset => Signal::BadChangeset,
        ApiSignal::GangDivergence => Signal::GangDivergence,
        ApiSignal::RuleViolated => Signal::RuleViolated(match rule {
            Some(ViolatedRule::ToolRejected) => Violation::ToolRejected,
            Some(ViolatedRule::TooManyChildren) => Violation::TooManyChildren,
            Some(ViolatedRule::ForbiddenPath) => Violation::ForbiddenPath,
            // The CRD demands one with this signal.
            Some(ViolatedRule::NetworkDenied) | None => Violation::NetworkDenied,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn agent(spec: serde_json::Value, status: serde_json::Value) -> Agent {
        let mut object = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Agent", "metadata": {"name": "a"}, "spec": {"poolRef": {"name": "p"}}, "status": status});
        object["spec"].as_object_mut().expect("an object").extend(spec.as_object().expect("an object").clone());
        serde_json::from_value(object).expect("an Agent")
    }

    #[test]
    fn a_pause_of_the_hub_goes_on_until_it_is_named() {
        let paused = json!({"pauses": 2, "conditions": [{"type": "Paused", "status": "True", "reason": "PausedBySupervisor", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
        assert_eq!(pause(&agent(json!({}), paused.clone()), None), Some(Pause::Supervisor));
        assert_eq!(
            pause(&agent(json!({"resumePause": 1}), paused.clone()), None),
            Some(Pause::Supervisor),
            "an answer to an earlier pause"
        );
        assert_eq!(pause(&agent(json!({"resumePause": 2}), paused.clone()), None), None);
        assert_eq!(
            pause(&agent(json!({"paused": true}), paused.clone()), None),
            Some(Pause::Supervisor),
            "a person's beside it does not undo it"
        );
        assert_eq!(pause(&agent(json!({"resumePause": 2, "paused": true}), paused), None), Some(Pause::Spec));
        assert_eq!(pause(&agent(json!({}), json!({})), None), None);
    }

    #[test]
    fn an_agent_that_needed_too_much_memory_is_a_signal() {
        let raised = raised(None, Some("container agent ended with exit code 137 (OOMKilled)"));
        assert_eq!(raised.iter().map(|one| one.signal).collect::<Vec<_>>(), [Signal::OomKilled]);
        assert!(super::raised(None, Some("container agent ended with exit code 1 (Error)")).is_empty());
    }

    #[test]
    fn an_agent_that_was_shown_at_work_was_started() {
        for (phase, started) in
            [("Spawning", false), ("Running", false), ("Idle", true), ("Active", true), ("Paused", true), ("Hibernated", false)]
        {
            assert_eq!(was_started(&agent(json!({}), json!({"phase": phase}))), started, "{phase}");
        }
        assert!(!was_started(&agent(json!({}), json!({}))));
    }

    #[test]
    fn only_an_enforced_decision_ends_an_agent() {
        let decision = |enforced| Decision {
            signal: Signal::HeartbeatLost,
            action: Action::Restart,
            message: "m".into(),
            enforced,
            overruled: vec![],
        };
        let of = |enforced| life(&agent(json!({}), json!({})), None, Some(&decision(enforced)), None, false).give_up;
        assert_eq!(of(true), Some((GiveUp::HeartbeatLost, "m".into())));
        assert_eq!(of(false), None);
    }
}
