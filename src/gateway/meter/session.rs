//! What a gateway knows of its session, and what it says next. Pure: time comes in, lines for the journal go out.
//!
//! What always holds: a number of a hold is used once; settles have numbers without gaps, in the order in which they were
//! written down; what is told of as over never comes back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::wire::meter::{Begin, End, MAX_SETTLES, Open, Quality, Settle, Settles, Told, Usage};

/// Numbers of holds that are taken from the journal at once.
const STEP: u64 = 1024;
/// A sign of life comes at least so often; the governor gives a session up that is silent for 60 s.
pub const ALIVE: Duration = Duration::from_secs(5);
/// What ends within so long is told together: where hundreds of calls end in a second, a call each would cost more than they do.
const TOGETHER: Duration = Duration::from_millis(10);
/// While settles are not acknowledged the governor is asked how far it is.
const POLL: Duration = Duration::from_millis(100);
/// Settles that were told and not acknowledged for so long are told again.
const AGAIN: Duration = Duration::from_secs(3);
/// After a call that failed; doubled up to the last.
const RETRY: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];
/// The most bytes of a name of a model that are told with a settle.
const MAX_MODEL: usize = 128;

/// A settle, as it is in the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ended {
    /// Its number.
    pub seq: u64,
    /// The hold that it ends, and what was used.
    pub told: Told,
    /// The model.
    pub model: String,
    /// Bytes of text that were sent; 0: nothing is learned from it.
    pub bytes: i64,
}

/// A line of the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Line {
    /// The first line.
    #[serde(rename_all = "camelCase")]
    Session {
        /// Name of the session.
        name: String,
        /// Numbers of holds below may have been used.
        reserved: u64,
        /// The last settle that is acknowledged.
        acked: u64,
    },
    /// Numbers of holds below may be used.
    Reserved(u64),
    /// A hold was given.
    Held(Open),
    /// Its call is about to be sent.
    Sent(u64),
    /// It was extended.
    Extended {
        /// The hold.
        id: u64,
        /// Output tokens that it covers.
        output: i64,
    },
    /// It ended.
    Ended(Ended),
    /// Settles up to this one are acknowledged.
    Acked(u64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    open: Open,
    sent: bool,
}

/// All that must be known to go on, as it was in one moment: taken at once, and turned into lines when there is time.
pub struct Snapshot {
    first: Line,
    settles: Vec<Arc<Ended>>,
    open: Vec<Entry>,
}

impl Snapshot {
    /// The journal that says it.
    pub fn lines(self) -> impl Iterator<Item = Line> {
        let settles = self.settles.into_iter().map(|ended| Line::Ended(ended.as_ref().clone()));
        let open = self.open.into_iter().flat_map(|Entry { open, sent }| {
            let sent = sent.then_some(Line::Sent(open.id));
            std::iter::once(Line::Held(open)).chain(sent)
        });
        std::iter::once(self.first).chain(settles).chain(open)
    }
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
    /// Numbers that the governor may have been asked about, and did not answer yet.
    asking: BTreeSet<u64>,
    open: BTreeMap<u64, Entry>,
    acked: u64,
    /// What is not acknowledged: at hundreds of calls a second many thousands, since records are written seconds apart.
    settles: VecDeque<Arc<Ended>>,
    /// The holds that those end.
    settling: BTreeSet<u64>,
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
}

