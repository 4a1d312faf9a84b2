//! Messages for pools that are not ends of items. They are only in memory, and their leader numbers them. A resource
//! version could not order them among the ends: the watch of items does not reach that version until an item changes.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use crate::cluster::clock::BootTime;
use crate::wire::follow::Message;

/// Messages that are kept. A pool that reads its inbox later misses the oldest.
const MAX_MESSAGES: usize = 100;
/// How long a namespace without work is kept after its last message, because a pool may still read it.
const IDLE_NAMESPACE_TTL: Duration = Duration::from_secs(3600);

/// The messages of a namespace.
#[derive(Debug, Default)]
pub struct Messages {
    kept: VecDeque<(u64, String, Message)>,
    last: Option<BootTime>,
    /// Pools with waiting agents that were not signalled yet.
    news: HashSet<String>,
}

impl Messages {
    /// Adds a message for the agents of a pool. The numbers of a leader are unique and rise, also after a namespace was
    /// forgotten in between.
    pub fn add(&mut self, number: u64, pool: &str, message: Message) {
        if self.kept.len() == MAX_MESSAGES {
            self.kept.pop_front();
        }
        self.kept.push_back((number, pool.to_owned(), message));
        self.last = Some(BootTime::now());
        self.news.insert(pool.to_owned());
    }

    /// Whether the namespace can be forgotten.
    pub fn are_old(&self) -> bool {
        self.last.is_none_or(|last| last.elapsed() > IDLE_NAMESPACE_TTL)
    }

    /// The messages of a pool after this number, with their numbers.
    pub fn after(&self, pool: &str, number: u64) -> impl Iterator<Item = (u64, &Message)> {
        let ours = self.kept.iter().filter(move |(at, of, _)| of == pool && *at > number);
        ours.map(|(at, _, message)| (*at, message))
    }

    /// Pools with new messages since the last call.
    pub fn take_news(&mut self) -> HashSet<String> {
        std::mem::take(&mut self.news)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_told_its_own_in_order_and_the_oldest_go() {
        let mut messages = Messages::default();
        let message = |agent: &str| Message::Escalated { agent: agent.into(), signal: "S".into(), text: "t".into(), item: None };
        assert!(messages.are_old());
        for (number, pool, agent) in [(1, "planner", "a"), (2, "other", "b"), (3, "planner", "c")] {
            messages.add(number, pool, message(agent));
        }
        assert!(!messages.are_old());
        assert_eq!(messages.after("planner", 0).collect::<Vec<_>>(), [(1, &message("a")), (3, &message("c"))]);
        assert_eq!(messages.after("planner", 1).collect::<Vec<_>>(), [(3, &message("c"))]);
        assert_eq!(messages.take_news().len(), 2);
        assert_eq!(messages.take_news().len(), 0, "they were called");
        (4..1_000).for_each(|number| messages.add(number, "planner", message("d")));
        assert_eq!((messages.kept.len(), messages.after("other", 0).count()), (MAX_MESSAGES, 0), "they are bounded");
    }
}
