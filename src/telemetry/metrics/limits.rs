//! Budgets and circuit breakers.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::{Metrics, registered};
use crate::policy::breaker::State;

/// Used tokens of input divided by the estimate: from a much too high to a much too low estimate.
const ESTIMATE_RATIO_BUCKETS: [f64; 11] = [0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 5.0];

/// A limit of a budget.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct Limit {
    /// Kind of the budget: Budget, ClusterBudget, Namespace (the share that a ClusterBudget leaves to one namespace),
    /// Reservation.
    pub kind: &'static str,
    /// Its namespace. Empty: it has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Name of the limit.
    pub limit: String,
}

/// The state of a limit, in weighted tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the metrics, whose help explains them")]
pub struct Amounts {
    pub limit: i64,
    pub used: i64,
    pub held: i64,
    pub debt: i64,
    pub lost: i64,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct BreakerLabels {
    namespace: String,
    breaker: String,
    circuit: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TransitionLabels {
    guard: &'static str,
    from: &'static str,
    to: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CauseLabels {
    reason: &'static str,
}

#[derive(Default)]
pub(super) struct Breakers {
    states: Family<BreakerLabels, Gauge>,
    shown: Mutex<HashSet<BreakerLabels>>,
    transitions: Family<TransitionLabels, Counter>,
}

impl Breakers {
    pub(super) fn register(registry: &mut Registry) -> Self {
        Self {
            states: registered(registry, "breaker_state", "State of a circuit: 0 closed, 1 half open, 2 open", Family::default()),
            shown: Mutex::default(),
            transitions: registered(
                registry,
                "breaker_transitions",
                "Transitions of circuits by guard, and by the states before and after",
                Family::default(),
            ),
        }
    }
}

pub(super) struct Budgets {
    limit: Family<Limit, Gauge>,
    used: Family<Limit, Gauge>,
    held: Family<Limit, Gauge>,
    debt: Family<Limit, Gauge>,
    lost: Family<Limit, Gauge>,
    shown: Mutex<HashSet<Limit>>,
    refusals: Family<CauseLabels, Counter>,
    estimates: Histogram,
}

impl Budgets {
    pub(super) fn register(registry: &mut Registry) -> Self {
        Self {
            limit: registered(registry, "budget_limit_units", "Limit of a budget with its grants, in weighted tokens", Family::default()),
            used: registered(
                registry,
                "budget_used_units",
                "Tokens that were settled in the present window of the limit",
                Family::default(),
            ),
            held: registered(registry, "budget_held_units", "Tokens that are held for calls in flight", Family::default()),
            debt: registered(registry, "budget_debt_units", "Tokens that were overspent in earlier windows", Family::default()),
            lost: registered(registry, "budget_lost_units", "Tokens that were charged for lost gateways", Family::default()),
            shown: Mutex::default(),
            refusals: registered(registry, "budget_refusals", "Model calls that were refused tokens, by reason", Family::default()),
            estimates: registered(
                registry,
                "budget_estimate_error_ratio",
                "Used tokens of input of a model call, divided by the estimate",
                Histogram::new(ESTIMATE_RATIO_BUCKETS),
            ),
        }
    }

    fn families(&self) -> [&Family<Limit, Gauge>; 5] {
        [&self.limit, &self.used, &self.held, &self.debt, &self.lost]
    }
}

impl Metrics {
    /// Model calls ended: the estimated and the used tokens of input of each.
    pub fn estimated(&self, calls: impl IntoIterator<Item = (i64, i64)>) {
        let tokens = |amount: i64| f64::from(i32::try_from(amount).unwrap_or(i32::MAX));
        for (estimated, used) in calls {
            self.0.budgets.estimates.observe(tokens(used) / tokens(estimated.max(1)));
        }
    }

    /// Sets the state of all limits. The series of other limits are removed.
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

    /// Sets the states of all circuits: namespace, Breaker, circuit, state. The series of other circuits are removed.
    pub fn breakers(&self, all: impl IntoIterator<Item = (String, String, String, State)>) {
        let breakers = &self.0.breakers;
        let mut now = HashSet::new();
        for (namespace, breaker, circuit, state) in all {
            let labels = BreakerLabels { namespace, breaker, circuit };
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

    /// Circuits of a guard changed from one state to another, `times` times.
    pub fn breaker_moved(&self, guard: &'static str, from: &'static str, to: &'static str, times: u64) {
        self.0.breakers.transitions.get_or_create(&TransitionLabels { guard, from, to }).inc_by(times);
    }

    /// A model call was refused tokens.
    pub fn budget_refused(&self, reason: &'static str) {
        self.0.budgets.refusals.get_or_create(&CauseLabels { reason }).inc();
    }
}
