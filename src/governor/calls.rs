//! The calls of agents, after the caller is identified. Each call may be repeated.

use std::time::Duration;

use axum::http::Uri;
use kube::ResourceExt;
use kube::api::ListParams;
use serde::Serialize;
use serde_json::Value;

use super::agent_creation::{creation_refusal, ended_or_deleting, idempotency_key};
use super::budget::facts::bulkhead;
use super::budget::{self, agent_calls};
use super::caller::{Caller, identify, stored_directive};
use super::{changeset, commands, external, preflight, sandbox, work};
use crate::api::agent_pool::{Bulkhead, InputMode, RunMode};
use crate::api::cluster_budget::Defaults;
use crate::api::names;
use crate::api::{Agent, AgentPool};
use crate::cluster::ObjectKey;
use crate::cluster::clock::BootTime;
use crate::cluster::{Class, Error, calls};
use crate::controller::{Context, agent_pool};
use crate::policy::children;
use crate::policy::interventions::{Signal, Violation};
use crate::policy::work::item::Phase;
use crate::serve::query;
use crate::wire::access::Call;
use crate::wire::agent::{Acknowledgement, Goodbye, Input, Register, Report, Run, Settings, Spawn, Spawned, WorkSettings};
use crate::wire::command::{CommandLimits, TimeExemptions};
use crate::wire::work::{Claim, ItemOrder, ItemWanted};
use crate::wire::{Code, Refusal, body};
use spillway_conversion::pool::queues_of;

/// How long the call waits until the status contains the goodbye. The pod keeps the goodbye and calls again.
const GOODBYE_STORE_TIMEOUT: Duration = Duration::from_secs(5);

/// Answers one call. `None` is an empty answer. `uri` is the URI of the request, with its path and query.
pub async fn answer(
    call: Call,
    uri: &Uri,
    caller: &Caller,
    key: Option<&str>,
    bytes: &[u8],
    context: &Context,
) -> Result<Option<Value>, Refusal> {
    if call == Call::Enrol {
        return json(&external::enrol(caller, key, body::read(bytes)?, context).await?).map(Some);
    }
    let agent = identify(caller, context).await?;
    context.live.restore_directive(&caller.uid, stored_directive(&agent));
    match call {
        Call::Register => json(&register(caller, &agent, body::read(bytes)?, context)?),
        Call::Report => json(&report(caller, &agent, body::read(bytes)?, context)?),
        Call::Wanted => {
            recall_pause(caller, context)?;
            commands::tell(caller, &agent, context);
            json(&context.live.desired_state(&caller.uid))
        }
        Call::Goodbye => json(&goodbye(caller, body::read(bytes)?, context).await?),
        Call::Spawn => json(&spawn(caller, &agent, key, body::read(bytes)?, context).await?),
        Call::Claim => {
            let Claim { wait_seconds: _ } = body::read(bytes)?; // the gateway waits
            if context.live.started(&caller.uid) {
                context.wake.agent(&caller.key);
            }
            let claimed = work::calls::claim(caller, &agent, &pool_of(&agent, context)?, context).await?;
            return claimed.map(|assignment| json(&assignment)).transpose();
        }
        Call::Complete | Call::Fail | Call::Release | Call::Advance => {
            let uid = uri.path().rsplit('/').nth(1).unwrap_or_default();
            work::calls::verb(call, caller, &pool_of(&agent, context)?, uid, bytes, context).await
        }
        Call::Submit => json(&work::submit::submit(caller, &pool_of(&agent, context)?, key, body::read(bytes)?, context).await?),
        Call::Plan => json(&work::submit::plan(caller, &pool_of(&agent, context)?, key, body::read(bytes)?, context).await?),
        Call::ListWork => json(&work::follow::list(caller, &agent.spec.pool_ref.name, &query::read(uri)?, context).await?),
        Call::Inbox => {
            let inbox = work::follow::inbox(caller, &agent.spec.pool_ref.name, &query::read(uri)?, context).await?;
            return inbox.map(|inbox| json(&inbox)).transpose();
        }
        Call::Budget => json(&agent_calls::left(caller, &agent, &pool_of(&agent, context)?, context)?),
        Call::AskBudget => json(&agent_calls::ask(caller, &agent, &body::read(bytes)?, context).await?),
        Call::TryCommand => json(&commands::try_command(caller, &agent, body::read(bytes)?, context).await?),
        Call::EndTry => json(&commands::end_try(caller, body::read(bytes)?, context)),
        Call::Enrol
        | Call::Connect
        | Call::Egress
        | Call::Git
        | Call::Tools
        | Call::PutArtifact
        | Call::ListArtifacts
        | Call::GetArtifact
        | Call::Artifacts
        | Call::ReadArtifact
        | Call::UnusedArtifacts
        | Call::Changes
        | Call::MeterBegin
        | Call::MeterWay
        | Call::MeterHold
        | Call::MeterExtend
        | Call::MeterLate
        | Call::MeterSettle
        | Call::WorkReplay => Err(Refusal::new(Code::NotAllowed, "only gateways may make this call")),
    }
    .map(Some)
}

