//! Agents outside the cluster: processes on the test's machine, with the token of a ServiceAccount and no pod, as `spillway-agent run`
//! runs them.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use k8s_openapi::api::core::v1::{ConfigMap, Pod, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use spillway::api::agent::AgentPhase;
use spillway::api::work_item::WorkItemPhase::{Leased, Succeeded};
use spillway::api::{Agent, Budget};
use spillway::wire::external::EXTERNAL_HEADER;
use spillway::wire::{Code, GATEWAY_AUDIENCE};

use crate::support::caller::{Caller, report, token, token_of};
use crate::support::history::{condition, has_condition, phase};
use crate::support::models::{Scripted, wait_until_counts_agree};
use crate::support::work::{attempts, holder};
use crate::support::{Operator, TestNamespace, check_state, eventually};

/// Asks a model for each task, and prints the answer.
const ASKS: &str = r#"read -r task; busybox wget -q -Y off -O answer-$$ --header 'content-type: application/json' \
    --post-data '{"model": "scripted-large", "max_tokens": 50, "messages": [{"role": "user", "content": "hello"}]}' \
    "$ANTHROPIC_BASE_URL/v1/messages" && rm answer-$$ && echo "did $task as $SPILLWAY_AGENT_NAME""#;

/// A process outside the cluster, which ends with the test.
struct Outside(Child);

impl Outside {
    /// Runs `script` as an agent of the pool `laptops`, with the token in `token`.
    fn start(room: &TestNamespace, name: &str, script: &str) -> Self {
        // The build puts it into the operator's folder.
        let operator = std::env::var_os("SPILLWAY_BINARY").unwrap_or_else(|| env!("CARGO_BIN_EXE_spillway").into());
        let binary = PathBuf::from(operator).with_file_name("spillway-agent");
        let log = std::fs::File::create(file(room, &format!("{name}.log"))).expect("a log");
        let mut command = Command::new(binary);
        command.args(["run", "--gateway", &format!("https://{}", room.gateway), "--namespace", &room.namespace, "--pool", "laptops"]);
        command.arg("--ca").arg(file(room, "ca.crt")).arg("--token").arg(file(room, "laptop.token"));
        command.args(["--name", name, "--", "sh", "-c", script]).current_dir(env!("CARGO_TARGET_TMPDIR"));
        let child = command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log).spawn();
        Self(child.expect("the agent starts: is spillway-agent built beside the operator?"))
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("our own child takes a signal");
    }

    async fn ended(&mut self) -> Option<i32> {
        let child = std::sync::Mutex::new(&mut self.0);
        let status = eventually("the agent's process ends", async || {
            let status = child.lock().expect("one waiter").try_wait().map_err(|error| error.to_string())?;
            status.ok_or_else(|| "it runs".to_owned())
        });
        status.await.code()
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended
        let _ = self.0.wait();
    }
}

fn file(room: &TestNamespace, name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", room.namespace))
}

/// A namespace with an operator, a pool `laptops` that makes no agents itself and accepts a number of external ones,
/// and a ServiceAccount `laptop` that may register them.
async fn set_up(name: &str, most: u32, extra: Value) -> (TestNamespace, Operator) {
    let room = TestNamespace::open(name).await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    room.apply_queue("jobs", json!({})).await;
    let mut spec = json!({"scaling": {"max": 0}, "external": {"maxAgents": most}});
    crate::support::test_namespace::merge(&mut spec, extra);
    room.apply_workers("laptops", &["jobs"], "exit 1", spec).await;
    for account in ["laptop", "desktop", "stranger"] {
        let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": account}})).expect("an account");
        room.api::<ServiceAccount>().create(&PostParams::default(), &account).await.expect("an account");
    }
    let rules = json!([{"apiGroups": ["spillway.dev"], "resources": ["agentpools/external"], "verbs": ["create"]}]);
    let role: Role = serde_json::from_value(json!({"metadata": {"name": "external"}, "rules": rules})).expect("a role");
    room.api::<Role>().create(&PostParams::default(), &role).await.expect("a role");
    for account in ["laptop", "desktop"] {
        let subjects = json!([{"kind": "ServiceAccount", "name": account, "namespace": room.namespace}]);
        let binding = json!({"metadata": {"name": account}, "subjects": subjects, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "external"}});
        let binding: RoleBinding = serde_json::from_value(binding).expect("a binding");
        room.api::<RoleBinding>().create(&PostParams::default(), &binding).await.expect("a binding");
    }
    let ca = eventually("the namespace has the ConfigMap with the CA", async || {
        let map = room.api::<ConfigMap>().get("spillway-ca").await.map_err(|error| error.to_string())?;
        map.data.and_then(|mut data| data.remove("ca.crt")).ok_or_else(|| "no ca.crt".to_owned())
    });
    std::fs::write(file(&room, "ca.crt"), ca.await).expect("a file");
    let token = token(&room, "laptop", GATEWAY_AUDIENCE, None).await;
    std::fs::write(file(&room, "laptop.token"), token).expect("a file");
    (room, operator)
}

