//! Finds JSON objects in a body as it passes, at whatever positions it is cut: one (a whole answer), or those of a list
//! (a Gemini stream that is not SSE). It only reads the bytes and does not forward them.

use crate::scan::{FoundValues, Scanner};

/// Reader of the JSON objects of a body.
#[derive(Debug)]
pub(crate) struct TextPath {
    scanner: Scanner,
    /// Whether an object has begun.
    begun: bool,
}

impl TextPath {
    /// Creates a reader whose objects `scanner` reads.
    pub fn new(scanner: Scanner) -> Self {
        Self { scanner, begun: false }
    }

    /// Calls `on` with each object, or with `None` for text that is not an object.
    pub fn feed(&mut self, chunk: &[u8], on: &mut dyn FnMut(Option<&FoundValues>)) {
        let mut rest = chunk;
        while let Some(byte) = rest.first() {
            if self.begun {
                let read = self.scanner.feed(rest);
                rest = &rest[read..];
                if self.scanner.has_ended() {
                    on(Some(self.scanner.notes()));
                    self.scanner.reset();
                    self.begun = false;
                } else if self.scanner.is_broken() {
                    on(None);
                }
                continue;
            }
            match byte {
                b'{' => {
                    self.begun = true;
                    continue;
                }
                b'[' | b']' | b',' | b' ' | b'\n' | b'\r' | b'\t' => {}
                _ => on(None),
            }
            rest = &rest[1..];
        }
    }

    /// Whether the text ended between two objects.
    pub fn is_whole(&self) -> bool {
        !self.begun
    }
}
