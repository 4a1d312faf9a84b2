//! The life of the `controller` process: connect to the API server, stand by, lead, end.
//!
//! A standby keeps no caches: a new leader lists everything once, after it won, so that nothing it knows is older than its
//! leadership. Losing the lease ends the process with an error; SIGTERM lets running reconciles finish, gives the lease
//! back and ends it with success.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures::StreamExt;
use futures::stream::BoxStream;
use kube::Client;
use kube::runtime::Controller;
use kube::runtime::controller::{self, Config};
use kube::runtime::reflector::ObjectRef;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::agent::{self, PodTerminations};
use super::context::{Context, ContextParts};
use super::fleet::Fleet;
use super::stores::{AgentObject, BudgetObject, PoolObject, Stores};
use super::watches::{Triggers, watch_all};
use super::{agent_pool, budget, cluster_default, gauges, status_throttle::Owned, supervised, toolset};
use crate::bridge::client::BridgeClient;
use crate::cluster::ObjectKey;
use crate::cluster::background_writes::ForegroundWrites;
use crate::cluster::events::Events;
use crate::cluster::lease::{Identity, LeadershipTerm, acquire};
use crate::cluster::token::Reviewer;
use crate::cluster::{connect, served};
use crate::egress_settings::EgressSettings;
use crate::git_settings::GitSettings;
use crate::governor::budget as tokens;
use crate::governor::server::{GOVERNOR_BODY_LIMITS, Governor, routes};
use crate::governor::work::queues::Queues;
use crate::governor::work::{self, WorkIndex};
use crate::governor::{breaker, bulkheads, commands, rollback};
use crate::notify::Notifier;
use crate::notify::settings::Webhook;
use crate::pki::secrets::{SecretNames, Trust, keep};
use crate::pki::tls::{self, Serving};
use crate::policy::lease::{Timing, owner_epoch};
use crate::serve::request_body::BodyMemory;
use crate::serve::{Bounds, bind, serve_tls};
use crate::telemetry::{Health, Metrics, serve};
use crate::wire::GOVERNOR_AUDIENCE;

/// Interval of the checks which kinds the API server serves.
const KINDS_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Interval of these checks while some kinds are missing.
const MISSING_KINDS_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Settings of the process.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Serve this namespace only; `None`: all.
    pub namespace: Option<String>,
    /// The leader lease.
    pub lease: Identity,
    /// Where health and metrics are served.
    pub listen: SocketAddr,
    /// Maximum number of concurrent reconciles of each controller.
    pub concurrency: u16,
    /// The settings for agents' pods.
    pub supervised: supervised::Settings,
    /// Where the governor serves while we lead.
    pub governor: SocketAddr,
    /// End all agents and make no new ones.
    pub ends_agents: bool,
    /// The spec of `ClusterBudget/default`, which is made where there is none; `None`: it is left to others.
    pub cluster_budget: Option<serde_json::Value>,
    /// The platform's rules of egress.
    pub egress: EgressSettings,
    /// The platform's rules of git.
    pub git: GitSettings,
    /// The webhooks that get notices.
    pub webhooks: Vec<Webhook>,
    /// The gateways' ServiceAccount, as the API server names its user.
    pub gateway_user: String,
    /// The Secrets with the internal certificates.
    pub certificates: SecretNames,
}

/// Runs until `stop`, or until leadership is lost, which is an error.
pub async fn run(settings: Settings, stop: CancellationToken) -> anyhow::Result<()> {
    let (health, metrics) = (Health::default(), Metrics::default());
    let mut side = JoinSet::new();
    // Health has its own token: it is served until everything else has ended.
    let served = CancellationToken::new();
    let serving = serve(settings.listen, health.clone(), metrics.clone(), served.clone());
    side.spawn(async move { serving.await.context("cannot serve health and metrics: is the address free? (--listen)") });
    let user_agent = format!("spillway-controller/{} ({})", crate::VERSION, settings.lease.holder);
    let quiet = ForegroundWrites::default();
    let client = connect::connect(&user_agent, metrics.clone(), quiet.clone())
        .await
        .context("cannot connect to the API server: is KUBECONFIG set, or does this pod have a ServiceAccount?")?;
    side.spawn(watch_kinds(client.clone(), health.clone()));
    tokio::select! {
        // These tasks end only by a failure.
        Some(ended) = side.join_next() => ended.context("a task panicked")?,
        result = stand_and_lead(settings, (client, quiet), health, metrics, stop) => {
            served.cancel();
            result
        }
    }
}

/// Keeps the readiness check of our kinds up to date. Never returns.
async fn watch_kinds(client: Client, health: Health) -> anyhow::Result<()> {
    loop {
        let missing = match served::missing_kinds(&client).await {
            Ok(missing) => missing,
            Err(error) => vec![format!("(the API server does not answer: {error})")],
        };
        let wait = if missing.is_empty() { KINDS_CHECK_INTERVAL } else { MISSING_KINDS_RETRY_DELAY };
        health.set("kinds", missing);
        tokio::time::sleep(wait).await;
    }
}

