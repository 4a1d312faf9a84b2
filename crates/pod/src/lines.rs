//! JSON over the unix socket: one object per line, of bounded length.

use std::io;

use serde::Serialize;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// The next line, without its end. `None`: the other side closed the connection. A line over `most` bytes is an error of the
/// kind [`io::ErrorKind::FileTooLarge`], and is not read further.
///
/// Do not use it in a `select!`: when the future is dropped, the part of the line that was read is lost.
pub async fn read(from: &mut (impl AsyncBufRead + Unpin), most: usize) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    loop {
        let part = from.fill_buf().await?;
        if part.is_empty() {
            return Ok(if line.is_empty() { None } else { Some(line) });
        }
        let end = part.iter().position(|byte| *byte == b'\n');
        let taken = end.unwrap_or(part.len());
        if line.len() + taken > most {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("a line has more than {most} bytes")));
        }
        line.extend_from_slice(part.get(..taken).unwrap_or_default());
        from.consume(end.map_or(taken, |end| end + 1));
        if end.is_some() {
            return Ok(Some(line));
        }
    }
}

/// `value` as a line.
pub fn line(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(line)
}

/// Writes `value` as a line.
pub async fn write(to: &mut (impl AsyncWrite + Unpin), value: &impl Serialize) -> io::Result<()> {
    to.write_all(&line(value)?).await?;
    to.flush().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn lines_end_at_their_end_and_at_their_limit() {
        let mut from = tokio::io::BufReader::with_capacity(2, &b"abc\n\nlast"[..]);
        for expected in [Some("abc"), Some(""), Some("last"), None] {
            let line = read(&mut from, 8).await.expect("a line");
            assert_eq!(line.as_deref(), expected.map(str::as_bytes));
        }
        let mut from = tokio::io::BufReader::with_capacity(2, &b"abcd"[..]);
        assert_eq!(read(&mut from, 3).await.expect_err("too long").kind(), io::ErrorKind::FileTooLarge);
    }
}
