//! The ledger after a crash: of a leader, of a gateway, of both, and of the store.

use super::estimate::Quality;
use super::hold::Settle;
use super::holding::{HoldAnswer, SettleOutcome};
use super::ledger::Ledger;
use super::node::Key;
use super::refusal::RefusalCause;
use super::session::{JournaledSettle, SESSION_TIMEOUT_MS, SessionLog};
use super::single_leader::{NOW, SingleLeader, ask, hourly, limit, place, route, top, used};
use super::view::LimitView;
use super::window::Window;

#[test]
fn a_leader_that_takes_over_counts_all_that_may_have_been_given_until_it_is_told() {
    let nodes = [hourly(100)];
    let mut one = SingleLeader::new(&nodes);
    let mut way = route("top");
    let first = one.hold(&mut way, 30);
    let second = one.hold(&mut way, 20);
    let (open, told) = (one.open(second, 20), JournaledSettle { hold: one.open(first, 30), usage: used(5), quality: Quality::Exact });
    let mut ledger = one.next_leader(&nodes);
    let rest = ledger.view(&top())[0].unexplained;
    assert!((50..=100).contains(&rest), "{rest}");
    // Another gateway may have the tokens that are certainly left.
    let (other, _) = ledger.begin(NOW, "g1", &SessionLog { next_hold: 1, ..SessionLog::default() });
    let answer = ledger.hold(NOW, other, 1, &mut route("top"), &ask(60));
    assert!(matches!(answer, HoldAnswer::Refused(refusal) if refusal.cause == RefusalCause::Recovering));
    assert_eq!(ledger.awaited(), ["g0"]);
    let log = SessionLog { next_hold: 3, acked: 0, settles: vec![told], open: vec![open], ..SessionLog::default() };
    for _ in 0..2 {
        let (session, _) = ledger.begin(NOW, "g0", &log);
        let LimitView { used, held, lost, unexplained: rest, .. } = ledger.view(&top()).remove(0);
        assert_eq!((used, held, lost, rest), (5, 20, 0, 0), "what nobody explains was never given");
        assert_eq!(session, ledger.begin(NOW, "g0", &log).0, "told again it is the same");
    }
}

#[test]
fn nothing_is_acknowledged_before_a_record_that_may_have_been_written_behind_our_back_is_ours() {
    let nodes = [place(top(), None, vec![limit(Window::Hour, 1000, 0)]), place(Key::budget("team", "low"), Some(top()), Vec::new())];
    let mut one = SingleLeader::new(&nodes);
    one.hold(&mut route("top"), 1);
    // The next leader reads. Then the former one, which does not know it, admits the session to one more record.
    let mut next = one.next_leader(&nodes);
    let hold = one.hold(&mut route("low"), 30);
    let log = SessionLog { next_hold: one.next, open: vec![one.open(hold, 30)], ..SessionLog::default() };
    let (session, _) = next.begin(NOW, "g0", &log);
    let settle = Settle { seq: 1, hold, usage: used(20), quality: Quality::Exact, input: 0, output: 30 };
    assert_eq!(next.settle(NOW, session, &settle), SettleOutcome::Counted);
    let write = |ledger: &mut Ledger, key: &Key| {
        let draft = ledger.draft(NOW + 60_000, key).expect("there is something to write");
        ledger.written(&draft);
        ledger.acknowledged(session)
    };
    assert_eq!(write(&mut next, &top()), 0, "the other record does not contain it");
    assert_eq!(write(&mut next, &Key::budget("team", "low")), 1, "nobody wrote that one: the session held nothing there");
}

#[test]
fn a_gateway_that_dies_with_the_leader_is_charged_what_may_have_been_given_and_credited_if_it_comes_back() {
    let nodes = [hourly(100)];
    let mut one = SingleLeader::new(&nodes);
    let hold = one.hold(&mut route("top"), 30);
    let open = one.open(hold, 30);
    let mut ledger = one.next_leader(&nodes);
    let rest = ledger.view(&top())[0].unexplained;
    assert_eq!(ledger.tick(NOW, SESSION_TIMEOUT_MS - 1), [""; 0]);
    assert_eq!(ledger.tick(NOW, SESSION_TIMEOUT_MS), ["g0"]);
    let draft = ledger.draft(NOW, &top()).expect("it is to be charged");
    assert_eq!((draft.saved.acked.len(), draft.saved.places[0].windows[0].lost), (0, rest));
    ledger.written(&draft);
    let mut late = ledger.clone();
    let log = SessionLog { next_hold: 2, acked: 0, open: vec![open.clone()], ..SessionLog::default() };
    late.begin(NOW, "g0", &log);
    let LimitView { used, held, lost, unexplained: left, .. } = late.view(&top()).remove(0);
    assert_eq!((used, held, lost, left), (0, 30, 0, 0), "only what it holds");
    // A third leader only knows that it was charged: the charge stays, and nothing counts twice.
    let mut third = Ledger::new(NOW);
    third.load(&top(), &draft.saved);
    third.set_tree(&nodes);
    third.begin(NOW, "g0", &log);
    let LimitView { used, held, lost, unexplained: left, .. } = third.view(&top()).remove(0);
    assert_eq!((used, held, lost, left), (0, 0, rest, 0));
    ledger.tick(NOW, SESSION_TIMEOUT_MS + super::session::DEAD_SESSION_TTL_MS);
    let LimitView { lost, unexplained: left, .. } = ledger.view(&top()).remove(0);
    assert_eq!((lost, left), (rest, 0), "in the end it is lost");
}

