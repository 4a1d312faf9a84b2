//! The next actions about work: orders to the supervisor, claims, answers to the program, calls. It takes no answer of the
//! gateway.

use spillway_wire::agent::Run;
use spillway_wire::link::{Answer, Order};
use spillway_wire::work::{ItemOrder, LeaseRef, MAX_CLAIM_WAIT_SECONDS, Outcome};

use super::{CLAIM_ANSWER_GRACE, ITEMS_DONE_REASON, MIN_PROGRESS_INTERVAL, SidecarWork, SupervisorView, WorkFacts, died};
use crate::clock::BootTime;
use crate::link::action::{Action, WorkAction};

impl SidecarWork {
    /// Plans the actions that are due now, and when to plan again at the latest.
    pub fn plan(&mut self, now: BootTime, mut facts: WorkFacts<'_>, actions: &mut Vec<Action>, wake: &mut BootTime) {
        self.obey(&facts);
        let mut orders = Vec::new();
        self.tell(&mut facts, &mut orders);
        self.answer(now, &facts, wake);
        self.plan_claim(now, &facts, wake);
        if facts.registered {
            self.plan_call(now, wake);
        }
        let over = facts.how.max_items.is_some_and(|most| self.kept.done >= most.max(1)) && self.kept.item.is_none();
        if over && facts.registered && !std::mem::replace(&mut self.farewell, true) {
            self.pending_actions.push(WorkAction::Goodbye(ITEMS_DONE_REASON.to_owned()));
        }
        if std::mem::take(&mut self.dirty) {
            actions.push(Action::Work(WorkAction::Remember(Box::new(self.kept.clone()))));
        }
        actions.extend(orders.into_iter().map(Action::Tell));
        actions.extend(self.pending_actions.drain(..).map(Action::Work));
    }

    /// Applies the order about the item in hand.
    fn obey(&mut self, facts: &WorkFacts<'_>) {
        let waits = facts.wanted.filter(|wanted| matches!(wanted.order, ItemOrder::Pause(_)));
        self.paused = waits.filter(|_| facts.how.run == Run::PerItem).map(|wanted| wanted.held.clone());
        let Some(item) = &mut self.kept.item else { return };
        // The supervisor has reported that it does not hold the item, and has no order to work on it.
        let untouched = facts.supervisor.as_ref().is_some_and(|(present, _)| present.lacks(&item.held));
        // An end that is not sent yet is dropped: the supervisor runs the program again after the pause.
        if self.paused.as_ref() == Some(&item.held) && item.finish.take_if(|finish| died(finish)).is_some() {
            self.dirty = true;
        }
        let order = facts.wanted.filter(|wanted| wanted.held == item.held).map(|wanted| wanted.order);
        // A program that runs already cannot get another sandbox. The pool was edited since it started.
        if facts.how.run == Run::LongRunning && item.assignment.as_ref().is_some_and(|assignment| !assignment.sandbox.is_nothing()) {
            self.give_back("SandboxUnavailable");
            return;
        }
        match (order, facts.how.run) {
            (Some(ItemOrder::Lost), Run::LongRunning) => self.lose(),
            (Some(ItemOrder::Lost), Run::PerItem) if item.finish.is_some() || untouched => self.lose(),
            (Some(ItemOrder::Lost), Run::PerItem) => {
                self.dirty |= !item.lost;
                item.lost = true;
            }
            (Some(ItemOrder::Cancel), Run::PerItem) if untouched => self.give_back("Cancelled"),
            (Some(ItemOrder::Cancel | ItemOrder::Pause(_)), _) | (None, _) => {
                if let Some(reason) = facts.give_back.filter(|_| untouched) {
                    self.give_back(reason);
                }
            }
        }
    }

    fn give_back(&mut self, reason: &str) {
        if let Some(item) = self.kept.item.as_mut().filter(|item| item.finish.is_none()) {
            item.finish = Some(Outcome::Release { reason: reason.to_owned(), message: "no program worked on it".to_owned() });
            item.untouched = true;
            self.dirty = true;
        }
    }

    /// Plans the orders that the supervisor has not got on this connection.
    fn tell(&mut self, facts: &mut WorkFacts<'_>, orders: &mut Vec<Order>) {
        let settled = std::mem::take(&mut self.settled);
        // Without a connection the supervisor repeats the end on its next one, and gets the order then.
        let Some((present, started)) = &mut facts.supervisor else { return };
        for held in settled {
            // If the same lease is given to us again, the supervisor must get it again.
            present.item.take_if(|told| *told == held);
            present.settled = Some(held.clone());
            orders.push(Order::Settled(held));
        }
        let in_hand = self.kept.item.as_ref().map(|item| &item.held);
        let theirs = present.held.clone().flatten();
        if let (Some(theirs), Some(last)) = (theirs, &self.kept.last)
            && last.held == theirs
            && in_hand != Some(&theirs)
            && present.settled.as_ref() != Some(&theirs)
        {
            present.settled = Some(theirs.clone());
            orders.push(Order::Settled(theirs));
        }
        let Some(item) = self.kept.item.as_ref().filter(|item| *started && item.finish.is_none() && !item.lost) else { return };
        if let Some(assignment) = &item.assignment
            && present.lacks(&item.held)
        {
            present.item = Some(item.held.clone());
            orders.push(Order::Item(assignment.clone()));
        }
        let said = item.said.clone().map(|said| (item.held.clone(), said));
        if let Some((held, outcome)) = said.clone().filter(|_| said != present.reported && present.held.is_some()) {
            present.reported.clone_from(&said);
            orders.push(Order::Said(held, outcome));
        }
        // The program gets its answer only after the supervisor knows the report. If it ended before, another end would count.
        if said.is_some() && said == present.reported {
            self.pending_actions.extend(self.end_reporters.drain(..).map(|talker| WorkAction::Answer(talker.number, Answer::Done)));
        }
    }

