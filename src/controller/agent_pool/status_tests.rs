//! The status of a pool for each kind of observation.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;

use super::super::observe::PoolBlockers;
use super::*;
use crate::policy::pool::{AgentFacts, Facts};
use crate::policy::scaling::DesiredSize;

fn pool(extra: serde_json::Value) -> AgentPool {
    let mut spec = json!({"type": "free", "agent": {"image": "x", "command": ["y"]}});
    spec.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
    serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "AgentPool", "metadata": {"name": "p", "uid": "u", "generation": 2}, "spec": spec})).expect("a pool")
}

fn observed(desired: u32, ready: u32) -> PoolObservation {
    let agents = (0..ready)
        .map(|number| AgentFacts {
            name: format!("a{number}"),
            sequence: Some(number.into()),
            state: MemberState::Idle,
            age: Duration::ZERO,
            can_hibernate: false,
        })
        .collect();
    PoolObservation {
        facts: Facts {
            desired,
            may_grow: true,
            spawned: desired.into(),
            collected_below: 0,
            agents,
            stopped_ttl: Duration::ZERO,
            hibernate: false,
            max_with_hibernated: 0,
        },
        desired: DesiredSize { count: desired, why: SizeReason::AtMinimum },
        shrinks_after: None,
        work: None,
        missing: vec![],
        unsupported: None,
        blocked: None,
        ready,
        crashes: None,
        members: BTreeMap::new(),
    }
}

fn written(pool: &AgentPool, observed: &PoolObservation) -> (AgentPoolStatus, StatusChange) {
    let (status, change) = next_status(pool, observed, Counters { spawned: observed.facts.spawned, collected_below: 0 }, 7);
    assert_ne!(change, StatusChange::None);
    (status, change)
}
fn says(status: &AgentPoolStatus, type_: &str) -> (String, String) {
    let condition = find(&status.conditions, type_).expect("every condition is always there");
    (condition.status.clone(), condition.reason.clone())
}
fn told(status: &str, reason: &str) -> (String, String) {
    (status.into(), reason.into())
}

#[test]
fn not_ready_until_all_agents_of_the_generation_were_ready_once() {
    let mut pool = pool(json!({}));
    let (status, change) = written(&pool, &observed(3, 2));
    assert_eq!(
        (says(&status, "Ready"), says(&status, "Reconciling"), change),
        (told("False", "Scaling"), told("True", "Scaling"), StatusChange::State)
    );
    let (status, _) = written(&pool, &observed(3, 3));
    assert_eq!((says(&status, "Ready"), says(&status, "Reconciling")), (told("True", "AsDesired"), told("False", "Observed")));

    pool.status = Some(status);
    let (replacing, change) = written(&pool, &observed(3, 2));
    assert_eq!(
        (says(&replacing, "Ready"), change),
        (told("True", "AsDesired"), StatusChange::Counts),
        "one agent is replaced: that is no new generation"
    );

    pool.metadata.generation = Some(3);
    let (changed, _) = written(&pool, &observed(5, 3));
    assert_eq!(says(&changed, "Ready"), told("False", "Scaling"), "a changed spec is not ready early");
}

#[test]
fn an_unchanged_status_is_not_written_whatever_the_epoch() {
    let mut pool = pool(json!({}));
    pool.status = Some(written(&pool, &observed(1, 1)).0);
    assert_eq!(next_status(&pool, &observed(1, 1), Counters { spawned: 1, collected_below: 1 }, 99).1, StatusChange::None);
}

#[test]
fn a_work_aware_pool_at_zero_is_ready_and_says_why() {
    let at_zero = PoolObservation { desired: DesiredSize { count: 0, why: SizeReason::NoWork }, ..observed(0, 0) };
    let (status, _) = written(&pool(json!({"type": "worker"})), &at_zero);
    assert_eq!((says(&status, "Ready"), says(&status, "ScaledToZero")), (told("True", "AsDesired"), told("True", "NoWork")));
    assert_eq!(status.reason.as_deref(), Some("NoWork"));
}

