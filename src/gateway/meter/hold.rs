//! Holds and settles as a session has them, and the bytes that they take.
//!
//! What always holds: what a hold takes from when it is asked for until its settle is acknowledged is never more than what was
//! set aside for it, in the journal as in [`Begin`](crate::wire::meter::Begin).

use std::io;
use std::sync::Arc;

use serde::Serialize;

use super::names::json_bytes;
use crate::wire::meter::{CallEnd, Quality, Usage};

/// The most bytes that a name of a model has, in JSON, that is told with a settle. Of one with more nothing is learned.
pub const MAX_MODEL_NAME_BYTES: usize = 256;
/// What a hold may come to take in the journal or in `Begin`, whatever becomes of it, beside the texts of its places and its namespace.
const MAX_HOLD_BYTES: usize = 1024;
/// What the number of a place takes at most.
const MAX_PLACE_NUMBER_BYTES: usize = 21;

/// A hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Its number in the session.
    pub id: u64,
    /// When it was given, on the leader's clock, in milliseconds.
    pub at: i64,
    /// The namespace of its agent; empty: a version before this one did not write it down.
    pub of: Arc<str>,
    /// The places that it counts at, by number.
    pub path: Box<[u64]>,
    /// Tokens of input it was given for.
    pub input: i64,
    /// Tokens of output it was given for.
    pub output: i64,
}

/// A settle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedHold {
    /// Its number.
    pub seq: u64,
    /// The hold that it ends.
    pub hold: Hold,
    /// The hold was asked for, and nobody knows whether it was given.
    pub unanswered: bool,
    /// What was used.
    pub usage: Usage,
    /// How well that is known.
    pub quality: Quality,
    /// How it ended otherwise.
    pub end: CallEnd,
    /// The model.
    pub model: String,
    /// Bytes of text that were sent; 0: nothing is learned from it.
    pub bytes: i64,
    /// Bytes that it takes of the session's.
    pub cost: usize,
}

/// Counts what is written.
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

/// How many bytes it is as JSON, with what separates it from the next.
pub fn bytes(value: &impl Serialize) -> usize {
    let mut count = Count(1);
    // Counting does not fail, and our own types can be written.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

/// What places may come to take.
pub fn places<'a>(path: impl Iterator<Item = &'a str>) -> usize {
    path.map(|text| (json_bytes(text) + 1).max(MAX_PLACE_NUMBER_BYTES)).sum()
}

/// What is set aside for a hold: what it may come to take, whatever becomes of it.
pub fn reserve<'a>(path: impl Iterator<Item = &'a str>, of: &str) -> usize {
    MAX_HOLD_BYTES + json_bytes(of) + places(path)
}
