//! A call as its body says it: what it may cost, and the body that is sent on.
//!
//! What always holds: what is sent is the client's body, byte for byte, but for the edits that are listed in
//! [`Call::upstream`]; so what was counted is what is sent.

use spillway_wire::meter::{Dialect, Facts};
use spillway_wire::{Code, Refusal};

use crate::media::Found;
use crate::route::{Kind, MODEL_LENGTH, Route};
use crate::strict::{self, Node, Path};
use crate::{anthropic, chat, conversation, fields, gemini, responses};

/// Why a body is not passed: for a 400 in its dialect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What is wrong and what to do, with the field's path in front.
    pub message: String,
    /// The field, as a path: `tools[2].type`.
    pub field: Option<String>,
}

impl Fault {
    pub(crate) fn at(field: String, what: impl std::fmt::Display) -> Self {
        Self { message: format!("{field}: {what}"), field: Some(field) }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.message)
    }
}

impl std::error::Error for Fault {}

impl From<Fault> for Refusal {
    fn from(Fault { message, field }: Fault) -> Self {
        Self { field, ..Self::new(Code::InvalidBody, message) }
    }
}

/// What one dialect reads out of a body.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    pub model: String,
    pub stream: bool,
    pub output: Option<i64>,
    pub thinking: i64,
    pub choices: i64,
    /// Where limits of output stand, or would stand.
    pub limits: Vec<Limit>,
    /// What is changed whatever the limit is.
    pub edits: Vec<Edit>,
    /// A chunk with usage that the client did not ask for will come.
    pub strip: bool,
}

/// A place of the body where the output limit stands or goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// It stands at `at..end`, unless it is null there.
    Stands { at: usize, end: usize, tokens: Option<i64> },
    /// It goes to `at`, between `before` and `after`.
    Goes { at: usize, end: usize, before: String, after: &'static str },
}

/// Other bytes at `at..end`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Edit {
    pub at: usize,
    pub end: usize,
    pub text: String,
}

/// What stands before a new first member of `object`: where, and what stands after it.
pub(crate) fn first_of(object: &Node<'_>) -> (usize, &'static str) {
    (object.at() + 1, if object.members().is_empty() { "" } else { "," })
}

impl Limit {
    /// The member `key` of `object`: where it stands, or would.
    pub fn of(object: &Node<'_>, key: &str, tokens: Option<i64>) -> Self {
        match object.member(key) {
            Some(node) => Self::Stands { at: node.at(), end: node.end(), tokens },
            None => {
                let (at, after) = first_of(object);
                Self::Goes { at, end: at, before: format!("\"{key}\":"), after }
            }
        }
    }

    fn edit(&self, most: i64) -> Option<Edit> {
        match self {
            Self::Stands { tokens: Some(tokens), .. } if *tokens <= most => None,
            Self::Stands { at, end, .. } => Some(Edit { at: *at, end: *end, text: most.to_string() }),
            Self::Goes { at, end, before, after } => Some(Edit { at: *at, end: *end, text: format!("{before}{most}{after}") }),
        }
    }
}

/// A call of a model's API that was read and may be held for and sent.
#[derive(Debug)]
pub struct Call {
    dialect: Dialect,
    kind: Kind,
    asked: Asked,
    facts: Facts,
    charges: Vec<fields::Charge>,
    conversation: Option<u64>,
    body: Vec<u8>,
}

