//! Runs the `gateway` process: its certificate, its connection to the governor, its server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::artifacts::{self, ArtifactSettings, Artifacts};
use super::credentials::{Credentials, Purpose};
use super::egress::Egress;
use super::git::Git;
use super::governor::{self, Governor};
use super::lease_history::LeaseHistory;
use super::limits::Limits;
use super::long_poll::LongPolls;
use super::meter::Meter;
use super::models::headers::AllowedHeaders;
use super::models::upstream::Upstream;
use super::models::{Models, Times};
use super::routes::{AGENT_BODY_LIMITS, routes};
use super::state::Gateway;
use super::tools::Tools;
use crate::bridge::client::BridgeClient;
use crate::cluster::access::Authorizer;
use crate::cluster::background_writes::ForegroundWrites;
use crate::cluster::connect;
use crate::cluster::token::Reviewer;
use crate::egress_settings::EgressSettings;
use crate::git_settings::GitSettings;
use crate::origins::Origins;
use crate::pki::secrets::{pair, text};
use crate::pki::tls::{self, Serving};
use crate::serve::request_body::BodyMemory;
use crate::serve::{Bounds, bind, serve_tls};
use crate::telemetry::{Health, Metrics, serve};
use crate::wire::artifact::ARTIFACT_AUDIENCE;
use crate::wire::{CA_FILE, GATEWAY_AUDIENCE};

/// Between two reads of the certificate.
const CERTIFICATE_PERIOD: Duration = Duration::from_secs(30);
/// The same while there is no certificate.
const CERTIFICATE_RETRY: Duration = Duration::from_millis(500);
/// How long the gateway goes on accepting calls when it stops, until its endpoint is removed from the Service.
const ENDPOINT_REMOVAL_GRACE: Duration = Duration::from_secs(3);
/// How long transfers from and to servers go on when the process stops.
const EGRESS_SHUTDOWN_GRACE: Duration = Duration::from_secs(10);
/// How long running calls have to end when the gateway stops: model streams last longer than other calls.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(20);
/// How long the report of their usage to the ledger may take.
const LEDGER_FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

/// The settings of the process.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Address for agents.
    pub listen: SocketAddr,
    /// Address of health and metrics.
    pub health: SocketAddr,
    /// Secret with the gateways' certificate, in the namespace of the Lease.
    pub tls_secret: String,
    /// How to reach the governor.
    pub governor: governor::Settings,
    /// Folder of the journal of holds.
    pub journal: Option<PathBuf>,
    /// Uid of this pod.
    pub pod_uid: Option<String>,
    /// ServiceAccount of this gateway, for manifests in refusals.
    pub account: String,
    /// File with the allowed origins of model calls. Unset: the public ones.
    pub model_origins: Option<PathBuf>,
    /// File with the platform's rules of egress. Unset: there are none.
    pub egress: Option<PathBuf>,
    /// File with the platform's rules of git. Unset: no server can be used.
    pub git: Option<PathBuf>,
    /// File that says where artifacts are kept. Unset: none are.
    pub artifacts: Option<PathBuf>,
    /// Whether agents outside the cluster are accepted.
    pub external_agents: bool,
    /// Additional audiences that are accepted in tokens of users outside the cluster.
    pub user_audiences: Vec<String>,
    /// Additional headers that are sent to providers.
    pub allowed_headers: Vec<String>,
    /// Fields of bodies that are allowed although they may cost more than their tokens.
    pub allowed_fields: Vec<String>,
}

