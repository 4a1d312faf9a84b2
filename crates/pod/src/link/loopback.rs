//! The fixed loopback ports for models, egress, git, tools, artifacts and the pool's folder.
//!
//! It must not read a request: each port does.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

use super::egress::{self, EgressProxy};
use super::folder_port::{self, FolderPort};
use super::forwarded_port::{self, ForwardedPort};
use super::models::{self, Models};
use crate::link_says;

/// The purpose of each port, from [`crate::FIRST_LOOPBACK_PORT`] on.
pub const PORT_NAMES: [&str; 6] = ["models", "egress", "git", "tools", "artifacts", "folder"];
/// The most bytes of a body that are read, so that the client reads the answer before the connection ends.
const MAX_DISCARDED_BODY_BYTES: usize = 1024 * 1024;
/// How long the first bytes of a connection may take to show its protocol, and the refusal of HTTP/2.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(5);

/// The first bytes of a client that speaks HTTP/2 without TLS.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The number of these bytes that identify the protocol.
const HTTP2_PREFIX_BYTES: usize = 16;
/// Between two checks of a connection whose first bytes come in pieces.
const PREFACE_CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// The message to such a client, in the frame that ends its connection.
const HTTP2_REFUSAL_MESSAGE: &[u8] = b"this port speaks HTTP/1.1";

/// What a port serves.
#[derive(Clone, Debug)]
enum Service {
    Models(Models),
    Egress(EgressProxy),
    Git(ForwardedPort),
    Artifacts(ForwardedPort),
    Tools(ForwardedPort),
    Folder(FolderPort),
}

impl Service {
    fn name(&self) -> &'static str {
        match self {
            Self::Models(_) => PORT_NAMES[0],
            Self::Egress(_) => PORT_NAMES[1],
            Self::Git(_) => PORT_NAMES[2],
            Self::Tools(_) => PORT_NAMES[3],
            Self::Artifacts(_) => PORT_NAMES[4],
            Self::Folder(_) => PORT_NAMES[5],
        }
    }

    /// As many permits as there may be connections at once.
    fn permits(&self) -> Arc<Semaphore> {
        Arc::new(Semaphore::new(match self {
            Self::Models(_) => models::MAX_CONCURRENT_REQUESTS,
            Self::Egress(_) => egress::MAX_CONNECTIONS,
            Self::Git(_) | Self::Tools(_) | Self::Artifacts(_) => forwarded_port::MAX_CONNECTIONS,
            Self::Folder(_) => folder_port::MAX_CONNECTIONS,
        }))
    }

    /// Serves one connection. Its permit is released when the connection ends.
    async fn serve(self, stream: TcpStream, permit: OwnedSemaphorePermit) {
        match self {
            Self::Models(models) => models.serve(stream).await,
            Self::Egress(proxy) => return proxy.serve(stream, permit).await,
            Self::Git(port) | Self::Tools(port) | Self::Artifacts(port) => port.serve(stream).await,
            Self::Folder(port) => port.serve(stream).await,
        }
        drop(permit);
    }
}

/// What the ports serve.
#[derive(Clone, Debug)]
pub struct Ports {
    /// Model calls.
    pub models: Models,
    /// Connections to other destinations.
    pub egress: EgressProxy,
    /// Requests of git clients.
    pub git: ForwardedPort,
    /// Requests of MCP clients.
    pub tools: ForwardedPort,
    /// Calls about artifacts.
    pub artifacts: ForwardedPort,
    /// The folder of the pool.
    pub folder: FolderPort,
}

/// Serves the ports from `first` on, until the runtime ends; none for 0.
pub fn serve(first: u16, ports: Ports) {
    if first == 0 {
        return;
    }
    let Ports { models, egress, git, tools, artifacts, folder } = ports;
    let services = [
        Service::Models(models),
        Service::Egress(egress),
        Service::Git(git),
        Service::Tools(tools),
        Service::Artifacts(artifacts),
        Service::Folder(folder),
    ];
    for (offset, service) in (0..).zip(services) {
        tokio::spawn(serve_one(SocketAddr::from((Ipv4Addr::LOCALHOST, first.saturating_add(offset))), service));
    }
}

/// Serves only models, on a bound port, until the runtime ends.
pub fn serve_models(listener: TcpListener, models: Models) {
    let service = Service::Models(models);
    let permits = service.permits();
    tokio::spawn(accept(listener, service, permits));
}

async fn serve_one(address: SocketAddr, service: Service) {
    let mut pause = Duration::from_millis(100);
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            Err(error) => {
                link_says!("cannot listen on {address} for {}: {error}; trying again", service.name());
                sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(60));
            }
        }
    };
    let permits = service.permits();
    accept(listener, service, permits).await;
}

/// Accepts connections, as many at once as there are permits.
async fn accept(listener: TcpListener, service: Service, permits: Arc<Semaphore>) {
    loop {
        // The permit comes before the accept: further connections wait in the kernel's queue.
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let service = service.clone();
                tokio::spawn(async move {
                    if timeout(PREFACE_TIMEOUT, begins_http2(&stream)).await.unwrap_or(false) {
                        drop(timeout(PREFACE_TIMEOUT, refuse_http2(stream)).await);
                        drop(permit);
                        return;
                    }
                    service.serve(stream, permit).await;
                });
            }
            Err(_) => sleep(Duration::from_millis(100)).await, // out of descriptors, for now
        }
    }
}

