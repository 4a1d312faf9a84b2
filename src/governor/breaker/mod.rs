//! Circuit breakers of the governor: they stop operations that keep failing, for a whole pool, namespace or provider.
//!
//! Every decision is made by `policy::breaker`, on circuits in memory. An opening is in the status of a Breaker before
//! any caller gets an answer based on it, so that a failover finds it. Counts and outstanding permits are only in
//! memory and may be lost. A circuit belongs to the Breaker that applies to the pool of the caller. Without a Breaker
//! it has the default settings, and is not stored.
//!
//! | file | for |
//! |---|---|
//! | [`key`] | the key of a circuit |
//! | [`attempts`] | permits of attempts in progress |
//! | [`open_calls`] | open model calls, each with its permit |
//! | [`calls`] | the permit of each model call |
//! | [`convert`] | settings from the spec, and circuits in the status |
//! | [`circuits`] | the circuits in memory |
//! | [`circuit_standing`] | read-only view of a circuit |
//! | [`commands`] | the state of command breakers for agents |
//! | [`status`] | the status of a Breaker |
//! | [`work`] | the guard of work: claims, ends of attempts, pools |
//! | [`run`] | the loops: read objects, advance the clock, write |

pub mod attempts;
pub mod calls;
pub mod circuit_standing;
pub mod circuits;
pub mod commands;
pub mod convert;
pub mod key;
pub mod open_calls;
pub mod run;
pub mod status;
pub mod work;

pub use circuit_standing::CircuitStanding;
pub use circuits::{BeginRefusal, Circuits, PoolCircuits};
pub use key::Key;

#[cfg(test)]
mod bounds_tests;
#[cfg(test)]
mod calls_tests;
#[cfg(test)]
mod circuits_tests;
