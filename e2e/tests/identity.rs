//! Identity and rights of callers: an agent is identified only by its pod's uid, which the API server confirms. A
//! refused caller gets the reason and a remedy, is counted, and has changed nothing. `identity/calls.rs` tests the
//! calls themselves.

mod calls;

use std::time::Duration;

use bytes::Bytes;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::ResourceExt;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};
use spillway::api::Agent;
use spillway::wire::access::{ACCESS_TABLE, Call, Caller as Who, RequestMatch, find};
use spillway::wire::body::MAX_BODY_BYTES;
use spillway::wire::governor::{CALLER_NAMESPACE_HEADER, CALLER_POD_HEADER, CALLER_UID_HEADER, GATEWAY_HEADER};
use spillway::wire::{Code, GATEWAY_AUDIENCE, GOVERNOR_AUDIENCE};

use crate::support::caller::{Answer, Caller, report, token, token_of};
use crate::support::fleet::{Chronicle, Fleet};
use crate::support::schema::Schema;
use crate::support::{Operator, TestNamespace, check_state, eventually, operator, stopped, within};

/// A namespace with a pool of agents at rest, and their gateway.
struct Scene {
    room: TestNamespace,
    gateway: Operator,
    _operator: Operator,
    /// The agents' pods.
    pods: Vec<Pod>,
    /// A caller without a token, at the gateway.
    anonymous: Caller,
}

impl Scene {
    async fn set(name: &str, pool: Value, agents: usize) -> Self {
        let room = TestNamespace::open(name).await;
        // A gateway of the test, whose counters it reads.
        room.kill_gateway();
        let gateway = Operator::gateway(&room, "counted");
        let operator = room.operator("one");
        operator.leads(&room).await;
        room.apply_pool("free", pool).await;
        room.pool_says("free", "Ready", "True").await;
        Fleet::wait_for_idle(&room, agents).await;
        let pods = room.pods_ready(agents).await;
        let nobody = Caller::anonymous_at_gateway(&room).await;
        let scene = Self { room, gateway, _operator: operator, pods, anonymous: nobody };
        scene.wait_until_quiet().await;
        scene
    }

    /// Waits until the Agents are not written any more: also the writes that are delayed on purpose.
    async fn wait_until_quiet(&self) {
        eventually("the Agents are not written any more", async || {
            let before = self.stored().await;
            tokio::time::sleep(Duration::from_secs(7)).await;
            let after = self.stored().await;
            check_state(before == after, || format!("{before:?}, then {after:?}"))
        })
        .await;
    }

    async fn agent_of(&self, pod: &Pod) -> Caller {
        self.anonymous.with_token(&token_of(&self.room, pod).await)
    }

    /// Number of calls that the gateway refused for this reason.
    async fn refused_so_far(&self, code: Code) -> u64 {
        let (_, text) = self.gateway.get("/metrics").await.expect("metrics");
        let lines = text.lines().filter(|line| line.starts_with("spillway_agent_calls_refused_total{"));
        let of_code = lines.filter(|line| line.contains(&format!("reason=\"{}\"", code.label())));
        of_code.map(|line| line.rsplit(' ').next().and_then(|count| count.parse::<u64>().ok()).expect("a count")).sum()
    }

    /// The stored Agents as text, which changes with each write.
    async fn stored(&self) -> Vec<(String, String)> {
        let all = self.room.list::<Agent>().await;
        all.into_iter().map(|agent| (agent.name_any(), agent.resource_version().unwrap_or_default())).collect()
    }

    /// Checks that the call is refused with this code and these words, is counted, and changes nothing.
    async fn assert_refused(
        &self,
        caller: &Caller,
        method: &str,
        path: &str,
        body: impl Into<Bytes>,
        code: Code,
        words: &[&str],
    ) -> Answer {
        let (before, counted) = (self.stored().await, self.refused_so_far(code).await);
        let answer = caller.call(method, path, body).await;
        let refusal = answer.refusal();
        assert_eq!((answer.status, refusal.code), (code.status(), code), "{method} {path}: {refusal}");
        assert!(words.iter().all(|word| refusal.message.contains(word)), "{method} {path}: {refusal}: where is {words:?}?");
        assert!(self.refused_so_far(code).await > counted, "{method} {path}: it is not counted as {}", code.label());
        assert_eq!(self.stored().await, before, "{method} {path}: something changed");
        answer
    }

