//! Answers about leases that gateways replay after a rollback of the API server's store. Each is applied once.
//!
//! The gateway vouches for the caller, as with every call. The finish counts even if the agent itself was lost or has
//! ended. `policy::work::lease::replay` decides what is applied.

use kube::ResourceExt;
use serde_json::{Value, json};

use super::common::{MAX_DECISION_ATTEMPTS, WRITE_CHECK_INTERVAL, ready, turn, unavailable};
use super::convert::StatusExtras;
use super::item_write::{ItemWriteGuard, store, write_finish};
use super::namespace_work::{WriteLane, now};
use crate::api::conditions::reasons;
use crate::api::{AgentPool, WorkItem, names};
use crate::cluster::{Class, ObjectKey};
use crate::controller::Context;
use crate::governor::caller::{Caller, identify};
use crate::governor::changeset;
use crate::governor::rollback::{RECOVER_ACTION, first_pool};
use crate::policy::work::entry::Entry;
use crate::policy::work::failure::Failure;
use crate::policy::work::lease::{self, FailureJudges, Fence, LeaseRefusal, LostAnswer};
use crate::wire::agent::Acknowledgement;
use crate::wire::work::{LeaseRef, Outcome, ReplayedLease};
use crate::wire::{Code, Refusal, body};

/// Applies a replayed answer, if the store was rolled back and has lost it.
pub async fn replay(caller: &Caller, bytes: &[u8], context: &Context) -> Result<Value, Refusal> {
    let ReplayedLease { held, outcome, age_ms } = body::read(bytes)?;
    let Some(rollback) = context.recent_rollback() else { return done() };
    ready(context)?;
    let Some(outcome) = outcome else {
        // An agent that is lost or has ended cannot hold an item.
        let agent = match identify(caller, context).await {
            Ok(agent) => agent,
            Err(refusal) if refusal.code == Code::GovernorAway => return Err(refusal),
            Err(_) => return done(),
        };
        let pool = pool_of(caller, context);
        let extras = |name: &str, _: &Entry| {
            let changeset = pool.as_ref().and_then(|pool| changeset::opened(&agent, pool, name, held.epoch));
            StatusExtras { changeset: changeset.map(Box::new), ..StatusExtras::default() }
        };
        apply(caller, &held, LostAnswer::Granted, extras, context).await?;
        return done();
    };
    let unchanged = |_: &str, _: &Entry| StatusExtras::default();
    let exists = match outcome {
        Outcome::Complete { result, changeset } => {
            let pool = pool_of(caller, context);
            let extras = |_: &str, entry: &Entry| {
                let begun = entry.open_changeset.clone().filter(|_| entry.record.epoch == held.epoch);
                let report = changeset.as_deref().cloned();
                let changeset = report
                    .zip(pool.as_ref())
                    .and_then(|(report, pool)| changeset::completed(caller.external.is_some(), &pool.spec, held.epoch, report, begun));
                StatusExtras { result: result.clone(), changeset: changeset.map(Box::new), ..StatusExtras::default() }
            };
            apply(caller, &held, LostAnswer::Completed, extras, context).await?
        }
        Outcome::Fail { reason, message, exit_code } => {
            let failure = Failure { reason, message, exit_code };
            apply(caller, &held, LostAnswer::Failed(&failure), unchanged, context).await?
        }
        Outcome::Release { reason, message } => {
            let released = LostAnswer::Released { reason: &reason, message: &message };
            apply(caller, &held, released, unchanged, context).await?
        }
    };
    // An item that had ended and was collected before the lost time is no loss.
    if !exists && rollback.has_lost(now().0, age_ms) {
        report_lost_item(caller, &held, context).await;
    }
    done()
}

