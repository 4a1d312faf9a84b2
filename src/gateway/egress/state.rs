//! The shared state of egress.
//!
//! Data alone: it must not know a gateway.

use std::sync::Mutex;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::egress_settings::EgressSettings;
use crate::gateway::connection_slots::{ConnectionBounds, ConnectionSlots};
use crate::gateway::limits::Limits;
use crate::origins::{Origin, Origins};
use crate::policy::egress::Destination;
use crate::serve::fair_semaphore::{Bounds, FairSemaphore};

/// Connections at once. Each has up to 32 KiB of buffers here, and a connection of the pod with TLS.
const CONNECTION_BOUNDS: ConnectionBounds =
    ConnectionBounds { all: Bounds { total: 1024, per_namespace: 768, max_waiting: 256 }, per_agent: 64, wait: Duration::from_secs(10) };
/// Names that are resolved at once. Each has a thread of the process, also when nobody waits for it any more.
const LOOKUP_BOUNDS: Bounds = Bounds { total: 64, per_namespace: 32, max_waiting: 256 };

/// The state of egress.
pub struct Egress {
    pub(super) settings: EgressSettings,
    /// Origins of models: calls to them are counted, and so go another way.
    model_origins: Origins,
    pub(super) slots: ConnectionSlots,
    /// Names that are being resolved.
    pub(super) lookups: FairSemaphore,
    /// Ends all connections.
    pub(super) stopping: CancellationToken,
    /// Requests that are being decided: apart from other calls, or a heartbeat would wait behind them.
    pub(super) decisions: Mutex<Limits>,
}

impl Egress {
    /// No connection is open.
    pub fn new(settings: EgressSettings, model_origins: Origins) -> Self {
        Self {
            settings,
            model_origins,
            slots: ConnectionSlots::new(CONNECTION_BOUNDS),
            lookups: FairSemaphore::new(LOOKUP_BOUNDS),
            stopping: CancellationToken::new(),
            decisions: Mutex::default(),
        }
    }

    /// Ends all connections.
    pub fn stop(&self) {
        self.stopping.cancel();
    }

    /// Whether a destination is an origin of models.
    pub(super) fn is_model_origin(&self, destination: &Destination) -> bool {
        let origin = Origin { host: destination.host().to_owned(), port: destination.port() };
        self.model_origins.terms(&origin).is_some()
    }
}