/// Runs until `stop`.
pub async fn run(settings: Settings, stop: CancellationToken) -> anyhow::Result<()> {
    let (health, metrics) = (Health::default(), Metrics::default());
    let mut side = JoinSet::new();
    let listening = bind(settings.listen).await?;
    let (health_served, served) = (CancellationToken::new(), CancellationToken::new());
    let serving = serve(settings.health, health.clone(), metrics.clone(), health_served.clone());
    side.spawn(async move {
        serving.await.context("cannot serve health and metrics: check that no other process uses the address of --health-listen")
    });
    let user_agent = format!("spillway-gateway/{} ({})", crate::VERSION, settings.governor.identity);
    let client = connect::connect(&user_agent, metrics.clone(), ForegroundWrites::default())
        .await
        .context("cannot connect to the API server: set KUBECONFIG, or give this pod a ServiceAccount")?;
    health.set("certificate", vec!["the Secret of the gateways' certificate".into()]);
    health.set("governor", vec!["a connection to the leading controller".into()]);
    let certificate = Serving::default();
    let (trusting, trusted) = watch::channel(String::new());
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &settings.governor.namespace);
    side.spawn(certificates(secrets, settings.tls_secret.clone(), certificate.clone(), trusting, health.clone()));
    let long_polls = LongPolls::default();
    let governor = Governor::new(settings.governor.clone(), client.clone(), trusted, long_polls.clone());
    let ready = health.clone();
    let listening_to = governor.clone();
    side.spawn(async move {
        // The check stays ok after that: without a leader the gateway must still tell agents so. Without answers they
        // would end.
        let told = |connected: bool| {
            if connected {
                ready.set("governor", vec![]);
            }
        };
        listening_to.run(told).await;
        Ok(())
    });
    let origins = origins(&settings)?;
    let egress = Egress::new(EgressSettings::read(settings.egress.as_deref())?, origins.clone());
    let credentials = Credentials::new(Purpose::Git, client.clone(), &settings.account, &settings.governor.namespace);
    let git = Git::new(GitSettings::read(settings.git.as_deref())?, credentials);
    let tools = Tools::new(BridgeClient::new(certificate.clone(), client.clone())?);
    let artifacts = Artifacts::new(&ArtifactSettings::read(settings.artifacts.as_deref())?)?;
    let models = Arc::new(models(&settings, origins, client.clone(), governor.clone())?);
    let telling = models.meter.clone();
    side.spawn(async move {
        telling.run().await;
        anyhow::bail!("the task that keeps the session with the ledger has ended")
    });
    let reviewer = Reviewer::new(client.clone(), GATEWAY_AUDIENCE).with_user_audiences(settings.user_audiences.clone());
    let people = Reviewer::new(client.clone(), ARTIFACT_AUDIENCE);
    let authorizer = settings.external_agents.then(|| Authorizer::new(client));
    let (limits, bodies) = (Mutex::new(Limits::default()), BodyMemory::new(AGENT_BODY_LIMITS));
    let lease_history = LeaseHistory::default();
    let (replaying, to_governor) = (lease_history.clone(), governor.clone());
    side.spawn(async move {
        replaying.run(to_governor).await;
        anyhow::bail!("the task that replays answers about leases has ended")
    });
    let (metrics_of, models_of) = (metrics.clone(), models.clone());
    let gateway = Arc::new(Gateway {
        reviewer,
        people,
        authorizer,
        governor,
        long_polls,
        limits,
        bodies,
        metrics: metrics_of,
        models: models_of,
        egress,
        git,
        tools,
        artifacts,
        lease_history,
    });
    let sweeping = gateway.clone();
    side.spawn(async move {
        artifacts::sweep(sweeping).await;
        anyhow::bail!("the task that sweeps the store of artifacts has ended")
    });
    let gateway_of = gateway.clone();
    let bounds = Bounds { shutdown_timeout: SHUTDOWN_TIMEOUT, ..Bounds::AGENTS };
    let serving = serve_tls(listening, tls::server(certificate), bounds, routes(gateway), metrics, served.clone());
    tokio::pin!(serving);
    let ended = tokio::select! {
        // A side task that ends has failed.
        Some(ended) = side.join_next() => return ended.context("a task panicked")?,
        ended = &mut serving => ended,
        () = stop.cancelled() => {
            health.set("stopping", vec!["this replica is stopping".into()]);
            tokio::time::sleep(ENDPOINT_REMOVAL_GRACE).await;
            served.cancel();
            let connections = gateway_of.clone();
            tokio::spawn(async move {
                tokio::time::sleep(EGRESS_SHUTDOWN_GRACE).await;
                connections.egress.stop();
                connections.git.stop();
                connections.tools.stop();
                connections.artifacts.stop();
            });
            let ended = serving.await;
            models.stop(LEDGER_FLUSH_TIMEOUT).await;
            ended
        }
    };
    health_served.cancel();
    ended.context("cannot serve agents")
}

/// The allowed origins of model calls.
fn origins(settings: &Settings) -> anyhow::Result<Origins> {
    Ok(match &settings.model_origins {
        Some(file) => {
            let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {} (--model-origins-file)", file.display()))?;
            Origins::parse(&text).map_err(|error| anyhow::anyhow!("{} (gateway.modelOrigins): {error}", file.display()))?
        }
        None => Origins::default(),
    })
}

/// The shared state of model calls.
fn models(settings: &Settings, origins: Origins, client: Client, governor: Governor) -> anyhow::Result<Models> {
    let meter = Meter::open(governor, settings.journal.clone(), settings.pod_uid.as_deref())?;
    let credentials = Credentials::new(Purpose::Models, client, &settings.account, &settings.governor.namespace);
    let mut models = Models::new(meter, Upstream::new(origins), credentials, Times::default());
    models.allowed = AllowedHeaders::new(&settings.allowed_headers).map_err(|why| anyhow::anyhow!("--allowed-header: {why}"))?;
    models.allowed_fields.clone_from(&settings.allowed_fields);
    Ok(models)
}

/// Keeps the gateway's certificate, and the trusted ones, up to date. Never returns.
async fn certificates(
    secrets: Api<Secret>,
    name: String,
    serving: Serving,
    trusting: watch::Sender<String>,
    health: Health,
) -> anyhow::Result<()> {
    let mut shown = None;
    loop {
        match secrets.get_opt(&name).await {
            Ok(secret) => {
                let (pair, bundle) = (pair(secret.as_ref(), "tls"), text(secret.as_ref(), CA_FILE));
                if let (Some(pair), Some(bundle)) = (pair, bundle)
                    && shown.as_ref() != Some(&(pair.clone(), bundle.clone()))
                {
                    serving.set(&pair)?;
                    trusting.send_replace(bundle.clone());
                    health.set("certificate", vec![]);
                    tracing::info!(secret = name, "the certificate is loaded");
                    shown = Some((pair, bundle));
                }
            }
            Err(error) => tracing::warn!(%error, secret = name, "cannot read the Secret of the gateways' certificate; trying again"),
        }
        tokio::time::sleep(if shown.is_some() { CERTIFICATE_PERIOD } else { CERTIFICATE_RETRY }).await;
    }
}
