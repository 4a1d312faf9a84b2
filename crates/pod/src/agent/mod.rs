//! The supervisor: process 1 of the agent's container, or a child of `spillway-agent run` outside the cluster. It holds no secret.
//!
//! One loop on one thread starts the program after an order of the sidecar, reaps every orphan, watches, and ends all processes
//! when it must. The loop never blocks: the sidecar, a hook or a slow reader of the output cannot stop it.
//!
//! | file | for |
//! |---|---|
//! | [`life`], [`item`], [`preflight`], [`watchdog`], [`health`] | pure decisions: program, items, preflight, hanging commands, report |
//! | [`changeset`], [`command_run`] | pure decisions: the clone for an item, and the commit of its changes; one run of a command |
//! | [`control`] | the connection to the sidecar |
//! | [`processes`], [`output`], [`plain_text`], [`terminal`] | the kernel's processes; the program's output and terminal |
//! | [`environment`], [`home`], [`item_files`], [`notices`] | what the program finds: variables, home, task and result, notices |
//! | `confinement`, [`refusal_counts`] | the sandbox of all that we start, and what it refuses |
//! | `supervisor`, `options`, `start`, `changeset_steps`, `hooks`, `hung`, `notice_queue` | the state of the loop, and its actions by subject |

pub mod changeset;
mod changeset_steps;
pub mod command_run;
mod confinement;
pub mod control;
pub mod environment;
pub mod health;
pub mod home;
mod hooks;
mod hung;
pub mod item;
pub mod item_files;
pub mod life;
mod notice_queue;
pub mod notices;
mod options;
pub mod output;
pub mod plain_text;
pub mod preflight;
pub mod processes;
pub mod refusal_counts;
mod start;
mod supervisor;
pub mod terminal;
pub mod watchdog;

use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::process::{DumpableBehavior, Signal, set_dumpable_behavior};
use spillway_wire::agent::{Program, Report};
use spillway_wire::link::Order;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use crate::clock::BootTime;
use crate::command::shell;
use crate::{FAIL_CLOSED_EXIT_CODE, SOCKET_PATH, SOCKET_VARIABLE, agent_says};
use command_run::RunEvent;
use control::SupervisorReport;
use hung::{limits_of, mode_of};
use item::RunOutput;
use life::{Action, Event};
use output::LastOutput;
use processes::{Change, Init, Reaped};
use supervisor::Supervisor;

pub use options::Options;

/// Between two checks of the program.
const PROGRAM_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The most notices that wait to be written.
const MAX_UNWRITTEN_NOTICES: usize = 256;
/// Between two tries to write a notice that could not be written.
const NOTICE_RETRY_DELAY: Duration = Duration::from_secs(5);
/// At the end: time limits to copy the rest of the program's output, and to report to the sidecar.
const FINAL_OUTPUT_TIMEOUT: Duration = Duration::from_secs(2);
const FINAL_REPORT_TIMEOUT: Duration = Duration::from_millis(500);

/// Runs the supervisor; returns the exit code.
pub fn run(options: Options) -> io::Result<u8> {
    let mut init = match options.parent {
        Some(parent) => Init::below(parent)?,
        // At the end every visible process is killed. Outside its own container that would be every process of the machine.
        None => match Init::new(options.max_processes) {
            Some(init) => init,
            None => {
                agent_says!("the program is not started: the supervisor must be PID 1 of its container");
                return Ok(FAIL_CLOSED_EXIT_CODE);
            }
        },
    };
    options.home.make()?;
    let own = std::env::current_exe()?;
    let bin = own.parent().unwrap_or(Path::new(crate::BIN_DIR)).to_owned();
    // The program has our uid. It must neither read our memory nor trace us.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let (environment, timed_path) = match options.parent {
        // The environment of the person, with our variables in it. The shells are not replaced by timed ones.
        Some(_) => (std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value))).collect(), None),
        None => {
            let mut built = environment::build(|name| std::env::var_os(name), &options.pass, &bin, &options.data, options.tty);
            if options.socket != Path::new(SOCKET_PATH) {
                built.insert(SOCKET_VARIABLE.to_owned(), options.socket.clone().into());
            }
            let timed_path = environment::with_timed_shells(built.get("PATH"), &bin, shell::is_program);
            (built, timed_path)
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if options.parent.is_none() {
        init.confine(confinement::prepare(&options, &bin));
    }
    let code = runtime.block_on(async move { Supervisor::new(init, options, own, environment, timed_path).run().await })?;
    Ok(code)
}

