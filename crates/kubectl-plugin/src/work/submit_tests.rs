//! Tests of the items that `submit` creates.

use super::*;
use serde_json::Value;

fn arguments(words: &[Word]) -> Arguments {
    Arguments { words: words.to_vec(), ..Arguments::default() }
}
fn queue() -> Word {
    Word::Queue("q".into())
}
fn now() -> Timestamp {
    "2026-01-01T00:00:00.25Z".parse().expect("a time")
}
fn text(text: &str) -> Task {
    Task::Text(text.to_owned())
}
fn built(arguments: &Arguments, number: u32) -> Value {
    json!(build(arguments, Some("q"), &text("do {}"), number, 20, now()).expect("an item"))
}

#[test]
fn a_task_comes_from_one_place() {
    let text = Arguments { payload: Some("p".into()), ..arguments(&[queue()]) };
    assert_eq!(queue_and_source(&text).expect("parts"), (Some("q".into()), Source::Text("p".into())));
    let file = Arguments { file: Some("f".into()), ..arguments(&[queue()]) };
    assert_eq!(queue_and_source(&file).expect("parts").1, Source::File("f".into()));
    assert_eq!(queue_and_source(&arguments(&[queue(), Word::Stdin])).expect("parts").1, Source::Stdin);
    assert_eq!(queue_and_source(&Arguments { file: Some("-".into()), ..arguments(&[queue()]) }).expect("parts").1, Source::Stdin);
    assert_eq!(queue_and_source(&arguments(&[queue()])).expect("parts").1, Source::Nothing);
    let typed = Arguments { type_: Some("bug".into()), ..arguments(&[Word::Stdin]) };
    assert_eq!(queue_and_source(&typed).expect("parts"), (None, Source::Stdin));
    let git = from_git::RepositoryArguments { from_git: Some("r".into()), ..from_git::RepositoryArguments::default() };
    assert_eq!(queue_and_source(&Arguments { git, ..arguments(&[queue()]) }).expect("parts").1, Source::Git("r".into()));
    let named = Arguments { queue: Some("q".into()), payload: Some("p".into()), ..Arguments::default() };
    assert_eq!(queue_and_source(&named).expect("parts"), (Some("q".into()), Source::Text("p".into())));
    let refused = [
        (Arguments { queue: Some("r".into()), ..arguments(&[queue()]) }, "only one queue can be named"),
        (arguments(&[]), "no queue is named"),
        (arguments(&[queue(), queue()]), "only one queue can be named"),
        (Arguments { payload: Some("p".into()), ..arguments(&[queue(), Word::Stdin]) }, "the task is given more than once"),
        (Arguments { file: Some("-".into()), ..arguments(&[queue(), Word::Stdin]) }, "the task is given more than once"),
        (
            Arguments {
                git: from_git::RepositoryArguments { from_git: Some("r".into()), ..from_git::RepositoryArguments::default() },
                ..arguments(&[queue(), Word::Stdin])
            },
            "the task is given more than once",
        ),
        (Arguments { count: Some(2), name: Some("a".into()), ..arguments(&[queue()]) }, "must contain {}"),
        (Arguments { count: Some(2), dedup_key: Some("k".into()), ..arguments(&[queue()]) }, "must contain {}"),
    ];
    for (arguments, words) in refused {
        let error = queue_and_source(&arguments).expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn an_item_holds_what_was_asked_and_no_more() {
    let plain = built(&arguments(&[queue()]), 1);
    assert_eq!(plain["metadata"], json!({"generateName": "q-"}));
    assert_eq!(plain["spec"], json!({"queueRef": {"name": "q"}, "priority": 0, "payload": "do {}", "onDependencyFailure": "Cancel"}));
    let all = Arguments {
        type_: Some("bug".into()),
        priority: Some(7),
        group: Some("g".into()),
        concurrency_key: Some("repo".into()),
        after: vec!["a".into(), "b".into()],
        not_before: Some(PointInTime::In(Duration::from_secs(60))),
        deadline: Some(PointInTime::In(Duration::from_secs(3600))),
        name: Some("n-{}".into()),
        count: Some(3),
        ..arguments(&[queue()])
    };
    let made = built(&all, 2);
    assert_eq!(made["metadata"], json!({"name": "n-2"}));
    let spec = &made["spec"];
    assert_eq!(
        (&spec["type"], &spec["priority"], &spec["group"], &spec["concurrencyKey"]),
        (&json!("bug"), &json!(7), &json!("g"), &json!("repo"))
    );
    assert_eq!(
        (&spec["payload"], &spec["notBeforeTime"], &spec["deadlineTime"]),
        (&json!("do 2"), &json!("2026-01-01T00:01:00Z"), &json!("2026-01-01T01:00:00Z"))
    );
    assert_eq!(spec["dependsOn"], json!([{"name": "a", "condition": "Succeeded"}, {"name": "b", "condition": "Succeeded"}]));
}

#[test]
fn a_key_makes_the_name_and_the_same_key_the_same() {
    let keyed = |key: &str| built(&Arguments { dedup_key: Some(key.into()), ..arguments(&[queue()]) }, 1)["metadata"].clone();
    let name = format!("item-{}", names::short_hash(&["item", "dedup", "k"], 16));
    assert_eq!((keyed("k"), name.len()), (json!({"name": name}), 21));
    assert_eq!(keyed("k"), keyed("k"));
    assert_ne!(keyed("k"), keyed("K"));
}

#[test]
fn a_file_has_its_source_and_its_key() {
    let file = TaskFile { path: "tasks/a.md".into(), source: "r@c:tasks/a.md".into(), key: "git-1".into(), text: "do {}".into() };
    let plain = arguments(&[queue()]);
    let made = json!(build(&plain, Some("q"), &Task::File(file.clone()), 3, 20, now()).expect("an item"));
    assert_eq!(made["metadata"]["annotations"], json!({"spillway.dev/source": "r@c:tasks/a.md"}));
    assert_eq!(made["metadata"]["name"], json!(format!("item-{}", names::short_hash(&["item", "dedup", "git-1"], 16))));
    let spec = &made["spec"];
    assert_eq!((&spec["dedupKey"], &spec["payload"]), (&json!("git-1"), &json!("do {}")), "a file is taken as it is");
    let large = Task::File(TaskFile { text: "x".repeat(21), ..file });
    let error = build(&plain, Some("q"), &large, 1, 20, now()).expect_err("refused").to_string();
    assert!(error.starts_with("tasks/a.md: the payload has 21 bytes: the limit is 20"), "{error}");
}

#[test]
fn what_would_never_run_is_refused_before_anything_is_sent() {
    let refused =
        |arguments: &Arguments, task: &str| build(arguments, Some("q"), &text(task), 1, 20, now()).expect_err("refused").to_string();
    let plain = arguments(&[queue()]);
    assert!(refused(&plain, &"x".repeat(21)).starts_with("the payload has 21 bytes: the limit is 20"));
    let past = Arguments { deadline: Some(PointInTime::At(Timestamp::UNIX_EPOCH)), ..plain.clone() };
    assert!(refused(&past, "").starts_with("--deadline 1970-01-01T00:00:00Z passes before"));
    let crossed = Arguments {
        deadline: Some(PointInTime::In(Duration::from_secs(60))),
        not_before: Some(PointInTime::In(Duration::from_secs(60))),
        ..plain.clone()
    };
    assert!(refused(&crossed, "").contains("passes before an agent could get the item"));
    assert!(refused(&Arguments { name: Some("A".into()), ..plain }, "").starts_with("--name \"A\": a name has at most 253"));
}

#[test]
fn what_was_made_is_written_as_asked() {
    let item = |name: &str| WorkItem {
        metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
        ..WorkItem::new("", WorkItemSpec::default())
    };
    let report = |items| Report { namespace: "n".into(), dry_run: false, items, notes: vec!["note".into()], failures: Vec::new() };
    let told = |report: &Report, format| render(report, format).expect("text");
    let two = report(vec![item("a"), item("b")]);
    assert_eq!(told(&two, None).out, "workitem.spillway.dev/a submitted\nworkitem.spillway.dev/b submitted\n");
    assert_eq!(
        (told(&two, Some(Format::Name)).out.as_str(), told(&two, None).err.as_str()),
        ("workitem.spillway.dev/a\nworkitem.spillway.dev/b\n", "note: note\n")
    );
    let json: Value = serde_json::from_str(&told(&two, Some(Format::Json)).out).expect("JSON");
    assert_eq!((&json["kind"], &json["items"][1]["metadata"]["name"]), (&json!("List"), &json!("b")));
    let one: Value = serde_saphyr::from_str(&told(&report(vec![item("a")]), Some(Format::Yaml)).out).expect("YAML");
    assert_eq!(one["kind"], json!("WorkItem"));
    let dry = Report { dry_run: true, failures: vec!["Duplicate: x".into()], ..report(vec![item("a")]) };
    let told = told(&dry, None);
    assert_eq!((told.out.as_str(), told.failed), ("workitem.spillway.dev/a submitted (server dry run)\n", true));
}
