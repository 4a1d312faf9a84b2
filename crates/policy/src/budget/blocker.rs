//! Why all calls of a route get no tokens for a while. Meanwhile its pool makes no agents, and its agents get no work.
//!
//! The tokens that a call needs are known in two ways. Its budgets state the least useful output. And if a call of the
//! pool was refused because it needs more than is left ([`RefusedNeed`]), the next calls are taken to need as much.
//! Causes that pass in a moment are not blockers: calls in flight, gateways that have not reported their holds to a new
//! leader, limits of a minute. The message of a blocker contains no amount that changes with each call.

use std::fmt;

use super::holders::Holders;
use super::ledger::{Ledger, Node};
use super::node::{Block, Key};
use super::refusal::{LimitRoom, Refusal, RefusalCause, RetryHint, cause_of, field_of};
use super::route::Route;
use super::tree::MAX_BUDGET_DEPTH;
use super::window::{Span, Window};

/// The need of a refused call, which other calls of the same pool are taken to have too.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RefusedNeed {
    key: Key,
    limit: String,
    span: Span,
    asked: i64,
    /// A similar call got tokens since, so the need does not count for the rest of the window.
    refuted: bool,
}

impl RefusedNeed {
    /// What a refusal says about later calls. `None`: nothing, because it is waited for, or is not about the rest of a
    /// budget.
    pub fn of(refusal: &Refusal) -> Option<Self> {
        let limit = refusal.limit.as_ref().filter(|_| refusal.above_agent())?;
        let lasts = match refusal.retry {
            RetryHint::Wait(_) => false,
            RetryHint::Later(_) | RetryHint::Never => true,
        };
        let for_want = match refusal.cause {
            RefusalCause::Used | RefusalCause::Guaranteed => true,
            // A call that is larger than the whole limit says nothing about smaller calls. The other causes are found
            // without it.
            RefusalCause::TooLarge
            | RefusalCause::Held
            | RefusalCause::Recovering
            | RefusalCause::Paused
            | RefusalCause::InFlight
            | RefusalCause::Gateways
            | RefusalCause::Missing
            | RefusalCause::Blocked(_) => false,
        };
        let need = || Self { key: refusal.key.clone(), limit: limit.name.clone(), span: limit.span, asked: limit.asked, refuted: false };
        (lasts && for_want).then(need)
    }

    /// Combines with the refusal of another call: the smallest refused call is the need, at the place that refused
    /// last.
    pub fn combine(self, other: Self) -> Self {
        let same = (&self.key, &self.limit, self.span) == (&other.key, &other.limit, other.span);
        if same { Self { asked: self.asked.min(other.asked), ..self } } else { other }
    }

    /// A call got these tokens. A much smaller call says nothing, because programs also make small calls.
    pub fn note_granted(&mut self, tokens: i64) {
        self.refuted |= tokens.saturating_mul(2) >= self.asked;
    }

    /// The tokens that are needed of a limit.
    fn need_for(&self, key: &Key, limit: &str, span: Span) -> Option<i64> {
        let about = self.key == *key && self.limit == limit && self.span == span && !self.refuted;
        about.then_some(self.asked)
    }
}

/// The limit that gives no tokens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ExhaustedLimit {
    /// Its name.
    pub name: String,
    /// Its window.
    pub span: Span,
    /// The limit with grants, in weighed tokens.
    pub height: i64,
}

/// Why all calls of a route get no tokens for a while.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Blocker {
    /// The place.
    pub key: Key,
    /// The cause.
    pub cause: RefusalCause,
    /// The limit, if it is one of tokens.
    pub limit: Option<ExhaustedLimit>,
    /// The field to raise, from the root of its object.
    pub field: String,
    /// If the rest is guaranteed to others: these places, with the guarantees as they are written.
    pub guaranteed: Holders,
}

impl Blocker {
    /// When it ends by itself, in milliseconds.
    pub fn until(&self) -> Option<i64> {
        self.limit.as_ref().and_then(|limit| limit.span.end())
    }
}

