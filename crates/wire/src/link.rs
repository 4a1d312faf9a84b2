//! Messages over the unix socket inside the pod: JSON, one object a line, a request and then its answer.
//!
//! The supervisor (`spillway-agent`) opens the first connection before the program starts. It carries [`Control`] and
//! [`Order`]. Every later connection is the program's and carries one [`Ask`] and one [`Answer`].

use serde::{Deserialize, Serialize};

use crate::agent::{DesiredState, Goodbye, Notice, Report, Settings, Spawn, Spawned};
use crate::body::BoundedBody;
use crate::budget::{AskTokens, RemainingTokens};
use crate::changeset::PendingCommit;
use crate::command::{BeginCommand, CommandBegun, CommandEnded, CommandRejected};
use crate::error::Refusal;
use crate::follow::{Inbox, InboxQuery, ListWork, WorkList};
use crate::plan::{Plan, Planned};
use crate::work::{Assignment, Claim, LeaseRef, Outcome, ProgressUpdate, Submit, Submitted};

/// The first line of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Hello {
    /// The supervisor. `key` is the key of an earlier [`Order::Key`]. It is none on the first connection.
    Control {
        /// The key.
        key: Option<String>,
    },
    /// A request of the program.
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

/// A message of the supervisor to the sidecar.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Control {
    /// State of the program. It is sent after a change, and at least each second while the program is active.
    State(Box<Report>),
    /// The notices up to this id were written for the program.
    NoticesSeen(u64),
    /// The answer to the sidecar's question whether it may end: no process of the program is left.
    Ended,
    /// A command without a time limit hung and was ended.
    CommandHung,
    /// The work on an item ended. The supervisor repeats this on each connection until [`Order::Settled`] answers it.
    Finished {
        /// The lease.
        held: LeaseRef,
        /// How it ended.
        outcome: Outcome,
    },
    /// The commit of the item in hand that may be pushed now. None: no commit may be pushed. The supervisor repeats this
    /// on each connection.
    Commit(Option<PendingCommit>),
}

/// A message of the sidecar to the supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Order {
    /// The key that the supervisor must send when it connects again. Only the supervisor has it.
    Key(String),
    /// The agent is registered and its isolation is in force: start the program.
    Start(Box<Settings>),
    /// The desired state now.
    Wanted(DesiredState),
    /// No gateway has answered for so long that the desired state is unknown: end.
    Abandoned,
    /// The isolation is not in force, with the targets that are reachable: end, or do not start.
    WallsDown(Vec<String>),
    /// The program sent a request through the socket, or called a model.
    Activity {
        /// The current action, if the program reported it.
        action: Option<String>,
        /// The calls of models, if there were any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        called: Option<ModelCalls>,
    },
    /// Run the program for this item. The sidecar repeats this on each connection until the supervisor reports that it
    /// holds the item.
    Item(Box<Assignment>),
    /// The program itself reported how the item ended. It does not run again for the item.
    Said(LeaseRef, Outcome),
    /// The end of this item was accepted, or no longer counts: forget the item.
    Settled(LeaseRef),
    /// The sidecar names this commit to the gateway from now on: it can be pushed.
    CommitNamed(PendingCommit),
}

/// Calls of models. Times are milliseconds since boot, because both programs of a pod run on one kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelCalls {
    /// When the last one began.
    pub begun: u64,
    /// When the last byte of a call was seen.
    pub seen: u64,
    /// The known conversations to which the calls belong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conversations: Vec<Conversation>,
    /// When the last call began whose conversation is not known (yet).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<u64>,
    /// When the first answer came since the last report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answered: Option<u64>,
}

/// A conversation with a model, as a series of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Conversation {
    /// When the first remembered call of the conversation began.
    pub first: u64,
    /// When the last call began.
    pub begun: u64,
    /// When the answer to the last call ended. None: it has not ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<u64>,
}

/// A request of the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Ask {
    /// The agent says goodbye.
    Goodbye(Goodbye),
    /// The program reports its current action.
    Progress(Progress),
    /// Ask for the notices.
    Notices,
    /// Ask for a child agent.
    Spawn {
        /// Idempotency key of the request.
        key: String,
        /// The child agent.
        request: Spawn,
    },
    /// Ask whether the sidecar is registered, and for the desired state.
    Status,
    /// A program that runs all the time asks for an item.
    Next {
        /// Seconds to wait for an item, at most 25.
        wait_seconds: u32,
    },
    /// The program reports how its item ended.
    Finish(Outcome),
    /// Ask for an item to be queued.
    Submit {
        /// Idempotency key of the request.
        key: String,
        /// The item.
        request: Box<Submit>,
    },
    /// Ask for many items to be queued at once.
    Plan {
        /// Idempotency key of the request.
        key: String,
        /// The plan.
        request: Plan,
    },
    /// List the items that the agents of the pool submitted.
    ListWork(ListWork),
    /// Read the messages about ended items.
    Inbox(InboxQuery),
    /// Ask to run a command.
    BeginCommand(BeginCommand),
    /// The command ended.
    EndCommand(CommandEnded),
    /// Ask for the tokens that are left in the budgets.
    Budget,
    /// Ask people for more tokens.
    AskTokens(AskTokens),
}

/// Progress of the program, as it reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Progress {
    /// Current action, as text of at most 256 characters.
    pub action: String,
    /// Progress of the item, from 0 to 100.
    #[serde(default)]
    pub percent: Option<u8>,
    /// Where another attempt at the item can continue; at most 1024 characters.
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
    /// The request was carried out.
    Done,
    /// The request is stored. It is carried out when a gateway answers.
    Kept,
    /// The notices.
    Notices(Vec<Notice>),
    /// The child agent.
    Spawned(Spawned),
    /// The item. None: there was none within the wait.
    Item(Option<Box<Assignment>>),
    /// The submitted item.
    Submitted(Submitted),
    /// The submitted plan.
    Planned(Planned),
    /// The submitted items.
    Listed(WorkList),
    /// The messages of the inbox.
    Inbox(Inbox),
    /// The command may be run.
    CommandBegun(CommandBegun),
    /// The command may not run now.
    CommandRejected(CommandRejected),
    /// The command has no time limit, because its program did not ask for one. Its end need not be reported.
    CommandUntimed,
    /// The tokens that are left.
    Budget(RemainingTokens),
    /// The status.
    Status {
        /// Whether the sidecar is registered.
        registered: bool,
        /// The desired state.
        wanted: DesiredState,
    },
    /// The request was refused.
    Refused(Refusal),
}
