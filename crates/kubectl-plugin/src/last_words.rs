//! Finds the last output of an agent whose pod is gone. The log is gone with the pod, but the items that the agent worked on keep
//! the end of the output.

use std::cmp::Reverse;

use kube::ResourceExt as _;

use super::connect::Cluster;
use super::work;
use crate::api::WorkItem;

/// The most items that a message names.
const MAX_NAMED_ITEMS: usize = 5;

/// Reads the items of the namespace at the first use, and keeps them.
#[derive(Debug, Default)]
pub struct LastWords {
    items: Option<Result<Vec<WorkItem>, String>>,
}

impl LastWords {
    /// A sentence that says where the last output of this agent is.
    pub async fn of(&mut self, cluster: &Cluster, agent: &str) -> String {
        if self.items.is_none() {
            self.items = Some(work::items(cluster, None).await.map(|found| found.objects).map_err(|error| error.to_string()));
        }
        match &self.items {
            Some(Ok(items)) => output_location(agent, &cluster.namespace, items),
            Some(Err(error)) => format!("{} (the items cannot be read: {error})", no_output_text(agent, &cluster.namespace)),
            None => no_output_text(agent, &cluster.namespace),
        }
    }
}

/// Names the items that keep the output of the agent. Pure.
fn output_location(agent: &str, namespace: &str, items: &[WorkItem]) -> String {
    let attempts = |item: &WorkItem| item.status.clone().unwrap_or_default().attempt_history.unwrap_or_default();
    let worked =
        |item: &WorkItem| attempts(item).into_iter().filter(|attempt| attempt.agent == agent).filter_map(|attempt| attempt.end_time).max();
    let mut found: Vec<_> = items.iter().filter_map(|item| Some((worked(item)?, item.name_any()))).collect();
    found.sort_by_key(|(ended, name)| (Reverse(ended.clone()), name.clone()));
    let Some((_, last)) = found.first() else { return no_output_text(agent, namespace) };
    let others: Vec<&str> = found.iter().skip(1).take(MAX_NAMED_ITEMS - 1).map(|(_, name)| name.as_str()).collect();
    let others = if others.is_empty() { String::new() } else { format!("; earlier items: {}", others.join(", ")) };
    format!(
        "The attempts of its last item keep the end of the program's output: `kubectl spillway explain item/{last} -n {namespace} -o json`{others}"
    )
}

fn no_output_text(agent: &str, namespace: &str) -> String {
    format!("No item keeps output of this agent; `kubectl spillway explain agent/{agent} -n {namespace}` shows how it ended")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn item(name: &str, attempts: &[(&str, &str)]) -> WorkItem {
        let history: Vec<_> = attempts
            .iter()
            .map(|(agent, end)| json!({"epoch": 1, "agent": agent, "verb": "Fail", "startTime": "2026-01-01T00:00:00Z", "endTime": end}))
            .collect();
        serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkItem", "metadata": {"name": name},
            "spec": {"type": "t"}, "status": {"attemptHistory": history}}))
        .expect("an item")
    }

    #[test]
    fn the_items_that_an_agent_worked_on_are_named_the_last_one_first() {
        let items = [
            item("old", &[("a", "2026-01-01T00:01:00Z")]),
            item("new", &[("b", "2026-01-01T00:09:00Z"), ("a", "2026-01-01T00:03:00Z")]),
            item("other", &[("b", "2026-01-01T00:05:00Z")]),
        ];
        let told = output_location("a", "n", &items);
        assert!(told.contains("`kubectl spillway explain item/new -n n -o json`; earlier items: old"), "{told}");
        assert!(!told.contains("other,") && output_location("b", "n", &items).contains("item/new"));
        assert!(
            output_location("c", "n", &items)
                .contains("No item keeps output of this agent; `kubectl spillway explain agent/c -n n` shows how it ended")
        );
        let many: Vec<_> = (0..50).map(|number| item(&format!("i{number}"), &[("a", "2026-01-01T00:01:00Z")])).collect();
        assert_eq!(output_location("a", "n", &many).matches(", ").count(), MAX_NAMED_ITEMS - 2);
    }
}
