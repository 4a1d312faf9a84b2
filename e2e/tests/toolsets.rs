//! Toolsets: privileged programs outside the sandbox, which agents call over MCP, through the sidecar and the gateway, with a credential
//! that no agent can read. The deploy server is real, and refuses who has no credential.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, LogParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use spillway::api::work_item::WorkItemPhase::Leased;
use spillway::api::{Agent, AgentPool, Toolset};
use spillway::wire::meter::ITEM_HEADER;
use spillway::wire::{Code, GATEWAY_AUDIENCE};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::support::caller::{Caller, token, token_of};
use crate::support::exec::sh;
use crate::support::mcp::{begin_with_tools, with_tools};
use crate::support::operator::free_port;
use crate::support::small_volume::SmallVolume;
use crate::support::work::{UNTIL_TOLD, holder};
use crate::support::{Operator, TestNamespace, check_state, eventually};

/// The credential. It is searched where an agent could read it.
const CREDENTIAL: &str = "planted-deploy-credential";

/// A deploy server on the node: it keeps each version that is deployed with the credential.
struct DeployServer {
    port: u16,
    deployed: Arc<Mutex<Vec<String>>>,
}

impl DeployServer {
    async fn start(namespace: &TestNamespace) -> Self {
        let port = free_port(namespace.node);
        let listener = TcpListener::bind((namespace.node, port)).await.expect("a free port");
        let deployed: Arc<Mutex<Vec<String>>> = Arc::default();
        let kept = deployed.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let kept = kept.clone();
                tokio::spawn(async move {
                    let (mut head, mut buffer) = (String::new(), [0; 4096]);
                    while !head.contains("\r\n\r\n") {
                        let Ok(read @ 1..) = stream.read(&mut buffer).await else { return };
                        head.push_str(&String::from_utf8_lossy(&buffer[..read]));
                    }
                    let version = head.split(' ').nth(1).unwrap_or_default().trim_start_matches("/deploy/").to_owned();
                    let may = head.lines().any(|line| line.eq_ignore_ascii_case(&format!("authorization: bearer {CREDENTIAL}")));
                    let (status, body) =
                        if may { ("200 OK", format!("deployed {version}\n")) } else { ("401 Unauthorized", String::new()) };
                    if may {
                        kept.lock().expect("whole").push(version);
                    }
                    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
                    let _ = stream.write_all(answer.as_bytes()).await; // the client may have gone
                });
            }
        });
        Self { port, deployed }
    }

    fn deployed(&self) -> Vec<String> {
        self.deployed.lock().expect("whole").clone()
    }
}

/// The definitions: a deploy with the credential, the same without it, one that prints a file of the item, and one that takes long.
fn definitions(server: &str) -> Value {
    let deploy = |name: &str, header: &str, env: &str| {
        format!(
            "---\nname: {name}\ndescription: Deploys a version\ncommand: /bin/sh\ninterpreter: true\n\
             argv: [\"-c\", 'wget -q -O - --header \"Authorization: Bearer {header}\" http://{server}/deploy/$0', \"{{version}}\"]\n\
             args: [{{name: version, required: true, pattern: \"v[0-9]{{1,3}}\"}}]\n{env}---\nDeploys.\n"
        )
    };
    json!({
        "deploy.md": deploy("deploy", "$DEPLOY_KEY", "env: {credentials: [deploy-key]}\n"),
        "bare.md": deploy("bare", "$DEPLOY_KEY", ""),
        "show.md": "---\nname: show\ndescription: Prints a file\ncommand: /bin/cat\ninterpreter: true\n\
                    args: [{name: file, type: artifact, required: true}]\n---\nPrints.\n",
        "slow.md": "---\nname: slow\ndescription: Waits\ncommand: /bin/sleep\ninterpreter: true\nargv: [\"60\"]\n---\nWaits.\n",
    })
}

struct Scene {
    namespace: TestNamespace,
    _operator: Operator,
    server: DeployServer,
    /// Artifacts are kept here.
    store: PathBuf,
}

