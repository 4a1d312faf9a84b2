//! Webhooks: notifications arrive, also if the receiver is away at first.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::support::{Operator, TestNamespace, check_state, eventually};

/// The header `Spillway-Notice` and the body of each call.
pub type Calls = Arc<Mutex<Vec<(String, Value)>>>;

/// A receiver that fails the first call, and accepts all later ones.
pub async fn receiver(room: &TestNamespace) -> (String, Calls) {
    let calls = Calls::default();
    let take = async |State(calls): State<Calls>, headers: HeaderMap, body: String| {
        let mut calls = calls.lock().expect("whole");
        let number = headers["spillway-notice"].to_str().expect("text").to_owned();
        calls.push((number, serde_json::from_str(&body).expect("JSON")));
        if calls.len() == 1 { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK }
    };
    let listener = TcpListener::bind((room.node, 0)).await.expect("a port");
    let url = format!("http://{}/hook", listener.local_addr().expect("bound"));
    let routes = Router::new().fallback(take).with_state(calls.clone());
    tokio::spawn(async move { axum::serve(listener, routes).await });
    (url, calls)
}

/// Arguments of an operator that notifies this receiver of events in the namespace.
pub fn webhooks(room: &TestNamespace, url: &str) -> [String; 2] {
    let file = |name: &str| std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.{name}", room.namespace));
    let (list, url_file) = (file("webhooks"), file("url"));
    std::fs::write(&url_file, url).expect("a file");
    std::fs::write(&list, json!([{"name": "ops", "urlFile": url_file, "namespaces": [room.namespace]}]).to_string()).expect("a file");
    ["--webhooks-file".to_owned(), list.to_string_lossy().into_owned()]
}

#[tokio::test]
async fn a_webhook_is_told_how_an_item_ended() {
    let room = TestNamespace::open("webhooks").await;
    let (url, calls) = receiver(&room).await;
    let operator = Operator::start_with(&room, "one", None, &webhooks(&room, &url));
    operator.leads(&room).await;
    room.apply_queue("bugs", json!({})).await;
    room.submit("bugs", "quiet", json!({"cancelRequested": true})).await;
    room.submit("bugs", "asked", json!({"cancelRequested": true, "notifyOn": ["Finished"]})).await;
    eventually("the webhook has the notice, and the retry of the one that it refused", async || {
        let calls = calls.lock().expect("whole");
        check_state(calls.len() == 2, || format!("{calls:?}"))
    })
    .await;
    let told = calls.lock().expect("whole").clone();
    assert_eq!(told[0], told[1], "the same, under the same number");
    let body = &told[0].1;
    assert_eq!((&body["reason"], &body["namespace"], &body["count"]), (&json!("Finished"), &json!(room.namespace), &json!(1)));
    assert_eq!((&body["objects"][0]["kind"], &body["objects"][0]["name"]), (&json!("WorkItem"), &json!("asked")));
    let metrics = eventually("the metrics count the notice", async || {
        let (_, text) = operator.get("/metrics").await?;
        check_state(text.contains(r#"spillway_notifications_total{outcome="sent",webhook="ops"} 1"#), || text.clone())
            .map(|()| text.clone())
    })
    .await;
    assert!(metrics.contains(r#"spillway_notifications_total{outcome="retried",webhook="ops"} 1"#), "{metrics}");
    room.close().await;
}
