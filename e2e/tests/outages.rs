//! Outages of controller, gateway and API server: they end no agent and stop no program. Only an agent that is silent
//! alone, and stays silent, is given up.

use std::time::Duration;

use bytes::Bytes;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use rustix::process::Signal;
use serde_json::json;
use spillway::api::agent::AgentPhase;
use spillway::api::{Agent, AgentPool};
use spillway::wire::governor::{CALLER_NAMESPACE_HEADER, CALLER_POD_HEADER, CALLER_UID_HEADER, GATEWAY_HEADER, OWNER_EPOCH_HEADER};
use spillway::wire::{Code, GOVERNOR_AUDIENCE};

use crate::support::caller::{self, Caller, report, token_of};
use crate::support::fake::{Authority, FakeGovernor};
use crate::support::fleet::{Chronicle, Fleet, log, steps};
use crate::support::{TestNamespace, audit, check_state, eventually, operator, stopped};

/// Heartbeat period and time-out, in seconds.
fn heartbeat(period: u32, timeout: u32) -> serde_json::Value {
    json!({"heartbeatPeriodSeconds": period, "heartbeatTimeoutSeconds": timeout})
}

async fn scale(room: &TestNamespace, pool: &str, replicas: u32) {
    let scale = Patch::Merge(json!({"spec": {"replicas": replicas}}));
    room.api::<AgentPool>().patch_scale(pool, &PatchParams::default(), &scale).await.expect("scaled");
}

/// Waits until each of these sidecars has logged `times` times in total that it found the gateway again.
async fn answered_again(room: &TestNamespace, agents: &[String], times: usize) {
    for agent in agents {
        eventually(&format!("{agent} is answered again"), async || {
            let said = log(room, agent, "link").await;
            check_state(said.matches("the gateway answers again").count() >= times, || said)
        })
        .await;
    }
}

/// Checks that the programs continued meanwhile, with each step once.
pub async fn assert_programs_continued(room: &TestNamespace, agents: &[String], before: &[u64], at_least: u64) {
    let after = steps(room, agents).await;
    assert!(before.iter().zip(&after).all(|(before, after)| after - before >= at_least), "from {before:?} to {after:?}");
}

#[tokio::test]
async fn ten_minutes_without_controller_and_gateway_cost_nothing() {
    let room = TestNamespace::open("alone").await;
    let first = room.operator("first");
    first.leads(&room).await;
    let told = Chronicle::start(&room);
    // More than ten minutes: a pod without contact for its time-out ends by itself.
    room.apply_pool("free", json!({"replicas": 3, "supervision": heartbeat(5, 900)})).await;
    let before = Fleet::wait_for_idle(&room, 3).await;
    let walked = steps(&room, &before.names()).await;

    drop(first);
    room.kill_gateway();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(Fleet::now(&room).await, before, "all operators are away, and nothing changed");
    // A step takes five seconds. On a busy machine half of the steps are enough.
    assert_programs_continued(&room, &before.names(), &walked, 60).await;

    room.start_gateway("later");
    let second = room.operator("second");
    second.leads(&room).await;
    answered_again(&room, &before.names(), 1).await;
    room.pool_says("free", "Ready", "True").await;
    assert_eq!(Fleet::wait_for_idle(&room, 3).await, before, "the same Agents, pods and containers, none of them restarted");
    told.assert_undisturbed(&before.names());
    assert_programs_continued(&room, &before.names(), &walked, 60).await;

    // The new leader also controls them again.
    scale(&room, "free", 1).await;
    room.pods_ready(1).await;
    room.close().await;
}