impl Scene {
    /// A Toolset that is served, a pool that lists it, and one that does not.
    async fn open(name: &str) -> Self {
        let namespace = TestNamespace::open(name).await;
        let server = DeployServer::start(&namespace).await;
        let store = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.store", namespace.namespace));
        std::fs::create_dir_all(&store).expect("a folder");
        std::fs::write(namespace.artifacts_file(), json!({"store": {"volume": {"path": store}}}).to_string()).expect("a file");
        namespace.kill_gateway();
        namespace.start_gateway("gateway");
        let operator = namespace.operator("one");
        operator.leads(&namespace).await;
        let scene = Self { namespace, _operator: operator, server, store };
        let address = format!("{}:{}", scene.namespace.node, scene.server.port);
        scene.define(definitions(&address)).await;
        let secret: Secret =
            serde_json::from_value(json!({"metadata": {"name": "deploy-key"}, "stringData": {"token": CREDENTIAL}})).expect("a Secret");
        scene.namespace.api::<Secret>().create(&PostParams::default(), &secret).await.expect("the Secret is accepted");
        scene.apply_toolset(scene.spec()).await;
        scene
    }

    /// The Toolset's spec.
    fn spec(&self) -> Value {
        json!({
            "image": "localhost/spillway/demo-agent:dev",
            "definitions": [{"configMapRef": {"name": "programs"}, "mutable": true}],
            "credentials": [{"name": "deploy-key", "secretRef": {"name": "deploy-key"}}],
            "allowedCommands": ["/bin/*"],
            "egress": {"mode": "AllowList", "allow": [format!("{}:{}", self.namespace.node, self.server.port)]},
        })
    }

    async fn define(&self, data: Value) {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "programs"}, "data": data});
        let params = PatchParams::apply("e2e").force();
        self.namespace.api::<ConfigMap>().patch("programs", &params, &Patch::Apply(map)).await.expect("the ConfigMap is accepted");
    }

    async fn apply_toolset(&self, spec: Value) {
        let toolset = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Toolset", "metadata": {"name": "deploy"}, "spec": spec});
        let params = PatchParams::apply("e2e").force();
        self.namespace.api::<Toolset>().patch("deploy", &params, &Patch::Apply(toolset)).await.expect("the Toolset is accepted");
    }

    /// Waits for a condition of the Toolset, and returns its message.
    async fn wait_for(&self, type_: &str, status: &str, reason: &str) -> (Toolset, String) {
        eventually(&format!("the Toolset is {type_}={status} ({reason})"), async || {
            let toolset = self.namespace.api::<Toolset>().get("deploy").await.map_err(|error| error.to_string())?;
            let conditions = toolset.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
            let found = conditions.iter().find(|one| one.type_ == type_ && one.status == status && one.reason == reason);
            let message = found.map(|found| found.message.clone()).ok_or_else(|| format!("{conditions:?}"))?;
            Ok((toolset, message))
        })
        .await
    }

    /// Removes the Toolset, whose objects go with it, and then the namespace.
    async fn close(self) {
        self.namespace.api::<Toolset>().delete("deploy", &DeleteParams::default()).await.expect("deleted");
        self.namespace.close().await;
        let _ = std::fs::remove_dir_all(self.store);
    }

    /// The pods of the bridge.
    async fn bridges(&self) -> Vec<Pod> {
        let selected = ListParams::default().labels("app.kubernetes.io/name=spillway-bridge,app.kubernetes.io/instance=deploy");
        self.namespace.api::<Pod>().list(&selected).await.expect("the pods").items
    }

    /// Begins a call that takes long, the `count`th, and waits until its program runs.
    async fn begin_slow(&self, agent: &str, count: usize) {
        begin_with_tools(&self.namespace, agent, "execute slow '{}'").await;
        eventually("the program runs", async || {
            let audit = self.audit().await;
            let started = audit.iter().filter(|event| event["event"] == "Start" && event["program"] == "slow").count();
            check_state(started == count, || format!("{audit:?}"))
        })
        .await;
    }

    /// Waits until so many programs were ended because nobody waited for them.
    async fn wait_for_cancelled(&self, count: usize) {
        eventually("the program was ended", async || {
            let audit = self.audit().await;
            let ended = audit.iter().filter(|event| event["event"] == "End" && event["status"] == "cancelled").count();
            check_state(ended == count, || format!("{audit:?}"))
        })
        .await;
    }

    /// The lines that the bridge writes.
    async fn log(&self) -> String {
        let mut text = String::new();
        for bridge in self.bridges().await {
            text += &self.namespace.api::<Pod>().logs(&bridge.name_any(), &LogParams::default()).await.unwrap_or_default();
        }
        text
    }

    /// The records of the audit log, which the bridge writes to its standard output.
    async fn audit(&self) -> Vec<Value> {
        let log = self.log().await;
        log.lines().filter_map(|line| serde_json::from_str(line).ok()).filter(|event: &Value| event["hash"].is_string()).collect()
    }
}

