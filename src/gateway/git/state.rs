//! The shared state of git requests.
//!
//! Data alone: it must not know a gateway.

use std::sync::Mutex;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::gateway::connection_slots::{ConnectionBounds, ConnectionSlots};
use crate::gateway::credentials::Credentials;
use crate::gateway::limits::Limits;
use crate::gateway::origin_dialer::OriginDialer;
use crate::git_settings::GitSettings;
use crate::serve::fair_semaphore::Bounds;

/// Requests at once. Each has up to 256 KiB of buffers here, and two connections with TLS.
const REQUEST_BOUNDS: ConnectionBounds =
    ConnectionBounds { all: Bounds { total: 256, per_namespace: 192, max_waiting: 1024 }, per_agent: 8, wait: Duration::from_secs(120) };

/// The state of git requests.
pub struct Git {
    pub(super) settings: GitSettings,
    pub(super) dialer: OriginDialer,
    /// The teams' credentials for their repositories.
    pub(super) credentials: Credentials,
    pub(super) slots: ConnectionSlots,
    /// Requests that are being decided: apart from other calls, or a heartbeat would wait behind them.
    pub(super) decisions: Mutex<Limits>,
    /// Ends all transfers.
    pub(super) stopping: CancellationToken,
}

impl Git {
    /// No request is under way.
    pub fn new(settings: GitSettings, credentials: Credentials) -> Self {
        let dialer = OriginDialer::new(settings.origins.clone(), &["http/1.1"]);
        let (slots, decisions, stopping) = (ConnectionSlots::new(REQUEST_BOUNDS), Mutex::default(), CancellationToken::new());
        Self { settings, dialer, credentials, slots, decisions, stopping }
    }

    /// Ends all transfers.
    pub fn stop(&self) {
        self.stopping.cancel();
    }
}
