//! Between gateway and governor: the agents' calls, forwarded under the same paths with the caller's verified identity in
//! headers, and one stream a gateway by which the governor tells what changed.

use serde::{Deserialize, Serialize};

/// Uid of the calling pod, as the API server vouched for it.
pub const CALLER_UID: &str = "spillway-caller-uid";
/// Name of that pod.
pub const CALLER_POD: &str = "spillway-caller-pod";
/// Namespace of that pod.
pub const CALLER_NAMESPACE: &str = "spillway-caller-namespace";
/// Which gateway forwards.
pub const GATEWAY: &str = "spillway-gateway";
/// On every answer: the owner epoch of the governor. A gateway refuses answers of a lower one than it has seen.
pub const OWNER_EPOCH: &str = "spillway-owner-epoch";
/// Annotation of the leader Lease: where its holder serves, as `ip:port`.
pub const ADDRESS_ANNOTATION: &str = "spillway.dev/governor";
/// Query parameter that names the gateway on the stream of changes.
pub const GATEWAY_QUERY: &str = "gateway";

/// One line of the stream of changes (JSON, one object a line).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Change {
    /// The stream lives. Sent at its start and every few seconds.
    Alive,
    /// What is wanted of the agent with this pod uid has this revision now.
    Wanted {
        /// The pod's uid.
        uid: String,
        /// The revision.
        revision: String,
    },
    /// There may be work for the agent with this pod uid, which asked for some.
    Work {
        /// The pod's uid.
        uid: String,
    },
    /// The agent with this pod uid ended: its token counts for nothing any more.
    Revoked {
        /// The pod's uid.
        uid: String,
    },
}
