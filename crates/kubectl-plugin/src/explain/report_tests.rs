//! Tests of the report and of its text.

use super::events::newest_events;
use super::report::AttemptReport;
use super::*;
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

fn agent(spec: &Value, status: Value) -> Agent {
    let mut all = json!({"poolRef": {"name": "p"}, "displayName": "calm-otter", "sequence": 4});
    spec.as_object().into_iter().flatten().for_each(|(key, value)| all[key] = value.clone());
    serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Agent",
        "metadata": {"name": "p-1", "namespace": "n", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"spillway.dev/type": "worker"}},
        "spec": all, "status": status}))
    .expect("an Agent")
}

fn pool(status: Value) -> AgentPool {
    serde_json::from_value(
        json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "AgentPool", "metadata": {"name": "p", "namespace": "n", "uid": "pu"},
        "spec": {"type": "worker", "agent": {"image": "x", "command": ["y"]}, "scaling": {"max": 5}}, "status": status}),
    )
    .expect("a pool")
}

fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-01-01T00:01:00Z"})
}

fn facts(agent: Option<Agent>, pool: Option<AgentPool>) -> Facts {
    Facts { namespace: "n".into(), agent, pool, ..Facts::default() }
}

fn text(facts: &Facts) -> String {
    let now = "2026-01-01T00:03:00Z".parse().expect("a time");
    render(&report(facts), None, now).expect("text").out
}

fn hints(report: &Report) -> Vec<(&str, bool)> {
    report.advice.iter().map(|hint| (hint.reason.as_str(), hint.act)).collect()
}

#[test]
fn an_agent_outside_the_cluster_says_whose_it_is_and_that_nothing_isolates_it() {
    let mut outside = agent(
        &json!({"external": {"user": "alice"}}),
        json!({"phase": "Idle", "conditions": [condition("Ready", "True", "Registered", "m"), condition("SandboxEnforced", "False", "WallsNotEnforced", "nothing isolates its program")]}),
    );
    outside.spec.sequence = None;
    let mut pool = pool(json!({}));
    pool.spec.external = Some(crate::api::agent_pool::ExternalAgents { max_agents: 3 });
    let shown = text(&facts(Some(outside.clone()), Some(pool.clone())));
    for words in ["External", "registered by alice", "WallsNotEnforced", "spec.external"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let shown = text(&Facts { agents: vec![outside], ..facts(None, Some(pool)) });
    assert!(shown.contains("1 of at most 3 outside the cluster"), "{shown}");
}

#[test]
fn a_waiting_agent_is_explained_whole() {
    let waiting = agent(
        &json!({}),
        json!({"phase": "Spawning", "podRef": {"name": "p-1", "uid": "pod"}, "conditions": [
            condition("Ready", "False", "ImagePull", "ErrImagePull: not found"), condition("SandboxEnforced", "Unknown", "NotReported", "m")]}),
    );
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p-1", "uid": "pod"}, "status": {"phase": "Pending", "containerStatuses": [
        {"name": "agent", "image": "x", "imageID": "", "ready": false, "restartCount": 0, "state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}]}}))
    .expect("a pod");
    let event: Event =
        serde_json::from_value(json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "name": "p-1"}, "type": "Warning",
        "reason": "Failed", "message": "Failed to pull\u{1b}[2J", "count": 3, "lastTimestamp": "2026-01-01T00:02:30Z"}))
        .expect("an event");
    let all = Facts {
        pod: PodFact::There(Box::new(pod)),
        events: vec![event],
        ..facts(Some(waiting), Some(pool(json!({"conditions": [condition("Blocked", "True", "ImagePull", "agent p-1: not found")]}))))
    };
    assert_eq!(
        text(&all),
        "Agent p-1 (calm-otter) in namespace n\n\
         \x20 Spawning, ImagePull: ErrImagePull: not found (for 2m)\n\
         \n\
         Facts\n\
         \x20 Pool     p (type worker)\n\
         \x20 Created  3m ago, by its pool, number 4\n\
         \x20 Pod      p-1: Pending; container agent waits (ErrImagePull): not found\n\
         \n\
         Conditions\n\
         \x20 TYPE              STATUS    REASON        SINCE   MESSAGE\n\
         \x20 Ready             False     ImagePull     2m      ErrImagePull: not found\n\
         \x20 SandboxEnforced   Unknown   NotReported   2m      m\n\
         \n\
         What blocks its pool\n\
         \x20 TYPE      STATUS   REASON      SINCE   MESSAGE\n\
         \x20 Blocked   True     ImagePull   2m      agent p-1: not found\n\
         \n\
         Events\n\
         \x20 AGO   TYPE      ABOUT     REASON   MESSAGE\n\
         \x20 30s   Warning   pod/p-1   Failed   Failed to pull\u{fffd}[2J (3 times)\n\
         \n\
         What to do\n\
         \x20 ImagePull: correct spec.agent.image or spec.scheduling.imagePullSecrets of pool p. Then delete the waiting agents: `kubectl spillway rm p-1 -n n`\n"
    );
}

