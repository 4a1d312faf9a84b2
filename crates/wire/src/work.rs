//! Work over the agents' API: claiming an item, finishing it, submitting more.
//!
//! A holder names its lease by [`LeaseRef`]; together with its pod's uid, which its token proves, that is the fence. Every call
//! is repeatable: whoever claims while it holds a lease gets *that* lease, and a finish that was accepted is answered the
//! same again.

use serde::{Deserialize, Serialize};

use crate::body::{BoundedBody, at_most};

/// The most bytes of a result.
pub const MAX_RESULT_BYTES: usize = 4096;
/// The most characters of a message.
const MAX_MESSAGE_CHARS: usize = 1024;
/// The most seconds that a claim waits. Below what usual middle boxes and clients wait.
pub const MAX_CLAIM_WAIT_SECONDS: u32 = 25;

/// Which lease: an item's uid and the epoch of the claim. With the pod's uid it is the fence.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LeaseRef {
    /// The item's uid.
    pub uid: String,
    /// The epoch of the claim.
    pub epoch: i64,
}

/// What is wanted of the item that an agent holds, or believes to hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ItemWanted {
    /// The lease.
    pub held: LeaseRef,
    /// What.
    pub order: ItemOrder,
}

/// What an agent is told of its item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum ItemOrder {
    /// Stop working on it and give it back: it was cancelled, or its deadline passed.
    Cancel,
    /// It is not the agent's any more: stop; nothing that it says of it counts.
    Lost,
    /// It waits, with its agent: write down where it is, start nothing for it, keep everything. The number of this pause.
    Pause(i64),
}

/// Asks for an item. Answered with an [`Assignment`], or with 204 when there was none for so long.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Claim {
    /// How long to wait for one; at most 25.
    #[serde(default)]
    pub wait_seconds: u32,
}

impl BoundedBody for Claim {
    fn check(&self) -> Result<(), (&'static str, String)> {
        if self.wait_seconds <= MAX_CLAIM_WAIT_SECONDS {
            return Ok(());
        }
        Err(("waitSeconds", format!("must be at most {MAX_CLAIM_WAIT_SECONDS}, but is {}", self.wait_seconds)))
    }
}

/// An item, leased to the caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Assignment {
    /// The lease.
    pub held: LeaseRef,
    /// The item's name.
    pub name: String,
    /// Its queue.
    pub queue: String,
    /// What kind of work it is.
    #[serde(default, rename = "type")]
    pub type_: Option<String>,
    /// The task.
    pub payload: String,
    /// Claims of it so far, this one included, since it was last redriven.
    pub attempt: u32,
    /// Seconds this attempt may take.
    pub attempt_seconds: u32,
    /// Where an earlier attempt said to go on from.
    #[serde(default)]
    pub checkpoint_ref: Option<String>,
}

/// How an attempt ended, in the words of whoever made it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Outcome {
    /// It is done.
    Complete {
        /// What came out; at most 4096 bytes.
        result: Option<String>,
    },
    /// The task failed.
    Fail {
        /// As one word, for the queue's rules.
        reason: String,
        /// For people.
        message: String,
        /// Of the program, if that is how it failed.
        exit_code: Option<i32>,
    },
    /// It is given back and counts as nothing.
    Release {
        /// As one word.
        reason: String,
        /// For people.
        message: String,
    },
}

impl Outcome {
    /// The call's body for this lease, and the last segment of its path.
    pub fn call(&self, epoch: i64) -> (&'static str, serde_json::Value) {
        match self {
            Self::Complete { result } => ("complete", serde_json::json!(Complete { epoch, result: result.clone() })),
            Self::Fail { reason, message, exit_code } => {
                let fail = Fail { epoch, reason: reason.clone(), message: message.clone(), exit_code: *exit_code };
                ("fail", serde_json::json!(fail))
            }
            Self::Release { reason, message } => {
                ("release", serde_json::json!(Release { epoch, reason: reason.clone(), message: message.clone() }))
            }
        }
    }
}

impl BoundedBody for Outcome {
    fn check(&self) -> Result<(), (&'static str, String)> {
        match self {
            Self::Complete { result } => check_result(result.as_deref()),
            Self::Fail { reason, message, exit_code: _ } | Self::Release { reason, message } => {
                check_reason(reason)?;
                at_most("message", message, MAX_MESSAGE_CHARS)
            }
        }
    }
}

fn check_result(result: Option<&str>) -> Result<(), (&'static str, String)> {
    let length = result.map_or(0, str::len);
    if length <= MAX_RESULT_BYTES {
        Ok(())
    } else {
        Err(("result", format!("must have at most {MAX_RESULT_BYTES} bytes, but has {length}")))
    }
}

fn check_reason(reason: &str) -> Result<(), (&'static str, String)> {
    let fits = reason.len() <= 64
        && reason.starts_with(|first: char| first.is_ascii_alphabetic())
        && reason.chars().all(|one| one.is_ascii_alphanumeric() || one == '_');
    if fits { Ok(()) } else { Err(("reason", "must be one word of at most 64 letters, digits and _, and must begin with a letter".into())) }
}

