//! The loop of the governor of work: what follows by itself, writes that wait, collecting.
//!
//! What nobody but us relies on (an item is ready) is kept in memory and written only when nothing came of it for a while;
//! what somebody may rely on is written first. What follows from time, or takes something from somebody, waits for a
//! renewal of our lease that began after the decision.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::{Resource as _, ResourceExt};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::convert::Beside;
use super::gangs;
use super::holder::end_of;
use super::item_events::{tell_failure, tell_unmet};
use super::item_write::{final_failure, progress, store};
use super::queues::Queues;
use super::room::{Lane, Room, now};
use crate::api::{Agent, WorkItem, WorkQueue};
use crate::cluster::{Class, Error, ObjectKey, calls};
use crate::controller::{Context, places};
use crate::governor::live::Working;
use crate::policy::budget::Key as TokenKey;
use crate::policy::turns::Line;
use crate::policy::work::admit::Admission;
use crate::policy::work::book::Removal;
use crate::policy::work::entry::Entry;
use crate::policy::work::item::{At, Holder, Phase, Record, Verb, reasons as why};
use crate::policy::work::settle::HolderIs;
use crate::serve::turns::{Bounds, Turns};
use spillway_conversion::pool::taking;

/// Between two looks at what is due.
const TICK: Duration = Duration::from_millis(100);
/// Between two looks at everything that waits for something else than its time.
const ROUND: Duration = Duration::from_secs(1);
/// A waiting phase is written if nobody claimed the item for so long.
const UNSAVED: i64 = 2_000;
/// Between two writes of how far an item is.
const PROGRESS: Duration = Duration::from_secs(5);
/// Writes at once. Each item waits once at most, here and in each of the other lanes.
const WRITES: Bounds = Bounds { all: 64, of_one: 48, waiting: usize::MAX };
/// Writes at once that only show that an item waits, on which nobody relies. Of ten thousand items that come together they take
/// all that the API server can do while nothing else is written, and nearly nothing while something is.
const SHOWN: Bounds = Bounds { all: 4, of_one: 2, waiting: usize::MAX };
/// After each, the next one waits until nothing else is written, but no more than so many times as long as that one took: and so
/// the longer the more the API server has to do.
const SHOWN_REST: u32 = 19;
/// At least and at most so long.
const SHOWN_EACH: [Duration; 2] = [Duration::from_millis(25), Duration::from_secs(2)];
/// Deletions of finished items at once, beside those: nobody waits for them, and none of them is waited for.
const COLLECTED: Bounds = Bounds { all: 80, of_one: 64, waiting: usize::MAX };
/// Deletions wait so long for each other: one renewal of our lease proves for all of them that we lead.
const COLLECTED_WITHIN: Duration = Duration::from_millis(500);
/// Items that are looked at before others have their turn.
const LOOKS: usize = 64;
/// Name of this loop in logs and back-offs.
const LOOP: &str = "workitem";

/// Runs until our leadership ends.
pub async fn run(context: Arc<Context>, looks: mpsc::UnboundedReceiver<ObjectKey>, queues: Queues) {
    let (writes, shown, collected) = (Turns::new(WRITES), Turns::new(SHOWN), Turns::new(COLLECTED));
    let writer = Writer { context: context.clone(), writes, shown, collected };
    futures::join!(dispatch(writer.clone(), looks), tick(writer), queues.publish(context));
}

/// Looks at one item after the other, a namespace's after another's, and calls those who wait for what became ready.
async fn dispatch(writer: Writer, mut looks: mpsc::UnboundedReceiver<ObjectKey>) {
    let mut line = Line::new(usize::MAX);
    loop {
        if line.is_empty() {
            let Some(key) = looks.recv().await else { return };
            wait(&mut line, key);
        }
        while let Ok(key) = looks.try_recv() {
            wait(&mut line, key);
        }
        let mut namespaces = HashSet::new();
        for (namespace, key) in std::iter::from_fn(|| line.next(|_| true)).take(LOOKS) {
            writer.context.desk.looks_at(&key);
            if namespaces.insert(namespace) {
                writer.limit(&key.namespace);
            }
            writer.look(key);
        }
        namespaces.iter().for_each(|namespace| writer.call(namespace));
        // Others have their turn, however many come.
        tokio::task::yield_now().await;
    }
}

