//! The last answers about leases: grants of items, and accepted ends. After a rollback of the API server's store this
//! gateway replays them to the new leader, which has lost them.
//!
//! The history is in memory only. What always holds: it is bounded, and it is sent only to a leader whose store was
//! rolled back.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use serde::Deserialize;

use super::governor::Governor;
use crate::cluster::clock::BootTime;
use crate::cluster::token::PodIdentity;
use crate::policy::history::History;
use crate::policy::lease::REPLAY_HISTORY_TTL;
use crate::wire::access::Call;
use crate::wire::work::{Complete, Fail, LeaseRef, Outcome, Release, ReplayedLease};
use crate::wire::{Code, body};

/// The most bytes of the history.
const HISTORY_BYTES: usize = 4 * 1024 * 1024;
/// Bytes of one answer without its body.
const ANSWER_BYTES: usize = 256;
/// Concurrent replays.
const CONCURRENT_REPLAYS: usize = 8;
/// Between two tries of one replay.
const REPLAY_RETRY_DELAY: Duration = Duration::from_millis(200);
const REPLAY_PATH: &str = "/governor/v1/work/replay";

/// An answer to an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LeaseAnswer {
    pod: PodIdentity,
    at: Duration,
    lease: ReplayedLease,
}

impl LeaseAnswer {
    /// The replay of this answer at `now`.
    fn replayed(&self, now: Duration) -> ReplayedLease {
        let age_ms = u64::try_from(now.saturating_sub(self.at).as_millis()).unwrap_or(u64::MAX);
        ReplayedLease { age_ms, ..self.lease.clone() }
    }
}

/// The answers of the last minutes. Cheap to clone.
#[derive(Clone)]
pub struct LeaseHistory(Arc<Mutex<History<LeaseAnswer>>>);

impl Default for LeaseHistory {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(History::new(REPLAY_HISTORY_TTL, HISTORY_BYTES))))
    }
}

/// The part of an assignment that is kept.
#[derive(Deserialize)]
struct Assigned {
    held: LeaseRef,
}

/// The epoch and the outcome in the body of a call that ends a lease.
fn outcome(call: Call, body: &[u8]) -> Option<(i64, Outcome)> {
    if call == Call::Complete {
        let Complete { epoch, result, changeset } = body::read(body).ok()?;
        return Some((epoch, Outcome::Complete { result, changeset }));
    }
    if call == Call::Fail {
        let Fail { epoch, reason, message, exit_code } = body::read(body).ok()?;
        return Some((epoch, Outcome::Fail { reason, message, exit_code }));
    }
    if call == Call::Release {
        let Release { epoch, reason, message } = body::read(body).ok()?;
        return Some((epoch, Outcome::Release { reason, message }));
    }
    None
}

fn now() -> Duration {
    BootTime::now().since(BootTime::default())
}

impl LeaseHistory {
    /// Records that an item was granted to the agent with this pod. `answer` is the assignment.
    pub fn record_claim(&self, pod: &PodIdentity, answer: &[u8]) {
        if let Ok(Assigned { held }) = serde_json::from_slice(answer) {
            self.push(now(), pod, ReplayedLease { held, outcome: None, age_ms: 0 }, 0);
        }
    }

    /// Records that a call about the item with this uid was accepted, if the call ends a lease.
    pub fn record_end(&self, pod: &PodIdentity, call: Call, uid: &str, body: &[u8]) {
        if let Some((epoch, outcome)) = outcome(call, body) {
            let lease = ReplayedLease { held: LeaseRef { uid: uid.to_owned(), epoch }, outcome: Some(outcome), age_ms: 0 };
            self.push(now(), pod, lease, body.len());
        }
    }

    fn push(&self, now: Duration, pod: &PodIdentity, lease: ReplayedLease, body_bytes: usize) {
        let mut history = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        history.expire(now);
        let answer = LeaseAnswer { pod: pod.clone(), at: now, lease };
        history.push(now, &pod.namespace, body_bytes + ANSWER_BYTES + pod.name.len(), answer);
    }

    /// The answers to replay, in order. The grant of a lease that has ended is left out.
    fn to_replay(&self, now: Duration) -> Vec<LeaseAnswer> {
        let mut history = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        history.expire(now);
        let all = history.all();
        let lease = |answer: &LeaseAnswer| (answer.pod.uid.clone(), answer.lease.held.clone());
        let ended: HashSet<_> = all.iter().copied().filter(|answer| answer.lease.outcome.is_some()).map(lease).collect();
        let kept = all.into_iter().filter(|answer| answer.lease.outcome.is_some() || !ended.contains(&lease(answer)));
        kept.cloned().collect()
    }

