//! Converts Budgets, ClusterBudgets and namespaces to the facts from which `policy::budget` builds its places. Unset
//! fields get their value from the ClusterBudget that binds the namespace, else from built-in defaults.
//!
//! It must not decide what fits: the tree of places does. Invariant: an unset field never means "no limit".

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt;

use crate::api::agent_pool::Bulkhead;
use crate::api::budget::{self, RequestLimits, ThresholdAction, TokenPolicy};
use crate::api::cluster_budget::{BudgetDefaults, Defaults};
use crate::api::shared;
use crate::api::{Budget, ClusterBudget};
use crate::policy::budget::estimate::{Estimate, MAX_CALL_TOKENS, OnInsufficient};
use crate::policy::budget::facts::{BudgetFacts, ClusterFacts, Reservation, TokenLimit, Tokens};
use crate::policy::budget::node::{Action, Debt, Threshold};
use crate::policy::budget::share::Lifetime;
use crate::policy::budget::{CallTerms, Mode, Weights, Window};

/// Default lifetime tokens of an agent.
const DEFAULT_LIFETIME_TOKENS: i64 = 10_000;
/// Default time limit of a model turn, in seconds.
const DEFAULT_TURN_SECONDS: u32 = 600;
/// Default hourly tokens of a Budget.
const DEFAULT_HOURLY_TOKENS: i64 = 100_000;
/// Default number of concurrent model calls below a Budget.
const DEFAULT_MAX_IN_FLIGHT: i32 = 64;
/// Default number of calls of one agent in a second.
const DEFAULT_CALLS_PER_SECOND: i32 = 20;
/// Namespaces that one ClusterBudget can count: its status must be small enough to be stored.
pub const MAX_COUNTED_NAMESPACES: usize = 200;

/// The parts of a namespace that selectors and reservations need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Project {
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its creation time, in milliseconds.
    pub created: i64,
    /// The types of its pools.
    pub pool_types: BTreeSet<String>,
}

/// The facts from which the places are built.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// ClusterBudgets.
    pub clusters: Vec<ClusterFacts>,
    /// Budgets.
    pub budgets: Vec<BudgetFacts>,
    /// Selected namespaces beyond those that a ClusterBudget can count, with its name: their calls are refused.
    pub beyond: Vec<(String, String)>,
}

/// Makes the facts from the objects, and from the namespaces with pools or Budgets.
pub fn facts(clusters: &[&ClusterBudget], budgets: &[&Budget], projects: &BTreeMap<String, Project>) -> Facts {
    let mut facts = Facts::default();
    for cluster in clusters {
        let mut selected: Vec<(String, i64)> = projects
            .iter()
            .filter(|(_, project)| selects(&cluster.spec.namespace_selector, &project.labels))
            .map(|(name, project)| (name.clone(), project.created))
            .collect();
        selected.sort_by(|one, other| (one.1, &one.0).cmp(&(other.1, &other.0)));
        let beyond = selected.split_off(selected.len().min(MAX_COUNTED_NAMESPACES));
        facts.beyond.extend(beyond.into_iter().map(|(namespace, _)| (cluster.name_any(), namespace)));
        let per_namespace = cluster.spec.per_namespace.as_ref().and_then(|each| each.tokens.as_ref());
        let types = |(name, _): &(String, i64)| Some((name.clone(), projects.get(name)?.pool_types.clone()));
        facts.clusters.push(ClusterFacts {
            name: cluster.name_any(),
            created: created(*cluster),
            tokens: above(cluster.spec.tokens.as_ref()),
            per_namespace: above(per_namespace),
            pool_types: selected.iter().filter_map(types).collect(),
            namespaces: selected,
        });
    }
    for budget in budgets {
        let namespace = budget.namespace().unwrap_or_default();
        let project = projects.get(&namespace);
        let defaults = defaults_of(clusters, project).and_then(|defaults| defaults.budget.as_ref());
        let mut budget_facts = budget_facts(budget, &namespace, defaults);
        // A default reservation takes nothing from a namespace that has no pool of its type.
        if budget.spec.tokens.as_ref().is_none_or(|tokens| tokens.reservations.is_none()) {
            let exists = |share: &Reservation| project.is_some_and(|project| share.is_for_one_of(&project.pool_types));
            budget_facts.tokens.reservations.retain(exists);
        }
        facts.budgets.push(budget_facts);
    }
    facts
}

