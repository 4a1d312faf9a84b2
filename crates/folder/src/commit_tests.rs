use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::sync::Barrier;
use std::thread;

use proptest::prelude::*;
use rustix::fs::{CWD, Mode, mkfifoat};

use super::*;
use crate::limits::{MAX_CHANGES, MAX_DEPTH, MAX_FILES, MAX_LINES_BYTES};
use crate::samples::{
    Node, Recorder, Tree, assert_clean, changes, commit, copy, files, open, quick, read_tree, receive, stream, temporary, write_tree,
};

fn file(text: &str) -> Node {
    Node::File(text.to_owned(), false)
}

/// Two trees between which everything changes that can.
fn old_and_new() -> (Tree, Tree) {
    let same = [("same", file("same")), ("into/same", file("same"))];
    let old = [
        ("changed", file("old")),
        ("executable", file("run")),
        ("file-to-folder", file("a file")),
        ("folder-to-file/deep/x", file("x")),
        ("folder-to-file/y", Node::Link("deep/x".into())),
        ("link", Node::Link("same".into())),
        ("link-to-file", Node::Link("same".into())),
        ("link-to-folder", Node::Link("into".into())),
        ("removed/deep/only", file("only")),
        ("renamed", file("renamed")),
    ];
    let new = [
        ("changed", file("new")),
        ("executable", Node::File("run".into(), true)),
        ("file-to-folder/a/b", file("b")),
        ("folder-to-file", file("a file")),
        ("into/renamed", file("renamed")),
        ("link", Node::Link("into/same".into())),
        ("link-to-file", file("a file")),
        ("link-to-folder/x", Node::Link("../same".into())),
        ("new/\n/-rf", file("")),
        ("new/deep/er/file", Node::File("new".into(), true)),
    ];
    let tree = |nodes: &[(&str, Node)]| nodes.iter().chain(&same).map(|(path, node)| ((*path).to_owned(), node.clone())).collect();
    (tree(&old), tree(&new))
}

/// Commits, killed at a step; then completes it, killed at another step if there is one; then completes and repeats it. Returns the
/// steps of the first and the second process.
fn killed_at(old: &Tree, new: &Tree, first: Option<usize>, second: Option<usize>) -> (Vec<&'static str>, Vec<&'static str>) {
    let root = temporary();
    let root = root.path();
    write_tree(root, old);
    let recorder = Recorder::new(first);
    let ended = open(root, &recorder).and_then(|folder| commit(&folder, old, new));
    let steps = recorder.steps();
    let is_committed = steps.contains(&"begin the commit");
    let expected = if is_committed { new } else { old };
    let place = format!("{first:?} {second:?} after {:?}", steps.last());
    if let Ok(outcome) = ended {
        // After the end of the commit, only the work folder is removed.
        assert!(steps.contains(&"end the commit"), "{place}");
        assert_eq!(outcome, Outcome::Committed, "{place}");
    } else {
        assert!(recorder.is_killed(), "{place}");
    }
    let mut again = Vec::new();
    if second.is_some() {
        let recorder = Recorder::new(second);
        let ended = open(root, &recorder).and_then(|folder| folder.lock().map(drop));
        assert!(ended.is_ok() || recorder.is_killed(), "{place}");
        again = recorder.steps();
    }
    let folder = quick(root);
    drop(folder.lock().expect("completed"));
    assert_eq!(read_tree(root), *expected, "{place}");
    assert_clean(root);
    assert_eq!(commit(&folder, old, new).expect("repeated"), Outcome::Committed, "{place}");
    assert_eq!(read_tree(root), *new, "{place}");
    assert_clean(root);
    if is_committed {
        // Folders that became empty are gone.
        assert!(!root.join("removed").exists(), "{place}");
    }
    (steps, again)
}

