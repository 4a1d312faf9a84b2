//! The status of a Budget or a ClusterBudget: the window nearest to its limit, its conditions, and its events.
//!
//! The only module that makes these conditions. The compute part of a Budget has its own condition (`QuotaApplied`, by
//! its controller). A conflict in it stalls the Budget here. Nothing here does I/O.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::api::budget::{AgentUsage, BudgetStatus, Tightest};
use crate::api::cluster_budget::{ClusterBudgetStatus, NamespaceUsage};
use crate::api::conditions::{reasons, types};
use crate::controller::conditions::{Builder, find, with_stored_messages};
use crate::policy::budget::facts::Defect;
use crate::policy::budget::node::Block;
use crate::policy::budget::{Key, LimitView, MAX_BUDGET_DEPTH, Mode};

/// The condition types that this module makes. Others write all other types.
const OWNED_CONDITION_TYPES: [&str; 4] = [types::READY, types::NEAR_LIMIT, types::BLOCKED, types::STALLED];
/// Maximum number of namespaces in the status of a ClusterBudget.
const MAX_STATUS_NAMESPACES: usize = 400;
/// Used percentage of a limit from which a budget without thresholds is near it.
const NEAR_LIMIT_PERCENT: i64 = 80;

/// The state of a budget in memory.
#[derive(Clone, Debug)]
pub struct BudgetStanding<'a> {
    /// The state of its limits.
    pub views: &'a [LimitView],
    /// Its mode.
    pub mode: Mode,
    /// The lowest of its thresholds, in percent.
    pub lowest: Option<i64>,
    /// The defects of its spec.
    pub defects: &'a [Defect],
    /// The number of selected namespaces beyond those that it can count.
    pub uncounted_namespaces: usize,
}

/// The part of a status that is written here.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PublishedStatus {
    /// The generation that the status describes.
    pub generation: i64,
    /// The window nearest to its limit.
    pub tightest: Option<Tightest>,
    /// The number of agents with a pod, in total and by namespace. `None` if they were not counted yet.
    pub agents: Option<AgentCounts>,
    /// All conditions, including those of other writers.
    pub conditions: Vec<Condition>,
}

/// Numbers of agents with a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentCounts {
    /// The total.
    pub all: u64,
    /// For a ClusterBudget, the number in each namespace that has any.
    pub by_namespace: BTreeMap<String, u64>,
}

impl AgentCounts {
    /// Selects the numbers of one record from the counts of all places.
    pub fn of(agents: &BTreeMap<Key, u64>, record: &Key) -> Self {
        let all = agents.get(record).copied().unwrap_or(0);
        let by_namespace = agents.iter().filter_map(|(key, count)| match key {
            Key::Namespace { cluster, namespace } if *record == Key::Cluster(cluster.clone()) => Some((namespace.clone(), *count)),
            Key::Namespace { .. } | Key::Cluster(_) | Key::Budget { .. } | Key::Share { .. } | Key::Agent(_) | Key::Task { .. } => None,
        });
        Self { all, by_namespace: by_namespace.collect() }
    }

    /// A number for the status. Zero is shown only if the status had a number before.
    fn usage_status(count: u64, stored: Option<&AgentUsage>) -> Option<AgentUsage> {
        let used = i32::try_from(count).unwrap_or(i32::MAX);
        (used > 0 || stored.is_some()).then_some(AgentUsage { used })
    }

    /// Writes the numbers into the status of a Budget.
    pub fn into_budget(&self, status: &mut BudgetStatus) {
        status.agents = Self::usage_status(self.all, status.agents.as_ref());
    }

    /// Writes the numbers into the status of a ClusterBudget. The token usage of namespaces stays.
    pub fn into_cluster(&self, status: &mut ClusterBudgetStatus) {
        status.agents = Self::usage_status(self.all, status.agents.as_ref());
        let mut namespaces: BTreeMap<String, NamespaceUsage> = status
            .namespaces
            .take()
            .into_iter()
            .flatten()
            .map(|usage| (usage.name.clone(), NamespaceUsage { agents: None, ..usage }))
            .collect();
        for (name, count) in &self.by_namespace {
            if namespaces.len() < MAX_STATUS_NAMESPACES || namespaces.contains_key(name) {
                let empty = || NamespaceUsage { name: name.clone(), windows: None, reservations: None, agents: None };
                namespaces.entry(name.clone()).or_insert_with(empty).agents = Self::usage_status(*count, None);
            }
        }
        namespaces.retain(|_, usage| usage.agents.is_some() || usage.windows.is_some() || usage.reservations.is_some());
        status.namespaces = Some(namespaces.into_values().collect::<Vec<_>>()).filter(|all| !all.is_empty());
    }
}