#[test]
fn a_gateway_that_dies_alone_is_charged_exactly_what_it_held() {
    let mut one = SingleLeader::new(&[hourly(100)]);
    let mut way = route("top");
    let first = one.hold(&mut way, 30);
    let second = one.hold(&mut way, 20);
    one.settle(first, 10);
    let open = one.open(second, 20);
    one.ledger.tick(NOW, SESSION_TIMEOUT_MS);
    assert_eq!(one.at(&top()), (10, 0, 20), "I7");
    assert_eq!(one.ledger.hold(NOW, one.session, 9, &mut way, &ask(1)), HoldAnswer::Unattached);
    one.write();
    assert_eq!(one.stored[0].1.acked, [], "who is charged is not waited for");
    let mut late = one.ledger.clone();
    late.begin(NOW, "g0", &SessionLog { next_hold: 1, ..SessionLog::default() });
    let LimitView { used: spent, held, lost, .. } = late.view(&top()).remove(0);
    assert_eq!((spent, held, lost), (10, 20, 0), "an old log that arrives late says that it is back, and no more");
    let log = SessionLog {
        next_hold: 3,
        acked: 1,
        settles: vec![JournaledSettle { hold: open, usage: used(4), quality: Quality::Exact }],
        ..SessionLog::default()
    };
    one.ledger.begin(NOW, "g0", &log);
    assert_eq!(one.at(&top()), (14, 0, 0), "a late settle credits it");
    one.write();
    assert_eq!(one.acked, 2);
}

#[test]
fn a_gateway_that_leaves_is_not_waited_for() {
    let nodes = [hourly(100)];
    let mut one = SingleLeader::new(&nodes);
    let hold = one.hold(&mut route("top"), 30);
    one.settle(hold, 10);
    one.write();
    one.ledger.end(NOW, one.session);
    one.write();
    let ledger = one.next_leader(&nodes);
    assert_eq!((ledger.awaited().len(), ledger.view(&top())[0].unexplained), (0, 0));
}

#[test]
fn replayed_settles_count_once_in_records_that_lost_them() {
    let low = Key::budget("team", "low");
    let nodes = [hourly(1000), place(low.clone(), Some(top()), vec![limit(Window::Hour, 500, 0)])];
    let mut one = SingleLeader::new(&nodes);
    let mut replayed = Vec::new();
    let call = |one: &mut SingleLeader, budget: &str, amount: i64| {
        let hold = one.hold(&mut route(budget), amount);
        let open = one.open(hold, amount);
        one.settle(hold, amount);
        one.write();
        (one.acked, JournaledSettle { hold: open, usage: used(amount), quality: Quality::Exact })
    };
    call(&mut one, "top", 30);
    let before = one.stored.clone();
    // The record of the lower Budget does not know the session yet.
    for (budget, amount) in [("low", 10), ("top", 5), ("low", 20)] {
        replayed.push(call(&mut one, budget, amount));
    }
    assert_eq!(replayed.iter().map(|(seq, _)| *seq).collect::<Vec<_>>(), [2, 3, 4]);
    one.stored = before;
    let log = SessionLog { next_hold: one.next, acked: one.acked, rolled_back: true, replayed, ..SessionLog::default() };

    let mut leader = one.next_leader(&nodes);
    let (_, acked) = leader.begin(NOW, "g0", &log);
    assert!(acked < log.acked, "it is not stored yet");
    leader.begin(NOW, "g0", &log);
    let mut second = SingleLeader::on(leader);
    assert_eq!((second.at(&top()), second.at(&low)), ((65, 0, 0), (30, 0, 0)));
    second.write();
    assert_eq!(second.acked, log.acked);

    // The next leader has it in its records.
    let mut third = second.next_leader(&nodes);
    third.begin(NOW, "g0", &log);
    let third = SingleLeader::on(third);
    assert_eq!((third.at(&top()), third.at(&low)), ((65, 0, 0), (30, 0, 0)));

    // Without a rollback the records are complete: what they do not contain was charged in another way.
    let mut other = one.next_leader(&nodes);
    other.begin(NOW, "g0", &SessionLog { rolled_back: false, ..log });
    assert_eq!(SingleLeader::on(other).at(&top()), (30, 0, 0));
}

#[test]
fn an_open_hold_counts_again_at_a_record_that_lost_the_session() {
    let mut one = SingleLeader::new(&[hourly(1000)]);
    let empty = one.stored.clone();
    let hold = one.hold(&mut route("top"), 40);
    let open = one.open(hold, 40);
    let log = SessionLog { next_hold: one.next, open: vec![open], rolled_back: true, ..SessionLog::default() };
    one.stored = empty;
    for (rolled_back, held) in [(true, 40), (false, 0)] {
        let mut leader = one.next_leader(&[hourly(1000)]);
        let (session, _) = leader.begin(NOW, "g0", &SessionLog { rolled_back, ..log.clone() });
        let settle = Settle { seq: 1, hold, usage: used(25), quality: Quality::Exact, input: 0, output: 40 };
        assert_eq!(leader.view(&top()).remove(0).held, held);
        leader.settle(NOW, session, &settle);
        assert_eq!(leader.view(&top()).remove(0).used, if rolled_back { 25 } else { 0 });
    }
}
