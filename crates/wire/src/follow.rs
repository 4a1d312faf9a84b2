//! Work over the agents' API: what became of the items that the agents of a pool submitted.
//!
//! Both calls are read from the items themselves, so nothing of it is lost with a process; what is gone with its item is
//! gone. Whoever reads its inbox keeps the cursor: what comes after it is told again until the cursor moves on.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::body::{BoundedBody, at_most};
use crate::work::MAX_CLAIM_WAIT_SECONDS;

/// The most items or messages in one answer.
pub const MAX_LINES: usize = 100;

/// The query of `GET /agent/v1/work`: the items that the agents of the caller's pool submitted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListWork {
    /// Whose; `me`, the caller's pool, is the only one there is.
    #[serde(default)]
    pub submitted_by: Option<String>,
    /// Only those of a group.
    #[serde(default)]
    pub group: Option<String>,
    /// Only those of a plan.
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
    /// How many there are of each phase.
    pub counts: BTreeMap<String, u64>,
    /// The items, those that are not over first and then by age, at most 100.
    pub items: Vec<SubmittedItem>,
}

/// One item that was submitted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SubmittedItem {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// The queue it waits in.
    #[serde(default)]
    pub queue: Option<String>,
    /// What kind of work it is.
    #[serde(default, rename = "type")]
    pub type_: Option<String>,
    /// Its group.
    #[serde(default)]
    pub group: Option<String>,
    /// Its plan.
    #[serde(default)]
    pub plan: Option<String>,
    /// Where it is in its life, as `status.phase` says it.
    pub phase: String,
    /// Why, as one word.
    #[serde(default)]
    pub reason: Option<String>,
    /// Ready items before it in its queue.
    #[serde(default)]
    pub position: Option<u64>,
    /// What came out, or why it failed; at most the first 1024 characters.
    #[serde(default)]
    pub result: Option<String>,
}

/// Between the numbers of a cursor.
pub const CURSOR_SEPARATOR: char = '.';

/// The query of `GET /agent/v1/inbox`: what ended since the cursor, as soon as there is something.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InboxQuery {
    /// The cursor of the last answer that was read; unset: from the beginning.
    #[serde(default)]
    pub after: Option<String>,
    /// How long to wait for a message; at most 25 s.
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

/// The answer to [`InboxQuery`]; 204 if there was nothing for so long.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Inbox {
    /// What happened, the oldest first, at most 100. A message may come twice; none is left out.
    pub messages: Vec<Message>,
    /// Where to go on from.
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
        /// How many of its items ended in each phase.
        counts: BTreeMap<String, u64>,
    },
    /// An item is ready and waits: no pool that works from its queue has what it needs. Told of the first one of those that need
    /// the same.
    #[serde(rename_all = "camelCase")]
    ItemWaits {
        /// The item.
        item: SubmittedItem,
        /// What lacks, in words.
        text: String,
    },
    /// The supervisor asks for somebody to look at an agent: at one that works on what the reader's pool submitted, or, if it
    /// holds nothing that an agent submitted, at any, and the reader is a scheduler.
    #[serde(rename_all = "camelCase")]
    Escalated {
        /// Its name.
        agent: String,
        /// What was raised.
        signal: String,
        /// In words.
        text: String,
        /// The item that it holds.
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
