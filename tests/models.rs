//! Calls of models through the gateway, with a real journal, and a fake governor, provider and cluster over real TLS.

#[path = "models/bounds.rs"]
mod bounds;
#[path = "models/world.rs"]
#[expect(dead_code, reason = "shared with the tests of the protocols, which serve a gateway")]
mod world;

use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use futures::FutureExt as _;
use http_body_util::BodyExt as _;
use serde_json::json;
use spillway::gateway::models::Times;
use spillway::wire::governor::Change;
use spillway::wire::meter::{Quality, Settle, Usage};
use spillway::wire::{Code, Refusal};
use world::{Script, Side, TestCluster, messages, secret, wait_for};

const USED: Usage = Usage { input: 10, cache_read: 3, cache_write: 2, output: 7 };
const NOTHING: Usage = Usage { input: 0, cache_read: 0, cache_write: 0, output: 0 };

fn message_start_event() -> String {
    let start = json!({"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant", "model": "claude-x", "content": [],
        "usage": {"input_tokens": 10, "cache_creation_input_tokens": 2, "cache_read_input_tokens": 3, "output_tokens": 1}}});
    format!("event: message_start\ndata: {start}\n\n")
}

fn stream() -> String {
    let delta = json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}});
    let end = json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 7}});
    let begun = message_start_event();
    format!(
        "{begun}event: content_block_delta\ndata: {delta}\n\nevent: message_delta\ndata: {end}\n\nevent: message_stop\ndata: {{\"type\":\"message_stop\"}}\n\n"
    )
}

fn answer() -> Script {
    let usage = json!({"input_tokens": 10, "cache_creation_input_tokens": 2, "cache_read_input_tokens": 3, "output_tokens": 7});
    let content = json!([{"type": "text", "text": "hi"}]);
    Script::Json(
        200,
        json!({"id": "m", "type": "message", "role": "assistant", "content": content, "stop_reason": "end_turn", "usage": usage}),
    )
}

/// A time that a test can wait for, and longer than any other step on a busy machine.
const SHORT: Duration = Duration::from_secs(3);

async fn plain() -> (TestCluster, Side) {
    let world = TestCluster::new().await;
    let side = world.gateway("g", Times::default(), true);
    (world, side)
}

/// Waits for the settle with this number.
async fn settled(world: &TestCluster, seq: usize) -> Settle {
    wait_for("a settle", || world.leader.table().settles.get(seq - 1).cloned()).await
}

async fn costs_nothing(world: &TestCluster, seq: usize) {
    let settle = settled(world, seq).await;
    assert_eq!((settle.usage, settle.quality), (NOTHING, Quality::Exact));
}

