//! Tests of the reports on items and queues.

use crate::api::{Agent, AgentPool, WorkItem, WorkQueue};
use crate::explain::facts::{Subject, Work};
use crate::explain::{Facts, Report, render, report};
use serde_json::{Value, json};

/// An item of queue q, created two minutes before now.
fn item(name: &str, spec: &Value, status: &Value) -> WorkItem {
    let mut all = json!({"queueRef": {"name": "q"}});
    spec.as_object().into_iter().flatten().for_each(|(key, value)| all[key] = value.clone());
    serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkItem",
        "metadata": {"name": name, "namespace": "n", "uid": "u", "creationTimestamp": "2026-01-01T00:08:00Z"}, "spec": all, "status": status}))
    .expect("a WorkItem")
}

fn queue(spec: &Value) -> WorkQueue {
    serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkQueue", "metadata": {"name": "q", "namespace": "n"}, "spec": spec,
        "status": {"counts": {"ready": 1}, "conditions": [{"type": "Ready", "status": "True", "reason": "Serving", "message": "items are given out", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}))
    .expect("a WorkQueue")
}

fn pool(name: &str, spec: &Value, status: &Value) -> AgentPool {
    let mut all = json!({"type": "worker", "agent": {"image": "x", "command": ["y"]}, "queues": [{"name": "q"}], "scaling": {"max": 1}});
    spec.as_object().into_iter().flatten().for_each(|(key, value)| all[key] = value.clone());
    serde_json::from_value(
        json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "AgentPool", "metadata": {"name": name, "namespace": "n", "uid": "pu"},
        "spec": all, "status": status}),
    )
    .expect("a pool")
}

fn agent(name: &str, pool: &str, phase: &str) -> Agent {
    serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Agent", "metadata": {"name": name}, "spec": {"poolRef": {"name": pool}},
        "status": {"phase": phase, "node": "k", "conditions": [{"type": "Ready", "status": "True", "reason": "Registered", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}))
    .expect("an Agent")
}

/// Facts in which the item can be claimed at once.
fn world(subject: WorkItem) -> Work {
    Work {
        items: Some(vec![subject.clone()]),
        subject: Subject::Item(Box::new(subject)),
        queues: Some(vec![queue(&json!({}))]),
        pools: Some(vec![pool("p", &json!({}), &json!({"desired": 1, "agents": 1}))]),
        agents: Some(vec![agent("p-1", "p", "Idle")]),
        now: "2026-01-01T00:10:00Z".parse().expect("a time"),
    }
}

fn facts(work: Work) -> Facts {
    Facts { namespace: "n".into(), work: Some(Box::new(work)), ..Facts::default() }
}

fn told(work: Work) -> Report {
    report(&facts(work))
}

fn reasons(report: &Report) -> Vec<(&str, bool)> {
    report.advice.iter().map(|hint| (hint.reason.as_str(), hint.act)).collect()
}

