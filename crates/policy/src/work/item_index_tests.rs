//! Several items of a namespace: order, dependencies, limits, timers and removal.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::work::failure::{Action, Failure, Rule};
use crate::work::item::{Dependency, Holder, OnDependencyFailure, Overrides, reasons};
use crate::work::lease::{FailureJudges, Fence, claim, complete, fail};
use crate::work::selector::Requirement;

#[path = "item_index/collected_tests.rs"]
mod collected_tests;
#[path = "item_index/needs_tests.rs"]
mod needs_tests;
#[path = "item_index/objectives_tests.rs"]
mod objectives_tests;
#[path = "item_index/order_tests.rs"]
mod order_tests;
#[path = "item_index/project_tests.rs"]
mod project_tests;

const SECOND: i64 = 1000;

fn queue() -> Queue {
    Queue { max_pending: 100, max_finished: 100, max_dead_letters: 100, max_item_bytes: 100, ..Queue::default() }
}

/// An index with a clock. Transitions without a call are applied at once.
struct Simulation {
    index: ItemIndex,
    now: UnixMillis,
    labels: BTreeMap<String, String>,
    offer: PoolOffer,
}

impl Simulation {
    fn new(queues: &[(&str, Queue)]) -> Self {
        let mut index = ItemIndex::default();
        for (name, queue) in queues {
            index.set_queue(name, Some(queue.clone()));
        }
        Self { index, now: UnixMillis(100 * SECOND), labels: BTreeMap::new(), offer: PoolOffer::default() }
    }

    fn add(&mut self, name: &str, spec: Spec) {
        let spec = Spec { created: self.now, submitted: self.now, ..spec };
        let entry =
            Entry { uid: format!("u-{name}"), version: "1".into(), spec, record: Record::default(), generation: 1, ..Entry::default() };
        self.index.put(name, entry, self.now);
        self.look(name);
    }

    /// Looks at an item, and at the items that may change because of it.
    fn look(&mut self, name: &str) {
        let mut ahead = vec![name.to_owned()];
        while let Some(name) = ahead.pop() {
            if let Some(next) = self.index.settle(&name, HolderState::There, self.now, 0.5) {
                self.index.set_record(&name, next, false, self.now);
            }
            ahead.extend(
                self.index
                    .affected_by(&name)
                    .into_iter()
                    .filter(|other| self.index.settle(other, HolderState::There, self.now, 0.5).is_some()),
            );
        }
    }

    fn pass(&mut self, seconds: i64) {
        self.now = UnixMillis(self.now.0 + seconds * SECOND);
        for name in self.index.due(self.now) {
            self.look(&name);
        }
    }

    fn phase(&self, name: &str) -> (Phase, String) {
        let record = &self.index.get(name).expect("an item").record;
        (record.phase, record.reason.clone().unwrap_or_default())
    }

    fn next(&self, queues: &[(&str, &[&str])]) -> Option<String> {
        let queues: Vec<(String, Vec<String>)> =
            queues.iter().map(|(queue, types)| ((*queue).to_owned(), types.iter().map(|one| (*one).to_owned()).collect())).collect();
        let taker = ClaimRequester { agent: "a", labels: &self.labels, queues: &queues, offer: &self.offer, now: self.now };
        self.index.next_for(&taker, |_| true).map(str::to_owned)
    }

    fn claim(&mut self, queues: &[(&str, &[&str])], pod: &str) -> Option<String> {
        let name = self.next(queues)?;
        let entry = self.index.get(&name).expect("an item").clone();
        let holder = Holder { pod: pod.into(), agent: "a".into(), since: self.now };
        let next = claim(&entry.spec, &entry.record, holder, self.now).expect("it is ready");
        self.index.set_record(&name, next, false, self.now);
        Some(name)
    }

    fn complete(&mut self, name: &str, pod: &str) {
        let entry = self.index.get(name).expect("an item").clone();
        let fence = Fence { epoch: entry.record.epoch, pod, agent: "a" };
        let next = complete(&entry.record, fence, self.now).expect("it is held");
        self.index.set_record(name, next, false, self.now);
        self.look(name);
    }