/// Applies a lost answer to an item. Returns whether the item exists. `extras` are the parts of its status beside its
/// record, by the name of the item and its entry.
async fn apply(
    caller: &Caller,
    held: &LeaseRef,
    lost: LostAnswer<'_>,
    extras: impl Fn(&str, &Entry) -> StatusExtras,
    context: &Context,
) -> Result<bool, Refusal> {
    let namespace = &caller.key.namespace;
    for _ in 0..MAX_DECISION_ATTEMPTS {
        let turn = turn(namespace, context).await?;
        let Some((name, entry)) = context.work_index.with(namespace, |namespace_work| namespace_work.by_uid(&held.uid)) else {
            return Ok(false);
        };
        let key = ObjectKey { namespace: namespace.clone(), name };
        let (policy, rules) = context.work_index.with(namespace, |namespace_work| {
            let queue = entry.record.queue.as_ref().and_then(|queue| namespace_work.index.queue(queue));
            (namespace_work.index.policy(&entry), queue.map(|queue| queue.rules.clone()).unwrap_or_default())
        });
        let judges = FailureJudges { policy: &policy, rules: &rules, is_final: is_drone(caller, context), dice: rand::random() };
        let fence = Fence { epoch: held.epoch, pod: &caller.uid, agent: &caller.key.name };
        let record = match lease::replay(&entry.record, fence, lost, judges, now()) {
            Ok(record) => record,
            Err(LeaseRefusal::Repeated | LeaseRefusal::Stale | LeaseRefusal::EndedAlready(_) | LeaseRefusal::Paused) => return Ok(true),
            Err(LeaseRefusal::NotReady(_)) => {
                drop(turn);
                tokio::time::sleep(WRITE_CHECK_INTERVAL).await; // its admission is on its way
                continue;
            }
        };
        if !context.work_index.with(namespace, |namespace_work| namespace_work.begin(&key.name)) {
            drop(turn);
            tokio::time::sleep(WRITE_CHECK_INTERVAL).await; // another write of the item is on its way
            continue;
        }
        let writing = ItemWriteGuard { context, key: &key, unconfirmed_claim: None, probe: None };
        let beside = extras(&key.name, &entry);
        let result = match lost {
            LostAnswer::Granted => store(context, &key, &entry, &record, &beside, WriteLane::Needed).await.map(drop),
            LostAnswer::Completed | LostAnswer::Failed(_) | LostAnswer::Released { .. } => {
                write_finish(&key, &entry, &record, &beside, context).await
            }
        };
        drop(writing);
        match result {
            Ok(()) => {
                context.leadership.check().map_err(|error| unavailable(context, &error))?;
                let (item, epoch, phase) = (&key.name, held.epoch, record.phase);
                tracing::info!(namespace, item, epoch, ?phase, "a lost answer about an item is applied again");
                return Ok(true);
            }
            Err(error) if matches!(error.class(), Class::Conflict | Class::NotFound) => {}
            Err(error) => return Err(unavailable(context, &error)),
        }
    }
    Err(Refusal::unavailable("other writes of the item came first each time; try again"))
}

/// The pool of an agent, if both are known.
fn pool_of(caller: &Caller, context: &Context) -> Option<AgentPool> {
    let agent = context.stores.agent(&caller.key);
    let pool = agent.as_ref().and_then(|agent| agent.0.as_ref().ok()).map(|agent| agent.spec.pool_ref.name.clone())?;
    let pool = context.stores.pool(&caller.key.namespace, &pool)?;
    pool.0.as_ref().ok().cloned()
}

/// Whether a failure under this agent is final.
fn is_drone(caller: &Caller, context: &Context) -> bool {
    pool_of(caller, context).is_some_and(|pool| pool.spec.type_ == names::DRONE_TYPE)
}

/// Reports by an event that an agent finished an item that does not exist any more.
async fn report_lost_item(caller: &Caller, held: &LeaseRef, context: &Context) {
    let Some(pool) = first_pool(context, &caller.key.namespace) else { return };
    let note = format!(
        "Agent/{} finished an item (uid {}, epoch {}) that was lost when the cluster's store was rolled back: submit it again if it is \
         still needed",
        caller.key.name, held.uid, held.epoch
    );
    tracing::warn!(namespace = caller.key.namespace, pool = pool.name_any(), note, "the item of a replayed finish does not exist");
    context.events.warning(&pool, reasons::FINISH_LOST, RECOVER_ACTION, note).await;
}

/// The answer to an agent whose lease is unknown, while gateways replay lost leases.
pub(in crate::governor) fn replay_pending() -> Refusal {
    Refusal::unavailable("the API server's store was rolled back, and leases are being replayed; try again")
}

/// Reports a rollback of the store if a live read shows an older version than the known one.
pub(super) fn check_version(context: &Context, known: &Entry, live: &WorkItem) {
    let number = |version: &str| version.parse::<u64>().ok();
    let (before, after) = (number(&known.version), live.metadata.resource_version.as_deref().and_then(number));
    if let (Some(before), Some(after)) = (before, after)
        && after < before
    {
        context.leadership.report_rollback(before);
    }
}

fn done() -> Result<Value, Refusal> {
    Ok(json!(Acknowledgement {}))
}
