//! The loop of the governor of work: automatic transitions, queued writes, deletion of old items.
//!
//! State that only we rely on, such as that an item is ready, stays in memory and is written only if nothing happens
//! for a while. State that others may rely on is written first. Transitions by time, and those that take something
//! away, wait for a renewal of our lease that began after the decision.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::{Resource as _, ResourceExt};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::convert::StatusExtras;
use super::gangs;
use super::holder::holder_state;
use super::item_events::{tell_failure, tell_unmet};
use super::item_write::{final_failure, progress, store};
use super::namespace_work::{NamespaceWork, WriteLane, now};
use super::queues::Queues;
use crate::api::{Agent, WorkItem, WorkQueue};
use crate::cluster::{Class, Error, ObjectKey, calls};
use crate::controller::{Context, capacity};
use crate::governor::live::Working;
use crate::policy::budget::Key as TokenKey;
use crate::policy::fair_queue::FairQueue;
use crate::policy::work::admission::Admission;
use crate::policy::work::entry::Entry;
use crate::policy::work::item::{Holder, Phase, Record, UnixMillis, Verb, reasons as why};
use crate::policy::work::item_index::Removal;
use crate::policy::work::transitions::HolderState;
use crate::serve::fair_semaphore::{Bounds, FairSemaphore};
use spillway_conversion::pool::pool_intake;

/// Interval of checks for due items.
const DUE_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Interval of checks for everything that waits for something other than its time.
const FULL_SCAN_INTERVAL: Duration = Duration::from_secs(1);
/// Delay before a waiting phase is written, if no agent claims the item.
const WAITING_PHASE_DELAY_MS: i64 = 2_000;
/// Minimum time between two writes of the progress of an item.
const PROGRESS_WRITE_INTERVAL: Duration = Duration::from_secs(5);
/// Concurrent writes. Each item waits at most once, here and in each of the other lanes.
const WRITE_BOUNDS: Bounds = Bounds { total: 64, per_namespace: 48, max_waiting: usize::MAX };
/// Concurrent writes that only show that an item waits, on which nothing relies. When ten thousand items come together,
/// these writes use the whole capacity of the API server while nothing else is written, and almost nothing otherwise.
const DISPLAY_WRITE_BOUNDS: Bounds = Bounds { total: 4, per_namespace: 2, max_waiting: usize::MAX };
/// After each such write, the next one waits until nothing else is written, but at most this many times as long as the
/// write took: the pause grows with the load of the API server.
const DISPLAY_PAUSE_FACTOR: u32 = 19;
/// Bounds of that pause.
const DISPLAY_PAUSE_RANGE: [Duration; 2] = [Duration::from_millis(25), Duration::from_secs(2)];
/// Concurrent deletions of finished items, in addition to the writes: no caller waits for them.
const DELETE_BOUNDS: Bounds = Bounds { total: 80, per_namespace: 64, max_waiting: usize::MAX };
/// How long deletions wait for each other: one renewal of our lease proves for all of them that we lead.
const DELETE_BATCH_DELAY: Duration = Duration::from_millis(500);
/// Items that are checked before other tasks get their turn.
const MAX_ITEMS_PER_TURN: usize = 64;
/// Name of this loop in logs and back-offs.
const LOOP_NAME: &str = "workitem";

/// Runs until our leadership ends.
pub async fn run(context: Arc<Context>, looks: mpsc::UnboundedReceiver<ObjectKey>, queues: Queues) {
    let (writes, shown, collected) =
        (FairSemaphore::new(WRITE_BOUNDS), FairSemaphore::new(DISPLAY_WRITE_BOUNDS), FairSemaphore::new(DELETE_BOUNDS));
    let writer = Writer { context: context.clone(), writes, shown, collected };
    futures::join!(dispatch(writer.clone(), looks), tick(writer), queues.publish(context));
}

/// Checks one item after the other, in turns between namespaces, and signals the agents that wait for an item that
/// became ready.
async fn dispatch(writer: Writer, mut looks: mpsc::UnboundedReceiver<ObjectKey>) {
    let mut line = FairQueue::new(usize::MAX);
    loop {
        if line.is_empty() {
            let Some(key) = looks.recv().await else { return };
            wait(&mut line, key);
        }
        while let Ok(key) = looks.try_recv() {
            wait(&mut line, key);
        }
        let mut namespaces = HashSet::new();
        for (namespace, key) in std::iter::from_fn(|| line.next(|_| true)).take(MAX_ITEMS_PER_TURN) {
            writer.context.work_index.clear_due(&key);
            if namespaces.insert(namespace) {
                writer.limit(&key.namespace);
            }
            writer.look(key);
        }
        namespaces.iter().for_each(|namespace| writer.call(namespace));
        // Other tasks get their turn, however many items come.
        tokio::task::yield_now().await;
    }
}

