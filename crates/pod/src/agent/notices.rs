//! The file of notices in the program's data folder.
//!
//! The program may write any file there, so that nothing there is trusted: no link is followed, only a plain file with one name
//! is written, and reads are bounded. Any other file of that name is replaced. The folder itself is opened before the program
//! starts, and is a mount that the program cannot exchange.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, open, openat, renameat, unlinkat};
use spillway_wire::agent::Notice;

use crate::{FIRST_POD_NOTICE_ID, NOTICES_FILE};

/// The greatest size of the file.
const MAX_NOTICES_BYTES: u64 = 1024 * 1024;
/// The size to which a full file is shortened.
const KEPT_NOTICES_BYTES: u64 = MAX_NOTICES_BYTES / 2;
/// The temporary name of a shortened file.
const NEW_NOTICES_FILE: &str = ".notices.jsonl.new";

/// Queues a notice of the pod itself. At most `most` of them wait to be written: of more, the oldest is lost. A notice of the
/// governor is never dropped, because it would not come again after a later one was written.
pub fn queue_own(unwritten: &mut VecDeque<Notice>, notice: Notice, most: usize) {
    let own = |notice: &Notice| notice.id >= FIRST_POD_NOTICE_ID;
    if unwritten.iter().filter(|notice| own(notice)).count() >= most
        && let Some(oldest) = unwritten.iter().position(own)
    {
        unwritten.remove(oldest);
    }
    unwritten.push_back(notice);
}

/// Keeps the last `most` notices.
pub fn keep_last(notices: &mut VecDeque<Notice>, most: usize) {
    notices.drain(..notices.len().saturating_sub(most));
}

/// The data folder, with the file of notices.
#[derive(Debug)]
pub struct Notices {
    folder: OwnedFd,
    most: u64,
}

impl Notices {
    /// Opens `folder`.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let folder = open(folder, OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { folder, most: MAX_NOTICES_BYTES })
    }

    /// Appends a notice.
    pub fn append(&self, notice: &Notice) -> io::Result<()> {
        let line = crate::lines::line(notice)?;
        let length = line.len() as u64;
        if length > self.most {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "a notice is larger than the file may be"));
        }
        let mut file = self.file()?;
        let size = file.metadata()?.len();
        // A crash of the supervisor, or the program, may have left half a line.
        let broken = size > 0 && !ends_a_line(&mut file, size)?;
        if size + length + u64::from(broken) > self.most {
            file =
                self.shortened(&mut file, size, self.most.saturating_sub(length).min(self.most * KEPT_NOTICES_BYTES / MAX_NOTICES_BYTES))?;
        } else if broken {
            file.write_all(b"\n")?;
        }
        file.write_all(&line)
    }

    /// Opens the file, and replaces it if it is not a plain file.
    fn file(&self) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = openat(&self.folder, NOTICES_FILE, flags, Mode::from_raw_mode(0o644));
        if let Ok(file) = opened {
            let stat = fstat(&file)?;
            if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_nlink == 1 {
                return Ok(file.into());
            }
        }
        clear(&self.folder, NOTICES_FILE)?;
        Ok(openat(&self.folder, NOTICES_FILE, flags | OFlags::EXCL, Mode::from_raw_mode(0o644))?.into())
    }

    /// Replaces the file by a new one with its last whole lines, at most `keep` bytes.
    fn shortened(&self, file: &mut File, size: u64, keep: u64) -> io::Result<File> {
        let mut kept = Vec::new();
        file.seek(SeekFrom::Start(size.saturating_sub(keep)))?;
        file.take(keep).read_to_end(&mut kept)?;
        let first = if size > keep { kept.iter().position(|byte| *byte == b'\n').map_or(kept.len(), |end| end + 1) } else { 0 };
        let last = kept.iter().rposition(|byte| *byte == b'\n').map_or(first, |end| end + 1).max(first);
        clear(&self.folder, NEW_NOTICES_FILE)?;
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut shorter = File::from(openat(&self.folder, NEW_NOTICES_FILE, flags, Mode::from_raw_mode(0o644))?);
        shorter.write_all(kept.get(first..last).unwrap_or_default())?;
        renameat(&self.folder, NEW_NOTICES_FILE, &self.folder, NOTICES_FILE)?;
        Ok(shorter)
    }
}

