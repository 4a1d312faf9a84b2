//! The controller of Toolsets: keeps a Deployment with a bridge, its Service, its NetworkPolicy and its ServiceAccount for each Toolset,
//! and says in the status what the bridge serves.
//!
//! The cache holds only the metadata of Toolsets, whose specs may be large. A Toolset is read when it is looked at: when its spec
//! changed, and every [`LOOK_INTERVAL`], which also repairs what others changed. A deleted Toolset is left to the garbage collector, which
//! deletes what it owns. If the definitions are wrong, the objects stay as they are, and the last valid ones serve on.
//!
//! | file | for | must not |
//! |---|---|---|
//! | this one | when each Toolset is looked at | read or write one |
//! | [`look`] | one look: read, apply, ask, write the status | decide |
//! | [`build`] | the objects | |
//! | [`apply`] | keeping one object as desired | take over an object of another owner |
//! | [`egress`] | rules of the NetworkPolicy | look up a name |
//! | [`lookups`] | looking up names | |
//! | [`config_maps`] | reading ConfigMaps, and remembering their judgement | keep their content |
//! | [`definitions`] | judging ConfigMaps and definitions | |
//! | [`upstream`] | judging the MCP server that a Toolset fronts | |
//! | [`rollout`] | the state of the pod | |
//! | [`status`] | the conditions and the events | |

mod apply;
mod build;
mod config_maps;
mod definitions;
mod egress;
mod look;
mod lookups;
mod rollout;
mod status;
mod upstream;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource as _;
use tokio::task::JoinSet;

use super::context::{Context, jittered};
use crate::cluster::clock::BootTime;
use crate::cluster::{Error, ObjectKey};
use look::{CONTROLLER_NAME, LookMemory, LookResult, look};
use lookups::Lookups;

/// Interval of the looks at a Toolset that is served as desired.
const LOOK_INTERVAL: Duration = Duration::from_secs(30);
/// Interval of the looks at any other Toolset.
const NOT_READY_INTERVAL: Duration = Duration::from_secs(10);
/// Interval of the checks which Toolsets are due. They read the cache only.
const SCHEDULE_INTERVAL: Duration = Duration::from_secs(1);
/// Looks at once.
const MAX_CONCURRENT_LOOKS: usize = 8;
/// Looks at Toolsets of one namespace at once, so that a namespace with slow looks does not delay those of all others.
const MAX_LOOKS_OF_NAMESPACE: usize = MAX_CONCURRENT_LOOKS / 2;
/// How long a look may take. Each of its calls has its own time limit, so this one is rarely reached.
const LOOK_TIMEOUT: Duration = Duration::from_secs(120);

/// When a Toolset is looked at.
#[derive(Debug)]
struct LookSchedule {
    /// Uid, generation and whether it is being deleted, when the last look began.
    version: ToolsetVersion,
    next: BootTime,
    /// What the last look remembered. `None` while a look is under way.
    memory: Option<LookMemory>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ToolsetVersion {
    uid: Option<String>,
    generation: Option<i64>,
    deleting: bool,
}

impl ToolsetVersion {
    fn of(metadata: &ObjectMeta) -> Self {
        Self { uid: metadata.uid.clone(), generation: metadata.generation, deleting: metadata.deletion_timestamp.is_some() }
    }
}

/// The schedules of all Toolsets.
#[derive(Debug, Default)]
struct LookSchedules {
    toolsets: HashMap<ObjectKey, LookSchedule>,
    /// Looks that are under way, by namespace. Also those at Toolsets that are gone meanwhile.
    looking: HashMap<String, usize>,
}

impl LookSchedules {
    /// The Toolsets to look at now, at most `room`, with what is remembered of them. Those of the namespace with the fewest looks under
    /// way are first, and of these the one that waited longest. Forgets those that do not exist, and returns them.
    fn take_due(&mut self, stored: &[ObjectMeta], room: usize, now: BootTime) -> (Vec<(ObjectKey, LookMemory)>, Vec<ObjectKey>) {
        let versions: HashMap<ObjectKey, ToolsetVersion> =
            stored.iter().map(|metadata| (key_of(metadata), ToolsetVersion::of(metadata))).collect();
        let gone: Vec<ObjectKey> = self.toolsets.keys().filter(|key| !versions.contains_key(key)).cloned().collect();
        self.toolsets.retain(|key, _| versions.contains_key(key));
        for (key, version) in versions {
            let known = self.toolsets.entry(key).or_insert_with(|| LookSchedule {
                version: version.clone(),
                next: now,
                memory: Some(LookMemory::default()),
            });
            if known.version != version {
                known.next = known.next.min(now);
                known.version = version;
            }
        }
        let due = self.toolsets.iter().filter(|(_, known)| known.memory.is_some() && known.next <= now);
        let mut due: Vec<(BootTime, ObjectKey)> = due.map(|(key, known)| (known.next, key.clone())).collect();
        due.sort_by(|one, other| (one.0, &one.1.namespace, &one.1.name).cmp(&(other.0, &other.1.namespace, &other.1.name)));
        let mut taken = Vec::new();
        while taken.len() < room
            && let Some(key) = self.take_fair(&mut due)
        {
            let Some(known) = self.toolsets.get_mut(&key) else { continue };
            let Some(memory) = known.memory.take() else { continue };
            // A change during the look makes the Toolset due again.
            known.next = now.after(LOOK_TIMEOUT + LOOK_INTERVAL);
            *self.looking.entry(key.namespace.clone()).or_default() += 1;
            taken.push((key, memory));
        }
        (taken, gone)
    }

