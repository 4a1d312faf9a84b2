//! The loop of the sidecar: it owns the [state](super::state::Link), and carries out the actions that the state plans.
//!
//! It does not handle inputs: `input_handling` does.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use spillway_wire::Refusal;
use spillway_wire::agent::{Directive, Goodbye};
use spillway_wire::changeset::PendingCommit;
use spillway_wire::link::{Answer as Reply, Order};
use spillway_wire::work::LeaseRef;
use tokio::sync::{mpsc, oneshot, watch};

use super::action::{Action, WorkAction};
use super::calls::{self, Spawning};
use super::canary;
use super::commands::Commands;
use super::egress::EgressProxy;
use super::folder_port::FolderPort;
use super::forwarded_port::ForwardedPort;
use super::gateway::{self, Answer, Gateway, Silence};
use super::input::{Input, WorkResult};
use super::journal::Journal;
use super::loopback::Ports;
use super::models::Models;
use super::options::Options;
use super::socket::Supervisor;
use super::state::Link;
use crate::clock::BootTime;
use crate::{VOLUME_DIR, link_says};

/// Wait after SIGTERM for the last lines of the supervisor, which may be on their way.
const LAST_LINES_TIMEOUT: Duration = Duration::from_millis(50);
/// Between two writes of the time of the last answer.
const LAST_HEARD_WRITE_INTERVAL: Duration = Duration::from_secs(5);
/// Between two tries to write what could not be written to the journal.
const JOURNAL_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The state of the loop.
pub(super) struct Sidecar {
    pub(super) state: Link,
    pub(super) journal: Journal,
    pub(super) gateway: Arc<Gateway>,
    pub(super) inputs: mpsc::Sender<Input>,
    pub(super) supervisor: Option<(u64, Supervisor)>,
    pub(super) supervisors: u64,
    pub(super) key: Option<String>,
    /// The goodbye to deliver.
    pub(super) goodbye: watch::Sender<Option<Goodbye>>,
    pub(super) goodbye_waiters: Vec<oneshot::Sender<Reply>>,
    /// Open questions about work, by their numbers.
    pub(super) open_questions: BTreeMap<u64, oneshot::Sender<Reply>>,
    pub(super) questions: u64,
    pub(super) spawning: Spawning,
    pub(super) listening: Spawning,
    pub(super) commands: Commands,
    /// The known revision: the long poll waits for a newer one.
    pub(super) revision: watch::Sender<Option<String>>,
    /// The item in hand, for model calls.
    pub(super) item: watch::Sender<Option<LeaseRef>>,
    /// The claim and the path of the folder whose volume is mounted.
    own_folder: Option<String>,
    /// The claim and the path of the folder of the item in hand.
    pub(super) folder: watch::Sender<Option<String>>,
    /// The commit that may be pushed now, as the supervisor announced it.
    pub(super) commit: watch::Sender<Option<PendingCommit>>,
    pub(super) heard_kept: BootTime,
    /// When the journal is tried again after a failure to write.
    pub(super) catch_up_at: BootTime,
    /// A line about an error of the gateway was logged, and none yet about its end.
    pub(super) troubled: bool,
    pub(super) last_logged_error: Option<(String, BootTime)>,
    /// The addresses that the last test of the canary reached.
    pub(super) reachable: Vec<String>,
    /// Outside the cluster: sends the directive to the process that ends the program.
    pub(super) external_directive: Option<watch::Sender<Directive>>,
}

impl Sidecar {
    pub(super) fn new(options: &Options, gateway: Arc<Gateway>, inputs: mpsc::Sender<Input>) -> Self {
        let Options { gateway: _, ca: _, token: _, journal, socket: _, first_port: _, look_each, commands_open, folder: own_folder } =
            options.clone();
        let journal = Journal::new(journal);
        let now = BootTime::now();
        let remembered = journal.remembered();
        let limits = remembered.settings.as_ref().map(|settings| settings.commands);
        let (goodbye, deliver) = watch::channel(journal.goodbye());
        let mut commands = Commands::new(now, limits, commands_open, journal.commands());
        if let Some(settings) = &remembered.settings {
            commands.set_exemptions(settings.untimed.clone());
            commands.apply_breakers(now, settings.wanted.commands.as_deref());
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
            goodbye_waiters: Vec::new(),
            open_questions: BTreeMap::new(),
            questions: 0,
            spawning: Spawning::default(),
            listening: Spawning::default(),
            revision,
            item: watch::channel(None).0,
            own_folder,
            folder: watch::channel(None).0,
            commit: watch::channel(None).0,
            heard_kept: BootTime::default(),
            catch_up_at: BootTime::default(),
            troubled: false,
            last_logged_error: None,
            reachable: Vec::new(),
            external_directive: None,
        }
    }

