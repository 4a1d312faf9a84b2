//! The system call profile on a node: the chart's DaemonSet installs it and labels the node, and a pool with `seccomp: Localhost` runs
//! there under it. The DaemonSet is the only one in this cluster, so all of it is one test.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use spillway::api::names::{NODE_PROFILE_LABEL_PREFIX, node_profile_label};
use spillway::api::work_item::WorkItemPhase::{Leased, Succeeded};
use spillway_sandbox::profile::{self, PROFILE_BYTES};

use crate::sandbox::wait_for_sandbox;
use crate::support::exec::sh;
use crate::support::work::{UNTIL_TOLD, holder};
use crate::support::{TestNamespace, check_state, eventually, node};

/// Calls that the policy refuses, and the container runtime's default profile allows.
const PROBES: [&str; 7] = ["vmsplice", "aio", "name-to-handle", "segment-table", "secret-memory", "ping", "mptcp"];

/// The folder of seccomp profiles of the kubelet, on the node. The kubelet of the local cluster has one in the cluster's state.
fn seccomp_folder() -> PathBuf {
    if node::has_own_files() {
        return "/var/lib/kubelet/seccomp".into();
    }
    let kubeconfig = PathBuf::from(std::env::var_os("KUBECONFIG").expect("run this by `make e2e`"));
    let state = kubeconfig.parent().and_then(|folder| folder.parent()).expect("the cluster's state folder");
    state.join("kubelet/seccomp")
}

fn kubectl(words: &[&str], input: &str) -> Output {
    let mut command = Command::new("kubectl");
    let mut child = command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("kubectl");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("kubectl reads it");
    child.wait_with_output().expect("kubectl ends")
}

