//! Tables and small histories of the sidecar's state of work, without a clock, a supervisor or a gateway.

use super::*;
use crate::link::action::Action;
use crate::samples;
use spillway_wire::agent::Input;
use spillway_wire::link::Order;
use spillway_wire::work::ItemOrder;

#[path = "work/claim_tests.rs"]
mod claim_tests;
#[path = "work/program_tests.rs"]
mod program_tests;

fn at(millis: u64) -> BootTime {
    BootTime::from_millis(millis)
}

fn held(epoch: i64) -> LeaseRef {
    LeaseRef { uid: "u-1".into(), epoch }
}

fn assignment(epoch: i64) -> Assignment {
    samples::assignment(epoch)
}

fn complete(result: &str) -> Outcome {
    Outcome::Complete { result: Some(result.into()), changeset: None }
}

fn released(reason: &str) -> Outcome {
    Outcome::Release { reason: reason.into(), message: "x".into() }
}

fn refusal(code: Code) -> CallOutcome<()> {
    CallOutcome::Refused(Refusal::new(code, "as the test says"))
}

/// The sidecar's state of work, and the facts that it decides on.
struct Fixture {
    sidecar_work: SidecarWork,
    how: How,
    registered: bool,
    may_claim: bool,
    give_back: Option<&'static str>,
    wanted: Option<ItemWanted>,
    supervisor: Option<(SupervisorView, bool)>,
    kept: KeptWork,
    wake: BootTime,
}

impl Fixture {
    fn new(run: Run) -> Self {
        let how = How { run, input: Input::Stdin, continue_prompt: String::new(), max_turns: 1, max_items: None, changeset: None };
        let mut room = Self {
            sidecar_work: SidecarWork::default(),
            how,
            registered: true,
            may_claim: true,
            give_back: None,
            wanted: None,
            supervisor: None,
            kept: KeptWork::default(),
            wake: at(0),
        };
        room.connect(None);
        room
    }

    /// The supervisor connects (again) and reports the lease that it holds.
    fn connect(&mut self, holds: Option<i64>) {
        self.supervisor = Some((SupervisorView::default(), true));
        self.says(holds);
    }

    fn says(&mut self, holds: Option<i64>) {
        let held = holds.map(held);
        self.sidecar_work.on_supervisor_lease(held.as_ref());
        if let Some((present, _)) = &mut self.supervisor {
            present.held = Some(held);
        }
    }

    /// The sidecar restarts, with the state in its journal.
    fn restart(&mut self) {
        let text = serde_json::to_string(&self.kept).expect("JSON");
        self.sidecar_work = SidecarWork::new(serde_json::from_str(&text).expect("what was written"));
        self.supervisor = None;
    }

    /// The orders, and the other actions. The state for the journal is stored in `kept`.
    fn plan(&mut self, now: u64) -> (Vec<Order>, Vec<WorkAction>) {
        let (mut actions, mut wake) = (Vec::new(), at(u64::MAX / 2));
        let facts = WorkFacts {
            how: &self.how,
            registered: self.registered,
            may_claim: self.may_claim,
            give_back: self.give_back,
            wanted: self.wanted.as_ref(),
            supervisor: self.supervisor.as_mut().map(|(present, started)| (present, *started)),
        };
        self.sidecar_work.plan(at(now), facts, &mut actions, &mut wake);
        self.wake = wake;
        let (mut orders, mut others) = (Vec::new(), Vec::new());
        for (position, action) in actions.into_iter().enumerate() {
            match action {
                Action::Tell(order) => orders.push(order),
                Action::Work(WorkAction::Remember(kept)) => {
                    assert_eq!(position, 0, "written down before anybody is told");
                    self.kept = *kept;
                }
                Action::Work(WorkAction::Say(_)) => {}
                Action::Work(action) => others.push(action),
                other => panic!("no action about work: {other:?}"),
            }
        }
        (orders, others)
    }

    fn wants(&mut self, epoch: i64, order: ItemOrder) {
        self.wanted = Some(ItemWanted { held: held(epoch), order });
    }

    fn claimed(&mut self, now: u64, taken: CallOutcome<Option<Assignment>>) {
        self.sidecar_work.on_claim_answer(at(now), taken, Duration::ZERO, 1.0);
    }

    fn delivered(&mut self, now: u64, epoch: i64, taken: CallOutcome<()>) {
        self.sidecar_work.on_end_answer(at(now), &held(epoch), taken, Duration::ZERO, 1.0);
    }
}