    /// The state for the models port.
    pub(super) fn models(&self) -> Models {
        Models::new(self.gateway.clone(), self.item.subscribe(), self.inputs.clone())
    }

    /// What the loopback ports serve.
    pub(super) fn ports(&self) -> Ports {
        let (gateway, item, inputs) = (|| self.gateway.clone(), || self.item.subscribe(), || self.inputs.clone());
        Ports {
            models: self.models(),
            egress: EgressProxy::new(gateway(), item()),
            git: ForwardedPort::git(gateway(), item(), inputs(), self.commit.subscribe()),
            tools: ForwardedPort::tools(gateway(), item(), inputs()),
            artifacts: ForwardedPort::artifacts(gateway(), item(), inputs()),
            folder: FolderPort::new(VOLUME_DIR.into(), self.own_folder.clone(), self.folder.subscribe(), item(), self.commit.subscribe()),
        }
    }

    pub(super) async fn run<T>(&mut self, received: &mut mpsc::Receiver<Input>, end: impl Future<Output = T>) -> T {
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

    /// Continues for a moment, to send a goodbye, the end of an item, and the end of the program.
    pub(super) async fn flush(&mut self, received: &mut mpsc::Receiver<Input>, within: Duration) {
        let began = BootTime::now();
        self.state.leave(began);
        loop {
            let wake = self.act();
            let passed = BootTime::now().since(began);
            let told = self.goodbye.borrow().is_none() && self.state.all_told(BootTime::now());
            if passed >= within || (told && passed >= LAST_LINES_TIMEOUT) {
                return;
            }
            let left = if told { LAST_LINES_TIMEOUT.saturating_sub(passed) } else { within.saturating_sub(passed) };
            tokio::select! {
                Some(input) = received.recv() => self.take(input),
                () = tokio::time::sleep(wake.min(left)) => {}
            }
        }
    }

    /// Carries out the actions that are due; returns for how long none is due.
    fn act(&mut self) -> Duration {
        let now = BootTime::now();
        self.state.set_command_counts(self.commands.counts());
        self.state.set_breaker_state(self.commands.state());
        let (actions, wake) = self.state.plan(now);
        for action in actions {
            self.perform(action);
        }
        let revision = self.state.revision();
        self.revision.send_if_modified(|known| std::mem::replace(known, revision.clone()) != revision);
        if let Some(wanted) = &self.external_directive {
            self.send_directive(wanted);
        }
        let held = self.state.sidecar_work().held();
        self.item.send_if_modified(|known| std::mem::replace(known, held.clone()) != held);
        let folder = self.state.sidecar_work().folder();
        self.folder.send_if_modified(|known| {
            known.as_deref() != folder && {
                *known = folder.map(str::to_owned);
                true
            }
        });
        if self.state.last_answer().since(self.heard_kept) >= LAST_HEARD_WRITE_INTERVAL {
            self.heard_kept = self.state.last_answer();
            self.journal.keep_heard(self.heard_kept);
        }
        let wake = self.catch_up(now).map_or(wake, |again| again.min(wake));
        // Never zero: an action that cannot be carried out must not cause a busy loop.
        wake.since(now).max(Duration::from_millis(1))
    }

    /// Writes the values that the journal lacks; returns when to try again.
    fn catch_up(&mut self, now: BootTime) -> Option<BootTime> {
        if self.journal.is_fully_written() {
            return None;
        }
        if now >= self.catch_up_at {
            if self.journal.catch_up() {
                return None;
            }
            self.catch_up_at = now.after(JOURNAL_RETRY_INTERVAL);
        }
        Some(self.catch_up_at)
    }

    pub(super) fn perform(&mut self, action: Action) {
        match action {
            Action::Register => self.call(calls::register(self.external_directive.is_some()), Input::Registered),
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
            WorkAction::Claim(wait) => self.call(calls::claim(wait), |result| Input::Work(WorkResult::Claimed(result))),
            WorkAction::Advance(held, told) => {
                let call = calls::advance(&held, &told);
                self.call(call, move |result| Input::Work(WorkResult::Advanced(held, told, result)));
            }
            WorkAction::Finish(held, outcome) => {
                let call = calls::finish(&held, &outcome);
                self.call(call, move |result| Input::Work(WorkResult::Finished(held, result)));
            }
            WorkAction::Answer(number, answer) => {
                let answer = if answer == Reply::Kept { self.kept_reply() } else { answer };
                match (self.open_questions.remove(&number), &self.supervisor) {
                    // A program may end as soon as it gets the answer: the supervisor must know before.
                    (Some(waiting), Some((_, supervisor))) => supervisor.answer_after_orders(waiting, answer),
                    (Some(waiting), None) => drop(waiting.send(answer)), // the caller may have gone
                    (None, _) => {}
                }
            }
            WorkAction::Goodbye(reason) => {
                self.keep_goodbye(Goodbye { reason });
            }
            WorkAction::Say(what) => link_says!("{what}"),
        }
    }

    pub(super) fn call(&self, call: gateway::Call, as_input: impl FnOnce(Result<Answer, Silence>) -> Input + Send + 'static) {
        let (gateway, inputs) = (self.gateway.clone(), self.inputs.clone());
        tokio::spawn(async move {
            let _ = inputs.send(as_input(gateway.call(&call).await)).await; // we are ending
        });
    }

    pub(super) fn tell(&mut self, order: Order) {
        match &order {
            Order::Start(settings) if self.external_directive.is_some() => {
                link_says!("registered as {}, outside the cluster: the program may start, and nothing isolates it", settings.agent);
            }
            Order::Start(settings) => link_says!("registered as {}, and the network is isolated: the program may start", settings.agent),
            Order::Abandoned => {
                link_says!("no gateway has answered for longer than the pool's heartbeatTimeoutSeconds: the program must end");
            }
            Order::WallsDown(reachable) => {
                link_says!("the network is not isolated, {} can be reached: the program must end", reachable.join(", "));
            }
            Order::Wanted(wanted) => link_says!("desired state: {:?} (revision {})", wanted.directive, wanted.revision),
            Order::Key(_) | Order::Activity { .. } | Order::Item(_) | Order::Said(..) | Order::Settled(_) | Order::CommitNamed(_) => {}
        }
        if let Some((_, supervisor)) = &self.supervisor
            && !supervisor.tell(order)
        {
            link_says!("the supervisor does not read its orders: its connection is closed");
            self.supervisor = None;
            self.state.disconnected();
        }
    }

    /// Sends the directive to the process that ends the program. Before the registration it is `Run`, and `Stop` stays for good.
    fn send_directive(&self, wanted: &watch::Sender<Directive>) {
        let directive = self.state.current().directive;
        let over = |known: Directive| known == Directive::Stop;
        wanted.send_if_modified(|known| !over(*known) && std::mem::replace(known, directive) != directive);
    }

    /// The answer about a request that no gateway has accepted: kept, if the journal is written.
    pub(super) fn kept_reply(&self) -> Reply {
        if self.journal.is_fully_written() { Reply::Kept } else { not_kept_reply() }
    }

    /// Keeps a goodbye; returns whether it is written. It is delivered in any case.
    pub(super) fn keep_goodbye(&mut self, goodbye: Goodbye) -> bool {
        let kept = self.journal.keep_goodbye(&goodbye);
        if let Err(error) = &kept {
            link_says!("cannot write a goodbye to the journal: {error}");
        }
        self.goodbye.send_replace(Some(goodbye));
        kept.is_ok()
    }
}

/// The answer if no gateway has accepted a request, and it would be lost with this process.
pub(super) fn not_kept_reply() -> Reply {
    let message =
        "no gateway has accepted this yet, and the sidecar cannot write it to its journal. The sidecar keeps trying; repeat it to be sure";
    Reply::Refused(Refusal::new(spillway_wire::Code::GovernorAway, message).retry_after(5))
}
