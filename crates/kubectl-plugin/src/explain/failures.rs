//! The fix that an item needs before it is started again after a failure. If all attempts failed in the same way, the advice
//! must not be a redrive alone. Pure.

use super::advice::{self, Advice};
use crate::api::WorkItem;
use crate::api::conditions::reasons;
use crate::policy::work::Record;
use crate::policy::work::item::{Attempt, Verb};
use crate::table::one_line;

/// The fix before an item that failed is started again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FirstFailure {
    /// No action: another attempt may succeed.
    Nothing,
    /// Fix this first, then start the item again.
    FixFirst(String),
    /// Do this instead: another attempt cannot succeed.
    Instead(String),
}

impl FirstFailure {
    /// The whole advice. `again` is the sentence that tells how to start the item again.
    pub fn followed_by(self, again: String) -> String {
        match self {
            Self::Nothing => again,
            Self::FixFirst(first) => format!("{first}. Then {again}"),
            Self::Instead(other) => other,
        }
    }
}

/// The fix that is needed, by the attempts since the last redrive. `pool` is the pool of the agents that failed, if it is known.
pub fn before_redrive(item: &WorkItem, record: &Record, pool: Option<&str>, namespace: &str) -> FirstFailure {
    let counted = usize::try_from(record.failures).unwrap_or(usize::MAX);
    let fails: Vec<&Attempt> = record.history.iter().rev().filter(|attempt| attempt.verb == Verb::Fail).take(counted).collect();
    let Some(last) = fails.first() else { return FirstFailure::Nothing };
    let reason = last.reason.as_deref().unwrap_or_default();
    if reason == reasons::SHARE_SPENT {
        let share = item.spec.bulkhead.as_ref().and_then(|bulkhead| bulkhead.tokens);
        let tokens = share.map(|tokens| format!("{tokens} tokens")).unwrap_or_default();
        return FirstFailure::Instead(format!(
            "submit another item with a larger share: each attempt at this item may spend {tokens} (spec.bulkhead.tokens), and that field cannot be changed"
        ));
    }
    match advice::for_reason(reason) {
        Some(Advice::Do(text)) => {
            let names = [("agent", Some(last.agent.as_str())), ("pool", pool), ("namespace", Some(namespace))];
            FirstFailure::FixFirst(advice::with_names(text, &names))
        }
        Some(Advice::Nothing(_)) | None if fails.len() > 1 && fails.iter().all(|other| ended_same_way(last, other)) => {
            FirstFailure::FixFirst(format!(
                "the item failed in the same way {} times ({reason}), and would fail again: fix the cause that its last attempt shows, in the item's payload, the agent's image or the pool",
                fails.len()
            ))
        }
        Some(Advice::Nothing(_)) | None => FirstFailure::Nothing,
    }
}

/// Whether two attempts ended in the same way. Digits are ignored, because times and ports change.
fn ended_same_way(one: &Attempt, other: &Attempt) -> bool {
    let words =
        |attempt: &Attempt| one_line(attempt.message.as_deref().unwrap_or_default()).replace(|digit: char| digit.is_ascii_digit(), "");
    one.reason == other.reason && words(one) == words(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use spillway_conversion::work as convert;

    /// The advice for an item with these attempts: verb, reason, message.
    fn advice(attempts: &[(&str, &str, &str)]) -> FirstFailure {
        let one = |(epoch, (verb, reason, message)): (usize, &(&str, &str, &str))| {
            json!({"epoch": epoch, "agent": "p-1", "startTime": "2026-01-01T00:00:00Z", "endTime": "2026-01-01T00:01:00Z",
                "verb": verb, "reason": reason, "message": message})
        };
        let attempts: Vec<Value> = attempts.iter().enumerate().map(one).collect();
        let item: WorkItem = serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkItem",
            "metadata": {"name": "i"}, "spec": {"queueRef": {"name": "q"}, "bulkhead": {"tokens": 500}},
            "status": {"phase": "DeadLettered", "failures": 3, "attemptHistory": attempts}}))
        .expect("an item");
        before_redrive(&item, &convert::record(&item), Some("p"), "n")
    }

    fn text(first: FirstFailure) -> String {
        first.followed_by("AGAIN".to_owned())
    }

    #[test]
    fn another_try_is_advised_alone_only_where_it_may_succeed() {
        assert_eq!(text(advice(&[])), "AGAIN");
        assert_eq!(text(advice(&[("Fail", "Exited", "one"), ("Fail", "Exited", "two")])), "AGAIN", "it ends another way each time");
        assert_eq!(text(advice(&[("Fail", "Exited", "one")])), "AGAIN", "once is no pattern");
        let lost = [("LeaseExpired", "PodMissing", "gone"), ("LeaseExpired", "PodMissing", "gone")];
        assert_eq!(text(advice(&lost)), "AGAIN", "it was the agent's or the node's fault");
    }

    #[test]
    fn what_fails_the_same_way_has_to_be_mended_first() {
        let same = [("Fail", "Exited", "no module x\nat 12:01"), ("Release", "Drained", ""), ("Fail", "Exited", "no module x at 13:59")];
        let told = text(advice(&same));
        assert!(
            told.starts_with("the item failed in the same way 2 times (Exited), and would fail again: fix") && told.ends_with("Then AGAIN"),
            "{told}"
        );
        let exhausted = text(advice(&[("Fail", "TokensExhausted", "a"), ("Fail", "TokensExhausted", "b")]));
        assert!(
            exhausted.contains("raise spec.bulkhead.lifetimeTokens or topUp of pool p") && exhausted.ends_with("Then AGAIN"),
            "{exhausted}"
        );
    }

    #[test]
    fn an_item_whose_share_is_too_small_is_not_started_again() {
        let told = text(advice(&[("Fail", "ShareSpent", "the item's share: 3 of 500")]));
        assert!(told.contains("submit another item") && told.contains("500 tokens") && !told.contains("AGAIN"), "{told}");
    }
}
