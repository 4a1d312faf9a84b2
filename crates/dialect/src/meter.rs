//! Meters an answer as it passes: forwards it to the client, and returns its usage. It never stops an answer: a part
//! that cannot be read is forwarded, and lowers the quality of the usage.
//!
//! Invariants: the client gets the provider's bytes, except for the one chunk of a Chat stream that it did not ask for
//! ([`Call::upstream_body`](crate::Call::upstream_body) asked for it). Memory is bounded for any answer.

use spillway_wire::meter::{Dialect, Quality, Usage};

use crate::call::Call;
use crate::chunks::TextPath;
use crate::route::Kind;
use crate::scan::{FoundValues, Scanner, ValuePath};
use crate::sse::{Data, Pass, Sse};
use crate::usage::UsageSoFar;
use crate::{anthropic, chat, gemini, outcome, responses};

/// The end mark of a stream of Chat and of some other APIs.
const STREAM_END_MARKER: &[u8] = b"[DONE]";
/// Bytes of an event that are kept for the comparison with the end mark.
const EVENT_HEAD_BYTES: usize = 16;

/// Reads an answer as it passes.
#[derive(Debug)]
pub struct Meter {
    shape: Shape,
    call_facts: CallFacts,
    reported: UsageSoFar,
}

#[derive(Debug)]
enum Shape {
    /// An answer without usage: a refusal, a list of models, a count.
    Unmetered,
    Events(Box<Sse>, Box<Event>),
    Json(Box<TextPath>),
}

/// The current event.
#[derive(Debug)]
struct Event {
    scanner: Scanner,
    head: Vec<u8>,
    /// Whether there is data after the end of its JSON value.
    has_trailing_data: bool,
}

/// The call that is answered.
#[derive(Clone, Copy, Debug)]
struct CallFacts {
    dialect: Dialect,
    choices: i64,
    strips_usage_chunk: bool,
}

impl Meter {
    /// Creates a meter for the answer to `call`, by its status and its `content-type`. The answer must not be
    /// compressed: ask the provider for `accept-encoding: identity`.
    pub fn new(call: &Call, status: u16, content_type: Option<&str>) -> Self {
        let of = CallFacts { dialect: call.dialect(), choices: call.choices(), strips_usage_chunk: call.strips_usage_chunk() };
        let events = content_type.is_some_and(|media| media.trim_start().to_ascii_lowercase().starts_with("text/event-stream"));
        let shape = match call.kind() {
            Kind::Generate if (200..300).contains(&status) => match events {
                true => {
                    let event = Event { scanner: Scanner::new(of.value_paths()), head: Vec::new(), has_trailing_data: false };
                    Shape::Events(Box::new(Sse::new(of.strips_usage_chunk)), Box::new(event))
                }
                false => Shape::Json(Box::new(TextPath::new(Scanner::new(of.value_paths())))),
            },
            // The call was refused before it was processed, or it is free.
            Kind::Generate | Kind::CountTokens | Kind::ListModels | Kind::Hello => Shape::Unmetered,
        };
        Self { shape, call_facts: of, reported: UsageSoFar::default() }
    }

    /// Reads the next bytes of the answer, and appends to `out` the bytes that the client gets now.
    pub fn feed(&mut self, chunk: &[u8], out: &mut Vec<u8>) {
        let Self { shape, call_facts: of, reported: seen } = self;
        match shape {
            Shape::Unmetered => out.extend_from_slice(chunk),
            Shape::Events(sse, event) => sse.feed(chunk, out, &mut EventReading { call_facts: *of, event, reported: seen }),
            Shape::Json(pieces) => {
                out.extend_from_slice(chunk);
                pieces.feed(chunk, &mut |piece| of.read_or_mark_invalid(piece, seen));
            }
        }
    }

    /// Lower bound of the output so far, all choices together, in tokens: the last number of the provider, and a
    /// minimum for the text since then. It exceeds the call's limit only if the provider does not respect the limit.
    /// Then the hold is extended.
    pub fn output_so_far(&self) -> i64 {
        self.reported.output_lower_bound()
    }

