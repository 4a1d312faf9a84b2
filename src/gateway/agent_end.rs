//! The end of an agent, for transfers and requests that last: they end with it.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::state::Gateway;
use crate::cluster::token::PodIdentity;
use crate::wire::{Code, Refusal};

/// Longest delay before the governor is asked whether an agent has ended, after the stream of changes was broken.
const RECHECK_DELAY: Duration = Duration::from_secs(5);

/// Ends when the agent does. Subscribe (`long_polls.stream`) before the agent's right is checked: an end in between is not missed.
pub(super) async fn agent_ended(gateway: &Gateway, pod: &PodIdentity, revoked: &mut watch::Receiver<()>) {
    while revoked.changed().await.is_ok() {
        // The stream of changes was broken for a while: the governor knows what was missed. Many transfers ask at once.
        loop {
            tokio::time::sleep(RECHECK_DELAY.mul_f64(rand::random::<f64>())).await;
            match gateway.governor.call("GET", "/agent/v1/wanted", pod, None, Bytes::new()).await {
                Ok((200, _)) => break,
                Ok((_, answer)) => match serde_json::from_slice::<Refusal>(&answer) {
                    Ok(refusal) if matches!(refusal.code, Code::AgentEnded | Code::NotAnAgent) => return,
                    Ok(refusal) if !refusal.code.is_retryable() => break,
                    Ok(_) | Err(_) => {}
                },
                Err(_) => {}
            }
        }
    }
}

/// Ends when a request that lasts must not go on, whatever it is about, and says why: the gateway stops, its agent ends, or it has taken
/// `within` and longer.
pub(super) async fn interrupted(
    gateway: &Gateway,
    pod: &PodIdentity,
    revoked: &mut watch::Receiver<()>,
    stopping: &CancellationToken,
    (until, within): (Instant, Duration),
) -> Refusal {
    tokio::select! {
        () = stopping.cancelled() => Refusal::unavailable("this gateway is stopping; try again"),
        () = agent_ended(gateway, pod, revoked) => {
            Refusal::new(Code::AgentEnded, "this agent has ended: its remaining processes may make no calls")
        }
        () = sleep_until(until) => {
            Refusal::new(Code::DestinationUnreachable, format!("the request took longer than {} s", within.as_secs()))
        }
    }
}
