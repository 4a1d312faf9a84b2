//! The meter with an API server in memory: what is stored before an answer, and what remains of it when leaders,
//! gateways and answers are lost.

use serde_json::json;

use super::meter::HoldResult;
use super::object::Object;
use super::simulation::{AGENT, BUDGET, Leader, WriteFate, budget, server};
use crate::api::WorkItem;
use crate::cluster::ObjectKey;
use crate::policy::budget::refusal::RefusalCause;
use crate::policy::budget::share::Lifetime;
use crate::policy::budget::{CallSize, JournaledHold, JournaledSettle, Key, Quality, Route, SessionLog, Usage};

fn given(held: &HoldResult) -> bool {
    matches!(held, HoldResult::Given { .. })
}

#[tokio::test]
async fn a_hold_is_stored_first_and_a_settle_acknowledged_after_it_is() {
    let server = server(1000);
    let leader = Leader::new(&server, 7);
    assert_eq!(leader.ask("g", 1, 40), HoldResult::Unknown, "the session has not begun");
    leader.begin("g");
    assert_eq!(leader.ask("g", 1, 40), HoldResult::WritePending, "nothing is durable");
    leader.write().await;
    let HoldResult::Given { path, each, room, .. } = leader.ask("g", 1, 40) else { panic!("it is written") };
    assert_eq!((path.len(), each), (2, 40));
    let room = room.expect("there are limits");
    assert_eq!((room.budget.as_str(), room.left), ("the agent's lifetime", 460), "the tightest");
    let stored = server.get(BUDGET);
    assert!(stored["status"]["windows"][0]["highWater"].as_i64() >= Some(40), "{stored}");
    assert_eq!((&stored["status"]["ledger"]["acked"][0]["session"], &stored["status"]["governorEpoch"]), (&json!("g"), &json!(7)));
    assert!(server.get(AGENT)["status"]["tokens"]["highWater"].as_i64() >= Some(40));
    assert_eq!(server.get(AGENT)["status"]["phase"], "Idle", "what others wrote stays");
    assert_eq!(leader.settle("g", 1, 1, 30), Some(0), "counted, and not stored");
    assert_eq!(leader.stands(), (30, 0, 0, 0));
    leader.meter.pass(31_000);
    leader.write().await;
    assert_eq!(leader.meter.settle("g", &[], 2, 0), Some(1));
    assert_eq!(server.get(BUDGET)["status"]["windows"][0]["used"], 30);
    assert_eq!(server.get(AGENT)["status"]["tokens"]["used"], 30);
    let writes = server.writes();
    leader.meter.restate();
    leader.meter.pass(60_000);
    leader.meter.restate();
    leader.write().await;
    let quiet = server.writes();
    leader.meter.pass(60_000);
    leader.meter.restate();
    leader.write().await;
    assert!(server.writes() == quiet && quiet <= writes + 2, "nothing new is not written");
    assert!(leader.leads());
}

#[tokio::test]
async fn nothing_is_answered_before_all_is_read() {
    let server = server(1000);
    let leader = Leader::reading(&server, 7);
    assert!(!leader.meter.is_ready());
    assert!(leader.meter.next().is_none(), "and nothing is written");
    assert_eq!(leader.meter.above("team", None, true), None, "an unknown namespace is not one without limits");
}

