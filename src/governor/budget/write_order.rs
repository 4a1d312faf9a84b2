//! The order of writes, because few can be written in a second: records that a call waits for come first, in turns
//! between namespaces. Pure.

use std::collections::HashSet;

use crate::policy::budget::Key;
use crate::policy::fair_queue::RoundRobin;

/// After this many urgent writes, one background write is made. Without it, background records might wait for ever, and
/// gateways would have to keep their reports without bound.
const URGENT_PER_BACKGROUND_WRITE: u32 = 3;

/// A record that may be written now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueRecord {
    /// The namespace whose turn the write takes. ClusterBudgets have turns of their own, under the empty name.
    pub namespace: String,
    /// Whether a call waits for the record.
    pub waited_for: bool,
    /// Whether the counts of the record are to be written, and not only the status beside it.
    pub counted: bool,
    /// The record.
    pub key: Key,
}

/// The turns between namespaces.
#[derive(Debug, Default)]
pub struct WriteOrder {
    waited_for: RoundRobin<String>,
    others: RoundRobin<String>,
    in_a_row: u32,
}

impl WriteOrder {
    /// The index of the next record to write. `due` has the records of one namespace in their order.
    pub fn next(&mut self, due: &[DueRecord]) -> Option<usize> {
        let any = |waited_for: bool| due.iter().any(|one| one.waited_for == waited_for);
        let both = any(true) && any(false);
        let waited_for = any(true) && !(both && self.in_a_row >= URGENT_PER_BACKGROUND_WRITE);
        self.in_a_row = if both && waited_for { self.in_a_row + 1 } else { 0 };
        let mut seen = HashSet::new();
        let these = due.iter().filter(|one| one.waited_for == waited_for).map(|one| &one.namespace);
        let wanting: Vec<String> = these.filter(|namespace| seen.insert(*namespace)).cloned().collect();
        let round = if waited_for { &mut self.waited_for } else { &mut self.others };
        round.set_members(&wanting);
        let namespace = round.next(|_| true)?;
        due.iter().position(|one| one.waited_for == waited_for && one.namespace == namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(namespace: &str, name: &str, waited_for: bool) -> DueRecord {
        DueRecord { namespace: namespace.into(), waited_for, counted: true, key: Key::Agent(name.into()) }
    }

    /// The names in the order of their writes, when nothing else becomes due.
    fn order(mut all: Vec<DueRecord>) -> Vec<String> {
        let mut write_order = WriteOrder::default();
        let mut order = Vec::new();
        while let Some(at) = write_order.next(&all) {
            let Key::Agent(name) = all.remove(at).key else { continue };
            order.push(name);
        }
        order
    }

    #[test]
    fn a_namespace_with_a_thousand_agents_lets_another_one_be_next() {
        let loud = (0..1000).map(|at| due("loud", &format!("l{at}"), true));
        let order = order(loud.chain([due("quiet", "q", true), due("", "cluster", true)]).collect());
        assert_eq!(order[..4], ["l0", "q", "cluster", "l1"]);
        assert_eq!(order.len(), 1002);
    }

    #[test]
    fn what_nobody_waits_for_comes_later_and_comes() {
        let waited = (0..9).map(|at| due("loud", &format!("l{at}"), true));
        let others = [due("loud", "a", false), due("quiet", "b", false), due("quiet", "c", false)];
        let order = order(others.into_iter().chain(waited).collect());
        assert_eq!(order, ["l0", "l1", "l2", "a", "l3", "l4", "l5", "b", "l6", "l7", "l8", "c"]);
    }

    #[test]
    fn nothing_due_is_nothing() {
        assert_eq!(WriteOrder::default().next(&[]), None);
    }
}
