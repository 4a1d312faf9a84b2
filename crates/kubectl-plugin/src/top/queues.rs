//! `top queues`: the items of queues by state, and how long they wait, from the last status of the queues.

use std::cmp::Reverse;

use jiff::Timestamp;
use kube::ResourceExt as _;
use ratatui::style::{Color, Modifier, Style};

use super::state::Order;
use super::subject::{ListedObjects, Subject, list_rows, nonzero_counts, scope_text};
use super::view::Sheet;
use crate::api::WorkQueue;
use crate::api::conditions::{reasons, types};
use crate::connect::Cluster;
use crate::error::Error;
use crate::find;
use crate::table::{age, or_nothing};
use spillway_conversion::work as convert;

/// The columns that shrink on a narrow screen, with their minimum widths.
const SHRINKABLE_COLUMNS: [(&str, usize); 2] = [("STATE", 8), ("NAME", 10)];

/// The queues to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queues {
    /// Whether to show all namespaces.
    pub everywhere: bool,
}

/// The sort orders of queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Sort {
    /// By name
    #[default]
    Name,
    /// The most ready items first
    Ready,
    /// The longest wait first
    Oldest,
    /// The fullest first
    Full,
    /// The most dead letters first
    Dead,
}

impl Order for Sort {}

/// One queue. A count is none if the operator has not written it yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Items that agents can claim.
    pub ready: Option<i32>,
    /// Items that agents hold.
    pub leased: Option<i32>,
    /// Items that are paused with their agents.
    pub paused: Option<i32>,
    /// Items that wait for something.
    pub waiting: Option<i32>,
    /// Dead letters.
    pub dead: Option<i32>,
    /// Items that ended otherwise.
    pub finished: Option<i32>,
    /// The most unfinished items that it may hold.
    pub limit: u64,
    /// When the oldest ready item became ready.
    pub oldest: Option<Timestamp>,
    /// The reason of its most important problem; none if it has none.
    pub problem: Option<String>,
    /// Whether it is paused.
    pub suspended: bool,
}

impl Row {
    fn of(queue: &WorkQueue) -> Self {
        let status = queue.status.clone().unwrap_or_default();
        let counts = status.counts.unwrap_or_default();
        let said = |type_: &str, wanted: &str| find::condition(&status.conditions, type_).filter(|said| said.status == wanted);
        let nearly = find::condition(&status.conditions, types::ACCEPTING).filter(|said| said.reason == reasons::NEARLY_FULL);
        let trouble = said(types::ACCEPTING, "False").or(nearly).or_else(|| said(types::OBJECTIVES_MET, "False"));
        Self {
            namespace: queue.namespace().unwrap_or_default(),
            name: queue.name_any(),
            ready: counts.ready,
            leased: counts.leased,
            paused: counts.paused,
            waiting: counts.waiting,
            dead: counts.dead_lettered,
            finished: counts.finished,
            limit: convert::queue(queue).max_pending,
            oldest: status.oldest_ready_time.map(|time| time.0),
            problem: trouble.map(|trouble| trouble.reason.clone()),
            suspended: queue.spec.suspend == Some(true),
        }
    }

    /// The number of items that have not ended.
    fn unfinished(&self) -> Option<u64> {
        let counts = [self.ready, self.leased, self.paused, self.waiting];
        counts.iter().any(Option::is_some).then(|| counts.iter().flatten().filter_map(|count| u64::try_from(*count).ok()).sum())
    }

    /// How full it is, in percent.
    fn full(&self) -> Option<u64> {
        self.unfinished().map(|unfinished| unfinished.saturating_mul(100).checked_div(self.limit).unwrap_or(100))
    }

    fn state(&self) -> Option<&str> {
        self.suspended.then_some("Suspended").or(self.problem.as_deref())
    }

