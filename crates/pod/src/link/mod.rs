//! The sidecar: the only holder of the pod's token, and the only one that talks to the gateway.
//!
//! One loop owns the [state](state::Link) and does what it plans; calls, looks at the walls and connections are tasks that
//! send it what they found. It never starts or ends the program itself: it tells the supervisor. What must survive its own
//! restart is in the [journal](journal::Journal) before anybody is told that it is kept.

pub mod action;
pub mod canary;
pub mod commands;
pub mod conversations;
pub mod gateway;
pub mod input;
pub mod journal;
pub mod loopback;
pub mod models;
pub mod remembered;
pub mod retry;
pub mod socket;
pub mod state;
pub mod work;

pub mod calls;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use spillway_wire::agent::{Directive, Goodbye, Settings, Wanted};
use spillway_wire::link::{Answer as Reply, Ask, Control, Order};
use spillway_wire::work::Held;
use spillway_wire::{Code, Refusal};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};

use crate::clock::BootTime;
use crate::{link_says, random};
use action::{Action, WorkAction};
use calls::{Delivery, Spawning};
use commands::{Begin, Commands};
use gateway::{Answer, Gateway, Silence};
use input::{Candidate, Input, Worked};
use journal::Journal;
use models::Models;
use retry::lasting;
use socket::{Admission, Supervisor, admit};
use state::Link;

/// A goodbye is tried for so long before its caller is told that it is kept.
const GOODBYE_WITHIN: Duration = Duration::from_secs(5);
/// After SIGTERM, for what was not told yet.
const FLUSH_WITHIN: Duration = Duration::from_secs(3);
/// For a goodbye with which everything ends: it is answered when it is stored.
const FAREWELL_WITHIN: Duration = Duration::from_secs(10);
/// After SIGTERM, for the supervisor's last lines, which are on their way.
const LAST_LINES: Duration = Duration::from_millis(50);
/// Between two notes of when somebody last answered.
const HEARD_EACH: Duration = Duration::from_secs(5);
/// Between two tries to write what could not be written to the journal.
const CATCH_UP_EACH: Duration = Duration::from_secs(1);
/// Between two lines about the same trouble with the gateway.
const SAY_EACH: Duration = Duration::from_secs(60);

/// Where everything is.
#[derive(Clone, Debug)]
pub struct Options {
    /// The gateway, as `HOST:PORT`.
    pub gateway: String,
    /// The certificates to trust.
    pub ca: PathBuf,
    /// The pod's token.
    pub token: PathBuf,
    /// The journal's folder.
    pub journal: PathBuf,
    /// The unix socket.
    pub socket: PathBuf,
    /// The first of the loopback ports.
    pub first_port: u16,
    /// Between two looks at walls that stand.
    pub look_each: Duration,
    /// How long the breaker of commands stays open; none: as long as its guard says.
    pub commands_open: Option<Duration>,
}

/// What is different outside the cluster.
#[derive(Debug)]
pub struct Outside {
    /// What is wanted of the agent, for who ends its processes: nobody else does.
    pub wanted: watch::Sender<Directive>,
    /// Where models are served.
    pub models: TcpListener,
    /// The first part of the path of calls of models.
    pub secret: String,
}

/// Runs the sidecar until SIGTERM.
pub fn run(options: &Options) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let gateway = Gateway::new(options.gateway.clone(), options.ca.clone(), options.token.clone());
        let end = async {
            terminate.recv().await;
            link_says!("asked to end");
            None
        };
        serve(options, Arc::new(gateway), None, end).await
    })
}

/// Serves until `end`, and a moment longer, so that what is left to be told is told: a goodbye, if it ends with one.
pub async fn serve(
    options: &Options,
    gateway: Arc<Gateway>,
    outside: Option<Outside>,
    end: impl Future<Output = Option<Goodbye>>,
) -> io::Result<()> {
    let (inputs, mut received) = mpsc::channel(64);
    let listener = socket::bind(&options.socket)?;
    tokio::spawn(socket::serve(listener, inputs.clone()));
    let mut sidecar = Sidecar::new(options, gateway, inputs);
    match outside {
        None => loopback::serve(options.first_port, sidecar.models()),
        Some(Outside { wanted, models, secret }) => {
            loopback::serve_models(models, sidecar.models().behind(&secret));
            sidecar.outside = Some(wanted);
        }
    }
    link_says!("started; the gateway is {}", options.gateway);
    let goodbye = sidecar.run(&mut received, end).await;
    let within = if goodbye.is_some() { FAREWELL_WITHIN } else { FLUSH_WITHIN };
    if let Some(goodbye) = goodbye {
        sidecar.keep_goodbye(goodbye);
    }
    sidecar.flush(&mut received, within).await;
    Ok(())
}

