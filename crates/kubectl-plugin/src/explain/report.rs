//! What was read to a report of what matters in it. Pure; it must not know how the report is written.

use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt as _;
use serde::Serialize;

use super::advice::{self, Advice};
use super::work::Subject;
use super::{Facts, PodFact, item, pod, queue};
use crate::api::agent::{AgentPhase, AgentTokens, InterventionRecord};
use crate::api::agent_pool::PoolMode;
use crate::api::conditions::types;
use crate::api::{Agent, AgentPool, names};
use crate::find;

/// The newest events that are told.
const EVENTS: usize = 12;
/// The agents of a pool that are told of.
const AGENTS: usize = 10;

/// Why an agent, a pool, an item or a queue is in its state, and what to do about it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Agent, AgentPool, WorkItem or WorkQueue.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// Its state, with reason and message.
    pub state: String,
    /// Since when its readiness is what it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Of an item or a queue: what explains its state, in sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub why: Vec<String>,
    /// What is known of it, one thing a line.
    pub facts: Vec<Fact>,
    /// Of an item: its last attempts, the newest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<Tried>,
    /// All its conditions.
    pub conditions: Vec<Told>,
    /// What the supervisor did to it, the newest last.
    pub interventions: Vec<InterventionRecord>,
    /// Of an agent: what is in the way of its pool.
    pub pool: Vec<Told>,
    /// Of a pool: its living agents that are not ready, the oldest first, at most ten.
    pub agents: Vec<Waiting>,
    /// What was reported of it, the newest last, at most twelve.
    pub events: Vec<Happened>,
    /// What could not be read, in words.
    pub unread: Vec<String>,
    /// What to do.
    pub advice: Vec<Hint>,
}

/// One thing that is known.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fact {
    /// What of it.
    pub name: &'static str,
    /// When that was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
    /// What is known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
}

/// An attempt at an item that ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Tried {
    /// The lease epoch it ran under.
    pub epoch: i64,
    /// The agent.
    pub agent: String,
    /// When it began.
    pub start_time: Time,
    /// When it ended.
    pub end_time: Option<Time>,
    /// How it ended.
    pub verb: String,
    /// Why, in one word.
    pub reason: Option<String>,
    /// Why, in more.
    pub message: Option<String>,
}

/// A condition.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Told {
    /// Its type.
    #[serde(rename = "type")]
    pub type_: String,
    /// True, False or Unknown.
    pub status: String,
    /// Why, in one word.
    pub reason: String,
    /// Why, in more.
    pub message: String,
    /// Since when its status is what it is.
    pub since: Time,
}

/// An agent that is not ready.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Waiting {
    /// Its name.
    pub name: String,
    /// Its name for people.
    pub display_name: Option<String>,
    /// Its phase, reason and message.
    pub state: String,
    /// Since when.
    pub since: Option<Time>,
}

/// An event, or a series of them.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Happened {
    /// When, the last time.
    pub time: Option<Time>,
    /// Normal or Warning.
    #[serde(rename = "type")]
    pub type_: String,
    /// What it is about: kind and name.
    pub about: String,
    /// Why, in one word.
    pub reason: String,
    /// Why, in more.
    pub message: String,
    /// How many times.
    pub count: i32,
}

/// What to do about one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Hint {
    /// The reason.
    pub reason: String,
    /// What to do, or why nothing has to be done.
    pub advice: String,
    /// There is something to do.
    pub act: bool,
}

/// The report on what was read.
pub fn report(facts: &Facts) -> Report {
    let Facts { namespace, agent, pool, pod: _, agents, work, events, unread } = facts;
    let mut report = match (work.as_deref(), agent, pool) {
        (Some(work), _, _) => match &work.subject {
            Subject::Item(item) => item::report(facts, work, item),
            Subject::Queue(queue) => queue::report(facts, work, queue),
        },
        (None, Some(agent), _) => of_agent(facts, agent),
        (None, None, Some(pool)) => of_pool(pool, agents),
        (None, None, None) => Report::default(),
    };
    report.namespace.clone_from(namespace);
    report.events = happened(events);
    report.unread.clone_from(unread);
    report
}

