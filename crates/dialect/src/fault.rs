//! What is wrong with a body, and where: for the 400 that its client gets in its own dialect.
//!
//! It does no I/O and reads no body. Every file that reads one imports it, so it imports none of them.

use spillway_wire::{Code, Refusal};

/// Why a body is not passed: for a 400 in its dialect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What is wrong and what to do, with the field's path in front.
    pub message: String,
    /// The field, as a path: `tools[2].type`.
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
