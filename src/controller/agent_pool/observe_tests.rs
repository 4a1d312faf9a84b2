//! The facts that follow from a pool and its Agents. Reads nothing from a server.

use super::*;
use crate::governor::budget::availability::TokenAvailability;
use crate::policy::budget::blocker::ExhaustedLimit;
use crate::policy::budget::refusal::RefusalCause;
use crate::policy::budget::{Blocker, Holders, Key as TokenKey, Window};
use serde_json::json;

fn agent(status: serde_json::Value) -> Agent {
    serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Agent", "metadata": {"name": "a"}, "spec": {"poolRef": {"name": "p"}}, "status": status})).expect("an Agent")
}
fn ready(status: &str, reason: &str) -> serde_json::Value {
    json!([{"type": "Ready", "status": status, "reason": reason, "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}])
}
fn stands(status: serde_json::Value) -> MemberState {
    member_state(&agent(status), |_| Duration::ZERO, PoolMode::Perseverance)
}

#[test]
fn the_state_of_an_agent_follows_from_its_status() {
    let pod = json!({"name": "a", "uid": "u"});
    assert_eq!(stands(json!({})), MemberState::Spawning);
    assert_eq!(stands(json!({"phase": "Spawning", "conditions": ready("False", "QuotaExceeded")})), MemberState::Refused);
    assert_eq!(stands(json!({"phase": "Spawning", "podRef": pod, "conditions": ready("False", "ImagePull")})), MemberState::Starting);
    assert_eq!(stands(json!({"phase": "Idle", "podRef": pod, "conditions": ready("True", "Registered")})), MemberState::Idle);
    assert_eq!(stands(json!({"phase": "Paused", "podRef": pod, "conditions": ready("True", "Registered")})), MemberState::Held);
    assert_eq!(stands(json!({"phase": "Running", "podRef": pod, "conditions": ready("False", "NotRegistered")})), MemberState::Starting);
    assert_eq!(stands(json!({"phase": "Running", "podRef": pod, "conditions": ready("False", "PodNotReady")})), MemberState::Starting);
    assert_eq!(stands(json!({"phase": "Goodbye", "podRef": pod})), MemberState::Leaving);
    assert_eq!(stands(json!({"phase": "Stale", "podRef": pod, "conditions": ready("False", "NodeUnreachable")})), MemberState::Unreachable);
    assert_eq!(stands(json!({"phase": "Stopped", "podRef": pod})), MemberState::Ended { ago: Duration::ZERO, crashed: false });
}

#[test]
fn the_state_of_an_agent_that_hibernates_or_is_to() {
    let sleepy = |hibernated: bool, status: serde_json::Value| {
        let mut agent = agent(status);
        agent.spec.hibernated = Some(hibernated);
        member_state(&agent, |_| Duration::ZERO, PoolMode::Perseverance)
    };
    let (pod, asleep) = (json!({"name": "a", "uid": "u"}), json!({"phase": "Hibernated", "conditions": ready("False", "Hibernated")}));
    assert_eq!(sleepy(true, json!({"phase": "Idle", "podRef": pod})), MemberState::Leaving, "it holds its place until its pod is gone");
    assert_eq!(sleepy(true, json!({"phase": "Goodbye", "podRef": pod})), MemberState::Leaving);
    assert_eq!(sleepy(true, json!({"phase": "Active", "podRef": pod})), MemberState::Busy);
    assert_eq!(sleepy(true, asleep.clone()), MemberState::Hibernated { paused: false });
    assert_eq!(sleepy(false, asleep), MemberState::Spawning, "it is being woken");
    let paused = json!([{"type": "Paused", "status": "True", "reason": "PausedBySpec", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    assert_eq!(sleepy(true, json!({"phase": "Hibernated", "conditions": paused})), MemberState::Hibernated { paused: true });
}

#[test]
fn a_deleted_hibernated_agent_holds_no_place() {
    let mut agent = agent(json!({"phase": "Hibernated"}));
    agent.spec.hibernated = Some(true);
    agent.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time");
    let standing = member_state(&agent, |_| Duration::ZERO, PoolMode::Perseverance);
    assert!(!standing.counts() && standing == MemberState::Hibernated { paused: true }, "nor is it woken, or deleted again");
}

#[test]
fn an_agent_under_deletion_is_leaving_until_it_is_gone() {
    let mut agent = agent(json!({"phase": "Running", "conditions": ready("True", "Registered")}));
    agent.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time");
    assert_eq!(member_state(&agent, |_| Duration::ZERO, PoolMode::Perseverance), MemberState::Leaving);
    agent.status.as_mut().expect("a status").phase = Some(AgentPhase::Stopped);
    assert!(
        matches!(member_state(&agent, |_| Duration::ZERO, PoolMode::Perseverance), MemberState::Ended { .. }),
        "one that ended holds no place while it goes"
    );
}

#[test]
fn a_short_life_that_ended_by_itself_is_a_crash() {
    let ended = |reason: &str, stop: &str| {
        crashed(&agent(
            json!({"phase": "Stopped", "startTime": "2026-01-01T00:00:00Z", "stopTime": stop, "conditions": ready("False", reason)}),
        ))
    };
    assert!(ended("PodFailed", "2026-01-01T00:09:59Z") && ended("PodSucceeded", "2026-01-01T00:00:01Z"));
    assert!(!ended("PodFailed", "2026-01-01T00:10:00Z"), "it lived long enough");
    assert!(!ended("PodGone", "2026-01-01T00:00:01Z"), "somebody ended it");
    let unstarted = json!({"phase": "Stopped", "stopTime": "2026-01-01T09:00:00Z", "conditions": ready("False", "PodFailed")});
    assert!(crashed(&agent(unstarted)), "its program did not even start, however old the Agent is");
}

#[test]
fn membership_is_proved_by_the_name_whatever_labels_and_owners_say() {
    let pool = PoolId { name: "p".into(), uid: "u".into() };
    let object = |name: &str, extra: serde_json::Value| -> AgentObject {
        let mut value =
            json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Agent", "metadata": {"name": name}, "spec": {"poolRef": {"name": "p"}}});
        value.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        serde_json::from_value(value).expect("an object that may not fit")
    };
    let name = names::agent_name("p", "u", 3);
    let numbered = |number: i64| json!({"spec": {"poolRef": {"name": "p"}, "sequence": number}});
    assert_eq!(pool.membership(&object(&name, numbered(3)), 9), Some(Some(3)), "no owner, no labels");
    assert_eq!(pool.membership(&object(&name, numbered(4)), 9), None, "another number");
    assert_eq!(pool.membership(&object("mine", json!({})), 9), None, "nobody's, or not adopted yet");
    let owned =
        json!({"metadata": {"name": "mine", "ownerReferences": [{"apiVersion": "v", "kind": "AgentPool", "name": "p", "uid": "u"}]}});
    assert_eq!(pool.membership(&object("mine", owned), 9), Some(None), "made by hand");
    let malformed = object(&name, json!({"spec": 7}));
    assert!(malformed.0.is_err());
    assert_eq!(pool.membership(&malformed, 9), Some(Some(3)), "what does not fit its type still holds its number");
}

#[test]
fn the_most_serious_hindrance_is_shown_with_its_count() {
    let (quota, image) =
        (agent(json!({"conditions": ready("False", "QuotaExceeded")})), agent(json!({"conditions": ready("False", "ImagePull")})));
    let got = agent_blocker(&[&image, &quota, &quota]).expect("blocked");
    assert_eq!((got.reason, got.message.as_str()), ("QuotaExceeded", "a: m (and 1 more)"));
    assert_eq!(agent_blocker(&[&agent(json!({"conditions": ready("True", "Registered")}))]), None);
}

#[test]
fn agents_that_get_no_work_are_shown_with_their_count() {
    let said = |name: &str, reason: &str| {
        let mut agent = agent(json!({"phase": "Running", "conditions": ready("False", reason)}));
        agent.metadata.name = Some(name.to_owned());
        agent
    };
    let (first, second) = (said("b", "PreflightFailed"), said("a", "PreflightFailed"));
    let got = agent_blocker(&[&first, &second]).expect("blocked");
    assert_eq!((got.reason, got.message.as_str()), ("PreflightFailed", "a: m (and 1 more)"));
    let facts = |standing: MemberState| AgentFacts {
        name: "a".into(),
        sequence: Some(1),
        state: standing,
        age: Duration::ZERO,
        can_hibernate: false,
    };
    assert!(all_fail_preflight(&[facts(MemberState::Starting)], &[&first, &second]), "one more would fail too");
    assert!(!all_fail_preflight(&[facts(MemberState::Starting), facts(MemberState::Busy)], &[&first]), "some pass");
    assert!(!all_fail_preflight(&[facts(MemberState::Starting)], &[]), "that is not known yet");
    let open = said("c", "EgressNotEnforced");
    assert_eq!(agent_blocker(&[&first, &open]).map(|blocked| blocked.reason), Some("EgressNotEnforced"), "the graver one");
    let mut gone = first.clone();
    gone.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time");
    assert_eq!(agent_blocker(&[&gone]), None);
    // It holds its place: its pool makes no other Agent for it, and does not end it for having no work.
    assert_eq!(
        stands(json!({"phase": "Running", "podRef": {"name": "a", "uid": "u"}, "conditions": ready("False", "PreflightFailed")})),
        MemberState::Starting
    );
}

#[test]
fn a_pool_without_tokens_says_so_and_keeps_saying_so_while_that_is_unknown() {
    let pool = |status: serde_json::Value| -> AgentPool {
        let spec = json!({"type": "free", "agent": {"image": "x", "command": ["y"]}});
        let object =
            json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "AgentPool", "metadata": {"name": "p"}, "spec": spec, "status": status});
        serde_json::from_value(object).expect("a pool")
    };
    let limit = Some(ExhaustedLimit { name: "hourly".into(), span: Window::Hour.at(0), height: 100 });
    let field = "spec.tokens.limits[hourly].tokens".to_owned();
    let short = TokenAvailability::Blocked(Blocker {
        key: TokenKey::budget("n", "b"),
        cause: RefusalCause::Used,
        limit,
        field,
        guaranteed: Holders::default(),
    });
    let blocked = token_blocker(&pool(json!({})), &short).expect("blocked");
    assert!(blocked.reason == "BudgetExhausted" && blocked.message.contains("Budget/b"), "{}", blocked.message);
    let says = |status: &str, reason: &str| {
        let blocked =
            json!([{"type": "Blocked", "status": status, "reason": reason, "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        pool(json!({"conditions": blocked}))
    };
    let was = says("True", "BudgetExhausted");
    assert_eq!(token_blocker(&was, &TokenAvailability::Unknown).map(|blocked| blocked.message).as_deref(), Some("m"));
    assert_eq!(token_blocker(&was, &TokenAvailability::Available), None);
    for other in [pool(json!({})), says("True", "QuotaExceeded"), says("False", "NotBlocked")] {
        assert_eq!(token_blocker(&other, &TokenAvailability::Unknown), None);
    }
    let of = |reason| Some(PoolBlockers { reason, message: "of agents".into() });
    let reason = |agents| most_serious_blocker(agents, Some(blocked.clone())).map(|blocked| blocked.reason);
    assert_eq!(reason(of(reasons::QUOTA_EXCEEDED)), Some("QuotaExceeded"));
    assert_eq!((reason(of(reasons::IMAGE_PULL)), reason(None)), (Some("BudgetExhausted"), Some("BudgetExhausted")));
    assert_eq!(most_serious_blocker(of(reasons::IMAGE_PULL), None).map(|blocked| blocked.reason), Some("ImagePull"));
}

#[test]
fn unsupported_fields_are_refused_by_name() {
    let spec = |extra: serde_json::Value| -> AgentPoolSpec {
        let mut spec = json!({"type": "free", "agent": {"image": "x", "command": ["y"]}});
        spec.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        serde_json::from_value(spec).expect("a spec")
    };
    assert_eq!(unsupported(&spec(json!({}))), None);
    assert_eq!(unsupported(&spec(json!({"preflight": {"requireSandbox": true, "models": true, "urls": ["https://example.org"]}}))), None);
    let rule = json!({"signal": "RuleViolated", "rule": "ToolRejected", "do": "Log"});
    assert_eq!(unsupported(&spec(json!({"supervision": {"rules": [rule]}, "toolsets": [{"name": "t"}]}))), None);
    let sandbox = json!({"isolation": {"landlock": "Required", "seccomp": "AgentStrict"}, "outputs": {"loopback": "LinkOnly"}});
    assert_eq!(unsupported(&spec(json!({"sandbox": sandbox}))), None);
    assert_eq!(unsupported(&spec(json!({"sandbox": {"changeset": {"driver": "Git", "maxBytes": 1}}}))), None);
    assert_eq!(unsupported(&spec(json!({"sandbox": {"isolation": {"landlock": "Preferred", "seccomp": "RuntimeDefault"}}}))), None);
    assert_eq!(unsupported(&spec(json!({"sandbox": {"isolation": {"seccomp": "Localhost"}, "outputs": {"loopback": "LinkOnly"}}}))), None);
}
