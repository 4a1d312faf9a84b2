//! Artifacts: files that a program keeps with its item, through the sidecar and the gateway, on a volume and in a bucket of a real S3
//! server; and what may be read, what is refused, and what is left after a crash.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Endpoints, Namespace, Pod, Service, ServiceAccount};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use spillway::api::artifact::ItemArtifact;
use spillway::api::work_item::WorkItemPhase::{Leased, Succeeded};
use spillway::api::{Budget, WorkItem};
use spillway::wire::artifact::{ARTIFACT_AUDIENCE, PEOPLE_PATH_PREFIX, PERSON_TOKEN_HEADER};

use crate::support::exec::{CommandOutput, sh};
use crate::support::work::{UNTIL_TOLD, each_item, holder};
use crate::support::{Operator, TestNamespace, check_state, eventually, plugin_path};

/// The S3 server of the local cluster (`cluster up --s3`).
const S3_URL: &str = "http://10.100.0.1:7070";
/// Makes a file of this many bytes that no other file is like, and prints its SHA-256.
const RANDOM_FILE: &str = "random() { head -c $2 /dev/urandom > $1; sha256sum < $1 | cut -c1-64; }";

/// A namespace whose gateway keeps artifacts, with a queue and two idle agents.
struct Scene {
    namespace: TestNamespace,
    operator: Option<Operator>,
    folder: PathBuf,
}

impl Scene {
    async fn open(name: &str, store: Option<Value>) -> Self {
        let namespace = TestNamespace::open(name).await;
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.store", namespace.namespace));
        std::fs::create_dir_all(&folder).expect("a folder");
        let store = store.unwrap_or_else(|| json!({"volume": {"path": folder}}));
        let settings = json!({"store": store, "sweepSeconds": 2});
        std::fs::write(namespace.artifacts_file(), settings.to_string()).expect("a file");
        namespace.kill_gateway();
        namespace.start_gateway("gateway");
        let operator = namespace.operator("one");
        operator.leads(&namespace).await;
        namespace.apply_queue("code", json!({})).await;
        let resources = json!({"requests": {"cpu": "5m", "memory": "16Mi"}, "limits": {"cpu": "2", "memory": "256Mi"}});
        let mut agent = each_item(UNTIL_TOLD);
        agent["resources"] = resources;
        let spec = json!({"type": "worker", "replicas": 2, "queues": [{"name": "code"}], "agent": agent});
        namespace.apply_pool("coders", spec).await;
        Self { namespace, operator: Some(operator), folder }
    }

    /// Runs a script in the container of the agent that holds an item.
    async fn sh(&self, item: &str, script: &str) -> CommandOutput {
        let agent = holder(&self.namespace.wait_for_item_phase(item, Leased).await);
        sh(&self.namespace, &agent, &format!("cd $SPILLWAY_DATA_DIR && export PATH=$PATH:/spillway/bin && {RANDOM_FILE} && {script}")).await
    }

    /// The objects in the folder.
    fn objects(&self) -> Vec<PathBuf> {
        fn files(folder: &Path) -> Vec<PathBuf> {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            entries.flat_map(|entry| if entry.path().is_dir() { files(&entry.path()) } else { vec![entry.path()] }).collect()
        }
        files(&self.folder)
    }

    async fn wait_for_objects(&self, count: usize) {
        eventually(&format!("the store has {count} objects"), async || {
            check_state(self.objects().len() == count, || format!("{:?}", self.objects()))
        })
        .await;
    }

    async fn limit(&self, artifacts: Value) {
        let patch = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Budget", "metadata": {"name": "default"}, "spec": {"artifacts": artifacts}});
        let params = PatchParams::apply("e2e").force();
        self.namespace.api::<Budget>().patch("default", &params, &Patch::Apply(patch)).await.expect("the Budget is accepted");
    }

    async fn close(self) {
        let Self { namespace, operator: _operator, folder } = self;
        namespace.close().await;
        let _ = std::fs::remove_dir_all(folder);
    }
}

