//! The task of an item, read from a file or from standard input. An input that is too large is not read to its end.

use std::fs::File;
use std::io::{self, Read};

use crate::error::Error;

/// The most bytes that are read. It is above the limit of a payload, so that an error can name the size of most inputs.
const MAX_READ_BYTES: u64 = 1 << 20;
/// U+FEFF in UTF-8, at the beginning of a file.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Reads a file.
pub fn read_file(path: &str) -> Result<String, Error> {
    let file = File::open(path).map_err(|error| Error::Usage(format!("cannot read {path}: {error}")))?;
    text(path, file)
}

/// Reads standard input.
pub fn read_stdin() -> Result<String, Error> {
    text("standard input", io::stdin().lock())
}

/// Reads a text, which an error calls `what`.
pub fn text(what: &str, from: impl Read) -> Result<String, Error> {
    let mut bytes = Vec::new();
    from.take(MAX_READ_BYTES).read_to_end(&mut bytes).map_err(|error| Error::Usage(format!("cannot read {what}: {error}")))?;
    if bytes.len() as u64 == MAX_READ_BYTES {
        return Err(Error::Usage(format!(
            "{what} has at least {MAX_READ_BYTES} bytes: {}",
            limit_advice(crate::api::work_queue::MAX_PAYLOAD_BYTES)
        )));
    }
    // Editors and shells on Windows begin a text with a byte order mark, which is not part of the text.
    let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&bytes).to_vec();
    String::from_utf8(bytes).map_err(|_| Error::Usage(format!("{what} is not UTF-8 text: a payload is JSON or text")))
}

/// The error text for a task above its limit. Sizes are in bytes.
pub fn too_large(size: usize, limit: usize) -> String {
    format!("the payload has {size} bytes: {}", limit_advice(limit))
}

fn limit_advice(limit: impl std::fmt::Display) -> String {
    format!("the limit is {limit}; put larger input into a repository or a volume, and name it in the payload")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_taken_as_it_is_and_all_else_is_refused() {
        assert_eq!(text("it", "two\nlines\n".as_bytes()).expect("text"), "two\nlines\n");
        assert_eq!(text("it", "\u{feff}{\"a\": 1}\r\n".as_bytes()).expect("text"), "{\"a\": 1}\r\n");
        assert!(text("it", &b"\xff\xfeh\0i\0"[..]).is_err(), "UTF-16 is refused and not guessed at");
        assert!(text("it", &b"\xff"[..]).expect_err("refused").to_string().contains("not UTF-8"));
        assert!(
            text("it", io::repeat(b'x')).expect_err("refused").to_string().starts_with("it has at least 1048576 bytes: the limit is 16384")
        );
        assert!(read_file("/nowhere/at/all").expect_err("refused").to_string().starts_with("cannot read /nowhere/at/all: "));
        assert!(too_large(20_000, 16_384).starts_with("the payload has 20000 bytes: the limit is 16384"));
    }
}
