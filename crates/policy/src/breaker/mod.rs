//! Breakers: what keeps failing is stopped for a while, then tried with probes, then let pass again.
//!
//! One machine, five guards ([`Guard`]). Whoever wants to act asks [`admit`](Circuit::admit) for a permit, of one circuit or
//! of [several at once](admission), and gives it back with what came of it. A result under an earlier epoch, of another owner, or
//! told before changes nothing; a probe that says nothing in its time has failed, so that time alone leads to a permit.
//!
//! An opening must be durable before anybody hears of it: until [`stored`](Circuit::stored) says so the answer is
//! [`Answer::Store`]. Counts are memory and may be lost at any time.
//!
//! Times are milliseconds of a clock that never jumps; time and dice come in as an argument ([`Moment`]). The wall clock is only
//! in what is [`persisted`]. Nothing here knows who stores it, or what is guarded.
//!
//! | file | for |
//! |---|---|
//! | [`circuit`] | the machine |
//! | [`state`] | its three states |
//! | [`admission`] | asking for a permit of one circuit, or of several, all or nothing |
//! | [`window`] | failures of the last while, in buckets |
//! | [`settings`] | the guards and their defaults |
//! | [`persisted`] | what is durable, and what a new owner makes of it |
//! | [`callers`] | whose calls failed, and who else calls |
//! | [`selection`] | which of several sets of guards holds for a pool |
//! | [`commands`] | which ends of a command are failures |
//! | [`work`] | which ends of an attempt at an item are, and whether one may begin |
//! | [`refusal`] | how a refusal is said |

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
