//! The leader's metrics of work and agents, a program's environment about itself, and the plugin's statistics without
//! metrics.

use std::collections::BTreeMap;
use std::process::Command;

use rustix::process::Signal;
use serde_json::json;
use spillway::api::Agent;
use spillway::api::work_item::WorkItemPhase::Succeeded;

use crate::support::{Operator, TestNamespace, check_state, eventually, plugin_path};

/// The numbers of one metric, by labels, without the room's namespace.
async fn metric(room: &TestNamespace, operator: &Operator, name: &str) -> Result<BTreeMap<String, f64>, String> {
    let (_, text) = operator.get("/metrics").await?;
    let here = format!("namespace=\"{}\",", room.namespace);
    let lines = text.lines().filter_map(|line| line.strip_prefix("spillway_")?.strip_prefix(name)?.strip_prefix('{')?.split_once("} "));
    Ok(lines.filter_map(|(labels, number)| Some((labels.replace(&here, ""), number.parse().ok()?))).collect())
}

async fn wait_for_metric(room: &TestNamespace, operator: &Operator, name: &str, expected: &[(&str, f64)]) {
    let expected: BTreeMap<String, f64> = expected.iter().map(|(labels, number)| ((*labels).to_owned(), *number)).collect();
    eventually(&format!("{name} is {expected:?}"), async || {
        let now = metric(room, operator, name).await?;
        check_state(expected.iter().all(|(labels, number)| now.get(labels) == Some(number)), || format!("{now:?}"))
    })
    .await;
}