/// Runs the plugin as a person.
async fn plugin(namespace: &TestNamespace, words: &[&str]) -> CommandOutput {
    let mut command = tokio::process::Command::new(plugin_path());
    let output = command.args(["-n", &namespace.namespace]).args(words).output().await.expect("it runs");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    CommandOutput { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
}

fn artifacts(item: &WorkItem) -> Vec<ItemArtifact> {
    item.status.as_ref().and_then(|status| status.artifacts.clone()).unwrap_or_default()
}

#[tokio::test]
async fn files_of_an_item_are_for_the_items_after_it_and_for_nobody_else() {
    let scene = Scene::open("artifacts", None).await;
    let namespace = &scene.namespace;
    namespace.submit("code", "build", json!({"payload": "x"})).await;
    namespace.submit("code", "other", json!({"payload": "x"})).await;
    // More than one part of an upload.
    let put = scene.sh("build", "random app.tar 12000001 && spillway artifact put app.tar").await.ok();
    let lines: Vec<&str> = put.lines().collect();
    let [sha256, "build/app.tar"] = lines[..] else { panic!("{put}") };
    let stored = artifacts(&namespace.item("build").await);
    let [ItemArtifact { name, bytes: 12_000_001, sha256: recorded, epoch: 1, .. }] = &stored[..] else { panic!("{stored:?}") };
    assert_eq!((name.as_str(), recorded.as_str()), ("app.tar", sha256));
    assert_eq!(scene.objects().len(), 1);
    // Its own program, and a second file.
    let read = scene
        .sh("build", "spillway artifact get app.tar -o copy && cmp app.tar copy && spillway artifact get app.tar -o - | cmp app.tar")
        .await;
    read.ok();
    scene.sh("build", "echo hello > note && spillway artifact put note --name hello.txt").await.ok();
    let listed = scene.sh("build", "spillway artifact list").await.ok();
    assert!(listed.contains("app.tar\t12000001\t") && listed.contains("hello.txt\t6\t"), "{listed}");
    // Another item has nothing to do with it.
    for script in ["spillway artifact get build/app.tar", "spillway artifact list build", "spillway artifact get none/app.tar"] {
        let refused = scene.sh("other", script).await;
        assert!(refused.code == 3 && refused.err.contains("whose artifacts this agent may read"), "{script}: {refused:?}");
    }
    let absent = scene.sh("build", "spillway artifact get absent").await;
    assert!(absent.code == 3 && absent.err.contains("has no artifact \"absent\"") && !absent.out.contains("absent"), "{absent:?}");
    namespace.release_item("build").await;
    namespace.release_item("other").await;
    namespace.wait_for_item_phase("build", Succeeded).await;
    // The item that depends on it reads it, and may not write to it.
    namespace.submit("code", "check", json!({"payload": "x", "dependsOn": [{"name": "build"}]})).await;
    let got = scene.sh("check", "spillway artifact get build/app.tar && sha256sum < app.tar | cut -c1-64 && ls -A").await.ok();
    assert!(got.starts_with(sha256) && !got.contains(".part"), "{got}");
    for (words, code) in [("put app.tar --name ../x", 2), ("put /tmp", 2), ("put absent", 2), ("get build/../x", 2)] {
        let wrong = scene.sh("check", &format!("spillway artifact {words}")).await;
        assert_eq!(wrong.code, code, "{words}: {wrong:?}");
    }
    // A file of the same name is replaced, and the old content is removed.
    scene.sh("check", "echo one > f && spillway artifact put f && echo two > f && spillway artifact put f && spillway artifact get f -o g && grep two g").await.ok();
    scene.wait_for_objects(3).await;
    let listed = plugin(namespace, &["artifact", "list", "build"]).await.ok();
    assert!(listed.contains("app.tar") && listed.contains("12.0 MB"), "{listed}");
    let explained = plugin(namespace, &["explain", "item/build"]).await.ok();
    assert!(explained.contains("app.tar (12.0 MB), hello.txt (6 B)"), "{explained}");
    // The content goes with its item.
    namespace.api::<WorkItem>().delete("build", &DeleteParams::default()).await.expect("deleted");
    scene.wait_for_objects(1).await;
    namespace.release_item("check").await;
    namespace.wait_for_item_phase("check", Succeeded).await;
    scene.close().await;
}

/// A token of the ServiceAccount `default` of a namespace.
async fn token(namespace: &TestNamespace, of: &str, audience: &str) -> String {
    let request = json!({"metadata": {}, "spec": {"audiences": [audience], "expirationSeconds": 600}});
    let request: TokenRequest = serde_json::from_value(request).expect("a request");
    let accounts = Api::<ServiceAccount>::namespaced(namespace.client.clone(), of);
    let made = accounts.create_token_request("default", &PostParams::default(), &request).await.expect("a token");
    made.status.and_then(|status| status.token).expect("a token")
}

/// A Service `gateways` that leads to the namespace's gateway. The API server passes requests on to the addresses of pods only, and the
/// gateway is a process on the node: a pod with the node's address stands for it.
async fn stand_in_for_gateway(namespace: &TestNamespace) {
    let (name, address) = (&namespace.namespace, namespace.gateway);
    let labels = Patch::Merge(json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}}));
    Api::<Namespace>::all(namespace.client.clone()).patch(name, &PatchParams::default(), &labels).await.expect("a label");
    let container = json!({"name": "node", "image": "localhost/spillway/demo-agent:dev", "command": ["/bin/sleep", "100000"]});
    let pod =
        json!({"metadata": {"name": "node"}, "spec": {"hostNetwork": true, "terminationGracePeriodSeconds": 0, "containers": [container]}});
    let pod: Pod = serde_json::from_value(pod).expect("a Pod");
    namespace.api::<Pod>().create(&PostParams::default(), &pod).await.expect("a Pod");
    eventually("the pod has the address of the node", async || {
        let pod = namespace.api::<Pod>().get("node").await.expect("the Pod");
        let has = pod.status.as_ref().and_then(|status| status.pod_ip.clone());
        check_state(has == Some(address.ip().to_string()), || format!("{has:?}"))
    })
    .await;
    let service = json!({"metadata": {"name": "gateways"}, "spec": {"ports": [{"name": "https", "port": 8443}]}});
    let service: Service = serde_json::from_value(service).expect("a Service");
    namespace.api::<Service>().create(&PostParams::default(), &service).await.expect("a Service");
    let target = json!({"kind": "Pod", "name": "node", "namespace": name});
    let subset = json!({"addresses": [{"ip": address.ip(), "targetRef": target}], "ports": [{"name": "https", "port": address.port()}]});
    let endpoints: Endpoints = serde_json::from_value(json!({"metadata": {"name": "gateways"}, "subsets": [subset]})).expect("Endpoints");
    namespace.api::<Endpoints>().create(&PostParams::default(), &endpoints).await.expect("Endpoints");
}

