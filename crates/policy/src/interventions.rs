//! From the signals of all monitors about one agent to one intervention.
//!
//! Monitors report signals, this module decides, and the pool executes. If there are several signals, the order of
//! monitors decides: budget, violation, progress, health. Within one monitor the strongest action decides.
//!
//! While an agent has no tokens, a restart or a requeue would only spend more tokens, so it becomes a pause; signals of
//! the health monitor are exempt. If an agent with an item runs out of tokens, *fish or cut bait* applies: if the item
//! shows progress, the agent is paused and its work is kept; otherwise the agent is ended. A scheduler is paused on
//! budget signals and never ended. The decision lists the overruled signals and their actions.

use std::time::Duration;

/// What a monitor can report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names are the documentation; the reference lists when each is raised")]
pub enum Signal {
    HeartbeatLost,
    ProgramSilent,
    CrashLoop,
    OomKilled,
    TokenBudgetExceeded,
    BudgetNearLimit,
    OperationTimeout,
    ChronicTimeout,
    ItemStalled,
    ItemPastTime,
    ObjectiveMissed,
    BadChangeset,
    RuleViolated(Violation),
    GangDivergence,
}

/// A rule of the sandbox that was violated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names are the documentation")]
pub enum Violation {
    NetworkDenied,
    ToolRejected,
    TooManyChildren,
    ForbiddenPath,
    SandboxViolation,
}

/// The actions, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are the documentation")]
pub enum Action {
    Log,
    Warn,
    Notify,
    Escalate,
    Pause,
    Requeue,
    Restart,
    RestartGang,
    Reap,
}

/// The monitors, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Monitor {
    Budget,
    Violation,
    Progress,
    Health,
}

/// The mode of the supervision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Decide and act.
    Enforce,
    /// Decide, and only report the decision.
    Observe,
    /// Do nothing.
    Disabled,
}

impl Signal {
    fn monitor(self) -> Monitor {
        match self {
            Self::TokenBudgetExceeded | Self::BudgetNearLimit => Monitor::Budget,
            Self::BadChangeset | Self::RuleViolated(_) | Self::GangDivergence => Monitor::Violation,
            Self::OperationTimeout | Self::ChronicTimeout | Self::ItemStalled | Self::ItemPastTime | Self::ObjectiveMissed => {
                Monitor::Progress
            }
            Self::HeartbeatLost | Self::ProgramSilent | Self::CrashLoop | Self::OomKilled => Monitor::Health,
        }
    }

    /// The action if the pool has no rule for the signal, the number of occurrences that it needs, and the time within
    /// which they count.
    fn default_rule(self, who: SignalSubject) -> (Action, u32, Duration) {
        let once = |action| (action, 1, Duration::from_secs(60));
        match self {
            Self::HeartbeatLost | Self::ProgramSilent | Self::CrashLoop | Self::OomKilled => once(Action::Restart),
            Self::TokenBudgetExceeded if who.item == Some(WorkAtRisk::Nothing) => once(Action::Reap),
            Self::TokenBudgetExceeded => once(Action::Pause),
            Self::BudgetNearLimit | Self::OperationTimeout => once(Action::Warn),
            Self::ChronicTimeout => once(Action::Reap),
            Self::ItemStalled | Self::ItemPastTime => once(Action::Requeue),
            Self::ObjectiveMissed => once(Action::Notify),
            // The item has ended already: the agent may hold the next one.
            Self::BadChangeset => once(Action::Log),
            Self::RuleViolated(Violation::NetworkDenied | Violation::SandboxViolation) => (Action::Warn, 20, Duration::from_secs(600)),
            Self::RuleViolated(Violation::ToolRejected) => (Action::Warn, 10, Duration::from_secs(600)),
            Self::RuleViolated(Violation::TooManyChildren) => once(Action::Warn),
            Self::RuleViolated(Violation::ForbiddenPath) => once(Action::Notify),
            Self::GangDivergence => once(Action::RestartGang),
        }
    }