    async fn goodbyes(&self) -> Vec<String> {
        let said = |agent: &Agent| agent.status.as_ref().is_some_and(|status| status.goodbye.is_some());
        self.room.list::<Agent>().await.iter().filter(|agent| said(agent)).map(ResourceExt::name_any).collect()
    }
}

/// A goodbye. If it were accepted, an Agent would show it.
fn goodbye() -> String {
    json!({"reason": "somebody else said it"}).to_string()
}

/// A user's pod that is never scheduled. It holds its name and the binding of a token, and runs nothing.
async fn unscheduled_pod(room: &TestNamespace, metadata: Value) -> Pod {
    let walls = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": true, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}});
    let container = json!({"name": "agent", "image": "localhost/spillway/demo-agent:dev", "securityContext": walls});
    let pod = json!({"metadata": metadata, "spec": {"nodeSelector": {"no-such": "label"}, "containers": [container]}});
    let pod = serde_json::from_value(pod).expect("a pod");
    room.api().create(&PostParams::default(), &pod).await.expect("a pod")
}

#[tokio::test]
async fn whoever_is_no_agent_is_refused_and_told_why() {
    let scene = Scene::set("who", json!({"replicas": 2}), 2).await;
    let room = &scene.room;
    let path = "/agent/v1/goodbye";
    let refuses = async |caller: &Caller, code: Code, words: &[&str]| {
        scene.assert_refused(caller, "POST", path, goodbye(), code, words).await;
    };
    refuses(&scene.anonymous, Code::NoToken, &["Authorization: Bearer"]).await;
    refuses(&scene.anonymous.with_header("authorization", "Basic dTpw"), Code::NoToken, &["Authorization: Bearer"]).await;
    refuses(&scene.anonymous.with_token(""), Code::NoToken, &["Authorization: Bearer"]).await;
    for garbage in ["garbage", "eyJhbGciOiJub25lIn0.e30.", "a.b.c"] {
        refuses(&scene.anonymous.with_token(garbage), Code::InvalidToken, &["does not accept this token", GATEWAY_AUDIENCE]).await;
    }
    // A valid token, with its end cut off, or with the signature of another one.
    let good = token_of(room, &scene.pods[0]).await;
    let other = token_of(room, &scene.pods[1]).await;
    let (head, _) = good.rsplit_once('.').expect("a signature");
    let (_, signature) = other.rsplit_once('.').expect("a signature");
    refuses(&scene.anonymous.with_token(&format!("{head}.{signature}")), Code::InvalidToken, &["does not accept this token"]).await;
    refuses(&scene.anonymous.with_token(head), Code::InvalidToken, &["does not accept this token"]).await;

    // For another audience: the governor, the API server, or an unknown one.
    let api_server = "https://kubernetes.default.svc.cluster.local";
    for audience in [GOVERNOR_AUDIENCE, api_server, "https://example.org"] {
        let token = token(room, "default", audience, Some(&scene.pods[0])).await;
        refuses(&scene.anonymous.with_token(&token), Code::WrongAudience, &[GATEWAY_AUDIENCE]).await;
    }
    // For the gateway, and bound to no object.
    for account in ["default", operator::GATEWAY] {
        let token = token(room, account, GATEWAY_AUDIENCE, None).await;
        refuses(&scene.anonymous.with_token(&token), Code::NotAPod, &["not bound to a pod", "agents' pods"]).await;
    }

    // Pods of users. The last one imitates an agent's pod as far as a user with rights on pods can.
    let plain = unscheduled_pod(room, json!({"name": "plain"})).await;
    refuses(&scene.agent_of(&plain).await, Code::NotAnAgent, &["uid", "Spillway created"]).await;
    let dressed =
        json!({"name": "dressed", "labels": scene.pods[0].metadata.labels, "ownerReferences": scene.pods[0].metadata.owner_references});
    let dressed = unscheduled_pod(room, dressed).await;
    refuses(&scene.agent_of(&dressed).await, Code::NotAnAgent, &["Spillway created"]).await;
    assert!(scene.goodbyes().await.is_empty());
    // Their own statements do not give them an identity either.
    let claims = scene
        .agent_of(&plain)
        .await
        .with_header(CALLER_NAMESPACE_HEADER, &room.namespace)
        .with_header(CALLER_POD_HEADER, &scene.pods[0].name_any());
    let claims = claims.with_header(CALLER_UID_HEADER, &scene.pods[0].uid().expect("a uid")).with_header(GATEWAY_HEADER, "counted");
    refuses(&claims, Code::NotAnAgent, &["Spillway created"]).await;

    // A pod that takes the name of an agent that ended.
    let ended = scene.pods[0].name_any();
    room.api::<Pod>().delete(&ended, &DeleteParams::default()).await.expect("deleted");
    eventually("the agent ended and its pod is gone", async || {
        let phase = room.api::<Agent>().get(&ended).await.map_err(|error| error.to_string())?.status.and_then(|status| status.phase);
        let pod = room.api::<Pod>().get_opt(&ended).await.map_err(|error| error.to_string())?;
        check_state(phase.is_some_and(|phase| phase.ended()) && pod.is_none(), || format!("{phase:?}"))
    })
    .await;
    room.pool_says("free", "Ready", "True").await;
    scene.wait_until_quiet().await;
    let squatter = unscheduled_pod(room, json!({"name": ended, "labels": scene.pods[0].metadata.labels})).await;
    refuses(&scene.agent_of(&squatter).await, Code::NotAnAgent, &["Spillway created"]).await;
    // The token of the ended agent, whose pod is deleted.
    refuses(&scene.anonymous.with_token(&good), Code::InvalidToken, &["does not accept this token"]).await;

    // No other agent was affected.
    let agent = scene.anonymous.with_token(&other);
    assert_eq!(agent.post("/agent/v1/report", report()).await.status, 200);
    for pod in ["plain", "dressed", ended.as_str()] {
        let _ = room.api::<Pod>().delete(pod, &DeleteParams::default().grace_period(0)).await; // the operator may have deleted it already
    }
    scene.room.close().await;
}

