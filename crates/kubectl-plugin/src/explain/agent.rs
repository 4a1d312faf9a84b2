//! The report on an agent. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;

use super::facts::{Facts, PodFact};
use super::hints::Hints;
use super::report::{Fact, List, Report, condition_report};
use super::{advice, pod};
use crate::api::agent::AgentTokens;
use crate::api::conditions::types;
use crate::api::tool_approval::ToolApprovalState;
use crate::api::{Agent, AgentPool, names};
use crate::find;

/// The report on an agent.
pub fn report(facts: &Facts, agent: &Agent) -> Report {
    let status = agent.status.clone().unwrap_or_default();
    let ended = find::ended(agent);
    let mut telling: Vec<&Condition> = status.conditions.iter().filter(|condition| advice::shows_problem(condition)).collect();
    if ended {
        telling.retain(|condition| condition.type_ == types::READY); // the others describe a life that is over
    }
    telling.sort_by_key(|condition| condition.type_ != types::READY);
    let in_the_way = |pool: &AgentPool| -> Vec<Condition> {
        let conditions = pool.status.iter().flat_map(|status| &status.conditions);
        let grave =
            |condition: &&Condition| [types::BLOCKED, types::STALLED].contains(&condition.type_.as_str()) && condition.status == "True";
        conditions.filter(grave).cloned().collect()
    };
    let of_pool = facts.pool.as_ref().filter(|_| !ended).map(in_the_way).unwrap_or_default();
    let places = [
        ("agent", Some(agent.name_any())),
        ("pool", Some(agent.spec.pool_ref.name.clone())),
        ("namespace", Some(facts.namespace.clone())),
        ("node", status.node.clone()),
        ("ended", Some("AGENT".to_owned())),
    ];
    let mut hints = Hints::new(&places);
    if status.phase.is_none() {
        hints.add_not_observed();
    }
    if agent.metadata.deletion_timestamp.is_some() && !ended {
        hints.add_no_action("Deletion", "the agent is being deleted, and waits until its pod is proved gone");
    }
    telling.iter().for_each(|condition| hints.add_condition(condition));
    let interventions = status.interventions.clone().unwrap_or_default();
    if let (Some(last), false) = (interventions.last(), ended) {
        hints.add_reason(&last.signal);
    }
    if agent.spec.paused == Some(true) && !telling.iter().any(|condition| condition.type_ == "Paused") {
        hints.add_action(
            "spec.paused",
            "spec.paused of the agent is true: `kubectl spillway resume {agent} -n {namespace}` resumes the agent",
        );
    }
    of_pool.iter().for_each(|condition| hints.add_condition(condition));
    let ready = find::condition(&status.conditions, types::READY);
    Report {
        kind: "Agent".to_owned(),
        name: agent.name_any(),
        display_name: agent.spec.display_name.clone(),
        state: find::state(agent),
        since: ready.map(|ready| ready.last_transition_time.clone()),
        facts: agent_facts(facts, agent),
        conditions: status.conditions.iter().map(condition_report).collect(),
        interventions,
        pool: of_pool.iter().map(condition_report).collect(),
        advice: hints.into_sorted(),
        ..Report::default()
    }
}

