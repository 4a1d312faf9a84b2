//! The watches of everything that limits follow from: Budgets, ClusterBudgets, Grants, Breakers, the labels of
//! namespaces, and the ResourceQuotas and LimitRanges of Budgets.
//!
//! The governor often writes spent tokens into the status of budgets. Such a write must not trigger pools or Agents:
//! only a change of a spec does. The governor itself is notified of every change.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Namespace;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::Store;
use kube::runtime::watcher;
use kube::runtime::watcher::Event;
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::api::conditions::reasons;
use crate::api::names;
use crate::cluster::ObjectKey;
use crate::cluster::watch::{Change, config, start};
use crate::controller::stores::{AgentObject, BreakerObject, BudgetObject, ClusterBudgetObject, GrantObject, PoolObject};
use crate::controller::wake::{Wake, in_namespace, waits_for};

/// The uid and generation of each object, to tell a change of its spec from a write of its status.
#[derive(Default)]
pub(super) struct Generations(HashMap<ObjectKey, (Option<String>, Option<i64>)>);

impl Generations {
    /// Whether the spec of the object changed, or the object is another one with that name.
    pub fn changed(&mut self, object: &impl ResourceExt) -> bool {
        let now = (object.uid(), object.meta().generation);
        self.0.insert(ObjectKey::of(object), now.clone()) != Some(now)
    }

    pub fn forget(&mut self, object: &impl ResourceExt) {
        self.0.remove(&ObjectKey::of(object));
    }
}

/// Keeps only our own annotation, which marks a default object that we created.
fn keep_own_annotation(object: &mut impl ResourceExt) {
    object.annotations_mut().retain(|name, _| name == names::DEFAULT_ANNOTATION);
}

/// Budgets: every change triggers their own reconciler. Only a change of the spec triggers pools and Agents.
pub(super) fn watch_budgets(
    tasks: &mut JoinSet<()>,
    api: Api<BudgetObject>,
    wake: &Wake,
    pools: &Store<PoolObject>,
    agents: &Store<AgentObject>,
    told: Arc<Notify>,
) -> Store<BudgetObject> {
    let (wake, pools, agents) = (wake.clone(), pools.clone(), agents.clone());
    // The tap reads the store of its own watch, which exists only after the start.
    let known = Arc::new(std::sync::OnceLock::<Store<BudgetObject>>::new());
    let look = known.clone();
    let mut generations = Generations::default();
    let said_otherwise = {
        let (wake, pools) = (wake.clone(), pools.clone());
        move |namespace: &str| {
            wake.pools_in(&pools, namespace);
            wake.agents_short_of_budget(&agents);
            // All Budgets of the namespace together decide whose spec.compute applies.
            if let Some(budgets) = look.get() {
                wake.budgets_where(budgets, |budget| budget.namespace().as_deref() == Some(namespace));
            }
        }
    };
    let store = start(tasks, watcher(api, config()), keep_own_annotation, move |change| {
        match change {
            Change::Present(budget) => {
                let key = ObjectKey::of(budget);
                wake.budget(&key.namespace, &key.name);
                if generations.changed(budget) {
                    said_otherwise(&key.namespace);
                }
            }
            Change::Deleted(budget) => {
                let key = ObjectKey::of(budget);
                generations.forget(budget);
                wake.budget(&key.namespace, &key.name);
                said_otherwise(&key.namespace);
            }
            Change::Listed(budgets) => {
                wake.budgets_where(budgets, |_| true);
                wake.all_pools(&pools);
            }
        }
        told.notify_one();
    });
    let _ = known.set(store.clone()); // once
    store
}

/// ClusterBudgets: a changed spec may allow more agents, or more namespaces with pools. Without `api` none is watched:
/// an operator of one namespace is not the single writer that their records need, and ignores them.
pub(super) fn watch_cluster_budgets(
    tasks: &mut JoinSet<()>,
    api: Option<Api<ClusterBudgetObject>>,
    wake: &Wake,
    pools: &Store<PoolObject>,
    agents: &Store<AgentObject>,
    told: Arc<Notify>,
) -> Store<ClusterBudgetObject> {
    let (wake, pools, agents) = (wake.clone(), pools.clone(), agents.clone());
    let mut generations = Generations::default();
    let events = match api {
        Some(api) => watcher(api, config()).boxed(),
        None => futures::stream::iter([Ok(Event::Init), Ok(Event::InitDone)]).chain(futures::stream::pending()).boxed(),
    };
    start(tasks, events, keep_own_annotation, move |change| {
        let news = match change {
            Change::Present(budget) => generations.changed(budget),
            Change::Deleted(budget) => {
                generations.forget(budget);
                true
            }
            Change::Listed(_) => true,
        };
        if news {
            wake.all_pools(&pools);
            wake.agents_short_of_budget(&agents);
        }
        told.notify_one();
    })
}

