//! What the sidecar does next, as data: the plan that its state makes, and that its loop carries out.

use spillway_wire::agent::{Report, Settings};
use spillway_wire::link::{Answer, Order};
use spillway_wire::work::{LeaseRef, Outcome, ProgressUpdate};

use super::kept_state::KeptWork;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Call `register`.
    Register,
    /// Call `report`.
    Report(Report),
    /// Try to connect to each of these.
    Probe(Vec<String>),
    /// Tell the supervisor.
    Tell(Order),
    /// Write down that the program was let start. Before it is told.
    RememberStart,
    /// Write the settings down.
    RememberSettings(Box<Settings>),
    /// About an item of work.
    Work(WorkAction),
}

/// What is to be done about work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkAction {
    /// Write this down. Before anybody is told.
    Remember(Box<KeptWork>),
    /// Ask for an item, and wait for one so long.
    Claim(u32),
    /// Tell the gateway how far it is.
    Advance(LeaseRef, ProgressUpdate),
    /// Tell the gateway how it ended.
    Finish(LeaseRef, Outcome),
    /// Answer the question with this number.
    Answer(u64, Answer),
    /// Say goodbye, with this reason.
    Goodbye(String),
    /// Tell people.
    Say(String),
}
