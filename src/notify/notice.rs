//! What happened to an object that people asked to be told of: data alone.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;

/// What happened to an object that people asked to be told of.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    /// When.
    pub time: Timestamp,
    /// Whether somebody may have to look at it.
    pub warning: bool,
    /// The object.
    pub about: ObjectReference,
    /// Why, in one word.
    pub reason: String,
    /// What was done, in one word.
    pub action: String,
    /// The same in a sentence.
    pub message: String,
}

/// What makes notices alike: they are told together.
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