#[test]
fn a_paused_agent_says_who_paused_it_and_how_it_goes_on() {
    let status = json!({"phase": "Paused", "pauses": 2, "node": "k", "sandbox": {"tier": "landlock-4", "missing": ["abstract sockets", "signals"]},
        "lastHeartbeatTime": "2026-01-01T00:02:40Z",
        "toolApprovals": [{"id": "a1", "call": "d", "toolset": "t", "program": "deploy", "arguments": "{}", "podUid": "u",
            "requestTime": "2026-01-01T00:00:00Z", "expireTime": "2026-01-01T00:15:00Z", "state": "Waiting"}], "tokens": {"used": 9000, "held": 10, "limit": 10000, "topUps": 1},
        "conditions": [condition("Ready", "True", "Registered", "m"), condition("Paused", "True", "TokenBudgetExceeded", "its tokens are over")],
        "interventions": [{"time": "2026-01-01T00:01:00Z", "signal": "BudgetNearLimit", "action": "Warn", "message": "one"},
            {"time": "2026-01-01T00:02:00Z", "signal": "TokenBudgetExceeded", "action": "Pause", "message": "two"}]});
    let told = text(&facts(Some(agent(&json!({"resumePause": 1}), status.clone())), Some(pool(json!({})))));
    for words in [
        "Sandbox        landlock-4\n",
        "Sandbox lacks  abstract sockets, signals\n",
        "Heartbeat      20s ago, as last written\n",
        "Tokens         9000 used, 10 held, of 10000, 1 top-ups\n",
        "Pauses         2 so far, resumed up to 1\n",
        "Approvals      deploy waits for a person: `kubectl spillway approvals` shows the call\n",
        "60s   TokenBudgetExceeded   Pause    two\n",
        "`kubectl spillway grant agent/p-1 TOKENS -n n`",
    ] {
        assert!(told.contains(words), "{words:?} in\n{told}");
    }
    let asked = report(&facts(Some(agent(&json!({"paused": true}), json!({"phase": "Idle"}))), None));
    assert_eq!(hints(&asked), [("spec.paused", true)]);
}

#[test]
fn what_is_well_needs_nothing_and_the_dead_are_told_why() {
    let well = json!({"phase": "Idle", "conditions": [condition("Ready", "True", "Registered", "m"), condition("Paused", "False", "NotPaused", "m")]});
    let told = report(&facts(Some(agent(&json!({}), well)), None));
    assert_eq!(hints(&told), [("AsDesired", false)]);
    let dead = json!({"phase": "Stopped", "goodbye": {"time": "2026-01-01T00:02:00Z", "reason": "done\u{7}"}, "podRef": {"name": "p-1", "uid": "pod"},
        "conditions": [condition("Heartbeating", "False", "HeartbeatLost", "m"), condition("Ready", "False", "PodFailed", "exit code 1")]});
    let all = Facts { pod: PodFact::Gone, ..facts(Some(agent(&json!({}), dead)), None) };
    assert_eq!(hints(&report(&all)), [("PodFailed", true)]);
    let told = text(&all);
    assert!(told.contains("Goodbye  60s ago, done\u{fffd}\n") && told.contains("Pod      p-1: gone\n"), "{told}");
    assert_eq!(hints(&report(&facts(Some(agent(&json!({}), json!({}))), None))), [("NotObserved", true)]);
}

#[test]
fn a_pool_is_explained_by_its_conditions_and_by_its_agents() {
    let blocked = pool(json!({"desired": 3, "agents": 2, "active": 1, "idle": 0, "reason": "QuotaExceeded", "conditions": [
        condition("Ready", "False", "QuotaExceeded", "m"), condition("Reconciling", "True", "Scaling", "m"), condition("Stalled", "False", "Observed", ""),
        condition("Blocked", "True", "QuotaExceeded", "agent p-1: exceeded quota")]}));
    let pending = agent(&json!({}), json!({"phase": "Spawning", "conditions": [condition("Ready", "False", "PodPending", "not yet")]}));
    let stopped = agent(&json!({}), json!({"phase": "Stopped", "conditions": [condition("Ready", "False", "PodFailed", "m")]}));
    let all = Facts { agents: vec![pending, stopped], unread: vec!["events: no".into()], ..facts(None, Some(blocked)) };
    let told = report(&all);
    assert_eq!(told.state, "wants 3, has 2. Blocked is True, QuotaExceeded: agent p-1: exceeded quota");
    assert_eq!(hints(&told), [("QuotaExceeded", true), ("PodPending", true), ("Scaling", false)]);
    let words = text(&all);
    for line in [
        "Size    0 to 5, by its work\n",
        "Wanted  3 (QuotaExceeded)\n",
        "Agents  2 (1 active, 0 idle)\n",
        "Phases  1 Spawning, 1 Stopped\n",
    ] {
        assert!(words.contains(line), "{line:?} in\n{words}");
    }
    assert!(words.contains("p-1    calm-otter   2m      Spawning, PodPending: not yet\n"), "{words}");
    let json = render(&told, Some(Format::Json), jiff::Timestamp::UNIX_EPOCH).expect("JSON").out;
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&json["kind"], &json["advice"][0]["reason"]), (&json!("AgentPool"), &json!("QuotaExceeded")));
    assert_eq!(json["conditions"][3]["since"], json!("2026-01-01T00:01:00Z"));
    assert_eq!(hints(&report(&facts(None, Some(pool(json!({})))))), [("NotObserved", true)]);
}

