//! The ledger with one leader and a store that accepts every write: limits, reservations, thresholds, refusals,
//! windows, changes under open holds. `ledger_recovery_tests.rs` tests crashes.

use super::counter::MAX_PAST_WINDOWS;
use super::estimate::{HoldRequest, Quality, Weights};
use super::facts::Reservation;
use super::hold::Settle;
use super::holding::{HoldAnswer, SettleOutcome};
use super::ledger::MAX_SESSIONS_PER_RECORD;
use super::node::{Action, Block, Debt, Grant, Key, Mode, NodeSpec, Threshold};
use super::refusal::{RefusalCause, RetryHint};
use super::route::Route;
use super::session::{JournaledSettle, SessionLog};
use super::share::{Lifetime, agent, reservation_spec, task};
use super::simulation::audit;
use super::single_leader::{HOUR, NOW, SingleLeader, ask, hourly, limit, place, route, top, used};
use super::window::Window;

#[test]
fn a_hold_and_a_settle_count_once_and_are_acknowledged_after_the_write() {
    let mut one = SingleLeader::new(&[hourly(100)]);
    let mut route = route("top");
    assert!(matches!(one.ledger.hold(NOW, one.session, 1, &mut route, &ask(40)), HoldAnswer::Write(keys) if keys == [top()]));
    one.write();
    let given = one.ledger.hold(NOW, one.session, 1, &mut route, &ask(40));
    assert!(matches!(given, HoldAnswer::Given(_)));
    assert_eq!(one.ledger.hold(NOW + 5, one.session, 1, &mut route, &ask(40)), given, "a repeat gets the same");
    assert_eq!(one.at(&top()), (0, 40, 0));
    let settle = Settle { seq: 1, hold: 1, usage: used(30), quality: Quality::Exact, input: 0, output: 40 };
    assert_eq!(one.ledger.settle(NOW, one.session, &Settle { seq: 2, ..settle }), SettleOutcome::Gap(1));
    assert_eq!(one.ledger.settle(NOW, one.session, &settle), SettleOutcome::Counted);
    assert_eq!(one.ledger.settle(NOW, one.session, &settle), SettleOutcome::Repeated);
    assert_eq!(one.ledger.settle(NOW, one.session, &Settle { seq: 2, ..settle }), SettleOutcome::Unknown, "the hold is over");
    assert_eq!(one.ledger.hold(NOW, one.session, 1, &mut route, &ask(40)), HoldAnswer::Closed, "a late repeat holds nothing");
    assert_eq!((one.at(&top()), one.acked), ((30, 0, 0), 0));
    let draft = one.ledger.draft(NOW, &top()).expect("there is something to write");
    assert_eq!(one.ledger.draft(NOW, &top()), None, "one at a time");
    one.ledger.failed(&draft);
    assert_eq!(one.ledger.written(&draft).acked, [], "a write that failed acknowledges nothing");
    one.write();
    assert_eq!(one.acked, 2);
}

#[test]
fn a_call_is_charged_what_it_used_or_what_was_held_if_that_is_not_known() {
    let mut one = SingleLeader::new(&[hourly(1000)]);
    let mut route = route("top");
    for (quality, actual, charged) in [
        (Quality::Exact, 5, 5),
        (Quality::Exact, 25, 25),
        (Quality::Partial, 5, 20),
        (Quality::Partial, 25, 25),
        (Quality::Estimated, 0, 20),
    ] {
        let before = one.at(&top()).0;
        let hold = one.hold(&mut route, 20);
        one.settle_as(hold, actual, quality);
        assert_eq!(one.at(&top()).0 - before, charged, "{quality:?} {actual}");
    }
}

#[test]
fn output_is_cut_to_what_is_left_everywhere_and_not_below_its_floor() {
    let low = place(Key::budget("team", "low"), Some(top()), vec![limit(Window::Day, 50, 0)]);
    let dear = NodeSpec { weights: Weights { output: 2000, ..Weights::default() }, ..hourly(60) };
    let mut one = SingleLeader::new(&[dear, low]);
    let mut route = route("low");
    let wants = HoldRequest { input: 10, output: 100, min_output: 5, choices: 2 };
    let (hold, output) = one.try_hold(&mut route, &wants).expect("less fits");
    assert_eq!(output, 24, "(60 - 10) / 2 at the top, for two choices a multiple of two");
    one.settle(hold, 0);
    let (_, output) = one.try_hold(&mut route, &HoldRequest { min_output: 12, ..wants }).expect("it just fits");
    assert_eq!(output, 24);
    let refusal = one.try_hold(&mut route, &HoldRequest { min_output: 5, ..wants }).expect_err("all is held");
    assert_eq!((refusal.key.clone(), &refusal.cause), (top(), &RefusalCause::Held));
    assert!(matches!(refusal.retry, RetryHint::Wait(1..=5)), "holds are waited for");
}

