//! Sending the changes to the sidecar, which makes them in the folder.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use hyper::{Method, StatusCode};
use spillway_folder::record::{Change, Content, read_line};
use spillway_wire::changeset::reasons;

use super::files::open_plain;
use super::port::{self, Failure};
use super::{CHANGES_NAME, CONTENTS_NAME};
use crate::agent::changeset::{StepFailure, StepResult};

/// Sends the changes in `own`. The sidecar makes them if it was told of their digest. Changes whose answer was lost are not made twice.
pub fn apply(url: &str, own: &Path) -> Result<StepResult, String> {
    port::with_retries(|| attempt(url, own))
}

/// Sends the changes once.
pub fn attempt(url: &str, own: &Path) -> Result<StepResult, Failure> {
    let size = ChangesStream::open(own)?.size()?;
    let answer = port::request(url, Method::POST, Some((Box::new(ChangesStream::open(own)?), size)))?;
    match answer.status {
        StatusCode::OK => Ok(StepResult::Pushed),
        StatusCode::CONFLICT => Ok(StepResult::Refused(StepFailure::new(reasons::CHANGESET_CONFLICT, answer.text()))),
        StatusCode::SERVICE_UNAVAILABLE => Err(Failure::Passing(answer.text())),
        _ => Err(Failure::Final(answer.text())),
    }
}

/// The lines of the list, each followed by the content of its file.
struct ChangesStream {
    list: BufReader<File>,
    contents: PathBuf,
    number: usize,
    /// The line or the file that is being read.
    part: Option<Part>,
    /// The file after the line.
    next: Option<PathBuf>,
}

enum Part {
    Line(io::Cursor<Vec<u8>>),
    File(File),
}

impl ChangesStream {
    fn open(own: &Path) -> io::Result<Self> {
        let list = BufReader::new(open_plain(&own.join(CHANGES_NAME))?);
        Ok(Self { list, contents: own.join(CONTENTS_NAME), number: 0, part: None, next: None })
    }

    /// The bytes of the whole stream.
    fn size(mut self) -> io::Result<u64> {
        let mut size = 0;
        while let Some((line, change)) = read_line::<Change>(&mut self.list)? {
            size += line.len() as u64 + 1 + change.following_bytes();
        }
        Ok(size)
    }

    /// The next line or file. None: the stream is at its end.
    fn advance(&mut self) -> io::Result<Option<Part>> {
        if let Some(path) = self.next.take() {
            return Ok(Some(Part::File(open_plain(&path)?)));
        }
        let Some((mut line, change)) = read_line::<Change>(&mut self.list)? else { return Ok(None) };
        line.push(b'\n');
        if matches!(change.new, Some(Content::File { .. })) {
            self.next = Some(self.contents.join(self.number.to_string()));
        }
        self.number += 1;
        Ok(Some(Part::Line(io::Cursor::new(line))))
    }
}

impl Read for ChangesStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let count = match &mut self.part {
                Some(Part::Line(line)) => line.read(buffer)?,
                Some(Part::File(file)) => file.read(buffer)?,
                None => 0,
            };
            if count > 0 || buffer.is_empty() {
                return Ok(count);
            }
            self.part = self.advance()?;
            if self.part.is_none() {
                return Ok(0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use spillway_folder::path::RelativePath;
    use spillway_folder::record::{copy_bytes, write_line};

    use super::*;
    use crate::command::git::samples::folder;

    #[test]
    fn each_line_is_followed_by_the_content_of_its_file() {
        let own = folder("apply");
        let path = |text: &str| RelativePath::parse(text).expect("a path");
        let file = |size| Some(Content::File { executable: false, size, sha256: String::new() });
        let changes = [
            Change { path: path("a"), old: None, new: file(3) },
            Change { path: path("b"), old: file(1), new: None },
            Change { path: path("c"), old: None, new: file(0) },
            Change { path: path("d"), old: None, new: file(2) },
        ];
        let mut list = Vec::new();
        changes.iter().for_each(|change| drop(write_line(&mut list, change).expect("written")));
        fs::write(own.0.join(CHANGES_NAME), list).expect("a list");
        fs::create_dir(own.0.join(CONTENTS_NAME)).expect("a folder");
        for (number, content) in [("0", "\n{}"), ("2", ""), ("3", "d\n")] {
            fs::write(own.0.join(CONTENTS_NAME).join(number), content).expect("a file");
        }
        let mut sent = Vec::new();
        ChangesStream::open(&own.0).expect("opened").read_to_end(&mut sent).expect("read");
        assert_eq!(ChangesStream::open(&own.0).expect("opened").size().expect("a size"), sent.len() as u64);
        let mut input = sent.as_slice();
        let mut contents = Vec::new();
        for expected in &changes {
            let (_, change) = read_line::<Change>(&mut input).expect("a line").expect("a change");
            assert_eq!(&change, expected);
            let mut content = Vec::new();
            copy_bytes(&mut input, &mut content, change.following_bytes(), |_| ()).expect("its content");
            contents.push(String::from_utf8(content).expect("text"));
        }
        assert_eq!((contents.concat().as_str(), input), ("\n{}d\n", &b""[..]));
    }
}
