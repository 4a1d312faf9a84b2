//! The health monitor: from what is known of a living agent to the signals it raises. It observes and never acts.

use std::time::Duration;

use crate::liveness::ServedTimes;

/// An agent is about to be given up when less than this, or less than two of its report periods, is left of its
/// time-out.
pub const NEAR_TIMEOUT_MARGIN: Duration = Duration::from_secs(30);
/// If at least this many agents of a node or gateway, and more than half of them, are about to be given up, the node or
/// gateway is to blame.
pub const MIN_MASS_SILENCE_AGENTS: usize = 5;

/// What is known of one agent whose pod has a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its pod has registered.
    pub registered: bool,
    /// Its program was started.
    pub started: bool,
    /// Its served times.
    pub times: ServedTimes,
    /// How long it may take to start.
    pub startup: Duration,
    /// Silence after which it is given up.
    pub timeout: Duration,
    /// Many of its node's or gateway's agents fall silent together.
    pub with_many: bool,
    /// It holds an item, or a person uses its terminal: silence of its program means something.
    pub active: bool,
    /// It is paused: its program need not do anything.
    pub paused: bool,
    /// The item that it holds.
    pub work: Option<Work>,
}

/// The item that an agent holds. Times are served time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Silence of the pod after which the lease has expired.
    pub lease: Duration,
    /// Time without progress after which the item has stalled.
    pub stall: Duration,
    /// Time that the attempt may take.
    pub attempt: Duration,
    /// Time in which the agent must give the item back once it was told to.
    pub cancel: Duration,
    /// How long it has held the item, as far as we know.
    pub held: Duration,
    /// Time since its last progress report, as far as we know.
    pub without_progress: Duration,
    /// Time since it was told to give the item back.
    pub cancelling: Option<Duration>,
}

/// The result of a look at one agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// No problem, or not for long enough.
    Well,
    /// It was silent for its time-out, but it is not given up, because many agents are silent with it.
    SilentWithMany,
    /// Its pod has not reported for this long.
    HeartbeatLost(Duration),
    /// Its program has not been started for this long.
    StartOverdue(Duration),
    /// Its pod reports, but its program has shown no activity, or has been stopped, for this long.
    ProgramSilent(Duration),
    /// It holds an item, and its pod has not reported for this long, which is at least the lease.
    LeaseExpired(Duration),
    /// It has held an item without progress for this long.
    ItemStalled(Duration),
    /// It has held an item for this long, and should have finished.
    ItemPastTime(Duration),
    /// It was told this long ago to give its item back, and did not.
    CancelIgnored(Duration),
}

/// Look at one agent.
pub fn look(facts: &Facts) -> Finding {
    let Facts { registered, started, times, startup, timeout, with_many, active, paused, work } = *facts;
    // A pod registers before its program starts, and the start may fail after that: its image cannot be pulled, or its
    // isolation is not in place.
    if !started && times.expected >= startup {
        return Finding::StartOverdue(times.expected);
    }
    if !registered {
        return Finding::Well;
    }
    let patience = if with_many { timeout.saturating_mul(2) } else { timeout };
    if times.pod_silent >= patience {
        return Finding::HeartbeatLost(times.pod_silent);
    }
    if times.pod_silent >= timeout {
        return Finding::SilentWithMany;
    }
    if let Some(work) = work
        && let Some(found) = look_at_work(&work, times, with_many, paused)
    {
        return found;
    }
    // A program that waits for work may be silent. A stopped process is a problem in any case.
    let silent = if active { times.program_silent } else { Duration::ZERO };
    let silent = silent.max(times.program_frozen);
    if silent >= timeout && !paused { Finding::ProgramSilent(silent) } else { Finding::Well }
}

/// What is wrong with how an agent works on its item.
fn look_at_work(work: &Work, times: ServedTimes, with_many: bool, paused: bool) -> Option<Finding> {
    let Work { lease, stall, attempt, cancel, held, without_progress: unmoved, cancelling } = *work;
    if times.pod_silent >= lease {
        return Some(if with_many { Finding::SilentWithMany } else { Finding::LeaseExpired(times.pod_silent) });
    }
    if let Some(told) = cancelling {
        return (told >= cancel).then_some(Finding::CancelIgnored(told));
    }
    if paused {
        return None;
    }
    if held >= attempt {
        return Some(Finding::ItemPastTime(held));
    }
    let still = times.program_silent.min(unmoved).min(held);
    (still >= stall).then_some(Finding::ItemStalled(still))
}

/// Whether an agent, which reports each `period`, is about to be given up for its silence. If many agents stop at once,
/// each stops somewhere between two of its reports, and one of these may be late. So their silences differ by up to two
/// periods.
pub fn is_near_timeout(times: ServedTimes, timeout: Duration, period: Duration) -> bool {
    times.pod_silent.saturating_add(NEAR_TIMEOUT_MARGIN.min(timeout / 3).max(period.saturating_mul(2))) >= timeout
}

