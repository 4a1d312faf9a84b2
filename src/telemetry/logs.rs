//! Structured logs: each message can be read alone, and values are fields.

use tracing_subscriber::EnvFilter;

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// One JSON object for each line, for machines.
    Json,
    /// Text for people.
    Text,
}

/// The filter if `RUST_LOG` is not set. The client's builder logs each failed connection as an error. That is off,
/// because the caller logs the failure of its call. So is the SDK of MCP, whose errors quote what an upstream says, perhaps its credential.
const DEFAULT_LOG_FILTER: &str = "warn,spillway=info,kube_client::client::builder=off,rmcp=off";

/// Starts logging to standard error. `RUST_LOG` selects the lines.
pub fn start_logs(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT_LOG_FILTER));
    let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours);
    match format {
        LogFormat::Json => logs.json().flatten_event(true).init(),
        LogFormat::Text => logs.init(),
    }
}