impl Session {
    /// One that nobody has heard of.
    pub fn new(name: String) -> Self {
        Self {
            name,
            next_hold: 1,
            reserved: 1,
            asking: BTreeSet::new(),
            open: BTreeMap::new(),
            acked: 0,
            settles: VecDeque::new(),
            settling: BTreeSet::new(),
            connection: None,
            attached: None,
            told: 0,
            progress: Duration::ZERO,
            spoke: Duration::ZERO,
            failures: 0,
            not_before: Duration::ZERO,
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
        // What was reserved may have been used.
        session.next_hold = session.reserved;
        let open: Vec<(u64, bool)> = session.open.iter().map(|(id, entry)| (*id, entry.sent)).collect();
        for (id, sent) in open {
            let quality = if sent { Quality::Estimated } else { Quality::Exact };
            session.end(id, Usage::default(), quality, End::default(), "", 0);
        }
        Ok(session)
    }

    fn replay(&mut self, line: &Line) -> Result<(), &'static str> {
        match line {
            Line::Session { .. } => return Err("a second line is about the session"),
            Line::Reserved(reserved) => self.reserved = self.reserved.max(*reserved),
            Line::Held(open) => {
                self.open.insert(open.id, Entry { open: open.clone(), sent: false });
            }
            Line::Sent(id) => self.open.get_mut(id).ok_or("a call was sent that was not held for")?.sent = true,
            Line::Extended { id, output } => {
                self.extended(*id, *output);
            }
            Line::Ended(ended) if ended.seq != self.last() + 1 => return Err("a settle is missing"),
            Line::Ended(ended) => {
                self.open.remove(&ended.told.open.id);
                self.ended(ended.clone());
            }
            Line::Acked(acked) => self.drop_acked(*acked),
        }
        Ok(())
    }

