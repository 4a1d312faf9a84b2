//! A simulation around the ledger: an API server that stores records, leaders of which one may not know that it was
//! replaced, gateways with journals, and a network that loses, repeats and reorders messages. The simulation knows what
//! was really spent, and compares.

mod end;
mod network;
mod writes;

use std::collections::{BTreeMap, VecDeque};

use super::estimate::{HoldRequest, Quality, Usage, Weights};
use super::facts::{BudgetFacts, ClusterFacts, Reservation, TokenLimit, Tokens};
use super::hold::Settle;
use super::ledger::Ledger;
use super::node::{Key, LimitSpec, NodeSpec, Threshold};
use super::persisted::{PersistedRecord, RecordDraft};
use super::route::Route;
use super::session::{JournaledHold, JournaledSettle, SessionId, SessionLog};
use super::share::{Lifetime, agent};
use super::thresholds::Event;
use super::tree::build;
use super::window::{Clock, Window};

pub use end::audit;

pub const START: i64 = 1_790_000_000_000;

/// The faults that may happen.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllowedFaults {
    /// Gateways are lost or silent for long.
    pub die: bool,
    /// Calls cost more than was estimated.
    pub exceed: bool,
    /// The wall clock jumps.
    pub jump: bool,
    /// Budgets get other parents.
    pub move_budgets: bool,
}

/// A call that a gateway sent upstream.
#[derive(Clone, Debug)]
pub struct Call {
    pub open: JournaledHold,
    /// Its usage and quality, once the gateway knows them.
    pub usage: Option<(Usage, Quality)>,
}

#[derive(Clone, Debug)]
enum Message {
    Begin { gateway: usize, to: u64, log: SessionLog },
    Began { gateway: usize, epoch: u64, session: SessionId },
    Hold { gateway: usize, to: u64, session: SessionId, id: u64, route: usize, ask: HoldRequest },
    Answered { gateway: usize, epoch: u64, id: u64, open: Option<JournaledHold> },
    Settle { gateway: usize, to: u64, session: SessionId, settle: Settle },
    Extend { gateway: usize, to: u64, session: SessionId, id: u64, output: i64 },
    Extended { gateway: usize, epoch: u64, id: u64, output: i64 },
    Acked { gateway: usize, seq: u64 },
}

pub struct Leader {
    pub epoch: u64,
    pub ledger: Ledger,
    clock: Clock,
    routes: Vec<Route>,
    versions: BTreeMap<Key, u64>,
    waiting: Vec<(usize, SessionId, u64, usize, HoldRequest)>,
    extending: Vec<(usize, SessionId, u64, i64)>,
    drafts: Vec<RecordDraft>,
    since: u64,
}

#[derive(Default)]
pub struct Gateway {
    name: String,
    pub alive: bool,
    silent: bool,
    epoch: u64,
    session: Option<SessionId>,
    next_hold: u64,
    asked: BTreeMap<u64, ()>,
    open: BTreeMap<u64, usize>,
    pub seq: u64,
    pub acked: u64,
    settles: VecDeque<JournaledSettle>,
}

#[derive(Clone, Default)]
struct StoredRecord {
    saved: PersistedRecord,
    version: u64,
    epoch: u64,
}

