//! The inputs of the sidecar's loop, as data. Tasks for calls, canary tests and connections send them.

use spillway_wire::agent::Goodbye;
use spillway_wire::command::{CommandPermit, CommandRejected, TryCommand};
use spillway_wire::link::{Answer as Reply, Ask, Control, ModelCalls};
use spillway_wire::work::{LeaseRef, ProgressUpdate};
use tokio::io::BufReader;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::oneshot;

use super::gateway::{Answer, Silence};

/// An input of the loop.
#[derive(Debug)]
pub enum Input {
    /// The registration was answered, or not.
    Registered(Result<Answer, Silence>),
    /// The report was answered, or not.
    Reported(Result<Answer, Silence>),
    /// The long poll was answered, or not.
    LongPolled(Result<Answer, Silence>),
    /// This goodbye was answered, or not.
    Delivered(Goodbye, Result<Answer, Silence>),
    /// A call about work was answered, or not.
    Work(WorkResult),
    /// A request of the program was answered, or not. The caller has the answer already.
    Carried(Result<Answer, Silence>),
    /// A test of the canary is over: the addresses that it reached.
    Probed(Vec<String>),
    /// A connection says that it is the supervisor's.
    Candidate(Candidate),
    /// The supervisor with this number sent a message.
    Control(u64, Control),
    /// The connection of the supervisor with this number ended.
    Gone(u64),
    /// The program asks a question.
    Ask(Ask, oneshot::Sender<Reply>),
    /// The program called a model, or a part of an answer came: all its model calls.
    ModelCalled(ModelCalls),
    /// A request of the program for a git server, a bridge or the store of artifacts came, or was answered.
    RequestForwarded,
    /// The governor was asked for the right to try a command: its answer, if one came.
    TryAnswered(TryCommand, Option<Result<CommandPermit, CommandRejected>>, oneshot::Sender<Reply>),
}

/// A call about work, and its result.
#[derive(Debug)]
pub enum WorkResult {
    /// A claim.
    Claimed(Result<Answer, Silence>),
    /// A report of the progress of this item.
    Advanced(LeaseRef, ProgressUpdate, Result<Answer, Silence>),
    /// A report of the end of this item.
    Finished(LeaseRef, Result<Answer, Silence>),
}

/// The reader of a connection.
pub(super) type Reader = BufReader<OwnedReadHalf>;

/// A connection that says it is the supervisor's.
#[derive(Debug)]
pub struct Candidate {
    /// The key that it sent.
    pub key: Option<String>,
    pub(super) reader: Reader,
    pub(super) writer: OwnedWriteHalf,
}
