//! The calls of agents about work. Each may be repeated. An answer is given only after its change was written by a
//! process that still leads.

use std::time::Duration;

use kube::ResourceExt;
use serde_json::{Value, json};

use super::common::{MAX_DECISION_ATTEMPTS, WRITE_CHECK_INTERVAL, ready, turn, unavailable};
use super::convert::{self, StatusExtras};
use super::item_write::{ItemWriteGuard, store, write_finish};
use super::namespace_work::{WriteLane, now};
use super::refused::{self, AttemptVerdict};
use crate::api::conditions::reasons;
use crate::api::names;
use crate::api::shared::Mode;
use crate::api::{Agent, AgentPool, WorkItem};
use crate::cluster::ObjectKey;
use crate::cluster::clock::BootTime;
use crate::cluster::{Class, Error};
use crate::controller::Context;
use crate::controller::agent::supervisor_pause_reason;
use crate::governor::breaker::{BeginRefusal, work as attempt};
use crate::governor::budget::availability::{self, TokenAvailability};
use crate::governor::caller::Caller;
use crate::governor::sandbox_offer::{offered_by, required_of_pod};
use crate::governor::{changeset, preflight};
use crate::policy::interventions::Signal;
use crate::policy::preflight::Verdict;
use crate::policy::work::entry::Entry;
use crate::policy::work::failure::Failure;
use crate::policy::work::item::{Holder, Phase, Record};
use crate::policy::work::item_index::ClaimRequester;
use crate::policy::work::lease::{self, FailureJudges, Fence, LeaseRefusal};
use crate::policy::work::requires::PoolIntake;
use crate::wire::access::Call;
use crate::wire::agent::{Acknowledgement, Directive};
use crate::wire::changeset::reasons as reasons_of_changesets;
use crate::wire::work::{Assignment, Complete, Fail, LeaseRef, ProgressUpdate, Release};
use crate::wire::{Code, Refusal, body};
use spillway_conversion::pool::pool_intake;

