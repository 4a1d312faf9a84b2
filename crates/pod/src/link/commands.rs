//! Whether the program may run commands: the session breaker of this agent, the breaker of the namespace as the governor reports
//! it, and the time limit of commands. Pure: the time and random numbers are arguments. A new state of the breaker is handed to
//! `keep`, which writes it to the journal, before any answer depends on it.
//!
//! When commands keep hanging, the breaker refuses commands for a while, and then lets some be tried. When the breaker of the
//! namespace is still open after its time, the sidecar asks the governor for the right to try one command, and reports the
//! result to the governor only. A program that runs commands itself does not ask: the breaker is no security boundary.
//!
//! A timed shell asks too, without the program's knowledge. It gets a time limit if it probably runs a command: in a pool with
//! models only after a model has answered the program, and only while the breaker enforces.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use spillway_policy::breaker::circuit::Kind;
use spillway_policy::breaker::commands::{End, outcome};
use spillway_policy::breaker::{
    Answer, Circuit, Completion, Force, Guard, Mode, Moment, Outcome, Permit, PersistedCircuit, Rejection, RejectionCause, Settings, State,
};
use spillway_wire::command::{
    BeginCommand, BreakerForce, BreakerMode, BreakerState, CommandBegun, CommandBreakers, CommandCounts, CommandEnd, CommandEnded,
    CommandLimits, CommandPermit, CommandRejected, EndTry, ObservedCommand, OpenGlobally, TimeExemptions, TryCommand, TryOutcome,
};
use spillway_wire::link::Answer as Reply;
use spillway_wire::{Code, Refusal};

use crate::clock::{BootTime, millis};
use crate::link_says;

/// After its time limit, a command has this long to be ended and to report its end.
const COMMAND_REPORT_GRACE_MS: u64 = 10_000;
/// Commands that are tried for the namespace and have not ended. If there are more, the oldest is forgotten and counts as failed.
const MAX_PENDING_PROBES: usize = 64;

/// The breaker, as the journal keeps it over a restart of the sidecar. Its times are times since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeptBreaker {
    state: KeptState,
    epoch: u64,
    opens: u32,
    #[serde(default)]
    open_until: Option<i64>,
    #[serde(default)]
    counts: CommandCounts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum KeptState {
    Closed,
    HalfOpen,
    Open,
}

impl KeptBreaker {
    fn of(PersistedCircuit { state, epoch, opens, open_until }: PersistedCircuit, counts: CommandCounts) -> Self {
        let state = match state {
            State::Closed => KeptState::Closed,
            State::HalfOpen => KeptState::HalfOpen,
            State::Open => KeptState::Open,
        };
        Self { state, epoch, opens, open_until, counts }
    }
}

impl From<KeptBreaker> for PersistedCircuit {
    fn from(KeptBreaker { state, epoch, opens, open_until, counts: _ }: KeptBreaker) -> Self {
        let state = match state {
            KeptState::Closed => State::Closed,
            KeptState::HalfOpen => State::HalfOpen,
            KeptState::Open => State::Open,
        };
        Self { state, epoch, opens, open_until }
    }
}

/// The breaker and the limits.
#[derive(Debug)]
pub struct Commands {
    circuit: Circuit,
    limits: CommandLimits,
    /// Whether the limits are known, and with them how long a failure counts.
    known: bool,
    /// The commands that have no time limit unless they ask for one.
    untimed: TimeExemptions,
    /// When a model last answered.
    last_model_answer: Option<BootTime>,
    /// The settings of the breaker.
    set: Settings,
    /// How long the breaker stays open, instead of the time in its settings.
    open: Option<Duration>,
    failure_exit_codes: Vec<i32>,
    /// The breaker of the namespace is open: whether a person holds it, and when the governor may be asked for the right to try.
    namespace_breaker: Option<(bool, BootTime)>,
    /// The governor is being asked. There is one such request at a time, also if a program starts many commands.
    asking: bool,
    /// The governor's permits for tried commands, by the permits of our own breaker.
    governor_permits: BTreeMap<CommandPermit, CommandPermit>,
    counts: CommandCounts,
    /// The last state that was handed to the journal.
    kept: PersistedCircuit,
}

