//! Identifies the caller by its token: an agent's pod, or an agent outside the cluster.
//!
//! It must not answer a call.

use std::sync::PoisonError;

use axum::body::Bytes;
use axum::http::{Extensions, HeaderMap, HeaderValue};

use super::call_slot::{CallSlot, now};
use super::state::Gateway;
use crate::api::names;
use crate::cluster::token::{ExternalUser, Holder, PodIdentity};
use crate::serve::admission::AdmissionFull as ConnectionsFull;
use crate::serve::{Connection, Peer};
use crate::wire::external::{EXTERNAL_HEADER, ExternalAgent as ExternalPlace};
use crate::wire::{Code, Refusal};

/// The most bytes of the name of a user who registers agents outside the cluster: the limit of the field in an Agent.
const MAX_USER_NAME_BYTES: usize = 512;

/// Identifies the caller: the pod that its token is bound to, or the agent outside the cluster that its header names.
/// An agent that has ended is refused. After a success the connection of the call is a known one.
pub(super) async fn identify(gateway: &Gateway, headers: &HeaderMap, extensions: &Extensions) -> Result<PodIdentity, Refusal> {
    let peer = extensions.get::<Peer>().map(|peer| peer.0.to_string()).unwrap_or_default();
    let identified = identify_by_token(gateway, headers, &peer).await;
    if let Some(connection) = extensions.get::<Connection>() {
        match &identified {
            Ok(pod) => connection.admit(&pod.namespace).map_err(connection_refusal)?,
            Err(refusal) if refusal.code.is_retryable() => {}
            Err(_) => connection.refuse(),
        }
    }
    identified
}

/// The refusal of a call whose connection cannot become known.
fn connection_refusal(full: ConnectionsFull) -> Refusal {
    let message = match full {
        ConnectionsFull::Namespace => "the agents of this namespace have reached their limit of connections; try again",
        ConnectionsFull::Address => "this address has reached its limit of connections; try again",
        ConnectionsFull::Evicted => "the gateway ended this connection to accept a new one; connect again",
    };
    Refusal::new(Code::TooManyCalls, message).retry_after(1)
}

async fn identify_by_token(gateway: &Gateway, headers: &HeaderMap, peer: &str) -> Result<PodIdentity, Refusal> {
    let holder = gateway.reviewer.review(headers, || may_review_token(gateway, peer)).await?;
    let caller = match (holder.pod.clone(), headers.get(EXTERNAL_HEADER)) {
        (Some(pod), None) => pod,
        (Some(pod), Some(_)) => {
            let message = format!(
                "the token is bound to pod {} and cannot be used by an agent outside the cluster: use a token of a ServiceAccount, or of a \
                 person, that is bound to no pod",
                pod.name
            );
            return Err(Refusal::new(Code::NotAllowed, message));
        }
        (None, None) => {
            let message = "the token is not bound to a pod: only agents' pods may call, and agents outside the cluster that send the \
                           header spillway-external";
            return Err(Refusal::new(Code::NotAPod, message));
        }
        (None, Some(said)) => external(gateway, &holder, said, peer).await?,
    };
    if gateway.long_polls.is_revoked(&caller.uid) {
        return Err(Refusal::new(Code::AgentEnded, "this agent has ended: its remaining processes may make no calls"));
    }
    Ok(caller)
}

/// Whether the API server may be asked about an unknown token from `peer`.
pub(super) fn may_review_token(gateway: &Gateway, peer: &str) -> Result<(), Refusal> {
    let may = gateway.limits.lock().unwrap_or_else(PoisonError::into_inner).may_review_unknown(peer, now());
    let message = "this address sent too many unknown tokens; try again";
    if may { Ok(()) } else { Err(Refusal::new(Code::TooManyCalls, message).retry_after(1)) }
}

/// Identifies a caller from outside the cluster, if its user has the right. The header only claims which agent it is:
/// the governor checks that the agent belongs to the user.
async fn external(gateway: &Gateway, holder: &Holder, said: &HeaderValue, peer: &str) -> Result<PodIdentity, Refusal> {
    let Some(place) = said.to_str().ok().and_then(ExternalPlace::parse) else {
        let message = "the header must be NAMESPACE/POOL, or NAMESPACE/POOL/AGENT/UID for a registered agent";
        return Err(Refusal::new(Code::InvalidBody, message).field(EXTERNAL_HEADER));
    };
    let user = &holder.user;
    if user.is_empty() || user.len() > MAX_USER_NAME_BYTES || HeaderValue::from_bytes(user.as_bytes()).is_err() {
        let message = format!("the token's user name is empty, has control characters, or has more than {MAX_USER_NAME_BYTES} bytes");
        return Err(Refusal::new(Code::NotAllowed, message));
    }
    let ExternalPlace { namespace, pool, agent } = place;
    let Some(authorizer) = &gateway.authorizer else {
        let message =
            "this installation accepts no agents from outside the cluster: the chart's value gateway.external.enabled enables them";
        return Err(Refusal::new(Code::NotAllowed, message));
    };
    authorizer.may_register(holder, &namespace, &pool, || may_review_token(gateway, peer)).await?;
    let enrols = agent.is_none();
    // The calls of a caller without an Agent are counted by user.
    let (name, uid) = agent.unwrap_or_else(|| (pool.clone(), names::short_hash(&["external", user], 32)));
    let caller = PodIdentity { namespace, name, uid, external: Some(ExternalUser { user: user.clone(), pool, enrols }) };
    if gateway.long_polls.is_unconfirmed(&caller) {
        confirm(gateway, &caller).await?;
    }
    Ok(caller)
}

/// Asks the governor once whether an agent belongs to its user, so that its calls are counted as its own from the first
/// one on. If the governor cannot answer, they are counted as its user's.
async fn confirm(gateway: &Gateway, caller: &PodIdentity) -> Result<(), Refusal> {
    let _place = CallSlot::take(gateway, caller)?;
    match gateway.governor.call("GET", "/agent/v1/wanted", caller, None, Bytes::new()).await {
        Ok((200, _)) => gateway.long_polls.confirmed(caller),
        Ok((_, answer)) => match serde_json::from_slice::<Refusal>(&answer) {
            Ok(refusal) if !refusal.code.is_retryable() => return Err(refusal),
            Ok(_) | Err(_) => {}
        },
        Err(_) => {}
    }
    Ok(())
}
