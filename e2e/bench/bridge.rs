//! Calls of `/bin/true` through a bridge, as an MCP client makes them, beside starting the same program directly.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::{TcpStream, ToSocketAddrs};
use tokio::process::{Child, Command};

use crate::report::{Report, Row, float, folder, milliseconds, percentile};
use crate::size::Size;

/// Calls of one measurement.
pub const CALLS: usize = 1000;
/// Numbers of clients.
pub const CLIENTS: [usize; 3] = [1, 2, 8];
const START_LIMIT: Duration = Duration::from_secs(30);
const DEFINITION: &str =
    "---\nname: nothing\ndescription: d\ncommand: /bin/true\nlimits: {concurrency: 64, perAgentPerMinute: 6000}\n---\n";
/// The request of a client.
const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"execute","arguments":{"program":"nothing"}}}"#;

/// Runs the benchmark.
pub async fn run(size: Size) -> anyhow::Result<Vec<Report>> {
    let calls = size.runs(CALLS);
    let mut rows = Vec::new();
    for clients in CLIENTS {
        // A bridge of its own for each: it counts the calls of a minute.
        let bridge = Bridge::start().await?;
        let mut senders = Vec::new();
        for _ in 0..clients {
            senders.push(bridge.connect().await?);
        }
        let (times, took) = measure(senders, calls, async |sender| call(sender, "/mcp").await).await?;
        rows.extend(measured(&format!("{clients} client(s) of the bridge"), &times, took));
        drop(bridge);
        let (times, took) = measure((0..clients).collect(), calls, async |_| start_directly().await).await?;
        rows.extend(measured(&format!("{clients} loop(s) that start it directly"), &times, took));
    }
    let method = format!(
        "{calls} calls of a definition of /bin/true, which each client makes one after the other over one connection (HTTP/1.1, JSON). Each \
         call has two records in the audit log, which are written to the disk, a process of the bridge, a sandbox with Landlock and a \
         filter, and a private folder. Directly: fork, exec and wait by tokio, with closed streams"
    );
    Ok(vec![Report::new("a call of /bin/true through a bridge, and started directly", method, rows)])
}

/// The rows of one measurement.
pub fn measured(who: &str, times: &[f64], took: Duration) -> [Row; 3] {
    [
        Row::one(format!("{who}, p50"), percentile(times, 50.0), "ms"),
        Row::one(format!("{who}, p99"), percentile(times, 99.0), "ms"),
        Row::one(format!("{who}, rate"), float(times.len()) / took.as_secs_f64(), "/s"),
    ]
}

/// Does `work` so often, by as many workers at once. Returns the milliseconds of each, and the time of all.
pub async fn measure<W: Send + 'static, F>(workers: Vec<W>, count: usize, work: F) -> anyhow::Result<(Vec<f64>, Duration)>
where
    F: AsyncFn(&mut W) -> anyhow::Result<()> + Clone,
{
    let (left, began) = (Arc::new(AtomicUsize::new(count)), Instant::now());
    let each = workers.into_iter().map(|mut worker| {
        let (left, work) = (left.clone(), work.clone());
        async move {
            let mut times = Vec::new();
            while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
                let began = Instant::now();
                work(&mut worker).await?;
                times.push(milliseconds(began.elapsed()));
            }
            anyhow::Ok(times)
        }
    });
    let times = futures::future::try_join_all(each).await?;
    Ok((times.concat(), began.elapsed()))
}

async fn start_directly() -> anyhow::Result<()> {
    let mut command = Command::new("/bin/true");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    anyhow::ensure!(command.status().await?.success(), "/bin/true failed");
    Ok(())
}

/// Makes one call, at this path of the server.
pub async fn call(sender: &mut SendRequest<Full<Bytes>>, path: &str) -> anyhow::Result<()> {
    let request = hyper::Request::post(path)
        .header("Host", "localhost")
        .header("Content-Type", "application/json")
        .header("Accept", "application/json, text/event-stream")
        .header("MCP-Protocol-Version", "2025-11-25")
        .body(Full::new(Bytes::from_static(CALL.as_bytes())))?;
    sender.ready().await?;
    let answer = sender.send_request(request).await?.into_body().collect().await?.to_bytes();
    let answer: Value = serde_json::from_slice(&answer)?;
    let status = &answer["result"]["structuredContent"]["status"];
    anyhow::ensure!(status == "ok", "a call failed: {answer}");
    Ok(())
}

/// A bridge that serves one program. It ends with this value.
pub struct Bridge {
    _child: Child,
    address: String,
}

impl Bridge {
    /// Starts one on this machine.
    pub async fn start() -> anyhow::Result<Self> {
        let own = folder("bridge")?;
        let definitions = own.join("definitions");
        fs::create_dir_all(&definitions)?;
        fs::write(definitions.join("nothing.md"), DEFINITION)?;
        let (audit, log) = (own.join("audit.log"), own.join("stderr"));
        let _ = fs::remove_file(&audit); // the first bridge finds none
        let mut command = Command::new(binary()?);
        command.arg("bridge").arg("--definitions").arg(definitions).arg("--audit-file").arg(audit).args(["--listen", "127.0.0.1:0"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?).kill_on_drop(true);
        let child = command.spawn().context("cannot start the bridge")?;
        let began = Instant::now();
        loop {
            let said = fs::read_to_string(&log)?;
            let found = said.split_once("address=").and_then(|(_, rest)| rest.split_whitespace().next());
            if let Some(address) = found {
                return Ok(Self { _child: child, address: address.to_owned() });
            }
            anyhow::ensure!(began.elapsed() < START_LIMIT, "the bridge does not listen: {said}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// A connection to it.
    pub async fn connect(&self) -> anyhow::Result<SendRequest<Full<Bytes>>> {
        connect(self.address.as_str()).await
    }
}

/// A connection for calls.
pub async fn connect(to: impl ToSocketAddrs) -> anyhow::Result<SendRequest<Full<Bytes>>> {
    let stream = TcpStream::connect(to).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

/// The measured binary: that of `make bench`, or the one beside this program.
fn binary() -> anyhow::Result<PathBuf> {
    let beside = || Ok(std::env::current_exe()?.with_file_name("spillway"));
    std::env::var_os("SPILLWAY_BINARY").map_or_else(beside, |path| Ok(path.into()))
}
