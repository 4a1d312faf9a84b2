//! One command, from its start to its result. It runs on one thread of a process that runs nothing else, so that all children of
//! the process belong to the command.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal as Number;
use spillway_sandbox::Sandbox;
use tokio::net::unix::pipe::Receiver;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep_until};

use super::capture::{Capture, KEPT_OUTPUT_BYTES};
use super::kind::{self, OwnBinary};
use super::shells::{self, TIMED_VARIABLE};
use super::tree::{Exit, Reaped, Tree};
use crate::install::COMMAND_NAME;

/// Between SIGTERM and SIGKILL.
const KILL_GRACE: Duration = Duration::from_secs(2);
/// Time for processes that are left when the command's own process ends: they may be about to end, and still write something (a
/// `tee` that a shell does not wait for).
const LEFTOVER_GRACE: Duration = Duration::from_millis(100);
/// A process that cannot be killed for this long is given up: it is blocked in the kernel.
const UNKILLABLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two rounds of SIGKILL to all processes.
const KILL_INTERVAL: Duration = Duration::from_millis(10);
/// The longest time between two checks. The process that started us may have blocked signals.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The most bytes of one read.
const READ_CHUNK_BYTES: usize = 16 * 1024;
/// The most bytes that are read from a pipe at a time. No pipe holds more, and a process that stays alive may write for ever.
const MAX_PIPE_READ_BYTES: usize = 1024 * 1024;

/// The program to run.
#[derive(Clone, Debug)]
pub enum RunTarget {
    /// A program and its arguments.
    Program(Vec<OsString>),
    /// A shell. It is killed when we are, because a caller that kills a shell expects that the shell ends.
    Shell {
        /// Its name.
        name: &'static str,
        /// Its arguments.
        arguments: Vec<OsString>,
    },
}

/// The most bytes of a command's output that are kept.
#[derive(Clone, Copy, Debug)]
pub struct KeptBytes {
    /// Of its standard output.
    pub output: usize,
    /// Of its standard error.
    pub errors: usize,
}

impl Default for KeptBytes {
    fn default() -> Self {
        Self { output: KEPT_OUTPUT_BYTES, errors: KEPT_OUTPUT_BYTES }
    }
}

/// A command.
#[derive(Clone, Debug)]
pub struct Job {
    /// The program to run.
    pub what: RunTarget,
    /// The time limit.
    pub within: Duration,
    /// Whether its output is kept. Otherwise it has our output streams.
    pub capture: Option<KeptBytes>,
    /// Whether it has our standard input. Otherwise its input is empty.
    pub input: bool,
    /// Whether processes that it leaves behind stay when it ends by itself.
    pub keep: bool,
    /// Names of programs. If one of them runs when the time is over, the command has no time limit.
    pub meant_to_stay: Vec<String>,
    /// The sandbox around it, outside of an agent's container. Inside, it has the one that we have.
    pub sandbox: Option<Sandbox>,
}

/// How the command's own process ended.
#[derive(Debug)]
pub enum ProcessEnd {
    /// By itself, or by a signal.
    Exit(Exit),
    /// It was not started.
    NotStarted(io::Error),
    /// It cannot be killed.
    Never,
}

/// The result of a command.
#[derive(Debug)]
pub struct RunResult {
    /// How the command's own process ended.
    pub ended: ProcessEnd,
    /// Whether the time was over.
    pub timed_out: bool,
    /// We were asked to end, by this signal.
    pub cancelled: Option<i32>,
    /// Its standard output, if it was kept.
    pub output: Capture,
    /// Its standard error, if it was kept.
    pub errors: Capture,
    /// From its start to its end.
    pub took: Duration,
    /// The number of other processes that were killed, because it left them behind or they did not end when asked.
    pub killed_survivors: usize,
    /// The number of processes that cannot be killed.
    pub unkillable: usize,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// It runs, until this end of its time.
    Running(Instant),
    /// It is meant to stay, and has no time limit.
    Staying,
    /// Its own process has ended; the processes that are left are killed from this time on.
    WaitingForLeftovers(Instant),
    /// It was asked to end; it is killed from this time on.
    Asked(Instant),
    /// It is killed again and again, until `until`.
    Killing { until: Instant, again: Instant },
}

/// The signals to this process.
struct Signals {
    children: Signal,
    ends: [(Number, Signal); 3],
}

impl Signals {
    fn new() -> io::Result<Self> {
        let end = |number: Number, kind| Ok::<_, io::Error>((number, signal(kind)?));
        let ends = [
            end(Number::TERM, SignalKind::terminate())?,
            end(Number::INT, SignalKind::interrupt())?,
            end(Number::HUP, SignalKind::hangup())?,
        ];
        Ok(Self { children: signal(SignalKind::child())?, ends })
    }

