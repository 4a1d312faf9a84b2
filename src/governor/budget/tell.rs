//! What follows from thresholds that have acted, and from budgets whose state turned: lines, events, signals.
//!
//! An act is told once it is durable, and once; what is lost with a leader in between is not told.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::object::Object;
use super::publish::News;
use super::records::Done;
use crate::api::{Agent, Budget, ClusterBudget};
use crate::controller::{Context, Key as Name};
use crate::policy::budget::node::{Action, Threshold};
use crate::policy::budget::{Event, Key};
use crate::policy::hub::Signal;

/// Reason of the event.
const REACHED: &str = "ThresholdReached";

/// Tells, for ever.
pub async fn run(context: Arc<Context>, mut done: mpsc::UnboundedReceiver<Done>) {
    while let Some(Done { events, news, object }) = done.recv().await {
        for one in news {
            tell(&context, &object, &one).await;
        }
        for event in events {
            act(&context, &object, &event).await;
        }
    }
}

async fn tell(context: &Context, object: &Object, News { warning, reason, note }: &News) {
    match object {
        Object::Budget(budget) => publish::<Budget>(context, budget, *warning, reason, note).await,
        Object::Cluster(cluster) => publish::<ClusterBudget>(context, cluster, *warning, reason, note).await,
        Object::Agent(_) | Object::Item(_) => {}
    }
}

async fn publish<K: kube::Resource<DynamicType = ()>>(context: &Context, about: &K, warning: bool, reason: &str, note: &str) {
    if warning {
        context.events.warning(about, reason, "Meter", note.to_owned()).await;
    } else {
        context.events.normal(about, reason, "Meter", note.to_owned()).await;
    }
}

/// What happened, in one sentence.
fn words(event: &Event) -> String {
    let Event { key, limit, span, threshold: Threshold { percent, .. }, height } = event;
    format!("{key}: {percent} % of the limit {limit} of {height} tokens are used or held ({span})")
}

async fn act(context: &Context, object: &Object, event: &Event) {
    let text = words(event);
    tracing::info!(budget = %event.key, limit = event.limit, percent = event.threshold.percent, action = ?event.threshold.action, "a threshold of a budget is reached");
    match event.threshold.action {
        Action::Log => {}
        // That it is paused, its conditions tell.
        Action::Pause => {}
        Action::Warn => {
            for (agent, name) in below(context, &event.key) {
                // What is done about it, its supervisor decides: by default it is told.
                context.live.raised(&agent, Signal::BudgetNearLimit, Some(text.clone()));
                context.wake.agent(&name);
            }
        }
        Action::Notify => match object {
            Object::Budget(budget) => context.events.alert::<Budget>(budget, REACHED, "Meter", text).await,
            Object::Cluster(cluster) => context.events.alert::<ClusterBudget>(cluster, REACHED, "Meter", text).await,
            Object::Agent(_) | Object::Item(_) => {}
        },
        Action::Reap => {
            for (agent, name) in below(context, &event.key) {
                // Not its own life is short: what would let it go on is a person's to say.
                context.live.out_of_tokens(&agent, None, text.clone());
                context.wake.agent(&name);
            }
        }
    }
}

/// The agents whose calls pass a place: their pods' uids, and their names.
fn below(context: &Context, place: &Key) -> Vec<(String, Name)> {
    let lives = |agent: &Agent| {
        let status = agent.status.as_ref()?;
        let over = status.phase.is_some_and(crate::api::agent::AgentPhase::ended);
        status.pod_ref.as_ref().filter(|_| !over).map(|pod| pod.uid.clone())
    };
    let passes = |agent: &Agent, namespace: &str| {
        let pool = context.stores.pool(namespace, &agent.spec.pool_ref.name);
        let named = pool.as_ref().and_then(|pool| pool.0.as_ref().ok()).and_then(|pool| pool.spec.budget_ref.as_ref());
        let name = named.map_or("default", |budget| budget.name.as_str());
        let exists = context.stores.budget(namespace, name).is_some();
        let above = context.meter.above(namespace, named.map(|budget| budget.name.as_str()), exists);
        above.is_some_and(|above| context.meter.chain(above.top.as_ref()).contains(place))
    };
    let mut all = Vec::new();
    for agent in context.stores.agents.state() {
        let Ok(agent) = &agent.0 else { continue };
        let name = Name::of(agent);
        if let Some(pod) = lives(agent).filter(|_| passes(agent, &name.namespace)) {
            all.push((pod, name));
        }
    }
    all
}
