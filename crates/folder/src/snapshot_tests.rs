use std::fs;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use rustix::fs::{CWD, Mode, mkfifoat};

use super::*;
use crate::Outcome;
use crate::samples::{Node, assert_clean, commit, copy, files, quick, read_copy, read_tree, temporary, write_tree};
use crate::steps::Steps;

/// A reader that stops after some bytes until it may go on.
struct Stalled {
    read: Vec<u8>,
    stops_at: usize,
    stopped: Sender<()>,
    go_on: Receiver<()>,
}

impl Write for Stalled {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.read.len() >= self.stops_at {
            self.stops_at = usize::MAX;
            self.stopped.send(()).expect("the test waits");
            self.go_on.recv().expect("the test goes on");
        }
        let count = bytes.len().min(7);
        self.read.extend(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_reader_that_stops_blocks_no_commit_and_gets_the_old_folder() {
    let root = temporary();
    let old = files(&[("a", "old"), ("b", "old"), ("c/d", "old")]);
    let new = files(&[("a", "new"), ("e", "new")]);
    write_tree(root.path(), &old);
    let (stopped, is_stopped) = channel();
    let (go_on, may_go_on) = channel();
    let folder = quick(root.path());
    let read = thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut out = Stalled { read: Vec::new(), stops_at: 10, stopped, go_on: may_go_on };
            folder.copy(&mut out).expect("a copy");
            out.read
        });
        is_stopped.recv().expect("the reader stops");
        assert_eq!(commit(&quick(root.path()), &old, &new).expect("an outcome"), Outcome::Committed);
        assert_eq!(copy(&quick(root.path())), new);
        go_on.send(()).expect("the reader waits");
        reader.join().expect("no panic")
    });
    assert_eq!(read_copy(&read), old);
    assert_eq!(read_tree(root.path()), new);
    assert_clean(root.path());
}

#[test]
fn a_copy_has_all_files_and_links_in_one_order() {
    let root = temporary();
    let mut tree = files(&[("a", ""), ("a-b", "1"), ("c-", "1"), ("c/d/e", "2"), ("c/\n-rf", "3"), ("x/.spillways", "4")]);
    tree.insert("c/link".into(), Node::Link("../missing".into()));
    tree.insert("run".into(), Node::File("5".into(), true));
    write_tree(root.path(), &tree);
    fs::create_dir_all(root.path().join("empty/folders")).expect("folders");
    let folder = quick(root.path());
    let (mut first, mut second) = (Vec::new(), Vec::new());
    let snapshot = folder.snapshot().expect("a snapshot");
    assert_eq!(fs::metadata(root.path().join("a")).expect("a file").nlink(), 2, "a second name");
    snapshot.stream(&mut first).expect("a copy");
    // A snapshot of a process that lives is not removed.
    folder.copy(&mut second).expect("a copy");
    snapshot.stream(&mut io::sink()).expect("a copy");
    drop(snapshot);
    assert_eq!(read_copy(&first), tree);
    assert_eq!(first, second);
    let at = |path: &str| first.windows(path.len()).position(|bytes| bytes == path.as_bytes()).expect("a path");
    assert!(at(r#""c-""#) < at(r#""c/d/e""#), "the order of the paths");
    assert_clean(root.path());
}

/// A file system without hard links.
struct NoHardLinks;

impl Steps for NoHardLinks {
    fn reached(&self, step: &'static str) -> rustix::io::Result<()> {
        if step == "make a hard link" { Err(Errno::OPNOTSUPP) } else { Ok(()) }
    }

    fn sync(&self, _file: BorrowedFd<'_>) -> rustix::io::Result<()> {
        Ok(())
    }
}

#[test]
fn files_are_copied_where_there_are_no_hard_links() {
    let root = temporary();
    let old = files(&[("a", "old"), ("b/c", "old")]);
    write_tree(root.path(), &old);
    let folder = Folder::open_with(root.path(), "", Arc::new(NoHardLinks)).expect("a folder");
    let snapshot = folder.snapshot().expect("a snapshot");
    commit(&folder, &old, &files(&[("a", "new")])).expect("committed");
    let mut copy = Vec::new();
    snapshot.stream(&mut copy).expect("a copy");
    assert_eq!(read_copy(&copy), old);
}

#[test]
fn folders_that_cannot_be_copied_are_refused_with_the_path() {
    let deep = "d/".repeat(MAX_DEPTH + 1);
    for (number, path) in ["pipe", "set-id", "sub/link", "own-link", "not-utf8", deep.as_str()].into_iter().enumerate() {
        let root = temporary();
        let at = root.path().join(path);
        fs::create_dir_all(at.parent().expect("a parent")).expect("folders");
        match number {
            0 => mkfifoat(CWD, &at, Mode::from_raw_mode(0o666)).expect("a pipe"),
            1 => {
                fs::write(&at, "1").expect("a file");
                fs::set_permissions(&at, fs::Permissions::from_mode(0o2755)).expect("its mode");
            }
            2 => symlink("../../etc", &at).expect("a link"),
            3 => symlink(".spillway/lock", &at).expect("a link"),
            4 => fs::write(root.path().join(OsStr::from_bytes(b"not-utf8\xff")), "1").expect("a file"),
            _ => fs::create_dir_all(&at).expect("folders"),
        }
        let mut out = Vec::new();
        let error = quick(root.path()).copy(&mut out).expect_err("an error");
        let is_expected = match number {
            0 | 1 => matches!(error, FolderError::Unsupported { .. }),
            2 | 3 => matches!(error, FolderError::LinkLeaves { .. }),
            4 => matches!(error, FolderError::NotUtf8 { .. }),
            _ => matches!(error, FolderError::TooDeep { .. }),
        };
        assert!(is_expected && error.is_final(), "{path}: {error}");
        assert!(error.to_string().contains(path.trim_end_matches('/')), "{path}: {error}");
        assert!(out.is_empty());
        assert_clean(root.path());
    }
}
