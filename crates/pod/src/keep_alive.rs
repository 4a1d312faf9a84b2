//! Probes on a TCP connection that may be silent for long while its peer works. Without them a peer whose machine has gone is waited for
//! for ever, and a network that forgets silent connections drops the answer.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

/// A connection that is silent for this long is probed.
#[cfg(target_os = "linux")]
const IDLE: Duration = Duration::from_secs(15);
/// Between two probes.
const INTERVAL: Duration = Duration::from_secs(5);
/// Probes without an answer after which the connection ends.
const PROBES: u32 = 3;

/// Has the kernel probe a connection while it is silent.
pub fn keep_alive(stream: &impl AsFd) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    #[cfg(target_os = "linux")]
    sockopt::set_tcp_keepidle(stream, IDLE)?;
    sockopt::set_tcp_keepintvl(stream, INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_silent_connection_is_probed() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("a connection");
        keep_alive(&stream).expect("set");
        assert!(sockopt::socket_keepalive(&stream).expect("read"));
        assert_eq!(sockopt::tcp_keepcnt(&stream).expect("read"), PROBES);
    }
}
