//! The calls of gateways about tokens. Each may be repeated.
//!
//! Invariants: a hold is confirmed only when the durable state covers it, and never for an agent that has ended, is
//! paused, or does not hold the item of the call.

use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;
use serde::Serialize;
use serde_json::Value;

use super::convert;
use super::facts;
use super::meter::{HoldResult, Meter};
use super::object::Object;
use super::{availability, model_route};
use crate::api::{Agent, AgentPool};
use crate::cluster::ObjectKey;
use crate::controller::{Context, PoolObject};
use crate::governor::breaker::open_calls::OpenCall;
use crate::governor::caller::{Caller, identify};
use crate::governor::lease_check;
use crate::governor::work::refused::RefusedCall;
use crate::policy::budget::refusal::{LimitState, RefusalCause, RetryHint};
use crate::policy::budget::{self, CallSize, Key, Quality, Route, SessionLog};
use crate::policy::interventions::Timeout;
use crate::wire::access::Call;
use crate::wire::meter::{self, Begin, CallEnd, Extend, Extended, Hold, LateFirstToken, MeterAck, ModelRoute, Settles, Target};
use crate::wire::shortage::{LimitRoom, Shortage};
use crate::wire::work::LeaseRef as Lease;
use crate::wire::{Code, Refusal, body};

/// How long a hold waits for a write that it needs.
const HOLD_WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that a call may take in addition to its model turn: before it is sent, and while the rest of the answer is
/// read.
const CALL_TIMEOUT_GRACE: Duration = Duration::from_secs(120);

/// Answers a call of a gateway session, which is not on behalf of an agent.
pub async fn of_session(call: Call, bytes: &[u8], context: &Context) -> Result<Value, Refusal> {
    let meter = ready(&context.meter)?;
    match call {
        Call::MeterBegin => {
            let told = read(bytes)?;
            let acked = begin(meter, &told, context.recent_rollback().is_some())?;
            context.circuits.session_begins(&told).iter().for_each(|(out, end)| ended(out, end, context));
            json(&acked)
        }
        Call::MeterSettle => {
            let told: Settles = body::read(bytes)?;
            for one in &told.settles {
                if let Some(out) = context.circuits.end_call(&told.session, one.hold, &one.end) {
                    ended(&out, &one.end, context);
                }
            }
            context.circuits.end_calls_below(&told.session, told.floor);
            json(&settle(meter, told)?)
        }
        Call::MeterLate => {
            let LateFirstToken { session, id } = body::read(bytes)?;
            context.circuits.record_late_first_token(&session, id);
            Ok(Value::Null)
        }
        Call::MeterExtend => json(&extend(meter, &body::read(bytes)?).await?),
        _ => Err(Refusal::new(Code::NoSuchCall, "there is no such call")),
    }
}

/// Answers a call on behalf of an agent.
pub async fn of_agent(call: Call, caller: &Caller, bytes: &[u8], context: &Context) -> Result<Value, Refusal> {
    ready(&context.meter)?;
    let agent = identify(caller, context).await?;
    match call {
        Call::MeterWay => {
            let model_route: ModelRoute = body::read(bytes)?;
            json(&allowed(caller, &agent, &model_route, context)?.1)
        }
        Call::MeterHold => json(&hold(caller, &agent, body::read(bytes)?, context).await?),
        _ => Err(Refusal::new(Code::NoSuchCall, "there is no such call")),
    }
}

fn json(value: &impl Serialize) -> Result<Value, Refusal> {
    serde_json::to_value(value).map_err(|error| Refusal::new(Code::Internal, error.to_string()))
}

/// Fails while budgets and records are still being read.
pub(in crate::governor) fn ready(meter: &Meter) -> Result<&Meter, Refusal> {
    if meter.is_ready() { Ok(meter) } else { Err(Refusal::unavailable("the records of tokens are being read; try again")) }
}

fn unknown() -> Refusal {
    Refusal::new(Code::SessionUnknown, "this leader does not know the session: the gateway must begin the session again")
}

/// Reads a body that may be larger than those of agents.
fn read(bytes: &[u8]) -> Result<Begin, Refusal> {
    let begin: Begin = serde_json::from_slice(bytes).map_err(|error| Refusal::new(Code::InvalidBody, error.to_string()).field("(body)"))?;
    body::BoundedBody::check(&begin).map_err(|(field, message)| Refusal::new(Code::InvalidBody, message).field(field))?;
    if begin.session.is_empty() {
        return Err(Refusal::new(Code::InvalidBody, "the session has no name").field("session"));
    }
    Ok(begin)
}

fn usage(usage: meter::Usage) -> budget::Usage {
    let meter::Usage { input, cache_read, cache_write, output } = usage;
    budget::Usage { input, cache_read, cache_write, output }
}