/// Reads a body strictly: JSON in UTF-8, not compressed, no key twice in an object, the fields that matter of their types,
/// nothing that brings tokens which do not stand in it. For [`Kind::ListModels`] and [`Kind::Hello`] the body must be empty.
///
/// # Errors
/// A fault for a 400 in the dialect.
pub fn parse(route: &Route, content_type: Option<&str>, content_encoding: Option<&str>, body: impl Into<Vec<u8>>) -> Result<Call, Fault> {
    let body = body.into();
    let dialect = match (route.kind, route.dialect) {
        (Kind::Generate | Kind::CountTokens, Some(dialect)) => dialect,
        (Kind::ListModels | Kind::Hello, _) | (Kind::Generate | Kind::CountTokens, None) => return bodiless(route, &body),
    };
    plain(content_type, content_encoding)?;
    let fault = |what: String| Fault::at("(body)".to_owned(), what);
    let text = std::str::from_utf8(&body).map_err(|error| fault(format!("no UTF-8 at byte {}", error.valid_up_to())))?;
    let (node, blanks) = strict::read_with_blanks(text)?;
    strict::object(Some(&node), &Path::Root).map_err(|error| fault(error.message.trim_start_matches(": ").to_owned()))?;
    let mut found = Found::default();
    let asked = match dialect {
        Dialect::Anthropic => anthropic::read(&node, &mut found)?,
        Dialect::OpenAIChat => chat::read(&node, &mut found)?,
        Dialect::OpenAIResponses => responses::read(&node, text, &mut found)?,
        Dialect::Gemini => gemini::read(&node, route.model.as_deref().unwrap_or_default(), &mut found)?,
    };
    let asked = Asked { stream: route.stream.unwrap_or(asked.stream), ..asked };
    let facts = Facts {
        bytes: i64::try_from(body.len().saturating_sub(found.hidden + blanks)).unwrap_or(i64::MAX),
        other_tokens: found.tokens(),
        output: asked.output,
        thinking: asked.thinking,
        choices: asked.choices,
    };
    let charges = match dialect {
        Dialect::Anthropic | Dialect::OpenAIChat | Dialect::Gemini => fields::Charge::of(&node, true),
        // Kept unless it is told otherwise: who says so asks for nothing more.
        Dialect::OpenAIResponses => fields::Charge::of(&node, false),
    };
    let conversation = conversation::of(dialect, &node);
    drop(node);
    Ok(Call { dialect, kind: route.kind, asked, facts, charges, conversation, body })
}

fn bodiless(route: &Route, body: &[u8]) -> Result<Call, Fault> {
    if !body.is_empty() {
        return Err(Fault::at("(body)".to_owned(), "this call has none"));
    }
    // Of several dialects: any of them, for nothing of the call depends on it.
    let dialect = route.dialect.unwrap_or(Dialect::OpenAIChat);
    let asked = Asked { model: route.model.clone().unwrap_or_default(), ..Asked::default() };
    Ok(Call { dialect, kind: route.kind, asked, facts: Facts::default(), charges: Vec::new(), conversation: None, body: Vec::new() })
}

/// JSON, in UTF-8, as it stands.
fn plain(content_type: Option<&str>, content_encoding: Option<&str>) -> Result<(), Fault> {
    if let Some(encoding) = content_encoding
        && encoding.split(',').any(|part| !matches!(part.trim().to_ascii_lowercase().as_str(), "" | "identity"))
    {
        return Err(Fault::at("content-encoding".to_owned(), format_args!("{encoding:.40} is not read: send the body uncompressed")));
    }
    let Some(content_type) = content_type else { return Ok(()) };
    let mut parts = content_type.split(';').map(|part| part.trim().to_ascii_lowercase());
    let media = parts.next().unwrap_or_default();
    if media != "application/json" {
        return Err(Fault::at("content-type".to_owned(), format_args!("application/json is expected, not {media:.80}")));
    }
    for part in parts.filter(|part| part.starts_with("charset")) {
        let charset = part.strip_prefix("charset=").map(|charset| charset.trim_matches('"'));
        if !charset.is_some_and(|charset| matches!(charset, "utf-8" | "utf8" | "us-ascii")) {
            return Err(Fault::at("content-type".to_owned(), format_args!("{part:.40} is not read: send UTF-8")));
        }
    }
    Ok(())
}

/// The model that a body names.
pub(crate) fn model(body: &Node<'_>) -> Result<String, Fault> {
    let at = Path::Root.key("model");
    let name = strict::text(body.get("model"), &at)?.ok_or_else(|| at.fault("a model must be named"))?;
    let plain = name.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\'));
    match name.len() {
        0 => Err(at.fault("a model must be named")),
        1..=MODEL_LENGTH if plain && name.to_ascii_lowercase().ends_with(":online") => {
            Err(at.fault("the provider would search and read what it finds as input that nobody here can count: leave :online out"))
        }
        1..=MODEL_LENGTH if plain && name.contains("@preset/") => {
            Err(at.fault("a preset is input that the provider keeps, and may name another model: name the model itself"))
        }
        1..=MODEL_LENGTH if plain => Ok(name.into_owned()),
        1..=MODEL_LENGTH => Err(at.fault("no name of a model: it has spaces, quotes or other signs")),
        length => Err(at.fault(format_args!("{length} bytes; a model's name has at most {MODEL_LENGTH}"))),
    }
}

