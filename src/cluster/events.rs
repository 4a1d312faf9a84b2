//! The recorder of Kubernetes events of the process. Events are published on transitions only, and a lost event is not
//! an error. Some events are also sent to the webhooks.
//!
//! The recorder keeps each event for six minutes, to count repetitions, and the API server keeps it for an hour. So the
//! events of a namespace are limited, in a burst and in each second. Further events are dropped, and the log says so.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource};

use super::clock::BootTime;
use crate::notify::{Notice, Notifier};
use crate::policy::sweep::Sweep;

/// Bytes of a note.
const MAX_NOTE_BYTES: usize = 1000;
/// Events of one namespace in a burst.
const EVENT_BURST: f64 = 1_000.0;
/// Events of one namespace each second on average.
const EVENTS_PER_SECOND: f64 = 5.0;
/// From this number of namespaces on, those without recent events are removed.
const NAMESPACE_SWEEP_THRESHOLD: usize = 1024;

/// How many more events a namespace may have now.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    left: f64,
    at: BootTime,
    /// The log says that events are dropped.
    said: bool,
}

impl Allowance {
    fn refilled(self, now: BootTime) -> f64 {
        (self.left + now.since(self.at).as_secs_f64() * EVENTS_PER_SECOND).min(EVENT_BURST)
    }
}

/// The decision about one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventVerdict {
    Published,
    /// It is dropped; `first`: the events before it were published.
    Dropped {
        first: bool,
    },
}

/// The allowances of all namespaces.
#[derive(Debug)]
struct Allowances {
    of: HashMap<String, Allowance>,
    sweep: Sweep,
}

impl Default for Allowances {
    fn default() -> Self {
        Self { of: HashMap::new(), sweep: Sweep::new(NAMESPACE_SWEEP_THRESHOLD) }
    }
}

impl Allowances {
    fn take(&mut self, namespace: &str, now: BootTime) -> EventVerdict {
        if self.sweep.is_due(self.of.len()) {
            // A full allowance need not be remembered.
            self.of.retain(|_, allowance| allowance.refilled(now) < EVENT_BURST);
            self.sweep.done(self.of.len());
        }
        let known = self.of.entry(namespace.to_owned()).or_insert(Allowance { left: EVENT_BURST, at: now, said: false });
        (known.left, known.at) = (known.refilled(now), now);
        if known.left < 1.0 {
            return EventVerdict::Dropped { first: !std::mem::replace(&mut known.said, true) };
        }
        known.left -= 1.0;
        known.said = known.said && known.left < EVENT_BURST / 2.0;
        EventVerdict::Published
    }
}

/// Publishes events about objects.
#[derive(Clone)]
pub struct Events {
    recorder: Recorder,
    notifier: Notifier,
    allowances: Arc<Mutex<Allowances>>,
}

impl Events {
    /// `instance` names this process.
    pub fn new(client: Client, instance: String, notifier: Notifier) -> Self {
        let reporter = Reporter { controller: "spillway-controller".into(), instance: Some(instance) };
        Self { recorder: Recorder::new(client, reporter), notifier, allowances: Arc::default() }
    }

    /// Publishes a normal event.
    pub async fn normal<K: Resource<DynamicType = ()>>(&self, about: &K, reason: &str, action: &str, note: String) {
        self.publish(EventType::Normal, &about.object_ref(&()), reason, action, note).await;
    }

    /// Publishes an event that may need a person's attention.
    pub async fn warning<K: Resource<DynamicType = ()>>(&self, about: &K, reason: &str, action: &str, note: String) {
        self.publish(EventType::Warning, &about.object_ref(&()), reason, action, note).await;
    }

    /// As [`normal`](Self::normal), and sends a notice to the webhooks.
    pub async fn notify<K: Resource<DynamicType = ()>>(&self, about: &K, reason: &str, action: &str, note: String) {
        self.tell(false, about.object_ref(&()), reason, action, &note);
        self.normal(about, reason, action, note).await;
    }

    /// As [`warning`](Self::warning), and sends a notice to the webhooks.
    pub async fn alert<K: Resource<DynamicType = ()>>(&self, about: &K, reason: &str, action: &str, note: String) {
        self.tell(true, about.object_ref(&()), reason, action, &note);
        self.warning(about, reason, action, note).await;
    }

    fn tell(&self, warning: bool, about: ObjectReference, reason: &str, action: &str, message: &str) {
        let (reason, action, message) = (reason.to_owned(), action.to_owned(), message.to_owned());
        self.notifier.tell(Notice { time: jiff::Timestamp::now(), warning, about, reason, action, message });
    }

    async fn publish(&self, type_: EventType, about: &ObjectReference, reason: &str, action: &str, note: String) {
        let namespace = about.namespace.as_deref().unwrap_or_default();
        match self.allowances.lock().unwrap_or_else(PoisonError::into_inner).take(namespace, BootTime::now()) {
            EventVerdict::Published => {}
            EventVerdict::Dropped { first: false } => return,
            EventVerdict::Dropped { first: true } => {
                tracing::warn!(namespace, reason, "the namespace has too many events; further events are dropped until it has fewer");
                return;
            }
        }
        // The API server refuses notes of more than 1 KiB.
        let mut note = note;
        note.truncate((0..=MAX_NOTE_BYTES.min(note.len())).rev().find(|at| note.is_char_boundary(*at)).unwrap_or(0));
        let event = Event { type_, reason: reason.to_owned(), note: Some(note), action: action.to_owned(), secondary: None };
        if let Err(error) = self.recorder.publish(&event, about).await {
            tracing::warn!(%error, reason, "cannot publish an event");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn told(allowances: &mut Allowances, namespace: &str, now: BootTime, events: usize) -> usize {
        (0..events).filter(|_| allowances.take(namespace, now) == EventVerdict::Published).count()
    }

    #[test]
    fn a_namespace_with_too_many_events_has_further_ones_left_out_and_others_have_theirs() {
        let mut allowances = Allowances::default();
        let start = BootTime::default();
        assert_eq!(told(&mut allowances, "loud", start, 5_000), 1_000);
        assert_eq!(told(&mut allowances, "quiet", start, 5), 5);
        let later = start.after(Duration::from_secs(10));
        assert_eq!(told(&mut allowances, "loud", later, 5_000), 50);
        // The log says it once, until the namespace has been quiet for a while.
        let mut said = (0..5_000).filter(|_| allowances.take("loud", later) == EventVerdict::Dropped { first: true });
        assert_eq!(said.next(), None);
        let rested = later.after(Duration::from_secs(3600));
        let first = (0..5_000).filter(|_| allowances.take("loud", rested) == EventVerdict::Dropped { first: true }).count();
        assert_eq!(first, 1);
    }

    #[test]
    fn namespaces_without_events_for_a_while_are_forgotten() {
        let mut allowances = Allowances::default();
        for at in 0..10 * NAMESPACE_SWEEP_THRESHOLD {
            allowances.take(&format!("n{at}"), BootTime::default().after(Duration::from_secs(at.try_into().expect("small"))));
        }
        assert!(allowances.of.len() <= NAMESPACE_SWEEP_THRESHOLD);
    }
}
