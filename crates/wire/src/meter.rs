//! Between gateway and governor: tokens held for a model call before it is made, and what it used after it.
//!
//! A *session* is a gateway's pod. It numbers its holds and, without gaps, its settles, keeps both in its journal, and tells a
//! new leader all that the leader cannot know ([`Begin`]). Nothing here decides; the arithmetic is `policy::budget`'s.

use serde::{Deserialize, Serialize};

use crate::body::{BoundedBody, at_most};
use crate::shortage::LimitRoom;
use crate::work::LeaseRef as Lease;

/// Header on calls of models: the item that the program works on, `uid/epoch`, as the pod's sidecar knows it.
pub const ITEM_HEADER: &str = "spillway-item";
/// Header of an answer to a model call: the conversation that the call goes on with, as a number in hexadecimal. For the pod's sidecar
/// alone, which takes it off.
pub const CONVERSATION_HEADER: &str = "spillway-conversation";
/// The most bytes that [`Begin`] may have: it tells of every call in flight.
pub const MAX_BEGIN_BYTES: usize = 16 * 1024 * 1024;
/// The most settles in one call.
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

/// What a call says of its cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Facts {
    /// Bytes of text, tools and names among it.
    pub bytes: i64,
    /// Tokens of what is no text (images, files), by a table of upper bounds.
    #[serde(default)]
    pub other_tokens: i64,
    /// The output limit that it asks for, tokens a choice.
    #[serde(default)]
    pub output: Option<i64>,
    /// Tokens set aside for thinking; they count as output.
    #[serde(default)]
    pub thinking: i64,
    /// How many answers it asks for; 0 counts as 1.
    #[serde(default)]
    pub choices: i64,
}

/// What a call used, as the provider said, in tokens. The four add up to all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Usage {
    /// Input that no cache had.
    #[serde(default)]
    pub input: i64,
    /// Input that a cache had.
    #[serde(default)]
    pub cache_read: i64,
    /// Input written to a cache.
    #[serde(default)]
    pub cache_write: i64,
    /// Output, reasoning among it.
    #[serde(default)]
    pub output: i64,
}

/// How well a call's usage is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Quality {
    /// The provider said it.
    Exact,
    /// A part of it: the stream was cut. Charged with the estimate, or what is known if that is more.
    Partial,
    /// Nothing was said. Charged likewise.
    Estimated,
}

/// Why a call counts against its provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FaultCause {
    /// No connection, or no TLS.
    Unreachable,
    /// The connection broke before the answer was whole.
    Broken,
    /// The first token was late.
    Late,
    /// The answer stood still.
    Idle,
    /// This status.
    Status(u16),
    /// An error in the answer that is the provider's own.
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

/// What a call says of its provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// It answered to the end.
    Worked,
    /// It failed.
    #[serde(rename_all = "camelCase")]
    Failed {
        /// How.
        why: FaultCause,
        /// Seconds within which nobody should try again, if it says so.
        retry_after: Option<u32>,
    },
    /// Nothing: it refused the call for the call's own sake, the client left, or nothing was sent.
    Nothing,
}

/// How a call ended, beside what it used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CallEnd {
    /// What it says of its provider; unset: nobody will ever know.
    #[serde(default)]
    pub outcome: Option<Outcome>,
    /// It took longer than a model turn of its pool may, and its client was told so.
    #[serde(default)]
    pub timed_out: bool,
}

/// Which of its pool's model APIs an agent calls, and for what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelRoute {
    /// Name of the entry in the pool's `models`.
    pub entry: String,
    /// The protocol of the path that was called; unset for a path that all of them have (`HEAD /`).
    #[serde(default)]
    pub dialect: Option<Dialect>,
    /// The model; unset for a call that names none (a list of models).
    #[serde(default)]
    pub model: Option<String>,
    /// The item that the program works on, as the sidecar knows it.
    #[serde(default)]
    pub item: Option<Lease>,
}

impl BoundedBody for ModelRoute {
    fn check(&self) -> Result<(), (&'static str, String)> {
        at_most("entry", &self.entry, 63)?;
        at_most("model", self.model.as_deref().unwrap_or_default(), 128)
    }
}

/// Where a call goes, and with what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// The provider: `https://host` or `https://host:port`.
    pub origin: String,
    /// Its protocol.
    pub dialect: Dialect,
    /// The Secret with the credential, in the pool's namespace; unset: the call carries none.
    #[serde(default)]
    pub credential: Option<String>,
    /// How the credential is sent; unset: as the dialect does.
    #[serde(default)]
    pub credential_type: Option<String>,
}

/// A hold as a session's journal has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JournaledHold {
    /// Its number in the session, from 1.
    pub id: u64,
    /// When it was given, on the leader's clock, in milliseconds.
    pub at: i64,
    /// The places that it counts at, as the governor named them.
    pub path: Vec<String>,
    /// Tokens of input it was given for.
    pub input: i64,
    /// Tokens of output it was given for, all choices together.
    pub output: i64,
}

