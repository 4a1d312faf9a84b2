//! Which labels of a node change, and when to look again. Pure: no files, no requests, no clock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::api::names::{NODE_PROFILE_INSTALLED, NODE_PROFILE_LABEL_PREFIX, node_profile_label};

/// The longest wait after a failure.
const RETRY_WAIT: Duration = Duration::from_secs(15);

/// The labels to change: a value, or `None` for a label to remove. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelChanges(pub BTreeMap<String, Option<String>>);

/// The result of a look at the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Findings {
    /// The profile and the labels are as they should be.
    Installed,
    /// The profile cannot be written, or the labels cannot be set.
    Failed,
}

/// The changes after which a node with the labels `current` has one label for each of the `versions`, and no other label of this kind.
pub fn changes(current: &BTreeMap<String, String>, versions: &BTreeSet<String>) -> Option<LabelChanges> {
    let desired: BTreeSet<String> = versions.iter().map(|version| node_profile_label(version)).collect();
    let stale = current.keys().filter(|key| key.starts_with(NODE_PROFILE_LABEL_PREFIX) && !desired.contains(*key));
    let missing = desired.iter().filter(|key| current.get(*key).is_none_or(|value| value != NODE_PROFILE_INSTALLED));
    let removed = stale.map(|key| (key.clone(), None));
    let added = missing.map(|key| (key.clone(), Some(NODE_PROFILE_INSTALLED.to_owned())));
    let all: BTreeMap<_, _> = removed.chain(added).collect();
    (!all.is_empty()).then_some(LabelChanges(all))
}

/// How long to wait before the next look.
pub fn next_wait(findings: Findings, interval: Duration) -> Duration {
    match findings {
        Findings::Installed => interval,
        Findings::Failed => interval.min(RETRY_WAIT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "seccomp.spillway.dev/agent-strict-0123abcd";
    const OLD: &str = "seccomp.spillway.dev/agent-strict-76543210";

    fn planned(current: &[(&str, &str)], versions: &[&str]) -> Vec<(String, Option<String>)> {
        let current = current.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let versions = versions.iter().map(|version| (*version).to_owned()).collect();
        changes(&current, &versions).map(|LabelChanges(all)| all.into_iter().collect()).unwrap_or_default()
    }

    #[test]
    fn each_version_on_the_node_has_a_label_and_no_other_label_changes() {
        let set = |key: &str| (key.to_owned(), Some("installed".to_owned()));
        let removed = |key: &str| (key.to_owned(), None);
        let others = [("disk", "ssd"), ("seccomp.spillway.dev/other", "x"), ("spillway.dev/pool", "p")];
        assert_eq!(planned(&others, &["0123abcd"]), [set(OWN)]);
        assert_eq!(planned(&[(OWN, "installed")], &["0123abcd"]), []);
        assert_eq!(planned(&[(OWN, "no")], &["0123abcd"]), [set(OWN)], "a person changed it");
        // After an upgrade both files are there: pods of the old controller still find their version.
        assert_eq!(planned(&[(OLD, "installed")], &["0123abcd", "76543210"]), [set(OWN)]);
        assert_eq!(planned(&[(OLD, "installed")], &["0123abcd"]), [set(OWN), removed(OLD)]);
        assert_eq!(planned(&[(OWN, "installed"), (OLD, "installed"), ("disk", "ssd")], &[]), [removed(OWN), removed(OLD)]);
        assert_eq!(planned(&others, &[]), []);
    }

    #[test]
    fn a_failure_is_tried_again_sooner() {
        let minutes = Duration::from_secs(300);
        assert_eq!(next_wait(Findings::Installed, minutes), minutes);
        assert_eq!(next_wait(Findings::Failed, minutes), RETRY_WAIT);
        assert_eq!(next_wait(Findings::Failed, Duration::from_secs(2)), Duration::from_secs(2));
    }
}