/// Adds an item to the line. The index of work ensures that it waits only once.
fn wait(line: &mut FairQueue<String, ObjectKey>, key: ObjectKey) {
    let _ = line.join(key.namespace.clone(), key); // the line is unbounded
}

async fn tick(writer: Writer) {
    let work_index = writer.context.work_index.clone();
    let mut ticks = tokio::time::interval(DUE_CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut rounds, mut gangs) = (0_u32, gangs::KnownGangs::new());
    loop {
        ticks.tick().await;
        if !work_index.is_ready() {
            continue;
        }
        rounds += 1;
        let round = DUE_CHECK_INTERVAL * rounds >= FULL_SCAN_INTERVAL;
        for namespace in work_index.namespaces() {
            let due = work_index.with(&namespace, |namespace_work| namespace_work.index.due(now()));
            due.iter().for_each(|name| work_index.mark_due(&namespace, name));
            if round {
                writer.round(&namespace);
            }
            if work_index.with(&namespace, NamespaceWork::counts_changed) {
                writer.context.wake.pools_in(&writer.context.stores.pools, &namespace);
            }
        }
        if round {
            rounds = 0;
            writer.context.live.retain_holders(&work_index.holders());
            gangs::look(&mut gangs, &writer.context);
            super::late_usage::tell_late(&writer.context, &writer.writes);
            work_index.tidy();
        }
    }
}

/// The next step for an item.
enum ItemStep {
    Nothing,
    Remember(Record),
    Store(Record, StatusExtras),
    /// Write its waiting phase for display, and its unmet requirements, if no pool offers them.
    Show(Record, Option<String>),
    Collect(Removal),
}

#[derive(Clone)]
struct Writer {
    context: Arc<Context>,
    writes: FairSemaphore,
    shown: FairSemaphore,
    collected: FairSemaphore,
}

impl Writer {
    /// Periodic checks that no event triggers: ended agents, waiting phases and progress that are due, surplus finished
    /// items.
    fn round(&self, namespace: &str) {
        let now = now();
        let taking_of = |pool: &str| {
            let pool = self.context.stores.pool(namespace, pool);
            pool.as_ref().and_then(|pool| pool.0.as_ref().ok()).map(pool_intake)
        };
        let all = || {
            let pools = self.context.stores.pools.state().into_iter().filter(|pool| pool.namespace().as_deref() == Some(namespace));
            let there = pools.filter(|pool| pool.meta().deletion_timestamp.is_none());
            there.filter_map(|pool| pool.0.as_ref().ok().map(pool_intake)).collect()
        };
        let names: HashSet<String> = self.context.work_index.with(namespace, |namespace_work| {
            // Waiting agents take items from another queue as soon as their pool names it.
            namespace_work.take_from(taking_of);
            let offered = namespace_work.set_offers(all);
            let late = |entry: &Entry| entry.unsaved.is_some_and(|since| now.0 - since.0 >= WAITING_PHASE_DELAY_MS);
            let due =
                |name: &str, entry: &Entry| entry.record.phase.held() || (late(entry) && !namespace_work.is_queued(name, WriteLane::Shown));
            let late = namespace_work.index.iter().filter(|(name, entry)| due(name, entry)).map(|(name, _)| name.clone());
            let surplus = namespace_work.index.queues().flat_map(|queue| namespace_work.index.surplus(queue));
            late.chain(surplus).chain(namespace_work.unsaved_progress(PROGRESS_WRITE_INTERVAL)).chain(offered).collect()
        });
        names.iter().for_each(|name| self.context.work_index.mark_due(namespace, name));
        self.limit(namespace);
        self.call(namespace);
    }

    /// Sets how many items the budgets above the namespace allow now.
    fn limit(&self, namespace: &str) {
        let limit = capacity::namespace_work_limit(namespace, &self.context.stores);
        self.context.work_index.with(namespace, |namespace_work| namespace_work.index.set_project_limit(limit));
    }

