//! Which ended items may be removed: dead letters apart from all others.

use proptest::prelude::*;

use super::*;

const DAY: i64 = 24 * 3600;

/// An item that is claimed, and then succeeds or becomes a dead letter.
fn ends(world: &mut Simulation, name: &str, well: bool) {
    world.add(name, to("a"));
    assert_eq!(world.claim(&[("a", &[])], name).as_deref(), Some(name));
    if well {
        world.complete(name, name)
    } else {
        world.set_aside(name, name)
    }
    world.pass(1);
}

#[test]
fn what_ended_goes_after_its_time_unless_somebody_needs_it_or_would_make_it_again() {
    let short = Overrides { ttl: Some(Duration::from_secs(10)), ..Overrides::default() };
    let mut world = Simulation::new(&[("a", queue())]);
    for name in ["needed", "kept", "plain"] {
        world.add(name, Spec { overrides: short.clone(), ..to("a") });
        assert_eq!(world.claim(&[("a", &[])], name).as_deref(), Some(name));
    }
    world.add("waits", Spec { suspend: true, ..after("a", &["needed"]) });
    ["needed", "kept", "plain"].iter().for_each(|name| world.complete(name, name));
    let kept = Entry { tracked: true, ..world.index.get("kept").expect("an item").clone() };
    world.index.put("kept", kept, world.now);
    assert_eq!(world.index.removal("plain", world.now), None);
    world.pass(10);
    assert_eq!(world.index.removal("plain", world.now), Some(Removal::TimeOver));
    assert_eq!((world.index.removal("needed", world.now), world.index.removal("kept", world.now)), (None, None));
}

#[test]
fn only_so_many_finished_ones_are_kept_and_the_oldest_go() {
    let mut world = Simulation::new(&[("a", Queue { max_finished: 1, ..queue() })]);
    for name in ["one", "two", "three"] {
        world.add(name, to("a"));
        world.claim(&[("a", &[])], name);
        world.complete(name, name);
        world.pass(1);
    }
    assert_eq!(world.index.surplus("a"), ["one", "two"]);
    assert_eq!((world.index.removal("one", world.now), world.index.removal("three", world.now)), (Some(Removal::TooMany), None));
}

#[test]
fn a_dead_letter_is_kept_for_thirty_days_whatever_finished_items_are() {
    let policy = Policy { ttl: Duration::ZERO, ..Policy::default() };
    let mut world = Simulation::new(&[("a", Queue { max_finished: 0, policy, ..queue() })]);
    ends(&mut world, "done", true);
    ends(&mut world, "dead", false);
    assert_eq!(world.phase("dead").0, Phase::DeadLettered);
    assert_eq!((world.index.removal("done", world.now), world.index.removal("dead", world.now)), (Some(Removal::TimeOver), None));
    assert_eq!(world.index.surplus("a"), ["done"]);
    let end = world.index.get("dead").and_then(|entry| entry.record.completed).expect("an end");
    assert_eq!(world.index.oldest_dead_letter("a"), Some(end));
    world.now = UnixMillis(end.0 + 30 * DAY * SECOND - 1);
    assert_eq!(world.index.removal("dead", world.now), None);
    assert!(!world.index.due(world.now).contains(&"dead".to_owned()));
    world.now = UnixMillis(world.now.0 + 1);
    assert_eq!(world.index.removal("dead", world.now), Some(Removal::TimeOver));
    assert_eq!(world.index.due(world.now), ["dead"], "and it is looked at then");
    world.index.remove("dead");
    assert_eq!(world.index.oldest_dead_letter("a"), None);
}

#[test]
fn a_queue_says_how_long_a_dead_letter_is_kept_and_its_item_does_not() {
    let policy = Policy { dead_letter_ttl: Duration::from_secs(100), ..Policy::default() };
    let mut world = Simulation::new(&[("a", Queue { policy, ..queue() })]);
    world.add("dead", Spec { overrides: Overrides { ttl: Some(Duration::ZERO), ..Overrides::default() }, ..to("a") });
    world.claim(&[("a", &[])], "p");
    world.set_aside("dead", "p");
    world.pass(99);
    assert_eq!(world.index.removal("dead", world.now), None);
    world.pass(1);
    assert_eq!(world.index.removal("dead", world.now), Some(Removal::TimeOver));
}

#[test]
fn another_time_of_a_queue_counts_for_what_has_ended_already() {
    let kept =
        |seconds: u64| Policy { dead_letter_ttl: Duration::from_secs(seconds), ttl: Duration::from_secs(seconds), ..Policy::default() };
    let mut world = Simulation::new(&[("a", Queue { policy: kept(1000), ..queue() })]);
    ends(&mut world, "dead", false);
    ends(&mut world, "done", true);
    world.index.set_queue("a", Some(Queue { policy: kept(60), ..queue() }));
    assert_eq!(world.index.due(UnixMillis(world.now.0 + 57 * SECOND)), Vec::<String>::new());
    let mut due = world.index.due(UnixMillis(world.now.0 + 60 * SECOND));
    due.sort();
    assert_eq!(due, ["dead", "done"]);
    world.index.set_queue("a", Some(Queue { policy: kept(2000), ..queue() }));
    assert_eq!(world.index.due(UnixMillis(world.now.0 + 1000 * SECOND)), Vec::<String>::new());
    assert_eq!(world.index.due(UnixMillis(world.now.0 + 2000 * SECOND)).len(), 2);
}

