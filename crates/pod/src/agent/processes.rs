//! All calls to the kernel about processes: starting, reaping, listing, signalling. It decides nothing.
//!
//! In a container the supervisor is process 1, and all visible processes are its own. Outside a container only the processes
//! below the supervisor are its own.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::process::{
    Pid, PidfdFlags, Resource, Signal, WaitOptions, getpid, getppid, getrlimit, kill_process, kill_process_group, pidfd_open,
    pidfd_send_signal, set_parent_process_death_signal, wait,
};

use spillway_sandbox::Sandbox;
use spillway_sandbox::kernel::has_user_namespace;
use spillway_sandbox::process_limit::limit_processes;
use spillway_wire::sandbox::{ItemSandbox, SandboxRefusals, SandboxUnavailable};

use super::refusal_counts::RefusalCounts;
use super::watchdog::Process;
use crate::files::stdin_with;
use crate::process::kind::{self, OwnBinary};
use crate::process::tree::{PROC_TICK_MS, Tree, stat};

/// Proof that we are PID 1, or the subreaper of all processes that we start. Without it no process can be killed.
#[derive(Clone, Debug)]
pub struct Init {
    /// Outside a container: the processes below us. Unset in a container, where all processes are ours.
    tree: Option<Tree>,
    /// Processes and threads that the container may have at once. Unset where the kernel would also count those of other pods.
    max_processes: Option<u64>,
    /// The sandbox of every process that we start.
    confinement: Confinement,
    /// The one that takes its place for an item, and what the item requires.
    for_item: Option<(ItemSandbox, Confinement)>,
}

/// How the processes that we start are confined.
#[derive(Clone, Debug)]
pub enum Confinement {
    /// Outside a container, and where the controller gave no settings: not at all.
    None,
    /// In a sandbox, which counts what it refuses.
    Sandbox(Sandbox, RefusalCounts),
    /// Not at all. What the sandbox would refuse is counted.
    Observed(RefusalCounts),
    /// The sandbox cannot be enforced here, so that nothing starts.
    Unavailable(SandboxUnavailable),
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Its exit code; 128 and the signal's number if one ended it.
    pub code: u8,
    /// A signal ended it.
    pub killed: bool,
}

/// A change of a child or of an orphan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It ended.
    Ended(Exit),
    /// A signal stopped it.
    Stopped,
    /// A signal continued it.
    Continued,
}

/// What [`Init::reap`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaped {
    /// A process changed.
    Change(i32, Change),
    /// No other process changed.
    Nothing,
    /// There is no child and no orphan.
    Empty,
}

impl Init {
    /// `Some` if we are PID 1. The limit `max_processes` applies only in our own user namespace: the kernel counts by uid and user
    /// namespace, and otherwise all agents of the node have the same uid.
    pub fn new(max_processes: u64) -> Option<Self> {
        let own = has_user_namespace();
        (getpid() == Pid::INIT).then_some(Self {
            tree: None,
            max_processes: own.then_some(max_processes),
            confinement: Confinement::None,
            for_item: None,
        })
    }

    /// Outside a container, below the process `parent`, which started us. We end when it ends. There is no limit of processes: the
    /// kernel counts by uid, and would also count the user's other processes.
    pub fn below(parent: i32) -> io::Result<Self> {
        set_parent_process_death_signal(Some(Signal::TERM))?;
        // The parent may have ended before this call.
        if getppid().map(|parent| parent.as_raw_nonzero().get()) != Some(parent) {
            return Err(io::Error::other("the process that started the supervisor has ended"));
        }
        Ok(Self { tree: Some(Tree::new()?), max_processes: None, confinement: Confinement::None, for_item: None })
    }

    /// Confines all processes that are started from now on.
    pub fn confine(&mut self, confinement: Confinement) {
        self.confinement = confinement;
    }

    /// Confines the processes that are started from now on as the item in hand requires. `prepare` makes that confinement from the one of
    /// other processes.
    pub fn confine_for_item(&mut self, required: ItemSandbox, prepare: impl FnOnce(&Confinement) -> Confinement) {
        if self.for_item.as_ref().map(|(known, _)| *known).unwrap_or_default() != required {
            self.for_item = (!required.is_nothing()).then(|| (required, prepare(&self.confinement)));
        }
    }

