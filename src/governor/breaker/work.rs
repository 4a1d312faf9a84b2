//! The guards of work: a pool whose attempts run out of time gets no items and creates no agents for a while, and
//! neither do all pools of a namespace whose attempts together fail.
//!
//! A claim asks for a permit, and the end of the attempt gives it back. Permits are only in memory: of an attempt under
//! an earlier leader only a failure counts. Waiting agents must not be signalled again and again for items that they
//! cannot get.

use std::collections::{HashMap, HashSet};

use super::{CircuitStanding, PoolCircuits};
use crate::api::WorkItem;
use crate::api::conditions::reasons;
use crate::cluster::ObjectKey;
use crate::controller::Context;
use crate::policy::breaker::work::{AttemptResult, outcome};
use crate::policy::breaker::{Guard, Outcome, Rejection, RejectionCause, State};
use crate::policy::work::entry::Entry;
use crate::policy::work::item::Record;

/// Records the end of an attempt, which is stored: `entry` is the item before, `record` and `stored` after.
pub fn record_attempt_end(context: &Context, namespace: &str, entry: &Entry, record: &Record, stored: &WorkItem) {
    let Some(holder) = &entry.record.holder else { return };
    let Some(last) = record.history.last().filter(|last| last.epoch == entry.record.epoch) else { return };
    let status = stored.status.as_ref();
    let share = status.and_then(|status| status.tokens.as_ref()).and_then(|tokens| tokens.share.as_ref());
    let share = share.filter(|share| share.epoch == entry.record.epoch);
    let told = status.and_then(|status| status.progress.as_ref()).and_then(|progress| progress.update_time.as_ref());
    let ended = AttemptResult {
        verb: last.verb,
        tokens_spent: share
            .is_some_and(|share| share.limit.is_some_and(|limit| share.used.saturating_add(share.lost.unwrap_or(0)) >= limit)),
        progressed: told.is_some_and(|told| told.0.as_millisecond() >= last.start.0),
    };
    let outcome = outcome(ended);
    let item = stored.metadata.name.as_deref().unwrap_or_default();
    let reason = last.reason.as_deref().unwrap_or(last.verb.name());
    let reason = if ended.tokens_spent { "BudgetExceeded" } else { reason };
    let why = format!("{reason}: WorkItem/{item}, held by Agent/{}", holder.agent);
    match context.attempts.ended(&entry.uid, entry.record.epoch) {
        Some((pool, permits)) => context.circuits.complete_work(&pool, &permits, outcome, &why),
        None => {
            let agent = context.stores.agent(&ObjectKey { namespace: namespace.to_owned(), name: holder.agent.clone() });
            let pool = agent.as_ref().and_then(|agent| agent.0.as_ref().ok()).map(|agent| agent.spec.pool_ref.name.clone());
            if let (Some(pool), Outcome::Failure { .. }) = (pool, outcome) {
                failed(context, &ObjectKey { namespace: namespace.to_owned(), name: pool }, &why);
            }
        }
    }
}

/// Records a failure of a pool's work without a permit, such as repeated timeouts of an agent.
pub fn failed(context: &Context, pool: &ObjectKey, why: &str) {
    context.circuits.failed_work(pool, why);
}

/// The state of the circuits of a pool's work. `None` if it is not known yet.
pub fn standing(context: &Context, pool: &ObjectKey) -> Option<PoolCircuits> {
    context.circuits.pool_circuits(pool)
}

/// Why a pool gets no work and creates no agents, if so: a reason, and a message for each circuit that refuses, its own
/// first. A half-open circuit blocks nothing.
pub fn blocked_reason(standing: &PoolCircuits, pool: &ObjectKey) -> Option<(&'static str, String)> {
    let PoolCircuits { own, project } = standing;
    let all = [Some(own), project.as_ref()].into_iter().flatten();
    let words: Vec<String> = all.filter_map(|circuit| words(circuit, circuit.refuses?, pool)).collect();
    (!words.is_empty()).then(|| (reasons::BREAKER_OPEN, words.join(". And: ")))
}

fn words(standing: &CircuitStanding, rejection: Rejection, pool: &ObjectKey) -> Option<String> {
    let breaker = standing.breaker.as_deref();
    let of_project = rejection.guard == Guard::Project;
    let without = if of_project { "no Breaker without spec.pools: the defaults apply" } else { "no Breaker: the defaults apply" };
    let by = breaker.map_or_else(|| without.to_owned(), |name| format!("Breaker/{name}"));
    let name = rejection.name(if of_project { &pool.namespace } else { &pool.name });
    let last = standing.last_failure.as_ref().map_or_else(String::new, |last| format!("; the last failure: {last}"));
    let then = match rejection.cause {
        RejectionCause::Probing => return None,
        RejectionCause::Forced => {
            let undo = breaker
                .map_or_else(String::new, |breaker| format!(": kubectl spillway breaker auto {breaker} -n {} ends that", pool.namespace));
            format!("a person forced it open (spec.force: Open){undo}")
        }
        RejectionCause::Open | RejectionCause::Review if standing.review => {
            let approve =
                breaker.map_or_else(String::new, |breaker| format!(": kubectl spillway breaker approve {breaker} -n {}", pool.namespace));
            format!("a person must approve the next try{approve}{last}")
        }
        RejectionCause::Open | RejectionCause::Review => {
            let until = standing.until.map_or_else(String::new, |until| format!(" at {until}"));
            format!("it is tried again{until}{last}")
        }
    };
    Some(format!("{name} ({by}); {then}"))
}