#[tokio::test]
async fn a_token_speaks_for_its_own_agent_whatever_else_is_said() {
    let scene = Scene::set("own", json!({"replicas": 3}), 3).await;
    let [first, second, third] = &scene.pods[..] else { panic!("three pods") };
    let told = Chronicle::start(&scene.room);
    // All ways to name another agent: internal headers of gateways, fields that the call does not have, the query.
    let agent = scene.agent_of(first).await;
    let posing = agent.with_header(CALLER_NAMESPACE_HEADER, &scene.room.namespace).with_header(CALLER_POD_HEADER, &second.name_any());
    let posing = posing.with_header(CALLER_UID_HEADER, &second.uid().expect("a uid")).with_header("x-remote-user", "system:admin");
    for field in ["agent", "pod", "uid", "name"] {
        let body = json!({"reason": "x", field: second.uid()}).to_string();
        let answer = scene.assert_refused(&posing, "POST", "/agent/v1/goodbye", body, Code::InvalidBody, &[field]).await;
        assert_eq!(answer.refusal().field.as_deref(), Some(field));
    }
    let answer = posing.post("/agent/v1/report", json!({"program": "running", "silentMs": 0, "action": "posing"})).await;
    assert_eq!(answer.status, 200);
    let path = format!("/agent/v1/goodbye?uid={}", second.uid().expect("a uid"));
    let answer = posing.call("POST", &path, json!({"reason": "mine alone"}).to_string()).await;
    assert_eq!((answer.status, answer.json()), (200, json!({})));
    assert_eq!(scene.goodbyes().await, [first.name_any()], "the answer came after it was stored, in the token's agent");
    told.wait_for_state(&first.name_any(), "gone", |state| state.phase == "Stopped" && state.ready == "SaidGoodbye").await;
    for pod in [second, third] {
        let states = told.states_of(&pod.name_any());
        assert!(states.iter().all(|state| state.phase == "Idle"), "{states:#?}");
        let action =
            scene.room.api::<Agent>().get(&pod.name_any()).await.expect("an Agent").status.and_then(|status| status.current_action);
        assert_ne!(action.as_deref(), Some("posing"));
    }
    scene.room.close().await;
}

