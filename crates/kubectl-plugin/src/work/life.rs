//! The state of an item as a short text, the order in which agents get items, and the allowed changes of an item: redrive,
//! cancel, priority. Pure. The rules are the governor's own: [`convert`] and `policy::work`.

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

/// The phase of an item in its last status.
pub fn phase(item: &WorkItem) -> Phase {
    convert::record(item).phase
}

/// The agent that holds an item.
pub fn agent_of(item: &WorkItem) -> Option<&str> {
    let lease = item.status.as_ref().and_then(|status| status.lease.as_ref());
    lease.and_then(|lease| lease.agent.as_deref()).filter(|agent| !agent.is_empty() && phase(item).held())
}

/// The reason of an item's phase.
pub fn reason(item: &WorkItem) -> Option<&str> {
    item.status.as_ref().and_then(|status| status.reason.as_deref()).filter(|reason| !reason.is_empty())
}

/// The operator's message on an item's phase, if there is one.
pub fn message(item: &WorkItem) -> Option<&str> {
    let conditions = item.status.iter().flat_map(|status| &status.conditions);
    // PreflightPassed explains a wait when it is False.
    let tells = |condition: &&Condition| condition.status == "True" || condition.type_ == "PreflightPassed";
    conditions.filter(tells).map(|condition| condition.message.trim()).find(|message| !message.is_empty())
}

/// Why an item failed, on one line: the operator's message, or else the message of its last attempt.
pub fn failure_text(item: &WorkItem) -> Option<String> {
    let last = item.status.as_ref().and_then(|status| status.attempt_history.as_ref()?.last()?.message.as_deref());
    Some(one_line(message(item).or(last)?)).filter(|words| !words.is_empty())
}

/// Phase, reason and message of an item.
pub fn state(item: &WorkItem) -> String {
    if item.status.as_ref().is_none_or(|status| status.phase.is_none()) {
        return "Pending: the operator has not observed it yet".to_owned();
    }
    let mut words = phase(item).name().to_owned();
    for (between, more) in [(", ", reason(item)), (": ", message(item))] {
        words.extend(more.map(|more| format!("{between}{}", one_line(more))));
    }
    words
}

/// Sorts items in the order in which agents get them: by priority, then by the time of submission, then by name. The time of
/// submission counts only between a minute before the creation of the object and its creation.
pub fn sort_by_claim_order(items: &mut [WorkItem]) {
    items.sort_by_cached_key(|item| (Reverse(item.spec.priority), convert::spec(item).submitted, item.name_any()));
}

/// Whether an item's group was cancelled. Such an item ends as soon as it waits again.
pub fn group_cancelled(item: &WorkItem, queues: &[WorkQueue]) -> bool {
    let (Some(group), Some(queue)) = (&item.spec.group, convert::queue_of(item)) else { return false };
    let created = convert::spec(item).created;
    let of_queue = queues.iter().filter(|known| known.name_any() == queue).flat_map(convert::cancelled_groups);
    of_queue.into_iter().any(|(cancelled, at)| cancelled == *group && covers(at, created))
}

/// Whether the cancellation of a group at this time covers an item with this creation time.
pub fn covers(cancelled: UnixMillis, created: UnixMillis) -> bool {
    created <= cancelled
}

/// Decides the write of a redrive.
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
        return Decision::Refuse(format!("is {} and has not ended, so it cannot be started again", record.phase.name()));
    }
    if spec.cancel {
        return Decision::Refuse("was cancelled (spec.cancelRequested), which cannot be undone: submit another item".to_owned());
    }
    if group_cancelled(item, queues) {
        let group = spec.group.unwrap_or_default();
        return Decision::Refuse(format!(
            "would be cancelled again, because its group {group} is cancelled (spec.cancelGroups or status.cancelledGroups of its queue): submit another item"
        ));
    }
    if spec.redrives > record.redrives {
        return Decision::Leave("a redrive is requested already, and the operator has not observed it yet".to_owned());
    }
    Decision::Write(json!({"redrives": spec.redrives.max(record.redrives) + 1}))
}

/// Decides the write of a cancel.
pub fn cancel(item: &WorkItem) -> Decision {
    let phase = phase(item);
    if phase.ended() {
        return Decision::Leave(format!("it has ended already ({})", phase.name()));
    }
    if item.spec.cancel_requested == Some(true) {
        return Decision::Leave("spec.cancelRequested is true already".to_owned());
    }
    Decision::Write(json!({"cancelRequested": true}))
}

/// Decides the write of a new priority.
pub fn prioritize(item: &WorkItem, priority: i32) -> Decision {
    let phase = phase(item);
    if item.metadata.deletion_timestamp.is_some() {
        return Decision::Refuse("is being deleted".to_owned());
    }
    if matches!(phase, Phase::Succeeded | Phase::Cancelled) {
        return Decision::Leave(format!("it is {}, which is final: no agent gets it again", phase.name()));
    }
    if item.spec.priority == priority {
        return Decision::Leave(format!("it has priority {priority} already"));
    }
    Decision::Write(json!({"priority": priority}))
}

#[cfg(test)]
#[path = "life_tests.rs"]
mod tests;
