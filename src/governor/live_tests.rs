//! Reports of agents, their desired state, and the findings about their silence, in memory.

use super::agent::UNEXPECTED_AGENT_TTL;
use super::*;
use crate::governor::work::refused::{RefusedBy, RefusedCall};
use crate::policy::breaker::Permit;
use crate::policy::interventions::Signal;
use crate::wire::command::{BreakerState, CommandBreakers, CommandCounts, CommandPermit, OpenGlobally};
use crate::wire::work::LeaseRef;

fn report() -> Report {
    Report::of(Program::Running)
}
fn expected(name: &str, node: &str) -> Expected {
    Expected {
        key: ObjectKey { namespace: "n".into(), name: name.into() },
        registered: true,
        started: true,
        startup: Duration::from_secs(6),
        timeout: Duration::from_secs(6),
        node: Some(node.into()),
        active: false,
        paused: false,
        excused: false,
    }
}
const NOW: jiff::Timestamp = jiff::Timestamp::UNIX_EPOCH;

fn working(paused: Option<i64>, fresh: bool) -> Working {
    let second = Duration::from_secs(1);
    let held = LeaseRef { uid: "i".into(), epoch: 1 };
    Working { held, lease: 3600 * second, stall: 60 * second, attempt: 10 * second, cancelling: false, paused, had_all_tokens: fresh }
}

#[test]
fn the_times_of_an_item_that_waits_stand_still_and_it_is_told_at_once_when_it_goes_on() {
    let live = Live::new(7);
    live.registered("u", "g", None);
    let _session = live.session("g".into());
    live.expect("u", Expected { timeout: Duration::from_secs(3600), ..expected("a", "n") });
    live.holds("u", Some(working(None, true)));
    (0..9).for_each(|_| drop(live.tick(Duration::from_secs(1))));
    live.holds("u", Some(working(Some(1), false)));
    let wanted = live.desired_state("u");
    assert_eq!(wanted.item.as_ref().map(|wanted| wanted.order), Some(ItemOrder::Pause(1)));
    (0..100).for_each(|_| drop(live.tick(Duration::from_secs(1))));
    assert_eq!(live.view("u").expect("a view").finding, Finding::Well, "its attempt does not grow old");
    live.holds("u", Some(working(None, false)));
    let on = live.desired_state("u");
    assert_eq!((on.item.is_none(), on.revision != wanted.revision), (true, true));
    assert!(live.view("u").expect("a view").began_fresh, "as it was when the lease began");
    live.tick(Duration::from_secs(1));
    let late = live.view("u").expect("a view");
    assert_eq!((late.finding, late.timeouts), (Finding::ItemPastTime(Duration::from_secs(10)), 1), "which is a time-out, once");
    live.tick(Duration::from_secs(1));
    assert_eq!(live.view("u").expect("a view").timeouts, 1);
    live.timeouts_stored("u", 1);
    live.timed_out("u", Timeout::ModelTurn);
    assert_eq!(live.view("u").expect("a view").timeouts, 1);
}

#[test]
fn a_refusal_counts_for_its_own_lease_and_what_is_dealt_with_is_forgotten() {
    let live = Live::new(7);
    let held = |epoch| LeaseRef { uid: "i".into(), epoch };
    let refused = |words: &str| RefusedCall { by: RefusedBy::Above, words: words.into() };
    live.refused("u", held(1), refused("first"));
    live.refused("u", held(1), refused("second"));
    assert_eq!(live.recent_refusal("u", &held(1)), Some(refused("second")), "the last one");
    assert_eq!((live.recent_refusal("u", &held(2)), live.recent_refusal("other", &held(1))), (None, None));
    assert!(!live.is_undecided("u", Signal::TokenBudgetExceeded));
    live.out_of_tokens("u", Some(500), "all is spent".into());
    assert!(live.is_undecided("u", Signal::TokenBudgetExceeded));
    assert_eq!(live.view("u").expect("a view").refused_at_limit, Some(500));
    live.decision_stored("u", Signal::TokenBudgetExceeded);
    assert!(live.view("u").expect("a view").occurrences.is_empty());
    assert!(live.is_undecided("u", Signal::TokenBudgetExceeded), "not everybody may have seen what was stored");
}

