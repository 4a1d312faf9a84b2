//! A call of a program, as it came in.

use serde_json::{Map, Value};
use spillway_bridge::audit::Caller;

use super::admitted_request::Provided;

/// A call of a program, as it came in.
#[derive(Clone, Debug)]
pub struct ProgramCall {
    /// Who calls.
    pub caller: Caller,
    /// What a gateway provides for it.
    pub provided: Option<Provided>,
    /// Name of the program.
    pub program: String,
    /// Its arguments.
    pub arguments: Map<String, Value>,
    /// A repeated call with the same key gets the answer of the first.
    pub idempotency_key: Option<String>,
}
