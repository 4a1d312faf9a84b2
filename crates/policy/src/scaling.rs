//! The desired size of a pool, and its reason. It does not know the single agents: that is `pool`.

use std::time::Duration;

/// What decides the size of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// `spec.replicas`: set by a person or an autoscaler, it overrides all but `room`.
    pub replicas: Option<u32>,
    /// Lower bound of a pool that has something to do.
    pub min: u32,
    /// Upper bound.
    pub max: u32,
    /// The work, for pools that follow it.
    pub work: Work,
    /// Agents that budgets above still allow; `None`: no limit is known.
    pub room: Option<u32>,
}

/// What is known of the work of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// The pool does not follow work.
    Ignored,
    /// The pool follows work, and how much there is is not known yet: it stays as it is.
    Unknown {
        /// Agents wanted so far.
        current: u32,
    },
    /// Counted.
    Known {
        /// Items that an agent of the pool could take now.
        ready: u64,
        /// Items that its agents hold.
        leased: u64,
        /// Items for which one agent is wanted; 0 counts as 1.
        items_per_agent: u32,
        /// Agents wanted beyond that.
        idle_buffer: u32,
    },
}

/// The desired size, and its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DesiredSize {
    /// Agents wanted.
    pub count: u32,
    /// What decided.
    pub why: SizeReason,
}

/// What decided the size of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeReason {
    /// `spec.replicas`.
    ReplicasSet,
    /// The lower bound.
    AtMinimum,
    /// The work asks for it.
    AgentsWanted,
    /// The upper bound.
    MaxReached,
    /// The upper bound is 0.
    Drained,
    /// There is no work.
    NoWork,
    /// The amount of work is not known yet.
    WorkUnknown,
    /// Fewer agents would be enough, but not for long enough.
    CoolingDown,
    /// Budgets above leave no more room.
    NoRoom,
}

/// The target size. Never above `max` (or `replicas`) and never above `room`.
pub fn desired(facts: &Facts) -> DesiredSize {
    let Facts { replicas, min, max, work, room } = *facts;
    let (count, why) = match (replicas, work) {
        (Some(replicas), _) => (replicas, SizeReason::ReplicasSet),
        (None, _) if max == 0 => (0, SizeReason::Drained),
        (None, Work::Ignored) => (min.min(max), SizeReason::AtMinimum),
        (None, Work::Unknown { current: so_far }) => (so_far.min(max), SizeReason::WorkUnknown),
        (None, Work::Known { ready: 0, leased: 0, .. }) => (0, SizeReason::NoWork),
        (None, Work::Known { ready, leased, items_per_agent, idle_buffer }) => {
            let wanted = ready.saturating_add(leased).div_ceil(u64::from(items_per_agent.max(1))).saturating_add(u64::from(idle_buffer));
            let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
            match wanted {
                wanted if wanted >= max => (max, SizeReason::MaxReached),
                wanted if wanted <= min => (min.min(max), SizeReason::AtMinimum),
                wanted => (wanted, SizeReason::AgentsWanted),
            }
        }
    };
    match room {
        Some(room) if room < count => DesiredSize { count: room, why: SizeReason::NoRoom },
        Some(_) | None => DesiredSize { count, why },
    }
}

/// How a pool that follows work scales down. Scaling down waits; scaling up does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleDown {
    /// Agents wanted so far.
    pub current: u32,
    /// For how long fewer agents would have been enough.
    pub lower_for: Duration,
    /// How long that must last before some agents leave ...
    pub cooldown: Duration,
    /// ... and before all do.
    pub empty: Duration,
}

