//! Who may call what: an agent is its pod's uid, as the API server vouches for it, and nothing else. Whoever is refused is
//! told why and what would help, is counted, and has changed nothing.

use std::time::Duration;

use bytes::Bytes;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::ResourceExt;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};
use spillway::api::Agent;
use spillway::wire::access::{Caller as Who, RequestMatch, TABLE, find};
use spillway::wire::body::MAX_BYTES;
use spillway::wire::governor::{CALLER_NAMESPACE, CALLER_POD, CALLER_UID, GATEWAY};
use spillway::wire::{Code, GATEWAY_AUDIENCE, GOVERNOR_AUDIENCE};

use crate::support::caller::{Answer, Caller, report, token, token_of};
use crate::support::fleet::{Chronicle, Fleet};
use crate::support::schema::Schema;
use crate::support::{Operator, TestNamespace, eventually, operator, seen, stopped, within};

/// A room with a pool of agents at rest, and the gateway they call.
struct Scene {
    room: TestNamespace,
    gateway: Operator,
    _operator: Operator,
    /// The agents' pods.
    pods: Vec<Pod>,
    /// Somebody without a token, at the gateway.
    nobody: Caller,
}

impl Scene {
    async fn set(name: &str, pool: Value, agents: usize) -> Self {
        let room = TestNamespace::open(name).await;
        // Ours, to read what it counts.
        room.kill_gateway();
        let gateway = Operator::gateway(&room, "counted");
        let operator = room.operator("one");
        operator.leads(&room).await;
        room.apply_pool("free", pool).await;
        room.pool_says("free", "Ready", "True").await;
        Fleet::of(&room, agents).await;
        let pods = room.pods_ready(agents).await;
        let nobody = Caller::at_the_gateway(&room).await;
        let scene = Self { room, gateway, _operator: operator, pods, nobody };
        scene.rests().await;
        scene
    }

    /// Waits until nobody writes the Agents any more: what is told late, by design, has been told.
    async fn rests(&self) {
        eventually("the Agents are at rest", async || {
            let before = self.stored().await;
            tokio::time::sleep(Duration::from_secs(7)).await;
            let after = self.stored().await;
            seen(before == after, || format!("{before:?}, then {after:?}"))
        })
        .await;
    }

    async fn agent_of(&self, pod: &Pod) -> Caller {
        self.nobody.with(&token_of(&self.room, pod).await)
    }

    /// How many calls the gateway refused for this reason.
    async fn refused_so_far(&self, code: Code) -> u64 {
        let (_, text) = self.gateway.get("/metrics").await.expect("metrics");
        let lines = text.lines().filter(|line| line.starts_with("spillway_agent_calls_refused_total{"));
        let of_code = lines.filter(|line| line.contains(&format!("reason=\"{}\"", code.label())));
        of_code.map(|line| line.rsplit(' ').next().and_then(|count| count.parse::<u64>().ok()).expect("a count")).sum()
    }

    /// The Agents, as stored: the same text as long as nobody wrote them.
    async fn stored(&self) -> Vec<(String, String)> {
        let all = self.room.list::<Agent>().await;
        all.into_iter().map(|agent| (agent.name_any(), agent.resource_version().unwrap_or_default())).collect()
    }

