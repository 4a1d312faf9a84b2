//! The limits of budgets on pods: `agents.maxConcurrent` of the pool's Budget and its parents, the limits of
//! ClusterBudgets for each namespace and for all together, and which namespaces are projects. Also the limits on
//! pending work, and in [`artifacts`] those on artifacts.
//!
//! There are never more pods than a limit allows, although many reconciles create pods at a time, from caches that lag:
//! * a reconcile reserves a place before it creates a pod, under one lock for all namespaces; the place counts from
//!   then on;
//! * a place is kept until the cache of Agents shows the recorded pod (from then on the Agent counts), or the API
//!   server refused the pod, or the Agent is gone. A lost response keeps the place, because the pod may exist;
//! * all other data that lags counts too much, not too little: a pod counts while the cache shows it, and so does an
//!   Agent with a recorded pod until it ended, even if the cache does not show the pod;
//! * a new leader lists pods after its election, when requests of the old leader are answered or were refused. A create
//!   request that arrives even later makes a pod that no Agent records: it never registers, its program never starts,
//!   and it is deleted.
//!
//! Agents without a pod (stopped, hibernated, refused) hold no place. A volume counts as long as its Agent has it.

mod artifacts;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::core::{Selector, SelectorExt};
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};

pub use self::artifacts::artifact_limits;
use super::stores::{BudgetObject, Stores};
use crate::api::budget::{self, AgentLimits};
use crate::api::quantity::units;
use crate::api::shared::Mode;
use crate::api::{Agent, AgentPool, Budget, ClusterBudget, names};
use crate::cluster::ObjectKey;
use crate::policy::agent::{Hindrance, HindranceKind};
use crate::policy::budget::{Key as Place, MAX_BUDGET_DEPTH};
use crate::policy::capacity::{
    Amounts, BudgetPath, CapacityHolder, Limit, LimitScope, LimitedResource, Project, Reservation, exceeds_max_projects, first_full_limit,
};
use crate::policy::work::admission::ProjectLimit;

/// A ClusterBudget's field with the number of projects.
const PROJECTS_MAX_FIELD: &str = "spec.projects.max";

/// Places that are reserved, and that the caches do not show yet.
#[derive(Debug, Default)]
pub struct PendingPlaces(Mutex<HashMap<ObjectKey, CapacityHolder>>);

impl PendingPlaces {
    /// Reserves a place for the pod of an Agent of `pool`, or returns what prevents that.
    pub fn reserve(&self, key: &ObjectKey, pool: &AgentPool, amounts: Amounts, stores: &Stores) -> Result<(), Hindrance> {
        let mut given = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        given.retain(|key, _| is_reservation_pending(key, stores));
        let namespace = key.namespace.clone();
        let path = path(pool, stores)?;
        let (budgets, pool_type) = (BudgetPath::Known(path.clone()), Some(pool.spec.type_.clone()));
        let asks = CapacityHolder { namespace: namespace.clone(), budgets, pool_type, amounts };
        let clusters = clusters_over(&namespace, stores);
        let limits = limits(&namespace, &path, &clusters, stores);
        if !limits.is_empty() || clusters.iter().any(|cluster| projects_max(&cluster.budget).is_some()) {
            let mut holders = holders(&given, stores);
            holders.remove(key);
            let holders: Vec<CapacityHolder> = holders.into_values().collect();
            if let Some(words) = project_full(&namespace, &clusters, &holders, stores) {
                return Err(Hindrance { kind: HindranceKind::ProjectLimit, message: words });
            }
            if let Some(full) = first_full_limit(limits, &holders, &asks) {
                return Err(Hindrance { kind: HindranceKind::BudgetExhausted, message: full.to_string() });
            }
        }
        given.insert(key.clone(), asks);
        Ok(())
    }

