//! The four kinds of objects with ledger records, as they were last read, and the patches of their status.
//!
//! A write is a merge patch of the difference, bound to the version from which it was made: other fields stay, and any
//! write in between is a conflict.

use std::sync::Arc;

use kube::{Api, Client, ResourceExt};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::conditions::PublishedStatus;
use super::convert;
use crate::api::agent::AgentTokens;
use crate::api::work_item::ItemTokens;
use crate::api::{Agent, Budget, ClusterBudget, WorkItem};
use crate::cluster::{Class, Error, calls};
use crate::policy::budget::{Key, PersistedRecord};

/// The parts of an Agent or WorkItem that the ledger needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Leaf<T> {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its resource version.
    pub version: String,
    /// Owner epoch of the last writer.
    pub epoch: Option<i64>,
    /// `status.tokens`.
    pub tokens: Option<T>,
}

/// An object with a record.
#[derive(Clone, Debug)]
pub enum Object {
    /// A Budget.
    Budget(Arc<Budget>),
    /// A ClusterBudget.
    Cluster(Arc<ClusterBudget>),
    /// An Agent.
    Agent(Leaf<AgentTokens>),
    /// A WorkItem.
    Item(Leaf<ItemTokens>),
}

impl From<&Agent> for Leaf<AgentTokens> {
    fn from(agent: &Agent) -> Self {
        let status = agent.status.as_ref();
        Self {
            namespace: agent.namespace().unwrap_or_default(),
            name: agent.name_any(),
            uid: agent.uid().unwrap_or_default(),
            version: agent.resource_version().unwrap_or_default(),
            epoch: status.and_then(|status| status.governor_epoch),
            tokens: status.and_then(|status| status.tokens.clone()),
        }
    }
}

impl From<&WorkItem> for Leaf<ItemTokens> {
    fn from(item: &WorkItem) -> Self {
        let status = item.status.as_ref();
        Self {
            namespace: item.namespace().unwrap_or_default(),
            name: item.name_any(),
            uid: item.uid().unwrap_or_default(),
            version: item.resource_version().unwrap_or_default(),
            epoch: status.and_then(|status| status.governor_epoch),
            tokens: status.and_then(|status| status.tokens.clone()),
        }
    }
}

impl From<&Agent> for Object {
    fn from(agent: &Agent) -> Self {
        Self::Agent(agent.into())
    }
}

impl From<&WorkItem> for Object {
    fn from(item: &WorkItem) -> Self {
        Self::Item(item.into())
    }
}

impl Object {
    /// Its uid.
    pub fn uid(&self) -> &str {
        match self {
            Self::Budget(budget) => budget.metadata.uid.as_deref().unwrap_or_default(),
            Self::Cluster(cluster) => cluster.metadata.uid.as_deref().unwrap_or_default(),
            Self::Agent(Leaf { uid, .. }) | Self::Item(Leaf { uid, .. }) => uid,
        }
    }

    /// The resource version at which it was read.
    pub fn version(&self) -> &str {
        match self {
            Self::Budget(budget) => budget.metadata.resource_version.as_deref().unwrap_or_default(),
            Self::Cluster(cluster) => cluster.metadata.resource_version.as_deref().unwrap_or_default(),
            Self::Agent(Leaf { version, .. }) | Self::Item(Leaf { version, .. }) => version,
        }
    }

    /// Whether it is newer than another version of the object. Versions are rising numbers.
    pub fn newer_than(&self, other: &Self) -> bool {
        let number = |object: &Self| object.version().parse::<u64>().unwrap_or(0);
        number(self) > number(other)
    }

    /// Owner epoch of the last writer of its status.
    pub fn epoch(&self) -> Option<i64> {
        match self {
            Self::Budget(budget) => budget.status.as_ref()?.governor_epoch,
            Self::Cluster(cluster) => cluster.status.as_ref()?.governor_epoch,
            Self::Agent(Leaf { epoch, .. }) | Self::Item(Leaf { epoch, .. }) => *epoch,
        }
    }

