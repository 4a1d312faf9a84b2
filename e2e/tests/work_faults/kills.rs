//! Many items, while processes of Spillway are killed at random times that follow from a seed.

use super::*;
use crate::support::kills::{Dice, Killer, Victim};

#[tokio::test]
async fn kills_in_the_middle_of_many_items_lose_none_and_finish_none_twice() {
    use Victim::{Controller, Gateway, Sidecar, Supervisor};
    many_items_under(&[
        Controller, Controller, Controller, Gateway, Gateway, Gateway, Supervisor, Supervisor, Supervisor, Sidecar, Sidecar,
    ])
    .await;
}

#[tokio::test]
async fn alone_kills_of_the_kubelet_too_lose_no_item_and_finish_none_twice() {
    use Victim::{Controller, Gateway, Kubelet, Sidecar, Supervisor};
    many_items_under(&[Controller, Controller, Gateway, Gateway, Supervisor, Supervisor, Sidecar, Kubelet, Kubelet, Kubelet]).await;
}

/// Each victim once. The order, and the numbers of finished items at which kills happen, follow from the seed.
async fn many_items_under(victims: &[Victim]) {
    let (room, operator, witness, _) = set_up("kills").await;
    let mut dice = Dice::seeded();
    queue(&room, json!({"maxStalls": 100})).await;
    let script = "sleep 0.3; echo \"$SPILLWAY_ITEM_UID $SPILLWAY_WORK_EPOCH\" > $SPILLWAY_RESULT_FILE";
    let agent = json!({"resources": {"limits": {"cpu": "500m"}}});
    room.apply_workers("fixers", &["bugs"], script, json!({"replicas": 4, "agent": agent})).await;
    room.pods_ready(4).await;
    for at in 0..ITEMS {
        room.submit("bugs", &format!("bug-{at}"), json!({})).await;
    }
    let mut killer = Killer::new(&room, operator);
    let moments = dice.moments(victims.len(), ITEMS * 9 / 10);
    for (moment, victim) in moments.into_iter().zip(dice.shuffled(victims.to_vec())) {
        eventually(&format!("{moment} items are done, and {victim:?} is killed"), async || {
            check_state(witness.succeeded() >= moment, || format!("{}", witness.succeeded()))
        })
        .await;
        eprintln!("{:?} is killed when {} items are done", victim, witness.succeeded());
        killer.kill(victim, &mut dice).await;
    }
    assert_eq!(room.wait_until_items_ended(ITEMS).await, [("Succeeded".to_owned(), ITEMS)].into());
    let (mut again, mut unexplained) = (0, Vec::new());
    for item in room.list::<WorkItem>().await {
        let said = format!("{} {}", item.uid().expect("a uid"), epoch(&item));
        assert_eq!(result(&item), Some(said), "the attempt that counts is the one that is recorded: {:?}", item.status);
        let (failures, _, claims, epoch) = counts(&item);
        let mut history = attempts(&item);
        assert_eq!(
            (failures, i64::from(claims), history.len()),
            (0, epoch, usize::try_from(claims).expect("a number")),
            "{:?}",
            item.status
        );
        assert_eq!(history.pop().map(|(verb, _)| verb).as_deref(), Some("Complete"));
        again += usize::from(!history.is_empty());
        let explained =
            |(verb, agent): &(String, String)| matches!(verb.as_str(), "LeaseExpired" | "Release") && killer.lost_agents.contains(agent);
        if !history.iter().all(explained) {
            unexplained.push(format!("{}: {:?}", item.name_any(), item.status.and_then(|status| status.attempt_history)));
        }
    }
    eprintln!("{again} of {ITEMS} items were given out more than once; lost: {:?}", killer.lost_agents);
    assert!(unexplained.is_empty(), "agents that were not killed lost items (killed were {:?}): {unexplained:#?}", killer.lost_agents);
    witness.each_was_finished_once();
    let _operator = killer.operator;
    room.close().await;
}
