//! What is counted. Names follow Prometheus' conventions: a unit as suffix, `_total` on counters (added by the encoder).

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Seconds of a reconcile: from a look into memory to a burst of calls.
const RECONCILE_BUCKETS: [f64; 10] = [0.000_1, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Request {
    verb: &'static str,
    resource: String,
    code: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Reconciled {
    controller: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Of {
    controller: &'static str,
}

struct Inner {
    registry: Registry,
    requests: Family<Request, Counter>,
    reconciles: Family<Reconciled, Counter>,
    seconds: Family<Of, Histogram, fn() -> Histogram>,
    gated: Family<Of, Counter>,
    leader: Gauge,
    epoch: Gauge<f64, AtomicU64>,
}

/// Every metric of the process. Cheap to clone.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("spillway");
        let requests = Family::default();
        registry.register("api_requests", "Requests to the API server by verb, resource and answer (0: none came)", requests.clone());
        let reconciles = Family::default();
        registry.register("reconciles", "Reconciles by controller and outcome", reconciles.clone());
        let seconds: Family<Of, Histogram, fn() -> Histogram> = Family::new_with_constructor(|| Histogram::new(RECONCILE_BUCKETS));
        registry.register("reconcile_seconds", "Duration of a reconcile", seconds.clone());
        let gated = Family::default();
        registry.register("cache_behind_own_write", "Reconciles put off because the cache had not seen our own last write", gated.clone());
        let leader = Gauge::default();
        registry.register("leader", "1 while this process leads", leader.clone());
        let epoch = Gauge::default();
        registry.register("owner_epoch", "Owner epoch of this process while it leads", epoch.clone());
        Self(Arc::new(Inner { registry, requests, reconciles, seconds, gated, leader, epoch }))
    }
}

impl Metrics {
    /// One request to the API server was answered.
    pub fn api_request(&self, verb: &'static str, resource: &str, code: u16) {
        self.0.requests.get_or_create(&Request { verb, resource: resource.to_owned(), code }).inc();
    }

    /// One reconcile ended.
    pub fn reconciled(&self, controller: &'static str, outcome: &'static str, took: Duration) {
        self.0.reconciles.get_or_create(&Reconciled { controller, outcome }).inc();
        self.0.seconds.get_or_create(&Of { controller }).observe(took.as_secs_f64());
    }

    /// One reconcile was put off by the gate.
    pub fn gated(&self, controller: &'static str) {
        self.0.gated.get_or_create(&Of { controller }).inc();
    }

    /// We lead now, under this owner epoch.
    pub fn leading(&self, epoch: i64) {
        self.0.leader.set(1);
        #[expect(clippy::cast_precision_loss, reason = "a gauge for people: epochs stay far below 2^52")]
        self.0.epoch.set(epoch as f64);
    }

    /// Everything, in the text format of OpenMetrics.
    pub fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.0.registry)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_carries_what_was_counted() {
        let metrics = Metrics::default();
        metrics.api_request("patch", "agents/status", 200);
        metrics.reconciled("agent", "ok", Duration::from_millis(2));
        metrics.leading(42);
        let text = metrics.text().expect("encodes");
        assert!(text.contains(r#"spillway_api_requests_total{verb="patch",resource="agents/status",code="200"} 1"#), "{text}");
        assert!(text.contains("spillway_leader 1") && text.contains("spillway_owner_epoch 42"), "{text}");
    }
}
