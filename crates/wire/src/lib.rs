//! The types of Spillway's HTTP APIs: what goes from an agent's pod to the gateway and from there to the governor.
//!
//! Only data: no client, no server, no clock. Unknown fields are refused where we read what a caller wrote (a misspelt field
//! must not be silently dropped) and ignored where we read an answer (a newer server may say more).
//!
//! | file | for |
//! |---|---|
//! | [`agent`] | the agents' API: register, report, wanted, goodbye, spawn |
//! | [`access`] | who may make which call: one table |
//! | [`ask`] | what people ask a scheduler, and what it asked back, as the task of one item |
//! | [`body`] | reading a body, with the field's name in every error |
//! | [`budget`] | the agents' API: what is left of the budgets over an agent, and asking for more |
//! | [`command`] | inside the pod: may a command be run, and how it ended |
//! | [`error`] | the one shape of a refusal |
//! | [`external`] | agents outside the cluster: which one calls, and the call that makes one |
//! | [`follow`] | the agents' API: what became of submitted work |
//! | [`governor`] | what goes between gateway and governor beside the agents' calls |
//! | [`headers`] | headers of a model call that stay behind wherever it is carried on |
//! | [`link`] | what goes over the unix socket inside the pod |
//! | [`meter`] | between gateway and governor: tokens held for a model call, and what it used |
//! | [`plan`] | the agents' API: many items at once |
//! | [`shortage`] | which limit refuses a model call, and what it has left |
//! | [`work`] | the agents' API: claim, finish, submit |

pub mod access;
pub mod agent;
pub mod ask;
pub mod body;
pub mod budget;
pub mod command;
pub mod error;
pub mod external;
pub mod follow;
pub mod governor;
pub mod headers;
pub mod link;
pub mod meter;
pub mod plan;
pub mod shortage;
pub mod work;

pub use error::{Code, Refusal};

/// Audience of the token that an agent's pod shows to the gateway.
pub const GATEWAY_AUDIENCE: &str = "spillway.dev/gateway";
/// Audience of the token that a gateway shows to the governor.
pub const GOVERNOR_AUDIENCE: &str = "spillway.dev/governor";
/// The name in the gateway's certificate: pods have no DNS, so it is fixed and never looked up.
pub const GATEWAY_TLS_NAME: &str = "gateway.spillway.internal";
/// The name in the governor's certificate.
pub const GOVERNOR_TLS_NAME: &str = "governor.spillway.internal";
/// Key of the ConfigMap, and name of the file in the pod, that holds the certificates to trust.
pub const CA_FILE: &str = "ca.crt";
