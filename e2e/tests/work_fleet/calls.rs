//! Agents' calls about items: submit, finish, change. A refused call changes nothing. The programs make no calls
//! themselves.

use super::*;

/// The stored items as text, which changes with each write.
async fn stored(room: &TestNamespace) -> BTreeMap<String, String> {
    room.list::<WorkItem>().await.iter().map(|item| (item.name_any(), item.resource_version().unwrap_or_default())).collect()
}

/// Checks that the call is refused with this status and code, and changes nothing.
async fn assert_refused(room: &TestNamespace, what: &str, caller: &Caller, path: &str, body: Value, wanted: (u16, &str)) -> Answer {
    let before = stored(room).await;
    let answer = caller.post(path, body).await;
    assert_eq!((answer.status, answer.json()["code"].as_str()), (wanted.0, Some(wanted.1)), "{what}: {answer:?}");
    assert_eq!(stored(room).await, before, "{what}: something changed");
    answer
}

/// Two agents whose programs make no calls themselves. The test makes them with their tokens.
async fn two_agents(room: &TestNamespace, may: Value) -> [Caller; 2] {
    let queues = json!([{"name": "work"}]);
    room.apply_pool("pair", json!({"replicas": 2, "queues": queues, "may": may, "agent": {"run": "LongRunning"}})).await;
    Fleet::wait_for_idle(room, 2).await;
    let pods = room.pods_ready(2).await;
    let nobody = Caller::anonymous_at_gateway(room).await;
    [nobody.with_token(&token_of(room, &pods[0]).await), nobody.with_token(&token_of(room, &pods[1]).await)]
}

#[tokio::test]
async fn what_cannot_be_submitted_is_refused_with_limit_and_number() {
    let (room, _operator, _) = set_up("submit").await;
    room.apply_queue("work", json!({})).await;
    room.apply_queue("small", json!({"limits": {"maxItemBytes": 10}})).await;
    room.apply_queue("full", json!({"limits": {"maxPending": 1}})).await;
    room.apply_queue("typed", json!({"accepts": {"types": ["bug"]}})).await;
    room.apply_queue("private", json!({})).await;
    let [agent, _] = two_agents(&room, json!({"submitTo": ["work", "small", "full", "typed", "gone"]})).await;
    let keyed = |key: &str| agent.with_header("idempotency-key", key);
    room.submit("full", "filler", json!({"notBeforeTime": "2100-01-01T00:00:00Z"})).await;
    room.wait_for_item_phase("filler", Scheduled).await;
    let first = agent.post("/agent/v1/work", json!({"queue": "private", "dedupKey": "one", "payload": "x"})).await;
    assert_eq!(first.refusal().field.as_deref(), Some("queue"), "{first:?}");
    let known = json!({"queue": "typed", "type": "bug", "dedupKey": "one", "payload": "x"});
    let first = agent.post("/agent/v1/work", known.clone()).await;
    assert_eq!(first.status, 200, "{first:?}");
    let name = first.json()["name"].as_str().expect("a name").to_owned();
    room.wait_for_item_phase(&name, Ready).await;

    // Each refusal has its code, field, limit and number.
    type Case = (&'static str, Value, (u16, &'static str), &'static str, Option<(u64, u64)>);
    let cases: [Case; 9] = [
        ("a large payload", json!({"queue": "small", "payload": "12345678901"}), (413, "item_too_large"), "payload", Some((10, 11))),
        ("a full queue", json!({"queue": "full"}), (409, "queue_full"), "queue", Some((1, 1))),
        ("a missing queue", json!({"queue": "gone"}), (422, "queue_missing"), "queue", None),
        ("a type that no queue takes", json!({"type": "idea"}), (422, "queue_missing"), "queue", None),
        ("a type that this queue does not take", json!({"queue": "typed", "type": "idea"}), (422, "type_not_accepted"), "type", None),
        ("a queue that it may not submit to", json!({"queue": "private"}), (403, "not_allowed"), "queue", None),
        ("another item of the same key", json!({"queue": "work", "dedupKey": "one", "payload": "y"}), (409, "duplicate"), "dedupKey", None),
        ("neither queue nor type", json!({"payload": "x"}), (400, "invalid_body"), "queue", None),
        ("an unknown field", json!({"queue": "work", "epoch": 1}), (400, "invalid_body"), "epoch", None),
    ];
    for (what, body, wanted, field, limit) in cases {
        let refusal = assert_refused(&room, what, &keyed(what), "/agent/v1/work", body, wanted).await.refusal();
        assert_eq!((refusal.field.as_deref(), refusal.limit.zip(refusal.current)), (Some(field), limit), "{what}: {refusal:?}");
    }
    assert_refused(&room, "no key", &agent, "/agent/v1/work", json!({"queue": "work"}), (400, "invalid_body")).await;
    // A repeated call gives the same item. Another item with its key is refused.
    assert_eq!(agent.post("/agent/v1/work", known).await.json(), first.json());
    let made = keyed("k").post("/agent/v1/work", json!({"queue": "work", "payload": "1"})).await;
    room.wait_for_item_phase(made.json()["name"].as_str().expect("a name"), Ready).await;
    assert_refused(&room, "a key for two", &keyed("k"), "/agent/v1/work", json!({"queue": "work", "payload": "2"}), (409, "key_reused"))
        .await;
    assert_eq!(keyed("k").post("/agent/v1/work", json!({"queue": "work", "payload": "1"})).await.json(), made.json());
    assert_eq!(stored(&room).await.len(), 3);
    room.close().await;
}

