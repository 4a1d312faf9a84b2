//! The flood's callers and their provider, in a process of their own at the lowest priority. On a cluster they are
//! other machines. Here they get the processor time that the cluster, the operators and the quiet namespace leave. The
//! outcomes of their calls show whether that was enough.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use futures::future::join_all;
use serde::{Deserialize, Serialize};
use spillway_wire::GATEWAY_TLS_NAME;

use super::load::{self, Answers, Load, Target};
use super::provider::{self, Provider, Served, Streams};
use super::{Callers, GATEWAY_PATH, Stage, child};
use crate::arrivals::arrivals;

/// The argument that starts it, before the address of its provider.
pub const ARGUMENT: &str = "flood-callers";
/// Seed of the times of streams that break.
const SEED: u64 = 21;
/// Events of a stream after which its caller leaves.
pub const LEFT_AFTER: usize = 3;
/// Bytes of a body.
pub const BYTES: usize = 1024;
/// The streams of its provider.
pub const STREAMS: Streams = Streams { events: 200, pace: Duration::from_millis(20) };

/// An order.
#[derive(Debug, Deserialize, Serialize)]
struct Order {
    port: u16,
    bundle: String,
    tokens: Vec<Option<String>>,
    calls: f64,
    broken: f64,
    time: Duration,
}

/// The rates of the flood, and its length.
#[derive(Clone, Copy, Debug)]
pub struct Much {
    /// Calls a second.
    pub calls: f64,
    /// Streams a second that break: every other one is left by its caller, the others are cut by the provider.
    pub broken: f64,
    /// Length of the flood.
    pub time: Duration,
}

/// The outcome of the flood.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct Flooded {
    /// Outcomes of the calls.
    pub calls: Answers,
    /// Number of streams that broke.
    pub streams: usize,
}

/// The child process, seen from its parent. It ends when this value is dropped.
pub struct Loud {
    process: child::Process,
    /// Its provider.
    pub served: Served,
}

impl Loud {
    /// Starts it, with a provider at `node`.
    pub async fn start(node: std::net::IpAddr) -> anyhow::Result<Self> {
        let (process, served) = child::Process::start(&[ARGUMENT, &node.to_string()]).await?;
        Ok(Self { process, served })
    }

    /// Carries out one flood by these callers, and waits for its end.
    pub(super) async fn flood(&self, stage: &Stage, callers: &Callers, much: Much) -> anyhow::Result<Flooded> {
        let Much { calls, broken, time } = much;
        let (port, bundle, tokens) = (stage.room.gateway.port(), callers.bundle.clone(), callers.tokens.clone());
        self.process.order(&Order { port, bundle, tokens, calls, broken, time }).await
    }

    /// Seconds of processor time it has used so far.
    pub fn processor_seconds(&self) -> anyhow::Result<f64> {
        self.process.processor_seconds()
    }
}

/// The child process, with a provider at `node`. It runs until its input ends.
pub fn main(node: &str) -> anyhow::Result<()> {
    child::yield_to_others()?;
    crate::runtime()?.block_on(serve(node))
}

async fn serve(node: &str) -> anyhow::Result<()> {
    let provider = Provider::serve(node.parse()?, STREAMS).await?;
    child::answer(&provider.served)?;
    while let Some(order) = child::next_order::<Order>().await? {
        let target = Target::new(order.port, GATEWAY_TLS_NAME, &order.bundle, GATEWAY_PATH, &order.tokens)?;
        let calls = Load { rate: order.calls, time: order.time, keep: true, body: provider::body(provider::WHOLE, BYTES) };
        let (calls, streams) = tokio::join!(load::open(&target, &calls), broken(&target, &order));
        child::answer(&Flooded { calls, streams })?;
    }
    Ok(())
}

/// Makes streams that break; their number.
async fn broken(target: &Arc<Target>, order: &Order) -> usize {
    let begin = Instant::now();
    let (left, cut) = (provider::body(provider::STREAM, BYTES), provider::body(provider::CUT, BYTES));
    let streams = arrivals(SEED, order.broken, order.time).into_iter().enumerate().map(|(number, due)| {
        let (target, due) = (target.clone(), begin + due);
        let (body, most) = if number % 2 == 0 { (left.clone(), LEFT_AFTER) } else { (cut.clone(), usize::MAX) };
        tokio::spawn(async move {
            tokio::time::sleep_until(due.into()).await;
            // A broken stream is the purpose here, so the error is no failure.
            let _ = target.stream(number, &body, most, &AtomicUsize::new(0)).await;
        })
    });
    join_all(streams.collect::<Vec<_>>()).await.len()
}
