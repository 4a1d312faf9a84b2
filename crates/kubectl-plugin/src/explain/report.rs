//! The report on an object, typed. Data alone: it must not know what it is made of, nor how it is written.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde::Serialize;

use crate::api::agent::InterventionRecord;

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
    pub attempts: Vec<AttemptReport>,
    /// All its conditions.
    pub conditions: Vec<EventReport>,
    /// What the supervisor did to it, the newest last.
    pub interventions: Vec<InterventionRecord>,
    /// Of an agent: what is in the way of its pool.
    pub pool: Vec<EventReport>,
    /// Of a pool: its living agents that are not ready, the oldest first, at most ten.
    pub agents: Vec<Waiting>,
    /// What was reported of it, the newest last, at most twelve.
    pub events: Vec<HistoryEntry>,
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
pub struct AttemptReport {
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
pub struct EventReport {
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
pub struct HistoryEntry {
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

/// A condition as a report tells it.
pub(super) fn told(condition: &Condition) -> EventReport {
    EventReport {
        type_: condition.type_.clone(),
        status: condition.status.clone(),
        reason: condition.reason.clone(),
        message: condition.message.clone(),
        since: condition.last_transition_time.clone(),
    }
}

/// The facts that there are; what nobody said is left out.
#[derive(Default)]
pub(super) struct List(Vec<Fact>);

impl List {
    /// A thing that is known, if it is.
    pub(super) fn text(&mut self, name: &'static str, value: Option<impl ToString>) {
        let value = value.map(|value| value.to_string()).filter(|value| !value.is_empty());
        self.0.extend(value.map(|value| Fact { name, time: None, value }));
    }

    /// A time that is known, if it is.
    pub(super) fn time(&mut self, name: &'static str, time: Option<&Time>, value: impl Into<String>) {
        self.0.extend(time.map(|time| Fact { name, time: Some(time.clone()), value: value.into() }));
    }

    /// All of them.
    pub(super) fn done(self) -> Vec<Fact> {
        self.0
    }
}