#[test]
fn a_process_that_is_killed_at_any_step_leaves_all_changes_or_none() {
    let (old, new) = old_and_new();
    let (steps, _) = killed_at(&old, &new, None, None);
    let begin = steps.iter().position(|step| *step == "begin the commit").expect("a commit point");
    for first in 0..steps.len() {
        killed_at(&old, &new, Some(first), None);
        if first > begin {
            // Another few of its steps after each first one.
            for second in (first % 9..).step_by(9) {
                if killed_at(&old, &new, Some(first), Some(second)).1.len() < second {
                    break;
                }
            }
        }
    }
}

#[test]
fn all_is_durable_before_the_commit_point_and_before_the_end() {
    let (old, new) = old_and_new();
    let (steps, _) = killed_at(&old, &new, None, None);
    let at = |step| steps.iter().position(|found| *found == step).expect("a step");
    let last = |step| steps.iter().rposition(|found| *found == step).expect("a step");
    let (begin, end) = (at("begin the commit"), at("end the commit"));
    assert_eq!((last("begin the commit"), last("end the commit")), (begin, end));
    let made = changes(&old, &new).iter().filter(|change| matches!(change.new, Some(Content::File { .. }))).count();
    assert_eq!(steps[..begin].iter().filter(|step| **step == "make a file durable").count(), made + 1, "the files and the record");
    let durable = "make a folder durable";
    let before = [durable, "make a lock file", durable, durable, durable];
    assert_eq!(steps[begin - 5..begin], before, "the work folder, and the names of all above it");
    assert_eq!(steps[begin + 1..begin + 3], ["make a folder durable"; 2], "the commit point");
    assert!(last("put a file in its place") < end && at("put a file in its place") > begin);
    assert_eq!(steps[last("put a file in its place") + 1..end], ["make a folder durable"; 9], "the top, and each folder that is left");
    assert_eq!(steps[end + 1..end + 3], ["make a folder durable"; 2], "the end");
}

