//! How long pools that follow work have been larger than they need to be. Kept in memory: a new leader starts anew, so
//! that no agent leaves too early after a fail-over.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::api::AgentPool;
use crate::cluster::ObjectKey;
use crate::cluster::clock::BootTime;
use crate::policy::scaling::{DesiredSize, ScaleDown as Facts, scale_down};

#[derive(Clone, Copy, Debug)]
struct LowerTarget {
    kept_size: u32,
    since: Option<BootTime>,
}

/// The state of scaling down, by pool.
#[derive(Debug, Default)]
pub struct ScaleDowns(Mutex<HashMap<ObjectKey, LowerTarget>>);

impl ScaleDowns {
    /// The size of a pool now, on its way to `target`, and the time until it may change. `there`: the number of agents
    /// that exist. An agent that left by itself is not created or woken again only to cool down, so a new leader keeps
    /// no more agents than it finds.
    pub fn current_size(&self, pool: &AgentPool, target: DesiredSize, there: u32, empty: Duration) -> (DesiredSize, Option<Duration>) {
        let stored = pool.status.as_ref().and_then(|status| status.desired).and_then(|desired| u32::try_from(desired).ok());
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lower = all.entry(ObjectKey::of(pool)).or_insert(LowerTarget { kept_size: stored.unwrap_or(0), since: None });
        lower.kept_size = lower.kept_size.min(pool.spec.max()).min(there.max(target.count));
        let since = if target.count < lower.kept_size { Some(lower.since.unwrap_or_else(BootTime::now)) } else { None };
        let facts = Facts {
            current: lower.kept_size,
            lower_for: since.map_or(Duration::ZERO, BootTime::elapsed),
            cooldown: Duration::from_secs(pool.spec.cooldown_seconds().into()),
            empty,
        };
        let (desired, wait) = scale_down(target, facts);
        *lower = if wait.is_some() {
            LowerTarget { kept_size: lower.kept_size, since }
        } else {
            LowerTarget { kept_size: desired.count, since: None }
        };
        (desired, wait)
    }

    /// Forgets a deleted pool.
    pub fn forget(&self, key: &ObjectKey) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::scaling::SizeReason;

    /// The size of a pool whose status desires three agents, when `there` agents exist and `needed` are needed.
    fn step(descent: &ScaleDowns, there: u32, needed: u32) -> u32 {
        let mut pool = AgentPool::new(
            "p",
            serde_json::from_value(serde_json::json!({"type": "worker", "agent": {"image": "i", "command": ["c"]}, "scaling": {"max": 5}}))
                .expect("a spec"),
        );
        pool.status = Some(crate::api::agent_pool::AgentPoolStatus { desired: Some(3), ..Default::default() });
        let why = if needed == 0 { SizeReason::NoWork } else { SizeReason::AgentsWanted };
        descent.current_size(&pool, DesiredSize { count: needed, why }, there, Duration::from_secs(60)).0.count
    }

    #[test]
    fn a_new_leader_keeps_existing_agents_and_brings_none_back() {
        assert_eq!(step(&ScaleDowns::default(), 3, 1), 3, "they cool down");
        assert_eq!(step(&ScaleDowns::default(), 0, 0), 0, "they sleep, or left");
        assert_eq!(step(&ScaleDowns::default(), 0, 2), 2, "there is work for two");
        let descent = ScaleDowns::default();
        assert_eq!([3, 2, 3].map(|there| step(&descent, there, 1)), [3, 2, 2], "one left by itself");
    }
}
