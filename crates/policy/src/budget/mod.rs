//! Budgets: how many tokens may be spent in each place, how many are held for calls in flight, and how many were used.
//!
//! A *place* is a node of the tree of limits. A call passes a path of places: its item's share, its agent's life, its
//! pool's Budget and the parents of that, the ClusterBudget's part for the namespace, and the ClusterBudget. Before the
//! call, tokens for its highest possible cost are *held* at all of them, or at none. After it, its usage is *settled*
//! at each of them, once. Both are in memory. What must survive the leader is written before any caller may rely on it;
//! gateways' sessions report the rest to a new leader.
//!
//! Integers only. Time is an argument. No file here knows how records are stored.
//!
//! | file | for |
//! |---|---|
//! | [`window`] | windows in UTC, and the clock they run on |
//! | [`estimate`] | what a call may cost, and what it cost |
//! | [`node`] | the places and their limits, as data |
//! | [`tree`] | which places exist, from Budgets and ClusterBudgets, and the defects of those |
//! | [`facts`] | Budgets and ClusterBudgets as data, and their possible defects |
//! | [`share`] | guarantees, reservations, lifetimes, items' shares |
//! | `counter` | one limit and its windows |
//! | [`ledger`], `node_links` | all places and their counters; the effects of one place on others |
//! | [`route`] | the places that a call passes |
//! | [`hold`] | a hold and a settle, as data |
//! | [`holding`], `extension` | hold, extend, settle |
//! | [`session`] | a gateway's session: its numbers and its log |
//! | `session_lifecycle` | how a session begins, dies and comes back |
//! | [`persisted`], [`record_writes`] | what is written, when, and the effects of a write |
//! | [`thresholds`] | the actions near a limit |
//! | [`view`] | the state of limits for statuses and metrics |
//! | [`refusal`] | why a call is not given tokens |
//! | [`holders`], `holder_lookup` | which places have the tokens that a call lacks |
//! | [`blocker`] | why a pool's calls get no tokens for a while |
//! | [`concurrency`] | rates of calls, and capacity for agents |

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
