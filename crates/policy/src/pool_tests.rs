//! Table tests of single plans, and a simulation with crashes, stale reads and two controllers.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn agent(number: i64, standing: MemberState) -> AgentFacts {
    AgentFacts {
        name: format!("a{number}"),
        sequence: Some(number),
        state: standing,
        age: Duration::from_secs(u64::try_from(100 - number).unwrap_or(0)),
        can_hibernate: false,
    }
}
fn facts(desired: u32, spawned: i64, agents: Vec<AgentFacts>) -> Facts {
    Facts {
        desired,
        may_grow: true,
        spawned,
        collected_below: 0,
        agents,
        stopped_ttl: Duration::from_secs(3600),
        hibernate: false,
        max_with_hibernated: 0,
    }
}
fn many(range: std::ops::Range<i64>, standing: MemberState) -> Vec<AgentFacts> {
    range.map(|number| agent(number, standing)).collect()
}

#[test]
fn grows_in_doubling_batches() {
    let created = |have: i64| plan(&facts(30, have, many(0..have, MemberState::Idle))).create.len();
    assert_eq!([created(0), created(1), created(3), created(7), created(15), created(30)], [1, 2, 4, 8, 15, 0]);
}

#[test]
fn waits_for_pods_that_are_being_made_and_stops_at_a_refusal() {
    let mut agents = many(0..4, MemberState::Idle);
    agents.extend(many(4..9, MemberState::Spawning));
    assert!(plan(&facts(30, 9, agents.clone())).create.is_empty());
    agents[7].state = MemberState::Refused;
    assert!(plan(&facts(30, 9, agents)).create.is_empty());
}

#[test]
fn numbers_given_out_and_never_seen_come_first_under_the_same_numbers() {
    let plan = plan(&facts(5, 4, vec![agent(0, MemberState::Idle), agent(2, MemberState::Idle)]));
    assert_eq!((plan.create, plan.counters_first), (vec![1, 3], false));
}

#[test]
fn what_cannot_be_made_does_not_keep_a_pool_from_shrinking() {
    let agents = vec![agent(0, MemberState::Idle), agent(1, MemberState::Idle), agent(3, MemberState::Idle)];
    let plan = plan(&facts(1, 4, agents));
    assert_eq!(plan.create, [2], "tried again");
    assert_eq!(plan.delete.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["a0", "a1"], "and those below it leave meanwhile");
    assert_eq!(plan.counters.collected_below, 2, "number 3 stays: without it 2 and 3 would look alike");
}

#[test]
fn a_number_whose_name_somebody_took_is_used_up_and_not_counted() {
    let plan = plan(&facts(2, 2, vec![agent(0, MemberState::Idle), agent(1, MemberState::Foreign)]));
    assert_eq!((plan.create, plan.counters), (vec![2], Counters { spawned: 3, collected_below: 2 }));
}

#[test]
fn a_missing_reference_stops_growth_only() {
    let blocked = Facts { may_grow: false, ..facts(5, 1, many(0..1, MemberState::Idle)) };
    assert!(plan(&blocked).create.is_empty());
    let shrinking = Facts { may_grow: false, ..facts(0, 1, many(0..1, MemberState::Idle)) };
    assert_eq!(plan(&shrinking).delete.len(), 1);
}

#[test]
fn the_useless_leave_first_then_the_oldest_idle_and_never_a_busy_one() {
    let agents = vec![
        agent(0, MemberState::Busy),
        agent(1, MemberState::Idle),
        agent(2, MemberState::Idle),
        agent(3, MemberState::Refused),
        agent(4, MemberState::Busy),
    ];
    let names = |desired| plan(&facts(desired, 5, agents.clone())).delete.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names(4), ["a3"]);
    assert_eq!(names(3), ["a3", "a1"]);
    assert_eq!(names(0), ["a3", "a1", "a2"]);
}

#[test]
fn one_that_is_leaving_holds_its_place_and_counts_as_gone_for_the_surplus() {
    let agents = vec![agent(0, MemberState::Leaving), agent(1, MemberState::Idle)];
    assert!(plan(&facts(2, 2, agents.clone())).create.is_empty(), "its pod may still run");
    assert!(plan(&facts(1, 2, agents)).delete.is_empty(), "one is leaving already");
}

