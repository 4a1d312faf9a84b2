//! Reading JSON once and strictly, with the place of every value, so that a body can be changed at two places and stays the
//! client's own bytes everywhere else.
//!
//! Not serde: two readers of a body that differ in a repeated key, an alias or a rest behind the end would let a call be sent
//! that was never counted, and edits need the places. What always holds: what is read here is JSON for every other reader, no
//! key stands twice in an object, and memory and stack are bounded whatever the body is.

use std::borrow::Cow;
use std::fmt;

use crate::Fault;

/// The deepest nesting; what serde_json takes too.
const DEPTH: usize = 128;
/// The most values: a body of nothing but brackets must not cost a hundred times its size. A full context window of a long
/// conversation with tools has a third of it.
pub(crate) const VALUES: usize = 100_000;
/// The most answers of one call; what OpenAI gives.
const CHOICES: i64 = 128;
/// Objects with more keys are searched for repeated ones by a set.
const FEW: usize = 16;
/// Bytes of a string that are looked at together.
const CHUNK: usize = 32;

/// A value and where it stands: `at..end` in the text.
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

/// A string as it stands between its quotes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text<'a> {
    pub raw: &'a str,
    escaped: bool,
}

impl<'a> Text<'a> {
    /// What it says. A lone surrogate reads as U+FFFD.
    pub fn read(&self) -> Cow<'a, str> {
        if self.escaped { Cow::Owned(unescape(self.raw).0) } else { Cow::Borrowed(self.raw) }
    }
}

impl<'a> Node<'a> {
    /// Where it begins.
    pub fn at(&self) -> usize {
        self.at as usize
    }

    /// Where it ends.
    pub fn end(&self) -> usize {
        self.end as usize
    }

    /// The member of that name, unless it is null; nothing of what is no object.
    pub fn get(&self, key: &str) -> Option<&Node<'a>> {
        self.member(key).filter(|node| !matches!(node.value, Value::Null))
    }

    /// The member of that name, null or not.
    pub fn member(&self, key: &str) -> Option<&Node<'a>> {
        self.members().iter().rev().find(|member| member.key == key).map(|member| &member.node)
    }

    /// The members of an object; none of what is no object.
    pub fn members(&self) -> &[Member<'a>] {
        if let Value::Object(members) = &self.value { members } else { &[] }
    }

    /// The items of a list; none of what is no list.
    pub fn items(&self) -> &[Node<'a>] {
        if let Value::List(items) = &self.value { items } else { &[] }
    }

    /// What a string says.
    pub fn text(&self) -> Option<Cow<'a, str>> {
        if let Value::Text(text) = &self.value { Some(text.read()) } else { None }
    }

    /// Bytes of a string as it stands in the body; 0 of what is none.
    pub fn text_bytes(&self) -> usize {
        if let Value::Text(text) = &self.value { text.raw.len() } else { 0 }
    }

    /// What a string begins with, of at most so many bytes as they stand in the body; nothing of what is none.
    pub fn text_head(&self, most: usize) -> Cow<'a, str> {
        let Value::Text(text) = &self.value else { return Cow::Borrowed("") };
        let end = (0..=most.min(text.raw.len())).rev().find(|end| text.raw.is_char_boundary(*end)).unwrap_or_default();
        Text { raw: &text.raw[..end], escaped: text.escaped }.read()
    }

    /// Whether it is the string `word`.
    pub fn is(&self, word: &str) -> bool {
        self.text().is_some_and(|text| text == word)
    }

    /// Null, false, an empty string or list: a field that is sent so asks for nothing. An empty object may ask for a thing
    /// with all its defaults.
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

/// Where a value stands, for people: `messages[3].content`.
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

    /// A fault at this place.
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

/// A string, or nothing.
pub(crate) fn text<'a>(node: Option<&Node<'a>>, at: &Path<'_>) -> Result<Option<Cow<'a, str>>, Fault> {
    node.map(|node| node.text().ok_or_else(|| at.expected("a string", node))).transpose()
}

/// A boolean, or nothing.
pub(crate) fn boolean(node: Option<&Node<'_>>, at: &Path<'_>) -> Result<Option<bool>, Fault> {
    node.map(|node| if let Value::Bool(is) = node.value { Ok(is) } else { Err(at.expected("a boolean", node)) }).transpose()
}

