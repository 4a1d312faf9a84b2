//! etcd is restored from a backup while agents and gateways continue: work continues within seconds, and the gateways'
//! knowledge of the lost time counts once.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use spillway::api::work_item::WorkItemPhase;
use spillway::api::{Agent, Budget, WorkItem};
use spillway::wire::governor::EPOCH_ANNOTATION;

use crate::support::caller::Caller;
use crate::support::models::{Scripted, wait_until_counts_agree};
use crate::support::restarted::Controllers;
use crate::support::standins::Standin;
use crate::support::stopped::Etcd;
use crate::support::work::phase;
use crate::support::{TestNamespace, check_state, eventually, within};

const MODEL: &str = "/models/gpt/v1/chat/completions";
/// The time between the copy and its restore.
const LOST: Duration = Duration::from_secs(30);

/// A lease from the answer to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Lent {
    name: String,
    uid: String,
    epoch: i64,
    agent: String,
}

async fn claims(agent: &Standin) -> Result<Lent, String> {
    let answer = agent.caller.try_call("POST", "/agent/v1/work/claim", json!({}).to_string()).await?;
    if answer.status != 200 {
        return Err(format!("{answer:?}"));
    }
    let answer = answer.json();
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let epoch = answer["held"]["epoch"].as_i64().expect("a number");
    Ok(Lent { name: text(&answer["name"]), uid: text(&answer["held"]["uid"]), epoch, agent: agent.name.clone() })
}

async fn has_claimed(agent: &Standin) -> Lent {
    eventually(&format!("{} gets an item", agent.name), async || claims(agent).await).await
}

async fn finishes(agent: &Standin, lent: &Lent) {
    let body = json!({"epoch": lent.epoch, "result": format!("by {}", agent.name)});
    eventually(&format!("the end of {} is accepted", lent.name), async || {
        let path = format!("/agent/v1/work/{}/complete", lent.uid);
        let answer = agent.caller.try_call("POST", &path, body.to_string()).await?;
        check_state(answer.status == 200, || format!("{answer:?}"))
    })
    .await;
}

/// Calls a model until it is answered.
async fn calls(caller: &Caller) {
    let body = json!({"model": "scripted-large--output-040", "max_tokens": 64, "messages": [{"role": "user", "content": "go"}]});
    eventually("a call of a model is answered", async || {
        let answer = caller.try_call("POST", MODEL, body.to_string()).await?;
        check_state(answer.status == 200, || format!("{answer:?}"))
    })
    .await;
}

async fn owner_epoch(room: &TestNamespace) -> i64 {
    eventually("the Lease has the owner epoch", async || {
        let lease = room.api::<Lease>().get("spillway-controller").await.map_err(|error| error.to_string())?;
        let epoch = lease.annotations().get(EPOCH_ANNOTATION).and_then(|epoch| epoch.parse().ok());
        epoch.ok_or_else(|| format!("{:?}", lease.annotations()))
    })
    .await
}

/// The sum of the agents' own accounts.
async fn wait_until_accounts_agree(room: &TestNamespace, provider: &Scripted) {
    eventually("the accounts of all agents have the provider's count", async || {
        let told = provider.reported_tokens();
        let used = |agent: Agent| agent.status.and_then(|status| status.tokens).and_then(|tokens| tokens.used).unwrap_or_default();
        let sum: i64 = room.list::<Agent>().await.into_iter().map(used).sum();
        check_state(sum == told, || format!("{sum} of {told}"))
    })
    .await;
}

#[tokio::test]
async fn alone_a_restored_etcd_costs_no_token_and_no_finish() {
    let room = TestNamespace::open("rollback").await;
    let controllers = Controllers::start(&room, 2);
    controllers.run_during(&room, rolled_back(&room)).await;
    room.close().await;
}

