//! The supervisor: PID 1 of the agent's container; outside the cluster a process below who started it. It holds no secret.
//!
//! One loop on one thread: it starts the program when the sidecar says so, reaps every orphan, measures, and ends everything
//! when told. What it decides is in [`life`], [`preflight`], [`item`], [`watchdog`] and [`health`]. It never waits for anybody: the sidecar, a hook or a slow reader
//! of its output cannot keep it from reaping and ending.

pub mod control;
pub mod environment;
pub mod health;
pub mod home;
mod hooks;
mod hung;
pub mod item;
pub mod item_files;
pub mod life;
pub mod notices;
mod options;
pub mod output;
pub mod plain_text;
pub mod preflight;
pub mod processes;
mod supervisor;
pub mod terminal;
pub mod watchdog;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::process::{DumpableBehavior, Signal, set_dumpable_behavior};
use spillway_wire::agent::{DesiredState, Input, Notice, Program, Report, Settings};
use spillway_wire::link::Order;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use crate::clock::BootTime;
use crate::command::shell;
use crate::{EXIT_CLOSED, OWN_NOTICES, SOCKET, SOCKET_VARIABLE, agent_says, clock};
use control::SupervisorReport;
use hooks::WARNINGS;
use hung::{limits_of, mode_of};
use item::RunOutput;
use item_files::{ItemFiles, PAYLOAD, RESULT};
use life::{Action, Event};
use notices::Notices;
use output::{LastOutput, Stream};
use processes::{Change, Init, Reaped, Started};
use supervisor::Supervisor;

pub use options::Options;

/// Between two looks at the program.
const LOOK: Duration = Duration::from_secs(1);
/// Notices that wait to be written.
const UNWRITTEN: usize = 256;
/// Between two tries to write a notice that could not be written.
const WRITE_AGAIN: Duration = Duration::from_secs(5);
/// At the end, for what is still in the program's pipes and for the sidecar to be told.
const LAST: Duration = Duration::from_secs(2);
const TELL_LAST: Duration = Duration::from_millis(500);

/// Runs the supervisor; gives the exit code.
pub fn run(options: Options) -> io::Result<u8> {
    let init = match options.parent {
        Some(parent) => Init::below(parent)?,
        // Everything that can be seen is killed at the end: outside a container of its own that would be everything there is.
        None => match Init::new(options.max_processes) {
            Some(init) => init,
            None => {
                agent_says!("not started: the supervisor must be PID 1 of its container");
                return Ok(EXIT_CLOSED);
            }
        },
    };
    options.home.make()?;
    let own = std::env::current_exe()?;
    let bin = own.parent().unwrap_or(Path::new(crate::BIN_DIR)).to_owned();
    // The program has our uid: it must not read our memory, nor trace us.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let (environment, timed_path) = match options.parent {
        // A person's own, with what is ours in it; its shells stay what they are.
        Some(_) => (std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value))).collect(), None),
        None => {
            let mut built = environment::build(|name| std::env::var_os(name), &options.pass, &bin, &options.data, options.tty);
            if options.socket != Path::new(SOCKET) {
                built.insert(SOCKET_VARIABLE.to_owned(), options.socket.clone().into());
            }
            let timed_path = environment::with_timed_shells(built.get("PATH"), &bin, shell::is_program);
            (built, timed_path)
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let code = runtime.block_on(async move { Supervisor::new(init, options, environment, timed_path).run().await })?;
    Ok(code)
}

/// All that the program wrote was read.
async fn copied(copying: &mut Option<mpsc::Receiver<()>>) {
    if let Some(copying) = copying {
        copying.recv().await;
    }
}

impl Supervisor {
    async fn run(mut self) -> io::Result<u8> {
        let mut children = signal(SignalKind::child())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let (orders, mut received) = mpsc::channel(64);
        let said = watch::Sender::new(None);
        let mut heard = said.subscribe();
        tokio::spawn(control::keep(self.options.socket.clone(), self.told.subscribe(), said, orders));
        loop {
            // Before anything is judged that happened since: what was said of it.
            while let Ok(order) = received.try_recv() {
                self.take(order);
            }
            let wake = self.settle();
            if let Some(code) = self.leave {
                self.last_words(&mut heard).await;
                return Ok(code);
            }
            tokio::select! {
                biased;
                _ = terminate.recv() => self.on(Event::Terminate),
                _ = children.recv() => {}
                Some(order) = received.recv() => self.take(order),
                () = copied(&mut self.copying), if self.items.copying() || self.preflight.copying() => self.read_all(),
                () = sleep(wake) => {}
            }
        }
    }

