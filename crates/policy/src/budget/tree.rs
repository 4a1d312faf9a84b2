//! Which places exist and their parents: from Budgets, ClusterBudgets and the namespaces that these select. Defects are
//! named. A Budget whose chain of parents is broken gives no tokens, and all others continue.

use std::collections::BTreeMap;

use super::estimate::Weights;
use super::facts::{BudgetFacts, ClusterFacts, Defect, Reservation, TokenLimit, Tokens};
use super::node::{Block, Key, LimitSpec, NodeSpec};
use super::share::{Child, allot, reservation_spec, whole_units};

/// The most Budgets in a chain of parents, including the lowest. What one call passes besides them is counted in
/// [`super::MAX_PATH_LENGTH`].
pub const MAX_BUDGET_DEPTH: usize = 8;

/// All places except agents and items.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// The places, for [`super::Ledger::set_tree`].
    pub nodes: Vec<NodeSpec>,
    /// The defects, each with its place.
    pub defects: Vec<(Key, Defect)>,
    /// The first place for calls of a namespace if their pool has no Budget.
    pub tops: BTreeMap<String, Key>,
}

/// Builds the tree.
pub fn build(clusters: &[ClusterFacts], budgets: &[BudgetFacts]) -> Tree {
    let mut builder = Builder::default();
    let mut clusters: Vec<&ClusterFacts> = clusters.iter().collect();
    clusters.sort_by_key(|cluster| (cluster.created, &cluster.name));
    clusters.into_iter().for_each(|cluster| builder.cluster(cluster));
    let mut namespaces: BTreeMap<&str, BTreeMap<&str, &BudgetFacts>> = BTreeMap::new();
    for budget in budgets {
        namespaces.entry(&budget.namespace).or_default().insert(&budget.name, budget);
    }
    namespaces.values().for_each(|budgets| builder.namespace(budgets));
    builder.tree
}

#[derive(Default)]
struct Builder {
    tree: Tree,
    /// The reservations of each place.
    reservations: BTreeMap<Key, Vec<Reservation>>,
}

impl Builder {
    fn cluster(&mut self, cluster: &ClusterFacts) {
        let key = Key::Cluster(cluster.name.clone());
        let none = vec![0; cluster.tokens.limits.len()];
        self.place(spec(key.clone(), None, &cluster.tokens, &none), &cluster.tokens.reservations);
        let mut bound = Vec::new();
        for (namespace, created) in &cluster.namespaces {
            let place = Key::Namespace { cluster: cluster.name.clone(), namespace: namespace.clone() };
            match self.tree.tops.get(namespace) {
                Some(Key::Namespace { cluster: by, .. }) => {
                    let (namespace, by) = (namespace.clone(), by.clone());
                    self.tree.defects.push((key.clone(), Defect::NamespaceTaken { namespace, other: by }));
                }
                Some(Key::Cluster(_) | Key::Budget { .. } | Key::Share { .. } | Key::Agent(_) | Key::Task { .. }) | None => {
                    self.tree.tops.insert(namespace.clone(), place.clone());
                    bound.push((place, *created));
                }
            }
        }
        let (limits, weights) = (&cluster.per_namespace.limits, cluster.per_namespace.weights);
        let children: Vec<_> = bound.iter().map(|(key, created)| Child { key, created: *created, limits, weights }).collect();
        for (place, sure) in self.allotted(&key, &children) {
            let Key::Namespace { namespace, .. } = &place else { continue };
            let pool_types = cluster.pool_types.get(namespace);
            let kept = cluster.per_namespace.reservations.iter();
            let kept: Vec<_> = kept.filter(|share| pool_types.is_some_and(|types| share.is_for_one_of(types))).cloned().collect();
            self.place(spec(place, Some(key.clone()), &cluster.per_namespace, &sure), &kept);
        }
    }