    fn plan_claim(&mut self, now: BootTime, facts: &WorkFacts<'_>, wake: &mut BootTime) {
        if self.claim.busy || !self.may_claim_more(facts) {
            return;
        }
        let wait = match facts.how.run {
            Run::PerItem => {
                let idle = matches!(&facts.supervisor, Some((SupervisorView { held: Some(None), .. }, true)));
                (idle && self.kept.item.is_none()).then_some(MAX_CLAIM_WAIT_SECONDS)
            }
            Run::LongRunning => {
                // A lease is claimed again if our journal lost its task.
                let free = self.kept.item.as_ref().is_none_or(|item| item.assignment.is_none() && item.finish.is_none());
                let left = self.waiters.iter().map(|waiter| waiter.until.since(now).as_millis().div_ceil(1000)).max();
                left.filter(|_| free).map(|left| u32::try_from(left).unwrap_or(MAX_CLAIM_WAIT_SECONDS).min(MAX_CLAIM_WAIT_SECONDS))
            }
        };
        let Some(wait) = wait else { return };
        if now < self.claim.not_before {
            *wake = self.claim.not_before.min(*wake);
            return;
        }
        (self.claim.busy, self.claimed_at) = (true, now);
        self.waiters.iter_mut().for_each(|waiter| waiter.claimed = true);
        self.pending_actions.push(WorkAction::Claim(wait));
    }

    fn may_claim_more(&self, facts: &WorkFacts<'_>) -> bool {
        facts.may_claim && facts.how.max_items.is_none_or(|most| self.kept.done < most.max(1))
    }

    /// Answers the programs that asked for an item, or reported the end of theirs.
    fn answer(&mut self, now: BootTime, facts: &WorkFacts<'_>, wake: &mut BootTime) {
        let welcome = self.may_claim_more(facts);
        let item = self.kept.item.as_ref().filter(|item| item.finish.is_none() && !item.lost);
        let assignment = item.and_then(|item| item.assignment.as_ref());
        let news = &mut self.pending_actions;
        self.waiters.retain(|waiter| {
            let due = if waiter.tried || !welcome { waiter.until } else { waiter.until.after(CLAIM_ANSWER_GRACE) };
            let answer = match (assignment, &waiter.trouble) {
                (Some(assignment), _) => Answer::Item(Some(assignment.clone())),
                (None, _) if now < due => {
                    *wake = due.min(*wake);
                    return true;
                }
                (None, Some(trouble)) => Answer::Refused(trouble.clone()),
                (None, None) => Answer::Item(None),
            };
            news.push(WorkAction::Answer(waiter.number, answer));
            false
        });
        self.end_reporters.retain(|talker| {
            if now < talker.until {
                *wake = talker.until.min(*wake);
                return true;
            }
            news.push(WorkAction::Answer(talker.number, Answer::Kept));
            false
        });
    }

    /// Plans a call about the item. Progress comes first, because it is refused after the end.
    fn plan_call(&mut self, now: BootTime, wake: &mut BootTime) {
        let Some(item) = self.kept.item.as_ref().filter(|item| !item.lost && !self.calls.busy) else { return };
        let (action, due) = match (&item.advance, &item.finish) {
            (Some(advance), finish) => {
                let gap = self.advanced.filter(|_| finish.is_none()).map_or(now, |told| told.after(MIN_PROGRESS_INTERVAL));
                (WorkAction::Advance(item.held.clone(), advance.clone()), gap)
            }
            (None, Some(finish)) => (WorkAction::Finish(item.held.clone(), finish.clone()), now),
            (None, None) => return,
        };
        let due = due.max(self.calls.not_before);
        if now < due {
            *wake = due.min(*wake);
            return;
        }
        self.calls.busy = true;
        self.pending_actions.push(action);
    }
}

impl SupervisorView {
    /// Whether it has reported that it does not hold this lease, and did not get it on this connection.
    fn lacks(&self, held: &LeaseRef) -> bool {
        self.held.as_ref().is_some_and(|theirs| theirs.as_ref() != Some(held)) && self.item.as_ref() != Some(held)
    }
}
