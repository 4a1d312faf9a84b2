//! Refusals of the API server, and the operator's handling of invalid objects that are stored.

#[path = "../../crates/api/tests/table/mod.rs"]
pub mod table;

use std::path::Path;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use kube::{Api, CustomResourceExt};
use serde_json::{Value, json};
use spillway::api::{self, AgentPool};
use table::Case;

use crate::support::proxy::Proxy;
use crate::support::{Operator, TestNamespace, check_state, eventually};

/// A lock for tests that need the CRDs unchanged, or change one for a short time.
static SCHEMAS: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

fn resource(kind: &str) -> ApiResource {
    let all = [
        api::Agent::api_resource(),
        api::AgentPool::api_resource(),
        api::Breaker::api_resource(),
        api::Budget::api_resource(),
        api::ClusterBudget::api_resource(),
        api::Grant::api_resource(),
        api::Toolset::api_resource(),
        api::WorkItem::api_resource(),
        api::WorkQueue::api_resource(),
    ];
    all.into_iter().find(|resource| resource.kind == kind).unwrap_or_else(|| panic!("{kind} is no kind of ours"))
}

/// The API for the objects of a case.
struct RefusingPlace {
    client: kube::Client,
    api: Api<DynamicObject>,
}

impl RefusingPlace {
    /// Writes `object` like a user (or, for the status, a controller). `stored` is the object that it replaces. With
    /// `dry_run` nothing is stored.
    async fn write(&self, object: &Value, stored: Option<&DynamicObject>, dry_run: bool) -> Result<DynamicObject, kube::Error> {
        let params = PostParams { dry_run, field_manager: None };
        let mut object: DynamicObject = serde_json::from_value(object.clone()).expect("an object");
        let Some(stored) = stored else { return self.create(&object, &params).await };
        object.metadata.resource_version = stored.metadata.resource_version.clone();
        object.metadata.uid = stored.metadata.uid.clone();
        let name = stored.metadata.name.clone().expect("a name");
        let written = self.api.replace(&name, &params, &object).await?;
        if object.data.get("status").is_none() {
            return Ok(written);
        }
        if !dry_run {
            object.metadata.resource_version = written.metadata.resource_version;
        }
        self.api.replace_status(&name, &params, &object).await
    }

    /// Like kubectl: an unknown field is an error, and is not dropped.
    async fn create(&self, object: &DynamicObject, params: &PostParams) -> Result<DynamicObject, kube::Error> {
        let body = serde_json::to_vec(object).expect("JSON");
        let mut request = kube::core::Request::new(self.api.resource_url()).create(params, body).expect("a request");
        let strict = format!("{}&fieldValidation=Strict", request.uri());
        *request.uri_mut() = strict.parse().expect("an URI");
        self.client.request(request).await
    }
}

/// The API server's answer to a case.
async fn judge(room: &TestNamespace, case: &Case) -> Result<(), String> {
    let resource = resource(&case.kind);
    let api: Api<DynamicObject> = match case.kind.as_str() {
        "ClusterBudget" => Api::all_with(room.client.clone(), &resource),
        _ => Api::namespaced_with(room.client.clone(), &room.namespace, &resource),
    };
    let place = RefusingPlace { client: room.client.clone(), api };
    let with_status = case.object.get("status").is_some();
    let before = match &case.old {
        Some(old) => {
            let made = place.write(old, None, false).await.map_err(|error| format!("the old object was refused: {error}"))?;
            let stored = if old.get("status").is_some() { place.write(old, Some(&made), false).await } else { Ok(made) };
            Some(stored.map_err(|error| format!("the old status was refused: {error}"))?)
        }
        None if with_status => match place.write(&case.object, None, false).await {
            Ok(made) => Some(made),
            Err(error) => return Err(error.to_string()),
        },
        None => None,
    };
    let result = place.write(&case.object, before.as_ref(), true).await;
    if let Some(before) = before {
        let name = before.metadata.name.expect("a name");
        place.api.delete(&name, &DeleteParams::default()).await.expect("the case's object is deleted");
    }
    result.map(|_| ()).map_err(|error| error.to_string())
}

