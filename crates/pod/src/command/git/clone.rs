//! A clone of the mirror for one item, in the workspace. It shares the objects of the mirror, so that it costs only its files.

use std::path::Path;

use super::mirror::{BaseCommit, Mirror};
use super::{Git, folder};
use crate::agent::home::Home;

/// Empties `workspace`, and makes a clone in it, at the commit `base`. Then the files of the pool are put in.
pub fn clone(mirror: &Mirror, workspace: &Path, base: &BaseCommit, remote: &str, author: &str, files: &Home) -> Result<(), String> {
    folder::empty(workspace).map_err(|error| format!("cannot remove what an earlier item left in {}: {error}", workspace.display()))?;
    let repository = workspace.join(".git");
    let git = Git::isolated(&repository).variable("GIT_WORK_TREE", workspace);
    mirror.make_repository(&repository, &[])?;
    let settings = [
        ("remote.origin.url", remote),
        ("remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*"),
        ("core.bare", "false"),
        ("user.name", author),
        ("user.email", &address(author)),
    ];
    settings.into_iter().try_for_each(|(name, value)| git.run(&["config", name, value]))?;
    let known =
        mirror.git().output(&["for-each-ref", "--format=create refs/remotes/origin/%(refname:lstrip=2) %(objectname)", "refs/heads"])?;
    git.bytes(&["update-ref", "--stdin"], format!("{known}\n").as_bytes())?;
    match &base.branch {
        Some(branch) => {
            let start = format!("refs/remotes/origin/{branch}");
            git.run(&["checkout", "--quiet", "--force", "-B", branch, "--track", &start])?;
        }
        None => git.run(&["checkout", "--quiet", "--force", "--detach", &base.commit])?,
    }
    files.make().map_err(|error| format!("{error} (spec.agent.files)"))
}

/// The domain of the addresses of agents. It receives no mail.
pub const ADDRESS_DOMAIN: &str = "@agents.spillway.invalid";

/// The address of an agent in its commits.
pub fn address(author: &str) -> String {
    format!("{author}{ADDRESS_DOMAIN}")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use crate::command::git::samples::{Folder, folder, git, mirror, repository};

    fn prepared(name: &str, revision: Option<&str>, depth: Option<u32>, files: &Home, into: &Folder) -> (Folder, Folder, String) {
        let (remote, kept) = (folder(&format!("{name}-remote")), folder(&format!("{name}-mirror")));
        repository(&remote.0);
        let mut mirror = mirror(&kept, &remote);
        let found = mirror.update(revision, depth).expect("a mirror");
        clone(&mirror, &into.0, &found, "https://git.example.com/a", "coders-1", files).expect("a clone");
        (remote, kept, found.commit)
    }

    #[test]
    fn an_item_has_a_clone_without_anything_of_the_item_before() {
        let into = folder("clone");
        fs::write(into.0.join("left"), "x").expect("a file");
        fs::create_dir_all(into.0.join(".git/hooks")).expect("a folder");
        for (name, revision, depth, branch, commits) in [
            ("clone-a", None, None, "main", "2"),
            ("clone-b", Some("side"), Some(1), "side", "1"),
            ("clone-c", Some("v1"), None, "HEAD", "1"),
        ] {
            let (_remote, _kept, commit) = prepared(name, revision, depth, &Home::default(), &into);
            assert_eq!(git(&into.0, &["rev-parse", "HEAD"]), commit);
            assert_eq!(git(&into.0, &["rev-parse", "--abbrev-ref", "HEAD"]), branch);
            assert_eq!(git(&into.0, &["rev-list", "--count", "HEAD"]), commits, "{name}");
            assert_eq!(git(&into.0, &["status", "--porcelain"]), "");
            assert_eq!(git(&into.0, &["config", "remote.origin.url"]), "https://git.example.com/a");
            assert!(!into.0.join("left").exists());
        }
    }

    #[test]
    fn files_of_the_pool_replace_those_of_the_repository() {
        let (into, pool) = (folder("clone-files"), folder("clone-pool"));
        fs::write(pool.0.join("content"), "the pool's").expect("a file");
        let to: PathBuf = into.0.join("file");
        let files = Home { folder: None, files: vec![(pool.0.join("content"), to.clone())] };
        let _held = prepared("clone-d", None, None, &files, &into);
        assert_eq!(fs::read_to_string(to).expect("the file"), "the pool's");
    }
}
