//! The report on a queue: its items, the pools that work from it, and why agents take no items. Pure.

use kube::ResourceExt as _;

use super::facts::{Facts, Work};
use super::report::{Fact, Hint, Report, condition_report};
use super::work::{Cause, build_item_index, pool_cause, pools_of};
use crate::api::WorkQueue;
use crate::api::conditions::types;
use crate::api::work_queue::QueueCounts;
use crate::find;
use crate::policy::work::item_index::{Counts, ItemIndex};
use crate::table::age;
use crate::work::queue::{counts, settings};

/// The report on a queue.
pub fn report(facts: &Facts, work: &Work, queue: &WorkQueue) -> Report {
    let name = queue.name_any();
    let status = queue.status.clone().unwrap_or_default();
    let book = build_item_index(work);
    let causes = causes(facts, work, queue, &book);
    let ready = find::condition(&status.conditions, types::READY);
    let state = match (&status.counts, ready) {
        (None, _) => "the operator has not observed it yet: check that the operator runs".to_owned(),
        (Some(all), None) => counts(all),
        (Some(all), Some(ready)) => format!("{}. {} is {}, {}", counts(all), ready.type_, ready.status, find::reason_and_message(ready)),
    };
    let fact = |name, value: String| Fact { name, time: None, value };
    let mut known: Vec<Fact> = settings(queue).into_iter().map(|(name, value)| fact(name, value)).collect();
    let oldest = [("Oldest ready", &status.oldest_ready_time), ("Oldest dead", &status.oldest_dead_letter_time)];
    known.extend(oldest.iter().filter_map(|(name, since)| Some(fact(name, format!("for {}", age(Some(since.as_ref()?.0), work.now))))));
    let works: Vec<String> = pools_of(work.pools.as_deref().unwrap_or_default(), &name)
        .into_iter()
        .map(|(pool, types)| pool_words(&pool.name_any(), &types))
        .collect();
    if !works.is_empty() {
        known.push(fact("Pools", works.join(", ")));
    }
    Report {
        kind: "WorkQueue".to_owned(),
        name,
        state,
        facts: known,
        conditions: status.conditions.iter().map(condition_report).collect(),
        why: causes.iter().map(|cause| cause.words.clone()).collect(),
        advice: collect_hints(causes),
        ..Report::default()
    }
}

fn pool_words(pool: &str, types: &[String]) -> String {
    if types.is_empty() { pool.to_owned() } else { format!("{pool} (types {})", types.join(", ")) }
}

/// The advice of the causes, each once, actions first.
pub fn collect_hints(causes: Vec<Cause>) -> Vec<Hint> {
    let mut hints: Vec<Hint> = Vec::new();
    for hint in causes.into_iter().filter_map(|cause| cause.hint) {
        if !hints.contains(&hint) {
            hints.push(hint);
        }
    }
    if hints.is_empty() {
        hints.push(Hint { reason: "AsDesired".to_owned(), advice: "no action is needed".to_owned(), act: false });
    }
    hints.sort_by_key(|hint| !hint.act);
    hints
}

/// The causes of its state, the most serious first.
fn causes(facts: &Facts, work: &Work, queue: &WorkQueue, book: &ItemIndex) -> Vec<Cause> {
    let (name, namespace) = (queue.name_any(), &facts.namespace);
    let mut causes = Vec::new();
    if queue.status.is_none() {
        causes.push(Cause::with_action(
            "the operator has not observed the queue yet",
            "NotObserved",
            "check that the operator runs (`kubectl get pods -A -l app.kubernetes.io/name=spillway`) and serves this namespace",
        ));
    }
    let Some(known) = book.queue(&name) else { return causes };
    let counts = if work.items.is_some() { book.counts(&name) } else { stored_counts(queue) };
    let (held, unfinished) = (counts.leased + counts.paused, counts.ready + counts.leased + counts.paused + counts.waiting);
    if known.suspend {
        causes.push(Cause::with_action(
            "the queue is paused (spec.suspend), so agents get no items from it",
            "Suspended",
            format!("`kubectl spillway resume queue/{name} -n {namespace}`"),
        ));
    }
    if unfinished >= known.max_pending {
        causes.push(Cause::with_action(
            format!("the queue accepts no more items: it holds {unfinished} unfinished items, and the limit is {}", known.max_pending),
            "QueueFull",
            "raise spec.limits.maxPending of the queue, or wait until more of its items are done",
        ));
    }
    causes.extend(concurrency_cause(known.max_leased, held));
    causes.extend(pool_causes(work, &name, namespace));
    if counts.dead_lettered > 0 {
        let advice = format!(
            "`kubectl spillway queue {name} --all -n {namespace}` shows why; fix the cause, then `kubectl spillway redrive --queue {name} -n {namespace}` starts them again"
        );
        causes.push(Cause::with_action(
            format!("{} of the queue's items are dead letters: they wait for a person", counts.dead_lettered),
            "DeadLettered",
            advice,
        ));
    }
    if counts.dead_lettered >= known.max_dead_letters {
        causes.push(Cause::with_action(
            format!("the queue has as many dead letters as it keeps ({}): each new one deletes the oldest one", known.max_dead_letters),
            "DeadLettersFull",
            "raise spec.deadLetters.max of the queue, or redrive or delete some dead letters",
        ));
    }
    causes
}

/// The counts of the last status.
fn stored_counts(queue: &WorkQueue) -> Counts {
    let QueueCounts { ready, leased, waiting, paused, finished, dead_lettered } =
        queue.status.as_ref().and_then(|status| status.counts.clone()).unwrap_or_default();
    let [ready, leased, waiting, paused, finished, dead_lettered] = [ready, leased, waiting, paused, finished, dead_lettered]
        .map(|count| count.and_then(|count| u64::try_from(count).ok()).unwrap_or(0));
    Counts { ready, leased, waiting, paused, finished, dead_lettered }
}

/// The cause, if agents hold as many items of the queue as its limit allows.
fn concurrency_cause(max_leased: Option<u64>, held: u64) -> Option<Cause> {
    let most = max_leased.filter(|most| held >= *most)?;
    Some(Cause::without_action(
        format!("agents hold {held} of the queue's items, and no more than {most} are allowed at once"),
        "ConcurrencyLimit",
        "agents get more items when one is done; spec.concurrency.maxLeased of the queue is the limit",
    ))
}

/// Explains the pools that work from a queue, or that no pool does.
pub fn pool_causes(work: &Work, queue: &str, namespace: &str) -> Vec<Cause> {
    let Some(pools) = work.pools.as_deref().map(|pools| pools_of(pools, queue)) else { return Vec::new() };
    if pools.is_empty() {
        return vec![Cause::with_action(
            format!("no pool of namespace {namespace} works from queue {queue}"),
            "NoPool",
            format!(
                "name the queue in spec.queues of an AgentPool: `kubectl edit agentpool POOL -n {namespace}`, queues: [{{name: {queue}}}]"
            ),
        )];
    }
    pools.into_iter().map(|(one, _)| pool_cause(one, work.agents.as_deref())).collect()
}
