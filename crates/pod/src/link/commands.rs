//! Whether the program may run commands: the breaker of this agent's session, and how long a command may take. Pure: the time
//! and the dice come in as arguments; what has to be written down is handed to whoever can, before anybody hears of it.
//!
//! Commands that hang one after another are stopped for a while, and then tried. A program that runs commands by itself asks
//! nobody: this is a guard, not a wall.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use spillway_policy::breaker::circuit::Kind;
use spillway_policy::breaker::commands::{End, outcome};
use spillway_policy::breaker::{Answer, At, Circuit, Guard, Permit, Saved, Settings, State};
use spillway_wire::command::{BeginCommand, CommandBegun, CommandEnd, CommandEnded, CommandLimits, CommandPermit, CommandRejected};
use spillway_wire::link::Answer as Reply;
use spillway_wire::{Code, Refusal};

use crate::clock::{BootTime, millis};
use crate::link_says;

/// Beyond its own time a command that is tried has so long to be ended and to say so.
const TO_SAY_SO: u64 = 10_000;

/// The breaker, as it is kept over a restart of ours. Its time is that of the machine's clock since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Kept {
    state: KeptState,
    epoch: u64,
    opens: u32,
    #[serde(default)]
    open_until: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum KeptState {
    Closed,
    HalfOpen,
    Open,
}

impl From<Saved> for Kept {
    fn from(Saved { state, epoch, opens, open_until }: Saved) -> Self {
        let state = match state {
            State::Closed => KeptState::Closed,
            State::HalfOpen => KeptState::HalfOpen,
            State::Open => KeptState::Open,
        };
        Self { state, epoch, opens, open_until }
    }
}

impl From<Kept> for Saved {
    fn from(Kept { state, epoch, opens, open_until }: Kept) -> Self {
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
    /// The limits are known, and with them how long a failure counts.
    known: bool,
    /// What was handed on to be written down.
    kept: Saved,
}

impl Commands {
    /// As an earlier process left it, if one did. `open` is how long it stays open, if not as its guard says.
    pub fn new(now: BootTime, limits: Option<CommandLimits>, open: Option<Duration>, kept: Option<Kept>) -> Self {
        let kept = kept.map(Saved::from).unwrap_or_default();
        let known = limits.is_some();
        let limits = limits.unwrap_or_default();
        let guard = Settings::of(Guard::Session);
        let settings = Settings { open: open.map_or(guard.open, millis), ..guard }.with_effective_window(longest(&limits));
        // No two processes of ours start in the same millisecond.
        let circuit = Circuit::load(settings, now.millis(), &kept, at(now, 0.5), wall(now));
        Self { circuit, limits, known, kept }
    }

    /// How long commands may take is known. How long a failure counts is settled by the first word about it.
    pub fn limit(&mut self, now: BootTime, limits: CommandLimits) {
        self.limits = limits;
        if !std::mem::replace(&mut self.known, true) {
            let settings = self.circuit.settings().clone().with_effective_window(longest(&limits));
            self.circuit.set(settings, at(now, 0.5));
        }
    }

    /// Whether a command may be run.
    pub fn begin(&mut self, now: BootTime, random: f64, command: BeginCommand, keep: impl Fn(&Kept)) -> Reply {
        let most = u64::from(self.limits.max_timeout_seconds) * 1000;
        let within = command.timeout_milliseconds.unwrap_or(longest(&self.limits)).min(most).max(1);
        let at = at(now, random);
        self.circuit.tick(at);
        self.keep(now, &keep);
        let answer = self.circuit.admit(at, within.saturating_add(TO_SAY_SO));
        self.keep(now, &keep);
        match answer {
            Answer::Permit(Permit { owner, epoch, id, kind: _ }) => {
                Reply::CommandBegun(CommandBegun { permit: CommandPermit { owner, epoch, id }, timeout_milliseconds: within })
            }
            Answer::Rejected(rejection) => Reply::CommandRejected(CommandRejected {
                message: format!("{}: {rejection}", rejection.name("")),
                retry_after_milliseconds: rejection.retry_after,
            }),
            // What has to be kept was handed on a moment ago.
            Answer::Store => Reply::Refused(Refusal::new(Code::Internal, "the breaker of commands cannot be kept").retry_after(1)),
        }
    }

    /// A command ended.
    pub fn end(&mut self, now: BootTime, random: f64, CommandEnded { permit, how }: CommandEnded, keep: impl Fn(&Kept)) {
        let CommandPermit { owner, epoch, id } = permit;
        let end = match how {
            CommandEnd::Exited(code) => End::Exited(code),
            CommandEnd::Signalled => End::Signalled,
            CommandEnd::TimedOut => End::TimedOut,
            CommandEnd::NotStarted => End::NotStarted,
            CommandEnd::Cancelled => End::Cancelled,
        };
        self.circuit.complete(&Permit { owner, epoch, id, kind: Kind::Counted }, outcome(end, &[]), at(now, random));
        self.keep(now, &keep);
    }