    /// The holder fails at the item, and a rule makes it a dead letter at once.
    fn set_aside(&mut self, name: &str, pod: &str) {
        let entry = self.index.get(name).expect("an item").clone();
        let fence = Fence { epoch: entry.record.epoch, pod, agent: "a" };
        let failure = Failure { reason: "Exited".into(), message: String::new(), exit_code: Some(1) };
        let rules = [Rule { action: Action::DeadLetter, reasons: Vec::new(), exit_codes: Vec::new() }];
        let judges = FailureJudges { policy: &self.index.policy(&entry), rules: &rules, is_final: false, dice: 0.5 };
        let next = fail(&entry.record, fence, &failure, judges, self.now).expect("it is held");
        self.index.set_record(name, next, false, self.now);
        self.look(name);
    }
}

fn to(queue: &str) -> Spec {
    Spec { queue: Some(queue.into()), ..Spec::default() }
}
fn after(queue: &str, names: &[&str]) -> Spec {
    let after = names.iter().map(|name| Dependency { name: (*name).to_owned(), succeeded: true }).collect();
    Spec { after, ..to(queue) }
}

#[test]
fn the_best_of_the_first_queue_that_has_one_is_next() {
    let mut world = Simulation::new(&[("a", queue()), ("b", queue())]);
    world.add("b-high", Spec { priority: 9, ..to("b") });
    world.add("a-low", Spec { priority: -1, ..to("a") });
    world.pass(1);
    world.add("a-mid-late", to("a"));
    let order: Vec<_> = std::iter::from_fn(|| world.claim(&[("a", &[]), ("b", &[])], &format!("p{}", rand_like(&world)))).collect();
    assert_eq!(order, ["a-mid-late", "a-low", "b-high"]);
}

/// The number of claims so far, for the name of a new pod.
fn rand_like(world: &Simulation) -> usize {
    world.index.holders().count()
}

#[test]
fn what_depends_on_others_waits_for_them_across_queues() {
    let mut world = Simulation::new(&[("a", queue()), ("b", queue())]);
    world.add("second", after("a", &["first"]));
    assert_eq!(world.phase("second"), (Phase::Blocked, reasons::DEPENDENCIES.into()), "the other one may be on its way");
    world.add("first", to("b"));
    assert_eq!(world.claim(&[("a", &[])], "p"), None);
    assert_eq!(world.claim(&[("b", &[])], "p").as_deref(), Some("first"));
    world.complete("first", "p");
    assert_eq!(world.phase("second").0, Phase::Ready);
    // Its dependency may be removed now, and nothing changes for it.
    world.index.remove("first");
    world.look("second");
    assert_eq!(world.phase("second").0, Phase::Ready);
}

#[test]
fn a_dependency_that_never_comes_or_fails_decides_as_was_asked() {
    let mut world = Simulation::new(&[("a", queue())]);
    world.add("cancelled", after("a", &["never"]));
    world.add("runs", Spec { on_dependency_failure: OnDependencyFailure::Run, ..after("a", &["never"]) });
    world.add("holds", Spec { on_dependency_failure: OnDependencyFailure::Hold, ..after("a", &["never"]) });
    world.pass(29);
    assert_eq!(world.phase("cancelled").0, Phase::Blocked);
    world.pass(1);
    assert_eq!(world.phase("cancelled"), (Phase::Cancelled, reasons::DEPENDENCY_MISSING.into()));
    assert_eq!(world.phase("runs").0, Phase::Ready);
    assert_eq!(world.phase("holds"), (Phase::Blocked, reasons::DEPENDENCY_MISSING.into()));
}

#[test]
fn who_would_wait_for_itself_is_refused() {
    let mut world = Simulation::new(&[("a", queue())]);
    world.add("one", after("a", &["three"]));
    world.add("two", after("a", &["one"]));
    world.add("three", after("a", &["two"]));
    assert_eq!(world.phase("three"), (Phase::Rejected, reasons::CYCLE.into()), "the last one closes it");
    assert_eq!(world.phase("one"), (Phase::Cancelled, reasons::DEPENDENCY_FAILED.into()), "and who waited for it is told");
}

