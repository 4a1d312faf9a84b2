//! The life of the program, as its supervisor decides it. Pure: events and the time come in, actions go out.
//!
//! What always holds: the program is started once (or for each item, which is [`item`](super::item)'s to say), and only on
//! the sidecar's word; whatever ends it ends everything else in the container too, gently first and then not; the supervisor
//! leaves last. Nothing that is away (sidecar, gateway,
//! controller) ends a program by itself.

use std::time::Duration;

use spillway_wire::agent::{Directive, Run, Settings};
use spillway_wire::link::Order;

use crate::FAIL_CLOSED_EXIT_CODE;
use crate::clock::BootTime;

/// The grace before anybody said another.
const DEFAULT_GRACE: Duration = Duration::from_secs(15);
/// So much of the grace is ours: who counts it kills us at its end.
const GRACE_MARGIN: Duration = Duration::from_secs(1);
/// From being asked to being killed: of what the program leaves behind, and of a program that has to go now.
const SHORT_KILL_GRACE: Duration = Duration::from_secs(2);
/// How long killing is tried.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two kills of everything.
const KILL_INTERVAL: Duration = Duration::from_millis(50);
/// 128 and the number of SIGTERM.
const SIGTERM_EXIT_CODE: u8 = 143;
/// 128 and the number of SIGKILL.
const SIGKILL_EXIT_CODE: u8 = 137;

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// The sidecar says.
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

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start the program.
    Start,
    /// Run this before the program is asked to end.
    DrainHook(Vec<String>),
    /// Ask everything to end.
    AskAll,
    /// Kill everything.
    KillAll,
    /// Say why, and leave with this exit code.
    Leave(u8),
    /// Tell people.
    Say(String),
}

/// Where the program is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waiting,
    Running,
    /// The program is run for each item; whether it is just now.
    Serving {
        busy: bool,
    },
    /// The drain hook runs, until this at most.
    Draining {
        until: BootTime,
        kill_at: BootTime,
    },
    /// Everything was asked to end.
    Asked {
        kill_at: BootTime,
    },
    /// Everything is being killed.
    Killing {
        again: BootTime,
        give_up: BootTime,
    },
    Over,
}

/// The supervisor's mind.
#[derive(Clone, Debug)]
pub struct Life {
    stage: Stage,
    grace: Duration,
    drain_hook: Vec<String>,
    /// The program's exit code, once it ended.
    code: Option<u8>,
    /// The code to leave with whatever the program's was.
    closed: bool,
    /// SIGTERM came before.
    terminated: bool,
    /// The code to leave with if no program gives another.
    own: u8,
}

impl Default for Life {
    fn default() -> Self {
        Self {
            stage: Stage::Waiting,
            grace: DEFAULT_GRACE,
            drain_hook: Vec::new(),
            code: None,
            closed: false,
            terminated: false,
            own: SIGKILL_EXIT_CODE,
        }
    }
}

impl Life {
    /// Takes what happened; says what is to be done.
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
            // A hook may have been all that was left.
            Event::Empty => match self.stage {
                Stage::Draining { .. } | Stage::Asked { .. } | Stage::Killing { .. } => self.leave(&mut actions),
                Stage::Waiting | Stage::Running | Stage::Serving { .. } | Stage::Over => {}
            },
            Event::Tick => {}
        }
        self.pass(now, &mut actions);
        actions
    }

    /// When to say [`Event::Tick`] at the latest.
    pub fn wake(&self) -> Option<BootTime> {
        match self.stage {
            Stage::Waiting | Stage::Running | Stage::Serving { .. } | Stage::Over => None,
            Stage::Draining { until, kill_at } => Some(until.min(kill_at)),
            Stage::Asked { kill_at } => Some(kill_at),
            Stage::Killing { again, give_up } => Some(again.min(give_up)),
        }
    }

    /// The program is being ended: only then it matters that nothing is left.
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
                // A drain is a notice: the pod's own end follows, by SIGTERM.
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
            Order::Key(_) | Order::Activity { .. } | Order::Item(_) | Order::Said(..) | Order::Settled(_) => {}
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

    /// Told to end now.
    fn stop(&mut self, now: BootTime, actions: &mut Vec<Action>) {
        if self.stage == Stage::Waiting {
            actions.push(Action::Say("the program is not started: the agent's directive is stop".into()));
            self.closed = true;
            return self.leave(actions);
        }
        if matches!(self.stage, Stage::Running | Stage::Serving { .. }) {
            actions.push(Action::Say("the program is ended: the agent's directive is stop".into()));
        }
        self.end(now, Some(now.after(SHORT_KILL_GRACE / 2)), now.after(SHORT_KILL_GRACE), actions);
    }

    /// The program must not run, or not any more.
    fn close(&mut self, now: BootTime, why: &str, (hook, kill_at): (Option<BootTime>, BootTime), actions: &mut Vec<Action>) {
        if self.stage == Stage::Over {
            return;
        }
        self.closed = true;
        if self.stage == Stage::Waiting {
            actions.push(Action::Say(format!("the program is not started: {why}")));
            return self.leave(actions);
        }
        actions.push(Action::Say(format!("the program is ended: {why}")));
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

    /// Until when the hook may run, and when everything is killed, if the pod's grace began now.
    fn deadlines(&self, now: BootTime) -> (Option<BootTime>, BootTime) {
        let kill_at = now.after(self.grace.saturating_sub(GRACE_MARGIN.min(self.grace / 2)));
        (Some(now.after(self.grace / 2).min(kill_at)), kill_at)
    }

    /// Begins to end, or hastens it. Nothing makes an end that has begun take longer.
    fn end(&mut self, now: BootTime, hook: Option<BootTime>, kill_at: BootTime, actions: &mut Vec<Action>) {
        match self.stage {
            Stage::Waiting => self.leave(actions),
            // There is nobody whom a hook could help, and no program whose code could be given.
            Stage::Serving { busy: false } => {
                self.own = SIGTERM_EXIT_CODE;
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

    /// What follows from time alone.
    fn pass(&mut self, now: BootTime, actions: &mut Vec<Action>) {
        match self.stage {
            Stage::Draining { until, kill_at } if now >= until => {
                self.ask(kill_at, actions);
                self.pass(now, actions);
            }
            Stage::Asked { kill_at } if now >= kill_at => self.kill(now, actions),
            Stage::Killing { give_up, .. } if now >= give_up => {
                actions.push(Action::Say("some processes in the container could not be killed".into()));
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
        let own = self.code.unwrap_or(if unstarted { SIGTERM_EXIT_CODE } else { self.own });
        actions.push(Action::Leave(if self.closed { FAIL_CLOSED_EXIT_CODE } else { own }));
    }
}

#[cfg(test)]
#[path = "life_tests.rs"]
mod tests;
