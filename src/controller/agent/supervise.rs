//! Supervision of one agent: converts its reports and the pool's rules into the types of `policy::interventions`, and
//! the decision back. Pure, except for the memory of signals that were handled before.

use std::collections::BTreeSet;
use std::time::Duration;

use kube::ResourceExt as _;

use crate::api::agent::AgentPhase;
use crate::api::agent_pool::{AgentPoolSpec, Intervention, Signal as ApiSignal, SupervisionRule, ViolatedRule};
use crate::api::conditions::{reasons, types};
use crate::api::shared::Mode as ApiMode;
use crate::api::{Agent, AgentStatus, names};
use crate::controller::conditions::find;
use crate::controller::context::Context;
use crate::governor::budget::facts::bulkhead;
use crate::governor::live::View;
use crate::governor::preflight;
use crate::governor::work::namespace_work::AgentHolding;
use crate::policy::agent::{GiveUpReason, Life};
use crate::policy::health::Finding;
use crate::policy::interventions::{
    Action, Decision, Mode, RaisedSignal, Rule, Signal, SignalSubject, Violation, WorkAtRisk, chronic, decide as decide_in_hub,
};

/// The decision of `policy::interventions` about the agent with the pod `uid`. A signal that persists is handled once.
/// `of_pod`: the signals that follow from its pod.
pub fn decide(
    agent: &Agent,
    uid: &str,
    view: Option<&View>,
    of_pod: Vec<RaisedSignal>,
    holding: Option<&AgentHolding>,
    spec: Option<&AgentPoolSpec>,
    context: &Context,
) -> Option<Decision> {
    let mut raised = of_pod;
    raised.extend(view.into_iter().flat_map(reported_signals));
    let timeouts = stored_timeouts(agent).saturating_add(view.map_or(0, |view| view.timeouts));
    let defaults = agent.namespace().and_then(|namespace| context.meter.defaults(&namespace));
    let most = bulkhead(spec.and_then(|spec| spec.bulkhead.as_ref()), defaults.as_ref(), |bulkhead| bulkhead.max_timeouts);
    let most = most.and_then(|most| u32::try_from(most).ok());
    if chronic(timeouts, most) {
        let message = format!(
            "{timeouts} model calls, attempts and commands of the agent took too long. The limit is spec.bulkhead.maxTimeouts of its pool"
        );
        raised.push(RaisedSignal { signal: Signal::ChronicTimeout, message, ago: vec![Duration::ZERO] });
    }
    context.live.set_active_signals(uid, &raised.iter().map(|one| one.signal).collect::<BTreeSet<_>>());
    let supervision = spec.and_then(|spec| spec.supervision.as_ref());
    let mode = match supervision.map(|supervision| supervision.mode).unwrap_or_default() {
        ApiMode::Enforce => Mode::Enforce,
        ApiMode::Observe => Mode::Observe,
        ApiMode::Disabled => Mode::Disabled,
    };
    let rules: Vec<Rule> = supervision.and_then(|supervision| supervision.rules.as_ref()).into_iter().flatten().map(rule).collect();
    let worth = |holding: &AgentHolding| if holding.made_progress { WorkAtRisk::Something } else { WorkAtRisk::Nothing };
    let who = SignalSubject { scheduler: spec.is_some_and(|spec| spec.type_ == names::SCHEDULER_TYPE), item: holding.map(worth) };
    let decision = decide_in_hub(mode, who, &raised, &rules)?;
    let message = format!("{}{}", decision.message, resume_hint(agent, &decision, holding, view.and_then(|view| view.refused_at_limit)));
    Some(Decision { message, ..decision })
}

/// Number of time-outs in the Agent's status.
pub fn stored_timeouts(agent: &Agent) -> u32 {
    agent.status.as_ref().and_then(|status| status.timeouts).and_then(|timeouts| u32::try_from(timeouts).ok()).unwrap_or(0)
}

/// What a person can do about an agent that is paused because tokens ran out. `short_at`: the limit of its lifetime
/// tokens; none: a Budget above ran out.
fn resume_hint(agent: &Agent, decision: &Decision, holding: Option<&AgentHolding>, short_at: Option<i64>) -> String {
    if (decision.signal, decision.action) != (Signal::TokenBudgetExceeded, Action::Pause) {
        return String::new();
    }
    let (name, namespace) = (agent.name_any(), agent.namespace().unwrap_or_default());
    let item = holding.map(|holding| format!(", and so is its item {}", holding.name)).unwrap_or_default();
    let goes_on = match short_at {
        Some(_) => {
            format!(
                "It continues when it has more tokens (`kubectl spillway grant agent/{name} TOKENS -n {namespace}`), or when it is resumed"
            )
        }
        None => format!("It continues when it is resumed (`kubectl spillway resume {name} -n {namespace}`)"),
    };
    format!(". The agent is paused{item}. The work is kept. {goes_on}. To end it: `kubectl spillway rm {name} -n {namespace}`")
}

