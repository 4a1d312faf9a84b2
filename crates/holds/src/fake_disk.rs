//! A simulated disk for tests: it can be full, fail, write less than requested, or stop at any step.
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use crate::disk::Disk;
use crate::fake_leader::Random;

/// Bytes of a page.
const PAGE: usize = 64;

/// The content of a file, independent of its name.
#[derive(Default)]
struct Content {
    bytes: Vec<u8>,
    pages: usize,
}

type Inode = Arc<Mutex<Content>>;

pub struct State {
    names: BTreeMap<String, Inode>,
    inodes: Vec<Weak<Mutex<Content>>>,
    pub capacity: usize,
    /// Bytes that other files occupy.
    pub occupied: usize,
    random: Random,
    /// One step in this many fails. 0: none fails.
    pub fails: u64,
    /// After this many steps the disk stops.
    pub stops: Option<u32>,
    pub steps: u32,
}

/// The disk. Cheap to clone. Its content outlives its users.
#[derive(Clone)]
pub struct FakeDisk(Arc<Mutex<State>>);

pub struct FakeFile {
    disk: FakeDisk,
    inode: Inode,
    at: usize,
}

/// The outcome of a step.
enum Step {
    Done,
    Fails(io::Error),
    /// The process ends during the step.
    Ends,
}

fn ended() -> io::Error {
    io::Error::other("the process ended")
}

fn full() -> io::Error {
    io::ErrorKind::StorageFull.into()
}

fn locked(inode: &Inode) -> MutexGuard<'_, Content> {
    inode.lock().expect("a file")
}

impl FakeDisk {
    pub fn new(capacity: usize, seed: u64) -> Self {
        let state = State {
            names: BTreeMap::new(),
            inodes: Vec::new(),
            capacity,
            occupied: 0,
            random: Random(seed | 1),
            fails: 0,
            stops: None,
            steps: 0,
        };
        Self(Arc::new(Mutex::new(state)))
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("a disk")
    }

    /// Whether the process ended during a step.
    pub fn has_stopped(&self) -> bool {
        self.state().stops == Some(0)
    }

    pub fn put(&self, name: &str, bytes: &[u8]) {
        let content = Content { bytes: bytes.to_vec(), pages: bytes.len().div_ceil(PAGE) };
        let inode = Arc::new(Mutex::new(content));
        let mut state = self.state();
        state.inodes.push(Arc::downgrade(&inode));
        state.names.insert(name.to_owned(), inode);
    }

    fn step(&self) -> Result<(), io::Error> {
        match self.state().step() {
            Step::Done => Ok(()),
            Step::Fails(error) => Err(error),
            Step::Ends => Err(ended()),
        }
    }
}

impl State {
    fn step(&mut self) -> Step {
        self.steps += 1;
        match self.stops {
            Some(0) => return Step::Ends,
            Some(1) => {
                self.stops = Some(0);
                return Step::Ends;
            }
            Some(left) => self.stops = Some(left - 1),
            None => {}
        }
        if self.fails > 0 && self.random.one_in(self.fails) {
            return Step::Fails(if self.random.one_in(2) { full() } else { io::Error::from_raw_os_error(5) });
        }
        Step::Done
    }

    fn free(&mut self) -> usize {
        self.inodes.retain(|inode| inode.strong_count() > 0);
        let used: usize = self.inodes.iter().filter_map(Weak::upgrade).map(|inode| locked(&inode).pages * PAGE).sum();
        self.capacity.saturating_sub(used + self.occupied)
    }

    fn inode(&mut self, name: &str) -> Inode {
        if let Some(inode) = self.names.get(name) {
            return Arc::clone(inode);
        }
        let inode = Inode::default();
        self.inodes.push(Arc::downgrade(&inode));
        self.names.insert(name.to_owned(), Arc::clone(&inode));
        inode
    }

    /// Allocates up to `bytes` of space for a file. Whether it has all of them.
    fn grow(&mut self, inode: &Inode, bytes: usize) -> bool {
        let wanted = bytes.div_ceil(PAGE);
        let free = self.free() / PAGE;
        let mut content = locked(inode);
        let more = wanted.saturating_sub(content.pages);
        content.pages += more.min(free);
        more <= free
    }
}

impl io::Write for FakeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.disk.state();
        if state.stops == Some(0) {
            return Err(ended());
        }
        let outcome = state.step();
        // With any outcome a part may have been written. A short write is not an error.
        let part = match outcome {
            Step::Done if !(state.fails > 0 && state.random.one_in(4)) => bytes.len(),
            Step::Done | Step::Fails(_) | Step::Ends => {
                let most = u64::try_from(bytes.len()).expect("small") + 1;
                usize::try_from(state.random.below(most)).expect("small")
            }
        };
        let part = if matches!(outcome, Step::Done) { part.max(1).min(bytes.len()) } else { part };
        let whole = state.grow(&self.inode, self.at + part);
        let mut content = locked(&self.inode);
        let part = if whole { part } else { (content.pages * PAGE).saturating_sub(self.at).min(part) };
        let end = self.at + part;
        if content.bytes.len() < end {
            content.bytes.resize(end, 0);
        }
        content.bytes[self.at..end].copy_from_slice(&bytes[..part]);
        self.at = end;
        match outcome {
            Step::Fails(error) => Err(error),
            Step::Ends => Err(ended()),
            Step::Done if part == 0 => Err(full()),
            Step::Done => Ok(part),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Disk for FakeDisk {
    type File = FakeFile;

    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        self.step()?;
        Ok(self.state().names.get(name).map(|inode| locked(inode).bytes.clone()))
    }

    fn open(&self, name: &str) -> io::Result<FakeFile> {
        self.step()?;
        let inode = self.state().inode(name);
        Ok(FakeFile { disk: self.clone(), inode, at: 0 })
    }

    fn cut(&self, file: &FakeFile, bytes: u64) -> io::Result<()> {
        self.step()?;
        let bytes = usize::try_from(bytes).expect("small");
        let mut content = locked(&file.inode);
        content.bytes.resize(bytes, 0);
        content.pages = bytes.div_ceil(PAGE);
        Ok(())
    }

    fn reserve(&self, name: &str, bytes: u64) -> io::Result<()> {
        self.step()?;
        let bytes = usize::try_from(bytes).expect("small");
        let mut state = self.state();
        let inode = state.inode(name);
        let before = locked(&inode).pages;
        let whole = state.grow(&inode, bytes);
        let mut content = locked(&inode);
        if whole {
            let length = content.bytes.len().max(bytes);
            content.bytes.resize(length, 0);
            Ok(())
        } else {
            content.pages = before;
            Err(full())
        }
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        if state.stops == Some(0) {
            return Err(ended());
        }
        match state.step() {
            Step::Fails(error) => return Err(error),
            Step::Done => {}
            // The rename may have happened.
            Step::Ends if state.random.one_in(2) => {}
            Step::Ends => return Err(ended()),
        }
        let Some(inode) = state.names.remove(from) else { return Err(io::ErrorKind::NotFound.into()) };
        state.names.insert(to.to_owned(), inode);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.step()?;
        self.state().names.remove(name);
        Ok(())
    }
}
