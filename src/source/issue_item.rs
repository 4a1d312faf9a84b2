//! An issue as an item of work, and the end of an item as a comment. Pure.

use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::forge::{Forge, Issue};
use super::plan::SourcedItem;
use crate::api::item_changeset::ChangesetState;
use crate::api::names::{self, short_hash};
use crate::api::work_item::WorkItemPhase;
use crate::api::{GROUP, VERSION, WorkItem};
use spillway_conversion::work as convert;

/// The most bytes of an issue's text that are part of a payload.
const MAX_BODY_BYTES: usize = 64 * 1024;
/// The most characters of a result or of a message in a comment.
const MAX_TEXT_CHARS: usize = 4096;
/// How long an item is kept after its end, in seconds. Without its item a labelled issue is new work: so it is kept while the process
/// may be away.
const ITEM_TTL_SECONDS: i32 = 7 * 24 * 3600;
/// Hexadecimal digits that stand for the repository and the label, in the name and the label of an item.
const SOURCE_DIGITS: usize = 16;

/// Where items are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Namespace.
    pub namespace: String,
    /// Queue.
    pub queue: String,
    /// Type of the work.
    pub type_: Option<String>,
}

/// The value of the label of all items of a forge's repository and label.
pub fn source_id(forge: &Forge) -> String {
    short_hash(&forge.identity(), SOURCE_DIGITS)
}

/// The item of an issue.
pub fn item(forge: &Forge, issue: &Issue, target: &Target) -> Result<WorkItem, serde_json::Error> {
    let source = source_id(forge);
    serde_json::from_value(json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": "WorkItem",
        "metadata": {
            "name": format!("issue-{}-{source}", issue.number),
            "namespace": target.namespace,
            "labels": {names::SOURCE_LABEL: source},
            "annotations": {names::SOURCE_ANNOTATION: issue.url, names::ISSUE_ANNOTATION: issue.number.to_string()},
        },
        "spec": {
            "queueRef": {"name": target.queue},
            "type": target.type_,
            "payload": payload(issue),
            "overrides": {"ttlSecondsAfterFinished": ITEM_TTL_SECONDS},
        },
    }))
}

/// The task, in words. The text of an issue is written by anybody: the person who put the label vouches for it.
fn payload(issue: &Issue) -> String {
    let Issue { number, title, body, url, author, .. } = issue;
    let mut end = body.len().min(MAX_BODY_BYTES);
    while !body.is_char_boundary(end) {
        end -= 1;
    }
    let cut = if end < body.len() { "\n\n(The text is longer.)" } else { "" };
    format!("{title}\n\n{}{cut}\n\nThis is issue {number}, by {author}: {url}\n", body.get(..end).unwrap_or_default())
}

/// What is known of an item of the forge. None: it is not one.
pub fn sourced(item: &WorkItem) -> Option<SourcedItem> {
    let annotation = |name: &str| item.annotations().get(name);
    Some(SourcedItem {
        name: item.name_any(),
        uid: item.uid()?,
        number: annotation(names::ISSUE_ANNOTATION)?.parse().ok()?,
        ended: convert::record(item).phase.ended(),
        cancelled: item.spec.cancel_requested == Some(true),
        answered: annotation(names::ANSWERED_ANNOTATION).is_some(),
    })
}

/// The mark in the comment about an item.
pub fn mark(uid: &str) -> String {
    format!("<!-- spillway: {uid} -->")
}

/// The comment that tells how an item ended.
pub fn comment(item: &WorkItem, namespace: &str) -> String {
    let (name, status) = (item.name_any(), item.status.clone().unwrap_or_default());
    let done = status.phase == Some(WorkItemPhase::Succeeded);
    let reason = status.reason.as_deref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    let phase = status.phase.map_or_else(|| "ended".to_owned(), |phase| format!("{phase:?}"));
    let mut lines =
        vec![if done { format!("The work is done (`{name}`).") } else { format!("The work was not done: `{name}` is {phase}{reason}.") }];
    if let Some(changeset) = status.changeset.as_ref().filter(|changeset| changeset.state == ChangesetState::Committed) {
        let branch = changeset.branch.as_deref().unwrap_or_default();
        let commit: String = changeset.commit.as_deref().unwrap_or_default().chars().take(12).collect();
        lines.push(format!("Branch: `{branch}` (commit {commit}, {} files)", changeset.files.unwrap_or(0)));
    }
    let last = status.attempt_history.as_ref().and_then(|attempts| attempts.last());
    let text = if done { status.result.clone() } else { last.and_then(|attempt| attempt.message.clone()) };
    lines.extend(text.filter(|text| !text.trim().is_empty()).map(|text| fenced(&text)));
    let artifacts: Vec<String> = status.artifacts.iter().flatten().map(|artifact| format!("`{}`", artifact.name)).collect();
    if !artifacts.is_empty() {
        lines.push(format!("Files: {}. `kubectl spillway artifact get {name}/FILE -n {namespace}` gets one.", artifacts.join(", ")));
    }
    lines.push(mark(&item.uid().unwrap_or_default()));
    lines.join("\n\n")
}