fn trees() -> impl Strategy<Value = Tree> {
    let node =
        prop_oneof![("[ab]{0,2}", any::<bool>()).prop_map(|(text, executable)| Node::File(text, executable)), "[xyz]".prop_map(Node::Link)];
    prop::collection::vec(("[abc](/[ab]){0,2}", node), 0..8).prop_map(|nodes| {
        let mut tree = Tree::new();
        for (path, node) in nodes {
            let is_free =
                |other: &String| !other.starts_with(&format!("{path}/")) && !path.starts_with(&format!("{other}/")) && *other != path;
            if tree.keys().all(is_free) {
                tree.insert(path, node);
            }
        }
        tree
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_tree_becomes_any_other_or_stays(old in trees(), new in trees(), other in trees(), at in 0_usize..60) {
        let root = temporary();
        let root = root.path();
        write_tree(root, &old);
        let recorder = Recorder::new(Some(at));
        let ended = open(root, &recorder).and_then(|folder| commit(&folder, &old, &new));
        prop_assert!(ended.is_ok() || recorder.is_killed());
        let folder = quick(root);
        let found = copy(&folder);
        let is_committed = recorder.steps().contains(&"begin the commit");
        prop_assert_eq!(&found, if is_committed { &new } else { &old });
        // Changes of another beginning are made whole, or refused whole.
        match commit(&folder, &other, &new).expect("an outcome") {
            Outcome::Withdrawn => panic!("nothing withdraws it"),
            Outcome::Conflict { paths, total } => {
                prop_assert!(!paths.is_empty() && total >= paths.len());
                prop_assert_eq!(read_tree(root), found.clone());
            }
            Outcome::Committed => {
                let found = read_tree(root);
                for change in changes(&other, &new) {
                    let path = change.path.as_str();
                    prop_assert_eq!(found.get(path), new.get(path));
                }
            }
        }
        assert_clean(root);
    }
}

#[test]
fn one_of_two_commits_of_one_beginning_is_made() {
    let root = tempfile::tempdir().expect("a folder");
    let old = files(&[("a", "0"), ("b", "0"), ("c/d", "0")]);
    write_tree(root.path(), &old);
    let new = [files(&[("a", "1"), ("b", "1"), ("c/d", "0")]), files(&[("b", "2"), ("c/d", "2"), ("c/e", "2")])];
    let barrier = Barrier::new(2);
    let outcomes = thread::scope(|scope| {
        let start = |new| {
            let (old, barrier, folder) = (&old, &barrier, Folder::open(root.path(), "").expect("a folder"));
            scope.spawn(move || {
                let staged = receive(&folder, old, new).expect("received");
                barrier.wait();
                folder.commit(staged, &|| true).expect("an outcome")
            })
        };
        let threads = new.each_ref().map(start);
        threads.map(|thread| thread.join().expect("no panic"))
    });
    let winner = usize::from(outcomes[0] != Outcome::Committed);
    assert_eq!(outcomes[winner], Outcome::Committed);
    assert!(matches!(outcomes[1 - winner], Outcome::Conflict { .. }), "{outcomes:?}");
    assert_eq!(read_tree(root.path()), new[winner]);
    assert_clean(root.path());
}

#[test]
fn a_conflict_names_ten_paths_and_changes_nothing() {
    let root = temporary();
    let tree = |text: &str| (0..12).map(|number| (format!("f{number:02}"), file(text))).collect::<Tree>();
    let mut new = tree("new");
    new.insert("other".into(), file("other"));
    write_tree(root.path(), &tree("mine"));
    let Outcome::Conflict { paths, total } = commit(&quick(root.path()), &tree("old"), &new).expect("an outcome") else {
        panic!("no conflict");
    };
    assert_eq!((paths.len(), total, paths[9].as_str()), (10, 12, "f09"));
    assert_eq!(read_tree(root.path()), tree("mine"));
    assert_clean(root.path());
}

#[test]
fn files_in_the_way_of_a_change_are_a_conflict() {
    // The folder now, the base of the work, and its result.
    for (now, old, new) in [
        (files(&[("a", "1")]), files(&[]), files(&[("a/b", "1")])),
        (files(&[("a/x", "1")]), files(&[]), files(&[("a", "1")])),
        (files(&[("a/x", "1"), ("a/y", "1")]), files(&[("a/x", "1")]), files(&[("a", "1")])),
        (files(&[("a", "2")]), files(&[("a", "1")]), files(&[("a/b", "1")])),
        (files(&[]), files(&[("a", "1")]), files(&[("a", "2")])),
        (files(&[("a", "1")]), files(&[]), files(&[("a", "2")])),
    ] {
        let root = temporary();
        write_tree(root.path(), &now);
        let outcome = commit(&quick(root.path()), &old, &new).expect("an outcome");
        assert!(matches!(outcome, Outcome::Conflict { total: 1, .. }), "{now:?} {new:?}: {outcome:?}");
        assert_eq!(read_tree(root.path()), now);
    }
    // Folders that are empty are in nobody's way.
    let root = temporary();
    fs::create_dir_all(root.path().join("a/b/c")).expect("folders");
    let new = files(&[("a", "1")]);
    assert_eq!(commit(&quick(root.path()), &Tree::new(), &new).expect("an outcome"), Outcome::Committed);
    assert_eq!(read_tree(root.path()), new);
}

#[test]
fn an_interrupted_commit_that_cannot_be_completed_needs_a_person() {
    let (old, new) = (files(&[("a", "1")]), files(&[("a", "2"), ("b", "2")]));
    let root = temporary();
    let root = root.path();
    write_tree(root, &old);
    let all = Recorder::new(None);
    {
        let other = temporary();
        write_tree(other.path(), &old);
        commit(&open(other.path(), &all).expect("a folder"), &old, &new).expect("committed");
    }
    let begin = all.steps().iter().position(|step| *step == "begin the commit").expect("a commit point");
    let killed = open(root, &Recorder::new(Some(begin + 1))).and_then(|folder| commit(&folder, &old, &new));
    assert!(killed.is_err());
    fs::create_dir_all(root.join("b/mine")).expect("a folder");
    fs::write(root.join("b/mine/file"), "mine").expect("a file");
    let before = read_tree(root);
    let folder = quick(root);
    for _ in 0..2 {
        let error = folder.snapshot().err().expect("an error");
        assert!(matches!(&error, FolderError::Stuck { path, .. } if path == "b") && error.is_final(), "{error}");
        assert_eq!(read_tree(root), before);
    }
    fs::remove_dir_all(root.join("b")).expect("removed");
    assert_eq!(copy(&folder), new);
    assert_clean(root);
}

#[test]
fn nothing_outside_the_folder_is_touched() {
    let (root, outside) = (temporary(), temporary());
    let (root, outside) = (root.path(), outside.path());
    write_tree(outside, &files(&[("secret", "1"), ("folder/secret", "1")]));
    let before = read_tree(outside);
    symlink(outside, root.join("out")).expect("a link");
    symlink(outside.join("secret"), root.join("file")).expect("a link");
    symlink("/etc", root.join("etc")).expect("a link");
    mkfifoat(CWD, root.join("pipe"), Mode::from_raw_mode(0o666)).expect("a pipe");
    fs::write(root.join("set-uid"), "1").expect("a file");
    fs::set_permissions(root.join("set-uid"), fs::Permissions::from_mode(0o4755)).expect("its mode");
    fs::write(root.join(OsStr::from_bytes(b"\xff")), "1").expect("a file");
    let folder = quick(root);
    let (nothing, secret) = (Tree::new(), |path: &str| files(&[(path, "1")]));
    for (old, new, is_conflict) in [
        (nothing.clone(), secret("out/new"), true),
        (nothing.clone(), secret("out/folder/new"), true),
        (secret("out/secret"), files(&[("out/secret", "2")]), true),
        // The path is not there: the link is not followed.
        (secret("out/secret"), nothing.clone(), false),
        (secret("file"), files(&[("file", "2")]), true),
        (nothing.clone(), secret("etc/new"), true),
        (nothing.clone(), secret("pipe"), true),
        (nothing.clone(), secret("pipe/new"), true),
        (secret("pipe"), nothing.clone(), true),
        (secret("set-uid"), files(&[("set-uid", "2")]), true),
        (nothing.clone(), secret("-rf/\n/\\/*/ "), false),
    ] {
        let outcome = commit(&folder, &old, &new).expect("an outcome");
        assert_eq!(matches!(outcome, Outcome::Conflict { .. }), is_conflict, "{old:?} {new:?}: {outcome:?}");
    }
    assert_eq!(fs::read_to_string(root.join("-rf/\n/\\/*/ ")).expect("a file"), "1");
    // The link itself is removed, and a folder takes its place.
    let link: Tree = [("out".to_owned(), Node::Link(outside.to_str().expect("UTF-8").to_owned()))].into();
    assert_eq!(commit(&folder, &link, &secret("out/secret")).expect("an outcome"), Outcome::Committed);
    assert_eq!(fs::read_to_string(root.join("out/secret")).expect("a file"), "1");
    assert_eq!(read_tree(outside), before);
}

#[test]
fn own_files_that_are_no_own_files_are_refused() {
    let outside = temporary();
    for name in [".spillway", ".spillway/work", ".spillway/lock", ".spillway/commit"] {
        for is_link in [true, false] {
            let root = temporary();
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
            if is_link {
                symlink(outside.path(), path).expect("a link");
            } else {
                mkfifoat(CWD, path, Mode::from_raw_mode(0o666)).expect("a pipe");
            }
            let error = Folder::open(root.path(), "").and_then(|folder| commit(&folder, &Tree::new(), &files(&[("a", "1")])));
            assert!(error.is_err(), "{name}");
        }
    }
    assert_eq!(fs::read_dir(outside.path()).expect("a folder").count(), 0);
}

#[test]
fn the_folder_is_below_the_volume() {
    let (root, outside) = (temporary(), temporary());
    symlink(outside.path(), root.path().join("link")).expect("a link");
    for bad in ["..", "/", "a/../..", "link", "link/new", ".spillway", "a//b"] {
        assert!(Folder::open(root.path(), bad).is_err(), "{bad}");
    }
    assert!(Folder::open(&root.path().join("missing"), "").is_err(), "a volume is not made");
    let folder = Folder::open(root.path(), "new/folder").expect("made");
    commit(&folder, &Tree::new(), &files(&[("a", "1")])).expect("committed");
    assert_eq!(fs::read_to_string(root.path().join("new/folder/a")).expect("a file"), "1");
    assert_eq!(fs::read_dir(outside.path()).expect("a folder").count(), 0);
}

#[test]
fn streams_that_are_not_as_announced_are_refused() {
    let root = temporary();
    let folder = quick(root.path());
    let new = files(&[("a", "12345"), ("b", "12345")]);
    let (good, digest) = stream(&changes(&Tree::new(), &new), &new);
    let refused = |stream: &[u8], digest: &str, most| {
        let mut stream = stream;
        let error = folder.receive(&mut stream, digest, most).err().expect("an error");
        assert_clean(root.path());
        error
    };
    for length in 1..good.len() {
        assert!(matches!(refused(&good[..length], &digest, 10), FolderError::Input(_) | FolderError::WrongDigest), "{length}");
    }
    assert!(matches!(refused(&good, "00", 10), FolderError::WrongDigest));
    assert!(matches!(refused(&good, &digest, 9), FolderError::TooLarge { limit: 9 }));
    let text = String::from_utf8(good.clone()).expect("UTF-8");
    assert!(matches!(refused(text.replacen("}}\n12345", "}}\n12346", 1).as_bytes(), &digest, 10), FolderError::WrongContent { .. }));
    for path in ["../a", ".spillway/lock", "a/.spillway/commit/0", "/a"] {
        assert!(matches!(refused(text.replace("\"a\"", &format!("{path:?}")).as_bytes(), &digest, 10), FolderError::Input(_)));
    }
    let deep = format!("{}x", "d/".repeat(MAX_DEPTH + 1));
    let link = |path: &str, target: &str| [(path.to_owned(), Node::Link(target.to_owned()))].into_iter().collect::<Tree>();
    for (number, (tree, twice)) in [
        (files(&[("a", "1")]), true),
        (files(&[("a", "1"), ("a/b", "1")]), false),
        (files(&[(&deep, "1")]), false),
        (link("a", "/etc"), false),
        (link("a/b", "../../c"), false),
    ]
    .into_iter()
    .enumerate()
    {
        let mut changes = changes(&Tree::new(), &tree);
        if twice {
            changes.push(changes[0].clone());
        }
        let (stream, digest) = stream(&changes, &tree);
        assert!(matches!(refused(&stream, &digest, 10), FolderError::InvalidChange { .. }), "{number}");
    }
    assert_eq!(folder.receive(&mut good.as_slice(), &digest, 10).expect("received").changes().len(), 2);
    assert_clean(root.path());
}

#[test]
fn a_copy_during_commits_is_one_of_the_versions() {
    let root = temporary();
    let version = |number: usize| {
        let text = number.to_string();
        let own = format!("only-{number}/file");
        files(&[("a", text.as_str()), ("deep/er/b", &text), (&own, &text)])
    };
    write_tree(root.path(), &version(0));
    let writer = quick(root.path());
    let reader = quick(root.path());
    thread::scope(|scope| {
        let commits = scope.spawn(move || {
            for number in 0..30 {
                assert_eq!(commit(&writer, &version(number), &version(number + 1)).expect("an outcome"), Outcome::Committed);
            }
        });
        while !commits.is_finished() {
            let found = copy(&reader);
            let Some(Node::File(number, _)) = found.get("a") else { panic!("{found:?}") };
            assert_eq!(found, version(number.parse().expect("a number")));
        }
    });
    assert_eq!(copy(&quick(root.path())), version(30));
    assert_clean(root.path());
}

#[test]
fn the_main_lock_is_waited_for_only_so_long() {
    let root = temporary();
    let holder = quick(root.path());
    let lock = holder.lock().expect("free");
    let waiting = quick(root.path()).with_lock_timeout(std::time::Duration::ZERO);
    let error = waiting.snapshot().err().expect("an error");
    assert!(matches!(error, FolderError::Locked { .. }) && !error.is_final(), "{error}");
    drop(lock);
    assert!(waiting.snapshot().is_ok());
}

#[test]
fn changes_that_make_the_folder_too_large_to_be_copied_are_refused() {
    let root = temporary();
    let change = |path: &str| Change {
        path: RelativePath::parse(path).expect("a path"),
        old: None,
        new: Some(Content::Link { target: "x".into() }),
    };
    fs::write(root.path().join("x"), "1").expect("a file");
    let folder = quick(root.path());
    let full: Vec<Change> = (1..MAX_FILES).map(|number| change(&number.to_string())).collect();
    assert!(crate::check::check_size(&folder.top, &full).is_ok());
    let over: Vec<Change> = (0..MAX_FILES / 2).map(|number| change(&format!("{number}/x"))).collect();
    assert!(matches!(crate::check::check_size(&folder.top, &over), Err(FolderError::TooManyPaths)));
}

#[test]
fn a_folder_that_cannot_be_changed_is_found_before_the_commit_point() {
    let root = temporary();
    let closed = root.path().join("closed");
    write_tree(root.path(), &files(&[("closed/a", "1"), ("b", "1")]));
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o555)).expect("its mode");
    // Root may write everywhere.
    if fs::write(closed.join("test"), "1").is_err() {
        let folder = quick(root.path());
        let old = files(&[("closed/a", "1"), ("b", "1")]);
        for new in [files(&[]), files(&[("closed/a", "2")]), files(&[("closed", "2")]), files(&[("closed/a", "1"), ("closed/new/c", "2")])]
        {
            let error = commit(&folder, &old, &new).expect_err("an error");
            assert!(error.is_final() && error.to_string().contains("fsGroup"), "{error}");
            assert_eq!(copy(&folder), old);
        }
        assert_clean(root.path());
    }
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o755)).expect("its mode");
}

