use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::work::item::Record;

fn entry(phase: Phase, started: bool, first_ready: Option<i64>) -> Entry {
    let record = Record { phase, started: started.then_some(UnixMillis(0)), ..Record::default() };
    Entry {
        uid: "u".into(),
        version: "1".into(),
        record,
        first_ready: first_ready.map(|seconds| UnixMillis(seconds * 1000)),
        generation: 1,
        ..Entry::default()
    }
}

fn over(objectives: Objectives, entry: &Entry, second: i64) -> Vec<(Objective, i64)> {
    objectives.missed(entry, UnixMillis(second * 1000)).map(|(objective, since)| (objective, since.0 / 1000)).collect()
}

fn one(uid: &str, objective: Objective, since: i64) -> MissedObjective {
    MissedObjective { item: uid.into(), uid: uid.into(), objective, since: UnixMillis(since * 1000), holder: None }
}

fn many(names: std::ops::Range<i64>, since: i64) -> Vec<MissedObjective> {
    names.map(|name| one(&format!("{name:04}"), Objective::Wait, since)).collect()
}

#[test]
fn an_item_is_over_what_it_waits_for_and_no_longer() {
    let both = Objectives { wait: Some(Duration::from_secs(10)), completion: Some(Duration::from_secs(60)) };
    let wait = |since| (Objective::Wait, since);
    let end = |since| (Objective::Completion, since);
    let ready = entry(Phase::Ready, false, Some(100));
    assert_eq!(over(both, &ready, 110), [], "just in time");
    assert_eq!(over(both, &ready, 111), [wait(110)]);
    assert_eq!(over(both, &ready, 161), [wait(110), end(160)]);
    assert_eq!(over(both, &entry(Phase::Leased, true, Some(100)), 161), [end(160)]);
    assert_eq!(over(both, &entry(Phase::Ready, true, Some(100)), 120), [], "it was claimed once: what it waits for is another try");
    assert_eq!(over(both, &entry(Phase::Scheduled, true, Some(100)), 161), [end(160)]);
    assert_eq!(over(both, &entry(Phase::Suspended, false, Some(100)), 999), [], "a person holds it");
    assert_eq!(over(both, &entry(Phase::Blocked, false, None), 999), [], "it was never ready");
    for phase in Phase::ALL.into_iter().filter(|phase| phase.ended()) {
        assert_eq!(over(both, &entry(phase, true, Some(100)), 999), [], "{phase:?}");
    }
    assert!(Objectives::default().is_empty() && over(Objectives::default(), &ready, 999).is_empty());
}

#[test]
fn each_is_told_of_once_and_again_when_it_was_started_again() {
    let mut watch = ObjectiveWatch::default();
    let look = |watch: &mut ObjectiveWatch, over: Vec<MissedObjective>, lives: bool, now: i64| {
        watch.check(over, |_| lives, UnixMillis(now * 1000))
    };
    assert_eq!(look(&mut watch, Vec::new(), true, 0), ObjectiveCheck::default());
    let waits = one("a", Objective::Wait, 1);
    let first = look(&mut watch, vec![waits.clone()], true, 2);
    assert_eq!((first.new, first.reported, first.more), (vec![waits.clone()], 1, None));
    assert_eq!(look(&mut watch, vec![waits.clone()], true, 3), ObjectiveCheck::default());
    assert_eq!(look(&mut watch, Vec::new(), true, 4), ObjectiveCheck::default(), "it is suspended");
    assert_eq!(look(&mut watch, vec![waits.clone()], true, 5), ObjectiveCheck::default(), "and goes on");
    let ends = one("a", Objective::Completion, 9);
    assert_eq!(look(&mut watch, vec![waits.clone(), ends.clone()], true, 10).new, [ends], "the other objective");
    assert_eq!(look(&mut watch, Vec::new(), false, 11), ObjectiveCheck::default(), "it ended");
    assert_eq!(look(&mut watch, vec![waits.clone()], true, 80).new, [waits]);
}

#[test]
fn who_looks_for_the_first_time_tells_only_what_nobody_can_have_told() {
    let late = [one("old", Objective::Wait, 0), one("young", Objective::Wait, 100)];
    let look = ObjectiveWatch::default().check(late.to_vec(), |_| true, UnixMillis(120_000));
    assert_eq!(look.new, late[1..]);
    let mut looked = ObjectiveWatch::default();
    looked.check(Vec::new(), |_| true, UnixMillis(0));
    assert_eq!(looked.check(late.to_vec(), |_| true, UnixMillis(120_000)).new, late, "objectives that were set since count for all");
}

#[test]
fn of_thousands_ten_are_told_of_and_the_rest_together() {
    let mut watch = ObjectiveWatch::default();
    watch.check(Vec::new(), |_| true, UnixMillis(0));
    let all = many(0..3000, 1);
    let first = watch.check(all.clone(), |_| true, UnixMillis(2_000));
    assert_eq!((first.new.len(), first.reported, first.more), (3000, 10, None));
    assert_eq!(watch.check(all.clone(), |_| true, UnixMillis(61_000)), ObjectiveCheck::default());
    let later = watch.check(all.clone(), |_| true, UnixMillis(62_000));
    assert_eq!((later.new.len(), later.more), (0, Some(2990)));
    assert_eq!(watch.check(all, |_| true, UnixMillis(500_000)), ObjectiveCheck::default(), "told once too");
}

proptest! {
    /// For all histories: no item is reported twice while it lives, none is forgotten, and no window has more than ten.
    #[test]
    fn telling_is_bounded_and_complete(steps in proptest::collection::vec((0_i64..40, 0_i64..60, 0_i64..40), 1..60)) {
        let mut watch = ObjectiveWatch::default();
        watch.check(Vec::new(), |_| true, UnixMillis(0));
        let (mut now, mut highest) = (0, 0);
        let (mut met, mut new, mut singly, mut together) = (BTreeSet::new(), 0, 0_u64, 0);
        let mut told_at: BTreeMap<i64, usize> = BTreeMap::new();
        for (pass, from, count) in steps {
            now += pass;
            highest = highest.max(from + count);
            let look = watch.check(many(from..from + count, now - 1), |_| true, UnixMillis(now * 1000));
            met.extend((from..from + count).map(|name| format!("{name:04}")));
            new += look.new.len();
            singly += u64::try_from(look.reported).expect("small");
            together += look.more.unwrap_or(0);
            *told_at.entry(now).or_default() += look.reported;
            prop_assert!(look.reported <= look.new.len());
            prop_assert_eq!(new, met.len(), "each is new once");
        }
        for second in told_at.keys() {
            // Two windows overlap any minute at most.
            let within: usize = told_at.range(second..&(second + 60)).map(|(_, told)| told).sum();
            prop_assert!(within <= 20, "{within} within a minute of {second}");
        }
        let last = watch.check(Vec::new(), |_| true, UnixMillis((now + 61) * 1000));
        prop_assert_eq!(singly + together + last.more.unwrap_or(0), u64::try_from(met.len()).expect("small"));
    }
}
