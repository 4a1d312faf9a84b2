//! Tests of the agents that ship with Spillway, `spillway think`, as processes: with a fake sidecar and the scripted model server,
//! in each protocol. They check which work is queued for which words, the answers, and when rules decide.

mod common;

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use common::{BINARY, Folder, Process, until};
use serde_json::{Value, json};
use spillway_model_server::{Provider, serve};
use spillway_wire::body;
use spillway_wire::plan::Plan;
use spillway_wire::work::Submit;

/// The state of the fake sidecar, and what it received.
#[derive(Default)]
struct State {
    items: VecDeque<Value>,
    inbox: VecDeque<Value>,
    /// Counts of items by group.
    groups: Vec<(String, u64)>,
    /// The items that the pool's agents submitted.
    listed: Value,
    refusal: Option<Value>,
    limits: Vec<Value>,
    /// Submissions and plans, as they came.
    queued: Vec<Value>,
    /// How items ended.
    ended: Vec<Value>,
}

impl State {
    fn answer(&mut self, ask: &Value) -> Value {
        if ask.get("next").is_some() {
            return json!({"item": self.items.front()});
        }
        if let Some(outcome) = ask.get("finish") {
            self.items.pop_front();
            self.ended.push(outcome.clone());
            return json!("done");
        }
        if let Some(list) = ask.get("listWork") {
            let group = list["group"].as_str();
            let count = group.and_then(|group| self.groups.iter().find(|(name, _)| name == group)).map(|(_, count)| *count);
            return match (group, count) {
                (None, _) => json!({"listed": self.listed}),
                (Some(_), Some(count)) => json!({"listed": {"counts": {"Ready": count}, "items": []}}),
                (Some(_), None) => json!({"listed": {"counts": {}, "items": []}}),
            };
        }
        if ask.get("inbox").is_some() {
            return self.inbox.pop_front().map_or(json!("done"), |message| json!({"inbox": {"messages": [message], "cursor": "1"}}));
        }
        if ask == "budget" {
            return json!({"budget": {"limits": self.limits}});
        }
        if ask == "notices" {
            return json!({"notices": []});
        }
        assert!(ask.get("submit").or(ask.get("plan")).is_some(), "{ask}");
        self.queued.push(ask.clone());
        if let Some(refusal) = &self.refusal {
            return json!({"refused": refusal});
        }
        let item = |at: usize, key: &Value| json!({"key": key, "name": format!("item-{at}"), "uid": "u", "queue": "q"});
        match ask.pointer("/plan/request/steps").and_then(Value::as_array) {
            None => json!({"submitted": {"name": "item-1", "uid": "u", "queue": "q"}}),
            Some(steps) => {
                let items: Vec<Value> = steps.iter().enumerate().map(|(at, step)| item(at + 1, &step["key"])).collect();
                json!({"planned": {"plan": "plan-1", "items": items}})
            }
        }
    }
}

/// A fake sidecar, and a model.
struct Pod {
    folder: Folder,
    state: Arc<Mutex<State>>,
    provider: Arc<Provider>,
    model: SocketAddr,
    _runtime: tokio::runtime::Runtime,
}

