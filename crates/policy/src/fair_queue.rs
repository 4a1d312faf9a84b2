//! Fair queueing between namespaces that want the same thing: one namespace after the other, and within each in order
//! of arrival. All such places use this rule, so a flood of one namespace does not make another one wait.
//!
//! What always holds: while a key waits for its next turn, each other key has at most one turn. A key that leaves keeps
//! no place. Nothing is remembered of a key that does not wait.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// The keys that want a turn, the next one first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundRobin<K>(VecDeque<K>);

impl<K> Default for RoundRobin<K> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<K: Clone + PartialEq> RoundRobin<K> {
    /// Sets the keys that want a turn. New ones come last, in the given order.
    pub fn set_members(&mut self, wanting: &[K]) {
        self.0.retain(|one| wanting.contains(one));
        for one in wanting {
            if !self.0.contains(one) {
                self.0.push_back(one.clone());
            }
        }
    }

    /// The next key that satisfies `may`. It becomes the last one.
    pub fn next(&mut self, may: impl Fn(&K) -> bool) -> Option<K> {
        let at = self.0.iter().position(may)?;
        let one = self.0.remove(at)?;
        self.0.push_back(one.clone());
        Some(one)
    }

    fn join(&mut self, one: K) {
        self.0.push_back(one);
    }

    fn leave(&mut self, one: &K) {
        // A key that just had a turn is the last one.
        if self.0.back() == Some(one) {
            self.0.pop_back();
        } else {
            self.0.retain(|other| other != one);
        }
    }
}

/// The waiting entries of each key.
#[derive(Clone, Debug)]
pub struct FairQueue<K, T> {
    round: RoundRobin<K>,
    waiting: HashMap<K, VecDeque<(u64, T)>>,
    numbers: u64,
    most: usize,
}

impl<K: Clone + Eq + Hash, T> FairQueue<K, T> {
    /// An empty queue, for at most `most` entries of each key.
    pub fn new(most: usize) -> Self {
        Self { round: RoundRobin::default(), waiting: HashMap::new(), numbers: 0, most }
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds an entry, and returns its number. Returns the entry itself if its key has as many as it may.
    pub fn join(&mut self, whose: K, what: T) -> Result<u64, T> {
        let own = self.waiting.entry(whose.clone()).or_default();
        if own.is_empty() {
            self.round.join(whose.clone());
        }
        if own.len() >= self.most {
            if own.is_empty() {
                self.remove_key(&whose);
            }
            return Err(what);
        }
        self.numbers += 1;
        own.push_back((self.numbers, what));
        Ok(self.numbers)
    }

    /// Takes the next entry whose key satisfies `may`.
    pub fn next(&mut self, may: impl Fn(&K) -> bool) -> Option<(K, T)> {
        let whose = self.round.next(may)?;
        let own = self.waiting.get_mut(&whose)?;
        let (_, what) = own.pop_front()?;
        if own.is_empty() {
            self.remove_key(&whose);
        }
        Some((whose, what))
    }

    /// Removes an entry before its turn. `None`: it had its turn.
    pub fn leave(&mut self, whose: &K, number: u64) -> Option<T> {
        let own = self.waiting.get_mut(whose)?;
        let at = own.binary_search_by_key(&number, |(number, _)| *number).ok()?;
        let (_, what) = own.remove(at)?;
        if own.is_empty() {
            self.remove_key(whose);
        }
        Some(what)
    }

    fn remove_key(&mut self, whose: &K) {
        self.waiting.remove(whose);
        self.round.leave(whose);
    }
}

#[cfg(test)]
#[path = "fair_queue_tests.rs"]
mod tests;
