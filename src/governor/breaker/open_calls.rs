//! The model calls that are open, each with the permit of its circuit.
//!
//! Data alone: the circuits keep it, and [`calls`](super::calls) fills it.

use std::collections::{BTreeMap, HashMap};

use super::key::Key;
use crate::cluster::ObjectKey;
use crate::policy::breaker::Permit;

/// A model call that is open.
#[derive(Clone, Debug)]
pub struct OpenCall {
    /// Its circuit.
    pub key: Key,
    /// None: it was given back.
    pub(super) permit: Option<Permit>,
    /// Its agent's pod.
    pub pod: String,
    /// Its agent.
    pub agent: ObjectKey,
}

/// Those of each session, by the numbers of their holds.
pub(super) type OpenCalls = HashMap<String, BTreeMap<u64, OpenCall>>;
