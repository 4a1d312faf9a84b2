//! Limits of calls: of one agent, and of one namespace, so that a flood of one team does not affect others. Pure: the
//! time is an argument.

use std::collections::HashMap;
use std::time::Duration;

use crate::policy::sweep::Sweep;

/// The limits of one caller, or of one namespace.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// Calls in flight, long polls included.
    max_in_flight: u32,
    /// Calls in a burst.
    burst: f64,
    /// Calls each second on average.
    per_second: f64,
}

/// A heartbeat each second, a long poll, and commands of its program.
const AGENT_CALL_BOUNDS: Bounds = Bounds { max_in_flight: 16, burst: 60.0, per_second: 20.0 };
/// Some thousands of agents, each with its long poll.
const NAMESPACE_CALL_BOUNDS: Bounds = Bounds { max_in_flight: 8_000, burst: 4_000.0, per_second: 1_000.0 };
/// Unknown tokens from one address: a pod has one, renewed each hour.
const UNKNOWN_TOKEN_BOUNDS: Bounds = Bounds { max_in_flight: u32::MAX, burst: 20.0, per_second: 2.0 };
/// From this number of remembered callers on, idle ones are removed.
const CALLER_SWEEP_THRESHOLD: usize = 20_000;
/// Remembered addresses with unknown tokens. Further addresses share one bucket until some of these are idle.
const MAX_REMEMBERED_ADDRESSES: usize = 20_000;
/// While there are that many, idle addresses are removed at most this often.
const ADDRESS_SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// After this idle time a bucket is full again, and is removed.
const IDLE_CALLER_TTL: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: f64,
    at: Duration,
    in_flight: u32,
}

impl Bucket {
    /// The limit that a call at `now` exceeds, if any.
    fn exceeded_limit(&mut self, bounds: &Bounds, now: Duration) -> Option<LimitReached> {
        self.left = (self.left + now.saturating_sub(self.at).as_secs_f64() * bounds.per_second).min(bounds.burst);
        self.at = now;
        if self.in_flight >= bounds.max_in_flight {
            return Some(LimitReached::InFlight);
        }
        (self.left < 1.0).then_some(LimitReached::Rate)
    }

    fn take(&mut self) {
        self.left -= 1.0;
        self.in_flight += 1;
    }
}

/// The limit that a call exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitReached {
    /// Too many calls in flight.
    InFlight,
    /// Too many calls in a short time.
    Rate,
}

/// The owner of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitOwner {
    /// The agent's own.
    Agent,
    /// Its namespace's.
    Namespace,
}

/// The buckets of all callers of one kind.
#[derive(Debug)]
struct Buckets {
    by_name: HashMap<String, Bucket>,
    sweep: Sweep,
}

impl Default for Buckets {
    fn default() -> Self {
        Self { by_name: HashMap::new(), sweep: Sweep::new(CALLER_SWEEP_THRESHOLD) }
    }
}

impl Buckets {
    /// The bucket of `name`. Idle buckets are swept, so that there are at most twice as many buckets as callers that
    /// are not idle.
    fn get(&mut self, name: &str, bounds: &Bounds, now: Duration) -> &mut Bucket {
        if self.sweep.is_due(self.by_name.len()) {
            self.by_name.retain(|_, bucket| bucket.in_flight > 0 || now.saturating_sub(bucket.at) < IDLE_CALLER_TTL);
            self.sweep.done(self.by_name.len());
        }
        self.by_name.entry(name.to_owned()).or_insert(Bucket { left: bounds.burst, at: now, in_flight: 0 })
    }
}

/// The buckets of addresses that sent unknown tokens.
#[derive(Debug, Default)]
struct Strangers {
    by_address: HashMap<String, Bucket>,
    /// When idle ones were last removed.
    swept: Duration,
}

impl Strangers {
    fn get(&mut self, address: &str, now: Duration) -> &mut Bucket {
        let mut name = address;
        if self.by_address.len() >= MAX_REMEMBERED_ADDRESSES && !self.by_address.contains_key(address) {
            if now.saturating_sub(self.swept) >= ADDRESS_SWEEP_INTERVAL {
                self.by_address.retain(|_, bucket| now.saturating_sub(bucket.at) < IDLE_CALLER_TTL);
                self.swept = now;
            }
            if self.by_address.len() >= MAX_REMEMBERED_ADDRESSES {
                name = ""; // no address is empty
            }
        }
        self.by_address.entry(name.to_owned()).or_insert(Bucket { left: UNKNOWN_TOKEN_BOUNDS.burst, at: now, in_flight: 0 })
    }
}

/// The buckets of all callers.
#[derive(Debug, Default)]
pub struct Limits {
    agents: Buckets,
    namespaces: Buckets,
    unknown_tokens: Strangers,
}

