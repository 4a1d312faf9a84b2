//! The error of a body: what is wrong, and in which field. The client gets it as a 400 in its own dialect.
//!
//! This module does no I/O and reads no body. Every file that reads a body imports it. Therefore it imports none of
//! them.

use spillway_wire::{Code, Refusal};

/// Why a body is refused, for a 400 in its dialect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What is wrong and what to do, after the path of the field.
    pub message: String,
    /// Path of the field: `tools[2].type`.
    pub field: Option<String>,
}

impl Fault {
    pub(crate) fn at(field: String, what: impl std::fmt::Display) -> Self {
        Self { message: format!("{field}: {what}"), field: Some(field) }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.message)
    }
}

impl std::error::Error for Fault {}

impl From<Fault> for Refusal {
    fn from(Fault { message, field }: Fault) -> Self {
        Self { field, ..Self::new(Code::InvalidBody, message) }
    }
}
