//! `submit --from-git`: each file of a git repository is a task. It runs the git of the person, with the person's own
//! credentials. It checks no file out, so nothing of the repository is run.
//!
//! The key of a task is made of its repository, path and content, so a second `submit` makes items of new and changed files
//! only, as long as the items of the others exist.

use std::path::Path;
use std::process::{Command, Stdio};

use super::payload;
use crate::api::names;
use crate::error::Error;
use crate::table::printable;

/// The most files of one command.
const MAX_FILES: usize = 1_000;
/// The reference of the fetched commit, in the temporary repository.
const FETCHED: &str = "refs/spillway/tasks";

/// Where tasks are: arguments of `submit`.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct RepositoryArguments {
    /// Create one item for each file of this git repository, a URL or a folder; needs git
    #[arg(long, value_name = "REPOSITORY", value_parser = repository, conflicts_with_all = ["file", "payload", "count", "name", "dedup_key"])]
    pub from_git: Option<String>,
    /// Branch, tag or commit of that repository [default: its HEAD]
    #[arg(long = "ref", value_name = "REF", requires = "from_git", value_parser = reference)]
    pub ref_: Option<String>,
    /// Folder or file of that repository [default: all of it]
    #[arg(long, value_name = "PATH", requires = "from_git", value_parser = path)]
    pub path: Option<String>,
}

/// A file that is a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskFile {
    /// Its path in the repository.
    pub path: String,
    /// `REPOSITORY@COMMIT:PATH`.
    pub source: String,
    /// The deduplication key.
    pub key: String,
    /// Its content.
    pub text: String,
}

