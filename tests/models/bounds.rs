//! Bounds of a gateway's calls, and of the data that leaves it: those that need a whole call to test.

use axum::body::Body;
use futures::FutureExt as _;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use http::{HeaderValue, Request};
use serde_json::json;
use spillway::gateway::routes::AGENT_BODY_LIMITS;

use crate::world::{PATIENCE, messages};
use crate::{answer, plain, settled};

/// A call with this text, by the pod with this token.
fn saying(text: &str, token: &str) -> Request<Body> {
    let (mut head, _) = messages(false).into_parts();
    head.headers.insert("authorization", HeaderValue::try_from(format!("Bearer {token}")).expect("a value"));
    let body = json!({"model": "claude-x", "max_tokens": 64, "messages": [{"role": "user", "content": text}]});
    Request::from_parts(head, Body::from(body.to_string()))
}

#[tokio::test]
async fn large_bodies_of_a_namespace_are_read_in_turn_and_nobody_else_waits_for_them() {
    let (world, side) = plain().await;
    let large = "x".repeat(200 * 1024);
    let mut reading = Vec::new();
    while let Some(turn) = side.readers.take("team").now_or_never() {
        reading.push(turn.expect("a place"));
    }
    assert_eq!(reading.len(), 2, "what one namespace may have at once");
    let mut waiting = Box::pin(side.ask(saying(&large, "pod-a")));
    let others = async {
        for call in [saying("hello", "pod-a"), saying(&large, "pod-of-others")] {
            world.provider.queue_script(answer());
            assert_eq!(side.ask(call).await.status, 200);
        }
    };
    tokio::select! {
        got = &mut waiting => panic!("it must wait: {got:?}"),
        () = others => {}
    }
    assert_eq!((world.leader.table().holds.len(), world.provider.calls()), (2, 2), "it is not read, so nothing is held for it");
    drop(reading);
    world.provider.queue_script(answer());
    assert_eq!(waiting.await.status, 200);
}

#[tokio::test]
async fn a_body_keeps_its_room_until_its_call_is_answered() {
    let (world, side) = plain().await;
    world.provider.queue_script(answer());
    assert_eq!(side.ask(messages(false)).await.status, 200, "from here on it knows who leads");
    world.leader.table().silent = true;
    // The longest bodies, from five agents with a dozen calls each: 15 MiB, of which a namespace may have 8.
    let body = format!(r#"{}{{"tokens": 7, "reason": "x"}}"#, " ".repeat(250 * 1024));
    let ask = |number: usize| {
        let request = Request::post("/agent/v1/budget/request").header("authorization", format!("Bearer pod-{}", number % 5));
        side.ask(request.body(Body::from(body.clone())).expect("a request"))
    };
    let mut calls: FuturesUnordered<_> = (0..60).map(ask).collect();
    let refused = tokio::time::timeout(PATIENCE, calls.next()).await.expect("some are refused").expect("there are more");
    assert_eq!(refused.status, 429, "{refused:?}");
    // This time is shorter than the calls wait. A call that gets room meanwhile gets it from a call that has continued.
    let meanwhile = async { while calls.next().await.is_some() {} };
    let _ = tokio::time::timeout(AGENT_BODY_LIMITS.memory_wait / 5, meanwhile).await;
    let asked = world.leader.table().token_requests;
    assert!((24..=32).contains(&asked), "{asked} of them are carried on at once");
    world.leader.table().silent = false;
    let answered = calls.collect::<Vec<_>>().await;
    assert!(answered.iter().filter(|got| got.status == 200).count() >= 30, "those that were carried on are answered");
}

#[tokio::test]
async fn a_body_is_read_as_it_was_sent_and_sent_as_it_was_read() {
    let (world, side) = plain().await;
    let with = |name: &'static str, values: [&'static str; 2]| {
        let mut request = messages(false);
        request.headers_mut().remove(name);
        for value in values {
            request.headers_mut().append(name, HeaderValue::from_static(value));
        }
        request
    };
    world.provider.queue_script(answer());
    let got = side.ask(with("content-encoding", ["identity", "gzip"])).await;
    assert!(got.status == 400 && got.body.is_some_and(|body| body.contains("content-encoding")));
    assert_eq!((world.leader.table().holds.len(), world.provider.calls()), (0, 0));
    assert_eq!(side.ask(with("content-type", ["application/json", "application/x-protobuf"])).await.status, 200);
    let seen = world.provider.seen.lock().expect("whole")[0].clone();
    assert_eq!(seen.headers.get_all("content-type").iter().collect::<Vec<_>>(), ["application/json"]);
}

#[tokio::test]
async fn a_call_with_an_image_says_no_bytes_of_text_to_learn_from() {
    let (world, side) = plain().await;
    let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgoAAAAN"}});
    for (seq, content) in [(1, json!([{"type": "text", "text": "what is this?"}, image])), (2, json!("what is this?"))] {
        let (head, _) = messages(false).into_parts();
        let body = json!({"model": "claude-x", "max_tokens": 64, "messages": [{"role": "user", "content": content}]});
        world.provider.queue_script(answer());
        assert_eq!(side.ask(Request::from_parts(head, Body::from(body.to_string()))).await.status, 200);
        assert_eq!(settled(&world, seq).await.bytes > 0, seq == 2, "{body}");
    }
}