    /// Brings everything up to now: what ended, what has to be looked at, what is due. Says for how long nothing is.
    fn settle(&mut self) -> Duration {
        self.reap();
        let now = BootTime::now();
        if now >= self.look_at {
            self.look_at = now.after(LOOK);
            self.look(now);
        }
        self.on(Event::Tick);
        if self.leave.is_none() {
            self.on_preflight(preflight::Event::Tick);
        }
        self.on_item(item::Event::Tick);
        self.watch(now);
        self.write_notices(now);
        self.warn(now);
        self.hasten_checkpoint(now);
        if self.leave.is_none() {
            self.tell(now);
        }
        let mut wake = self.look_at;
        for due in
            [self.life.wake(), self.preflight.wake(), self.items.wake(), self.watch_at(), self.warning.as_ref().map(|hook| hook.until)]
                .into_iter()
                .chain([self.checkpointing.as_ref().map(|(hook, _)| hook.until)])
                .flatten()
        {
            wake = wake.min(due);
        }
        wake.since(BootTime::now()).max(Duration::from_millis(1))
    }

    fn on(&mut self, event: Event) {
        let now = BootTime::now();
        for action in self.life.on(now, event) {
            match action {
                Action::Start => self.start(now),
                Action::DrainHook(command) => self.drain(&command),
                Action::AskAll => self.ask_all(),
                Action::KillAll => self.init.signal_all(Signal::KILL),
                Action::Say(what) => agent_says!("{what}"),
                Action::Leave(code) => self.leave = Some(code),
            }
        }
        if self.life.ending() {
            self.on_item(item::Event::Draining);
        }
    }

    fn on_preflight(&mut self, event: preflight::Event) {
        let now = BootTime::now();
        let actions = self.preflight.on(now, event);
        self.prepare(now, actions);
    }

    fn prepare(&mut self, now: BootTime, actions: Vec<preflight::Action>) {
        for action in actions {
            match action {
                preflight::Action::Run(command) => self.check(&command),
                preflight::Action::KillAll => self.init.signal_all(Signal::KILL),
                preflight::Action::Judge => {
                    let tail = self.output.tail();
                    let actions = self.preflight.judge(now, &tail);
                    if let Some(words) = self.preflight.failure() {
                        agent_says!("the program is not started: {words}");
                    }
                    self.prepare(now, actions);
                }
                preflight::Action::Start => {
                    // Of what the preflight wrote nothing is the program's.
                    (self.output, self.copying) = (LastOutput::default(), None);
                    if let Some(settings) = self.start_with.take() {
                        self.on(Event::Order(Order::Start(Box::new(settings))));
                    }
                }
            }
        }
    }

    /// All that was written was read, by whoever wrote it.
    fn read_all(&mut self) {
        self.on_preflight(preflight::Event::Copied);
        self.on_item(item::Event::Copied);
    }

    fn on_item(&mut self, event: item::Event) {
        let now = BootTime::now();
        let actions = self.items.on(now, event);
        self.work(now, actions);
    }

    fn work(&mut self, now: BootTime, actions: Vec<item::Action>) {
        for action in actions {
            match action {
                item::Action::Run { turn, text, input } => {
                    if let Err((code, why)) = self.start_for_item(now, turn, &text, input) {
                        agent_says!("{why}");
                        self.on_item(item::Event::NotStarted(code, why));
                    }
                }
                item::Action::AskAll => self.ask_all(),
                item::Action::KillAll => self.init.signal_all(Signal::KILL),
                item::Action::Conclude => {
                    let result = self.item_files.as_ref().and_then(|files| item::result_of(&files.result()));
                    self.health.action(None);
                    let words = RunOutput { result, output: self.output.standard_output(), tail: self.output.tail() };
                    let actions = self.items.conclude(now, words);
                    self.work(now, actions);
                }
                item::Action::Checkpoint(pause) => self.take_checkpoint(now, pause),
                item::Action::Notice(about, text) => self.notice(now, about, text),
            }
        }
    }