fn quality(quality: meter::Quality) -> Quality {
    match quality {
        meter::Quality::Exact => Quality::Exact,
        meter::Quality::Partial => Quality::Partial,
        meter::Quality::Estimated => Quality::Estimated,
    }
}

/// A place that cannot be parsed does not exist in this version: what was held there counts nowhere.
fn open(open: &meter::JournaledHold) -> budget::JournaledHold {
    let meter::JournaledHold { id, at, path, input, output } = open;
    let path: Vec<Key> = path.iter().filter_map(|text| convert::parse_key(text)).collect();
    budget::JournaledHold { id: *id, at: *at, path: Arc::from(path), input: *input, output: *output }
}

/// Begins a session. `rolled_back`: the store was rolled back in the last minutes.
fn begin(meter: &Meter, begin: &Begin, rolled_back: bool) -> Result<MeterAck, Refusal> {
    let Begin { session, next_hold, acked, settles, open: opened, replayed } = begin;
    let told = |told: &meter::JournaledSettle| budget::JournaledSettle {
        hold: open(&told.open),
        usage: usage(told.usage),
        quality: quality(told.quality),
    };
    let log = SessionLog {
        next_hold: *next_hold,
        acked: *acked,
        settles: settles.iter().map(told).collect(),
        open: opened.iter().map(open).collect(),
        rolled_back,
        replayed: replayed.iter().map(|replayed| (replayed.seq, told(&replayed.told))).collect(),
    };
    let acked = meter.begin(session, &log);
    let (opened, settled, replayed) = (opened.len(), settles.len(), replayed.len());
    tracing::info!(session, open = opened, settles = settled, replayed, acked, "a session of a gateway begins");
    Ok(MeterAck { acked })
}

/// Applies the end of a call to its agent.
fn ended(out: &OpenCall, end: &CallEnd, context: &Context) {
    if end.timed_out {
        context.live.timed_out(&out.pod, Timeout::ModelTurn);
        context.wake.agent(&out.agent);
    }
}

fn settle(meter: &Meter, told: Settles) -> Result<MeterAck, Refusal> {
    let Settles { session, settles, floor, confirmed } = told;
    let one = |settle: meter::Settle| {
        let meter::Settle { seq, hold, usage: used, quality: how, input, output, end: _, model, bytes } = settle;
        (budget::Settle { seq, hold, usage: usage(used), quality: quality(how), input, output }, model, bytes)
    };
    let settles: Vec<_> = settles.into_iter().map(one).collect();
    let acked = meter.settle(&session, &settles, floor, confirmed).ok_or_else(unknown)?;
    Ok(MeterAck { acked })
}

async fn extend(meter: &Meter, request: &Extend) -> Result<Extended, Refusal> {
    let Extend { session, id, output } = request;
    let ask = |output| meter.extend(session, *id, output);
    let before = match ask(0) {
        HoldResult::Given { given, .. } => given.output,
        HoldResult::Closed => return Err(closed()),
        HoldResult::Unknown | HoldResult::WritePending | HoldResult::Refused(_) => return Err(unknown()),
    };
    let held = until_written(meter, || ask(*output)).await;
    match held {
        Some(HoldResult::Given { given, .. }) => Ok(Extended { output: given.output }),
        Some(HoldResult::Closed) => Err(closed()),
        Some(HoldResult::Unknown) => Err(unknown()),
        // The call may finish in any case.
        Some(HoldResult::Refused(_) | HoldResult::WritePending) | None => Ok(Extended { output: before }),
    }
}

fn closed() -> Refusal {
    Refusal::new(Code::HoldClosed, "the number of this hold was used before and holds no tokens any more")
}

/// Asks again until no write is awaited. `None` if that takes too long.
async fn until_written(meter: &Meter, mut ask: impl FnMut() -> HoldResult) -> Option<HoldResult> {
    let mut writes = meter.writes();
    let waiting = async {
        loop {
            // Marked as seen before the question, so that a write in between is not missed.
            writes.borrow_and_update();
            match ask() {
                HoldResult::WritePending => {}
                held @ (HoldResult::Given { .. } | HoldResult::Refused(_) | HoldResult::Closed | HoldResult::Unknown) => return Some(held),
            }
            writes.changed().await.ok()?;
        }
    };
    tokio::time::timeout(HOLD_WRITE_TIMEOUT, waiting).await.ok().flatten()
}

