//! Who is sure of what: guarantees among siblings, reservations for types of pools, agents' lifetimes, items' shares.

use std::collections::BTreeMap;

use super::estimate::{MAX_LIMIT_TOKENS, Weights};
use super::facts::{Defect, Reservation, TokenLimit};
use super::node::{Key, LimitSpec, NodeSpec};
use super::window::Window;

/// One place that wants guarantees at its parent.
#[derive(Clone, Debug)]
pub struct Child<'a> {
    /// Which.
    pub key: &'a Key,
    /// When it was made: of those that do not fit the newest gets nothing. Milliseconds.
    pub created: i64,
    /// Its limits.
    pub limits: &'a [TokenLimit],
    /// What a token counts there.
    pub weights: Weights,
}

/// What each child's limits are sure of at the parent, by the child's place in `children` and its limits' order.
///
/// A guarantee counts at a parent limit of the same window, and only where a token counts the same; of several limits of one
/// window the smallest carries it. Reservations of the parent come first. Then those that are asked for, the oldest first:
/// one that does not fit counts 0. A limit that asks for nothing bounds its own budget and keeps nothing from others.
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

/// What shares keep of a number of whole things, rounded up over the shares so far: a fifth of three is one, and two halves of three
/// are two and one. All of them only for 100 percent together.
pub fn whole(most: u64, percents: impl IntoIterator<Item = u64>) -> Vec<u64> {
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

/// The share of a place that is reserved for types of pools: always sure of it, and with `cap` of no more tokens than it.
pub fn reserved(of: &NodeSpec, reservation: &Reservation) -> NodeSpec {
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

/// Tokens of an agent's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lifetime {
    /// At first.
    pub tokens: i64,
    /// Each top-up.
    pub top_up: i64,
    /// Top-ups that may be taken.
    pub max: u32,
    /// Top-ups that were taken: durable before they count.
    pub taken: u32,
}

/// What becomes of a request for a top-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TopUp {
    /// This is its life from now on: to be written, then put.
    Granted(Lifetime),
    /// All were taken.
    Spent,
    /// The budgets above have only so much left.
    ParentsLack(i64),
}

impl Lifetime {
    /// All of it.
    pub fn limit(&self) -> i64 {
        self.tokens.saturating_add(self.top_up.saturating_mul(i64::from(self.taken.min(self.max)))).clamp(0, MAX_LIMIT_TOKENS)
    }

    /// One more top-up, if there is one and the budgets above, which have so much left, could bear it.
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

    /// What children of these hourly limits are sure of under a parent of 100, of which `percent` is reserved.
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
            assert_eq!(whole(most, percents.iter().copied()), shares, "{percents:?} of {most}");
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