    /// Replays the history to each leader whose store was rolled back. Never returns.
    pub async fn run(self, governor: Governor) {
        let mut connections = governor.connections();
        loop {
            let connection = *connections.borrow_and_update();
            if connection.is_some() && governor.store_rolled_back() {
                let answers = self.to_replay(now());
                tracing::warn!(answers = answers.len(), "the leader's store was rolled back: answers about leases are replayed");
                let replays =
                    futures::stream::iter(answers).for_each_concurrent(CONCURRENT_REPLAYS, |answer| replay(&governor, connection, answer));
                tokio::select! {
                    () = replays => {}
                    changed = connections.changed() => {
                        if changed.is_err() {
                            return;
                        }
                        continue;
                    }
                }
            }
            if connections.changed().await.is_err() {
                return;
            }
        }
    }
}

/// Replays one answer until it is accepted or refused for good, or the connection to this leader ends.
async fn replay(governor: &Governor, connection: Option<u64>, answer: LeaseAnswer) {
    loop {
        match governor.call_json::<_, serde_json::Value>(REPLAY_PATH, Some(&answer.pod), &answer.replayed(now())).await {
            Ok(_) => return,
            Err(refusal) if matches!(refusal.code, Code::GovernorAway | Code::TooManyCalls) => {
                if *governor.connections().borrow() != connection {
                    return;
                }
                tokio::time::sleep(REPLAY_RETRY_DELAY).await;
            }
            Err(refusal) => {
                let LeaseRef { uid, epoch } = &answer.lease.held;
                tracing::warn!(%refusal, item = uid, epoch, "the governor refused a replayed answer about a lease");
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(namespace: &str, uid: &str) -> PodIdentity {
        PodIdentity { namespace: namespace.into(), name: "agent".into(), uid: uid.into(), external: None }
    }

    fn complete(history: &LeaseHistory, pod: &PodIdentity, uid: &str, epoch: i64) {
        history.record_end(pod, Call::Complete, uid, json!({"epoch": epoch, "result": "r"}).to_string().as_bytes());
    }

    #[test]
    fn the_last_answer_about_each_lease_is_replayed() {
        let (history, one, other) = (LeaseHistory::default(), pod("n", "p"), pod("n", "q"));
        let assignment = |uid: &str| json!({"held": {"uid": uid, "epoch": 1}, "name": "x", "queue": "q", "payload": "p"}).to_string();
        history.record_claim(&one, assignment("a").as_bytes());
        complete(&history, &one, "a", 1);
        history.record_claim(&one, assignment("b").as_bytes());
        history.record_claim(&other, assignment("a").as_bytes());
        history.record_end(&other, Call::Release, "a", json!({"epoch": 2, "reason": "Drained"}).to_string().as_bytes());
        history.record_end(&other, Call::Advance, "a", json!({"epoch": 2}).to_string().as_bytes());
        let answers = history.to_replay(now()).into_iter();
        let answers: Vec<_> = answers.map(|answer| (answer.pod.uid, answer.lease.held.uid, answer.lease.outcome)).collect();
        let expected = [
            ("p".to_owned(), "a".to_owned(), Some(Outcome::Complete { result: Some("r".into()), changeset: None })),
            ("p".to_owned(), "b".to_owned(), None),
            ("q".to_owned(), "a".to_owned(), None),
            ("q".to_owned(), "a".to_owned(), Some(Outcome::Release { reason: "Drained".into(), message: String::new() })),
        ];
        assert_eq!(answers, expected);
        let first = history.to_replay(now()).remove(0);
        assert_eq!(first.replayed(first.at + REPLAY_RETRY_DELAY).age_ms, 200, "the leader is told how old it is");
        assert!(history.to_replay(now() + 2 * REPLAY_HISTORY_TTL).is_empty());
    }

    #[test]
    fn a_flood_of_one_namespace_is_bounded_and_displaces_no_other() {
        let history = LeaseHistory::default();
        complete(&history, &pod("quiet", "p"), "a", 1);
        for epoch in 0..20_000 {
            complete(&history, &pod("loud", "q"), "b", epoch);
        }
        let answers = history.to_replay(now());
        assert_eq!(answers[0].pod.namespace, "quiet");
        assert!(answers.len() <= HISTORY_BYTES / ANSWER_BYTES, "{}", answers.len());
    }
}
