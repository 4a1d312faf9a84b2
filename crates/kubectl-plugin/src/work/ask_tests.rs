use super::*;
use serde_json::Value;

fn queue(name: &str, spec: Value) -> WorkQueue {
    let object = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkQueue", "metadata": {"name": name}, "spec": spec});
    serde_json::from_value(object).expect("a WorkQueue")
}

fn item(name: &str, type_: &str, status: Value) -> WorkItem {
    let object = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkItem", "metadata": {"name": name},
        "spec": {"type": type_, "group": "ask-1"}, "status": status});
    serde_json::from_value(object).expect("a WorkItem")
}

fn asked(words: &[&str]) -> Arguments {
    Arguments { words: words.iter().map(|word| (*word).to_owned()).collect(), ..Arguments::default() }
}

#[test]
fn only_a_queue_that_accepts_the_type_by_name_is_asked() {
    let any = queue("any", json!({}));
    let default = queue("default", json!({"accepts": {"types": ["bug"], "default": true}, "priority": 9}));
    assert_eq!(ask_queue(&[any.clone(), default.clone()]), None);
    let low = queue("a", json!({"accepts": {"types": ["ask"]}}));
    let high = queue("z", json!({"accepts": {"types": ["idea", "ask"]}, "priority": 1}));
    assert_eq!(ask_queue(&[any, default, low.clone(), high.clone()]).map(kube::ResourceExt::name_any).as_deref(), Some("z"));
    let mut leaving = high;
    leaving.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time");
    assert_eq!(ask_queue(&[leaving, low]).map(kube::ResourceExt::name_any).as_deref(), Some("a"));
    let error = no_ask_queue_error("n").to_string();
    assert!(
        error.contains("namespace \"n\"") && error.contains("spec.accepts.types: [ask]") && error.contains("config/samples"),
        "{error}"
    );
}

#[test]
fn a_pool_answers_if_it_takes_the_type_from_the_queue() {
    let pool = |queues: Value| -> AgentPool {
        let spec = json!({"type": "scheduler", "queues": queues, "agent": {"image": "x", "command": ["y"]}});
        serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "AgentPool", "metadata": {"name": "p"}, "spec": spec}))
            .expect("an AgentPool")
    };
    assert!(works_from(&pool(json!([{"name": "bugs"}, {"name": "asks"}])), "asks"));
    assert!(works_from(&pool(json!([{"name": "asks", "types": ["ask"]}])), "asks"));
    assert!(!works_from(&pool(json!([{"name": "asks", "types": ["bug"]}])), "asks"));
    assert!(!works_from(&pool(json!([{"name": "bugs"}])), "asks"));
}

#[test]
fn words_are_put_together_and_none_are_refused() {
    assert_eq!(request_text(&asked(&["fix", "the \"login\""])).expect("words"), "fix the \"login\"");
    assert_eq!(request_text(&asked(&["fix a\nfix b"])).expect("words"), "fix a\nfix b");
    assert!(request_text(&asked(&[" ", "\n"])).expect_err("refused").to_string().starts_with("the request is empty"));
    let file = Arguments { file: Some("/nowhere/at/all".into()), ..Arguments::default() };
    assert!(request_text(&file).expect_err("refused").to_string().starts_with("cannot read /nowhere/at/all"));
}

#[test]
fn the_answer_is_told_as_it_is_and_only_if_there_is_one() {
    let told = |status: Value, format| {
        let output = answer_output(&item("ask-1", "ask", status), format);
        (output.out, output.err)
    };
    let answer = "Queued 3 items. I'll let you know when they're done.";
    let done = json!({"phase": "Succeeded", "result": answer});
    assert_eq!(told(done.clone(), None), (format!("{answer}\n"), String::new()));
    assert_eq!(told(done, Some(Format::Json)), (String::new(), format!("{answer}\n")), "standard output is for the objects");
    assert_eq!(told(json!({"phase": "Succeeded", "result": "a\u{1b}[2J\nb"}), None).0, "a\u{fffd}[2J\nb\n");
    assert_eq!(told(json!({"phase": "Failed", "result": "of an attempt before"}), None), Default::default());
}

#[test]
fn an_answer_is_asked_again_with_the_whole_conversation() {
    let hint = talk::answer_hint("ask-1");
    let mut before = item("ask-1", "ask", json!({"phase": "Succeeded", "result": format!("Which login?\n{hint}")}));
    before.spec.payload = "mend the login".into();
    let words = answered_request(&before, "the first").expect("a conversation");
    assert_eq!(words, "mend the login\n\n[asked back]\nWhich login?\n\n[answered]\nthe first");
    let refused = |before: &WorkItem| answered_request(before, "x").expect_err("refused").to_string();
    assert!(refused(&item("bug-1", "bug", json!({"phase": "Succeeded", "result": "x"}))).contains("its type is not ask"));
    assert!(refused(&item("ask-2", "ask", json!({"phase": "Leased"}))).contains("it is Leased"));
}

fn report(waited: bool) -> Report {
    let items = vec![
        item("item-a", "bug", json!({"phase": "Succeeded", "queue": "bugs", "result": "two\nlines"})),
        item("item-b", "idea", json!({"phase": "DeadLettered", "queue": "ideas", "reason": "TooManyFailures"})),
    ];
    Report { namespace: "n".into(), request: item("ask-1", "ask", json!({"phase": "Succeeded", "result": "x"})), items, waited }
}

#[test]
fn what_was_waited_for_is_a_table() {
    let told = render(&report(true), None).expect("text");
    let expected = "ITEM     TYPE   QUEUE   PHASE          RESULT\n\
                    item-a   bug    bugs    Succeeded      two lines\n\
                    item-b   idea   ideas   DeadLettered   TooManyFailures\n";
    assert_eq!((told.out.as_str(), told.err.as_str()), (expected, ""));
}

#[test]
fn who_does_not_wait_is_told_how_to_follow() {
    let told = render(&report(false), None).expect("text");
    assert!(told.out.is_empty() && told.err.contains("2 items are queued"), "{told:?}");
    assert!(told.err.contains("--field-selector spec.group=ask-1"), "{told:?}");
    let nothing = Report { items: Vec::new(), ..report(false) };
    assert_eq!(render(&nothing, None).expect("text"), Output::default());
}

#[test]
fn programs_get_names_or_objects() {
    let names = render(&report(true), Some(Format::Name)).expect("text").out;
    assert_eq!(names, "workitem.spillway.dev/ask-1\nworkitem.spillway.dev/item-a\nworkitem.spillway.dev/item-b\n");
    let list: Value = serde_json::from_str(&render(&report(true), Some(Format::Json)).expect("text").out).expect("JSON");
    assert_eq!(
        (&list["kind"], &list["items"][0]["metadata"]["name"], list["items"].as_array().map(Vec::len)),
        (&json!("List"), &json!("ask-1"), Some(3))
    );
}