    /// The call is refused with this code and these words, is counted, and changes nothing.
    async fn refuses(&self, caller: &Caller, method: &str, path: &str, body: impl Into<Bytes>, code: Code, words: &[&str]) -> Answer {
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

/// A goodbye: what would show in an Agent if it were heard.
fn goodbye() -> String {
    json!({"reason": "somebody else said it"}).to_string()
}

/// A pod of somebody's own that no node takes, so that it holds its name and a token's binding and runs nothing.
async fn somebodys_pod(room: &TestNamespace, metadata: Value) -> Pod {
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
        scene.refuses(caller, "POST", path, goodbye(), code, words).await;
    };
    refuses(&scene.nobody, Code::NoToken, &["Authorization: Bearer"]).await;
    refuses(&scene.nobody.saying("authorization", "Basic dTpw"), Code::NoToken, &["Authorization: Bearer"]).await;
    refuses(&scene.nobody.with(""), Code::NoToken, &["Authorization: Bearer"]).await;
    for garbage in ["garbage", "eyJhbGciOiJub25lIn0.e30.", "a.b.c"] {
        refuses(&scene.nobody.with(garbage), Code::InvalidToken, &["does not vouch", GATEWAY_AUDIENCE]).await;
    }
    // A true one, with its end cut off, or another's signature.
    let good = token_of(room, &scene.pods[0]).await;
    let other = token_of(room, &scene.pods[1]).await;
    let (head, _) = good.rsplit_once('.').expect("a signature");
    let (_, signature) = other.rsplit_once('.').expect("a signature");
    refuses(&scene.nobody.with(&format!("{head}.{signature}")), Code::InvalidToken, &["does not vouch"]).await;
    refuses(&scene.nobody.with(head), Code::InvalidToken, &["does not vouch"]).await;

    // For somebody else: the governor, the API server itself, nobody we know.
    let api_server = "https://kubernetes.default.svc.cluster.local";
    for audience in [GOVERNOR_AUDIENCE, api_server, "https://example.org"] {
        let token = token(room, "default", audience, Some(&scene.pods[0])).await;
        refuses(&scene.nobody.with(&token), Code::WrongAudience, &[GATEWAY_AUDIENCE]).await;
    }
    // For us, and bound to nothing.
    for account in ["default", operator::GATEWAY] {
        let token = token(room, account, GATEWAY_AUDIENCE, None).await;
        refuses(&scene.nobody.with(&token), Code::NotAPod, &["not bound to a pod", "agents' pods"]).await;
    }

    // Pods of people, the last one dressed as an agent's in every way that a person with rights on pods can.
    let plain = somebodys_pod(room, json!({"name": "plain"})).await;
    refuses(&scene.agent_of(&plain).await, Code::NotAnAgent, &["uid", "Spillway made"]).await;
    let dressed =
        json!({"name": "dressed", "labels": scene.pods[0].metadata.labels, "ownerReferences": scene.pods[0].metadata.owner_references});
    let dressed = somebodys_pod(room, dressed).await;
    refuses(&scene.agent_of(&dressed).await, Code::NotAnAgent, &["Spillway made"]).await;
    assert!(scene.goodbyes().await.is_empty());
    // Who they are does not follow from what they say, either.
    let claims = scene.agent_of(&plain).await.saying(CALLER_NAMESPACE, &room.namespace).saying(CALLER_POD, &scene.pods[0].name_any());
    let claims = claims.saying(CALLER_UID, &scene.pods[0].uid().expect("a uid")).saying(GATEWAY, "counted");
    refuses(&claims, Code::NotAnAgent, &["Spillway made"]).await;

    // A pod that takes the name of an agent that ended.
    let ended = scene.pods[0].name_any();
    room.api::<Pod>().delete(&ended, &DeleteParams::default()).await.expect("deleted");
    eventually("the agent ended and its pod is gone", async || {
        let phase = room.api::<Agent>().get(&ended).await.map_err(|error| error.to_string())?.status.and_then(|status| status.phase);
        let pod = room.api::<Pod>().get_opt(&ended).await.map_err(|error| error.to_string())?;
        seen(phase.is_some_and(|phase| phase.ended()) && pod.is_none(), || format!("{phase:?}"))
    })
    .await;
    room.pool_says("free", "Ready", "True").await;
    scene.rests().await;
    let squatter = somebodys_pod(room, json!({"name": ended, "labels": scene.pods[0].metadata.labels})).await;
    refuses(&scene.agent_of(&squatter).await, Code::NotAnAgent, &["Spillway made"]).await;
    // And the ended agent's own token, whose pod is gone.
    refuses(&scene.nobody.with(&good), Code::InvalidToken, &["does not vouch"]).await;

    // All that while nobody else was hurt.
    let agent = scene.nobody.with(&other);
    assert_eq!(agent.post("/agent/v1/report", report()).await.status, 200);
    for pod in ["plain", "dressed", ended.as_str()] {
        let _ = room.api::<Pod>().delete(pod, &DeleteParams::default().grace_period(0)).await; // the operator may have been quicker
    }
    scene.room.close().await;
}

#[tokio::test]
async fn a_token_speaks_for_its_own_agent_whatever_else_is_said() {
    let scene = Scene::set("own", json!({"replicas": 3}), 3).await;
    let [first, second, third] = &scene.pods[..] else { panic!("three pods") };
    let told = Chronicle::start(&scene.room);
    // Every way to name another: headers that gateways use among themselves, fields that the call does not take, the query.
    let agent = scene.agent_of(first).await;
    let posing = agent.saying(CALLER_NAMESPACE, &scene.room.namespace).saying(CALLER_POD, &second.name_any());
    let posing = posing.saying(CALLER_UID, &second.uid().expect("a uid")).saying("x-remote-user", "system:admin");
    for field in ["agent", "pod", "uid", "name"] {
        let body = json!({"reason": "x", field: second.uid()}).to_string();
        let answer = scene.refuses(&posing, "POST", "/agent/v1/goodbye", body, Code::InvalidBody, &[field]).await;
        assert_eq!(answer.refusal().field.as_deref(), Some(field));
    }
    let answer = posing.post("/agent/v1/report", json!({"program": "running", "silentMs": 0, "action": "posing"})).await;
    assert_eq!(answer.status, 200);
    let path = format!("/agent/v1/goodbye?uid={}", second.uid().expect("a uid"));
    let answer = posing.call("POST", &path, json!({"reason": "mine alone"}).to_string()).await;
    assert_eq!((answer.status, answer.json()), (200, json!({})));
    assert_eq!(scene.goodbyes().await, [first.name_any()], "the answer came after it was stored, in the token's agent");
    told.until(&first.name_any(), "gone", |state| state.phase == "Stopped" && state.ready == "SaidGoodbye").await;
    for pod in [second, third] {
        let states = told.of(&pod.name_any());
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
    // Its sidecar stands still; its token is in other hands, which say nothing that counts as a sign of life.
    let revision = agent.get("/agent/v1/wanted").await.json()["revision"].as_str().expect("a revision").to_owned();
    let link = stopped::Link::of(pod);
    let parked = tokio::spawn({
        let (agent, told, name) = (agent.clone(), told.clone(), name.clone());
        async move {
            let mut after = revision;
            // Until it is refused: what is wanted changes on the way (it is told to stop).
            loop {
                let answer = agent.get(&format!("/agent/v1/wanted?after={after}")).await;
                match answer.status {
                    200 => after = answer.json()["revision"].as_str().expect("a revision").to_owned(),
                    204 => {}
                    _ => return (answer, told.of(&name).last().cloned()),
                }
            }
        }
    });
    told.until(&name, "given up", |state| state.phase == "Stale" && state.ready == "HeartbeatLost").await;
    told.until(&name, "ended by force", |state| state.phase == "ForceStopped").await;
    // The first call after its phase is final. The token itself may still be good to the API server.
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
    // For ever, however the token is looked at: its pod is gone in a moment, and so are remembered answers.
    eventually("the API server does not vouch for the token any more", async || {
        let refusal = agent.post("/agent/v1/report", report()).await.refusal();
        assert!(matches!(refusal.code, Code::AgentEnded | Code::InvalidToken), "{refusal}");
        seen(refusal.code == Code::InvalidToken, || refusal.to_string())
    })
    .await;
    let stays = scene.agent_of(other).await.post("/agent/v1/report", report()).await;
    assert_eq!(stays.status, 200, "{stays:?}");
    scene.room.close().await;
}

/// Ten minutes: the API server gives no token for less.
#[tokio::test]
async fn an_expired_token_is_refused() {
    let scene = Scene::set("expired", json!({"replicas": 1}), 1).await;
    let agent = scene.agent_of(&scene.pods[0]).await;
    assert_eq!(agent.post("/agent/v1/report", report()).await.status, 200);
    within(Duration::from_secs(900), "the token is over", async || {
        tokio::time::sleep(Duration::from_secs(5)).await;
        let answer = agent.post("/agent/v1/report", report()).await;
        seen(answer.status == 401, || format!("{answer:?}"))
    })
    .await;
    let answer = scene.refuses(&agent, "POST", "/agent/v1/goodbye", goodbye(), Code::InvalidToken, &["expired"]).await;
    assert_eq!(answer.status, 401);
    assert_eq!(scene.agent_of(&scene.pods[0]).await.post("/agent/v1/report", report()).await.status, 200, "a new one is good");
    scene.room.close().await;
}

#[tokio::test]
async fn the_governor_listens_to_gateways_only() {
    let scene = Scene::set("governor", json!({"replicas": 1}), 1).await;
    let room = &scene.room;
    let pod = &scene.pods[0];
    let somebody = Caller::at_the_governor(room).await;
    // With everything that a gateway says.
    let somebody = somebody.saying(CALLER_NAMESPACE, &room.namespace).saying(CALLER_POD, &pod.name_any());
    let somebody = somebody.saying(CALLER_UID, &pod.uid().expect("a uid")).saying(GATEWAY, "counted");
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
        let caller = token.as_ref().map_or_else(|| somebody.clone(), |token| somebody.with(token));
        for row in &TABLE {
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
    // A gateway that does not say for whom it calls is refused too, and one that names somebody else's pod.
    let gateway = Caller::at_the_governor(room).await.with(&token(room, operator::GATEWAY, GOVERNOR_AUDIENCE, None).await);
    let refusal = gateway.post("/agent/v1/report", report()).await.refusal();
    assert_eq!((refusal.code, refusal.field.as_deref()), (Code::InvalidBody, Some(GATEWAY)));
    let named = |uid: &str, name: &str| {
        let gateway = gateway.saying(GATEWAY, "counted").saying(CALLER_NAMESPACE, &room.namespace);
        gateway.saying(CALLER_POD, name).saying(CALLER_UID, uid)
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

/// A body and the field that is wrong with it.
fn wrong_bodies() -> Vec<(&'static str, String, &'static str)> {
    let long = |length: usize| "x".repeat(length);
    let text = |value: Value| value.to_string();
    let mut all = Vec::new();
    for path in ["/agent/v1/register", "/agent/v1/report", "/agent/v1/goodbye", "/agent/v1/agents"] {
        for body in ["{", "nonsense", "[]", "7", "null", "\"text\"", "{} {}", "\u{0}"] {
            all.push((path, body.to_owned(), ""));
        }
        all.push((path, long(MAX_BYTES + 1), "(body)"));
        all.push((path, format!("{}{{}}", " ".repeat(MAX_BYTES)), "(body)"));
    }
    let mut of = |path, body: Value, field| all.push((path, text(body), field));
    of("/agent/v1/register", json!({}), "version");
    of("/agent/v1/register", json!({"version": 7}), "version");
    of("/agent/v1/register", json!({"version": long(65)}), "version");
    of("/agent/v1/register", json!({"version": "1", "name": "me"}), "name");
    of("/agent/v1/register", json!({"version": "1", "sandbox": {"tier": "x", "missing": ["a", 7]}}), "sandbox.missing[1]");
    of("/agent/v1/register", json!({"version": "1", "sandbox": {"tier": long(64)}}), "sandbox.tier");
    of("/agent/v1/register", json!({"version": "1", "sandbox": {"tier": "x", "missing": vec!["a"; 17]}}), "sandbox.missing");
    of("/agent/v1/report", json!({}), "program");
    of("/agent/v1/report", json!({"program": "running"}), "silentMs");
    of("/agent/v1/report", json!({"program": "dancing", "silentMs": 0}), "program");
    of("/agent/v1/report", json!({"program": "running", "silentMs": -1}), "silentMs");
    of("/agent/v1/report", json!({"program": "running", "silentMs": 1.5}), "silentMs");
    of("/agent/v1/report", json!({"program": "running", "silentMs": "0"}), "silentMs");
    of("/agent/v1/report", json!({"program": "running", "silentMs": 0, "silent_ms": 0}), "silent_ms");
    of("/agent/v1/report", json!({"program": "running", "silentMs": 0, "attached": "yes"}), "attached");
    of("/agent/v1/report", json!({"program": "running", "silentMs": 0, "action": long(257)}), "action");
    of("/agent/v1/report", json!({"program": "running", "silentMs": 0, "reachable": vec!["a"; 17]}), "reachable");
    of("/agent/v1/report", json!({"program": "running", "silentMs": 0, "reachable": [long(261)]}), "reachable");
    of("/agent/v1/goodbye", json!({}), "reason");
    of("/agent/v1/goodbye", json!({"reason": null}), "reason");
    of("/agent/v1/goodbye", json!({"reason": ["x"]}), "reason");
    of("/agent/v1/goodbye", json!({"reason": "x", "force": true}), "force");
    of("/agent/v1/goodbye", json!({"reason": long(1025)}), "reason");
    of("/agent/v1/agents", json!({}), "pool");
    of("/agent/v1/agents", json!({"pool": 7}), "pool");
    of("/agent/v1/agents", json!({"pool": "free", "replicas": 9}), "replicas");
    of("/agent/v1/agents", json!({"pool": long(64)}), "pool");
    of("/agent/v1/agents", json!({"pool": "free", "displayName": ""}), "displayName");
    all.push(("/agent/v1/goodbye", String::new(), "reason"));
    all.push(("/agent/v1/goodbye", r#"{"reason": "a", "reason": "b"}"#.to_owned(), "reason"));
    all.push(("/agent/v1/goodbye", "{\"reason\": \"\u{1}\"}".to_owned(), "reason"));
    all
}

#[tokio::test]
async fn a_body_that_is_not_what_the_call_takes_is_refused_by_its_field() {
    let scene = Scene::set("bodies", json!({"replicas": 2}), 2).await;
    let agents = [scene.agent_of(&scene.pods[0]).await, scene.agent_of(&scene.pods[1]).await];
    let mut wrong = Vec::new();
    let before = scene.stored().await;
    for (index, (path, body, field)) in wrong_bodies().into_iter().enumerate() {
        let (length, start) = (body.len(), body.chars().take(80).collect::<String>());
        // An agent may make twenty calls a second; the counting itself is not what is looked at here.
        tokio::time::sleep(Duration::from_millis(30)).await;
        let answer = agents[index % 2].saying("idempotency-key", "k").call("POST", path, body).await;
        let refusal = answer.refusal();
        let code = if length > MAX_BYTES { Code::BodyTooLarge } else { Code::InvalidBody };
        let named = refusal.field.as_deref().unwrap_or_default();
        let right = refusal.code == code && answer.status == 400 && (if field.is_empty() { !named.is_empty() } else { named == field });
        if !right || !refusal.message.contains(if code == Code::BodyTooLarge { "262144 bytes" } else { named }) {
            wrong.push(format!("{path} {start}: {} {refusal:?}, expected {field:?}", answer.status));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Not one byte too many, and read: what is wrong with it is its content.
    let just = format!("{{\"reason\": 7}}{}", " ".repeat(MAX_BYTES - 13));
    assert_eq!(just.len(), MAX_BYTES);
    scene.refuses(&agents[0], "POST", "/agent/v1/goodbye", just, Code::InvalidBody, &["reason"]).await;
    scene.refuses(&agents[0], "POST", "/agent/v1/goodbye", vec![b' '; MAX_BYTES + 1], Code::BodyTooLarge, &["262144"]).await;
    // Far too large: nobody reads that. Either it is refused or the connection is closed on it.
    match agents[1].try_call("POST", "/agent/v1/goodbye", vec![b' '; 64 * MAX_BYTES]).await {
        Ok(answer) => assert_eq!(answer.refusal().code, Code::BodyTooLarge),
        Err(closed) => assert!(!closed.contains("no answer came"), "{closed}"),
    }
    // A child needs a key.
    let child = json!({"pool": "free"}).to_string();
    let keyless = scene.refuses(&agents[0], "POST", "/agent/v1/agents", child.clone(), Code::InvalidBody, &["Idempotency-Key"]).await;
    assert_eq!(keyless.refusal().field.as_deref(), Some("Idempotency-Key"));
    let key = "k".repeat(129);
    scene.refuses(&agents[0].saying("idempotency-key", &key), "POST", "/agent/v1/agents", child, Code::InvalidBody, &["128"]).await;
    assert_eq!(scene.stored().await, before, "nothing changed");
    assert_eq!(agents[0].post("/agent/v1/report", report()).await.status, 200, "and both are as welcome as before");
    assert_eq!(agents[1].post("/agent/v1/report", report()).await.status, 200);
    scene.room.close().await;
}

#[tokio::test]
async fn the_table_of_calls_is_kept_row_by_row() {
    let scene = Scene::set("table", json!({"replicas": 1}), 1).await;
    let agent = scene.agent_of(&scene.pods[0]).await;
    for row in &TABLE {
        let path = row.path.replace("{}", "x");
        let refuses = async |code: Code, words: &[&str]| {
            scene.refuses(&agent, row.method, &path, "[]", code, words).await;
        };
        match (row.callers.contains(&Who::Link), row.served) {
            (false, _) => refuses(Code::NotAllowed, &["agents may not"]).await,
            (true, false) => refuses(Code::NotBuilt, &[row.method, row.path, "does not serve"]).await,
            // Past the table: only what it says is wrong, or nothing is.
            // There may be nothing to tell.
            (true, true) if row.method == "GET" => assert!([200, 204].contains(&agent.get(&path).await.status), "{path}"),
            (true, true) => refuses(Code::InvalidBody, &["(body)"]).await,
        }
        // Without a token nobody learns even that.
        scene.refuses(&scene.nobody, row.method, &path, "[]", Code::NoToken, &["Bearer"]).await;
        for method in
            ["GET", "POST", "PUT", "PATCH", "DELETE"].into_iter().filter(|method| matches!(find(method, &path), RequestMatch::OtherMethod))
        {
            let answer = scene.refuses(&agent, method, &path, "{}", Code::WrongMethod, &[row.method]).await;
            let allow = answer.headers.get("allow").and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
            assert!(allow.contains(row.method), "{method} {path}: Allow is {allow:?}");
        }
    }
    let nowhere = [
        "/",
        "/agent",
        "/agent/v1",
        "/agent/v1/",
        "/agent/v2/report",
        "/agent/v1/report/",
        "//agent/v1/report",
        "/agent/v1/../v1/report",
        "/agent/v1/%72eport",
        "/agent/v1/work/u/complete/now",
        "/AGENT/v1/report",
        "/metrics",
        "/readyz",
        "/openapi.json/",
    ];
    for path in nowhere {
        for method in ["GET", "POST"] {
            scene.refuses(&agent, method, path, "{}", Code::NoSuchCall, &["/openapi.json"]).await;
        }
    }
    scene.room.close().await;
}

#[tokio::test]
async fn the_document_says_what_is_served_and_answers_are_as_it_says() {
    let pool = json!({"replicas": 2, "may": {"spawnIn": ["free"]}, "bulkhead": {"maxChildAgents": 1}});
    let scene = Scene::set("document", pool, 2).await;
    let answer = scene.nobody.get("/openapi.json").await;
    assert_eq!((answer.status, &answer.headers["content-type"]), (200, &"application/json".parse().expect("a value")));
    let document = answer.json();
    assert!(document["openapi"].as_str().is_some_and(|version| version.starts_with("3.1.")), "{document}");
    let other_method = scene.nobody.post("/openapi.json", json!({})).await;
    assert_eq!((other_method.status, other_method.refusal().code), (405, Code::WrongMethod));

    let paths = document["paths"].as_object().expect("paths");
    let agent = scene.agent_of(&scene.pods[0]).await;
    for (path, methods) in paths {
        for (method, _) in methods.as_object().expect("methods") {
            let answer = agent.call(&method.to_uppercase(), path, "[]").await;
            assert!(![404, 405, 501].contains(&answer.status), "{method} {path} is in the document: {answer:?}");
        }
    }
    let served = TABLE.iter().filter(|row| row.served && (row.callers.contains(&Who::Link) || row.callers.contains(&Who::External)));
    for row in served.clone() {
        assert!(paths.get(row.path).is_some_and(|methods| methods.get(row.method.to_lowercase()).is_some()), "{} {}", row.method, row.path);
    }
    let all: usize = paths.values().map(|methods| methods.as_object().map_or(0, serde_json::Map::len)).sum();
    assert_eq!(all, served.count(), "and nothing else is");

    // What is sent fits what the document asks for, and what comes back is what it promises.
    let schema = |path: &str, method: &str, pointer: &str| document["paths"][path][method].pointer(pointer).cloned();
    let exchange = async |caller: &Caller, path: &str, body: Option<Value>, status: u16| {
        let method = if body.is_some() { "post" } else { "get" };
        let told = path.split('?').next().expect("a path");
        if let Some(body) = &body
            && status < 400
        {
            let asked = schema(told, method, "/requestBody/content/application~1json/schema").expect("a body");
            assert_eq!(Schema { document: &document, schema: &asked }.check(body), [""; 0], "{path}");
        }
        let answer = caller.call(&method.to_uppercase(), path, body.map(|body| body.to_string()).unwrap_or_default()).await;
        assert_eq!(answer.status, status, "{path}: {answer:?}");
        let promised =
            schema(told, method, &format!("/responses/{status}")).unwrap_or_else(|| panic!("{path}: no {status} in the document"));
        match promised.pointer("/content/application~1json/schema") {
            Some(promised) => {
                assert_eq!(answer.headers["content-type"], "application/json");
                assert_eq!(Schema { document: &document, schema: promised }.check(&answer.json()), [""; 0], "{path}: {}", answer.json());
            }
            None => assert!(answer.body.is_empty(), "{path}: {answer:?}"),
        }
        answer
    };
    let sandbox = json!({"tier": "Pod", "missing": ["Landlock"]});
    exchange(&agent, "/agent/v1/register", Some(json!({"version": "1"})), 200).await;
    exchange(&agent, "/agent/v1/register", Some(json!({"version": "1", "sandbox": sandbox})), 200).await;
    let whole =
        json!({"program": "frozen", "silentMs": 5, "frozenMs": 5, "action": "tests", "attached": true, "reachable": [], "noticesSeen": 0});
    exchange(&agent, "/agent/v1/report", Some(whole), 200).await;
    let wanted = exchange(&agent, "/agent/v1/report", Some(report()), 200).await.json();
    let again = exchange(&agent, "/agent/v1/wanted", None, 200).await.json();
    assert_eq!(again, wanted, "it is a state, however one asks");
    let after = format!("/agent/v1/wanted?after={}", wanted["revision"].as_str().expect("a revision"));
    exchange(&agent, &after, None, 204).await;

    let still = stopped::Link::of(&scene.pods[0]);
    let spawn = agent.saying("idempotency-key", "first");
    let child = exchange(&spawn, "/agent/v1/agents", Some(json!({"pool": "free", "displayName": "helper"})), 200).await.json();
    let same = exchange(&spawn, "/agent/v1/agents", Some(json!({"pool": "free", "displayName": "helper"})), 200).await.json();
    assert_eq!(child, same, "a repetition is no second child");
    exchange(&spawn, "/agent/v1/agents", Some(json!({"pool": "free", "displayName": "other"})), 409).await;
    exchange(&agent.saying("idempotency-key", "second"), "/agent/v1/agents", Some(json!({"pool": "free"})), 403).await;
    exchange(&agent.saying("idempotency-key", "third"), "/agent/v1/agents", Some(json!({"pool": "elsewhere"})), 403).await;
    // A notice came of that: the pool allows one child. The pod's own sidecar, had it seen it first, would have settled it.
    let noticed = eventually("the warning is among what is wanted", async || {
        let wanted = agent.post("/agent/v1/report", report()).await.json();
        seen(wanted["notices"].as_array().is_some_and(|all| !all.is_empty()), || wanted.to_string()).map(|()| wanted)
    })
    .await;
    let promised = schema("/agent/v1/report", "post", "/responses/200/content/application~1json/schema").expect("an answer");
    assert_eq!(Schema { document: &document, schema: &promised }.check(&noticed), [""; 0]);
    drop(still);

    exchange(&scene.nobody, "/agent/v1/report", Some(report()), 401).await;
    exchange(&agent, "/agent/v1/report", Some(json!({})), 400).await;
    let leaving = scene.agent_of(&scene.pods[1]).await;
    exchange(&leaving, "/agent/v1/goodbye", Some(json!({"reason": "done"})), 200).await;
    // More at once than an agent may.
    let polls: Vec<_> =
        (0..40).map(|_| agent.clone()).map(|agent| tokio::spawn(async move { agent.get("/agent/v1/wanted").await })).collect();
    let mut statuses = Vec::new();
    for poll in polls {
        let answer = poll.await.expect("a task");
        statuses.push(answer.status);
        if answer.status == 429 {
            let promised = schema("/agent/v1/wanted", "get", "/responses/429/content/application~1json/schema").expect("an answer");
            assert_eq!(Schema { document: &document, schema: &promised }.check(&answer.json()), [""; 0]);
            assert!(answer.headers.contains_key("retry-after"));
        }
    }
    assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
    room_is_whole(&scene).await;
    scene.room.close().await;
}

/// Both places of the pool are taken, and the child lives beside them.
async fn room_is_whole(scene: &Scene) {
    Fleet::of(&scene.room, 3).await;
    let manual = scene.room.list::<Agent>().await.into_iter().filter(|agent| agent.spec.parent_ref.is_some()).count();
    assert_eq!(manual, 1);
}