fn succeeded(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// The chart's objects for the profile, with a look each second, so that the test need not wait for minutes.
fn chart(name: &str, namespace: &str) -> String {
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/spillway");
    let folder = seccomp_folder();
    let values = [
        "sandbox.nodeProfile.enabled=true".to_owned(),
        format!("sandbox.nodeProfile.namespace={namespace}"),
        format!("sandbox.nodeProfile.folder={}", folder.display()),
        format!("fullnameOverride={name}"),
        "image.repository=localhost/spillway/spillway,image.tag=dev,image.pullPolicy=Never".to_owned(),
    ];
    let mut command = Command::new("helm");
    command.args(["template", "spillway", chart, "--show-only", "templates/nodeprofile.yaml"]);
    command.args(values.iter().flat_map(|value| ["--set", value]));
    let rendered = succeeded(command.output().expect("helm is on PATH: run this by `make e2e`"));
    let once = "            - --folder=/host/seccomp\n";
    assert!(rendered.contains(once), "{rendered}");
    rendered.replace(once, &format!("{once}            - --interval=1\n"))
}

async fn only_node(room: &TestNamespace) -> Node {
    // Nodes of KWOK run nothing.
    let all = Api::<Node>::all(room.client.clone()).list(&ListParams::default()).await.expect("nodes").items;
    all.into_iter().find(|node| !node.annotations().contains_key("kwok.x-k8s.io/node")).expect("a real node")
}

fn labelled(node: &Node) -> Vec<&str> {
    node.labels().keys().filter(|key| key.starts_with(NODE_PROFILE_LABEL_PREFIX)).map(String::as_str).collect()
}

/// Whether each probe worked, in a process of `kubectl exec`, around which the supervisor puts no sandbox.
async fn probe(room: &TestNamespace, agent: &str) -> Vec<(String, bool)> {
    let script = format!(
        "for probe in {}; do spillway-attacks $probe >/dev/null 2>&1 && echo $probe worked || echo $probe refused; done",
        PROBES.join(" ")
    );
    let said = sh(room, agent, &script).await.ok();
    said.lines().filter_map(|line| line.split_once(' ')).map(|(probe, answer)| (probe.to_owned(), answer == "worked")).collect()
}

fn pool(seccomp: &str) -> Value {
    json!({
        "scaling": {"min": 0, "max": 1},
        "agent": {"image": "localhost/spillway/attack-agent:dev", "resources": {"limits": {"cpu": "500m", "memory": "64Mi"}}},
        "sandbox": {"isolation": {"seccomp": seccomp}},
    })
}

#[tokio::test]
async fn a_pool_runs_under_the_profile_of_its_node() {
    let room = TestNamespace::open("profile").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    let label = node_profile_label(profile::version());
    let file = node::file(&seccomp_folder().join(profile::path()));
    let name = only_node(&room).await.name_any();
    // Remains of a run that failed.
    succeeded(kubectl(&["label", "node", &name, &format!("{label}-")], ""));
    let _ = std::fs::remove_file(&file);

    // No node has the profile: the pod waits, and its pool says what is missing.
    room.apply_queue("bugs", json!({})).await;
    room.apply_queue("control", json!({})).await;
    room.apply_workers("confined", &["bugs"], UNTIL_TOLD, pool("Localhost")).await;
    room.apply_workers("control", &["control"], UNTIL_TOLD, pool("RuntimeDefault")).await;
    room.submit("bugs", "bug", json!({"payload": "bug"})).await;
    room.submit("control", "other", json!({"payload": "other"})).await;
    let (reason, message) = room.pool_says("confined", "Blocked", "True").await;
    assert_eq!(reason, "NodeProfileMissing", "{message}");
    assert!(message.contains(&label) && message.contains("sandbox.nodeProfile.enabled"), "{message}");

    // The chart's DaemonSet, in a namespace of its own: Pod Security `restricted` refuses folders of the node.
    let privileged = format!("{}-node", room.namespace);
    let object = json!({"metadata": {"name": privileged, "labels": {"pod-security.kubernetes.io/enforce": "privileged"}}});
    let namespaces = Api::<Namespace>::all(room.client.clone());
    let object: Namespace = serde_json::from_value(object).expect("a namespace");
    namespaces.create(&PostParams::default(), &object).await.expect("a new namespace");
    let objects = chart(&room.namespace, &privileged);
    succeeded(kubectl(&["apply", "-f", "-"], &objects));
    eventually("the node has the label", async || {
        let node = only_node(&room).await;
        check_state(labelled(&node) == [label.as_str()], || format!("{:?}", node.labels()))
    })
    .await;
    assert_eq!(std::fs::read(&file).expect("the file is there before the label"), PROFILE_BYTES);
    let daemon = format!("daemonset/{}-node-profile", room.namespace);
    succeeded(kubectl(&["-n", &privileged, "rollout", "status", &daemon, "--timeout=2m"], ""));

    // The waiting pod starts by itself, and its program works under both: the node's profile, and the filter in the pod.
    let agent = holder(&room.wait_for_item_phase("bug", Leased).await);
    let control = holder(&room.wait_for_item_phase("other", Leased).await);
    let (_, (status, reason, message)) = wait_for_sandbox(&room, "confined").await;
    assert_eq!((status.as_str(), reason.as_str()), ("True", "Enforced"), "{message}");
    let refused: Vec<(String, bool)> = PROBES.iter().map(|probe| ((*probe).to_owned(), false)).collect();
    let worked: Vec<(String, bool)> = PROBES.iter().map(|probe| ((*probe).to_owned(), true)).collect();
    assert_eq!(probe(&room, &agent).await, refused, "beside the sandbox, the node's profile alone refuses them");
    assert_eq!(probe(&room, &control).await, worked, "the control: the runtime's default profile allows them");
    let supervisor = sh(&room, &agent, "grep ^Seccomp: /proc/1/status").await.ok();
    assert_eq!(supervisor.split_whitespace().collect::<Vec<_>>(), ["Seccomp:", "2"]);

    // The policy binds each daemon to its node and to the labels of profiles.
    let account = format!("--as=system:serviceaccount:{privileged}:{}-node-profile", room.namespace);
    let as_node = |node: &str| format!("--as-user-extra=authentication.kubernetes.io/node-name={node}");
    let old = format!("{NODE_PROFILE_LABEL_PREFIX}00000000");
    for (node_name, change) in [
        (name.as_str(), "disk=ssd".to_owned()),
        (&name, "kubernetes.io/os-".to_owned()),
        (&name, format!("{old}=yes")),
        ("another", format!("{old}=installed")),
    ] {
        let words = ["label", "node", &name, &change, "--overwrite", &account, &as_node(node_name)];
        let output = kubectl(&words, "");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains("Spillway's node profile may change"), "{change}: {error}");
    }
    let taint = ["taint", "node", &name, "a=b:PreferNoSchedule", &account, &as_node(&name)];
    assert!(!kubectl(&taint, "").status.success(), "nothing but labels");

    // A file that somebody changed is written again.
    std::fs::write(&file, "{\"defaultAction\": \"SCMP_ACT_ALLOW\"}").expect("changed");
    eventually("the profile is restored", async || {
        let bytes = std::fs::read(&file).expect("the file");
        check_state(bytes == PROFILE_BYTES, || String::from_utf8_lossy(&bytes).into_owned())
    })
    .await;

    // A label without its file is removed, also that of another version.
    succeeded(kubectl(&["label", "node", &name, &format!("{old}=installed")], ""));
    eventually("the untrue label is removed", async || {
        let node = only_node(&room).await;
        check_state(labelled(&node) == [label.as_str()], || format!("{:?}", node.labels()))
    })
    .await;

    // Without the DaemonSet label and file stay, so that a kubelet that starts again keeps the agent. Without the label a new one waits.
    succeeded(kubectl(&["-n", &privileged, "delete", &daemon, "--cascade=foreground"], ""));
    assert_eq!(labelled(&only_node(&room).await), [label.as_str()]);
    assert_eq!(std::fs::read(&file).expect("the file stays"), PROFILE_BYTES);
    succeeded(kubectl(&["label", "node", &name, &format!("{label}-")], ""));
    for item in ["bug", "other"] {
        room.release_item(item).await;
        room.wait_for_item_phase(item, Succeeded).await;
    }
    room.apply_queue("late", json!({})).await;
    room.apply_workers("late", &["late"], UNTIL_TOLD, pool("Localhost")).await;
    room.submit("late", "last", json!({"payload": "last"})).await;
    let (reason, _) = room.pool_says("late", "Blocked", "True").await;
    assert_eq!(reason, "NodeProfileMissing");

    room.close().await;
    succeeded(kubectl(&["delete", "--ignore-not-found", "-f", "-"], &objects));
    namespaces.delete(&privileged, &DeleteParams::default()).await.expect("the namespace is deleted");
    std::fs::remove_file(&file).expect("no pod needs it");
}
