//! The commands that only read: `chat` until it is attached, `logs`, `explain`, `top`. Sends nothing that changes an object.

use super::*;
use kubectl_spillway::input::Explainable;
use kubectl_spillway::{chat, explain, logs, top};

fn chatting(mode: &str) -> Value {
    let mut pool = pool();
    pool["spec"]["mode"] = json!(mode);
    pool
}

#[tokio::test]
async fn chat_finds_the_one_agent_of_a_chat_pool() {
    let (cluster, mut server) = fake();
    let arguments = chat::Arguments { name: NamedKind::Either("p".into()) };
    let talk = async {
        let agent_first = server.answer(404, refusal(404, "NotFound", "m", "agents", "p")).await;
        let then_pool = server.answer(200, chatting("Chat")).await;
        let starting = agent("b", "u2", json!({"phase": "Spawning"}));
        let agents = server.answer(200, list(vec![agent("a", "u1", serving("a")), starting])).await;
        [agent_first.line, then_pool.line, agents.line]
    };
    let (session, lines) = tokio::join!(chat::run(&cluster, &arguments), talk);
    assert_eq!(lines, [format!("GET {AGENTS}/p"), format!("GET {POOLS}/p"), format!("GET {AGENTS}?&fieldSelector=spec.poolRef.name%3Dp")]);
    assert_eq!(session.expect("a session").pod, "a");
}

#[tokio::test]
async fn chat_refuses_a_pool_that_works_from_queues() {
    let (cluster, mut server) = fake();
    let arguments = chat::Arguments { name: NamedKind::Agent("a".into()) };
    let talk = async { (server.answer(200, agent("a", "u1", serving("a"))).await, server.answer(200, chatting("Perseverance")).await) };
    let (session, _) = tokio::join!(chat::run(&cluster, &arguments), talk);
    let words = session.expect_err("refused").to_string();
    assert!(words.starts_with("spec.mode of pool \"p\" is Perseverance"), "{words}");
    let arguments = chat::Arguments { name: NamedKind::Either("x".into()) };
    let talk = async {
        server.answer(404, refusal(404, "NotFound", "m", "agents", "x")).await;
        server.answer(404, refusal(404, "NotFound", "m", "agentpools", "x")).await;
    };
    let (session, ()) = tokio::join!(chat::run(&cluster, &arguments), talk);
    let words = session.expect_err("refused").to_string();
    assert!(words.starts_with("no Agent and no AgentPool \"x\" in namespace \"n\""), "{words}");
}

#[tokio::test]
async fn logs_asks_for_what_was_asked_and_makes_it_safe() {
    let (cluster, mut server) = fake();
    let arguments = logs::Arguments {
        name: Some(NamedKind::Agent("a".into())),
        follow: true,
        tail: Some(5),
        since: Some(Duration::from_secs(300)),
        link: true,
        ..logs::Arguments::default()
    };
    let (plan, _) = tokio::join!(logs::plan(&cluster, &arguments), server.answer(200, agent("a", "u1", serving("a"))));
    let (plan, mut heard) = (plan.expect("a plan"), HeardRequest::default());
    let talk = server.answer_bytes(200, b"one\r\n\x1b[31mtwo\x1b[0m \x1b[2J\nthree".to_vec());
    let ((), seen) = tokio::join!(logs::run(&cluster, &plan, &mut heard), talk);
    assert_eq!(seen.line, "GET /api/v1/namespaces/n/pods/a/log?&container=link&follow=true&sinceSeconds=300&tailLines=5");
    assert_eq!(heard.told, Output::of("one\ntwo \u{fffd}[2J\nthree\n".into()));
}

