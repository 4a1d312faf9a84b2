//! Pools as a user sees them: sizes, readiness, columns, faults, deletion.

use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use spillway::api::agent::AgentPhase;
use spillway::api::{Agent, AgentPool, names};

use crate::support::{TestNamespace, audit, check_state, eventually};

#[tokio::test]
async fn a_pool_runs_its_minimum_takes_scale_and_leaves_nothing_behind() {
    let room = TestNamespace::open("life").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    room.apply_pool("free", json!({"scaling": {"min": 2, "max": 10}})).await;
    room.pool_says("free", "Ready", "True").await;
    room.pods_ready(2).await;

    let pools = room.api::<AgentPool>();
    pools.patch_scale("free", &PatchParams::default(), &Patch::Merge(json!({"spec": {"replicas": 5}}))).await.expect("scaled");
    let (reason, message) = room.pool_says("free", "Ready", "True").await;
    assert_eq!((reason.as_str(), message.as_str()), ("AsDesired", "spec.replicas sets the size to 5"));
    room.pods_ready(5).await;
    eventually("/scale shows five", async || {
        let scale = pools.get_scale("free").await.map_err(|error| error.to_string())?.status.expect("a status");
        check_state(
            scale.replicas == 5 && scale.selector.as_deref().is_some_and(|selector| selector.starts_with(names::POOL_UID_LABEL)),
            || format!("{scale:?}"),
        )
    })
    .await;

    pools.patch_scale("free", &PatchParams::default(), &Patch::Merge(json!({"spec": {"replicas": 1}}))).await.expect("scaled");
    room.pool_says("free", "Ready", "True").await;
    room.pods_ready(1).await;

    pools.delete("free", &DeleteParams::default()).await.expect("deleted");
    room.empty().await;
    room.close().await;
}

#[tokio::test]
async fn ready_never_speaks_of_an_older_spec() {
    let room = TestNamespace::open("ready").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    room.apply_pool("free", json!({"scaling": {"min": 1, "max": 10}})).await;
    room.pool_says("free", "Ready", "True").await;
    for min in [3, 2, 4] {
        let changed = room.apply_pool("free", json!({"scaling": {"min": min, "max": 10}})).await;
        let condition =
            changed.status.and_then(|status| status.conditions.into_iter().find(|condition| condition.type_ == "Ready")).expect("Ready");
        assert!(condition.observed_generation < changed.metadata.generation, "kubectl wait sees that Ready is of the old generation");
        // `kubectl wait` returns at a Ready of this generation. Then the agents must exist.
        room.pool_says("free", "Ready", "True").await;
        let running = room
            .list::<Agent>()
            .await
            .into_iter()
            .filter(|agent| agent.metadata.deletion_timestamp.is_none())
            .filter(|agent| agent.status.as_ref().and_then(|status| status.phase) == Some(AgentPhase::Idle))
            .count();
        assert_eq!(running, min);
    }
    room.close().await;
}

#[tokio::test]
async fn a_pod_deleted_by_hand_brings_one_replacement() {
    let room = TestNamespace::open("replace").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    room.apply_pool("free", json!({"scaling": {"min": 3, "max": 3}})).await;
    let pods = room.pods_ready(3).await;
    let victim = pods[0].name_any();
    room.api::<Pod>().delete(&victim, &DeleteParams::default()).await.expect("deleted");
    eventually("the agent ended and says why", async || {
        let agent = room.api::<Agent>().get(&victim).await.map_err(|error| error.to_string())?;
        let status = agent.status.expect("a status");
        let reason = status.conditions.iter().find(|condition| condition.type_ == "Ready").map(|condition| condition.reason.clone());
        check_state(status.phase == Some(AgentPhase::Stopped) && reason.as_deref() == Some("PodGone") && status.stop_time.is_some(), || {
            format!("{:?} {reason:?}", status.phase)
        })
    })
    .await;
    let now = room.pods_ready(3).await;
    assert!(now.iter().all(|pod| pod.name_any() != victim), "the replacement is another agent");
    assert_eq!(room.list::<Agent>().await.len(), 4, "three that run and the one that ended, kept for reading");
    room.close().await;
}

#[tokio::test]
async fn programs_that_end_at_once_are_replaced_later_and_later_and_the_pool_says_so() {
    let room = TestNamespace::open("crash").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    let program = json!({"command": ["/bin/sh", "-c", "exit 7"]});
    room.apply_pool("fails", json!({"replicas": 1, "agent": program})).await;
    let (reason, message) = room.pool_says("fails", "Blocked", "True").await;
    assert!(reason == "CrashLoop" && message.contains("exit code 7"), "{reason}: {message}");
    let (reason, _) = room.pool_says("fails", "Stalled", "True").await;
    assert_eq!(reason, "CrashLoop");
    let crashed = room.list::<Agent>().await.len();
    assert!((5..=7).contains(&crashed), "{crashed} agents: each came later than the one before");

    // After the fix it continues by itself.
    room.apply_pool("fails", json!({"replicas": 1, "agent": {"command": ["/bin/demo-agent"]}})).await;
    room.pool_says("fails", "Ready", "True").await;
    room.close().await;
}