    /// Passes the item of this holder to the liveness checks.
    fn tell(&self, key: &ObjectKey) {
        let holding = self.context.work_index.with(&key.namespace, |namespace_work| {
            let pod = namespace_work.index.get(&key.name)?.record.holder.as_ref()?.pod.clone();
            Some((namespace_work.holding(&pod)?, pod))
        });
        let Some((holding, pod)) = holding else { return };
        let working = Working {
            held: holding.held,
            lease: holding.policy.lease,
            stall: holding.policy.stall_timeout,
            attempt: holding.policy.attempt_timeout,
            cancelling: holding.phase == Phase::Cancelling,
            paused: (holding.phase == Phase::Paused).then_some(holding.pauses),
            had_all_tokens: self.is_fresh(key, &pod),
        };
        self.context.live.holds(&pod, Some(working));
    }

    /// Whether the agent of this pod has used none of its lifetime tokens.
    fn is_fresh(&self, key: &ObjectKey, pod: &str) -> bool {
        let holder =
            self.context.work_index.with(&key.namespace, |namespace_work| namespace_work.index.get(&key.name)?.record.holder.clone());
        let agent =
            holder.filter(|holder| holder.pod == pod).map(|holder| ObjectKey { namespace: key.namespace.clone(), name: holder.agent });
        let agent = agent.and_then(|agent| self.context.stores.agent(&agent)).and_then(|agent| agent.uid());
        agent.is_some_and(|uid| self.context.meter.views(&TokenKey::Agent(uid)).iter().all(|view| view.used + view.held + view.lost == 0))
    }

    fn call(&self, namespace: &str) {
        if self.context.replay_window_open() {
            return; // the first round after that signals them
        }
        for pod in self.context.work_index.called(namespace) {
            self.context.live.offer(&pod);
        }
    }

    fn look(&self, key: ObjectKey) {
        let work_index = &self.context.work_index;
        if !work_index.is_ready() {
            return;
        }
        self.tell(&key);
        let Some(entry) = work_index.with(&key.namespace, |namespace_work| namespace_work.index.get(&key.name).cloned()) else { return };
        let holder = entry.record.holder.as_ref().map_or(HolderState::There, |holder| self.holder(&key.namespace, holder));
        match work_index.with(&key.namespace, |namespace_work| decide(namespace_work, &key.name, &entry, holder, now(), rand::random())) {
            ItemStep::Nothing => {}
            ItemStep::Remember(record) => work_index.remember(&key.namespace, &key.name, &entry, record),
            ItemStep::Store(..) => self.enqueue(key, WriteLane::Needed),
            ItemStep::Show(..) => self.enqueue(key, WriteLane::Shown),
            ItemStep::Collect(_) => self.enqueue(key, WriteLane::Collected),
        }
    }

    fn enqueue(&self, key: ObjectKey, lane: WriteLane) {
        if self.context.work_index.with(&key.namespace, |namespace_work| namespace_work.enqueue(&key.name, lane)) {
            tokio::spawn(self.clone().act(key, lane));
        }
    }

    /// Writes an item when its turn has come. What is written is decided then.
    async fn act(self, key: ObjectKey, lane: WriteLane) {
        let turns = match lane {
            WriteLane::Needed => &self.writes,
            WriteLane::Shown => &self.shown,
            WriteLane::Collected => &self.collected,
        };
        let place = turns.take(&key.namespace).await;
        let work_index = &self.context.work_index;
        let Some(entry) = work_index.with(&key.namespace, |namespace_work| {
            namespace_work.dequeue(&key.name, lane);
            namespace_work.index.get(&key.name).cloned()
        }) else {
            return self.context.succeeded(LOOP_NAME, &key); // it was deleted
        };
        let holder = entry.record.holder.as_ref().map_or(HolderState::There, |holder| self.holder(&key.namespace, holder));
        let what = work_index.with(&key.namespace, |namespace_work| {
            match decide(namespace_work, &key.name, &entry, holder, now(), rand::random()) {
                what @ (ItemStep::Store(..) | ItemStep::Show(..) | ItemStep::Collect(_)) if namespace_work.begin(&key.name) => what,
                ItemStep::Remember(record) => ItemStep::Remember(record),
                ItemStep::Nothing | ItemStep::Store(..) | ItemStep::Show(..) | ItemStep::Collect(_) => ItemStep::Nothing,
            }
        });
        let began = Instant::now();
        let result = match what {
            ItemStep::Nothing => return,
            ItemStep::Remember(record) => return work_index.remember(&key.namespace, &key.name, &entry, record),
            ItemStep::Store(record, beside) => self.store(&key, &entry, &record, &beside).await,
            ItemStep::Show(record, unmet) => self.show(&key, &entry, &record, unmet).await,
            ItemStep::Collect(removal) => self.collect(&key, &entry, removal).await,
        };
        // Other items get their turn while this one waits after a failure.
        if lane == WriteLane::Shown {
            let [least, most] = DISPLAY_PAUSE_RANGE;
            let rest = (began.elapsed() * DISPLAY_PAUSE_FACTOR).clamp(least, most);
            let quiet = self.context.foreground_writes.clone();
            tokio::spawn(async move {
                quiet.wait(rest).await;
                drop(place);
            });
        } else {
            drop(place);
        }
        self.finish_write(&key, result).await;
    }

