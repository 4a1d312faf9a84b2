//! Guarantees among siblings, reservations for pool types, lifetimes of agents, and shares of items.

use std::collections::BTreeMap;

use super::estimate::{MAX_LIMIT_TOKENS, Weights};
use super::facts::{Defect, Reservation, TokenLimit};
use super::node::{Key, LimitSpec, NodeSpec};
use super::window::Window;

/// A place that asks for guarantees at its parent.
#[derive(Clone, Debug)]
pub struct Child<'a> {
    /// Its key.
    pub key: &'a Key,
    /// When it was made, in milliseconds. If not all guarantees fit, the newest place gets none.
    pub created: i64,
    /// Its limits.
    pub limits: &'a [TokenLimit],
    /// The weights of its tokens.
    pub weights: Weights,
}

/// The guarantees of each child's limits at the parent, by the order of `children` and of their limits.
///
/// A guarantee counts at a parent limit of the same window, and only if both have the same weights. Of several limits
/// of one window the smallest has the guarantee. Reservations of the parent come first, then the requested guarantees,
/// the oldest first. A guarantee that does not fit counts 0. A limit without a guarantee bounds its own budget and
/// keeps nothing from others.
pub fn allot(
    parent: &[LimitSpec],
    weights: Weights,
    reservations: &[Reservation],
    children: &[Child],
) -> (Vec<Vec<i64>>, Vec<(Key, Defect)>) {
    let mut sure: Vec<Vec<i64>> = children.iter().map(|child| vec![0; child.limits.len()]).collect();
    let mut defects = Vec::new();
    let percent: i64 = reservations.iter().map(|share| share.percent.clamp(0, 100)).sum::<i64>().min(100);
    let mut room: BTreeMap<Window, i64> = BTreeMap::new();
    for limit in parent {
        let free = limit.tokens.clamp(0, MAX_LIMIT_TOKENS) - part(limit.tokens, percent);
        room.entry(limit.window).and_modify(|room| *room = free.min(*room)).or_insert(free);
    }
    let mut order: Vec<usize> = (0..children.len()).collect();
    order.sort_by_key(|index| (children[*index].created, children[*index].key));
    for (window, mut left) in room {
        for index in &order {
            let child = &children[*index];
            let ours = child.limits.iter().enumerate().filter(|(_, limit)| limit.window == window);
            let Some((which, limit)) = ours.min_by_key(|(_, limit)| limit.tokens) else { continue };
            let asked = limit.guaranteed.clamp(0, limit.tokens.max(0));
            if asked > 0 && child.weights != weights {
                defects.push((child.key.clone(), Defect::GuaranteeOtherWeights { limit: limit.name.clone() }));
            } else if asked > left {
                defects.push((child.key.clone(), Defect::GuaranteesExceedParent { limit: limit.name.clone(), left }));
            } else {
                left -= asked;
                sure[*index][which] = asked;
            }
        }
    }
    (sure, defects)
}

fn part(tokens: i64, percent: i64) -> i64 {
    // At most 10^15 * 100: it fits.
    tokens.clamp(0, MAX_LIMIT_TOKENS) * percent.clamp(0, 100) / 100
}

/// The number of whole units in each share of `most`, rounded up over the shares so far: a fifth of three is one, and
/// two halves of three are two and one. The shares take all units only if they add up to 100 percent.
pub fn whole_units(most: u64, percents: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let kept = |percent: u64| {
        let kept = most.saturating_mul(percent.min(100)).div_ceil(100);
        if percent >= 100 { kept } else { kept.min(most.saturating_sub(1)) }
    };
    let mut before = 0_u64;
    let mut shares = Vec::new();
    for percent in percents {
        let with = before.saturating_add(percent);
        shares.push(kept(with).saturating_sub(kept(before)));
        before = with;
    }
    shares
}

/// The share of a place that is reserved for pool types: the share is guaranteed, and with `cap` it is also the limit.
pub fn reservation_spec(of: &NodeSpec, reservation: &Reservation) -> NodeSpec {
    let limit = |limit: &LimitSpec| {
        let share = part(limit.tokens, reservation.percent);
        let tokens = if reservation.cap { share } else { limit.tokens };
        LimitSpec { name: limit.name.clone(), window: limit.window, tokens, guaranteed: share }
    };
    let key = Key::Share { of: Box::new(of.key.clone()), name: reservation.name.clone() };
    NodeSpec {
        mode: of.mode,
        weights: of.weights,
        debt: of.debt,
        limits: of.limits.iter().map(limit).collect(),
        ..NodeSpec::new(key, Some(of.key.clone()))
    }
}

/// The tokens of an agent's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lifetime {
    /// Tokens at the start.
    pub tokens: i64,
    /// Tokens of each top-up.
    pub top_up: i64,
    /// The most top-ups.
    pub max: u32,
    /// The top-ups so far. Each is durable before it counts.
    pub taken: u32,
}

/// The answer to a request for a top-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TopUp {
    /// The new lifetime: to be written first, then put.
    Granted(Lifetime),
    /// All top-ups were taken.
    Spent,
    /// The budgets above have only this much left.
    ParentsLack(i64),
}

impl Lifetime {
    /// All its tokens so far.
    pub fn limit(&self) -> i64 {
        self.tokens.saturating_add(self.top_up.saturating_mul(i64::from(self.taken.min(self.max)))).clamp(0, MAX_LIMIT_TOKENS)
    }