/// The pool of the caller and the target of its call, if it may call now.
fn allowed(caller: &Caller, agent: &Agent, model_route: &ModelRoute, context: &Context) -> Result<(Arc<PoolObject>, Target), Refusal> {
    let stored = context.stores.pool(&caller.key.namespace, &agent.spec.pool_ref.name);
    let stored = stored
        .filter(|pool| pool.0.is_ok())
        .ok_or_else(|| Refusal::unavailable("the controller does not know the agent's pool yet; try again"))?;
    let Ok(pool) = &stored.0 else { return Err(Refusal::unavailable("the controller does not know the agent's pool yet; try again")) };
    lease_check::may_act(caller, agent, model_route.item.as_ref(), context)?;
    let target = model_route::target(pool, model_route)?;
    Ok((stored, target))
}

/// The places that a call of one agent counts at.
struct CallPath {
    leafs: Vec<Key>,
    top: Option<Key>,
    route: Route,
    /// The route without the agent and its item.
    above: Route,
    /// The item of the call, if the item has no share.
    item: Option<String>,
}

async fn hold(caller: &Caller, agent: &Agent, request: Hold, context: &Context) -> Result<meter::HoldAnswer, Refusal> {
    let Hold { session, id, way: model_route, facts } = request;
    let (pool, target) = allowed(caller, agent, &model_route, context)?;
    let Ok(pool) = &pool.0 else { return Err(Refusal::unavailable("the controller does not know the agent's pool yet; try again")) };
    let (meter, namespace) = (&context.meter, caller.key.namespace.as_str());
    let (mut passage, per_second) = call_path(caller, agent, model_route.item.as_ref(), pool, context)?;
    let uid = agent.uid().unwrap_or_default();
    meter.call(&uid, per_second).map_err(|wait| {
        let message =
            format!("this agent makes more than {per_second} model calls a second (spec.requests.perAgentPerSecond of its Budget)");
        Refusal::new(Code::TooManyCalls, message).retry_after(wait).limit(u64::from(per_second), u64::from(per_second) + 1)
    })?;
    let meter::Facts { bytes, other_tokens, output, thinking, choices } = facts;
    let asked = CallSize { bytes, other_tokens, output, model_output: None, thinking, choices };
    let model = model_route.model.clone().unwrap_or_default();
    let (pool_name, turn) =
        (ObjectKey::of(pool), facts::turn_seconds(pool.spec.bulkhead.as_ref(), meter.defaults(&caller.key.namespace).as_ref()));
    let asked_circuit = match context.circuits.has_permit(&session, id) {
        true => None,
        false => {
            let within = Duration::from_secs(u64::from(turn)) + CALL_TIMEOUT_GRACE;
            Some(context.circuits.may_call(&pool_name, &target.origin, &model, within).await?)
        }
    };
    let own = Key::Agent(uid.clone());
    let item = passage.item.take();
    let held = until_written(meter, || match meter.hold(&session, id, &mut passage.route, &asked, (namespace, &model)) {
        // Missing lifetime tokens may be topped up, which is written first.
        HoldResult::Refused(refusal) if refusal.key == own && spent(&refusal.cause) && meter.top_up(&uid, &mut passage.above) => {
            HoldResult::WritePending
        }
        held => held,
    });
    match held.await {
        Some(HoldResult::Given { given, each, path, room }) => {
            meter.call_granted(ObjectKey::of(pool), given.input.saturating_add(given.output));
            if let Some(item) = item {
                meter.held_for(&session, id, &item);
            }
            if let Some(asked) = asked_circuit {
                asked.keep(&session, id, &caller.uid, &caller.key);
            }
            let open = journaled_hold(id, given, path, &asked);
            let first_token_seconds = context.circuits.first_token(&pool_name);
            Ok(meter::HoldAnswer { open, output: each, target, first_token_seconds, turn_seconds: turn, room })
        }
        Some(HoldResult::Refused(refusal)) => {
            context.metrics.budget_refused(refusal.cause.label());
            meter.call_refused(ObjectKey::of(pool), &refusal);
            let lease = lease_check::lease_of(caller, model_route.item.as_ref(), context);
            if let Some(lease) = lease.clone() {
                context.live.refused(&caller.uid, lease, RefusedCall::of(&refusal));
            }
            if refusal.key == own && refusal.retry == RetryHint::Never {
                // The lifetime tokens are spent finally: the supervisor decides whether the agent is paused or ended.
                // Without an item in hand it says goodbye instead, which its reconciler arranges.
                if lease.is_some() || !availability::leaves_when_spent(pool) {
                    let limit = refusal.limit.as_ref().map(|standing| standing.limit);
                    context.live.out_of_tokens(&caller.uid, limit, refusal.to_string());
                }
                context.wake.agent(&caller.key);
            }
            Err(refused(&refusal))
        }
        Some(HoldResult::Closed) => Err(closed()),
        Some(HoldResult::Unknown) => Err(unknown()),
        Some(HoldResult::WritePending) | None => {
            Err(Refusal::unavailable("a write that this call needs did not finish in time; try again"))
        }
    }
}