/// An event about a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetNews {
    /// Whether it is a warning.
    pub warning: bool,
    /// The reason of the event.
    pub reason: String,
    /// The message of the event.
    pub note: String,
}

fn spent(view: &LimitView) -> i64 {
    let LimitView { used, lost, unexplained: rest, debt: carried, .. } = view;
    [used, lost, rest, carried].into_iter().fold(0_i64, |sum, amount| sum.saturating_add(*amount))
}

/// Settled or charged tokens. Tokens that a previous leader gave and that are not explained yet are no reason to alarm
/// people.
fn known_spent(view: &LimitView) -> i64 {
    spent(view).saturating_sub(view.unexplained)
}

/// The window nearest to its limit. Its end is shown only when something is counted in it, so that an idle budget is
/// not written each minute.
pub fn tightest(views: &[LimitView]) -> Option<Tightest> {
    let share = |view: &&LimitView| (i128::from(view.left) << 32) / i128::from(view.height.max(1));
    let view = views.iter().min_by_key(share)?;
    let counted = spent(view).saturating_add(view.held) > 0;
    let resets = view.span.end().filter(|_| counted).and_then(|end| Timestamp::from_millisecond(end).ok());
    Some(Tightest {
        name: Some(view.limit.clone()),
        limit: Some(view.height),
        used: Some(spent(view)),
        held: Some(view.held),
        left: Some(view.left),
        reset_time: resets.map(Time),
    })
}

fn defect_condition(defect: &Defect) -> (&'static str, String) {
    match defect {
        Defect::Blocked(Block::ParentMissing(parent)) => (
            reasons::PARENT_MISSING,
            format!(
                "this Budget gives no tokens: Budget/{parent}, which this Budget or a parent names in spec.parentRef, does not exist. Create it, or change spec.parentRef"
            ),
        ),
        Defect::Blocked(Block::Cycle(names)) => {
            let words = format!(
                "this Budget gives no tokens: spec.parentRef forms a cycle of the Budgets {}. Remove spec.parentRef from one of them",
                names.join(", ")
            );
            (reasons::PARENT_CYCLE, words)
        }
        Defect::Blocked(Block::TooDeep) => {
            let words = format!(
                "this Budget gives no tokens: it and its parents (spec.parentRef) are more than {MAX_BUDGET_DEPTH} Budgets. Remove spec.parentRef from one of them"
            );
            (reasons::TOO_MANY_PARENTS, words)
        }
        Defect::GuaranteesExceedParent { limit, left } => (
            reasons::GUARANTEES_EXCEED_PARENT,
            format!("guaranteed of the limit {limit} counts as 0: the guarantees of older Budgets leave {left} tokens of the parent"),
        ),
        Defect::GuaranteeOtherWeights { limit } => (
            reasons::GUARANTEE_OTHER_WEIGHTS,
            format!("guaranteed of the limit {limit} counts as 0: weightsPermille differs from that of the parent"),
        ),
        Defect::NamespaceTaken { namespace, other: by } => {
            (reasons::NAMESPACE_TAKEN, format!("ClusterBudget/{by}, which is older, already binds the namespace {namespace}"))
        }
    }
}

fn stalled(standing: &BudgetStanding, stored: &[Condition]) -> Option<(&'static str, String)> {
    if standing.uncounted_namespaces > 0 {
        let message = format!(
            "this ClusterBudget selects {} namespaces more than it can count, and their model calls are refused",
            standing.uncounted_namespaces
        );
        return Some((reasons::TOO_MANY_NAMESPACES, message));
    }
    // Defects of the token limits come first.
    let Some(worst) = standing.defects.iter().min() else {
        let conflict = find(stored, types::QUOTA_APPLIED).filter(|quota| quota.reason == reasons::COMPUTE_CONFLICT);
        return conflict.map(|quota| (reasons::COMPUTE_CONFLICT, quota.message.clone()));
    };
    let (reason, message) = defect_condition(worst);
    let others = standing.defects.len() - 1;
    Some((reason, if others > 0 { format!("{message} (and {others} more)") } else { message }))
}