/// Whether enough agents of a group (of a node or a gateway) are about to be given up to blame the group.
pub fn is_mass_silence(soon: usize, of: usize) -> bool {
    soon >= MIN_MASS_SILENCE_AGENTS && soon * 2 > of
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn facts(unheard: u64, silent: u64, frozen: u64) -> Facts {
        let second = Duration::from_secs(1);
        let times = ServedTimes {
            expected: 100 * MINUTE,
            pod_silent: second * u32::try_from(unheard).unwrap_or(0),
            program_silent: second * u32::try_from(silent).unwrap_or(0),
            program_frozen: second * u32::try_from(frozen).unwrap_or(0),
        };
        Facts {
            registered: true,
            started: true,
            times,
            startup: MINUTE,
            timeout: MINUTE,
            with_many: false,
            active: false,
            paused: false,
            work: None,
        }
    }

    #[test]
    fn a_lease_a_stall_and_an_attempt_end_each_by_its_own_time() {
        let second = Duration::from_secs(1);
        let work = Work {
            lease: 10 * second,
            stall: 20 * second,
            attempt: 30 * second,
            cancel: 5 * second,
            held: 25 * second,
            without_progress: 25 * second,
            cancelling: None,
        };
        let with = |work, unheard, silent| look(&Facts { work: Some(work), ..facts(unheard, silent, 0) });
        assert_eq!(with(work, 9, 0), Finding::Well);
        assert_eq!(with(work, 10, 0), Finding::LeaseExpired(10 * second));
        assert_eq!(look(&Facts { work: Some(work), with_many: true, ..facts(10, 0, 0) }), Finding::SilentWithMany);
        assert_eq!(with(work, 0, 19), Finding::Well, "its program did something");
        assert_eq!(with(work, 0, 20), Finding::ItemStalled(20 * second));
        assert_eq!(with(Work { without_progress: second, ..work }, 0, 50), Finding::Well, "it said how far it is");
        assert_eq!(with(Work { held: 5 * second, ..work }, 0, 50), Finding::Well, "it has had the item for a moment only");
        assert_eq!(with(Work { held: 30 * second, ..work }, 0, 0), Finding::ItemPastTime(30 * second));
        assert_eq!(with(Work { cancelling: Some(4 * second), ..work }, 0, 50), Finding::Well, "it is on its way");
        assert_eq!(with(Work { cancelling: Some(5 * second), ..work }, 0, 0), Finding::CancelIgnored(5 * second));
        assert_eq!(look(&Facts { work: Some(work), paused: true, ..facts(0, 50, 0) }), Finding::Well);
    }

    #[test]
    fn silence_of_the_pod_is_a_lost_heartbeat_and_waits_when_many_are_silent() {
        assert_eq!(look(&facts(59, 0, 0)), Finding::Well);
        assert_eq!(look(&facts(60, 0, 0)), Finding::HeartbeatLost(MINUTE));
        assert_eq!(look(&Facts { with_many: true, ..facts(60, 0, 0) }), Finding::SilentWithMany);
        assert_eq!(look(&Facts { with_many: true, ..facts(120, 0, 0) }), Finding::HeartbeatLost(2 * MINUTE), "not for ever");
    }

    #[test]
    fn a_start_is_over_when_the_program_was_started_and_not_before() {
        let after = |seconds: u64, registered| {
            let times = ServedTimes { expected: Duration::from_secs(seconds), ..ServedTimes::default() };
            look(&Facts { registered, started: false, times, ..facts(0, 0, 0) })
        };
        for registered in [false, true] {
            assert_eq!(after(59, registered), Finding::Well);
            assert_eq!(after(60, registered), Finding::StartOverdue(MINUTE));
        }
        assert_eq!(look(&facts(0, 0, 0)), Finding::Well);
    }

    #[test]
    fn a_silent_program_counts_when_it_has_something_to_do_and_a_frozen_one_always() {
        assert_eq!(look(&facts(0, 3600, 0)), Finding::Well, "it waits for work");
        assert_eq!(look(&Facts { active: true, ..facts(0, 60, 0) }), Finding::ProgramSilent(MINUTE));
        assert_eq!(look(&facts(0, 3600, 60)), Finding::ProgramSilent(MINUTE));
        assert_eq!(look(&Facts { paused: true, active: true, ..facts(0, 60, 60) }), Finding::Well);
    }

    #[test]
    fn a_group_is_to_blame_when_more_than_half_and_at_least_five_are_silent() {
        assert!(!is_mass_silence(4, 4) && is_mass_silence(5, 9) && !is_mass_silence(5, 10));
        let soon = |unheard, period| is_near_timeout(facts(unheard, 0, 0).times, MINUTE, Duration::from_secs(period));
        for (period, from) in [(0, 40), (10, 40), (11, 38), (20, 20)] {
            assert!(soon(from, period) && !soon(from - 1, period), "a third of a short time-out, and never less than two periods");
        }
    }
}
