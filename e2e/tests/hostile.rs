//! Gateway and controller with the memory limits of the chart, under attacks on their memory. `e2e/bench/run.sh
//! hostile` has more attacks, and measures their effect on an honest namespace.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::{Api, Resource as _};
use serde_json::{Value, json};
use spillway::api::AgentPool;
use tokio::io::AsyncWriteExt as _;
use tokio::task::JoinSet;

use crate::support::caller::Caller;
use crate::support::cgroup::MemoryGroup;
use crate::support::exec::sh;
use crate::support::models::Scripted;
use crate::support::{Operator, TestNamespace};

/// Memory of the containers in the chart's values, in MiB (`resources.limits.memory`).
const GATEWAY_LIMIT: u32 = 512;
const CONTROLLER_LIMIT: u32 = 256;
/// Bytes of a head that does not end, and the number of connections on which each stranger sends one.
const HEAD_BYTES: usize = 384 * 1024;
const HEADS: usize = 700;
/// Addresses of the strangers.
const STRANGERS: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)), IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3))];
/// Bodies of one agent at once, and their bytes. Each bracket is a value for a parser.
const BODIES: usize = 40;
const BODY_BYTES: usize = 900_000;
/// Calls of the honest program during the attack.
const HONEST_CALLS: usize = 20;
/// Does nothing, until it is asked to end.
const QUIET: &str = "trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done";

/// Sends heads that do not end, on as many connections as it gets.
async fn send_unfinished_heads(stranger: Caller) {
    let stranger = Arc::new(stranger);
    let mut tasks = JoinSet::new();
    for _ in 0..HEADS {
        let stranger = stranger.clone();
        tasks.spawn(async move {
            loop {
                // After a refusal it tries again.
                let _: std::io::Result<()> = async {
                    let mut stream = stranger.raw().await?;
                    stream.write_all(b"GET / HTTP/1.1\r\nhost: gateway\r\nx: ").await?;
                    stream.write_all(&vec![b'x'; HEAD_BYTES]).await?;
                    stream.flush().await?;
                    std::future::pending().await
                }
                .await;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
    }
    tasks.join_all().await;
}

/// Sends bodies that consist of brackets, as many at once as it can.
async fn send_brackets(agent: Caller) {
    let body = format!(r#"{{"model": "scripted-large", "x": [{}[]]}}"#, "[],".repeat(BODY_BYTES / 3));
    loop {
        join_all((0..BODIES).map(|_| agent.try_call("POST", "/models/gpt/v1/chat/completions", body.clone()))).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_serves_within_its_memory_while_others_want_all_of_it() {
    let room = TestNamespace::open("hostile").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    let provider = Scripted::serve(&room).await;
    room.kill_gateway();
    let group = MemoryGroup::new(&room.namespace, GATEWAY_LIMIT).expect("a memory group: this needs root");
    let mut gateway = Operator::gateway(&room, "limited");
    group.add(gateway.process()).expect("the gateway is in its group");
    let pool = json!({"replicas": 2, "models": [provider.entry("gpt", "OpenAIChat")], "agent": {"command": ["/bin/sh", "-c", QUIET]}});
    room.apply_pool("callers", pool).await;
    let agents = room.wait_until_idle("callers", 2).await;
    let hostile = room.api::<Pod>().get(&agents[0].name_any()).await.expect("its pod");
    let stranger = Caller::anonymous_at_gateway(&room).await;
    group.forget_peak().expect("its memory counts anew");
    let mut attacks: Vec<_> = STRANGERS.map(|address| tokio::spawn(send_unfinished_heads(stranger.with_source(address)))).into();
    attacks.push(tokio::spawn(send_brackets(room.as_pod(&hostile).await)));
    // The honest program is in a real pod. Like any client it retries when a refusal allows it.
    let script = format!(
        r#"for i in $(seq {HONEST_CALLS}); do
            for try in 1 2 3 4 5 6 7 8 9 10; do
                wget -q -Y off -O - --header 'content-type: application/json' --header "authorization: Bearer $OPENAI_API_KEY" \
                    --post-data '{{"model": "scripted-large", "messages": [{{"role": "user", "content": "hello"}}]}}' \
                    "$OPENAI_BASE_URL/chat/completions" > /dev/null && echo answered && break
                sleep 1
            done
        done"#
    );
    let said = sh(&room, &agents[1].name_any(), &script).await.ok();
    assert!(gateway.runs(), "the gateway has ended");
    assert_eq!(said.matches("answered").count(), HONEST_CALLS, "{said}");
    for attack in attacks {
        assert!(!attack.is_finished(), "the attack goes on all the time");
        attack.abort();
    }
    let peak = group.peak().expect("its memory");
    println!("the gateway took {peak:.0} of {GATEWAY_LIMIT} MiB at most");
    drop(gateway);
    room.start_gateway("gateway");
    room.close().await;
}

#[tokio::test]
async fn a_controller_leads_within_its_memory_whatever_pools_a_user_makes() {
    let room = TestNamespace::open("hostilepools").await;
    // Lists of small objects in a free field take the most memory for each stored byte.
    let parts: Vec<Value> = std::iter::repeat_n(json!({"": 0}), 980_000 / 7).collect();
    let api: Api<DynamicObject> = Api::namespaced_with(room.client.clone(), &room.namespace, &ApiResource::erase::<AgentPool>(&()));
    for number in 0..5 {
        let pool = json!({
            "apiVersion": AgentPool::api_version(&()), "kind": "AgentPool", "metadata": {"name": format!("bomb-{number}")},
            "spec": {"type": "free", "replicas": 0, "agent": {"image": "localhost/spillway/demo-agent:dev", "command": ["/bin/demo-agent"]},
                "workspace": {"volumeClaimTemplate": {"accessModes": ["ReadWriteOnce"], "x": parts}}},
        });
        // It is stored without the field, or refused.
        match api.create(&PostParams::default(), &serde_json::from_value(pool).expect("an object")).await {
            Ok(_) | Err(kube::Error::Api(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    let group = MemoryGroup::new(&room.namespace, CONTROLLER_LIMIT).expect("a memory group: this needs root");
    let mut operator = room.operator("limited");
    group.add(operator.process()).expect("the controller is in its group");
    operator.leads(&room).await;
    // An honest pool beside them is served.
    room.apply_pool("honest", json!({"replicas": 1})).await;
    room.pods_ready(1).await;
    assert!(operator.runs(), "the controller has ended");
    println!("the controller took {:.0} of {CONTROLLER_LIMIT} MiB at most", group.peak().expect("its memory"));
    room.close().await;
}