/// Members of a body that are read, in any of the dialects but Gemini.
const READ: [&str; 21] = [
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

/// Refuses each of these members of `body` that asks for something, those that are refused in all dialects, and what a server
/// that takes small and capital letters for the same would read as a member that is read or refused here.
pub(crate) fn none_of(body: &Node<'_>, refused: &[(&str, &str)]) -> Result<(), Fault> {
    let all = || refused.iter().chain(&fields::REFUSED);
    for member in body.members() {
        // To capitals first: some signs have a capital in ASCII and are small letters of their own.
        let folded = member.key.to_uppercase().to_lowercase();
        let exact = |name: &str| *name == *member.key;
        if folded != *member.key
            && !all().any(|(key, _)| exact(key))
            && (READ.contains(&folded.as_str()) || all().any(|(key, _)| key.to_lowercase() == folded))
        {
            return Err(Path::Root.key(&member.key).fault(format_args!("some servers read it as {folded}: spell it so, or leave it out")));
        }
    }
    match all().find(|(key, _)| body.get(key).is_some_and(|node| !node.is_empty())) {
        Some((key, why)) => Err(Path::Root.key(key).fault(why)),
        None => fields::check(body),
    }
}

impl Call {
    /// The protocol; of a call that several have, any.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// What is asked for.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The model; empty for a list of models.
    pub fn model(&self) -> &str {
        &self.asked.model
    }

    /// The conversation that it goes on with, as a number that all calls of it have; none: that cannot be told.
    pub fn conversation(&self) -> Option<u64> {
        self.conversation
    }

    /// Whether the answer is asked for as a stream.
    pub fn stream(&self) -> bool {
        self.asked.stream
    }

    /// What it says of its cost. Matters for [`Kind::Generate`].
    pub fn facts(&self) -> Facts {
        self.facts
    }

    /// Fails if it asks for something that costs money which its tokens do not show, unless `allows` has the field
    /// ([`CHARGED`](crate::CHARGED) names them).
    ///
    /// # Errors
    /// A fault for a 400 in the dialect.
    pub fn costs_what_it_says(&self, allows: impl Fn(&str) -> bool) -> Result<(), Fault> {
        match self.charges.iter().find(|charge| !allows(charge.field)) {
            Some(charge) => Err(charge.fault.clone()),
            None => Ok(()),
        }
    }

    /// The client's bytes, as they stand.
    pub fn into_body(self) -> Vec<u8> {
        self.body
    }

    pub(crate) fn choices(&self) -> i64 {
        self.asked.choices.max(1)
    }

    pub(crate) fn strips(&self) -> bool {
        self.asked.strip
    }

    /// The body to send: the client's bytes, with these edits and no others:
    /// - the output limit, where it is above `output_per_choice`, is null or is not there;
    /// - `stream_options.include_usage: true` in a streamed Chat call;
    /// - offered web search and image generation taken out of `tools` of a Responses call;
    /// - the `id` of an item of a Responses call that stands for what the provider kept of it.
    pub fn upstream(&self, output_per_choice: i64) -> Vec<u8> {
        match self.kind {
            Kind::Generate => {}
            Kind::CountTokens | Kind::ListModels | Kind::Hello => return self.body.clone(),
        }
        let mut edits: Vec<Edit> = self.asked.limits.iter().filter_map(|limit| limit.edit(output_per_choice.max(1))).collect();
        edits.extend(self.asked.edits.iter().cloned());
        edits.sort_by_key(|edit| edit.at);
        let mut sent = Vec::with_capacity(self.body.len() + 128);
        let mut from = 0;
        for Edit { at, end, text } in edits {
            sent.extend_from_slice(&self.body[from..at]);
            sent.extend_from_slice(text.as_bytes());
            from = end;
        }
        sent.extend_from_slice(&self.body[from..]);
        sent
    }
}

#[cfg(test)]
#[path = "call_tests.rs"]
mod tests;
