//! The way of a call: from the item and the agent up to the cluster. Made of names once, known by number from then on.

use std::sync::Arc;

use super::estimate::CallTerms;
use super::ledger::{Ledger, MAX_PATH_LENGTH};
use super::node::{Key, Mode};

/// The way of an agent's calls, resolved. It resolves itself again when the tree has changed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    leafs: Vec<Key>,
    top: Option<Key>,
    pool_type: String,
    pub(super) version: u64,
    pub(super) steps: Vec<usize>,
    pub(super) path: Arc<[Key]>,
    pub(super) missing: Option<Key>,
    terms: CallTerms,
}

impl Route {
    /// Through these agents and tasks, the innermost first, then this budget (or namespace, where none is named) and all above
    /// it. Calls of some types of pools pass shares that are reserved for them.
    pub fn new(leafs: Vec<Key>, top: Option<Key>, pool_type: &str) -> Self {
        let (steps, path) = (Vec::new(), Arc::from([]));
        Self { leafs, top, pool_type: pool_type.to_owned(), version: 0, steps, path, missing: None, terms: CallTerms::default() }
    }

    /// What all of its budgets together say of single calls. See [`Ledger::refresh`].
    pub fn terms(&self) -> &CallTerms {
        &self.terms
    }
}

impl Ledger {
    /// Resolves a route again if the tree has changed. Whoever estimates a call asks for its terms after this.
    pub fn refresh(&mut self, route: &mut Route) {
        self.advance(self.now);
        if route.version == self.version {
            return;
        }
        route.version = self.version;
        (route.missing, route.steps, route.terms) = (None, Vec::new(), CallTerms::default());
        let mut terms: Option<CallTerms> = None;
        let mut path = Vec::new();
        let leafs = route.leafs.clone();
        let mut next = route.top.clone();
        let above = std::iter::from_fn(|| {
            let key = next.take()?;
            let spec = self.keys.get(&key).map(|node| &self.nodes[*node].spec);
            next = spec.and_then(|spec| spec.parent.clone());
            let shares = spec.into_iter().flat_map(|spec| &spec.shares);
            let share = shares.filter(|(pool_type, _)| *pool_type == route.pool_type).map(|(_, share)| share.clone()).next();
            Some(share.into_iter().chain(std::iter::once(key)).collect::<Vec<_>>())
        });
        // A circle of parents ends with the bound; its places are blocked in any case. Nothing is left out of a way that is too
        // long: nothing is given on it.
        for key in leafs.into_iter().chain(above.take(MAX_PATH_LENGTH).flatten()) {
            let Some(node) = self.keys.get(&key).copied().filter(|_| path.len() < MAX_PATH_LENGTH) else {
                route.missing.get_or_insert(key);
                continue;
            };
            let spec = &self.nodes[node].spec;
            match spec.mode {
                Mode::Disabled => continue,
                Mode::Enforce | Mode::Observe => {}
            }
            terms = match (terms, spec.terms) {
                (Some(nearest), Some(above)) => Some(nearest.and(above)),
                (nearest, above) => nearest.or(above),
            };
            route.steps.push(node);
            path.push(key);
        }
        route.terms = terms.unwrap_or_default();
        route.path = path.into();
    }
}
