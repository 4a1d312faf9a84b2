//! `spillway node-profile`: keeps the system call profile in the folder of its node's kubelet, and says by labels of the node which versions
//! are there. Pods of pools with `seccomp: Localhost` select nodes by these labels.
//!
//! A label always stands for a file that was read back, and that has the content that its name promises. If the file cannot be written, its
//! label is removed. At the end labels and files stay: containers that are on the node may start again with them, and a kubelet that starts
//! again ends running pods whose node has lost a label that they select.
//! This process must not change any other label, nor another node.
//!
//! | file | for |
//! |---|---|
//! | `mod` | the loop: write, read back, label |
//! | [`plan`] | which labels change, and when to look again. Pure |
//! | [`folder`] | the files |

pub mod folder;
pub mod plan;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use spillway_sandbox::profile;
use tokio_util::sync::CancellationToken;

use self::plan::{Findings, LabelChanges, changes, next_wait};
use crate::api::names::managers;
use crate::cluster::background_writes::ForegroundWrites;
use crate::cluster::connect;
use crate::telemetry::{LogFormat, Metrics};

/// How long reading and setting the labels may take together.
const LABEL_TIMEOUT: Duration = Duration::from_secs(10);

/// The settings of the process.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The kubelet's folder of seccomp profiles, as this process sees it.
    pub folder: PathBuf,
    /// Name of the node.
    pub node: String,
    /// Between two looks.
    pub interval: Duration,
}

/// The command line of `spillway node-profile`.
#[derive(clap::Args, Debug)]
pub struct NodeProfileArguments {
    /// The kubelet's folder of seccomp profiles (on the node usually /var/lib/kubelet/seccomp).
    #[arg(long, value_name = "DIR")]
    folder: PathBuf,
    /// Name of the node.
    #[arg(long, env = "NODE_NAME", required_unless_present = "check")]
    node: Option<String>,
    /// Seconds between two looks at the folder and at the labels.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    interval: u32,
    /// Only say whether the profile of this version is in the folder. The exit code is 1 if it is not. It needs no API server.
    #[arg(long)]
    check: bool,
    /// Format of log lines. RUST_LOG selects the lines.
    #[arg(long, value_enum, default_value_t = LogFormat::Json)]
    log_format: LogFormat,
}

impl NodeProfileArguments {
    /// Checks the folder, or gives the settings to `keep`.
    pub fn run(self, keep: impl FnOnce(LogFormat, Settings) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let Self { folder, node, interval, check: only_check, log_format } = self;
        if only_check {
            return check(&folder);
        }
        let node = node.context("--node is not set")?;
        keep(log_format, Settings { folder, node, interval: Duration::from_secs(interval.into()) })
    }
}

/// Whether the profile of this build is in the folder, unchanged.
fn check(folder: &std::path::Path) -> anyhow::Result<()> {
    anyhow::ensure!(
        folder::find_intact(folder)?.contains(profile::version()),
        "{} is missing below {}, or has another content: the log of this pod says why it cannot be written",
        profile::path(),
        folder.display()
    );
    Ok(())
}

/// Keeps the profile and the labels until `stop`.
pub async fn run(settings: Settings, stop: CancellationToken) -> anyhow::Result<()> {
    let user_agent = format!("spillway-node-profile/{}", crate::VERSION);
    let client = connect::connect(&user_agent, Metrics::default(), ForegroundWrites::default())
        .await
        .context("cannot connect to the API server: set KUBECONFIG, or give this pod a ServiceAccount")?;
    let daemon = Daemon { nodes: Api::all(client), settings };
    let mut last = None;
    while !stop.is_cancelled() {
        let findings = daemon.look(&mut last).await;
        tokio::select! {
            () = tokio::time::sleep(next_wait(findings, daemon.settings.interval)) => {}
            () = stop.cancelled() => {}
        }
    }
    Ok(())
}

struct Daemon {
    nodes: Api<Node>,
    settings: Settings,
}

impl Daemon {
    /// Writes the profile if it is not there, and labels the node. `last`: the versions that were found before, so that only changes are
    /// logged.
    async fn look(&self, last: &mut Option<BTreeSet<String>>) -> Findings {
        let Settings { folder, node, interval: _ } = &self.settings;
        let written = folder::install(folder);
        if let Err(error) = &written {
            tracing::error!(
                %error,
                folder = %folder.display(),
                "the profile cannot be written: pools with seccomp: Localhost get no new pods on this node. Check that sandbox.nodeProfile.folder is a writable folder of the node; trying again"
            );
        }
        let intact = folder::find_intact(folder).unwrap_or_else(|error| {
            tracing::error!(%error, folder = %folder.display(), "the folder cannot be read: its labels are removed from the node");
            BTreeSet::new()
        });
        if last.as_ref() != Some(&intact) {
            tracing::info!(%node, versions = ?intact, own = profile::version(), "the node has these versions of the profile");
            *last = Some(intact.clone());
        }
        match self.label(&intact).await {
            Ok(()) if written.is_ok() => Findings::Installed,
            Ok(()) => Findings::Failed,
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), %node, "the labels of the node cannot be set now; trying again");
                Findings::Failed
            }
        }
    }

    async fn label(&self, versions: &BTreeSet<String>) -> anyhow::Result<()> {
        tokio::time::timeout(LABEL_TIMEOUT, self.set_labels(versions)).await.context("the API server does not answer")?
    }

    async fn set_labels(&self, versions: &BTreeSet<String>) -> anyhow::Result<()> {
        let name = &self.settings.node;
        let node = self.nodes.get_metadata(name).await.with_context(|| format!("reading Node/{name}"))?;
        let Some(LabelChanges(labels)) = changes(node.labels(), versions) else { return Ok(()) };
        let patch = json!({"metadata": {"labels": labels}});
        let params = PatchParams { field_manager: Some(managers::NODE_PROFILE.into()), ..PatchParams::default() };
        self.nodes.patch_metadata(name, &params, &Patch::Merge(patch)).await.with_context(|| format!("labelling Node/{name}"))?;
        tracing::info!(node = %name, ?labels, "the labels of the node changed");
        Ok(())
    }
}
