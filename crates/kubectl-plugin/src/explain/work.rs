//! Reads the objects related to an item or a queue, and explains the pools that work from a queue. The explanations are pure.
//! Their rules are the governor's own: an [`ItemIndex`] is built from the objects that were read.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::ResourceExt as _;

use super::events;
use super::facts::{Facts, Subject, Work};
use super::report::Hint;
use crate::api::agent::AgentPhase;
use crate::api::agent_pool::PoolMode;
use crate::api::conditions::types;
use crate::api::{Agent, AgentPool, AgentPoolStatus};
use crate::connect::Cluster;
use crate::error::Error;
use crate::find;
use crate::input;
use crate::ls;
use crate::policy::work::UnixMillis;
use crate::policy::work::item_index::ItemIndex;
use crate::table::age;
use crate::work as reads;
use spillway_conversion::work as convert;

/// A cause of a state, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The cause, as a sentence.
    pub words: String,
    /// What to do, or why no action is needed; none if that is obvious.
    pub hint: Option<Hint>,
}

impl Cause {
    /// A cause that needs no advice.
    pub fn without_advice(words: impl Into<String>) -> Self {
        Self { words: words.into(), hint: None }
    }

    /// A cause with an action for a person.
    pub fn with_action(words: impl Into<String>, reason: &str, advice: impl Into<String>) -> Self {
        Self { words: words.into(), hint: Some(Hint { reason: reason.to_owned(), advice: advice.into(), act: true }) }
    }

    /// A cause with the reason why no action is needed.
    pub fn without_action(words: impl Into<String>, reason: &str, advice: impl Into<String>) -> Self {
        Self { words: words.into(), hint: Some(Hint { reason: reason.to_owned(), advice: advice.into(), act: false }) }
    }
}

/// Reads the objects related to an item or a queue. Only the item or queue itself must be readable.
pub async fn read(cluster: &Cluster, named: &input::Work, facts: &mut Facts) -> Result<(), Error> {
    let subject = match named {
        input::Work::Item(name) => Subject::Item(Box::new(reads::item(cluster, name).await?)),
        input::Work::Queue(name) => Subject::Queue(Box::new(reads::queue(cluster, name).await?)),
    };
    let items = objects_or_note(reads::items(cluster, None).await, facts);
    let queues = objects_or_note(reads::queues(cluster).await, facts);
    let pools = objects_or_note(reads::all::<AgentPool>(cluster, false, None, |_| ()).await, facts);
    let agents = match ls::run(cluster, &ls::Arguments::default()).await {
        Ok(found) => Some(found.agents),
        Err(error) => {
            facts.unread.push(error.to_string());
            None
        }
    };
    let uid = match &subject {
        Subject::Item(item) => item.uid(),
        Subject::Queue(queue) => queue.uid(),
    };
    facts.work = Some(Box::new(Work { subject, items, queues, pools, agents, now: Timestamp::now() }));
    events::read(cluster, vec![uid], facts).await;
    Ok(())
}

fn objects_or_note<K>(found: Result<reads::ListedObjects<K>, Error>, facts: &mut Facts) -> Option<Vec<K>> {
    match found {
        Ok(found) => {
            facts.unread.extend(found.unreadable);
            Some(found.objects)
        }
        Err(error) => {
            facts.unread.push(error.to_string());
            None
        }
    }
}

/// A time in the unit of the policy crate.
pub fn unix_millis(time: Timestamp) -> UnixMillis {
    UnixMillis(time.as_millisecond())
}

/// The index of the objects that were read, as the governor would build it.
pub fn build_item_index(work: &Work) -> ItemIndex {
    let mut book = ItemIndex::default();
    for queue in work.queues.iter().flatten() {
        book.set_queue(&queue.name_any(), Some(convert::queue(queue)));
        book.set_cancelled(&queue.name_any(), convert::cancelled_groups(queue));
    }
    for item in work.items.iter().flatten() {
        book.put(&item.name_any(), convert::entry(item), unix_millis(work.now));
    }
    match &work.subject {
        Subject::Item(item) => book.put(&item.name_any(), convert::entry(item), unix_millis(work.now)),
        Subject::Queue(queue) => {
            book.set_queue(&queue.name_any(), Some(convert::queue(queue)));
        }
    }
    book
}

/// A time, and its distance from `now`.
pub fn time_with_distance(time: Timestamp, now: Timestamp) -> String {
    let rounded = time.strftime("%Y-%m-%dT%H:%M:%SZ");
    if time > now { format!("{rounded}, in {}", age(Some(now), time)) } else { format!("{rounded}, {} ago", age(Some(time), now)) }
}

