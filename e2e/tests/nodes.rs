//! Nodes without a kubelet: agents on one of several nodes are replaced, and agents on the only node are not.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, ResourceExt};
use serde_json::json;
use spillway::api::Agent;

use crate::outages::assert_programs_continued;
use crate::support::fleet::{Chronicle, Fleet, steps};
use crate::support::neighbours::Neighbours;
use crate::support::{TestNamespace, check_state, eventually, stopped};

/// Waits until the condition Ready of the pod's node has this status.
async fn node_is(room: &TestNamespace, pod: &Pod, status: &str) {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).expect("a node");
    eventually(&format!("Ready of the node is {status}"), async || {
        let node = Api::<Node>::all(room.client.clone()).get(&node).await.map_err(|error| error.to_string())?;
        let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
        let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready").map(|ready| ready.status);
        check_state(ready.as_deref() == Some(status), || format!("{ready:?}"))
    })
    .await;
}

#[tokio::test]
async fn alone_a_kubelet_that_stands_still_costs_no_identity_and_its_return_no_agent() {
    a_kubelet_goes_and_comes(stopped::Kubelet::Stopped).await;
}

#[tokio::test]
async fn alone_a_kubelet_that_is_killed_costs_no_identity_and_the_next_one_no_agent() {
    a_kubelet_goes_and_comes(stopped::Kubelet::Killed).await;
}

/// Must run alone, because every pod is on this node. Other nodes continue, so the fault is this node's own.
async fn a_kubelet_goes_and_comes(how: stopped::Kubelet) {
    let room = TestNamespace::open("kubelet").await;
    let neighbours = Neighbours::of(&room, 2).await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    let told = Chronicle::start(&room);
    room.apply_pool("free", json!({"replicas": 2})).await;
    let before = Fleet::wait_for_idle(&room, 2).await;
    let pods = room.pods_ready(2).await;
    let walked = steps(&room, &before.names()).await;

    let kubelet = how.stop_or_kill();
    node_is(&room, &pods[0], "Unknown").await;
    for name in before.names() {
        told.wait_for_state(&name, "unreachable", |state| state.phase == "Stale" && state.ready == "NodeUnreachable").await;
    }
    let replacements = eventually("replacements are made, under other names", async || {
        let names: Vec<_> =
            room.list::<Agent>().await.iter().map(ResourceExt::name_any).filter(|name| !before.names().contains(name)).collect();
        check_state(names.len() == 2, || format!("{names:?}")).map(|()| names)
    })
    .await;
    for name in &replacements {
        let stuck = told.wait_for_state(name, "without a node", |state| state.ready == "Unschedulable").await;
        assert!(stuck.message.contains("untolerated taint"), "in the scheduler's words: {stuck:?}");
    }
    let now: Vec<Pod> = room.list().await;
    for pod in &pods {
        let same: Vec<_> = now.iter().filter(|other| other.name_any() == pod.name_any()).collect();
        assert!(same.len() == 1 && same[0].uid() == pod.uid(), "no second pod takes an identity");
        assert_eq!(same[0].metadata.deletion_timestamp, None, "nor is the first one asked to leave");
    }
    eventually("the pool counts only reachable agents", async || {
        let status = room.pool("free").await.status.expect("a status");
        check_state(status.agents == Some(2), || format!("{status:?}"))
    })
    .await;

    drop(kubelet);
    node_is(&room, &pods[0], "True").await;
    room.pool_says("free", "Ready", "True").await;
    for name in &replacements {
        eventually(&format!("the surplus agent {name} is deleted"), async || {
            let left = room.api::<Agent>().get_opt(name).await.map_err(|error| error.to_string())?;
            check_state(left.is_none(), || "it is there".to_owned())
        })
        .await;
    }
    assert_eq!(Fleet::wait_for_idle(&room, 2).await, before, "who was there before is there, and was never ended");
    assert_programs_continued(&room, &before.names(), &walked, 5).await;
    neighbours.remove().await;
    room.close().await;
}

#[tokio::test]
async fn alone_on_the_only_node_nobody_is_replaced_when_its_kubelet_is_away() {
    let room = TestNamespace::open("onenode").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    let told = Chronicle::start(&room);
    room.apply_pool("free", json!({"replicas": 2})).await;
    let before = Fleet::wait_for_idle(&room, 2).await;
    let pods = room.pods_ready(2).await;
    let walked = steps(&room, &before.names()).await;

    let kubelet = stopped::Kubelet::Stopped.stop_or_kill();
    node_is(&room, &pods[0], "Unknown").await;
    // One of several nodes would count as unreachable within this time.
    tokio::time::sleep(Duration::from_secs(90)).await;
    assert_eq!(Fleet::now(&room).await, before, "a replacement would have no node either");
    drop(kubelet);
    node_is(&room, &pods[0], "True").await;
    assert_eq!(Fleet::wait_for_idle(&room, 2).await, before);
    told.assert_undisturbed(&before.names());
    assert_programs_continued(&room, &before.names(), &walked, 15).await;
    room.close().await;
}