/// Whether a client speaks HTTP/2 without TLS. The bytes stay in the connection.
async fn begins_http2(stream: &TcpStream) -> bool {
    let mut first = [0_u8; HTTP2_PREFACE.len()];
    loop {
        let Ok(count) = stream.peek(&mut first).await else { return false };
        let begun = first.get(..count).unwrap_or_default();
        if begun.is_empty() || !HTTP2_PREFACE.starts_with(begun) {
            return false;
        }
        if count >= HTTP2_PREFIX_BYTES {
            return true;
        }
        sleep(PREFACE_CHECK_INTERVAL).await;
    }
}

/// Ends a connection of HTTP/2 with its own frames, so that the client fails at once with a reason and does not try again.
async fn refuse_http2(mut stream: TcpStream) -> std::io::Result<()> {
    /// An empty SETTINGS frame, the first frame of a server.
    const HTTP2_EMPTY_SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    /// The type of the frame GOAWAY, and its error HTTP_1_1_REQUIRED.
    const HTTP2_GOAWAY: (u8, u8) = (7, 13);
    let length = u8::try_from(8 + HTTP2_REFUSAL_MESSAGE.len()).unwrap_or(8);
    let (frame, error) = HTTP2_GOAWAY;
    let head = [0, 0, length, frame, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, error];
    stream.write_all(&[&HTTP2_EMPTY_SETTINGS[..], &head, HTTP2_REFUSAL_MESSAGE].concat()).await?;
    stream.shutdown().await?;
    read_rest(&mut stream).await
}

/// Reads the rest of the request, so that the client reads the answer before the connection ends.
async fn read_rest(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut rest = [0_u8; 4096];
    let mut read = 0;
    while read < MAX_DISCARDED_BODY_BYTES {
        match stream.read(&mut rest).await? {
            0 => break,
            more => read += more,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::watch;

    /// The port of a folder, in a pod without one.
    fn some_port() -> Service {
        let (folder, item, commit) = (watch::channel(None).1, watch::channel(None).1, watch::channel(None).1);
        Service::Folder(FolderPort::new("/volume".into(), None, folder, item, commit))
    }

    #[test]
    fn the_urls_of_artifacts_and_of_the_folder_name_their_ports() {
        let port_of = |name: &str| PORT_NAMES.iter().zip(crate::FIRST_LOOPBACK_PORT..).find(|(one, _)| **one == name).map(|(_, port)| port);
        assert_eq!(port_of("tools").map(|port| format!("http://127.0.0.1:{port}/mcp/")).as_deref(), Some(crate::TOOLS_URL));
        assert_eq!(port_of("folder").map(|port| format!("http://127.0.0.1:{port}/folder")).as_deref(), Some(crate::FOLDER_URL));
        let port = port_of("artifacts");
        let expected = format!("http://127.0.0.1:{}{}", port.expect("a port"), spillway_wire::artifact::ARTIFACT_PATH_PREFIX);
        assert_eq!(format!("{}/", crate::DEFAULT_ARTIFACTS_URL), expected);
    }

    /// The view of an HTTP/2 client on a port, with its first bytes in one piece or in several.
    #[tokio::test(flavor = "current_thread")]
    async fn http2_without_tls_is_ended_in_its_own_words() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(accept(listener, some_port(), Arc::new(Semaphore::new(4))));
        for pieces in [&[HTTP2_PREFACE][..], &[&HTTP2_PREFACE[..1], &HTTP2_PREFACE[1..5], &HTTP2_PREFACE[5..]]] {
            let mut client = TcpStream::connect(address).await.expect("a connection");
            for piece in pieces {
                client.write_all(piece).await.expect("sent");
                sleep(PREFACE_CHECK_INTERVAL).await;
            }
            client.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.expect("settings");
            let mut said = [0_u8; 9 + 17 + HTTP2_REFUSAL_MESSAGE.len()];
            timeout(PREFACE_TIMEOUT, client.read_exact(&mut said)).await.expect("at once").expect("two frames");
            assert_eq!((said[3], said[12], said[25]), (4, 7, 13), "SETTINGS, and GOAWAY for HTTP_1_1_REQUIRED");
            assert_eq!(usize::from(said[11]), said.len() - 18, "as long as it says");
            assert!(said.ends_with(HTTP2_REFUSAL_MESSAGE));
            let end = timeout(PREFACE_TIMEOUT, client.read(&mut said)).await.expect("at once").expect("the end");
            assert_eq!(end, 0);
        }
        // A request that begins with the first letters of the preface is no HTTP/2.
        let mut client = TcpStream::connect(address).await.expect("a connection");
        client.write_all(b"P").await.expect("sent");
        sleep(PREFACE_CHECK_INTERVAL).await;
        client.write_all(b"UT / HTTP/1.1\r\n\r\n").await.expect("sent");
        let mut first = [0_u8; 12];
        timeout(PREFACE_TIMEOUT, client.read_exact(&mut first)).await.expect("at once").expect("an answer");
        assert_eq!(&first, b"HTTP/1.1 404");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_port_takes_so_many_connections_and_further_ones_wait() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let places = Arc::new(Semaphore::new(2));
        tokio::spawn(accept(listener, some_port(), places.clone()));
        let mut idle = Vec::new();
        for _ in 0..2 {
            idle.push(TcpStream::connect(address).await.expect("a connection"));
        }
        while places.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let mut third = TcpStream::connect(address).await.expect("a connection");
        third.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("sent");
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
        }
        let mut first = [0_u8; 1];
        assert!(third.try_read(&mut first).is_err(), "there is no place for it");
        drop(idle.pop());
        timeout(PREFACE_TIMEOUT, third.read_exact(&mut first)).await.expect("a place").expect("an answer");
        let mut answer = Vec::new();
        third.shutdown().await.expect("all is said");
        third.read_to_end(&mut answer).await.expect("the rest");
        assert!(answer.starts_with(b"TTP/1.1 404"));
    }
}
