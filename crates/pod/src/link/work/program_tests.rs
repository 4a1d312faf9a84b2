//! Tests of a program's questions and reports about items, and of their answers. Orders of the gateway are in `work_tests.rs`.

use spillway_wire::sandbox::ItemSandbox;

use super::*;

#[test]
fn what_the_program_said_is_told_before_it_is_answered() {
    let mut room = busy(Run::PerItem);
    assert_eq!(room.sidecar_work.report_item_end(at(0), 5, complete("well"), Some(Run::PerItem)), None);
    let said = Order::Said(held(1), complete("well"));
    assert_eq!(room.plan(0), (vec![said.clone()], vec![WorkAction::Answer(5, Answer::Done)]));
    assert_eq!(room.plan(1), nothing());
    assert_eq!(room.sidecar_work.report_item_end(at(2), 6, complete("well"), Some(Run::PerItem)), None);
    assert_eq!(room.plan(2), (vec![], vec![WorkAction::Answer(6, Answer::Done)]), "said again");
    room.connect(Some(1));
    assert_eq!(room.plan(3), (vec![said], vec![]), "on each connection");
    room.supervisor = None;
    room.sidecar_work.report_item_end(at(10), 7, released("Released"), Some(Run::PerItem));
    assert_eq!((room.plan(10), room.wake), (nothing(), at(5_010)));
    assert_eq!(room.plan(5_010).1, [WorkAction::Answer(7, Answer::Kept)], "nobody is there to be told");
    // The supervisor did not get the report, and judged by the exit code.
    let exited = Outcome::Fail { reason: "Exited".into(), message: String::new(), exit_code: Some(9) };
    let cases = [
        (complete("said"), exited.clone(), complete("said")),
        (complete("said"), released("Cancelled"), complete("said")),
        (complete("said"), complete("both"), complete("both")),
        (released("Released"), complete("exit 0"), released("Released")),
        (released("Released"), released("Cancelled"), released("Cancelled")),
        (released("Released"), released("Drained"), released("Released")),
    ];
    for (said, outcome, expected) in cases {
        assert_eq!(combined_outcome(Some(said.clone()), outcome.clone(), false), expected, "{said:?} {outcome:?}");
    }
    assert_eq!(combined_outcome(None, exited.clone(), false), exited);
    // A success without a pushed changeset is none.
    assert_eq!(combined_outcome(Some(complete("said")), exited.clone(), true), exited);
}

#[test]
fn what_cannot_be_said_is_refused_by_its_code() {
    let code = |room: &mut Fixture, run| match room.sidecar_work.report_item_end(at(0), 1, complete("x"), run) {
        Some(Answer::Refused(refusal)) => Some(refusal.code),
        Some(_) | None => None,
    };
    assert_eq!(code(&mut Fixture::new(Run::PerItem), None), Some(Code::NoQueues));
    assert_eq!(code(&mut Fixture::new(Run::PerItem), Some(Run::PerItem)), Some(Code::NotHeld));
    assert_eq!(code(&mut Fixture::new(Run::LongRunning), Some(Run::LongRunning)), Some(Code::NotHeld));
    let mut room = busy(Run::LongRunning);
    assert_eq!(room.sidecar_work.report_item_end(at(0), 1, complete("first"), Some(Run::LongRunning)), None);
    assert_eq!(code(&mut room, Some(Run::LongRunning)), Some(Code::FinishedAlready));
    let asked = |run| match Fixture::new(Run::PerItem).sidecar_work.next(at(0), 1, 0, run) {
        Some(Answer::Refused(refusal)) => Some(refusal.code),
        Some(_) | None => None,
    };
    assert_eq!((asked(Some(Run::PerItem)), asked(None)), (Some(Code::NotAllowed), Some(Code::NoQueues)));
}

