//! The types of Spillway's HTTP APIs: between an agent's pod and the gateway, and between the gateway and the governor.
//!
//! This crate holds only data: no client, no server, no clock. Unknown fields are refused in a request, because a
//! misspelt field must not be dropped silently. They are ignored in an answer, because a newer server may send more.
//!
//! | file | for |
//! |---|---|
//! | [`agent`] | the agents' API: register, report, wanted, goodbye, spawn |
//! | [`access`] | the access table: which caller may make which call |
//! | [`ask`] | a text conversation with a scheduler, as the task of one item |
//! | [`body`] | reading a body, with the field's name in every error |
//! | [`budget`] | the agents' API: tokens that are left, and requests for more |
//! | [`command`] | inside the pod: permits for commands, and how commands ended |
//! | [`egress`] | connections of programs to destinations other than models |
//! | [`error`] | the common form of a refusal |
//! | [`external`] | agents outside the cluster: the header that names one, and the call that creates one |
//! | [`follow`] | the agents' API: progress of submitted work |
//! | [`git`] | requests of programs' git clients for the repository of their pool |
//! | [`governor`] | between gateway and governor: headers, and the stream of changes |
//! | [`headers`] | headers of a model call that are never forwarded |
//! | [`link`] | messages over the unix socket inside the pod |
//! | [`meter`] | between gateway and governor: tokens held for a model call, and its usage |
//! | [`plan`] | the agents' API: many items at once |
//! | [`shortage`] | the limit that refuses a model call, and the tokens it has left |
//! | [`text`] | bytes and words as plain text |
//! | [`tools`] | requests of programs' MCP clients for the bridge of a Toolset |
//! | [`work`] | the agents' API: claim, finish, submit |

pub mod access;
pub mod agent;
pub mod artifact;
pub mod ask;
pub mod body;
pub mod budget;
pub mod changeset;
pub mod command;
pub mod egress;
pub mod error;
pub mod external;
pub mod follow;
pub mod git;
pub mod governor;
pub mod headers;
pub mod link;
pub mod meter;
pub mod plan;
pub mod sandbox;
pub mod shortage;
pub mod text;
pub mod tools;
pub mod work;

pub use error::{Code, Refusal};

/// Audience of the token that an agent's pod shows to the gateway.
pub const GATEWAY_AUDIENCE: &str = "spillway.dev/gateway";
/// Audience of the token by which the bridge of a Toolset proves itself to gateways and to the controller.
pub const BRIDGE_AUDIENCE: &str = "spillway.dev/bridge";
/// Audience of the token that a gateway shows to the governor.
pub const GOVERNOR_AUDIENCE: &str = "spillway.dev/governor";
/// Name in the gateway's certificate. Pods have no DNS, so the name is fixed and never resolved.
pub const GATEWAY_TLS_NAME: &str = "gateway.spillway.internal";
/// Name of a bridge in TLS and in requests. Its certificate proves nothing: a token does.
pub const BRIDGE_TLS_NAME: &str = "bridge.spillway.internal";
/// Name in the governor's certificate.
pub const GOVERNOR_TLS_NAME: &str = "governor.spillway.internal";
/// Key of the ConfigMap, and name of the file in the pod, that holds the certificates to trust.
pub const CA_FILE: &str = "ca.crt";