fn json(value: &impl Serialize) -> Result<Value, Refusal> {
    serde_json::to_value(value).map_err(|error| Refusal::new(Code::Internal, error.to_string()))
}

fn pool_of(agent: &Agent, context: &Context) -> Result<AgentPool, Refusal> {
    let namespace = agent.namespace().unwrap_or_default();
    let stored = context.stores.pool(&namespace, &agent.spec.pool_ref.name);
    let pool = stored.as_ref().and_then(|pool| pool.0.as_ref().ok()).cloned();
    pool.ok_or_else(|| Refusal::unavailable("the controller does not know the agent's pool yet; try again"))
}

fn register(caller: &Caller, agent: &Agent, request: Register, context: &Context) -> Result<Settings, Refusal> {
    let pool = pool_of(agent, context)?;
    budget::calls::ready(&context.meter)?;
    recall_pause(caller, context)?;
    // A process outside the cluster cannot prove a sandbox.
    let sandbox = if agent.spec.external.is_some() { Some(external::sandbox()) } else { request.sandbox };
    if context.live.registered(&caller.uid, &caller.gateway, sandbox) {
        context.wake.agent(&caller.key);
    }
    commands::tell(caller, agent, context);
    let spec = &pool.spec;
    let hooks = spec.agent.hooks.clone().unwrap_or_default();
    let settings = Settings {
        agent: agent.name_any(),
        display_name: agent.spec.display_name.clone().unwrap_or_else(|| agent.name_any()),
        heartbeat_period_seconds: spec.heartbeat_period_seconds(),
        heartbeat_timeout_seconds: spec.heartbeat_timeout_seconds(),
        goodbye_timeout_seconds: spec.goodbye_timeout_seconds(),
        chat: spec.mode == crate::api::agent_pool::PoolMode::Chat,
        canaries: context.supervised.canaries.clone(),
        drain_hook: hooks.drain.unwrap_or_default(),
        warn_hook: hooks.warn.unwrap_or_default(),
        checkpoint_hook: hooks.checkpoint.unwrap_or_default(),
        preflight_command: preflight::command(spec),
        preflight_seconds: preflight::seconds(spec),
        work: work_of(&pool),
        commands: commands_of(&pool, context.meter.defaults(&caller.key.namespace).as_ref()),
        untimed: untimed_of(&pool),
        wanted: context.live.desired_state(&caller.uid),
    };
    Ok(if agent.spec.external.is_some() { external::settings(settings) } else { settings })
}

/// Time limits for the commands of a pool's agents.
fn commands_of(pool: &AgentPool, defaults: Option<&Defaults>) -> CommandLimits {
    let built_in = CommandLimits::default();
    let said = |field: fn(&Bulkhead) -> Option<i32>| {
        bulkhead(pool.spec.bulkhead.as_ref(), defaults, field).and_then(|seconds| u32::try_from(seconds).ok())
    };
    let max_timeout_seconds = said(|bulkhead| bulkhead.max_command_timeout_seconds).unwrap_or(built_in.max_timeout_seconds);
    let timeout_seconds = said(|bulkhead| bulkhead.command_timeout_seconds).unwrap_or(built_in.timeout_seconds).min(max_timeout_seconds);
    CommandLimits { timeout_seconds, max_timeout_seconds }
}

/// The commands of a pool's agents that have no time limit unless they ask for one. An agent that calls models runs
/// commands because a model answered.
fn untimed_of(pool: &AgentPool) -> TimeExemptions {
    let names = pool.spec.agent.untimed_commands.clone().unwrap_or_default();
    TimeExemptions { names, until_answer: pool.spec.models.as_ref().is_some_and(|models| !models.is_empty()) }
}

/// How the agents of a pool work on items, if the pool has queues.
fn work_of(pool: &AgentPool) -> Option<WorkSettings> {
    if queues_of(pool).is_empty() {
        return None;
    }
    let agent = &pool.spec.agent;
    let number = |value: Option<i32>| value.and_then(|value| u32::try_from(value).ok());
    let max_items = if pool.spec.type_ == names::DRONE_TYPE { Some(1) } else { number(agent.max_items) };
    let (prompt, turns) = agent.continue_.as_ref().map_or((String::new(), 1), |again| (again.prompt.clone(), again.max_turns));
    Some(WorkSettings {
        run: match agent.run {
            RunMode::PerItem => Run::PerItem,
            RunMode::LongRunning => Run::LongRunning,
        },
        input: match agent.input {
            InputMode::Stdin => Input::Stdin,
            InputMode::File => Input::File,
            InputMode::Argument => Input::Argument,
        },
        continue_prompt: prompt,
        max_turns: u32::try_from(turns).unwrap_or(1),
        max_items,
        changeset: changeset::settings(pool).map(Box::new),
    })
}

