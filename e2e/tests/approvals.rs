//! Approvals: calls of privileged programs that wait for a person, who has the right to approve, and run once. The audit log of the bridge
//! says which programs have started.

use std::path::Path;

use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{DeleteParams, ListParams, LogParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Config, ResourceExt as _};
use serde_json::{Value, json};
use spillway::api::tool_approval::{ToolApproval, ToolApprovalState};
use spillway::api::work_item::WorkItemPhase::Leased;
use spillway::api::{Agent, Toolset};

use crate::support::exec::sh;
use crate::support::mcp::begin_with_tools;
use crate::support::work::{UNTIL_TOLD, holder};
use crate::support::{Operator, TestNamespace, check_state, eventually, plugin_path};

const DEFINITION: &str = "---\nname: deploy\ndescription: Deploys a version\ncommand: /bin/echo\ninterpreter: true\n\
    argv: [\"deployed\", \"{version}\"]\nargs: [{name: version, required: true, pattern: \"v[0-9]{1,3}\"}]\n\
    requiresApproval: true\n---\nDeploys.\n";
/// A user who may change agents.
const EDITOR: &str = "e2e-approvals-editor";
/// A user who may approve too.
const APPROVER: &str = "e2e-approvals-approver";

struct Scene {
    namespace: TestNamespace,
    editor: Client,
    approver: Client,
}

impl Scene {
    /// A Toolset that is served, a pool of workers and one without items that list it, the chart's policy, and two users.
    async fn open(name: &str) -> (Self, Operator) {
        let namespace = TestNamespace::open(name).await;
        let operator = namespace.operator("one");
        operator.leads(&namespace).await;
        let params = PatchParams::apply("e2e").force();
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "programs"}, "immutable": true,
            "data": {"deploy.md": DEFINITION}});
        namespace.api::<ConfigMap>().patch("programs", &params, &Patch::Apply(map)).await.expect("the ConfigMap is accepted");
        let toolset = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Toolset", "metadata": {"name": "deploy"}, "spec": {
            "image": "localhost/spillway/demo-agent:dev", "definitions": [{"configMapRef": {"name": "programs"}}],
            "allowedCommands": ["/bin/*"], "approvalTimeoutSeconds": 600}});
        namespace.api::<Toolset>().patch("deploy", &params, &Patch::Apply(toolset)).await.expect("the Toolset is accepted");
        install_policy(&namespace).await;
        let change = json!({"apiGroups": ["spillway.dev"], "resources": ["agents"], "verbs": ["get", "list", "patch"]});
        let approve = json!({"apiGroups": ["spillway.dev"], "resources": ["toolsets"], "resourceNames": ["deploy"], "verbs": ["approve"]});
        let editor = user(&namespace, EDITOR, json!([change])).await;
        let approver = user(&namespace, APPROVER, json!([change, approve])).await;
        namespace.apply_queue("code", json!({})).await;
        let pool = json!({"replicas": 1, "toolsets": [{"name": "deploy"}]});
        namespace.apply_workers("coders", &["code"], UNTIL_TOLD, pool.clone()).await;
        namespace.apply_pool("others", pool).await;
        (Self { namespace, editor, approver }, operator)
    }

    async fn close(self) {
        let Self { namespace, .. } = self;
        let name = policy_name(&namespace);
        let bindings = Api::<ValidatingAdmissionPolicyBinding>::all(namespace.client.clone());
        bindings.delete(&name, &DeleteParams::default()).await.expect("deleted");
        let policies = Api::<ValidatingAdmissionPolicy>::all(namespace.client.clone());
        policies.delete(&name, &DeleteParams::default()).await.expect("deleted");
        namespace.api::<Toolset>().delete("deploy", &DeleteParams::default()).await.expect("deleted");
        namespace.close().await;
    }

    /// Waits until the Toolset is served with its current spec.
    async fn wait_until_served(&self) {
        eventually("the Toolset is served", async || {
            let toolset = self.namespace.api::<Toolset>().get("deploy").await.map_err(|error| error.to_string())?;
            let status = toolset.status.clone().unwrap_or_default();
            let ready = status.conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True");
            check_state(ready && status.observed_generation == toolset.metadata.generation, || format!("{status:?}"))
        })
        .await;
    }

    /// Begins a call of the program `deploy` with this version, and goes on.
    async fn begin(&self, agent: &str, version: &str) {
        let file = format!("\"$SPILLWAY_DATA_DIR/{version}\"");
        let call = format!(r#"execute deploy '{{"version":"{version}"}}' > {file}; echo done >> {file}"#);
        begin_with_tools(&self.namespace, agent, &call).await;
    }

    /// The answer to a call that has one.
    async fn answer(&self, agent: &str, version: &str) -> String {
        eventually(&format!("the call of {version} is answered"), async || {
            let text = sh(&self.namespace, agent, &format!("cat $SPILLWAY_DATA_DIR/{version}")).await.out;
            check_state(text.ends_with("done\n"), || text.clone()).map(|()| text)
        })
        .await
    }

    async fn questions(&self, agent: &str) -> Vec<ToolApproval> {
        let agent = self.namespace.api::<Agent>().get(agent).await.expect("the agent is there");
        agent.status.and_then(|status| status.tool_approvals).unwrap_or_default()
    }

    /// Waits for the question about this version in this state.
    async fn wait_for_question(&self, agent: &str, version: &str, state: ToolApprovalState) -> ToolApproval {
        eventually(&format!("the question about {version} is {}", state.name()), async || {
            let all = self.questions(agent).await;
            let found = all.iter().find(|one| one.arguments.contains(&format!("{version:?}")) && one.state == state);
            found.cloned().ok_or_else(|| format!("{all:?}"))
        })
        .await
    }

    /// The records of the audit log of programs that have started.
    async fn starts(&self) -> Vec<Value> {
        let selected = ListParams::default().labels("app.kubernetes.io/name=spillway-bridge,app.kubernetes.io/instance=deploy");
        let mut starts = Vec::new();
        for bridge in self.namespace.api::<Pod>().list(&selected).await.expect("the pods").items {
            let log = self.namespace.api::<Pod>().logs(&bridge.name_any(), &LogParams::default()).await.unwrap_or_default();
            let records = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            starts.extend(records.filter(|record| record["hash"].is_string() && record["event"] == "Start"));
        }
        starts
    }

    /// A user answers a question, under a name. `only_try`: the server checks, and stores nothing.
    async fn approve(&self, user: &Client, as_name: &str, agent: &str, id: &str, only_try: bool) -> Result<(), String> {
        let answer = json!({"id": id, "toolset": "deploy", "decision": "Approve", "user": as_name});
        let params = PatchParams { dry_run: only_try, ..PatchParams::default() };
        let agents = Api::<Agent>::namespaced(user.clone(), &self.namespace.namespace);
        let patched = agents.patch(agent, &params, &Patch::Merge(json!({"spec": {"toolApprovals": [answer]}}))).await;
        patched.map(drop).map_err(|error| error.to_string())
    }
}

