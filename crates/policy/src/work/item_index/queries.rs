//! The queries of the index. They change nothing.

use std::collections::BTreeMap;

use super::{ClaimClass, ClaimObstacle, ClaimRequester, Counts, ItemIndex};
use crate::work::admission::ProjectLimit;
use crate::work::entry::Entry;
use crate::work::item::{Phase, UnixMillis};
use crate::work::objectives::MissedObjective;
use crate::work::requires::PoolOffer;

/// The number of a queue's items in each phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Depth<'a> {
    /// The queue; `None`: the items whose queue does not exist.
    pub queue: Option<&'a str>,
    /// The counts.
    pub phases: BTreeMap<Phase, u64>,
    /// Since when the longest ready item is ready.
    pub oldest: Option<UnixMillis>,
}

impl ItemIndex {
    /// The items that the agents of a pool submitted, by name.
    pub fn submitted_by(&self, pool: &str) -> impl Iterator<Item = (&String, &Entry)> {
        let names = self.submitters.get(pool).into_iter().flatten();
        names.filter_map(|name| self.items.get(name).map(|entry| (name, entry)))
    }

    /// The items of a plan, if all of them exist and all of them ended.
    pub fn ended_plan(&self, plan: &str) -> Option<Vec<&Entry>> {
        let entries: Vec<&Entry> = self.plans.get(plan)?.iter().filter_map(|name| self.items.get(name)).collect();
        let size =
            entries.first().and_then(|entry| entry.spec.plan.as_ref()).map(|(_, size)| usize::try_from(*size).unwrap_or(usize::MAX))?;
        (entries.len() >= size && entries.iter().all(|entry| entry.record.phase.ended())).then_some(entries)
    }

    /// The number of unfinished items of a queue.
    pub fn pending(&self, queue: &str) -> u64 {
        self.ready_queues.get(queue).map_or(0, |line| line.count(|phase| !phase.ended()))
    }

    /// The number of unfinished items over all queues, and their limit, if there is one.
    pub fn project_use(&self) -> Option<(u64, &ProjectLimit)> {
        self.project_limit.as_ref().map(|limit| (self.unfinished(), limit))
    }

    /// The number of unfinished items over all queues.
    pub fn unfinished(&self) -> u64 {
        self.phases.count(|phase| !phase.ended())
    }

    /// Why a ready item is not given to this agent; `None`: it could be, and other items are before it.
    pub fn claim_obstacle(&self, name: &str, taker: &ClaimRequester) -> Option<ClaimObstacle> {
        let entry = self.items.get(name)?;
        let of = Self::queue_of(entry);
        let (queue, line) = (self.queues.get(&of)?, self.ready_queues.get(&of)?);
        let (_, types) = taker.queues.iter().find(|(queue, _)| *queue == of)?;
        Self::queue_obstacle(queue, line).or_else(|| Self::claim_obstacle_of(queue, line, entry, types, taker))
    }

    /// The number of ready items before this one in its queue.
    pub fn position(&self, name: &str) -> Option<usize> {
        let entry = self.items.get(name).filter(|entry| entry.record.phase == Phase::Ready)?;
        let rank = Self::rank(name, entry);
        self.ready_queues.get(&Self::queue_of(entry)).map(|line| line.ready.values().map(|ranks| ranks.range(..&rank).count()).sum())
    }

    /// The number of items of a queue that can still be claimed at once, of the types that a pool takes. `offer`: only
    /// items whose requirements it meets; `None`: all.
    pub fn claimable(&self, name: &str, types: &[String], offer: Option<&PoolOffer>) -> u64 {
        let (Some(queue), Some(line)) = (self.queues.get(name), self.ready_queues.get(name)) else { return 0 };
        if queue.suspend {
            return 0;
        }
        let ready: u64 = self
            .classes(name, |class| class.of_types(types) && offer.is_none_or(|offer| class.met_by(offer)))
            .map(|(_, count)| count)
            .sum();
        let over = queue.max_leased_per_key.map_or(0, |most| {
            let room = |key: &String| most.saturating_sub(line.held_keys.get(key).copied().unwrap_or(0));
            line.ready_keys.iter().map(|(key, ready)| ready.saturating_sub(room(key))).sum()
        });
        let room = queue.max_leased.map_or(u64::MAX, |most| most.saturating_sub(line.count(Phase::held)));
        ready.saturating_sub(over).min(room)
    }