    /// All that must be known to go on.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            first: Line::Session { name: self.name.clone(), reserved: self.reserved, acked: self.acked },
            settles: self.settles.iter().cloned().collect(),
            open: self.open.values().cloned().collect(),
        }
    }

    fn ended(&mut self, ended: Ended) {
        self.settling.insert(ended.told.open.id);
        self.settles.push_back(Arc::new(ended));
    }

    /// How many lines that are, about.
    pub fn size(&self) -> usize {
        1 + self.settles.len() + 2 * self.open.len()
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
        self.acked + u64::try_from(self.settles.len()).unwrap_or(u64::MAX)
    }

    /// A number for a hold; the line, if there is one, must be written before it is used.
    pub fn ask(&mut self) -> (u64, Option<Line>) {
        let id = self.next_hold;
        self.next_hold += 1;
        self.asking.insert(id);
        if id < self.reserved {
            return (id, None);
        }
        self.reserved = id + STEP;
        (id, Some(Line::Reserved(self.reserved)))
    }

    /// Nothing was ever held under this number.
    pub fn never(&mut self, id: u64) {
        self.asking.remove(&id);
    }

    /// It was given.
    pub fn given(&mut self, id: u64, open: &Open) -> Line {
        self.asking.remove(&id);
        let open = Open { id, ..open.clone() };
        self.open.insert(id, Entry { open: open.clone(), sent: false });
        Line::Held(open)
    }

    /// Its call is about to be sent.
    pub fn sent(&mut self, id: u64) -> Line {
        if let Some(entry) = self.open.get_mut(&id) {
            entry.sent = true;
        }
        Line::Sent(id)
    }

    /// It covers more now.
    pub fn extended(&mut self, id: u64, output: i64) -> Option<Line> {
        let entry = self.open.get_mut(&id).filter(|entry| entry.open.output < output)?;
        entry.open.output = output;
        Some(Line::Extended { id, output })
    }

    /// Its call ended; or nobody knows whether it was given, and nothing will be sent for it.
    pub fn end(&mut self, id: u64, usage: Usage, quality: Quality, end: End, model: &str, bytes: i64) -> Option<Line> {
        let unanswered = || Open { id, at: 0, path: Vec::new(), input: 0, output: 0 };
        let asked = self.asking.remove(&id);
        let open = self.open.remove(&id).map(|entry| entry.open).or_else(|| asked.then(unanswered))?;
        let model = model.chars().take(MAX_MODEL).collect();
        let ended = Ended { seq: self.last() + 1, told: Told { open, usage, quality, end }, model, bytes };
        self.ended(ended.clone());
        Some(Line::Ended(ended))
    }

    /// There is this connection to a governor, or none.
    pub fn connected(&mut self, connection: Option<u64>) {
        if self.connection != connection {
            self.connection = connection;
            (self.attached, self.failures, self.not_before) = (None, 0, Duration::ZERO);
        }
    }

    /// The governor does not know the session.
    pub fn detached(&mut self) {
        self.attached = None;
    }

    /// The governor knows it.
    pub fn is_attached(&self) -> bool {
        self.connection.is_some() && self.attached == self.connection
    }

    /// Every hold with a smaller number is over, and its settle acknowledged.
    fn floor(&self) -> u64 {
        let open = self.open.keys().next().copied();
        let asking = self.asking.first().copied();
        let settling = self.settling.first().copied();
        [open, asking, settling].into_iter().flatten().fold(self.next_hold, u64::min)
    }

    /// What to do at `now`. `written`: the journal has everything; else nothing of it may be told.
    pub fn plan(&self, now: Duration, written: bool) -> Plan {
        if self.connection.is_none() {
            return Plan::Wait(None);
        }
        if now < self.not_before {
            return Plan::Wait(Some(self.not_before));
        }
        if !self.is_attached() {
            return if written { Plan::Begin(self.begin()) } else { Plan::Wait(Some(now + POLL)) };
        }
        if written && self.told < self.last() {
            let next = self.spoke + TOGETHER;
            return if now >= next { Plan::Tell(self.tell(self.told)) } else { Plan::Wait(Some(next)) };
        }
        let owed = !self.settles.is_empty();
        if written && owed && now >= self.progress + AGAIN {
            return Plan::Tell(self.tell(self.acked));
        }
        let next = self.spoke + if owed { POLL } else { ALIVE };
        if now >= next { Plan::Tell(self.tell(self.last())) } else { Plan::Wait(Some(next)) }
    }

    fn begin(&self) -> Begin {
        Begin {
            session: self.name.clone(),
            // A number that is being asked for may be asked for again.
            next_hold: self.asking.first().copied().unwrap_or(self.next_hold),
            acked: self.acked,
            settles: self.settles.iter().map(|ended| ended.told.clone()).collect(),
            open: self.open.values().map(|entry| entry.open.clone()).collect(),
        }
    }

    fn tell(&self, after: u64) -> Settles {
        // Their numbers have no gaps.
        let told = usize::try_from(after.saturating_sub(self.acked)).unwrap_or(usize::MAX);
        let untold = self.settles.iter().skip(told).take(MAX_SETTLES);
        let settles = untold.map(|ended| {
            let Ended { seq, told: Told { open, usage, quality, end }, model, bytes } = ended.as_ref();
            Settle {
                seq: *seq,
                hold: open.id,
                usage: *usage,
                quality: *quality,
                input: open.input,
                output: open.output,
                end: *end,
                model: model.clone(),
                bytes: *bytes,
            }
        });
        Settles { session: self.name.clone(), settles: settles.collect(), floor: self.floor(), confirmed: self.acked }
    }

    /// The governor answered [`Plan::Begin`], which was made on `connection`, and has acknowledged settles up to `acked`.
    pub fn began(&mut self, now: Duration, connection: Option<u64>, begin: &Begin, acked: u64) -> Option<Line> {
        self.attached = connection;
        self.told = begin.acked + u64::try_from(begin.settles.len()).unwrap_or(u64::MAX);
        (self.spoke, self.progress, self.failures) = (now, now, 0);
        self.acknowledged(now, acked)
    }

    /// It answered [`Plan::Tell`].
    pub fn told(&mut self, now: Duration, settles: &Settles, acked: u64) -> Option<Line> {
        (self.spoke, self.failures) = (now, 0);
        if let (Some(first), Some(last)) = (settles.settles.first(), settles.settles.last()) {
            if first.seq <= self.told || self.told == self.acked {
                self.progress = now;
            }
            self.told = self.told.max(last.seq);
        }
        self.acknowledged(now, acked)
    }

    fn acknowledged(&mut self, now: Duration, acked: u64) -> Option<Line> {
        // What we never told cannot be acknowledged.
        let acked = acked.min(self.told);
        if acked <= self.acked {
            return None;
        }
        self.drop_acked(acked);
        self.progress = now;
        Some(Line::Acked(acked))
    }

    fn drop_acked(&mut self, acked: u64) {
        while let Some(ended) = self.settles.pop_front_if(|ended| ended.seq <= acked) {
            self.settling.remove(&ended.told.open.id);
        }
        self.acked = self.acked.max(acked);
    }

    /// A call failed: nobody knows what it did.
    pub fn failed(&mut self, now: Duration) {
        let [least, most] = RETRY;
        self.not_before = now + (least * 2_u32.saturating_pow(self.failures.min(8))).min(most);
        self.failures = self.failures.saturating_add(1);
        self.told = self.acked;
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
