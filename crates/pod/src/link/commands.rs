//! Whether the program may run commands: the breaker of this agent's session, that of the namespace as the governor says it, and
//! how long a command may take. Pure: the time and the dice come in as arguments; what has to be written down is handed to
//! whoever can, before anybody hears of it.
//!
//! Commands that hang one after another are stopped for a while, and then tried. When that of the namespace is open beyond its
//! time, the governor is asked for the right to try one command: what came of it is told to it alone. A program that runs commands by itself asks
//! nobody: this is a guard, not a wall.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use spillway_policy::breaker::circuit::Kind;
use spillway_policy::breaker::commands::{End, outcome};
use spillway_policy::breaker::{
    Answer, At, Circuit, Completed, Force, Guard, Mode, Outcome, Permit, Rejection, Saved, Settings, State, Why,
};
use spillway_wire::command::{
    BeginCommand, BreakerForce, BreakerMode, BreakerState, CommandBegun, CommandBreakers, CommandCounts, CommandEnd, CommandEnded,
    CommandLimits, CommandPermit, CommandRejected, EndTry, OpenGlobally, TryCommand, TryOutcome,
};
use spillway_wire::link::Answer as Reply;
use spillway_wire::{Code, Refusal};

use crate::clock::{BootTime, millis};
use crate::link_says;

/// Beyond its own time a command that is tried has so long to be ended and to say so.
const TO_SAY_SO: u64 = 10_000;
/// Commands that are tried for the namespace and whose end is awaited; of more the oldest is forgotten, and has failed.
const TRIED: usize = 64;

/// The breaker, as it is kept over a restart of ours. Its time is that of the machine's clock since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Kept {
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

impl Kept {
    fn of(Saved { state, epoch, opens, open_until }: Saved, counts: CommandCounts) -> Self {
        let state = match state {
            State::Closed => KeptState::Closed,
            State::HalfOpen => KeptState::HalfOpen,
            State::Open => KeptState::Open,
        };
        Self { state, epoch, opens, open_until, counts }
    }
}

impl From<Kept> for Saved {
    fn from(Kept { state, epoch, opens, open_until, counts: _ }: Kept) -> Self {
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
    /// How the breaker behaves, as it was set.
    set: Settings,
    /// How long it stays open, whatever is said about that.
    open: Option<Duration>,
    failure_exit_codes: Vec<i32>,
    /// That of the namespace is open, and when it may be asked for the right to try a command.
    globally: Option<(bool, BootTime)>,
    /// The governor is being asked: once at a time, however many commands a program starts.
    asking: bool,
    /// The rights to try that were given, by the permits of our own breaker.
    tried: BTreeMap<CommandPermit, CommandPermit>,
    counts: CommandCounts,
    /// What was handed on to be written down.
    kept: Saved,
}

/// What a question comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begin {
    /// This answer.
    Answer(Reply),
    /// The governor has to be asked first.
    Try(TryCommand),
}

impl Commands {
    /// As an earlier process left it, if one did. `open` is how long it stays open, if not as its guard says.
    pub fn new(now: BootTime, limits: Option<CommandLimits>, open: Option<Duration>, kept: Option<Kept>) -> Self {
        let counts = kept.map(|kept| kept.counts).unwrap_or_default();
        let kept = kept.map(Saved::from).unwrap_or_default();
        let known = limits.is_some();
        let limits = limits.unwrap_or_default();
        let guard = Settings::of(Guard::Session);
        let set = Settings { open: open.map_or(guard.open, millis), ..guard };
        let settings = set.clone().with_effective_window(longest(&limits));
        // No two processes of ours start in the same millisecond.
        let circuit = Circuit::load(settings, now.millis(), &kept, at(now, 0.5), wall(now));
        let (failure_exit_codes, globally, asking, tried) = (Vec::new(), None, false, BTreeMap::new());
        Self { circuit, limits, known, set, open, failure_exit_codes, globally, asking, tried, counts, kept }
    }

