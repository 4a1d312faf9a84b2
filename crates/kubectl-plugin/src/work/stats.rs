//! `queue --stats`: rates and times of a queue's items, from the times in the items themselves. Pure.
//!
//! kubectl cannot reach the operator's metrics. An item has these times: its creation, when it was first ready and first claimed,
//! its last attempts, and its end. So the numbers do not contain deleted items, nor attempts before the last five of an item.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;

use crate::api::{WorkItem, WorkQueue};
use crate::console::Output;
use crate::policy::work::item::{Phase, Record, Verb};
use crate::policy::work::{Policy, UnixMillis};
use crate::table::{age, indented, pairs, table};
use spillway_conversion::work as convert;

/// The percentiles that are shown.
const SHOWN_PERCENTILES: [u64; 3] = [50, 95, 99];

/// A queue's rates and times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The time before now that the numbers cover.
    pub window: Duration,
    /// Items that were created.
    pub arrived: u64,
    /// Claims by agents.
    pub claimed: u64,
    /// Items that ended, by how.
    pub ended: BTreeMap<&'static str, u64>,
    /// Attempts that ended, by how.
    pub attempts: BTreeMap<&'static str, u64>,
    /// From the first time that an item was ready to its first claim, for claimed items; sorted.
    pub waits: Vec<Duration>,
    /// From a claim to the end of the attempt, for attempts that ended; sorted.
    pub runs: Vec<Duration>,
    /// How long items except dead letters are kept after their end.
    pub retention: Duration,
    /// The most finished items that are kept, and whether that number is reached.
    pub most_finished: (u64, bool),
}

impl Stats {
    /// The numbers of a queue. `items` are all items of the queue.
    pub fn of<'a>(queue: &WorkQueue, items: impl IntoIterator<Item = &'a WorkItem>, within: Duration, now: Timestamp) -> Self {
        let settings = convert::queue(queue);
        let Policy { ttl, .. } = settings.policy;
        let mut stats = Self {
            namespace: queue.namespace().unwrap_or_default(),
            name: queue.name_any(),
            window: within,
            arrived: 0,
            claimed: 0,
            ended: BTreeMap::new(),
            attempts: BTreeMap::new(),
            waits: Vec::new(),
            runs: Vec::new(),
            retention: ttl,
            most_finished: (settings.max_finished, false),
        };
        let since = UnixMillis(now.as_millisecond().saturating_sub(i64::try_from(within.as_millis()).unwrap_or(i64::MAX)));
        let mut finished = 0;
        for item in items {
            let record = convert::record(item);
            // Dead letters have a limit of their own.
            finished += u64::from(record.phase.ended() && record.phase != Phase::DeadLettered);
            stats.add(item, record, since);
        }
        stats.most_finished.1 = finished >= settings.max_finished;
        stats.waits.sort_unstable();
        stats.runs.sort_unstable();
        stats
    }

    fn add(&mut self, item: &WorkItem, record: Record, since: UnixMillis) {
        let entry = convert::entry(item);
        self.arrived += u64::from(entry.spec.created >= since);
        let Record { history, holder, started, completed, phase, .. } = record;
        let claims = history.iter().map(|attempt| attempt.start).chain(holder.map(|holder| holder.since));
        self.claimed += count(claims.filter(|start| *start >= since).count());
        for attempt in history.iter().filter(|attempt| attempt.end >= since) {
            *self.attempts.entry(attempt.verb.name()).or_default() += 1;
            self.runs.push(attempt.end.since(attempt.start));
        }
        // After a redrive the wait is measured again from the start.
        if let Some((started, ready)) = started.zip(entry.first_ready).filter(|(started, ready)| *started >= since && started >= ready) {
            self.waits.push(started.since(ready));
        }
        if completed.is_some_and(|completed| completed >= since) && phase.ended() {
            *self.ended.entry(phase.name()).or_default() += 1;
        }
    }

    /// A count as a rate an hour.
    fn rate(&self, count: u64) -> String {
        let hours = self.window.as_secs_f64() / 3600.0;
        let rate = f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / hours.max(f64::MIN_POSITIVE);
        if rate == 0.0 || rate >= 10.0 { format!("{rate:.0}/h") } else { format!("{rate:.1}/h") }
    }

    fn ended_count(&self) -> u64 {
        self.ended.values().sum()
    }

    /// Attempts that ended in one of these ways.
    fn attempts(&self, verbs: &[Verb]) -> u64 {
        verbs.iter().filter_map(|verb| self.attempts.get(verb.name())).sum()
    }

    /// A note if ended items may be missing, because the queue keeps them for a shorter time or keeps too few.
    fn missing_items_note(&self) -> Option<String> {
        let (most, reached) = self.most_finished;
        if self.retention < self.window {
            let kept = duration_text(self.retention);
            Some(format!(
                "note: queue {} keeps items for only {kept} after their end (ttlSecondsAfterFinished), so items that ended earlier are not counted",
                self.name
            ))
        } else if reached {
            Some(format!(
                "note: queue {} keeps at most {most} finished items (maxFinished) and has reached that number, so items that ended earlier are not counted",
                self.name
            ))
        } else {
            None
        }
    }
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// The value that `percent` percent of the sorted values do not exceed.
fn percentile(sorted: &[Duration], percent: u64) -> Option<Duration> {
    let rank = count(sorted.len()).saturating_mul(percent).div_ceil(100).max(1);
    sorted.get(usize::try_from(rank - 1).unwrap_or(usize::MAX)).copied()
}

