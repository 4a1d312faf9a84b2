//! The life of the program, as its supervisor decides it. Pure: events and the time come in, actions go out.
//!
//! What always holds: the program is started only after an order of the sidecar, and once (or for each item, as
//! [`item`](super::item) decides). When the program ends, all other processes in the container are ended too, first by SIGTERM
//! and then by SIGKILL. The supervisor exits last. An absent sidecar, gateway or controller alone ends no program.

use std::time::Duration;

use spillway_wire::agent::{Directive, Run, Settings};
use spillway_wire::link::Order;

use crate::FAIL_CLOSED_EXIT_CODE;
use crate::clock::BootTime;

/// The grace period before the settings are known.
const DEFAULT_GRACE: Duration = Duration::from_secs(15);
/// The part of the grace period that is left for our own exit, because the kubelet kills us at its end.
const GRACE_MARGIN: Duration = Duration::from_secs(1);
/// From SIGTERM to SIGKILL, for processes that the program leaves behind, and for a program that must end now.
const SHORT_KILL_GRACE: Duration = Duration::from_secs(2);
/// How long SIGKILL is tried.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two rounds of SIGKILL to all processes.
const KILL_INTERVAL: Duration = Duration::from_millis(50);
/// 128 plus the number of SIGTERM.
const SIGTERM_EXIT_CODE: u8 = 143;
/// 128 plus the number of SIGKILL.
const SIGKILL_EXIT_CODE: u8 = 137;

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// The sidecar sent an order.
    Order(Order),
    /// SIGTERM: the pod is being ended.
    Terminate,
    /// The program could not be started.
    NotStarted(u8),
    /// The program ended, with this exit code.
    Ended(u8),
    /// The drain hook ended.
    HookEnded,
    /// No process is left but the supervisor.
    Empty,
    /// Time passed.
    Tick,
}

/// An action for the supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start the program.
    Start,
    /// Run this command before the program is asked to end.
    DrainHook(Vec<String>),
    /// Ask all processes to end.
    AskAll,
    /// Kill all processes.
    KillAll,
    /// Report the end, and exit with this code.
    Leave(u8),
    /// Log this line.
    Log(String),
}

/// The stage of the program's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waiting,
    Running,
    /// The program runs for each item; whether it runs now.
    Serving {
        busy: bool,
    },
    /// The drain hook runs, at most until `until`.
    Draining {
        until: BootTime,
        kill_at: BootTime,
    },
    /// All processes were asked to end.
    Asked {
        kill_at: BootTime,
    },
    /// All processes are being killed.
    Killing {
        again: BootTime,
        give_up: BootTime,
    },
    Over,
}

/// The state of the program's life.
#[derive(Clone, Debug)]
pub struct Life {
    stage: Stage,
    grace: Duration,
    drain_hook: Vec<String>,
    /// The program's exit code, once it has ended.
    code: Option<u8>,
    /// The pod fails closed: the exit code does not depend on the program's.
    failed_closed: bool,
    /// SIGTERM has come already.
    terminated: bool,
    /// The exit code if no program gives another.
    default_code: u8,
}

impl Default for Life {
    fn default() -> Self {
        Self {
            stage: Stage::Waiting,
            grace: DEFAULT_GRACE,
            drain_hook: Vec::new(),
            code: None,
            failed_closed: false,
            terminated: false,
            default_code: SIGKILL_EXIT_CODE,
        }
    }
}

