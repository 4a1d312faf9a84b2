//! The limits of calls: how many run at once, and how many an agent makes within a minute. Pure: the time comes in.

use std::collections::{BTreeMap, VecDeque};

use crate::definition::Definition;

/// The period of the limit of an agent.
const MINUTE_MILLISECONDS: u64 = 60_000;
/// The most starts that are remembered, of all agents.
const MAX_REMEMBERED_STARTS: usize = 200_000;
/// The most wrong calls of one caller within the period: each has a record in the audit log.
const MAX_WRONG_CALLS_PER_MINUTE: u32 = 600;
/// When to try again after a call that found no place.
const RETRY_MILLISECONDS: u64 = 1000;

/// Why a call has no place now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy {
    /// The limit, in one word.
    pub rule: &'static str,
    /// When the same call may be admitted.
    pub retry_after_milliseconds: u64,
}

/// The calls that run, and the starts of the last minute.
#[derive(Debug)]
pub struct Admission {
    max_running: u32,
    running: u32,
    /// Calls that run, by program.
    by_program: BTreeMap<String, u32>,
    /// The times of the starts within the last minute, by caller and program.
    starts: BTreeMap<(String, String), VecDeque<u64>>,
    remembered: usize,
}

impl Admission {
    /// No call runs. `max_running`: the most calls at once, of all programs.
    pub fn new(max_running: u32) -> Self {
        Self { max_running, running: 0, by_program: BTreeMap::new(), starts: BTreeMap::new(), remembered: 0 }
    }

    /// A call was wrong. Busy: the caller made too many of them, and this one gets no record.
    pub fn wrong(&mut self, caller: &str, now_milliseconds: u64) -> Result<(), Busy> {
        // No program has an empty name.
        self.take((caller.to_owned(), String::new()), "wrongCallsPerMinute", MAX_WRONG_CALLS_PER_MINUTE, now_milliseconds)
    }

    /// Admits a call. An admitted call must [end](Self::end).
    pub fn begin(&mut self, caller: &str, program: &Definition, now_milliseconds: u64) -> Result<(), Busy> {
        let busy = |rule, retry_after_milliseconds| Err(Busy { rule, retry_after_milliseconds });
        if self.running >= self.max_running {
            return busy("maxRunning", RETRY_MILLISECONDS);
        }
        if self.by_program.get(&program.name).copied().unwrap_or(0) >= program.limits.concurrency {
            return busy("concurrency", RETRY_MILLISECONDS);
        }
        let key = (caller.to_owned(), program.name.clone());
        self.take(key, "perAgentPerMinute", program.limits.per_agent_per_minute, now_milliseconds)?;
        self.running += 1;
        *self.by_program.entry(program.name.clone()).or_default() += 1;
        Ok(())
    }

    /// Takes one of the starts that a caller has within a minute.
    fn take(&mut self, key: (String, String), rule: &'static str, most: u32, now_milliseconds: u64) -> Result<(), Busy> {
        let busy = |rule, retry_after_milliseconds| Err(Busy { rule, retry_after_milliseconds });
        if let Some(starts) = self.starts.get_mut(&key) {
            self.remembered -= forget(starts, now_milliseconds);
            let most = usize::try_from(most).unwrap_or(usize::MAX);
            if let Some(oldest) = starts.front().filter(|_| starts.len() >= most) {
                return busy(rule, (oldest + MINUTE_MILLISECONDS).saturating_sub(now_milliseconds).max(1));
            }
        }
        if self.remembered >= MAX_REMEMBERED_STARTS {
            self.remembered = 0;
            self.starts.retain(|_, starts| {
                forget(starts, now_milliseconds);
                self.remembered += starts.len();
                !starts.is_empty()
            });
            if self.remembered >= MAX_REMEMBERED_STARTS {
                return busy("tooManyCallers", RETRY_MILLISECONDS);
            }
        }
        self.starts.entry(key).or_default().push_back(now_milliseconds);
        self.remembered += 1;
        Ok(())
    }

    /// An admitted call of this program is over.
    pub fn end(&mut self, program: &str) {
        self.running = self.running.saturating_sub(1);
        if let Some(running) = self.by_program.get_mut(program) {
            *running = running.saturating_sub(1);
            if *running == 0 {
                self.by_program.remove(program);
            }
        }
    }

    /// Calls that run.
    pub fn running(&self) -> u32 {
        self.running
    }
}

