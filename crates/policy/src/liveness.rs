//! When each agent last reported, in served time: silence counts only while we could have heard from it.
//!
//! Time counts for an agent while we lead and the gateway that it last used is connected to us. When that gateway
//! disconnects, the agent may use any other one: its time starts anew, and counts while any gateway is connected. When
//! the first gateway connects, or a new leader takes over, the time of all agents starts anew. So a failover, or a
//! rollout of gateways, costs no agent anything.
//!
//! What always holds: an agent's silence never exceeds the time that was ticked while a gateway was connected since its
//! last report, or since a gateway came back.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// The activity of the program in one report. The pod measures on its own clock; only the smaller of its time and ours
/// counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportTimes {
    /// How long the program has shown no activity.
    pub silent: Duration,
    /// How long it has been stopped by a signal; zero if it is not.
    pub frozen: Duration,
}

/// Served times of one agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServedTimes {
    /// Time since the agent is expected. It limits a start.
    pub expected: Duration,
    /// Time since its pod reported.
    pub pod_silent: Duration,
    /// Time since its program showed activity.
    pub program_silent: Duration,
    /// Time for which its program has been stopped.
    pub program_frozen: Duration,
}

#[derive(Clone, Debug, Default)]
struct AgentTimes {
    via: Option<String>,
    frozen: bool,
    times: ServedTimes,
}

/// All agents, by pod uid.
#[derive(Clone, Debug, Default)]
pub struct Liveness {
    /// The sessions of each gateway: a new one may begin before the end of the old one is seen.
    gateways: BTreeMap<String, u32>,
    agents: HashMap<String, AgentTimes>,
}

impl Liveness {
    /// A gateway's session began.
    pub fn connected(&mut self, gateway: &str) {
        let first = self.gateways.is_empty();
        *self.gateways.entry(gateway.to_owned()).or_default() += 1;
        for one in self.agents.values_mut().filter(|one| first || one.via.as_deref() == Some(gateway)) {
            one.times = ServedTimes::default();
        }
    }

    /// A gateway's session ended. Its agents may use any other gateway.
    pub fn disconnected(&mut self, gateway: &str) {
        if let Some(sessions) = self.gateways.get_mut(gateway).filter(|sessions| **sessions > 1) {
            *sessions -= 1;
            return;
        }
        self.gateways.remove(gateway);
        for one in self.agents.values_mut().filter(|one| one.via.as_deref() == Some(gateway)) {
            *one = AgentTimes { via: None, frozen: one.frozen, times: ServedTimes::default() };
        }
    }

    /// From now on this agent is expected to report. Nothing changes if it already is.
    pub fn expect(&mut self, uid: &str) {
        self.agents.entry(uid.to_owned()).or_default();
    }

    /// An agent reported through `gateway`.
    pub fn record_report(&mut self, uid: &str, gateway: &str, heard: ReportTimes) {
        let one = self.agents.entry(uid.to_owned()).or_default();
        one.via = self.gateways.contains_key(gateway).then(|| gateway.to_owned());
        one.frozen = !heard.frozen.is_zero();
        one.times = ServedTimes {
            expected: one.times.expected,
            pod_silent: Duration::ZERO,
            program_silent: one.times.program_silent.min(heard.silent),
            program_frozen: one.times.program_frozen.min(heard.frozen),
        };
    }

    /// The agent cannot report now, and that is not its fault: its time starts anew.
    pub fn restart_times(&mut self, uid: &str) {
        if let Some(one) = self.agents.get_mut(uid) {
            one.times = ServedTimes::default();
        }
    }

    /// The agent is not expected any more.
    pub fn forget(&mut self, uid: &str) {
        self.agents.remove(uid);
    }

    /// `time` passed in which we led. The caller leaves out the time in which the process was suspended.
    pub fn tick(&mut self, time: Duration) {
        if self.gateways.is_empty() {
            return;
        }
        for one in self.agents.values_mut() {
            one.times.expected += time;
            one.times.pod_silent += time;
            one.times.program_silent += time;
            if one.frozen {
                one.times.program_frozen += time;
            }
        }
    }

    /// Its times.
    pub fn times(&self, uid: &str) -> ServedTimes {
        self.agents.get(uid).map(|one| one.times).unwrap_or_default()
    }