fn of_agent(facts: &Facts, agent: &Agent) -> Report {
    let status = agent.status.clone().unwrap_or_default();
    let ended = find::ended(agent);
    let mut telling: Vec<&Condition> = status.conditions.iter().filter(|condition| advice::tells(condition)).collect();
    if ended {
        telling.retain(|condition| condition.type_ == types::READY); // the rest is of a life that is over
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
        hints.unobserved();
    }
    if agent.metadata.deletion_timestamp.is_some() && !ended {
        hints.nothing("Deletion", "it is being deleted, and waits until its pod is proved gone");
    }
    telling.iter().for_each(|condition| hints.condition(condition));
    let interventions = status.interventions.clone().unwrap_or_default();
    if let (Some(last), false) = (interventions.last(), ended) {
        hints.reason(&last.signal);
    }
    if agent.spec.paused == Some(true) && !telling.iter().any(|condition| condition.type_ == "Paused") {
        hints.act("spec.paused", "a person paused it: `kubectl spillway resume {agent} -n {namespace}` lets it go on");
    }
    of_pool.iter().for_each(|condition| hints.condition(condition));
    let ready = find::condition(&status.conditions, types::READY);
    Report {
        kind: "Agent".to_owned(),
        name: agent.name_any(),
        display_name: agent.spec.display_name.clone(),
        state: find::state(agent),
        since: ready.map(|ready| ready.last_transition_time.clone()),
        facts: agent_facts(facts, agent),
        conditions: status.conditions.iter().map(told).collect(),
        interventions,
        pool: of_pool.iter().map(told).collect(),
        advice: hints.done(),
        ..Report::default()
    }
}

fn of_pool(pool: &AgentPool, agents: &[Agent]) -> Report {
    let status = pool.status.clone().unwrap_or_default();
    // One that hibernates waits for nothing but work.
    let asleep = |agent: &Agent| find::phase(agent) == Some(AgentPhase::Hibernated) && agent.spec.hibernated == Some(true);
    let mut waiting: Vec<&Agent> = agents.iter().filter(|agent| !find::ended(agent) && !find::ready(agent) && !asleep(agent)).collect();
    waiting.sort_by_key(|agent| agent.creation_timestamp().map(|time| time.0));
    let mut telling: Vec<&Condition> = status.conditions.iter().filter(|condition| advice::tells(condition)).collect();
    let gravest = [types::STALLED, types::BLOCKED, types::READY];
    telling.sort_by_key(|condition| gravest.iter().position(|type_| *type_ == condition.type_).unwrap_or(gravest.len()));
    let first = waiting.first().map(|agent| agent.name_any());
    let ended = agents.iter().filter(|agent| find::ended(agent)).max_by_key(|agent| stopped(agent)).map(|agent| agent.name_any());
    let ended = ended.or_else(|| Some("AGENT".to_owned()));
    let places = [("agent", first), ("pool", Some(pool.name_any())), ("namespace", pool.namespace()), ("node", None), ("ended", ended)];
    let mut hints = Hints::new(&places);
    if status.conditions.is_empty() {
        hints.unobserved();
    }
    telling.iter().for_each(|condition| hints.condition(condition));
    for agent in waiting.iter().take(AGENTS) {
        let conditions = agent.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let node = agent.status.as_ref().and_then(|status| status.node.clone());
        hints.places = [("agent", Some(agent.name_any())), places[1].clone(), places[2].clone(), ("node", node), places[4].clone()];
        conditions.iter().filter(|condition| advice::tells(condition)).for_each(|condition| hints.condition(condition));
    }
    // To be at its bound is no trouble, and says little.
    let loudest = telling.iter().copied().find(|condition| condition.type_ != types::AT_MAX);
    let loudest = loudest.or_else(|| find::condition(&status.conditions, types::READY));
    let state = match (status.desired, loudest) {
        (None, _) => "no controller has looked at it yet: does the operator run?".to_owned(),
        (Some(desired), None) => numbers(desired, status.agents),
        (Some(desired), Some(condition)) => {
            format!("{}. {} is {}, {}", numbers(desired, status.agents), condition.type_, condition.status, find::why(condition))
        }
    };
    Report {
        kind: "AgentPool".to_owned(),
        name: pool.name_any(),
        state,
        since: loudest.map(|condition| condition.last_transition_time.clone()),
        facts: pool_facts(pool, agents),
        conditions: status.conditions.iter().map(told).collect(),
        agents: waiting.iter().take(AGENTS).map(|agent| waits(agent)).collect(),
        advice: hints.done(),
        ..Report::default()
    }
}

