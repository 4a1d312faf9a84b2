//! Items that require something of the pool that gets them.

use super::*;
use crate::work::requires::Requires;

fn models(names: &[&str]) -> std::collections::BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn needs(names: &[&str]) -> Spec {
    Spec { requires: Requires { models: models(names), ..Requires::default() }, ..to("a") }
}

fn pool(names: &[&str], types: &[&str]) -> PoolIntake {
    let types = types.iter().map(|one| (*one).to_owned()).collect();
    PoolIntake {
        queues: vec![("a".to_owned(), types)],
        offer: PoolOffer { models: models(names), ..PoolOffer::default() },
        outside_cluster: false,
    }
}

#[test]
fn an_item_is_passed_over_by_who_lacks_what_it_needs_and_is_not_counted_for_them() {
    let mut world = Simulation::new(&[("a", queue())]);
    world.add("choosy", Spec { priority: 5, ..needs(&["big"]) });
    world.add("plain", to("a"));
    let has = PoolOffer { models: models(&["b*"]), ..PoolOffer::default() };
    assert_eq!(world.next(&[("a", &[])]).as_deref(), Some("plain"));
    assert_eq!(world.index.claimable("a", &[], Some(&world.offer)), 1);
    assert_eq!((world.index.claimable("a", &[], Some(&has)), world.index.claimable("a", &[], None)), (2, 2));
    let queues = [("a".to_owned(), Vec::new())];
    let taker = ClaimRequester { agent: "a", labels: &world.labels, queues: &queues, offer: &world.offer, now: world.now };
    let Some(ClaimObstacle::Requires(lacks)) = world.index.claim_obstacle("choosy", &taker) else { panic!("it lacks nothing") };
    assert_eq!(crate::work::requires::unmet_summary(&lacks), "big (requires.models)");
    world.offer = has;
    assert_eq!(world.next(&[("a", &[])]).as_deref(), Some("choosy"));
}

#[test]
fn a_strict_order_waits_for_who_has_it() {
    let mut world = Simulation::new(&[("a", Queue { strict: true, ..queue() })]);
    world.add("choosy", needs(&["big"]));
    world.pass(1);
    world.add("plain", to("a"));
    assert_eq!(world.next(&[("a", &[])]), None);
    world.offer.models = models(&["big"]);
    assert_eq!(world.next(&[("a", &[])]).as_deref(), Some("choosy"));
}

#[test]
fn an_item_says_that_no_pool_has_what_it_needs_as_long_as_that_is_so() {
    let mut world = Simulation::new(&[("a", queue())]);
    assert!(!world.index.needs_pools());
    world.add("choosy", needs(&["big"]));
    world.add("plain", to("a"));
    let said = |world: &Simulation| world.phase("choosy").1;
    assert!(world.index.needs_pools() && said(&world).is_empty(), "no pool is known that works from the queue");
    let set = |world: &mut Simulation, pools: Vec<PoolIntake>| {
        let touched = world.index.set_pools(pools);
        touched.iter().for_each(|name| world.look(name));
        touched
    };
    assert_eq!(set(&mut world, vec![pool(&["small"], &[])]), ["choosy"]);
    assert_eq!((said(&world).as_str(), world.phase("choosy").0), (reasons::REQUIREMENTS_UNMET, Phase::Ready));
    assert_eq!(set(&mut world, vec![pool(&["small"], &[])]), [""; 0], "nothing is news");
    // An item that is added now gets the reason at once. An item of a type that no pool takes gets none.
    world.add("later", needs(&["big", "small"]));
    assert_eq!(world.phase("later").1, reasons::REQUIREMENTS_UNMET);
    set(&mut world, vec![pool(&["small"], &["bug"])]);
    assert_eq!((said(&world), world.phase("later").1), (String::new(), String::new()), "no pool takes it");
    set(&mut world, vec![pool(&["small"], &[]), pool(&["b*"], &[])]);
    assert_eq!((said(&world).as_str(), world.phase("later").1.as_str()), ("", reasons::REQUIREMENTS_UNMET));
    let (queue, class, _) = world.index.needs("later").expect("it needs something");
    assert_eq!(world.index.lacking(&queue, &class).map(|lacks| lacks.len()), Some(1), "of the pool that lacks the least");
    assert_eq!(world.phase("plain").1, "");
}

#[test]
fn what_an_earlier_leader_said_stands_until_pools_are_known() {
    let mut world = Simulation::new(&[("a", queue())]);
    world.add("choosy", needs(&["big"]));
    let record = world.index.get("choosy").expect("an item").record.clone();
    world.index.set_record("choosy", Record { reason: Some(reasons::REQUIREMENTS_UNMET.into()), ..record }, false, world.now);
    world.look("choosy");
    assert_eq!(world.phase("choosy").1, reasons::REQUIREMENTS_UNMET, "nothing is known of any pool");
    world.index.set_pools(vec![pool(&["big"], &[])]).iter().for_each(|name| world.look(name));
    assert_eq!(world.phase("choosy").1, "");
}