    /// The number of agents with a pod of each Budget, each ClusterBudget, and each namespace of a ClusterBudget. Those
    /// without agents are absent.
    pub fn counted(&self, stores: &Stores) -> BTreeMap<Place, u64> {
        let given = {
            let mut given = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            given.retain(|key, _| is_reservation_pending(key, stores));
            given.clone()
        };
        let mut clusters: HashMap<String, Vec<String>> = HashMap::new();
        let mut counted: BTreeMap<Place, u64> = BTreeMap::new();
        for CapacityHolder { namespace, budgets, pool_type: _, amounts } in holders(&given, stores).into_values() {
            let budgets = match budgets {
                BudgetPath::Known(budgets) => budgets,
                BudgetPath::All => stores.budgets_of(&namespace).iter().map(|budget| budget.name_any()).collect(),
            };
            let over = clusters
                .entry(namespace.clone())
                .or_insert_with(|| clusters_over(&namespace, stores).iter().map(|cluster| cluster.budget.name_any()).collect());
            let budgets = budgets.iter().map(|name| Place::budget(&namespace, name));
            let above = over.iter().flat_map(|cluster| {
                [Place::Cluster(cluster.clone()), Place::Namespace { cluster: cluster.clone(), namespace: namespace.clone() }]
            });
            for place in budgets.chain(above) {
                let count = counted.entry(place).or_default();
                *count = count.saturating_add(amounts.agents);
            }
        }
        counted
    }

    /// The number of agents with a pod, and its limit, of each Budget, each ClusterBudget, and each namespace of a
    /// ClusterBudget that has both.
    pub fn limit_usage(&self, stores: &Stores) -> Vec<(Place, u64, u64)> {
        let cluster = |name: &str| {
            let object = stores.cluster_budgets.get(&ObjectRef::new(name))?;
            object.0.as_ref().ok().map(|budget| budget.spec.clone())
        };
        let most = |place: &Place| match place {
            Place::Budget { namespace, name } => {
                budget_limit(namespace, name, &clusters_over(namespace, stores), stores).map(|limit| limit.max)
            }
            Place::Cluster(name) => cluster(name)?.agents?.max_total.and_then(|max| u64::try_from(max).ok()),
            Place::Namespace { cluster: name, .. } => {
                cluster(name)?.per_namespace?.agents?.max_concurrent.and_then(|max| u64::try_from(max).ok())
            }
            Place::Share { .. } | Place::Agent(_) | Place::Task { .. } => None,
        };
        self.counted(stores).into_iter().filter_map(|(place, used)| most(&place).map(|most| (place, used, most))).collect()
    }

    /// Releases the place of a pod that was not created and will not be.
    pub fn release(&self, key: &ObjectKey) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

/// Whether a reserved place is kept: the Agent exists, and the cache does not show its recorded pod.
fn is_reservation_pending(key: &ObjectKey, stores: &Stores) -> bool {
    stores.agent(key).is_some_and(|agent| agent.0.as_ref().is_ok_and(|agent| recorded(agent).is_none() && !holds_no_pod(agent)))
}

fn recorded(agent: &Agent) -> Option<&str> {
    agent.status.as_ref()?.pod_ref.as_ref().map(|pod| pod.uid.as_str())
}

/// Whether the agent ended, or is hibernated and has no pod.
fn holds_no_pod(agent: &Agent) -> bool {
    agent.has_ended() || (agent.spec.hibernated == Some(true) && recorded(agent).is_none())
}

/// What each agent holds, including reserved places.
fn holders(given: &HashMap<ObjectKey, CapacityHolder>, stores: &Stores) -> HashMap<ObjectKey, CapacityHolder> {
    let mut all: HashMap<ObjectKey, CapacityHolder> = given.clone();
    let mut known: HashMap<(String, String), CapacityHolder> = HashMap::new();
    // A holder of the pool, before its amounts are known.
    let mut of_pool = |namespace: &str, pool: &str| {
        known.entry((namespace.to_owned(), pool.to_owned())).or_insert_with(|| holder_of(namespace, pool, stores)).clone()
    };
    for object in stores.agents.state() {
        let Ok(agent) = &object.0 else { continue }; // its pod, if it has one, is counted below
        let key = ObjectKey::of(agent);
        let with_pod = recorded(agent).is_some() && !holds_no_pod(agent);
        let storage = agent
            .status
            .as_ref()
            .and_then(|status| status.claim_ref.as_ref())
            .filter(|_| !agent.has_ended())
            .map_or(0, |_| agent_storage(agent, stores));
        if with_pod || storage > 0 {
            let holder = all.entry(key.clone()).or_insert_with(|| of_pool(&key.namespace, &agent.spec.pool_ref.name));
            holder.amounts.agents = holder.amounts.agents.max(u64::from(with_pod));
            holder.amounts.storage = holder.amounts.storage.max(storage);
        }
    }
    for pod in stores.pods.state().iter().filter(|pod| !has_pod_ended(pod)) {
        let key = ObjectKey::of(pod.as_ref());
        let pool = stores.agent(&key).and_then(|agent| agent.0.as_ref().ok().map(|agent| agent.spec.pool_ref.name.clone()));
        let pool = pool.or_else(|| pod.labels().get(names::POOL_LABEL).cloned()).unwrap_or_default();
        let holder = all.entry(key.clone()).or_insert_with(|| of_pool(&key.namespace, &pool));
        holder.amounts.agents = 1;
        holder.amounts.memory = holder.amounts.memory.max(memory_of(pod));
    }
    all
}

/// Whether all containers of a pod ended.
pub fn has_pod_ended(pod: &Pod) -> bool {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).is_some_and(|phase| matches!(phase, "Succeeded" | "Failed"))
}