#[test]
fn refusals_say_where_why_and_until_when() {
    let agents = agent("a", &Lifetime { tokens: 70, top_up: 0, max: 0, taken: 0 });
    let mut one = SingleLeader::new(&[hourly(100)]);
    one.ledger.put(agents);
    let mut own = Route::new(vec![Key::Agent("a".into())], Some(top()), "worker");
    let mut route = route("top");
    let refusal = one.refused(&mut own, 71);
    assert_eq!((refusal.cause.clone(), refusal.retry, refusal.above_agent()), (RefusalCause::TooLarge, RetryHint::Never, false));
    let hold = one.hold(&mut own, 60);
    let refusal = one.refused(&mut own, 20);
    assert_eq!((refusal.cause.clone(), refusal.above_agent()), (RefusalCause::Held, false));
    assert_eq!(one.refused(&mut route, 50).cause, RefusalCause::Held);
    one.settle(hold, 60);
    let refusal = one.refused(&mut own, 20);
    assert_eq!((refusal.cause.clone(), refusal.retry, refusal.resets_at()), (RefusalCause::Used, RetryHint::Never, None));
    let refusal = one.refused(&mut route, 50);
    assert_eq!((refusal.cause.clone(), refusal.retry), (RefusalCause::Used, RetryHint::Later(NOW + HOUR)));
    let standing = refusal.limit.expect("a limit of tokens");
    assert_eq!((standing.limit, standing.used, standing.held, standing.left, standing.asked), (100, 60, 0, 40, 50));
    one.now = NOW + HOUR - 30_000;
    assert_eq!(one.refused(&mut route, 50).retry, RetryHint::Wait(30), "a window that ends soon is waited for");
    one.now = NOW + HOUR;
    one.hold(&mut route, 100);
    let mut lost = Route::new(Vec::new(), Some(Key::budget("team", "gone")), "worker");
    assert_eq!(one.refused(&mut lost, 1).cause, RefusalCause::Missing);
}

#[test]
fn of_several_hindrances_the_most_final_is_named() {
    let low = place(Key::budget("team", "low"), Some(top()), vec![limit(Window::Hour, 10, 0), limit(Window::Lifetime, 12, 0)]);
    let mut one = SingleLeader::new(&[hourly(100), low]);
    let mut route = route("low");
    let hold = one.hold(&mut route, 10);
    assert!(matches!(one.refused(&mut route, 5).retry, RetryHint::Wait(_)), "held: waited for");
    one.settle(hold, 10);
    let refusal = one.refused(&mut route, 5);
    assert_eq!((refusal.retry, refusal.limit.map(|limit| limit.name)), (RetryHint::Never, Some("lifetime".into())));
}

#[test]
fn a_blocked_budget_gives_nothing_and_others_go_on() {
    let low = place(Key::budget("team", "low"), None, vec![limit(Window::Hour, 10, 0)]);
    let block = Block::ParentMissing("gone".into());
    let mut one = SingleLeader::new(&[hourly(100), NodeSpec { block: Some(block.clone()), ..low }]);
    assert_eq!(one.refused(&mut route("low"), 1).cause, RefusalCause::Blocked(block));
    one.hold(&mut route("top"), 1);
}

#[test]
fn the_schedulers_share_is_kept_for_it_and_no_more_than_that_is_its() {
    let thresholds = vec![Threshold { percent: 100, action: Action::Pause }];
    let mut team = NodeSpec { thresholds, ..hourly(100) };
    let reservation = Reservation { name: "scheduler".into(), pool_types: vec!["scheduler".into()], percent: 20, cap: true };
    let share = reservation_spec(&team, &reservation);
    team.shares = vec![("scheduler".into(), share.key.clone())];
    let mut one = SingleLeader::new(&[team, share.clone()]);
    let (mut workers, mut scheduler) = (route("top"), Route::new(Vec::new(), Some(top()), "scheduler"));
    let refusal = one.refused(&mut workers, 81);
    assert_eq!((refusal.cause.clone(), refusal.limit.as_ref().map(|limit| limit.left)), (RefusalCause::Guaranteed, Some(80)));
    let hold = one.hold(&mut workers, 80);
    one.settle(hold, 80);
    assert!(one.view(&top()).paused, "workers have spent all that they may");
    assert_eq!(one.refused(&mut workers, 1).cause, RefusalCause::Paused);
    assert_eq!(one.refused(&mut scheduler, 21).key, share.key, "it is capped");
    one.hold(&mut scheduler, 20);
    assert_eq!(one.at(&top()), (80, 20, 0));
}