/// The signals that follow from the agent's reports, or from missing reports.
fn reported_signals(view: &View) -> Vec<RaisedSignal> {
    let now = |signal, message: String| RaisedSignal { signal, message, ago: vec![Duration::ZERO] };
    let health = match view.finding {
        Finding::Well | Finding::SilentWithMany | Finding::StartOverdue(_) | Finding::LeaseExpired(_) | Finding::CancelIgnored(_) => None,
        Finding::ItemStalled(still) => Some(now(
            Signal::ItemStalled,
            format!("the agent made no progress with its item for {} s (stallTimeoutSeconds)", still.as_secs()),
        )),
        Finding::ItemPastTime(held) => {
            let words = "and reached the time limit of an attempt (attemptTimeoutSeconds, or bulkhead.timeoutSeconds of the item)";
            Some(now(Signal::ItemPastTime, format!("the agent has worked on its item for {} s {words}", held.as_secs())))
        }
        Finding::HeartbeatLost(silent) => {
            Some(now(Signal::HeartbeatLost, format!("the agent has not reported for {} s of served time", silent.as_secs())))
        }
        Finding::ProgramSilent(silent) => Some(now(
            Signal::ProgramSilent,
            format!("the agent reports, but its program did nothing, or was stopped, for {} s of served time", silent.as_secs()),
        )),
    };
    let occurred = view.occurrences.iter().map(|(signal, ago)| RaisedSignal {
        signal: *signal,
        message: match signal {
            Signal::RuleViolated(Violation::TooManyChildren) => {
                "the agent requested more child agents than spec.bulkhead.maxChildAgents of its pool allows".to_owned()
            }
            Signal::ObjectiveMissed => "the agent's item is not finished within spec.objectives.completionSeconds of its queue".to_owned(),
            signal => {
                let said = view.words.get(signal).cloned();
                said.unwrap_or_else(|| format!("{} was raised {} times recently", signal.name(), ago.len()))
            }
        },
        ago: ago.clone(),
    });
    health.into_iter().chain(occurred).collect()
}

/// The facts about the agent that its plan is based on. `holds`: it holds an item. `paused`: it is paused.
pub fn life_facts(
    agent: &Agent,
    view: Option<&View>,
    decision: Option<&Decision>,
    spec: Option<&AgentPoolSpec>,
    holds: bool,
    paused: bool,
) -> Life {
    let report = view.and_then(|view| view.report.as_ref()).map(|(report, _)| report);
    let stored = agent.status.as_ref();
    // A new leader that has no report of the agent yet uses the stored phase.
    let was_active = stored.is_some_and(|stored| stored.phase == Some(AgentPhase::Active));
    let held_back =
        stored.and_then(|stored| find(&stored.conditions, types::READY)).filter(|ready| ready.reason == reasons::EGRESS_NOT_ENFORCED);
    let enforced = decision.filter(|decision| decision.enforced);
    let reachable = match report {
        Some(report) => Some(report.reachable.join(", ")).filter(|reachable| !reachable.is_empty()),
        None => held_back.map(|_| "an address that must not be reachable".to_owned()),
    };
    Life {
        registered: view.is_some_and(|view| view.registered) || had_heartbeat(agent),
        started: view.is_some_and(|view| view.started) || was_started(agent),
        active: holds || report.map_or(was_active, |report| report.attached),
        paused,
        forbidden_reachable: reachable,
        preflight: preflight::verdict(agent, view, spec),
        start_overdue: view.is_some_and(|view| matches!(view.finding, Finding::StartOverdue(_))),
        give_up: lease_give_up(view).or_else(|| {
            // An item fails if it used up all lifetime tokens of the agent, not if a Budget ran out.
            let fresh = holds && view.is_some_and(|view| view.began_fresh && view.refused_at_limit.is_some());
            enforced.and_then(|decision| Some((give_up(decision.signal, decision.action, holds, fresh)?, decision.message.clone())))
        }),
    }
}

/// Findings that end an agent whatever its pool's supervision says: else its item could never be given to another
/// agent.
fn lease_give_up(view: Option<&View>) -> Option<(GiveUpReason, String)> {
    match view?.finding {
        Finding::LeaseExpired(silent) => Some((
            GiveUpReason::LeaseExpired,
            format!("the agent holds an item, and has not reported for {} s of served time", silent.as_secs()),
        )),
        Finding::CancelIgnored(told) => Some((
            GiveUpReason::CancelIgnored,
            format!("the agent was told to give its item back {} s of served time ago, and did not", told.as_secs()),
        )),
        Finding::Well
        | Finding::SilentWithMany
        | Finding::HeartbeatLost(_)
        | Finding::StartOverdue(_)
        | Finding::ProgramSilent(_)
        | Finding::ItemStalled(_)
        | Finding::ItemPastTime(_) => None,
    }
}