    /// Its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::HeartbeatLost => "HeartbeatLost",
            Self::ProgramSilent => "ProgramSilent",
            Self::CrashLoop => "CrashLoop",
            Self::OomKilled => "OOMKilled",
            Self::TokenBudgetExceeded => "TokenBudgetExceeded",
            Self::BudgetNearLimit => "BudgetNearLimit",
            Self::OperationTimeout => "OperationTimeout",
            Self::ChronicTimeout => "ChronicTimeout",
            Self::ItemStalled => "ItemStalled",
            Self::ItemPastTime => "ItemPastTime",
            Self::ObjectiveMissed => "ObjectiveMissed",
            Self::BadChangeset => "BadChangeset",
            Self::RuleViolated(Violation::NetworkDenied) => "RuleViolated/NetworkDenied",
            Self::RuleViolated(Violation::ToolRejected) => "RuleViolated/ToolRejected",
            Self::RuleViolated(Violation::TooManyChildren) => "RuleViolated/TooManyChildren",
            Self::RuleViolated(Violation::ForbiddenPath) => "RuleViolated/ForbiddenPath",
            Self::RuleViolated(Violation::SandboxViolation) => "RuleViolated/SandboxViolation",
            Self::GangDivergence => "GangDivergence",
        }
    }
}

impl Action {
    /// Its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Log => "Log",
            Self::Warn => "Warn",
            Self::Notify => "Notify",
            Self::Escalate => "Escalate",
            Self::Pause => "Pause",
            Self::Requeue => "Requeue",
            Self::Restart => "Restart",
            Self::RestartGang => "RestartGang",
            Self::Reap => "Reap",
        }
    }
}

/// The work that is lost if the agent that holds an item is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkAtRisk {
    /// The agent reported no progress with the item.
    Nothing,
    /// The agent reported progress or a checkpoint.
    Something,
}

/// The agent that the signals are about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SignalSubject {
    /// It is a scheduler, which is never ended because its tokens are spent.
    pub scheduler: bool,
    /// The work at risk, if it holds an item.
    pub item: Option<WorkAtRisk>,
}

/// An operation that took too long and was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// A model call.
    ModelTurn,
    /// An attempt at an item.
    Attempt,
    /// Enough commands to open the agent's own circuit breaker for commands.
    Commands,
}

impl Timeout {
    /// A message for people.
    pub fn message(self) -> &'static str {
        match self {
            Self::ModelTurn => "a model call took longer than spec.bulkhead.modelTurnTimeoutSeconds of its AgentPool and was ended",
            Self::Attempt => {
                "its attempt at an item took longer than attemptTimeoutSeconds of the WorkQueue, or than spec.bulkhead.timeoutSeconds of the item"
            }
            Self::Commands => "too many of its commands timed out or did not start; its circuit breaker refuses new commands for a while",
        }
    }
}

/// The number of time-outs in an agent's life from which on they are chronic, if its pool sets none.
pub const DEFAULT_MAX_TIMEOUTS: u32 = 3;

/// Whether the time-outs in an agent's life are chronic.
pub fn chronic(timeouts: u32, most: Option<u32>) -> bool {
    timeouts > 0 && timeouts >= most.unwrap_or(DEFAULT_MAX_TIMEOUTS)
}

/// A signal that a monitor has raised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaisedSignal {
    /// The signal.
    pub signal: Signal,
    /// A message for people.
    pub message: String,
    /// The age of each remembered occurrence; at least one.
    pub ago: Vec<Duration>,
}

/// A pool's rule for a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The signal.
    pub signal: Signal,
    /// The number of occurrences that the rule needs ...
    pub count: Option<u32>,
    /// ... within this time. If one of the two is not set, one occurrence is enough.
    pub window: Option<Duration>,
    /// The action.
    pub action: Action,
}

/// The decision about one agent's signals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The signal that decided.
    pub signal: Signal,
    /// The action that is taken, or would be taken.
    pub action: Action,
    /// The message of the signal.
    pub message: String,
    /// The action is taken; otherwise it is only reported.
    pub enforced: bool,
    /// The other signals and their actions, which are not taken.
    pub overruled: Vec<(Signal, Action)>,
}

