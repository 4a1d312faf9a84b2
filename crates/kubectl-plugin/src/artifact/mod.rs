//! `artifact`: lists and gets the files that agents keep with an item.

mod get;

use std::path::PathBuf;

use jiff::Timestamp;
use kube::ResourceExt as _;
use serde::Serialize;

use crate::api::WorkItem;
use crate::api::artifact::ItemArtifact;
use crate::connect::{Cluster, ConnectArguments};
use crate::console::{Console, Output};
use crate::error::Error;
use crate::input;
use crate::table::{self, printable};
use crate::work;

/// Arguments of `artifact`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  kubectl spillway artifact list build-7
  kubectl spillway artifact get build-7/report.pdf
  kubectl spillway artifact get build-7/log.txt -o - | less")]
pub struct Arguments {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands of `artifact`.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Command {
    /// List the files of an item
    List {
        /// The item
        #[arg(value_name = "ITEM", value_parser = input::item)]
        item: String,
        /// Output format
        #[arg(short, long, value_enum, value_name = "FORMAT")]
        output: Option<Format>,
    },
    /// Get a file of an item, through the API server. You need the right to create tokens of ServiceAccounts in the namespace
    Get(GetArguments),
}

/// Arguments of `artifact get`.
#[derive(Clone, Debug, clap::Args)]
pub struct GetArguments {
    /// The file, as ITEM/NAME
    #[arg(value_name = "ITEM/NAME", value_parser = artifact)]
    pub artifact: (String, String),
    /// File to write; - is standard output [default: the name of the artifact]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Service of the gateways, as NAMESPACE/NAME
    #[arg(long, value_name = "NAMESPACE/NAME", env = "SPILLWAY_GATEWAY_SERVICE", default_value = "spillway-system/spillway-gateway", value_parser = service)]
    pub gateway_service: (String, String),
    /// ServiceAccount of the item's namespace whose token shows your right
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = input::object)]
    pub service_account: String,
}

/// The output format; without one a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// JSON
    Json,
    /// YAML
    Yaml,
}

fn artifact(text: &str) -> Result<(String, String), String> {
    let (item, name) = text.rsplit_once('/').ok_or("the value must be ITEM/NAME")?;
    if !spillway_wire::artifact::is_name(name) {
        return Err(format!("{name:?} is no name of an artifact: it has {}", spillway_wire::artifact::NAME_RULE));
    }
    Ok((input::item(item)?, name.to_owned()))
}

fn service(text: &str) -> Result<(String, String), String> {
    let (namespace, name) = text.split_once('/').ok_or("the value must be NAMESPACE/NAME")?;
    Ok((input::label(namespace)?, input::label(name)?))
}

/// The artifacts of an item.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Namespace of the item.
    pub namespace: String,
    /// The item.
    pub item: String,
    /// Its artifacts.
    pub artifacts: Vec<ItemArtifact>,
}

/// The artifacts in the status of an item.
pub fn of(item: &WorkItem) -> &[ItemArtifact] {
    item.status.as_ref().and_then(|status| status.artifacts.as_deref()).unwrap_or_default()
}

/// The command.
pub async fn execute(connect: &ConnectArguments, arguments: &Arguments, console: &mut dyn Console) -> Result<(), Error> {
    match &arguments.command {
        Command::List { item, output } => {
            let cluster = connect.connect().await?;
            let found = work::item(&cluster, item).await?;
            let report = Report { namespace: cluster.namespace.clone(), item: found.name_any(), artifacts: of(&found).to_vec() };
            console.show(render(&report, *output, Timestamp::now())?);
            Ok(())
        }
        Command::Get(arguments) => get::run(&connect.connect().await?, &connect.connect_to_follow().await?, arguments, console).await,
    }
}

