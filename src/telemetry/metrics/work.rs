//! Items of work, by their queues.
//!
//! Counters and histograms count each event once. The numbers of items in each phase are set for all queues together.
//! The number of queues with series of their own is bounded ([`Names`]).

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::collected::CollectedItems;
use super::names::{Bounds, Names, Series};
use super::{Metrics, Timed, registered};
use crate::policy::work::item::{Phase, Verb};
use crate::policy::work::item_index::Removal;
use crate::policy::work::tally::{AttemptEnd, ItemEnd, ItemEvent};

/// Queues that have series of their own. One has about sixty.
const QUEUE_SERIES_BOUNDS: Bounds = Bounds { all: 200, of_one: 20, namespaces: 100 };
/// Seconds that an item was ready before its claim: from no wait to a day.
const ITEM_WAIT_BUCKETS: [f64; 10] = [0.01, 0.05, 0.1, 0.5, 1.0, 10.0, 60.0, 600.0, 3600.0, 86400.0];
/// The same for each queue, with fewer buckets because there are many queues.
const QUEUE_WAIT_BUCKETS: [f64; 8] = [0.1, 1.0, 10.0, 60.0, 300.0, 1800.0, 7200.0, 86400.0];
/// Seconds of an attempt: from one command to the longest attempt.
const QUEUE_RUN_BUCKETS: [f64; 8] = [1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct EntryLabels {
    phase: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ObjectiveLabels {
    objective: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct QueueLabels {
    namespace: String,
    queue: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PhaseLabels {
    namespace: String,
    queue: String,
    phase: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct EndLabels {
    namespace: String,
    queue: String,
    outcome: &'static str,
}

fn queue_labels(Series { namespace, name }: &Series) -> QueueLabels {
    QueueLabels { namespace: namespace.clone(), queue: name.clone() }
}

fn in_phase(Series { namespace, name }: &Series, phase: Phase) -> PhaseLabels {
    PhaseLabels { namespace: namespace.clone(), queue: name.clone(), phase: phase.name() }
}

fn end_labels(Series { namespace, name }: &Series, outcome: &'static str) -> EndLabels {
    EndLabels { namespace: namespace.clone(), queue: name.clone(), outcome }
}

/// The number of items of each queue in each phase.
#[derive(Debug, Default)]
pub struct Depths(BTreeMap<Series, (BTreeMap<Phase, u64>, Duration)>);

impl Depths {
    /// Adds a queue: its number of items in each phase, and how long its oldest ready item has been ready.
    pub fn add(&mut self, series: Series, phases: impl IntoIterator<Item = (Phase, u64)>, oldest: Duration) {
        let (counts, longest) = self.0.entry(series).or_default();
        phases.into_iter().for_each(|(phase, count)| *counts.entry(phase).or_default() += count);
        *longest = oldest.max(*longest);
    }
}

/// The metrics of this subject.
pub(super) struct Work {
    items: Family<EntryLabels, Counter>,
    waits: Histogram,
    missed: Family<ObjectiveLabels, Counter>,
    collected: CollectedItems,
    names: Mutex<Names>,
    shown: Mutex<HashSet<Series>>,
    depths: Family<PhaseLabels, Gauge>,
    oldest: Family<QueueLabels, Gauge>,
    arrivals: Family<QueueLabels, Counter>,
    redrives: Family<QueueLabels, Counter>,
    claims: Family<QueueLabels, Counter>,
    attempts: Family<EndLabels, Counter>,
    ends: Family<EndLabels, Counter>,
    queue_waits: Timed<QueueLabels>,
    queue_runs: Timed<QueueLabels>,
}

impl Work {
    pub(super) fn register(registry: &mut Registry) -> Self {
        Self {
            items: registered(registry, "items", "Items of work by written phase", Family::default()),
            waits: registered(
                registry,
                "item_wait_seconds",
                "Time from when an item becomes ready to its claim",
                Histogram::new(ITEM_WAIT_BUCKETS),
            ),
            missed: registered(
                registry,
                "objectives_missed",
                "Items that missed an objective of their queue, by objective",
                Family::default(),
            ),
            collected: CollectedItems::register(registry),
            names: Mutex::new(Names::new(QUEUE_SERIES_BOUNDS)),
            shown: Mutex::default(),
            depths: registered(registry, "queue_items", "Items of a queue by their present phase", Family::default()),
            oldest: registered(
                registry,
                "queue_oldest_ready_seconds",
                "How long the oldest ready item of a queue has been ready",
                Family::default(),
            ),
            arrivals: registered(registry, "queue_arrivals", "Items that arrived in a queue", Family::default()),
            redrives: registered(registry, "queue_redrives", "Items of a queue that were started again after their end", Family::default()),
            claims: registered(registry, "queue_claims", "Items of a queue that an agent claimed", Family::default()),
            attempts: registered(registry, "queue_attempts", "Ended attempts at items of a queue, by outcome", Family::default()),
            ends: registered(registry, "queue_ends", "Ended items of a queue, by outcome", Family::default()),
            queue_waits: registered(
                registry,
                "queue_wait_seconds",
                "Time from when an item becomes ready to its claim, by queue",
                Family::new_with_constructor(|| Histogram::new(QUEUE_WAIT_BUCKETS)),
            ),
            queue_runs: registered(
                registry,
                "queue_run_seconds",
                "Duration of attempts at items of a queue",
                Family::new_with_constructor(|| Histogram::new(QUEUE_RUN_BUCKETS)),
            ),
        }
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the series with these labels.
    fn remove(&self, series: &Series) {
        self.remove_depths(series);
        let queue = queue_labels(series);
        for family in [&self.arrivals, &self.redrives, &self.claims] {
            family.remove(&queue);
        }
        for family in [&self.queue_waits, &self.queue_runs] {
            family.remove(&queue);
        }
        for end in Verb::ALL.into_iter().map(AttemptEnd::By).chain([AttemptEnd::Deleted]) {
            self.attempts.remove(&end_labels(series, end.name()));
        }
        for end in Phase::ALL.into_iter().filter(|phase| phase.ended()).map(ItemEnd::In).chain([ItemEnd::Deleted]) {
            self.ends.remove(&end_labels(series, end.name()));
        }
    }

    fn remove_depths(&self, series: &Series) {
        for phase in Phase::ALL {
            self.depths.remove(&in_phase(series, phase));
        }
        self.oldest.remove(&queue_labels(series));
    }
}

impl Metrics {
    /// An item's phase was written.
    pub fn item(&self, phase: &'static str) {
        self.0.work.items.get_or_create(&EntryLabels { phase }).inc();
    }

    /// An item was claimed after it was ready for `time`.
    pub fn waited(&self, time: Duration) {
        self.0.work.waits.observe(time.as_secs_f64());
    }

    /// An item missed an objective of its queue.
    pub fn objective_missed(&self, objective: &'static str) {
        self.0.work.missed.get_or_create(&ObjectiveLabels { objective }).inc();
    }

    /// An ended item was deleted.
    pub fn item_collected(&self, dead_letter: bool, removal: Removal) {
        self.0.work.collected.count(dead_letter, removal);
    }

    /// The series of an existing queue. `None`: for items whose queue does not exist.
    pub fn queue(&self, namespace: &str, queue: Option<&str>) -> Series {
        self.0.work.names().series(namespace, queue)
    }

    /// An item of these series had an event.
    pub fn happened(&self, series: &Series, happening: ItemEvent) {
        let work = &self.0.work;
        match happening {
            ItemEvent::Arrived => {
                work.arrivals.get_or_create(&queue_labels(series)).inc();
            }
            ItemEvent::Redriven => {
                work.redrives.get_or_create(&queue_labels(series)).inc();
            }
            ItemEvent::Claimed(waited) => {
                work.claims.get_or_create(&queue_labels(series)).inc();
                if let Some(waited) = waited {
                    work.queue_waits.get_or_create(&queue_labels(series)).observe(waited.as_secs_f64());
                }
            }
            ItemEvent::AttemptEnded(end, ran) => {
                work.attempts.get_or_create(&end_labels(series, end.name())).inc();
                work.queue_runs.get_or_create(&queue_labels(series)).observe(ran.as_secs_f64());
            }
            ItemEvent::Ended(end) => {
                work.ends.get_or_create(&end_labels(series, end.name())).inc();
            }
        }
    }

    /// Sets the numbers of items of all queues. The series of other queues are removed.
    pub fn depths(&self, Depths(all): Depths) {
        let work = &self.0.work;
        for (series, (counts, oldest)) in &all {
            for phase in Phase::ALL {
                let count = counts.get(&phase).copied().unwrap_or(0);
                work.depths.get_or_create(&in_phase(series, phase)).set(i64::try_from(count).unwrap_or(i64::MAX));
            }
            work.oldest.get_or_create(&queue_labels(series)).set(i64::try_from(oldest.as_secs()).unwrap_or(i64::MAX));
        }
        let now: HashSet<Series> = all.into_keys().collect();
        let mut shown = work.shown.lock().unwrap_or_else(PoisonError::into_inner);
        shown.difference(&now).for_each(|gone| work.remove_depths(gone));
        *shown = now;
    }

    /// A queue is gone: removes its series.
    pub fn queue_gone(&self, namespace: &str, queue: &str) {
        let gone = self.0.work.names().forget(namespace, queue);
        gone.iter().for_each(|series| self.0.work.remove(series));
    }

    /// A namespace has no queues and no items any more: removes its series.
    pub fn work_gone(&self, namespace: &str) {
        let gone = self.0.work.names().forget_namespace(namespace);
        gone.iter().for_each(|series| self.0.work.remove(series));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::names::{NO_OBJECT_LABEL, OTHER_LABEL};

    fn lines(metrics: &Metrics, metric: &str) -> Vec<String> {
        let text = metrics.text().expect("encodes");
        let mut lines: Vec<String> = text.lines().filter(|line| line.starts_with(metric)).map(str::to_owned).collect();
        lines.sort();
        lines
    }

    #[test]
    fn what_happens_to_items_counts_at_their_queue() {
        let metrics = Metrics::default();
        let series = metrics.queue("n", Some("q"));
        let attempt = AttemptEnd::By(Verb::Release);
        for one in [
            ItemEvent::Arrived,
            ItemEvent::Claimed(Some(Duration::from_secs(5))),
            ItemEvent::Claimed(None),
            ItemEvent::AttemptEnded(attempt, Duration::from_secs(70)),
            ItemEvent::Redriven,
            ItemEvent::Ended(ItemEnd::In(Phase::DeadLettered)),
        ] {
            metrics.happened(&series, one);
        }
        let labels = r#"namespace="n",queue="q""#;
        assert_eq!(lines(&metrics, "spillway_queue_arrivals_total"), [format!("spillway_queue_arrivals_total{{{labels}}} 1")]);
        assert_eq!(lines(&metrics, "spillway_queue_redrives_total"), [format!("spillway_queue_redrives_total{{{labels}}} 1")]);
        assert_eq!(lines(&metrics, "spillway_queue_claims_total"), [format!("spillway_queue_claims_total{{{labels}}} 2")]);
        assert_eq!(
            lines(&metrics, "spillway_queue_attempts_total"),
            [format!("spillway_queue_attempts_total{{{labels},outcome=\"Release\"}} 1")]
        );
        assert_eq!(
            lines(&metrics, "spillway_queue_ends_total"),
            [format!("spillway_queue_ends_total{{{labels},outcome=\"DeadLettered\"}} 1")]
        );
        assert_eq!(lines(&metrics, "spillway_queue_wait_seconds_sum"), [format!("spillway_queue_wait_seconds_sum{{{labels}}} 5.0")]);
        assert_eq!(lines(&metrics, "spillway_queue_run_seconds_sum"), [format!("spillway_queue_run_seconds_sum{{{labels}}} 70.0")]);
        metrics.queue_gone("n", "q");
        assert_eq!(lines(&metrics, "spillway_queue_"), Vec::<String>::new(), "nothing is left of a queue that is gone");
    }

    #[test]
    fn depths_are_whole_and_what_is_gone_is_shown_no_more() {
        let metrics = Metrics::default();
        let mut depths = Depths::default();
        let seconds = Duration::from_secs;
        depths.add(metrics.queue("n", Some("q")), [(Phase::Ready, 3), (Phase::Leased, 1)], seconds(9));
        depths.add(metrics.queue("n", None), [(Phase::Pending, 2)], seconds(0));
        metrics.depths(depths);
        let shown = lines(&metrics, "spillway_queue_items");
        assert_eq!(shown.len(), 2 * Phase::ALL.len(), "{shown:?}");
        assert!(shown.contains(&r#"spillway_queue_items{namespace="n",queue="q",phase="Ready"} 3"#.to_owned()), "{shown:?}");
        assert!(shown.contains(&r#"spillway_queue_items{namespace="n",queue="q",phase="Blocked"} 0"#.to_owned()), "{shown:?}");
        assert!(
            shown.contains(&format!("spillway_queue_items{{namespace=\"n\",queue=\"{NO_OBJECT_LABEL}\",phase=\"Pending\"}} 2")),
            "{shown:?}"
        );
        assert!(
            lines(&metrics, "spillway_queue_oldest")
                .contains(&r#"spillway_queue_oldest_ready_seconds{namespace="n",queue="q"} 9"#.to_owned())
        );
        let mut depths = Depths::default();
        depths.add(metrics.queue("n", Some("q")), [], seconds(0));
        metrics.depths(depths);
        assert_eq!(lines(&metrics, "spillway_queue_items").len(), Phase::ALL.len());
    }

    #[test]
    fn queues_beyond_the_bound_share_series_and_add_up_there() {
        let metrics = Metrics::default();
        let mut depths = Depths::default();
        for namespace in 0..QUEUE_SERIES_BOUNDS.namespaces + 50 {
            for queue in 0..QUEUE_SERIES_BOUNDS.of_one + 5 {
                let series = metrics.queue(&format!("n{namespace}"), Some(&format!("q{queue}")));
                metrics.happened(&series, ItemEvent::Arrived);
                depths.add(series, [(Phase::Ready, 1)], Duration::from_secs(u64::try_from(namespace).expect("a number")));
            }
        }
        metrics.depths(depths);
        let most = QUEUE_SERIES_BOUNDS.all + QUEUE_SERIES_BOUNDS.namespaces + 1;
        assert!(lines(&metrics, "spillway_queue_arrivals_total").len() <= most);
        assert!(lines(&metrics, "spillway_queue_items").len() <= most * Phase::ALL.len());
        let beyond = format!("namespace=\"{OTHER_LABEL}\",queue=\"{OTHER_LABEL}\"");
        let count = 50 * (QUEUE_SERIES_BOUNDS.of_one + 5);
        assert_eq!(
            lines(&metrics, &format!("spillway_queue_items{{{beyond},phase=\"Ready\"")),
            [format!("spillway_queue_items{{{beyond},phase=\"Ready\"}} {count}")]
        );
        assert_eq!(
            lines(&metrics, &format!("spillway_queue_oldest_ready_seconds{{{beyond}")),
            [format!("spillway_queue_oldest_ready_seconds{{{beyond}}} {}", QUEUE_SERIES_BOUNDS.namespaces + 49)],
            "the oldest of all"
        );
        let fifth = format!("namespace=\"n0\",queue=\"{OTHER_LABEL}\"");
        assert_eq!(
            lines(&metrics, &format!("spillway_queue_arrivals_total{{{fifth}")),
            [format!("spillway_queue_arrivals_total{{{fifth}}} 5")],
            "of one namespace"
        );
        // The series of a removed namespace are free for another one.
        metrics.work_gone("n0");
        assert_eq!(metrics.queue("late", Some("q")), Series { namespace: "late".into(), name: "q".into() });
        assert_eq!(lines(&metrics, "spillway_queue_arrivals_total{namespace=\"n0\""), Vec::<String>::new());
    }
}
