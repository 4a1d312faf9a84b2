//! Finds the places that have the tokens which a call lacks at one limit.
//!
//! It must not name a place of another namespace.

use super::holders::{Holder, Holders};
use super::ledger::{Ledger, Node};
use super::node::Key;
use super::refusal::RefusalCause;

impl Ledger {
    /// The places that have the missing tokens of one limit, for this cause. `before`: the places on the path below.
    pub(super) fn holders(&self, because: &RefusalCause, before: &[usize], parent: usize, limit: usize) -> Holders {
        match because {
            RefusalCause::Guaranteed => self.with_unspent_guarantee(before, parent, limit),
            RefusalCause::Held => self.with_held_tokens(before, parent, limit),
            RefusalCause::Used
            | RefusalCause::Recovering
            | RefusalCause::TooLarge
            | RefusalCause::Paused
            | RefusalCause::InFlight
            | RefusalCause::Gateways
            | RefusalCause::Missing
            | RefusalCause::Blocked(_) => Holders::default(),
        }
    }

    /// The places with an unspent guarantee of a limit.
    fn with_unspent_guarantee(&self, before: &[usize], parent: usize, limit: usize) -> Holders {
        let unspent = |node: &Node| {
            let limits = node.limits.iter().filter(|child| child.lifts.contains(&limit));
            limits.fold(0_i64, |sum, child| sum.saturating_add(child.unspent()))
        };
        self.children_with(before, parent, unspent)
    }

    /// The places with a guarantee of a limit, as it is written: it does not change with each call.
    pub(super) fn guaranteed(&self, before: &[usize], parent: usize, limit: usize) -> Holders {
        self.children_with(before, parent, |node| {
            let limits = node.limits.iter().filter(|child| child.lifts.contains(&limit));
            limits.fold(0_i64, |sum, child| sum.saturating_add(child.spec.guaranteed))
        })
    }

    /// The places whose calls in flight hold tokens of a limit.
    fn with_held_tokens(&self, before: &[usize], parent: usize, limit: usize) -> Holders {
        let Some(window) = self.nodes[parent].limits.get(limit).map(|limit| limit.spec.window) else { return Holders::default() };
        let held = |node: &Node| node.limits.iter().filter(|child| child.spec.window == window).map(|child| child.current.held).max();
        self.children_with(before, parent, |node| held(node).unwrap_or(0))
    }

    /// The children of a place in its own namespace. A tenant must not see who else spends from the whole cluster.
    fn children_with(&self, before: &[usize], parent: usize, tokens: impl Fn(&Node) -> i64) -> Holders {
        let place = &self.nodes[parent].spec.key;
        let namespace = match place {
            Key::Namespace { namespace, .. } | Key::Budget { namespace, .. } => namespace,
            Key::Cluster(_) | Key::Share { .. } | Key::Agent(_) | Key::Task { .. } => return Holders::default(),
        };
        let of_namespace = |key: &Key| matches!(key, Key::Budget { namespace: other, .. } if other == namespace);
        let of_place = |key: &Key| matches!(key, Key::Share { of, .. } if **of == *place);
        let budgets = self.keys.range(Key::budget(namespace, "")..).take_while(|(key, _)| of_namespace(key));
        let first = Key::Share { of: Box::new(place.clone()), name: String::new() };
        let shares = self.keys.range(first..).take_while(|(key, _)| of_place(key));
        let children = budgets.chain(shares).filter(|(_, index)| self.nodes[**index].parent == Some(parent) && !before.contains(index));
        let all = children.map(|(key, index)| Holder { key: key.clone(), tokens: tokens(&self.nodes[*index]) });
        Holders::of(all.filter(|holder| holder.tokens > 0).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::NodeSpec;
    use super::super::single_leader::{SingleLeader, hourly, limit, place, route, top};
    use super::super::window::Window;
    use super::*;

    fn child(name: &str, tokens: i64, sure: i64) -> NodeSpec {
        place(Key::budget("team", name), Some(top()), vec![limit(Window::Hour, tokens, sure)])
    }

    #[test]
    fn a_refusal_says_to_whom_the_rest_is_guaranteed_the_largest_first() {
        let children = [child("a", 100, 50), child("b", 100, 20), child("c", 100, 10), child("d", 100, 5), child("asks", 100, 0)];
        let mut one = SingleLeader::new(&[&[hourly(100)], &children[..]].concat());
        let hold = one.hold(&mut route("a"), 30);
        let refusal = one.refused(&mut route("asks"), 50);
        assert_eq!(refusal.cause, RefusalCause::Guaranteed);
        let words = refusal.to_string();
        let want = "The rest is guaranteed to others: Budget/a in team (20), Budget/b in team (20), Budget/c in team (10) and 1 more";
        assert!(words.contains(want), "{words}");
        one.settle(hold, 30);
        let mut own = route("a");
        let refusal = one.refused(&mut own, 60);
        assert!(!refusal.to_string().contains("Budget/a in team ("), "its own is not named: {refusal}");
    }

    #[test]
    fn a_refusal_says_whose_calls_hold_the_rest() {
        let mut one = SingleLeader::new(&[hourly(100), child("a", 100, 0), child("b", 100, 0)]);
        let _first = one.hold(&mut route("a"), 60);
        let refusal = one.refused(&mut route("b"), 50);
        assert_eq!(refusal.cause, RefusalCause::Held);
        assert!(refusal.to_string().contains("Calls in flight hold the rest: Budget/a in team (60). "), "{refusal}");
        // At one Budget that several pools share there is no place to name.
        let refusal = one.refused(&mut route("top"), 50);
        assert!(refusal.to_string().contains("Calls in flight hold the rest"), "{refusal}");
    }
}
