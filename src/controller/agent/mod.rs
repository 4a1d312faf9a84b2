//! `Agent` -> pod: makes it, records it, tells its state, ends with it.

mod build;
mod disappear;
mod observe;
mod pod_view;
mod status;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::runtime::controller::Action;

use super::context::{Context, Key, jittered};
use super::publish::publish;
use super::stores::AgentObject;
use crate::api::agent::{AgentPhase, PodRef};
use crate::api::names::{self, managers};
use crate::api::{Agent, AgentPool, AgentStatus};
use crate::cluster::{Class, Error, calls};
use crate::policy::agent::{Hindrance, HindranceKind, State, Step, plan};
use crate::policy::presence::Verdict;

pub use build::owner;
pub use disappear::Disappearances;
pub use observe::Observed;
pub use pod_view::reachable;
pub use status::hindrance_reason;

/// Name of this controller in metrics and logs.
pub const CONTROLLER: &str = "agent";
/// A quiet Agent is looked at again this often, in case an event was missed.
const LOOK_AGAIN: Duration = Duration::from_secs(300);
/// When the cache has not seen our own last write, its event comes; this is for when it does not.
const GATE_RETRY: Duration = Duration::from_secs(5);

/// Observe, plan, apply, status.
pub async fn reconcile(object: Arc<AgentObject>, context: Arc<Context>) -> Result<Action, Error> {
    let key = Key::of(object.as_ref());
    let agent = match &object.0 {
        Ok(agent) => agent,
        Err(invalid) => {
            if context.invalid_is_news(CONTROLLER, key.clone(), &invalid.error) {
                tracing::error!(namespace = %key.namespace, agent = %key.name, error = %invalid.error, "a stored Agent does not fit its type; it is left alone");
            }
            return Ok(Action::await_change());
        }
    };
    context.reconcile(CONTROLLER, key.clone(), one(agent, &key, &context)).await
}

/// What follows from an error.
pub fn after_error(object: Arc<AgentObject>, error: &Error, context: Arc<Context>) -> Action {
    context.after_error(CONTROLLER, Key::of(object.as_ref()), error)
}

async fn one(agent: &Agent, key: &Key, context: &Context) -> Result<Action, Error> {
    let pod = context.stores.pod(key);
    let pod_version = pod.as_ref().and_then(|pod| pod.resource_version());
    let seen =
        context.agent_gate.open(key, agent.metadata.resource_version.as_deref()) && context.pod_gate.open(key, pod_version.as_deref());
    if !seen {
        context.metrics.gated(CONTROLLER);
        return Ok(Action::requeue(GATE_RETRY));
    }
    let observed = observe::observe(agent, key, pod, context).await?;
    let (step, state) = plan(&observed.facts);
    let (state, written) = apply(agent, key, context, &observed, step, state).await?;
    if !matches!(written, Written::Gone) {
        tell(agent, key, context, &observed, &state, written).await?;
    }
    Ok(next_look(key, context, &state))
}

/// What a step left to be written.
enum Written {
    /// The status, as the state says.
    Nothing,
    /// The status, with the pod that was just made.
    Pod(Box<Pod>),
    /// The Agent is gone, or changed under us: nothing.
    Gone,
}

async fn apply(
    agent: &Agent,
    key: &Key,
    context: &Context,
    observed: &Observed,
    step: Step,
    state: State,
) -> Result<(State, Written), Error> {
    match step {
        Step::None => Ok((state, Written::Nothing)),
        Step::AddFinalizer => {
            adopt(agent, key, context, observed).await?;
            Ok((state, Written::Gone))
        }
        Step::CreatePod => create_pod(agent, key, context, observed).await,
        Step::DeletePod => {
            let uid = agent.status.as_ref().and_then(|status| status.pod_ref.as_ref()).map(|pod| pod.uid.clone());
            if let Some(uid) = uid {
                delete_pod(key, context, observed, &uid).await?;
            }
            Ok((state, Written::Nothing))
        }
        Step::DeleteForeignPod => {
            delete_foreign_pod(agent, key, context, observed).await?;
            Ok((state, Written::Nothing))
        }
        Step::RemoveFinalizer => {
            context.leadership.confirm().await?;
            let left = agent.finalizers().iter().filter(|finalizer| *finalizer != names::AGENT_FINALIZER).cloned().collect();
            calls::set_finalizers(&context.api::<Agent>(&key.namespace), &agent.metadata, left).await?;
            forget(agent, key, context);
            Ok((state, Written::Gone))
        }
        Step::DeleteAgent => {
            delete_orphan(agent, key, context).await?;
            Ok((state, Written::Gone))
        }
    }
}