/// Items that one claim tries before the agent is asked to call again, because other agents were faster each time.
const MAX_CLAIM_CANDIDATES: usize = 8;
/// How long a claim waits while the next item is being written. Then it takes the item after that.
const CLAIM_TURN_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the end of an item waits for the usage of its last calls. Later usage costs a write of its own.
const USAGE_SETTLE_TIMEOUT: Duration = Duration::from_millis(50);
/// Assigns an item to the caller: the one that it holds, or the next. `None` if there is none now; the agent is
/// signalled when there is.
pub async fn claim(caller: &Caller, agent: &Agent, pool: &AgentPool, context: &Context) -> Result<Option<Assignment>, Refusal> {
    ready(context)?;
    let namespace = &caller.key.namespace;
    let view = context.live.view(&caller.uid);
    let taking = match pool_intake(pool) {
        of_pool if agent.spec.external.is_some() => of_pool.for_outside(),
        of_pool => PoolIntake { offer: offered_by(agent, view.as_ref(), &pool.spec, of_pool.offer), ..of_pool },
    };
    if taking.queues.is_empty() {
        let message = format!("AgentPool/{} names no queue in spec.queues", pool.name_any());
        return Err(Refusal::new(Code::NoQueues, message));
    }
    let labels = labels(agent, pool);
    let of_pool = ObjectKey { namespace: namespace.clone(), name: pool.name_any() };
    let wanted = context.live.desired_state(&caller.uid).directive;
    let fit = preflight::verdict(agent, view.as_ref(), Some(&pool.spec)) == Verdict::Passed;
    let begun = BootTime::now();
    let mut tries = 0;
    while tries < MAX_CLAIM_CANDIDATES {
        let turn = turn(namespace, context).await?;
        // A claim starts an attempt, so none is given while the calls of the attempt would be refused.
        let tokens = availability::of_pool(pool, context);
        // Nor while the circuit of the pool is open.
        let Some(circuit) = attempt::standing(context, &of_pool) else {
            return Err(Refusal::unavailable("the circuit breakers are being read; try again"));
        };
        let picked = context.work_index.with(namespace, |namespace_work| {
            // Checked each time: an earlier claim of this agent may have been written after all.
            if let Some(holding) = namespace_work.holding(&caller.uid) {
                return ClaimResult::Held(holding.name);
            }
            if context.replay_window_open() {
                namespace_work.add_waiter(&caller.uid, labels.clone(), taking.clone());
                return ClaimResult::Nothing;
            }
            if wanted != Directive::Run || !fit || agent.spec.hibernated == Some(true) || namespace_work.is_retired(&caller.uid) {
                return ClaimResult::Nothing;
            }
            if circuit.refuses() {
                namespace_work.stopped(&of_pool.name);
                namespace_work.add_waiter(&caller.uid, labels.clone(), taking.clone());
                return ClaimResult::Nothing;
            }
            match tokens {
                TokenAvailability::Available => {}
                TokenAvailability::Unknown => return ClaimResult::Unknown,
                TokenAvailability::Blocked(_) => {
                    namespace_work.add_waiter(&caller.uid, labels.clone(), taking.clone());
                    return ClaimResult::NoTokens;
                }
            }
            let taker =
                ClaimRequester { agent: &caller.key.name, labels: &labels, queues: &taking.queues, offer: &taking.offer, now: now() };
            let next = namespace_work.next_for(&taker, begun.elapsed() >= CLAIM_TURN_TIMEOUT);
            if next.as_ref().is_some_and(|name| namespace_work.is_busy(name)) {
                return ClaimResult::BeingWritten;
            }
            let next = next.and_then(|name| {
                let entry = namespace_work.index.get(&name).cloned()?;
                let holder = Holder { pod: caller.uid.clone(), agent: caller.key.name.clone(), since: now() };
                let next = lease::claim(&entry.spec, &entry.record, holder, now()).ok()?;
                // From here on the item is held. It is given back if the write fails.
                namespace_work.begin(&name).then_some((name, entry, next))
            });
            let Some((name, entry, next)) = next else {
                namespace_work.add_waiter(&caller.uid, labels.clone(), taking.clone());
                return ClaimResult::Nothing;
            };
            namespace_work.index.set_record(&name, next.clone(), true, now());
            namespace_work.remove_waiter(&caller.uid);
            ClaimResult::Item(name, Box::new(entry), Box::new(next))
        });
        let (name, entry, next) = match picked {
            ClaimResult::Item(name, entry, next) => (name, *entry, *next),
            ClaimResult::Held(name) => {
                drop(turn);
                return held_assignment(caller, agent, pool, &name, context).await;
            }
            ClaimResult::Nothing => return Ok(None),
            ClaimResult::Unknown => return Err(Refusal::unavailable("the budgets above this agent are being read; try again")),
            // There may be tokens now. The waiting agents were signalled before this one started to wait.
            ClaimResult::NoTokens if availability::of_pool(pool, context) == TokenAvailability::Available => {
                tries += 1;
                continue;
            }
            ClaimResult::NoTokens => return Ok(None),
            ClaimResult::BeingWritten => {
                drop(turn);
                tokio::time::sleep(WRITE_CHECK_INTERVAL).await;
                continue;
            }
        };
        tries += 1;
        let key = ObjectKey { namespace: namespace.clone(), name };
        let mut writing = ItemWriteGuard { context, key: &key, unconfirmed_claim: Some((&entry, &next)), probe: None };
        let within = context.work_index.with(namespace, |namespace_work| namespace_work.index.policy(&entry)).attempt_timeout;
        match context.circuits.admit_work(&of_pool, within).await {
            Ok(permits) => writing.probe = Some((of_pool.clone(), permits)),
            Err(BeginRefusal::Open { .. }) => {
                context.work_index.with(namespace, |namespace_work| {
                    namespace_work.stopped(&of_pool.name);
                    namespace_work.add_waiter(&caller.uid, labels.clone(), taking.clone());
                });
                return Ok(None);
            }
            Err(BeginRefusal::Away(words)) => return Err(Refusal::unavailable(words)),
        }
        let begun =
            StatusExtras { changeset: changeset::opened(agent, pool, &key.name, next.epoch).map(Box::new), ..StatusExtras::default() };
        let result = store(context, &key, &entry, &next, &begun, WriteLane::Needed).await;
        match &result {
            Ok(_) => writing.unconfirmed_claim = None,
            Err(error) if matches!(error.class(), Class::Conflict | Class::NotFound) => {}
            // The write may have succeeded all the same: then the item is not given back.
            Err(_) => drop(look_live(&key, &entry, context).await), // on an error the watch updates the index
        }
        match result {
            Ok(stored) => {
                if let Some((pool, permits)) = writing.probe.take() {
                    context.attempts.began(&entry.uid, next.epoch, pool, permits);
                }
                drop(writing);
                context.leadership.check().map_err(|error| unavailable(context, &error))?;
                if let Some(ready) = entry.ready_since {
                    context.metrics.waited(now().since(ready));
                }
                context.wake.agent(&caller.key);
                return Ok(Some(assignment(&stored, agent, pool, &key, context)));
            }
            Err(error) if matches!(error.class(), Class::Conflict | Class::NotFound) => {}
            Err(error) => return Err(unavailable(context, &error)),
        }
    }
    Err(Refusal::unavailable("other agents claimed each item first; try again"))
}