/// The result of a request to run a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begin {
    /// An answer.
    Answer(Reply),
    /// The governor must be asked first.
    Try(TryCommand),
}

impl Commands {
    /// With the state that an earlier process kept, if there is one. `open` replaces the time for which the breaker stays open.
    pub fn new(now: BootTime, limits: Option<CommandLimits>, open: Option<Duration>, kept: Option<KeptBreaker>) -> Self {
        let counts = kept.map(|kept| kept.counts).unwrap_or_default();
        let kept = kept.map(PersistedCircuit::from).unwrap_or_default();
        let known = limits.is_some();
        let limits = limits.unwrap_or_default();
        let guard = Settings::of(Guard::Session);
        let set = Settings { open: open.map_or(guard.open, millis), ..guard };
        let settings = set.clone().with_effective_window(default_time_limit_ms(&limits));
        // Two sidecars of one pod never start in the same millisecond, so that the time is a unique owner.
        let circuit = Circuit::load(settings, now.millis(), &kept, at(now, 0.5), persisted_clock(now));
        Self {
            circuit,
            limits,
            known,
            untimed: TimeExemptions::default(),
            last_model_answer: None,
            set,
            open,
            failure_exit_codes: Vec::new(),
            namespace_breaker: None,
            asking: false,
            governor_permits: BTreeMap::new(),
            counts,
            kept,
        }
    }

    /// Applies the settings and states of breakers that the governor reports. `None`: the governor does not know them yet, and the
    /// earlier ones stay. So a new leader changes no breaker by not knowing it.
    pub fn apply_breakers(&mut self, now: BootTime, breakers: Option<&CommandBreakers>) {
        let Some(breakers) = breakers else { return };
        let said = settings(breakers);
        let set = Settings { open: self.open.map_or(said.open, millis), ..said };
        if set != self.set {
            self.set = set.clone();
            self.circuit.set(set.with_effective_window(default_time_limit_ms(&self.limits)), at(now, 0.5));
        }
        self.failure_exit_codes.clone_from(&breakers.failure_exit_codes);
        let until = |wait: u64| now.after(Duration::from_millis(wait));
        self.namespace_breaker =
            breakers.open_globally.map(|OpenGlobally { forced, retry_after_milliseconds }| (forced, until(retry_after_milliseconds)));
    }

    /// The counts since the pod was created.
    pub fn counts(&self) -> CommandCounts {
        self.counts
    }

    /// The state of the session breaker. An open one stays open until the first command after its time.
    pub fn state(&self) -> BreakerState {
        match self.circuit.state() {
            State::Closed => BreakerState::Closed,
            State::HalfOpen => BreakerState::HalfOpen,
            State::Open => BreakerState::Open,
        }
    }

    /// Sets the time limits of commands. The first call also decides how long a failure counts.
    pub fn limit(&mut self, now: BootTime, limits: CommandLimits) {
        self.limits = limits;
        if !std::mem::replace(&mut self.known, true) {
            let settings = self.set.clone().with_effective_window(default_time_limit_ms(&limits));
            self.circuit.set(settings, at(now, 0.5));
        }
    }

    /// Sets the commands that have no time limit unless they ask for one.
    pub fn set_exemptions(&mut self, untimed: TimeExemptions) {
        self.untimed = untimed;
    }

    /// A model answered.
    pub fn note_model_answer(&mut self, at: BootTime) {
        self.last_model_answer = Some(at);
    }

    /// Whether a command gets a time limit although its program did not ask for one.
    fn times(&self, ObservedCommand { program_started }: ObservedCommand) -> bool {
        let answered = self.last_model_answer.is_some_and(|answered| answered.millis() >= program_started);
        self.known && self.set.mode == Mode::Enforce && !self.untimed.exempts_every_command() && (answered || !self.untimed.until_answer)
    }

