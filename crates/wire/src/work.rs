//! Work in the agents' API: calls that claim, finish and submit items.
//!
//! A holder names its lease by [`LeaseRef`]. The lease and the uid of the pod, which the pod's token proves, are the
//! fencing token. Every call can be repeated: a caller that holds a lease and claims again gets the same lease, and an
//! accepted finish gets the same answer again.

use serde::{Deserialize, Serialize};

use crate::body::{BoundedBody, at_most};
use crate::changeset::ChangesetReport;
use crate::sandbox::ItemSandbox;

/// Maximum number of bytes of a result.
pub const MAX_RESULT_BYTES: usize = 4096;
/// Maximum number of characters of a message.
const MAX_MESSAGE_CHARS: usize = 1024;
/// Maximum number of seconds that a claim waits. Common proxies and clients wait longer.
pub const MAX_CLAIM_WAIT_SECONDS: u32 = 25;

/// A lease: an item's uid and the epoch of the claim. With the pod's uid it is the fencing token.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LeaseRef {
    /// Uid of the item.
    pub uid: String,
    /// Epoch of the claim.
    pub epoch: i64,
}

/// An instruction about the item that an agent holds, or believes to hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ItemWanted {
    /// The lease.
    pub held: LeaseRef,
    /// The instruction.
    pub order: ItemOrder,
}

/// An instruction about an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum ItemOrder {
    /// Stop the work and give the item back: it was cancelled, or its deadline passed.
    Cancel,
    /// The agent no longer holds the item: stop. Reports of the agent about it no longer count.
    Lost,
    /// The item and its agent are paused: write a checkpoint, start nothing for the item, and keep everything. The
    /// value is the number of the pause.
    Pause(i64),
}

/// A request for an item. The answer is an [`Assignment`], or 204 if there was no item within the wait.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Claim {
    /// Seconds to wait for an item, at most 25.
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

/// An item that is leased to the caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Assignment {
    /// The lease.
    pub held: LeaseRef,
    /// Name of the item.
    pub name: String,
    /// Queue of the item.
    pub queue: String,
    /// Type of the work.
    #[serde(default, rename = "type")]
    pub type_: Option<String>,
    /// The task.
    pub payload: String,
    /// Number of claims since the last redrive, including this one.
    pub attempt: u32,
    /// Time limit of this attempt in seconds.
    pub attempt_seconds: u32,
    /// Where this attempt can continue, as an earlier attempt reported it.
    #[serde(default)]
    pub checkpoint_ref: Option<String>,
    /// Branch of the item's changeset. None: the item has no changeset, or one of a folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// Folder of the item's changeset: the claim, and the path in its volume. None: the item has no changeset, or one of a repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// What the item requires of the sandbox of its program, beyond the pool.
    #[serde(default, skip_serializing_if = "ItemSandbox::is_nothing")]
    pub sandbox: ItemSandbox,
}

impl Assignment {
    /// Whether the changes of the item are a changeset.
    pub fn has_changeset(&self) -> bool {
        self.branch.is_some() || self.folder.is_some()
    }
}

/// How an attempt ended, as the agent reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Outcome {
    /// The task is done.
    Complete {
        /// Result of the task, at most 4096 bytes.
        result: Option<String>,
        /// The changeset of the item, if it has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        changeset: Option<Box<ChangesetReport>>,
    },
    /// The task failed.
    Fail {
        /// Reason, as one word, for the queue's rules.
        reason: String,
        /// Reason, as text for people.
        message: String,
        /// Exit code of the program, if the program failed.
        exit_code: Option<i32>,
    },
    /// The item is given back. The attempt is not counted.
    Release {
        /// Reason, as one word.
        reason: String,
        /// Reason, as text for people.
        message: String,
    },
}

impl Outcome {
    /// Returns the last segment of the call's path, and its body for this lease.
    pub fn verb_and_body(&self, epoch: i64) -> (&'static str, serde_json::Value) {
        match self {
            Self::Complete { result, changeset } => {
                ("complete", serde_json::json!(Complete { epoch, result: result.clone(), changeset: changeset.clone() }))
            }
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
            Self::Complete { result, changeset } => check_complete(result.as_deref(), changeset.as_deref()),
            Self::Fail { reason, message, exit_code: _ } | Self::Release { reason, message } => {
                check_reason(reason)?;
                at_most("message", message, MAX_MESSAGE_CHARS)
            }
        }
    }
}

fn check_complete(result: Option<&str>, changeset: Option<&ChangesetReport>) -> Result<(), (&'static str, String)> {
    changeset.map_or(Ok(()), ChangesetReport::check)?;
    check_result(result)
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

/// `POST /agent/v1/work/{uid}/complete`: the task is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Complete {
    /// Epoch of the claim.
    pub epoch: i64,
    /// Result of the task, at most 4096 bytes.
    #[serde(default)]
    pub result: Option<String>,
    /// The changeset of the item, if it has one. The field is left out otherwise, because an older governor does not
    /// know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changeset: Option<Box<ChangesetReport>>,
}

impl BoundedBody for Complete {
    fn check(&self) -> Result<(), (&'static str, String)> {
        check_complete(self.result.as_deref(), self.changeset.as_deref())
    }
}

/// `POST /agent/v1/work/{uid}/fail`: the task failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fail {
    /// Epoch of the claim.
    pub epoch: i64,
    /// Reason, as one word, for the queue's rules.
    pub reason: String,
    /// Reason, as text for people.
    #[serde(default)]
    pub message: String,
    /// Exit code of the program, if the program failed.
    #[serde(default)]
    pub exit_code: Option<i32>,
}

