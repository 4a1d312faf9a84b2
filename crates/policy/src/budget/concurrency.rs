//! Rates of calls, and capacity for agents. (Calls in flight are counted where they are held: see [`super::NodeSpec`].)

/// The rate of calls of one caller: even, with a burst of one second. It is a single number, so one for each agent
/// costs little.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rate {
    /// When the burst is fully available again, in microseconds.
    even_at: i64,
}

const MICROS_PER_SECOND: i64 = 1_000_000;

impl Rate {
    /// Allows one more call at `now`, in microseconds of a steady clock. `Err`: the microseconds until the next call is
    /// allowed. `per_second` 0 refuses every call.
    pub fn call(&mut self, now: i64, per_second: u32) -> Result<(), i64> {
        if per_second == 0 {
            return Err(MICROS_PER_SECOND);
        }
        let step = MICROS_PER_SECOND / i64::from(per_second).min(MICROS_PER_SECOND);
        let even_at = self.even_at.max(now).min(now.saturating_add(MICROS_PER_SECOND)).saturating_add(step);
        let early = even_at.saturating_sub(now).saturating_sub(MICROS_PER_SECOND);
        if early > 0 {
            return Err(early);
        }
        self.even_at = even_at;
        Ok(())
    }
}

/// How many more fit under all of these limits, each with its used amount. `None`: there is no limit. Budgets above one
/// another, `perNamespace` and the whole cluster each give one limit.
pub fn room(limits: impl IntoIterator<Item = (Option<u64>, u64)>) -> Option<u64> {
    limits.into_iter().filter_map(|(max, used)| max.map(|max| max.saturating_sub(used))).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_burst_of_a_second_and_then_evenly() {
        let mut rate = Rate::default();
        let taken = (0..100).filter(|_| rate.call(5 * MICROS_PER_SECOND, 20).is_ok()).count();
        assert_eq!(taken, 20);
        assert_eq!(rate.call(5 * MICROS_PER_SECOND, 20), Err(50_000));
        assert_eq!(rate.call(5 * MICROS_PER_SECOND + 50_000, 20), Ok(()));
        assert!(rate.call(5 * MICROS_PER_SECOND + 50_001, 20).is_err());
        assert!(Rate::default().call(0, 0).is_err());
    }

    #[test]
    fn the_tightest_limit_is_the_room() {
        assert_eq!(room([(Some(10), 4), (None, 900), (Some(3), 1)]), Some(2));
        assert_eq!(room([(Some(3), 7)]), Some(0));
        assert_eq!(room([(None, 7)]), None);
    }

    proptest! {
        #[test]
        fn no_second_has_more_than_two_seconds_worth(steps in proptest::collection::vec(0i64..200_000, 1..300), per_second in 1u32..50) {
            let (mut rate, mut now, mut taken) = (Rate::default(), 0_i64, Vec::new());
            for step in steps {
                now += step;
                match rate.call(now, per_second) {
                    Ok(()) => taken.push(now),
                    Err(wait) => {
                        let mut later = rate;
                        prop_assert!(later.call(now + wait, per_second).is_ok(), "after that long it is taken");
                    }
                }
            }
            for (at, first) in taken.iter().enumerate() {
                let within = taken[at..].iter().take_while(|time| **time < first + MICROS_PER_SECOND).count();
                prop_assert!(within <= 2 * usize::try_from(per_second).unwrap_or(0));
            }
        }
    }
}
