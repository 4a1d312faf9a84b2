//! Peers of a gateway that break the protocols, or hold scarce resources: raw bytes over real TLS on loopback, against
//! the routes of a real gateway with the bounds of a real listener. Tests that wait for idle connections shorten their
//! time.

#[path = "protocol/client.rs"]
mod client;
#[path = "protocol/conformance.rs"]
mod conformance;
#[path = "protocol/connections.rs"]
mod connections;
#[path = "protocol/external.rs"]
mod external;
#[path = "protocol/floods.rs"]
mod floods;
#[path = "protocol/framing.rs"]
mod framing;
#[path = "models/world.rs"]
#[expect(dead_code, reason = "shared with the tests of model calls, which use all of it")]
mod world;

use std::net::SocketAddr;
use std::time::Duration;

use spillway::gateway::models::Times;
use spillway::serve::Bounds;
use spillway::serve::lifetime::Times as ConnectionTimes;
use world::{Side, TestCluster, wait_for};

/// The time that a gateway gives strange connections: 3 s were too short for honest clients on a busy machine. Tests wait
/// for connections that end after it.
const SHORT: Duration = Bounds::AGENTS.times.strange;

/// The bounds of a gateway, where idle connections end as soon as strange ones.
fn short() -> Bounds {
    let times = ConnectionTimes { idle: SHORT, ..Bounds::AGENTS.times };
    Bounds { times, shutdown_timeout: Duration::ZERO, ..Bounds::AGENTS }
}

/// A running gateway.
struct Served {
    world: TestCluster,
    side: Side,
    address: SocketAddr,
}

async fn served(bounds: Bounds) -> Served {
    let world = TestCluster::new().await;
    let side = world.gateway("g", Times::default(), true);
    let address = world.serve(&side, bounds).await;
    // Without the connection, calls of agents are refused. An honest call does not show it: the gateway answers it alone.
    wait_for("the gateway is connected to the governor", || (!world.leader.table().begins.is_empty()).then_some(())).await;
    Served { world, side, address }
}