    /// Whether the answer so far contains an error, and whether it is the provider's own.
    pub fn error(&self) -> Option<bool> {
        self.reported.error
    }

    /// Ends the answer. `complete`: it ended properly, and not by a broken connection. Appends to `out` the bytes that
    /// were held back.
    pub fn end(self, complete: bool, out: &mut Vec<u8>) -> (Usage, Quality) {
        let Self { shape, call_facts: of, reported: mut seen } = self;
        match shape {
            Shape::Unmetered => return (Usage::default(), Quality::Exact),
            Shape::Events(mut sse, mut event) => {
                // An event that was cut off is not an event that could not be read.
                let before = seen.has_invalid_data;
                sse.end(out, &mut EventReading { call_facts: of, event: &mut event, reported: &mut seen });
                seen.has_invalid_data &= complete || before;
            }
            Shape::Json(pieces) => seen.has_invalid_data |= complete && !pieces.is_whole(),
        }
        seen.end(complete)
    }
}

/// The current event, and the state that it updates.
struct EventReading<'m> {
    call_facts: CallFacts,
    event: &'m mut Event,
    reported: &'m mut UsageSoFar,
}

impl Data for EventReading<'_> {
    fn part(&mut self, bytes: &[u8]) {
        let Event { scanner, head, has_trailing_data: rest } = &mut *self.event;
        let room = (EVENT_HEAD_BYTES + 1).saturating_sub(head.len());
        head.extend_from_slice(&bytes[..bytes.len().min(room)]);
        let read = scanner.feed(bytes);
        *rest |= !bytes[read..].trim_ascii().is_empty();
    }

    fn end(&mut self) -> Pass {
        let Event { scanner, head, has_trailing_data: rest } = &mut *self.event;
        scanner.end();
        let pass = if head.len() <= EVENT_HEAD_BYTES && head.trim_ascii() == STREAM_END_MARKER {
            self.reported.mark_stream_ended();
            Pass::Forward
        } else if scanner.has_ended() && !*rest {
            self.call_facts.read(scanner.notes(), self.reported)
        } else {
            self.reported.has_invalid_data = true;
            Pass::Forward
        };
        scanner.reset();
        head.clear();
        *rest = false;
        pass
    }
}

impl CallFacts {
    /// Paths of the values that are read.
    fn value_paths(&self) -> &'static [ValuePath] {
        match self.dialect {
            Dialect::Anthropic => anthropic::VALUE_PATHS,
            Dialect::OpenAIChat => chat::VALUE_PATHS,
            Dialect::OpenAIResponses => responses::VALUE_PATHS,
            Dialect::Gemini => gemini::VALUE_PATHS,
        }
    }

    fn read_or_mark_invalid(&self, piece: Option<&FoundValues>, seen: &mut UsageSoFar) {
        match piece {
            Some(piece) => {
                self.read(piece, seen);
            }
            None => seen.has_invalid_data = true,
        }
    }

    fn read(&self, notes: &FoundValues, seen: &mut UsageSoFar) -> Pass {
        // Only the first error counts.
        seen.error = seen.error.or_else(|| outcome::provider_error(notes));
        match self.dialect {
            Dialect::Anthropic => anthropic::event(notes, seen),
            Dialect::OpenAIChat => chat::event(notes, seen),
            Dialect::OpenAIResponses => responses::event(notes, seen),
            Dialect::Gemini => gemini::event(notes, self.choices, seen),
        }
        if self.strips_usage_chunk && self.dialect == Dialect::OpenAIChat && chat::is_extra_usage_chunk(notes) {
            Pass::Drop
        } else {
            Pass::Forward
        }
    }
}

#[cfg(test)]
#[path = "meter_properties.rs"]
mod properties;
#[cfg(test)]
#[path = "meter_tests.rs"]
mod tests;
