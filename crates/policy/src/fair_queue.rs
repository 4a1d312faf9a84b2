//! Whose turn it is where those of many namespaces want the same thing: one namespace after the other, and within each in
//! the order of coming. One rule for every such place, so that nowhere one namespace's flood is another one's wait.
//!
//! What always holds: between two turns of one that waits, and between its coming and its turn, each other one has at most
//! one; who goes away leaves no hole; nothing is remembered of who does not wait.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Those that want a turn, the next one first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundRobin<K>(VecDeque<K>);

impl<K> Default for RoundRobin<K> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<K: Clone + PartialEq> RoundRobin<K> {
    /// These want a turn now, and no others. Who is new comes last, in the order given.
    pub fn only(&mut self, wanting: &[K]) {
        self.0.retain(|one| wanting.contains(one));
        for one in wanting {
            if !self.0.contains(one) {
                self.0.push_back(one.clone());
            }
        }
    }

    /// Who is next, of those that may. Its next turn comes after all others'.
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
        // Who just had a turn is the last.
        if self.0.back() == Some(one) {
            self.0.pop_back();
        } else {
            self.0.retain(|other| other != one);
        }
    }
}

/// What waits, by whose it is.
#[derive(Clone, Debug)]
pub struct FairQueue<K, T> {
    round: RoundRobin<K>,
    waiting: HashMap<K, VecDeque<(u64, T)>>,
    numbers: u64,
    most: usize,
}

impl<K: Clone + Eq + Hash, T> FairQueue<K, T> {
    /// Nothing waits; at most so much of each may.
    pub fn new(most: usize) -> Self {
        Self { round: RoundRobin::default(), waiting: HashMap::new(), numbers: 0, most }
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// It waits from now on, under this number. Given back: as much of its kind waits as may.
    pub fn join(&mut self, whose: K, what: T) -> Result<u64, T> {
        let own = self.waiting.entry(whose.clone()).or_default();
        if own.is_empty() {
            self.round.join(whose.clone());
        }
        if own.len() >= self.most {
            if own.is_empty() {
                self.gone(&whose);
            }
            return Err(what);
        }
        self.numbers += 1;
        own.push_back((self.numbers, what));
        Ok(self.numbers)
    }

    /// What is next, of those that may.
    pub fn next(&mut self, may: impl Fn(&K) -> bool) -> Option<(K, T)> {
        let whose = self.round.next(may)?;
        let own = self.waiting.get_mut(&whose)?;
        let (_, what) = own.pop_front()?;
        if own.is_empty() {
            self.gone(&whose);
        }
        Some((whose, what))
    }

    /// It waits no more. None: it had its turn.
    pub fn leave(&mut self, whose: &K, number: u64) -> Option<T> {
        let own = self.waiting.get_mut(whose)?;
        let at = own.binary_search_by_key(&number, |(number, _)| *number).ok()?;
        let (_, what) = own.remove(at)?;
        if own.is_empty() {
            self.gone(whose);
        }
        Some(what)
    }

    fn gone(&mut self, whose: &K) {
        self.waiting.remove(whose);
        self.round.leave(whose);
    }
}

#[cfg(test)]
#[path = "fair_queue_tests.rs"]
mod tests;
