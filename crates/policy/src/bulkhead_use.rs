//! How full bulkheads are: the text for the log, and when people are notified.
//!
//! It does not decide about work: a full bulkhead refuses by itself. People are notified once when a bulkhead becomes
//! nearly full, and once when it becomes full. They are notified again only after it had room in between, so a value
//! that moves around a threshold is reported once.

use std::collections::BTreeMap;

/// From this percentage on a bulkhead is nearly full.
pub const NEARLY_FULL_PERCENT: u64 = 80;
/// From this percentage on a bulkhead is full.
pub const FULL_PERCENT: u64 = 100;
/// Below this percentage a bulkhead has room again, and is reported anew.
pub const REARM_PERCENT: u64 = 70;
/// The most bulkheads of one kind that a log line names.
pub const MAX_NAMED_BULKHEADS: usize = 5;

/// What is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Tokens of a limit of a budget. Its own thresholds report it.
    Tokens,
    /// Agents at once.
    Agents,
    /// CPU, memory, volumes and the like of a namespace.
    Compute,
    /// Unfinished items of a queue.
    Items,
    /// Agents of a pool. A full pool is normal.
    Pool,
}

impl Kind {
    /// Whether people are notified when it fills.
    fn notifies(self) -> bool {
        match self {
            Self::Agents | Self::Compute | Self::Items => true,
            Self::Tokens | Self::Pool => false,
        }
    }
}

/// The object that sets the limit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// A ClusterBudget's, by name.
    ClusterBudget(String),
    /// A Budget's.
    Budget(String),
    /// A queue's.
    Queue(String),
    /// A pool's.
    Pool(String),
}

impl std::fmt::Display for Owner {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ClusterBudget(name) => write!(formatter, "ClusterBudget/{name}"),
            Self::Budget(name) => write!(formatter, "Budget/{name}"),
            Self::Queue(name) => write!(formatter, "WorkQueue/{name}"),
            Self::Pool(name) => write!(formatter, "AgentPool/{name}"),
        }
    }
}

/// How full a bulkhead is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BulkheadUse {
    /// What is bounded.
    pub kind: Kind,
    /// The object that sets the limit.
    pub owner: Owner,
    /// The name of the limit.
    pub limit: String,
    /// The used amount and the limit, as text for people.
    pub amounts: String,
    /// The same in percent.
    pub percent: u64,
}

impl BulkheadUse {
    /// A bulkhead of which `used` of `most` are used.
    pub fn counted(kind: Kind, owner: Owner, limit: &str, used: u64, most: u64) -> Self {
        Self { kind, owner, limit: limit.to_owned(), amounts: format!("{used}/{most}"), percent: percent(used.into(), most.into()) }
    }
}

/// `used` in percent of `most`. Any use of nothing is 100 %.
pub fn percent(used: u128, most: u128) -> u64 {
    let percent = used.saturating_mul(100).checked_div(most).unwrap_or(if used == 0 { 0 } else { u128::from(FULL_PERCENT) });
    u64::try_from(percent).unwrap_or(u64::MAX)
}

/// The bulkheads of one kind for a log line, the fullest first.
pub fn log_line(all: &[BulkheadUse], kind: Kind) -> String {
    let mut of_kind: Vec<&BulkheadUse> = all.iter().filter(|one| one.kind == kind).collect();
    of_kind.sort_by(|one, other| other.percent.cmp(&one.percent).then_with(|| (&one.owner, &one.limit).cmp(&(&other.owner, &other.limit))));
    let named = of_kind.iter().take(MAX_NAMED_BULKHEADS).map(|one| {
        let BulkheadUse { kind: _, owner, limit, amounts, percent } = one;
        format!("{owner} {limit} {amounts} {percent}%")
    });
    let mut words: Vec<String> = named.collect();
    if of_kind.len() > MAX_NAMED_BULKHEADS {
        words.push(format!("{} more", of_kind.len() - MAX_NAMED_BULKHEADS));
    }
    words.join(", ")
}

/// The bulkheads of each namespace. The empty name is the whole cluster.
pub type BulkheadUses = BTreeMap<String, Vec<BulkheadUse>>;

/// A notification that a bulkhead is full or nearly full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UseAlert {
    /// Its namespace; empty: the whole cluster.
    pub namespace: String,
    /// How full it is.
    pub used: BulkheadUse,
    /// It is full, and not only nearly.
    pub full: bool,
}

/// What was reported to people since we lead.
#[derive(Debug, Default)]
pub struct UseWatch {
    /// The threshold that was reported for each bulkhead. `None`: before the first look.
    reported: Option<BTreeMap<(String, Kind, Owner, String), u64>>,
}

