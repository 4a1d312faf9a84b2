//! The route of a call: the places from the item and the agent up to the cluster. Resolved from names once, then used
//! by number.

use std::sync::Arc;

use super::estimate::CallTerms;
use super::ledger::{Ledger, MAX_PATH_LENGTH};
use super::node::{Key, Mode};

/// The route of an agent's calls. [`Ledger::refresh`] resolves it again after the tree has changed.
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
    /// A route through these agents and tasks, the innermost first, then through `top` (a Budget, or the namespace if
    /// the pool has no Budget) and all places above it. Calls of some pool types also pass the shares that are reserved
    /// for them.
    pub fn new(leafs: Vec<Key>, top: Option<Key>, pool_type: &str) -> Self {
        let (steps, path) = (Vec::new(), Arc::from([]));
        Self { leafs, top, pool_type: pool_type.to_owned(), version: 0, steps, path, missing: None, terms: CallTerms::default() }
    }

    /// The combined rules of all its budgets for single calls. See [`Ledger::refresh`].
    pub fn terms(&self) -> &CallTerms {
        &self.terms
    }
}

impl Ledger {
    /// Resolves a route again if the tree has changed. Call this before [`Route::terms`] for an estimate.
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
        // The bound ends a cycle of parents; its places are blocked in any case. A path that is too long is not cut: it
        // gets no tokens.
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
                (Some(nearest), Some(above)) => Some(nearest.combine(above)),
                (nearest, above) => nearest.or(above),
            };
            route.steps.push(node);
            path.push(key);
        }
        route.terms = terms.unwrap_or_default();
        route.path = path.into();
    }
}
