//! The benchmarks of `docs/benchmarks.md`: the cost and the times of a fleet on a real control plane. `make bench` runs
//! them inside `e2e/cluster/cluster run`, with the operator's release binary.
//!
//! A benchmark measures and never judges: it prints a slow number beside its goal, and does not fail. Only a number
//! that could not be measured is an error. The code that takes a number holds its goal. Reasons and results are in the
//! document.
//!
//! Arguments name the benchmarks to run. Without arguments all run. `BENCH_AGENTS` makes all of them small (`size`).
//! `BENCH_ITEMS` is the number of items that wait in `work` and `flood`. `BENCH_RATE` is the number of calls a second in
//! `gateway`, and of the flood. Without a cluster `bridge` and the part of `ledger` that needs none run.

mod agents;
mod arrivals;
#[path = "../tests/support/audit.rs"]
mod audit;
mod bench_namespace;
mod breaker;
mod bridge;
mod burst;
mod cgroup;
mod failover;
mod fleet;
mod git;
#[path = "../tests/support/git_http.rs"]
mod git_http;
mod hands;
#[path = "../tests/support/hosts_file.rs"]
mod hosts_file;
mod ledger;
mod models;
mod nginx;
mod operator;
mod pod;
mod processes;
mod report;
mod sidecar_port;
mod simulated;
mod size;
mod tools;
mod watch;
mod work;
mod writes;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;
use report::{BenchmarkRun, Machine, Report};
use size::Size;

/// The order matters: benchmarks that time come before those that fill the cluster. Those whose controller serves all
/// namespaces come first.
const ALL: [&str; 15] = [
    "ledger", "breaker", "bridge", "tools", "gateway", "flood", "hostile", "failover", "burst", "pod", "git", "work", "agents", "fleet",
    "writes",
];
/// The benchmarks that can run without a cluster.
const ALONE: [&str; 2] = ["ledger", "bridge"];

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether everything could be measured.
fn run() -> anyhow::Result<bool> {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    // One TLS provider for the process. A second installation is harmless.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    match asked.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [models::loud::ARGUMENT, node] => return models::loud::main(node).map(|()| true),
        [models::hostile::attacker::ARGUMENT, node] => return models::hostile::attacker::main(node).map(|()| true),
        _ => {}
    }
    let alone = !asked.is_empty() && asked.iter().all(|asked| ALONE.contains(&asked.as_str()));
    let cluster = !alone || std::env::var_os("KUBECONFIG").is_some();
    for name in ["SPILLWAY_AUDIT_LOG", "SPILLWAY_BINARY", "KUBECONFIG"].into_iter().filter(|_| cluster) {
        std::env::var_os(name).with_context(|| format!("{name} is not set. Run this with `make bench`"))?;
    }
    if let Some(unknown) = asked.iter().find(|name| !ALL.contains(&name.as_str())) {
        anyhow::bail!("there is no benchmark {unknown:?}. The benchmarks are {}", ALL.join(", "));
    }
    let (machine, size) = (Machine::look(), Size::of_environment()?);
    println!("{machine}");
    if size.small() {
        println!("fleets of {} agents: this only tries the benchmarks, and its numbers mean little", size.agents);
    }
    let runtime = runtime()?;
    let mut taken = Vec::new();
    for name in ALL.into_iter().filter(|name| asked.is_empty() || asked.iter().any(|asked| asked == name)) {
        println!("\n{name} ...");
        taken.push(take(&runtime, name, size, cluster));
    }
    write(&machine, size, &taken)?;
    Ok(taken.iter().all(|taken| taken.error.is_none()))
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")
}

/// Runs one benchmark, prints its numbers, and keeps its error.
fn take(runtime: &tokio::runtime::Runtime, name: &'static str, size: Size, cluster: bool) -> BenchmarkRun {
    let (started, load_before) = (Instant::now(), report::load());
    let mut reports = Vec::new();
    let result = runtime.block_on(async {
        match name {
            "ledger" => ledger::run(size, cluster).await,
            "breaker" => breaker::run(size),
            "bridge" => bridge::run(size).await,
            "tools" => tools::run(size).await,
            "gateway" => models::run(size).await,
            "flood" => models::flood::run(size).await,
            "hostile" => models::hostile::run(size, &mut reports).await.map(|()| Vec::new()),
            "failover" => failover::run(size).await,
            "burst" => burst::run(size).await,
            "pod" => pod::run(size).await,
            // These have many parts. If one fails, the numbers of the others are still reported.
            "git" => git::run(size, &mut reports).await.map(|()| Vec::new()),
            "work" => work::run(size, &mut reports).await.map(|()| Vec::new()),
            "agents" => agents::run(size).await,
            "fleet" => fleet::run(size).await,
            _ => writes::run(size).await,
        }
    });
    let error = match result {
        Ok(seen) => {
            reports.extend(seen);
            None
        }
        Err(error) => Some(format!("{error:#}")),
    };
    reports.iter().for_each(Report::print);
    if let Some(error) = &error {
        println!("{name}: could not be measured: {error}");
    }
    let taken = BenchmarkRun { name, seconds: started.elapsed().as_secs_f64(), load_before, load_after: report::load(), reports, error };
    println!("{name} took {:.0} s; load average {:.2} before, {:.2} after", taken.seconds, taken.load_before, taken.load_after);
    taken
}

fn write(machine: &Machine, size: Size, taken: &[BenchmarkRun]) -> anyhow::Result<()> {
    let path = report::folder(".")?.join("fleet.json");
    let all = serde_json::json!({"machine": machine, "size": size, "benchmarks": taken});
    std::fs::write(&path, serde_json::to_string_pretty(&all).context("cannot write JSON")?)
        .with_context(|| format!("cannot write {}", path.display()))?;
    println!("\nwritten to {}", path.display());
    Ok(())
}
