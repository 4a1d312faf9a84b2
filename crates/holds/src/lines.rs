//! The lines of a session's journal, including those of earlier versions.
//!
//! What always holds: lines of all earlier versions can be read. A hold is written once; its settle refers to it.
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use spillway_wire::meter::{CallEnd, JournaledHold, JournaledSettle, Quality, Usage};

use crate::hold::{EndedHold, Hold};

/// A line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Line {
    /// The first line.
    #[serde(rename_all = "camelCase")]
    Session {
        /// Name of the session.
        name: String,
        /// Smaller numbers of holds may have been used.
        reserved: u64,
        /// The last acknowledged settle.
        acked: u64,
    },
    /// Smaller numbers of holds may be used.
    Reserved(u64),
    /// This number stands for this name of a limit.
    Name(u64, String),
    /// A hold was given.
    Gave(HoldLine),
    /// Its call is about to be sent.
    Sent(u64),
    /// It was extended.
    Extended {
        /// The hold.
        id: u64,
        /// Its tokens of output after that.
        output: i64,
    },
    /// It ended.
    Over(EndLine),
    /// Settles up to this one are acknowledged.
    Acked(u64),
    /// A hold was given, in the format of earlier versions.
    Held(JournaledHold),
    /// It ended, in the format of earlier versions.
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
    /// Names of limits that earlier lines do not have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<(u64, String)>,
    /// The limits that it counts against, by number.
    pub path: Vec<u64>,
    /// Held tokens of input.
    pub input: i64,
    /// Held tokens of output.
    pub output: i64,
}

impl HoldLine {
    /// The line of `hold`, with the `names` that the journal does not have yet.
    pub fn of(hold: &Hold, names: Vec<(u64, String)>) -> Self {
        let Hold { id, at, namespace: of, path, input, output } = hold;
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
    /// The hold was requested, and it is not known whether it was given. It has no line `gave`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unanswered: bool,
    /// The usage.
    pub usage: Usage,
    /// The quality of the usage.
    pub quality: Quality,
    /// How the call ended.
    #[serde(default)]
    pub end: CallEnd,
    /// The model.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// Bytes of text that were sent. 0: nothing is learned from this call.
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

/// A settle with its hold, in the format of earlier versions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LegacySettleLine {
    /// Its number.
    pub seq: u64,
    /// The hold that it ends, and the usage.
    pub told: JournaledSettle,
    /// The model.
    pub model: String,
    /// Bytes of text that were sent.
    pub bytes: i64,
}

/// The complete session at one moment. It is taken quickly, and turned into lines later.
pub struct Snapshot {
    /// The line about the session.
    pub first: Line,
    /// The names of the limits, by number.
    pub names: Vec<(u64, Arc<str>)>,
    /// Settles that are not acknowledged.
    pub settles: Vec<Arc<EndedHold>>,
    /// Open holds; true: the call was sent.
    pub open: Vec<(Hold, bool)>,
}

impl Snapshot {
    /// The lines of a journal with this content.
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