#[test]
fn workers_leave_schedulers_their_share_of_the_calls_at_once() {
    let mut team = NodeSpec { max_in_flight: Some(5), ..hourly(1000) };
    let reservation = Reservation { name: "scheduler".into(), pool_types: vec!["scheduler".into()], percent: 20, cap: false };
    let share = NodeSpec { sure_in_flight: 1, ..reservation_spec(&team, &reservation) };
    team.shares = vec![("scheduler".into(), share.key.clone())];
    let mut one = SingleLeader::new(&[team, share]);
    let (mut workers, mut scheduler) = (route("top"), Route::new(Vec::new(), Some(top()), "scheduler"));
    let of_workers: Vec<u64> = (0..4).map(|_| one.hold(&mut workers, 1)).collect();
    assert_eq!(one.refused(&mut workers, 1).cause, RefusalCause::InFlight);
    one.hold(&mut scheduler, 1);
    assert_eq!(one.refused(&mut scheduler, 1).cause, RefusalCause::InFlight, "there are no more than five");
    one.settle(of_workers[0], 1);
    one.hold(&mut scheduler, 1);
    assert_eq!(one.refused(&mut workers, 1).cause, RefusalCause::InFlight, "what is free is anybody's, once the share is in use");
    one.settle(of_workers[1], 1);
    one.hold(&mut workers, 1);
}

#[test]
fn a_budget_that_observes_refuses_nothing_and_counts_what_it_would_have() {
    let mut one = SingleLeader::new(&[NodeSpec { mode: Mode::Observe, ..hourly(10) }]);
    let mut route = route("top");
    let first = one.hold(&mut route, 10);
    let second = one.hold(&mut route, 50);
    one.settle(first, 10);
    one.settle(second, 50);
    assert_eq!((one.at(&top()), one.ledger.traffic(&top())), ((60, 0, 0), (0, 1)));
    one.now = NOW + HOUR;
    one.hold(&mut route, 1);
    assert_eq!(one.view(&top()).debt, 0, "nothing is owed to it");
    let mut off = SingleLeader::new(&[NodeSpec { mode: Mode::Disabled, ..hourly(10) }]);
    off.hold(&mut self::route("top"), 50);
    assert_eq!(off.at(&top()), (0, 0, 0));
}

#[test]
fn calls_in_flight_are_limited() {
    let mut one = SingleLeader::new(&[NodeSpec { max_in_flight: Some(2), ..hourly(100) }]);
    let mut route = route("top");
    let first = one.hold(&mut route, 1);
    one.hold(&mut route, 1);
    let refusal = one.refused(&mut route, 1);
    assert_eq!((&refusal.cause, refusal.field.as_str()), (&RefusalCause::InFlight, "spec.requests.maxInFlight"));
    assert!(matches!(refusal.retry, RetryHint::Wait(_)));
    one.settle(first, 1);
    one.hold(&mut route, 1);
}

#[test]
fn a_hold_counts_in_the_window_it_was_given_in_and_debt_goes_into_the_next() {
    let mut one = SingleLeader::new(&[hourly(100)]);
    let mut route = route("top");
    let hold = one.hold(&mut route, 60);
    one.now = NOW + HOUR;
    let other = one.hold(&mut route, 100);
    assert_eq!(one.at(&top()), (0, 100, 0), "a new window is empty");
    one.settle(hold, 130);
    assert_eq!((one.at(&top()), one.view(&top()).debt), ((0, 100, 0), 30), "I10: what is too much is owed by the next");
    one.settle(other, 50);
    assert_eq!(one.refused(&mut route, 21).cause, RefusalCause::Used);
    one.hold(&mut route, 20);
    // The next leader knows it too.
    one.write();
    let mut next = SingleLeader::on(one.next_leader(&[hourly(100)]));
    next.now = one.now;
    assert_eq!(next.view(&top()).debt, 30);
    let mut forgiving = SingleLeader::new(&[NodeSpec { debt: Debt::Forgive, ..hourly(100) }]);
    let hold = forgiving.hold(&mut self::route("top"), 60);
    forgiving.settle(hold, 130);
    forgiving.now = NOW + HOUR;
    forgiving.hold(&mut self::route("top"), 100);
}