    /// A notice of our own.
    fn notice(&mut self, now: BootTime, about: &str, text: String) {
        self.own_notices += 1;
        let notice = Notice { id: OWN_NOTICES + self.own_notices, time: clock::wall(), about: about.to_owned(), text };
        notices::queue_own(&mut self.unwritten, notice, UNWRITTEN);
        self.write_at = now;
    }

    fn ask_all(&self) {
        self.init.signal_all(Signal::TERM);
        if self.options.tty {
            // A shell at a terminal ignores the other one.
            self.init.signal_all(Signal::HUP);
        }
        // A stopped process takes no signal but this one and SIGKILL.
        self.init.signal_all(Signal::CONT);
    }

    fn take(&mut self, order: Order) {
        // Of the program first: that it starts. Of its item next, which it may need.
        match &order {
            Order::Start(settings) => self.may_start(settings),
            Order::Key(_)
            | Order::Wanted(_)
            | Order::Abandoned
            | Order::WallsDown(_)
            | Order::Activity { .. }
            | Order::Item(_)
            | Order::Said(..)
            | Order::Settled(_) => self.on(Event::Order(order.clone())),
        }
        match order {
            Order::Start(settings) => {
                self.items.settings(&settings);
                self.warn_hook.clone_from(&settings.warn_hook);
                self.watchdog.limit(limits_of(&settings, self.options.tty));
                self.untimed = settings.untimed.all();
                self.watchdog.mode(mode_of(&settings.wanted));
                self.checkpoint_hook.clone_from(&settings.checkpoint_hook);
                self.note(&settings.wanted);
                self.on_item(item::Event::Wanted(settings.wanted.item));
            }
            Order::Wanted(wanted) => {
                self.watchdog.mode(mode_of(&wanted));
                self.note(&wanted);
                self.on_item(item::Event::Wanted(wanted.item));
            }
            Order::Activity { action, called } => {
                self.health.active(BootTime::now());
                if let Some(called) = called {
                    self.watchdog.called(called);
                }
                if action.is_some() {
                    self.health.action(action);
                }
            }
            Order::Item(assignment) => self.on_item(item::Event::Take(assignment)),
            Order::Said(held, outcome) => self.on_item(item::Event::Said(held, outcome)),
            Order::Settled(held) => self.on_item(item::Event::Settled(held)),
            Order::Key(_) | Order::Abandoned | Order::WallsDown(_) => {}
        }
    }

    /// The program may be started, as far as the sidecar is concerned: its preflight comes first.
    fn may_start(&mut self, settings: &Settings) {
        // As it is said last: a sidecar that comes again may know better.
        self.start_with = Some(settings.clone());
        self.on_preflight(preflight::Event::Begin(settings.preflight_command.clone()));
        if self.preflight.passed()
            && let Some(settings) = self.start_with.take()
        {
            self.on(Event::Order(Order::Start(Box::new(settings))));
        }
    }

    /// Runs the preflight command: as the program, but with nothing to read and no terminal.
    fn check(&mut self, command: &[String]) {
        let command: Vec<OsString> = command.iter().map(OsString::from).collect();
        (self.output, self.copying) = (LastOutput::default(), None);
        match self.init.start(&command, &self.environment, b"", false) {
            Ok(started) => {
                self.checking = Some(started.pid);
                self.copy(started);
            }
            Err(error) => {
                let name = command.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                self.on_preflight(preflight::Event::NotStarted(format!("cannot start {name}: {error}")));
            }
        }
    }

    fn start(&mut self, now: BootTime) {
        match self.init.start(&self.options.command, &self.of_program(), b"", self.options.tty) {
            Ok(started) => self.started(now, started),
            Err(error) => {
                let (code, why) = self.not_started(&error);
                agent_says!("{why}");
                self.health.started(now);
                self.health.ended();
                self.on(Event::NotStarted(code));
            }
        }
    }

