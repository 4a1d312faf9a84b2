//! Budgets without tokens: ResourceQuota and LimitRange, agents at once, and the default Budget.

use k8s_openapi::api::core::v1::{LimitRange, Pod, ResourceQuota};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use spillway::api::{AgentPool, Budget};

use crate::support::{TestNamespace, check_state, eventually, test_namespace::is_live};

async fn apply_budget(room: &TestNamespace, name: &str, spec: Value) {
    let object = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Budget", "metadata": {"name": name}, "spec": spec});
    room.api::<Budget>().patch(name, &PatchParams::apply("e2e").force(), &Patch::Apply(object)).await.expect("the Budget is accepted");
}

/// Waits until the condition of the Budget has this status for the current generation; returns its reason and message.
async fn budget_says(room: &TestNamespace, name: &str, type_: &str, status: &str) -> (String, String) {
    eventually(&format!("{name} says {type_}={status}"), async || {
        let budget = room.api::<Budget>().get(name).await.map_err(|error| error.to_string())?;
        let conditions = budget.status.map(|status| status.conditions).unwrap_or_default();
        let found = conditions.iter().find(|condition| {
            condition.type_ == type_ && condition.status == status && condition.observed_generation == budget.metadata.generation
        });
        found.map(|found| (found.reason.clone(), found.message.clone())).ok_or_else(|| format!("{conditions:?}"))
    })
    .await
}

async fn gone<K>(room: &TestNamespace, name: &str)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + std::fmt::Debug,
{
    eventually(&format!("{}/{name} is gone", K::kind(&())), async || {
        let left = room.api::<K>().get_opt(name).await.map_err(|error| error.to_string())?;
        check_state(left.is_none(), || "it is there".into())
    })
    .await;
}

async fn quota_says(room: &TestNamespace, name: &str, pods: &str) {
    eventually(&format!("ResourceQuota/{name} says pods {pods}"), async || {
        let quota = room.api::<ResourceQuota>().get(name).await.map_err(|error| error.to_string())?;
        let hard = quota.spec.and_then(|spec| spec.hard).unwrap_or_default();
        check_state(hard.get("pods").is_some_and(|stored| stored.0 == pods), || format!("{hard:?}"))
    })
    .await;
}

/// Waits until the quota of the Budget `team` is enforced.
async fn quota_counts(room: &TestNamespace) {
    eventually("the quota is counted", async || {
        let quota = room.api::<ResourceQuota>().get("spillway-team").await.map_err(|error| error.to_string())?;
        check_state(quota.status.and_then(|status| status.hard).is_some_and(|hard| !hard.is_empty()), || "not yet".into())
    })
    .await;
}

async fn live_pods(room: &TestNamespace) -> usize {
    room.list::<Pod>().await.iter().filter(|pod| is_live(pod)).count()
}

#[tokio::test]
async fn compute_of_a_budget_is_applied_repaired_and_removed() {
    let room = TestNamespace::open("compute").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    let spec = json!({"compute": {"hard": {"pods": "50", "requests.cpu": "2000m"}, "perAgent": {"max": {"memory": "4096Mi"}}}});
    apply_budget(&room, "team", spec).await;
    let (reason, message) = budget_says(&room, "team", "QuotaApplied", "True").await;
    assert_eq!(reason, "Applied");
    assert!(message.contains("ResourceQuota/spillway-team: pods 50") && message.contains("LimitRange/spillway-team"), "{message}");
    quota_says(&room, "spillway-team", "50").await;
    let settled = room.api::<ResourceQuota>().get("spillway-team").await.expect("the quota").resource_version();

    let drift = json!({"spec": {"hard": {"pods": "999"}}});
    room.api::<ResourceQuota>().patch("spillway-team", &PatchParams::default(), &Patch::Merge(drift)).await.expect("changed by hand");
    quota_says(&room, "spillway-team", "50").await;
    let ranges = room.api::<LimitRange>();
    ranges.delete("spillway-team", &DeleteParams::default()).await.expect("deleted by hand");
    eventually("the LimitRange is back", async || ranges.get("spillway-team").await.map(drop).map_err(|error| error.to_string())).await;
    assert_ne!(room.api::<ResourceQuota>().get("spillway-team").await.expect("the quota").resource_version(), settled);

    apply_budget(&room, "team", json!({"compute": {"hard": {"pods": "50"}}})).await;
    gone::<LimitRange>(&room, "spillway-team").await;
    eventually("quota and limits that the Budget does not set any more are removed", async || {
        let hard =
            room.api::<ResourceQuota>().get("spillway-team").await.map_err(|error| error.to_string())?.spec.and_then(|spec| spec.hard);
        let hard = hard.unwrap_or_default();
        check_state(hard.len() == 1, || format!("{hard:?}"))
    })
    .await;
    apply_budget(&room, "team", json!({"tokens": {"limits": [{"name": "daily", "tokens": 1000, "window": "Day"}]}})).await;
    gone::<ResourceQuota>(&room, "spillway-team").await;
    apply_budget(&room, "team", json!({"compute": {"hard": {"pods": "50"}}})).await;
    quota_says(&room, "spillway-team", "50").await;
    room.api::<Budget>().delete("team", &DeleteParams::default()).await.expect("deleted");
    gone::<ResourceQuota>(&room, "spillway-team").await;
    room.close().await;
}

