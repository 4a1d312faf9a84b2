//! Agents that fall silent or freeze, and the intervention in each mode of supervision. Late starts are tested
//! elsewhere.

use super::*;

/// Checks that the pod was in phase Running until it was asked to end.
fn said_that_it_runs(history: &History, uid: &str) {
    let before = history.pods(uid).into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
    let phases: Vec<String> = before.filter_map(|pod| pod.status?.phase).collect();
    assert_eq!(phases.last().map(String::as_str), Some("Running"), "{phases:?}");
    assert!(phases.iter().all(|phase| phase == "Pending" || phase == "Running"), "{phases:?}");
}

/// Checks that the agent was given up for `signal`, ended by force and replaced, and that the other agent of its pool
/// was not.
async fn given_up(room: &TestNamespace, history: &History, pool: &str, lost: &Agent, other: &str, signal: &str) {
    let (name, uid) = (lost.name_any(), pod_uid(lost));
    history
        .wait_for_agent("its heartbeat is told as lost", |agent| agent.name_any() == name && has_condition(agent, "Ready", "False", signal))
        .await;
    let ended = wait_for_agent(room, &name, "ended", |agent| phase(agent) == Some(ForceStopped)).await;
    assert!(has_condition(&ended, "Ready", "False", signal), "{:?}", ended.status);
    assert!(history.phases(&name).await.ends_with(&[Stale, ForceStopped]), "{:?}", history.phases(&name).await);
    said_that_it_runs(history, &uid);
    let interventions = ended.status.and_then(|status| status.interventions).unwrap_or_default();
    let recorded: Vec<_> = interventions.iter().map(|one| (one.signal.as_str(), one.action.as_str())).collect();
    assert_eq!(recorded, [(signal, "Restart")]);
    room.wait_for_event(&name, signal, "Restart: ").await;
    nothing_runs(&uid).await;
    let now = room.wait_until_idle(pool, 2).await;
    assert!(now.iter().any(|agent| agent.name_any() == other), "the other one stays");
    assert!(now.iter().all(|agent| agent.name_any() != name));
    assert_eq!(history.agents_ever().await.len(), 3, "one replacement");
}

#[tokio::test]
async fn a_pod_that_falls_silent_is_ended_by_force_and_replaced_though_it_says_that_it_runs() {
    let (room, _operator, history) = set_up("silent").await;
    room.apply_pool("free", json!({"replicas": 2, "agent": program(QUIET), "supervision": short_timeouts_spec("Enforce")})).await;
    let agents = room.wait_until_idle("free", 2).await;
    let link = node::link(&pod_uid(&agents[0])).expect("a sidecar");
    node::signal(&link, Signal::STOP);
    given_up(&room, &history, "free", &agents[0], &agents[1].name_any(), "HeartbeatLost").await;
    room.close().await;
}

#[tokio::test]
async fn a_frozen_program_is_ended_by_force_and_replaced_and_a_quiet_one_is_not() {
    let (room, _operator, history) = set_up("frozen").await;
    room.apply_pool("free", json!({"replicas": 2, "agent": program(QUIET), "supervision": short_timeouts_spec("Enforce")})).await;
    let agents = room.wait_until_idle("free", 2).await;
    let uid = pod_uid(&agents[0]);
    node::signal(&node::program(&uid).expect("a program"), Signal::STOP);
    assert!(node::supervisor(&uid).is_some_and(|supervisor| supervisor.state != 'T'), "its first process lives");
    given_up(&room, &history, "free", &agents[0], &agents[1].name_any(), "ProgramSilent").await;
    room.close().await;
}

#[tokio::test]
async fn a_supervisor_that_only_observes_tells_what_it_would_do_and_stops_nothing() {
    let (room, _operator, history) = set_up("observe").await;
    room.apply_pool("free", json!({"replicas": 2, "agent": program(QUIET), "supervision": short_timeouts_spec("Observe")})).await;
    let agents = room.wait_until_idle("free", 2).await;
    let [silent, frozen] = [&agents[0], &agents[1]].map(|agent| (agent.name_any(), pod_uid(agent)));
    let link = node::link(&silent.1).expect("a sidecar");
    let stopped = node::program(&frozen.1).expect("a program");
    node::signal(&link, Signal::STOP);
    node::signal(&stopped, Signal::STOP);
    let would = "not done: supervision.mode is Observe";
    let note = room.wait_for_event(&silent.0, "HeartbeatLost", would).await;
    assert!(note.contains("Restart: "), "{note}");
    room.wait_for_event(&frozen.0, "ProgramSilent", would).await;
    wait_for_agent(&room, &silent.0, "is not heard of", |agent| has_condition(agent, "Heartbeating", "False", "HeartbeatLost")).await;
    wait_for_agent(&room, &frozen.0, "is frozen", |agent| has_condition(agent, "Heartbeating", "False", "ProgramSilent")).await;
    node::signal(&link, Signal::CONT);
    node::signal(&stopped, Signal::CONT);
    for (name, uid) in [&silent, &frozen] {
        let again =
            wait_for_agent(&room, name, "is heard of again", |agent| has_condition(agent, "Heartbeating", "True", "Heartbeating")).await;
        assert_eq!(pod_uid(&again), *uid);
        assert!(only(&history.phases(name).await, &[Spawning, Running, Idle]), "{:?}", history.phases(name).await);
        assert!(history.pods(uid).iter().all(|pod| pod.metadata.deletion_timestamp.is_none()));
    }
    assert_eq!(node::program(&frozen.1).map(|program| program.pid), Some(stopped.pid), "the same program goes on");
    assert!(node::program(&silent.1).is_some());
    assert_eq!(history.agents_ever().await.len(), 2);
    room.close().await;
}