impl UseWatch {
    /// Compares with the last look. The first look reports nothing, because an earlier leader has reported it.
    pub fn new_alerts(&mut self, all: &BulkheadUses) -> Vec<UseAlert> {
        let first = self.reported.is_none();
        let before = self.reported.take().unwrap_or_default();
        let (mut now, mut reached) = (BTreeMap::new(), Vec::new());
        for (namespace, uses) in all {
            for used in uses.iter().filter(|one| one.kind.notifies()) {
                let key = (namespace.clone(), used.kind, used.owner.clone(), used.limit.clone());
                let known = before.get(&key).copied().unwrap_or(0);
                let level = if used.percent >= FULL_PERCENT {
                    FULL_PERCENT
                } else if used.percent >= NEARLY_FULL_PERCENT {
                    NEARLY_FULL_PERCENT
                } else {
                    0
                };
                if level > known && !first {
                    reached.push(UseAlert { namespace: namespace.clone(), used: used.clone(), full: level == FULL_PERCENT });
                }
                let level = if used.percent < REARM_PERCENT { 0 } else { level.max(known) };
                if level > 0 {
                    now.insert(key, level);
                }
            }
        }
        self.reported = Some(now);
        reached
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(name: &str, used: u64) -> BulkheadUse {
        BulkheadUse::counted(Kind::Items, Owner::Queue(name.into()), "maxPending", used, 100)
    }

    fn all(uses: &[BulkheadUse]) -> BulkheadUses {
        BulkheadUses::from([("n".to_owned(), uses.to_vec())])
    }

    fn told(watch: &mut UseWatch, uses: &[BulkheadUse]) -> Vec<(u64, bool)> {
        watch.new_alerts(&all(uses)).into_iter().map(|one| (one.used.percent, one.full)).collect()
    }

    #[test]
    fn people_are_told_once_on_the_way_up_and_again_after_there_was_room() {
        let mut watch = UseWatch::default();
        assert_eq!(told(&mut watch, &[queue("q", 95)]), [], "who led before told of it");
        let steps = [
            (96, None),
            (100, Some(true)),
            (90, None),
            (100, None),
            (75, None),
            (85, None),
            (69, None),
            (79, None),
            (80, Some(false)),
            (81, None),
            (300, Some(true)),
        ];
        for (used, expected) in steps {
            let expected: Vec<_> = expected.map(|full| (used, full)).into_iter().collect();
            assert_eq!(told(&mut watch, &[queue("q", used)]), expected, "{used}");
        }
        assert_eq!(told(&mut watch, &[]), [], "it is gone");
        assert_eq!(told(&mut watch, &[queue("q", 80)]), [(80, false)], "and came again");
    }

    #[test]
    fn each_bulkhead_is_told_of_for_itself_and_what_has_thresholds_of_its_own_is_not() {
        let mut watch = UseWatch::default();
        watch.new_alerts(&BulkheadUses::new());
        let tokens = BulkheadUse::counted(Kind::Tokens, Owner::Budget("b".into()), "hourly", 10, 10);
        let pool = BulkheadUse::counted(Kind::Pool, Owner::Pool("p".into()), "agents", 5, 5);
        let agents = BulkheadUse::counted(Kind::Agents, Owner::Budget("b".into()), "agents.maxConcurrent", 9, 10);
        assert_eq!(told(&mut watch, &[tokens, pool, agents, queue("a", 80), queue("b", 79)]), [(90, false), (80, false)]);
        assert_eq!(watch.reported.as_ref().map(BTreeMap::len), Some(2), "what has room is not remembered");
    }

    #[test]
    fn a_line_names_the_fullest_first_and_not_too_many() {
        let uses: Vec<BulkheadUse> = [10, 90, 50, 70, 20, 60, 30].iter().map(|used| queue(&format!("q{used}"), *used)).collect();
        assert_eq!(
            log_line(&uses, Kind::Items),
            "WorkQueue/q90 maxPending 90/100 90%, WorkQueue/q70 maxPending 70/100 70%, WorkQueue/q60 maxPending 60/100 60%, \
             WorkQueue/q50 maxPending 50/100 50%, WorkQueue/q30 maxPending 30/100 30%, 2 more"
        );
        assert_eq!(log_line(&uses, Kind::Tokens), "");
    }

    #[test]
    fn what_may_be_nothing_is_full_when_there_is_anything() {
        assert_eq!((percent(0, 0), percent(1, 0), percent(5, 10), percent(20, 10)), (0, 100, 50, 200));
        assert_eq!(percent(u128::MAX, 1), u64::MAX);
    }
}