/// Namespaces: their labels decide which ClusterBudgets bind them.
pub(super) fn watch_namespaces(
    tasks: &mut JoinSet<()>,
    api: Api<PartialObjectMeta<Namespace>>,
    wake: &Wake,
    pools: &Store<PoolObject>,
    agents: &Store<AgentObject>,
    told: Arc<Notify>,
) -> Store<PartialObjectMeta<Namespace>> {
    let (wake, pools, agents) = (wake.clone(), pools.clone(), agents.clone());
    let drop_annotations = |object: &mut PartialObjectMeta<Namespace>| object.metadata.annotations = None;
    start(tasks, watcher(api, config()), drop_annotations, move |change| {
        match change {
            Change::Present(namespace) | Change::Deleted(namespace) => {
                wake.pools_in(&pools, &namespace.name_any());
                wake.agents_short_of_budget(&agents);
            }
            Change::Listed(_) => {}
        }
        told.notify_one();
    })
}

/// Grants: the governor alone reads them.
pub(super) fn watch_grants(tasks: &mut JoinSet<()>, api: Api<GrantObject>, told: Arc<Notify>) -> Store<GrantObject> {
    let drop_annotations = |object: &mut GrantObject| object.meta_mut().annotations = None;
    start(tasks, watcher(api, config()), drop_annotations, move |_| told.notify_one())
}

/// Breakers: the governor alone reads them.
pub(super) fn watch_breakers(tasks: &mut JoinSet<()>, api: Api<BreakerObject>, told: Arc<Notify>) -> Store<BreakerObject> {
    start(tasks, watcher(api, config()), keep_own_annotation, move |_| told.notify_one())
}

/// Watches the ResourceQuotas or LimitRanges of Budgets: the reconciler of Budgets repairs them, and Agents that wait
/// for quota may get it.
pub(super) fn watch_compute<K>(
    tasks: &mut JoinSet<()>,
    api: Api<K>,
    config: watcher::Config,
    wake: &Wake,
    agents: &Store<AgentObject>,
) -> Store<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let (wake, agents) = (wake.clone(), agents.clone());
    start(
        tasks,
        watcher(api, config),
        |_| (),
        move |change| {
            let changed = |object: &K| {
                wake.owner(object);
                let namespace = object.namespace().unwrap_or_default();
                wake.agents_where(&agents, |agent| in_namespace(agent, &namespace) && waits_for(agent, &[reasons::QUOTA_EXCEEDED]));
            };
            match change {
                Change::Present(object) | Change::Deleted(object) => changed(object),
                Change::Listed(objects) => objects.state().iter().for_each(|object| changed(object)),
            }
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Budget;
    use serde_json::json;

    fn budget(uid: &str, generation: i64) -> Budget {
        serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Budget", "spec": {}, "metadata": {
            "name": "default", "namespace": "n", "uid": uid, "generation": generation,
            "annotations": {"spillway.dev/default": "true", "of-others": "long"}}}))
        .expect("a Budget")
    }

    #[test]
    fn a_budget_keeps_the_mark_that_we_made_it() {
        let mut kept = budget("u", 1);
        keep_own_annotation(&mut kept);
        assert_eq!(kept.annotations().keys().collect::<Vec<_>>(), [names::DEFAULT_ANNOTATION]);
    }

    #[test]
    fn only_a_changed_spec_is_a_change() {
        let mut generations = Generations::default();
        assert!(generations.changed(&budget("u", 1)));
        assert!(!generations.changed(&budget("u", 1)), "a status was written");
        assert!(generations.changed(&budget("u", 2)));
        assert!(generations.changed(&budget("v", 2)), "another one of its name, whose deletion was not seen");
        generations.forget(&budget("v", 2));
        assert!(generations.changed(&budget("v", 2)));
    }
}
