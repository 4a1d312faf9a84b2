//! The life of agents, seen from outside their pods: goodbye, silence, starts that fail, pauses, children, orphans, a sidecar
//! that dies, a person at a terminal. Tests of silence and of killed processes are in `life/`.

mod processes;
mod silence;

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{LogParams, Patch, PatchParams, PostParams};
use rustix::process::Signal;
use serde_json::{Value, json};
use spillway::api::agent::AgentPhase::{self, Active, ForceStopped, Goodbye, Idle, Paused, Running, Spawning, Stale, Stopped};
use spillway::api::{Agent, AgentPool};
use spillway::wire::Code;

use crate::support::caller::{Caller, token_of};
use crate::support::exec::{self, Attached, exec, sh};
use crate::support::history::{History, condition, has_condition, phase, pod_uid};
use crate::support::{Operator, TestNamespace, check_state, eventually, node};

/// A namespace with an operator that leads, and the history of its objects.
async fn set_up(name: &str) -> (TestNamespace, Operator, History) {
    let room = TestNamespace::open(name).await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    let history = History::start(&room);
    (room, operator, history)
}

/// A pool's program that runs `script`.
fn program(script: &str) -> Value {
    json!({"command": ["/bin/sh", "-c", script]})
}

/// Does nothing and says nothing, until it is asked to end.
const QUIET: &str = "trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done";
/// Ends only by force.
const STUBBORN: &str = "trap '' TERM; while :; do sleep 1; done";

/// A heartbeat each second, and a time-out of five seconds.
fn short_timeouts_spec(mode: &str) -> Value {
    json!({"mode": mode, "heartbeatPeriodSeconds": 1, "heartbeatTimeoutSeconds": 5})
}

async fn scale(room: &TestNamespace, pool: &str, replicas: usize) {
    let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
    room.api::<AgentPool>().patch_scale(pool, &PatchParams::default(), &patch).await.expect("scaled");
}

async fn change(room: &TestNamespace, agent: &str, spec: Value) {
    room.api::<Agent>().patch(agent, &PatchParams::default(), &Patch::Merge(json!({"spec": spec}))).await.expect("changed");
}

/// Waits until the Agent fits now.
async fn wait_for_agent(room: &TestNamespace, name: &str, what: &str, fits: impl Fn(&Agent) -> bool) -> Agent {
    eventually(&format!("{name} {what}"), async || {
        let agent = room.api::<Agent>().get(name).await.map_err(|error| error.to_string())?;
        check_state(fits(&agent), || format!("{:?}", agent.status)).map(|()| agent)
    })
    .await
}

/// The agent says goodbye with its own command; the time, by the machine's clock.
async fn says_goodbye(room: &TestNamespace, agent: &str, reason: &str) -> Duration {
    let script = format!("read up rest < /proc/uptime; echo $up; exec {} goodbye '{reason}'", exec::SPILLWAY);
    let said = sh(room, agent, &script).await;
    assert!(!said.err.contains("refused") && !said.err.contains("error"), "{said:?}");
    Duration::from_secs_f64(said.out.trim().parse().expect("seconds"))
}

/// Whether there were only these phases. Which of them are seen depends on timing.
fn only(phases: &[AgentPhase], expected: &[AgentPhase]) -> bool {
    phases.iter().all(|phase| expected.contains(phase))
}

/// Whether the pod with this uid was asked to end.
fn asked_to_end(uid: &str) -> impl Fn(&Pod) -> bool {
    move |pod| pod.metadata.uid.as_deref() == Some(uid) && pod.metadata.deletion_timestamp.is_some()
}

/// The exit code of the agent's container, from the kubelet.
fn exit_code(pod: &Pod) -> Option<i32> {
    let containers = pod.status.as_ref()?.container_statuses.as_ref()?;
    let agent = containers.iter().find(|container| container.name == "agent")?;
    Some(agent.state.as_ref()?.terminated.as_ref()?.exit_code)
}