/// Waits until an agent outside the cluster is in this phase.
async fn agent_is(room: &TestNamespace, name: &str, wanted: AgentPhase) -> Agent {
    eventually(&format!("{name} is {wanted:?}"), async || {
        let agents: Vec<Agent> = room.list().await;
        let found = agents.into_iter().find(|agent| agent.spec.display_name.as_deref() == Some(name)).ok_or("no such Agent")?;
        check_state(phase(&found) == Some(wanted), || format!("{:?}", found.status)).map(|()| found)
    })
    .await
}

#[tokio::test]
async fn a_process_outside_the_cluster_works_is_metered_and_says_goodbye() {
    let (room, _operator) = set_up("external", 2, json!({})).await;
    let provider = Scripted::serve(&room).await;
    let budget = json!({
        "apiVersion": "spillway.dev/v1alpha1", "kind": "Budget", "metadata": {"name": "default"},
        "spec": {"tokens": {"limits": [{"name": "hourly", "tokens": 1_000_000, "window": "Hour"}]}},
    });
    room.api::<Budget>().patch("default", &PatchParams::apply("e2e").force(), &Patch::Apply(budget)).await.expect("the Budget is accepted");
    let models = json!({"models": [provider.entry("claude", "Anthropic")], "bulkhead": {"lifetimeTokens": 1_000_000}});
    let mut spec = json!({"scaling": {"max": 0}, "external": {"maxAgents": 2}});
    crate::support::test_namespace::merge(&mut spec, models);
    room.apply_workers("laptops", &["jobs"], "exit 1", spec).await;

    let mut laptop = Outside::start(&room, "laptop", ASKS);
    let agent = agent_is(&room, "laptop", AgentPhase::Idle).await;
    let user = format!("system:serviceaccount:{}:laptop", room.namespace);
    assert_eq!(agent.spec.external.as_ref().map(|external| external.user.as_str()), Some(user.as_str()));
    assert!(
        has_condition(&agent, "SandboxEnforced", "False", "WallsNotEnforced")
            && has_condition(&agent, "Heartbeating", "True", "Heartbeating"),
        "{agent:?}"
    );
    for number in 0..3 {
        room.submit("jobs", &format!("job-{number}"), json!({"payload": format!("task {number}")})).await;
    }
    for number in 0..3 {
        let item = room.wait_for_item_phase(&format!("job-{number}"), Succeeded).await;
        let result = item.status.as_ref().and_then(|status| status.result.clone()).unwrap_or_default();
        assert_eq!(result.trim(), format!("did task {number} as {}", agent.name_any()));
        assert_eq!(attempts(&item), [("Complete".to_owned(), agent.name_any())]);
    }
    assert_eq!(provider.calls(), 3);
    wait_until_counts_agree(&room, &provider).await;
    eventually("the agent's status has its tokens", async || {
        let used = room
            .api::<Agent>()
            .get(&agent.name_any())
            .await
            .map_err(|error| error.to_string())?
            .status
            .and_then(|status| status.tokens?.used);
        check_state(used == Some(provider.reported_tokens()), || format!("{used:?}"))
    })
    .await;
    assert!(room.list::<Pod>().await.is_empty(), "no pod is made for it");

    // The cluster has no objects for its work, and its removal waits for no pod.
    laptop.signal(Signal::TERM);
    laptop.ended().await;
    let stopped = agent_is(&room, "laptop", AgentPhase::Stopped).await;
    let said = stopped.status.as_ref().and_then(|status| status.goodbye.as_ref()?.reason.clone()).unwrap_or_default();
    assert!(said.contains("a signal on its machine ended it") && said.contains("exit code"), "{said}");
    assert!(has_condition(&stopped, "Ready", "False", "SaidGoodbye"), "{:?}", condition(&stopped, "Ready"));

    // An agent that a person removes gets a request to leave, and leaves.
    let mut second = Outside::start(&room, "second", "exec sleep 1000");
    let second_agent = agent_is(&room, "second", AgentPhase::Idle).await;
    room.submit("jobs", "held", json!({"payload": "x"})).await;
    assert_eq!(holder(&room.wait_for_item_phase("held", Leased).await), second_agent.name_any());
    room.api::<Agent>().delete(&second_agent.name_any(), &DeleteParams::default()).await.expect("deleted");
    second.ended().await;
    eventually("its Agent is gone", async || {
        let left = room.api::<Agent>().get_opt(&second_agent.name_any()).await.map_err(|error| error.to_string())?;
        check_state(left.is_none(), || format!("{:?}", left.and_then(|agent| agent.status)))
    })
    .await;
    eventually("its item waits for another agent", async || {
        let item = room.item("held").await;
        check_state(crate::support::work::phase(&item) != Some(Leased), || format!("{:?}", item.status))
    })
    .await;
    room.close().await;
}