    /// How the breakers behave, as the governor says it now. Nothing: it does not know yet, and what was said before holds. A
    /// leader that has just begun opens nothing by that.
    pub fn behave(&mut self, now: BootTime, breakers: Option<&CommandBreakers>) {
        let Some(breakers) = breakers else { return };
        let said = settings(breakers);
        let set = Settings { open: self.open.map_or(said.open, millis), ..said };
        if set != self.set {
            self.set = set.clone();
            self.circuit.set(set.with_effective_window(longest(&self.limits)), at(now, 0.5));
        }
        self.failure_exit_codes.clone_from(&breakers.failure_exit_codes);
        let until = |wait: u64| now.after(Duration::from_millis(wait));
        self.globally =
            breakers.open_globally.map(|OpenGlobally { forced, retry_after_milliseconds }| (forced, until(retry_after_milliseconds)));
    }

    /// What was counted since this pod began.
    pub fn counts(&self) -> CommandCounts {
        self.counts
    }

    /// The state of the breaker. One that is open stays so until the first command after its time.
    pub fn state(&self) -> BreakerState {
        match self.circuit.state() {
            State::Closed => BreakerState::Closed,
            State::HalfOpen => BreakerState::HalfOpen,
            State::Open => BreakerState::Open,
        }
    }

    /// How long commands may take is known. How long a failure counts is settled by the first word about it.
    pub fn limit(&mut self, now: BootTime, limits: CommandLimits) {
        self.limits = limits;
        if !std::mem::replace(&mut self.known, true) {
            let settings = self.set.clone().with_effective_window(longest(&limits));
            self.circuit.set(settings, at(now, 0.5));
        }
    }

    /// Whether a command may be run.
    pub fn begin(&mut self, now: BootTime, random: f64, command: BeginCommand, keep: impl Fn(&Kept)) -> Begin {
        let most = u64::from(self.limits.max_timeout_seconds) * 1000;
        let within = command.timeout_milliseconds.unwrap_or(longest(&self.limits)).min(most).max(1);
        let at = at(now, random);
        self.circuit.tick(at);
        self.keep(now, &keep);
        let answer = self.circuit.admit(at, within.saturating_add(TO_SAY_SO));
        self.keep(now, &keep);
        let permit = match answer {
            Answer::Permit(permit) => permit,
            Answer::Rejected(rejection) => return Begin::Answer(rejected(&rejection)),
            // What has to be kept was handed on a moment ago.
            Answer::Store => {
                let refusal = Refusal::new(Code::Internal, "the breaker of commands cannot be kept").retry_after(1);
                return Begin::Answer(Reply::Refused(refusal));
            }
        };
        let Permit { owner, epoch, id, kind: _ } = permit;
        let command = CommandPermit { owner, epoch, id };
        match self.globally {
            None => Begin::Answer(begun(command, within)),
            Some((forced, until)) if forced || now < until || self.asking => {
                // Both or neither.
                self.circuit.complete(&permit, Outcome::Neutral, at);
                let why = match (forced, now < until) {
                    (true, _) => Why::Forced,
                    (false, true) => Why::Open,
                    (false, false) => Why::Probing,
                };
                Begin::Answer(rejected(&Rejection { guard: Guard::Commands, why, retry_after: millis(until.since(now)).max(1000) }))
            }
            Some(_) => {
                self.asking = true;
                Begin::Try(TryCommand { command, timeout_milliseconds: within })
            }
        }
    }

