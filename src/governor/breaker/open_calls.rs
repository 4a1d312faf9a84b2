//! The open model calls, each with the permit of its circuit.
//!
//! Only data: the circuits keep it, and [`calls`](super::calls) fills it.

use std::collections::{BTreeMap, HashMap};

use super::key::Key;
use crate::cluster::ObjectKey;
use crate::policy::breaker::Permit;

/// An open model call.
#[derive(Clone, Debug)]
pub struct OpenCall {
    /// Its circuit.
    pub key: Key,
    /// `None` after it was given back.
    pub(super) permit: Option<Permit>,
    /// Its agent's pod.
    pub pod: String,
    /// Its agent.
    pub agent: ObjectKey,
}

/// The open calls of each session, by the numbers of their holds.
pub(super) type OpenCalls = HashMap<String, BTreeMap<u64, OpenCall>>;
