//! What all calls about work share: whether items are known yet, a turn to write, and what an error means for the caller.
//!
//! It decides nothing about an item.

use std::time::Duration;

use crate::cluster::{Class, Error};
use crate::controller::Context;
use crate::serve::fair_semaphore::{Permit, QueueFull};
use crate::wire::{Code, Refusal};

/// Between two looks at an item that somebody is writing.
pub const WRITE_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// A call waits so long for its turn to write. Nothing was done by then, and whoever called may have gone.
const WRITE_TURN_TIMEOUT: Duration = Duration::from_secs(5);
/// A finish that collides with another write decides again so often.
pub const MAX_DECISION_ATTEMPTS: usize = 8;

/// What an error of the API server means for whoever called.
pub fn unavailable(context: &Context, error: &Error) -> Refusal {
    if error.class() == Class::LostLeadership {
        context.leadership.abdicate();
    }
    tracing::warn!(%error, "an agent's call about work was not carried out");
    match error.class() {
        Class::Refused | Class::QuotaExceeded | Class::Terminating => Refusal::new(Code::NotAllowed, error.message()),
        Class::Conflict | Class::AlreadyExists | Class::NotFound | Class::LostLeadership | Class::Unavailable => {
            Refusal::away("the API server did not accept the change; try again")
        }
    }
}

/// Fails while the items are being listed.
pub fn ready(context: &Context) -> Result<(), Refusal> {
    if context.work_index.is_ready() { Ok(()) } else { Err(Refusal::away("the controller is still listing the WorkItems; try again")) }
}

/// The turn of a call of this namespace to write. Taken before the call is decided, and once: who has one waits for no other.
pub async fn turn(namespace: &str, context: &Context) -> Result<Permit, Refusal> {
    let busy = || Refusal::new(Code::TooManyCalls, "too many calls of this namespace wait for a write; try again").retry_after(1);
    let turn = tokio::time::timeout(WRITE_TURN_TIMEOUT, context.work_index.turns().take(namespace)).await;
    turn.map_err(|_| busy())?.map_err(|QueueFull| busy())
}
