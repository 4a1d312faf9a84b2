//! The state of a gateway's session with the ledger, and its next request. Pure: the time is an argument, and lines for
//! the journal are results.
//!
//! What always holds: each number of a hold is used once. Settles have numbers without gaps, in the order in which they
//! were written. A hold that was reported as ended is never reported as open again.

mod connection;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use spillway_policy::history::History;
use spillway_policy::lease::REPLAY_HISTORY_TTL;
use spillway_wire::meter::{Begin, CallEnd, JournaledHold, JournaledSettle, MAX_BEGIN_BYTES, Quality, ReplayedSettle, Settles, Usage};

use crate::hold::{self, EndedHold, Hold, MAX_MODEL_NAME_BYTES, reserve};
use crate::lines::{EndLine, HoldLine, LegacySettleLine, Line, Snapshot};
use crate::names::{self, Names, json_bytes};
use crate::shares::{ShareFull, Shares};

/// How many numbers of holds one line of the journal reserves.
const HOLD_NUMBER_BATCH: u64 = 1024;
/// The longest time between two requests. The governor ends a session that is silent for 60 s.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Holds that end within this time are reported together. With hundreds of calls each second, one request each would
/// cost too much.
const SETTLE_BATCH_DELAY: Duration = Duration::from_millis(10);
/// How often the governor is asked for acknowledgements while some are missing.
const ACK_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Settles that are not acknowledged for this long are sent again.
const SETTLE_RESEND_DELAY: Duration = Duration::from_secs(3);
/// The first and the last delay after failed requests. Each failure doubles it.
const CALL_RETRY_BACKOFF: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];
/// The most bytes of a session in a rewritten journal and in [`Begin`], without [`MAX_SESSION_HEADER_BYTES`]: of
/// unacknowledged settles, of open holds, and of requested holds.
pub const MAX_SESSION_BYTES: usize = 12 * 1024 * 1024;
/// The most bytes of everything else in either of them.
pub const MAX_SESSION_HEADER_BYTES: usize = 4096;
/// The most bytes of acknowledged settles in [`Begin`]. In memory they take several times as many.
const ACKNOWLEDGED_BYTES: usize = 3 * 1024 * 1024;
const _: () = assert!(
    MAX_SESSION_BYTES + MAX_SESSION_HEADER_BYTES + ACKNOWLEDGED_BYTES <= MAX_BEGIN_BYTES,
    "a session with all that it may have can begin"
);
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    hold: Hold,
    sent: bool,
    cost: usize,
}

/// The next step of the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Report the complete session to the governor.
    Begin(Begin),
    /// Report ended holds, or send a keep-alive.
    Tell(Settles),
    /// Wait until this time, or until the next event.
    Wait(Option<Duration>),
}

/// The session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    name: String,
    next_hold: u64,
    reserved: u64,
    /// Numbers of requested holds without an answer yet, with their namespaces.
    requested: BTreeMap<u64, Arc<str>>,
    open: BTreeMap<u64, Entry>,
    names: Names,
    shares: Shares,
    acked: u64,
    /// Unacknowledged settles. With hundreds of calls each second they are many thousands, because records are written
    /// seconds apart.
    settles: VecDeque<Arc<EndedHold>>,
    /// The holds of those settles.
    settling: BTreeSet<u64>,
    /// The state in the journal that the governor may rely on: all holds below the first number are over, and the
    /// second number is the last acknowledged settle.
    written: (u64, u64),
    /// The current connection.
    connection: Option<u64>,
    /// The connection on which the session began.
    attached: Option<u64>,
    /// The last settle that was sent on it.
    last_sent: u64,
    /// When the last settle was acknowledged, or all were sent again.
    progress: Duration,
    last_request: Duration,
    failures: u32,
    not_before: Duration,
    /// The settles that were acknowledged in the last minutes.
    acknowledged: History<ReplayedSettle>,
    /// The leader has not stored all of those yet, so none may expire.
    replay_pending: bool,
    /// The leader's store was rolled back in the last minutes, so [`Begin`] replays those settles.
    replays: bool,
}