    fn cells(&self, everywhere: bool, now: Timestamp) -> Vec<String> {
        let namespace = everywhere.then(|| self.namespace.clone());
        let others = [
            self.name.clone(),
            or_nothing(self.ready),
            or_nothing(self.leased),
            or_nothing(self.paused),
            or_nothing(self.waiting),
            or_nothing(self.dead),
            or_nothing(self.finished),
            age(self.oldest, now),
            or_nothing(self.full().map(|full| format!("{full}%"))),
            or_nothing(self.state()),
        ];
        namespace.into_iter().chain(others).collect()
    }

    fn style(&self) -> Style {
        if self.suspended {
            Style::new().add_modifier(Modifier::DIM)
        } else if self.problem.is_some() {
            Style::new().fg(Color::Yellow)
        } else if self.leased.is_some_and(|leased| leased > 0) {
            Style::new().fg(Color::Green)
        } else {
            Style::new()
        }
    }
}

impl Sort {
    /// The queues in this order; equal ones by name.
    fn sorted(self, rows: &[Row]) -> Vec<&Row> {
        let mut rows: Vec<&Row> = rows.iter().collect();
        rows.sort_by(|one, other| {
            let by = match self {
                Self::Name => std::cmp::Ordering::Equal,
                Self::Ready => Reverse(one.ready).cmp(&Reverse(other.ready)),
                Self::Oldest => (one.oldest.is_none(), one.oldest).cmp(&(other.oldest.is_none(), other.oldest)),
                Self::Full => Reverse(one.full()).cmp(&Reverse(other.full())),
                Self::Dead => Reverse(one.dead).cmp(&Reverse(other.dead)),
            };
            by.then_with(|| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)))
        });
        rows
    }
}

impl Subject for Queues {
    type Snapshot = ListedObjects<Row>;
    type Sort = Sort;

    async fn look(&self, cluster: &Cluster) -> Result<ListedObjects<Row>, Error> {
        list_rows::<WorkQueue, Row>(cluster, self.everywhere, Row::of).await
    }

    fn sheet(snapshot: &ListedObjects<Row>, sort: Sort, now: Timestamp) -> Sheet {
        let everywhere = snapshot.namespace.is_none();
        let namespace = everywhere.then_some("NAMESPACE");
        let others = ["NAME", "READY", "LEASED", "PAUSED", "WAITING", "DEAD", "FINISHED", "OLDEST", "FULL", "STATE"];
        Sheet {
            scope: scope_text(snapshot.namespace.as_deref()),
            summary: summary(snapshot, now),
            header: namespace.into_iter().chain(others).map(Into::into).collect(),
            rows: sort.sorted(&snapshot.rows).into_iter().map(|row| (row.cells(everywhere, now), row.style())).collect(),
            shrinkable_columns: &SHRINKABLE_COLUMNS,
        }
    }
}

