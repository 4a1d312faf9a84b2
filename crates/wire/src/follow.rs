//! Progress of submitted work in the agents' API: the items that the agents of a pool submitted.
//!
//! Both calls read the items themselves. Therefore no process has to keep anything, and nothing is left of a deleted
//! item. The reader of an inbox keeps the cursor. It gets the messages after the cursor again until it uses a newer
//! cursor.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::body::{BoundedBody, at_most};
use crate::work::MAX_CLAIM_WAIT_SECONDS;

/// Maximum number of items or messages in one answer.
pub const MAX_LINES: usize = 100;

/// The query of `GET /agent/v1/work`, which lists items that the agents of the caller's pool submitted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListWork {
    /// Submitter of the items. The only value is `me`: the caller's pool.
    #[serde(default)]
    pub submitted_by: Option<String>,
    /// Group of the items. Unset: all groups.
    #[serde(default)]
    pub group: Option<String>,
    /// Plan of the items. Unset: all plans.
    #[serde(default)]
    pub plan: Option<String>,
}

impl BoundedBody for ListWork {
    fn check(&self) -> Result<(), (&'static str, String)> {
        if self.submitted_by.as_deref().is_some_and(|whose| whose != "me") {
            return Err(("submittedBy", "must be me: an agent lists only items of its own pool".into()));
        }
        at_most("group", self.group.as_deref().unwrap_or_default(), 63)?;
        at_most("plan", self.plan.as_deref().unwrap_or_default(), 63)
    }
}

/// The answer to [`ListWork`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WorkList {
    /// Number of items in each phase.
    pub counts: BTreeMap<String, u64>,
    /// The items, at most 100: first those that have not ended, then by age.
    pub items: Vec<SubmittedItem>,
}

/// A submitted item.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SubmittedItem {
    /// Name of the item.
    pub name: String,
    /// Uid of the item.
    pub uid: String,
    /// Queue of the item.
    #[serde(default)]
    pub queue: Option<String>,
    /// Type of the work.
    #[serde(default, rename = "type")]
    pub type_: Option<String>,
    /// Group of the item.
    #[serde(default)]
    pub group: Option<String>,
    /// Plan of the item.
    #[serde(default)]
    pub plan: Option<String>,
    /// Phase of the item, as in `status.phase`.
    pub phase: String,
    /// Reason for the phase, as one word.
    #[serde(default)]
    pub reason: Option<String>,
    /// Number of ready items before it in its queue.
    #[serde(default)]
    pub position: Option<u64>,
    /// Result of the item, or the reason of its failure: at most the first 1024 characters.
    #[serde(default)]
    pub result: Option<String>,
}

/// Separator of the numbers of a cursor.
pub const CURSOR_SEPARATOR: char = '.';

/// The query of `GET /agent/v1/inbox`, which answers when there are messages after the cursor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InboxQuery {
    /// Cursor of the last answer. Unset: from the beginning.
    #[serde(default)]
    pub after: Option<String>,
    /// Seconds to wait for a message, at most 25.
    #[serde(default)]
    pub wait_seconds: u32,
}

impl BoundedBody for InboxQuery {
    fn check(&self) -> Result<(), (&'static str, String)> {
        if self.wait_seconds > MAX_CLAIM_WAIT_SECONDS {
            return Err(("waitSeconds", format!("must be at most {MAX_CLAIM_WAIT_SECONDS}, but is {}", self.wait_seconds)));
        }
        let number = |part: &str| (1..=20).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
        let ours = |after: &str| after.split(CURSOR_SEPARATOR).count() <= 3 && after.split(CURSOR_SEPARATOR).all(number);
        if self.after.as_deref().is_none_or(ours) { Ok(()) } else { Err(("after", "must be the cursor of an earlier response".into())) }
    }
}

/// The answer to [`InboxQuery`]. The status is 204 if there was no message within the wait.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Inbox {
    /// The messages, oldest first, at most 100. A message may be repeated, and none is left out.
    pub messages: Vec<Message>,
    /// Cursor of the next request.
    pub cursor: String,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", tag = "about")]
pub enum Message {
    /// An item ended.
    #[serde(rename_all = "camelCase")]
    ItemEnded {
        /// The item.
        item: SubmittedItem,
    },
    /// Every item of a plan ended.
    #[serde(rename_all = "camelCase")]
    PlanEnded {
        /// The plan.
        plan: String,
        /// Number of its items that ended in each phase.
        counts: BTreeMap<String, u64>,
    },
    /// An item is ready and waits, because no pool that takes items from its queue meets its requirements. Of several
    /// items with the same requirements, only the first one is reported.
    #[serde(rename_all = "camelCase")]
    ItemWaits {
        /// The item.
        item: SubmittedItem,
        /// Missing requirements, as text.
        text: String,
    },
    /// The supervisor asks for attention to an agent. If the agent holds an item that an agent submitted, the pool of
    /// the submitter gets the message. Otherwise every scheduler does.
    #[serde(rename_all = "camelCase")]
    Escalated {
        /// Name of the agent.
        agent: String,
        /// Signal that was raised.
        signal: String,
        /// Text of the message.
        text: String,
        /// Item that the agent holds.
        #[serde(default)]
        item: Option<String>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_that_is_none_of_ours_is_refused_by_name() {
        let ask = |after: &str| InboxQuery { after: Some(after.to_owned()), wait_seconds: 0 }.check();
        assert_eq!((ask("12345"), ask("12345.6.7")), (Ok(()), Ok(())));
        for other in ["x", "-1", "1 2", "123456789012345678901", "", "1.", "1.2.3.4"] {
            assert_eq!(ask(other).map_err(|(field, _)| field), Err("after"), "{other}");
        }
        assert_eq!(InboxQuery { after: None, wait_seconds: 26 }.check().map_err(|(field, _)| field), Err("waitSeconds"));
        assert!(ListWork { submitted_by: Some("you".into()), ..ListWork::default() }.check().is_err());
    }
}
