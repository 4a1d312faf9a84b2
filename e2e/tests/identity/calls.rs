//! The calls of the agents' API at a gateway: their table, their document, their bodies. `identity.rs` tests who may
//! call.

use spillway::wire::artifact::ARTIFACT_PATH_PREFIX;

use super::*;

/// A body and the field that is wrong with it.
fn wrong_bodies() -> Vec<(&'static str, String, &'static str)> {
    let long = |length: usize| "x".repeat(length);
    let text = |value: Value| value.to_string();
    let mut all = Vec::new();
    for path in ["/agent/v1/register", "/agent/v1/report", "/agent/v1/goodbye", "/agent/v1/agents"] {
        for body in ["{", "nonsense", "[]", "7", "null", "\"text\"", "{} {}", "\u{0}"] {
            all.push((path, body.to_owned(), ""));
        }
        all.push((path, long(MAX_BODY_BYTES + 1), "(body)"));
        all.push((path, format!("{}{{}}", " ".repeat(MAX_BODY_BYTES)), "(body)"));
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
        // An agent may make twenty calls a second. This test does not check that limit.
        tokio::time::sleep(Duration::from_millis(30)).await;
        let answer = agents[index % 2].with_header("idempotency-key", "k").call("POST", path, body).await;
        let refusal = answer.refusal();
        let code = if length > MAX_BODY_BYTES { Code::BodyTooLarge } else { Code::InvalidBody };
        let named = refusal.field.as_deref().unwrap_or_default();
        let right = refusal.code == code && answer.status == 400 && (if field.is_empty() { !named.is_empty() } else { named == field });
        if !right || !refusal.message.contains(if code == Code::BodyTooLarge { "262144 bytes" } else { named }) {
            wrong.push(format!("{path} {start}: {} {refusal:?}, expected {field:?}", answer.status));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // A body of exactly the longest size is read, and refused for its content.
    let just = format!("{{\"reason\": 7}}{}", " ".repeat(MAX_BODY_BYTES - 13));
    assert_eq!(just.len(), MAX_BODY_BYTES);
    scene.assert_refused(&agents[0], "POST", "/agent/v1/goodbye", just, Code::InvalidBody, &["reason"]).await;
    scene.assert_refused(&agents[0], "POST", "/agent/v1/goodbye", vec![b' '; MAX_BODY_BYTES + 1], Code::BodyTooLarge, &["262144"]).await;
    // A far too large body is not read: it is refused, or the connection is closed.
    match agents[1].try_call("POST", "/agent/v1/goodbye", vec![b' '; 64 * MAX_BODY_BYTES]).await {
        Ok(answer) => assert_eq!(answer.refusal().code, Code::BodyTooLarge),
        Err(closed) => assert!(!closed.contains("no answer came"), "{closed}"),
    }
    // A child needs a key.
    let child = json!({"pool": "free"}).to_string();
    let keyless =
        scene.assert_refused(&agents[0], "POST", "/agent/v1/agents", child.clone(), Code::InvalidBody, &["Idempotency-Key"]).await;
    assert_eq!(keyless.refusal().field.as_deref(), Some("Idempotency-Key"));
    let key = "k".repeat(129);
    scene
        .assert_refused(&agents[0].with_header("idempotency-key", &key), "POST", "/agent/v1/agents", child, Code::InvalidBody, &["128"])
        .await;
    assert_eq!(scene.stored().await, before, "nothing changed");
    assert_eq!(agents[0].post("/agent/v1/report", report()).await.status, 200, "and both are as welcome as before");
    assert_eq!(agents[1].post("/agent/v1/report", report()).await.status, 200);
    scene.room.close().await;
}

#[tokio::test]
async fn the_table_of_calls_is_kept_row_by_row() {
    let scene = Scene::set("table", json!({"replicas": 1}), 1).await;
    let agent = scene.agent_of(&scene.pods[0]).await;
    for row in &ACCESS_TABLE {
        let path = row.path.replace("{}", "x");
        let refuses = async |code: Code, words: &[&str]| {
            scene.assert_refused(&agent, row.method, &path, "[]", code, words).await;
        };
        match (row.callers.contains(&Who::Link), row.served) {
            (false, _) => refuses(Code::NotAllowed, &["agents may not"]).await,
            (true, false) => refuses(Code::NotBuilt, &[row.method, row.path, "does not serve"]).await,
            // The gateway of this test has no store.
            (true, true) if row.path.starts_with(ARTIFACT_PATH_PREFIX) => refuses(Code::NotBuilt, &["artifacts.enabled"]).await,
            // The call passes the table: only its body can be wrong.
            // There may be no news.
            (true, true) if row.method == "GET" => assert!([200, 204].contains(&agent.get(&path).await.status), "{path}"),
            // A connection has no body to check before its destination.
            (true, true) if row.call == Call::Connect => refuses(Code::InvalidBody, &["spillway-destination"]).await,
            (true, true) => refuses(Code::InvalidBody, &["(body)"]).await,
        }
        // Without a token a caller does not learn even that.
        scene.assert_refused(&scene.anonymous, row.method, &path, "[]", Code::NoToken, &["Bearer"]).await;
        for method in
            ["GET", "POST", "PUT", "PATCH", "DELETE"].into_iter().filter(|method| matches!(find(method, &path), RequestMatch::OtherMethod))
        {
            let answer = scene.assert_refused(&agent, method, &path, "{}", Code::WrongMethod, &[row.method]).await;
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
            scene.assert_refused(&agent, method, path, "{}", Code::NoSuchCall, &["/openapi.json"]).await;
        }
    }
    scene.room.close().await;
}

#[tokio::test]
async fn the_document_says_what_is_served_and_answers_are_as_it_says() {
    let pool = json!({"replicas": 2, "may": {"spawnIn": ["free"]}, "bulkhead": {"maxChildAgents": 1}});
    let scene = Scene::set("document", pool, 2).await;
    let answer = scene.anonymous.get("/openapi.json").await;
    assert_eq!((answer.status, &answer.headers["content-type"]), (200, &"application/json".parse().expect("a value")));
    let document = answer.json();
    assert!(document["openapi"].as_str().is_some_and(|version| version.starts_with("3.1.")), "{document}");
    let other_method = scene.anonymous.post("/openapi.json", json!({})).await;
    assert_eq!((other_method.status, other_method.refusal().code), (405, Code::WrongMethod));

    let paths = document["paths"].as_object().expect("paths");
    let agent = scene.agent_of(&scene.pods[0]).await;
    for (path, methods) in paths {
        for (method, _) in methods.as_object().expect("methods") {
            let answer = agent.call(&method.to_uppercase(), path, "[]").await;
            // The gateway of this test has no store of artifacts.
            let missing = path.starts_with(ARTIFACT_PATH_PREFIX) && answer.status == 501;
            assert!(missing || ![404, 405, 501].contains(&answer.status), "{method} {path} is in the document: {answer:?}");
        }
    }
    let served = ACCESS_TABLE.iter().filter(|row| row.served && (row.callers.contains(&Who::Link) || row.callers.contains(&Who::External)));
    for row in served.clone() {
        assert!(paths.get(row.path).is_some_and(|methods| methods.get(row.method.to_lowercase()).is_some()), "{} {}", row.method, row.path);
    }
    let all: usize = paths.values().map(|methods| methods.as_object().map_or(0, serde_json::Map::len)).sum();
    assert_eq!(all, served.count(), "and nothing else is");

    // Requests and answers fit the document's schemas.
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
    let spawn = agent.with_header("idempotency-key", "first");
    let child = exchange(&spawn, "/agent/v1/agents", Some(json!({"pool": "free", "displayName": "helper"})), 200).await.json();
    let same = exchange(&spawn, "/agent/v1/agents", Some(json!({"pool": "free", "displayName": "helper"})), 200).await.json();
    assert_eq!(child, same, "a repetition is no second child");
    exchange(&spawn, "/agent/v1/agents", Some(json!({"pool": "free", "displayName": "other"})), 409).await;
    exchange(&agent.with_header("idempotency-key", "second"), "/agent/v1/agents", Some(json!({"pool": "free"})), 403).await;
    exchange(&agent.with_header("idempotency-key", "third"), "/agent/v1/agents", Some(json!({"pool": "elsewhere"})), 403).await;
    // This made a notice, because the pool allows one child. The pod's own sidecar may have acknowledged it first.
    let noticed = eventually("the desired state has the warning", async || {
        let wanted = agent.post("/agent/v1/report", report()).await.json();
        check_state(wanted["notices"].as_array().is_some_and(|all| !all.is_empty()), || wanted.to_string()).map(|()| wanted)
    })
    .await;
    let promised = schema("/agent/v1/report", "post", "/responses/200/content/application~1json/schema").expect("an answer");
    assert_eq!(Schema { document: &document, schema: &promised }.check(&noticed), [""; 0]);
    drop(still);

    exchange(&scene.anonymous, "/agent/v1/report", Some(report()), 401).await;
    exchange(&agent, "/agent/v1/report", Some(json!({})), 400).await;
    let leaving = scene.agent_of(&scene.pods[1]).await;
    exchange(&leaving, "/agent/v1/goodbye", Some(json!({"reason": "done"})), 200).await;
    // More calls at once than an agent may make.
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
    check_agents_complete(&scene).await;
    scene.room.close().await;
}

/// The pool has both of its agents, and the child in addition.
async fn check_agents_complete(scene: &Scene) {
    Fleet::wait_for_idle(&scene.room, 3).await;
    let manual = scene.room.list::<Agent>().await.into_iter().filter(|agent| agent.spec.parent_ref.is_some()).count();
    assert_eq!(manual, 1);
}