impl Pod {
    fn new() -> Self {
        let folder = Folder::new();
        let state = Arc::new(Mutex::new(State { listed: json!({"counts": {}, "items": []}), ..State::default() }));
        let listener = UnixListener::bind(folder.path("run/link.sock")).expect("a socket");
        let shared = state.clone();
        std::thread::spawn(move || {
            listener.incoming().flatten().for_each(|stream| {
                let state = shared.clone();
                std::thread::spawn(move || serve_one(stream, &state));
            });
        });
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let provider = Provider::new([("team".to_owned(), "secret".to_owned())].into(), vec!["m".to_owned()]);
        let model = {
            let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a port");
            let address = listener.local_addr().expect("an address");
            runtime.spawn(serve(listener, None, provider.clone()));
            address
        };
        Self { folder, state, provider, model, _runtime: runtime }
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock().expect("one at a time"))
    }

    /// An item for a scheduler.
    fn asks(&self, name: &str, words: &str) {
        let item = json!({"held": {"uid": format!("uid-{name}"), "epoch": 1}, "name": name, "queue": "asks", "type": "ask",
            "payload": words, "attempt": 1, "attemptSeconds": 300});
        self.with(|state| state.items.push_back(item));
    }

    /// A program with a role, and with the addresses and keys of each protocol in its environment.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.arg("--ask-socket").arg(self.folder.path("run/link.sock")).arg("--ask-data").arg(self.folder.path("data"));
        command.arg("think").args(words);
        for (url, key, path) in [
            ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", ""),
            ("OPENAI_BASE_URL", "OPENAI_API_KEY", "/v1"),
            ("GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY", ""),
        ] {
            command.env(url, format!("http://{}{path}", self.model)).env(key, "secret");
        }
        command
    }

    fn start(&self, words: &[&str]) -> Process {
        let output = fs::File::options().create(true).append(true).open(self.folder.path("output")).expect("a file");
        Process::start(self.command(words).stdout(output), self.folder.path("errors"))
    }

    fn output(&self) -> String {
        fs::read_to_string(self.folder.path("output")).unwrap_or_default()
    }

    /// How the item with this number ended.
    fn ended(&self, number: usize) -> Value {
        until("the item ended", || self.with(|state| state.ended.get(number).cloned()))
    }

    /// The answer to the first request.
    fn answer(&self) -> String {
        let ended = self.ended(0);
        ended["complete"]["result"].as_str().unwrap_or_else(|| panic!("{ended}")).to_owned()
    }

    /// The only queued plan, as Spillway reads it.
    fn plan(&self) -> Plan {
        let queued = self.with(|state| state.queued.clone());
        assert_eq!(queued.len(), 1, "{queued:?}");
        let plan = queued[0].pointer("/plan/request").unwrap_or_else(|| panic!("{queued:?}")).to_string();
        body::read(plan.as_bytes()).unwrap_or_else(|refusal| panic!("{refusal}: {plan}"))
    }

    /// The only queued item.
    fn item(&self) -> Submit {
        let queued = self.with(|state| state.queued.clone());
        assert_eq!(queued.len(), 1, "{queued:?}");
        let item = queued[0].pointer("/submit/request").unwrap_or_else(|| panic!("{queued:?}")).to_string();
        body::read(item.as_bytes()).unwrap_or_else(|refusal| panic!("{refusal}: {item}"))
    }

    fn calls(&self) -> i64 {
        self.provider.counts.count()["all"]["calls"].as_i64().expect("a number")
    }

    /// The bodies of the model calls, as text.
    fn bodies(&self) -> Vec<String> {
        let requests = self.provider.counts.requests();
        let list = requests.as_array().or_else(|| requests["requests"].as_array()).cloned().expect("a list");
        list.iter().map(|request| request["body"].to_string()).collect()
    }
}

fn serve_one(stream: UnixStream, state: &Mutex<State>) {
    let mut line = String::new();
    let mut reader = BufReader::new(stream);
    reader.read_line(&mut line).expect("a line");
    let hello: Value = serde_json::from_str(&line).expect("JSON");
    let answer = state.lock().expect("one at a time").answer(&hello["ask"]);
    writeln!(reader.get_mut(), "{answer}").expect("it reads the answer");
}

const DIALECTS: [&str; 4] = ["Anthropic", "OpenAIChat", "OpenAIResponses", "Gemini"];

/// The answer of a model to a request for three things.
fn three_steps() -> String {
    json!({"say": "Three steps.", "steps": [
        {"key": "login", "type": "bug", "priority": 40, "task": "mend the login: it answers 500"},
        {"key": "search", "type": "bug", "task": "mend the search"},
        {"key": "notes", "type": "chore", "after": ["login", "search"], "task": "write the notes"},
    ]})
    .to_string()
}

