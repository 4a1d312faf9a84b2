//! Effects of thresholds that were reached, and of budgets whose conditions changed: log lines, events, signals.
//!
//! A threshold is reported once, after it is durable. If the leader is lost in between, it is not reported.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::conditions::BudgetNews;
use super::object::Object;
use super::record_writes::WriteEffects;
use crate::api::{Agent, Budget, ClusterBudget};
use crate::cluster::ObjectKey;
use crate::controller::Context;
use crate::policy::budget::node::{Action, Threshold};
use crate::policy::budget::{Event, Key};
use crate::policy::interventions::Signal;

/// Reason of the event.
const THRESHOLD_EVENT_REASON: &str = "ThresholdReached";

/// Reports effects. Never returns.
pub async fn run(context: Arc<Context>, mut done: mpsc::UnboundedReceiver<WriteEffects>) {
    while let Some(WriteEffects { events, news, object }) = done.recv().await {
        for one in news {
            tell(&context, &object, &one).await;
        }
        for event in events {
            act(&context, &object, &event).await;
        }
    }
}

async fn tell(context: &Context, object: &Object, BudgetNews { warning, reason, note }: &BudgetNews) {
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

/// The message of the event, in one sentence.
fn words(event: &Event) -> String {
    let Event { key, limit, span, threshold: Threshold { percent, .. }, height } = event;
    format!("{key}: {percent} % of the limit {limit} of {height} tokens are used or held ({span})")
}

async fn act(context: &Context, object: &Object, event: &Event) {
    let text = words(event);
    tracing::info!(budget = %event.key, limit = event.limit, percent = event.threshold.percent, action = ?event.threshold.action, "a threshold of a budget is reached");
    match event.threshold.action {
        Action::Log => {}
        // The conditions of the budget show the pause.
        Action::Pause => {}
        Action::Warn => {
            for (agent, name) in below(context, &event.key) {
                // The supervisor of each agent decides what to do. By default the agent gets a notice.
                context.live.raise(&agent, Signal::BudgetNearLimit, Some(text.clone()));
                context.wake.agent(&name);
            }
        }
        Action::Notify => match object {
            Object::Budget(budget) => context.events.alert::<Budget>(budget, THRESHOLD_EVENT_REASON, "Meter", text).await,
            Object::Cluster(cluster) => context.events.alert::<ClusterBudget>(cluster, THRESHOLD_EVENT_REASON, "Meter", text).await,
            Object::Agent(_) | Object::Item(_) => {}
        },
        Action::Reap => {
            for (agent, name) in below(context, &event.key) {
                // The lifetime tokens are not spent, so a person decides when the agent continues.
                context.live.out_of_tokens(&agent, None, text.clone());
                context.wake.agent(&name);
            }
        }
    }
}

/// The agents whose calls count at a place: their caller uids and their names.
fn below(context: &Context, place: &Key) -> Vec<(String, ObjectKey)> {
    let lives = |agent: &Agent| {
        let phase = agent.status.as_ref().and_then(|status| status.phase);
        let over = phase.is_some_and(crate::api::agent::AgentPhase::ended);
        agent.caller_uid().filter(|_| !over).map(str::to_owned)
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
        let name = ObjectKey::of(agent);
        if let Some(pod) = lives(agent).filter(|_| passes(agent, &name.namespace)) {
            all.push((pod, name));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;
    use crate::api::WorkItem;
    use crate::controller::fake::{self, Leader, TEAM};
    use crate::governor::budget::facts::Project;
    use crate::governor::live::Working;
    use crate::policy::budget::Span;
    use crate::wire::work::LeaseRef;

    /// Agents `a` and `b` below the Budget `default`, and `c` below another one; `b` holds an item.
    fn leader() -> (Leader, Object) {
        let budgets = ["default", "rich"].map(|name| fake::object("Budget", name, json!({})));
        let pool = |name: &str, budget: &str| {
            let spec = json!({"type": "worker", "agent": {"image": "x", "command": ["y"]}, "budgetRef": {"name": budget}});
            fake::object("AgentPool", name, spec)
        };
        let agents = [fake::agent("a", "poor"), fake::agent("b", "poor"), fake::agent("c", "rich")].concat();
        let objects = [budgets.to_vec(), vec![pool("poor", "default"), pool("rich", "rich")], agents].concat();
        let leader = Leader::of(&objects);
        let read = |budget: Value| Arc::new(serde_json::from_value::<Budget>(budget).expect("a Budget"));
        let budgets = budgets.map(read);
        let meter = &leader.context.meter;
        meter.read_all(Vec::new());
        meter.set_tree(&[], &budgets, &BTreeMap::from([(TEAM.to_owned(), Project::default())]));
        meter.open();
        for agent in ["a", "b", "c"] {
            leader.context.live.registered(&format!("POD-{agent}"), "g", None);
        }
        let mut item = fake::object("WorkItem", "fix", json!({"queueRef": {"name": "bugs"}}));
        let lease = json!({"holder": "POD-b", "agent": "b", "leaseTransitions": 1, "acquireTime": "2026-01-01T00:00:09.000000Z"});
        item["status"] = json!({"phase": "Leased", "queue": "bugs", "lease": lease});
        leader.context.work_index.observe(&serde_json::from_value::<WorkItem>(item).expect("a WorkItem"));
        // The agent had all its lifetime tokens when it got the item: only the Budget refuses it more.
        let (held, hour) = (LeaseRef { uid: "UID-fix".into(), epoch: 1 }, Duration::from_secs(3600));
        let working = Working { held, lease: hour, stall: hour, attempt: hour, cancelling: false, paused: None, had_all_tokens: true };
        leader.context.live.holds("POD-b", Some(working));
        (leader, Object::Budget(budgets[0].clone()))
    }

    fn reached(action: Action) -> Event {
        let span = Span::parse("2026-01-01").expect("a day");
        let threshold = Threshold { percent: 90, action };
        Event { key: Key::budget(TEAM, "default"), limit: "daily".into(), span, threshold, height: 500 }
    }

    /// The active signals of each agent.
    fn signals(leader: &Leader) -> Vec<Vec<Signal>> {
        let of = |agent: &str| leader.context.live.view(&format!("POD-{agent}")).map(|view| view.occurrences.into_keys().collect());
        ["a", "b", "c"].into_iter().map(|agent| of(agent).unwrap_or_default()).collect()
    }

    #[tokio::test]
    async fn at_a_threshold_notify_people_are_told_and_no_agent_is() {
        let (mut leader, budget) = leader();
        act(&leader.context, &budget, &reached(Action::Notify)).await;
        let told = leader.take_notices();
        let [(reason, kind, words)] = told.as_slice() else { panic!("once: {told:?}") };
        assert_eq!((reason.as_str(), kind.as_str()), ("ThresholdReached", "Budget"));
        assert!(words.contains("90 % of the limit daily of 500 tokens"), "{words}");
        assert_eq!(leader.events(), [("ThresholdReached".to_owned(), "Meter".to_owned())]);
        assert_eq!(signals(&leader), [vec![], vec![], vec![]]);
        for quiet in [Action::Log, Action::Pause, Action::Warn, Action::Reap] {
            act(&leader.context, &budget, &reached(quiet)).await;
            assert_eq!(leader.take_notices(), [], "{quiet:?}");
        }
    }

    #[tokio::test]
    async fn at_a_threshold_warn_the_agents_below_are_told() {
        let (leader, budget) = leader();
        act(&leader.context, &budget, &reached(Action::Warn)).await;
        let near = vec![Signal::BudgetNearLimit];
        assert_eq!(signals(&leader), [near.clone(), near, vec![]]);
    }

    #[tokio::test]
    async fn at_a_threshold_reap_the_agents_below_are_ended_or_kept_for_a_person() {
        let (leader, budget) = leader();
        act(&leader.context, &budget, &reached(Action::Reap)).await;
        let over = vec![Signal::TokenBudgetExceeded];
        assert_eq!(signals(&leader), [over.clone(), over, vec![]]);
        let condition = |agent: &str, type_: &str| {
            let conditions = leader.status("Agent", agent)["conditions"].as_array().cloned().unwrap_or_default();
            let found = conditions.into_iter().find(|one| one["type"] == type_ && one["status"] == "True");
            found.map(|found| found["reason"].as_str().unwrap_or_default().to_owned())
        };
        for agent in ["a", "b", "c"] {
            leader.reconcile_agent(agent).await;
        }
        let of = |agent| (condition(agent, "Paused"), condition(agent, "GivenUp"));
        assert_eq!(of("a"), (Some("TokenBudgetExceeded".to_owned()), None), "it holds nothing: a person says what becomes of it");
        assert_eq!(of("b"), (None, Some("TokensSpent".to_owned())), "it got nowhere with its item");
        assert_eq!(of("c"), (None, None));
    }
}
