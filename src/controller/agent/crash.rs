//! Signals that follow from the end of an agent's pod: it was killed for its memory (`OOMKilled`), or it is one of
//! several agents of its pool that recently ended by themselves soon after their start (`CrashLoop`).

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod as PodObject;

use super::status;
use crate::api::agent_pool::PoolMode;
use crate::api::{Agent, AgentPoolSpec};
use crate::cluster::ObjectKey;
use crate::controller::Context;
use crate::controller::agent_pool::crashed_ago;
use crate::governor::live::View;
use crate::policy::agent::{Pod, PodObservation, Stage};
use crate::policy::health::Finding;
use crate::policy::interventions::{RaisedSignal, Signal};
use crate::policy::pool::{CRASH_LOOP_THRESHOLD, MIN_HEALTHY_LIFETIME};

/// The signals of a pod that ended, or that does not start its program in time. `asked`: it was asked to end, so its
/// end is no crash. `spec`: that of its pool, if the pool exists and is readable.
pub fn pod_end_signals(
    agent: &Agent,
    fact: &Pod,
    pod: Option<&PodObject>,
    asked: bool,
    view: Option<&View>,
    spec: Option<&AgentPoolSpec>,
    context: &Context,
) -> Vec<RaisedSignal> {
    let Pod::Ours(PodObservation { stage, deleting: false, .. }) = fact else { return Vec::new() };
    let failure = match stage {
        Stage::Failed(words) => Some(words.as_str()),
        Stage::Pending(_) | Stage::Running { .. } | Stage::Succeeded => None,
    };
    let killed = failure.filter(|words| words.contains("OOMKilled"));
    let killed = killed.map(|words| RaisedSignal { signal: Signal::OomKilled, message: words.to_owned(), ago: vec![Duration::ZERO] });
    let mode = spec.map(|spec| spec.mode).unwrap_or_default();
    let crash = if asked { None } else { crash_message(stage, program_lifetime(agent, pod), view, mode) };
    let in_a_row = crash.filter(|_| spec.is_some()).and_then(|words| crash_loop_signal(agent, mode, &words, context));
    in_a_row.into_iter().chain(killed).collect()
}

/// Whether the agent was asked to end: it is being deleted, was given up, said goodbye, or hibernates.
pub fn was_asked(agent: &Agent, sleeps: bool) -> bool {
    let status = agent.status.as_ref();
    let leaves = status.is_some_and(|status| super::is_given_up(status) || status.goodbye.is_some());
    agent.metadata.deletion_timestamp.is_some() || sleeps || leaves
}

/// How long its program ran; none: the kubelet reports no start.
fn program_lifetime(agent: &Agent, pod: Option<&PodObject>) -> Option<Duration> {
    let stored = || agent.status.as_ref().and_then(|status| status.start_time.clone());
    let started = pod.and_then(status::started_at).or_else(stored)?;
    Duration::try_from(jiff::Timestamp::now().duration_since(started.0)).ok()
}

/// How it crashed, if it did: it ended by itself soon after its start, or did not start in time.
fn crash_message(stage: &Stage, life: Option<Duration>, view: Option<&View>, mode: PoolMode) -> Option<String> {
    let soon = life.is_none_or(|life| life < MIN_HEALTHY_LIFETIME);
    match stage {
        Stage::Failed(words) if soon => Some(words.clone()),
        // A person who leaves the terminal ends the program.
        Stage::Succeeded if soon && mode != PoolMode::Chat => Some("the program ended with exit code 0".to_owned()),
        Stage::Pending(_) | Stage::Running { .. } => {
            let overdue = view.is_some_and(|view| matches!(view.finding, Finding::StartOverdue(_)));
            overdue.then(|| "the program was not started in time".to_owned())
        }
        Stage::Failed(_) | Stage::Succeeded => None,
    }
}

