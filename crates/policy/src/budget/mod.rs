//! Budgets: how many tokens may be spent where, who holds how many for a call in flight, and what was used.
//!
//! A call passes a path of places (its item's share, its agent's life, its pool's Budget, that one's parents, what the
//! ClusterBudget leaves to the namespace, the ClusterBudget). Before it is made, tokens for the most that it can cost are
//! *held* at all of them, or at none; after it, what it used is *settled* in their place, once. Both are memory; what must
//! outlive the leader is written before anybody may rely on it, and the rest is told again by the gateways' sessions.
//!
//! Integers only; time comes in as an argument; nothing here knows how records are stored.
//!
//! | file | for |
//! |---|---|
//! | [`window`] | windows in UTC, and the clock they run on |
//! | [`estimate`] | what a call may cost, and what it did |
//! | [`node`] | what the places are, and what is asked of each |
//! | [`tree`] | which places there are, from Budgets and ClusterBudgets, and what is wrong with those |
//! | [`facts`] | Budgets and ClusterBudgets as data, and what can be wrong with one |
//! | [`share`] | guarantees, reservations, lifetimes, items' shares |
//! | `cell` | one limit and its windows |
//! | [`ledger`], `linking` | all places, and what is counted at each; what follows from one for others |
//! | [`route`] | the way of a call through them |
//! | [`hold`] | a hold and a settle, as data |
//! | [`holding`], `extending` | hold, extend, settle |
//! | [`session`] | a gateway's session: what it numbers and tells |
//! | `session_lifecycle` | how a session begins, dies and comes back |
//! | [`saved`], [`writing`] | what is written, when, and what follows |
//! | [`thresholds`] | what happens near a limit |
//! | [`view`] | how things stand |
//! | [`refusal`] | why a call is not given tokens |
//! | [`holders`], `holder_lookup` | which places have what a call lacks |
//! | [`obstacle`] | what keeps every call from being given some, for a while |
//! | [`concurrency`] | rates, and room for agents |

mod cell;
pub mod concurrency;
pub mod estimate;
mod extending;
pub mod facts;
pub mod hold;
mod holder_lookup;
pub mod holders;
pub mod holding;
pub mod ledger;
mod linking;
pub mod node;
pub mod obstacle;
pub mod ratios;
pub mod refusal;
pub mod route;
pub mod saved;
pub mod session;
mod session_lifecycle;
pub mod share;
pub mod thresholds;
pub mod tree;
pub mod view;
pub mod window;
pub mod writing;

pub use cell::KEPT;
pub use estimate::{Ask, Body, Learned, Quality, Terms, Usage, Weights};
pub use hold::Settle;
pub use holders::{Holder, Holders};
pub use holding::{Answer, Given, Settled};
pub use ledger::{DEPTH, Ledger, SESSIONS};
pub use node::{Grant, Key, LimitSpec, Mode, NodeSpec};
pub use obstacle::Obstacle;
pub use ratios::Ratios;
pub use refusal::{Because, Refusal, When};
pub use route::Route;
pub use saved::{Draft, Saved};
pub use session::{Log, Open, SessionId, Told};
pub use thresholds::Event;
pub use tree::CHAIN;
pub use view::View;
pub use window::{Clock, Span, Window};
pub use writing::Written;

#[cfg(test)]
mod ledger_tests;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod one;
#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod world;
#[cfg(test)]
mod world_tests;
