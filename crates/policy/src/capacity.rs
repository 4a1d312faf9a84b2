//! Whether one more agent may get a pod, under limits on agents at once, on their memory and on their volumes. And
//! which namespaces are projects, if not all of them may be.
//!
//! What always holds: an admitted agent exceeds no limit above it, if everything that all [`CapacityHolder`]s hold was
//! counted. Reservations of other pool types stay free for them. The caller must ask for one agent at a time, and count
//! each one before it asks for the next.

use std::collections::BTreeSet;

use crate::budget::concurrency::room;
use crate::budget::share::whole_units;

/// An agent that holds limited resources, or asks for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapacityHolder {
    /// Its namespace.
    pub namespace: String,
    /// The Budgets that it is counted in: its pool's, and those above.
    pub budgets: BudgetPath,
    /// The type of its pool; `None`: the pool is not known.
    pub pool_type: Option<String>,
    /// The amounts that it holds, or asks for.
    pub amounts: Amounts,
}

/// Amounts of the limited resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// 1 for its pod.
    pub agents: u64,
    /// Bytes that its containers may use.
    pub memory: u64,
    /// Bytes of its own volume.
    pub storage: u64,
}

/// The Budgets that an agent is counted in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BudgetPath {
    /// These.
    Known(Vec<String>),
    /// All Budgets of its namespace, because its pool is not known. So no Budget is counted too low.
    #[default]
    All,
}

/// The agents that a limit counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitScope {
    /// The agents of a Budget and of those below it.
    Budget {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// The agents of a namespace.
    Namespace(String),
    /// The agents of these namespaces.
    Namespaces(BTreeSet<String>),
}

impl LimitScope {
    fn counts(&self, holder: &CapacityHolder) -> bool {
        match self {
            Self::Budget { namespace, name } => {
                holder.namespace == *namespace
                    && match &holder.budgets {
                        BudgetPath::Known(budgets) => budgets.contains(name),
                        BudgetPath::All => true,
                    }
            }
            Self::Namespace(namespace) => holder.namespace == *namespace,
            Self::Namespaces(namespaces) => namespaces.contains(&holder.namespace),
        }
    }
}

/// The resource that a limit is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitedResource {
    /// Agents with a pod.
    Agents,
    /// Memory of their pods, in bytes.
    Memory,
    /// Their volumes, in bytes.
    Storage,
}

impl LimitedResource {
    fn of(self, amounts: &Amounts) -> u64 {
        match self {
            Self::Agents => amounts.agents,
            Self::Memory => amounts.memory,
            Self::Storage => amounts.storage,
        }
    }
}

/// A share of a limit on agents, kept for types of pools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The object and the field that set it.
    pub source: String,
    /// The types.
    pub pool_types: Vec<String>,
    /// How large it is, 1 to 100.
    pub percent: u64,
    /// These types may have no more than the share.
    pub cap: bool,
}

impl Reservation {
    fn is_for(&self, holder: &CapacityHolder) -> bool {
        holder.pool_type.as_ref().is_some_and(|pool_type| self.pool_types.contains(pool_type))
    }
}

/// A limit, as it is written in an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The object that sets it, as `Kind/name`.
    pub owner: String,
    /// The field that sets it.
    pub field: &'static str,
    /// The agents that it counts.
    pub scope: LimitScope,
    /// The resource that it is on.
    pub resource: LimitedResource,
    /// The most that may be used.
    pub max: u64,
    /// Shares that are reserved for pool types; only of limits on agents.
    pub reservations: Vec<Reservation>,
}

impl Limit {
    /// Its reservations, each with its number of agents.
    fn shares(&self) -> impl Iterator<Item = (&Reservation, u64)> {
        let sizes = whole_units(self.max, self.reservations.iter().map(|share| share.percent));
        self.reservations.iter().zip(sizes)
    }
}

/// A limit that has too little left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FullLimit {
    /// The limit.
    pub limit: Limit,
    /// What is used of it.
    pub used: u64,
    /// What is asked for.
    pub asked: u64,
    /// The reservation that leaves less, if there is one.
    pub reserved: Option<ReservationShortage>,
}

