//! The kept parts of an output: its beginning and its end, each bounded, and the number of bytes between them.

use std::collections::VecDeque;

/// The most kept bytes of a stream, if nobody says another number: half of them from its beginning, half from its end.
pub const KEPT_OUTPUT_BYTES: usize = 128 * 1024;

/// The kept parts of one stream.
#[derive(Debug)]
pub struct Capture {
    /// The most bytes of each part.
    part_bytes: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    /// The number of dropped bytes between them.
    left_out: u64,
}

impl Default for Capture {
    fn default() -> Self {
        Self::new(KEPT_OUTPUT_BYTES)
    }
}

impl Capture {
    /// An empty one that keeps at most so many bytes.
    pub fn new(kept_bytes: usize) -> Self {
        Self { part_bytes: kept_bytes / 2, head: Vec::new(), tail: VecDeque::new(), left_out: 0 }
    }

    /// Adds bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(bytes.len().min(self.part_bytes - self.head.len()));
        self.head.extend_from_slice(first);
        // Of a chunk longer than the tail only its end is kept.
        let (passed, last) = rest.split_at(rest.len().saturating_sub(self.part_bytes));
        let over = (self.tail.len() + last.len()).saturating_sub(self.part_bytes);
        self.tail.drain(..over);
        self.tail.extend(last);
        self.left_out += (passed.len() + over) as u64;
    }

    /// Whether bytes were dropped.
    pub fn truncated(&self) -> bool {
        self.left_out > 0
    }

    /// The beginning, the number of bytes that were left out, and the end. Without left out bytes all is in the beginning.
    pub fn parts(&self) -> (String, u64, String) {
        let (one, other) = self.tail.as_slices();
        let text = |parts: &[&[u8]]| String::from_utf8_lossy(&parts.concat()).into_owned();
        match self.left_out {
            0 => (text(&[&self.head, one, other]), 0, String::new()),
            left_out => (text(&[&self.head]), left_out, text(&[one, other])),
        }
    }

    /// The output as text, with a line in the middle about dropped bytes.
    pub fn text(&self) -> String {
        join_parts(self.parts())
    }
}

/// The text of [`Capture::parts`].
pub fn join_parts((begin, left_out, end): (String, u64, String)) -> String {
    if left_out == 0 { begin } else { format!("{begin}\n[... {left_out} bytes left out ...]\n{end}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_output_is_whole() {
        let mut capture = Capture::default();
        for part in ["one ", "", "tw\u{f6}"] {
            capture.push(part.as_bytes());
        }
        assert_eq!((capture.text().as_str(), capture.truncated()), ("one tw\u{f6}", false));
        let mut full = Capture::default();
        full.push(&vec![b'x'; KEPT_OUTPUT_BYTES]);
        assert_eq!((full.text().len(), full.truncated()), (KEPT_OUTPUT_BYTES, false));
    }

    #[test]
    fn a_long_one_has_its_beginning_and_its_end_however_it_came() {
        let all: Vec<u8> = (0..1_000_000_u32).map(|index| b'a' + u8::try_from(index % 23).unwrap_or(0)).collect();
        let mut texts = Vec::new();
        for chunk in [1000, 4096, 100_000, all.len()] {
            let mut capture = Capture::default();
            all.chunks(chunk).for_each(|part| capture.push(part));
            assert!(capture.truncated() && capture.head.len() + capture.tail.len() == KEPT_OUTPUT_BYTES);
            texts.push(capture.text());
        }
        texts.dedup();
        let [text] = &texts[..] else { panic!("{} different texts", texts.len()) };
        let left_out = format!("[... {} bytes left out ...]", all.len() - KEPT_OUTPUT_BYTES);
        assert!(
            text.as_bytes().starts_with(&all[..KEPT_OUTPUT_BYTES / 2])
                && text.as_bytes().ends_with(&all[all.len() - KEPT_OUTPUT_BYTES / 2..])
                && text.contains(&left_out)
        );
    }
}