/// Restores the pause order of an agent's item. Such orders are only in memory, and the memory of a new leader is
/// empty: without this, an agent with a paused item would be told to continue.
fn recall_pause(caller: &Caller, context: &Context) -> Result<(), Refusal> {
    work::common::ready(context)?;
    let holding = context.work_index.holding(&caller.key.namespace, &caller.uid).filter(|holding| holding.phase == Phase::Paused);
    if let Some(holding) = holding {
        context.live.tell_item(&caller.uid, Some(ItemWanted { held: holding.held, order: ItemOrder::Pause(holding.pauses) }));
    }
    Ok(())
}

fn report(caller: &Caller, agent: &Agent, request: Report, context: &Context) -> Result<crate::wire::agent::DesiredState, Refusal> {
    if request.held.is_some() {
        work::common::ready(context)?;
    }
    let request = if agent.spec.external.is_some() { external::sanitize_report(request) } else { request };
    commands::counted(caller, agent, request.commands, context);
    sandbox::counted(caller, agent, &request.refused, context);
    commands::tell(caller, agent, context);
    let held = request.held.clone();
    let order = held.and_then(|held| context.work_index.order(&caller.key.namespace, &caller.uid, &caller.key.name, &held));
    // A gateway may be about to replay the claim.
    let order = order.filter(|wanted| wanted.order != ItemOrder::Lost || !context.replay_window_open());
    if context.live.reported(&caller.uid, &caller.gateway, request, jiff::Timestamp::now()) {
        context.wake.agent(&caller.key);
    }
    context.live.tell_item(&caller.uid, order);
    Ok(context.live.desired_state(&caller.uid))
}

async fn goodbye(caller: &Caller, request: Goodbye, context: &Context) -> Result<Acknowledgement, Refusal> {
    context.live.say_goodbye(&caller.uid, request.reason, jiff::Timestamp::now());
    context.wake.agent(&caller.key);
    let stored = tokio::time::timeout(GOODBYE_STORE_TIMEOUT, context.live.until_goodbye_is_stored(&caller.uid)).await;
    stored.map_err(|_| Refusal::unavailable("the goodbye is not stored yet; try again"))?;
    Ok(Acknowledgement {})
}

