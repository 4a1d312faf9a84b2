//! Holding tokens for a call before it is made, and settling what it used: all or nothing over the whole path.
//!
//! Every call passes this part. It allocates only what it keeps, and looks up no name.

use std::sync::Arc;

use super::estimate::{HoldRequest, MAX_CALL_TOKENS};
use super::hold::{Hold, Settle, Step};
use super::ledger::{Ledger, MAX_SESSIONS_PER_RECORD, Member, Node, Role};
use super::node::{Key, Mode};
use super::refusal::{LimitRoom, LimitState, Refusal, RefusalCause, RetryHint, cause_of, field_of, retry_hint};
use super::route::Route;
use super::session::{HoldMark, SessionId, State};

/// The tokens that are held for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeldTokens {
    /// When, on the leader's clock, in milliseconds.
    pub at: i64,
    /// Tokens of input.
    pub input: i64,
    /// Tokens of output, all choices together. The call must carry an output limit that keeps it within this.
    pub output: i64,
}

/// The answer to a request for a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HoldAnswer {
    /// It is held. A repeat gets the same.
    Given(HeldTokens),
    /// It is not held, for this reason. A repeat may get another answer.
    Refused(Box<Refusal>),
    /// There are enough tokens, but these records must be written before they are held: see [`Ledger::draft`]. Then ask
    /// again.
    Write(Vec<Key>),
    /// The number was used before, or the gateway closed it. Nothing is held, and nothing must be sent upstream.
    Closed,
    /// The session is not attached here: it must begin (again).
    Unattached,
}

/// The result of a settle, in memory: it is acknowledged by [`Ledger::written`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SettleOutcome {
    /// It counts.
    Counted,
    /// It counted before.
    Repeated,
    /// It has no effect: nothing was held under its hold number. Its own number is used up.
    Unknown,
    /// Earlier settles are missing: send them from this number on.
    Gap(u64),
    /// The session is not attached here: it must begin (again).
    Unattached,
}

/// Output tokens, all choices together, below which a call has no use.
fn min_total_output(ask: &HoldRequest) -> i64 {
    ask.min_output.max(0).saturating_mul(ask.choices.max(1)).min(MAX_CALL_TOKENS)
}

impl Ledger {
    /// Holds tokens for a call, at every place of its route or at none. `id` is the session's number of it. `now` in
    /// milliseconds.
    pub fn hold(&mut self, now: i64, session: SessionId, id: u64, route: &mut Route, ask: &HoldRequest) -> HoldAnswer {
        self.advance(now);
        match self.sessions.get(session.0).map(|found| (found.state, found.ring.get(id))) {
            Some((State::Attached, HoldMark::Unused)) => {}
            Some((State::Attached, HoldMark::Closed)) => return HoldAnswer::Closed,
            Some((State::Attached, HoldMark::Open(slot))) => {
                let Hold { at, input, output, .. } = self.holds[slot];
                return HoldAnswer::Given(HeldTokens { at, input, output });
            }
            Some((State::Awaited | State::Dead, _)) | None => return HoldAnswer::Unattached,
        }
        self.refresh(route);
        if let Some(missing) = &route.missing {
            return HoldAnswer::Refused(Box::new(Refusal::new(missing.clone(), RefusalCause::Missing, RetryHint::Never, "metadata.name")));
        }
        let (output, observed) = match self.fit(&route.steps, ask, id) {
            Ok(fits) => fits,
            Err(refusal) => return HoldAnswer::Refused(refusal),
        };
        if !self.durable(session.0, &route.steps, ask.input, output) {
            return self.request_writes(session.0, &route.steps, ask.input, output, id);
        }
        if observed {
            self.observe(&route.steps, ask);
        }
        self.give(session.0, id, route, ask.input, output)
    }

