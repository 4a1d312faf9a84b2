//! What a gateway knows of its session, and what it says next. Pure: time comes in, lines for the journal go out.
//!
//! What always holds: a number of a hold is used once; settles have numbers without gaps, in the order in which they were
//! written down; what is told of as over never comes back.

mod connection;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::hold::{self, MAX_MODEL_NAME_BYTES, reserve};
pub use super::hold::{EndedHold, Hold};
pub use super::lines::Line;
use super::lines::{EndLine, HoldLine, LegacySettleLine, Snapshot};
use super::names::{self, Names, json_bytes};
pub use super::shares::ShareFull;
use super::shares::Shares;
use crate::policy::history::History;
use crate::policy::lease::REPLAY_HISTORY_TTL;
use crate::wire::meter::{Begin, CallEnd, JournaledHold, JournaledSettle, MAX_BEGIN_BYTES, Quality, ReplayedSettle, Settles, Usage};

/// Numbers of holds that are taken from the journal at once.
const HOLD_NUMBER_BATCH: u64 = 1024;
/// A sign of life comes at least so often; the governor gives a session up that is silent for 60 s.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// What ends within so long is told together: where hundreds of calls end in a second, a call each would cost more than they do.
const SETTLE_BATCH_DELAY: Duration = Duration::from_millis(10);
/// While settles are not acknowledged the governor is asked how far it is.
const ACK_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Settles that were told and not acknowledged for so long are told again.
const SETTLE_RESEND_DELAY: Duration = Duration::from_secs(3);
/// After a call that failed; doubled up to the last.
const CALL_RETRY_BACKOFF: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];
/// The most bytes that a session has in its journal when that is written anew, and in [`Begin`], beside [`MAX_SESSION_HEADER_BYTES`]: of settles that
/// are not acknowledged, of what is open, and of what is asked for.
pub const MAX_SESSION_BYTES: usize = 12 * 1024 * 1024;
/// The most bytes of all else in either of them.
pub const MAX_SESSION_HEADER_BYTES: usize = 4096;
/// The most bytes of acknowledged settles in [`Begin`]; in memory they take some times as many.
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

/// What to do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Tell the governor everything.
    Begin(Begin),
    /// Tell it what ended, or that we live.
    Tell(Settles),
    /// Nothing, until this time, or until something happens.
    Wait(Option<Duration>),
}

/// The session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    name: String,
    next_hold: u64,
    reserved: u64,
    /// Numbers that the governor may have been asked about, and did not answer yet; for whom.
    asking: BTreeMap<u64, Arc<str>>,
    open: BTreeMap<u64, Entry>,
    names: Names,
    shares: Shares,
    acked: u64,
    /// What is not acknowledged: at hundreds of calls a second many thousands, since records are written seconds apart.
    settles: VecDeque<Arc<EndedHold>>,
    /// The holds that those end.
    settling: BTreeSet<u64>,
    /// What the journal has, as far as the governor may rely on it: every hold below is over, and the last settle that is
    /// acknowledged.
    written: (u64, u64),
    /// Which connection there is.
    connection: Option<u64>,
    /// On which one the session began.
    attached: Option<u64>,
    /// The last settle that was told on it.
    told: u64,
    /// When the last was acknowledged, or all were told again.
    progress: Duration,
    spoke: Duration,
    failures: u32,
    not_before: Duration,
    /// Settles that were acknowledged in the last minutes.
    acknowledged: History<ReplayedSettle>,
    /// The leader has not stored all of those yet: none may expire.
    replay_pending: bool,
    /// The leader's store was rolled back in the last minutes: begin replays those settles.
    replays: bool,
}

impl Session {
    /// One that nobody has heard of.
    pub fn new(name: String) -> Self {
        Self {
            name,
            next_hold: 1,
            reserved: 1,
            asking: BTreeMap::new(),
            open: BTreeMap::new(),
            names: Names::default(),
            shares: Shares::new(MAX_SESSION_BYTES),
            acked: 0,
            settles: VecDeque::new(),
            settling: BTreeSet::new(),
            written: (1, 0),
            connection: None,
            attached: None,
            told: 0,
            progress: Duration::ZERO,
            spoke: Duration::ZERO,
            failures: 0,
            not_before: Duration::ZERO,
            acknowledged: History::new(REPLAY_HISTORY_TTL, ACKNOWLEDGED_BYTES),
            replay_pending: false,
            replays: false,
        }
    }