/// An item waits to be looked at: once, as the desk sees to.
fn wait(line: &mut Line<String, ObjectKey>, key: ObjectKey) {
    let _ = line.join(key.namespace.clone(), key); // as many wait as there are items
}

async fn tick(writer: Writer) {
    let desk = writer.context.desk.clone();
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut rounds, mut gangs) = (0_u32, gangs::Known::new());
    loop {
        ticks.tick().await;
        if !desk.is_ready() {
            continue;
        }
        rounds += 1;
        let round = TICK * rounds >= ROUND;
        for namespace in desk.namespaces() {
            let due = desk.with(&namespace, |room| room.book.due(now()));
            due.iter().for_each(|name| desk.look(&namespace, name));
            if round {
                writer.round(&namespace);
            }
            if desk.with(&namespace, Room::moved) {
                writer.context.wake.pools_in(&writer.context.stores.pools, &namespace);
            }
        }
        if round {
            rounds = 0;
            writer.context.live.only_these_hold(&desk.holders());
            gangs::look(&mut gangs, &writer.context);
            super::spent::tell_late(&writer.context, &writer.writes);
            desk.tidy();
        }
    }
}

/// What is to be done about an item.
enum Do {
    Nothing,
    Remember(Record),
    Store(Record, Beside),
    /// To be seen: that it waits; and what for, if no pool has that.
    Show(Record, Option<String>),
    Collect(Removal),
}

#[derive(Clone)]
struct Writer {
    context: Arc<Context>,
    writes: Turns,
    shown: Turns,
    collected: Turns,
}

impl Writer {
    /// What no event tells: agents that ended, waiting phases and progress that are to be written, too many finished items.
    fn round(&self, namespace: &str) {
        let now = now();
        let taking_of = |pool: &str| {
            let pool = self.context.stores.pool(namespace, pool);
            pool.as_ref().and_then(|pool| pool.0.as_ref().ok()).map(taking)
        };
        let all = || {
            let pools = self.context.stores.pools.state().into_iter().filter(|pool| pool.namespace().as_deref() == Some(namespace));
            let there = pools.filter(|pool| pool.meta().deletion_timestamp.is_none());
            there.filter_map(|pool| pool.0.as_ref().ok().map(taking)).collect()
        };
        let names: HashSet<String> = self.context.desk.with(namespace, |room| {
            // Agents that wait for work take it from another queue as soon as their pool names one.
            room.take_from(taking_of);
            let offered = room.offered(all);
            let late = |entry: &Entry| entry.unsaved.is_some_and(|since| now.0 - since.0 >= UNSAVED);
            let due = |name: &str, entry: &Entry| entry.record.phase.held() || (late(entry) && !room.is_queued(name, Lane::Shown));
            let late = room.book.iter().filter(|(name, entry)| due(name, entry)).map(|(name, _)| name.clone());
            let surplus = room.book.queues().flat_map(|queue| room.book.surplus(queue));
            late.chain(surplus).chain(room.unsaved_progress(PROGRESS)).chain(offered).collect()
        });
        names.iter().for_each(|name| self.context.desk.look(namespace, name));
        self.limit(namespace);
        self.call(namespace);
    }

    /// Items are admitted by what the budgets above their namespace allow now.
    fn limit(&self, namespace: &str) {
        let limit = places::project_work(namespace, &self.context.stores);
        self.context.desk.with(namespace, |room| room.book.set_project_limit(limit));
    }

