//! A user who may edit one namespace writes objects of every kind, as large and as deep as possible. Each object is
//! refused or pruned, the leader stays within its memory limit, and other namespaces are not affected.

use std::collections::BTreeMap;
use std::path::Path;

use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{DynamicObject, ListParams, PostParams};
use kube::core::ApiResource;
use kube::{Api, Client, Config, CustomResourceExt};
use serde_json::{Map, Value, json};
use spillway::api;

use crate::refusals::table;
use crate::support::{Operator, TestNamespace, check_state, eventually};

const USER: &str = "hostile-editor";
/// Memory limit of the leader in the chart, in kB.
const MEMORY: u64 = 256 * 1024;
/// Number of objects of a kind that are as large as annotations and fields allow.
const LARGE: usize = 40;

/// The kinds that `edit` may write, and those that it may not.
fn kinds() -> [(ApiResource, bool); 9] {
    [
        (api::Agent::api_resource(), true),
        (api::AgentPool::api_resource(), true),
        (api::Breaker::api_resource(), true),
        (api::Budget::api_resource(), true),
        (api::ClusterBudget::api_resource(), false),
        (api::Grant::api_resource(), false),
        (api::Toolset::api_resource(), true),
        (api::WorkItem::api_resource(), true),
        (api::WorkQueue::api_resource(), true),
    ]
}

