//! The processes below us: finding, signalling, reaping. It decides nothing.
//!
//! We are the subreaper of all processes that we start: an orphan becomes our child, in any session or group. So when the kernel
//! says that we have no child, no process is left, and a walk along the parents finds all processes. A walk takes time: the next
//! walk finds processes that forked meanwhile. It visits only processes below us, so that it is faster than processes that fork
//! and end again and again.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, kill_process, pidfd_open, pidfd_send_signal, set_child_subreaper, wait,
};
use tokio::time::sleep;

use crate::clock::BootTime;

/// More ancestors than any process has. Pids that change during a walk must not cause an endless loop.
const MAX_ANCESTORS: usize = 1000;

/// The most processes whose descriptors are open at once: fewer than a process may have.
const MAX_HELD_PROCESSES: usize = 256;

/// The most walks in a row that find new processes to stop. After them everything is killed anyway.
const MAX_STOP_ROUNDS: usize = 64;

/// Time limit to end all processes.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two checks of those processes.
const END_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Proof that we are the subreaper of all processes that we start. All our children count as the command's.
#[derive(Clone, Copy, Debug)]
pub struct Tree(());

/// How a process of ours ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// With this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// What [`Tree::reap`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaped {
    /// A child ended.
    Ended(i32, Exit),
    /// No child ended, and there are children.
    Nothing,
    /// There is no child, and no process below us.
    Empty,
}

/// A process, as the kernel lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    pid: i32,
    parent: i32,
    /// It is a zombie.
    dead: bool,
}

impl Tree {
    /// Makes us the subreaper.
    pub fn new() -> io::Result<Self> {
        set_child_subreaper(Some(getpid()))?;
        Ok(Self(()))
    }