    /// Its namespace. Empty for a ClusterBudget.
    pub fn namespace(&self) -> &str {
        match self {
            Self::Budget(budget) => budget.metadata.namespace.as_deref().unwrap_or_default(),
            Self::Cluster(_) => "",
            Self::Agent(Leaf { namespace, .. }) | Self::Item(Leaf { namespace, .. }) => namespace,
        }
    }

    /// Namespace and name, for logs.
    pub fn names(&self) -> (String, String) {
        match self {
            Self::Budget(budget) => (budget.namespace().unwrap_or_default(), budget.name_any()),
            Self::Cluster(cluster) => (String::new(), cluster.name_any()),
            Self::Agent(Leaf { namespace, name, .. }) | Self::Item(Leaf { namespace, name, .. }) => (namespace.clone(), name.clone()),
        }
    }

    /// The record in its status.
    pub fn saved(&self, record: &Key) -> PersistedRecord {
        match (self, record) {
            (Self::Budget(budget), _) => convert::of_budget(record, budget.status.as_ref()),
            (Self::Cluster(cluster), _) => convert::of_cluster(&cluster.name_any(), cluster.status.as_ref()),
            (Self::Agent(agent), _) => convert::of_agent(&agent.uid, agent.tokens.as_ref()),
            (Self::Item(item), Key::Task { epoch, .. }) => {
                convert::of_share(&item.uid, *epoch, item.tokens.as_ref().and_then(|tokens| tokens.share.as_ref()))
            }
            (Self::Item(_), Key::Cluster(_) | Key::Namespace { .. } | Key::Budget { .. } | Key::Share { .. } | Key::Agent(_)) => {
                PersistedRecord::default()
            }
        }
    }

    /// Whether a later attempt at the item has replaced this record: it is not written any more.
    pub fn is_superseded(&self, record: &Key) -> bool {
        match (self, record) {
            (Self::Item(item), Key::Task { epoch, .. }) => {
                item.tokens.as_ref().and_then(|tokens| tokens.share.as_ref()).is_some_and(|share| share.epoch > *epoch)
            }
            (Self::Budget(_) | Self::Cluster(_) | Self::Agent(_) | Self::Item(_), _) => false,
        }
    }

    /// The number of top-ups that an Agent has taken.
    pub fn top_ups(&self) -> u32 {
        match self {
            Self::Agent(agent) => {
                agent.tokens.as_ref().and_then(|tokens| tokens.top_ups).map_or(0, |taken| u32::try_from(taken).unwrap_or(0))
            }
            Self::Budget(_) | Self::Cluster(_) | Self::Item(_) => 0,
        }
    }

