//! Credentials that a program prints, or an agent guesses: they are taken out of answers and of the audit log. Pure.
//!
//! Only the value as it is, and its lines, are found, and their parts where an output was cut. A program that writes a credential in another
//! form tells it.

use std::collections::BTreeMap;

use serde_json::Value;

/// A shorter text is no credential that can be told from others, and is not looked for.
pub const MIN_SECRET_BYTES: usize = 6;

/// The texts to take out.
#[derive(Clone, Default)]
pub struct Secrets(Vec<(String, String)>);

impl Secrets {
    /// Those of these credentials, by name: each value, and each line of a value with several.
    pub fn new(credentials: &BTreeMap<String, String>) -> Self {
        let mut secrets = Vec::new();
        for (name, value) in credentials {
            let texts = std::iter::once(value.as_str()).chain(value.lines()).map(str::trim);
            secrets
                .extend(texts.filter(|text| text.len() >= MIN_SECRET_BYTES).map(|text| (text.to_owned(), format!("[credential {name}]"))));
        }
        Self(secrets).sorted()
    }

    /// These and others.
    pub fn and(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self.sorted()
    }

    /// A whole value is taken out before its lines are.
    fn sorted(mut self) -> Self {
        self.0.sort_by(|(one, _), (other, _)| other.len().cmp(&one.len()).then_with(|| one.cmp(other)));
        self.0.dedup();
        self
    }

    /// The text without them.
    pub fn remove(&self, text: String) -> String {
        self.0.iter().fold(text, |text, (secret, name)| if text.contains(secret) { text.replace(secret, name) } else { text })
    }

    /// The two parts of an output of which the middle is missing, without them. At the cut, the beginning of one at the end of the first
    /// part, and the end of one at the beginning of the second, are taken out too: a part of a credential is one to guess from.
    pub fn remove_around_cut(&self, begin: String, end: String) -> (String, String) {
        let (mut begin, mut end) = (self.remove(begin), self.remove(end));
        let prefix = |text: &str, secret: &str| prefixes(secret).find(|length| text.ends_with(&secret[..*length]));
        let suffix = |text: &str, secret: &str| suffixes(secret).find(|from| text.starts_with(&secret[*from..]));
        if let Some((length, name)) = self.0.iter().filter_map(|(secret, name)| Some((prefix(&begin, secret)?, name))).max() {
            begin.truncate(begin.len() - length);
            begin.push_str(name);
        }
        let at_begin = self.0.iter().filter_map(|(secret, name)| Some((secret.len() - suffix(&end, secret)?, name)));
        if let Some((length, name)) = at_begin.max() {
            end.replace_range(..length, name);
        }
        (begin, end)
    }

    /// The value without them, in its texts. Names of members are left.
    pub fn remove_from(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.remove(text)),
            Value::Array(values) => Value::Array(values.into_iter().map(|value| self.remove_from(value)).collect()),
            Value::Object(members) => Value::Object(members.into_iter().map(|(name, value)| (name, self.remove_from(value))).collect()),
            other => other,
        }
    }
}

/// The lengths of the beginnings of a text, the longest first.
fn prefixes(text: &str) -> impl Iterator<Item = usize> {
    (1..text.len()).rev().filter(|length| text.is_char_boundary(*length))
}

/// Where the ends of a text begin, the longest first.
fn suffixes(text: &str) -> impl Iterator<Item = usize> {
    (1..text.len()).filter(|from| text.is_char_boundary(*from))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_part_of_a_credential_is_left_where_an_output_was_cut() {
        let secret = "ghp_ABCDEFGHIJKLMNOP";
        let secrets = Secrets::new(&[("token".to_owned(), secret.to_owned())].into());
        for cut in 1..secret.len() {
            for left_out in 0..=(secret.len() - cut) {
                let (begin, end) = (format!("x {}", &secret[..cut]), format!("{} y", &secret[cut + left_out..]));
                let (begin, end) = secrets.remove_around_cut(begin, end);
                let left: String = secret.chars().filter(|one| begin.contains(*one) && one.is_ascii_uppercase()).collect();
                assert!(begin == "x [credential token]" && left.is_empty(), "{begin}");
                assert!(end == "[credential token] y" || end == " y", "{cut} {left_out}: {end}");
            }
        }
        assert_eq!(secrets.remove_around_cut("plain".into(), "text".into()), ("plain".into(), "text".into()));
    }

    #[test]
    fn a_credential_is_replaced_by_its_name() {
        let credentials = [("token", "s3cret-token"), ("key", "-----BEGIN-----\nabcdefgh\n-----END-----\n"), ("short", "ab")];
        let secrets = Secrets::new(&credentials.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
        let removed = |text: &str| secrets.remove(text.to_owned());
        assert_eq!(removed("x s3cret-token s3cret-token"), "x [credential token] [credential token]");
        assert_eq!(removed("line abcdefgh alone"), "line [credential key] alone");
        assert_eq!(removed("-----BEGIN-----\nabcdefgh\n-----END-----\n"), "[credential key]\n");
        assert_eq!(removed("ab and nothing"), "ab and nothing", "too short to be told from others");
        let value = json!({"a": ["s3cret-token", 1], "b": {"c": "xs3cret-tokenx"}});
        assert_eq!(secrets.remove_from(value), json!({"a": ["[credential token]", 1], "b": {"c": "x[credential token]x"}}));
    }
}
