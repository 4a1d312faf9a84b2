use serde_json::{Value, json};

use super::*;
use crate::cluster::watch::Tolerant;

const NAMESPACE: &str = "team";

fn pool(name: &str, type_: &str, desired: i32) -> PoolObject {
    let pool = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "AgentPool", "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"type": type_, "agent": {"image": "i", "command": ["c"]}}, "status": {"desired": desired}});
    Tolerant(Ok(serde_json::from_value(pool).expect("an AgentPool")))
}

fn agent(name: &str, phase: Option<&str>, pod: Option<&str>, conditions: &[(&str, &str)]) -> AgentObject {
    let conditions: Vec<Value> = conditions
        .iter()
        .map(|(type_, reason)| json!({"type": type_, "status": if *type_ == "Ready" { "False" } else { "True" }, "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}))
        .collect();
    let pod = pod.map(|uid| json!({"name": name, "uid": uid}));
    let agent = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Agent",
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": format!("uid-{name}")},
        "spec": {"poolRef": {"name": "p"}}, "status": {"phase": phase, "podRef": pod, "conditions": conditions}});
    Tolerant(Ok(serde_json::from_value(agent).expect("an Agent")))
}

/// The lines of a metric, without the labels that are always the same.
fn lines(metrics: &Metrics, metric: &str) -> Vec<String> {
    let text = metrics.text().expect("encodes");
    let mut lines: Vec<String> =
        text.lines().filter(|line| line.starts_with(metric)).map(|line| line.replace("namespace=\"team\",pool=\"p\"", "")).collect();
    lines.sort();
    lines
}

fn fleet() -> (Fleet, Metrics) {
    let metrics = Metrics::default();
    let fleet = Fleet::new(metrics.clone());
    fleet.pools(&[Arc::new(pool("p", "worker", 2))]);
    (fleet, metrics)
}

const STARTS: &str = "spillway_pool_agent_starts_total";
const ENDS: &str = "spillway_pool_agent_ends_total";

#[test]
fn lives_count_once_however_often_agents_are_listed() {
    let (fleet, metrics) = fleet();
    let old = agent("old", Some("Idle"), Some("u0"), &[]);
    fleet.agents(&[Arc::new(old.clone())]);
    assert_eq!(lines(&metrics, STARTS), Vec::<String>::new(), "a leader before us counted it");
    let idle = agent("a", Some("Idle"), Some("u1"), &[]);
    fleet.agent(&agent("a", None, None, &[]));
    fleet.agent(&agent("a", Some("Spawning"), Some("u1"), &[]));
    for _ in 0..3 {
        fleet.agent(&idle);
        fleet.agents(&[Arc::new(idle.clone()), Arc::new(old.clone())]);
    }
    assert_eq!(lines(&metrics, STARTS), ["spillway_pool_agent_starts_total{} 1"]);
    assert_eq!(lines(&metrics, ENDS), Vec::<String>::new());
    let ended = agent("a", Some("Stopped"), Some("u1"), &[("Ready", "PodSucceeded")]);
    for _ in 0..3 {
        fleet.agent(&ended);
        fleet.agents(&[Arc::new(ended.clone()), Arc::new(old.clone())]);
    }
    assert_eq!(lines(&metrics, ENDS), [r#"spillway_pool_agent_ends_total{,reason="PodSucceeded"} 1"#]);
    fleet.agent_gone(&ended);
    fleet.measure([]);
    assert_eq!(lines(&metrics, "spillway_pool_agents{"), [r#"spillway_pool_agents{,phase="Idle"} 1"#]);
    assert_eq!(lines(&metrics, ENDS).len(), 1, "that it is collected is no end");
    // An agent that began and ended while the watch was broken counts when it is listed. An agent that is not
    // listed any more ended.
    let late = agent("late", Some("ForceStopped"), Some("u2"), &[("GivenUp", "HeartbeatLost")]);
    fleet.agents(&[Arc::new(late)]);
    assert_eq!(lines(&metrics, STARTS), ["spillway_pool_agent_starts_total{} 2"]);
    assert_eq!(
        lines(&metrics, ENDS),
        [
            r#"spillway_pool_agent_ends_total{,reason="Deleted"} 1"#,
            r#"spillway_pool_agent_ends_total{,reason="HeartbeatLost"} 1"#,
            r#"spillway_pool_agent_ends_total{,reason="PodSucceeded"} 1"#,
        ]
    );
}

#[test]
fn an_agent_that_hibernates_and_wakes_has_two_lives() {
    let (fleet, metrics) = fleet();
    fleet.agents(&[]);
    fleet.agent(&agent("a", Some("Idle"), Some("u1"), &[]));
    fleet.agent(&agent("a", Some("Hibernated"), None, &[("Ready", "Hibernated")]));
    fleet.agent(&agent("a", Some("Spawning"), Some("u2"), &[]));
    // One that is removed while it is ended by force ended for that.
    fleet.agent(&agent("c", Some("Active"), Some("u3"), &[]));
    fleet.agent_gone(&agent("c", Some("Stale"), Some("u3"), &[("GivenUp", "ItemStalled")]));
    // One that never had a pod neither began nor ended.
    fleet.agent(&agent("b", Some("Spawning"), None, &[("Ready", "QuotaExceeded")]));
    fleet.agent_gone(&agent("b", Some("Spawning"), None, &[("Ready", "QuotaExceeded")]));
    assert_eq!(lines(&metrics, STARTS), ["spillway_pool_agent_starts_total{} 3"]);
    assert_eq!(
        lines(&metrics, ENDS),
        [r#"spillway_pool_agent_ends_total{,reason="Hibernated"} 1"#, r#"spillway_pool_agent_ends_total{,reason="ItemStalled"} 1"#,]
    );
    assert_eq!(lines(&metrics, "spillway_agent_starts_total"), [r#"spillway_agent_starts_total{type="worker"} 3"#]);
}

#[test]
fn an_end_has_one_of_the_known_reasons() {
    let of = |phase, conditions: &[(&str, &str)]| end_reason(agent("a", Some(phase), None, conditions).0.as_ref().expect("an Agent"));
    assert_eq!(of("ForceStopped", &[("GivenUp", "ItemStalled"), ("GoodbyeRequested", "SaidGoodbye")]), "ItemStalled");
    assert_eq!(of("Stopped", &[("GoodbyeRequested", "LifetimeSpent"), ("Ready", "SaidGoodbye")]), "LifetimeSpent");
    assert_eq!(of("Stopped", &[("Ready", "PodFailed")]), "PodFailed");
    assert_eq!(of("Stopped", &[("Ready", "SomebodysWord")]), OTHER_REASON, "what others write is no label");
    let mut leaving = agent("a", Some("Goodbye"), Some("u"), &[("Ready", "PodStopping")]);
    leaving.0.as_mut().expect("an Agent").metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH));
    assert_eq!(end_reason(leaving.0.as_ref().expect("an Agent")), DELETED_REASON);
}

#[test]
fn series_show_desired_and_live_agents_and_go_with_their_pool() {
    let (fleet, metrics) = fleet();
    fleet.agents(&[]);
    fleet.agent(&agent("a", Some("Active"), Some("u1"), &[]));
    fleet.agent(&agent("b", None, None, &[]));
    fleet.agent(&agent("c", Some("Stopped"), Some("u3"), &[]));
    let key = |name: &str| ObjectKey { namespace: NAMESPACE.into(), name: name.into() };
    fleet.measure([(key("a"), "open"), (key("gone"), "open")]);
    assert_eq!(lines(&metrics, "spillway_pool_agents_desired"), ["spillway_pool_agents_desired{} 2"]);
    assert_eq!(lines(&metrics, "spillway_pool_agents_live"), ["spillway_pool_agents_live{} 2"], "one has ended");
    assert_eq!(
        lines(&metrics, "spillway_pool_agents{"),
        [
            r#"spillway_pool_agents{,phase="Active"} 1"#,
            r#"spillway_pool_agents{,phase="New"} 1"#,
            r#"spillway_pool_agents{,phase="Stopped"} 1"#,
        ]
    );
    assert_eq!(lines(&metrics, "spillway_pool_session_breakers"), [r#"spillway_pool_session_breakers{,state="open"} 1"#]);
    assert_eq!(fleet.pool_usage(), [(key("p"), 2, 1)]);
    // A pool that is gone is counted until its agents are, too.
    fleet.pool_gone(&pool("p", "worker", 2));
    ["a", "b"].into_iter().for_each(|name| fleet.agent_gone(&agent(name, Some("Goodbye"), Some("u1"), &[])));
    fleet.measure([]);
    assert_eq!(lines(&metrics, "spillway_pool_agents{"), [r#"spillway_pool_agents{,phase="Stopped"} 1"#]);
    fleet.agent_gone(&agent("c", Some("Stopped"), Some("u3"), &[]));
    fleet.measure([]);
    assert_eq!(lines(&metrics, "spillway_pool_"), Vec::<String>::new());
    assert_eq!(lines(&metrics, "spillway_agent"), Vec::<String>::new());
    // An agent of a pool that never was takes no name.
    fleet.agent(&agent("d", Some("Spawning"), None, &[]));
    fleet.measure([]);
    assert_eq!(lines(&metrics, "spillway_pool_agents{"), [r#"spillway_pool_agents{namespace="team",pool="_none",phase="Spawning"} 1"#]);
}

#[test]
fn the_sandboxes_of_living_agents_are_counted_by_their_state() {
    let (fleet, metrics) = fleet();
    let with = |name: &str, phase: &str, status: &str, reason: &str| {
        let Tolerant(Ok(mut found)) = agent(name, Some(phase), Some("pod"), &[("SandboxEnforced", reason)]) else { panic!("an Agent") };
        found.status.iter_mut().flat_map(|status| &mut status.conditions).for_each(|one| one.status = status.to_owned());
        Tolerant(Ok(found))
    };
    let look = || {
        fleet.measure([]);
        lines(&metrics, "spillway_pool_agents_sandbox{")
    };
    let state = |state: &str, count: u64| format!("spillway_pool_agents_sandbox{{,state=\"{state}\"}} {count}");
    fleet.pool(&pool("p", "worker", 5));
    let all =
        [("a", "True", "Enforced"), ("b", "False", "SandboxDegraded"), ("c", "False", "LandlockNotBuilt"), ("d", "Unknown", "NotReported")];
    for (name, status, reason) in all {
        fleet.agent(&with(name, "Idle", status, reason));
    }
    assert_eq!(look(), [state("Degraded", 1), state("Enforced", 1), state("Unavailable", 1), state("Unknown", 1)]);
    fleet.agent(&with("d", "Idle", "True", "Enforced"));
    fleet.agent(&with("c", "Stopped", "False", "LandlockNotBuilt"));
    fleet.agent_gone(&with("b", "Idle", "False", "SandboxDegraded"));
    assert_eq!(look(), [state("Enforced", 2)], "ended and removed agents count nowhere");
}

#[test]
fn calls_of_living_agents_that_wait_for_approval_are_counted() {
    let (fleet, metrics) = fleet();
    let asking = |name: &str, phase: &str, states: &[&str]| {
        let Tolerant(Ok(mut found)) = agent(name, Some(phase), Some("pod"), &[]) else { panic!("an Agent") };
        let call = |state: &&str| {
            json!({"id": state, "call": "d", "toolset": "t", "program": "p", "arguments": "{}", "podUid": "pod", "state": state,
                "requestTime": "2026-01-01T00:00:00Z", "expireTime": "2026-01-01T00:15:00Z"})
        };
        let calls: Vec<Value> = states.iter().map(call).collect();
        found.status.as_mut().expect("a status").tool_approvals = Some(serde_json::from_value(json!(calls)).expect("calls"));
        Tolerant(Ok(found))
    };
    let look = || {
        fleet.measure([]);
        lines(&metrics, "spillway_pool_approvals_waiting{")
    };
    fleet.agent(&asking("a", "Active", &["Waiting", "Used", "Denied"]));
    fleet.agent(&asking("b", "Active", &["Waiting"]));
    assert_eq!(look(), ["spillway_pool_approvals_waiting{} 2"]);
    fleet.agent(&asking("a", "Active", &["Approved", "TimedOut"]));
    assert_eq!(look(), ["spillway_pool_approvals_waiting{} 1"]);
    fleet.agent(&asking("b", "Stopped", &["Waiting"]));
    assert_eq!(look(), ["spillway_pool_approvals_waiting{} 0"], "nobody waits for a call of an agent that ended");
}