    /// Decides whether a command may run.
    pub fn begin(&mut self, now: BootTime, random: f64, command: BeginCommand, keep: impl Fn(&KeptBreaker)) -> Begin {
        if command.unasked.is_some_and(|unasked| !self.times(unasked)) {
            return Begin::Answer(Reply::CommandUntimed);
        }
        let most = u64::from(self.limits.max_timeout_seconds) * 1000;
        let within = command.timeout_milliseconds.unwrap_or(default_time_limit_ms(&self.limits)).min(most).max(1);
        let at = at(now, random);
        self.circuit.tick(at);
        self.keep(now, &keep);
        let answer = self.circuit.admit(at, within.saturating_add(COMMAND_REPORT_GRACE_MS));
        self.keep(now, &keep);
        let permit = match answer {
            Answer::Permit(permit) => permit,
            Answer::Rejected(rejection) => return Begin::Answer(rejected(&rejection)),
            // The state was handed to `keep` just before, so that this should not happen.
            Answer::Store => {
                let refusal = Refusal::new(Code::Internal, "the state of the breaker of commands cannot be stored").retry_after(1);
                return Begin::Answer(Reply::Refused(refusal));
            }
        };
        let Permit { owner, epoch, id, kind: _ } = permit;
        let command = CommandPermit { owner, epoch, id };
        match self.namespace_breaker {
            None => Begin::Answer(self.begun(command, within)),
            Some((forced, until)) if forced || now < until || self.asking => {
                // A command counts at both breakers, or at neither.
                self.circuit.complete(&permit, Outcome::Neutral, at);
                let why = match (forced, now < until) {
                    (true, _) => RejectionCause::Forced,
                    (false, true) => RejectionCause::Open,
                    (false, false) => RejectionCause::Probing,
                };
                Begin::Answer(rejected(&Rejection { guard: Guard::Commands, cause: why, retry_after: millis(until.since(now)).max(1000) }))
            }
            Some(_) => {
                self.asking = true;
                Begin::Try(TryCommand { command, timeout_milliseconds: within })
            }
        }
    }

    /// Takes the governor's answer to a request to try a command. `None`: no answer came, and the command runs without a permit.
    pub fn on_governor_answer(
        &mut self,
        now: BootTime,
        random: f64,
        command: TryCommand,
        answer: Option<Result<CommandPermit, CommandRejected>>,
    ) -> Reply {
        let TryCommand { command, timeout_milliseconds } = command;
        self.asking = false;
        match answer {
            Some(Err(rejected)) => {
                self.circuit.complete(&counted(command), Outcome::Neutral, at(now, random));
                // Commands before this time are refused without a request to the governor.
                if let Some((_, until)) = &mut self.namespace_breaker {
                    *until = (*until).max(now.after(Duration::from_millis(rejected.retry_after_milliseconds)));
                }
                Reply::CommandRejected(rejected)
            }
            Some(Ok(permit)) => {
                while self.governor_permits.len() >= MAX_PENDING_PROBES {
                    self.governor_permits.pop_first();
                }
                self.governor_permits.insert(command, permit);
                self.begun(command, timeout_milliseconds)
            }
            None => self.begun(command, timeout_milliseconds),
        }
    }

    fn begun(&self, permit: CommandPermit, within: u64) -> Reply {
        Reply::CommandBegun(CommandBegun { permit, timeout_milliseconds: within, untimed: self.untimed.names.clone() })
    }

    /// A command that did not ask hung, and the watch-dog ended it.
    pub fn note_hung_command(&mut self, now: BootTime, random: f64, keep: impl Fn(&KeptBreaker)) {
        let at = at(now, random);
        if let Answer::Permit(permit) = self.circuit.admit(at, 1) {
            self.count(&permit, Outcome::Failure { retry_after: None }, at);
        }
        self.keep(now, &keep);
    }

    /// Reports the outcome of a permit to the session breaker. A failure that it accepts also counts for the namespace.
    fn count(&mut self, permit: &Permit, outcome: Outcome, at: Moment) {
        let taken = self.circuit.complete(permit, outcome, at) == Completion::Taken && permit.kind != Kind::Free;
        if taken && matches!(outcome, Outcome::Failure { .. }) {
            self.counts.failed = self.counts.failed.saturating_add(1);
        }
    }