    /// Puts the item where the program finds it, and runs the program. Otherwise: the exit code, and why.
    fn start_for_item(&mut self, now: BootTime, turn: u32, text: &str, input: Input) -> Result<(), (u8, String)> {
        let Some(item) = self.items.assignment() else { return Ok(()) };
        if self.item_files.is_none() {
            self.item_files = ItemFiles::open(&self.options.data).ok();
        }
        let files = self.item_files.as_ref().ok_or_else(|| io::Error::other("there is no such folder"));
        let put = files.and_then(|files| {
            if turn == 1 {
                files.put(RESULT, b"")?;
            }
            if turn == 1 || input == Input::File { files.put(PAYLOAD, text.as_bytes()) } else { Ok(()) }
        });
        put.map_err(|error| (126, format!("cannot write the item to {}: {error}", self.options.data.display())))?;
        let of_item = environment::of_item(item, turn, &self.options.data);
        let mut command = self.options.command.clone();
        if input == Input::Argument {
            command.push(text.into());
        }
        let stdin = if input == Input::Stdin { text.as_bytes() } else { b"" };
        self.of_item = of_item;
        // Of what an earlier item wrote nothing is this one's.
        self.output = LastOutput::default();
        self.copying = None;
        let started = self.init.start(&command, &self.of_program(), stdin, self.options.tty);
        let started = started.map_err(|error| self.not_started(&error))?;
        self.life.busy();
        self.started(now, started);
        Ok(())
    }