impl BoundedBody for Fail {
    fn check(&self) -> Result<(), (&'static str, String)> {
        check_reason(&self.reason)?;
        at_most("message", &self.message, MAX_MESSAGE_CHARS)
    }
}

/// `POST /agent/v1/work/{uid}/release`: the item is given back, and the attempt is not counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Release {
    /// Epoch of the claim.
    pub epoch: i64,
    /// Reason, as one word.
    pub reason: String,
    /// Reason, as text for people.
    #[serde(default)]
    pub message: String,
}

impl BoundedBody for Release {
    fn check(&self) -> Result<(), (&'static str, String)> {
        check_reason(&self.reason)?;
        at_most("message", &self.message, MAX_MESSAGE_CHARS)
    }
}

/// `POST /agent/v1/work/{uid}/progress`: progress of the task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProgressUpdate {
    /// Epoch of the claim.
    pub epoch: i64,
    /// Progress from 0 to 100.
    #[serde(default)]
    pub percent: Option<u8>,
    /// Progress as text.
    #[serde(default)]
    pub message: Option<String>,
    /// Where another attempt can continue. Only the agent interprets this text.
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

/// `POST /governor/v1/work/replay`, for an agent: an earlier answer about a lease, from a leader whose writes may be
/// lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReplayedLease {
    /// The lease.
    pub held: LeaseRef,
    /// The end that was accepted. None: the lease was granted.
    #[serde(default)]
    pub outcome: Option<Outcome>,
    /// Milliseconds since that answer.
    #[serde(default)]
    pub age_ms: u64,
}

impl BoundedBody for ReplayedLease {
    fn check(&self) -> Result<(), (&'static str, String)> {
        at_most("held.uid", &self.held.uid, 64)?;
        self.outcome.as_ref().map_or(Ok(()), Outcome::check)
    }
}

/// An item to submit, with the fields of `WorkItem.spec`. The call can be repeated with the same `Idempotency-Key`
/// header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Submit {
    /// Queue of the item. Unset: the type selects the queue.
    #[serde(default)]
    pub queue: Option<String>,
    /// Type of the work.
    #[serde(default, rename = "type")]
    pub type_: Option<String>,
    /// Priority. Items with a higher number are claimed first.
    #[serde(default)]
    pub priority: i32,
    /// Group of items that are cancelled together.
    #[serde(default)]
    pub group: Option<String>,
    /// Key that limits concurrency: agents hold at most maxLeasedPerKey items of the queue with the same key at a time.
    #[serde(default)]
    pub concurrency_key: Option<String>,
    /// Deduplication key: at most one item with the same key exists.
    #[serde(default)]
    pub dedup_key: Option<String>,
    /// The task, at most 16 KiB.
    #[serde(default)]
    pub payload: String,
    /// Names of items that must have succeeded before this one starts.
    #[serde(default)]
    pub after: Vec<String>,
    /// Ends that are reported to the inbox of the pool's agents, and to people by an event. Empty: all ends are
    /// reported to the inbox, and there are no events.
    #[serde(default)]
    pub notify_on: Vec<NotifyOn>,
    /// Requirements that a pool must meet before its agents get the item. Unset: there are none. The field is left out
    /// then, because an older governor does not know it.
    #[serde(default, skip_serializing_if = "Requires::is_empty")]
    pub requires: Requires,
}

/// Requirements of an item, with the fields of `WorkItem.spec.requires`. Each list has at most 32 entries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Requires {
    /// Programs for which the pool's agents are checked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// Models that the agents may call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// https URLs that the agents can reach.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub urls: Vec<String>,
    /// Names of credentials of the agents.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accounts: Vec<String>,
    /// Names of PersistentVolumeClaims of the agents.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<String>,
    /// https URLs of git repositories of the agents.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repositories: Vec<String>,
}

impl Requires {
    /// Maximum number of entries of a list.
    pub const MAX_ENTRIES: usize = 32;

    /// The lists, with their names and the maximum number of characters of an entry.
    fn lists(&self) -> [(&'static str, &Vec<String>, usize); 6] {
        let Self { tools, models, urls, accounts, volumes, repositories } = self;
        [
            ("requires.tools", tools, 128),
            ("requires.models", models, 128),
            ("requires.urls", urls, 1024),
            ("requires.accounts", accounts, 253),
            ("requires.volumes", volumes, 253),
            ("requires.repositories", repositories, 1024),
        ]
    }

    /// Whether there are no requirements.
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

/// An end of an item that is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum NotifyOn {
    /// Any end.
    Finished,
    /// It failed permanently, was rejected, or its deadline passed.
    Failed,
    /// It became a dead letter.
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
    /// Name of the item.
    pub name: String,
    /// Uid of the item.
    pub uid: String,
    /// Queue of the item.
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
        assert_eq!(needs(serde_json::json!({"repositories": [""]})), Err("requires.repositories".into()));
        assert!(!serde_json::to_string(&Submit::default()).expect("JSON").contains("requires"), "an older governor does not know it");
    }

    #[test]
    fn an_outcome_is_the_call_that_says_it() {
        let (verb, body) = Outcome::Release { reason: "Drained".into(), message: String::new() }.verb_and_body(7);
        assert_eq!((verb, body["epoch"].as_i64()), ("release", Some(7)));
        assert!(read::<Release>(body.to_string().as_bytes()).is_ok());
    }
}
