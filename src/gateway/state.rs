//! What the routes of the gateway work with.
//!
//! Data alone: a route is given it, and it knows no route.

use std::sync::{Arc, Mutex};

use super::governor::Governor;
use super::lease_history::LeaseHistory;
use super::limits::Limits;
use super::long_poll::LongPolls;
use super::models::Models;
use crate::cluster::access::Authorizer;
use crate::cluster::token::Reviewer;
use crate::serve::request_body::BodyMemory;
use crate::telemetry::Metrics;

/// What the routes work with.
pub struct Gateway {
    /// Whose token it is.
    pub reviewer: Reviewer,
    /// Who may register agents outside the cluster. None: nobody.
    pub authorizer: Option<Authorizer>,
    /// The way to the governor.
    pub governor: Governor,
    /// Long polls, and who was revoked.
    pub long_polls: LongPolls,
    /// How much who calls.
    pub limits: Mutex<Limits>,
    /// Bodies of agents' own calls.
    pub bodies: BodyMemory,
    /// What is counted.
    pub metrics: Metrics,
    /// Calls of models.
    pub models: Arc<Models>,
    /// The last answers about leases.
    pub lease_history: LeaseHistory,
}
