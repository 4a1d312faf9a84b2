//! Objectives of queues: finds the items that miss them, counts them, and reports them within bounds.
//! `policy::work::objectives` decides which ones are reported.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::namespace_work::now;
use super::work_index::WorkIndex;
use crate::api::conditions::reasons;
use crate::api::{WorkItem, WorkQueue};
use crate::cluster::ObjectKey;
use crate::controller::Context;
use crate::policy::interventions::Signal;
use crate::policy::work::item::UnixMillis;
use crate::policy::work::objectives::{MissedObjective, Objective, ObjectiveCheck, ObjectiveWatch, Objectives};

/// The items that miss objectives, for each queue with objectives.
pub type MissedItems = HashMap<ObjectKey, Vec<MissedObjective>>;

/// Checks these queues.
pub fn over<'a>(work_index: &WorkIndex, keys: impl IntoIterator<Item = &'a ObjectKey>) -> MissedItems {
    let look = |key: &ObjectKey| work_index.with(&key.namespace, |namespace_work| namespace_work.index.missed_objectives(&key.name, now()));
    keys.into_iter().map(|key| (key.clone(), look(key))).collect()
}

/// The message of the condition of a queue: how many items miss each objective now.
pub fn words(objectives: Objectives, over: &[MissedObjective]) -> String {
    let count = |wanted| over.iter().filter(|one| one.objective == wanted).count();
    let seconds = |within: Option<Duration>| within.map_or(0, |within| within.as_secs());
    let waits = (count(Objective::Wait), format!("waited for more than {} s (waitSeconds)", seconds(objectives.wait)));
    let ends = (count(Objective::Completion), format!("not finished after {} s (completionSeconds)", seconds(objectives.completion)));
    let parts: Vec<String> =
        [waits, ends].into_iter().filter(|(count, _)| *count > 0).map(|(count, words)| format!("{count} {words}")).collect();
    if parts.is_empty() {
        "no item misses spec.objectives".to_owned()
    } else {
        format!("items that miss spec.objectives: {}", parts.join(", "))
    }
}

/// The state of each queue, for as long as we lead.
#[derive(Default)]
pub struct Watches(HashMap<ObjectKey, ObjectiveWatch>);

impl Watches {
    /// Counts the items that have missed an objective since the last check, and starts their events without waiting.
    pub fn look(&mut self, all: &MissedItems, queues: &HashMap<ObjectKey, WorkQueue>, context: &Arc<Context>) {
        self.0.retain(|key, _| all.contains_key(key));
        for (key, over) in all {
            let watch = self.0.entry(key.clone()).or_default();
            let look =
                context.work_index.with(&key.namespace, |namespace_work| watch.check(over.clone(), |uid| namespace_work.lives(uid), now()));
            for one in &look.new {
                context.metrics.objective_missed(one.objective.name());
                raise(one, &key.namespace, context);
            }
            if let Some(queue) = queues.get(key).filter(|_| look.reported > 0 || look.more.is_some()) {
                tokio::spawn(tell(context.clone(), key.clone(), queue.clone(), look));
            }
        }
    }
}

/// Raises the signal for the agent that holds the item. The rules of its pool decide what to do.
fn raise(over: &MissedObjective, namespace: &str, context: &Context) {
    let Some(holder) = over.holder.as_ref().filter(|holder| context.live.view(&holder.pod).is_some()) else { return };
    context.live.raise(&holder.pod, Signal::ObjectiveMissed, None);
    context.wake.agent(&ObjectKey { namespace: namespace.to_owned(), name: holder.agent.clone() });
}

async fn tell(context: Arc<Context>, key: ObjectKey, queue: WorkQueue, look: ObjectiveCheck) {
    if context.leadership.check().is_err() {
        return; // the new leader reports it
    }
    let objectives = context.work_index.queue(&key.namespace, &key.name).map(|queue| queue.objectives).unwrap_or_default();
    for one in look.new.iter().take(look.reported) {
        // An event needs its object, so the item must still exist.
        let Ok(Some(item)) = context.api::<WorkItem>(&key.namespace).get_opt(&one.item).await else { continue };
        if item.metadata.uid.as_deref() == Some(&one.uid) {
            let (action, note) = note(one, objectives, &key.name, now());
            context.events.warning(&item, reasons::OBJECTIVE_MISSED, action, note).await;
        }
    }
    if let Some(more) = look.more {
        let note = format!("{more} more items missed spec.objectives in the last minute and have no event of their own");
        context.events.warning(&queue, reasons::OBJECTIVE_MISSED, "Observe", note).await;
    }
}

/// Events of one object, reason and action are one series: the action tells the objectives apart.
fn note(over: &MissedObjective, objectives: Objectives, queue: &str, now: UnixMillis) -> (&'static str, String) {
    let past = |within: Option<Duration>| now.since(over.since).saturating_add(within.unwrap_or_default()).as_secs();
    match over.objective {
        Objective::Wait => {
            let time = past(objectives.wait);
            (
                "Wait",
                format!("no agent has claimed the item {time} s after it became ready (spec.objectives.waitSeconds of WorkQueue/{queue})"),
            )
        }
        Objective::Completion => {
            let time = past(objectives.completion);
            let held = over.holder.as_ref().map(|holder| format!("; Agent/{} holds it", holder.agent)).unwrap_or_default();
            let of = format!("spec.objectives.completionSeconds of WorkQueue/{queue}");
            ("Complete", format!("the item is not finished {time} s after it first became ready ({of}){held}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::work::Holder;

    fn one(objective: Objective, holder: Option<Holder>) -> MissedObjective {
        MissedObjective { item: "i".into(), uid: "u".into(), objective, since: UnixMillis(60_000), holder }
    }

    #[test]
    fn what_is_over_is_told_in_numbers() {
        let objectives = Objectives { wait: Some(Duration::from_secs(30)), completion: Some(Duration::from_secs(90)) };
        assert_eq!(words(objectives, &[]), "no item misses spec.objectives");
        let over = [one(Objective::Wait, None), one(Objective::Wait, None), one(Objective::Completion, None)];
        assert_eq!(
            words(objectives, &over),
            "items that miss spec.objectives: 2 waited for more than 30 s (waitSeconds), 1 not finished after 90 s (completionSeconds)"
        );
        let (action, words) = note(&over[0], objectives, "q", UnixMillis(61_500));
        assert_eq!(
            (action, words.as_str()),
            ("Wait", "no agent has claimed the item 31 s after it became ready (spec.objectives.waitSeconds of WorkQueue/q)")
        );
        let held = one(Objective::Completion, Some(Holder { pod: "p".into(), agent: "a-1".into(), since: UnixMillis(0) }));
        let (action, words) = note(&held, objectives, "q", UnixMillis(60_001));
        assert!(action == "Complete" && words.contains("90 s") && words.ends_with("Agent/a-1 holds it"), "{words}");
    }
}
