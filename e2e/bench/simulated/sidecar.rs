//! One simulated sidecar: carries out the actions that its state plans, as the loop of `link` does. It makes no token
//! and watches no pod.

use std::sync::Arc;
use std::time::{Duration, Instant};

use spillway_pod::clock::BootTime;
use spillway_pod::link::action::{Action, WorkAction};
use spillway_pod::link::calls;
use spillway_pod::link::gateway::{Answer, Call, Gateway, Silence};
use spillway_pod::link::input::{Input, WorkResult};
use spillway_pod::link::retry::is_final;
use spillway_pod::link::state::Link;
use spillway_pod::random;
use spillway_wire::agent::{DesiredState, Goodbye, Program, Report, Run, Settings};
use spillway_wire::link::{Control, Order};
use spillway_wire::work::{Assignment, LeaseRef, Outcome};
use tokio::sync::{mpsc, watch};

use super::{RESULT, Shared, lock};

/// The state of the loop of `link`.
pub(super) struct Sidecar {
    pub(super) shared: Arc<Shared>,
    pub(super) name: String,
    pub(super) state: Link,
    pub(super) gateway: Arc<Gateway>,
    pub(super) inputs: mpsc::Sender<Input>,
    pub(super) revision: watch::Sender<Option<String>>,
    pub(super) goodbye: watch::Sender<Option<Goodbye>>,
}

impl Sidecar {
    /// Carries out the actions that are due; the time until the next ones.
    pub(super) fn act(&mut self) -> Duration {
        let now = BootTime::now();
        let (actions, wake) = self.state.plan(now);
        let mut wake = wake.since(now);
        for action in actions {
            match action {
                Action::Register => self.call("register", calls::register(false), Input::Registered),
                Action::Report(report) => self.call("report", calls::report(&report), Input::Reported),
                Action::Probe(_) => {
                    self.state.probed(now, Vec::new());
                    wake = Duration::ZERO;
                }
                Action::Tell(order) => {
                    self.carry_out_order(now, order);
                    wake = Duration::ZERO;
                }
                Action::Work(action) => self.work(action),
                Action::RememberStart | Action::RememberSettings(_) => {}
            }
        }
        let revision = self.state.revision();
        self.revision.send_if_modified(|known| std::mem::replace(known, revision.clone()) != revision);
        wake.max(Duration::from_millis(1))
    }

    /// Carries out an order in the place of the supervisor.
    fn carry_out_order(&mut self, now: BootTime, order: Order) {
        match order {
            Order::Start(settings) => {
                let per_item = settings.work.as_ref().is_some_and(|work| work.run == Run::PerItem);
                self.state.on_program_report(now, Report::of(if per_item { Program::Waiting } else { Program::Running }));
            }
            Order::Item(assignment) => self.begin(now, &assignment),
            Order::Settled(_) => self.state.on_program_report(now, Report::of(Program::Waiting)),
            Order::Key(_)
            | Order::Wanted(_)
            | Order::Abandoned
            | Order::WallsDown(_)
            | Order::Activity { .. }
            | Order::Said(..)
            | Order::CommitNamed(_) => {}
        }
    }

    /// Runs the program for an item. After the set time the item is done.
    fn begin(&mut self, now: BootTime, assignment: &Assignment) {
        let held = assignment.held.clone();
        self.state.on_program_report(now, with_item(Program::Running, &held));
        let (inputs, think) = (self.inputs.clone(), self.shared.hands.work_time());
        tokio::spawn(async move {
            tokio::time::sleep(think).await;
            let finished = Control::Finished { held, outcome: Outcome::Complete { result: Some(RESULT.to_owned()), changeset: None } };
            let _ = inputs.send(Input::Control(0, finished)).await; // the sidecar may have ended
        });
    }

    fn work(&self, action: WorkAction) {
        let (shared, gateway, inputs) = (self.shared.clone(), self.gateway.clone(), self.inputs.clone());
        match action {
            WorkAction::Claim(wait) => {
                tokio::spawn(async move {
                    shared.hands.note_claim_start();
                    let result = gateway.call(&calls::claim(wait)).await;
                    shared.hands.note_claim(&result);
                    shared.sample("claim", None, &result);
                    let _ = inputs.send(Input::Work(WorkResult::Claimed(result))).await; // it has ended
                });
            }
            WorkAction::Finish(held, outcome) => {
                tokio::spawn(async move {
                    let began = Instant::now();
                    let result = gateway.call(&calls::finish(&held, &outcome)).await;
                    shared.hands.note_end(&held, &result);
                    shared.sample("finish", Some(began.elapsed()), &result);
                    let _ = inputs.send(Input::Work(WorkResult::Finished(held, result))).await; // it has ended
                });
            }
            // There is no journal, and no program that asks or reports.
            WorkAction::Remember(_) | WorkAction::Advance(..) | WorkAction::Answer(..) | WorkAction::Goodbye(_) | WorkAction::Say(_) => {}
        }
    }

