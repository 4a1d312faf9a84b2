//! Commits and pushes, from real clones to a real repository.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use rustix::fs::{CWD, Mode, mkfifoat};

use super::*;
use crate::agent::home::Home;
use crate::command::git::clone::clone;
use crate::command::git::push::push;
use crate::command::git::samples::{Folder, folder, git, mirror};

/// A server's repository, the mirror, and the workspace of one item.
struct Fixture {
    remote: Folder,
    workspace: Folder,
    _mirror: Folder,
    commit: NewCommit,
}

fn fixture(name: &str, branch: &str) -> Fixture {
    let (remote, kept, workspace) = (folder(&format!("{name}-remote")), folder(&format!("{name}-mirror")), folder(&format!("{name}-work")));
    crate::command::git::samples::repository(&remote.0);
    fs::write(remote.0.join(".gitignore"), "built\n").expect("a file");
    git(&remote.0, &["add", "."]);
    git(&remote.0, &["commit", "--quiet", "--message", "three"]);
    let mirror = mirror(&kept, &remote);
    let mut fixture = Fixture {
        commit: NewCommit {
            mirror,
            workspace: workspace.0.clone(),
            base: String::new(),
            branch: branch.into(),
            agent: "coders-1".into(),
            item: ("fix-1".into(), "u-1".into()),
            protect: vec!["ci".into()],
            max_bytes: Some(1000),
            files: vec![workspace.0.join("AGENTS.md"), workspace.0.join("file")],
        },
        remote,
        workspace,
        _mirror: kept,
    };
    fixture.prepare();
    fixture
}

impl Fixture {
    fn prepare(&mut self) {
        let found = self.commit.mirror.update(None, None).expect("a mirror");
        clone(&self.commit.mirror, &self.workspace.0, &found, "https://git.example.com/a", "coders-1", &Home::default()).expect("a clone");
        self.commit.base = found.commit;
    }

    fn write(&self, path: &str, content: &str) {
        let path = self.workspace.0.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, content).expect("a file");
    }

    fn made(&self) -> (PendingCommit, ChangesetReport) {
        match self.commit.make().expect("a result") {
            StepResult::Made { commit, report } => (commit, report),
            other => panic!("{other:?}"),
        }
    }

    fn refused(&self) -> StepFailure {
        match self.commit.make().expect("a result") {
            StepResult::Refused(failure) => failure,
            other => panic!("{other:?}"),
        }
    }

    fn push(&self, commit: &PendingCommit) -> StepResult {
        push(&self.commit.mirror, &self.commit.branch, commit).expect("a result")
    }
}

#[test]
fn the_files_become_one_commit_whatever_the_program_did_to_its_repository() {
    let fixture = fixture("commit", "spillway/fix-1");
    let base = &fixture.commit.base;
    let unchanged = ChangesetReport { base: base.clone(), branch: "spillway/fix-1".into(), ..ChangesetReport::default() };
    assert_eq!(fixture.commit.make(), Ok(StepResult::Unchanged(unchanged)));
    fixture.write("src/new", "1\n2\n");
    fixture.write("built", "ignored");
    fixture.write("AGENTS.md", "the pool's own");
    fixture.write("file", "the pool's own");
    fixture.write("nested/.git/config", "[core]\n\tfsmonitor = touch /tmp/never\n");
    fixture.write("nested/inner", "3\n");
    symlink("/etc/passwd", fixture.workspace.0.join("link")).expect("a link");
    mkfifoat(CWD, fixture.workspace.0.join("src/.gitattributes"), Mode::from_raw_mode(0o600)).expect("a pipe");
    fs::set_permissions(fixture.workspace.0.join("src/new"), fs::Permissions::from_mode(0o000)).expect("closed");
    // The program's own repository: commits, hooks, settings, and then nothing that git could read.
    git(&fixture.workspace.0, &["commit", "--quiet", "--allow-empty", "--message", "mine"]);
    fixture.write(".git/hooks/pre-push", "#!/bin/sh\nexit 1\n");
    fixture.write(".git/config", "[core]\n\tfsmonitor = /bin/false\n\tworktree = /nonexistent\n");
    fixture.write(".git/HEAD", "nonsense");
    let (commit, report) = fixture.made();
    assert_eq!(commit.old, "0".repeat(40));
    assert_eq!((report.files, report.insertions, report.deletions), (3, 4, 0));
    assert_eq!(fixture.push(&commit), StepResult::Pushed);
    let branch = |format: &str| git(&fixture.remote.0, &["log", "-1", &format!("--format={format}"), "spillway/fix-1"]);
    assert_eq!((branch("%H"), branch("%P")), (commit.new.clone(), base.clone()));
    assert_eq!((branch("%an"), branch("%s")), ("coders-1".into(), "fix-1".into()));
    let files = git(&fixture.remote.0, &["ls-tree", "-r", "--name-only", "spillway/fix-1"]);
    assert_eq!(files, ".gitignore\nfile\nlink\nnested/inner\nsrc/new");
    assert_eq!(git(&fixture.remote.0, &["show", "spillway/fix-1:link"]), "/etc/passwd", "a link is its text");
    assert_eq!(fixture.push(&commit), StepResult::Pushed, "a push whose answer was lost is made once");
}

