//! The advice on changesets: data alone. [`advice`](super) decides which advice applies.

use super::Advice;
use super::Advice::{Do, Nothing};
use spillway_wire::changeset::reasons;

/// The reasons for which the changeset of an item fails, with their advice. `{pool}` and `{namespace}` stand for names.
pub(super) const CHANGESET_ADVICE: &[(&str, Advice)] = &[
    (
        reasons::WORKSPACE_NOT_PREPARED,
        Do(
            "the repository could not be cloned, or the folder not copied, for the item: fix what the message of the attempt names (spec.workspace of pool {pool}, the credential, the git server, a path of spec.agent.files, git in the image, the volume)",
        ),
    ),
    (
        reasons::CHANGESET_NOT_COMMITTED,
        Do(
            "the commit could not be made or pushed, or the changes not be made in the folder: fix what the message of the attempt names (a push that the git server rejects, the rights of the credential of pool {pool}, a limit of the platform, the rights on the volume, the size of the volumes)",
        ),
    ),
    (
        reasons::CHANGESET_CONFLICT,
        Do(
            "the branch has a commit that the attempt did not begin from, and that no earlier attempt at the item made: merge or delete that branch, or give each item a branch of its own (spec.sandbox.changeset.branch of pool {pool}; unset: spillway/ and the name of the item). Of a folder: another item or a person changed the same files; the next attempt begins from them, so raise maxAttempts of the queue, or let items change different files",
        ),
    ),
    (
        reasons::PROTECTED_PATH,
        Do(
            "the agent changed a path of spec.sandbox.changeset.protect of pool {pool}, which the message of the attempt names: submit another item that tells the agent to leave it alone, or remove the path from the list if it may change",
        ),
    ),
    (
        reasons::CHANGESET_TOO_LARGE,
        Do(
            "the changed files have more bytes than spec.sandbox.changeset.maxBytes of pool {pool}: keep files that the program generates out of it (the .gitignore of the repository; outside of the workspace, if the pool has a folder), submit smaller items, or raise the limit",
        ),
    ),
    (
        reasons::CHANGESET_NOT_VERIFIED,
        Do(
            "spec.sandbox.changeset.verify of pool {pool} failed, and the message of the attempt ends with its output: submit another item with a clearer task, fix the command or the image, or raise verifySeconds",
        ),
    ),
    (
        reasons::FORBIDDEN_FILE,
        Do(
            "the workspace has a file that no folder may get, which the message of the attempt names: a pipe, a socket, a device, a set-uid file, a link that leaves the folder, or a name that is not UTF-8. Submit another item that tells the agent to make it outside of the workspace, such as in /tmp",
        ),
    ),
    (
        "BadChangeset",
        Nothing(
            "the changes of an item were refused (ProtectedPath, ChangesetTooLarge, ChangesetNotVerified or ForbiddenFile) and were dropped. The item failed for that reason, and its queue decides whether it is tried again: `kubectl spillway explain item/ITEM -n {namespace}` says what to do",
        ),
    ),
];
