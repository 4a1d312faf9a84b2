//! Work: the life of an item, which agent gets it next, and what happens after a failure.
//!
//! An item is executed at least once, and at most one finish is accepted between two redrives. An agent that lost its
//! lease can change nothing. The fence is (item, epoch, pod): the epoch rises with each claim and only there, even if
//! counters are reset. No file here knows how items are stored. The caller stores them by compare-and-swap on the data
//! of the decision.
//!
//! | file | for |
//! |---|---|
//! | [`item`] | an item as data: its spec and its record |
//! | [`entry`] | an item in memory |
//! | [`transitions`] | transitions without a call: admission, dependencies, time, cancels, a holder that is gone |
//! | [`lease`] | the calls of a holder: claim, complete, fail, release |
//! | [`failure`] | what happens after a failure, and when the next attempt is |
//! | [`admission`] | whether an item may enter a queue, and which one |
//! | [`requires`] | what an item requires of a pool, and whether the pool has it |
//! | [`selector`] | which agents may take an item, by their labels |
//! | [`objectives`] | which items miss their queue's service levels, and when people are notified |
//! | [`tally`] | events of items for metrics, each counted once |
//! | `ready_queue` | the items of one queue by phase |
//! | [`item_index`] | all items of a namespace, indexed by dependency, order and time |

pub mod admission;
pub mod entry;
pub mod failure;
pub mod item;
pub mod item_index;
pub mod lease;
pub mod objectives;
mod ready_queue;
pub mod requires;
pub mod selector;
pub mod tally;
pub mod transitions;

pub use item::{Attempt, Holder, Phase, Policy, Record, Spec, UnixMillis};

#[cfg(test)]
mod model_tests;