#[tokio::test]
async fn ended_agents_are_collected_after_their_time() {
    let room = TestNamespace::open("ttl").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    room.apply_pool("free", json!({"replicas": 1, "supervision": {"stoppedTTLSeconds": 0}})).await;
    let victim = room.pods_ready(1).await[0].name_any();
    room.api::<Pod>().delete(&victim, &DeleteParams::default()).await.expect("deleted");
    eventually("the agent is replaced and deleted", async || {
        let left = room.api::<Agent>().get_opt(&victim).await.map_err(|error| error.to_string())?;
        check_state(left.is_none(), || "it is there".into())
    })
    .await;
    room.pods_ready(1).await;
    room.close().await;
}

#[tokio::test]
async fn a_full_quota_blocks_in_the_servers_words_and_goes_on_when_it_frees() {
    let room = TestNamespace::open("quota").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    let quota: ResourceQuota =
        serde_json::from_value(json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "2"}}})).expect("a quota");
    room.api::<ResourceQuota>().create(&PostParams::default(), &quota).await.expect("a quota");
    eventually("the quota is counted", async || {
        let counted = room.api::<ResourceQuota>().get("q").await.map_err(|error| error.to_string())?.status.and_then(|status| status.hard);
        check_state(counted.is_some_and(|hard| !hard.is_empty()), || "not yet".into())
    })
    .await;
    room.apply_pool("free", json!({"scaling": {"min": 4, "max": 10}})).await;
    let (reason, message) = room.pool_says("free", "Blocked", "True").await;
    assert_eq!(reason, "QuotaExceeded");
    assert!(message.contains("exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2"), "{message}");
    let (reason, _) = room.pool_says("free", "Ready", "False").await;
    assert_eq!(reason, "QuotaExceeded");
    assert!(room.list::<Agent>().await.len() <= 4, "agents that only wait for quota are not heaped up");
    // With a full quota for twenty seconds, retries get slower and slower.
    let since = jiff::Timestamp::now();
    tokio::time::sleep(std::time::Duration::from_secs(20)).await;
    let tries =
        audit::writes(&room.namespace, since).iter().filter(|write| write.verb == "create" && write.object_ref.resource == "pods").count();
    assert!(tries <= 30, "{tries} refused creates in 20 s");

    room.api::<ResourceQuota>().delete("q", &DeleteParams::default()).await.expect("deleted");
    room.pool_says("free", "Ready", "True").await;
    room.pods_ready(4).await;
    room.close().await;
}

#[tokio::test]
async fn trouble_with_images_and_nodes_is_told_in_the_kubelets_words() {
    let room = TestNamespace::open("trouble").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    room.apply_pool("image", json!({"replicas": 1, "agent": {"image": "localhost/spillway/there-is-no-such:dev"}})).await;
    let (reason, message) = room.pool_says("image", "Blocked", "True").await;
    assert_eq!(reason, "ImagePull");
    assert!(message.contains("there-is-no-such"), "{message}");

    room.apply_pool("node", json!({"replicas": 1, "scheduling": {"nodeSelector": {"no-such": "label"}}})).await;
    let (reason, message) = room.pool_says("node", "Blocked", "True").await;
    assert_eq!(reason, "Unschedulable");
    assert!(message.contains("didn't match Pod's node affinity/selector"), "{message}");
    room.close().await;
}

#[tokio::test]
async fn what_is_missing_or_not_built_is_named_and_crashes_nothing() {
    let room = TestNamespace::open("missing").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    room.apply_pool(
        "refs",
        json!({"replicas": 1, "budgetRef": {"name": "gold"}, "queues": [{"name": "bugs"}], "toolsets": [{"name": "deploy"}]}),
    )
    .await;
    let (reason, message) = room.pool_says("refs", "Blocked", "True").await;
    assert_eq!(
        (reason.as_str(), message.as_str()),
        (
            "MissingReference",
            "the spec names objects that this namespace does not have: Budget/gold, WorkQueue/bugs, Toolset/deploy. Create them, or remove their names from the spec"
        )
    );
    assert!(room.list::<Agent>().await.is_empty(), "nothing is started");

    room.apply_pool("work", json!({"type": "worker", "scaling": {"min": 2, "max": 5}})).await;
    room.pool_says("work", "Ready", "True").await;
    let (reason, message) = room.pool_says("work", "ScaledToZero", "True").await;
    assert!(reason == "NoWork" && message.contains("no eligible work"), "{reason}: {message}");

    room.apply_pool("fine", json!({"replicas": 1})).await;
    room.pool_says("fine", "Ready", "True").await;
    room.close().await;
}