/// How a reservation refuses an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReservationShortage {
    /// Agents are reserved for other pool types.
    ForOthers {
        /// How many.
        kept: u64,
        /// The pool types.
        pool_types: Vec<String>,
        /// The objects and fields that reserve them.
        sources: Vec<String>,
    },
    /// The agent's pool type may have no more than its reservation.
    Capped {
        /// The number of agents of the reservation.
        size: u64,
        /// How many of them have a pod.
        used: u64,
        /// The pool types of the reservation.
        pool_types: Vec<String>,
        /// The object and the field that set it.
        source: String,
    },
}

/// The first limit that `asks` would exceed, together with all `holders`. `asks` is not one of the holders.
pub fn first_full_limit(limits: Vec<Limit>, holders: &[CapacityHolder], asks: &CapacityHolder) -> Option<FullLimit> {
    limits.into_iter().filter(|limit| limit.scope.counts(asks)).find_map(|limit| {
        let asked = limit.resource.of(&asks.amounts);
        // A request for none of the resource is never refused, even if a lowered limit is exceeded already.
        if asked == 0 {
            return None;
        }
        let counted: Vec<&CapacityHolder> = holders.iter().filter(|holder| limit.scope.counts(holder)).collect();
        let sum = |of: &dyn Fn(&CapacityHolder) -> bool| {
            let amounts = counted.iter().filter(|holder| of(holder)).map(|holder| limit.resource.of(&holder.amounts));
            amounts.fold(0, u64::saturating_add)
        };
        let used = sum(&|_| true);
        let reserved = capped(&limit, &sum, asks, asked).or_else(|| for_others(&limit, &sum, asks));
        let kept = match &reserved {
            Some(ReservationShortage::Capped { .. }) => return Some(FullLimit { limit, used, asked, reserved }),
            Some(ReservationShortage::ForOthers { kept, .. }) => *kept,
            None => 0,
        };
        let fits = room([(Some(limit.max), used.saturating_add(kept))]).is_none_or(|room| asked <= room);
        (!fits).then_some(FullLimit { limit, used, asked, reserved })
    })
}

/// Refuses an agent whose reservation has a cap and is used up. Agents of unknown pools may be of its type, so they
/// count.
fn capped(
    limit: &Limit,
    sum: &impl Fn(&dyn Fn(&CapacityHolder) -> bool) -> u64,
    asks: &CapacityHolder,
    asked: u64,
) -> Option<ReservationShortage> {
    let own = limit.reservations.iter().find(|share| share.cap && share.is_for(asks))?;
    // Rounded up on its own: a capped share is at least one agent, even if the shares before it took all that the
    // shares have together.
    let size = limit.max.saturating_mul(own.percent.min(100)).div_ceil(100);
    let used = sum(&|holder| own.is_for(holder) || holder.pool_type.is_none());
    let (pool_types, source) = (own.pool_types.clone(), own.source.clone());
    (used.saturating_add(asked) > size).then_some(ReservationShortage::Capped { size, used, pool_types, source })
}

/// The unused agents that are reserved for other pool types.
fn for_others(limit: &Limit, sum: &impl Fn(&dyn Fn(&CapacityHolder) -> bool) -> u64, asks: &CapacityHolder) -> Option<ReservationShortage> {
    let others = limit.shares().filter(|(share, _)| !share.is_for(asks));
    let unused = others.map(|(share, size)| (share, size.saturating_sub(sum(&|holder| share.is_for(holder)))));
    let unused: Vec<_> = unused.filter(|(_, unused)| *unused > 0).collect();
    let kept = unused.iter().fold(0_u64, |sum, (_, unused)| sum.saturating_add(*unused));
    let pool_types = unused.iter().flat_map(|(share, _)| share.pool_types.clone()).collect();
    let sources: BTreeSet<String> = unused.iter().map(|(share, _)| share.source.clone()).collect();
    (kept > 0).then(|| ReservationShortage::ForOthers { kept, pool_types, sources: sources.into_iter().collect() })
}

