//! Reads server-sent events as they pass: passes the data of each event to a reader, at whatever positions the stream
//! is cut, and forwards all bytes except for events that the reader drops.
//!
//! Lines end with LF, CR or CRLF. A missing blank line at the end is accepted. Invariant: only the name of a field is
//! kept, and up to [`MAX_HELD_EVENT_BYTES`] of an event that may be dropped. A longer event is forwarded.

/// Maximum number of bytes of an event that are held back until it is known whether the event is dropped. Dropped
/// events have a few hundred bytes.
const MAX_HELD_EVENT_BYTES: usize = 64 * 1024;
/// Bytes of a line that identify its field: `data:`, after a byte order mark.
const FIELD_NAME_BYTES: usize = 8;

/// Whether an event is forwarded or dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    Forward,
    Drop,
}

/// A reader of the data of events.
pub(crate) trait Data {
    /// Reads the next data of the event.
    fn part(&mut self, bytes: &[u8]);
    /// Ends the event.
    fn end(&mut self) -> Pass;
}

/// Kind of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Line {
    /// The kind is not known yet.
    #[default]
    Name,
    /// Data whose first byte may be a space, which is skipped.
    DataStart,
    Data,
    Comment,
    Other,
}

#[derive(Debug, Default)]
pub(crate) struct Sse {
    line: Line,
    name: Vec<u8>,
    /// Whether the block has data lines, and whether they have bytes.
    has_data: bool,
    has_bytes: bool,
    /// Whether the block has a line that is not a comment.
    has_fields: bool,
    /// Whether an LF that follows now belongs to the line before.
    after_cr: bool,
    /// Whether the line before ended a block.
    after_block: bool,
    /// Whether that block was dropped.
    block_dropped: bool,
    /// Whether the first line has ended.
    after_first_line: bool,
    /// Whether the block is too long to be held back.
    exceeds_hold_limit: bool,
    /// The bytes of the block that are held back. None: no event may be dropped.
    held: Option<Vec<u8>>,
}

impl Sse {
    /// Creates a reader. `drops`: events are held back until it is known whether they are dropped.
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
                self.forward_line_feed(out);
                rest = &rest[1..];
                continue;
            }
            let Some(end) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
                self.read_line_part(rest, data);
                self.hold_or_forward(rest, out);
                return;
            };
            self.read_line_part(&rest[..end], data);
            self.hold_or_forward(&rest[..=end], out);
            self.after_cr = rest[end] == b'\r';
            rest = &rest[end + 1..];
            self.end_line(out, data);
        }
    }

    /// Handles the LF of a CRLF: it is forwarded, held or dropped together with its line.
    fn forward_line_feed(&mut self, out: &mut Vec<u8>) {
        match &mut self.held {
            None => {}
            Some(_) if self.after_block && self.block_dropped => {}
            Some(held) if held.is_empty() => out.push(b'\n'),
            Some(held) => held.push(b'\n'),
        }
    }

    /// Reads a part of a line.
    fn read_line_part(&mut self, mut bytes: &[u8], data: &mut dyn Data) {
        if self.line == Line::Name {
            let taken = bytes.len().min(FIELD_NAME_BYTES - self.name.len());
            self.name.extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            let Some(line) = self.line_kind(!bytes.is_empty() || self.name.len() == FIELD_NAME_BYTES) else { return };
            self.begin(line, data);
        }
        self.more(bytes, data);
    }

    /// The kind of the line, if its beginning identifies it. `enough`: no further byte changes the kind.
    fn line_kind(&self, enough: bool) -> Option<Line> {
        let name = self.name();
        match name.iter().position(|byte| *byte == b':') {
            Some(0) => Some(Line::Comment),
            Some(end) if &name[..end] == b"data" => Some(Line::DataStart),
            Some(_) => Some(Line::Other),
            None => enough.then_some(Line::Other),
        }
    }

    /// The beginning of the line, without a byte order mark before the first.
    fn name(&self) -> &[u8] {
        let name = self.name.as_slice();
        if self.after_first_line { name } else { name.strip_prefix(b"\xef\xbb\xbf").unwrap_or(name) }
    }

    /// Sets the kind of the line, and reads the data that came together with the name.
    fn begin(&mut self, line: Line, data: &mut dyn Data) {
        self.line = line;
        self.has_fields |= line != Line::Comment;
        if line == Line::DataStart {
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
            Line::DataStart if bytes.is_empty() => return,
            Line::DataStart => {
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

    fn hold_or_forward(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let Some(held) = &mut self.held else { return };
        held.extend_from_slice(bytes);
        self.exceeds_hold_limit |= held.len() > MAX_HELD_EVENT_BYTES;
        if self.exceeds_hold_limit {
            out.append(held);
            *held = Vec::new();
        }
    }

    /// Ends a line.
    fn end_line(&mut self, out: &mut Vec<u8>, data: &mut dyn Data) {
        let blank = self.line == Line::Name && self.name().is_empty();
        if self.line == Line::Name && !blank {
            // A field name without a colon has an empty value.
            let line = if self.name() == b"data" { Line::DataStart } else { Line::Other };
            if line == Line::DataStart {
                self.name.push(b':');
            }
            self.begin(line, data);
        }
        let comment = self.line == Line::Comment;
        (self.after_first_line, self.line, self.after_block) = (true, Line::Name, blank);
        self.name.clear();
        if blank {
            self.end_block(out, data);
        } else if comment
            && !self.has_fields
            && let Some(held) = &mut self.held
        {
            // A keep-alive comment must not wait for the next event.
            out.append(held);
        }
    }

    /// Ends a block.
    fn end_block(&mut self, out: &mut Vec<u8>, data: &mut dyn Data) {
        // A block without data, or with empty data, is not an event.
        let verdict = if self.has_bytes { data.end() } else { Pass::Forward };
        self.block_dropped = verdict == Pass::Drop && !self.exceeds_hold_limit;
        if let Some(held) = &mut self.held {
            if self.block_dropped { held.clear() } else { out.append(held) }
        }
        (self.has_data, self.has_bytes, self.has_fields, self.exceeds_hold_limit) = (false, false, false, false);
    }

    /// Ends the stream: the rest of it is an event too.
    pub fn end(&mut self, out: &mut Vec<u8>, data: &mut dyn Data) {
        if !self.name.is_empty() || self.line != Line::Name {
            self.end_line(out, data);
        }
        self.end_block(out, data);
    }
}
