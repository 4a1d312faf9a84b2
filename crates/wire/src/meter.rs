//! Metering between the gateway and the governor: tokens held for a model call before it is sent, and its usage
//! afterwards.
//!
//! A *session* is one gateway pod. It numbers its holds, and numbers its settles without gaps. It keeps both in its
//! journal, and sends a new leader everything that the leader cannot know ([`Begin`]). This module does not decide: the
//! arithmetic is in `policy::budget`.

use serde::{Deserialize, Serialize};

use crate::body::{BoundedBody, at_most};
use crate::shortage::LimitRoom;
use crate::work::LeaseRef as Lease;

/// Header of model calls: the item that the program works on, as `uid/epoch`. The pod's sidecar sets it.
pub const ITEM_HEADER: &str = "spillway-item";
/// Header of the answer to a model call: the conversation of the call, as a hexadecimal number. It is for the pod's
/// sidecar, which removes it.
pub const CONVERSATION_HEADER: &str = "spillway-conversation";
/// Maximum number of bytes of a [`Begin`], which lists every call in flight.
pub const MAX_BEGIN_BYTES: usize = 16 * 1024 * 1024;
/// Maximum number of settles in one call.
pub const MAX_SETTLES: usize = 256;

/// The protocol of a model API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Dialect {
    /// Anthropic Messages.
    Anthropic,
    /// OpenAI Chat Completions.
    OpenAIChat,
    /// OpenAI Responses.
    OpenAIResponses,
    /// Gemini generateContent.
    Gemini,
}

/// Facts in a call's body about its cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Facts {
    /// Bytes of text, including tools and names.
    pub bytes: i64,
    /// Tokens of images, files and other data that is not text, by a table of upper bounds.
    #[serde(default)]
    pub other_tokens: i64,
    /// Requested output limit, in tokens for each choice.
    #[serde(default)]
    pub output: Option<i64>,
    /// Tokens reserved for thinking. They count as output.
    #[serde(default)]
    pub thinking: i64,
    /// Number of requested answers. 0 counts as 1.
    #[serde(default)]
    pub choices: i64,
}

/// Usage of a call in tokens, as the provider reported it. The sum of the four fields is the whole usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Usage {
    /// Input that was not read from a cache.
    #[serde(default)]
    pub input: i64,
    /// Input that was read from a cache.
    #[serde(default)]
    pub cache_read: i64,
    /// Input that was written to a cache.
    #[serde(default)]
    pub cache_write: i64,
    /// Output, including reasoning.
    #[serde(default)]
    pub output: i64,
}

/// How well a call's usage is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Quality {
    /// The provider reported all of it.
    Exact,
    /// A part of the usage is known, because the stream was cut. The charge is the estimate, or the known part if it is
    /// more.
    Partial,
    /// The provider reported nothing. The charge is the estimate.
    Estimated,
}

/// Cause of a call's failure that counts against its provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FaultCause {
    /// No connection, or no TLS.
    Unreachable,
    /// The connection broke before the answer was complete.
    Broken,
    /// The first token was late.
    Late,
    /// The answer stopped for too long.
    Idle,
    /// The provider answered with this status.
    Status(u16),
    /// The answer contained an error of the provider itself.
    Event,
}

impl std::fmt::Display for FaultCause {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreachable => out.write_str("the provider could not be reached"),
            Self::Broken => out.write_str("the provider broke the connection"),
            Self::Late => out.write_str("the provider's first token was late"),
            Self::Idle => out.write_str("the provider's answer stopped for too long"),
            Self::Status(status) => write!(out, "the provider answered with status {status}"),
            Self::Event => out.write_str("the provider's answer contained an error of the provider"),
        }
    }
}

/// Outcome of a call for its provider's circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// The provider answered completely.
    Worked,
    /// The call failed.
    #[serde(rename_all = "camelCase")]
    Failed {
        /// Cause of the failure.
        why: FaultCause,
        /// Seconds after which the provider accepts a retry, if it reported them.
        retry_after: Option<u32>,
    },
    /// No outcome: the provider refused the call for a fault of the call, the client left, or nothing was sent.
    Nothing,
}

