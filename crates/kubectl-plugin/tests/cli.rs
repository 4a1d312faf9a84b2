//! The plugin against a fake API server: the exact requests, and the output for the answers. The commands for work and those
//! that only read are in `cli/`.

#[path = "cli/approval.rs"]
mod approval;
#[path = "cli/ask.rs"]
mod ask;
#[path = "cli/explain_work.rs"]
mod explain_work;
#[path = "cli/grant.rs"]
mod grant;
#[path = "cli/reading.rs"]
mod reading;
#[path = "cli/submit.rs"]
mod submit;
#[path = "cli/work.rs"]
mod work;

use std::time::Duration;

use http::{Request, Response};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use kubectl_spillway::input::{NamedKind, Pausable};
use kubectl_spillway::{Cluster, Console, Error, Output, ls, pause, rm, scale, spawn};
use serde_json::{Value, json};
use tower_test::mock::Handle;

/// The fake API server.
struct Server(Handle<Request<Body>, Response<Body>>);

/// A request as it came.
#[derive(Debug)]
struct SeenRequests {
    line: String,
    content_type: String,
    body: Value,
}

impl Server {
    /// Takes the next request and answers it.
    async fn answer(&mut self, code: u16, body: Value) -> SeenRequests {
        self.answer_bytes(code, serde_json::to_vec(&body).expect("JSON")).await
    }

    /// The same, with an answer that is no JSON.
    async fn answer_bytes(&mut self, code: u16, body: Vec<u8>) -> SeenRequests {
        let (request, send) = self.0.next_request().await.expect("a request");
        let (parts, content) = request.into_parts();
        let bytes = content.collect().await.expect("a body").to_bytes();
        let response = Response::builder().status(code).body(Body::from(body)).expect("a response");
        send.send_response(response);
        SeenRequests {
            line: format!("{} {}", parts.method, parts.uri),
            content_type: parts.headers.get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned(),
            body: if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes).expect("a JSON body") },
        }
    }
}

/// A cluster whose server is the test.
fn fake() -> (Cluster, Server) {
    let (service, handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    (Cluster { client: Client::new(service, "n"), namespace: "n".into() }, Server(handle))
}

fn pool() -> Value {
    json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "AgentPool", "metadata": {"name": "p", "namespace": "n", "uid": "pool-uid"},
        "spec": {"type": "worker", "agent": {"image": "x", "command": ["y"], "resources": {"limits": {"memory": "4Gi"}}}, "scaling": {"max": 5}}})
}

fn agent(name: &str, uid: &str, status: Value) -> Value {
    json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Agent",
        "metadata": {"name": name, "namespace": "n", "uid": uid},
        "spec": {"poolRef": {"name": "p"}, "sequence": 0, "displayName": "calm-otter"}, "status": status})
}

fn list(agents: Vec<Value>) -> Value {
    json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "AgentList", "metadata": {}, "items": agents})
}

fn refusal(code: u16, reason: &str, message: &str, kind: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message,
        "details": {"name": name, "group": "spillway.dev", "kind": kind}})
}

/// A condition, as it is stored.
fn condition(type_: &str, status: &str, generation: i64) -> Value {
    json!({"type": type_, "status": status, "reason": "R", "message": "m", "observedGeneration": generation, "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

/// The status of an agent that is ready.
fn serving(pod: &str) -> Value {
    json!({"phase": "Idle", "podRef": {"name": pod, "uid": "pod-uid"}, "conditions": [condition("Ready", "True", 1)]})
}

/// A console that records the output and the questions, and answers each question with `yes`.
#[derive(Default)]
struct HeardRequest {
    told: Output,
    asked: Vec<String>,
    yes: bool,
}

impl Console for HeardRequest {
    fn show(&mut self, output: Output) {
        self.told.out.push_str(&output.out);
        self.told.err.push_str(&output.err);
        self.told.failed |= output.failed;
    }
    fn is_output_closed(&self) -> bool {
        false
    }
    fn confirm(&mut self, question: &str) -> Result<bool, Error> {
        self.asked.push(question.to_owned());
        Ok(self.yes)
    }
}

const AGENTS: &str = "/apis/spillway.dev/v1alpha1/namespaces/n/agents";
const POOLS: &str = "/apis/spillway.dev/v1alpha1/namespaces/n/agentpools";
const ITEMS: &str = "/apis/spillway.dev/v1alpha1/namespaces/n/workitems";
const QUEUES: &str = "/apis/spillway.dev/v1alpha1/namespaces/n/workqueues";

/// An item of queue q, of version 7.
fn item(name: &str, status: Value) -> Value {
    json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkItem",
        "metadata": {"name": name, "namespace": "n", "uid": format!("uid-{name}"), "resourceVersion": "7", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"queueRef": {"name": "q"}}, "status": status})
}

/// An item that agent a holds, under epoch 3.
fn leased(name: &str) -> Value {
    item(name, json!({"phase": "Leased", "attempts": 1, "lease": {"holder": "pod-uid", "agent": "a", "leaseTransitions": 3}}))
}

fn queue(spec: Value) -> Value {
    json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkQueue",
        "metadata": {"name": "q", "namespace": "n", "uid": "queue-uid", "resourceVersion": "9", "generation": 1}, "spec": spec, "status": {"counts": {"ready": 1}}})
}

