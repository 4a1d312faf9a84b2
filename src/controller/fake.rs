//! A leader for tests: its context, with stores that contain the objects of the test, and an API server in memory that
//! accepts writes of their statuses, new Agents, applies of whole objects, and events.
//!
//! There are no watches: a write reaches the server and not the stores. The leader holds its lease for the first ten
//! seconds: [`Leadership::confirm`] succeeds without a renewal until then.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use super::agent::{self, PodTerminations};
use super::context::{Context, ContextParts};
use super::fleet::Fleet;
use super::stores::Stores;
use super::supervised::Supervised;
use super::wake::Wake;
use crate::cluster::ObjectKey;
use crate::cluster::background_writes::ForegroundWrites;
use crate::cluster::events::Events;
use crate::cluster::lease::Leadership;
use crate::egress_settings::EgressSettings;
use crate::git_settings::GitSettings;
use crate::governor::work::WorkIndex;
use crate::notify::{Notice, Notifier};
use crate::policy::lease::Takeover;
use crate::telemetry::Metrics;

/// The namespace of a test.
pub const TEAM: &str = "team";

#[derive(Default)]
struct Server {
    /// By plural and name.
    objects: BTreeMap<String, Value>,
    events: Vec<Value>,
    /// Plural and name of each object whose deletion was asked for. It stays: all have finalizers.
    deleted: Vec<String>,
    version: u64,
}

/// A leader.
pub struct Leader {
    /// The context of its reconcilers.
    pub context: Arc<Context>,
    notices: mpsc::Receiver<Arc<Notice>>,
    server: Arc<Mutex<Server>>,
}

fn slot(kind: &str, name: &str) -> String {
    slot_of(&format!("{}s", kind.to_lowercase()), name)
}

fn slot_of(plural: &str, name: &str) -> String {
    format!("{plural}/{name}")
}

/// An object of the namespace.
pub fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "spillway.dev/v1alpha1", "kind": kind, "spec": spec,
        "metadata": {"name": name, "namespace": TEAM, "uid": format!("{kind}-{name}"), "resourceVersion": "1", "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z"}})
}

/// An Agent of this pool that holds no item, and its running pod. The pod's uid is `POD-NAME`.
pub fn agent(name: &str, pool: &str) -> [Value; 2] {
    let owner = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "AgentPool", "name": pool, "uid": format!("AgentPool-{pool}"), "controller": true});
    let mut agent = object("Agent", name, json!({"poolRef": {"name": pool}, "sequence": 0}));
    agent["metadata"]["ownerReferences"] = json!([owner]);
    agent["metadata"]["finalizers"] = json!([crate::api::names::AGENT_FINALIZER]);
    agent["status"] = json!({"phase": "Idle", "podRef": {"name": name, "uid": format!("POD-{name}")}});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": TEAM, "uid": format!("POD-{name}")},
        "spec": {"containers": [], "nodeName": "node"},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    [agent, pod]
}

/// The context of a leader that has read these objects, and asks the API server behind `client` for all else.
pub fn context(client: Client, objects: &[Value], notifier: Notifier) -> Context {
    Context::new(parts(client, objects, notifier), 7)
}

fn parts(client: Client, objects: &[Value], notifier: Notifier) -> ContextParts {
    let metrics = Metrics::default();
    let bridges = crate::bridge::client::BridgeClient::new(Default::default(), client.clone()).expect("a client of bridges");
    ContextParts {
        client: client.clone(),
        leadership: Leadership::held(),
        takeover: Takeover::default(),
        metrics: metrics.clone(),
        events: Events::new(client, "test".into(), notifier),
        stores: Stores::of(objects),
        pod_terminations: PodTerminations::default(),
        wake: Wake::detached(),
        supervised: Supervised {
            gateway: String::new(),
            peer: Default::default(),
            port: 0,
            controller: Default::default(),
            image: String::new(),
            pull_policy: String::new(),
            pull_secrets: Vec::new(),
            canaries: Vec::new(),
            dns: Vec::new(),
        },
        egress: EgressSettings::default(),
        git: GitSettings::default(),
        trust: watch::channel(None).1,
        bridges,
        work_index: WorkIndex::new(metrics.clone()).0,
        foreground_writes: ForegroundWrites::default(),
        fleet: Fleet::new(metrics),
        only_namespace: None,
        ends_agents: false,
    }
}

impl Leader {
    /// One that has read these objects.
    pub fn of(objects: &[Value]) -> Self {
        Self::with(objects, false)
    }

    /// One that ends all agents, because the operator is being removed.
    pub fn removing(objects: &[Value]) -> Self {
        Self::with(objects, true)
    }

    fn with(objects: &[Value], ends_agents: bool) -> Self {
        let mut server = Server { version: 1, ..Server::default() };
        for object in objects {
            let part = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default();
            server.objects.insert(slot(part("/kind"), part("/metadata/name")), object.clone());
        }
        let server = Arc::new(Mutex::new(server));
        let (notifier, notices) = Notifier::for_test();
        let parts = ContextParts { ends_agents, ..parts(client(&server), objects, notifier) };
        Self { context: Arc::new(Context::new(parts, 7)), notices, server }
    }

