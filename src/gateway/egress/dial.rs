//! The connection to a destination: its name is resolved once, and the connection goes to an address that was checked.
//!
//! It must not know who asks.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use tokio::net::TcpStream;

use crate::origins::{DialRefusal, judge};
use crate::policy::egress::Destination;
use crate::serve::fair_semaphore::FairSemaphore;

/// How long a name may take to resolve.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long connecting to one address may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Addresses that are tried.
const MAX_ADDRESS_ATTEMPTS: usize = 3;

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DialError {
    /// No address of the destination may be connected to; one of them.
    NotPublic(IpAddr),
    /// The destination has no address, or does not answer.
    Unreachable(String),
}

/// Connects to a destination whose addresses may, or may not, be private. Look-ups of one namespace wait for each other.
pub async fn dial(
    lookups: &FairSemaphore,
    namespace: &str,
    destination: &Destination,
    allow_private: bool,
) -> Result<TcpStream, DialError> {
    let resolving = resolve(lookups, namespace, destination);
    let found = tokio::time::timeout(RESOLVE_TIMEOUT, resolving).await;
    let found = found.map_err(|_| DialError::Unreachable("its name is not resolved in time".into()))??;
    connect(&allowed(&found, allow_private)?).await
}

/// The addresses of a destination.
async fn resolve(lookups: &FairSemaphore, namespace: &str, destination: &Destination) -> Result<Vec<SocketAddr>, DialError> {
    let busy = |_| DialError::Unreachable("too many names of this namespace are being resolved".into());
    let permit = lookups.take(namespace).await.map_err(busy)?;
    // With a dot at its end a name is whole: the search list of the resolver would make another name of it.
    let name = (format!("{}.", destination.host()), destination.port());
    let resolving = tokio::task::spawn_blocking(move || {
        // A look-up that nobody waits for any more keeps its permit, as it keeps its thread.
        let _permit = permit;
        name.to_socket_addrs().map(Iterator::collect)
    });
    let unresolved = |error: String| DialError::Unreachable(format!("its name is not resolved: {error}"));
    resolving.await.map_err(|error| unresolved(error.to_string()))?.map_err(|error| unresolved(error.to_string()))
}

/// The addresses that may be connected to.
fn allowed(found: &[SocketAddr], allow_private: bool) -> Result<Vec<SocketAddr>, DialError> {
    let may = |address: &SocketAddr| match judge(address.ip(), false) {
        Ok(()) => true,
        Err(DialRefusal::Private) => allow_private,
        // Loopback is the gateway's own machine.
        Err(DialRefusal::Loopback | DialRefusal::LinkLocal | DialRefusal::Reserved) => false,
    };
    let open: Vec<SocketAddr> = found.iter().copied().filter(may).take(MAX_ADDRESS_ATTEMPTS).collect();
    match found.first() {
        None => Err(DialError::Unreachable("its name has no address".into())),
        Some(address) if open.is_empty() => Err(DialError::NotPublic(address.ip())),
        Some(_) => Ok(open),
    }
}

async fn connect(addresses: &[SocketAddr]) -> Result<TcpStream, DialError> {
    let mut last = String::new();
    for address in addresses {
        match tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // Latency matters more than full packets. A socket that refuses the option still carries bytes.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(error)) => last = error.to_string(),
            Err(_) => last = "it does not answer".into(),
        }
    }
    Err(DialError::Unreachable(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(addresses: &[&str]) -> Vec<SocketAddr> {
        addresses.iter().map(|address| SocketAddr::new(address.parse().expect(address), 443)).collect()
    }

    #[test]
    fn a_name_that_leads_inside_is_denied_and_one_that_also_does_leads_outside() {
        for inside in ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "fd00:ec2::254", "::ffff:10.0.0.1", "100.100.100.200"] {
            assert!(matches!(allowed(&found(&[inside]), false), Err(DialError::NotPublic(_))), "{inside}");
        }
        assert_eq!(allowed(&found(&["10.0.0.1", "1.1.1.1"]), false), Ok(found(&["1.1.1.1"])));
        assert_eq!(allowed(&found(&["10.0.0.1"]), true), Ok(found(&["10.0.0.1"])));
        assert!(allowed(&found(&["169.254.169.254"]), true).is_err(), "where clouds keep credentials");
        assert!(allowed(&found(&["127.0.0.1"]), true).is_err(), "the gateway's own machine");
        assert!(matches!(allowed(&[], true), Err(DialError::Unreachable(_))));
    }
}
