//! Parses JSON once and strictly, and keeps the position of every value. Therefore a body can be edited at two
//! positions, and all other bytes stay the client's own.
//!
//! This is not serde: edits need the positions, and two parsers that differ in a repeated key, an alias or data after
//! the end would let a call pass that was never counted. Invariants: text that is parsed here is JSON for every other
//! parser, no key occurs twice in an object, and memory and stack are bounded for any body.

mod reader;

use std::borrow::Cow;
use std::fmt;

use crate::Fault;

pub(crate) use reader::read_with_blanks;
use reader::unescape;
#[cfg(test)]
pub(crate) use reader::{MAX_JSON_VALUES, read};

/// Maximum number of answers of one call. It is the maximum of OpenAI.
const MAX_CHOICES: i64 = 128;

/// A value and its position `at..end` in the text.
#[derive(Clone, Debug)]
pub(crate) struct Node<'a> {
    at: u32,
    end: u32,
    pub value: Value<'a>,
}

#[derive(Clone, Debug)]
pub(crate) enum Value<'a> {
    Null,
    Bool(bool),
    Number(&'a str),
    Text(Text<'a>),
    List(Box<[Node<'a>]>),
    Object(Box<[Member<'a>]>),
}

#[derive(Clone, Debug)]
pub(crate) struct Member<'a> {
    pub key: Cow<'a, str>,
    pub node: Node<'a>,
}

/// A string, as it is between its quotes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text<'a> {
    pub raw: &'a str,
    escaped: bool,
}

impl<'a> Text<'a> {
    /// The string without escapes. A lone surrogate becomes U+FFFD.
    pub fn read(&self) -> Cow<'a, str> {
        if self.escaped { Cow::Owned(unescape(self.raw).0) } else { Cow::Borrowed(self.raw) }
    }
}

impl<'a> Node<'a> {
    /// Position of its first byte.
    pub fn at(&self) -> usize {
        self.at as usize
    }

    /// Position after its last byte.
    pub fn end(&self) -> usize {
        self.end as usize
    }

    /// The member `key` of an object, unless it is null. None if this is not an object.
    pub fn get(&self, key: &str) -> Option<&Node<'a>> {
        self.member(key).filter(|node| !matches!(node.value, Value::Null))
    }

    /// The member `key` of an object, also if it is null.
    pub fn member(&self, key: &str) -> Option<&Node<'a>> {
        self.members().iter().rev().find(|member| member.key == key).map(|member| &member.node)
    }

    /// The members of an object. Empty if this is not an object.
    pub fn members(&self) -> &[Member<'a>] {
        if let Value::Object(members) = &self.value { members } else { &[] }
    }

    /// The items of a list. Empty if this is not a list.
    pub fn items(&self) -> &[Node<'a>] {
        if let Value::List(items) = &self.value { items } else { &[] }
    }

    /// The text of a string.
    pub fn text(&self) -> Option<Cow<'a, str>> {
        if let Value::Text(text) = &self.value { Some(text.read()) } else { None }
    }

    /// Number of bytes of a string in the body. 0 if this is not a string.
    pub fn text_bytes(&self) -> usize {
        if let Value::Text(text) = &self.value { text.raw.len() } else { 0 }
    }

    /// The beginning of a string, with at most `most` bytes of the body. Empty if this is not a string.
    pub fn text_head(&self, most: usize) -> Cow<'a, str> {
        let Value::Text(text) = &self.value else { return Cow::Borrowed("") };
        let end = (0..=most.min(text.raw.len())).rev().find(|end| text.raw.is_char_boundary(*end)).unwrap_or_default();
        Text { raw: &text.raw[..end], escaped: text.escaped }.read()
    }

    /// Whether this is the string `word`.
    pub fn is(&self, word: &str) -> bool {
        self.text().is_some_and(|text| text == word)
    }

    /// Whether this is null, false, or an empty string or list. A field with such a value requests nothing. An empty
    /// object may request a feature with its defaults.
    pub fn is_empty(&self) -> bool {
        match &self.value {
            Value::Null | Value::Bool(false) => true,
            Value::Bool(true) | Value::Number(_) => false,
            Value::Text(text) => text.raw.is_empty(),
            Value::List(items) => items.is_empty(),
            Value::Object(_) => false,
        }
    }

    fn kind(&self) -> &'static str {
        match &self.value {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::Text(_) => "a string",
            Value::List(_) => "a list",
            Value::Object(_) => "an object",
        }
    }
}

