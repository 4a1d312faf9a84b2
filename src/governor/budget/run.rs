//! The loops of the governor of tokens: read all records, keep the places up to date, advance the clock, write.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Resource, ResourceExt};
use tokio::sync::mpsc;

use super::availability::{self, KnownPools};
use super::facts::{Project, lifetime, projects, window};
use super::grants::{Target, judge, same, status};
use super::object::Object;
use super::threshold_events;
use super::write::Writer;
use crate::api::agent::AgentTokens;
use crate::api::budget::TokenPolicy;
use crate::api::grant::GrantTargetKind;
use crate::api::names::managers;
use crate::api::{Budget, ClusterBudget, Grant};
use crate::cluster::{ObjectKey, calls};
use crate::controller::Context;
use crate::policy::budget::share::Lifetime;
use crate::policy::budget::{self, Key, LimitView, Window};
use crate::telemetry::{Amounts, Limit};

/// Interval of the clock.
const TICK_INTERVAL: Duration = Duration::from_secs(1);
/// Ticks between two counts of agents.
const TICKS_PER_AGENT_COUNT: u64 = 5;
/// Interval of checks of all objects, when no watch reports a change.
const SPEC_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Changes that come within this time are processed together.
const CHANGE_BATCH_DELAY: Duration = Duration::from_millis(100);
/// Name of this loop in logs and back-offs.
const LOOP_NAME: &str = "grant";
/// Under this name an invalid object is logged once. The controller of Budgets logs it separately.
const TOKENS_LOG_KEY: &str = "tokens";

/// Runs until our leadership ends. `home` is the namespace that Spillway runs in.
pub async fn run(context: Arc<Context>, home: String) {
    read_all(&context);
    plant(&context);
    place_known(&context);
    let untold = grant(&context, &home);
    // Calls do not wait until the status of all Grants is written: there may be many, and the API server may be slow.
    context.meter.open();
    let (done, told) = mpsc::unbounded_channel();
    let stores = context.stores.clone();
    let watched = move |object: &Object| match object {
        Object::Agent(agent) => {
            let stored = stores.agent(&ObjectKey { namespace: agent.namespace.clone(), name: agent.name.clone() })?;
            stored.0.as_ref().ok().map(Object::from)
        }
        // These objects have few other writers.
        Object::Budget(_) | Object::Cluster(_) | Object::Item(_) => None,
    };
    let writer = Writer {
        client: context.client.clone(),
        leadership: context.leadership.clone(),
        meter: context.meter.clone(),
        work_index: context.work_index.clone(),
        done,
        watched: Arc::new(watched),
    };
    futures::join!(writer.run(), threshold_events::run(context.clone(), told), look(context.clone(), home, untold), tick(context));
}

/// Reads every stored record. The stores and the index of work are loaded by now.
fn read_all(context: &Context) {
    let mut objects = Vec::new();
    let (clusters, budgets) = written(context);
    for cluster in clusters {
        objects.push((Key::Cluster(cluster.name_any()), Object::Cluster(cluster)));
    }
    for budget in budgets {
        objects.push((Key::budget(&budget.namespace().unwrap_or_default(), &budget.name_any()), Object::Budget(budget)));
    }
    for agent in context.stores.agents.state() {
        let Ok(agent) = &agent.0 else { continue };
        let recorded = |tokens: &AgentTokens| tokens.ledger.is_some() || tokens.top_ups.is_some();
        if agent.status.as_ref().and_then(|status| status.tokens.as_ref()).is_some_and(recorded) {
            objects.push((Key::Agent(agent.uid().unwrap_or_default()), Object::from(agent)));
        }
    }
    for namespace in context.work_index.namespaces() {
        context.work_index.with(&namespace, |work| {
            for ((_, item), epoch) in work.shares() {
                let share = item.tokens.as_ref().and_then(|tokens| tokens.share.as_ref());
                if share.is_some_and(|share| share.epoch == epoch) {
                    objects.push((Key::Task { item: item.uid.clone(), epoch }, Object::Item(item.clone())));
                }
            }
        });
    }
    tracing::info!(records = objects.len(), "the records of tokens are read");
    context.meter.read_all(objects);
}

/// Agents and items with a record are places from the start: sessions report the tokens that they hold there.
fn place_known(context: &Context) {
    // After a rollback of the store a gateway may replay calls of agents and items that have no record.
    let all = context.recent_rollback().is_some();
    for agent in context.stores.agents.state() {
        let Ok(agent) = &agent.0 else { continue };
        if all || context.meter.knows(&Key::Agent(agent.uid().unwrap_or_default())) {
            context.meter.place_agent(&Object::from(agent), life_of(context, agent));
        }
    }
    for namespace in context.work_index.namespaces() {
        let shares: Vec<_> =
            context.work_index.with(&namespace, |work| work.shares().map(|(share, epoch)| (share.clone(), epoch)).collect());
        for ((tokens, item), epoch) in shares {
            if all || context.meter.knows(&Key::Task { item: item.uid.clone(), epoch }) {
                context.meter.place_task(&Object::Item(item), epoch, tokens);
            }
        }
    }
}