#[tokio::test]
async fn people_read_the_artifacts_of_their_namespace_through_the_api_server() {
    let scene = Scene::open("artifactpeople", None).await;
    let namespace = &scene.namespace;
    stand_in_for_gateway(namespace).await;
    let name = &namespace.namespace;
    namespace.submit("code", "build", json!({"payload": "x"})).await;
    let sha256 = scene.sh("build", "random app.tar 12000001 && spillway artifact put app.tar").await.ok();
    let folder = scene.folder.join("person");
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("app.tar");
    let service = format!("{name}/gateways");
    let get = async |artifact: &str| {
        let file = file.to_string_lossy().into_owned();
        plugin(namespace, &["artifact", "get", artifact, "-o", &file, "--gateway-service", &service]).await
    };
    let got = eventually("the API server knows the Service", async || {
        let output = get("build/app.tar").await;
        check_state(output.code == 0, || format!("{output:?}")).map(|()| output)
    })
    .await;
    assert!(got.out.contains("app.tar (12.0 MB)"), "{got:?}");
    let content: String = Sha256::digest(std::fs::read(&file).expect("a file")).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(Some(content.as_str()), sha256.lines().next());
    for (artifact, words) in [("build/none", "has no artifact \"none\"; it has: app.tar"), ("none/app.tar", "not found")] {
        let refused = get(artifact).await;
        assert!(refused.code == 1 && refused.err.contains(words), "{artifact}: {refused:?}");
    }
    // A token of another namespace, or for another audience, reads nothing.
    let path = format!("/api/v1/namespaces/{name}/services/https:gateways:https/proxy{PEOPLE_PATH_PREFIX}{name}/build/app.tar");
    let others = [
        (token(namespace, "default", ARTIFACT_AUDIENCE).await, "not_allowed"),
        (token(namespace, name, "https://kubernetes.default.svc").await, "wrong_audience"),
        ("forged".to_owned(), "invalid_token"),
    ];
    for (token, code) in others {
        let request = http::Request::get(&path).header(PERSON_TOKEN_HEADER, token).body(Vec::new()).expect("a request");
        let refused = namespace.client.request_text(request).await.expect_err("refused").to_string();
        assert!(refused.contains(code), "{code}: {refused}");
    }
    let request = http::Request::get(&path).body(Vec::new()).expect("a request");
    let refused = namespace.client.request_text(request).await.expect_err("refused").to_string();
    assert!(refused.contains("no_token"), "{refused}");
    namespace.release_item("build").await;
    namespace.api::<Pod>().delete("node", &DeleteParams::default().grace_period(0)).await.expect("deleted");
    scene.close().await;
}

