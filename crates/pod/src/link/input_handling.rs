//! How the sidecar handles each input: answers of the gateway, results of the canary, connections, and questions.
//!
//! Only requests of the program are sent from here. The calls that the state plans are made in `sidecar`.

use std::time::Duration;

use spillway_wire::agent::{DesiredState, Directive, Goodbye, Settings};
use spillway_wire::link::{Answer as Reply, Ask, Control, Order};
use spillway_wire::{Code, Refusal};
use tokio::sync::oneshot;

use super::calls::{self, Delivery};
use super::commands::Begin;
use super::gateway::{Answer, Silence};
use super::input::{Candidate, Input, WorkResult};
use super::retry::is_final;
use super::sidecar::{Sidecar, not_kept_reply};
use super::socket::{self, Admission, Supervisor, admit};
use super::state::Link;
use crate::clock::BootTime;
use crate::{link_says, random};

/// How long the caller of a goodbye waits for the gateway. Afterwards it gets the answer that the goodbye is kept.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two log lines about the same error of the gateway.
const REPEATED_LOG_INTERVAL: Duration = Duration::from_secs(60);

impl Sidecar {
    /// Handles an input.
    pub(super) fn take(&mut self, input: Input) {
        match input {
            Input::Registered(result) => self.take_registered(result),
            Input::Reported(result) => self.take_reported(result),
            Input::LongPolled(result) => {
                self.hear(&result);
                self.note_external_refusal(&result);
                if let Ok(Answer::Done(body)) = &result {
                    self.take_wanted(body);
                }
            }
            Input::Delivered(goodbye, result) => self.take_delivered(&goodbye, &result),
            Input::Carried(result) => self.hear(&result),
            Input::Work(worked) => self.take_worked(worked),
            Input::Probed(reachable) => self.take_probed(reachable),
            Input::Candidate(candidate) => self.take_candidate(candidate),
            Input::Control(number, said) => {
                if self.supervisor.as_ref().is_some_and(|(known, _)| *known == number) {
                    let now = BootTime::now();
                    match said {
                        Control::State(report) => self.state.on_program_report(now, *report),
                        Control::NoticesSeen(id) => self.state.notices_seen(id),
                        Control::Ended => self.state.ended(now),
                        Control::CommandHung => {
                            let journal = &self.journal;
                            self.commands.note_hung_command(now, random::fraction(), |kept| journal.keep_commands(kept));
                        }
                        Control::Finished { held, outcome } => {
                            self.state.finished(held, outcome);
                            self.journal.forget_action();
                        }
                        Control::Commit(commit) => {
                            self.commit.send_replace(commit.clone());
                            commit.into_iter().for_each(|commit| self.tell(Order::CommitNamed(commit)));
                        }
                    }
                }
            }
            Input::Gone(number) => {
                if self.supervisor.as_ref().is_some_and(|(known, _)| *known == number) {
                    self.supervisor = None;
                    self.commit.send_replace(None);
                    self.state.disconnected();
                }
            }
            Input::Ask(ask, reply) => self.take_ask(ask, reply),
            Input::ModelCalled(calls) => {
                if let Some(answered) = calls.answered {
                    self.commands.note_model_answer(BootTime::from_millis(answered));
                }
                self.state.note_model_calls(calls);
            }
            Input::RequestForwarded => self.state.note_question(None),
            Input::TryAnswered(command, answer, reply) => {
                if answer.is_none() {
                    link_says!("the governor does not answer whether a command may be tried: the command is run");
                }
                let answer = self.commands.on_governor_answer(BootTime::now(), random::fraction(), command, answer);
                let _ = reply.send(answer); // the caller may have gone: its permit then counts as failed after its time
            }
        }
    }