#[tokio::test]
async fn what_a_lost_leader_may_have_given_counts_until_all_have_told() {
    let server = server(1000);
    let first = Leader::new(&server, 7);
    first.begin("g");
    first.begin("h");
    assert!(given(&first.hold("g", 1, 40).await) && given(&first.hold("h", 1, 60).await));
    // The leader is lost between its write and its answer: `h` never learns of its second hold.
    assert!(given(&first.hold("h", 2, 50).await));
    let next = Leader::new(&server, 8);
    let (used, held, _, rest) = next.stands();
    assert!(used == 0 && held == 0 && rest >= 150, "all that may be out counts: {rest}");
    assert_eq!(next.ask("g", 2, 1), HoldResult::Unknown, "a session must tell first");
    let open = |id, output| JournaledHold { id, at: 0, path: [Key::Agent(next.uid()), budget()].into(), input: 0, output };
    next.meter.begin("g", &SessionLog { next_hold: 2, open: vec![open(1, 40)], ..SessionLog::default() });
    assert!(next.stands().3 > 0, "h has not told");
    let told = JournaledSettle { hold: open(1, 60), usage: Usage { output: 25, ..Usage::default() }, quality: Quality::Exact };
    next.meter.begin("h", &SessionLog { next_hold: 3, settles: vec![told], ..SessionLog::default() });
    assert_eq!(next.stands(), (25, 40, 0, 0), "what nobody has is free again");
    assert!(given(&next.hold("g", 2, 30).await));
    assert_eq!(next.settle("g", 1, 1, 40), Some(0));
    assert_eq!(next.stands().0, 65);
}

#[tokio::test]
async fn a_session_that_never_comes_back_is_charged() {
    let server = server(1000);
    let leader = Leader::new(&server, 7);
    leader.begin("g");
    leader.begin("h");
    assert!(given(&leader.hold("g", 1, 40).await) && given(&leader.hold("h", 1, 60).await));
    leader.meter.pass(50_000);
    assert_eq!(leader.meter.tick(), [""; 0]);
    leader.meter.settle("h", &[], 1, 0);
    leader.meter.pass(15_000);
    assert_eq!(leader.meter.tick(), ["g"]);
    assert_eq!(leader.stands(), (0, 60, 40, 0));
    assert_eq!(leader.ask("g", 2, 1), HoldResult::Unknown);
}

#[tokio::test]
async fn a_settle_without_those_before_it_makes_the_session_tell_all_again() {
    let server = server(1000);
    let leader = Leader::new(&server, 7);
    leader.begin("g");
    assert!(given(&leader.hold("g", 1, 40).await) && given(&leader.hold("g", 2, 10).await));
    assert_eq!(leader.settle("g", 2, 2, 10), None, "the first never came");
    let open = |id, output| JournaledHold { id, at: 0, path: [Key::Agent(leader.uid()), budget()].into(), input: 0, output };
    let told =
        |id, output| JournaledSettle { hold: open(id, output), usage: Usage { output, ..Usage::default() }, quality: Quality::Exact };
    leader.meter.begin("g", &SessionLog { next_hold: 3, settles: vec![told(1, 30), told(2, 10)], ..SessionLog::default() });
    assert_eq!(leader.stands(), (40, 0, 0, 0));
    assert_eq!(leader.settle("g", 2, 2, 10), Some(0), "again: it counts once");
    assert_eq!(leader.stands(), (40, 0, 0, 0));
}

#[tokio::test]
async fn a_call_that_goes_on_holds_more_and_keeps_what_it_has_if_there_is_no_more() {
    let server = server(1000);
    let leader = Leader::new(&server, 7);
    leader.begin("g");
    assert!(given(&leader.hold("g", 1, 40).await));
    while leader.meter.extend("g", 1, 300) == HoldResult::WritePending {
        leader.write().await;
    }
    assert_eq!(leader.stands().1, 300);
    assert!(matches!(leader.meter.extend("g", 1, 900), HoldResult::Refused(_)), "its life has 500");
    assert_eq!(leader.stands().1, 300);
    assert_eq!((leader.meter.extend("g", 2, 1), leader.meter.extend("h", 1, 1)), (HoldResult::Closed, HoldResult::Unknown));
}

