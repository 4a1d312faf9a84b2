//! What the sidecar knows, and what it does next. Pure: the time and the dice come in as arguments, actions go out.
//!
//! What always holds: the program is let start only after the gateway answered a registration of this process and, after
//! that, every canary was unreachable; an order to end stays; what is told to the supervisor is a whole state, so that a
//! lost connection loses nothing.

mod plan;
mod report;

use std::collections::VecDeque;
use std::time::Duration;

use spillway_policy::backoff;
use spillway_wire::Code;
use spillway_wire::agent::{DesiredState, Notice, Program, Report, Run, Settings};
use spillway_wire::command::{BreakerState, CommandCounts};
use spillway_wire::link::{Answer, ModelCalls, Progress};
use spillway_wire::work::{LeaseRef, Outcome};

use super::action::Action;
use super::kept_state::KeptState;
use super::retry::CALL_RETRY_BACKOFF;
use super::work::{self, SidecarWork};
use crate::clock::BootTime;
use report::UrgentParts;

/// Between two reports at least.
const MIN_REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Between two words about the program's questions, of which it can ask thousands.
const MIN_ACTIVITY_INTERVAL: Duration = Duration::from_secs(1);
/// Between two looks at walls that did not stand.
const EGRESS_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Looks in a row that find the walls open before a program that runs is ended.
const OPEN_EGRESS_THRESHOLD: u32 = 2;
/// "This is no agent" has to be said so often ...
const MIN_DISMISSALS: u32 = 3;
/// ... with so much time between two that count (a new leader, or a late cache, may say it for a moment) ...
const MIN_DISMISSAL_INTERVAL: Duration = Duration::from_secs(5);
/// ... or to stand for so long.
const DISMISSAL_TIMEOUT: Duration = Duration::from_secs(60);
/// Calls that nobody answered, before silence is believed: a machine that slept asks first.
const MIN_UNANSWERED_CALLS: u32 = 3;
/// Notices that are remembered for the program's questions.
const MAX_REMEMBERED_NOTICES: usize = 64;
/// Targets, and characters of each, that a report carries.
const REACHABLE_BOUNDS: (usize, usize) = (16, 260);

/// Why the program has to end.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    /// Nobody answers.
    Abandoned,
    /// The walls do not stand.
    WallsDown(Vec<String>),
    /// We are not, or no longer, an agent.
    Dismissed,
}

/// What the supervisor was told on its present connection.
#[derive(Clone, Debug, Default)]
struct ToldSupervisor {
    start: bool,
    revision: Option<String>,
    end: bool,
    work: work::SupervisorView,
}

/// The walls, as the canary sees them.
#[derive(Clone, Debug)]
struct IsolationState {
    /// A look is under way; whether we were registered when it began.
    looking: Option<bool>,
    next: BootTime,
    /// Looks in a row that reached something.
    open: u32,
    reachable: Vec<String>,
    /// A look that began after registering reached nothing, and none since did.
    stand: bool,
}

/// The calls register and report: one at a time.
#[derive(Clone, Debug)]
struct Lane {
    busy: bool,
    failures: u32,
    not_before: BootTime,
}
/// "This is no agent".
#[derive(Clone, Copy, Debug)]
struct Dismissal {
    first: BootTime,
    counted: BootTime,
    count: u32,
}

/// The sidecar's mind.
#[derive(Clone, Debug)]
pub struct Link {
    /// Between two looks at walls that stand.
    look_each: Duration,
    settings: Option<Settings>,
    registered: bool,
    lane: Lane,
    heard: BootTime,
    /// Calls in a row, on any lane, that nobody answered.
    unanswered: u32,
    dismissal: Option<Dismissal>,
    walls: IsolationState,
    program: Option<(BootTime, Report)>,
    action: Option<String>,
    let_start: bool,
    sent: Option<(BootTime, UrgentParts)>,
    acknowledged: Option<UrgentParts>,
    supervisor: Option<ToldSupervisor>,
    end: Option<End>,
    notices: VecDeque<Notice>,
    /// When the supervisor was last told that the program asked something, and what it has to be told.
    activity_told: Option<BootTime>,
    activity: Option<Option<String>>,
    /// What is known of its calls of models.
    called: Option<ModelCalls>,
    /// What the breaker of commands counted, and its state.
    commands: CommandCounts,
    breaker: BreakerState,
    sidecar_work: SidecarWork,
    /// This process is ending.
    leaving: bool,
}

impl Link {
    /// At its start, with what an earlier process left.
    pub fn new(now: BootTime, look_each: Duration, remembered: KeptState) -> Self {
        let KeptState { settings, heard, let_start, action, work } = remembered;
        let mut link = Self {
            look_each,
            settings,
            registered: false,
            lane: Lane { busy: false, failures: 0, not_before: now },
            heard: heard.unwrap_or(now).min(now),
            unanswered: 0,
            dismissal: None,
            walls: IsolationState { looking: None, next: now, open: 0, reachable: Vec::new(), stand: false },
            program: None,
            action,
            let_start,
            sent: None,
            acknowledged: None,
            supervisor: None,
            end: None,
            notices: VecDeque::new(),
            activity_told: None,
            activity: None,
            called: None,
            commands: CommandCounts::default(),
            breaker: BreakerState::default(),
            sidecar_work: SidecarWork::new(work),
            leaving: false,
        };
        if let Some(wanted) = link.settings.as_ref().map(|settings| settings.wanted.clone()) {
            link.note(&wanted);
        }
        link
    }

