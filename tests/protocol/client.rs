//! Clients that write raw bytes.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use spillway::pki::tls;
use spillway::wire::GATEWAY_TLS_NAME;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::Served;

/// Longer than any step takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// The first bytes of HTTP/2, with empty settings.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// The result of `work`, within [`PATIENCE`].
pub async fn within_patience<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(|_| panic!("timed out: {what}"))
}

/// A TCP connection from this loopback address.
pub async fn dial(to: SocketAddr, from: Ipv4Addr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((IpAddr::from(from), 0).into())?;
    let stream = socket.connect(to).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl Served {
    /// A connection after its TLS handshake for this protocol, from this loopback address.
    pub async fn connect_from(&self, from: Ipv4Addr, protocol: &str) -> io::Result<TlsStream<TcpStream>> {
        let mut config = tls::client(&self.world.bundle()).expect("certificates");
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let name = GATEWAY_TLS_NAME.try_into().expect("a name");
        TlsConnector::from(Arc::new(config)).connect(name, dial(self.address, from).await?).await
    }

    pub async fn connect(&self, protocol: &str) -> TlsStream<TcpStream> {
        self.connect_from(Ipv4Addr::LOCALHOST, protocol).await.expect("a connection")
    }

    /// An honest client connects and calls: the status of the answer.
    pub async fn honest_call(&self) -> u16 {
        let mut stream = self.connect("http/1.1").await;
        hello(&mut stream).await.unwrap_or_else(|error| panic!("an honest client was not served: {error}"))
    }
}

/// Calls with a good token on this connection: the status of the answer.
pub async fn hello(stream: &mut TlsStream<TcpStream>) -> io::Result<u16> {
    let request = "HEAD /models/claude/ HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer pod-a\r\n\r\n";
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        if stream.read_buf(&mut answer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(statuses(&answer)[0])
}

/// The statuses of all answers in these bytes.
pub fn statuses(answers: &[u8]) -> Vec<u16> {
    let text = String::from_utf8_lossy(answers);
    text.match_indices("HTTP/1.1 ").filter_map(|(at, _)| text.get(at + 9..at + 12)?.parse().ok()).collect()
}

/// Writes all bytes that the server accepts, and reads until the connection ends.
pub async fn exchange(stream: TlsStream<TcpStream>, parts: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    let (mut read, mut write) = tokio::io::split(stream);
    let writing = async {
        for part in parts {
            if write.write_all(&part).await.is_err() || write.flush().await.is_err() {
                break;
            }
        }
        std::future::pending::<()>().await;
    };
    let mut answer = Vec::new();
    let reading = async {
        let mut part = [0; 16 * 1024];
        while let Ok(1..) = read.read(&mut part).await.inspect(|count| answer.extend_from_slice(&part[..*count])) {}
    };
    tokio::select! {
        () = writing => {}
        () = reading => {}
    }
    answer
}

/// One frame of HTTP/2.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}
