//! The loops of the governor of circuits: read objects, advance the clock, write.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;

use super::status::news;
use super::work::{self, KnownCircuits};
use crate::api::breaker::BreakerStatus;
use crate::api::names::managers;
use crate::api::{AgentPool, Breaker};
use crate::cluster::{Class, Error, ObjectKey};
use crate::controller::Context;
use crate::controller::budget as defaults;
use crate::controller::status_throttle::publish;
use crate::governor::budget::facts::turn_seconds;

/// Interval of the clock.
const TICK_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of checks of all objects, when no watch reports a change.
const SPEC_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Changes that come within this time are processed together.
const CHANGE_BATCH_DELAY: Duration = Duration::from_millis(100);
/// Name of this loop in logs.
const LOOP_NAME: &str = "breaker";

/// Runs until our leadership ends.
pub async fn run(context: Arc<Context>) {
    // The defaults of Breakers are loaded with the budgets.
    while !context.meter.is_ready() {
        tokio::time::sleep(CHANGE_BATCH_DELAY).await;
    }
    plant(&context);
    futures::join!(look(&context), tick(&context), write(context.clone()));
}

/// The time limit of a model turn of a pool, in milliseconds. An invalid pool object has the default.
fn turn(pool: Option<&AgentPool>, namespace: &str, context: &Context) -> u64 {
    let own = pool.and_then(|pool| pool.spec.bulkhead.as_ref());
    u64::from(turn_seconds(own, context.meter.defaults(namespace).as_ref())) * 1000
}

/// Updates the circuits from the Breakers and pools.
fn plant(context: &Context) {
    let breakers = context.stores.breakers.state().into_iter().filter_map(|stored| match &stored.0 {
        Ok(breaker) => Some(Arc::new(breaker.clone())),
        Err(invalid) => {
            let key = ObjectKey::of(stored.as_ref());
            if context.is_new_error(LOOP_NAME, key.clone(), &invalid.error) {
                tracing::error!(namespace = %key.namespace, breaker = %key.name, error = %invalid.error, "a stored Breaker does not fit its type; it guards nothing");
            }
            None
        }
    });
    let breakers = breakers.filter(|breaker| breaker.metadata.deletion_timestamp.is_none()).collect();
    let pools = context.stores.pools.state().into_iter().map(|stored| {
        // An invalid pool object still exists: its circuit is kept.
        let name = ObjectKey::of(stored.as_ref());
        let turn = turn(stored.0.as_ref().ok(), &name.namespace, context);
        (name, turn)
    });
    let pools: HashMap<ObjectKey, u64> = pools.collect();
    let namespaces: HashSet<&String> = pools.keys().map(|pool| &pool.namespace).collect();
    let defaults = namespaces.into_iter().filter_map(|namespace| Some((namespace.clone(), context.meter.defaults(namespace)?.breaker?)));
    context.circuits.set_defaults(defaults.collect());
    context.circuits.set_objects(breakers, pools);
}

async fn look(context: &Context) {
    let mut kept = HashMap::new();
    loop {
        tokio::select! {
            () = context.stores.breakers_changed.notified() => {}
            () = tokio::time::sleep(SPEC_CHECK_INTERVAL) => {}
        }
        plant(context);
        remove_unused(context, &mut kept).await;
        tokio::time::sleep(CHANGE_BATCH_DELAY).await;
    }
}

/// Deletes `Breaker/default` with the last pool, if we created it. A Breaker that a person edited is added to `kept`,
/// and checked again when it changes.
async fn remove_unused(context: &Context, kept: &mut HashMap<ObjectKey, String>) {
    for stored in context.stores.breakers.state() {
        let Ok(breaker) = &stored.0 else { continue };
        let key = ObjectKey::of(breaker);
        let version = breaker.metadata.resource_version.clone().unwrap_or_default();
        let pools = context.stores.pools.state_filter(|pool| pool.namespace().as_deref() == Some(&key.namespace));
        if !pools.is_empty() {
            kept.remove(&key);
            continue;
        }
        if kept.get(&key) == Some(&version) {
            continue;
        }
        match defaults::remove_unused(breaker, &key, context).await {
            Ok(gone) => {
                context.succeeded(LOOP_NAME, &key);
                if !gone {
                    kept.insert(key, version);
                }
            }
            // It is tried again at the next check.
            Err(error) => drop(context.record_failure(LOOP_NAME, key, &error)),
        }
    }
}

async fn tick(context: &Context) {
    let mut ticks = tokio::time::interval(TICK_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut changes, mut known) = (context.circuits.changes(), KnownCircuits::new());
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                context.circuits.tick();
                work::tidy(context);
                context.metrics.breakers(context.circuits.all());
            }
            // Pools and agents that may continue should not wait for the next tick.
            _ = changes.changed() => {}
        }
        changes.borrow_and_update();
        work::look(context, &mut known);
        tokio::time::sleep(CHANGE_BATCH_DELAY).await;
    }
}

/// Writes what is due. At most one write of a Breaker is in flight.
async fn write(context: Arc<Context>) {
    loop {
        while let Some((name, breaker, status)) = context.circuits.next() {
            tokio::spawn(store(context.clone(), name, breaker, status));
        }
        context.circuits.until_work().await;
    }
}

async fn store(context: Arc<Context>, name: ObjectKey, breaker: Arc<Breaker>, status: BreakerStatus) {
    let api = context.api::<Breaker>(&name.namespace);
    let applied = BreakerStatus { governor_epoch: Some(context.epoch), ..status };
    let error = match publish(&context, &api, breaker.as_ref(), managers::GOVERNOR, &applied).await {
        Ok(stored) => {
            let news = news(breaker.status.as_ref().unwrap_or(&BreakerStatus::default()), &applied);
            context.circuits.stored(&name, stored);
            for news in news {
                let (events, about) = (&context.events, breaker.as_ref());
                match (news.warning, news.notify_webhooks) {
                    (true, true) => events.alert(about, news.reason, "Guard", news.note).await,
                    (true, false) => events.warning(about, news.reason, "Guard", news.note).await,
                    (false, true) => events.notify(about, news.reason, "Guard", news.note).await,
                    (false, false) => events.normal(about, news.reason, "Guard", news.note).await,
                }
            }
            return;
        }
        Err(error) => error,
    };
    match error.class() {
        Class::LostLeadership => {
            tracing::error!(namespace = %name.namespace, breaker = %name.name, %error, "another writer changed the status of a Breaker");
            context.leadership.abdicate();
        }
        Class::Conflict | Class::NotFound | Class::AlreadyExists => match live(&context, &name).await {
            Ok(live) => context.circuits.conflicted(&name, live),
            Err(error) => put_off(&context, &name, &error),
        },
        // A lower epoch than the stored one is refused: then a newer object must be read too.
        Class::Refused => {
            put_off(&context, &name, &error);
            if let Ok(Some(live)) = live(&context, &name).await {
                context.circuits.saw(live);
            }
        }
        Class::QuotaExceeded | Class::Terminating | Class::Unavailable => put_off(&context, &name, &error),
    }
}

async fn live(context: &Context, name: &ObjectKey) -> Result<Option<Breaker>, Error> {
    context.api::<Breaker>(&name.namespace).get_opt(&name.name).await.map_err(Error::of("reading a Breaker"))
}

fn put_off(context: &Context, name: &ObjectKey, error: &Error) {
    let wait = context.circuits.put_off(name);
    tracing::warn!(namespace = %name.namespace, breaker = %name.name, retry_seconds = wait.as_secs_f64(), %error, "the status of a Breaker could not be written");
}
