//! Use of the bulkheads: one log line for each project and minute, and an event when a bulkhead is nearly full or full.
//!
//! Level 0 is a ClusterBudget. Level 1 is its share for a namespace, Budgets and their ResourceQuota. Level 2 is a
//! pool. Queues limit waiting work. A full bulkhead refuses by itself; this module only reports it.
//! `policy::bulkhead_use` decides when.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ResourceQuota;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource as _, ResourceExt};

use crate::api::Budget;
use crate::api::conditions::reasons;
use crate::api::quantity::nanos;
use crate::cluster::ObjectKey;
use crate::controller::capacity::PendingPlaces;
use crate::controller::{Context, Stores};
use crate::policy::budget::{Key as Place, LimitView};
use crate::policy::bulkhead_use::{BulkheadUse, BulkheadUses, Kind, Owner, UseAlert, UseWatch, log_line, percent};

/// Interval between two log lines of a project.
const BULKHEAD_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Facts that are not in the stores.
struct Facts {
    /// The state of the token limits.
    tokens: Vec<(Place, Vec<LimitView>)>,
    /// Queues with the number of their unfinished items, and the allowed number.
    queues: Vec<(ObjectKey, u64, u64)>,
    /// Pools with the number of their living agents, and the allowed number.
    pools: Vec<(ObjectKey, u64, u64)>,
}

/// Reports each minute. Never returns.
pub async fn run(context: Arc<Context>) {
    let mut watch = UseWatch::default();
    loop {
        tokio::time::sleep(BULKHEAD_LOG_INTERVAL).await;
        let facts = Facts { tokens: context.meter.standings(), queues: context.work_index.fullness(), pools: context.fleet.pool_usage() };
        let all = gather(&facts, &context.pending_places, &context.stores);
        for (namespace, uses) in &all {
            log_use(namespace, uses);
        }
        for one in watch.new_alerts(&all) {
            raise(&one, &context).await;
        }
    }
}

/// Writes the log line of one namespace.
fn log_use(namespace: &str, uses: &[BulkheadUse]) {
    let percent = uses.iter().map(|one| one.percent).max().unwrap_or(0);
    let of = |kind| log_line(uses, kind);
    tracing::info!(
        namespace,
        percent,
        tokens = of(Kind::Tokens),
        agents = of(Kind::Agents),
        compute = of(Kind::Compute),
        items = of(Kind::Items),
        pools = of(Kind::Pool),
        "use of bulkheads"
    );
}

/// The namespace and the owner under which a place of the ledger is reported. Shares are included in their owner.
fn owner(place: &Place) -> Option<(String, Owner)> {
    match place {
        Place::Cluster(name) => Some((String::new(), Owner::ClusterBudget(name.clone()))),
        Place::Namespace { cluster, namespace } => Some((namespace.clone(), Owner::ClusterBudget(cluster.clone()))),
        Place::Budget { namespace, name } => Some((namespace.clone(), Owner::Budget(name.clone()))),
        Place::Share { .. } | Place::Agent(_) | Place::Task { .. } => None,
    }
}

fn gather(facts: &Facts, places: &PendingPlaces, stores: &Stores) -> BulkheadUses {
    let mut all = BulkheadUses::new();
    let Facts { tokens, queues, pools } = facts;
    for (place, views) in tokens {
        let Some((namespace, owner)) = owner(place) else { continue };
        let number = |amount: i64| u64::try_from(amount).unwrap_or(0);
        let used = |view: &LimitView| {
            let (used, most) = (number(view.height.saturating_sub(view.left)), number(view.height));
            BulkheadUse::counted(Kind::Tokens, owner.clone(), &view.limit, used, most)
        };
        all.entry(namespace).or_default().extend(views.iter().map(used));
    }
    for (place, used, most) in places.limit_usage(stores) {
        let Some((namespace, owner)) = owner(&place) else { continue };
        all.entry(namespace).or_default().push(BulkheadUse::counted(Kind::Agents, owner, "agents", used, most));
    }
    for quota in stores.quotas.state() {
        let uses = compute(&quota);
        if !uses.is_empty() {
            all.entry(quota.namespace().unwrap_or_default()).or_default().extend(uses);
        }
    }
    for (key, used, most) in queues {
        let used = BulkheadUse::counted(Kind::Items, Owner::Queue(key.name.clone()), "items", *used, *most);
        all.entry(key.namespace.clone()).or_default().push(used);
    }
    for (key, used, most) in pools {
        let used = BulkheadUse::counted(Kind::Pool, Owner::Pool(key.name.clone()), "agents", *used, *most);
        all.entry(key.namespace.clone()).or_default().push(used);
    }
    all
}

