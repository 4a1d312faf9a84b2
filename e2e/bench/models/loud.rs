//! The flood's callers and their provider, in a process of their own at the lowest priority. On a cluster they are other
//! machines: here they get what processor time the cluster, the operators and the quiet namespace leave them, and whether that
//! was enough is told with what came of their calls.
//!
//! It is this program again. It says in a line of JSON where its provider is found, reads a line that says what to do, and
//! answers with a line that says what came of it; it ends when nobody can give it another one.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::future::join_all;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use spillway_wire::GATEWAY_TLS_NAME;

use super::load::{self, Answers, Load, Target};
use super::provider::{self, Provider, Served, Streams};
use super::{Callers, GATEWAY_PATH, Stage};
use crate::arrivals::arrivals;
use crate::processes;

/// The argument that begins it, before the address of its provider.
pub const ARGUMENT: &str = "flood-callers";
/// As `nice(1)` counts: nothing is lower.
const LOWEST: i32 = 19;
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
    child: Child,
    talk: Mutex<Option<Talk>>,
    /// Its provider.
    pub served: Served,
}

struct Talk {
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Loud {
    /// Starts it, with a provider at `node`.
    pub async fn start(node: std::net::IpAddr) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.args([ARGUMENT, &node.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (orders, answers) = (child.stdin.take().context("its input")?, child.stdout.take().context("its output")?);
        let (served, talk) = Talk { orders, answers: BufReader::new(answers) }.read().await?;
        Ok(Self { child, talk: Mutex::new(Some(talk)), served })
    }

    /// Floods by these callers, for as long as that takes.
    pub(super) async fn flood(&self, stage: &Stage, callers: &Callers, much: Much) -> anyhow::Result<Flooded> {
        let Much { calls, broken, time } = much;
        let (port, bundle, tokens) = (stage.room.gateway.port(), callers.bundle.clone(), callers.tokens.clone());
        let order = Order { port, bundle, tokens, calls, broken, time };
        let mut talk = self.talk.lock().unwrap_or_else(PoisonError::into_inner).take().context("it floods, or has ended")?;
        say(&mut talk.orders, &order)?;
        let (flooded, talk) = talk.read().await?;
        *self.talk.lock().unwrap_or_else(PoisonError::into_inner) = Some(talk);
        Ok(flooded)
    }

    /// Seconds of processor time it has used so far.
    pub fn processor_seconds(&self) -> anyhow::Result<f64> {
        processes::processor_seconds(self.child.id())
    }
}

impl Drop for Loud {
    fn drop(&mut self) {
        // That it ended before is no error.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Talk {
    /// One line that it says.
    async fn read<T: DeserializeOwned + Send + 'static>(mut self) -> anyhow::Result<(T, Self)> {
        let reading = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            self.answers.read_line(&mut line)?;
            let said = serde_json::from_str(&line).context("the process of the flood's callers has ended")?;
            anyhow::Ok((said, self))
        });
        reading.await?
    }
}

fn say(mut to: impl std::io::Write, what: &impl Serialize) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    to.write_all(&line)?;
    Ok(to.flush()?)
}

/// What the other process does, with a provider at `node`, until its input ends.
pub fn main(node: &str) -> anyhow::Result<()> {
    // A session of its own, or it would come before the cluster with those who measure. Threads have the priority of who begins them.
    rustix::process::setsid().context("a session of its own")?;
    processes::renice(LOWEST)?;
    crate::runtime()?.block_on(serve(node))
}

async fn serve(node: &str) -> anyhow::Result<()> {
    let provider = Provider::serve(node.parse()?, STREAMS).await?;
    say(std::io::stdout(), &provider.served)?;
    loop {
        let line = tokio::task::spawn_blocking(|| std::io::stdin().lock().lines().next()).await?;
        let Some(line) = line else { return Ok(()) };
        let order: Order = serde_json::from_str(&line?)?;
        let target = Target::new(order.port, GATEWAY_TLS_NAME, &order.bundle, GATEWAY_PATH, &order.tokens)?;
        let calls = Load { rate: order.calls, time: order.time, keep: true, body: provider::body(provider::WHOLE, BYTES) };
        let (calls, streams) = tokio::join!(load::open(&target, &calls), broken(&target, &order));
        say(std::io::stdout(), &Flooded { calls, streams })?;
    }
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
