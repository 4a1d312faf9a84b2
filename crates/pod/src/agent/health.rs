//! The health of the program, as the supervisor reports it. Pure.
//!
//! What always holds: the frozen time ends only when the program was seen to run again, and silence ends only with an action
//! of the program.

use std::time::Duration;

use spillway_wire::agent::{Program, Report};

use crate::clock::{BootTime, millis};

/// How long a terminal counts as attached after its last use.
const TERMINAL_ATTACHED_TTL: Duration = Duration::from_secs(60);

/// The health of the program.
#[derive(Clone, Debug)]
pub struct Health {
    program: Program,
    active: BootTime,
    frozen: Option<BootTime>,
    terminal: Option<BootTime>,
    action: Option<String>,
    notices_seen: u64,
}

impl Health {
    /// Before the program was started.
    pub fn new(now: BootTime) -> Self {
        Self { program: Program::Waiting, active: now, frozen: None, terminal: None, action: None, notices_seen: 0 }
    }

    /// The program was started.
    pub fn started(&mut self, now: BootTime) {
        self.program = Program::Running;
        self.active = now;
    }

    /// The program ended, for good.
    pub fn ended(&mut self) {
        self.program = Program::Ended;
    }

    /// The program ended, and is run again for the next item.
    pub fn mark_waiting(&mut self) {
        (self.program, self.frozen) = (Program::Waiting, None);
    }

    /// The program was seen stopped by a signal, or not stopped.
    pub fn frozen(&mut self, now: BootTime, frozen: bool) {
        match (self.program, frozen) {
            (Program::Running | Program::Frozen, true) => {
                self.frozen.get_or_insert(now);
                self.program = Program::Frozen;
            }
            (Program::Running | Program::Frozen, false) => {
                self.frozen = None;
                self.program = Program::Running;
            }
            (Program::Waiting | Program::Ended, _) => {}
        }
    }

    /// The program was active at this time.
    pub fn note_activity(&mut self, at: BootTime) {
        self.active = self.active.max(at);
    }

    /// The current action of the program. `None`: the last action was about an item that ended.
    pub fn action(&mut self, action: Option<String>) {
        self.action = action;
    }

    /// A person used the terminal at this time.
    pub fn terminal(&mut self, at: BootTime) {
        self.terminal = self.terminal.max(Some(at));
        self.note_activity(at);
    }

    /// Notices up to this number were written for the program.
    pub fn notices_seen(&mut self, id: u64) {
        self.notices_seen = self.notices_seen.max(id);
    }

    /// The highest number of a written notice.
    pub fn last_written_notice(&self) -> u64 {
        self.notices_seen
    }

    /// When the program was last active.
    pub fn last_active(&self) -> BootTime {
        self.active
    }

    /// The report, now.
    pub fn report(&self, now: BootTime) -> Report {
        // The supervisor fills in what its other parts know, and the sidecar what it knows.
        Report {
            silent_ms: if self.program == Program::Waiting { 0 } else { millis(now.since(self.active)) },
            frozen_ms: self.frozen.map_or(0, |since| millis(now.since(since))),
            action: self.action.clone(),
            attached: self.terminal.is_some_and(|used| now.since(used) < TERMINAL_ATTACHED_TTL),
            notices_seen: self.notices_seen,
            ..Report::of(self.program)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> BootTime {
        BootTime::from_millis(seconds * 1000)
    }

    #[test]
    fn frozen_time_does_not_reset_by_itself() {
        let mut health = Health::new(at(0));
        health.frozen(at(1), true);
        assert_eq!(health.report(at(2)).program, Program::Waiting, "what was not started cannot be frozen");
        health.started(at(10));
        for second in 11..20 {
            health.frozen(at(second), true);
            health.note_activity(at(second)); // a child's output is no life of a frozen program
        }
        let report = health.report(at(20));
        assert_eq!((report.program, report.frozen_ms), (Program::Frozen, 9_000));
        health.frozen(at(21), false);
        let report = health.report(at(21));
        assert_eq!((report.program, report.frozen_ms), (Program::Running, 0));
        health.ended();
        health.frozen(at(22), true);
        assert_eq!(health.report(at(22)).program, Program::Ended);
    }

    #[test]
    fn between_two_items_nothing_is_silent_or_frozen() {
        let mut health = Health::new(at(0));
        health.started(at(10));
        health.frozen(at(20), true);
        health.mark_waiting();
        health.frozen(at(25), true);
        let report = health.report(at(30));
        assert_eq!((report.program, report.silent_ms, report.frozen_ms), (Program::Waiting, 0, 0));
        health.started(at(40));
        let report = health.report(at(41));
        assert_eq!((report.program, report.silent_ms, report.frozen_ms), (Program::Running, 1_000, 0), "its start is activity");
    }

    #[test]
    fn silence_counts_from_the_last_that_was_seen() {
        let mut health = Health::new(at(0));
        assert_eq!(health.report(at(50)).silent_ms, 0, "nothing runs, so nothing is silent");
        health.started(at(50));
        health.note_activity(at(60));
        health.note_activity(at(55));
        assert_eq!(health.report(at(63)).silent_ms, 3_000);
        health.terminal(at(100));
        let report = health.report(at(101));
        assert!(report.attached && report.silent_ms == 1_000);
        assert!(!health.report(at(160)).attached);
    }
}