impl Limits {
    /// A call of the agent `uid` in `namespace` begins at `now` (on any monotonic clock).
    pub fn begin(&mut self, namespace: &str, uid: &str, now: Duration) -> Result<(), (LimitOwner, LimitReached)> {
        let agent = self.agents.get(uid, &AGENT_CALL_BOUNDS, now);
        if let Some(full) = agent.exceeded_limit(&AGENT_CALL_BOUNDS, now) {
            return Err((LimitOwner::Agent, full));
        }
        let all = self.namespaces.get(namespace, &NAMESPACE_CALL_BOUNDS, now);
        if let Some(full) = all.exceeded_limit(&NAMESPACE_CALL_BOUNDS, now) {
            return Err((LimitOwner::Namespace, full));
        }
        agent.take();
        all.take();
        Ok(())
    }

    /// A caller at `address` sent an unknown token. Whether the API server may be asked about it.
    pub fn may_review_unknown(&mut self, address: &str, now: Duration) -> bool {
        let bucket = self.unknown_tokens.get(address, now);
        let may = bucket.exceeded_limit(&UNKNOWN_TOKEN_BOUNDS, now).is_none();
        if may {
            bucket.left -= 1.0;
        }
        may
    }

    /// A call that began has ended.
    pub fn end(&mut self, namespace: &str, uid: &str) {
        for bucket in [self.agents.by_name.get_mut(uid), self.namespaces.by_name.get_mut(namespace)].into_iter().flatten() {
            bucket.in_flight = bucket.in_flight.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_agents_flood_is_its_own() {
        let mut limits = Limits::default();
        let now = Duration::from_secs(1);
        for _ in 0..60 {
            assert_eq!(limits.begin("n", "a", now), Ok(()));
            limits.end("n", "a");
        }
        assert_eq!(limits.begin("n", "a", now), Err((LimitOwner::Agent, LimitReached::Rate)));
        assert_eq!(limits.begin("n", "b", now), Ok(()));
        assert_eq!(limits.begin("n", "a", now + Duration::from_secs(1)), Ok(()));
    }

    #[test]
    fn so_many_at_once_and_a_place_that_is_given_back_is_free() {
        let mut limits = Limits::default();
        for _ in 0..AGENT_CALL_BOUNDS.max_in_flight {
            assert_eq!(limits.begin("n", "a", Duration::ZERO), Ok(()));
        }
        assert_eq!(limits.begin("n", "a", Duration::ZERO), Err((LimitOwner::Agent, LimitReached::InFlight)));
        limits.end("n", "a");
        assert_eq!(limits.begin("n", "a", Duration::ZERO), Ok(()));
    }

    #[test]
    fn one_address_cannot_have_tokens_reviewed_without_end() {
        let mut limits = Limits::default();
        let asked = (0..1_000).filter(|_| limits.may_review_unknown("10.0.0.1", Duration::ZERO)).count();
        assert_eq!(asked, 20);
        assert!(limits.may_review_unknown("10.0.0.2", Duration::ZERO));
    }

    #[test]
    fn one_namespaces_flood_is_its_own() {
        let mut limits = Limits::default();
        let mut refused = None;
        for agent in 0..1_000 {
            for _ in 0..10 {
                refused = limits.begin("loud", &agent.to_string(), Duration::ZERO).err().or(refused);
            }
        }
        assert_eq!(refused, Some((LimitOwner::Namespace, LimitReached::Rate)));
        assert_eq!(limits.begin("quiet", "b", Duration::ZERO), Ok(()));
    }

    #[test]
    fn callers_that_rest_are_forgotten_and_those_in_flight_are_not() {
        let mut limits = Limits::default();
        assert_eq!(limits.begin("n", "in-flight", Duration::ZERO), Ok(()));
        for agent in 0..5 * CALLER_SWEEP_THRESHOLD {
            let now = Duration::from_millis(10 * u64::try_from(agent).expect("small"));
            let (namespace, agent) = (format!("n{agent}"), agent.to_string());
            assert_eq!(limits.begin(&namespace, &agent, now), Ok(()));
            limits.end(&namespace, &agent);
        }
        assert!(limits.agents.by_name.len() <= CALLER_SWEEP_THRESHOLD && limits.namespaces.by_name.len() <= CALLER_SWEEP_THRESHOLD);
        assert_eq!(limits.agents.by_name["in-flight"].in_flight, 1);
    }

    #[test]
    fn more_addresses_than_are_remembered_share_what_one_may() {
        let mut limits = Limits::default();
        let now = Duration::from_secs(1000);
        let asked = (0..3 * MAX_REMEMBERED_ADDRESSES).filter(|address| limits.may_review_unknown(&address.to_string(), now)).count();
        assert_eq!((asked, limits.unknown_tokens.by_address.len()), (MAX_REMEMBERED_ADDRESSES + 20, MAX_REMEMBERED_ADDRESSES + 1));
        assert!(limits.may_review_unknown("0", now), "one that is known has its own");
        let later = now + IDLE_CALLER_TTL;
        assert!((0..100).all(|address| limits.may_review_unknown(&format!("new-{address}"), later)), "and new ones have when those rest");
        assert!(limits.unknown_tokens.by_address.len() < MAX_REMEMBERED_ADDRESSES);
    }
}