#[test]
fn a_hold_of_a_window_that_is_not_kept_any_more_ends_all_the_same() {
    let mut one = SingleLeader::new(&[hourly(100)]);
    let mut route = route("top");
    let hold = one.hold(&mut route, 60);
    one.now = NOW + 9 * HOUR;
    for hour in 1..9 {
        one.now = NOW + hour * HOUR;
        one.hold(&mut route, 1);
    }
    one.settle(hold, 50);
    assert_eq!(one.at(&top()), (0, 1, 0));
    audit(&one.ledger, true);
}

#[test]
fn a_call_can_be_extended_while_there_is_room() {
    let mut one = SingleLeader::new(&[hourly(100)]);
    let mut route = route("top");
    let hold = one.hold(&mut route, 60);
    let extend = |one: &mut SingleLeader, output| loop {
        match one.ledger.extend(one.now, one.session, hold, output) {
            HoldAnswer::Write(_) => one.write(),
            other => return other,
        }
    };
    for _ in 0..2 {
        assert!(matches!(extend(&mut one, 90), HoldAnswer::Given(given) if given.output == 90));
        assert_eq!(one.at(&top()).1, 90, "a repeat changes nothing");
    }
    assert!(matches!(extend(&mut one, 70), HoldAnswer::Given(given) if given.output == 90));
    assert!(matches!(extend(&mut one, 101), HoldAnswer::Refused(_)));
    one.now = NOW + HOUR;
    assert!(matches!(extend(&mut one, 95), HoldAnswer::Given(_)), "in its own window");
    assert!(matches!(extend(&mut one, 101), HoldAnswer::Refused(_)));
    assert_eq!(one.at(&top()), (0, 0, 0));
    one.settle(hold, 101);
    assert_eq!(one.view(&top()).debt, 1, "it finished all the same");
    assert_eq!(extend(&mut one, 200), HoldAnswer::Closed);
}

#[test]
fn a_call_of_a_window_that_is_not_kept_any_more_gets_no_more_than_it_has() {
    let minutely = place(top(), None, vec![limit(Window::Minute, 100, 0), limit(Window::Day, 1000, 0)]);
    let mut one = SingleLeader::new(&[minutely]);
    let mut path = route("top");
    let hold = one.hold(&mut path, 60);
    let most_kept = i64::try_from(MAX_PAST_WINDOWS).expect("small");
    for minute in 1..=most_kept {
        one.now = NOW + minute * 60_000;
        one.hold(&mut path, 1);
    }
    let extend = |one: &mut SingleLeader, output| match one.ledger.extend(one.now, one.session, hold, output) {
        HoldAnswer::Write(_) => {
            one.write();
            one.ledger.extend(one.now, one.session, hold, output)
        }
        other => other,
    };
    assert!(matches!(extend(&mut one, 70), HoldAnswer::Given(_)), "its window is the oldest that is kept");
    one.now += 60_000;
    assert!(matches!(extend(&mut one, 80), HoldAnswer::Refused(_)), "nobody knows what is left of its minute");
    one.settle(hold, 80);
    assert_eq!(one.ledger.view(&top())[1].used, 80, "it finished all the same, and the day counts all of it");
}

#[test]
fn what_is_not_known_is_charged_by_the_gateways_journal_and_not_by_what_this_leader_remembers() {
    let mut one = SingleLeader::new(&[hourly(1000)]);
    let hold = one.hold(&mut route("top"), 20);
    let open = one.open(hold, 20);
    while matches!(one.ledger.extend(one.now, one.session, hold, 90), HoldAnswer::Write(_)) {
        one.write();
    }
    assert_eq!(one.at(&top()), (0, 90, 0));
    // The gateway was killed before it received the answer.
    let told = JournaledSettle { hold: open, usage: used(5), quality: Quality::Partial };
    assert_eq!(one.ledger.settle(one.now, one.session, &told.settle(1)), SettleOutcome::Counted);
    assert_eq!(one.at(&top()), (20, 0, 0), "as by the next leader, who never heard of the rest");
}