/// The loop's own.
struct Sidecar {
    state: Link,
    journal: Journal,
    gateway: Arc<Gateway>,
    inputs: mpsc::Sender<Input>,
    supervisor: Option<(u64, Supervisor)>,
    supervisors: u64,
    key: Option<String>,
    /// The goodbye that is to be delivered.
    goodbye: watch::Sender<Option<Goodbye>>,
    farewells: Vec<oneshot::Sender<Reply>>,
    /// Questions about work that are not answered yet, by their numbers.
    asked: BTreeMap<u64, oneshot::Sender<Reply>>,
    questions: u64,
    spawning: Spawning,
    listening: Spawning,
    commands: Commands,
    /// The revision to wait beyond.
    revision: watch::Sender<Option<String>>,
    /// The item in hand, for calls of models.
    item: watch::Sender<Option<Held>>,
    heard_kept: BootTime,
    /// When what could not be written to the journal is tried again.
    catch_up_at: BootTime,
    /// A line about trouble was written, and none yet about its end.
    troubled: bool,
    trouble_said: Option<(String, BootTime)>,
    /// What the last look reached.
    reachable: Vec<String>,
    /// It runs outside the cluster: who ends its processes is told here what is wanted.
    outside: Option<watch::Sender<Directive>>,
}

impl Sidecar {
    fn new(options: &Options, gateway: Arc<Gateway>, inputs: mpsc::Sender<Input>) -> Self {
        let Options { gateway: _, ca: _, token: _, journal, socket: _, first_port: _, look_each, commands_open } = options.clone();
        let journal = Journal::new(journal);
        let now = BootTime::now();
        let remembered = journal.remembered();
        let limits = remembered.settings.as_ref().map(|settings| settings.commands);
        let (goodbye, deliver) = watch::channel(journal.goodbye());
        let mut commands = Commands::new(now, limits, commands_open, journal.commands());
        if let Some(settings) = &remembered.settings {
            commands.spare(settings.untimed.clone());
            commands.behave(now, settings.wanted.commands.as_deref());
        }
        let (revision, beyond) = watch::channel(None);
        tokio::spawn(calls::deliver(gateway.clone(), deliver, inputs.clone()));
        tokio::spawn(calls::wait(gateway.clone(), beyond, inputs.clone()));
        Self {
            state: Link::new(now, look_each, remembered),
            key: journal.key(),
            commands,
            journal,
            gateway,
            inputs,
            supervisor: None,
            supervisors: 0,
            goodbye,
            farewells: Vec::new(),
            asked: BTreeMap::new(),
            questions: 0,
            spawning: Spawning::default(),
            listening: Spawning::default(),
            revision,
            item: watch::channel(None).0,
            heard_kept: BootTime::default(),
            catch_up_at: BootTime::default(),
            troubled: false,
            trouble_said: None,
            reachable: Vec::new(),
            outside: None,
        }
    }

    /// What the port of models needs of us.
    fn models(&self) -> Models {
        Models::new(self.gateway.clone(), self.item.subscribe(), self.inputs.clone())
    }

    async fn run<T>(&mut self, received: &mut mpsc::Receiver<Input>, end: impl Future<Output = T>) -> T {
        let mut end = pin!(end);
        loop {
            let wake = self.act();
            tokio::select! {
                Some(input) = received.recv() => self.take(input),
                () = tokio::time::sleep(wake) => {}
                ended = &mut end => return ended,
            }
        }
    }

    /// Goes on for a moment, so that what was said is told: a goodbye, how an item ended, and that the program ended.
    async fn flush(&mut self, received: &mut mpsc::Receiver<Input>, within: Duration) {
        let began = BootTime::now();
        self.state.leave(began);
        loop {
            let wake = self.act();
            let passed = BootTime::now().since(began);
            let told = self.goodbye.borrow().is_none() && self.state.all_told(BootTime::now());
            if passed >= within || (told && passed >= LAST_LINES) {
                return;
            }
            let left = if told { LAST_LINES.saturating_sub(passed) } else { within.saturating_sub(passed) };
            tokio::select! {
                Some(input) = received.recv() => self.take(input),
                () = tokio::time::sleep(wake.min(left)) => {}
            }
        }
    }

