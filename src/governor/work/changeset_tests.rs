//! The changeset of an item through calls of its agent, with lost answers and another leader.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::{Value, json};

use super::calls;
use crate::api::{Agent, AgentPool, WorkItem, WorkQueue};
use crate::cluster::ObjectKey;
use crate::controller::fake::{self, Leader, TEAM};
use crate::governor::budget::facts::Project;
use crate::governor::caller::Caller;
use crate::policy::interventions::{Signal, Violation};
use crate::wire::access::Call;
use crate::wire::changeset::reasons;
use crate::wire::work::Assignment;

const ITEM: &str = "fix-1";

fn read<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).expect("an object of its kind")
}

fn pool(changeset: Value) -> Value {
    let spec = json!({"type": "worker", "agent": {"image": "x", "command": ["y"]}, "queues": [{"name": "bugs"}],
        "workspace": {"git": {"remote": "https://git.example.com/a"}}, "sandbox": {"changeset": changeset}});
    fake::object("AgentPool", "p", spec)
}

/// A leader, and agent `a` of a pool.
struct Team {
    leader: Leader,
    agent: Agent,
    pool: AgentPool,
    caller: Caller,
}

impl Team {
    /// With one item that is ready.
    fn new(changeset: Value) -> Self {
        let mut item = fake::object("WorkItem", ITEM, json!({"queueRef": {"name": "bugs"}, "payload": "x"}));
        item["status"] = json!({"phase": "Ready", "queue": "bugs"});
        Self::of(item, changeset)
    }

    fn of(item: Value, changeset: Value) -> Self {
        let [agent, pod] = fake::agent("a", "p");
        let queue = fake::object("WorkQueue", "bugs", json!({}));
        let leader = Leader::of(&[pool(changeset.clone()), agent.clone(), pod, queue.clone(), item.clone()]);
        let context = &leader.context;
        let key = |name: &str| ObjectKey { namespace: TEAM.into(), name: name.into() };
        context.circuits.set_objects(Vec::new(), HashMap::from([(key("p"), 1000)]));
        context.meter.set_tree(&[], &[], &BTreeMap::from([(TEAM.to_owned(), Project::default())]));
        context.meter.read_all(Vec::new());
        context.meter.open();
        context.work_index.items_listed(&HashSet::new());
        context.work_index.queues_listed();
        context.work_index.observe_queue(TEAM, "bugs", Some(&read::<WorkQueue>(queue)));
        context.work_index.observe(&read::<WorkItem>(item));
        context.live.registered("POD-a", "g", None);
        let caller = Caller { key: key("a"), uid: "POD-a".into(), gateway: "g".into(), external: None };
        Self { leader, agent: read(agent), pool: read(pool(changeset)), caller }
    }

    /// The team under another leader, which reads what is stored.
    fn under_another_leader(&self) -> Self {
        let mut item = fake::object("WorkItem", ITEM, json!({"queueRef": {"name": "bugs"}, "payload": "x"}));
        item["status"] = self.leader.status("WorkItem", ITEM);
        Self::of(item, json!({"driver": "Git", "branch": "changed/{item}"}))
    }

    async fn claim(&self) -> Assignment {
        let claimed = calls::claim(&self.caller, &self.agent, &self.pool, &self.leader.context).await;
        claimed.expect("an answer").expect("an item")
    }

    async fn end(&self, call: Call, body: Value) {
        let uid = format!("WorkItem-{ITEM}");
        let bytes = body.to_string();
        let answer = calls::verb(call, &self.caller, &self.pool, &uid, bytes.as_bytes(), &self.leader.context).await;
        answer.expect("it is accepted");
    }

    fn changeset(&self) -> Value {
        self.leader.status("WorkItem", ITEM)["changeset"].clone()
    }

    /// How often each signal of a changeset was raised.
    fn signals(&self) -> (usize, usize) {
        let view = self.leader.context.live.view("POD-a").expect("it is known");
        let count = |signal| view.occurrences.get(&signal).map_or(0, Vec::len);
        (count(Signal::BadChangeset), count(Signal::RuleViolated(Violation::ForbiddenPath)))
    }
}

fn git() -> Value {
    json!({"driver": "Git"})
}

fn open(epoch: i64) -> Value {
    json!({"state": "Open", "epoch": epoch, "remote": "https://git.example.com/a", "branch": "spillway/fix-1"})
}

