//! The scheduler agent that ships: requests in plain text become items with an order, and submitters are notified of
//! their end. And Spillway's refusals of its calls.

use std::process::Stdio;

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};
use spillway::api::work_item::WorkItemPhase::{self, Blocked, Failed, Leased, Ready, Scheduled, Succeeded};
use spillway::api::{Agent, WorkItem};

use crate::support::caller::{Caller, token_of};
use crate::support::exec::CommandOutput;
use crate::support::fleet::{Fleet, log};
use crate::support::work::{Ledger, UNTIL_TOLD, attempts, phase};
use crate::support::{Operator, TestNamespace, check_state, eventually, plugin_path};

/// A namespace with an operator that leads, the queues and the scheduler of the samples, and workers that print their
/// task.
async fn set_up(name: &str) -> (TestNamespace, Operator, Ledger) {
    let room = TestNamespace::open(name).await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    let ledger = Ledger::start(&room);
    for (queue, types) in [("bugs", "bug"), ("ideas", "idea")] {
        room.apply_queue(queue, json!({"accepts": {"types": [types]}})).await;
    }
    room.apply_queue("chores", json!({"accepts": {"types": ["chore"], "default": true}})).await;
    let rules = json!({"rules": [{"action": "Fail", "onReasons": ["Refused", "NotUnderstood"]}]});
    room.apply_queue("asks", json!({"accepts": {"types": ["ask"]}, "failurePolicy": rules})).await;
    let scheduler = json!({
        "type": "scheduler", "queues": [{"name": "asks"}], "may": {"submitTo": ["bugs", "chores", "ideas"]},
        "agent": {"command": ["/spillway/bin/spillway", "think", "scheduler"], "run": "LongRunning"},
    });
    room.apply_pool("scheduler", scheduler).await;
    (room, operator, ledger)
}

/// A program whose result is the payload.
const ECHO: &str = "cat $SPILLWAY_PAYLOAD_FILE > $SPILLWAY_RESULT_FILE";

