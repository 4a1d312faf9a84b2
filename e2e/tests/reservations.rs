//! The default reservations for schedulers hold for any number of workers.

use std::process::Command;
use std::time::Duration;

use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use spillway::api::{Agent, Budget, ClusterBudget};

use crate::support::history::condition;
use crate::support::models::Scripted;
use crate::support::standins::Standin;
use crate::support::test_namespace::merge;
use crate::support::{Operator, TestNamespace, check_state, eventually};

const PATH: &str = "/models/gpt/v1/chat/completions";

/// `ClusterBudget/default` of the chart, for this namespace only, and with limits that the test can reach.
fn profile(room: &TestNamespace, agents: usize, tokens: i64) -> Value {
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/spillway");
    let words = ["template", "spillway", chart, "--show-only", "templates/deployment.yaml"];
    let rendered = Command::new("helm").args(words).output().expect("helm is on PATH: run this by `make e2e`");
    assert!(rendered.status.success(), "{}", String::from_utf8_lossy(&rendered.stderr));
    let text = String::from_utf8(rendered.stdout).expect("text");
    let argument = text.lines().find_map(|line| line.trim().strip_prefix("- ").filter(|line| line.contains("--cluster-budget=")));
    let argument: String = serde_json::from_str(argument.expect("the chart keeps a ClusterBudget")).expect("a quoted argument");
    let mut spec: Value = serde_json::from_str(argument.strip_prefix("--cluster-budget=").expect("its spec")).expect("JSON");
    spec["namespaceSelector"] = json!({"matchLabels": {"kubernetes.io/metadata.name": room.namespace}});
    spec["perNamespace"]["agents"]["maxConcurrent"] = json!(agents);
    spec["defaults"]["bulkhead"]["lifetimeTokens"] = json!(1_000_000_000);
    for limits in ["/perNamespace/tokens/limits", "/defaults/budget/tokens/limits"] {
        // Without a reset within the test.
        *spec.pointer_mut(limits).expect("limits") = json!([{"name": "hourly", "tokens": tokens, "window": "Lifetime"}]);
    }
    // A call holds the tokens that it asks for.
    spec["defaults"]["budget"]["tokens"]["estimate"] = json!("Bytes");
    spec["defaults"]["budget"]["tokens"]["onInsufficient"] = json!("Reject");
    json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "ClusterBudget", "metadata": {"name": room.namespace}, "spec": spec})
}

/// Makes calls that cost 150 tokens each, until one is refused finally; the number of answered calls.
async fn calls(agents: &[Standin]) -> usize {
    let body =
        json!({"model": "scripted-large--input-00050--output-100", "max_tokens": 100, "messages": [{"role": "user", "content": "go"}]});
    let mut passed = 0;
    for agent in agents.iter().cycle() {
        let answer = agent.caller.post(PATH, body.clone()).await;
        match answer.status {
            200 => passed += 1,
            402 => break,
            // The call before is not settled yet, or there were too many calls in this second.
            429 => tokio::time::sleep(Duration::from_secs(1)).await,
            status => panic!("{status}: {answer:?}"),
        }
    }
    passed
}

#[tokio::test]
async fn alone_a_flood_of_workers_leaves_schedulers_a_fifth_of_agents_and_tokens() {
    let room = TestNamespace::open("reserved").await;
    let clusters = Api::<ClusterBudget>::all(room.client.clone());
    let params = PatchParams::apply("e2e").force();
    clusters.patch(&room.namespace, &params, &Patch::Apply(profile(&room, 10, 20_000))).await.expect("the ClusterBudget is accepted");
    let budget = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Budget", "metadata": {"name": "default"}, "spec": {}});
    room.api::<Budget>().patch("default", &params, &Patch::Apply(budget)).await.expect("the Budget is accepted");
    let operator = Operator::start_everywhere(&room, "one");
    operator.leads(&room).await;
    let provider = Scripted::serve(&room).await;

    // The scheduler's pool exists, and has no work yet.
    let models = json!({"models": [provider.entry("gpt", "OpenAIChat")], "scheduling": {"nodeSelector": {"no-such": "label"}}});
    let with = |type_: &str, replicas: usize| {
        let mut spec = models.clone();
        merge(&mut spec, json!({"type": type_, "replicas": replicas}));
        spec
    };
    room.apply_pool("lead", with("scheduler", 0)).await;
    eventually("the reservations of a fifth are in effect, for the namespace and for its Budget", async || {
        let (_, text) = operator.get("/metrics").await?;
        let ours = |line: &&str| line.contains(r#""Reservation""#) && line.contains(&room.namespace) && line.ends_with(" 20000");
        let found: Vec<&str> = text.lines().filter(ours).collect();
        check_state(found.len() == 2, || format!("{found:?}"))
    })
    .await;

    // More workers than the limit of agents: eight have pods, and two are reserved.
    room.apply_pool("flood", with("worker", 30)).await;
    // The pool shows another reason first: its pods fit no node.
    eventually("the waiting agents have the reason", async || {
        let said: Vec<String> =
            room.list::<Agent>().await.iter().filter_map(|agent| Some(condition(agent, "Ready")?.message.clone())).collect();
        let why = "8 have a pod, and 2 more are reserved for pools of type scheduler";
        check_state(said.iter().any(|message| message.contains(why)), || format!("{said:?}"))
    })
    .await;
    let workers = room.standins_of("flood", 8).await;
    let of_workers = calls(&workers).await;
    assert_eq!(calls(&workers).await, 0, "nothing is left for workers");

    room.apply_pool("lead", with("scheduler", 2)).await;
    let schedulers = room.standins_of("lead", 2).await;
    let of_schedulers = calls(&schedulers).await;
    // All calls cost the same. The rest that is too small for a call may be on either side.
    let fifth = (of_workers + of_schedulers) / 5;
    assert!((fifth - 1..=fifth + 1).contains(&of_schedulers), "{of_workers} of workers, {of_schedulers} of schedulers");
    assert_eq!(room.standins_of("flood", 8).await.len(), 8, "and the flood got no more");

    clusters.delete(&room.namespace, &DeleteParams::default()).await.expect("deleted");
    room.close().await;
}