#[test]
fn a_model_of_any_protocol_makes_a_plan_that_is_checked_and_queued_whole() {
    for dialect in DIALECTS {
        let pod = Pod::new();
        pod.provider.say("mend the login", &format!("```json\n{}\n```", three_steps()));
        pod.asks("ask-1", "please mend the login and the search, and afterwards write the notes");
        let _scheduler = pod.start(&["scheduler", "--model", "m", "--dialect", dialect]);
        assert_eq!(pod.answer(), "Three steps.\nQueued 3 items. I'll let you know when they're done.", "{dialect}");
        let plan = pod.plan();
        let rows: Vec<_> = plan.steps.iter().map(|step| (step.key.as_str(), step.item.type_.as_deref(), step.item.priority)).collect();
        assert_eq!(rows, [("login", Some("bug"), 40), ("search", Some("bug"), 10), ("notes", Some("chore"), 0)], "{dialect}");
        assert_eq!((plan.dedup_key.as_deref(), plan.steps[2].after.len()), (Some("ask-uid-ask-1"), 2), "{dialect}");
        assert!(plan.steps.iter().all(|step| step.item.group.as_deref() == Some("ask-1")), "{dialect}");
        assert_eq!(pod.calls(), 1, "{dialect}");
    }
}

#[test]
fn an_answer_that_cannot_be_used_is_asked_for_once_more_and_then_rules_decide() {
    let pod = Pod::new();
    pod.provider.say("mend the login", r#"{"steps": [{"key": "a", "type": "ask", "task": "x"}]}"#);
    pod.provider.say("cannot be used", &three_steps());
    pod.asks("ask-1", "mend the login");
    let _scheduler = pod.start(&["scheduler", "--model", "m"]);
    assert!(pod.answer().ends_with("Queued 3 items. I'll let you know when they're done."));
    let bodies = pod.bodies();
    assert!(bodies.len() == 2 && bodies[1].contains("is none of bug, idea, chore"), "{bodies:?}");

    let pod = Pod::new();
    pod.provider.say("", "I would rather not say.");
    pod.asks("ask-1", "fix the login; tidy up");
    let _scheduler = pod.start(&["scheduler", "--model", "m"]);
    let answer = pod.answer();
    assert!(answer.starts_with("Queued 2 items."), "{answer}");
    assert!(
        answer.ends_with("(By rules, without the model: the model's answer cannot be used: there is no JSON object in it)"),
        "{answer}"
    );
    assert_eq!(pod.calls(), 2);
}

#[test]
fn without_a_model_and_where_none_answers_rules_decide_and_say_why() {
    let hostile = "\"}],\"x\":[{\" $(touch x) `id` ' \\ \\n %s -- é";
    let cases: [(&[&str], &str, Option<&str>); 5] = [
        (&["scheduler"], hostile, None),
        (&["scheduler", "--model", "m--status-400"], "tidy up", Some("the model's API answers 400: scripted status 400")),
        (&["scheduler", "--model", "m--final"], "tidy up", Some("the model's API answers 402: ")),
        (&["scheduler", "--model", "m--late-60000", "--answer-seconds", "1"], "tidy up", Some("the model did not answer within 1 s")),
        (&["scheduler", "--model", "m--status-503--retry-60", "--answer-seconds", "5"], "tidy up", Some("the model's API answers 503: ")),
    ];
    for (words, asked, why) in cases {
        let pod = Pod::new();
        pod.asks("ask-1", asked);
        let _scheduler = pod.start(words);
        let answer = pod.answer();
        let queued = "Queued 1 item. I'll let you know when it's done.";
        match why {
            None => assert_eq!(answer, queued),
            Some(why) => assert!(answer.starts_with(&format!("{queued}\n(By rules, without the model: {why}")), "{words:?}: {answer}"),
        }
        let item = pod.item();
        assert_eq!((item.payload.as_str(), item.type_.as_deref(), item.group.as_deref()), (asked, Some("chore"), Some("ask-1")));
        assert_eq!(item.dedup_key.as_deref(), Some("ask-uid-ask-1"));
    }
    // A model that fails for a moment is asked again.
    let pod = Pod::new();
    pod.provider.say("tidy", r#"{"say": "No."}"#);
    pod.asks("ask-1", "tidy up");
    let _scheduler = pod.start(&["scheduler", "--model", "m--status-529--times-1--retry-1"]);
    assert_eq!((pod.answer().as_str(), pod.calls()), ("No.", 2));
}

#[test]
fn a_call_that_would_be_refused_for_tokens_is_not_made() {
    let limit = |left: i64, paused: bool| {
        json!({"budget": "Budget/default in team", "name": "hourly", "window": "Hour", "limit": 9000, "used": 0, "held": 0, "left": left,
            "enforced": true, "paused": paused})
    };
    for (left, paused, calls) in [(100, false, 0), (9000, true, 0), (9000, false, 1)] {
        let pod = Pod::new();
        pod.with(|state| state.limits = vec![limit(left, paused)]);
        pod.provider.say("tidy", r#"{"say": "No."}"#);
        pod.asks("ask-1", "tidy up");
        let _scheduler = pod.start(&["scheduler", "--model", "m"]);
        let answer = pod.answer();
        assert_eq!(pod.calls(), calls, "{answer}");
        assert_eq!(answer.contains("without the model: Budget/default in team, hourly: "), calls == 0, "{answer}");
    }
}

#[test]
fn a_question_of_the_model_queues_nothing_and_says_how_to_answer() {
    let pod = Pod::new();
    pod.provider.say("mend the login", r#"{"questions": ["Which login?", "Since when?"]}"#);
    pod.asks("ask-1", "mend the login");
    let _scheduler = pod.start(&["scheduler", "--model", "m"]);
    let expected =
        "Nothing is queued yet. To answer:\n1. Which login?\n2. Since when?\nAnswer with: kubectl spillway ask --answers ask-1 \"...\"";
    assert_eq!(pod.answer(), expected);
    assert_eq!(pod.with(|state| state.queued.len()), 0);
    // The person's answer contains the whole conversation, for the model and for the rules.
    let talk = spillway_wire::ask::task_with_answer("mend the login", &pod.answer(), "the first; since June");
    pod.provider.say("since June", &three_steps());
    pod.asks("ask-2", &talk);
    assert!(pod.ended(1)["complete"]["result"].as_str().is_some_and(|answer| answer.contains("Queued 3 items")));

    let pod = Pod::new();
    pod.asks("ask-2", &talk);
    let _scheduler = pod.start(&["scheduler"]);
    assert_eq!(pod.answer(), "Queued 1 item. I'll let you know when it's done.");
    assert_eq!(pod.item().payload, "mend the login\n            the first; since June");
}

#[test]
fn questions_about_the_work_are_answered_from_it() {
    let line = |name: &str, phase: &str| json!({"name": name, "uid": "u", "phase": phase, "result": "said"});
    let listed = json!({"counts": {"Leased": 1, "Succeeded": 1}, "items": [line("item-a", "Leased"), line("item-b", "Succeeded")]});
    let pod = Pod::new();
    pod.with(|state| state.listed = listed.clone());
    pod.asks("ask-1", "how far are you?");
    let _scheduler = pod.start(&["scheduler"]);
    assert_eq!(pod.answer(), "1 Leased, 1 Succeeded\nitem-a: Leased");
    // A model gets the same summary.
    let pod = Pod::new();
    pod.with(|state| state.listed = listed);
    pod.provider.say("1 Leased, 1 Succeeded\nitem-a: Leased", r#"{"say": "Half of it is done."}"#);
    pod.asks("ask-1", "how far are you?");
    let _scheduler = pod.start(&["scheduler", "--model", "m"]);
    assert_eq!(pod.answer(), "Half of it is done.");
    assert_eq!(pod.with(|state| state.queued.len()), 0);
}

#[test]
fn what_an_agent_queued_before_it_was_lost_is_not_queued_again() {
    let pod = Pod::new();
    pod.with(|state| state.groups.push(("ask-1".to_owned(), 2)));
    pod.asks("ask-1", "fix a; fix b");
    let _scheduler = pod.start(&["scheduler", "--model", "m"]);
    assert_eq!(pod.answer(), "Queued 2 items. I'll let you know when they're done.");
    assert_eq!((pod.calls(), pod.with(|state| state.queued.len())), (0, 0));

    // The work was queued after the search, and the model may have decided differently this time.
    for code in ["key_reused", "duplicate"] {
        let pod = Pod::new();
        pod.with(|state| state.refusal = Some(json!({"code": code, "message": "another plan has this key"})));
        pod.asks("ask-1", "fix a; fix b");
        let scheduler = pod.start(&["scheduler"]);
        let ended = pod.ended(0);
        assert_eq!(
            (&ended["fail"]["reason"], &ended["fail"]["message"]),
            (&json!("Refused"), &json!(format!("another plan has this key ({code})")))
        );
        drop(scheduler);
    }
}

#[test]
fn what_is_refused_fails_with_the_words_of_the_refusal() {
    let pod = Pod::new();
    let words = "WorkQueue/ideas holds 5 unfinished items and may hold 5";
    pod.with(|state| state.refusal = Some(json!({"code": "queue_full", "message": words})));
    pod.asks("ask-1", "fix a; idea: b");
    let _scheduler = pod.start(&["scheduler"]);
    assert_eq!(pod.ended(0), json!({"fail": {"reason": "Refused", "message": format!("{words} (queue_full)"), "exit_code": null}}));
}

#[test]
fn an_edit_of_prompt_and_types_counts_for_the_next_request() {
    let pod = Pod::new();
    let (prompt, routes) = (pod.folder.path("prompt.md"), pod.folder.path("routes.json"));
    let table = |queue: &str, priority: i32| {
        json!({"types": [{"type": "task", "queues": [queue], "priority": priority}], "otherwise": "task"}).to_string()
    };
    common::write(&prompt, "Speak French.");
    common::write(&routes, &table("one", 1));
    pod.provider.say("do it", r#"{"steps": [{"key": "a", "type": "task", "task": "it"}]}"#);
    let words = ["scheduler", "--model", "m", "--prompt", &prompt.display().to_string(), "--routes", &routes.display().to_string()];
    pod.asks("ask-1", "do it");
    let scheduler = pod.start(&words);
    pod.ended(0);
    common::write(&prompt, "Speak Finnish.");
    common::write(&routes, &table("two", 2));
    pod.asks("ask-2", "do it");
    pod.ended(1);
    // A file that cannot be used changes nothing, and is reported.
    common::write(&routes, "{}");
    pod.asks("ask-3", "do it");
    pod.ended(2);
    let item = |at: usize, field: &str| pod.with(|state| state.queued[at]["submit"]["request"][field].clone());
    let rows: Vec<_> = (0..3).map(|at| (item(at, "queue"), item(at, "priority"))).collect();
    assert_eq!(rows, [(json!("one"), json!(1)), (json!("two"), json!(2)), (json!("two"), json!(2))]);
    let bodies = pod.bodies();
    assert!(bodies[0].contains("Speak French.") && bodies[1].contains("Speak Finnish."), "{bodies:?}");
    assert!(
        scheduler.log().contains("its previous content stays in use: ") && scheduler.log().contains("routes.json"),
        "{}",
        scheduler.log()
    );
    // At the start it is an error.
    let refused = pod.command(&words).output().expect("it runs");
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}

#[test]
fn its_log_tells_what_became_of_the_items() {
    let pod = Pod::new();
    let item = |name: &str, phase: &str| json!({"about": "itemEnded", "item": {"name": name, "uid": "u", "phase": phase}});
    let plan = json!({"about": "planEnded", "plan": "plan-d", "counts": {"Succeeded": 2}});
    pod.with(|state| state.inbox.extend([item("item-a", "Succeeded"), item("item-b", "DeadLettered"), plan]));
    let _scheduler = pod.start(&["scheduler"]);
    let told = ["Done: item-a", "Failed: item-b: DeadLettered", "Plan plan-d finished: 2 Succeeded"];
    until("its log tells it", || told.iter().all(|line| pod.output().lines().any(|logged| logged == *line)).then_some(()));
}

#[test]
fn an_idea_becomes_a_document_and_the_work_that_follows_from_it() {
    let document = "# Dark mode\n\n## Problem\nIt is too bright.";
    let reply = json!({"document": document, "steps": [{"key": "a", "type": "chore", "task": "measure how bright it is"}]});
    let run = |pod: &Pod, words: &[&str]| {
        fs::write(pod.folder.path("payload"), "a dark mode").expect("written");
        let mut command = pod.command(words);
        command.env("SPILLWAY_PAYLOAD_FILE", pod.folder.path("payload")).env("SPILLWAY_RESULT_FILE", pod.folder.path("result"));
        let ended = command.env("SPILLWAY_ITEM", "idea-1").env("SPILLWAY_ITEM_UID", "uid-1").output().expect("it runs");
        assert_eq!(ended.status.code(), Some(0), "{ended:?}");
        fs::read_to_string(pod.folder.path("result")).expect("a result")
    };
    let pod = Pod::new();
    pod.provider.say("a dark mode", &reply.to_string());
    assert_eq!(run(&pod, &["prd", "--model", "m"]), format!("{document}\n\nQueued: item-1 (chore)."));
    let item = pod.item();
    assert_eq!((item.group.as_deref(), item.dedup_key.as_deref()), (Some("idea-1"), Some("prd-uid-1")));

    // A refusal of the work does not change the document.
    let pod = Pod::new();
    pod.provider.say("a dark mode", &reply.to_string());
    pod.with(|state| state.refusal = Some(json!({"code": "not_allowed", "message": "not this queue"})));
    assert_eq!(
        run(&pod, &["prd", "--model", "m"]),
        format!("{document}\n\nThe work that follows from it is not queued: not this queue (not_allowed)")
    );

    let pod = Pod::new();
    let result = run(&pod, &["prd", "--model", "m--status-400"]);
    assert!(result.starts_with("# a dark mode\n") && result.contains("\n\n(By rules, without the model: "), "{result}");
    assert_eq!(pod.with(|state| state.queued.len()), 0);
}

#[test]
fn somebody_talks_to_buddy_and_it_queues_what_is_worth_doing() {
    let pod = Pod::new();
    pod.provider.say("does nothing", r#"{"questions": ["Which button?"]}"#);
    let step = json!({"say": "I will have it mended.", "steps": [{"key": "a", "type": "bug", "task": "the login button does nothing"}]});
    pod.provider.say("the login one", &step.to_string());
    pod.with(|state| state.inbox.push_back(json!({"about": "itemEnded", "item": {"name": "item-0", "uid": "u", "phase": "Succeeded"}})));
    let output = fs::File::create(pod.folder.path("output")).expect("a file");
    let mut buddy = pod.command(&["buddy", "--model", "m"]).stdin(Stdio::piped()).stdout(output).spawn().expect("it starts");
    let mut keyboard = buddy.stdin.take().expect("its input");
    let hears = |words: &str| until(words, || pod.output().contains(words).then_some(()));
    writeln!(keyboard, "a button does nothing").expect("typed");
    hears("Which button?\n");
    writeln!(keyboard, "\n the login one ").expect("typed");
    hears("I will have it mended.\nQueued item-1 (bug, queue q).\n");
    hears("Done: item-0\n");
    let item = pod.item();
    assert_eq!((item.payload.as_str(), item.priority, item.group), ("the login button does nothing", 10, None));
    let bodies = pod.bodies();
    assert!(bodies.len() == 2 && bodies[1].contains("a button does nothing") && bodies[1].contains("Which button?"), "{bodies:?}");
    drop(keyboard);
    let code = until("it ends", || buddy.try_wait().expect("our child")).code();
    assert_eq!(code, Some(0), "the person left");
}

#[test]
fn buddy_understands_a_few_words_without_a_model() {
    let pod = Pod::new();
    let output = fs::File::create(pod.folder.path("output")).expect("a file");
    let mut buddy = pod.command(&["buddy"]).stdin(Stdio::piped()).stdout(output).spawn().expect("it starts");
    let mut keyboard = buddy.stdin.take().expect("its input");
    writeln!(keyboard, "how far are you?\nfix the login\nidea: a dark mode").expect("typed");
    drop(keyboard);
    let code = until("it ends", || buddy.try_wait().expect("our child")).code();
    assert_eq!(code, Some(0));
    let output = pod.output();
    for words in ["nothing was submitted\n", "Queued item-1 (bug, queue q).\n", "Queued item-1 (idea, queue q).\n"] {
        assert!(output.contains(words), "{words}: {output}");
    }
}
