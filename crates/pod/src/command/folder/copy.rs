//! A fresh copy of the folder in the workspace of an item, and its manifest.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};

use hyper::{Method, StatusCode};
use sha2::{Digest as _, Sha256};
use spillway_folder::path::RelativePath;
use spillway_folder::record::{Content, CopyLine, Entry, copy_bytes, read_line, write_line};
use spillway_wire::text::hex;

use super::MANIFEST_NAME;
use super::files::obstacle;
use super::port::{self, Failure};
use crate::agent::home::Home;
use crate::command::git::folder;

/// Makes the copy of the folder in `workspace`, and its manifest in `own`. Both are emptied first. Then the files of the pool are put
/// in. Returns SHA-256 of the manifest.
pub fn copy(url: &str, workspace: &Path, own: &Path, files: &Home) -> Result<String, String> {
    let base = port::with_retries(|| {
        for path in [workspace, own] {
            folder::empty(path)
                .map_err(|error| Failure::Final(format!("cannot remove what an earlier item left in {}: {error}", path.display())))?;
        }
        let answer = port::request(url, Method::GET, None)?;
        match answer.status {
            StatusCode::OK => receive(BufReader::new(answer), workspace, own),
            StatusCode::SERVICE_UNAVAILABLE => Err(Failure::Passing(answer.text())),
            _ => Err(Failure::Final(answer.text())),
        }
    })?;
    let copies: Vec<PathBuf> = files.files.iter().map(|(_, to)| to.clone()).collect();
    if let Some(why) = obstacle(workspace, &copies) {
        return Err(why);
    }
    files.make().map_err(|error| format!("{error} (spec.agent.files)"))?;
    Ok(base)
}

/// Reads a copy, and writes it and its manifest; returns SHA-256 of the manifest.
fn receive(mut stream: impl BufRead, workspace: &Path, own: &Path) -> Result<String, Failure> {
    let path = own.join(MANIFEST_NAME);
    let mut manifest = BufWriter::new(File::create_new(&path).map_err(|error| about("write", &path, &error))?);
    let mut digest = Sha256::new();
    loop {
        let line = read_line::<CopyLine>(&mut stream).map_err(|error| cut_off(&error))?;
        let entry = match line.map(|(_, line)| line) {
            Some(CopyLine::File { path, executable, size }) => {
                let sha256 = write_file(&mut stream, &target(workspace, &path)?, executable, size)?;
                Entry { path, content: Content::File { executable, size, sha256 } }
            }
            Some(CopyLine::Link { path, target: to }) => {
                let at = target(workspace, &path)?;
                symlink(&to, &at).map_err(|error| about("write", &at, &error))?;
                Entry { path, content: Content::Link { target: to } }
            }
            Some(CopyLine::End) => break,
            None => return Err(cut_off(&io::ErrorKind::UnexpectedEof.into())),
        };
        let line = write_line(&mut manifest, &entry).map_err(|error| about("write", &path, &error))?;
        digest.update(&line);
        digest.update(b"\n");
    }
    manifest.flush().map_err(|error| about("write", &path, &error))?;
    Ok(hex(&digest.finalize()))
}

/// Where a path is in the workspace. Its folders are made.
fn target(workspace: &Path, path: &RelativePath) -> Result<std::path::PathBuf, Failure> {
    let at = workspace.join(path.as_str());
    if let Some(folder) = at.parent() {
        fs::create_dir_all(folder).map_err(|error| about("make", folder, &error))?;
    }
    Ok(at)
}

fn write_file(stream: &mut dyn BufRead, path: &Path, executable: bool, size: u64) -> Result<String, Failure> {
    let mode = if executable { 0o755 } else { 0o644 };
    let opened = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    let mut file = opened.map_err(|error| about("write", path, &error))?;
    let (mut digest, mut failed) = (Sha256::new(), None);
    let mut sink = FileSink { file: &mut file, failed: &mut failed };
    let copied = copy_bytes(&mut *stream, &mut sink, size, |piece| digest.update(piece));
    match (copied, failed) {
        (Ok(()), _) => Ok(hex(&digest.finalize())),
        (Err(_), Some(error)) => Err(about("write", path, &error)),
        (Err(error), None) => Err(cut_off(&error)),
    }
}

/// A file that remembers its own error: an error of the stream may pass, and one of the disk does not.
struct FileSink<'a> {
    file: &'a mut File,
    failed: &'a mut Option<io::Error>,
}

impl Write for FileSink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes).map_err(|error| {
            let kind = error.kind();
            *self.failed = Some(error);
            kind.into()
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn about(what: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::Final(format!("cannot {what} {}: {error}", path.display()))
}

fn cut_off(error: &io::Error) -> Failure {
    Failure::Passing(format!("the copy of the folder was cut off: {error}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::command::git::samples::folder;

    fn path(text: &str) -> RelativePath {
        RelativePath::parse(text).expect("a path")
    }

    /// A stream of two files and a link, with this last line.
    fn stream(last: Option<&CopyLine>) -> Vec<u8> {
        let mut stream = Vec::new();
        for (line, content) in [
            (CopyLine::File { path: path("a b/run.sh"), executable: true, size: 3 }, "\n{}"),
            (CopyLine::File { path: path("empty"), executable: false, size: 0 }, ""),
            (CopyLine::Link { path: path("link"), target: "empty".into() }, ""),
        ] {
            write_line(&mut stream, &line).expect("written");
            stream.extend(content.as_bytes());
        }
        last.into_iter().for_each(|last| drop(write_line(&mut stream, last).expect("written")));
        stream
    }

    #[test]
    fn a_copy_is_written_with_its_manifest() {
        let (workspace, own) = (folder("copy"), folder("copy-own"));
        let base = receive(stream(Some(&CopyLine::End)).as_slice(), &workspace.0, &own.0).expect("received");
        let manifest = fs::read(own.0.join(MANIFEST_NAME)).expect("a manifest");
        assert_eq!(hex(&Sha256::digest(&manifest)), base);
        let (_, first) = read_line::<Entry>(&mut manifest.as_slice()).expect("a line").expect("an entry");
        let sha256 = hex(&Sha256::digest(b"\n{}"));
        assert_eq!(first, Entry { path: path("a b/run.sh"), content: Content::File { executable: true, size: 3, sha256 } });
        assert_eq!(fs::read_to_string(workspace.0.join("a b/run.sh")).expect("a file"), "\n{}");
        let mode = |name: &str| fs::metadata(workspace.0.join(name)).expect("there").permissions().mode() & 0o100;
        assert_eq!((mode("a b/run.sh"), mode("empty")), (0o100, 0));
        assert_eq!(fs::read_link(workspace.0.join("link")).expect("a link"), Path::new("empty"));
    }

    #[test]
    fn a_copy_without_its_end_is_none() {
        let whole = stream(None);
        for cut in 0..=whole.len() {
            let (workspace, own) = (folder("copy-cut"), folder("copy-cut-own"));
            let failure = receive(whole.get(..cut).expect("a part"), &workspace.0, &own.0).expect_err("cut off");
            assert!(matches!(failure, Failure::Passing(_)), "{cut}: {failure:?}");
        }
    }
}
