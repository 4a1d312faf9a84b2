//! Follows items to their end and prints one line for each observed change. Only reads.

use std::time::Duration;

use kube::ResourceExt as _;
use tokio::time::Instant;

use super::life;
use crate::api::{GROUP, WorkItem};
use crate::connect::Cluster;
use crate::console::{Console, Output};
use crate::error::Error;
use crate::policy::work::Phase;
use crate::table::{printable, printable_line};
use crate::wait::{self, Check};

/// Up to this number, items are read one by one. More items are listed, and less often.
const MAX_SINGLE_READS: usize = 4;
/// The interval between two lists of many items.
const LIST_INTERVAL: Duration = Duration::from_secs(2);
/// The most items that a timeout message names.
const MAX_NAMED_ITEMS: usize = 5;

/// Where the changes are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announcement {
    /// On standard output.
    Stdout,
    /// On standard error, because standard output has another use.
    Stderr,
    /// On standard error, without the results: these go to standard output later.
    StderrWithoutResults,
}

/// An item that is still followed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Followed {
    name: String,
    uid: String,
    /// The state that was printed last.
    last_printed: String,
}

/// Follows items until all have ended, at most `timeout`, or until `stop`. The console gets a failure for each item that ended
/// without success.
pub async fn run(
    cluster: &Cluster,
    items: &[WorkItem],
    timeout: Option<Duration>,
    telling: Announcement,
    console: &mut dyn Console,
    stop: impl Future<Output = ()>,
) -> Result<(), Error> {
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    let mut left: Vec<Followed> = items
        .iter()
        .map(|item| Followed { name: item.name_any(), uid: item.uid().unwrap_or_default(), last_printed: String::new() })
        .collect();
    let queue = items.first().and_then(|item| item.spec.queue_ref.as_ref());
    let queue = queue.filter(|queue| items.iter().all(|item| item.spec.queue_ref.as_ref() == Some(queue)));
    let queue = queue.map(|queue| format!("spec.queueRef.name={}", queue.name));
    let pause = if left.len() > MAX_SINGLE_READS { LIST_INTERVAL } else { wait::WAIT_POLL_INTERVAL };
    let mut heard = true;
    let all = wait::until(deadline, pause, async || {
        let mut output = Output::default();
        let seen = match read_items(cluster, &left, queue.as_deref()).await {
            // Work may take hours, so a short outage of the API server must not end the wait.
            Err(error @ Error::Unanswered(_)) => {
                if std::mem::take(&mut heard) {
                    output.note(format!("note: {error}; still waiting"));
                    console.show(output);
                }
                return Ok(Check::NotYet(unfinished_text(&left)));
            }
            seen => seen?,
        };
        heard = true;
        left.retain_mut(|followed| {
            let found = seen.iter().find(|item| item.uid().as_deref() == Some(&followed.uid));
            !print_change(followed, found, telling, &mut output)
        });
        console.show(output);
        Ok(if left.is_empty() { Check::Done(()) } else { Check::NotYet(unfinished_text(&left)) })
    });
    let waited = tokio::select! {
        waited = all => Some(waited?),
        () = stop => None,
    };
    match waited {
        Some(wait::Waited::Done(())) => Ok(()),
        Some(wait::Waited::TimedOut(words)) => Err(Error::Usage(format!("these items have not ended in time: {words}"))),
        None => Err(Error::Usage(format!(
            "the wait was interrupted; the work continues: `kubectl spillway cancel ITEM -n {}` cancels an item",
            cluster.namespace
        ))),
    }
}

async fn read_items(cluster: &Cluster, left: &[Followed], queue: Option<&str>) -> Result<Vec<WorkItem>, Error> {
    if left.len() > MAX_SINGLE_READS {
        return Ok(super::items(cluster, queue).await?.objects);
    }
    let mut seen = Vec::new();
    for Followed { name, .. } in left {
        seen.extend(cluster.api::<WorkItem>().get_opt(name).await.map_err(Error::of::<WorkItem>(&cluster.namespace, name))?);
    }
    Ok(seen)
}

