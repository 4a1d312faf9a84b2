//! Changesets: each item has a clone of its own, and its files become one commit on a branch, which only Spillway pushes. The
//! git server is a real one, over HTTPS with a password. Tests with killed processes are in `changeset/`.

mod kills;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use kube::api::PostParams;
use serde_json::{Value, json};
use spillway::api::WorkItem;
use spillway::api::item_changeset::{ChangesetState, ItemChangeset};
use spillway::api::work_item::Attempt;
use spillway::api::work_item::WorkItemPhase::{DeadLettered, Leased, Succeeded};

use crate::support::exec::sh;
use crate::support::git_server::{BASIC, GitServer, HOST, TOKEN};
use crate::support::test_namespace::merge;
use crate::support::work::{UNTIL_TOLD, attempts, holder};
use crate::support::{Operator, TestNamespace, check_state, eventually};

/// The repository of the pools.
const REPOSITORY: &str = "team/app";
/// The file of the pool in each workspace, and its content.
const POOL_FILE: (&str, &str) = ("AGENTS.md", "rules of the pool");
/// A program whose task is a shell script. Each command of it must succeed.
const RUN_TASK: &str = "cd /workspace; eval \"$(cat)\"";
/// Who commits inside an agent.
const AUTHOR: &str = "-c user.name=coder -c user.email=coder@example.com";