#[tokio::test]
async fn nothing_left_of_an_ended_agent_may_act() {
    let scene =
        Scene::set("ended", json!({"replicas": 2, "supervision": {"heartbeatPeriodSeconds": 2, "heartbeatTimeoutSeconds": 6}}), 2).await;
    let (pod, other) = (&scene.pods[0], &scene.pods[1]);
    let name = pod.name_any();
    let told = Chronicle::start(&scene.room);
    let agent = scene.agent_of(pod).await;
    // Its sidecar is stopped. Another caller has its token, and makes calls that do not count as signs of life.
    let revision = agent.get("/agent/v1/wanted").await.json()["revision"].as_str().expect("a revision").to_owned();
    let link = stopped::Link::of(pod);
    let parked = tokio::spawn({
        let (agent, told, name) = (agent.clone(), told.clone(), name.clone());
        async move {
            let mut after = revision;
            // Until it is refused. The desired state changes meanwhile: the agent is to stop.
            loop {
                let answer = agent.get(&format!("/agent/v1/wanted?after={after}")).await;
                match answer.status {
                    200 => after = answer.json()["revision"].as_str().expect("a revision").to_owned(),
                    204 => {}
                    _ => return (answer, told.states_of(&name).last().cloned()),
                }
            }
        }
    });
    told.wait_for_state(&name, "given up", |state| state.phase == "Stale" && state.ready == "HeartbeatLost").await;
    told.wait_for_state(&name, "ended by force", |state| state.phase == "ForceStopped").await;
    // The first call after its phase is final. The API server may still accept the token.
    for (path, body) in [("/agent/v1/report", report().to_string()), ("/agent/v1/goodbye", goodbye())] {
        let (before, answer) = (scene.stored().await, agent.call("POST", path, body).await);
        let refusal = answer.refusal();
        assert_eq!((answer.status, refusal.code), (403, Code::AgentEnded), "{refusal}");
        assert!(refusal.message.contains("ended"), "{refusal}");
        let after = scene.stored().await;
        assert_eq!(before.iter().find(|(one, _)| *one == name), after.iter().find(|(one, _)| *one == name), "it stays as it ended");
    }
    assert!(scene.refused_so_far(Code::AgentEnded).await > 0);
    let (answer, when) = parked.await.expect("a task");
    assert_eq!(answer.refusal().code, Code::AgentEnded, "a call that waited is ended too; it was {when:?}");
    drop(link);
    // This is final for every check of the token: its pod is soon deleted, and cached answers expire.
    eventually("the API server does not vouch for the token any more", async || {
        let refusal = agent.post("/agent/v1/report", report()).await.refusal();
        assert!(matches!(refusal.code, Code::AgentEnded | Code::InvalidToken), "{refusal}");
        check_state(refusal.code == Code::InvalidToken, || refusal.to_string())
    })
    .await;
    let stays = scene.agent_of(other).await.post("/agent/v1/report", report()).await;
    assert_eq!(stays.status, 200, "{stays:?}");
    scene.room.close().await;
}

/// Ten minutes, the shortest lifetime of a token.
#[tokio::test]
async fn an_expired_token_is_refused() {
    let scene = Scene::set("expired", json!({"replicas": 1}), 1).await;
    let agent = scene.agent_of(&scene.pods[0]).await;
    assert_eq!(agent.post("/agent/v1/report", report()).await.status, 200);
    // The pool lists no Toolset. Of a caller that is not known this is not said.
    assert_eq!(agent.post("/mcp/any", json!({})).await.refusal().code, Code::ToolsDenied);
    within(Duration::from_secs(900), "the token has expired", async || {
        tokio::time::sleep(Duration::from_secs(5)).await;
        let answer = agent.post("/agent/v1/report", report()).await;
        check_state(answer.status == 401, || format!("{answer:?}"))
    })
    .await;
    let answer = scene.assert_refused(&agent, "POST", "/agent/v1/goodbye", goodbye(), Code::InvalidToken, &["expired"]).await;
    assert_eq!(answer.status, 401);
    let refusal = agent.post("/mcp/any", json!({})).await.refusal();
    assert!(refusal.code == Code::InvalidToken && refusal.message.contains("expired"), "{refusal}");
    assert_eq!(scene.agent_of(&scene.pods[0]).await.post("/agent/v1/report", report()).await.status, 200, "a new one is good");
    scene.room.close().await;
}

