//! The arguments of `explain`.

use crate::input::{self, Explainable};

/// Arguments of `explain`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
#[command(after_help = "Examples:
  kubectl spillway explain coders-1f2e3d4c5b       # an agent, or else a pool
  kubectl spillway explain pool/coders
  kubectl spillway explain item/bugs-x7k2p         # what it waits for, who holds it, its attempts
  kubectl spillway explain queue/bugs              # why nothing is taken from it
  kubectl spillway explain agent/coders-1f2e3d4c5b -o json | jq -r '.advice[].advice'

Times of heartbeat and activity are those of the last write: Spillway writes nothing for time alone.")]
pub struct Arguments {
    /// agent/NAME, pool/NAME, item/NAME, queue/NAME; a bare name is an agent's, or else a pool's
    #[arg(value_name = "NAME", value_parser = input::explainable)]
    pub name: Explainable,
    /// How to write it
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    pub output: Option<Format>,
}

/// How a report is written; none: text for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// The report as JSON
    Json,
}