#[test]
fn only_so_many_dead_letters_are_kept_and_the_oldest_go_before_their_time() {
    let mut world = Simulation::new(&[("a", Queue { max_dead_letters: 2, max_finished: 1, ..queue() })]);
    for name in ["dead-1", "dead-2"] {
        ends(&mut world, name, false);
    }
    ends(&mut world, "done", true);
    assert_eq!(world.index.surplus("a"), Vec::<String>::new(), "two dead letters and one that is done: each has its room");
    ends(&mut world, "dead-3", false);
    assert_eq!(world.index.surplus("a"), ["dead-1"]);
    let removal = |name: &str| world.index.removal(name, world.now);
    assert_eq!((removal("dead-1"), removal("dead-2"), removal("dead-3")), (Some(Removal::TooMany), None, None));
    assert_eq!(removal("done"), None, "a dead letter pushes out no other item");
}

#[test]
fn a_dead_letter_that_is_started_again_is_none_any_more() {
    let mut world = Simulation::new(&[("a", Queue { max_dead_letters: 1, ..queue() })]);
    ends(&mut world, "dead", false);
    let entry = world.index.get("dead").expect("an item").clone();
    world.index.put("dead", Entry { spec: Spec { redrives: 1, ..entry.spec.clone() }, ..entry }, world.now);
    world.look("dead");
    assert_eq!((world.phase("dead").0, world.index.oldest_dead_letter("a")), (Phase::Ready, None));
    ends_other(&mut world);
    assert_eq!(world.index.surplus("a"), Vec::<String>::new());
}

#[test]
fn a_dead_letter_that_is_not_admitted_again_stays_one_for_the_rest_of_its_time() {
    let mut world = Simulation::new(&[("a", Queue { max_pending: 1, ..queue() })]);
    ends(&mut world, "dead", false);
    let before = world.index.get("dead").expect("an item").record.clone();
    let again = |world: &mut Simulation, redrives| {
        let entry = world.index.get("dead").expect("an item").clone();
        world.index.put("dead", Entry { spec: Spec { redrives, ..entry.spec.clone() }, ..entry }, world.now);
        world.pass(1);
        world.look("dead");
        world.index.get("dead").expect("an item").record.clone()
    };
    world.add("full", to("a"));
    let refused = again(&mut world, 1);
    assert_eq!(refused, Record { redrives: 1, reason: Some(reasons::QUEUE_FULL.into()), ..before.clone() });
    world.claim(&[("a", &[])], "p");
    world.complete("full", "p");
    assert_eq!(again(&mut world, 1), refused, "there is room, and nobody asks for it any more");
    let queue = world.index.queue("a").cloned();
    world.index.set_queue("a", None);
    world.pass(10); // a queue may be made a moment after its items
    assert_eq!(again(&mut world, 2).reason.as_deref(), Some(reasons::QUEUE_MISSING));
    world.index.set_queue("a", queue);
    assert_eq!(again(&mut world, 3).phase, Phase::Ready);
}

/// Another item becomes a dead letter, while the first one waits.
fn ends_other(world: &mut Simulation) {
    world.add("other", Spec { priority: 1, ..to("a") });
    assert_eq!(world.claim(&[("a", &[])], "p").as_deref(), Some("other"));
    world.set_aside("other", "p");
}

proptest! {
    /// For all orders of ends: no more items are left than are kept, and of each kind the newest.
    #[test]
    fn what_is_kept_is_the_newest_of_each_sort(ends_well in proptest::collection::vec(proptest::bool::ANY, 1..20), most in (0u64..6, 0u64..6)) {
        let mut world = Simulation::new(&[("a", Queue { max_finished: most.0, max_dead_letters: most.1, ..queue() })]);
        for (at, well) in ends_well.iter().enumerate() {
            ends(&mut world, &format!("i{at:02}"), *well);
        }
        while let Some(name) = world.index.surplus("a").first().cloned() {
            prop_assert_eq!(world.index.removal(&name, world.now), Some(Removal::TooMany));
            world.index.remove(&name);
        }
        for (dead, most) in [(false, most.0), (true, most.1)] {
            let all: Vec<String> = (0..ends_well.len()).filter(|at| ends_well[*at] != dead).map(|at| format!("i{at:02}")).collect();
            let newest = &all[all.len().saturating_sub(usize::try_from(most).expect("small"))..];
            let mut left: Vec<String> = world.index.iter().map(|(name, _)| name.clone()).filter(|name| all.contains(name)).collect();
            left.sort();
            prop_assert_eq!(left, newest);
        }
    }
}
