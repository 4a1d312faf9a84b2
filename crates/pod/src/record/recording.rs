//! What processes did while they were watched, and what the sandbox of a pod refuses of it. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;

use spillway_sandbox::container::Observation;
use spillway_sandbox::filter::WatchedCalls;
use spillway_sandbox::grants::{Access, permits};
use spillway_sandbox::policy::verdict;
use spillway_wire::sandbox::SandboxRefusals;

/// The most files that a report names.
const MAX_FILES: usize = 200;
/// The most system calls that a report names by a number alone.
const MAX_UNKNOWN_CALLS: usize = 100;
/// The error of a call that is to seem missing.
const ENOSYS: i32 = 38;
/// How a report names the calls of 32-bit programs.
const FOREIGN_CALLS: &str = "calls of 32-bit programs";

/// What was seen.
#[derive(Debug)]
pub struct Recording {
    sandbox: Observation,
    total: u64,
    /// The calls that were made.
    used: BTreeSet<&'static str>,
    /// The refused ones, with the error and how often.
    refused: BTreeMap<String, (i32, u64)>,
    /// The numbers of calls without a name.
    unknown: BTreeSet<u32>,
    /// Calls of 32-bit programs, which the sandbox ends.
    foreign: u64,
    /// Files that the grants do not open.
    closed: BTreeMap<(PathBuf, Access), u64>,
    /// Uses of further such files.
    more: u64,
}

impl Recording {
    /// Nothing was seen. `sandbox`: what refuses, or would refuse.
    pub fn new(sandbox: Observation) -> Self {
        Self {
            sandbox,
            total: 0,
            used: BTreeSet::new(),
            refused: BTreeMap::new(),
            unknown: BTreeSet::new(),
            foreign: 0,
            closed: BTreeMap::new(),
            more: 0,
        }
    }

    /// A call was made.
    pub fn call(&mut self, name: &'static str, arguments: &[u64; 6]) {
        self.total += 1;
        self.used.insert(name);
        if let Some(error) = self.sandbox.network.and_then(|network| verdict(network, name, arguments)) {
            self.refuse(name.to_owned(), error);
        }
    }

    /// A call was made that is newer than Spillway's list.
    pub fn unknown_call(&mut self, number: u32) {
        self.total += 1;
        if self.sandbox.network.is_none() {
            return;
        }
        let named = self.unknown.contains(&number) || (self.unknown.len() < MAX_UNKNOWN_CALLS && self.unknown.insert(number));
        self.refuse(if named { format!("number {number}") } else { "further numbers".to_owned() }, ENOSYS);
    }

    /// A 32-bit program made a call.
    pub fn foreign_call(&mut self) {
        self.total += 1;
        self.foreign += u64::from(self.sandbox.network.is_some());
    }

    fn refuse(&mut self, name: String, error: i32) {
        self.refused.entry(name).or_insert((error, 0)).1 += 1;
    }

    /// A call used a file. `path` has no links.
    pub fn file(&mut self, path: PathBuf, access: Access) {
        if self.sandbox.grants.as_ref().is_none_or(|grants| permits(grants, &path, access)) {
            return;
        }
        let full = self.closed.len() >= MAX_FILES;
        match self.closed.get_mut(&(path.clone(), access)) {
            Some(count) => *count += 1,
            None if full => self.more += 1,
            None => {
                self.closed.insert((path, access), 1);
            }
        }
    }

    /// The calls that were made.
    pub fn used(&self) -> &BTreeSet<&'static str> {
        &self.used
    }

    /// What was refused, for the status of an agent. Calls that only seem missing are left out: programs go on without them.
    pub fn refusals(&self) -> SandboxRefusals {
        let calls = self.refused.iter().filter(|(_, (error, _))| *error != ENOSYS);
        let foreign = (self.foreign > 0).then(|| FOREIGN_CALLS.to_owned());
        let names = calls.clone().map(|(name, _)| name.clone()).chain(foreign);
        let files = self.closed.keys().map(|(path, access)| format!("{} {}", verb(*access), path.escaped()));
        let uses = names.chain(files).take(SandboxRefusals::MAX_USES);
        SandboxRefusals {
            system_calls: calls.map(|(_, (_, count))| count).sum::<u64>() + self.foreign,
            files: self.closed.values().sum::<u64>() + self.more,
            uses: uses.map(|one| one.chars().take(SandboxRefusals::MAX_USE_CHARS).collect()).collect(),
        }
    }

    /// The report. `watched`: the calls that were seen.
    pub fn report(&self, watched: WatchedCalls) -> String {
        let files = !matches!(watched, WatchedCalls::Refused(_, []));
        let mut text = String::new();
        // Writing to a string cannot fail.
        let mut line = |line: String| {
            let _ = writeln!(text, "{line}");
        };
        if watched == WatchedCalls::All {
            line(format!("recorded {} of {} system calls", times(self.total, "call"), self.used.len()));
        }
        if self.refused.is_empty() && self.foreign == 0 {
            line("the sandbox refuses none of its system calls".to_owned());
        } else {
            line("the sandbox refuses these system calls:".to_owned());
        }
        for (name, (error, count)) in &self.refused {
            let effect = match *error {
                ENOSYS => "ENOSYS: programs usually go on without it",
                _ => "EPERM",
            };
            line(format!("  {name:<24} {:<12} {effect}", times(*count, "time")));
        }
        if self.foreign > 0 {
            line(format!("  {FOREIGN_CALLS:<24} {:<12} ends the program: use a 64-bit build", times(self.foreign, "time")));
        }
        if !files {
            line("files were not watched".to_owned());
            return text;
        }
        if self.closed.is_empty() {
            line("the sandbox opens all files that it used".to_owned());
            return text;
        }
        line("the sandbox does not open these files:".to_owned());
        for ((path, access), count) in &self.closed {
            line(format!("  {:<5} {:<60} {}", verb(*access), path.escaped(), times(*count, "time")));
        }
        if self.more > 0 {
            line(format!("  and others, {}", times(self.more, "time")));
        }
        line(
            "spec.sandbox.software.path of an AgentPool opens files for reading. A program writes to its working directory, its home, $TMPDIR \
             and /dev/shm"
                .to_owned(),
        );
        text
    }
}

