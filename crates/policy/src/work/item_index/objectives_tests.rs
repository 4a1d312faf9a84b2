//! Objectives of queues: which items miss them, and since when. Reports of misses are tested elsewhere.

use super::*;
use crate::work::objectives::{Objective, Objectives};

#[test]
fn objectives_are_measured_from_the_first_time_that_an_item_was_ready() {
    let promised = Objectives { wait: Some(Duration::from_secs(10)), completion: Some(Duration::from_secs(60)) };
    let mut world = Simulation::new(&[("q", Queue { objectives: promised, ..queue() }), ("calm", queue())]);
    world.add("calm", Spec { queue: Some("calm".into()), ..Spec::default() });
    world.add("later", Spec { queue: Some("q".into()), not_before: Some(world.now.after(Duration::from_secs(100))), ..Spec::default() });
    world.add("a", Spec { queue: Some("q".into()), ..Spec::default() });
    let over = |world: &Simulation| -> Vec<(String, Objective)> {
        let mut all: Vec<_> = world.index.missed_objectives("q", world.now).into_iter().map(|over| (over.item, over.objective)).collect();
        all.sort();
        all
    };
    world.pass(10);
    assert_eq!(over(&world), []);
    world.pass(1);
    assert_eq!(over(&world), [("a".to_owned(), Objective::Wait)]);
    assert_eq!(world.claim(&[("q", &[])], "p").as_deref(), Some("a"));
    assert_eq!(over(&world), [], "somebody has it");
    world.pass(50);
    let held = world.index.missed_objectives("q", world.now);
    assert_eq!(
        held.iter().map(|over| (over.objective, over.since)).collect::<Vec<_>>(),
        [(Objective::Completion, UnixMillis(160 * SECOND))]
    );
    assert_eq!(held[0].holder.as_ref().map(|holder| holder.pod.as_str()), Some("p"));
    // A redrive is a new beginning.
    let entry = world.index.get("a").expect("an item").clone();
    let again = Record { redrives: 1, ..Record::default() };
    world.index.set_record("a", again, false, world.now);
    assert_eq!(world.index.get("a").expect("an item").first_ready, None);
    world.index.put("a", entry, world.now);
    assert_eq!(over(&world), [("a".to_owned(), Objective::Completion)]);
    world.pass(39);
    assert_eq!(world.phase("later").0, Phase::Ready);
    world.pass(10);
    assert_eq!(over(&world).len(), 1, "the other one has been ready for ten seconds");
    world.pass(1);
    assert_eq!(over(&world).last().map(|(item, objective)| (item.as_str(), *objective)), Some(("later", Objective::Wait)));
    assert_eq!(world.index.missed_objectives("calm", world.now), [], "it promises nothing");
}