#[test]
fn a_plan_waits_until_all_of_it_is_there() {
    let mut world = Simulation::new(&[("a", queue())]);
    let part = || Spec { plan: Some(("plan".into(), 2)), ..to("a") };
    world.add("one", part());
    assert_eq!(world.phase("one"), (Phase::Blocked, reasons::PLAN_INCOMPLETE.into()));
    world.add("two", part());
    assert_eq!((world.phase("one").0, world.phase("two").0), (Phase::Ready, Phase::Ready));
    world.add("alone", Spec { plan: Some(("other".into(), 2)), ..to("a") });
    world.pass(600);
    assert_eq!(world.phase("alone"), (Phase::Cancelled, reasons::PLAN_INCOMPLETE.into()));
}

#[test]
fn a_time_to_come_is_waited_for_and_a_deadline_ends_the_wait() {
    let mut world = Simulation::new(&[("a", queue())]);
    let at = |seconds: i64| Some(UnixMillis(world.now.0 + seconds * SECOND));
    let (soon, late) = (at(10), at(20));
    world.add("later", Spec { not_before: soon, deadline: late, ..to("a") });
    assert_eq!(world.phase("later"), (Phase::Scheduled, reasons::NOT_BEFORE.into()));
    world.pass(9);
    assert_eq!(world.phase("later").0, Phase::Scheduled);
    world.pass(1);
    assert_eq!(world.phase("later").0, Phase::Ready);
    world.pass(10);
    assert_eq!(world.phase("later"), (Phase::Expired, reasons::DEADLINE_EXCEEDED.into()));
}

#[test]
fn limits_of_a_queue_and_of_a_key_hold() {
    let limited = Queue { max_leased: Some(3), max_leased_per_key: Some(1), ..queue() };
    let mut world = Simulation::new(&[("a", limited)]);
    let keyed = |key: &str| Spec { concurrency_key: Some(key.into()), ..to("a") };
    let items = [("x1", keyed("x")), ("x2", keyed("x")), ("x3", keyed("x")), ("y1", keyed("y")), ("free1", to("a")), ("free2", to("a"))];
    for (name, spec) in items {
        world.pass(1);
        world.add(name, spec);
    }
    assert_eq!(world.index.claimable("a", &[], None), 3, "one of each key, and no more than the queue allows");
    let all: &[(&str, &[&str])] = &[("a", &[])];
    let got: Vec<_> = (0..4).map(|at| world.claim(all, &format!("p{at}"))).collect();
    assert_eq!(got, [Some("x1".into()), Some("y1".into()), Some("free1".into()), None]);
    world.complete("x1", "p0");
    assert_eq!(world.claim(all, "p4").as_deref(), Some("x2"), "the key is free again, and it came before the others");
}

#[test]
fn in_a_strict_queue_who_cannot_be_served_blocks_those_behind() {
    let selective = || Spec { selector: [Requirement::equals("gpu", "yes")].into_iter().collect(), ..to("a") };
    for (strict, expected) in [(true, None), (false, Some("plain".to_owned()))] {
        let mut world = Simulation::new(&[("a", Queue { strict, ..queue() })]);
        world.add("choosy", selective());
        world.pass(1);
        world.add("plain", to("a"));
        assert_eq!(world.next(&[("a", &[])]), expected);
        world.labels.insert("gpu".into(), "yes".into());
        assert_eq!(world.next(&[("a", &[])]).as_deref(), Some("choosy"));
    }
}

#[test]
fn types_that_a_pool_does_not_take_are_left_for_others() {
    let mut world = Simulation::new(&[("a", queue())]);
    world.add("idea", Spec { type_: Some("idea".into()), ..to("a") });
    world.pass(1);
    world.add("bug", Spec { type_: Some("bug".into()), ..to("a") });
    assert_eq!(world.next(&[("a", &["bug"])]).as_deref(), Some("bug"));
    assert_eq!(world.index.claimable("a", &["bug".to_owned()], None), 1);
    assert_eq!(world.index.claimable("a", &[], None), 2);
}

