//! What a command did while it was watched, and what the sandbox of a pod would refuse of it. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;

use spillway_sandbox::grants::{Access, Grant, permits};
use spillway_sandbox::policy::{Network, verdict};

/// The most files that a report names.
const MAX_FILES: usize = 200;
/// The most system calls that a report names by a number alone.
const MAX_UNKNOWN_CALLS: usize = 100;
/// The error of a call that is to seem missing.
const ENOSYS: i32 = 38;

/// What was seen.
#[derive(Debug)]
pub struct Recording {
    grants: Vec<Grant>,
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
    /// Nothing was seen. `grants` are those of the sandbox.
    pub fn new(grants: Vec<Grant>) -> Self {
        Self {
            grants,
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
        if let Some(error) = verdict(Network::Pod, name, arguments) {
            self.refuse(name.to_owned(), error);
        }
    }

    /// A call was made that is newer than Spillway's list.
    pub fn unknown_call(&mut self, number: u32) {
        self.total += 1;
        let named = self.unknown.contains(&number) || (self.unknown.len() < MAX_UNKNOWN_CALLS && self.unknown.insert(number));
        self.refuse(if named { format!("number {number}") } else { "further numbers".to_owned() }, ENOSYS);
    }

    /// A 32-bit program made a call.
    pub fn foreign_call(&mut self) {
        self.total += 1;
        self.foreign += 1;
    }

    fn refuse(&mut self, name: String, error: i32) {
        self.refused.entry(name).or_insert((error, 0)).1 += 1;
    }

    /// A call used a file. `path` has no links.
    pub fn file(&mut self, path: PathBuf, access: Access) {
        if permits(&self.grants, &path, access) {
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

    /// The report. `files`: whether the uses of files were watched.
    pub fn report(&self, files: bool) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let mut line = |line: String| {
            let _ = writeln!(text, "{line}");
        };
        if files {
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
            line(format!("  {:<24} {:<12} ends the program: use a 64-bit build", "calls of 32-bit programs", times(self.foreign, "time")));
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
            let verb = if *access == Access::Write { "write" } else { "read" };
            line(format!("  {verb:<5} {:<60} {}", path.escaped(), times(*count, "time")));
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

fn times(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recording() -> Recording {
        let grant = |path: &str, access| Grant { path: path.into(), access };
        Recording::new(vec![grant("/", Access::List), grant("/usr", Access::Read), grant("/workspace", Access::Write)])
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
            seen.report(true),
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
        let report = seen.report(true);
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
        assert!(seen.report(false).ends_with("files were not watched\n"));
    }

    #[test]
    fn a_report_names_so_many_files_and_numbers() {
        let mut seen = recording();
        (0..=MAX_FILES).for_each(|number| seen.file(format!("/secret/{number}").into(), Access::Read));
        assert!(seen.report(true).contains("and others, 1 time"));
        assert_eq!(seen.closed.len(), MAX_FILES);
        (5000..6000).for_each(|number| (0..2).for_each(|_| seen.unknown_call(number)));
        assert!(seen.refused.len() == MAX_UNKNOWN_CALLS + 1 && seen.report(true).contains("further numbers          1800 times"));
    }
}
