//! The changes of a workspace since it was copied, judged by the rules of the pool and made ready to be sent.
//!
//! The contents are copied aside: the pool's verify command may still write to the workspace.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use spillway_folder::path::RelativePath;
use spillway_folder::record::{Change, Content, Entry, read_line, write_line};
use spillway_folder::{MAX_CHANGES, MAX_FILES};
use spillway_wire::changeset::{ChangesetReport, PendingCommit, reasons};
use spillway_wire::text::hex;

use super::files::{self, ListError};
use super::{CHANGES_NAME, CONTENTS_NAME, MANIFEST_NAME};
use crate::agent::changeset::{StepFailure, StepResult};
use crate::command::git::folder;
use crate::command::refusals;

/// A workspace, and what its changes are judged by.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The workspace.
    pub workspace: PathBuf,
    /// The folder of the steps' own files.
    pub own: PathBuf,
    /// SHA-256 of the manifest of the copy.
    pub base: String,
    /// The claim and the path of the folder.
    pub folder: String,
    /// Paths that must not change.
    pub protect: Vec<String>,
    /// The most bytes of changed files.
    pub max_bytes: Option<u64>,
    /// Files of the pool in the workspace.
    pub files: Vec<PathBuf>,
}

impl Comparison {
    /// Finds and judges the changes, and writes them for [`apply`](super::apply).
    pub fn make(&self) -> Result<StepResult, String> {
        let mut base = self.read_manifest()?;
        let found = match files::list(&self.workspace, &self.files) {
            Ok(found) => found,
            Err(ListError::Forbidden(why)) => return Ok(StepResult::Refused(StepFailure::new(reasons::FORBIDDEN_FILE, why))),
            Err(ListError::Unreadable(why)) => return Err(why),
        };
        if let Some(why) = files::obstacle(&self.workspace, &self.files) {
            return Ok(StepResult::Refused(StepFailure::new(reasons::FORBIDDEN_FILE, why)));
        }
        // The pool's own files stay as they are in the folder.
        let own = self.files.iter().filter_map(|file| RelativePath::parse(file.strip_prefix(&self.workspace).ok()?.to_str()?).ok());
        own.for_each(|path| drop(base.remove(&path)));
        let changes = between(base, found);
        if changes.len() > MAX_CHANGES {
            let message = format!("{} files were changed, and one changeset has at most {MAX_CHANGES}", changes.len());
            return Ok(StepResult::Refused(StepFailure::new(reasons::CHANGESET_TOO_LARGE, message)));
        }
        if let Some(failure) = self.refused(&changes) {
            return Ok(StepResult::Refused(failure));
        }
        let report = ChangesetReport { base: self.base.clone(), folder: self.folder.clone(), ..ChangesetReport::default() };
        if changes.is_empty() {
            return Ok(StepResult::Unchanged(report));
        }
        let new = self.stage(&changes)?;
        let report = ChangesetReport { commit: Some(new.clone()), files: u32::try_from(changes.len()).unwrap_or(u32::MAX), ..report };
        Ok(StepResult::Made { commit: PendingCommit { old: self.base.clone(), new }, report })
    }

    /// The manifest, if it is the one of the copy.
    fn read_manifest(&self) -> Result<BTreeMap<RelativePath, Content>, String> {
        let path = self.own.join(MANIFEST_NAME);
        let wrong = |why: &dyn std::fmt::Display| format!("cannot read {}: {why}", path.display());
        let forged = || wrong(&"the program has changed it. The next attempt begins with a new copy");
        let (mut entries, mut digest) = (BTreeMap::new(), Sha256::new());
        let unreadable = |error: io::Error| if error.kind() == io::ErrorKind::InvalidData { forged() } else { wrong(&error) };
        let mut input = BufReader::new(files::open_plain(&path).map_err(unreadable)?);
        while let Some((line, Entry { path, content })) = read_line(&mut input).map_err(unreadable)? {
            digest.update(&line);
            digest.update(b"\n");
            entries.insert(path, content);
            if entries.len() > MAX_FILES {
                return Err(forged());
            }
        }
        if hex(&digest.finalize()) != self.base {
            return Err(forged());
        }
        Ok(entries)
    }

    fn refused(&self, changes: &[Change]) -> Option<StepFailure> {
        let bytes = changes.iter().map(Change::following_bytes).sum();
        refusals::protected(changes.iter().map(|change| change.path.as_str()), &self.protect)
            .or_else(|| refusals::too_large(bytes, self.max_bytes, "Files that are built belong outside of the workspace, such as in /tmp"))
    }

    /// Writes the list of changes and the contents; returns SHA-256 of the list.
    fn stage(&self, changes: &[Change]) -> Result<String, String> {
        let (list, contents) = (self.own.join(CHANGES_NAME), self.own.join(CONTENTS_NAME));
        let wrong = |path: &Path, why: &dyn std::fmt::Display| format!("cannot write {}: {why}", path.display());
        for path in [&list, &contents] {
            folder::remove(path).map_err(|error| wrong(path, &error))?;
        }
        fs::create_dir(&contents).map_err(|error| wrong(&contents, &error))?;
        let mut out = BufWriter::new(File::create_new(&list).map_err(|error| wrong(&list, &error))?);
        let mut digest = Sha256::new();
        for (number, change) in changes.iter().enumerate() {
            let line = write_line(&mut out, change).map_err(|error| wrong(&list, &error))?;
            digest.update(&line);
            digest.update(b"\n");
            let Some(Content::File { size, sha256, .. }) = &change.new else { continue };
            let copy = contents.join(number.to_string());
            let mut file = File::create_new(&copy).map_err(|error| wrong(&copy, &error))?;
            let copied = files::digest(&self.workspace.join(change.path.as_str()), &mut file).map_err(|error| wrong(&copy, &error))?;
            if copied != (*size, sha256.clone()) {
                return Err(wrong(&copy, &format!("{} changed meanwhile", change.path)));
            }
        }
        out.flush().map_err(|error| wrong(&list, &error))?;
        Ok(hex(&digest.finalize()))
    }
}

/// The changes from `base` to `found`, in the order of their paths.
fn between(mut base: BTreeMap<RelativePath, Content>, found: BTreeMap<RelativePath, Content>) -> Vec<Change> {
    let mut changes: Vec<Change> = found
        .into_iter()
        .filter_map(|(path, new)| {
            let old = base.remove(&path);
            (old.as_ref() != Some(&new)).then_some(Change { path, old, new: Some(new) })
        })
        .collect();
    changes.extend(base.into_iter().map(|(path, old)| Change { path, old: Some(old), new: None }));
    changes.sort_by(|one, other| one.path.cmp(&other.path));
    changes
}

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