/// The memory limit of a cached pod: the sum of its containers, which the watch keeps in the resources of the pod
/// itself.
fn memory_of(pod: &Pod) -> u64 {
    pod.spec.as_ref().and_then(|spec| limit_of(spec.resources.as_ref())).map_or(0, units)
}

fn limit_of(resources: Option<&ResourceRequirements>) -> Option<&Quantity> {
    resources?.limits.as_ref()?.get("memory")
}

/// The sum of the memory limits of all containers. Init containers count too, because sidecars keep running.
pub fn total_memory_limit(pod: &Pod) -> u64 {
    let spec = pod.spec.as_ref();
    let containers = spec.into_iter().flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
    containers.filter_map(|container| limit_of(container.resources.as_ref())).map(units).fold(0, u64::saturating_add)
}

/// The same, as resources of the pod itself.
pub fn pod_memory_resources(memory: u64) -> ResourceRequirements {
    ResourceRequirements { limits: Some([("memory".to_owned(), Quantity(memory.to_string()))].into()), ..ResourceRequirements::default() }
}

/// The storage that a claim requests, in bytes.
pub fn requested_storage(claim: &PersistentVolumeClaim) -> u64 {
    let asked = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref()?.get("storage"));
    asked.map_or(0, units)
}

fn agent_storage(agent: &Agent, stores: &Stores) -> u64 {
    let pool = stores.pool(&agent.namespace().unwrap_or_default(), &agent.spec.pool_ref.name);
    let pool = pool.as_ref().and_then(|pool| pool.0.as_ref().ok());
    pool.and_then(|pool| super::agent::claim_of(agent, pool)).as_ref().map_or(0, requested_storage)
}

/// A holder for an agent of this pool, without amounts: the Budgets that count it (all of the namespace if they are
/// unknown), and the pool's type.
fn holder_of(namespace: &str, pool: &str, stores: &Stores) -> CapacityHolder {
    let pool = stores.pool(namespace, pool);
    let pool = pool.as_ref().and_then(|pool| pool.0.as_ref().ok());
    let budgets = pool.and_then(|pool| path(pool, stores).ok()).map_or(BudgetPath::All, BudgetPath::Known);
    let pool_type = pool.map(|pool| pool.spec.type_.clone());
    CapacityHolder { namespace: namespace.to_owned(), budgets, pool_type, amounts: Amounts::default() }
}

/// The pool's Budget and its parents, or why not all are known.
fn path(pool: &AgentPool, stores: &Stores) -> Result<Vec<String>, Hindrance> {
    match known_path(pool, stores) {
        (path, None) => Ok(path),
        (_, Some(hindrance)) => Err(hindrance),
    }
}

