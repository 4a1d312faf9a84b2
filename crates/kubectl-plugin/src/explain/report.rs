//! The report on an object, as typed data. It must not depend on how the facts are read, nor on how the report is printed.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde::Serialize;

use crate::api::agent::InterventionRecord;

/// The reasons for the state of an agent, a pool, an item or a queue, and what to do.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Agent, AgentPool, WorkItem or WorkQueue.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its display name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// Its state, with reason and message.
    pub state: String,
    /// When its readiness changed last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Of an item or a queue: the causes of its state, as sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub why: Vec<String>,
    /// The known facts, one a line.
    pub facts: Vec<Fact>,
    /// Of an item: its last attempts, the newest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<AttemptReport>,
    /// All its conditions.
    pub conditions: Vec<EventReport>,
    /// The supervisor's interventions, the newest last.
    pub interventions: Vec<InterventionRecord>,
    /// Of an agent: the conditions that block its pool.
    pub pool: Vec<EventReport>,
    /// Of a pool: its agents that have not ended and are not ready, the oldest first, at most ten.
    pub agents: Vec<Waiting>,
    /// Its events, the newest last, at most twelve.
    pub events: Vec<HistoryEntry>,
    /// The errors of reads that failed, as text.
    pub unread: Vec<String>,
    /// What to do.
    pub advice: Vec<Hint>,
}

/// One known fact.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fact {
    /// Its name.
    pub name: &'static str,
    /// Its time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
    /// Its value.
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
    /// The reason of its end.
    pub reason: Option<String>,
    /// The message of its end.
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
    /// Its reason.
    pub reason: String,
    /// Its message.
    pub message: String,
    /// When its status changed last.
    pub since: Time,
}

/// An agent that is not ready.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Waiting {
    /// Its name.
    pub name: String,
    /// Its display name.
    pub display_name: Option<String>,
    /// Its phase, reason and message.
    pub state: String,
    /// When its readiness changed last.
    pub since: Option<Time>,
}

/// An event, or a series of them.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryEntry {
    /// The last time it happened.
    pub time: Option<Time>,
    /// Normal or Warning.
    #[serde(rename = "type")]
    pub type_: String,
    /// Kind and name of the object.
    pub about: String,
    /// Its reason.
    pub reason: String,
    /// Its message.
    pub message: String,
    /// How many times it happened.
    pub count: i32,
}

/// What to do about one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Hint {
    /// The reason.
    pub reason: String,
    /// What to do, or why no action is needed.
    pub advice: String,
    /// Whether the advice is an action.
    pub act: bool,
}

/// A condition in the form of a report.
pub(super) fn condition_report(condition: &Condition) -> EventReport {
    EventReport {
        type_: condition.type_.clone(),
        status: condition.status.clone(),
        reason: condition.reason.clone(),
        message: condition.message.clone(),
        since: condition.last_transition_time.clone(),
    }
}

/// Collects the known facts; unknown ones are left out.
#[derive(Default)]
pub(super) struct List(Vec<Fact>);

impl List {
    /// Adds a text, if it is known.
    pub(super) fn text(&mut self, name: &'static str, value: Option<impl ToString>) {
        let value = value.map(|value| value.to_string()).filter(|value| !value.is_empty());
        self.0.extend(value.map(|value| Fact { name, time: None, value }));
    }

    /// Adds a time, if it is known.
    pub(super) fn time(&mut self, name: &'static str, time: Option<&Time>, value: impl Into<String>) {
        self.0.extend(time.map(|time| Fact { name, time: Some(time.clone()), value: value.into() }));
    }

    /// All of them.
    pub(super) fn into_facts(self) -> Vec<Fact> {
        self.0
    }
}
