//! A proxy in front of the API server with faults: delayed watches, and kinds that are not served. It passes requests
//! at once, so an operator sees old data, and its writes take effect immediately.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use futures::StreamExt;
use http_body_util::BodyExt;
use kube::Client;
use serde_json::json;

/// A running proxy.
pub struct Proxy {
    /// A kubeconfig that uses it.
    pub kubeconfig: PathBuf,
    trouble: Arc<Trouble>,
}

#[derive(Default)]
struct Trouble {
    watch_delay: Duration,
    kinds_hidden: AtomicBool,
}

impl Proxy {
    /// A proxy without faults so far.
    pub async fn start(client: Client, name: &str) -> Self {
        Self::with(client, name, Trouble::default()).await
    }

    /// A proxy that delays every part of a watch's answer by `delay`.
    pub async fn with_late_watches(client: Client, name: &str, delay: Duration) -> Self {
        Self::with(client, name, Trouble { watch_delay: delay, ..Trouble::default() }).await
    }

    /// Answers 404 for our group, as a server without our CRDs does.
    pub fn hide_our_kinds(&self, hidden: bool) {
        self.trouble.kinds_hidden.store(hidden, Ordering::SeqCst);
    }

    async fn with(client: Client, name: &str, trouble: Trouble) -> Self {
        let trouble = Arc::new(trouble);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let routes = axum::Router::new().fallback(forward).with_state((client, trouble.clone()));
        tokio::spawn(async move { axum::serve(listener, routes).await.expect("the proxy serves") });
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "proxy",
            "clusters": [{"name": "proxy", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "none", "user": {}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "none"}}],
        });
        let kubeconfig = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.kubeconfig"));
        std::fs::write(&kubeconfig, config.to_string()).expect("a kubeconfig");
        Self { kubeconfig, trouble }
    }
}

async fn forward(State((client, trouble)): State<(Client, Arc<Trouble>)>, request: Request) -> Response {
    if trouble.kinds_hidden.load(Ordering::SeqCst) && request.uri().path().starts_with("/apis/spillway.dev") {
        return Response::builder().status(404).body(Body::from("404 page not found")).expect("an answer");
    }
    let watching = request.uri().query().is_some_and(|query| query.contains("watch=true"));
    let (mut head, body) = request.into_parts();
    head.headers.remove(http::header::HOST);
    head.uri = head.uri.path_and_query().expect("a path").as_str().parse().expect("a path is an URI");
    let body = body.collect().await.expect("a whole request").to_bytes();
    let request = http::Request::from_parts(head, kube::client::Body::from(body.to_vec()));
    match client.send(request).await {
        Ok(answer) if watching => answer.map(|body| delayed(body, trouble.watch_delay)),
        Ok(answer) => answer.map(Body::new),
        Err(error) => Response::builder().status(502).body(Body::from(error.to_string())).expect("an answer"),
    }
}

/// Passes each part on after `delay`.
fn delayed(body: kube::client::Body, delay: Duration) -> Body {
    let (send, receive) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut pieces = body.into_data_stream();
        while let Some(piece) = pieces.next().await {
            if send.send((tokio::time::Instant::now() + delay, piece)).is_err() {
                return;
            }
        }
    });
    let stream = futures::stream::unfold(receive, async |mut receive| {
        let (due, piece) = receive.recv().await?;
        tokio::time::sleep_until(due).await;
        Some((piece, receive))
    });
    Body::from_stream(stream)
}
