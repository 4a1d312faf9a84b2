//! The changeset in the status of an item. Pure: it judges no changeset, and reads no pool.
//!
//! Invariant: a changeset is open only while an agent holds the item.

use serde_json::{Value, json};

use crate::api::WorkItem;
use crate::api::item_changeset::{ChangesetState, ItemChangeset};
use crate::policy::work::entry::Entry;
use crate::policy::work::item::{Record, Verb};

/// Reason of a failure whose branch had another commit than the one that the work began from. Pods report it.
pub const CONFLICT_REASON: &str = "ChangesetConflict";
/// Maximum length of a message, in characters.
const MAX_MESSAGE_CHARS: usize = 1024;

/// Branch of the changeset, if an attempt at the item is under way and has one.
pub(super) fn open_branch(item: &WorkItem) -> Option<String> {
    let changeset = item.status.as_ref()?.changeset.as_ref()?;
    (changeset.state == ChangesetState::Open).then(|| changeset.branch.clone().unwrap_or_default())
}

/// The part of a merge patch about the changeset, if it changes. `told` is the changeset that the caller knows. Without
/// it, the changeset of an earlier attempt is removed, and an open one of an attempt that ends is closed.
pub(super) fn patch(entry: &Entry, record: &Record, told: Option<&ItemChangeset>) -> Option<Value> {
    if let Some(told) = told {
        return Some(whole(told));
    }
    let is_new_attempt = record.epoch > entry.record.epoch && record.epoch > 1;
    if is_new_attempt || record.redrives != entry.record.redrives {
        return Some(Value::Null);
    }
    (entry.open_changeset.is_some() && record.holder.is_none()).then(|| closed(record))
}

/// All fields. An absent one removes the field of an earlier attempt.
fn whole(changeset: &ItemChangeset) -> Value {
    let ItemChangeset { state, epoch, remote, branch, folder, base, commit, files, insertions, deletions, message } = changeset;
    json!({
        "state": state,
        "epoch": epoch,
        "remote": remote,
        "branch": branch,
        "folder": folder,
        "base": base,
        "commit": commit,
        "files": files,
        "insertions": insertions,
        "deletions": deletions,
        "message": message.as_deref().map(shortened),
    })
}

/// The end of an open changeset, by the attempt that has just ended. Other fields stay.
fn closed(record: &Record) -> Value {
    let (state, message) = match record.history.last().map(|attempt| (attempt.verb, attempt)) {
        Some((Verb::Fail, attempt)) => {
            let reason = attempt.reason.as_deref().unwrap_or_default();
            let state = if reason == CONFLICT_REASON { ChangesetState::Conflict } else { ChangesetState::Discarded };
            (state, attempt.message.as_deref().unwrap_or(reason))
        }
        Some((Verb::Complete, _)) => (ChangesetState::Discarded, "the agent reported no changeset"),
        Some((Verb::Release | Verb::LeaseExpired | Verb::Stalled | Verb::CancelDone, _)) | None => {
            (ChangesetState::Discarded, "the attempt ended")
        }
    };
    json!({"state": state, "message": shortened(message)})
}