#[test]
fn only_what_changed_is_news() {
    let live = Live::new(7);
    assert!(live.registered("u", "g", None));
    assert!(live.reported("u", "g", report(), NOW));
    assert!(!live.reported("u", "g", Report { silent_ms: 900, ..report() }, NOW), "a heartbeat is no news");
    assert!(live.reported("u", "g", Report { action: Some("tests".into()), ..report() }, NOW));
}

#[test]
fn a_preflight_is_news_and_part_of_a_start_that_was_made() {
    use crate::wire::agent::{Preflight, PreflightState};
    let live = Live::new(7);
    let said = |state, message: &str| {
        let preflight = Some(Preflight { state, message: message.into() });
        live.reported("u", "g", Report { preflight, ..Report::of(Program::Waiting) }, NOW)
    };
    live.registered("u", "g", None);
    assert!(!live.view("u").expect("a view").started);
    assert!(said(PreflightState::Pending, ""));
    assert!(live.view("u").expect("a view").started, "however long it fails, its start-up is over");
    assert!(said(PreflightState::Failed, "no login"));
    assert!(!said(PreflightState::Failed, "no login"));
    assert!(said(PreflightState::Passed, ""));
}

#[test]
fn what_is_stored_counts_until_the_reconciler_looked() {
    let live = Live::new(7);
    live.restore_directive("u", Directive::Pause);
    assert_eq!(live.desired_state("u").directive, Directive::Pause);
    live.restore_directive("u", Directive::Run);
    assert_eq!(live.desired_state("u").directive, Directive::Run, "it was stored since");
    live.set_directive("u", Directive::Drain);
    live.restore_directive("u", Directive::Run);
    assert_eq!(live.desired_state("u").directive, Directive::Drain, "the reconciler knows better");
}

#[test]
fn a_change_has_a_new_revision_and_is_told_until_it_is_acknowledged() {
    let live = Live::new(7);
    let mut changes = live.changes();
    let first = live.desired_state("u");
    live.set_directive("u", Directive::Run);
    assert_eq!(live.desired_state("u"), first, "nothing changed");
    live.add_notice("u", "BudgetNearLimit", "80 % is spent", NOW);
    let second = live.desired_state("u");
    assert_ne!(second.revision, first.revision);
    assert_eq!(changes.try_recv(), Ok(Change::Wanted { uid: "u".into(), revision: second.revision.clone() }));
    live.reported("u", "g", Report { notices_seen: second.notices[0].id, ..report() }, NOW);
    assert!(live.desired_state("u").notices.is_empty());
    assert!(Live::new(8).desired_state("u").revision.starts_with("8."), "another leader's revisions are others");
}

#[test]
fn a_silent_agent_is_found_once_and_one_of_many_later() {
    let live = Live::new(1);
    let _session = live.session("g".into());
    live.expect("a", expected("a", "n1"));
    let second = Duration::from_secs(1);
    for _ in 0..5 {
        assert!(live.tick(second).is_empty());
    }
    assert_eq!(live.tick(second).len(), 1);
    assert!(live.tick(second).is_empty(), "told once");
    assert!(matches!(live.view("a").expect("a view").finding, Finding::HeartbeatLost(_)));
    for at in 0..6 {
        live.expect(&format!("b{at}"), expected(&format!("b{at}"), "n2"));
    }
    for _ in 0..6 {
        live.tick(second);
    }
    assert_eq!(live.view("b0").expect("a view").finding, Finding::SilentWithMany);
    for _ in 0..6 {
        live.tick(second);
    }
    assert!(matches!(live.view("b0").expect("a view").finding, Finding::HeartbeatLost(_)), "not for ever");
}

#[test]
fn an_agent_whose_node_is_not_heard_of_is_never_silent_and_begins_anew_when_it_is() {
    let live = Live::new(1);
    let _session = live.session("g".into());
    let second = Duration::from_secs(1);
    live.expect("a", Expected { excused: true, ..expected("a", "n") });
    for _ in 0..600 {
        assert!(live.tick(second).is_empty());
    }
    live.expect("a", expected("a", "n"));
    for _ in 0..5 {
        assert!(live.tick(second).is_empty(), "it has all the time that it may be silent");
    }
    assert_eq!(live.tick(second).len(), 1);
}

