//! Learned ratios of tokens to bytes for each namespace and model, bounded in number.
//!
//! What always holds: the estimates of a namespace come from its own calls only. Even if a namespace names any number
//! of models, other namespaces lose at most one ratio. A forgotten ratio is like one that was never learned: it starts
//! high.

use std::collections::BTreeMap;

use super::estimate::LearnedRatio;

/// The most models of one namespace with a ratio. The least recently learned ratio is forgotten for a new one.
pub const MODELS_PER_NAMESPACE: usize = 32;
/// The most ratios of all namespaces together. Each takes half a kilobyte.
pub const MAX_RATIOS: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    learned: LearnedRatio,
    /// When it last learned: its place in the order.
    used: u64,
}

/// The ratios of all namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ratios {
    namespaces: BTreeMap<String, BTreeMap<String, Entry>>,
    /// Namespace and model, the least recently learned first.
    order: BTreeMap<u64, (String, String)>,
    next: u64,
    per_namespace: usize,
    all: usize,
}

impl Default for Ratios {
    fn default() -> Self {
        Self::bounded(MODELS_PER_NAMESPACE, MAX_RATIOS)
    }
}

impl Ratios {
    fn bounded(per_namespace: usize, all: usize) -> Self {
        Self { namespaces: BTreeMap::new(), order: BTreeMap::new(), next: 0, per_namespace, all }
    }

    /// The ratio for a namespace's calls of a model, in thousandths of a token a byte.
    pub fn ratio(&self, namespace: &str, model: &str) -> i64 {
        let entry = self.namespaces.get(namespace).and_then(|models| models.get(model));
        entry.map_or_else(|| LearnedRatio::default().ratio(), |entry| entry.learned.ratio())
    }

    /// Learns from a call with text only, of `bytes` bytes and `tokens` input tokens.
    pub fn learn(&mut self, namespace: &str, model: &str, bytes: i64, tokens: i64) {
        if !LearnedRatio::is_informative(bytes, tokens) {
            return;
        }
        if !self.namespaces.get(namespace).is_some_and(|models| models.contains_key(model)) {
            self.make_room(namespace);
        }
        self.next += 1;
        let models = self.namespaces.entry(namespace.to_owned()).or_default();
        let entry = models.entry(model.to_owned()).or_insert_with(|| Entry { learned: LearnedRatio::default(), used: self.next });
        entry.learned.learn(bytes, tokens);
        self.order.remove(&entry.used);
        entry.used = self.next;
        self.order.insert(self.next, (namespace.to_owned(), model.to_owned()));
    }

    /// The number of ratios.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Makes room for one more ratio of `namespace`. A namespace that has some gives up one of its own.
    fn make_room(&mut self, namespace: &str) {
        let own = self.namespaces.get(namespace).filter(|models| models.len() >= self.per_namespace || self.order.len() >= self.all);
        let own = own.and_then(|models| models.values().map(|entry| entry.used).min());
        let oldest = own.or_else(|| self.order.keys().next().copied().filter(|_| self.order.len() >= self.all));
        let Some((namespace, model)) = oldest.and_then(|used| self.order.remove(&used)) else { return };
        if let Some(models) = self.namespaces.get_mut(&namespace) {
            models.remove(&model);
            if models.is_empty() {
                self.namespaces.remove(&namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::estimate::MIN_RATIO_PER_MILLE;
    use proptest::prelude::*;

    fn name(number: usize) -> String {
        format!("n{number}")
    }

    #[test]
    fn invented_models_take_a_bounded_number_of_places_and_one_of_others_at_most() {
        let mut ratios = Ratios::bounded(4, 10);
        (0..3).for_each(|namespace| (0..3).for_each(|model| ratios.learn(&name(namespace), &name(model), 100, 60)));
        assert_eq!(ratios.len(), 9);
        (0..20_000).for_each(|model| ratios.learn("hostile", &name(model), 100, 90));
        assert_eq!(ratios.len(), 10);
        let kept = |ratios: &Ratios| {
            let all = (0..3).flat_map(|namespace| (0..3).map(move |model| (namespace, model)));
            all.filter(|(namespace, model)| ratios.ratio(&name(*namespace), &name(*model)) > 500).count()
        };
        assert_eq!(kept(&ratios), 9, "it gives up its own");
        // Full: a namespace without a ratio replaces the least recently learned one, and no second one.
        ratios.learn("n0", "n0", 100, 60);
        (0..50).for_each(|model| ratios.learn("another", &name(model), 100, 90));
        assert_eq!((ratios.len(), kept(&ratios), ratios.ratio("n0", "n0")), (10, 8, 608), "{ratios:?}");
        assert_eq!(ratios.ratio("n0", "n1"), 500, "what is forgotten starts high");
        // All namespaces together have 4096 ratios, which is a few MiB.
        let mut ratios = Ratios::default();
        (0..10_000).for_each(|namespace| ratios.learn(&name(namespace), "m", 100, 90));
        assert_eq!(ratios.len(), 4096);
        // A namespace has its own bound, too.
        let mut ratios = Ratios::default();
        (0..1000).for_each(|model| ratios.learn("n", &name(model), 100, 90));
        assert_eq!(ratios.len(), MODELS_PER_NAMESPACE);
        assert_eq!(ratios.ratio("n", &name(999)), 912);
    }

    #[test]
    fn white_space_teaches_nothing() {
        let mut ratios = Ratios::default();
        (0..990).for_each(|_| ratios.learn("n", "m", 1_000_000, 9));
        assert!(ratios.is_empty());
        (0..10).for_each(|_| ratios.learn("n", "m", 1000, 250));
        let honest = ratios.clone();
        (0..990).for_each(|_| ratios.learn("n", "m", 1_000_000, 9));
        assert_eq!(ratios, honest);
    }

    proptest! {
        #[test]
        fn a_namespace_is_estimated_by_its_own_calls_alone(calls in prop::collection::vec((0..3usize, 0..3usize, 0..5000i64, 0..5000i64), 0..400)) {
            let (mut all, mut alone) = (Ratios::default(), Ratios::default());
            for (namespace, model, bytes, tokens) in calls {
                all.learn(&name(namespace), &name(model), bytes, tokens);
                if namespace == 0 {
                    alone.learn(&name(0), &name(model), bytes, tokens);
                }
            }
            for model in 0..3 {
                prop_assert_eq!(all.ratio(&name(0), &name(model)), alone.ratio(&name(0), &name(model)));
            }
        }

        #[test]
        fn no_calls_bring_a_ratio_under_the_floor_or_over_a_token_a_byte(calls in prop::collection::vec((0..100_000i64, 0..100_000i64, 1..200usize), 0..60)) {
            let mut ratios = Ratios::default();
            for (bytes, tokens, times) in calls {
                (0..times).for_each(|_| ratios.learn("n", "m", bytes, tokens));
                prop_assert!((MIN_RATIO_PER_MILLE..=1000).contains(&ratios.ratio("n", "m")));
            }
        }
    }
}
