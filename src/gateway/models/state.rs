//! What calls of models work with, and how long each part of one may take.
//!
//! It must not forward a call.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::credentials::Credentials;
use super::headers::AllowedHeaders;
use super::upstream::Upstream;
use crate::gateway::limits::Limits;
use crate::gateway::meter::Meter;
use crate::serve::fair_semaphore::{Bounds, FairSemaphore};
use crate::serve::request_body::{BodyLimits, BodyMemory};

/// How many large bodies are read or written anew at once. One namespace never has all.
pub(super) const LARGE_BODY_READER_BOUNDS: Bounds = Bounds { all: 3, of_one: 2, waiting: 256 };

/// Bodies in memory. Each is there twice: as it came, and as it goes. One body has at most what providers take; a namespace gets
/// some calls of a conversation, whatever others have.
pub const MODEL_BODY_LIMITS: BodyLimits = BodyLimits {
    most: 32 * 1024 * 1024,
    all: 64 * 1024 * 1024,
    reserve: 16 * 1024 * 1024,
    guaranteed: 256 * 1024,
    within: Duration::from_secs(60),
    patience: Duration::from_secs(10),
};

/// How long what may take.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// How long a call waits for a governor that is away.
    pub patience: Duration,
    /// From the call to the head of its answer: calls that are not streamed are answered when all of it is there.
    pub first_byte: Duration,
    /// Between two parts of an answer.
    pub idle: Duration,
    /// For all of it.
    pub whole: Duration,
    /// A client that takes nothing for so long is gone.
    pub slow: Duration,
    /// How long the answer is read on for what it used, when the client is gone.
    pub drain: Duration,
}

impl Default for Times {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            patience: seconds(30),
            first_byte: seconds(600),
            idle: seconds(300),
            whole: seconds(3600),
            slow: seconds(120),
            drain: seconds(30),
        }
    }
}

/// What calls of models work with.
pub struct Models {
    /// The session with the ledger.
    pub meter: Meter,
    /// The ways to providers.
    pub upstream: Arc<Upstream>,
    /// The teams' credentials.
    pub credentials: Credentials,
    /// How much who calls: apart from other calls, or a heartbeat would wait behind a stream.
    pub limits: Mutex<Limits>,
    /// Bodies in memory.
    pub bodies: BodyMemory,
    /// Large bodies that are read or written anew at this moment, in turn: each takes up to 16 MiB besides its own length.
    pub readers: FairSemaphore,
    /// Headers of calls that go out besides the usual ones.
    pub allowed: AllowedHeaders,
    /// Fields of bodies that may cost more than their tokens say, and pass.
    pub allowed_fields: Vec<String>,
    /// How long what may take.
    pub times: Times,
    /// Calls that are forwarded.
    pub tasks: TaskTracker,
    /// Ends them.
    pub stopping: CancellationToken,
}

impl Models {
    /// With nothing in flight.
    pub fn new(meter: Meter, upstream: Arc<Upstream>, credentials: Credentials, times: Times) -> Self {
        let (limits, bodies, tasks, stopping) =
            (Mutex::default(), BodyMemory::new(MODEL_BODY_LIMITS), TaskTracker::new(), CancellationToken::new());
        let readers = FairSemaphore::new(LARGE_BODY_READER_BOUNDS);
        let (allowed, allowed_fields) = (AllowedHeaders::default(), Vec::new());
        Self { meter, upstream, credentials, limits, bodies, readers, allowed, allowed_fields, times, tasks, stopping }
    }

    /// Ends what is forwarded still, and tells the ledger of it, for at most `within`.
    pub async fn stop(&self, within: Duration) {
        self.tasks.close();
        self.stopping.cancel();
        let told = async {
            self.tasks.wait().await;
            self.meter.flush(within).await;
        };
        let _ = tokio::time::timeout(within, told).await; // the governor charges what it is not told of
    }
}