    /// The classes of a queue's ready items that fit, each with its number of items.
    pub fn classes(&self, queue: &str, fits: impl Fn(&ClaimClass) -> bool) -> impl Iterator<Item = (&ClaimClass, u64)> {
        let ready = self.ready_queues.get(queue).into_iter().flat_map(|line| &line.ready);
        ready.filter(move |(class, _)| fits(class)).map(|(class, ranks)| (class, u64::try_from(ranks.len()).unwrap_or(u64::MAX)))
    }

    /// The number of items of a queue by kind of phase.
    pub fn counts(&self, queue: &str) -> Counts {
        let Some(line) = self.ready_queues.get(queue) else { return Counts::default() };
        Counts {
            ready: line.count(|phase| phase == Phase::Ready),
            leased: line.count(|phase| phase == Phase::Leased || phase == Phase::Cancelling),
            paused: line.count(|phase| phase == Phase::Paused),
            waiting: line.count(|phase| phase.waits() && phase != Phase::Ready),
            finished: line.count(|phase| phase.ended() && phase != Phase::DeadLettered),
            dead_lettered: line.count(|phase| phase == Phase::DeadLettered),
        }
    }

    /// Since when the longest ready item of a queue is ready.
    pub fn oldest_ready(&self, queue: &str) -> Option<UnixMillis> {
        self.ready_queues.get(queue)?.since.first().map(|(at, _)| *at)
    }

    /// The number of items of each queue in each phase, and since when its longest ready item is ready. The last entry,
    /// without a name, is for items whose queue does not exist. Takes time that does not depend on the number of items.
    pub fn depths(&self) -> Vec<Depth<'_>> {
        let mut rest = self.phases.counts().clone();
        let mut depths = Vec::with_capacity(self.queues.len() + 1);
        for name in self.queues.keys() {
            let line = self.ready_queues.get(name);
            let phases = line.map(|line| line.phases.counts().clone()).unwrap_or_default();
            for (phase, count) in &phases {
                rest.entry(*phase).and_modify(|rest| *rest -= count);
            }
            let oldest = line.and_then(|line| line.since.first()).map(|(at, _)| *at);
            depths.push(Depth { queue: Some(name), phases, oldest });
        }
        rest.retain(|_, count| *count > 0);
        if !rest.is_empty() {
            depths.push(Depth { queue: None, phases: rest, oldest: None });
        }
        depths
    }

    /// The queue that an item counts at; `None`: the queue that it is in, or names, does not exist.
    pub fn counts_at(&self, name: &str) -> Option<&str> {
        let of = Self::queue_of(self.items.get(name)?);
        self.queues.get_key_value(&of).map(|(queue, _)| queue.as_str())
    }

    /// The items of a queue that miss its objectives now.
    pub fn missed_objectives(&self, name: &str, now: UnixMillis) -> Vec<MissedObjective> {
        let Some(objectives) = self.queues.get(name).map(|queue| queue.objectives).filter(|objectives| !objectives.is_empty()) else {
            return Vec::new();
        };
        let here = |entry: &Entry| entry.record.queue.as_ref().or(entry.spec.queue.as_ref()).is_some_and(|queue| queue == name);
        let of = |(item, entry): (&String, &Entry)| {
            let over = |(objective, since)| {
                let holder = entry.record.holder.clone();
                MissedObjective { item: item.clone(), uid: entry.uid.clone(), objective, since, holder }
            };
            objectives.missed(entry, now).map(over).collect::<Vec<_>>()
        };
        self.items.iter().filter(|(_, entry)| here(entry)).flat_map(of).collect()
    }
}