/// `POST /agent/v1/work/{uid}/complete`: it is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Complete {
    /// The epoch of the claim.
    pub epoch: i64,
    /// What came out; at most 4096 bytes.
    #[serde(default)]
    pub result: Option<String>,
}

impl BoundedBody for Complete {
    fn check(&self) -> Result<(), (&'static str, String)> {
        check_result(self.result.as_deref())
    }
}

/// `POST /agent/v1/work/{uid}/fail`: the task failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fail {
    /// The epoch of the claim.
    pub epoch: i64,
    /// As one word, for the queue's rules.
    pub reason: String,
    /// For people.
    #[serde(default)]
    pub message: String,
    /// Of the program, if that is how it failed.
    #[serde(default)]
    pub exit_code: Option<i32>,
}

impl BoundedBody for Fail {
    fn check(&self) -> Result<(), (&'static str, String)> {
        check_reason(&self.reason)?;
        at_most("message", &self.message, MAX_MESSAGE_CHARS)
    }
}

/// `POST /agent/v1/work/{uid}/release`: it is given back and counts as nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Release {
    /// The epoch of the claim.
    pub epoch: i64,
    /// As one word.
    pub reason: String,
    /// For people.
    #[serde(default)]
    pub message: String,
}

impl BoundedBody for Release {
    fn check(&self) -> Result<(), (&'static str, String)> {
        check_reason(&self.reason)?;
        at_most("message", &self.message, MAX_MESSAGE_CHARS)
    }
}

/// `POST /agent/v1/work/{uid}/progress`: how far it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProgressUpdate {
    /// The epoch of the claim.
    pub epoch: i64,
    /// 0 to 100.
    #[serde(default)]
    pub percent: Option<u8>,
    /// In words.
    #[serde(default)]
    pub message: Option<String>,
    /// Where another attempt could go on from. Means something to the agent alone.
    #[serde(default)]
    pub checkpoint_ref: Option<String>,
}

impl BoundedBody for ProgressUpdate {
    fn check(&self) -> Result<(), (&'static str, String)> {
        if self.percent.is_some_and(|percent| percent > 100) {
            return Err(("percent", "must be from 0 to 100".into()));
        }
        at_most("message", self.message.as_deref().unwrap_or_default(), MAX_MESSAGE_CHARS)?;
        at_most("checkpointRef", self.checkpoint_ref.as_deref().unwrap_or_default(), MAX_MESSAGE_CHARS)
    }
}

/// `POST /governor/v1/work/replay`, for an agent: an answer about a lease, from a leader whose writes may be lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReplayedLease {
    /// The lease.
    pub held: LeaseRef,
    /// The end that was accepted. None: the lease was granted.
    #[serde(default)]
    pub outcome: Option<Outcome>,
    /// Milliseconds since that was answered.
    #[serde(default)]
    pub age_ms: u64,
}

impl BoundedBody for ReplayedLease {
    fn check(&self) -> Result<(), (&'static str, String)> {
        at_most("held.uid", &self.held.uid, 64)?;
        self.outcome.as_ref().map_or(Ok(()), Outcome::check)
    }
}

/// An item to be submitted, in the words of `WorkItem.spec`. Repeatable under the `Idempotency-Key` header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Submit {
    /// The queue; unset: routed by its type.
    #[serde(default)]
    pub queue: Option<String>,
    /// What kind of work it is.
    #[serde(default, rename = "type")]
    pub type_: Option<String>,
    /// The higher the sooner.
    #[serde(default)]
    pub priority: i32,
    /// Items that are cancelled together.
    #[serde(default)]
    pub group: Option<String>,
    /// Items of one key are worked on up to the queue's maxLeasedPerKey at once.
    #[serde(default)]
    pub concurrency_key: Option<String>,
    /// At most one item of one key exists.
    #[serde(default)]
    pub dedup_key: Option<String>,
    /// The task; at most 16 KiB.
    #[serde(default)]
    pub payload: String,
    /// Names of items that must have succeeded before.
    #[serde(default)]
    pub after: Vec<String>,
    /// Of which ends the agents of the pool are told in their inbox, and people by an event; empty: of all, and no event.
    #[serde(default)]
    pub notify_on: Vec<NotifyOn>,
    /// What the pool must have that it is given to; unset: nothing. Left out then: a governor of before does not know it.
    #[serde(default, skip_serializing_if = "Requires::is_empty")]
    pub requires: Requires,
}

/// What an item needs of a pool, in the words of `WorkItem.spec.requires`. Each list has at most 32 entries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Requires {
    /// Programs that the pool's agents are checked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// Models that they may call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// https URLs that they reach.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub urls: Vec<String>,
    /// Credentials that they work with, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accounts: Vec<String>,
    /// Claims of volumes that they work on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<String>,
}