#[tokio::test]
async fn an_agent_made_by_hand_runs_outside_min_and_max_and_goes_with_its_pool() {
    let room = TestNamespace::open("hand").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    // It exists before its pool, as GitOps may apply it.
    let object: Agent =
        serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Agent", "metadata": {"name": "mine"},
        "spec": {"poolRef": {"name": "free"}, "manual": true}}))
        .expect("an Agent");
    room.api::<Agent>().create(&PostParams::default(), &object).await.expect("accepted");
    eventually("the Agent's status has the missing pool", async || {
        let status = room.api::<Agent>().get("mine").await.map_err(|error| error.to_string())?.status;
        let told = status.is_some_and(|status| {
            status.conditions.iter().any(|condition| condition.message == "AgentPool/free (spec.poolRef) does not exist. Create it")
        });
        check_state(told, || "not yet".into())
    })
    .await;
    room.apply_pool("free", json!({"replicas": 1})).await;
    let pods = room.pods_ready(2).await;
    assert!(pods.iter().any(|pod| pod.name_any() == "mine"));
    eventually("the pool counts only its own agents", async || {
        let status = room.pool("free").await.status.expect("a status");
        check_state(status.agents == Some(1), || format!("{:?}", status.agents))
    })
    .await;
    room.api::<Agent>().delete("mine", &DeleteParams::default()).await.expect("deleted");
    eventually("the Agent and its pod are deleted", async || {
        let left = room.api::<Agent>().get_opt("mine").await.map_err(|error| error.to_string())?;
        check_state(left.is_none(), || "it is there".into())
    })
    .await;
    room.pods_ready(1).await;
    room.api::<Agent>().create(&PostParams::default(), &object).await.expect("accepted again once it is gone");
    room.pods_ready(2).await;
    // The pool adopts an agent that existed before it, and restores labels and owners that a user removes.
    let off = json!({"metadata": {"ownerReferences": null, "labels": null}});
    room.api::<Agent>().patch("mine", &PatchParams::default(), &Patch::Merge(off.clone())).await.expect("changed");
    eventually("the pool has adopted the Agent again", async || {
        let agent = room.api::<Agent>().get("mine").await.map_err(|error| error.to_string())?;
        check_state(agent.metadata.owner_references.is_some(), || "no owner".into())
    })
    .await;
    room.api::<AgentPool>().delete("free", &DeleteParams::default()).await.expect("deleted");
    room.empty().await;
    room.close().await;
}

#[tokio::test]
async fn labels_and_owners_that_somebody_takes_off_change_no_number() {
    let room = TestNamespace::open("labels").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    room.apply_pool("free", json!({"replicas": 3})).await;
    // A pod without its labels has no isolation either: its sidecar has probed before, and probes again in a minute.
    room.pool_says("free", "Ready", "True").await;
    let pods = room.pods_ready(3).await;
    let off = json!({"metadata": {"ownerReferences": null, "labels": null}});
    let name = pods[0].name_any();
    room.api::<Agent>().patch(&name, &PatchParams::default(), &Patch::Merge(off)).await.expect("changed");
    let unlabelled = json!({"metadata": {"labels": null}});
    room.api::<Pod>().patch(&pods[1].name_any(), &PatchParams::default(), &Patch::Merge(unlabelled)).await.expect("changed");
    eventually("the Agent is adopted again", async || {
        let agent = room.api::<Agent>().get(&name).await.map_err(|error| error.to_string())?;
        check_state(agent.metadata.owner_references.is_some(), || "no owner".into())
    })
    .await;
    room.apply_pool("free", json!({"replicas": 4})).await;
    room.pool_says("free", "Ready", "True").await;
    room.pods_ready(4).await;
    assert_eq!(room.list::<Agent>().await.len(), 4, "none was taken for lost");
    room.close().await;
}

#[tokio::test]
async fn the_pod_is_what_the_sandbox_promises() {
    let room = TestNamespace::open("walls").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    room.apply_pool("free", json!({"replicas": 1})).await;
    let pod = room.pods_ready(1).await.remove(0);
    let spec = pod.spec.expect("a spec");
    assert_eq!(spec.automount_service_account_token, Some(false));
    assert!(spec.volumes.iter().flatten().all(|volume| volume.secret.is_none()), "no secret is mounted");
    let mounted = |name: &str| spec.containers[0].volume_mounts.iter().flatten().any(|mount| mount.name == name);
    assert!(!mounted("spillway-token") && !mounted("spillway-journal"), "the agent's container has no token");
    assert_eq!(spec.host_users, Some(false), "the node of the local cluster has user namespaces, so the pod gets its own");
    let limits = spec.containers[0].resources.as_ref().and_then(|resources| resources.limits.clone()).expect("limits");
    assert!(["cpu", "memory", "ephemeral-storage"].iter().all(|name| limits.contains_key(*name)), "{limits:?}");
    room.close().await;
}