async fn rolled_back(room: &TestNamespace) {
    let provider = Scripted::serve(room).await;
    let budget = json!({
        "apiVersion": "spillway.dev/v1alpha1", "kind": "Budget", "metadata": {"name": "default"},
        "spec": {"tokens": {"limits": [{"name": "all", "tokens": 10_000_000, "window": "Lifetime"}]}},
    });
    room.api::<Budget>().patch("default", &PatchParams::apply("e2e").force(), &Patch::Apply(budget)).await.expect("the Budget is accepted");
    // None of the agents reports. No agent may lose an item for that.
    room.apply_queue("bugs", json!({"itemDefaults": {"leaseDurationSeconds": 3600}})).await;
    let extra = json!({
        "models": [provider.entry("gpt", "OpenAIChat")], "queues": [{"name": "bugs"}], "bulkhead": {"lifetimeTokens": 1_000_000_000},
    });
    let agents = room.standins("callers", 10, extra).await;
    for at in 0..10 {
        room.submit("bugs", &format!("item-{at}"), json!({"payload": "x"})).await;
    }
    // Four agents hold an item when the copy is made. The other agents have made no call yet.
    let mut lent = Vec::new();
    for agent in &agents[..4] {
        lent.push(has_claimed(agent).await);
        calls(&agent.caller).await;
    }
    wait_until_counts_agree(room, &provider).await;
    let copy = Etcd::take_copy(&PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("rollback.etcd"));

    let since = tokio::time::Instant::now();
    for agent in &agents[4..8] {
        lent.push(has_claimed(agent).await);
    }
    for agent in &agents {
        for _ in 0..3 {
            calls(&agent.caller).await;
        }
    }
    // The copy shows two of these items as leased, and one as ready.
    for at in [0, 1] {
        finishes(&agents[at], &lent[at]).await;
    }
    let short = has_claimed(&agents[8]).await;
    finishes(&agents[8], &short).await;
    wait_until_counts_agree(room, &provider).await;
    wait_until_accounts_agree(room, &provider).await;
    let before = owner_epoch(room).await;
    // Model calls continue all the time.
    let over = Arc::new(AtomicBool::new(false));
    let busy = agents[2..6].iter().map(|agent| {
        let (caller, over) = (agent.caller.clone(), over.clone());
        tokio::spawn(async move {
            while !over.load(Ordering::SeqCst) {
                calls(&caller).await;
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
        })
    });
    let busy: Vec<_> = busy.collect();
    tokio::time::sleep_until(since + LOST).await;

    tokio::task::spawn_blocking(move || copy.restored()).await.expect("it is restored");
    let item = within(Duration::from_secs(30), "an item is given out", async || claims(&agents[9]).await).await;
    finishes(&agents[9], &item).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    over.store(true, Ordering::SeqCst);
    for task in busy {
        task.await.expect("its calls are answered");
    }

    assert!(owner_epoch(room).await > before, "above all lost epochs");
    for (at, lent) in [(0, &lent[0]), (1, &lent[1]), (8, &short)] {
        let item = room.wait_for_item_phase(&lent.name, WorkItemPhase::Succeeded).await;
        let status = item.status.expect("a status");
        assert_eq!(status.result, Some(format!("by {}", agents[at].name)), "{}", lent.name);
        assert_eq!(status.lease.and_then(|lease| lease.lease_transitions), Some(lent.epoch), "{}", lent.name);
    }
    // The other holders keep their leases, with the same epoch, and finish.
    for lent in &lent[2..] {
        let item = room.item(&lent.name).await;
        let lease = item.status.as_ref().and_then(|status| status.lease.clone()).unwrap_or_default();
        let holds = (phase(&item), lease.agent.as_deref(), lease.lease_transitions);
        assert_eq!(holds, (Some(WorkItemPhase::Leased), Some(lent.agent.as_str()), Some(lent.epoch)), "{}", lent.name);
    }
    for (agent, lent) in agents[2..8].iter().zip(&lent[2..]) {
        finishes(agent, lent).await;
    }
    for item in room.list::<WorkItem>().await {
        assert_eq!(phase(&item), Some(WorkItemPhase::Succeeded), "{}", item.name_any());
    }
    wait_until_counts_agree(room, &provider).await;
    wait_until_accounts_agree(room, &provider).await;
    let events = room.list::<Event>().await;
    assert!(events.iter().any(|event| event.reason.as_deref() == Some("StoreRolledBack")), "an event names the lost time");
}