impl Requires {
    /// The most entries of a list.
    pub const MAX_ENTRIES: usize = 32;

    /// The lists, with their names and the most characters of an entry.
    fn lists(&self) -> [(&'static str, &Vec<String>, usize); 5] {
        let Self { tools, models, urls, accounts, volumes } = self;
        [
            ("requires.tools", tools, 128),
            ("requires.models", models, 128),
            ("requires.urls", urls, 1024),
            ("requires.accounts", accounts, 253),
            ("requires.volumes", volumes, 253),
        ]
    }

    /// Whether it needs nothing.
    pub fn is_empty(&self) -> bool {
        self.lists().iter().all(|(_, list, _)| list.is_empty())
    }

    fn check(&self) -> Result<(), (&'static str, String)> {
        for (field, list, longest) in self.lists() {
            if list.len() > Self::MAX_ENTRIES {
                return Err((field, format!("must have at most {} entries, but has {}", Self::MAX_ENTRIES, list.len())));
            }
            if list.iter().any(String::is_empty) {
                return Err((field, "must not contain an empty entry".into()));
            }
            list.iter().try_for_each(|entry| at_most(field, entry, longest))?;
        }
        Ok(())
    }
}

/// An end of an item that somebody is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum NotifyOn {
    /// Any end.
    Finished,
    /// It failed for good, was rejected, or its deadline passed.
    Failed,
    /// It was set aside.
    DeadLettered,
}

impl BoundedBody for Submit {
    fn check(&self) -> Result<(), (&'static str, String)> {
        if self.queue.is_none() && self.type_.is_none() {
            return Err(("queue", "queue or type must be set".into()));
        }
        at_most("queue", self.queue.as_deref().unwrap_or_default(), 253)?;
        at_most("type", self.type_.as_deref().unwrap_or_default(), 63)?;
        at_most("group", self.group.as_deref().unwrap_or_default(), 63)?;
        at_most("concurrencyKey", self.concurrency_key.as_deref().unwrap_or_default(), 253)?;
        at_most("dedupKey", self.dedup_key.as_deref().unwrap_or_default(), 253)?;
        if self.after.len() > 32 {
            return Err(("after", format!("must have at most 32 entries, but has {}", self.after.len())));
        }
        self.requires.check()?;
        if (1..self.notify_on.len()).any(|at| self.notify_on[..at].contains(&self.notify_on[at])) {
            return Err(("notifyOn", "must not name the same end twice".into()));
        }
        self.after.iter().try_for_each(|name| at_most("after", name, 253))
    }
}

/// A submitted item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Submitted {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// The queue it waits in.
    pub queue: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::read;

    #[test]
    fn what_is_too_long_is_refused_by_name() {
        let long = "x".repeat(MAX_RESULT_BYTES + 1);
        let field = |body: String| read::<Complete>(body.as_bytes()).err().and_then(|refusal| refusal.field);
        assert_eq!(field(format!("{{\"epoch\": 1, \"result\": \"{long}\"}}")).as_deref(), Some("result"));
        assert_eq!(field("{\"result\": \"x\"}".into()).as_deref(), Some("epoch"));
        for reason in ["", "two words", "1st", &"x".repeat(65)] {
            let refusal = read::<Fail>(serde_json::json!({"epoch": 1, "reason": reason}).to_string().as_bytes()).expect_err(reason);
            assert_eq!(refusal.field.as_deref(), Some("reason"));
        }
        assert!(read::<Claim>(b"{\"waitSeconds\": 26}").is_err() && read::<Claim>(b"").is_ok());
        assert_eq!(read::<Submit>(b"{}").expect_err("no queue").field.as_deref(), Some("queue"));
        let needs = |requires: serde_json::Value| {
            let body = serde_json::json!({"queue": "q", "requires": requires}).to_string();
            read::<Submit>(body.as_bytes()).map(|submit| submit.requires.is_empty()).map_err(|refusal| refusal.field.unwrap_or_default())
        };
        assert_eq!((needs(serde_json::json!({})), needs(serde_json::json!({"models": ["m"]}))), (Ok(true), Ok(false)));
        assert_eq!(needs(serde_json::json!({"models": vec!["m"; 33]})), Err("requires.models".into()));
        assert_eq!(needs(serde_json::json!({"tools": [""]})), Err("requires.tools".into()));
        assert_eq!(needs(serde_json::json!({"repositories": ["r"]})), Err("requires.repositories".into()));
        assert!(!serde_json::to_string(&Submit::default()).expect("JSON").contains("requires"), "a governor of before does not know it");
    }

    #[test]
    fn an_outcome_is_the_call_that_says_it() {
        let (verb, body) = Outcome::Release { reason: "Drained".into(), message: String::new() }.call(7);
        assert_eq!((verb, body["epoch"].as_i64()), ("release", Some(7)));
        assert!(read::<Release>(body.to_string().as_bytes()).is_ok());
    }
}