async fn stand_and_lead(
    settings: Settings,
    (client, quiet): (Client, ForegroundWrites),
    health: Health,
    metrics: Metrics,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    // The lease is released only after everything that writes under it has ended.
    let release = CancellationToken::new();
    let standing = acquire(client.clone(), settings.lease.clone(), Timing::DEFAULT, release.clone());
    let won = tokio::select! {
        won = standing => won,
        () = stop.cancelled() => None,
    };
    let Some(won) = won else { return Ok(()) };
    let LeadershipTerm { leadership, resource_version, takeover, keeper } = won;
    let mut watches = JoinSet::new();
    let disappearances = PodTerminations::default();
    let fleet = Fleet::new(metrics.clone());
    let (stores, triggers) = watch_all(&mut watches, &client, settings.namespace.as_deref(), &disappearances, &fleet, &metrics);
    let (work_index, looks) = WorkIndex::new(metrics.clone());
    let queues = Queues::default();
    work::watch::start(&mut watches, &client, settings.namespace.as_deref(), &work_index, &queues);
    let (told, trust) = watch::channel(None);
    let mut side = JoinSet::new();
    side.spawn(keep(client.clone(), settings.certificates.clone(), leadership.clone(), told));
    let leading = async {
        tokio::select! {
            () = stores.wait_until_filled(|missing| health.set("caches", missing)) => {}
            () = stop.cancelled() => return Ok(()),
        }
        health.set("items", vec!["workitems".to_owned()]);
        tokio::select! {
            () = work_index.wait_until_listed() => health.set("items", Vec::new()),
            () = stop.cancelled() => return Ok(()),
        }
        let supervised = tokio::select! {
            supervised = supervised::resolve(&settings.supervised, &client, |missing| health.set("gateway", missing)) => supervised,
            () = stop.cancelled() => return Ok(()),
        };
        let epoch = owner_epoch(resource_version, highest_epoch(&stores).max(work_index.highest_epoch()), takeover.rollback.as_ref());
        leadership.lead_as(epoch);
        metrics.leading(epoch);
        tracing::info!(epoch, holder = %settings.lease.holder, "leading");
        let notifier = Notifier::start(settings.webhooks.clone(), &metrics)?;
        let events = Events::new(client.clone(), settings.lease.holder.clone(), notifier);
        let Triggers { pools, agents, budgets, wake } = triggers;
        let certificate = Serving::default();
        let bridges = BridgeClient::new(certificate.clone(), client.clone())?;
        let parts = ContextParts {
            client: client.clone(),
            leadership: leadership.clone(),
            takeover,
            metrics,
            events,
            stores,
            pod_terminations: disappearances,
            wake,
            supervised: supervised.clone(),
            egress: settings.egress.clone(),
            git: settings.git.clone(),
            trust: trust.clone(),
            bridges,
            work_index,
            foreground_writes: quiet,
            fleet,
            only_namespace: settings.namespace.clone(),
            ends_agents: settings.ends_agents,
        };
        let context = Arc::new(Context::new(parts, epoch));
        tokio::select! {
            () = drive(context.clone(), WatchedKinds { pools, agents, budgets }, settings.concurrency, &stop) => Ok(()),
            ended = cluster_default::ensure(context.clone(), settings.cluster_budget.as_ref()) => ended,
            ended = toolset::run(context.clone()) => ended,
            ended = govern(context.clone(), &settings, certificate, trust) => ended,
            () = work::run::run(context.clone(), looks, queues) => bail!("the task that manages work items ended"),
            () = tokens::run::run(context.clone(), settings.lease.namespace.clone()) => bail!("the task that accounts for tokens ended"),
            () = commands::run(context.clone()) => bail!("the task that reports command breakers to agents ended"),
            () = rollback::run(context.clone()) => bail!("the task that reports rollbacks of the API server's store ended"),
            () = breaker::run::run(context.clone()) => bail!("the task that manages circuit breakers ended"),
            () = bulkheads::run(context.clone()) => bail!("the task that reports the use of bulkheads ended"),
            () = gauges::run(context.clone()) => bail!("the task that measures gauges ended"),
            () = supervised::changed(&settings.supervised, &client, &supervised) => {
                bail!("the address of the gateway has changed; this process exits and restarts with the new address")
            }
        }
    };
    tokio::select! {
        ended = leading => ended?,
        () = leadership.lost() => bail!("the leader lease was lost; this process exits so that another process can lead"),
        Some(_) = watches.join_next() => bail!("the task of a watch ended"),
        Some(_) = side.join_next() => bail!("the task that renews the internal certificates ended"),
    }
    release.cancel();
    keeper.await.context("the task that renews the leader lease panicked")
}

