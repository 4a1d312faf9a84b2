//! `AgentPool` -> `Agent`s: as many as wanted, never one too many.
//!
//! Caches say when to look; what is irreversible is decided on a live look and tied to it by compare-and-swap: the pool is
//! read first, its Agents after it, and the pool's counters are written only over the version that was read.

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

pub use build::{child, external};
pub use observe::{crashed_ago, missing_references, unsupported};
pub use scale_down::ScaleDowns;

/// Name of this controller in metrics and logs.
pub const CONTROLLER_NAME: &str = "agentpool";
/// Every pool is looked at this often, in case an event was missed.
const RESYNC_INTERVAL: Duration = Duration::from_secs(30);
/// When the cache has not seen our own last write, its event comes; this is for when it does not.
const GATE_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Agents made or deleted at once.
const MAX_CONCURRENT_WRITES: usize = 16;

/// Observe, validate, plan, apply, status.
pub async fn reconcile(object: Arc<PoolObject>, context: Arc<Context>) -> Result<Action, Error> {
    let key = ObjectKey::of(object.as_ref());
    let pool = match &object.0 {
        Ok(pool) => pool,
        Err(invalid) => {
            if context.invalid_is_news(CONTROLLER_NAME, key.clone(), &invalid.error) {
                tracing::error!(namespace = %key.namespace, pool = %key.name, error = %invalid.error, "a stored AgentPool does not fit its type; it is left alone");
                let note = format!(
                    "the stored object does not fit its type, so the operator ignores it: {}. Apply the current CustomResourceDefinitions, then the object",
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
    context.reconcile(CONTROLLER_NAME, key.clone(), one(pool, &key, &context)).await
}

/// What follows from an error.
pub fn after_error(object: Arc<PoolObject>, error: &Error, context: Arc<Context>) -> Action {
    context.after_error(CONTROLLER_NAME, ObjectKey::of(object.as_ref()), error)
}

/// The pool is gone: nothing is remembered of it.
pub fn forget(key: &ObjectKey, context: &Context) {
    context.forget(CONTROLLER_NAME, key);
    context.pool_gate.forget(key);
    context.descent.forget(key);
}

async fn one(pool: &AgentPool, key: &ObjectKey, context: &Context) -> Result<NextLook, Error> {
    if !context.pool_gate.open(key, pool.metadata.resource_version.as_deref()) {
        context.metrics.gated(CONTROLLER_NAME);
        return Ok(NextLook::After(GATE_RETRY_DELAY));
    }
    // Before its first agent, and for as long as the pool is there, whoever takes them down.
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
        return Ok(NextLook::Later);
    }
    let default = budget::ensure_defaults(pool, key, context).await?;
    let plan = plan(&cached.facts);
    if !plan.settled() {
        return act(pool, key, context).await;
    }
    let wait = store(pool, &cached, &plan, key, context).await?;
    let soonest = [Some(jittered(RESYNC_INTERVAL)), wait, plan.look_again, cached.settles, default]
        .into_iter()
        .flatten()
        .min()
        .unwrap_or(RESYNC_INTERVAL);
    Ok(NextLook::After(soonest))
}

/// Stores the status if it says something new. Gives back how long a change that may wait is put off.
async fn store(
    pool: &AgentPool,
    observed: &PoolObservation,
    plan: &Plan,
    key: &ObjectKey,
    context: &Context,
) -> Result<Option<Duration>, Error> {
    let (next, change) = status::next(pool, observed, plan.counters, context.epoch);
    match context.publish_now(CONTROLLER_NAME, key, change) {
        WriteDecision::Never => Ok(None),
        WriteDecision::After(wait) => Ok(Some(wait)),
        WriteDecision::Now => write(pool, &next, key, context).await.map(|_| None),
    }
}

async fn write(pool: &AgentPool, next: &AgentPoolStatus, key: &ObjectKey, context: &Context) -> Result<AgentPool, Error> {
    let stored = publish(context, &context.api::<AgentPool>(&key.namespace), pool, managers::POOL, next).await?;
    context.pool_gate.wrote(key.clone(), stored.metadata.resource_version.as_deref());
    tell(pool, &stored, context).await;
    Ok(stored)
}

/// Makes and deletes Agents, on a live look.
async fn act(pool: &AgentPool, key: &ObjectKey, context: &Context) -> Result<NextLook, Error> {
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
        let (next, _) = status::next(&live, &observed, plan.counters, context.epoch);
        live = write(&live, &next, key, context).await?;
    }
    wake(key, context, &observed, &plan).await?;
    let made = create(&live, key, context, &plan).await?;
    put_to_sleep(key, context, &observed, &plan).await?;
    delete(key, context, &observed, &plan).await?;
    match made {
        // The watch shows what was done, and wakes us; should nothing come, we look again.
        CreationOutcome::All => Ok(NextLook::After(GATE_RETRY_DELAY)),
        CreationOutcome::NamesTaken(numbers) => {
            // Those numbers are used up: stored as such, they are never tried again.
            let used_up = |number: i64| AgentFacts {
                name: String::new(),
                sequence: Some(number),
                standing: MemberState::Foreign,
                age: Duration::ZERO,
                keeps: false,
            };
            observed.facts.agents.extend(numbers.into_iter().map(used_up));
            observed.facts.spawned = plan.counters.spawned;
            let counters = crate::policy::pool::plan(&Facts { desired: 0, ..observed.facts.clone() }).counters;
            let (next, _) = status::next(&live, &observed, counters, context.epoch);
            write(&live, &next, key, context).await?;
            Ok(NextLook::After(GATE_RETRY_DELAY))
        }
        CreationOutcome::Refused(refusal) => {
            // Nothing else will tell of it: there is no Agent that could.
            observed.blocked = Some(refusal);
            store(&live, &observed, &plan, key, context).await?;
            Ok(NextLook::Later)
        }
    }
}

/// What became of the Agents that were to be made.
enum CreationOutcome {
    /// They are there.
    All,
    /// Other people's objects have the names of these numbers.
    NamesTaken(Vec<i64>),
    /// The API server refuses, until a person changes something.
    Refused(PoolBlockers),
}

/// Makes the planned Agents. One that is there already was made by an earlier try of ours, or by a leader before us, if
/// its name is proved by its number; else somebody else has the name.
async fn create(pool: &AgentPool, key: &ObjectKey, context: &Context, plan: &Plan) -> Result<CreationOutcome, Error> {
    let api = context.api::<Agent>(&key.namespace);
    let making = plan.create.iter().map(|number| {
        let (api, agent) = (&api, build::agent(pool, *number));
        async move {
            context.leadership.check()?;
            match calls::create(api, &agent, managers::POOL).await {
                // A field that the API server does not know it drops without a word: such an Agent could never be told ours.
                Ok(made) if made.spec.sequence != agent.spec.sequence => {
                    let message = "the API server drops the field spec.sequence of Agents, because its CustomResourceDefinitions are older than this operator. Apply the current CustomResourceDefinitions".to_owned();
                    Ok(CreationOutcome::Refused(PoolBlockers { reason: reasons::AGENT_REFUSED, message }))
                }
                Ok(_) => Ok(CreationOutcome::All),
                Err(error) => match error.class() {
                    Class::AlreadyExists => {
                        let there = api.get_opt(&agent.name_any()).await.map_err(Error::of("reading an Agent"));
                        // One that cannot be read does not fit its type: it is told of where Agents are.
                        let ours = !matches!(there, Ok(Some(there)) if there.spec.sequence != Some(*number) || there.spec.pool_ref != agent.spec.pool_ref);
                        Ok(if ours { CreationOutcome::All } else { CreationOutcome::NamesTaken(vec![*number]) })
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
    Ok(all.into_iter().fold(CreationOutcome::All, |so_far, next| match (so_far, next) {
        (CreationOutcome::Refused(refusal), _) | (_, CreationOutcome::Refused(refusal)) => CreationOutcome::Refused(refusal),
        (CreationOutcome::NamesTaken(mut numbers), CreationOutcome::NamesTaken(more)) => {
            numbers.extend(more);
            CreationOutcome::NamesTaken(numbers)
        }
        (CreationOutcome::NamesTaken(numbers), CreationOutcome::All) | (CreationOutcome::All, CreationOutcome::NamesTaken(numbers)) => {
            CreationOutcome::NamesTaken(numbers)
        }
        (CreationOutcome::All, CreationOutcome::All) => CreationOutcome::All,
    }))
}

/// From here an Agent gets no work any more. No: it just got some, and is left alone.
fn retired(member: &Member, key: &ObjectKey, context: &Context) -> bool {
    member.caller.as_ref().is_none_or(|uid| context.work_index.with(&key.namespace, |work| work.retire(uid)))
}

/// Puts the planned Agents to sleep, after a renewal of our lease that began after the decision: their pods go.
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

/// Says so in each Agent's spec, if it still is the very version that was decided on: else it is looked at again.
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
            let Some(member) = observed.members.get(name).filter(|member| !hibernated || retired(member, key, context)) else {
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
            let Some(member) = observed.members.get(name).filter(|member| retired(member, key, context)) else { return Ok(()) };
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

/// Tells people of transitions.
async fn tell(before: &AgentPool, after: &AgentPool, context: &Context) {
    for news in status::news(before.status.as_ref(), after.status.as_ref()) {
        tracing::info!(namespace = %after.namespace().unwrap_or_default(), pool = %after.name_any(), reason = news.reason, "{}", news.note);
        if news.warning {
            context.events.warning(after, &news.reason, &news.action, news.note).await;
        } else {
            context.events.normal(after, &news.reason, &news.action, news.note).await;
        }
    }
}
