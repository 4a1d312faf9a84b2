//! Holds and settles in memory, and their sizes in bytes.
//!
//! What always holds: from its request until its settle is acknowledged, a hold never takes more bytes than were
//! reserved for it, in the journal and in [`Begin`](spillway_wire::meter::Begin).
use std::io;
use std::sync::Arc;

use serde::Serialize;
use spillway_wire::meter::{CallEnd, Quality, Usage};

use crate::names::json_bytes;

/// The most bytes of a model's name in a settle, in JSON. A longer name is left out, and nothing is learned from that
/// call.
pub const MAX_MODEL_NAME_BYTES: usize = 256;
/// The largest size of a hold in the journal or in `Begin`, in any state, without the names of its limits and its
/// namespace.
const MAX_HOLD_BYTES: usize = 1024;
/// The most bytes of the number of a limit.
const MAX_PLACE_NUMBER_BYTES: usize = 21;

/// A hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Its number in the session.
    pub id: u64,
    /// When it was given, on the leader's clock, in milliseconds.
    pub at: i64,
    /// The namespace of its agent. Empty: an earlier version did not write it down.
    pub namespace: Arc<str>,
    /// The limits that it counts against, by number.
    pub path: Box<[u64]>,
    /// Held tokens of input.
    pub input: i64,
    /// Held tokens of output.
    pub output: i64,
}

/// A settle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedHold {
    /// Its number.
    pub seq: u64,
    /// The hold that it ends.
    pub hold: Hold,
    /// The hold was requested, and it is not known whether it was given.
    pub unanswered: bool,
    /// The usage.
    pub usage: Usage,
    /// The quality of the usage.
    pub quality: Quality,
    /// How the call ended.
    pub end: CallEnd,
    /// The model.
    pub model: String,
    /// Bytes of text that were sent. 0: nothing is learned from this call.
    pub bytes: i64,
    /// Bytes that it takes of the session's limit.
    pub cost: usize,
}

/// Counts written bytes.
struct Count(usize);

impl io::Write for Count {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Its length as JSON, with one separator.
pub fn bytes(value: &impl Serialize) -> usize {
    let mut count = Count(1);
    // Counting does not fail, and our own types serialize.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

/// The largest size of the limits of a path.
pub fn places<'a>(path: impl Iterator<Item = &'a str>) -> usize {
    path.map(|text| (json_bytes(text) + 1).max(MAX_PLACE_NUMBER_BYTES)).sum()
}

/// The bytes to reserve for a hold: its largest size in any state.
pub fn reserve<'a>(path: impl Iterator<Item = &'a str>, of: &str) -> usize {
    MAX_HOLD_BYTES + json_bytes(of) + places(path)
}
