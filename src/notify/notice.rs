//! A notice: an event about an object that is sent to webhooks. Data only.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;

/// An event about an object that is sent to webhooks.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    /// The time of the event.
    pub time: Timestamp,
    /// Whether it may need a person's attention.
    pub warning: bool,
    /// The object.
    pub about: ObjectReference,
    /// The reason, in one word.
    pub reason: String,
    /// The action, in one word.
    pub action: String,
    /// The message, a sentence.
    pub message: String,
}

/// The key of similar notices, which are sent together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NoticeGroup {
    pub(super) namespace: String,
    pub(super) kind: String,
    pub(super) reason: String,
    pub(super) action: String,
}

impl NoticeGroup {
    pub(super) fn of(notice: &Notice) -> Self {
        let Notice { about, reason, action, .. } = notice;
        let (namespace, kind) = (about.namespace.clone().unwrap_or_default(), about.kind.clone().unwrap_or_default());
        Self { namespace, kind, reason: reason.clone(), action: action.clone() }
    }
}
