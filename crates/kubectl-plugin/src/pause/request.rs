//! The request for one object: data alone.

use serde::Serialize;

/// The condition type that shows a pause.
pub(super) const PAUSED_CONDITION: &str = "Paused";

/// The command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Verb {
    /// `pause`.
    Pause,
    /// `resume`.
    Resume,
}

/// The kind of the object.
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
    /// Its name in messages.
    pub(super) fn noun(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Item => "item",
            Self::Queue => "queue",
        }
    }

    /// Its resource, as kubectl writes it before a name.
    pub(super) fn resource(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Item => "workitem",
            Self::Queue => "workqueue",
        }
    }
}

/// The request for one object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PauseRequest {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// Its uid: the command neither writes nor waits for another object with the same name.
    pub uid: String,
    /// The generation that contains the request.
    pub generation: i64,
    /// Why nothing was written; none if the object was written.
    pub unchanged: Option<String>,
    /// A note for the user.
    pub note: Option<String>,
}
