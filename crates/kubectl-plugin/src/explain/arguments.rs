//! The arguments of `explain`.

use crate::input::{self, Explainable};

/// Arguments of `explain`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
#[command(after_help = "Examples:
  kubectl spillway explain coders-1f2e3d4c5b       # an agent, or a pool if there is no such agent
  kubectl spillway explain pool/coders
  kubectl spillway explain item/bugs-x7k2p         # what it waits for, its agent, its attempts
  kubectl spillway explain queue/bugs              # why agents take no items from it
  kubectl spillway explain agent/coders-1f2e3d4c5b -o json | jq -r '.advice[].advice'

The times of heartbeat and activity are from the last write of the status. Spillway does not write a status only to update them.")]
pub struct Arguments {
    /// agent/NAME, pool/NAME, item/NAME or queue/NAME; a bare name means an agent, or a pool if there is no such agent
    #[arg(value_name = "NAME", value_parser = input::explainable)]
    pub name: Explainable,
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    pub output: Option<Format>,
}

/// The output format; without one the report is text for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// The report as JSON
    Json,
}