    fn call(&self, what: &'static str, call: Call, as_input: fn(Result<Answer, Silence>) -> Input) {
        let (shared, gateway, inputs) = (self.shared.clone(), self.gateway.clone(), self.inputs.clone());
        tokio::spawn(async move {
            let began = Instant::now();
            let result = gateway.call(&call).await;
            shared.sample(what, Some(began.elapsed()), &result);
            let _ = inputs.send(as_input(result)).await; // it has ended
        });
    }

    pub(super) fn take(&mut self, input: Input) {
        let now = BootTime::now();
        match input {
            Input::Registered(result) => {
                self.note_answer(&result);
                match body::<Settings>(&result) {
                    Some(settings) => {
                        self.state.registered(now, settings);
                        self.shared.see(&self.name, |seen| seen.registered = seen.registered.or_else(|| Some(Instant::now())));
                    }
                    None => self.state.call_failed(now, calls::retry_after(&result), random::fraction()),
                }
            }
            Input::Reported(result) => {
                self.note_answer(&result);
                match &result {
                    Ok(Answer::Done(_) | Answer::Nothing) => {
                        self.state.reported(now);
                        self.take_wanted(&result);
                    }
                    Ok(Answer::Refused(_)) | Err(_) => {
                        self.state.call_failed(now, calls::retry_after(&result), random::fraction());
                    }
                }
            }
            Input::LongPolled(result) => {
                self.shared.sample("wanted", None, &result);
                self.note_answer(&result);
                self.take_wanted(&result);
            }
            Input::Delivered(goodbye, result) => {
                self.note_answer(&result);
                let said = lock(&self.shared.known).get(&self.name).and_then(|one| one.progress.said_goodbye);
                self.shared.sample("goodbye", said.map(|said| said.elapsed()), &result);
                let over = match &result {
                    Ok(Answer::Done(_) | Answer::Nothing) => true,
                    Ok(Answer::Refused(refusal)) => is_final(refusal.code),
                    Err(_) => false,
                };
                if over && self.goodbye.borrow().as_ref() == Some(&goodbye) {
                    self.goodbye.send_replace(None);
                }
            }
            Input::Control(_, Control::Finished { held, outcome }) => {
                self.state.on_program_report(now, with_item(Program::Waiting, &held));
                self.state.finished(held, outcome);
            }
            Input::Work(WorkResult::Claimed(result)) => {
                self.note_answer(&result);
                self.state.sidecar_work().on_claim_answer(
                    now,
                    calls::claim_outcome(&result),
                    calls::retry_after(&result),
                    random::fraction(),
                );
            }
            Input::Work(WorkResult::Finished(held, result)) => {
                self.note_answer(&result);
                self.state.sidecar_work().on_end_answer(now, &held, calls::taken(&result), calls::retry_after(&result), random::fraction());
            }
            // Simulated sidecars do not ask, probe, connect, report progress or run commands.
            Input::Carried(_)
            | Input::Probed(_)
            | Input::Candidate(_)
            | Input::Control(..)
            | Input::Gone(_)
            | Input::RequestForwarded
            | Input::Ask(..)
            | Input::Work(WorkResult::Advanced(..))
            | Input::ModelCalled(..)
            | Input::TryAnswered(..) => {}
        }
    }

    fn take_wanted(&mut self, result: &Result<Answer, Silence>) {
        if let Some(wanted) = body::<DesiredState>(result) {
            if wanted.commands.as_ref().is_some_and(|commands| commands.open_globally.is_some()) {
                self.shared.see(&self.name, |seen| seen.open = seen.open.or_else(|| Some(Instant::now())));
            }
            self.state.wanted(wanted);
        }
    }

    fn note_answer(&mut self, result: &Result<Answer, Silence>) {
        let now = BootTime::now();
        match result {
            Ok(Answer::Done(_) | Answer::Nothing) => {
                self.state.note_answer(now);
                self.state.accepted();
                self.shared.see(&self.name, |seen| seen.answered = seen.answered.or_else(|| Some(Instant::now())));
            }
            Ok(Answer::Refused(refusal)) => {
                self.state.note_answer(now);
                self.state.refused(now, refusal.code);
            }
            Err(_) => self.state.unanswered(),
        }
    }
}

/// The report of a program that has this item.
fn with_item(program: Program, held: &LeaseRef) -> Report {
    Report { held: Some(held.clone()), ..Report::of(program) }
}

fn body<T: serde::de::DeserializeOwned>(result: &Result<Answer, Silence>) -> Option<T> {
    match result {
        Ok(Answer::Done(body)) => serde_json::from_slice(body).ok(),
        Ok(Answer::Nothing | Answer::Refused(_)) | Err(_) => None,
    }
}
