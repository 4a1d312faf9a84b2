//! The place of a call among those that are in flight: how many an agent and a namespace may have, and the refusal of one too many.
//!
//! It must not know who calls but by name.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::limits::{LimitOwner, LimitReached, Limits};
use super::state::Gateway;
use crate::cluster::clock::BootTime;
use crate::cluster::token::PodIdentity;
use crate::wire::{Code, Refusal};

/// One agent's place among its calls in flight, until it is dropped.
pub(super) struct CallSlot<'a> {
    limits: &'a Mutex<Limits>,
    namespace: &'a str,
    /// Under which name it is counted.
    name: String,
}

impl<'a> CallSlot<'a> {
    pub fn take(gateway: &'a Gateway, pod: &'a PodIdentity) -> Result<Self, Refusal> {
        let name = gateway.long_polls.counted_as(pod);
        let begun = gateway.limits.lock().unwrap_or_else(PoisonError::into_inner).begin(&pod.namespace, &name, now());
        let (whose, full) = match begun {
            Ok(()) => return Ok(Self { limits: &gateway.limits, namespace: &pod.namespace, name }),
            Err(refused) => refused,
        };
        Err(too_many(whose, full))
    }
}

impl Drop for CallSlot<'_> {
    fn drop(&mut self) {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner).end(self.namespace, &self.name);
    }
}

/// Why a call has to wait.
pub(super) fn too_many(whose: LimitOwner, full: LimitReached) -> Refusal {
    let whose = match whose {
        LimitOwner::Agent => "this agent",
        LimitOwner::Namespace => "the agents of this namespace",
    };
    let message = match full {
        LimitReached::InFlight => format!("too many calls of {whose} are in flight"),
        LimitReached::Rate => format!("too many calls of {whose} lately"),
    };
    Refusal::new(Code::TooManyCalls, message).retry_after(1)
}

/// On the clock of the limits.
pub(super) fn now() -> Duration {
    BootTime::now().since(BootTime::default())
}