fn blocked(standing: &BudgetStanding) -> Option<(&'static str, String)> {
    match standing.mode {
        Mode::Enforce => {}
        Mode::Observe | Mode::Disabled => return None,
    }
    let resets = |view: &LimitView| match view.span.end().and_then(|end| Timestamp::from_millisecond(end).ok()) {
        Some(end) => format!("until {end}, or until spec.tokens.limits[{}].tokens is raised", view.limit),
        None => format!("until spec.tokens.limits[{}].tokens is raised", view.limit),
    };
    // If less is left than a call needs, all calls are refused that do not ask for less.
    let spent = standing.views.iter().find(|view| known_spent(view) > view.height.saturating_sub(view.least));
    if let Some(view) = spent {
        let message = format!("the limit {} of {} tokens is spent: model calls are refused {}", view.limit, view.height, resets(view));
        return Some((reasons::BUDGET_EXHAUSTED, message));
    }
    let paused = standing.views.iter().find(|view| view.paused)?;
    Some((reasons::PAUSED_BY_THRESHOLD, format!("a threshold of the limit {} pauses model calls {}", paused.limit, resets(paused))))
}

/// The status to be written.
pub fn next_status(
    generation: i64,
    stored: &[Condition],
    standing: &BudgetStanding,
    agents: Option<AgentCounts>,
    now: Timestamp,
) -> PublishedStatus {
    let build = Builder { stored, generation, now };
    let stalled = stalled(standing, stored);
    let gives_nothing = standing.defects.iter().any(|defect| matches!(defect, Defect::Blocked(_)));
    let ready = match (&stalled, standing.mode) {
        (Some((reason, message)), _) if gives_nothing => build.build(types::READY, false, reason, message.clone()),
        (_, Mode::Enforce) => build.build(types::READY, true, reasons::METERED, "calls are counted, and refused beyond the limits"),
        (_, Mode::Observe) => build.build(types::READY, true, reasons::METERED, "calls are counted and never refused (spec.mode: Observe)"),
        (_, Mode::Disabled) => build.build(types::READY, true, reasons::METERED, "nothing is counted (spec.mode: Disabled)"),
    };
    let percent = standing.lowest.unwrap_or(NEAR_LIMIT_PERCENT);
    let near = standing
        .views
        .iter()
        .find(|view| view.height > 0 && i128::from(known_spent(view)) * 100 >= i128::from(view.height) * i128::from(percent));
    let near = match near {
        Some(view) => {
            let message = format!("{percent} % or more of the limit {} is spent", view.limit);
            build.build(types::NEAR_LIMIT, true, reasons::THRESHOLD_REACHED, message)
        }
        None => build.build(types::NEAR_LIMIT, false, reasons::BELOW_LIMIT, format!("less than {percent} % of each limit is spent")),
    };
    let blocked = match blocked(standing) {
        Some((reason, message)) => build.build(types::BLOCKED, true, reason, message),
        None => build.build(types::BLOCKED, false, reasons::NOT_BLOCKED, "no calls are blocked"),
    };
    let stalled = match stalled {
        Some((reason, message)) => build.build(types::STALLED, true, reason, message),
        None => build.build(types::STALLED, false, reasons::NO_DEFECT, "the spec has no defect"),
    };
    let others = stored.iter().filter(|condition| !OWNED_CONDITION_TYPES.contains(&condition.type_.as_str())).cloned();
    let ours = with_stored_messages(&[ready, near, blocked], stored);
    // The message of the stall names other objects and not changing amounts, so it is always the current one.
    PublishedStatus { generation, tightest: tightest(standing.views), agents, conditions: others.chain(ours).chain([stalled]).collect() }
}

