//! The shared state of model calls, and their time limits. It must not forward a call.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::headers::AllowedHeaders;
use super::upstream::Upstream;
use crate::gateway::credentials::Credentials;
use crate::gateway::limits::Limits;
use crate::gateway::meter::Meter;
use crate::serve::fair_semaphore::{Bounds, FairSemaphore};
use crate::serve::request_body::{BodyLimits, BodyMemory};

/// How many large bodies are parsed or rewritten at once. One namespace never has all.
pub(super) const LARGE_BODY_READER_BOUNDS: Bounds = Bounds { total: 3, per_namespace: 2, max_waiting: 256 };

/// Limits of bodies in memory. Each body is there twice: as received and as sent. The limit of one body is what
/// providers accept. The guaranteed part is enough for some calls of a conversation.
pub const MODEL_BODY_LIMITS: BodyLimits = BodyLimits {
    max_body_bytes: 32 * 1024 * 1024,
    total_bytes: 64 * 1024 * 1024,
    reserve: 16 * 1024 * 1024,
    guaranteed: 256 * 1024,
    within: Duration::from_secs(60),
    memory_wait: Duration::from_secs(10),
};

/// Time limits.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// How long a call waits for a governor that is away.
    pub governor_wait: Duration,
    /// From the call to the head of its response. Providers send the head of a response that is not streamed when all
    /// of it is ready.
    pub first_byte: Duration,
    /// Between two parts of a response.
    pub idle: Duration,
    /// For the whole response.
    pub whole: Duration,
    /// A client that reads nothing for this long counts as gone.
    pub slow: Duration,
    /// How long the response is read further for its usage when the client is gone.
    pub drain: Duration,
}

impl Default for Times {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            governor_wait: seconds(30),
            first_byte: seconds(600),
            idle: seconds(300),
            whole: seconds(3600),
            slow: seconds(120),
            drain: seconds(30),
        }
    }
}

/// The shared state of model calls.
pub struct Models {
    /// The session with the ledger.
    pub meter: Meter,
    /// Connections to providers.
    pub upstream: Arc<Upstream>,
    /// The teams' credentials.
    pub credentials: Credentials,
    /// Limits of model calls. They are separate from other calls, so that heartbeats do not wait behind streams.
    pub limits: Mutex<Limits>,
    /// Memory of request bodies.
    pub bodies: BodyMemory,
    /// Permits to parse or rewrite large bodies: each takes up to 16 MiB in addition to its own length.
    pub readers: FairSemaphore,
    /// Additional headers of calls that are sent.
    pub allowed: AllowedHeaders,
    /// Fields of bodies that are allowed although they may cost more than their tokens.
    pub allowed_fields: Vec<String>,
    /// Time limits.
    pub times: Times,
    /// The tasks of forwarded calls.
    pub tasks: TaskTracker,
    /// Ends these tasks.
    pub stopping: CancellationToken,
}

impl Models {
    /// No call is in flight.
    pub fn new(meter: Meter, upstream: Arc<Upstream>, credentials: Credentials, times: Times) -> Self {
        let (limits, bodies, tasks, stopping) =
            (Mutex::default(), BodyMemory::new(MODEL_BODY_LIMITS), TaskTracker::new(), CancellationToken::new());
        let readers = FairSemaphore::new(LARGE_BODY_READER_BOUNDS);
        let (allowed, allowed_fields) = (AllowedHeaders::default(), Vec::new());
        Self { meter, upstream, credentials, limits, bodies, readers, allowed, allowed_fields, times, tasks, stopping }
    }

    /// Ends forwarded calls, and reports them to the ledger, in at most `within`.
    pub async fn stop(&self, within: Duration) {
        self.tasks.close();
        self.stopping.cancel();
        let told = async {
            self.tasks.wait().await;
            self.meter.flush(within).await;
        };
        let _ = tokio::time::timeout(within, told).await; // the governor charges calls that are not reported
    }
}