fn nothing() -> (Vec<Order>, Vec<WorkAction>) {
    (Vec::new(), Vec::new())
}

fn item(epoch: i64) -> Order {
    Order::Item(Box::new(assignment(epoch)))
}

/// A sidecar with item 1 in hand, which the supervisor has.
fn busy(run: Run) -> Fixture {
    let mut room = Fixture::new(run);
    if run == Run::LongRunning {
        assert_eq!(room.sidecar_work.next(at(0), 1, 0, Some(run)), None);
    }
    assert!(matches!(room.plan(0).1[..], [WorkAction::Claim(_)]));
    room.claimed(0, CallOutcome::Done(Some(assignment(1))));
    assert_eq!(room.plan(0).0, [item(1)]);
    room.says(Some(1));
    room
}

#[test]
fn an_item_is_written_down_told_finished_and_settled() {
    let mut room = Fixture::new(Run::PerItem);
    room.plan(0);
    room.claimed(10, CallOutcome::Done(Some(assignment(1))));
    assert_eq!(room.sidecar_work.held(), Some(held(1)));
    assert_eq!(room.plan(10), (vec![item(1)], vec![]));
    assert_eq!(room.kept.item.as_ref().map(|item| &item.held), Some(&held(1)));
    assert_eq!(room.plan(11), nothing(), "told once on a connection");
    room.says(Some(1));
    room.sidecar_work.on_supervisor_end(held(1), complete("well"));
    assert_eq!(room.plan(20), (vec![], vec![WorkAction::Finish(held(1), complete("well"))]));
    room.delivered(30, 1, CallOutcome::Silence);
    assert_eq!((room.plan(30), room.wake), (nothing(), at(130)));
    assert_eq!(room.plan(130).1.len(), 1);
    room.delivered(130, 1, refusal(Code::GovernorAway));
    assert_eq!(room.sidecar_work.held(), Some(held(1)), "until it is settled");
    room.plan(330);
    room.delivered(330, 1, CallOutcome::Done(()));
    assert_eq!(room.sidecar_work.held(), None);
    assert_eq!(room.plan(330), (vec![Order::Settled(held(1))], vec![]), "its supervisor still holds it");
    room.says(None);
    assert_eq!(room.plan(340).1, [WorkAction::Claim(25)]);
}

#[test]
fn a_lease_that_is_granted_again_after_its_end_is_ended_again_without_a_program() {
    let mut room = busy(Run::PerItem);
    room.sidecar_work.on_supervisor_end(held(1), complete("well"));
    room.plan(20);
    room.delivered(30, 1, CallOutcome::Done(()));
    room.plan(30);
    // The store was rolled back to a time before the end, and the sidecar restarts meanwhile.
    room.restart();
    room.connect(None);
    assert!(matches!(room.plan(400).1[..], [WorkAction::Claim(_)]));
    room.claimed(400, CallOutcome::Done(Some(assignment(1))));
    assert_eq!(room.plan(400), (vec![], vec![WorkAction::Finish(held(1), complete("well"))]), "no program is run");
    room.delivered(410, 1, CallOutcome::Done(()));
    room.plan(410);
    assert_eq!((room.sidecar_work.held(), room.sidecar_work.kept.done), (None, 1), "it counts as one item");
    assert!(matches!(room.plan(1000).1[..], [WorkAction::Claim(_)]));
    room.claimed(1000, CallOutcome::Done(Some(assignment(2))));
    assert_eq!(room.plan(1000).0, [item(2)], "another lease of it is another attempt");
}

#[test]
fn a_refusal_that_stays_settles_an_item_and_one_that_passes_does_not() {
    for code in [Code::StaleLease, Code::LeaseLost, Code::FinishedAlready, Code::AgentEnded] {
        let mut room = busy(Run::PerItem);
        room.sidecar_work.on_supervisor_end(held(1), complete("x"));
        room.plan(0);
        room.delivered(0, 1, refusal(code));
        assert_eq!(room.plan(0).0, [Order::Settled(held(1))], "{code:?}");
    }
    for code in [Code::GovernorAway, Code::TooManyCalls, Code::Internal, Code::InvalidToken, Code::NotAnAgent] {
        let mut room = busy(Run::PerItem);
        room.sidecar_work.on_supervisor_end(held(1), complete("x"));
        room.plan(0);
        room.delivered(0, 1, refusal(code));
        assert_eq!(room.plan(0).0, [], "{code:?}");
        assert_eq!(room.sidecar_work.held(), Some(held(1)));
    }
}

