//! The state of the sidecar, and its decisions. Pure: the time and random numbers are arguments, and actions are the result.
//!
//! What always holds: the program may start only after the gateway has answered a registration of this process and, after that,
//! a test of the canary has reached no address. An order to end is never taken back. The supervisor always gets a whole state, so
//! that a lost connection loses nothing.

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

/// The least time between two reports.
const MIN_REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// The least time between two notes about the program's questions, of which it can ask thousands.
const MIN_ACTIVITY_INTERVAL: Duration = Duration::from_secs(1);
/// Between two tests of the canary after one that reached an address.
const EGRESS_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Tests of the canary in a row that reach an address, before a running program is ended.
const OPEN_EGRESS_THRESHOLD: u32 = 2;
/// The answer "this is no agent" ends the program after this many times ...
const MIN_DISMISSALS: u32 = 3;
/// ... with at least this time between two that count (a new leader or a late cache may say so for a moment) ...
const MIN_DISMISSAL_INTERVAL: Duration = Duration::from_secs(5);
/// ... or after this time without an accepted call.
const DISMISSAL_TIMEOUT: Duration = Duration::from_secs(60);
/// Calls in a row without an answer, before silence counts: a machine that slept must call first.
const MIN_UNANSWERED_CALLS: u32 = 3;
/// Notices that are kept for the program's questions.
const MAX_REMEMBERED_NOTICES: usize = 64;
/// The most targets in a report, and the most characters of each.
const REACHABLE_BOUNDS: (usize, usize) = (16, 260);

/// Why the program must end.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    /// No gateway has answered for too long.
    Abandoned,
    /// The network is not isolated: the reached addresses.
    WallsDown(Vec<String>),
    /// The gateway says that this is no agent, or no longer one.
    Dismissed,
}

/// What the supervisor got on its current connection.
#[derive(Clone, Debug, Default)]
struct ToldSupervisor {
    start: bool,
    revision: Option<String>,
    end: bool,
    work: work::SupervisorView,
}

/// The isolation of the network, as the canary sees it.
#[derive(Clone, Debug)]
struct IsolationState {
    /// A test is under way; whether we were registered when it began.
    looking: Option<bool>,
    next: BootTime,
    /// Tests in a row that reached an address.
    open: u32,
    reachable: Vec<String>,
    /// A test that began after the registration reached no address, and no later test reached one.
    in_force: bool,
}

/// The calls `register` and `report`, one at a time.
#[derive(Clone, Debug)]
struct Lane {
    busy: bool,
    failures: u32,
    not_before: BootTime,
}
/// The answers "this is no agent".
#[derive(Clone, Copy, Debug)]
struct Dismissal {
    first: BootTime,
    counted: BootTime,
    count: u32,
}

/// The state of the sidecar.
#[derive(Clone, Debug)]
pub struct Link {
    /// Between two tests of the canary while the isolation is in force.
    look_each: Duration,
    settings: Option<Settings>,
    registered: bool,
    lane: Lane,
    last_answer: BootTime,
    /// Calls in a row, of any kind, without an answer.
    unanswered: u32,
    dismissal: Option<Dismissal>,
    isolation: IsolationState,
    program: Option<(BootTime, Report)>,
    action: Option<String>,
    let_start: bool,
    sent: Option<(BootTime, UrgentParts)>,
    acknowledged: Option<UrgentParts>,
    supervisor: Option<ToldSupervisor>,
    end: Option<End>,
    notices: VecDeque<Notice>,
    /// When the supervisor last got a note that the program asked something, and the note that waits.
    activity_told: Option<BootTime>,
    activity: Option<Option<String>>,
    /// The model calls of the program.
    model_calls: Option<ModelCalls>,
    /// The counts and the state of the breaker of commands.
    commands: CommandCounts,
    breaker: BreakerState,
    sidecar_work: SidecarWork,
    /// This process is ending.
    leaving: bool,
}

