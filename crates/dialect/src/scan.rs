//! A streaming scanner: reads one JSON value as it passes, at whatever positions it is cut, and keeps the values at a
//! few known paths. All other data is read and forgotten.
//!
//! It is separate from `json_spans`, which parses calls: an answer may have any length, and may never end. Invariants:
//! memory is [`MAX_SCAN_DEPTH`] frames and two short texts for each path, and the result does not depend on where the
//! value is cut.

/// Maximum nesting depth.
const MAX_SCAN_DEPTH: usize = 128;
/// Bytes of a key that are compared. A longer key is not in any path.
const MAX_KEY_BYTES: usize = 40;
/// Bytes of a text or number that are kept.
const MAX_WORD_BYTES: usize = 64;
/// Maximum number of paths of one dialect.
pub(crate) const MAX_VALUE_PATHS: usize = 32;

/// Members of a model's output that are not counted: they are labels, or nobody can read them, so that their length
/// says nothing.
const UNCOUNTED_MEMBERS: [&[u8]; 11] = [
    b"type",
    b"id",
    b"index",
    b"role",
    b"call_id",
    b"mimeType",
    b"data",
    b"signature",
    b"thoughtSignature",
    b"thought_signature",
    b"encrypted_content",
];
/// Members that count with their whole structure: arguments of calls.
const WHOLE_MEMBERS: [&[u8]; 2] = [b"args", b"input"];

/// A path of a value: the member `key` of the outer object, or of each object of the outer list.
#[derive(Debug)]
pub(crate) struct ValuePath {
    pub key: &'static str,
    /// Number of its note.
    pub field: usize,
    /// Whether the bytes of model output in it are counted.
    pub counts_output: bool,
    /// Paths below it.
    pub within: &'static [ValuePath],
}

/// A path of a scalar value.
pub(crate) const fn value(key: &'static str, field: usize) -> ValuePath {
    ValuePath { key, field, counts_output: false, within: &[] }
}

/// A path of an object, or of a list of objects.
pub(crate) const fn object(key: &'static str, field: usize, within: &'static [ValuePath]) -> ValuePath {
    ValuePath { key, field, counts_output: false, within }
}

/// A path of model output, whose bytes are counted.
pub(crate) const fn output(key: &'static str, field: usize) -> ValuePath {
    ValuePath { key, field, counts_output: true, within: &[] }
}

/// The value at a path.
#[derive(Clone, Debug, Default)]
pub(crate) struct FoundValue {
    pub kind: Kind,
    /// Number of values at the path that were not null.
    pub times: i64,
    /// Number of members or items of the last value. For a text, its length.
    pub members: i64,
    /// Bytes of model output in it.
    pub output_bytes: i64,
    word: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    /// There was no value, or null.
    #[default]
    None,
    False,
    True,
    Number,
    Text,
    List,
    Object,
}

impl FoundValue {
    /// Whether the value is null, false, or an empty text or list.
    pub fn is_empty(&self) -> bool {
        match self.kind {
            Kind::None | Kind::False => true,
            Kind::True | Kind::Number | Kind::Object => false,
            Kind::Text => self.word.is_empty() && self.members == 0,
            Kind::List => self.members == 0,
        }
    }

    /// The text or number as it is in the answer, or empty if it is too long.
    pub fn word(&self) -> &str {
        std::str::from_utf8(&self.word).unwrap_or_default()
    }
}

/// The values at the paths of one JSON value.
#[derive(Clone, Debug)]
pub(crate) struct FoundValues(Vec<FoundValue>);

impl std::ops::Index<usize> for FoundValues {
    type Output = FoundValue;
    fn index(&self, field: usize) -> &FoundValue {
        &self.0[field]
    }
}

/// How bytes of model output are counted in a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counting {
    Not,
    /// Its texts, numbers and booleans, into this note.
    Scalars(usize),
    /// All its bytes, into this note.
    Whole(usize),
}

