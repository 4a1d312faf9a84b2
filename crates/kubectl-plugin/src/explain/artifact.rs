//! The artifacts of an item in its report. Pure.

use super::report::List;
use crate::api::WorkItem;
use crate::artifact::{of, size};
use crate::table::printable;

/// The most artifacts that are named.
const MAX_NAMED: usize = 8;

/// Adds the names and sizes of the artifacts, if the item has any.
pub fn add_facts(list: &mut List, item: &WorkItem) {
    let all = of(item);
    let mut names: Vec<String> =
        all.iter().take(MAX_NAMED).map(|artifact| format!("{} ({})", printable(&artifact.name), size(artifact.bytes))).collect();
    if all.len() > MAX_NAMED {
        names.push(format!("{} more", all.len() - MAX_NAMED));
    }
    list.text("Artifacts", (!names.is_empty()).then(|| names.join(", ")));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_artifacts_are_named_with_their_sizes() {
        let facts = |count: usize| {
            let artifact = |number: usize| {
                json!({"name": format!("f{number}"), "bytes": 1500, "sha256": "0".repeat(64), "id": "1", "epoch": 1,
                    "creationTime": "2026-01-01T00:00:00Z", "expirationTime": "2026-01-09T00:00:00Z"})
            };
            let all: Vec<_> = (0..count).map(artifact).collect();
            let item = serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkItem", "metadata": {"name": "i"},
                "spec": {"queueRef": {"name": "q"}}, "status": {"artifacts": all}}));
            let mut list = List::default();
            add_facts(&mut list, &item.expect("an item"));
            list.into_facts().into_iter().map(|fact| format!("{}: {}", fact.name, fact.value)).collect::<Vec<_>>()
        };
        assert!(facts(0).is_empty());
        assert_eq!(facts(2), ["Artifacts: f0 (1.5 kB), f1 (1.5 kB)"]);
        assert!(facts(10)[0].ends_with("f7 (1.5 kB), 2 more"), "{:?}", facts(10));
    }
}
