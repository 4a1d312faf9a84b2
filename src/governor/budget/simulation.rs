//! A small API server in memory, and leaders that keep their records in it, for tests: compare-and-swap, rising owner
//! epochs, lost answers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::facts::Project;
use super::meter::{HoldResult, Meter};
use super::object::Object;
use super::record_writes::WriteEffects;
use super::write::Writer;
use crate::api::Budget;
use crate::cluster::lease::Leadership;
use crate::governor::work::WorkIndex;
use crate::policy::budget::share::Lifetime;
use crate::policy::budget::{CallSize as Asked, Key, Quality, Route, SessionLog, Settle, Usage};
use crate::telemetry::Metrics;

/// The fate of the next write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteFate {
    /// It is made.
    #[default]
    Made,
    /// It is made, and the answer is lost.
    AnswerLost,
    /// It is not made.
    Lost,
}

#[derive(Default)]
struct StoredRecord {
    objects: BTreeMap<String, Value>,
    version: u64,
    fate: WriteFate,
    writes: u64,
    conflicts: u64,
}

/// The API server. Cheap to clone.
#[derive(Clone, Default)]
pub struct Server(Arc<Mutex<StoredRecord>>);

impl Server {
    pub fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { server.answer(request).await }
        });
        Client::new(service, "team")
    }

    async fn answer(self, request: Request<Body>) -> Result<Response<Body>, std::convert::Infallible> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let body = request.into_body().collect().await.expect("a whole body").to_bytes();
        let mut stored = self.0.lock().expect("not poisoned");
        let (status, answer) = match method {
            Method::GET => match stored.objects.get(&path) {
                Some(object) => (StatusCode::OK, object.clone()),
                None => failure(404, "NotFound", ""),
            },
            Method::PATCH => stored.patch(path.trim_end_matches("/status"), &serde_json::from_slice(&body).expect("a patch")),
            _ => failure(405, "MethodNotAllowed", ""),
        };
        let body = Body::from(serde_json::to_vec(&answer).expect("JSON"));
        Ok(Response::builder().status(status).body(body).expect("an answer"))
    }

    /// Makes an object.
    pub fn make(&self, path: &str, mut object: Value) {
        let mut stored = self.0.lock().expect("not poisoned");
        stored.version += 1;
        let version = stored.version;
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        object["metadata"]["uid"] = json!(format!("uid-{version}"));
        stored.objects.insert(path.to_owned(), object);
    }

    pub fn get(&self, path: &str) -> Value {
        self.0.lock().expect("not poisoned").objects.get(path).cloned().unwrap_or_default()
    }

    pub fn delete(&self, path: &str) {
        self.0.lock().expect("not poisoned").objects.remove(path);
    }

    /// Another writer merges a patch into an object.
    pub fn touch(&self, path: &str, patch: &Value) {
        let mut stored = self.0.lock().expect("not poisoned");
        stored.version += 1;
        let version = stored.version.to_string();
        if let Some(object) = stored.objects.get_mut(path) {
            merge(object, patch);
            object["metadata"]["resourceVersion"] = json!(version);
        }
    }

    pub fn fate(&self, fate: WriteFate) {
        self.0.lock().expect("not poisoned").fate = fate;
    }

    pub fn writes(&self) -> u64 {
        self.0.lock().expect("not poisoned").writes
    }

    pub fn conflicts(&self) -> u64 {
        self.0.lock().expect("not poisoned").conflicts
    }
}

impl StoredRecord {
    fn patch(&mut self, path: &str, patch: &Value) -> (StatusCode, Value) {
        let fate = std::mem::take(&mut self.fate);
        if fate == WriteFate::Lost {
            return failure(503, "ServiceUnavailable", "");
        }
        let Some(object) = self.objects.get(path) else { return failure(404, "NotFound", "") };
        if patch["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"]
            || patch["metadata"]["uid"] != object["metadata"]["uid"]
        {
            self.conflicts += 1;
            return failure(409, "Conflict", "");
        }
        let mut next = object.clone();
        merge(&mut next, patch);
        if next["status"]["governorEpoch"].as_i64() < object["status"]["governorEpoch"].as_i64() {
            return failure(422, "Invalid", "status.governorEpoch");
        }
        self.version += 1;
        self.writes += 1;
        next["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.objects.insert(path.to_owned(), next.clone());
        if fate == WriteFate::AnswerLost { failure(504, "Timeout", "") } else { (StatusCode::OK, next) }
    }
}

/// Applies a merge patch.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, value) in fields {
        if value.is_null() {
            target.as_object_mut().expect("an object").remove(name);
        } else {
            merge(&mut target[name], value);
        }
    }
}

fn failure(code: u16, reason: &str, field: &str) -> (StatusCode, Value) {
    let causes = json!([{"reason": "FieldValueInvalid", "message": "governorEpoch must not fall", "field": field}]);
    let details = if field.is_empty() { Value::Null } else { json!({"causes": causes}) };
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": reason, "reason": reason, "code": code, "details": details});
    (StatusCode::from_u16(code).expect("a status"), status)
}

pub const BUDGET: &str = "/apis/spillway.dev/v1alpha1/namespaces/team/budgets/default";
pub const AGENT: &str = "/apis/spillway.dev/v1alpha1/namespaces/team/agents/a";

