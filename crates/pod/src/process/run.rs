//! One command, from its start to its result. It runs on one thread, of a process that runs nothing else: all of that
//! process's children are the command's.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal as Number;
use tokio::net::unix::pipe::Receiver;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep_until};

use super::capture::Capture;
use super::kind::{self, OwnBinary};
use super::shells::{self, TIMED_VARIABLE};
use super::tree::{Exit, Reaped, Tree};
use crate::install::COMMAND_NAME;

/// Between being asked to end and being killed.
const KILL_GRACE: Duration = Duration::from_secs(2);
/// What is left when the command's own process ends may be about to end too, and have something to write still (a `tee` that
/// a shell does not wait for).
const LEFTOVER_GRACE: Duration = Duration::from_millis(100);
/// What cannot be killed for so long is left: the kernel holds it.
const UNKILLABLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two kills of everything.
const KILL_INTERVAL: Duration = Duration::from_millis(10);
/// Signals may be blocked by whoever started us: it is looked at least so often.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Read at once.
const READ_CHUNK_BYTES: usize = 16 * 1024;
/// Read of a pipe at a time: no pipe holds more, and whoever is left alive may write on for ever.
const MAX_PIPE_READ_BYTES: usize = 1024 * 1024;

/// What is run.
#[derive(Clone, Debug)]
pub enum RunTarget {
    /// A program and its arguments.
    Program(Vec<OsString>),
    /// A shell, which is killed with us, as its caller expects of a shell that it kills.
    Shell {
        /// Its name.
        name: &'static str,
        /// Its arguments.
        arguments: Vec<OsString>,
    },
}

/// A command.
#[derive(Clone, Debug)]
pub struct Job {
    /// What is run.
    pub what: RunTarget,
    /// How long it may take.
    pub within: Duration,
    /// Its output is ours to keep; otherwise it writes where we do.
    pub capture: bool,
    /// It reads what we would; otherwise it has nothing to read.
    pub input: bool,
    /// What it leaves behind when it ends by itself stays.
    pub keep: bool,
    /// Names of programs: if one of them runs when its time is over, it has no time.
    pub meant_to_stay: Vec<String>,
}

/// How its own process ended.
#[derive(Debug)]
pub enum ProcessEnd {
    /// By itself, or by a signal.
    Exit(Exit),
    /// It was not started.
    NotStarted(io::Error),
    /// It cannot be killed.
    Never,
}

/// What came of it.
#[derive(Debug)]
pub struct RunResult {
    /// How its own process ended.
    pub ended: ProcessEnd,
    /// Its time was over.
    pub timed_out: bool,
    /// We were asked to end, by this signal.
    pub cancelled: Option<i32>,
    /// What it wrote, if that was ours to keep.
    pub output: Capture,
    /// What it wrote for people, likewise.
    pub errors: Capture,
    /// From its start to its end.
    pub took: Duration,
    /// Processes beside its own that it left behind, or that did not end when they were asked, and that were killed.
    pub killed_survivors: usize,
    /// Processes that cannot be killed.
    pub left: usize,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Until its time is over.
    Running(Instant),
    /// It is meant to stay, and has no time.
    Staying,
    /// Its own process has ended; what is left is killed from then on.
    Leaving(Instant),
    /// Asked to end; from then on it is killed.
    Asked(Instant),
    /// Being killed, again and again, but not for ever.
    Killing { until: Instant, again: Instant },
}

/// The signals that we are told by.
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

    /// A child changed, or, with its number, we are asked to end.
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

/// A stream of the command that is ours to read.
#[derive(Debug, Default)]
struct Pipe {
    from: Option<Receiver>,
    capture: Capture,
}

impl Pipe {
    fn new(from: Option<impl Into<OwnedFd>>) -> io::Result<Self> {
        let from = from.map(|from| Receiver::from_owned_fd(from.into())).transpose()?;
        Ok(Self { from, capture: Capture::default() })
    }

    /// There is something to read.
    async fn readable(&self) {
        match &self.from {
            Some(from) => drop(from.readable().await), // trying to read says what is wrong
            None => std::future::pending().await,
        }
    }

    /// Reads what there is.
    fn read(&mut self) {
        self.read_by(|from, chunk| from.try_read(chunk));
    }

