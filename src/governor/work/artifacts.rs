//! Calls about artifacts: whether an agent may store a file with its item, the artifact in the item's status, and who may read it.
//!
//! A file counts as an artifact when it is in the status of its item, and not before. The content is in a store that only gateways
//! reach. It must not read or write the store.

use std::time::Duration;

use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use serde_json::{Value, json};

use super::calls::look_live;
use super::common::{MAX_DECISION_ATTEMPTS, WRITE_CHECK_INTERVAL, ready, turn, unavailable};
use super::convert::StatusExtras;
use super::item_write::{ItemWriteGuard, store};
use super::namespace_work::{NamespaceWork, WriteLane, now};
use crate::api::AgentPool;
use crate::api::names::short_hash;
use crate::cluster::{Class, ObjectKey};
use crate::controller::{Context, capacity};
use crate::governor::caller::{Caller, identify};
use crate::governor::lease_check;
use crate::policy::artifacts::{self as policy, Denial, Limits};
use crate::policy::work::entry::Entry;
use crate::policy::work::item::UnixMillis;
use crate::policy::work::lease::{self, Fence};
use crate::wire::access::Call;
use crate::wire::artifact::{
    Artifact, ArtifactList, ArtifactRequest, ArtifactStep, FinishedArtifact, ID_DIGITS, OWN_ITEM, PersonalRead, StoreKey, StoredArtifact,
    UnusedAnswer, UnusedObjects,
};
use crate::wire::work::LeaseRef;
use crate::wire::{Code, Refusal, body};

/// The namespace whose uid stands for the cluster.
const CLUSTER_NAMESPACE: &str = "kube-system";

/// Answers a step of a call of an agent.
pub async fn of_agent(caller: &Caller, bytes: &[u8], context: &Context) -> Result<Value, Refusal> {
    ready(context)?;
    let agent = identify(caller, context).await?;
    let ArtifactRequest { lease, step } = body::read(bytes)?;
    lease_check::may_act(caller, &agent, lease.as_ref(), context)?;
    let held = lease_check::lease_of(caller, lease.as_ref(), context);
    let pool = || {
        let stored = context.stores.pool(&caller.key.namespace, &agent.spec.pool_ref.name);
        let pool = stored.as_ref().and_then(|pool| pool.0.as_ref().ok()).cloned();
        pool.ok_or_else(|| Refusal::unavailable("the controller does not know the agent's pool yet; try again"))
    };
    match step {
        ArtifactStep::Begin { name, bytes } => Ok(json!(begin(caller, held, &pool()?, &name, bytes, context)?)),
        ArtifactStep::Finish { name, id, bytes, sha256 } => {
            let made = policy::Artifact { name, bytes, sha256, id, epoch: 0, created: UnixMillis(0), expires: UnixMillis(0) };
            Ok(json!(finish(caller, held, &pool()?, made, context).await?))
        }
        ArtifactStep::Read { item, name } => {
            let cluster = cluster(context)?;
            of_readable_item(caller, held.as_ref(), &item, &agent.spec.pool_ref.name, context, |work, item, entry| {
                stored(work, item, entry, &name, cluster, &caller.key.namespace)
            })
        }
        ArtifactStep::List { item } => {
            of_readable_item(caller, held.as_ref(), &item, &agent.spec.pool_ref.name, context, |work, item, entry| {
                let now = now();
                let living = work.artifacts.of(&entry.uid).iter().filter(|artifact| artifact.expires > now);
                Ok(json!(ArtifactList { artifacts: living.map(|artifact| shown(item, artifact)).collect() }))
            })
        }
    }
}

/// The uid that stands for the cluster: clusters may share a bucket.
fn cluster(context: &Context) -> Result<String, Refusal> {
    let namespace = context.stores.namespaces.get(&ObjectRef::new(CLUSTER_NAMESPACE));
    let uid = namespace.and_then(|namespace| namespace.metadata.uid.clone());
    uid.ok_or_else(|| Refusal::unavailable("the controller has not read the namespaces yet; try again"))
}