    /// Somebody answered a call: whatever was said, we are not alone.
    pub fn answered(&mut self, now: BootTime) {
        self.heard = now;
        self.unanswered = 0;
    }

    /// Nobody answered a call.
    pub fn unanswered(&mut self) {
        self.unanswered = self.unanswered.saturating_add(1);
    }

    /// A gateway refused a call. One that is not about who we are changes nothing.
    pub fn refused(&mut self, now: BootTime, code: Code) {
        // Before anybody knew us, it only means that nobody knows us yet.
        if !matches!(code, Code::NotAnAgent | Code::AgentEnded) || self.settings.is_none() {
            return;
        }
        let said = self.dismissal.get_or_insert(Dismissal { first: now, counted: now, count: 1 });
        if now.since(said.counted) >= MIN_DISMISSAL_INTERVAL {
            said.counted = now;
            said.count += 1;
        }
    }

    /// A gateway did what was asked: we are an agent.
    pub fn accepted(&mut self) {
        self.dismissal = None;
    }

    /// Our call (register or report) failed. `at_least` is what the gateway asks us to wait; `random` is in [0, 1).
    pub fn call_failed(&mut self, now: BootTime, at_least: Duration, random: f64) {
        self.lane.busy = false;
        self.lane.failures = self.lane.failures.saturating_add(1);
        let wait = backoff::delay(self.lane.failures, CALL_RETRY_BACKOFF.0, CALL_RETRY_BACKOFF.1, random);
        self.lane.not_before = now.after(wait.max(at_least));
    }

    /// The registration was answered.
    pub fn registered(&mut self, now: BootTime, mut settings: Settings) -> Action {
        // Whether the program is run once or for each item is settled when it is let start, whatever the pool says later.
        let before = self.settings.as_ref().filter(|_| self.let_start).map(|before| &before.work);
        let run = |work: &Option<work::How>| work.as_ref().map(|work| work.run);
        if let Some(before) = before.filter(|before| run(before) != run(&settings.work)) {
            settings.work.clone_from(before);
        }
        // So is what has to succeed before.
        if let Some(before) = self.settings.as_ref().filter(|_| self.let_start) {
            settings.preflight_command.clone_from(&before.preflight_command);
        }
        if let Some(before) = &self.settings {
            keep_breakers(&mut settings.wanted, &before.wanted);
        }
        self.lane = Lane { busy: false, failures: 0, not_before: now };
        self.registered = true;
        // What was found before may have been a network that was not there.
        self.walls.next = now;
        self.note(&settings.wanted);
        self.settings = Some(settings.clone());
        Action::RememberSettings(Box::new(settings))
    }

    /// The report was answered.
    pub fn reported(&mut self, now: BootTime) {
        self.lane = Lane { busy: false, failures: 0, not_before: now };
        self.acknowledged = self.sent.as_ref().map(|(_, shown)| shown.clone());
    }

    /// What is wanted, as a gateway said it.
    pub fn wanted(&mut self, mut wanted: DesiredState) -> Option<Action> {
        self.note(&wanted);
        let settings = self.settings.as_mut()?;
        keep_breakers(&mut wanted, &settings.wanted);
        if settings.wanted == wanted {
            return None;
        }
        settings.wanted = wanted;
        Some(Action::RememberSettings(Box::new(settings.clone())))
    }

    /// Remembers notices for the program's questions.
    fn note(&mut self, wanted: &DesiredState) {
        for notice in &wanted.notices {
            if self.notices.back().is_none_or(|newest| newest.id < notice.id) {
                self.notices.push_back(notice.clone());
            }
        }
        while self.notices.len() > MAX_REMEMBERED_NOTICES {
            self.notices.pop_front();
        }
    }

    /// A look at the walls is over; `reachable` was reached.
    pub fn probed(&mut self, now: BootTime, mut reachable: Vec<String>) {
        let registered = self.walls.looking.take().unwrap_or(false);
        reachable.truncate(REACHABLE_BOUNDS.0);
        for target in &mut reachable {
            *target = target.chars().take(REACHABLE_BOUNDS.1).collect();
        }
        if reachable.is_empty() {
            self.walls.open = 0;
            self.walls.stand |= registered;
            // A look from before the registration lets nothing start: the next one is due at once.
            self.walls.next = if registered || !self.registered { now.after(self.look_each) } else { now };
        } else {
            self.walls.open = self.walls.open.saturating_add(1);
            self.walls.stand = false;
            self.walls.next = now.after(EGRESS_CHECK_INTERVAL);
            if self.let_start && self.walls.open >= OPEN_EGRESS_THRESHOLD {
                self.end.get_or_insert(End::WallsDown(reachable.clone()));
            }
        }
        self.walls.reachable = reachable;
    }