    /// Outside the cluster: if the gateway refuses a call that every agent may make, the user may not register agents any more, and
    /// this is no agent. Other calls may be refused for other reasons.
    fn note_external_refusal(&mut self, result: &Result<Answer, Silence>) {
        if let (Ok(Answer::Refused(refusal)), true) = (result, self.external_directive.is_some())
            && refusal.code == Code::NotAllowed
        {
            self.state.refused(BootTime::now(), Code::NotAnAgent);
        }
    }

    /// Notes from the result of any call whether a gateway answers, and whether it knows this agent.
    fn hear(&mut self, result: &Result<Answer, Silence>) {
        let now = BootTime::now();
        let trouble = match result {
            Ok(Answer::Done(_) | Answer::Nothing) => {
                self.state.note_answer(now);
                self.state.accepted();
                None
            }
            Ok(Answer::Refused(refusal)) => {
                // Outside the cluster no component renews the token. With an expired one, the governor does not hear this agent. So
                // it counts as silence here too, and both sides give up at the same time.
                if self.external_directive.is_some() && refusal.code.status() == 401 {
                    self.state.unanswered();
                } else {
                    self.state.note_answer(now);
                }
                self.state.refused(now, refusal.code);
                Some(refusal.to_string())
            }
            Err(silence) => {
                self.state.unanswered();
                Some(silence.to_string())
            }
        };
        match trouble {
            None => {
                if std::mem::replace(&mut self.troubled, false) {
                    link_says!("the gateway answers again");
                }
            }
            Some(trouble) => {
                let known = self
                    .last_logged_error
                    .as_ref()
                    .is_some_and(|(text, said)| *text == trouble && now.since(*said) < REPEATED_LOG_INTERVAL);
                if !known {
                    link_says!("{trouble}; trying again");
                    self.last_logged_error = Some((trouble, now));
                    self.troubled = true;
                }
            }
        }
    }

    fn take_registered(&mut self, result: Result<Answer, Silence>) {
        self.hear(&result);
        self.note_external_refusal(&result);
        let now = BootTime::now();
        // In a cluster the controller ends the pod of a former agent. Outside it only this process can end the program.
        if let (Ok(Answer::Refused(refusal)), Some(wanted), false) = (&result, &self.external_directive, self.state.was_let_start())
            && (is_final(refusal.code) || refusal.code == Code::NotAnAgent)
        {
            wanted.send_replace(Directive::Stop);
        }
        if let Ok(Answer::Done(body)) = &result {
            match serde_json::from_slice::<Settings>(body) {
                Ok(settings) => {
                    let settings = if self.external_directive.is_some() { without_commands(settings) } else { settings };
                    self.commands.limit(now, settings.commands);
                    self.commands.set_exemptions(settings.untimed.clone());
                    self.commands.apply_breakers(now, settings.wanted.commands.as_deref());
                    let remember = self.state.registered(now, settings);
                    return self.perform(remember);
                }
                Err(error) => link_says!("cannot parse the settings of the gateway: {error}"),
            }
        }
        self.state.call_failed(now, calls::retry_after(&result), random::fraction());
    }

    fn take_reported(&mut self, result: Result<Answer, Silence>) {
        self.hear(&result);
        self.note_external_refusal(&result);
        let now = BootTime::now();
        match &result {
            Ok(Answer::Done(body)) => {
                self.state.reported(now);
                self.take_wanted(body);
            }
            Ok(Answer::Nothing) => self.state.reported(now),
            Ok(Answer::Refused(_)) | Err(_) => self.state.call_failed(now, calls::retry_after(&result), random::fraction()),
        }
    }

    /// Takes a body with a desired state. Any other body, such as an empty object, contains none.
    fn take_wanted(&mut self, body: &[u8]) {
        if let Ok(wanted) = serde_json::from_slice::<DesiredState>(body) {
            self.commands.apply_breakers(BootTime::now(), wanted.commands.as_deref());
            if let Some(remember) = self.state.wanted(wanted) {
                self.perform(remember);
            }
        }
    }

