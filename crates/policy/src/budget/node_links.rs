//! The effects of one place on others: parents, guarantees that reduce what siblings may take, debt, thresholds.

use super::counter::WindowCounter;
use super::ledger::{Ledger, Node};
use super::node::{Key, LimitSpec};
use super::thresholds::Level;

impl Ledger {
    /// Sets the parents, and the limits of the parents at which guarantees count.
    pub(super) fn link(&mut self) {
        self.unlinked = false;
        self.nodes.iter_mut().for_each(|node| node.shares.clear());
        for index in 0..self.nodes.len() {
            let parent = self.nodes[index].spec.parent.as_ref().and_then(|parent| self.keys.get(parent)).copied();
            let parent = parent.filter(|_| self.nodes[index].alive);
            let above: Vec<_> =
                parent.map(|parent| self.nodes[parent].limits.iter().map(|limit| limit.spec.clone()).collect()).unwrap_or_default();
            let node = &mut self.nodes[index];
            let is_share = matches!(node.spec.key, Key::Share { .. });
            node.parent = parent;
            node.guards = false;
            for limit in &mut node.limits {
                let same = |other: &LimitSpec| other.window == limit.spec.window && (!is_share || other.name == limit.spec.name);
                limit.lifts = above.iter().enumerate().filter(|(_, other)| same(other)).map(|(at, _)| at).collect();
                if limit.spec.guaranteed <= 0 {
                    limit.lifts.clear();
                }
                node.guards |= !limit.lifts.is_empty();
            }
            if let (true, Some(parent)) = (is_share, parent) {
                self.nodes[parent].shares.push(index);
            }
        }
        self.reserve();
    }

    /// Computes the unspent guarantees again, and checks all thresholds.
    pub(super) fn reserve(&mut self) {
        self.nodes.iter_mut().flat_map(|node| &mut node.limits).for_each(|limit| limit.current.reserved = 0);
        for index in 0..self.nodes.len() {
            if let (true, Some(parent)) = (self.nodes[index].guards, self.nodes[index].parent) {
                for limit in 0..self.nodes[index].limits.len() {
                    let unspent = self.nodes[index].limits[limit].unspent();
                    self.lift(index, limit, parent, unspent);
                }
            }
        }
        for index in 0..self.nodes.len() {
            (0..self.nodes[index].limits.len()).for_each(|limit| self.check_thresholds(index, limit));
        }
    }

    fn lift(&mut self, node: usize, limit: usize, parent: usize, by: i64) {
        for lift in 0..self.nodes[node].limits[limit].lifts.len() {
            let at = self.nodes[node].limits[limit].lifts[lift];
            if let Some(above) = self.nodes[parent].limits.get_mut(at) {
                above.current.reserved = above.current.reserved.saturating_add(by);
            }
        }
    }

    /// Changes the counters of one limit in the window of `time`, and what follows: what siblings may take, the debt of
    /// later windows, thresholds. Nothing happens if that window is not kept.
    #[inline]
    pub(super) fn change(&mut self, node: usize, limit: usize, time: i64, edit: impl FnOnce(&mut WindowCounter)) {
        let place = &mut self.nodes[node];
        let (guards, parent, debt) = (place.guards, place.parent, place.debt());
        let Some(found) = place.limits.get_mut(limit) else { return };
        if found.current.contains(time) {
            let before = if guards { found.unspent() } else { 0 };
            edit(&mut found.current);
            let by = if guards { found.unspent() - before } else { 0 };
            let known = found.current.committed() - found.current.unexplained;
            if known >= found.latches.next_with_holds || known - found.current.held >= found.latches.next_spent {
                self.crossed.push((node, limit));
            }
            if let (true, Some(parent)) = (by != 0, parent) {
                self.lift(node, limit, parent, by);
            }
        } else if let Some(cell) = found.window_at(time) {
            edit(cell);
            found.carry_debt(debt);
            self.crossed.push((node, limit));
        }
    }

    pub(super) fn look_crossed(&mut self) {
        while let Some((node, limit)) = self.crossed.pop() {
            self.check_thresholds(node, limit);
        }
    }

    pub(super) fn check_thresholds(&mut self, node: usize, limit: usize) {
        let Some(found) = self.nodes[node].limits.get(limit) else { return };
        let name = &found.spec.name;
        let shares = self.nodes[node].shares.iter().flat_map(|share| &self.nodes[*share].limits);
        let kept = shares.filter(|share| share.spec.name == *name && share.spec.window == found.spec.window);
        let kept = kept.fold(0_i64, |sum, share| sum.saturating_add(share.unspent()));
        let committed = found.current.committed().saturating_sub(found.current.unexplained);
        let level = Level {
            committed,
            spent: committed.saturating_sub(found.current.held),
            reach: found.height.saturating_sub(kept),
            height: found.height,
        };
        let Node { spec, limits, record, .. } = &mut self.nodes[node];
        let record = *record;
        if let Some(found) = limits.get_mut(limit)
            && found.latches.trigger(&spec.thresholds, level)
        {
            self.touch(record, true);
        }
    }
}
