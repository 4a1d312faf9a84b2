//! The life of the `gateway` process: its certificate, its way to the governor, its server.

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

use super::governor::{self, Governor};
use super::lease_history::LeaseHistory;
use super::limits::Limits;
use super::long_poll::LongPolls;
use super::meter::Meter;
use super::models::credentials::Credentials;
use super::models::headers::AllowedHeaders;
use super::models::origins::Origins;
use super::models::upstream::Upstream;
use super::models::{Models, Times};
use super::routes::{AGENT_BODY_LIMITS, routes};
use super::state::Gateway;
use crate::cluster::access::Authorizer;
use crate::cluster::background_writes::ForegroundWrites;
use crate::cluster::connect;
use crate::cluster::token::Reviewer;
use crate::pki::secrets::{pair, text};
use crate::pki::tls::{self, Serving};
use crate::serve::request_body::BodyMemory;
use crate::serve::{Bounds, bind, serve_tls};
use crate::telemetry::{Health, Metrics, serve};
use crate::wire::{CA_FILE, GATEWAY_AUDIENCE};

/// Between two looks at our certificate.
const CERTIFICATE_PERIOD: Duration = Duration::from_secs(30);
/// While there is none.
const CERTIFICATE_RETRY: Duration = Duration::from_millis(500);
/// Calls of agents are let finish, and others come: the endpoint is taken out of the Service meanwhile.
const ENDPOINT_REMOVAL_GRACE: Duration = Duration::from_secs(3);
/// How long calls that are answered have when we stop: streams of models last longer than other calls.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(20);
/// For telling the ledger what they used.
const LEDGER_FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

/// What the process is told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where agents are served.
    pub listen: SocketAddr,
    /// Where health and metrics are served.
    pub health: SocketAddr,
    /// Secret with our certificate, in the namespace of the Lease.
    pub tls_secret: String,
    /// The way to the governor.
    pub governor: governor::Settings,
    /// Folder of the journal of holds.
    pub journal: Option<PathBuf>,
    /// Uid of our pod.
    pub pod_uid: Option<String>,
    /// Our ServiceAccount, for manifests that name it.
    pub account: String,
    /// File with the origins that model calls may go to; unset: the public ones.
    pub model_origins: Option<PathBuf>,
    /// Whether agents outside the cluster are taken.
    pub external_agents: bool,
    /// Audiences of tokens that are taken from users outside the cluster besides ours.
    pub user_audiences: Vec<String>,
    /// Names of headers that go to providers besides the usual ones.
    pub allowed_headers: Vec<String>,
    /// Names of fields in bodies that may cost more than their tokens say, and pass.
    pub allowed_fields: Vec<String>,
}

/// Runs until `stop`.
pub async fn run(settings: Settings, stop: CancellationToken) -> anyhow::Result<()> {
    let (health, metrics) = (Health::default(), Metrics::default());
    let mut side = JoinSet::new();
    let listening = bind(settings.listen).await?;
    let (health_served, served) = (CancellationToken::new(), CancellationToken::new());
    let serving = serve(settings.health, health.clone(), metrics.clone(), health_served.clone());
    side.spawn(async move { serving.await.context("cannot serve health and metrics: is the address free? (--health-listen)") });
    let user_agent = format!("spillway-gateway/{} ({})", crate::VERSION, settings.governor.identity);
    let client = connect::connect(&user_agent, metrics.clone(), ForegroundWrites::default())
        .await
        .context("cannot connect to the API server: is KUBECONFIG set, or does this pod have a ServiceAccount?")?;
    health.set("certificate", vec!["the Secret of the gateways' certificate".into()]);
    health.set("governor", vec!["a connection to the controller that leads".into()]);
    let certificate = Serving::default();
    let (trusting, trusted) = watch::channel(String::new());
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &settings.governor.namespace);
    side.spawn(certificates(secrets, settings.tls_secret.clone(), certificate.clone(), trusting, health.clone()));
    let long_polls = LongPolls::default();
    let governor = Governor::new(settings.governor.clone(), client.clone(), trusted, long_polls.clone());
    let ready = health.clone();
    let listening_to = governor.clone();
    side.spawn(async move {
        // Not taken back: without a leader agents must be told that. Told nothing, they would end after a while.
        let told = |connected: bool| {
            if connected {
                ready.set("governor", vec![]);
            }
        };
        listening_to.run(told).await;
        Ok(())
    });
    let models = Arc::new(models(&settings, client.clone(), governor.clone())?);
    let telling = models.meter.clone();
    side.spawn(async move {
        telling.run().await;
        anyhow::bail!("the session with the ledger ended")
    });
    let reviewer = Reviewer::new(client.clone(), GATEWAY_AUDIENCE).with_users_of(settings.user_audiences.clone());
    let authorizer = settings.external_agents.then(|| Authorizer::new(client));
    let (limits, bodies) = (Mutex::new(Limits::default()), BodyMemory::new(AGENT_BODY_LIMITS));
    let lease_history = LeaseHistory::default();
    let (replaying, to_governor) = (lease_history.clone(), governor.clone());
    side.spawn(async move {
        replaying.run(to_governor).await;
        anyhow::bail!("the replay of answers about leases ended")
    });
    let (metrics_of, models_of) = (metrics.clone(), models.clone());
    let gateway =
        Gateway { reviewer, authorizer, governor, long_polls, limits, bodies, metrics: metrics_of, models: models_of, lease_history };
    let gateway = Arc::new(gateway);
    let bounds = Bounds { last_calls: SHUTDOWN_TIMEOUT, ..Bounds::AGENTS };
    let serving = serve_tls(listening, tls::server(certificate), bounds, routes(gateway), metrics, served.clone());
    tokio::pin!(serving);
    let ended = tokio::select! {
        // A task beside never ends by itself: it has failed.
        Some(ended) = side.join_next() => return ended.context("a task panicked")?,
        ended = &mut serving => ended,
        () = stop.cancelled() => {
            health.set("stopping", vec!["this replica is asked to stop".into()]);
            tokio::time::sleep(ENDPOINT_REMOVAL_GRACE).await;
            served.cancel();
            let ended = serving.await;
            models.stop(LEDGER_FLUSH_TIMEOUT).await;
            ended
        }
    };
    health_served.cancel();
    ended.context("cannot serve agents")
}

/// What calls of models work with.
fn models(settings: &Settings, client: Client, governor: Governor) -> anyhow::Result<Models> {
    let origins = match &settings.model_origins {
        Some(file) => {
            let text = std::fs::read_to_string(file).with_context(|| format!("reading {} (--model-origins-file)", file.display()))?;
            Origins::parse(&text).map_err(|error| anyhow::anyhow!("{} (gateway.modelOrigins): {error}", file.display()))?
        }
        None => Origins::default(),
    };
    let meter = Meter::open(governor, settings.journal.clone(), settings.pod_uid.as_deref())?;
    let credentials = Credentials::new(client, &settings.account, &settings.governor.namespace);
    let mut models = Models::new(meter, Upstream::new(origins), credentials, Times::default());
    models.allowed = AllowedHeaders::new(&settings.allowed_headers).map_err(|why| anyhow::anyhow!("--allowed-header: {why}"))?;
    models.allowed_fields.clone_from(&settings.allowed_fields);
    Ok(models)
}

/// Keeps the certificate that we show, and those that we trust, up to date. For ever.
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
            Err(error) => tracing::warn!(%error, secret = name, "the Secret of our certificate cannot be read; retrying"),
        }
        tokio::time::sleep(if shown.is_some() { CERTIFICATE_PERIOD } else { CERTIFICATE_RETRY }).await;
    }
}
