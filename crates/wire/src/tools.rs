//! Between the controller and the bridge of a Toolset: what the bridge serves.

use serde::{Deserialize, Serialize};

/// What a bridge serves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BridgeStatus {
    /// Revision of the definitions that it serves.
    pub revision: String,
    /// Names of the programs that it serves.
    pub programs: Vec<String>,
    /// Why it did not take the newest definitions: file, line and rule. It serves the last valid ones then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}