#[tokio::test]
async fn an_agent_deploys_with_a_credential_that_it_cannot_read() {
    let scene = Scene::open("toolsets").await;
    let Scene { namespace, server, .. } = &scene;
    let (toolset, _) = scene.wait_for("Ready", "True", "Serving").await;
    let status = toolset.status.expect("a status");
    let names: Vec<String> = status.programs.unwrap_or_default().into_iter().map(|program| program.name).collect();
    assert_eq!((names.join(" ").as_str(), status.program_count), ("bare deploy show slow", Some(4)));
    scene.wait_for("DefinitionsValid", "True", "DefinitionsLoaded").await;
    namespace.apply_queue("code", json!({})).await;
    let lists = |programs: Value| {
        let preflight = json!({"toolsets": [{"name": "deploy", "programs": programs}]});
        json!({"replicas": 1, "toolsets": [{"name": "deploy"}], "preflight": preflight})
    };
    namespace.apply_workers("coders", &["code"], UNTIL_TOLD, lists(json!(["deploy", "bare"]))).await;
    namespace.apply_workers("stuck", &["code"], UNTIL_TOLD, lists(json!(["deploy", "rollback"]))).await;
    namespace.apply_pool("others", json!({"replicas": 1})).await;
    namespace.submit("code", "release", json!({"payload": "x"})).await;
    let item = namespace.wait_for_item_phase("release", Leased).await;
    let agent = holder(&item);
    // With the credential it is done, and what is printed of the credential is taken out.
    let run = async |script: &str| with_tools(namespace, &agent, script).await;
    let answer = run("execute deploy '{\"version\":\"v7\"}'").await;
    assert!(answer.contains("deployed v7") && answer.contains("\"status\":\"ok\""), "{answer}");
    assert_eq!(server.deployed(), ["v7"]);
    // Without it the server refuses.
    let answer = run("execute bare '{\"version\":\"v8\"}'").await;
    assert!(answer.contains("\"status\":\"nonzero\"") && answer.contains("401"), "{answer}");
    // A wrong argument starts nothing.
    for wrong in ["v8;id", "--v8", "v12345", "v8\\nx"] {
        let answer = run(&format!("execute deploy '{{\"version\":\"{wrong}\"}}'")).await;
        assert!(answer.contains("\"status\":\"rejected\"") && answer.contains("\"field\":\"version\""), "{wrong}: {answer}");
    }
    assert_eq!(server.deployed(), ["v7"]);
    // The program gets a file of the item; one that the item does not have starts nothing.
    let put = "cd $SPILLWAY_DATA_DIR && echo 'notes of v7' > notes.txt && /spillway/bin/spillway artifact put notes.txt";
    let answer = run(&format!("{put} && execute show '{{\"file\":\"notes.txt\"}}'")).await;
    assert!(answer.contains("\"stdout\":\"notes of v7\\n\""), "{answer}");
    let answer = run("execute show '{\"file\":\"other.txt\"}'").await;
    assert!(answer.contains("404"), "{answer}");
    // The agent reads the credential nowhere.
    let search = format!("env | grep -c {CREDENTIAL}; grep -rls {CREDENTIAL} / --exclude-dir=proc --exclude-dir=sys 2>/dev/null | wc -l");
    assert_eq!(sh(namespace, &agent, &search).await.out.split_whitespace().collect::<Vec<_>>(), ["0", "0"]);
    // The audit log names the agent, its pod and its item.
    let epoch = item.status.as_ref().and_then(|status| status.lease.as_ref()?.lease_transitions).expect("a lease");
    let pod = namespace.api::<Pod>().get(&agent).await.expect("its pod");
    let audit = scene.audit().await;
    let starts: Vec<&Value> = audit.iter().filter(|event| event["event"] == "Start").collect();
    let asserted = json!({"name": agent, "pod": pod.uid(), "item": format!("{}/{}", item.uid().expect("a uid"), epoch)});
    assert!(starts.len() == 3 && starts.iter().all(|start| start["caller"] == asserted), "{starts:?}");
    assert!(!audit.iter().any(|event| event.to_string().contains(CREDENTIAL)), "{audit:?}");
    // An agent of a pool that does not list the Toolset, and a zombie.
    let other = namespace.wait_until_idle("others", 1).await.remove(0).name_any();
    let url = "http://127.0.0.1:4104/mcp/deploy";
    let denied = with_tools(namespace, &other, &format!("execute deploy '{{\"version\":\"v9\"}}' {url}")).await;
    assert!(denied.contains("403"), "{denied}");
    let gateway = Caller::anonymous_at_gateway(namespace).await;
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "execute", "arguments": {"program": "deploy", "args": {"version": "v9"}}}});
    let call = async |caller: &Caller| {
        let caller = caller.with_header("accept", "application/json, text/event-stream").with_header("mcp-protocol-version", "2025-11-25");
        caller.post("/mcp/deploy", body.clone()).await
    };
    let zombie = gateway.with_token(&token_of(namespace, &pod).await);
    let old = format!("{}/{}", item.uid().expect("a uid"), epoch - 1);
    assert_eq!(call(&zombie.with_header(ITEM_HEADER, &old)).await.refusal().code, Code::NotWorking);
    assert_eq!(call(&gateway).await.refusal().code, Code::NoToken);
    assert_eq!(call(&gateway.with_token("forged")).await.refusal().code, Code::InvalidToken);
    let stranger = namespace.api::<Pod>().get(&other).await.expect("its pod");
    let stranger = gateway.with_token(&token_of(namespace, &stranger).await);
    let refusal = call(&stranger).await.refusal();
    assert_eq!((refusal.code, refusal.reason.as_deref()), (Code::ToolsDenied, Some("NotListed")));
    let bridge = scene.bridges().await.remove(0);
    let token = token(namespace, "deploy-toolset", GATEWAY_AUDIENCE, Some(&bridge)).await;
    assert_eq!(call(&gateway.with_token(&token)).await.refusal().code, Code::NotAnAgent, "the bridge is no agent");
    let page = zombie.with_header("origin", "https://evil.example");
    assert_eq!(call(&page).await.status, 403, "a page");
    eventually("the page is in the audit log", async || {
        let audit = scene.audit().await;
        check_state(audit.iter().any(|event| event["rule"] == "origin"), || format!("{audit:?}"))
    })
    .await;
    assert_eq!(server.deployed(), ["v7"], "none of these deployed anything");
    // The right token with the right item is what it takes.
    let now = format!("{}/{}", item.uid().expect("a uid"), epoch);
    let answer = call(&zombie.with_header(ITEM_HEADER, &now)).await;
    assert!(answer.status == 200 && answer.json()["result"]["structuredContent"]["status"] == "ok", "{answer:?}");
    assert_eq!(server.deployed(), ["v7", "v9"]);
    namespace.release_item("release").await;
    // An agent whose Toolset lacks a program that its pool demands gets no work.
    let (reason, words) = namespace.pool_says("stuck", "Blocked", "True").await;
    assert!(reason == "PreflightFailed" && words.contains("Toolset/deploy does not serve rollback (spec.preflight.toolsets)"), "{words}");
    deny_calls_on_a_full_audit_volume(&scene, &agent).await;
    scene.close().await;
}

