//! The sample of a Toolset that calls the API server (config/samples/toolsets/rollout), with the real server: its definitions, and the
//! rights that it ships. The bridge is started by hand here, so that no image with kubectl is needed.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::bridge::Bridge;
use crate::support::{TestNamespace, check_state, eventually};

const SAMPLE: &str = "config/samples/toolsets/rollout";
/// The ServiceAccount of the sample.
const ACCOUNT: &str = "rollout-tools";

/// The output of kubectl, as an administrator.
fn kubectl(words: &[&str]) -> String {
    let output = Command::new("kubectl").args(words).output().expect("kubectl is on the PATH of `cluster run`");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// The fields of a definition of the sample, for this namespace and with kubectl's settings, without its name and description.
fn fields(file: &str, namespace: &str, kubectl: &str, settings: &Path) -> String {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(SAMPLE).join(file)).expect("a definition");
    let front = text.split("---\n").nth(1).expect("a front matter");
    let kept = front.lines().filter(|line| !line.starts_with("name:") && !line.starts_with("description:"));
    let fields: String = kept.map(|line| format!("{line}\n")).collect();
    let fields = fields.replace("--namespace=demo", &format!("--namespace={namespace}")).replace("/usr/bin/kubectl", kubectl);
    format!("{fields}env: {{set: {{KUBECONFIG: {}}}}}\n", settings.display())
}

#[tokio::test]
async fn an_agent_restarts_the_deployment_that_the_sample_allows_and_no_other() {
    let test = TestNamespace::open("rollout").await;
    let namespace = test.namespace.as_str();
    let folder = tempfile::Builder::new().prefix("account").tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    // kustomize adds the namespace of the account, which is the last entry.
    let rights = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(SAMPLE).join("rights.yaml")).expect("the rights");
    let file = folder.path().join("rights.yaml");
    std::fs::write(&file, format!("{}\n    namespace: {namespace}\n", rights.trim_end())).expect("a file");
    kubectl(&["apply", "--namespace", namespace, "-f", &file.display().to_string()]);
    for name in ["web", "other"] {
        kubectl(&["create", "deployment", name, "--namespace", namespace, "--image=localhost/spillway/demo-agent:dev", "--replicas=0"]);
    }
    // As in a pod, but that kubectl finds its settings there by itself.
    let token = kubectl(&["create", "token", ACCOUNT, "--namespace", namespace]);
    std::fs::write(folder.path().join("token"), &token).expect("a file");
    let settings = folder.path().join("settings");
    let mut config: Value = serde_json::from_str(&kubectl(&["config", "view", "--raw", "--minify", "-o", "json"])).expect("JSON");
    config["users"][0]["user"] = json!({"tokenFile": folder.path().join("token")});
    std::fs::write(&settings, config.to_string()).expect("a file");
    let program = Command::new("sh").args(["-c", "realpath \"$(command -v kubectl)\""]).output().expect("sh").stdout;
    let program = String::from_utf8(program).expect("a path");
    let fields = |file: &str| fields(file, namespace, program.trim(), &settings);
    let (restart, pods) = (fields("restart.md"), fields("pods.md"));
    let account = folder.path().display().to_string();
    let bridge = Bridge::start(&[("restart", &restart), ("pods", &pods)], &["--service-account", &account]);

    let answer = bridge.execute("restart", &json!({"deployment": "web"}));
    assert!(answer["status"] == "ok" && answer["stdout"].as_str().is_some_and(|said| said.contains("restarted")), "{answer}");
    let restarted = |name: &str| {
        let path = "jsonpath={.spec.template.metadata.annotations}";
        !kubectl(&["get", "deployment", name, "--namespace", namespace, "-o", path]).is_empty()
    };
    assert!(restarted("web"));
    assert_eq!(bridge.execute("pods", &json!({"app": "web"}))["status"], "ok");
    for wrong in ["other", "web --all", "web,deployment/other"] {
        let answer = bridge.execute("restart", &json!({"deployment": wrong}));
        assert_eq!((&answer["status"], &answer["field"]), (&json!("rejected"), &json!("deployment")), "{wrong}");
    }
    assert_eq!(bridge.execute("pods", &json!({"app": "web --all-namespaces"}))["status"], "rejected");
    // The rights do not depend on the definitions.
    let user = format!("--as=system:serviceaccount:{namespace}:{ACCOUNT}");
    for (verb, what, may) in [
        ("patch", "deployment/web", "yes"),
        ("patch", "deployment/other", "no"),
        ("delete", "deployment/web", "no"),
        ("list", "pods", "yes"),
        ("get", "secrets", "no"),
    ] {
        let asked = Command::new("kubectl").args(["auth", "can-i", verb, what, "--namespace", namespace, &user]).output().expect("kubectl");
        assert_eq!(String::from_utf8_lossy(&asked.stdout).trim(), may, "{verb} {what}");
    }
    assert!(!restarted("other"));
    assert!(!bridge.events().iter().any(|event| event.to_string().contains(&token)));
    for name in ["web", "other"] {
        kubectl(&["delete", "deployment", name, "--namespace", namespace]);
    }
    eventually("the Deployments are gone", async || {
        let left = kubectl(&["get", "deployments,replicasets,pods", "--namespace", namespace, "-o", "name"]);
        check_state(left.is_empty(), || left)
    })
    .await;
    test.close().await;
}
