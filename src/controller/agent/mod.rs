//! The controller of Agents: creates the pod of each Agent, records it, writes the Agent's status, and cleans up at its
//! end.

mod build;
mod claim;
mod crash;
mod external;
mod govern;
mod observe;
mod pod_termination;
mod pod_view;
mod status;
mod supervise;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::controller::Action;
use kube::{Resource, ResourceExt};

use super::capacity;
use super::context::{Context, NextLook, jittered};
use super::status_throttle::publish;
use super::stores::AgentObject;
use crate::api::agent::{ClaimRef, PodRef};
use crate::api::conditions::reasons;
use crate::api::names::{self, managers};
use crate::api::{Agent, AgentPool, AgentStatus};
use crate::cluster::{Class, Error, ObjectKey, calls};
use crate::governor::{approvals, breaker};
use crate::policy::agent::{Hindrance, HindranceKind, State, Step, plan};
use crate::policy::capacity::Amounts;
use crate::policy::interventions::Signal;
use crate::policy::pod_termination::Verdict;
use crate::policy::status_throttle::{StatusChange, WriteDecision};

pub use build::claim as claim_of;
pub use observe::AgentObservation;
pub use pod_termination::PodTerminations;
pub use status::{hindrance_of, hindrance_reason};
use supervise::Pause;
pub use supervise::{is_given_up, supervisor_pause_reason};

/// Name of this controller in metrics and logs.
pub const CONTROLLER_NAME: &str = "agent";
/// How often an Agent without events is reconciled, in case an event was missed.
const RESYNC_INTERVAL: Duration = Duration::from_secs(300);
/// Retry delay while the cache does not show our own last write. Usually the watch event of that write comes earlier.
const GATE_RETRY_DELAY: Duration = Duration::from_secs(5);
/// How often a pod that the cache does not contain is read live. While it is missing, its node is read too: a node that
/// stays healthy proves that the pod ended.
const MISSING_POD_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// How often a terminating pod is checked.
const LEAVING_POD_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Shortest grace period of a deletion. With 0 the pod object would disappear before its processes.
const MIN_GRACE_SECONDS: u32 = 1;

/// Reconciles one Agent: observe, plan, apply, write the status.
pub async fn reconcile(object: Arc<AgentObject>, context: Arc<Context>) -> Result<Action, Error> {
    let key = ObjectKey::of(object.as_ref());
    let agent = match &object.0 {
        Ok(agent) => agent,
        Err(invalid) => return handle_invalid(object.as_ref(), &invalid.error, &key, &context).await,
    };
    context.reconcile(CONTROLLER_NAME, key.clone(), reconcile_agent(agent, &key, &context)).await
}

/// The action after a failed reconcile.
pub fn after_error(object: Arc<AgentObject>, error: &Error, context: Arc<Context>) -> Action {
    context.after_error(CONTROLLER_NAME, ObjectKey::of(object.as_ref()), error)
}

/// Reports an Agent that does not fit its type, once. If it is being deleted, its pod (found by owner reference) is
/// deleted and its finalizer is removed by metadata alone, so that the deletion does not hang.
async fn handle_invalid(object: &AgentObject, trouble: &str, key: &ObjectKey, context: &Context) -> Result<Action, Error> {
    if context.is_new_error(CONTROLLER_NAME, key.clone(), trouble) {
        tracing::error!(namespace = %key.namespace, agent = %key.name, error = trouble, "a stored Agent does not fit its type; it is left alone");
        let note = format!(
            "the stored object does not fit its type, so the operator ignores it. Apply the current CustomResourceDefinitions, then the object: {trouble}"
        );
        context.events.warning(object, reasons::INVALID_OBJECT, "Validate", note).await;
    }
    let meta = object.meta();
    if context.ends_agents && meta.deletion_timestamp.is_none() {
        end(meta, key, context).await?;
        return Ok(Action::requeue(GATE_RETRY_DELAY));
    }
    if meta.deletion_timestamp.is_none() || !object.finalizers().iter().any(|finalizer| finalizer == names::AGENT_FINALIZER) {
        return Ok(Action::await_change());
    }
    let pod = context.api::<Pod>(&key.namespace).get_opt(&key.name).await.map_err(Error::of("reading a pod"))?;
    let pod = pod.filter(|pod| pod.metadata.owner_references.iter().flatten().any(|owner| Some(&owner.uid) == meta.uid.as_ref()));
    match pod {
        Some(pod) if pod.metadata.deletion_timestamp.is_none() => delete_pod(key, context, &pod.uid().unwrap_or_default(), None).await?,
        Some(_) => {}
        None => remove_finalizer(meta, key, context).await?,
    }
    Ok(Action::requeue(GATE_RETRY_DELAY))
}