#[test]
fn those_whose_last_words_are_two_periods_apart_are_silent_together() {
    let live = Live::new(1);
    let _session = live.session("g".into());
    let report = |names: &[String]| {
        for name in names {
            live.reported(name, "g", Report { period_seconds: 10, ..report() }, NOW);
        }
    };
    let second = Duration::from_secs(1);
    // A third of the timeout is less than two periods. Five agents stop twenty seconds after the last report of the
    // first.
    let names: Vec<String> = (0..6).map(|at| format!("b{at}")).collect();
    names.iter().for_each(|name| live.expect(name, Expected { timeout: 30 * second, ..expected(name, "n") }));
    report(&names);
    (0..20).for_each(|_| drop(live.tick(second)));
    report(&names[1..]);
    (0..10).for_each(|_| drop(live.tick(second)));
    assert_eq!(live.view("b0").expect("a view").finding, Finding::SilentWithMany);
    report(&names[1..]);
    // A single silent agent is found as before.
    report(&names[..1]);
    (0..30).for_each(|at| {
        if at % 10 == 5 {
            report(&names[1..]);
        }
        drop(live.tick(second));
    });
    assert_eq!(live.view("b0").expect("a view").finding, Finding::HeartbeatLost(30 * second));
}

#[test]
fn those_outside_the_cluster_fall_silent_by_themselves_and_excuse_nobody() {
    let live = Live::new(1);
    let _session = live.session("g".into());
    let names: Vec<String> = (0..9).map(|at| format!("o{at}")).collect();
    names.iter().for_each(|name| live.expect(name, Expected { node: None, ..expected(name, "n") }));
    live.expect("pod", expected("pod", "n"));
    for name in names.iter().map(String::as_str).chain(["pod"]) {
        live.reported(name, "g", report(), NOW);
    }
    (0..6).for_each(|_| drop(live.tick(Duration::from_secs(1))));
    for name in ["o0", "o8", "pod"] {
        assert!(matches!(live.view(name).expect("a view").finding, Finding::HeartbeatLost(_)), "{name}");
    }
}

#[test]
fn one_outside_the_cluster_is_excused_by_the_pods_of_its_gateway() {
    let live = Live::new(1);
    let _session = live.session("g".into());
    let pods: Vec<String> = (0..9).map(|at| format!("p{at}")).collect();
    pods.iter().for_each(|name| live.expect(name, expected(name, name)));
    live.expect("outside", Expected { node: None, ..expected("outside", "n") });
    for name in pods.iter().map(String::as_str).chain(["outside"]) {
        live.reported(name, "g", report(), NOW);
    }
    (0..6).for_each(|_| drop(live.tick(Duration::from_secs(1))));
    assert_eq!(live.view("outside").expect("a view").finding, Finding::SilentWithMany);
}

#[test]
fn the_last_of_many_to_come_back_are_not_given_up_for_being_few() {
    let live = Live::new(1);
    let _session = live.session("g".into());
    let names: Vec<String> = (0..6).map(|at| format!("b{at}")).collect();
    names.iter().for_each(|name| live.expect(name, expected(name, "n")));
    let second = Duration::from_secs(1);
    for _ in 0..7 {
        live.tick(second);
    }
    for name in &names[..5] {
        live.reported(name, "g", report(), NOW);
    }
    live.tick(second);
    assert_eq!(live.view("b0").expect("a view").finding, Finding::Well);
    assert_eq!(live.view("b5").expect("a view").finding, Finding::SilentWithMany);
    for _ in 0..4 {
        live.tick(second);
    }
    assert!(matches!(live.view("b5").expect("a view").finding, Finding::HeartbeatLost(_)), "not for ever");
}

#[tokio::test]
async fn a_goodbye_is_answered_when_it_is_stored() {
    let live = Live::new(1);
    live.say_goodbye("u", "done".into(), NOW);
    live.say_goodbye("u", "later".into(), NOW);
    assert_eq!(live.view("u").and_then(|view| view.goodbye).map(|(reason, _)| reason).as_deref(), Some("done"));
    let waiting = tokio::spawn({
        let live = live.clone();
        async move { live.until_goodbye_is_stored("u").await }
    });
    live.goodbye_stored("u");
    waiting.await.expect("it ends");
}

#[test]
fn an_ended_agent_is_revoked_once() {
    let live = Live::new(1);
    live.registered("u", "g", None);
    let mut changes = live.changes();
    live.revoke("u");
    live.revoke("u");
    assert_eq!(changes.try_recv(), Ok(Change::Revoked { uid: "u".into() }));
    assert!(changes.try_recv().is_err());
}