impl Session {
    /// A new session.
    pub fn new(name: String) -> Self {
        Self {
            name,
            next_hold: 1,
            reserved: 1,
            requested: BTreeMap::new(),
            open: BTreeMap::new(),
            names: Names::default(),
            shares: Shares::new(MAX_SESSION_BYTES),
            acked: 0,
            settles: VecDeque::new(),
            settling: BTreeSet::new(),
            written: (1, 0),
            connection: None,
            attached: None,
            last_sent: 0,
            progress: Duration::ZERO,
            last_request: Duration::ZERO,
            failures: 0,
            not_before: Duration::ZERO,
            acknowledged: History::new(REPLAY_HISTORY_TTL, ACKNOWLEDGED_BYTES),
            replay_pending: false,
            replays: false,
        }
    }

    /// Continues the session of an earlier process, or begins a new one if there are no lines. The calls of that
    /// process are over: sent ones are charged at the estimate, others cost nothing. Err: the lines contradict each
    /// other.
    pub fn restore(lines: &[Line], name: impl FnOnce() -> String) -> Result<Self, &'static str> {
        let Some((first, rest)) = lines.split_first() else { return Ok(Self::new(name())) };
        let Line::Session { name, reserved, acked } = first else { return Err("the first line is not a session line") };
        let mut session = Self { reserved: (*reserved).max(1), acked: *acked, ..Self::new(name.clone()) };
        for line in rest {
            session.replay(line)?;
        }
        // No process reaches such numbers, and the next number must not overflow.
        if session.reserved.max(session.last()) > u64::MAX / 2 {
            return Err("the numbers of holds or settles are too high");
        }
        // Reserved numbers may have been used.
        session.next_hold = session.reserved;
        let open: Vec<(u64, bool)> = session.open.iter().map(|(id, entry)| (*id, entry.sent)).collect();
        for (id, sent) in open {
            let quality = if sent { Quality::Estimated } else { Quality::Exact };
            session.end(id, Usage::default(), quality, CallEnd::default(), "", 0);
        }
        session.names.prune();
        Ok(session)
    }

    fn replay(&mut self, line: &Line) -> Result<(), &'static str> {
        match line {
            Line::Session { .. } => return Err("there is a second session line"),
            Line::Reserved(reserved) => self.reserved = self.reserved.max(*reserved),
            Line::Name(number, text) => self.read_name(*number, text)?,
            Line::Gave(gave) => self.replay_hold(gave)?,
            Line::Held(open) => drop(self.take(open, "")),
            Line::Sent(id) => self.open.get_mut(id).ok_or("a call was sent without a hold")?.sent = true,
            Line::Extended { id, output } => {
                self.extended(*id, *output);
            }
            Line::Over(EndLine { seq, .. }) | Line::Ended(LegacySettleLine { seq, .. }) if Some(*seq) != self.last().checked_add(1) => {
                return Err("a settle is missing");
            }
            Line::Over(EndLine { seq: _, id, unanswered, usage, quality, end, model, bytes }) => {
                if *unanswered {
                    self.requested.insert(*id, self.shares.take("", reserve(std::iter::empty(), "")));
                }
                self.end(*id, *usage, *quality, *end, model, *bytes).ok_or("a call ended without a hold")?;
            }
            Line::Ended(LegacySettleLine { seq: _, told: JournaledSettle { open, usage, quality, end }, model, bytes }) => {
                self.take(open, "");
                self.end(open.id, *usage, *quality, *end, model, *bytes);
            }
            Line::Acked(acked) => self.drop_acked(*acked),
        }
        Ok(())
    }

    fn read_name(&mut self, number: u64, text: &str) -> Result<(), &'static str> {
        if self.names.read(number, text) { Ok(()) } else { Err("two lines contradict each other about a name") }
    }

    fn replay_hold(&mut self, gave: &HoldLine) -> Result<(), &'static str> {
        let HoldLine { id, at, of, names, path, input, output } = gave;
        names.iter().try_for_each(|(number, text)| self.read_name(*number, text))?;
        if !path.iter().all(|number| self.names.use_again(*number)) {
            return Err("a limit of a hold has no name");
        }
        let cost = reserve(path.iter().filter_map(|number| self.names.text(*number)), of);
        let of = self.shares.take(of, cost);
        let hold = Hold { id: *id, at: *at, namespace: of, path: path.as_slice().into(), input: *input, output: *output };
        self.insert(Entry { hold, sent: false, cost });
        Ok(())
    }

    /// The complete session.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            first: Line::Session { name: self.name.clone(), reserved: self.reserved, acked: self.acked },
            names: self.names.all(),
            settles: self.settles.iter().cloned().collect(),
            open: self.open.values().map(|entry| (entry.hold.clone(), entry.sent)).collect(),
        }
    }

    /// The most bytes of its rewritten journal.
    pub fn bytes(&self) -> usize {
        MAX_SESSION_HEADER_BYTES + self.shares.all() + self.names.bytes()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Settles that are not acknowledged.
    pub fn unacknowledged_count(&self) -> usize {
        self.settles.len()
    }

    fn last(&self) -> u64 {
        self.acked.saturating_add(u64::try_from(self.settles.len()).unwrap_or(u64::MAX))
    }

    /// Takes a number for a hold of a namespace. The line, if there is one, must be written before the number is used.
    pub fn take_number(&mut self, namespace: &str) -> Result<(u64, Option<Line>), ShareFull> {
        let cost = reserve(std::iter::empty(), namespace);
        self.shares.room(namespace, cost, self.names.bytes())?;
        let id = self.next_hold;
        self.next_hold += 1;
        self.requested.insert(id, self.shares.take(namespace, cost));
        if id < self.reserved {
            return Ok((id, None));
        }
        self.reserved = id + HOLD_NUMBER_BATCH;
        Ok((id, Some(Line::Reserved(self.reserved))))
    }

    fn answered(&mut self, id: u64) -> Option<Arc<str>> {
        let of = self.requested.remove(&id)?;
        self.shares.give_back(&of, reserve(std::iter::empty(), &of));
        Some(of)
    }

    /// Nothing was ever held under this number.
    pub fn discard_number(&mut self, id: u64) {
        self.answered(id);
    }

    /// The hold was given. Err: there is no space for its limits. Then it counts as not answered, and must be ended.
    pub fn given(&mut self, id: u64, open: &JournaledHold) -> Result<Line, ShareFull> {
        let of = self.requested.get(&id).cloned().unwrap_or_else(|| Arc::from(""));
        let texts = || open.path.iter().map(String::as_str);
        self.shares.room(&of, hold::places(texts()), self.names.bytes() + names::bytes(texts()))?;
        self.answered(id);
        let names = self.take(&JournaledHold { id, ..open.clone() }, &of);
        let gave = self.open.get(&id).map(|entry| HoldLine::of(&entry.hold, names));
        Ok(Line::Gave(gave.unwrap_or_default()))
    }

    /// Adds an open hold. Returns the new names.
    fn take(&mut self, open: &JournaledHold, of: &str) -> Vec<(u64, String)> {
        let JournaledHold { id, at, path, input, output } = open;
        let cost = reserve(path.iter().map(String::as_str), of);
        let mut names = Vec::new();
        let path = path.iter().map(|text| {
            let (number, new) = self.names.take(text);
            if new {
                names.push((number, text.clone()));
            }
            number
        });
        let path = path.collect();
        let hold = Hold { id: *id, at: *at, namespace: self.shares.take(of, cost), path, input: *input, output: *output };
        self.insert(Entry { hold, sent: false, cost });
        names
    }

    /// Inserts an open hold. A replaced hold with the same number gives its bytes back. Only a foreign journal has two.
    fn insert(&mut self, entry: Entry) {
        if let Some(replaced) = self.open.insert(entry.hold.id, entry) {
            self.shares.give_back(&replaced.hold.namespace, replaced.cost);
            self.release(&replaced.hold);
        }
    }

    fn release(&mut self, hold: &Hold) {
        hold.path.iter().for_each(|number| self.names.release(*number));
    }

    /// Its call is about to be sent.
    pub fn sent(&mut self, id: u64) -> Line {
        self.open.entry(id).and_modify(|entry| entry.sent = true);
        Line::Sent(id)
    }

    /// The call was not sent after all, because the line could not be written.
    pub fn unsent(&mut self, id: u64) {
        self.open.entry(id).and_modify(|entry| entry.sent = false);
    }

    /// The hold was extended.
    pub fn extended(&mut self, id: u64, output: i64) -> Option<Line> {
        let entry = self.open.get_mut(&id).filter(|entry| entry.hold.output < output)?;
        entry.hold.output = output;
        Some(Line::Extended { id, output })
    }

    /// The call ended; or it is not known whether its hold was given, and no call is sent for it.
    pub fn end(&mut self, id: u64, usage: Usage, quality: Quality, end: CallEnd, model: &str, bytes: i64) -> Option<Line> {
        let asked = self.answered(id);
        let (hold, unanswered) = match (self.open.remove(&id), asked) {
            (Some(Entry { hold, sent: _, cost }), _) => {
                self.shares.give_back(&hold.namespace, cost);
                (hold, false)
            }
            (None, Some(of)) => (Hold { id, at: 0, namespace: of, path: Box::default(), input: 0, output: 0 }, true),
            (None, None) => return None,
        };
        let model = if json_bytes(model) <= MAX_MODEL_NAME_BYTES { model.to_owned() } else { String::new() };
        let mut ended = EndedHold { seq: self.last() + 1, hold, unanswered, usage, quality, end, model, bytes, cost: 0 };
        let over = EndLine::of(&ended);
        let lines = hold::bytes(&Line::Over(over.clone())) + hold::bytes(&Line::Gave(HoldLine::of(&ended.hold, Vec::new())));
        ended.cost = lines.max(hold::bytes(&self.journaled_settle(&ended)));
        self.shares.take(&ended.hold.namespace, ended.cost);
        self.settling.insert(id);
        self.settles.push_back(Arc::new(ended));
        Some(Line::Over(over))
    }

    fn open_of(&self, hold: &Hold) -> JournaledHold {
        let Hold { id, at, namespace: _, path, input, output } = hold;
        let text = |number: &u64| self.names.text(*number).unwrap_or_default().to_owned();
        JournaledHold { id: *id, at: *at, path: path.iter().map(text).collect(), input: *input, output: *output }
    }

    fn journaled_settle(&self, ended: &EndedHold) -> JournaledSettle {
        JournaledSettle { open: self.open_of(&ended.hold), usage: ended.usage, quality: ended.quality, end: ended.end }
    }

    /// The smallest number that is still in use: holds with smaller numbers are over, and their settles are
    /// acknowledged.
    fn floor(&self) -> u64 {
        let open = self.open.keys().next().copied();
        let asking = self.requested.keys().next().copied();
        let settling = self.settling.first().copied();
        [open, asking, settling].into_iter().flatten().fold(self.next_hold, u64::min)
    }

    /// Records that the journal has the present state.
    pub fn is_written(&mut self) {
        self.written = (self.floor(), self.acked);
    }

    fn drop_acked(&mut self, acked: u64) {
        while let Some(ended) = self.settles.pop_front_if(|ended| ended.seq <= acked) {
            self.settling.remove(&ended.hold.id);
            self.shares.give_back(&ended.hold.namespace, ended.cost);
            self.release(&ended.hold);
        }
        self.acked = self.acked.max(acked);
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