pub struct Simulation {
    may: AllowedFaults,
    pub limits: Vec<(Key, LimitSpec, Weights)>,
    nodes: Vec<NodeSpec>,
    ways: Vec<(Vec<Key>, Key, &'static str)>,
    store: BTreeMap<Key, StoredRecord>,
    pub leaders: Vec<Leader>,
    pub gateways: Vec<Gateway>,
    network: Vec<Message>,
    pub calls: Vec<Call>,
    pub events: Vec<Event>,
    wall: i64,
    ticks: u64,
    epochs: u64,
    /// Calls that got their tokens. A simulation without calls would prove nothing.
    pub given: usize,
    pub refused: usize,
    pub extended: usize,
}

pub fn limit(name: &str, window: Window, tokens: i64, guaranteed: i64) -> TokenLimit {
    TokenLimit { name: name.into(), window, tokens, guaranteed }
}

/// The places of a cluster, a namespace, a Budget with two below it, and a reservation.
pub fn places(parent_of_low: &str) -> Vec<NodeSpec> {
    let tokens = |limits: Vec<TokenLimit>| Tokens { limits, ..Tokens::default() };
    let cluster = ClusterFacts {
        name: "all".into(),
        tokens: Tokens { weights: Weights { output: 2000, ..Weights::default() }, ..tokens(vec![limit("rate", Window::Minute, 300, 0)]) },
        per_namespace: tokens(vec![limit("daily", Window::Day, 2000, 0)]),
        namespaces: vec![("team".into(), 0)],
        ..ClusterFacts::default()
    };
    let budget = |name: &str, parent: Option<&str>, tokens| BudgetFacts {
        namespace: "team".into(),
        name: name.into(),
        parent: parent.map(str::to_owned),
        thresholds: vec![
            Threshold { percent: 50, action: super::node::Action::Warn },
            Threshold { percent: 100, action: super::node::Action::Pause },
        ],
        tokens,
        ..BudgetFacts::default()
    };
    let reservations = vec![Reservation { name: "scheduler".into(), pool_types: vec!["scheduler".into()], percent: 20, cap: true }];
    let top = Tokens { reservations, ..tokens(vec![limit("minutely", Window::Minute, 150, 0), limit("hourly", Window::Hour, 600, 0)]) };
    let low = tokens(vec![limit("minutely", Window::Minute, 100, 60)]);
    let other = tokens(vec![limit("minutely", Window::Minute, 120, 0)]);
    build(&[cluster], &[budget("top", None, top), budget("low", Some(parent_of_low), low), budget("other", Some("top"), other)]).nodes
}

impl Simulation {
    pub fn new(may: AllowedFaults, gateways: usize) -> Self {
        let mut world = Self {
            may,
            limits: Vec::new(),
            nodes: Vec::new(),
            ways: Vec::new(),
            store: BTreeMap::new(),
            leaders: Vec::new(),
            gateways: (0..gateways)
                .map(|index| Gateway { name: format!("g{index}"), alive: true, next_hold: 1, ..Gateway::default() })
                .collect(),
            network: Vec::new(),
            calls: Vec::new(),
            events: Vec::new(),
            wall: START,
            ticks: 0,
            epochs: 0,
            given: 0,
            refused: 0,
            extended: 0,
        };
        world.nodes = places("top");
        for (name, budget, pool_type) in
            [("a", "low", "worker"), ("b", "other", "worker"), ("c", "top", "worker"), ("d", "low", "scheduler")]
        {
            world.nodes.push(agent(name, &Lifetime { tokens: 700, top_up: 0, max: 0, taken: 0 }));
            world.ways.push((vec![Key::Agent(name.into())], Key::budget("team", budget), pool_type));
        }
        for node in &world.nodes {
            world.store.insert(node.key.record(), StoredRecord { version: 1, ..StoredRecord::default() });
            world.limits.extend(node.limits.iter().map(|limit| (node.key.clone(), limit.clone(), node.weights)));
        }
        world.take_over(0);
        world
    }

    fn newest(&self) -> u64 {
        self.leaders.iter().map(|leader| leader.epoch).max().unwrap_or(0)
    }

    fn leader(&self, epoch: u64) -> Option<usize> {
        self.leaders.iter().position(|leader| leader.epoch == epoch)
    }

    /// Another leader starts. With `keep` 0 the former one ends at once; otherwise it ends when one of its writes
    /// fails.
    fn take_over(&mut self, keep: u32) {
        self.epochs += 1;
        let epoch = self.epochs;
        if keep == 0 {
            let gone: Vec<Leader> = self.leaders.drain(..).collect();
            for draft in gone
                .into_iter()
                .flat_map(|leader| leader.drafts.into_iter().map(move |draft| (leader.epoch, leader.versions.clone(), draft)))
            {
                // It crashed with writes under way: some of them land.
                let (epoch, versions, draft) = draft;
                if draft.ticket % 2 == 0 {
                    self.store(epoch, &versions, &draft);
                }
            }
        }
        let mut ledger = Ledger::new(self.wall);
        for (key, stored) in &self.store {
            ledger.load(key, &stored.saved);
        }
        for node in &self.nodes {
            ledger.put(node.clone());
        }
        let starts = self.store.values().flat_map(|stored| &stored.saved.places).flat_map(|place| &place.windows);
        let latest = starts.map(|window| window.span.start()).max().unwrap_or(i64::MIN);
        let clock = Clock::start(self.wall, self.ticks, latest);
        let routes = self.ways.iter().map(|(leafs, top, pool_type)| Route::new(leafs.clone(), Some(top.clone()), pool_type)).collect();
        let versions = self.store.iter().map(|(key, stored)| (key.clone(), stored.version)).collect();
        self.leaders.push(Leader {
            epoch,
            ledger,
            clock,
            routes,
            versions,
            waiting: Vec::new(),
            extending: Vec::new(),
            drafts: Vec::new(),
            since: self.ticks,
        });
        if self.leaders.len() > 2 {
            self.leaders.remove(0);
        }
    }

