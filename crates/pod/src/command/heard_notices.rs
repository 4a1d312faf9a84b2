//! Which notices exist, and which of them were printed before. Notices come from the sidecar, and from the file that the
//! supervisor writes to the data folder. A second file there holds the highest printed number, of the controller's notices and
//! of the pod's own. The program may damage both files.

use std::path::{Path, PathBuf};

use spillway_wire::agent::Notice;

use crate::{FIRST_POD_NOTICE_ID, NOTICES_FILE, files};

/// The file with the highest printed number of the controller's notices, and of the pod's own.
const CURSOR_FILE: &str = ".notices-printed";
/// More bytes than the file of notices may have.
const MAX_READ_BYTES: usize = 2 * 1024 * 1024;

/// The notices in the data folder, and the highest printed numbers.
#[derive(Debug)]
pub struct HeardNotices {
    folder: PathBuf,
    printed: [u64; 2],
}

impl HeardNotices {
    /// Reads the printed numbers from the data folder.
    pub fn new(folder: &Path) -> Self {
        let cursor = files::read(&folder.join(CURSOR_FILE), 64).ok().flatten();
        let text = cursor.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
        let mut numbers = text.split_whitespace().map(|number| number.parse().unwrap_or(0));
        let printed = [numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)];
        Self { folder: folder.to_owned(), printed }
    }

    /// All known notices, the oldest first. Lines of the file that are no notices are left out.
    pub fn all(&self, mut known: Vec<Notice>) -> Vec<Notice> {
        let file = files::read(&self.folder.join(NOTICES_FILE), MAX_READ_BYTES).ok().flatten().unwrap_or_default();
        known.extend(file.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Notice>(line).ok()));
        known.sort_by_key(|notice| notice.id);
        known.dedup_by_key(|notice| notice.id);
        known
    }

    /// Those that were not printed before.
    pub fn new_ones(&self, known: Vec<Notice>) -> Vec<Notice> {
        let mut all = self.all(known);
        all.retain(|notice| notice.id > self.printed[row(notice)]);
        all
    }

    /// Stores that these were printed. If that fails, they are printed again.
    pub fn remember(&mut self, notices: &[Notice]) {
        let before = self.printed;
        for notice in notices {
            let printed = &mut self.printed[row(notice)];
            *printed = notice.id.max(*printed);
        }
        if self.printed != before {
            let [theirs, own] = self.printed;
            let _ = files::write(&self.folder.join(CURSOR_FILE), format!("{theirs} {own}").as_bytes(), 0o644);
        }
    }
}

/// The index of a notice's number in `printed`: 0 for the controller's, 1 for the pod's own.
fn row(notice: &Notice) -> usize {
    usize::from(notice.id >= FIRST_POD_NOTICE_ID)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_notice_is_new_once() {
        let folder = std::env::temp_dir().join(format!("spillway-heard-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let notice = |id| Notice { id, time: "T".into(), about: "A".into(), text: "x".into() };
        let line = |id| serde_json::to_string(&notice(id)).expect("JSON");
        std::fs::write(folder.join(NOTICES_FILE), format!("{}\nnonsense\n{}\n", line(1), line(2))).expect("written");
        let ids = |notices: &[Notice]| notices.iter().map(|notice| notice.id).collect::<Vec<_>>();
        let mut heard = HeardNotices::new(&folder);
        let new = heard.new_ones(vec![notice(2), notice(3)]);
        assert_eq!(ids(&new), [1, 2, 3]);
        heard.remember(&new);
        let again = HeardNotices::new(&folder);
        assert_eq!(ids(&again.new_ones(vec![notice(3), notice(4)])), [4]);
        let own = FIRST_POD_NOTICE_ID + 1;
        let mut again = again;
        assert_eq!(ids(&again.new_ones(vec![notice(3), notice(own)])), [own]);
        again.remember(&[notice(own)]);
        assert_eq!(ids(&HeardNotices::new(&folder).new_ones(vec![notice(4), notice(own)])), [4], "the pod's own hide none");
        assert_eq!(ids(&again.all(vec![notice(4)])), [1, 2, 4]);
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