#[test]
fn too_many_changes_are_refused_while_they_are_read() {
    let root = temporary();
    let folder = quick(root.path());
    let refused = |path: &dyn Fn(usize) -> String, count: usize| {
        let mut stream = Vec::new();
        for number in 0..count {
            let path = RelativePath::parse(&path(number)).expect("a path");
            crate::record::write_line(&mut stream, &Change { path, old: Some(Content::Link { target: "x".into() }), new: None })
                .expect("written");
        }
        let error = folder.receive(&mut stream.as_slice(), "", 0).err().expect("an error");
        matches!(error, FolderError::TooManyChanges)
    };
    let short = |number: usize| format!("{number:06}");
    let long = |number: usize| format!("{number:06}/{}", ["x".repeat(200).as_str(); 19].join("/"));
    assert!(refused(&short, MAX_CHANGES + 1) && !refused(&short, MAX_CHANGES));
    assert!(refused(&long, MAX_LINES_BYTES / 3800) && !refused(&long, MAX_LINES_BYTES / 4000));
}

#[test]
fn changes_that_are_withdrawn_before_the_commit_point_are_not_made() {
    let root = temporary();
    let (old, new) = (files(&[("a", "1")]), files(&[("a", "2"), ("b", "1")]));
    write_tree(root.path(), &old);
    let folder = quick(root.path());
    let staged = receive(&folder, &old, &new).expect("received");
    assert_eq!(folder.commit(staged, &|| false).expect("an outcome"), Outcome::Withdrawn);
    assert_eq!(copy(&folder), old);
    assert_clean(root.path());
}