/// The request of a list's first page.
fn listed(path: &str) -> String {
    format!("GET {path}?&limit=500")
}

#[tokio::test]
async fn scale_sends_the_patch_that_was_asked_for_and_nothing_else() {
    let arguments = |replicas, min, auto| scale::Arguments { pool: Some("p".into()), replicas, min, auto, ..scale::Arguments::default() };
    let cases = [
        (arguments(None, None, true), json!({"spec": {"replicas": null}})),
        (arguments(Some(3), None, false), json!({"spec": {"replicas": 3}})),
        (arguments(None, Some(2), false), json!({"spec": {"scaling": {"min": 2}}})),
    ];
    for (arguments, patch) in cases {
        let (cluster, mut server) = fake();
        let (report, seen) = tokio::join!(scale::run(&cluster, &arguments), server.answer(200, pool()));
        assert_eq!(seen.line, format!("PATCH {POOLS}/p?&fieldManager=kubectl-spillway"));
        assert_eq!((seen.content_type.as_str(), seen.body), ("application/merge-patch+json", patch));
        assert!(matches!(report, Ok(scale::Report::Scaled { overruled: false, .. })), "{report:?}");
    }
}

#[tokio::test]
async fn scale_alone_only_reads() {
    let (cluster, mut server) = fake();
    let arguments = scale::Arguments { pool: Some("p".into()), ..scale::Arguments::default() };
    let (report, seen) = tokio::join!(scale::run(&cluster, &arguments), server.answer(200, pool()));
    assert_eq!((seen.line, scale::render(&report.expect("a report")).out.lines().count()), (format!("GET {POOLS}/p"), 2));
}

#[tokio::test]
async fn bounds_are_said_to_be_overruled_by_a_fixed_number() {
    let (cluster, mut server) = fake();
    let mut fixed = pool();
    fixed["spec"]["replicas"] = json!(2);
    let arguments = scale::Arguments { pool: Some("p".into()), max: Some(5), ..scale::Arguments::default() };
    let (report, _) = tokio::join!(scale::run(&cluster, &arguments), server.answer(200, fixed));
    assert!(scale::render(&report.expect("a report")).err.contains("spec.replicas is 2 and overrides"));
}

#[tokio::test]
async fn a_404_names_the_command_that_helps_and_a_403_keeps_the_servers_words() {
    let arguments = scale::Arguments { pool: Some("p".into()), auto: true, ..scale::Arguments::default() };
    let (cluster, mut server) = fake();
    let (report, _) = tokio::join!(scale::run(&cluster, &arguments), server.answer(404, refusal(404, "NotFound", "m", "agentpools", "p")));
    assert_eq!(
        report.expect_err("refused").to_string(),
        "AgentPool \"p\" not found in namespace \"n\"; `kubectl get agentpools -n n` lists those that exist"
    );
    let (report, _) = tokio::join!(
        scale::run(&cluster, &arguments),
        server.answer(403, refusal(403, "Forbidden", "User \"u\" cannot patch", "agentpools", "p"))
    );
    assert_eq!(report.expect_err("refused").to_string(), "from server (Forbidden): User \"u\" cannot patch");
}