#[test]
fn the_counter_rises_before_a_numbered_agent_is_deleted() {
    let plan = plan(&facts(1, 2, many(0..2, MemberState::Idle)));
    assert_eq!((plan.delete.len(), plan.counters_first, plan.counters), (1, true, Counters { spawned: 2, collected_below: 2 }));
}

fn ended(seconds: u64, crashed: bool) -> MemberState {
    MemberState::Ended { ago: Duration::from_secs(seconds), crashed }
}

#[test]
fn ended_agents_are_kept_then_collected_and_never_count() {
    let fresh = plan(&facts(1, 2, vec![agent(0, ended(10, false)), agent(1, MemberState::Idle)]));
    assert_eq!((fresh.delete.len(), fresh.look_again), (0, Some(Duration::from_secs(3590))));
    let old = plan(&facts(1, 2, vec![agent(0, ended(3600, false)), agent(1, MemberState::Idle)]));
    assert_eq!(old.delete, [("a0".to_owned(), RemovalReason::Collected)]);
    let replaced = plan(&facts(1, 1, vec![agent(0, ended(10, false))]));
    assert_eq!(replaced.create, [1]);
}

#[test]
fn agents_that_crash_are_replaced_later_and_later() {
    let after = |crashes: i64, ago: u64| plan(&facts(1, crashes, (0..crashes).map(|number| agent(number, ended(ago, true))).collect()));
    let waits: Vec<_> = (1..=4).map(|crashes| after(crashes, 0).look_again.map(|wait| wait.as_secs())).collect();
    assert_eq!(waits, [Some(2), Some(4), Some(8), Some(16)]);
    assert_eq!(after(12, 1).look_again.map(|wait| wait.as_secs()), Some(299), "never longer than five minutes");
    assert!(after(3, 7).create.is_empty());
    assert_eq!(after(3, 8).create, [3], "the pause is over");
    let quick_once = plan(&facts(30, 1, vec![agent(0, ended(2, true))]));
    assert_eq!(quick_once.create.len(), 1, "one of thirty: two seconds");
}

#[test]
fn agents_that_end_are_not_heaped_up_and_crashes_are_remembered_whatever_the_ttl() {
    let many = plan(&facts(1, 40, (0..40).map(|number| agent(number, ended(u64::try_from(40 - number).unwrap_or(0), true))).collect()));
    assert_eq!(many.delete.len(), 28, "all but the newest 12");
    let at_once = Facts { stopped_ttl: Duration::ZERO, ..facts(1, 2, vec![agent(0, ended(1, true)), agent(1, ended(1, false))]) };
    assert_eq!(plan(&at_once).delete, [("a1".to_owned(), RemovalReason::Collected)]);
}

#[test]
fn what_others_made_and_ended_makes_no_crash_of_the_pools_own_forgotten() {
    let crashed = (0..3).map(|number| agent(number, ended(60, true)));
    let others = (10..40).map(|number| AgentFacts { sequence: None, ..agent(number, ended(1, false)) });
    let plan = plan(&facts(1, 3, crashed.chain(others).collect()));
    assert_eq!(plan.delete.len(), 18, "all but the newest 12 of the others");
    assert!(plan.delete.iter().all(|(name, _)| !["a0", "a1", "a2"].contains(&name.as_str())), "{:?}", plan.delete);
}

#[test]
fn agents_made_by_hand_are_outside_min_and_max() {
    let by_hand = AgentFacts { sequence: None, ..agent(9, MemberState::Idle) };
    let plan = plan(&facts(0, 0, vec![by_hand]));
    assert!(plan.settled() && !plan.counters_first);
}