fn created(object: &impl ResourceExt) -> i64 {
    object.creation_timestamp().map_or(0, |time| time.0.as_millisecond())
}

/// The defaults for a namespace: those of the oldest ClusterBudget that selects it.
pub fn defaults_of<'a>(clusters: &[&'a ClusterBudget], project: Option<&Project>) -> Option<&'a Defaults> {
    let labels = &project?.labels;
    let ours = clusters.iter().filter(|cluster| selects(&cluster.spec.namespace_selector, labels));
    ours.min_by_key(|cluster| (created(**cluster), cluster.name_any()))?.spec.defaults.as_ref()
}

/// Whether a selector matches. An unknown operator matches nothing: a selector that cannot be read binds no namespace.
pub fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let equal = selector.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    let expressions = selector.match_expressions.iter().flatten();
    equal
        && expressions.into_iter().all(|one| {
            let value = labels.get(&one.key);
            let among = value.is_some_and(|value| one.values.iter().flatten().any(|other| other == value));
            match one.operator.as_str() {
                "In" => among,
                "NotIn" => !among,
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        })
}

/// One bulkhead field of a pool, or, if unset, of the ClusterBudget that binds its namespace.
pub fn bulkhead<T>(own: Option<&Bulkhead>, defaults: Option<&Defaults>, field: fn(&Bulkhead) -> Option<T>) -> Option<T> {
    let default = defaults.and_then(|defaults| defaults.bulkhead.as_ref());
    [own, default].into_iter().flatten().find_map(field)
}

/// The lifetime tokens of an agent after this many top-ups.
pub fn lifetime(own: Option<&Bulkhead>, defaults: Option<&Defaults>, taken: u32) -> Lifetime {
    let tokens = bulkhead(own, defaults, |bulkhead| bulkhead.lifetime_tokens).unwrap_or(DEFAULT_LIFETIME_TOKENS);
    let top_up = bulkhead(own, defaults, |bulkhead| bulkhead.top_up.as_ref().map(|top_up| (top_up.tokens, top_up.max)));
    let (top_up, max) = top_up.unwrap_or((0, 0));
    Lifetime { tokens, top_up, max: u32::try_from(max).unwrap_or(0), taken }
}

/// The time limit of a model turn of a pool, in seconds.
pub fn turn_seconds(own: Option<&Bulkhead>, defaults: Option<&Defaults>) -> u32 {
    let seconds = bulkhead(own, defaults, |bulkhead| bulkhead.model_turn_timeout_seconds);
    seconds.and_then(|seconds| u32::try_from(seconds).ok()).unwrap_or(DEFAULT_TURN_SECONDS)
}

/// The number of calls that one agent of a pool with this Budget may make in a second.
pub fn per_second(budget: Option<&Budget>, defaults: Option<&Defaults>) -> u32 {
    let own = budget.and_then(|budget| budget.spec.requests.as_ref());
    let default = defaults.and_then(|defaults| defaults.budget.as_ref()).and_then(|budget| budget.requests.as_ref());
    positive(requests(own, default, |limits| limits.per_agent_per_second).unwrap_or(DEFAULT_CALLS_PER_SECOND))
}

fn requests(own: Option<&RequestLimits>, default: Option<&RequestLimits>, field: fn(&RequestLimits) -> Option<i32>) -> Option<i32> {
    [own, default].into_iter().flatten().find_map(field)
}