async fn remove_finalizer(meta: &ObjectMeta, key: &ObjectKey, context: &Context) -> Result<(), Error> {
    context.leadership.confirm().await?;
    let left = meta.finalizers.iter().flatten().filter(|finalizer| *finalizer != names::AGENT_FINALIZER).cloned().collect();
    calls::set_finalizers(&context.api::<Agent>(&key.namespace), meta, left).await?;
    Ok(())
}

async fn reconcile_agent(agent: &Agent, key: &ObjectKey, context: &Context) -> Result<NextLook, Error> {
    let pod = context.stores.pod(key);
    let pod_version = pod.as_ref().and_then(|pod| pod.resource_version());
    let seen =
        context.agent_gate.open(key, agent.metadata.resource_version.as_deref()) && context.pod_gate.open(key, pod_version.as_deref());
    if !seen {
        context.metrics.gated(CONTROLLER_NAME);
        return Ok(NextLook::After(GATE_RETRY_DELAY));
    }
    if context.ends_agents && agent.metadata.deletion_timestamp.is_none() {
        end(&agent.metadata, key, context).await?;
        return Ok(NextLook::After(GATE_RETRY_DELAY));
    }
    let observed = observe::observe(agent, key, pod, context).await?;
    let (step, state) = plan(&observed.facts);
    govern::update_governor(agent, key, context, &observed, &state);
    let (state, written) = apply(agent, key, context, &observed, step, state).await?;
    // The claim is deleted before the end is stored, so that it is not forgotten. A pod that ended by itself stays
    // readable, with its volume.
    if matches!(state, State::Ended(_)) && observed.pod.as_ref().is_none_or(|pod| pod.metadata.deletion_timestamp.is_some()) {
        claim::delete_claim(agent, key, context).await?;
    }
    let wait = match written {
        StepWrites::Gone => None,
        StepWrites::StatusOnly | StepWrites::Pod(..) => {
            let later = write_status(agent, key, context, &observed, &state, written).await?;
            later.into_iter().chain(approvals::look(agent, key, context).await?).min()
        }
    };
    let wait = wait.into_iter().chain(observed.missing_in_cache.then_some(MISSING_POD_CHECK_INTERVAL)).min();
    Ok(match (wait, next_look(&state)) {
        (Some(wait), NextLook::After(later)) => NextLook::After(wait.min(later)),
        (_, look) => look,
    })
}

/// What remains to be written after a step.
enum StepWrites {
    /// The status that follows from the state.
    StatusOnly,
    /// The status, with the pod that was just created and the claim that it mounts.
    Pod(Box<Pod>, Option<ClaimRef>),
    /// Nothing: the Agent is deleted, or was changed in the meantime.
    Gone,
}

async fn apply(
    agent: &Agent,
    key: &ObjectKey,
    context: &Context,
    observed: &AgentObservation,
    step: Step,
    state: State,
) -> Result<(State, StepWrites), Error> {
    match step {
        Step::None => Ok((state, StepWrites::StatusOnly)),
        Step::Adopt => {
            adopt(agent, key, context, observed).await?;
            Ok((state, StepWrites::Gone))
        }
        Step::CreatePod => create_pod(agent, key, context, observed).await,
        Step::DeletePod => {
            if let Some(pod) = agent.status.as_ref().and_then(|status| status.pod_ref.as_ref()) {
                delete_pod(key, context, &pod.uid, None).await?;
            }
            Ok((state, StepWrites::StatusOnly))
        }
        Step::ForcePod => {
            if let Some(pod) = agent.status.as_ref().and_then(|status| status.pod_ref.as_ref()) {
                delete_pod(key, context, &pod.uid, Some(MIN_GRACE_SECONDS)).await?;
            }
            Ok((state, StepWrites::StatusOnly))
        }
        Step::DeleteForeignPod => {
            delete_foreign_pod(agent, key, context).await?;
            Ok((state, StepWrites::StatusOnly))
        }
        Step::RemoveFinalizer => {
            remove_finalizer(&agent.metadata, key, context).await?;
            forget_agent(agent, key, context);
            Ok((state, StepWrites::Gone))
        }
        Step::DeleteAgent => {
            delete_orphan(agent, key, context).await?;
            Ok((state, StepWrites::Gone))
        }
    }
}