/// A message for people: which budget, which limit and window, until when, and what to raise.
impl fmt::Display for Blocker {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, cause: because, limit, field, guaranteed } = self;
        let Some(ExhaustedLimit { name, span, height }) = limit else {
            return match because {
                RefusalCause::Blocked(Block::ParentMissing(parent)) => {
                    write!(out, "{key} gives no tokens: its parent Budget/{parent} does not exist. Create it, or change {field}")
                }
                RefusalCause::Blocked(Block::Cycle(names)) => {
                    write!(out, "{key} gives no tokens: its parents form a cycle of the Budgets {}. Change {field}", names.join(", "))
                }
                RefusalCause::Blocked(Block::TooDeep) => {
                    write!(out, "{key} gives no tokens: its chain of parents is longer than {MAX_BUDGET_DEPTH} Budgets. Change {field}")
                }
                RefusalCause::Used
                | RefusalCause::Held
                | RefusalCause::Guaranteed
                | RefusalCause::Recovering
                | RefusalCause::TooLarge
                | RefusalCause::Paused
                | RefusalCause::InFlight
                | RefusalCause::Gateways
                | RefusalCause::Missing => write!(out, "{key} gives no tokens"),
            };
        };
        let why = match because {
            RefusalCause::Guaranteed => format!("has no tokens left, except those that are guaranteed to others{guaranteed}"),
            RefusalCause::Paused => "is paused by one of its thresholds".to_owned(),
            RefusalCause::Used
            | RefusalCause::Held
            | RefusalCause::Recovering
            | RefusalCause::TooLarge
            | RefusalCause::InFlight
            | RefusalCause::Gateways
            | RefusalCause::Missing
            | RefusalCause::Blocked(_) => "has fewer tokens left than a call needs".to_owned(),
        };
        write!(out, "{key}: the limit {name} of {height} tokens {why}")?;
        match span.end() {
            Some(end) => write!(
                out,
                ". It resets at {} (window {span}). To continue earlier, raise {field} or create a Grant",
                Window::Minute.at(end)
            ),
            None => write!(out, ". It does not reset by itself. Raise {field} or create a Grant"),
        }
    }
}

/// The fewest tokens with which a limit of this height is of use. If the limit is lower than the least output of a
/// call, calls that ask for less get the rest.
pub(super) fn least_useful_tokens(node: &Node, min_output: i64, height: i64) -> i64 {
    let least = node.spec.weights.bound(0, min_output).max(1);
    if least > height { 1 } else { least }
}

impl Ledger {
    /// What blocks every call of a route that needs as much as its budgets state, or as `need` states. Of several
    /// blockers the one that lasts longest is returned, and of equal ones the nearest. `now` in milliseconds.
    pub fn blocker(&mut self, now: i64, route: &mut Route, need: Option<&RefusedNeed>) -> Option<Blocker> {
        self.advance(now);
        self.refresh(route);
        let min_output = route.terms().min_output;
        let steps = route.steps.iter().enumerate().filter(|(_, index)| self.nodes[**index].enforced());
        let all: Vec<Blocker> = steps.filter_map(|(at, index)| self.blocker_at(&route.steps[..at], *index, min_output, need)).collect();
        all.into_iter().rev().max_by_key(end_or_max)
    }