    /// The status as it is and as it is to be, each with only the fields that are written here.
    fn status_before_and_after(
        &self,
        record: &Key,
        saved: Option<&PersistedRecord>,
        said: Option<&PublishedStatus>,
        top_ups: u32,
    ) -> (Value, Value) {
        match self {
            Self::Budget(budget) => {
                let stored = budget.status.clone().unwrap_or_default();
                let mut next = stored.clone();
                if let Some(saved) = saved {
                    convert::into_budget(record, saved, &mut next);
                }
                if let Some(PublishedStatus { generation, tightest, agents, conditions }) = said.cloned() {
                    (next.observed_generation, next.tightest, next.conditions) = (Some(generation), tightest, conditions);
                    agents.iter().for_each(|agents| agents.into_budget(&mut next));
                }
                (value(&stored), value(&next))
            }
            Self::Cluster(cluster) => {
                let stored = cluster.status.clone().unwrap_or_default();
                let mut next = stored.clone();
                if let Some(saved) = saved {
                    convert::into_cluster(&cluster.name_any(), saved, &mut next);
                }
                if let Some(PublishedStatus { generation, tightest, agents, conditions }) = said.cloned() {
                    (next.observed_generation, next.tightest, next.conditions) = (Some(generation), tightest, conditions);
                    agents.iter().for_each(|agents| agents.into_cluster(&mut next));
                }
                (value(&stored), value(&next))
            }
            Self::Agent(agent) => {
                let stored = agent.tokens.clone();
                let taken = top_ups.max(self.top_ups());
                let next = match saved {
                    Some(saved) => convert::into_agent(saved, taken),
                    None => {
                        AgentTokens { top_ups: i32::try_from(taken).ok().filter(|taken| *taken > 0), ..stored.clone().unwrap_or_default() }
                    }
                };
                (json!({"tokens": stored}), json!({"tokens": next}))
            }
            Self::Item(item) => {
                let stored = item.tokens.clone();
                let mut next = stored.clone().unwrap_or_default();
                if let (Some(saved), Key::Task { epoch, .. }) = (saved, record) {
                    let before = next.share.as_ref().filter(|share| share.epoch == *epoch).map_or(0, |share| share.used);
                    let share = convert::into_share(*epoch, saved);
                    next.used = next.used.saturating_sub(before).saturating_add(share.used);
                    next.share = Some(share);
                }
                (json!({"tokens": stored}), json!({"tokens": next}))
            }
        }
    }

    /// The patch that makes the status so, bound to this version. `None` if nothing differs and no record is to be
    /// written.
    pub fn patch(
        &self,
        record: &Key,
        saved: Option<&PersistedRecord>,
        said: Option<&PublishedStatus>,
        top_ups: u32,
        epoch: i64,
    ) -> Option<Value> {
        let (stored, next) = self.status_before_and_after(record, saved, said, top_ups);
        let mut status = difference(&stored, &next);
        if status.is_empty() && saved.is_none() {
            return None;
        }
        // Always written: a former leader can write until the status has the new epoch.
        status.insert("governorEpoch".to_owned(), epoch.into());
        Some(json!({"metadata": {"resourceVersion": self.version(), "uid": self.uid()}, "status": status}))
    }
}

fn value(status: &impl Serialize) -> Value {
    serde_json::to_value(status).unwrap_or_default()
}

/// The merge patch that makes `next` of `stored`.
fn difference(stored: &Value, next: &Value) -> Map<String, Value> {
    let empty = Map::new();
    let (stored, next) = (stored.as_object().unwrap_or(&empty), next.as_object().unwrap_or(&empty));
    let mut patch = Map::new();
    for name in stored.keys().filter(|name| !next.contains_key(*name)) {
        patch.insert(name.clone(), Value::Null);
    }
    for (name, wanted) in next {
        match (stored.get(name), wanted) {
            (Some(there), _) if there == wanted => {}
            (Some(there @ Value::Object(_)), Value::Object(_)) => {
                patch.insert(name.clone(), Value::Object(difference(there, wanted)));
            }
            (Some(_) | None, _) => {
                patch.insert(name.clone(), wanted.clone());
            }
        }
    }
    patch
}

/// Reads the object again. `None` if it was deleted.
pub async fn read(client: &Client, object: &Object) -> Result<Option<Object>, Error> {
    let (namespace, name) = object.names();
    let failed = || Error::of("reading an object that keeps a record of tokens");
    Ok(match object {
        Object::Budget(_) => {
            let api = Api::<Budget>::namespaced(client.clone(), &namespace);
            api.get_opt(&name).await.map_err(failed())?.map(|budget| Object::Budget(Arc::new(budget)))
        }
        Object::Cluster(_) => {
            let api = Api::<ClusterBudget>::all(client.clone());
            api.get_opt(&name).await.map_err(failed())?.map(|cluster| Object::Cluster(Arc::new(cluster)))
        }
        Object::Agent(_) => {
            let api = Api::<Agent>::namespaced(client.clone(), &namespace);
            api.get_opt(&name).await.map_err(failed())?.as_ref().map(Object::from)
        }
        Object::Item(_) => {
            let api = Api::<WorkItem>::namespaced(client.clone(), &namespace);
            api.get_opt(&name).await.map_err(failed())?.as_ref().map(Object::from)
        }
    })
}

