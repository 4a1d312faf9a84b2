//! The governor of work: hands each item to one agent, takes what becomes of it, and lets go by what follows by itself.
//!
//! Every decision is `policy::work`'s, on an [index](crate::policy::work::item_index) in memory; every change that somebody may
//! rely on is written by compare-and-swap before anybody is told. The memory may be lost at any moment: a new leader lists
//! all items first and goes on from their status.
//!
//! | file | for |
//! |---|---|
//! | [`work_index`] | the work of all namespaces, and which of them have to be looked at |
//! | [`namespace_work`] | one namespace: its index of items, waiting agents, writes under way |
//! | [`convert`] | from custom resources to what is decided on, and back to a status |
//! | [`watch`] | the watches of items and queues |
//! | [`run`] | the loop: what follows by itself, writes that wait, collecting |
//! | `holder` | how the agent that holds an item is |
//! | [`queues`] | the status of queues, groups that are cancelled |
//! | [`gangs`] | groups whose members fail together |
//! | [`objectives`] | which items are over their queue's service levels: counted and told |
//! | [`late_usage`] | what an item's last calls used, where that was known after its end only |
//! | [`refused`] | what a refused model call makes of an item whose program then ends |
//! | [`item_write`] | writing an item, and what follows from that |
//! | `item_events` | who is told of what becomes of an item |
//! | [`common`] | what all calls about work share |
//! | [`calls`] | the agents' calls about the item in hand: claim, finish, progress |
//! | [`replay`] | answers about leases that gateways replay after a rollback of the store |
//! | [`submit`] | their calls for more work: an item, a plan |
//! | [`follow`] | their questions about what they submitted |

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