    /// The blocker at one place.
    fn blocker_at(&self, before: &[usize], index: usize, min_output: i64, need: Option<&RefusedNeed>) -> Option<Blocker> {
        let node = &self.nodes[index];
        let key = &node.spec.key;
        if let Some(block) = &node.spec.block {
            let (because, field) = (RefusalCause::Blocked(block.clone()), "spec.parentRef".to_owned());
            return Some(Blocker { key: key.clone(), cause: because, limit: None, field, guaranteed: Holders::default() });
        }
        let limits = node.limits.iter().enumerate().filter(|(_, limit)| limit.spec.window != Window::Minute);
        let all = limits.filter_map(|(which, limit)| {
            let needed = need.and_then(|need| need.need_for(key, &limit.spec.name, limit.current.span)).unwrap_or(0);
            let room = LimitRoom {
                height: limit.height,
                spent: limit.current.spent().saturating_sub(limit.current.unexplained),
                unexplained: 0,
                held: 0,
                reserved: 0,
                asked: least_useful_tokens(node, min_output, limit.height).max(needed),
                paused: limit.latches.paused && !self.is_reserved(before, index),
            };
            let room = LimitRoom { reserved: self.unspent_guarantees(before, index, which, &room), ..room };
            let because = match cause_of(&room) {
                because @ (RefusalCause::Used | RefusalCause::TooLarge | RefusalCause::Paused | RefusalCause::Guaranteed) => because,
                // With no holds and nothing unexplained, there are enough tokens.
                RefusalCause::Held | RefusalCause::Recovering => return None,
                RefusalCause::InFlight | RefusalCause::Gateways | RefusalCause::Missing | RefusalCause::Blocked(_) => return None,
            };
            let spent = ExhaustedLimit { name: limit.spec.name.clone(), span: limit.current.span, height: limit.height };
            let guaranteed = if because == RefusalCause::Guaranteed { self.guaranteed(before, index, which) } else { Holders::default() };
            Some(Blocker { key: key.clone(), cause: because, limit: Some(spent), field: field_of(key, &limit.spec.name), guaranteed })
        });
        let all: Vec<Blocker> = all.collect();
        all.into_iter().rev().max_by_key(end_or_max)
    }

    /// The unspent guarantees of siblings, as if no call were in flight: a pool must not follow what changes with each
    /// call.
    fn unspent_guarantees(&self, before: &[usize], parent: usize, limit: usize, room: &LimitRoom) -> i64 {
        let cell = &self.nodes[parent].limits[limit].current;
        let most = cell.reserved.saturating_add(cell.held);
        // The guarantees cannot exceed this bound, so most of the time no sibling is examined.
        if room.asked <= room.height.saturating_sub(room.spent).saturating_sub(most) {
            return 0;
        }
        let siblings = self.nodes.iter().enumerate();
        let siblings = siblings.filter(|(index, node)| node.alive && node.guards && node.parent == Some(parent) && !before.contains(index));
        let limits = siblings.flat_map(|(_, node)| &node.limits).filter(|child| child.lifts.contains(&limit));
        let unspent = limits
            .map(|child| child.spec.guaranteed.saturating_sub(child.current.given_tokens().saturating_sub(child.current.held)).max(0));
        unspent.fold(0, i64::saturating_add)
    }
}