fn positive(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

fn budget_facts(budget: &Budget, namespace: &str, defaults: Option<&BudgetDefaults>) -> BudgetFacts {
    let spec = &budget.spec;
    let in_flight = requests(spec.requests.as_ref(), defaults.and_then(|budget| budget.requests.as_ref()), |limits| limits.max_in_flight);
    let written = spec.thresholds.as_ref().or_else(|| defaults.and_then(|budget| budget.thresholds.as_ref()));
    let built_in = || vec![(80, Action::Warn), (90, Action::Notify), (100, Action::Pause)];
    let thresholds = written.map_or_else(built_in, |all| all.iter().map(|one| (i64::from(one.percent), action(one.action))).collect());
    BudgetFacts {
        namespace: namespace.to_owned(),
        name: budget.name_any(),
        created: created(budget),
        mode: match spec.mode {
            shared::Mode::Enforce => Mode::Enforce,
            shared::Mode::Observe => Mode::Observe,
            shared::Mode::Disabled => Mode::Disabled,
        },
        parent: spec.parent_ref.as_ref().map(|parent| parent.name.clone()),
        tokens: tokens(spec.tokens.as_ref(), defaults.and_then(|budget| budget.tokens.as_ref())),
        thresholds: thresholds.into_iter().map(|(percent, action)| Threshold { percent, action }).collect(),
        max_in_flight: Some(positive(in_flight.unwrap_or(DEFAULT_MAX_IN_FLIGHT))),
    }
}

/// The action of a threshold.
pub fn action(action: ThresholdAction) -> Action {
    match action {
        ThresholdAction::Log => Action::Log,
        ThresholdAction::Warn => Action::Warn,
        ThresholdAction::Notify => Action::Notify,
        ThresholdAction::Pause => Action::Pause,
        ThresholdAction::Reap => Action::Reap,
    }
}

/// The token policy of a Budget: for each field its own value, else the default of the ClusterBudget, else the built-in
/// one.
fn tokens(own: Option<&TokenPolicy>, default: Option<&TokenPolicy>) -> Tokens {
    let either = |field: fn(&TokenPolicy) -> bool| [own, default].into_iter().flatten().find(|policy| field(policy));
    let hourly = || vec![TokenLimit { name: "hourly".to_owned(), window: Window::Hour, tokens: DEFAULT_HOURLY_TOKENS, guaranteed: 0 }];
    let defaulted = || default.filter(|policy| policy.limits.is_some()).map_or_else(hourly, limits_of);
    let reservations = either(|policy| policy.reservations.is_some());
    let weights = either(|policy| policy.weights_permille.is_some());
    let built_in = CallTerms::default();
    let terms = CallTerms {
        max_output: [own, default].into_iter().flatten().find_map(max_output).unwrap_or(built_in.max_output),
        min_output: [own, default].into_iter().flatten().find_map(min_output).unwrap_or(built_in.min_output),
        estimate: either(|policy| policy.estimate.is_some()).map_or(built_in.estimate, estimate),
        on_insufficient: either(|policy| policy.on_insufficient.is_some()).map_or(built_in.on_insufficient, on_insufficient),
    };
    Tokens {
        limits: own.filter(|policy| policy.limits.is_some()).map_or_else(defaulted, limits_of),
        reservations: reservations.map(reservations_of).unwrap_or_default(),
        weights: weights.map(weights_of).unwrap_or_default(),
        terms: Some(terms),
        debt: either(|policy| policy.debt.is_some()).map(debt).unwrap_or_default(),
    }
}

/// The token policy of a place above Budgets: an unset field limits nothing there, so that the value of the Budget
/// applies.
fn above(policy: Option<&TokenPolicy>) -> Tokens {
    let Some(policy) = policy else { return Tokens::default() };
    let TokenPolicy { max_output_tokens_per_request, min_output_tokens, estimate: estimated, on_insufficient: insufficient, .. } = policy;
    let says = max_output_tokens_per_request.is_some() || min_output_tokens.is_some() || estimated.is_some() || insufficient.is_some();
    let terms = CallTerms {
        max_output: max_output(policy).unwrap_or(MAX_CALL_TOKENS),
        min_output: min_output(policy).unwrap_or(CallTerms::default().min_output),
        estimate: estimate(policy),
        on_insufficient: on_insufficient(policy),
    };
    Tokens {
        limits: limits_of(policy),
        reservations: reservations_of(policy),
        weights: weights_of(policy),
        terms: says.then_some(terms),
        debt: debt(policy),
    }
}

fn max_output(policy: &TokenPolicy) -> Option<i64> {
    policy.max_output_tokens_per_request.map(i64::from)
}

fn min_output(policy: &TokenPolicy) -> Option<i64> {
    policy.min_output_tokens.map(i64::from)
}

fn estimate(policy: &TokenPolicy) -> Estimate {
    match policy.estimate {
        Some(budget::Estimate::Bytes) => Estimate::Bytes,
        Some(budget::Estimate::Ratio) | None => Estimate::Ratio,
    }
}

fn on_insufficient(policy: &TokenPolicy) -> OnInsufficient {
    match policy.on_insufficient {
        Some(budget::OnInsufficient::Reject) => OnInsufficient::Reject,
        Some(budget::OnInsufficient::ClampOutput) | None => OnInsufficient::ClampOutput,
    }
}

fn debt(policy: &TokenPolicy) -> Debt {
    match policy.debt {
        Some(budget::Debt::Forgive) => Debt::Forgive,
        Some(budget::Debt::Next) | None => Debt::CarryOver,
    }
}

fn limits_of(policy: &TokenPolicy) -> Vec<TokenLimit> {
    let limit = |limit: &budget::TokenLimit| TokenLimit {
        name: limit.name.clone(),
        window: window(limit.window),
        tokens: limit.tokens,
        guaranteed: limit.guaranteed.unwrap_or(0),
    };
    policy.limits.iter().flatten().map(limit).collect()
}

/// Converts a window of the API.
pub fn window(window: budget::Window) -> Window {
    match window {
        budget::Window::Minute => Window::Minute,
        budget::Window::Hour => Window::Hour,
        budget::Window::Day => Window::Day,
        budget::Window::Week => Window::Week,
        budget::Window::Month => Window::Month,
        budget::Window::Lifetime => Window::Lifetime,
    }
}

fn reservations_of(policy: &TokenPolicy) -> Vec<Reservation> {
    let reservation = |share: &budget::Reservation| Reservation {
        name: share.name.clone(),
        pool_types: share.pool_types.clone(),
        percent: i64::from(share.percent),
        cap: share.cap.unwrap_or(false),
    };
    policy.reservations.iter().flatten().map(reservation).collect()
}

fn weights_of(policy: &TokenPolicy) -> Weights {
    let budget::Weights { input, output, cache_read, cache_write } = policy.weights_permille.clone().unwrap_or_default();
    let or = |weight: Option<i32>, even: i64| weight.map_or(even, i64::from);
    let even = Weights::default();
    Weights {
        input: or(input, even.input),
        output: or(output, even.output),
        cache_read: or(cache_read, even.cache_read),
        cache_write: or(cache_write, even.cache_write),
    }
}

/// The namespaces with a pool or a Budget. A namespace that was created a moment ago and is not in the cache is left
/// out: calls for it are answered with "not known yet".
pub fn projects(known: &BTreeMap<String, Project>, with_something: impl IntoIterator<Item = String>) -> BTreeMap<String, Project> {
    let names: BTreeSet<String> = with_something.into_iter().collect();
    names.into_iter().filter_map(|name| known.get(&name).cloned().map(|project| (name, project))).collect()
}

#[cfg(test)]
#[path = "facts_tests.rs"]
mod tests;