    fn lock(&self) -> MutexGuard<'_, Server> {
        self.server.lock().expect("whole")
    }

    /// Reconciles an Agent, as it is in the stores.
    pub async fn reconcile_agent(&self, agent: &str) {
        let key = ObjectKey { namespace: TEAM.into(), name: agent.into() };
        let object = self.context.stores.agent(&key).expect("the Agent is there");
        agent::reconcile(object, self.context.clone()).await.expect("it is done");
    }

    /// The objects whose deletion was asked for, as `PLURAL/NAME`.
    pub fn deleted(&self) -> Vec<String> {
        self.lock().deleted.clone()
    }

    /// The status of an object on the server.
    pub fn status(&self, kind: &str, name: &str) -> Value {
        self.lock().objects.get(&slot(kind, name)).map(|object| object["status"].clone()).unwrap_or_default()
    }

    /// An object on the server, by the plural of its kind.
    pub fn stored(&self, plural: &str, name: &str) -> Option<Value> {
        self.lock().objects.get(&slot_of(plural, name)).cloned()
    }

    /// Stores an object, or removes it, as another writer does.
    pub fn put(&self, plural: &str, name: &str, object: Option<Value>) {
        let slot = slot_of(plural, name);
        match object {
            Some(object) => self.lock().objects.insert(slot, object),
            None => self.lock().objects.remove(&slot),
        };
    }

    /// Writes a status as another writer does.
    pub fn write(&self, kind: &str, name: &str, status: Value) {
        self.lock().objects.get_mut(&slot(kind, name)).expect("it is there")["status"] = status;
    }

    /// The events so far: reason and action of each.
    pub fn events(&self) -> Vec<(String, String)> {
        let word = |event: &Value, field: &str| event[field].as_str().unwrap_or_default().to_owned();
        self.lock().events.iter().map(|event| (word(event, "reason"), word(event, "action"))).collect()
    }

    /// The notices to webhooks since the last call: reason, kind of the object, and message of each.
    pub fn take_notices(&mut self) -> Vec<(String, String, String)> {
        let mut told = Vec::new();
        while let Ok(notice) = self.notices.try_recv() {
            told.push((notice.reason.clone(), notice.about.kind.clone().unwrap_or_default(), notice.message.clone()));
        }
        told
    }
}

fn client(server: &Arc<Mutex<Server>>) -> Client {
    let server = server.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let server = server.clone();
        async move {
            let (method, path) = (request.method().clone(), request.uri().path().trim_end_matches("/status").to_owned());
            let body = request.into_body().collect().await.expect("a whole body").to_bytes();
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let (status, answer) = server.lock().expect("whole").answer(&method, &path, body);
            let body = Body::from(serde_json::to_vec(&answer).expect("JSON"));
            Ok::<_, std::convert::Infallible>(Response::builder().status(status).body(body).expect("an answer"))
        }
    });
    Client::new(service, TEAM)
}

impl Server {
    fn answer(&mut self, method: &Method, path: &str, body: Value) -> (StatusCode, Value) {
        let mut parts = path.rsplit('/');
        let (last, before) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let slot = format!("{before}/{last}");
        let failure = |code: u16, reason: &str| {
            let status =
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": reason, "reason": reason, "code": code});
            (StatusCode::from_u16(code).expect("a status"), status)
        };
        match *method {
            Method::POST if last == "events" => {
                self.events.push(body.clone());
                (StatusCode::CREATED, body)
            }
            // An event that is repeated.
            Method::PATCH if before == "events" => (StatusCode::OK, body),
            Method::POST if last == "agents" => {
                let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                let slot = slot_of(last, &name);
                if self.objects.contains_key(&slot) {
                    return failure(409, "AlreadyExists");
                }
                self.version += 1;
                let mut made = body;
                made["metadata"]["uid"] = json!(format!("Agent-{name}"));
                made["metadata"]["resourceVersion"] = json!(self.version.to_string());
                made["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
                self.objects.insert(slot, made.clone());
                (StatusCode::CREATED, made)
            }
            Method::GET if last == "pods" => (StatusCode::OK, json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": []})),
            // All Agents, whatever the selector says: a test has one pool.
            Method::GET if last == "agents" => {
                let items: Vec<&Value> = self.objects.range(slot_of(last, "")..slot_of(last, "~")).map(|(_, object)| object).collect();
                (StatusCode::OK, json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "AgentList", "metadata": {}, "items": items}))
            }
            Method::GET => self.objects.get(&slot).map_or_else(|| failure(404, "NotFound"), |object| (StatusCode::OK, object.clone())),
            // An apply of a whole object.
            Method::PATCH if body["kind"].is_string() && body["status"].is_null() => {
                self.version += 1;
                let stored = self.objects.entry(slot).or_insert_with(|| json!({"metadata": {"generation": 1}}));
                merge(stored, &body);
                if before == "services" {
                    stored["spec"]["clusterIP"] = json!("10.1.2.3");
                }
                stored["metadata"]["resourceVersion"] = json!(self.version.to_string());
                (StatusCode::OK, stored.clone())
            }
            Method::PATCH => {
                let Some(object) = self.objects.get_mut(&slot) else { return failure(404, "NotFound") };
                let version = &body["metadata"]["resourceVersion"];
                if !version.is_null() && *version != object["metadata"]["resourceVersion"] {
                    return failure(409, "Conflict");
                }
                self.version += 1;
                object["metadata"]["resourceVersion"] = json!(self.version.to_string());
                merge(&mut object["status"], &body["status"]);
                (StatusCode::OK, object.clone())
            }
            Method::DELETE => match self.objects.get(&slot).cloned() {
                Some(object) => {
                    self.deleted.push(slot);
                    (StatusCode::OK, object)
                }
                None => failure(404, "NotFound"),
            },
            _ => failure(405, "MethodNotAllowed"),
        }
    }
}

/// Applies a merge patch.
fn merge(target: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else { return target.clone_from(patch) };
    if !target.is_object() {
        *target = json!({});
    }
    for (field, value) in fields {
        if value.is_null() {
            target.as_object_mut().and_then(|target| target.remove(field));
        } else {
            merge(&mut target[field], value);
        }
    }
}
