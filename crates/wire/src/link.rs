//! Over the unix socket inside the pod: JSON, one object a line, a request and its answer in turn.
//!
//! The first connection is the supervisor's (`spillway-agent`), opened before the program starts; it carries [`Control`] and
//! [`Order`]. Every later one is the program's and carries one [`Ask`] and one [`Answer`]: a list of verbs, nothing else.

use serde::{Deserialize, Serialize};

use crate::agent::{DesiredState, Goodbye, Notice, Report, Settings, Spawn, Spawned};
use crate::body::BoundedBody;
use crate::budget::{AskTokens, RemainingTokens};
use crate::command::{BeginCommand, CommandBegun, CommandEnded, CommandRejected};
use crate::error::Refusal;
use crate::follow::{Inbox, InboxQuery, ListWork, WorkList};
use crate::plan::{Plan, Planned};
use crate::work::{Assignment, Claim, LeaseRef, Outcome, ProgressUpdate, Submit, Submitted};

/// The first line of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Hello {
    /// The supervisor. `key` is what an earlier [`Order::Key`] gave it; none on its first connection.
    Control {
        /// The key.
        key: Option<String>,
    },
    /// A program's command: one question.
    Ask(Ask),
}

impl BoundedBody for Hello {
    fn check(&self) -> Result<(), (&'static str, String)> {
        match self {
            Self::Control { .. } => Ok(()),
            Self::Ask(Ask::Goodbye(goodbye)) => goodbye.check(),
            Self::Ask(Ask::Spawn { request, .. }) => request.check(),
            Self::Ask(Ask::Progress(progress)) => progress.check(),
            Self::Ask(Ask::Finish(outcome)) => outcome.check(),
            Self::Ask(Ask::Submit { request, .. }) => request.check(),
            Self::Ask(Ask::Plan { request, .. }) => request.check(),
            Self::Ask(Ask::ListWork(request)) => request.check(),
            Self::Ask(Ask::Inbox(request)) => request.check(),
            Self::Ask(Ask::Next { wait_seconds }) => Claim { wait_seconds: *wait_seconds }.check(),
            Self::Ask(Ask::BeginCommand(command)) => command.check(),
            Self::Ask(Ask::AskTokens(request)) => request.check(),
            Self::Ask(Ask::Notices | Ask::Status | Ask::EndCommand(_) | Ask::Budget) => Ok(()),
        }
    }
}

/// What the supervisor tells the sidecar.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Control {
    /// How the program is. Sent when something changed and at least each second while it is active.
    State(Report),
    /// These notices, up to this id, were written for the program.
    NoticesSeen(u64),
    /// The sidecar asked whether it may end: nothing of the program is left.
    Ended,
    /// A command hung that nobody timed, and was ended.
    CommandHung,
    /// The work on an item ended so. Said again on each connection until [`Order::Settled`] answers it.
    Finished {
        /// The lease.
        held: LeaseRef,
        /// How.
        outcome: Outcome,
    },
}

/// What the sidecar tells the supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Order {
    /// Show this key when connecting again; nobody else has it.
    Key(String),
    /// The agent is registered and its walls stand: start the program.
    Start(Box<Settings>),
    /// What is wanted now.
    Wanted(DesiredState),
    /// Nobody has answered for so long that nothing is known: end.
    Abandoned,
    /// The walls do not stand: end, or do not start.
    WallsDown(Vec<String>),
    /// The program said something through the socket, or called a model.
    Activity {
        /// What it says it does, if it said that.
        action: Option<String>,
        /// The calls of models, if there were any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        called: Option<ModelCalls>,
    },
    /// Run the program for this item. Said again on each connection until the supervisor reports that it holds it.
    Item(Box<Assignment>),
    /// The program itself said how the item ended: it is not run again for it.
    Said(LeaseRef, Outcome),
    /// The end of this item was taken, or counts for nothing any more: forget it.
    Settled(LeaseRef),
}

/// Calls of models. Times are milliseconds since boot: both programs of a pod run on one kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelCalls {
    /// When the last one began.
    pub begun: u64,
    /// When something of one was last seen.
    pub seen: u64,
    /// The conversations that calls go on with, as far as they are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conversations: Vec<Conversation>,
    /// When the last call began of which it is not known, or not known yet, which conversation it goes on with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<u64>,
    /// When the first answer came of those that were not told yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answered: Option<u64>,
}

/// A conversation with a model, by its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Conversation {
    /// When its first call began that is remembered.
    pub first: u64,
    /// When its last call began.
    pub begun: u64,
    /// When the answer to that ended; none: it has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<u64>,
}

/// What the program may ask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Ask {
    /// Say goodbye.
    Goodbye(Goodbye),
    /// Say what it does.
    Progress(Progress),
    /// What it should know.
    Notices,
    /// Ask for a child.
    Spawn {
        /// Makes a repetition harmless.
        key: String,
        /// The child.
        request: Spawn,
    },
    /// Whether the sidecar is registered, and what is wanted.
    Status,
    /// A program that runs all the time asks for an item.
    Next {
        /// How long to wait for one; at most 25 s.
        wait_seconds: u32,
    },
    /// How the item that is held ended.
    Finish(Outcome),
    /// Ask for an item to be queued.
    Submit {
        /// Makes a repetition harmless.
        key: String,
        /// The item.
        request: Box<Submit>,
    },
    /// Ask for many items to be queued at once.
    Plan {
        /// Makes a repetition harmless.
        key: String,
        /// The plan.
        request: Plan,
    },
    /// What the agents of the pool submitted.
    ListWork(ListWork),
    /// What of that ended.
    Inbox(InboxQuery),
    /// A command is about to be run.
    BeginCommand(BeginCommand),
    /// It ended.
    EndCommand(CommandEnded),
    /// What is left of the budgets over it.
    Budget,
    /// Ask people for more tokens.
    AskTokens(AskTokens),
}

/// What the program does, in its own words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Progress {
    /// In words; at most 256 characters.
    pub action: String,
    /// How far its item is, 0 to 100.
    #[serde(default)]
    pub percent: Option<u8>,
    /// Where another attempt at its item could go on from; at most 1024 characters.
    #[serde(default)]
    pub checkpoint_ref: Option<String>,
}

impl BoundedBody for Progress {
    fn check(&self) -> Result<(), (&'static str, String)> {
        let advance = ProgressUpdate { percent: self.percent, checkpoint_ref: self.checkpoint_ref.clone(), ..ProgressUpdate::default() };
        crate::body::at_most("action", &self.action, 256).and_then(|()| advance.check())
    }
}

/// The answer to an [`Ask`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// It was done.
    Done,
    /// It is written down and will be done as soon as somebody answers.
    Kept,
    /// What the agent should know.
    Notices(Vec<Notice>),
    /// The child.
    Spawned(Spawned),
    /// The item, or that there was none for so long.
    Item(Option<Box<Assignment>>),
    /// The item that was queued.
    Submitted(Submitted),
    /// The plan that was queued.
    Planned(Planned),
    /// What was submitted.
    Listed(WorkList),
    /// What ended.
    Inbox(Inbox),
    /// The command may be run.
    CommandBegun(CommandBegun),
    /// The command must not be run now.
    CommandRejected(CommandRejected),
    /// The command has no time, as its program did not ask for one: nobody waits for its end.
    CommandUntimed,
    /// What is left.
    Budget(RemainingTokens),
    /// How things stand.
    Status {
        /// The sidecar is registered.
        registered: bool,
        /// What is wanted.
        wanted: DesiredState,
    },
    /// It was refused.
    Refused(Refusal),
}
