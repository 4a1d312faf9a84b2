//! The shared state of the gateway's routes.
//!
//! It is data only: routes use it, and it knows no route.

use std::sync::{Arc, Mutex};

use super::artifacts::Artifacts;
use super::egress::Egress;
use super::git::Git;
use super::governor::Governor;
use super::lease_history::LeaseHistory;
use super::limits::Limits;
use super::long_poll::LongPolls;
use super::models::Models;
use super::tools::Tools;
use crate::cluster::access::Authorizer;
use crate::cluster::token::Reviewer;
use crate::serve::request_body::BodyMemory;
use crate::telemetry::Metrics;

/// The shared state of the routes.
pub struct Gateway {
    /// Reviews tokens.
    pub reviewer: Reviewer,
    /// Reviews tokens of people who read artifacts.
    pub people: Reviewer,
    /// Checks the right to register agents outside the cluster. None: such agents are refused.
    pub authorizer: Option<Authorizer>,
    /// The client of the governor.
    pub governor: Governor,
    /// Long polls, and revoked agents.
    pub long_polls: LongPolls,
    /// Limits of calls.
    pub limits: Mutex<Limits>,
    /// Memory of the bodies of agents' own calls.
    pub bodies: BodyMemory,
    /// The metrics.
    pub metrics: Metrics,
    /// The shared state of model calls.
    pub models: Arc<Models>,
    /// Connections to other destinations.
    pub egress: Egress,
    /// Git requests.
    pub git: Git,
    /// Requests of MCP clients.
    pub tools: Tools,
    /// Calls about artifacts.
    pub artifacts: Artifacts,
    /// The last answers about leases.
    pub lease_history: LeaseHistory,
}