    /// What a process before this one left; none: a new one. Its calls are not made any more: what it had sent is charged at
    /// the estimate, what it had not costs nothing. Err: the lines make no sense together.
    pub fn restore(lines: &[Line], name: impl FnOnce() -> String) -> Result<Self, &'static str> {
        let Some((first, rest)) = lines.split_first() else { return Ok(Self::new(name())) };
        let Line::Session { name, reserved, acked } = first else { return Err("the first line is not about the session") };
        let mut session = Self { reserved: (*reserved).max(1), acked: *acked, ..Self::new(name.clone()) };
        for line in rest {
            session.replay(line)?;
        }
        // No process comes so far, and the next number must be one.
        if session.reserved.max(session.last()) > u64::MAX / 2 {
            return Err("its numbers are too high");
        }
        // What was reserved may have been used.
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
            Line::Session { .. } => return Err("a second line is about the session"),
            Line::Reserved(reserved) => self.reserved = self.reserved.max(*reserved),
            Line::Name(number, text) => self.name_is(*number, text)?,
            Line::Gave(gave) => self.replay_hold(gave)?,
            Line::Held(open) => drop(self.take(open, "")),
            Line::Sent(id) => self.open.get_mut(id).ok_or("a call was sent that was not held for")?.sent = true,
            Line::Extended { id, output } => {
                self.extended(*id, *output);
            }
            Line::Over(EndLine { seq, .. }) | Line::Ended(LegacySettleLine { seq, .. }) if Some(*seq) != self.last().checked_add(1) => {
                return Err("a settle is missing");
            }
            Line::Over(EndLine { seq: _, id, unanswered, usage, quality, end, model, bytes }) => {
                if *unanswered {
                    self.asking.insert(*id, self.shares.take("", reserve(std::iter::empty(), "")));
                }
                self.end(*id, *usage, *quality, *end, model, *bytes).ok_or("a call ended that was not held for")?;
            }
            Line::Ended(LegacySettleLine { seq: _, told: JournaledSettle { open, usage, quality, end }, model, bytes }) => {
                self.take(open, "");
                self.end(open.id, *usage, *quality, *end, model, *bytes);
            }
            Line::Acked(acked) => self.drop_acked(*acked),
        }
        Ok(())
    }

    fn name_is(&mut self, number: u64, text: &str) -> Result<(), &'static str> {
        if self.names.read(number, text) { Ok(()) } else { Err("a name contradicts another one") }
    }

    fn replay_hold(&mut self, gave: &HoldLine) -> Result<(), &'static str> {
        let HoldLine { id, at, of, names, path, input, output } = gave;
        names.iter().try_for_each(|(number, text)| self.name_is(*number, text))?;
        if !path.iter().all(|number| self.names.use_again(*number)) {
            return Err("a place of a hold has no name");
        }
        let cost = reserve(path.iter().filter_map(|number| self.names.text(*number)), of);
        let of = self.shares.take(of, cost);
        let hold = Hold { id: *id, at: *at, of, path: path.as_slice().into(), input: *input, output: *output };
        self.insert(Entry { hold, sent: false, cost });
        Ok(())
    }

    /// All that must be known to go on.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            first: Line::Session { name: self.name.clone(), reserved: self.reserved, acked: self.acked },
            names: self.names.all(),
            settles: self.settles.iter().cloned().collect(),
            open: self.open.values().map(|entry| (entry.hold.clone(), entry.sent)).collect(),
        }
    }

    /// The most bytes that its journal has when it is written anew.
    pub fn bytes(&self) -> usize {
        MAX_SESSION_HEADER_BYTES + self.shares.all() + self.names.bytes()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Settles that are not acknowledged.
    pub fn owed(&self) -> usize {
        self.settles.len()
    }

    fn last(&self) -> u64 {
        self.acked.saturating_add(u64::try_from(self.settles.len()).unwrap_or(u64::MAX))
    }

    /// A number for a hold of a namespace; the line, if there is one, must be written before it is used.
    pub fn ask(&mut self, namespace: &str) -> Result<(u64, Option<Line>), ShareFull> {
        let cost = reserve(std::iter::empty(), namespace);
        self.shares.room(namespace, cost, self.names.bytes())?;
        let id = self.next_hold;
        self.next_hold += 1;
        self.asking.insert(id, self.shares.take(namespace, cost));
        if id < self.reserved {
            return Ok((id, None));
        }
        self.reserved = id + HOLD_NUMBER_BATCH;
        Ok((id, Some(Line::Reserved(self.reserved))))
    }

    fn answered(&mut self, id: u64) -> Option<Arc<str>> {
        let of = self.asking.remove(&id)?;
        self.shares.give_back(&of, reserve(std::iter::empty(), &of));
        Some(of)
    }

    /// Nothing was ever held under this number.
    pub fn never(&mut self, id: u64) {
        self.answered(id);
    }

    /// It was given. Err: there is no room for its places; it is as if nobody had answered, and must be ended.
    pub fn given(&mut self, id: u64, open: &JournaledHold) -> Result<Line, ShareFull> {
        let of = self.asking.get(&id).cloned().unwrap_or_else(|| Arc::from(""));
        let texts = || open.path.iter().map(String::as_str);
        self.shares.room(&of, hold::places(texts()), self.names.bytes() + names::bytes(texts()))?;
        self.answered(id);
        let names = self.take(&JournaledHold { id, ..open.clone() }, &of);
        let gave = self.open.get(&id).map(|entry| HoldLine::of(&entry.hold, names));
        Ok(Line::Gave(gave.unwrap_or_default()))
    }

    /// Counts a hold as open. The names that are new with it.
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
        let hold = Hold { id: *id, at: *at, of: self.shares.take(of, cost), path, input: *input, output: *output };
        self.insert(Entry { hold, sent: false, cost });
        names
    }

    /// An open hold. One under the same number, as only a journal that nobody of us wrote has, gives back what it took.
    fn insert(&mut self, entry: Entry) {
        if let Some(replaced) = self.open.insert(entry.hold.id, entry) {
            self.shares.give_back(&replaced.hold.of, replaced.cost);
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

    /// It was not sent after all: that could not be written.
    pub fn unsent(&mut self, id: u64) {
        self.open.entry(id).and_modify(|entry| entry.sent = false);
    }

    /// It covers more now.
    pub fn extended(&mut self, id: u64, output: i64) -> Option<Line> {
        let entry = self.open.get_mut(&id).filter(|entry| entry.hold.output < output)?;
        entry.hold.output = output;
        Some(Line::Extended { id, output })
    }

    /// Its call ended; or nobody knows whether it was given, and nothing will be sent for it.
    pub fn end(&mut self, id: u64, usage: Usage, quality: Quality, end: CallEnd, model: &str, bytes: i64) -> Option<Line> {
        let asked = self.answered(id);
        let (hold, unanswered) = match (self.open.remove(&id), asked) {
            (Some(Entry { hold, sent: _, cost }), _) => {
                self.shares.give_back(&hold.of, cost);
                (hold, false)
            }
            (None, Some(of)) => (Hold { id, at: 0, of, path: Box::default(), input: 0, output: 0 }, true),
            (None, None) => return None,
        };
        let model = if json_bytes(model) <= MAX_MODEL_NAME_BYTES { model.to_owned() } else { String::new() };
        let mut ended = EndedHold { seq: self.last() + 1, hold, unanswered, usage, quality, end, model, bytes, cost: 0 };
        let over = EndLine::of(&ended);
        let lines = hold::bytes(&Line::Over(over.clone())) + hold::bytes(&Line::Gave(HoldLine::of(&ended.hold, Vec::new())));
        ended.cost = lines.max(hold::bytes(&self.told_of(&ended)));
        self.shares.take(&ended.hold.of, ended.cost);
        self.settling.insert(id);
        self.settles.push_back(Arc::new(ended));
        Some(Line::Over(over))
    }

    fn open_of(&self, hold: &Hold) -> JournaledHold {
        let Hold { id, at, of: _, path, input, output } = hold;
        let text = |number: &u64| self.names.text(*number).unwrap_or_default().to_owned();
        JournaledHold { id: *id, at: *at, path: path.iter().map(text).collect(), input: *input, output: *output }
    }

    fn told_of(&self, ended: &EndedHold) -> JournaledSettle {
        JournaledSettle { open: self.open_of(&ended.hold), usage: ended.usage, quality: ended.quality, end: ended.end }
    }

    /// Every hold with a smaller number is over, and its settle acknowledged.
    fn floor(&self) -> u64 {
        let open = self.open.keys().next().copied();
        let asking = self.asking.keys().next().copied();
        let settling = self.settling.first().copied();
        [open, asking, settling].into_iter().flatten().fold(self.next_hold, u64::min)
    }

    /// The journal has everything that is known now.
    pub fn is_written(&mut self) {
        self.written = (self.floor(), self.acked);
    }

    fn drop_acked(&mut self, acked: u64) {
        while let Some(ended) = self.settles.pop_front_if(|ended| ended.seq <= acked) {
            self.settling.remove(&ended.hold.id);
            self.shares.give_back(&ended.hold.of, ended.cost);
            self.release(&ended.hold);
        }
        self.acked = self.acked.max(acked);
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
