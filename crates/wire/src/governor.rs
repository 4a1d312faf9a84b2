//! Messages between the gateway and the governor. The gateway forwards the agents' calls under the same paths and puts
//! the verified identity of the caller into headers. The governor sends each gateway one stream of changes.

use serde::{Deserialize, Serialize};

/// Uid of the calling pod, as the API server confirmed it.
pub const CALLER_UID_HEADER: &str = "spillway-caller-uid";
/// Name of that pod.
pub const CALLER_POD_HEADER: &str = "spillway-caller-pod";
/// Namespace of that pod.
pub const CALLER_NAMESPACE_HEADER: &str = "spillway-caller-namespace";
/// User of the token of a call from outside the cluster, as the API server confirmed it. Namespace and pod are then
/// claims of the caller, and [`CALLER_AGENT_UID_HEADER`] replaces [`CALLER_UID_HEADER`].
pub const CALLER_USER_HEADER: &str = "spillway-caller-user";
/// Uid of the Agent that a caller outside the cluster names. It has a header of its own, because the uid of a pod is
/// proved and this one is not. A leader that does not know such callers finds no uid and refuses the call.
pub const CALLER_AGENT_UID_HEADER: &str = "spillway-caller-agent-uid";
/// Pool for which that user may register agents.
pub const CALLER_POOL_HEADER: &str = "spillway-caller-pool";
/// Name of the gateway that forwards the call.
pub const GATEWAY_HEADER: &str = "spillway-gateway";
/// Header of every answer: the owner epoch of the governor. A gateway refuses answers with a lower epoch than it has
/// seen.
pub const OWNER_EPOCH_HEADER: &str = "spillway-owner-epoch";
/// Header of every answer: the resource version of the governor's Lease after its last renewal. A gateway keeps the
/// highest one.
pub const LEASE_VERSION_HEADER: &str = "spillway-lease-version";
/// Header of the answer to the request for the stream of changes: the cluster's store was rolled back in the last
/// minutes. The gateway then repeats what earlier leaders acknowledged.
pub const ROLLED_BACK_HEADER: &str = "spillway-rolled-back";
/// Header of the request for the stream of changes: the highest [`LEASE_VERSION_HEADER`] that the last leader sent to
/// this gateway.
pub const SEEN_VERSION_HEADER: &str = "spillway-seen-version";
/// Header of the same request: the owner epoch of that leader.
pub const SEEN_EPOCH_HEADER: &str = "spillway-seen-epoch";
/// Annotation of the leader Lease: the owner epoch of its holder.
pub const EPOCH_ANNOTATION: &str = "spillway.dev/owner-epoch";
/// Annotation of the leader Lease: a rollback of the cluster's store, as `policy::lease::StoreRollback` writes it.
pub const ROLLBACK_ANNOTATION: &str = "spillway.dev/store-rollback";
/// Annotation of the leader Lease: the address at which its holder serves, as `ip:port`.
pub const ADDRESS_ANNOTATION: &str = "spillway.dev/governor";
/// Query parameter that names the gateway on the stream of changes.
pub const GATEWAY_QUERY: &str = "gateway";

/// One line of the stream of changes: one JSON object a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Change {
    /// The stream is alive. It is sent at the start and every few seconds.
    Alive,
    /// The desired state of the agent with this pod uid has a new revision.
    Wanted {
        /// The pod's uid.
        uid: String,
        /// The revision.
        revision: String,
    },
    /// There may be work for the agent with this pod uid, which asked for work.
    Work {
        /// The pod's uid.
        uid: String,
    },
    /// The agent with this pod uid has ended. Its token is no longer accepted.
    Revoked {
        /// The pod's uid.
        uid: String,
    },
}
