//! Gangs: whether the agents that work on the items of one group fail together.
//!
//! A member is an item of the group that an agent holds, or at which an agent failed lately. An item that succeeded
//! since is no member. Members are read from the records of the items, so every leader sees the same. A restart is
//! recorded there too, as the reason under which items were given back. Failures before a restart do not count.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::work::item::{Attempt, Phase, Record, UnixMillis, Verb};

/// The reason under which the items of a restarted gang are given back.
pub const GANG_RESTART_REASON: &str = "GangDivergence";

/// From when on a gang has too many failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The least percentage of failed members ...
    pub percent: u32,
    /// ... and the least number of them ...
    pub failed: u32,
    /// ... within this time.
    pub window: Duration,
}

/// A gang with too many failures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// Members that failed.
    pub failed: usize,
    /// Members.
    pub members: usize,
    /// The agents of all members: those that hold one, and those that failed at one.
    pub agents: BTreeSet<String>,
}

/// Looks at the items of one group. `ours`: whether an agent belongs to the pool in question. `known`: when we last
/// found that the gang diverges.
pub fn divergence<'a>(
    group: impl IntoIterator<Item = &'a Record>,
    ours: impl Fn(&str) -> bool,
    limits: Limits,
    known: Option<UnixMillis>,
    now: UnixMillis,
) -> Option<Divergence> {
    let records: Vec<&Record> = group.into_iter().collect();
    let all = records.iter().flat_map(|record| &record.history);
    let restarted = all.filter(|attempt| attempt.reason.as_deref() == Some(GANG_RESTART_REASON)).map(|attempt| attempt.end).max();
    let since = restarted.max(known);
    let counts = |attempt: &&Attempt| {
        let failed = match attempt.verb {
            Verb::Fail | Verb::Stalled | Verb::LeaseExpired => true,
            Verb::Complete | Verb::Release | Verb::CancelDone => false,
        };
        let late = since.is_none_or(|since| attempt.end > since) && now.since(attempt.end) <= limits.window;
        failed && late && ours(&attempt.agent)
    };
    let (mut failed, mut of, mut agents) = (0, 0, BTreeSet::new());
    for record in records {
        let holder = record.holder.as_ref().map(|holder| &holder.agent).filter(|agent| ours(agent));
        let fails: Vec<&Attempt> = record.history.iter().filter(counts).filter(|_| record.phase != Phase::Succeeded).collect();
        failed += usize::from(!fails.is_empty());
        of += usize::from(!fails.is_empty() || holder.is_some());
        agents.extend(holder.cloned().into_iter().chain(fails.into_iter().map(|attempt| attempt.agent.clone())));
    }
    let enough = usize::try_from(limits.failed).is_ok_and(|least| failed >= least.max(1));
    let percent = usize::try_from(limits.percent).unwrap_or(usize::MAX);
    (enough && failed.saturating_mul(100) >= of.saturating_mul(percent)).then_some(Divergence { failed, members: of, agents })
}

