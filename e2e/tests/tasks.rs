//! Files of a git repository become items: `kubectl spillway submit --from-git`, with a real git server over HTTPS with a
//! password, which is the person's.

use std::process::Output;

use kube::ResourceExt as _;
use serde_json::{Value, json};
use spillway::api::WorkItem;
use spillway::api::work_item::WorkItemPhase::Succeeded;

use crate::support::git_server::{BASIC, GitServer};
use crate::support::work::each_item;
use crate::support::{TestNamespace, hosts_file, plugin_path};

/// Submits the tasks of `team/app`, as a person whose git has this password.
async fn submit(namespace: &TestNamespace, server: &GitServer, basic: &str) -> Output {
    let platform: Value = serde_json::from_slice(&std::fs::read(namespace.git_file()).expect("a file")).expect("JSON");
    let authority = namespace.git_file().with_extension("pem");
    std::fs::write(&authority, platform["origins"][0]["caBundle"].as_str().expect("a certificate")).expect("a file");
    let mut command = hosts_file::command(plugin_path(), Some(&namespace.hosts_file()));
    command.args(["submit", "code", "-n", &namespace.namespace, "--from-git", &server.url("team/app"), "--path", "tasks"]);
    command.env("GIT_SSL_CAINFO", authority).env("GIT_TERMINAL_PROMPT", "0");
    command.env("GIT_CONFIG_COUNT", "1").env("GIT_CONFIG_KEY_0", "http.extraHeader");
    command.env("GIT_CONFIG_VALUE_0", format!("Authorization: Basic {basic}"));
    // The server is in this process, so the test must not block while git waits for it.
    tokio::process::Command::from(command).output().await.expect("the plugin runs")
}

#[tokio::test]
async fn each_file_of_a_folder_is_an_item_and_a_second_submit_adds_what_is_new() {
    let namespace = TestNamespace::open("tasks").await;
    let server = GitServer::start(&namespace).await;
    let operator = namespace.operator("one");
    operator.leads(&namespace).await;
    namespace.apply_queue("code", json!({})).await;
    server.add_files("team/app", &[("tasks/1.md", "mend the login"), ("tasks/2.md", "write the test")]);
    let refused = submit(&namespace, &server, "eDp5").await;
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("git fetch failed"), "{refused:?}");
    let first = submit(&namespace, &server, BASIC).await;
    let commit = server.commit("team/app", "refs/heads/main").expect("a branch");
    let told = String::from_utf8_lossy(&first.stdout).into_owned();
    assert!(first.status.success(), "{first:?}");
    let source = |path: &str| format!("submitted: {}@{commit}:{path}", server.url("team/app"));
    let lines: Vec<&str> = told.lines().collect();
    assert!(lines.len() == 2 && lines[0].ends_with(&source("tasks/1.md")) && lines[1].ends_with(&source("tasks/2.md")), "{told}");
    server.add_files("team/app", &[("tasks/3.md", "tidy up")]);
    let second = submit(&namespace, &server, BASIC).await;
    let (told, notes) = (String::from_utf8_lossy(&second.stdout), String::from_utf8_lossy(&second.stderr));
    assert!(second.status.success() && told.lines().count() == 1 && told.trim().ends_with(":tasks/3.md"), "{second:?}");
    assert!(notes.contains("tasks/1.md was submitted before") && notes.contains("tasks/2.md was submitted before"), "{notes}");
    // One agent gets them in the order of the paths. Times of starts are whole seconds.
    let agent = each_item("sleep 2; echo \"did: $task\"");
    namespace.apply_pool("coders", json!({"type": "worker", "replicas": 1, "queues": [{"name": "code"}], "agent": agent})).await;
    let items: Vec<WorkItem> = namespace.list().await;
    assert_eq!(items.len(), 3);
    let mut results = Vec::new();
    for item in items {
        let done = namespace.wait_for_item_phase(&item.name_any(), Succeeded).await.status.expect("a status");
        results.push((done.start_time.expect("a time"), done.result.expect("a result").trim().to_owned()));
    }
    results.sort();
    assert_eq!(
        results.into_iter().map(|(_, result)| result).collect::<Vec<_>>(),
        ["did: mend the login", "did: write the test", "did: tidy up"]
    );
    namespace.close().await;
}