#[tokio::test]
async fn a_claim_whose_answer_is_lost_gets_the_same_branch_from_any_leader() {
    let team = Team::new(git());
    let first = team.claim().await;
    assert_eq!((first.branch.as_deref(), team.changeset()), (Some("spillway/fix-1"), open(1)));
    assert_eq!((team.claim().await, team.changeset()), (first.clone(), open(1)));
    let after = team.under_another_leader();
    assert_eq!((after.claim().await, after.changeset()), (first, open(1)), "although the template was changed");
    let without = Team::new(json!({"driver": "None"}));
    assert_eq!((without.claim().await.branch, without.changeset()), (None, Value::Null));
}

#[tokio::test]
async fn an_item_that_is_done_has_the_commit_that_was_pushed_however_often_it_is_told() {
    let team = Team::new(git());
    team.claim().await;
    let report = json!({"base": "b", "commit": "c", "branch": "spillway/fix-1", "files": 2, "insertions": 5, "deletions": 1});
    let body = json!({"epoch": 1, "result": "done", "changeset": report});
    team.end(Call::Complete, body.clone()).await;
    let committed = json!({"state": "Committed", "epoch": 1, "remote": "https://git.example.com/a", "branch": "spillway/fix-1", "base": "b",
        "commit": "c", "files": 2, "insertions": 5, "deletions": 1});
    assert_eq!(team.changeset(), committed);
    team.end(Call::Complete, body.clone()).await;
    assert_eq!(team.changeset(), committed);
    let after = team.under_another_leader();
    after.end(Call::Complete, body).await;
    assert_eq!(after.changeset(), committed);
}

#[tokio::test]
async fn an_item_without_a_commit_has_none_and_says_why() {
    for (report, words) in
        [(json!({"base": "b", "branch": "spillway/fix-1"}), "no file was changed"), (Value::Null, "the agent reported no changeset")]
    {
        let team = Team::new(git());
        team.claim().await;
        team.end(Call::Complete, json!({"epoch": 1, "changeset": report})).await;
        let changeset = team.changeset();
        assert_eq!((&changeset["state"], &changeset["message"]), (&json!("Discarded"), &json!(words)));
        assert_eq!((&changeset["branch"], &changeset["commit"]), (&json!("spillway/fix-1"), &Value::Null));
    }
    let without = Team::new(json!({}));
    without.claim().await;
    without.end(Call::Complete, json!({"epoch": 1, "changeset": {"base": "b", "commit": "c", "branch": "main"}})).await;
    assert_eq!(without.changeset(), Value::Null, "an agent without changesets is not believed");
}

#[tokio::test]
async fn a_failure_closes_the_changeset_and_refused_changes_are_signalled_once() {
    let fail = |reason: &str| json!({"epoch": 1, "reason": reason, "message": "in words", "exitCode": 1});
    for (reason, state, signals) in [
        (reasons::PROTECTED_PATH, "Discarded", (1, 1)),
        (reasons::CHANGESET_NOT_VERIFIED, "Discarded", (1, 0)),
        (reasons::CHANGESET_CONFLICT, "Conflict", (0, 0)),
        ("Exited", "Discarded", (0, 0)),
    ] {
        let team = Team::new(git());
        team.claim().await;
        team.end(Call::Fail, fail(reason)).await;
        team.end(Call::Fail, fail(reason)).await;
        let mut expected = open(1);
        expected["state"] = json!(state);
        expected["message"] = json!("in words");
        assert_eq!((team.changeset(), team.signals()), (expected, signals), "{reason}");
    }
    let without = Team::new(json!({}));
    without.claim().await;
    without.end(Call::Fail, fail(reasons::PROTECTED_PATH)).await;
    assert_eq!((without.changeset(), without.signals()), (Value::Null, (0, 0)));
}

#[tokio::test]
async fn an_item_that_is_given_back_begins_anew_with_the_next_claim() {
    let team = Team::new(git());
    team.claim().await;
    team.end(Call::Release, json!({"epoch": 1, "reason": "Drained", "message": ""})).await;
    let changeset = team.changeset();
    assert_eq!((&changeset["state"], &changeset["message"]), (&json!("Discarded"), &json!("the attempt ended")));
    assert_eq!(team.claim().await.held.epoch, 2);
    assert_eq!(team.changeset(), open(2), "nothing of the first attempt is left");
}
