//! Secrets of a team and of the operator: they are used for an agent, and are found nowhere in its pod and nowhere where people read. The
//! tests run as root on the node, so they also search the memory of the pod's processes.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{ConfigMap, Event, Pod, Secret};
use kube::api::PostParams;
use kube::{Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use spillway::api::{Agent, AgentPool, WorkItem, WorkQueue};

use crate::support::exec::sh;
use crate::support::fleet::log;
use crate::support::git_server::{BASIC, GitServer, TOKEN as GIT_TOKEN};
use crate::support::models::{Scripted, TOKEN as MODEL_TOKEN};
use crate::support::node::{self, Process};
use crate::support::work::{UNTIL_TOLD, holder};
use crate::support::{TestNamespace, check_state, eventually};

/// A credential that the provider refuses: errors must not show it either.
const STALE_TOKEN: &str = "planted-stale-credential";
/// A word that the pod's processes know. The control: a search that does not find it finds nothing.
const KNOWN: &str = "known-to-the-program";
/// The most bytes of a file that is searched. Those of images are larger at times.
const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;
/// Folders of a container that have no files of their own.
const KERNEL_FOLDERS: [&str; 2] = ["proc", "sys"];

fn holds(bytes: &[u8], word: &str) -> bool {
    memchr::memmem::find(bytes, word.as_bytes()).is_some()
}

/// Where a process of the pod knows one of these words: in its environment, its command line or its memory.
fn places_in(process: &Process, words: &[&str]) -> Vec<String> {
    let folder = PathBuf::from(format!("/proc/{}", process.pid));
    let mut found = Vec::new();
    let mut note = |place: &str, bytes: &[u8]| {
        for word in words.iter().filter(|word| holds(bytes, word)) {
            found.push(format!("{word} in {place} of {}", process.command));
        }
    };
    for file in ["environ", "cmdline"] {
        note(file, &fs::read(folder.join(file)).unwrap_or_default());
    }
    let maps = fs::read_to_string(folder.join("maps")).unwrap_or_default();
    let Ok(memory) = File::open(folder.join("mem")) else { return found };
    for line in maps.lines().filter(|line| line.split(' ').nth(1).is_some_and(|rights| rights.starts_with("rw"))) {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let number = |text: &str| u64::from_str_radix(text, 16).expect("an address");
        let Some((start, end)) = range.map(|(start, end)| (number(start), number(end))) else { continue };
        let mut bytes = vec![0; usize::try_from(end - start).expect("a length")];
        // What the kernel maps of its own cannot be read.
        if memory.read_exact_at(&mut bytes, start).is_ok() {
            note("the memory", &bytes);
        }
    }
    found
}

/// The files below a folder of a container with one of these words.
fn files_in(folder: &Path, words: &[&str], found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        // Not by the entry: in a user namespace, devices are mounted over plain files.
        let Ok(file) = fs::symlink_metadata(&path) else { continue };
        let kind = file.file_type();
        if kind.is_dir() && !KERNEL_FOLDERS.iter().any(|name| folder.ends_with("root") && entry.file_name() == *name) {
            files_in(&path, words, found);
        } else if kind.is_file() && file.len() <= MAX_FILE_BYTES {
            let bytes = fs::read(&path).unwrap_or_default();
            found.extend(words.iter().filter(|word| holds(&bytes, word)).map(|word| format!("{word} in {}", path.display())));
        }
    }
}

async fn objects<K>(room: &TestNamespace) -> String
where
    K: Resource<Scope = kube::core::NamespaceResourceScope> + Serialize + DeserializeOwned + Clone + std::fmt::Debug,
    K::DynamicType: Default,
{
    serde_json::to_string(&room.list::<K>().await).expect("JSON")
}