#[test]
fn an_item_waits_for_what_is_named() {
    let due = json!({"phase": "Scheduled", "reason": "Backoff", "nextAttemptTime": "2026-01-01T00:15:00Z"});
    let plan = json!({"plan": {"id": "x", "size": 3}});
    let cases = [
        (json!({}), json!({}), "the operator has not observed the item yet", ("NotObserved", true)),
        (
            json!({"suspend": true}),
            json!({"phase": "Suspended", "reason": "Suspended"}),
            "the item is paused (spec.suspend)",
            ("Suspended", true),
        ),
        (
            json!({}),
            json!({"phase": "Suspended", "reason": "Restored"}),
            "the item was restored from a backup, and restored items do not start automatically",
            ("Restored", true),
        ),
        (json!({}), due, "agents can claim the item at 2026-01-01T00:15:00Z, in 5m (delay after a failure)", ("Backoff", false)),
        (plan, json!({"phase": "Blocked", "reason": "PlanIncomplete"}), "only 1 of the 3 items of plan x exist", ("PlanIncomplete", true)),
        (
            json!({"dependsOn": [{"name": "gone"}]}),
            json!({"phase": "Blocked"}),
            "the item waits for item gone, which does not exist",
            ("DependencyMissing", true),
        ),
        (
            json!({"queueRef": {"name": "none"}}),
            json!({"phase": "Pending"}),
            "WorkQueue/none does not exist. Create it, or name another queue",
            ("QueueMissing", true),
        ),
        (json!({}), json!({"phase": "Rejected", "reason": "QueueFull"}), "queue q would admit the item now", ("QueueFull", true)),
        (
            json!({"queueRef": {"name": "none"}}),
            json!({"phase": "Rejected", "reason": "QueueMissing"}),
            "the item would be refused again: WorkQueue/none does not exist. Create it, or name another queue",
            ("QueueMissing", true),
        ),
        (
            json!({}),
            json!({"phase": "DeadLettered", "reason": "TooManyFailures", "failures": 3}),
            "the item failed 3 times, and the limit is 3 (maxAttempts)",
            ("TooManyFailures", true),
        ),
        (
            json!({}),
            json!({"phase": "Expired", "reason": "DeadlineExceeded"}),
            "the deadline of the item passed; after a redrive the item ignores it",
            ("DeadlineExceeded", true),
        ),
        (
            json!({}),
            json!({"phase": "Cancelled", "reason": "CancelRequested"}),
            "the item was cancelled (spec.cancelRequested)",
            ("CancelRequested", false),
        ),
    ];
    for (spec, status, words, hint) in cases {
        let report = told(world(item("i", &spec, &status)));
        assert_eq!(
            (report.why.first().map(String::as_str), reasons(&report).first()),
            (Some(words), Some(&hint)),
            "{spec} {status}: {report:#?}"
        );
    }
    assert_eq!(reasons(&told(world(item("i", &json!({}), &json!({"phase": "Succeeded"}))))), [("AsDesired", false)]);
}

#[test]
fn a_dependency_is_told_with_its_phase() {
    let waits = |on: &str, status: Value| {
        let spec = json!({"dependsOn": [{"name": "first", "condition": on}]});
        let mut work = world(item("i", &spec, &json!({"phase": "Blocked", "reason": "WaitingForDependencies"})));
        work.items.get_or_insert_default().push(item("first", &json!({}), &status));
        told(work)
    };
    let leased = json!({"phase": "Leased", "lease": {"holder": "p", "agent": "p-1", "leaseTransitions": 1}});
    assert_eq!(waits("Succeeded", leased).why, ["the item waits until item first has succeeded (Leased)"]);
    let failed = waits("Succeeded", json!({"phase": "Failed", "reason": "FailureRule"}));
    assert_eq!(
        failed.why,
        ["the item waits until item first has succeeded, but item first has ended without success (Failed, FailureRule)"]
    );
    assert!(failed.advice[0].act && failed.advice[0].advice.starts_with("`kubectl spillway redrive first -n n`"), "{:?}", failed.advice);
    assert_eq!(
        waits("Finished", json!({"phase": "Failed"})).why,
        ["the item does not wait for other items any more: it continues in a moment"]
    );
}

#[test]
fn a_ready_item_says_who_is_before_it_and_who_could_take_it() {
    let ready = || item("i", &json!({}), &json!({"phase": "Ready"}));
    assert_eq!(told(world(ready())).why, ["the item is the next one in queue q", "pool p has 1 agent (1 Idle)"]);
    let mut busy = world(ready());
    busy.items.get_or_insert_default().push(item("urgent", &json!({"priority": 5}), &json!({"phase": "Ready"})));
    busy.items.get_or_insert_default().push(item("later", &json!({"priority": -5}), &json!({"phase": "Ready"})));
    busy.agents = Some(vec![agent("p-1", "p", "Active")]);
    let report = told(busy);
    assert_eq!(report.why, ["1 ready item of queue q is before it", "pool p has 1 agent (1 Active), and 1 is its maximum"]);
    assert_eq!(reasons(&report), [("MaxReached", false)]);
}

