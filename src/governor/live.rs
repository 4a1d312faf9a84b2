//! Reports of agents and their desired state: in memory, by pod uid, for as long as we lead.
//!
//! It must not decide: `policy::health` makes the findings from the times of `policy::liveness`, and the reconciler
//! sets the directives. Invariant: a revision of a desired state is never used for two different states, whoever leads.

mod agent;
mod commands;
mod signals;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{broadcast, watch};

use self::agent::{AgentRecord, ItemInHand, MAX_MISSED_REPORTS};
use crate::cluster::ObjectKey;
use crate::cluster::clock::BootTime;
use crate::policy::health::{self, Finding};
use crate::policy::interventions::Timeout;
use crate::policy::liveness::{Liveness, ReportTimes, ServedTimes};
use crate::wire::agent::{DesiredState, Directive, Notice, Program, Report, Sandbox};
use crate::wire::command::BreakerState;
use crate::wire::governor::Change;
use crate::wire::work::{ItemOrder, ItemWanted};

pub use self::agent::{Expected, HumanRequest, View, Working};

/// Interval of the liveness clock.
pub const LIVENESS_TICK_INTERVAL: Duration = Duration::from_secs(1);
/// The longest time that one tick counts. A process that was stopped or starved did not listen meanwhile.
const MAX_TICK: Duration = Duration::from_secs(3);
/// Notices kept for an agent that does not acknowledge them.
const MAX_PENDING_NOTICES: usize = 32;
/// Changes that a slow gateway may lag behind. Then its stream ends and it connects again.
const MAX_CHANGE_BACKLOG: usize = 4096;

#[derive(Default)]
struct State {
    liveness: Liveness,
    agents: HashMap<String, AgentRecord>,
    /// Agents whose own command breaker is not closed, with its state.
    tripped: HashMap<String, BreakerState>,
    /// Gangs that were reported to people, by namespace and message.
    gangs: HashMap<(String, String), BootTime>,
}

struct Shared {
    epoch: i64,
    state: Mutex<State>,
    changes: broadcast::Sender<Change>,
    stored: watch::Sender<()>,
}

/// The in-memory state of all agents. Cheap to clone.
#[derive(Clone)]
pub struct Live(Arc<Shared>);