#[tokio::test]
async fn an_extension_that_its_gateway_never_heard_of_is_charged_nowhere() {
    let server = server(1000);
    let leader = Leader::new(&server, 7);
    leader.begin("g");
    assert!(given(&leader.hold("g", 1, 40).await));
    while leader.meter.extend("g", 1, 300) == HoldResult::WritePending {
        leader.write().await;
    }
    // The gateway was killed before it journaled the extension. Its next process settles by the journal.
    let open = JournaledHold { id: 1, at: 0, path: [Key::Agent(leader.uid()), budget()].into(), input: 0, output: 40 };
    let told = JournaledSettle { hold: open, usage: Usage::default(), quality: Quality::Estimated };
    let begin = SessionLog { next_hold: 2, settles: vec![told], ..SessionLog::default() };
    leader.meter.begin("g", &begin);
    assert_eq!(leader.stands(), (40, 0, 0, 0));
    // The Budget is written, and the leader is lost before the agent is.
    leader.meter.pass(11_000);
    leader.write().await;
    assert_eq!(server.get(BUDGET)["status"]["windows"][0]["used"], 40);
    assert_eq!(server.get(AGENT)["status"]["tokens"]["used"], 0);
    let next = Leader::new(&server, 8);
    next.meter.begin("g", &begin);
    let own = next.meter.views(&Key::Agent(next.uid())).remove(0);
    assert_eq!((next.stands(), own.used, own.held), ((40, 0, 0, 0), 40, 0), "both say the same, for good");
}

#[tokio::test]
async fn a_leader_that_was_replaced_writes_nothing_more_and_knows_it() {
    let server = server(1000);
    let old = Leader::new(&server, 7);
    old.begin("g");
    assert!(given(&old.hold("g", 1, 40).await));
    let new = Leader::new(&server, 8);
    new.begin("g");
    assert!(given(&new.hold("g", 2, 10).await));
    assert!(!given(&old.hold("g", 3, 460).await), "it lacks the high water, and cannot raise it");
    assert!(!old.leads() && new.leads());
}

#[tokio::test]
async fn a_leader_that_a_watch_shows_to_be_replaced_ends_at_its_next_write() {
    let server = server(1000);
    let mut old = Leader::new(&server, 7);
    old.begin("g");
    assert!(given(&old.hold("g", 1, 40).await));
    // The reconciler of the next leader has written the Agent, but not its record.
    server.touch(AGENT, &json!({"status": {"phase": "Active", "governorEpoch": 8}}));
    old.watches(&server);
    old.settle("g", 1, 1, 30);
    old.meter.pass(31_000);
    old.write().await;
    assert!(!old.leads());
}

#[tokio::test]
async fn a_leader_that_read_too_early_begins_anew() {
    let server = server(1000);
    let old = Leader::new(&server, 7);
    let new = Leader::new(&server, 8);
    old.begin("g");
    assert!(given(&old.hold("g", 1, 40).await), "it wrote after the other one had read");
    new.begin("h");
    assert!(!given(&new.hold("h", 1, 40).await));
    assert!(!new.leads(), "it does not know what was given");
}

#[tokio::test]
async fn an_answer_that_was_lost_is_no_foreign_write() {
    for fate in [WriteFate::AnswerLost, WriteFate::Lost] {
        let server = server(1000);
        let leader = Leader::new(&server, 7);
        leader.begin("g");
        assert_eq!(leader.ask("g", 1, 40), HoldResult::WritePending);
        server.fate(fate);
        leader.write().await;
        leader.meter.pass(1);
        leader.write().await;
        assert!(given(&leader.hold("g", 1, 40).await), "{fate:?}");
        assert!(leader.leads());
        assert_eq!(leader.stands(), (0, 40, 0, 0));
    }
}

