//! The artifacts in the status of an item. Pure: it judges none.

use serde_json::{Value, json};

use super::{time_json, unix_millis};
use crate::api::WorkItem;
use crate::api::artifact::ItemArtifact;
use crate::policy::artifacts::Artifact;

/// The artifacts of an item, as its status has them.
pub fn artifacts(item: &WorkItem) -> Vec<Artifact> {
    let stored = item.status.as_ref().and_then(|status| status.artifacts.as_ref());
    stored.into_iter().flatten().map(artifact).collect()
}

fn artifact(stored: &ItemArtifact) -> Artifact {
    let ItemArtifact { name, bytes, sha256, id, epoch, creation_time, expiration_time } = stored;
    Artifact {
        name: name.clone(),
        bytes: u64::try_from(*bytes).unwrap_or(0),
        sha256: sha256.clone(),
        id: id.clone(),
        epoch: *epoch,
        created: unix_millis(creation_time.0),
        expires: unix_millis(expiration_time.0),
    }
}

/// The part of a merge patch with all artifacts.
pub(super) fn patch(artifacts: &[Artifact]) -> Value {
    let one = |artifact: &Artifact| {
        let Artifact { name, bytes, sha256, id, epoch, created, expires } = artifact;
        json!({
            "name": name,
            "bytes": i64::try_from(*bytes).unwrap_or(i64::MAX),
            "sha256": sha256,
            "id": id,
            "epoch": epoch,
            "creationTime": time_json(*created),
            "expirationTime": time_json(*expires),
        })
    };
    artifacts.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{StatusExtras, entry};
    use super::*;
    use crate::policy::work::item::{Policy, Record, UnixMillis};

    fn item(status: Value) -> WorkItem {
        let object = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkItem", "metadata": {"name": "i", "uid": "u"},
            "spec": {"queueRef": {"name": "q"}}, "status": status});
        serde_json::from_value(object).expect("a WorkItem")
    }

    #[test]
    fn artifacts_are_read_as_they_are_written() {
        let all = vec![Artifact {
            name: "report.pdf".into(),
            bytes: 7,
            sha256: "0".repeat(64),
            id: "1".repeat(32),
            epoch: 2,
            created: UnixMillis(1_000),
            expires: UnixMillis(61_000),
        }];
        let written = item(json!({"artifacts": patch(&all)}));
        assert_eq!(artifacts(&written), all);
        assert!(artifacts(&item(json!({}))).is_empty());
    }

    #[test]
    fn a_patch_changes_the_artifacts_if_told_and_drops_those_of_a_redriven_item() {
        let entry = entry(&item(json!({})));
        let patched = |redrives: i64, told: Option<Vec<Artifact>>| {
            let record = Record { redrives, ..entry.record.clone() };
            let extras = StatusExtras { artifacts: told, ..StatusExtras::default() };
            super::super::patch(&entry, &record, &Policy::default(), &extras, 9, UnixMillis(2))["status"].get("artifacts").cloned()
        };
        assert_eq!(patched(0, None), None);
        assert_eq!(patched(0, Some(Vec::new())), Some(json!([])));
        assert_eq!(patched(1, None), Some(Value::Null));
    }
}