/// The size now, on the way down to `target`, and how long to wait if it is not reached yet.
pub fn scale_down(target: DesiredSize, descent: ScaleDown) -> (DesiredSize, Option<Duration>) {
    let ScaleDown { current: held, lower_for, cooldown, empty } = descent;
    if target.count >= held {
        return (target, None);
    }
    // A change by a person or a budget takes effect at once.
    let patience = match target.why {
        SizeReason::NoWork => empty,
        SizeReason::AgentsWanted | SizeReason::AtMinimum | SizeReason::MaxReached => cooldown,
        SizeReason::ReplicasSet | SizeReason::Drained | SizeReason::WorkUnknown | SizeReason::CoolingDown | SizeReason::NoRoom => {
            Duration::ZERO
        }
    };
    match patience.checked_sub(lower_for).filter(|left| !left.is_zero()) {
        Some(left) => (DesiredSize { count: held, why: SizeReason::CoolingDown }, Some(left)),
        None => (target, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn facts(work: Work) -> Facts {
        Facts { replicas: None, min: 1, max: 5, work, room: None }
    }
    fn known(ready: u64, leased: u64) -> Work {
        Work::Known { ready, leased, items_per_agent: 2, idle_buffer: 0 }
    }

    #[test]
    fn the_table_of_the_design() {
        let cases = [
            (facts(Work::Ignored), 1, SizeReason::AtMinimum),
            (Facts { max: 0, ..facts(Work::Ignored) }, 0, SizeReason::Drained),
            (Facts { replicas: Some(9), ..facts(Work::Ignored) }, 9, SizeReason::ReplicasSet),
            (Facts { replicas: Some(0), ..facts(known(9, 0)) }, 0, SizeReason::ReplicasSet),
            (facts(Work::Unknown { current: 3 }), 3, SizeReason::WorkUnknown),
            (facts(known(0, 0)), 0, SizeReason::NoWork),
            (facts(known(1, 0)), 1, SizeReason::AtMinimum),
            (facts(known(5, 0)), 3, SizeReason::AgentsWanted),
            (facts(known(3, 2)), 3, SizeReason::AgentsWanted),
            (facts(known(900, 0)), 5, SizeReason::MaxReached),
            (Facts { room: Some(2), ..facts(known(900, 0)) }, 2, SizeReason::NoRoom),
            (Facts { room: Some(2), replicas: Some(3), ..facts(Work::Ignored) }, 2, SizeReason::NoRoom),
        ];
        for (facts, count, why) in cases {
            assert_eq!(desired(&facts), DesiredSize { count, why }, "{facts:?}");
        }
    }

    #[test]
    fn steps_down_wait_and_the_one_to_nothing_as_long_as_the_queue_says() {
        let second = Duration::from_secs(1);
        let at = |count, why, lower_for: u32| {
            let descent = ScaleDown { current: 5, lower_for: lower_for * second, cooldown: 30 * second, empty: 10 * second };
            let (desired, wait) = scale_down(DesiredSize { count, why }, descent);
            (desired.count, wait.map(|wait| wait.as_secs()))
        };
        assert_eq!(at(6, SizeReason::AgentsWanted, 0), (6, None), "up at once");
        assert_eq!(at(2, SizeReason::AgentsWanted, 29), (5, Some(1)));
        assert_eq!(at(2, SizeReason::AgentsWanted, 30), (2, None));
        assert_eq!(at(0, SizeReason::NoWork, 9), (5, Some(1)));
        assert_eq!(at(0, SizeReason::NoWork, 10), (0, None));
        assert_eq!(at(0, SizeReason::Drained, 0), (0, None), "a person says so");
    }

    proptest! {
        #[test]
        fn never_above_the_bounds(replicas in proptest::option::of(0u32..20), min in 0u32..20, max in 0u32..20, room in proptest::option::of(0u32..20),
                                  ready in 0u64..u64::MAX, leased in 0u64..u64::MAX, per in 0u32..5, buffer in 0u32..u32::MAX) {
            let work = Work::Known { ready, leased, items_per_agent: per, idle_buffer: buffer };
            let got = desired(&Facts { replicas, min, max, work, room }).count;
            prop_assert!(got <= replicas.unwrap_or(max));
            prop_assert!(room.is_none_or(|room| got <= room));
        }

        #[test]
        fn more_work_never_wants_fewer(ready in 0u64..1000, more in 0u64..1000, per in 1u32..5) {
            let at = |ready| desired(&Facts { replicas: None, min: 0, max: 100, room: None,
                work: Work::Known { ready, leased: 0, items_per_agent: per, idle_buffer: 0 } }).count;
            prop_assert!(at(ready) <= at(ready + more));
        }
    }
}
