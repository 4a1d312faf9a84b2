//! The fixed loopback ports of models, egress, git and tools. This version serves the first, and says of the others that it
//! does not: a client gets an answer it can read instead of a refused connection that it would retry.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use spillway_wire::{Code, Refusal};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::models::{self, Models};
use crate::link_says;

/// What each port is for, from [`crate::FIRST_PORT`] on.
pub const PORTS: [&str; 4] = ["models", "egress", "git", "tools"];
/// The most bytes of a request's head that are read.
const MAX_HEAD: usize = 16 * 1024;
/// The most bytes of its body that are read, so that the client reads the answer before it sees the end.
const MAX_REST: usize = 1024 * 1024;
/// For one request.
const WITHIN: Duration = Duration::from_secs(5);
/// Requests at once, on each port that serves nothing.
const AT_ONCE: usize = 16;

/// Serves the ports from `first` on, until the runtime ends; none for 0.
pub fn serve(first: u16, models: Models) {
    if first == 0 {
        return;
    }
    let mut models = Some(models); // the first port is theirs
    for (offset, what) in (0..).zip(PORTS) {
        tokio::spawn(serve_one(SocketAddr::from((Ipv4Addr::LOCALHOST, first.saturating_add(offset))), what, models.take()));
    }
}

async fn serve_one(address: SocketAddr, what: &'static str, models: Option<Models>) {
    let mut pause = Duration::from_millis(100);
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            Err(error) => {
                link_says!("cannot listen on {address} for {what}: {error}; trying again");
                sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(60));
            }
        }
    };
    let places = Arc::new(Semaphore::new(if models.is_some() { models::AT_ONCE } else { AT_ONCE }));
    take(listener, what, models, places).await;
}

/// Takes connections, as many at once as there are places.
async fn take(listener: TcpListener, what: &'static str, models: Option<Models>, places: Arc<Semaphore>) {
    loop {
        // Taken before accepting: who comes when all are taken waits in the kernel's queue.
        let Ok(place) = places.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let models = models.clone();
                tokio::spawn(async move {
                    match models {
                        Some(models) => models.serve(stream).await,
                        None => drop(timeout(WITHIN, answer(stream, what)).await), // a client that went away is no concern of ours
                    }
                    drop(place);
                });
            }
            Err(_) => sleep(Duration::from_millis(100)).await, // out of descriptors, for now
        }
    }
}

async fn answer(mut stream: TcpStream, what: &str) -> std::io::Result<()> {
    let mut head = Vec::with_capacity(1024);
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() > MAX_HEAD || stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let body = refusal(what);
    let answer = format!(
        "HTTP/1.1 501 Not Implemented\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    if !head.starts_with(b"HEAD ") {
        stream.write_all(body.as_bytes()).await?;
    }
    stream.shutdown().await?;
    let mut rest = [0_u8; 4096];
    let mut read = 0;
    while read < MAX_REST {
        match stream.read(&mut rest).await? {
            0 => break,
            more => read += more,
        }
    }
    Ok(())
}

fn refusal(what: &str) -> String {
    let message = format!("this version of Spillway does not serve {what} to agents");
    serde_json::to_string(&Refusal::new(Code::NotBuilt, message)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn a_port_takes_so_many_connections_and_further_ones_wait() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let places = Arc::new(Semaphore::new(2));
        tokio::spawn(take(listener, "git", None, places.clone()));
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
        timeout(WITHIN, third.read_exact(&mut first)).await.expect("a place").expect("an answer");
        let mut answer = Vec::new();
        third.shutdown().await.expect("all is said");
        third.read_to_end(&mut answer).await.expect("the rest");
        assert!(answer.starts_with(b"TTP/1.1 501"));
    }
}