/// The parts of a circuit's state that its message depends on.
type WorkCircuitState = (State, u64, bool, bool);

/// The state of each pool's circuits at the last check: its own, and that of its project if it applies.
pub type KnownCircuits = HashMap<ObjectKey, (WorkCircuitState, Option<WorkCircuitState>)>;

/// Checks all pools: wakes those whose state has changed, and stops assigning items to those whose circuit refuses.
pub fn look(context: &Context, known: &mut KnownCircuits) {
    let mut stopped: HashMap<String, HashSet<String>> = HashMap::new();
    let mut now = KnownCircuits::new();
    for stored in context.stores.pools.state() {
        let Ok(pool) = &stored.0 else { continue };
        let name = ObjectKey::of(pool);
        let Some(standing) = standing(context, &name) else { return };
        let of = |one: &CircuitStanding| (one.state, one.epoch, one.refuses.is_some(), one.review);
        let stands = (of(&standing.own), standing.project.as_ref().map(of));
        // Also at the first check: a previous leader may have written another state.
        if known.get(&name) != Some(&stands) {
            context.wake.pool(&name.namespace, &name.name);
        }
        if standing.refuses() {
            stopped.entry(name.namespace.clone()).or_default().insert(name.name.clone());
        }
        now.insert(name, stands);
    }
    *known = now;
    for namespace in context.work_index.namespaces() {
        let pools = stopped.remove(&namespace).unwrap_or_default();
        if context.work_index.with(&namespace, |work| work.stop(pools)) {
            context.work_index.mark_due(&namespace, ""); // no item: each check signals the waiting agents
        }
    }
}

/// Gives back the permits of attempts that ended without a report, for example because the item was deleted.
pub fn tidy(context: &Context) {
    let leases = context.work_index.leases();
    for (pool, permits) in context.attempts.take_abandoned(|lease| leases.contains(lease)) {
        context.circuits.complete_work(&pool, &permits, Outcome::Neutral, "");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(guard: Guard, why: Option<RejectionCause>, review: bool) -> CircuitStanding {
        let (what, breaker) = if guard == Guard::Project { ("work", "default") } else { ("work/drones", "strict") };
        CircuitStanding {
            what: what.into(),
            breaker: Some(breaker.into()),
            state: State::Open,
            refuses: why.map(|why| Rejection { guard, cause: why, retry_after: 1000 }),
            epoch: 3,
            opens: 1,
            until: jiff::Timestamp::from_second(1_767_225_725).ok(),
            last_failure: Some("ItemStalled: WorkItem/i, held by Agent/a".into()),
            review,
            probes: Some(1),
        }
    }

    fn said(own: Option<RejectionCause>, project: Option<RejectionCause>, review: bool) -> Option<String> {
        let pool = ObjectKey { namespace: "team".into(), name: "drones".into() };
        let (own, project) = (standing(Guard::Work, own, review), standing(Guard::Project, project, review));
        blocked_reason(&PoolCircuits { own, project: Some(project) }, &pool).map(|(_, words)| words)
    }

    #[test]
    fn who_is_stopped_is_told_by_which_breaker_and_what_ends_it() {
        let words = |why, review| said(Some(why), None, review);
        let open = words(RejectionCause::Open, false).expect("it is in the way");
        assert!(
            open.contains("work circuit breaker open for drones (Breaker/strict); it is tried again at 2026-01-01T00:02:05Z"),
            "{open}"
        );
        assert!(open.contains("ItemStalled"), "{open}");
        let review = words(RejectionCause::Open, true);
        assert!(review.as_ref().is_some_and(|words| words.contains("breaker approve strict")), "{review:?}");
        assert_eq!(review, words(RejectionCause::Review, true), "that time passes changes no word");
        assert!(words(RejectionCause::Forced, false).is_some_and(|words| words.contains("breaker auto strict")));
        assert_eq!(words(RejectionCause::Probing, false), None, "it is being tried");
        assert_eq!(said(None, None, false), None);
    }

    #[test]
    fn it_is_said_which_of_the_two_circuits_binds() {
        let project = said(None, Some(RejectionCause::Open), false).expect("it is in the way");
        let name = "work circuit breaker open for all pools of namespace team (Breaker/default); it is tried again at";
        assert!(project.starts_with(name), "{project}");
        let both = said(Some(RejectionCause::Open), Some(RejectionCause::Forced), false).expect("it is in the way");
        let (first, second) = both.split_once(". And: ").expect("both are told");
        assert!(first.starts_with("work circuit breaker open for drones (Breaker/strict)"), "its own first: {both}");
        assert!(second.contains("namespace team (Breaker/default)") && second.contains("breaker auto default"), "{both}");
        assert!(
            said(Some(RejectionCause::Probing), Some(RejectionCause::Open), false).is_some_and(|words| words.contains("namespace team"))
        );
    }
}