/// The use of a Budget's ResourceQuota, as the API server counts it.
fn compute(quota: &ResourceQuota) -> Vec<BulkheadUse> {
    let budget = quota.owner_references().iter().find(|owner| owner.kind == Budget::kind(&()));
    let (Some(budget), Some(status)) = (budget, &quota.status) else { return Vec::new() };
    let amount = |quantity: &Quantity| nanos(quantity).and_then(|nanos| u128::try_from(nanos).ok()).unwrap_or(0);
    let of = |(name, most): (&String, &Quantity)| {
        let used = status.used.as_ref().and_then(|used| used.get(name));
        let (number, text) = used.map_or((0, "0"), |used| (amount(used), used.0.as_str()));
        BulkheadUse {
            kind: Kind::Compute,
            owner: Owner::Budget(budget.name.clone()),
            limit: name.clone(),
            amounts: format!("{text}/{}", most.0),
            percent: percent(number, amount(most)),
        }
    };
    status.hard.iter().flatten().map(of).collect()
}

/// The reason and the message of the event.
fn note(UseAlert { namespace, used, full }: &UseAlert) -> (&'static str, String) {
    let BulkheadUse { kind: _, owner, limit, amounts, percent } = used;
    let of = match owner {
        Owner::ClusterBudget(_) if !namespace.is_empty() => format!(" in namespace {namespace}"),
        Owner::ClusterBudget(_) | Owner::Budget(_) | Owner::Queue(_) | Owner::Pool(_) => String::new(),
    };
    if *full {
        (
            reasons::BULKHEAD_FULL,
            format!("{limit}{of}: {amounts} are used ({percent} %); requests for more are refused until some are free"),
        )
    } else {
        (reasons::BULKHEAD_NEARLY_FULL, format!("{limit}{of}: {amounts} are used ({percent} %)"))
    }
}