async fn ends_with_goodbye(room: &TestNamespace, history: &History, name: &str, reason: &str) {
    let ended = wait_for_agent(room, name, "ended", |agent| phase(agent) == Some(Stopped)).await;
    assert!(has_condition(&ended, "Ready", "False", "SaidGoodbye"), "{:?}", ended.status);
    assert_eq!(condition(&ended, "Ready").map(|ready| ready.message.as_str()), Some(reason));
    assert!(history.phases(name).await.ends_with(&[Goodbye, Stopped]), "{:?}", history.phases(name).await);
}

#[tokio::test]
async fn a_goodbye_is_recorded_ends_the_pod_and_brings_one_replacement() {
    let (room, _operator, history) = set_up("bye").await;
    room.apply_pool("free", json!({"replicas": 2})).await;
    let agents = room.wait_until_idle("free", 2).await;
    let (name, other) = (agents[0].name_any(), agents[1].name_any());
    let uid = pod_uid(&agents[0]);
    let called = says_goodbye(&room, &name, "all is done").await;
    let (recorded, agent) =
        history.wait_for_agent("the goodbye is a condition", |agent| has_condition(agent, "GoodbyeRequested", "True", "SaidGoodbye")).await;
    let (asked, _) = history.wait_for_pod("the pod is asked to end", asked_to_end(&uid)).await;
    let millis = |at: Duration| at.saturating_sub(called).as_millis();
    eprintln!(
        "goodbye: {} ms from the call to the condition, {} ms to the end of the pod being asked for",
        millis(recorded),
        millis(asked)
    );
    assert_eq!(agent.name_any(), name);
    assert_eq!(condition(&agent, "GoodbyeRequested").map(|said| said.message.as_str()), Some("all is done"));
    assert_eq!(agent.status.and_then(|status| status.goodbye?.reason).as_deref(), Some("all is done"));
    ends_with_goodbye(&room, &history, &name, "all is done").await;
    room.wait_for_event(&name, "SaidGoodbye", "all is done").await;

    let now = room.wait_until_idle("free", 2).await;
    assert!(now.iter().any(|agent| agent.name_any() == other), "the one that said nothing stays");
    assert_eq!(history.agents_ever().await.len(), 3, "one replacement");
    room.close().await;
}

#[tokio::test]
async fn a_goodbye_brings_no_replacement_that_the_pool_does_not_want() {
    let (room, _operator, history) = set_up("byezero").await;
    let slow = program("trap 'sleep 5; exit 0' TERM; while :; do sleep 1 & wait $!; done");
    room.apply_pool("free", json!({"replicas": 1, "agent": slow, "supervision": {"goodbyeTimeoutSeconds": 60}})).await;
    let agent = room.wait_until_idle("free", 1).await.remove(0);
    let name = agent.name_any();
    says_goodbye(&room, &name, "enough").await;
    scale(&room, "free", 0).await;
    ends_with_goodbye(&room, &history, &name, "enough").await;
    room.pool_says("free", "ScaledToZero", "True").await;
    assert_eq!(history.agents_ever().await.len(), 1, "{:?}", history.agents_ever().await);

    // A manual agent is not replaced. The pool, which is reconciled after it, makes only its desired number.
    let manual: Agent =
        serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Agent", "metadata": {"name": "mine"},
        "spec": {"poolRef": {"name": "free"}, "manual": true}}))
        .expect("an Agent");
    room.api::<Agent>().create(&PostParams::default(), &manual).await.expect("accepted");
    wait_for_agent(&room, "mine", "is idle", |agent| phase(agent) == Some(Idle)).await;
    says_goodbye(&room, "mine", "bye").await;
    ends_with_goodbye(&room, &history, "mine", "bye").await;
    scale(&room, "free", 1).await;
    room.wait_until_idle("free", 1).await;
    assert_eq!(history.agents_ever().await.len(), 3, "the first, the manual one, and the one that was wanted then");
    room.close().await;
}

