//! Conversion of queues: from a WorkQueue to the queue of the decisions, and to its cancelled groups. It reads no item.

use super::{number, overrides, seconds, unix_millis};
use crate::api::WorkQueue;
use crate::api::agent_pool::EmptyAction;
use crate::api::work_queue::{FailureAction, QueueingStrategy, WorkQueueSpec};
use crate::policy::work::admission::Queue;
use crate::policy::work::failure::{Action, Rule};
use crate::policy::work::item::{Policy, UnixMillis};
use crate::policy::work::objectives::Objectives;

/// The queue of the decisions.
pub fn queue(queue: &WorkQueue) -> Queue {
    let WorkQueueSpec {
        queueing_strategy,
        priority,
        accepts,
        suspend,
        limits,
        item_defaults,
        failure_policy,
        dead_letters,
        concurrency,
        when_empty,
        objectives,
        cancel_groups: _,
    } = &queue.spec;
    let accepts = accepts.clone().unwrap_or_default();
    let limits = limits.clone().unwrap_or_default();
    let dead_letters = dead_letters.clone().unwrap_or_default();
    let policy = overrides(item_defaults.as_ref()).apply_to(&Policy::default());
    let count = |value: Option<i32>, default: u64| number(value).unwrap_or(default);
    let rules = failure_policy.as_ref().and_then(|policy| policy.rules.as_ref());
    Queue {
        strict: *queueing_strategy == QueueingStrategy::StrictFIFO,
        priority: priority.unwrap_or(0),
        types: accepts.types.unwrap_or_default(),
        default: accepts.default.unwrap_or(false),
        suspend: suspend.unwrap_or(false),
        max_pending: count(limits.max_pending, 1000),
        max_finished: count(limits.max_finished, 500),
        max_dead_letters: count(dead_letters.max, 1000),
        max_item_bytes: count(limits.max_item_bytes, 16_384),
        policy: Policy { dead_letter_ttl: seconds(dead_letters.ttl_seconds).unwrap_or(policy.dead_letter_ttl), ..policy },
        rules: rules
            .into_iter()
            .flatten()
            .map(|rule| Rule {
                action: match rule.action {
                    FailureAction::Retry => Action::Retry,
                    FailureAction::RetryElsewhere => Action::RetryElsewhere,
                    FailureAction::Ignore => Action::Ignore,
                    FailureAction::DeadLetter => Action::DeadLetter,
                    FailureAction::Fail => Action::Fail,
                },
                reasons: rule.on_reasons.clone().unwrap_or_default(),
                exit_codes: rule.on_exit_codes.clone().unwrap_or_default(),
            })
            .collect(),
        cancel_group: failure_policy.as_ref().and_then(|policy| policy.cancel_group).unwrap_or(false),
        max_leased: concurrency.as_ref().and_then(|concurrency| number(concurrency.max_leased)),
        max_leased_per_key: concurrency.as_ref().and_then(|concurrency| number(concurrency.max_leased_per_key)),
        objectives: objectives.as_ref().map_or_else(Default::default, |objectives| Objectives {
            wait: seconds(objectives.wait_seconds),
            completion: seconds(objectives.completion_seconds),
        }),
        hibernates: when_empty.as_ref().is_some_and(|when| when.action == EmptyAction::Hibernate),
        empty_after: when_empty.as_ref().and_then(|when| seconds(Some(when.after_seconds))),
    }
}

/// The cancelled groups of a queue, each with the time of the cancellation. A person or the failure of a member cancels
/// a group.
pub fn cancelled_groups(queue: &WorkQueue) -> Vec<(String, UnixMillis)> {
    let stored = queue.status.iter().flat_map(|status| status.cancelled_groups.iter().flatten());
    let mut all: Vec<_> =
        queue.spec.cancel_groups.iter().flatten().chain(stored).map(|one| (one.group.clone(), unix_millis(one.time.0))).collect();
    // Of two entries for the same group, the later one covers more items.
    all.sort_by(|one, other| (&one.0, std::cmp::Reverse(one.1)).cmp(&(&other.0, std::cmp::Reverse(other.1))));
    all.dedup_by(|later, first| later.0 == first.0);
    all
}