fn plugin(room: &TestNamespace, words: &[&str]) -> String {
    let output = Command::new(plugin_path()).args(["-n", &room.namespace]).args(words).output().expect("it runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test]
async fn what_happens_to_work_and_agents_is_counted_once_and_a_new_leader_begins_at_zero() {
    let room = TestNamespace::open("metrics").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    room.apply_queue("bugs", json!({"itemDefaults": {"maxAttempts": 2, "backoff": {"initialSeconds": 1, "maxSeconds": 1}}})).await;
    let script = r#"[ "$task" = bad ] && exit 7; [ "$task" = who ] && env > "$SPILLWAY_RESULT_FILE"; true"#;
    let bounds = json!({"scaling": {"min": 1, "max": 1, "workAware": false}});
    room.apply_workers("fixers", &["bugs"], script, bounds).await;
    for (name, payload) in [("who", "who"), ("good", "good"), ("bad", "bad")] {
        room.submit("bugs", name, json!({"payload": payload})).await;
    }
    room.wait_until_items_ended(3).await;
    let queue = |rest: &str| format!("queue=\"bugs\"{rest}");
    wait_for_metric(&room, &operator, "queue_arrivals_total", &[(&queue(""), 3.0)]).await;
    wait_for_metric(&room, &operator, "queue_claims_total", &[(&queue(""), 4.0)]).await;
    wait_for_metric(
        &room,
        &operator,
        "queue_attempts_total",
        &[(&queue(",outcome=\"Complete\""), 2.0), (&queue(",outcome=\"Fail\""), 2.0)],
    )
    .await;
    let ends = [(&*queue(",outcome=\"Succeeded\""), 2.0), (&*queue(",outcome=\"DeadLettered\""), 1.0)];
    wait_for_metric(&room, &operator, "queue_ends_total", &ends).await;
    wait_for_metric(&room, &operator, "queue_wait_seconds_count", &[(&queue(""), 4.0)]).await;
    wait_for_metric(&room, &operator, "queue_run_seconds_count", &[(&queue(""), 4.0)]).await;
    let phases = [(&*queue(",phase=\"Succeeded\""), 2.0), (&*queue(",phase=\"DeadLettered\""), 1.0), (&*queue(",phase=\"Ready\""), 0.0)];
    wait_for_metric(&room, &operator, "queue_items", &phases).await;
    wait_for_metric(&room, &operator, "pool_agents_desired", &[("pool=\"fixers\"", 1.0)]).await;
    wait_for_metric(&room, &operator, "pool_agents_live", &[("pool=\"fixers\"", 1.0)]).await;
    wait_for_metric(&room, &operator, "pool_agents", &[("pool=\"fixers\",phase=\"Idle\"", 1.0)]).await;
    wait_for_metric(&room, &operator, "pool_agent_starts_total", &[("pool=\"fixers\"", 1.0)]).await;
    wait_for_metric(&room, &operator, "agents", &[("type=\"worker\",phase=\"Idle\"", 1.0)]).await;

    // A program's environment about itself agrees with its Agent.
    let agent = room.list::<Agent>().await.pop().expect("an agent");
    let status = agent.status.clone().expect("a status");
    let pod = status.pod_ref.expect("a pod");
    let told = room.item("who").await.status.and_then(|status| status.result).expect("a result");
    let told: BTreeMap<&str, &str> = told.lines().filter_map(|line| line.split_once('=')).collect();
    for (name, value) in [
        ("SPILLWAY_AGENT_ID", pod.uid.as_str()),
        ("SPILLWAY_AGENT_NAME", pod.name.as_str()),
        ("SPILLWAY_AGENT_TYPE", "worker"),
        ("SPILLWAY_POOL", "fixers"),
        ("SPILLWAY_DATA_DIR", "/spillway/data"),
        ("SPILLWAY_CONTAINER_MODE", "true"),
    ] {
        assert_eq!(told.get(name), Some(&value), "{name} in {told:?}");
    }
    assert_eq!(told.get("SPILLWAY_STORAGE_HASH").map(|hash| hash.len()), Some(16), "{told:?}");
    let (container, node) = (status.container_id.expect("a container"), status.node.expect("a node"));
    let short: String = container.rsplit('/').next().unwrap_or_default().chars().take(13).collect();
    let wide = plugin(&room, &["ls", "-o", "wide"]);
    assert!(wide.contains(&short) && wide.contains(&node), "{wide}");

    // The plugin reaches no metrics: it computes from the items' own times.
    let stats = plugin(&room, &["queue", "bugs", "--stats"]);
    assert!(stats.contains("Arrived") && stats.contains("2 Complete, 2 Fail") && stats.contains("1 DeadLettered, 2 Succeeded"), "{stats}");
    let top = plugin(&room, &["top", "queues", "--once"]);
    assert!(top.starts_with("Queues 1") && top.contains("bugs"), "{top}");
    let top = plugin(&room, &["top", "pools", "--once"]);
    assert!(top.starts_with("Pools 1") && top.contains("fixers"), "{top}");

    // The next leader counts only its own time.
    operator.signal(Signal::KILL);
    let next = room.operator("two");
    next.leads(&room).await;
    room.submit("bugs", "late", json!({"payload": "good"})).await;
    room.wait_for_item_phase("late", Succeeded).await;
    wait_for_metric(&room, &next, "queue_arrivals_total", &[(&queue(""), 1.0)]).await;
    wait_for_metric(&room, &next, "queue_claims_total", &[(&queue(""), 1.0)]).await;
    wait_for_metric(&room, &next, "queue_ends_total", &[(&queue(",outcome=\"Succeeded\""), 1.0)]).await;
    wait_for_metric(&room, &next, "queue_items", &[(&queue(",phase=\"Succeeded\""), 3.0)]).await;
    let starts = metric(&room, &next, "pool_agent_starts_total").await.expect("metrics");
    assert_eq!(starts, BTreeMap::new(), "the agent started under the leader before");
    plugin(&room, &["scale", "fixers", "--replicas", "0"]);
    wait_for_metric(&room, &next, "pool_agents_live", &[("pool=\"fixers\"", 0.0)]).await;
    let ends = metric(&room, &next, "pool_agent_ends_total").await.expect("metrics");
    assert_eq!(ends.values().sum::<f64>(), 1.0, "{ends:?}");
    room.close().await;
}