#[tokio::test]
async fn a_program_that_ignores_being_asked_is_gone_by_force_after_its_grace() {
    let (room, _operator, history) = set_up("byeforce").await;
    let grace = json!({"goodbyeTimeoutSeconds": 3});
    room.apply_pool("stubborn", json!({"replicas": 1, "agent": program(STUBBORN), "supervision": grace})).await;
    room.apply_pool("polite", json!({"replicas": 1, "agent": program(QUIET), "supervision": grace})).await;
    for (pool, code) in [("stubborn", 137), ("polite", 0)] {
        let agent = room.wait_until_idle(pool, 1).await.remove(0);
        let (name, uid) = (agent.name_any(), pod_uid(&agent));
        assert!(node::program(&uid).is_some(), "its program runs");
        says_goodbye(&room, &name, "bye").await;
        ends_with_goodbye(&room, &history, &name, "bye").await;
        let (_, pod) = history
            .wait_for_pod("the kubelet tells its exit code", |pod| pod.metadata.uid.as_deref() == Some(&uid) && exit_code(pod).is_some())
            .await;
        assert_eq!(exit_code(&pod), Some(code), "{pool}");
        nothing_runs(&uid).await;
    }
    room.close().await;
}

/// Waits until the node has no process of this pod.
async fn nothing_runs(uid: &str) {
    eventually("no process of the pod is left", async || {
        let left = node::of_pod(uid);
        check_state(left.is_empty(), || format!("{left:?}"))
    })
    .await;
}

#[tokio::test]
async fn starts_that_fail_are_given_up_in_the_kubelets_words_and_tried_later_and_later() {
    let (room, _operator, history) = set_up("start").await;
    let within = |seconds: u32| json!({"startupTimeoutSeconds": seconds});
    let image = json!({"image": "localhost/spillway/there-is-no-such:dev"});
    room.apply_pool("fine", json!({"replicas": 1, "supervision": within(5)})).await;
    let fine = room.wait_until_idle("fine", 1).await.remove(0).name_any();
    // Long enough for the kubelet to find and report it, which takes a second attempt.
    room.apply_pool("told", json!({"replicas": 1, "agent": image, "supervision": within(30)})).await;
    room.apply_pool("fails", json!({"replicas": 1, "agent": image, "supervision": within(5)})).await;
    let gave_up = |agent: &Agent, pool: &str| agent.spec.pool_ref.name == pool && phase(agent) == Some(ForceStopped);
    let (_, told) = history.wait_for_agent("the first is given up in the kubelet's words", |agent| gave_up(agent, "told")).await;
    let message = &condition(&told, "Ready").expect("Ready").message;
    assert!(message.contains("ImagePull") && message.contains("there-is-no-such"), "{message}");

    let (reason, _) = room.pool_says("fails", "Stalled", "True").await;
    assert_eq!(reason, "CrashLoop");
    let all = room.list::<Agent>().await;
    let mut ended: Vec<&Agent> = all.iter().filter(|agent| gave_up(agent, "fails")).collect();
    ended.sort_by_key(|agent| agent.creation_timestamp());
    assert!((5..=6).contains(&ended.len()), "{} given up", ended.len());
    for agent in ended.iter().copied().chain([&told]) {
        assert!(has_condition(agent, "Ready", "False", "StartTimedOut"), "{:?}", agent.status);
        assert_eq!(history.phases(&agent.name_any()).await, [Spawning, Stale, ForceStopped]);
    }
    let made: Vec<_> = ended.iter().map(|agent| agent.creation_timestamp().expect("a time").0).collect();
    let gaps: Vec<_> = made.windows(2).map(|pair| pair[1].duration_since(pair[0]).as_secs()).collect();
    let (first, last) = gaps.split_at(2);
    assert!(first.iter().sum::<i64>() < last.iter().sum(), "later and later: {gaps:?} s between them");
    let others = history.phases(&fine).await;
    assert!(only(&others, &[Spawning, Running, Idle]), "the gateway served others all along: {others:?}");
    room.close().await;
}

#[tokio::test]
async fn nobody_is_given_up_for_a_late_start_while_no_gateway_serves() {
    let (room, _operator, history) = set_up("startaway").await;
    room.kill_gateway();
    room.apply_pool("free", json!({"replicas": 1, "supervision": {"startupTimeoutSeconds": 20}})).await;
    let (_, agent) = history.wait_for_agent("its pod runs", |agent| has_condition(agent, "Ready", "False", "NotRegistered")).await;
    // Longer than its time limit, which is longer than its sidecar's retry interval. This waits a fixed time, because
    // it checks that something does not happen.
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(history.phases(&agent.name_any()).await, [Spawning, Running]);
    room.start_gateway("again");
    assert_eq!(room.wait_until_idle("free", 1).await[0].name_any(), agent.name_any());
    room.close().await;
}

