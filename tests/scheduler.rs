//! The scheduler agent of the samples, `e2e/images/scheduler.sh`, with a `spillway` of the test's own: what it queues for
//! which words, what it answers, and that no words leave their place. It runs on busybox, as it does in its image.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use spillway::wire::body;
use spillway::wire::plan::Plan;
use spillway::wire::work::NotifyOn;

/// Longer than the script takes on a loaded machine.
const GENEROUS: Duration = Duration::from_secs(60);

/// Programs that the script needs.
const TOOLS: [&str; 10] = ["awk", "cat", "cut", "grep", "head", "mkdir", "sed", "sh", "sleep", "tr"];

/// Answers from files in its folder, and leaves there what it was told.
const SPILLWAY: &str = r#"#!/bin/sh
cd "${0%/*}/.." || exit 4
case $1-${2:-} in
    work-next)
        [ -e item ] || { sleep 1; exit 3; }
        case $* in *--json*) cat item ;; *) cat words ;; esac ;;
    work-list) cat list ;;
    work-done | work-fail | work-release)
        mv item past
        shift
        printf '%s\n' "$@" > said
        mv said ended ;;
    inbox-*) [ -e inbox ] || { sleep 1; exit 3; }; cat inbox; mv inbox heard ;;
    submit-* | plan-*)
        printf '%s\n' "$@" > "$1"
        cat > "$1.input"
        [ ! -e refusal ] || { cat refusal >&2; exit 3; }
        echo "queued" ;;
    *) exit 2 ;;
esac
"#;

/// The script at work, in a folder of its own.
struct Scheduler {
    folder: PathBuf,
    child: Child,
}

