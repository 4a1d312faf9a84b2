//! `submit`: the created items, a deduplication key that is taken, the files of a repository, and the output of a wait.

use super::*;
use std::path::Path;

use kubectl_spillway::work::{follow, from_git, submit};

fn arguments() -> submit::Arguments {
    submit::Arguments { words: vec![submit::Word::Queue("q".into())], ..submit::Arguments::default() }
}

fn text(text: &str) -> Vec<submit::Task> {
    vec![submit::Task::Text(text.to_owned())]
}

fn now() -> jiff::Timestamp {
    "2026-01-01T00:00:00Z".parse().expect("a time")
}

#[tokio::test]
async fn submit_looks_at_the_queue_and_makes_an_item_of_it() {
    let (cluster, mut server) = fake();
    let asked = submit::Arguments { priority: Some(3), group: Some("g".into()), ..arguments() };
    let talk =
        async { (server.answer(200, queue(json!({"suspend": true}))).await, server.answer(201, item("q-abcde", Value::Null)).await) };
    let (report, (read, made)) = tokio::join!(submit::run(&cluster, &asked, Some("q"), text("do it"), now()), talk);
    assert_eq!((read.line, made.line), (format!("GET {QUEUES}/q"), format!("POST {ITEMS}?&fieldManager=kubectl-spillway")));
    assert_eq!(made.body["metadata"], json!({"generateName": "q-"}));
    assert_eq!(
        made.body["spec"],
        json!({"queueRef": {"name": "q"}, "priority": 3, "group": "g", "payload": "do it", "submitTime": "2026-01-01T00:00:00.000000Z", "onDependencyFailure": "Cancel"})
    );
    assert_eq!(made.body.get("status"), None);
    let told = submit::render(&report.expect("a report"), None).expect("text");
    assert_eq!(told.out, "workitem.spillway.dev/q-abcde submitted\n");
    assert_eq!(told.err, "note: queue q is paused, so agents get no items from it: `kubectl spillway resume queue/q -n n` resumes it\n");
}

#[tokio::test]
async fn submit_of_a_type_alone_reads_nothing_and_a_dry_run_stores_nothing() {
    let (cluster, mut server) = fake();
    let asked = submit::Arguments { words: Vec::new(), type_: Some("bug".into()), dry_run: true, ..submit::Arguments::default() };
    let (report, made) =
        tokio::join!(submit::run(&cluster, &asked, None, text(""), now()), server.answer(201, item("item-abcde", Value::Null)));
    assert_eq!(made.line, format!("POST {ITEMS}?&dryRun=All&fieldManager=kubectl-spillway"));
    assert_eq!((&made.body["metadata"], &made.body["spec"]["type"]), (&json!({"generateName": "item-"}), &json!("bug")));
    let told = submit::render(&report.expect("a report"), None).expect("text");
    assert_eq!(told.out, "workitem.spillway.dev/item-abcde submitted (server dry run)\n");
}

#[tokio::test]
async fn a_key_that_is_taken_is_a_duplicate_and_says_of_what() {
    let (cluster, mut server) = fake();
    let asked = submit::Arguments { dedup_key: Some("k".into()), ..arguments() };
    let talk = async {
        server.answer(200, queue(json!({}))).await;
        let made = server.answer(409, refusal(409, "AlreadyExists", "m", "workitems", "item-x")).await;
        (made, server.answer(200, leased("item-x")).await)
    };
    let (report, (made, read)) = tokio::join!(submit::run(&cluster, &asked, Some("q"), text(""), now()), talk);
    let name = made.body["metadata"]["name"].as_str().expect("a name").to_owned();
    assert!(name.starts_with("item-") && name.len() == 21, "{name}");
    assert_eq!((made.body["spec"]["dedupKey"].as_str(), read.line), (Some("k"), format!("GET {ITEMS}/{name}")));
    let told = submit::render(&report.expect("a report"), None).expect("text");
    assert_eq!(told.err, format!("error: Duplicate: item \"{name}\" already has this --dedup-key (Leased); nothing was submitted\n"));
    assert!(told.failed && told.out.is_empty());
}

