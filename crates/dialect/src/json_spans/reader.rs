//! The parser: reads the values of a text, strictly and within bounds. It does not know what the values mean.

use std::borrow::Cow;
use std::fmt;

use super::{Member, Node, Text, Value};
use crate::Fault;

/// Maximum nesting depth. It is the same as in serde_json.
const MAX_JSON_DEPTH: usize = 128;
/// Maximum number of values: a body of brackets only must not need a hundred times its size. A full context window of a
/// long conversation with tools has a third of this number.
pub(crate) const MAX_JSON_VALUES: usize = 100_000;
/// An object with more keys is searched for repeated keys with a set.
const KEY_SET_THRESHOLD: usize = 16;
/// Bytes of a string that are checked at a time.
pub(super) const STRING_CHUNK_BYTES: usize = 32;

/// Why a text is refused: the position, as far as it is known, and the error.
#[derive(Debug)]
pub(crate) struct JsonError {
    /// Steps of the path, innermost first.
    steps: Vec<String>,
    what: String,
}

impl From<JsonError> for Fault {
    fn from(JsonError { steps, what }: JsonError) -> Self {
        let mut path = String::new();
        for step in steps.iter().rev() {
            if !path.is_empty() && !step.starts_with('[') {
                path.push('.');
            }
            path.push_str(step);
        }
        let path = if path.is_empty() { "(body)".to_owned() } else { path };
        Fault::at(path, what)
    }
}

/// Parses one value, which must be the whole text.
#[cfg(test)]
pub(crate) fn read(text: &str) -> Result<Node<'_>, JsonError> {
    read_with_blanks(text).map(|(node, _)| node)
}

/// Parses one value, which must be the whole text. Also returns the number of bytes of white space between values.
pub(crate) fn read_with_blanks(text: &str) -> Result<(Node<'_>, usize), JsonError> {
    let mut reader = Reader { text, bytes: text.as_bytes(), at: 0, values: 0, blanks: 0 };
    if u32::try_from(text.len()).is_err() {
        return Err(reader.error_here("the body has more than 4 GiB"));
    }
    let node = reader.value(0)?;
    reader.skip_blanks();
    if reader.at < reader.bytes.len() {
        Err(reader.error_here("there is data after the end of the JSON value"))
    } else {
        Ok((node, reader.blanks))
    }
}

struct Reader<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    values: usize,
    blanks: usize,
}

impl<'a> Reader<'a> {
    fn error_here(&self, what: impl fmt::Display) -> JsonError {
        JsonError { steps: Vec::new(), what: format!("{what} (byte {})", self.at) }
    }