#[test]
fn a_new_connection_hears_what_it_lacks_and_no_more() {
    let mut room = busy(Run::PerItem);
    room.connect(Some(1));
    assert_eq!(room.plan(1), nothing(), "it goes on");
    room.connect(None);
    assert_eq!(room.plan(2).0, [item(1)], "it never got it");
    room.supervisor = Some((SupervisorView::default(), true));
    assert_eq!(room.plan(3), nothing(), "it has not said yet whether it has it");
    // The supervisor repeats an end, because it did not get the order that settles it.
    room.connect(Some(1));
    room.sidecar_work.on_supervisor_end(held(1), complete("x"));
    room.sidecar_work.on_supervisor_end(held(1), complete("x"));
    assert_eq!(room.plan(4).1.len(), 1);
    room.supervisor = None;
    room.delivered(5, 1, CallOutcome::Done(()));
    assert_eq!(room.plan(5), nothing());
    room.connect(Some(1));
    assert_eq!(room.plan(6), (vec![Order::Settled(held(1))], vec![]));
    room.sidecar_work.on_supervisor_end(held(1), complete("x"));
    assert_eq!(room.plan(7), (vec![Order::Settled(held(1))], vec![]), "and no second call");
    room.says(Some(1));
    assert_eq!(room.plan(8), nothing());
}

#[test]
fn a_restart_loses_and_repeats_nothing() {
    let mut room = busy(Run::PerItem);
    room.restart();
    assert_eq!(room.sidecar_work.held(), Some(held(1)));
    assert_eq!(room.plan(0), nothing(), "nobody is there");
    room.connect(Some(1));
    assert_eq!(room.plan(1), nothing());
    room.sidecar_work.on_supervisor_end(held(1), complete("x"));
    room.plan(2);
    room.restart();
    assert_eq!(room.plan(3).1, [WorkAction::Finish(held(1), complete("x"))]);
    room.delivered(4, 1, CallOutcome::Done(()));
    room.plan(4);
    room.restart();
    room.connect(Some(1));
    assert_eq!(room.plan(5), (vec![Order::Settled(held(1))], vec![]), "known to be settled");
    // The item was claimed, and then both restarted: the supervisor never got it.
    let mut room = Fixture::new(Run::PerItem);
    room.plan(0);
    room.claimed(0, CallOutcome::Done(Some(assignment(1))));
    room.supervisor = None;
    room.plan(0);
    room.restart();
    room.connect(None);
    assert_eq!(room.plan(1).0, [item(1)]);
}

#[test]
fn a_journal_that_was_lost_is_made_good_by_the_supervisor() {
    let mut room = Fixture::new(Run::PerItem);
    room.connect(Some(4));
    assert_eq!((room.sidecar_work.held(), room.plan(0)), (Some(held(4)), nothing()), "no claim while it works on something");
    room.sidecar_work.on_supervisor_end(held(4), complete("x"));
    assert_eq!(room.plan(1).1, [WorkAction::Finish(held(4), complete("x"))]);
    // A program that runs all the time asks again, and gets the same lease with its task.
    let mut room = Fixture::new(Run::LongRunning);
    room.connect(Some(4));
    room.sidecar_work.next(at(0), 9, 0, Some(Run::LongRunning));
    assert_eq!(room.plan(0).1, [WorkAction::Claim(0)]);
    room.claimed(1, CallOutcome::Done(Some(assignment(4))));
    assert_eq!(room.plan(1).1, [WorkAction::Answer(9, Answer::Item(Some(Box::new(assignment(4)))))]);
}