/// An integer, or nothing.
pub(crate) fn integer(node: Option<&Node<'_>>, at: &Path<'_>) -> Result<Option<i64>, Fault> {
    let read = |node: &Node<'_>| match node.value {
        Value::Number(digits) => digits.parse().map_err(|_| at.fault(format_args!("an integer is expected, not {digits:.40}"))),
        Value::Null | Value::Bool(_) | Value::Text(_) | Value::List(_) | Value::Object(_) => Err(at.expected("an integer", node)),
    };
    node.map(read).transpose()
}

/// An integer that is not below `least`, or nothing.
pub(crate) fn count(node: Option<&Node<'_>>, at: &Path<'_>, least: i64) -> Result<Option<i64>, Fault> {
    match integer(node, at)? {
        Some(number) if number < least => Err(at.fault(format_args!("{number} is less than {least}"))),
        number => Ok(number),
    }
}

/// How many answers are asked for, or nothing. More than any provider gives would be held for as fewer.
pub(crate) fn choices(node: Option<&Node<'_>>, at: &Path<'_>) -> Result<Option<i64>, Fault> {
    match count(node, at, 1)? {
        Some(number) if number > CHOICES => Err(at.fault(format_args!("{number} is more than {CHOICES}"))),
        number => Ok(number),
    }
}

/// An object, or nothing.
pub(crate) fn object<'n, 'a>(node: Option<&'n Node<'a>>, at: &Path<'_>) -> Result<Option<&'n Node<'a>>, Fault> {
    node.map(|node| if let Value::Object(_) = node.value { Ok(node) } else { Err(at.expected("an object", node)) }).transpose()
}

/// The items of a list; none of nothing.
pub(crate) fn list<'n, 'a>(node: Option<&'n Node<'a>>, at: &Path<'_>) -> Result<&'n [Node<'a>], Fault> {
    match node {
        Some(Node { value: Value::List(items), .. }) => Ok(items),
        Some(node) => Err(at.expected("a list", node)),
        None => Ok(&[]),
    }
}

/// Why a text is not read: where, as far as it is known, and what is wrong.
#[derive(Debug)]
pub(crate) struct JsonError {
    /// From the inside out.
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

/// Reads one value, which must be all of the text.
#[cfg(test)]
pub(crate) fn read(text: &str) -> Result<Node<'_>, JsonError> {
    read_with_blanks(text).map(|(node, _)| node)
}

/// Reads one value, which must be all of the text; with the bytes of white space between values, which say nothing to anybody.
pub(crate) fn read_with_blanks(text: &str) -> Result<(Node<'_>, usize), JsonError> {
    let mut reader = Reader { text, bytes: text.as_bytes(), at: 0, values: 0, blanks: 0 };
    if u32::try_from(text.len()).is_err() {
        return Err(reader.wrong("the body has more than 4 GiB"));
    }
    let node = reader.value(0)?;
    reader.blank();
    if reader.at < reader.bytes.len() { Err(reader.wrong("something stands after the end of the body")) } else { Ok((node, reader.blanks)) }
}

struct Reader<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    values: usize,
    blanks: usize,
}

impl<'a> Reader<'a> {
    fn wrong(&self, what: impl fmt::Display) -> JsonError {
        JsonError { steps: Vec::new(), what: format!("{what} (byte {})", self.at) }
    }