impl Scheduler {
    /// Starts it with these files in its folder.
    fn start(name: &str, files: &[(&str, &str)]) -> Self {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("scheduler-{name}-{}", std::process::id()));
        let bin = folder.join("bin");
        fs::create_dir_all(&bin).expect("a folder");
        let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).exists());
        let busybox =
            busybox.expect("a busybox, which the image is made of (`make cluster-packages`, or Debian: apt-get install busybox-static)");
        for tool in TOOLS {
            symlink(busybox, bin.join(tool)).expect("a link");
        }
        symlink(busybox, bin.join("mv")).expect("a link"); // of the test's spillway
        fs::write(bin.join("spillway"), SPILLWAY.replacen("/bin/sh", &bin.join("sh").to_string_lossy(), 1)).expect("a program");
        fs::set_permissions(bin.join("spillway"), fs::Permissions::from_mode(0o755)).expect("one that can be run");
        for (file, text) in files {
            fs::write(folder.join(file), text).expect("a file");
        }
        let mut command = Command::new(bin.join("sh"));
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/e2e/images/scheduler.sh"));
        command.env_clear().env("PATH", &bin).env("TMPDIR", &folder).stdin(Stdio::null());
        let log = fs::File::create(folder.join("log")).expect("a log");
        let child = command.stdout(log.try_clone().expect("a log")).stderr(log).spawn().expect("it starts");
        Self { folder, child }
    }

    /// Starts it with an item that holds these words.
    fn asked(name: &str, words: &str, files: &[(&str, &str)]) -> Self {
        let held = json!({"uid": "uid-1", "epoch": 3});
        // In the order in which `spillway work next --json` writes it.
        let head = format!("{{\"held\":{held},\"name\":\"ask-1\",\"queue\":\"asks\",\"type\":\"ask\",\"payload\":");
        let item = format!("{head}{},\"attempt\":1,\"attemptSeconds\":300,\"checkpointRef\":null}}", json!(words));
        Self::start(name, &[files, &[("words", words), ("item", &item)]].concat())
    }

    /// What is in a file, if it is there.
    fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.folder.join(file)).ok()
    }

    /// Waits for a file.
    fn until(&self, what: &str, file: &str, fits: impl Fn(&str) -> bool) -> String {
        let began = Instant::now();
        loop {
            match self.read(file) {
                Some(text) if fits(&text) => return text,
                other => assert!(began.elapsed() < GENEROUS, "{what}: {other:?}; log: {:?}", self.read("log")),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// How it ended: the words of `spillway work`, a line each.
    fn ended(&self) -> String {
        self.until("it never answered", "ended", |_| true)
    }

    /// The plan that it asked for, as Spillway reads it.
    fn plan(&self) -> Plan {
        let text = self.read("plan.input").expect("a plan");
        body::read(text.as_bytes()).unwrap_or_else(|refusal| panic!("{refusal}: {text}"))
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        // Asked, and not killed: it ends the part of it that listens, which would go on without its folder.
        let asked = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        if !asked.is_ok_and(|status| status.success()) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Key, what it waits for, type and payload of each step.
fn steps(plan: &Plan) -> Vec<(&str, Vec<&str>, &str, &str)> {
    let row = |step: &'_ spillway::wire::plan::Step| {
        assert_eq!((step.item.group.as_deref(), step.item.notify_on.as_slice()), (Some("ask-1"), &[NotifyOn::Finished][..]));
    };
    plan.steps.iter().for_each(row);
    let steps = plan.steps.iter();
    steps
        .map(|step| {
            let after = step.after.iter().map(String::as_str).collect();
            (step.key.as_str(), after, step.item.type_.as_deref().unwrap_or_default(), step.item.payload.as_str())
        })
        .collect()
}

#[test]
fn one_task_is_one_item_with_its_words_as_they_are() {
    let cases = [
        ("the clock runs backwards: FIX it", "bug"),
        ("It crashes.", "bug"),
        ("Can you fix the status page?", "bug"),
        ("idea: an error page that is fun", "idea"),
        ("please write a PRD for a dark mode", "idea"),
        ("2 steps: remove what nobody uses", "chore"),
        ("the prefix is a terror", "chore"),
        ("\"}],\"x\":[{\" $(touch x) `id` ' \\ \\n %s -- é", "chore"),
        ("a stack:\n```\nthen; one\n\n2. two\n```", "chore"),
        ("a list of\n  - what belongs to it\n\tand more", "chore"),
    ];
    for (at, (words, type_)) in cases.iter().enumerate() {
        let scheduler = Scheduler::asked(&format!("one-{at}"), &format!(" {words}\n\n"), &[]);
        assert_eq!(scheduler.ended(), "done\n--\nQueued 1 item. I'll let you know when it's done.\n", "{words}");
        let arguments = format!("submit\n--type\n{type_}\n--group\nask-1\n--notify-on\nFinished\n--dedup-key\nask-uid-1\n-\n");
        assert_eq!((scheduler.read("submit"), scheduler.read("submit.input").as_deref()), (Some(arguments), Some(*words)));
        assert_eq!(scheduler.read("plan"), None);
    }
}

#[test]
fn several_tasks_are_one_plan_in_the_order_that_was_said() {
    type Step = (&'static str, Vec<&'static str>, &'static str, &'static str);
    let cases: [(&str, Vec<Step>); 6] = [
        ("fix a; tidy b", vec![("1", vec![], "bug", "fix a"), ("2", vec![], "chore", "tidy b")]),
        (
            "1. fix a\r\n2) write a PRD for b\n(3) then tidy c\n- d",
            vec![
                ("1", vec![], "bug", "fix a"),
                ("2", vec![], "idea", "write a PRD for b"),
                ("3", vec!["1", "2"], "chore", "tidy c"),
                ("4", vec!["1", "2"], "chore", "d"),
            ],
        ),
        ("1. fix a 2. tidy 3.5 things", vec![("1", vec![], "bug", "fix a"), ("2", vec![], "chore", "tidy 3.5 things")]),
        (
            "then a\nthen\nb; and then, c;\n\n;",
            vec![("1", vec![], "chore", "a"), ("2", vec!["1"], "chore", "b"), ("3", vec!["2"], "chore", "c")],
        ),
        ("  a\n    with more; of it\n  b", vec![("1", vec![], "chore", "a\n    with more; of it"), ("2", vec![], "chore", "b")]),
        (
            "\"a\\\",\"key\":\"x\"}]} \u{1}\u{1f}\u{7f}\t\\u0041 é\n$(touch x) `id` ' %s",
            vec![
                ("1", vec![], "chore", "\"a\\\",\"key\":\"x\"}]} \u{1}\u{1f}\u{7f}\t\\u0041 é"),
                ("2", vec![], "chore", "$(touch x) `id` ' %s"),
            ],
        ),
    ];
    for (at, (words, expected)) in cases.into_iter().enumerate() {
        let scheduler = Scheduler::asked(&format!("many-{at}"), words, &[]);
        let answer = format!("done\n--\nQueued {} items. I'll let you know when they're done.\n", expected.len());
        assert_eq!(scheduler.ended(), answer, "{words}");
        let plan = scheduler.plan();
        assert_eq!((steps(&plan), plan.dedup_key.as_deref()), (expected, Some("ask-uid-1")), "{words}");
        assert_eq!((scheduler.read("plan").as_deref(), scheduler.read("submit")), (Some("plan\n-\n"), None));
    }
}

#[test]
fn a_question_queues_nothing() {
    let list = "1 Leased, 1 Ready, 2 Succeeded\nitem-a: Leased\nitem-b: Ready (Redriven), 3 before it: at last\nitem-c: Succeeded: Ready\nitem-d: Succeeded\n";
    let questions = [
        "status",
        "Status report.",
        "how far are you",
        "How many items are left?",
        "what is worker doing",
        "is it done?",
        "the status of a; and b?",
    ];
    for (at, words) in questions.iter().enumerate() {
        let scheduler = Scheduler::asked(&format!("question-{at}"), words, &[("list", list)]);
        let answer = "done\n--\n1 Leased, 1 Ready, 2 Succeeded\nitem-a: Leased\nitem-b: Ready (Redriven), 3 before it\n";
        assert_eq!(scheduler.ended(), answer, "{words}");
        assert_eq!((scheduler.read("submit"), scheduler.read("plan")), (None, None), "{words}");
    }
    let scheduler = Scheduler::asked("nothing", " \n;\n", &[]);
    assert_eq!(scheduler.ended(), "done\n--\nNothing was asked, so nothing is queued.\n");
}

#[test]
fn what_is_refused_fails_with_the_words_of_the_refusal() {
    let refusal = "notice: T A: something else\nrefused: WorkQueue/ideas holds 5 unfinished items and may hold 5 (queue_full)\n";
    let scheduler = Scheduler::asked("refused", "fix a; idea: b", &[("refusal", refusal)]);
    let words = "WorkQueue/ideas holds 5 unfinished items and may hold 5 (queue_full)";
    assert_eq!(scheduler.ended(), format!("fail\n--reason\nRefused\n--\n{words}\n"));
}

#[test]
fn its_log_tells_what_became_of_the_items_and_it_ends_at_once() {
    let inbox = "item-a: Succeeded: 3 steps for \"fix: a\"\nitem-b: Succeeded\nitem-c: DeadLettered (TooManyFailures): no\nplan-d: finished, 1 DeadLettered, 2 Succeeded\n";
    let mut scheduler = Scheduler::start("inbox", &[("inbox", inbox)]);
    let told = [
        "Done: item-a: 3 steps for \"fix: a\"",
        "Done: item-b",
        "Failed: item-c: DeadLettered (TooManyFailures): no",
        "Plan plan-d finished: 1 DeadLettered, 2 Succeeded",
    ];
    scheduler.until("its log", "log", |log| told.iter().all(|line| log.lines().any(|logged| logged == *line)));
    let pid = scheduler.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
    let began = Instant::now();
    let status = scheduler.child.wait().expect("it ends");
    assert!(status.code() == Some(0) && began.elapsed() < GENEROUS, "{status:?}");
}
