//! The four protocols of models, as far as one question and its answer need them, without streams and without tools. Pure.

use clap::ValueEnum;
use serde_json::{Value, json};

/// A protocol, with its name in `AgentPool.spec.models[].dialect`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Dialect {
    /// Anthropic Messages.
    #[value(name = "Anthropic")]
    Anthropic,
    /// OpenAI Chat Completions.
    #[value(name = "OpenAIChat")]
    OpenAIChat,
    /// OpenAI Responses.
    #[value(name = "OpenAIResponses")]
    OpenAIResponses,
    /// Gemini generateContent.
    #[value(name = "Gemini")]
    Gemini,
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The model wrote it. Otherwise it was sent to the model.
    pub by_model: bool,
    /// The text.
    pub text: String,
}

impl Message {
    /// A message to the model.
    pub fn from_user(text: String) -> Self {
        Self { by_model: false, text }
    }

    /// A message of the model.
    pub fn from_model(text: String) -> Self {
        Self { by_model: true, text }
    }
}

/// One question to a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// The path after the base URL.
    pub path: String,
    /// Headers besides the content type.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: Value,
}

impl Dialect {
    /// Dialects with their own variable for the base URL, in the order in which one is chosen if none is named.
    pub const WITH_OWN_BASE_URL: [Self; 3] = [Self::Anthropic, Self::OpenAIChat, Self::Gemini];

    /// The variables of the base URL and of the key.
    pub fn variables(self) -> (&'static str, &'static str) {
        match self {
            Self::Anthropic => ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"),
            Self::OpenAIChat | Self::OpenAIResponses => ("OPENAI_BASE_URL", "OPENAI_API_KEY"),
            Self::Gemini => ("GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY"),
        }
    }

    /// The request: `system` are the instructions, `messages` is the conversation.
    pub fn question(self, model: &str, key: &str, system: &str, messages: &[Message], max_output: u32) -> Question {
        let roles = |model: &'static str, text: fn(&str) -> (&'static str, Value)| -> Vec<Value> {
            let one = |message: &Message| {
                let (field, text) = text(&message.text);
                json!({"role": if message.by_model { model } else { "user" }, field: text})
            };
            messages.iter().map(one).collect()
        };
        let content: fn(&str) -> (&'static str, Value) = |text| ("content", json!(text));
        let bearer = || vec![("authorization", format!("Bearer {key}"))];
        match self {
            Self::Anthropic => Question {
                path: "/v1/messages".to_owned(),
                headers: vec![("x-api-key", key.to_owned()), ("anthropic-version", "2023-06-01".to_owned())],
                body: json!({"model": model, "max_tokens": max_output, "system": system, "messages": roles("assistant", content)}),
            },
            Self::OpenAIChat => {
                let mut messages = vec![json!({"role": "system", "content": system})];
                messages.extend(roles("assistant", content));
                let body = json!({"model": model, "max_completion_tokens": max_output, "messages": messages});
                Question { path: "/chat/completions".to_owned(), headers: bearer(), body }
            }
            Self::OpenAIResponses => {
                let input = roles("assistant", content);
                let body = json!({"model": model, "max_output_tokens": max_output, "instructions": system, "input": input, "store": false});
                Question { path: "/responses".to_owned(), headers: bearer(), body }
            }
            Self::Gemini => Question {
                path: format!("/v1beta/models/{model}:generateContent"),
                headers: vec![("x-goog-api-key", key.to_owned())],
                body: json!({
                    "systemInstruction": {"parts": [{"text": system}]},
                    "contents": roles("model", |text| ("parts", json!([{"text": text}]))),
                    "generationConfig": {"maxOutputTokens": max_output, "responseMimeType": "application/json"},
                }),
            },
        }
    }

    /// The text of an answer; `None` if it has no text.
    pub fn text(self, answer: &Value) -> Option<String> {
        let list = |value: &Value, name: &str| value.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
        let is = |value: &Value, type_: &str| value["type"] == type_;
        let parts: Vec<Value> = match self {
            Self::Anthropic => list(answer, "content").into_iter().filter(|part| is(part, "text")).collect(),
            Self::OpenAIChat => return answer.pointer("/choices/0/message/content").and_then(Value::as_str).map(str::to_owned),
            Self::OpenAIResponses => {
                let messages = list(answer, "output").into_iter().filter(|item| is(item, "message"));
                messages.flat_map(|item| list(&item, "content")).filter(|part| is(part, "output_text")).collect()
            }
            Self::Gemini => {
                let content = answer.pointer("/candidates/0/content").cloned().unwrap_or_default();
                list(&content, "parts").into_iter().filter(|part| part["thought"] != true).collect()
            }
        };
        let text: String = parts.iter().filter_map(|part| part["text"].as_str()).collect();
        (!text.is_empty()).then_some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasoning_and_an_empty_answer_are_no_text() {
        let cases = [
            (
                Dialect::Anthropic,
                json!({"content": [{"type": "thinking", "thinking": "x"}, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
            ),
            (Dialect::OpenAIChat, json!({"choices": [{"message": {"content": "ab"}}]})),
            (
                Dialect::OpenAIResponses,
                json!({"output": [{"type": "reasoning", "content": [{"type": "output_text", "text": "x"}]},
                {"type": "message", "content": [{"type": "output_text", "text": "ab"}]}]}),
            ),
            (Dialect::Gemini, json!({"candidates": [{"content": {"parts": [{"text": "x", "thought": true}, {"text": "ab"}]}}]})),
        ];
        for (dialect, answer) in cases {
            assert_eq!(dialect.text(&answer).as_deref(), Some("ab"), "{dialect:?}");
            assert_eq!(dialect.text(&json!({})), None, "{dialect:?}");
        }
    }
}
