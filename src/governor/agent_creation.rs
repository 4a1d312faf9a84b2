//! Common parts of the calls that create an Agent: a child of an agent, and an agent outside the cluster.
//!
//! It creates no Agent itself.

use super::caller::Caller;
use crate::api::Agent;
use crate::cluster::{Class, Error};
use crate::wire::{Code, Refusal};

/// The refusal for an Agent that could not be created.
pub(super) fn creation_refusal(error: &Error, caller: &Caller) -> Refusal {
    tracing::warn!(%error, namespace = %caller.key.namespace, caller = %caller.key.name, "an Agent that a caller requested could not be created");
    match error.class() {
        Class::Refused | Class::QuotaExceeded | Class::Terminating => Refusal::new(Code::LimitReached, error.message()),
        Class::Conflict | Class::AlreadyExists | Class::NotFound | Class::LostLeadership | Class::Unavailable => {
            Refusal::unavailable("the API server did not answer; try again")
        }
    }
}

/// The idempotency key of a call that creates an Agent.
pub(super) fn idempotency_key(key: Option<&str>) -> Result<&str, Refusal> {
    key.filter(|key| !key.is_empty() && key.len() <= 128).ok_or_else(|| {
        Refusal::new(Code::InvalidBody, "the header Idempotency-Key is missing or longer than 128 bytes: it makes a repeated call safe")
            .field("Idempotency-Key")
    })
}

/// Whether an Agent has ended or is being deleted. It then does not count as alive.
pub(super) fn ended_or_deleting(agent: &Agent) -> bool {
    agent.metadata.deletion_timestamp.is_some() || agent.has_ended()
}
