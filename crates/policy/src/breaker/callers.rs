//! Which agents call what a circuit guards, and whose calls failed. So one agent alone cannot make a circuit refuse
//! others.
//!
//! What always holds: if only one agent calls, its failures open the circuit. If others call as well, one of them must
//! fail too. The number of remembered agents is bounded.

use std::collections::BTreeMap;

/// The agents of one circuit whose calls are remembered: enough to know that there is another one.
const MAX_REMEMBERED_CALLERS: usize = 8;
/// The agents of one circuit whose failures are remembered.
const MAX_REMEMBERED_FAILED: usize = 2;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Calls {
    under_way: u32,
    /// When a call last began or ended, in milliseconds.
    last: u64,
}

/// The agents that called recently.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Callers {
    calling: BTreeMap<String, Calls>,
    /// When a call of each agent last failed, in milliseconds.
    failed: BTreeMap<String, u64>,
}

impl Callers {
    /// A call of an agent begins.
    pub fn began(&mut self, agent: &str, now: u64) {
        if let Some(calls) = self.calls(agent) {
            *calls = Calls { under_way: calls.under_way.saturating_add(1), last: now };
        }
    }

    /// A call ended, and whether it failed.
    pub fn ended(&mut self, agent: &str, now: u64, failed: bool) {
        if let Some(calls) = self.calls(agent) {
            *calls = Calls { under_way: calls.under_way.saturating_sub(1), last: now };
        }
        if failed {
            self.failed.insert(agent.to_owned(), now);
            if self.failed.len() > MAX_REMEMBERED_FAILED {
                let oldest = self.failed.iter().min_by_key(|(_, at)| **at).map(|(agent, _)| agent.clone());
                oldest.map(|agent| self.failed.remove(&agent));
            }
        }
    }

    /// Whether failures of this agent say nothing about the guarded thing: other agents call it now, or called it
    /// within the last `window` milliseconds, and none of them failed in that time.
    pub fn fails_alone(&self, agent: &str, now: u64, window: u64) -> bool {
        let lately = |at: u64| now.saturating_sub(at) <= window;
        let calls = self.calling.iter().any(|(other, calls)| other != agent && (calls.under_way > 0 || lately(calls.last)));
        let failed = self.failed.iter().any(|(other, at)| other != agent && lately(*at));
        calls && !failed
    }

    /// The calls of an agent. `None`: it is not remembered, and all remembered agents have calls under way.
    fn calls(&mut self, agent: &str) -> Option<&mut Calls> {
        if !self.calling.contains_key(agent) && self.calling.len() >= MAX_REMEMBERED_CALLERS {
            let quiet = self.calling.iter().filter(|(_, calls)| calls.under_way == 0).min_by_key(|(_, calls)| calls.last);
            let quiet = quiet.map(|(agent, _)| agent.clone())?;
            self.calling.remove(&quiet);
        }
        Some(self.calling.entry(agent.to_owned()).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = 60_000;

    #[test]
    fn one_agent_alone_is_believed_only_where_no_other_calls() {
        let mut callers = Callers::default();
        callers.began("a", 0);
        callers.ended("a", 10, true);
        assert!(!callers.fails_alone("a", 10, WINDOW), "nobody else can say whether it works");
        callers.began("b", 20);
        assert!(callers.fails_alone("a", 20, WINDOW));
        assert!(callers.fails_alone("a", 20 + 10 * WINDOW, WINDOW), "a long call is one that goes on");
        callers.ended("b", 1_000_000, false);
        assert!(callers.fails_alone("a", 1_000_000 + WINDOW, WINDOW));
        assert!(!callers.fails_alone("a", 1_000_001 + WINDOW, WINDOW), "the other has left");
        callers.ended("a", 1_000_000, true);
        assert!(!callers.fails_alone("b", 1_000_100, WINDOW), "two have failed");
        callers.ended("b", 1_000_100, true);
        assert!(!callers.fails_alone("a", 1_000_100, WINDOW));
    }

    #[test]
    fn few_agents_are_remembered_and_another_is_always_known() {
        let mut callers = Callers::default();
        for number in 0..10_000u64 {
            let agent = format!("agent-{number}");
            callers.began(&agent, number);
            callers.ended(&agent, number, number % 2 == 0);
            assert!(callers.calling.len() <= 8 && callers.failed.len() <= 2, "{number}");
        }
        (0..100).for_each(|number| callers.began(&format!("busy-{number}"), 20_000));
        assert_eq!(callers.calling.len(), MAX_REMEMBERED_CALLERS);
        assert!(callers.calling.values().all(|calls| calls.under_way == 1), "those that call are not forgotten: {callers:?}");
    }
}
