//! The actions of the sidecar, as data: its state plans them, and its loop carries them out.

use spillway_wire::agent::{Report, Settings};
use spillway_wire::link::{Answer, Order};
use spillway_wire::work::{LeaseRef, Outcome, ProgressUpdate};

use super::kept_state::KeptWork;

/// An action for the loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Call `register`.
    Register,
    /// Call `report`.
    Report(Report),
    /// Try to connect to each of these.
    Probe(Vec<String>),
    /// Send this order to the supervisor.
    Tell(Order),
    /// Write to the journal that the program may start. This comes before the order to start.
    RememberStart,
    /// Write the settings to the journal.
    RememberSettings(Box<Settings>),
    /// An action about work.
    Work(WorkAction),
}

/// An action about work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkAction {
    /// Write this to the journal. This comes before any order, answer or call.
    Remember(Box<KeptWork>),
    /// Claim an item, and wait for it for this many seconds.
    Claim(u32),
    /// Report the progress of the item to the gateway.
    Advance(LeaseRef, ProgressUpdate),
    /// Report the end of the item to the gateway.
    Finish(LeaseRef, Outcome),
    /// Answer the question with this number.
    Answer(u64, Answer),
    /// Say goodbye, with this reason.
    Goodbye(String),
    /// Log this line.
    Say(String),
}
