//! The bridge of a local sandbox: its URL, the check that it runs, and forwarding to it.
//!
//! A sandbox without a network reaches the bridge in two steps: a TCP port of its own loopback leads to a unix socket, and outside
//! that socket leads to the bridge. No more than [`MAX_BRIDGE_CONNECTIONS`] connections are open at once. Neither step reads what
//! it carries, and neither connects to another address.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// The most connections to the bridge at once. More of them wait.
pub const MAX_BRIDGE_CONNECTIONS: usize = 64;
/// Time limit of a connection to the bridge.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Wait after an error of the listener, such as too many open files.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// The first port that a program without privileges can listen on.
const FIRST_FREE_PORT: u16 = 1024;

/// The URL of a bridge if nobody says another one.
pub const DEFAULT_URL: &str = "http://localhost:3000";

/// The URL of the bridge: `http://HOST:PORT`, with an optional path.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct BridgeUrl {
    host: String,
    port: u16,
    path: String,
}

impl BridgeUrl {
    /// The port, outside the sandbox and in it.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL that the program uses.
    pub fn local(&self) -> String {
        format!("http://127.0.0.1:{}{}", self.port, self.path)
    }

    /// Whether it is on this machine.
    pub fn is_local(&self) -> bool {
        matches!(self.host.as_str(), "localhost" | "127.0.0.1")
    }

    async fn connect(&self) -> io::Result<TcpStream> {
        timeout(CONNECT_TIMEOUT, TcpStream::connect((self.host.as_str(), self.port))).await.map_err(|_| io::ErrorKind::TimedOut)?
    }

    /// Whether something listens there.
    pub async fn check(&self) -> io::Result<()> {
        self.connect().await.map(drop)
    }
}

impl FromStr for BridgeUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = |why: &str| format!("{text:?} is no URL of a bridge: {why}");
        let rest = text.strip_prefix("http://").ok_or_else(|| refused("it must begin with http://"))?;
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let (host, port) = authority.rsplit_once(':').ok_or_else(|| refused("it needs a port, as in http://localhost:3000"))?;
        let port: u16 = port.parse().map_err(|_| refused("its port is no number below 65536"))?;
        if port < FIRST_FREE_PORT {
            return Err(refused("its port must be 1024 or higher, because the sandbox listens on the same port"));
        }
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let plain = |c: char| c.is_ascii_alphanumeric() || ".-".contains(c) || (bare.len() < host.len() && c == ':');
        if bare.is_empty() || !bare.chars().all(plain) {
            return Err(refused("its host is no name or address"));
        }
        if !path.chars().all(|c| c.is_ascii_graphic()) {
            return Err(refused("its path has a character that a URL cannot have"));
        }
        Ok(Self { host: bare.to_owned(), port, path: path.trim_end_matches('/').to_owned() })
    }
}

impl TryFrom<String> for BridgeUrl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for BridgeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let brackets = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "http://{}{}{}:{}{}", brackets.0, self.host, brackets.1, self.port, self.path)
    }
}

/// Outside the sandbox: carries each connection of the socket to the bridge. It ends when its task is dropped.
pub async fn forward_socket(listener: UnixListener, url: BridgeUrl) {
    let connect = move || {
        let url = url.clone();
        async move { url.connect().await }
    };
    forward(|context| listener.poll_accept(context).map_ok(|(stream, _)| stream), connect).await;
}

/// In the sandbox: carries each connection of the port to the socket. It ends when its task is dropped.
pub async fn forward_port(listener: TcpListener, socket: PathBuf) {
    forward(|context| listener.poll_accept(context).map_ok(|(stream, _)| stream), move || UnixStream::connect(socket.clone())).await;
}

/// `accept` is polled: a function that returns a future of a borrowed listener cannot be in a task.
async fn forward<From, To, Connecting>(mut accept: impl FnMut(&mut Context<'_>) -> Poll<io::Result<From>>, connect: impl Fn() -> Connecting)
where
    From: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    To: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    Connecting: Future<Output = io::Result<To>> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(MAX_BRIDGE_CONNECTIONS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let Ok(mut from) = poll_fn(&mut accept).await else {
            sleep(ACCEPT_RETRY).await;
            continue;
        };
        let connecting = connect();
        tokio::spawn(async move {
            // A failure closes the connection, which is what its client sees.
            if let Ok(mut to) = connecting.await {
                let _ = copy_bidirectional(&mut from, &mut to).await;
            }
            drop(place);
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[test]
    fn a_bridge_has_a_plain_url_with_a_port() {
        for (text, shown, local) in [
            ("http://localhost:3000", "http://localhost:3000", "http://127.0.0.1:3000"),
            ("http://127.0.0.1:3000/", "http://127.0.0.1:3000", "http://127.0.0.1:3000"),
            ("http://bridge.example.org:8080/a/b", "http://bridge.example.org:8080/a/b", "http://127.0.0.1:8080/a/b"),
            ("http://[::1]:3000", "http://[::1]:3000", "http://127.0.0.1:3000"),
        ] {
            let url: BridgeUrl = text.parse().expect("a URL");
            assert_eq!((url.to_string().as_str(), url.local().as_str()), (shown, local));
        }
        for text in [
            "localhost:3000",
            "https://localhost:3000",
            "http://localhost",
            "http://:3000",
            "http://a@b:3000",
            "http://::1:3000",
            "http://localhost:80",
            "http://localhost:99999",
            "http://localhost:3000/a b",
        ] {
            let refused = text.parse::<BridgeUrl>().expect_err("refused");
            assert!(refused.contains(text), "{refused}");
        }
    }

    #[tokio::test]
    async fn connections_over_the_bound_wait_and_are_then_served() {
        let bridge = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = bridge.local_addr().expect("an address").port();
        let url: BridgeUrl = format!("http://127.0.0.1:{port}").parse().expect("a URL");
        url.check().await.expect("it runs");
        let path = std::env::temp_dir().join(format!("spillway-bridge-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let outside = tokio::spawn(forward_socket(UnixListener::bind(&path).expect("a socket"), url.clone()));
        let inside = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = inside.local_addr().expect("an address");
        let within = tokio::spawn(forward_port(inside, path.clone()));
        let mut served = Vec::new();
        let (mut stream, _) = bridge.accept().await.expect("that of the check");
        assert_eq!(stream.read(&mut [0]).await.expect("closed"), 0);
        let mut clients = Vec::new();
        for _ in 0..MAX_BRIDGE_CONNECTIONS {
            clients.push(TcpStream::connect(address).await.expect("connected"));
            served.push(bridge.accept().await.expect("forwarded").0);
        }
        let mut late = TcpStream::connect(address).await.expect("it waits in the backlog");
        late.write_all(b"late").await.expect("sent");
        assert!(timeout(Duration::from_millis(50), bridge.accept()).await.is_err(), "over the bound");
        // Both ends of one connection close, and the waiting one is served.
        drop((clients.pop(), served.pop()));
        let (mut stream, _) = bridge.accept().await.expect("forwarded");
        let mut text = [0; 4];
        stream.read_exact(&mut text).await.expect("received");
        assert_eq!(&text, b"late");
        stream.write_all(b"yes").await.expect("sent");
        drop(stream);
        let mut answer = String::new();
        late.read_to_string(&mut answer).await.expect("received");
        assert_eq!(answer, "yes");
        outside.abort();
        within.abort();
        std::fs::remove_file(&path).expect("removed");
    }
}