/// A client with the rights of the chart's role `edit` in the test's namespace, and no other rights.
async fn editor(room: &TestNamespace) -> Client {
    let may = |resources: &[&str], verbs: &[&str]| json!({"apiGroups": ["spillway.dev"], "resources": resources, "verbs": verbs});
    let read = ["get", "list", "watch"];
    let write = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];
    let rules =
        [may(&["grants"], &read), may(&["agentpools", "agents", "breakers", "budgets", "toolsets", "workitems", "workqueues"], &write)];
    let role: Role = serde_json::from_value(json!({"metadata": {"name": USER}, "rules": rules})).expect("a role");
    room.api::<Role>().create(&PostParams::default(), &role).await.expect("the role is made");
    let binding: RoleBinding = serde_json::from_value(json!({"metadata": {"name": USER},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": USER},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}]}))
    .expect("a binding");
    room.api::<RoleBinding>().create(&PostParams::default(), &binding).await.expect("the role is bound");
    let mut config = Config::infer().await.expect("a cluster");
    config.auth_info.impersonate = Some(USER.to_owned());
    Client::try_from(config).expect("a client")
}

/// A minimal valid object of each kind. None of them has an effect.
fn least() -> BTreeMap<String, Value> {
    let mut least = BTreeMap::new();
    for case in table::cases(Path::new("crates/api/tests/cases")) {
        if case.error.is_none() && case.old.is_none() {
            least.entry(case.kind).or_insert(case.object);
        }
    }
    for (kind, field, value) in [("AgentPool", "scaling", json!({"max": 0})), ("WorkItem", "suspend", json!(true))] {
        least.get_mut(kind).expect("a case")["spec"][field] = value;
    }
    least
}

/// Harmful objects of a kind, each with its name.
fn bombs(kind: &str, least: &Value) -> Vec<(&'static str, Value)> {
    let with = |patch: Value| {
        let mut object = least.clone();
        crate::support::test_namespace::merge(&mut object, patch);
        object
    };
    let parts: Vec<Value> = std::iter::repeat_n(json!({"": 0}), 900_000 / 7).collect();
    let deep = (0..400).fold(json!(0), |inner, _| json!([inner]));
    let texts = |count: usize, length: usize| -> Map<String, Value> {
        (0..count).map(|at| (format!("a{at:05x}"), json!("x".repeat(length)))).collect()
    };
    let fields: Map<String, Value> = (0..60_000).map(|at| (format!("f:{at:x}"), json!({}))).collect();
    let manager = json!({"manager": "m", "operation": "Update", "apiVersion": "spillway.dev/v1alpha1", "fieldsType": "FieldsV1",
        "time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:spec": fields}});
    let mut all = vec![
        ("an unknown field of 900 kB", with(json!({"spec": {"bomb": parts}}))),
        ("an unknown field beside the spec", with(json!({"bomb": parts}))),
        ("a deep unknown field", with(json!({"spec": {"bomb": deep}}))),
        ("annotations of 256 kB", with(json!({"metadata": {"annotations": texts(4, 65_000)}}))),
        ("many annotations", with(json!({"metadata": {"annotations": texts(40_000, 0)}}))),
        ("annotations beyond what is allowed", with(json!({"metadata": {"annotations": texts(5, 65_000)}}))),
        ("many labels", with(json!({"metadata": {"labels": texts(10_000, 60)}}))),
        ("many managed fields", with(json!({"metadata": {"managedFields": [manager]}}))),
        ("many finalizers", with(json!({"metadata": {"finalizers": vec!["e2e.spillway.dev/none"; 10_000]}}))),
    ];
    if kind == "AgentPool" {
        let claim = |template: Value| with(json!({"spec": {"workspace": {"volumeClaimTemplate": template}}}));
        all.push(("a claim of nested lists", claim(json!({"x": parts}))));
        all.push(("a deep claim", claim(json!({"x": deep}))));
        let tolerations: Vec<Value> = (0..20_000).map(|number| json!({"key": format!("k{number}"), "operator": "Exists"})).collect();
        all.push(("20,000 tolerations", with(json!({"spec": {"scheduling": {"tolerations": tolerations}}}))));
        all.push(("a toleration of nested lists", with(json!({"spec": {"scheduling": {"tolerations": [{"x": parts}]}}}))));
        all.push(("the longest environment", largest(kind, least)));
    }
    if kind == "WorkItem" {
        all.push(("the longest payload", largest(kind, least)));
    }
    all
}

/// The object of a kind with the most text that the schema allows, each letter escaped in JSON, and with annotations.
fn largest(kind: &str, least: &Value) -> Value {
    let text = |length: usize| "<".repeat(length);
    let spec = match kind {
        "AgentPool" => {
            let env: Vec<Value> = (0..8).map(|number| json!({"name": format!("V{number}"), "value": text(8_192)})).collect();
            json!({"agent": {"env": env, "command": vec![text(4_096); 8]}})
        }
        "WorkItem" => json!({"payload": text(16_384), "requires": {"urls": vec![text(1_024); 32], "repositories": vec![text(1_024); 32]}}),
        _ => json!({}),
    };
    let mut object = least.clone();
    let annotations: Map<String, Value> = (0..4).map(|at| (format!("a{at}"), json!("x".repeat(65_000)))).collect();
    crate::support::test_namespace::merge(&mut object, json!({"spec": spec, "metadata": {"annotations": annotations}}));
    object
}

fn at(client: &Client, resource: &ApiResource, room: &TestNamespace) -> Api<DynamicObject> {
    match resource.kind.as_str() {
        "ClusterBudget" => Api::all_with(client.clone(), resource),
        _ => Api::namespaced_with(client.clone(), &room.namespace, resource),
    }
}

/// Creates `object` under this name; false if the API server refuses it. Anything but a refusal by the server is an error.
async fn create(api: &Api<DynamicObject>, name: &str, mut object: Value) -> bool {
    object["metadata"]["name"] = json!(name);
    let object: DynamicObject = serde_json::from_value(object).expect("an object");
    match api.create(&PostParams::default(), &object).await {
        Ok(_) => true,
        Err(kube::Error::Api(status)) if (400..500).contains(&status.code) => false,
        Err(error) => panic!("{name}: {error}"),
    }
}

// Its controller serves all namespaces, also those of other tests.
#[tokio::test]
async fn alone_an_editor_of_one_namespace_harms_no_other_by_what_it_writes() {
    let (hostile, honest) = (TestNamespace::open("bombs").await, TestNamespace::open("honest").await);
    let client = editor(&hostile).await;
    let least = least();
    for (resource, may) in kinds() {
        let kind = resource.kind.as_str();
        let api = at(&client, &resource, &hostile);
        for (number, (what, object)) in bombs(kind, &least[kind]).into_iter().enumerate() {
            let name = format!("bomb-{number}");
            let stored = create(&api, &name, object).await;
            assert!(may || !stored, "{kind}: {what}: it may not be written at all");
            if stored {
                let stored = api.get(&name).await.expect("it is there");
                assert!(stored.data.get("bomb").is_none() && stored.data["spec"].get("bomb").is_none(), "{kind}: {what}: not pruned");
                let length = stored.data["spec"].to_string().len();
                assert!(length < 256 * 1024, "{kind}: {what}: its spec has {length} bytes");
            }
        }
        for number in 0..if may { LARGE } else { 0 } {
            create(&api, &format!("large-{number}"), largest(kind, &least[kind])).await;
        }
    }

    honest.apply_pool("good", json!({"replicas": 1})).await;
    let mut operator = Operator::start_everywhere(&honest, "one");
    operator.leads(&honest).await;
    honest.pool_says("good", "Ready", "True").await;
    // Once more with filled watches: these writes arrive as events.
    for (resource, _) in kinds().into_iter().filter(|(_, may)| *may) {
        let kind = resource.kind.as_str();
        let api = at(&client, &resource, &hostile);
        for (number, (_, object)) in bombs(kind, &least[kind]).into_iter().enumerate() {
            create(&api, &format!("again-{number}"), object).await;
        }
    }
    honest.apply_pool("good", json!({"replicas": 2})).await;
    honest.pods_ready(2).await;
    assert!(operator.runs());
    let peak = operator.memory_peak();
    assert!(peak < MEMORY, "the leader took {peak} kB");
    let (status, body) = operator.get("/readyz").await.expect("an answer");
    assert_eq!(status, 200, "{body}");

    remove(&hostile).await;
    honest.close().await;
    hostile.close().await;
}

/// Removes objects and their finalizers, which no operator would remove.
async fn remove(room: &TestNamespace) {
    use kube::api::{DeleteParams, Patch, PatchParams};
    for (resource, _) in kinds().into_iter().filter(|(_, may)| *may) {
        let api = at(&room.client, &resource, room);
        api.delete_collection(&DeleteParams::default(), &ListParams::default()).await.expect("they are deleted");
        let without = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        eventually("the harmful objects are deleted", async || {
            let left = api.list_metadata(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
            for object in left.iter().filter(|object| object.metadata.finalizers.is_some()) {
                let name = object.metadata.name.as_deref().unwrap_or_default();
                let _ = api.patch(name, &PatchParams::default(), &without).await; // it may be deleted already
            }
            check_state(left.is_empty(), || format!("{} of {}", left.len(), resource.kind))
        })
        .await;
    }
}
