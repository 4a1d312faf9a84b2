//! Attacks by a user who may edit objects in one namespace.

use std::sync::Arc;

use futures::{FutureExt as _, StreamExt as _, stream};
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::{Api, Resource};
use serde_json::{Value, json};
use spillway::api::{AgentPool, Breaker, Budget, WorkItem, WorkQueue};

use super::attacker::{Attack, Attacker};

/// All attacks of this module.
pub const ATTACKS: [(&str, Attack); 5] = [
    ("a user makes pools of 980 kB of nested lists", |attacker| nested_pools(attacker).boxed()),
    ("a user makes items with annotations of 250 kB", |attacker| annotated_items(attacker).boxed()),
    ("a user makes the largest items", |attacker| largest_items(attacker).boxed()),
    ("a user makes pools with all the lists they can have", |attacker| widest_pools(attacker).boxed()),
    ("a user makes 2,000 queues, budgets and breakers", |attacker| many_objects(attacker).boxed()),
];

/// Requests that are under way at once.
const AT_ONCE: usize = 16;

async fn create<K>(attacker: &Attacker, count: usize, make: impl Fn(usize) -> Value) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()>,
{
    let api: Api<DynamicObject> = Api::namespaced_with(attacker.client.clone(), &attacker.namespace, &ApiResource::erase::<K>(&()));
    let creating = stream::iter(0..count).map(|number| {
        let mut object = make(number);
        object["apiVersion"] = json!(K::api_version(&()));
        object["kind"] = json!(K::kind(&()));
        object["metadata"]["name"] = json!(format!("hostile-{number}"));
        let api = &api;
        async move {
            match api.create(&PostParams::default(), &serde_json::from_value(object)?).await {
                Ok(_) => attacker.count("objects stored"),
                Err(kube::Error::Api(status)) => attacker.count(format!("objects refused with {}", status.code)),
                Err(_) => attacker.count("requests cut"),
            }
            anyhow::Ok(())
        }
    });
    creating.buffer_unordered(AT_ONCE).collect::<Vec<_>>().await.into_iter().collect()
}

/// A pool with the fields that every pool needs.
fn pool(mut spec: Value) -> Value {
    spec["type"] = json!("hostile");
    spec["agent"]["image"] = json!("localhost/spillway/demo-agent:dev");
    spec["agent"]["command"] = json!(["/bin/demo-agent"]);
    spec["scaling"] = json!({"min": 0, "max": 1});
    json!({"spec": spec})
}

async fn nested_pools(attacker: Arc<Attacker>) -> anyhow::Result<()> {
    let parts: Vec<Value> = std::iter::repeat_n(json!({"": 0}), 980_000 / 7).collect();
    let spec = json!({"workspace": {"volumeClaimTemplate": {"x": parts}}});
    create::<AgentPool>(&attacker, 5, |_| pool(spec.clone())).await?;
    std::future::pending().await
}

async fn annotated_items(attacker: Arc<Attacker>) -> anyhow::Result<()> {
    let text = "x".repeat(250_000);
    create::<WorkItem>(
        &attacker,
        1_000,
        |_| json!({"metadata": {"annotations": {"a": text}}, "spec": {"queueRef": {"name": "none"}, "payload": "x", "suspend": true}}),
    )
    .await?;
    std::future::pending().await
}

async fn largest_items(attacker: Arc<Attacker>) -> anyhow::Result<()> {
    // The limit of the kind for a payload.
    let text = "x".repeat(16 * 1024);
    create::<WorkItem>(&attacker, 2_000, |_| json!({"spec": {"queueRef": {"name": "none"}, "payload": text, "suspend": true}})).await?;
    std::future::pending().await
}

async fn widest_pools(attacker: Arc<Attacker>) -> anyhow::Result<()> {
    let environment: Vec<Value> = (0..64).map(|number| json!({"name": format!("V{number}"), "value": "x".repeat(4000)})).collect();
    let tolerations: Vec<Value> = (0..20_000).map(|number| json!({"key": format!("k{number}"), "operator": "Exists"})).collect();
    create::<AgentPool>(&attacker, 200, |number| match number % 2 {
        0 => pool(json!({"agent": {"env": environment}})),
        _ => pool(json!({"scheduling": {"tolerations": tolerations}})),
    })
    .await?;
    std::future::pending().await
}

async fn many_objects(attacker: Arc<Attacker>) -> anyhow::Result<()> {
    create::<WorkQueue>(&attacker, 2_000, |_| json!({"spec": {}})).await?;
    let limits = json!([{"name": "hourly", "tokens": 1_000, "window": "Hour"}]);
    create::<Budget>(&attacker, 2_000, |_| json!({"spec": {"tokens": {"limits": limits}}})).await?;
    create::<Breaker>(&attacker, 2_000, |_| json!({"spec": {"work": {}}})).await?;
    std::future::pending().await
}