    /// Tells who hears agents what this item's holder works on.
    fn tell(&self, key: &ObjectKey) {
        let holding = self.context.desk.with(&key.namespace, |room| {
            let pod = room.book.get(&key.name)?.record.holder.as_ref()?.pod.clone();
            Some((room.holding(&pod)?, pod))
        });
        let Some((holding, pod)) = holding else { return };
        let working = Working {
            held: holding.held,
            lease: holding.policy.lease,
            stall: holding.policy.stall_timeout,
            attempt: holding.policy.attempt_timeout,
            cancelling: holding.phase == Phase::Cancelling,
            paused: (holding.phase == Phase::Paused).then_some(holding.pauses),
            fresh: self.is_fresh(key, &pod),
        };
        self.context.live.holds(&pod, Some(working));
    }

    /// Whether the agent with this pod has all the tokens of its life.
    fn is_fresh(&self, key: &ObjectKey, pod: &str) -> bool {
        let holder = self.context.desk.with(&key.namespace, |room| room.book.get(&key.name)?.record.holder.clone());
        let agent =
            holder.filter(|holder| holder.pod == pod).map(|holder| ObjectKey { namespace: key.namespace.clone(), name: holder.agent });
        let agent = agent.and_then(|agent| self.context.stores.agent(&agent)).and_then(|agent| agent.uid());
        agent.is_some_and(|uid| self.context.meter.views(&TokenKey::Agent(uid)).iter().all(|view| view.used + view.held + view.lost == 0))
    }

    fn call(&self, namespace: &str) {
        if self.context.replay_window_open() {
            return; // the first round after that calls them
        }
        for pod in self.context.desk.called(namespace) {
            self.context.live.offer(&pod);
        }
    }

    fn look(&self, key: ObjectKey) {
        let desk = &self.context.desk;
        if !desk.is_ready() {
            return;
        }
        self.tell(&key);
        let Some(entry) = desk.with(&key.namespace, |room| room.book.get(&key.name).cloned()) else { return };
        let holder = entry.record.holder.as_ref().map_or(HolderIs::There, |holder| self.holder(&key.namespace, holder));
        match desk.with(&key.namespace, |room| decide(room, &key.name, &entry, holder, now(), rand::random())) {
            Do::Nothing => {}
            Do::Remember(record) => desk.remember(&key.namespace, &key.name, &entry, record),
            Do::Store(..) => self.enqueue(key, Lane::Needed),
            Do::Show(..) => self.enqueue(key, Lane::Shown),
            Do::Collect(_) => self.enqueue(key, Lane::Collected),
        }
    }

    fn enqueue(&self, key: ObjectKey, lane: Lane) {
        if self.context.desk.with(&key.namespace, |room| room.enqueue(&key.name, lane)) {
            tokio::spawn(self.clone().act(key, lane));
        }
    }

    /// Writes what is to be written, when its turn has come: what that is, is decided then.
    async fn act(self, key: ObjectKey, lane: Lane) {
        let turns = match lane {
            Lane::Needed => &self.writes,
            Lane::Shown => &self.shown,
            Lane::Collected => &self.collected,
        };
        let place = turns.take(&key.namespace).await;
        let desk = &self.context.desk;
        let Some(entry) = desk.with(&key.namespace, |room| {
            room.dequeue(&key.name, lane);
            room.book.get(&key.name).cloned()
        }) else {
            return self.context.succeeded(LOOP, &key); // it is gone: nothing is remembered of it
        };
        let holder = entry.record.holder.as_ref().map_or(HolderIs::There, |holder| self.holder(&key.namespace, holder));
        let what = desk.with(&key.namespace, |room| match decide(room, &key.name, &entry, holder, now(), rand::random()) {
            what @ (Do::Store(..) | Do::Show(..) | Do::Collect(_)) if room.begin(&key.name) => what,
            Do::Remember(record) => Do::Remember(record),
            Do::Nothing | Do::Store(..) | Do::Show(..) | Do::Collect(_) => Do::Nothing,
        });
        let began = Instant::now();
        let result = match what {
            Do::Nothing => return,
            Do::Remember(record) => return desk.remember(&key.namespace, &key.name, &entry, record),
            Do::Store(record, beside) => self.store(&key, &entry, &record, &beside).await,
            Do::Show(record, unmet) => self.show(&key, &entry, &record, unmet).await,
            Do::Collect(removal) => self.collect(&key, &entry, removal).await,
        };
        // Others have their turn while this one waits after a failure.
        if lane == Lane::Shown {
            let [least, most] = SHOWN_EACH;
            let rest = (began.elapsed() * SHOWN_REST).clamp(least, most);
            let quiet = self.context.quiet.clone();
            tokio::spawn(async move {
                quiet.wait(rest).await;
                drop(place);
            });
        } else {
            drop(place);
        }
        self.over(&key, result).await;
    }