/// Creates a child: an Agent outside the min and max of its pool. Its name follows from the parent and the key, so that
/// a repeated call finds it.
async fn spawn(caller: &Caller, parent: &Agent, key: Option<&str>, request: Spawn, context: &Context) -> Result<Spawned, Refusal> {
    let key = idempotency_key(key)?;
    let namespace = &caller.key.namespace;
    let own = pool_of(parent, context)?;
    let allowed = own.spec.may.iter().flat_map(|may| may.spawn_in.iter().flatten()).any(|pool| *pool == request.pool);
    if !allowed {
        let message = format!("AgentPool/{} does not list {:?} in spec.may.spawnIn", own.name_any(), request.pool);
        return Err(Refusal::new(Code::NotAllowed, message).field("pool"));
    }
    let stored = context.stores.pool(namespace, &request.pool);
    let Some(pool) = stored.as_ref().and_then(|pool| pool.0.as_ref().ok()) else {
        return Err(Refusal::new(Code::NotAllowed, format!("AgentPool/{} does not exist", request.pool)).field("pool"));
    };
    let child = agent_pool::child_agent(pool, parent, &caller.uid, key, request.display_name.as_deref());
    let name = child.name_any();
    // One at a time for one parent: two concurrent calls could both see the last free place.
    let one = context.live.spawn_lock(&caller.uid);
    let Ok(mut made) = one.try_lock_owned() else {
        return Err(Refusal::new(Code::TooManyCalls, "another child of this agent is being created").retry_after(1));
    };
    let _turn = work::common::turn(namespace, context).await?;
    let api = context.api::<Agent>(namespace);
    let unavailable = |error: Error| creation_refusal(&error, caller);
    let mine = ListParams::default().labels(&format!("{}={}", names::PARENT_UID_LABEL, caller.uid));
    let children = api.list(&mine).await.map_err(Error::of("listing an agent's children")).map_err(unavailable)?.items;
    if let Some(there) = children.iter().find(|there| there.name_any() == name) {
        let same = there.spec.pool_ref == child.spec.pool_ref && there.spec.display_name == child.spec.display_name;
        let other = || Refusal::new(Code::KeyReused, "this Idempotency-Key was used for another child").field("Idempotency-Key");
        return if same { Ok(Spawned { agent: name }) } else { Err(other()) };
    }
    let living = children.iter().filter(|child| !ended_or_deleting(child)).count();
    let defaults = context.meter.defaults(&caller.key.namespace);
    let most = bulkhead(own.spec.bulkhead.as_ref(), defaults.as_ref(), |bulkhead| bulkhead.max_child_agents);
    let most = most.and_then(|most| u32::try_from(most).ok()).unwrap_or(0);
    if u32::try_from(living).unwrap_or(u32::MAX) >= most {
        context.live.raise(&caller.uid, Signal::RuleViolated(Violation::TooManyChildren), None);
        context.wake.agent(&caller.key);
        let message = format!(
            "this agent has {living} living children, and AgentPool/{} allows {most} (spec.bulkhead.maxChildAgents)",
            own.name_any()
        );
        return Err(Refusal::new(Code::LimitReached, message));
    }
    made.retain(|time| time.elapsed() < children::CHILD_RATE_WINDOW);
    let now = jiff::Timestamp::now();
    let ages = children.iter().filter_map(|child| Duration::try_from(now.duration_since(child.creation_timestamp()?.0)).ok());
    // The list contains the children that a previous leader created, except those that ended and were deleted since.
    if let Some(wait) = children::wait(ages, most).max(children::wait(made.iter().map(|time| time.elapsed()), most)) {
        return Err(too_fast(wait, most, &own.name_any()));
    }
    context.leadership.check().map_err(unavailable)?;
    // Counted even if the answer is lost: the child may exist.
    made.push(BootTime::now());
    match calls::create(&api, &child, names::managers::GOVERNOR).await {
        Ok(_) => {}
        Err(error) if error.class() == Class::AlreadyExists => {}
        Err(error) => {
            if matches!(error.class(), Class::Refused | Class::QuotaExceeded | Class::Terminating) {
                made.pop(); // it was not created
            }
            return Err(unavailable(error));
        }
    }
    context.wake.agent(&ObjectKey { namespace: namespace.clone(), name: name.clone() });
    context.wake.agent(&caller.key);
    Ok(Spawned { agent: name })
}

/// Refuses a child because too many were created within a minute, even if few of them are alive.
fn too_fast(wait: Duration, most: u32, pool: &str) -> Refusal {
    let (rate, seconds) = (children::rate(most), wait.as_secs().saturating_add(1));
    let message = format!(
        "this agent created {rate} children within a minute, and AgentPool/{pool} allows no more: the limit is twice \
         spec.bulkhead.maxChildAgents ({most}), and at least 10; try again in {seconds} s"
    );
    Refusal::new(Code::TooManyCalls, message).retry_after(u32::try_from(seconds).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_says_which_commands_have_no_time() {
        let untimed = |models: Value, names: Value| {
            let agent = serde_json::json!({"image": "x", "command": ["y"], "untimedCommands": names});
            let spec = serde_json::json!({"type": "worker", "agent": agent, "models": models});
            untimed_of(&AgentPool::new("p", serde_json::from_value(spec).expect("a pool")))
        };
        let model = serde_json::json!([{"name": "m", "dialect": "Anthropic", "origin": "https://models.example.org"}]);
        assert_eq!(untimed(model, Value::Null), TimeExemptions { names: Vec::new(), until_answer: true });
        let names = serde_json::json!(["vite", "*"]);
        let without = TimeExemptions { names: vec!["vite".into(), "*".into()], until_answer: false };
        assert_eq!((untimed(Value::Null, names.clone()), untimed(serde_json::json!([]), names)), (without.clone(), without));
    }

    #[test]
    fn an_agent_that_makes_children_too_fast_is_told_when_to_come_back_and_what_to_change() {
        let made = [BootTime::now(); 10];
        let wait = children::wait(made.iter().map(|time| time.elapsed()), 3).expect("ten are enough");
        let refusal = too_fast(wait, 3, "lead");
        assert_eq!(refusal.code, Code::TooManyCalls);
        assert!(refusal.retry_after_seconds.is_some_and(|seconds| (59..=61).contains(&seconds)), "{refusal:?}");
        for words in ["10 children within a minute", "AgentPool/lead", "spec.bulkhead.maxChildAgents (3)"] {
            assert!(refusal.message.contains(words), "{refusal}");
        }
        assert_eq!(children::wait(made.iter().map(|time| time.elapsed()), 6), None);
    }
}