/// Removes starts that are older than a minute; returns how many.
fn forget(starts: &mut VecDeque<u64>, now_milliseconds: u64) -> usize {
    let old = starts.iter().take_while(|start| now_milliseconds.saturating_sub(**start) >= MINUTE_MILLISECONDS).count();
    starts.drain(..old);
    old
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::definition::{Allowed, load};

    fn program(name: &str, limits: &str) -> Definition {
        let allowed = Allowed { commands: None, credentials: Vec::new(), max_seconds: 60 };
        let text = format!("---\nname: {name}\ndescription: d\ncommand: /bin/tool\nlimits: {limits}\n---\n");
        load(text.as_bytes(), &allowed).expect("it is valid")
    }

    #[test]
    fn each_limit_refuses_and_says_when_to_try_again() {
        let (one, two) = (program("one", "{concurrency: 1, perAgentPerMinute: 2}"), program("two", "{}"));
        let mut admission = Admission::new(2);
        assert_eq!(admission.begin("a", &one, 0), Ok(()));
        assert_eq!(admission.begin("b", &one, 0).map_err(|busy| busy.rule), Err("concurrency"));
        assert_eq!(admission.begin("a", &two, 0), Ok(()));
        assert_eq!(admission.begin("b", &two, 0).map_err(|busy| busy.rule), Err("maxRunning"));
        admission.end("one");
        assert_eq!(admission.begin("a", &one, 10_000), Ok(()));
        admission.end("one");
        let refused = Busy { rule: "perAgentPerMinute", retry_after_milliseconds: 40_000 };
        assert_eq!(admission.begin("a", &one, 20_000), Err(refused));
        assert_eq!(admission.begin("b", &one, 20_000), Ok(()), "another agent");
        admission.end("one");
        assert_eq!(admission.begin("a", &one, 60_000), Ok(()), "a minute after the first");
    }

    #[test]
    fn wrong_calls_of_a_caller_are_counted() {
        let mut admission = Admission::new(1);
        (0..MAX_WRONG_CALLS_PER_MINUTE).for_each(|_| admission.wrong("a", 0).expect("a place"));
        assert_eq!(admission.wrong("a", 59_000), Err(Busy { rule: "wrongCallsPerMinute", retry_after_milliseconds: 1000 }));
        assert_eq!(admission.wrong("b", 59_000), Ok(()));
        assert_eq!(admission.wrong("a", 60_000), Ok(()));
    }

    #[test]
    fn what_callers_make_us_remember_is_bounded_and_forgotten() {
        let program = program("p", "{perAgentPerMinute: 6000}");
        let mut admission = Admission::new(1);
        for number in 0..MAX_REMEMBERED_STARTS {
            admission.begin(&format!("caller-{number}"), &program, 0).expect("a place");
            admission.end("p");
        }
        assert_eq!(admission.begin("one-more", &program, 1).map_err(|busy| busy.rule), Err("tooManyCallers"));
        assert_eq!(admission.begin("one-more", &program, MINUTE_MILLISECONDS), Ok(()));
        assert_eq!((admission.starts.len(), admission.remembered), (1, 1));
    }

    proptest! {
        /// In any order of calls, no limit is passed, and the number of remembered starts is right.
        #[test]
        fn no_limit_is_passed(steps in proptest::collection::vec((0..3_u8, 0..2_u8, 0..20_000_u64, any::<bool>()), 1..200)) {
            let programs = [program("p", "{concurrency: 2, perAgentPerMinute: 3}"), program("q", "{concurrency: 1, perAgentPerMinute: 5}")];
            let (mut admission, mut now, mut running) = (Admission::new(2), 0, Vec::new());
            let mut begun: Vec<(u8, u8, u64)> = Vec::new();
            for (caller, which, passed, ends) in steps {
                now += passed;
                let program = &programs[usize::from(which)];
                if admission.begin(&caller.to_string(), program, now).is_ok() {
                    running.push(program.name.clone());
                    begun.push((caller, which, now));
                }
                prop_assert!(running.len() <= 2);
                for program in &programs {
                    prop_assert!(running.iter().filter(|name| **name == program.name).count() <= program.limits.concurrency as usize);
                }
                let within = begun.iter().filter(|(a, b, at)| (*a, *b) == (caller, which) && now - at < MINUTE_MILLISECONDS).count();
                prop_assert!(within <= program.limits.per_agent_per_minute as usize);
                if ends && let Some(name) = running.pop() {
                    admission.end(&name);
                }
                prop_assert_eq!(admission.running() as usize, running.len());
                prop_assert_eq!(admission.remembered, admission.starts.values().map(VecDeque::len).sum::<usize>());
            }
        }
    }
}