/// Where the audit log cannot be written, no program starts. When there is room again, calls are carried out.
async fn deny_calls_on_a_full_audit_volume(scene: &Scene, agent: &str) {
    let volume = SmallVolume::create(&scene.namespace, 64).await;
    let mut spec = scene.spec();
    spec["audit"] = json!({"sink": "PersistentVolumeClaim", "claimName": volume.claim});
    scene.apply_toolset(spec).await;
    let call = async || with_tools(&scene.namespace, agent, r#"execute deploy '{"version":"v21"}'"#).await;
    let log = volume.file("audit.jsonl");
    eventually("the bridge writes to the volume", async || {
        let answer = call().await;
        check_state(answer.contains("deployed v21") && volume.run(&["grep", "-q", "\"End\"", &log]).is_ok(), || answer)
    })
    .await;
    volume.fill();
    let before = scene.server.deployed().len();
    // The last page of the log has room for a few records.
    let mut done = 0;
    let denied = loop {
        let answer = call().await;
        if !answer.contains("deployed v21") {
            break answer;
        }
        done += 1;
        assert!(done < 20, "the volume is not full: {answer}");
    };
    assert!(denied.contains("\"status\":\"spawn_failed\"") && denied.contains("the audit log cannot be written"), "{denied}");
    assert_eq!(scene.server.deployed().len(), before + done, "a call that was denied started nothing");
    volume.make_room();
    let answer = call().await;
    assert!(answer.contains("deployed v21"), "{answer}");
    let mut verify = Command::new(env!("CARGO_BIN_EXE_spillway"));
    let verified = verify.args(["bridge", "audit", "verify", &volume.file_from_outside("audit.jsonl")]).output().expect("it starts");
    assert!(String::from_utf8_lossy(&verified.stdout).contains("whole and in order"), "{verified:?}");
    volume.remove().await;
}

#[tokio::test]
async fn wrong_definitions_under_load_fail_no_call_and_an_ended_agent_runs_nothing() {
    let scene = Scene::open("toolsets-edit").await;
    let namespace = &scene.namespace;
    let (first, _) = scene.wait_for("Ready", "True", "Serving").await;
    namespace.apply_pool("coders", json!({"replicas": 1, "toolsets": [{"name": "deploy"}]})).await;
    let agent = namespace.wait_until_idle("coders", 1).await.remove(0).name_any();
    let address = format!("{}:{}", namespace.node, scene.server.port);
    let mut wrong = definitions(&address);
    wrong["deploy.md"] = json!("---\nname: deploy\ndescription: x\ncommand: relative/path\n---\n");
    scene.define(wrong).await;
    let failed = Mutex::new(Vec::new());
    let calls = async {
        loop {
            let answer = with_tools(namespace, &agent, r#"execute deploy '{"version":"v1"}'"#).await;
            if !answer.contains("deployed v1") {
                failed.lock().expect("whole").push(answer);
            }
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        }
    };
    let told = async {
        // The kubelet shows the change to the bridge in a minute or so.
        eventually("the bridge has seen the wrong definitions", async || {
            let log = scene.log().await;
            check_state(log.contains("the last right ones are served"), || log)
        })
        .await;
        scene.wait_for("DefinitionsValid", "False", "InvalidDefinition").await
    };
    let (toolset, message) = tokio::select! {
        found = told => found,
        () = calls => unreachable!("the calls do not end"),
    };
    assert!(failed.lock().expect("whole").is_empty(), "{failed:?}");
    assert!(message.contains("deploy.md") && message.contains("line 4") && message.contains("command"), "{message}");
    let revision = |toolset: &Toolset| toolset.status.as_ref().and_then(|status| status.revision.clone());
    assert_eq!(revision(&toolset), revision(&first), "the last right definitions are served");
    assert!(!scene.server.deployed().is_empty());
    scene.define(definitions(&address)).await;
    scene.wait_for("DefinitionsValid", "True", "DefinitionsLoaded").await;
    // A program of which the client goes away is ended, and so is one of an agent that is paused, and of one that ends.
    scene.begin_slow(&agent, 1).await;
    sh(namespace, &agent, "kill -9 $(pidof wget)").await.ok();
    scene.wait_for_cancelled(1).await;
    scene.begin_slow(&agent, 2).await;
    let paused = async |paused: bool| {
        let patch = json!({"spec": {"paused": paused}});
        namespace.api::<Agent>().patch(&agent, &PatchParams::default(), &Patch::Merge(patch)).await.expect("patched");
    };
    paused(true).await;
    scene.wait_for_cancelled(2).await;
    let refused = with_tools(namespace, &agent, r#"execute deploy '{"version":"v2"}'"#).await;
    assert!(refused.contains("403"), "{refused}");
    paused(false).await;
    eventually("the agent may call again", async || {
        let answer = with_tools(namespace, &agent, r#"execute deploy '{"version":"v3"}'"#).await;
        check_state(answer.contains("deployed v3"), || answer)
    })
    .await;
    scene.begin_slow(&agent, 3).await;
    let pod = namespace.api::<Pod>().get(&agent).await.expect("its pod");
    let token = token_of(namespace, &pod).await;
    // Its pool makes no other.
    let none = json!({"spec": {"replicas": 0}});
    namespace.api::<AgentPool>().patch("coders", &PatchParams::default(), &Patch::Merge(none)).await.expect("patched");
    let deleted = namespace.api::<Agent>().delete(&agent, &DeleteParams::default()).await;
    assert!(deleted.is_ok() || namespace.api::<Agent>().get_opt(&agent).await.expect("an answer").is_none());
    scene.wait_for_cancelled(3).await;
    let ended = Caller::anonymous_at_gateway(namespace).await.with_token(&token);
    eventually("the agent's token is refused", async || {
        let refusal = ended.post("/mcp/deploy", json!({})).await;
        check_state(refusal.status == 403 || refusal.status == 401, || format!("{refusal:?}"))
    })
    .await;
    scene.close().await;
}
