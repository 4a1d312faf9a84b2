//! The slot of a model call in flight.

use std::sync::{Arc, PoisonError};

use crate::cluster::token::PodIdentity;
use crate::gateway::call_slot::{limit_refusal, now};
use crate::gateway::state::Gateway;
use crate::wire::Refusal;

/// A model call in flight of one agent, until it is dropped.
pub struct ModelSlot {
    gateway: Arc<Gateway>,
    namespace: String,
    /// The name under which the agent's calls are counted.
    name: String,
}

impl ModelSlot {
    /// Takes a slot. Err: a limit is reached.
    pub fn take(gateway: &Arc<Gateway>, pod: &PodIdentity) -> Result<Self, Refusal> {
        let name = gateway.long_polls.limit_key(pod);
        let begun = gateway.models.limits.lock().unwrap_or_else(PoisonError::into_inner).begin(&pod.namespace, &name, now());
        begun.map_err(|(whose, full)| limit_refusal(whose, full))?;
        Ok(Self { gateway: gateway.clone(), namespace: pod.namespace.clone(), name })
    }
}

impl Drop for ModelSlot {
    fn drop(&mut self) {
        self.gateway.models.limits.lock().unwrap_or_else(PoisonError::into_inner).end(&self.namespace, &self.name);
    }
}