#[tokio::test]
async fn a_call_is_held_for_forwarded_with_the_teams_key_and_settled() {
    let (world, side) = plain().await;
    world.provider.queue_script(answer());
    let got = side.ask(messages(false)).await;
    assert_eq!(got.status, 200, "{got:?}");
    assert_eq!(
        (&got.headers["x-budget-limit"], &got.headers["x-budget-remaining"]),
        (&"1000".parse().expect("a value"), &"850".parse().expect("a value"))
    );
    assert!(got.body.is_some_and(|body| body.contains("\"hi\"")));
    let seen = world.provider.seen.lock().expect("whole")[0].clone();
    assert_eq!(seen.line, "POST /v1/messages?beta=true", "no key of the client's");
    assert_eq!(seen.headers["x-api-key"], "team-key");
    assert_eq!((seen.headers.get("authorization"), seen.headers.get("spillway-item")), (None, None));
    assert_eq!(seen.headers["anthropic-version"], "2023-06-01");
    let body: serde_json::Value = serde_json::from_slice(&seen.body).expect("JSON");
    assert_eq!((&body["max_tokens"], &body["model"]), (&json!(50), &json!("claude-x")), "no more than was held for");
    let settle = settled(&world, 1).await;
    assert_eq!((settle.hold, settle.usage, settle.quality, settle.model.as_str()), (1, USED, Quality::Exact, "claude-x"));
    assert!(settle.bytes > 0);
    let table = world.leader.table();
    let way = &table.holds[0].way;
    assert_eq!((way.entry.as_str(), way.model.as_deref(), way.item.as_ref().map(|item| item.epoch)), ("claude", Some("claude-x"), Some(4)));
    assert_eq!((table.begins.len(), table.begins[0].session.as_str()), (1, "g"));
    assert!(side.metrics.text().expect("text").contains(r#"spillway_gateway_request_seconds_count{dialect="anthropic",outcome="ok"} 1"#));
}

#[tokio::test]
async fn what_costs_more_than_its_tokens_say_is_not_sent_unless_it_is_allowed() {
    let (mut world, side) = plain().await;
    let fast = || {
        let (head, _) = messages(false).into_parts();
        let body = json!({"model": "claude-x", "max_tokens": 64, "service_tier": "priority", "messages": []});
        http::Request::from_parts(head, Body::from(body.to_string()))
    };
    world.provider.queue_script(answer());
    let got = side.ask(fast()).await;
    assert!(got.status == 400 && got.body.is_some_and(|body| body.contains("service_tier: priority") && body.contains("allowedFields")));
    assert!(
        world.leader.table().holds.is_empty() && world.provider.seen.lock().expect("whole").is_empty(),
        "it is neither held for nor sent"
    );
    world.allowed_fields = vec!["service_tier".into()];
    let side = world.gateway("h", Times::default(), true);
    assert_eq!(side.ask(fast()).await.status, 200);
    let sent: serde_json::Value = serde_json::from_slice(&world.provider.seen.lock().expect("whole")[0].body).expect("JSON");
    assert_eq!(sent["service_tier"], "priority");
}

#[tokio::test]
async fn a_stream_passes_byte_for_byte_and_is_counted() {
    let (world, side) = plain().await;
    world.provider.queue_script(Script::Events(stream()));
    let got = side.ask(messages(true)).await;
    assert_eq!((got.status, got.body), (200, Some(stream())));
    let settle = settled(&world, 1).await;
    assert_eq!((settle.usage, settle.quality), (USED, Quality::Exact));
}

#[tokio::test]
async fn a_client_that_goes_is_charged_what_its_call_used() {
    let (world, side) = plain().await;
    world.provider.queue_script(Script::Events(stream()));
    drop(side.send(messages(true)).await);
    assert_eq!(settled(&world, 1).await.usage, USED, "what it used is read on");
    let side = world.gateway("h", Times { drain: SHORT, ..Times::default() }, true);
    world.provider.queue_script(Script::Endless(message_start_event()));
    let mut body = side.send(messages(true)).await.into_body();
    body.frame().await.expect("a part").expect("whole");
    drop(body);
    let settle = settled(&world, 2).await;
    assert_eq!((settle.quality, settle.usage.input), (Quality::Partial, 10), "but not for ever");
}

#[tokio::test]
async fn a_client_that_is_slow_slows_the_provider() {
    let (world, side) = plain().await;
    world.provider.queue_script(Script::Endless(message_start_event()));
    let mut body = side.send(messages(true)).await.into_body();
    body.frame().await.expect("a part").expect("whole");
    // The provider sends until the windows of the connections are full, and then stops.
    let (mut last, mut looks) = (0, 0);
    wait_for("the provider stands still", || {
        let pushed = world.provider.pushed.load(Ordering::SeqCst);
        looks = if pushed == std::mem::replace(&mut last, pushed) { looks + 1 } else { 0 };
        (looks == 100).then_some(())
    })
    .await;
    assert!(last < 4_000, "{last} parts of 8 KiB were taken from the provider for a client that reads nothing");
}

#[tokio::test]
async fn an_answer_that_is_cut_looks_cut_and_is_charged_as_such() {
    let (world, side) = plain().await;
    world.provider.queue_script(Script::Cut(message_start_event()));
    let mut body = side.send(messages(true)).await.into_body();
    body.frame().await.expect("a part").expect("whole");
    world.provider.cut.notify_one();
    assert!(body.collect().await.is_err(), "the client sees that it is not whole");
    let settle = settled(&world, 1).await;
    assert_eq!((settle.quality, settle.usage.input), (Quality::Partial, 10));
}

#[tokio::test]
async fn what_the_provider_refuses_costs_nothing() {
    let (world, side) = plain().await;
    let error = json!({"type": "error", "error": {"type": "rate_limit_error", "message": "slower"}});
    world.provider.queue_script(Script::Json(429, error.clone()));
    let got = side.ask(messages(true)).await;
    assert_eq!((got.status, got.body), (429, Some(error.to_string())));
    costs_nothing(&world, 1).await;
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let (world, side) = plain().await;
    world.provider.queue_script(Script::Redirect(format!("{}/elsewhere", world.origin)));
    let got = side.ask(messages(false)).await;
    assert!(got.status == 400 && got.body.is_some_and(|body| body.contains("redirect")));
    costs_nothing(&world, 1).await;
    assert_eq!(world.provider.calls(), 1);
}

#[tokio::test]
async fn a_private_address_is_not_called_unless_that_is_said() {
    let world = TestCluster::new().await;
    let side = world.gateway("g", Times::default(), false);
    let got = side.ask(messages(false)).await;
    assert!(got.status == 400 && got.body.is_some_and(|body| body.contains("allowPrivate")));
    costs_nothing(&world, 1).await;
    world.leader.table().target.origin = "https://elsewhere.example.org".into();
    let got = side.ask(messages(false)).await;
    assert!(got.status == 400 && got.body.is_some_and(|body| body.contains("gateway.modelOrigins")));
    costs_nothing(&world, 2).await;
    assert_eq!(world.provider.calls(), 0);
}

#[tokio::test]
async fn a_credential_goes_only_where_it_says_and_only_if_it_is_one() {
    let (world, side) = plain().await;
    let origin = world.origin.clone();
    let put = |name: &str, value| world.secrets.lock().expect("whole").insert(name.to_owned(), value);
    put("elsewhere", secret("spillway.dev/model-credential", "https://api.openai.com", "t"));
    put("opaque", secret("Opaque", &origin, "t"));
    let cases =
        [("elsewhere", "api.openai.com"), ("opaque", "model-credential"), ("missing", "kind: Secret"), ("forbidden", "kind: RoleBinding")];
    for ((name, words), seq) in cases.into_iter().zip(1..) {
        world.leader.table().target.credential = Some(name.into());
        let got = side.ask(messages(false)).await;
        let body = got.body.unwrap_or_default();
        assert!(got.status == 400 && body.contains("CredentialsForbidden") && body.contains(words), "{name}: {} {body}", got.status);
        costs_nothing(&world, seq).await;
    }
    assert_eq!(world.provider.calls(), 0);
}

#[tokio::test]
async fn a_key_that_was_exchanged_is_read_anew() {
    let (world, side) = plain().await;
    world.provider.queue_script(answer());
    assert_eq!(side.ask(messages(false)).await.status, 200);
    world.secrets.lock().expect("whole").insert("key".into(), secret("spillway.dev/model-credential", &world.origin, "newer-key"));
    world.provider.queue_script(Script::Json(401, json!({})));
    world.provider.queue_script(answer());
    assert_eq!(side.ask(messages(false)).await.status, 200);
    let seen = world.provider.seen.lock().expect("whole");
    let keys: Vec<_> = seen.iter().map(|seen| seen.headers["x-api-key"].to_str().expect("text")).collect();
    assert_eq!(keys, ["team-key", "team-key", "newer-key"]);
}

#[tokio::test]
async fn a_provider_that_refuses_the_teams_key_is_not_quoted() {
    let (world, side) = plain().await;
    let error = json!({"error": {"message": "Incorrect API key provided: team-key. See account team-account"}});
    for (status, seq) in [(401, 1), (403, 2)] {
        world.provider.queue_script(Script::Json(status, error.clone()));
        let got = side.ask(messages(false)).await;
        let body = got.body.unwrap_or_default();
        assert!(got.status == 400 && body.contains("refuses the team's credential") && body.contains(&status.to_string()), "{body}");
        assert!(!body.contains("team-key") && !body.contains("team-account"), "{body}");
        costs_nothing(&world, seq).await;
    }
    assert_eq!(world.provider.calls(), 2, "the same key is not tried twice");
}

#[tokio::test]
async fn a_refusal_of_the_ledger_is_said_in_the_dialect_and_nothing_is_forwarded() {
    let (world, side) = plain().await;
    let refusals = [Refusal::new(Code::BudgetExhausted, "spent"), Refusal::new(Code::BudgetHeld, "held").retry_after(3)];
    world.leader.table().next_refusals.extend(refusals);
    let got = side.ask(messages(true)).await;
    assert!(got.status == 402 && got.body.is_some_and(|body| body.contains("spent")));
    let got = side.ask(messages(true)).await;
    assert!(got.status == 429 && got.headers["retry-after"] == "3", "{got:?}");
    assert_eq!(world.provider.calls(), 0);
    world.provider.queue_script(answer());
    assert_eq!(side.ask(messages(false)).await.status, 200);
    assert_eq!(settled(&world, 1).await.usage, USED, "a refused one is not settled");
}

#[tokio::test]
async fn a_governor_that_is_away_is_waited_for_but_not_for_ever() {
    let world = TestCluster::new().await;
    let side = world.gateway("g", Times { governor_wait: SHORT, ..Times::default() }, true);
    world.provider.queue_script(answer());
    assert_eq!(side.ask(messages(false)).await.status, 200);
    world.leader.table().away = true;
    let got = side.ask(messages(false)).await;
    assert_eq!((got.status, got.headers.contains_key("retry-after"), world.provider.calls()), (503, true, 1));
    world.leader.table().away = false;
    costs_nothing(&world, 2).await;
    let patient = world.gateway("h", Times::default(), true);
    wait_for("it has begun", || world.leader.table().known_sessions.contains("h").then_some(())).await;
    world.leader.table().away = true;
    world.leader.table().turned_away = 0;
    world.provider.queue_script(answer());
    let leader = world.leader.clone();
    tokio::spawn(async move {
        wait_for("it was asked", || (leader.table().turned_away > 0).then_some(())).await;
        leader.table().away = false;
    });
    assert_eq!(patient.ask(messages(false)).await.status, 200, "a fail-over is invisible");
}

#[tokio::test]
async fn a_provider_that_speaks_the_older_protocol_is_called_too() {
    let world = TestCluster::with(false).await;
    let side = world.gateway("g", Times::default(), true);
    for seq in [1, 2] {
        world.provider.queue_script(Script::Events(stream()));
        assert_eq!(side.ask(messages(true)).await.body, Some(stream()));
        assert_eq!(settled(&world, seq).await.usage, USED);
    }
    let seen = world.provider.seen.lock().expect("whole")[1].clone();
    assert_eq!(format!("https://{}", seen.headers["host"].to_str().expect("text")), world.origin);
    world.provider.queue_script(Script::Cut(message_start_event()));
    let mut body = side.send(messages(true)).await.into_body();
    body.frame().await.expect("a part").expect("whole");
    world.provider.cut.notify_one();
    assert!(body.collect().await.is_err());
    assert_eq!(settled(&world, 3).await.quality, Quality::Partial);
}

#[tokio::test]
async fn a_hold_whose_answer_was_lost_is_the_same_hold() {
    let (world, side) = plain().await;
    world.leader.table().answers_to_lose = 2;
    world.provider.queue_script(answer());
    assert_eq!(side.ask(messages(false)).await.status, 200);
    assert_eq!(settled(&world, 1).await.usage, USED);
    let table = world.leader.table();
    let numbers: Vec<u64> = table.holds.iter().map(|hold| hold.id).collect();
    assert!(numbers.len() >= 3 && numbers.iter().all(|number| *number == 1), "{numbers:?}");
    assert_eq!((table.open.len(), world.provider.calls()), (0, 1));
}

#[tokio::test]
async fn a_new_leader_is_told_everything_before_it_is_asked() {
    let (world, side) = plain().await;
    world.provider.queue_script(Script::Endless(message_start_event()));
    let mut body = side.send(messages(true)).await.into_body();
    body.frame().await.expect("a part").expect("whole");
    world.leader.lose_state();
    world.provider.queue_script(answer());
    assert_eq!(side.ask(messages(false)).await.status, 200);
    let table = world.leader.table();
    let begin = table.begins.last().expect("it began again");
    assert_eq!(begin.open.iter().map(|open| open.id).collect::<Vec<_>>(), [1], "{begin:?}");
    assert_eq!((begin.open[0].input, begin.open[0].output), (100, 50));
}

#[tokio::test]
async fn a_process_after_this_one_charges_what_was_forwarded_and_uses_no_number_again() {
    let (world, side) = plain().await;
    world.provider.queue_script(Script::Endless(message_start_event()));
    let mut body = side.send(messages(true)).await.into_body();
    body.frame().await.expect("a part").expect("whole");
    // A copy of the journal, as if the process had ended here.
    std::fs::create_dir_all(world.folder.join("copy")).expect("a folder");
    std::fs::copy(world.folder.join("g/session.jsonl"), world.folder.join("copy/session.jsonl")).expect("copied");
    let next = world.gateway("copy", Times::default(), true);
    let settle = settled(&world, 1).await;
    assert_eq!((settle.hold, settle.quality, settle.usage), (1, Quality::Estimated, NOTHING));
    world.provider.queue_script(answer());
    assert_eq!(next.ask(messages(false)).await.status, 200);
    let table = world.leader.table();
    let last = table.holds.last().expect("a hold");
    assert!(last.id > 1 && last.session == "g", "{last:?}");
}

#[tokio::test]
async fn two_gateways_are_two_sessions() {
    let (world, one) = plain().await;
    let other = world.gateway("h", Times::default(), true);
    for (side, seq) in [(&one, 1), (&other, 2)] {
        world.provider.queue_script(answer());
        assert_eq!(side.ask(messages(false)).await.status, 200);
        assert_eq!((settled(&world, seq).await.seq, settled(&world, seq).await.hold), (1, 1));
    }
    let table = world.leader.table();
    assert_eq!((table.known_sessions.iter().map(String::as_str).collect::<Vec<_>>(), table.open.len()), (vec!["g", "h"], 0));
}

#[tokio::test]
async fn what_ends_an_agent_ends_its_stream_and_refuses_its_calls() {
    let (world, side) = plain().await;
    world.provider.queue_script(Script::Endless(message_start_event()));
    let mut body = side.send(messages(true)).await.into_body();
    body.frame().await.expect("a part").expect("whole");
    world.leader.changes.send(Change::Revoked { uid: "uid-pod-a".into() }).expect("heard");
    assert!(body.collect().await.is_err(), "it is cut");
    assert!(side.long_polls.is_revoked("uid-pod-a"));
    let got = side.ask(messages(true)).await;
    assert!((400..500).contains(&got.status) && got.body.is_some_and(|body| body.contains("ended")));
    assert_eq!(world.provider.calls(), 1);
}

#[tokio::test]
async fn an_end_that_was_not_heard_of_is_asked_about() {
    let (world, side) = plain().await;
    world.provider.queue_script(Script::Endless(message_start_event()));
    let mut body = side.send(messages(true)).await.into_body();
    body.frame().await.expect("a part").expect("whole");
    world.leader.table().ended = true;
    world.leader.lose_state();
    assert!(body.collect().await.is_err(), "it is cut");
}

#[tokio::test]
async fn a_provider_that_says_nothing_is_given_up() {
    let world = TestCluster::new().await;
    let side = world.gateway("g", Times { first_byte: SHORT, ..Times::default() }, true);
    world.provider.queue_script(Script::Never);
    let got = side.ask(messages(false)).await;
    assert_eq!((got.status, got.headers.contains_key("retry-after")), (503, true));
    assert_eq!(settled(&world, 1).await.quality, Quality::Estimated, "it may have worked");
}

#[tokio::test]
async fn what_costs_nothing_is_passed_and_nothing_else_is() {
    let (world, side) = plain().await;
    let ask = |method: &str, path: &str, body: &str| {
        let request = http::Request::builder().method(method).uri(format!("/models/claude{path}")).header("authorization", "Bearer pod-a");
        request.header("content-type", "application/json").body(Body::from(body.to_owned())).expect("a request")
    };
    assert_eq!(side.ask(ask("HEAD", "/", "")).await.status, 200);
    assert_eq!(side.ask(ask("HEAD", "/api/hello", "")).await.status, 200);
    assert_eq!(world.provider.calls(), 0);
    world.provider.queue_script(Script::Json(200, json!({"input_tokens": 5})));
    let counting = json!({"model": "claude-x", "messages": [{"role": "user", "content": "hello"}]}).to_string();
    assert_eq!(side.ask(ask("POST", "/v1/messages/count_tokens", &counting)).await.body, Some(json!({"input_tokens": 5}).to_string()));
    world.provider.queue_script(Script::Json(200, json!({"data": []})));
    assert_eq!(side.ask(ask("GET", "/v1/models", "")).await.status, 200);
    for (method, path) in [("POST", "/v1/messages/batches"), ("POST", "/v1/files"), ("GET", "/v1/messages"), ("POST", "/v1/../v1/messages")]
    {
        assert_eq!(side.ask(ask(method, path, "{}")).await.status, 404, "{method} {path}");
    }
    let stranger = http::Request::head("/models/claude/").header("authorization", "Bearer nobody").body(Body::empty());
    assert_eq!(side.ask(stranger.expect("a request")).await.status, 401);
    assert_eq!((world.provider.calls(), world.leader.table().holds.len()), (2, 0));
}

#[tokio::test]
async fn a_namespace_with_all_the_calls_it_may_have_waits_alone_and_who_goes_meanwhile_is_not_called_for() {
    let (world, side) = plain().await;
    let turns = side.upstream.permits(&side.upstream.find(&world.origin).expect("a listed origin"));
    let mut flood = Vec::new();
    while let Some(turn) = turns.take("team").now_or_never() {
        flood.push(turn.expect("a place"));
    }
    let mut waiting = Box::pin(side.ask(messages(false)));
    tokio::select! {
        got = &mut waiting => panic!("it must wait: {got:?}"),
        () = wait_for("its tokens are held", || (world.leader.table().holds.len() == 1).then_some(())) => {}
    }
    world.provider.queue_script(answer());
    let mut others = messages(false);
    others.headers_mut().insert("authorization", "Bearer pod-of-others".parse().expect("a value"));
    assert_eq!(side.ask(others).await.status, 200, "another namespace does not wait behind it");
    assert_eq!(world.provider.calls(), 1);
    drop(waiting);
    costs_nothing(&world, 2).await;
    drop(flood);
    world.provider.queue_script(answer());
    assert_eq!(side.ask(messages(false)).await.status, 200);
    assert_eq!(world.provider.calls(), 2, "the call of the client that went was never made");
}

#[tokio::test]
async fn what_is_left_is_the_governors_to_say_and_what_is_asked_for_is_looked_at_here_first() {
    let (world, side) = plain().await;
    world.provider.queue_script(answer());
    assert_eq!(side.ask(messages(false)).await.status, 200, "from here on it knows who leads");
    let call = |method: &str, path: &str, body: &str| {
        let request = http::Request::builder().method(method).uri(path).header("authorization", "Bearer pod-a");
        request.body(Body::from(body.to_owned())).expect("a request")
    };
    let got = side.ask(call("GET", "/agent/v1/budget", "")).await;
    assert_eq!((got.status, got.body.as_deref()), (200, Some("{\"limits\":[]}")));
    let asked = side.ask(call("POST", "/agent/v1/budget/request", "{\"tokens\": 7, \"reason\": \"x\"}")).await;
    assert_eq!((asked.status, asked.body.as_deref()), (200, Some("{\"asked\":{\"reason\":\"x\",\"tokens\":7}}")));
    for (body, field) in
        [("{\"tokens\": -7, \"reason\": \"x\"}", "tokens"), ("{\"tokens\": 7}", "reason"), ("{\"tokens\": 7, \"agent\": \"b\"}", "agent")]
    {
        let refused = side.ask(call("POST", "/agent/v1/budget/request", body)).await;
        let said: serde_json::Value = serde_json::from_str(&refused.body.expect("a body")).expect("JSON");
        assert_eq!((refused.status, &said["field"]), (400, &json!(field)), "{body}");
    }
}
