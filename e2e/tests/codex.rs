//! Codex, unchanged and in its image, mends a repository: its item becomes a commit on a branch. The model is a script.
//!
//! `make e2e-codex` runs this test. The image is large and comes from npm, so other runs leave the test out.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use spillway::api::Budget;
use spillway::api::item_changeset::ChangesetState;
use spillway::api::work_item::WorkItemPhase::{DeadLettered, Succeeded};

use crate::support::TestNamespace;
use crate::support::git_server::GitServer;
use crate::support::models::{Scripted, wait_until_counts_agree};

/// The repository: a program with a fault, and its test.
const FILES: [(&str, &str); 2] = [
    ("sum.sh", "# Prints the sum of two numbers.\necho $(($1 - $2))\n"),
    ("test.sh", "said=$(sh sum.sh 2 3)\n[ \"$said\" = 5 ] || { echo \"2 + 3 is not $said\"; exit 1; }\necho passed\n"),
];
/// What the model runs for its two tasks: one mends the program, the other one does not.
const MEND: &str = "sed -i 's/-/+/' sum.sh && sh test.sh";
const MISTAKE: &str = "echo 'echo 4' > sum.sh; sh test.sh";
/// The settings of Codex, as in the sample.
const SETTINGS: &str = include_str!("../../config/samples/codex/settings.yaml");

/// The file in the sample's ConfigMap, for this model.
fn settings(model: &str) -> String {
    let (_, text) = SETTINGS.split_once("  config.toml: |\n").expect("a file");
    let with_model = |line: &str| match line.trim() {
        line if line.starts_with("model = ") => format!("model = \"{model}\"\n"),
        line => format!("{line}\n"),
    };
    text.lines().map(with_model).collect()
}

#[tokio::test]
#[ignore = "it needs the image of Codex: make e2e-codex"]
async fn codex_makes_a_failing_test_pass_and_its_branch_is_pushed() {
    let namespace = TestNamespace::open("codex").await;
    let server = GitServer::start(&namespace).await;
    server.add_files("team/app", &FILES);
    let provider = Scripted::serve(&namespace).await;
    let operator = namespace.operator("one");
    operator.leads(&namespace).await;
    let limits = json!([{"name": "hourly", "tokens": 10_000_000, "window": "Hour"}]);
    let budget = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Budget", "metadata": {"name": "default"}, "spec": {"tokens": {"limits": limits}}});
    let params = PatchParams::apply("e2e").force();
    namespace.api::<Budget>().patch("default", &params, &Patch::Apply(budget)).await.expect("the Budget is accepted");
    let data = json!({"metadata": {"name": "codex"}, "data": {"config.toml": settings("scripted-large")}});
    let data: ConfigMap = serde_json::from_value(data).expect("a ConfigMap");
    namespace.api::<ConfigMap>().create(&PostParams::default(), &data).await.expect("a new ConfigMap");
    namespace.apply_queue("code", json!({"itemDefaults": {"maxAttempts": 1}})).await;
    let resources = json!({"requests": {"cpu": "100m", "memory": "192Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}});
    let spec = json!({
        "type": "worker", "replicas": 1, "queues": [{"name": "code"}], "bulkhead": {"lifetimeTokens": 1_000_000},
        "models": [provider.entry("openai", "OpenAIResponses")],
        "workspace": {"git": {"remote": server.url("team/app"), "credentialsRef": {"name": "robot"}}},
        "sandbox": {"changeset": {"driver": "Git", "protect": ["test.sh"], "verify": ["/bin/sh", "test.sh"]}},
        "agent": {
            "image": "localhost/spillway/codex-agent:dev", "command": ["/bin/codex-agent"], "resources": resources,
            "files": [{"path": ".codex/config.toml", "configMapKeyRef": {"name": "codex", "key": "config.toml"}}],
        },
    });
    namespace.apply_pool("codex", spec).await;
    provider.run("Make the failing test pass", MEND);
    provider.run("Make it worse", MISTAKE);

    namespace.submit("code", "mend", json!({"payload": "Make the failing test pass."})).await;
    let done = namespace.wait_for_item_phase("mend", Succeeded).await;
    let status = done.status.expect("a status");
    let told = status.changeset.clone().expect("a changeset");
    let main = server.commit("team/app", "refs/heads/main");
    assert_eq!((told.state, told.branch.as_deref()), (ChangesetState::Committed, Some("spillway/mend")), "{told:?}");
    assert_eq!(told.base, main, "{told:?}");
    assert_eq!(told.commit, server.commit("team/app", "refs/heads/spillway/mend"), "{told:?}");
    assert_eq!((told.files, told.insertions, told.deletions), (Some(1), Some(1), Some(1)), "{told:?}");
    let git = |words: &[&str]| server.git("team/app", words);
    assert_eq!(git(&["show", "spillway/mend:sum.sh"]), "# Prints the sum of two numbers.\necho $(($1 + $2))");
    assert_eq!(git(&["rev-list", "--count", "main..spillway/mend"]), "1");
    assert_eq!(status.result.as_deref().map(str::trim), Some("Done: the command was run."));

    // The test of the repository has the last word.
    namespace.submit("code", "worse", json!({"payload": "Make it worse."})).await;
    let failed = namespace.wait_for_item_phase("worse", DeadLettered).await;
    let attempt = failed.status.and_then(|status| status.attempt_history?.pop()).expect("an attempt");
    assert_eq!(attempt.reason.as_deref(), Some("ChangesetNotVerified"), "{attempt:?}");
    assert!(attempt.message.as_deref().is_some_and(|message| message.contains("2 + 3 is not 4")), "{attempt:?}");
    assert_eq!(server.commit("team/app", "refs/heads/spillway/worse"), None);
    assert_eq!(provider.calls(), 4, "each task is a call of a tool, and a last message");
    wait_until_counts_agree(&namespace, &provider).await;
    namespace.close().await;
}
