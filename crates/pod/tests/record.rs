//! `spillway-agent sandbox --record`, around real commands.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{BINARY, Folder, until};
use serde_json::Value;

/// Folders of a command, as in a pod: it may use those that are below `own`.
struct TestFolders(Folder);

impl TestFolders {
    fn new() -> Self {
        let place = Folder::new();
        for folder in ["own/home", "own/tmp", "own/workspace", "other"] {
            fs::create_dir_all(place.path(folder)).expect("a folder");
        }
        fs::write(place.path("other/secret"), "s").expect("a file");
        Self(place)
    }

    fn path(&self, name: &str) -> PathBuf {
        // As the report names it.
        fs::canonicalize(self.0.path("")).expect("a path").join(name)
    }

    fn record(&self, options: &[&str], command: &[&str]) -> Output {
        let mut recorder = Command::new(BINARY);
        recorder.args(["sandbox", "--record"]).args(options).arg("--").args(command);
        recorder.env("HOME", self.path("own/home")).env("TMPDIR", self.path("own/tmp")).current_dir(self.path("own/workspace"));
        recorder.output().expect("it runs")
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_command_runs_as_without_a_sandbox_and_what_it_would_be_refused_is_told() {
    let place = TestFolders::new();
    let (secret, other) = (place.path("other/secret"), place.path("other"));
    let script = format!(
        "cat {secret}; echo x > {other}/new; echo y > kept; mkdir -p {other}; rm {other}/new; unshare --net true 2>/dev/null; exit 3",
        secret = secret.display(),
        other = other.display()
    );
    let ran = place.record(&[], &["sh", "-c", &script]);
    assert_eq!((ran.status.code(), text(&ran.stdout).as_str()), (Some(3), "s"));
    assert!(place.path("own/workspace/kept").exists() && !other.join("new").exists());
    let report = text(&ran.stderr);
    let lines: Vec<Vec<&str>> = report.lines().map(|line| line.split_whitespace().collect()).collect();
    let has = |expected: &[&str]| assert!(lines.iter().any(|line| line.starts_with(expected)), "{expected:?}\n{report}");
    has(&["unshare", "1", "time", "EPERM"]);
    has(&["read", &secret.to_string_lossy(), "1", "time"]);
    // The new file, and its removal. The folder exists, so that to make it fails anyway.
    has(&["write", &other.to_string_lossy(), "2", "times"]);
    assert!(!report.contains("own/"), "{report}");
}

#[test]
fn a_harmless_command_is_refused_nothing() {
    let place = TestFolders::new();
    let ran = place.record(&[], &["sh", "-c", "echo a > b && cat b && ls / > /dev/null"]);
    let report = text(&ran.stderr);
    assert!(ran.status.success(), "{report}");
    assert!(report.contains("refuses none") && report.contains("opens all files"), "{report}");
}

#[test]
fn a_profile_has_the_calls_that_were_made_and_no_others() {
    let place = TestFolders::new();
    let file = place.path("profile.json");
    let ran = place.record(&["--profile", &file.to_string_lossy()], &["sh", "-c", "mkdir a; unshare --net true; true"]);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let profile: Value = serde_json::from_str(&fs::read_to_string(&file).expect("a profile")).expect("JSON");
    let allowed: BTreeSet<String> = profile["syscalls"]
        .as_array()
        .expect("calls")
        .iter()
        .filter(|entry| entry["action"] == "SCMP_ACT_ALLOW")
        .flat_map(|entry| entry["names"].as_array().expect("names"))
        .map(|name| name.as_str().expect("a name").to_owned())
        .collect();
    assert!(allowed.contains("execve") && (allowed.contains("mkdir") || allowed.contains("mkdirat")), "{allowed:?}");
    assert!(["ptrace", "symlink", "mq_open"].iter().all(|name| !allowed.contains(*name)), "{allowed:?}");
    assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
}

#[test]
fn only_refused_calls_are_watched_if_that_is_asked() {
    let place = TestFolders::new();
    let secret = place.path("other/secret");
    let ran = place.record(&["--refused-only"], &["sh", "-c", &format!("cat {}; unshare --net true", secret.display())]);
    let report = text(&ran.stderr);
    assert!(report.contains("unshare") && report.contains("files were not watched") && !report.contains("recorded"), "{report}");
    let both = place.record(&["--refused-only", "--profile", "x"], &["true"]);
    assert_eq!(both.status.code(), Some(2), "{}", text(&both.stderr));
}

#[test]
fn what_a_command_leaves_running_ends_with_it() {
    let place = TestFolders::new();
    let ran = place.record(&[], &["sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!"]);
    let pid = text(&ran.stdout).trim().to_owned();
    assert!(ran.status.success() && !pid.is_empty());
    assert!(!Path::new("/proc").join(&pid).exists(), "{pid} runs");
}

#[test]
fn a_command_ends_with_its_recorder() {
    let folders = TestFolders::new();
    let pid = folders.path("pid");
    for signal in ["-HUP", "-TERM", "-KILL"] {
        let mut recorder = Command::new(BINARY);
        recorder.args(["sandbox", "--record", "--", "sh", "-c", &format!("echo $$ > {}; exec sleep 1000", pid.display())]);
        let mut recorder = recorder.spawn().expect("it runs");
        let command = until("the command runs", || fs::read_to_string(&pid).ok().filter(|pid| pid.ends_with('\n')));
        Command::new("kill").args([signal, &recorder.id().to_string()]).status().expect("sent");
        recorder.wait().expect("it ends");
        until("the command has ended", || (!Path::new("/proc").join(command.trim()).exists()).then_some(()));
        fs::remove_file(&pid).expect("removed");
    }
}

#[test]
fn a_command_that_does_not_exist_and_one_that_a_signal_ends_have_the_codes_of_a_shell() {
    let place = TestFolders::new();
    let missing = place.record(&[], &["/nowhere/program"]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(text(&missing.stderr).contains("cannot execute /nowhere/program"), "{}", text(&missing.stderr));
    assert_eq!(place.record(&[], &["sh", "-c", "kill -TERM $$"]).status.code(), Some(143));
}
