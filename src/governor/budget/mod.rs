//! The governor of tokens: holds them before a model call, settles them after it, and stores what a new leader must know.
//!
//! Every decision is `policy::budget`'s, on a ledger in memory; what somebody may rely on is written by compare-and-swap
//! before he is answered. The memory may be lost at any moment: a new leader reads all records before the first session of a
//! gateway begins, and is told the rest by those.
//!
//! | file | for |
//! |---|---|
//! | [`facts`] | from what people wrote to what the places are built from; what is unset |
//! | [`convert`] | records as they stand in status, places as the wire names them |
//! | [`object`] | the four kinds that keep records: read and written |
//! | [`meter`] | the ledger in memory |
//! | `meter_tree` | its part for what people wrote |
//! | `meter_leaves` | its part for agents' lives and items' shares |
//! | `meter_items` | its part for what items have used |
//! | `record` | the record of one object, and the state of its writes |
//! | [`record_writes`] | which records are written, with what, and what follows |
//! | [`write_order`] | whose record is written next |
//! | [`write`](mod@write) | the one writer |
//! | [`conditions`] | the conditions of Budgets and ClusterBudgets |
//! | [`items`] | counts of what calls for items without a share have used |
//! | [`grants`] | Grants: when they count |
//! | [`model_route`] | which model API a call goes to, and whether it may |
//! | [`calls`] | the gateways' calls |
//! | [`agent_calls`] | the agents' calls: what is left, and asking for more |
//! | [`threshold_events`] | what follows from thresholds |
//! | [`availability`] | whether there are tokens for a pool, an agent, a claim |
//! | [`run`] | the loops |

pub mod agent_calls;
pub mod availability;
pub mod calls;
pub mod conditions;
pub mod convert;
pub mod facts;
pub mod grants;
pub mod items;
pub mod meter;
mod meter_items;
mod meter_leaves;
mod meter_tree;
pub mod model_route;
pub mod object;
mod record;
pub mod record_writes;
pub mod run;
pub mod threshold_events;
pub mod write;
pub mod write_order;

pub use meter::Meter;

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod simulation_tests;
