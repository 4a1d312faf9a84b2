//! The canary: tries to connect to addresses that must not be reachable from the pod. Only an opened connection counts, because
//! the isolation itself may refuse connections.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Time limit of one connection.
const CANARY_CONNECT_TIMEOUT: Duration = Duration::from_millis(250);

/// The `targets` (`ip:port`) that can be reached. A target that is no address cannot be tested, and counts as reachable: the pod
/// fails closed, and the report says why.
pub async fn probe(targets: Vec<String>) -> Vec<String> {
    let mut trials = JoinSet::new();
    let mut reached: Vec<(usize, String)> = Vec::new();
    for (position, target) in targets.into_iter().enumerate() {
        match address(&target) {
            None => reached.push((position, format!("{target} (cannot be tested: it is not an IP address with a port)"))),
            Some(address) => {
                trials.spawn(async move {
                    let connected = timeout(CANARY_CONNECT_TIMEOUT, TcpStream::connect(address)).await;
                    matches!(connected, Ok(Ok(_))).then_some((position, target))
                });
            }
        }
    }
    while let Some(trial) = trials.join_next().await {
        reached.extend(trial.ok().flatten());
    }
    reached.sort();
    reached.into_iter().map(|(_, target)| target).collect()
}

/// `ip:port`, with an IPv6 address in brackets or without.
fn address(target: &str) -> Option<SocketAddr> {
    target.parse().ok().or_else(|| {
        let (ip, port) = target.rsplit_once(':')?;
        Some(SocketAddr::new(ip.parse::<IpAddr>().ok()?, port.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn only_what_accepts_is_reachable() {
        let open = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        // Bound, so that no other process has the port, and not listening.
        let closed = tokio::net::TcpSocket::new_v4().expect("a socket");
        closed.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
        let (open_at, closed_at) = (open.local_addr().expect("bound").to_string(), closed.local_addr().expect("bound").to_string());
        assert_eq!(probe(vec![closed_at, open_at.clone()]).await, [open_at]);
        assert!(probe(Vec::new()).await.is_empty());
        assert_eq!(probe(vec!["kubernetes.default:443".into()]).await.len(), 1, "what cannot be tried counts as reachable");
    }

    #[test]
    fn addresses_of_both_families() {
        for (text, port) in [("10.0.0.1:443", 443), ("[fd00::1]:6443", 6443), ("fd00::1:6443", 6443)] {
            assert_eq!(address(text).map(|address| address.port()), Some(port), "{text}");
        }
        assert!(address("10.0.0.1").is_none() && address("name:1").is_none());
    }
}
