//! The controller of AgentPools: creates and deletes Agents, and never makes more than desired.
//!
//! Caches only decide whether to act. Irreversible steps are decided on a live read and tied to it by compare-and-swap:
//! the pool is read first, its Agents after it, and the pool's counters are written only over the version that was
//! read.

mod build;
mod observe;
mod scale_down;
mod status;

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use kube::ResourceExt;
use kube::runtime::controller::Action;

use super::budget;
use super::context::{Context, NextLook, jittered};
use super::namespace_setup;
use super::status_throttle::publish;
use super::stores::PoolObject;
use crate::api::conditions::reasons;
use crate::api::names::managers;
use crate::api::{Agent, AgentPool, AgentPoolStatus};
use crate::cluster::{Class, Error, ObjectKey, calls};
use crate::policy::pool::{AgentFacts, Facts, MemberState, Plan, RemovalReason, plan};
use crate::policy::status_throttle::WriteDecision;
use observe::{Member, PoolBlockers, PoolObservation};

pub use build::{child_agent, external_agent};
pub use observe::{crashed_ago, missing_references, unsupported};
pub use scale_down::ScaleDowns;

/// Name of this controller in metrics and logs.
pub const CONTROLLER_NAME: &str = "agentpool";
/// How often every pool is reconciled, in case an event was missed.
const RESYNC_INTERVAL: Duration = Duration::from_secs(30);
/// Retry delay while the cache does not show our own last write. Usually the watch event of that write comes earlier.
const GATE_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Maximum number of Agents that are created or deleted concurrently.
const MAX_CONCURRENT_WRITES: usize = 16;

/// Reconciles one pool: observe, validate, plan, apply, write the status.
pub async fn reconcile(object: Arc<PoolObject>, context: Arc<Context>) -> Result<Action, Error> {
    let key = ObjectKey::of(object.as_ref());
    let pool = match &object.0 {
        Ok(pool) => pool,
        Err(invalid) => {
            if context.is_new_error(CONTROLLER_NAME, key.clone(), &invalid.error) {
                tracing::error!(namespace = %key.namespace, pool = %key.name, error = %invalid.error, "a stored AgentPool does not fit its type; it is left alone");
                let note = format!(
                    "the stored object does not fit its type, so the operator ignores it. Apply the current CustomResourceDefinitions, then the object: {}",
                    invalid.error
                );
                context.events.warning(object.as_ref(), reasons::INVALID_OBJECT, "Validate", note).await;
            }
            return Ok(Action::await_change());
        }
    };
    if pool.metadata.deletion_timestamp.is_some() {
        return Ok(Action::await_change()); // its Agents are deleted with it
    }
    context.reconcile(CONTROLLER_NAME, key.clone(), reconcile_pool(pool, &key, &context)).await
}

/// The action after a failed reconcile.
pub fn after_error(object: Arc<PoolObject>, error: &Error, context: Arc<Context>) -> Action {
    context.after_error(CONTROLLER_NAME, ObjectKey::of(object.as_ref()), error)
}

/// Forgets a deleted pool.
pub fn forget(key: &ObjectKey, context: &Context) {
    context.forget(CONTROLLER_NAME, key);
    context.pool_gate.forget(key);
    context.scale_downs.forget(key);
}

