//! The Kubernetes client of the process: its user agent, its timeouts, its metrics.

use std::time::Duration;

use kube::client::ClientBuilder;
use kube::{Client, Config};
use tower::timeout::TimeoutLayer;

use super::adaptive_limit::AdaptiveLimitLayer;
use super::background_writes::ForegroundWrites;
use super::request::describe;
use super::trim::TrimLayer;
use crate::telemetry::Metrics;

/// How long the head of an answer may take before the request counts as unanswered. The body, such as a watch's stream,
/// is not limited.
const ANSWER_HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Connects with the settings of the environment (in a pod its ServiceAccount, else `KUBECONFIG` or `~/.kube/config`),
/// and counts every request by verb, resource and status. `quiet` is told of foreground writes.
pub async fn connect(user_agent: &str, metrics: Metrics, quiet: ForegroundWrites) -> anyhow::Result<Client> {
    let mut config = Config::infer().await?;
    config.connect_timeout = Some(Duration::from_secs(5));
    config.read_timeout = None; // a watch without events is not broken: the server ends it
    config.default_retry = false; // callers retry: with backoff for each object, counted, and ended by a stop
    config.headers.push((http::header::USER_AGENT, user_agent.parse()?));
    let builder = ClientBuilder::try_from(config)?;
    // A request passes the last layer first: a write that waits for its permit is not counted yet.
    let builder =
        builder.with_layer(&TrimLayer).with_layer(&TimeoutLayer::new(ANSWER_HEAD_TIMEOUT)).with_layer(&CountLayer(metrics.clone()));
    Ok(builder.with_layer(&AdaptiveLimitLayer::new(metrics, quiet)).build())
}

/// A layer that counts requests.
#[derive(Clone)]
struct CountLayer(Metrics);

impl<S> tower::Layer<S> for CountLayer {
    type Service = Count<S>;
    fn layer(&self, inner: S) -> Count<S> {
        Count { inner, metrics: self.0.clone() }
    }
}

/// The counting service.
#[derive(Clone)]
struct Count<S> {
    inner: S,
    metrics: Metrics,
}

impl<S, B, R> tower::Service<http::Request<B>> for Count<S>
where
    S: tower::Service<http::Request<B>, Response = http::Response<R>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    R: 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = futures::future::BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let (verb, resource) = describe(request.method(), request.uri());
        let metrics = self.metrics.clone();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            let code = answer.as_ref().map_or(0, |response| response.status().as_u16());
            metrics.api_request(verb, &resource, code);
            answer
        })
    }
}
