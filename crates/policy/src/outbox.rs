//! Pending notifications for one receiver: in order, one delivery at a time, retried with growing pauses, bounded.
//! Notifications with the same key that come soon after a delivery are delivered together.
//!
//! It does not know what the notifications contain. Times are monotonic, since any origin.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use crate::backoff;

/// The shortest time between two deliveries with the same key.
pub const NOTICE_BATCH_INTERVAL: Duration = Duration::from_secs(60);
/// The most deliveries that wait. Notifications beyond it are lost, and counted.
pub const MAX_PENDING_NOTICES: usize = 256;
/// The most notifications of one delivery that it contains in full. The others are counted.
pub const MAX_NAMED_NOTICES: usize = 20;
/// The most attempts to send a delivery: about ten minutes, if the receiver does not answer.
pub const MAX_SEND_ATTEMPTS: u32 = 8;
/// The first and the longest pause after a failed attempt.
const SEND_RETRY_BACKOFF: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(300));

/// Notifications with the same key that are sent together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery<K, T> {
    /// Unique, and the same at each attempt, so that the receiver can recognise a repetition.
    pub id: u64,
    /// The key of all its notifications.
    pub key: K,
    /// The first notifications.
    pub named: Vec<T>,
    /// The last one, if it is not in `named`.
    pub last: Option<T>,
    /// The number of notifications.
    pub count: u64,
    due: Duration,
    tries: u32,
}

/// How an attempt to send ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The receiver accepted it.
    Taken,
    /// The receiver refused it, and would refuse it again.
    Refused,
    /// The receiver did not answer, or asked to send it later, perhaps after this time.
    Later(Option<Duration>),
}

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub enum NextStep<K, T> {
    /// Send this, then report [its end](Outbox::record_attempt_end). The number is the count of lost notifications so far.
    Send(Delivery<K, T>, u64),
    /// Nothing before this time.
    WaitUntil(Duration),
    /// Nothing before the next notification.
    Rest,
}

/// The pending notifications for one receiver.
#[derive(Debug)]
pub struct Outbox<K, T> {
    waiting: VecDeque<Delivery<K, T>>,
    last_sent: HashMap<K, Duration>,
    next_id: u64,
    lost: u64,
    failures: u32,
    paused: Duration,
}

impl<K, T> Default for Outbox<K, T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), last_sent: HashMap::new(), next_id: 1, lost: 0, failures: 0, paused: Duration::ZERO }
    }
}

impl<K: Clone + Eq + Hash, T> Outbox<K, T> {
    /// Adds a notification.
    pub fn push(&mut self, key: K, one: T, now: Duration) {
        self.last_sent.retain(|_, told| *told + NOTICE_BATCH_INTERVAL > now);
        if let Some(telling) = self.waiting.iter_mut().find(|telling| telling.key == key && telling.tries == 0) {
            telling.count += 1;
            if telling.named.len() < MAX_NAMED_NOTICES {
                telling.named.push(one)
            } else {
                telling.last = Some(one)
            }
            return;
        }
        if self.waiting.len() >= MAX_PENDING_NOTICES {
            self.lost += 1;
            return;
        }
        let due = self.last_sent.get(&key).map_or(now, |told| *told + NOTICE_BATCH_INTERVAL);
        self.waiting.push_back(Delivery { id: self.next_id, key, named: vec![one], last: None, count: 1, due, tries: 0 });
        self.next_id += 1;
    }

    /// What to do now. One delivery at a time: after [`NextStep::Send`], call this again when the attempt has ended.
    pub fn next(&mut self, now: Duration) -> NextStep<K, T> {
        let Some(first) = self.waiting.iter().map(|telling| telling.due).min() else { return NextStep::Rest };
        let from = first.max(self.paused);
        if from > now {
            return NextStep::WaitUntil(from);
        }
        match self.waiting.iter().position(|telling| telling.due <= now).and_then(|at| self.waiting.remove(at)) {
            Some(mut telling) => {
                telling.tries += 1;
                // From now on notifications with the same key wait.
                self.last_sent.insert(telling.key.clone(), now);
                NextStep::Send(telling, self.lost)
            }
            None => NextStep::Rest,
        }
    }

    /// An attempt ended. `lost` is the number that came with the delivery; `random` is uniform in [0, 1).
    pub fn record_attempt_end(&mut self, telling: Delivery<K, T>, lost: u64, outcome: Outcome, now: Duration, random: f64) {
        match outcome {
            Outcome::Taken => {
                self.failures = 0;
                self.lost = self.lost.saturating_sub(lost);
            }
            Outcome::Refused => {
                self.failures = 0;
                self.lost = self.lost.saturating_add(telling.count);
            }
            Outcome::Later(when) => {
                self.failures = self.failures.saturating_add(1);
                let pause = backoff::delay(self.failures, SEND_RETRY_BACKOFF.0, SEND_RETRY_BACKOFF.1, random)
                    .max(when.unwrap_or_default().min(SEND_RETRY_BACKOFF.1));
                self.paused = now + pause;
                if telling.tries >= MAX_SEND_ATTEMPTS {
                    self.lost = self.lost.saturating_add(telling.count);
                } else {
                    self.waiting.push_front(telling);
                }
            }
        }
    }

