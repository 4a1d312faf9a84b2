//! An item as data: what a person asked for, and its record. It decides nothing.

use std::time::Duration;

use super::requires::Requires;
use super::selector::Selector;

/// A time as people write it: milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixMillis(pub i64);

impl UnixMillis {
    /// This much later.
    pub fn after(self, time: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(time.as_millis()).unwrap_or(i64::MAX)))
    }

    /// The time from `earlier` to this; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

/// The phase of an item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Not admitted yet.
    #[default]
    Pending,
    /// Not admitted, for a reason.
    Rejected,
    /// Held by a person.
    Suspended,
    /// Waits for other items.
    Blocked,
    /// Waits for a time.
    Scheduled,
    /// Can be claimed.
    Ready,
    /// An agent holds it.
    Leased,
    /// An agent holds it and is paused.
    Paused,
    /// An agent holds it and was told to give it back.
    Cancelling,
    /// Done.
    Succeeded,
    /// It failed, and is not tried again.
    Failed,
    /// A dead letter: it waits for a person.
    DeadLettered,
    /// Ended by a person, a group or a policy.
    Cancelled,
    /// Its deadline passed.
    Expired,
}

impl Phase {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::Pending,
        Self::Rejected,
        Self::Suspended,
        Self::Blocked,
        Self::Scheduled,
        Self::Ready,
        Self::Leased,
        Self::Paused,
        Self::Cancelling,
        Self::Succeeded,
        Self::Failed,
        Self::DeadLettered,
        Self::Cancelled,
        Self::Expired,
    ];

    /// Its name, as in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Rejected => "Rejected",
            Self::Suspended => "Suspended",
            Self::Blocked => "Blocked",
            Self::Scheduled => "Scheduled",
            Self::Ready => "Ready",
            Self::Leased => "Leased",
            Self::Paused => "Paused",
            Self::Cancelling => "Cancelling",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::DeadLettered => "DeadLettered",
            Self::Cancelled => "Cancelled",
            Self::Expired => "Expired",
        }
    }

    /// Whether an agent holds it.
    pub fn held(self) -> bool {
        match self {
            Self::Leased | Self::Paused | Self::Cancelling => true,
            Self::Pending
            | Self::Rejected
            | Self::Suspended
            | Self::Blocked
            | Self::Scheduled
            | Self::Ready
            | Self::Succeeded
            | Self::Failed
            | Self::DeadLettered
            | Self::Cancelled
            | Self::Expired => false,
        }
    }

    /// Whether it has ended, unless a person redrives it.
    pub fn ended(self) -> bool {
        match self {
            Self::Rejected | Self::Succeeded | Self::Failed | Self::DeadLettered | Self::Cancelled | Self::Expired => true,
            Self::Pending
            | Self::Suspended
            | Self::Blocked
            | Self::Scheduled
            | Self::Ready
            | Self::Leased
            | Self::Paused
            | Self::Cancelling => false,
        }
    }

    /// Whether no agent holds it, and it has not ended.
    pub fn waits(self) -> bool {
        !self.held() && !self.ended()
    }

    /// Whether a person may redrive it.
    pub fn redrivable(self) -> bool {
        match self {
            Self::Rejected | Self::Failed | Self::DeadLettered | Self::Expired => true,
            Self::Pending
            | Self::Suspended
            | Self::Blocked
            | Self::Scheduled
            | Self::Ready
            | Self::Leased
            | Self::Paused
            | Self::Cancelling
            | Self::Succeeded
            | Self::Cancelled => false,
        }
    }
}

/// The spec of an item, as far as decisions depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Spec {
    /// The queue it names.
    pub queue: Option<String>,
    /// Its type of work.
    pub type_: Option<String>,
    /// A higher priority is claimed earlier.
    pub priority: i32,
    /// Items that are cancelled together.
    pub group: Option<String>,
    /// Items of one key are limited together.
    pub concurrency_key: Option<String>,
    /// At most one item of a key exists.
    pub dedup_key: Option<String>,
    /// Its plan, and the number of items of that plan.
    pub plan: Option<(String, u32)>,
    /// Bytes of its payload.
    pub payload_bytes: u64,
    /// Its place in the order of items with one priority.
    pub submitted: UnixMillis,
    /// When its object was made.
    pub created: UnixMillis,
    /// It is not claimed before this time.
    pub not_before: Option<UnixMillis>,
    /// It is not claimed after this time, and cancelled then.
    pub deadline: Option<UnixMillis>,
    /// It must not be claimed.
    pub suspend: bool,
    /// It is to be cancelled.
    pub cancel: bool,
    /// The number of redrives that a person asks for.
    pub redrives: i64,
    /// The number of pauses up to which a person asks to resume.
    pub resume_pause: i64,
    /// The epoch whose holder is dead, as a person states.
    pub released_epoch: i64,
    /// A requested feature that this version does not have.
    pub unsupported: Option<String>,
    /// It was restored from a backup. A restored item does not run by itself.
    pub restored: bool,
    /// The items that must end before it.
    pub after: Vec<Dependency>,
    /// What happens if one of them cannot be satisfied.
    pub on_dependency_failure: OnDependencyFailure,
    /// Which agents may take it, by their labels.
    pub selector: Selector,
    /// What the pool must have.
    pub requires: Requires,
    /// Limit on the destinations that its agent may reach. None: those of the pool.
    pub egress: Option<Box<crate::egress::ItemEgress>>,
    /// Differences from its queue's defaults.
    pub overrides: Overrides,
    /// The pool whose agents submitted it.
    pub submitted_by: Option<String>,
    /// The ends that its submitter is notified of; empty: all.
    pub notify_on: Vec<NotifyOn>,
}