#[tokio::test]
async fn only_the_holder_finishes_an_item_and_once() {
    let (room, _operator, _) = set_up("finish").await;
    room.apply_queue("work", json!({})).await;
    let [holder, other] = two_agents(&room, json!({})).await;
    let claim = async |name: &str| {
        room.submit("work", name, json!({"payload": name})).await;
        let answer = holder.post("/agent/v1/work/claim", json!({"waitSeconds": 20})).await;
        assert_eq!((answer.status, answer.json()["name"].as_str()), (200, Some(name)), "{answer:?}");
        let held = answer.json()["held"].clone();
        (format!("/agent/v1/work/{}", held["uid"].as_str().expect("a uid")), held["epoch"].as_i64().expect("an epoch"))
    };
    let (path, epoch) = claim("mine").await;
    assert_eq!(epoch, 1);
    let again = holder.post("/agent/v1/work/claim", json!({})).await.json();
    assert_eq!(
        (again["name"].as_str(), again["held"]["epoch"].as_i64()),
        (Some("mine"), Some(1)),
        "an agent that holds an item gets that item"
    );
    let fail = |epoch: i64, reason: &str| json!({"epoch": epoch, "reason": reason});
    type Case<'a> = (&'static str, &'a Caller, &'static str, Value, (u16, &'static str));
    let cases: [Case; 10] = [
        ("an epoch to come", &holder, "complete", json!({"epoch": 2}), (409, "stale_lease")),
        ("an epoch that was", &holder, "complete", json!({"epoch": 0}), (409, "stale_lease")),
        ("a failure under another epoch", &holder, "fail", fail(2, "Broken"), (409, "stale_lease")),
        ("a release under another epoch", &holder, "release", fail(2, "Tired"), (409, "stale_lease")),
        ("progress under another epoch", &holder, "progress", json!({"epoch": 2, "percent": 5}), (409, "stale_lease")),
        ("another agent's item", &other, "complete", json!({"epoch": 1}), (409, "stale_lease")),
        ("another agent's item, failed", &other, "fail", fail(1, "Broken"), (409, "stale_lease")),
        ("no epoch", &holder, "complete", json!({}), (400, "invalid_body")),
        ("a reason of two words", &holder, "fail", fail(1, "two words"), (400, "invalid_body")),
        ("a large result", &holder, "complete", json!({"epoch": 1, "result": "x".repeat(4097)}), (400, "invalid_body")),
    ];
    for (what, caller, verb, body, wanted) in cases {
        assert_refused(&room, what, caller, &format!("{path}/{verb}"), body, wanted).await;
    }
    assert_refused(&room, "an unknown item", &holder, "/agent/v1/work/no-such-uid/complete", json!({"epoch": 1}), (410, "lease_lost"))
        .await;
    assert_eq!(phase(&room.item("mine").await), Some(Leased));

    let done = json!({"epoch": 1, "result": "done"});
    let complete = format!("{path}/complete");
    let answer = holder.post(&complete, done.clone()).await;
    assert_eq!((answer.status, answer.json()), (200, json!({})));
    let before = stored(&room).await;
    for body in [done, json!({"epoch": 1, "result": "something else"})] {
        let answer = holder.post(&complete, body).await;
        assert_eq!((answer.status, answer.json()), (200, json!({})), "said before");
    }
    assert_eq!(stored(&room).await, before);
    let item = room.item("mine").await;
    assert_eq!((phase(&item), item.status.as_ref().and_then(|status| status.result.as_deref())), (Some(Succeeded), Some("done")));
    assert_refused(&room, "a failure after its end", &holder, &format!("{path}/fail"), fail(1, "Broken"), (409, "finished_already")).await;
    assert_refused(&room, "the end by another", &other, &complete, json!({"epoch": 1}), (409, "stale_lease")).await;

    // After a release and a new claim, calls with the first epoch are refused.
    let (path, _) = claim("twice").await;
    assert_eq!(holder.post(&format!("{path}/release"), fail(1, "Tired")).await.status, 200);
    let answer = other.post("/agent/v1/work/claim", json!({"waitSeconds": 20})).await.json();
    assert_eq!((answer["name"].as_str(), answer["held"]["epoch"].as_i64()), (Some("twice"), Some(2)));
    assert_refused(&room, "the one before", &holder, &format!("{path}/complete"), json!({"epoch": 1}), (409, "stale_lease")).await;
    assert_refused(&room, "the one before, in disguise", &holder, &format!("{path}/complete"), json!({"epoch": 2}), (409, "stale_lease"))
        .await;
    assert_eq!(other.post(&format!("{path}/complete"), json!({"epoch": 2})).await.status, 200);

    let (path, epoch) = claim("deleted").await;
    room.api::<WorkItem>().delete("deleted", &DeleteParams::default()).await.expect("deleted");
    for verb in ["complete", "complete", "release"] {
        let body = if verb == "release" { fail(epoch, "Tired") } else { json!({"epoch": epoch}) };
        assert_refused(&room, "a deleted item", &holder, &format!("{path}/{verb}"), body, (410, "lease_lost")).await;
    }
    room.close().await;
}

#[tokio::test]
async fn what_an_item_asks_for_cannot_be_changed() {
    let (room, _operator, _) = set_up("edit").await;
    room.apply_queue("work", json!({})).await;
    room.submit(
        "work",
        "one",
        json!({"redrives": 1, "releasedEpoch": 1, "cancelRequested": true, "notBeforeTime": "2100-01-01T00:00:00Z"}),
    )
    .await;
    room.wait_for_item_phase("one", Cancelled).await;
    let before = stored(&room).await;
    let long = json!({"matchLabels": {"a": "b"}});
    let cases = [
        ("queueRef", json!({"name": "other"})),
        ("queueRef", Value::Null),
        ("type", json!("bug")),
        ("group", json!("book")),
        ("concurrencyKey", json!("key")),
        ("dedupKey", json!("key")),
        ("plan", json!({"id": "plan", "size": 2})),
        ("payload", json!("another task")),
        ("submitTime", json!("2026-01-01T00:00:00.000000Z")),
        ("notBeforeTime", Value::Null),
        ("deadlineTime", json!("2101-01-01T00:00:00Z")),
        ("dependsOn", json!([{"name": "two"}])),
        ("onDependencyFailure", json!("Run")),
        ("requires", json!({"tools": ["make"]})),
        ("bulkhead", json!({"tokens": 5})),
        ("agentSelector", long),
        ("notifyOn", json!(["Failed"])),
        ("overrides", json!({"maxAttempts": 9})),
        ("cancelRequested", json!(false)),
        ("cancelRequested", Value::Null),
        ("redrives", json!(0)),
        ("releasedEpoch", json!(0)),
    ];
    let items = room.api::<WorkItem>();
    for (field, value) in cases {
        let patch = Patch::Merge(json!({"spec": {field: value}}));
        match items.patch("one", &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(refused)) => assert!(refused.code == 422 && refused.message.contains(field), "{field}: {refused:?}"),
            other => panic!("{field} = {value}: {other:?}"),
        }
    }
    assert_eq!(stored(&room).await, before);
    for (field, value) in [("priority", json!(5)), ("suspend", json!(true)), ("redrives", json!(2)), ("releasedEpoch", json!(2))] {
        room.change_item("one", json!({field: value})).await;
    }
    room.close().await;
}
