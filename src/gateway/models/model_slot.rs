//! An agent's place among its calls of models in flight.

use std::sync::{Arc, PoisonError};

use crate::cluster::token::PodIdentity;
use crate::gateway::call_slot::{now, too_many};
use crate::gateway::state::Gateway;
use crate::wire::Refusal;

/// One agent's place among its calls of models in flight, until it is dropped.
pub struct ModelSlot {
    gateway: Arc<Gateway>,
    namespace: String,
    /// Under which name its calls are counted.
    name: String,
}

impl ModelSlot {
    /// Takes one, or says why there is none.
    pub fn take(gateway: &Arc<Gateway>, pod: &PodIdentity) -> Result<Self, Refusal> {
        let name = gateway.long_polls.counted_as(pod);
        let begun = gateway.models.limits.lock().unwrap_or_else(PoisonError::into_inner).begin(&pod.namespace, &name, now());
        begun.map_err(|(whose, full)| too_many(whose, full))?;
        Ok(Self { gateway: gateway.clone(), namespace: pod.namespace.clone(), name })
    }
}

impl Drop for ModelSlot {
    fn drop(&mut self) {
        self.gateway.models.limits.lock().unwrap_or_else(PoisonError::into_inner).end(&self.namespace, &self.name);
    }
}