#[tokio::test]
async fn logs_of_a_pool_are_merged_and_what_is_gone_is_told() {
    let (cluster, mut server) = fake();
    let arguments = logs::Arguments { pool: Some("p".into()), ..logs::Arguments::default() };
    let mut ended =
        agent("b", "u2", json!({"phase": "Stopped", "podRef": {"name": "b", "uid": "x"}, "conditions": [condition("Ready", "False", 1)]}));
    ended["spec"]["displayName"] = json!("wise-carp");
    let agents = list(vec![agent("a", "u1", serving("a")), ended]);
    let (plan, _) = tokio::join!(logs::plan(&cluster, &arguments), server.answer(200, agents));
    let (plan, mut heard) = (plan.expect("a plan"), HeardRequest::default());
    let talk = async {
        server.answer_bytes(200, b"one\ntwo\n".to_vec()).await;
        server.answer(404, refusal(404, "NotFound", "pods \"b\" not found", "pods", "b")).await;
        let mut worked = item("i", json!({"phase": "Failed"}));
        worked["status"]["attemptHistory"] =
            json!([{"epoch": 1, "agent": "b", "verb": "Fail", "startTime": "2026-01-01T00:00:00Z", "endTime": "2026-01-01T00:01:00Z"}]);
        server.answer(200, list(vec![worked])).await;
    };
    let ((), ()) = tokio::join!(logs::run(&cluster, &plan, &mut heard), talk);
    assert_eq!(heard.told.out, "[calm-otter] one\n[calm-otter] two\n");
    assert_eq!(
        heard.told.err,
        "error: agent \"b\" has ended, and its log is gone with its pod (Stopped, R: m). The attempts of its last item keep the end \
         of the program's output: `kubectl spillway explain item/i -n n -o json`\n"
    );
    assert!(heard.told.failed);
}

#[tokio::test]
async fn logs_of_a_pools_name_lists_its_agents() {
    let (cluster, mut server) = fake();
    let arguments = logs::Arguments { name: Some(NamedKind::Either("p".into())), ..logs::Arguments::default() };
    let talk = async {
        server.answer(404, refusal(404, "NotFound", "m", "agents", "p")).await;
        server.answer(200, pool()).await;
        server.answer(200, list(vec![agent("a", "u1", serving("a"))])).await;
    };
    let (plan, ()) = tokio::join!(logs::plan(&cluster, &arguments), talk);
    let words = plan.expect_err("refused").to_string();
    assert!(words.starts_with("\"p\" is a pool; name one of its agents: a (calm-otter, Idle). Or write --pool p"), "{words}");
}

#[tokio::test]
async fn explain_reads_all_around_an_agent_and_says_what_it_could_not_read() {
    let (cluster, mut server) = fake();
    let arguments = explain::Arguments { name: Explainable::Fleet(NamedKind::Either("a".into())), output: None };
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "uid": "another"}});
    let events = json!({"apiVersion": "v1", "kind": "EventList", "metadata": {}, "items": [
        {"metadata": {"name": "e"}, "involvedObject": {"kind": "Agent", "name": "a"}, "type": "Warning", "reason": "QuotaExceeded", "message": "m"}]});
    let talk = async {
        let read = server.answer(200, agent("a", "u1", serving("a"))).await;
        let pool = server.answer(403, refusal(403, "Forbidden", "User \"u\" cannot get", "agentpools", "p")).await;
        let pod = server.answer(200, pod).await;
        let first = server.answer(200, events).await;
        let second = server.answer(200, json!({"apiVersion": "v1", "kind": "EventList", "metadata": {}, "items": []})).await;
        [read.line, pool.line, pod.line, first.line, second.line]
    };
    let (facts, lines) = tokio::join!(explain::run(&cluster, &arguments), talk);
    let events = "/api/v1/namespaces/n/events?&fieldSelector=involvedObject.uid%3D";
    assert_eq!(
        lines,
        [
            format!("GET {AGENTS}/a"),
            format!("GET {POOLS}/p"),
            "GET /api/v1/namespaces/n/pods/a".to_owned(),
            format!("GET {events}u1"),
            format!("GET {events}pod-uid"),
        ]
    );
    let told = explain::render(&explain::report(&facts.expect("facts")), None, jiff::Timestamp::UNIX_EPOCH).expect("text");
    assert!(told.out.contains("Pod   a: gone\n") && told.out.contains("Warning   agent/a   QuotaExceeded   m\n"), "{}", told.out);
    assert!(told.out.ends_with("What to do\n  nothing (AsDesired): no action is needed\n"), "{}", told.out);
    assert_eq!(told.err, "note: an object could not be read: from server (Forbidden): User \"u\" cannot get\n");
}