impl std::fmt::Display for FullLimit {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { limit: Limit { owner, field, scope: _, resource: what, max, reservations: _ }, used, asked, reserved } = self;
        let (agents, have) = (if *max == 1 { "agent" } else { "agents" }, if *used == 1 { "has" } else { "have" });
        match what {
            LimitedResource::Agents => match reserved {
                None => write!(to, "{owner} allows {max} {agents} at once ({field}), and {used} {have} a pod"),
                Some(ReservationShortage::ForOthers { kept, pool_types, sources }) => write!(
                    to,
                    "{owner} allows {max} {agents} at once ({field}); {used} {have} a pod, and {kept} more are reserved for pools of type {} ({})",
                    pool_types.join(", "),
                    sources.join(", ")
                ),
                Some(ReservationShortage::Capped { size, used, pool_types, source }) => write!(
                    to,
                    "{source} allows pools of type {} no more than {size} of the {max} agents of {owner} ({field}), and {used} have a pod",
                    pool_types.join(", ")
                ),
            },
            LimitedResource::Memory => write!(
                to,
                "{owner} allows {} of memory for agents' pods ({field}); {} are in use, and this agent requests {}",
                bytes(*max),
                bytes(*used),
                bytes(*asked)
            ),
            LimitedResource::Storage => write!(
                to,
                "{owner} allows {} of agents' volumes ({field}); {} are in use, and this agent requests {}",
                bytes(*max),
                bytes(*used),
                bytes(*asked)
            ),
        }?;
        to.write_str(". Raise the limit, or delete an agent that it counts")
    }
}