    /// The next child that ended.
    pub fn reap(&self) -> Reaped {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(None) => return Reaped::Nothing,
                Ok(Some((pid, status))) => {
                    let exit = match (status.exit_status(), status.terminating_signal()) {
                        (Some(code), _) => Exit::Code(code),
                        (None, Some(signal)) => Exit::Signal(signal),
                        (None, None) => continue,
                    };
                    return Reaped::Ended(pid.as_raw_nonzero().get(), exit);
                }
                Err(Errno::INTR) => {}
                Err(_) => return Reaped::Empty,
            }
        }
    }

    /// Kills all processes, and reaps them. Returns whether none is left: a process can wait for a device that does not answer.
    pub async fn end(&self) -> bool {
        let began = BootTime::now();
        while BootTime::now().since(began) < END_TIMEOUT {
            match self.reap() {
                Reaped::Empty => return true,
                Reaped::Ended(..) => {}
                Reaped::Nothing => {
                    self.kill();
                    sleep(END_CHECK_INTERVAL).await;
                }
            }
        }
        false
    }

    /// Asks all processes to end. A stopped process is continued, because it gets the signal only then.
    pub fn ask(&self) {
        let all = self.living();
        self.signal_each(all.iter().copied(), Signal::TERM);
        self.signal_each(all, Signal::CONT);
    }

    /// Kills all processes. First it stops them, so that none can fork, until a walk finds no new one. Returns their pids.
    pub fn kill(&self) -> BTreeSet<i32> {
        let mut found = BTreeSet::new();
        for _ in 0..MAX_STOP_ROUNDS {
            let new: Vec<i32> = self.living().into_iter().filter(|pid| found.insert(*pid)).collect();
            if new.is_empty() {
                break;
            }
            self.signal_each(new, Signal::STOP);
        }
        self.signal_each(found.iter().copied(), Signal::KILL);
        found
    }

    /// Signals all processes. Before SIGKILL they are stopped, so that none can fork.
    pub fn signal_all(&self, signal: Signal) {
        if signal == Signal::KILL {
            self.kill();
        } else {
            self.signal_each(self.living(), signal);
        }
    }

    /// The processes below us that have not ended.
    pub fn living(&self) -> Vec<i32> {
        let own = getpid().as_raw_nonzero().get();
        let found = if children(own).is_some() {
            descendants(own, |pid| children(pid).unwrap_or_default())
        } else {
            // The kernel does not list children: all processes must be read.
            let entries = entries();
            descendants(own, |pid| entries.iter().filter(|entry| entry.parent == pid).map(|entry| entry.pid).collect())
        };
        found.into_iter().filter(|pid| entry(*pid).is_some_and(|entry| !entry.dead)).collect()
    }

    /// Signals these processes, as far as they are still below us: one may have ended, and another process may have its pid now. The
    /// descriptors keep referring to the processes that a walk after them found. One walk is for many processes: a walk for each would
    /// take longer than the processes of a long chain may live.
    fn signal_each(&self, pids: impl IntoIterator<Item = i32>, signal: Signal) {
        let pids: Vec<i32> = pids.into_iter().collect();
        for some in pids.chunks(MAX_HELD_PROCESSES) {
            let held: Vec<(i32, OwnedFd)> = some.iter().filter_map(|pid| Some((*pid, self.hold(*pid, signal)?))).collect();
            let below: BTreeSet<i32> = self.living().into_iter().collect();
            for (_, process) in held.into_iter().filter(|(pid, _)| below.contains(pid)) {
                let _ = pidfd_send_signal(process, signal); // it may have ended
            }
        }
    }

    /// A descriptor of the process. Where there is none, because the kernel has none or all of ours are in use, it is signalled at once.
    fn hold(&self, pid: i32, signal: Signal) -> Option<OwnedFd> {
        let number = Pid::from_raw(pid)?;
        match pidfd_open(number, PidfdFlags::empty()) {
            Ok(held) => Some(held),
            Err(Errno::NOSYS | Errno::PERM | Errno::MFILE | Errno::NFILE) if self.is_below(pid) => {
                let _ = kill_process(number, signal);
                None
            }
            Err(_) => None,
        }
    }

    /// Whether we are an ancestor of `pid`.
    fn is_below(&self, pid: i32) -> bool {
        let own = getpid().as_raw_nonzero().get();
        let mut at = pid;
        for _ in 0..MAX_ANCESTORS {
            match entry(at).map(|entry| entry.parent) {
                Some(parent) if parent == own => return true,
                Some(0 | 1) | None => return false,
                Some(parent) => at = parent,
            }
        }
        false
    }
}

/// Milliseconds of a tick, the unit of /proc. Linux fixes it for all programs.
pub const PROC_TICK_MS: u64 = 10;

/// The start of the agent's program that started us, through any number of processes, in milliseconds since boot. The program is our
/// topmost ancestor below process 1. `None`: it cannot be found.
pub fn program_started() -> Option<u64> {
    let (mut at, mut started) = (getpid().as_raw_nonzero().get(), None);
    for _ in 0..MAX_ANCESTORS {
        let stat = stat(at)?;
        let parent = parse(at, &stat)?.parent;
        started = parse_started(&stat);
        if parent <= 1 {
            return started;
        }
        at = parent;
    }
    started
}

/// The start of a process, from `/proc/PID/stat`, in milliseconds since boot.
fn parse_started(stat: &str) -> Option<u64> {
    let ticks = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse::<u64>().ok()?;
    Some(ticks.saturating_mul(PROC_TICK_MS))
}

/// All processes below `root`; `children` returns the children of one.
fn descendants(root: i32, children: impl Fn(i32) -> Vec<i32>) -> BTreeSet<i32> {
    let mut found = BTreeSet::new();
    let mut ahead = vec![root];
    while let Some(parent) = ahead.pop() {
        ahead.extend(children(parent).into_iter().filter(|pid| *pid != root && found.insert(*pid)));
    }
    found
}

/// The children of all threads of `pid`, as the kernel lists them. `None`: it has ended, or the kernel has no such list.
fn children(pid: i32) -> Option<Vec<i32>> {
    let mut all = Vec::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let list = fs::read_to_string(thread.ok()?.path().join("children")).ok()?;
        all.extend(list.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
    }
    Some(all)
}

