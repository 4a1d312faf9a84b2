//! Whether an item may enter a queue, and which one.

use std::time::Duration;

use super::failure::Rule;
use super::item::{Policy, Spec, reasons};
use super::objectives::Objectives;

/// A queue, as far as decisions depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// An item that no agent can take blocks those behind it.
    pub strict: bool,
    /// Its rank among queues, if an item names only its type.
    pub priority: i32,
    /// The types that it takes. Empty: all items that name it, and none by type.
    pub types: Vec<String>,
    /// Whether it takes items whose type no queue takes.
    pub default: bool,
    /// No item of it can be claimed.
    pub suspend: bool,
    /// The most unfinished items.
    pub max_pending: u64,
    /// The most ended items that are kept, besides dead letters.
    pub max_finished: u64,
    /// The most dead letters that are kept.
    pub max_dead_letters: u64,
    /// The most bytes of one payload.
    pub max_item_bytes: u64,
    /// The defaults of its items.
    pub policy: Policy,
    /// The rules for failures.
    pub rules: Vec<Rule>,
    /// The final failure of an item cancels its group.
    pub cancel_group: bool,
    /// The most items held at once.
    pub max_leased: Option<u64>,
    /// The most items of one key held at once.
    pub max_leased_per_key: Option<u64>,
    /// Its service levels.
    pub objectives: Objectives,
    /// How long its pools keep agents after it is empty.
    pub empty_after: Option<Duration>,
    /// Agents of its pools that leave when it is empty hibernate, if they can.
    pub hibernates: bool,
}

/// The most unfinished items over all queues of a namespace, from any submitter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProjectLimit {
    /// The number.
    pub most: u64,
    /// The object and the field that set it.
    pub source: String,
}

/// Why an item is not admitted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The queue does not exist, or no queue takes its type.
    QueueMissing(Option<String>),
    /// The queue is full.
    QueueFull {
        /// The queue.
        queue: String,
        /// Its limit.
        limit: u64,
        /// Its unfinished items.
        current: u64,
    },
    /// The namespace is full, over all queues.
    ProjectFull {
        /// Its limit.
        limit: ProjectLimit,
        /// Its unfinished items.
        current: u64,
    },
    /// The queue does not take its type.
    TypeNotAccepted {
        /// The queue.
        queue: String,
        /// The types that it takes.
        types: Vec<String>,
    },
    /// Its payload is too large.
    TooLarge {
        /// The queue.
        queue: String,
        /// Its limit, in bytes.
        limit: u64,
        /// The size of the payload, in bytes.
        current: u64,
    },
    /// An item with the same key exists: this one.
    Duplicate(String),
    /// It would wait for itself, through this one.
    Cycle(String),
    /// It asks for a feature that this version does not have. It is refused, because the feature must not be ignored.
    Unsupported(String),
}

impl Refusal {
    /// As one word.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::QueueMissing(_) => reasons::QUEUE_MISSING,
            Self::QueueFull { .. } => reasons::QUEUE_FULL,
            Self::ProjectFull { .. } => reasons::PROJECT_FULL,
            Self::TypeNotAccepted { .. } => reasons::TYPE_NOT_ACCEPTED,
            Self::TooLarge { .. } => reasons::TOO_LARGE,
            Self::Duplicate(_) => reasons::DUPLICATE,
            Self::Cycle(_) => reasons::CYCLE,
            Self::Unsupported(_) => reasons::UNSUPPORTED,
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::QueueMissing(Some(queue)) => write!(out, "WorkQueue/{queue} does not exist. Create it, or name another queue"),
            Self::QueueMissing(None) => write!(
                out,
                "no WorkQueue accepts the type of the item (spec.accepts.types), and none accepts all other types (spec.accepts.default). Name a queue in the item"
            ),
            Self::QueueFull { queue, limit, current } => {
                write!(
                    out,
                    "WorkQueue/{queue} holds {current} unfinished items and may hold {limit} (spec.limits.maxPending). Wait until items end, or raise the limit"
                )
            }
            Self::ProjectFull { limit: ProjectLimit { most, source: says }, current } => {
                write!(out, "{says} allows {most} unfinished items over all queues of the namespace, and there are {current}")
            }
            Self::TypeNotAccepted { queue, types } => {
                write!(out, "WorkQueue/{queue} accepts only items of the types {} (spec.accepts.types)", types.join(", "))
            }
            Self::TooLarge { queue, limit, current } => {
                write!(
                    out,
                    "the payload has {current} bytes, and WorkQueue/{queue} allows {limit} (spec.limits.maxItemBytes); put larger input into a repository or a volume"
                )
            }
            Self::Duplicate(name) => write!(out, "WorkItem/{name} has the same dedupKey and still exists"),
            Self::Unsupported(what) => write!(out, "this version of Spillway does not support {what} of an item"),
            Self::Cycle(name) => write!(
                out,
                "the item would wait for itself: it depends on WorkItem/{name}, which waits for this item. Submit it again without that dependency"
            ),
        }
    }
}

/// The result of the admission of an item.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Admission {
    /// Not known.
    Unknown,
    /// It may enter this queue.
    To(String),
    /// It may not.
    Refused(Refusal),
}