#[tokio::test]
async fn of_two_budgets_with_compute_the_older_binds() {
    let room = TestNamespace::open("two-budgets").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    let compute = json!({"compute": {"hard": {"pods": "40"}}});
    // The older one wins, and with the same time the first by name. Here both give the same one.
    apply_budget(&room, "a-first", compute.clone()).await;
    budget_says(&room, "a-first", "QuotaApplied", "True").await;
    apply_budget(&room, "b-second", compute).await;
    let (reason, message) = budget_says(&room, "b-second", "Stalled", "True").await;
    assert_eq!(reason, "ComputeConflict");
    assert!(message.contains("Budget/a-first"), "{message}");
    assert_eq!(budget_says(&room, "b-second", "QuotaApplied", "False").await.0, "ComputeConflict");
    assert!(room.api::<ResourceQuota>().get_opt("spillway-b-second").await.expect("an answer").is_none());
    room.api::<Budget>().delete("a-first", &DeleteParams::default()).await.expect("deleted");
    budget_says(&room, "b-second", "QuotaApplied", "True").await;
    quota_says(&room, "spillway-b-second", "40").await;
    gone::<ResourceQuota>(&room, "spillway-a-first").await;
    room.close().await;
}

#[tokio::test]
async fn a_quota_of_somebody_else_is_not_taken_over() {
    let room = TestNamespace::open("foreign-quota").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    let theirs: ResourceQuota =
        serde_json::from_value(json!({"metadata": {"name": "spillway-team"}, "spec": {"hard": {"pods": "30"}}})).expect("a quota");
    room.api::<ResourceQuota>().create(&Default::default(), &theirs).await.expect("made");
    apply_budget(&room, "team", json!({"compute": {"hard": {"pods": "50"}}})).await;
    assert_eq!(budget_says(&room, "team", "QuotaApplied", "False").await.0, "NameTaken");
    quota_says(&room, "spillway-team", "30").await;
    room.api::<ResourceQuota>().delete("spillway-team", &DeleteParams::default()).await.expect("deleted");
    budget_says(&room, "team", "QuotaApplied", "True").await;
    quota_says(&room, "spillway-team", "50").await;
    room.close().await;
}

#[tokio::test]
async fn a_pool_goes_on_by_itself_when_its_budget_raises_the_quota() {
    let room = TestNamespace::open("quota-raised").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    apply_budget(&room, "team", json!({"compute": {"hard": {"pods": "1"}}})).await;
    quota_counts(&room).await;
    room.apply_pool("free", json!({"replicas": 3, "budgetRef": {"name": "team"}})).await;
    let (reason, message) = room.pool_says("free", "Blocked", "True").await;
    assert_eq!(reason, "QuotaExceeded");
    assert!(message.contains("exceeded quota: spillway-team"), "{message}");
    apply_budget(&room, "team", json!({"compute": {"hard": {"pods": "10"}}})).await;
    room.pool_says("free", "Ready", "True").await;
    room.pods_ready(3).await;
    room.close().await;
}

