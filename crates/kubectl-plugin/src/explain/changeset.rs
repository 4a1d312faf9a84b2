//! The changeset of an item in its report: the facts, and the advice after an attempt that failed because of it. Pure.

use super::advice::{self, Advice};
use super::report::List;
use super::work::Cause;
use crate::api::WorkItem;
use crate::policy::work::Record;
use crate::policy::work::item::Verb;
use crate::table::one_line;
use crate::work::changeset;
use spillway_wire::changeset::reasons;

/// Adds the facts of the changeset, if the item has one.
pub fn add_facts(list: &mut List, item: &WorkItem) {
    let Some(found) = changeset::of(item) else { return };
    let message = found.message.as_deref().map(|message| format!("; {}", one_line(message))).unwrap_or_default();
    list.text("Changeset", Some(format!("{}{message}", changeset::state_text(found))));
    list.text("Branch", found.branch.as_ref());
    list.text("Folder", found.folder.as_ref());
    list.text("Commits", changeset::commits_text(found));
    list.text("Changes", changeset::size_text(found));
}

/// The cause and the advice for an item that waits after an attempt that failed because of its changeset. `pool` is the pool of
/// the agents, if it is known.
pub fn failure_cause(record: &Record, pool: Option<&str>, namespace: &str) -> Option<Cause> {
    if record.phase.ended() || record.phase.held() {
        return None;
    }
    let last = record.history.last().filter(|attempt| attempt.verb == Verb::Fail)?;
    let reason = last.reason.as_deref().filter(|reason| reasons::ALL.contains(reason))?;
    let Some(Advice::Do(text) | Advice::Nothing(text)) = advice::for_reason(reason) else { return None };
    let names = [("agent", Some(last.agent.as_str())), ("pool", pool), ("namespace", Some(namespace))];
    Some(Cause::with_action(format!("its last attempt failed ({reason})"), reason, advice::with_names(text, &names)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use spillway_conversion::work as convert;

    fn item(phase: &str, reason: &str, changeset: &Value) -> WorkItem {
        serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkItem",
            "metadata": {"name": "i", "namespace": "n"}, "spec": {"queueRef": {"name": "q"}},
            "status": {"phase": phase, "failures": 1, "changeset": changeset, "attemptHistory": [{"epoch": 1, "agent": "p-1",
                "startTime": "2026-01-01T00:00:00Z", "endTime": "2026-01-01T00:01:00Z", "verb": "Fail", "reason": reason, "message": "m"}]}}))
        .expect("an item")
    }

    fn cause(phase: &str, reason: &str) -> Option<Cause> {
        failure_cause(&convert::record(&item(phase, reason, &Value::Null)), Some("p"), "n")
    }

    #[test]
    fn each_failure_of_a_changeset_has_advice_while_the_item_waits() {
        for reason in reasons::ALL {
            assert!(matches!(advice::for_reason(reason), Some(Advice::Do(_))), "{reason}");
            let cause = cause("Scheduled", reason).expect("a cause");
            let hint = cause.hint.expect("advice");
            assert_eq!((cause.words, hint.reason.as_str(), hint.act), (format!("its last attempt failed ({reason})"), reason, true));
            assert!(!hint.advice.contains("{pool}"), "{}", hint.advice);
        }
    }

    #[test]
    fn other_failures_and_items_that_do_not_wait_get_none() {
        assert_eq!(cause("Scheduled", "Exited"), None);
        assert_eq!(cause("Leased", reasons::PROTECTED_PATH), None, "the next attempt decides");
        assert_eq!(cause("DeadLettered", reasons::PROTECTED_PATH), None, "the advice on the redrive has it");
    }

    #[test]
    fn the_facts_name_the_branch_the_commits_and_the_size() {
        let facts = |changeset: &Value| {
            let mut list = List::default();
            add_facts(&mut list, &item("Succeeded", "Exited", changeset));
            list.into_facts().into_iter().map(|fact| format!("{}: {}", fact.name, fact.value)).collect::<Vec<_>>()
        };
        let committed = json!({"state": "Committed", "epoch": 1, "branch": "spillway/i", "base": "0123456789abcdef", "commit": "fedcba9876543210",
            "files": 2, "insertions": 5, "deletions": 0});
        assert_eq!(
            facts(&committed),
            [
                "Changeset: Committed: the changes are a commit on the branch",
                "Branch: spillway/i",
                "Commits: 0123456789ab..fedcba987654",
                "Changes: 2 files, +5 -0"
            ]
        );
        let refused = json!({"state": "Discarded", "epoch": 1, "message": "ProtectedPath:\n.github"});
        assert_eq!(facts(&refused), ["Changeset: Discarded: nothing was pushed; ProtectedPath: .github"]);
        assert!(facts(&Value::Null).is_empty());
    }
}