/// Result of looking for an item.
enum ClaimResult {
    /// The agent already holds this item.
    Held(String),
    /// This item is assigned to the agent: the entry before, and the record to write.
    Item(String, Box<Entry>, Box<Record>),
    /// The next item is being written.
    BeingWritten,
    /// There is no item for the agent now.
    Nothing,
    /// There are no tokens for the agent now.
    NoTokens,
    /// It is not known yet whether there are tokens.
    Unknown,
}

/// Returns the lease that the caller already holds: its first answer was lost, or its pod restarted.
async fn held_assignment(
    caller: &Caller,
    agent: &Agent,
    pool: &AgentPool,
    name: &str,
    context: &Context,
) -> Result<Option<Assignment>, Refusal> {
    let key = ObjectKey { namespace: caller.key.namespace.clone(), name: name.to_owned() };
    let live = context.api::<WorkItem>(&key.namespace).get_opt(name).await;
    let live = live.map_err(Error::of("reading an item")).map_err(|error| unavailable(context, &error))?;
    let Some(live) = live else { return Err(Refusal::unavailable("the item that this agent held does not exist any more; try again")) };
    context.work_index.observe(&live);
    let record = convert::record(&live);
    // The claim may still be in flight: it is not confirmed before it is written.
    if !record.phase.held() || record.holder.as_ref().is_none_or(|holder| holder.pod != caller.uid) {
        return Err(Refusal::unavailable("an earlier claim of this agent is being written; try again"));
    }
    if record.phase == Phase::Paused {
        return Ok(None);
    }
    if record.phase == Phase::Cancelling {
        // An agent that asks for work has no item in hand: it gave this one back.
        let uid = live.uid().unwrap_or_default();
        let decide =
            |entry: &Entry, fence: Fence, judges: FailureJudges| lease::release(&entry.record, fence, "NotStarted", "", judges, now());
        Box::pin(finish(caller, &uid, record.epoch, StatusExtras::default(), context, decide)).await?;
        return Ok(None);
    }
    Ok(Some(assignment(&live, agent, pool, &key, context)))
}

