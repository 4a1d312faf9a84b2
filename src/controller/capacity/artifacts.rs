//! The limits on the artifacts that agents of a pool store: the lowest of the Budgets over the pool, of the Budgets of its namespace
//! without a parent, and of the ClusterBudgets. Pure.

use std::time::Duration;

use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};

use super::{Cluster, clusters_over, known_path};
use crate::api::artifact::{ArtifactLimits, MAX_ARTIFACTS};
use crate::api::shared::Mode;
use crate::api::{AgentPool, Budget};
use crate::controller::stores::Stores;
use crate::policy::artifacts::{Limit, Limits};

/// Of one artifact, where nothing sets it.
const DEFAULT_FILE_BYTES: u64 = 1 << 30;
/// Of all artifacts of a namespace, where nothing sets it.
const DEFAULT_TOTAL_BYTES: u64 = 10 << 30;
/// How long an artifact is kept, where nothing sets it.
const DEFAULT_RETENTION: Duration = Duration::from_hours(7 * 24);

/// A field of [`ArtifactLimits`]: its name and its value.
type Field = (&'static str, fn(&ArtifactLimits) -> Option<i64>);

const FILE: Field = ("maxFileBytes", |limits| limits.max_file_bytes);
const TOTAL: Field = ("maxTotalBytes", |limits| limits.max_total_bytes);
const RETENTION: Field = ("retentionSeconds", |limits| limits.retention_seconds);

/// The limits on the artifacts of the agents of a pool.
pub fn artifact_limits(pool: &AgentPool, stores: &Stores) -> Limits {
    let namespace = pool.namespace().unwrap_or_default();
    let clusters = clusters_over(&namespace, stores);
    let (path, _) = known_path(pool, stores);
    let over = path.iter().filter_map(|name| stores.budgets.get(&ObjectRef::new(name).within(&namespace)));
    let budgets: Vec<Budget> = over.chain(stores.budgets_of(&namespace)).filter_map(|object| object.0.as_ref().ok().cloned()).collect();
    let applies =
        |budget: &&Budget| budget.spec.mode == Mode::Enforce && (budget.spec.parent_ref.is_none() || path.contains(&budget.name_any()));
    let budgets: Vec<&Budget> = budgets.iter().filter(applies).collect();
    let lowest = |field: Field, default: u64| {
        let of_budgets = budgets.iter().filter_map(|budget| of_budget(budget, &clusters, field));
        let of_clusters = clusters.iter().filter_map(|cluster| {
            let limits = cluster.budget.spec.per_namespace.as_ref()?.artifacts.as_ref();
            limit(limits, field, &cluster.name(), "spec.perNamespace.artifacts")
        });
        let default = || Limit { most: default, source: format!("the default of {}", field.0) };
        of_budgets.chain(of_clusters).min().unwrap_or_else(default)
    };
    Limits {
        file: lowest(FILE, DEFAULT_FILE_BYTES),
        total: lowest(TOTAL, DEFAULT_TOTAL_BYTES),
        retention: Duration::from_secs(lowest(RETENTION, DEFAULT_RETENTION.as_secs()).most),
        of_item: MAX_ARTIFACTS,
    }
}

/// The Budget's own value of a field, else the lowest default of the ClusterBudgets.
fn of_budget(budget: &Budget, clusters: &[Cluster], field: Field) -> Option<Limit> {
    let own = limit(budget.spec.artifacts.as_ref(), field, &format!("{}/{}", Budget::kind(&()), budget.name_any()), "spec.artifacts");
    let default = |cluster: &Cluster| {
        let defaults = cluster.budget.spec.defaults.as_ref()?.budget.as_ref()?;
        limit(defaults.artifacts.as_ref(), field, &cluster.name(), "spec.defaults.budget.artifacts")
    };
    own.or_else(|| clusters.iter().filter_map(default).min())
}

fn limit(limits: Option<&ArtifactLimits>, (name, value): Field, object: &str, path: &str) -> Option<Limit> {
    let most = u64::try_from(value(limits?)?).unwrap_or(0);
    Some(Limit { most, source: format!("{object} ({path}.{name})") })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const API: &str = "spillway.dev/v1alpha1";

    fn limits(objects: &[Value]) -> Limits {
        let pool = json!({"apiVersion": API, "kind": "AgentPool", "metadata": {"name": "p", "namespace": "n"},
            "spec": {"type": "worker", "agent": {"image": "x", "command": ["y"]}, "budgetRef": {"name": "team"}}});
        let stores = Stores::of(&[objects, &[pool]].concat());
        let pool = stores.pool("n", "p").expect("the pool");
        artifact_limits(pool.0.as_ref().expect("it fits"), &stores)
    }

    fn budget(name: &str, spec: Value) -> Value {
        json!({"apiVersion": API, "kind": "Budget", "metadata": {"name": name, "namespace": "n"}, "spec": spec})
    }

    fn cluster(mut spec: Value) -> Value {
        spec["namespaceSelector"] = json!({});
        json!({"apiVersion": API, "kind": "ClusterBudget", "metadata": {"name": "c"}, "spec": spec})
    }

    #[test]
    fn without_a_budget_there_are_limits_too() {
        let Limits { file, total, retention, of_item } = limits(&[]);
        assert_eq!((file.most, total.most, retention.as_secs(), of_item), (1 << 30, 10 << 30, 604_800, 32));
        assert_eq!(file.source, "the default of maxFileBytes");
    }

    #[test]
    fn the_lowest_limit_over_the_pool_counts_with_its_source() {
        let team = |spec: Value| budget("team", spec);
        let over = [
            team(json!({"parentRef": {"name": "root"}, "artifacts": {"maxFileBytes": 9}})),
            budget("root", json!({"artifacts": {"maxFileBytes": 7, "maxTotalBytes": 70, "retentionSeconds": 600}})),
            budget("other", json!({"parentRef": {"name": "root"}, "artifacts": {"maxFileBytes": 1}})),
            cluster(
                json!({"perNamespace": {"artifacts": {"maxTotalBytes": 60}}, "defaults": {"budget": {"artifacts": {"retentionSeconds": 60}}}}),
            ),
        ];
        let Limits { file, total, retention, of_item: _ } = limits(&over);
        assert_eq!(file, Limit { most: 7, source: "Budget/root (spec.artifacts.maxFileBytes)".into() });
        assert_eq!(total, Limit { most: 60, source: "ClusterBudget/c (spec.perNamespace.artifacts.maxTotalBytes)".into() });
        assert_eq!(retention.as_secs(), 60, "the team's Budget has the default of the cluster");
        let observed = [team(json!({"mode": "Observe", "artifacts": {"maxFileBytes": 1}}))];
        assert_eq!(limits(&observed).file.most, 1 << 30, "it only counts");
    }
}