/// Properties of a value that are known before it begins.
#[derive(Clone, Copy, Debug)]
struct Context {
    place: Option<&'static ValuePath>,
    within: &'static [ValuePath],
    counting: Counting,
}

/// An open object or list.
#[derive(Debug)]
struct Frame {
    object: bool,
    context: Context,
    start: u64,
    members: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Value,
    /// Expects a value, or the end of the list.
    ValueOrEnd,
    Key,
    /// Expects a key, or the end of the object.
    KeyOrEnd,
    Colon,
    /// Expects a comma, or the end of the open object or list.
    After,
    Text,
    Escape,
    Hex(u8),
    Number,
    /// Expects the rest of `true`, `false` or `null`.
    Word(&'static [u8]),
    Ended,
    Broken,
}

/// Scans one value.
#[derive(Debug)]
pub(crate) struct Scanner {
    root: &'static [ValuePath],
    notes: FoundValues,
    frames: Vec<Frame>,
    state: State,
    /// Number of bytes before the current part.
    before: u64,
    /// The last key, and the current text or number.
    key: Vec<u8>,
    long_key: bool,
    word: Vec<u8>,
    /// Whether the current text is a key.
    in_key: bool,
    kind: Kind,
    context: Context,
    start: u64,
}

impl Scanner {
    /// Creates a scanner for a value with these paths.
    pub fn new(root: &'static [ValuePath]) -> Self {
        let context = Context { place: None, within: root, counting: Counting::Not };
        Self {
            root,
            notes: FoundValues(vec![FoundValue::default(); MAX_VALUE_PATHS]),
            frames: Vec::new(),
            state: State::Value,
            before: 0,
            key: Vec::new(),
            long_key: false,
            word: Vec::new(),
            in_key: false,
            kind: Kind::None,
            context,
            start: 0,
        }
    }

    /// Resets the scanner for the next value.
    pub fn reset(&mut self) {
        let Self { notes, frames, state, before, context, .. } = self;
        notes.0.iter_mut().for_each(|note| {
            note.word.clear();
            *note = FoundValue { word: std::mem::take(&mut note.word), ..FoundValue::default() };
        });
        frames.clear();
        (*state, *before) = (State::Value, 0);
        *context = Context { place: None, within: self.root, counting: Counting::Not };
    }

    /// Whether the value has ended.
    pub fn has_ended(&self) -> bool {
        self.state == State::Ended
    }

    /// Whether the text is not JSON, or is nested too deeply.
    pub fn is_broken(&self) -> bool {
        self.state == State::Broken
    }

    /// The values at the paths, when the value has ended.
    pub fn notes(&self) -> &FoundValues {
        &self.notes
    }