#[tokio::test]
async fn a_pool_goes_on_by_itself_when_another_leaves_the_quota() {
    let room = TestNamespace::open("quota-left").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    apply_budget(&room, "team", json!({"compute": {"hard": {"pods": "2"}}})).await;
    quota_counts(&room).await;
    room.apply_pool("first", json!({"replicas": 2, "budgetRef": {"name": "team"}})).await;
    room.pool_says("first", "Ready", "True").await;
    room.apply_pool("second", json!({"replicas": 1, "budgetRef": {"name": "team"}})).await;
    let (reason, message) = room.pool_says("second", "Blocked", "True").await;
    assert_eq!(reason, "QuotaExceeded");
    assert!(message.contains("exceeded quota: spillway-team"), "{message}");
    let down = json!({"spec": {"replicas": 1}});
    room.api::<AgentPool>().patch("first", &PatchParams::default(), &Patch::Merge(down)).await.expect("scaled down");
    room.pool_says("second", "Ready", "True").await;
    room.pool_says("second", "Blocked", "False").await;
    room.pods_ready(2).await;
    room.close().await;
}

#[tokio::test]
async fn no_more_agents_than_a_budget_allows_over_two_pools() {
    let room = TestNamespace::open("concurrent").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    apply_budget(&room, "team", json!({"agents": {"maxConcurrent": 3}})).await;
    apply_budget(&room, "part", json!({"parentRef": {"name": "team"}})).await;
    room.apply_pool("one", json!({"replicas": 3, "budgetRef": {"name": "team"}})).await;
    room.apply_pool("two", json!({"replicas": 3, "budgetRef": {"name": "part"}})).await;
    // The pool that waits shows the reason, with the numbers.
    eventually("a pool is blocked, and there never are more than three", async || {
        let live = live_pods(&room).await;
        assert!(live <= 3, "{live} pods");
        let pools = [room.pool("one").await, room.pool("two").await];
        let reasons: Vec<String> = pools.into_iter().filter_map(|pool| pool.status?.reason).collect();
        check_state(live == 3 && reasons.iter().any(|reason| reason == "BudgetExhausted"), || format!("{live} {reasons:?}"))
    })
    .await;
    let blocked =
        if room.pool("two").await.status.and_then(|status| status.reason).as_deref() == Some("BudgetExhausted") { "two" } else { "one" };
    let (_, message) = room.pool_says(blocked, "Blocked", "True").await;
    assert!(message.contains("Budget/team allows 3 agents at once (spec.agents.maxConcurrent), and 3 have a pod"), "{message}");

    // A pool that needs no agents leaves its capacity to the other.
    let other = if blocked == "two" { "one" } else { "two" };
    let down = json!({"spec": {"replicas": 0}});
    room.api::<AgentPool>().patch(other, &PatchParams::default(), &Patch::Merge(down)).await.expect("scaled down");
    eventually("the blocked pool gets the free agents", async || {
        let live = live_pods(&room).await;
        assert!(live <= 3, "{live} pods");
        let status = room.pool(blocked).await.status.unwrap_or_default();
        check_state(status.reason.as_deref() == Some("ReplicasSet"), || format!("{live} {status:?}"))
    })
    .await;
    apply_budget(&room, "team", json!({"agents": {"maxConcurrent": 9}})).await;
    let up = json!({"spec": {"replicas": 3}});
    room.api::<AgentPool>().patch(other, &PatchParams::default(), &Patch::Merge(up)).await.expect("scaled up");
    room.pods_ready(6).await;
    room.close().await;
}

#[tokio::test]
async fn a_namespace_without_a_budget_gets_one_that_goes_with_its_last_pool() {
    let room = TestNamespace::open("default-budget").await;
    let operator = room.operator("one");
    operator.leads(&room).await;
    room.apply_pool("free", json!({"replicas": 1})).await;
    let made =
        eventually("Budget/default is made", async || room.api::<Budget>().get("default").await.map_err(|error| error.to_string())).await;
    assert!(made.spec.tokens.is_none() && made.annotations().contains_key("spillway.dev/default"));
    // A GitOps tool can apply its own Budget over it without a conflict.
    let object =
        json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Budget", "metadata": {"name": "default"}, "spec": {"mode": "Observe"}});
    let gently = PatchParams { dry_run: true, ..PatchParams::apply("gitops") };
    room.api::<Budget>().patch("default", &gently, &Patch::Apply(object)).await.expect("no conflict");
    room.api::<AgentPool>().delete("free", &DeleteParams::default()).await.expect("deleted");
    gone::<Budget>(&room, "default").await;
    room.close().await;
}
