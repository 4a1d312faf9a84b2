//! The limit of a namespace on unfinished items over all its queues.

use proptest::prelude::*;

use super::*;

fn world(most: u64) -> Simulation {
    let mut world = Simulation::new(&[("a", queue()), ("b", queue())]);
    world.index.set_project_limit(Some(ProjectLimit { most, source: "Budget/team (spec.work.maxPending)".into() }));
    world
}

#[test]
fn a_full_project_takes_nobody_into_any_queue_and_an_end_makes_room() {
    let mut world = world(2);
    world.add("one", to("a"));
    world.add("two", to("b"));
    for (name, queue) in [("three", "a"), ("four", "b")] {
        world.add(name, to(queue));
        assert_eq!(world.phase(name), (Phase::Rejected, reasons::PROJECT_FULL.into()), "{name}");
    }
    let words = match world.index.admission("three", &to("a")) {
        Admission::Refused(refusal) => refusal.to_string(),
        Admission::To(_) | Admission::Unknown => String::new(),
    };
    assert_eq!(words, "Budget/team (spec.work.maxPending) allows 2 unfinished items over all queues of the namespace, and there are 2");
    assert_eq!(world.claim(&[("a", &[])], "p").as_deref(), Some("one"));
    world.add("five", to("a"));
    assert_eq!(world.phase("five").0, Phase::Rejected, "one that is held is not finished");
    world.complete("one", "p");
    world.add("six", to("a"));
    assert_eq!((world.phase("six").0, world.index.unfinished()), (Phase::Ready, 2));
}

#[test]
fn items_that_come_together_are_admitted_in_turn_and_those_that_are_in_stay() {
    let mut world = world(2);
    // All of them are added before the first look.
    for name in ["one", "two", "three"] {
        let spec = Spec { created: world.now, submitted: world.now, ..to("a") };
        let (uid, version, record) = (name.to_owned(), "1".to_owned(), Record::default());
        let entry = Entry { uid, version, spec, record, generation: 1, ..Entry::default() };
        world.index.put(name, entry, world.now);
    }
    ["one", "two", "three"].iter().for_each(|name| world.look(name));
    assert_eq!(["one", "two", "three"].map(|name| world.phase(name).0), [Phase::Ready, Phase::Ready, Phase::Rejected]);
    world.index.set_project_limit(Some(ProjectLimit { most: 0, source: "x".into() }));
    ["one", "two"].iter().for_each(|name| world.look(name));
    assert_eq!(world.phase("one").0, Phase::Ready, "a lower limit takes nothing back");
    world.index.set_project_limit(None);
    world.add("four", to("a"));
    assert_eq!(world.phase("four").0, Phase::Ready);
}

#[test]
fn what_is_started_again_needs_room_as_every_other() {
    let mut world = world(1);
    world.add("dead", to("a"));
    world.claim(&[("a", &[])], "p");
    world.set_aside("dead", "p");
    world.add("other", to("b"));
    let again = |world: &mut Simulation, redrives| {
        let entry = world.index.get("dead").expect("an item").clone();
        world.index.put("dead", Entry { spec: Spec { redrives, ..entry.spec.clone() }, ..entry }, world.now);
        world.look("dead");
        world.phase("dead")
    };
    assert_eq!(again(&mut world, 1), (Phase::DeadLettered, reasons::PROJECT_FULL.into()), "it stays a dead letter, and says why");
    world.claim(&[("b", &[])], "p");
    world.complete("other", "p");
    assert_eq!(again(&mut world, 2).0, Phase::Ready);
}

proptest! {
    /// For all histories in any queues: no more items are unfinished than the limit, and the count matches the items.
    #[test]
    fn never_more_than_may_be(most in 0u64..4, steps in proptest::collection::vec((0usize..8, 0u8..4), 1..60)) {
        let mut world = world(most);
        for (step, (which, what)) in steps.into_iter().enumerate() {
            let name = format!("i{which}");
            match what {
                0 | 1 => if world.index.get(&name).is_none() { world.add(&name, to(["a", "b"][usize::from(what)])) },
                2 => drop(world.claim(&[("a", &[]), ("b", &[])], &format!("p{step}"))),
                _ => {
                    let holder = world.index.get(&name).and_then(|entry| entry.record.holder.clone());
                    match holder {
                        Some(holder) => world.complete(&name, &holder.pod),
                        None => drop(world.index.remove(&name)),
                    }
                }
            }
            let unfinished = world.index.iter().filter(|(_, entry)| !entry.record.phase.ended()).count() as u64;
            prop_assert_eq!(world.index.unfinished(), unfinished);
            prop_assert!(unfinished <= most);
        }
    }
}
