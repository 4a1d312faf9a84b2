//! The state of limits, for statuses, metrics and people.

use super::blocker::least_useful_tokens;
use super::counter::Limit;
use super::ledger::Ledger;
use super::node::Key;
use super::session::State;
use super::window::Span;

/// The state of one limit, in weighed tokens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LimitView {
    /// Its name.
    pub limit: String,
    /// The window; its end is when it resets.
    pub span: Span,
    /// The limit, with grants.
    pub height: i64,
    /// Spent, as settled.
    pub used: i64,
    /// Held for calls in flight.
    pub held: i64,
    /// Charged for gateways that went away.
    pub lost: i64,
    /// Given by an earlier leader and not explained yet. It counts as spent for now.
    pub unexplained: i64,
    /// Debt from earlier windows.
    pub debt: i64,
    /// Guaranteed to its children and not spent by them.
    pub reserved: i64,
    /// What is left; never below 0.
    pub left: i64,
    /// The least output of a call: with less left the limit gives no tokens.
    pub least: i64,
    /// A threshold paused it.
    pub paused: bool,
    /// A threshold with the action `Reap` has been reached.
    pub reaping: bool,
}

impl Ledger {
    /// The state of a place by limit. Empty: the place does not exist, or it has no limits.
    pub fn view(&self, key: &Key) -> Vec<LimitView> {
        let Some(node) = self.keys.get(key).map(|node| &self.nodes[*node]) else { return Vec::new() };
        let min_output = node.spec.terms.map_or(1, |terms| terms.min_output);
        let view = |limit: &Limit| LimitView {
            limit: limit.spec.name.clone(),
            span: limit.current.span,
            height: limit.height,
            used: limit.current.used,
            held: limit.current.held,
            lost: limit.current.lost,
            unexplained: limit.current.unexplained,
            debt: limit.current.debt,
            reserved: limit.current.reserved,
            left: limit.height.saturating_sub(limit.current.committed()).max(0),
            least: least_useful_tokens(node, min_output, limit.height),
            paused: limit.latches.paused,
            reaping: limit.latches.reaping,
        };
        node.limits.iter().map(view).collect()
    }

    /// The calls in flight at a place, and the number of calls that it would have refused (`mode: Observe`).
    pub fn traffic(&self, key: &Key) -> (u32, u64) {
        self.keys.get(key).map_or((0, 0), |node| (self.nodes[*node].in_flight, self.nodes[*node].would_refuse))
    }

    /// The names of the sessions that must report, or be dead, before all free tokens are given.
    pub fn awaited(&self) -> Vec<&str> {
        let awaited = self.sessions.iter().filter(|session| session.state == State::Awaited);
        awaited.map(|session| session.name.as_str()).collect()
    }
}