    /// Output tokens, all choices together, that fit at all places; and whether a place that only observes would have
    /// refused.
    fn fit(&self, steps: &[usize], ask: &HoldRequest, spread: u64) -> Result<(i64, bool), Box<Refusal>> {
        let choices = ask.choices.max(1);
        let least = min_total_output(ask);
        let mut most = i64::MAX;
        let mut hindered = false;
        let mut observed = false;
        for (at, index) in steps.iter().enumerate() {
            let node = &self.nodes[*index];
            let mut fits = self.has_call_slot(&steps[..at], *index);
            let mut outputs = i64::MAX;
            for (which, limit) in node.limits.iter().enumerate() {
                let relief = if limit.current.reserved > 0 { self.own_guarantees(&steps[..at], *index, which) } else { 0 };
                outputs = outputs.min(node.spec.weights.max_output(limit.free().saturating_add(relief), ask.input));
                fits &= !limit.latches.paused || self.is_reserved(&steps[..at], *index);
            }
            let fits = fits && outputs >= least;
            match node.spec.mode {
                Mode::Enforce => {
                    most = most.min(outputs);
                    hindered |= !fits || node.spec.block.is_some();
                }
                Mode::Observe | Mode::Disabled => observed |= !fits,
            }
        }
        if hindered {
            return Err(self.refuse(steps, ask, least, spread));
        }
        Ok((ask.output.min(most / choices).saturating_mul(choices).min(MAX_CALL_TOKENS), observed))
    }

    /// The part of a limit that is reserved for children on the path of the call.
    pub(super) fn own_guarantees(&self, before: &[usize], parent: usize, limit: usize) -> i64 {
        let children = before.iter().map(|index| &self.nodes[*index]).filter(|node| node.guards && node.parent == Some(parent));
        let limits = children.flat_map(|node| &node.limits).filter(|child| child.lifts.contains(&limit));
        limits.fold(0, |sum, child| sum.saturating_add(child.unspent()))
    }

    /// Whether a place may have one more call in flight. `before` are the places on the path below it. Other
    /// reservations keep the calls that they do not use.
    fn has_call_slot(&self, before: &[usize], index: usize) -> bool {
        let node = &self.nodes[index];
        let Some(max) = node.spec.max_in_flight else { return true };
        let others = node.shares.iter().filter(|share| !before.contains(share)).map(|share| &self.nodes[*share]);
        let kept = others.map(|share| share.spec.sure_in_flight.saturating_sub(share.in_flight));
        kept.fold(node.in_flight, u32::saturating_add) < max
    }

    /// Whether the call comes through a reservation of the place. A reservation is not paused with the rest, because it
    /// was kept for that case.
    pub(super) fn is_reserved(&self, before: &[usize], parent: usize) -> bool {
        let shares = before.iter().map(|index| &self.nodes[*index]).filter(|node| node.parent == Some(parent));
        shares.into_iter().any(|node| matches!(node.spec.key, Key::Share { .. }))
    }

    fn observe(&mut self, steps: &[usize], ask: &HoldRequest) {
        let least = min_total_output(ask);
        for (at, index) in steps.iter().enumerate() {
            if !self.nodes[*index].enforced() && self.hindrance(&steps[..at], *index, ask, least, 0).is_some() {
                self.nodes[*index].would_refuse += 1;
            }
        }
    }

    /// The refusal that is most final, and of equal ones the one with the least left.
    pub(super) fn refuse(&self, steps: &[usize], ask: &HoldRequest, least: i64, spread: u64) -> Box<Refusal> {
        let all = steps.iter().enumerate().filter(|(_, index)| self.nodes[**index].enforced());
        let all = all.filter_map(|(at, index)| self.hindrance(&steps[..at], *index, ask, least, spread));
        let left = |refusal: &Refusal| std::cmp::Reverse(refusal.limit.as_ref().map_or(0, |limit| limit.left));
        let worst = all.max_by_key(|refusal| (refusal.retry, left(refusal)));
        // There is a reason, or this function would not be called. If it disappeared in between, the caller may ask
        // again.
        let nothing = || {
            let key = steps.first().map_or_else(|| Key::Cluster(String::new()), |index| self.nodes[*index].spec.key.clone());
            Refusal::new(key, RefusalCause::Held, RetryHint::Wait(1), "")
        };
        let mut worst = worst.unwrap_or_else(nothing);
        let place = steps.iter().enumerate().find(|(_, index)| self.nodes[**index].spec.key == worst.key);
        if let (Some((at, index)), Some(standing)) = (place, &worst.limit) {
            let limits = self.nodes[*index].limits.iter();
            let which = limits.into_iter().position(|limit| limit.spec.name == standing.name && limit.current.span == standing.span);
            worst.holders = which.map(|which| self.holders(&worst.cause, &steps[..at], *index, which)).unwrap_or_default();
        }
        Box::new(worst)
    }