/// The lifetime of an agent by the spec of its pool, or by its status if the pool does not exist.
fn life_of(context: &Context, agent: &crate::api::Agent) -> Lifetime {
    let namespace = agent.namespace().unwrap_or_default();
    let defaults = context.meter.defaults(&namespace);
    let pool = context.stores.pool(&namespace, &agent.spec.pool_ref.name);
    match pool.as_ref().and_then(|pool| pool.0.as_ref().ok()) {
        Some(pool) => lifetime(pool.spec.bulkhead.as_ref(), defaults.as_ref(), 0),
        None => {
            let tokens = agent.status.as_ref().and_then(|status| status.tokens.as_ref()).and_then(|tokens| tokens.limit).unwrap_or(0);
            Lifetime { tokens, top_up: 0, max: 0, taken: 0 }
        }
    }
}

fn written(context: &Context) -> (Vec<Arc<ClusterBudget>>, Vec<Arc<Budget>>) {
    let clusters = context.stores.cluster_budgets.state().into_iter().filter_map(|cluster| match &cluster.0 {
        Ok(cluster) => Some(Arc::new(cluster.clone())),
        Err(invalid) => {
            log_invalid(context, &ObjectKey { namespace: String::new(), name: cluster.name_any() }, &invalid.error);
            None
        }
    });
    let clusters = clusters.collect();
    let budgets = context.stores.budgets.state().into_iter().filter_map(|budget| match &budget.0 {
        Ok(budget) => Some(Arc::new(budget.clone())),
        Err(invalid) => {
            log_invalid(context, &ObjectKey::of(budget.as_ref()), &invalid.error);
            None
        }
    });
    (clusters, budgets.collect())
}

fn log_invalid(context: &Context, key: &ObjectKey, error: &str) {
    if context.is_new_error(TOKENS_LOG_KEY, key.clone(), error) {
        tracing::error!(namespace = %key.namespace, budget = %key.name, error, "a stored budget does not fit its type; calls below it are refused");
    }
}

/// Updates the places from the objects.
fn plant(context: &Context) {
    let (clusters, budgets) = written(context);
    let mut pool_types: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for pool in context.stores.pools.state().iter().filter(|pool| pool.meta().deletion_timestamp.is_none()) {
        let Ok(pool) = &pool.0 else { continue };
        pool_types.entry(pool.namespace().unwrap_or_default()).or_default().insert(pool.spec.type_.clone());
    }
    let known: BTreeMap<String, Project> = context
        .stores
        .namespaces
        .state()
        .into_iter()
        .map(|namespace| {
            let created = namespace.creation_timestamp().map_or(0, |time| time.0.as_millisecond());
            let pool_types = pool_types.remove(&namespace.name_any()).unwrap_or_default();
            (namespace.name_any(), Project { labels: namespace.labels().clone(), created, pool_types })
        })
        .collect();
    let pools = context.stores.pools.state().into_iter().filter_map(|pool| pool.namespace());
    let with_budgets = budgets.iter().filter_map(|budget| budget.namespace());
    let projects = projects(&known, pools.chain(with_budgets));
    context.meter.set_tree(&clusters, &budgets, &projects);
}

async fn look(context: Arc<Context>, home: String, mut untold: Vec<PendingGrant>) {
    loop {
        for (grant, conditions) in untold {
            publish(&context, &grant, &conditions).await;
        }
        tokio::time::sleep(CHANGE_BATCH_DELAY).await;
        tokio::select! {
            () = context.stores.limits_changed.notified() => {}
            () = context.meter.until_stale() => {}
            () = tokio::time::sleep(SPEC_CHECK_INTERVAL) => {}
        }
        plant(&context);
        untold = grant(&context, &home);
    }
}

/// The target of a Grant.
fn target(context: &Context, grant: &Grant, home: &str) -> Target {
    let namespace = grant.namespace().unwrap_or_default();
    let name = &grant.spec.target_ref.name;
    let limit = |policy: Option<&TokenPolicy>, key: Key| {
        let wanted = grant.spec.limit_name.as_deref().unwrap_or_default();
        let own = policy.into_iter().flat_map(|policy| policy.limits.iter().flatten()).find(|limit| limit.name == wanted);
        // A limit that the spec does not contain may come from the defaults.
        let counted = context.meter.views(&key).into_iter().find(|view| view.limit == wanted).map(|view| view.span.window);
        match own.map(|limit| window(limit.window)).or(counted) {
            Some(window) => Target::Limit(key, window),
            None => Target::NoSuchLimit,
        }
    };
    match grant.spec.target_ref.kind {
        GrantTargetKind::Agent => match context.stores.agent(&ObjectKey { namespace, name: name.clone() }) {
            Some(agent) => Target::Limit(Key::Agent(agent.uid().unwrap_or_default()), Window::Lifetime),
            None => Target::Missing,
        },
        GrantTargetKind::Budget => match context.stores.budget(&namespace, name).as_ref().and_then(|budget| budget.0.as_ref().ok()) {
            Some(budget) => limit(budget.spec.tokens.as_ref(), Key::budget(&namespace, name)),
            None => Target::Missing,
        },
        GrantTargetKind::ClusterBudget if namespace != home => Target::NotPermitted,
        GrantTargetKind::ClusterBudget => {
            let found = context.stores.cluster_budgets.state().into_iter().find(|cluster| cluster.name_any() == *name);
            match found.as_ref().and_then(|cluster| cluster.0.as_ref().ok()) {
                Some(cluster) => limit(cluster.spec.tokens.as_ref(), Key::Cluster(name.clone())),
                None => Target::Missing,
            }
        }
    }
}