fn shown(item: &str, artifact: &policy::Artifact) -> Artifact {
    let policy::Artifact { name, bytes, sha256, id: _, epoch: _, created: _, expires } = artifact;
    let expires = Timestamp::from_millisecond(expires.0).unwrap_or(Timestamp::MAX).to_string();
    Artifact { item: item.to_owned(), name: name.clone(), bytes: *bytes, sha256: sha256.clone(), expires }
}

fn no_artifact(item: &str, name: &str) -> Refusal {
    Refusal::new(Code::NoSuchArtifact, format!("WorkItem/{item} has no artifact {name:?}, or its time is over"))
}

fn denied(denial: &Denial) -> Refusal {
    match denial {
        Denial::FileTooLarge { bytes, limit } => limited(denial).limit(limit.most, *bytes),
        Denial::NamespaceFull { bytes, used, limit } => limited(denial).limit(limit.most, used.saturating_add(*bytes)),
        Denial::ItemFull(_) => limited(denial),
        Denial::TooManyUploads => Refusal::new(Code::TooManyCalls, denial.to_string()).retry_after(10),
    }
}

fn limited(denial: &Denial) -> Refusal {
    Refusal::new(Code::LimitReached, denial.to_string())
}

fn held_or_refusal(held: Option<LeaseRef>) -> Result<LeaseRef, Refusal> {
    held.ok_or_else(|| Refusal::new(Code::NotHeld, "this agent holds no item: an artifact is kept with the item that its agent holds"))
}

/// Permits an upload.
fn begin(
    caller: &Caller,
    held: Option<LeaseRef>,
    pool: &AgentPool,
    name: &str,
    bytes: u64,
    context: &Context,
) -> Result<StoreKey, Refusal> {
    let (held, limits, namespace) = (held_or_refusal(held)?, capacity::artifact_limits(pool, &context.stores), &caller.key.namespace);
    let cluster = cluster(context)?;
    let id = short_hash(&["artifact", &format!("{:032x}", rand::random::<u128>())], ID_DIGITS);
    context
        .work_index
        .with(namespace, |work| work.artifacts.begin(&limits, &held.uid, name, bytes, &id, now()))
        .map_err(|denial| denied(&denial))?;
    Ok(StoreKey { cluster, namespace: namespace.clone(), item: held.uid, id })
}

/// Writes an artifact whose content is stored into the status of its item.
async fn finish(
    caller: &Caller,
    held: Option<LeaseRef>,
    pool: &AgentPool,
    made: policy::Artifact,
    context: &Context,
) -> Result<FinishedArtifact, Refusal> {
    let (held, limits, namespace) = (held_or_refusal(held)?, capacity::artifact_limits(pool, &context.stores), &caller.key.namespace);
    let mut looked = false;
    for _ in 0..MAX_DECISION_ATTEMPTS {
        let turn = turn(namespace, context).await?;
        let found = context.work_index.with(namespace, |work| {
            let (name, entry) = work.by_uid(&held.uid)?;
            Some((name, entry, work.artifacts.of(&held.uid).to_vec()))
        });
        let Some((name, entry, before)) = found else {
            return Err(Refusal::new(Code::LeaseLost, "the item does not exist in this namespace, or it was deleted"));
        };
        let key = ObjectKey { namespace: namespace.clone(), name };
        if before.iter().any(|artifact| artifact.id == made.id) {
            // The answer to an earlier call was lost.
            return finished(&key.name, &before, &before, &made.id, caller, &entry, context);
        }
        let fence = Fence { epoch: held.epoch, pod: &caller.uid, agent: &caller.key.name };
        if !lease::holds(&entry.record, fence) {
            if !looked {
                looked = true;
                look_live(&key, &entry, context).await?;
                continue;
            }
            let message = "this agent does not hold the item any more, so the file is no artifact of it";
            return Err(Refusal::new(Code::StaleLease, message));
        }
        let all = with(&limits, &entry, &made, held.epoch, namespace, context)?;
        if !context.work_index.with(namespace, |work| work.begin(&key.name)) {
            drop(turn);
            tokio::time::sleep(WRITE_CHECK_INTERVAL).await; // another write is in flight
            continue;
        }
        let writing = ItemWriteGuard { context, key: &key, unconfirmed_claim: None, probe: None };
        let beside = StatusExtras { artifacts: Some(all.clone()), ..StatusExtras::default() };
        let result = store(context, &key, &entry, &entry.record, &beside, WriteLane::Needed).await;
        drop(writing);
        match result {
            Ok(_) => {
                context.leadership.check().map_err(|error| unavailable(context, &error))?;
                return finished(&key.name, &before, &all, &made.id, caller, &entry, context);
            }
            Err(error) if matches!(error.class(), Class::Conflict | Class::NotFound) => {}
            Err(error) => return Err(unavailable(context, &error)),
        }
    }
    Err(Refusal::unavailable("other writes of the item came first each time; try again"))
}

