//! A gateway's holds of model tokens: its session with the governor, and the journal that survives its process.
//!
//! What always holds: no number is used for two holds, not even by the next process. While a change of the session is not in
//! the journal, nothing that depends on it happens. Unacknowledged content has a bound, and no namespace can take all of it.
//!
//! It makes no requests, and it does not read a clock: the gateway does both.
//!
//! | file | for |
//! |---|---|
//! | [`session`] | the session, which is pure: what to report next, what to repeat, when to begin again |
//! | [`durable`] | a session together with its journal |
//! | [`journal`] | a file of lines |
//! | [`lines`] | the lines of a journal, and a snapshot of a session |
//! | [`hold`] | open and ended holds, and the bytes that they may take |
//! | [`names`] | numbers for the names of limits |
//! | [`shares`] | how namespaces share the bytes of a session |
//! | [`disk`] | the file operations of a journal |

pub mod disk;
pub mod durable;
#[cfg(test)]
mod fake_disk;
#[cfg(test)]
mod fake_leader;
pub mod hold;
pub mod journal;
pub mod lines;
pub mod names;
pub mod session;
pub mod shares;