/// Removes the entry of this name in `folder`, without following a link. A folder that is not empty is renamed instead.
pub fn clear(folder: &OwnedFd, name: &str) -> io::Result<()> {
    match unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(rustix::io::Errno::ISDIR | rustix::io::Errno::PERM) => {
            if unlinkat(folder, name, AtFlags::REMOVEDIR).is_err() {
                let aside = format!("{name}.{:.8}", crate::random::key()?);
                renameat(folder, name, folder, aside)?;
            }
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

fn ends_a_line(file: &mut File, size: u64) -> io::Result<bool> {
    let mut last = [0_u8; 1];
    file.seek(SeekFrom::Start(size.saturating_sub(1)))?;
    Ok(file.read(&mut last)? == 0 || last == *b"\n")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("spillway-notices-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).expect("a folder");
            Self(path)
        }
        fn ids(&self) -> Vec<u64> {
            let text = fs::read_to_string(self.0.join(NOTICES_FILE)).expect("the file");
            text.lines().map(|line| serde_json::from_str::<Notice>(line).expect("a notice").id).collect()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn notice(id: u64) -> Notice {
        Notice { id, time: "2026-01-01T00:00:00Z".into(), about: "BudgetNearLimit".into(), text: "x".repeat(100) }
    }

    #[test]
    fn our_own_notices_that_cannot_be_written_are_bounded_and_push_out_none_of_the_governors() {
        let notice = |id| Notice { id, time: String::new(), about: "a".into(), text: "t".into() };
        let mut unwritten: VecDeque<Notice> = (1..=5).map(notice).collect();
        (0..1_000).for_each(|at| queue_own(&mut unwritten, notice(FIRST_POD_NOTICE_ID + at), 256));
        assert_eq!(unwritten.len(), 5 + 256);
        assert!(unwritten.iter().take(5).all(|notice| notice.id < FIRST_POD_NOTICE_ID));
        assert_eq!(unwritten.back().map(|notice| notice.id), Some(FIRST_POD_NOTICE_ID + 999));
        keep_last(&mut unwritten, 32);
        let last: Vec<u64> = unwritten.iter().map(|notice| notice.id).collect();
        assert_eq!(last, (FIRST_POD_NOTICE_ID + 968..FIRST_POD_NOTICE_ID + 1_000).collect::<Vec<_>>());
        keep_last(&mut unwritten, 64);
        assert_eq!(unwritten.len(), 32);
    }

    #[test]
    fn links_pipes_folders_and_other_names_are_replaced_not_followed() {
        let folder = Folder::new("hostile");
        let path = folder.0.join(NOTICES_FILE);
        let victim = folder.0.join("victim");
        fs::write(&victim, "mine").expect("written");
        let notices = Notices::open(&folder.0).expect("the folder");
        let hostile: [&dyn Fn(); 5] = [
            &|| symlink(&victim, &path).expect("a link"),
            &|| fs::hard_link(&victim, &path).expect("a second name"),
            &|| rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::from_raw_mode(0o666)).expect("a pipe"),
            &|| fs::create_dir(&path).expect("a folder"),
            &|| fs::create_dir_all(path.join("full")).expect("a folder with something in it"),
        ];
        for make in hostile {
            make();
            notices.append(&notice(7)).expect("appended");
            assert_eq!(folder.ids(), [7]);
            fs::remove_file(&path).expect("a plain file");
        }
        assert_eq!(fs::read_to_string(&victim).expect("the victim"), "mine");
    }

    #[test]
    fn the_oldest_go_when_the_file_is_full() {
        let folder = Folder::new("full");
        let notices = Notices { most: 4096, ..Notices::open(&folder.0).expect("the folder") };
        for id in 1..=100 {
            notices.append(&notice(id)).expect("appended");
            assert!(fs::metadata(folder.0.join(NOTICES_FILE)).expect("the file").len() <= 4096);
        }
        let ids = folder.ids();
        assert!(ids.len() >= 10, "some of the past is kept: {ids:?}");
        assert_eq!(ids, (100 - ids.len() as u64 + 1..=100).collect::<Vec<_>>());
    }

    #[test]
    fn half_a_line_spoils_no_other() {
        let folder = Folder::new("half");
        fs::write(folder.0.join(NOTICES_FILE), "{\"id\": 1, \"ti").expect("written");
        Notices::open(&folder.0).expect("the folder").append(&notice(2)).expect("appended");
        let text = fs::read_to_string(folder.0.join(NOTICES_FILE)).expect("the file");
        assert_eq!(serde_json::from_str::<Notice>(text.lines().last().expect("a line")).expect("a notice").id, 2);
    }
}