    fn take_delivered(&mut self, goodbye: &Goodbye, result: &Result<Answer, Silence>) {
        self.hear(result);
        let reply = match result {
            Ok(Answer::Done(_) | Answer::Nothing) => Reply::Done,
            Ok(Answer::Refused(refusal)) if is_final(refusal.code) => Reply::Refused(refusal.clone()),
            Ok(Answer::Refused(_)) | Err(_) => return, // the goodbye is kept and sent again
        };
        // The program may have said another goodbye meanwhile, which is delivered next.
        if self.goodbye.borrow().as_ref() == Some(goodbye) {
            self.journal.forget_goodbye();
            self.goodbye.send_replace(None);
            for waiting in self.goodbye_waiters.drain(..) {
                let _ = waiting.send(reply.clone()); // the caller may have gone
            }
        }
    }

    fn take_worked(&mut self, worked: WorkResult) {
        let (now, random) = (BootTime::now(), random::fraction());
        match worked {
            WorkResult::Claimed(result) => {
                self.hear(&result);
                self.state.sidecar_work().on_claim_answer(now, calls::claim_outcome(&result), calls::retry_after(&result), random);
            }
            WorkResult::Advanced(held, told, result) => {
                self.hear(&result);
                self.state.sidecar_work().on_progress_answer(now, &held, &told, calls::taken(&result), calls::retry_after(&result), random);
            }
            WorkResult::Finished(held, result) => {
                self.hear(&result);
                self.state.sidecar_work().on_end_answer(now, &held, calls::taken(&result), calls::retry_after(&result), random);
            }
        }
    }

    fn take_probed(&mut self, reachable: Vec<String>) {
        if reachable != self.reachable {
            match &reachable[..] {
                [] => link_says!("addresses that must not be reachable cannot be reached any more"),
                [..] => link_says!("addresses can be reached that must not be reachable: {}", reachable.join(", ")),
            }
            self.reachable.clone_from(&reachable);
        }
        self.state.probed(BootTime::now(), reachable);
    }

    fn take_candidate(&mut self, candidate: Candidate) {
        let admission = admit(candidate.key.as_deref(), self.key.as_deref(), self.state.was_let_start(), self.state.is_connected());
        let key = match (admission, &candidate.key) {
            (Admission::Known, Some(shown)) => Ok(shown.clone()),
            (Admission::First, _) | (Admission::Known, None) => random::key(),
            (Admission::Refused, _) => {
                link_says!("a second control connection is refused: only the supervisor may have one");
                tokio::spawn(socket::refuse(candidate));
                return;
            }
        };
        let key = match key {
            Ok(key) => key,
            Err(error) => return link_says!("cannot make a key for the supervisor: {error}"), // the supervisor connects again
        };
        if self.key.as_ref() != Some(&key)
            && let Err(error) = self.journal.keep_key(&key)
        {
            link_says!("cannot write the supervisor's key to the journal: {error}");
        }
        self.key = Some(key.clone());
        self.supervisors += 1;
        self.commit.send_replace(None); // it announces its commit anew
        self.supervisor = Some((self.supervisors, Supervisor::accept(candidate, self.supervisors, self.inputs.clone())));
        self.state.connected();
        self.tell(Order::Key(key));
    }

