//! Common parts of all calls about work: whether the items are loaded, a turn to write, and the refusal that follows
//! from an error.
//!
//! It decides nothing about an item.

use std::time::Duration;

use crate::cluster::{Class, Error};
use crate::controller::Context;
use crate::serve::fair_semaphore::{Permit, QueueFull};
use crate::wire::{Code, Refusal};

/// Interval of checks on an item that is being written.
pub const WRITE_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// How long a call waits for its turn to write. Nothing was done by then, and the caller may be gone.
const WRITE_TURN_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a finish that conflicts with other writes decides again.
pub const MAX_DECISION_ATTEMPTS: usize = 8;

/// The refusal that follows from an error of the API server.
pub fn unavailable(context: &Context, error: &Error) -> Refusal {
    if error.class() == Class::LostLeadership {
        context.leadership.abdicate();
    }
    tracing::warn!(%error, "an agent's call about work was not carried out");
    match error.class() {
        Class::Refused | Class::QuotaExceeded | Class::Terminating => Refusal::new(Code::NotAllowed, error.message()),
        Class::Conflict | Class::AlreadyExists | Class::NotFound | Class::LostLeadership | Class::Unavailable => {
            Refusal::unavailable("the API server did not accept the change; try again")
        }
    }
}

/// Fails while the items are still being listed.
pub fn ready(context: &Context) -> Result<(), Refusal> {
    if context.work_index.is_ready() {
        Ok(())
    } else {
        Err(Refusal::unavailable("the controller is still listing the WorkItems; try again"))
    }
}

/// Waits for the turn of this namespace to write. A call takes one turn, before it decides, and waits for no other.
pub async fn turn(namespace: &str, context: &Context) -> Result<Permit, Refusal> {
    let busy = || Refusal::new(Code::TooManyCalls, "too many calls of this namespace wait for a write; try again").retry_after(1);
    let turn = tokio::time::timeout(WRITE_TURN_TIMEOUT, context.work_index.turns().take(namespace)).await;
    turn.map_err(|_| busy())?.map_err(|QueueFull| busy())
}