#[tokio::test]
async fn a_pause_is_told_and_counted_and_a_paused_frozen_program_is_not_given_up() {
    let (room, _operator, history) = set_up("pause").await;
    room.apply_pool("free", json!({"replicas": 1, "agent": program(QUIET), "supervision": short_timeouts_spec("Enforce")})).await;
    let agent = room.wait_until_idle("free", 1).await.remove(0);
    let (name, uid) = (agent.name_any(), pod_uid(&agent));
    change(&room, &name, json!({"paused": true})).await;
    let paused = wait_for_agent(&room, &name, "is paused", |agent| phase(agent) == Some(Paused)).await;
    assert!(has_condition(&paused, "Paused", "True", "PausedBySpec"), "{:?}", paused.status);
    assert_eq!(paused.status.and_then(|status| status.pauses), Some(1));
    eventually("the pod knows about the pause", async || {
        let said = exec::spillway(&room, &name, &["status"]).await;
        check_state(said.out.contains("wanted: pause"), || format!("{said:?}"))
    })
    .await;

    node::signal(&node::program(&uid).expect("a program"), Signal::STOP);
    // Twice its time-out, while its heartbeats continue. This waits a fixed time, because it checks that something does
    // not happen.
    tokio::time::sleep(Duration::from_secs(12)).await;
    let held = room.api::<Agent>().get(&name).await.expect("the Agent");
    assert_eq!((phase(&held), held.status.and_then(|status| status.interventions)), (Some(Paused), None));
    node::signal(&node::program(&uid).expect("a program"), Signal::CONT);

    change(&room, &name, json!({"paused": false, "resumePause": 1})).await;
    let again = wait_for_agent(&room, &name, "goes on", |agent| phase(agent) == Some(Idle)).await;
    assert!(has_condition(&again, "Paused", "False", "NotPaused") && pod_uid(&again) == uid, "{:?}", again.status);
    // The same again without a pause.
    node::signal(&node::program(&uid).expect("a program"), Signal::STOP);
    wait_for_agent(&room, &name, "is given up", |agent| {
        phase(agent) == Some(ForceStopped) && has_condition(agent, "Ready", "False", "ProgramSilent")
    })
    .await;
    assert!(history.phases(&name).await.ends_with(&[Idle, Stale, ForceStopped]), "{:?}", history.phases(&name).await);
    room.close().await;
}

#[tokio::test]
async fn children_are_made_within_the_bulkhead_and_leave_with_their_parent() {
    let (room, _operator, history) = set_up("children").await;
    room.apply_pool("kids", json!({"replicas": 0})).await;
    room.apply_pool("others", json!({"replicas": 0})).await;
    let may = json!({"replicas": 1, "may": {"spawnIn": ["kids"]}, "bulkhead": {"maxChildAgents": 1}});
    room.apply_pool("parents", may).await;
    let parent = room.wait_until_idle("parents", 1).await.remove(0);
    let name = parent.name_any();

    let not_listed = exec::spillway(&room, &name, &["spawn", "others"]).await;
    assert!(not_listed.code == 3 && not_listed.err.contains("spec.may.spawnIn"), "{not_listed:?}");
    let child = exec::spillway(&room, &name, &["spawn", "kids", "--key", "first"]).await.ok().trim().to_owned();
    let made = wait_for_agent(&room, &child, "is idle", |agent| phase(agent) == Some(Idle)).await;
    assert_eq!((made.spec.parent_ref.map(|parent| parent.name), made.spec.manual), (Some(name.clone()), Some(true)));
    wait_for_agent(&room, &name, "has a child", |agent| agent.status.as_ref().and_then(|status| status.children) == Some(1)).await;
    assert_eq!(room.pool("kids").await.status.and_then(|status| status.agents), Some(0), "it counts outside its pool's size");

    // The same key gives the same child, with the command and with the API call of the sidecar.
    assert_eq!(exec::spillway(&room, &name, &["spawn", "kids", "--key", "first"]).await.ok().trim(), child);
    let pod = room.api::<Pod>().get(&name).await.expect("its pod");
    let link = Caller::anonymous_at_gateway(&room).await.with_token(&token_of(&room, &pod).await).with_header("idempotency-key", "first");
    let again = link.post("/agent/v1/agents", json!({"pool": "kids"})).await;
    assert_eq!((again.status, again.json()), (200, json!({"agent": child})));
    let another = link.post("/agent/v1/agents", json!({"pool": "kids", "displayName": "another"})).await;
    assert_eq!(another.refusal().code, Code::KeyReused);
    assert_eq!(link.post("/agent/v1/agents", json!({"pool": "others"})).await.refusal().code, Code::NotAllowed);

    let one_too_many = exec::spillway(&room, &name, &["spawn", "kids"]).await;
    assert!(one_too_many.code == 3 && one_too_many.err.contains("maxChildAgents"), "{one_too_many:?}");
    assert_model_warned(&room, &name).await;
    assert_eq!(room.list::<Agent>().await.len(), 2, "nothing else was made");

    says_goodbye(&room, &name, "done").await;
    ends_with_goodbye(&room, &history, &name, "done").await;
    let (_, gone) = history
        .wait_for_agent("the child leaves too", |agent| {
            agent.name_any() == child && has_condition(agent, "GoodbyeRequested", "True", "ParentEnded")
        })
        .await;
    assert_eq!(gone.name_any(), child);
    wait_for_agent(&room, &child, "ended", |agent| phase(agent) == Some(Stopped)).await;
    room.close().await;
}