    /// The next signal: `None` for a child, or the number of a signal that asks us to end.
    async fn next(&mut self) -> Option<i32> {
        let [(one, first), (two, second), (three, third)] = &mut self.ends;
        tokio::select! {
            _ = self.children.recv() => None,
            _ = first.recv() => Some(one.as_raw()),
            _ = second.recv() => Some(two.as_raw()),
            _ = third.recv() => Some(three.as_raw()),
        }
    }
}

/// A kept output stream of the command.
#[derive(Debug, Default)]
struct Pipe {
    from: Option<Receiver>,
    capture: Capture,
}

impl Pipe {
    fn new(from: Option<impl Into<OwnedFd>>, kept_bytes: usize) -> io::Result<Self> {
        let from = from.map(|from| Receiver::from_owned_fd(from.into())).transpose()?;
        Ok(Self { from, capture: Capture::new(kept_bytes) })
    }

    /// Waits until there is something to read.
    async fn readable(&self) {
        match &self.from {
            Some(from) => drop(from.readable().await), // the next read reports an error
            None => std::future::pending().await,
        }
    }

    /// Reads the available bytes.
    fn read(&mut self) {
        self.read_by(|from, chunk| from.try_read(chunk));
    }

    /// Reads the rest when the command is over. It asks the kernel, because the runtime may not know of the bytes yet.
    fn drain(&mut self) {
        self.read_by(|from, chunk| Ok(rustix::io::read(from, chunk)?));
    }