/// The totals of all queues.
fn summary(ListedObjects { namespace: _, rows: queues, unreadable }: &ListedObjects<Row>, now: Timestamp) -> Vec<String> {
    let sum = |of: fn(&Row) -> Option<i32>| -> i64 { queues.iter().filter_map(of).map(i64::from).sum() };
    let mut first = vec![format!("Queues {}", queues.len())];
    let with = |wanted: fn(&Row) -> bool| queues.iter().filter(|row| wanted(row)).count();
    first.extend(nonzero_counts([
        ("suspended", with(|row| row.suspended)),
        ("problems", with(|row| row.problem.is_some())),
        ("unreadable", *unreadable),
    ]));
    let oldest = queues.iter().filter_map(|row| row.oldest).min();
    let oldest = oldest.map(|oldest| format!("  oldest {}", age(Some(oldest), now))).unwrap_or_default();
    let (ready, leased) = (sum(|row| row.ready), sum(|row| row.leased));
    let (paused, waiting, dead) = (sum(|row| row.paused), sum(|row| row.waiting), sum(|row| row.dead));
    vec![first.join("  "), format!("Items  ready {ready}  leased {leased}  paused {paused}  waiting {waiting}  dead {dead}{oldest}")]
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::top::view;

    fn row(name: &str, spec: &Value, status: &Value) -> Row {
        let queue = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkQueue", "metadata": {"name": name, "namespace": "n"},
            "spec": spec, "status": status});
        Row::of(&serde_json::from_value(queue).expect("a WorkQueue"))
    }

    fn condition(type_: &str, status: &str, reason: &str) -> Value {
        json!({"type": type_, "status": status, "reason": reason, "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"})
    }

    fn snapshot() -> ListedObjects<Row> {
        let busy = json!({"counts": {"ready": 30, "leased": 8, "waiting": 2, "paused": 0, "finished": 9, "deadLettered": 1},
            "oldestReadyTime": "2026-01-01T00:00:00Z", "conditions": [condition("Accepting", "True", "NearlyFull")]});
        let calm = json!({"counts": {"ready": 1, "leased": 0, "waiting": 0, "paused": 0, "finished": 0, "deadLettered": 4},
            "oldestReadyTime": "2026-01-01T00:01:30Z", "conditions": [condition("Accepting", "True", "Accepted")]});
        let queues = vec![
            row("bugs", &json!({"limits": {"maxPending": 50}}), &busy),
            row("ask", &json!({"suspend": true}), &calm),
            row("new", &json!({}), &json!({})),
        ];
        ListedObjects { namespace: Some("n".into()), rows: queues, unreadable: 1 }
    }

    fn now() -> Timestamp {
        "2026-01-01T00:02:00Z".parse().expect("a time")
    }

    #[test]
    fn queues_show_what_their_items_do_and_how_full_they_are() {
        assert_eq!(
            view::plain_text(&Queues::sheet(&snapshot(), Sort::Name, now())),
            "Queues 3  suspended 1  problems 1  unreadable 1\n\
             Items  ready 31  leased 8  paused 0  waiting 2  dead 5  oldest 2m\n\n\
             NAME   READY   LEASED   PAUSED   WAITING   DEAD   FINISHED   OLDEST   FULL   STATE\n\
             ask    1       0        0        0         4      0          30s      0%     Suspended\n\
             bugs   30      8        0        2         1      9          2m       80%    NearlyFull\n\
             new    -       -        -        -         -      -          -        -      -\n"
        );
        let everywhere = ListedObjects { namespace: None, ..snapshot() };
        let text = view::plain_text(&Queues::sheet(&everywhere, Sort::Name, now()));
        assert!(text.contains("NAMESPACE   NAME") && text.contains("n           bugs"), "{text}");
    }

    #[test]
    fn queues_stand_in_the_order_that_was_chosen() {
        let all = snapshot();
        let orders = [
            (Sort::Name, "ask bugs new"),
            (Sort::Ready, "bugs ask new"),
            (Sort::Oldest, "bugs ask new"),
            (Sort::Full, "bugs ask new"),
            (Sort::Dead, "ask bugs new"),
        ];
        for (sort, expected) in orders {
            let names: Vec<&str> = sort.sorted(&all.rows).iter().map(|row| row.name.as_str()).collect();
            assert_eq!(names.join(" "), expected, "{sort:?}");
        }
        let mut sort = Sort::Name;
        (0..orders.len()).for_each(|_| sort = sort.next());
        assert_eq!(sort, Sort::Name);
    }

    #[test]
    fn what_stands_in_the_way_is_told_in_its_order() {
        let of = |conditions: &[Value]| row("q", &json!({}), &json!({"conditions": conditions})).problem;
        let full = condition("Accepting", "False", "QueueFull");
        let late = condition("ObjectivesMet", "False", "ObjectiveMissed");
        assert_eq!(of(&[late.clone(), full]).as_deref(), Some("QueueFull"));
        assert_eq!(of(&[late, condition("Accepting", "True", "Accepted")]).as_deref(), Some("ObjectiveMissed"));
        assert_eq!(of(&[condition("Accepting", "True", "Accepted")]), None);
    }
}