    /// Why no process may start.
    pub fn unavailable(&self) -> Option<&SandboxUnavailable> {
        match &self.confinement {
            Confinement::Unavailable(unavailable) => Some(unavailable),
            Confinement::None | Confinement::Sandbox(..) | Confinement::Observed(_) => None,
        }
    }

    /// What the sandbox refused, or would have refused.
    pub fn refusals(&self) -> SandboxRefusals {
        match &self.confinement {
            Confinement::Sandbox(_, counts) | Confinement::Observed(counts) => counts.refusals(),
            Confinement::None | Confinement::Unavailable(_) => SandboxRefusals::default(),
        }
    }

    /// All that the sandbox would have refused, for people. `None`: it refuses, or there is none.
    pub fn observed(&self) -> Option<String> {
        match &self.confinement {
            Confinement::Observed(counts) => Some(counts.report()),
            Confinement::None | Confinement::Sandbox(..) | Confinement::Unavailable(_) => None,
        }
    }

    /// Starts the program, with `input` as its standard input. With `tty` it gets our terminal instead, and stays in our process
    /// group, so that the terminal's signals reach it.
    pub fn start(&self, command: &[OsString], environment: &BTreeMap<String, OsString>, input: &[u8], tty: bool) -> io::Result<Started> {
        let mut prepared = prepare(command, environment)?;
        if tty {
            prepared.stdin(Stdio::inherit()).stdout(Stdio::inherit()).stderr(Stdio::inherit());
        } else {
            prepared.stdin(stdin_with(input)?).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        }
        // This handle never waits: all processes are reaped in one place.
        let mut child = self.spawn(&mut prepared)?;
        let output = child.stdout.take().zip(child.stderr.take());
        Ok(Started { pid: i32::try_from(child.id()).unwrap_or(0), output })
    }

    /// Starts a hook in its own process group, with `input` as its standard input. Its output goes to our own.
    pub fn start_hook(&self, command: &[OsString], environment: &BTreeMap<String, OsString>, input: &[u8]) -> io::Result<i32> {
        let mut prepared = prepare(command, environment)?;
        prepared.stdin(stdin_with(input)?).stdout(Stdio::inherit()).stderr(Stdio::inherit()).process_group(0);
        Ok(i32::try_from(self.spawn(&mut prepared)?.id()).unwrap_or(0))
    }

    /// Starts a child in its sandbox, with a limit of processes. We have no such limit, so that a full container takes a hook.
    fn spawn(&self, prepared: &mut Command) -> io::Result<Child> {
        match self.for_item.as_ref().map_or(&self.confinement, |(_, confinement)| confinement) {
            Confinement::None => {}
            Confinement::Sandbox(sandbox, counts) => counts.confine(sandbox, prepared)?,
            Confinement::Observed(counts) => counts.observe(prepared)?,
            Confinement::Unavailable(unavailable) => return Err(io::Error::other(unavailable.message.clone())),
        }
        if let Some(limit) = self.max_processes {
            let most = getrlimit(Resource::Nproc).maximum.unwrap_or(u64::MAX);
            limit_processes(prepared, limit.min(most));
        }
        prepared.spawn()
    }

    /// The next change of any child or orphan.
    pub fn reap(&self) -> Reaped {
        loop {
            match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED | WaitOptions::CONTINUED) {
                Ok(None) => return Reaped::Nothing,
                Ok(Some((pid, status))) => {
                    let change = if let Some(code) = status.exit_status() {
                        Change::Ended(Exit { code: u8::try_from(code & 0xff).unwrap_or(u8::MAX), killed: false })
                    } else if let Some(signal) = status.terminating_signal() {
                        Change::Ended(Exit { code: u8::try_from(signal).unwrap_or(127).saturating_add(128), killed: true })
                    } else if status.stopped() {
                        Change::Stopped
                    } else if status.continued() {
                        Change::Continued
                    } else {
                        continue;
                    };
                    return Reaped::Change(pid.as_raw_nonzero().get(), change);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return Reaped::Empty,
            }
        }
    }

