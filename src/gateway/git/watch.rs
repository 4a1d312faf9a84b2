//! When a request must not go on: its agent has ended, is paused or has lost its item, its pool allows it no more, it takes too
//! long, or the gateway stops.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch::Receiver;
use tokio::time::{Instant, sleep};

use super::push;
use crate::cluster::token::PodIdentity;
use crate::gateway::agent_end::interrupted;
use crate::gateway::state::Gateway;
use crate::policy::git::{Denial, PushHead};
use crate::wire::changeset::PendingCommit;
use crate::wire::git::{GitTarget, GitTargetRequest};
use crate::wire::{Code, Refusal};

/// The governor's path.
const GOVERNOR_GIT_PATH: &str = "/governor/v1/git";
/// Between two questions whether a request may go on.
const RECHECK_INTERVAL: Duration = Duration::from_secs(15);
/// How long a request may take in all: it has a slot that others wait for.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3600);

/// Watches one request.
pub struct Watch {
    gateway: Arc<Gateway>,
    pod: PodIdentity,
    asked: GitTargetRequest,
    /// The push that was allowed, with the commit that was announced for it.
    push: Option<(PushHead, Option<PendingCommit>)>,
    revoked: Receiver<()>,
    until: Instant,
}

impl Watch {
    /// Watches from now on: an end between two questions is not missed.
    pub fn new(gateway: Arc<Gateway>, pod: PodIdentity, asked: GitTargetRequest) -> Self {
        let revoked = gateway.long_polls.stream(&pod.uid);
        Self { gateway, pod, asked, push: None, revoked, until: Instant::now() + REQUEST_TIMEOUT }
    }

    /// Watches from now on whether this push is still allowed.
    pub fn push_allowed(&mut self, head: PushHead, commit: Option<PendingCommit>) {
        self.push = Some((head, commit));
    }

    /// The agent's repository, if it is the one that it asks for and the agent may act.
    pub async fn target(&self) -> Result<GitTarget, Refusal> {
        let target = ask(&self.gateway, &self.pod, &self.asked).await?;
        target.ok_or_else(|| Refusal::new(Code::Internal, "the governor names no repository"))
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
        let Self { gateway, pod, asked, push, revoked, until } = self;
        tokio::select! {
            refusal = interrupted(gateway, pod, revoked, &gateway.git.stopping, (*until, REQUEST_TIMEOUT)) => refusal,
            refusal = denied(gateway, pod, asked, push.as_ref()) => refusal,
        }
    }
}

/// Asks the governor about a request, or tells it about a denial.
pub async fn ask(gateway: &Gateway, pod: &PodIdentity, asked: &GitTargetRequest) -> Result<Option<GitTarget>, Refusal> {
    gateway.governor.call_json(GOVERNOR_GIT_PATH, Some(pod), asked).await
}

/// Ends when a request is denied that was allowed before: by the governor, or because the pool allows its push no more.
async fn denied(
    gateway: &Gateway,
    pod: &PodIdentity,
    asked: &GitTargetRequest,
    push: Option<&(PushHead, Option<PendingCommit>)>,
) -> Refusal {
    loop {
        sleep(RECHECK_INTERVAL).await;
        match ask(gateway, pod, asked).await {
            Err(refusal) if !refusal.code.is_retryable() => return refusal,
            Ok(Some(target)) => {
                if let Some(denial) = push.and_then(|(head, commit)| first_denial(head, commit.as_ref(), &target)) {
                    return Refusal::new(Code::GitDenied, denial.to_string()).reason(denial.reason());
                }
            }
            Ok(None) | Err(_) => {}
        }
    }
}

fn first_denial(head: &PushHead, commit: Option<&PendingCommit>, target: &GitTarget) -> Option<Denial> {
    push::denials(head, commit, target.push.as_ref())?.into_iter().flatten().next()
}
