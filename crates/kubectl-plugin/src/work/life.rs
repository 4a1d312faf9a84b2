//! What is known of an item in a few words, the order in which items are given out, and whether one can be started again.
//! Pure. The rules are the governor's own: [`convert`] and `policy::work`.

use std::cmp::Reverse;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;
use serde_json::json;

use crate::api::{WorkItem, WorkQueue};
use crate::policy::work::item::reasons;
use crate::policy::work::{Phase, UnixMillis};
use crate::table::one_line;
use crate::write::Decision;
use spillway_conversion::work as convert;

/// Where an item is in its life, as the operator last said.
pub fn phase(item: &WorkItem) -> Phase {
    convert::record(item).phase
}

/// The agent that holds an item.
pub fn agent_of(item: &WorkItem) -> Option<&str> {
    let lease = item.status.as_ref().and_then(|status| status.lease.as_ref());
    lease.and_then(|lease| lease.agent.as_deref()).filter(|agent| !agent.is_empty() && phase(item).held())
}

/// Why an item is in its phase, as one word.
pub fn reason(item: &WorkItem) -> Option<&str> {
    item.status.as_ref().and_then(|status| status.reason.as_deref()).filter(|reason| !reason.is_empty())
}

/// The same in words, where the operator gave any.
pub fn message(item: &WorkItem) -> Option<&str> {
    let conditions = item.status.iter().flat_map(|status| &status.conditions);
    // One tells why it waits by being False.
    let tells = |condition: &&Condition| condition.status == "True" || condition.type_ == "PreflightPassed";
    conditions.filter(tells).map(|condition| condition.message.trim()).find(|message| !message.is_empty())
}

/// Why an item failed, in one line: what the operator says, or else what was said of its last attempt.
pub fn why(item: &WorkItem) -> Option<String> {
    let last = item.status.as_ref().and_then(|status| status.attempt_history.as_ref()?.last()?.message.as_deref());
    Some(one_line(message(item).or(last)?)).filter(|words| !words.is_empty())
}

/// Phase, reason and message of an item.
pub fn state(item: &WorkItem) -> String {
    if item.status.as_ref().is_none_or(|status| status.phase.is_none()) {
        return "Pending: nobody has looked at it yet".to_owned();
    }
    let mut words = phase(item).name().to_owned();
    for (between, more) in [(", ", reason(item)), (": ", message(item))] {
        words.extend(more.map(|more| format!("{between}{}", one_line(more))));
    }
    words
}

/// Puts items into the order in which they are given out: priority, then submission (which counts from a minute before
/// the object was made until then), then the name.
pub fn line_up(items: &mut [WorkItem]) {
    items.sort_by_cached_key(|item| (Reverse(item.spec.priority), convert::spec(item).submitted, item.name_any()));
}

/// Whether an item's group was cancelled, so that it ends as soon as it waits again.
pub fn group_cancelled(item: &WorkItem, queues: &[WorkQueue]) -> bool {
    let (Some(group), Some(queue)) = (&item.spec.group, convert::queue_of(item)) else { return false };
    let created = convert::spec(item).created;
    let of_queue = queues.iter().filter(|known| known.name_any() == queue).flat_map(convert::cancelled_groups);
    of_queue.into_iter().any(|(cancelled, at)| cancelled == *group && covers(at, created))
}

/// Whether a tombstone of this time covers an item made then.
pub fn covers(cancelled: UnixMillis, created: UnixMillis) -> bool {
    created <= cancelled
}

/// What a redrive does with an item.
pub fn redrive(item: &WorkItem, queues: &[WorkQueue]) -> Decision {
    let (spec, record) = (convert::spec(item), convert::record(item));
    let restored = record.phase == Phase::Suspended && record.reason.as_deref() == Some(reasons::RESTORED);
    if item.metadata.deletion_timestamp.is_some() {
        return Decision::Refuse("is being deleted".to_owned());
    }
    if matches!(record.phase, Phase::Succeeded | Phase::Cancelled) {
        return Decision::Refuse(format!("is {}, which is final: submit another item", record.phase.name()));
    }
    if !record.phase.redrivable() && !restored {
        return Decision::Refuse(format!("is {} and not over: there is nothing to start again", record.phase.name()));
    }
    if spec.cancel {
        return Decision::Refuse("was cancelled (spec.cancelRequested), which cannot be taken back: submit another item".to_owned());
    }
    if group_cancelled(item, queues) {
        let group = spec.group.unwrap_or_default();
        return Decision::Refuse(format!(
            "would be cancelled again: its group {group} is (spec.cancelGroups or status.cancelledGroups of its queue): submit another item"
        ));
    }
    if spec.redrives > record.redrives {
        return Decision::Leave("it was asked to start again already, and the operator has not looked at it since".to_owned());
    }
    Decision::Write(json!({"redrives": spec.redrives.max(record.redrives) + 1}))
}

/// What a cancel does with an item.
pub fn cancel(item: &WorkItem) -> Decision {
    let phase = phase(item);
    if phase.ended() {
        return Decision::Leave(format!("it has ended already ({})", phase.name()));
    }
    if item.spec.cancel_requested == Some(true) {
        return Decision::Leave("it was asked to end already".to_owned());
    }
    Decision::Write(json!({"cancelRequested": true}))
}

/// What another priority does with an item.
pub fn prioritize(item: &WorkItem, priority: i32) -> Decision {
    let phase = phase(item);
    if item.metadata.deletion_timestamp.is_some() {
        return Decision::Refuse("is being deleted".to_owned());
    }
    if matches!(phase, Phase::Succeeded | Phase::Cancelled) {
        return Decision::Leave(format!("it is {}, which is final: it is not given out again", phase.name()));
    }
    if item.spec.priority == priority {
        return Decision::Leave(format!("it has priority {priority} already"));
    }
    Decision::Write(json!({"priority": priority}))
}

#[cfg(test)]
#[path = "life_tests.rs"]
mod tests;
