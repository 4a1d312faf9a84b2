//! What a commit changes: files, lines and bytes.
//!
//! It makes no commit.

use super::{Git, GitError};

/// The changes of a commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The changed paths.
    pub paths: Vec<String>,
    /// Added lines. A binary file has none.
    pub insertions: u64,
    /// Removed lines.
    pub deletions: u64,
    /// Bytes of the added and changed files together.
    pub bytes: u64,
}

impl Changes {
    /// The changes from the commit or tree `base` to `commit`.
    pub fn between(git: &Git, base: &str, commit: &str) -> Result<Self, GitError> {
        let mut changes = Self::default();
        let compare =
            |form: &str| git.bytes(&["diff-tree", "-r", "-z", "--no-renames", "--no-ext-diff", "--no-textconv", form, base, commit], b"");
        let lines = compare("--numstat")?;
        for entry in lines.split(|byte| *byte == 0).filter(|entry| !entry.is_empty()) {
            // ADDED<TAB>REMOVED<TAB>PATH, with `-` for a binary file.
            let mut fields = entry.splitn(3, |byte| *byte == b'\t');
            let mut number = || fields.next().and_then(|field| std::str::from_utf8(field).ok()?.parse::<u64>().ok()).unwrap_or(0);
            changes.insertions += number();
            changes.deletions += number();
            changes.paths.push(String::from_utf8_lossy(fields.next().unwrap_or_default()).into_owned());
        }
        let mut new_objects = String::new();
        let raw = compare("--raw")?;
        // :OLDMODE NEWMODE OLD NEW STATUS, and then the path.
        for entry in raw.split(|byte| *byte == 0).filter(|entry| entry.first() == Some(&b':')) {
            let text = String::from_utf8_lossy(entry);
            let mut fields = text.split(' ').skip(1);
            // A submodule (160000) is a commit that is not here, and a removed file is nothing.
            let is_file = fields.next().is_some_and(|mode| mode != "160000" && mode != "000000");
            if let Some(object) = fields.nth(1).filter(|_| is_file) {
                new_objects.extend([object, "\n"]);
            }
        }
        if !new_objects.is_empty() {
            let sizes = git.bytes(&["cat-file", "--batch-check=%(objectsize)"], new_objects.as_bytes())?;
            changes.bytes = String::from_utf8_lossy(&sizes).lines().filter_map(|size| size.parse::<u64>().ok()).sum();
        }
        Ok(changes)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::command::git::samples::{folder, git, repository};

    #[test]
    fn files_lines_and_bytes_are_counted() {
        let remote = folder("changes");
        let base = repository(&remote.0);
        fs::write(remote.0.join("new name\n"), "1\n2\n3\n").expect("a file");
        fs::write(remote.0.join("binary"), [0_u8, 1, 2, 255].repeat(100)).expect("a file");
        git(&remote.0, &["rm", "--quiet", "file"]);
        git(&remote.0, &["add", "."]);
        git(&remote.0, &["commit", "--quiet", "--message", "change"]);
        let changes = Changes::between(&Git::isolated(&remote.0.join(".git")), &base, "HEAD").expect("changes");
        assert_eq!(changes.paths, ["binary", "file", "new name\n"]);
        assert_eq!((changes.insertions, changes.deletions, changes.bytes), (3, 1, 406));
    }
}