/// A Grant, and the conditions to write.
type PendingGrant = (Grant, Vec<Condition>);

/// Judges all Grants, and counts those whose stored status says so. Returns those whose status must be written.
fn grant(context: &Context, home: &str) -> Vec<PendingGrant> {
    // Uses the clock of the windows: with another clock a Grant might begin in a window that is already over.
    let now = context.meter.time();
    let mut untold = Vec::new();
    let mut counts: BTreeMap<Key, Vec<budget::Grant>> = BTreeMap::new();
    for stored in context.stores.grants.state() {
        let Ok(grant) = &stored.0 else { continue };
        let target = target(context, grant, home);
        let judged = judge(grant, &target, now);
        // A target without any Grant that counts gets an empty list.
        if let Target::Limit(key, _) = &target {
            counts.entry(key.clone()).or_default().extend(judged.counts.map(|(_, grant)| grant));
        }
        let conditions = grant.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
        if !same(&conditions, &judged.conditions) {
            untold.push((grant.clone(), judged.conditions));
        }
    }
    context.meter.set_grants(counts);
    untold
}

async fn publish(context: &Context, grant: &Grant, conditions: &[Condition]) {
    let key = ObjectKey::of(grant);
    if context.leadership.check().is_err() {
        return;
    }
    let api = context.api::<Grant>(&key.namespace);
    let version = grant.resource_version();
    let result = calls::apply_status(&api, &key.name, managers::GOVERNOR, version.as_deref(), &status(grant, conditions)).await;
    match result {
        Ok(_) => context.succeeded(LOOP_NAME, &key),
        // It is tried again at the next check.
        Err(error) => drop(context.record_failure(LOOP_NAME, key, &error)),
    }
}

async fn tick(context: Arc<Context>) {
    let mut ticks = tokio::time::interval(TICK_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut known, mut rounds) = (KnownPools::new(), 0_u64);
    loop {
        ticks.tick().await;
        for session in context.meter.tick() {
            tracing::warn!(session, "a gateway's session was silent for too long: the tokens that it holds are charged as lost");
            context.circuits.session_died(&session);
        }
        availability::look(&context, &mut known);
        context.meter.hurry();
        if rounds.is_multiple_of(TICKS_PER_AGENT_COUNT) {
            context.meter.set_agents(context.pending_places.counted(&context.stores));
        }
        rounds += 1;
        context.metrics.estimated(context.meter.estimates());
        context.meter.restate();
        let agents: HashSet<String> = context.stores.agents.state().iter().filter_map(|agent| agent.uid()).collect();
        let leases = context.work_index.leases();
        context.meter.tidy(|key| match key {
            Key::Agent(uid) => agents.contains(uid),
            Key::Task { item, epoch } => leases.contains(&(item.clone(), *epoch)),
            Key::Cluster(_) | Key::Namespace { .. } | Key::Budget { .. } | Key::Share { .. } => true,
        });
        context.meter.keep_items(|known| context.work_index.living(known));
        let standings = context.meter.standings();
        context.metrics.budgets(standings.iter().flat_map(|(key, views)| views.iter().map(move |view| measured(key, view))));
    }
}

/// The metrics of a limit.
fn measured(key: &Key, view: &LimitView) -> (Limit, Amounts) {
    let (kind, namespace, name) = match key {
        Key::Cluster(name) => ("ClusterBudget", "", name.clone()),
        Key::Namespace { cluster, namespace } => ("Namespace", namespace.as_str(), cluster.clone()),
        Key::Budget { namespace, name } => ("Budget", namespace.as_str(), name.clone()),
        Key::Share { of, name } => match of.as_ref() {
            Key::Budget { namespace, name: budget } => ("Reservation", namespace.as_str(), format!("{budget}/{name}")),
            Key::Namespace { namespace, cluster } => ("Reservation", namespace.as_str(), format!("{cluster}/{name}")),
            Key::Cluster(cluster) => ("Reservation", "", format!("{cluster}/{name}")),
            Key::Share { .. } | Key::Agent(_) | Key::Task { .. } => ("Reservation", "", name.clone()),
        },
        Key::Agent(uid) => ("Agent", "", uid.clone()),
        Key::Task { item, .. } => ("Item", "", item.clone()),
    };
    let labels = Limit { kind, namespace: namespace.to_owned(), name, limit: view.limit.clone() };
    let LimitView { height, used, held, lost, debt: carried, .. } = view;
    (labels, Amounts { limit: *height, used: *used, held: *held, debt: *carried, lost: *lost })
}