/// The artifacts of the item with this one.
fn with(
    limits: &Limits,
    entry: &Entry,
    made: &policy::Artifact,
    epoch: i64,
    namespace: &str,
    context: &Context,
) -> Result<Vec<policy::Artifact>, Refusal> {
    let now = now();
    let made = policy::Artifact { epoch, created: now, expires: now.after(limits.retention), ..made.clone() };
    context.work_index.with(namespace, |work| work.artifacts.with(limits, &entry.uid, made, now)).map_err(|denial| denied(&denial))
}

/// The answer about a stored artifact, with the objects that its item has left.
fn finished(
    item: &str,
    before: &[policy::Artifact],
    all: &[policy::Artifact],
    id: &str,
    caller: &Caller,
    entry: &Entry,
    context: &Context,
) -> Result<FinishedArtifact, Refusal> {
    let made = all.iter().find(|artifact| artifact.id == id).ok_or_else(|| Refusal::new(Code::Internal, "the artifact is lost"))?;
    let cluster = cluster(context)?;
    let left = before.iter().filter(|artifact| all.iter().all(|kept| kept.id != artifact.id));
    let object = |artifact: &policy::Artifact| StoreKey {
        cluster: cluster.clone(),
        namespace: caller.key.namespace.clone(),
        item: entry.uid.clone(),
        id: artifact.id.clone(),
    };
    Ok(FinishedArtifact { artifact: shown(item, made), left: left.map(object).collect() })
}

/// Calls `read` with an item that the caller may read the artifacts of: its own, one that its own depends on, or one that agents of its
/// pool submitted.
fn of_readable_item<T>(
    caller: &Caller,
    held: Option<&LeaseRef>,
    item: &str,
    pool: &str,
    context: &Context,
    read: impl FnOnce(&NamespaceWork, &str, &Entry) -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    context.work_index.with(&caller.key.namespace, |work| {
        let own = held.and_then(|held| work.by_uid(&held.uid));
        let found = match (&own, item) {
            (Some((name, entry)), OWN_ITEM) => Some((name.clone(), entry.clone())),
            (None, OWN_ITEM) => return Err(held_or_refusal(None).err().unwrap_or_else(|| no_artifact(item, ""))),
            (_, item) => work.index.get(item).map(|entry| (item.to_owned(), entry.clone())),
        };
        let own = own.as_ref().map(|(name, entry)| (name.as_str(), entry));
        match found.filter(|(name, entry)| may_read(own, name, entry, pool)) {
            Some((name, entry)) => read(work, &name, &entry),
            // An item that may not be read is not told apart from one that does not exist.
            None => {
                let message = format!(
                    "there is no item {item:?} whose artifacts this agent may read: its own item, items that its own depends on, and items \
                     that agents of AgentPool/{pool} submitted"
                );
                Err(Refusal::new(Code::NoSuchArtifact, message))
            }
        }
    })
}