/// A hold as the gateway journals it, with the input that is charged if its usage never becomes known.
fn journaled_hold(id: u64, given: budget::HeldTokens, path: Vec<String>, asked: &CallSize) -> meter::JournaledHold {
    let budget::HeldTokens { at, input, output } = given;
    meter::JournaledHold { id, at, path, input: asked.charged(input), output }
}

fn spent(because: &RefusalCause) -> bool {
    match because {
        RefusalCause::Used | RefusalCause::TooLarge => true,
        RefusalCause::Held
        | RefusalCause::Guaranteed
        | RefusalCause::Recovering
        | RefusalCause::Paused
        | RefusalCause::InFlight
        | RefusalCause::Gateways
        | RefusalCause::Missing
        | RefusalCause::Blocked(_) => false,
    }
}

/// The places that a call for the current item would count at, the nearest first, without shares that are reserved for
/// the type of the pool.
pub(super) fn places(caller: &Caller, agent: &Agent, pool: &AgentPool, context: &Context) -> Result<Vec<Key>, Refusal> {
    ready(&context.meter)?;
    if !context.work_index.is_ready() {
        return Err(Refusal::unavailable("the controller is still listing the WorkItems; try again"));
    }
    let (CallPath { leafs, top, .. }, _) = call_path(caller, agent, None, pool, context)?;
    Ok(leafs.into_iter().chain(context.meter.chain(top.as_ref())).collect())
}

/// Creates the places that a call counts at, and returns them with the number of calls that its agent may make in a
/// second.
fn call_path(
    caller: &Caller,
    agent: &Agent,
    item: Option<&Lease>,
    pool: &AgentPool,
    context: &Context,
) -> Result<(CallPath, u32), Refusal> {
    let meter = &context.meter;
    let namespace = &caller.key.namespace;
    let named = pool.spec.budget_ref.as_ref().map(|budget| budget.name.as_str());
    let budget = context.stores.budget(namespace, named.unwrap_or("default"));
    let above = meter.above(namespace, named, budget.is_some());
    let above = above.ok_or_else(|| Refusal::unavailable("the budgets of this namespace are not known yet; try again"))?;
    let defaults = meter.defaults(namespace);
    let life = facts::lifetime(pool.spec.bulkhead.as_ref(), defaults.as_ref(), 0);
    meter.place_agent(&Object::from(agent), life);
    let mut leafs = Vec::new();
    let lease = lease_check::lease_of(caller, item, context);
    let share = lease.clone().and_then(|held| {
        context.work_index.with(namespace, |work| work.share(&held.uid).map(|(tokens, item)| (held, *tokens, item.clone())))
    });
    let item = lease.filter(|_| share.is_none()).map(|held| held.uid);
    if let Some((held, tokens, item)) = share {
        meter.place_task(&Object::Item(item), held.epoch, tokens);
        leafs.push(Key::Task { item: held.uid, epoch: held.epoch });
    }
    leafs.push(Key::Agent(agent.uid().unwrap_or_default()));
    let parsed = budget.as_ref().and_then(|budget| budget.0.as_ref().ok());
    let per_second = facts::per_second(parsed, defaults.as_ref());
    let type_ = &pool.spec.type_;
    let route = Route::new(leafs.clone(), above.top.clone(), type_);
    Ok((CallPath { leafs, route, above: Route::new(Vec::new(), above.top.clone(), type_), top: above.top, item }, per_second))
}

/// Converts a refusal to the form that gateways read.
pub fn refused(refusal: &budget::Refusal) -> Refusal {
    let budget::Refusal { key, cause: because, limit, retry: when, field, holders: _ } = refusal;
    let room = limit.as_ref().map(|standing| {
        let LimitState { name, span, limit, used, held, left, asked: _ } = standing;
        LimitRoom {
            budget: key.to_string(),
            name: name.clone(),
            limit: *limit,
            used: *used,
            held: *held,
            left: *left,
            resets_at: span.end(),
        }
    });
    let field = if key.is_leaf() || field.is_empty() { field.clone() } else { format!("{field} of {}", key.record()) };
    let shortage = Shortage { room, because: because.label().to_owned(), field, own: !refusal.above_agent() };
    let (code, wait) = match when {
        RetryHint::Wait(seconds) => (Code::BudgetHeld, Some(u32::try_from(*seconds).unwrap_or(1).max(1))),
        RetryHint::Later(_) | RetryHint::Never => (Code::BudgetExhausted, None),
    };
    let refusal = Refusal::new(code, refusal.to_string()).budget(shortage);
    match wait {
        Some(seconds) => refusal.retry_after(seconds),
        None => refusal,
    }
}

#[cfg(test)]
#[path = "calls_tests.rs"]
mod tests;
