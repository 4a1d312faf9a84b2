//! A history of recent values by namespace, bounded in time and in bytes. Pure.
//!
//! What always holds: when the bytes run out, the namespace with the most bytes loses its oldest value. A namespace never displaces
//! values of another one that has fewer bytes.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry<T> {
    at: Duration,
    /// Insertion order over all namespaces.
    order: u64,
    bytes: usize,
    value: T,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct NamespaceHistory<T> {
    bytes: usize,
    entries: VecDeque<Entry<T>>,
}

/// Recent values, by namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History<T> {
    within: Duration,
    most: usize,
    bytes: usize,
    next: u64,
    namespaces: BTreeMap<String, NamespaceHistory<T>>,
}

impl<T> History<T> {
    /// An empty history. It keeps values for `within`, and at most `most` bytes of them.
    pub fn new(within: Duration, most: usize) -> Self {
        Self { within, most, bytes: 0, next: 0, namespaces: BTreeMap::new() }
    }

    /// Adds a value of `bytes` bytes. `now` must not fall between calls.
    pub fn push(&mut self, now: Duration, namespace: &str, bytes: usize, value: T) {
        let entry = Entry { at: now, order: self.next, bytes, value };
        self.next += 1;
        self.bytes += bytes;
        let of = self.namespaces.entry(namespace.to_owned()).or_insert_with(|| NamespaceHistory { bytes: 0, entries: VecDeque::new() });
        of.bytes += bytes;
        of.entries.push_back(entry);
        while self.bytes > self.most {
            let Some(most) = self.namespaces.iter().max_by_key(|(_, of)| of.bytes).map(|(name, _)| name.clone()) else { return };
            self.drop_oldest(&most);
        }
    }

    fn drop_oldest(&mut self, namespace: &str) {
        let Some(of) = self.namespaces.get_mut(namespace) else { return };
        if let Some(entry) = of.entries.pop_front() {
            of.bytes -= entry.bytes;
            self.bytes -= entry.bytes;
        }
        if of.entries.is_empty() {
            self.namespaces.remove(namespace);
        }
    }

    /// Drops values that are older than the period at `now`.
    pub fn expire(&mut self, now: Duration) {
        let within = self.within;
        let old = |of: &NamespaceHistory<T>| of.entries.front().is_some_and(|entry| now.saturating_sub(entry.at) > within);
        let names: Vec<String> = self.namespaces.iter().filter(|(_, of)| old(of)).map(|(name, _)| name.clone()).collect();
        for name in names {
            while self.namespaces.get(&name).is_some_and(old) {
                self.drop_oldest(&name);
            }
        }
    }

    /// All values, in insertion order.
    pub fn all(&self) -> Vec<&T> {
        let mut all: Vec<&Entry<T>> = self.namespaces.values().flat_map(|of| &of.entries).collect();
        all.sort_unstable_by_key(|entry| entry.order);
        all.into_iter().map(|entry| &entry.value).collect()
    }

    /// Whether it has no values.
    pub fn is_empty(&self) -> bool {
        self.namespaces.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn values(history: &History<u32>) -> Vec<u32> {
        history.all().into_iter().copied().collect()
    }

    #[test]
    fn old_values_are_dropped_and_the_rest_keeps_its_order() {
        let mut history = History::new(SECOND * 10, 1000);
        for (at, of) in [(0, "a"), (1, "b"), (2, "a"), (9, "b")] {
            history.push(SECOND * at, of, 1, at);
        }
        history.expire(SECOND * 10);
        assert_eq!(values(&history), [0, 1, 2, 9]);
        history.expire(SECOND * 12);
        assert_eq!(values(&history), [2, 9]);
        history.expire(SECOND * 100);
        assert!(history.is_empty() && history.bytes == 0);
    }

    #[test]
    fn a_flood_displaces_only_values_of_its_own_namespace() {
        let mut history = History::new(SECOND, 100);
        history.push(SECOND, "quiet", 10, 0);
        for number in 1..1000 {
            history.push(SECOND, "loud", 10, number);
        }
        let kept = values(&history);
        assert_eq!((kept[0], kept.len()), (0, 10), "the quiet one's is the oldest of all, and stays");
        assert_eq!(kept[9], 999);
        history.push(SECOND, "loud", 1000, 1000);
        assert!(!values(&history).contains(&1000), "what is larger than all is not kept");
    }

    proptest! {
        #[test]
        fn bytes_are_bounded_and_match_the_values(
            pushes in proptest::collection::vec((0u64..50, 0usize..4, 0usize..40), 0..200),
        ) {
            let mut history = History::new(SECOND * 20, 100);
            let mut now = 0;
            for (later, of, bytes) in pushes {
                now += later;
                history.push(SECOND * u32::try_from(now).expect("small"), &of.to_string(), bytes, bytes);
                history.expire(SECOND * u32::try_from(now).expect("small"));
                let sum: usize = history.all().into_iter().sum();
                prop_assert!(history.bytes <= 100 && history.bytes == sum);
            }
        }
    }
}
