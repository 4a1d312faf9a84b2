//! An answer as events, before it becomes bytes: what all four protocols have in common. Pure.

use serde_json::{Map, Value};

use crate::ask::{Ask, Say, Tokens};
use crate::script::{Script, ScriptedSpeech};

/// One answer to one call.
pub struct ModelTurn<'a> {
    /// The call.
    pub ask: &'a Ask,
    /// What is said to it.
    pub say: &'a Say,
    /// What it costs.
    pub used: Tokens,
    /// What is told of that; nothing, or a lie, where the script says so.
    pub told: Option<Tokens>,
    /// Usage is told again and again.
    pub cumulative: bool,
    /// Number of the call, for identifiers.
    pub number: u64,
}

/// An event of a stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Event {
    /// Its name, where the protocol has names.
    pub name: Option<&'static str>,
    /// Its data.
    pub data: Value,
    /// Data that is no JSON, in its place.
    pub raw: Option<String>,
    /// What this much of the answer costs.
    pub charged: Tokens,
    /// What it tells of the cost, beyond what was told before.
    pub said: Tokens,
    /// It carries content.
    pub content: bool,
}

/// A stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stream {
    /// What comes before content. The first has the input's cost.
    pub head: Vec<Event>,
    /// Content, and what stands between it.
    pub content: Vec<Event>,
    /// What comes after it.
    pub tail: Vec<Event>,
    /// What an error in the stream looks like.
    pub error: Event,
}

impl ModelTurn<'_> {
    /// What is charged before any content: input, and thinking.
    #[must_use]
    pub fn at_first(&self) -> Tokens {
        Tokens { output: self.used.reasoning, reasoning: self.used.reasoning, ..self.used.without_output() }
    }

    /// What is charged for the whole of the call of a tool.
    #[must_use]
    pub fn for_call(&self) -> Tokens {
        Tokens::of_output(self.used.output - self.used.reasoning)
    }
}

/// What the script tells of the truth.
#[must_use]
pub fn told(used: Tokens, script: &Script) -> Option<Tokens> {
    match script.telling {
        ScriptedSpeech::True => Some(used),
        ScriptedSpeech::Nothing => None,
        ScriptedSpeech::Lie(number) => Some(Tokens { input: number, output: number, ..Tokens::default() }),
        // Fields that are there and hold no number.
        ScriptedSpeech::Odd => Some(Tokens::default()),
    }
}

/// Usage that grows: each time it is told, what is new in it.
#[derive(Default)]
pub struct Growing(Tokens);

impl Growing {
    /// What `now` says beyond what was said before.
    pub fn until(&mut self, now: &Tokens) -> Tokens {
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

/// Makes every number below `usage` something that is none, or is one that cannot be.
pub fn make_odd(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if matches!(name.as_str(), "usage" | "usageMetadata") { spoil(value) } else { make_odd(value) }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(make_odd),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn spoil(usage: &mut Value) {
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

/// What programs put before the words of a person stands in tags: surroundings, reminders, instructions.
#[must_use]
pub fn is_words(text: &str) -> bool {
    let text = text.trim_start();
    !text.is_empty() && !text.starts_with('<')
}
