//! The governor of tokens: holds tokens before a model call, settles them after it, and stores what a new leader must
//! know.
//!
//! Every decision is made by `policy::budget`, on a ledger in memory. State that a caller may rely on is written by
//! compare-and-swap before the caller is answered. The memory may be lost at any moment: a new leader reads all records
//! before it begins the first session of a gateway, and the gateways report the rest.
//!
//! | file | for |
//! |---|---|
//! | [`facts`] | facts from which the places are built; defaults |
//! | [`convert`] | conversion of records and of names of places |
//! | [`object`] | the four kinds that keep records: read and written |
//! | [`meter`] | the ledger in memory |
//! | `meter_tree` | its part for Budgets, ClusterBudgets and Grants |
//! | `meter_leaves` | its part for agents' lifetimes and items' shares |
//! | `meter_items` | its part for the usage of items |
//! | `record` | the record of one object, and the state of its writes |
//! | [`record_writes`] | which records are written, their contents, and the effects |
//! | [`write_order`] | which record is written next |
//! | [`write`](mod@write) | the only writer of records |
//! | [`conditions`] | the conditions of Budgets and ClusterBudgets |
//! | [`items`] | usage of items without a share |
//! | [`grants`] | Grants: when they count |
//! | [`model_route`] | the model API of a call, and whether the call is allowed |
//! | [`calls`] | the calls of gateways |
//! | [`agent_calls`] | the calls of agents: what is left, and requests for more |
//! | [`threshold_events`] | effects of thresholds |
//! | [`availability`] | whether tokens are available for a pool, an agent, a claim |
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