async fn raise(reached: &UseAlert, context: &Context) {
    if context.leadership.check().is_err() {
        return; // the new leader reports it
    }
    let (reason, note) = note(reached);
    let (namespace, stores, events) = (reached.namespace.as_str(), &context.stores, &context.events);
    // Events of one object, reason and action are one series: the action tells the limits apart.
    let action = format!("Measure:{}", reached.used.limit);
    match &reached.used.owner {
        Owner::ClusterBudget(name) => {
            if let Some(about) = stores.cluster_budgets.get(&ObjectRef::new(name)) {
                events.warning(about.as_ref(), reason, &action, note).await;
            }
        }
        Owner::Budget(name) => {
            if let Some(about) = stores.budget(namespace, name) {
                events.warning(about.as_ref(), reason, &action, note).await;
            }
        }
        Owner::Queue(name) => {
            if let Some(about) = stores.queues.get(&ObjectRef::new(name).within(namespace)) {
                events.warning(about.as_ref(), reason, &action, note).await;
            }
        }
        // The conditions of a pool say that it has its maximum of agents.
        Owner::Pool(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::policy::budget::{Span, Window};

    const API: &str = "spillway.dev/v1alpha1";

    fn budget(name: &str, spec: &Value) -> Value {
        json!({"apiVersion": API, "kind": "Budget", "metadata": {"name": name, "namespace": "n", "uid": name}, "spec": spec})
    }

    fn stores() -> Stores {
        let owner = json!([{"apiVersion": API, "kind": "Budget", "name": "team", "uid": "team"}]);
        let pool = json!({"apiVersion": API, "kind": "AgentPool", "metadata": {"name": "p", "namespace": "n", "uid": "p"},
            "spec": {"type": "free", "agent": {"image": "x", "command": ["y"]}, "budgetRef": {"name": "team"}}});
        let agent = json!({"apiVersion": API, "kind": "Agent", "metadata": {"name": "a", "namespace": "n"},
            "spec": {"poolRef": {"name": "p"}}, "status": {"phase": "Idle", "podRef": {"name": "a", "uid": "u"}}});
        let cluster = json!({"apiVersion": API, "kind": "ClusterBudget", "metadata": {"name": "c"},
            "spec": {"namespaceSelector": {}, "agents": {"maxTotal": 4}, "perNamespace": {"agents": {"maxConcurrent": 1}}}});
        Stores::of(&[
            budget("team", &json!({"agents": {"maxConcurrent": 2}})),
            cluster,
            pool,
            agent,
            json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "spillway-team", "namespace": "n", "ownerReferences": owner},
                "status": {"hard": {"requests.cpu": "2", "pods": "10"}, "used": {"requests.cpu": "1500m", "pods": "1"}}}),
            // A quota that no Budget owns is not a bulkhead.
            json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "other", "namespace": "m"},
                "status": {"hard": {"pods": "1"}, "used": {"pods": "1"}}}),
        ])
    }

    fn view(limit: &str, height: i64, left: i64) -> LimitView {
        LimitView {
            limit: limit.into(),
            span: Span { window: Window::Hour, index: 0 },
            height,
            used: 0,
            held: 0,
            lost: 0,
            unexplained: 0,
            debt: 0,
            reserved: 0,
            left,
            least: 1,
            paused: false,
            reaping: false,
        }
    }

    #[test]
    fn every_bulkhead_of_a_project_is_on_its_line() {
        let key = |name: &str| ObjectKey { namespace: "n".into(), name: name.into() };
        let facts = Facts {
            tokens: vec![
                (Place::budget("n", "team"), vec![view("hourly", 1000, 150)]),
                (Place::Namespace { cluster: "c".into(), namespace: "n".into() }, vec![view("daily", 100, 0)]),
                (Place::Cluster("c".into()), vec![view("daily", 1000, 900)]),
                (Place::Share { of: Box::new(Place::Cluster("c".into())), name: "s".into() }, vec![view("daily", 1, 0)]),
            ],
            queues: vec![(key("bugs"), 5, 1000)],
            pools: vec![(key("p"), 1, 3)],
        };
        let all = gather(&facts, &PendingPlaces::default(), &stores());
        let told: Vec<String> = all
            .iter()
            .flat_map(|(namespace, uses)| {
                [Kind::Tokens, Kind::Agents, Kind::Compute, Kind::Items, Kind::Pool]
                    .map(|kind| format!("{namespace:?}: {}", log_line(uses, kind)))
            })
            .filter(|line| !line.ends_with(": "))
            .collect();
        assert_eq!(
            told,
            [
                r#""": ClusterBudget/c daily 100/1000 10%"#,
                r#""": ClusterBudget/c agents 1/4 25%"#,
                r#""n": ClusterBudget/c daily 100/100 100%, Budget/team hourly 850/1000 85%"#,
                r#""n": ClusterBudget/c agents 1/1 100%, Budget/team agents 1/2 50%"#,
                r#""n": Budget/team requests.cpu 1500m/2 75%, Budget/team pods 1/10 10%"#,
                r#""n": WorkQueue/bugs items 5/1000 0%"#,
                r#""n": AgentPool/p agents 1/3 33%"#,
            ]
        );
    }

    #[test]
    fn people_are_told_what_is_full_and_where() {
        let of = |namespace: &str, owner, used, full| {
            let used = BulkheadUse::counted(Kind::Agents, owner, "agents", used, 10);
            note(&UseAlert { namespace: namespace.into(), used, full })
        };
        assert_eq!(of("n", Owner::Queue("q".into()), 8, false), ("BulkheadNearlyFull", "agents: 8/10 are used (80 %)".to_owned()));
        let (reason, words) = of("n", Owner::ClusterBudget("c".into()), 10, true);
        assert_eq!(
            (reason, words.as_str()),
            ("BulkheadFull", "agents in namespace n: 10/10 are used (100 %); requests for more are refused until some are free")
        );
    }
}