    /// All Budgets of one namespace, parents before children.
    fn namespace(&mut self, budgets: &BTreeMap<&str, &BudgetFacts>) {
        let mut below: BTreeMap<Option<Key>, Vec<&BudgetFacts>> = BTreeMap::new();
        for budget in budgets.values() {
            let parent = match check_parents(budget, budgets) {
                Ok(()) => match &budget.parent {
                    Some(parent) => Some(Key::budget(&budget.namespace, parent)),
                    None => self.tree.tops.get(&budget.namespace).cloned(),
                },
                Err(block) => {
                    let key = Key::budget(&budget.namespace, &budget.name);
                    self.tree.defects.push((key.clone(), Defect::Blocked(block.clone())));
                    let none = vec![0; budget.tokens.limits.len()];
                    let node = NodeSpec { block: Some(block), ..budget_spec(budget, key, None, &none) };
                    self.place(node, &budget.tokens.reservations);
                    continue;
                }
            };
            below.entry(parent).or_default().push(budget);
        }
        let top = budgets.values().next().and_then(|budget| self.tree.tops.get(&budget.namespace)).cloned();
        let mut ahead = vec![top];
        while let Some(parent) = ahead.pop() {
            let Some(budgets) = below.remove(&parent) else { continue };
            let keys: Vec<_> = budgets.iter().map(|budget| Key::budget(&budget.namespace, &budget.name)).collect();
            let children = budgets.iter().zip(&keys).map(|(budget, key)| {
                let Tokens { limits, weights, .. } = &budget.tokens;
                Child { key, created: budget.created, limits, weights: *weights }
            });
            let children: Vec<_> = children.collect();
            let sure = match &parent {
                Some(parent) => self.allotted(parent, &children),
                None => keys.iter().zip(&budgets).map(|(key, budget)| (key.clone(), vec![0; budget.tokens.limits.len()])).collect(),
            };
            for (budget, (key, sure)) in budgets.iter().zip(sure) {
                self.place(budget_spec(budget, key.clone(), parent.clone(), &sure), &budget.tokens.reservations);
                ahead.push(Some(key));
            }
        }
    }

    /// The guarantees of each child at a parent that is placed already.
    fn allotted(&mut self, parent: &Key, children: &[Child]) -> Vec<(Key, Vec<i64>)> {
        let node = self.tree.nodes.iter().find(|node| node.key == *parent);
        let (limits, weights) = node.map_or((&[][..], Weights::default()), |node| (&node.limits, node.weights));
        let none = Vec::new();
        let (sure, defects) = allot(limits, weights, self.reservations.get(parent).unwrap_or(&none), children);
        self.tree.defects.extend(defects);
        children.iter().map(|child| child.key.clone()).zip(sure).collect()
    }

    /// Adds a place, and the shares that are reserved of it.
    fn place(&mut self, mut node: NodeSpec, reservations: &[Reservation]) {
        let mut shares: Vec<NodeSpec> = reservations.iter().map(|reservation| reservation_spec(&node, reservation)).collect();
        if let Some(most) = node.max_in_flight {
            let percents = reservations.iter().map(|reservation| u64::try_from(reservation.percent).unwrap_or(0));
            for (share, calls) in shares.iter_mut().zip(whole_units(most.into(), percents)) {
                share.sure_in_flight = u32::try_from(calls).unwrap_or(u32::MAX);
            }
        }
        let types = reservations.iter().zip(&shares);
        node.shares = types.flat_map(|(of, share)| of.pool_types.iter().map(|one| (one.clone(), share.key.clone()))).collect();
        self.reservations.insert(node.key.clone(), reservations.to_vec());
        self.tree.nodes.push(node);
        self.tree.nodes.extend(shares);
    }
}

fn budget_spec(budget: &BudgetFacts, key: Key, parent: Option<Key>, sure: &[i64]) -> NodeSpec {
    let BudgetFacts { mode, tokens, thresholds, max_in_flight, namespace: _, name: _, created: _, parent: _ } = budget;
    NodeSpec { mode: *mode, thresholds: thresholds.clone(), max_in_flight: *max_in_flight, ..spec(key, parent, tokens, sure) }
}

fn spec(key: Key, parent: Option<Key>, tokens: &Tokens, sure: &[i64]) -> NodeSpec {
    let Tokens { limits, reservations: _, weights, terms, debt } = tokens;
    let limit = |(limit, guaranteed): (&TokenLimit, &i64)| {
        let TokenLimit { name, window, tokens, guaranteed: _ } = limit;
        LimitSpec { name: name.clone(), window: *window, tokens: *tokens, guaranteed: *guaranteed }
    };
    let limits = limits.iter().zip(sure).map(limit).collect();
    NodeSpec { weights: weights.clamped(), debt: *debt, limits, terms: *terms, ..NodeSpec::new(key, parent) }
}

