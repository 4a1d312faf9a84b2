//! What is counted. Names follow Prometheus' conventions: a unit as suffix, `_total` on counters (added by the encoder).

mod collected;

use std::collections::HashSet;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::policy::breaker::State;
use crate::policy::work::book::Removal;
use collected::CollectedItems;

/// Seconds an item was ready before it was claimed: from at once to a day.
const WAIT_BUCKETS: [f64; 10] = [0.01, 0.05, 0.1, 0.5, 1.0, 10.0, 60.0, 600.0, 3600.0, 86400.0];
/// Seconds that a write waited for its turn: from not at all to when it is not sent any more.
const TURN_BUCKETS: [f64; 9] = [0.000_1, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0];
/// Seconds of a reconcile: from a look into memory to a burst of calls.
const RECONCILE_BUCKETS: [f64; 10] = [0.000_1, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Request {
    verb: &'static str,
    resource: String,
    code: u16,
}

/// Tokens of input that a call used, by those that were estimated: from far too many to many times too few.
const ESTIMATE_BUCKETS: [f64; 11] = [0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 5.0];
/// Seconds of a model call: from a refusal to an hour of streaming.
const MODEL_BUCKETS: [f64; 12] = [0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0, 600.0, 3600.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ModelCall {
    dialect: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfDialect {
    dialect: &'static str,
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

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Answered {
    call: &'static str,
    code: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RefusedCall {
    call: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Intervened {
    signal: &'static str,
    action: &'static str,
    done: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Entered {
    phase: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Notified {
    outcome: &'static str,
    webhook: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct InState {
    state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Missed {
    objective: &'static str,
}

/// A limit of a budget.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct Limit {
    /// Kind of the budget: Budget, ClusterBudget, Namespace (what a ClusterBudget leaves to one), Reservation.
    pub kind: &'static str,
    /// Its namespace; none: empty.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Name of the limit.
    pub limit: String,
}

/// How a limit stands, in weighed tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the metrics, whose help says what they are")]
pub struct Amounts {
    pub limit: i64,
    pub used: i64,
    pub held: i64,
    pub debt: i64,
    pub lost: i64,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfBreaker {
    namespace: String,
    breaker: String,
    circuit: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Moved {
    guard: &'static str,
    from: &'static str,
    to: &'static str,
}

#[derive(Default)]
struct Breakers {
    states: Family<OfBreaker, Gauge>,
    shown: Mutex<HashSet<OfBreaker>>,
    transitions: Family<Moved, Counter>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Because {
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfClass {
    listener: &'static str,
    class: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TurnedAway {
    listener: &'static str,
    reason: &'static str,
}

#[derive(Default)]
struct Connections {
    open: Family<OfClass, Gauge>,
    refused: Family<TurnedAway, Counter>,
}

impl Connections {
    fn register(registry: &mut Registry) -> Self {
        let connections = Self::default();
        let Self { open, refused } = &connections;
        registry.register("connections", "Connections by listener and class: strange, or known by a token", open.clone());
        registry.register("connections_refused", "Connections that were turned away, by listener and reason", refused.clone());
        connections
    }
}

#[derive(Default)]
struct Budgets {
    limit: Family<Limit, Gauge>,
    used: Family<Limit, Gauge>,
    held: Family<Limit, Gauge>,
    debt: Family<Limit, Gauge>,
    lost: Family<Limit, Gauge>,
    shown: Mutex<HashSet<Limit>>,
    refusals: Family<Because, Counter>,
}

impl Budgets {
    fn register(registry: &mut Registry) -> Self {
        let budgets = Self::default();
        let Self { limit, used, held, debt, lost, shown: _, refusals } = &budgets;
        registry.register("budget_limit_units", "A limit of a budget, grants among it, in weighed tokens", limit.clone());
        registry.register("budget_used_units", "Tokens settled in its present window", used.clone());
        registry.register("budget_held_units", "Tokens held for calls in flight", held.clone());
        registry.register("budget_debt_units", "Tokens overspent in the windows before", debt.clone());
        registry.register("budget_lost_units", "Tokens charged for gateways that went away", lost.clone());
        registry.register("budget_refusals", "Model calls that were not given tokens, by reason", refusals.clone());
        budgets
    }

    fn families(&self) -> [&Family<Limit, Gauge>; 5] {
        [&self.limit, &self.used, &self.held, &self.debt, &self.lost]
    }
}

struct Inner {
    registry: Registry,
    requests: Family<Request, Counter>,
    turns: Histogram,
    at_once: Gauge,
    reconciles: Family<Reconciled, Counter>,
    seconds: Family<Of, Histogram, fn() -> Histogram>,
    gated: Family<Of, Counter>,
    calls: Family<Answered, Counter>,
    refused: Family<RefusedCall, Counter>,
    interventions: Family<Intervened, Counter>,
    items: Family<Entered, Counter>,
    collected: CollectedItems,
    waits: Histogram,
    missed: Family<Missed, Counter>,
    budgets: Budgets,
    breakers: Breakers,
    estimates: Histogram,
    model_calls: Family<ModelCall, Histogram, fn() -> Histogram>,
    first_bytes: Family<OfDialect, Histogram, fn() -> Histogram>,
    notifications: Family<Notified, Counter>,
    connections: Connections,
    nodes: Family<InState, Gauge>,
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
        let turns = Histogram::new(TURN_BUCKETS);
        registry.register("api_write_wait_seconds", "Time that a write waited for its namespace's others", turns.clone());
        let at_once = Gauge::default();
        registry.register("api_writes_at_once", "Writes of one namespace that may be on their way to the API server", at_once.clone());
        let reconciles = Family::default();
        registry.register("reconciles", "Reconciles by controller and outcome", reconciles.clone());
        let seconds: Family<Of, Histogram, fn() -> Histogram> = Family::new_with_constructor(|| Histogram::new(RECONCILE_BUCKETS));
        registry.register("reconcile_seconds", "Duration of a reconcile", seconds.clone());
        let gated = Family::default();
        registry.register("cache_behind_own_write", "Reconciles put off because the cache had not seen our own last write", gated.clone());
        let calls = Family::default();
        registry.register("agent_calls", "Calls of agents by path and answer", calls.clone());
        let refused = Family::default();
        registry.register("agent_calls_refused", "Refused calls of agents by path and reason", refused.clone());
        let interventions = Family::default();
        registry.register(
            "interventions",
            "What the supervisor decided, by signal and action; done is false with mode Observe",
            interventions.clone(),
        );
        let items = Family::default();
        registry.register("items", "Items of work by the phase that was written", items.clone());
        let collected = CollectedItems::register(&mut registry);
        let waits = Histogram::new(WAIT_BUCKETS);
        registry.register("item_wait_seconds", "Time from an item's being ready to its claim", waits.clone());
        let missed = Family::default();
        registry.register("objectives_missed", "Items that missed an objective of their queue, by objective", missed.clone());
        let budgets = Budgets::register(&mut registry);
        let breakers = Breakers::default();
        registry.register("breaker_state", "State of a circuit: 0 closed, 1 half open, 2 open", breakers.states.clone());
        registry.register("breaker_transitions", "Circuits that moved, by guard, from one state to another", breakers.transitions.clone());
        let estimates = Histogram::new(ESTIMATE_BUCKETS);
        let help = "Tokens of input that a model call used, by those that were estimated for it";
        registry.register("budget_estimate_error_ratio", help, estimates.clone());
        let model_calls: Family<ModelCall, Histogram, fn() -> Histogram> = Family::new_with_constructor(|| Histogram::new(MODEL_BUCKETS));
        registry.register("gateway_request_seconds", "Duration of a model call, by dialect and outcome", model_calls.clone());
        let first_bytes: Family<OfDialect, Histogram, fn() -> Histogram> = Family::new_with_constructor(|| Histogram::new(MODEL_BUCKETS));
        registry.register("gateway_ttft_seconds", "Time from a model call to the first part of its answer", first_bytes.clone());
        let notifications = Family::default();
        registry.register("notifications", "Tries to tell a webhook, by outcome, and notices that were lost", notifications.clone());
        let connections = Connections::register(&mut registry);
        let nodes = Family::default();
        registry.register("nodes", "Nodes by whether they are heard of", nodes.clone());
        let leader = Gauge::default();
        registry.register("leader", "1 while this process leads", leader.clone());
        let epoch = Gauge::default();
        registry.register("owner_epoch", "Owner epoch of this process while it leads", epoch.clone());
        Self(Arc::new(Inner {
            registry,
            requests,
            turns,
            at_once,
            reconciles,
            seconds,
            gated,
            calls,
            refused,
            interventions,
            items,
            collected,
            waits,
            missed,
            budgets,
            breakers,
            estimates,
            model_calls,
            first_bytes,
            notifications,
            connections,
            nodes,
            leader,
            epoch,
        }))
    }
}

impl Metrics {
    /// One request to the API server was answered.
    pub fn api_request(&self, verb: &'static str, resource: &str, code: u16) {
        self.0.requests.get_or_create(&Request { verb, resource: resource.to_owned(), code }).inc();
    }

    /// A write waited for so long until it might be sent, or was not sent any more.
    pub fn write_waited(&self, time: Duration) {
        self.0.turns.observe(time.as_secs_f64());
    }

    /// So many writes of one namespace may be on their way.
    pub fn writes_at_once(&self, many: usize) {
        self.0.at_once.set(i64::try_from(many).unwrap_or(i64::MAX));
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

    /// A call of an agent was answered.
    pub fn call_answered(&self, call: &'static str, code: u16) {
        self.0.calls.get_or_create(&Answered { call, code }).inc();
    }

    /// A call of an agent was refused.
    pub fn call_refused(&self, call: &'static str, reason: &'static str) {
        self.0.refused.get_or_create(&RefusedCall { call, reason }).inc();
    }

    /// Model calls ended: tokens of input of each, those that were estimated and those that were used.
    pub fn estimated(&self, calls: impl IntoIterator<Item = (i64, i64)>) {
        let tokens = |amount: i64| f64::from(i32::try_from(amount).unwrap_or(i32::MAX));
        for (estimated, used) in calls {
            self.0.estimates.observe(tokens(used) / tokens(estimated.max(1)));
        }
    }

    /// The supervisor decided.
    pub fn intervention(&self, signal: &'static str, action: &'static str, done: bool) {
        let done = if done { "true" } else { "false" };
        self.0.interventions.get_or_create(&Intervened { signal, action, done }).inc();
    }

    /// An item's phase was written.
    pub fn item(&self, phase: &'static str) {
        self.0.items.get_or_create(&Entered { phase }).inc();
    }

    /// An item that ended was deleted.
    pub fn item_collected(&self, dead_letter: bool, removal: Removal) {
        self.0.collected.count(dead_letter, removal);
    }

    /// An item was claimed after it was ready for so long.
    pub fn waited(&self, time: Duration) {
        self.0.waits.observe(time.as_secs_f64());
    }

    /// An item missed an objective of its queue.
    pub fn objective_missed(&self, objective: &'static str) {
        self.0.missed.get_or_create(&Missed { objective }).inc();
    }

    /// So many nodes are in each state.
    pub fn nodes(&self, by_state: &[(&'static str, i64)]) {
        for (state, many) in by_state {
            self.0.nodes.get_or_create(&InState { state }).set(*many);
        }
    }

    /// How all limits stand. Those that are not among them are shown no more.
    pub fn budgets(&self, all: impl IntoIterator<Item = (Limit, Amounts)>) {
        let budgets = &self.0.budgets;
        let mut now = HashSet::new();
        for (labels, Amounts { limit, used, held, debt, lost }) in all {
            for (family, amount) in budgets.families().into_iter().zip([limit, used, held, debt, lost]) {
                family.get_or_create(&labels).set(amount);
            }
            now.insert(labels);
        }
        let mut shown = budgets.shown.lock().unwrap_or_else(PoisonError::into_inner);
        for gone in shown.difference(&now) {
            budgets.families().into_iter().for_each(|family| {
                family.remove(gone);
            });
        }
        *shown = now;
    }

    /// How all circuits stand: namespace, Breaker, circuit, state. Those that are not among them are shown no more.
    pub fn breakers(&self, all: impl IntoIterator<Item = (String, String, String, State)>) {
        let breakers = &self.0.breakers;
        let mut now = HashSet::new();
        for (namespace, breaker, circuit, state) in all {
            let labels = OfBreaker { namespace, breaker, circuit };
            let state = match state {
                State::Closed => 0,
                State::HalfOpen => 1,
                State::Open => 2,
            };
            breakers.states.get_or_create(&labels).set(state);
            now.insert(labels);
        }
        let mut shown = breakers.shown.lock().unwrap_or_else(PoisonError::into_inner);
        for gone in shown.difference(&now) {
            breakers.states.remove(gone);
        }
        *shown = now;
    }

    /// Circuits of a guard moved from one state to another, so many times.
    pub fn breaker_moved(&self, guard: &'static str, from: &'static str, to: &'static str, times: u64) {
        self.0.breakers.transitions.get_or_create(&Moved { guard, from, to }).inc_by(times);
    }

    /// A model call was not given tokens.
    pub fn budget_refused(&self, reason: &'static str) {
        self.0.budgets.refusals.get_or_create(&Because { reason }).inc();
    }

    /// A model call is over.
    pub fn model_call(&self, dialect: &'static str, outcome: &'static str, took: Duration) {
        self.0.model_calls.get_or_create(&ModelCall { dialect, outcome }).observe(took.as_secs_f64());
    }

    /// The first part of the answer of a model call is there.
    pub fn model_first_byte(&self, dialect: &'static str, took: Duration) {
        self.0.first_bytes.get_or_create(&OfDialect { dialect }).observe(took.as_secs_f64());
    }

    /// A webhook was told, or not.
    pub fn notification(&self, webhook: &str, outcome: &'static str) {
        self.0.notifications.get_or_create(&Notified { outcome, webhook: webhook.to_owned() }).inc();
    }

    /// So many connections a listener has.
    pub fn connections(&self, listener: &'static str, strange: usize, known: usize) {
        for (class, count) in [("strange", strange), ("known", known)] {
            self.0.connections.open.get_or_create(&OfClass { listener, class }).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// A listener turned a connection away, or did not let it become a known one.
    pub fn connection_refused(&self, listener: &'static str, reason: &'static str) {
        self.0.connections.refused.get_or_create(&TurnedAway { listener, reason }).inc();
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
        assert!(text.contains("spillway_leader 1") && text.contains("spillway_owner_epoch 42"), "{text}");
    }
}