#[test]
fn of_a_lost_item_nothing_is_told_any_more() {
    let mut room = busy(Run::PerItem);
    room.wants(2, ItemOrder::Lost);
    assert_eq!(room.plan(0), nothing(), "another lease");
    room.wants(1, ItemOrder::Lost);
    assert_eq!((room.plan(1), room.sidecar_work.held()), (nothing(), Some(held(1))), "its program still has to end");
    room.restart();
    room.wanted = None;
    room.connect(Some(1));
    room.sidecar_work.on_supervisor_end(held(1), released("Lost"));
    assert_eq!(room.plan(2), (vec![Order::Settled(held(1))], vec![]), "not even after a restart");
    room.says(None);
    assert_eq!(room.plan(3).1, [WorkAction::Claim(25)]);
    // The order was wrong: the same lease is given again, and the work on it begins again, on the same connection.
    let mut room = busy(Run::PerItem);
    room.wants(1, ItemOrder::Lost);
    room.sidecar_work.on_supervisor_end(held(1), complete("x"));
    assert_eq!(room.plan(0).0, [Order::Settled(held(1))]);
    room.wanted = None;
    room.says(None);
    assert_eq!(room.plan(5_000).1, [WorkAction::Claim(25)]);
    room.claimed(5_001, CallOutcome::Done(Some(assignment(1))));
    assert_eq!(room.plan(5_001).0, [Order::Item(Box::new(assignment(1)))]);
    // The end of the item was on its way.
    let mut room = busy(Run::PerItem);
    room.sidecar_work.on_supervisor_end(held(1), complete("x"));
    room.plan(0);
    room.wants(1, ItemOrder::Lost);
    assert_eq!(room.plan(1).0, [Order::Settled(held(1))]);
    room.delivered(2, 1, refusal(Code::StaleLease));
    assert_eq!(room.plan(2), nothing());
    // A program that runs all the time gets a notice; the item is lost at once.
    let mut room = busy(Run::LongRunning);
    room.wants(1, ItemOrder::Lost);
    room.plan(3);
    assert_eq!(room.sidecar_work.held(), None);
    let refused = room.sidecar_work.report_item_end(at(4), 8, complete("x"), Some(Run::LongRunning));
    assert!(matches!(refused, Some(Answer::Refused(refusal)) if refusal.code == Code::StaleLease));
}

#[test]
fn what_nobody_works_on_yet_is_given_back() {
    for (give_back, cancel, expected) in [(Some("Paused"), false, "Paused"), (Some("Drained"), false, "Drained"), (None, true, "Cancelled")]
    {
        let mut room = Fixture::new(Run::PerItem);
        room.plan(0);
        room.give_back = give_back;
        if cancel {
            room.wants(1, ItemOrder::Cancel);
        }
        room.claimed(1, CallOutcome::Done(Some(assignment(1))));
        let (orders, actions) = room.plan(1);
        let reason = match &actions[..] {
            [WorkAction::Finish(_, Outcome::Release { reason, .. })] => reason.as_str(),
            other => panic!("{other:?}"),
        };
        assert_eq!((orders.len(), reason), (0, expected));
        room.delivered(2, 1, CallOutcome::Done(()));
        assert_eq!(room.sidecar_work.kept.done, 0, "it is none of those that were done");
    }
    let mut room = busy(Run::PerItem);
    room.give_back = Some("Drained");
    room.wants(1, ItemOrder::Cancel);
    assert_eq!(room.plan(1), nothing(), "who works on it gives it back, or does not");
    room.connect(Some(1));
    assert_eq!(room.plan(2), nothing());
    room.supervisor = None;
    assert_eq!(room.plan(3), nothing(), "nobody knows");
}

#[test]
fn how_a_program_dies_while_its_item_waits_is_no_end_of_it() {
    let died = || Outcome::Fail { reason: "Exited".into(), message: "402".into(), exit_code: Some(1) };
    let mut room = busy(Run::PerItem);
    // A gateway does not accept the end, because the decision to pause is on its way.
    room.sidecar_work.on_supervisor_end(held(1), died());
    assert_eq!(room.plan(0).1, [WorkAction::Finish(held(1), died())]);
    room.delivered(1, 1, refusal(Code::GovernorAway));
    room.wants(1, ItemOrder::Pause(1));
    assert_eq!(room.plan(20_000), nothing(), "it is taken back");
    room.sidecar_work.on_supervisor_end(held(1), died());
    assert_eq!(room.plan(40_000), nothing(), "said again, it counts for nothing");
    assert_eq!(room.sidecar_work.held(), Some(held(1)));
    room.wanted = None;
    room.sidecar_work.on_supervisor_end(held(1), complete("x"));
    assert_eq!(room.plan(60_000).1, [WorkAction::Finish(held(1), complete("x"))]);
    // A report of the program itself is kept and sent.
    let mut room = busy(Run::PerItem);
    room.wants(1, ItemOrder::Pause(1));
    room.plan(0);
    let said = Outcome::Fail { reason: "NoSense".into(), message: String::new(), exit_code: None };
    room.sidecar_work.on_supervisor_end(held(1), said.clone());
    assert_eq!(room.plan(1).1, [WorkAction::Finish(held(1), said)]);
}

