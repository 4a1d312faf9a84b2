//! Structured logs: a message that can be read alone, values as fields.

use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// One JSON object a line, for machines.
    Json,
    /// For people.
    Text,
}

/// What is written when `RUST_LOG` says nothing. The client's builder calls every first connection that fails an error; what
/// follows from it is told by whoever made the call.
const DEFAULT_LOG_FILTER: &str = "warn,spillway=info,kube_client::client::builder=off";

/// Starts logging to standard error. `RUST_LOG` chooses what.
pub fn start_logs(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT_LOG_FILTER));
    let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours);
    match format {
        LogFormat::Json => logs.json().flatten_event(true).init(),
        LogFormat::Text => logs.init(),
    }
}
