use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use rustix::fs::{CWD, Mode, mkfifoat};

use super::*;
use crate::command::git::samples::{Folder, folder};

/// A workspace as it was copied, and its comparison.
struct Copied {
    _folders: [Folder; 2],
    comparison: Comparison,
}

impl Copied {
    fn new() -> Self {
        let (workspace, own) = (folder("compare"), folder("compare-own"));
        let root = &workspace.0;
        fs::create_dir_all(root.join("a")).expect("a folder");
        for (path, content) in [("a/one", "1"), ("a/two", "2"), ("keep", "k"), ("pool", "of the folder")] {
            fs::write(root.join(path), content).expect("a file");
        }
        let mut manifest = Vec::new();
        for (path, content) in files::list(root, &[]).expect("listed") {
            write_line(&mut manifest, &Entry { path, content }).expect("written");
        }
        fs::write(own.0.join(MANIFEST_NAME), &manifest).expect("a manifest");
        fs::write(root.join("pool"), "of the pool").expect("a file");
        let comparison = Comparison {
            workspace: root.clone(),
            own: own.0.clone(),
            base: hex(&Sha256::digest(&manifest)),
            folder: "data/site".into(),
            protect: vec!["conf".into()],
            max_bytes: Some(10),
            files: vec![root.join("pool")],
        };
        Self { _folders: [workspace, own], comparison }
    }

    fn write(&self, path: &str, content: &str) {
        fs::write(self.comparison.workspace.join(path), content).expect("a file");
    }

    fn refusal(&self) -> String {
        match self.comparison.make().expect("compared") {
            StepResult::Refused(failure) => failure.reason,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_workspace_that_is_as_it_was_has_no_changes_whatever_became_of_the_pools_files() {
    let copied = Copied::new();
    let expected = ChangesetReport { base: copied.comparison.base.clone(), folder: "data/site".into(), ..ChangesetReport::default() };
    assert_eq!(copied.comparison.make(), Ok(StepResult::Unchanged(expected.clone())));
    fs::remove_file(copied.comparison.workspace.join("pool")).expect("removed");
    assert_eq!(copied.comparison.make(), Ok(StepResult::Unchanged(expected)));
}

#[test]
fn changes_are_listed_with_what_they_began_from_and_their_contents_are_kept() {
    let copied = Copied::new();
    let root = &copied.comparison.workspace;
    copied.write("a/one", "changed");
    fs::remove_file(root.join("a/two")).expect("removed");
    fs::set_permissions(root.join("keep"), Permissions::from_mode(0o755)).expect("set");
    symlink("keep", root.join("link")).expect("a link");
    let Ok(StepResult::Made { commit, report }) = copied.comparison.make() else { panic!("changes") };
    assert_eq!((commit.old.as_str(), report.commit.as_deref()), (copied.comparison.base.as_str(), Some(commit.new.as_str())));
    assert_eq!((report.files, report.branch.as_str()), (4, ""));
    // The verify command may write whatever it likes.
    copied.write("a/one", "later");
    let list = fs::read(copied.comparison.own.join(CHANGES_NAME)).expect("a list");
    assert_eq!(hex(&Sha256::digest(&list)), commit.new);
    let mut input = list.as_slice();
    let mut changes = Vec::new();
    while let Some((_, change)) = read_line::<Change>(&mut input).expect("a line") {
        changes.push(change);
    }
    let kinds: Vec<_> = changes.iter().map(|change| (change.path.as_str(), change.old.is_some(), change.new.is_some())).collect();
    assert_eq!(kinds, [("a/one", true, true), ("a/two", true, false), ("keep", true, true), ("link", false, true)]);
    let content = |number: &str| fs::read_to_string(copied.comparison.own.join(CONTENTS_NAME).join(number)).ok();
    assert_eq!((content("0").as_deref(), content("1"), content("2").as_deref()), (Some("changed"), None, Some("k")));
}

#[test]
fn changes_against_the_rules_are_refused_with_their_reason() {
    let protected = Copied::new();
    fs::create_dir(protected.comparison.workspace.join("conf")).expect("a folder");
    protected.write("conf/x", "1");
    assert_eq!(protected.refusal(), reasons::PROTECTED_PATH);
    let large = Copied::new();
    large.write("large", "12345678901");
    assert_eq!(large.refusal(), reasons::CHANGESET_TOO_LARGE);
    let special = Copied::new();
    mkfifoat(CWD, special.comparison.workspace.join("pipe"), Mode::from_raw_mode(0o600)).expect("a pipe");
    assert_eq!(special.refusal(), reasons::FORBIDDEN_FILE);
}

#[test]
fn a_manifest_that_the_program_changed_is_not_used() {
    let copied = Copied::new();
    copied.write("a/one", "changed");
    let path = copied.comparison.own.join(MANIFEST_NAME);
    let manifest = fs::read_to_string(&path).expect("a manifest");
    fs::write(&path, manifest.lines().skip(1).collect::<Vec<_>>().join("\n") + "\n").expect("written");
    let error = copied.comparison.make().expect_err("forged");
    assert!(error.contains("the program has changed it"), "{error}");
    fs::write(&path, "\n").expect("written");
    assert!(copied.comparison.make().is_err_and(|error| error.contains("the program has changed it")));
    fs::remove_file(&path).expect("removed");
    assert!(copied.comparison.make().is_err());
}