#[test]
fn an_obstacle_blocks_a_pool_and_never_stalls_it() {
    let blocked = Some(PoolBlockers { reason: "QuotaExceeded", message: "a1: exceeded quota: q".into() });
    let (status, _) = written(&pool(json!({})), &PoolObservation { blocked, ..observed(3, 1) });
    assert_eq!(
        (says(&status, "Blocked"), says(&status, "Ready"), says(&status, "Stalled")),
        (told("True", "QuotaExceeded"), told("False", "QuotaExceeded"), told("False", "Observed"))
    );
    assert_eq!(status.reason.as_deref(), Some("QuotaExceeded"));

    let (status, _) = written(&pool(json!({})), &PoolObservation { missing: vec!["Budget/b".into()], ..observed(0, 0) });
    assert_eq!((says(&status, "Blocked"), says(&status, "Ready")), (told("True", "MissingReference"), told("False", "MissingReference")));
}

#[test]
fn a_pool_that_needs_a_person_is_stalled() {
    let (status, _) = written(&pool(json!({})), &PoolObservation { unsupported: Some("spec.x".into()), ..observed(1, 0) });
    assert_eq!(
        (says(&status, "Stalled"), says(&status, "Ready"), says(&status, "Reconciling").0),
        (told("True", "Unsupported"), told("False", "Unsupported"), "False".into())
    );
}

#[test]
fn agents_that_crash_block_their_pool_and_in_the_end_stall_it() {
    let crashing = |crashes: u32, ready: u32| PoolObservation { crashes: Some((crashes, "a1: exit code 7".into())), ..observed(1, ready) };
    assert_eq!(says(&written(&pool(json!({})), &crashing(1, 0)).0, "Blocked").0, "False", "once is no loop");
    let (status, _) = written(&pool(json!({})), &crashing(3, 0));
    assert_eq!((says(&status, "Blocked"), says(&status, "Stalled").0), (told("True", "CrashLoop"), "False".into()));
    let (status, _) = written(&pool(json!({})), &crashing(5, 0));
    assert_eq!((says(&status, "Stalled"), says(&status, "Ready")), (told("True", "CrashLoop"), told("False", "CrashLoop")));
    let (status, _) = written(&pool(json!({})), &crashing(5, 1));
    assert_eq!(
        (says(&status, "Blocked").0, says(&status, "Stalled").0, says(&status, "Ready").0),
        ("False".into(), "False".into(), "True".into()),
        "it runs again"
    );
}

#[test]
fn messages_and_counts_may_wait() {
    let mut pool = pool(json!({}));
    let (stored, _) = written(&pool, &observed(3, 1));
    pool.status = Some(stored);
    let (next, change) = written(&pool, &PoolObservation { work: Some((9, 1)), ..observed(3, 2) });
    assert_eq!((change, next.work_ready), (StatusChange::Counts, Some(9)), "1 of 3, 2 of 3, and more to do: not a write for each");
}

#[test]
fn changes_of_size_and_new_obstacles_are_reported_once() {
    let (first, _) = written(&pool(json!({})), &observed(3, 0));
    let told = status_events(None, Some(&first));
    assert_eq!(
        (told.len(), told[0].note.as_str()),
        (1, "the desired number of agents changes from 0 to 3: spec.scaling.min sets the size to 3")
    );
    let blocked = Some(PoolBlockers { reason: "ImagePull", message: "m".into() });
    let (second, _) = written(&pool(json!({})), &PoolObservation { blocked, ..observed(3, 0) });
    let told = status_events(Some(&first), Some(&second));
    assert_eq!((told.len(), told[0].warning, told[0].reason.as_str()), (1, true, "ImagePull"));
    assert!(status_events(Some(&second), Some(&second)).is_empty());
}