async fn reconcile_pool(pool: &AgentPool, key: &ObjectKey, context: &Context) -> Result<NextLook, Error> {
    if !context.pool_gate.open(key, pool.metadata.resource_version.as_deref()) {
        context.metrics.gated(CONTROLLER_NAME);
        return Ok(NextLook::After(GATE_RETRY_DELAY));
    }
    // The namespace setup comes before the first agent, and is repaired as long as the pool exists.
    let refused = match namespace_setup::ensure(&key.namespace, context).await {
        Ok(()) => None,
        Err(error) => match error.class() {
            Class::Refused | Class::QuotaExceeded | Class::Terminating => Some(error.message()),
            Class::Conflict | Class::AlreadyExists | Class::NotFound | Class::LostLeadership | Class::Unavailable => return Err(error),
        },
    };
    let mut cached = observe::from_cache(pool, key, context);
    if let Some(message) = refused {
        cached.blocked = Some(PoolBlockers { reason: reasons::WALLS_PENDING, message });
        let plan = Plan { counters: plan(&Facts { desired: 0, ..cached.facts.clone() }).counters, ..Plan::default() };
        store(pool, &cached, &plan, key, context).await?;
        return Ok(NextLook::WithBackoff);
    }
    let default = budget::ensure_defaults(pool, key, context).await?;
    let plan = plan(&cached.facts);
    if !plan.settled() {
        return apply_live_plan(pool, key, context).await;
    }
    let wait = store(pool, &cached, &plan, key, context).await?;
    let soonest = [Some(jittered(RESYNC_INTERVAL)), wait, plan.look_again, cached.shrinks_after, default]
        .into_iter()
        .flatten()
        .min()
        .unwrap_or(RESYNC_INTERVAL);
    Ok(NextLook::After(soonest))
}

/// Writes the status if it changed. Returns the delay of a change that may wait.
async fn store(
    pool: &AgentPool,
    observed: &PoolObservation,
    plan: &Plan,
    key: &ObjectKey,
    context: &Context,
) -> Result<Option<Duration>, Error> {
    let (next, change) = status::next_status(pool, observed, plan.counters, context.epoch);
    match context.decide_write(CONTROLLER_NAME, key, change) {
        WriteDecision::Never => Ok(None),
        WriteDecision::After(wait) => Ok(Some(wait)),
        WriteDecision::Now => write(pool, &next, key, context).await.map(|_| None),
    }
}

async fn write(pool: &AgentPool, next: &AgentPoolStatus, key: &ObjectKey, context: &Context) -> Result<AgentPool, Error> {
    let stored = publish(context, &context.api::<AgentPool>(&key.namespace), pool, managers::POOL, next).await?;
    context.pool_gate.wrote(key.clone(), stored.metadata.resource_version.as_deref());
    report_events(pool, &stored, context).await;
    Ok(stored)
}

/// Creates and deletes Agents, based on a live read.
async fn apply_live_plan(pool: &AgentPool, key: &ObjectKey, context: &Context) -> Result<NextLook, Error> {
    let pools = context.api::<AgentPool>(&key.namespace);
    let Some(mut live) = pools.get_opt(&key.name).await.map_err(Error::of("reading a pool"))? else {
        return Ok(NextLook::OnChange);
    };
    if live.metadata.uid != pool.metadata.uid || live.metadata.deletion_timestamp.is_some() {
        return Ok(NextLook::OnChange);
    }
    let mut observed = observe::live(&live, key, context).await?;
    let plan = plan(&observed.facts);
    if plan.counters_first {
        let (next, _) = status::next_status(&live, &observed, plan.counters, context.epoch);
        live = write(&live, &next, key, context).await?;
    }
    wake(key, context, &observed, &plan).await?;
    let made = create(&live, key, context, &plan).await?;
    put_to_sleep(key, context, &observed, &plan).await?;
    delete(key, context, &observed, &plan).await?;
    match made {
        // The watch shows these writes, which triggers the next reconcile. This delay is for a lost event.
        CreationOutcome::AllExist => Ok(NextLook::After(GATE_RETRY_DELAY)),
        CreationOutcome::NamesTaken(numbers) => {
            // These numbers are stored as used, so that they are never tried again.
            let used_up = |number: i64| AgentFacts {
                name: String::new(),
                sequence: Some(number),
                state: MemberState::Foreign,
                age: Duration::ZERO,
                can_hibernate: false,
            };
            observed.facts.agents.extend(numbers.into_iter().map(used_up));
            observed.facts.spawned = plan.counters.spawned;
            let counters = crate::policy::pool::plan(&Facts { desired: 0, ..observed.facts.clone() }).counters;
            let (next, _) = status::next_status(&live, &observed, counters, context.epoch);
            write(&live, &next, key, context).await?;
            Ok(NextLook::After(GATE_RETRY_DELAY))
        }
        CreationOutcome::Refused(refusal) => {
            // The pool must report it, because there is no Agent that could.
            observed.blocked = Some(refusal);
            store(&live, &observed, &plan, key, context).await?;
            Ok(NextLook::WithBackoff)
        }
    }
}