#[tokio::test]
async fn many_items_are_numbered_and_what_stops_one_stops_the_rest() {
    let (cluster, mut server) = fake();
    let asked = submit::Arguments { count: Some(3), name: Some("c-{}".into()), ..arguments() };
    let talk = async {
        server.answer(403, refusal(403, "Forbidden", "no queues for you", "workqueues", "q")).await;
        let first = server.answer(201, item("c-1", Value::Null)).await;
        (first, server.answer(403, refusal(403, "Forbidden", "quota", "workitems", "c-2")).await)
    };
    let (report, (first, second)) = tokio::join!(submit::run(&cluster, &asked, Some("q"), text("chapter {}"), now()), talk);
    let made = |seen: &SeenRequests| (seen.body["metadata"]["name"].clone(), seen.body["spec"]["payload"].clone());
    assert_eq!((made(&first), made(&second)), ((json!("c-1"), json!("chapter 1")), (json!("c-2"), json!("chapter 2"))));
    let told = submit::render(&report.expect("a report"), Some(submit::Format::Name)).expect("text");
    assert_eq!((told.out.as_str(), told.err.as_str()), ("workitem.spillway.dev/c-1\n", "error: from server (Forbidden): quota\n"));
}

#[tokio::test]
async fn what_is_too_large_or_goes_nowhere_is_not_sent() {
    let (cluster, mut server) = fake();
    let asked = arguments();
    let (report, _) = tokio::join!(
        submit::run(&cluster, &asked, Some("q"), text("12345"), now()),
        server.answer(200, queue(json!({"limits": {"maxItemBytes": 4}})))
    );
    assert!(report.expect_err("refused").to_string().starts_with("the payload has 5 bytes: the limit is 4"));
    let (report, _) = tokio::join!(
        submit::run(&cluster, &asked, Some("q"), text(""), now()),
        server.answer(404, refusal(404, "NotFound", "m", "workqueues", "q"))
    );
    assert!(matches!(report, Err(Error::NotFound { .. })), "{report:?}");
}

/// Runs git in a folder.
fn git(folder: &Path, words: &[&str]) -> String {
    let who = ["-c", "user.name=a", "-c", "user.email=a@example.com"];
    let done = std::process::Command::new("git").arg("-C").arg(folder).args(who).args(words).output().expect("git");
    assert!(done.status.success(), "{words:?}: {done:?}");
    String::from_utf8(done.stdout).expect("text").trim().to_owned()
}

#[tokio::test]
async fn each_file_of_a_repository_is_an_item_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let repository = folder.path();
    git(repository, &["init", "--quiet", "-b", "main"]);
    std::fs::create_dir(repository.join("tasks")).expect("a folder");
    for (path, text) in [("README.md", "no task"), ("tasks/b.md", "second {}\n"), ("tasks/a.md", "\u{feff}first"), ("tasks/.keep", "x")] {
        std::fs::write(repository.join(path), text).expect("a file");
    }
    // A checkout would write other ends of lines.
    std::fs::write(repository.join(".gitattributes"), "* text eol=crlf\n").expect("a file");
    git(repository, &["add", "."]);
    git(repository, &["commit", "--quiet", "-m", "tasks"]);
    let commit = git(repository, &["rev-parse", "HEAD"]);
    let url = repository.to_str().expect("text");
    let read = |path: Option<&str>, ref_: Option<&str>| {
        let arguments = from_git::RepositoryArguments { from_git: None, ref_: ref_.map(str::to_owned), path: path.map(str::to_owned) };
        from_git::read(url, &arguments, 100)
    };
    let files = read(Some("tasks"), None).expect("tasks");
    let told: Vec<(&str, &str)> = files.iter().map(|file| (file.path.as_str(), file.text.as_str())).collect();
    assert_eq!(told, [("tasks/a.md", "first"), ("tasks/b.md", "second {}\n")]);
    assert_eq!(files[0].source, format!("{url}@{commit}:tasks/a.md"));
    assert_eq!(read(Some("tasks"), Some("main")).expect("tasks"), files);
    assert_eq!(read(None, None).expect("tasks").len(), 3);
    assert_eq!(read(Some("tasks/b.md"), Some(&commit)).expect("a task"), files[1..]);
    // Another content is another task.
    std::fs::write(repository.join("tasks/a.md"), "first, mended").expect("a file");
    git(repository, &["commit", "--quiet", "-am", "mended"]);
    let mended = read(Some("tasks"), None).expect("tasks");
    assert!(mended[0].key != files[0].key && mended[1].key == files[1].key, "{mended:?}");
    for (path, ref_, words) in [
        (Some("none"), None, "has no task at none in HEAD"),
        (None, Some("absent"), "git fetch failed: "),
        (Some("tasks/.keep"), None, "has no task at tasks/.keep"),
    ] {
        let error = read(path, ref_).expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    }
    let (cluster, mut server) = fake();
    let tasks: Vec<submit::Task> = files.into_iter().map(submit::Task::File).collect();
    let talk = async {
        server.answer(200, queue(json!({}))).await;
        let first = server.answer(409, refusal(409, "AlreadyExists", "m", "workitems", "item-x")).await;
        server.answer(200, leased("item-x")).await;
        let mut made = item("item-y", Value::Null);
        made["metadata"]["annotations"] = json!({"spillway.dev/source": "r@c:tasks/b.md"});
        (first, server.answer(201, made).await)
    };
    let asked = arguments();
    let (report, (first, second)) = tokio::join!(submit::run(&cluster, &asked, Some("q"), tasks, now()), talk);
    let time = |seen: &SeenRequests| seen.body["spec"]["submitTime"].clone();
    assert_eq!(second.body["spec"]["payload"], json!("second {}\n"));
    // Their order is that of their times, to the millisecond. None is later than now.
    assert_eq!((time(&first), time(&second)), (json!("2025-12-31T23:59:59.999000Z"), json!("2026-01-01T00:00:00.000000Z")));
    let told = submit::render(&report.expect("a report"), None).expect("text");
    assert_eq!(told.out, "workitem.spillway.dev/item-y submitted: r@c:tasks/b.md\n");
    let name = first.body["metadata"]["name"].as_str().expect("a name");
    assert_eq!((told.err, told.failed), (format!("note: tasks/a.md was submitted before: item \"{name}\" (Leased)\n"), false));
}

