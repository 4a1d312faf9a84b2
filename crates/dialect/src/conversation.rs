//! The number of the conversation to which a call belongs. Calls of one conversation begin with the same messages of
//! the user, up to the first message of the model.
//!
//! Clients of all dialects send the whole conversation with each call and append to its end. Therefore its beginning
//! identifies it, until the client rewrites the beginning (for instance when it replaces messages by a summary). Only
//! text counts: marks for a provider's cache move from call to call, and a string may become a list with one part. The
//! number is not a secret and proves nothing.

use spillway_wire::meter::Dialect;

use crate::json_spans::{Node, Value};

/// An odd number with bits all over: its products spread each bit of a word upwards.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// A hash of eight bytes at a time, because first messages have 100 KiB and more. It is the same in every build.
struct Hash(u64);

impl Hash {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn feed(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
            // Rotation brings the high bits back to where the next product spreads them.
            self.0 = (self.0.rotate_left(23) ^ u64::from_le_bytes(word)).wrapping_mul(SPREAD);
        }
    }

    /// Hashes the text of a message, and returns its number of bytes.
    fn hash_text(&mut self, content: &Node<'_>) -> usize {
        match &content.value {
            Value::Text(text) => {
                self.feed(text.raw.as_bytes());
                text.raw.len()
            }
            Value::List(parts) => parts.iter().filter_map(|part| part.get("text")).map(|text| self.hash_text(text)).sum(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => 0,
        }
    }

    /// Hashes a message with an end mark, so that two short messages differ from one longer message.
    fn hash_message(&mut self, content: &Node<'_>) -> usize {
        let bytes = self.hash_text(content);
        // The length tells a short last word from one that ends with zeros.
        self.feed(&bytes.to_le_bytes());
        bytes
    }
}

/// The number of a call's conversation. None: the call does not begin with text of a user.
pub(crate) fn conversation_hash(dialect: Dialect, body: &Node<'_>) -> Option<u64> {
    let mut hash = Hash::new();
    let (list, content) = match dialect {
        Dialect::Anthropic | Dialect::OpenAIChat => (body.get("messages")?, "content"),
        Dialect::OpenAIResponses => (body.get("input")?, "content"),
        Dialect::Gemini => (body.get("contents")?, "parts"),
    };
    // Responses accepts a string instead of one message of the user.
    if list.text_bytes() > 0 {
        hash.hash_message(list);
        return Some(hash.0);
    }
    let mut bytes = 0;
    for message in list.items() {
        // The client's own instructions may change with each call.
        if message.get("role").is_some_and(|role| role.is("system") || role.is("developer")) {
            continue;
        }
        let by_user = message.get("role").is_none_or(|role| role.is("user")) && message.get("type").is_none_or(|kind| kind.is("message"));
        if !by_user {
            break;
        }
        bytes += message.get(content).map_or(0, |content| hash.hash_message(content));
    }
    (bytes > 0).then_some(hash.0)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::json_spans::read;

    fn number(dialect: Dialect, body: &Value) -> Option<u64> {
        let text = body.to_string();
        conversation_hash(dialect, &read(&text).expect("JSON"))
    }

    #[test]
    fn a_conversation_that_grows_stays_the_same_in_each_dialect() {
        let part = |text: &str| json!([{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]);
        let cases = [
            (
                Dialect::Anthropic,
                json!({"messages": [{"role": "user", "content": part("fix it")}], "system": "it is noon"}),
                json!({"messages": [{"role": "user", "content": "fix it"}, {"role": "assistant", "content": part("I look")},
                    {"role": "user", "content": part("and that")}], "system": "it is one"}),
                json!({"messages": [{"role": "user", "content": "fix that"}]}),
            ),
            (
                Dialect::OpenAIChat,
                json!({"messages": [{"role": "system", "content": "it is noon"}, {"role": "user", "content": "fix it"}]}),
                json!({"messages": [{"role": "system", "content": "it is one"}, {"role": "user", "content": "fix it"},
                    {"role": "assistant", "tool_calls": []}, {"role": "tool", "content": "done"}]}),
                json!({"messages": [{"role": "user", "content": "fix"}, {"role": "user", "content": " it"}]}),
            ),
            (
                Dialect::OpenAIResponses,
                json!({"input": [{"role": "developer", "content": "x"}, {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "fix it"}]}]}),
                json!({"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "fix it"}]},
                    {"type": "reasoning", "summary": []}, {"type": "function_call_output", "output": "done"},
                    {"role": "user", "content": "and that"}]}),
                json!({"input": [{"role": "user", "content": "fix that"}]}),
            ),
            (
                Dialect::Gemini,
                json!({"contents": [{"parts": [{"text": "fix it"}]}]}),
                json!({"contents": [{"role": "user", "parts": [{"text": "fix it"}]}, {"role": "model", "parts": [{"text": "I look"}]}]}),
                json!({"contents": [{"role": "user", "parts": [{"text": "fix that"}]}]}),
            ),
        ];
        for (dialect, first, later, other) in cases {
            let found = number(dialect, &first);
            assert!(found.is_some() && found == number(dialect, &later), "{dialect:?}");
            assert_ne!(found, number(dialect, &other), "{dialect:?}");
        }
        assert_eq!(
            number(Dialect::OpenAIResponses, &json!({"input": "fix it"})),
            number(Dialect::OpenAIResponses, &json!({"input": [{"role": "user", "content": "fix it"}]}))
        );
    }

    #[test]
    fn each_byte_of_the_first_message_counts() {
        let of = |text: &str| number(Dialect::OpenAIChat, &json!({"messages": [{"role": "user", "content": text}]}));
        let text: String = "0123456789".repeat(4);
        let numbers: Vec<_> = (0..=text.len()).map(|at| of(&format!("{}~{}", &text[..at], &text[at..]))).collect();
        let distinct: std::collections::BTreeSet<_> = numbers.iter().collect();
        assert_eq!(distinct.len(), numbers.len());
        assert_ne!(of(&text), of(&text[..text.len() - 1]));
    }

    #[test]
    fn a_call_without_words_of_a_user_is_of_no_conversation() {
        for body in [
            json!({}),
            json!({"messages": []}),
            json!({"messages": [{"role": "assistant", "content": "x"}]}),
            json!({"messages": [{"role": "user", "content": [{"type": "image"}]}]}),
        ] {
            assert_eq!(number(Dialect::Anthropic, &body), None, "{body}");
        }
        assert_eq!(number(Dialect::OpenAIResponses, &json!({"input": ""})), None);
    }
}
