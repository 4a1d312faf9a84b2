//! Egress: connections of agents' programs to destinations other than models.
//!
//! The governor decides by the pool's lists. The gateway checks the addresses, connects to a checked address, and carries bytes
//! that it does not read. Each decision is logged with its agent and item, and counted by its reason.
//!
//! | file | for |
//! |---|---|
//! | `mod` | one connection: decide, dial, carry |
//! | [`dial`] | the addresses of a destination, and the connection |
//! | `state` | the shared state |
//! | [`tunnel`] | the bytes of a connection |

mod dial;
mod state;
mod tunnel;

pub use self::state::Egress;

use std::sync::Arc;

use axum::extract::Request;
use axum::http::HeaderMap;
use axum::response::Response;
use tokio::net::TcpStream;
use tokio::sync::watch;

use self::dial::DialError;
use super::agent_end::agent_ended;
use super::call_slot::CallSlot;
use super::connection_slots::ConnectionSlot;
use super::models::item;
use super::state::Gateway;
use super::transfer_record::TransferRecord;
use crate::cluster::token::PodIdentity;
use crate::policy::egress::{Denial, Destination};
use crate::telemetry::TransferKind;
use crate::wire::egress::{DESTINATION_HEADER, EgressAllowed, EgressRequest, MAX_DESTINATION_CHARS};
use crate::wire::work::LeaseRef;
use crate::wire::{Code, Refusal};

/// The governor's path.
const GOVERNOR_EGRESS_PATH: &str = "/governor/v1/egress";

/// One request for a connection.
struct Attempt<'a> {
    gateway: &'a Arc<Gateway>,
    pod: &'a PodIdentity,
    /// The destination, as the program wrote it.
    text: String,
    item: Option<LeaseRef>,
}

/// Answers a connect call of `pod`: the body of the answer carries what the destination sends.
pub async fn answer(gateway: &Arc<Gateway>, pod: &PodIdentity, request: Request) -> Result<Response, Refusal> {
    let (head, body) = request.into_parts();
    let attempt = Attempt { gateway, pod, text: destination_text(&head.headers)?, item: item(&head.headers)? };
    // Subscribed before the governor is asked: an end in between is not missed.
    let revoked = gateway.long_polls.stream(&pod.uid);
    match attempt.connect().await {
        Ok((stream, destination, slot)) => {
            attempt.decided("Allowed");
            let record = TransferRecord::new(gateway.metrics.clone(), TransferKind::Egress, pod, destination.to_string());
            let ended = ended(gateway.clone(), pod.clone(), revoked);
            Ok(Response::new(tunnel::carry(stream, body, ended, record, slot)))
        }
        Err(refusal) => {
            attempt.decided(refusal.reason.as_deref().map_or_else(|| refusal.code.label(), Denial::known_reason));
            Err(refusal)
        }
    }
}

impl Attempt<'_> {
    /// A connection to the destination, if the agent may reach it.
    async fn connect(&self) -> Result<(TcpStream, Destination, ConnectionSlot), Refusal> {
        let Self { gateway, pod, .. } = self;
        if pod.external.is_some() {
            let message = "agents outside the cluster have their own network: the gateway connects agents in pods only";
            return Err(Refusal::new(Code::NotAllowed, message));
        }
        let destination = {
            let _deciding = CallSlot::take_of(&gateway.egress.decisions, gateway, pod)?;
            self.decide().await?
        };
        let egress = &gateway.egress;
        let slot = egress.slots.take(&pod.namespace, &gateway.long_polls.limit_key(pod)).await?;
        let allow_private = egress.settings.may_be_private(&destination);
        match dial::dial(&egress.lookups, &pod.namespace, &destination, allow_private).await {
            Ok(stream) => Ok((stream, destination, slot)),
            Err(DialError::NotPublic(address)) => {
                // Not for the program, which could map the inside by such answers.
                tracing::info!(%destination, %address, "a destination has no address that may be reached");
                Err(self.deny(&Denial::NotPublic).await)
            }
            Err(DialError::Unreachable(words)) => {
                let message = format!("{destination} cannot be reached: {words}");
                Err(Refusal::new(Code::DestinationUnreachable, message).retry_after(5))
            }
        }
    }

    /// The destination, if the pool's lists allow it.
    async fn decide(&self) -> Result<Destination, Refusal> {
        let Self { gateway, pod, text, item } = self;
        let destination = match Destination::parse(text) {
            Ok(destination) if gateway.egress.is_model_origin(&destination) => return Err(self.deny(&Denial::ModelOrigin).await),
            Ok(destination) => destination,
            Err(error) => return Err(self.deny(&Denial::Invalid(error)).await),
        };
        let request = EgressRequest { destination: text.clone(), item: item.clone(), denied: None };
        let EgressAllowed {} = gateway.governor.call_json(GOVERNOR_EGRESS_PATH, Some(pod), &request).await?;
        Ok(destination)
    }

    /// Denies the destination for a reason that the gateway found: the governor counts it for the agent's supervision.
    async fn deny(&self, denial: &Denial) -> Refusal {
        let Self { gateway, pod, text, item } = self;
        let refusal = Refusal::new(Code::EgressDenied, format!("{text:?} is denied: {denial}")).reason(denial.reason());
        let request = EgressRequest { destination: text.clone(), item: item.clone(), denied: Some(denial.reason().to_owned()) };
        let told: Result<EgressAllowed, Refusal> = gateway.governor.call_json(GOVERNOR_EGRESS_PATH, Some(pod), &request).await;
        // A caller that is no agent any more is told that. A denial that the governor cannot count is still a denial.
        match told {
            Err(refusal) if !refusal.code.is_retryable() => refusal,
            Ok(EgressAllowed {}) | Err(_) => refusal,
        }
    }

    /// Logs and counts a decision.
    fn decided(&self, decision: &'static str) {
        let Self { gateway, pod, text, item } = self;
        gateway.metrics.egress_decided(decision);
        let item = item.as_ref().map(|item| item.uid.as_str()).unwrap_or_default();
        tracing::info!(namespace = pod.namespace, agent = pod.name, item, destination = ?text, decision, "egress");
    }
}

/// The destination in a header.
fn destination_text(headers: &HeaderMap) -> Result<String, Refusal> {
    let text = headers.get(DESTINATION_HEADER).and_then(|value| value.to_str().ok());
    let text = text.filter(|text| text.len() <= MAX_DESTINATION_CHARS);
    let wrong = || {
        let message = format!("the header {DESTINATION_HEADER} is HOST:PORT, of at most {MAX_DESTINATION_CHARS} characters");
        Refusal::new(Code::InvalidBody, message).field(DESTINATION_HEADER)
    };
    text.map(str::to_owned).ok_or_else(wrong)
}

/// Ends when the agent does, or when the gateway stops.
async fn ended(gateway: Arc<Gateway>, pod: PodIdentity, mut revoked: watch::Receiver<()>) {
    tokio::select! {
        () = gateway.egress.stopping.cancelled() => {}
        () = agent_ended(&gateway, &pod, &mut revoked) => {}
    }
}
