//! Server-sent events as they pass: finds the data of each event at whatever places the stream is cut, and lets the bytes
//! pass as they are, but for events that somebody says are to be dropped.
//!
//! Lines end with LF, CR or CRLF; a missing blank line at the end is forgiven. What always holds: no more than [`MOST`] bytes
//! are kept, and an event that is longer passes unread.

/// The most bytes of one event that are read.
pub(crate) const MOST: usize = 16 * 1024 * 1024;

/// What is to be done with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    On,
    Drop,
}

/// What was found in a stream.
pub(crate) enum Found<'d> {
    /// The data of an event.
    Data(&'d [u8]),
    /// An event that was too long to be read.
    TooLong,
}

#[derive(Debug, Default)]
pub(crate) struct Sse {
    /// The line so far, without its end.
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
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
    /// This block is too long and passes.
    long: bool,
    /// Events may be dropped: the bytes of this block, which did not pass yet.
    held: Option<Vec<u8>>,
}

impl Sse {
    /// `drops`: events are held back until it is known whether they pass.
    pub fn new(drops: bool) -> Self {
        Self { held: drops.then(Vec::new), ..Self::default() }
    }

    pub fn feed(&mut self, chunk: &[u8], out: &mut Vec<u8>, on: &mut dyn FnMut(Found<'_>) -> Pass) {
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
                self.part(rest, rest, out);
                return;
            };
            self.part(&rest[..end], &rest[..=end], out);
            self.after_cr = rest[end] == b'\r';
            rest = &rest[end + 1..];
            self.line(out, on);
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

    /// A part of a line, and its bytes with the end of the line.
    fn part(&mut self, line: &[u8], bytes: &[u8], out: &mut Vec<u8>) {
        let kept = (self.line.len() + self.data.len()).max(self.held.as_ref().map_or(0, Vec::len));
        if kept + line.len() > MOST {
            self.long = true;
            (self.line, self.data) = (Vec::new(), Vec::new());
        }
        if self.long {
            // Only whether it is blank matters.
            if self.line.is_empty() && !line.is_empty() {
                self.line.push(b'x');
            }
        } else {
            self.line.extend_from_slice(line);
        }
        self.pass(bytes, out);
    }

    fn pass(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        match &mut self.held {
            Some(held) if self.long => {
                out.append(held);
                out.extend_from_slice(bytes);
            }
            Some(held) => held.extend_from_slice(bytes),
            None => {}
        }
    }

    /// A line ended.
    fn line(&mut self, out: &mut Vec<u8>, on: &mut dyn FnMut(Found<'_>) -> Pass) {
        let mut line = std::mem::take(&mut self.line);
        if !std::mem::replace(&mut self.begun, true) && line.starts_with(b"\xef\xbb\xbf") {
            line.drain(..3);
        }
        self.ended = line.is_empty();
        if line.is_empty() {
            self.block(out, on);
        } else if !self.long && line[0] != b':' {
            self.field(&line);
        } else if !self.has_fields
            && let Some(held) = &mut self.held
        {
            // A sign of life must not wait for the next event.
            out.append(held);
        }
        line.clear();
        self.line = line;
    }

    fn field(&mut self, line: &[u8]) {
        self.has_fields = true;
        let end = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        if &line[..end] != b"data" {
            return;
        }
        let value = line.get(end + 1..).unwrap_or_default();
        let value = value.strip_prefix(b" ").unwrap_or(value);
        if std::mem::replace(&mut self.has_data, true) {
            self.data.push(b'\n');
        }
        self.data.extend_from_slice(value);
    }

    /// A block ended.
    fn block(&mut self, out: &mut Vec<u8>, on: &mut dyn FnMut(Found<'_>) -> Pass) {
        // No data, or nothing in it, is no event.
        let verdict = match (self.long, !self.data.is_empty()) {
            (true, _) => {
                on(Found::TooLong);
                Pass::On
            }
            (false, true) => on(Found::Data(&self.data)),
            (false, false) => Pass::On,
        };
        self.dropped = verdict == Pass::Drop;
        if let Some(held) = &mut self.held {
            match verdict {
                Pass::On => out.append(held),
                Pass::Drop => held.clear(),
            }
        }
        self.data.clear();
        (self.has_data, self.has_fields, self.long) = (false, false, false);
    }

    /// The stream ended: what is left of it is an event too.
    pub fn end(&mut self, out: &mut Vec<u8>, on: &mut dyn FnMut(Found<'_>) -> Pass) {
        if !self.line.is_empty() {
            self.line(out, on);
        }
        self.block(out, on);
    }
}