#[tokio::test]
async fn what_is_asked_for_is_answered_when_that_very_thing_is_stored() {
    use futures::FutureExt as _;
    let live = Live::new(1);
    let wish = |words: &str| HumanRequest::Tokens(words.to_owned());
    live.asks_stored("u", wish("of nobody that we know"));
    live.ask("u", wish("a"));
    let mut waiting = Box::pin(live.until_asks_are_stored("u"));
    assert!((&mut waiting).now_or_never().is_none());
    live.asks_stored("u", HumanRequest::Nothing);
    assert!((&mut waiting).now_or_never().is_none(), "what was stored before");
    live.ask("u", wish("b"));
    live.asks_stored("u", wish("a"));
    assert!((&mut waiting).now_or_never().is_none(), "the last word counts");
    live.asks_stored("u", wish("b"));
    waiting.await;
    assert_eq!(live.view("u").and_then(|view| view.asks), Some(wish("b")));
    live.until_asks_are_stored("u").await;
}

#[test]
fn what_pods_counted_before_they_were_heard_counts_for_nobody() {
    let live = Live::new(1);
    let counts = |failed, opened| CommandCounts { failed, opened };
    let new = |failed, opened| live.commands_counted("u", counts(failed, opened));
    assert_eq!(new(7, 1), counts(0, 0), "a leader before us may have counted them");
    assert_eq!(new(9, 1), counts(2, 0));
    assert_eq!(new(9, 1), counts(0, 0), "said again");
    assert_eq!(new(3, 1), counts(0, 0), "its sidecar forgot some");
    assert_eq!(new(4, 2), counts(1, 1));
}

#[test]
fn agents_whose_own_breaker_is_not_closed_are_known_until_it_is_or_they_end() {
    let live = Live::new(1);
    let said = |uid: &str, breaker| {
        live.reported(uid, "g", Report { breaker, ..report() }, NOW);
    };
    let known = || {
        let mut known: Vec<_> = live.tripped_agents().into_iter().map(|(key, state)| (key.name, state)).collect();
        known.sort();
        known
    };
    for name in ["a", "b", "c"] {
        live.expect(name, expected(name, "n"));
    }
    said("a", BreakerState::Open);
    said("b", BreakerState::HalfOpen);
    said("c", BreakerState::Closed);
    assert_eq!(known(), [("a".to_owned(), "open"), ("b".to_owned(), "half_open")]);
    said("a", BreakerState::Closed);
    assert_eq!(known(), [("b".to_owned(), "half_open")]);
    live.revoke("b");
    said("nobody", BreakerState::Open);
    assert_eq!(known(), [], "one that nobody expects is none of a pool's");
    live.tick(UNEXPECTED_AGENT_TTL);
    assert_eq!(live.lock().tripped.len(), 0, "and is forgotten");
}

#[test]
fn a_change_of_the_breakers_of_commands_is_told_and_passing_time_is_not() {
    let live = Live::new(1);
    let breakers = |retry: Option<u64>| CommandBreakers {
        mode: Default::default(),
        force: None,
        failure_threshold: 10,
        window_milliseconds: 1,
        open_milliseconds: 1,
        backoff_factor: 1,
        max_open_milliseconds: 1,
        success_threshold: 1,
        half_open_probes: 1,
        probe_milliseconds: None,
        failure_exit_codes: Vec::new(),
        open_globally: retry.map(|retry_after_milliseconds| OpenGlobally { forced: false, retry_after_milliseconds }),
    };
    let mut changes = live.changes();
    live.commands("u", breakers(None));
    let first = live.desired_state("u");
    assert!(changes.try_recv().is_ok() && first.commands.as_deref() == Some(&breakers(None)));
    live.commands("u", breakers(None));
    assert!(changes.try_recv().is_err(), "nothing is new");
    live.commands("u", breakers(Some(60_000)));
    assert!(changes.try_recv().is_ok(), "it opened");
    let told = live.desired_state("u");
    let open = told.commands.and_then(|commands| commands.open_globally).expect("open");
    assert!(told.revision != first.revision && (1..=60_000).contains(&open.retry_after_milliseconds), "{open:?}");
    live.commands("u", breakers(Some(59_500)));
    assert!(changes.try_recv().is_err(), "the same opening");
    live.commands("u", breakers(Some(90_000)));
    assert!(changes.try_recv().is_ok(), "another one");
    live.commands("u", breakers(None));
    assert!(changes.try_recv().is_ok(), "it closed");
}