/// The line of `/proc/PID/stat`. The name in it may be no valid text, which must not hide a process.
pub fn stat(pid: i32) -> Option<String> {
    Some(String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/stat")).ok()?).into_owned())
}

fn entries() -> Vec<Entry> {
    let Ok(folder) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = folder.filter_map(|one| one.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(entry).collect()
}

fn entry(pid: i32) -> Option<Entry> {
    parse(pid, &stat(pid)?)
}

/// Parses `/proc/PID/stat`. The name, in parentheses, may contain any character.
fn parse(pid: i32, stat: &str) -> Option<Entry> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    Some(Entry { pid, parent: fields.next()?.parse().ok()?, dead: matches!(state, "Z" | "X" | "x") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        let cases = [
            ("7 (sh) S 3 7 7 0 -1", Some((3, false))),
            ("7 (a) Z 9 (b) Z 4 7", Some((4, true))),
            ("7 (\u{fffd}\n)) T 1 7", Some((1, false))),
            ("7 (sh", None),
            ("7 (sh) S", None),
        ];
        for (stat, expected) in cases {
            assert_eq!(parse(7, stat).map(|entry| (entry.parent, entry.dead)), expected, "{stat}");
        }
    }

    #[test]
    fn the_program_is_the_topmost_ancestor() {
        assert_eq!(parse_started("7 (a) Z (b) S 3 6 5 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 1234 9"), Some(12_340));
        let found = program_started().expect("somebody started us");
        let own = fs::read_to_string("/proc/self/stat").expect("ourselves");
        assert!(Some(found) <= parse_started(&own) && found <= crate::clock::BootTime::now().millis(), "{found} {own}");
    }

    #[test]
    fn who_is_below_is_found_whatever_its_number() {
        let of = |pairs: &'static [(i32, i32)]| {
            move |root| pairs.iter().filter(|(_, parent)| *parent == root).map(|(pid, _)| *pid).collect::<Vec<_>>()
        };
        let all = of(&[(1, 0), (5, 1), (9, 5), (7, 9), (3, 7), (20, 1), (21, 20), (6, 5)]);
        assert_eq!(descendants(5, all), BTreeSet::from([3, 6, 7, 9]));
        assert_eq!(descendants(21, all), BTreeSet::new());
        // A list that was read while pids were reused may even contain a cycle.
        assert_eq!(descendants(5, of(&[(6, 5), (8, 6), (6, 8), (5, 8)])), BTreeSet::from([6, 8]));
    }

    #[test]
    fn a_process_is_found_although_its_name_is_no_text() {
        use std::os::unix::ffi::OsStringExt as _;
        use std::os::unix::process::CommandExt as _;
        let name = [&b"\xff-"[..], std::process::id().to_string().as_bytes()].concat();
        let program = std::env::temp_dir().join(std::ffi::OsString::from_vec(name));
        std::os::unix::fs::symlink("/bin/sleep", &program).expect("a link");
        let mut child = std::process::Command::new(&program).arg0("sleep").arg("1000").spawn().expect("a child");
        let (own, pid) = (getpid().as_raw_nonzero().get(), i32::try_from(child.id()).expect("a pid"));
        let found = (entry(pid), stat(pid));
        child.kill().expect("killed");
        child.wait().expect("reaped");
        fs::remove_file(&program).expect("removed");
        assert_eq!(found.0, Some(Entry { pid, parent: own, dead: false }));
        assert!(found.1.is_some_and(|line| line.contains("(\u{fffd}-")), "the kernel tells its name");
    }

    #[test]
    fn the_kernel_lists_a_child_either_way() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("a child");
        let (own, pid) = (getpid().as_raw_nonzero().get(), i32::try_from(child.id()).expect("a pid"));
        if let Some(children) = children(own) {
            assert!(children.contains(&pid));
        }
        assert!(entries().contains(&Entry { pid, parent: own, dead: false }));
        child.kill().expect("killed");
        child.wait().expect("reaped");
        assert_eq!((entry(pid), children(pid)), (None, None));
    }
}
