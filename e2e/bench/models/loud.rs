//! The flood's callers and their provider, in a process of their own at the lowest priority. On a cluster they are other
//! machines: here they get what processor time the cluster, the operators and the quiet namespace leave them, and whether that
//! was enough is told with what came of their calls.

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

/// The argument that begins it, before the address of its provider.
pub const ARGUMENT: &str = "flood-callers";
/// Of the times at which streams come that break.
const SEED: u64 = 21;
/// Events of a stream after which its caller leaves.
pub const LEFT_AFTER: usize = 3;
/// Bytes of a body.
pub const BYTES: usize = 1024;
/// What its provider streams.
pub const STREAMS: Streams = Streams { events: 200, pace: Duration::from_millis(20) };

/// What is to be done.
#[derive(Debug, Deserialize, Serialize)]
struct Order {
    port: u16,
    bundle: String,
    tokens: Vec<Option<String>>,
    calls: f64,
    broken: f64,
    time: Duration,
}

/// How much of it a second, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Much {
    /// Calls a second.
    pub calls: f64,
    /// Streams a second that break: every other one is left by its caller, the others are cut by the provider.
    pub broken: f64,
    /// For so long.
    pub time: Duration,
}

/// What came of it.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct Flooded {
    /// Of the calls.
    pub calls: Answers,
    /// How many streams broke.
    pub streams: usize,
}

/// The other process, seen from here. It ends with this value.
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

    /// Floods by these callers, for as long as that takes.
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

/// What the other process does, with a provider at `node`, until its input ends.
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

/// Streams that break; how many.
async fn broken(target: &Arc<Target>, order: &Order) -> usize {
    let begin = Instant::now();
    let (left, cut) = (provider::body(provider::STREAM, BYTES), provider::body(provider::CUT, BYTES));
    let streams = arrivals(SEED, order.broken, order.time).into_iter().enumerate().map(|(number, due)| {
        let (target, due) = (target.clone(), begin + due);
        let (body, most) = if number % 2 == 0 { (left.clone(), LEFT_AFTER) } else { (cut.clone(), usize::MAX) };
        tokio::spawn(async move {
            tokio::time::sleep_until(due.into()).await;
            // That it breaks is what it is for; what counts is that it was there.
            let _ = target.stream(number, &body, most, &AtomicUsize::new(0)).await;
        })
    });
    join_all(streams.collect::<Vec<_>>()).await.len()
}
