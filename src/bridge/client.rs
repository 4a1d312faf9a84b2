//! The client by which the controller asks the bridge of a Toolset for its status.

use std::net::SocketAddr;

use spillway_wire::tools::BridgeStatus;

/// The account by which a bridge identifies itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgeAccount {
    /// Namespace of the Toolset.
    pub namespace: String,
    /// Name of the ServiceAccount of its pods.
    pub service_account: String,
}

/// The client of bridges.
#[derive(Debug, Default)]
pub struct BridgeClient {}

impl BridgeClient {
    /// A client.
    pub fn new() -> Self {
        Self::default()
    }

    /// What the bridge at `address` serves. The bridge must prove that it runs as `account`.
    #[expect(clippy::unused_async, reason = "the calls over the network wait")]
    pub async fn status(&self, address: SocketAddr, account: &BridgeAccount) -> Result<BridgeStatus, String> {
        let BridgeAccount { namespace, service_account } = account;
        Err(format!("the bridge of {namespace}/{service_account} at {address} cannot be asked"))
    }
}
