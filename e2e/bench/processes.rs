//! Processes and their memory as `/proc` and the control groups show them. It changes only the priority of this process
//! and its session, and resets peaks.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use rustix::process::{Pid, setpriority_process};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::cgroup::memory_cgroup;
use crate::report::float;

/// Clock ticks a second in `/proc/PID/stat`: a constant of Linux' interface, whatever the kernel ticks at.
const TICKS: f64 = 100.0;

/// Memory of a process, in MiB.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Memory {
    /// Resident memory.
    pub resident: f64,
    /// The anonymous part of it: private, not of a file.
    pub anonymous: f64,
    /// Resident memory with shared pages divided among their users (Pss), if the kernel reports it.
    pub proportional: Option<f64>,
    /// The peak of resident memory.
    pub peak: f64,
}

/// The memory of a process now.
pub fn memory(pid: u32) -> anyhow::Result<Memory> {
    let mib = |file: &str, name: &str| {
        let text = fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse::<f64>().ok().map(|kib| kib / 1024.0)
    };
    let status = |name: &str| mib("status", name).ok_or_else(|| anyhow!("no {name}: process {pid} has ended"));
    Ok(Memory {
        resident: status("VmRSS")?,
        anonymous: status("RssAnon")?,
        proportional: mib("smaps_rollup", "Pss"),
        peak: status("VmHWM")?,
    })
}

/// Resets the peak of a process's resident memory.
pub fn forget_peak(pid: u32) -> anyhow::Result<()> {
    fs::write(format!("/proc/{pid}/clear_refs"), "5").with_context(|| format!("forgetting the peak of process {pid}"))
}

/// Field `number` of `/proc/PID/stat`, as `proc(5)` counts them, in seconds.
fn stat_seconds(pid: u32, number: usize) -> anyhow::Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("process {pid} has ended"))?;
    // The second field is the name, in parentheses, which may hold anything.
    let mut fields = text.rsplit_once(')').context("a name in stat")?.1.split_whitespace();
    let ticks = fields.nth(number - 3).and_then(|field| field.parse::<f64>().ok()).context("a time in stat")?;
    Ok(ticks / TICKS)
}

/// Seconds of processor time it has used so far, its own and the kernel's for it.
pub fn processor_seconds(pid: u32) -> anyhow::Result<f64> {
    Ok(stat_seconds(pid, 14)? + stat_seconds(pid, 15)?)
}

/// A priority of this process, as `nice(1)` counts. It is reset when this value is dropped.
pub struct Priority(());

impl Priority {
    /// Takes it.
    pub fn take(priority: i32) -> anyhow::Result<Self> {
        renice(priority).map(|()| Self(()))
    }
}

impl Drop for Priority {
    fn drop(&mut self) {
        let _ = renice(0); // a failure leaves only the shell's session with this priority
    }
}

/// Gives all threads of this process this priority, as `nice(1)` counts. New threads and processes inherit it. Where
/// the kernel first shares the processor among sessions (autogroup), a thread's priority applies within its session
/// only. There the session, which child processes share, gets the priority as well.
pub fn renice(priority: i32) -> anyhow::Result<()> {
    let sessions_first = fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled").is_ok_and(|text| text.trim() == "1");
    if sessions_first {
        fs::write("/proc/self/autogroup", priority.to_string()).context("another priority for the session")?;
    }
    for thread in fs::read_dir("/proc/self/task")? {
        let thread = thread?.file_name().to_str().and_then(|text| text.parse().ok()).and_then(Pid::from_raw);
        setpriority_process(thread, priority).context("another priority")?;
    }
    Ok(())
}

/// When the process started, in steps of 10 ms.
pub fn began(pid: u32) -> anyhow::Result<jiff::Timestamp> {
    let since_boot = stat_seconds(pid, 22)?;
    let boot = clock_gettime(ClockId::Boottime);
    let up = Duration::new(boot.tv_sec.try_into()?, boot.tv_nsec.try_into()?);
    let ago = up.saturating_sub(Duration::from_secs_f64(since_boot));
    Ok(jiff::Timestamp::now() - ago)
}

/// The API server that writes this audit log.
pub fn api_server(audit_log: &str) -> anyhow::Result<u32> {
    let word = format!("--audit-log-path={audit_log}");
    for entry in fs::read_dir("/proc")? {
        let path = entry?.path();
        let Some(pid) = path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok()) else { continue };
        let words = command_line(&path).unwrap_or_default();
        // Not the process that started it, whose command line has the same words.
        if words.first().is_some_and(|name| name.ends_with("/kube-apiserver")) && words.contains(&word) {
            return Ok(pid);
        }
    }
    anyhow::bail!("no API server writes {audit_log}")
}

/// The command line of the process with this folder in `/proc`.
fn command_line(folder: &Path) -> std::io::Result<Vec<String>> {
    let line = fs::read(folder.join("cmdline"))?;
    let words = line.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    Ok(words.map(|word| String::from_utf8_lossy(word).into_owned()).collect())
}

/// A process in a pod.
#[derive(Clone, Debug)]
pub struct PodProcesses {
    /// Its PID outside the pod.
    pub pid: u32,
    /// Its command line.
    pub words: Vec<String>,
    /// Its memory cgroup.
    cgroup: PathBuf,
}

/// Every process of the pod with this uid, on this machine.
pub fn of_pod(uid: &str) -> anyhow::Result<Vec<PodProcesses>> {
    // The kubelet's two ways to name a pod's cgroup.
    let names = [format!("pod{uid}"), format!("pod{}", uid.replace('-', "_"))];
    let mut all = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let path = entry?.path();
        let Some(pid) = path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok()) else { continue };
        // A process that ended meanwhile is skipped.
        let (Ok(groups), Ok(words)) = (fs::read_to_string(path.join("cgroup")), command_line(&path)) else { continue };
        if !names.iter().any(|name| groups.contains(name.as_str())) {
            continue;
        }
        all.extend(memory_cgroup(&groups).map(|cgroup| PodProcesses { pid, words, cgroup }));
    }
    Ok(all)
}

/// Memory of a container's cgroup, in MiB.
#[derive(Clone, Copy, Debug)]
pub struct Charged {
    /// All memory that is charged to it, which its limit counts.
    pub all: f64,
    /// The anonymous part of it.
    pub anonymous: f64,
}

impl PodProcesses {
    /// Memory that is charged to its container.
    pub fn charged(&self) -> anyhow::Result<Charged> {
        let read = |name: &str| fs::read_to_string(self.cgroup.join(name));
        let all = read("memory.usage_in_bytes").or_else(|_| read("memory.current")).with_context(|| self.cgroup.display().to_string())?;
        let stat = read("memory.stat")?;
        let named = |name: &str| stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<f64>().ok());
        let anonymous = named("rss").or_else(|| named("anon")).context("no anonymous memory in memory.stat")?;
        let mib = |bytes: f64| bytes / float(1024 * 1024);
        Ok(Charged { all: mib(all.trim().parse()?), anonymous: mib(anonymous) })
    }
}
