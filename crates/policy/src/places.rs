//! Whether one more agent may get a pod: limits on agents at once, on their memory and on their volumes; and which
//! namespaces are projects, where not all may be.
//!
//! What always holds: an agent that is let in leaves every limit above it kept, if all that [`Holder`]s hold was counted.
//! Whoever asks must let nobody else ask before what was given is counted too.

use std::collections::BTreeSet;

use crate::budget::concurrency::room;

/// An agent that holds something that is limited, or asks for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// Its namespace.
    pub namespace: String,
    /// The Budgets that it is counted in: its pool's, and those above.
    pub budgets: Path,
    /// What it holds, or asks for.
    pub amounts: Amounts,
}

/// What is limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// It has a pod: 1.
    pub agents: u64,
    /// Bytes that its containers may use.
    pub memory: u64,
    /// Bytes of its own volume.
    pub storage: u64,
}

/// The Budgets that an agent is counted in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Path {
    /// These.
    Known(Vec<String>),
    /// Its pool is not known: all of its namespace, so that nothing is counted too low.
    #[default]
    All,
}

/// Who is counted under a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Over {
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

impl Over {
    fn counts(&self, holder: &Holder) -> bool {
        match self {
            Self::Budget { namespace, name } => {
                holder.namespace == *namespace
                    && match &holder.budgets {
                        Path::Known(budgets) => budgets.contains(name),
                        Path::All => true,
                    }
            }
            Self::Namespace(namespace) => holder.namespace == *namespace,
            Self::Namespaces(namespaces) => namespaces.contains(&holder.namespace),
        }
    }
}

/// What a limit is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Agents with a pod.
    Agents,
    /// Memory of their pods, in bytes.
    Memory,
    /// Their volumes, in bytes.
    Storage,
}

impl What {
    fn of(self, amounts: &Amounts) -> u64 {
        match self {
            Self::Agents => amounts.agents,
            Self::Memory => amounts.memory,
            Self::Storage => amounts.storage,
        }
    }
}

/// A limit, as somebody wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Who says so, as `Kind/name`.
    pub owner: String,
    /// In which field.
    pub field: &'static str,
    /// Who is counted.
    pub over: Over,
    /// What is.
    pub what: What,
    /// At most so much.
    pub max: u64,
}

/// A limit that leaves too little room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Full {
    /// The limit.
    pub limit: Limit,
    /// What is used of it.
    pub used: u64,
    /// What is asked for.
    pub asked: u64,
}

/// The first limit under which what `asks` does not fit beside what the `holders` have. Who asks is not among them.
pub fn full(limits: Vec<Limit>, holders: &[Holder], asks: &Holder) -> Option<Full> {
    limits.into_iter().filter(|limit| limit.over.counts(asks)).find_map(|limit| {
        let asked = limit.what.of(&asks.amounts);
        let used = holders.iter().filter(|holder| limit.over.counts(holder)).map(|holder| limit.what.of(&holder.amounts));
        let used = used.fold(0, u64::saturating_add);
        // What asks for nothing is refused by nobody, even where a lowered limit is passed already.
        let fits = asked == 0 || room([(Some(limit.max), used)]).is_none_or(|room| asked <= room);
        (!fits).then_some(Full { limit, used, asked })
    })
}

impl std::fmt::Display for Full {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { limit: Limit { owner, field, over: _, what, max }, used, asked } = self;
        match what {
            What::Agents => write!(to, "{owner} allows {max} agents at once ({field}), and {used} have a pod"),
            What::Memory => write!(
                to,
                "{owner} allows {} of memory for agents' pods ({field}); {} are taken, and this one asks for {}",
                bytes(*max),
                bytes(*used),
                bytes(*asked)
            ),
            What::Storage => write!(
                to,
                "{owner} allows {} of agents' volumes ({field}); {} are taken, and this one asks for {}",
                bytes(*max),
                bytes(*used),
                bytes(*asked)
            ),
        }
    }
}

/// Bytes as a quantity, in the largest unit that tells them exactly.
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

