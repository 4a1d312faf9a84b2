//! For any order and repetition of stored records, each event is counted once.

use proptest::prelude::*;

use super::*;
use crate::work::item::{Holder, Policy, Spec};
use crate::work::lease::{self, FailureJudges, Fence};

const SECOND: i64 = 1000;
const UID: &str = "u";

fn ready() -> Record {
    Record { phase: Phase::Ready, queue: Some("q".into()), ..Record::default() }
}

fn claimed(record: &Record, at: i64) -> Record {
    let holder = Holder { pod: "p".into(), agent: "a".into(), since: UnixMillis(at) };
    lease::claim(&Spec::default(), record, holder, UnixMillis(at)).expect("it is ready")
}

fn completed(record: &Record, at: i64) -> Record {
    lease::complete(record, fence(record), UnixMillis(at)).expect("it is held")
}

fn fence(record: &Record) -> Fence<'static> {
    Fence { epoch: record.epoch, pod: "p", agent: "a" }
}

fn released(record: &Record, at: i64) -> Record {
    let policy = Policy::default();
    let judges = FailureJudges { policy: &policy, rules: &[], is_final: false, dice: 0.0 };
    lease::release(record, fence(record), "R", "", judges, UnixMillis(at)).expect("it is held")
}

fn names(happened: &[ItemEvent]) -> Vec<String> {
    happened
        .iter()
        .map(|one| match one {
            ItemEvent::Arrived => "arrived".to_owned(),
            ItemEvent::Redriven => "redriven".to_owned(),
            ItemEvent::Claimed(waited) => format!("claimed {waited:?}"),
            ItemEvent::AttemptEnded(end, ran) => format!("{} {ran:?}", end.name()),
            ItemEvent::Ended(end) => format!("ended {}", end.name()),
        })
        .collect()
}

#[test]
fn a_life_is_counted_step_by_step_with_its_times() {
    let mut tally = Tally::default();
    assert_eq!(tally.observe_stored(UID, &Record::default(), UnixMillis(0)), [], "it is not known yet where it goes");
    assert_eq!(tally.observe_phase(UID, Phase::Pending), None);
    assert_eq!(tally.observe_phase(UID, Phase::Ready), Some(ItemEvent::Arrived));
    tally.ready(UID, UnixMillis(SECOND));
    let held = claimed(&ready(), 5 * SECOND);
    assert_eq!(names(&tally.observe_stored(UID, &held, UnixMillis(5 * SECOND + 9))), ["claimed Some(4s)"]);
    // The end is stored in whole seconds, and seen a moment after it.
    let mut done = completed(&held, 7 * SECOND + 400);
    done.history[0].end = UnixMillis(7 * SECOND);
    assert_eq!(names(&tally.observe_stored(UID, &done, UnixMillis(7 * SECOND + 410))), ["Complete 2.41s", "ended Succeeded"]);
    assert_eq!(tally.observe_deleted(UID, UnixMillis(9 * SECOND)), [], "it was over");
    assert!(tally.is_empty());
}

#[test]
fn what_is_told_again_counts_nothing() {
    let mut tally = Tally::default();
    tally.observe_stored(UID, &Record::default(), UnixMillis(0));
    let held = claimed(&ready(), 5 * SECOND);
    assert_eq!(names(&tally.observe_stored(UID, &held, UnixMillis(5 * SECOND))), ["arrived", "claimed None"]);
    let done = completed(&held, 7 * SECOND);
    for _ in 0..3 {
        assert_eq!(tally.observe_stored(UID, &held, UnixMillis(6 * SECOND)), [], "a list that was read anew");
    }
    assert_eq!(tally.observe_stored(UID, &done, UnixMillis(7 * SECOND)).len(), 2);
    assert_eq!(tally.observe_stored(UID, &done, UnixMillis(8 * SECOND)), []);
}

#[test]
fn who_looks_for_the_first_time_takes_what_it_finds_for_counted() {
    let mut tally = Tally::default();
    let held = claimed(&ready(), SECOND);
    assert_eq!(tally.observe_stored(UID, &held, UnixMillis(SECOND)), []);
    assert_eq!(tally.observe_phase(UID, Phase::Ready), None, "it arrived long ago");
    let done = completed(&held, 4 * SECOND);
    assert_eq!(names(&tally.observe_stored(UID, &done, UnixMillis(4 * SECOND))), ["Complete 3s", "ended Succeeded"]);
    // An item without a decision so far arrives now.
    tally.observe_stored("v", &Record::default(), UnixMillis(0));
    assert_eq!(tally.observe_phase("v", Phase::Blocked), Some(ItemEvent::Arrived));
}