fn stopped(agent: &Agent) -> Option<jiff::Timestamp> {
    agent.status.as_ref().and_then(|status| status.stop_time.as_ref()).map(|time| time.0)
}

fn numbers(desired: i32, agents: Option<i32>) -> String {
    format!("wants {desired}, has {}", agents.unwrap_or(0))
}

pub(super) fn told(condition: &Condition) -> Told {
    Told {
        type_: condition.type_.clone(),
        status: condition.status.clone(),
        reason: condition.reason.clone(),
        message: condition.message.clone(),
        since: condition.last_transition_time.clone(),
    }
}

fn waits(agent: &Agent) -> Waiting {
    let ready = agent.status.as_ref().and_then(|status| find::condition(&status.conditions, types::READY));
    Waiting {
        name: agent.name_any(),
        display_name: agent.spec.display_name.clone(),
        state: find::state(agent),
        since: ready.map(|ready| ready.last_transition_time.clone()),
    }
}

/// The facts that there are; what nobody said is left out.
#[derive(Default)]
pub(super) struct List(Vec<Fact>);

impl List {
    pub(super) fn text(&mut self, name: &'static str, value: Option<impl ToString>) {
        let value = value.map(|value| value.to_string()).filter(|value| !value.is_empty());
        self.0.extend(value.map(|value| Fact { name, time: None, value }));
    }

    pub(super) fn time(&mut self, name: &'static str, time: Option<&Time>, value: impl Into<String>) {
        self.0.extend(time.map(|time| Fact { name, time: Some(time.clone()), value: value.into() }));
    }

    pub(super) fn done(self) -> Vec<Fact> {
        self.0
    }
}

fn agent_facts(facts: &Facts, agent: &Agent) -> Vec<Fact> {
    let status = agent.status.clone().unwrap_or_default();
    let mut list = List::default();
    let type_ = agent.labels().get(names::TYPE_LABEL).map(|type_| format!(" (type {type_})")).unwrap_or_default();
    list.text("Pool", Some(format!("{}{type_}", agent.spec.pool_ref.name)));
    list.time("Made", agent.metadata.creation_timestamp.as_ref(), maker(agent));
    list.time("Asked to go", agent.metadata.deletion_timestamp.as_ref(), "deleted");
    list.text("External", agent.spec.external.as_ref().map(|external| format!("outside the cluster, registered by {}", external.user)));
    list.text("Pod", status.pod_ref.as_ref().map(|pod| pod_words(&pod.name, &facts.pod)));
    list.text("Volume", status.claim_ref.as_ref().map(|claim| &claim.name));
    list.text("Node", status.node.as_ref());
    list.time("Started", status.start_time.as_ref(), "");
    list.time("Ended", status.stop_time.as_ref(), "");
    list.text("Sandbox", status.sandbox.as_ref().map(|sandbox| &sandbox.tier));
    let missing = status.sandbox.as_ref().and_then(|sandbox| sandbox.missing.as_ref());
    list.text("Sandbox lacks", missing.map(|missing| missing.join(", ")));
    list.time("Heartbeat", status.last_heartbeat_time.as_ref(), "as last written");
    list.time("Activity", status.last_activity_time.as_ref(), "as last written");
    list.text("Action", status.current_action.as_ref());
    list.text("Item", status.current_item.as_ref().map(|item| format!("{} (epoch {})", item.name, item.epoch)));
    list.text("Items done", status.items.as_ref().map(|items| format!("{} succeeded, {} failed", items.succeeded, items.failed)));
    list.text("Tokens", status.tokens.as_ref().map(tokens));
    list.text("Time-outs", status.timeouts.filter(|timeouts| *timeouts > 0));
    list.text("Children", status.children.filter(|children| *children > 0));
    list.text("Pauses", pauses(agent));
    if let Some(goodbye) = &status.goodbye {
        list.time("Goodbye", Some(&goodbye.time), goodbye.reason.clone().unwrap_or_default());
    }
    list.done()
}