/// Decide.
pub fn decide(mode: Mode, who: SignalSubject, raised: &[RaisedSignal], rules: &[Rule]) -> Option<Decision> {
    let enforced = match mode {
        Mode::Enforce => true,
        Mode::Observe => false,
        Mode::Disabled => return None,
    };
    // `BudgetNearLimit` does not count: the agent still has tokens, so other signals may restart it.
    let over_budget = raised.iter().any(|one| one.signal == Signal::TokenBudgetExceeded);
    let mut wanted: Vec<(Monitor, std::cmp::Reverse<Action>, Signal, &str)> = raised
        .iter()
        .filter_map(|one| {
            let action = action_for(one, who, rules)?;
            let action = restrained(one.signal, action, who.scheduler, over_budget);
            Some((one.signal.monitor(), std::cmp::Reverse(action), one.signal, one.message.as_str()))
        })
        .collect();
    wanted.sort();
    let mut wanted = wanted.into_iter();
    let (_, std::cmp::Reverse(action), signal, message) = wanted.next()?;
    let overruled = wanted.map(|(_, std::cmp::Reverse(action), signal, _)| (signal, action)).collect();
    Some(Decision { signal, action, message: message.to_owned(), enforced, overruled })
}

/// The action of the pool's rules for one signal, or of the default, if the signal came often enough. The strongest
/// rule that applies counts. A pool with a rule for a signal does not get the default too.
fn action_for(raised: &RaisedSignal, who: SignalSubject, rules: &[Rule]) -> Option<Action> {
    let (action, count, window) = raised.signal.default_rule(who);
    let often = |count: u32, window: Duration| {
        let within = raised.ago.iter().filter(|ago| **ago <= window).count();
        u32::try_from(within).unwrap_or(u32::MAX) >= count
    };
    let mut own = rules.iter().filter(|rule| rule.signal == raised.signal).peekable();
    if own.peek().is_none() {
        return often(count, window).then_some(action);
    }
    own.filter(|rule| match (rule.count, rule.window) {
        (Some(count), Some(window)) => often(count, window),
        // A rule without a count or a window applies to each occurrence.
        (None, _) | (_, None) => true,
    })
    .map(|rule| rule.action)
    .max()
}

