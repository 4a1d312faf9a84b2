//! `top pools`: desired and existing agents of pools, from their last status.

use std::cmp::Reverse;

use jiff::Timestamp;
use kube::ResourceExt as _;
use ratatui::style::{Color, Modifier, Style};

use super::state::Order;
use super::subject::{ListedObjects, Subject, list_rows, nonzero_counts, scope_text};
use super::view::Sheet;
use crate::api::AgentPool;
use crate::api::conditions::types;
use crate::connect::Cluster;
use crate::error::Error;
use crate::find;
use crate::table::{age, or_nothing};

/// The columns that shrink on a narrow screen, with their minimum widths.
const SHRINKABLE_COLUMNS: [(&str, usize); 3] = [("REASON", 10), ("TYPE", 6), ("NAME", 10)];

/// The pools to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pools {
    /// Whether to show all namespaces.
    pub everywhere: bool,
}

/// The sort orders of pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Sort {
    /// By name
    #[default]
    Name,
    /// The most agents first
    Agents,
    /// The most missing agents first
    Missing,
    /// The most work first
    Work,
    /// The oldest first
    Age,
}

impl Order for Sort {}

/// One pool. A count is none if the operator has not written it yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The type of its agents.
    pub type_: String,
    /// Desired agents.
    pub desired: Option<i32>,
    /// Existing agents.
    pub agents: Option<i32>,
    /// Agents that hold an item.
    pub active: Option<i32>,
    /// Agents that hold no item.
    pub idle: Option<i32>,
    /// Hibernated agents, which have no pod.
    pub hibernated: Option<i32>,
    /// Ready items of its queues.
    pub ready: Option<i64>,
    /// Items that its agents hold.
    pub leased: Option<i64>,
    /// A fixed number of agents, or the minimum and the maximum.
    pub bounds: String,
    /// The reason in its status.
    pub reason: String,
    /// None: no problem. `Some(false)`: Blocked. `Some(true)`: Stalled, which only a person can fix.
    pub stalled: Option<bool>,
    /// When it was created.
    pub created: Option<Timestamp>,
}

impl Row {
    fn of(pool: &AgentPool) -> Self {
        let status = pool.status.clone().unwrap_or_default();
        let is = |type_: &str| find::condition(&status.conditions, type_).is_some_and(|said| said.status == "True");
        let bounds =
            pool.spec.fixed_replicas().map_or_else(|| format!("{}-{}", pool.spec.min(), pool.spec.max()), |fixed| fixed.to_string());
        Self {
            namespace: pool.namespace().unwrap_or_default(),
            name: pool.name_any(),
            type_: pool.spec.type_.clone(),
            desired: status.desired,
            agents: status.agents,
            active: status.active,
            idle: status.idle,
            hibernated: status.hibernated,
            ready: status.work_ready,
            leased: status.work_leased,
            bounds,
            reason: status.reason.clone().unwrap_or_default(),
            stalled: (is(types::STALLED) || is(types::BLOCKED)).then(|| is(types::STALLED)),
            created: pool.creation_timestamp().map(|time| time.0),
        }
    }

    fn missing(&self) -> i32 {
        self.desired.unwrap_or(0).saturating_sub(self.agents.unwrap_or(0))
    }

    fn cells(&self, everywhere: bool, now: Timestamp) -> Vec<String> {
        let namespace = everywhere.then(|| self.namespace.clone());
        let others = [
            self.name.clone(),
            self.type_.clone(),
            or_nothing(self.desired),
            or_nothing(self.agents),
            self.bounds.clone(),
            or_nothing(self.active),
            or_nothing(self.idle),
            or_nothing(self.hibernated),
            or_nothing(self.ready),
            or_nothing(self.leased),
            self.reason.clone(),
            age(self.created, now),
        ];
        namespace.into_iter().chain(others).collect()
    }

    fn style(&self) -> Style {
        match self.stalled {
            Some(true) => Style::new().fg(Color::Red),
            Some(false) => Style::new().fg(Color::Yellow),
            None if self.active.is_some_and(|active| active > 0) => Style::new().fg(Color::Green),
            None if self.desired == Some(0) => Style::new().add_modifier(Modifier::DIM),
            None => Style::new(),
        }
    }
}

impl Sort {
    /// The pools in this order; equal ones by name.
    fn sorted(self, rows: &[Row]) -> Vec<&Row> {
        let mut rows: Vec<&Row> = rows.iter().collect();
        rows.sort_by(|one, other| {
            let by = match self {
                Self::Name => std::cmp::Ordering::Equal,
                Self::Agents => Reverse(one.agents).cmp(&Reverse(other.agents)),
                Self::Missing => Reverse(one.missing()).cmp(&Reverse(other.missing())),
                Self::Work => Reverse(one.ready).cmp(&Reverse(other.ready)),
                Self::Age => (one.created.is_none(), one.created).cmp(&(other.created.is_none(), other.created)),
            };
            by.then_with(|| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)))
        });
        rows
    }
}

impl Subject for Pools {
    type Snapshot = ListedObjects<Row>;
    type Sort = Sort;