/// The queue that the item goes to: the one it names, else the one that takes its type (the highest priority, then the
/// name), else the default.
pub fn route<'a>(spec: &Spec, queues: impl Iterator<Item = (&'a String, &'a Queue)> + Clone) -> Result<(&'a String, &'a Queue), Refusal> {
    if let Some(name) = &spec.queue {
        let found = queues.clone().find(|(known, _)| *known == name);
        let (name, queue) = found.ok_or_else(|| Refusal::QueueMissing(Some(name.clone())))?;
        let takes = queue.types.is_empty() || spec.type_.as_ref().is_some_and(|type_| queue.types.contains(type_)) || queue.default;
        return if takes { Ok((name, queue)) } else { Err(Refusal::TypeNotAccepted { queue: name.clone(), types: queue.types.clone() }) };
    }
    let best = |fits: &dyn Fn(&Queue) -> bool| {
        queues.clone().filter(|(_, queue)| fits(queue)).min_by_key(|(name, queue)| (std::cmp::Reverse(queue.priority), (*name).clone()))
    };
    best(&|queue| spec.type_.as_ref().is_some_and(|type_| queue.types.contains(type_)))
        .or_else(|| best(&|queue| queue.default))
        .ok_or(Refusal::QueueMissing(None))
}

/// Whether it may enter that queue. `pending` is what the queue holds unfinished, without this item.
pub fn enter(spec: &Spec, name: &str, queue: &Queue, pending: u64) -> Result<(), Refusal> {
    if spec.payload_bytes > queue.max_item_bytes {
        return Err(Refusal::TooLarge { queue: name.to_owned(), limit: queue.max_item_bytes, current: spec.payload_bytes });
    }
    if pending >= queue.max_pending {
        return Err(Refusal::QueueFull { queue: name.to_owned(), limit: queue.max_pending, current: pending });
    }
    Ok(())
}

/// Whether one more item may be unfinished in the namespace. `pending` is what it holds unfinished, without this item.
pub fn enter_project(limit: Option<&ProjectLimit>, pending: u64) -> Result<(), Refusal> {
    match limit.filter(|limit| pending >= limit.most) {
        Some(limit) => Err(Refusal::ProjectFull { limit: limit.clone(), current: pending }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn queue(priority: i32, types: &[&str], default: bool) -> Queue {
        let types = types.iter().map(|type_| (*type_).to_owned()).collect();
        Queue { priority, types, default, max_pending: 2, max_item_bytes: 10, ..Queue::default() }
    }

    fn goes(queue: Option<&str>, type_: Option<&str>) -> Result<String, &'static str> {
        let queues: BTreeMap<String, Queue> = [
            ("bugs", queue_of(5, &["bug"])),
            ("also-bugs", queue_of(5, &["bug"])),
            ("low", queue_of(1, &["bug", "idea"])),
            ("any", queue_of(9, &[])),
            ("rest", self::queue(0, &["x"], true)),
        ]
        .map(|(name, queue)| (name.to_owned(), queue))
        .into();
        let spec = Spec { queue: queue.map(str::to_owned), type_: type_.map(str::to_owned), ..Spec::default() };
        route(&spec, queues.iter()).map(|(name, _)| name.clone()).map_err(|refusal| refusal.reason())
    }
    fn queue_of(priority: i32, types: &[&str]) -> Queue {
        queue(priority, types, false)
    }

    #[test]
    fn an_item_is_routed_by_name_then_type_then_default() {
        assert_eq!(goes(Some("low"), Some("bug")), Ok("low".into()));
        assert_eq!(goes(Some("low"), Some("feature")), Err("TypeNotAccepted"));
        assert_eq!(goes(Some("low"), None), Err("TypeNotAccepted"));
        assert_eq!(goes(Some("any"), None), Ok("any".into()));
        assert_eq!(goes(Some("gone"), Some("bug")), Err("QueueMissing"));
        assert_eq!(goes(None, Some("bug")), Ok("also-bugs".into()), "the highest priority, then the name");
        assert_eq!(goes(None, Some("idea")), Ok("low".into()));
        assert_eq!(goes(None, Some("else")), Ok("rest".into()));
        assert_eq!(route(&Spec::default(), BTreeMap::new().iter()).map(drop), Err(Refusal::QueueMissing(None)));
    }

    #[test]
    fn a_full_queue_and_a_large_item_say_limit_and_number() {
        let queue = queue(0, &[], false);
        assert_eq!(enter(&Spec::default(), "q", &queue, 1), Ok(()));
        assert_eq!(enter(&Spec::default(), "q", &queue, 2), Err(Refusal::QueueFull { queue: "q".into(), limit: 2, current: 2 }));
        let large = Spec { payload_bytes: 11, ..Spec::default() };
        assert_eq!(enter(&large, "q", &queue, 0), Err(Refusal::TooLarge { queue: "q".into(), limit: 10, current: 11 }));
        let limit = ProjectLimit { most: 2, source: "Budget/b (spec.work.maxPending)".into() };
        assert_eq!((enter_project(None, 9), enter_project(Some(&limit), 1)), (Ok(()), Ok(())));
        let refused = enter_project(Some(&limit), 2).expect_err("it is full");
        assert_eq!(refused.reason(), "ProjectFull");
        let words = "Budget/b (spec.work.maxPending) allows 2 unfinished items over all queues of the namespace, and there are 2";
        assert_eq!(refused.to_string(), words);
    }
}