/// The scheduler's program, which in the first attempt ends after its plan was accepted and before it reports that. The
/// kubelet replaces two dollar signs in a container's command by one.
const LOST_ONCE: &str = r#"until item=$(spillway work next --wait 25 --json); do sleep 1; done
case $item in *'"epoch":1'[!0-9]*)
    name=${item#*\"name\":\"} name=${name%%\"*} uid=${item#*\"uid\":\"} uid=${uid%%\"*}
    step() { printf '{"key":"%s","item":{"type":"bug","group":"%s","notifyOn":["Finished"],"payload":"%s"}}' "$1" "$name" "$2"; }
    printf '{"dedupKey":"ask-%s","steps":[%s,%s]}' "$uid" "$(step 1 'fix a')" "$(step 2 'fix b')" | spillway plan - || exit 1
    kill -KILL $$$$ ;;
esac
exec spillway think scheduler"#;

async fn workers(room: &TestNamespace, script: &str) {
    let pool = json!({"scaling": {"min": 0, "max": 2, "cooldownSeconds": 5}, "whenEmpty": {"action": "Terminate", "afterSeconds": 5}});
    room.apply_workers("workers", &["bugs", "chores", "ideas"], script, pool).await;
}

/// Runs the plugin, like a user.
pub async fn plugin(room: &TestNamespace, words: &[&str]) -> CommandOutput {
    let mut command = std::process::Command::new(plugin_path());
    command.args(["-n", &room.namespace]).args(words).stdin(Stdio::null());
    let ended = tokio::task::spawn_blocking(move || command.output()).await.expect("not cancelled").expect("the plugin starts");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    CommandOutput { code: ended.status.code().unwrap_or(-1), out: text(ended.stdout), err: text(ended.stderr) }
}

/// Asks; the answer, and the items that were queued for it.
async fn asked(room: &TestNamespace, words: &str) -> (String, Vec<WorkItem>) {
    let said = plugin(room, &["ask", "--timeout", "3m", "--", words]).await;
    let group = said.err.lines().find_map(|line| line.strip_prefix("workitem.spillway.dev/")?.strip_suffix(" asked in queue asks"));
    let group = group.unwrap_or_else(|| panic!("{said:?}")).to_owned();
    (said.ok().trim_end().to_owned(), members(room, &group).await)
}

/// The items of a group, selected by the API server, in the order of their payloads.
async fn members(room: &TestNamespace, group: &str) -> Vec<WorkItem> {
    let params = ListParams::default().fields(&format!("spec.group={group}"));
    let mut items = room.api::<WorkItem>().list(&params).await.expect("a list").items;
    items.sort_by(|one, other| one.spec.payload.cmp(&other.spec.payload));
    items
}

fn types(items: &[WorkItem]) -> Vec<(&str, &str)> {
    items.iter().map(|item| (item.spec.payload.as_str(), item.spec.type_.as_deref().unwrap_or_default())).collect()
}

/// Waits for an event with this reason about one of these items; its note.
async fn event(room: &TestNamespace, reason: &str, items: &[WorkItem]) -> String {
    eventually(&format!("an event {reason}"), async || {
        let events: Vec<Event> = room.list().await;
        let of = |event: &&Event| items.iter().any(|item| item.uid().is_some() && item.uid() == event.involved_object.uid);
        let found = events.iter().filter(of).find(|event| event.reason.as_deref() == Some(reason));
        let reasons: Vec<_> = events.iter().filter(of).map(|event| event.reason.clone().unwrap_or_default()).collect();
        found.and_then(|event| event.message.clone()).ok_or_else(|| format!("{reasons:?}"))
    })
    .await
}

/// Waits until the log of the scheduler's agent has a line that fits.
async fn wait_for_log_line(room: &TestNamespace, agent: &str, what: &str, fits: impl Fn(&str) -> bool) {
    eventually(&format!("the log of {agent} has {what}"), async || {
        let log = log(room, agent, "agent").await;
        check_state(log.lines().any(&fits), || log.clone())
    })
    .await;
}

/// The one live agent of the pool scheduler.
async fn scheduler(room: &TestNamespace) -> String {
    eventually("the scheduler's agent is there", async || {
        let pods: Vec<Pod> = room.list().await;
        let ours = pods.iter().filter(|pod| pod.labels().get("spillway.dev/pool").map(String::as_str) == Some("scheduler"));
        let live: Vec<String> = ours
            .filter(|pod| {
                crate::support::test_namespace::is_live(pod)
                    && crate::support::test_namespace::is_ready(pod)
                    && pod.metadata.deletion_timestamp.is_none()
            })
            .map(ResourceExt::name_any)
            .collect();
        match live.as_slice() {
            [one] => Ok(one.clone()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

/// Waits for another agent of the scheduler than this one.
async fn wait_for_other_agent(room: &TestNamespace, than: &str) -> String {
    eventually("another agent is there", async || {
        let now = scheduler(room).await;
        check_state(now != than, || now.clone()).map(|()| now)
    })
    .await
}

#[tokio::test]
async fn words_become_work_and_a_question_becomes_none() {
    let (room, _operator, ledger) = set_up("ask").await;
    let (answer, items) = asked(&room, "how far are you?").await;
    assert_eq!((answer.as_str(), items.len()), ("nothing was submitted", 0));
    let (answer, items) = asked(&room, "the clock runs backwards, fix it").await;
    assert_eq!(answer, "Queued 1 item. I'll let you know when it's done.");
    assert_eq!(types(&items), [("the clock runs backwards, fix it", "bug")]);
    let first = room.wait_for_item_phase(&items[0].name_any(), Ready).await;
    let (answer, none) = asked(&room, "status").await;
    assert!(answer.starts_with(&format!("1 Ready\n{}: Ready", first.name_any())), "{answer}");
    assert!(none.is_empty());

    // There are no workers yet. All items of a plan exist.
    let (answer, items) = asked(&room, "1. the login is broken\n2. write a PRD for a dark mode\n3. then tidy up").await;
    assert_eq!(answer, "Queued 3 items. I'll let you know when they're done.");
    assert_eq!(types(&items), [("the login is broken", "bug"), ("tidy up", "chore"), ("write a PRD for a dark mode", "idea")]);
    let plan = items[0].spec.plan.clone().expect("a plan");
    assert!(items.iter().all(|item| item.spec.plan.as_ref() == Some(&plan)) && plan.size == 3, "{items:?}");
    room.wait_for_item_phase(&items[1].name_any(), Blocked).await;
    workers(&room, ECHO).await;
    for item in items.iter().chain([&first]) {
        let done = room.wait_for_item_phase(&item.name_any(), Succeeded).await;
        assert_eq!(done.status.and_then(|status| status.result).as_deref(), Some(item.spec.payload.as_str()));
    }
    // In the order of their dependencies, by their writes.
    let all = ledger.all();
    let first_seen = |item: &WorkItem, wanted: WorkItemPhase| {
        all.iter().position(|(_, seen)| seen.uid() == item.uid() && phase(seen) == Some(wanted)).expect("it was seen")
    };
    for before in [&items[0], &items[2]] {
        assert!(first_seen(before, Succeeded) < first_seen(&items[1], Leased), "{} came before {}", items[1].name_any(), before.name_any());
    }

    // All are notified.
    for item in &items {
        assert_eq!(event(&room, "Finished", std::slice::from_ref(item)).await, "the item is Succeeded");
    }
    assert_eq!(event(&room, "PlanFinished", &items).await, format!("plan {}: 3 Succeeded", plan.id));
    let told = async |agent: &str| {
        for item in items.iter().chain([&first]) {
            let line = format!("Done: {}: {}", item.name_any(), item.spec.payload);
            wait_for_log_line(&room, agent, &line, |told| told == line).await;
        }
        let line = format!("Plan {} finished: 3 Succeeded", plan.id);
        wait_for_log_line(&room, agent, &line, |told| told == line).await;
    };
    let agent = scheduler(&room).await;
    told(&agent).await;
    // The replacement also gets the notices.
    room.api::<Agent>().delete(&agent, &DeleteParams::default()).await.expect("deleted");
    told(&wait_for_other_agent(&room, &agent).await).await;
    let (answer, _) = asked(&room, "what is done?").await;
    assert_eq!(answer, "4 Succeeded");
    room.close().await;
}

#[tokio::test]
async fn who_waits_is_told_what_came_out_and_hostile_words_are_only_words() {
    let (room, _operator, _) = set_up("hostile").await;
    workers(&room, ECHO).await;
    let one = "fix \"a\\\", \"type\":\"x\"}]} $(touch /tmp/x) `id` ' \\n é \u{1}\u{7f}\n\tand \\u0022 more";
    let two = "*) tidy %s $PATH -- --queue=private &amp <b>";
    let said = plugin(&room, &["ask", "--wait", "--timeout", "3m", "-o", "json", "--", &format!("{one}\n{two}")]).await;
    let list: Value = serde_json::from_str(&said.clone().ok()).unwrap_or_else(|error| panic!("{error}: {said:?}"));
    let of = |at: usize, path: &str| list["items"][at].pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
    assert_eq!(of(0, "/status/result"), "Queued 2 items. I'll let you know when they're done.");
    let mut payloads: Vec<String> = (1..3).map(|at| of(at, "/spec/payload")).collect();
    payloads.sort();
    let mut expected = [one, two];
    expected.sort_unstable();
    assert_eq!(payloads, expected);
    for at in 1..3 {
        assert_eq!((of(at, "/status/phase"), of(at, "/status/result")), ("Succeeded".into(), of(at, "/spec/payload")), "{list:#}");
    }
    assert_eq!(list["items"].as_array().map(Vec::len), Some(3), "nothing else came of it");

    let said = plugin(&room, &["ask", "--wait", "--timeout", "3m", "$(reboot); \"quoted\" \\"]).await;
    let out = said.clone().ok();
    let (answer, table) = out.split_once('\n').unwrap_or_else(|| panic!("{said:?}"));
    assert_eq!(answer, "Queued 2 items. I'll let you know when they're done.");
    for result in ["$(reboot)", "\"quoted\" \\"] {
        assert!(table.lines().any(|line| line.contains("Succeeded") && line.ends_with(result)), "{table}");
    }
    room.close().await;
}

#[tokio::test]
async fn what_spillway_refuses_is_the_answer_and_nothing_is_queued() {
    let (room, _operator, _) = set_up("refused").await;
    room.apply_queue("ideas", json!({"accepts": {"types": ["idea"]}, "limits": {"maxPending": 0}})).await;
    let said = plugin(&room, &["ask", "--timeout", "3m", "fix it; idea: a dark mode"]).await;
    assert_eq!((said.code, said.out.as_str()), (1, ""), "{said:?}");
    assert!(said.err.contains("has not succeeded: Failed") && said.err.contains("WorkQueue/ideas holds 0 unfinished items"), "{said:?}");
    let all: Vec<WorkItem> = room.list().await;
    assert_eq!(all.iter().map(phase).collect::<Vec<_>>(), [Some(Failed)], "only what was asked is there");

    // Without a queue for requests no item is made.
    room.apply_queue("asks", json!({"accepts": {"default": true}})).await;
    let said = plugin(&room, &["ask", "fix it"]).await;
    assert!(said.code == 1 && said.err.contains("no WorkQueue in namespace"), "{said:?}");
    assert_eq!(room.list::<WorkItem>().await.len(), 1);
    room.close().await;
}

#[tokio::test]
async fn an_agent_that_is_lost_in_the_middle_queues_nothing_twice() {
    let (room, _operator, ledger) = set_up("twice").await;
    room.apply_queue("asks", json!({"accepts": {"types": ["ask"]}, "itemDefaults": {"backoff": {"initialSeconds": 1}}})).await;
    let lost = json!({
        "type": "scheduler", "queues": [{"name": "asks"}], "may": {"submitTo": ["bugs"]},
        "agent": {"command": ["/bin/sh", "-c", LOST_ONCE], "run": "LongRunning"},
    });
    let agent = scheduler(&room).await;
    room.apply_pool("scheduler", lost).await;
    room.api::<Agent>().delete(&agent, &DeleteParams::default()).await.expect("deleted");
    wait_for_other_agent(&room, &agent).await;
    let (answer, items) = asked(&room, "fix a; fix b").await;
    assert_eq!(answer, "Queued 2 items. I'll let you know when they're done.");
    assert_eq!(types(&items), [("fix a", "bug"), ("fix b", "bug")]);
    let asks: Vec<_> = ledger.last().into_values().filter(|item| item.spec.type_.as_deref() == Some("ask")).collect();
    let told: Vec<_> = asks.iter().flat_map(attempts).collect();
    assert!(asks.len() == 1 && told.len() == 2 && told[0].1 != told[1].1, "two agents were asked: {told:?}");
    assert_eq!(room.list::<WorkItem>().await.len(), 3);
    room.close().await;
}

/// An agent whose program makes no calls itself. The test makes them with its token.
async fn an_agent(room: &TestNamespace, may: Value) -> Caller {
    room.apply_pool("caller", json!({"replicas": 1, "may": may})).await;
    Fleet::wait_for_idle(room, 1).await;
    let pods = room.pods_ready(1).await;
    Caller::anonymous_at_gateway(room).await.with_token(&token_of(room, &pods[0]).await)
}

fn steps(steps: &[(&str, &[&str], Value)]) -> Value {
    let steps: Vec<Value> = steps.iter().map(|(key, after, item)| json!({"key": key, "after": after, "item": item})).collect();
    json!({"steps": steps})
}

#[tokio::test]
async fn a_plan_is_taken_whole_or_refused_by_name() {
    let room = TestNamespace::open("plan").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    for queue in ["work", "private"] {
        room.apply_queue(queue, json!({})).await;
    }
    room.apply_queue("small", json!({"limits": {"maxPending": 3}})).await;
    let agent = an_agent(&room, json!({"submitTo": ["work", "small"]})).await;
    room.submit("small", "filler", json!({"notBeforeTime": "2100-01-01T00:00:00Z"})).await;
    room.wait_for_item_phase("filler", Scheduled).await;
    let to = |queue: &str, payload: &str| json!({"queue": queue, "payload": payload});
    let (work, small) = (to("work", "x"), to("small", "x"));
    let cycle = steps(&[("a", &["b"], work.clone()), ("b", &["a"], work.clone())]);
    let keyed = steps(&[("a", &[], json!({"queue": "work", "dedupKey": "one"}))]);
    let three = [("a", &[][..], small.clone()), ("b", &["a"][..], small.clone()), ("c", &[][..], small.clone())];

    // Each refusal has its code, field, limit and number, and no item is made.
    type Case = (&'static str, Value, (u16, &'static str), &'static str, Option<(u64, u64)>);
    let cases: [Case; 8] = [
        (
            "a queue that it may not submit to",
            steps(&[("a", &[], work.clone()), ("b", &["a"], to("private", "x"))]),
            (403, "not_allowed"),
            "queue",
            None,
        ),
        (
            "a queue that is not there",
            steps(&[("a", &[], work.clone()), ("b", &[], to("gone", "x"))]),
            (422, "queue_missing"),
            "queue",
            None,
        ),
        ("more than there is room for", steps(&three), (409, "queue_full"), "queue", Some((3, 1))),
        ("a circle", cycle, (400, "invalid_body"), "steps.after", None),
        ("a key of a step's own", keyed, (400, "invalid_body"), "steps.item.dedupKey", None),
        ("nothing", json!({"steps": []}), (400, "invalid_body"), "steps", None),
        ("no queue", steps(&[("a", &[], json!({"payload": "x"}))]), (400, "invalid_body"), "steps.item.queue", None),
        ("an unknown field", json!({"steps": [], "size": 3}), (400, "invalid_body"), "size", None),
    ];
    for (what, body, wanted, field, limit) in cases {
        let answer = agent.with_header("idempotency-key", what).post("/agent/v1/plan", body).await;
        let refusal = answer.refusal();
        assert_eq!((answer.status, refusal.code.label()), wanted, "{what}: {refusal:?}");
        assert_eq!((refusal.field.as_deref(), refusal.limit.zip(refusal.current)), (Some(field), limit), "{what}: {refusal:?}");
        assert_eq!(room.list::<WorkItem>().await.len(), 1, "{what}: something was made");
    }
    let two = steps(&[("a", &[], work.clone()), ("b", &["a"], small.clone())]);
    let refusal = agent.post("/agent/v1/plan", two.clone()).await.refusal();
    assert_eq!((refusal.code.label(), refusal.field.as_deref()), ("invalid_body", Some("Idempotency-Key")), "{refusal:?}");

    // One key makes one plan, and refuses another plan.
    let under = agent.with_header("idempotency-key", "k");
    let made = under.post("/agent/v1/plan", two.clone()).await;
    assert_eq!((made.status, made.json()["items"].as_array().map(Vec::len)), (200, Some(2)), "{made:?}");
    assert_eq!(under.post("/agent/v1/plan", two.clone()).await.json(), made.json());
    for other in [
        steps(&[("a", &[], to("work", "y")), ("b", &["a"], small.clone())]),
        steps(&[("a", &[], work.clone()), ("b", &[], small.clone())]),
        steps(&[("a", &[], work.clone()), ("c", &["a"], small.clone())]),
        steps(&[("c", &[], work.clone()), ("d", &[], work.clone()), ("e", &[], work.clone())]),
    ] {
        let refusal = under.post("/agent/v1/plan", other.clone()).await.refusal();
        assert_eq!(refusal.code.label(), "key_reused", "{other}: {refusal:?}");
        assert_eq!(room.list::<WorkItem>().await.len(), 3, "{other}: something was made");
    }
    // A key for the whole namespace: any agent that repeats it gets the same plan.
    let mut named = steps(&[("a", &[], work.clone()), ("b", &["a"], work.clone())]);
    named["dedupKey"] = json!("one");
    let first = agent.post("/agent/v1/plan", named.clone()).await;
    assert_eq!(first.status, 200, "{first:?}");
    assert_eq!(agent.with_header("idempotency-key", "another").post("/agent/v1/plan", named).await.json(), first.json());
    assert_eq!(room.list::<WorkItem>().await.len(), 5);

    // Invalid questions about the outcome of a plan.
    let wrong = [
        ("/agent/v1/inbox?after=x", "after"),
        ("/agent/v1/inbox?waitSeconds=26", "waitSeconds"),
        ("/agent/v1/inbox?aftre=1", "aftre"),
        ("/agent/v1/work?submittedBy=you", "submittedBy"),
        ("/agent/v1/work?grup=g", "grup"),
    ];
    for (path, field) in wrong {
        let answer = agent.get(path).await;
        let refusal = answer.refusal();
        assert_eq!(
            (answer.status, refusal.code.label(), refusal.field.as_deref()),
            (400, "invalid_body", Some(field)),
            "{path}: {refusal:?}"
        );
    }
    let listed = agent.get(&format!("/agent/v1/work?submittedBy=me&plan={}", made.json()["plan"].as_str().expect("a name"))).await.json();
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(2), "{listed}");
    assert_eq!(agent.get("/agent/v1/inbox").await.status, 204);
    room.close().await;
}

#[tokio::test]
async fn what_comes_then_waits_and_who_asks_is_told_so() {
    let (room, _operator, _) = set_up("held").await;
    workers(&room, UNTIL_TOLD).await;
    let (_, items) = asked(&room, "fix a; then tidy b").await;
    let (bug, chore) = (items[0].name_any(), items[1].name_any());
    room.wait_for_item_phase(&bug, Leased).await;
    room.wait_for_item_phase(&chore, Blocked).await;
    let (answer, _) = asked(&room, "how far?").await;
    assert!(answer.contains(&format!("{bug}: Leased")), "{answer}");
    room.release_item(&bug).await;
    room.release_item(&chore).await;
    room.wait_for_item_phase(&chore, Succeeded).await;
    room.close().await;
}