    /// A command ended. Returns the report to the governor, if the governor gave the permit.
    pub fn end(
        &mut self,
        now: BootTime,
        random: f64,
        CommandEnded { permit, how }: CommandEnded,
        keep: impl Fn(&KeptBreaker),
    ) -> Option<EndTry> {
        let end = match how {
            CommandEnd::Exited(code) => End::Exited(code),
            CommandEnd::Signalled => End::Signalled,
            CommandEnd::TimedOut => End::TimedOut,
            CommandEnd::NotStarted => End::NotStarted,
            CommandEnd::Cancelled => End::Cancelled,
        };
        let outcome = outcome(end, &self.failure_exit_codes);
        let tried = self.governor_permits.remove(&permit);
        if tried.is_some() {
            self.circuit.complete(&counted(permit), outcome, at(now, random));
        } else {
            self.count(&counted(permit), outcome, at(now, random));
        }
        self.keep(now, &keep);
        let outcome = match outcome {
            Outcome::Success => TryOutcome::Success,
            Outcome::Failure { .. } => TryOutcome::Failure,
            Outcome::Neutral | Outcome::Dropped => TryOutcome::Neutral,
        };
        tried.map(|permit| EndTry { permit, outcome })
    }

    /// Hands a changed state to `keep`.
    fn keep(&mut self, now: BootTime, keep: &impl Fn(&KeptBreaker)) {
        let saved = self.circuit.to_persisted(now.millis(), persisted_clock(now));
        if saved.is_equivalent(&self.kept) {
            return;
        }
        if saved.state == State::Open && saved.epoch != self.kept.epoch {
            self.counts.opened = self.counts.opened.saturating_add(1);
        }
        keep(&KeptBreaker::of(saved, self.counts));
        self.circuit.stored(saved.epoch);
        match (self.kept.state, saved.state) {
            (_, State::Open) => link_says!("too many commands hang or cannot be started: commands are refused for a while"),
            (State::Open | State::HalfOpen, State::Closed) => link_says!("commands are allowed again"),
            (State::Closed, State::Closed) | (_, State::HalfOpen) => {}
        }
        self.kept = saved;
    }
}

fn rejected(rejection: &Rejection) -> Reply {
    let message = format!("{}: {rejection}", rejection.name(""));
    Reply::CommandRejected(CommandRejected { message, retry_after_milliseconds: rejection.retry_after })
}

/// The permit of the breaker for the permit of a command.
fn counted(CommandPermit { owner, epoch, id }: CommandPermit) -> Permit {
    Permit { owner, epoch, id, kind: Kind::Counted }
}

/// The settings of the session breaker, from those that the governor sends.
fn settings(breakers: &CommandBreakers) -> Settings {
    let CommandBreakers {
        mode,
        force,
        failure_threshold,
        window_milliseconds,
        open_milliseconds,
        backoff_factor,
        max_open_milliseconds,
        success_threshold,
        half_open_probes,
        probe_milliseconds,
        failure_exit_codes: _,
        open_globally: _,
    } = *breakers;
    Settings {
        mode: match mode {
            BreakerMode::Enforce => Mode::Enforce,
            BreakerMode::Observe => Mode::Observe,
            BreakerMode::Off => Mode::Disabled,
        },
        force: force.map(|force| match force {
            BreakerForce::Open => Force::Open,
            BreakerForce::Closed => Force::Closed,
        }),
        threshold: failure_threshold,
        window: window_milliseconds,
        open: open_milliseconds,
        factor: backoff_factor,
        max_open: max_open_milliseconds,
        successes: success_threshold,
        probes: half_open_probes,
        probe_within: probe_milliseconds,
        ..Settings::of(Guard::Session)
    }
}

fn at(now: BootTime, random: f64) -> Moment {
    Moment { now: now.millis(), random }
}

/// The clock of the kept state: time since boot, which all sidecars of this pod share.
fn persisted_clock(now: BootTime) -> i64 {
    i64::try_from(now.millis()).unwrap_or(i64::MAX)
}

/// The time limit of a command that asks for none.
fn default_time_limit_ms(limits: &CommandLimits) -> u64 {
    u64::from(limits.timeout_seconds) * 1000
}

#[cfg(test)]
#[path = "commands_tests.rs"]
mod tests;
