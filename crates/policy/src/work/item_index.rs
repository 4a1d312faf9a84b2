//! All items of a namespace, indexed by dependency, order and time.
//!
//! It holds the state that its owner knows: what was read, or written and accepted. It decides nothing about one item
//! that `transitions` and `lease` do not decide. It finds the next and the due items without a look at all that wait.

mod admission;
mod collected;
mod needs;
mod queries;

pub use queries::Depth;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use super::admission::{Admission, ProjectLimit, Queue, route};
use super::entry::Entry;
use super::item::{Phase, Policy, Record, Spec, UnixMillis};
use super::requires::{PoolIntake, PoolOffer, UnmetRequirement};
pub use collected::Removal;

pub use super::ready_queue::ClaimClass;
use super::ready_queue::{Phases, QueueRank, ReadyQueue, add_name, decrement, increment, remove_name};
use super::transitions::{Dependencies, HolderState, TransitionFacts, look_at, settle};

/// How long an item waits for a dependency that does not exist: files are applied in any order.
const MISSING_DEPENDENCY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an item waits for a queue that does not exist, for the same reason.
const MISSING_QUEUE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an item waits for a queue that takes its type, which may be seen later, before it goes to the default queue.
const MATCHING_QUEUE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long an agent that failed at an item does not get it again, so that another agent may try.
const FAILED_AGENT_EXCLUSION: Duration = Duration::from_secs(60);
/// How long an item of a plan waits for the other items to be made.
const PLAN_TIMEOUT: Duration = Duration::from_secs(600);

/// An agent that asks for an item.
#[derive(Clone, Copy, Debug)]
pub struct ClaimRequester<'a> {
    /// Name of its Agent.
    pub agent: &'a str,
    /// Labels of its Agent.
    pub labels: &'a BTreeMap<String, String>,
    /// Its pool's queues in order, with the types that it takes from each (empty: all).
    pub queues: &'a [(String, Vec<String>)],
    /// What its pool has that items may require.
    pub offer: &'a PoolOffer,
    /// When it asks.
    pub now: UnixMillis,
}

/// Why a ready item is not given to an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimObstacle {
    /// Its queue is suspended.
    QueueSuspended,
    /// This many items of its queue are held, which is the maximum.
    QueueBusy(u64),
    /// This many items of its concurrency key are held, which is the maximum.
    KeyBusy(String, u64),
    /// The pool does not take its type from the queue.
    Type,
    /// The agent lacks labels of the item's selector.
    Selector,
    /// The pool does not meet its requirements.
    Requires(Vec<UnmetRequirement>),
    /// This agent failed at it, and another agent is to try.
    Elsewhere,
}

/// The number of items of a queue by kind of phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "as in WorkQueue.status.counts")]
pub struct Counts {
    pub ready: u64,
    pub leased: u64,
    pub waiting: u64,
    pub paused: u64,
    pub finished: u64,
    pub dead_lettered: u64,
}

/// All items of a namespace.
#[derive(Clone, Debug, Default)]
pub struct ItemIndex {
    queues: BTreeMap<String, Queue>,
    project_limit: Option<ProjectLimit>,
    cancelled: BTreeMap<(String, String), UnixMillis>,
    items: HashMap<String, Entry>,
    /// The number of items in each phase over all queues, including queues that do not exist.
    phases: Phases,
    ready_queues: BTreeMap<String, ReadyQueue>,
    dependents: HashMap<String, BTreeSet<String>>,
    plans: HashMap<String, BTreeSet<String>>,
    keys: HashMap<String, BTreeSet<String>>,
    groups: HashMap<String, BTreeSet<String>>,
    submitters: HashMap<String, BTreeSet<String>>,
    held: HashMap<String, BTreeSet<String>>,
    timers: BTreeSet<(UnixMillis, String)>,
    timer_by_item: HashMap<String, UnixMillis>,
    /// What the namespace's pools take, as far as it matters: see [`ItemIndex::needs_pools`]. `None`: not known yet.
    pools: Option<Vec<PoolIntake>>,
    /// Ready items that require something of a pool.
    needing: HashSet<String>,
}

