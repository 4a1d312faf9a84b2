//! Circuit breakers: an operation that keeps failing is stopped for a while, then tried with probes, then let pass
//! again.
//!
//! One state machine guards five things ([`Guard`]). A caller asks [`admit`](Circuit::admit) for a permit, of one
//! circuit or of [several at once](admission), and gives it back with the result. A result of an earlier epoch or of
//! another owner, or a repeated one, changes nothing. A probe without a result in its time has failed, so time alone
//! leads to a permit.
//!
//! An opening must be durable before any caller is told: until [`stored`](Circuit::stored) is called, the answer is
//! [`Answer::Store`]. Counts are in memory only and may be lost at any time.
//!
//! Times are milliseconds of a clock that never jumps. Time and a random number are arguments ([`Moment`]). Only
//! [`persisted`] knows the wall clock. This module does not know how circuits are stored, or what they guard.
//!
//! | file | for |
//! |---|---|
//! | [`circuit`] | the state machine |
//! | [`state`] | its three states |
//! | [`admission`] | asking one circuit for a permit, or several, all or nothing |
//! | [`window`] | recent failures, in buckets |
//! | [`settings`] | the guards and their defaults |
//! | [`persisted`] | the durable state, and how a new owner loads it |
//! | [`callers`] | whose calls failed, and which other agents call |
//! | [`selection`] | which of several Breakers applies to a pool |
//! | [`commands`] | which results of a command are failures |
//! | [`work`] | which results of an attempt at an item are failures, and whether an attempt may begin |
//! | [`refusal`] | the words of a refusal |

pub mod admission;
pub mod callers;
pub mod circuit;
pub mod commands;
pub mod persisted;
pub mod refusal;
pub mod selection;
pub mod settings;
pub mod state;
pub mod window;
pub mod work;

pub use callers::Callers;
pub use circuit::{Answer, Circuit, Completion, Counts, Moment, Outcome, Permit};
pub use persisted::PersistedCircuit;
pub use refusal::{Rejection, RejectionCause};
pub use settings::{Force, Guard, Mode, Review, Settings};
pub use state::State;

#[cfg(test)]
mod circuit_tests;
#[cfg(test)]
mod measure_tests;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod property_tests;
