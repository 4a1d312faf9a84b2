//! `diff`: shows what an item changed in the repository of its pool, and the git commands that show the changes themselves. It
//! only reads the item; it must not run git nor talk to the repository, because git has the user's own credentials.

use serde::Serialize;

use super::{changeset, life};
use crate::api::WorkItem;
use crate::api::item_changeset::ItemChangeset;
use crate::connect::Cluster;
use crate::console::{Console, Output};
use crate::error::Error;
use crate::input;
use crate::policy::work::Phase;
use crate::table::{one_line, pairs, printable};
use kube::ResourceExt as _;
use spillway_conversion::work as convert;

/// Arguments of `diff`.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(after_help = "Examples:
  kubectl spillway diff bugs-x7k2p
  kubectl spillway diff bugs-x7k2p -o json | jq -r .changeset.commit

Only items of a pool with spec.sandbox.changeset have a changeset. The command reads the item, and not the repository: it prints
the git commands that show the changes.")]
pub struct Arguments {
    /// The item
    #[arg(value_name = "ITEM", value_parser = input::item)]
    pub item: String,
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    pub output: Option<Format>,
}

/// The output format; without one text for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// The report as JSON
    Json,
    /// The report as YAML
    Yaml,
}

/// What an item changed.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Namespace of the item.
    pub namespace: String,
    /// Name of the item.
    pub item: String,
    /// Phase of the item.
    pub phase: &'static str,
    /// The changeset, as the status has it.
    pub changeset: ItemChangeset,
    /// The git commands that show the changes; empty without a commit.
    pub commands: Vec<String>,
}

/// The command: reads and prints.
pub async fn execute(cluster: &Cluster, arguments: &Arguments, console: &mut dyn Console) -> Result<(), Error> {
    let item = super::item(cluster, &arguments.item).await?;
    console.show(render(&report(&cluster.namespace, &item)?, arguments.output)?);
    Ok(())
}

/// The report on an item. An item without a changeset is an error that says why there is none.
pub fn report(namespace: &str, item: &WorkItem) -> Result<Report, Error> {
    let (name, phase) = (item.name_any(), life::phase(item));
    let Some(found) = changeset::of(item) else { return Err(Error::Usage(absence_text(namespace, item, phase))) };
    Ok(Report {
        namespace: namespace.to_owned(),
        item: name,
        phase: phase.name(),
        changeset: found.clone(),
        commands: changeset::git_commands(found).into_iter().flatten().collect(),
    })
}

/// Why an item has no changeset.
fn absence_text(namespace: &str, item: &WorkItem, phase: Phase) -> String {
    let name = item.name_any();
    if !phase.held() && !phase.ended() {
        return format!(
            "item \"{name}\" ({}) has no changeset yet: it gets one when an agent of a pool with spec.sandbox.changeset claims it; \
             `kubectl spillway explain item/{name} -n {namespace}` shows what it waits for",
            phase.name()
        );
    }
    if convert::record(item).epoch > 0 {
        return format!("item \"{name}\" ({}) has no changeset: its agent is of a pool without spec.sandbox.changeset", phase.name());
    }
    format!("item \"{name}\" has no changeset: it ended before an agent claimed it ({})", life::state(item))
}

/// The report in the requested format.
pub fn render(report: &Report, format: Option<Format>) -> Result<Output, Error> {
    let mut output = Output::default();
    match format {
        None => return Ok(text(report)),
        Some(Format::Json) => output.line(serde_json::to_string_pretty(report).map_err(|error| Error::Format(error.to_string()))?),
        Some(Format::Yaml) => output.line(serde_saphyr::to_string(report).map_err(|error| Error::Format(error.to_string()))?.trim_end()),
    }
    Ok(output)
}