#[test]
fn grants_raise_a_limit_once_however_often_they_are_told() {
    let mut one = SingleLeader::new(&[hourly(100)]);
    let mut route = route("top");
    let grant = |id: &str, until| Grant { id: id.into(), limit: "hour".into(), tokens: 50, from: NOW, until };
    let grants = [grant("a", None), grant("a", None), grant("b", Some(NOW + HOUR + 1000))];
    for _ in 0..2 {
        one.ledger.set_grants(one.now, &top(), &grants);
        assert_eq!(one.view(&top()).height, 200, "I11");
    }
    let hold = one.hold(&mut route, 200);
    one.settle(hold, 200);
    one.now = NOW + HOUR;
    assert!(one.try_hold(&mut route, &ask(151)).is_err());
    assert_eq!(one.view(&top()).height, 150, "one was for the window, the other until a time");
    one.now = NOW + HOUR + 1000;
    assert!(one.try_hold(&mut route, &ask(101)).is_err());
    assert_eq!((one.view(&top()).height, one.view(&top()).debt), (100, 0));
}

#[test]
fn a_threshold_is_told_once_a_window_and_height_by_whatever_leader() {
    let thresholds = vec![Threshold { percent: 50, action: Action::Warn }, Threshold { percent: 100, action: Action::Pause }];
    let nodes = [NodeSpec { thresholds, ..hourly(100) }];
    let mut one = SingleLeader::new(&nodes);
    let mut route = route("top");
    let hold = one.hold(&mut route, 60);
    assert_eq!(one.events.len(), 0, "not before it is durable");
    one.write();
    one.settle(hold, 60);
    one.write();
    let told = |one: &SingleLeader| one.events.iter().map(|event| (event.threshold.percent, event.height)).collect::<Vec<_>>();
    assert_eq!(told(&one), [(50, 100)], "I12");
    let hold = one.hold(&mut route, 40);
    one.settle(hold, 40);
    assert_eq!(one.refused(&mut route, 1).cause, RefusalCause::Used);
    one.write();
    assert_eq!(told(&one), [(50, 100), (100, 100)]);
    let mut next = SingleLeader::on(one.next_leader(&nodes));
    next.write();
    assert!(next.view(&top()).paused);
    assert_eq!(next.events.len(), 0, "the leader after it does not tell it again");
    let grant = Grant { id: "a".into(), limit: "hour".into(), tokens: 20, from: NOW, until: None };
    next.ledger.set_grants(NOW, &top(), &[grant]);
    assert!(!next.view(&top()).paused, "a grant un-pauses");
    next.write();
    assert_eq!(told(&next), [(50, 120)], "and arms again");
    next.now = NOW + HOUR;
    let hold = next.hold(&mut self::route("top"), 50);
    next.settle(hold, 0);
    next.write();
    assert_eq!(told(&next), [(50, 120), (50, 100)], "so does a new window");
}

#[test]
fn an_agents_life_is_raised_in_quarters_and_an_items_share_at_once() {
    let mut one = SingleLeader::new(&[hourly(1_000_000)]);
    one.ledger.put(agent("a", &Lifetime { tokens: 10_000, top_up: 0, max: 0, taken: 0 }));
    one.ledger.put(task("item", 3, 4000));
    let leafs = vec![Key::Task { item: "item".into(), epoch: 3 }, Key::Agent("a".into())];
    let mut route = Route::new(leafs.clone(), Some(top()), "worker");
    one.hold(&mut route, 100);
    let high = |key: &Key| one.stored.iter().find(|(other, _)| other == key).map(|(_, saved)| saved.places[0].windows[0].high);
    assert_eq!((high(&leafs[0]), high(&leafs[1])), (Some(4000), Some(2600)));
    assert_eq!(one.ledger.available_tokens(&mut route), 3900);
    one.ledger.remove(&leafs[0]);
    assert_eq!(one.refused(&mut route, 1).cause, RefusalCause::Missing, "the lease is over");
}