    /// Writes the waiting phase of an item.
    async fn show(&self, key: &ObjectKey, entry: &Entry, record: &Record, unmet: Option<String>) -> Result<(), Error> {
        let beside = StatusExtras { unmet_requirements: unmet, ..StatusExtras::default() };
        let stored = store(&self.context, key, entry, record, &beside, WriteLane::Shown).await?;
        if beside.unmet_requirements.is_some() {
            tell_unmet(&self.context, key, &stored).await;
        }
        Ok(())
    }

    /// The state of the holder of an item, by its Agent: if its pod is gone, the Agent has ended.
    fn holder(&self, namespace: &str, holder: &Holder) -> HolderState {
        let key = ObjectKey { namespace: namespace.to_owned(), name: holder.agent.clone() };
        let Some(agent) = self.context.stores.agent(&key) else {
            // Our finalizer keeps an Agent until its pod is gone. Its absence is verified before the write.
            return HolderState::Gone(Verb::LeaseExpired, "AgentGone".into(), format!("Agent/{} does not exist any more", holder.agent));
        };
        let Ok(agent) = &agent.0 else { return HolderState::There };
        holder_state(agent, &holder.pod)
    }

    async fn store(&self, key: &ObjectKey, entry: &Entry, record: &Record, beside: &StatusExtras) -> Result<(), Error> {
        let freed = entry.record.holder.as_ref().filter(|_| record.holder.is_none());
        let reason = record.reason.as_deref();
        let by_time = matches!(reason, Some(why::DEADLINE_EXCEEDED | why::DEPENDENCY_MISSING | why::PLAN_INCOMPLETE | why::QUEUE_MISSING));
        if by_time && self.exists_live(key, entry, reason).await? {
            return Ok(());
        }
        if freed.is_some() || by_time {
            self.context.leadership.confirm().await?;
        }
        if let Some(holder) = freed.filter(|_| entry.spec.released_epoch != entry.record.epoch) {
            // A stale cache must not free an item that is held.
            let api = self.context.api::<Agent>(&key.namespace);
            let live = api.get_opt(&holder.agent).await.map_err(Error::of("reading the agent that holds an item"))?;
            let there = match live {
                Some(agent) => matches!(holder_state(&agent, &holder.pod), HolderState::There | HolderState::Paused(_)),
                // A person may have removed our finalizer. Then the pod may exist without its Agent.
                None => {
                    let pod = self.context.api::<Pod>(&key.namespace).get_metadata_opt(&holder.agent).await;
                    let pod = pod.map_err(Error::of("reading the pod that holds an item"))?;
                    pod.is_some_and(|pod| pod.metadata.uid.as_deref() == Some(&holder.pod))
                }
            };
            if there {
                return Ok(());
            }
        }
        if let (Some(group), true) = (&entry.spec.group, final_failure(&entry.record, record)) {
            super::queues::cancel_group(&self.context, &key.namespace, record.queue.as_deref().unwrap_or_default(), group).await?;
        }
        let stored = store(&self.context, key, entry, record, beside, WriteLane::Needed).await?;
        if matches!(record.phase, Phase::Rejected | Phase::DeadLettered | Phase::Failed | Phase::Expired) && !entry.record.phase.ended() {
            let reason = record.reason.clone().unwrap_or_else(|| "Ended".to_owned());
            tell_failure(&self.context, &stored, entry, record, "Settle", &reason).await;
        }
        Ok(())
    }