/// Adopts an Agent that a person created or changed: sets its finalizer, its pool as owner, and its labels.
async fn adopt(agent: &Agent, key: &ObjectKey, context: &Context, observed: &AgentObservation) -> Result<(), Error> {
    context.leadership.check()?;
    let patch = build::adoption_patch(agent, observed.pool());
    let params = kube::api::PatchParams { field_manager: Some(managers::AGENT.into()), ..Default::default() };
    let api = context.api::<Agent>(&key.namespace);
    let adopted = api.patch_metadata(&key.name, &params, &kube::api::Patch::Merge(patch)).await.map_err(Error::of("adopting an Agent"))?;
    context.agent_gate.wrote(key.clone(), adopted.metadata.resource_version.as_deref());
    Ok(())
}

async fn create_pod(agent: &Agent, key: &ObjectKey, context: &Context, observed: &AgentObservation) -> Result<(State, StepWrites), Error> {
    let Some(pool) = observed.pool() else { return Ok((State::PoolMissing, StepWrites::StatusOnly)) };
    let pod = build::pod(agent, pool, observe::user_namespaces(pool, context), &context.supervised);
    let volume = if agent.status.as_ref().is_some_and(|status| status.claim_ref.is_some()) { None } else { build::claim(agent, pool) };
    let amounts =
        Amounts { agents: 1, memory: capacity::total_memory_limit(&pod), storage: volume.as_ref().map_or(0, capacity::requested_storage) };
    // Capacity is reserved before the volume is created, so that a refusal leaves no volume behind.
    if let Err(hindrance) = context.pending_places.reserve(key, pool, amounts, &context.stores) {
        return Ok((State::Hindered(hindrance), StepWrites::StatusOnly));
    }
    let claim = match claim::ensure(agent, pool, key, context).await? {
        claim::Claim::None => None,
        claim::Claim::Ready(claim) => Some(claim),
        claim::Claim::Refused(hindrance) => {
            context.pending_places.release(key);
            return Ok((State::Hindered(hindrance), StepWrites::StatusOnly));
        }
    };
    context.leadership.check()?;
    match calls::create(&context.api::<Pod>(&key.namespace), &pod, managers::AGENT).await {
        Ok(made) => {
            context.pod_gate.wrote(key.clone(), made.metadata.resource_version.as_deref());
            Ok((State::Pending(None), StepWrites::Pod(Box::new(made), claim)))
        }
        Err(error) => {
            let kind = match error.class() {
                Class::AlreadyExists => {
                    // A response was lost, or another client took the name. The pod belongs to no Agent.
                    delete_foreign_pod(agent, key, context).await?;
                    return Ok((State::Replacing, StepWrites::StatusOnly));
                }
                Class::QuotaExceeded => HindranceKind::QuotaExceeded,
                Class::Terminating => HindranceKind::NamespaceTerminating,
                Class::Refused => HindranceKind::PodRefused,
                Class::Conflict | Class::NotFound | Class::LostLeadership | Class::Unavailable => return Err(error),
            };
            context.pending_places.release(key);
            Ok((State::Hindered(Hindrance { kind, message: error.message() }), StepWrites::StatusOnly))
        }
    }
}