fn text(report: &Report) -> Output {
    let Report { namespace, item, phase, changeset: found, commands } = report;
    let mut output = Output::default();
    output.line(format!("WorkItem {item} in namespace {namespace}: {phase}"));
    let rows = [
        ("State", Some(changeset::state_text(found).to_owned())),
        ("Repository", found.remote.clone()),
        ("Branch", found.branch.clone()),
        ("Folder", found.folder.clone()),
        ("Commits", changeset::commits_text(found)),
        ("Changes", changeset::size_text(found)),
        ("Epoch", Some(found.epoch.to_string())),
        ("Message", found.message.as_deref().map(one_line)),
    ];
    let known: Vec<(&str, String)> = rows.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    output.out.push_str(&pairs(&known));
    if !commands.is_empty() {
        output.line("\nTo show the changes, in a clone of the repository");
        commands.iter().for_each(|command| output.line(format!("  {}", printable(command))));
    }
    output
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn item(status: &Value) -> WorkItem {
        serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkItem",
            "metadata": {"name": "fix-1", "namespace": "n"}, "spec": {"queueRef": {"name": "q"}}, "status": status}))
        .expect("an item")
    }

    fn committed() -> Value {
        json!({"phase": "Succeeded", "lease": {"leaseTransitions": 3}, "changeset": {"state": "Committed", "epoch": 3,
            "remote": "https://git.example.com/team/app", "branch": "spillway/fix-1",
            "base": "0123456789abcdef0123456789abcdef01234567", "commit": "89abcdef0123456789abcdef0123456789abcdef",
            "files": 2, "insertions": 10, "deletions": 2}})
    }

    fn shown(status: &Value, format: Option<Format>) -> String {
        render(&report("n", &item(status)).expect("a report"), format).expect("text").out
    }

    #[test]
    fn a_commit_is_shown_with_the_commands_that_show_its_changes() {
        assert_eq!(
            shown(&committed(), None),
            "WorkItem fix-1 in namespace n: Succeeded
  State       Committed: the changes are a commit on the branch
  Repository  https://git.example.com/team/app
  Branch      spillway/fix-1
  Commits     0123456789ab..89abcdef0123
  Changes     2 files, +10 -2
  Epoch       3

To show the changes, in a clone of the repository
  git fetch https://git.example.com/team/app spillway/fix-1
  git diff 0123456789abcdef0123456789abcdef01234567 89abcdef0123456789abcdef0123456789abcdef
"
        );
    }

    #[test]
    fn a_conflict_is_shown_with_its_message_on_one_line_and_without_commands() {
        let status = json!({"phase": "Scheduled", "changeset": {"state": "Conflict", "epoch": 2, "branch": "work",
            "message": "work is at abc\n\u{1b}[2Jnow"}});
        let text = shown(&status, None);
        assert!(text.starts_with("WorkItem fix-1 in namespace n: Scheduled\n  State    Conflict: "), "{text}");
        assert!(text.ends_with("  Message  work is at abc \u{fffd}[2Jnow\n"), "{text}");
    }

    #[test]
    fn machines_get_the_whole_report() {
        let json: Value = serde_json::from_str(&shown(&committed(), Some(Format::Json))).expect("JSON");
        assert_eq!((&json["item"], &json["changeset"]), (&json!("fix-1"), &committed()["changeset"]));
        assert_eq!(json["commands"][0], json!("git fetch https://git.example.com/team/app spillway/fix-1"));
        let yaml: Value = serde_saphyr::from_str(&shown(&committed(), Some(Format::Yaml))).expect("YAML");
        assert_eq!(yaml, json);
    }

    #[test]
    fn an_item_without_a_changeset_says_why() {
        let refused = |status: Value| report("n", &item(&status)).expect_err("no changeset").to_string();
        let waits = refused(json!({"phase": "Ready"}));
        assert!(
            waits.starts_with("item \"fix-1\" (Ready) has no changeset yet: it gets one when")
                && waits.contains("explain item/fix-1 -n n`"),
            "{waits}"
        );
        let again = refused(json!({"phase": "Ready", "lease": {"leaseTransitions": 3}}));
        assert_eq!(again, waits, "a redrive removes the changeset of earlier attempts");
        let other = refused(json!({"phase": "Succeeded", "lease": {"leaseTransitions": 1}}));
        assert!(other.contains("(Succeeded) has no changeset: its agent is of a pool without spec.sandbox.changeset"), "{other}");
        let cancelled = refused(json!({"phase": "Cancelled", "reason": "CancelRequested"}));
        assert!(cancelled.contains("it ended before an agent claimed it (Cancelled, CancelRequested)"), "{cancelled}");
    }
}