#[tokio::test]
async fn a_file_over_a_limit_is_refused_before_it_is_stored() {
    let scene = Scene::open("artifactlimits", None).await;
    let namespace = &scene.namespace;
    scene.limit(json!({"maxFileBytes": 1000, "maxTotalBytes": 1500, "retentionSeconds": 60})).await;
    namespace.submit("code", "one", json!({"payload": "x"})).await;
    namespace.submit("code", "two", json!({"payload": "x"})).await;
    let too_large = eventually("the controller knows the limits", async || {
        let output = scene.sh("one", "head -c 1001 /dev/zero > f; spillway artifact put f").await;
        check_state(output.code == 3, || format!("{output:?}")).map(|()| output)
    })
    .await;
    assert!(
        too_large.err.contains("the file has 1001 bytes, and Budget/default (spec.artifacts.maxFileBytes) allows 1000"),
        "{too_large:?}"
    );
    scene.sh("one", "head -c 1000 /dev/zero > f; spillway artifact put f").await.ok();
    let full = scene.sh("two", "head -c 600 /dev/zero > f; spillway artifact put f").await;
    let words = "have 1000, and Budget/default (spec.artifacts.maxTotalBytes) allows 1500";
    assert!(full.code == 3 && full.err.contains(words), "{full:?}");
    // A program that lies about the size has nothing stored either.
    let url = "$SPILLWAY_ARTIFACTS_URL/lie";
    let lie = format!(
        "{{ printf 'PUT /agent/v1/artifacts/lie HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 100\\r\\n\\r\\nshort'; sleep 1; }} | nc -w 5 127.0.0.1 4105; echo {url}"
    );
    scene.sh("two", &lie).await;
    let unsized_body = "{ printf 'PUT /agent/v1/artifacts/lie HTTP/1.1\\r\\nHost: x\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n5\\r\\nshort\\r\\n0\\r\\n\\r\\n'; sleep 3; } | nc -w 5 127.0.0.1 4105";
    let answer = scene.sh("two", unsized_body).await;
    assert!(answer.out.contains(" 400 ") && answer.out.contains("Content-Length"), "{answer:?}");
    let listed = scene.sh("two", "spillway artifact list").await.ok();
    assert_eq!(listed, "", "nothing is kept");
    scene.wait_for_objects(1).await;
    // After its time an artifact is gone, and there is room again.
    scene.wait_for_objects(0).await;
    let expired = scene.sh("one", "spillway artifact get f").await;
    assert!(expired.code == 3 && expired.err.contains("or its time is over"), "{expired:?}");
    scene.sh("two", "head -c 1000 /dev/zero > f; spillway artifact put f").await.ok();
    for item in ["one", "two"] {
        namespace.release_item(item).await;
    }
    scene.close().await;
}

