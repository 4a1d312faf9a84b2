//! Items that need something of a pool: what the pools have, and of which items it was told that none has it.

use super::NamespaceWork;
use crate::policy::work::requires::{PoolIntake, UnmetRequirement, in_words};

impl NamespaceWork {
    /// What the namespace's pools take now, asked for only while an item needs something of them. Items that it touches.
    pub fn offered(&mut self, pools: impl FnOnce() -> Vec<PoolIntake>) -> Vec<String> {
        if !self.index.needs_pools() {
            self.unmet.clear();
            return Vec::new();
        }
        let touched = self.index.set_pools(pools());
        let index = &self.index;
        self.unmet.retain(|(queue, class, _)| index.has_class(queue, class) && index.lacking(queue, class).is_some());
        touched
    }

    /// That no pool has what an item needs, in words, if nobody was told of it or of one like it yet. Once it is asked it counts
    /// as told.
    pub fn tell_unmet(&mut self, name: &str) -> Option<String> {
        let (queue, class, submitter) = self.index.needs(name)?;
        let lacks = self.index.lacking(&queue, &class)?;
        self.unmet.insert((queue.clone(), class, submitter)).then(|| unmet_words(&queue, &lacks))
    }

    /// The same, whoever was told.
    pub fn unmet(&self, name: &str) -> Option<String> {
        let (queue, class, _) = self.index.needs(name)?;
        self.index.lacking(&queue, &class).map(|lacks| unmet_words(&queue, &lacks))
    }
}

/// That no pool has what an item needs.
fn unmet_words(queue: &str, lacks: &[UnmetRequirement]) -> String {
    format!("no AgentPool that takes items from WorkQueue/{queue} offers what the item requires: {}", in_words(lacks))
}