#[tokio::test(start_paused = true)]
async fn items_are_followed_to_their_end() {
    let (cluster, mut server) = fake();
    let made = serde_json::from_value(item("i", Value::Null)).expect("an item");
    let mut heard = HeardRequest::default();
    let talk = async {
        server.answer(200, item("i", json!({"phase": "Ready"}))).await;
        server.answer(200, leased("i")).await;
        server.answer(200, leased("i")).await;
        server.answer(200, item("i", json!({"phase": "Succeeded", "result": "merged"}))).await.line
    };
    let items = [made];
    let (ended, line) =
        tokio::join!(follow::run(&cluster, &items, None, follow::Announcement::Stdout, &mut heard, std::future::pending()), talk);
    assert!(ended.is_ok() && !heard.told.failed, "{ended:?}");
    assert_eq!(line, format!("GET {ITEMS}/i"));
    assert_eq!(
        heard.told.out,
        "workitem.spillway.dev/i Ready\nworkitem.spillway.dev/i Leased by a\nworkitem.spillway.dev/i Succeeded\n  merged\n"
    );
    let mut heard = HeardRequest::default();
    let talk = server.answer(200, item("i", json!({"phase": "Failed", "reason": "FailureRule"})));
    let (ended, _) =
        tokio::join!(follow::run(&cluster, &items, None, follow::Announcement::Stdout, &mut heard, std::future::pending()), talk);
    assert!(ended.is_ok() && heard.told.failed, "{ended:?}");
    assert_eq!(heard.told.err, "error: item \"i\" has not succeeded: Failed, FailureRule\n");
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_when_time_is_up_or_its_user_goes() {
    let (cluster, mut server) = fake();
    let items = [serde_json::from_value(item("i", Value::Null)).expect("an item")];
    let mut heard = HeardRequest::default();
    let waited =
        follow::run(&cluster, &items, Some(Duration::from_millis(100)), follow::Announcement::Stderr, &mut heard, std::future::pending());
    let (ended, _) = tokio::join!(waited, server.answer(200, leased("i")));
    assert_eq!(ended.expect_err("late").to_string(), "these items have not ended in time: i (Leased by a)");
    assert_eq!(
        (heard.told.out.as_str(), heard.told.err.as_str()),
        ("", "workitem.spillway.dev/i Leased by a\n"),
        "standard output is for something else"
    );
    let mut heard = HeardRequest::default();
    let gone = tokio::time::sleep(Duration::from_millis(50));
    let (ended, _) =
        tokio::join!(follow::run(&cluster, &items, None, follow::Announcement::Stdout, &mut heard, gone), server.answer(200, leased("i")));
    assert!(ended.expect_err("interrupted").to_string().starts_with("the wait was interrupted; the work continues"), "{:?}", heard.told);
}