    /// Reads a part, at most to the end of the value. Returns the number of bytes that were read.
    pub fn feed(&mut self, part: &[u8]) -> usize {
        let mut at = 0;
        while let Some(byte) = part.get(at) {
            match self.state {
                State::Ended => break,
                State::Broken => at = part.len(),
                State::Text => {
                    let rest = &part[at..];
                    let plain = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20)).unwrap_or(rest.len());
                    self.keep_bytes(&rest[..plain]);
                    at += plain;
                    if let Some(byte) = rest.get(plain) {
                        at += 1;
                        match byte {
                            b'"' => self.end_of_text(at),
                            b'\\' => {
                                self.keep_bytes(b"\\");
                                self.state = State::Escape;
                            }
                            _ => self.state = State::Broken,
                        }
                    }
                }
                // The byte that ends a number belongs to the next token.
                State::Number if matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E') => {
                    self.keep_bytes(&[*byte]);
                    at += 1;
                }
                State::Number => self.end_of_number(at),
                _ => {
                    self.step(*byte, at);
                    at += 1;
                }
            }
        }
        self.before += at as u64;
        at
    }

    /// Ends the value: an outermost number has no other end mark.
    pub fn end(&mut self) {
        if self.state == State::Number && self.frames.is_empty() {
            self.end_of_number(0);
        }
    }

    fn step(&mut self, byte: u8, at: usize) {
        let blank = matches!(byte, b' ' | b'\n' | b'\r' | b'\t');
        match (self.state, byte) {
            (State::Value | State::ValueOrEnd | State::Key | State::KeyOrEnd | State::Colon | State::After, _) if blank => {}
            (State::ValueOrEnd, b']') | (State::KeyOrEnd, b'}') => self.close(byte, at),
            (State::Value | State::ValueOrEnd, _) => self.begin(byte, at),
            (State::Key | State::KeyOrEnd, b'"') => {
                self.key.clear();
                (self.in_key, self.long_key, self.state) = (true, false, State::Text);
            }
            (State::Colon, b':') => self.state = State::Value,
            (State::After, b',') => {
                self.state = match self.frames.last() {
                    Some(Frame { object: true, .. }) => State::Key,
                    Some(_) => State::Value,
                    None => State::Broken,
                }
            }
            (State::After, b'}' | b']') => self.close(byte, at),
            (State::Escape, b'u') => self.state = State::Hex(4),
            (State::Escape, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.keep_bytes(&[byte]);
                self.state = State::Text;
            }
            (State::Hex(left), _) if byte.is_ascii_hexdigit() => {
                self.state = if left == 1 { State::Text } else { State::Hex(left - 1) };
            }
            (State::Word([next, rest @ ..]), _) if byte == *next => {
                self.state = State::Word(rest);
                if rest.is_empty() {
                    self.end_of_scalar(at + 1);
                }
            }
            _ => self.state = State::Broken,
        }
    }

    /// Keeps bytes of a key, text or number, as far as they are needed.
    fn keep_bytes(&mut self, bytes: &[u8]) {
        if self.in_key {
            self.long_key |= self.key.len() + bytes.len() > MAX_KEY_BYTES;
            let room = MAX_KEY_BYTES - self.key.len();
            self.key.extend_from_slice(&bytes[..bytes.len().min(room)]);
        } else if self.kind == Kind::Number || self.context.place.is_some_and(|place| !place.counts_output) {
            let room = (MAX_WORD_BYTES + 1).saturating_sub(self.word.len());
            self.word.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
    }

    /// Properties of the value that begins.
    fn context(&self) -> Context {
        let Some(Frame { object, context: outer, .. }) = self.frames.last() else { return self.context };
        if !object {
            // The bytes of the items are counted with the whole list.
            let counting = if let Counting::Whole(_) = outer.counting { Counting::Not } else { outer.counting };
            return Context { place: None, within: outer.within, counting };
        }
        let key = if self.long_key { b"" } else { self.key.as_slice() };
        let place = outer.within.iter().find(|place| place.key.as_bytes() == key);
        let counting = match (outer.counting, place) {
            (Counting::Scalars(_), _) if UNCOUNTED_MEMBERS.contains(&key) => Counting::Not,
            (Counting::Scalars(into), _) if WHOLE_MEMBERS.contains(&key) => Counting::Whole(into),
            (Counting::Scalars(into), _) => Counting::Scalars(into),
            // The outer value counts it.
            (Counting::Whole(_), _) => Counting::Not,
            (Counting::Not, Some(ValuePath { counts_output: true, field, .. })) => Counting::Scalars(*field),
            (Counting::Not, _) => Counting::Not,
        };
        Context { place, within: place.map_or(&[], |place| place.within), counting }
    }

    fn begin(&mut self, byte: u8, at: usize) {
        self.context = self.context();
        self.start = self.before + at as u64;
        if let Some(frame) = self.frames.last_mut() {
            frame.members += 1;
        }
        self.word.clear();
        self.in_key = false;
        let (kind, state) = match byte {
            b'{' | b'[' if self.frames.len() >= MAX_SCAN_DEPTH => (Kind::None, State::Broken),
            b'{' | b'[' => {
                let object = byte == b'{';
                self.frames.push(Frame { object, context: self.context, start: self.start, members: 0 });
                (Kind::None, if object { State::KeyOrEnd } else { State::ValueOrEnd })
            }
            b'"' => (Kind::Text, State::Text),
            b't' => (Kind::True, State::Word(b"rue")),
            b'f' => (Kind::False, State::Word(b"alse")),
            b'n' => (Kind::None, State::Word(b"ull")),
            b'-' | b'0'..=b'9' => (Kind::Number, State::Number),
            _ => (Kind::None, State::Broken),
        };
        (self.kind, self.state) = (kind, state);
        if kind == Kind::Number {
            self.keep_bytes(&[byte]);
        }
    }

    fn end_of_text(&mut self, at: usize) {
        if self.in_key {
            self.in_key = false;
            self.state = State::Colon;
        } else {
            self.end_of_scalar(at);
        }
    }

    fn end_of_number(&mut self, at: usize) {
        if self.word.len() <= MAX_WORD_BYTES && !is_number(&self.word) {
            self.state = State::Broken;
        } else {
            self.end_of_scalar(at);
        }
    }

    /// A text, number, boolean or null ended before `at`.
    fn end_of_scalar(&mut self, at: usize) {
        let bytes = i64::try_from(self.before + at as u64 - self.start).unwrap_or(i64::MAX);
        let context = self.context;
        match context.counting {
            Counting::Scalars(into) | Counting::Whole(into) if self.kind != Kind::None => self.add(into, bytes),
            Counting::Scalars(_) | Counting::Whole(_) | Counting::Not => {}
        }
        self.note(context, self.kind, bytes - 2);
        self.end_value();
    }

    fn close(&mut self, byte: u8, at: usize) {
        let Some(Frame { object, context, start, members }) = self.frames.pop() else { return self.state = State::Broken };
        if object != (byte == b'}') {
            return self.state = State::Broken;
        }
        if let Counting::Whole(into) = context.counting {
            self.add(into, i64::try_from(self.before + at as u64 + 1 - start).unwrap_or(i64::MAX));
        }
        self.word.clear();
        self.note(context, if object { Kind::Object } else { Kind::List }, members);
        self.end_value();
    }

    fn add(&mut self, into: usize, bytes: i64) {
        let written = &mut self.notes.0[into].output_bytes;
        *written = written.saturating_add(bytes);
    }

    /// Stores the value at its path. `members` of a text is its length.
    fn note(&mut self, context: Context, kind: Kind, members: i64) {
        let Some(place) = context.place else { return };
        let note = &mut self.notes.0[place.field];
        note.times += i64::from(kind != Kind::None);
        (note.kind, note.members) = (kind, members.max(0));
        note.word.clear();
        if self.word.len() <= MAX_WORD_BYTES {
            note.word.extend_from_slice(&self.word);
        }
    }

    fn end_value(&mut self) {
        self.state = if self.frames.is_empty() { State::Ended } else { State::After };
    }
}

/// Whether the text is a JSON number.
fn is_number(text: &[u8]) -> bool {
    let text = text.strip_prefix(b"-").unwrap_or(text);
    let digits = |text: &[u8]| text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let whole = digits(text);
    if whole == 0 || (whole > 1 && text[0] == b'0') {
        return false;
    }
    let mut rest = &text[whole..];
    if let Some(fraction) = rest.strip_prefix(b".") {
        let count = digits(fraction);
        rest = &fraction[count..];
        if count == 0 {
            return false;
        }
    }
    if let [b'e' | b'E', exponent @ ..] = rest {
        let exponent = exponent.strip_prefix(b"+").or(exponent.strip_prefix(b"-")).unwrap_or(exponent);
        return digits(exponent) > 0 && digits(exponent) == exponent.len();
    }
    rest.is_empty()
}

#[cfg(test)]
#[path = "scan_tests.rs"]
mod tests;