#[test]
fn versions_that_were_not_seen_are_counted_by_what_is_left_of_them() {
    let mut tally = Tally::default();
    tally.observe_stored(UID, &Record::default(), UnixMillis(0));
    tally.observe_phase(UID, Phase::Ready);
    // It was claimed, given back and claimed again while the watch was broken.
    let back = released(&claimed(&ready(), SECOND), 2 * SECOND);
    let held = claimed(&back, 3 * SECOND);
    assert_eq!(names(&tally.observe_stored(UID, &held, UnixMillis(9 * SECOND))), ["claimed None", "claimed None", "Release 1.999s"]);
    let failed = Record { phase: Phase::Failed, redrives: 1, holder: None, ..held };
    assert_eq!(names(&tally.observe_stored(UID, &failed, UnixMillis(9 * SECOND))), ["redriven", "ended Failed"]);
    let again = Record { redrives: 2, phase: Phase::DeadLettered, ..failed };
    assert_eq!(names(&tally.observe_stored(UID, &again, UnixMillis(9 * SECOND))), ["redriven", "ended DeadLettered"], "it ended once more");
}

#[test]
fn what_is_deleted_before_its_end_ended_so() {
    let mut tally = Tally::default();
    tally.observe_stored("waits", &Record::default(), UnixMillis(0));
    assert_eq!(names(&tally.observe_deleted("waits", UnixMillis(0))), ["arrived", "ended Deleted"]);
    tally.observe_stored("held", &claimed(&ready(), SECOND), UnixMillis(SECOND));
    assert_eq!(names(&tally.observe_deleted("held", UnixMillis(3 * SECOND))), ["Deleted 2s", "ended Deleted"]);
    assert_eq!(tally.observe_deleted("held", UnixMillis(3 * SECOND)), []);
}

/// The versions of one item's life. Each one follows from the previous one by a transition or a call.
fn life(steps: &[u8]) -> Vec<Record> {
    let mut versions = vec![Record::default(), ready()];
    let mut now = 10 * SECOND;
    for step in steps {
        now += SECOND;
        let last = versions.last().cloned().unwrap_or_default();
        let next = match (last.phase, step % 3) {
            (Phase::Ready, _) => claimed(&last, now),
            (Phase::Leased, 0) => completed(&last, now),
            (Phase::Leased, _) => released(&last, now),
            (Phase::Scheduled, _) => Record { phase: Phase::Ready, ..last },
            _ => break,
        };
        versions.push(next);
    }
    versions
}

proptest! {
    /// Some versions are missed and others repeated. The counts are those of the whole life, as far as the last version
    /// shows it.
    #[test]
    fn counts_do_not_depend_on_how_often_a_version_is_told(steps in proptest::collection::vec(0_u8..3, 0..20), told in proptest::collection::vec((any::<bool>(), 1_usize..4), 25)) {
        let versions = life(&steps);
        let mut tally = Tally::default();
        tally.observe_stored(UID, &versions[0], UnixMillis(0));
        let mut counts = (0_usize, 0_i64, 0_usize);
        let mut missed = false;
        for (at, version) in versions.iter().enumerate().skip(1) {
            let (seen, times) = told[at % told.len()];
            if !seen && at + 1 < versions.len() {
                missed = true;
                continue;
            }
            for _ in 0..times {
                for one in tally.observe_stored(UID, version, UnixMillis(60 * SECOND)) {
                    match one {
                        ItemEvent::Arrived => counts.0 += 1,
                        ItemEvent::Claimed(_) => counts.1 += 1,
                        ItemEvent::AttemptEnded(..) => counts.2 += 1,
                        ItemEvent::Redriven | ItemEvent::Ended(_) => {}
                    }
                }
            }
        }
        let last = versions.last().expect("a version");
        prop_assert_eq!((counts.0, counts.1), (1, last.epoch));
        let ends = versions.windows(2).filter(|pair| pair[0].phase.held() && !pair[1].phase.held()).count();
        // The history is short: the oldest of several missed attempts are lost.
        prop_assert!(counts.2 == ends || (missed && counts.2 < ends && counts.2 >= last.history.len().min(ends)));
    }
}