#[test]
fn places_may_change_under_open_holds() {
    let low = |parent: &str, tokens| {
        place(Key::budget("team", "low"), Some(Key::budget("team", parent)), vec![limit(Window::Hour, tokens, tokens)])
    };
    let other = place(Key::budget("team", "other"), None, vec![limit(Window::Hour, 100, 0)]);
    let mut one = SingleLeader::new(&[hourly(100), other.clone(), low("top", 60)]);
    let mut route = route("low");
    let (first, second) = (one.hold(&mut route, 30), one.hold(&mut route, 10));
    one.ledger.set_tree(&[hourly(100), other.clone(), low("other", 50)]);
    one.settle(first, 20);
    audit(&one.ledger, true);
    assert_eq!((one.at(&top()), one.at(&other.key)), ((20, 10, 0), (0, 0, 0)), "it is settled where it was held");
    one.hold(&mut route, 5);
    assert_eq!((one.at(&top()), one.at(&other.key)), ((20, 10, 0), (0, 5, 0)), "new ones go the new way");
    // A limit that was added after the hold does not count it, and neither does a removed place.
    let mut wide = low("other", 50);
    wide.limits.push(limit(Window::Day, 70, 0));
    one.ledger.set_tree(&[other.clone(), wide]);
    one.settle(second, 10);
    audit(&one.ledger, true);
    let views: Vec<_> = one.ledger.view(&Key::budget("team", "low")).iter().map(|view| (view.used, view.held)).collect();
    assert_eq!(views, [(30, 5), (0, 0)]);
    one.write();
}

#[test]
fn a_namespace_that_comes_back_finds_what_it_spent() {
    let cluster = place(Key::Cluster("all".into()), None, vec![limit(Window::Hour, 1000, 0)]);
    let key = Key::Namespace { cluster: "all".into(), namespace: "team".into() };
    let space = place(key.clone(), Some(cluster.key.clone()), vec![limit(Window::Hour, 100, 0)]);
    let mut one = SingleLeader::new(&[cluster.clone(), space.clone()]);
    let mut route = Route::new(Vec::new(), Some(key.clone()), "worker");
    let hold = one.hold(&mut route, 70);
    one.settle(hold, 70);
    one.ledger.set_tree(std::slice::from_ref(&cluster));
    one.write();
    one.ledger.set_tree(&[cluster.clone(), space.clone()]);
    assert_eq!(one.at(&key).0, 70, "a label taken off and put on again is no new budget");
    one.ledger.set_tree(std::slice::from_ref(&cluster));
    one.write();
    let next = one.next_leader(&[cluster, space]);
    assert_eq!(next.view(&key)[0].used, 70);
}

#[test]
fn no_more_sessions_than_a_record_can_name() {
    let mut one = SingleLeader::new(&[hourly(1000)]);
    let mut route = route("top");
    let begin = |one: &mut SingleLeader, index: usize| {
        one.ledger.begin(NOW, &format!("s{index}"), &SessionLog { next_hold: 1, ..SessionLog::default() }).0
    };
    let mut sessions = Vec::new();
    for index in 0..MAX_SESSIONS_PER_RECORD {
        sessions.push(begin(&mut one, index));
        let mut hold = |one: &mut SingleLeader| one.ledger.hold(NOW, sessions[index], 1, &mut route, &ask(1));
        assert!(matches!(hold(&mut one), HoldAnswer::Write(_)));
        one.write();
        assert!(matches!(hold(&mut one), HoldAnswer::Given(_)));
    }
    let late = begin(&mut one, 999);
    let answer = one.ledger.hold(NOW, late, 1, &mut route, &ask(1));
    assert!(matches!(answer, HoldAnswer::Refused(refusal) if refusal.cause == RefusalCause::Gateways));
    let settle = Settle { seq: 1, hold: 1, usage: used(1), quality: Quality::Exact, input: 0, output: 1 };
    one.ledger.settle(NOW, sessions[7], &settle);
    one.write();
    assert!(one.ledger.record_report(sessions[7], 2, 1), "it holds nothing and owes nothing");
    assert!(matches!(one.ledger.hold(NOW, late, 1, &mut route, &ask(1)), HoldAnswer::Write(_)));
    one.write();
    let named = &one.stored[0].1.acked;
    assert!(
        named.len() == MAX_SESSIONS_PER_RECORD
            && named.iter().all(|acked| acked.session != "s7")
            && named.iter().any(|acked| acked.session == "s999")
    );
}

#[test]
fn a_clock_that_is_wrong_brings_no_window_back() {
    let nodes = [hourly(100)];
    let mut one = SingleLeader::new(&nodes);
    let mut route = route("top");
    one.now = NOW + 5 * HOUR;
    let hold = one.hold(&mut route, 100);
    one.settle(hold, 100);
    one.now = NOW;
    assert_eq!(one.refused(&mut route, 1).cause, RefusalCause::Used, "back in time there is no other window");
    one.now = NOW + 5 * HOUR + 60_000;
    one.write();
    one.now = NOW;
    let mut next = SingleLeader::on(one.next_leader(&nodes));
    assert_eq!(next.refused(&mut self::route("top"), 1).cause, RefusalCause::Used, "nor for a new leader whose clock is behind");
}
