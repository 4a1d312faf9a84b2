//! One recorder of Kubernetes events for the process. Events are told on transitions only, and losing one is no error. What
//! people asked to be told of goes to the webhooks too.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource};

use crate::notify::{Notice, Notifier};

/// Bytes of a note.
const NOTE: usize = 1000;

/// Tells people what happened to an object.
#[derive(Clone)]
pub struct Events {
    recorder: Recorder,
    notifier: Notifier,
}

impl Events {
    /// `instance` names this process.
    pub fn new(client: Client, instance: String, notifier: Notifier) -> Self {
        let reporter = Reporter { controller: "spillway-controller".into(), instance: Some(instance) };
        Self { recorder: Recorder::new(client, reporter), notifier }
    }

    /// Something went as wanted.
    pub async fn normal<K: Resource<DynamicType = ()>>(&self, about: &K, reason: &str, action: &str, note: String) {
        self.publish(EventType::Normal, &about.object_ref(&()), reason, action, note).await;
    }

    /// Something a person may have to look at.
    pub async fn warning<K: Resource<DynamicType = ()>>(&self, about: &K, reason: &str, action: &str, note: String) {
        self.publish(EventType::Warning, &about.object_ref(&()), reason, action, note).await;
    }

    /// As [`normal`](Self::normal), and the webhooks are told.
    pub async fn notify<K: Resource<DynamicType = ()>>(&self, about: &K, reason: &str, action: &str, note: String) {
        self.tell(false, about.object_ref(&()), reason, action, &note);
        self.normal(about, reason, action, note).await;
    }

    /// As [`warning`](Self::warning), and the webhooks are told.
    pub async fn alert<K: Resource<DynamicType = ()>>(&self, about: &K, reason: &str, action: &str, note: String) {
        self.tell(true, about.object_ref(&()), reason, action, &note);
        self.warning(about, reason, action, note).await;
    }

    fn tell(&self, warning: bool, about: ObjectReference, reason: &str, action: &str, message: &str) {
        let (reason, action, message) = (reason.to_owned(), action.to_owned(), message.to_owned());
        self.notifier.tell(Notice { time: jiff::Timestamp::now(), warning, about, reason, action, message });
    }

    async fn publish(&self, type_: EventType, about: &ObjectReference, reason: &str, action: &str, note: String) {
        // The API server refuses notes of more than 1 KiB.
        let mut note = note;
        note.truncate((0..=NOTE.min(note.len())).rev().find(|at| note.is_char_boundary(*at)).unwrap_or(0));
        let event = Event { type_, reason: reason.to_owned(), note: Some(note), action: action.to_owned(), secondary: None };
        if let Err(error) = self.recorder.publish(&event, about).await {
            tracing::warn!(%error, reason, "an event could not be told");
        }
    }
}
