//! The push of an item's commit. The gateway lets this commit pass, and no other.

use spillway_wire::changeset::{PendingCommit, reasons};

use super::commit::repository;
use super::mirror::Mirror;
use super::{Git, GitError};
use crate::agent::changeset::{StepFailure, StepResult};

/// The repository from which the commit is pushed, in that of the commit.
const PUSH_REPOSITORY: &str = "push.git";
/// Words of git about a branch that is no longer where it was.
const STALE_WORDS: [&str; 4] = ["stale info", "fetch first", "non-fast-forward", "cannot lock ref"];

/// Pushes `commit` to `branch`. A push whose answer was lost is not made again.
pub fn push(mirror: &Mirror, branch: &str, commit: &PendingCommit) -> Result<StepResult, String> {
    mirror.check()?;
    let made = repository(mirror);
    let folder = made.join(PUSH_REPOSITORY);
    // With the objects of the commit, and none of its settings: the pool's command, which ran after the commit was made, runs what
    // the program wrote. Objects that it changed have other names, and the server does not take them.
    mirror.make_repository(&folder, &[&made])?;
    let git = Git::isolated(&folder);
    let PendingCommit { old, new } = commit;
    let there = git.branch_at(&mirror.url, branch)?;
    if there.as_deref() == Some(new) {
        return Ok(StepResult::Pushed);
    }
    let expected = there.as_deref().map_or_else(|| old.bytes().all(|byte| byte == b'0'), |there| there == old);
    if !expected {
        return Ok(conflict(branch, there.as_deref()));
    }
    let lease = if there.is_some() { old.as_str() } else { "" };
    let words = [
        "push",
        "--quiet",
        "--no-verify",
        &format!("--force-with-lease=refs/heads/{branch}:{lease}"),
        &mirror.url,
        &format!("{new}:refs/heads/{branch}"),
    ];
    match git.with_network(&words) {
        Ok(_) => Ok(StepResult::Pushed),
        // The answer may have been lost: the branch says how it ended.
        Err(error) => match git.branch_at(&mirror.url, branch) {
            Ok(Some(there)) if there == *new => Ok(StepResult::Pushed),
            Ok(there) if is_stale(&error) => Ok(conflict(branch, there.as_deref())),
            Ok(_) | Err(_) => Err(error.to_string()),
        },
    }
}

fn is_stale(error: &GitError) -> bool {
    matches!(error, GitError::Failed { words, .. } if STALE_WORDS.iter().any(|stale| words.contains(stale)))
}

fn conflict(branch: &str, there: Option<&str>) -> StepResult {
    let there = there.map_or_else(|| "does not exist any more".to_owned(), |there| format!("has the commit {there} by now"));
    let message = format!("the branch {branch} {there}. The next attempt begins from the newest commit");
    StepResult::Refused(StepFailure::new(reasons::CHANGESET_CONFLICT, message))
}