#[tokio::test]
async fn explain_reads_a_pool_with_its_agents() {
    let (cluster, mut server) = fake();
    let arguments = explain::Arguments { name: Explainable::Fleet(NamedKind::Pool("p".into())), output: Some(explain::Format::Json) };
    let mut blocked = pool();
    blocked["status"] = json!({"desired": 2, "agents": 1, "conditions": [condition("Blocked", "True", 1)]});
    let talk = async {
        server.answer(200, blocked).await;
        server.answer(200, list(vec![agent("a", "u1", json!({"phase": "Spawning"}))])).await;
        server.answer(403, refusal(403, "Forbidden", "no events", "events", "")).await
    };
    let (facts, last) = tokio::join!(explain::run(&cluster, &arguments), talk);
    assert_eq!(last.line, "GET /api/v1/namespaces/n/events?&fieldSelector=involvedObject.uid%3Dpool-uid");
    let told = explain::render(&explain::report(&facts.expect("facts")), arguments.output, jiff::Timestamp::UNIX_EPOCH).expect("text");
    let json: Value = serde_json::from_str(&told.out).expect("JSON");
    assert_eq!(json["state"], json!("wants 2, has 1. Blocked is True, R: m"));
    assert_eq!((&json["agents"][0]["name"], &json["unread"][0]), (&json!("a"), &json!("events: from server (Forbidden): no events")));
}

#[tokio::test]
async fn top_looks_through_the_servers_cache_and_adds_up() {
    use top::Subject as _;
    let (cluster, mut server) = fake();
    let asked = top::agents::Agents { pool: Some("p".into()), everywhere: false };
    let mut stored = pool();
    stored["status"] = json!({"desired": 3, "agents": 2, "active": 1, "idle": 1, "conditions": [condition("Blocked", "True", 1)]});
    let agents =
        vec![agent("a", "u1", serving("a")), agent("b", "u2", json!({"phase": "Stopped"})), agent("c", "u3", json!({"phase": "Dreaming"}))];
    let talk = async { (server.answer(200, list(agents.clone())).await, server.answer(200, list(vec![stored])).await) };
    let (snapshot, (first, second)) = tokio::join!(asked.look(&cluster), talk);
    let cached = "&resourceVersion=0&resourceVersionMatch=NotOlderThan";
    assert_eq!(first.line, format!("GET {AGENTS}?&fieldSelector=spec.poolRef.name%3Dp{cached}"));
    assert_eq!(second.line, format!("GET {POOLS}?&fieldSelector=metadata.name%3Dp{cached}"));
    let shown = |snapshot| top::agents::Agents::sheet(snapshot, top::agents::Sort::Name, jiff::Timestamp::UNIX_EPOCH);
    let text = top::view::plain_text(&shown(&snapshot.expect("a snapshot")));
    assert!(
        text.starts_with("Agents 1  Idle 1  ended 1  unreadable 1\nPools 1  desired 3  agents 2  active 1  idle 1  problems: p R\n"),
        "{text}"
    );
    let talk = async { (server.answer(200, list(Vec::new())).await, server.answer(200, list(Vec::new())).await) };
    let (snapshot, _) = tokio::join!(asked.look(&cluster), talk);
    assert!(matches!(snapshot, Err(Error::NotFound { .. })), "{snapshot:?}");
}

#[tokio::test]
async fn top_of_pools_and_queues_is_one_list_each() {
    use top::Subject as _;
    let (cluster, mut server) = fake();
    let cached = "?&resourceVersion=0&resourceVersionMatch=NotOlderThan";
    let mut broken = pool();
    broken["spec"]["type"] = json!(7);
    let asked = top::pools::Pools { everywhere: false };
    let (found, talk) = tokio::join!(asked.look(&cluster), server.answer(200, list(vec![pool(), broken])));
    assert_eq!(talk.line, format!("GET {POOLS}{cached}"));
    let found = found.expect("a snapshot");
    assert_eq!((found.rows.len(), found.unreadable, found.namespace.as_deref()), (1, 1, Some("n")));
    let queue = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkQueue", "metadata": {"name": "q", "namespace": "m"}, "spec": {},
        "status": {"counts": {"ready": 2}}});
    let asked = top::queues::Queues { everywhere: true };
    let (found, talk) = tokio::join!(asked.look(&cluster), server.answer(200, list(vec![queue])));
    assert_eq!(talk.line, format!("GET /apis/spillway.dev/v1alpha1/workqueues{cached}"));
    let found = found.expect("a snapshot");
    assert_eq!((found.rows[0].ready, found.rows[0].namespace.as_str(), found.namespace), (Some(2), "m", None));
}