impl ItemIndex {
    /// Sets or removes a queue. Returns whether it changed; then the caller looks at its items.
    pub fn set_queue(&mut self, name: &str, queue: Option<Queue>) -> bool {
        let changed = match queue {
            Some(queue) => self.queues.insert(name.to_owned(), queue.clone()) != Some(queue),
            None => self.queues.remove(name).is_some(),
        };
        if changed {
            self.time_ended_anew(name);
        }
        changed
    }

    /// Sets the most unfinished items over all queues. Items that are admitted already stay so.
    pub fn set_project_limit(&mut self, limit: Option<ProjectLimit>) {
        self.project_limit = limit;
    }

    /// Sets the cancelled groups of a queue, with the time of each. Returns the items of new cancels.
    pub fn set_cancelled(&mut self, queue: &str, groups: impl IntoIterator<Item = (String, UnixMillis)>) -> Vec<String> {
        let before: BTreeMap<_, _> = self.cancelled.iter().filter(|((of, _), _)| of == queue).map(|(key, at)| (key.clone(), *at)).collect();
        let after: BTreeMap<_, _> = groups.into_iter().map(|(group, at)| ((queue.to_owned(), group), at)).collect();
        self.cancelled.retain(|(of, _), _| of != queue);
        self.cancelled.extend(after.clone());
        let changed = after.iter().filter(|(key, at)| before.get(*key) != Some(*at)).map(|((_, group), _)| group.clone());
        changed.flat_map(|group| self.groups.get(&group).into_iter().flatten().cloned().collect::<Vec<_>>()).collect()
    }

    /// A queue.
    pub fn queue(&self, name: &str) -> Option<&Queue> {
        self.queues.get(name)
    }

    /// Names of the queues.
    pub fn queues(&self) -> impl Iterator<Item = &String> {
        self.queues.keys()
    }