    /// Shows that an item waits.
    async fn show(&self, key: &ObjectKey, entry: &Entry, record: &Record, unmet: Option<String>) -> Result<(), Error> {
        let beside = Beside { unmet, ..Beside::default() };
        let stored = store(&self.context, key, entry, record, &beside, Lane::Shown).await?;
        if beside.unmet.is_some() {
            tell_unmet(&self.context, key, &stored).await;
        }
        Ok(())
    }

    /// How the holder of an item is, as its Agent tells: one whose pod is gone has ended.
    fn holder(&self, namespace: &str, holder: &Holder) -> HolderIs {
        let key = ObjectKey { namespace: namespace.to_owned(), name: holder.agent.clone() };
        let Some(agent) = self.context.stores.agent(&key) else {
            // Our finalizer keeps an Agent until its pod is gone. That it is really absent is looked at before the write.
            return HolderIs::Gone(Verb::LeaseExpired, "AgentGone".into(), format!("Agent/{} does not exist any more", holder.agent));
        };
        let Ok(agent) = &agent.0 else { return HolderIs::There };
        end_of(agent, &holder.pod)
    }

    async fn store(&self, key: &ObjectKey, entry: &Entry, record: &Record, beside: &Beside) -> Result<(), Error> {
        let freed = entry.record.holder.as_ref().filter(|_| record.holder.is_none());
        let reason = record.reason.as_deref();
        let by_time = matches!(reason, Some(why::DEADLINE_EXCEEDED | why::DEPENDENCY_MISSING | why::PLAN_INCOMPLETE | why::QUEUE_MISSING));
        if by_time && self.is_there_after_all(key, entry, reason).await? {
            return Ok(());
        }
        if freed.is_some() || by_time {
            self.context.leadership.confirm().await?;
        }
        if let Some(holder) = freed.filter(|_| entry.spec.freed_epoch != entry.record.epoch) {
            // A cache that is behind must not free what is held.
            let api = self.context.api::<Agent>(&key.namespace);
            let live = api.get_opt(&holder.agent).await.map_err(Error::of("reading the agent that holds an item"))?;
            let there = match live {
                Some(agent) => matches!(end_of(&agent, &holder.pod), HolderIs::There | HolderIs::Paused(_)),
                // Somebody may have taken our finalizer off: then its pod may be there without it.
                None => {
                    let pod = self.context.api::<Pod>(&key.namespace).get_metadata_opt(&holder.agent).await;
                    let pod = pod.map_err(Error::of("looking for the pod that holds an item"))?;
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
        let stored = store(&self.context, key, entry, record, beside, Lane::Needed).await?;
        if matches!(record.phase, Phase::Rejected | Phase::DeadLettered | Phase::Failed | Phase::Expired) && !entry.record.phase.ended() {
            let reason = record.reason.clone().unwrap_or_else(|| "Ended".to_owned());
            let last = record.history.last().and_then(|last| last.message.clone());
            let note = beside.message.clone().or(last).unwrap_or_else(|| format!("it is {:?} now", record.phase));
            tell_failure(&self.context, &stored, entry, record, "Settle", (&reason, note)).await;
        }
        Ok(())
    }

    /// What an item waits for in vain, as far as the watches show, may be there: a watch can be behind.
    async fn is_there_after_all(&self, key: &ObjectKey, entry: &Entry, reason: Option<&str>) -> Result<bool, Error> {
        let mut found = false;
        if let (Some(why::QUEUE_MISSING), Some(name)) = (reason, entry.record.queue.as_ref().or(entry.spec.queue.as_ref())) {
            let queue = self.context.api::<WorkQueue>(&key.namespace).get_opt(name).await.map_err(Error::of("reading a queue"))?;
            if let Some(queue) = queue.filter(|queue| queue.metadata.deletion_timestamp.is_none()) {
                self.context.desk.observe_queue(&key.namespace, name, Some(&queue));
                found = true;
            }
        }
        if reason == Some(why::DEPENDENCY_MISSING) {
            let api = self.context.api::<WorkItem>(&key.namespace);
            for on in &entry.spec.after {
                let item = api.get_opt(&on.name).await.map_err(Error::of("reading an item that is waited for"))?;
                let known = self.context.desk.with(&key.namespace, |room| room.book.get(&on.name).is_some());
                if let Some(item) = item.filter(|_| !known) {
                    self.context.desk.observe(&item);
                    found = true;
                }
            }
        }
        Ok(found)
    }

    /// Only the very version that was decided on: a redrive that came meanwhile is not removed.
    async fn collect(&self, key: &ObjectKey, entry: &Entry, removal: Removal) -> Result<(), Error> {
        self.context.leadership.confirm_within(COLLECTED_WITHIN).await?;
        let api = self.context.api::<WorkItem>(&key.namespace);
        if calls::delete_version(&api, &key.name, &entry.uid, &entry.version).await? {
            self.context.desk.forget(&key.namespace, &key.name, &entry.uid);
            let dead_letter = entry.record.phase == Phase::DeadLettered;
            self.context.metrics.item_collected(dead_letter, removal);
            if dead_letter {
                let queue = entry.record.queue.as_deref().unwrap_or_default();
                tracing::info!(namespace = key.namespace, item = key.name, queue, ?removal, "a dead letter was deleted");
            }
        }
        Ok(())
    }

    /// After a write, however it ended.
    async fn over(&self, key: &ObjectKey, result: Result<(), Error>) {
        let desk = &self.context.desk;
        match result {
            Ok(()) => self.context.succeeded(LOOP, key),
            // What is true now was read; it is looked at again at once.
            Err(error) if error.class() == Class::Conflict => desk.look(&key.namespace, &key.name),
            Err(error) => {
                let Some(wait) = self.context.put_off(LOOP, key.clone(), &error) else { return };
                tokio::time::sleep(wait).await;
                desk.look(&key.namespace, &key.name);
            }
        }
        desk.written(&key.namespace, &key.name);
    }
}

/// `dice` is uniform in [0, 1).
fn decide(room: &mut Room, name: &str, entry: &Entry, holder: HolderIs, now: At, dice: f64) -> Do {
    // It may have changed since it was read.
    if room.book.get(name) != Some(entry) {
        return Do::Nothing;
    }
    if room.is_busy(name) {
        room.begin(name); // looked at again afterwards
        return Do::Nothing;
    }
    match room.book.settle(name, holder, now, dice) {
        Some(next) if entry.record.phase.waits() && next.phase.waits() && next.redrives == entry.record.redrives => Do::Remember(next),
        Some(next) => {
            let again = entry.record.phase == Phase::DeadLettered && next.phase == Phase::DeadLettered;
            let refusal = (again || next.phase == Phase::Rejected).then(|| room.book.admission(name, &entry.spec));
            let message = match refusal {
                Some(Admission::Refused(refusal)) => Some(refusal.to_string()),
                Some(Admission::Unknown | Admission::To(_)) | None => None,
            };
            Do::Store(next, Beside { message, ..Beside::default() })
        }
        None => {
            if let Some(removal) = room.book.removal(name, now) {
                return Do::Collect(removal);
            }
            let late = entry.unsaved.is_some_and(|since| now.0 - since.0 >= UNSAVED);
            let advance = room.progress(&entry.uid).filter(|_| room.progress_is_due(&entry.uid, PROGRESS));
            match advance.map(progress) {
                Some(progress) => Do::Store(entry.record.clone(), Beside { progress: Some(progress), ..Beside::default() }),
                None if late => Do::Show(entry.record.clone(), room.unmet(name)),
                None => Do::Nothing,
            }
        }
    }
}
