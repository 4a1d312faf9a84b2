//! The parts of a body that all dialects share: what a call asks for, where its output limit is, and which members are refused.
//!
//! The files of the dialects fill a [`Request`], and `call` uses it. So this file imports none of them, and it knows the members
//! of no single dialect.

use crate::Fault;
use crate::fields;
use crate::json_spans::{self, Node, Path};
use crate::route::MAX_MODEL_NAME_BYTES;

/// The members of a body that matter here, in the same terms for every dialect.
#[derive(Debug, Default)]
pub(crate) struct Request {
    pub model: String,
    pub stream: bool,
    pub output: Option<i64>,
    pub thinking: i64,
    pub choices: i64,
    /// Where the body has its output limits, or where they are inserted.
    pub limits: Vec<OutputLimit>,
    /// Edits that do not depend on the output limit.
    pub edits: Vec<BodyEdit>,
    /// Whether the answer has a chunk with usage that the client did not ask for.
    pub strips_usage_chunk: bool,
}

/// An output limit of the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OutputLimit {
    /// The body has it at `at..end`. `None` tokens: its value is null.
    Present { at: usize, end: usize, tokens: Option<i64> },
    /// The body does not have it. It is inserted at `at`, between `before` and `after`.
    Absent { at: usize, end: usize, before: String, after: &'static str },
}

/// A replacement of the bytes at `at..end` of the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BodyEdit {
    pub at: usize,
    pub end: usize,
    pub text: String,
}

/// Where a new first member of `object` is inserted, and the separator that follows it.
pub(crate) fn before_first_member(object: &Node<'_>) -> (usize, &'static str) {
    (object.at() + 1, if object.members().is_empty() { "" } else { "," })
}

impl OutputLimit {
    /// The limit that is the member `key` of `object`.
    pub fn of(object: &Node<'_>, key: &str, tokens: Option<i64>) -> Self {
        match object.member(key) {
            Some(node) => Self::Present { at: node.at(), end: node.end(), tokens },
            None => {
                let (at, after) = before_first_member(object);
                Self::Absent { at, end: at, before: format!("\"{key}\":"), after }
            }
        }
    }

    /// The edit that sets the limit to `most`. None: the body has a limit that is not higher.
    pub fn edit(&self, most: i64) -> Option<BodyEdit> {
        match self {
            Self::Present { tokens: Some(tokens), .. } if *tokens <= most => None,
            Self::Present { at, end, .. } => Some(BodyEdit { at: *at, end: *end, text: most.to_string() }),
            Self::Absent { at, end, before, after } => Some(BodyEdit { at: *at, end: *end, text: format!("{before}{most}{after}") }),
        }
    }
}

/// The model that a body names.
pub(crate) fn model_name(body: &Node<'_>) -> Result<String, Fault> {
    let at = Path::Root.key("model");
    let name = json_spans::text(body.get("model"), &at)?.ok_or_else(|| at.fault("the name of a model is required"))?;
    let plain = name.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\'));
    match name.len() {
        0 => Err(at.fault("the name of a model is required")),
        1..=MAX_MODEL_NAME_BYTES if plain && name.to_ascii_lowercase().ends_with(":online") => {
            Err(at
                .fault("the provider would search and read the results as input that Spillway cannot count. Remove :online from the name"))
        }
        1..=MAX_MODEL_NAME_BYTES if plain && name.contains("@preset/") => {
            Err(at.fault("a preset is input that the provider stores, and it may name another model. Use the name of the model itself"))
        }
        1..=MAX_MODEL_NAME_BYTES if plain => Ok(name.into_owned()),
        1..=MAX_MODEL_NAME_BYTES => Err(at.fault("must contain only visible ASCII characters, without double quotes and backslashes")),
        length => Err(at.fault(format_args!("must have at most {MAX_MODEL_NAME_BYTES} bytes, but has {length}"))),
    }
}

/// Members of a body that are read in a dialect other than Gemini.
const READ_MEMBERS: [&str; 21] = [
    "model",
    "messages",
    "input",
    "system",
    "tools",
    "tool_choice",
    "functions",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "n",
    "best_of",
    "thinking",
    "store",
    "modalities",
    "service_tier",
    "speed",
    "extra_body",
    "chat_template_kwargs",
];

/// Refuses each of these members of `body` that requests something, and the members that are refused in all dialects.
/// Also refuses a member that a server with case-insensitive names would read as a known or refused member.
pub(crate) fn refuse_members(body: &Node<'_>, refused: &[(&str, &str)]) -> Result<(), Fault> {
    let all = || refused.iter().chain(&fields::COMMON_REFUSED_MEMBERS);
    for member in body.members() {
        // To upper case first: some characters have an ASCII upper case and a lower case of their own.
        let folded = member.key.to_uppercase().to_lowercase();
        let exact = |name: &str| *name == *member.key;
        if folded != *member.key
            && !all().any(|(key, _)| exact(key))
            && (READ_MEMBERS.contains(&folded.as_str()) || all().any(|(key, _)| key.to_lowercase() == folded))
        {
            return Err(Path::Root
                .key(&member.key)
                .fault(format_args!("some servers read it as {folded}. Write {folded}, or remove the field")));
        }
    }
    match all().find(|(key, _)| body.get(key).is_some_and(|node| !node.is_empty())) {
        Some((key, why)) => Err(Path::Root.key(key).fault(why)),
        None => fields::check_restricted_members(body),
    }
}
