//! An answer as events, before it becomes bytes: the part that all four protocols share. Pure.

use serde_json::{Map, Value};

use crate::ask::{Ask, Say, Tokens};
use crate::script::{Script, ScriptedSpeech};

/// One answer to one call.
pub struct ModelTurn<'a> {
    /// The call.
    pub ask: &'a Ask,
    /// The model's answer.
    pub say: &'a Say,
    /// Its tokens.
    pub used: Tokens,
    /// The tokens that are reported. A mode can omit or falsify them.
    pub reported: Option<Tokens>,
    /// Whether usage is reported repeatedly.
    pub cumulative: bool,
    /// Number of the call, for identifiers.
    pub number: u64,
}

/// An event of a stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Event {
    /// Its name, in protocols with names for events.
    pub name: Option<&'static str>,
    /// Its data.
    pub data: Value,
    /// Data that is not JSON and replaces `data`.
    pub raw: Option<String>,
    /// Tokens that are charged for this event.
    pub charged: Tokens,
    /// Tokens that it reports in addition to earlier events.
    pub reported: Tokens,
    /// Whether it carries content.
    pub content: bool,
}

/// A stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stream {
    /// Events before content. The first one is charged with the input.
    pub head: Vec<Event>,
    /// Content, and the events between it.
    pub content: Vec<Event>,
    /// Events after content.
    pub tail: Vec<Event>,
    /// The event of an error in the stream.
    pub error: Event,
}

impl ModelTurn<'_> {
    /// Tokens that are charged before any content: input and thinking.
    #[must_use]
    pub fn charged_before_content(&self) -> Tokens {
        Tokens { output: self.used.reasoning, reasoning: self.used.reasoning, ..self.used.without_output() }
    }

    /// Tokens that are charged for the whole tool call.
    #[must_use]
    pub fn for_call(&self) -> Tokens {
        Tokens::of_output(self.used.output - self.used.reasoning)
    }
}

/// The reported usage for the real one, by the script.
#[must_use]
pub fn reported_usage(used: Tokens, script: &Script) -> Option<Tokens> {
    match script.reported_usage {
        ScriptedSpeech::True => Some(used),
        ScriptedSpeech::Nothing => None,
        ScriptedSpeech::Lie(number) => Some(Tokens { input: number, output: number, ..Tokens::default() }),
        // The fields are sent. `make_odd` then replaces their numbers.
        ScriptedSpeech::Odd => Some(Tokens::default()),
    }
}

/// Usage that grows. Each report adds the new part.
#[derive(Default)]
pub struct Growing(Tokens);

impl Growing {
    /// The part of `now` that was not reported before.
    pub fn take_increase(&mut self, now: &Tokens) -> Tokens {
        let new = Tokens {
            input: now.input.saturating_sub(self.0.input),
            cache_read: now.cache_read.saturating_sub(self.0.cache_read),
            cache_write: now.cache_write.saturating_sub(self.0.cache_write),
            output: now.output.saturating_sub(self.0.output),
            reasoning: now.reasoning.saturating_sub(self.0.reasoning),
        };
        self.0 = *now;
        new
    }
}

/// Puts `value` into an object under `name`, if there is one.
pub fn put(object: &mut Value, name: &str, value: Option<Value>) {
    if let (Some(object), Some(value)) = (object.as_object_mut(), value) {
        object.insert(name.to_owned(), value);
    }
}

/// Replaces every number below `usage` by an invalid one, or by a value that is no number.
pub fn make_odd(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if matches!(name.as_str(), "usage" | "usageMetadata") { invalidate_numbers(value) } else { make_odd(value) }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(make_odd),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn invalidate_numbers(usage: &mut Value) {
    let Some(fields) = usage.as_object_mut() else { return };
    let odd = [Value::from(-5), Value::from("12"), Value::from(1e300), Value::Null, Value::from(1.5), Value::Object(Map::new())];
    for (value, odd) in fields.values_mut().zip(odd.into_iter().cycle()) {
        *value = odd;
    }
}

/// A field of `value`, as text.
#[must_use]
pub fn string<'a>(value: &'a Value, name: &str) -> Option<&'a str> {
    value.get(name).and_then(Value::as_str)
}

/// The items of a list in `value`, or none.
pub fn list<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    value.get(name).and_then(Value::as_array).into_iter().flatten()
}

/// Whether a text has a person's words. Clients put surroundings, reminders and instructions into tags before these.
#[must_use]
pub fn is_person_text(text: &str) -> bool {
    let text = text.trim_start();
    !text.is_empty() && !text.starts_with('<')
}