impl Life {
    /// Takes an event; returns the actions.
    pub fn on(&mut self, now: BootTime, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Order(order) => self.on_order(now, order, &mut actions),
            Event::Terminate => self.on_terminate(now, &mut actions),
            Event::NotStarted(code) => {
                self.code = Some(code);
                self.leave(&mut actions);
            }
            Event::Ended(code) => match self.stage {
                Stage::Serving { .. } => self.stage = Stage::Serving { busy: false },
                Stage::Running => {
                    self.code = Some(code);
                    self.ask(now.after(SHORT_KILL_GRACE), &mut actions);
                }
                Stage::Waiting | Stage::Draining { .. } | Stage::Asked { .. } | Stage::Killing { .. } | Stage::Over => {
                    self.code = Some(code);
                }
            },
            Event::HookEnded => {
                if let Stage::Draining { kill_at, .. } = self.stage {
                    self.ask(kill_at, &mut actions);
                }
            }
            // A hook may have been the last process.
            Event::Empty => match self.stage {
                Stage::Draining { .. } | Stage::Asked { .. } | Stage::Killing { .. } => self.leave(&mut actions),
                Stage::Waiting | Stage::Running | Stage::Serving { .. } | Stage::Over => {}
            },
            Event::Tick => {}
        }
        self.handle_timeouts(now, &mut actions);
        actions
    }

    /// When [`Event::Tick`] must come at the latest.
    pub fn wake(&self) -> Option<BootTime> {
        match self.stage {
            Stage::Waiting | Stage::Running | Stage::Serving { .. } | Stage::Over => None,
            Stage::Draining { until, kill_at } => Some(until.min(kill_at)),
            Stage::Asked { kill_at } => Some(kill_at),
            Stage::Killing { again, give_up } => Some(again.min(give_up)),
        }
    }

    /// Whether the program is being ended. Only then [`Event::Empty`] matters.
    pub fn ending(&self) -> bool {
        match self.stage {
            Stage::Draining { .. } | Stage::Asked { .. } | Stage::Killing { .. } => true,
            Stage::Waiting | Stage::Running | Stage::Serving { .. } | Stage::Over => false,
        }
    }

    /// The program was started for an item.
    pub fn busy(&mut self) {
        if let Stage::Serving { busy } = &mut self.stage {
            *busy = true;
        }
    }

    fn on_order(&mut self, now: BootTime, order: Order, actions: &mut Vec<Action>) {
        match order {
            Order::Start(settings) => self.start(*settings, actions),
            Order::Wanted(wanted) => match wanted.directive {
                Directive::Stop => self.stop(now, actions),
                // A drain causes only a notice: the deletion of the pod follows, with SIGTERM.
                Directive::Run | Directive::Pause | Directive::Drain => {}
            },
            Order::Abandoned => {
                let why = "no gateway has answered for longer than the pool's heartbeatTimeoutSeconds";
                self.close(now, why, self.deadlines(now), actions);
            }
            Order::WallsDown(reachable) => {
                let why = format!("the network is not isolated: {} can be reached", reachable.join(", "));
                self.close(now, &why, (None, now.after(SHORT_KILL_GRACE)), actions);
            }
            Order::Key(_) | Order::Activity { .. } | Order::Item(_) | Order::Said(..) | Order::Settled(_) | Order::CommitNamed(_) => {}
        }
    }

    fn start(&mut self, settings: Settings, actions: &mut Vec<Action>) {
        self.grace = Duration::from_secs(settings.goodbye_timeout_seconds.into());
        self.drain_hook = settings.drain_hook;
        if self.stage != Stage::Waiting {
            return;
        }
        if settings.work.is_some_and(|work| work.run == Run::PerItem) {
            self.stage = Stage::Serving { busy: false };
        } else {
            self.stage = Stage::Running;
            actions.push(Action::Start);
        }
    }

    /// Ends the program now, by the directive `stop`.
    fn stop(&mut self, now: BootTime, actions: &mut Vec<Action>) {
        if self.stage == Stage::Waiting {
            actions.push(Action::Log("the program is not started: the agent's directive is stop".into()));
            self.failed_closed = true;
            return self.leave(actions);
        }
        if matches!(self.stage, Stage::Running | Stage::Serving { .. }) {
            actions.push(Action::Log("the program is ended: the agent's directive is stop".into()));
        }
        self.end(now, Some(now.after(SHORT_KILL_GRACE / 2)), now.after(SHORT_KILL_GRACE), actions);
    }

    /// Fails closed: the program is not started, or is ended.
    fn close(&mut self, now: BootTime, why: &str, (hook, kill_at): (Option<BootTime>, BootTime), actions: &mut Vec<Action>) {
        if self.stage == Stage::Over {
            return;
        }
        self.failed_closed = true;
        if self.stage == Stage::Waiting {
            actions.push(Action::Log(format!("the program is not started: {why}")));
            return self.leave(actions);
        }
        actions.push(Action::Log(format!("the program is ended: {why}")));
        self.end(now, hook, kill_at, actions);
    }

    fn on_terminate(&mut self, now: BootTime, actions: &mut Vec<Action>) {
        let again = std::mem::replace(&mut self.terminated, true);
        match self.stage {
            Stage::Waiting => self.leave(actions),
            Stage::Draining { kill_at, .. } if again => self.ask(kill_at, actions),
            Stage::Asked { .. } if again => self.kill(now, actions),
            Stage::Running | Stage::Serving { .. } | Stage::Draining { .. } | Stage::Asked { .. } | Stage::Killing { .. } | Stage::Over => {
                let (hook, kill_at) = self.deadlines(now);
                self.end(now, hook, kill_at, actions);
            }
        }
    }

    /// Until when the hook may run, and when all processes are killed, if the grace period begins now.
    fn deadlines(&self, now: BootTime) -> (Option<BootTime>, BootTime) {
        let kill_at = now.after(self.grace.saturating_sub(GRACE_MARGIN.min(self.grace / 2)));
        (Some(now.after(self.grace / 2).min(kill_at)), kill_at)
    }

    /// Begins the end, or brings it forward. An end that has begun is never delayed.
    fn end(&mut self, now: BootTime, hook: Option<BootTime>, kill_at: BootTime, actions: &mut Vec<Action>) {
        match self.stage {
            Stage::Waiting => self.leave(actions),
            // No program runs: the hook is not needed, and there is no exit code of a program.
            Stage::Serving { busy: false } => {
                self.default_code = SIGTERM_EXIT_CODE;
                self.ask(kill_at, actions);
            }
            Stage::Running | Stage::Serving { busy: true } => match hook {
                Some(until) if !self.drain_hook.is_empty() => {
                    self.stage = Stage::Draining { until, kill_at };
                    actions.push(Action::DrainHook(self.drain_hook.clone()));
                }
                Some(_) | None => self.ask(kill_at, actions),
            },
            Stage::Draining { until, kill_at: before } => {
                let until = hook.unwrap_or(now).min(until);
                self.stage = Stage::Draining { until, kill_at: kill_at.min(before) };
            }
            Stage::Asked { kill_at: before } => self.stage = Stage::Asked { kill_at: kill_at.min(before) },
            Stage::Killing { .. } | Stage::Over => {}
        }
    }

    fn ask(&mut self, kill_at: BootTime, actions: &mut Vec<Action>) {
        self.stage = Stage::Asked { kill_at };
        actions.push(Action::AskAll);
    }

    fn kill(&mut self, now: BootTime, actions: &mut Vec<Action>) {
        self.stage = Stage::Killing { again: now.after(KILL_INTERVAL), give_up: now.after(KILL_TIMEOUT) };
        actions.push(Action::KillAll);
    }

    /// Takes the actions that are due by time alone.
    fn handle_timeouts(&mut self, now: BootTime, actions: &mut Vec<Action>) {
        match self.stage {
            Stage::Draining { until, kill_at } if now >= until => {
                self.ask(kill_at, actions);
                self.handle_timeouts(now, actions);
            }
            Stage::Asked { kill_at } if now >= kill_at => self.kill(now, actions),
            Stage::Killing { give_up, .. } if now >= give_up => {
                actions.push(Action::Log("some processes in the container could not be killed".into()));
                self.leave(actions);
            }
            Stage::Killing { again, give_up } if now >= again => {
                self.stage = Stage::Killing { again: now.after(KILL_INTERVAL), give_up };
                actions.push(Action::KillAll);
            }
            Stage::Waiting
            | Stage::Running
            | Stage::Serving { .. }
            | Stage::Draining { .. }
            | Stage::Asked { .. }
            | Stage::Killing { .. }
            | Stage::Over => {}
        }
    }

    fn leave(&mut self, actions: &mut Vec<Action>) {
        let unstarted = self.stage == Stage::Waiting;
        self.stage = Stage::Over;
        let own = self.code.unwrap_or(if unstarted { SIGTERM_EXIT_CODE } else { self.default_code });
        actions.push(Action::Leave(if self.failed_closed { FAIL_CLOSED_EXIT_CODE } else { own }));
    }
}

#[cfg(test)]
#[path = "life_tests.rs"]
mod tests;