#[test]
fn only_who_was_given_a_permit_gives_it_back_and_once() {
    use crate::policy::breaker::circuit::Kind;
    let live = Live::new(1);
    let command = CommandPermit { owner: 1, epoch: 1, id: 1 };
    let permit = Permit { owner: 5, epoch: 4, id: 3, kind: Kind::Probe };
    live.add_probe("u", command, permit);
    assert_eq!((live.probe_permit("u", command), live.probe_permit("v", command)), (Some(permit), None));
    let given = CommandPermit { owner: 5, epoch: 4, id: 3 };
    assert_eq!(live.take_probe("v", given), None, "somebody else's");
    assert_eq!(live.take_probe("u", CommandPermit { id: 2, ..given }), None);
    assert_eq!((live.take_probe("u", given), live.take_probe("u", given)), (Some(permit), None));
}

#[test]
fn what_comes_after_an_agents_end_is_forgotten_and_who_is_expected_or_heard_is_not() {
    let live = Live::new(7);
    live.expect("expected", expected("a", "n"));
    live.registered("heard", "g", None);
    live.registered("ended", "g", None);
    live.revoke("ended");
    live.say_goodbye("ended", "late".into(), NOW);
    live.refused("ended", LeaseRef { uid: "i".into(), epoch: 1 }, RefusedCall { by: RefusedBy::Above, words: "no".into() });
    let spawns = live.spawn_lock("spawns");
    for _ in 0..UNEXPECTED_AGENT_TTL.as_secs() {
        live.reported("heard", "g", report(), NOW);
        live.tick(Duration::from_secs(1));
    }
    let known = |uid: &str| live.view(uid).is_some();
    assert_eq!((known("expected"), known("heard"), known("spawns"), known("ended")), (true, true, true, false));
    drop(spawns);
    live.tick(Duration::from_secs(1));
    assert!(!known("spawns") && live.lock().agents.len() == 2);
}

#[test]
fn notices_and_occurrences_of_one_agent_are_bounded() {
    let live = Live::new(7);
    for at in 0..1_000 {
        live.add_notice("u", "about", &at.to_string(), NOW);
        live.raise("u", Signal::OperationTimeout, Some("words".into()));
    }
    assert_eq!(live.desired_state("u").notices.len(), MAX_PENDING_NOTICES);
    let view = live.view("u").expect("a view");
    assert_eq!(view.occurrences[&Signal::OperationTimeout].len(), 256);
    assert_eq!(view.words.len(), 1, "the last words of each signal");
}

#[tokio::test]
async fn a_gateway_that_reads_too_slowly_is_sent_away_and_nothing_is_kept_for_it() {
    let live = Live::new(7);
    let mut slow = live.changes();
    (0..2 * MAX_CHANGE_BACKLOG).for_each(|_| live.offer("u"));
    assert!(matches!(slow.recv().await, Err(tokio::sync::broadcast::error::RecvError::Lagged(_))));
}

#[test]
fn gangs_of_which_people_were_told_are_forgotten_after_a_minute() {
    let live = Live::new(7);
    assert!(live.is_new_gang_notice("n", "words") && !live.is_new_gang_notice("n", "words"));
    live.lock().gangs.values_mut().for_each(|told| *told = BootTime::default());
    assert!(live.is_new_gang_notice("n", "other"));
    assert_eq!(live.lock().gangs.len(), 1);
}

#[test]
fn commands_that_one_agent_tries_and_never_ends_are_bounded() {
    let live = Live::new(7);
    let permit = |id| Permit { owner: 7, epoch: 1, id, kind: crate::policy::breaker::circuit::Kind::Probe };
    let command = |id| CommandPermit { owner: 1, epoch: 1, id };
    (0..1_000).for_each(|id| live.add_probe("u", command(id), permit(id)));
    let known = (0..1_000).filter(|id| live.probe_permit("u", command(*id)).is_some()).count();
    assert_eq!(known, 64);
    assert!(live.probe_permit("u", command(999)).is_some());
}