#[test]
fn progress_goes_before_the_end_and_not_too_often() {
    let mut room = busy(Run::PerItem);
    let say = |room: &mut Fixture, action: &str, percent, checkpoint: Option<&str>| {
        room.sidecar_work.progress(&Progress { action: action.into(), percent, checkpoint_ref: checkpoint.map(str::to_owned) });
    };
    let advance = |message: &str, percent, checkpoint: Option<&str>| ProgressUpdate {
        epoch: 1,
        percent,
        message: Some(message.to_owned()).filter(|message| !message.is_empty()),
        checkpoint_ref: checkpoint.map(str::to_owned),
    };
    say(&mut room, "reading", None, Some("b-1"));
    let first = advance("reading", None, Some("b-1"));
    assert_eq!(room.plan(0).1, [WorkAction::Advance(held(1), first.clone())]);
    say(&mut room, "", Some(40), None);
    room.sidecar_work.on_progress_answer(at(10), &held(1), &first, CallOutcome::Done(()), Duration::ZERO, 1.0);
    assert_eq!((room.plan(10), room.wake), (nothing(), at(1_010)));
    say(&mut room, "testing", Some(50), None);
    let second = advance("testing", Some(50), Some("b-1"));
    assert_eq!(room.plan(1_010).1, [WorkAction::Advance(held(1), second.clone())], "what is newest, and nothing is lost");
    room.sidecar_work.on_progress_answer(at(1_020), &held(1), &second, CallOutcome::Silence, Duration::ZERO, 1.0);
    room.sidecar_work.on_supervisor_end(held(1), complete("x"));
    assert_eq!((room.plan(1_020), room.wake), (nothing(), at(1_120)));
    assert_eq!(room.plan(1_120).1, [WorkAction::Advance(held(1), second.clone())]);
    room.sidecar_work.on_progress_answer(at(1_130), &held(1), &second, refusal(Code::Internal), Duration::ZERO, 1.0);
    assert_eq!(room.plan(1_130).1, [WorkAction::Finish(held(1), complete("x"))], "it must not hold the end up");
    let mut room = Fixture::new(Run::PerItem);
    say(&mut room, "nothing in hand", Some(1), None);
    assert!(room.sidecar_work.held().is_none());
}

#[test]
fn after_so_many_items_it_says_goodbye_once() {
    let mut room = busy(Run::PerItem);
    room.how.max_items = Some(2);
    let end = |room: &mut Fixture, epoch: i64| {
        room.sidecar_work.on_supervisor_end(held(epoch), complete("x"));
        room.plan(0);
        room.delivered(0, epoch, CallOutcome::Done(()));
        room.says(None);
    };
    end(&mut room, 1);
    assert_eq!(room.plan(1_000).1, [WorkAction::Claim(25)]);
    room.claimed(1_000, CallOutcome::Done(Some(assignment(2))));
    room.plan(1_000);
    room.says(Some(2));
    end(&mut room, 2);
    assert_eq!(room.plan(2_000).1, [WorkAction::Goodbye(ITEMS_DONE_REASON.into())]);
    assert_eq!(room.plan(3_000), nothing());
    room.restart();
    room.connect(None);
    assert_eq!(room.plan(4_000).1, [WorkAction::Goodbye(ITEMS_DONE_REASON.into())], "the count survives, and the first reason stays");
}

#[test]
fn its_own_end_waits_for_what_can_still_be_told() {
    let mut room = Fixture::new(Run::PerItem);
    assert!(room.sidecar_work.is_quiet(true) && room.sidecar_work.is_quiet(false));
    room.plan(0);
    room.claimed(0, CallOutcome::Done(Some(assignment(1))));
    assert!(!room.sidecar_work.is_quiet(true), "its supervisor will say something");
    assert!(room.sidecar_work.is_quiet(false), "nobody will");
    room.sidecar_work.on_supervisor_end(held(1), complete("x"));
    assert!(!room.sidecar_work.is_quiet(false) && !room.sidecar_work.is_quiet(true));
    room.plan(0);
    room.sidecar_work.on_end_answer(at(0), &held(1), CallOutcome::Silence, Duration::from_secs(60), 1.0);
    room.sidecar_work.hurry(at(5));
    assert_eq!(room.plan(5).1.len(), 1, "no pause of before holds it up");
    room.delivered(6, 1, CallOutcome::Done(()));
    assert!(room.sidecar_work.is_quiet(true));
}