/// How a call ended, apart from its usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CallEnd {
    /// Outcome for its provider. Unset: it can never be known.
    #[serde(default)]
    pub outcome: Option<Outcome>,
    /// Whether it took longer than a model turn of its pool may take, so that its client got a time-out.
    #[serde(default)]
    pub timed_out: bool,
}

/// The model API and the model of an agent's call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelRoute {
    /// Name of the entry in the pool's `models`.
    pub entry: String,
    /// Protocol of the requested path. Unset for a path that all protocols have (`HEAD /`).
    #[serde(default)]
    pub dialect: Option<Dialect>,
    /// Model of the call. Unset for a call that names none (a list of models).
    #[serde(default)]
    pub model: Option<String>,
    /// The item that the program works on, as the sidecar reports it.
    #[serde(default)]
    pub item: Option<Lease>,
}

impl BoundedBody for ModelRoute {
    fn check(&self) -> Result<(), (&'static str, String)> {
        at_most("entry", &self.entry, 63)?;
        at_most("model", self.model.as_deref().unwrap_or_default(), 128)
    }
}

/// Destination of a call, and its credential.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// Origin of the provider: `https://host` or `https://host:port`.
    pub origin: String,
    /// Protocol of the API.
    pub dialect: Dialect,
    /// Secret with the credential, in the pool's namespace. Unset: the call has no credential.
    #[serde(default)]
    pub credential: Option<String>,
    /// How the credential is sent. Unset: the dialect decides.
    #[serde(default)]
    pub credential_type: Option<String>,
}

/// A hold in the journal of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JournaledHold {
    /// Number of the hold in the session, from 1.
    pub id: u64,
    /// Time of the hold on the leader's clock, in milliseconds.
    pub at: i64,
    /// Nodes of the budget tree at which the hold counts, as the governor named them.
    pub path: Vec<String>,
    /// Tokens of input that the hold covers.
    pub input: i64,
    /// Tokens of output that the hold covers, all choices together.
    pub output: i64,
}

/// A settle that is not acknowledged yet, with the hold that it closes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JournaledSettle {
    /// The hold.
    pub open: JournaledHold,
    /// Usage of the call.
    pub usage: Usage,
    /// Quality of the usage.
    pub quality: Quality,
    /// How the call ended.
    #[serde(default)]
    pub end: CallEnd,
}

/// `POST /governor/v1/meter/begin`: a session begins or begins again, with everything that its gateway knows. Before,
/// the gateway must have accepted the leader's epoch, so that it no longer accepts a lower one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Begin {
    /// The session: the uid of the gateway's pod, or another unique value.
    pub session: String,
    /// Each hold with a smaller number that is not in `open` is closed, or was never answered and is never used.
    pub next_hold: u64,
    /// Number of the last settle that any leader acknowledged.
    pub acked: u64,
    /// The settles after it, in order. Their numbers are `acked + 1`, `acked + 2` and so on.
    pub settles: Vec<JournaledSettle>,
    /// Open holds.
    pub open: Vec<JournaledHold>,
    /// Settles that earlier leaders acknowledged in the last minutes, in order. Sent only to a leader whose store was rolled back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replayed: Vec<ReplayedSettle>,
}

/// A settle that a leader acknowledged and whose writes may be lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReplayedSettle {
    /// Number of the settle.
    pub seq: u64,
    /// Content of the settle.
    pub told: JournaledSettle,
}

impl BoundedBody for Begin {
    fn check(&self) -> Result<(), (&'static str, String)> {
        at_most("session", &self.session, 128)
    }
}

/// The answer to [`Begin`] and [`Settles`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MeterAck {
    /// Number of the last settle that is included in the stored status.
    pub acked: u64,
}

