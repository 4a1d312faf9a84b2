//! The lines of the journal of a session, those of versions before this one among them.
//!
//! What always holds: what was ever written can be read. A hold is said once; its settle refers to it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::session::{EndedHold, Hold};
use crate::wire::meter::{CallEnd, JournaledHold, JournaledSettle, Quality, Usage};

/// A line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Line {
    /// The first line.
    #[serde(rename_all = "camelCase")]
    Session {
        /// Name of the session.
        name: String,
        /// Numbers of holds below may have been used.
        reserved: u64,
        /// The last settle that is acknowledged.
        acked: u64,
    },
    /// Numbers of holds below may be used.
    Reserved(u64),
    /// This number means this text.
    Name(u64, String),
    /// A hold was given.
    Gave(HoldLine),
    /// Its call is about to be sent.
    Sent(u64),
    /// It was extended.
    Extended {
        /// The hold.
        id: u64,
        /// Output tokens that it covers.
        output: i64,
    },
    /// It ended.
    Over(EndLine),
    /// Settles up to this one are acknowledged.
    Acked(u64),
    /// A hold was given, as versions before this one said it.
    Held(JournaledHold),
    /// It ended, as versions before this one said it.
    Ended(LegacySettleLine),
}

/// A hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HoldLine {
    /// Its number in the session.
    pub id: u64,
    /// When it was given, on the leader's clock, in milliseconds.
    pub at: i64,
    /// The namespace of its agent.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub of: String,
    /// Names that are new with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<(u64, String)>,
    /// The places that it counts at, by number.
    pub path: Vec<u64>,
    /// Tokens of input it was given for.
    pub input: i64,
    /// Tokens of output it was given for.
    pub output: i64,
}

impl HoldLine {
    /// As the line of a journal that knows these names already, but for the new ones.
    pub fn of(hold: &Hold, names: Vec<(u64, String)>) -> Self {
        let Hold { id, at, of, path, input, output } = hold;
        Self { id: *id, at: *at, of: of.as_ref().to_owned(), names, path: path.to_vec(), input: *input, output: *output }
    }
}

/// The end of a hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndLine {
    /// Number of the settle.
    pub seq: u64,
    /// Number of the hold.
    pub id: u64,
    /// It was asked for, and nobody knows whether it was given: no line says it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unanswered: bool,
    /// What was used.
    pub usage: Usage,
    /// How well that is known.
    pub quality: Quality,
    /// How it ended otherwise.
    #[serde(default)]
    pub end: CallEnd,
    /// The model.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// Bytes of text that were sent; 0: nothing is learned from it.
    #[serde(default)]
    pub bytes: i64,
}

impl EndLine {
    /// The line for it.
    pub fn of(ended: &EndedHold) -> Self {
        let EndedHold { seq, hold, unanswered, usage, quality, end, model, bytes, cost: _ } = ended;
        Self {
            seq: *seq,
            id: hold.id,
            unanswered: *unanswered,
            usage: *usage,
            quality: *quality,
            end: *end,
            model: model.clone(),
            bytes: *bytes,
        }
    }
}

/// A settle with its hold, as versions before this one wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LegacySettleLine {
    /// Its number.
    pub seq: u64,
    /// The hold that it ends, and what was used.
    pub told: JournaledSettle,
    /// The model.
    pub model: String,
    /// Bytes of text that were sent.
    pub bytes: i64,
}

/// All that must be known to go on, as it was in one moment: taken at once, and turned into lines when there is time.
pub struct Snapshot {
    /// The line about the session.
    pub first: Line,
    /// What the numbers mean.
    pub names: Vec<(u64, Arc<str>)>,
    /// What ended and is not acknowledged.
    pub settles: Vec<Arc<EndedHold>>,
    /// What is open, and whether its call was sent.
    pub open: Vec<(Hold, bool)>,
}

impl Snapshot {
    /// The journal that says it.
    pub fn lines(self) -> impl Iterator<Item = Line> {
        let names = self.names.into_iter().map(|(number, text)| Line::Name(number, text.as_ref().to_owned()));
        let settles = self.settles.into_iter().flat_map(|ended| {
            let hold = (!ended.unanswered).then(|| Line::Gave(HoldLine::of(&ended.hold, Vec::new())));
            hold.into_iter().chain([Line::Over(EndLine::of(&ended))])
        });
        let open = self.open.into_iter().flat_map(|(hold, sent)| {
            let sent = sent.then_some(Line::Sent(hold.id));
            std::iter::once(Line::Gave(HoldLine::of(&hold, Vec::new()))).chain(sent)
        });
        std::iter::once(self.first).chain(names).chain(settles).chain(open)
    }
}
