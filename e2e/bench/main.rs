//! The benchmarks of `docs/benchmarks.md`: what a fleet costs, and how long it takes, on a real control plane. Run by
//! `make bench`, inside `e2e/cluster/cluster run`, with the operator's release binary.
//!
//! A benchmark measures and never judges: a slow number is printed beside its goal, not failed on. Only what could not be
//! measured at all is an error. Goals stand where the numbers are made; reasons and results stand in the document.
//!
//! Arguments name the benchmarks to run (`failover`, `burst`, `fleet`, `writes`); without any, all run.

#[path = "../tests/support/audit.rs"]
mod audit;
mod burst;
mod failover;
mod fleet;
mod operator;
mod report;
mod room;
mod watch;
mod writes;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;
use report::{Machine, Report, Taken};

/// In this order: what is timed comes before what fills the cluster.
const ALL: [&str; 4] = ["failover", "burst", "fleet", "writes"];

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
    for name in ["SPILLWAY_AUDIT_LOG", "SPILLWAY_BINARY", "KUBECONFIG"] {
        std::env::var_os(name).with_context(|| format!("{name} is not set: run this by `make bench`"))?;
    }
    // One TLS provider for the process; a second installation could only be a bug, and is harmless.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    // cargo adds arguments of its own.
    let asked: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    if let Some(unknown) = asked.iter().find(|name| !ALL.contains(&name.as_str())) {
        anyhow::bail!("there is no benchmark {unknown:?}; there are {}", ALL.join(", "));
    }
    let machine = Machine::look();
    println!("{machine}");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")?;
    let mut taken = Vec::new();
    for name in ALL.into_iter().filter(|name| asked.is_empty() || asked.iter().any(|asked| asked == name)) {
        println!("\n{name} ...");
        taken.push(take(&runtime, name));
    }
    write(&machine, &taken)?;
    Ok(taken.iter().all(|taken| taken.error.is_none()))
}

/// Takes one benchmark, prints what it saw, and keeps what went wrong.
fn take(runtime: &tokio::runtime::Runtime, name: &'static str) -> Taken {
    let (started, load_before) = (Instant::now(), report::load());
    let result = runtime.block_on(async {
        match name {
            "failover" => failover::run().await,
            "burst" => burst::run().await,
            "fleet" => fleet::run().await,
            _ => writes::run().await,
        }
    });
    let (reports, error) = match result {
        Ok(reports) => (reports, None),
        Err(error) => (Vec::new(), Some(format!("{error:#}"))),
    };
    reports.iter().for_each(Report::print);
    if let Some(error) = &error {
        println!("{name}: could not be measured: {error}");
    }
    let taken = Taken { name, seconds: started.elapsed().as_secs_f64(), load_before, load_after: report::load(), reports, error };
    println!("{name} took {:.0} s; load average {:.2} before, {:.2} after", taken.seconds, taken.load_before, taken.load_after);
    taken
}

fn write(machine: &Machine, taken: &[Taken]) -> anyhow::Result<()> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/bench");
    std::fs::create_dir_all(&folder).context("cannot make target/bench")?;
    let path = folder.join("fleet.json");
    let all = serde_json::json!({"machine": machine, "benchmarks": taken});
    std::fs::write(&path, serde_json::to_string_pretty(&all).context("cannot write JSON")?)
        .context("cannot write target/bench/fleet.json")?;
    println!("\nwritten to {}", path.display());
    Ok(())
}