/// `POST /governor/v1/meter/hold`, for an agent: asks for tokens for one call, and for its destination. It can be
/// repeated: the same number gets the same hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Hold {
    /// The session.
    pub session: String,
    /// Number of the hold in the session, from 1. It is never used for two holds.
    pub id: u64,
    /// Model API and model of the call.
    pub way: ModelRoute,
    /// Facts about the cost of the call.
    pub facts: Facts,
}

impl BoundedBody for Hold {
    fn check(&self) -> Result<(), (&'static str, String)> {
        at_most("session", &self.session, 128)?;
        self.way.check()
    }
}

/// The answer to [`Hold`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HoldAnswer {
    /// The hold. It must be in the journal before the call is forwarded.
    pub open: JournaledHold,
    /// Output tokens of each choice. The call must have this limit or a lower one.
    pub output: i64,
    /// Destination of the call.
    pub target: Target,
    /// Seconds after which the first token of a stream is late. 0: it is never late.
    #[serde(default)]
    pub first_token_seconds: u32,
    /// Seconds after which the call ends with a time-out. 0: never.
    #[serde(default)]
    pub turn_seconds: u32,
    /// State of the tightest limit with this hold. Unset: no limit applies.
    #[serde(default)]
    pub room: Option<LimitRoom>,
}

/// `POST /governor/v1/meter/extend`: a stream has more output than its hold covers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Extend {
    /// The session.
    pub session: String,
    /// The hold.
    pub id: u64,
    /// Output tokens, all choices together, that the hold should cover.
    pub output: i64,
}

impl BoundedBody for Extend {
    fn check(&self) -> Result<(), (&'static str, String)> {
        at_most("session", &self.session, 128)
    }
}

/// The answer to [`Extend`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Extended {
    /// Output tokens, all choices together, that the hold covers now. If the extension was refused, this is not more
    /// than before. The call may finish in any case.
    pub output: i64,
}

/// `POST /governor/v1/meter/late`: the first token of a running call is late. It counts at once: otherwise a probe of
/// the provider would wait for the end of a call that has none. It is sent once, and the settle repeats it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LateFirstToken {
    /// The session.
    pub session: String,
    /// The hold.
    pub id: u64,
}

impl BoundedBody for LateFirstToken {
    fn check(&self) -> Result<(), (&'static str, String)> {
        at_most("session", &self.session, 128)
    }
}

/// The end of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settle {
    /// Number of the settle in the session, from 1, without gaps.
    pub seq: u64,
    /// Number of the hold.
    pub hold: u64,
    /// Usage of the call.
    pub usage: Usage,
    /// Quality of the usage.
    pub quality: Quality,
    /// Tokens of input that the hold covers, according to the journal. Usage that is not known exactly is charged by
    /// this number and by `output`, under every leader: a leader may remember an extension whose answer its gateway did
    /// not get.
    pub input: i64,
    /// Tokens of output that the hold covers. See `input`.
    pub output: i64,
    /// How the call ended.
    #[serde(default)]
    pub end: CallEnd,
    /// Model of the call. The ratio of tokens to bytes is learned from it and `bytes`.
    #[serde(default)]
    pub model: String,
    /// Bytes of text that were sent. 0: nothing is learned.
    #[serde(default)]
    pub bytes: i64,
}

/// `POST /governor/v1/meter/settle`: calls that ended, in order. Without any, it is a sign of life. It is sent at least
/// every 10 s.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settles {
    /// The session.
    pub session: String,
    /// The settles, in order of their numbers. At most [`MAX_SETTLES`].
    #[serde(default)]
    pub settles: Vec<Settle>,
    /// Each hold with a smaller number is closed, and its settle, if it had one, is acknowledged.
    pub floor: u64,
    /// Number of the last settle that the gateway knows to be acknowledged.
    pub confirmed: u64,
}

impl BoundedBody for Settles {
    fn check(&self) -> Result<(), (&'static str, String)> {
        at_most("session", &self.session, 128)?;
        let count = self.settles.len();
        if count <= MAX_SETTLES { Ok(()) } else { Err(("settles", format!("must have at most {MAX_SETTLES} entries, but has {count}"))) }
    }
}
