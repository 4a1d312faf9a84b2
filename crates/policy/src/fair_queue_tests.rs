//! Table and property tests of fair queueing, against a plain list.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

#[test]
fn one_after_the_other_and_within_each_in_order() {
    let mut line = FairQueue::new(100);
    for (whose, what) in [("loud", 1), ("loud", 2), ("loud", 3), ("quiet", 4), ("loud", 5), ("third", 6)] {
        line.join(whose, what).expect("room");
    }
    let order: Vec<_> = std::iter::from_fn(|| line.next(|_| true)).map(|(_, what)| what).collect();
    assert_eq!(order, [1, 4, 6, 2, 3, 5]);
    assert!(line.is_empty());
}

#[test]
fn who_may_not_is_passed_over_and_keeps_its_turn() {
    let mut line = FairQueue::new(100);
    for (whose, what) in [("loud", 1), ("quiet", 2), ("quiet", 3)] {
        line.join(whose, what).expect("room");
    }
    assert_eq!(line.next(|whose| *whose != "loud"), Some(("quiet", 2)));
    assert_eq!(line.next(|_| true), Some(("loud", 1)));
    assert_eq!(line.next(|whose| *whose != "quiet"), None);
    assert_eq!(line.next(|_| true), Some(("quiet", 3)));
}

#[test]
fn one_fills_its_own_room_and_nobody_elses() {
    let mut line = FairQueue::new(2);
    assert!(line.join("loud", 1).is_ok() && line.join("loud", 2).is_ok());
    assert_eq!(line.join("loud", 3), Err(3));
    assert!(line.join("quiet", 4).is_ok());
    let mut none = FairQueue::new(0);
    assert_eq!(none.join("loud", 1), Err(1));
    assert!(none.is_empty() && none.next(|_| true).is_none());
}

#[test]
fn a_round_follows_those_who_want() {
    let mut round = RoundRobin::default();
    round.set_members(&["a", "b", "c"]);
    assert_eq!(round.next(|_| true), Some("a"));
    round.set_members(&["c", "a", "d"]);
    let order: Vec<_> = (0..4).filter_map(|_| round.next(|_| true)).collect();
    assert_eq!(order, ["c", "a", "d", "c"]);
    round.set_members(&[]);
    assert_eq!(round.next(|_| true), None);
}

#[derive(Clone, Debug)]
enum Move {
    Join(u8),
    Leave(usize),
    /// The keys that may not have the turn.
    Next(BTreeSet<u8>),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        4 => (0..5_u8).prop_map(Move::Join),
        1 => any::<usize>().prop_map(Move::Leave),
        3 => prop::collection::btree_set(0..5_u8, 0..2).prop_map(Move::Next),
    ];
    prop::collection::vec(one, 0..100)
}

proptest! {
    #[test]
    fn nothing_is_lost_or_said_twice_and_nobody_waits_for_more_than_one_turn_of_each_other(moves in moves()) {
        let most = 6;
        let mut line = FairQueue::new(most);
        // The waiting entries in order of arrival, with their numbers.
        let mut all: Vec<(u8, u64)> = Vec::new();
        // The turns that each other key had while this key waited and could have had one.
        let mut passed: BTreeMap<u8, BTreeMap<u8, u32>> = BTreeMap::new();
        for (at, one) in moves.into_iter().enumerate() {
            let of = |all: &[(u8, u64)], whose: u8| all.iter().filter(|(other, _)| *other == whose).count();
            match one {
                Move::Join(whose) => match line.join(whose, at) {
                    Ok(number) => {
                        prop_assert!(of(&all, whose) < most);
                        prop_assert!(all.iter().all(|(_, other)| *other < number));
                        all.push((whose, number));
                        passed.entry(whose).or_default();
                    }
                    Err(given_back) => prop_assert!(given_back == at && of(&all, whose) == most),
                },
                Move::Leave(which) => {
                    if all.is_empty() { continue; }
                    let (whose, number) = all.remove(which % all.len());
                    prop_assert!(line.leave(&whose, number).is_some());
                    prop_assert!(line.leave(&whose, number).is_none());
                    if of(&all, whose) == 0 { passed.remove(&whose); }
                }
                Move::Next(barred) => {
                    let before = line.clone();
                    let next = line.next(|whose| !barred.contains(whose));
                    let Some((whose, _)) = next else {
                        prop_assert!(all.iter().all(|(whose, _)| barred.contains(whose)));
                        continue;
                    };
                    prop_assert!(!barred.contains(&whose));
                    let first = all.iter().position(|(other, _)| *other == whose).expect("it waited");
                    let (_, number) = all.remove(first);
                    // The first entry of its key: it is there before, and not after.
                    prop_assert!(before.clone().leave(&whose, number).is_some() && line.leave(&whose, number).is_none());
                    for (other, turns) in &mut passed {
                        if *other != whose && !barred.contains(other) {
                            let had = turns.entry(whose).or_default();
                            *had += 1;
                            prop_assert!(*had <= 1, "{other} waits, and {whose} had {had} turns");
                        }
                    }
                    if of(&all, whose) == 0 { passed.remove(&whose); } else { passed.insert(whose, BTreeMap::new()); }
                }
            }
            prop_assert_eq!(line.is_empty(), all.is_empty());
        }
    }
}
