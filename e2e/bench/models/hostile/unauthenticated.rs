//! Attacks by pods that reach the gateway without a token.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use http_body_util::{BodyExt as _, Empty};
use hyper::Request;
use hyper::header::{AUTHORIZATION, HOST};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::attacker::{Attack, Attacker, Protocol};

/// All attacks of this module.
pub const ATTACKS: [(&str, Attack); 6] = [
    ("10 pods without a token hold idle HTTP/2 connections", |attacker| idle_connections(attacker).boxed()),
    ("a pod without a token sends heads that do not end", |attacker| unfinished_heads(attacker).boxed()),
    ("pods without a token begin handshakes that do not end", |attacker| unfinished_handshakes(attacker).boxed()),
    ("pods without a token ask for the API's description", |attacker| descriptions(attacker).boxed()),
    ("pods show tokens that are none", |attacker| invalid_tokens(attacker).boxed()),
    ("pods without a token reset their HTTP/2 streams", |attacker| rapid_resets(attacker).boxed()),
];

/// Connections that each of ten pods tries to hold.
const OF_A_POD: usize = 1_000;
/// Bytes of a head that does not end: below hyper's own bound.
const HEAD_BYTES: usize = 384 * 1024;
/// Pause after a refusal.
const PAUSE: Duration = Duration::from_millis(50);

async fn idle_connections(attacker: Arc<Attacker>) -> anyhow::Result<()> {
    let mut tasks = JoinSet::new();
    for pod in 0..10 {
        for _ in 0..OF_A_POD / 50 {
            let attacker = attacker.clone();
            tasks.spawn(async move {
                let mut held = Vec::new();
                loop {
                    if held.len() < 50 {
                        match attacker.second::<Empty<Bytes>>(attacker.unauthenticated_pod(pod)).await {
                            Ok(sender) => {
                                attacker.count("connections made");
                                held.push(sender);
                            }
                            Err(_) => {
                                attacker.count("connections refused");
                                tokio::time::sleep(PAUSE).await;
                            }
                        }
                    } else {
                        tokio::time::sleep(PAUSE).await;
                    }
                    held.retain(|sender| !sender.is_closed());
                }
            });
        }
    }
    tasks.join_all().await;
    Ok(())
}

async fn unfinished_heads(attacker: Arc<Attacker>) -> anyhow::Result<()> {
    let mut tasks = JoinSet::new();
    for _ in 0..OF_A_POD {
        let attacker = attacker.clone();
        tasks.spawn(async move {
            loop {
                let sent = async {
                    let mut stream = attacker.connect(attacker.unauthenticated_pod(11), Protocol::First).await?;
                    stream.write_all(b"GET / HTTP/1.1\r\nhost: gateway\r\nx: ").await?;
                    stream.write_all(&vec![b'x'; HEAD_BYTES]).await?;
                    stream.flush().await?;
                    attacker.count("heads that were taken");
                    tokio::time::sleep(Duration::from_secs(120)).await;
                    anyhow::Ok(())
                };
                if sent.await.is_err() {
                    attacker.count("connections refused");
                }
                tokio::time::sleep(PAUSE).await;
            }
        });
    }
    tasks.join_all().await;
    Ok(())
}

async fn unfinished_handshakes(attacker: Arc<Attacker>) -> anyhow::Result<()> {
    let mut tasks = JoinSet::new();
    for number in 0..2_000_u16 {
        let attacker = attacker.clone();
        tasks.spawn(async move {
            loop {
                let address = attacker.unauthenticated_pod(20 + u8::try_from(number % 10).unwrap_or_default());
                if let Ok(mut stream) = TcpStream::connect(address).await {
                    attacker.count("connections made");
                    // Only the beginning of a record with a ClientHello.
                    let _ = stream.write_all(&[22, 3, 1, 2, 0, 1]).await;
                    let _ = stream.readable().await;
                } else {
                    attacker.count("connections refused");
                }
                tokio::time::sleep(PAUSE).await;
            }
        });
    }
    tasks.join_all().await;
    Ok(())
}

async fn descriptions(attacker: Arc<Attacker>) -> anyhow::Result<()> {
    repeat(attacker, |_, _| Ok(Request::get("/openapi.json").header(HOST, "gateway").body(Empty::new())?)).await
}

async fn invalid_tokens(attacker: Arc<Attacker>) -> anyhow::Result<()> {
    repeat(attacker, |_, number| {
        // Each token is new and as long as a real one, so a cache of refused tokens does not help.
        let token = format!("Bearer e30.{number:0>900}.c2ln");
        Ok(Request::get("/agent/v1/budget").header(HOST, "gateway").header(AUTHORIZATION, token).body(Empty::new())?)
    })
    .await
}

/// The same request again and again, by 50 connections of two pods.
async fn repeat(attacker: Arc<Attacker>, make: fn(&Attacker, u64) -> anyhow::Result<Request<Empty<Bytes>>>) -> anyhow::Result<()> {
    let mut tasks = JoinSet::new();
    for number in 0..50_u8 {
        let attacker = attacker.clone();
        tasks.spawn(async move {
            let mut sent = u64::from(number) << 32;
            loop {
                let calling = async {
                    let mut sender = attacker.first(attacker.unauthenticated_pod(40 + number % 2)).await?;
                    loop {
                        sent += 1;
                        let answer = sender.send_request(make(&attacker, sent)?).await;
                        attacker.answered(&answer);
                        answer?.into_body().collect().await?;
                    }
                };
                let _: anyhow::Result<()> = calling.await;
                tokio::time::sleep(PAUSE).await;
            }
        });
    }
    tasks.join_all().await;
    Ok(())
}

async fn rapid_resets(attacker: Arc<Attacker>) -> anyhow::Result<()> {
    let mut tasks = JoinSet::new();
    for number in 0..20_u8 {
        let attacker = attacker.clone();
        tasks.spawn(async move {
            loop {
                if let Ok(mut sender) = attacker.second::<Empty<Bytes>>(attacker.unauthenticated_pod(50 + number % 2)).await {
                    while sender.ready().await.is_ok() {
                        let Ok(request) = Request::get("https://gateway/agent/v1/budget").body(Empty::new()) else { break };
                        // Sent, and reset at once.
                        let answer = sender.send_request(request);
                        tokio::task::yield_now().await;
                        drop(answer);
                        attacker.count("streams reset");
                    }
                    attacker.count("connections ended");
                }
                tokio::time::sleep(PAUSE).await;
            }
        });
    }
    tasks.join_all().await;
    Ok(())
}
