//! Roll-outs of the gateway and the controller while items are leased. No agent's pod is killed.

use super::*;

#[tokio::test]
async fn a_roll_out_of_the_gateway_costs_nobody_an_item() {
    gateway_away_for_longer_than_a_lease("roll", false).await;
}

#[tokio::test]
async fn a_roll_out_of_gateway_and_controller_costs_nobody_an_item() {
    gateway_away_for_longer_than_a_lease("rollboth", true).await;
}

async fn gateway_away_for_longer_than_a_lease(name: &str, and_controller: bool) {
    let (room, operator, witness, history) = set_up(name).await;
    let mut operator = Some(operator);
    queue(&room, json!({"leaseDurationSeconds": 60})).await;
    // A pod without contact for its time-out ends by itself.
    let supervision = json!({"heartbeatPeriodSeconds": 5, "heartbeatTimeoutSeconds": 180});
    let script = "until [ -e $SPILLWAY_DATA_DIR/go ]; do echo working; sleep 1; done";
    room.apply_workers("fixers", &["bugs"], script, json!({"replicas": 3, "supervision": supervision})).await;
    let names = ["one", "two", "three"];
    for name in names {
        room.submit("bugs", name, json!({})).await;
    }
    let mut holders = Vec::new();
    for name in names {
        holders.push(room.holder(&room.wait_for_item_phase(name, Leased).await).await.name_any());
    }
    room.kill_gateway();
    tokio::time::sleep(Duration::from_secs(45)).await;
    if and_controller {
        operator = None; // killed before the next one starts
        operator = operator.or_else(|| Some(room.operator("next")));
    }
    tokio::time::sleep(Duration::from_secs(45)).await;
    room.start_gateway("later");
    if let Some(operator) = &operator {
        operator.leads(&room).await;
    }
    // Effects of the roll-outs would show within another lease time.
    tokio::time::sleep(Duration::from_secs(75)).await;
    for (name, holder) in names.iter().zip(&holders) {
        assert!(leased(&room.item(name).await, 1), "{:?}", room.item(name).await.status);
        release_program(&room, holder).await;
        let done = room.wait_for_item_phase(name, Succeeded).await;
        assert_eq!((counts(&done), attempts(&done)), ((0, 0, 1, 1), vec![("Complete".to_owned(), holder.clone())]));
    }
    assert_eq!(history.agents_ever().await.len(), 3, "no agent was replaced");
    for holder in &holders {
        let phases = history.phases(holder).await;
        assert!(phases.iter().all(|phase| [Spawning, Running, Idle, Active].contains(phase)), "{phases:?}");
    }
    witness.each_was_finished_once();
    room.close().await;
}
