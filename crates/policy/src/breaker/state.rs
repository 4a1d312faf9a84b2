//! The three states of a circuit.
//!
//! A file of its own, because the circuit and its durable record both import it.

/// The state of a circuit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Everything passes.
    #[default]
    Closed,
    /// Probes pass.
    HalfOpen,
    /// Everything is refused.
    Open,
}

impl State {
    /// As one word, for metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half_open",
            Self::Open => "open",
        }
    }
}
