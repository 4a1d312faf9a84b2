//! The shared state of requests of MCP clients.
//!
//! Data alone: it must not know a gateway.

use std::sync::Mutex;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::bridge::client::BridgeClient;
use crate::gateway::connection_slots::{ConnectionBounds, ConnectionSlots};
use crate::gateway::limits::Limits;
use crate::gateway::log_quota::LogQuota;
use crate::serve::fair_semaphore::Bounds;
use crate::serve::request_body::{BodyLimits, BodyMemory};
use crate::wire::tools::MAX_REQUEST_BYTES;

/// Requests at once. Each waits for its program, with one connection to a bridge, for as long as an hour. So few namespaces must not have
/// all, even if their bridges never answer.
const REQUEST_BOUNDS: ConnectionBounds =
    ConnectionBounds { all: Bounds { total: 512, per_namespace: 64, max_waiting: 256 }, per_agent: 8, wait: Duration::from_secs(30) };
/// Requests that wait for a person. They have slots of the above too, so they may be only a part of all.
const APPROVAL_BOUNDS: ConnectionBounds =
    ConnectionBounds { all: Bounds { total: 128, per_namespace: 16, max_waiting: 16 }, per_agent: 4, wait: Duration::from_secs(5) };
/// Artifacts on their way to bridges.
const FILE_BOUNDS: ConnectionBounds =
    ConnectionBounds { all: Bounds { total: 8, per_namespace: 4, max_waiting: 64 }, per_agent: 2, wait: Duration::from_secs(120) };
/// Requests in memory, until the bridge has answered.
pub const TOOL_BODY_LIMITS: BodyLimits = BodyLimits {
    max_body_bytes: MAX_REQUEST_BYTES,
    total_bytes: 16 * 1024 * 1024,
    reserve: 4 * 1024 * 1024,
    guaranteed: MAX_REQUEST_BYTES,
    within: Duration::from_secs(10),
    memory_wait: Duration::from_secs(5),
};

/// The state of requests of MCP clients.
pub struct Tools {
    pub(super) client: BridgeClient,
    pub(super) slots: ConnectionSlots,
    /// Of requests that wait for a person.
    pub(super) approvals: ConnectionSlots,
    /// Of artifacts on their way.
    pub(super) files: ConnectionSlots,
    pub(super) bodies: BodyMemory,
    /// Requests that are being decided: apart from other calls, or a heartbeat would wait behind them.
    pub(super) decisions: Mutex<Limits>,
    /// Lines of the log about refusals: any pod can cause them.
    pub(super) refusal_lines: LogQuota,
    /// Ends all requests.
    pub(super) stopping: CancellationToken,
}

impl Tools {
    /// No request is under way.
    pub fn new(client: BridgeClient) -> Self {
        Self {
            client,
            slots: ConnectionSlots::new(REQUEST_BOUNDS),
            approvals: ConnectionSlots::new(APPROVAL_BOUNDS),
            files: ConnectionSlots::new(FILE_BOUNDS),
            bodies: BodyMemory::new(TOOL_BODY_LIMITS),
            decisions: Mutex::default(),
            refusal_lines: LogQuota::default(),
            stopping: CancellationToken::new(),
        }
    }

    /// Ends all requests.
    pub fn stop(&self) {
        self.stopping.cancel();
    }
}