    /// The supervisor connected.
    pub fn connected(&mut self) {
        self.supervisor = Some(ToldSupervisor::default());
    }

    /// The supervisor's connection is gone.
    pub fn disconnected(&mut self) {
        self.supervisor = None;
    }

    /// The supervisor says how the program is.
    pub fn program(&mut self, now: BootTime, report: Report) {
        self.action = self.action.take().or_else(|| report.action.clone());
        self.sidecar_work.holds(report.held.as_ref());
        if let Some(told) = &mut self.supervisor {
            told.work.held = Some(report.held.clone());
        }
        self.program = Some((now, report));
    }

    /// The program asked something, or said what it does.
    pub fn asked(&mut self, action: Option<String>) {
        if action.is_some() {
            self.action.clone_from(&action);
        }
        self.activity = Some(action.or_else(|| self.activity.take().flatten()));
    }

    /// The program calls a model, or hears from one.
    pub fn called(&mut self, calls: ModelCalls) {
        let untold = self.called.as_ref().and_then(|before| before.answered);
        self.called = Some(ModelCalls { answered: untold.or(calls.answered), ..calls });
        self.asked(None);
    }

    /// The state of the breaker of commands.
    pub fn breaker(&mut self, state: BreakerState) {
        self.breaker = state;
    }

    /// What the breaker of commands counted.
    pub fn commands(&mut self, counts: CommandCounts) {
        self.commands = counts;
    }

    /// The sidecar's state of work, to which the results of its calls are told.
    pub fn sidecar_work(&mut self) -> &mut SidecarWork {
        &mut self.sidecar_work
    }

    fn run(&self) -> Option<Run> {
        Some(self.settings.as_ref()?.work.as_ref()?.run)
    }

    /// The supervisor says how an item ended. What the program said it does was about that.
    pub fn finished(&mut self, held: LeaseRef, outcome: Outcome) {
        (self.action, self.activity) = (None, None);
        self.sidecar_work.finished(held, outcome);
    }

    /// The program asks for an item. It is answered at once, or by its number.
    pub fn next(&mut self, now: BootTime, number: u64, wait_seconds: u32) -> Option<Answer> {
        let run = self.run();
        // Who asks for none, or works from no queue, is told that first.
        let early = self.preflight().filter(|_| run == Some(Run::LongRunning));
        early.map(Answer::Refused).or_else(|| self.sidecar_work.next(now, number, wait_seconds, run))
    }

    /// The program says how its item ended. It is answered at once, or by its number.
    pub fn say(&mut self, now: BootTime, number: u64, outcome: Outcome) -> Option<Answer> {
        let run = self.run();
        self.sidecar_work.say(now, number, outcome, run)
    }

    /// The program says how far it is.
    pub fn progress(&mut self, progress: &Progress) {
        self.sidecar_work.progress(progress);
        let action = &progress.action;
        self.asked(Some(action.clone()).filter(|action| !action.is_empty()));
    }

    /// This process is asked to end: it takes nothing new.
    pub fn leave(&mut self, now: BootTime) {
        self.leaving = true;
        self.sidecar_work.hurry(now);
    }

    /// Nothing is left that a gateway has to know, as far as anybody can still say it.
    pub fn all_told(&self, now: BootTime) -> bool {
        self.sidecar_work.is_quiet(self.supervisor.is_some()) && (!self.let_start || self.all_reported(now))
    }

    /// Notices up to this one were written for the program.
    pub fn notices_seen(&mut self, id: u64) {
        if let Some((_, report)) = &mut self.program {
            report.notices_seen = report.notices_seen.max(id);
        }
    }

    /// Nothing of the program is left.
    pub fn ended(&mut self, now: BootTime) {
        if let Some(mut report) = self.report(now) {
            report.program = Program::Ended;
            self.program = Some((now, report));
        }
    }

    /// Somebody answers, as far as the last call knows.
    pub fn in_touch(&self) -> bool {
        self.registered && self.unanswered == 0 && self.lane.failures == 0
    }

    /// This process is registered.
    pub fn is_registered(&self) -> bool {
        self.registered
    }

    /// The program was let start.
    pub fn was_let_start(&self) -> bool {
        self.let_start
    }

    /// The supervisor is connected.
    pub fn is_connected(&self) -> bool {
        self.supervisor.is_some()
    }

    /// What is wanted, as far as anybody said.
    pub fn current(&self) -> DesiredState {
        self.settings.as_ref().map(|settings| settings.wanted.clone()).unwrap_or_default()
    }

    /// The revision to wait beyond, once registered.
    pub fn revision(&self) -> Option<String> {
        self.registered.then(|| self.current().revision)
    }

    /// When somebody last answered.
    pub fn heard(&self) -> BootTime {
        self.heard
    }

    /// The notices that are remembered, the oldest first.
    pub fn notices(&self) -> Vec<Notice> {
        self.notices.iter().cloned().collect()
    }
}

/// A leader that has just begun may not know how breakers stand. Nothing said is nothing changed.
fn keep_breakers(wanted: &mut DesiredState, before: &DesiredState) {
    if wanted.commands.is_none() {
        wanted.commands.clone_from(&before.commands);
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