/// Waits until all output of the program was read.
async fn wait_for_output(copying: &mut Option<mpsc::Receiver<()>>) {
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
        tokio::spawn(control::keep(self.options.socket.clone(), self.reports.subscribe(), said, orders));
        loop {
            // Orders come first: the end of a process is judged by what the program has reported before.
            while let Ok(order) = received.try_recv() {
                self.take(order);
            }
            let wake = self.settle();
            if let Some(code) = self.leave {
                self.send_last_report(&mut heard).await;
                return Ok(code);
            }
            tokio::select! {
                biased;
                _ = terminate.recv() => self.on(Event::Terminate),
                _ = children.recv() => {}
                Some(order) = received.recv() => self.take(order),
                () = wait_for_output(&mut self.output_copied), if self.copying() => self.read_all(),
                () = sleep(wake) => {}
            }
        }
    }

    /// Handles all that is due now: ended processes, checks, timers. Returns for how long nothing is due.
    fn settle(&mut self) -> Duration {
        self.reap();
        let now = BootTime::now();
        if now >= self.look_at {
            self.look_at = now.after(PROGRAM_CHECK_INTERVAL);
            self.look(now);
        }
        self.on(Event::Tick);
        if self.leave.is_none() {
            self.on_preflight(RunEvent::Tick);
        }
        if self.leave.is_none() {
            self.on_changeset(RunEvent::Tick);
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
        for due in [
            self.life.wake(),
            self.preflight.wake(),
            self.items.wake(),
            self.changeset.wake(),
            self.next_watchdog_check(),
            self.warning.as_ref().map(|hook| hook.until),
        ]
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
                Action::Log(what) => agent_says!("{what}"),
                Action::Leave(code) => self.leave = Some(code),
            }
        }
        if self.life.ending() {
            self.on_item(item::Event::Draining);
        }
    }

    fn on_preflight(&mut self, event: RunEvent) {
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
                    // The output of the preflight is no output of the program.
                    (self.output, self.output_copied) = (LastOutput::default(), None);
                    if let Some(settings) = self.start_with.take() {
                        self.on(Event::Order(Order::Start(Box::new(settings))));
                    }
                }
            }
        }
    }

    /// Whether the end of the output is waited for.
    fn copying(&self) -> bool {
        self.items.copying() || self.preflight.copying() || self.changeset.copying()
    }

    /// All output of the preflight, of a step, or of the run, was read.
    fn read_all(&mut self) {
        self.on_preflight(RunEvent::Copied);
        self.on_changeset(RunEvent::Copied);
        self.on_item(item::Event::Copied);
    }

    fn on_item(&mut self, event: item::Event) {
        let now = BootTime::now();
        let actions = self.items.on(now, event);
        self.run_item_actions(now, actions);
    }

    fn run_item_actions(&mut self, now: BootTime, actions: Vec<item::Action>) {
        self.confine_for_item();
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
                    self.run_item_actions(now, actions);
                }
                item::Action::Checkpoint(pause) => self.take_checkpoint(now, pause),
                item::Action::Notice(about, text) => self.notice(now, about, text),
                item::Action::Prepare => self.prepare_changeset(),
                item::Action::Commit => self.commit_changeset(),
                item::Action::StopChangeset => self.stop_changeset(),
            }
        }
    }

    fn ask_all(&self) {
        self.init.signal_all(Signal::TERM);
        if self.options.tty {
            // A shell at a terminal ignores SIGTERM.
            self.init.signal_all(Signal::HUP);
        }
        // A stopped process reacts only to this signal and to SIGKILL.
        self.init.signal_all(Signal::CONT);
    }

    fn take(&mut self, order: Order) {
        // The program's life comes first, since an item may need a started program.
        match &order {
            Order::Start(settings) => self.may_start(settings),
            Order::Key(_)
            | Order::Wanted(_)
            | Order::Abandoned
            | Order::WallsDown(_)
            | Order::Activity { .. }
            | Order::Item(_)
            | Order::Said(..)
            | Order::Settled(_)
            | Order::CommitNamed(_) => self.on(Event::Order(order.clone())),
        }
        match order {
            Order::Start(settings) => {
                self.items.settings(&settings);
                self.warn_hook.clone_from(&settings.warn_hook);
                self.watchdog.limit(limits_of(&settings, self.options.tty));
                self.untimed = settings.untimed.exempts_every_command();
                self.watchdog.mode(mode_of(&settings.wanted));
                self.checkpoint_hook.clone_from(&settings.checkpoint_hook);
                self.queue_new_notices(&settings.wanted);
                self.on_item(item::Event::Wanted(settings.wanted.item));
            }
            Order::Wanted(wanted) => {
                self.watchdog.mode(mode_of(&wanted));
                self.queue_new_notices(&wanted);
                self.on_item(item::Event::Wanted(wanted.item));
            }
            Order::Activity { action, called } => {
                self.health.note_activity(BootTime::now());
                if let Some(called) = called {
                    self.watchdog.set_model_calls(called);
                }
                if action.is_some() {
                    self.health.action(action);
                }
            }
            Order::Item(assignment) => self.on_item(item::Event::Take(assignment)),
            Order::Said(held, outcome) => self.on_item(item::Event::ReportedByProgram(held, outcome)),
            Order::Settled(held) => self.on_item(item::Event::Settled(held)),
            Order::CommitNamed(commit) => self.commit_named(&commit),
            Order::Key(_) | Order::Abandoned | Order::WallsDown(_) => {}
        }
    }

    /// Reaps every process that ended, and notes those that were stopped or continued.
    fn reap(&mut self) {
        loop {
            match self.init.reap() {
                Reaped::Change(pid, change) => self.on_process_change(pid, change),
                Reaped::Nothing => return,
                Reaped::Empty => {
                    if self.preflight.clearing() {
                        self.on_preflight(RunEvent::Empty);
                    }
                    if self.changeset.clearing() {
                        self.on_changeset(RunEvent::Empty);
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

    fn on_process_change(&mut self, pid: i32, change: Change) {
        let now = BootTime::now();
        if self.program == Some(pid) {
            match change {
                Change::Ended(exit) => {
                    self.program = None;
                    if self.items.per_item() {
                        self.health.mark_waiting();
                    } else {
                        self.health.ended();
                    }
                    // The item must know that the program ended by itself before the end of the container begins.
                    self.on_item(item::Event::Ended(exit));
                    self.on(Event::Ended(exit.code));
                }
                Change::Stopped => self.health.frozen(now, true),
                Change::Continued => self.health.frozen(now, false),
            }
        } else if let Change::Ended(exit) = change {
            let code = exit.code;
            if self.preflight_pid == Some(pid) {
                self.preflight_pid = None;
                self.on_preflight(RunEvent::Ended(exit));
            } else if self.step_pid == Some(pid) {
                self.step_pid = None;
                self.on_changeset(RunEvent::Ended(exit));
            } else if self.drain == Some(pid) {
                self.drain = None;
                if code != 0 {
                    agent_says!("the drain hook ended with exit code {code}");
                }
                self.on(Event::HookEnded);
            } else if !self.take_checkpoint_end(pid, code) && self.warning.as_ref().is_some_and(|hook| hook.pid == pid) {
                self.warning = None;
                if code != 0 {
                    agent_says!("the warn hook ended with exit code {code}");
                }
            }
        }
    }

    /// Checks what no signal reports: whether the program is stopped, its output, and its terminal.
    fn look(&mut self, now: BootTime) {
        if let Some(frozen) = self.program.and_then(processes::stopped) {
            self.health.frozen(now, frozen);
        }
        self.health.note_activity(self.output.last_write());
        if let Some(terminal) = &mut self.terminal {
            let used = terminal.look(now);
            if let Some(typed) = used.typed {
                self.health.terminal(typed);
            }
            if let Some(written) = used.written {
                self.health.note_activity(written);
            }
        }
    }

    /// Reports to the sidecar, if something changed or the program was active since the last report.
    fn tell(&mut self, now: BootTime) {
        let (held, preflight, checkpoint) = (self.items.held(), self.preflight.reported_state(), self.checkpoint.clone());
        // The sidecar knows what the kernel can, and not what went wrong here.
        let (refused, unavailable) = (self.init.refusals(), self.init.unavailable().cloned());
        let report = Report { held, preflight, checkpoint, refused, unavailable, ..self.health.report(now) };
        let finished = self.items.finished();
        let (ended, hung, commit) = (self.leave.is_some(), self.hung, self.changeset.announced());
        let active = self.health.last_active() > self.told_active;
        self.told_active = self.health.last_active();
        self.reports.send_if_modified(|told| {
            let news = active
                || told.as_ref().is_none_or(|told| {
                    told.ended != ended
                        || told.hung != hung
                        || told.finished != finished
                        || told.commit != commit
                        || told.report.held != report.held
                        || told.report.preflight != report.preflight
                        || told.report.checkpoint != report.checkpoint
                        || told.report.refused.uses != report.refused.uses
                        || (told.report.refused != report.refused && now >= self.counts_told_at.after(PROGRAM_CHECK_INTERVAL))
                        || told.report.unavailable != report.unavailable
                        || told.report.program != report.program
                        || told.report.action != report.action
                        || told.report.attached != report.attached
                        || told.report.notices_seen != report.notices_seen
                });
            if news {
                self.counts_told_at = now;
                *told = Some(SupervisorReport { report, ended, hung, finished, commit });
            }
            news
        });
    }

    /// The program has ended: copies its last output, and reports the end to the sidecar.
    async fn send_last_report(mut self, heard: &mut watch::Receiver<Option<SupervisorReport>>) {
        if self.preflight_pid.is_some() || self.step_pid.is_some() {
            self.init.signal_all(Signal::KILL); // they would be killed with us, and keep their output open until then
        }
        let _ = timeout(FINAL_OUTPUT_TIMEOUT, wait_for_output(&mut self.output_copied)).await; // the reader of our output may have stopped
        self.on_item(item::Event::Leave);
        if self.items.per_item() {
            self.health.ended();
        }
        self.tell(BootTime::now());
        if let Some(report) = self.init.observed() {
            report.lines().for_each(|line| agent_says!("{line}"));
        }
        if self.health.report(BootTime::now()).program != Program::Waiting || self.init.unavailable().is_some() {
            let told = heard.wait_for(|told| told.as_ref().is_some_and(|told| told.ended));
            let _ = timeout(FINAL_REPORT_TIMEOUT, told).await; // without it, the controller learns the end from the kubelet
        }
    }
}
