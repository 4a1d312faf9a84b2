//! `AgentPool` -> `Agent`s: as many as wanted, never one too many.
//!
//! Caches say when to look; what is irreversible is decided on a live look and tied to it by compare-and-swap: the pool is
//! read first, its Agents after it, and the pool's counters are written only over the version that was read.

mod build;
mod observe;
mod status;

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use kube::ResourceExt;
use kube::runtime::controller::Action;

use super::context::{Context, Key, jittered};
use super::publish::publish;
use super::stores::PoolObject;
use crate::api::names::managers;
use crate::api::{Agent, AgentPool};
use crate::cluster::{Class, Error, calls};
use crate::policy::pool::{Leaving, Plan, plan, settled};
use crate::policy::publish::When;

pub use observe::{missing_references, unsupported};

/// Name of this controller in metrics and logs.
pub const CONTROLLER: &str = "agentpool";
/// Every pool is looked at this often, in case an event was missed.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// When the cache has not seen our own last write, its event comes; this is for when it does not.
const GATE_RETRY: Duration = Duration::from_secs(5);
/// Agents made or deleted at once.
const AT_ONCE: usize = 16;

/// Observe, validate, plan, apply, status.
pub async fn reconcile(object: Arc<PoolObject>, context: Arc<Context>) -> Result<Action, Error> {
    let key = Key::of(object.as_ref());
    let pool = match &object.0 {
        Ok(pool) => pool,
        Err(invalid) => {
            if context.invalid_is_news(CONTROLLER, key.clone(), &invalid.error) {
                tracing::error!(namespace = %key.namespace, pool = %key.name, error = %invalid.error, "a stored AgentPool does not fit its type; it is left alone");
                let note = format!("the stored object does not fit its type and is left alone: {}", invalid.error);
                context.events.warning(object.as_ref(), crate::api::conditions::reasons::INVALID_OBJECT, "Validate", note).await;
            }
            return Ok(Action::await_change());
        }
    };
    if pool.metadata.deletion_timestamp.is_some() {
        return Ok(Action::await_change()); // its Agents are deleted with it
    }
    context.reconcile(CONTROLLER, key.clone(), one(pool, &key, &context)).await
}

/// What follows from an error.
pub fn after_error(object: Arc<PoolObject>, error: &Error, context: Arc<Context>) -> Action {
    context.after_error(CONTROLLER, Key::of(object.as_ref()), error)
}

async fn one(pool: &AgentPool, key: &Key, context: &Context) -> Result<Action, Error> {
    if !context.pool_gate.open(key, pool.metadata.resource_version.as_deref()) {
        context.metrics.gated(CONTROLLER);
        return Ok(Action::requeue(GATE_RETRY));
    }
    let cached = observe::from_cache(pool, key, context);
    if !settled(&cached.facts) {
        return act(pool, key, context).await;
    }
    let plan = plan(&cached.facts);
    let wait = match status::next(pool, &cached, None, context.epoch) {
        None => None,
        Some((next, change)) => match context.publish_now(CONTROLLER, key, change) {
            When::Never => None,
            When::After(wait) => Some(wait),
            When::Now => {
                let stored = publish(context, &context.api::<AgentPool>(&key.namespace), pool, managers::POOL, &next).await?;
                context.pool_gate.wrote(key.clone(), stored.metadata.resource_version.as_deref());
                tell(pool, &stored, context).await;
                None
            }
        },
    };
    let soonest = [Some(jittered(LOOK_AGAIN)), wait, plan.look_again].into_iter().flatten().min().unwrap_or(LOOK_AGAIN);
    Ok(Action::requeue(soonest))
}

/// Makes and deletes Agents, on a live look.
async fn act(pool: &AgentPool, key: &Key, context: &Context) -> Result<Action, Error> {
    let pools = context.api::<AgentPool>(&key.namespace);
    let Some(live) = pools.get_opt(&key.name).await.map_err(Error::of("reading a pool"))? else {
        return Ok(Action::await_change());
    };
    if live.metadata.uid != pool.metadata.uid || live.metadata.deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    let observed = observe::live(&live, key, context).await?;
    let plan = plan(&observed.facts);
    if let Some(counters) = plan.counters {
        let Some((next, _)) = status::next(&live, &observed, Some(counters), context.epoch) else { return Ok(Action::requeue(GATE_RETRY)) };
        let stored = publish(context, &pools, &live, managers::POOL, &next).await?;
        context.pool_gate.wrote(key.clone(), stored.metadata.resource_version.as_deref());
        tell(&live, &stored, context).await;
    }
    create(&live, key, context, &plan).await?;
    delete(key, context, &observed, &plan).await?;
    // The watch shows what was done, and wakes us; should nothing come, we look again.
    Ok(Action::requeue(jittered(LOOK_AGAIN).min(GATE_RETRY)))
}

/// Makes the planned Agents. One that is there already was made by an earlier try of ours, or by a leader before us.
async fn create(pool: &AgentPool, key: &Key, context: &Context, plan: &Plan) -> Result<(), Error> {
    let api = context.api::<Agent>(&key.namespace);
    let making = plan.create.iter().map(|number| {
        let (api, agent) = (&api, build::agent(pool, *number));
        async move {
            context.leadership.check()?;
            match calls::create(api, &agent, managers::POOL).await {
                Ok(_) => Ok(()),
                Err(error) if error.class() == Class::AlreadyExists => Ok(()),
                Err(error) => Err(error),
            }
        }
    });
    let making: Vec<_> = making.collect();
    futures::stream::iter(making).buffer_unordered(AT_ONCE).try_collect().await
}

/// Deletes the planned Agents, after a renewal of our lease that began after the decision.
async fn delete(key: &Key, context: &Context, observed: &observe::Observed, plan: &Plan) -> Result<(), Error> {
    if plan.delete.is_empty() {
        return Ok(());
    }
    context.leadership.confirm().await?;
    let api = context.api::<Agent>(&key.namespace);
    let deleting = plan.delete.iter().map(|(name, why)| {
        let api = &api;
        async move {
            let Some(uid) = observed.uids.get(name) else { return Ok(()) };
            calls::delete(api, name, uid, None).await?;
            let why = match why {
                Leaving::ScaledDown => "the pool wants fewer",
                Leaving::Collected => "it ended and was kept long enough",
            };
            tracing::info!(namespace = %key.namespace, pool = %key.name, agent = %name, why, "deleted an Agent");
            Ok(())
        }
    });
    let deleting: Vec<_> = deleting.collect();
    futures::stream::iter(deleting).buffer_unordered(AT_ONCE).try_collect().await
}

/// Tells people of transitions.
async fn tell(before: &AgentPool, after: &AgentPool, context: &Context) {
    for news in status::news(before.status.as_ref(), after.status.as_ref()) {
        tracing::info!(namespace = %after.namespace().unwrap_or_default(), pool = %after.name_any(), reason = news.reason, "{}", news.note);
        if news.warning {
            context.events.warning(after, &news.reason, "Scale", news.note).await;
        } else {
            context.events.normal(after, &news.reason, "Scale", news.note).await;
        }
    }
}