    /// The governor was asked for the right to try a command. Nothing: nobody answers, and it is run without.
    pub fn asked(
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
                // Who comes before that need not ask.
                if let Some((_, until)) = &mut self.globally {
                    *until = (*until).max(now.after(Duration::from_millis(rejected.retry_after_milliseconds)));
                }
                Reply::CommandRejected(rejected)
            }
            Some(Ok(permit)) => {
                while self.tried.len() >= TRIED {
                    self.tried.pop_first();
                }
                self.tried.insert(command, permit);
                begun(command, timeout_milliseconds)
            }
            None => begun(command, timeout_milliseconds),
        }
    }

    /// A command hung that asked nobody, and was ended.
    pub fn hung(&mut self, now: BootTime, random: f64, keep: impl Fn(&Kept)) {
        let at = at(now, random);
        if let Answer::Permit(permit) = self.circuit.admit(at, 1) {
            self.count(&permit, Outcome::Failure { retry_after: None }, at);
        }
        self.keep(now, &keep);
    }

    /// Says what came of a permit to our own breaker. A failure that it takes counts for the namespace too.
    fn count(&mut self, permit: &Permit, outcome: Outcome, at: At) {
        let taken = self.circuit.complete(permit, outcome, at) == Completed::Taken && permit.kind != Kind::Free;
        if taken && matches!(outcome, Outcome::Failure { .. }) {
            self.counts.failed = self.counts.failed.saturating_add(1);
        }
    }

    /// A command ended. What has to be told of that to the governor, if it gave the right to it.
    pub fn end(&mut self, now: BootTime, random: f64, CommandEnded { permit, how }: CommandEnded, keep: impl Fn(&Kept)) -> Option<EndTry> {
        let end = match how {
            CommandEnd::Exited(code) => End::Exited(code),
            CommandEnd::Signalled => End::Signalled,
            CommandEnd::TimedOut => End::TimedOut,
            CommandEnd::NotStarted => End::NotStarted,
            CommandEnd::Cancelled => End::Cancelled,
        };
        let outcome = outcome(end, &self.failure_exit_codes);
        let tried = self.tried.remove(&permit);
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

    /// Hands on what changed and must not be forgotten.
    fn keep(&mut self, now: BootTime, keep: &impl Fn(&Kept)) {
        let saved = self.circuit.saved(now.millis(), wall(now));
        if saved.says(&self.kept) {
            return;
        }
        if saved.state == State::Open && saved.epoch != self.kept.epoch {
            self.counts.opened = self.counts.opened.saturating_add(1);
        }
        keep(&Kept::of(saved, self.counts));
        self.circuit.stored(saved.epoch);
        match (self.kept.state, saved.state) {
            (_, State::Open) => link_says!("too many commands hang or cannot be started: commands are refused for a while"),
            (State::Open | State::HalfOpen, State::Closed) => link_says!("commands work again"),
            (State::Closed, State::Closed) | (_, State::HalfOpen) => {}
        }
        self.kept = saved;
    }
}

fn begun(permit: CommandPermit, within: u64) -> Reply {
    Reply::CommandBegun(CommandBegun { permit, timeout_milliseconds: within })
}

fn rejected(rejection: &Rejection) -> Reply {
    let message = format!("{}: {rejection}", rejection.name(""));
    Reply::CommandRejected(CommandRejected { message, retry_after_milliseconds: rejection.retry_after })
}

/// A permit, as it is given back.
fn counted(CommandPermit { owner, epoch, id }: CommandPermit) -> Permit {
    Permit { owner, epoch, id, kind: Kind::Counted }
}

