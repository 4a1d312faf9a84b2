//! Looks at a Toolset by a leader with an API server in memory. Its bridge does not answer.

use super::*;
use crate::controller::fake::{Leader, TEAM, object};
use serde_json::{Value, json};

fn key() -> ObjectKey {
    ObjectKey { namespace: TEAM.into(), name: "tools".into() }
}

fn toolset(egress: Value) -> Value {
    let spec =
        json!({"image": "i", "definitions": [{"configMapRef": {"name": "deploy"}}], "allowedCommands": ["/usr/bin/git"], "egress": egress});
    object("Toolset", "tools", spec)
}

/// A ConfigMap with a definition of this program.
fn definitions_of(version: &str, command: &str) -> Value {
    let metadata = json!({"name": "deploy", "namespace": TEAM, "uid": format!("uid-{version}"), "resourceVersion": version});
    let text = format!("---\nname: disk\ndescription: d\ncommand: {command}\n---\nHelp.\n");
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": true, "data": {"disk.md": text}})
}

fn definitions() -> Value {
    definitions_of("1", "/usr/bin/git")
}

/// Reason of a condition on the server.
fn reason(leader: &Leader, type_: &str) -> Value {
    let status = leader.status("Toolset", "tools");
    status["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|one| one["type"] == type_)
        .map(|one| one["reason"].clone())
        .unwrap_or_default()
}

async fn look_once(leader: &Leader, memory: &mut LookMemory) -> LookResult {
    look(&key(), memory, &Lookups::default(), &leader.context).await.expect("a look")
}

const KINDS: [&str; 4] = ["networkpolicies", "serviceaccounts", "services", "deployments"];

fn version(leader: &Leader, plural: &str) -> Value {
    leader.stored(plural, "tools-toolset").map(|object| object["metadata"]["resourceVersion"].clone()).unwrap_or_default()
}

#[tokio::test]
async fn nothing_is_made_for_a_new_toolset_with_wrong_definitions() {
    let leader = Leader::of(&[toolset(json!(null))]);
    let mut memory = LookMemory::default();
    for _ in 0..2 {
        assert_eq!(look_once(&leader, &mut memory).await, LookResult::NotReady);
    }
    assert_eq!((reason(&leader, "Ready"), reason(&leader, "DefinitionsValid")), (json!("DefinitionsInvalid"), json!("ConfigMapNotFound")));
    assert!(KINDS.iter().all(|plural| leader.stored(plural, "tools-toolset").is_none()));
    assert_eq!(leader.context.toolsets.get(&key()), None);
    assert_eq!(leader.events(), [("ConfigMapNotFound".to_owned(), "Serve".to_owned())], "once");
}

#[tokio::test]
async fn its_objects_are_applied_once_and_again_when_others_change_them() {
    let leader = Leader::of(&[toolset(json!(null)), definitions()]);
    let mut memory = LookMemory::default();
    look_once(&leader, &mut memory).await;
    assert_eq!((reason(&leader, "Ready"), reason(&leader, "DefinitionsValid")), (json!("Starting"), json!("NotReported")));
    assert_eq!(leader.status("Toolset", "tools")["address"], "10.1.2.3:443");
    let served = leader.context.toolsets.get(&key()).expect("an address");
    assert_eq!((served.address, served.service_account.as_str()), (([10, 1, 2, 3], 443).into(), "tools-toolset"));
    let versions = KINDS.map(|plural| version(&leader, plural));
    assert!(versions.iter().all(Value::is_string), "{versions:?}");
    look_once(&leader, &mut memory).await;
    assert_eq!(KINDS.map(|plural| version(&leader, plural)), versions, "nothing differs");
    let mut changed = leader.stored("deployments", "tools-toolset").expect("a Deployment");
    changed["spec"]["replicas"] = json!(3);
    leader.put("deployments", "tools-toolset", Some(changed));
    leader.put("networkpolicies", "tools-toolset", None);
    look_once(&leader, &mut memory).await;
    assert_eq!(leader.stored("deployments", "tools-toolset").map(|object| object["spec"]["replicas"].clone()), Some(json!(1)));
    assert!(leader.stored("networkpolicies", "tools-toolset").is_some());
    assert_eq!(version(&leader, "services"), versions[2]);
}

#[tokio::test]
async fn what_is_served_stays_when_the_definitions_or_the_spec_become_wrong() {
    let leader = Leader::of(&[toolset(json!(null)), definitions()]);
    let mut memory = LookMemory::default();
    look_once(&leader, &mut memory).await;
    let ready = json!({"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1});
    let mut deployment = leader.stored("deployments", "tools-toolset").expect("a Deployment");
    deployment["status"] = ready;
    leader.put("deployments", "tools-toolset", Some(deployment));
    look_once(&leader, &mut memory).await;
    assert_eq!(reason(&leader, "Ready"), "BridgeUnreachable");
    leader.put("configmaps", "deploy", None);
    look_once(&leader, &mut memory).await;
    assert_eq!((reason(&leader, "Ready"), reason(&leader, "DefinitionsValid")), (json!("BridgeUnreachable"), json!("ConfigMapNotFound")));
    assert!(leader.context.toolsets.get(&key()).is_some() && leader.stored("deployments", "tools-toolset").is_some());
    let mut wrong = leader.stored("toolsets", "tools").expect("a Toolset");
    wrong["spec"]["egress"] = json!({"mode": "AllowList", "allow": ["*.example.com:443"]});
    leader.put("toolsets", "tools", Some(wrong));
    look_once(&leader, &mut memory).await;
    assert_eq!(reason(&leader, "Ready"), "InvalidSpec");
    assert!(leader.context.toolsets.get(&key()).is_some(), "the earlier spec is served on");
}

#[tokio::test]
async fn a_wrong_definition_changes_no_object_of_a_served_toolset() {
    let leader = Leader::of(&[toolset(json!(null)), definitions()]);
    let mut memory = LookMemory::default();
    look_once(&leader, &mut memory).await;
    let (versions, served) = (KINDS.map(|plural| version(&leader, plural)), leader.context.toolsets.get(&key()));
    assert!(served.is_some() && versions.iter().all(Value::is_string), "{versions:?}");
    // With another image, which would replace the pod.
    let mut changed = leader.stored("toolsets", "tools").expect("a Toolset");
    (changed["spec"]["image"], changed["metadata"]["generation"]) = (json!("other"), json!(2));
    leader.put("toolsets", "tools", Some(changed));
    leader.put("configmaps", "deploy", Some(definitions_of("2", "/bin/other")));
    for _ in 0..2 {
        look_once(&leader, &mut memory).await;
        assert_eq!(KINDS.map(|plural| version(&leader, plural)), versions);
        assert_eq!(reason(&leader, "DefinitionsValid"), "InvalidDefinition");
        assert_eq!(leader.context.toolsets.get(&key()), served);
    }
    leader.put("configmaps", "deploy", Some(definitions_of("3", "/usr/bin/git")));
    look_once(&leader, &mut memory).await;
    let template = leader.stored("deployments", "tools-toolset").map(|one| one["spec"]["template"].clone()).expect("a Deployment");
    assert_eq!(template["spec"]["containers"][0]["image"], "other");
    assert_eq!(template["metadata"]["annotations"]["spillway.dev/definitions"], "deploy=uid-3", "it was created again");
}

#[tokio::test]
async fn the_account_of_the_bridge_is_that_of_the_stored_deployment() {
    let leader = Leader::of(&[toolset(json!(null)), definitions()]);
    let mut memory = LookMemory::default();
    look_once(&leader, &mut memory).await;
    let mut changed = leader.stored("toolsets", "tools").expect("a Toolset");
    (changed["spec"]["serviceAccountName"], changed["metadata"]["generation"]) = (json!("deployer"), json!(2));
    leader.put("toolsets", "tools", Some(changed));
    leader.put("configmaps", "deploy", Some(definitions_of("2", "/bin/other")));
    look_once(&leader, &mut memory).await;
    assert_eq!(leader.context.toolsets.get(&key()).expect("it is served").service_account, "tools-toolset");
    leader.put("configmaps", "deploy", Some(definitions_of("3", "/usr/bin/git")));
    look_once(&leader, &mut memory).await;
    assert_eq!(leader.context.toolsets.get(&key()).expect("it is served").service_account, "deployer");
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_serves_what_runs_before_it_looks_up_names() {
    let leader = Leader::of(&[toolset(json!(null)), definitions()]);
    look_once(&leader, &mut LookMemory::default()).await;
    let served = leader.context.toolsets.get(&key());
    assert!(served.is_some());
    let mut changed = leader.stored("toolsets", "tools").expect("a Toolset");
    changed["spec"]["egress"] = json!({"mode": "AllowList", "allow": ["slow.example.com:443"]});
    leader.put("toolsets", "tools", Some(changed));
    leader.context.toolsets.remove(&key());
    // No lookup gets a permit.
    let (key, busy, mut memory) = (key(), Lookups::busy(), LookMemory::default());
    let looking = tokio::time::timeout(Duration::from_secs(1), look(&key, &mut memory, &busy, &leader.context));
    looking.await.expect_err("it waits for a lookup");
    assert_eq!(leader.context.toolsets.get(&key), served);
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_without_answers_of_dns_keeps_the_network_open() {
    let leader = Leader::of(&[toolset(json!({"mode": "AllowList", "allow": ["a.example:443"]})), definitions()]);
    let mut memory = LookMemory::default();
    memory.addresses.record("a.example", ["192.0.2.1".parse().expect("an address")], BootTime::now());
    look(&key(), &mut memory, &Lookups::busy(), &leader.context).await.expect("a look");
    let policy = leader.stored("networkpolicies", "tools-toolset").expect("a NetworkPolicy");
    assert_eq!(policy["spec"]["egress"].as_array().map(Vec::len), Some(2), "{policy}");
    look(&key(), &mut LookMemory::default(), &Lookups::busy(), &leader.context).await.expect("a look");
    let then = leader.stored("networkpolicies", "tools-toolset").expect("a NetworkPolicy");
    assert_eq!(then["spec"], policy["spec"]);
}

#[tokio::test]
async fn nothing_is_made_for_a_new_toolset_with_a_wrong_definition() {
    let leader = Leader::of(&[toolset(json!(null)), definitions_of("1", "/bin/other")]);
    look_once(&leader, &mut LookMemory::default()).await;
    assert_eq!((reason(&leader, "Ready"), reason(&leader, "DefinitionsValid")), (json!("DefinitionsInvalid"), json!("InvalidDefinition")));
    assert!(KINDS.iter().all(|plural| leader.stored(plural, "tools-toolset").is_none()));
}

#[tokio::test]
async fn definitions_are_read_again_when_they_or_the_toolset_changed() {
    let leader = Leader::of(&[toolset(json!(null)), definitions()]);
    let mut memory = LookMemory::default();
    look_once(&leader, &mut memory).await;
    // The same version with another content, which the API server never has: the content is not read.
    leader.put("configmaps", "deploy", Some(definitions_of("1", "/bin/other")));
    look_once(&leader, &mut memory).await;
    assert_eq!(reason(&leader, "DefinitionsValid"), "NotReported");
    let mut changed = leader.stored("toolsets", "tools").expect("a Toolset");
    changed["metadata"]["generation"] = json!(2);
    leader.put("toolsets", "tools", Some(changed));
    look_once(&leader, &mut memory).await;
    assert_eq!(reason(&leader, "DefinitionsValid"), "InvalidDefinition");
}

#[tokio::test]
async fn objects_of_other_owners_are_left_alone() {
    let leader = Leader::of(&[toolset(json!(null)), definitions()]);
    let foreign = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "tools-toolset", "namespace": TEAM}, "spec": {"clusterIP": "10.9.9.9"}});
    leader.put("services", "tools-toolset", Some(foreign.clone()));
    look_once(&leader, &mut LookMemory::default()).await;
    assert_eq!(reason(&leader, "Ready"), "NameTaken");
    assert_eq!(leader.stored("services", "tools-toolset"), Some(foreign));
    assert_eq!((leader.stored("deployments", "tools-toolset"), leader.context.toolsets.get(&key())), (None, None));
}

#[tokio::test]
async fn a_toolset_that_is_being_deleted_is_left_to_the_garbage_collector() {
    let leader = Leader::of(&[toolset(json!(null)), definitions()]);
    let mut memory = LookMemory::default();
    look_once(&leader, &mut memory).await;
    let mut deleting = leader.stored("toolsets", "tools").expect("a Toolset");
    deleting["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    leader.put("toolsets", "tools", Some(deleting));
    leader.put("services", "tools-toolset", None);
    assert_eq!(look_once(&leader, &mut memory).await, LookResult::Nothing);
    assert_eq!((leader.stored("services", "tools-toolset"), leader.context.toolsets.get(&key())), (None, None));
}