/// Deletes the agent's pod with a grace period of `grace` seconds; `None`: with the pod's own.
async fn delete_pod(key: &ObjectKey, context: &Context, uid: &str, grace: Option<u32>) -> Result<(), Error> {
    context.leadership.confirm().await?;
    let deleted = calls::delete(&context.api::<Pod>(&key.namespace), &key.name, uid, grace).await?;
    if let Some(meta) = deleted {
        context.pod_gate.deleted(key.clone(), meta.resource_version.as_deref());
    }
    Ok(())
}

/// Deletes the pod that has the Agent's name and is not recorded in its status. Both are read live first, because a
/// stale cache must not lead to the deletion of a recorded pod.
async fn delete_foreign_pod(agent: &Agent, key: &ObjectKey, context: &Context) -> Result<(), Error> {
    let live = context.api::<Agent>(&key.namespace).get_opt(&key.name).await.map_err(Error::of("reading an Agent"))?;
    let Some(live) = live.filter(|live| live.metadata.uid == agent.metadata.uid) else { return Ok(()) };
    let recorded = live.status.as_ref().and_then(|status| status.pod_ref.as_ref()).map(|pod| pod.uid.clone());
    let pod = context.api::<Pod>(&key.namespace).get_opt(&key.name).await.map_err(Error::of("reading a pod"))?;
    let Some(uid) = pod.as_ref().and_then(|pod| pod.metadata.uid.clone()) else { return Ok(()) };
    if recorded.as_deref() == Some(uid.as_str()) || pod.is_some_and(|pod| pod.metadata.deletion_timestamp.is_some()) {
        return Ok(());
    }
    delete_pod(key, context, &uid, None).await?;
    let note =
        format!("Pod/{} (uid {uid}) has the agent's name, and the agent's status does not record it. It is deleted and replaced", key.name);
    context.events.warning(agent, reasons::FOREIGN_POD, "DeletePod", note).await;
    Ok(())
}

/// Deletes an Agent. Its pod ends with its grace period, and the finalizer stays until then.
async fn end(meta: &ObjectMeta, key: &ObjectKey, context: &Context) -> Result<(), Error> {
    context.leadership.confirm().await?;
    if let Some(uid) = meta.uid.as_deref() {
        calls::delete(&context.api::<Agent>(&key.namespace), &key.name, uid, None).await?;
    }
    Ok(())
}

/// Deletes an Agent whose pool is deleted, after a live read of the pool.
async fn delete_orphan(agent: &Agent, key: &ObjectKey, context: &Context) -> Result<(), Error> {
    let pool =
        context.api::<AgentPool>(&key.namespace).get_metadata_opt(&agent.spec.pool_ref.name).await.map_err(Error::of("reading a pool"))?;
    let owner = agent.owner_uid();
    if pool.is_some_and(|pool| pool.metadata.uid.as_deref() == owner) {
        return Ok(());
    }
    end(&agent.metadata, key, context).await
}