    /// Reads what is in it still when the command is over: asks the kernel, which knows of it before the runtime does.
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

/// Runs a command to its end; `stays` is called when it turns out that it is meant to stay. To be called once in a process, and inside
/// a runtime.
pub async fn run(job: &Job, stays: impl FnOnce()) -> io::Result<RunResult> {
    let tree = Tree::new()?;
    let signals = Signals::new()?;
    let began = Instant::now();
    let mut child = match start(job) {
        Ok(child) => child,
        Err(error) => return Ok(ran(ProcessEnd::NotStarted(error), began)),
    };
    let pid = i32::try_from(child.id()).unwrap_or(0);
    let pipes = [Pipe::new(child.stdout.take())?, Pipe::new(child.stderr.take())?];
    // The handle never waits: reaping is done in one place, for everybody.
    let stage = Stage::Running(began + job.within);
    let again = match &job.what {
        RunTarget::Program(_) => Duration::ZERO,
        RunTarget::Shell { .. } => job.within,
    };
    let mut running = Running {
        tree,
        again,
        keep: job.keep,
        meant_to_stay: job.meant_to_stay.clone(),
        pid,
        pipes,
        stage,
        exit: None,
        empty: false,
        killed: BTreeSet::new(),
        ran: ran(ProcessEnd::Never, began),
    };
    running.follow(signals, stays).await;
    Ok(running.result(began))
}

fn ran(ended: ProcessEnd, began: Instant) -> RunResult {
    RunResult {
        ended,
        timed_out: false,
        cancelled: None,
        output: Capture::default(),
        errors: Capture::default(),
        took: began.elapsed(),
        killed_survivors: 0,
        left: 0,
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
        RunTarget::Shell { name, arguments } => shells::below_timer(name, arguments),
    };
    command.env(TIMED_VARIABLE, "1");
    if let Some(path) = shells::plain_path() {
        command.env("PATH", path);
    }
    if !job.input {
        command.stdin(Stdio::null());
    }
    if job.capture {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    command.spawn()
}

struct Running {
    tree: Tree,
    /// How long it may take once more, where its time ends while a command runs in it that was given one. Zero: it has no more.
    again: Duration,
    keep: bool,
    meant_to_stay: Vec<String>,
    pid: i32,
    pipes: [Pipe; 2],
    stage: Stage,
    exit: Option<Exit>,
    /// Nothing is below us.
    empty: bool,
    killed: BTreeSet<i32>,
    ran: RunResult,
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

    /// Brings everything up to now; says when to look again, unless it is over.
    fn settle(&mut self) -> Option<Instant> {
        self.reap();
        let now = Instant::now();
        if self.empty || (self.exit.is_some() && self.keep && matches!(self.stage, Stage::Running(_) | Stage::Staying)) {
            return None;
        }
        match self.stage {
            Stage::Running(_) | Stage::Staying if self.exit.is_some() => {
                self.stage = Stage::Leaving(now + LEFTOVER_GRACE);
                Some(now + LEFTOVER_GRACE)
            }
            Stage::Running(until) if now < until => Some(until.min(now + SIGNAL_CHECK_INTERVAL)),
            Stage::Staying => Some(now + SIGNAL_CHECK_INTERVAL),
            Stage::Running(_) if self.is_meant_to_stay() => {
                self.stage = Stage::Staying;
                Some(now + SIGNAL_CHECK_INTERVAL)
            }
            Stage::Running(_) if !self.again.is_zero() && self.holds_timed() => {
                self.stage = Stage::Running(now + self.again);
                Some(now + self.again.min(SIGNAL_CHECK_INTERVAL))
            }
            Stage::Running(_) => {
                self.ran.timed_out = true;
                Some(self.ask(now))
            }
            Stage::Leaving(until) | Stage::Asked(until) if now < until => Some(until.min(now + SIGNAL_CHECK_INTERVAL)),
            Stage::Leaving(_) | Stage::Asked(_) => Some(self.kill(now, now + UNKILLABLE_TIMEOUT)),
            Stage::Killing { until, .. } if now >= until => {
                self.ran.left = self.tree.living().len();
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

    /// Whoever asks us to end does not want the command any more; who asks twice is in a hurry.
    fn cancel(&mut self, number: i32) {
        let now = Instant::now();
        if self.exit.is_none() {
            self.ran.cancelled.get_or_insert(number);
        }
        match self.stage {
            Stage::Running(_) | Stage::Staying => {
                self.ask(now);
            }
            Stage::Leaving(_) => self.stage = Stage::Leaving(now),
            Stage::Asked(_) => self.stage = Stage::Asked(now),
            Stage::Killing { .. } => {}
        }
    }

    fn is_meant_to_stay(&self) -> bool {
        let stays = |pid: i32| kind::read(pid).is_one_of(&self.meant_to_stay);
        !self.meant_to_stay.is_empty() && self.tree.living().into_iter().any(stays)
    }

    /// `spillway exec` runs in it, whose command has a time that was asked for.
    fn holds_timed(&self) -> bool {
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
        let Self { tree: _, again: _, keep: _, meant_to_stay: _, pid, pipes: [output, errors], stage: _, exit, empty: _, killed, ran } =
            self;
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