#[test]
fn a_cancelled_group_covers_who_was_there_and_nobody_later() {
    let mut world = Simulation::new(&[("a", queue())]);
    let member = || Spec { group: Some("g".into()), ..to("a") };
    world.add("before", member());
    world.pass(1);
    let touched = world.index.set_cancelled("a", [("g".to_owned(), world.now)]);
    assert_eq!(touched, ["before"]);
    touched.iter().for_each(|name| world.look(name));
    assert_eq!(world.phase("before"), (Phase::Cancelled, reasons::GROUP_CANCELLED.into()));
    world.pass(1);
    world.add("later", member());
    assert_eq!(world.phase("later").0, Phase::Ready);
    assert!(!world.index.group_has_unfinished("a", "g"));
}

#[test]
fn one_of_a_key_and_the_earlier_one_stays() {
    let mut world = Simulation::new(&[("a", queue())]);
    let keyed = || Spec { dedup_key: Some("k".into()), ..to("a") };
    world.add("one", keyed());
    world.pass(1);
    world.add("two", keyed());
    assert_eq!(world.phase("two"), (Phase::Rejected, reasons::DUPLICATE.into()));
    world.claim(&[("a", &[])], "p");
    world.complete("one", "p");
    world.add("three", keyed());
    assert_eq!(world.phase("three").0, Phase::Rejected, "until it is collected");
    world.index.remove("one");
    world.add("four", keyed());
    assert_eq!(world.phase("four").0, Phase::Ready);
}

#[test]
fn the_default_takes_what_nobody_took_for_a_moment() {
    let mut world = Simulation::new(&[("rest", Queue { default: true, ..queue() })]);
    let idea = || Spec { type_: Some("idea".into()), ..Spec::default() };
    world.add("early", idea());
    assert_eq!(world.phase("early").0, Phase::Pending);
    world.index.set_queue("ideas", Some(Queue { types: vec!["idea".into()], ..queue() }));
    world.look("early");
    assert_eq!(world.index.get("early").and_then(|entry| entry.record.queue.clone()).as_deref(), Some("ideas"));
    world.add("odd", Spec { type_: Some("odd".into()), ..Spec::default() });
    world.pass(2);
    assert_eq!(world.index.get("odd").and_then(|entry| entry.record.queue.clone()).as_deref(), Some("rest"));
}

#[test]
fn an_item_waits_a_moment_for_its_queue() {
    let mut world = Simulation::new(&[]);
    world.add("early", to("a"));
    world.add("lost", to("b"));
    assert_eq!(world.phase("early").0, Phase::Pending);
    world.index.set_queue("a", Some(queue()));
    world.look("early");
    assert_eq!(world.phase("early").0, Phase::Ready);
    (0..5).for_each(|_| world.pass(1));
    assert_eq!(world.phase("lost"), (Phase::Rejected, reasons::QUEUE_MISSING.into()));
}

#[test]
fn a_full_queue_takes_nobody_and_an_end_makes_room() {
    let mut world = Simulation::new(&[("a", Queue { max_pending: 1, ..queue() })]);
    world.add("one", to("a"));
    world.add("two", to("a"));
    assert_eq!(world.phase("two"), (Phase::Rejected, reasons::QUEUE_FULL.into()));
    world.claim(&[("a", &[])], "p");
    world.add("three", to("a"));
    assert_eq!(world.phase("three").0, Phase::Rejected, "one that is held is not finished");
    world.complete("one", "p");
    world.add("four", to("a"));
    assert_eq!(world.phase("four").0, Phase::Ready);
}

#[test]
fn a_suspended_queue_gives_nothing_out_and_an_item_for_itself() {
    let mut world = Simulation::new(&[("a", Queue { suspend: true, ..queue() })]);
    world.add("one", to("a"));
    assert_eq!((world.phase("one").0, world.next(&[("a", &[])])), (Phase::Ready, None));
    assert_eq!(world.index.claimable("a", &[], None), 0);
    world.index.set_queue("a", Some(queue()));
    world.add("held", Spec { suspend: true, priority: 5, ..to("a") });
    assert_eq!(world.phase("held"), (Phase::Suspended, reasons::SUSPENDED.into()));
    assert_eq!(world.next(&[("a", &[])]).as_deref(), Some("one"));
}