    fn take_ask(&mut self, ask: Ask, reply: oneshot::Sender<Reply>) {
        self.state.note_question(None);
        let answer = match ask {
            Ask::Goodbye(goodbye) => return self.say_goodbye(goodbye, reply),
            Ask::Spawn { key, request } => return self.carry(Delivery::spawn(key, &request, self.spawning.clone()), reply),
            Ask::Submit { key, request } => return self.carry(Delivery::submit(key, &request, self.spawning.clone()), reply),
            Ask::Plan { key, request } => return self.carry(Delivery::plan(key, &request, self.spawning.clone()), reply),
            Ask::ListWork(request) => return self.carry(Ok(Delivery::list(&request, self.listening.clone())), reply),
            Ask::Inbox(request) => return self.carry(Ok(Delivery::inbox(&request, self.listening.clone())), reply),
            Ask::Budget => return self.carry(Ok(Delivery::budget(self.listening.clone())), reply),
            Ask::AskTokens(request) => return self.carry(Ok(Delivery::ask_tokens(&request, self.spawning.clone())), reply),
            Ask::Next { wait_seconds } => return self.ask_work(reply, |state, now, number| state.next(now, number, wait_seconds)),
            Ask::Finish(outcome) => return self.ask_work(reply, |state, now, number| state.report_item_end(now, number, outcome)),
            Ask::Progress(progress) => {
                if !progress.action.is_empty()
                    && let Err(error) = self.journal.keep_action(&progress.action)
                {
                    link_says!("cannot write the program's action to the journal: {error}");
                }
                self.state.progress(&progress);
                if self.state.in_touch() { Reply::Done } else { self.kept_reply() }
            }
            Ask::BeginCommand(command) => {
                let (now, random, journal) = (BootTime::now(), random::fraction(), &self.journal);
                match self.commands.begin(now, random, command, |kept| journal.keep_commands(kept)) {
                    Begin::Answer(answer) => answer,
                    Begin::Try(command) => {
                        tokio::spawn(calls::try_command(self.gateway.clone(), self.inputs.clone(), command, reply));
                        return;
                    }
                }
            }
            Ask::EndCommand(ended) => {
                let (now, random, journal) = (BootTime::now(), random::fraction(), &self.journal);
                if let Some(told) = self.commands.end(now, random, ended, |kept| journal.keep_commands(kept)) {
                    tokio::spawn(calls::end_try(self.gateway.clone(), self.inputs.clone(), told));
                }
                Reply::Done
            }
            Ask::Notices => Reply::Notices(self.state.notices()),
            Ask::Status => Reply::Status { registered: self.state.is_registered(), wanted: self.state.current() },
        };
        let _ = reply.send(answer); // the caller may have gone
    }

    fn carry(&self, delivery: Result<Delivery, Refusal>, reply: oneshot::Sender<Reply>) {
        match delivery {
            Ok(delivery) => {
                tokio::spawn(delivery.carry(self.gateway.clone(), self.inputs.clone(), reply));
            }
            Err(refusal) => drop(reply.send(Reply::Refused(refusal))), // the caller may have gone
        }
    }

    /// Asks the state a question about work. It is answered now or later.
    fn ask_work(&mut self, reply: oneshot::Sender<Reply>, ask: impl FnOnce(&mut Link, BootTime, u64) -> Option<Reply>) {
        self.questions += 1;
        match ask(&mut self.state, BootTime::now(), self.questions) {
            Some(answer) => drop(reply.send(answer)), // the caller may have gone
            None => {
                self.open_questions.insert(self.questions, reply);
            }
        }
    }

    /// Keeps the goodbye in the journal and delivers it. The caller waits a while for the delivery.
    fn say_goodbye(&mut self, goodbye: Goodbye, reply: oneshot::Sender<Reply>) {
        let (waiting, answer) = oneshot::channel();
        self.goodbye_waiters.retain(|waiting| !waiting.is_closed());
        self.goodbye_waiters.push(waiting);
        let kept = self.keep_goodbye(goodbye);
        tokio::spawn(async move {
            let answer = tokio::time::timeout(GOODBYE_TIMEOUT, answer).await.ok().and_then(Result::ok);
            let _ = reply.send(answer.unwrap_or_else(|| if kept { Reply::Kept } else { not_kept_reply() })); // the caller may have gone
        });
    }
}

/// The settings of an agent outside the cluster, without any command: a person who may change the pool must not run commands on
/// the machine of the user.
fn without_commands(settings: Settings) -> Settings {
    let none = Vec::new;
    Settings { drain_hook: none(), warn_hook: none(), checkpoint_hook: none(), preflight_command: none(), canaries: none(), ..settings }
}