fn policy_name(namespace: &TestNamespace) -> String {
    format!("{}-approvals", namespace.namespace)
}

/// Installs the policy of config/default for this namespace.
async fn install_policy(namespace: &TestNamespace) {
    let text = std::fs::read_to_string(Path::new("config/default/spillway.yaml")).expect("config/default");
    let objects = text.split("\n---\n").filter(|object| object.contains("\n  name: spillway-approvals\n"));
    let name = policy_name(namespace);
    for object in objects {
        let mut object: Value = serde_saphyr::from_str(object).expect("YAML");
        object["metadata"] = json!({"name": name});
        if object["kind"] == "ValidatingAdmissionPolicy" {
            let selector = json!({"matchLabels": {"kubernetes.io/metadata.name": namespace.namespace}});
            object["spec"]["matchConstraints"]["namespaceSelector"] = selector;
            let policy: ValidatingAdmissionPolicy = serde_json::from_value(object).expect("a policy");
            Api::all(namespace.client.clone()).create(&PostParams::default(), &policy).await.expect("the policy is accepted");
        } else {
            object["spec"]["policyName"] = json!(name);
            let binding: ValidatingAdmissionPolicyBinding = serde_json::from_value(object).expect("a binding");
            Api::all(namespace.client.clone()).create(&PostParams::default(), &binding).await.expect("the binding is accepted");
        }
    }
}