#[test]
fn a_queue_that_goes_takes_nobody_with_it_but_those_that_wait_are_told() {
    let mut world = Simulation::new(&[("a", queue()), ("b", queue())]);
    world.add("held", to("a"));
    world.claim(&[("a", &[])], "p");
    world.add("waits", to("a"));
    world.add("elsewhere", to("b"));
    let touched = world.index.of_queue("a");
    world.index.set_queue("a", None);
    touched.iter().for_each(|name| world.look(name));
    assert_eq!(world.phase("waits"), (Phase::Rejected, reasons::QUEUE_MISSING.into()));
    assert_eq!((world.phase("held").0, world.phase("elsewhere").0), (Phase::Leased, Phase::Ready));
    world.complete("held", "p");
    assert_eq!(world.phase("held").0, Phase::Succeeded);
}

#[test]
fn what_came_from_a_backup_runs_only_when_a_person_says_so() {
    let mut world = Simulation::new(&[("a", queue())]);
    world.add("old", Spec { restored: true, ..to("a") });
    assert_eq!(world.phase("old"), (Phase::Suspended, reasons::RESTORED.into()));
    world.add("old", Spec { restored: true, redrives: 1, ..to("a") });
    let restored = Record { phase: Phase::Suspended, reason: Some(reasons::RESTORED.into()), ..Record::default() };
    world.index.set_record("old", restored, false, world.now);
    world.look("old");
    assert_eq!(world.phase("old").0, Phase::Ready);
}

/// The API server sets the creation time of an item. The person who cancels its group has another clock.
#[test]
fn a_group_is_cancelled_with_all_that_exists_whatever_the_clock_says() {
    const HOUR: i64 = 3600 * SECOND;
    let member = |made: i64| {
        let mut world = Simulation::new(&[("a", queue())]);
        world.now = UnixMillis(made);
        world.add("one", Spec { queue: Some("a".into()), group: Some("g".into()), ..Spec::default() });
        world
    };
    for (clock, step) in [(0, 0), (-HOUR, -1), (HOUR, 1)] {
        let mut world = member(10 * HOUR);
        let time = world.index.cancel_time("a", "g", UnixMillis(10 * HOUR + SECOND + clock));
        assert_eq!(time.0.cmp(&(10 * HOUR)), if step < 0 { std::cmp::Ordering::Equal } else { std::cmp::Ordering::Greater });
        world.index.set_cancelled("a", [("g".to_owned(), time)]);
        assert!(world.index.group_has_unfinished("a", "g"), "the member is covered at {clock}");
        assert_eq!(world.index.cancel_time("b", "g", UnixMillis(5)), UnixMillis(5), "members in another queue do not count");
    }
}

#[test]
fn depths_add_up_to_all_items_whatever_queues_they_name() {
    let mut world = Simulation::new(&[("a", queue()), ("b", queue())]);
    for name in ["a1", "a2", "a3"] {
        world.add(name, to("a"));
    }
    world.add("b1", after("b", &["a1"]));
    world.add("lost", to("nowhere"));
    world.claim(&[("a", &[])], "p");
    world.pass(1);
    let depths = |world: &Simulation| -> Vec<String> {
        let words = |depth: Depth| format!("{:?} {:?} {:?}", depth.queue, depth.phases, depth.oldest);
        world.index.depths().into_iter().map(words).collect()
    };
    assert_eq!(
        depths(&world),
        [r#"Some("a") {Ready: 2, Leased: 1} Some(UnixMillis(100000))"#, r#"Some("b") {Blocked: 1} None"#, "None {Pending: 1} None",]
    );
    assert_eq!((world.index.counts_at("b1"), world.index.counts_at("lost"), world.index.counts_at("?")), (Some("b"), None, None));
    // A queue that was deleted has no name here, but its items still count.
    world.index.set_queue("a", None);
    assert_eq!(depths(&world), [r#"Some("b") {Blocked: 1} None"#, "None {Pending: 1, Ready: 2, Leased: 1} None"]);
    for name in ["a1", "a2", "a3", "b1", "lost"] {
        world.index.remove(name);
    }
    assert_eq!(depths(&world), [r#"Some("b") {} None"#]);
}