/// The events for conditions that changed their status.
pub fn news(before: &[Condition], now: &[Condition]) -> Vec<BudgetNews> {
    let turned = |type_: &str| {
        let is = find(now, type_)?;
        let was = find(before, type_).is_some_and(|was| was.status == "True");
        (was != (is.status == "True")).then_some(is)
    };
    let mut all = Vec::new();
    for (type_, over) in [(types::STALLED, None), (types::BLOCKED, Some("Unblocked")), (types::NEAR_LIMIT, None)] {
        let Some(is) = turned(type_) else { continue };
        // The writer of `QuotaApplied` has reported it.
        if is.reason == reasons::COMPUTE_CONFLICT {
            continue;
        }
        if is.status == "True" {
            all.push(BudgetNews { warning: type_ != types::NEAR_LIMIT, reason: is.reason.clone(), note: is.message.clone() });
        } else if let Some(over) = over {
            all.push(BudgetNews { warning: false, reason: over.to_owned(), note: "model calls get tokens again".to_owned() });
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000;

    fn view(used: i64, held: i64, height: i64) -> LimitView {
        LimitView {
            limit: "hourly".into(),
            span: crate::policy::budget::Window::Hour.at(HOUR),
            height,
            used,
            held,
            lost: 0,
            unexplained: 0,
            debt: 0,
            reserved: 0,
            left: (height - used - held).max(0),
            least: 1,
            paused: false,
            reaping: false,
        }
    }

    fn of(views: &[LimitView], defects: &[Defect]) -> PublishedStatus {
        let standing = BudgetStanding { views, mode: Mode::Enforce, lowest: Some(80), defects, uncounted_namespaces: 0 };
        next_status(3, &[], &standing, None, Timestamp::UNIX_EPOCH)
    }

    fn status(said: &PublishedStatus, type_: &str) -> (String, String) {
        let found = find(&said.conditions, type_).expect("it is always there");
        (found.status.clone(), found.reason.clone())
    }

    #[test]
    fn each_state_has_its_conditions() {
        let yes = |reason: &str| ("True".to_owned(), reason.to_owned());
        let no = |reason: &str| ("False".to_owned(), reason.to_owned());
        let idle = of(&[view(0, 0, 100)], &[]);
        assert_eq!((status(&idle, "Ready"), status(&idle, "Blocked")), (yes("Metered"), no("NotBlocked")));
        assert_eq!((status(&idle, "NearLimit"), status(&idle, "Stalled")), (no("BelowLimit"), no("NoDefect")));
        assert_eq!(idle.tightest.and_then(|tightest| tightest.reset_time), None, "nothing is counted: nothing to tell each window");
        let near = of(&[view(80, 0, 100)], &[]);
        assert_eq!((status(&near, "NearLimit"), status(&near, "Blocked")), (yes("ThresholdReached"), no("NotBlocked")));
        let held = of(&[view(10, 90, 100)], &[]);
        assert_eq!((status(&held, "NearLimit"), status(&held, "Blocked")), (no("BelowLimit"), no("NotBlocked")), "holds come back");
        let spent = of(&[view(100, 0, 100)], &[]);
        assert_eq!((status(&spent, "Blocked"), status(&spent, "Ready")), (yes("BudgetExhausted"), yes("Metered")));
        let nearly = of(&[LimitView { least: 10, ..view(91, 0, 100) }], &[]);
        assert_eq!(status(&nearly, "Blocked"), yes("BudgetExhausted"), "no call can be made of what is left");
        let paused = of(&[LimitView { paused: true, ..view(90, 0, 100) }], &[]);
        assert_eq!(status(&paused, "Blocked"), yes("PausedByThreshold"));
        let lost = of(&[], &[Defect::Blocked(Block::ParentMissing("gone".into()))]);
        assert_eq!((status(&lost, "Ready"), status(&lost, "Stalled")), (no("ParentMissing"), yes("ParentMissing")));
        let unsure = of(&[view(0, 0, 100)], &[Defect::GuaranteesExceedParent { limit: "hourly".into(), left: 5 }]);
        assert_eq!((status(&unsure, "Ready"), status(&unsure, "Stalled")), (yes("Metered"), yes("GuaranteesExceedParent")));
    }

    #[test]
    fn agents_are_counted_by_their_budgets_and_namespaces_that_have_none_say_nothing() {
        let namespace = |name: &str| Key::Namespace { cluster: "c".into(), namespace: name.into() };
        let agents = BTreeMap::from([(Key::Cluster("c".into()), 3), (namespace("a"), 2), (namespace("b"), 1), (Key::budget("a", "x"), 2)]);
        let mut budget = BudgetStatus::default();
        AgentCounts::of(&agents, &Key::budget("a", "none")).into_budget(&mut budget);
        assert_eq!(budget.agents, None);
        AgentCounts::of(&agents, &Key::budget("a", "x")).into_budget(&mut budget);
        assert_eq!(budget.agents, Some(AgentUsage { used: 2 }));
        AgentCounts::default().into_budget(&mut budget);
        assert_eq!(budget.agents, Some(AgentUsage { used: 0 }), "where there were some, that there are none is told");
        let used = NamespaceUsage { name: "z".into(), windows: Some(Vec::new()), reservations: None, agents: Some(AgentUsage { used: 9 }) };
        let mut cluster = ClusterBudgetStatus { namespaces: Some(vec![used]), ..ClusterBudgetStatus::default() };
        AgentCounts::of(&agents, &Key::Cluster("c".into())).into_cluster(&mut cluster);
        let told = |cluster: &ClusterBudgetStatus| -> Vec<(String, Option<i32>)> {
            let all = cluster.namespaces.iter().flatten();
            all.map(|usage| (usage.name.clone(), usage.agents.as_ref().map(|agents| agents.used))).collect()
        };
        assert_eq!(told(&cluster), [("a".to_owned(), Some(2)), ("b".to_owned(), Some(1)), ("z".to_owned(), None)], "its tokens stay");
        AgentCounts::default().into_cluster(&mut cluster);
        assert_eq!((told(&cluster), cluster.agents), (vec![("z".to_owned(), None)], Some(AgentUsage { used: 0 })));
    }

    #[test]
    fn the_tightest_is_the_one_with_the_smallest_share_left() {
        let day = LimitView { limit: "daily".into(), ..view(10, 0, 1000) };
        let tightest = tightest(&[day, view(30, 20, 100)]).expect("there are limits");
        assert_eq!((tightest.name.as_deref(), tightest.left, tightest.used, tightest.held), (Some("hourly"), Some(50), Some(30), Some(20)));
        assert!(tightest.reset_time.is_some());
    }

    #[test]
    fn a_conflict_of_compute_stalls_it_until_that_is_over() {
        let quota = |message: &str| {
            Builder { stored: &[], generation: 3, now: Timestamp::UNIX_EPOCH }.build("QuotaApplied", false, "ComputeConflict", message)
        };
        let say = |stored: &[Condition], defects: &[Defect]| {
            let standing = BudgetStanding { views: &[], mode: Mode::Enforce, lowest: None, defects, uncounted_namespaces: 0 };
            next_status(3, stored, &standing, None, Timestamp::UNIX_EPOCH)
        };
        let stalled = |said: &PublishedStatus| find(&said.conditions, "Stalled").expect("it is always there").clone();
        let first = say(&[quota("Budget/old is older")], &[]);
        assert_eq!((status(&first, "Stalled").1.as_str(), stalled(&first).message.as_str()), ("ComputeConflict", "Budget/old is older"));
        assert_eq!(status(&first, "Ready"), ("True".into(), "Metered".into()), "its tokens are counted");
        assert!(first.conditions.contains(&quota("Budget/old is older")), "it stays who wrote it");
        assert_eq!(news(&[], &first.conditions), [], "it was told by who wrote QuotaApplied");
        assert_eq!(say(&first.conditions, &[]).conditions, first.conditions);
        let mut other = first.conditions.clone();
        other[0] = quota("Budget/older is older");
        assert_eq!(stalled(&say(&other, &[])).message, "Budget/older is older", "another one binds now");
        let worse = say(&first.conditions, &[Defect::Blocked(Block::ParentMissing("gone".into()))]);
        assert_eq!(stalled(&worse).reason, "ParentMissing", "tokens first");
        let over: Vec<_> = first.conditions.iter().filter(|condition| condition.type_ != "QuotaApplied").cloned().collect();
        assert_eq!(status(&say(&over, &[]), "Stalled"), ("False".into(), "NoDefect".into()));
    }

    #[test]
    fn conditions_of_others_stay_and_words_alone_are_no_news() {
        let others = Builder { stored: &[], generation: 1, now: Timestamp::UNIX_EPOCH }.build("QuotaApplied", true, "Applied", "it is");
        fn standing(views: &[LimitView]) -> BudgetStanding<'_> {
            BudgetStanding { views, mode: Mode::Enforce, lowest: None, defects: &[], uncounted_namespaces: 0 }
        }
        let first = next_status(1, std::slice::from_ref(&others), &standing(&[view(100, 0, 100)]), None, Timestamp::UNIX_EPOCH);
        assert!(first.conditions.contains(&others));
        let again = next_status(1, &first.conditions, &standing(&[view(120, 0, 120)]), None, Timestamp::UNIX_EPOCH);
        assert_eq!(again.conditions, first.conditions);
        let words: Vec<_> = news(&[], &first.conditions).into_iter().map(|news| (news.warning, news.reason)).collect();
        assert_eq!(words, [(true, "BudgetExhausted".to_owned()), (false, "ThresholdReached".to_owned())]);
        let free = next_status(1, &first.conditions, &standing(&[view(0, 0, 100)]), None, Timestamp::UNIX_EPOCH);
        assert_eq!(news(&first.conditions, &free.conditions).len(), 1, "that it gives again");
        assert_eq!(news(&free.conditions, &free.conditions), []);
    }
}
