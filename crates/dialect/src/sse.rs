//! Server-sent events as they pass: hands on the data of each event at whatever places the stream is cut, and lets the bytes
//! pass as they are, but for events that somebody says are to be dropped.
//!
//! Lines end with LF, CR or CRLF; a missing blank line at the end is forgiven. What always holds: nothing is kept but the name
//! of a field, and [`HELD`] bytes of an event that may be dropped; a longer one passes.

/// The most bytes of an event that are held back until it is known whether it passes: those that are dropped have a few hundred.
const MAX_HELD_EVENT_BYTES: usize = 64 * 1024;
/// Bytes of a line that tell which field it is: `data:`, after a byte order mark.
const FIELD_NAME_BYTES: usize = 8;

/// What is to be done with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    On,
    Drop,
}

/// Who reads the data of events.
pub(crate) trait Data {
    /// More of the data of this event.
    fn part(&mut self, bytes: &[u8]);
    /// All data of this event came.
    fn end(&mut self) -> Pass;
}

/// What a line is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Line {
    /// Not known yet.
    #[default]
    Name,
    /// Data, whose first byte may be a space that does not count.
    Space,
    Data,
    Comment,
    Other,
}

#[derive(Debug, Default)]
pub(crate) struct Sse {
    line: Line,
    name: Vec<u8>,
    /// The block has data lines; and bytes in them.
    has_data: bool,
    has_bytes: bool,
    /// The block has a line that is no comment.
    has_fields: bool,
    /// A LF now belongs to the line before.
    after_cr: bool,
    /// The line before ended a block.
    ended: bool,
    /// That block was dropped.
    dropped: bool,
    /// Not the first line any more.
    begun: bool,
    /// This block is too long to be held back.
    long: bool,
    /// Events may be dropped: the bytes of this block, which did not pass yet.
    held: Option<Vec<u8>>,
}

impl Sse {
    /// `drops`: events are held back until it is known whether they pass.
    pub fn new(drops: bool) -> Self {
        Self { held: drops.then(Vec::new), ..Self::default() }
    }

    pub fn feed(&mut self, chunk: &[u8], out: &mut Vec<u8>, data: &mut dyn Data) {
        if self.held.is_none() {
            out.extend_from_slice(chunk);
        }
        let mut rest = chunk;
        while let Some(first) = rest.first() {
            if std::mem::take(&mut self.after_cr) && *first == b'\n' {
                self.end_of_line(out);
                rest = &rest[1..];
                continue;
            }
            let Some(end) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
                self.part(rest, data);
                self.pass(rest, out);
                return;
            };
            self.part(&rest[..end], data);
            self.pass(&rest[..=end], out);
            self.after_cr = rest[end] == b'\r';
            rest = &rest[end + 1..];
            self.line(out, data);
        }
    }

    /// The LF of a CRLF: it goes where its line went.
    fn end_of_line(&mut self, out: &mut Vec<u8>) {
        match &mut self.held {
            None => {}
            Some(_) if self.ended && self.dropped => {}
            Some(held) if held.is_empty() => out.push(b'\n'),
            Some(held) => held.push(b'\n'),
        }
    }

    /// A part of a line.
    fn part(&mut self, mut bytes: &[u8], data: &mut dyn Data) {
        if self.line == Line::Name {
            let taken = bytes.len().min(FIELD_NAME_BYTES - self.name.len());
            self.name.extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            let Some(line) = self.named(!bytes.is_empty() || self.name.len() == FIELD_NAME_BYTES) else { return };
            self.begin(line, data);
        }
        self.more(bytes, data);
    }

    /// What the line is, as far as its beginning tells; `enough`: nothing that comes changes it.
    fn named(&self, enough: bool) -> Option<Line> {
        let name = self.name();
        match name.iter().position(|byte| *byte == b':') {
            Some(0) => Some(Line::Comment),
            Some(end) if &name[..end] == b"data" => Some(Line::Space),
            Some(_) => Some(Line::Other),
            None => enough.then_some(Line::Other),
        }
    }

    /// The beginning of the line, without a byte order mark before the first.
    fn name(&self) -> &[u8] {
        let name = self.name.as_slice();
        if self.begun { name } else { name.strip_prefix(b"\xef\xbb\xbf").unwrap_or(name) }
    }

    /// It is known what the line is. What came of its data with the name goes on.
    fn begin(&mut self, line: Line, data: &mut dyn Data) {
        self.line = line;
        self.has_fields |= line != Line::Comment;
        if line == Line::Space {
            if std::mem::replace(&mut self.has_data, true) {
                self.has_bytes = true;
                data.part(b"\n");
            }
            let name = std::mem::take(&mut self.name);
            let value = name.iter().position(|byte| *byte == b':').map_or(0, |end| end + 1);
            self.more(&name[value..], data);
            self.name = name;
        }
    }

    fn more(&mut self, bytes: &[u8], data: &mut dyn Data) {
        let bytes = match self.line {
            Line::Space if bytes.is_empty() => return,
            Line::Space => {
                self.line = Line::Data;
                bytes.strip_prefix(b" ").unwrap_or(bytes)
            }
            Line::Data => bytes,
            Line::Name | Line::Comment | Line::Other => return,
        };
        if !bytes.is_empty() {
            self.has_bytes = true;
            data.part(bytes);
        }
    }

    fn pass(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let Some(held) = &mut self.held else { return };
        held.extend_from_slice(bytes);
        self.long |= held.len() > MAX_HELD_EVENT_BYTES;
        if self.long {
            out.append(held);
            *held = Vec::new();
        }
    }

    /// A line ended.
    fn line(&mut self, out: &mut Vec<u8>, data: &mut dyn Data) {
        let blank = self.line == Line::Name && self.name().is_empty();
        if self.line == Line::Name && !blank {
            // A name alone has an empty value.
            let line = if self.name() == b"data" { Line::Space } else { Line::Other };
            if line == Line::Space {
                self.name.push(b':');
            }
            self.begin(line, data);
        }
        let comment = self.line == Line::Comment;
        (self.begun, self.line, self.ended) = (true, Line::Name, blank);
        self.name.clear();
        if blank {
            self.block(out, data);
        } else if comment
            && !self.has_fields
            && let Some(held) = &mut self.held
        {
            // A sign of life must not wait for the next event.
            out.append(held);
        }
    }

    /// A block ended.
    fn block(&mut self, out: &mut Vec<u8>, data: &mut dyn Data) {
        // No data, or nothing in it, is no event.
        let verdict = if self.has_bytes { data.end() } else { Pass::On };
        self.dropped = verdict == Pass::Drop && !self.long;
        if let Some(held) = &mut self.held {
            if self.dropped { held.clear() } else { out.append(held) }
        }
        (self.has_data, self.has_bytes, self.has_fields, self.long) = (false, false, false, false);
    }

    /// The stream ended: what is left of it is an event too.
    pub fn end(&mut self, out: &mut Vec<u8>, data: &mut dyn Data) {
        if !self.name.is_empty() || self.line != Line::Name {
            self.line(out, data);
        }
        self.block(out, data);
    }
}
