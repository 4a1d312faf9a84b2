//! Tests of when an item is claimed, and how often.

use super::*;

#[test]
fn it_claims_only_when_it_may_and_has_nothing_in_hand() {
    type Change = fn(&mut Fixture);
    let cases: [(&str, Change); 7] = [
        ("not registered, paused, walls open, ending", |room| room.may_claim = false),
        ("no supervisor", |room| room.supervisor = None),
        ("not told to start", |room| room.supervisor = Some((SupervisorView { held: Some(None), ..SupervisorView::default() }, false))),
        ("it said nothing yet", |room| room.supervisor = Some((SupervisorView::default(), true))),
        ("it holds an item", |room| room.connect(Some(7))),
        ("an item is in hand", |room| room.sidecar_work.take(assignment(1))),
        ("its items are done", |room| (room.how.max_items, room.sidecar_work.kept.done) = (Some(3), 3)),
    ];
    for (why, change) in cases {
        let mut room = Fixture::new(Run::PerItem);
        change(&mut room);
        assert!(!room.plan(0).1.iter().any(|action| matches!(action, WorkAction::Claim(_))), "{why}");
    }
    let mut room = Fixture::new(Run::PerItem);
    assert_eq!(room.plan(0), (Vec::new(), vec![WorkAction::Claim(25)]));
    assert_eq!(room.plan(1), nothing(), "one at a time");
}

#[test]
fn nothing_is_asked_for_again_at_once_but_never_in_a_tight_loop() {
    let mut room = Fixture::new(Run::PerItem);
    room.plan(0);
    room.claimed(25_000, CallOutcome::Done(None));
    assert_eq!(room.plan(25_000).1, [WorkAction::Claim(25)]);
    room.claimed(25_010, CallOutcome::Done(None));
    assert_eq!((room.plan(25_010), room.wake), (nothing(), at(26_000)), "a gateway that does not wait");
    assert_eq!(room.plan(26_000).1, [WorkAction::Claim(25)]);
    room.claimed(26_000, CallOutcome::Silence);
    assert_eq!((room.plan(26_000), room.wake), (nothing(), at(26_100)));
    room.plan(26_100);
    room.claimed(26_100, CallOutcome::Refused(Refusal::new(Code::GovernorAway, "x")));
    assert_eq!((room.plan(26_100), room.wake), (nothing(), at(26_300)), "and longer each time");
    room.plan(26_300);
    room.sidecar_work.on_claim_answer(at(26_300), CallOutcome::Silence, Duration::from_secs(7), 1.0);
    assert_eq!((room.plan(26_300), room.wake), (nothing(), at(33_300)), "the gateway may ask for more");
}

#[test]
fn short_items_do_not_use_up_what_a_gateway_takes_from_an_agent() {
    let mut room = busy(Run::PerItem);
    room.sidecar_work.on_supervisor_end(held(1), complete("x"));
    room.plan(10);
    room.delivered(20, 1, CallOutcome::Done(()));
    room.plan(20);
    room.says(None);
    assert_eq!((room.plan(30), room.wake), (nothing(), at(200)));
    assert_eq!(room.plan(200).1, [WorkAction::Claim(25)]);
}