/// An end of an item that its submitter is notified of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NotifyOn {
    /// Any.
    Finished,
    /// It failed, was rejected, or its deadline passed.
    Failed,
    /// It became a dead letter.
    DeadLettered,
}

impl NotifyOn {
    /// Whether an item that enters `phase` has ended in this way.
    pub fn matches(self, phase: Phase) -> bool {
        match self {
            Self::Finished => phase.ended(),
            Self::Failed => matches!(phase, Phase::Failed | Phase::Rejected | Phase::Expired),
            Self::DeadLettered => phase == Phase::DeadLettered,
        }
    }
}

/// Differences of an item's policy from the defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "as in [`Policy`]")]
pub struct Overrides {
    pub lease: Option<Duration>,
    pub stall_timeout: Option<Duration>,
    pub attempt_timeout: Option<Duration>,
    /// The lesser of this and the attempt's time-out applies.
    pub task_timeout: Option<Duration>,
    pub max_attempts: Option<u32>,
    pub max_stalls: Option<u32>,
    pub backoff: Option<(Duration, u32, Duration)>,
    pub ttl: Option<Duration>,
}

impl Overrides {
    /// The policy of `base` with these differences.
    pub fn apply_to(&self, base: &Policy) -> Policy {
        let Self { lease, stall_timeout, attempt_timeout, task_timeout, max_attempts, max_stalls, backoff, ttl } = self.clone();
        let attempt = attempt_timeout.unwrap_or(base.attempt_timeout);
        Policy {
            lease: lease.unwrap_or(base.lease),
            stall_timeout: stall_timeout.unwrap_or(base.stall_timeout),
            attempt_timeout: task_timeout.map_or(attempt, |task| task.min(attempt)),
            max_attempts: max_attempts.unwrap_or(base.max_attempts),
            max_stalls: max_stalls.unwrap_or(base.max_stalls),
            backoff: backoff.unwrap_or(base.backoff),
            ttl: ttl.unwrap_or(base.ttl),
            dead_letter_ttl: base.dead_letter_ttl,
        }
    }
}

/// An item that must end before another one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dependency {
    /// Its name.
    pub name: String,
    /// It must have succeeded. Otherwise any end is enough.
    pub succeeded: bool,
}

/// What happens to an item whose dependency cannot be satisfied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnDependencyFailure {
    /// It is cancelled too.
    #[default]
    Cancel,
    /// It runs anyway.
    Run,
    /// It waits for a person.
    Hold,
}

/// How an item is leased, retried and kept: its queue's defaults under its own overrides.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// Silence after which its holder loses it.
    pub lease: Duration,
    /// Time without progress after which its holder loses it.
    pub stall_timeout: Duration,
    /// Time that one attempt may take.
    pub attempt_timeout: Duration,
    /// The number of failures from which on it is not tried again.
    pub max_attempts: u32,
    /// The number of losses of agent or node from which on it is not tried again.
    pub max_stalls: u32,
    /// The longest first wait, the factor of each further one, and the longest wait of all.
    pub backoff: (Duration, u32, Duration),
    /// How long it is kept after its end, unless it is a dead letter.
    pub ttl: Duration,
    /// How long it is kept as a dead letter. Only the queue sets this: a submitter must not remove what waits for a
    /// person.
    pub dead_letter_ttl: Duration,
}

impl Policy {
    /// How long an item that ended in `phase` is kept.
    pub fn retention(&self, phase: Phase) -> Duration {
        if phase == Phase::DeadLettered { self.dead_letter_ttl } else { self.ttl }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(60),
            stall_timeout: Duration::from_secs(1800),
            attempt_timeout: Duration::from_secs(7200),
            max_attempts: 3,
            max_stalls: 3,
            backoff: (Duration::from_secs(10), 2, Duration::from_secs(360)),
            ttl: Duration::from_secs(3600),
            dead_letter_ttl: Duration::from_secs(30 * 24 * 3600),
        }
    }
}

/// The holder of an item.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    /// Uid of its pod.
    pub pod: String,
    /// Name of its Agent.
    pub agent: String,
    /// Since when.
    pub since: UnixMillis,
}

/// An attempt that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attempt {
    /// The epoch of its claim.
    pub epoch: i64,
    /// Name of the Agent.
    pub agent: String,
    /// When it began.
    pub start: UnixMillis,
    /// When it ended.
    pub end: UnixMillis,
    /// How it ended.
    pub verb: Verb,
    /// Why, as one word.
    pub reason: Option<String>,
    /// Why, in words.
    pub message: Option<String>,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are the documentation, and in the API")]