    fn next(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn blank(&mut self) {
        while matches!(self.next(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
            self.blanks += 1;
        }
    }

    /// Takes `byte` if it is next.
    fn takes(&mut self, byte: u8) -> bool {
        let is = self.next() == Some(byte);
        self.at += usize::from(is);
        is
    }

    fn value(&mut self, depth: usize) -> Result<Node<'a>, JsonError> {
        self.blank();
        self.values += 1;
        if self.values > VALUES {
            return Err(self.wrong(format_args!("more than {VALUES} values")));
        }
        if depth >= DEPTH {
            return Err(self.wrong(format_args!("nested deeper than {DEPTH}")));
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
            Some(_) => return Err(self.wrong("no JSON value")),
            None => return Err(self.wrong("the body ends in the middle")),
        };
        Ok(Node { at: place(at), end: place(self.at), value })
    }

    fn word(&mut self, word: &str, value: Value<'a>) -> Result<Value<'a>, JsonError> {
        if !self.bytes[self.at..].starts_with(word.as_bytes()) {
            return Err(self.wrong("no JSON value"));
        }
        self.at += word.len();
        Ok(value)
    }

    fn object(&mut self, depth: usize) -> Result<Box<[Member<'a>]>, JsonError> {
        self.at += 1;
        let mut members: Vec<Member<'a>> = Vec::new();
        self.blank();
        if self.takes(b'}') {
            return Ok(Box::default());
        }
        loop {
            self.blank();
            if self.next() != Some(b'"') {
                return Err(self.wrong("a key in quotes is expected"));
            }
            let key = self.key()?;
            self.blank();
            if !self.takes(b':') {
                return Err(self.wrong("a colon is expected"));
            }
            let node = self.value(depth + 1).map_err(|mut trouble| {
                trouble.steps.push(key.chars().take(64).collect());
                trouble
            })?;
            members.push(Member { key, node });
            self.blank();
            if self.takes(b'}') {
                break;
            }
            if !self.takes(b',') {
                return Err(self.wrong("a comma or a closing brace is expected"));
            }
        }
        if let Some(key) = repeated(&members) {
            let step = key.chars().take(64).collect();
            return Err(JsonError { steps: vec![step], ..self.wrong("the key stands twice in its object") });
        }
        Ok(members.into_boxed_slice())
    }

    fn list(&mut self, depth: usize) -> Result<Box<[Node<'a>]>, JsonError> {
        self.at += 1;
        let mut items = Vec::new();
        self.blank();
        if self.takes(b']') {
            return Ok(Box::default());
        }
        loop {
            let item = self.value(depth + 1).map_err(|mut trouble| {
                trouble.steps.push(format!("[{}]", items.len()));
                trouble
            })?;
            items.push(item);
            self.blank();
            if self.takes(b']') {
                break;
            }
            if !self.takes(b',') {
                return Err(self.wrong("a comma or a closing bracket is expected"));
            }
        }
        Ok(items.into_boxed_slice())
    }

    fn key(&mut self) -> Result<Cow<'a, str>, JsonError> {
        let text = self.string()?;
        if !text.escaped {
            return Ok(Cow::Borrowed(text.raw));
        }
        // Readers differ in what half a character is: a key of it could be another one for the provider.
        match unescape(text.raw) {
            (key, true) => Ok(Cow::Owned(key)),
            (_, false) => Err(self.wrong("a key with half a character")),
        }
    }

    fn string(&mut self) -> Result<Text<'a>, JsonError> {
        let start = self.at + 1;
        let mut escaped = false;
        self.at = start;
        loop {
            // Most of a large body is here: a chunk is looked at together, without an early end.
            let special = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..0x20);
            let none = |chunk: &&[u8]| !chunk.iter().fold(false, |found, byte| found | special(byte));
            self.at += CHUNK * self.bytes[self.at..].chunks_exact(CHUNK).take_while(none).count();
            let plain = self.bytes[self.at..].iter().position(special);
            self.at = plain.map_or(self.bytes.len(), |plain| self.at + plain);
            match self.next() {
                Some(b'"') => break,
                Some(b'\\') => {
                    escaped = true;
                    self.escape()?;
                }
                Some(_) => return Err(self.wrong("a control character in a string")),
                None => return Err(self.wrong("the body ends in a string")),
            }
        }
        self.at += 1;
        Ok(Text { raw: &self.text[start..self.at - 1], escaped })
    }

    fn escape(&mut self) -> Result<(), JsonError> {
        match self.bytes.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 2,
            Some(b'u') if self.bytes.get(self.at + 2..self.at + 6).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)) => self.at += 6,
            Some(_) | None => return Err(self.wrong("no such escape in a string")),
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        while matches!(self.next(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == start { Err(self.wrong("a digit is expected")) } else { Ok(()) }
    }

    fn number(&mut self) -> Result<&'a str, JsonError> {
        let start = self.at;
        self.takes(b'-');
        if !self.takes(b'0') {
            self.digits()?;
        }
        if self.takes(b'.') {
            self.digits()?;
        }
        if self.takes(b'e') || self.takes(b'E') {
            if !self.takes(b'+') {
                self.takes(b'-');
            }
            self.digits()?;
        }
        Ok(&self.text[start..self.at])
    }
}

/// A place in a text of at most 4 GiB.
fn place(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

/// A key that stands twice.
fn repeated<'m>(members: &'m [Member<'_>]) -> Option<&'m str> {
    if members.len() <= FEW {
        let twice = |(index, member): &(usize, &Member<'_>)| members[..*index].iter().any(|other| other.key == member.key);
        return members.iter().enumerate().find(twice).map(|(_, member)| member.key.as_ref());
    }
    let mut seen = std::collections::HashSet::with_capacity(members.len());
    members.iter().map(|member| member.key.as_ref()).find(|key| !seen.insert(*key))
}

/// What an escaped string says, and whether it is whole: without lone surrogates.
fn unescape(raw: &str) -> (String, bool) {
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

#[cfg(test)]
#[path = "json_spans_tests.rs"]
mod tests;
