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
//! | `counter` | one limit and its windows |
//! | [`ledger`], `node_links` | all places, and what is counted at each; what follows from one for others |
//! | [`route`] | the way of a call through them |
//! | [`hold`] | a hold and a settle, as data |
//! | [`holding`], `extension` | hold, extend, settle |
//! | [`session`] | a gateway's session: what it numbers and tells |
//! | `session_lifecycle` | how a session begins, dies and comes back |
//! | [`persisted`], [`record_writes`] | what is written, when, and what follows |
//! | [`thresholds`] | what happens near a limit |
//! | [`view`] | how things stand |
//! | [`refusal`] | why a call is not given tokens |
//! | [`holders`], `holder_lookup` | which places have what a call lacks |
//! | [`blocker`] | what keeps every call from being given some, for a while |
//! | [`concurrency`] | rates, and room for agents |

pub mod blocker;
pub mod concurrency;
mod counter;
pub mod estimate;
mod extension;
pub mod facts;
pub mod hold;
mod holder_lookup;
pub mod holders;
pub mod holding;
pub mod ledger;
pub mod node;
mod node_links;
pub mod persisted;
pub mod ratios;
pub mod record_writes;
pub mod refusal;
pub mod route;
pub mod session;
mod session_lifecycle;
pub mod share;
pub mod thresholds;
pub mod tree;
pub mod view;
pub mod window;

pub use blocker::Blocker;
pub use counter::MAX_PAST_WINDOWS;
pub use estimate::{CallSize, CallTerms, HoldRequest, LearnedRatio, Quality, Usage, Weights};
pub use hold::Settle;
pub use holders::{Holder, Holders};
pub use holding::{HeldTokens, HoldAnswer, SettleOutcome};
pub use ledger::{Ledger, MAX_PATH_LENGTH, MAX_SESSIONS_PER_RECORD};
pub use node::{Grant, Key, LimitSpec, Mode, NodeSpec};
pub use persisted::{PersistedRecord, RecordDraft};
pub use ratios::Ratios;
pub use record_writes::WriteEffects;
pub use refusal::{Refusal, RefusalCause, RetryHint};
pub use route::Route;
pub use session::{JournaledHold, JournaledSettle, SessionId, SessionLog};
pub use thresholds::Event;
pub use tree::MAX_BUDGET_DEPTH;
pub use view::LimitView;
pub use window::{Clock, Span, Window};

#[cfg(test)]
mod ledger_recovery_tests;
#[cfg(test)]
mod ledger_tests;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod simulation_tests;
#[cfg(test)]
mod single_leader;