/// Whether any leader had a heartbeat of the agent, according to its status.
pub fn had_heartbeat(agent: &Agent) -> bool {
    let stored = agent.status.as_ref().and_then(|status| find(&status.conditions, types::HEARTBEATING));
    stored.is_some_and(|stored| stored.reason != reasons::NOT_REGISTERED)
}

/// Whether its program was started, according to the stored phase.
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

/// Why an agent is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// `spec.paused`.
    Spec,
    /// Its supervision.
    Supervisor,
    /// Its supervision, because its tokens ran out.
    Tokens,
}

/// The stored reason of a pause by supervision, if there is one.
pub fn supervisor_pause_reason(status: &AgentStatus) -> Option<&str> {
    let held = find(&status.conditions, types::PAUSED).filter(|paused| paused.status == "True")?;
    [reasons::PAUSED_BY_SUPERVISOR, reasons::TOKEN_BUDGET_EXCEEDED].into_iter().find(|reason| *reason == held.reason)
}

/// Whether the agent is paused, and why. A pause by supervision lasts until `spec.resumePause` of the agent, or of its
/// paused item, names it. A pause for lack of tokens also ends when there are more (`has_more`).
pub fn pause(agent: &Agent, decision: Option<&Decision>, holding: Option<&AgentHolding>, has_more: bool) -> Option<Pause> {
    let status = agent.status.as_ref();
    let pauses = status.and_then(|status| status.pauses).unwrap_or(0);
    let resumed = agent.spec.resume_pause.unwrap_or(0) >= pauses || holding.is_some_and(|holding| holding.resumed);
    let goes_on = match status.and_then(supervisor_pause_reason) {
        Some(reasons::TOKEN_BUDGET_EXCEEDED) if !resumed && !has_more => Some(Pause::Tokens),
        Some(reasons::PAUSED_BY_SUPERVISOR) if !resumed => Some(Pause::Supervisor),
        Some(_) | None => None,
    };
    let begins = decision
        .filter(|decision| decision.enforced && decision.action == Action::Pause)
        .map(|decision| if decision.signal == Signal::TokenBudgetExceeded { Pause::Tokens } else { Pause::Supervisor });
    // A pause by supervision comes first: it must not end when a person sets and clears `spec.paused`.
    goes_on.or(begins).or_else(|| (agent.spec.paused == Some(true)).then_some(Pause::Spec))
}

/// Why this action ends the agent, if it does. `holds`: it holds an item. `fresh`: it had all its lifetime tokens when
/// it got that item, and they are spent now.
fn give_up(signal: Signal, action: Action, holds: bool, fresh: bool) -> Option<GiveUpReason> {
    match action {
        // The agent has ended, or its start is given up. Its pool creates the next one with a growing delay.
        _ if signal == Signal::CrashLoop => None,
        // The item of the agent is put back when its pod is gone, and its pool creates another agent.
        Action::Requeue | Action::Restart | Action::RestartGang | Action::Reap => Some(match signal {
            Signal::TokenBudgetExceeded if fresh => GiveUpReason::TokensExhausted,
            Signal::TokenBudgetExceeded if holds => GiveUpReason::TokensSpent,
            Signal::GangDivergence => GiveUpReason::GangDivergence,
            Signal::HeartbeatLost => GiveUpReason::HeartbeatLost,
            Signal::ProgramSilent => GiveUpReason::ProgramSilent,
            Signal::ItemStalled => GiveUpReason::ItemStalled,
            Signal::ItemPastTime => GiveUpReason::ItemPastTime,
            Signal::CrashLoop
            | Signal::OomKilled
            | Signal::TokenBudgetExceeded
            | Signal::BudgetNearLimit
            | Signal::OperationTimeout
            | Signal::ChronicTimeout
            | Signal::ObjectiveMissed
            | Signal::BadChangeset
            | Signal::RuleViolated(_) => GiveUpReason::Reaped,
        }),
        Action::Log | Action::Warn | Action::Notify | Action::Escalate | Action::Pause => None,
    }
}