/// A pool of at most `most` Agents that hibernate without work.
fn sleepy(desired: u32, most: u32, spawned: i64, agents: Vec<AgentFacts>) -> Facts {
    let agents = agents.into_iter().map(|agent| AgentFacts { can_hibernate: true, ..agent }).collect();
    Facts { hibernate: true, max_with_hibernated: most, ..facts(desired, spawned, agents) }
}
const ASLEEP: MemberState = MemberState::Hibernated { paused: false };
fn names(left: &[(String, RemovalReason)]) -> Vec<&str> {
    left.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn agents_without_work_hibernate_and_others_leave() {
    let agents =
        vec![agent(0, MemberState::Idle), agent(1, MemberState::Busy), agent(2, MemberState::Held), agent(3, MemberState::Starting)];
    let all = plan(&sleepy(2, 5, 4, agents.clone()));
    assert_eq!((all.hibernate, names(&all.delete)), (vec!["a3".to_owned(), "a0".to_owned()], vec![]));
    let mut without_volume = sleepy(2, 5, 4, agents.clone());
    without_volume.agents[0].can_hibernate = false;
    let some = plan(&without_volume);
    assert_eq!((some.hibernate, names(&some.delete)), (vec!["a3".to_owned()], vec!["a0"]), "nothing of it would be kept");
    let ignored = plan(&Facts { hibernate: false, ..sleepy(2, 5, 4, agents) });
    assert_eq!((ignored.hibernate.len(), names(&ignored.delete)), (0, vec!["a3", "a0"]), "spec.replicas decides");
}

#[test]
fn hibernated_ones_are_woken_before_anybody_is_made() {
    let agents = vec![agent(0, ASLEEP), agent(1, MemberState::Idle), agent(2, ASLEEP)];
    let one = plan(&sleepy(2, 5, 3, agents.clone()));
    assert_eq!((one.wake, one.create, one.counters.spawned), (vec!["a0".to_owned()], vec![], 3));
    let more = plan(&sleepy(5, 5, 3, [agents, many(3..5, ASLEEP)].concat()));
    assert_eq!((more.wake, more.create), (vec!["a0".to_owned(), "a2".to_owned()], vec![]), "in batches, as those that are made");
    let none_left = plan(&sleepy(4, 5, 3, vec![agent(0, MemberState::Idle), agent(1, MemberState::Idle), agent(2, ASLEEP)]));
    assert_eq!((none_left.wake, none_left.create), (vec!["a2".to_owned()], vec![3]));
}

#[test]
fn one_that_a_person_holds_is_neither_woken_nor_deleted() {
    let held = vec![agent(0, MemberState::Hibernated { paused: true })];
    let wanted = plan(&sleepy(1, 1, 1, held.clone()));
    assert_eq!((wanted.wake, wanted.create), (vec![], vec![1]));
    assert!(plan(&sleepy(0, 0, 1, held)).settled());
}

#[test]
fn the_pool_keeps_no_more_than_it_may_have() {
    let lowered = plan(&sleepy(1, 2, 4, vec![agent(0, ASLEEP), agent(1, MemberState::Busy), agent(2, ASLEEP), agent(3, ASLEEP)]));
    assert_eq!(lowered.delete, [("a3".to_owned(), RemovalReason::NotKept), ("a2".to_owned(), RemovalReason::NotKept)]);
    let full = plan(&sleepy(0, 2, 3, vec![agent(0, MemberState::Idle), agent(1, MemberState::Idle), agent(2, ASLEEP)]));
    assert_eq!((full.hibernate, names(&full.delete)), (vec!["a0".to_owned()], vec!["a1", "a2"]));
    let no_longer = plan(&Facts { hibernate: false, ..sleepy(0, 0, 2, many(0..2, ASLEEP)) });
    assert_eq!(names(&no_longer.delete), ["a1", "a0"], "the pool's action is another one now");
}

#[test]
fn hibernated_agents_do_not_count_and_hold_nothing_up() {
    let settled = sleepy(0, 3, 3, many(0..3, ASLEEP));
    assert!(plan(&settled).settled() && plan(&settled).look_again.is_none());
    let crashed = vec![agent(0, ended(1, true)), agent(1, ASLEEP)];
    let pausing = plan(&sleepy(1, 2, 2, crashed));
    assert_eq!((pausing.wake.len(), pausing.look_again.map(|wait| wait.as_secs())), (0, Some(1)), "whoever comes next comes later");
    let blocked = Facts { may_grow: false, ..sleepy(1, 2, 1, many(0..1, ASLEEP)) };
    assert!(plan(&blocked).settled());
}

/// An API server that keeps counters by compare-and-swap and names by uniqueness, and controllers that crash between
/// any two of their steps and act on reads that may be stale.
#[derive(Default)]
struct Simulation {
    version: u64,
    spawned: i64,
    collected_below: i64,
    alive: BTreeMap<i64, MemberState>,
    ever_created: BTreeMap<i64, u32>,
    most_alive: usize,
}

#[derive(Clone)]
struct Snapshot {
    version: u64,
    facts: Facts,
}

impl Simulation {
    fn look(&self, desired: u32) -> Snapshot {
        let agents = self.alive.iter().map(|(number, standing)| agent(*number, *standing)).collect();
        Snapshot { version: self.version, facts: Facts { collected_below: self.collected_below, ..facts(desired, self.spawned, agents) } }
    }

    /// Acts on a read, with at most `steps` single writes; then it crashes.
    fn act(&mut self, look: &Snapshot, steps: usize) {
        let plan = plan(&look.facts);
        let mut left = steps;
        let mut step = || {
            left = left.saturating_sub(1);
            left > 0
        };
        if plan.counters_first {
            if !step() || look.version != self.version {
                return;
            }
            (self.spawned, self.collected_below, self.version) = (plan.counters.spawned, plan.counters.collected_below, self.version + 1);
        }
        for number in plan.create {
            if !step() {
                return;
            }
            if let std::collections::btree_map::Entry::Vacant(free) = self.alive.entry(number) {
                free.insert(MemberState::Spawning);
                *self.ever_created.entry(number).or_default() += 1;
            }
        }
        self.most_alive = self.most_alive.max(self.alive.len());
        for (name, _) in plan.delete {
            if !step() {
                return;
            }
            self.alive.retain(|number, _| format!("a{number}") != name);
        }
    }
}

proptest! {
    /// Two controllers with stale reads and crashes at any step never make one Agent too many, and reach the target.
    #[test]
    fn never_one_too_many(target in 1u32..12, schedule in proptest::collection::vec((0usize..3, 0usize..6, 0usize..2), 1..60)) {
        let mut world = Simulation::default();
        let mut looks = [world.look(target), world.look(target)];
        for (what, steps, who) in schedule {
            match what {
                0 => looks[who] = world.look(target),
                1 => { let look = looks[who].clone(); world.act(&look, steps); }
                _ => for standing in world.alive.values_mut() { *standing = MemberState::Idle },
            }
            prop_assert!(world.alive.len() <= target as usize);
        }
        for _ in 0..40 {
            let look = world.look(target);
            world.act(&look, usize::MAX);
            for standing in world.alive.values_mut() { *standing = MemberState::Idle }
        }
        prop_assert_eq!(world.alive.len(), target as usize);
        prop_assert_eq!(world.ever_created.len(), target as usize);
        prop_assert!(world.ever_created.values().all(|times| *times == 1));
    }

    /// For changing targets: a stale controller never makes a number again that a fresh one has collected.
    #[test]
    fn settles_after_any_sequence_of_targets(targets in proptest::collection::vec(0u32..12, 1..8)) {
        let mut world = Simulation::default();
        for target in &targets {
            for _ in 0..30 {
                let look = world.look(*target);
                world.act(&look, usize::MAX);
                for standing in world.alive.values_mut() { *standing = MemberState::Idle }
            }
            prop_assert_eq!(world.alive.len(), *target as usize);
            prop_assert!(plan(&world.look(*target).facts).settled());
        }
        prop_assert!(world.ever_created.values().all(|times| *times == 1));
    }
}

/// A pool whose Agents hibernate. Each write of an Agent depends on the version that was read.
#[derive(Default)]
struct HibernationSimulation {
    version: u64,
    counters: Counters,
    agents: BTreeMap<i64, (u64, MemberState)>,
    made: BTreeMap<i64, u32>,
}

#[derive(Clone)]
struct HibernationSnapshot {
    version: u64,
    versions: BTreeMap<i64, u64>,
    facts: Facts,
}

impl HibernationSimulation {
    fn look(&self, desired: u32, most: u32) -> HibernationSnapshot {
        let agents = self.agents.iter().map(|(number, (_, standing))| agent(*number, *standing)).collect();
        let facts = Facts { collected_below: self.counters.collected_below, ..sleepy(desired, most, self.counters.spawned, agents) };
        let versions = self.agents.iter().map(|(number, (version, _))| (*number, *version)).collect();
        HibernationSnapshot { version: self.version, versions, facts }
    }

    /// Sets the state of the Agent with this name, if it has not changed since it was read.
    fn set(&mut self, glance: &HibernationSnapshot, name: &str, standing: MemberState) {
        for (number, (version, stands)) in &mut self.agents {
            if format!("a{number}") == name && glance.versions.get(number) == Some(version) {
                (*version, *stands) = (*version + 1, standing);
            }
        }
    }

    /// Acts on a read, and crashes before the write number `writes`.
    fn act(&mut self, glance: &HibernationSnapshot, writes: usize) {
        let plan = plan(&glance.facts);
        let mut left = writes;
        let mut may = || {
            left = left.saturating_sub(1);
            left > 0
        };
        if plan.counters_first {
            if !may() || glance.version != self.version {
                return;
            }
            (self.counters, self.version) = (plan.counters, self.version + 1);
        }
        for name in plan.wake {
            if !may() {
                return;
            }
            self.set(glance, &name, MemberState::Spawning);
        }
        for number in plan.create {
            if !may() {
                return;
            }
            if let std::collections::btree_map::Entry::Vacant(free) = self.agents.entry(number) {
                free.insert((0, MemberState::Spawning));
                *self.made.entry(number).or_default() += 1;
            }
        }
        for name in plan.hibernate {
            if !may() {
                return;
            }
            self.set(glance, &name, MemberState::Leaving);
        }
        for (name, _) in plan.delete {
            if !may() {
                return;
            }
            self.agents.retain(|number, _| format!("a{number}") != name);
        }
    }

    /// Pods start and end: a spawning Agent becomes idle, and a leaving one hibernates.
    fn goes_on(&mut self) {
        for (version, standing) in self.agents.values_mut() {
            let next = match *standing {
                MemberState::Spawning => MemberState::Idle,
                MemberState::Leaving => ASLEEP,
                other => other,
            };
            if next != *standing {
                (*version, *standing) = (*version + 1, next);
            }
        }
    }

    fn awake(&self) -> usize {
        self.agents.values().filter(|(_, standing)| standing.counts()).count()
    }
}

proptest! {
    /// For changing targets, with crashes and stale reads of two controllers: never more Agents are awake or exist than
    /// the pool may have, no new one is made while one hibernates, and the pool settles.
    #[test]
    fn who_sleeps_comes_back_and_nobody_beside(
        schedule in proptest::collection::vec((0usize..4, 0u32..5, 0usize..5, 0usize..2), 1..80),
        last in 0u32..5,
    ) {
        const MOST: u32 = 4;
        let mut world = HibernationSimulation::default();
        let mut glances = [world.look(0, MOST), world.look(0, MOST)];
        for (what, desired, writes, who) in schedule {
            let fresh = world.look(desired.min(MOST), MOST);
            let decided = plan(&fresh.facts);
            if decided.counters.spawned > fresh.facts.spawned {
                let asleep = world.agents.values().filter(|(_, standing)| *standing == ASLEEP).count();
                prop_assert_eq!(decided.wake.len(), asleep, "somebody new, and one sleeps on");
            }
            match what {
                0 => glances[who] = fresh,
                1 => { let glance = glances[who].clone(); world.act(&glance, writes); }
                2 => world.act(&fresh, writes),
                _ => world.goes_on(),
            }
            prop_assert!(world.awake() <= MOST as usize, "{:?}", world.agents);
            prop_assert!(world.agents.len() <= MOST as usize, "{:?}", world.agents);
        }
        for _ in 0..40 {
            let glance = world.look(last, MOST);
            world.act(&glance, usize::MAX);
            world.goes_on();
        }
        prop_assert_eq!(world.awake(), last as usize);
        prop_assert!(plan(&world.look(last, MOST).facts).settled());
        prop_assert!(world.made.values().all(|times| *times == 1));
        prop_assert!(world.made.len() <= MOST as usize, "nobody ended, so nobody was made in anybody's place: {:?}", world.made);
    }
}
