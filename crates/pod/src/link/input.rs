//! What comes to the loop of the sidecar: data alone. Calls, looks and connections are tasks, and send it.

use spillway_wire::agent::Goodbye;
use spillway_wire::command::{CommandPermit, CommandRejected, TryCommand};
use spillway_wire::link::{Answer as Reply, Ask, Control, ModelCalls};
use spillway_wire::work::{LeaseRef, ProgressUpdate};
use tokio::io::BufReader;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::oneshot;

use super::gateway::{Answer, Silence};

/// What comes to the loop.
#[derive(Debug)]
pub enum Input {
    /// The registration was answered, or not.
    Registered(Result<Answer, Silence>),
    /// The report was answered, or not.
    Reported(Result<Answer, Silence>),
    /// The long poll was answered, or not.
    Waited(Result<Answer, Silence>),
    /// This goodbye was answered, or not.
    Delivered(Goodbye, Result<Answer, Silence>),
    /// A call about work was answered, or not.
    Work(WorkResult),
    /// A call on behalf of the program was answered, or not; who asked has the answer.
    Carried(Result<Answer, Silence>),
    /// A look at the walls is over.
    Probed(Vec<String>),
    /// Somebody says it is the supervisor.
    Candidate(Candidate),
    /// The supervisor with this number says something.
    Control(u64, Control),
    /// The supervisor with this number is gone.
    Gone(u64),
    /// The program asks.
    Ask(Ask, oneshot::Sender<Reply>),
    /// The program calls a model, or hears from one: all its calls.
    Called(ModelCalls),
    /// The governor was asked for the right to try a command: what it said, if it did.
    Tried(TryCommand, Option<Result<CommandPermit, CommandRejected>>, oneshot::Sender<Reply>),
}

/// A call about work, and what came of it.
#[derive(Debug)]
pub enum WorkResult {
    /// A claim.
    Claimed(Result<Answer, Silence>),
    /// How far this item is.
    Advanced(LeaseRef, ProgressUpdate, Result<Answer, Silence>),
    /// How this item ended.
    Finished(LeaseRef, Result<Answer, Silence>),
}

/// What a connection is read by.
pub(super) type Reader = BufReader<OwnedReadHalf>;

/// A connection that says it is the supervisor's.
#[derive(Debug)]
pub struct Candidate {
    /// The key it shows.
    pub key: Option<String>,
    pub(super) reader: Reader,
    pub(super) writer: OwnedWriteHalf,
}