/// The agents that are left of a restart which an earlier leader began and did not end. They still hold an item that
/// they held when the first item of the gang was given back.
pub fn unfinished<'a>(group: impl IntoIterator<Item = &'a Record>, ours: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let records: Vec<&Record> = group.into_iter().collect();
    // Agents of another pool may work on the same group. Their restart is not ours.
    let restarted = |attempt: &&Attempt| attempt.reason.as_deref() == Some(GANG_RESTART_REASON) && ours(&attempt.agent);
    let all = records.iter().flat_map(|record| &record.history).filter(restarted);
    let mut given_back: Vec<(UnixMillis, UnixMillis)> = all.map(|attempt| (attempt.end, attempt.start)).collect();
    given_back.sort_unstable();
    // An item that was claimed after a restart began, and is given back too, belongs to the next restart.
    let begun =
        given_back.into_iter().fold(None, |begun: Option<UnixMillis>, (end, start)| begun.filter(|begun| start < *begun).or(Some(end)));
    let holders = records.iter().filter_map(|record| record.holder.as_ref());
    let left = holders.filter(|holder| begun.is_some_and(|begun| holder.since < begun) && ours(&holder.agent));
    left.map(|holder| holder.agent.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::item::Holder;
    use proptest::prelude::*;

    const NOW: UnixMillis = UnixMillis(1_000_000);
    const LIMITS: Limits = Limits { percent: 50, failed: 3, window: Duration::from_secs(600) };

    fn held(agent: &str) -> Record {
        let holder = Some(Holder { pod: format!("pod-of-{agent}"), agent: agent.into(), since: NOW });
        Record { phase: Phase::Leased, holder, ..Record::default() }
    }
    fn ended(agent: &str, verb: Verb, reason: &str, seconds_ago: i64) -> Record {
        let end = UnixMillis(NOW.0 - seconds_ago * 1_000);
        let attempt = Attempt { epoch: 1, agent: agent.into(), start: end, end, verb, reason: Some(reason.into()), message: None };
        Record { phase: Phase::Scheduled, history: vec![attempt], ..Record::default() }
    }
    fn failed(agent: &str) -> Record {
        ended(agent, Verb::Fail, "Exited", 5)
    }
    fn found(group: &[Record]) -> Option<Divergence> {
        divergence(group, |_| true, LIMITS, None, NOW)
    }

    #[test]
    fn three_of_five_that_fail_are_a_divergence_of_all_five() {
        let group = [held("a"), held("b"), failed("c"), failed("d"), failed("e")];
        let got = found(&group).expect("too many");
        assert_eq!((got.failed, got.members, got.agents.len()), (3, 5, 5));
        assert_eq!(found(&group[..4]), None, "two are not enough, whatever the share");
        let many: Vec<Record> = (0..4).map(|at| held(&format!("more-{at}"))).chain(group.clone()).collect();
        assert_eq!(found(&many), None, "three of nine are too small a share");
    }

    #[test]
    fn what_is_long_ago_done_given_back_or_of_others_is_no_failure() {
        let two = [failed("a"), failed("b")];
        for third in [
            ended("c", Verb::Fail, "Exited", 601),
            ended("c", Verb::Release, "Drained", 5),
            Record { phase: Phase::Succeeded, ..failed("c") },
            failed("other"),
        ] {
            let group = [&two[..], &[third]].concat();
            assert_eq!(divergence(&group, |agent| agent != "other", LIMITS, None, NOW), None);
        }
        assert!(found(&[&two[..], &[ended("c", Verb::Stalled, "ItemStalled", 5)]].concat()).is_some(), "a stall is one");
    }

    #[test]
    fn nothing_of_before_a_restart_counts() {
        let group = [failed("a"), failed("b"), failed("c"), ended("d", Verb::Release, GANG_RESTART_REASON, 4)];
        assert_eq!(found(&group), None, "that it was restarted is recorded with its items");
        assert_eq!(divergence(&group[..3], |_| true, LIMITS, Some(NOW), NOW), None, "or we know it before it is");
        let again = [
            &group[..],
            &[failed("a"), failed("b"), failed("c")].map(|mut record| {
                record.history[0].end = UnixMillis(NOW.0 - 1_000);
                record
            }),
        ]
        .concat();
        assert_eq!(found(&again).map(|got| got.failed), Some(3));
    }

    #[test]
    fn a_restart_that_was_begun_is_ended_and_touches_nobody_who_came_later() {
        let since = |seconds: i64| UnixMillis(NOW.0 - seconds * 1_000);
        let holds = |agent: &str, seconds: i64| {
            let mut record = held(agent);
            record.holder.as_mut().expect("a holder").since = since(seconds);
            record
        };
        let given_back = |from: i64, to: i64| {
            let mut record = ended("x", Verb::Release, GANG_RESTART_REASON, to);
            record.history[0].start = since(from);
            record
        };
        let left = |group: &[Record]| unfinished(group, |agent| agent != "other").into_iter().collect::<Vec<_>>();
        assert_eq!(left(&[holds("a", 50)]), [""; 0], "nothing was restarted");
        // One that was given back late held it before the first was.
        let first = [given_back(60, 20), given_back(60, 10), holds("late", 15), holds("a", 50), holds("b", 21), holds("other", 50)];
        assert_eq!(left(&first), ["a", "b"]);
        let theirs = Record { history: vec![Attempt { agent: "other".into(), ..first[0].history[0].clone() }], ..given_back(60, 20) };
        assert_eq!(left(&[theirs, holds("a", 50)]), [""; 0], "those of another pool were restarted");
        let second = [&first[..], &[given_back(14, 5), holds("c", 4), holds("d", 6)]].concat();
        assert_eq!(left(&second), ["a", "b", "d", "late"], "the next restart is of all who were there when it began");
    }

    proptest! {
        #[test]
        fn it_is_never_found_below_either_limit(fails in 0_usize..12, holds in 0_usize..12, percent in 1_u32..=100, least in 1_u32..6) {
            let group: Vec<Record> =
                (0..fails).map(|at| failed(&format!("f{at}"))).chain((0..holds).map(|at| held(&format!("h{at}")))).collect();
            let limits = Limits { percent, failed: least, ..LIMITS };
            let got = divergence(&group, |_| true, limits, None, NOW).is_some();
            let share = fails * 100 >= (fails + holds) * usize::try_from(percent).expect("small");
            prop_assert_eq!(got, fails >= usize::try_from(least).expect("small") && share);
        }
    }
}