    /// Sends `signal` to all processes in our PID namespace except ourselves: for the kernel, `kill(-1)` means all processes, not
    /// the process group 1. Outside a container: to all processes below us.
    pub fn signal_all(&self, signal: Signal) {
        if let Some(tree) = self.tree {
            return tree.signal_all(signal);
        }
        let _ = kill_process_group(Pid::INIT, signal); // an error means that no process is left
    }

    /// All living processes of ours, whether they run our own binary, and the kind of the others.
    pub fn table(&self) -> Vec<Process> {
        described(self.list())
    }

    /// All living processes of ours, without their kinds: this must be faster than processes that fork while they are killed.
    /// Outside a container, orphans have the parent 1 here too.
    pub fn list(&self) -> Vec<Process> {
        let Some(tree) = self.tree else { return list() };
        let own = getpid().as_raw_nonzero().get();
        let inside = |process: Process| if process.parent == own { Process { parent: 1, ..process } } else { process };
        tree.living().into_iter().filter_map(process).map(inside).collect()
    }

    /// Kills the process group of a hook.
    pub fn kill_group(&self, leader: i32) {
        if let Some(leader) = Pid::from_raw(leader).filter(|leader| *leader != Pid::INIT) {
            let _ = kill_process_group(leader, Signal::KILL); // it may have ended
        }
    }
}

/// Whether a process is stopped, from its entry in /proc. `None`: the process does not exist.
pub fn stopped(pid: i32) -> Option<bool> {
    let stat = stat(pid)?;
    // The name, in parentheses, may contain any character.
    let state = stat.rsplit_once(')')?.1.trim_start().chars().next()?;
    // Not `t`: a traced process stops for moments only, and continues.
    Some(state == 'T')
}

fn described(processes: Vec<Process>) -> Vec<Process> {
    let own = OwnBinary::find();
    let described = |process: Process| match own.is_run_by(process.pid) {
        true => Process { own_binary: true, ..process },
        false => Process { kind: kind::read(process.pid), ..process },
    };
    processes.into_iter().map(described).collect()
}

/// All visible processes.
fn list() -> Vec<Process> {
    let Ok(folder) = std::fs::read_dir("/proc") else { return Vec::new() };
    folder.filter_map(|one| process(one.ok()?.file_name().to_str()?.parse().ok()?)).collect()
}

/// Writes a line to the standard error of a process, if that is a pipe with a reader. A write to anything else could block.
pub fn write_to_stderr_of(pid: i32, started: u64, words: &str) {
    let path = format!("/proc/{pid}/fd/2");
    let is_pipe = std::fs::read_link(&path).is_ok_and(|target| target.as_os_str().as_bytes().starts_with(b"pipe:"));
    if !is_pipe {
        return;
    }
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let Ok(pipe) = open(path, flags, Mode::empty()) else { return };
    // The process may have replaced the file since.
    let is_pipe = fstat(&pipe).is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Fifo);
    if is_pipe && process(pid).is_some_and(|process| process.started == started) {
        let _ = rustix::io::write(&pipe, format!("{words}\n").as_bytes()); // the pipe may be full, or have no reader
    }
}

fn process(pid: i32) -> Option<Process> {
    parse(pid, &stat(pid)?)
}