/// Whether `namespace` is beyond the first `max` projects; `running` are those that have agents with a pod. The first are those
/// whose oldest pool is the oldest. One that was let in by a cache which did not show an older one may run on; then the
/// older one waits, so that never more than `max` run.
pub fn beyond(projects: impl IntoIterator<Item = Project>, running: &BTreeSet<String>, namespace: &str, max: usize) -> bool {
    let mut projects: Vec<Project> = projects.into_iter().collect();
    projects.sort();
    let among_the_first = projects.iter().take(max).any(|project| project.namespace == namespace);
    !among_the_first || (!running.contains(namespace) && running.len() >= max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn holder(namespace: &str, budgets: &[&str], memory: u64) -> Holder {
        Holder {
            namespace: namespace.into(),
            budgets: Path::Known(budgets.iter().map(|name| (*name).to_owned()).collect()),
            amounts: Amounts { agents: 1, memory, storage: 0 },
        }
    }
    fn agents(over: Over, max: u64) -> Limit {
        Limit { owner: "Budget/b".into(), field: "spec.agents.maxConcurrent", over, what: What::Agents, max }
    }
    fn budget(name: &str) -> Over {
        Over::Budget { namespace: "n".into(), name: name.into() }
    }

    #[test]
    fn a_limit_counts_its_own_and_says_its_numbers() {
        let holders = [holder("n", &["a", "top"], 0), holder("n", &["b", "top"], 0), holder("other", &["a"], 0)];
        let asks = holder("n", &["a", "top"], 0);
        let free = |limit| full(vec![limit], &holders, &asks).is_none();
        assert!(free(agents(budget("a"), 2)), "of another namespace's Budget of that name nothing is counted");
        assert!(!free(agents(budget("a"), 1)));
        assert!(free(agents(budget("b"), 0)), "it is not counted there");
        assert!(free(agents(budget("top"), 3)) && !free(agents(budget("top"), 2)));
        assert!(free(agents(Over::Namespace("n".into()), 3)) && !free(agents(Over::Namespace("n".into()), 2)));
        let all = || Over::Namespaces(["n".to_owned(), "other".to_owned()].into());
        assert!(free(agents(all(), 4)) && !free(agents(all(), 3)));
        let refused = full(vec![agents(budget("top"), 2)], &holders, &asks).expect("full");
        assert_eq!(refused.to_string(), "Budget/b allows 2 agents at once (spec.agents.maxConcurrent), and 2 have a pod");
    }

    #[test]
    fn one_whose_pool_is_not_known_counts_in_every_budget_of_its_namespace() {
        let stray = Holder { budgets: Path::All, ..holder("n", &[], 0) };
        assert!(full(vec![agents(budget("a"), 1)], &[stray], &holder("n", &["a"], 0)).is_some());
    }

    #[test]
    fn memory_and_volumes_are_added_up() {
        let limit = |what, max| Limit { owner: "ClusterBudget/c".into(), field: "f", over: Over::Namespace("n".into()), what, max };
        let holders = [holder("n", &[], 3 << 30)];
        assert!(full(vec![limit(What::Memory, 4 << 30)], &holders, &holder("n", &[], 1 << 30)).is_none());
        let refused = full(vec![limit(What::Memory, 4 << 30)], &holders, &holder("n", &[], (1 << 30) + 1)).expect("full");
        assert!(refused.to_string().contains("allows 4Gi of memory for agents' pods (f); 3Gi are taken, and this one asks for 1073741825"));
        assert!(full(vec![limit(What::Storage, 0)], &holders, &holder("n", &[], 1)).is_none(), "it asks for no volume");
    }

    #[test]
    fn the_first_projects_are_those_with_the_oldest_pools() {
        let projects = || [(3, "c"), (1, "a"), (2, "b")].map(|(since, namespace)| Project { since, namespace: namespace.into() });
        let none = BTreeSet::new();
        assert!(!beyond(projects(), &none, "a", 2) && !beyond(projects(), &none, "b", 2) && beyond(projects(), &none, "c", 2));
        assert!(beyond(projects(), &none, "a", 0));
        let running: BTreeSet<String> = ["b".to_owned(), "c".to_owned()].into();
        assert!(beyond(projects(), &running, "a", 2), "c was let in by a cache that did not show a");
        assert!(!beyond(projects(), &running, "b", 2), "who runs goes on");
        assert!(beyond(projects(), &running, "c", 2), "but c gets no more");
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
                agents(Over::Namespace("n".into()), of_n),
                agents(Over::Namespaces(["n".to_owned(), "m".to_owned()].into()), of_all),
                Limit { what: What::Memory, ..agents(Over::Namespaces(["n".to_owned(), "o".to_owned()].into()), memory) },
            ];
            let mut held: Vec<Holder> = Vec::new();
            for (namespace, memory, path) in asks {
                let asks = holder(namespaces[namespace], budgets[path], memory);
                if full(limits.clone(), &held, &asks).is_none() {
                    held.push(asks);
                }
                for limit in &limits {
                    let used: u64 = held.iter().filter(|holder| limit.over.counts(holder)).map(|holder| limit.what.of(&holder.amounts)).sum();
                    prop_assert!(used <= limit.max);
                }
            }
        }
    }
}