/// A duration in its two largest units, as for ages.
fn duration_text(time: Duration) -> String {
    let from = Timestamp::UNIX_EPOCH;
    let to = SignedDuration::try_from(time).ok().and_then(|time| from.checked_add(time).ok());
    age(Some(from), to.unwrap_or(Timestamp::MAX))
}

fn percentile_texts(sorted: &[Duration]) -> Vec<String> {
    SHOWN_PERCENTILES.iter().map(|percent| percentile(sorted, *percent).map_or_else(String::new, duration_text)).collect()
}

/// Several queues as a table.
pub fn render_all(all: &[Stats], with_namespace: bool, output: &mut Output) {
    let mut header =
        vec!["NAME", "ARRIVED", "CLAIMED", "ENDED", "FAILED", "LOST", "DEAD", "WAIT50", "WAIT95", "WAIT99", "RUN50", "RUN95", "RUN99"];
    if with_namespace {
        header.insert(0, "NAMESPACE");
    }
    let row = |stats: &Stats| {
        let mut row: Vec<String> = with_namespace.then(|| stats.namespace.clone()).into_iter().collect();
        row.push(stats.name.clone());
        row.extend([stats.arrived, stats.claimed, stats.ended_count()].map(|count| stats.rate(count)));
        row.push(stats.attempts(&[Verb::Fail]).to_string());
        row.push(stats.attempts(&[Verb::LeaseExpired, Verb::Stalled]).to_string());
        row.push(stats.ended.get(Phase::DeadLettered.name()).copied().unwrap_or(0).to_string());
        row.extend(percentile_texts(&stats.waits).into_iter().chain(percentile_texts(&stats.runs)));
        row
    };
    output.out = table(&header, all.iter().map(row).collect());
    all.iter().filter_map(Stats::missing_items_note).for_each(|words| output.note(words));
}