    /// The gateway of its last report, while that is connected.
    pub fn via(&self, uid: &str) -> Option<&str> {
        self.agents.get(uid)?.via.as_deref()
    }

    /// Gateways connected now.
    pub fn gateways(&self) -> usize {
        self.gateways.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn without_a_gateway_no_time_counts() {
        let mut all = Liveness::default();
        all.expect("a");
        all.tick(600 * SECOND);
        assert_eq!(all.times("a").pod_silent, Duration::ZERO);
        all.connected("g");
        all.tick(5 * SECOND);
        assert_eq!(all.times("a").pod_silent, 5 * SECOND);
    }

    #[test]
    fn a_lost_gateway_gives_a_whole_period_and_its_agents_still_time_out() {
        let mut all = Liveness::default();
        all.connected("g");
        all.connected("h");
        all.record_report("a", "g", ReportTimes::default());
        all.tick(50 * SECOND);
        all.disconnected("g");
        assert_eq!(all.times("a").pod_silent, Duration::ZERO);
        all.tick(9 * SECOND);
        assert_eq!(all.times("a").pod_silent, 9 * SECOND, "h is there: it could have come by h");
    }

    #[test]
    fn a_gateway_that_comes_again_before_it_is_seen_to_go_is_there() {
        let mut all = Liveness::default();
        all.connected("g");
        all.expect("a");
        all.connected("g");
        all.disconnected("g");
        all.tick(5 * SECOND);
        assert_eq!(all.times("a").pod_silent, 5 * SECOND);
    }

    #[test]
    fn the_program_is_as_silent_as_both_clocks_say() {
        let mut all = Liveness::default();
        all.connected("g");
        all.record_report("a", "g", ReportTimes { silent: 500 * SECOND, frozen: 500 * SECOND });
        assert_eq!(all.times("a").program_silent, Duration::ZERO, "what passed before we led does not count");
        all.tick(20 * SECOND);
        all.record_report("a", "g", ReportTimes { silent: 520 * SECOND, frozen: 520 * SECOND });
        let times = |unheard, silent, frozen| ServedTimes {
            expected: 20 * SECOND + unheard,
            pod_silent: unheard,
            program_silent: silent,
            program_frozen: frozen,
        };
        assert_eq!(all.times("a"), times(Duration::ZERO, 20 * SECOND, 20 * SECOND));
        all.record_report("a", "g", ReportTimes { silent: 3 * SECOND, frozen: Duration::ZERO });
        all.tick(SECOND);
        assert_eq!(all.times("a"), times(SECOND, 4 * SECOND, Duration::ZERO));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Connect(u8),
        Disconnect(u8),
        Heard(u8),
        Tick(u8),
    }

    proptest! {
        #[test]
        fn silence_is_never_more_than_what_was_served(steps in proptest::collection::vec(prop_oneof![
            (0..3_u8).prop_map(Step::Connect), (0..3_u8).prop_map(Step::Disconnect), (0..3_u8).prop_map(Step::Heard), (1..60_u8).prop_map(Step::Tick)], 0..60)) {
            let mut all = Liveness::default();
            let mut connected: BTreeMap<u8, u32> = BTreeMap::new();
            let mut served = Duration::ZERO;
            all.expect("a");
            for step in steps {
                match step {
                    Step::Connect(gateway) => {
                        if connected.is_empty() { served = Duration::ZERO; }
                        *connected.entry(gateway).or_default() += 1;
                        all.connected(&gateway.to_string());
                    }
                    Step::Disconnect(gateway) => {
                        if connected.get(&gateway).is_some_and(|sessions| *sessions > 1) {
                            *connected.entry(gateway).or_default() -= 1;
                        } else {
                            connected.remove(&gateway);
                        }
                        all.disconnected(&gateway.to_string());
                    }
                    Step::Heard(gateway) => { served = Duration::ZERO; all.record_report("a", &gateway.to_string(), ReportTimes::default()); }
                    Step::Tick(seconds) => {
                        let time = u32::from(seconds) * SECOND;
                        if !connected.is_empty() { served += time; }
                        all.tick(time);
                    }
                }
                prop_assert!(all.times("a").pod_silent <= served);
            }
        }
    }
}
