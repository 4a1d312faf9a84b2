//! JSON objects as they pass: one (a whole answer), or those of a list (a Gemini stream that is not SSE), found at whatever
//! places the body is cut. Only looks: the bytes pass elsewhere.

/// The most bytes of one object that are read.
pub(crate) const MOST: usize = crate::sse::MOST;

#[derive(Debug, Default)]
pub(crate) struct Pieces {
    piece: Vec<u8>,
    depth: usize,
    in_text: bool,
    escaped: bool,
    long: bool,
}

impl Pieces {
    /// `on` gets each object; `None`: something that is none, or too long.
    pub fn feed(&mut self, chunk: &[u8], on: &mut dyn FnMut(Option<&[u8]>)) {
        let mut start = 0;
        for (at, byte) in chunk.iter().enumerate() {
            if self.in_text {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_text = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'{' | b'[' if self.depth > 0 => self.depth += 1,
                b'{' => {
                    self.depth = 1;
                    start = at;
                }
                b'}' | b']' if self.depth > 0 => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        self.keep(&chunk[start..=at]);
                        on(if self.long { None } else { Some(&self.piece) });
                        self.piece.clear();
                        self.long = false;
                    }
                }
                b'"' if self.depth > 0 => self.in_text = true,
                _ if self.depth > 0 => {}
                b'[' | b']' | b',' | b' ' | b'\n' | b'\r' | b'\t' => {}
                _ => on(None),
            }
        }
        if self.depth > 0 {
            self.keep(&chunk[start..]);
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.long || self.piece.len() + bytes.len() > MOST {
            self.long = true;
            self.piece = Vec::new();
        } else {
            self.piece.extend_from_slice(bytes);
        }
    }

    /// Whether it ended between two objects.
    pub fn is_whole(&self) -> bool {
        self.depth == 0
    }
}
