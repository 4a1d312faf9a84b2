//! One recorder of Kubernetes events for the process. Events are told on transitions only, and losing one is no error.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource};

/// Tells people what happened to an object.
#[derive(Clone)]
pub struct Events {
    recorder: Recorder,
}

impl Events {
    /// `instance` names this process.
    pub fn new(client: Client, instance: String) -> Self {
        Self { recorder: Recorder::new(client, Reporter { controller: "spillway-controller".into(), instance: Some(instance) }) }
    }

    /// Something went as wanted.
    pub async fn normal<K: Resource<DynamicType = ()>>(&self, about: &K, reason: &str, action: &str, note: String) {
        self.publish(EventType::Normal, &about.object_ref(&()), reason, action, note).await;
    }

    /// Something a person may have to look at.
    pub async fn warning<K: Resource<DynamicType = ()>>(&self, about: &K, reason: &str, action: &str, note: String) {
        self.publish(EventType::Warning, &about.object_ref(&()), reason, action, note).await;
    }

    async fn publish(&self, type_: EventType, about: &ObjectReference, reason: &str, action: &str, note: String) {
        // The API server refuses notes of more than 1 KiB.
        let note: String = note.chars().take(1000).collect();
        let event = Event { type_, reason: reason.to_owned(), note: Some(note), action: action.to_owned(), secondary: None };
        if let Err(error) = self.recorder.publish(&event, about).await {
            tracing::warn!(%error, reason, "an event could not be told");
        }
    }
}
