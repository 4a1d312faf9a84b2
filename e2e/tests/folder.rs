//! Changesets of a folder: each item has a copy of its own, and its changes are made in the folder of a real volume together or not at
//! all, whichever process is killed meanwhile.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::PostParams;
use kube::{Api, ResourceExt as _};
use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;
use serde_json::{Value, json};
use spillway::api::WorkItem;
use spillway::api::item_changeset::{ChangesetState, ItemChangeset};
use spillway::api::work_item::WorkItemPhase::{DeadLettered, Leased, Succeeded};

use crate::support::exec::sh;
use crate::support::test_namespace::merge;
use crate::support::witness::Witness;
use crate::support::work::{UNTIL_TOLD, attempts, holder};
use crate::support::{Operator, TestNamespace, check_state, eventually, node};

/// The claim of the volume.
const CLAIM: &str = "data";
/// The folder of the items in the volume.
const FOLDER: &str = "site/pages";
/// A program whose task is a shell script. Each command of it must succeed.
const RUN_TASK: &str = "cd /workspace; eval \"$(cat)\"";
/// Files of a large changeset. Each has the number of the attempt that made it.
const MANY: usize = 3000;

/// A namespace with a claim.
async fn opened(name: &str) -> (TestNamespace, Operator) {
    let namespace = TestNamespace::open(name).await;
    let operator = namespace.operator("one");
    operator.leads(&namespace).await;
    let spec = json!({"storageClassName": "standard", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "64Mi"}}});
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({"metadata": {"name": CLAIM}, "spec": spec})).expect("a claim");
    namespace.api().create(&PostParams::default(), &claim).await.expect("a new claim");
    (namespace, operator)
}

