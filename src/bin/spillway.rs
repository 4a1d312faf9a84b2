//! `spillway`: the operator's processes. Parses arguments and calls the library.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use spillway::cluster::lease::Identity;
use spillway::controller::{self, Settings};
use spillway::generate;
use spillway::telemetry::{LogFormat, start_logs};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Keeps fleets of AI coding agents inside bulkheads.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the controller: makes the cluster match the custom resources.
    Controller(ControllerArguments),
    /// Print the CustomResourceDefinitions, or write or check every generated file of a checkout.
    Crds(CrdsArguments),
}

#[derive(clap::Args)]
struct ControllerArguments {
    /// Serve this namespace only [default: all]
    #[arg(long, env = "SPILLWAY_NAMESPACE")]
    namespace: Option<String>,
    /// Namespace of the leader lease: the controller's own.
    #[arg(long, env = "POD_NAMESPACE", default_value = "spillway-system")]
    lease_namespace: String,
    /// Name of the leader lease.
    #[arg(long, default_value = "spillway-controller")]
    lease_name: String,
    /// Name of this replica; a random part is added, so that a restarted one is never taken for its predecessor.
    #[arg(long, env = "POD_NAME", default_value = "local")]
    identity: String,
    /// Where /livez, /readyz and /metrics are served.
    #[arg(long, env = "SPILLWAY_LISTEN", default_value = "0.0.0.0:8080")]
    listen: SocketAddr,
    /// Agents, and pools, worked on at once.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    concurrency: u16,
    /// How log lines look. RUST_LOG chooses which are written.
    #[arg(long, value_enum, default_value_t = LogFormat::Json)]
    log_format: LogFormat,
}

#[derive(clap::Args)]
#[group(multiple = false)]
struct CrdsArguments {
    /// Write every generated file below this root of a checkout.
    #[arg(long, value_name = "ROOT")]
    write: Option<PathBuf>,
    /// Fail if a generated file below this root is missing or stale.
    #[arg(long, value_name = "ROOT")]
    check: Option<PathBuf>,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Controller(arguments) => run_controller(arguments),
        Command::Crds(CrdsArguments { write: Some(root), .. }) => generate::write(&root),
        Command::Crds(CrdsArguments { check: Some(root), .. }) => generate::check(&root),
        Command::Crds(CrdsArguments { write: None, check: None }) => generate::crd_stream().map(|stream| print!("{stream}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_controller(arguments: ControllerArguments) -> anyhow::Result<()> {
    start_logs(arguments.log_format);
    // One TLS provider for the process; a second installation could only be a bug, and is harmless.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let ControllerArguments { namespace, lease_namespace, lease_name, identity, listen, concurrency, log_format: _ } = arguments;
    let holder = format!("{identity}_{:08x}", rand::random::<u32>());
    let settings = Settings { namespace, lease: Identity { namespace: lease_namespace, name: lease_name, holder }, listen, concurrency };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")?;
    runtime.block_on(async {
        let stop = CancellationToken::new();
        let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
        let stopping = stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            tracing::info!("asked to stop: finishing what runs");
            stopping.cancel();
        });
        controller::run(settings, stop).await
    })
}