/// Path of a value, for people: `messages[3].content`.
#[derive(Clone, Copy)]
pub(crate) enum Path<'p> {
    Root,
    Key(&'p Path<'p>, &'p str),
    Item(&'p Path<'p>, usize),
}

impl<'p> Path<'p> {
    pub fn key(&'p self, key: &'p str) -> Path<'p> {
        Path::Key(self, key)
    }

    pub fn item(&'p self, index: usize) -> Path<'p> {
        Path::Item(self, index)
    }

    /// A fault at this path.
    pub fn fault(&self, what: impl fmt::Display) -> Fault {
        Fault::at(self.to_string(), what)
    }

    fn expected(&self, what: &str, node: &Node<'_>) -> Fault {
        self.fault(format_args!("{what} is expected, not {}", node.kind()))
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Key(Path::Root, key) => out.write_str(key),
            Self::Key(of, key) => write!(out, "{of}.{key}"),
            Self::Item(of, index) => write!(out, "{of}[{index}]"),
        }
    }
}

/// A string, or none.
pub(crate) fn text<'a>(node: Option<&Node<'a>>, at: &Path<'_>) -> Result<Option<Cow<'a, str>>, Fault> {
    node.map(|node| node.text().ok_or_else(|| at.expected("a string", node))).transpose()
}

/// A boolean, or none.
pub(crate) fn boolean(node: Option<&Node<'_>>, at: &Path<'_>) -> Result<Option<bool>, Fault> {
    node.map(|node| if let Value::Bool(is) = node.value { Ok(is) } else { Err(at.expected("a boolean", node)) }).transpose()
}

/// An integer, or none.
pub(crate) fn integer(node: Option<&Node<'_>>, at: &Path<'_>) -> Result<Option<i64>, Fault> {
    let read = |node: &Node<'_>| match node.value {
        Value::Number(digits) => digits.parse().map_err(|_| at.fault(format_args!("an integer is expected, not {digits:.40}"))),
        Value::Null | Value::Bool(_) | Value::Text(_) | Value::List(_) | Value::Object(_) => Err(at.expected("an integer", node)),
    };
    node.map(read).transpose()
}

/// An integer that is at least `least`, or none.
pub(crate) fn count(node: Option<&Node<'_>>, at: &Path<'_>, least: i64) -> Result<Option<i64>, Fault> {
    match integer(node, at)? {
        Some(number) if number < least => Err(at.fault(format_args!("must be at least {least}, but is {number}"))),
        number => Ok(number),
    }
}

/// Number of requested answers, or none. A number above the maximum is refused, because the hold would cover too few
/// answers.
pub(crate) fn choices(node: Option<&Node<'_>>, at: &Path<'_>) -> Result<Option<i64>, Fault> {
    match count(node, at, 1)? {
        Some(number) if number > MAX_CHOICES => Err(at.fault(format_args!("must be at most {MAX_CHOICES}, but is {number}"))),
        number => Ok(number),
    }
}

/// An object, or none.
pub(crate) fn object<'n, 'a>(node: Option<&'n Node<'a>>, at: &Path<'_>) -> Result<Option<&'n Node<'a>>, Fault> {
    node.map(|node| if let Value::Object(_) = node.value { Ok(node) } else { Err(at.expected("an object", node)) }).transpose()
}

/// The items of a list. Empty if there is none.
pub(crate) fn list<'n, 'a>(node: Option<&'n Node<'a>>, at: &Path<'_>) -> Result<&'n [Node<'a>], Fault> {
    match node {
        Some(Node { value: Value::List(items), .. }) => Ok(items),
        Some(node) => Err(at.expected("a list", node)),
        None => Ok(&[]),
    }
}

#[cfg(test)]
#[path = "json_spans_tests.rs"]
mod tests;