#[test]
fn a_program_that_runs_all_the_time_is_answered_when_there_is_an_item_or_its_time_is_over() {
    let run = Some(Run::LongRunning);
    let mut room = Fixture::new(Run::LongRunning);
    assert_eq!(room.plan(0), nothing(), "nobody asks");
    room.sidecar_work.next(at(0), 1, 10, run);
    assert_eq!(room.plan(0).1, [WorkAction::Claim(10)]);
    room.claimed(10_000, CallOutcome::Done(None));
    assert_eq!(room.plan(10_000).1, [WorkAction::Answer(1, Answer::Item(None))]);
    // With no time to wait, an item is still claimed once.
    room.sidecar_work.next(at(20_000), 2, 0, run);
    assert_eq!(room.plan(20_000).1, [WorkAction::Claim(0)]);
    room.claimed(20_100, CallOutcome::Done(None));
    assert_eq!(room.plan(20_100).1, [WorkAction::Answer(2, Answer::Item(None))]);
    // No answer comes: the program gets that as its answer within its time.
    room.sidecar_work.next(at(30_000), 3, 25, run);
    assert_eq!(room.plan(30_000).1, [WorkAction::Claim(25)]);
    assert_eq!((room.plan(55_000), room.wake), (nothing(), at(58_000)));
    assert_eq!(room.plan(58_000).1, [WorkAction::Answer(3, Answer::Item(None))]);
    room.claimed(60_000, CallOutcome::Silence);
    room.sidecar_work.next(at(61_000), 4, 1, run);
    room.plan(61_000);
    room.claimed(61_500, CallOutcome::Silence);
    room.plan(61_700);
    let answers = room.plan(62_000).1;
    assert!(matches!(&answers[..], [WorkAction::Answer(4, Answer::Refused(refusal))] if refusal.code == Code::GovernorAway), "{answers:?}");
    room.claimed(63_000, CallOutcome::Refused(Refusal::new(Code::NoQueues, "x")));
    // A final refusal is answered at once; and an item in hand is given to the program again.
    let mut room = Fixture::new(Run::LongRunning);
    room.sidecar_work.next(at(0), 5, 25, run);
    room.plan(0);
    room.claimed(1, CallOutcome::Refused(Refusal::new(Code::NoQueues, "x")));
    assert!(matches!(&room.plan(1).1[..], [WorkAction::Answer(5, Answer::Refused(refusal))] if refusal.code == Code::NoQueues));
    let mut room = busy(Run::LongRunning);
    room.sidecar_work.next(at(1), 6, 25, run);
    assert_eq!(room.plan(1).1, [WorkAction::Answer(6, Answer::Item(Some(Box::new(assignment(1)))))]);
    room.may_claim = false;
    room.sidecar_work.report_item_end(at(2), 7, complete("x"), run);
    room.sidecar_work.next(at(2), 8, 0, run);
    assert_eq!(room.plan(2).1, [WorkAction::Answer(8, Answer::Item(None)), WorkAction::Finish(held(1), complete("x"))], "paused: none");
}

#[test]
fn a_program_that_runs_already_gets_no_item_with_a_sandbox_of_its_own() {
    let mut room = Fixture::new(Run::LongRunning);
    room.sidecar_work.next(at(0), 5, 25, Some(Run::LongRunning));
    room.plan(0);
    let sandbox = ItemSandbox { landlock: true, ..ItemSandbox::default() };
    room.claimed(1, CallOutcome::Done(Some(Assignment { sandbox, ..assignment(1) })));
    let actions = room.plan(1).1;
    let released = |action: &WorkAction| matches!(action, WorkAction::Finish(lease, Outcome::Release { reason, .. }) if *lease == held(1) && reason == "SandboxUnavailable");
    assert!(actions.iter().any(released), "{actions:?}");
    assert!(!actions.iter().any(|action| matches!(action, WorkAction::Answer(_, Answer::Item(Some(_))))), "{actions:?}");
}

#[test]
fn its_word_is_delivered_and_answered_with_what_the_gateway_says() {
    let run = Some(Run::LongRunning);
    let finished = [
        (CallOutcome::Done(()), Some(Answer::Done)),
        (refusal(Code::StaleLease), Some(Answer::Refused(Refusal::new(Code::StaleLease, "as the test says")))),
        (refusal(Code::GovernorAway), None),
        (CallOutcome::Silence, None),
    ];
    for (taken, expected) in finished {
        let mut room = busy(Run::LongRunning);
        assert_eq!(room.sidecar_work.report_item_end(at(0), 5, complete("x"), run), None);
        assert_eq!(room.plan(0).1.last(), Some(&WorkAction::Finish(held(1), complete("x"))));
        room.delivered(1, 1, taken.clone());
        match expected {
            Some(answer) => {
                assert_eq!(room.plan(1), (vec![Order::Settled(held(1))], vec![WorkAction::Answer(5, answer.clone())]));
                room.restart();
                let again = room.sidecar_work.report_item_end(at(2), 6, complete("x"), run).expect("at once");
                assert_eq!(again == Answer::Done, answer == Answer::Done, "said again after a restart of ours: {again:?}");
            }
            None => {
                assert_eq!(room.plan(1).1, []);
                let later = room.plan(5_000).1;
                assert!(later.contains(&WorkAction::Answer(5, Answer::Kept)), "{taken:?} {later:?}");
                assert!(later.contains(&WorkAction::Finish(held(1), complete("x"))));
            }
        }
    }
    // The supervisor reports the end of the program, which has reported an outcome before: the earlier report counts.
    let mut room = busy(Run::LongRunning);
    room.sidecar_work.report_item_end(at(0), 5, complete("x"), run);
    room.sidecar_work.on_supervisor_end(held(1), released("Drained"));
    assert_eq!(room.plan(0).1.last(), Some(&WorkAction::Finish(held(1), complete("x"))));
}