/// The pool's Budget and its parents as far as they are known, and why the others are not. The limits of a Budget that
/// does not fit its type are unknown.
fn known_path(pool: &AgentPool, stores: &Stores) -> (Vec<String>, Option<Hindrance>) {
    let namespace = pool.namespace().unwrap_or_default();
    let mut next = Some(pool.spec.budget_ref.as_ref().map_or(names::DEFAULT_OBJECT_NAME, |budget| &budget.name).to_owned());
    let mut path = Vec::new();
    // A cycle ends at the first Budget that repeats.
    while let Some(name) = next.take().filter(|name| !path.contains(name)) {
        let Some(budget) = stores.budgets.get(&ObjectRef::new(&name).within(&namespace)) else { break };
        if let Some(lowest) = path.first().filter(|_| path.len() == MAX_BUDGET_DEPTH) {
            let message = format!(
                "Budget/{lowest} allows no pods: its chain of parents (spec.parentRef) has more than {MAX_BUDGET_DEPTH} Budgets. Remove spec.parentRef from one of them"
            );
            return (path, Some(Hindrance { kind: HindranceKind::BudgetExhausted, message }));
        }
        let Ok(budget) = &budget.0 else {
            let message = format!("Budget/{name} does not fit its type. Its events say why");
            return (path, Some(Hindrance { kind: HindranceKind::Unsupported, message }));
        };
        next = budget.spec.parent_ref.as_ref().map(|parent| parent.name.clone());
        path.push(name);
    }
    (path, None)
}

/// A ClusterBudget and the namespaces that it binds.
struct Cluster {
    budget: ClusterBudget,
    selector: Selector,
}

impl Cluster {
    fn name(&self) -> String {
        format!("{}/{}", ClusterBudget::kind(&()), self.budget.name_any())
    }

    /// All ClusterBudgets bind a namespace that is not known yet: too much is counted rather than too little.
    fn binds(&self, namespace: &str, stores: &Stores) -> bool {
        let known = stores.namespaces.get(&ObjectRef::new(namespace));
        known.is_none_or(|known| self.selector.matches(known.metadata.labels.as_ref().unwrap_or(&BTreeMap::new())))
    }
}

/// All ClusterBudgets that bind a namespace. Each of them must have room.
fn clusters_over(namespace: &str, stores: &Stores) -> Vec<Cluster> {
    let all = stores.cluster_budgets.state();
    let readable = all.iter().filter_map(|object| object.0.as_ref().ok());
    let clusters = readable.filter_map(|budget| {
        let selects = Selector::try_from(budget.spec.namespace_selector.clone()).ok()?;
        Some(Cluster { budget: budget.clone(), selector: selects })
    });
    clusters.filter(|cluster| cluster.binds(namespace, stores)).collect()
}

fn projects_max(budget: &ClusterBudget) -> Option<usize> {
    budget.spec.projects.as_ref()?.max.map(|max| usize::try_from(max).unwrap_or(0))
}

/// Every limit that applies to an agent of the namespace.
fn limits(namespace: &str, path: &[String], clusters: &[Cluster], stores: &Stores) -> Vec<Limit> {
    let mut limits: Vec<Limit> = path.iter().filter_map(|name| budget_limit(namespace, name, clusters, stores)).collect();
    for cluster in clusters {
        let spec = &cluster.budget.spec;
        let all = || {
            let bound = |namespace: &String| cluster.binds(namespace, stores);
            LimitScope::Namespaces(namespaces(stores).into_iter().chain([namespace.to_owned()]).filter(bound).collect())
        };
        let compute = spec.compute.as_ref();
        let amounts = [
            (LimitedResource::Memory, "spec.compute.memory", compute.and_then(|compute| compute.memory.as_ref())),
            (LimitedResource::Storage, "spec.compute.storage", compute.and_then(|compute| compute.storage.as_ref())),
        ];
        let agents_at_most = |over, field, max, reservations| {
            let max = u64::try_from(max).unwrap_or(0);
            Limit { owner: cluster.name(), field, scope: over, resource: LimitedResource::Agents, max, reservations }
        };
        let each = spec.per_namespace.as_ref().and_then(|each| each.agents.as_ref());
        let own = each.and_then(|agents| agents.max_concurrent).map(|max| {
            let shares = reservations(each, &format!("{}, spec.perNamespace.agents", cluster.name()));
            let shares = shares.into_iter().filter(|share| has_pool_of(namespace, &share.pool_types, stores));
            let over = LimitScope::Namespace(namespace.to_owned());
            agents_at_most(over, "spec.perNamespace.agents.maxConcurrent", max, shares.collect())
        });
        let total = spec.agents.as_ref().and_then(|agents| agents.max_total);
        let total = total.map(|max| agents_at_most(all(), "spec.agents.maxTotal", max, Vec::new()));
        let sums = amounts.into_iter().filter_map(|(what, field, max)| {
            Some(Limit { owner: cluster.name(), field, scope: all(), resource: what, max: units(max?), reservations: Vec::new() })
        });
        limits.extend(own.into_iter().chain(total).chain(sums));
    }
    limits
}