    /// An item.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.items.get(name)
    }

    /// All items.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Entry)> {
        self.items.iter()
    }

    /// The item that this pod holds. A pod never gets two. If there are two anyway, the first by name.
    pub fn held_by(&self, pod: &str) -> Option<(&str, &Entry)> {
        let name = self.held.get(pod)?.first()?;
        self.items.get(name).map(|entry| (name.as_str(), entry))
    }

    /// The pods that hold an item.
    pub fn holders(&self) -> impl Iterator<Item = &String> {
        self.held.keys()
    }

    /// The items that are held.
    pub fn leased(&self) -> impl Iterator<Item = &Entry> {
        self.held.values().flatten().filter_map(|name| self.items.get(name))
    }

    /// Adds an item, or replaces what is known of it.
    pub fn put(&mut self, name: &str, entry: Entry, now: UnixMillis) {
        self.remove(name);
        let ready_since = match entry.record.phase {
            Phase::Ready => entry.ready_since.or(Some(now)),
            // Stored as pending, but ready in our memory.
            Phase::Pending => entry.ready_since,
            _ => None,
        };
        let first_ready = entry.first_ready.or_else(|| (entry.record.phase == Phase::Ready).then_some(now));
        let entry = Entry { ready_since, first_ready, ..entry };
        self.index(name, &entry);
        self.items.insert(name.to_owned(), entry);
        self.set_timer(name, now);
    }

    /// Forgets an item.
    pub fn remove(&mut self, name: &str) -> Option<Entry> {
        let entry = self.items.remove(name)?;
        self.unindex(name, &entry);
        if let Some(at) = self.timer_by_item.remove(name) {
            self.timers.remove(&(at, name.to_owned()));
        }
        Some(entry)
    }

    /// Sets the record of an item; `unsaved`: it is not stored.
    pub fn set_record(&mut self, name: &str, record: Record, unsaved: bool, now: UnixMillis) {
        let Some(entry) = self.items.get(name).cloned() else { return };
        let unsaved = unsaved.then(|| entry.unsaved.unwrap_or(now));
        // A redriven item is measured anew.
        let first_ready = entry.first_ready.filter(|_| record.redrives == entry.record.redrives);
        self.put(name, Entry { record, unsaved, first_ready, ..entry }, now);
    }

    fn queue_of(entry: &Entry) -> String {
        entry.record.queue.clone().or_else(|| entry.spec.queue.clone()).unwrap_or_default()
    }

    fn rank(name: &str, entry: &Entry) -> QueueRank {
        QueueRank(Reverse(entry.spec.priority), entry.spec.submitted, name.to_owned())
    }

    fn index(&mut self, name: &str, entry: &Entry) {
        let Entry { spec, record, .. } = entry;
        let line = self.ready_queues.entry(Self::queue_of(entry)).or_default();
        line.phases.add(record.phase);
        if record.phase == Phase::Ready {
            line.ready.entry(ClaimClass::of(spec)).or_default().insert(Self::rank(name, entry));
            line.since.insert((entry.ready_since.unwrap_or_default(), name.to_owned()));
            spec.concurrency_key.iter().for_each(|key| increment(&mut line.ready_keys, key.clone()));
            if !spec.requires.is_empty() {
                self.needing.insert(name.to_owned());
            }
        }
        if record.phase.held() {
            spec.concurrency_key.iter().for_each(|key| increment(&mut line.held_keys, key.clone()));
        }
        if record.phase.ended() {
            line.ended_mut(record.phase).insert((record.completed.unwrap_or_default(), name.to_owned()));
        }
        self.phases.add(record.phase);
        if let Some(holder) = &record.holder {
            add_name(&mut self.held, holder.pod.clone(), name);
        }
        spec.after.iter().for_each(|on| add_name(&mut self.dependents, on.name.clone(), name));
        spec.plan.iter().for_each(|(plan, _)| add_name(&mut self.plans, plan.clone(), name));
        spec.dedup_key.iter().for_each(|key| add_name(&mut self.keys, key.clone(), name));
        spec.group.iter().for_each(|group| add_name(&mut self.groups, group.clone(), name));
        spec.submitted_by.iter().for_each(|pool| add_name(&mut self.submitters, pool.clone(), name));
    }

    fn unindex(&mut self, name: &str, entry: &Entry) {
        let Entry { spec, record, .. } = entry;
        self.needing.remove(name);
        let of = Self::queue_of(entry);
        if let Some(line) = self.ready_queues.get_mut(&of) {
            line.phases.remove(record.phase);
            if record.phase == Phase::Ready {
                let class = ClaimClass::of(spec);
                if let Some(ranks) = line.ready.get_mut(&class) {
                    ranks.remove(&Self::rank(name, entry));
                    if ranks.is_empty() {
                        line.ready.remove(&class);
                    }
                }
                line.since.remove(&(entry.ready_since.unwrap_or_default(), name.to_owned()));
                spec.concurrency_key.iter().for_each(|key| decrement(&mut line.ready_keys, key));
            }
            if record.phase.held() {
                spec.concurrency_key.iter().for_each(|key| decrement(&mut line.held_keys, key));
            }
            if record.phase.ended() {
                line.ended_mut(record.phase).remove(&(record.completed.unwrap_or_default(), name.to_owned()));
            }
            if line.phases.is_empty() {
                self.ready_queues.remove(&of);
            }
        }
        self.phases.remove(record.phase);
        if let Some(holder) = &record.holder {
            remove_name(&mut self.held, &holder.pod, name);
        }
        spec.after.iter().for_each(|on| remove_name(&mut self.dependents, &on.name, name));
        spec.plan.iter().for_each(|(plan, _)| remove_name(&mut self.plans, plan, name));
        spec.dedup_key.iter().for_each(|key| remove_name(&mut self.keys, key, name));
        spec.group.iter().for_each(|group| remove_name(&mut self.groups, group, name));
        spec.submitted_by.iter().for_each(|pool| remove_name(&mut self.submitters, pool, name));
    }

    fn set_timer(&mut self, name: &str, now: UnixMillis) {
        if let Some(at) = self.timer_by_item.remove(name) {
            self.timers.remove(&(at, name.to_owned()));
        }
        if let Some(at) = self.time_of(name, now) {
            self.timers.insert((at, name.to_owned()));
            self.timer_by_item.insert(name.to_owned(), at);
        }
    }

    /// When to look at an item if nothing happens.
    fn time_of(&self, name: &str, now: UnixMillis) -> Option<UnixMillis> {
        let entry = self.items.get(name)?;
        let made = entry.spec.created;
        let waits = matches!(entry.record.phase, Phase::Pending | Phase::Blocked | Phase::Suspended);
        let pending = entry.record.phase == Phase::Pending;
        let hoped = [
            (!entry.spec.after.is_empty(), MISSING_DEPENDENCY_TIMEOUT),
            (entry.spec.plan.is_some(), PLAN_TIMEOUT),
            (pending, MISSING_QUEUE_TIMEOUT),
            (pending, MATCHING_QUEUE_TIMEOUT),
        ];
        let hoped = hoped.into_iter().filter(|(has, _)| waits && *has).map(|(_, within)| made.after(within)).filter(|at| *at > now);
        look_at(&entry.spec, &entry.record, &self.policy(entry)).into_iter().chain(hoped).min()
    }

    /// The items whose time has come; each is returned once.
    pub fn due(&mut self, now: UnixMillis) -> Vec<String> {
        let later = self.timers.split_off(&(UnixMillis(now.0.saturating_add(1)), String::new()));
        let due = std::mem::replace(&mut self.timers, later);
        let names: Vec<String> = due.into_iter().map(|(_, name)| name).collect();
        for name in &names {
            self.timer_by_item.remove(name);
            // An item that does not change may have a later time.
            if let Some(at) = self.time_of(name, now).filter(|at| *at > now) {
                self.timers.insert((at, name.clone()));
                self.timer_by_item.insert(name.clone(), at);
            }
        }
        names
    }

    /// The policy of an item.
    pub fn policy(&self, entry: &Entry) -> Policy {
        let base = self.queues.get(&Self::queue_of(entry)).map(|queue| queue.policy.clone()).unwrap_or_default();
        entry.spec.overrides.apply_to(&base)
    }

    /// Applies the transitions of an item without a call.
    pub fn settle(&self, name: &str, holder: HolderState, now: UnixMillis, dice: f64) -> Option<Record> {
        let entry = self.items.get(name)?;
        let admission = if entry.record.phase == Phase::Pending { self.admission_at(name, &entry.spec, now) } else { Admission::Unknown };
        let needs = matches!(entry.record.phase, Phase::Pending | Phase::Blocked | Phase::Suspended);
        let dependencies = if needs { self.dependencies(&entry.spec, &entry.record, now) } else { Dependencies::Satisfied };
        let policy = self.policy(entry);
        let queue_gone = entry.record.queue.as_ref().is_some_and(|queue| !self.queues.contains_key(queue));
        let group_cancelled = self.group_cancelled(entry);
        let rules = self.queues.get(&Self::queue_of(entry)).map_or(&[][..], |queue| &queue.rules);
        let unmet = self.unmet(entry, &admission);
        let around = TransitionFacts { admission, dependencies, queue_gone, group_cancelled, unmet, holder, policy: &policy, rules, dice };
        // A redriven item asks for admission in the same look.
        let first = settle(&entry.spec, &entry.record, &around, now)?;
        if first.phase != Phase::Pending {
            return Some(first);
        }
        let dependencies = self.dependencies(&entry.spec, &first, now);
        let around = TransitionFacts { admission: self.admission_at(name, &entry.spec, now), dependencies, ..around };
        let next = settle(&entry.spec, &first, &around, now).unwrap_or(first);
        if entry.record.phase == Phase::DeadLettered && next.phase == Phase::Rejected {
            // A dead letter that a person redrives, and that is not admitted now. It stays as it was, with the reason.
            let Record { redrives, reason, .. } = next;
            return Some(Record { redrives, reason, ..entry.record.clone() });
        }
        Some(next)
    }

    fn dependencies(&self, spec: &Spec, record: &Record, now: UnixMillis) -> Dependencies {
        // A dependency may have been removed since. An item that ran before, or is redriven, does not wait for it
        // again.
        let before = record.epoch > 0 || record.redrives > 0;
        if let Some((plan, size)) = spec.plan.as_ref().filter(|_| !before) {
            let there = self.plans.get(plan).map_or(0, BTreeSet::len);
            if there < usize::try_from(*size).unwrap_or(usize::MAX) {
                return if now >= spec.created.after(PLAN_TIMEOUT) { Dependencies::PlanAbandoned } else { Dependencies::PlanIncomplete };
            }
        }
        let mut all = Dependencies::Satisfied;
        for on in &spec.after {
            match self.items.get(&on.name).map(|entry| entry.record.phase) {
                Some(Phase::Succeeded) => {}
                Some(phase) if phase.ended() && !on.succeeded => {}
                Some(phase) if phase.ended() => return Dependencies::Failed,
                None if before => {}
                None if now >= spec.created.after(MISSING_DEPENDENCY_TIMEOUT) => return Dependencies::Missing,
                Some(_) | None => all = Dependencies::Waiting,
            }
        }
        all
    }

    /// Whether an item of this plan exists.
    pub fn has_plan(&self, plan: &str) -> bool {
        self.plans.contains_key(plan)
    }

    /// Whether its group was cancelled after it was submitted.
    fn group_cancelled(&self, entry: &Entry) -> bool {
        let Some(group) = &entry.spec.group else { return false };
        if self.cancelled.is_empty() {
            return false;
        }
        let routed = || route(&entry.spec, self.queues.iter()).ok().map(|(queue, _)| queue.clone());
        let Some(queue) = entry.record.queue.clone().or_else(routed) else { return false };
        let at = self.cancelled.get(&(queue, group.clone()));
        at.is_some_and(|at| entry.spec.created <= *at)
    }

    /// The time of a cancel of a group at `now`: no earlier than the creation of its newest member, by any clock.
    pub fn cancel_time(&self, queue: &str, group: &str, now: UnixMillis) -> UnixMillis {
        let members = self.groups.get(group).into_iter().flatten().filter_map(|name| self.items.get(name));
        members.filter(|entry| Self::queue_of(entry) == queue).fold(now, |latest, entry| latest.max(entry.spec.created))
    }

    /// Whether a cancelled group has members that have not ended.
    pub fn group_has_unfinished(&self, queue: &str, group: &str) -> bool {
        let members = self.groups.get(group).into_iter().flatten().filter_map(|name| self.items.get(name));
        members.filter(|entry| Self::queue_of(entry) == queue).any(|entry| !entry.record.phase.ended() && self.group_cancelled(entry))
    }

    /// The records of the items of each group.
    pub fn groups(&self) -> impl Iterator<Item = (&String, Vec<&Record>)> {
        let record = |name: &String| self.items.get(name).map(|entry| &entry.record);
        self.groups.iter().map(move |(group, names)| (group, names.iter().filter_map(record).collect()))
    }

    /// The items that may change because of a change of this item: those that wait for it, and those of its plan.
    pub fn affected_by(&self, name: &str) -> Vec<String> {
        let plan = self.items.get(name).and_then(|entry| entry.spec.plan.as_ref()).and_then(|(plan, _)| self.plans.get(plan));
        let dependents = self.dependents.get(name);
        let all: BTreeSet<&String> = dependents.into_iter().flatten().chain(plan.into_iter().flatten()).collect();
        let waits = |name: &&&String| {
            let phase = self.items.get(**name).map(|entry| entry.record.phase);
            matches!(phase, Some(Phase::Pending | Phase::Blocked))
        };
        // No item may need its dependencies any more.
        let over = self.items.get(name).filter(|entry| entry.record.phase.ended());
        let freed = over.into_iter().flat_map(|entry| entry.spec.after.iter().map(|on| on.name.clone()));
        all.iter().filter(waits).map(|name| (*name).clone()).chain(freed).collect()
    }

    /// The unfinished items of a queue, and those without a queue, which may go to another one now.
    pub fn of_queue(&self, queue: &str) -> Vec<String> {
        let here = |entry: &Entry| Self::queue_of(entry) == queue || entry.record.queue.is_none();
        self.items.iter().filter(|(_, entry)| !entry.record.phase.ended() && here(entry)).map(|(name, _)| name.clone()).collect()
    }

    /// The next item for this agent, from the first of its queues that has one. `free`: whether an item can be claimed
    /// now.
    pub fn next_for(&self, taker: &ClaimRequester, free: impl Fn(&str) -> bool) -> Option<&str> {
        taker.queues.iter().find_map(|(queue, types)| self.next_of(queue, types, taker, &free))
    }

    fn next_of(&self, name: &str, types: &[String], taker: &ClaimRequester, free: &impl Fn(&str) -> bool) -> Option<&str> {
        let (queue, line) = (self.queues.get(name)?, self.ready_queues.get(name)?);
        if Self::queue_obstacle(queue, line).is_some() {
            return None;
        }
        // Items that no agent of this pool ever takes from here block no others. The rest of a strict order is strict.
        let fits =
            |class: &ClaimClass| class.of_types(types) && (queue.strict || (class.selects(taker.labels) && class.met_by(taker.offer)));
        for QueueRank(_, _, item) in line.in_order(fits) {
            let entry = self.items.get(item)?;
            match Self::claim_obstacle_of(queue, line, entry, types, taker) {
                None if free(item) && !self.group_cancelled(entry) => return Some(item),
                None | Some(_) if queue.strict => return None,
                None | Some(_) => {}
            }
        }
        None
    }

    fn queue_obstacle(queue: &Queue, line: &ReadyQueue) -> Option<ClaimObstacle> {
        if queue.suspend {
            return Some(ClaimObstacle::QueueSuspended);
        }
        let held = line.count(Phase::held);
        queue.max_leased.filter(|most| held >= *most).map(ClaimObstacle::QueueBusy)
    }

    fn claim_obstacle_of(
        queue: &Queue,
        line: &ReadyQueue,
        entry: &Entry,
        types: &[String],
        taker: &ClaimRequester,
    ) -> Option<ClaimObstacle> {
        let Spec { type_, concurrency_key, selector, requires, .. } = &entry.spec;
        if !types.is_empty() && !type_.as_ref().is_some_and(|type_| types.contains(type_)) {
            return Some(ClaimObstacle::Type);
        }
        if let (Some(key), Some(most)) = (concurrency_key, queue.max_leased_per_key)
            && line.held_keys.get(key).is_some_and(|held| *held >= most)
        {
            return Some(ClaimObstacle::KeyBusy(key.clone(), most));
        }
        if !selector.matches(taker.labels) {
            return Some(ClaimObstacle::Selector);
        }
        if !taker.offer.meets(requires) {
            return Some(ClaimObstacle::Requires(taker.offer.lacks(requires)));
        }
        let kept = entry.ready_since.is_none_or(|since| taker.now < since.after(FAILED_AGENT_EXCLUSION));
        (kept && entry.record.excluded_agent() == Some(taker.agent)).then_some(ClaimObstacle::Elsewhere)
    }
}

#[cfg(test)]
#[path = "item_index_tests.rs"]
mod tests;