fn may_read(own: Option<(&str, &Entry)>, name: &str, entry: &Entry, pool: &str) -> bool {
    let by_own = own.is_some_and(|(own, held)| own == name || held.spec.after.iter().any(|dependency| dependency.name == name));
    by_own || entry.spec.submitted_by.as_deref() == Some(pool)
}

/// Answers a call of a gateway that is not for an agent.
pub fn of_gateway(call: Call, bytes: &[u8], context: &Context) -> Result<Value, Refusal> {
    ready(context)?;
    if call == Call::ReadArtifact { read_for_person(bytes, context) } else { unused(bytes, context) }
}

/// Answers which object has an artifact for a person. The gateway knows that the person may read those of the namespace.
fn read_for_person(bytes: &[u8], context: &Context) -> Result<Value, Refusal> {
    let PersonalRead { namespace, item, name } = body::read(bytes)?;
    if !context.serves(&namespace) {
        return Err(no_artifact(&item, &name));
    }
    let cluster = cluster(context)?;
    context.work_index.with(&namespace, |work| {
        let entry = work.index.get(&item).ok_or_else(|| no_artifact(&item, &name))?;
        stored(work, &item, entry, &name, cluster, &namespace)
    })
}

/// The artifact of an item, and its object.
fn stored(work: &NamespaceWork, item: &str, entry: &Entry, name: &str, cluster: String, namespace: &str) -> Result<Value, Refusal> {
    let artifact = work.artifacts.get(&entry.uid, name, now()).ok_or_else(|| no_artifact(item, name))?;
    let object = StoreKey { cluster, namespace: namespace.to_owned(), item: entry.uid.clone(), id: artifact.id.clone() };
    Ok(json!(StoredArtifact { artifact: shown(item, artifact), object }))
}

/// Answers which objects of the store belong to no artifact.
fn unused(bytes: &[u8], context: &Context) -> Result<Value, Refusal> {
    let UnusedObjects { objects, removed } = body::read(bytes)?;
    let cluster = cluster(context)?;
    for key in &removed {
        context.work_index.with(&key.namespace, |work| work.artifacts.removed(&key.id));
    }
    let now = now();
    // After a rollback of the API server's store, items may be unknown whose artifacts people still want.
    let sure = context.recent_rollback().is_none();
    let is_unused = |key: &StoreKey, age: Duration| {
        let ours = sure && key.cluster == cluster && context.serves(&key.namespace);
        ours && context.work_index.with(&key.namespace, |work| work.artifacts.is_unused(&key.item, &key.id, age, now))
    };
    let unused = objects.into_iter().filter(|object| is_unused(&object.key, Duration::from_secs(object.age_seconds)));
    Ok(json!(UnusedAnswer { cluster: cluster.clone(), unused: unused.map(|object| object.key).collect() }))
}

#[cfg(test)]
mod tests {
    use super::super::convert;
    use super::*;
    use crate::api::names;

    fn entry(mut spec: Value, submitted_by: Option<&str>) -> Entry {
        spec["queueRef"] = json!({"name": "q"});
        let meta = json!({"name": "i", "labels": submitted_by.map(|pool| json!({names::SUBMITTED_BY_LABEL: pool}))});
        let object = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkItem", "metadata": meta, "spec": spec});
        convert::entry(&serde_json::from_value(object).expect("a WorkItem"))
    }

    #[test]
    fn an_agent_reads_what_its_item_builds_on_and_what_its_pool_asked_for() {
        let own = entry(json!({"dependsOn": [{"name": "build"}]}), None);
        let (stranger, child) = (entry(json!({}), None), entry(json!({}), Some("lead")));
        let own = Some(("test", &own));
        assert!(may_read(own, "test", &stranger, "p") && may_read(own, "build", &stranger, "p"));
        assert!(!may_read(own, "other", &stranger, "p") && !may_read(None, "build", &stranger, "p"));
        assert!(may_read(None, "other", &child, "lead") && !may_read(None, "other", &child, "p"));
    }
}
