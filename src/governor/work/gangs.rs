//! Gangs: finds groups of which too many members fail together, and raises a signal for the agents that work on them.
//! `policy::gang` decides whether a group diverges. The supervisor of each agent decides what to do, by the rules of
//! its pool.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::namespace_work::now;
use crate::api::agent::AgentPhase;
use crate::api::agent_pool::Gang;
use crate::cluster::ObjectKey;
use crate::controller::{AgentObject, Context};
use crate::policy::gang::{self, Divergence, Limits};
use crate::policy::interventions::Signal;
use crate::policy::work::item::UnixMillis;

/// The last restart of each gang, by namespace, pool and group. A divergence must not be found again before it is
/// recorded with the items of the gang.
pub type KnownGangs = HashMap<(String, String, String), Restart>;

/// A restart of a gang.
pub struct Restart {
    at: UnixMillis,
    words: String,
    /// Agents and their pods that have not been signalled yet. A new leader has not had a report from all of them.
    left: Vec<(String, String)>,
}

fn limits(gang: &Gang) -> Limits {
    let number = |value: i32| u32::try_from(value).unwrap_or(u32::MAX);
    let Gang { failed_percent, min_failed, window_seconds } = gang;
    let window = Duration::from_secs(number(*window_seconds).into());
    Limits { percent: number(*failed_percent), failed: number(*min_failed), window }
}

/// Checks the groups of all pools that set `supervision.gang`.
pub fn look(known: &mut KnownGangs, context: &Context) {
    for stored in context.stores.pools.state() {
        let Ok(pool) = &stored.0 else { continue };
        let Some(gang) = pool.spec.supervision.as_ref().and_then(|supervision| supervision.gang.as_ref()) else { continue };
        let ObjectKey { namespace, name } = &ObjectKey::of(pool);
        let agents = context.stores.agents_of(namespace, name);
        let ours: HashMap<String, Option<String>> =
            agents.iter().filter_map(|agent| Some((ObjectKey::of(agent.as_ref()).name, living(agent)?))).collect();
        let limits = limits(gang);
        let at = |group: &String| (namespace.clone(), name.clone(), group.clone());
        let is_ours = |agent: &str| ours.contains_key(agent);
        let found: Vec<(String, String, BTreeSet<String>)> = context.work_index.with(namespace, |namespace_work| {
            let groups = namespace_work.index.groups().filter_map(|(group, records)| {
                let known = known.get(&at(group)).map(|restart| restart.at);
                if let Some(Divergence { failed, members: of, agents }) =
                    gang::divergence(records.iter().copied(), is_ours, limits, known, now())
                {
                    let window = gang.window_seconds;
                    tracing::info!(%namespace, group, failed, of, "a gang diverges");
                    let words = format!("{failed} of the {of} members of group {group} failed within {window} s (supervision.gang)");
                    return Some((group.clone(), words, agents));
                }
                let left = known.is_none().then(|| gang::unfinished(records, is_ours)).filter(|left| !left.is_empty())?;
                tracing::info!(%namespace, group, left = left.len(), "the restart of a gang continues");
                Some((group.clone(), format!("group {group} is being restarted (supervision.gang)"), left))
            });
            groups.collect()
        });
        for (group, words, agents) in found {
            let pod = |agent: String| ours.get(&agent)?.clone().map(|pod| (agent, pod));
            known.insert(at(&group), Restart { at: now(), words, left: agents.into_iter().filter_map(pod).collect() });
        }
        for ((_, _, group), restart) in known.iter_mut().filter(|((of, pool, _), _)| (of, pool) == (namespace, name)) {
            let Restart { words, left, .. } = restart;
            left.retain(|(agent, pod)| ours.get(agent).is_some_and(|now| now.as_ref() == Some(pod)));
            left.retain(|(agent, pod)| {
                !raise(&ObjectKey { namespace: namespace.clone(), name: agent.clone() }, pod, group, words, context)
            });
        }
    }
    // Restarts older than any window can be forgotten.
    known.retain(|_, restart| now().since(restart.at) < Duration::from_secs(86_400));
}

/// The pod of an agent: `Some(None)` if the agent has ended, `None` if the object does not fit its type.
fn living(agent: &AgentObject) -> Option<Option<String>> {
    let agent = agent.0.as_ref().ok()?;
    let status = agent.status.as_ref();
    let ended =
        status.and_then(|status| status.phase).is_some_and(AgentPhase::ended) || status.is_some_and(crate::controller::agent::is_given_up);
    Some(agent.caller_uid().filter(|_| !ended).map(str::to_owned))
}

/// Raises the signal for an agent. Returns whether it is done: not before we have had a report from its pod.
fn raise(agent: &ObjectKey, pod: &str, group: &str, words: &str, context: &Context) -> bool {
    // An agent that works on another group by now does not belong to the gang any more.
    let elsewhere = context.work_index.with(&agent.namespace, |namespace_work| {
        let held = namespace_work.index.held_by(pod).map(|(_, entry)| entry.spec.group.clone());
        held.is_some_and(|of| of.as_deref() != Some(group))
    });
    if elsewhere {
        return true;
    }
    if context.live.view(pod).is_none() {
        return false;
    }
    context.live.raise(pod, Signal::GangDivergence, Some(words.to_owned()));
    context.wake.agent(agent);
    true
}