#[tokio::test]
async fn secrets_are_used_and_found_nowhere_in_a_pod_or_where_people_read() {
    let room = TestNamespace::open("secrets").await;
    let server = GitServer::start(&room).await;
    let provider = Scripted::serve(&room).await;
    let stale = json!({
        "metadata": {"name": "stale"}, "type": "spillway.dev/model-credential",
        "stringData": {"origin": provider.origin, "token": STALE_TOKEN},
    });
    room.api::<Secret>().create(&PostParams::default(), &serde_json::from_value(stale).expect("a Secret")).await.expect("a new Secret");
    let operator = room.operator("one");
    operator.leads(&room).await;
    room.apply_queue("bugs", json!({})).await;
    let mut old = provider.entry("old", "OpenAIChat");
    old["credentialsRef"]["name"] = "stale".into();
    let extra = json!({
        "scaling": {"min": 0, "max": 1},
        "models": [provider.entry("gpt", "OpenAIChat"), old],
        "workspace": {"git": {"remote": server.url("team/app"), "credentialsRef": {"name": "robot"}}},
        "agent": {
            "image": "localhost/spillway/git-agent:dev",
            "env": [{"name": "KNOWN", "value": KNOWN}],
            "resources": {"requests": {"cpu": "5m", "memory": "16Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}},
        },
    });
    // It uses both credentials, fails with the stale one, and crashes. The shell's own limit is in blocks of more than a byte.
    let script = r#"
        call() { wget -q -Y off -O - --header 'content-type: application/json' --post-data '{"model": "scripted-large", "messages": [{"role": "user", "content": "hello"}]}' "http://127.0.0.1:4101/$1/v1/chat/completions"; echo "called $1 $?"; }
        call gpt; call old
        git -C /workspace fetch origin && echo fetched
        cd /workspace; sleep 100 & kill -ABRT $!; wait; echo "core files: $(ls /workspace | grep -c core), limit $(ulimit -H -c)"
    "#;
    room.apply_workers("users", &["bugs"], &format!("{script}\n{UNTIL_TOLD}"), extra).await;
    room.submit("bugs", "bug", json!({"payload": "bug"})).await;
    let item = eventually("the program has used the credentials", async || {
        let item = room.api::<WorkItem>().get("bug").await.map_err(|error| error.to_string())?;
        let lease = item.status.as_ref().and_then(|status| status.lease.as_ref());
        let Some(agent) = lease.and_then(|lease| lease.agent.as_ref()) else { return Err("no lease".to_owned()) };
        let said = log(&room, agent, "agent").await;
        check_state(said.contains("core files:"), || said.clone())?;
        assert!(said.contains("called gpt 0") && said.contains("fetched") && said.contains("core files: 0, limit 0"), "{said}");
        assert!(said.contains("called old 1"), "the provider refuses the stale credential: {said}");
        Ok(item)
    })
    .await;
    let agent = holder(&item);
    let pod = room.api::<Pod>().get(&agent).await.expect("its pod");
    let uid = pod.uid().expect("a uid");
    let link = node::link(&uid).expect("a sidecar");
    let token = fs::read_to_string(format!("/proc/{}/root/spillway/token/token", link.pid)).expect("the sidecar's token");
    let token = token.trim();

    let secrets = [MODEL_TOKEN, GIT_TOKEN, BASIC, STALE_TOKEN];
    let in_agent = [MODEL_TOKEN, GIT_TOKEN, BASIC, STALE_TOKEN, token];
    let processes = node::of_pod(&uid);
    let words = |process: &Process| if *process == link { &secrets[..] } else { &in_agent[..] };
    let found: Vec<String> = processes.iter().flat_map(|process| places_in(process, words(process))).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
    let known = processes.iter().filter(|process| !places_in(process, &[KNOWN]).is_empty()).count();
    assert!(known >= 2, "the control is found in the supervisor and the program, not in {known} of {processes:?}");
    assert!(!places_in(&link, &[token]).is_empty(), "the sidecar's memory can be searched");

    let supervisor = node::supervisor(&uid).expect("a supervisor");
    sh(&room, &agent, "echo known-to-the-program > /workspace/control").await.ok();
    let search = |words: &[&str]| {
        let mut found = Vec::new();
        files_in(&PathBuf::from(format!("/proc/{}/root", supervisor.pid)), words, &mut found);
        found
    };
    assert_eq!(search(&in_agent), [""; 0]);
    assert!(search(&[KNOWN]).iter().any(|place| place.ends_with("/workspace/control")), "the control is found");

    let mut read = vec![("the agent's log", log(&room, &agent, "agent").await), ("the sidecar's log", log(&room, &agent, "link").await)];
    read.push(("the metrics", operator.get("/metrics").await.expect("metrics").1));
    for (kind, objects) in [
        ("pods", objects::<Pod>(&room).await),
        ("events", objects::<Event>(&room).await),
        ("ConfigMaps", objects::<ConfigMap>(&room).await),
        ("agents", objects::<Agent>(&room).await),
        ("pools", objects::<AgentPool>(&room).await),
        ("queues", objects::<WorkQueue>(&room).await),
        ("items", objects::<WorkItem>(&room).await),
    ] {
        assert!(objects.contains("metadata"), "there are {kind}");
        read.push((kind, objects));
    }
    let logs = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("e2e-logs");
    let own = fs::read_dir(logs).expect("logs").flatten().filter(|file| file.file_name().to_string_lossy().starts_with(&room.namespace));
    let own: Vec<String> = own.map(|file| fs::read_to_string(file.path()).unwrap_or_default()).collect();
    assert!(own.len() >= 2, "the logs of the controller and the gateway");
    read.push(("the operator's logs", own.concat()));
    let shown: Vec<String> = read
        .iter()
        .flat_map(|(place, text)| in_agent.iter().filter(|word| text.contains(**word)).map(move |word| format!("{word} in {place}")))
        .collect();
    assert!(shown.is_empty(), "{}", shown.join("\n"));
    room.release_item("bug").await;
    room.close().await;
}