fn labels(agent: &Agent, pool: &AgentPool) -> std::collections::BTreeMap<String, String> {
    let mut labels = agent.metadata.labels.clone().unwrap_or_default();
    // The identity of an agent does not follow from labels that users can change.
    labels.insert(names::POOL_LABEL.to_owned(), pool.name_any());
    labels.insert(names::TYPE_LABEL.to_owned(), pool.spec.type_.clone());
    labels
}

fn assignment(item: &WorkItem, agent: &Agent, pool: &AgentPool, key: &ObjectKey, context: &Context) -> Assignment {
    let entry = convert::entry(item);
    let policy = context.work_index.with(&key.namespace, |namespace_work| namespace_work.index.policy(&entry));
    let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    Assignment {
        held: LeaseRef { uid: entry.uid.clone(), epoch: entry.record.epoch },
        name: key.name.clone(),
        queue: convert::queue_of(item).unwrap_or_default().to_owned(),
        type_: item.spec.type_.clone(),
        payload: item.spec.payload.clone(),
        attempt: entry.record.attempts,
        attempt_seconds: seconds(policy.attempt_timeout),
        checkpoint_ref: item.status.as_ref().and_then(|status| status.progress.as_ref()?.checkpoint_ref.clone()),
        branch: changeset::branch_of(agent, pool, &entry, &key.name),
        folder: changeset::folder_of(agent, pool),
        sandbox: required_of_pod(&entry, &pool.spec),
    }
}

/// A call of the holder about the item `uid`.
pub async fn verb(call: Call, caller: &Caller, pool: &AgentPool, uid: &str, bytes: &[u8], context: &Context) -> Result<Value, Refusal> {
    ready(context)?;
    match call {
        Call::Complete => {
            let Complete { epoch, result, changeset } = body::read(bytes)?;
            let told = changeset.and_then(|report| {
                let begun = find(caller, uid, context).ok().and_then(|(_, entry)| entry.open_changeset);
                changeset::completed(caller.external.is_some(), &pool.spec, epoch, *report, begun)
            });
            let beside = StatusExtras { result, changeset: told.map(Box::new), ..StatusExtras::default() };
            finish(caller, uid, epoch, beside, context, |entry, fence, _| lease::complete(&entry.record, fence, now())).await
        }
        Call::Fail => {
            let Fail { epoch, reason, message, exit_code } = body::read(bytes)?;
            let held = LeaseRef { uid: uid.to_owned(), epoch };
            // The changes were refused, and the program had ended well.
            let of_changeset = reasons_of_changesets::ALL.contains(&reason.as_str());
            // The program failed and did not itself report that the task failed.
            if !of_changeset && exit_code.is_some_and(|code| code != 0) && waits_for_supervisor(caller, pool, context) {
                return Err(Refusal::unavailable(
                    "the lifetime tokens of this agent are spent: wait until the supervisor decides about its item",
                ));
            }
            let refused = context.live.recent_refusal(&caller.uid, &held).filter(|_| !of_changeset);
            let failure = match refused::judge(Failure { reason, message, exit_code }, refused.as_ref()) {
                AttemptVerdict::Failed(failure) => failure,
                AttemptVerdict::GivenBack(message) => {
                    let decide = |entry: &Entry, fence: Fence, judges: FailureJudges| {
                        lease::release(&entry.record, fence, reasons::BUDGET_REFUSED, &message, judges, now())
                    };
                    return finish(caller, uid, epoch, StatusExtras::default(), context, decide).await;
                }
            };
            let is_final = pool.spec.type_ == names::DRONE_TYPE;
            let decide = |entry: &Entry, fence: Fence, judges: FailureJudges| {
                lease::fail(&entry.record, fence, &failure, FailureJudges { is_final, ..judges }, now())
            };
            // A repeated call is answered again, and raises nothing.
            let refusal = refused_changes(caller, &held, &failure, context);
            let answer = finish(caller, uid, epoch, StatusExtras::default(), context, decide).await?;
            raise(caller, refusal, context);
            Ok(answer)
        }
        Call::Release => {
            let Release { epoch, reason, message } = body::read(bytes)?;
            let decide =
                |entry: &Entry, fence: Fence, judges: FailureJudges| lease::release(&entry.record, fence, &reason, &message, judges, now());
            finish(caller, uid, epoch, StatusExtras::default(), context, decide).await
        }
        Call::Advance => advance(caller, uid, body::read(bytes)?, context),
        _ => Err(Refusal::new(Code::NoSuchCall, "the calls of an item are complete, fail, release and progress")),
    }
}