/// Writes the status of an object, and returns the object. A WorkItem is also returned whole, for the index of work.
pub async fn write(client: &Client, object: &Object, patch: &Value) -> Result<(Object, Option<WorkItem>), Error> {
    let (namespace, name) = object.names();
    Ok(match object {
        Object::Budget(_) => {
            let stored: Budget = calls::patch_status(&Api::namespaced(client.clone(), &namespace), &name, patch).await?;
            (Object::Budget(Arc::new(stored)), None)
        }
        Object::Cluster(_) => {
            let stored: ClusterBudget = calls::patch_status(&Api::all(client.clone()), &name, patch).await?;
            (Object::Cluster(Arc::new(stored)), None)
        }
        Object::Agent(_) => {
            let stored: Agent = calls::patch_status(&Api::namespaced(client.clone(), &namespace), &name, patch).await?;
            (Object::from(&stored), None)
        }
        Object::Item(_) => {
            let stored: WorkItem = calls::patch_status(&Api::namespaced(client.clone(), &namespace), &name, patch).await?;
            (Object::from(&stored), Some(stored))
        }
    })
}

/// Whether a write that failed with this class may have been made.
pub fn result_unknown(class: Class) -> bool {
    match class {
        // A server that lost its store midway reports a failure.
        Class::Unavailable | Class::Refused => true,
        Class::Conflict | Class::AlreadyExists | Class::NotFound | Class::QuotaExceeded | Class::Terminating | Class::LostLeadership => {
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::budget::share::LEAF_LIMIT_NAME;

    #[test]
    fn a_patch_says_what_differs_and_takes_away_what_is_gone() {
        let stored = json!({"a": 1, "b": {"c": [1], "d": 2}, "e": 5, "f": {"g": 1}});
        let next = json!({"a": 1, "b": {"c": [2]}, "f": {"g": 1}, "h": {"i": 1}});
        assert_eq!(Value::Object(difference(&stored, &next)), json!({"b": {"c": [2], "d": null}, "e": null, "h": {"i": 1}}));
        assert!(difference(&stored, &stored).is_empty());
    }

    #[test]
    fn what_an_item_has_used_is_the_sum_of_its_attempts() {
        let tokens = ItemTokens { used: 70, share: Some(convert::into_share(2, &PersistedRecord::default())) };
        let leaf = Leaf { uid: "u".into(), tokens: Some(tokens), ..Leaf::default() };
        let used = |object: &Object, epoch, used| {
            let record = Key::Task { item: "u".into(), epoch };
            let window = crate::policy::budget::persisted::PersistedWindow {
                limit: LEAF_LIMIT_NAME.into(),
                span: crate::policy::budget::Window::Lifetime.at(0),
                peak: 100,
                used,
                held: 0,
                lost: 0,
                debt: 0,
                high: 100,
            };
            let places = vec![crate::policy::budget::persisted::PersistedPlace { key: record.clone(), windows: vec![window] }];
            let saved = PersistedRecord { places, ..PersistedRecord::default() };
            object.patch(&record, Some(&saved), None, 0, 9).expect("a record is always written")["status"]["tokens"]["used"].clone()
        };
        let object = Object::Item(leaf);
        assert_eq!(used(&object, 3, 30), json!(100), "another attempt");
        let mut again = ItemTokens { used: 100, share: Some(convert::into_share(3, &PersistedRecord::default())) };
        again.share.as_mut().expect("there is one").used = 30;
        let object = Object::Item(Leaf { uid: "u".into(), tokens: Some(again), ..Leaf::default() });
        assert_eq!(used(&object, 3, 45), json!(115), "the same attempt, further");
    }
}