#[tokio::test]
async fn a_silent_one_is_given_up_and_another_does_its_item() {
    let quick = json!({"supervision": {"heartbeatPeriodSeconds": 2, "heartbeatTimeoutSeconds": 6}});
    let (room, _operator) = set_up("gone", 2, quick).await;
    let lost = Outside::start(&room, "lost", "exec sleep 1000");
    let agent = agent_is(&room, "lost", AgentPhase::Idle).await;
    room.submit("jobs", "job", json!({"payload": "x"})).await;
    assert_eq!(holder(&room.wait_for_item_phase("job", Leased).await), agent.name_any());
    // The machine is switched off.
    lost.signal(Signal::KILL);
    let gone = agent_is(&room, "lost", AgentPhase::ForceStopped).await;
    assert!(condition(&gone, "GivenUp").is_some_and(|given_up| given_up.status == "True"), "{gone:?}");
    let _heir = Outside::start(&room, "heir", "echo done");
    let item = room.wait_for_item_phase("job", Succeeded).await;
    let agents: Vec<String> = attempts(&item).into_iter().map(|(_, agent)| agent).collect();
    assert_eq!((agents.len(), agents.first()), (2, Some(&agent.name_any())), "{item:?}");
    room.close().await;
}

#[tokio::test]
async fn who_may_not_is_refused_in_words_and_changes_nothing() {
    let (room, _operator) = set_up("intruders", 1, json!({})).await;
    room.apply_pool("free", json!({"replicas": 1})).await;
    let inside = room.wait_until_idle("free", 1).await.remove(0);
    let mut laptop = Outside::start(&room, "laptop", "exec sleep 1000");
    let agent = agent_is(&room, "laptop", AgentPhase::Idle).await;
    let gateway = Caller::anonymous_at_gateway(&room).await;
    // One token each: an address may show only about twenty unknown tokens.
    let mut tokens = HashMap::new();
    for account in ["laptop", "desktop", "stranger"] {
        tokens.insert(account, token(&room, account, GATEWAY_AUDIENCE, None).await);
    }
    let as_account = |account: &str, place: &str| gateway.with_token(&tokens[account]).with_header(EXTERNAL_HEADER, place);
    let of = |name: &str, agent: &Agent| format!("{}/{name}/{}/{}", room.namespace, agent.name_any(), agent.uid().expect("a uid"));
    let pool = format!("{}/laptops", room.namespace);
    let before = room.list::<Agent>().await.len();
    let enrol = "/agent/v1/external";
    let refuses = async |caller: &Caller, path: &str, code: Code, words: &str| {
        let body = if path == enrol { json!({"version": "1"}) } else { report() };
        let refusal = caller.with_header("idempotency-key", "k").post(path, body).await.refusal();
        assert!(refusal.code == code && refusal.message.contains(words), "{path}: {refusal}: where is {words:?}?");
    };
    let reports = "/agent/v1/report";
    // Without the right, for another pool, and in another namespace without rights.
    refuses(&as_account("stranger", &pool), enrol, Code::NotAllowed, "agentpools/external").await;
    refuses(&as_account("stranger", &of("laptops", &agent)), reports, Code::NotAllowed, "agentpools/external").await;
    refuses(&as_account("laptop", "default/laptops"), enrol, Code::NotAllowed, "namespace default").await;
    refuses(&as_account("laptop", &format!("{}/free", room.namespace)), enrol, Code::NotAllowed, "spec.external").await;
    refuses(&as_account("laptop", &format!("{}/none", room.namespace)), enrol, Code::NotAllowed, "does not exist").await;
    // Too many.
    refuses(&as_account("desktop", &pool), enrol, Code::LimitReached, "spec.external.maxAgents").await;
    // A user who may register agents may not act as other agents.
    refuses(&as_account("desktop", &of("laptops", &agent)), reports, Code::NotAnAgent, "did not register Agent/").await;
    refuses(&as_account("desktop", &of("laptops", &inside)), reports, Code::NotAnAgent, "did not register Agent/").await;
    let uid = inside.status.as_ref().and_then(|status| status.pod_ref.as_ref()).expect("a pod").uid.clone();
    let pods_own = format!("{}/laptops/{}/{uid}", room.namespace, inside.name_any());
    refuses(&as_account("desktop", &pods_own), reports, Code::NotAnAgent, "did not register Agent/").await;
    // A pod's token, outside or inside.
    let pod = room.api::<Pod>().get(&inside.name_any()).await.expect("its pod");
    let stolen = gateway.with_token(&token_of(&room, &pod).await);
    refuses(&stolen.with_header(EXTERNAL_HEADER, &pool), enrol, Code::NotAllowed, "bound to pod").await;
    refuses(&stolen.with_header(EXTERNAL_HEADER, &of("laptops", &agent)), reports, Code::NotAllowed, "bound to pod").await;
    refuses(&gateway.with_token(&tokens["laptop"]), reports, Code::NotAPod, "not bound to a pod").await;
    assert_eq!(room.list::<Agent>().await.len(), before, "no Agent was made");
    assert_eq!(phase(&room.api::<Agent>().get(&agent.name_any()).await.expect("an Agent")), Some(AgentPhase::Idle));

    // The right is removed: the process is refused, and ends.
    room.api::<RoleBinding>().delete("laptop", &DeleteParams::default()).await.expect("deleted");
    assert_ne!(laptop.ended().await, Some(0));
    refuses(&as_account("laptop", &of("laptops", &agent)), reports, Code::NotAllowed, "agentpools/external").await;
    room.close().await;
}

#[tokio::test]
async fn a_pool_that_takes_none_any_more_sends_those_away_that_it_has() {
    let (room, _operator) = set_up("closed", 1, json!({})).await;
    let mut laptop = Outside::start(&room, "laptop", "exec sleep 1000");
    agent_is(&room, "laptop", AgentPhase::Idle).await;
    room.apply_workers("laptops", &["jobs"], "exit 1", json!({"scaling": {"max": 0}})).await;
    laptop.ended().await;
    let stopped = agent_is(&room, "laptop", AgentPhase::Stopped).await;
    assert!(has_condition(&stopped, "GoodbyeRequested", "True", "ExternalNotAllowed"), "{stopped:?}");
    room.close().await;
}
