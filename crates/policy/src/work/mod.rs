//! Work: the life of an item, who gets it next, what becomes of a failure.
//!
//! At least one execution; at most one accepted finish an item between redrives; an agent that lost its lease can change
//! nothing. The fence is (item, epoch, pod): the epoch rises with each claim and only there, whatever counters are reset.
//! Nothing here knows how items are stored: whoever stores one does it by compare-and-swap on what was decided upon.
//!
//! | file | for |
//! |---|---|
//! | [`item`] | what an item is: what was asked, what is recorded |
//! | [`entry`] | an item as a process has it in memory |
//! | [`transitions`] | what follows without anybody's call: admission, dependencies, time, cancels, a holder that is gone |
//! | [`lease`] | what a holder's call does: claim, complete, fail, release |
//! | [`failure`] | what becomes of a failure, and when it is tried again |
//! | [`admission`] | whether an item may enter a queue, and which |
//! | [`requires`] | what an item needs of a pool, and whether that has it |
//! | [`selector`] | which agents may take an item, by their labels |
//! | [`objectives`] | which items are over their queue's service levels, and whom to tell |
//! | [`tally`] | what happened to items, each counted once |
//! | `ready_queue` | one queue's items by what they do |
//! | [`item_index`] | all items of a namespace, indexed: who waits for whom, who is next, what is due |

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