fn maker(agent: &Agent) -> String {
    if agent.spec.external.is_some() {
        return "for a process that registered".to_owned();
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
            let words = pod::words(pod);
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

fn pauses(agent: &Agent) -> Option<String> {
    let pauses = agent.status.as_ref().and_then(|status| status.pauses).filter(|pauses| *pauses > 0);
    let by_hand = (agent.spec.paused == Some(true)).then(|| "spec.paused is true".to_owned());
    let resumed = agent.spec.resume_pause.map(|number| format!("resumed up to {number}"));
    let words: Vec<String> = [pauses.map(|pauses| format!("{pauses} so far")), resumed, by_hand].into_iter().flatten().collect();
    (!words.is_empty()).then(|| words.join(", "))
}

fn pool_facts(pool: &AgentPool, agents: &[Agent]) -> Vec<Fact> {
    let status = pool.status.clone().unwrap_or_default();
    let spec = &pool.spec;
    let mut list = List::default();
    let mode = match spec.mode {
        PoolMode::Perseverance => "works from queues",
        PoolMode::Chat => "chats with people",
    };
    list.text("Type", Some(format!("{}, {mode}", spec.type_)));
    list.time("Made", pool.metadata.creation_timestamp.as_ref(), "");
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
    list.done()
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
    words.extend(Some(count(None)).filter(|count| *count > 0).map(|count| format!("{count} not looked at")));
    words.join(", ")
}

fn happened(events: &[Event]) -> Vec<Happened> {
    let mut told: Vec<Happened> = events
        .iter()
        .map(|event| {
            let series = event.series.as_ref();
            let time = series.and_then(|series| series.last_observed_time.as_ref()).map(|time| Time(time.0));
            let once = event.event_time.as_ref().map(|time| Time(time.0));
            let about = &event.involved_object;
            Happened {
                time: time.or_else(|| event.last_timestamp.clone()).or(once).or_else(|| event.metadata.creation_timestamp.clone()),
                type_: event.type_.clone().unwrap_or_default(),
                about: format!(
                    "{}/{}",
                    about.kind.as_deref().unwrap_or_default().to_ascii_lowercase(),
                    about.name.as_deref().unwrap_or_default()
                ),
                reason: event.reason.clone().unwrap_or_default(),
                message: event.message.clone().unwrap_or_default(),
                count: series.and_then(|series| series.count).or(event.count).unwrap_or(1),
            }
        })
        .collect();
    told.sort_by_key(|event| event.time.as_ref().map(|time| time.0));
    told.drain(..told.len().saturating_sub(EVENTS));
    told
}

/// Collects advice, each reason once.
struct Hints<'a> {
    places: [(&'a str, Option<String>); 5],
    hints: Vec<Hint>,
}

impl<'a> Hints<'a> {
    fn new(places: &[(&'a str, Option<String>); 5]) -> Self {
        Self { places: places.clone(), hints: Vec::new() }
    }

    fn condition(&mut self, condition: &Condition) {
        self.add(&condition.reason, advice::about(condition));
    }

    fn reason(&mut self, reason: &str) {
        if let Some(advice) = advice::of(reason) {
            self.add(reason, advice);
        }
    }

    fn act(&mut self, reason: &str, words: &'static str) {
        self.add(reason, Advice::Do(words));
    }

    fn nothing(&mut self, reason: &str, words: &'static str) {
        self.add(reason, Advice::Nothing(words));
    }

    fn unobserved(&mut self) {
        self.act(
            "NotObserved",
            "no controller has looked at it: see whether the operator runs (`kubectl get pods -A -l app.kubernetes.io/name=spillway`) and serves this namespace",
        );
    }

    fn add(&mut self, reason: &str, advice: Advice) {
        if self.hints.iter().any(|hint| hint.reason == reason) {
            return;
        }
        let (text, act) = match advice {
            Advice::Do(text) => (text, true),
            Advice::Nothing(text) => (text, false),
        };
        let places: Vec<(&str, Option<&str>)> = self.places.iter().map(|(place, name)| (*place, name.as_deref())).collect();
        self.hints.push(Hint { reason: reason.to_owned(), advice: advice::filled(text, &places), act });
    }

    /// What there is to do, the acts first.
    fn done(mut self) -> Vec<Hint> {
        if self.hints.is_empty() {
            self.nothing("AsDesired", "all is as it should be");
        }
        self.hints.sort_by_key(|hint| !hint.act);
        self.hints
    }
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
