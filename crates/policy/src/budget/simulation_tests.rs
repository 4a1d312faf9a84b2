//! The guarantees of the ledger over random histories of a simulation: gateways that die and come back, or begin again
//! with their journal, calls that are extended, leaders that crash at any point or do not know that they were replaced,
//! messages that are lost, repeated and reordered, clocks that jump, windows that end with open holds, Budgets that get
//! other parents.

use proptest::prelude::*;

use super::simulation::{AllowedFaults, Simulation};

fn histories() -> impl Strategy<Value = Vec<(u32, u32)>> {
    proptest::collection::vec((any::<u32>(), any::<u32>()), 50..500)
}

fn run(may: AllowedFaults, history: &[(u32, u32)], each: impl Fn(&Simulation)) -> Simulation {
    let mut world = Simulation::new(may, 3);
    world.step(27, 0);
    (0..9).for_each(|_| world.step(7, 0));
    for (what, with) in history {
        world.step(*what, *with);
        each(&world);
    }
    world
}

/// I12: a threshold is reported once for a window and height, by any leader.
fn check_events(world: &Simulation) {
    for (at, event) in world.events.iter().enumerate() {
        assert!(!world.events[..at].contains(event), "I12: {event:?}");
    }
}

/// After the end: I5, I6, and that everything is acknowledged.
fn check_quiet(world: &mut Simulation) {
    world.quiet();
    let ledger = &world.leaders[0].ledger;
    for (key, limit, weights) in &world.limits {
        let truth = world.truth(key, limit, weights);
        let Some(node) = ledger.keys.get(key).map(|node| &ledger.nodes[*node]) else { panic!("{key} is there") };
        let found = node.limits.iter().find(|found| found.spec.name == limit.name).expect("it is there");
        for cell in found.cells() {
            let spent = truth.get(&cell.span.index).copied().unwrap_or(0);
            assert_eq!((cell.used, cell.held, cell.lost, cell.unexplained), (spent, 0, 0, 0), "I5, I6, I7 at {key} {}", cell.span);
        }
    }
    for gateway in world.gateways.iter().filter(|gateway| gateway.alive) {
        assert_eq!(gateway.acked, gateway.seq, "all is acknowledged");
    }
}

/// Some important histories are one in a hundred thousand. `PROPTEST_CASES` asks for more of them.
fn config() -> ProptestConfig {
    let asked = ProptestConfig::default();
    ProptestConfig { cases: asked.cases.max(5_000), max_shrink_iters: 20_000, ..asked }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn never_more_than_the_limit_and_in_the_end_exactly_what_was_used(history in histories()) {
        let mut world = run(AllowedFaults::default(), &history, |world| {
            world.check_spent();
            world.check_books();
        });
        check_quiet(&mut world);
        world.check_spent();
        check_events(&world);
    }

    #[test]
    fn never_more_than_the_limit_with_clocks_that_jump(history in histories()) {
        let may = AllowedFaults { jump: true, ..AllowedFaults::default() };
        let mut world = run(may, &history, |world| {
            world.check_spent();
            world.check_books();
        });
        check_quiet(&mut world);
    }

    #[test]
    fn nothing_is_lost_when_calls_cost_more_than_was_held(history in histories()) {
        let may = AllowedFaults { exceed: true, ..AllowedFaults::default() };
        let mut world = run(may, &history, Simulation::check_books);
        check_quiet(&mut world);
        check_events(&world);
    }

    #[test]
    fn every_place_counts_what_passed_it_when_parents_change(history in histories()) {
        let may = AllowedFaults { move_budgets: true, ..AllowedFaults::default() };
        let mut world = run(may, &history, Simulation::check_books);
        check_quiet(&mut world);
    }

    #[test]
    fn never_more_than_the_limit_whoever_dies(history in histories()) {
        let may = AllowedFaults { die: true, jump: true, ..AllowedFaults::default() };
        let mut world = run(may, &history, |world| {
            world.check_spent();
            world.check_books();
        });
        world.quiet();
        world.check_spent();
        world.check_books();
    }
}

#[test]
fn the_world_is_alive() {
    let mut seed = 1_u64;
    let mut dice = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as u32
    };
    let (mut given, mut refused, mut extended) = (0, 0, 0);
    for _ in 0..20 {
        let history: Vec<_> = (0..400).map(|_| (dice(), dice())).collect();
        let world = run(AllowedFaults::default(), &history, |_| {});
        given += world.given;
        refused += world.refused;
        extended += world.extended;
    }
    println!("{given} given, {refused} refused, {extended} extended");
    let alive = given > 300 && refused > 100 && extended > 20;
    assert!(alive, "a world in which nothing happens proves nothing: {given} given, {refused} refused, {extended} extended");
}