#[tokio::test]
async fn a_controller_away_for_longer_than_the_time_out_reaps_nobody() {
    let room = TestNamespace::open("late").await;
    let first = room.operator("first");
    first.leads(&room).await;
    let told = Chronicle::start(&room);
    room.apply_pool("free", json!({"replicas": 3, "supervision": heartbeat(5, 15)})).await;
    let before = Fleet::wait_for_idle(&room, 3).await;
    let walked = steps(&room, &before.names()).await;
    let pod = room.list::<Pod>().await.remove(0);
    let agent = Caller::anonymous_at_gateway(&room).await.with_token(&token_of(&room, &pod).await);

    drop(first);
    eventually("the gateway says that the governor is away", async || {
        let answer = agent.post("/agent/v1/report", report()).await;
        check_state(answer.status == 503, || format!("{answer:?}"))
    })
    .await;
    for _ in 0..60 {
        let answer = agent.post("/agent/v1/report", report()).await;
        assert_eq!((answer.status, answer.refusal().code), (503, Code::GovernorAway));
        assert!(answer.headers.contains_key("retry-after"), "and when to come again");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_programs_continued(&room, &before.names(), &walked, 6).await;

    let second = room.operator("second");
    second.leads(&room).await;
    answered_again(&room, &before.names(), 1).await;
    // A controller that counted the silence would have given them up within this time.
    tokio::time::sleep(Duration::from_secs(45)).await;
    assert_eq!(Fleet::wait_for_idle(&room, 3).await, before);
    told.assert_undisturbed(&before.names());
    assert_programs_continued(&room, &before.names(), &walked, 12).await;
    room.close().await;
}

#[tokio::test]
#[ignore = "it takes minutes: E2E_LONG=1"]
async fn long_a_roll_out_of_the_gateway_loses_no_agent() {
    let room = TestNamespace::open("roll").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    let told = Chronicle::start(&room);
    room.apply_pool("free", json!({"replicas": 3, "supervision": heartbeat(5, 120)})).await;
    let before = Fleet::wait_for_idle(&room, 3).await;
    let walked = steps(&room, &before.names()).await;

    // Away for 90 s.
    room.kill_gateway();
    tokio::time::sleep(Duration::from_secs(90)).await;
    room.start_gateway("after");
    answered_again(&room, &before.names(), 1).await;
    assert_programs_continued(&room, &before.names(), &walked, 9).await;
    // Effects of the outage would show within another time-out.
    tokio::time::sleep(Duration::from_secs(130)).await;
    assert_eq!(Fleet::wait_for_idle(&room, 3).await, before);
    told.assert_undisturbed(&before.names());

    // One after the other at the same address, each for less time than an agent's time-out.
    room.apply_pool("free", json!({"replicas": 3, "supervision": heartbeat(5, 40)})).await;
    room.pool_says("free", "Ready", "True").await;
    for name in ["second", "third", "fourth", "fifth"] {
        room.kill_gateway();
        room.start_gateway(name);
        tokio::time::sleep(Duration::from_secs(15)).await;
    }
    answered_again(&room, &before.names(), 2).await;
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert_eq!(Fleet::wait_for_idle(&room, 3).await, before);
    told.assert_undisturbed(&before.names());
    room.close().await;
}

#[tokio::test]
#[ignore = "it takes minutes: E2E_LONG=1"]
async fn long_a_leader_that_was_stopped_for_three_minutes_does_nothing_and_says_nothing() {
    let room = TestNamespace::open("stopped").await;
    let mut first = room.operator("first");
    first.leads(&room).await;
    let second = room.operator("second");
    room.apply_pool("free", json!({"replicas": 3, "supervision": heartbeat(5, 30)})).await;
    let before = Fleet::wait_for_idle(&room, 3).await;
    let pods: Vec<Pod> = room.list().await;
    let old = gateway_at_the_governor(&room, &pods[0]).await;
    // Connections from before: they carry its first answers after it continues.
    let mut lines = Vec::new();
    for _ in 0..3 {
        let mut line = old.connect().await.expect("it serves");
        let answer = line.call("POST", "/agent/v1/report", report().to_string()).await.expect("it answers");
        assert_eq!(answer.status, 200, "it leads: {answer:?}");
        lines.push(line);
    }
    let epoch = |answer: &caller::Answer| answer.headers[OWNER_EPOCH_HEADER].to_str().expect("text").parse::<i64>().expect("a number");
    let led = epoch(&old.post("/agent/v1/report", report()).await);

    first.signal(Signal::STOP);
    // Its last thread stops shortly afterwards.
    eventually("the old leader is stopped", async || match tokio::time::timeout(Duration::from_secs(2), first.get("/livez")).await {
        Ok(answer) => Err(format!("{answer:?}")),
        Err(_) => Ok(()),
    })
    .await;
    let asked = lines.into_iter().enumerate().map(|(at, mut line)| {
        let (path, body) = match at {
            0 => ("/agent/v1/goodbye", json!({"reason": "said to one that sleeps"})),
            1 => ("/agent/v1/register", json!({"version": "test"})),
            _ => ("/agent/v1/report", report()),
        };
        tokio::spawn(async move { line.call_for(Duration::from_secs(400), "POST", path, body.to_string()).await })
    });
    let asked: Vec<_> = asked.collect();
    second.leads(&room).await;
    let new = gateway_at_the_governor(&room, &pods[0]).await;
    eventually("the new leader answers", async || {
        let answer = new.try_call("POST", "/agent/v1/report", report().to_string()).await?;
        check_state(answer.status == 200 && epoch(&answer) > led, || format!("{answer:?}"))
    })
    .await;
    // Changes that the stopped one does not know: a goodbye, and another size.
    let leaving = Caller::anonymous_at_gateway(&room).await.with_token(&token_of(&room, &pods[2]).await);
    eventually("the new leader accepts a goodbye", async || {
        let answer = leaving.try_call("POST", "/agent/v1/goodbye", json!({"reason": "done"}).to_string()).await?;
        check_state(answer.status == 200, || format!("{answer:?}"))
    })
    .await;
    scale(&room, "free", 5).await;
    let after = Fleet::wait_for_living(&room, 5).await;
    tokio::time::sleep(Duration::from_secs(150)).await;

    let woken = jiff::Timestamp::now();
    first.signal(Signal::CONT);
    for answer in asked {
        match answer.await.expect("a task") {
            Ok(answer) => {
                assert_eq!((answer.status, answer.refusal().code), (503, Code::GovernorAway), "{answer:?}");
                assert_eq!(epoch(&answer), led, "the answer has its owner epoch");
            }
            Err(closed) => assert!(!closed.contains("no answer came"), "{closed}"),
        }
    }
    assert!(!first.ended().await.success(), "it finds that it does not lead, and ends");
    // Time for late effects of its writes, and a whole time-out more.
    tokio::time::sleep(Duration::from_secs(40)).await;
    let late: Vec<_> = audit::writes(&room.namespace, woken)
        .into_iter()
        .filter(|write| write.holder().is_some_and(|holder| first.is_holder(holder)))
        .filter(|write| (200..300).contains(&write.response_status.code))
        .collect();
    assert!(late.is_empty(), "the one that slept writes nothing: {late:#?}");
    assert_eq!(Fleet::wait_for_living(&room, 5).await, after, "and no agent was ended for it");
    let stayed = before.names().into_iter().filter(|name| *name != pods[2].name_any());
    assert!(stayed.clone().all(|name| after.names().contains(&name)), "{:?} of {:?}", stayed.collect::<Vec<_>>(), after.names());
    let goodbye = room.api::<Agent>().get(&pods[0].name_any()).await.expect("an Agent").status.and_then(|status| status.goodbye);
    assert_eq!(goodbye, None, "what was said to the one that slept was not heard");
    room.close().await;
}

/// A caller with the headers of a gateway that calls for `pod`.
async fn gateway_at_the_governor(room: &TestNamespace, pod: &Pod) -> Caller {
    let token = caller::token(room, operator::GATEWAY, GOVERNOR_AUDIENCE, None).await;
    let caller = Caller::anonymous_at_governor(room).await.with_token(&token).with_header(GATEWAY_HEADER, "test");
    caller
        .with_header(CALLER_NAMESPACE_HEADER, &room.namespace)
        .with_header(CALLER_POD_HEADER, &pod.name_any())
        .with_header(CALLER_UID_HEADER, &pod.uid().expect("a uid"))
}

#[tokio::test]
async fn a_gateway_refuses_an_epoch_below_the_highest_it_saw_and_goes_on_with_the_newest() {
    let room = TestNamespace::open("epoch").await;
    let authority = Authority::make(&room).await;
    let old = FakeGovernor::start(&room, &authority, "old", 7).await;
    old.leads(&room).await;
    let pod = unscheduled_pod(&room, "somebody").await;
    let agent = Caller::anonymous_at_gateway(&room).await.with_token(&token_of(&room, &pod).await);
    let answers = async |what: &str| {
        eventually(what, async || {
            let answer = agent.try_call("POST", "/agent/v1/report", report().to_string()).await?;
            check_state(answer.status == 200, || format!("{answer:?}"))
        })
        .await
    };
    answers("the first leader's answers are passed on").await;

    // The same process with a lower epoch: its answers are dropped until the gateway connects again and reads the
    // Lease.
    eventually("an answer with the earlier epoch is refused, with both epochs in the message", async || {
        old.says_epoch(7);
        answers("its own epoch is heard").await;
        old.says_epoch(6);
        let answer = agent.try_call("POST", "/agent/v1/report", report().to_string()).await?;
        let refusal = answer.refusal();
        // It is never passed on, also if other faults happen meanwhile.
        assert_eq!((answer.status, refusal.code), (503, Code::GovernorAway));
        check_state(refusal.message.contains("owner epoch 6") && refusal.message.contains('7'), || refusal.to_string())
    })
    .await;
    old.says_epoch(7);
    answers("it is heard again under its own epoch").await;

    // The old leader holds a call while the new one takes over, and then answers it.
    old.holds_answers();
    let asked = tokio::spawn({
        let agent = agent.clone();
        async move { agent.post("/agent/v1/report", report()).await }
    });
    old.wait_for_held_call().await;
    let new = FakeGovernor::start(&room, &authority, "new", 8).await;
    new.leads(&room).await;
    old.ends_streams();
    answers("the new leader's answers are passed on").await;
    old.release_answers();
    let late = asked.await.expect("a task");
    assert_eq!((late.status, late.refusal().code), (503, Code::GovernorAway), "an answer from before is not passed on");
    // The connection to the new leader is kept.
    for _ in 0..20 {
        let answer = agent.post("/agent/v1/report", report()).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }

    room.api::<Pod>().delete("somebody", &DeleteParams::default().grace_period(0)).await.expect("deleted");
    room.close().await;
}

/// A pod that is never scheduled. It exists, so tokens can be bound to it.
async fn unscheduled_pod(room: &TestNamespace, name: &str) -> Pod {
    let walls = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": true, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}});
    let container = json!({"name": "c", "image": "localhost/spillway/demo-agent:dev", "securityContext": walls});
    let pod = json!({"metadata": {"name": name}, "spec": {"nodeSelector": {"no-such": "label"}, "containers": [container]}});
    let pod = serde_json::from_value(pod).expect("a pod");
    room.api().create(&Default::default(), &pod).await.expect("a pod")
}

#[tokio::test]
async fn one_silent_agent_is_given_up_after_one_time_out_and_many_together_after_two() {
    let room = TestNamespace::open("silent").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    let told = Chronicle::start(&room);
    // Agents count as silent together if their last heartbeats are at most a third of the time-out, or two periods,
    // apart. That must be well over a period: otherwise one delayed heartbeat on a busy machine makes an agent silent
    // alone.
    room.apply_pool("free", json!({"replicas": 6, "supervision": heartbeat(2, 20)})).await;
    let pods = {
        Fleet::wait_for_idle(&room, 6).await;
        room.pods_ready(6).await
    };
    // One agent alone.
    let alone = pods[0].name_any();
    let link = stopped::Link::of(&pods[0]);
    let lost = told.wait_for_state(&alone, "given up", |state| state.phase == "Stale").await;
    assert_eq!(lost.ready, "HeartbeatLost");
    assert!((20..40).contains(&served(&lost.message)), "{lost:?}");
    told.wait_for_state(&alone, "ended by force", |state| state.phase == "ForceStopped").await;
    let many = told.states_of(&alone).into_iter().find(|state| state.heartbeating.contains("SilentWithMany"));
    assert_eq!(many, None, "no other agent was silent with it");
    drop(link);

    // All agents of a node at once.
    Fleet::wait_for_living(&room, 6).await;
    let pods = room.pods_ready(6).await;
    let links: Vec<_> = pods.iter().map(stopped::Link::of).collect();
    for pod in &pods {
        let name = pod.name_any();
        told.wait_for_state(&name, "silent with many", |state| state.heartbeating == "Unknown/SilentWithMany").await;
        let lost = told.wait_for_state(&name, "given up in the end", |state| state.phase == "Stale").await;
        assert_eq!(lost.ready, "HeartbeatLost");
        assert!(served(&lost.message) >= 40, "only after a second time-out: {lost:?}");
        let states = told.states_of(&name);
        let at = |holds: &dyn Fn(&crate::support::fleet::State) -> bool| states.iter().position(holds).expect("it was seen");
        assert!(at(&|state| state.heartbeating == "Unknown/SilentWithMany") < at(&|state| state.phase == "Stale"), "{states:#?}");
    }
    drop(links);
    Fleet::wait_for_living(&room, 6).await;
    room.close().await;
}

/// The seconds of served time in the message about a lost heartbeat.
fn served(words: &str) -> u64 {
    let number = words.split(" s of served time").next().and_then(|before| before.rsplit(' ').next());
    number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no seconds in {words:?}"))
}

#[tokio::test]
async fn many_that_come_back_in_time_are_as_they_were() {
    let room = TestNamespace::open("back").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    let told = Chronicle::start(&room);
    room.apply_pool("free", json!({"replicas": 6, "supervision": heartbeat(5, 45)})).await;
    let before = Fleet::wait_for_idle(&room, 6).await;
    let pods = room.pods_ready(6).await;
    let mut links: Vec<_> = pods.iter().map(stopped::Link::of).collect();
    for name in before.names() {
        told.wait_for_state(&name, "silent with many", |state| state.heartbeating == "Unknown/SilentWithMany").await;
    }
    // Not all at once: the last agents are few, and are silent for longer than the time-out of one agent.
    let heard = async |pods: &[Pod]| {
        eventually("the agents report again", async || {
            let heard = |pod: &Pod| told.states_of(&pod.name_any()).last().is_some_and(|state| state.heartbeating == "True/Heartbeating");
            check_state(pods.iter().all(heard), || {
                format!("{:?}", pods.iter().map(|pod| told.states_of(&pod.name_any())).collect::<Vec<_>>())
            })
        })
        .await;
    };
    drop(links.drain(..4));
    heard(&pods[..4]).await;
    drop(links);
    heard(&pods).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(Fleet::wait_for_idle(&room, 6).await, before);
    room.close().await;
}

#[tokio::test]
async fn alone_an_api_server_that_is_away_for_40_seconds_costs_no_agent() {
    an_api_server_goes_and_comes(40).await;
}

#[tokio::test]
#[ignore = "it takes minutes: E2E_LONG=1"]
async fn alone_an_api_server_that_is_away_for_90_seconds_costs_no_agent() {
    an_api_server_goes_and_comes(90).await;
}

#[tokio::test]
#[ignore = "it waits for five minutes: E2E_LONG=1"]
async fn alone_an_api_server_that_is_away_for_five_minutes_costs_no_agent() {
    an_api_server_goes_and_comes(300).await;
}

/// Meanwhile neither kubelets nor the leader can renew a lease. The next leader is another one, and finds nodes that
/// Kubernetes does not reach.
async fn an_api_server_goes_and_comes(seconds: u64) {
    let room = TestNamespace::open("apiserver").await;
    let mut first = room.operator("first");
    first.leads(&room).await;
    let second = room.operator("second");
    // Shorter than all outages except the shortest: only time with a connected leader counts.
    room.apply_pool("free", json!({"replicas": 3, "supervision": heartbeat(5, 60)})).await;
    let before = Fleet::wait_for_idle(&room, 3).await;
    let walked = steps(&room, &before.names()).await;

    let since = jiff::Timestamp::now();
    let away = stopped::ApiServer::stop();
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    drop(away);
    second.leads(&room).await;
    assert!(!first.ended().await.success(), "it could not renew its lease");
    answered_again(&room, &before.names(), 1).await;
    // Within this time every node would count as unreachable, and every lost agent would be replaced.
    for _ in 0..120 {
        for agent in room.list::<Agent>().await {
            let status = agent.status.clone().unwrap_or_default();
            assert_eq!(status.phase, Some(AgentPhase::Idle), "{}: {status:?}", agent.name_any());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(Fleet::wait_for_idle(&room, 3).await, before);
    let made_or_ended: Vec<_> = audit::writes(&room.namespace, since)
        .into_iter()
        .filter(|write| ["create", "delete"].iter().any(|verb| write.is(verb, "agents") || write.is(verb, "pods")))
        .collect();
    assert!(made_or_ended.is_empty(), "{made_or_ended:#?}");
    assert_programs_continued(&room, &before.names(), &walked, seconds / 10).await;
    // The new leader also controls them again.
    scale(&room, "free", 1).await;
    room.pods_ready(1).await;
    room.close().await;
}

#[tokio::test]
async fn a_gateway_without_any_leader_answers_everybody_at_once() {
    let room = TestNamespace::open("nobody").await;
    let _authority = Authority::make(&room).await;
    let pod = unscheduled_pod(&room, "somebody").await;
    let agent = Caller::anonymous_at_gateway(&room).await.with_token(&token_of(&room, &pod).await);
    let away = async |method: &str, path: &str, body: Bytes| {
        eventually("the gateway serves", async || {
            let answer = agent.try_call(method, path, body.clone()).await?;
            check_state(answer.status == 503 && answer.refusal().code == Code::GovernorAway, || format!("{answer:?}"))
        })
        .await;
    };
    away("POST", "/agent/v1/report", report().to_string().into()).await;
    away("GET", "/agent/v1/wanted?after=1.1", Bytes::new()).await;
    away("POST", "/agent/v1/goodbye", json!({"reason": "nobody hears it"}).to_string().into()).await;
    room.api::<Pod>().delete("somebody", &DeleteParams::default().grace_period(0)).await.expect("deleted");
    room.close().await;
}
