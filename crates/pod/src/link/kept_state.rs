//! The state that the sidecar keeps over its restart, as data. The journal writes it.

use serde::{Deserialize, Serialize};
use spillway_wire::agent::Settings;
use spillway_wire::work::{Assignment, LeaseRef, Outcome, ProgressUpdate};

use crate::clock::BootTime;

/// The state that an earlier process kept.
#[derive(Clone, Debug, Default)]
pub struct KeptState {
    /// The settings.
    pub settings: Option<Settings>,
    /// When a gateway last answered.
    pub last_answer: Option<BootTime>,
    /// The program may start.
    pub let_start: bool,
    /// The program's current action.
    pub action: Option<String>,
    /// The item in hand, and the item before.
    pub work: KeptWork,
}

/// The state of work that survives a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KeptWork {
    pub(super) item: Option<KeptItem>,
    pub(super) last: Option<LastItem>,
    /// The number of items that are settled.
    pub(super) done: u32,
}

/// The item in hand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct KeptItem {
    pub held: LeaseRef,
    /// `None`: our journal was lost, and the supervisor holds the lease.
    pub assignment: Option<Box<Assignment>>,
    /// The end that the program has reported, while it still runs.
    pub said: Option<Outcome>,
    /// How the item ended.
    pub finish: Option<Outcome>,
    /// It is given back before any work on it, so that it does not count as an item that the agent has done.
    #[serde(default)]
    pub untouched: bool,
    /// The lease is lost.
    pub lost: bool,
    /// Progress that no gateway has accepted yet.
    pub advance: Option<ProgressUpdate>,
}

/// The item before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LastItem {
    pub held: LeaseRef,
    /// `None`: the lease was lost, or the end was refused.
    pub outcome: Option<Outcome>,
}

impl KeptItem {
    /// Its name, or its uid where the name is not known.
    pub fn name(&self) -> &str {
        self.assignment.as_ref().map_or(&self.held.uid, |assignment| &assignment.name)
    }
}