/// Prints the change of an item. Returns whether the item is finished.
fn print_change(followed: &mut Followed, item: Option<&WorkItem>, telling: Announcement, output: &mut Output) -> bool {
    let name = &followed.name;
    let Some(item) = item else {
        output.failure(format!("item \"{name}\" was deleted during the wait"));
        return true;
    };
    let phase = life::phase(item);
    let now = match life::agent_of(item) {
        Some(agent) if phase == Phase::Leased => format!("Leased by {agent}{}", attempt(item)),
        _ => life::state(item),
    };
    if phase.ended() && phase != Phase::Succeeded {
        let last = life::failure_text(item).filter(|_| life::message(item).is_none()).map(|words| format!(": {words}")).unwrap_or_default();
        output.failure(format!("item \"{name}\" has not succeeded: {}", printable(&format!("{now}{last}"))));
        return true;
    }
    if now != followed.last_printed {
        let mut lines = vec![format!("workitem.{GROUP}/{name} {}", printable(&now))];
        let result = item.status.as_ref().and_then(|status| status.result.as_deref());
        let result = result.filter(|_| phase.ended() && telling != Announcement::StderrWithoutResults);
        lines.extend(result.into_iter().flat_map(str::lines).map(|line| format!("  {}", printable_line(line))));
        lines.iter().for_each(|line| match telling {
            Announcement::Stdout => output.line(line),
            Announcement::Stderr | Announcement::StderrWithoutResults => output.note(line),
        });
        followed.last_printed = now;
    }
    phase.ended()
}

/// The number of the attempt, from the second one on.
fn attempt(item: &WorkItem) -> String {
    let attempts = item.status.as_ref().and_then(|status| status.attempts).filter(|attempts| *attempts > 1);
    attempts.map(|attempts| format!(" (attempt {attempts})")).unwrap_or_default()
}

fn unfinished_text(left: &[Followed]) -> String {
    let named: Vec<String> = left.iter().take(MAX_NAMED_ITEMS).map(|one| format!("{} ({})", one.name, one.last_printed)).collect();
    let more = if left.len() > MAX_NAMED_ITEMS { format!(" and {} more", left.len() - MAX_NAMED_ITEMS) } else { String::new() };
    printable(&format!("{}{more}", named.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn item(status: Value) -> WorkItem {
        serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "WorkItem", "metadata": {"name": "i", "uid": "u"},
            "spec": {"queueRef": {"name": "q"}}, "status": status}))
        .expect("a WorkItem")
    }

    #[test]
    fn each_change_is_told_once_and_the_end_with_its_result() {
        let mut followed = Followed { name: "i".into(), uid: "u".into(), last_printed: String::new() };
        let mut told = |status: Value| {
            let mut output = Output::default();
            let over = print_change(&mut followed, Some(&item(status)), Announcement::Stdout, &mut output);
            (over, output.failed, output.out + &output.err)
        };
        let leased = json!({"phase": "Leased", "attempts": 2, "lease": {"holder": "p", "agent": "a-1", "leaseTransitions": 2}});
        assert_eq!(told(json!({})), (false, false, "workitem.spillway.dev/i Pending: the operator has not observed it yet\n".into()));
        assert_eq!(told(leased.clone()), (false, false, "workitem.spillway.dev/i Leased by a-1 (attempt 2)\n".into()));
        assert_eq!(told(leased), (false, false, String::new()));
        let done = json!({"phase": "Succeeded", "result": "two\nli\u{1b}[2Jnes"});
        assert_eq!(told(done), (true, false, "workitem.spillway.dev/i Succeeded\n  two\n  li\u{fffd}[2Jnes\n".into()));
        let mut dead = json!({"phase": "DeadLettered", "reason": "TooManyFailures"});
        assert_eq!(told(dead.clone()), (true, true, "error: item \"i\" has not succeeded: DeadLettered, TooManyFailures\n".into()));
        dead["attemptHistory"] = json!([{"epoch": 1, "agent": "a-1", "startTime": "2026-01-01T00:00:00Z", "endTime": "2026-01-01T00:00:00Z", "verb": "Fail", "message": "it does\nnot build"}]);
        let words = "error: item \"i\" has not succeeded: DeadLettered, TooManyFailures: it does not build\n";
        assert_eq!(told(dead), (true, true, words.into()));
    }

    #[test]
    fn where_time_is_up_five_are_named() {
        let left: Vec<Followed> =
            (0..7).map(|number| Followed { name: format!("i-{number}"), uid: String::new(), last_printed: "Ready".into() }).collect();
        assert_eq!(unfinished_text(&left), "i-0 (Ready), i-1 (Ready), i-2 (Ready), i-3 (Ready), i-4 (Ready) and 2 more");
    }
}
