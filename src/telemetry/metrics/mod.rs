//! The metrics. Names follow Prometheus' conventions: a unit as suffix, `_total` on counters (added by the encoder).
//!
//! | file | for |
//! |---|---|
//! | [`controllers`] | calls to the API server, reconciles, supervision, leadership |
//! | [`fleet`] | agents, by their pools and types |
//! | [`gateways`] | calls of agents, model calls, connections |
//! | [`limits`] | budgets and circuit breakers |
//! | [`work`] | items, by their queues |
//! | [`collected`] | ended items that were deleted |
//! | [`names`] | which names of tenants are labels |

mod collected;
mod controllers;
mod fleet;
mod gateways;
mod limits;
mod names;
mod work;

use std::sync::Arc;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

use controllers::Controllers;
use fleet::Fleet;
use gateways::Gateways;
use limits::{Breakers, Budgets};
use work::Work;

pub use fleet::{FleetCounts, Pool as PoolStanding};
pub use gateways::TransferKind;
pub use limits::{Amounts, Limit};
pub use names::Series;
pub use work::Depths;

/// Histograms by labels.
type Timed<L> = Family<L, Histogram, fn() -> Histogram>;

/// Registers a metric.
fn registered<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

struct Inner {
    registry: Registry,
    controllers: Controllers,
    gateways: Gateways,
    budgets: Budgets,
    breakers: Breakers,
    work: Work,
    fleet: Fleet,
}

/// Every metric of the process. Cheap to clone.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("spillway");
        let controllers = Controllers::register(&mut registry);
        let gateways = Gateways::register(&mut registry);
        let budgets = Budgets::register(&mut registry);
        let breakers = Breakers::register(&mut registry);
        let work = Work::register(&mut registry);
        let fleet = Fleet::register(&mut registry);
        Self(Arc::new(Inner { registry, controllers, gateways, budgets, breakers, work, fleet }))
    }
}

impl Metrics {
    /// All metrics in the text format of OpenMetrics.
    pub fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.0.registry)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::policy::breaker::State;
    use crate::policy::work::item_index::Removal;

    #[test]
    fn the_text_carries_what_was_counted() {
        let metrics = Metrics::default();
        metrics.api_request("patch", "agents/status", 200);
        metrics.reconciled("agent", "ok", Duration::from_millis(2));
        metrics.item("Leased");
        metrics.objective_missed("wait");
        metrics.item_collected(true, Removal::TooMany);
        metrics.waited(Duration::from_secs(2));
        metrics.leading(42);
        let limit = |name: &str| Limit { kind: "Budget", namespace: "n".into(), name: name.into(), limit: "hourly".into() };
        let amounts = Amounts { limit: 100, used: 7, ..Amounts::default() };
        metrics.budgets([(limit("a"), amounts), (limit("gone"), amounts)]);
        metrics.budgets([(limit("a"), amounts)]);
        metrics.budget_refused("used");
        let circuit = |breaker: &str, state| ("n".to_owned(), breaker.to_owned(), "work/p".to_owned(), state);
        metrics.breakers([circuit("default", State::Open), circuit("gone", State::Closed)]);
        metrics.breakers([circuit("default", State::Open)]);
        metrics.breaker_moved("work", "closed", "open", 2);
        metrics.connections("agents", 3, 5);
        metrics.tool_approval("used");
        metrics.connection_refused("agents", "evicted");
        let text = metrics.text().expect("encodes");
        assert!(text.contains(r#"spillway_api_requests_total{verb="patch",resource="agents/status",code="200"} 1"#), "{text}");
        assert!(
            text.contains(r#"spillway_items_total{phase="Leased"} 1"#) && text.contains("spillway_item_wait_seconds_count 1"),
            "{text}"
        );
        assert!(text.contains(r#"spillway_items_collected_total{kind="dead_letter",reason="count"} 1"#), "{text}");
        assert!(text.contains(r#"spillway_objectives_missed_total{objective="wait"} 1"#), "{text}");
        assert!(text.contains(r#"spillway_budget_used_units{kind="Budget",namespace="n",name="a",limit="hourly"} 7"#), "{text}");
        assert!(!text.contains("gone") && text.contains(r#"spillway_budget_refusals_total{reason="used"} 1"#), "{text}");
        assert!(text.contains(r#"spillway_breaker_state{namespace="n",breaker="default",circuit="work/p"} 2"#), "{text}");
        assert!(text.contains(r#"spillway_breaker_transitions_total{guard="work",from="closed",to="open"} 2"#), "{text}");
        assert!(text.contains(r#"spillway_connections{listener="agents",class="known"} 5"#), "{text}");
        assert!(text.contains(r#"spillway_connections_refused_total{listener="agents",reason="evicted"} 1"#), "{text}");
        assert!(text.contains(r#"spillway_tool_approvals_total{outcome="used"} 1"#), "{text}");
        assert!(text.contains("spillway_leader 1") && text.contains("spillway_owner_epoch 42"), "{text}");
    }
}