    /// The refusal of one place.
    fn hindrance(&self, before: &[usize], index: usize, ask: &HoldRequest, least: i64, spread: u64) -> Option<Refusal> {
        let node = &self.nodes[index];
        let key = node.spec.key.clone();
        if let Some(block) = &node.spec.block {
            return Some(Refusal::new(key, RefusalCause::Blocked(block.clone()), RetryHint::Never, "spec.parentRef"));
        }
        let asked = node.spec.weights.bound(ask.input, least);
        let mut worst: Option<Refusal> = None;
        for (which, limit) in node.limits.iter().enumerate() {
            let relief = self.own_guarantees(before, index, which);
            let left = limit.free().saturating_add(relief);
            let paused = limit.latches.paused && !self.is_reserved(before, index);
            if asked <= left && !paused {
                continue;
            }
            let room = LimitRoom {
                height: limit.height,
                spent: limit.current.spent().saturating_sub(limit.current.unexplained),
                unexplained: limit.current.unexplained,
                held: limit.current.held,
                reserved: limit.current.reserved.saturating_sub(relief),
                asked,
                paused,
            };
            let because = cause_of(&room);
            let when = retry_hint(&because, Some(limit.current.span), self.now, spread);
            let standing = LimitState {
                name: limit.spec.name.clone(),
                span: limit.current.span,
                limit: limit.height,
                used: limit.current.spent(),
                held: limit.current.held,
                left: left.max(0),
                asked,
            };
            if worst.as_ref().is_none_or(|worst| when > worst.retry) {
                let field = field_of(&key, &limit.spec.name);
                worst = Some(Refusal { limit: Some(standing), ..Refusal::new(key.clone(), because, when, &field) });
            }
        }
        let full = !self.has_call_slot(before, index);
        let waits = || {
            let when = retry_hint(&RefusalCause::InFlight, None, self.now, spread);
            Refusal::new(key, RefusalCause::InFlight, when, "spec.requests.maxInFlight")
        };
        worst.or_else(|| full.then(waits))
    }

    /// Whether all places stay within their durable amounts.
    fn durable(&self, session: usize, steps: &[usize], input: i64, output: i64) -> bool {
        steps.iter().all(|index| {
            let node = &self.nodes[*index];
            let estimate = node.spec.weights.bound(input, output);
            let member = self.records[node.record].members.iter().find(|member| member.session == session);
            member.is_some_and(|member| member.durable)
                && node.limits.iter().all(|limit| limit.current.given_tokens().saturating_add(estimate) <= limit.current.high)
        })
    }

    /// Notes which records must be written for that, and answers with them.
    fn request_writes(&mut self, session: usize, steps: &[usize], input: i64, output: i64, spread: u64) -> HoldAnswer {
        let mut keys: Vec<Key> = Vec::new();
        for index in steps {
            let Node { record, spec, .. } = &self.nodes[*index];
            let (record, estimate) = (*record, spec.weights.bound(input, output));
            let Some(member) = self.member(record, session) else {
                let when = retry_hint(&RefusalCause::Gateways, None, self.now, spread);
                return HoldAnswer::Refused(Box::new(Refusal::new(self.records[record].key.clone(), RefusalCause::Gateways, when, "")));
            };
            let mut lacking = !member.durable;
            for limit in &mut self.nodes[*index].limits {
                if limit.current.given_tokens().saturating_add(estimate) > limit.current.high {
                    // A caller that asks again is counted again, so the sum is limited to all there is.
                    limit.current.requested = limit.current.requested.saturating_add(estimate).min(limit.height.max(estimate));
                    lacking = true;
                }
            }
            if lacking {
                self.request_write(record, &mut keys);
            }
        }
        HoldAnswer::Write(keys)
    }

    /// Marks a record as waited for. It is in `keys` once, even if several places need it.
    pub(super) fn request_write(&mut self, record: usize, keys: &mut Vec<Key>) {
        self.touch(record, true);
        let key = &self.records[record].key;
        if !keys.contains(key) {
            keys.push(key.clone());
        }
    }

