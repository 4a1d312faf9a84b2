//! Items with requirements for a pool: what the pools offer, and which unmet requirements were reported.

use super::NamespaceWork;
use crate::policy::work::requires::{PoolIntake, UnmetRequirement, unmet_summary};

impl NamespaceWork {
    /// Sets what the pools of the namespace offer. `pools` is called only while an item has requirements. Returns the
    /// items that are affected.
    pub fn set_offers(&mut self, pools: impl FnOnce() -> Vec<PoolIntake>) -> Vec<String> {
        if !self.index.needs_pools() {
            self.unmet.clear();
            return Vec::new();
        }
        let touched = self.index.set_pools(pools());
        let index = &self.index;
        self.unmet.retain(|(queue, class, _)| index.has_class(queue, class) && index.lacking(queue, class).is_some());
        touched
    }

    /// The message that no pool offers what an item requires, if it was not reported yet for this item or a similar
    /// one. After this call it counts as reported.
    pub fn tell_unmet(&mut self, name: &str) -> Option<String> {
        let (queue, class, submitter) = self.index.needs(name)?;
        let lacks = self.index.lacking(&queue, &class)?;
        self.unmet.insert((queue.clone(), class, submitter)).then(|| unmet_words(&queue, &lacks))
    }

    /// The same message, whether it was reported or not.
    pub fn unmet(&self, name: &str) -> Option<String> {
        let (queue, class, _) = self.index.needs(name)?;
        self.index.lacking(&queue, &class).map(|lacks| unmet_words(&queue, &lacks))
    }
}

/// The message that no pool offers what an item requires.
fn unmet_words(queue: &str, lacks: &[UnmetRequirement]) -> String {
    format!(
        "no AgentPool that takes items from WorkQueue/{queue} offers what the item requires: {}. Add it to a pool, or submit the item without it",
        unmet_summary(lacks)
    )
}