/// A queue and a pool of this name with so many agents. Each item has `attempts` attempts.
async fn apply_queue_and_pool(namespace: &TestNamespace, name: &str, replicas: u32, attempts: u32, changeset: Value) {
    let defaults = json!({"maxAttempts": attempts, "backoff": {"initialSeconds": 1, "maxSeconds": 1}});
    namespace.apply_queue(name, json!({"itemDefaults": defaults})).await;
    let resources = json!({"requests": {"cpu": "5m", "memory": "16Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}});
    let mut spec = json!({
        "type": "worker", "replicas": replicas, "queues": [{"name": name}],
        "workspace": {"folder": {"claimName": CLAIM, "path": FOLDER}}, "sandbox": {"changeset": {"driver": "Copy"}},
        "agent": {"image": "localhost/spillway/demo-agent:dev", "command": ["/bin/sh", "-e", "-c", RUN_TASK], "resources": resources},
    });
    merge(&mut spec["sandbox"]["changeset"], changeset);
    namespace.apply_pool(name, spec).await;
}

/// Runs an item, which must succeed.
async fn succeeds(namespace: &TestNamespace, queue: &str, name: &str, script: &str) -> WorkItem {
    namespace.submit(queue, name, json!({"payload": script})).await;
    namespace.wait_for_item_phase(name, Succeeded).await
}

fn changeset(item: &WorkItem) -> ItemChangeset {
    let status = item.status.clone().unwrap_or_default();
    status.changeset.clone().unwrap_or_else(|| panic!("{} has a changeset: {status:?}", item.name_any()))
}

/// The folder of the items on the node.
async fn folder(namespace: &TestNamespace) -> PathBuf {
    let claim = namespace.api::<PersistentVolumeClaim>().get(CLAIM).await.expect("the claim");
    let name = claim.spec.and_then(|spec| spec.volume_name).expect("it is bound");
    let volume = Api::<PersistentVolume>::all(namespace.client.clone()).get(&name).await.expect("its volume");
    node::folder_of(&volume.spec.expect("a spec")).join(FOLDER)
}

fn content(folder: &Path, path: &str) -> Option<String> {
    fs::read_to_string(folder.join(path)).ok().map(|content| content.trim_end().to_owned())
}

/// Files below a folder, without Spillway's own.
fn names(folder: &Path) -> Vec<String> {
    let mut names = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).expect("a folder").flatten() {
            let path = entry.path();
            if entry.file_type().expect("a kind").is_dir() && entry.file_name() != ".spillway" {
                open.push(path);
            } else if entry.file_name() != ".spillway" {
                names.push(path.strip_prefix(folder).expect("below").to_string_lossy().into_owned());
            }
        }
    }
    names.sort();
    names
}

/// The lock that each use of the folder takes. As long as the file is open, nothing is copied or changed.
fn hold_lock(folder: &Path) -> File {
    let file = File::options().read(true).write(true).open(folder.join(".spillway/lock")).expect("a lock");
    flock(&file, FlockOperation::LockExclusive).expect("locked");
    file
}

#[tokio::test]
async fn the_changes_of_an_item_are_made_in_the_folder_and_refused_ones_are_dropped() {
    let (namespace, _operator) = opened("folder").await;
    let rules = json!({"protect": ["conf"], "maxBytes": 100_000, "verify": ["/bin/sh", "-c", "! grep -rq broken ."]});
    apply_queue_and_pool(&namespace, "pages", 1, 1, rules).await;
    let script = r#"
        [ -z "$(ls -A)" ]
        [ ! -e /spillway/volume ]
        mkdir -p sub empty
        echo one > index.html
        echo two > "sub/a b"
        printf '#!/bin/sh\n' > run.sh
        chmod +x run.sh
        ln -s index.html link
        echo done > "$SPILLWAY_RESULT_FILE"
    "#;
    let first = succeeds(&namespace, "pages", "first", script).await;
    let told = changeset(&first);
    assert_eq!((told.state, told.folder.as_deref(), told.files), (ChangesetState::Committed, Some("data/site/pages"), Some(4)), "{told:?}");
    assert_eq!((told.branch, told.remote, told.insertions), (None, None, None));
    assert_eq!(first.status.as_ref().and_then(|status| status.result.as_deref()).map(str::trim), Some("done"));
    let folder = folder(&namespace).await;
    assert_eq!(names(&folder), ["index.html", "link", "run.sh", "sub/a b"]);
    assert_eq!(fs::read_link(folder.join("link")).expect("a link"), Path::new("index.html"));

    // The second sees the first's files, and changes some.
    let script = r#"
        [ "$(cat link)" = one ]
        [ -x run.sh ]
        rm -r sub run.sh
        echo more > sub
    "#;
    let second = changeset(&succeeds(&namespace, "pages", "second", script).await);
    assert_eq!((second.state, second.files), (ChangesetState::Committed, Some(3)), "{second:?}");
    assert_eq!((names(&folder), content(&folder, "sub")), (vec!["index.html".into(), "link".into(), "sub".into()], Some("more".into())));
    let same = changeset(&succeeds(&namespace, "pages", "same", "touch index.html; mkdir nothing").await);
    assert_eq!((same.state, same.message.as_deref()), (ChangesetState::Discarded, Some("no file was changed")));

    for (name, script, reason, words) in [
        ("pipe", "echo x > index.html; mkfifo pipe", "ForbiddenFile", "pipe cannot be put into the folder"),
        ("leaves", "ln -s /etc/passwd out", "ForbiddenFile", "leaves the folder"),
        ("setuid", "echo x > tool; chmod 4755 tool", "ForbiddenFile", "set-uid"),
        ("protected", "mkdir conf; echo x > conf/x", "ProtectedPath", "conf is protected"),
        ("large", "head -c 200000 /dev/zero > large", "ChangesetTooLarge", "may have 100000"),
        ("verified", "echo broken > index.html", "ChangesetNotVerified", "verify"),
        ("failed", "echo broken > index.html; exit 3", "Exited", ""),
        ("forged", "echo x > index.html; echo > /spillway/mirror/manifest", "ChangesetNotCommitted", "the program has changed it"),
    ] {
        namespace.submit("pages", name, json!({"payload": script})).await;
        let item = namespace.wait_for_item_phase(name, DeadLettered).await;
        let last = item.status.as_ref().and_then(|status| status.attempt_history.as_ref()?.last().cloned()).expect("an attempt");
        assert_eq!(last.reason.as_deref(), Some(reason), "{name}: {last:?}");
        assert!(last.message.as_deref().unwrap_or_default().contains(words), "{name}: {last:?}");
        assert_eq!(changeset(&item).state, ChangesetState::Discarded, "{name}");
        assert_eq!(names(&folder), ["index.html", "link", "sub"], "{name}");
        assert_eq!(content(&folder, "index.html").as_deref(), Some("one"), "{name}");
    }
    // Whatever the program asks of the port, no other change is made, and the volume is not there.
    let script = r#"
        wget -Y off -O /tmp/answer --post-data x http://127.0.0.1:4106/folder 2> /tmp/refusal && exit 1
        grep -q 503 /tmp/refusal
        grep -c spillway/volume /proc/mounts > "$SPILLWAY_RESULT_FILE" || true
    "#;
    let asked = succeeds(&namespace, "pages", "asked", script).await;
    assert_eq!(asked.status.as_ref().and_then(|status| status.result.as_deref()).map(str::trim), Some("0"));
    namespace.close().await;
}

#[tokio::test]
async fn of_two_items_that_change_one_file_the_second_conflicts_and_begins_anew() {
    let (namespace, _operator) = opened("folderconflict").await;
    apply_queue_and_pool(&namespace, "pages", 2, 3, json!({})).await;
    succeeds(&namespace, "pages", "seed", "echo seed > log; echo a > a; echo b > b").await;
    let folder = folder(&namespace).await;
    for name in ["one", "two"] {
        namespace.submit("pages", name, json!({"payload": format!("echo {name} >> log; echo {name} > {name}\n{UNTIL_TOLD}")})).await;
    }
    for name in ["one", "two"] {
        namespace.wait_for_item_phase(name, Leased).await;
    }
    namespace.release_item("one").await;
    namespace.wait_for_item_phase("one", Succeeded).await;
    namespace.release_item("two").await;
    eventually("the second conflicts", async || {
        let all = attempts(&namespace.item("two").await);
        check_state(all.first().is_some_and(|(verb, _)| verb == "Fail"), || format!("{all:?}"))
    })
    .await;
    assert_eq!((content(&folder, "log").as_deref(), content(&folder, "two")), (Some("seed\none"), None), "nothing of the second is there");
    let item = namespace.item("two").await;
    let failed = item.status.as_ref().and_then(|status| status.attempt_history.as_ref()?.first().cloned()).expect("an attempt");
    assert_eq!(failed.reason.as_deref(), Some("ChangesetConflict"), "{failed:?}");
    assert!(failed.message.as_deref().unwrap_or_default().contains("began from: log."), "{failed:?}");
    namespace.release_item("two").await;
    let done = namespace.wait_for_item_phase("two", Succeeded).await;
    assert_eq!(attempts(&done).len(), 2, "{:?}", done.status);
    assert_eq!(content(&folder, "log").as_deref(), Some("seed\none\ntwo"));

    // Items that change different files do not conflict.
    for name in ["a", "b"] {
        namespace.submit("pages", &format!("item-{name}"), json!({"payload": format!("echo {name}{name} > {name}\n{UNTIL_TOLD}")})).await;
    }
    for name in ["item-a", "item-b"] {
        namespace.wait_for_item_phase(name, Leased).await;
    }
    for name in ["item-a", "item-b"] {
        namespace.release_item(name).await;
        assert_eq!(attempts(&namespace.wait_for_item_phase(name, Succeeded).await).len(), 1, "{name}");
    }
    assert_eq!((content(&folder, "a").as_deref(), content(&folder, "b").as_deref()), (Some("aa"), Some("bb")));
    namespace.close().await;
}

/// Waits until the journal of a commit is there: the changes are being made.
async fn wait_until_committing(folder: &Path) {
    for _ in 0..600_000 {
        if folder.join(".spillway/commit").exists() {
            return;
        }
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    panic!("no commit has begun");
}

/// Waits until an agent's container has this file.
async fn wait_until_written(namespace: &TestNamespace, agent: &str, path: &str) {
    eventually(&format!("{path} is written"), async || {
        let found = sh(namespace, agent, &format!("ls {path}")).await;
        check_state(found.code == 0, || format!("{found:?}"))
    })
    .await;
}

/// Checks that all files of a large changeset are of one attempt, and returns its number.
fn check_whole(folder: &Path, name: &str) -> String {
    let all: Vec<String> = (0..MANY).map(|number| content(folder, &format!("{name}/{number}")).unwrap_or_default()).collect();
    let first = all[0].clone();
    assert!(!first.is_empty() && all.iter().all(|one| *one == first), "{name}: half a changeset");
    first
}

async fn pod_of(namespace: &TestNamespace, item: &WorkItem) -> String {
    namespace.holder(item).await.uid().expect("a uid")
}

#[tokio::test]
#[ignore = "it takes minutes of both cores: E2E_LONG=1"]
async fn long_kills_while_the_changes_are_made_leave_all_or_none() {
    let (namespace, _operator) = opened("folderkills").await;
    let witness = Witness::start(&namespace);
    apply_queue_and_pool(&namespace, "pages", 2, 10, json!({})).await;
    succeeds(&namespace, "pages", "seed", "echo seed > log").await;
    let folder = folder(&namespace).await;
    let many = |name: &str| {
        format!(
            "mkdir -p {name}; n=0; while [ $n -lt {MANY} ]; do echo $SPILLWAY_WORK_EPOCH-$SPILLWAY_AGENT_NAME > {name}/$n; n=$((n+1)); done"
        )
    };

    // The sidecar is killed while it waits for the lock, and while it makes the changes.
    for name in ["waiting", "changing"] {
        namespace.submit("pages", name, json!({"payload": format!("{}\n{UNTIL_TOLD}", many(name))})).await;
        let held = namespace.wait_for_item_phase(name, Leased).await;
        let pod = pod_of(&namespace, &held).await;
        let killed = node::link(&pod).expect("a sidecar");
        wait_until_written(&namespace, &holder(&held), &format!("/workspace/{name}/{}", MANY - 1)).await;
        let lock = (name == "waiting").then(|| hold_lock(&folder));
        namespace.release_item(name).await;
        if lock.is_some() {
            // The changes are found, and wait for the lock.
            wait_until_written(&namespace, &holder(&held), "/spillway/mirror/changes").await;
        } else {
            wait_until_committing(&folder).await;
        }
        node::signal(&killed, Signal::KILL);
        drop(lock);
        let done = namespace.wait_for_item_phase(name, Succeeded).await;
        assert_eq!(attempts(&done).len(), 1, "a program does not notice that its sidecar restarts: {:?}", done.status);
        check_whole(&folder, name);
        assert!(!folder.join(".spillway/commit").exists(), "{name}");
    }

    // The agent is killed: another one works on the item again, and first completes what was begun.
    namespace.submit("pages", "agent", json!({"payload": format!("{}\n{UNTIL_TOLD}", many("agent"))})).await;
    let held = namespace.wait_for_item_phase("agent", Leased).await;
    let pod = pod_of(&namespace, &held).await;
    let (link, supervisor) = (node::link(&pod).expect("a sidecar"), node::supervisor(&pod).expect("a supervisor"));
    namespace.release_item("agent").await;
    wait_until_committing(&folder).await;
    node::signal(&link, Signal::KILL);
    node::signal(&supervisor, Signal::KILL);
    eventually("another agent holds the item", async || {
        let now = namespace.item("agent").await;
        let another = now.status.as_ref().is_some_and(|status| status.phase == Some(Leased)) && holder(&now) != holder(&held);
        check_state(another, || format!("{:?}", now.status))
    })
    .await;
    namespace.release_item("agent").await;
    let done = namespace.wait_for_item_phase("agent", Succeeded).await;
    assert_eq!(check_whole(&folder, "agent"), format!("{}-{}", changeset(&done).epoch, holder_of_last(&done)));

    witness.each_was_finished_once();
    namespace.close().await;
}

/// The agent of the last attempt.
fn holder_of_last(item: &WorkItem) -> String {
    attempts(item).pop().map(|(_, agent)| agent).expect("an attempt")
}
