//! JSON objects as they pass: one (a whole answer), or those of a list (a Gemini stream that is not SSE), found at whatever
//! places the body is cut. Only looks: the bytes pass elsewhere.

use crate::scan::{FoundValues, Scanner};

/// Where the text is.
#[derive(Debug)]
pub(crate) struct TextPath {
    scanner: Scanner,
    /// An object has begun.
    begun: bool,
}

impl TextPath {
    /// Of objects that `scanner` reads.
    pub fn new(scanner: Scanner) -> Self {
        Self { scanner, begun: false }
    }

    /// `on` gets each object; `None`: something that is none.
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

    /// Whether it ended between two objects.
    pub fn is_whole(&self) -> bool {
        !self.begun
    }
}