/// The signal `CrashLoop`, if enough agents of its pool crashed recently.
fn crash_loop_signal(agent: &Agent, mode: PoolMode, words: &str, context: &Context) -> Option<RaisedSignal> {
    // An agent that was made by hand, or requested by another agent, is not replaced.
    agent.spec.sequence?;
    let (key, now) = (ObjectKey::of(agent), jiff::Timestamp::now());
    let others = context.stores.agents_of(&key.namespace, &agent.spec.pool_ref.name);
    let others = others.iter().filter_map(|other| other.0.as_ref().ok()).filter(|other| ObjectKey::of(*other) != key && other.has_ended());
    let others = others.filter(|other| other.spec.sequence.is_some()).filter_map(|other| crashed_ago(other, mode, now));
    let ago: Vec<Duration> = std::iter::once(Duration::ZERO).chain(others).collect();
    let count = u32::try_from(ago.len()).unwrap_or(u32::MAX);
    let message =
        format!("{count} agents of AgentPool/{} recently ended soon after their start. The last one: {words}", agent.spec.pool_ref.name);
    (count >= CRASH_LOOP_THRESHOLD).then_some(RaisedSignal { signal: Signal::CrashLoop, message, ago })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::controller::fake::{self, Leader};

    const NO_WORK: PoolMode = PoolMode::Perseverance;

    #[test]
    fn a_short_life_that_ended_by_itself_is_a_crash_and_so_is_a_start_that_takes_too_long() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let failed = Stage::Failed("exit code 7".into());
        assert_eq!(crash_message(&failed, seconds(9), None, NO_WORK).as_deref(), Some("exit code 7"));
        assert_eq!(crash_message(&failed, None, None, NO_WORK).as_deref(), Some("exit code 7"), "it never ran");
        assert_eq!(crash_message(&failed, seconds(600), None, NO_WORK), None, "it did its part");
        assert!(crash_message(&Stage::Succeeded, seconds(9), None, NO_WORK).is_some());
        assert_eq!(crash_message(&Stage::Succeeded, seconds(9), None, PoolMode::Chat), None, "a person left");
        let running = Stage::Running { ready: false };
        assert_eq!(crash_message(&running, seconds(9), Some(&View::well()), NO_WORK), None);
        let overdue = View { finding: Finding::StartOverdue(Duration::from_secs(300)), ..View::well() };
        assert!(crash_message(&running, None, Some(&overdue), NO_WORK).is_some());
    }

    #[test]
    fn an_agent_that_was_asked_to_end_has_not_crashed() {
        let agent = |more: serde_json::Value| -> Agent {
            let [mut agent, _] = fake::agent("a", "p");
            agent["metadata"].as_object_mut().expect("metadata").extend(more.as_object().expect("an object").clone());
            serde_json::from_value(agent).expect("an Agent")
        };
        assert!(!was_asked(&agent(json!({})), false));
        assert!(was_asked(&agent(json!({"deletionTimestamp": "2026-01-01T00:00:00Z"})), false));
        assert!(was_asked(&agent(json!({})), true));
    }

    /// A pool with these rules, an agent of it that has just failed, and other agents that failed this many seconds
    /// ago.
    fn crashing(rules: serde_json::Value, others: &[i64], failure: &str) -> Leader {
        let pool = json!({"type": "free", "agent": {"image": "x", "command": ["y"]}, "supervision": {"rules": rules}});
        let [agent, mut pod] = fake::agent("a", "p");
        pod["status"] = json!({"phase": "Failed", "reason": failure});
        let mut objects = vec![fake::object("AgentPool", "p", pool), agent, pod];
        for (at, seconds) in others.iter().enumerate() {
            let [mut other, _] = fake::agent(&format!("b{at}"), "p");
            let stopped = jiff::Timestamp::now() - jiff::SignedDuration::from_secs(*seconds);
            let started = stopped - jiff::SignedDuration::from_secs(5);
            let ready = json!({"type": "Ready", "status": "False", "reason": "PodFailed", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
            other["status"] =
                json!({"phase": "Stopped", "startTime": started.to_string(), "stopTime": stopped.to_string(), "conditions": [ready]});
            objects.push(other);
        }
        Leader::of(&objects)
    }

    /// Signal and action of each intervention in the agent's status.
    async fn told(leader: &Leader) -> Vec<(String, String)> {
        leader.reconcile_agent("a").await;
        let status = leader.status("Agent", "a");
        assert_eq!(status["phase"], "Stopped", "it has ended: {status}");
        let told = status["interventions"].as_array().cloned().unwrap_or_default();
        let word = |told: &serde_json::Value, field: &str| told[field].as_str().unwrap_or_default().to_owned();
        told.iter().map(|told| (word(told, "signal"), word(told, "action"))).collect()
    }

    fn pair(signal: &str, action: &str) -> Vec<(String, String)> {
        vec![(signal.to_owned(), action.to_owned())]
    }

    #[tokio::test]
    async fn agents_that_crash_one_after_another_raise_a_signal() {
        assert_eq!(told(&crashing(json!([]), &[], "Error")).await, [], "once is no loop");
        assert_eq!(told(&crashing(json!([]), &[900], "Error")).await, [], "nor twice in a quarter of an hour");
        let mut leader = crashing(json!([]), &[60], "Error");
        assert_eq!(told(&leader).await, pair("CrashLoop", "Restart"));
        let message = leader.status("Agent", "a")["interventions"][0]["message"].clone();
        assert_eq!(message, "2 agents of AgentPool/p recently ended soon after their start. The last one: Error");
        assert!(leader.events().contains(&("CrashLoop".to_owned(), "Restart".to_owned())), "{:?}", leader.events());
        assert_eq!(leader.take_notices().iter().filter(|(reason, ..)| reason == "CrashLoop").count(), 1, "and webhooks");
        let given_up = leader.status("Agent", "a")["conditions"].as_array().cloned().unwrap_or_default();
        assert!(given_up.iter().all(|condition| condition["type"] != "GivenUp"), "it ended by itself: {given_up:?}");
        let alone = crashing(json!([]), &[], "container agent ended with exit code 137 (OOMKilled)");
        assert_eq!(told(&alone).await, pair("OOMKilled", "Restart"));
        let killed = crashing(json!([]), &[60], "OOMKilled");
        assert_eq!(told(&killed).await, pair("CrashLoop", "Restart"));
        assert_eq!(killed.status("Agent", "a")["interventions"][0]["overruled"], json!(["OOMKilled: Restart"]));
    }

    #[tokio::test]
    async fn a_rule_counts_the_crashes_of_its_pool() {
        let rule = |count: u32| json!([{"signal": "CrashLoop", "count": count, "windowSeconds": 300, "do": "Notify"}]);
        assert_eq!(told(&crashing(rule(3), &[60], "Error")).await, []);
        assert_eq!(told(&crashing(rule(3), &[60, 400], "Error")).await, [], "outside its window");
        assert_eq!(told(&crashing(rule(3), &[60, 120], "Error")).await, pair("CrashLoop", "Notify"));
        let none = json!([{"signal": "CrashLoop", "do": "Log"}]);
        assert_eq!(told(&crashing(none, &[60], "Error")).await, pair("CrashLoop", "Log"));
    }
}