/// A settle that is not acknowledged yet, with the hold that it ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JournaledSettle {
    /// The hold.
    pub open: JournaledHold,
    /// What was used.
    pub usage: Usage,
    /// How well that is known.
    pub quality: Quality,
    /// How it ended otherwise.
    #[serde(default)]
    pub end: CallEnd,
}

/// `POST /governor/v1/meter/begin`: a session begins, here or again, with all that its gateway knows. Must come after the
/// gateway has taken the leader's epoch and believes no lower one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Begin {
    /// The session: the uid of the gateway's pod, or what is as unique.
    pub session: String,
    /// Every hold with a smaller number that is not in `open` is closed, or was never answered and never will be used.
    pub next_hold: u64,
    /// The last settle that was acknowledged, by whatever leader.
    pub acked: u64,
    /// Those after it, in order: their numbers are `acked + 1`, `acked + 2` and so on.
    pub settles: Vec<JournaledSettle>,
    /// What is open.
    pub open: Vec<JournaledHold>,
    /// Settles that earlier leaders acknowledged in the last minutes, in order. Sent only to a leader whose store was rolled back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replayed: Vec<ReplayedSettle>,
}

/// A settle that a leader acknowledged whose writes may be lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReplayedSettle {
    /// Its number.
    pub seq: u64,
    /// What it said.
    pub told: JournaledSettle,
}

impl BoundedBody for Begin {
    fn check(&self) -> Result<(), (&'static str, String)> {
        at_most("session", &self.session, 128)
    }
}

/// The answer to [`Begin`], [`Settles`] and [`Alive`](Settles).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MeterAck {
    /// The last settle that is contained in what is stored.
    pub acked: u64,
}

/// `POST /governor/v1/meter/hold`, for an agent: tokens for one call, and where it goes. It may be repeated: the same number
/// gets the same hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Hold {
    /// The session.
    pub session: String,
    /// The session's number of it, from 1, never used for two.
    pub id: u64,
    /// Where it goes.
    pub way: ModelRoute,
    /// What it says of its cost.
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
    /// The hold, for the journal, which must have it before the call is forwarded.
    pub open: JournaledHold,
    /// Output tokens of each choice: the call must carry this limit, or a lower one.
    pub output: i64,
    /// Where the call goes.
    pub target: Target,
    /// Seconds after which the first token of a stream is late; 0: it never is.
    #[serde(default)]
    pub first_token_seconds: u32,
    /// Seconds after which the client is told that it took too long; 0: never.
    #[serde(default)]
    pub turn_seconds: u32,
    /// How the tightest limit stands with this hold; unset where there is none.
    #[serde(default)]
    pub room: Option<LimitRoom>,
}

/// `POST /governor/v1/meter/extend`: a stream goes past what was held for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Extend {
    /// The session.
    pub session: String,
    /// The hold.
    pub id: u64,
    /// Output tokens, all choices together, that it shall cover.
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
    /// Output tokens, all choices together, that the hold covers now: not more than before where that was refused. The call
    /// may finish in any case.
    pub output: i64,
}

/// `POST /governor/v1/meter/late`: the first token of a call that goes on is late. It counts at once, or whoever tries whether a
/// provider works again would have to wait for the end of a call that has none. Told once; the settle says it again.
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
    /// The session's number of it, from 1, without gaps.
    pub seq: u64,
    /// Number of the hold.
    pub hold: u64,
    /// What was used.
    pub usage: Usage,
    /// How well that is known.
    pub quality: Quality,
    /// Tokens of input that the hold covers, by the journal; and of output. By this is charged what is not known exactly, whoever
    /// leads: a leader may remember an extension that its gateway never heard of.
    pub input: i64,
    /// See `input`.
    pub output: i64,
    /// How it ended otherwise.
    #[serde(default)]
    pub end: CallEnd,
    /// The model, and the bytes of text that were sent: what the ratio of tokens to bytes is learned from.
    #[serde(default)]
    pub model: String,
    /// See `model`; 0: nothing is learned.
    #[serde(default)]
    pub bytes: i64,
}

/// `POST /governor/v1/meter/settle`: calls that ended, in order; none: a sign of life. At least every 10 s.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settles {
    /// The session.
    pub session: String,
    /// The ends, in order of their numbers. At most [`MAX_SETTLES`].
    #[serde(default)]
    pub settles: Vec<Settle>,
    /// Every hold with a smaller number is over, and its settle, if it had one, is acknowledged.
    pub floor: u64,
    /// The last settle that is known to be acknowledged.
    pub confirmed: u64,
}

impl BoundedBody for Settles {
    fn check(&self) -> Result<(), (&'static str, String)> {
        at_most("session", &self.session, 128)?;
        let count = self.settles.len();
        if count <= MAX_SETTLES { Ok(()) } else { Err(("settles", format!("must have at most {MAX_SETTLES} entries, but has {count}"))) }
    }
}