#[test]
fn the_newest_events_stand_last_and_old_ones_are_left_out() {
    let event = |second: u32| -> Event {
        serde_json::from_value(json!({"metadata": {"name": "e"}, "involvedObject": {}, "reason": format!("R{second}"),
            "eventTime": format!("2026-01-01T00:00:{second:02}.000000Z")}))
        .expect("an event")
    };
    let told = newest_events(&(0..20).rev().map(event).collect::<Vec<_>>());
    assert_eq!((told.len(), told[0].reason.as_str(), told[11].reason.as_str()), (12, "R8", "R19"));
    let series: Event =
        serde_json::from_value(json!({"metadata": {"name": "e"}, "involvedObject": {}, "eventTime": "2026-01-01T00:00:00.000000Z",
        "series": {"count": 7, "lastObservedTime": "2026-01-01T00:00:30.000000Z"}}))
        .expect("an event");
    let told = newest_events(&[series, event(5)]);
    assert_eq!((told[1].count, told[1].time.as_ref().map(|time| time.0.to_string())), (7, Some("2026-01-01T00:00:30Z".into())));
}

#[test]
fn what_was_told_whole_is_not_told_again_and_what_is_long_is_cut() {
    let long = format!("ErrImagePull: {}", "a reason that goes on and on ".repeat(12));
    let waiting = agent(&json!({}), json!({"phase": "Spawning", "conditions": [condition("Ready", "False", "ImagePull", &long)]}));
    let other = pool(json!({"conditions": [condition("Blocked", "True", "ImagePull", &format!("p-2: {long}"))]}));
    let told = text(&facts(Some(waiting), Some(other)));
    assert!(told.contains(&format!("  Spawning, ImagePull: {long} (for 2m)\n")), "{told}");
    assert!(told.contains("  Ready   False    ImagePull   2m      (as above)\n"), "{told}");
    assert!(told.contains("  Blocked   True     ImagePull   2m      p-2: ErrImagePull: a reason") && told.contains("\u{2026}\n"), "{told}");
}

#[test]
fn a_pool_at_its_bound_is_well_and_a_crashing_one_names_a_log_to_read() {
    let well = pool(
        json!({"desired": 1, "agents": 1, "conditions": [condition("AtMax", "True", "MaxReached", ""), condition("Ready", "True", "AsDesired", "m")]}),
    );
    let told = report(&facts(None, Some(well)));
    assert_eq!(told.state, "wants 1, has 1. Ready is True, AsDesired: m");
    assert_eq!(hints(&told), [("MaxReached", false)]);
    let crashing = pool(json!({"desired": 1, "agents": 1, "conditions": [condition("Blocked", "True", "CrashLoop", "")]}));
    let dead = |name: &str, time: &str| {
        let mut agent = agent(&json!({}), json!({"phase": "Stopped", "stopTime": time}));
        agent.metadata.name = Some(name.to_owned());
        agent
    };
    let agents = vec![dead("p-1", "2026-01-01T00:01:00Z"), dead("p-2", "2026-01-01T00:02:00Z"), dead("p-3", "2026-01-01T00:00:00Z")];
    let told = report(&Facts { agents, ..facts(None, Some(crashing)) });
    assert_eq!(told.state, "wants 1, has 1. Blocked is True, CrashLoop");
    assert!(told.advice[0].advice.contains("`kubectl spillway logs p-2 -n n`"), "{:?}", told.advice);
}

#[test]
fn the_end_of_an_attempts_message_is_shown_where_its_cause_stands() {
    let tried = |message: String| AttemptReport {
        epoch: 1,
        agent: "p-1".into(),
        start_time: Time("2026-01-01T00:00:00Z".parse().expect("a time")),
        end_time: None,
        verb: "Release".into(),
        reason: Some("BudgetRefused".into()),
        message: Some(message),
    };
    let long = format!("BEGIN{}\n  at run\nits program ended: Budget/night in team", " stack".repeat(200));
    let report = Report { attempts: vec![tried(long), tried("short\nof words".into())], ..Report::default() };
    let told = render(&report, None, "2026-01-01T00:03:00Z".parse().expect("a time")).expect("text").out;
    assert!(told.contains("at run its program ended: Budget/night in team\n") && told.contains("   \u{2026}"), "{told}");
    assert!(told.contains("short of words") && !told.contains("BEGIN") && !told.contains('\u{fffd}'), "{told}");
    let json = render(&report, Some(Format::Json), "2026-01-01T00:03:00Z".parse().expect("a time")).expect("JSON").out;
    assert!(json.contains("BEGIN"), "JSON has all of it");
}
