//! The meaning of answers for retries, and the pauses between tries.

use std::time::Duration;

use spillway_wire::{Code, Refusal};

/// First and longest pause while no gateway answers.
pub const CALL_RETRY_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// The outcome of a call.
#[derive(Clone, Debug)]
pub enum CallOutcome<T> {
    /// The gateway did it.
    Done(T),
    /// The gateway refused it.
    Refused(Refusal),
    /// No answer came.
    Silence,
}

/// Whether a refusal is final, so that a repetition cannot help. Other refusals may be caused by a new leader, a late cache, or a
/// token that is being replaced.
pub fn is_final(code: Code) -> bool {
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
        | Code::DestinationUnreachable
        | Code::Internal
        | Code::Unknown => false,
        Code::WrongAudience
        | Code::NotAPod
        | Code::AgentEnded
        | Code::NotAllowed
        | Code::NoSuchCall
        | Code::NoSuchArtifact
        | Code::NotBuilt
        | Code::BudgetExhausted
        | Code::ModelNotAllowed
        | Code::EgressDenied
        | Code::GitDenied
        | Code::ToolsDenied
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
