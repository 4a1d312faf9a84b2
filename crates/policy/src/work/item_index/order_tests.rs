//! The order and the counts of items, compared with a look at each item. Property tests only.

use proptest::prelude::*;

use super::*;
use crate::work::selector::{Operator, Selector};

proptest! {
    /// S7: the next item is a maximum of the order among the items that can be claimed, for any order of arrival.
    #[test]
    fn who_is_next_is_always_a_maximum(items in proptest::collection::vec((-3i32..3, 0i64..5, 0u8..3, proptest::bool::ANY), 1..40)) {
        let mut world = Simulation::new(&[("a", Queue { max_leased_per_key: Some(1), ..queue() })]);
        for (at, (priority, wait, key, choosy)) in items.into_iter().enumerate() {
            world.pass(wait);
            let selector = choosy.then(|| Requirement::equals("gpu", "yes")).into_iter().collect();
            let concurrency_key = (key > 0).then(|| format!("k{key}"));
            world.add(&format!("i{at:02}"), Spec { priority, selector, concurrency_key, ..to("a") });
        }
        let mut held_keys = Vec::new();
        while let Some(name) = world.claim(&[("a", &[])], &format!("p{}", world.index.holders().count())) {
            let taken = world.index.get(&name).expect("an item").clone();
            let better = world.index.iter().filter(|(_, entry)| entry.record.phase == Phase::Ready && entry.spec.selector == Selector::default());
            for (other, entry) in better {
                let free = entry.spec.concurrency_key.as_ref().is_none_or(|key| !held_keys.contains(key));
                let rank = |name: &str, entry: &Entry| (std::cmp::Reverse(entry.spec.priority), entry.spec.submitted, name.to_owned());
                prop_assert!(!free || rank(&name, &taken) < rank(other, entry), "{other} before {name}");
            }
            held_keys.extend(taken.spec.concurrency_key);
        }
        prop_assert!(held_keys.len() <= 2);
    }

    /// With several types, strict and other queues: the same item as a look at each item finds.
    #[test]
    fn next_is_who_a_look_at_all_finds(strict: bool, gpu: bool, types in 0u8..3,
                                       items in proptest::collection::vec((-2i32..3, 0i64..3, 0u8..3, 0u8..6), 1..30)) {
        let mut world = Simulation::new(&[("a", Queue { strict, ..queue() })]);
        for (at, (priority, wait, type_, choosy)) in items.into_iter().enumerate() {
            world.pass(wait);
            let gpu = |operator| Requirement { key: "gpu".into(), operator };
            let selector = match choosy {
                0 => vec![],
                1 => vec![Requirement::equals("gpu", "yes")],
                2 => vec![Requirement::equals("gpu", "yes"), Requirement::equals("disk", "yes")],
                3 => vec![gpu(Operator::NotIn(["yes".to_owned()].into()))],
                4 => vec![gpu(Operator::Exists), gpu(Operator::In(["no".to_owned(), "yes".to_owned()].into()))],
                _ => vec![gpu(Operator::DoesNotExist)],
            };
            let selector = selector.into_iter().collect();
            world.add(&format!("i{at:02}"), Spec { priority, selector, type_: (type_ > 0).then(|| format!("t{type_}")), ..to("a") });
        }
        let labels = if gpu { BTreeMap::from([("gpu".to_owned(), "yes".to_owned())]) } else { BTreeMap::new() };
        let queues = [("a".to_owned(), if types > 0 { vec![format!("t{types}")] } else { Vec::new() })];
        let taker = ClaimRequester { agent: "x", labels: &labels, queues: &queues, offer: &world.offer, now: world.now };
        let mut all: Vec<_> = world.index.iter().filter(|(_, entry)| entry.record.phase == Phase::Ready).collect();
        all.sort_by_key(|(name, entry)| (std::cmp::Reverse(entry.spec.priority), entry.spec.submitted, (*name).clone()));
        let mut looked = all.iter().filter(|(name, _)| world.index.claim_obstacle(name, &taker) != Some(ClaimObstacle::Type));
        let expected = if strict {
            looked.next().filter(|(name, _)| world.index.claim_obstacle(name, &taker).is_none())
        } else {
            looked.find(|(name, _)| world.index.claim_obstacle(name, &taker).is_none())
        };
        prop_assert_eq!(world.index.next_for(&taker, |_| true), expected.map(|(name, _)| name.as_str()));
        for (before, (name, _)) in all.iter().enumerate() {
            prop_assert_eq!(world.index.position(name), Some(before));
        }
    }

    /// The indexes agree with the items after any changes.
    #[test]
    fn counts_are_those_of_the_items(steps in proptest::collection::vec((0usize..6, 0u8..4), 1..60)) {
        let mut world = Simulation::new(&[("a", queue())]);
        for (step, (which, what)) in steps.into_iter().enumerate() {
            let name = format!("i{which}");
            match what {
                0 => world.add(&name, Spec { concurrency_key: Some("k".into()), type_: Some("t".into()), ..to("a") }),
                1 => drop(world.claim(&[("a", &[])], &format!("p{step}"))),
                2 => drop(world.index.remove(&name)),
                _ => {
                    let held = world.index.get(&name).and_then(|entry| entry.record.holder.clone());
                    if let Some(holder) = held { world.complete(&name, &holder.pod) }
                }
            }
            let count = |phase: Phase| world.index.iter().filter(|(_, entry)| entry.record.phase == phase).count() as u64;
            let counts = world.index.counts("a");
            prop_assert_eq!((counts.ready, counts.leased, counts.finished), (count(Phase::Ready), count(Phase::Leased), count(Phase::Succeeded)));
            prop_assert_eq!(world.index.claimable("a", &["t".to_owned()], None), counts.ready);
            prop_assert_eq!(world.index.holders().count() as u64, counts.leased);
        }
    }
}