/// The signals of a failure whose changes were refused, with their message, while the caller holds the item.
fn refused_changes(caller: &Caller, held: &LeaseRef, failure: &Failure, context: &Context) -> Option<(&'static [Signal], String)> {
    let signals = changeset::signals(&failure.reason);
    if signals.is_empty() {
        return None;
    }
    context.work_index.with(&caller.key.namespace, |namespace_work| {
        let holds = namespace_work.holds(&caller.uid, held);
        let (name, _) = namespace_work.by_uid(&held.uid).filter(|(_, entry)| holds && entry.open_changeset.is_some())?;
        Some((signals, format!("the changes of WorkItem/{name} were refused ({}): {}", failure.reason, failure.message)))
    })
}

fn raise(caller: &Caller, refusal: Option<(&[Signal], String)>, context: &Context) {
    let Some((signals, words)) = refusal else { return };
    for signal in signals {
        context.live.raise(&caller.uid, *signal, Some(words.clone()));
    }
    context.wake.agent(&caller.key);
}

/// Whether the supervisor is about to decide on an agent without tokens. Until then the end of its program is no
/// failure of the item, which may be paused and continued. The wait is bounded. A decision that holds the agent is
/// stored with the agent first, and with the item a moment later.
fn waits_for_supervisor(caller: &Caller, pool: &AgentPool, context: &Context) -> bool {
    let mode = pool.spec.supervision.as_ref().map(|supervision| supervision.mode).unwrap_or_default();
    let agent = context.stores.agent(&caller.key);
    let agent = agent.as_ref().and_then(|agent| agent.0.as_ref().ok()).filter(|agent| agent.caller_uid() == Some(&caller.uid));
    let held = agent.and_then(|agent| agent.status.as_ref()).is_some_and(|status| supervisor_pause_reason(status).is_some());
    held || (mode == Mode::Enforce && context.live.is_undecided(&caller.uid, Signal::TokenBudgetExceeded))
}

/// Finds an item of the caller's namespace. Items of other namespaces do not exist for it.
fn find(caller: &Caller, uid: &str, context: &Context) -> Result<(String, Entry), Refusal> {
    let found = context.work_index.with(&caller.key.namespace, |namespace_work| namespace_work.by_uid(uid));
    found.ok_or_else(|| Refusal::new(Code::LeaseLost, "the item does not exist in this namespace, or it was deleted"))
}

fn lease_refusal(no: LeaseRefusal, entry: &Entry) -> Refusal {
    match no {
        LeaseRefusal::Repeated => Refusal::new(Code::Internal, "this call was already answered"),
        LeaseRefusal::Stale => {
            let now = &entry.record;
            let message = format!("this agent does not hold the lease any more: the item is {:?} at epoch {}", now.phase, now.epoch);
            Refusal::new(Code::StaleLease, message).field("epoch")
        }
        LeaseRefusal::EndedAlready(phase) => Refusal::new(Code::FinishedAlready, format!("the item ended already: {phase:?}")),
        LeaseRefusal::Paused => Refusal::unavailable("the item is paused; finish it after it is resumed"),
        LeaseRefusal::NotReady(phase) => Refusal::new(Code::StaleLease, format!("the item is {phase:?}")),
    }
}

