//! `spillway check` and `spillway end-agents`: the programs of the chart's test and of its hook before `helm uninstall`.
//!
//! Both are short-lived pods of the release, with rights of their own. They read the release from outside, as its users do, and decide
//! nothing about agents: the leading controller ends them.
//!
//! | file | for |
//! |---|---|
//! | `mod` | the connection, and waiting |
//! | `check` | whether the release serves |
//! | `end_agents` | the end of all agents |

mod check;
mod end_agents;

use std::time::{Duration, Instant};

use anyhow::Context as _;
use kube::Client;
use tokio_util::sync::CancellationToken;

use crate::cluster::background_writes::ForegroundWrites;
use crate::cluster::connect;
use crate::telemetry::Metrics;

pub use check::{CheckArguments, check};
pub use end_agents::{EndAgentsArguments, end_agents};

/// Between two looks at what is waited for.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

async fn client(process: &str) -> anyhow::Result<Client> {
    let user_agent = format!("spillway-{process}/{}", crate::VERSION);
    connect::connect(&user_agent, Metrics::default(), ForegroundWrites::default())
        .await
        .context("cannot connect to the API server: set KUBECONFIG, or give this pod a ServiceAccount")
}

/// When waiting ends.
struct Deadline {
    began: Instant,
    timeout: Duration,
    stop: CancellationToken,
}

impl Deadline {
    fn new(seconds: u32, stop: CancellationToken) -> Self {
        Self { began: Instant::now(), timeout: Duration::from_secs(seconds.into()), stop }
    }

    fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Waits until the next look. False: the time is over, or the process is to stop.
    async fn next(&self) -> bool {
        tokio::select! {
            () = tokio::time::sleep(POLL_INTERVAL) => self.began.elapsed() < self.timeout,
            () = self.stop.cancelled() => false,
        }
    }
}