fn agent_facts(facts: &Facts, agent: &Agent) -> Vec<Fact> {
    let status = agent.status.clone().unwrap_or_default();
    let mut list = List::default();
    let type_ = agent.labels().get(names::TYPE_LABEL).map(|type_| format!(" (type {type_})")).unwrap_or_default();
    list.text("Pool", Some(format!("{}{type_}", agent.spec.pool_ref.name)));
    list.time("Created", agent.metadata.creation_timestamp.as_ref(), creator_text(agent));
    list.time("Deletion", agent.metadata.deletion_timestamp.as_ref(), "requested");
    list.text("External", agent.spec.external.as_ref().map(|external| format!("outside the cluster, registered by {}", external.user)));
    list.text("Pod", status.pod_ref.as_ref().map(|pod| pod_words(&pod.name, &facts.pod)));
    list.text("Volume", status.claim_ref.as_ref().map(|claim| &claim.name));
    list.text("Node", status.node.as_ref());
    list.time("Started", status.start_time.as_ref(), "");
    list.time("Ended", status.stop_time.as_ref(), "");
    list.text("Sandbox", status.sandbox.as_ref().map(|sandbox| &sandbox.tier));
    let missing = status.sandbox.as_ref().and_then(|sandbox| sandbox.missing.as_ref());
    list.text("Sandbox lacks", missing.map(|missing| missing.join(", ")));
    let refused = status.sandbox.as_ref().and_then(|sandbox| sandbox.refused.as_ref());
    list.text("Sandbox refused", refused.map(|refused| refused.join(", ")));
    list.time("Heartbeat", status.last_heartbeat_time.as_ref(), "as last written");
    list.time("Activity", status.last_activity_time.as_ref(), "as last written");
    list.text("Action", status.current_action.as_ref());
    list.text("Item", status.current_item.as_ref().map(|item| format!("{} (epoch {})", item.name, item.epoch)));
    list.text("Items done", status.items.as_ref().map(|items| format!("{} succeeded, {} failed", items.succeeded, items.failed)));
    list.text("Tokens", status.tokens.as_ref().map(tokens));
    list.text("Time-outs", status.timeouts.filter(|timeouts| *timeouts > 0));
    list.text("Children", status.children.filter(|children| *children > 0));
    list.text("Pauses", pauses(agent));
    list.text("Approvals", approvals(agent));
    if let Some(goodbye) = &status.goodbye {
        list.time("Goodbye", Some(&goodbye.time), goodbye.reason.clone().unwrap_or_default());
    }
    list.into_facts()
}

fn creator_text(agent: &Agent) -> String {
    if agent.spec.external.is_some() {
        return "for a registered process".to_owned();
    }
    match (&agent.spec.parent_ref, agent.spec.sequence) {
        (Some(parent), _) => format!("by agent {}", parent.name),
        (None, Some(number)) => format!("by its pool, number {number}"),
        (None, None) => "by hand".to_owned(),
    }
}

fn pod_words(name: &str, fact: &PodFact) -> String {
    match fact {
        PodFact::Unknown => name.to_owned(),
        PodFact::Gone => format!("{name}: gone"),
        PodFact::There(pod) => {
            let phase = pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_else(|| "no phase".to_owned());
            let words = pod::pod_problems(pod);
            let more = if words.is_empty() { String::new() } else { format!("; {}", words.join("; ")) };
            format!("{name}: {phase}{more}")
        }
    }
}

fn tokens(tokens: &AgentTokens) -> String {
    let AgentTokens { used, held, lost: _, limit, top_ups, high_water: _, ledger: _ } = tokens;
    let mut words = vec![format!("{} used", used.unwrap_or(0))];
    words.extend(held.filter(|held| *held > 0).map(|held| format!("{held} held")));
    words.extend(limit.map(|limit| format!("of {limit}")));
    words.extend(top_ups.filter(|top_ups| *top_ups > 0).map(|top_ups| format!("{top_ups} top-ups")));
    words.join(", ")
}

/// The calls that wait for a person, and what to do.
fn approvals(agent: &Agent) -> Option<String> {
    let all = agent.status.iter().flat_map(|status| status.tool_approvals.iter().flatten());
    let waiting: Vec<&str> = all.filter(|call| call.state == ToolApprovalState::Waiting).map(|call| call.program.as_str()).collect();
    let help = "waits for a person: `kubectl spillway approvals` shows the call";
    (!waiting.is_empty()).then(|| format!("{} {help}", waiting.join(", ")))
}

fn pauses(agent: &Agent) -> Option<String> {
    let pauses = agent.status.as_ref().and_then(|status| status.pauses).filter(|pauses| *pauses > 0);
    let by_hand = (agent.spec.paused == Some(true)).then(|| "spec.paused is true".to_owned());
    let resumed = agent.spec.resume_pause.map(|number| format!("resumed up to {number}"));
    let words: Vec<String> = [pauses.map(|pauses| format!("{pauses} so far")), resumed, by_hand].into_iter().flatten().collect();
    (!words.is_empty()).then(|| words.join(", "))
}
