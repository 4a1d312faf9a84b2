//! Issues become items, and their ends are told on the issues: `spillway source` with a real Gitea.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kube::ResourceExt as _;
use serde_json::{Value, json};
use spillway::api::WorkItem;
use spillway::api::work_item::WorkItemPhase::Cancelled;

use crate::support::work::{each_item, phase};
use crate::support::{TestNamespace, check_state, eventually};

/// The Gitea of the local cluster (`cluster up --gitea`), and its organisation.
const API: &str = "http://10.100.0.1:3000/api/v1";
const OWNER: &str = "team";

/// A repository of its own, with labels.
struct Repository {
    name: String,
    token: String,
}

impl Repository {
    async fn make(name: &str) -> Self {
        let token = std::env::var("SPILLWAY_GITEA_TOKEN").expect("SPILLWAY_GITEA_TOKEN: run this by `make e2e-issues`");
        let repository = Self { name: name.to_owned(), token };
        repository.call("POST", &format!("/orgs/{OWNER}/repos"), Some(json!({"name": name}))).await;
        for label in ["for-agents", "bug"] {
            repository.of("POST", "/labels", Some(json!({"name": label, "color": "#00aabb"}))).await;
        }
        repository
    }

    /// One call of the API, by curl as a person would do it.
    async fn call(&self, method: &str, path: &str, body: Option<Value>) -> Value {
        let mut curl = tokio::process::Command::new("curl");
        curl.args(["-sS", "--fail-with-body", "-X", method, "-H", &format!("Authorization: token {}", self.token)]);
        if let Some(body) = body {
            curl.args(["-H", "Content-Type: application/json", "-d", &body.to_string()]);
        }
        let output = curl.arg(format!("{API}{path}")).output().await.expect("curl runs");
        assert!(output.status.success(), "{method} {path}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
    }

    async fn of(&self, method: &str, path: &str, body: Option<Value>) -> Value {
        self.call(method, &format!("/repos/{OWNER}/{}{path}", self.name), body).await
    }

    /// Opens an issue; returns its number.
    async fn open(&self, title: &str, body: &str, labels: &[&str]) -> u64 {
        let issue = self.of("POST", "/issues", Some(json!({"title": title, "body": body}))).await;
        let number = issue["number"].as_u64().expect("a number");
        if !labels.is_empty() {
            self.label(number, labels).await;
        }
        number
    }

    async fn label(&self, number: u64, labels: &[&str]) {
        self.of("POST", &format!("/issues/{number}/labels"), Some(json!({"labels": labels}))).await;
    }

    async fn labels(&self, number: u64) -> Vec<String> {
        let issue = self.of("GET", &format!("/issues/{number}"), None).await;
        issue["labels"].as_array().expect("labels").iter().filter_map(|label| label["name"].as_str().map(str::to_owned)).collect()
    }

    async fn comments(&self, number: u64) -> Vec<String> {
        let comments = self.of("GET", &format!("/issues/{number}/comments"), None).await;
        comments.as_array().expect("comments").iter().filter_map(|comment| comment["body"].as_str().map(str::to_owned)).collect()
    }

    /// Waits until the issue has this many comments and no label for agents.
    async fn wait_until_told(&self, number: u64, count: usize) -> Vec<String> {
        eventually(&format!("issue {number} has {count} answers"), async || {
            let (comments, labels) = (self.comments(number).await, self.labels(number).await);
            let told = comments.len() == count && !labels.contains(&"for-agents".to_owned());
            check_state(told, || format!("{labels:?} {comments:?}")).map(|()| comments)
        })
        .await
    }
}

/// The process, until it is killed.
struct Source(Child);

impl Source {
    fn start(namespace: &TestNamespace, repository: &Repository) -> Self {
        let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.forge", namespace.namespace));
        std::fs::write(&file, &repository.token).expect("a file");
        let binary = std::env::var_os("SPILLWAY_BINARY").unwrap_or_else(|| env!("CARGO_BIN_EXE_spillway").into());
        let mut command = Command::new(binary);
        command.args(["source", "--forge", "gitea", "--url", API, "--repository", &format!("{OWNER}/{}", repository.name)]);
        command.args(["--label", "for-agents", "--queue", "fixes", "--namespace", &namespace.namespace, "--interval", "5"]);
        Self(command.arg("--token-file").arg(file).stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("it starts"))
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
#[ignore = "it needs the Gitea of the local cluster: make e2e-issues"]
async fn an_issue_with_a_label_is_worked_on_and_answered_once() {
    let namespace = TestNamespace::open("issues").await;
    let repository = Repository::make(&namespace.namespace).await;
    let operator = namespace.operator("one");
    operator.leads(&namespace).await;
    namespace.apply_queue("fixes", json!({"itemDefaults": {"maxAttempts": 1}})).await;
    let script =
        r#"case $task in *broken*) echo "cannot mend it"; exit 3;; esac; cat > /dev/null; echo "mended: $task @everyone"; printf '```\n'"#;
    let agent = each_item(script);
    namespace.apply_pool("fixers", json!({"type": "worker", "replicas": 1, "queues": [{"name": "fixes"}], "agent": agent})).await;
    let mended = repository.open("Mend the login", "It fails on Sundays.", &["for-agents", "bug"]).await;
    let ignored = repository.open("Not for agents", "x", &["bug"]).await;
    let failed = repository.open("broken beyond repair", "x", &["for-agents"]).await;
    // The process is killed again and again: each issue is one item, and is answered once.
    for pause in [300, 900, 1700, 2600, 4000] {
        let source = Source::start(&namespace, &repository);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        drop(source);
    }
    let source = Source::start(&namespace, &repository);
    let told = repository.wait_until_told(mended, 1).await.remove(0);
    assert!(told.starts_with("The work is done (`issue-") && told.contains("mended: Mend the login @everyone"), "{told}");
    assert!(told.contains("````") && told.contains("<!-- spillway: "), "{told}");
    assert_eq!(repository.labels(mended).await, ["bug"], "other labels stay");
    let told = repository.wait_until_told(failed, 1).await.remove(0);
    assert!(told.starts_with("The work was not done:") && told.contains("DeadLettered"), "{told}");
    let items: Vec<WorkItem> = namespace.list().await;
    assert_eq!(items.len(), 2, "{:?}", items.iter().map(WorkItem::name_any).collect::<Vec<_>>());
    assert!(repository.comments(ignored).await.is_empty());
    // The label is put again: another item, and another answer.
    repository.label(mended, &["for-agents"]).await;
    repository.wait_until_told(mended, 2).await;
    // The label is removed before an agent has the item.
    namespace.apply_queue("fixes", json!({"suspend": true})).await;
    let withdrawn = repository.open("Never mind", "x", &["for-agents"]).await;
    let name = eventually("the issue is an item", async || {
        let items: Vec<WorkItem> = namespace.list().await;
        let own = items.iter().find(|item| item.name_any().starts_with(&format!("issue-{withdrawn}-")));
        own.map(WorkItem::name_any).ok_or_else(|| "it is not".to_owned())
    })
    .await;
    let issue = repository.of("GET", &format!("/issues/{withdrawn}"), None).await;
    let label = issue["labels"][0]["id"].as_u64().expect("an id");
    repository.of("DELETE", &format!("/issues/{withdrawn}/labels/{label}"), None).await;
    namespace.wait_for_item_phase(&name, Cancelled).await;
    let told = repository.wait_until_told(withdrawn, 1).await.remove(0);
    assert!(told.contains("is Cancelled"), "{told}");
    assert_eq!(phase(&namespace.item(&name).await), Some(Cancelled));
    drop(source);
    namespace.close().await;
}
