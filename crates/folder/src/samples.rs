//! Folders, changes and crashes for tests.

use std::collections::BTreeMap;
use std::fs;
use std::io::BufRead as _;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::{Arc, Mutex};

use rustix::io::{Errno, Result};
use sha2::{Digest as _, Sha256};
use spillway_wire::text::hex;

use crate::error::FolderError;
use crate::folder::Folder;
use crate::path::{OWN_NAME, RelativePath};
use crate::record::{Change, Content, CopyLine, read_line, write_line};
use crate::steps::Steps;
use crate::{Outcome, Staged};

/// A folder in memory, where there is one: most tests make nothing durable, and a disk makes them slow.
pub fn temporary() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder")
}

/// A file or link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// Its bytes, and whether its owner may run it.
    File(String, bool),
    /// Its target.
    Link(String),
}

/// The files and links of a folder.
pub type Tree = BTreeMap<String, Node>;

impl Node {
    pub fn content(&self) -> Content {
        match self {
            Self::File(text, executable) => {
                Content::File { executable: *executable, size: text.len() as u64, sha256: hex(&Sha256::digest(text)) }
            }
            Self::Link(target) => Content::Link { target: target.clone() },
        }
    }
}

/// A tree of these plain files.
pub fn files(files: &[(&str, &str)]) -> Tree {
    files.iter().map(|(path, text)| ((*path).to_owned(), Node::File((*text).to_owned(), false))).collect()
}

pub fn write_tree(root: &Path, tree: &Tree) {
    for (path, node) in tree {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
        match node {
            Node::Link(target) => symlink(target, path).expect("a link"),
            Node::File(text, executable) => {
                fs::write(&path, text).expect("a file");
                fs::set_permissions(&path, fs::Permissions::from_mode(if *executable { 0o755 } else { 0o644 })).expect("its mode");
            }
        }
    }
}

pub fn read_tree(root: &Path) -> Tree {
    let mut tree = Tree::new();
    read_below(root, "", &mut tree);
    tree
}

fn read_below(root: &Path, above: &str, tree: &mut Tree) {
    for entry in fs::read_dir(root.join(above)).expect("a folder") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().into_string().expect("UTF-8");
        let path = if above.is_empty() { name } else { format!("{above}/{name}") };
        let kind = entry.file_type().expect("a kind");
        if path == OWN_NAME {
        } else if kind.is_dir() {
            read_below(root, &path, tree);
        } else if kind.is_symlink() {
            let target = fs::read_link(entry.path()).expect("a target");
            tree.insert(path, Node::Link(target.into_os_string().into_string().expect("UTF-8")));
        } else if kind.is_file() {
            let is_executable = entry.metadata().expect("its mode").permissions().mode() & 0o100 != 0;
            tree.insert(path, Node::File(fs::read_to_string(entry.path()).expect("its text"), is_executable));
        }
    }
}

/// The changes between two trees.
pub fn changes(old: &Tree, new: &Tree) -> Vec<Change> {
    let paths: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let content = |tree: &Tree, path: &String| tree.get(path).map(Node::content);
    let change =
        |path: &String| Change { path: RelativePath::parse(path).expect("a path"), old: content(old, path), new: content(new, path) };
    paths.into_iter().map(change).filter(|change| change.old != change.new).collect()
}

/// The stream of changes to this tree, and its digest.
pub fn stream(changes: &[Change], new: &Tree) -> (Vec<u8>, String) {
    let (mut stream, mut digest) = (Vec::new(), Sha256::new());
    for change in changes {
        digest.update(write_line(&mut stream, change).expect("a line"));
        digest.update(b"\n");
        if let Some(Node::File(text, _)) = new.get(change.path.as_str()) {
            stream.extend(text.as_bytes());
        }
    }
    (stream, hex(&digest.finalize()))
}

pub fn receive(folder: &Folder, old: &Tree, new: &Tree) -> std::result::Result<Staged, FolderError> {
    let (stream, digest) = stream(&changes(old, new), new);
    folder.receive(&mut stream.as_slice(), &digest, 1 << 20)
}

pub fn commit(folder: &Folder, old: &Tree, new: &Tree) -> std::result::Result<Outcome, FolderError> {
    folder.commit(receive(folder, old, new)?, &|| true)
}

/// The tree of a whole copy.
pub fn read_copy(mut copy: &[u8]) -> Tree {
    let mut tree = Tree::new();
    loop {
        match read_line(&mut copy).expect("a line").expect("not the end").1 {
            CopyLine::End => break,
            CopyLine::Link { path, target } => drop(tree.insert(path.into(), Node::Link(target))),
            CopyLine::File { path, executable, size } => {
                let (text, rest) = copy.split_at(usize::try_from(size).expect("few"));
                tree.insert(path.into(), Node::File(String::from_utf8(text.to_vec()).expect("UTF-8"), executable));
                copy = rest;
            }
        }
    }
    assert!(copy.fill_buf().expect("the end").is_empty());
    tree
}

pub fn copy(folder: &Folder) -> Tree {
    let mut copy = Vec::new();
    folder.copy(&mut copy).expect("a copy");
    read_copy(&copy)
}

/// Steps that are recorded, and at one of which the program is killed: no later step is made. They are not made durable.
#[derive(Default)]
pub struct Recorder {
    kill_at: Option<usize>,
    steps: Mutex<Vec<&'static str>>,
}

impl Recorder {
    pub fn new(kill_at: Option<usize>) -> Arc<Self> {
        Arc::new(Self { kill_at, steps: Mutex::default() })
    }

    /// The steps that were made.
    pub fn steps(&self) -> Vec<&'static str> {
        self.steps.lock().expect("no panic").clone()
    }

    /// Whether the program was killed.
    pub fn is_killed(&self) -> bool {
        self.kill_at.is_some_and(|at| self.steps().len() >= at)
    }
}

impl Steps for Recorder {
    fn reached(&self, step: &'static str) -> Result<()> {
        let mut steps = self.steps.lock().expect("no panic");
        if self.kill_at.is_some_and(|at| steps.len() >= at) {
            return Err(Errno::IO);
        }
        steps.push(step);
        Ok(())
    }

    fn sync(&self, _file: BorrowedFd<'_>) -> Result<()> {
        Ok(())
    }
}

/// A folder that is not made durable, and is killed before the step with this number.
pub fn open(root: &Path, recorder: &Arc<Recorder>) -> std::result::Result<Folder, FolderError> {
    Folder::open_with(root, "", Arc::<Recorder>::clone(recorder))
}

/// A folder that is not made durable.
pub fn quick(root: &Path) -> Folder {
    open(root, &Recorder::new(None)).expect("a folder")
}

/// Asserts that no commit is under way, and that there are no work folders.
pub fn assert_clean(root: &Path) {
    let own = root.join(OWN_NAME);
    assert!(!own.join("commit").exists(), "a commit is under way");
    assert_eq!(fs::read_dir(own.join("work")).expect("work folders").count(), 0, "work folders are left");
}