/// One queue in detail.
pub fn render_one(stats: &Stats, output: &mut Output) {
    output.line(format!("WorkQueue {} in namespace {}, the last {}", stats.name, stats.namespace, duration_text(stats.window)));
    let by = |all: &BTreeMap<&'static str, u64>| {
        let words: Vec<String> = all.iter().map(|(what, count)| format!("{count} {what}")).collect();
        if words.is_empty() { String::new() } else { format!(": {}", words.join(", ")) }
    };
    let rate = |count: u64| format!("{count}, {}", stats.rate(count));
    output.line("\nItems");
    output.out.push_str(&pairs(&[
        ("Arrived", rate(stats.arrived)),
        ("Claimed", rate(stats.claimed)),
        ("Ended", format!("{}{}", rate(stats.ended_count()), by(&stats.ended))),
        ("Attempts that ended", format!("{}{}", rate(stats.attempts.values().sum()), by(&stats.attempts))),
    ]));
    output.line("\nTimes");
    let row = |name: &str, sorted: &[Duration]| {
        let mut row = vec![name.to_owned()];
        row.extend(percentile_texts(sorted));
        row.push(sorted.last().map_or_else(String::new, |longest| duration_text(*longest)));
        row.push(sorted.len().to_string());
        row
    };
    let rows = vec![row("from ready to the first claim", &stats.waits), row("of an attempt", &stats.runs)];
    output.out.push_str(&indented(&["", "P50", "P95", "P99", "LONGEST", "OF"], rows));
    stats.missing_items_note().into_iter().for_each(|words| output.note(words));
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn queue(limits: &Value, defaults: &Value) -> WorkQueue {
        serde_json::from_value(
            json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkQueue", "metadata": {"name": "q", "namespace": "n"},
            "spec": {"limits": limits, "itemDefaults": defaults}}),
        )
        .expect("a WorkQueue")
    }

    fn item(created: &str, status: &Value) -> WorkItem {
        serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkItem",
            "metadata": {"name": "i", "creationTimestamp": format!("2026-01-01T{created}Z")}, "spec": {"queueRef": {"name": "q"}}, "status": status}))
        .expect("a WorkItem")
    }

    fn time(time: &str) -> String {
        format!("2026-01-01T{time}Z")
    }

    fn attempt(epoch: i64, verb: &str, start: &str, end: &str) -> Value {
        json!({"epoch": epoch, "agent": "a", "verb": verb, "startTime": time(start), "endTime": time(end)})
    }

    fn items() -> Vec<WorkItem> {
        let done = |ready: &str, start: &str, end: &str| {
            let history = json!([attempt(1, "Complete", start, end)]);
            json!({"phase": "Succeeded", "readyTime": time(ready), "startTime": time(start), "completionTime": time(end), "attemptHistory": history,
                "lease": {"leaseTransitions": 1}})
        };
        let dead = json!({"phase": "DeadLettered", "readyTime": time("11:00:00"), "startTime": time("11:10:00"), "completionTime": time("11:40:00"),
            "attemptHistory": [attempt(1, "Fail", "11:10:00", "11:20:00"), attempt(2, "LeaseExpired", "11:25:00", "11:40:00")], "lease": {"leaseTransitions": 2}});
        let held = json!({"phase": "Leased", "readyTime": time("11:50:00"), "startTime": time("11:50:30"),
            "lease": {"holder": "p", "agent": "a", "leaseTransitions": 1, "acquireTime": time("11:50:30")}});
        vec![
            item("10:00:00", &done("10:00:00", "10:01:00", "10:02:00")), // before
            item("10:59:00", &done("10:59:00", "11:30:00", "11:31:00")),
            item("11:30:00", &done("11:30:00", "11:30:05", "11:30:15")),
            item("11:00:00", &dead),
            item("11:50:00", &held),
            item("11:55:00", &json!({"phase": "Ready", "readyTime": time("11:55:00")})),
            item("11:59:00", &json!({})),
        ]
    }

    fn now() -> Timestamp {
        time("12:00:00").parse().expect("a time")
    }

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn what_happened_in_the_time_is_counted_from_the_items_own_times() {
        let stats = Stats::of(&queue(&json!({}), &json!({})), &items(), HOUR, now());
        assert_eq!((stats.arrived, stats.claimed), (5, 5), "one that came before was claimed in the time");
        assert_eq!(stats.ended, BTreeMap::from([("DeadLettered", 1), ("Succeeded", 2)]));
        assert_eq!(stats.attempts, BTreeMap::from([("Complete", 2), ("Fail", 1), ("LeaseExpired", 1)]));
        let seconds = |all: &[u64]| all.iter().map(|seconds| Duration::from_secs(*seconds)).collect::<Vec<_>>();
        assert_eq!(stats.waits, seconds(&[5, 30, 600, 1860]));
        assert_eq!(stats.runs, seconds(&[10, 60, 600, 900]));
        let all = Stats::of(&queue(&json!({}), &json!({})), &items(), 3 * HOUR, now());
        assert_eq!((all.arrived, all.ended_count(), all.waits.len()), (7, 4, 5));
    }

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let all: Vec<Duration> = (1..=200).map(Duration::from_secs).collect();
        let of = |sorted: &[Duration]| SHOWN_PERCENTILES.map(|percent| percentile(sorted, percent).map_or(0, |time| time.as_secs()));
        assert_eq!(of(&all), [100, 190, 198]);
        assert_eq!(of(&all[..1]), [1, 1, 1]);
        assert_eq!(of(&all[..2]), [1, 2, 2]);
        assert_eq!(of(&[]), [0, 0, 0]);
    }

    #[test]
    fn one_queue_is_told_in_detail_and_several_in_a_table() {
        let stats = Stats::of(&queue(&json!({}), &json!({})), &items(), HOUR, now());
        let mut output = Output::default();
        render_one(&stats, &mut output);
        assert_eq!(
            output.out,
            "WorkQueue q in namespace n, the last 60m\n\n\
             Items\n\
             \x20 Arrived              5, 5.0/h\n\
             \x20 Claimed              5, 5.0/h\n\
             \x20 Ended                3, 3.0/h: 1 DeadLettered, 2 Succeeded\n\
             \x20 Attempts that ended  4, 4.0/h: 2 Complete, 1 Fail, 1 LeaseExpired\n\n\
             Times\n\
             \x20                                 P50   P95   P99   LONGEST   OF\n\
             \x20 from ready to the first claim   30s   31m   31m   31m       4\n\
             \x20 of an attempt                   60s   15m   15m   15m       4\n"
        );
        assert_eq!(output.err, "");
        let mut output = Output::default();
        let empty = Stats::of(&queue(&json!({}), &json!({})), &[], HOUR, now());
        render_all(&[stats, Stats { name: "empty".into(), ..empty }], true, &mut output);
        assert_eq!(
            output.out,
            "NAMESPACE   NAME    ARRIVED   CLAIMED   ENDED   FAILED   LOST   DEAD   WAIT50   WAIT95   WAIT99   RUN50   RUN95   RUN99\n\
             n           q       5.0/h     5.0/h     3.0/h   1        1      1      30s      31m      31m      60s     15m     15m\n\
             n           empty   0/h       0/h       0/h     0        0      0      -        -        -        -       -       -\n"
        );
    }

    #[test]
    fn what_cannot_be_known_is_said() {
        let gaps =
            |limits: Value, defaults: Value, within| Stats::of(&queue(&limits, &defaults), &items(), within, now()).missing_items_note();
        assert_eq!(gaps(json!({}), json!({}), HOUR), None);
        let late = gaps(json!({}), json!({}), 2 * HOUR).expect("words");
        assert!(late.contains("keeps items for only 60m after their end (ttlSecondsAfterFinished)"), "{late}");
        assert_eq!(gaps(json!({}), json!({"ttlSecondsAfterFinished": 7200}), 2 * HOUR), None);
        let full = gaps(json!({"maxFinished": 3}), json!({}), HOUR).expect("words");
        assert!(full.contains("keeps at most 3 finished items (maxFinished) and has reached that number"), "{full}");
        assert_eq!(gaps(json!({"maxFinished": 4}), json!({}), HOUR), None, "the dead letter is none of them");
    }
}
