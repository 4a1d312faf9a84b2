//! The two circuits of a pool's work, its own and that of its project, which are used together.

use std::time::Duration;

use super::{BeginRefusal, Circuits};
use crate::cluster::ObjectKey;
use crate::governor::breaker::circuit_standing::CircuitStanding;
use crate::governor::breaker::key::Key;
use crate::policy::breaker::work::{Permits, admit, counts_for_project, is_bound};
use crate::policy::breaker::{Answer, Guard, Outcome, Rejection};

/// The state of the circuits that may stop the work of a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolCircuits {
    /// The circuit of the pool.
    pub own: CircuitStanding,
    /// The circuit of its project. `None` if it does not apply, because the own circuit of the pool only observes or is
    /// forced closed.
    pub project: Option<CircuitStanding>,
}

impl PoolCircuits {
    /// Whether an attempt would be refused now.
    pub fn refuses(&self) -> bool {
        self.own.refuses.is_some() || self.project.as_ref().is_some_and(|project| project.refuses.is_some())
    }

    /// The number of concurrent probes, if a circuit is half open or may become so.
    pub fn probes(&self) -> Option<u32> {
        self.own.probes.into_iter().chain(self.project.as_ref().and_then(|project| project.probes)).min()
    }
}

impl Circuits {
    /// Asks for permits for an attempt of a pool that takes at most `within`. [`complete_work`](Self::complete_work)
    /// reports its result.
    pub async fn admit_work(&self, pool: &ObjectKey, within: Duration) -> Result<Permits, BeginRefusal> {
        let name = |rejection: &Rejection| rejection.name(if rejection.guard == Guard::Project { &pool.namespace } else { &pool.name });
        self.wait_for_answer(|| self.ask_work(pool, within), name).await
    }

    fn ask_work(&self, pool: &ObjectKey, within: Duration) -> Result<Answer<Permits>, BeginRefusal> {
        let mut state = self.lock();
        if !state.ready {
            return Err(BeginRefusal::Away("the circuit breakers are being read; try again"));
        }
        let own = state.slot(&pool.name, &Key::work(&pool.namespace, &pool.name));
        let project = state.slot("", &Key::project(&pool.namespace));
        let at = state.current_moment();
        let within = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
        let mut answer = Answer::Store;
        // Asks a second time if there is no Breaker to store an opening in.
        for _ in 0..2 {
            let Some((one, other)) = state.circuits.get_both_mut(&own, &project) else { break };
            answer = admit(&mut one.circuit, &mut other.circuit, at, within);
            let moved = [state.process_change(&own), state.process_change(&project)];
            if moved.contains(&true) {
                self.notify_change();
            }
            if answer != Answer::Store || (own.breaker.is_some() && project.breaker.is_some()) {
                break;
            }
        }
        Ok(answer)
    }

    /// Reports the result of an attempt. `why` is the message of a failure.
    pub fn complete_work(&self, pool: &ObjectKey, permits: &Permits, outcome: Outcome, why: &str) {
        self.complete(&Key::work(&pool.namespace, &pool.name), &permits.pool, outcome, why);
        if let Some(permit) = &permits.project {
            self.complete(&Key::project(&pool.namespace), permit, outcome, why);
        }
    }

    /// Reports a failure of a pool's work without a permit.
    pub fn failed_work(&self, pool: &ObjectKey, why: &str) {
        if !self.is_ready() {
            return;
        }
        let key = Key::work(&pool.namespace, &pool.name);
        // The state before this failure.
        let speaks =
            self.with(&pool.name, &key, |state, slot| state.circuits.get_mut(slot).is_some_and(|kept| counts_for_project(&kept.circuit)));
        self.failed(pool, &key, why);
        if speaks {
            self.failed(pool, &Key::project(&pool.namespace), why);
        }
    }

    /// The state of the circuits of a pool's work. `None` if nothing is loaded yet.
    pub fn pool_circuits(&self, pool: &ObjectKey) -> Option<PoolCircuits> {
        let key = Key::work(&pool.namespace, &pool.name);
        let own = self.state(pool, &key)?;
        let bound =
            self.with(&pool.name, &key, |state, slot| state.circuits.get_mut(slot).is_some_and(|kept| is_bound(kept.circuit.settings())));
        let project = if bound { Some(self.state(pool, &Key::project(&pool.namespace))?) } else { None };
        Some(PoolCircuits { own, project })
    }
}