    /// Compare-and-swap, and no epoch may fall.
    fn store(&mut self, epoch: u64, versions: &BTreeMap<Key, u64>, draft: &RecordDraft) -> bool {
        let stored = self.store.get_mut(&draft.record).expect("it exists");
        let taken = Some(&stored.version) == versions.get(&draft.record) && epoch >= stored.epoch;
        if taken {
            *stored = StoredRecord { saved: draft.saved.clone(), version: stored.version + 1, epoch };
        }
        taken
    }

    fn send(&mut self, message: Message) {
        self.network.push(message);
    }

    fn now(&mut self, leader: usize) -> i64 {
        let (wall, ticks) = (self.wall, self.ticks);
        self.leaders[leader].clock.now(wall, ticks)
    }

    /// Takes one step, chosen by these numbers.
    pub fn step(&mut self, what: u32, with: u32) {
        match what % 40 {
            0..=6 => self.ask(with),
            7..=18 => (0..3).for_each(|turn| self.deliver(with.rotate_left(turn * 9), false)),
            19 => self.deliver(with, true),
            20 if !self.network.is_empty() => drop(self.network.swap_remove(with as usize % self.network.len())),
            21..=24 => self.finish(with),
            25 => self.tell_again(with),
            26 => self.begin_if(with, with.is_multiple_of(8)),
            27 => self.begin_if(with, false),
            28..=31 => self.draft(with),
            32..=35 => self.outcome(with),
            36 => self.pass(with),
            37 if with.is_multiple_of(2) => self.rare(with >> 1),
            38 if with.is_multiple_of(8) => self.crash(with >> 3),
            38 | 39 => self.extend(with),
            _ => self.heartbeat(with),
        }
    }

    fn gateway(&self, with: u32) -> Option<usize> {
        let index = with as usize % self.gateways.len();
        let gateway = &self.gateways[index];
        (gateway.alive && !gateway.silent).then_some(index)
    }

    fn ask(&mut self, with: u32) {
        let Some(index) = self.gateway(with) else { return };
        let route = (with >> 4) as usize % self.ways.len();
        let gateway = &mut self.gateways[index];
        let Some(session) = gateway.session else { return };
        let id = gateway.next_hold;
        gateway.next_hold += 1;
        gateway.asked.insert(id, ());
        let output = i64::from((with >> 8) % 20) + 1;
        let ask = HoldRequest { input: i64::from((with >> 16) % 8), output, min_output: output.min(5), choices: 1 };
        let to = gateway.epoch;
        self.send(Message::Hold { gateway: index, to, session, id, route, ask });
    }

    /// A call ends, with a usage up to its hold, or beyond it if that is allowed.
    fn finish(&mut self, with: u32) {
        let Some(index) = self.gateway(with) else { return };
        let open: Vec<u64> = self.gateways[index].open.keys().copied().collect();
        if open.is_empty() {
            return;
        }
        let id = open[(with >> 4) as usize % open.len()];
        self.finish_call(index, id, with >> 8);
    }

    fn finish_call(&mut self, index: usize, id: u64, with: u32) {
        let gateway = &mut self.gateways[index];
        let call = gateway.open.remove(&id).expect("it is open");
        let open = self.calls[call].open.clone();
        let beyond = if self.may.exceed && with.is_multiple_of(3) { 10 } else { 0 };
        let input = (open.input + beyond) * i64::from(with % 5) / 4;
        let usage =
            Usage { input: input / 2, cache_read: input - input / 2, cache_write: 0, output: open.output * i64::from(with % 7) / 6 };
        let quality = match with % 11 {
            0 => Quality::Partial,
            _ => Quality::Exact,
        };
        self.end_call(index, call, usage, quality);
        self.tell(index, gateway_last(&self.gateways[index]));
    }

    fn end_call(&mut self, index: usize, call: usize, usage: Usage, quality: Quality) {
        let open = self.calls[call].open.clone();
        self.calls[call].usage = Some((usage, quality));
        let gateway = &mut self.gateways[index];
        gateway.seq += 1;
        gateway.settles.push_back(JournaledSettle { hold: open, usage, quality });
    }

    /// A call needs more than its hold.
    fn extend(&mut self, with: u32) {
        let Some(index) = self.gateway(with) else { return };
        let gateway = &self.gateways[index];
        let (Some(session), false) = (gateway.session, gateway.open.is_empty()) else { return };
        let (id, call) =
            gateway.open.iter().nth((with >> 4) as usize % gateway.open.len()).map(|(id, call)| (*id, *call)).expect("it is open");
        let output = self.calls[call].open.output + i64::from((with >> 8) % 20) + 1;
        self.send(Message::Extend { gateway: index, to: gateway.epoch, session, id, output });
    }

