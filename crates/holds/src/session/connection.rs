//! The requests of a session to a governor, and the handling of the answers. It must not give or end a hold.
use std::sync::Arc;
use std::time::Duration;

use spillway_wire::meter::{Begin, MAX_SETTLES, ReplayedSettle, Settle, Settles};

use super::{
    ACK_POLL_INTERVAL, CALL_RETRY_BACKOFF, EndedHold, KEEPALIVE_INTERVAL, Line, Plan, SETTLE_BATCH_DELAY, SETTLE_RESEND_DELAY, Session,
};
use crate::hold;

impl Session {
    /// Sets the current connection to a governor.
    pub fn connected(&mut self, connection: Option<u64>) {
        if self.connection != connection {
            self.connection = connection;
            (self.attached, self.failures, self.not_before) = (None, 0, Duration::ZERO);
        }
    }

    /// Whether the next [`Begin`] replays acknowledged settles.
    pub fn set_replay(&mut self, replays: bool) {
        self.replays = replays;
    }

    /// The governor does not know the session.
    pub fn detached(&mut self) {
        self.attached = None;
    }

    /// Whether the governor knows the session.
    pub fn is_attached(&self) -> bool {
        self.connection.is_some() && self.attached == self.connection
    }

    /// The next step at `now`. Only if the journal has the whole session (`written`), changes may be reported.
    pub fn plan(&self, now: Duration, written: bool) -> Plan {
        if self.connection.is_none() {
            return Plan::Wait(None);
        }
        if now < self.not_before {
            return Plan::Wait(Some(self.not_before));
        }
        if !self.is_attached() {
            return if written { Plan::Begin(self.begin()) } else { Plan::Wait(Some(now + ACK_POLL_INTERVAL)) };
        }
        if written && self.last_sent < self.last() {
            let next = self.last_request + SETTLE_BATCH_DELAY;
            return if now >= next { Plan::Tell(self.tell(self.last_sent, written)) } else { Plan::Wait(Some(next)) };
        }
        let owed = !self.settles.is_empty();
        if written && owed && now >= self.progress + SETTLE_RESEND_DELAY {
            return Plan::Tell(self.tell(self.acked, written));
        }
        let next = self.last_request + if owed { ACK_POLL_INTERVAL } else { KEEPALIVE_INTERVAL };
        if now >= next { Plan::Tell(self.tell(self.last(), written)) } else { Plan::Wait(Some(next)) }
    }

    /// The complete session, for a leader that does not know it.
    pub fn begin(&self) -> Begin {
        Begin {
            session: self.name.clone(),
            // A number without an answer may be requested again.
            next_hold: self.requested.keys().next().copied().unwrap_or(self.next_hold),
            acked: self.acked,
            settles: self.settles.iter().map(|ended| self.journaled_settle(ended)).collect(),
            open: self.open.values().map(|entry| self.open_of(&entry.hold)).collect(),
            replayed: if self.replays { self.acknowledged.all().into_iter().cloned().collect() } else { Vec::new() },
        }
    }

    fn tell(&self, after: u64, written: bool) -> Settles {
        // The numbers of settles have no gaps.
        let told = usize::try_from(after.saturating_sub(self.acked)).unwrap_or(usize::MAX);
        let untold = self.settles.iter().skip(told).take(MAX_SETTLES);
        let settles = untold.map(|ended| {
            let EndedHold { seq, hold, unanswered: _, usage, quality, end, model, bytes, cost: _ } = ended.as_ref();
            Settle {
                seq: *seq,
                hold: hold.id,
                usage: *usage,
                quality: *quality,
                input: hold.input,
                output: hold.output,
                end: *end,
                model: model.clone(),
                bytes: *bytes,
            }
        });
        // The governor must not rely on a state that the next process would not know.
        let (floor, confirmed) = if written { (self.floor(), self.acked) } else { self.written };
        Settles { session: self.name.clone(), settles: settles.collect(), floor, confirmed }
    }

    /// The governor answered [`Plan::Begin`], which was made on `connection`, and has acknowledged settles up to `acked`.
    pub fn began(&mut self, now: Duration, connection: Option<u64>, begin: &Begin, acked: u64) -> Option<Line> {
        self.attached = connection;
        self.last_sent = begin.acked + u64::try_from(begin.settles.len()).unwrap_or(u64::MAX);
        (self.last_request, self.progress, self.failures) = (now, now, 0);
        self.acknowledged(now, acked)
    }

    /// It answered [`Plan::Tell`].
    pub fn settles_answered(&mut self, now: Duration, settles: &Settles, acked: u64) -> Option<Line> {
        (self.last_request, self.failures) = (now, 0);
        if let (Some(first), Some(last)) = (settles.settles.first(), settles.settles.last()) {
            if first.seq <= self.last_sent || self.last_sent == self.acked {
                self.progress = now;
            }
            self.last_sent = self.last_sent.max(last.seq);
        }
        self.acknowledged(now, acked)
    }

    fn acknowledged(&mut self, now: Duration, acked: u64) -> Option<Line> {
        // A settle that was never sent cannot be acknowledged.
        let acked = acked.min(self.last_sent);
        self.replay_pending = acked < self.acked;
        if !self.replay_pending {
            self.acknowledged.expire(now);
        }
        if acked <= self.acked {
            return None;
        }
        self.record_acknowledged(now, acked);
        self.drop_acked(acked);
        self.progress = now;
        Some(Line::Acked(acked))
    }

    /// Adds the settles up to `acked` to the history of acknowledged ones. Settles without limits are left out.
    fn record_acknowledged(&mut self, now: Duration, acked: u64) {
        let ended: Vec<Arc<EndedHold>> = self.settles.iter().take_while(|ended| ended.seq <= acked).cloned().collect();
        for ended in ended.iter().filter(|ended| !ended.hold.path.is_empty()) {
            let settle = ReplayedSettle { seq: ended.seq, told: self.journaled_settle(ended) };
            self.acknowledged.push(now, &ended.hold.namespace, hold::bytes(&settle), settle);
        }
    }

    /// A request failed, and its effect is not known.
    pub fn failed(&mut self, now: Duration) {
        let [least, most] = CALL_RETRY_BACKOFF;
        self.not_before = now + (least * 2_u32.saturating_pow(self.failures.min(8))).min(most);
        self.failures = self.failures.saturating_add(1);
        self.last_sent = self.acked;
    }
}