    fn read_by(&mut self, by: impl Fn(&Receiver, &mut [u8]) -> io::Result<usize>) {
        let mut chunk = [0; READ_CHUNK_BYTES];
        let mut read = 0;
        while let Some(from) = &self.from
            && read < MAX_PIPE_READ_BYTES
        {
            match by(from, &mut chunk) {
                Ok(0) => self.from = None,
                Ok(length) => {
                    self.capture.push(chunk.get(..length).unwrap_or_default());
                    read += length;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.from = None,
            }
        }
    }
}

/// Runs a command to its end, and calls `stays` if a program that is meant to stay runs at the end of the time. Call it once in a
/// process, inside a runtime.
pub async fn run(job: &Job, stays: impl FnOnce()) -> io::Result<RunResult> {
    let tree = Tree::new()?;
    let signals = Signals::new()?;
    let began = Instant::now();
    let mut child = match start(job) {
        Ok(child) => child,
        Err(error) => return Ok(empty_result(ProcessEnd::NotStarted(error), began)),
    };
    let pid = i32::try_from(child.id()).unwrap_or(0);
    let kept = job.capture.unwrap_or_default();
    let pipes = [Pipe::new(child.stdout.take(), kept.output)?, Pipe::new(child.stderr.take(), kept.errors)?];
    // The handle never waits: all processes are reaped in one place.
    let stage = Stage::Running(began + job.within);
    let again = match &job.what {
        RunTarget::Program(_) => Duration::ZERO,
        RunTarget::Shell { .. } => job.within,
    };
    let mut running = Running {
        tree,
        extension: again,
        keep: job.keep,
        meant_to_stay: job.meant_to_stay.clone(),
        pid,
        pipes,
        stage,
        exit: None,
        empty: false,
        killed: BTreeSet::new(),
        result: empty_result(ProcessEnd::Never, began),
    };
    running.follow(signals, stays).await;
    Ok(running.result(began))
}

fn empty_result(ended: ProcessEnd, began: Instant) -> RunResult {
    RunResult {
        ended,
        timed_out: false,
        cancelled: None,
        output: Capture::default(),
        errors: Capture::default(),
        took: began.elapsed(),
        killed_survivors: 0,
        unkillable: 0,
    }
}

fn start(job: &Job) -> io::Result<std::process::Child> {
    let mut command = match &job.what {
        RunTarget::Program(words) => {
            let (program, arguments) =
                words.split_first().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the command is empty"))?;
            let mut command = Command::new(program);
            command.args(arguments);
            command
        }
        RunTarget::Shell { name, arguments } => shells::timed_shell_command(name, arguments),
    };
    match &job.sandbox {
        Some(sandbox) => sandbox.confine(&mut command),
        // In an agent's container, where shells are timed.
        None => {
            command.env(TIMED_VARIABLE, "1");
            if let Some(path) = shells::plain_path() {
                command.env("PATH", path);
            }
        }
    }
    if !job.input {
        command.stdin(Stdio::null());
    }
    if job.capture.is_some() {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    command.spawn()
}

struct Running {
    tree: Tree,
    /// How much longer it may take each time its limit ends while a command with its own limit runs in it. Zero: no longer.
    extension: Duration,
    keep: bool,
    meant_to_stay: Vec<String>,
    pid: i32,
    pipes: [Pipe; 2],
    stage: Stage,
    exit: Option<Exit>,
    /// No process is below us.
    empty: bool,
    killed: BTreeSet<i32>,
    result: RunResult,
}

impl Running {
    async fn follow(&mut self, mut signals: Signals, stays: impl FnOnce()) {
        let mut stays = Some(stays);
        while let Some(wake) = self.settle() {
            if let Stage::Staying = self.stage
                && let Some(stays) = stays.take()
            {
                stays();
            }
            let [output, errors] = &self.pipes;
            let told = tokio::select! {
                told = signals.next() => told,
                () = output.readable() => None,
                () = errors.readable() => None,
                () = sleep_until(wake) => None,
            };
            self.pipes.iter_mut().for_each(Pipe::read);
            if let Some(number) = told {
                self.cancel(number);
            }
        }
        self.pipes.iter_mut().for_each(Pipe::drain);
    }

    /// Handles all that is due now; returns when to check again, or `None` when the command is over.
    fn settle(&mut self) -> Option<Instant> {
        self.reap();
        let now = Instant::now();
        if self.empty || (self.exit.is_some() && self.keep && matches!(self.stage, Stage::Running(_) | Stage::Staying)) {
            return None;
        }
        match self.stage {
            Stage::Running(_) | Stage::Staying if self.exit.is_some() => {
                self.stage = Stage::WaitingForLeftovers(now + LEFTOVER_GRACE);
                Some(now + LEFTOVER_GRACE)
            }
            Stage::Running(until) if now < until => Some(until.min(now + SIGNAL_CHECK_INTERVAL)),
            Stage::Staying => Some(now + SIGNAL_CHECK_INTERVAL),
            Stage::Running(_) if self.is_meant_to_stay() => {
                self.stage = Stage::Staying;
                Some(now + SIGNAL_CHECK_INTERVAL)
            }
            Stage::Running(_) if !self.extension.is_zero() && self.runs_timed_exec() => {
                self.stage = Stage::Running(now + self.extension);
                Some(now + self.extension.min(SIGNAL_CHECK_INTERVAL))
            }
            Stage::Running(_) => {
                self.result.timed_out = true;
                Some(self.ask(now))
            }
            Stage::WaitingForLeftovers(until) | Stage::Asked(until) if now < until => Some(until.min(now + SIGNAL_CHECK_INTERVAL)),
            Stage::WaitingForLeftovers(_) | Stage::Asked(_) => Some(self.kill(now, now + UNKILLABLE_TIMEOUT)),
            Stage::Killing { until, .. } if now >= until => {
                self.result.unkillable = self.tree.living().len();
                None
            }
            Stage::Killing { until, again } if now >= again => Some(self.kill(now, until)),
            Stage::Killing { again, .. } => Some(again),
        }
    }

    fn reap(&mut self) {
        loop {
            match self.tree.reap() {
                Reaped::Ended(pid, exit) if pid == self.pid && self.exit.is_none() => self.exit = Some(exit),
                Reaped::Ended(..) => {}
                Reaped::Nothing => return,
                Reaped::Empty => {
                    self.empty = true;
                    return;
                }
            }
        }
    }

    /// Handles a signal that asks us to end: the command is ended. A second signal skips the grace period.
    fn cancel(&mut self, number: i32) {
        let now = Instant::now();
        if self.exit.is_none() {
            self.result.cancelled.get_or_insert(number);
        }
        match self.stage {
            Stage::Running(_) | Stage::Staying => {
                self.ask(now);
            }
            Stage::WaitingForLeftovers(_) => self.stage = Stage::WaitingForLeftovers(now),
            Stage::Asked(_) => self.stage = Stage::Asked(now),
            Stage::Killing { .. } => {}
        }
    }

    fn is_meant_to_stay(&self) -> bool {
        let stays = |pid: i32| kind::read(pid).is_one_of(&self.meant_to_stay);
        !self.meant_to_stay.is_empty() && self.tree.living().into_iter().any(stays)
    }

    /// Whether `spillway exec` runs in it, whose command has its own time limit.
    fn runs_timed_exec(&self) -> bool {
        let own = OwnBinary::find();
        self.tree.living().into_iter().any(|pid| own.is_run_by(pid) && kind::name(pid) == COMMAND_NAME.as_bytes())
    }

    fn ask(&mut self, now: Instant) -> Instant {
        self.tree.ask();
        self.stage = Stage::Asked(now + KILL_GRACE);
        now + KILL_GRACE
    }

    fn kill(&mut self, now: Instant, until: Instant) -> Instant {
        self.killed.extend(self.tree.kill());
        let again = now + KILL_INTERVAL;
        self.stage = Stage::Killing { until, again };
        again
    }

    fn result(self, began: Instant) -> RunResult {
        let Self {
            tree: _,
            extension: _,
            keep: _,
            meant_to_stay: _,
            pid,
            pipes: [output, errors],
            stage: _,
            exit,
            empty: _,
            killed,
            result: ran,
        } = self;
        RunResult {
            ended: exit.map_or(ProcessEnd::Never, ProcessEnd::Exit),
            output: output.capture,
            errors: errors.capture,
            took: began.elapsed(),
            killed_survivors: killed.iter().filter(|killed| **killed != pid).count(),
            ..ran
        }
    }
}