/// Checks that the model, and persons, get a notice of the refused request.
async fn assert_model_warned(room: &TestNamespace, name: &str) {
    let rule = "RuleViolated/TooManyChildren";
    eventually("the pod has the warning", async || {
        let said = sh(room, name, "cat /spillway/data/notices.jsonl").await;
        check_state(said.out.contains(rule), || format!("{said:?}"))
    })
    .await;
    let next = exec::spillway(room, name, &["progress", "thinking"]).await;
    assert!(next.err.contains("notice: ") && next.err.contains(rule), "the next command tells it: {next:?}");
    let after = exec::spillway(room, name, &["progress", "thinking"]).await;
    assert!(!after.err.contains(rule), "once: {after:?}");
    room.wait_for_event(name, rule, "Warn: ").await;
    let parent = wait_for_agent(room, name, "has it on record", |agent| {
        agent.status.as_ref().is_some_and(|status| status.interventions.as_ref().is_some_and(|all| !all.is_empty()))
    })
    .await;
    let interventions = parent.status.and_then(|status| status.interventions).unwrap_or_default();
    let recorded: Vec<_> = interventions.iter().map(|one| (one.signal.as_str(), one.action.as_str())).collect();
    assert_eq!(recorded, [(rule, "Warn")]);
}

#[tokio::test]
async fn a_chat_agent_is_active_while_its_terminal_is_used() {
    let (room, _operator, history) = set_up("chat").await;
    room.apply_pool("chat", json!({"replicas": 2, "mode": "Chat", "agent": {"command": ["/bin/sh"]}})).await;
    let agents = room.wait_until_idle("chat", 2).await;
    let (name, other) = (agents[0].name_any(), agents[1].name_any());
    let mut person = Attached::to(&room, &name);
    let typing = std::sync::Mutex::new(&mut person);
    eventually("the agent is Active", async || {
        // The kernel rounds the times of a terminal to 8 s, so typing is detected with a delay.
        typing.lock().expect("one person").types("echo hello > /tmp/typed");
        tokio::time::sleep(Duration::from_secs(2)).await;
        let agent = room.api::<Agent>().get(&name).await.map_err(|error| error.to_string())?;
        check_state(phase(&agent) == Some(Active), || format!("{:?}", phase(&agent)))
    })
    .await;
    assert_eq!(sh(&room, &name, "cat /tmp/typed").await.ok().trim(), "hello");
    // Still attached, without typing.
    wait_for_agent(&room, &name, "is idle again", |agent| phase(agent) == Some(Idle)).await;
    assert!(history.phases(&name).await.ends_with(&[Idle, Active, Idle]), "{:?}", history.phases(&name).await);
    assert!(only(&history.phases(&other).await, &[Spawning, Running, Idle]), "no person was at the other one");
    drop(person);
    room.close().await;
}