/// Checks that every Budget above it exists, and that none is above itself.
fn check_parents(budget: &BudgetFacts, all: &BTreeMap<&str, &BudgetFacts>) -> Result<(), Block> {
    let mut way = vec![budget.name.clone()];
    let mut next = &budget.parent;
    while let Some(parent) = next {
        if let Some(again) = way.iter().position(|name| name == parent) {
            return Err(Block::Cycle(way.split_off(again)));
        }
        let Some(found) = all.get(parent.as_str()) else { return Err(Block::ParentMissing(parent.clone())) };
        way.push(parent.clone());
        if way.len() > MAX_BUDGET_DEPTH {
            return Err(Block::TooDeep);
        }
        next = &found.parent;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::window::Window;
    use super::*;

    fn budget(name: &str, parent: Option<&str>, tokens: i64, guaranteed: i64) -> BudgetFacts {
        let limits = vec![TokenLimit { name: "hourly".into(), window: Window::Hour, tokens, guaranteed }];
        let (tokens, parent) = (Tokens { limits, ..Tokens::default() }, parent.map(str::to_owned));
        BudgetFacts { namespace: "team".into(), name: name.into(), parent, tokens, ..BudgetFacts::default() }
    }

    fn find<'a>(tree: &'a Tree, name: &str) -> &'a NodeSpec {
        tree.nodes.iter().find(|node| node.key == Key::budget("team", name)).expect("it is placed")
    }

    #[test]
    fn what_is_wrong_is_named_and_gives_nothing() {
        let budgets = [
            budget("a", Some("b"), 1, 0),
            budget("b", Some("c"), 1, 0),
            budget("c", Some("b"), 1, 0),
            budget("d", Some("gone"), 1, 0),
            budget("e", Some("d"), 1, 0),
            budget("fine", None, 1, 0),
        ];
        let tree = build(&[], &budgets);
        let block = |name: &str| find(&tree, name).block.clone();
        assert_eq!(block("a"), Some(Block::Cycle(vec!["b".into(), "c".into()])));
        assert_eq!(block("b"), Some(Block::Cycle(vec!["b".into(), "c".into()])));
        assert_eq!(block("d"), Some(Block::ParentMissing("gone".into())));
        assert_eq!(block("e"), Some(Block::ParentMissing("gone".into())));
        assert_eq!(block("fine"), None);
        assert_eq!(tree.defects.len(), 5);
        let chain: Vec<_> =
            (0..20).map(|at| budget(&format!("n{at}"), (at > 0).then(|| format!("n{}", at - 1)).as_deref(), 1, 0)).collect();
        let tree = build(&[], &chain);
        assert_eq!(tree.nodes.iter().filter(|node| node.block == Some(Block::TooDeep)).count(), 20 - MAX_BUDGET_DEPTH);
    }

    #[test]
    fn the_longest_path_there_can_be_is_as_long_as_a_path_may_be() {
        let reservations = vec![Reservation { name: "own".into(), pool_types: vec!["worker".into()], percent: 20, cap: false }];
        let limits = vec![TokenLimit { name: "hourly".into(), window: Window::Hour, tokens: 100, guaranteed: 0 }];
        let tokens = Tokens { limits, reservations, ..Tokens::default() };
        let cluster = ClusterFacts {
            name: "all".into(),
            tokens: tokens.clone(),
            per_namespace: tokens.clone(),
            namespaces: vec![("team".into(), 1)],
            pool_types: BTreeMap::from([("team".into(), BTreeSet::from(["worker".into()]))]),
            ..ClusterFacts::default()
        };
        let chain: Vec<_> = (0..MAX_BUDGET_DEPTH)
            .map(|at| {
                let above = (at > 0).then(|| format!("n{}", at - 1));
                BudgetFacts { tokens: tokens.clone(), ..budget(&format!("n{at}"), above.as_deref(), 100, 0) }
            })
            .collect();
        let tree = build(&[cluster], &chain);
        let mut ledger = super::super::Ledger::new(0);
        ledger.set_tree(&tree.nodes);
        let leafs = vec![Key::Task { item: "i".into(), epoch: 1 }, Key::Agent("a".into())];
        leafs.iter().for_each(|leaf| ledger.put(NodeSpec::new(leaf.clone(), None)));
        let mut route = super::super::Route::new(leafs, Some(Key::budget("team", &format!("n{}", MAX_BUDGET_DEPTH - 1))), "worker");
        ledger.refresh(&mut route);
        assert_eq!((route.path.len(), &route.missing), (super::super::MAX_PATH_LENGTH, &None));
    }

    #[test]
    fn a_namespace_is_below_its_cluster_budget_and_the_older_one_binds_it() {
        let limits = vec![TokenLimit { name: "rate".into(), window: Window::Hour, tokens: 100, guaranteed: 60 }];
        let cluster = |name: &str, created| ClusterFacts {
            name: name.into(),
            created,
            tokens: Tokens { limits: limits.clone(), ..Tokens::default() },
            per_namespace: Tokens { limits: limits.clone(), ..Tokens::default() },
            namespaces: vec![("other".into(), 2), ("team".into(), 1)],
            pool_types: BTreeMap::new(),
        };
        let budgets = [budget("default", None, 100, 70), budget("low", Some("default"), 50, 50)];
        let tree = build(&[cluster("new", 9), cluster("old", 3)], &budgets);
        let place = |namespace: &str| Key::Namespace { cluster: "old".into(), namespace: namespace.into() };
        assert_eq!(tree.tops.get("team"), Some(&place("team")));
        assert_eq!(find(&tree, "default").parent, Some(place("team")));
        assert_eq!((find(&tree, "default").limits[0].guaranteed, find(&tree, "low").limits[0].guaranteed), (70, 50));
        let sure = |key: &Key| tree.nodes.iter().find(|node| node.key == *key).map(|node| node.limits[0].guaranteed);
        assert_eq!((sure(&place("team")), sure(&place("other"))), (Some(60), Some(0)), "the older namespace is sure of it");
        assert!(tree.defects.contains(&(place("other"), Defect::GuaranteesExceedParent { limit: "rate".into(), left: 40 })));
        let taken = Defect::NamespaceTaken { namespace: "team".into(), other: "old".into() };
        assert!(tree.defects.contains(&(Key::Cluster("new".into()), taken)));
    }

    #[test]
    fn what_a_cluster_budget_reserves_is_kept_where_there_is_such_a_pool() {
        let limits = vec![TokenLimit { name: "hourly".into(), window: Window::Hour, tokens: 100, guaranteed: 0 }];
        let reservations = vec![Reservation { name: "scheduler".into(), pool_types: vec!["scheduler".into()], percent: 20, cap: false }];
        let cluster = ClusterFacts {
            name: "all".into(),
            per_namespace: Tokens { limits, reservations, ..Tokens::default() },
            namespaces: vec![("other".into(), 2), ("team".into(), 1)],
            pool_types: BTreeMap::from([
                ("team".into(), BTreeSet::from(["worker".into(), "scheduler".into()])),
                ("other".into(), BTreeSet::from(["worker".into()])),
            ]),
            ..ClusterFacts::default()
        };
        let shares: Vec<_> = build(&[cluster], &[]).nodes.into_iter().filter(|node| matches!(node.key, Key::Share { .. })).collect();
        assert_eq!(shares.len(), 1, "{shares:?}");
        assert_eq!(shares[0].parent, Some(Key::Namespace { cluster: "all".into(), namespace: "team".into() }));
        assert_eq!(shares[0].limits[0].guaranteed, 20);
    }

    #[test]
    fn a_reservation_is_a_place_of_its_own_below() {
        let mut team = budget("default", None, 1000, 0);
        team.max_in_flight = Some(6);
        team.tokens.reservations =
            vec![Reservation { name: "scheduler".into(), pool_types: vec!["scheduler".into()], percent: 20, cap: true }];
        let tree = build(&[], &[team]);
        let share = tree.nodes.iter().find(|node| matches!(node.key, Key::Share { .. })).expect("it is placed");
        assert_eq!((share.limits[0].tokens, share.limits[0].guaranteed, share.sure_in_flight), (200, 200, 2));
        assert_eq!(share.parent, Some(Key::budget("team", "default")));
        assert_eq!(find(&tree, "default").shares, [("scheduler".to_owned(), share.key.clone())]);
    }
}