/// A user with these rights in the namespace.
async fn user(namespace: &TestNamespace, name: &str, rules: Value) -> Client {
    let role: Role = serde_json::from_value(json!({"metadata": {"name": name}, "rules": rules})).expect("a role");
    namespace.api::<Role>().create(&PostParams::default(), &role).await.expect("the role is made");
    let binding: RoleBinding = serde_json::from_value(json!({"metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}]}))
    .expect("a binding");
    namespace.api::<RoleBinding>().create(&PostParams::default(), &binding).await.expect("the role is bound");
    let mut config = Config::infer().await.expect("a cluster");
    config.auth_info.impersonate = Some(name.to_owned());
    Client::try_from(config).expect("a client")
}

/// Runs the plugin as the user of the test, and returns what it printed.
async fn plugin(namespace: &TestNamespace, words: &[&str]) -> String {
    let mut command = tokio::process::Command::new(plugin_path());
    let output = command.args(["-n", &namespace.namespace]).args(words).output().await.expect("it runs");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    assert!(output.status.success(), "{words:?}: {}", text(output.stderr));
    text(output.stdout)
}

#[tokio::test]
async fn a_call_runs_once_after_a_person_with_the_right_approved_it() {
    let (scene, first) = Scene::open("approvals").await;
    let Scene { namespace, editor, approver } = &scene;
    scene.wait_until_served().await;
    namespace.submit("code", "release", json!({"payload": "x"})).await;
    let item = namespace.wait_for_item_phase("release", Leased).await;
    let agent = holder(&item);
    scene.begin(&agent, "v1").await;
    let question = scene.wait_for_question(&agent, "v1", ToolApprovalState::Waiting).await;
    assert_eq!((question.toolset.as_str(), question.program.as_str()), ("deploy", "deploy"));
    assert_eq!(question.item.as_ref().map(|item| item.name.as_str()), Some("release"));
    assert!(scene.starts().await.is_empty());
    let listed = plugin(namespace, &["approvals"]).await;
    assert!(listed.contains(&agent) && listed.contains(&question.id) && listed.contains("v1"), "{listed}");
    // The API server applies a new policy after a short delay. Until then these are tries that store nothing.
    eventually("the policy refuses a user without the right", async || {
        let refused = scene.approve(editor, EDITOR, &agent, &question.id, true).await;
        let words = refused.err().unwrap_or_default();
        check_state(words.contains("needs the right to approve the Toolset deploy"), || words)
    })
    .await;
    let refused = scene.approve(editor, APPROVER, &agent, &question.id, false).await.expect_err("refused");
    assert!(refused.contains("must be the name of the user that answers"), "{refused}");
    let refused = scene.approve(approver, EDITOR, &agent, &question.id, false).await.expect_err("refused");
    assert!(refused.contains("must be the name of the user that answers"), "{refused}");
    // A new leader knows the call that waits. It does not ask again, and lets it through once.
    drop(first);
    let second = namespace.operator("two");
    second.leads(namespace).await;
    assert_eq!(scene.wait_for_question(&agent, "v1", ToolApprovalState::Waiting).await, question);
    assert!(scene.starts().await.is_empty());
    scene.approve(approver, APPROVER, &agent, &question.id, false).await.expect("accepted");
    let answer = scene.answer(&agent, "v1").await;
    assert!(answer.contains("deployed v1") && answer.contains("\"status\":\"ok\""), "{answer}");
    let used = scene.wait_for_question(&agent, "v1", ToolApprovalState::Used).await;
    assert_eq!((used.id.as_str(), used.by.as_deref()), (question.id.as_str(), Some(APPROVER)));
    let starts = scene.starts().await;
    assert!(starts.len() == 1 && starts[0]["approvedBy"] == APPROVER && starts[0]["caller"]["name"] == agent, "{starts:?}");
    // The same call again is another question, though the answer is still there. It is denied, and repeats hear the same.
    scene.begin(&agent, "v1").await;
    let again = scene.wait_for_question(&agent, "v1", ToolApprovalState::Waiting).await;
    assert_ne!(again.id, question.id);
    let told = plugin(namespace, &["deny", &agent, &again.id[..8], "--reason", "not today"]).await;
    assert!(told.contains("denied by") && told.contains("v1"), "{told}");
    let answer = scene.answer(&agent, "v1").await;
    assert!(answer.contains("\"status\":\"denied\"") && answer.contains("not today"), "{answer}");
    scene.begin(&agent, "v1").await;
    let answer = scene.answer(&agent, "v1").await;
    assert!(answer.contains("not today"), "{answer}");
    assert_eq!(scene.starts().await, starts);
    // An agent that lost its item runs nothing, also if a person approves it later.
    scene.begin(&agent, "v2").await;
    let lost = scene.wait_for_question(&agent, "v2", ToolApprovalState::Waiting).await;
    namespace.release_item("release").await;
    eventually("the question ends with the lease", async || {
        let all = scene.questions(&agent).await;
        check_state(all.iter().all(|one| one.id != lost.id), || format!("{all:?}"))
    })
    .await;
    scene.approve(approver, APPROVER, &agent, &lost.id, false).await.expect("accepted, without an effect");
    // A call that nobody answers times out.
    let short = json!({"spec": {"approvalTimeoutSeconds": 10}});
    namespace.api::<Toolset>().patch("deploy", &PatchParams::default(), &Patch::Merge(short)).await.expect("patched");
    scene.wait_until_served().await;
    let other = namespace.wait_until_idle("others", 1).await.remove(0).name_any();
    scene.begin(&other, "v3").await;
    scene.wait_for_question(&other, "v3", ToolApprovalState::TimedOut).await;
    let answer = scene.answer(&other, "v3").await;
    assert!(answer.contains("\"status\":\"denied\"") && answer.contains("approvalTimeout"), "{answer}");
    assert_eq!(scene.starts().await, starts, "one call ran, once");
    scene.close().await;
}
