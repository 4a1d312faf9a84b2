//! The next actions of the sidecar, from its state: orders to the supervisor, tests of the canary, calls. It takes no input.

use std::time::Duration;

use spillway_wire::agent::{DesiredState, Directive, Preflight, PreflightState};
use spillway_wire::link::Order;
use spillway_wire::{Code, Refusal};

use super::report::UrgentParts;
use super::{DISMISSAL_TIMEOUT, End, Link, MIN_ACTIVITY_INTERVAL, MIN_DISMISSALS, MIN_UNANSWERED_CALLS};
use crate::clock::BootTime;
use crate::link::action::Action;
use crate::link::work;

impl Link {
    /// The actions that are due now, and when to plan again at the latest.
    pub fn plan(&mut self, now: BootTime) -> (Vec<Action>, BootTime) {
        let mut actions = Vec::new();
        let mut wake = now.after(Duration::from_secs(60));
        self.judge(now, &mut wake);
        self.tell(&mut actions);
        self.plan_work(now, &mut actions, &mut wake);
        self.tell_activity(now, &mut actions, &mut wake);
        self.plan_probe(now, &mut actions, &mut wake);
        self.plan_call(now, &mut actions, &mut wake);
        (actions, wake)
    }

    /// Decides whether the program must end, by time alone.
    fn judge(&mut self, now: BootTime, wake: &mut BootTime) {
        let Some(settings) = &self.settings else { return };
        let silence = Duration::from_secs(settings.heartbeat_timeout_seconds.max(1).into());
        let over = self.last_answer.after(silence);
        if now < over {
            *wake = over.min(*wake);
        } else if self.unanswered >= MIN_UNANSWERED_CALLS {
            self.end.get_or_insert(End::Abandoned);
        }
        if let Some(said) = &self.dismissal {
            let stands = said.first.after(DISMISSAL_TIMEOUT);
            if said.count >= MIN_DISMISSALS || now >= stands {
                self.end.get_or_insert(End::Dismissed);
            } else {
                *wake = stands.min(*wake);
            }
        }
    }

    /// Plans the orders that the supervisor has not got on this connection.
    fn tell(&mut self, actions: &mut Vec<Action>) {
        let may_start = self.may_start();
        let (Some(told), Some(settings)) = (&mut self.supervisor, &self.settings) else { return };
        if may_start && !told.start {
            if !self.let_start {
                self.let_start = true;
                actions.push(Action::RememberStart);
            }
            told.start = true;
            told.revision = Some(settings.wanted.revision.clone());
            actions.push(Action::Tell(Order::Start(Box::new(settings.clone()))));
        }
        if self.registered && told.revision.as_ref() != Some(&settings.wanted.revision) {
            told.revision = Some(settings.wanted.revision.clone());
            actions.push(Action::Tell(Order::Wanted(settings.wanted.clone())));
        }
        if let (Some(end), false) = (&self.end, told.end) {
            told.end = true;
            actions.push(Action::Tell(match end {
                End::Abandoned => Order::Abandoned,
                End::WallsDown(reachable) => Order::WallsDown(reachable.clone()),
                End::Dismissed => Order::Wanted(DesiredState { directive: Directive::Stop, ..settings.wanted.clone() }),
            }));
        }
    }

    /// Plans a note that the program asked something: at once, and then at most once a second.
    fn tell_activity(&mut self, now: BootTime, actions: &mut Vec<Action>, wake: &mut BootTime) {
        if self.activity.is_none() || self.supervisor.is_none() {
            return;
        }
        let due = self.activity_told.map_or(now, |told| told.after(MIN_ACTIVITY_INTERVAL));
        if now < due {
            *wake = due.min(*wake);
        } else if let Some(action) = self.activity.take() {
            self.activity_told = Some(now);
            actions.push(Action::Tell(Order::Activity { action, called: self.model_calls.clone() }));
            if let Some(called) = &mut self.model_calls {
                called.answered = None;
            }
        }
    }

    fn may_start(&self) -> bool {
        let wanted = self.settings.as_ref().is_some_and(|settings| match settings.wanted.directive {
            Directive::Run | Directive::Pause => true,
            Directive::Drain | Directive::Stop => false,
        });
        wanted && self.registered && self.isolation.in_force && self.end.is_none()
    }

    /// The refusal of work before the supervisor has reported that the preflight succeeded.
    pub(super) fn preflight(&self) -> Option<Refusal> {
        if self.settings.as_ref().is_none_or(|settings| settings.preflight_command.is_empty()) {
            return None;
        }
        let said = self.program.as_ref().and_then(|(_, report)| report.preflight.as_ref());
        let words = match said {
            Some(Preflight { state: PreflightState::Passed, message: _ }) => return None,
            Some(Preflight { state: PreflightState::Failed, message }) => format!("; {message}"),
            Some(Preflight { state: PreflightState::Pending, message: _ }) | None => String::new(),
        };
        let message = format!("no item is given before the preflight command (agent.preflightCommand) has succeeded{words}");
        Some(Refusal::new(Code::PreflightNotPassed, message))
    }

    fn plan_work(&mut self, now: BootTime, actions: &mut Vec<Action>, wake: &mut BootTime) {
        let preflight = self.preflight();
        let Some(settings) = &self.settings else { return };
        let Some(how) = &settings.work else { return };
        let directive = settings.wanted.directive;
        let ending = self.leaving || self.end.is_some();
        let give_back = match directive {
            _ if ending => Some("Drained"),
            _ if !self.registered => None, // the stored desired state may be old
            Directive::Run => None,
            Directive::Pause => Some("Paused"),
            Directive::Drain | Directive::Stop => Some("Drained"),
        };
        let facts = work::WorkFacts {
            how,
            registered: self.registered,
            may_claim: self.registered && self.isolation.in_force && directive == Directive::Run && !ending && preflight.is_none(),
            give_back,
            wanted: settings.wanted.item.as_ref(),
            supervisor: self.supervisor.as_mut().map(|told| (&mut told.work, told.start)),
        };
        self.sidecar_work.plan(now, facts, actions, wake);
    }

    fn plan_probe(&mut self, now: BootTime, actions: &mut Vec<Action>, wake: &mut BootTime) {
        let Some(settings) = &self.settings else { return };
        // Before the registration, an unreachable target may only mean that the network is not ready.
        if self.isolation.looking.is_some() || !(self.registered || self.let_start) {
            return;
        }
        if now >= self.isolation.next {
            self.isolation.looking = Some(self.registered);
            actions.push(Action::Probe(settings.canaries.clone()));
        } else {
            *wake = self.isolation.next.min(*wake);
        }
    }

    fn plan_call(&mut self, now: BootTime, actions: &mut Vec<Action>, wake: &mut BootTime) {
        if self.lane.busy {
            return;
        }
        let (due, report) = if self.registered {
            let Some(report) = self.report(now) else { return };
            (self.report_due(&report), Some(report))
        } else {
            (self.lane.not_before, None)
        };
        let due = due.max(self.lane.not_before);
        if now < due {
            *wake = due.min(*wake);
            return;
        }
        self.lane.busy = true;
        actions.push(match report {
            Some(report) => {
                self.sent = Some((now, UrgentParts::of(&report)));
                Action::Report(report)
            }
            None => Action::Register,
        });
    }
}