    /// The number of lost notifications that the receiver does not know of yet.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn told<K: Clone + Eq + Hash + std::fmt::Debug, T: std::fmt::Debug>(outbox: &mut Outbox<K, T>, now: Duration) -> (Delivery<K, T>, u64) {
        match outbox.next(now) {
            NextStep::Send(telling, lost) => (telling, lost),
            NextStep::WaitUntil(_) | NextStep::Rest => panic!("nothing is to be told at {now:?}: {outbox:?}"),
        }
    }

    #[test]
    fn what_is_alike_is_told_at_once_and_then_together() {
        let mut outbox = Outbox::default();
        outbox.push("a", 1, secs(10));
        let (first, lost) = told(&mut outbox, secs(10));
        assert_eq!((&first.named, first.count, lost), (&vec![1], 1, 0));
        outbox.push("a", 2, secs(11));
        outbox.record_attempt_end(first, 0, Outcome::Taken, secs(12), 0.5);
        (3..40).for_each(|one| outbox.push("a", one, secs(13)));
        outbox.push("b", 100, secs(13));
        let (other, _) = told(&mut outbox, secs(13));
        assert_eq!(other.key, "b", "what is different does not wait");
        outbox.record_attempt_end(other, 0, Outcome::Taken, secs(13), 0.5);
        assert_eq!(outbox.next(secs(14)), NextStep::WaitUntil(secs(70)));
        let (rest, _) = told(&mut outbox, secs(70));
        assert_eq!((rest.named, rest.last, rest.count), ((2..22).collect(), Some(39), 38));
        assert_eq!(outbox.next(secs(70)), NextStep::Rest);
    }

    #[test]
    fn who_does_not_answer_is_tried_later_and_later_and_not_for_ever() {
        let mut outbox = Outbox::default();
        outbox.push("a", 1, secs(0));
        let (mut now, mut pauses, mut ids) = (secs(0), Vec::new(), Vec::new());
        for _ in 0..MAX_SEND_ATTEMPTS {
            let (telling, lost) = told(&mut outbox, now);
            ids.push(telling.id);
            outbox.record_attempt_end(telling, lost, Outcome::Later(None), now, 1.0);
            if let NextStep::WaitUntil(then) = outbox.next(now) {
                pauses.push((then - now).as_secs());
                now = then;
            }
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 128]);
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
        outbox.push("b", 2, now);
        assert_eq!(outbox.next(now), NextStep::WaitUntil(now + secs(256)), "whoever was away stays so for the next one");
        let (next, lost) = told(&mut outbox, now + secs(256));
        assert_eq!((next.key, lost), ("b", 1), "and is told what was lost");
        outbox.push("c", 1, secs(900));
        let (telling, lost) = told(&mut outbox, secs(900));
        outbox.record_attempt_end(telling, lost, Outcome::Taken, secs(900), 0.0);
        assert_eq!(outbox.lost(), 0);
    }

    #[test]
    fn who_says_when_is_believed_within_bounds() {
        for (said, waits) in [(30, 30), (10_000, 300)] {
            let mut outbox = Outbox::default();
            outbox.push("a", 1, secs(0));
            let (telling, lost) = told(&mut outbox, secs(0));
            outbox.record_attempt_end(telling, lost, Outcome::Later(Some(secs(said))), secs(0), 0.0);
            assert_eq!(outbox.next(secs(0)), NextStep::WaitUntil(secs(waits)));
        }
    }

    proptest! {
        #[test]
        fn nothing_is_forgotten_and_nothing_grows(steps in prop::collection::vec((0u16..600, 0u8..8, 0u64..30_000), 1..900)) {
            let mut outbox = Outbox::default();
            let (mut pushed, mut taken, mut told_of, mut now) = (0_u64, 0_u64, 0_u64, Duration::ZERO);
            let mut last = HashMap::new();
            for (key, what, passes) in steps {
                now += Duration::from_millis(passes);
                if what < 5 {
                    outbox.push(key, (), now);
                    pushed += 1;
                } else if let NextStep::Send(telling, lost) = outbox.next(now) {
                    let (count, key, tries) = (telling.count, telling.key, telling.tries);
                    let before = if tries == 1 { last.insert(key, now) } else { None };
                    prop_assert!(before.is_none_or(|before| before + NOTICE_BATCH_INTERVAL <= now), "what is alike is told too often");
                    prop_assert!(telling.named.len() <= MAX_NAMED_NOTICES && tries <= MAX_SEND_ATTEMPTS);
                    let outcome = [Outcome::Taken, Outcome::Refused, Outcome::Later(None)][usize::from(what - 5)];
                    if outcome == Outcome::Taken {
                        taken += count;
                        told_of += lost;
                    }
                    outbox.record_attempt_end(telling, lost, outcome, now, 0.3);
                }
                prop_assert!(outbox.waiting.len() <= MAX_PENDING_NOTICES + 1);
                let waits: u64 = outbox.waiting.iter().map(|telling| telling.count).sum();
                prop_assert_eq!(pushed, taken + told_of + outbox.lost() + waits);
            }
            // If the receiver accepts everything, everything is delivered.
            for _ in 0..=MAX_PENDING_NOTICES + 1 {
                match outbox.next(now) {
                    NextStep::Send(telling, lost) => outbox.record_attempt_end(telling, lost, Outcome::Taken, now, 0.0),
                    NextStep::WaitUntil(then) => now = then,
                    NextStep::Rest => break,
                }
                if let NextStep::Send(telling, lost) = outbox.next(now) {
                    outbox.record_attempt_end(telling, lost, Outcome::Taken, now, 0.0);
                }
            }
            prop_assert!(outbox.waiting.is_empty());
        }
    }
}