impl Link {
    /// The state at the start, with the state that an earlier process kept.
    pub fn new(now: BootTime, look_each: Duration, remembered: KeptState) -> Self {
        let KeptState { settings, last_answer: heard, let_start, action, work } = remembered;
        let mut link = Self {
            look_each,
            settings,
            registered: false,
            lane: Lane { busy: false, failures: 0, not_before: now },
            last_answer: heard.unwrap_or(now).min(now),
            unanswered: 0,
            dismissal: None,
            isolation: IsolationState { looking: None, next: now, open: 0, reachable: Vec::new(), in_force: false },
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
            model_calls: None,
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

    /// A gateway answered a call, with any answer.
    pub fn note_answer(&mut self, now: BootTime) {
        self.last_answer = now;
        self.unanswered = 0;
    }

    /// A call got no answer.
    pub fn unanswered(&mut self) {
        self.unanswered = self.unanswered.saturating_add(1);
    }

    /// A gateway refused a call. Only a refusal that says that this is no agent changes the state.
    pub fn refused(&mut self, now: BootTime, code: Code) {
        // Before the first registration it only means that the gateway does not know us yet.
        if !matches!(code, Code::NotAnAgent | Code::AgentEnded) || self.settings.is_none() {
            return;
        }
        let said = self.dismissal.get_or_insert(Dismissal { first: now, counted: now, count: 1 });
        if now.since(said.counted) >= MIN_DISMISSAL_INTERVAL {
            said.counted = now;
            said.count += 1;
        }
    }

    /// A gateway accepted a call: this is an agent.
    pub fn accepted(&mut self) {
        self.dismissal = None;
    }

    /// The call `register` or `report` failed. `at_least` is the wait that the gateway asks for; `random` is in [0, 1).
    pub fn call_failed(&mut self, now: BootTime, at_least: Duration, random: f64) {
        self.lane.busy = false;
        self.lane.failures = self.lane.failures.saturating_add(1);
        let wait = backoff::delay(self.lane.failures, CALL_RETRY_BACKOFF.0, CALL_RETRY_BACKOFF.1, random);
        self.lane.not_before = now.after(wait.max(at_least));
    }

    /// The registration was answered.
    pub fn registered(&mut self, now: BootTime, mut settings: Settings) -> Action {
        // Whether the program runs once or for each item is fixed when it may start. A later change of the pool has no effect.
        let before = self.settings.as_ref().filter(|_| self.let_start).map(|before| &before.work);
        let run = |work: &Option<work::How>| work.as_ref().map(|work| work.run);
        if let Some(before) = before.filter(|before| run(before) != run(&settings.work)) {
            settings.work.clone_from(before);
        }
        // The preflight command is fixed then too.
        if let Some(before) = self.settings.as_ref().filter(|_| self.let_start) {
            settings.preflight_command.clone_from(&before.preflight_command);
            settings.preflight_seconds = before.preflight_seconds;
        }
        if let Some(before) = &self.settings {
            keep_breakers(&mut settings.wanted, &before.wanted);
        }
        self.lane = Lane { busy: false, failures: 0, not_before: now };
        self.registered = true;
        // An earlier test may have found a network that was not ready.
        self.isolation.next = now;
        self.note(&settings.wanted);
        self.settings = Some(settings.clone());
        Action::RememberSettings(Box::new(settings))
    }

    /// The report was answered.
    pub fn reported(&mut self, now: BootTime) {
        self.lane = Lane { busy: false, failures: 0, not_before: now };
        self.acknowledged = self.sent.as_ref().map(|(_, shown)| shown.clone());
    }

    /// Takes the desired state from a gateway.
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

    /// Keeps notices for the program's questions.
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

    /// A test of the canary is over; it reached `reachable`.
    pub fn probed(&mut self, now: BootTime, mut reachable: Vec<String>) {
        let registered = self.isolation.looking.take().unwrap_or(false);
        reachable.truncate(REACHABLE_BOUNDS.0);
        for target in &mut reachable {
            *target = target.chars().take(REACHABLE_BOUNDS.1).collect();
        }
        if reachable.is_empty() {
            self.isolation.open = 0;
            self.isolation.in_force |= registered;
            // A test from before the registration does not let the program start: the next one is due at once.
            self.isolation.next = if registered || !self.registered { now.after(self.look_each) } else { now };
        } else {
            self.isolation.open = self.isolation.open.saturating_add(1);
            self.isolation.in_force = false;
            self.isolation.next = now.after(EGRESS_CHECK_INTERVAL);
            if self.let_start && self.isolation.open >= OPEN_EGRESS_THRESHOLD {
                self.end.get_or_insert(End::WallsDown(reachable.clone()));
            }
        }
        self.isolation.reachable = reachable;
    }

    /// The supervisor connected.
    pub fn connected(&mut self) {
        self.supervisor = Some(ToldSupervisor::default());
    }

    /// The supervisor's connection has ended.
    pub fn disconnected(&mut self) {
        self.supervisor = None;
    }

    /// The supervisor reports the state of the program.
    pub fn on_program_report(&mut self, now: BootTime, report: Report) {
        self.action = self.action.take().or_else(|| report.action.clone());
        self.sidecar_work.on_supervisor_lease(report.held.as_ref());
        if let Some(told) = &mut self.supervisor {
            told.work.held = Some(report.held.clone());
        }
        self.program = Some((now, report));
    }

    /// The program asked something, or reported its action.
    pub fn note_question(&mut self, action: Option<String>) {
        if action.is_some() {
            self.action.clone_from(&action);
        }
        self.activity = Some(action.or_else(|| self.activity.take().flatten()));
    }

    /// The program called a model, or a part of an answer came.
    pub fn note_model_calls(&mut self, calls: ModelCalls) {
        let untold = self.model_calls.as_ref().and_then(|before| before.answered);
        self.model_calls = Some(ModelCalls { answered: untold.or(calls.answered), ..calls });
        self.note_question(None);
    }

    /// Takes the state of the breaker of commands.
    pub fn set_breaker_state(&mut self, state: BreakerState) {
        self.breaker = state;
    }

    /// Takes the counts of the breaker of commands.
    pub fn set_command_counts(&mut self, counts: CommandCounts) {
        self.commands = counts;
    }

    /// The state of work, which takes the results of its calls.
    pub fn sidecar_work(&mut self) -> &mut SidecarWork {
        &mut self.sidecar_work
    }

    fn run(&self) -> Option<Run> {
        Some(self.settings.as_ref()?.work.as_ref()?.run)
    }

    /// The supervisor reports the end of an item. The program's action belonged to that item.
    pub fn finished(&mut self, held: LeaseRef, outcome: Outcome) {
        (self.action, self.activity) = (None, None);
        self.sidecar_work.on_supervisor_end(held, outcome);
    }

    /// The program asks for an item. The answer comes at once, or later with this number.
    pub fn next(&mut self, now: BootTime, number: u64, wait_seconds: u32) -> Option<Answer> {
        let run = self.run();
        // A program that cannot ask, or whose pool has no queues, gets that refusal first.
        let early = self.preflight().filter(|_| run == Some(Run::LongRunning));
        early.map(Answer::Refused).or_else(|| self.sidecar_work.next(now, number, wait_seconds, run))
    }

    /// The program reports the end of its item. The answer comes at once, or later with this number.
    pub fn report_item_end(&mut self, now: BootTime, number: u64, outcome: Outcome) -> Option<Answer> {
        let run = self.run();
        self.sidecar_work.report_item_end(now, number, outcome, run)
    }

    /// The program reports its progress.
    pub fn progress(&mut self, progress: &Progress) {
        self.sidecar_work.progress(progress);
        let action = &progress.action;
        self.note_question(Some(action.clone()).filter(|action| !action.is_empty()));
    }

    /// This process must end: it claims no new item.
    pub fn leave(&mut self, now: BootTime) {
        self.leaving = true;
        self.sidecar_work.hurry(now);
    }

    /// Whether nothing is left to report to a gateway.
    pub fn all_told(&self, now: BootTime) -> bool {
        self.sidecar_work.is_quiet(self.supervisor.is_some()) && (!self.let_start || self.all_reported(now))
    }

    /// Notices up to this one were written for the program.
    pub fn notices_seen(&mut self, id: u64) {
        if let Some((_, report)) = &mut self.program {
            report.notices_seen = report.notices_seen.max(id);
        }
    }

    /// No process of the program is left.
    pub fn ended(&mut self, now: BootTime) {
        if let Some(mut report) = self.report(now) {
            report.program = Program::Ended;
            self.program = Some((now, report));
        }
    }

    /// Whether this process is registered and a gateway answered the last call.
    pub fn in_touch(&self) -> bool {
        self.registered && self.unanswered == 0 && self.lane.failures == 0
    }

    /// Whether this process is registered.
    pub fn is_registered(&self) -> bool {
        self.registered
    }

    /// Whether the program may start, or has started.
    pub fn was_let_start(&self) -> bool {
        self.let_start
    }

    /// Whether the supervisor is connected.
    pub fn is_connected(&self) -> bool {
        self.supervisor.is_some()
    }

    /// The last desired state.
    pub fn current(&self) -> DesiredState {
        self.settings.as_ref().map(|settings| settings.wanted.clone()).unwrap_or_default()
    }

    /// The known revision, after the registration.
    pub fn revision(&self) -> Option<String> {
        self.registered.then(|| self.current().revision)
    }

    /// When a gateway last answered.
    pub fn last_answer(&self) -> BootTime {
        self.last_answer
    }

    /// The kept notices, the oldest first.
    pub fn notices(&self) -> Vec<Notice> {
        self.notices.iter().cloned().collect()
    }
}

/// Keeps the earlier breakers if the desired state has none: a new leader may not know them yet.
fn keep_breakers(wanted: &mut DesiredState, before: &DesiredState) {
    if wanted.commands.is_none() {
        wanted.commands.clone_from(&before.commands);
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