/// A path for people.
trait Escaped {
    fn escaped(&self) -> String;
}

impl Escaped for PathBuf {
    /// A name may hold control characters, which would change the terminal.
    fn escaped(&self) -> String {
        self.to_string_lossy().chars().map(|c| if c.is_control() { '?' } else { c }).collect()
    }
}

fn verb(access: Access) -> &'static str {
    if access == Access::Write { "write" } else { "read" }
}

fn times(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use spillway_sandbox::grants::Grant;
    use spillway_sandbox::policy::Network;

    use super::*;

    fn recording() -> Recording {
        let grant = |path: &str, access| Grant { path: path.into(), access };
        let grants = vec![grant("/", Access::List), grant("/usr", Access::Read), grant("/workspace", Access::Write)];
        Recording::new(Observation { network: Some(Network::Pod), grants: Some(grants) })
    }

    #[test]
    fn a_harmless_command_needs_nothing() {
        let mut seen = recording();
        seen.call("read", &[0; 6]);
        seen.call("socket", &[1, 1, 0, 0, 0, 0]);
        seen.file("/usr/bin/env".into(), Access::Read);
        seen.file("/workspace/a".into(), Access::Write);
        seen.file("/secret".into(), Access::List);
        assert_eq!(
            seen.report(WatchedCalls::All),
            "recorded 2 calls of 2 system calls\nthe sandbox refuses none of its system calls\nthe sandbox opens all files that it used\n"
        );
    }

    #[test]
    fn what_would_be_refused_is_counted_and_named() {
        let mut seen = recording();
        for _ in 0..3 {
            seen.call("ptrace", &[0; 6]);
        }
        seen.call("socket", &[17, 3, 0, 0, 0, 0]);
        seen.call("io_uring_setup", &[0; 6]);
        seen.unknown_call(9999);
        seen.foreign_call();
        seen.file("/secret/k\u{1b}[2J".into(), Access::Read);
        seen.file("/usr/bin/env".into(), Access::Write);
        seen.file("/usr/bin/env".into(), Access::Write);
        let report = seen.report(WatchedCalls::All);
        for expected in [
            "ptrace                   3 times      EPERM",
            "socket                   1 time       EPERM",
            "io_uring_setup           1 time       ENOSYS",
            "number 9999              1 time       ENOSYS",
            "calls of 32-bit programs 1 time",
            "read  /secret/k?[2J ",
            "write /usr/bin/env ",
            "2 times",
            "spec.sandbox.software.path",
        ] {
            assert!(report.contains(expected), "{expected}\n{report}");
        }
        assert!(seen.report(WatchedCalls::Refused(Network::Pod, &[])).ends_with("files were not watched\n"));
        let uses = ["ptrace", "socket", "calls of 32-bit programs", "read /secret/k?[2J", "write /usr/bin/env"].map(str::to_owned);
        assert_eq!(seen.refusals(), SandboxRefusals { system_calls: 5, files: 3, uses: uses.into() }, "what seems missing is not counted");
    }

    #[test]
    fn a_sandbox_with_one_part_refuses_only_that_part() {
        let mut seen = Recording::new(Observation { network: None, grants: None });
        seen.call("ptrace", &[0; 6]);
        seen.unknown_call(9999);
        seen.foreign_call();
        seen.file("/secret".into(), Access::Write);
        assert!(seen.refusals().is_nothing() && seen.refusals().uses.is_empty());
    }

    #[test]
    fn the_status_names_so_many_uses_and_counts_all() {
        let mut seen = recording();
        (0..300).for_each(|number| seen.file(format!("/{}/{number}", "x".repeat(500)).into(), Access::Read));
        let SandboxRefusals { system_calls, files, uses } = seen.refusals();
        assert_eq!((system_calls, files, uses.len()), (0, 300, SandboxRefusals::MAX_USES));
        assert!(uses.iter().all(|one| one.chars().count() == SandboxRefusals::MAX_USE_CHARS));
    }

    #[test]
    fn a_report_names_so_many_files_and_numbers() {
        let mut seen = recording();
        (0..=MAX_FILES).for_each(|number| seen.file(format!("/secret/{number}").into(), Access::Read));
        assert!(seen.report(WatchedCalls::All).contains("and others, 1 time"));
        assert_eq!(seen.closed.len(), MAX_FILES);
        (5000..6000).for_each(|number| (0..2).for_each(|_| seen.unknown_call(number)));
        assert!(
            seen.refused.len() == MAX_UNKNOWN_CALLS + 1 && seen.report(WatchedCalls::All).contains("further numbers          1800 times")
        );
    }
}
