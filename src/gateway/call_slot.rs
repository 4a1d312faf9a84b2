//! The slot of a call in flight: how many calls an agent and a namespace may have, and the refusal of one too many.
//!
//! It must know nothing of a caller except its name.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::limits::{LimitOwner, LimitReached, Limits};
use super::state::Gateway;
use crate::cluster::clock::BootTime;
use crate::cluster::token::PodIdentity;
use crate::wire::{Code, Refusal};

/// A call in flight of one agent, until it is dropped.
pub(super) struct CallSlot<'a> {
    limits: &'a Mutex<Limits>,
    namespace: &'a str,
    /// The name under which it is counted.
    name: String,
}

impl<'a> CallSlot<'a> {
    /// A slot of an agent's own calls.
    pub fn take(gateway: &'a Gateway, pod: &'a PodIdentity) -> Result<Self, Refusal> {
        Self::take_of(&gateway.limits, gateway, pod)
    }

    /// A slot of calls that are counted apart from the others.
    pub fn take_of(limits: &'a Mutex<Limits>, gateway: &Gateway, pod: &'a PodIdentity) -> Result<Self, Refusal> {
        let name = gateway.long_polls.limit_key(pod);
        let begun = limits.lock().unwrap_or_else(PoisonError::into_inner).begin(&pod.namespace, &name, now());
        begun.map_err(|(whose, full)| limit_refusal(whose, full))?;
        Ok(Self { limits, namespace: &pod.namespace, name })
    }
}

impl Drop for CallSlot<'_> {
    fn drop(&mut self) {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner).end(self.namespace, &self.name);
    }
}

/// The refusal of a call that exceeds a limit.
pub(super) fn limit_refusal(whose: LimitOwner, full: LimitReached) -> Refusal {
    let whose = match whose {
        LimitOwner::Agent => "this agent",
        LimitOwner::Namespace => "the agents of this namespace",
    };
    let message = match full {
        LimitReached::InFlight => format!("too many calls of {whose} are in flight; try again"),
        LimitReached::Rate => format!("{whose} made too many calls in a short time; try again"),
    };
    Refusal::new(Code::TooManyCalls, message).retry_after(1)
}

/// The time on the clock of the limits.
pub(super) fn now() -> Duration {
    BootTime::now().since(BootTime::default())
}
