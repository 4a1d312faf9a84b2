//! Server-sent events: the data of each event, at whatever positions the stream is cut. One event is held at a time, and its size is bounded.

/// Reads a stream.
#[derive(Debug)]
pub struct EventReader {
    /// The unfinished line.
    line: Vec<u8>,
    /// The data lines of the unfinished event, each with a line feed.
    data: Vec<u8>,
    /// Whether a line feed that follows belongs to the line before.
    after_return: bool,
    max_bytes: usize,
}

/// An event has too many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventTooLong;

impl EventReader {
    /// A reader of events of at most `max_bytes`.
    pub fn new(max_bytes: usize) -> Self {
        Self { line: Vec::new(), data: Vec::new(), after_return: false, max_bytes }
    }

    /// Takes the next bytes. Returns the data of the events that end in them.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, EventTooLong> {
        let mut events = Vec::new();
        for byte in bytes {
            match byte {
                b'\n' if std::mem::take(&mut self.after_return) => {}
                b'\n' | b'\r' => {
                    self.after_return = *byte == b'\r';
                    events.extend(self.end_line());
                }
                other => {
                    self.after_return = false;
                    if self.line.len() + self.data.len() >= self.max_bytes {
                        return Err(EventTooLong);
                    }
                    self.line.push(*other);
                }
            }
        }
        Ok(events)
    }

    /// Ends a line. Returns the data of the event that ends with it.
    fn end_line(&mut self) -> Option<Vec<u8>> {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            let mut data = std::mem::take(&mut self.data);
            data.pop();
            return (!data.is_empty()).then_some(data);
        }
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&line);
        if let Some(value) = line.strip_prefix(b"data:") {
            self.data.extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
            self.data.push(b'\n');
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = "\u{feff}data: one\n\nevent: x\r\nid: 1\r\ndata:two\r\ndata: lines\r\n\r\n: comment\n\ndata\ndata: \n\nretry: 1\rdata: {}\r\rdata: unfinished";

    #[test]
    fn the_data_of_each_event_is_read_wherever_the_stream_is_cut() {
        let expected: Vec<Vec<u8>> = ["one", "two\nlines", "{}"].map(|text| text.as_bytes().to_vec()).into();
        for size in 1..STREAM.len() {
            let mut reader = EventReader::new(100);
            let mut events = Vec::new();
            for part in STREAM.as_bytes().chunks(size) {
                events.extend(reader.feed(part).expect("short events"));
            }
            assert_eq!(events, expected, "{size}");
        }
    }

    #[test]
    fn an_event_is_bounded_and_a_stream_is_not() {
        let mut reader = EventReader::new(20);
        for _ in 0..1000 {
            assert_eq!(reader.feed(b"data: 0123456789\n\n").map(|events| events.len()), Ok(1));
        }
        assert_eq!(reader.feed(b"data: 0123456789\ndata: 0123456789"), Err(EventTooLong));
        let mut reader = EventReader::new(20);
        assert_eq!(reader.feed(&[b'x'; 30]), Err(EventTooLong), "a line without an end");
    }
}
