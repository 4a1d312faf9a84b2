//! The life of the `controller` process: reach the API server, wait for the kinds, stand by, lead, end.
//!
//! A standby keeps no caches: a new leader lists everything once, after it won, so that nothing it knows is older than its
//! leadership. Losing the lease ends the process with an error; SIGTERM lets running reconciles finish, gives the lease
//! back and ends it with success.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures::StreamExt;
use kube::Client;
use kube::runtime::Controller;
use kube::runtime::controller::{self, Config};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::agent::{self, Disappearances};
use super::context::{Context, Key};
use super::stores::{Stores, Triggers, watch_all};
use super::{agent_pool, publish::Owned};
use crate::cluster::events::Events;
use crate::cluster::lease::{Identity, Won, win};
use crate::cluster::{connect, served};
use crate::policy::lease::{Timing, owner_epoch};
use crate::telemetry::{Health, Metrics, serve};

/// Between two looks at which kinds are served.
const KINDS_PERIOD: Duration = Duration::from_secs(10);
/// Between them while some are missing.
const KINDS_RETRY: Duration = Duration::from_secs(1);

/// What the process is told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Serve this namespace only; `None`: all.
    pub namespace: Option<String>,
    /// The leader lease.
    pub lease: Identity,
    /// Where health and metrics are served.
    pub listen: SocketAddr,
    /// Agents worked on at once.
    pub concurrency: u16,
}

/// Runs until `stop`, or until leadership is lost, which is an error.
pub async fn run(settings: Settings, stop: CancellationToken) -> anyhow::Result<()> {
    let (health, metrics) = (Health::default(), Metrics::default());
    let mut side = JoinSet::new();
    // Its own token: health is served until everything that acts has ended, or its end would cut them off.
    let served = CancellationToken::new();
    let serving = serve(settings.listen, health.clone(), metrics.clone(), served.clone());
    side.spawn(async move { serving.await.context("cannot serve health and metrics: is the address free? (--listen)") });
    let user_agent = format!("spillway-controller/{} ({})", crate::VERSION, settings.lease.holder);
    let client = connect::connect(&user_agent, metrics.clone())
        .await
        .context("cannot connect to the API server: is KUBECONFIG set, or does this pod have a ServiceAccount?")?;
    side.spawn(watch_kinds(client.clone(), health.clone()));
    tokio::select! {
        // A task beside never ends by itself: it has failed.
        Some(ended) = side.join_next() => ended.context("a task panicked")?,
        result = stand_and_lead(settings, client, health, metrics, stop) => {
            served.cancel();
            result
        }
    }
}

/// Keeps the readiness check on our kinds up to date, for ever.
async fn watch_kinds(client: Client, health: Health) -> anyhow::Result<()> {
    loop {
        let missing = match served::missing_kinds(&client).await {
            Ok(missing) => missing,
            Err(error) => vec![format!("(the API server does not answer: {error})")],
        };
        let wait = if missing.is_empty() { KINDS_PERIOD } else { KINDS_RETRY };
        health.set("kinds", missing);
        tokio::time::sleep(wait).await;
    }
}

async fn stand_and_lead(
    settings: Settings,
    client: Client,
    health: Health,
    metrics: Metrics,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    // The lease is given back only when everything that acts under it has ended.
    let release = CancellationToken::new();
    let standing = win(client.clone(), settings.lease.clone(), Timing::DEFAULT, release.clone());
    let won = tokio::select! {
        won = standing => won,
        () = stop.cancelled() => None,
    };
    let Some(won) = won else { return Ok(()) };
    let Won { leadership, resource_version, keeper } = won;
    let mut watches = JoinSet::new();
    let disappearances = Disappearances::default();
    let (stores, triggers) = watch_all(&mut watches, &client, settings.namespace.as_deref(), &disappearances);
    let leading = async {
        tokio::select! {
            () = stores.filled(|missing| health.set("caches", missing)) => {}
            () = stop.cancelled() => return,
        }
        let epoch = owner_epoch(resource_version, highest_epoch(&stores));
        metrics.leading(epoch);
        tracing::info!(epoch, holder = %settings.lease.holder, "leading");
        let events = Events::new(client.clone(), settings.lease.holder.clone());
        let context = Arc::new(Context::new(client, leadership.clone(), epoch, metrics, events, stores, disappearances));
        drive(context, triggers, settings.concurrency, &stop).await;
    };
    tokio::select! {
        () = leading => {}
        () = leadership.lost() => bail!("the leader lease was lost; this process ends, another one leads"),
        Some(_) = watches.join_next() => bail!("a watch ended"),
    }
    release.cancel();
    keeper.await.context("the lease keeper panicked")
}

/// The highest owner epoch in durable status: after a restore from a backup, versions start low and these do not.
fn highest_epoch(stores: &Stores) -> Option<i64> {
    let pools = stores.pools.state().into_iter().filter_map(|pool| pool.0.as_ref().ok().and_then(Owned::epoch)).max();
    let agents = stores.agents.state().into_iter().filter_map(|agent| agent.0.as_ref().ok().and_then(Owned::epoch)).max();
    pools.max(agents)
}

/// Runs the controllers until `stop`, then lets running reconciles finish.
async fn drive(context: Arc<Context>, triggers: Triggers, concurrency: u16, stop: &CancellationToken) {
    let Triggers { pools, agents } = triggers;
    let pools = Controller::for_stream(futures::stream::pending(), context.stores.pools.clone())
        .reconcile_on(pools)
        .with_config(Config::default().concurrency(concurrency))
        .graceful_shutdown_on(stop.clone().cancelled_owned())
        .run(agent_pool::reconcile, agent_pool::after_error, context.clone())
        .for_each(|ended| forget_if_gone(ended, agent_pool::CONTROLLER, &context));
    let agents = Controller::for_stream(futures::stream::pending(), context.stores.agents.clone())
        .reconcile_on(agents)
        .with_config(Config::default().concurrency(concurrency))
        .graceful_shutdown_on(stop.clone().cancelled_owned())
        .run(agent::reconcile, agent::after_error, context.clone())
        .for_each(|ended| forget_if_gone(ended, agent::CONTROLLER, &context));
    futures::join!(pools, agents);
}

/// A trigger for an object that is not in the store comes after its deletion: nothing is remembered of it.
fn forget_if_gone<T, K, Q>(ended: Result<T, controller::Error<K, Q>>, controller: &'static str, context: &Context) -> std::future::Ready<()>
where
    K: std::error::Error + 'static,
    Q: std::error::Error + 'static,
{
    if let Err(controller::Error::ObjectNotFound(object)) = ended {
        let key = Key { namespace: object.namespace.unwrap_or_default(), name: object.name };
        context.forget(controller, &key);
    }
    std::future::ready(())
}