/// The pools that work from a queue, with the types that each takes from it (empty: all types).
pub fn pools_of<'a>(pools: &'a [AgentPool], queue: &str) -> Vec<(&'a AgentPool, Vec<String>)> {
    let works = |pool: &'a AgentPool| {
        let named = pool.spec.queues.iter().flatten().find(|named| named.name == queue)?;
        Some((pool, named.types.clone().unwrap_or_default()))
    };
    pools.iter().filter_map(works).collect()
}

/// Whether a pool can take items now, and what to do if not. `agents` are those of the namespace that have not ended, if they
/// are known.
pub fn pool_cause(pool: &AgentPool, agents: Option<&[Agent]>) -> Cause {
    let (name, namespace) = (pool.name_any(), pool.namespace().unwrap_or_default());
    let (spec, status) = (&pool.spec, pool.status.clone().unwrap_or_default());
    if spec.mode == PoolMode::Chat {
        return Cause::without_advice(format!("pool {name} is for chats with people and takes no work (spec.mode)"));
    }
    let scale = |flags: &str| format!("`kubectl spillway scale {name} {flags} -n {namespace}`");
    if spec.fixed_replicas() == Some(0) {
        return Cause::with_action(
            format!("pool {name} runs no agents: spec.replicas is 0"),
            "ReplicasSet",
            format!("{} enables automatic scaling", scale("--auto")),
        );
    }
    if spec.fixed_replicas().is_none() && spec.max() == 0 {
        return Cause::with_action(
            format!("pool {name} is drained: spec.scaling.max is 0"),
            "Drained",
            format!("{} allows agents again", scale("--max N")),
        );
    }
    let hindered =
        status.conditions.iter().find(|one| [types::STALLED, types::BLOCKED].contains(&one.type_.as_str()) && one.status == "True");
    if let Some(hindered) = hindered {
        let mend = format!("`kubectl spillway explain pool/{name} -n {namespace}` shows what blocks it");
        return Cause::with_action(format!("pool {name} is blocked: {}", find::reason_and_message(hindered)), &hindered.reason, mend);
    }
    let Some(agents) = agents else {
        let (desired, there) = (status.desired.unwrap_or(0), status.agents.unwrap_or(0));
        return Cause::without_advice(format!("pool {name} wants {desired} agents and has {there}, according to its last status"));
    };
    let own: Vec<&Agent> = agents.iter().filter(|agent| agent.spec.pool_ref.name == name).collect();
    if own.is_empty() {
        return no_agents_cause(&name, &status, &scale("--replicas N"));
    }
    let idle = own.iter().any(|agent| find::phase(agent) == Some(AgentPhase::Idle) && find::ready(agent));
    let words = format!("pool {name} has {}", phases(&own));
    let most = spec.fixed_replicas().unwrap_or_else(|| spec.max());
    if !idle && own.len() >= usize::try_from(most).unwrap_or(usize::MAX) {
        let more = scale(if spec.replicas.is_some() { "--replicas N" } else { "--max N" });
        let advice = format!("work continues when an agent is done; {more} allows more agents");
        return Cause::without_action(format!("{words}, and {most} is its maximum"), "MaxReached", advice);
    }
    Cause::without_advice(words)
}

/// Explains a pool that has no agents. `fixed` is the command that runs a fixed number of agents.
fn no_agents_cause(name: &str, status: &AgentPoolStatus, fixed: &str) -> Cause {
    let why = status.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    match status.desired {
        None => Cause::with_action(
            format!("the operator has not observed pool {name} yet"),
            "NotObserved",
            "check that the operator runs: `kubectl get pods -A -l app.kubernetes.io/name=spillway`",
        ),
        Some(0) => {
            let advice = format!("a pool that follows its queues creates agents when there is work for them; {fixed} runs a fixed number");
            Cause::without_action(format!("pool {name} wants no agents now{why}"), "NoAgents", advice)
        }
        Some(desired) => Cause::without_advice(format!("pool {name} wants {desired} agents and has none yet{why}")),
    }
}

/// How many agents are in each phase, as text.
fn phases(agents: &[&Agent]) -> String {
    let mut counts = BTreeMap::<&str, usize>::new();
    for agent in agents {
        *counts.entry(find::phase(agent).map_or("new", AgentPhase::name)).or_default() += 1;
    }
    let parts: Vec<String> = counts.into_iter().map(|(phase, count)| format!("{count} {phase}")).collect();
    format!("{} agent{} ({})", agents.len(), if agents.len() == 1 { "" } else { "s" }, parts.join(", "))
}