    /// Whether an object that the item waits for exists, although the watches do not show it: a watch can lag behind.
    async fn exists_live(&self, key: &ObjectKey, entry: &Entry, reason: Option<&str>) -> Result<bool, Error> {
        let mut found = false;
        if let (Some(why::QUEUE_MISSING), Some(name)) = (reason, entry.record.queue.as_ref().or(entry.spec.queue.as_ref())) {
            let queue = self.context.api::<WorkQueue>(&key.namespace).get_opt(name).await.map_err(Error::of("reading a queue"))?;
            if let Some(queue) = queue.filter(|queue| queue.metadata.deletion_timestamp.is_none()) {
                self.context.work_index.observe_queue(&key.namespace, name, Some(&queue));
                found = true;
            }
        }
        if reason == Some(why::DEPENDENCY_MISSING) {
            let api = self.context.api::<WorkItem>(&key.namespace);
            for on in &entry.spec.after {
                let item = api.get_opt(&on.name).await.map_err(Error::of("reading an item that another item depends on"))?;
                let known = self.context.work_index.with(&key.namespace, |namespace_work| namespace_work.index.get(&on.name).is_some());
                if let Some(item) = item.filter(|_| !known) {
                    self.context.work_index.observe(&item);
                    found = true;
                }
            }
        }
        Ok(found)
    }

    /// Deletes exactly the version that was decided on: an item that was redriven meanwhile is not removed.
    async fn collect(&self, key: &ObjectKey, entry: &Entry, removal: Removal) -> Result<(), Error> {
        self.context.leadership.confirm_within(DELETE_BATCH_DELAY).await?;
        let api = self.context.api::<WorkItem>(&key.namespace);
        if calls::delete_version(&api, &key.name, &entry.uid, &entry.version).await? {
            self.context.work_index.forget(&key.namespace, &key.name, &entry.uid);
            let dead_letter = entry.record.phase == Phase::DeadLettered;
            self.context.metrics.item_collected(dead_letter, removal);
            if dead_letter {
                let queue = entry.record.queue.as_deref().unwrap_or_default();
                tracing::info!(namespace = key.namespace, item = key.name, queue, ?removal, "a dead letter was deleted");
            }
        }
        Ok(())
    }

    /// Cleans up after a write, however it ended.
    async fn finish_write(&self, key: &ObjectKey, result: Result<(), Error>) {
        let work_index = &self.context.work_index;
        match result {
            Ok(()) => self.context.succeeded(LOOP_NAME, key),
            // The current version was read: the item is checked again at once.
            Err(error) if error.class() == Class::Conflict => work_index.mark_due(&key.namespace, &key.name),
            Err(error) => {
                let Some(wait) = self.context.record_failure(LOOP_NAME, key.clone(), &error) else { return };
                tokio::time::sleep(wait).await;
                work_index.mark_due(&key.namespace, &key.name);
            }
        }
        work_index.written(&key.namespace, &key.name);
    }
}

/// The next step for an item. `dice` is uniform in [0, 1).
fn decide(namespace_work: &mut NamespaceWork, name: &str, entry: &Entry, holder: HolderState, now: UnixMillis, dice: f64) -> ItemStep {
    // The item may have changed since it was read.
    if namespace_work.index.get(name) != Some(entry) {
        return ItemStep::Nothing;
    }
    if namespace_work.is_busy(name) {
        namespace_work.begin(name); // checked again after the write
        return ItemStep::Nothing;
    }
    match namespace_work.index.settle(name, holder, now, dice) {
        Some(next) if entry.record.phase.waits() && next.phase.waits() && next.redrives == entry.record.redrives => {
            ItemStep::Remember(next)
        }
        Some(next) => {
            let again = entry.record.phase == Phase::DeadLettered && next.phase == Phase::DeadLettered;
            let refusal = (again || next.phase == Phase::Rejected).then(|| namespace_work.index.admission(name, &entry.spec));
            let message = match refusal {
                Some(Admission::Refused(refusal)) => Some(refusal.to_string()),
                Some(Admission::Unknown | Admission::To(_)) | None => None,
            };
            ItemStep::Store(next, StatusExtras { message, ..StatusExtras::default() })
        }
        None => {
            if let Some(removal) = namespace_work.index.removal(name, now) {
                return ItemStep::Collect(removal);
            }
            let late = entry.unsaved.is_some_and(|since| now.0 - since.0 >= WAITING_PHASE_DELAY_MS);
            let advance =
                namespace_work.progress(&entry.uid).filter(|_| namespace_work.progress_is_due(&entry.uid, PROGRESS_WRITE_INTERVAL));
            match advance.map(progress) {
                Some(progress) => {
                    ItemStep::Store(entry.record.clone(), StatusExtras { progress: Some(progress), ..StatusExtras::default() })
                }
                None if late => ItemStep::Show(entry.record.clone(), namespace_work.unmet(name)),
                None => ItemStep::Nothing,
            }
        }
    }
}