    /// Hands on what changed and must not be forgotten.
    fn keep(&mut self, now: BootTime, keep: &impl Fn(&Kept)) {
        let saved = self.circuit.saved(now.millis(), wall(now));
        if saved.says(&self.kept) {
            return;
        }
        keep(&Kept::from(saved));
        self.circuit.stored(saved.epoch);
        match (self.kept.state, saved.state) {
            (_, State::Open) => link_says!("too many commands hang or cannot be started: commands are refused for a while"),
            (State::Open | State::HalfOpen, State::Closed) => link_says!("commands work again"),
            (State::Closed, State::Closed) | (_, State::HalfOpen) => {}
        }
        self.kept = saved;
    }
}

fn at(now: BootTime, random: f64) -> At {
    At { now: now.millis(), random }
}

/// The clock of what is kept: our own, which no other process of this pod sets.
fn wall(now: BootTime) -> i64 {
    i64::try_from(now.millis()).unwrap_or(i64::MAX)
}

/// What a command may take that asks for no time of its own.
fn longest(limits: &CommandLimits) -> u64 {
    u64::from(limits.timeout_seconds) * 1000
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    const LIMITS: CommandLimits = CommandLimits { timeout_seconds: 120, max_timeout_seconds: 600 };

    fn time(seconds: u64) -> BootTime {
        BootTime::from_millis(seconds * 1000)
    }

    /// Runs a command that takes as long as it may and ends so.
    fn run(commands: &mut Commands, seconds: &mut u64, how: CommandEnd, written: &RefCell<Vec<Kept>>) -> Option<CommandRejected> {
        let keep = |kept: &Kept| written.borrow_mut().push(*kept);
        match commands.begin(time(*seconds), 0.5, BeginCommand::default(), keep) {
            Reply::CommandBegun(CommandBegun { permit, timeout_milliseconds }) => {
                *seconds += timeout_milliseconds / 1000;
                commands.end(time(*seconds), 0.5, CommandEnded { permit, how }, keep);
                None
            }
            Reply::CommandRejected(rejected) => Some(rejected),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn slow_time_outs_add_up_and_the_breaker_outlives_the_sidecar() {
        let written = RefCell::default();
        let mut seconds = 1000;
        let mut commands = Commands::new(time(seconds), None, None, None);
        commands.limit(time(seconds), LIMITS);
        for _ in 0..10 {
            assert_eq!(run(&mut commands, &mut seconds, CommandEnd::TimedOut, &written), None);
        }
        let rejected = run(&mut commands, &mut seconds, CommandEnd::TimedOut, &written).expect("it is open");
        assert_eq!(rejected.retry_after_milliseconds, 30_000);
        assert_eq!(rejected.message, "bash circuit breaker open for session: too much failed; do not retry within 30 s");
        // Another process, ten seconds later.
        let kept = serde_json::to_value(written.borrow().last().expect("it was written")).expect("JSON");
        assert_eq!(kept, serde_json::json!({"state": "Open", "epoch": 1, "opens": 1, "openUntil": (seconds + 30) * 1000}));
        let read = || serde_json::from_value::<Kept>(kept.clone()).ok();
        seconds += 10;
        let mut next = Commands::new(time(seconds), Some(LIMITS), None, read());
        let rejected = run(&mut next, &mut seconds, CommandEnd::Exited(0), &written).expect("it is open still");
        assert_eq!(rejected.retry_after_milliseconds, 20_000);
        seconds += 20;
        for _ in 0..2 {
            assert_eq!(run(&mut next, &mut seconds, CommandEnd::Exited(0), &written), None);
        }
        let states: Vec<KeptState> = written.borrow().iter().map(|kept| kept.state).collect();
        assert_eq!(states, [KeptState::Open, KeptState::HalfOpen, KeptState::Closed], "each change once");
    }

    #[test]
    fn a_command_gets_what_it_asks_for_up_to_the_most() {
        let mut commands = Commands::new(time(0), Some(LIMITS), None, None);
        for (asked, given) in [(None, 120_000), (Some(5), 5), (Some(500_000), 500_000), (Some(86_400_000), 600_000)] {
            let reply = commands.begin(time(0), 0.5, BeginCommand { timeout_milliseconds: asked }, |_| {});
            let Reply::CommandBegun(begun) = reply else { panic!("{reply:?}") };
            assert_eq!(begun.timeout_milliseconds, given, "{asked:?}");
        }
    }

    #[test]
    fn what_says_no_is_not_broken() {
        let written = RefCell::default();
        let mut commands = Commands::new(time(0), Some(LIMITS), None, None);
        for how in [CommandEnd::Exited(1), CommandEnd::Signalled, CommandEnd::Cancelled, CommandEnd::Exited(0)] {
            for _ in 0..100 {
                assert_eq!(run(&mut commands, &mut 0, how, &written), None, "{how:?}");
            }
        }
        assert!(written.borrow().is_empty(), "nothing changed");
    }
}