/// A repository. Git would send a password in its URL, and the item would show it.
fn repository(text: &str) -> Result<String, String> {
    let authority = text.split_once("://").map(|(scheme, rest)| (scheme, rest.split(['/', '?', '#']).next().unwrap_or_default()));
    let user = authority.and_then(|(scheme, authority)| Some((scheme, authority.rsplit_once('@')?.0)));
    match user {
        Some((scheme, user)) if scheme != "ssh" || user.contains(':') => {
            Err("a URL with a credential is refused, because items show it: use a credential helper of git".to_owned())
        }
        _ if text.is_empty() || text.chars().any(char::is_control) => Err("not a repository: write a URL or a folder".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

fn reference(text: &str) -> Result<String, String> {
    let odd = |character: char| character.is_whitespace() || character.is_control() || ":^~?*[\\".contains(character);
    if text.is_empty() || text.starts_with(['-', '+']) || text.contains(odd) {
        return Err("not the name of a branch, a tag or a commit".to_owned());
    }
    Ok(text.to_owned())
}

/// A path as git lists it: relative to the repository, without `.` and `..`.
fn path(text: &str) -> Result<String, String> {
    let text = text.strip_prefix("./").unwrap_or(text).trim_end_matches('/');
    let odd = |part: &str| part.is_empty() || part == "." || part == ".." || part.chars().any(char::is_control);
    if text.split('/').any(odd) {
        return Err("not a path in a repository: write it from the repository's root, such as tasks or tasks/first.md".to_owned());
    }
    Ok(text.to_owned())
}

/// The tasks at the asked place, in the order of their paths. The largest has `limit` bytes.
pub fn read(repository: &str, arguments: &RepositoryArguments, limit: usize) -> Result<Vec<TaskFile>, Error> {
    let folder = tempfile::Builder::new()
        .prefix("spillway-")
        .tempdir()
        .map_err(|error| Error::Usage(format!("cannot make a temporary folder for the repository: {error}")))?;
    let folder = folder.path();
    // A relative repository is relative to the folder of the person, so git does not change its folder.
    let wanted = arguments.ref_.as_deref().unwrap_or("HEAD");
    run(folder, &["init", "--quiet", "--bare", "--template="])?;
    run(folder, &["fetch", "--quiet", "--depth=1", "--no-tags", "--", repository, &format!("{wanted}:{FETCHED}")])?;
    let commit = text_of(run(folder, &["rev-parse", "--verify", &format!("{FETCHED}^{{commit}}")])?, "git rev-parse")?;
    let commit = commit.trim();
    let mut listing = vec!["ls-tree", "-r", "-z", "--long", "--full-tree", commit];
    listing.extend(arguments.path.as_deref().map(|path| ["--", path]).iter().flatten());
    let files = files(&run(folder, &listing)?, limit)?;
    let place = arguments.path.as_deref().unwrap_or("/");
    if files.is_empty() {
        return Err(Error::Usage(format!(
            "{repository} has no task at {place} in {wanted} ({commit}): hidden and empty files, links and submodules are none"
        )));
    }
    if files.len() > MAX_FILES {
        return Err(Error::Usage(format!(
            "{repository} has {} files at {place}, and one command submits at most {MAX_FILES}: select some with --path",
            files.len()
        )));
    }
    let location = location(repository);
    let content = |TreeEntry { path, blob }: TreeEntry| {
        let text = text_of(run(folder, &["cat-file", "blob", &blob])?, &printable(&path))?;
        let key = format!("git-{}", names::short_hash(&["git", &location, &path, &blob], 32));
        Ok(TaskFile { source: format!("{location}@{commit}:{path}"), path, key, text })
    };
    files.into_iter().map(content).collect()
}

/// The repository in keys and sources. `.` is another repository in another folder, so a folder has its absolute path.
fn location(repository: &str) -> String {
    let folder = Path::new(repository).is_dir().then(|| std::path::absolute(repository).ok()).flatten();
    folder.map_or_else(|| repository.to_owned(), |folder| folder.to_string_lossy().into_owned())
}

/// A file in the tree of a commit.
#[derive(Debug, PartialEq, Eq)]
struct TreeEntry {
    path: String,
    blob: String,
}

/// The tasks in the output of `git ls-tree -z --long`, whose entries are `MODE TYPE OBJECT SIZE<tab>PATH`.
fn files(listing: &[u8], limit: usize) -> Result<Vec<TreeEntry>, Error> {
    let mut files = Vec::new();
    for entry in listing.split(|byte| *byte == 0).filter(|entry| !entry.is_empty()) {
        let entry = String::from_utf8_lossy(entry);
        let Some((head, path)) = entry.split_once('\t') else { continue };
        let [mode, _, blob, size] = head.split_ascii_whitespace().collect::<Vec<_>>()[..] else { continue };
        // Links and submodules have other modes, and a submodule has no size.
        let (true, Ok(size)) = (mode.starts_with("100"), size.parse::<usize>()) else { continue };
        if size == 0 || path.split('/').any(|part| part.starts_with('.')) {
            continue;
        }
        if size > limit {
            return Err(Error::Usage(format!("{}: {}", printable(path), payload::too_large(size, limit))));
        }
        files.push(TreeEntry { path: path.to_owned(), blob: blob.to_owned() });
    }
    Ok(files)
}

fn text_of(bytes: Vec<u8>, what: &str) -> Result<String, Error> {
    payload::text(what, bytes.as_slice())
}

/// The output of a command of git in the repository at `folder`.
fn run(folder: &Path, arguments: &[&str]) -> Result<Vec<u8>, Error> {
    let command = arguments.first().copied().unwrap_or_default();
    // Only questions for a password reach the person, by the terminal. Errors are part of ours.
    let done = Command::new("git").arg("--git-dir").arg(folder).args(arguments).stdin(Stdio::null()).output();
    let done = done.map_err(|error| Error::Usage(format!("--from-git needs git, and `git {command}` did not start: {error}")))?;
    if !done.status.success() {
        // Among them may be words of the server.
        let words = String::from_utf8_lossy(&done.stderr);
        let words: Vec<String> = words.lines().map(printable).collect();
        return Err(Error::Usage(format!("git {command} failed: {}", words.join("; "))));
    }
    Ok(done.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_and_odd_names_are_refused_before_git_runs() {
        for good in ["https://git.example.com/team/app.git", "ssh://git@git.example.com/app", "git@git.example.com:team/app", "../app", "."]
        {
            assert_eq!(repository(good).as_deref(), Ok(good));
        }
        for bad in ["https://token@git.example.com/app", "https://robot:secret@git.example.com/app", "ssh://git:secret@git.example.com/app"]
        {
            assert!(repository(bad).expect_err(bad).contains("a URL with a credential is refused"), "{bad}");
        }
        assert!(repository("").is_err() && repository("a\nb").is_err());
        assert!(["main", "v1.0", "refs/heads/a-b", "0123abc"].into_iter().all(|good| reference(good).is_ok()));
        assert!(["", "-x", "+main", "a:b", "a b", "a^", "a*"].into_iter().all(|bad| reference(bad).is_err()));
        assert_eq!((path("tasks/").as_deref(), path("./tasks/a.md").as_deref()), (Ok("tasks"), Ok("tasks/a.md")));
        assert!(["", "/tasks", "a/../b", "a//b", "."].into_iter().all(|bad| path(bad).is_err()));
    }

    #[test]
    fn a_folder_is_known_by_its_whole_path() {
        let here = std::env::current_dir().expect("a folder");
        assert_eq!((location("."), location("src")), (here.display().to_string(), here.join("src").display().to_string()));
        for elsewhere in ["https://git.example.com/team/app", "git@git.example.com:team/app", "no-such-folder"] {
            assert_eq!(location(elsewhere), elsewhere);
        }
    }

    #[test]
    fn tasks_are_files_that_a_person_sees() {
        let blob = "257cc5642cb1a054f08cc83f2d943e56fd3ebe99";
        let listing = [
            format!("100644 blob {blob}      11\ttasks/a b.md"),
            format!("100755 blob {blob}       1\ttasks/run\ttabs.sh"),
            format!("100644 blob {blob}       0\ttasks/empty"),
            format!("100644 blob {blob}       5\t.github/hidden"),
            format!("100644 blob {blob}       5\ttasks/.keep"),
            format!("120000 blob {blob}       5\ttasks/link"),
            format!("160000 commit {blob}       -\ttasks/module"),
        ]
        .join("\0");
        let paths = |limit| files(listing.as_bytes(), limit).map(|files| files.into_iter().map(|file| file.path).collect::<Vec<_>>());
        assert_eq!(paths(11).expect("a list"), ["tasks/a b.md", "tasks/run\ttabs.sh"]);
        assert!(paths(10).expect_err("too large").to_string().starts_with("tasks/a b.md: the payload has 11 bytes: the limit is 10"));
    }
}
