//! A parsed call: the facts for its budget, and the body that is sent on.
//!
//! Invariant: the body that is sent is the client's body, byte for byte, except for the edits in the list of
//! [`Call::upstream_body`]. Therefore exactly the counted body is sent.

use spillway_wire::meter::{Dialect, Facts};

use crate::Fault;
use crate::json_spans::{self, Path};
use crate::media::MediaTally;
use crate::request::{BodyEdit, Request};
use crate::route::{Kind, Route};
use crate::{anthropic, chat, conversation, fields, gemini, responses};

/// A call of a model API that was parsed and checked.
#[derive(Debug)]
pub struct Call {
    dialect: Dialect,
    kind: Kind,
    request: Request,
    facts: Facts,
    charges: Vec<fields::Charge>,
    conversation: Option<u64>,
    body: Vec<u8>,
}

/// Parses a body strictly: JSON in UTF-8, not compressed, no key twice in an object, known fields of their types, and
/// no reference to input outside the body. For [`Kind::ListModels`] and [`Kind::Hello`] the body must be empty.
///
/// # Errors
/// A fault for a 400 in the dialect.
pub fn parse(route: &Route, content_type: Option<&str>, content_encoding: Option<&str>, body: impl Into<Vec<u8>>) -> Result<Call, Fault> {
    let body = body.into();
    let dialect = match (route.kind, route.dialect) {
        (Kind::Generate | Kind::CountTokens, Some(dialect)) => dialect,
        (Kind::ListModels | Kind::Hello, _) | (Kind::Generate | Kind::CountTokens, None) => return parse_without_body(route, &body),
    };
    check_encoding(content_type, content_encoding)?;
    let fault = |what: String| Fault::at("(body)".to_owned(), what);
    let text = std::str::from_utf8(&body).map_err(|error| fault(format!("the body is not valid UTF-8 at byte {}", error.valid_up_to())))?;
    let (node, blanks) = json_spans::read_with_blanks(text)?;
    json_spans::object(Some(&node), &Path::Root).map_err(|error| fault(error.message.trim_start_matches(": ").to_owned()))?;
    let mut found = MediaTally::default();
    let request = match dialect {
        Dialect::Anthropic => anthropic::read(&node, &mut found)?,
        Dialect::OpenAIChat => chat::read(&node, &mut found)?,
        Dialect::OpenAIResponses => responses::read(&node, text, &mut found)?,
        Dialect::Gemini => gemini::read(&node, route.model.as_deref().unwrap_or_default(), &mut found)?,
    };
    let request = Request { stream: route.stream.unwrap_or(request.stream), ..request };
    let facts = Facts {
        bytes: i64::try_from(body.len().saturating_sub(found.media_bytes + blanks)).unwrap_or(i64::MAX),
        other_tokens: found.tokens(),
        output: request.output,
        thinking: request.thinking,
        choices: request.choices,
    };
    let charges = match dialect {
        Dialect::Anthropic | Dialect::OpenAIChat | Dialect::Gemini => fields::Charge::of(&node, true),
        // Responses stores the answer by default, so `store: true` asks for nothing more.
        Dialect::OpenAIResponses => fields::Charge::of(&node, false),
    };
    let conversation = conversation::conversation_hash(dialect, &node);
    drop(node);
    Ok(Call { dialect, kind: route.kind, request, facts, charges, conversation, body })
}

fn parse_without_body(route: &Route, body: &[u8]) -> Result<Call, Fault> {
    if !body.is_empty() {
        return Err(Fault::at("(body)".to_owned(), "must be empty for this call"));
    }
    // A call without a body is the same in all dialects, so any of them will do.
    let dialect = route.dialect.unwrap_or(Dialect::OpenAIChat);
    let request = Request { model: route.model.clone().unwrap_or_default(), ..Request::default() };
    Ok(Call { dialect, kind: route.kind, request, facts: Facts::default(), charges: Vec::new(), conversation: None, body: Vec::new() })
}

/// Checks that the body is uncompressed JSON in UTF-8.
fn check_encoding(content_type: Option<&str>, content_encoding: Option<&str>) -> Result<(), Fault> {
    if let Some(encoding) = content_encoding
        && encoding.split(',').any(|part| !matches!(part.trim().to_ascii_lowercase().as_str(), "" | "identity"))
    {
        return Err(Fault::at("content-encoding".to_owned(), format_args!("{encoding:.40} is not supported. Send the body uncompressed")));
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
            return Err(Fault::at("content-type".to_owned(), format_args!("{part:.40} is not supported. Send the body in UTF-8")));
        }
    }
    Ok(())
}

impl Call {
    /// Dialect of the call. For a call that several dialects share, any of them.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Kind of the call.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Model of the call. It is empty for a list of models.
    pub fn model(&self) -> &str {
        &self.request.model
    }

    /// Number of the conversation, which is the same in all its calls. None: the conversation is unknown.
    pub fn conversation(&self) -> Option<u64> {
        self.conversation
    }

    /// Whether the call asks for a stream.
    pub fn stream(&self) -> bool {
        self.request.stream
    }

    /// Facts about the cost of the call. They matter for [`Kind::Generate`].
    pub fn facts(&self) -> Facts {
        self.facts
    }

    /// Checks that the call costs no more than its tokens show. A surcharge by a field of
    /// [`SURCHARGE_MEMBERS`](crate::SURCHARGE_MEMBERS) is an error unless `allows` returns true for the field.
    ///
    /// # Errors
    /// A fault for a 400 in the dialect.
    pub fn check_surcharges(&self, allows: impl Fn(&str) -> bool) -> Result<(), Fault> {
        match self.charges.iter().find(|charge| !allows(charge.field)) {
            Some(charge) => Err(charge.fault.clone()),
            None => Ok(()),
        }
    }

    /// The client's body, unchanged.
    pub fn into_body(self) -> Vec<u8> {
        self.body
    }

    pub(crate) fn choices(&self) -> i64 {
        self.request.choices.max(1)
    }

    pub(crate) fn strips_usage_chunk(&self) -> bool {
        self.request.strips_usage_chunk
    }

    /// The body to send: the client's body with only these edits:
    /// - The output limit is set if it is above `output_per_choice`, null or missing.
    /// - A streamed Chat call gets `stream_options.include_usage: true`.
    /// - Web search and image generation are removed from `tools` of a Responses call.
    /// - The `id` of an item of a Responses call is removed if it refers to data stored by the provider.
    pub fn upstream_body(&self, output_per_choice: i64) -> Vec<u8> {
        match self.kind {
            Kind::Generate => {}
            Kind::CountTokens | Kind::ListModels | Kind::Hello => return self.body.clone(),
        }
        let mut edits: Vec<BodyEdit> = self.request.limits.iter().filter_map(|limit| limit.edit(output_per_choice.max(1))).collect();
        edits.extend(self.request.edits.iter().cloned());
        edits.sort_by_key(|edit| edit.at);
        let mut sent = Vec::with_capacity(self.body.len() + 128);
        let mut from = 0;
        for BodyEdit { at, end, text } in edits {
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
