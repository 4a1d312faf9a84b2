//! What the sidecar keeps for the process after it: data alone. The journal writes it.

use serde::{Deserialize, Serialize};
use spillway_wire::agent::Settings;
use spillway_wire::work::{Assignment, LeaseRef, Outcome, ProgressUpdate};

use crate::clock::BootTime;

/// What is left of an earlier process.
#[derive(Clone, Debug, Default)]
pub struct KeptState {
    /// The settings.
    pub settings: Option<Settings>,
    /// When somebody last answered.
    pub heard: Option<BootTime>,
    /// The program was let start.
    pub let_start: bool,
    /// What the program said it does.
    pub action: Option<String>,
    /// The item in hand.
    pub work: KeptWork,
}

/// What survives a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KeptWork {
    pub(super) item: Option<KeptItem>,
    pub(super) last: Option<LastItem>,
    /// Items that are behind it.
    pub(super) done: u32,
}

/// The item in hand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct KeptItem {
    pub held: LeaseRef,
    /// None: our journal was lost, and the supervisor holds it.
    pub assignment: Option<Box<Assignment>>,
    /// What the program said of its end, while it still runs.
    pub said: Option<Outcome>,
    /// How it ended.
    pub finish: Option<Outcome>,
    /// It is given back before anybody worked on it, and is none of the items that the agent has done.
    #[serde(default)]
    pub untouched: bool,
    /// It is not ours any more.
    pub lost: bool,
    /// How far it is, as far as no gateway knows.
    pub advance: Option<ProgressUpdate>,
}

/// The item before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LastItem {
    pub held: LeaseRef,
    /// None: it was lost, or its end was refused.
    pub outcome: Option<Outcome>,
}

impl KeptItem {
    /// Its name, or its uid where the name is not known.
    pub fn name(&self) -> &str {
        self.assignment.as_ref().map_or(&self.held.uid, |assignment| &assignment.name)
    }
}