/// Bytes as a quantity, in the largest unit that is exact.
fn bytes(bytes: u64) -> String {
    [("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)]
        .into_iter()
        .find(|(_, unit)| bytes >= *unit && bytes.is_multiple_of(*unit))
        .map_or_else(|| bytes.to_string(), |(name, unit)| format!("{}{name}", bytes / unit))
}

/// A namespace with a pool.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Project {
    /// When the oldest of its pools was made, in seconds.
    pub since: i64,
    /// The namespace.
    pub namespace: String,
}

/// Whether `namespace` is not among the first `max` projects, ordered by their oldest pools. `running` are the projects
/// that have agents with a pod. A stale cache may have admitted a project before an older one. Then the younger one
/// continues and the older one waits, so that never more than `max` run.
pub fn exceeds_max_projects(projects: impl IntoIterator<Item = Project>, running: &BTreeSet<String>, namespace: &str, max: usize) -> bool {
    let mut projects: Vec<Project> = projects.into_iter().collect();
    projects.sort();
    let among_the_first = projects.iter().take(max).any(|project| project.namespace == namespace);
    !among_the_first || (!running.contains(namespace) && running.len() >= max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn holder(namespace: &str, budgets: &[&str], memory: u64) -> CapacityHolder {
        CapacityHolder {
            namespace: namespace.into(),
            budgets: BudgetPath::Known(budgets.iter().map(|name| (*name).to_owned()).collect()),
            pool_type: None,
            amounts: Amounts { agents: 1, memory, storage: 0 },
        }
    }
    fn of_type(pool_type: &str) -> CapacityHolder {
        CapacityHolder { pool_type: Some(pool_type.into()), ..holder("n", &["b"], 0) }
    }
    fn reserved(pool_type: &str, percent: u64, cap: bool) -> Reservation {
        Reservation { source: format!("Budget/b, spec.agents.reservations[{pool_type}]"), pool_types: vec![pool_type.into()], percent, cap }
    }
    fn agents(over: LimitScope, max: u64) -> Limit {
        Limit {
            owner: "Budget/b".into(),
            field: "spec.agents.maxConcurrent",
            scope: over,
            resource: LimitedResource::Agents,
            max,
            reservations: Vec::new(),
        }
    }
    fn budget(name: &str) -> LimitScope {
        LimitScope::Budget { namespace: "n".into(), name: name.into() }
    }

    #[test]
    fn a_limit_counts_its_own_and_says_its_numbers() {
        let holders = [holder("n", &["a", "top"], 0), holder("n", &["b", "top"], 0), holder("other", &["a"], 0)];
        let asks = holder("n", &["a", "top"], 0);
        let free = |limit| first_full_limit(vec![limit], &holders, &asks).is_none();
        assert!(free(agents(budget("a"), 2)), "of another namespace's Budget of that name nothing is counted");
        assert!(!free(agents(budget("a"), 1)));
        assert!(free(agents(budget("b"), 0)), "it is not counted there");
        assert!(free(agents(budget("top"), 3)) && !free(agents(budget("top"), 2)));
        assert!(free(agents(LimitScope::Namespace("n".into()), 3)) && !free(agents(LimitScope::Namespace("n".into()), 2)));
        let all = || LimitScope::Namespaces(["n".to_owned(), "other".to_owned()].into());
        assert!(free(agents(all(), 4)) && !free(agents(all(), 3)));
        let refused = first_full_limit(vec![agents(budget("top"), 2)], &holders, &asks).expect("full");
        assert_eq!(
            refused.to_string(),
            "Budget/b allows 2 agents at once (spec.agents.maxConcurrent), and 2 have a pod. Raise the limit, or delete an agent that it counts"
        );
    }

    #[test]
    fn one_whose_pool_is_not_known_counts_in_every_budget_of_its_namespace() {
        let stray = CapacityHolder { budgets: BudgetPath::All, ..holder("n", &[], 0) };
        assert!(first_full_limit(vec![agents(budget("a"), 1)], &[stray], &holder("n", &["a"], 0)).is_some());
    }

    #[test]
    fn memory_and_volumes_are_added_up() {
        let limit = |what, max| Limit {
            owner: "ClusterBudget/c".into(),
            field: "f",
            scope: LimitScope::Namespace("n".into()),
            resource: what,
            max,
            reservations: Vec::new(),
        };
        let holders = [holder("n", &[], 3 << 30)];
        assert!(first_full_limit(vec![limit(LimitedResource::Memory, 4 << 30)], &holders, &holder("n", &[], 1 << 30)).is_none());
        let refused =
            first_full_limit(vec![limit(LimitedResource::Memory, 4 << 30)], &holders, &holder("n", &[], (1 << 30) + 1)).expect("full");
        assert!(
            refused.to_string().contains("allows 4Gi of memory for agents' pods (f); 3Gi are in use, and this agent requests 1073741825")
        );
        assert!(
            first_full_limit(vec![limit(LimitedResource::Storage, 0)], &holders, &holder("n", &[], 1)).is_none(),
            "it asks for no volume"
        );
    }

    #[test]
    fn a_flood_of_workers_leaves_a_fifth_to_schedulers() {
        let limit = |max, percent, cap| Limit { reservations: vec![reserved("scheduler", percent, cap)], ..agents(budget("b"), max) };
        let workers = |count| vec![of_type("worker"); count];
        let lets_in = |max, workers_before: usize, asks: &str| {
            first_full_limit(vec![limit(max, 20, false)], &workers(workers_before), &of_type(asks)).is_none()
        };
        for (max, of_workers) in [(1, 1), (2, 1), (3, 2), (5, 4), (10, 8), (11, 8), (100, 80)] {
            assert!(lets_in(max, of_workers - 1, "worker") && !lets_in(max, of_workers, "worker"), "{max}");
            assert_eq!(lets_in(max, of_workers, "scheduler"), max > 1, "of {max}");
        }
        let refused = first_full_limit(vec![limit(5, 20, false)], &workers(4), &of_type("worker")).expect("the fifth is kept");
        let words = "Budget/b allows 5 agents at once (spec.agents.maxConcurrent); 4 have a pod, and 1 more are reserved for pools of type \
                     scheduler (Budget/b, spec.agents.reservations[scheduler]). Raise the limit, or delete an agent that it counts";
        assert_eq!(refused.to_string(), words);
        let one_scheduler = [workers(3), vec![of_type("scheduler")]].concat();
        assert!(
            first_full_limit(vec![limit(5, 20, false)], &one_scheduler, &of_type("worker")).is_none(),
            "what is kept is in use: the rest is free"
        );
        assert!(
            first_full_limit(vec![limit(5, 20, false)], &one_scheduler, &of_type("scheduler")).is_none(),
            "without cap there may be more"
        );
        let capped = first_full_limit(vec![limit(5, 20, true)], &one_scheduler, &of_type("scheduler")).expect("it has a cap");
        assert!(capped.to_string().contains("allows pools of type scheduler no more than 1 of the 5 agents of Budget/b"), "{capped}");
        let stray = CapacityHolder { pool_type: None, ..of_type("x") };
        assert!(
            first_full_limit(vec![limit(5, 20, true)], std::slice::from_ref(&stray), &of_type("scheduler")).is_some(),
            "it may be one of them"
        );
        assert!(first_full_limit(vec![limit(2, 20, false)], &[stray], &of_type("worker")).is_some(), "or not");
        assert!(first_full_limit(vec![limit(2, 100, false)], &[], &of_type("worker")).is_some(), "all of them, where somebody says so");
    }

    #[test]
    fn shares_of_few_agents_together_leave_everybody_a_place() {
        let shares = ["a", "b", "c"].map(|pool_type| reserved(pool_type, 10, false));
        // Each of them alone is one agent, and together they would be more than there are.
        for asks in ["a", "b", "c", "worker"] {
            let limit = Limit { reservations: shares.to_vec(), ..agents(budget("b"), 2) };
            assert_eq!(first_full_limit(vec![limit], &[], &of_type(asks)), None, "{asks}");
        }
        let capped = Limit { reservations: vec![reserved("a", 20, true)], ..agents(budget("b"), 1) };
        assert_eq!(
            first_full_limit(vec![capped], &[], &of_type("a")),
            None,
            "a fifth of one is one, where nothing has to be left to others"
        );
    }

    #[test]
    fn the_first_projects_are_those_with_the_oldest_pools() {
        let projects = || [(3, "c"), (1, "a"), (2, "b")].map(|(since, namespace)| Project { since, namespace: namespace.into() });
        let none = BTreeSet::new();
        assert!(
            !exceeds_max_projects(projects(), &none, "a", 2)
                && !exceeds_max_projects(projects(), &none, "b", 2)
                && exceeds_max_projects(projects(), &none, "c", 2)
        );
        assert!(exceeds_max_projects(projects(), &none, "a", 0));
        let running: BTreeSet<String> = ["b".to_owned(), "c".to_owned()].into();
        assert!(exceeds_max_projects(projects(), &running, "a", 2), "c was let in by a cache that did not show a");
        assert!(!exceeds_max_projects(projects(), &running, "b", 2), "who runs goes on");
        assert!(exceeds_max_projects(projects(), &running, "c", 2), "but c gets no more");
    }

    proptest! {
        #[test]
        fn whoever_is_let_in_one_by_one_keeps_every_limit(
            asks in proptest::collection::vec((0usize..3, 0u64..5, 0usize..3), 1..60),
            (of_a, of_n, of_all, memory) in (0u64..6, 0u64..10, 0u64..15, 0u64..30),
        ) {
            let namespaces = ["n", "m", "o"];
            let budgets: [&[&str]; 3] = [&["a"], &["b", "a"], &[]];
            let limits = vec![
                agents(budget("a"), of_a),
                agents(LimitScope::Namespace("n".into()), of_n),
                agents(LimitScope::Namespaces(["n".to_owned(), "m".to_owned()].into()), of_all),
                Limit { resource: LimitedResource::Memory, ..agents(LimitScope::Namespaces(["n".to_owned(), "o".to_owned()].into()), memory) },
            ];
            let mut held: Vec<CapacityHolder> = Vec::new();
            for (namespace, memory, path) in asks {
                let asks = holder(namespaces[namespace], budgets[path], memory);
                if first_full_limit(limits.clone(), &held, &asks).is_none() {
                    held.push(asks);
                }
                for limit in &limits {
                    let used: u64 = held.iter().filter(|holder| limit.scope.counts(holder)).map(|holder| limit.resource.of(&holder.amounts)).sum();
                    prop_assert!(used <= limit.max);
                }
            }
        }

        #[test]
        fn whoever_has_a_reservation_gets_it_whatever_others_do(
            asks in proptest::collection::vec(0usize..3, 1..80),
            (max, percent, cap) in (0u64..20, 1u64..=100, any::<bool>()),
        ) {
            let types = ["scheduler", "worker", "drone"];
            let share = reserved("scheduler", percent, cap);
            let limit = || Limit { reservations: vec![share.clone(), reserved("drone", (100 - percent) / 2, false)], ..agents(budget("b"), max) };
            let size = limit().shares().next().map_or(0, |(_, size)| size);
            let mut held: Vec<CapacityHolder> = Vec::new();
            for which in asks {
                let asks = of_type(types[which]);
                let mine = held.iter().filter(|holder| share.is_for(holder)).count() as u64;
                let fits = first_full_limit(vec![limit()], &held, &asks).is_none();
                prop_assert!(fits || which != 0 || mine >= size, "its own share is free");
                prop_assert!(!fits || which != 0 || !cap || mine < (max * percent).div_ceil(100));
                if fits {
                    held.push(asks);
                }
                prop_assert!(held.len() as u64 <= max);
            }
        }
    }
}
