//! Gangs: sees of which groups too many members fail together, and raises that for the agents that work on them. Whether it is
//! so is `policy::gang`'s to say, and what is done about it each agent's supervisor's: its pool may have a rule for it.

use std::collections::HashMap;
use std::time::Duration;

use super::desk::now;
use crate::api::agent::AgentPhase;
use crate::api::agent_pool::Gang;
use crate::controller::{AgentObject, Context, Key};
use crate::policy::gang::{self, Divergence, Limits};
use crate::policy::hub::Signal;
use crate::policy::work::item::At;

/// When which gang was last found to diverge, by namespace, pool and group: until that is recorded with its items it must not
/// be found again.
pub type Known = HashMap<(String, String, String), At>;

fn limits(gang: &Gang) -> Limits {
    let number = |value: i32| u32::try_from(value).unwrap_or(u32::MAX);
    let Gang { failed_percent, min_failed, window_seconds } = gang;
    let window = Duration::from_secs(number(*window_seconds).into());
    Limits { percent: number(*failed_percent), failed: number(*min_failed), window }
}

/// Looks at the groups that the agents of each pool work on that asks for it.
pub fn look(known: &mut Known, context: &Context) {
    for stored in context.stores.pools.state() {
        let Ok(pool) = &stored.0 else { continue };
        let Some(gang) = pool.spec.supervision.as_ref().and_then(|supervision| supervision.gang.as_ref()) else { continue };
        let Key { namespace, name } = &Key::of(pool);
        let agents = context.stores.agents_of(namespace, name);
        let ours: HashMap<String, Option<String>> =
            agents.iter().filter_map(|agent| Some((Key::of(agent.as_ref()).name, living(agent)?))).collect();
        let limits = limits(gang);
        let found: Vec<(String, Divergence)> = context.desk.with(namespace, |room| {
            let groups = room.book.groups();
            let of = |group: &str| known.get(&(namespace.clone(), name.clone(), group.to_owned())).copied();
            let look = |(group, records)| {
                Some((String::clone(group), gang::look(records, |agent| ours.contains_key(agent), limits, of(group), now())?))
            };
            groups.filter_map(look).collect()
        });
        for (group, divergence) in found {
            known.insert((namespace.clone(), name.clone(), group.clone()), now());
            raise(namespace, &group, gang, &divergence, &ours, context);
        }
    }
    // What was found longer ago than any window may be forgotten.
    known.retain(|_, at| now().since(*at) < Duration::from_secs(86_400));
}

/// The pod of an agent, if it lives; of one that ended, none. Nothing of one that does not fit its type.
fn living(agent: &AgentObject) -> Option<Option<String>> {
    let agent = agent.0.as_ref().ok()?;
    let status = agent.status.as_ref();
    let ended =
        status.and_then(|status| status.phase).is_some_and(AgentPhase::ended) || status.is_some_and(crate::controller::agent::condemned);
    Some(status.filter(|_| !ended).and_then(|status| status.pod_ref.as_ref()).map(|pod| pod.uid.clone()))
}

fn raise(namespace: &str, group: &str, gang: &Gang, found: &Divergence, ours: &HashMap<String, Option<String>>, context: &Context) {
    let Divergence { failed, of, agents } = found;
    let words = format!("{failed} of the {of} that work on group {group} failed within {} s (supervision.gang)", gang.window_seconds);
    tracing::info!(namespace, group, failed, of, "a gang diverges");
    for agent in agents {
        let Some(pod) = ours.get(agent).and_then(Option::as_ref) else { continue };
        // One that failed and works on something else by now is not of the gang any more.
        let elsewhere = context.desk.with(namespace, |room| {
            let held = room.book.held_by(pod).map(|(_, entry)| entry.spec.group.clone());
            held.is_some_and(|of| of.as_deref() != Some(group))
        });
        if !elsewhere && context.live.view(pod).is_some() {
            context.live.raised(pod, Signal::GangDivergence, Some(words.clone()));
            context.wake.agent(&Key { namespace: namespace.to_owned(), name: agent.clone() });
        }
    }
}
