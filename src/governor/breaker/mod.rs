//! The governor's circuits: what keeps failing is stopped for a while, for a whole pool, namespace or provider.
//!
//! Every decision is `policy::breaker`'s, on circuits in memory. An opening is in the status of a Breaker before anybody who asks
//! is answered, so that a fail-over finds it; what was counted, and the permits that are out, are memory and may be lost. A
//! circuit belongs to the Breaker that holds for the pool that asks; where there is none it has the defaults, and nowhere to be
//! stored.
//!
//! | file | for |
//! |---|---|
//! | [`key`] | which circuit |
//! | [`attempts`] | permits of attempts at items that are being made |
//! | [`open_calls`] | model calls that are open, each with its permit |
//! | [`calls`] | a permit for each model call: asked for, kept, given back |
//! | [`convert`] | what people wrote, and circuits as they stand in status |
//! | [`circuits`] | the circuits in memory |
//! | [`circuit_standing`] | how a circuit stands, for those who only look |
//! | [`commands`] | what agents are told of the breakers of their commands |
//! | [`status`] | what a Breaker says of itself |
//! | [`work`] | the guard of work: claims, ends of attempts, pools |
//! | [`run`] | the loops: reads, lets time go by, writes |

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
