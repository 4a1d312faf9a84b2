//! `/livez`, `/readyz`, `/metrics`.
//!
//! Ready means that the kinds are served and, for a leader, that its stores are filled. A standby is ready, because it
//! can take over at once.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::Metrics;
use crate::serve::{Bounds, serve_plain};

/// The unmet conditions of each readiness check.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<Mutex<BTreeMap<&'static str, Vec<String>>>>);

impl Health {
    /// Sets the unmet conditions of the check `name`. The check passes if there are none.
    pub fn set(&self, name: &'static str, missing: Vec<String>) {
        let mut checks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        checks.insert(name, missing);
    }

    fn report(&self) -> (bool, String) {
        let checks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let ready = !checks.is_empty() && checks.values().all(Vec::is_empty);
        let mut text: String = checks
            .iter()
            .map(
                |(name, missing)| {
                    if missing.is_empty() { format!("[+] {name} ok\n") } else { format!("[-] {name} missing: {}\n", missing.join(", ")) }
                },
            )
            .collect();
        text.push_str(if ready { "ready\n" } else { "not ready\n" });
        (ready, text)
    }
}

/// Serves until `stop`. Fails if the address cannot be bound.
pub async fn serve(address: SocketAddr, health: Health, metrics: Metrics, stop: CancellationToken) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    tracing::info!(address = %listener.local_addr()?, "serving /livez, /readyz and /metrics");
    let routes = axum::Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_text))
        .with_state((health, metrics.clone()));
    serve_plain(listener, Bounds::HEALTH, routes, metrics, stop).await
}

async fn readyz(State((health, _)): State<(Health, Metrics)>) -> impl IntoResponse {
    let (ready, text) = health.report();
    (if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, text)
}

async fn metrics_text(State((_, metrics)): State<(Health, Metrics)>) -> impl IntoResponse {
    match metrics.text() {
        Ok(text) => (StatusCode::OK, [(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, [(header::CONTENT_TYPE, "text/plain")], error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn not_ready_until_checked_and_then_with_the_list() {
        let health = Health::default();
        assert!(!health.report().0, "nothing was checked yet");
        health.set("kinds", vec!["agents".into(), "agentpools".into()]);
        assert_eq!(health.report(), (false, "[-] kinds missing: agents, agentpools\nnot ready\n".into()));
        health.set("kinds", vec![]);
        assert!(health.report().0);
    }
}
