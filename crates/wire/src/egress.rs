//! Egress: a connection of an agent's program to a destination other than models.
//!
//! `POST /agent/v1/connect` carries the bytes of one connection: those to the destination are the body of the request, those
//! from it are the body of the answer. The gateway asks the governor whether the destination is allowed ([`EgressRequest`]).

use serde::{Deserialize, Serialize};

use crate::body::{BoundedBody, at_most};
use crate::work::LeaseRef;

/// Header of a connect call: the destination, `HOST:PORT`.
pub const DESTINATION_HEADER: &str = "spillway-destination";
/// Header of the pod's answer to a denied proxy request: the reason, in one word.
pub const DENIAL_HEADER: &str = "spillway-denied";
/// The most characters of a destination, as a program writes it.
pub const MAX_DESTINATION_CHARS: usize = 300;

/// `POST /governor/v1/egress`: whether an agent may reach a destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EgressRequest {
    /// The destination, as the program wrote it.
    pub destination: String,
    /// The item that the program works on, as the sidecar knows it.
    #[serde(default)]
    pub item: Option<LeaseRef>,
    /// The gateway has denied it for this reason: the governor counts the denial and allows nothing.
    #[serde(default)]
    pub denied: Option<String>,
}

/// The destination is allowed, or the denial is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressAllowed {}

impl BoundedBody for EgressRequest {
    fn check(&self) -> Result<(), (&'static str, String)> {
        at_most("destination", &self.destination, MAX_DESTINATION_CHARS)?;
        at_most("denied", self.denied.as_deref().unwrap_or_default(), 63)
    }
}
