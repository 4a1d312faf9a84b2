//! The processes of an agent's pod: orphans, a killed supervisor and a killed sidecar. The tests signal only their own
//! pods.

use super::*;

/// Number of zombies in the container.
const ZOMBIES: &str = "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z '";

async fn zombies(room: &TestNamespace, pod: &str) -> usize {
    sh(room, pod, ZOMBIES).await.out.trim().parse().expect("a number")
}

#[tokio::test]
async fn a_thousand_orphans_leave_no_zombie_and_a_killed_supervisor_leaves_no_process() {
    let (room, _operator, _history) = set_up("orphans").await;
    let orphans = "i=0; while [ $i -lt 1000 ]; do (sleep 0.1 & echo orphan); i=$((i+1)); done; echo all; exec sleep 100000";
    let resources = json!({"requests": {"cpu": "5m", "memory": "8Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}});
    let agent = json!({"command": ["/bin/sh", "-c", orphans], "resources": resources});
    room.apply_pool("free", json!({"replicas": 1, "agent": agent})).await;
    let agent = room.wait_until_idle("free", 1).await.remove(0);
    let (name, uid) = (agent.name_any(), pod_uid(&agent));
    eventually("all processes are orphaned", async || {
        let log = room.api::<Pod>().logs(&name, &LogParams { container: Some("agent".into()), ..LogParams::default() }).await;
        let log = log.map_err(|error| error.to_string())?;
        let orphans = log.lines().filter(|line| *line == "orphan").count();
        check_state(log.ends_with("all\n") && orphans == 1000, || format!("{orphans} orphans"))
    })
    .await;
    eventually("all of them ended", async || {
        let said = sh(&room, &name, "ps | grep -c 'sleep 0[.]1$'").await;
        check_state(said.out.trim() == "0", || format!("{said:?}"))
    })
    .await;
    assert_eq!(zombies(&room, &name).await, 0);

    // A parent that does not reap leaves a zombie. The supervisor reaps it as soon as it is orphaned.
    sh(&room, &name, "(sleep 0.1 & exec sleep 99999) > /dev/null 2>&1 &").await.ok();
    eventually("a zombie can be seen", async || {
        let seen_now = zombies(&room, &name).await;
        check_state(seen_now == 1, || format!("{seen_now}"))
    })
    .await;
    sh(&room, &name, "kill $(ps | grep ' sleep 9999[9]$' | awk '{print $1}')").await.ok();
    eventually("the zombie is reaped", async || {
        let left = zombies(&room, &name).await;
        check_state(left == 0, || format!("{left}"))
    })
    .await;

    // Processes in sessions of their own, with the same uid, end with the first process of their container.
    sh(&room, &name, "setsid sleep 88888 > /dev/null 2>&1 & setsid sh -c 'sleep 77777 & sleep 77777' > /dev/null 2>&1 &").await.ok();
    eventually("the processes run", async || {
        let all = node::of_pod(&uid);
        check_state(all.iter().filter(|process| process.command.contains("88888") || process.command == "sleep 77777").count() == 3, || {
            format!("{all:?}")
        })
    })
    .await;
    node::signal(&node::supervisor(&uid).expect("a supervisor"), Signal::KILL);
    nothing_runs(&uid).await;
    let ended = wait_for_agent(&room, &name, "ended", |agent| phase(agent) == Some(Stopped)).await;
    let ready = condition(&ended, "Ready").expect("Ready");
    assert!(ready.reason == "PodFailed" && ready.message.contains("137"), "{ready:?}");
    room.close().await;
}

#[tokio::test]
async fn a_killed_sidecar_comes_back_and_the_program_does_not_notice() {
    let (room, _operator, history) = set_up("link").await;
    let counts = "trap 'exit 0' TERM; n=0; while :; do n=$((n+1)); echo step $n; sleep 1 & wait $!; done";
    // The kubelet restarts it, which takes longer than five seconds if many other containers start.
    let supervision = json!({"mode": "Enforce", "heartbeatPeriodSeconds": 1, "heartbeatTimeoutSeconds": 120});
    room.apply_pool("free", json!({"replicas": 1, "agent": program(counts), "supervision": supervision})).await;
    let agent = room.wait_until_idle("free", 1).await.remove(0);
    let (name, uid) = (agent.name_any(), pod_uid(&agent));
    let (link, program) = (node::link(&uid).expect("a sidecar"), node::program(&uid).expect("a program"));
    let steps = async || {
        let params = LogParams { container: Some("agent".into()), ..LogParams::default() };
        let log = room.api::<Pod>().logs(&name, &params).await.expect("its output");
        log.lines().filter_map(|line| line.strip_prefix("step ")?.parse::<u32>().ok()).collect::<Vec<_>>()
    };
    node::signal(&link, Signal::KILL);
    eventually("another sidecar runs", async || {
        let now = node::link(&uid);
        check_state(now.as_ref().is_some_and(|now| now.pid != link.pid), || format!("{now:?}"))
    })
    .await;
    let before = steps().await.len();
    // It is registered again and reports for the program.
    eventually("the Agent's status has the program's progress", async || {
        let said = exec(&room, &name, &[exec::SPILLWAY, "progress", "alive"]).await;
        let told = room.api::<Agent>().get(&name).await.map_err(|error| error.to_string())?.status.and_then(|status| status.current_action);
        check_state(told.as_deref() == Some("alive"), || format!("{told:?} {said:?}"))
    })
    .await;
    eventually("the program continues", async || {
        let now = steps().await;
        check_state(now.len() > before + 3, || format!("{now:?}")).map(|()| now)
    })
    .await
    .into_iter()
    .zip(1..)
    .for_each(|(step, expected)| assert_eq!(step, expected, "no output is lost, and it began once"));
    assert_eq!(node::program(&uid).map(|now| now.pid), Some(program.pid));
    // The only visible effect is that the pod is not ready while its container restarts.
    assert!(only(&history.phases(&name).await, &[Spawning, Running, Idle]), "{:?}", history.phases(&name).await);
    assert_eq!(history.agents_ever().await.len(), 1);
    room.close().await;
}