impl Live {
    /// Starts empty. `epoch` is our owner epoch.
    pub fn new(epoch: i64) -> Self {
        let (changes, _) = broadcast::channel(MAX_CHANGE_BACKLOG);
        Self(Arc::new(Shared { epoch, state: Mutex::default(), changes, stored: watch::channel(()).0 }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stream of changes, for one gateway.
    pub fn changes(&self) -> broadcast::Receiver<Change> {
        self.0.changes.subscribe()
    }

    /// A gateway's session, until the guard is dropped.
    pub fn session(&self, gateway: String) -> Session {
        self.lock().liveness.connected(&gateway);
        Session { live: self.clone(), gateway }
    }

    /// The reconciler sees an agent whose pod runs: from now on the agent is expected to report.
    pub fn expect(&self, uid: &str, expected: Expected) {
        let mut state = self.lock();
        state.liveness.expect(uid);
        state.agents.entry(uid.to_owned()).or_default().expected = Some(expected);
    }

    /// Records that an agent registered. Returns whether that is news.
    pub fn registered(&self, uid: &str, gateway: &str, sandbox: Option<Sandbox>) -> bool {
        let mut state = self.lock();
        state.liveness.record_report(uid, gateway, ReportTimes::default());
        let one = state.agents.entry(uid.to_owned()).or_default();
        let news = !one.registered || one.sandbox != sandbox;
        one.idle = Duration::ZERO;
        (one.registered, one.sandbox) = (true, sandbox.or(one.sandbox.take()));
        news
    }

    /// Records a report. Returns whether it contains news for the reconciler.
    pub fn reported(&self, uid: &str, gateway: &str, report: Report, now: jiff::Timestamp) -> bool {
        let mut state = self.lock();
        let heard = ReportTimes {
            silent: Duration::from_millis(report.silent_ms),
            frozen: if report.program == Program::Frozen { Duration::from_millis(report.frozen_ms.max(1)) } else { Duration::ZERO },
        };
        state.liveness.record_report(uid, gateway, heard);
        state.set_breaker_state(uid, report.breaker);
        let one = state.agents.entry(uid.to_owned()).or_default();
        let before = one.notices.len();
        one.notices.retain(|notice| notice.id > report.notices_seen);
        if one.notices.len() != before {
            one.revision += 1; // not sent: the agent that acknowledges knows it
        }
        let telling = |report: &Report| {
            let Report { program, action, attached, reachable, held, preflight, commands, checkpoint, refused, unavailable, .. } =
                report.clone();
            let sandbox = (refused.uses, unavailable);
            (program, action, attached, reachable, held, preflight, commands.opened, checkpoint, sandbox)
        };
        let news = !one.registered || one.report.as_ref().map(|(last, _)| telling(last)) != Some(telling(&report));
        (one.registered, one.idle) = (true, Duration::ZERO);
        // The preflight command runs before the program, on the same start order.
        one.started |= report.program != Program::Waiting || report.preflight.is_some();
        one.report = Some((report, now));
        news
    }

    /// Records the goodbye of an agent. The first reason is kept.
    pub fn say_goodbye(&self, uid: &str, reason: String, now: jiff::Timestamp) {
        self.lock().agents.entry(uid.to_owned()).or_default().goodbye.get_or_insert((reason, now));
    }

    /// Records that the program of an agent was started, because the agent asks for work. Returns whether that is news.
    pub fn started(&self, uid: &str) -> bool {
        let mut state = self.lock();
        let one = state.agents.entry(uid.to_owned()).or_default();
        !std::mem::replace(&mut one.started, true)
    }

    /// Sets the item that an agent holds. The clocks of the item restart when the lease changes.
    pub fn holds(&self, uid: &str, working: Option<Working>) {
        let mut state = self.lock();
        let Some(one) = state.agents.get_mut(uid) else { return };
        let order = working.as_ref().and_then(|working| {
            let order = if working.cancelling { Some(ItemOrder::Cancel) } else { working.paused.map(ItemOrder::Pause) };
            order.map(|order| ItemWanted { held: working.held.clone(), order })
        });
        // A resumed item is sent at once, and not with the next report.
        let goes_on = matches!(&one.item, Some(ItemWanted { held, order: ItemOrder::Pause(_) })
            if working.as_ref().is_some_and(|working| working.held == *held && working.paused.is_none()));
        let same = one.item_in_hand.as_ref().map(|hand| &hand.working.held) == working.as_ref().map(|working| &working.held);
        one.item_in_hand = working.map(|working| match one.item_in_hand.take() {
            Some(hand) if same => ItemInHand { working: Working { had_all_tokens: hand.working.had_all_tokens, ..working }, ..hand },
            Some(_) | None => ItemInHand { working, held: Duration::ZERO, without_progress: Duration::ZERO, cancelling: Duration::ZERO },
        });
        if order.is_some() || goes_on {
            self.order_item(uid, one, order);
        }
    }

    /// Clears the item of every agent whose pod is not in this list, for example when the item was deleted.
    pub fn retain_holders(&self, pods: &std::collections::HashSet<String>) {
        for (uid, one) in &mut self.lock().agents {
            if !pods.contains(uid) {
                one.item_in_hand = None;
            }
        }
    }

    /// Records that an agent reported progress of its item.
    pub fn progressed(&self, uid: &str) {
        if let Some(hand) = self.lock().agents.get_mut(uid).and_then(|one| one.item_in_hand.as_mut()) {
            hand.without_progress = Duration::ZERO;
        }
    }

    /// Sets the order for the item that an agent says it holds. `None` lets it continue.
    pub fn tell_item(&self, uid: &str, item: Option<ItemWanted>) {
        let mut state = self.lock();
        if let Some(one) = state.agents.get_mut(uid) {
            self.order_item(uid, one, item);
        }
    }

    fn order_item(&self, uid: &str, one: &mut AgentRecord, item: Option<ItemWanted>) {
        if one.item != item {
            one.item = item;
            self.changed(uid, one);
        }
    }

    /// Signals an agent that asked for work that there may be some.
    pub fn offer(&self, uid: &str) {
        let _ = self.0.changes.send(Change::Work { uid: uid.to_owned() }); // without a gateway no agent waits
    }

    /// Records that the status contains the goodbye of an agent.
    pub fn goodbye_stored(&self, uid: &str) {
        let mut state = self.lock();
        let one = state.agents.entry(uid.to_owned()).or_default();
        if !std::mem::replace(&mut one.goodbye_stored, true) {
            drop(state);
            self.0.stored.send_replace(());
        }
    }

    /// Waits until the status contains the goodbye of an agent.
    pub async fn until_goodbye_is_stored(&self, uid: &str) {
        let mut stored = self.0.stored.subscribe();
        while !self.lock().agents.get(uid).is_some_and(|one| one.goodbye_stored) {
            if stored.changed().await.is_err() {
                return;
            }
        }
    }

    /// Records what an agent asks people for. The last request counts.
    pub fn ask(&self, uid: &str, asks: HumanRequest) {
        self.lock().agents.entry(uid.to_owned()).or_default().asks = Some(asks);
    }

    /// Records that the status contains this request.
    pub fn asks_stored(&self, uid: &str, stored: HumanRequest) {
        let mut state = self.lock();
        let Some(one) = state.agents.get_mut(uid) else { return };
        if one.asks_stored.as_ref() != Some(&stored) {
            one.asks_stored = Some(stored);
            drop(state);
            self.0.stored.send_replace(());
        }
    }

    /// Waits until the status contains the latest request of an agent.
    pub async fn until_asks_are_stored(&self, uid: &str) {
        let mut stored = self.0.stored.subscribe();
        while !self.lock().agents.get(uid).is_some_and(|one| one.asks == one.asks_stored) {
            if stored.changed().await.is_err() {
                return;
            }
        }
    }

    /// The lock that is held while a child of this agent is created. It contains the creation times that still count.
    pub fn spawn_lock(&self, uid: &str) -> Arc<tokio::sync::Mutex<Vec<BootTime>>> {
        self.lock().agents.entry(uid.to_owned()).or_default().spawning.clone()
    }

    /// Sets the directive of an agent, as its reconciler decides.
    pub fn set_directive(&self, uid: &str, directive: Directive) {
        self.update_directive(uid, directive, true);
    }

    /// Sets the directive from the stored object. It counts until the reconciler has looked at the agent.
    pub fn restore_directive(&self, uid: &str, directive: Directive) {
        self.update_directive(uid, directive, false);
    }

    fn update_directive(&self, uid: &str, directive: Directive, looked: bool) {
        let mut state = self.lock();
        let one = state.agents.entry(uid.to_owned()).or_default();
        one.idle = Duration::ZERO;
        if one.directed && !looked {
            return;
        }
        one.directed = looked;
        if one.directive != directive {
            one.directive = directive;
            self.changed(uid, one);
        }
    }

    /// Adds a notice for an agent.
    pub fn add_notice(&self, uid: &str, about: &str, text: &str, now: jiff::Timestamp) {
        let mut state = self.lock();
        let one = state.agents.entry(uid.to_owned()).or_default();
        one.notices_said += 1;
        // Ids also rise across leaders: an agent that saw the notices of a former leader must not take ours for old
        // ones.
        let id = u64::try_from(self.0.epoch).unwrap_or(0).saturating_mul(1 << 16).saturating_add(one.notices_said);
        if one.notices.len() == MAX_PENDING_NOTICES {
            one.notices.pop_front();
        }
        one.notices.push_back(Notice { id, time: now.to_string(), about: about.to_owned(), text: text.to_owned() });
        self.changed(uid, one);
    }

    fn changed(&self, uid: &str, one: &mut AgentRecord) {
        one.revision += 1;
        // Without a gateway nothing listens. A gateway that connects asks for the state.
        let _ = self.0.changes.send(Change::Wanted { uid: uid.to_owned(), revision: self.revision(one) });
    }

    fn revision(&self, one: &AgentRecord) -> String {
        format!("{}.{}", self.0.epoch, one.revision)
    }

    /// The complete desired state of an agent.
    pub fn desired_state(&self, uid: &str) -> DesiredState {
        let mut state = self.lock();
        let one = state.agents.entry(uid.to_owned()).or_default();
        DesiredState {
            revision: self.revision(one),
            directive: one.directive,
            notices: one.notices.iter().cloned().collect(),
            item: one.item.clone(),
            commands: one.command_state.told.as_ref().map(|(breakers, until)| {
                let mut breakers = breakers.clone();
                if let (Some(open), Some(until)) = (&mut breakers.open_globally, until) {
                    let left = until.since(BootTime::now());
                    open.retry_after_milliseconds = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
                }
                Box::new(breakers)
            }),
        }
    }

    /// Records that an agent ended: gateways accept no more calls of it.
    pub fn revoke(&self, uid: &str) {
        let mut state = self.lock();
        state.liveness.forget(uid);
        state.tripped.remove(uid);
        if state.agents.remove(uid).is_some() {
            let _ = self.0.changes.send(Change::Revoked { uid: uid.to_owned() });
        }
    }

    /// The Agent `key` is deleted: forgets all of its pods.
    pub fn forget(&self, key: &ObjectKey) {
        let of_key = |one: &AgentRecord| one.expected.as_ref().is_some_and(|expected| expected.key == *key);
        let gone: Vec<String> = self.lock().agents.iter().filter(|(_, one)| of_key(one)).map(|(uid, _)| uid.clone()).collect();
        gone.iter().for_each(|uid| self.revoke(uid));
    }

    /// The view of one agent.
    pub fn view(&self, uid: &str) -> Option<View> {
        let state = self.lock();
        let one = state.agents.get(uid)?;
        let ago = |times: &VecDeque<BootTime>| times.iter().map(|time| time.elapsed()).collect();
        Some(View {
            registered: one.registered,
            started: one.started,
            report: one.report.clone(),
            sandbox: one.sandbox.clone(),
            finding: one.finding,
            goodbye: one.goodbye.clone(),
            asks: one.asks.clone(),
            occurrences: one.occurrences.iter().map(|(signal, times)| (*signal, ago(times))).collect(),
            words: one.words.clone(),
            refused_at_limit: one.refused_at_limit,
            began_fresh: one.item_in_hand.as_ref().is_some_and(|hand| hand.working.had_all_tokens),
            timeouts: one.timeouts,
        })
    }

    /// Advances the clock, and wakes the reconcilers of agents whose finding has changed. Never returns.
    pub async fn run(self, wake: impl Fn(&ObjectKey)) {
        let mut last = BootTime::now();
        let mut ticks = tokio::time::interval(LIVENESS_TICK_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let now = BootTime::now();
            let time = now.since(last).min(MAX_TICK);
            last = now;
            self.tick(time).iter().for_each(&wake);
        }
    }

    /// One tick. Returns the agents whose finding has changed.
    pub(super) fn tick(&self, time: Duration) -> Vec<ObjectKey> {
        let mut guard = self.lock();
        let State { liveness, agents, tripped, gangs: _ } = &mut *guard;
        liveness.tick(time);
        for (uid, _) in agents.iter().filter(|(_, one)| one.expected.as_ref().is_some_and(|expected| expected.excused)) {
            liveness.restart_times(uid);
        }
        agents.retain(|uid, one| {
            let stays = one.stays(time);
            if !stays {
                liveness.forget(uid);
                tripped.remove(uid);
            }
            stays
        });
        if liveness.gateways() > 0 {
            agents.values_mut().filter_map(|one| one.item_in_hand.as_mut()).for_each(|hand| hand.tick(time));
        }
        let silent = SilenceCounts::count(liveness, agents);
        let (mut changed, mut late) = (Vec::new(), Vec::new());
        for (uid, one) in agents.iter_mut() {
            let Some(expected) = &one.expected else { continue };
            let period = one.period();
            let facts = health::Facts {
                registered: expected.registered || one.registered,
                started: expected.started || one.started,
                startup: expected.startup,
                times: liveness.times(uid),
                timeout: expected.timeout.max(period.saturating_mul(MAX_MISSED_REPORTS)),
                // This stays true until the agent reports: when an outage ends, the last agents to report are few.
                with_many: one.finding == Finding::SilentWithMany || silent.is_mass_silence(expected.node.as_deref(), liveness.via(uid)),
                active: expected.active,
                paused: expected.paused,
                work: one.item_in_hand.as_ref().map(|hand| hand.facts(period)),
            };
            let finding = health::look(&facts);
            let began = |finding: &Finding| matches!(finding, Finding::ItemPastTime(_));
            if began(&finding) && !began(&one.finding) {
                late.push(uid.clone());
            }
            if std::mem::discriminant(&finding) != std::mem::discriminant(&one.finding) {
                changed.push(expected.key.clone());
            }
            one.finding = finding;
        }
        drop(guard);
        late.iter().for_each(|uid| self.timed_out(uid, Timeout::Attempt));
        changed
    }
}

/// For each node and each gateway, the number of agents that are close to their silence timeout, and the number of all
/// agents. Agents outside the cluster are not counted: they use networks of their own and may fall silent together at
/// will.
#[derive(Default)]
struct SilenceCounts {
    nodes: HashMap<String, (usize, usize)>,
    gateways: HashMap<String, (usize, usize)>,
}

impl SilenceCounts {
    fn count(liveness: &Liveness, agents: &HashMap<String, AgentRecord>) -> Self {
        let mut all = Self::default();
        let add = |group: Option<&mut (usize, usize)>, soon: bool| {
            if let Some((silent, of)) = group {
                *silent += usize::from(soon);
                *of += 1;
            }
        };
        for (uid, one) in agents {
            let Some((expected, node)) = one.expected.as_ref().and_then(|expected| Some((expected, expected.node.as_ref()?))) else {
                continue;
            };
            let times: ServedTimes = liveness.times(uid);
            let period = one.period();
            let lease = one.item_in_hand.as_ref().map(|hand| hand.facts(period).lease);
            let timeout = expected.timeout.max(period.saturating_mul(MAX_MISSED_REPORTS)).min(lease.unwrap_or(Duration::MAX));
            let soon = health::is_near_timeout(times, timeout, period);
            add(Some(all.nodes.entry(node.clone()).or_default()), soon);
            add(liveness.via(uid).map(|gateway| all.gateways.entry(gateway.to_owned()).or_default()), soon);
        }
        all
    }

    fn is_mass_silence(&self, node: Option<&str>, gateway: Option<&str>) -> bool {
        let blame = |group: Option<&(usize, usize)>| group.is_some_and(|(soon, of)| health::is_mass_silence(*soon, *of));
        blame(node.and_then(|node| self.nodes.get(node))) || blame(gateway.and_then(|gateway| self.gateways.get(gateway)))
    }
}

/// Marks a gateway as connected for as long as this value lives.
pub struct Session {
    live: Live,
    gateway: String,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.live.lock().liveness.disconnected(&self.gateway);
    }
}

#[cfg(test)]
#[path = "live_tests.rs"]
mod tests;