/// A server with one Budget, whose limit `hourly` has this many tokens, and one agent.
pub fn server(hourly: i64) -> Server {
    let server = Server::default();
    server.make(
        BUDGET,
        json!({
            "apiVersion": "spillway.dev/v1alpha1", "kind": "Budget",
            "metadata": {"name": "default", "namespace": "team", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"tokens": {"limits": [{"name": "hourly", "tokens": hourly, "window": "Lifetime"}], "minOutputTokens": 1},
                     "thresholds": [{"percent": 80, "action": "Notify"}]}
        }),
    );
    server.make(
        AGENT,
        json!({
            "apiVersion": "spillway.dev/v1alpha1", "kind": "Agent", "metadata": {"name": "a", "namespace": "team"},
            "spec": {"poolRef": {"name": "p"}}, "status": {"phase": "Idle", "podRef": {"name": "a", "uid": "pod"}}
        }),
    );
    server
}

/// One leader.
pub struct Leader {
    pub server: Server,
    pub meter: Meter,
    pub leadership: Leadership,
    pub done: mpsc::UnboundedReceiver<WriteEffects>,
    pub life: Lifetime,
    writer: Writer,
}

impl Leader {
    /// A leader with this epoch that has read everything.
    pub fn new(server: &Server, epoch: i64) -> Self {
        let mut leader = Self::reading(server, epoch);
        leader.see();
        leader.meter.open();
        leader
    }

    /// A leader that has read everything and does not answer yet.
    pub fn reading(server: &Server, epoch: i64) -> Self {
        let (sender, done) = mpsc::unbounded_channel();
        let (meter, leadership) = (Meter::new(epoch), Leadership::held());
        let (work_index, _) = WorkIndex::new(Metrics::default());
        let watched = Arc::new(|_: &Object| None);
        let writer =
            Writer { client: server.client(), leadership: leadership.clone(), meter: meter.clone(), work_index, done: sender, watched };
        let life = Lifetime { tokens: 500, top_up: 0, max: 0, taken: 0 };
        let leader = Self { server: server.clone(), meter, leadership, done, life, writer };
        let mut objects = vec![(budget(), Object::Budget(leader.budget()))];
        let agent = leader.agent();
        if agent.saved(&Key::Agent(agent.uid().to_owned())) != Default::default() {
            objects.push((Key::Agent(agent.uid().to_owned()), agent));
        }
        leader.meter.read_all(objects);
        leader
    }

    fn budget(&self) -> Arc<Budget> {
        Arc::new(serde_json::from_value(self.server.get(BUDGET)).expect("a Budget"))
    }

    fn agent(&self) -> Object {
        let agent: crate::api::Agent = serde_json::from_value(self.server.get(AGENT)).expect("an Agent");
        Object::from(&agent)
    }

    /// From now on a watch shows the writer the Agent of this server.
    pub fn watches(&mut self, server: &Server) {
        let server = server.clone();
        self.writer.watched = Arc::new(move |object: &Object| {
            let agent: crate::api::Agent = serde_json::from_value(server.get(AGENT)).expect("an Agent");
            matches!(object, Object::Agent(_)).then(|| Object::from(&agent))
        });
    }

    /// Reads the current objects.
    pub fn see(&mut self) {
        let projects = BTreeMap::from([("team".to_owned(), Project::default())]);
        let there = self.server.get(BUDGET) != Value::Null;
        let budgets: Vec<_> = there.then(|| self.budget()).into_iter().collect();
        self.meter.set_tree(&[], &budgets, &projects);
        self.meter.place_agent(&self.agent(), self.life);
    }

    pub fn uid(&self) -> String {
        self.agent().uid().to_owned()
    }

    pub fn begin(&self, session: &str) -> u64 {
        self.meter.begin(session, &SessionLog { next_hold: 1, ..SessionLog::default() })
    }

    pub fn route(&self) -> Route {
        Route::new(vec![Key::Agent(self.uid())], Some(budget()), "worker")
    }

    /// Asks once.
    pub fn ask(&self, session: &str, id: u64, output: i64) -> HoldResult {
        let asked = Asked { output: Some(output), choices: 1, ..Asked::default() };
        self.meter.hold(session, id, &mut self.route(), &asked, ("team", "m"))
    }

    /// Runs the writer in the background.
    pub fn run(&self) -> tokio::task::JoinHandle<()> {
        tokio::spawn(self.writer.clone().run())
    }

    /// Writes all that is due.
    pub async fn write(&self) {
        while let Some(job) = self.meter.next() {
            self.writer.clone().write(job).await;
        }
    }

    /// Asks again until no write is awaited.
    pub async fn hold(&self, session: &str, id: u64, output: i64) -> HoldResult {
        for _ in 0..5 {
            match self.ask(session, id, output) {
                HoldResult::WritePending => self.write().await,
                held => return held,
            }
        }
        HoldResult::WritePending
    }

    pub fn settle(&self, session: &str, seq: u64, hold: u64, output: i64) -> Option<u64> {
        let usage = Usage { output, ..Usage::default() };
        let settle = Settle { seq, hold, usage, quality: Quality::Exact, input: 0, output };
        self.meter.settle(session, &[(settle, "m".into(), 0)], hold, 0)
    }

    /// The used, held, lost and unexplained tokens of the Budget.
    pub fn stands(&self) -> (i64, i64, i64, i64) {
        let view = self.meter.views(&budget()).remove(0);
        (view.used, view.held, view.lost, view.unexplained)
    }

    pub fn leads(&self) -> bool {
        self.leadership.check().is_ok()
    }
}

pub fn budget() -> Key {
    Key::budget("team", "default")
}
