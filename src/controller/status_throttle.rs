//! Writing a status by compare-and-swap, and noticing on a conflict that another leader has written.

use std::fmt::Debug;

use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Context;
use crate::api::{Agent, AgentPool, Breaker, Budget, ClusterBudget, WorkItem};
use crate::cluster::{Class, Error, calls};

/// A kind whose status carries the owner epoch of its last writer.
pub trait Owned: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug {
    /// That epoch.
    fn epoch(&self) -> Option<i64>;
}

impl Owned for AgentPool {
    fn epoch(&self) -> Option<i64> {
        self.status.as_ref()?.governor_epoch
    }
}

impl Owned for WorkItem {
    fn epoch(&self) -> Option<i64> {
        self.status.as_ref()?.governor_epoch
    }
}

impl Owned for Budget {
    fn epoch(&self) -> Option<i64> {
        self.status.as_ref()?.governor_epoch
    }
}

impl Owned for ClusterBudget {
    fn epoch(&self) -> Option<i64> {
        self.status.as_ref()?.governor_epoch
    }
}

impl Owned for Breaker {
    fn epoch(&self) -> Option<i64> {
        self.status.as_ref()?.governor_epoch
    }
}

impl Owned for Agent {
    fn epoch(&self) -> Option<i64> {
        self.status.as_ref()?.governor_epoch
    }
}

/// Writes `status` if `object` still has the version that the decision was based on. On a conflict the object is read
/// live: a higher epoch there means that we do not lead any more. Else the conflict is returned, and the caller decides
/// again.
pub async fn publish<K: Owned>(context: &Context, api: &Api<K>, object: &K, manager: &str, status: &impl Serialize) -> Result<K, Error> {
    context.leadership.check()?;
    let name = object.name_any();
    let result = calls::apply_status(api, &name, manager, object.meta().resource_version.as_deref(), status).await;
    if let Err(error) = &result
        && error.class() == Class::Conflict
    {
        after_conflict(context, api, &name).await?;
    }
    result
}

/// The object as it is after a conflict. A higher epoch in it means that we do not lead any more.
pub async fn after_conflict<K: Owned>(context: &Context, api: &Api<K>, name: &str) -> Result<Option<K>, Error> {
    let live = api.get_opt(name).await.map_err(Error::of("reading an object after a conflict"))?;
    if live.as_ref().and_then(Owned::epoch).is_some_and(|epoch| epoch > context.epoch) {
        return Err(Error::Fenced { call: "writing a status" });
    }
    Ok(live)
}
