//! Changesets, while processes on their way to the server are killed: the branch has its old commit or the new one, and the item
//! is done once.

use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use rustix::process::Signal;

use super::*;
use crate::support::git_server::Hold;
use crate::support::node;
use crate::support::witness::Witness;

/// A program that leaves more random bytes than all buffers on the way to the server hold, and the number of its attempt.
const LARGE: &str = "head -c 60000000 /dev/urandom > big; echo \"by attempt $SPILLWAY_WORK_EPOCH\" > attempt.txt";
/// A program that leaves the number of its attempt.
const SMALL: &str = "echo \"by attempt $SPILLWAY_WORK_EPOCH\" > attempt.txt";

/// A namespace with a pool whose items have many attempts.
async fn set_up(name: &str) -> (TestNamespace, Operator, GitServer, Witness) {
    let (namespace, operator, server) = opened(name).await;
    let witness = Witness::start(&namespace);
    apply_queue_and_pool(&namespace, &server, "code", 10, json!({})).await;
    (namespace, operator, server, witness)
}

/// Submits an item, and waits until the server has begun to read its commit, but not to its end.
async fn wait_until_pushing(namespace: &TestNamespace, server: &GitServer, name: &str) -> WorkItem {
    let before = server.pushes();
    server.hold(Hold::Bodies);
    namespace.submit("code", name, json!({"payload": LARGE})).await;
    eventually(&format!("the push of {name} is under way"), async || {
        check_state(server.pushes() > before, || format!("{} pushes", server.pushes()))
    })
    .await;
    assert_eq!(branch_commit(server, &format!("spillway/{name}")), None, "half a push is none");
    namespace.item(name).await
}

/// Submits an item, and waits until the server has stored its commit. The answer does not go out.
async fn wait_until_stored(namespace: &TestNamespace, server: &GitServer, name: &str) -> WorkItem {
    server.hold(Hold::Answers);
    namespace.submit("code", name, json!({"payload": SMALL})).await;
    eventually(&format!("the server has the commit of {name}"), async || {
        check_state(branch_commit(server, &format!("spillway/{name}")).is_some(), || "it has none".to_owned())
    })
    .await;
    namespace.item(name).await
}

/// Waits until the item is done, and checks that its branch has the files of its last attempt in one commit.
async fn check_done(namespace: &TestNamespace, server: &GitServer, name: &str) -> WorkItem {
    let done = namespace.wait_for_item_phase(name, Succeeded).await;
    let branch = format!("spillway/{name}");
    let commit = one_commit_on_main(server, &branch);
    let told = changeset(&done);
    assert_eq!((told.state, told.commit.as_deref()), (ChangesetState::Committed, Some(commit.as_str())), "{name}: {told:?}");
    assert_eq!(content(server, &branch, "attempt.txt"), format!("by attempt {}", told.epoch), "{name}");
    assert_eq!(attempts(&done).pop().map(|(verb, _)| verb).as_deref(), Some("Complete"), "{name}");
    done
}

/// The uid of the pod that holds an item.
async fn pod_of(namespace: &TestNamespace, item: &WorkItem) -> String {
    namespace.holder(item).await.uid().expect("a uid")
}

async fn kill_sidecar(pod: &str) {
    let killed = node::link(pod).expect("a sidecar");
    node::signal(&killed, Signal::KILL);
    eventually("another sidecar runs", async || {
        let now = node::link(pod);
        check_state(now.as_ref().is_some_and(|now| now.pid != killed.pid), || format!("{now:?}"))
    })
    .await;
}

