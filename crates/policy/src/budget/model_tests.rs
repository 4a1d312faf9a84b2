//! Checks every state of a very small model that can be reached in a few steps: one Budget of two tokens, two gateways
//! whose calls hold one token each, leaders of which one may not know that it was replaced, writes with unknown
//! outcome, lost answers, and a gateway that dies.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};

use super::estimate::{HoldRequest, Quality, Usage};
use super::holding::HoldAnswer;
use super::ledger::Ledger;
use super::node::{Chunk, Key, LimitSpec, NodeSpec};
use super::persisted::{PersistedRecord, RecordDraft};
use super::route::Route;
use super::session::{JournaledHold, JournaledSettle, SESSION_TIMEOUT_MS, SessionLog};
use super::window::Window;

const NOW: i64 = 1_790_000_000_000;
const LIMIT: i64 = 2;
const NAMES: [&str; 2] = ["g0", "g1"];
/// More of any of these only adds states.
const HOLDS: [u64; 2] = [2, 1];
const LEADERS: u64 = 2;
const DRAFTS: u8 = 3;
const FAILURES: u8 = 1;
const LOST: u8 = 1;
/// Steps from the first state: enough to lose a leader with open holds, begin again and hold again.
const STEPS: u32 = 7;

#[derive(Clone, PartialEq, Eq, Hash)]
struct Leader {
    epoch: u64,
    ledger: Ledger,
    version: u64,
    draft: Option<RecordDraft>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Gateway {
    alive: bool,
    epoch: u64,
    attached: bool,
    next: u64,
    open: Vec<JournaledHold>,
    settles: Vec<JournaledSettle>,
    acked: u64,
    /// The usage of its settled calls.
    spent: i64,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Model {
    saved: PersistedRecord,
    version: u64,
    epoch: u64,
    leaders: Vec<Leader>,
    gateways: Vec<Gateway>,
    dead: bool,
    /// Drafted writes, those of them with unknown outcome, and lost answers.
    drafts: u8,
    failures: u8,
    lost: u8,
}

fn key() -> Key {
    Key::budget("team", "default")
}

fn leader(epoch: u64, saved: &PersistedRecord, version: u64) -> Leader {
    let mut ledger = Ledger::new(NOW);
    ledger.load(&key(), saved);
    let limits = vec![LimitSpec { name: "life".into(), window: Window::Lifetime, tokens: LIMIT, guaranteed: 0 }];
    ledger.put(NodeSpec { limits, chunk: Chunk::Whole, ..NodeSpec::new(key(), None) });
    Leader { epoch, ledger, version, draft: None }
}

impl Model {
    fn new() -> Self {
        let gateway =
            Gateway { alive: true, epoch: 0, attached: false, next: 1, open: Vec::new(), settles: Vec::new(), acked: 0, spent: 0 };
        let saved = PersistedRecord::default();
        let leaders = vec![leader(1, &saved, 1)];
        let gateways = vec![gateway.clone(), gateway];
        let mut world = Self { leaders, saved, version: 1, epoch: 0, gateways, dead: false, drafts: 0, failures: 0, lost: 0 };
        // It begins with two gateways that have asked, and the write that admits them.
        for gateway in 0..2 {
            world = world.begin(gateway).remove(0);
            world = world.ask(gateway).remove(0);
        }
        world = world
            .draft(0)
            .and_then(|world| world.outcomes(0).into_iter().find(|after| after.failures == 0 && after.epoch == 1))
            .expect("it lands");
        world.drafts = 0;
        world
    }

    fn newest(&self) -> u64 {
        self.leaders.iter().map(|leader| leader.epoch).max().unwrap_or(0).max(self.epoch)
    }

    fn leader_of(&self, gateway: usize) -> Option<usize> {
        let Gateway { alive, attached, epoch, .. } = &self.gateways[gateway];
        (*alive && *attached).then(|| self.leaders.iter().position(|leader| leader.epoch == *epoch)).flatten()
    }

    fn acked(&mut self, gateway: usize, seq: u64) {
        let gateway = &mut self.gateways[gateway];
        while gateway.acked < seq {
            gateway.acked += 1;
            gateway.settles.remove(0);
        }
    }

    fn ask(&self, gateway: usize) -> Vec<Self> {
        let Some(leader) = self.leader_of(gateway).filter(|_| self.gateways[gateway].next <= HOLDS[gateway]) else { return Vec::new() };
        let mut lost = self.clone();
        let (session, _) = (super::SessionId(self.session(leader, gateway)), ());
        let id = self.gateways[gateway].next;
        let mut route = Route::new(Vec::new(), Some(key()), "worker");
        let ask = HoldRequest { input: 0, output: 1, min_output: 1, choices: 1 };
        let ledger = &mut lost.leaders[leader].ledger;
        match ledger.hold(NOW, session, id, &mut route, &ask) {
            HoldAnswer::Given(given) => {
                let path = ledger.path(session, id).expect("it is held");
                let mut told = lost.clone();
                told.gateways[gateway].open.push(JournaledHold { id, at: given.at, path, input: given.input, output: given.output });
                told.gateways[gateway].next += 1;
                lost.lost += 1;
                if self.lost < LOST { vec![told, lost] } else { vec![told] }
            }
            HoldAnswer::Write(_) => vec![lost],
            HoldAnswer::Refused(_) | HoldAnswer::Closed | HoldAnswer::Unattached => Vec::new(),
        }
    }

    fn session(&self, leader: usize, gateway: usize) -> usize {
        self.leaders[leader].ledger.session_names.get(NAMES[gateway]).copied().unwrap_or(usize::MAX)
    }

    /// The oldest call ends, with or without usage. The settle is in the journal, and not sent yet.
    fn finish(&self, gateway: usize) -> Vec<Self> {
        if !self.gateways[gateway].alive || self.gateways[gateway].open.is_empty() {
            return Vec::new();
        }
        let end = |output: i64| {
            let mut after = self.clone();
            let gateway = &mut after.gateways[gateway];
            let open = gateway.open.remove(0);
            gateway.spent += output;
            gateway.settles.push(JournaledSettle { hold: open, usage: Usage { output, ..Usage::default() }, quality: Quality::Exact });
            after
        };
        vec![end(0), end(1)]
    }

    /// One of its settles arrives, in any order.
    fn settle(&self, gateway: usize) -> Vec<Self> {
        let Some(leader) = self.leader_of(gateway) else { return Vec::new() };
        let session = super::SessionId(self.session(leader, gateway));
        let Gateway { settles, acked, .. } = &self.gateways[gateway];
        let told = settles.iter().zip(acked + 1..).map(|(told, seq)| {
            let mut after = self.clone();
            after.leaders[leader].ledger.settle(NOW, session, &told.settle(seq));
            after
        });
        told.collect()
    }

    fn begin(&self, gateway: usize) -> Vec<Self> {
        let to = self.newest();
        let Some(leader) = self.leaders.iter().position(|leader| leader.epoch == to) else { return Vec::new() };
        let found = &self.gateways[gateway];
        if !found.alive || (found.attached && found.epoch == to) {
            return Vec::new();
        }
        let mut lost = self.clone();
        let found = &mut lost.gateways[gateway];
        (found.epoch, found.attached) = (to, false);
        let log = SessionLog {
            next_hold: found.next,
            acked: found.acked,
            settles: found.settles.clone(),
            open: found.open.clone(),
            ..SessionLog::default()
        };
        let (_, acked) = lost.leaders[leader].ledger.begin(NOW, NAMES[gateway], &log);
        let mut told = lost.clone();
        told.gateways[gateway].attached = true;
        told.acked(gateway, acked);
        lost.lost += 1;
        if self.lost < LOST { vec![told, lost] } else { vec![told] }
    }

    fn draft(&self, leader: usize) -> Option<Self> {
        let mut after = self.clone();
        after.drafts += 1;
        let found = &mut after.leaders[leader];
        if found.draft.is_some() || self.drafts >= DRAFTS {
            return None;
        }
        found.draft = Some(found.ledger.draft(NOW, &key())?);
        Some(after)
    }

    /// A write lands with a known or an unknown outcome, or it does not land.
    fn outcomes(&self, leader: usize) -> Vec<Self> {
        let Some(draft) = self.leaders[leader].draft.clone() else { return Vec::new() };
        let mut none = self.clone();
        none.leaders[leader].draft = None;
        let mut all = Vec::new();
        let Leader { epoch, version, .. } = self.leaders[leader];
        if self.version == version && epoch >= self.epoch {
            let mut landed = none.clone();
            (landed.saved, landed.version, landed.epoch) = (draft.saved.clone(), version + 1, epoch);
            landed.leaders[leader].version = landed.version;
            let mut unknown = landed.clone();
            unknown.leaders[leader].ledger.failed(&draft);
            unknown.failures += 1;
            all.extend((self.failures < FAILURES).then_some(unknown));
            for (name, seq) in landed.leaders[leader].ledger.written(&draft).acked {
                let gateway = NAMES.iter().position(|other| *other == name).expect("it is one of them");
                landed.acked(gateway, seq);
            }
            all.push(landed);
            none.leaders[leader].ledger.failed(&draft);
            none.failures += 1;
            all.extend((self.failures < FAILURES).then_some(none));
        } else if self.epoch > epoch {
            none.leaders.remove(leader);
            all.push(none);
        } else {
            // The former leader wrote after this one read: load again.
            none.leaders[leader] = self::leader(epoch + 1, &self.saved, self.version);
            all.push(none);
        }
        all
    }

    fn take_over(&self, crash: bool) -> Option<Self> {
        let epoch = self.newest() + 1;
        if epoch > LEADERS || self.leaders.is_empty() {
            return None;
        }
        let mut after = self.clone();
        if crash {
            after.leaders.clear();
        }
        after.leaders.push(leader(epoch, &self.saved, self.version));
        Some(after)
    }

    /// The first gateway dies. Each leader finds out, while the other gateway reports.
    fn die(&self) -> Vec<Self> {
        let mut all = Vec::new();
        if !self.dead {
            let mut after = self.clone();
            (after.gateways[0].alive, after.dead) = (false, true);
            return vec![after];
        }
        for leader in 0..self.leaders.len() {
            let mut after = self.clone();
            let (other, ledger) = (after.session(leader, 1), &mut after.leaders[leader].ledger);
            let served = ledger.served + SESSION_TIMEOUT_MS - 1;
            ledger.tick(NOW, served);
            if other != usize::MAX && ledger.record_report(super::SessionId(other), 0, 0) {
                ledger.tick(NOW, served + 1);
                ledger.served = 0;
                all.push(after);
            }
        }
        all
    }

    fn next(&self) -> Vec<Self> {
        let mut all = Vec::new();
        for gateway in 0..2 {
            all.extend(self.ask(gateway));
            all.extend(self.finish(gateway));
            all.extend(self.settle(gateway));
            all.extend(self.begin(gateway));
        }
        for leader in 0..self.leaders.len() {
            all.extend(self.draft(leader));
            all.extend(self.outcomes(leader));
        }
        all.extend(self.take_over(true));
        all.extend(self.take_over(false));
        all.extend(self.die());
        all
    }

    /// Checks the tokens that are spent, and those that may still be.
    fn check(&self) {
        let open: usize = self.gateways.iter().map(|gateway| gateway.open.len()).sum();
        let spent: i64 = self.gateways.iter().map(|gateway| gateway.spent).sum();
        assert!(spent + open as i64 <= LIMIT, "I3, I13: {spent} spent and {open} open");
        let quiet = open == 0 && self.gateways.iter().all(|gateway| gateway.alive && gateway.attached && gateway.settles.is_empty());
        let [leader] = self.leaders.as_slice() else { return };
        let told = self.gateways.iter().all(|gateway| gateway.epoch == leader.epoch);
        if quiet && told {
            let view = &leader.ledger.view(&key())[0];
            let open = leader.ledger.traffic(&key()).0;
            assert_eq!((view.used, view.lost, view.unexplained, view.held), (spent, 0, 0, i64::from(open)), "I5, I6, I7");
        }
    }
}

#[test]
fn every_state_that_a_few_steps_reach_keeps_the_promises() {
    let hasher = RandomState::new();
    let first = Model::new();
    let mut seen = HashSet::from([hasher.hash_one(&first)]);
    let mut ahead = VecDeque::from([(first, 0)]);
    let mut spent_all = false;
    while let Some((world, depth)) = ahead.pop_front() {
        if depth == STEPS {
            continue;
        }
        for after in world.next() {
            if seen.insert(hasher.hash_one(&after)) {
                after.check();
                spent_all |= after.gateways.iter().map(|gateway| gateway.spent).sum::<i64>() == LIMIT;
                ahead.push_back((after, depth + 1));
            }
        }
    }
    println!("{} states", seen.len());
    assert!(seen.len() > 5000, "the world is smaller than was thought: {}", seen.len());
    assert!(spent_all, "nothing was ever spent");
}
