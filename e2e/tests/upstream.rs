//! A Toolset in front of an existing MCP server: agents call its tools with a credential that no agent can read. The server is a real one, a
//! bridge on the node that asks for a token, behind TLS with a certificate of its own.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, LogParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use spillway::api::Toolset;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

use crate::support::exec::sh;
use crate::support::git_http::acceptor;
use crate::support::mcp::with_tools;
use crate::support::{TestNamespace, check_state, eventually};

/// The credential. It is searched where an agent could read it.
const CREDENTIAL: &str = "planted-upstream-credential";

/// The MCP server on the node. Dropped, it ends.
struct TrackerServer {
    child: Child,
    folder: PathBuf,
    certificate: String,
    port: u16,
    _tls: AbortOnDropHandle<()>,
}

impl Drop for TrackerServer {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

impl TrackerServer {
    async fn start(namespace: &TestNamespace) -> Self {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-tracker", namespace.namespace));
        fs::create_dir_all(folder.join("definitions")).expect("a folder");
        let write = |name: &str, text: &str| fs::write(folder.join(name), text).expect("a file");
        write("token", CREDENTIAL);
        write(
            "definitions/whoami.md",
            "---\nname: whoami\ndescription: Says who runs it\ncommand: /usr/bin/printf\nargv: ['tracker of %s', '{team}']\n\
             args: [{name: team, required: true}]\n---\nHelp.\n",
        );
        let binary = std::env::var_os("SPILLWAY_BINARY").unwrap_or_else(|| env!("CARGO_BIN_EXE_spillway").into());
        let log = fs::File::create(folder.join("stderr")).expect("a file");
        let words = ["bridge", "--definitions", "definitions", "--token-file", "token", "--audit-file", "audit", "--listen", "127.0.0.1:0"];
        let mut command = Command::new(binary);
        command.args(words).args(["--host", &namespace.node.to_string()]).current_dir(&folder);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("it starts");
        let inner = eventually("the MCP server listens", async || {
            let said = fs::read_to_string(folder.join("stderr")).map_err(|error| error.to_string())?;
            let port = said.split_once("address=127.0.0.1:").and_then(|(_, rest)| rest.split_whitespace().next()?.parse::<u16>().ok());
            port.ok_or(said)
        })
        .await;
        let issued = rcgen::generate_simple_self_signed(vec![namespace.node.to_string()]).expect("a certificate");
        let (tls, certificate) = (acceptor(&issued).expect("TLS"), issued.cert.pem());
        let listener = TcpListener::bind((namespace.node, 0)).await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let tls = tls.clone();
                tokio::spawn(async move {
                    let Ok(mut outer) = tls.accept(stream).await else { return };
                    let Ok(mut inner) = TcpStream::connect(("127.0.0.1", inner)).await else { return };
                    let _ = tokio::io::copy_bidirectional(&mut outer, &mut inner).await; // both sides see the end
                });
            }
        });
        Self { child, folder, certificate, port, _tls: AbortOnDropHandle::new(serving) }
    }

    /// How many programs the server started.
    fn starts(&self) -> usize {
        let audit = fs::read_to_string(self.folder.join("audit")).unwrap_or_default();
        audit.lines().filter(|line| line.contains("\"event\":\"Start\"")).count()
    }
}

async fn apply_toolset(namespace: &TestNamespace, upstream: Value) {
    let toolset =
        json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Toolset", "metadata": {"name": "tracker"}, "spec": {"upstream": upstream}});
    let params = PatchParams::apply("e2e").force();
    namespace.api::<Toolset>().patch("tracker", &params, &Patch::Apply(toolset)).await.expect("the Toolset is accepted");
}

/// Waits for a condition of the Toolset, and returns its message.
async fn wait_for(namespace: &TestNamespace, type_: &str, status: &str, reason: &str) -> (Toolset, String) {
    eventually(&format!("the Toolset is {type_}={status} ({reason})"), async || {
        let toolset = namespace.api::<Toolset>().get("tracker").await.map_err(|error| error.to_string())?;
        let conditions = toolset.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
        let generation = toolset.metadata.generation;
        let found = conditions.iter().find(|one| one.type_ == type_ && one.status == status && one.reason == reason);
        let message = found.filter(|one| one.observed_generation == generation).map(|found| found.message.clone());
        let message = message.ok_or_else(|| format!("{conditions:?}"))?;
        Ok((toolset, message))
    })
    .await
}

/// The records of the audit log, which the bridge writes to its standard output.
async fn audit(namespace: &TestNamespace) -> Vec<Value> {
    let selected = ListParams::default().labels("app.kubernetes.io/name=spillway-bridge,app.kubernetes.io/instance=tracker");
    let mut text = String::new();
    for bridge in namespace.api::<Pod>().list(&selected).await.expect("the pods").items {
        text += &namespace.api::<Pod>().logs(&bridge.name_any(), &LogParams::default()).await.unwrap_or_default();
    }
    assert!(!text.contains(CREDENTIAL), "the log has the credential");
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).filter(|event: &Value| event["hash"].is_string()).collect()
}

