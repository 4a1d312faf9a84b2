//! What an answer to a call means, and when a call that failed is made again.

use std::time::Duration;

use spillway_wire::{Code, Refusal};

/// First and longest pause while nobody answers.
pub const CALL_RETRY_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// What a gateway made of a call.
#[derive(Clone, Debug)]
pub enum CallOutcome<T> {
    /// It did it.
    Done(T),
    /// It refused.
    Refused(Refusal),
    /// Nobody answered.
    Silence,
}

/// Whether a refusal stays, however often one asks. Those that do not may follow from a leader that is new, a cache that is
/// late, or a token that is being exchanged.
pub fn lasting(code: Code) -> bool {
    match code {
        Code::NoToken
        | Code::InvalidToken
        | Code::NotAnAgent
        | Code::GovernorAway
        | Code::TooManyCalls
        | Code::PreflightNotPassed
        | Code::BudgetHeld
        | Code::CircuitOpen
        | Code::TurnTimedOut
        | Code::Internal
        | Code::Unknown => false,
        Code::WrongAudience
        | Code::NotAPod
        | Code::AgentEnded
        | Code::NotAllowed
        | Code::NoSuchCall
        | Code::NotBuilt
        | Code::BudgetExhausted
        | Code::ModelNotAllowed
        | Code::NotWorking
        | Code::SessionUnknown
        | Code::HoldClosed
        | Code::WrongMethod
        | Code::InvalidBody
        | Code::BodyTooLarge
        | Code::LimitReached
        | Code::KeyReused
        | Code::StaleLease
        | Code::LeaseLost
        | Code::FinishedAlready
        | Code::NotHeld
        | Code::NoQueues
        | Code::QueueMissing
        | Code::QueueFull
        | Code::TypeNotAccepted
        | Code::ItemTooLarge
        | Code::Cycle
        | Code::Duplicate => true,
    }
}