/// The result of creating Agents.
enum CreationOutcome {
    /// All of them exist.
    AllExist,
    /// Foreign objects have the names of these numbers.
    NamesTaken(Vec<i64>),
    /// The API server refuses, until a person changes something.
    Refused(PoolBlockers),
}

/// Creates the planned Agents. If its number proves its name, an Agent that exists already is ours, from an earlier
/// attempt or an earlier leader. Else a foreign object has the name.
async fn create(pool: &AgentPool, key: &ObjectKey, context: &Context, plan: &Plan) -> Result<CreationOutcome, Error> {
    let api = context.api::<Agent>(&key.namespace);
    let making = plan.create.iter().map(|number| {
        let (api, agent) = (&api, build::agent(pool, *number));
        async move {
            context.leadership.check()?;
            match calls::create(api, &agent, managers::POOL).await {
                // The API server silently drops fields that it does not know. Without its number an Agent cannot be
                // recognized as ours.
                Ok(made) if made.spec.sequence != agent.spec.sequence => {
                    let message = "the API server drops the field spec.sequence of Agents, because its CustomResourceDefinitions are older than this operator. Apply the current CustomResourceDefinitions".to_owned();
                    Ok(CreationOutcome::Refused(PoolBlockers { reason: reasons::AGENT_REFUSED, message }))
                }
                Ok(_) => Ok(CreationOutcome::AllExist),
                Err(error) => match error.class() {
                    Class::AlreadyExists => {
                        let there = api.get_opt(&agent.name_any()).await.map_err(Error::of("reading an Agent"));
                        // An Agent that cannot be read does not fit its type. The controller of Agents reports it.
                        let ours = !matches!(there, Ok(Some(there)) if there.spec.sequence != Some(*number) || there.spec.pool_ref != agent.spec.pool_ref);
                        Ok(if ours { CreationOutcome::AllExist } else { CreationOutcome::NamesTaken(vec![*number]) })
                    }
                    Class::QuotaExceeded => Ok(CreationOutcome::Refused(PoolBlockers { reason: reasons::QUOTA_EXCEEDED, message: error.message() })),
                    Class::Terminating => Ok(CreationOutcome::Refused(PoolBlockers { reason: reasons::NAMESPACE_TERMINATING, message: error.message() })),
                    Class::Refused => Ok(CreationOutcome::Refused(PoolBlockers { reason: reasons::AGENT_REFUSED, message: error.message() })),
                    Class::Conflict | Class::NotFound | Class::LostLeadership | Class::Unavailable => Err(error),
                },
            }
        }
    });
    let making: Vec<_> = making.collect();
    let all: Vec<CreationOutcome> = futures::stream::iter(making).buffer_unordered(MAX_CONCURRENT_WRITES).try_collect().await?;
    Ok(all.into_iter().fold(CreationOutcome::AllExist, |so_far, next| match (so_far, next) {
        (CreationOutcome::Refused(refusal), _) | (_, CreationOutcome::Refused(refusal)) => CreationOutcome::Refused(refusal),
        (CreationOutcome::NamesTaken(mut numbers), CreationOutcome::NamesTaken(more)) => {
            numbers.extend(more);
            CreationOutcome::NamesTaken(numbers)
        }
        (CreationOutcome::NamesTaken(numbers), CreationOutcome::AllExist)
        | (CreationOutcome::AllExist, CreationOutcome::NamesTaken(numbers)) => CreationOutcome::NamesTaken(numbers),
        (CreationOutcome::AllExist, CreationOutcome::AllExist) => CreationOutcome::AllExist,
    }))
}