/// Makes an Agent made by hand ours: its finalizer, its pool as owner, its labels.
async fn adopt(agent: &Agent, key: &Key, context: &Context, observed: &Observed) -> Result<(), Error> {
    context.leadership.check()?;
    let patch = build::adoption(agent, observed.pool.as_deref());
    let params = kube::api::PatchParams { field_manager: Some(managers::AGENT.into()), ..Default::default() };
    let api = context.api::<Agent>(&key.namespace);
    let adopted = api.patch_metadata(&key.name, &params, &kube::api::Patch::Merge(patch)).await.map_err(Error::of("adopting an Agent"))?;
    context.agent_gate.wrote(key.clone(), adopted.metadata.resource_version.as_deref());
    Ok(())
}

async fn create_pod(agent: &Agent, key: &Key, context: &Context, observed: &Observed) -> Result<(State, Written), Error> {
    let Some(pool) = observed.pool.as_deref() else { return Ok((State::PoolMissing, Written::Nothing)) };
    context.leadership.check()?;
    let pod = build::pod(agent, pool, observed.user_namespaces);
    match calls::create(&context.api::<Pod>(&key.namespace), &pod, managers::AGENT).await {
        Ok(made) => {
            context.pod_gate.wrote(key.clone(), made.metadata.resource_version.as_deref());
            Ok((State::Pending(None), Written::Pod(Box::new(made))))
        }
        Err(error) => {
            let kind = match error.class() {
                Class::AlreadyExists => {
                    // An answer was lost, or somebody took the name: the pod is nobody's.
                    delete_foreign_pod(agent, key, context, observed).await?;
                    return Ok((State::Replacing, Written::Nothing));
                }
                Class::QuotaExceeded => HindranceKind::QuotaExceeded,
                Class::Terminating => HindranceKind::NamespaceTerminating,
                Class::Refused => HindranceKind::PodRefused,
                Class::Conflict | Class::NotFound | Class::LostLeadership | Class::Unavailable => return Err(error),
            };
            Ok((State::Hindered(Hindrance { kind, message: error.message() }), Written::Nothing))
        }
    }
}

async fn delete_pod(key: &Key, context: &Context, observed: &Observed, uid: &str) -> Result<(), Error> {
    context.leadership.confirm().await?;
    let deleted = calls::delete(&context.api::<Pod>(&key.namespace), &key.name, uid, Some(observed.goodbye_seconds)).await?;
    if let Some(meta) = deleted {
        context.pod_gate.deleted(key.clone(), meta.resource_version.as_deref());
    }
    Ok(())
}

/// Removes the pod under our name that the Agent does not record, after reading both live: a cache that lags must not cost
/// a good pod its life.
async fn delete_foreign_pod(agent: &Agent, key: &Key, context: &Context, observed: &Observed) -> Result<(), Error> {
    let live = context.api::<Agent>(&key.namespace).get_opt(&key.name).await.map_err(Error::of("reading an Agent"))?;
    let Some(live) = live.filter(|live| live.metadata.uid == agent.metadata.uid) else { return Ok(()) };
    let recorded = live.status.as_ref().and_then(|status| status.pod_ref.as_ref()).map(|pod| pod.uid.clone());
    let pod = context.api::<Pod>(&key.namespace).get_opt(&key.name).await.map_err(Error::of("reading a pod"))?;
    let Some(uid) = pod.as_ref().and_then(|pod| pod.metadata.uid.clone()) else { return Ok(()) };
    if recorded.as_deref() == Some(uid.as_str()) || pod.is_some_and(|pod| pod.metadata.deletion_timestamp.is_some()) {
        return Ok(());
    }
    delete_pod(key, context, observed, &uid).await?;
    let note = format!("Pod {} (uid {uid}) was not made by a create that we saw answered; it is replaced", key.name);
    context.events.warning(agent, crate::api::conditions::reasons::FOREIGN_POD, "DeletePod", note).await;
    Ok(())
}