#[tokio::test]
async fn what_others_write_into_the_same_status_stays() {
    let server = server(1000);
    let leader = Leader::new(&server, 7);
    leader.begin("g");
    let theirs =
        json!({"type": "QuotaApplied", "status": "True", "reason": "Applied", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    server.touch(BUDGET, &json!({"status": {"agents": {"used": 3}, "conditions": [theirs]}}));
    assert!(given(&leader.hold("g", 1, 40).await));
    let status = server.get(BUDGET)["status"].clone();
    assert_eq!(status["agents"]["used"], 3);
    let types: Vec<_> = status["conditions"].as_array().expect("a list").iter().map(|one| one["type"].clone()).collect();
    assert!(types.contains(&json!("QuotaApplied")) && types.contains(&json!("Ready")), "{types:?}");
    assert!(leader.leads());
}

#[tokio::test]
async fn what_a_watch_showed_costs_no_conflict_and_one_that_is_behind_is_believed_nothing() {
    let shown = server(1000);
    let mut leader = Leader::new(&shown, 7);
    leader.begin("g");
    leader.watches(&shown);
    shown.touch(AGENT, &json!({"status": {"phase": "Active"}}));
    assert!(given(&leader.hold("g", 1, 40).await));
    assert_eq!((shown.conflicts(), &shown.get(AGENT)["status"]["phase"]), (0, &json!("Active")));
    // The Agent of another server has none of the written records, so it is ignored.
    leader.watches(&server(1000));
    leader.settle("g", 1, 1, 30);
    leader.meter.pass(31_000);
    leader.write().await;
    assert_eq!(shown.get(AGENT)["status"]["tokens"]["used"], 30);
    assert!(leader.leads());
}

#[tokio::test]
async fn a_budget_that_is_made_again_begins_anew() {
    let server = server(1000);
    let mut leader = Leader::new(&server, 7);
    leader.begin("g");
    assert!(given(&leader.hold("g", 1, 40).await));
    leader.settle("g", 1, 1, 40);
    server.delete(BUDGET);
    leader.see();
    let HoldResult::Refused(refusal) = leader.hold("g", 2, 1).await else { panic!("there is none") };
    assert_eq!(refusal.cause, RefusalCause::Missing);
    let again = super::simulation::server(1000).get(BUDGET);
    server.make(BUDGET, again);
    leader.see();
    assert!(given(&leader.hold("g", 3, 40).await));
    assert_eq!(leader.stands(), (0, 40, 0, 0));
    assert!(leader.leads());
}

#[tokio::test]
async fn a_life_is_topped_up_only_when_that_is_stored() {
    let server = server(1000);
    let mut leader = Leader::new(&server, 7);
    leader.life = Lifetime { tokens: 50, top_up: 30, max: 1, taken: 0 };
    leader.see();
    leader.begin("g");
    assert!(given(&leader.hold("g", 1, 45).await));
    leader.settle("g", 1, 1, 45);
    assert!(matches!(leader.ask("g", 2, 20), HoldResult::Refused(_)) || given(&leader.ask("g", 2, 5)));
    let uid = leader.uid();
    let mut above = Route::new(Vec::new(), Some(budget()), "worker");
    let HoldResult::Refused(refusal) = leader.ask("g", 3, 20) else { panic!("its life is spent") };
    assert_eq!(refusal.key, Key::Agent(uid.clone()));
    assert!(leader.meter.top_up(&uid, &mut above));
    assert!(matches!(leader.ask("g", 4, 20), HoldResult::Refused(_)), "not before it is stored");
    leader.write().await;
    assert_eq!(server.get(AGENT)["status"]["tokens"]["topUps"], 1);
    assert!(given(&leader.hold("g", 5, 20).await));
    assert!(!leader.meter.top_up(&uid, &mut above), "there is no other");
    leader.meter.pass(31_000);
    leader.write().await;
    let mut next = Leader::new(&server, 8);
    next.life = leader.life;
    next.see();
    let view = next.meter.views(&Key::Agent(uid)).remove(0);
    assert_eq!(view.height, 80, "whoever leads");
}

#[tokio::test]
async fn a_late_word_of_an_attempt_before_does_not_take_the_place_of_the_present_one() {
    let server = server(1000);
    let path = "/apis/spillway.dev/v1alpha1/namespaces/team/workitems/i";
    server.make(
        path,
        json!({
            "apiVersion": "spillway.dev/v1alpha1", "kind": "WorkItem", "metadata": {"name": "i", "namespace": "team"},
            "spec": {"queueRef": {"name": "q"}, "bulkhead": {"tokens": 100}}
        }),
    );
    let leader = Leader::new(&server, 7);
    leader.begin("g");
    let item = || Object::from(&serde_json::from_value::<WorkItem>(server.get(path)).expect("a WorkItem"));
    let task = |epoch| Key::Task { item: item().uid().to_owned(), epoch };
    let asked = CallSize { output: Some(60), choices: 1, ..CallSize::default() };
    let mut id = 0;
    for epoch in [3, 4] {
        leader.meter.place_task(&item(), epoch, 100);
        let mut route = Route::new(vec![task(epoch)], Some(budget()), "worker");
        id += 1;
        while leader.meter.hold("g", id, &mut route, &asked, ("team", "m")) == HoldResult::WritePending {
            leader.write().await;
        }
    }
    assert_eq!(server.get(path)["status"]["tokens"]["share"]["epoch"], 4);
    leader.settle("g", 1, 1, 50);
    leader.settle("g", 2, 2, 20);
    leader.meter.pass(31_000);
    leader.write().await;
    let tokens = server.get(path)["status"]["tokens"].clone();
    assert_eq!((&tokens["share"]["epoch"], &tokens["share"]["used"]), (&json!(4), &json!(20)), "{tokens}");
    assert!(leader.leads() && !leader.meter.knows(&task(3)) && leader.meter.knows(&task(4)));
    assert_eq!(leader.stands().0, 70, "the Budget has both");
}

#[tokio::test]
async fn thresholds_and_conditions_are_told_once_they_are_stored() {
    let server = server(100);
    let mut leader = Leader::new(&server, 7);
    leader.begin("g");
    assert!(given(&leader.hold("g", 1, 90).await));
    leader.write().await;
    let mut events = Vec::new();
    let mut news = Vec::new();
    while let Ok(done) = leader.done.try_recv() {
        events.extend(done.events);
        news.extend(done.news);
    }
    assert_eq!(events.iter().map(|event| event.threshold.percent).collect::<Vec<_>>(), [80], "held counts for a notice");
    assert_eq!(news, [], "not for the conditions");
    leader.settle("g", 1, 1, 100);
    leader.meter.restate();
    leader.meter.pass(31_000);
    leader.write().await;
    while let Ok(done) = leader.done.try_recv() {
        assert_eq!(done.events, []);
        news.extend(done.news);
    }
    let reasons: Vec<_> = news.iter().map(|news| news.reason.as_str()).collect();
    assert_eq!(reasons, ["BudgetExhausted", "ThresholdReached"]);
    let status = server.get(BUDGET)["status"].clone();
    assert_eq!((&status["tightest"]["left"], &status["tightest"]["used"]), (&json!(0), &json!(100)));
}

#[tokio::test]
async fn what_is_not_needed_any_more_is_kept_until_it_is_sure() {
    let server = server(1000);
    let leader = Leader::new(&server, 7);
    leader.begin("g");
    assert!(given(&leader.hold("g", 1, 40).await));
    let own = Key::Agent(leader.uid());
    leader.meter.tidy(|_| false);
    leader.meter.pass(20_000);
    leader.meter.tidy(|_| false);
    assert!(leader.meter.knows(&own), "it holds something");
    leader.meter.pass(110_000);
    leader.meter.tidy(|_| false);
    assert!(!leader.meter.knows(&own));
    assert_eq!(leader.stands().1, 40, "what is held above it stays held");
}

#[tokio::test]
async fn what_is_left_is_told_of_each_place_with_limits_the_nearest_first() {
    let server = server(1000);
    let leader = Leader::new(&server, 7);
    leader.begin("g");
    assert!(given(&leader.hold("g", 1, 40).await));
    let places = [Key::Agent(leader.uid()), budget(), Key::budget("team", "none")];
    let limits = leader.meter.limits(&places);
    let told: Vec<_> = limits.iter().map(|one| (&one.key, one.enforced, one.views[0].held, one.views[0].left)).collect();
    assert_eq!(told, [(&places[0], true, 40, 460), (&places[1], true, 40, 960)]);
}

#[tokio::test]
async fn what_was_used_is_told_soon_at_an_end_and_not_with_each_of_many_items() {
    let server = server(1000);
    let leader = Leader::new(&server, 7);
    leader.begin("g");
    let used = || server.get(AGENT)["status"]["tokens"]["used"].as_i64();
    let agent = Key::Agent(leader.uid());
    assert!(given(&leader.hold("g", 1, 40).await));
    leader.settle("g", 1, 1, 30);
    leader.write().await;
    assert_eq!(used(), Some(0), "while it works it waits for more");
    leader.meter.write_between_items(&leader.uid());
    leader.write().await;
    assert_eq!(used(), Some(0), "it was written a moment ago");
    leader.meter.pass(6_000);
    leader.meter.hurry();
    leader.write().await;
    assert_eq!(used(), Some(30));
    assert!(given(&leader.hold("g", 2, 40).await));
    leader.meter.write_soon(agent);
    leader.settle("g", 2, 2, 12);
    leader.meter.hurry();
    leader.write().await;
    assert_eq!(used(), Some(42), "also what comes a moment after its end");
    let writes = server.writes();
    leader.meter.hurry();
    leader.meter.pass(11_000);
    leader.meter.hurry();
    assert!(leader.hold("g", 3, 5).await != HoldResult::WritePending);
    leader.settle("g", 3, 3, 5);
    leader.meter.hurry();
    leader.write().await;
    assert!(server.writes() <= writes + 2, "nothing new is not written, and after a while it is in no hurry any more");
    assert!(leader.leads());
}

#[tokio::test]
async fn a_pool_is_short_when_its_budget_is_and_when_its_calls_need_more_than_is_left() {
    let server = server(100);
    let leader = Leader::new(&server, 7);
    leader.begin("g");
    let name = |name: &str| ObjectKey { namespace: "team".into(), name: name.into() };
    let obstacle = |pool: &str| leader.meter.blocker(None, &name(pool), Some(budget()), "worker");
    assert!(given(&leader.hold("g", 1, 70).await));
    leader.settle("g", 1, 1, 70);
    assert_eq!(obstacle("p"), None);
    let large = CallSize { bytes: 100, output: Some(10), choices: 1, ..CallSize::default() };
    let HoldResult::Refused(refusal) = leader.meter.hold("g", 2, &mut leader.route(), &large, ("team", "m")) else { panic!("30 are left") };
    leader.meter.call_refused(name("p"), &refusal);
    leader.meter.call_granted(name("p"), 3);
    assert!(obstacle("p").is_some() && obstacle("other").is_none(), "what others need is not known");
    leader.meter.call_granted(name("p"), 100);
    assert_eq!(obstacle("p"), None, "others like it are given");
    assert!(given(&leader.hold("g", 3, 30).await));
    leader.settle("g", 2, 3, 30);
    let spent = obstacle("other").expect("nothing is left");
    assert!(spent.key == budget() && spent.to_string().contains("spec.tokens.limits[hourly].tokens"), "{spent}");
    let own = leader.meter.blocker(Some(&leader.uid()), &name("p"), None, "worker");
    assert_eq!(own, None, "of its life 400 are left");
}

#[tokio::test]
async fn the_clock_of_windows_and_grants_never_goes_back() {
    const HOUR: i64 = 3_600_000;
    let server = server(1000);
    let leader = Leader::new(&server, 7);
    let start = leader.meter.time();
    for step in [-HOUR, 0, 2 * HOUR, -HOUR, HOUR, -HOUR] {
        let before = leader.meter.time();
        leader.meter.step(step);
        assert!(leader.meter.time() >= before, "after {step}");
    }
    let ahead = leader.meter.time().duration_since(start);
    assert!(
        ahead >= jiff::SignedDuration::from_hours(1) && ahead < jiff::SignedDuration::from_mins(61),
        "it followed the farthest step: {ahead}"
    );
}