/// A text that an agent wrote, so that nothing of it is read as markup, and nobody is notified by it.
fn fenced(text: &str) -> String {
    let cut: String = text.trim().chars().take(MAX_TEXT_CHARS).collect();
    let longest = cut.split(|char| char != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}\n{cut}\n{fence}")
}

/// The patch that marks an item as answered.
pub fn answered() -> Value {
    json!({names::ANSWERED_ANNOTATION: "true"})
}

#[cfg(test)]
mod tests {
    use super::super::forge::ForgeKind;
    use super::*;

    fn forge(label: &str) -> Forge {
        Forge::new(ForgeKind::Github, None, "team/app", label).expect("a forge")
    }

    fn issue(body: &str) -> Issue {
        let (title, url, author) = ("Mend the login".into(), "https://github.com/team/app/issues/7".into(), "ann".into());
        Issue { number: 7, title, body: body.into(), url, author, open: true, labelled: true, label_id: None }
    }

    fn made(body: &str) -> WorkItem {
        let target = Target { namespace: "team".into(), queue: "fixes".into(), type_: None };
        item(&forge("agents"), &issue(body), &target).expect("an item")
    }

    fn ended(status: Value) -> WorkItem {
        let mut item = made("x");
        item.metadata.uid = Some("u".into());
        item.status = Some(serde_json::from_value(status).expect("a status"));
        item
    }

    #[test]
    fn an_issue_is_one_item_of_its_repository_and_label() {
        let item = made("It fails on Sundays.");
        assert!(item.name_any().starts_with("issue-7-") && item.name_any().len() == "issue-7-".len() + SOURCE_DIGITS);
        assert_eq!(
            item.spec.payload,
            "Mend the login\n\nIt fails on Sundays.\n\nThis is issue 7, by ann: https://github.com/team/app/issues/7\n"
        );
        assert_eq!(item.spec.overrides.and_then(|policy| policy.ttl_seconds_after_finished), Some(604_800));
        assert_ne!(source_id(&forge("agents")), source_id(&forge("other")));
        let long = made(&"ä".repeat(MAX_BODY_BYTES)).spec.payload;
        assert!(long.len() < MAX_BODY_BYTES + 300 && long.contains("(The text is longer.)"));
    }

    #[test]
    fn the_state_of_an_item_is_read() {
        let item = ended(json!({"phase": "Ready"}));
        let expected = SourcedItem { name: item.name_any(), uid: "u".into(), number: 7, ended: false, cancelled: false, answered: false };
        assert_eq!(sourced(&item), Some(expected.clone()));
        assert!(sourced(&ended(json!({"phase": "DeadLettered"}))).is_some_and(|item| item.ended));
        let mut answered = item.clone();
        answered.annotations_mut().insert(names::ANSWERED_ANNOTATION.into(), "true".into());
        assert_eq!(sourced(&answered), Some(SourcedItem { answered: true, ..expected }));
        let mut foreign = item;
        foreign.annotations_mut().clear();
        assert_eq!(sourced(&foreign), None);
    }

    #[test]
    fn a_comment_tells_the_end_and_lets_no_agent_write_markup() {
        let done = ended(json!({"phase": "Succeeded", "result": "```\n@everyone <script>\n```",
            "changeset": {"state": "Committed", "epoch": 1, "branch": "spillway/i", "commit": "0123456789abcdef", "files": 2}}));
        let text = comment(&done, "team");
        let expected =
            "Branch: `spillway/i` (commit 0123456789ab, 2 files)\n\n````\n```\n@everyone <script>\n```\n````\n\n<!-- spillway: u -->";
        assert!(text.starts_with("The work is done (`issue-7-") && text.ends_with(expected), "{text}");
        let failed = ended(json!({"phase": "DeadLettered", "reason": "TooManyFailures", "attemptHistory": [{"epoch": 1, "agent": "a",
            "startTime": "2026-01-01T00:00:00Z", "endTime": "2026-01-01T00:00:01Z", "verb": "Fail", "reason": "Exited", "message": "exit code 1"}]}));
        let text = comment(&failed, "team");
        assert!(text.contains("is DeadLettered (TooManyFailures).") && text.contains("```\nexit code 1\n```"), "{text}");
    }
}
