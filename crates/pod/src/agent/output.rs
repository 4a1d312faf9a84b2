//! Copies the program's output to our own output, and keeps the time and the end of it.
//!
//! Each stream has a thread with blocking reads and writes. So a slow reader of our output slows the program, as it would
//! without us, and never the supervisor. If our output is closed, the program's output is read and dropped, and the program
//! continues.

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use spillway_wire::work::MAX_RESULT_BYTES;
use tokio::sync::mpsc;

use super::plain_text::PlainText;
use crate::clock::BootTime;

/// The stack of a thread, which only copies.
const THREAD_STACK_BYTES: usize = 64 * 1024;
/// The most bytes of one read.
const READ_CHUNK_BYTES: usize = 16 * 1024;
/// Bytes that are kept beyond the reported length, because white space at the end is not reported.
const TRIM_MARGIN_BYTES: usize = 256;
/// The reported end of both streams together, for a program that failed.
const MAX_LAST_WORDS_BYTES: usize = 1024;

/// When a run of the program last wrote something, and the end of its output.
#[derive(Clone, Debug, Default)]
pub struct LastOutput(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    last_write: AtomicU64,
    /// The end of both streams.
    both: Mutex<Vec<u8>>,
    /// The end of standard output alone: the result of a program that writes no result file.
    out: Mutex<Vec<u8>>,
}

/// A stream of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

impl LastOutput {
    /// When the program last wrote something.
    pub fn last_write(&self) -> BootTime {
        BootTime::from_millis(self.0.last_write.load(Ordering::Relaxed))
    }

    /// The end of both streams, at most 1024 bytes, as plain text without white space around it.
    pub fn tail(&self) -> String {
        text(&self.0.both, MAX_LAST_WORDS_BYTES)
    }

    /// The end of standard output, at most as long as a result, as plain text without white space around it.
    pub fn standard_output(&self) -> String {
        text(&self.0.out, MAX_RESULT_BYTES)
    }

    fn wrote(&self, chunk: &[u8], stream: Stream, plain: &mut PlainText) {
        self.0.last_write.store(BootTime::now().millis(), Ordering::Relaxed);
        // Both buffers read the chunk from the same state of the parser.
        let before = plain.clone();
        keep(&self.0.both, MAX_LAST_WORDS_BYTES, chunk, plain);
        match stream {
            Stream::Out => keep(&self.0.out, MAX_RESULT_BYTES, chunk, &mut before.clone()),
            Stream::Err => {}
        }
    }
}

/// Adds the plain text of a chunk, and keeps the end.
fn keep(kept: &Mutex<Vec<u8>>, most: usize, chunk: &[u8], plain: &mut PlainText) {
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    plain.push(chunk, &mut kept);
    let over = kept.len().saturating_sub(most + TRIM_MARGIN_BYTES);
    kept.drain(..over);
}

/// The last `most` bytes as text.
fn text(kept: &Mutex<Vec<u8>>, most: usize) -> String {
    let kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    let end = kept.trim_ascii_end();
    let last = end.get(end.len().saturating_sub(most)..).unwrap_or(end);
    // The cut may divide a character, so that up to three bytes of it are left.
    let begin = last.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count();
    let mut text = String::from_utf8_lossy(last.get(begin..).unwrap_or_default()).trim().to_owned();
    // A byte that is no text becomes three bytes.
    if text.len() > most {
        text.drain(..text.ceil_char_boundary(text.len() - most));
    }
    text
}

/// Copies `from` to `to` until its end, and drops `ended` then.
pub fn copy(
    (mut from, stream): (impl Read + Send + 'static, Stream),
    mut to: impl Write + Send + 'static,
    last: LastOutput,
    ended: mpsc::Sender<()>,
) -> io::Result<()> {
    let copying = move || {
        let _ended = ended;
        let mut chunk = vec![0_u8; READ_CHUNK_BYTES];
        let mut plain = PlainText::default();
        let mut lost = false;
        loop {
            let read = match from.read(&mut chunk) {
                Ok(0) => return,
                Ok(read) => chunk.get(..read).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return,
            };
            last.wrote(read, stream, &mut plain);
            lost = lost || to.write_all(read).and_then(|()| to.flush()).is_err();
        }
    };
    std::thread::Builder::new().name("output".into()).stack_size(THREAD_STACK_BYTES).spawn(copying).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrote(last: &LastOutput, chunk: &[u8]) {
        last.wrote(chunk, Stream::Out, &mut PlainText::default());
    }

    #[test]
    fn the_tail_is_the_end_of_all_that_was_written() {
        let last = LastOutput::default();
        assert_eq!(last.tail(), "");
        wrote(&last, b"  one\n");
        wrote(&last, b"two\n");
        assert_eq!(last.tail(), "one\ntwo");
        wrote(&last, &[b'x'; 5000]);
        wrote(&last, b"end\n\n");
        assert_eq!(last.tail(), format!("{}end", "x".repeat(MAX_LAST_WORDS_BYTES - 3)));
        wrote(&last, "\u{20ac}".repeat(400).as_bytes());
        assert_eq!(last.tail(), "\u{20ac}".repeat(341), "1024 bytes are 341 of them and a broken one, which is left out");
    }

    #[test]
    fn standard_output_stands_alone_and_both_are_plain() {
        let last = LastOutput::default();
        let (mut out, mut err) = (PlainText::default(), PlainText::default());
        last.wrote(b"\x1b[32mans", Stream::Out, &mut out);
        last.wrote(b"\x1b[33mwarning\x1b[0m\n", Stream::Err, &mut err);
        last.wrote(b"wer\x1b[", Stream::Out, &mut out);
        last.wrote(b"0m\n", Stream::Out, &mut out);
        assert_eq!((last.standard_output().as_str(), last.tail().as_str()), ("answer", "answarning\nwer"));
    }

    #[test]
    fn what_is_kept_is_bounded_whatever_is_written() {
        let last = LastOutput::default();
        for chunk in [vec![0xff_u8; 100_000], vec![b'x'; 100_000], vec![0x1b; 100_000], vec![b'\n'; 100_000], vec![0xff_u8; 100_000]] {
            wrote(&last, &chunk);
            let (both, out) = (last.0.both.lock().expect("both").len(), last.0.out.lock().expect("out").len());
            assert!(both <= MAX_LAST_WORDS_BYTES + TRIM_MARGIN_BYTES && out <= MAX_RESULT_BYTES + TRIM_MARGIN_BYTES, "{both}, {out}");
            assert!(last.tail().len() <= MAX_LAST_WORDS_BYTES && last.standard_output().len() <= MAX_RESULT_BYTES);
        }
    }
}
