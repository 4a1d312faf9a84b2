//! The two circuits of a pool's work, its own and its project's, asked and told together.

use std::time::Duration;

use super::{BeginRefusal, Circuits};
use crate::cluster::ObjectKey;
use crate::governor::breaker::circuit_standing::CircuitStanding;
use crate::governor::breaker::key::Key;
use crate::policy::breaker::work::{Permits, admit, is_bound, speaks_for_project};
use crate::policy::breaker::{Answer, Guard, Outcome, Rejection};

/// How the circuits stand that may stop a pool's work.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolCircuits {
    /// Its own.
    pub own: CircuitStanding,
    /// That of its project. None: it does not hold for the pool, whose own is only observed or held closed.
    pub project: Option<CircuitStanding>,
}

impl PoolCircuits {
    /// Whether an attempt would be refused now.
    pub fn refuses(&self) -> bool {
        self.own.refuses.is_some() || self.project.as_ref().is_some_and(|project| project.refuses.is_some())
    }

    /// How many may try at once whether work succeeds again, if that is being tried or may be.
    pub fn probes(&self) -> Option<u32> {
        self.own.probes.into_iter().chain(self.project.as_ref().and_then(|project| project.probes)).min()
    }
}

impl Circuits {
    /// Whether an attempt of a pool may begin, which takes `within` at most. What came of it is told with
    /// [`complete_work`](Self::complete_work).
    pub async fn admit_work(&self, pool: &ObjectKey, within: Duration) -> Result<Permits, BeginRefusal> {
        let name = |rejection: &Rejection| rejection.name(if rejection.guard == Guard::Project { &pool.namespace } else { &pool.name });
        self.answered(|| self.ask_work(pool, within), name).await
    }

    fn ask_work(&self, pool: &ObjectKey, within: Duration) -> Result<Answer<Permits>, BeginRefusal> {
        let mut state = self.lock();
        if !state.ready {
            return Err(BeginRefusal::Away("the circuit breakers are being read; try again"));
        }
        let own = state.slot(&pool.name, &Key::work(&pool.namespace, &pool.name));
        let project = state.slot("", &Key::project(&pool.namespace));
        let at = state.at();
        let within = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
        let mut answer = Answer::Store;
        // Once more where there was nowhere to store an opening.
        for _ in 0..2 {
            let Some((one, other)) = state.circuits.get_both_mut(&own, &project) else { break };
            answer = admit(&mut one.circuit, &mut other.circuit, at, within);
            let moved = [state.after(&own), state.after(&project)];
            if moved.contains(&true) {
                self.moved();
            }
            if answer != Answer::Store || (own.home.is_some() && project.home.is_some()) {
                break;
            }
        }
        Ok(answer)
    }

    /// What came of an attempt; of a failure, why, for people.
    pub fn complete_work(&self, pool: &ObjectKey, permits: &Permits, outcome: Outcome, why: &str) {
        self.complete(&Key::work(&pool.namespace, &pool.name), &permits.pool, outcome, why);
        if let Some(permit) = &permits.project {
            self.complete(&Key::project(&pool.namespace), permit, outcome, why);
        }
    }

    /// Something of a pool's work failed for which nobody has a permit.
    pub fn failed_work(&self, pool: &ObjectKey, why: &str) {
        if !self.is_ready() {
            return;
        }
        let key = Key::work(&pool.namespace, &pool.name);
        // As it was before this failure.
        let speaks =
            self.with(&pool.name, &key, |state, slot| state.circuits.get_mut(slot).is_some_and(|kept| speaks_for_project(&kept.circuit)));
        self.failed(pool, &key, why);
        if speaks {
            self.failed(pool, &Key::project(&pool.namespace), why);
        }
    }

    /// How the circuits of a pool's work stand. None: nothing is known yet.
    pub fn work_of(&self, pool: &ObjectKey) -> Option<PoolCircuits> {
        let key = Key::work(&pool.namespace, &pool.name);
        let own = self.state(pool, &key)?;
        let bound =
            self.with(&pool.name, &key, |state, slot| state.circuits.get_mut(slot).is_some_and(|kept| is_bound(kept.circuit.settings())));
        let project = if bound { Some(self.state(pool, &Key::project(&pool.namespace))?) } else { None };
        Some(PoolCircuits { own, project })
    }
}
