//! Between gateway and governor: the agents' calls, forwarded under the same paths with the caller's verified identity in
//! headers, and one stream a gateway by which the governor tells what changed.

use serde::{Deserialize, Serialize};

/// Uid of the calling pod, as the API server vouched for it.
pub const CALLER_UID_HEADER: &str = "spillway-caller-uid";
/// Name of that pod.
pub const CALLER_POD_HEADER: &str = "spillway-caller-pod";
/// Namespace of that pod.
pub const CALLER_NAMESPACE_HEADER: &str = "spillway-caller-namespace";
/// Of a call from outside the cluster: the user of its token, as the API server vouched for it. Namespace and pod are then what the
/// caller says of itself, and instead of [`CALLER_UID_HEADER`] comes [`CALLER_AGENT_UID_HEADER`].
pub const CALLER_USER_HEADER: &str = "spillway-caller-user";
/// The uid of the Agent that a caller outside the cluster says it is. Never under the name of a pod's, which is proved: a leader that
/// does not know of such callers finds no uid, and refuses.
pub const CALLER_AGENT_UID_HEADER: &str = "spillway-caller-agent-uid";
/// The pool for which that user may register agents.
pub const CALLER_POOL_HEADER: &str = "spillway-caller-pool";
/// Which gateway forwards.
pub const GATEWAY_HEADER: &str = "spillway-gateway";
/// On every answer: the owner epoch of the governor. A gateway refuses answers of a lower one than it has seen.
pub const OWNER_EPOCH_HEADER: &str = "spillway-owner-epoch";
/// On every answer: the resource version of the governor's Lease after its last renewal. A gateway keeps the highest.
pub const LEASE_VERSION_HEADER: &str = "spillway-lease-version";
/// On the answer to the request for the stream of changes: the cluster's store was rolled back in the last minutes. The gateway
/// replays what earlier leaders acknowledged.
pub const ROLLED_BACK_HEADER: &str = "spillway-rolled-back";
/// On the request for the stream of changes: the highest [`LEASE_VERSION_HEADER`] that the last leader sent to this gateway.
pub const SEEN_VERSION_HEADER: &str = "spillway-seen-version";
/// On the same request: the owner epoch of that leader.
pub const SEEN_EPOCH_HEADER: &str = "spillway-seen-epoch";
/// Annotation of the leader Lease: the owner epoch of its holder.
pub const EPOCH_ANNOTATION: &str = "spillway.dev/owner-epoch";
/// Annotation of the leader Lease: a rollback of the cluster's store, as `policy::lease::StoreRollback` writes it.
pub const ROLLBACK_ANNOTATION: &str = "spillway.dev/store-rollback";
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