pub enum Verb {
    Complete,
    Fail,
    Release,
    LeaseExpired,
    Stalled,
    CancelDone,
}

impl Verb {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Complete, Self::Fail, Self::Release, Self::LeaseExpired, Self::Stalled, Self::CancelDone];

    /// Its name in an item's history.
    pub fn name(self) -> &'static str {
        match self {
            Self::Complete => "Complete",
            Self::Fail => "Fail",
            Self::Release => "Release",
            Self::LeaseExpired => "LeaseExpired",
            Self::Stalled => "Stalled",
            Self::CancelDone => "CancelDone",
        }
    }
}

/// The most attempts that are remembered.
pub const MAX_REMEMBERED_ATTEMPTS: usize = 5;

/// The record of an item: the only memory of its attempts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Record {
    /// Where it is in its life.
    pub phase: Phase,
    /// The reason of its phase, as one word.
    pub reason: Option<String>,
    /// The queue it was admitted to.
    pub queue: Option<String>,
    /// All claims so far: the number of the fence. Never falls.
    pub epoch: i64,
    /// Its holder, exactly while it is in a held phase.
    pub holder: Option<Holder>,
    /// Claims since the last redrive.
    pub attempts: u32,
    /// Failures of the task since then.
    pub failures: u32,
    /// Losses of agent or node since then.
    pub stalls: u32,
    /// Redrives done.
    pub redrives: i64,
    /// Pauses so far.
    pub pauses: i64,
    /// When it can be claimed again.
    pub next_attempt: Option<UnixMillis>,
    /// When it was first claimed.
    pub started: Option<UnixMillis>,
    /// When it ended.
    pub completed: Option<UnixMillis>,
    /// The last attempts, the newest last.
    pub history: Vec<Attempt>,
}

impl Record {
    /// Ends the attempt of the present holder: adds it to the history, and removes the holder.
    pub(super) fn attempt_ended(&mut self, verb: Verb, now: UnixMillis, reason: Option<String>, message: Option<String>) {
        let Some(holder) = self.holder.take() else { return };
        let Holder { pod: _, agent, since } = holder;
        if self.history.len() >= MAX_REMEMBERED_ATTEMPTS {
            self.history.remove(0);
        }
        self.history.push(Attempt { epoch: self.epoch, agent, start: since, end: now, verb, reason, message });
    }

    /// Enters a phase, for this reason.
    pub(super) fn enter(&mut self, phase: Phase, reason: Option<&str>, now: UnixMillis) {
        self.phase = phase;
        self.reason = reason.map(str::to_owned);
        self.completed = phase.ended().then_some(now);
        if phase != Phase::Scheduled {
            self.next_attempt = None;
        }
    }

    /// The agent that must not get the next attempt.
    pub fn excluded_agent(&self) -> Option<&str> {
        let avoiding = self.phase.waits() && self.reason.as_deref() == Some(reasons::RETRY_ELSEWHERE);
        self.history.last().filter(|_| avoiding).map(|last| last.agent.as_str())
    }
}

/// Why an item is in its phase. Public API.
#[expect(missing_docs, reason = "the names are the documentation")]
pub mod reasons {
    pub const CANCEL_REQUESTED: &str = "CancelRequested";
    pub const GROUP_CANCELLED: &str = "GroupCancelled";
    pub const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
    pub const SUSPENDED: &str = "Suspended";
    pub const RESTORED: &str = "Restored";
    pub const DEPENDENCIES: &str = "WaitingForDependencies";
    pub const DEPENDENCY_FAILED: &str = "DependencyFailed";
    pub const DEPENDENCY_MISSING: &str = "DependencyMissing";
    pub const PLAN_INCOMPLETE: &str = "PlanIncomplete";
    pub const NOT_BEFORE: &str = "NotBeforeTime";
    pub const BACKOFF: &str = "Backoff";
    pub const REQUIREMENTS_UNMET: &str = "RequirementsUnmet";
    pub const RETRY_ELSEWHERE: &str = "RetryElsewhere";
    pub const RELEASED: &str = "Released";
    pub const TOO_MANY_FAILURES: &str = "TooManyFailures";
    pub const TOO_MANY_STALLS: &str = "TooManyStalls";
    pub const FAILURE_RULE: &str = "FailureRule";
    pub const DRONE_FAILED: &str = "DroneFailed";
    pub const AGENT_LOST: &str = "AgentLost";
    pub const NODE_IS_DEAD: &str = "NodeIsDead";
    pub const QUEUE_MISSING: &str = "QueueMissing";
    pub const QUEUE_FULL: &str = "QueueFull";
    pub const PROJECT_FULL: &str = "ProjectFull";
    pub const DUPLICATE: &str = "Duplicate";
    pub const CYCLE: &str = "Cycle";
    pub const TYPE_NOT_ACCEPTED: &str = "TypeNotAccepted";
    pub const TOO_LARGE: &str = "TooLarge";
    pub const UNSUPPORTED: &str = "Unsupported";
}
