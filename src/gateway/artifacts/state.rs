//! The shared state of calls about artifacts.
//!
//! Data alone: it must not know a gateway.

use std::sync::Mutex;
use std::time::Duration;

use anyhow::Context as _;
use tokio_util::sync::CancellationToken;

use super::settings::ArtifactSettings;
use super::store::Store;
use crate::gateway::connection_slots::{ConnectionBounds, ConnectionSlots};
use crate::gateway::limits::Limits;
use crate::serve::fair_semaphore::Bounds;

/// Uploads and downloads at once. An upload has up to three parts of [`PART_BYTES`](super::store::PART_BYTES) in memory.
pub const TRANSFER_BOUNDS: ConnectionBounds =
    ConnectionBounds { all: Bounds { total: 8, per_namespace: 6, max_waiting: 512 }, per_agent: 2, wait: Duration::from_secs(120) };

/// The state of calls about artifacts.
pub struct Artifacts {
    /// The store. None: no artifacts are kept.
    pub(super) store: Option<Store>,
    pub(super) sweep_interval: Duration,
    pub(super) slots: ConnectionSlots,
    /// Calls that are being decided: apart from other calls, or a heartbeat would wait behind them.
    pub(super) decisions: Mutex<Limits>,
    /// Ends all transfers.
    pub(super) stopping: CancellationToken,
}

impl Artifacts {
    /// No transfer is under way.
    pub fn new(settings: &ArtifactSettings) -> anyhow::Result<Self> {
        let store = settings.store.as_ref().map(Store::open).transpose().context("cannot open the store of artifacts (artifacts.store)")?;
        let (slots, stopping) = (ConnectionSlots::new(TRANSFER_BOUNDS), CancellationToken::new());
        Ok(Self { store, sweep_interval: settings.sweep_interval(), slots, decisions: Mutex::default(), stopping })
    }

    /// Ends all transfers.
    pub fn stop(&self) {
        self.stopping.cancel();
    }
}
