//! Building conditions: one that did not change keeps its transition time, so that an unchanged status is equal to the
//! stored one and is not written.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Builds conditions of one object at one moment.
#[derive(Clone, Copy)]
pub struct Builder<'a> {
    /// The conditions stored now.
    pub stored: &'a [Condition],
    /// The generation that they are about.
    pub generation: i64,
    /// The current time, for conditions that change.
    pub now: jiff::Timestamp,
}

impl Builder<'_> {
    /// The condition `type_`, with the time of its last change of status.
    pub fn build(&self, type_: &str, status: bool, reason: &str, message: impl Into<String>) -> Condition {
        self.with_status(type_, if status { "True" } else { "False" }, reason, message)
    }

    /// As [`build`](Self::build), for a condition that may be Unknown.
    pub fn with_status(&self, type_: &str, status: &str, reason: &str, message: impl Into<String>) -> Condition {
        let last = find(self.stored, type_);
        let unchanged = last.filter(|last| last.status == status).map(|last| last.last_transition_time.clone());
        let mut message: String = message.into();
        message.truncate(message.char_indices().nth(4096).map_or(message.len(), |(at, _)| at));
        Condition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message,
            observed_generation: Some(self.generation),
            last_transition_time: unchanged.unwrap_or(Time(self.now)),
        }
    }
}

/// `next` with the messages of `stored` where type, status and reason are the same: equal to it when only words changed.
pub fn with_stored_messages(next: &[Condition], stored: &[Condition]) -> Vec<Condition> {
    let old = |condition: &Condition| {
        find(stored, &condition.type_)
            .filter(|old| old.status == condition.status && old.reason == condition.reason)
            .map(|old| old.message.clone())
    };
    next.iter()
        .map(|condition| Condition { message: old(condition).unwrap_or_else(|| condition.message.clone()), ..condition.clone() })
        .collect()
}

/// The condition `type_` among `conditions`.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Whether the condition `type_` is True, for this generation.
pub fn holds_for(conditions: &[Condition], type_: &str, generation: i64) -> bool {
    find(conditions, type_).is_some_and(|condition| condition.status == "True" && condition.observed_generation == Some(generation))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_moves_only_with_the_status() {
        let at = |second| jiff::Timestamp::from_second(second).expect("a time");
        let first = Builder { stored: &[], generation: 1, now: at(10) }.build("Ready", true, "A", "a");
        let stored = [first.clone()];
        let same = Builder { stored: &stored, generation: 2, now: at(20) }.build("Ready", true, "B", "b");
        assert_eq!(same.last_transition_time, first.last_transition_time);
        assert_eq!(same.observed_generation, Some(2));
        let changed = Builder { stored: &stored, generation: 2, now: at(20) }.build("Ready", false, "B", "b");
        assert_eq!(changed.last_transition_time, Time(at(20)));
    }
}
