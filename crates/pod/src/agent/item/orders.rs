//! Orders about the item in hand: it is cancelled, lost, paused or continued. This module neither takes nor concludes an item.

use spillway_wire::work::ItemOrder;

use super::current::Stage;
use super::outcome::{cancelled, lost};
use super::{Action, CANCEL_KILL_GRACE, Items, SHORT_KILL_GRACE};
use crate::clock::BootTime;

impl Items {
    /// The order about the item in hand.
    pub(super) fn order(&self) -> Option<ItemOrder> {
        let (current, wanted) = (self.current.as_ref()?, self.wanted.as_ref()?);
        (wanted.held == current.assignment.held).then_some(wanted.order)
    }

    pub(super) fn obey(&mut self, now: BootTime, actions: &mut Vec<Action>) {
        let order = self.order();
        if let Some(ItemOrder::Pause(number)) = order {
            return self.pause_item(number, actions);
        }
        if self.current.as_mut().is_some_and(|current| current.paused.take().is_some()) {
            self.resume_item(order, actions);
        }
        let Some(order) = order else { return };
        let (long, grace) = (!self.per_item(), self.grace);
        let Some(current) = &mut self.current else { return };
        if matches!(current.stage, Stage::Over(_) | Stage::Concluding) {
            return;
        }
        let known = match order {
            ItemOrder::Cancel => std::mem::replace(&mut current.cancelled, true),
            ItemOrder::Lost => std::mem::replace(&mut current.lost, true),
            ItemOrder::Pause(_) => true,
        };
        if known {
            return;
        }
        let name = &current.assignment.name;
        match (long, order) {
            (true, ItemOrder::Cancel) => {
                let text = format!("{name} was cancelled, or its deadline passed: stop working on it, and run `spillway work release`");
                actions.push(Action::Notice("ItemCancelled", text));
            }
            (true, ItemOrder::Lost) => {
                let text = format!("{name} is not yours any more: stop working on it. All reports about it are refused");
                actions.push(Action::Notice("ItemLost", text));
                self.forget(now, actions);
            }
            (false, ItemOrder::Cancel) => current.interrupt(now.after(grace.min(CANCEL_KILL_GRACE)), actions),
            (false, ItemOrder::Lost) => current.interrupt(now.after(SHORT_KILL_GRACE), actions),
            (_, ItemOrder::Pause(_)) => {}
        }
    }

    /// Pauses the item: its checkpoint is taken, and running processes continue. If the program has just died of what the item is
    /// paused for, this is no end of the item.
    fn pause_item(&mut self, number: i64, actions: &mut Vec<Action>) {
        let (long, draining) = (!self.per_item(), self.draining);
        let Some(current) = &mut self.current else { return };
        if current.paused == Some(number) || current.cancelled || current.lost || current.settled || draining {
            return;
        }
        current.paused = Some(number);
        if let Stage::Over(outcome) = &current.stage {
            if !current.would_run_again(&outcome.clone(), long) {
                return;
            }
            current.stage = Stage::Paused;
        }
        if long {
            let text = format!("{} is paused: model calls are refused until it continues", current.assignment.name);
            actions.push(Action::Notice("ItemPaused", text));
        }
        current.ask_for_checkpoint(actions);
    }

    /// Ends the pause of the item, by this order.
    fn resume_item(&mut self, order: Option<ItemOrder>, actions: &mut Vec<Action>) {
        let Some(current) = self.current.as_mut().filter(|current| current.stage == Stage::Paused) else { return };
        match order {
            Some(ItemOrder::Cancel) => current.stage = Stage::Over(cancelled()),
            Some(ItemOrder::Lost) => current.stage = Stage::Over(lost()),
            // The program runs again when the checkpoint hook has ended.
            Some(ItemOrder::Pause(_)) | None if current.hook => {}
            Some(ItemOrder::Pause(_)) | None => {
                if current.end.take().is_some() {
                    current.turn += 1;
                    current.resumed += 1;
                }
                current.interrupted = false;
                self.begin(actions);
            }
        }
    }

    /// The checkpoint hook ended.
    pub(super) fn checkpointed(&mut self, now: BootTime, actions: &mut Vec<Action>) {
        let Some(current) = &mut self.current else { return };
        current.hook = false;
        if current.stage == Stage::WaitingForHook {
            current.stage = Stage::Asked { kill_at: now.after(SHORT_KILL_GRACE) };
            actions.push(Action::AskAll);
        }
        match current.paused {
            Some(_) => current.ask_for_checkpoint(actions),
            None => self.resume_item(None, actions),
        }
    }
}
