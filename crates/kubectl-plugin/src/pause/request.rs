//! What was asked for of one object: data alone.

use serde::Serialize;

/// Condition type under which a pause is told.
pub(super) const PAUSED_CONDITION: &str = "Paused";

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Verb {
    /// Hold.
    Pause,
    /// Let go on.
    Resume,
}

/// What it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Kind {
    /// An Agent.
    #[default]
    Agent,
    /// A WorkItem.
    Item,
    /// A WorkQueue.
    Queue,
}

impl Kind {
    /// As people call it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Item => "item",
            Self::Queue => "queue",
        }
    }

    /// As kubectl writes it before a name.
    pub(super) fn resource(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Item => "workitem",
            Self::Queue => "workqueue",
        }
    }
}

/// One object that was looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PauseRequest {
    /// What it is.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// Its uid: no other object of its name was written, or is waited for.
    pub uid: String,
    /// The generation that holds what was asked for.
    pub generation: i64,
    /// Why nothing was written; none: it was.
    pub unchanged: Option<String>,
    /// What is to be known beside, in words.
    pub note: Option<String>,
}