#[tokio::test]
async fn an_agent_calls_the_tools_of_an_mcp_server_with_a_credential_that_it_cannot_read() {
    let namespace = TestNamespace::open("upstream").await;
    let server = TrackerServer::start(&namespace).await;
    let operator = namespace.operator("one");
    operator.leads(&namespace).await;
    let secret: Secret =
        serde_json::from_value(json!({"metadata": {"name": "tracker"}, "stringData": {"token": CREDENTIAL}})).expect("a Secret");
    namespace.api::<Secret>().create(&PostParams::default(), &secret).await.expect("the Secret is accepted");
    let upstream = |tools: Value| {
        json!({
            "url": format!("https://{}:{}/mcp", namespace.node, server.port), "credentialsRef": {"name": "tracker"},
            "caBundle": server.certificate, "tools": tools,
        })
    };
    // What is wrong is found before anything is made.
    apply_toolset(&namespace, json!({"url": "http://mcp.example.com", "tools": [{"name": "execute"}]})).await;
    let (_, message) = wait_for(&namespace, "DefinitionsValid", "False", "InvalidDefinition").await;
    assert!(message.starts_with("spec.upstream: url: http:// is for a Service"), "{message}");
    let rules = json!([{"name": "program", "type": "enum", "values": ["whoami"], "required": true}]);
    apply_toolset(&namespace, upstream(json!([{"name": "execute"}, {"name": "help", "arguments": rules}]))).await;
    let (toolset, _) = wait_for(&namespace, "Ready", "True", "Serving").await;
    let status = toolset.status.expect("a status");
    let names: Vec<String> = status.programs.unwrap_or_default().into_iter().map(|program| program.name).collect();
    assert_eq!(names, ["execute", "help"]);
    namespace.apply_pool("coders", json!({"replicas": 1, "toolsets": [{"name": "tracker"}]})).await;
    let agent = namespace.wait_until_idle("coders", 1).await.remove(0).name_any();
    let run = async |script: &str| with_tools(&namespace, &agent, script).await;
    let listed = run("request tools/list '{}'").await;
    assert!(listed.contains("\"execute\"") && listed.contains("\"help\"") && !listed.contains("\"name\":\"list_programs\""), "{listed}");
    let answer = run(r#"call execute '{"program":"whoami","args":{"team":"a"}}'"#).await;
    assert!(answer.contains("tracker of a") && answer.contains("\"isError\":false"), "{answer}");
    assert_eq!(server.starts(), 1);
    for (tool, arguments, rule) in [
        ("list_programs", "{}", "notAllowed"),
        ("help", r#"{"program":"other"}"#, "enum"),
        ("help", r#"{"program":"whoami","x":1}"#, "unknown"),
    ] {
        let answer = run(&format!("call {tool} '{arguments}'")).await;
        assert!(answer.contains("\"status\":\"rejected\"") && answer.contains(&format!("\"rule\":\"{rule}\"")), "{tool}: {answer}");
    }
    // The agent reads the credential nowhere.
    let search = format!("env | grep -c {CREDENTIAL}; grep -rls {CREDENTIAL} / --exclude-dir=proc --exclude-dir=sys 2>/dev/null | wc -l");
    assert_eq!(sh(&namespace, &agent, &search).await.out.split_whitespace().collect::<Vec<_>>(), ["0", "0"]);
    eventually("all calls are in the audit log", async || {
        let audit = audit(&namespace).await;
        let of = |event: &str| audit.iter().filter(|one| one["event"] == event).count();
        check_state((of("Start"), of("End"), of("Refused")) == (1, 1, 3), || format!("{audit:?}"))
    })
    .await;
    let pod = namespace.api::<Pod>().get(&agent).await.expect("its pod");
    let all = audit(&namespace).await;
    let start = all.iter().find(|event| event["event"] == "Start").expect("a start");
    assert_eq!((&start["caller"]["name"], &start["caller"]["pod"]), (&json!(agent), &json!(pod.uid())));
    // A tool that the server does not have.
    apply_toolset(&namespace, upstream(json!([{"name": "execute"}, {"name": "gone"}]))).await;
    let (_, message) = wait_for(&namespace, "Ready", "False", "UpstreamToolMissing").await;
    assert!(message.ends_with("gone is not there"), "{message}");
    namespace.api::<Toolset>().delete("tracker", &DeleteParams::default()).await.expect("deleted");
    let _ = fs::remove_dir_all(&server.folder); // a few files
    drop(server);
    namespace.close().await;
}
