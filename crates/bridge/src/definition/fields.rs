//! The fields of the front matter, as people write them. YAML 1.2 without what hides its meaning: no anchors, aliases, tags, merge keys or
//! repeated keys, one document, and text that looks like a number or a boolean must be quoted.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_saphyr::{DuplicateKeyPolicy, MergeKeyPolicy, Options, Spanned};

use super::Fault;

/// The deepest nesting: a list of arguments, each with a list of values.
const MAX_DEPTH: usize = 6;
/// The most values of the whole front matter.
const MAX_NODES: usize = 4096;

/// The front matter.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fields {
    /// Name of the program, for agents.
    pub name: Spanned<String>,
    /// What it does, in one line.
    pub description: Spanned<String>,
    /// Absolute path of the program.
    pub command: Spanned<String>,
    /// The words after the program, with `{name}` for arguments. If unset: each argument, in order.
    pub argv: Option<Vec<Spanned<String>>>,
    /// The arguments of a call.
    #[serde(default)]
    pub args: Vec<ArgumentFields>,
    /// Time limit in seconds.
    pub timeout_seconds: Option<Spanned<u32>>,
    /// The other limits.
    #[serde(default)]
    pub limits: LimitFields,
    /// Its environment.
    #[serde(default)]
    pub env: EnvironmentFields,
    /// Whether a person approves each call.
    #[serde(default)]
    pub requires_approval: bool,
    /// Whether the program may be a shell or an interpreter.
    #[serde(default)]
    pub interpreter: bool,
}

/// An argument.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ArgumentFields {
    /// Its name.
    pub name: Spanned<String>,
    /// Its type.
    #[serde(rename = "type", default)]
    pub type_: TypeName,
    /// What it means.
    #[serde(default)]
    pub description: String,
    /// Whether each call has it.
    #[serde(default)]
    pub required: bool,
    /// The pattern that the whole text matches.
    pub pattern: Option<Spanned<String>>,
    /// The most characters of the text.
    pub max_length: Option<Spanned<u32>>,
    /// Whether the text may begin with a dash where it begins a word.
    #[serde(default)]
    pub leading_dash: bool,
    /// The least number.
    pub min: Option<Spanned<i64>>,
    /// The greatest number.
    pub max: Option<Spanned<i64>>,
    /// The possible texts.
    pub values: Option<Vec<Spanned<String>>>,
    /// Whether the text may have several lines. Only tools of an upstream take such texts.
    #[serde(default)]
    pub multiline: bool,
}

/// The type of an argument.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TypeName {
    /// A text.
    #[default]
    String,
    /// A whole number.
    Integer,
    /// `true` or `false`.
    Boolean,
    /// One of some texts.
    Enum,
    /// A file that the agent has uploaded.
    Artifact,
}

/// Limits of a program.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LimitFields {
    /// Bytes of standard output that an answer has.
    pub stdout_bytes: Option<Spanned<u64>>,
    /// Bytes of standard error that an answer has.
    pub stderr_bytes: Option<Spanned<u64>>,
    /// Calls at once.
    pub concurrency: Option<Spanned<u64>>,
    /// Calls of one agent within a minute.
    pub per_agent_per_minute: Option<Spanned<u64>>,
}

/// The environment of a program.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnvironmentFields {
    /// Variables with their values.
    #[serde(default)]
    pub set: BTreeMap<String, Spanned<String>>,
    /// Names of credentials.
    #[serde(default)]
    pub credentials: Vec<Spanned<String>>,
}

/// Reads the fields. Lines count from the first line of the file.
pub fn parse(yaml: &str) -> Result<Fields, Fault> {
    read(yaml, MAX_NODES).map_err(|Fault { line, rule, message }| Fault { line: line.map(|line| in_file(line.into())), rule, message })
}

/// Reads any fields. Lines count from the first line of `yaml`. `max_nodes`: the most values.
pub fn read<T: DeserializeOwned>(yaml: &str, max_nodes: usize) -> Result<T, Fault> {
    serde_saphyr::from_str_with_options(yaml, options(max_nodes)).map_err(|error| {
        let line = error.location().map(|location| u32::try_from(location.line()).unwrap_or(u32::MAX));
        // The lines after the first show the place again.
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
        Fault::new(line, "InvalidFields", first)
    })
}

/// The line of the file for a line of the front matter, which begins behind the first fence.
pub fn in_file(line: u64) -> u32 {
    u32::try_from(line).unwrap_or(u32::MAX).saturating_add(1)
}

fn options(max_nodes: usize) -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_anchors: 0,
            max_aliases: 0,
            max_merge_keys: 0,
            max_documents: 1,
            max_depth: MAX_DEPTH,
            max_nodes: max_nodes,
        },
        duplicate_keys: DuplicateKeyPolicy::Error,
        merge_keys: MergeKeyPolicy::Error,
        strict_booleans: true,
        no_schema: true,
        reject_unsupported_tags: true,
        reject_tagged_field_names: true,
        with_snippet: false,
    }
}