#[tokio::test]
async fn spawn_makes_an_agent_by_hand_that_its_pool_owns() {
    let (cluster, mut server) = fake();
    let arguments = spawn::Arguments {
        pool: "p".into(),
        memory: Some(serde_json::from_value(json!("1Gi")).expect("a quantity")),
        ..spawn::Arguments::default()
    };
    let talk = async { (server.answer(200, pool()).await, server.answer(201, agent("p-abcde", "u1", Value::Null)).await) };
    let (spawned, (read, made)) = tokio::join!(spawn::run(&cluster, &arguments, 7), talk);
    assert_eq!((read.line, made.line), (format!("GET {POOLS}/p"), format!("POST {AGENTS}?&fieldManager=kubectl-spillway")));
    let metadata = &made.body["metadata"];
    assert_eq!(
        metadata["ownerReferences"],
        json!([{"apiVersion": "spillway.dev/v1alpha1", "kind": "AgentPool", "name": "p", "uid": "pool-uid", "controller": true, "blockOwnerDeletion": true}])
    );
    assert_eq!(
        metadata["labels"],
        json!({"app.kubernetes.io/managed-by": "spillway", "spillway.dev/pool": "p", "spillway.dev/pool-uid": "pool-uid", "spillway.dev/type": "worker"})
    );
    assert_eq!((metadata["generateName"].as_str(), metadata.get("name")), (Some("p-"), None));
    let spec = &made.body["spec"];
    assert_eq!((&spec["manual"], &spec["poolRef"]["name"]), (&json!(true), &json!("p")));
    assert_eq!(spec["resources"], json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi"}}));
    assert_eq!(spawned.expect("spawned").name, "p-abcde");
}

#[tokio::test]
async fn spawn_tells_that_a_name_is_taken() {
    let (cluster, mut server) = fake();
    let arguments = spawn::Arguments { pool: "p".into(), name: Some("a".into()), ..spawn::Arguments::default() };
    let talk = async { (server.answer(200, pool()).await, server.answer(409, refusal(409, "AlreadyExists", "m", "agents", "a")).await) };
    let (spawned, _) = tokio::join!(spawn::run(&cluster, &arguments, 7), talk);
    assert!(matches!(spawned, Err(Error::Exists { .. })), "{spawned:?}");
}

#[tokio::test(start_paused = true)]
async fn spawn_waits_for_ready_and_gives_up_with_the_reason() {
    let ready = |status: &str| json!({"phase": "Running", "conditions": [{"type": "Ready", "status": status, "reason": "R", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
    let spawned = spawn::Spawned { namespace: "n".into(), name: "a".into(), uid: "u".into(), display_name: "d".into(), pool: "p".into() };
    let (cluster, mut server) = fake();
    let talk =
        async { (server.answer(200, agent("a", "u", ready("False"))).await, server.answer(200, agent("a", "u", ready("True"))).await) };
    let (waited, _) = tokio::join!(spawn::wait(&cluster, &spawned, Duration::from_secs(60)), talk);
    assert_eq!(waited.expect("an answer"), spawn::Waited::Ready);
    let (waited, _) =
        tokio::join!(spawn::wait(&cluster, &spawned, Duration::from_millis(100)), server.answer(200, agent("a", "u", ready("False"))));
    assert_eq!(waited.expect("an answer"), spawn::Waited::TimedOut("Running, R: m".into()));
    let (waited, _) =
        tokio::join!(spawn::wait(&cluster, &spawned, Duration::from_secs(60)), server.answer(200, agent("a", "another", ready("True"))));
    assert_eq!(waited.expect("an answer"), spawn::Waited::Gone);
}

#[tokio::test]
async fn rm_deletes_what_it_saw_by_uid_and_a_forced_pod_has_one_second() {
    let (cluster, mut server) = fake();
    let arguments = rm::Arguments { agents: vec!["a".into()], force: true, ..rm::Arguments::default() };
    let status = json!({"phase": "Running", "podRef": {"name": "a", "uid": "pod-uid"}});
    let (plan, seen) = tokio::join!(rm::plan(&cluster, &arguments), server.answer(200, agent("a", "u1", status.clone())));
    assert_eq!(seen.line, format!("GET {AGENTS}/a"));
    let talk = async {
        (
            server.answer(200, agent("a", "u1", status)).await,
            server.answer(200, json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}})).await,
        )
    };
    let (report, (first, second)) = tokio::join!(rm::run(&cluster, plan.expect("a plan"), true), talk);
    assert_eq!((first.line, &first.body["preconditions"]), (format!("DELETE {AGENTS}/a?"), &json!({"uid": "u1"})));
    assert_eq!((second.line.as_str(), &second.body["preconditions"]), ("DELETE /api/v1/namespaces/n/pods/a?", &json!({"uid": "pod-uid"})));
    assert_eq!(second.body["gracePeriodSeconds"], json!(1));
    let told = rm::render(&report);
    assert_eq!((told.out.as_str(), told.failed), ("agent.spillway.dev/a force deleted\n", false));
    assert!(told.err.contains("kubectl spillway scale p --replicas N -n n"), "{}", told.err);
}

#[tokio::test]
async fn rm_spares_another_agent_of_the_same_name_and_goes_on() {
    let (cluster, mut server) = fake();
    let arguments = rm::Arguments { agents: vec!["b".into(), "a".into(), "c".into()], ..rm::Arguments::default() };
    let look = async {
        server.answer(200, agent("a", "u1", Value::Null)).await;
        server.answer(200, agent("b", "u2", Value::Null)).await;
        server.answer(404, refusal(404, "NotFound", "m", "agents", "c")).await;
    };
    let (plan, ()) = tokio::join!(rm::plan(&cluster, &arguments), look);
    let talk = async {
        server.answer(409, refusal(409, "Conflict", "the UID in the precondition does not match", "agents", "a")).await;
        server.answer(200, agent("b", "u2", Value::Null)).await;
    };
    let (report, ()) = tokio::join!(rm::run(&cluster, plan.expect("a plan"), false), talk);
    let told = rm::render(&report);
    assert_eq!((told.out.as_str(), told.failed), ("agent.spillway.dev/b deleted\n", true));
    assert!(told.err.contains("Agent \"c\" not found") && told.err.contains("agent \"a\" was replaced by another"), "{}", told.err);
}

#[tokio::test(start_paused = true)]
async fn rm_waits_until_the_agent_is_gone_or_another() {
    let (cluster, mut server) = fake();
    let arguments = rm::Arguments { pool: Some("p".into()), all: true, ..rm::Arguments::default() };
    let (plan, seen) = tokio::join!(rm::plan(&cluster, &arguments), server.answer(200, list(vec![agent("a", "u1", Value::Null)])));
    assert_eq!(seen.line, format!("GET {AGENTS}?&fieldSelector=spec.poolRef.name%3Dp"));
    let plan = plan.expect("a plan");
    assert!(rm::question(&plan, &arguments).is_some());
    let report = rm::Report { namespace: "n".into(), removed: plan.targets, forced: false, failures: Vec::new() };
    let talk = async {
        (server.answer(200, agent("a", "u1", Value::Null)).await, server.answer(404, refusal(404, "NotFound", "m", "agents", "a")).await)
    };
    let (waited, _) = tokio::join!(rm::wait(&cluster, &report, Duration::from_secs(60)), talk);
    assert!(waited.expect("an answer").left.is_empty());
    let (waited, _) =
        tokio::join!(rm::wait(&cluster, &report, Duration::from_millis(10)), server.answer(200, agent("a", "u1", Value::Null)));
    assert_eq!(waited.expect("an answer").left, ["a"]);
}

#[tokio::test]
async fn ls_hides_the_dead_sorts_and_survives_an_object_of_another_version() {
    let (cluster, mut server) = fake();
    let agents = vec![
        agent("b", "u", json!({"phase": "Idle"})),
        agent("a", "u", json!({"phase": "Running"})),
        agent("gone", "u", json!({"phase": "Stopped"})),
        agent("new", "u", json!({"phase": "Dreaming"})),
    ];
    let arguments = ls::Arguments::default();
    let (report, seen) = tokio::join!(ls::run(&cluster, &arguments), server.answer(200, list(agents)));
    let report = report.expect("a report");
    assert_eq!(seen.line, format!("GET {AGENTS}?"));
    let told = ls::render(&report, Some(ls::Format::Name), jiff::Timestamp::UNIX_EPOCH).expect("text");
    assert_eq!((told.out.as_str(), report.ended), ("agent.spillway.dev/a\nagent.spillway.dev/b\n", 1));
    assert!(told.err.starts_with("warning: Agent \"new\" does not fit this version of the plugin: "), "{}", told.err);
}

#[tokio::test]
async fn ls_of_a_pool_that_is_not_there_says_so() {
    let (cluster, mut server) = fake();
    let arguments = ls::Arguments { pool: Some("p".into()), ..ls::Arguments::default() };
    let talk =
        async { (server.answer(200, list(Vec::new())).await, server.answer(404, refusal(404, "NotFound", "m", "agentpools", "p")).await) };
    let (report, _) = tokio::join!(ls::run(&cluster, &arguments), talk);
    assert!(matches!(report, Err(Error::NotFound { .. })), "{report:?}");
}

#[tokio::test]
async fn pause_writes_once_with_the_uid_it_saw_and_nothing_where_nothing_changes() {
    let (cluster, mut server) = fake();
    let mut held = agent("b", "u2", serving("b"));
    held["spec"]["paused"] = json!(true);
    let arguments =
        pause::Arguments { names: ["b", "a", "a"].map(|name| Pausable::Agent(name.into())).to_vec(), ..pause::Arguments::default() };
    let talk = async {
        let read = server.answer(200, agent("a", "u1", serving("a"))).await;
        let written = server.answer(200, agent("a", "u1", serving("a"))).await;
        (read, written, server.answer(200, held).await)
    };
    let (report, (read, written, last)) = tokio::join!(pause::run(&cluster, pause::Verb::Pause, &arguments), talk);
    assert_eq!((read.line, last.line), (format!("GET {AGENTS}/a"), format!("GET {AGENTS}/b")));
    assert_eq!(written.line, format!("PATCH {AGENTS}/a?&fieldManager=kubectl-spillway"));
    assert_eq!(written.content_type, "application/merge-patch+json");
    assert_eq!(written.body, json!({"metadata": {"uid": "u1"}, "spec": {"paused": true}}));
    let told = pause::render(&report.expect("a report"));
    assert_eq!(told.out, "agent.spillway.dev/a pause requested\nagent.spillway.dev/b unchanged: spec.paused is true already\n");
    assert!(!told.failed);
}

#[tokio::test]
async fn resume_answers_the_pause_it_saw_and_spares_another_agent_of_the_same_name() {
    let mut held = agent("a", "u1", json!({"phase": "Paused", "pauses": 3, "conditions": [condition("Paused", "True", 1)]}));
    held["spec"]["paused"] = json!(true);
    let arguments = pause::Arguments { names: vec![Pausable::Agent("a".into())], ..pause::Arguments::default() };
    let uid = |field: &str| {
        let mut body = refusal(422, "Invalid", "field is immutable", "agents", "a");
        body["details"]["causes"] = json!([{"reason": "FieldValueInvalid", "field": field, "message": "immutable"}]);
        body
    };
    for (code, body, words) in [
        (200, held.clone(), "agent.spillway.dev/a resume requested\n"),
        (
            422,
            uid("metadata.uid"),
            "error: agent \"a\" was replaced by another one with the same name meanwhile; the new one was not changed\n",
        ),
        (409, refusal(409, "Conflict", "uid", "agents", "a"), "error: agent \"a\" was replaced by another"),
        (422, uid("spec"), "error: from server (Invalid): field is immutable\n"),
        (404, refusal(404, "NotFound", "m", "agents", "a"), "error: Agent \"a\" not found"),
    ] {
        let (cluster, mut server) = fake();
        let talk = async { (server.answer(200, held.clone()).await, server.answer(code, body).await) };
        let (report, (_, written)) = tokio::join!(pause::run(&cluster, pause::Verb::Resume, &arguments), talk);
        assert_eq!(written.body, json!({"metadata": {"uid": "u1"}, "spec": {"paused": null, "resumePause": 3}}));
        let told = pause::render(&report.expect("a report"));
        assert!(told.out == words || told.err.starts_with(words), "{told:?}");
        assert_eq!(told.failed, code != 200);
    }
}

#[tokio::test(start_paused = true)]
async fn pause_waits_for_the_operators_word_on_what_was_written() {
    let (cluster, mut server) = fake();
    let asked = pause::PauseRequest { name: "a".into(), uid: "u1".into(), generation: 2, ..pause::PauseRequest::default() };
    let report = pause::Report { namespace: "n".into(), verb: pause::Verb::Pause, asked: vec![asked], failures: Vec::new() };
    let seen = |status, generation| agent("a", "u1", json!({"phase": "Idle", "conditions": [condition("Paused", status, generation)]}));
    let talk = async {
        server.answer(200, seen("False", 2)).await;
        server.answer(200, seen("True", 1)).await;
        server.answer(200, seen("True", 2)).await;
    };
    let (waited, ()) = tokio::join!(pause::wait(&cluster, &report, Duration::from_secs(60)), talk);
    assert_eq!(pause::render_waited(&waited.expect("an answer")).out, "agent.spillway.dev/a is paused\n");
    let (waited, _) = tokio::join!(pause::wait(&cluster, &report, Duration::from_millis(10)), server.answer(200, seen("False", 2)));
    let told = pause::render_waited(&waited.expect("an answer"));
    assert!(told.failed && told.err.starts_with("error: agent \"a\" is not paused in time (Paused is False, R: m)\n"), "{told:?}");
}