/// Serves gateways, runs the timers of agents, and passes new certificates to the server and the pools. Returns only
/// with an error.
async fn govern(
    context: Arc<Context>,
    settings: &Settings,
    certificate: Serving,
    mut trust: watch::Receiver<Option<Trust>>,
) -> anyhow::Result<()> {
    let listening = bind(settings.governor).await?;
    let reviewer = Reviewer::new(context.client.clone(), GOVERNOR_AUDIENCE);
    let (gateway, bodies) = (settings.gateway_user.clone(), BodyMemory::new(GOVERNOR_BODY_LIMITS));
    let governor = Arc::new(Governor { context: context.clone(), reviewer, gateway, bodies });
    let (server, metrics) = (tls::server(certificate.clone()), context.metrics.clone());
    let serving = serve_tls(listening, server, Bounds::GATEWAYS, routes(governor), metrics, CancellationToken::new());
    let wake = context.wake.clone();
    let ticking = context.live.clone().run(move |key| wake.agent(key));
    let renewing = async {
        loop {
            if let Some(trust) = trust.borrow_and_update().as_ref() {
                certificate.set(&trust.governor)?;
            }
            context.wake.all_pools(&context.stores.pools);
            context.wake.waiting_agents(&context.stores.agents);
            trust.changed().await.context("the task that renews the internal certificates ended")?;
        }
    };
    tokio::select! {
        ended = serving => ended.context("cannot serve gateways"),
        () = ticking => bail!("the task that checks the timers of agents ended"),
        ended = renewing => ended,
    }
}

/// The highest owner epoch in a stored status: after a restore from a backup, resource versions start low, and these
/// epochs do not.
fn highest_epoch(stores: &Stores) -> Option<i64> {
    let pools = stores.pools.state().into_iter().filter_map(|pool| pool.0.as_ref().ok().and_then(Owned::epoch)).max();
    let agents = stores.agents.state().into_iter().filter_map(|agent| agent.0.as_ref().ok().and_then(Owned::epoch)).max();
    let budgets = stores.budgets.state().into_iter().filter_map(|budget| budget.0.as_ref().ok().and_then(Owned::epoch)).max();
    let clusters = stores.cluster_budgets.state().into_iter().filter_map(|cluster| cluster.0.as_ref().ok().and_then(Owned::epoch)).max();
    let breakers = stores.breakers.state().into_iter().filter_map(|breaker| breaker.0.as_ref().ok().and_then(Owned::epoch)).max();
    pools.max(agents).max(budgets).max(clusters).max(breakers)
}

/// The objects that the controllers reconcile, by kind.
struct WatchedKinds {
    pools: BoxStream<'static, ObjectRef<PoolObject>>,
    agents: BoxStream<'static, ObjectRef<AgentObject>>,
    budgets: BoxStream<'static, ObjectRef<BudgetObject>>,
}

/// Runs the controllers until `stop`, then lets running reconciles finish.
async fn drive(context: Arc<Context>, looks: WatchedKinds, concurrency: u16, stop: &CancellationToken) {
    let WatchedKinds { pools, agents, budgets } = looks;
    let pools = Controller::for_stream(futures::stream::pending(), context.stores.pools.clone())
        .reconcile_on(pools)
        .with_config(Config::default().concurrency(concurrency))
        .graceful_shutdown_on(stop.clone().cancelled_owned())
        .run(agent_pool::reconcile, agent_pool::after_error, context.clone())
        .for_each(|ended| forget_if_gone(ended, agent_pool::forget, &context));
    let agents = Controller::for_stream(futures::stream::pending(), context.stores.agents.clone())
        .reconcile_on(agents)
        .with_config(Config::default().concurrency(concurrency))
        .graceful_shutdown_on(stop.clone().cancelled_owned())
        .run(agent::reconcile, agent::after_error, context.clone())
        .for_each(|ended| forget_if_gone(ended, agent::forget_name, &context));
    let budgets = Controller::for_stream(futures::stream::pending(), context.stores.budgets.clone())
        .reconcile_on(budgets)
        .with_config(Config::default().concurrency(concurrency))
        .graceful_shutdown_on(stop.clone().cancelled_owned())
        .run(budget::reconcile, budget::after_error, context.clone())
        .for_each(|ended| forget_if_gone(ended, budget::forget, &context));
    futures::join!(pools, agents, budgets);
}

/// Forgets an object that was triggered and is not in the store: it is deleted.
fn forget_if_gone<T, K, Q>(
    ended: Result<T, controller::Error<K, Q>>,
    forget: fn(&ObjectKey, &Context),
    context: &Context,
) -> std::future::Ready<()>
where
    K: std::error::Error + 'static,
    Q: std::error::Error + 'static,
{
    if let Err(controller::Error::ObjectNotFound(object)) = ended {
        let key = ObjectKey { namespace: object.namespace.unwrap_or_default(), name: object.name };
        forget(&key, context);
    }
    std::future::ready(())
}
