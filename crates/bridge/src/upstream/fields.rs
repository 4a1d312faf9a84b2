//! The fields of `spec.upstream`, as people write them.

use serde::Deserialize;
use serde_saphyr::Spanned;

use crate::definition::fields::ArgumentFields;

/// A server of MCP.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UpstreamFields {
    /// Its address.
    pub url: Spanned<String>,
    /// The credential that requests carry.
    pub credentials_ref: Option<CredentialFields>,
    /// Certificates that are trusted besides the public authorities, as PEM.
    pub ca_bundle: Option<String>,
    /// The tools that agents may call.
    pub tools: Vec<ToolFields>,
}

/// A credential: a Secret in a Toolset, and the name of a file by hand.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CredentialFields {
    /// Its name.
    pub name: Spanned<String>,
    /// Key of the Secret. A file has none.
    #[serde(rename = "key", default)]
    pub _key: Option<String>,
}

/// A tool.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ToolFields {
    /// Its name, as the upstream lists it.
    pub name: Spanned<String>,
    /// Whether a person approves each call.
    #[serde(default)]
    pub requires_approval: bool,
    /// Time limit in seconds.
    pub timeout_seconds: Option<Spanned<u32>>,
    /// The other limits.
    #[serde(default)]
    pub limits: ToolLimitFields,
    /// Rules for its arguments. If unset, the upstream alone says which are right.
    pub arguments: Option<Vec<ArgumentFields>>,
    /// The digest of what the upstream must say about it.
    pub digest: Option<Spanned<String>>,
}

/// Limits of a tool.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ToolLimitFields {
    /// Bytes of an answer.
    pub answer_bytes: Option<Spanned<u64>>,
    /// Calls at once.
    pub concurrency: Option<Spanned<u64>>,
    /// Calls of one agent within a minute.
    pub per_agent_per_minute: Option<Spanned<u64>>,
}