#[test]
fn what_a_program_or_its_test_writes_after_the_clone_changes_neither_the_judgement_nor_the_push() {
    let fixture = fixture("tamper", "spillway/fix-1");
    fixture.write("ci/x", "1");
    // The pool's command runs after the commit was made.
    fixture.write("new", "1");
    fs::remove_dir_all(fixture.workspace.0.join("ci")).expect("removed");
    let (commit, _) = fixture.made();
    let made = repository(&fixture.commit.mirror);
    let (fake, url) = (folder("tamper-fake"), fixture.commit.mirror.url.clone());
    git(&fake.0, &["init", "--quiet", "--bare"]);
    git(&fake.0, &["fetch", "--quiet", &made.display().to_string(), &format!("{}:refs/heads/spillway/fix-1", commit.new)]);
    fs::write(made.join("config"), format!("[url \"file://{}\"]\n\tinsteadOf = {url}\n", fake.0.display())).expect("written");
    assert_eq!(fixture.push(&commit), StepResult::Pushed);
    assert_eq!(git(&fixture.remote.0, &["rev-parse", "spillway/fix-1"]), commit.new, "it is on the real server");
    // A tree of the mirror with another content under its id.
    let objects = fixture.commit.mirror.folder.join("objects");
    fs::create_dir_all(objects.join("ab")).expect("a folder");
    fs::write(objects.join("ab/0123"), "x").expect("written");
    let error = fixture.commit.make().expect_err("it is not used");
    assert!(error.starts_with("the program changed the mirror"), "{error}");
}

#[test]
fn changes_that_are_not_allowed_are_refused_with_the_path_or_the_size() {
    let fixture = fixture("refused", "spillway/fix-1");
    fixture.write("ci/run", "x");
    let failure = fixture.refused();
    assert_eq!(failure.reason, reasons::PROTECTED_PATH);
    assert!(failure.message.starts_with("ci/run was changed, and ci is protected"), "{failure:?}");
    fs::remove_dir_all(fixture.workspace.0.join("ci")).expect("removed");
    fixture.write("big", &"x".repeat(1001));
    let failure = fixture.refused();
    assert_eq!(failure.reason, reasons::CHANGESET_TOO_LARGE);
    assert!(failure.message.contains("have 1001 bytes, and may have 1000"), "{failure:?}");
}

#[test]
fn a_branch_that_moved_is_a_conflict_unless_an_earlier_attempt_at_the_item_moved_it() {
    let mut fixture = fixture("conflict", "shared");
    let first_base = fixture.commit.base.clone();
    git(&fixture.remote.0, &["branch", "shared", &first_base]);
    fixture.write("one", "1");
    let (commit, _) = fixture.made();
    assert_eq!(commit.old, first_base, "the branch is at the base");
    assert_eq!(fixture.push(&commit), StepResult::Pushed);
    // The answer about the first attempt was lost: the item is worked on again.
    fixture.prepare();
    fixture.write("two", "2");
    let (again, _) = fixture.made();
    assert_eq!(again.old, commit.new);
    assert_eq!(fixture.push(&again), StepResult::Pushed);
    assert_eq!(git(&fixture.remote.0, &["rev-list", "--count", &format!("{first_base}..shared")]), "1");
    // Another item.
    fixture.commit.item = ("fix-2".into(), "u-2".into());
    let failure = fixture.refused();
    assert_eq!(failure.reason, reasons::CHANGESET_CONFLICT);
    assert!(failure.message.contains(&again.new), "{failure:?}");
    // The branch moves between the commit and the push.
    fixture.commit.item = ("fix-1".into(), "u-1".into());
    let (late, _) = fixture.made();
    git(&fixture.remote.0, &["branch", "--force", "shared", &first_base]);
    assert!(matches!(fixture.push(&late), StepResult::Refused(failure) if failure.reason == reasons::CHANGESET_CONFLICT));
    assert_eq!(git(&fixture.remote.0, &["rev-parse", "shared"]), first_base);
}