/// The Budget's own limit, else the default of the ClusterBudgets.
fn budget_limit(namespace: &str, name: &str, clusters: &[Cluster], stores: &Stores) -> Option<Limit> {
    let object = stores.budgets.get(&ObjectRef::new(name).within(namespace))?;
    let spec = &object.0.as_ref().ok()?.spec;
    if spec.mode != Mode::Enforce {
        return None;
    }
    let own = spec.agents.as_ref();
    let default = |cluster: &Cluster| Some((cluster.budget.spec.defaults.as_ref()?.budget.as_ref()?.agents.clone()?, cluster.name()));
    let defaults: Vec<(AgentLimits, String)> = clusters.iter().filter_map(default).collect();
    // The Budget's own reservations apply even without a pool of these types. Default reservations apply only if there
    // is one.
    let reservations = match own.filter(|agents| agents.reservations.is_some()) {
        Some(_) => reservations(own, &format!("{}/{name}, spec.agents", Budget::kind(&()))),
        None => defaults
            .iter()
            .find(|(agents, _)| agents.reservations.is_some())
            .map(|(agents, cluster)| reservations(Some(agents), &format!("{cluster}, spec.defaults.budget.agents")))
            .into_iter()
            .flatten()
            .filter(|share| has_pool_of(namespace, &share.pool_types, stores))
            .collect(),
    };
    let (max, owner, field) = match own.and_then(|agents| agents.max_concurrent) {
        Some(max) => (max, format!("{}/{name}", Budget::kind(&())), "spec.agents.maxConcurrent"),
        None => {
            let most = defaults.into_iter().filter_map(|(agents, cluster)| Some((agents.max_concurrent?, cluster)));
            let (max, cluster) = most.min()?;
            (max, cluster, "spec.defaults.budget.agents.maxConcurrent")
        }
    };
    let over = LimitScope::Budget { namespace: namespace.to_owned(), name: name.to_owned() };
    Some(Limit { owner, field, scope: over, resource: LimitedResource::Agents, max: u64::try_from(max).unwrap_or(0), reservations })
}

/// The reservations of these limits. `source` is the object and its field.
fn reservations(agents: Option<&AgentLimits>, source: &str) -> Vec<Reservation> {
    let reservation = |share: &budget::Reservation| Reservation {
        source: format!("{source}.reservations[{}]", share.name),
        pool_types: share.pool_types.clone(),
        percent: u64::try_from(share.percent).unwrap_or(0),
        cap: share.cap.unwrap_or(false),
    };
    agents.into_iter().flat_map(|agents| agents.reservations.iter().flatten()).map(reservation).collect()
}

/// Whether the namespace has a pool of one of these types.
fn has_pool_of(namespace: &str, types: &[String], stores: &Stores) -> bool {
    let pools = stores.pools.state();
    let ours = pools.iter().filter(|pool| pool.meta().namespace.as_deref() == Some(namespace) && pool.meta().deletion_timestamp.is_none());
    ours.filter_map(|pool| pool.0.as_ref().ok()).any(|pool| types.contains(&pool.spec.type_))
}

/// The lowest limit on unfinished items of a namespace, over all queues and submitters, with its object and field: from
/// Budgets without a parent, and from ClusterBudgets.
pub fn namespace_work_limit(namespace: &str, stores: &Stores) -> Option<ProjectLimit> {
    let clusters = clusters_over(namespace, stores);
    let of_cluster = |cluster: &Cluster| {
        let most = cluster.budget.spec.per_namespace.as_ref()?.work.as_ref()?.max_pending?;
        Some(project_limit(most, format!("{} (spec.perNamespace.work.maxPending)", cluster.name())))
    };
    let budgets = stores.budgets_of(namespace);
    let of_root = |budget: &Arc<BudgetObject>| {
        let root = budget.0.as_ref().ok().filter(|budget| budget.spec.parent_ref.is_none())?;
        budget_work_limit(root, &clusters)
    };
    budgets.iter().filter_map(of_root).chain(clusters.iter().filter_map(of_cluster)).min()
}

