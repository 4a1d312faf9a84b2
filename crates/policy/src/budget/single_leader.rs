//! One leader, one gateway and a store that accepts every write, for tests.

use super::estimate::{HoldRequest, Quality, Usage};
use super::hold::Settle;
use super::holding::{HoldAnswer, SettleOutcome};
use super::ledger::Ledger;
use super::node::{Key, LimitSpec, NodeSpec};
use super::persisted::PersistedRecord;
use super::refusal::Refusal;
use super::route::Route;
use super::session::{JournaledHold, SessionId, SessionLog};
use super::thresholds::Event;
use super::view::LimitView;
use super::window::Window;

pub const HOUR: i64 = 3_600_000;
pub const NOW: i64 = 1_790_000 * 1_000_000 / HOUR * HOUR;

/// One leader and one gateway. Writes succeed at once.
pub struct SingleLeader {
    pub ledger: Ledger,
    pub now: i64,
    pub session: SessionId,
    pub next: u64,
    pub seq: u64,
    pub events: Vec<Event>,
    pub acked: u64,
    pub stored: Vec<(Key, PersistedRecord)>,
}

pub fn top() -> Key {
    Key::budget("team", "top")
}

pub fn limit(window: Window, tokens: i64, guaranteed: i64) -> LimitSpec {
    LimitSpec { name: window.name().to_lowercase(), window, tokens, guaranteed }
}

pub fn place(key: Key, parent: Option<Key>, limits: Vec<LimitSpec>) -> NodeSpec {
    NodeSpec { limits, ..NodeSpec::new(key, parent) }
}

pub fn hourly(tokens: i64) -> NodeSpec {
    place(top(), None, vec![limit(Window::Hour, tokens, 0)])
}

pub fn route(budget: &str) -> Route {
    Route::new(Vec::new(), Some(Key::budget("team", budget)), "worker")
}

pub fn ask(output: i64) -> HoldRequest {
    HoldRequest { input: 0, output, min_output: output, choices: 1 }
}

pub fn used(output: i64) -> Usage {
    Usage { output, ..Usage::default() }
}

impl SingleLeader {
    pub fn new(nodes: &[NodeSpec]) -> Self {
        let mut ledger = Ledger::new(NOW);
        ledger.set_tree(nodes);
        Self::on(ledger)
    }

    pub fn on(mut ledger: Ledger) -> Self {
        let (session, _) = ledger.begin(NOW, "g0", &SessionLog { next_hold: 1, ..SessionLog::default() });
        Self { ledger, now: NOW, session, next: 1, seq: 0, events: Vec::new(), acked: 0, stored: Vec::new() }
    }

    pub fn write(&mut self) {
        for key in self.ledger.due(self.now + 60_000) {
            let Some(draft) = self.ledger.draft(self.now, &key) else { continue };
            let written = self.ledger.written(&draft);
            self.events.extend(written.events);
            self.acked = written.acked.iter().filter(|(name, _)| name == "g0").map(|(_, seq)| *seq).next_back().unwrap_or(self.acked);
            self.stored.retain(|(other, _)| *other != key);
            self.stored.push((key, draft.saved));
        }
    }

    pub fn try_hold(&mut self, route: &mut Route, ask: &HoldRequest) -> Result<(u64, i64), Box<Refusal>> {
        let id = self.next;
        self.next += 1;
        for _ in 0..3 {
            match self.ledger.hold(self.now, self.session, id, route, ask) {
                HoldAnswer::Given(given) => return Ok((id, given.output)),
                HoldAnswer::Refused(refusal) => return Err(refusal),
                HoldAnswer::Write(_) => self.write(),
                other @ (HoldAnswer::Closed | HoldAnswer::Unattached) => panic!("{other:?}"),
            }
        }
        panic!("what was asked to be written is written")
    }

    pub fn hold(&mut self, route: &mut Route, output: i64) -> u64 {
        self.try_hold(route, &ask(output)).expect("there is room").0
    }

    pub fn refused(&mut self, route: &mut Route, output: i64) -> Refusal {
        *self.try_hold(route, &ask(output)).expect_err("there is no room")
    }

    pub fn settle(&mut self, hold: u64, output: i64) {
        self.settle_as(hold, output, Quality::Exact);
    }

    pub fn settle_as(&mut self, hold: u64, output: i64, quality: Quality) {
        self.seq += 1;
        let (input, covers) = self.ledger.held_tokens(self.session, hold).map_or((0, 0), |given| (given.input, given.output));
        let settle = Settle { seq: self.seq, hold, usage: used(output), quality, input, output: covers };
        assert_eq!(self.ledger.settle(self.now, self.session, &settle), SettleOutcome::Counted);
    }

    pub fn view(&self, key: &Key) -> LimitView {
        self.ledger.view(key).remove(0)
    }

    /// The used, held and lost tokens.
    pub fn at(&self, key: &Key) -> (i64, i64, i64) {
        let LimitView { used, held, lost, .. } = self.view(key);
        (used, held, lost)
    }

    /// A new leader that loads the stored records.
    pub fn next_leader(&self, nodes: &[NodeSpec]) -> Ledger {
        let mut ledger = Ledger::new(self.now);
        self.stored.iter().for_each(|(key, saved)| ledger.load(key, saved));
        ledger.set_tree(nodes);
        ledger
    }

    pub fn open(&self, id: u64, output: i64) -> JournaledHold {
        let path = self.ledger.path(self.session, id).expect("it is open");
        JournaledHold { id, at: self.now, path, input: 0, output }
    }
}
