//! What is at a path, how it changes, and how both are sent: a line of JSON for each, and after it the content of a file.

use std::io::{self, BufRead, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::path::RelativePath;

/// The most bytes of a line. A path in JSON has up to six bytes for each of its own, and so has the target of a link.
pub const MAX_LINE_BYTES: usize = 64 * 1024;
/// The bytes of one read or write.
pub const BUFFER_BYTES: usize = 64 * 1024;

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Content {
    /// A file.
    File {
        /// Whether its owner may run it.
        executable: bool,
        /// Its bytes.
        size: u64,
        /// SHA-256 of its bytes, as hexadecimal digits.
        sha256: String,
    },
    /// A symbolic link.
    Link {
        /// Its target.
        target: String,
    },
}

/// A path of a copy, as a line of its manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The path.
    pub path: RelativePath,
    /// What is there.
    pub content: Content,
}

/// The change of a path. As a line of a stream, the bytes of `new` follow it if that is a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The path.
    pub path: RelativePath,
    /// What the work began from. None: nothing was there.
    pub old: Option<Content>,
    /// What it becomes. None: it is removed.
    pub new: Option<Content>,
}

impl Change {
    /// The bytes that follow its line.
    pub fn following_bytes(&self) -> u64 {
        match &self.new {
            Some(Content::File { size, .. }) => *size,
            Some(Content::Link { .. }) | None => 0,
        }
    }
}

/// A line of the stream of a folder's copy. The bytes of a file follow its line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CopyLine {
    /// A file.
    File {
        /// The path.
        path: RelativePath,
        /// Whether its owner may run it.
        executable: bool,
        /// Its bytes, which follow.
        size: u64,
    },
    /// A symbolic link.
    Link {
        /// The path.
        path: RelativePath,
        /// Its target.
        target: String,
    },
    /// The last line of a whole copy.
    End,
}

/// Writes a record as a line; returns the line without its end.
pub fn write_line(out: &mut dyn Write, record: &impl Serialize) -> io::Result<Vec<u8>> {
    let line = serde_json::to_vec(record)?;
    out.write_all(&line)?;
    out.write_all(b"\n")?;
    Ok(line)
}

/// Reads a line; returns its bytes without its end, and the record. None: the stream has ended before the first byte.
pub fn read_line<T: DeserializeOwned>(input: &mut dyn BufRead) -> io::Result<Option<(Vec<u8>, T)>> {
    let mut line = Vec::new();
    let limit = u64::try_from(MAX_LINE_BYTES + 1).unwrap_or(u64::MAX);
    if input.take(limit).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    if line.pop() != Some(b'\n') {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a line is cut off or too long"));
    }
    let record = serde_json::from_slice(&line).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(Some((line, record)))
}

/// Copies exactly `size` bytes, and gives each piece to `seen`.
pub fn copy_bytes(from: &mut dyn Read, to: &mut dyn Write, size: u64, mut seen: impl FnMut(&[u8])) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut left = size;
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let count = from.read(buffer.get_mut(..most).unwrap_or_default())?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let piece = buffer.get(..count).unwrap_or_default();
        seen(piece);
        to.write_all(piece)?;
        left = left.saturating_sub(u64::try_from(count).unwrap_or(u64::MAX));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> RelativePath {
        RelativePath::parse(text).expect("a path")
    }

    #[test]
    fn records_are_read_as_they_were_written_with_the_bytes_between_them() {
        let content = Content::File { executable: true, size: 5, sha256: "ab".into() };
        let changes = [
            Change { path: path("a\n/b"), old: None, new: Some(content) },
            Change { path: path("c"), old: Some(Content::Link { target: "a".into() }), new: None },
        ];
        let mut stream = Vec::new();
        for change in &changes {
            write_line(&mut stream, change).expect("written");
            stream.extend(vec![b'\n'; usize::try_from(change.following_bytes()).expect("few")]);
        }
        let mut input = stream.as_slice();
        for change in &changes {
            let (_, read) = read_line::<Change>(&mut input).expect("a line").expect("a record");
            assert_eq!(&read, change);
            copy_bytes(&mut input, &mut io::sink(), read.following_bytes(), |_| ()).expect("its bytes");
        }
        assert!(read_line::<Change>(&mut input).expect("the end").is_none());
    }

    #[test]
    fn lines_that_are_cut_off_or_too_long_or_name_other_folders_are_refused() {
        let long = format!("{:?}\n", "x".repeat(MAX_LINE_BYTES));
        for bad in ["{", "{}\n", "{\"path\":\"../a\",\"old\":null,\"new\":null}\n", "\"End\"", long.as_str()] {
            assert!(read_line::<Change>(&mut bad.as_bytes()).is_err(), "{bad:.60}");
        }
        assert!(copy_bytes(&mut b"abc".as_slice(), &mut io::sink(), 4, |_| ()).is_err(), "a stream that is cut off");
    }
}