    /// One more top-up, if there is one left and the budgets above, which have `left_above`, have enough.
    pub fn top_up(self, left_above: i64) -> TopUp {
        if self.taken >= self.max || self.top_up <= 0 {
            TopUp::Spent
        } else if left_above < self.top_up {
            TopUp::ParentsLack(left_above.max(0))
        } else {
            TopUp::Granted(Self { taken: self.taken + 1, ..self })
        }
    }
}

/// Name of the one limit of an agent's life and of an item's share.
pub const LEAF_LIMIT_NAME: &str = "tokens";

/// An agent's life as a place.
pub fn agent(uid: &str, lifetime: &Lifetime) -> NodeSpec {
    alone(Key::Agent(uid.to_owned()), lifetime.limit())
}

/// The share of one lease of an item as a place.
pub fn task(item: &str, epoch: i64, tokens: i64) -> NodeSpec {
    alone(Key::Task { item: item.to_owned(), epoch }, tokens)
}

fn alone(key: Key, tokens: i64) -> NodeSpec {
    let limits = vec![LimitSpec { name: LEAF_LIMIT_NAME.to_owned(), window: Window::Lifetime, tokens, guaranteed: 0 }];
    NodeSpec { limits, ..NodeSpec::new(key, None) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(name: &str, window: Window, tokens: i64, guaranteed: i64) -> TokenLimit {
        TokenLimit { name: name.into(), window, tokens, guaranteed }
    }

    /// The guarantees of children with these hourly limits under a parent of 100, of which `percent` is reserved.
    fn sure(percent: i64, children: &[(i64, i64)]) -> (Vec<i64>, usize) {
        let parent = [LimitSpec { name: "hourly".into(), window: Window::Hour, tokens: 100, guaranteed: 0 }];
        let limits: Vec<_> = children.iter().map(|(tokens, sure)| vec![limit("l", Window::Hour, *tokens, *sure)]).collect();
        let keys: Vec<_> = (0..children.len()).map(|index| Key::budget("team", &index.to_string())).collect();
        let reservations = [Reservation { name: "scheduler".into(), pool_types: vec!["scheduler".into()], percent, cap: true }];
        let children: Vec<_> = keys
            .iter()
            .zip(&limits)
            .enumerate()
            .map(|(age, (key, limits))| Child { key, created: i64::try_from(age).unwrap_or(0), limits, weights: Weights::default() })
            .collect();
        let (sure, defects) = allot(&parent, Weights::default(), &reservations, &children);
        (sure.into_iter().map(|limits| limits[0]).collect(), defects.len())
    }

    #[test]
    fn who_asks_first_is_sure_first_and_who_does_not_ask_takes_nothing_from_others() {
        assert_eq!(sure(0, &[(100, 60), (100, 40), (100, 1)]), (vec![60, 40, 0], 1), "the newest does not fit");
        assert_eq!(sure(20, &[(100, 60), (100, 40)]), (vec![60, 0], 1), "reservations come first");
        assert_eq!(sure(0, &[(50, 0), (50, 0)]), (vec![0, 0], 0), "a limit keeps nothing from others by itself");
        assert_eq!(sure(0, &[(100, 0), (100, 100)]), (vec![0, 100], 0));
        assert_eq!(sure(100, &[(10, 0), (10, 0)]), (vec![0, 0], 0));
    }

    #[test]
    fn shares_of_whole_things_are_rounded_up_and_are_together_no_more_than_there_are() {
        let cases: [(u64, &[u64], &[u64]); 8] = [
            (3, &[20], &[1]),
            (1, &[20], &[0]),
            (100, &[20], &[20]),
            (2, &[100], &[2]),
            (3, &[50, 50], &[2, 1]),
            (2, &[10, 10, 10], &[1, 0, 0]),
            (10, &[20, 30], &[2, 3]),
            (0, &[20, 80], &[0, 0]),
        ];
        for (most, percents, shares) in cases {
            assert_eq!(whole_units(most, percents.iter().copied()), shares, "{percents:?} of {most}");
        }
    }

    #[test]
    fn a_guarantee_counts_at_the_same_window_and_where_a_token_counts_the_same() {
        let parent = [LimitSpec { name: "daily".into(), window: Window::Day, tokens: 100, guaranteed: 0 }];
        let limits = [limit("hourly", Window::Hour, 10, 10), limit("a", Window::Day, 50, 40), limit("b", Window::Day, 20, 20)];
        let key = Key::budget("team", "a");
        let child = Child { key: &key, created: 0, limits: &limits, weights: Weights::default() };
        assert_eq!(
            allot(&parent, Weights::default(), &[], std::slice::from_ref(&child)).0,
            [[0, 0, 20]],
            "the smaller of the two of a day"
        );
        let other = Weights { output: 5000, ..Weights::default() };
        let (sure, defects) = allot(&parent, other, &[], &[child]);
        assert_eq!((sure, defects), (vec![vec![0, 0, 0]], vec![(key.clone(), Defect::GuaranteeOtherWeights { limit: "b".into() })]));
    }

    #[test]
    fn a_life_is_topped_up_as_often_as_it_may_and_the_parents_can() {
        let life = Lifetime { tokens: 100, top_up: 50, max: 1, taken: 0 };
        assert_eq!(life.top_up(49), TopUp::ParentsLack(49));
        let TopUp::Granted(more) = life.top_up(50) else { panic!("there is one") };
        assert_eq!((more.limit(), more.top_up(1000)), (150, TopUp::Spent));
        assert_eq!(Lifetime { top_up: 0, ..life }.top_up(1000), TopUp::Spent);
    }
}