/// How our breaker behaves, as it is said.
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
    use crate::samples::breakers;

    const LIMITS: CommandLimits = CommandLimits { timeout_seconds: 120, max_timeout_seconds: 600 };

    fn time(seconds: u64) -> BootTime {
        BootTime::from_millis(seconds * 1000)
    }

    /// Runs a command that takes as long as it may and ends so.
    fn run(commands: &mut Commands, seconds: &mut u64, how: CommandEnd, written: &RefCell<Vec<Kept>>) -> Option<CommandRejected> {
        let keep = |kept: &Kept| written.borrow_mut().push(*kept);
        match commands.begin(time(*seconds), 0.5, BeginCommand::default(), keep) {
            Begin::Answer(Reply::CommandBegun(CommandBegun { permit, timeout_milliseconds })) => {
                *seconds += timeout_milliseconds / 1000;
                commands.end(time(*seconds), 0.5, CommandEnded { permit, how }, keep);
                None
            }
            Begin::Answer(Reply::CommandRejected(rejected)) => Some(rejected),
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
            assert_eq!(commands.state(), BreakerState::Closed);
            assert_eq!(run(&mut commands, &mut seconds, CommandEnd::TimedOut, &written), None);
        }
        assert_eq!(commands.state(), BreakerState::Open);
        let rejected = run(&mut commands, &mut seconds, CommandEnd::TimedOut, &written).expect("it is open");
        assert_eq!(rejected.retry_after_milliseconds, 30_000);
        assert_eq!(rejected.message, "bash circuit breaker open for session: too much failed; do not retry within 30 s");
        // Another process, ten seconds later.
        let kept = serde_json::to_value(written.borrow().last().expect("it was written")).expect("JSON");
        assert_eq!(
            kept,
            serde_json::json!({"state": "Open", "epoch": 1, "opens": 1, "openUntil": (seconds + 30) * 1000, "counts": {"failed": 10, "opened": 1}})
        );
        assert_eq!(commands.counts(), CommandCounts { failed: 10, opened: 1 });
        let read = || serde_json::from_value::<Kept>(kept.clone()).ok();
        seconds += 10;
        let mut next = Commands::new(time(seconds), Some(LIMITS), None, read());
        assert_eq!(next.state(), BreakerState::Open);
        let rejected = run(&mut next, &mut seconds, CommandEnd::Exited(0), &written).expect("it is open still");
        assert_eq!(rejected.retry_after_milliseconds, 20_000);
        seconds += 20;
        for state in [BreakerState::HalfOpen, BreakerState::Closed] {
            assert_eq!(run(&mut next, &mut seconds, CommandEnd::Exited(0), &written), None);
            assert_eq!(next.state(), state);
        }
        let states: Vec<KeptState> = written.borrow().iter().map(|kept| kept.state).collect();
        assert_eq!(states, [KeptState::Open, KeptState::HalfOpen, KeptState::Closed], "each change once");
        assert_eq!(next.counts(), CommandCounts { failed: 10, opened: 1 }, "what was counted goes on");
    }

    #[test]
    fn a_command_gets_what_it_asks_for_up_to_the_most() {
        let mut commands = Commands::new(time(0), Some(LIMITS), None, None);
        for (asked, given) in [(None, 120_000), (Some(5), 5), (Some(500_000), 500_000), (Some(86_400_000), 600_000)] {
            let reply = commands.begin(time(0), 0.5, BeginCommand { timeout_milliseconds: asked }, |_| {});
            let Begin::Answer(Reply::CommandBegun(begun)) = reply else { panic!("{reply:?}") };
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

    #[test]
    fn it_behaves_as_people_said_last() {
        let written = RefCell::default();
        let mut seconds = 1000;
        let mut commands = Commands::new(time(seconds), Some(LIMITS), None, None);
        commands.behave(time(seconds), Some(&breakers()));
        for how in [CommandEnd::Exited(42), CommandEnd::TimedOut, CommandEnd::NotStarted] {
            assert_eq!(run(&mut commands, &mut seconds, how, &written), None, "{how:?}");
        }
        let rejected = run(&mut commands, &mut seconds, CommandEnd::Exited(0), &written).expect("three are enough");
        assert_eq!(rejected.retry_after_milliseconds, 5_000);
        commands.behave(time(seconds), Some(&CommandBreakers { mode: BreakerMode::Observe, ..breakers() }));
        assert_eq!(run(&mut commands, &mut seconds, CommandEnd::Exited(1), &written), None, "it is only observed");
        commands.behave(time(seconds), Some(&CommandBreakers { force: Some(BreakerForce::Open), ..breakers() }));
        let rejected = run(&mut commands, &mut seconds, CommandEnd::Exited(0), &written).expect("a person holds it");
        assert!(rejected.message.contains("a person holds it open"), "{}", rejected.message);
        commands.behave(time(seconds), Some(&CommandBreakers { force: Some(BreakerForce::Closed), ..breakers() }));
        assert_eq!(run(&mut commands, &mut seconds, CommandEnd::TimedOut, &written), None);
        commands.behave(time(seconds), None);
        assert_eq!(run(&mut commands, &mut seconds, CommandEnd::TimedOut, &written), None, "what was said before holds");
        // As a Breaker with nothing in it says it.
        let (failure_threshold, open_milliseconds, success_threshold) = (10, 30_000, 2);
        let defaults = CommandBreakers { failure_threshold, open_milliseconds, success_threshold, ..breakers() };
        commands.behave(time(seconds), Some(&defaults));
        seconds += 30;
        for _ in 0..2 {
            assert_eq!(run(&mut commands, &mut seconds, CommandEnd::Exited(0), &written), None);
        }
        for _ in 0..9 {
            assert_eq!(run(&mut commands, &mut seconds, CommandEnd::TimedOut, &written), None, "ten are needed again");
        }
    }

    #[test]
    fn while_that_of_the_namespace_is_open_nothing_runs_and_then_one_is_tried() {
        let mut commands = Commands::new(time(0), Some(LIMITS), None, None);
        let open = |wait| Some(OpenGlobally { forced: false, retry_after_milliseconds: wait });
        let begin = |commands: &mut Commands, seconds| commands.begin(time(seconds), 0.5, BeginCommand::default(), |_| {});
        commands.behave(time(0), Some(&CommandBreakers { open_globally: open(30_000), ..breakers() }));
        let Begin::Answer(Reply::CommandRejected(rejected)) = begin(&mut commands, 10) else { panic!("it is open") };
        assert_eq!(rejected.retry_after_milliseconds, 20_000);
        assert_eq!(rejected.message, "bash circuit breaker open globally: too much failed; do not retry within 20 s");
        // The next leader has not read yet how it stands.
        commands.behave(time(11), None);
        assert!(
            matches!(begin(&mut commands, 11), Begin::Answer(Reply::CommandRejected(_))),
            "it is open until somebody says that it is not"
        );
        // Its time is over: the governor is asked, and says no.
        let Begin::Try(first) = begin(&mut commands, 30) else { panic!("it is to be tried") };
        let Begin::Answer(Reply::CommandRejected(second)) = begin(&mut commands, 30) else { panic!("one question at a time") };
        assert!(second.message.contains("it is being tried") && second.retry_after_milliseconds == 1000, "{second:?}");
        let no = CommandRejected { message: "no".into(), retry_after_milliseconds: 2_000 };
        assert_eq!(commands.asked(time(30), 0.5, first, Some(Err(no.clone()))), Reply::CommandRejected(no));
        assert!(matches!(begin(&mut commands, 31), Begin::Answer(Reply::CommandRejected(_))), "nobody is asked before that");
        // It says yes: how that ends is told to it, and counts nowhere else.
        let Begin::Try(second) = begin(&mut commands, 32) else { panic!("it is to be tried") };
        assert!(second.command.id > first.command.id);
        let permit = CommandPermit { owner: 9, epoch: 8, id: 7 };
        let begun = commands.asked(time(32), 0.5, second, Some(Ok(permit)));
        assert_eq!(begun, Reply::CommandBegun(CommandBegun { permit: second.command, timeout_milliseconds: 120_000 }));
        let ended = CommandEnded { permit: second.command, how: CommandEnd::TimedOut };
        let told = EndTry { permit, outcome: TryOutcome::Failure };
        assert_eq!(commands.end(time(33), 0.5, ended, |_| {}), Some(told));
        assert_eq!(commands.end(time(33), 0.5, ended, |_| {}), None, "once");
        assert_eq!(commands.counts().failed, 0);
        // Nobody answers: it runs without.
        let Begin::Try(third) = begin(&mut commands, 34) else { panic!("it is to be tried") };
        assert!(matches!(commands.asked(time(34), 0.5, third, None), Reply::CommandBegun(_)));
        let ended = CommandEnded { permit: third.command, how: CommandEnd::TimedOut };
        assert_eq!((commands.end(time(35), 0.5, ended, |_| {}), commands.counts().failed), (None, 1));
        // It is closed: nobody is asked.
        commands.behave(time(40), Some(&breakers()));
        assert!(matches!(begin(&mut commands, 40), Begin::Answer(Reply::CommandBegun(_))));
    }

    #[test]
    fn rights_to_try_whose_commands_never_end_are_bounded() {
        let mut commands = Commands::new(time(0), Some(LIMITS), None, None);
        for id in 0..10 * TRIED as u64 {
            let command = TryCommand { command: CommandPermit { owner: 1, epoch: 1, id }, timeout_milliseconds: 1_000 };
            commands.asked(time(0), 0.5, command, Some(Ok(CommandPermit { owner: 9, epoch: 8, id })));
        }
        assert_eq!(commands.tried.len(), TRIED);
    }

    #[test]
    fn a_command_that_nobody_timed_counts_like_one_that_timed_out() {
        let mut commands = Commands::new(time(0), Some(LIMITS), None, None);
        for _ in 0..10 {
            commands.hung(time(1), 0.5, |_| {});
        }
        let reply = commands.begin(time(2), 0.5, BeginCommand::default(), |_| {});
        assert!(matches!(reply, Begin::Answer(Reply::CommandRejected(_))), "{reply:?}");
        commands.hung(time(2), 0.5, |_| {});
        assert_eq!(commands.counts(), CommandCounts { failed: 10, opened: 1 }, "what comes while it is open says nothing new");
    }
}