/// The artifact of this name of an item, if its time is not over.
async fn find(cluster: &Cluster, item: &str, name: &str) -> Result<ItemArtifact, Error> {
    let found = work::item(cluster, item).await?;
    let artifact = of(&found).iter().find(|artifact| artifact.name == name).cloned();
    let names = || of(&found).iter().map(|artifact| printable(&artifact.name)).collect::<Vec<_>>().join(", ");
    let artifact = artifact.ok_or_else(|| match names() {
        none if none.is_empty() => Error::Usage(format!("item \"{item}\" has no artifacts")),
        names => Error::Usage(format!("item \"{item}\" has no artifact \"{name}\"; it has: {names}")),
    })?;
    if artifact.expiration_time.0 <= Timestamp::now() {
        let ended = artifact.expiration_time.0;
        return Err(Error::Usage(format!("artifact \"{name}\" of item \"{item}\" was kept until {ended}, and is deleted")));
    }
    Ok(artifact)
}

/// A size for people.
pub fn size(bytes: i64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    let mut unit = "B";
    let mut value = bytes as f64;
    for next in UNITS {
        if value < 1000.0 {
            break;
        }
        (value, unit) = (value / 1000.0, next);
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") }
}

fn render(report: &Report, format: Option<Format>, now: Timestamp) -> Result<Output, Error> {
    let mut output = Output::default();
    match format {
        Some(Format::Json) => output.line(serde_json::to_string_pretty(report).map_err(|error| Error::Format(error.to_string()))?),
        Some(Format::Yaml) => output.line(serde_saphyr::to_string(report).map_err(|error| Error::Format(error.to_string()))?.trim_end()),
        None if report.artifacts.is_empty() => {
            output.note(format!("item \"{}\" in namespace {} has no artifacts", report.item, report.namespace));
        }
        None => {
            let row = |artifact: &ItemArtifact| {
                let left = artifact.expiration_time.0;
                let kept = if left <= now { "deleted".to_owned() } else { left.strftime("%Y-%m-%dT%H:%M:%SZ").to_string() };
                let age = table::age(Some(artifact.creation_time.0), now);
                vec![printable(&artifact.name), size(artifact.bytes), age, kept, artifact.sha256.clone()]
            };
            output.out = table::table(&["NAME", "SIZE", "AGE", "KEPT UNTIL", "SHA-256"], report.artifacts.iter().map(row).collect());
        }
    }
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_artifact_is_named_with_its_item() {
        assert_eq!(artifact("build-7/a.txt"), Ok(("build-7".into(), "a.txt".into())));
        assert_eq!(artifact("workitem/build-7/a.txt"), Ok(("build-7".into(), "a.txt".into())));
        for bad in ["a.txt", "build-7/", "build-7/..", "build-7/.x", "/a.txt", "B/a"] {
            assert!(artifact(bad).is_err(), "{bad}");
        }
        assert_eq!(service("a/b"), Ok(("a".into(), "b".into())));
        assert!(service("a").is_err() && service("a/../b").is_err());
    }

    #[test]
    fn sizes_are_for_people() {
        let sizes: Vec<String> = [0, 999, 1000, 12_000_001, 1_000_000_000].into_iter().map(size).collect();
        assert_eq!(sizes, ["0 B", "999 B", "1.0 kB", "12.0 MB", "1.0 GB"]);
    }

    #[test]
    fn a_table_says_until_when_each_is_kept() {
        let of = |name: &str, until: &str| {
            let value = serde_json::json!({"name": name, "bytes": 5, "sha256": "0".repeat(64), "id": "1".repeat(32), "epoch": 1,
                "creationTime": "2026-01-01T00:00:00Z", "expirationTime": until});
            serde_json::from_value(value).expect("an artifact")
        };
        let artifacts = vec![of("a\u{1b}b", "2026-01-09T00:00:00Z"), of("old", "2026-01-01T12:00:00Z")];
        let report = Report { namespace: "n".into(), item: "i".into(), artifacts };
        let now: Timestamp = "2026-01-02T00:00:00Z".parse().expect("a time");
        let text = render(&report, None, now).expect("text").out;
        assert!(text.contains("2026-01-09T00:00:00Z") && text.contains("deleted") && !text.contains('\u{1b}'), "{text}");
        let none = render(&Report { artifacts: Vec::new(), ..report }, None, now).expect("text");
        assert_eq!((none.out.as_str(), none.err.as_str()), ("", "item \"i\" in namespace n has no artifacts\n"));
    }
}