#[tokio::test]
#[ignore = "it takes minutes: E2E_LONG=1"]
async fn long_after_a_crash_there_is_the_old_file_or_the_new_one() {
    let mut scene = Scene::open("artifactcrash", None).await;
    scene.namespace.submit("code", "one", json!({"payload": "x"})).await;
    let script = "random old 12000000 && spillway artifact put old --name f && random new 14000000";
    scene.sh("one", script).await.ok();
    let agent = holder(&scene.namespace.item("one").await);
    for (round, pause) in [20, 60, 120, 200, 300].into_iter().enumerate() {
        let next = if round % 2 == 0 { "new" } else { "old" };
        let put = format!("cd $SPILLWAY_DATA_DIR && /spillway/bin/spillway artifact put {next} --name f");
        let putting = sh(&scene.namespace, &agent, &put);
        let crashing = async {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            scene.namespace.kill_gateway();
            drop(scene.operator.take()); // it ends before the next one starts
            scene.namespace.start_gateway(&format!("gateway-{round}"));
            scene.operator = Some(scene.namespace.operator(&format!("controller-{round}")));
        };
        let (put, ()) = tokio::join!(putting, crashing);
        // The command tries again by itself.
        assert_eq!(put.code, 0, "{pause} ms: {put:?}");
        let got = scene.sh("one", &format!("spillway artifact get f -o got && cmp got {next}")).await;
        assert_eq!(got.code, 0, "{pause} ms: {got:?}");
    }
    let recorded = artifacts(&scene.namespace.item("one").await);
    assert_eq!(recorded.len(), 1, "{recorded:?}");
    let kept = scene.objects().iter().filter(|path| path.ends_with(&recorded[0].id)).count();
    assert_eq!(kept, 1, "{:?}", scene.objects());
    scene.namespace.release_item("one").await;
    scene.close().await;
}

/// The seconds that curl takes for the same file from the node to the S3 server, and back.
async fn straight(folder: &Path) -> (f64, f64) {
    let script = format!(
        "cd {} && truncate -s 1000000000 f && echo end >> f
        s3() {{ curl -sf --aws-sigv4 aws:amz:us-east-1:s3 --user spillway-test:spillway-test-secret -H 'x-amz-content-sha256: UNSIGNED-PAYLOAD' \"$@\"; }}
        t0=$(date +%s.%N); s3 -T f {S3_URL}/artifacts/straight; t1=$(date +%s.%N); s3 {S3_URL}/artifacts/straight | sha256sum > sum; t2=$(date +%s.%N)
        s3 -X DELETE {S3_URL}/artifacts/straight; rm f sum; echo \"$t0 $t1 $t2\"",
        folder.display()
    );
    let output = tokio::process::Command::new("bash").args(["-euc", &script]).output().await.expect("bash");
    let times: Vec<f64> = String::from_utf8_lossy(&output.stdout).split_whitespace().filter_map(|time| time.parse().ok()).collect();
    let [began, sent, got] = times[..] else { panic!("{output:?}") };
    (sent - began, got - sent)
}

#[tokio::test]
#[ignore = "it needs the S3 server of the local cluster: make e2e-artifacts"]
async fn a_gigabyte_goes_to_a_bucket_and_back_with_bounded_memory() {
    let scene = Scene::open("artifactbucket", Some(json!({"s3": {"bucket": "artifacts", "endpoint": S3_URL}}))).await;
    let namespace = &scene.namespace;
    scene.limit(json!({"maxFileBytes": 2_000_000_000, "maxTotalBytes": 3_000_000_000_u64})).await;
    namespace.submit("code", "one", json!({"payload": "x"})).await;
    scene.sh("one", "echo small > s && spillway artifact put s && spillway artifact get s -o t && cmp s t").await.ok();
    let before = namespace.gateway_memory_peak();
    // A sparse file: the node has no room for three real ones.
    let made = scene.sh("one", "truncate -s 1000000000 f && echo end >> f && sha256sum < f").await.ok();
    let began = Instant::now();
    scene.sh("one", "spillway artifact put f").await.ok();
    let up = began.elapsed();
    let began = Instant::now();
    let got = scene.sh("one", "spillway artifact get f -o - | sha256sum").await.ok();
    let down = began.elapsed();
    assert_eq!(made, got);
    let after = namespace.gateway_memory_peak();
    println!("through the gateway: up {:.1} s, down with its sum {:.1} s", up.as_secs_f64(), down.as_secs_f64());
    println!("the gateway's memory at its peak: {before} kB before, {after} kB after");
    let (up, down) = straight(&scene.folder).await;
    println!("curl straight to the server: up {up:.1} s, down with its sum {down:.1} s");
    assert!(after < before + 100 * 1024, "{before} kB before, {after} kB after");
    namespace.release_item("one").await;
    let done = namespace.wait_for_item_phase("one", Succeeded).await;
    let names: Vec<String> = artifacts(&done).into_iter().map(|artifact| artifact.name).collect();
    assert_eq!(names, ["s", "f"], "{}", done.name_any());
    scene.close().await;
}