#[tokio::test]
async fn the_governor_listens_to_gateways_only() {
    let scene = Scene::set("governor", json!({"replicas": 1}), 1).await;
    let room = &scene.room;
    let pod = &scene.pods[0];
    let somebody = Caller::anonymous_at_governor(room).await;
    // With all headers of a gateway.
    let somebody = somebody.with_header(CALLER_NAMESPACE_HEADER, &room.namespace).with_header(CALLER_POD_HEADER, &pod.name_any());
    let somebody = somebody.with_header(CALLER_UID_HEADER, &pod.uid().expect("a uid")).with_header(GATEWAY_HEADER, "counted");
    let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": "other"}})).expect("an account");
    room.api::<ServiceAccount>().create(&PostParams::default(), &account).await.expect("an account");
    let cases = [
        (None, Code::NoToken),
        (Some("garbage".to_owned()), Code::InvalidToken),
        (Some(token_of(room, pod).await), Code::WrongAudience),
        (Some(token(room, operator::GATEWAY, GATEWAY_AUDIENCE, None).await), Code::WrongAudience),
        (Some(token(room, "default", GOVERNOR_AUDIENCE, None).await), Code::NotAllowed),
        (Some(token(room, "default", GOVERNOR_AUDIENCE, Some(pod)).await), Code::NotAllowed),
        (Some(token(room, "other", GOVERNOR_AUDIENCE, None).await), Code::NotAllowed),
    ];
    let before = scene.stored().await;
    for (token, code) in &cases {
        let caller = token.as_ref().map_or_else(|| somebody.clone(), |token| somebody.with_token(token));
        for row in &ACCESS_TABLE {
            let answer = caller.call(row.method, &row.path.replace("{}", "x"), goodbye()).await;
            let refusal = answer.refusal();
            assert_eq!((answer.status, refusal.code), (code.status(), *code), "{} {}: {refusal}", row.method, row.path);
        }
        if *code == Code::NotAllowed {
            let said = caller.post("/agent/v1/goodbye", json!({"reason": "x"})).await.refusal();
            assert!(said.message.contains("gateways' ServiceAccount"), "{said}");
        }
    }
    assert_eq!(scene.stored().await, before, "nothing changed");
    // A gateway that names no agent is refused too, and so is one that names a pod that is no agent's.
    let gateway = Caller::anonymous_at_governor(room).await.with_token(&token(room, operator::GATEWAY, GOVERNOR_AUDIENCE, None).await);
    let refusal = gateway.post("/agent/v1/report", report()).await.refusal();
    assert_eq!((refusal.code, refusal.field.as_deref()), (Code::InvalidBody, Some(GATEWAY_HEADER)));
    let named = |uid: &str, name: &str| {
        let gateway = gateway.with_header(GATEWAY_HEADER, "counted").with_header(CALLER_NAMESPACE_HEADER, &room.namespace);
        gateway.with_header(CALLER_POD_HEADER, name).with_header(CALLER_UID_HEADER, uid)
    };
    let uid = pod.uid().expect("a uid");
    for (uid, name) in [("another", pod.name_any().as_str()), (&uid, "another")] {
        let refusal = named(uid, name).post("/agent/v1/report", report()).await.refusal();
        assert_eq!(refusal.code, Code::NotAnAgent, "{refusal}");
    }
    assert_eq!(named(&uid, &pod.name_any()).post("/agent/v1/report", report()).await.status, 200);
    assert_eq!(scene.stored().await, before, "and nothing changed");
    scene.room.close().await;
}
