//! The changeset of an item as short texts, and the git commands that show its changes. Pure. It must not run git.

use crate::api::WorkItem;
use crate::api::item_changeset::{ChangesetState, ItemChangeset};

/// Characters of a commit's id in a text for people.
const SHORT_COMMIT_CHARS: usize = 12;

/// The changeset of an item.
pub fn of(item: &WorkItem) -> Option<&ItemChangeset> {
    item.status.as_ref()?.changeset.as_ref()
}

/// The name of the state, and its meaning for a person.
pub fn state_text(changeset: &ItemChangeset) -> &'static str {
    let in_folder = changeset.folder.is_some();
    match changeset.state {
        ChangesetState::Open if in_folder => "Open: an agent works on the item, and the folder is not changed yet",
        ChangesetState::Open => "Open: an agent works on the item, and nothing is pushed yet",
        ChangesetState::Committed if in_folder => "Committed: the changes are made in the folder",
        ChangesetState::Committed => "Committed: the changes are a commit on the branch",
        ChangesetState::Discarded if in_folder => "Discarded: the attempt reported no change of the folder",
        ChangesetState::Discarded => "Discarded: nothing was pushed",
        ChangesetState::Conflict if in_folder => {
            "Conflict: the folder has other files than those that the work began from, and was not changed"
        }
        ChangesetState::Conflict => "Conflict: the branch has another commit than the one that the work began from, and nothing was pushed",
    }
}

/// The commits: `BASE..COMMIT`, or the base alone. A folder has none.
pub fn commits_text(changeset: &ItemChangeset) -> Option<String> {
    if changeset.folder.is_some() {
        return None;
    }
    let short = |id: &str| id.chars().take(SHORT_COMMIT_CHARS).collect::<String>();
    let base = changeset.base.as_deref().map(short)?;
    Some(match changeset.commit.as_deref() {
        Some(commit) => format!("{base}..{}", short(commit)),
        None => base,
    })
}

/// The size of the changes, as text.
pub fn size_text(changeset: &ItemChangeset) -> Option<String> {
    let files = changeset.files?;
    let unit = if files == 1 { "file" } else { "files" };
    // Lines of a folder's files are not counted.
    if changeset.folder.is_some() {
        return Some(format!("{files} {unit}"));
    }
    Some(format!("{files} {unit}, +{} -{}", changeset.insertions.unwrap_or(0), changeset.deletions.unwrap_or(0)))
}

/// The git commands that show the changes; none if there is no commit. A value that a shell or git could read as more than a
/// name gives no commands, because the user copies them into a shell.
pub fn git_commands(changeset: &ItemChangeset) -> Option<[String; 2]> {
    let ItemChangeset { state, remote, branch, base, commit, folder: _, epoch: _, files: _, insertions: _, deletions: _, message: _ } =
        changeset;
    if *state != ChangesetState::Committed {
        return None;
    }
    let [remote, branch, base, commit] = [remote, branch, base, commit].map(|value| value.as_deref().filter(|value| is_plain_word(value)));
    let (remote, branch, base, commit) = (remote?, branch?, base?, commit?);
    Some([format!("git fetch {remote} {branch}"), format!("git diff {base} {commit}")])
}

/// Whether a shell takes a text as one word without special characters, and git does not take it as an option.
fn is_plain_word(text: &str) -> bool {
    let plain = |character: char| character.is_ascii_alphanumeric() || "._/@+:-%".contains(character);
    !text.is_empty() && !text.starts_with('-') && text.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn changeset(change: &Value) -> ItemChangeset {
        let mut all = json!({"state": "Committed", "epoch": 3, "remote": "https://git.example.com:8443/team/app", "branch": "spillway/fix-1",
            "base": "0123456789abcdef0123456789abcdef01234567", "commit": "89abcdef0123456789abcdef0123456789abcdef",
            "files": 1, "insertions": 10, "deletions": 2});
        change.as_object().into_iter().flatten().for_each(|(key, value)| all[key] = value.clone());
        serde_json::from_value(all).expect("a changeset")
    }

    #[test]
    fn commits_and_sizes_are_short() {
        let whole = changeset(&json!({}));
        assert_eq!(commits_text(&whole).as_deref(), Some("0123456789ab..89abcdef0123"));
        assert_eq!(size_text(&whole).as_deref(), Some("1 file, +10 -2"));
        let open = changeset(&json!({"state": "Open", "commit": null, "files": null}));
        assert_eq!((commits_text(&open).as_deref(), size_text(&open)), (Some("0123456789ab"), None));
        assert_eq!(size_text(&changeset(&json!({"files": 0, "insertions": null, "deletions": null}))).as_deref(), Some("0 files, +0 -0"));
        assert_eq!(commits_text(&changeset(&json!({"base": null}))), None);
    }

    #[test]
    fn a_folder_has_no_commits_and_no_lines() {
        let gone = json!({"folder": "data/site", "remote": null, "branch": null, "insertions": null, "deletions": null});
        let whole = changeset(&gone);
        assert_eq!((commits_text(&whole), size_text(&whole).as_deref(), git_commands(&whole)), (None, Some("1 file"), None));
        let text = |state: &str| {
            let mut change = gone.clone();
            change["state"] = json!(state);
            (state_text(&changeset(&change)), state_text(&changeset(&json!({"state": state}))))
        };
        for state in ["Open", "Committed", "Discarded", "Conflict"] {
            let (of_folder, of_repository) = text(state);
            assert!(of_folder.starts_with(state) && of_folder.contains("folder"), "{of_folder}");
            assert!(of_repository.starts_with(state) && !of_repository.contains("folder"), "{of_repository}");
        }
    }

    #[test]
    fn only_plain_words_become_commands() {
        let commands = git_commands(&changeset(&json!({}))).expect("commands");
        assert_eq!(
            commands,
            [
                "git fetch https://git.example.com:8443/team/app spillway/fix-1",
                "git diff 0123456789abcdef0123456789abcdef01234567 89abcdef0123456789abcdef0123456789abcdef"
            ]
        );
        for bad in [
            json!({"branch": "a;reboot"}),
            json!({"branch": "--upload-pack=reboot"}),
            json!({"branch": "a b"}),
            json!({"branch": ""}),
            json!({"remote": "https://a/$(reboot)"}),
            json!({"commit": "`x`"}),
            json!({"commit": null}),
            json!({"base": null}),
            json!({"state": "Discarded"}),
            json!({"state": "Open"}),
            json!({"state": "Conflict"}),
        ] {
            assert_eq!(git_commands(&changeset(&bad)), None, "{bad}");
        }
    }
}
