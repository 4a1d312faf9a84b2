//! The governor of work: assigns each item to one agent, records the results, and makes the transitions that need no
//! call.
//!
//! Every decision is made by `policy::work`, on an [index](crate::policy::work::item_index) in memory. Every change
//! that others may rely on is written by compare-and-swap before it is reported. The memory may be lost at any moment:
//! a new leader lists all items first, and continues from their status.
//!
//! | file | for |
//! |---|---|
//! | [`work_index`] | the work of all namespaces, and the items that are due for a check |
//! | [`namespace_work`] | one namespace: its index of items, waiting agents, writes under way |
//! | [`convert`] | conversion between custom resources and the types of the policy |
//! | [`watch`] | the watches of items and queues |
//! | [`run`] | the loop: automatic transitions, queued writes, deletion of old items |
//! | `holder` | the state of the agent that holds an item |
//! | [`queues`] | the status of queues, cancelled groups |
//! | [`gangs`] | groups whose members fail together |
//! | [`objectives`] | items that miss the objectives of their queue: metrics and events |
//! | [`late_usage`] | tokens of an item's last calls that became known after its end |
//! | [`refused`] | how a refused model call changes the failure of an item |
//! | [`item_write`] | writing an item, and the effects |
//! | `item_events` | events, webhooks and messages about items |
//! | [`common`] | common parts of all calls about work |
//! | [`calls`] | calls of agents about their own item: claim, finish, progress |
//! | [`artifacts`] | calls about files that agents keep with their items |
//! | [`replay`] | answers about leases that gateways replay after a rollback of the store |
//! | [`submit`] | calls that submit an item or a plan |
//! | [`follow`] | calls about submitted items |

pub mod artifacts;
pub mod calls;
pub mod common;
pub mod follow;
pub mod gangs;
mod holder;
mod item_events;
pub mod item_write;
pub mod late_usage;
pub mod namespace_work;
pub mod objectives;
pub mod queues;
pub mod refused;
pub mod replay;
pub mod run;
pub mod submit;
pub mod watch;
pub mod work_index;

pub use spillway_conversion::work as convert;
pub use work_index::WorkIndex;

#[cfg(test)]
mod changeset_tests;
