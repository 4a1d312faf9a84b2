//! Reconciling an unchanged cluster writes nothing.

use std::time::Duration;

use kube::api::{Patch, PatchParams};
use serde_json::json;
use spillway::api::{Breaker, Budget};

use crate::support::{TestNamespace, audit};

#[tokio::test]
async fn an_unchanged_namespace_is_written_to_by_nobody_for_a_minute() {
    let room = TestNamespace::open("quiet").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    // With a Budget of its own the namespace gets no default one. The compute objects of this one exist and need no
    // change.
    let budget = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Budget", "metadata": {"name": "team"},
        "spec": {"compute": {"hard": {"pods": "50", "requests.cpu": "100000m"}, "perAgent": {"max": {"memory": "65536Mi"}}}}});
    room.api::<Budget>().patch("team", &PatchParams::apply("e2e"), &Patch::Apply(budget)).await.expect("the Budget is accepted");
    // The same holds for its Breaker, whose status is written once.
    let breaker = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Breaker", "metadata": {"name": "team"}, "spec": {}});
    room.api::<Breaker>().patch("team", &PatchParams::apply("e2e"), &Patch::Apply(breaker)).await.expect("the Breaker is accepted");
    room.apply_pool("free", json!({"replicas": 5})).await;
    room.apply_pool("work", json!({"type": "worker"})).await;
    room.apply_pool("refs", json!({"budgetRef": {"name": "gold"}})).await;
    room.pool_says("free", "Ready", "True").await;
    room.pool_says("work", "Ready", "True").await;
    room.pool_says("refs", "Blocked", "True").await;
    // Counts may be written once more within five seconds.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let since = jiff::Timestamp::now();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let writes: Vec<_> = audit::writes(&room.namespace, since).into_iter().filter(|write| write.holder().is_some()).collect();
    let (leases, others): (Vec<_>, Vec<_>) = writes.into_iter().partition(|write| write.object_ref.resource == "leases");
    assert!(!leases.is_empty(), "the audit log shows the renewals of the lease, so it would show other writes");
    assert!(others.is_empty(), "{others:#?}");
    room.close().await;
}