    /// Takes the next one out of `due`, which is sorted by time. `None`: all due Toolsets are in namespaces with the most looks.
    fn take_fair(&self, due: &mut Vec<(BootTime, ObjectKey)>) -> Option<ObjectKey> {
        let looking = |key: &ObjectKey| self.looking.get(&key.namespace).copied().unwrap_or(0);
        let allowed = due.iter().enumerate().filter(|(_, (_, key))| looking(key) < MAX_LOOKS_OF_NAMESPACE);
        // The first one of those with the fewest looks.
        let (place, _) = allowed.min_by_key(|(_, (_, key))| looking(key))?;
        Some(due.remove(place).1)
    }

    /// A look ended: the next one is in `wait`, or earlier if the Toolset changed meanwhile.
    fn ended(&mut self, key: &ObjectKey, memory: LookMemory, wait: Duration, now: BootTime) {
        if let Some(looking) = self.looking.get_mut(&key.namespace) {
            *looking = looking.saturating_sub(1);
        }
        self.looking.retain(|_, looking| *looking > 0);
        if let Some(known) = self.toolsets.get_mut(key) {
            known.next = known.next.min(now.after(wait));
            known.memory = Some(memory);
        }
    }
}

fn key_of(metadata: &ObjectMeta) -> ObjectKey {
    ObjectKey { namespace: metadata.namespace.clone().unwrap_or_default(), name: metadata.name.clone().unwrap_or_default() }
}

/// Looks at each Toolset while we lead. Returns only with an error.
pub async fn run(context: Arc<Context>) -> anyhow::Result<()> {
    let mut schedules = LookSchedules::default();
    let mut looks = JoinSet::new();
    let lookups = Lookups::default();
    let mut checks = tokio::time::interval(SCHEDULE_INTERVAL);
    checks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = checks.tick() => {}
            Some(ended) = looks.join_next() => {
                let (key, memory, result) = ended.context("a look at a Toolset panicked")?;
                let wait = wait_after(&key, &result, &context).context("this process does not lead any more")?;
                schedules.ended(&key, memory, wait, BootTime::now());
            }
        }
        context.leadership.check()?;
        let stored: Vec<ObjectMeta> = context.stores.toolsets.state().iter().map(|toolset| toolset.meta().clone()).collect();
        let room = MAX_CONCURRENT_LOOKS.saturating_sub(looks.len());
        let (due, gone) = schedules.take_due(&stored, room, BootTime::now());
        context.toolsets.retain(&stored.iter().map(key_of).collect::<HashSet<_>>());
        gone.iter().for_each(|key| context.forget(CONTROLLER_NAME, key));
        for (key, mut memory) in due {
            let (context, lookups) = (context.clone(), lookups.clone());
            looks.spawn(async move {
                let looking = tokio::time::timeout(LOOK_TIMEOUT, look(&key, &mut memory, &lookups, &context));
                let result = looking.await.map_err(|_| Error::Contended { call: "looking at a Toolset within its time limit" }).flatten();
                (key, memory, result)
            });
        }
    }
}

/// The time until the next look after this result. `None`: we do not lead any more.
fn wait_after(key: &ObjectKey, result: &Result<LookResult, Error>, context: &Context) -> Option<Duration> {
    match result {
        Ok(result) => {
            context.succeeded(CONTROLLER_NAME, key);
            Some(jittered(match result {
                LookResult::AsDesired | LookResult::Nothing => LOOK_INTERVAL,
                LookResult::NotReady => NOT_READY_INTERVAL,
            }))
        }
        Err(error) => context.record_failure(CONTROLLER_NAME, key.clone(), error),
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