/// The end of a blocker, for comparison. One that does not end by itself lasts longest.
fn end_or_max(obstacle: &Blocker) -> i64 {
    obstacle.until().unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::CallTerms;
    use super::super::facts::Reservation;
    use super::super::node::{Action, Grant, Mode, NodeSpec, Threshold};
    use super::super::share::{Lifetime, agent, reservation_spec};
    use super::super::single_leader::{HOUR, NOW, SingleLeader, ask, hourly, limit, place, route, top};
    use super::*;

    fn because(one: &mut SingleLeader, route: &mut Route) -> Option<RefusalCause> {
        let now = one.now;
        one.ledger.blocker(now, route, None).map(|obstacle| obstacle.cause)
    }

    fn with_terms(min_output: i64, spec: NodeSpec) -> NodeSpec {
        NodeSpec { terms: Some(CallTerms { min_output, ..CallTerms::default() }), ..spec }
    }

    #[test]
    fn a_limit_of_which_less_is_left_than_a_call_needs_is_in_the_way_until_its_window_turns() {
        let mut one = SingleLeader::new(&[with_terms(10, hourly(100))]);
        let mut way = route("top");
        assert_eq!(because(&mut one, &mut way), None);
        let first = one.hold(&mut way, 91);
        assert_eq!(because(&mut one, &mut way), None, "what is only held comes back");
        one.settle(first, 91);
        let obstacle = one.ledger.blocker(one.now, &mut way, None).expect("9 are left, and a call needs 10");
        assert_eq!((obstacle.key.clone(), obstacle.until()), (top(), Some(NOW + HOUR)));
        let words = obstacle.to_string();
        for word in [
            "Budget/top in team",
            "the limit hour of 100 tokens has fewer tokens left than a call needs. It resets at ",
            "spec.tokens.limits[hour].tokens",
        ] {
            assert!(words.contains(word), "{word:?} is not said: {words}");
        }
        one.now += HOUR;
        assert_eq!(because(&mut one, &mut way), None, "a new window");
    }

    #[test]
    fn a_grant_or_a_higher_limit_takes_it_away() {
        let mut one = SingleLeader::new(&[with_terms(1, hourly(100))]);
        let mut way = route("top");
        let hold = one.hold(&mut way, 100);
        one.settle(hold, 100);
        assert_eq!(because(&mut one, &mut way), Some(RefusalCause::Used));
        let grant = Grant { id: "g".into(), limit: "hour".into(), tokens: 50, from: one.now, until: None };
        one.ledger.set_grants(one.now, &top(), &[grant]);
        assert_eq!(because(&mut one, &mut way), None);
        one.ledger.set_grants(one.now, &top(), &[]);
        assert_eq!(because(&mut one, &mut way), Some(RefusalCause::Used));
        one.ledger.set_tree(&[with_terms(1, hourly(101))]);
        assert_eq!(because(&mut one, &mut way), None);
    }

    #[test]
    fn who_only_counts_is_in_nobodys_way_and_neither_is_a_minute() {
        let spent = |spec: NodeSpec| {
            let mut one = SingleLeader::new(&[with_terms(1, spec)]);
            let hold = one.hold(&mut route("top"), 100);
            one.settle(hold, 100);
            because(&mut one, &mut route("top"))
        };
        assert_eq!(spent(hourly(100)), Some(RefusalCause::Used));
        assert_eq!(spent(NodeSpec { mode: Mode::Observe, ..hourly(100) }), None);
        assert_eq!(spent(place(top(), None, vec![limit(Window::Minute, 100, 0)])), None, "a call waits for the next one");
    }

    #[test]
    fn a_pause_is_one_but_for_who_has_a_reservation() {
        let thresholds = vec![Threshold { percent: 50, action: Action::Pause }];
        let reservation = Reservation { name: "scheduler".into(), pool_types: vec!["scheduler".into()], percent: 20, cap: true };
        let budget = with_terms(1, NodeSpec { thresholds, ..hourly(100) });
        let share = reservation_spec(&budget, &reservation);
        let budget = NodeSpec { shares: vec![("scheduler".into(), share.key.clone())], ..budget };
        let mut one = SingleLeader::new(&[budget, share]);
        let mut worker = route("top");
        let hold = one.hold(&mut worker, 45);
        one.settle(hold, 45);
        assert_eq!(because(&mut one, &mut worker), Some(RefusalCause::Paused), "half of what workers can reach");
        let mut scheduler = Route::new(Vec::new(), Some(top()), "scheduler");
        assert_eq!(because(&mut one, &mut scheduler), None);
    }

    #[test]
    fn what_is_guaranteed_to_others_is_not_left_whether_they_hold_it_or_not() {
        let child = |name: &str, sure| {
            let key = Key::budget("team", name);
            with_terms(1, place(key, Some(top()), vec![limit(Window::Hour, 100, sure)]))
        };
        let mut one = SingleLeader::new(&[with_terms(1, hourly(100)), child("a", 60), child("b", 0)]);
        let (mut sure, mut other) = (route("a"), route("b"));
        let hold = one.hold(&mut other, 40);
        one.settle(hold, 40);
        assert_eq!(because(&mut one, &mut other), Some(RefusalCause::Guaranteed));
        let words = one.ledger.blocker(one.now, &mut other, None).expect("it stands").to_string();
        assert!(words.contains("guaranteed to others: Budget/a in team (60). It resets at "), "{words}");
        assert_eq!(because(&mut one, &mut sure), None);
        let hold = one.hold(&mut sure, 30);
        assert_eq!(because(&mut one, &mut other), Some(RefusalCause::Guaranteed), "it does not come and go with each call");
        one.settle(hold, 0);
        assert_eq!(because(&mut one, &mut other), Some(RefusalCause::Guaranteed));
    }

    #[test]
    fn a_tiny_limit_is_no_obstacle_while_something_is_left_and_an_empty_one_always_is() {
        let mut one = SingleLeader::new(&[with_terms(1024, hourly(100))]);
        assert_eq!(because(&mut one, &mut route("top")), None, "calls that ask for less get it");
        let mut none = SingleLeader::new(&[with_terms(1024, hourly(0))]);
        assert_eq!(because(&mut none, &mut route("top")), Some(RefusalCause::TooLarge));
    }

    #[test]
    fn the_one_that_stays_longest_is_named() {
        let mut one = SingleLeader::new(&[with_terms(1, hourly(100))]);
        one.ledger.put(agent("a", &Lifetime { tokens: 100, top_up: 0, max: 0, taken: 0 }));
        let mut way = Route::new(vec![Key::Agent("a".into())], Some(top()), "worker");
        let hold = one.hold(&mut way, 100);
        one.settle(hold, 100);
        let obstacle = one.ledger.blocker(one.now, &mut way, None).expect("both are spent");
        assert_eq!(obstacle.key, Key::Agent("a".into()), "a life has no next window");
        assert!(obstacle.to_string().contains("lifetimeTokens"), "{obstacle}");
        let blocked = NodeSpec { block: Some(Block::ParentMissing("gone".into())), ..hourly(100) };
        let mut one = SingleLeader::new(&[blocked]);
        let words = one.ledger.blocker(one.now, &mut route("top"), None).expect("it gives nothing").to_string();
        assert!(words.contains("Budget/gone"), "{words}");
    }

    #[test]
    fn a_pool_whose_call_was_refused_needs_as_much_again_until_others_like_it_are_given() {
        let mut one = SingleLeader::new(&[with_terms(1, hourly(100))]);
        let mut way = route("top");
        let hold = one.hold(&mut way, 60);
        assert_eq!(RefusedNeed::of(&one.refused(&mut way, 50)), None, "it is held: it comes back");
        one.settle(hold, 60);
        let need = RefusedNeed::of(&one.refused(&mut way, 50)).expect("it is spent");
        let need = need.combine(RefusedNeed::of(&one.refused(&mut way, 45)).expect("so it is"));
        assert_eq!(RefusedNeed::of(&one.refused(&mut way, 101)), None, "nothing is said of smaller ones");
        let stands = |one: &mut SingleLeader, need: &RefusedNeed| one.ledger.blocker(one.now, &mut route("top"), Some(need)).is_some();
        assert!(stands(&mut one, &need) && because(&mut one, &mut way).is_none());
        let mut refuted = need.clone();
        refuted.note_granted(22);
        assert!(stands(&mut one, &refuted), "a small one beside it");
        refuted.note_granted(23);
        assert!(!stands(&mut one, &refuted));
        one.ledger.set_tree(&[with_terms(1, hourly(104))]);
        assert!(stands(&mut one, &need), "raised by too little");
        one.ledger.set_tree(&[with_terms(1, hourly(105))]);
        assert!(!stands(&mut one, &need));
        one.ledger.set_tree(&[with_terms(1, hourly(100))]);
        assert!(stands(&mut one, &need));
        one.now += HOUR;
        let _ = one.ledger.tick(one.now, 0);
        assert!(!stands(&mut one, &need), "a new window");
    }

    proptest! {
        /// A blocker refuses every call that needs as much as its budgets state. Once all calls are settled, nothing
        /// else does.
        #[test]
        fn it_stands_exactly_when_the_least_call_is_refused_for_a_while(
            spends in proptest::collection::vec(1_i64..60, 0..8), tokens in 1_i64..150, min_output in 1_i64..20, pause in 1_i64..=100,
        ) {
            let thresholds = vec![Threshold { percent: pause, action: Action::Pause }];
            let spec = with_terms(min_output, NodeSpec { thresholds, ..hourly(tokens) });
            let mut one = SingleLeader::new(&[spec]);
            let mut way = route("top");
            for output in spends {
                if let Ok((hold, _)) = one.try_hold(&mut way, &ask(output)) {
                    one.settle(hold, output);
                }
            }
            let stands = one.ledger.blocker(one.now, &mut way, None).is_some();
            let needs = if min_output > tokens { 1 } else { min_output };
            prop_assert_eq!(stands, one.try_hold(&mut way, &ask(needs)).is_err());
        }
    }
}
