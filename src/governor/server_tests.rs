//! Calls of agents through the routes, as a gateway forwards them. The API server knows one agent, forgets all children
//! at once, and answers nothing else.

use std::future::pending;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::http::Method;
use futures::stream::FuturesUnordered;
use http_body_util::BodyExt as _;
use kube::Client;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::*;
use crate::controller::fake::{TEAM, context, object};
use crate::notify::Notifier;
use crate::wire::GOVERNOR_AUDIENCE;

const USER: &str = "system:serviceaccount:spillway-system:spillway-gateway";
const MIB: usize = 1024 * 1024;

#[derive(Default)]
struct Cluster {
    /// Whether it never answers reads of the agent.
    silent: bool,
    /// The number of reads of the agent.
    reads: AtomicUsize,
    children: Mutex<Vec<Value>>,
}

impl Cluster {
    async fn answer(&self, request: http::Request<kube::client::Body>) -> (u16, Value) {
        let (head, body) = request.into_parts();
        let body = body.collect().await.expect("a body").to_bytes();
        let read = || serde_json::from_slice::<Value>(&body).expect("JSON");
        match (head.method, head.uri.path()) {
            (Method::POST, "/apis/authentication.k8s.io/v1/tokenreviews") => {
                let mut review = read();
                review["status"] = json!({"authenticated": true, "user": {"username": USER}, "audiences": [GOVERNOR_AUDIENCE]});
                (201, review)
            }
            (Method::GET, "/apis/spillway.dev/v1alpha1/namespaces/team/agents/lead") => {
                self.reads.fetch_add(1, Ordering::SeqCst);
                if self.silent {
                    pending::<()>().await;
                }
                let mut agent = object("Agent", "lead", json!({"poolRef": {"name": "lead"}}));
                agent["status"] = json!({"podRef": {"name": "lead", "uid": "pod"}});
                (200, agent)
            }
            (Method::GET, "/apis/spillway.dev/v1alpha1/namespaces/team/agents") => {
                (200, json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "AgentList", "metadata": {}, "items": []}))
            }
            (Method::POST, "/apis/spillway.dev/v1alpha1/namespaces/team/agents") => {
                self.children.lock().expect("whole").push(read());
                (201, read())
            }
            _ => pending().await,
        }
    }

    fn client(self: &Arc<Self>) -> Client {
        let cluster = self.clone();
        let service = tower::service_fn(move |request| {
            let cluster = cluster.clone();
            async move {
                let (status, answer) = cluster.answer(request).await;
                let body = kube::client::Body::from(answer.to_string().into_bytes());
                Ok::<_, std::convert::Infallible>(http::Response::builder().status(status).body(body).expect("an answer"))
            }
        });
        Client::new(service, TEAM)
    }
}

/// A call of the agent, as a gateway forwards it.
fn call(path: &str, key: &str, body: String) -> Request {
    let request = Request::post(path).header("authorization", "Bearer t").header(GATEWAY_HEADER, "g").header("idempotency-key", key);
    let request = request.header(CALLER_NAMESPACE_HEADER, TEAM).header(CALLER_POD_HEADER, "lead").header(CALLER_UID_HEADER, "pod");
    request.body(Body::from(body)).expect("a request")
}

/// The routes of a governor of that cluster. Its agent may create children in a second pool. It leads for ten seconds.
fn governor(cluster: &Arc<Cluster>) -> axum::Router {
    let agent = json!({"image": "i", "command": ["c"]});
    let lead = json!({"type": "lead", "agent": agent, "may": {"spawnIn": ["kids"]}, "bulkhead": {"maxChildAgents": 3}});
    let pools = [object("AgentPool", "lead", lead), object("AgentPool", "kids", json!({"type": "kids", "agent": agent}))];
    let context = Arc::new(context(cluster.client(), &pools, Notifier::for_test().0));
    let reviewer = Reviewer::new(cluster.client(), GOVERNOR_AUDIENCE);
    routes(Arc::new(Governor { context, reviewer, gateway: USER.into(), bodies: BodyMemory::new(GOVERNOR_BODY_LIMITS) }))
}

async fn text(response: Response) -> String {
    String::from_utf8_lossy(&response.into_body().collect().await.expect("a body").to_bytes()).into_owned()
}

#[tokio::test]
async fn children_that_are_gone_at_once_count_as_made() {
    let cluster = Arc::default();
    let routes = governor(&cluster);
    let spawn = async |number: usize| {
        let body = json!({"pool": "kids"}).to_string();
        routes.clone().oneshot(call("/agent/v1/agents", &format!("key-{number}"), body)).await.expect("an answer")
    };
    for number in 0..10 {
        let made = spawn(number).await;
        assert_eq!(made.status(), 200, "{number}: {}", text(made).await);
    }
    let refused = spawn(10).await;
    assert_eq!(refused.status(), 429);
    let words = text(refused).await;
    assert!(words.contains("10 children within a minute"), "{words}");
    assert_eq!(cluster.children.lock().expect("whole").len(), 10, "no more are made");
}

#[tokio::test(start_paused = true)]
async fn a_body_keeps_its_room_until_its_call_is_answered() {
    let cluster = Arc::new(Cluster { silent: true, ..Cluster::default() });
    let routes = governor(&cluster);
    // The largest body: 10 MiB for all, of which one namespace may have 4 while no other namespace has any.
    let ask = |number: usize| {
        routes.clone().oneshot(call("/agent/v1/report", &format!("key-{number}"), " ".repeat(GOVERNOR_BODY_LIMITS.max_body_bytes)))
    };
    let mut calls: FuturesUnordered<_> = (0..40).map(ask).collect();
    let mut refused = Vec::new();
    let refusing = async {
        while let Some(answer) = calls.next().await {
            refused.push(answer.expect("an answer").status().as_u16());
        }
    };
    // Longer than a call waits for memory. Calls that have memory are never answered.
    let over = tokio::time::timeout(3 * GOVERNOR_BODY_LIMITS.memory_wait, refusing).await;
    assert!(over.is_err(), "all are answered: {refused:?}");
    assert_eq!(cluster.reads.load(Ordering::SeqCst) * GOVERNOR_BODY_LIMITS.max_body_bytes, 4 * MIB, "what is carried on at once");
    assert_eq!(refused, [429; 24]);
}

#[test]
fn bodies_and_what_is_read_out_of_them_are_a_part_of_the_containers_memory() {
    // The default values of the chart give a controller 256 MiB. A parsed plan takes eight times its bytes.
    let BodyLimits { total_bytes: all, max_body_bytes: most, .. } = GOVERNOR_BODY_LIMITS;
    assert!(all * 8 <= 256 * MIB / 4 && most * 8 <= all, "{all} bytes of all, {most} of one");
}