/// Excludes an Agent from work. `false`: it has just got an item, and is left alone.
fn retire_from_work(member: &Member, key: &ObjectKey, context: &Context) -> bool {
    member.caller_uid.as_ref().is_none_or(|uid| context.work_index.with(&key.namespace, |work| work.retire(uid)))
}

/// Hibernates the planned Agents, after a renewal of our lease that began after the decision, because their pods are
/// deleted.
async fn put_to_sleep(key: &ObjectKey, context: &Context, observed: &PoolObservation, plan: &Plan) -> Result<(), Error> {
    if plan.hibernate.is_empty() {
        return Ok(());
    }
    context.leadership.confirm().await?;
    set_hibernated(&plan.hibernate, true, key, context, observed).await
}

/// Wakes the planned Agents.
async fn wake(key: &ObjectKey, context: &Context, observed: &PoolObservation, plan: &Plan) -> Result<(), Error> {
    context.leadership.check()?;
    set_hibernated(&plan.wake, false, key, context, observed).await
}

/// Sets `spec.hibernated` of each Agent that still has the version that the decision was based on. The next reconcile
/// decides about the others.
async fn set_hibernated(
    names: &[String],
    hibernated: bool,
    key: &ObjectKey,
    context: &Context,
    observed: &PoolObservation,
) -> Result<(), Error> {
    let api = context.api::<Agent>(&key.namespace);
    let writing = names.iter().map(|name| {
        let api = &api;
        async move {
            let Some(member) = observed.members.get(name).filter(|member| !hibernated || retire_from_work(member, key, context)) else {
                return Ok(());
            };
            let spec = serde_json::json!({"hibernated": hibernated});
            let Some(meta) = calls::patch_spec(api, name, (&member.uid, &member.version), managers::POOL, spec).await? else {
                return Ok(());
            };
            let agent = ObjectKey { namespace: key.namespace.clone(), name: name.clone() };
            context.agent_gate.wrote(agent, meta.resource_version.as_deref());
            tracing::info!(namespace = %key.namespace, pool = %key.name, agent = %name, hibernated, "set spec.hibernated of an Agent");
            Ok(())
        }
    });
    let writing: Vec<_> = writing.collect();
    futures::stream::iter(writing).buffer_unordered(MAX_CONCURRENT_WRITES).try_collect().await
}

/// Deletes the planned Agents, after a renewal of our lease that began after the decision.
async fn delete(key: &ObjectKey, context: &Context, observed: &PoolObservation, plan: &Plan) -> Result<(), Error> {
    if plan.delete.is_empty() {
        return Ok(());
    }
    context.leadership.confirm().await?;
    let api = context.api::<Agent>(&key.namespace);
    let deleting = plan.delete.iter().map(|(name, why)| {
        let api = &api;
        async move {
            let Some(member) = observed.members.get(name).filter(|member| retire_from_work(member, key, context)) else { return Ok(()) };
            calls::delete(api, name, &member.uid, None).await?;
            let why = match why {
                RemovalReason::ScaledDown => "the pool wants fewer agents",
                RemovalReason::Collected => "the agent ended, and spec.supervision.stoppedTTLSeconds of the pool is over",
                RemovalReason::NotKept => "the agent hibernates, and the pool keeps fewer hibernated agents",
            };
            tracing::info!(namespace = %key.namespace, pool = %key.name, agent = %name, why, "deleted an Agent");
            Ok(())
        }
    });
    let deleting: Vec<_> = deleting.collect();
    futures::stream::iter(deleting).buffer_unordered(MAX_CONCURRENT_WRITES).try_collect().await
}

/// Reports transitions as log lines and events.
async fn report_events(before: &AgentPool, after: &AgentPool, context: &Context) {
    for news in status::status_events(before.status.as_ref(), after.status.as_ref()) {
        tracing::info!(namespace = %after.namespace().unwrap_or_default(), pool = %after.name_any(), reason = news.reason, "{}", news.note);
        if news.warning {
            context.events.warning(after, &news.reason, &news.action, news.note).await;
        } else {
            context.events.normal(after, &news.reason, &news.action, news.note).await;
        }
    }
}