    /// A gateway's process ends, and begins again with its journal. The usage of its calls is unknown, and messages to
    /// it are lost.
    fn crash(&mut self, with: u32) {
        let Some(index) = self.gateway(with) else { return };
        self.network.retain(|message| match message {
            Message::Began { gateway, .. }
            | Message::Answered { gateway, .. }
            | Message::Extended { gateway, .. }
            | Message::Acked { gateway, .. } => *gateway != index,
            Message::Begin { .. } | Message::Hold { .. } | Message::Settle { .. } | Message::Extend { .. } => true,
        });
        let gateway = &mut self.gateways[index];
        gateway.session = None;
        gateway.asked.clear();
        for call in std::mem::take(&mut gateway.open).into_values() {
            self.end_call(index, call, Usage::default(), Quality::Estimated);
        }
    }

    fn tell(&mut self, index: usize, which: usize) {
        let gateway = &self.gateways[index];
        let (Some(session), Some(told)) = (gateway.session, gateway.settles.get(which)) else { return };
        let seq = gateway.acked + 1 + which as u64;
        let settle = told.settle(seq);
        self.send(Message::Settle { gateway: index, to: gateway.epoch, session, settle });
    }

    fn tell_again(&mut self, with: u32) {
        let Some(index) = self.gateway(with) else { return };
        (0..self.gateways[index].settles.len()).for_each(|which| self.tell(index, which));
    }

    /// Gateways without a session begin. With `any`, a given gateway begins again.
    fn begin_if(&mut self, with: u32, any: bool) {
        for index in 0..self.gateways.len() {
            let gateway = &self.gateways[index];
            if any || gateway.session.is_none() || self.leader(gateway.epoch).is_none() {
                self.begin(index as u32);
                if any {
                    return self.begin(with);
                }
            }
        }
    }

    /// A gateway begins, or begins again, at the newest leader. From then on it ignores all others.
    fn begin(&mut self, with: u32) {
        let Some(index) = self.gateway(with) else { return };
        let to = self.newest();
        let gateway = &mut self.gateways[index];
        gateway.epoch = gateway.epoch.max(to);
        gateway.session = None;
        gateway.asked.clear();
        let log = SessionLog {
            next_hold: gateway.next_hold,
            acked: gateway.acked,
            settles: gateway.settles.iter().cloned().collect(),
            open: gateway.open.values().map(|call| self.calls[*call].open.clone()).collect(),
            ..SessionLog::default()
        };
        let to = gateway.epoch;
        self.send(Message::Begin { gateway: index, to, log });
    }

    fn pass(&mut self, with: u32) {
        let passed = u64::from(with % 16) * 1000;
        self.ticks += passed;
        self.wall += passed as i64;
        self.tick();
    }

    fn tick(&mut self) {
        for leader in 0..self.leaders.len() {
            let now = self.now(leader);
            // Only gateways that may die are silent for long.
            let served = if self.may.die { self.ticks - self.leaders[leader].since } else { 0 };
            self.leaders[leader].ledger.tick(now, served);
        }
    }

    fn heartbeat(&mut self, with: u32) {
        let Some(index) = self.gateway(with) else { return };
        let gateway = &self.gateways[index];
        let settled = gateway.settles.iter().map(|told| told.hold.id);
        let floor = gateway.asked.keys().chain(gateway.open.keys()).copied().chain(settled).min().unwrap_or(gateway.next_hold);
        if let (Some(session), Some(leader)) = (gateway.session, self.leader(gateway.epoch)) {
            self.leaders[leader].ledger.record_report(session, floor, gateway.acked);
        }
    }

    fn rare(&mut self, with: u32) {
        let arg = with >> 4;
        match with % 8 {
            0 | 1 => self.take_over(arg % 2),
            2 | 3 if self.may.jump => self.wall += i64::from(arg % 1200) * 1000 - 600_000,
            4 if self.may.die => {
                let index = arg as usize % self.gateways.len();
                if self.gateways.iter().filter(|gateway| gateway.alive).count() > 1 {
                    self.gateways[index].alive = false;
                }
            }
            5 | 6 if self.may.die => {
                let index = arg as usize % self.gateways.len();
                self.gateways[index].silent ^= true;
            }
            7 if self.may.move_budgets => {
                let low = places(if arg.is_multiple_of(2) { "top" } else { "other" });
                self.nodes.retain(|node| node.key.is_leaf());
                self.nodes.splice(0..0, low.clone());
                self.leaders.iter_mut().for_each(|leader| leader.ledger.set_tree(&low));
            }
            _ => self.ticks += 25_000,
        }
    }
}

fn gateway_last(gateway: &Gateway) -> usize {
    gateway.settles.len().saturating_sub(1)
}