    fn give(&mut self, session: usize, id: u64, route: &Route, input: i64, output: i64) -> HoldAnswer {
        let at = self.now;
        self.serial += 1;
        let slot = self.blank();
        let mut steps = std::mem::take(&mut self.holds[slot].steps);
        steps.clear();
        for index in &route.steps {
            let node = &mut self.nodes[*index];
            node.in_flight += 1;
            let estimate = node.spec.weights.bound(input, output);
            steps.push(Step { node: *index, generation: node.generation, estimate });
            for limit in 0..self.nodes[*index].limits.len() {
                self.change(*index, limit, at, |cell| {
                    cell.held = cell.held.saturating_add(estimate);
                    cell.active = true;
                });
            }
        }
        let path = Arc::clone(&route.path);
        self.holds[slot] = Hold { session, id, at, serial: self.serial, input, output, lost: false, steps, path };
        self.sessions[session].ring.set(id, HoldMark::Open(slot));
        self.look_crossed();
        HoldAnswer::Given(HeldTokens { at, input, output })
    }

    fn blank(&mut self) -> usize {
        self.spare_holds.pop().unwrap_or_else(|| {
            let path: Arc<[Key]> = Arc::from([]);
            self.holds.push(Hold { session: 0, id: 0, at: 0, serial: 0, input: 0, output: 0, lost: false, steps: Vec::new(), path });
            self.holds.len() - 1
        })
    }

    pub(super) fn add_hold(&mut self, hold: Hold) -> usize {
        let slot = self.blank();
        self.holds[slot] = hold;
        slot
    }

    /// The places of a hold. The gateway journals them with it.
    pub fn path(&self, session: SessionId, id: u64) -> Option<Arc<[Key]>> {
        match self.sessions.get(session.0)?.ring.get(id) {
            HoldMark::Open(slot) => self.holds.get(slot).map(|hold| Arc::clone(&hold.path)),
            HoldMark::Unused | HoldMark::Closed => None,
        }
    }

    /// The tokens that are held for a call.
    pub fn held_tokens(&self, session: SessionId, id: u64) -> Option<HeldTokens> {
        match self.sessions.get(session.0)?.ring.get(id) {
            HoldMark::Open(slot) => self.holds.get(slot).map(|hold| HeldTokens { at: hold.at, input: hold.input, output: hold.output }),
            HoldMark::Unused | HoldMark::Closed => None,
        }
    }

    /// Settles a call, in the windows of its hold. A call that was never sent settles 0, exactly.
    pub fn settle(&mut self, now: i64, session: SessionId, settle: &Settle) -> SettleOutcome {
        self.advance(now);
        let Settle { seq, hold, .. } = *settle;
        let Some(found) = self.sessions.get_mut(session.0).filter(|found| found.state == State::Attached) else {
            return SettleOutcome::Unattached;
        };
        if seq <= found.received {
            return SettleOutcome::Repeated;
        }
        if seq != found.received + 1 {
            return SettleOutcome::Gap(found.received + 1);
        }
        found.received = seq;
        let mark = found.ring.get(hold);
        found.ring.set(hold, HoldMark::Closed);
        match mark {
            HoldMark::Open(slot) => {
                self.close(slot, Some(settle));
                self.look_crossed();
                SettleOutcome::Counted
            }
            HoldMark::Unused | HoldMark::Closed => SettleOutcome::Unknown,
        }
    }

    /// Ends a hold, with a settle or as unused. The caller closes its number.
    pub(super) fn close(&mut self, slot: usize, settled: Option<&Settle>) {
        let mut steps = std::mem::take(&mut self.holds[slot].steps);
        let Hold { session, at, serial, lost, .. } = self.holds[slot];
        for Step { node: index, generation, estimate } in steps.drain(..) {
            let node = &mut self.nodes[index];
            if node.generation != generation {
                continue;
            }
            let charge = settled.map_or(0, |settle| settle.charged(&node.spec.weights));
            if !lost {
                node.in_flight = node.in_flight.saturating_sub(1);
            }
            let record = node.record;
            self.record_hold_end(record, session, settled.map(|settle| settle.seq));
            for limit in 0..self.nodes[index].limits.len() {
                if self.nodes[index].limits[limit].born > serial {
                    continue;
                }
                self.change(index, limit, at, |cell| {
                    if lost {
                        cell.lost = cell.lost.saturating_sub(estimate).max(0);
                    } else {
                        cell.held = cell.held.saturating_sub(estimate).max(0);
                    }
                    cell.used = cell.used.saturating_add(charge);
                });
            }
        }
        self.holds[slot].steps = steps;
        self.spare_holds.push(slot);
    }

