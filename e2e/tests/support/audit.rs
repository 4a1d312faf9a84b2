//! Writes to the API server and their clients, from its audit log.

use std::fmt;
use std::path::PathBuf;

use serde::Deserialize;

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Write {
    pub verb: String,
    #[serde(default)]
    pub user_agent: String,
    #[serde(default)]
    pub object_ref: Object,
    #[serde(default)]
    pub response_status: Status,
    pub stage_timestamp: jiff::Timestamp,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Object {
    #[serde(default)]
    pub resource: String,
    #[serde(default)]
    pub subresource: String,
    #[serde(default)]
    pub namespace: String,
    #[serde(default)]
    pub name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Status {
    #[serde(default)]
    pub code: u16,
}

impl Write {
    /// Whether it is a successful write with this verb on this resource (`agents/status` for a subresource).
    pub fn is(&self, verb: &str, resource: &str) -> bool {
        let full = if self.object_ref.subresource.is_empty() {
            self.object_ref.resource.clone()
        } else {
            format!("{}/{}", self.object_ref.resource, self.object_ref.subresource)
        };
        self.verb == verb && full == resource && (200..300).contains(&self.response_status.code)
    }

    /// The holder identity in a controller's User-Agent.
    pub fn holder(&self) -> Option<&str> {
        self.user_agent.strip_prefix("spillway-controller/")?.split_once('(')?.1.strip_suffix(')')
    }
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verb, user_agent, object_ref: Object { resource, subresource, namespace, name }, response_status, stage_timestamp } =
            self;
        write!(f, "{stage_timestamp} {verb} {namespace}/{resource}/{name} {subresource} by {user_agent}: {}", response_status.code)
    }
}

/// Every write in a namespace since `since`.
pub fn writes(namespace: &str, since: jiff::Timestamp) -> Vec<Write> {
    let path =
        std::env::var_os("SPILLWAY_AUDIT_LOG").map(PathBuf::from).expect("SPILLWAY_AUDIT_LOG names the audit log: run this by `make e2e`");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let needle = format!("\"namespace\":\"{namespace}\"");
    // The last line may be incomplete.
    let parsed = text.lines().filter(|line| line.contains(&needle)).filter_map(|line| serde_json::from_str::<Write>(line).ok());
    let is_read = |write: &Write| matches!(write.verb.as_str(), "get" | "list" | "watch");
    parsed.filter(|write| write.object_ref.namespace == namespace && write.stage_timestamp >= since && !is_read(write)).collect()
}