/// Writes the status if it changed, and reports transitions as events. Returns the delay of a change that may wait.
async fn write_status(
    agent: &Agent,
    key: &ObjectKey,
    context: &Context,
    observed: &AgentObservation,
    state: &State,
    written: StepWrites,
) -> Result<Option<Duration>, Error> {
    let (made, claim) = match written {
        StepWrites::Pod(pod, claim) => (pod.metadata.uid.map(|uid| PodRef { name: key.name.clone(), uid }), claim),
        StepWrites::StatusOnly | StepWrites::Gone => (None, None),
    };
    let told = status::StatusFacts {
        state,
        pod: observed.pod.as_deref(),
        created_pod: made.as_ref(),
        claim: claim.as_ref(),
        view: observed.view.as_ref(),
        decision: observed.decision.as_ref().filter(|decision| govern::is_new(agent, context, decision)),
        paused: observed.paused,
        holding: observed.holding.as_ref(),
        tokens: observed.tokens.clone(),
        lifetime_spent: observed.lifetime_spent,
        children: observed.children,
        parent_ended: observed.parent_ended,
        external_not_allowed: observed.external_not_allowed,
        epoch: context.epoch,
        now: jiff::Timestamp::now(),
    };
    let Some((next, change)) = status::next_status(agent, &told) else {
        context.decide_write(CONTROLLER_NAME, key, StatusChange::None);
        return Ok(None);
    };
    match context.decide_write(CONTROLLER_NAME, key, change) {
        WriteDecision::Never => return Ok(None),
        WriteDecision::After(wait) => return Ok(Some(wait)),
        WriteDecision::Now => {}
    }
    let stored = match made {
        Some(_) => record(agent, key, context, &next).await?,
        None => publish(context, &context.api::<Agent>(&key.namespace), agent, managers::AGENT, &next).await?,
    };
    context.agent_gate.wrote(key.clone(), stored.metadata.resource_version.as_deref());
    if let Some(uid) = stored.caller_uid().filter(|_| next.goodbye.is_some()) {
        context.live.goodbye_stored(uid);
    }
    if let Some(uid) = stored.caller_uid() {
        context.live.asks_stored(uid, status::stored_request(&next));
        context.live.timeouts_stored(uid, observed.view.as_ref().map_or(0, |view| view.timeouts));
        // The signal that led to this pause must not lead to another pause after it.
        if let Some(decision) = observed.decision.as_ref().filter(|_| matches!(observed.paused, Some(Pause::Supervisor | Pause::Tokens))) {
            context.live.decision_stored(uid, decision.signal);
        }
    }
    if let (State::Hibernated, Some(pod)) = (state, agent.status.as_ref().and_then(|status| status.pod_ref.as_ref())) {
        context.pod_terminations.forget(&pod.uid);
    }
    for news in status::status_events(agent.status.as_ref(), &next) {
        if news.warning {
            context.events.warning(agent, &news.reason, "Supervise", news.note).await;
        } else {
            context.events.normal(agent, &news.reason, "Supervise", news.note).await;
        }
    }
    if let Some(decision) = told.decision {
        if decision.enforced && decision.signal == Signal::ChronicTimeout {
            let pool = ObjectKey { namespace: key.namespace.clone(), name: agent.spec.pool_ref.name.clone() };
            breaker::work::failed(context, &pool, &decision.message);
        }
        govern::intervene(agent, observed, context, decision).await;
    }
    Ok(None)
}

/// Records the pod that was just created. An unrecorded pod is deleted, so a conflict with a harmless write (a label,
/// an annotation) is retried here at once.
async fn record(agent: &Agent, key: &ObjectKey, context: &Context, next: &AgentStatus) -> Result<Agent, Error> {
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

fn next_look(state: &State) -> NextLook {
    match state {
        // Its own status write triggers the next reconcile. This delay is for a lost event.
        State::Condemned(_) | State::Hibernating => NextLook::After(GATE_RETRY_DELAY),
        // A terminating pod is checked until it is gone: its deletion may have to be repeated with a shorter grace
        // period.
        State::Stopping => NextLook::After(LEAVING_POD_CHECK_INTERVAL),
        State::Hindered(_) | State::Replacing | State::Missing(Verdict::Unknown) => NextLook::WithBackoff,
        State::Missing(Verdict::NotYet(wait)) => NextLook::After(MISSING_POD_CHECK_INTERVAL.min(*wait)),
        State::Keep
        | State::Creating
        | State::PoolMissing
        | State::Pending(_)
        | State::Running(_)
        | State::Unreachable
        | State::Hibernated
        | State::Ended(_)
        | State::Missing(Verdict::Gone) => NextLook::After(jittered(RESYNC_INTERVAL)),
    }
}

/// Forgets everything that is kept under the name of a deleted Agent.
pub fn forget_name(key: &ObjectKey, context: &Context) {
    context.forget(CONTROLLER_NAME, key);
    context.live.forget(key);
}

fn forget_agent(agent: &Agent, key: &ObjectKey, context: &Context) {
    forget_name(key, context);
    if let Some(uid) = agent.caller_uid() {
        context.live.revoke(uid);
    }
    context.agent_gate.forget(key);
    context.pod_gate.forget(key);
    if let Some(pod) = agent.status.as_ref().and_then(|status| status.pod_ref.as_ref()) {
        context.pod_terminations.forget(&pod.uid);
    }
}

#[cfg(test)]
mod reconcile_tests;