#[tokio::test]
async fn the_api_server_agrees_with_every_case_of_the_table() {
    let room = TestNamespace::open("table").await;
    let _schemas = SCHEMAS.lock().await;
    let cases = table::cases(Path::new("crates/api/tests/cases"));
    assert!(cases.len() > 100);
    let mut wrong = Vec::new();
    for case in &cases {
        let Case { kind, name, error, .. } = case;
        match (judge(&room, case).await, error) {
            (Ok(()), None) => {}
            (Err(said), Some(expected)) if said.contains(expected) => {}
            (said, expected) => wrong.push(format!("{kind}: {name}: expected {expected:?}, the server said {said:?}")),
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    room.close().await;
}

#[tokio::test]
async fn one_malformed_stored_object_never_stops_the_others() {
    let room = TestNamespace::open("bad").await;
    // An object that does not fit our type, as an older release with a looser schema may have left it.
    let schemas = SCHEMAS.lock().await;
    let good = room.apply_pool("good", json!({"replicas": 1})).await;
    let crds: Api<CustomResourceDefinition> = Api::all(room.client.clone());
    let strict = crds.get("agentpools.spillway.dev").await.expect("the CRD");
    let loose = json!({"spec": {"versions": [{"name": "v1alpha1", "served": true, "storage": true, "subresources": strict.spec.versions[0].subresources,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}});
    crds.patch("agentpools.spillway.dev", &PatchParams::default(), &Patch::Merge(loose)).await.expect("a looser CRD");
    let bad = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "AgentPool", "metadata": {"name": "bad"}, "spec": {"type": 7, "agent": "none"}});
    let api: Api<DynamicObject> = Api::namespaced_with(room.client.clone(), &room.namespace, &AgentPool::api_resource());
    let pools = RefusingPlace { client: room.client.clone(), api };
    let stored =
        eventually("the looser schema is in force", async || pools.write(&bad, None, false).await.map_err(|error| error.to_string())).await;
    let restore = json!({"spec": {"versions": strict.spec.versions}});
    crds.patch("agentpools.spillway.dev", &PatchParams::default(), &Patch::Merge(restore)).await.expect("the CRD as it was");
    drop(schemas);

    let operator = room.operator("one");
    operator.leads(&room).await;
    room.pool_says("good", "Ready", "True").await;
    eventually("an event reports the malformed object", async || {
        let events = room.list::<k8s_openapi::api::events::v1::Event>().await;
        let told = events.iter().any(|event| {
            event.reason.as_deref() == Some("InvalidObject")
                && event.regarding.as_ref().and_then(|about| about.name.as_deref()) == Some("bad")
        });
        check_state(told, || format!("{} events", events.len()))
    })
    .await;
    // And it can be removed like any other.
    pools.api.delete("bad", &DeleteParams::default()).await.expect("deleted");
    assert_ne!(stored.metadata.uid, good.metadata.uid);
    room.close().await;
}

#[tokio::test]
async fn not_ready_while_kinds_are_missing_and_says_which() {
    let room = TestNamespace::open("kinds").await;
    let proxy = Proxy::start(room.client.clone(), &room.namespace).await;
    proxy.hide_our_kinds(true);
    let operator = Operator::start(&room, "one", Some(&proxy.kubeconfig));
    eventually("/readyz fails, with the list of missing kinds", async || {
        let (status, body) = operator.get("/readyz").await?;
        check_state(status == 503 && body.contains("agentpools") && body.contains("workitems"), || format!("{status} {body}"))
    })
    .await;
    assert_eq!(operator.get("/livez").await.map(|(status, _)| status), Ok(200), "alive: restarting it would not help");
    proxy.hide_our_kinds(false);
    eventually("/readyz succeeds", async || {
        let (status, body) = operator.get("/readyz").await?;
        check_state(status == 200 && body.contains("[+] kinds ok"), || format!("{status} {body}"))
    })
    .await;
    let (status, metrics) = operator.get("/metrics").await.expect("metrics");
    assert!(status == 200 && metrics.contains("spillway_api_requests_total"), "{metrics}");
    room.close().await;
}
