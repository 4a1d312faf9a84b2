//! Features that some API servers lack: they remove fields that they do not know, without an error.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::DeleteParams;
use serde_json::json;
use spillway::api::AgentPool;

use crate::sandbox::wait_for_sandbox;
use crate::support::fleet::log;
use crate::support::stopped::SecondApiServer;
use crate::support::{Operator, TestNamespace, check_state, eventually};

async fn host_users(room: &TestNamespace, agent: &str) -> Option<bool> {
    room.api::<Pod>().get(agent).await.expect("its pod").spec.and_then(|spec| spec.host_users)
}

/// It starts a second API server on the cluster, which only one test can do at a time.
#[tokio::test]
async fn alone_a_pod_that_lost_the_user_namespace_that_its_pool_requires_runs_no_program() {
    let room = TestNamespace::open("no-userns").await;
    let required = json!({"scaling": {"min": 1, "max": 1}, "sandbox": {"isolation": {"userNamespace": "Required"}}});
    // The second one needs the first.
    let server = SecondApiServer::without_features(&["UserNamespacesSupport", "ProcMountType"]);
    let operator = Operator::start(&room, "one", Some(&server.kubeconfig));
    operator.leads(&room).await;
    room.apply_pool("closed", required.clone()).await;
    let (agent, (status, reason, message)) = wait_for_sandbox(&room, "closed").await;
    assert_eq!((status.as_str(), reason.as_str()), ("False", "UserNamespaceMissing"), "{message}");
    assert!(message.contains("UserNamespacesSupport") && message.contains("isolation.userNamespace"), "{message}");
    assert_eq!(host_users(&room, &agent.name_any()).await, None, "the server removed hostUsers");
    eventually("its log says so", async || {
        let said = log(&room, &agent.name_any(), "agent").await;
        check_state(said.contains("the program is not started: UserNamespaceMissing: "), || said)
    })
    .await;
    // Preferred asks for less: the node has user namespaces, the API server has not, and the program runs.
    room.apply_pool("open", json!({"scaling": {"min": 1, "max": 1}})).await;
    room.pool_says("open", "Ready", "True").await;
    room.api::<AgentPool>().delete("closed", &DeleteParams::default()).await.expect("deleted");
    drop(operator);
    drop(server);

    let operator = room.operator("two");
    operator.leads(&room).await;
    room.apply_pool("again", required).await;
    let (agent, (status, _, message)) = wait_for_sandbox(&room, "again").await;
    assert_eq!(status, "True", "{message}");
    assert_eq!(host_users(&room, &agent.name_any()).await, Some(false));
    room.close().await;
}
