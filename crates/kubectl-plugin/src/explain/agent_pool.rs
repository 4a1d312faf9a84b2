//! The report on a pool. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;

use super::advice;
use super::hints::Hints;
use super::report::{Fact, List, Report, Waiting, condition_report};
use crate::api::agent::AgentPhase;
use crate::api::agent_pool::PoolMode;
use crate::api::conditions::types;
use crate::api::{Agent, AgentPool};
use crate::find;

/// The most waiting agents of a pool in a report.
const MAX_SHOWN_AGENTS: usize = 10;

/// The report on a pool.
pub fn report(pool: &AgentPool, agents: &[Agent]) -> Report {
    let status = pool.status.clone().unwrap_or_default();
    // A hibernated agent waits only for work.
    let asleep = |agent: &Agent| find::phase(agent) == Some(AgentPhase::Hibernated) && agent.spec.hibernated == Some(true);
    let mut waiting: Vec<&Agent> = agents.iter().filter(|agent| !find::ended(agent) && !find::ready(agent) && !asleep(agent)).collect();
    waiting.sort_by_key(|agent| agent.creation_timestamp().map(|time| time.0));
    let mut telling: Vec<&Condition> = status.conditions.iter().filter(|condition| advice::shows_problem(condition)).collect();
    let gravest = [types::STALLED, types::BLOCKED, types::READY];
    telling.sort_by_key(|condition| gravest.iter().position(|type_| *type_ == condition.type_).unwrap_or(gravest.len()));
    let first = waiting.first().map(|agent| agent.name_any());
    let ended = agents.iter().filter(|agent| find::ended(agent)).max_by_key(|agent| stopped(agent)).map(|agent| agent.name_any());
    let ended = ended.or_else(|| Some("AGENT".to_owned()));
    let places = [("agent", first), ("pool", Some(pool.name_any())), ("namespace", pool.namespace()), ("node", None), ("ended", ended)];
    let mut hints = Hints::new(&places);
    if status.conditions.is_empty() {
        hints.add_not_observed();
    }
    telling.iter().for_each(|condition| hints.add_condition(condition));
    for agent in waiting.iter().take(MAX_SHOWN_AGENTS) {
        let conditions = agent.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let node = agent.status.as_ref().and_then(|status| status.node.clone());
        hints.placeholders = [("agent", Some(agent.name_any())), places[1].clone(), places[2].clone(), ("node", node), places[4].clone()];
        conditions.iter().filter(|condition| advice::shows_problem(condition)).for_each(|condition| hints.add_condition(condition));
    }
    // AtMax is no problem and says little, so other conditions come first.
    let loudest = telling.iter().copied().find(|condition| condition.type_ != types::AT_MAX);
    let loudest = loudest.or_else(|| find::condition(&status.conditions, types::READY));
    let state = match (status.desired, loudest) {
        (None, _) => "the operator has not observed it yet: check that the operator runs".to_owned(),
        (Some(desired), None) => size_text(desired, status.agents),
        (Some(desired), Some(condition)) => {
            format!(
                "{}. {} is {}, {}",
                size_text(desired, status.agents),
                condition.type_,
                condition.status,
                find::reason_and_message(condition)
            )
        }
    };
    Report {
        kind: "AgentPool".to_owned(),
        name: pool.name_any(),
        state,
        since: loudest.map(|condition| condition.last_transition_time.clone()),
        facts: pool_facts(pool, agents),
        conditions: status.conditions.iter().map(condition_report).collect(),
        agents: waiting.iter().take(MAX_SHOWN_AGENTS).map(|agent| waiting_agent(agent)).collect(),
        advice: hints.into_sorted(),
        ..Report::default()
    }
}

fn stopped(agent: &Agent) -> Option<jiff::Timestamp> {
    agent.status.as_ref().and_then(|status| status.stop_time.as_ref()).map(|time| time.0)
}

fn size_text(desired: i32, agents: Option<i32>) -> String {
    format!("wants {desired}, has {}", agents.unwrap_or(0))
}

fn waiting_agent(agent: &Agent) -> Waiting {
    let ready = agent.status.as_ref().and_then(|status| find::condition(&status.conditions, types::READY));
    Waiting {
        name: agent.name_any(),
        display_name: agent.spec.display_name.clone(),
        state: find::state(agent),
        since: ready.map(|ready| ready.last_transition_time.clone()),
    }
}

fn pool_facts(pool: &AgentPool, agents: &[Agent]) -> Vec<Fact> {
    let status = pool.status.clone().unwrap_or_default();
    let spec = &pool.spec;
    let mut list = List::default();
    let mode = match spec.mode {
        PoolMode::Perseverance => "works from queues",
        PoolMode::Chat => "for chats with people",
    };
    list.text("Type", Some(format!("{}, {mode}", spec.type_)));
    list.time("Created", pool.metadata.creation_timestamp.as_ref(), "");
    list.text(
        "Size",
        Some(match spec.fixed_replicas() {
            Some(replicas) => format!("exactly {replicas} (spec.replicas)"),
            None => format!("{} to {}{}", spec.min(), spec.max(), if spec.work_aware() { ", by its work" } else { "" }),
        }),
    );
    let why = status.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    list.text("Wanted", status.desired.map(|desired| format!("{desired}{why}")));
    let parts = [("active", status.active), ("idle", status.idle)];
    let parts: Vec<String> = parts.iter().filter_map(|(name, count)| count.map(|count| format!("{count} {name}"))).collect();
    list.text("Agents", status.agents.map(|agents| format!("{agents} ({})", parts.join(", "))));
    let outside = |agent: &&Agent| agent.spec.external.is_some() && !find::ended(agent);
    let external = spec
        .external
        .as_ref()
        .map(|external| format!("{} of at most {} outside the cluster", agents.iter().filter(outside).count(), external.max_agents));
    list.text("External", external);
    list.text("Hibernated", status.hibernated.filter(|hibernated| *hibernated > 0));
    list.text("Phases", Some(phases(agents)));
    let work = [("ready", status.work_ready), ("leased", status.work_leased)];
    let work: Vec<String> = work.iter().filter_map(|(name, count)| count.map(|count| format!("{count} {name}"))).collect();
    list.text("Work", Some(work.join(", ")));
    list.into_facts()
}

/// How many agents are in each phase.
fn phases(agents: &[Agent]) -> String {
    let count = |phase: Option<AgentPhase>| agents.iter().filter(|agent| find::phase(agent) == phase).count();
    let mut words: Vec<String> = AgentPhase::ALL
        .into_iter()
        .map(|phase| (count(Some(phase)), phase.name()))
        .filter(|(count, _)| *count > 0)
        .map(|(count, name)| format!("{count} {name}"))
        .collect();
    words.extend(Some(count(None)).filter(|count| *count > 0).map(|count| format!("{count} not observed")));
    words.join(", ")
}