async fn finish(
    caller: &Caller,
    uid: &str,
    epoch: i64,
    beside: StatusExtras,
    context: &Context,
    decide: impl Fn(&Entry, Fence, FailureJudges) -> Result<Record, LeaseRefusal>,
) -> Result<Value, Refusal> {
    let namespace = &caller.key.namespace;
    let settled = context.meter.until_settled(uid, USAGE_SETTLE_TIMEOUT).await;
    let mut looked = false;
    for _ in 0..MAX_DECISION_ATTEMPTS {
        let turn = turn(namespace, context).await?;
        let (name, entry) = find(caller, uid, context)?;
        let key = ObjectKey { namespace: namespace.clone(), name };
        let fence = Fence { epoch, pod: &caller.uid, agent: &caller.key.name };
        let (policy, rules) = context.work_index.with(namespace, |namespace_work| {
            let queue = entry.record.queue.as_ref().and_then(|queue| namespace_work.index.queue(queue));
            (namespace_work.index.policy(&entry), queue.map(|queue| queue.rules.clone()).unwrap_or_default())
        });
        let judges = FailureJudges { policy: &policy, rules: &rules, is_final: false, dice: rand::random() };
        let record = match decide(&entry, fence, judges) {
            Ok(record) => record,
            Err(LeaseRefusal::Repeated) => {
                context.live.holds(&caller.uid, None);
                return done();
            }
            // A refusal makes the agent drop its work, so it is given only after a live read.
            Err(_) if !looked => {
                looked = true;
                look_live(&key, &entry, context).await?;
                continue;
            }
            Err(_) if context.replay_window_open() => return Err(super::replay::replay_pending()),
            Err(refused) => return Err(lease_refusal(refused, &entry)),
        };
        if !context.work_index.with(namespace, |namespace_work| namespace_work.begin(&key.name)) {
            drop(turn);
            tokio::time::sleep(WRITE_CHECK_INTERVAL).await; // another write is in flight
            continue;
        }
        let writing = ItemWriteGuard { context, key: &key, unconfirmed_claim: None, probe: None };
        let result = write_finish(&key, &entry, &record, &beside, context).await;
        drop(writing);
        match result {
            Ok(()) => {
                context.leadership.check().map_err(|error| unavailable(context, &error))?;
                context.live.holds(&caller.uid, None);
                context.wake.agent(&caller.key);
                if !settled {
                    context.meter.ended_with_open_calls(uid, key);
                }
                return done();
            }
            Err(error) if matches!(error.class(), Class::Conflict | Class::NotFound) => {}
            Err(error) => return Err(unavailable(context, &error)),
        }
    }
    Err(Refusal::unavailable("other writes of the item came first each time; try again"))
}

pub(super) async fn look_live(key: &ObjectKey, entry: &Entry, context: &Context) -> Result<(), Refusal> {
    let live = context.api::<WorkItem>(&key.namespace).get_opt(&key.name).await;
    match live.map_err(Error::of("reading an item")).map_err(|error| unavailable(context, &error))? {
        Some(live) if live.metadata.uid.as_deref() == Some(&entry.uid) => {
            super::replay::check_version(context, entry, &live);
            context.work_index.observe(&live);
        }
        Some(_) | None => context.work_index.forget(&key.namespace, &key.name, &entry.uid),
    }
    Ok(())
}

fn done() -> Result<Value, Refusal> {
    Ok(json!(Acknowledgement {}))
}

fn advance(caller: &Caller, uid: &str, advance: ProgressUpdate, context: &Context) -> Result<Value, Refusal> {
    let (_, entry) = find(caller, uid, context)?;
    let fence = Fence { epoch: advance.epoch, pod: &caller.uid, agent: &caller.key.name };
    if !lease::holds(&entry.record, fence) {
        return Err(lease_refusal(LeaseRefusal::Stale, &entry));
    }
    context.work_index.with(&caller.key.namespace, |namespace_work| namespace_work.advanced(uid, advance));
    context.live.progressed(&caller.uid);
    done()
}