#[test]
fn pools_that_take_nothing_are_told_with_the_reason() {
    let with = |pools: Vec<AgentPool>, agents: Vec<Agent>, spec: Value| {
        let mut work = world(item("i", &spec, &json!({"phase": "Ready"})));
        (work.pools, work.agents) = (Some(pools), Some(agents));
        let report = told(work);
        (report.why.last().cloned().unwrap_or_default(), report.advice[0].clone())
    };
    let cases = [
        (vec![], json!({}), "no pool of namespace n works from queue q", "NoPool"),
        (vec![pool("p", &json!({"replicas": 0}), &json!({}))], json!({}), "pool p runs no agents: spec.replicas is 0", "ReplicasSet"),
        (vec![pool("p", &json!({"scaling": {"max": 0}}), &json!({}))], json!({}), "pool p is drained: spec.scaling.max is 0", "Drained"),
        (
            vec![pool(
                "p",
                &json!({}),
                &json!({"desired": 1, "conditions": [{"type": "Blocked", "status": "True", "reason": "QuotaExceeded", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}),
            )],
            json!({}),
            "pool p is blocked: QuotaExceeded: m",
            "QuotaExceeded",
        ),
        (
            vec![pool(
                "p",
                &json!({}),
                &json!({"desired": 1, "conditions": [{"type": "Blocked", "status": "True", "reason": "PreflightFailed", "message": "p-1: no login", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}),
            )],
            json!({}),
            "pool p is blocked: PreflightFailed: p-1: no login",
            "PreflightFailed",
        ),
        (vec![pool("p", &json!({}), &json!({}))], json!({}), "the operator has not observed pool p yet", "NotObserved"),
        (
            vec![pool("p", &json!({}), &json!({"desired": 0, "reason": "NoWork"}))],
            json!({}),
            "pool p wants no agents now (NoWork)",
            "NoAgents",
        ),
        (
            vec![pool("p", &json!({"queues": [{"name": "q", "types": ["bug"]}]}), &json!({}))],
            json!({"type": "idea"}),
            "no pool that works from queue q takes the item",
            "NoPool",
        ),
        (
            vec![pool("p", &json!({}), &json!({}))],
            json!({"agentSelector": {"matchLabels": {"gpu": "yes"}}}),
            "no pool that works from queue q takes the item",
            "NoPool",
        ),
        (
            vec![pool("p", &json!({}), &json!({}))],
            json!({"agentSelector": {"matchExpressions": [{"key": "spillway.dev/pool", "operator": "NotIn", "values": ["p"]}]}}),
            "no pool that works from queue q takes the item",
            "NoPool",
        ),
        (
            vec![pool("p", &json!({}), &json!({"desired": 0, "reason": "NoWork"}))],
            json!({"agentSelector": {"matchExpressions": [{"key": "spillway.dev/pool", "operator": "Exists"}, {"key": "gpu", "operator": "DoesNotExist"}]}}),
            "pool p wants no agents now (NoWork)",
            "NoAgents",
        ),
    ];
    for (pools, spec, words, reason) in cases {
        let (why, hint) = with(pools, Vec::new(), spec);
        assert_eq!((why.as_str(), hint.reason.as_str()), (words, reason));
    }
}

#[test]
fn what_a_pool_lacks_that_an_item_needs_is_named() {
    let needs = json!({"requires": {"models": ["gpt-9"], "tools": ["git"]}});
    let subject = item("i", &needs, &json!({"phase": "Ready", "reason": "RequirementsUnmet"}));
    let report = told(world(subject.clone()));
    let words = "pool p lacks what the item requires: git (requires.tools), gpt-9 (requires.models)";
    assert!(report.why.iter().any(|why| why == words), "{:?}", report.why);
    assert!(reasons(&report).contains(&("RequirementsUnmet", true)), "{:?}", report.advice);
    let entry = json!([{"name": "gpt", "dialect": "OpenAIChat", "origin": "https://a.example.org", "allow": ["gpt-*"]}]);
    let has = pool("p", &json!({"models": entry, "preflight": {"tools": ["git"]}}), &json!({"desired": 1, "agents": 1}));
    let report = told(Work { pools: Some(vec![has]), ..world(subject) });
    assert!(!report.why.iter().any(|why| why.contains("lacks")), "{:?}", report.why);
}

#[test]
fn what_could_not_be_read_is_unknown_and_not_absent() {
    let blind = |spec: Value, status: Value| {
        let subject = item("i", &spec, &status);
        told(Work { items: None, queues: None, pools: None, agents: None, ..world(subject) })
    };
    assert!(blind(json!({}), json!({"phase": "Ready"})).why.is_empty());
    assert!(blind(json!({}), json!({"phase": "Pending"})).why.is_empty());
    assert_eq!(blind(json!({"dependsOn": [{"name": "x"}]}), json!({"phase": "Blocked"})).why, ["the item waits for item x"]);
    let held = json!({"phase": "Leased", "lease": {"holder": "pod", "agent": "p-1", "leaseTransitions": 1}});
    assert_eq!(blind(json!({}), held).why, ["agent p-1 holds the item"]);
    let mut work = world(item("i", &json!({}), &json!({"phase": "Ready"})));
    work.agents = None;
    assert_eq!(told(work).why[1], "pool p wants 1 agents and has 1, according to its last status");
}

#[test]
fn what_the_queue_withholds_is_told_first() {
    let first = |spec: Value, own: Value| {
        let mut work = world(item("i", &own, &json!({"phase": "Ready"})));
        let held = json!({"phase": "Leased", "lease": {"holder": "pod", "agent": "p-1", "leaseTransitions": 1}});
        work.items.get_or_insert_default().push(item("held", &json!({"concurrencyKey": "repo"}), &held));
        work.queues = Some(vec![queue(&spec)]);
        told(work)
    };
    let paused = first(json!({"suspend": true}), json!({}));
    assert_eq!((paused.why[0].as_str(), reasons(&paused)[0]), ("queue q is paused (spec.suspend)", ("Suspended", true)));
    let full = first(json!({"concurrency": {"maxLeased": 1}}), json!({}));
    assert_eq!(
        (full.why[0].as_str(), reasons(&full)[0]),
        ("agents hold as many items of queue q as are allowed at once (1)", ("ConcurrencyLimit", false))
    );
    let key = first(json!({"concurrency": {"maxLeasedPerKey": 1}}), json!({"concurrencyKey": "repo"}));
    assert!(key.why[0].starts_with("agents hold as many items with the concurrencyKey repo as are allowed at once"), "{:?}", key.why);
    assert_eq!(
        first(json!({"concurrency": {"maxLeasedPerKey": 1}}), json!({"concurrencyKey": "other"})).why[0],
        "the item is the next one in queue q"
    );
}

#[test]
fn a_held_item_says_who_holds_it_and_a_lost_one_what_to_do() {
    let held = |phase: &str, spec: Value, agents: Vec<Agent>| {
        let status = json!({"phase": phase, "reason": "CancelRequested", "pauses": 1, "lease": {"holder": "pod", "agent": "p-1", "leaseTransitions": 3, "acquireTime": "2026-01-01T00:09:00.000000Z"}});
        let mut work = world(item("i", &spec, &status));
        work.agents = Some(agents);
        told(work)
    };
    let well = held("Leased", json!({}), vec![agent("p-1", "p", "Active")]);
    assert_eq!(well.why, ["agent p-1 holds the item: Active, Registered, on node k"]);
    let stale = held("Leased", json!({}), vec![agent("p-1", "p", "Stale")]);
    assert!(stale.advice[0].act && stale.advice[0].advice.contains("kubectl spillway release i --node-is-dead -n n"), "{:?}", stale.advice);
    assert!(held("Leased", json!({}), Vec::new()).why[0].starts_with("agent p-1, which holds the item, has ended or was deleted"));
    assert!(held("Paused", json!({}), vec![agent("p-1", "p", "Paused")]).advice[0].advice.contains("kubectl spillway resume item/i -n n"));
    assert_eq!(
        held("Cancelling", json!({"releasedEpoch": 3}), vec![agent("p-1", "p", "Active")]).why[1..],
        ["the agent was told to stop", "the item was released (spec.releasedEpoch): it goes back to its queue in a moment"]
    );
}

#[test]
fn an_item_is_explained_whole() {
    let status = json!({"phase": "Scheduled", "reason": "Backoff", "failures": 1, "attempts": 1, "nextAttemptTime": "2026-01-01T00:10:30Z",
        "lease": {"leaseTransitions": 1}, "attemptHistory": [{"epoch": 1, "agent": "p-1", "startTime": "2026-01-01T00:08:30Z", "endTime": "2026-01-01T00:09:00Z",
            "verb": "Fail", "reason": "Exited", "message": "exit code\u{7} 1"}]});
    let facts = facts(world(item("i", &json!({"type": "bug", "deadlineTime": "2026-01-01T02:10:00Z"}), &status)));
    let text = render(&report(&facts), None, "2026-01-01T00:10:00Z".parse().expect("a time")).expect("text").out;
    assert_eq!(
        text,
        "WorkItem i in namespace n\n\
         \x20 Scheduled, Backoff\n\
         \n\
         Why\n\
         \x20 agents can claim the item at 2026-01-01T00:10:30Z, in 30s (delay after a failure)\n\
         \n\
         Facts\n\
         \x20 Queue     q\n\
         \x20 Type      bug\n\
         \x20 Priority  0\n\
         \x20 Created   2m ago\n\
         \x20 Deadline  2026-01-01T02:10:00Z, in 120m\n\
         \x20 Failures  1 of 3 (maxAttempts)\n\
         \x20 Losses    0 of 3 (maxStalls), of agent or node\n\
         \x20 Epoch     1\n\
         \n\
         Attempts\n\
         \x20 EPOCH   AGENT   AGO   TOOK   HOW    REASON   MESSAGE\n\
         \x20 1       p-1     90s   30s    Fail   Exited   exit code\u{fffd} 1\n\
         \n\
         What to do\n\
         \x20 nothing (Backoff): the item continues automatically then; spec.itemDefaults.backoff of its queue sets such delays\n"
    );
}

#[test]
fn a_queue_says_why_nothing_is_taken() {
    let of_queue = |spec: Value, pools: Vec<AgentPool>| {
        let mut work = world(item("i", &json!({}), &json!({"phase": "DeadLettered"})));
        work.subject = Subject::Queue(Box::new(queue(&spec)));
        work.queues = Some(vec![queue(&spec)]);
        work.pools = Some(pools);
        told(work)
    };
    let alone = of_queue(json!({"suspend": true, "limits": {"maxPending": 0}}), Vec::new());
    assert_eq!(alone.state, "1 ready. Ready is True, Serving: items are given out");
    assert_eq!(reasons(&alone), [("Suspended", true), ("QueueFull", true), ("NoPool", true), ("DeadLettered", true)]);
    let served = of_queue(json!({}), vec![pool("p", &json!({"queues": [{"name": "q", "types": ["bug"]}]}), &json!({"desired": 1}))]);
    assert_eq!(served.why, ["pool p has 1 agent (1 Idle)", "1 of the queue's items are dead letters: they wait for a person"]);
    assert!(served.facts.iter().any(|fact| fact.name == "Pools" && fact.value == "p (types bug)"), "{:?}", served.facts);
    let full = of_queue(json!({"deadLetters": {"max": 1}}), vec![pool("p", &json!({}), &json!({"desired": 1}))]);
    assert!(reasons(&full).contains(&("DeadLettersFull", true)), "{full:?}");
    assert!(
        full.why.iter().any(|why| why.contains("as many dead letters as it keeps (1): each new one deletes the oldest one")),
        "{full:?}"
    );
}

#[test]
fn what_the_operator_said_of_a_full_project_is_told_and_nothing_is_concluded() {
    let words = "Budget/team (spec.work.maxPending) allows 2 unfinished items over all queues of the namespace, and there are 2";
    let said = |phase: &str| {
        let failed = json!({"type": "Failed", "status": "True", "reason": "ProjectFull", "message": words, "lastTransitionTime": "2026-01-01T00:09:00Z"});
        told(world(item("i", &json!({}), &json!({"phase": phase, "reason": "ProjectFull", "conditions": [failed]}))))
    };
    let rejected = said("Rejected");
    assert_eq!((rejected.why.as_slice(), reasons(&rejected)), ([words.to_owned()].as_slice(), vec![("ProjectFull", true)]));
    assert!(rejected.advice[0].advice.ends_with("then run `kubectl spillway redrive i -n n`"), "{rejected:?}");
    let dead = said("DeadLettered");
    assert_eq!(dead.why, [format!("the item was started again, but was not admitted: {words}")]);
}

#[test]
fn a_dead_letter_says_how_long_it_is_kept() {
    let dead = || item("i", &json!({}), &json!({"phase": "DeadLettered", "completionTime": "2026-01-01T00:09:00Z"}));
    let kept = |work: Work| told(work).facts.into_iter().find(|fact| fact.name == "Kept until").map(|fact| fact.value);
    assert_eq!(kept(world(dead())).as_deref(), Some("2026-01-31T00:09:00Z, in 29d (spec.deadLetters of its queue)"));
    let mut short = world(dead());
    short.queues = Some(vec![queue(&json!({"deadLetters": {"ttlSeconds": 90}}))]);
    assert_eq!(kept(short).as_deref(), Some("2026-01-01T00:10:30Z, in 30s (spec.deadLetters of its queue)"));
    assert_eq!(kept(world(item("i", &json!({}), &json!({"phase": "Failed", "completionTime": "2026-01-01T00:09:00Z"})))), None);
}
