//! Items that need something of the pool that they are given to.

use super::*;
use crate::work::requires::Requires;

fn models(names: &[&str]) -> std::collections::BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn needs(names: &[&str]) -> Spec {
    Spec { requires: Requires { models: models(names), ..Requires::default() }, ..to("a") }
}

fn pool(names: &[&str], types: &[&str]) -> Taking {
    let types = types.iter().map(|one| (*one).to_owned()).collect();
    Taking { queues: vec![("a".to_owned(), types)], offer: Offer { models: models(names), ..Offer::default() }, outside: false }
}

#[test]
fn an_item_is_passed_over_by_who_lacks_what_it_needs_and_is_not_counted_for_them() {
    let mut world = World::new(&[("a", queue())]);
    world.add("choosy", Spec { priority: 5, ..needs(&["big"]) });
    world.add("plain", to("a"));
    let has = Offer { models: models(&["b*"]), ..Offer::default() };
    assert_eq!(world.next(&[("a", &[])]).as_deref(), Some("plain"));
    assert_eq!(world.book.claimable("a", &[], Some(&world.offer)), 1);
    assert_eq!((world.book.claimable("a", &[], Some(&has)), world.book.claimable("a", &[], None)), (2, 2));
    let queues = [("a".to_owned(), Vec::new())];
    let taker = Taker { agent: "a", labels: &world.labels, queues: &queues, offer: &world.offer, now: world.now };
    let Some(Hindrance::Requires(lacks)) = world.book.why_not("choosy", &taker) else { panic!("it lacks nothing") };
    assert_eq!(crate::work::requires::in_words(&lacks), "big (requires.models)");
    world.offer = has;
    assert_eq!(world.next(&[("a", &[])]).as_deref(), Some("choosy"));
}

#[test]
fn a_strict_order_waits_for_who_has_it() {
    let mut world = World::new(&[("a", Queue { strict: true, ..queue() })]);
    world.add("choosy", needs(&["big"]));
    world.pass(1);
    world.add("plain", to("a"));
    assert_eq!(world.next(&[("a", &[])]), None);
    world.offer.models = models(&["big"]);
    assert_eq!(world.next(&[("a", &[])]).as_deref(), Some("choosy"));
}

#[test]
fn an_item_says_that_no_pool_has_what_it_needs_as_long_as_that_is_so() {
    let mut world = World::new(&[("a", queue())]);
    assert!(!world.book.needs_pools());
    world.add("choosy", needs(&["big"]));
    world.add("plain", to("a"));
    let said = |world: &World| world.phase("choosy").1;
    assert!(world.book.needs_pools() && said(&world).is_empty(), "no pool is known that works from the queue");
    let set = |world: &mut World, pools: Vec<Taking>| {
        let touched = world.book.set_pools(pools);
        touched.iter().for_each(|name| world.look(name));
        touched
    };
    assert_eq!(set(&mut world, vec![pool(&["small"], &[])]), ["choosy"]);
    assert_eq!((said(&world).as_str(), world.phase("choosy").0), (reasons::REQUIREMENTS_UNMET, Phase::Ready));
    assert_eq!(set(&mut world, vec![pool(&["small"], &[])]), [""; 0], "nothing is news");
    // One that comes now says so at once; one that is not of the pools' types is nobody's.
    world.add("later", needs(&["big", "small"]));
    assert_eq!(world.phase("later").1, reasons::REQUIREMENTS_UNMET);
    set(&mut world, vec![pool(&["small"], &["bug"])]);
    assert_eq!((said(&world), world.phase("later").1), (String::new(), String::new()), "no pool takes it");
    set(&mut world, vec![pool(&["small"], &[]), pool(&["b*"], &[])]);
    assert_eq!((said(&world).as_str(), world.phase("later").1.as_str()), ("", reasons::REQUIREMENTS_UNMET));
    let (queue, class, _) = world.book.needs("later").expect("it needs something");
    assert_eq!(world.book.lacking(&queue, &class).map(|lacks| lacks.len()), Some(1), "of the pool that lacks the least");
    assert_eq!(world.phase("plain").1, "");
}

#[test]
fn what_an_earlier_leader_said_stands_until_pools_are_known() {
    let mut world = World::new(&[("a", queue())]);
    world.add("choosy", needs(&["big"]));
    let record = world.book.get("choosy").expect("an item").record.clone();
    world.book.record("choosy", Record { reason: Some(reasons::REQUIREMENTS_UNMET.into()), ..record }, false, world.now);
    world.look("choosy");
    assert_eq!(world.phase("choosy").1, reasons::REQUIREMENTS_UNMET, "nothing is known of any pool");
    world.book.set_pools(vec![pool(&["big"], &[])]).iter().for_each(|name| world.look(name));
    assert_eq!(world.phase("choosy").1, "");
}