/// Parses `/proc/PID/stat`; `None` for a zombie. The name, in parentheses, may contain any character.
fn parse(pid: i32, stat: &str) -> Option<Process> {
    let (head, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<i32>().ok();
    if matches!(*fields.first()?, "Z" | "X" | "x") {
        return None;
    }
    let started = fields.get(19)?.parse::<u64>().ok()?.saturating_mul(PROC_TICK_MS);
    let name = head.split_once('(')?.1.to_owned();
    Some(Process { pid, parent: number(1)?, group: number(2)?, session: number(3)?, started, name, ..Process::default() })
}

/// Signals the process `pid`, if it was started at `started`.
pub fn signal(pid: i32, started: u64, signal: Signal) {
    let Some(number) = Pid::from_raw(pid) else { return };
    // The descriptor keeps referring to the process that is checked next.
    let held = pidfd_open(number, PidfdFlags::empty());
    if process(pid).is_none_or(|process| process.started != started) {
        return;
    }
    let _ = match held {
        Ok(held) => pidfd_send_signal(held, signal),
        Err(_) => kill_process(number, signal), // a kernel without pidfd
    }; // it may have ended
}

/// A program that was started.
#[derive(Debug)]
pub struct Started {
    /// Its pid.
    pub pid: i32,
    /// Its output streams; `None` with a terminal.
    pub output: Option<(std::process::ChildStdout, std::process::ChildStderr)>,
}

fn prepare(command: &[OsString], environment: &BTreeMap<String, OsString>) -> io::Result<Command> {
    let (program, arguments) = command.split_first().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the command is empty"))?;
    let mut prepared = Command::new(program);
    prepared.args(arguments).env_clear().envs(environment);
    Ok(prepared)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pid_1_can_kill_everything() {
        assert!(Init::new(1).is_none(), "the tests' own process is not PID 1 of a container");
        assert!(Init::below(i32::MAX).is_err(), "nor was it started by somebody of this number");
    }

    #[test]
    fn a_running_process_is_not_stopped() {
        assert_eq!(stopped(i32::try_from(std::process::id()).expect("a pid")), Some(false));
        assert_eq!(stopped(i32::MAX), None);
    }

    #[test]
    fn a_process_is_read_whatever_its_name_holds() {
        let stat = "7 (a) Z (b) S 3 6 5 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 1234 9";
        let expected = Process { pid: 7, parent: 3, group: 6, session: 5, started: 12_340, name: "a) Z (b".into(), ..Process::default() };
        assert_eq!(parse(7, stat), Some(expected));
        for gone in ["7 (a) Z 3 6 5 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 1234 9", "7 (a) S 3", "7 (a", ""] {
            assert_eq!(parse(7, gone), None, "{gone}");
        }
    }

    #[test]
    fn the_table_holds_ourselves_as_of_now() {
        let own = i32::try_from(std::process::id()).expect("a pid");
        let now = crate::clock::BootTime::now().millis();
        let found = described(list()).into_iter().find(|process| process.pid == own).expect("we are there");
        assert!(found.own_binary && found.started <= now && now - found.started < 600_000, "{found:?} at {now}");
    }

    #[test]
    fn a_process_is_told_in_its_pipe_and_nowhere_else() {
        use std::io::Read as _;
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        let file = std::env::temp_dir().join(format!("spillway-say-{}", std::process::id()));
        let errors: [Stdio; 2] = [writer.into(), std::fs::File::create(&file).expect("a file").into()];
        for errors in errors {
            let mut child = Command::new("sleep").arg("1000").stderr(errors).spawn().expect("a child");
            let pid = i32::try_from(child.id()).expect("a pid");
            let started = process(pid).expect("it is there").started;
            write_to_stderr_of(pid, started + 1, "to another one");
            write_to_stderr_of(pid, started, "to it");
            child.kill().expect("killed");
            child.wait().expect("reaped");
        }
        let mut said = String::new();
        reader.read_to_string(&mut said).expect("it is closed");
        assert_eq!((said.as_str(), std::fs::read_to_string(&file).expect("a file").as_str()), ("to it\n", ""));
        std::fs::remove_file(file).expect("removed");
    }

    #[test]
    fn only_the_process_that_was_started_then_is_signalled() {
        let mut child = Command::new("sleep").arg("1000").spawn().expect("a child");
        let pid = i32::try_from(child.id()).expect("a pid");
        let started = process(pid).expect("it is there").started;
        signal(pid, started + 1, Signal::KILL);
        assert!(child.try_wait().expect("our child").is_none(), "it was another one");
        signal(pid, started, Signal::KILL);
        assert!(!child.wait().expect("our child").success());
    }

    #[test]
    fn an_empty_command_is_an_error() {
        assert!(prepare(&[], &BTreeMap::new()).is_err());
    }
}