    /// A record has one more settle, or one hold less.
    fn record_hold_end(&mut self, record: usize, session: usize, seq: Option<u64>) {
        self.touch(record, false);
        // If the session is no member, it was dead, was charged and removed from the record, and came back.
        if let (Some(seq), Some(member)) = (seq, self.member(record, session)) {
            member.first_unwritten.get_or_insert(seq);
        }
    }

    /// Charges a hold at its estimate, because its gateway is dead.
    pub(super) fn lose(&mut self, slot: usize) {
        self.set_lost(slot, true);
    }

    /// Reverts that charge, because the gateway came back.
    pub(super) fn revive(&mut self, slot: usize) {
        self.set_lost(slot, false);
    }

    fn set_lost(&mut self, slot: usize, lost: bool) {
        if std::mem::replace(&mut self.holds[slot].lost, lost) == lost {
            return;
        }
        let Hold { session, at, serial, .. } = self.holds[slot];
        for which in 0..self.holds[slot].steps.len() {
            let Step { node: index, generation, estimate } = self.holds[slot].steps[which];
            let node = &mut self.nodes[index];
            if node.generation != generation {
                continue;
            }
            node.in_flight = if lost { node.in_flight.saturating_sub(1) } else { node.in_flight.saturating_add(1) };
            let record = node.record;
            self.touch(record, lost);
            if !lost {
                // The session may have been removed from the record.
                let _ = self.member(record, session);
            }
            for limit in 0..self.nodes[index].limits.len() {
                if self.nodes[index].limits[limit].born > serial {
                    continue;
                }
                self.change(index, limit, at, |cell| {
                    let by = if lost { estimate.min(cell.held) } else { -estimate.min(cell.lost) };
                    cell.held = cell.held.saturating_sub(by);
                    cell.lost = cell.lost.saturating_add(by);
                });
            }
        }
        self.look_crossed();
    }

    /// Forgets a hold that is charged, permanently.
    pub(super) fn drop_hold(&mut self, slot: usize) {
        self.holds[slot].steps.clear();
        self.spare_holds.push(slot);
    }

    /// The tokens that a call of this route could have now: the least of all places, each in its own weights.
    /// `i64::MAX` if there is no limit.
    pub fn available_tokens(&mut self, route: &mut Route) -> i64 {
        self.refresh(route);
        if route.missing.is_some() {
            return 0;
        }
        let mut room = i64::MAX;
        for (at, index) in route.steps.iter().enumerate().filter(|(_, index)| self.nodes[**index].enforced()) {
            let node = &self.nodes[*index];
            for (which, limit) in node.limits.iter().enumerate() {
                let paused = limit.latches.paused && !self.is_reserved(&route.steps[..at], *index);
                let free = limit.free().saturating_add(self.own_guarantees(&route.steps[..at], *index, which));
                room = room.min(if paused || node.spec.block.is_some() { 0 } else { free.max(0) });
            }
        }
        room
    }

    /// The session's member entry of a record. It is added if it is missing and the record is not full.
    pub(super) fn member(&mut self, record: usize, session: usize) -> Option<&mut Member> {
        let known = self.records[record].members.iter().position(|member| member.session == session);
        let index = match known {
            Some(index) => index,
            None => {
                if self.records[record].members.len() >= MAX_SESSIONS_PER_RECORD && !self.evict(record) {
                    return None;
                }
                let member = Member { session, role: Role::Live, durable: false, contained: 0, first_unwritten: None, flying: None };
                self.records[record].members.push(member);
                if !self.sessions[session].records.contains(&record) {
                    self.sessions[session].records.push(record);
                }
                self.records[record].members.len() - 1
            }
        };
        self.records[record].members.get_mut(index)
    }
}
