//! What the program writes, copied to our own output, so that it can be seen that it writes, and what it wrote last.
//!
//! A thread a stream, with blocking reads and writes: whoever reads our output slowly slows the program, as without us, and
//! never the supervisor. If our output is closed the program's is read and dropped, and the program goes on.

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc;

use crate::clock::BootTime;

/// A thread's stack: it does nothing but copy.
const STACK: usize = 64 * 1024;
/// Read at once.
const CHUNK: usize = 16 * 1024;
/// What is kept of the end, of both streams together.
const TAIL: usize = 1024;

/// When a run of the program last wrote something, and what.
#[derive(Clone, Debug, Default)]
pub struct LastOutput(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    at: AtomicU64,
    tail: Mutex<Vec<u8>>,
}

impl LastOutput {
    /// When.
    pub fn get(&self) -> BootTime {
        BootTime::from_millis(self.0.at.load(Ordering::Relaxed))
    }

    /// The last of it, at most 1024 bytes, as text and without the space around it.
    pub fn tail(&self) -> String {
        let tail = self.0.tail.lock().unwrap_or_else(PoisonError::into_inner);
        // The cut may have gone through a character, of which up to three bytes are left.
        let begin = tail.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count();
        String::from_utf8_lossy(tail.get(begin..).unwrap_or_default()).trim().to_owned()
    }

    fn wrote(&self, chunk: &[u8]) {
        self.0.at.store(BootTime::now().millis(), Ordering::Relaxed);
        let mut tail = self.0.tail.lock().unwrap_or_else(PoisonError::into_inner);
        let last = chunk.get(chunk.len().saturating_sub(TAIL)..).unwrap_or(chunk);
        let over = (tail.len() + last.len()).saturating_sub(TAIL);
        tail.drain(..over);
        tail.extend_from_slice(last);
    }
}

/// Copies `from` to `to` until its end; holds `ended` as long.
pub fn copy(
    mut from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
    last: LastOutput,
    ended: mpsc::Sender<()>,
) -> io::Result<()> {
    let copying = move || {
        let _ended = ended;
        let mut chunk = vec![0_u8; CHUNK];
        let mut lost = false;
        loop {
            let read = match from.read(&mut chunk) {
                Ok(0) => return,
                Ok(read) => chunk.get(..read).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return,
            };
            last.wrote(read);
            lost = lost || to.write_all(read).and_then(|()| to.flush()).is_err();
        }
    };
    std::thread::Builder::new().name("output".into()).stack_size(STACK).spawn(copying).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_the_end_of_all_that_was_written() {
        let last = LastOutput::default();
        assert_eq!(last.tail(), "");
        last.wrote(b"  one\n");
        last.wrote(b"two\n");
        assert_eq!(last.tail(), "one\ntwo");
        last.wrote(&[b'x'; 5000]);
        last.wrote(b"end");
        assert_eq!(last.tail(), format!("{}end", "x".repeat(TAIL - 3)));
        last.wrote("\u{20ac}".repeat(400).as_bytes());
        assert_eq!(last.tail(), "\u{20ac}".repeat(341), "1024 bytes are 341 of them and a broken one, which is left out");
    }
}