    /// As a shell says it: not found, or found and not to be run.
    fn not_started(&self, error: &io::Error) -> (u8, String) {
        let name = self.options.command.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        (if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }, format!("cannot start {name}: {error}"))
    }

    /// The environment of the program and of hooks, now.
    fn environment(&self) -> BTreeMap<String, OsString> {
        let mut environment = self.environment.clone();
        if self.items.held().is_some() {
            environment.extend(self.of_item.clone());
        }
        environment
    }

    /// The environment of the program: its shells are timed. A hook has a time of its own.
    fn of_program(&self) -> BTreeMap<String, OsString> {
        let mut environment = self.environment();
        environment.extend(self.timed_path.clone().filter(|_| !self.untimed).map(|path| ("PATH".to_owned(), path)));
        environment
    }

    fn started(&mut self, now: BootTime, started: Started) {
        self.program = Some(started.pid);
        self.watchdog.program_started(now);
        self.health.started(now);
        self.copy(started);
    }

    /// Copies what it writes, until its end.
    fn copy(&mut self, started: Started) {
        if let Some((out, err)) = started.output {
            let (ended, copying) = mpsc::channel(1);
            self.copying = Some(copying);
            let copied = output::copy((out, Stream::Out), io::stdout(), self.output.clone(), ended.clone())
                .and_then(|()| output::copy((err, Stream::Err), io::stderr(), self.output.clone(), ended));
            if let Err(error) = copied {
                // Its pipe is closed: the program will notice. There is no sensible way to go on.
                agent_says!("cannot copy the program's output: {error}");
                self.init.signal_all(Signal::KILL);
            }
        }
    }

    /// Takes every process that ended, or was stopped or continued.
    fn reap(&mut self) {
        loop {
            match self.init.reap() {
                Reaped::Change(pid, change) => self.changed(pid, change),
                Reaped::Nothing => return,
                Reaped::Empty => {
                    if self.preflight.clearing() {
                        self.on_preflight(preflight::Event::Empty);
                    }
                    if self.items.clearing() {
                        self.on_item(item::Event::Empty);
                    }
                    if self.life.ending() {
                        self.on(Event::Empty);
                    }
                    return;
                }
            }
        }
    }

    fn changed(&mut self, pid: i32, change: Change) {
        let now = BootTime::now();
        if self.program == Some(pid) {
            match change {
                Change::Ended(exit) => {
                    self.program = None;
                    if self.items.per_item() {
                        self.health.rested();
                    } else {
                        self.health.ended();
                    }
                    // Whether it ended by itself is known before the container's end begins.
                    self.on_item(item::Event::Ended(exit));
                    self.on(Event::Ended(exit.code));
                }
                Change::Stopped => self.health.frozen(now, true),
                Change::Continued => self.health.frozen(now, false),
            }
        } else if let Change::Ended(exit) = change {
            let code = exit.code;
            if self.checking == Some(pid) {
                self.checking = None;
                self.on_preflight(preflight::Event::Ended(exit));
            } else if self.drain == Some(pid) {
                self.drain = None;
                if code != 0 {
                    agent_says!("the drain hook ended with {code}");
                }
                self.on(Event::HookEnded);
            } else if !self.was_checkpoint(pid, code) && self.warning.as_ref().is_some_and(|hook| hook.pid == pid) {
                self.warning = None;
                if code != 0 {
                    agent_says!("the warn hook ended with {code}");
                }
            }
        }
    }

    /// Looks at what no signal tells.
    fn look(&mut self, now: BootTime) {
        if let Some(frozen) = self.program.and_then(processes::stopped) {
            self.health.frozen(now, frozen);
        }
        self.health.active(self.output.get());
        if let Some(terminal) = &mut self.terminal {
            let used = terminal.look(now);
            if let Some(typed) = used.typed {
                self.health.terminal(typed);
            }
            if let Some(written) = used.written {
                self.health.active(written);
            }
        }
    }

    /// Queues the notices that are new.
    fn note(&mut self, wanted: &DesiredState) {
        let newest = self.unwritten.iter().rev().map(|notice| notice.id).find(|id| *id < OWN_NOTICES).unwrap_or(self.health.seen());
        let room = UNWRITTEN.saturating_sub(self.unwritten.len());
        // What finds no room is not acknowledged either, and comes again.
        self.unwritten.extend(wanted.notices.iter().filter(|notice| notice.id > newest).take(room).cloned());
        self.write_at = BootTime::now();
    }

    /// Writes them down; only what is written counts as delivered.
    fn write_notices(&mut self, now: BootTime) {
        if self.unwritten.is_empty() || now < self.write_at {
            return;
        }
        if self.notices.is_none() {
            self.notices = Notices::open(&self.options.data).ok();
        }
        while let (Some(notice), Some(file)) = (self.unwritten.front(), &self.notices) {
            if let Err(error) = file.append(notice) {
                agent_says!("notice {} cannot be written: {error}; trying again", notice.id);
                break;
            }
            if notice.id < OWN_NOTICES {
                self.health.notices_seen(notice.id);
            }
            self.warnings.extend(self.unwritten.pop_front());
        }
        notices::keep_last(&mut self.warnings, WARNINGS);
        self.write_at = now.after(WRITE_AGAIN);
    }

    /// Lets the sidecar know, if it matters: something changed, or the program was active since.
    fn tell(&mut self, now: BootTime) {
        let (held, preflight, checkpoint) = (self.items.held(), self.preflight.told(), self.checkpoint.clone());
        let report = Report { held, preflight, checkpoint, ..self.health.report(now) };
        let finished = self.items.finished();
        let (ended, hung) = (self.leave.is_some(), self.hung);
        let active = self.health.last_active() > self.told_active;
        self.told_active = self.health.last_active();
        self.told.send_if_modified(|told| {
            let news = active
                || told.as_ref().is_none_or(|told| {
                    told.ended != ended
                        || told.hung != hung
                        || told.finished != finished
                        || told.report.held != report.held
                        || told.report.preflight != report.preflight
                        || told.report.checkpoint != report.checkpoint
                        || told.report.program != report.program
                        || told.report.action != report.action
                        || told.report.attached != report.attached
                        || told.report.notices_seen != report.notices_seen
                });
            if news {
                *told = Some(SupervisorReport { report, ended, hung, finished });
            }
            news
        });
    }

    /// The program is gone: what it wrote last is copied, and the sidecar is told, if it listens.
    async fn last_words(mut self, heard: &mut watch::Receiver<Option<SupervisorReport>>) {
        if self.checking.is_some() {
            self.init.signal_all(Signal::KILL); // it would be killed with us, and holds its output open until then
        }
        let _ = timeout(LAST, copied(&mut self.copying)).await; // whoever reads our output may not read any more
        self.on_item(item::Event::Leave);
        if self.items.per_item() {
            self.health.ended();
        }
        self.tell(BootTime::now());
        if self.health.report(BootTime::now()).program != Program::Waiting {
            let told = heard.wait_for(|told| told.as_ref().is_some_and(|told| told.ended));
            let _ = timeout(TELL_LAST, told).await; // it learns from the kubelet then
        }
    }
}