fn shortened(message: &str) -> String {
    message.chars().take(MAX_MESSAGE_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{StatusExtras, entry};
    use super::*;
    use crate::policy::work::item::{Attempt, Holder, Phase, Policy, UnixMillis};

    fn item(status: Value) -> WorkItem {
        let meta = json!({"name": "i", "namespace": "n", "uid": "u", "resourceVersion": "7"});
        let object = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkItem", "metadata": meta,
            "spec": {"queueRef": {"name": "q"}, "payload": "x"}, "status": status});
        serde_json::from_value(object).expect("a WorkItem")
    }

    /// An item that an agent holds, with an open changeset.
    fn open() -> Value {
        json!({"phase": "Leased", "lease": {"holder": "p", "agent": "a", "leaseTransitions": 2},
            "changeset": {"state": "Open", "epoch": 2, "remote": "https://git.example.com/a", "branch": "spillway/i"}})
    }

    fn record(phase: Phase, epoch: i64, redrives: i64, last: Option<(Verb, &str, Option<&str>)>) -> Record {
        let holder = phase.held().then(|| Holder { pod: "p".into(), agent: "a".into(), since: UnixMillis(0) });
        let history = last.into_iter().map(|(verb, reason, message)| Attempt {
            epoch,
            agent: "a".into(),
            start: UnixMillis(0),
            end: UnixMillis(1),
            verb,
            reason: Some(reason.to_owned()),
            message: message.map(str::to_owned),
        });
        Record { phase, epoch, redrives, holder, history: history.collect(), ..Record::default() }
    }

    fn patched(status: Value, record: &Record, told: Option<ItemChangeset>) -> Option<Value> {
        let extras = StatusExtras { changeset: told.map(Box::new), ..StatusExtras::default() };
        let patch = super::super::patch(&entry(&item(status)), record, &Policy::default(), &extras, 9, UnixMillis(2));
        patch["status"].get("changeset").cloned()
    }

    #[test]
    fn an_item_has_an_open_changeset_only_while_it_is_open() {
        let branch = |status: Value| entry(&item(status)).open_changeset;
        assert_eq!(branch(open()).as_deref(), Some("spillway/i"));
        for state in ["Committed", "Discarded", "Conflict"] {
            assert_eq!(branch(json!({"changeset": {"state": state, "epoch": 2, "branch": "b"}})), None, "{state}");
        }
        assert_eq!(branch(json!({})), None);
    }

    #[test]
    fn an_attempt_that_ends_closes_its_changeset_however_it_ends() {
        let ended = |verb, reason: &str, message: Option<&str>| {
            let phase = if verb == Verb::Complete { Phase::Succeeded } else { Phase::Scheduled };
            let value = patched(open(), &record(phase, 2, 0, Some((verb, reason, message))), None).expect("it is closed");
            let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
            assert_eq!(value.as_object().map(serde_json::Map::len), Some(2), "remote and branch stay: {value}");
            (text("state"), text("message"))
        };
        let pair = |state: &str, message: &str| (state.to_owned(), message.to_owned());
        assert_eq!(ended(Verb::Fail, CONFLICT_REASON, Some("main moved")), pair("Conflict", "main moved"));
        assert_eq!(ended(Verb::Fail, "ProtectedPath", Some("ci.yml")), pair("Discarded", "ci.yml"));
        assert_eq!(ended(Verb::Fail, "Exited", None), pair("Discarded", "Exited"));
        assert_eq!(ended(Verb::Complete, "", None), pair("Discarded", "the agent reported no changeset"));
        for verb in [Verb::Release, Verb::LeaseExpired, Verb::Stalled, Verb::CancelDone] {
            assert_eq!(ended(verb, CONFLICT_REASON, Some("words")), pair("Discarded", "the attempt ended"), "{verb:?}");
        }
        assert_eq!(ended(Verb::Fail, "Exited", Some(&"ä".repeat(2000))).1.chars().count(), MAX_MESSAGE_CHARS);
    }

    #[test]
    fn a_changeset_stays_while_the_item_is_held_and_goes_with_a_new_attempt_or_a_redrive() {
        for phase in [Phase::Leased, Phase::Paused, Phase::Cancelling] {
            assert_eq!(patched(open(), &record(phase, 2, 0, None), None), None, "{phase:?}");
        }
        let old = json!({"phase": "Ready", "lease": {"leaseTransitions": 2},
            "changeset": {"state": "Committed", "epoch": 2, "commit": "c"}});
        assert_eq!(patched(old.clone(), &record(Phase::Leased, 3, 0, None), None), Some(Value::Null), "a pool without changesets");
        assert_eq!(patched(old.clone(), &record(Phase::Pending, 2, 1, None), None), Some(Value::Null), "a redrive");
        assert_eq!(patched(old, &record(Phase::Scheduled, 2, 0, None), None), None, "the last attempt's stays");
        assert_eq!(patched(json!({}), &record(Phase::Leased, 1, 0, None), None), None, "the first attempt finds none");
        let lost = record(Phase::Pending, 2, 1, Some((Verb::LeaseExpired, "AgentGone", None)));
        assert_eq!(patched(open(), &lost, None), Some(Value::Null), "lost and redriven at once");
    }

    #[test]
    fn a_known_changeset_replaces_every_field() {
        let told = ItemChangeset {
            remote: Some("https://git.example.com/a".into()),
            branch: Some("spillway/i".into()),
            ..ItemChangeset::new(ChangesetState::Open, 3)
        };
        let value = patched(open(), &record(Phase::Leased, 3, 0, None), Some(told)).expect("a patch");
        let expected = json!({"state": "Open", "epoch": 3, "remote": "https://git.example.com/a", "branch": "spillway/i", "folder": null, "base": null,
            "commit": null, "files": null, "insertions": null, "deletions": null, "message": null});
        assert_eq!(value, expected);
    }
}