/// The reason under which an agent that is given up is shown.
pub fn reason(why: GiveUpReason) -> &'static str {
    match why {
        GiveUpReason::HeartbeatLost => reasons::HEARTBEAT_LOST,
        GiveUpReason::ProgramSilent => reasons::PROGRAM_SILENT,
        GiveUpReason::StartTimedOut => reasons::START_TIMED_OUT,
        GiveUpReason::Reaped => reasons::REAPED,
        GiveUpReason::LeaseExpired => reasons::LEASE_EXPIRED,
        GiveUpReason::ItemStalled => reasons::ITEM_STALLED,
        GiveUpReason::ItemPastTime => reasons::ITEM_PAST_TIME,
        GiveUpReason::CancelIgnored => reasons::CANCEL_IGNORED,
        GiveUpReason::TokensSpent => reasons::TOKENS_SPENT,
        GiveUpReason::TokensExhausted => reasons::TOKENS_EXHAUSTED,
        GiveUpReason::GangDivergence => reasons::GANG_DIVERGENCE,
    }
}

/// Whether the agent's end by force is decided and stored (`GivenUp`). That condition is written once: later changes of
/// pod or node do not undo it.
pub fn is_given_up(status: &AgentStatus) -> bool {
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
            Some(ViolatedRule::SandboxViolation) => Violation::SandboxViolation,
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
    fn a_pause_by_supervision_lasts_until_it_is_named() {
        let paused = json!({"pauses": 2, "conditions": [{"type": "Paused", "status": "True", "reason": "PausedBySupervisor", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
        assert_eq!(pause(&agent(json!({}), paused.clone()), None, None, false), Some(Pause::Supervisor));
        assert_eq!(
            pause(&agent(json!({"resumePause": 1}), paused.clone()), None, None, false),
            Some(Pause::Supervisor),
            "an answer to an earlier pause"
        );
        assert_eq!(pause(&agent(json!({"resumePause": 2}), paused.clone()), None, None, false), None);
        assert_eq!(
            pause(&agent(json!({"paused": true}), paused.clone()), None, None, false),
            Some(Pause::Supervisor),
            "a person's beside it does not undo it"
        );
        assert_eq!(pause(&agent(json!({"resumePause": 2, "paused": true}), paused), None, None, false), Some(Pause::Spec));
        assert_eq!(pause(&agent(json!({}), json!({})), None, None, false), None);
    }

    fn holding(resumed: bool) -> AgentHolding {
        let held = crate::wire::work::LeaseRef { uid: "i".into(), epoch: 1 };
        let phase = crate::policy::work::item::Phase::Paused;
        AgentHolding { name: "fix".into(), held, phase, policy: Default::default(), pauses: 1, resumed, made_progress: true }
    }
    fn tokens_over(action: Action) -> Decision {
        Decision { signal: Signal::TokenBudgetExceeded, action, message: "m".into(), enforced: true, overruled: Vec::new() }
    }

    #[test]
    fn a_pause_for_lack_of_tokens_ends_with_more_tokens_or_by_a_person() {
        let begun = pause(&agent(json!({}), json!({})), Some(&tokens_over(Action::Pause)), Some(&holding(false)), false);
        assert_eq!(begun, Some(Pause::Tokens));
        let paused = json!({"pauses": 1, "pausedAtLimit": 10, "conditions": [{"type": "Paused", "status": "True", "reason": "TokenBudgetExceeded", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
        let of = |spec, holding: Option<&AgentHolding>, has_more| pause(&agent(spec, paused.clone()), None, holding, has_more);
        assert_eq!(of(json!({}), Some(&holding(false)), false), Some(Pause::Tokens));
        assert_eq!(of(json!({}), Some(&holding(false)), true), None, "it has more");
        assert_eq!(of(json!({"resumePause": 1}), Some(&holding(false)), false), None);
        assert_eq!(of(json!({}), Some(&holding(true)), false), None, "who resumes its item resumes it");
        let observed = Decision { enforced: false, ..tokens_over(Action::Pause) };
        assert_eq!(pause(&agent(json!({}), json!({})), Some(&observed), None, false), None);
    }

    #[test]
    fn an_agent_without_tokens_fails_its_item_only_if_that_used_all_its_tokens() {
        let of = |holds, fresh| give_up(Signal::TokenBudgetExceeded, Action::Reap, holds, fresh);
        assert_eq!(of(true, false), Some(GiveUpReason::TokensSpent));
        assert_eq!(of(true, true), Some(GiveUpReason::TokensExhausted));
        assert_eq!(of(false, false), Some(GiveUpReason::Reaped));
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
        let of = |enforced| life_facts(&agent(json!({}), json!({})), None, Some(&decision(enforced)), None, false, false).give_up;
        assert_eq!(of(true), Some((GiveUpReason::HeartbeatLost, "m".into())));
        assert_eq!(of(false), None);
    }
}