/// Deletes an Agent whose pool is gone, after reading that live.
async fn delete_orphan(agent: &Agent, key: &Key, context: &Context) -> Result<(), Error> {
    let pool =
        context.api::<AgentPool>(&key.namespace).get_metadata_opt(&agent.spec.pool_ref.name).await.map_err(Error::of("reading a pool"))?;
    let owner = observe::owner_uid(agent);
    if pool.is_some_and(|pool| pool.metadata.uid.as_deref() == owner) {
        return Ok(());
    }
    context.leadership.confirm().await?;
    if let Some(uid) = agent.metadata.uid.as_deref() {
        calls::delete(&context.api::<Agent>(&key.namespace), &key.name, uid, None).await?;
    }
    Ok(())
}

/// Writes the status if it says something new, and tells transitions as events.
async fn tell(agent: &Agent, key: &Key, context: &Context, observed: &Observed, state: &State, written: Written) -> Result<(), Error> {
    let made = match &written {
        Written::Pod(pod) => pod.metadata.uid.as_ref().map(|uid| PodRef { name: key.name.clone(), uid: uid.clone() }),
        Written::Nothing | Written::Gone => None,
    };
    let told = status::Told { state, pod: observed.pod.as_deref(), made: made.as_ref(), epoch: context.epoch, now: jiff::Timestamp::now() };
    let Some(next) = status::next(agent, &told) else { return Ok(()) };
    let api = context.api::<Agent>(&key.namespace);
    let stored = match made {
        Some(_) => record(agent, key, context, &next).await?,
        None => publish(context, &api, agent, managers::AGENT, &next).await?,
    };
    context.agent_gate.wrote(key.clone(), stored.metadata.resource_version.as_deref());
    if let Some((reason, note)) = status::news(agent.status.as_ref(), &next) {
        context.events.warning(agent, reason, "Supervise", note).await;
    }
    Ok(())
}

/// Records the pod that was just made. Until this is stored the pod is nobody's, so a conflict with somebody's harmless
/// write (a label, an annotation) is retried here at once instead of costing the pod its life.
async fn record(agent: &Agent, key: &Key, context: &Context, next: &AgentStatus) -> Result<Agent, Error> {
    let api = context.api::<Agent>(&key.namespace);
    let mut current = agent.clone();
    for _ in 0..4 {
        match publish(context, &api, &current, managers::AGENT, next).await {
            Err(error) if error.class() == Class::Conflict => {
                let live = api.get(&key.name).await.map_err(Error::of("reading an Agent"))?;
                let unrecorded = live.status.as_ref().is_none_or(|status| status.pod_ref.is_none());
                if live.metadata.uid != agent.metadata.uid || !unrecorded {
                    return Err(error);
                }
                current = live;
            }
            result => return result,
        }
    }
    publish(context, &api, &current, managers::AGENT, next).await
}

fn next_look(key: &Key, context: &Context, state: &State) -> Action {
    match state {
        State::Hindered(_) | State::Replacing | State::Missing(Verdict::Unknown) => {
            Action::requeue(context.retry_after(CONTROLLER, key.clone()))
        }
        State::Missing(Verdict::NotYet(wait)) => Action::requeue(*wait),
        State::Keep
        | State::Creating
        | State::PoolMissing
        | State::Pending(_)
        | State::Running { .. }
        | State::Unreachable
        | State::Stopping
        | State::Ended(_)
        | State::Missing(Verdict::Gone) => Action::requeue(jittered(LOOK_AGAIN)),
    }
}

fn forget(agent: &Agent, key: &Key, context: &Context) {
    context.forget(CONTROLLER, key);
    context.agent_gate.forget(key);
    context.pod_gate.forget(key);
    if let Some(pod) = agent.status.as_ref().and_then(|status| status.pod_ref.as_ref()) {
        context.disappearances.forget(&pod.uid);
    }
}

/// Whether the stored phase says that the Agent's life is over.
fn ended(agent: &Agent) -> bool {
    agent.status.as_ref().and_then(|status| status.phase).is_some_and(AgentPhase::ended)
}
