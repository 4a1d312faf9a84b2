//! How fast an agent may ask for connections to other destinations.

use std::sync::PoisonError;

use crate::cluster::token::PodIdentity;
use crate::gateway::call_slot::{now, too_many};
use crate::gateway::state::Gateway;
use crate::wire::Refusal;

/// The slot of a request that is being decided, until it is dropped. An agent that asks too fast is refused here.
pub struct DecisionSlot<'a> {
    gateway: &'a Gateway,
    namespace: &'a str,
    /// Under which name its requests are counted.
    name: String,
}

impl<'a> DecisionSlot<'a> {
    /// Takes one, or says why there is none.
    pub fn take(gateway: &'a Gateway, pod: &'a PodIdentity) -> Result<Self, Refusal> {
        let name = gateway.long_polls.limit_key(pod);
        let mut limits = gateway.egress.decisions.lock().unwrap_or_else(PoisonError::into_inner);
        limits.begin(&pod.namespace, &name, now()).map_err(|(whose, full)| too_many(whose, full))?;
        drop(limits);
        Ok(Self { gateway, namespace: &pod.namespace, name })
    }
}

impl Drop for DecisionSlot<'_> {
    fn drop(&mut self) {
        self.gateway.egress.decisions.lock().unwrap_or_else(PoisonError::into_inner).end(self.namespace, &self.name);
    }
}
