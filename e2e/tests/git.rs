//! Git: what a program fetches from the repository of its pool and pushes to it, through the sidecar and the gateway, from and to
//! a real git server over HTTPS with a password.

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use spillway::api::Agent;

use crate::support::exec::{CommandOutput, sh};
use crate::support::git_server::{BASIC, GitServer, HOST, TOKEN};
use crate::support::history::{condition, has_condition};
use crate::support::test_namespace::merge;
use crate::support::{Operator, TestNamespace, check_state, eventually};

/// Runs until the agent is asked to end.
const QUIET: &str = "trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done";
/// Who commits.
const AUTHOR: &str = "-c user.name=coder -c user.email=coder@example.com";

/// The spec of a pool with one idle agent that works on `team/app`.
fn pool(server: &GitServer, git: Value) -> Value {
    let resources = json!({"requests": {"cpu": "5m", "memory": "16Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}});
    let mut workspace = json!({"git": {"remote": server.url("team/app"), "credentialsRef": {"name": "robot"}}});
    merge(&mut workspace["git"], git);
    let image = "localhost/spillway/git-agent:dev";
    json!({"replicas": 1, "agent": {"image": image, "command": ["/bin/sh", "-c", QUIET], "resources": resources}, "workspace": workspace})
}

async fn opened(name: &str, git: Value) -> (TestNamespace, Operator, GitServer, Agent) {
    let namespace = TestNamespace::open(name).await;
    let server = GitServer::start(&namespace).await;
    let operator = namespace.operator("one");
    operator.leads(&namespace).await;
    namespace.apply_pool("coders", pool(&server, git)).await;
    let agent = namespace.wait_until_idle("coders", 1).await.remove(0);
    (namespace, operator, server, agent)
}

/// The words of a command that must fail.
fn refused(output: &CommandOutput) -> &str {
    assert_ne!(output.code, 0, "{output:?}");
    &output.err
}

#[tokio::test]
async fn an_agent_clones_its_repository_and_pushes_branches_of_its_own() {
    let (namespace, _operator, server, agent) = opened("git", json!({"push": "agents/{agent}/*", "ref": "main", "depth": 1})).await;
    let pod = agent.name_any();
    // The clone is there before the program starts.
    assert_eq!(sh(&namespace, &pod, "cat /workspace/README; git -C /workspace rev-list --count HEAD").await.ok(), "team/app two\n1\n");
    let branch = format!("agents/{pod}/fix");
    let push = format!(
        "cd /workspace && git checkout -q -b fix && echo mended > README && git {AUTHOR} commit -qam mend && git rev-parse HEAD && git push -q origin HEAD:{branch}"
    );
    let commit = sh(&namespace, &pod, &push).await.ok();
    assert_eq!(server.commit("team/app", &format!("refs/heads/{branch}")).as_deref(), Some(commit.trim()));
    let main = server.commit("team/app", "refs/heads/main").expect("a branch");
    // What the pool does not allow is refused with its reason, and leaves the server as it is.
    let more = format!("cd /workspace && git {AUTHOR} commit -q --allow-empty -m more");
    sh(&namespace, &pod, &more).await.ok();
    for (words, reason) in [
        ("origin HEAD:main", "does not allow pushes of this ref"),
        ("--force origin HEAD:main", "does not allow pushes of this ref"),
        ("origin :main", "does not allow pushes of this ref"),
        ("origin HEAD:agents/another/fix", "does not allow pushes of this ref"),
        (&format!("origin HEAD:refs/tags/agents/{pod}/x"), "does not allow pushes of this ref"),
        (&format!("origin HEAD:{branch}"), "allows only new refs"),
        (&format!("--force origin main:{branch}"), "allows only new refs"),
        (&format!("origin :{branch}"), "allows no deletion"),
        (&format!("origin HEAD:agents/{pod}/new HEAD:main"), "another ref of this push is denied"),
    ] {
        let output = sh(&namespace, &pod, &format!("cd /workspace && git push {words}")).await;
        let words = refused(&output);
        assert!(words.contains("remote rejected") && words.contains(reason) && words.contains("nothing was pushed"), "{words}");
    }
    let options = sh(&namespace, &pod, &format!("cd /workspace && git push -o merge=now origin HEAD:agents/{pod}/options")).await;
    assert!(refused(&options).contains("403"), "{options:?}");
    assert_eq!(server.commit("team/app", "refs/heads/main").as_deref(), Some(main.as_str()));
    assert_eq!(server.commit("team/app", &format!("refs/heads/{branch}")).as_deref(), Some(commit.trim()));
    assert_eq!(server.git("team/app", &["for-each-ref", "--format=x"]), "x\nx", "nothing else is there");
    // Every usual URL of the repository is the same repository; another repository is none of the agent's.
    let port = server.port;
    for url in
        [server.url("team/app"), format!("https://{HOST}:{port}/team/app"), format!("git@{HOST}:team/app.git"), "$SPILLWAY_GIT_URL".into()]
    {
        let clone = format!("rm -rf /tmp/c && git clone -q {url} /tmp/c && cat /tmp/c/README");
        assert_eq!(sh(&namespace, &pod, &clone).await.ok(), "team/app two\n", "{url}");
    }
    let before = server.requests();
    for path in ["team/other", "team", "team/app2", "x"] {
        let url = format!("http://127.0.0.1:4103/git/{HOST}:{port}/{path}");
        let output = sh(&namespace, &pod, &format!("git ls-remote {url}")).await;
        assert!(refused(&output).contains("403"), "{path}: {output:?}");
    }
    // git itself would resolve these spellings.
    for path in ["team/app/../other", "team/app%2f..%2fother", "team//other", "team/app/info/refs?x=/../../other"] {
        let path = path.replace('%', "%%");
        let request = format!("GET /git/{HOST}:{port}/{path}/info/refs?service=git-upload-pack HTTP/1.0\\r\\n\\r\\n");
        let script = format!("{{ printf '{request}'; sleep 3; }} | nc -w 20 127.0.0.1 4103 | head -n 1");
        let answer = sh(&namespace, &pod, &script).await;
        assert!(answer.out.contains(" 403 "), "{path}: {answer:?}");
    }
    let told = sh(&namespace, &pod, &format!("git ls-remote http://127.0.0.1:4103/git/{HOST}:{port}/team/other")).await;
    assert!(told.err.contains("the pool names another repository"), "{told:?}");
    assert_eq!(server.requests(), before, "no refused request reached the server");
    // The token is nowhere in the container.
    let search = format!(
        "grep -rlE '{TOKEN}|{BASIC}' /workspace /tmp /home /spillway/data /spillway/run 2>/dev/null; cat /proc/[0-9]*/environ 2>/dev/null | grep -cE '{TOKEN}|{BASIC}'"
    );
    assert_eq!(sh(&namespace, &pod, &search).await.out, "0\n");
    namespace.close().await;
}

#[tokio::test]
async fn what_a_pool_allows_besides_is_allowed() {
    let (namespace, _operator, server, agent) =
        opened("gitallowed", json!({"push": "work/*", "allowOverwrite": true, "allowDelete": true})).await;
    let pod = agent.name_any();
    let script = format!(
        "cd /workspace && for n in 1 2; do git {AUTHOR} commit -q --allow-empty -m $n && git push -q origin HEAD:work/a HEAD:work/b; done; \
         git push -q --force origin HEAD~1:work/a && git push -q origin :work/b; git rev-parse HEAD~1"
    );
    let output = sh(&namespace, &pod, &script).await;
    let commit = output.clone().ok();
    assert_eq!(server.commit("team/app", "refs/heads/work/a").as_deref(), Some(commit.trim()), "{output:?}");
    assert_eq!(server.commit("team/app", "refs/heads/work/b"), None);
    namespace.close().await;
}

#[tokio::test]
async fn faults_of_a_repository_are_said_in_words_and_denials_count_for_supervision() {
    let namespace = TestNamespace::open("gitfaults").await;
    let server = GitServer::start(&namespace).await;
    server.make_secret(&namespace, "stale", "an-old-token").await;
    let operator = namespace.operator("one");
    operator.leads(&namespace).await;
    // Wrong settings are named before an agent exists.
    for (name, git, words) in [
        ("wide", json!({"push": "refs/heads/*"}), "spec.workspace.git.push: \"refs/heads/*\": it is too wide"),
        ("unlisted", json!({"remote": "https://github.com/team/app"}), "does not list https://github.com"),
    ] {
        namespace.apply_pool(name, pool(&server, git)).await;
        let (reason, message) = namespace.pool_says(name, "Blocked", "True").await;
        assert_eq!(reason, "InvalidGit");
        assert!(message.contains(words), "{message}");
    }
    // A credential that the server refuses: the agent says so, and starts its program when the Secret is mended.
    namespace.apply_pool("coders", pool(&server, json!({"credentialsRef": {"name": "stale"}, "push": "x/*"}))).await;
    let agents = namespace.api::<Agent>();
    let failing = eventually("the agent says why there is no clone", async || {
        let all = agents.list(&Default::default()).await.map_err(|error| error.to_string())?.items;
        let failing = all.iter().find(|agent| has_condition(agent, "Ready", "False", "PreflightFailed")).cloned();
        failing.ok_or_else(|| format!("{:?}", all.iter().map(|agent| agent.status.clone()).collect::<Vec<_>>()))
    })
    .await;
    let message = condition(&failing, "Ready").map(|ready| ready.message.clone()).unwrap_or_default();
    assert!(message.contains("refuses the credential of the Secret stale"), "{message}");
    let mended = json!({"stringData": {"token": TOKEN}});
    namespace.api::<Secret>().patch("stale", &PatchParams::default(), &Patch::Merge(mended)).await.expect("the Secret is changed");
    let agent = namespace.wait_until_idle("coders", 1).await.remove(0);
    let pod = agent.name_any();
    assert_eq!(sh(&namespace, &pod, "cat /workspace/README").await.ok(), "team/app two\n");
    // Denials are signals.
    let rule = json!([{"signal": "RuleViolated", "rule": "NetworkDenied", "count": 2, "windowSeconds": 600, "do": "Pause"}]);
    let mut spec = pool(&server, json!({"credentialsRef": {"name": "stale"}, "push": "x/*"}));
    merge(&mut spec, json!({"supervision": {"mode": "Enforce", "rules": rule}}));
    namespace.apply_pool("coders", spec).await;
    for _ in 0..2 {
        let output = sh(&namespace, &pod, "cd /workspace && git push origin HEAD:other").await;
        assert!(refused(&output).contains("remote rejected"), "{output:?}");
    }
    eventually("the supervision pauses the agent", async || {
        let agent = agents.get(&pod).await.map_err(|error| error.to_string())?;
        check_state(has_condition(&agent, "Paused", "True", "PausedBySupervisor"), || format!("{:?}", agent.status))
    })
    .await;
    let paused = sh(&namespace, &pod, "cd /workspace && git fetch origin").await;
    assert!(refused(&paused).contains("paused"), "{paused:?}");
    namespace.close().await;
}

#[tokio::test]
async fn a_push_that_is_cut_leaves_the_server_as_it_was() {
    let (namespace, _operator, server, agent) = opened("gitcut", json!({"push": "x/*"})).await;
    let pod = agent.name_any();
    // Random bytes do not compress: the push takes a while.
    let prepare = format!(
        "cd /workspace && head -c 60000000 /dev/urandom > big && git add big && git {AUTHOR} commit -qm big && \
         (git push -q origin HEAD:x/big; echo $? > /tmp/pushed) > /tmp/push.log 2>&1 &"
    );
    let before = server.requests();
    sh(&namespace, &pod, &prepare).await.ok();
    eventually("the push is under way", async || check_state(server.requests() > before + 1, || server.requests().to_string())).await;
    namespace.kill_gateway();
    eventually("git ends with an error", async || {
        let said = sh(&namespace, &pod, "cat /tmp/pushed /tmp/push.log").await.out;
        check_state(said.starts_with(|first: char| first != '0') && !said.is_empty(), || said)
    })
    .await;
    namespace.start_gateway("gateway-2");
    assert_eq!(server.commit("team/app", "refs/heads/x/big"), None, "half a push is none");
    eventually("the same push succeeds through another gateway", async || {
        let output = sh(&namespace, &pod, "cd /workspace && git push -q origin HEAD:x/big").await;
        check_state(output.code == 0, || format!("{output:?}"))
    })
    .await;
    assert!(server.commit("team/app", "refs/heads/x/big").is_some());
    server.git("team/app", &["fsck", "--no-dangling"]);
    namespace.close().await;
}

/// Starts a push of this ref in the pod that never sends its objects. Its answer is in `/tmp/<file>`, and then that it was cut.
async fn start_endless_push(namespace: &TestNamespace, server: &GitServer, pod: &str, reference: &str, file: &str) {
    let before = server.pushes();
    let update = format!("{} {} {reference}", "0".repeat(40), "a".repeat(40));
    let capabilities = " report-status";
    // A line of git's protocol with its length and a NUL before the capabilities, the end of the updates, and the start of objects.
    let body = format!("{:04x}{update}\\000{capabilities}0000PACK", update.len() + 1 + capabilities.len() + 4);
    let bytes = body.len() - "\\000".len() + 1;
    let head = format!(
        "POST /git/{HOST}:{}/team/app/git-receive-pack HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n\
         Content-Type: application/x-git-receive-pack-request\\r\\nAccept: application/x-git-receive-pack-result\\r\\n\
         Transfer-Encoding: chunked\\r\\n\\r\\n",
        server.port
    );
    let request = format!("{head}{bytes:x}\\r\\n{body}\\r\\n");
    // Nothing of it may keep the output of the command open.
    let script = format!("((printf '{request}'; sleep 600) | (nc 127.0.0.1 4103; echo cut)) > /tmp/{file} 2>&1 < /dev/null &");
    sh(namespace, pod, &script).await.ok();
    eventually("the server has the start of the push", async || check_state(server.pushes() > before, || server.pushes().to_string()))
        .await;
    let answer = sh(namespace, pod, &format!("cat /tmp/{file}")).await.out;
    assert!(!answer.contains("cut"), "it goes on: {answer}");
}

#[tokio::test]
async fn a_transfer_ends_when_its_agent_may_not_go_on() {
    let (namespace, _operator, server, agent) = opened("gitends", json!({"push": "x/*"})).await;
    let pod = agent.name_any();
    // The server has begun its answer, which the gateway cannot take back. It says nothing of a ref.
    let ends = async |file: &str| {
        let answer = eventually("the push is cut", async || {
            let answer = sh(&namespace, &pod, &format!("cat /tmp/{file}")).await.out;
            if answer.contains("cut") { Ok(answer) } else { Err(answer) }
        })
        .await;
        assert!(!answer.contains("refs/heads"), "{answer}");
    };
    // Its pool allows other refs from now on.
    start_endless_push(&namespace, &server, &pod, "refs/heads/x/cut", "changed").await;
    namespace.apply_pool("coders", pool(&server, json!({"push": "y/*"}))).await;
    ends("changed").await;
    // A person pauses it.
    start_endless_push(&namespace, &server, &pod, "refs/heads/y/cut", "paused").await;
    let pause = Patch::Merge(json!({"spec": {"paused": true}}));
    namespace.api::<Agent>().patch(&pod, &PatchParams::default(), &pause).await.expect("it is paused");
    ends("paused").await;
    assert_eq!(server.git("team/app", &["for-each-ref", "--format=%(refname)"]), "refs/heads/main", "nothing was pushed");
    server.git("team/app", &["fsck", "--no-dangling"]);
    namespace.close().await;
}