/// The same, for items that agents of a pool submit: the Budgets between the pool and the top apply too.
pub fn pool_work_limit(pool: &AgentPool, stores: &Stores) -> Option<ProjectLimit> {
    let namespace = pool.namespace().unwrap_or_default();
    let clusters = clusters_over(&namespace, stores);
    let of_budget = |name: &String| {
        let object = stores.budgets.get(&ObjectRef::new(name).within(&namespace))?;
        budget_work_limit(object.0.as_ref().ok()?, &clusters)
    };
    let (path, _) = known_path(pool, stores);
    path.iter().filter_map(of_budget).chain(namespace_work_limit(&namespace, stores)).min()
}

fn project_limit(most: i32, says: String) -> ProjectLimit {
    ProjectLimit { most: u64::try_from(most).unwrap_or(0), source: says }
}

/// The Budget's own limit, else the default of the ClusterBudgets.
fn budget_work_limit(budget: &Budget, clusters: &[Cluster]) -> Option<ProjectLimit> {
    if budget.spec.mode != Mode::Enforce {
        return None;
    }
    let own = budget.spec.work.as_ref().and_then(|work| work.max_pending);
    let own = own.map(|most| project_limit(most, format!("{}/{} (spec.work.maxPending)", Budget::kind(&()), budget.name_any())));
    own.or_else(|| {
        let default = |cluster: &Cluster| {
            let most = cluster.budget.spec.defaults.as_ref()?.budget.as_ref()?.work.as_ref()?.max_pending?;
            Some(project_limit(most, format!("{} (spec.defaults.budget.work.maxPending)", cluster.name())))
        };
        clusters.iter().filter_map(default).min()
    })
}

/// Namespaces with pools, agents or pods.
fn namespaces(stores: &Stores) -> BTreeSet<String> {
    let pools = stores.pools.state().into_iter().filter_map(|pool| pool.namespace());
    let agents = stores.agents.state().into_iter().filter_map(|agent| agent.namespace());
    let pods = stores.pods.state().into_iter().filter_map(|pod| pod.namespace());
    pools.chain(agents).chain(pods).collect()
}

/// Why no pool of the namespace may create agents, if `spec.projects.max` of a ClusterBudget forbids it.
pub fn project_refusal(namespace: &str, stores: &Stores) -> Option<String> {
    let clusters = clusters_over(namespace, stores);
    project_full(namespace, &clusters, &[], stores)
}

fn project_full(namespace: &str, clusters: &[Cluster], holders: &[CapacityHolder], stores: &Stores) -> Option<String> {
    clusters.iter().find_map(|cluster| {
        let max = projects_max(&cluster.budget)?;
        let projects = projects(stores).into_iter().filter(|project| cluster.binds(&project.namespace, stores));
        let running = holders.iter().filter(|holder| holder.amounts.agents > 0 && cluster.binds(&holder.namespace, stores));
        let running: BTreeSet<String> = running.map(|holder| holder.namespace.clone()).collect();
        let projects: Vec<Project> = projects.collect();
        let count = projects.len();
        exceeds_max_projects(projects, &running, namespace, max).then(|| {
            format!(
                "{} allows {max} namespaces with pools ({PROJECTS_MAX_FIELD}), and there are {count}. Namespaces with older pools come first. Raise the limit, or delete the pools of another namespace",
                cluster.name()
            )
        })
    })
}

fn projects(stores: &Stores) -> Vec<Project> {
    let mut oldest: BTreeMap<String, i64> = BTreeMap::new();
    for pool in stores.pools.state() {
        let since = pool.meta().creation_timestamp.as_ref().map_or(i64::MAX, |time| time.0.as_second());
        let entry = oldest.entry(pool.namespace().unwrap_or_default()).or_insert(since);
        *entry = since.min(*entry);
    }
    oldest.into_iter().map(|(namespace, since)| Project { since, namespace }).collect()
}

#[cfg(test)]
#[path = "capacity_tests.rs"]
mod tests;