    fn next(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn skip_blanks(&mut self) {
        while matches!(self.next(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
            self.blanks += 1;
        }
    }

    /// Skips the next byte if it is `byte`, and returns whether it was.
    fn skip_if_next(&mut self, byte: u8) -> bool {
        let is = self.next() == Some(byte);
        self.at += usize::from(is);
        is
    }

    fn value(&mut self, depth: usize) -> Result<Node<'a>, JsonError> {
        self.skip_blanks();
        self.values += 1;
        if self.values > MAX_JSON_VALUES {
            return Err(self.error_here(format_args!("the body has more than {MAX_JSON_VALUES} values")));
        }
        if depth >= MAX_JSON_DEPTH {
            return Err(self.error_here(format_args!("the body is nested deeper than {MAX_JSON_DEPTH} levels")));
        }
        let at = self.at;
        let value = match self.next() {
            Some(b'{') => Value::Object(self.object(depth)?),
            Some(b'[') => Value::List(self.list(depth)?),
            Some(b'"') => Value::Text(self.string()?),
            Some(b't') => self.word("true", Value::Bool(true))?,
            Some(b'f') => self.word("false", Value::Bool(false))?,
            Some(b'n') => self.word("null", Value::Null)?,
            Some(b'-' | b'0'..=b'9') => Value::Number(self.number()?),
            Some(_) => return Err(self.error_here("this is not a JSON value")),
            None => return Err(self.error_here("the body ends before its JSON value is complete")),
        };
        Ok(Node { at: place(at), end: place(self.at), value })
    }

    fn word(&mut self, word: &str, value: Value<'a>) -> Result<Value<'a>, JsonError> {
        if !self.bytes[self.at..].starts_with(word.as_bytes()) {
            return Err(self.error_here("this is not a JSON value"));
        }
        self.at += word.len();
        Ok(value)
    }

    fn object(&mut self, depth: usize) -> Result<Box<[Member<'a>]>, JsonError> {
        self.at += 1;
        let mut members: Vec<Member<'a>> = Vec::new();
        self.skip_blanks();
        if self.skip_if_next(b'}') {
            return Ok(Box::default());
        }
        loop {
            self.skip_blanks();
            if self.next() != Some(b'"') {
                return Err(self.error_here("a key in quotes is expected"));
            }
            let key = self.key()?;
            self.skip_blanks();
            if !self.skip_if_next(b':') {
                return Err(self.error_here("a colon is expected"));
            }
            let node = self.value(depth + 1).map_err(|mut trouble| {
                trouble.steps.push(key.chars().take(64).collect());
                trouble
            })?;
            members.push(Member { key, node });
            self.skip_blanks();
            if self.skip_if_next(b'}') {
                break;
            }
            if !self.skip_if_next(b',') {
                return Err(self.error_here("a comma or a closing brace is expected"));
            }
        }
        if let Some(key) = repeated_key(&members) {
            let step = key.chars().take(64).collect();
            return Err(JsonError { steps: vec![step], ..self.error_here("the key occurs twice in its object") });
        }
        Ok(members.into_boxed_slice())
    }

    fn list(&mut self, depth: usize) -> Result<Box<[Node<'a>]>, JsonError> {
        self.at += 1;
        let mut items = Vec::new();
        self.skip_blanks();
        if self.skip_if_next(b']') {
            return Ok(Box::default());
        }
        loop {
            let item = self.value(depth + 1).map_err(|mut trouble| {
                trouble.steps.push(format!("[{}]", items.len()));
                trouble
            })?;
            items.push(item);
            self.skip_blanks();
            if self.skip_if_next(b']') {
                break;
            }
            if !self.skip_if_next(b',') {
                return Err(self.error_here("a comma or a closing bracket is expected"));
            }
        }
        Ok(items.into_boxed_slice())
    }

    fn key(&mut self) -> Result<Cow<'a, str>, JsonError> {
        let text = self.string()?;
        if !text.escaped {
            return Ok(Cow::Borrowed(text.raw));
        }
        // Parsers differ in how they read an unpaired surrogate: the provider could read another key.
        match unescape(text.raw) {
            (key, true) => Ok(Cow::Owned(key)),
            (_, false) => Err(self.error_here("the key contains an unpaired surrogate")),
        }
    }

    fn string(&mut self) -> Result<Text<'a>, JsonError> {
        let start = self.at + 1;
        let mut escaped = false;
        self.at = start;
        loop {
            // Most bytes of a large body are in strings. Therefore a whole chunk is checked at once, without an early
            // exit.
            let special = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..0x20);
            let none = |chunk: &&[u8]| !chunk.iter().fold(false, |found, byte| found | special(byte));
            self.at += STRING_CHUNK_BYTES * self.bytes[self.at..].chunks_exact(STRING_CHUNK_BYTES).take_while(none).count();
            let plain = self.bytes[self.at..].iter().position(special);
            self.at = plain.map_or(self.bytes.len(), |plain| self.at + plain);
            match self.next() {
                Some(b'"') => break,
                Some(b'\\') => {
                    escaped = true;
                    self.escape()?;
                }
                Some(_) => return Err(self.error_here("a string contains an unescaped control character")),
                None => return Err(self.error_here("the body ends inside a string")),
            }
        }
        self.at += 1;
        Ok(Text { raw: &self.text[start..self.at - 1], escaped })
    }

    fn escape(&mut self) -> Result<(), JsonError> {
        match self.bytes.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 2,
            Some(b'u') if self.bytes.get(self.at + 2..self.at + 6).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)) => self.at += 6,
            Some(_) | None => return Err(self.error_here("a string contains an invalid escape")),
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        while matches!(self.next(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == start { Err(self.error_here("a digit is expected")) } else { Ok(()) }
    }

    fn number(&mut self) -> Result<&'a str, JsonError> {
        let start = self.at;
        self.skip_if_next(b'-');
        if !self.skip_if_next(b'0') {
            self.digits()?;
        }
        if self.skip_if_next(b'.') {
            self.digits()?;
        }
        if self.skip_if_next(b'e') || self.skip_if_next(b'E') {
            if !self.skip_if_next(b'+') {
                self.skip_if_next(b'-');
            }
            self.digits()?;
        }
        Ok(&self.text[start..self.at])
    }
}

/// A position in a text of at most 4 GiB.
fn place(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

/// Returns a key that occurs twice.
fn repeated_key<'m>(members: &'m [Member<'_>]) -> Option<&'m str> {
    if members.len() <= KEY_SET_THRESHOLD {
        let twice = |(index, member): &(usize, &Member<'_>)| members[..*index].iter().any(|other| other.key == member.key);
        return members.iter().enumerate().find(twice).map(|(_, member)| member.key.as_ref());
    }
    let mut seen = std::collections::HashSet::with_capacity(members.len());
    members.iter().map(|member| member.key.as_ref()).find(|key| !seen.insert(*key))
}

/// Returns a string without escapes, and whether it has no lone surrogates.
pub(super) fn unescape(raw: &str) -> (String, bool) {
    let (mut out, mut whole, mut rest) = (String::with_capacity(raw.len()), true, raw);
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let code = rest.as_bytes().get(at + 1).copied().unwrap_or(b'\\');
        rest = rest.get(at + 2..).unwrap_or_default();
        match code {
            b'b' => out.push('\u{8}'),
            b'f' => out.push('\u{c}'),
            b'n' => out.push('\n'),
            b'r' => out.push('\r'),
            b't' => out.push('\t'),
            b'u' => {
                let first = hex(rest);
                rest = rest.get(4..).unwrap_or_default();
                let second = if (0xd800..0xdc00).contains(&first) { rest.strip_prefix("\\u").map(hex) } else { None };
                let code = match second {
                    Some(second @ 0xdc00..0xe000) => {
                        rest = rest.get(6..).unwrap_or_default();
                        0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)
                    }
                    Some(_) | None => first,
                };
                whole &= char::from_u32(code).is_some();
                out.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            other => out.push(char::from(other)),
        }
    }
    out.push_str(rest);
    (out, whole)
}

fn hex(text: &str) -> u32 {
    text.get(..4).and_then(|digits| u32::from_str_radix(digits, 16).ok()).unwrap_or(0xfffd)
}