#[tokio::test]
#[ignore = "it takes minutes: E2E_LONG=1"]
async fn long_kills_at_each_step_leave_the_old_or_the_new_commit() {
    let (namespace, operator, server, witness) = set_up("changekills").await;
    let main = main_commit(&server);

    wait_until_pushing(&namespace, &server, "gateway").await;
    namespace.kill_gateway();
    server.hold(Hold::Nothing);
    namespace.start_gateway("gateway-2");
    check_done(&namespace, &server, "gateway").await;

    // The pod does not learn that the server has its commit already.
    wait_until_stored(&namespace, &server, "answer").await;
    namespace.kill_gateway();
    server.hold(Hold::Nothing);
    namespace.start_gateway("gateway-3");
    check_done(&namespace, &server, "answer").await;

    wait_until_pushing(&namespace, &server, "controller").await;
    drop(operator);
    let operator = namespace.operator("two");
    server.hold(Hold::Nothing);
    operator.leads(&namespace).await;
    check_done(&namespace, &server, "controller").await;

    namespace.submit("code", "sidecar", json!({"payload": format!("{SMALL}\n{UNTIL_TOLD}")})).await;
    let held = namespace.wait_for_item_phase("sidecar", Leased).await;
    kill_sidecar(&pod_of(&namespace, &held).await).await;
    namespace.release_item("sidecar").await;
    let done = check_done(&namespace, &server, "sidecar").await;
    assert_eq!(attempts(&done).len(), 1, "a program does not notice that its sidecar restarts: {:?}", done.status);

    let held = wait_until_pushing(&namespace, &server, "sidecar-pushing").await;
    kill_sidecar(&pod_of(&namespace, &held).await).await;
    server.hold(Hold::Nothing);
    check_done(&namespace, &server, "sidecar-pushing").await;

    let held = wait_until_stored(&namespace, &server, "sidecar-answer").await;
    kill_sidecar(&pod_of(&namespace, &held).await).await;
    server.hold(Hold::Nothing);
    check_done(&namespace, &server, "sidecar-answer").await;

    witness.each_was_finished_once();
    assert_eq!(main_commit(&server), main);
    server.git(REPOSITORY, &["fsck", "--no-dangling"]);
    namespace.close().await;
}

#[tokio::test]
#[ignore = "it takes minutes: E2E_LONG=1"]
async fn long_another_agent_replaces_the_commit_of_one_that_was_lost() {
    let (namespace, _operator, server, witness) = set_up("changelost").await;

    // The first has pushed, and cannot say so.
    let held = wait_until_stored(&namespace, &server, "stored").await;
    let (first, before) = (holder(&held), branch_commit(&server, "spillway/stored"));
    let supervisor = node::supervisor(&pod_of(&namespace, &held).await).expect("a supervisor");
    node::signal(&supervisor, Signal::KILL);
    server.hold(Hold::Nothing);
    let done = check_done(&namespace, &server, "stored").await;
    let all = attempts(&done);
    assert!(all.len() == 2 && all[0].1 == first && all[1].1 != first, "{all:?}");
    assert_ne!(branch_commit(&server, "spillway/stored"), before, "the commit of the first is replaced");

    let held = wait_until_pushing(&namespace, &server, "killed").await;
    let supervisor = node::supervisor(&pod_of(&namespace, &held).await).expect("a supervisor");
    node::signal(&supervisor, Signal::KILL);
    server.hold(Hold::Nothing);
    let done = check_done(&namespace, &server, "killed").await;
    assert_ne!(attempts(&done).pop().map(|(_, agent)| agent), Some(holder(&held)), "{:?}", done.status);

    // A deleted pod is asked to end: its agent may still finish, or gives the item back.
    let held = wait_until_pushing(&namespace, &server, "deleted").await;
    namespace.api::<Pod>().delete(&holder(&held), &DeleteParams::default()).await.expect("the pod is deleted");
    eventually("the pod is asked to end", async || {
        let pod = namespace.api::<Pod>().get_opt(&holder(&held)).await.map_err(|error| error.to_string())?;
        check_state(pod.as_ref().is_none_or(|pod| pod.metadata.deletion_timestamp.is_some()), || "it is not".to_owned())
    })
    .await;
    server.hold(Hold::Nothing);
    check_done(&namespace, &server, "deleted").await;

    witness.each_was_finished_once();
    server.git(REPOSITORY, &["fsck", "--no-dangling"]);
    namespace.close().await;
}
