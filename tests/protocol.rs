//! Peers of a gateway that break the protocols, or hold what is scarce: raw bytes over real TLS on loopback, against the routes of
//! a real gateway with the bounds of a real listener. Where a test waits for an end, the times are shorter.

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
use world::{Side, TestCluster};

/// Long enough for whatever is honest on a busy machine; the test waits for connections that end after it.
const SHORT: Duration = Duration::from_secs(3);

/// The bounds of a gateway, with short times.
fn short() -> Bounds {
    let times = ConnectionTimes { strange: SHORT, head: SHORT, rest: SHORT, ..Bounds::AGENTS.times };
    Bounds { times, last_calls: Duration::ZERO, ..Bounds::AGENTS }
}

/// A gateway that is served.
struct Served {
    world: TestCluster,
    side: Side,
    address: SocketAddr,
}

async fn served(bounds: Bounds) -> Served {
    let world = TestCluster::new().await;
    let side = world.gateway("g", Times::default(), true);
    let address = world.serve(&side, bounds).await;
    Served { world, side, address }
}