/// The spec of a pool with one agent for queue `name`. The files of its items are commits in `team/app`.
fn pool(server: &GitServer, name: &str, changeset: Value) -> Value {
    let resources = json!({"requests": {"cpu": "5m", "memory": "16Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}});
    let files = json!([{"path": format!("workspace/{}", POOL_FILE.0), "configMapKeyRef": {"name": "rules", "key": "content"}}]);
    let git = json!({"remote": server.url(REPOSITORY), "credentialsRef": {"name": "robot"}, "ref": "main"});
    let mut spec = json!({
        "type": "worker", "replicas": 1, "queues": [{"name": name}], "workspace": {"git": git}, "sandbox": {"changeset": {"driver": "Git"}},
        "agent": {
            "image": "localhost/spillway/git-agent:dev", "command": ["/bin/sh", "-e", "-c", RUN_TASK], "resources": resources,
            "files": files,
        },
    });
    merge(&mut spec["sandbox"]["changeset"], changeset);
    spec
}

/// A namespace with a git server, and the file of its pools.
async fn opened(name: &str) -> (TestNamespace, Operator, GitServer) {
    let namespace = TestNamespace::open(name).await;
    let server = GitServer::start(&namespace).await;
    let operator = namespace.operator("one");
    operator.leads(&namespace).await;
    let rules = json!({"metadata": {"name": "rules"}, "data": {"content": format!("{}\n", POOL_FILE.1)}});
    let rules: ConfigMap = serde_json::from_value(rules).expect("a ConfigMap");
    namespace.api::<ConfigMap>().create(&PostParams::default(), &rules).await.expect("a new ConfigMap");
    (namespace, operator, server)
}

/// A queue and a pool of this name. Each item has `attempts` attempts.
async fn apply_queue_and_pool(namespace: &TestNamespace, server: &GitServer, name: &str, attempts: u32, changeset: Value) {
    let defaults = json!({"maxAttempts": attempts, "backoff": {"initialSeconds": 1, "maxSeconds": 1}});
    namespace.apply_queue(name, json!({"itemDefaults": defaults})).await;
    namespace.apply_pool(name, pool(server, name, changeset)).await;
}

/// The commit at the head of `main`.
fn main_commit(server: &GitServer) -> String {
    server.commit(REPOSITORY, "refs/heads/main").expect("a branch")
}

fn branch_commit(server: &GitServer, branch: &str) -> Option<String> {
    server.commit(REPOSITORY, &format!("refs/heads/{branch}"))
}

/// The commit of a branch, which must be one commit on `main`.
fn one_commit_on_main(server: &GitServer, branch: &str) -> String {
    let commit = branch_commit(server, branch).unwrap_or_else(|| panic!("the server has {branch}"));
    let parents = server.git(REPOSITORY, &["rev-list", "--parents", "--max-count=1", &commit]);
    assert_eq!(parents, format!("{commit} {}", main_commit(server)), "{branch}");
    commit
}

/// The changed files of a branch, each with its kind of change.
fn changes(server: &GitServer, branch: &str) -> Vec<String> {
    let all = server.git(REPOSITORY, &["diff-tree", "-r", "--no-renames", "--name-status", "main", branch]);
    all.lines().map(|line| line.replace('\t', " ")).collect()
}

/// The content of a file of a branch.
fn content(server: &GitServer, branch: &str, path: &str) -> String {
    server.git(REPOSITORY, &["show", &format!("{branch}:{path}")])
}

fn changeset(item: &WorkItem) -> ItemChangeset {
    let status = item.status.clone().unwrap_or_default();
    status.changeset.clone().unwrap_or_else(|| panic!("{} has a changeset: {status:?}", item.name_any()))
}

fn history(item: &WorkItem) -> Vec<Attempt> {
    item.status.as_ref().and_then(|status| status.attempt_history.clone()).unwrap_or_default()
}

/// Runs an item, which must succeed.
async fn succeeds(namespace: &TestNamespace, queue: &str, name: &str, script: &str) -> WorkItem {
    namespace.submit(queue, name, json!({"payload": script})).await;
    namespace.wait_for_item_phase(name, Succeeded).await
}

/// A program that leaves many settings of git, each of which would run a program at a later command.
const SET_TRAPS: &str = r#"
echo own > own.txt
git add own.txt
git -c user.name=p -c user.email=p@example.com commit -qm "words of the program"
echo later > later.txt
echo '* filter=trap diff=trap merge=trap' > .gitattributes
mkdir -p /tmp/traps .git/hooks
printf '#!/bin/sh\necho "$0" >> /tmp/sprung\nexit 1\n' > /tmp/traps/trap
chmod +x /tmp/traps/trap
for hook in pre-commit post-commit pre-push reference-transaction post-index-change post-checkout post-rewrite pre-auto-gc; do
    cp /tmp/traps/trap /tmp/traps/$hook
    cp /tmp/traps/trap .git/hooks/$hook
done
for place in --local --global; do
    git config $place core.hooksPath /tmp/traps
    git config $place core.fsmonitor /tmp/traps/trap
    git config $place core.sshCommand /tmp/traps/trap
    git config $place core.attributesFile /workspace/.gitattributes
    git config $place core.excludesFile /workspace/.gitattributes
    git config $place filter.trap.clean /tmp/traps/trap
    git config $place filter.trap.smudge /tmp/traps/trap
    git config $place filter.trap.required true
    git config $place diff.external /tmp/traps/trap
    git config $place diff.trap.textconv /tmp/traps/trap
    git config $place gpg.program /tmp/traps/trap
    git config $place commit.gpgSign true
    git config $place credential.helper '!/tmp/traps/trap'
    git config $place url.http://127.0.0.1:9/.insteadOf http://127.0.0.1:4103/
done
"#;

/// A program that leaves what is hard to read and to remove, and no clone.
const LEAVE_OBSTACLES: &str = r"
rm -rf .git
mkdir nested closed
git -C nested init -q
echo inside > nested/inside.txt
git -C nested add .
git -C nested -c user.name=p -c user.email=p@example.com commit -qm nested
mkfifo pipe
echo closed > closed/file.txt
chmod 000 closed
mkdir -p deep/deeper
ln -s /etc deep/link
chmod 000 deep/deeper deep
";

#[tokio::test]
async fn the_changes_of_an_item_become_one_commit_on_a_branch_of_its_own() {
    let (namespace, _operator, server) = opened("changeset").await;
    apply_queue_and_pool(&namespace, &server, "code", 1, json!({})).await;
    let main = main_commit(&server);
    let script = r#"
        [ "$(cat AGENTS.md)" = "rules of the pool" ]
        [ "$(git rev-parse HEAD)" = "$(git rev-parse main)" ]
        echo changed > README
        printf '*.log\n' > .gitignore
        mkdir src
        echo one > src/a.txt
        printf '#!/bin/sh\n' > run.sh
        chmod +x run.sh
        ln -s README link
        echo ignored > debug.log
        echo mine >> AGENTS.md
        echo done > "$SPILLWAY_RESULT_FILE"
    "#;
    let first = succeeds(&namespace, "code", "first", script).await;
    let commit = one_commit_on_main(&server, "spillway/first");
    assert_eq!(changes(&server, "spillway/first"), ["A .gitignore", "M README", "A link", "A run.sh", "A src/a.txt"]);
    assert_eq!(content(&server, "spillway/first", "src/a.txt"), "one");
    let modes = server.git(REPOSITORY, &["ls-tree", "--format=%(objectmode) %(path)", "spillway/first", "run.sh", "link"]);
    assert_eq!(modes, "120000 link\n100755 run.sh");
    let message = server.git(REPOSITORY, &["log", "--max-count=1", "--format=%B", "spillway/first"]);
    assert!(message.contains(&format!("Spillway-Item-Uid: {}", first.uid().expect("a uid"))), "{message}");
    let told = changeset(&first);
    assert_eq!(told.state, ChangesetState::Committed);
    assert_eq!((told.branch.as_deref(), told.base.as_deref()), (Some("spillway/first"), Some(main.as_str())), "{told:?}");
    assert_eq!((told.commit.as_deref(), told.remote.clone()), (Some(commit.as_str()), Some(server.url(REPOSITORY))), "{told:?}");
    assert_eq!((told.files, told.insertions, told.deletions, told.epoch), (Some(5), Some(5), Some(1), 1), "{told:?}");
    assert_eq!(first.status.as_ref().and_then(|status| status.result.as_deref()).map(str::trim), Some("done"));

    // An item may ask for a repository, by any of its URLs.
    let requires = |url: String| json!({"payload": "true", "requires": {"repositories": [url]}});
    namespace.submit("code", "elsewhere", requires(server.url("team/other"))).await;
    namespace.submit("code", "here", requires(server.url(REPOSITORY).trim_end_matches(".git").to_owned())).await;
    namespace.wait_for_item_phase("here", Succeeded).await;
    namespace.wait_for_event("elsewhere", "RequirementsUnmet", "(requires.repositories)").await;

    // Nothing of the first is in the workspace of the second.
    let script = r#"
        [ "$(cat README)" = "team/app two" ]
        [ "$(cat AGENTS.md)" = "rules of the pool" ]
        [ "$(ls -A | sort | xargs)" = ".git AGENTS.md README" ]
        echo two > second.txt
    "#;
    let second = succeeds(&namespace, "code", "second", script).await;
    one_commit_on_main(&server, "spillway/second");
    assert_eq!(changes(&server, "spillway/second"), ["A second.txt"]);
    assert_eq!(changeset(&second).files, Some(1));
    assert_eq!(branch_commit(&server, "spillway/first"), Some(commit.clone()), "the branch of the first stays");

    let nothing = succeeds(&namespace, "code", "nothing", "echo mine >> AGENTS.md; touch README; chmod 600 README").await;
    let told = changeset(&nothing);
    assert_eq!((told.state, told.commit.as_deref(), told.base.as_deref()), (ChangesetState::Discarded, None, Some(main.as_str())));
    assert_eq!(branch_commit(&server, "spillway/nothing"), None);

    // A program may do with its workspace what it likes.
    succeeds(&namespace, "code", "obstacles", LEAVE_OBSTACLES).await;
    one_commit_on_main(&server, "spillway/obstacles");
    let expected = ["A closed/file.txt", "A deep/link", "A nested/inside.txt"];
    assert_eq!(changes(&server, "spillway/obstacles"), expected, "a nested repository is its files");
    succeeds(&namespace, "code", "traps", SET_TRAPS).await;
    one_commit_on_main(&server, "spillway/traps");
    assert_eq!(changes(&server, "spillway/traps"), ["A .gitattributes", "A later.txt", "A own.txt"]);
    let last = succeeds(&namespace, "code", "last", "[ \"$(ls -A | sort | xargs)\" = \".git AGENTS.md README\" ]; echo x > last.txt").await;
    one_commit_on_main(&server, "spillway/last");
    let agent = attempts(&last).remove(0).1;
    assert_eq!(attempts(&first), [("Complete".to_owned(), agent.clone())], "one agent did all items");
    let sprung = sh(&namespace, &agent, "ls /tmp/traps/trap; cat /tmp/sprung 2>/dev/null").await;
    assert_eq!(sprung.out, "/tmp/traps/trap\n", "no setting of the program was used");
    assert_eq!(main_commit(&server), main);
    server.git(REPOSITORY, &["fsck", "--no-dangling"]);
    namespace.close().await;
}

/// The command that must succeed before a push. It leaves a file, which is not pushed.
const VERIFY: &str = "touch made-by-verify; [ ! -e slow ] || sleep 600; [ ! -e broken ] || { seq 1 5000; echo the tests say no; exit 1; }";

#[tokio::test]
async fn a_changeset_that_is_not_allowed_is_refused_in_words() {
    let (namespace, _operator, server) = opened("refused").await;
    let rules = json!({
        "protect": ["README", "ci/*.yml"], "maxBytes": 100_000, "verify": ["/bin/sh", "-c", VERIFY], "verifySeconds": 20,
    });
    apply_queue_and_pool(&namespace, &server, "code", 2, rules).await;
    // The first attempt is refused. The second has a fresh clone.
    let break_mirror = "find /spillway/mirror -type f | while read -r file; do chmod u+w \"$file\"; echo broken > \"$file\"; done";
    let cases = [
        ("changes-readme", "echo changed > README", "ProtectedPath", "README"),
        ("removes-readme", "rm README", "ProtectedPath", "README"),
        ("adds-workflow", "mkdir ci; echo x > ci/a.yml", "ProtectedPath", "ci/a.yml"),
        ("large", "head -c 200000 /dev/urandom > big", "ChangesetTooLarge", "100000"),
        ("unverified", "touch broken", "ChangesetNotVerified", "the tests say no"),
        ("slow", "touch slow", "ChangesetNotVerified", "20"),
        ("mirror", break_mirror, "ChangesetNotCommitted", ""),
    ];
    for (name, refused, _, _) in cases {
        let payload = format!(
            "if [ \"$SPILLWAY_ATTEMPT\" = 1 ]; then touch left; {refused}; else [ \"$(ls -A | sort | xargs)\" = \".git AGENTS.md README\" ]; \
             [ \"$(cat README)\" = \"team/app two\" ]; echo \"by attempt $SPILLWAY_ATTEMPT\" > fine.txt; fi"
        );
        namespace.submit("code", name, json!({"payload": payload})).await;
    }
    for (name, _, reason, words) in cases {
        let item = namespace.wait_for_item_phase(name, Succeeded).await;
        let [first, second] = history(&item).try_into().unwrap_or_else(|all| panic!("{name} has two attempts: {all:?}"));
        assert_eq!((first.verb.as_str(), first.reason.as_deref()), ("Fail", Some(reason)), "{name}: {first:?}");
        assert!(first.message.as_deref().is_some_and(|message| message.contains(words)), "{name}: {first:?}");
        assert_eq!(second.verb, "Complete", "{name}");
        let branch = format!("spillway/{name}");
        one_commit_on_main(&server, &branch);
        assert_eq!(changes(&server, &branch), ["A fine.txt"], "{name}");
        assert_eq!(content(&server, &branch, "fine.txt"), "by attempt 2", "{name}");
        assert_eq!(changeset(&item).state, ChangesetState::Committed, "{name}");
    }
    // An item that is refused to its end leaves no branch.
    namespace.submit("code", "never", json!({"payload": "echo changed > README"})).await;
    let never = namespace.wait_for_item_phase("never", DeadLettered).await;
    assert_eq!(changeset(&never).state, ChangesetState::Discarded, "{:?}", never.status);
    assert_eq!(branch_commit(&server, "spillway/never"), None);

    // Two items of one base do not both get one branch, also if it exists already at the base.
    let main = main_commit(&server);
    server.git(REPOSITORY, &["update-ref", "refs/heads/joint", &main]);
    apply_queue_and_pool(&namespace, &server, "joint", 1, json!({"branch": "joint"})).await;
    succeeds(&namespace, "joint", "winner", "echo winner > joint.txt").await;
    let commit = one_commit_on_main(&server, "joint");
    namespace.submit("joint", "loser", json!({"payload": "echo loser > joint.txt"})).await;
    let loser = namespace.wait_for_item_phase("loser", DeadLettered).await;
    let attempt = history(&loser).remove(0);
    assert_eq!(attempt.reason.as_deref(), Some("ChangesetConflict"), "{attempt:?}");
    assert!(attempt.message.as_deref().is_some_and(|message| message.contains("joint")), "{attempt:?}");
    assert_eq!(changeset(&loser).state, ChangesetState::Conflict, "{:?}", loser.status);
    assert_eq!(branch_commit(&server, "joint"), Some(commit));
    assert_eq!(main_commit(&server), main);
    namespace.close().await;
}

#[tokio::test]
async fn a_program_cannot_push() {
    let (namespace, _operator, server) = opened("nopush").await;
    apply_queue_and_pool(&namespace, &server, "code", 1, json!({})).await;
    let script = format!("echo work > work.txt\n{UNTIL_TOLD}");
    let item = namespace.submit("code", "held", json!({"payload": script})).await;
    let agent = holder(&namespace.wait_for_item_phase("held", Leased).await);
    let main = main_commit(&server);
    let heads = format!("{main} refs/heads/main");
    let all_refs = || server.git(REPOSITORY, &["for-each-ref", "--format=%(objectname) %(refname)"]);
    eventually("the program has its clone", async || {
        let output = sh(&namespace, &agent, "cat /workspace/work.txt").await;
        check_state(output.code == 0, || format!("{output:?}"))
    })
    .await;
    // A commit of the program that looks like one of Spillway's.
    let words = format!("fix\n\nSpillway-Item-Uid: {}", item.uid().expect("a uid"));
    let own = format!("cd /workspace && git {AUTHOR} commit -q --allow-empty -m '{words}' && git rev-parse HEAD");
    let own = sh(&namespace, &agent, &own).await.ok().trim().to_owned();
    let zeros = "0".repeat(40);
    let header = |old: &str, new: &str| format!("-c http.extraHeader='spillway-commit: {old} {new}'");
    for (settings, words) in [
        (String::new(), "origin HEAD:refs/heads/spillway/held"),
        (String::new(), "$SPILLWAY_GIT_URL HEAD:refs/heads/spillway/held"),
        (String::new(), "origin HEAD:main"),
        (String::new(), "--force origin HEAD:main"),
        (String::new(), "origin :main"),
        (String::new(), "origin HEAD:refs/heads/spillway/another"),
        (String::new(), "origin HEAD:refs/tags/held"),
        (header(&zeros, &own), "origin HEAD:refs/heads/spillway/held"),
        (header(&main, &own), "origin HEAD:main"),
    ] {
        let output = sh(&namespace, &agent, &format!("cd /workspace && git {settings} push {words}")).await;
        assert_ne!(output.code, 0, "{settings} {words}: {output:?}");
        let expected = ["remote rejected", "only the commit that Spillway made", "nothing was pushed"];
        assert!(expected.iter().all(|expected| output.err.contains(expected)), "{settings} {words}: {output:?}");
    }
    assert_eq!(all_refs(), heads, "the server is unchanged");
    // It may fetch, from its own repository only.
    let fetch =
        format!("cd /workspace && git fetch -q origin && ! git ls-remote http://127.0.0.1:4103/git/{HOST}:{}/team/other", server.port);
    sh(&namespace, &agent, &fetch).await.ok();
    let search = format!(
        "grep -rlE '{TOKEN}|{BASIC}' /workspace /tmp /home /spillway/data /spillway/run /spillway/mirror 2>/dev/null; \
         cat /proc/[0-9]*/environ 2>/dev/null | grep -cE '{TOKEN}|{BASIC}'"
    );
    assert_eq!(sh(&namespace, &agent, &search).await.out, "0\n", "the token is nowhere in the container");

    namespace.release_item("held").await;
    let done = namespace.wait_for_item_phase("held", Succeeded).await;
    let commit = one_commit_on_main(&server, "spillway/held");
    assert_ne!(commit, own);
    assert_eq!(changes(&server, "spillway/held"), ["A work.txt"]);
    assert_eq!(changeset(&done).commit, Some(commit.clone()));
    // After the item the commit may not be pushed either.
    let again = format!("git {AUTHOR} commit -q --allow-empty -m more && git push --force origin HEAD:refs/heads/spillway/held");
    let output = sh(&namespace, &agent, &format!("cd /workspace && {again}")).await;
    assert!(output.code != 0 && output.err.contains("agents of this pool push nothing"), "{output:?}");
    assert_eq!(branch_commit(&server, "spillway/held"), Some(commit));
    assert_eq!(main_commit(&server), main);
    namespace.close().await;
}