    async fn look(&self, cluster: &Cluster) -> Result<ListedObjects<Row>, Error> {
        list_rows::<AgentPool, Row>(cluster, self.everywhere, Row::of).await
    }

    fn sheet(snapshot: &ListedObjects<Row>, sort: Sort, now: Timestamp) -> Sheet {
        let everywhere = snapshot.namespace.is_none();
        let namespace = everywhere.then_some("NAMESPACE");
        let others = ["NAME", "TYPE", "DESIRED", "AGENTS", "BOUNDS", "ACTIVE", "IDLE", "HIBERNATED", "READY", "LEASED", "REASON", "AGE"];
        Sheet {
            scope: scope_text(snapshot.namespace.as_deref()),
            summary: summary(snapshot),
            header: namespace.into_iter().chain(others).map(Into::into).collect(),
            rows: sort.sorted(&snapshot.rows).into_iter().map(|row| (row.cells(everywhere, now), row.style())).collect(),
            shrinkable_columns: &SHRINKABLE_COLUMNS,
        }
    }
}

/// The totals of all pools.
fn summary(ListedObjects { namespace: _, rows: pools, unreadable }: &ListedObjects<Row>) -> Vec<String> {
    let sum = |of: fn(&Row) -> Option<i32>| -> i64 { pools.iter().filter_map(of).map(i64::from).sum() };
    let mut first = vec![format!("Pools {}", pools.len())];
    let with = |wanted: Option<bool>| pools.iter().filter(|row| row.stalled == wanted).count();
    first.extend(nonzero_counts([("blocked", with(Some(false))), ("stalled", with(Some(true))), ("unreadable", *unreadable)]));
    let (desired, agents) = (sum(|row| row.desired), sum(|row| row.agents));
    let (active, idle, asleep) = (sum(|row| row.active), sum(|row| row.idle), sum(|row| row.hibernated));
    vec![first.join("  "), format!("Agents  desired {desired}  existing {agents}  active {active}  idle {idle}  hibernated {asleep}")]
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::top::view;

    fn row(name: &str, scaling: &Value, created: &str, status: &Value) -> Row {
        let pool = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "AgentPool",
            "metadata": {"name": name, "namespace": "n", "creationTimestamp": created},
            "spec": {"type": "worker", "scaling": scaling, "agent": {"image": "i", "command": ["c"]}}, "status": status});
        Row::of(&serde_json::from_value(pool).expect("an AgentPool"))
    }

    fn snapshot() -> ListedObjects<Row> {
        let condition = |type_: &str| json!({"type": type_, "status": "True", "reason": "R", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let short = json!({"desired": 5, "agents": 2, "active": 1, "idle": 1, "hibernated": 0, "workReady": 7, "workLeased": 1,
            "reason": "QuotaExceeded", "conditions": [condition("Blocked")]});
        let asleep = json!({"desired": 0, "agents": 0, "active": 0, "idle": 0, "hibernated": 3, "workReady": 0, "workLeased": 0, "reason": "NoWork"});
        let broken =
            json!({"desired": 1, "agents": 3, "active": 0, "idle": 0, "reason": "CrashLoop", "conditions": [condition("Stalled")]});
        let pools = vec![
            row("coders", &json!({"min": 0, "max": 9}), "2026-01-01T00:00:00Z", &short),
            row("asleep", &json!({"min": 0, "max": 3}), "2026-01-01T00:01:00Z", &asleep),
            row("broken", &json!({"min": 1, "max": 3}), "2025-12-31T23:00:00Z", &broken),
        ];
        ListedObjects { namespace: Some("n".into()), rows: pools, unreadable: 0 }
    }

    #[test]
    fn pools_show_what_they_want_and_have() {
        let now = "2026-01-01T00:02:00Z".parse().expect("a time");
        assert_eq!(
            view::plain_text(&Pools::sheet(&snapshot(), Sort::Name, now)),
            "Pools 3  blocked 1  stalled 1\n\
             Agents  desired 6  existing 5  active 1  idle 1  hibernated 3\n\n\
             NAME     TYPE     DESIRED   AGENTS   BOUNDS   ACTIVE   IDLE   HIBERNATED   READY   LEASED   REASON          AGE\n\
             asleep   worker   0         0        0-3      0        0      3            0       0        NoWork          60s\n\
             broken   worker   1         3        1-3      0        0      -            -       -        CrashLoop       62m\n\
             coders   worker   5         2        0-9      1        1      0            7       1        QuotaExceeded   2m\n"
        );
    }

    #[test]
    fn pools_stand_in_the_order_that_was_chosen() {
        let all = snapshot();
        let orders = [
            (Sort::Name, "asleep broken coders"),
            (Sort::Agents, "broken coders asleep"),
            (Sort::Missing, "coders asleep broken"),
            (Sort::Work, "coders asleep broken"),
            (Sort::Age, "broken coders asleep"),
        ];
        for (sort, expected) in orders {
            let names: Vec<&str> = sort.sorted(&all.rows).iter().map(|row| row.name.as_str()).collect();
            assert_eq!(names.join(" "), expected, "{sort:?}");
        }
        let mut sort = Sort::Name;
        (0..orders.len()).for_each(|_| sort = sort.next());
        assert_eq!(sort, Sort::Name);
    }
}