fn restrained(signal: Signal, action: Action, scheduler: bool, over_budget: bool) -> Action {
    if scheduler && signal.monitor() == Monitor::Budget && action > Action::Pause {
        return Action::Pause;
    }
    // A restarted agent would have no tokens either.
    let again = matches!(action, Action::Restart | Action::RestartGang | Action::Requeue);
    if over_budget && again && signal.monitor() != Monitor::Health { Action::Pause } else { action }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: SignalSubject = SignalSubject { scheduler: false, item: None };

    fn raised(signal: Signal) -> RaisedSignal {
        RaisedSignal { signal, message: signal.name().to_owned(), ago: vec![Duration::ZERO] }
    }
    fn decided(signals: &[Signal]) -> Decision {
        let raised: Vec<_> = signals.iter().copied().map(raised).collect();
        decide(Mode::Enforce, NOBODY, &raised, &[]).expect("a decision")
    }

    #[test]
    fn nothing_raised_is_nothing_done_and_a_layer_can_be_off() {
        assert_eq!(decide(Mode::Enforce, NOBODY, &[], &[]), None);
        assert_eq!(decide(Mode::Disabled, NOBODY, &[raised(Signal::HeartbeatLost)], &[]), None);
        let observed = decide(Mode::Observe, NOBODY, &[raised(Signal::HeartbeatLost)], &[]).expect("a decision");
        assert_eq!((observed.action, observed.enforced), (Action::Restart, false));
    }

    #[test]
    fn the_monitor_decides_before_the_strength() {
        let got = decided(&[Signal::ChronicTimeout, Signal::BudgetNearLimit, Signal::HeartbeatLost]);
        assert_eq!((got.signal, got.action), (Signal::BudgetNearLimit, Action::Warn));
        assert_eq!(got.overruled, [(Signal::ChronicTimeout, Action::Reap), (Signal::HeartbeatLost, Action::Restart)]);
        let got = decided(&[Signal::ObjectiveMissed, Signal::ItemStalled]);
        assert_eq!((got.signal, got.action), (Signal::ItemStalled, Action::Requeue), "one monitor: the strongest");
    }

    #[test]
    fn while_a_budget_signal_stands_nothing_is_started_again() {
        let got = decided(&[Signal::ItemStalled, Signal::TokenBudgetExceeded]);
        assert_eq!((got.signal, got.action), (Signal::TokenBudgetExceeded, Action::Pause));
        assert_eq!(got.overruled, [(Signal::ItemStalled, Action::Pause)]);
    }

    #[test]
    fn out_of_tokens_it_is_fish_or_cut_bait() {
        let of = |scheduler, item| {
            let got =
                decide(Mode::Enforce, SignalSubject { scheduler, item }, &[raised(Signal::TokenBudgetExceeded)], &[]).expect("a decision");
            got.action
        };
        assert_eq!(of(false, Some(WorkAtRisk::Something)), Action::Pause, "fish: what was done is kept");
        assert_eq!(of(false, Some(WorkAtRisk::Nothing)), Action::Reap, "cut bait");
        assert_eq!(of(false, None), Action::Pause, "nothing says that it is worth nothing");
        assert_eq!(of(true, Some(WorkAtRisk::Nothing)), Action::Pause, "a scheduler is never ended for it");
        let signals =
            [raised(Signal::TokenBudgetExceeded), raised(Signal::ItemStalled), raised(Signal::RuleViolated(Violation::TooManyChildren))];
        let who = SignalSubject { scheduler: false, item: Some(WorkAtRisk::Nothing) };
        let got = decide(Mode::Enforce, who, &signals, &[]).expect("a decision");
        assert_eq!((got.signal, got.action), (Signal::TokenBudgetExceeded, Action::Reap));
        let overruled = [(Signal::RuleViolated(Violation::TooManyChildren), Action::Warn), (Signal::ItemStalled, Action::Pause)];
        assert_eq!(got.overruled, overruled, "the other monitors in their order");
    }

    #[test]
    fn too_many_time_outs_are_chronic() {
        assert!(!chronic(2, None) && chronic(3, None) && chronic(9, None));
        assert!(!chronic(0, Some(0)) && chronic(1, Some(1)) && !chronic(1, Some(2)));
    }

    #[test]
    fn near_a_limit_an_agent_may_be_started_again() {
        let stalled = raised(Signal::ItemStalled);
        let near = Rule { signal: Signal::BudgetNearLimit, count: Some(3), window: Some(Duration::from_secs(60)), action: Action::Pause };
        let got = decide(Mode::Enforce, NOBODY, &[raised(Signal::BudgetNearLimit), stalled], &[near]).expect("a decision");
        assert_eq!((got.signal, got.action), (Signal::ItemStalled, Action::Requeue), "once is not often enough for the pool's rule");
    }

    #[test]
    fn a_scheduler_is_never_reaped_on_a_budget_signal() {
        let rule = Rule { signal: Signal::TokenBudgetExceeded, count: None, window: None, action: Action::Reap };
        let of = |scheduler| {
            decide(
                Mode::Enforce,
                SignalSubject { scheduler, item: Some(WorkAtRisk::Nothing) },
                &[raised(Signal::TokenBudgetExceeded)],
                &[rule],
            )
            .expect("a decision")
            .action
        };
        assert_eq!((of(true), of(false)), (Action::Pause, Action::Reap));
    }

    #[test]
    fn a_rule_counts_within_its_window_and_replaces_the_default() {
        let signal = Signal::RuleViolated(Violation::NetworkDenied);
        let often = |times: usize| RaisedSignal { ago: vec![Duration::from_secs(5); times], ..raised(signal) };
        assert_eq!(decide(Mode::Enforce, NOBODY, &[often(19)], &[]), None);
        assert_eq!(decide(Mode::Enforce, NOBODY, &[often(20)], &[]).map(|got| got.action), Some(Action::Warn));
        let window = Some(Duration::from_secs(10));
        let rules = [
            Rule { signal, count: Some(3), window, action: Action::Pause },
            Rule { signal, count: Some(30), window, action: Action::Reap },
        ];
        assert_eq!(decide(Mode::Enforce, NOBODY, &[often(20)], &rules).map(|got| got.action), Some(Action::Pause));
        let old = RaisedSignal { ago: vec![Duration::from_secs(11); 40], ..raised(signal) };
        assert_eq!(decide(Mode::Enforce, NOBODY, &[old], &rules), None, "outside the window");
    }
}
