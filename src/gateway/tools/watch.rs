//! When a request must not go on: its agent has ended, is paused or has lost its item, its pool lists the Toolset no more, it takes too
//! long, or the gateway stops.

use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, sleep};

use crate::cluster::token::PodIdentity;
use crate::gateway::agent_end::interrupted;
use crate::gateway::state::Gateway;
use crate::wire::Refusal;
use crate::wire::tools::{ToolsetRequest, ToolsetTarget};

/// The governor's path.
const GOVERNOR_TOOLS_PATH: &str = "/governor/v1/tools";
/// Between two questions whether a request may go on.
const RECHECK_INTERVAL: Duration = Duration::from_secs(5);
/// How long a request may take in all: it has a slot that others wait for.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3600);

/// Watches one request.
pub struct Watch {
    gateway: Arc<Gateway>,
    pod: PodIdentity,
    asked: ToolsetRequest,
    revoked: Receiver<()>,
    until: Instant,
}

impl Watch {
    /// Watches from now on: an end between two questions is not missed.
    pub fn new(gateway: Arc<Gateway>, pod: PodIdentity, asked: ToolsetRequest) -> Self {
        let revoked = gateway.long_polls.stream(&pod.uid);
        Self { gateway, pod, asked, revoked, until: Instant::now() + REQUEST_TIMEOUT }
    }

    /// The bridge, if the agent may call it now. From now on the request is for the item that is told to the bridge, also if the program
    /// named none.
    pub async fn target(&mut self) -> Result<ToolsetTarget, Refusal> {
        let target: ToolsetTarget = ask(&self.gateway, &self.pod, &self.asked).await?;
        self.asked.item.clone_from(&target.item);
        Ok(target)
    }

    /// The request, as the governor is asked about it.
    pub fn asked(&self) -> &ToolsetRequest {
        &self.asked
    }

    /// The request may take as long as a new one: a person has let it run.
    pub fn renew(&mut self) {
        self.until = Instant::now() + REQUEST_TIMEOUT;
    }

    /// Waits for `work`, as long as the request may go on.
    pub async fn guard<T>(&mut self, work: impl Future<Output = Result<T, Refusal>>) -> Result<T, Refusal> {
        tokio::select! {
            done = work => done,
            refusal = self.ended() => Err(refusal),
        }
    }

    /// Ends when the request must not go on, and says why.
    pub async fn ended(&mut self) -> Refusal {
        let Self { gateway, pod, asked, revoked, until } = self;
        tokio::select! {
            refusal = interrupted(gateway, pod, revoked, &gateway.tools.stopping, (*until, REQUEST_TIMEOUT)) => refusal,
            refusal = denied(gateway, pod, asked) => refusal,
        }
    }
}

/// Asks the governor about a request. The step of the request decides on the type of the answer.
pub async fn ask<A: DeserializeOwned>(gateway: &Gateway, pod: &PodIdentity, asked: &ToolsetRequest) -> Result<A, Refusal> {
    gateway.governor.call_json(GOVERNOR_TOOLS_PATH, Some(pod), asked).await
}

/// Ends when a request is denied that was allowed before.
async fn denied(gateway: &Gateway, pod: &PodIdentity, asked: &ToolsetRequest) -> Refusal {
    loop {
        sleep(RECHECK_INTERVAL).await;
        match ask::<ToolsetTarget>(gateway, pod, asked).await {
            Err(refusal) if !refusal.code.is_retryable() => return refusal,
            Ok(_) | Err(_) => {}
        }
    }
}
