//! A way out of the cluster's network, which has none: TLS connections to one address are carried to the servers that their
//! clients name, by the network of the machine. For tests whose peers cannot run here, such as package registries.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::net::{TcpListener, TcpStream};

/// The port of HTTPS.
const PORT: u16 = 443;
/// The longest first message of a client that is read.
const MAX_HELLO_BYTES: usize = 16 * 1024;

/// A relay, which lasts as long as the process of the tests.
pub struct Outside {
    hosts: Arc<Mutex<BTreeSet<String>>>,
}

impl Outside {
    /// Accepts connections at port 443 of `address`.
    pub fn open(address: IpAddr) -> Self {
        let listener = std::net::TcpListener::bind((address, PORT)).expect("port 443 is free");
        listener.set_nonblocking(true).expect("a listener");
        let hosts = Arc::new(Mutex::new(BTreeSet::new()));
        let allowed = hosts.clone();
        let machine = network_of_the_machine();
        // Sockets belong to the network in which their thread makes them.
        std::thread::spawn(move || {
            move_into_link_name_space(machine.as_fd(), Some(LinkNameSpaceType::Network)).expect("root");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).expect("a listener");
                while let Ok((stream, _)) = listener.accept().await {
                    let allowed = allowed.clone();
                    tokio::spawn(async move {
                        if let Err(error) = carry(stream, &allowed).await {
                            eprintln!("outside: {error}");
                        }
                    });
                }
            });
        });
        Self { hosts }
    }

    /// Connections that name this host are carried from now on.
    pub fn allow(&self, host: &str) {
        self.hosts.lock().expect("whole").insert(host.to_owned());
    }
}

/// The network of the process that entered the cluster's: the nearest ancestor with another one.
fn network_of_the_machine() -> File {
    let network = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net")).expect("root");
    let own = network("self");
    let mut process = std::process::id().to_string();
    while network(&process) == own {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it lives");
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).expect("a parent");
        process = parent.trim().to_owned();
        assert_ne!(process, "1", "no ancestor is in another network: run this by `make e2e-packages`");
    }
    File::open(format!("/proc/{process}/ns/net")).expect("root")
}

async fn carry(mut stream: TcpStream, allowed: &Mutex<BTreeSet<String>>) -> std::io::Result<()> {
    let host = server_name(&stream).await?;
    if !allowed.lock().expect("whole").contains(&host) {
        return Err(std::io::Error::other(format!("{host} was never allowed")));
    }
    let mut server = TcpStream::connect((host.as_str(), PORT)).await?;
    tokio::io::copy_bidirectional(&mut stream, &mut server).await?;
    Ok(())
}

/// The host that a TLS client names. The bytes stay unread.
async fn server_name(stream: &TcpStream) -> std::io::Result<String> {
    let mut bytes = vec![0; MAX_HELLO_BYTES];
    loop {
        let count = stream.peek(&mut bytes).await?;
        let mut acceptor = rustls::server::Acceptor::default();
        acceptor.read_tls(&mut &bytes[..count])?;
        match acceptor.accept() {
            Ok(Some(accepted)) => {
                let name = accepted.client_hello().server_name().map(str::to_owned);
                return name.ok_or_else(|| std::io::Error::other("a client named no host"));
            }
            Ok(None) if count > 0 && count < MAX_HELLO_BYTES => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
            Ok(None) => return Err(std::io::Error::other("a client sent no hello")),
            Err((error, _)) => return Err(std::io::Error::other(error)),
        }
    }
}