    /// Does what is to be done now; says for how long nothing is.
    fn act(&mut self) -> Duration {
        let now = BootTime::now();
        self.state.commands(self.commands.counts());
        self.state.breaker(self.commands.state());
        let (actions, wake) = self.state.plan(now);
        for action in actions {
            self.perform(action);
        }
        let revision = self.state.revision();
        self.revision.send_if_modified(|known| std::mem::replace(known, revision.clone()) != revision);
        if let Some(wanted) = &self.outside {
            self.tell_outside(wanted);
        }
        let held = self.state.desk().held();
        self.item.send_if_modified(|known| std::mem::replace(known, held.clone()) != held);
        if self.state.heard().since(self.heard_kept) >= HEARD_EACH {
            self.heard_kept = self.state.heard();
            self.journal.keep_heard(self.heard_kept);
        }
        let wake = self.catch_up(now).map_or(wake, |again| again.min(wake));
        // Never zero: a plan that is not carried out must not become a loop.
        wake.since(now).max(Duration::from_millis(1))
    }

    /// Writes what the journal lacks. When that is to be tried again.
    fn catch_up(&mut self, now: BootTime) -> Option<BootTime> {
        if self.journal.is_whole() {
            return None;
        }
        if now >= self.catch_up_at {
            if self.journal.catch_up() {
                return None;
            }
            self.catch_up_at = now.after(CATCH_UP_EACH);
        }
        Some(self.catch_up_at)
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Register => self.call(calls::register(self.outside.is_some()), Input::Registered),
            Action::Report(report) => self.call(calls::report(&report), Input::Reported),
            Action::Probe(targets) => {
                let inputs = self.inputs.clone();
                tokio::spawn(async move {
                    let _ = inputs.send(Input::Probed(canary::probe(targets).await)).await; // we are ending
                });
            }
            Action::Tell(order) => self.tell(order),
            Action::RememberStart => self.journal.keep_start(),
            Action::RememberSettings(settings) => self.journal.keep_settings(&settings),
            Action::Work(action) => self.perform_work(action),
        }
    }

    fn perform_work(&mut self, action: WorkAction) {
        match action {
            WorkAction::Remember(kept) => self.journal.keep_work(&kept),
            WorkAction::Claim(wait) => self.call(calls::claim(wait), |result| Input::Work(Worked::Claimed(result))),
            WorkAction::Advance(held, told) => {
                let call = calls::advance(&held, &told);
                self.call(call, move |result| Input::Work(Worked::Advanced(held, told, result)));
            }
            WorkAction::Finish(held, outcome) => {
                let call = calls::finish(&held, &outcome);
                self.call(call, move |result| Input::Work(Worked::Finished(held, result)));
            }
            WorkAction::Answer(number, answer) => {
                let answer = if answer == Reply::Kept { self.kept() } else { answer };
                match (self.asked.remove(&number), &self.supervisor) {
                    // A program that hears that it is done may end at once: its supervisor has to know before.
                    (Some(waiting), Some((_, supervisor))) => supervisor.then(waiting, answer),
                    (Some(waiting), None) => drop(waiting.send(answer)), // who asked may have gone
                    (None, _) => {}
                }
            }
            WorkAction::Goodbye(reason) => {
                self.keep_goodbye(Goodbye { reason });
            }
            WorkAction::Say(what) => link_says!("{what}"),
        }
    }

    fn call(&self, call: gateway::Call, as_input: impl FnOnce(Result<Answer, Silence>) -> Input + Send + 'static) {
        let (gateway, inputs) = (self.gateway.clone(), self.inputs.clone());
        tokio::spawn(async move {
            let _ = inputs.send(as_input(gateway.call(&call).await)).await; // we are ending
        });
    }

    fn tell(&mut self, order: Order) {
        match &order {
            Order::Start(settings) if self.outside.is_some() => {
                link_says!("registered as {}, outside the cluster, where nothing isolates the program: it may start", settings.agent);
            }
            Order::Start(settings) => link_says!("registered as {} and walled in: the program may start", settings.agent),
            Order::Abandoned => link_says!("nobody has answered for too long: the program has to end"),
            Order::WallsDown(reachable) => link_says!("the walls do not stand ({}): the program has to end", reachable.join(", ")),
            Order::Wanted(wanted) => link_says!("wanted: {:?} (revision {})", wanted.directive, wanted.revision),
            Order::Key(_) | Order::Activity { .. } | Order::Item(_) | Order::Said(..) | Order::Settled(_) => {}
        }
        if let Some((_, supervisor)) = &self.supervisor
            && !supervisor.tell(order)
        {
            link_says!("the supervisor does not read; its connection is closed");
            self.supervisor = None;
            self.state.disconnected();
        }
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Registered(result) => self.take_registered(result),
            Input::Reported(result) => self.take_reported(result),
            Input::Waited(result) => {
                self.hear(&result);
                self.hear_right(&result);
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
                        Control::State(report) => self.state.program(now, report),
                        Control::NoticesSeen(id) => self.state.notices_seen(id),
                        Control::Ended => self.state.ended(now),
                        Control::CommandHung => {
                            let journal = &self.journal;
                            self.commands.hung(now, random::fraction(), |kept| journal.keep_commands(kept));
                        }
                        Control::Finished { held, outcome } => {
                            self.state.finished(held, outcome);
                            self.journal.forget_action();
                        }
                    }
                }
            }
            Input::Gone(number) => {
                if self.supervisor.as_ref().is_some_and(|(known, _)| *known == number) {
                    self.supervisor = None;
                    self.state.disconnected();
                }
            }
            Input::Ask(ask, reply) => self.take_ask(ask, reply),
            Input::Called(calls) => {
                if let Some(answered) = calls.answered {
                    self.commands.answered(BootTime::from_millis(answered));
                }
                self.state.called(calls);
            }
            Input::Tried(command, answer, reply) => {
                if answer.is_none() {
                    link_says!("nobody says whether a command may be tried: it is run");
                }
                let answer = self.commands.asked(BootTime::now(), random::fraction(), command, answer);
                let _ = reply.send(answer); // who asked may have gone: what it was given has failed when its time is over
            }
        }
    }

    /// Tells who ends our processes what is wanted. Before anybody knew us nothing is, and an end that was said stays.
    fn tell_outside(&self, wanted: &watch::Sender<Directive>) {
        let directive = self.state.current().directive;
        let over = |known: Directive| known == Directive::Stop;
        wanted.send_if_modified(|known| !over(*known) && std::mem::replace(known, directive) != directive);
    }

    /// Of who runs outside the cluster: its user may not register agents any more, so it is none. About calls that every agent may
    /// make; others are refused for other reasons.
    fn hear_right(&mut self, result: &Result<Answer, Silence>) {
        if let (Ok(Answer::Refused(refusal)), true) = (result, self.outside.is_some())
            && refusal.code == Code::NotAllowed
        {
            self.state.refused(BootTime::now(), Code::NotAnAgent);
        }
    }

    /// Whatever came of a call: whether somebody is there, and whether they know us.
    fn hear(&mut self, result: &Result<Answer, Silence>) {
        let now = BootTime::now();
        let trouble = match result {
            Ok(Answer::Done(_) | Answer::Nothing) => {
                self.state.answered(now);
                self.state.accepted();
                None
            }
            Ok(Answer::Refused(refusal)) => {
                // Outside the cluster nobody renews a token by itself: who shows one that is over is as silent, to the governor, as
                // one that shows none, and gives up when that does.
                if self.outside.is_some() && refusal.code.status() == 401 {
                    self.state.unanswered();
                } else {
                    self.state.answered(now);
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
                let known = self.trouble_said.as_ref().is_some_and(|(text, said)| *text == trouble && now.since(*said) < SAY_EACH);
                if !known {
                    link_says!("{trouble}; trying again");
                    self.trouble_said = Some((trouble, now));
                    self.troubled = true;
                }
            }
        }
    }

    fn take_registered(&mut self, result: Result<Answer, Silence>) {
        self.hear(&result);
        self.hear_right(&result);
        let now = BootTime::now();
        // In a pod others end what is no agent any more. Here nobody knows of it.
        if let (Ok(Answer::Refused(refusal)), Some(wanted), false) = (&result, &self.outside, self.state.was_let_start())
            && (lasting(refusal.code) || refusal.code == Code::NotAnAgent)
        {
            wanted.send_replace(Directive::Stop);
        }
        if let Ok(Answer::Done(body)) = &result {
            match serde_json::from_slice::<Settings>(body) {
                Ok(settings) => {
                    let settings = if self.outside.is_some() { without_commands(settings) } else { settings };
                    self.commands.limit(now, settings.commands);
                    self.commands.spare(settings.untimed.clone());
                    self.commands.behave(now, settings.wanted.commands.as_deref());
                    let remember = self.state.registered(now, settings);
                    return self.perform(remember);
                }
                Err(error) => link_says!("the settings are not understood: {error}"),
            }
        }
        self.state.call_failed(now, calls::asked_to_wait(&result), random::fraction());
    }

    fn take_reported(&mut self, result: Result<Answer, Silence>) {
        self.hear(&result);
        self.hear_right(&result);
        let now = BootTime::now();
        match &result {
            Ok(Answer::Done(body)) => {
                self.state.reported(now);
                self.take_wanted(body);
            }
            Ok(Answer::Nothing) => self.state.reported(now),
            Ok(Answer::Refused(_)) | Err(_) => self.state.call_failed(now, calls::asked_to_wait(&result), random::fraction()),
        }
    }

    /// A body that is a wanted state. Another one (an empty object) says that there is nothing to say.
    fn take_wanted(&mut self, body: &[u8]) {
        if let Ok(wanted) = serde_json::from_slice::<Wanted>(body) {
            self.commands.behave(BootTime::now(), wanted.commands.as_deref());
            if let Some(remember) = self.state.wanted(wanted) {
                self.perform(remember);
            }
        }
    }

    fn take_delivered(&mut self, goodbye: &Goodbye, result: &Result<Answer, Silence>) {
        self.hear(result);
        let reply = match result {
            Ok(Answer::Done(_) | Answer::Nothing) => Reply::Done,
            Ok(Answer::Refused(refusal)) if lasting(refusal.code) => Reply::Refused(refusal.clone()),
            Ok(Answer::Refused(_)) | Err(_) => return, // kept, and tried again
        };
        // Another one may have been said meanwhile; it is delivered next.
        if self.goodbye.borrow().as_ref() == Some(goodbye) {
            self.journal.forget_goodbye();
            self.goodbye.send_replace(None);
            for waiting in self.farewells.drain(..) {
                let _ = waiting.send(reply.clone()); // who asked may have gone
            }
        }
    }

    fn take_worked(&mut self, worked: Worked) {
        let (now, random) = (BootTime::now(), random::fraction());
        match worked {
            Worked::Claimed(result) => {
                self.hear(&result);
                self.state.desk().claimed(now, calls::claimed(&result), calls::asked_to_wait(&result), random);
            }
            Worked::Advanced(held, told, result) => {
                self.hear(&result);
                self.state.desk().advanced(now, &held, &told, calls::taken(&result), calls::asked_to_wait(&result), random);
            }
            Worked::Finished(held, result) => {
                self.hear(&result);
                self.state.desk().delivered(now, &held, calls::taken(&result), calls::asked_to_wait(&result), random);
            }
        }
    }

    fn take_probed(&mut self, reachable: Vec<String>) {
        if reachable != self.reachable {
            match &reachable[..] {
                [] => link_says!("nothing can be reached any more that must not be"),
                [..] => link_says!("reachable and must not be: {}", reachable.join(", ")),
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
                link_says!("a second control connection is refused");
                tokio::spawn(socket::refuse(candidate));
                return;
            }
        };
        let key = match key {
            Ok(key) => key,
            Err(error) => return link_says!("no key can be made: {error}"), // it comes again
        };
        if self.key.as_ref() != Some(&key)
            && let Err(error) = self.journal.keep_key(&key)
        {
            link_says!("the supervisor's key cannot be written to the journal: {error}");
        }
        self.key = Some(key.clone());
        self.supervisors += 1;
        self.supervisor = Some((self.supervisors, Supervisor::accept(candidate, self.supervisors, self.inputs.clone())));
        self.state.connected();
        self.tell(Order::Key(key));
    }

    fn take_ask(&mut self, ask: Ask, reply: oneshot::Sender<Reply>) {
        self.state.asked(None);
        let answer = match ask {
            Ask::Goodbye(goodbye) => return self.say_goodbye(goodbye, reply),
            Ask::Spawn { key, request } => return self.carry(Delivery::spawn(key, &request, self.spawning.clone()), reply),
            Ask::Submit { key, request } => return self.carry(Delivery::submit(key, &request, self.spawning.clone()), reply),
            Ask::Plan { key, request } => return self.carry(Delivery::plan(key, &request, self.spawning.clone()), reply),
            Ask::ListWork(request) => return self.carry(Ok(Delivery::list(&request, self.listening.clone())), reply),
            Ask::Inbox(request) => return self.carry(Ok(Delivery::inbox(&request, self.listening.clone())), reply),
            Ask::Budget => return self.carry(Ok(Delivery::budget(self.listening.clone())), reply),
            Ask::AskTokens(request) => return self.carry(Ok(Delivery::ask_tokens(&request, self.spawning.clone())), reply),
            Ask::Next { wait_seconds } => return self.ask_desk(reply, |state, now, number| state.next(now, number, wait_seconds)),
            Ask::Finish(outcome) => return self.ask_desk(reply, |state, now, number| state.say(now, number, outcome)),
            Ask::Progress(progress) => {
                if !progress.action.is_empty()
                    && let Err(error) = self.journal.keep_action(&progress.action)
                {
                    link_says!("what the program does cannot be written to the journal: {error}");
                }
                self.state.progress(&progress);
                if self.state.in_touch() { Reply::Done } else { self.kept() }
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
        let _ = reply.send(answer); // who asked may have gone
    }

    fn carry(&self, delivery: Result<Delivery, Refusal>, reply: oneshot::Sender<Reply>) {
        match delivery {
            Ok(delivery) => {
                tokio::spawn(delivery.carry(self.gateway.clone(), self.inputs.clone(), reply));
            }
            Err(refusal) => drop(reply.send(Reply::Refused(refusal))), // who asked may have gone
        }
    }

    /// A question about work, which is answered now, or when there is an answer.
    fn ask_desk(&mut self, reply: oneshot::Sender<Reply>, ask: impl FnOnce(&mut Link, BootTime, u64) -> Option<Reply>) {
        self.questions += 1;
        match ask(&mut self.state, BootTime::now(), self.questions) {
            Some(answer) => drop(reply.send(answer)), // who asked may have gone
            None => {
                self.asked.insert(self.questions, reply);
            }
        }
    }

    /// What is told of what no gateway took yet: that it is kept, if it is.
    fn kept(&self) -> Reply {
        if self.journal.is_whole() { Reply::Kept } else { unkept() }
    }

    /// Whether it is kept: it is delivered in any case.
    fn keep_goodbye(&mut self, goodbye: Goodbye) -> bool {
        let kept = self.journal.keep_goodbye(&goodbye);
        if let Err(error) = &kept {
            link_says!("a goodbye cannot be written to the journal: {error}");
        }
        self.goodbye.send_replace(Some(goodbye));
        kept.is_ok()
    }

    /// Kept first, then delivered; who asked waits a while for the latter.
    fn say_goodbye(&mut self, goodbye: Goodbye, reply: oneshot::Sender<Reply>) {
        let (waiting, answer) = oneshot::channel();
        self.farewells.retain(|waiting| !waiting.is_closed());
        self.farewells.push(waiting);
        let kept = self.keep_goodbye(goodbye);
        tokio::spawn(async move {
            let answer = tokio::time::timeout(GOODBYE_WITHIN, answer).await.ok().and_then(Result::ok);
            let _ = reply.send(answer.unwrap_or_else(|| if kept { Reply::Kept } else { unkept() })); // who asked may have gone
        });
    }
}

/// What is told to an agent outside the cluster, whatever a governor says: who may change a pool must not run commands on
/// somebody's machine.
fn without_commands(settings: Settings) -> Settings {
    let none = Vec::new;
    Settings { drain_hook: none(), warn_hook: none(), checkpoint_hook: none(), preflight_command: none(), canaries: none(), ..settings }
}

/// No gateway took it, and it would be lost with this process.
fn unkept() -> Reply {
    let message = "no gateway took it yet, and it cannot be written down here; it is tried on, say it again to be sure";
    Reply::Refused(Refusal::new(spillway_wire::Code::GovernorAway, message).retry_after(5))
}
