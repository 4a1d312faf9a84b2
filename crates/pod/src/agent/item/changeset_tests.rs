//! Small histories of items with changesets, without a process.

use spillway_wire::agent::WorkSettings;
use spillway_wire::changeset::{ChangesetTarget, reasons};
use spillway_wire::work::{Assignment, ItemOrder, ItemWanted};

use super::*;
use crate::agent::item::{Event, RunOutput};
use crate::agent::processes::Exit;
use crate::samples;

const WELL: Exit = Exit { code: 0, killed: false };

fn at(millis: u64) -> BootTime {
    BootTime::from_millis(millis)
}

fn report() -> ChangesetReport {
    ChangesetReport { base: "b".into(), commit: Some("c".into()), branch: "x".into(), ..ChangesetReport::default() }
}

fn assignment() -> Box<Assignment> {
    Box::new(Assignment { branch: Some("x".into()), ..samples::assignment(1) })
}

fn items() -> Items {
    let settings = ChangesetSettings {
        target: ChangesetTarget::Repository { remote: "https://git.example.com/a".into(), revision: None, depth: None },
        protect: Vec::new(),
        max_bytes: None,
        verify: Vec::new(),
        verify_seconds: 600,
        files: Vec::new(),
    };
    let how = WorkSettings { changeset: Some(Box::new(settings)), ..samples::per_item() };
    Items { how: Some(how), ..Items::default() }
}

fn wants(order: ItemOrder) -> Event {
    Event::Wanted(Some(ItemWanted { held: assignment().held, order }))
}

/// Items of which the program runs, after its workspace was prepared.
fn running() -> Items {
    let mut items = items();
    assert_eq!(items.on(at(0), Event::Take(assignment())), [Action::Prepare]);
    assert!(matches!(items.on(at(1), Event::Prepared(Ok(())))[..], [Action::Run { turn: 1, .. }]));
    items
}

/// The actions after the program ended with this code.
fn ended(items: &mut Items, code: u8) -> Vec<Action> {
    items.on(at(2), Event::Ended(Exit { code, ..WELL }));
    items.on(at(3), Event::Empty);
    items.on(at(4), Event::Copied);
    assert_eq!(items.on(at(10), Event::Tick), [Action::Conclude]);
    items.conclude(at(10), RunOutput { output: "said".into(), ..RunOutput::default() })
}

fn committing() -> Items {
    let mut items = running();
    assert_eq!(ended(&mut items, 0), [Action::Commit]);
    assert_eq!(items.finished(), None, "it is not over before it is pushed");
    items
}

/// The reason of the end; none: it is complete.
fn reason(items: &Items) -> Option<String> {
    match items.finished().expect("it is over").1 {
        Outcome::Complete { .. } => None,
        Outcome::Fail { reason, exit_code, .. } => {
            assert!(exit_code.is_none() || reason == "Exited", "a step is no program");
            Some(reason)
        }
        Outcome::Release { reason, .. } => Some(reason),
    }
}

fn failure(reason: &str) -> Interruption {
    Interruption::Failed(StepFailure::new(reason, "no"))
}

#[test]
fn the_program_runs_in_a_prepared_workspace_and_the_item_is_over_when_its_changes_are_pushed() {
    let mut items = committing();
    assert_eq!(items.on(at(20), Event::Committed(Ok(report()))), []);
    let complete = Outcome::Complete { result: Some("said".into()), changeset: Some(Box::new(report())) };
    assert_eq!(items.finished().map(|(_, outcome)| outcome), Some(complete));
    assert_eq!(items.on(at(21), Event::Committed(Err(Interruption::Stopped))), [], "an old answer changes nothing");
    assert_eq!(reason(&items), None);
}

#[test]
fn a_program_that_fails_has_no_commit_and_an_item_without_a_branch_no_changeset() {
    let mut failed = running();
    assert_eq!(ended(&mut failed, 1), []);
    assert_eq!(reason(&failed).as_deref(), Some("Exited"));
    let mut plain = items();
    assert!(matches!(plain.on(at(0), Event::Take(Box::new(samples::assignment(1))))[..], [Action::Run { .. }]));
    // The pool has changesets since after the agent's start.
    let mut old = Items { how: Some(samples::per_item()), ..Items::default() };
    assert_eq!(old.on(at(0), Event::Take(assignment())), []);
    assert_eq!(reason(&old).as_deref(), Some(reasons::WORKSPACE_NOT_PREPARED), "a success without a push would be none");
}

#[test]
fn a_step_that_fails_ends_the_attempt_with_its_reason() {
    let mut items = items();
    items.on(at(0), Event::Take(assignment()));
    items.on(at(1), Event::Prepared(Err(failure(reasons::WORKSPACE_NOT_PREPARED))));
    assert_eq!(reason(&items).as_deref(), Some(reasons::WORKSPACE_NOT_PREPARED));
    let mut items = committing();
    items.on(at(20), Event::Committed(Err(failure(reasons::CHANGESET_CONFLICT))));
    assert_eq!(reason(&items).as_deref(), Some(reasons::CHANGESET_CONFLICT));
}

#[test]
fn an_item_that_is_cancelled_or_lost_stops_its_step_and_a_push_that_is_done_counts() {
    for (order, expected) in [(ItemOrder::Cancel, "Cancelled"), (ItemOrder::Lost, "Lost")] {
        let mut preparing = items();
        preparing.on(at(0), Event::Take(assignment()));
        assert_eq!(preparing.on(at(1), wants(order)), [Action::StopChangeset]);
        preparing.on(at(2), Event::Prepared(Err(Interruption::Stopped)));
        assert_eq!(reason(&preparing).as_deref(), Some(expected));
        let mut committing = committing();
        assert_eq!(committing.on(at(20), wants(order)), [Action::StopChangeset]);
        committing.on(at(21), Event::Committed(Err(Interruption::Stopped)));
        assert_eq!(reason(&committing).as_deref(), Some(expected));
    }
    let mut pushed = committing();
    pushed.on(at(20), wants(ItemOrder::Cancel));
    pushed.on(at(21), Event::Committed(Ok(report())));
    assert_eq!(reason(&pushed), None, "the branch is there");
}

#[test]
fn an_agent_that_ends_gives_back_what_it_has_not_pushed() {
    let mut preparing = items();
    preparing.on(at(0), Event::Take(assignment()));
    assert_eq!(preparing.on(at(1), Event::Draining), [Action::StopChangeset]);
    preparing.on(at(2), Event::Prepared(Err(failure(reasons::WORKSPACE_NOT_PREPARED))));
    assert_eq!(reason(&preparing).as_deref(), Some("Drained"), "the signal of the end is no failure of the clone");
    let mut items = committing();
    assert_eq!(items.on(at(20), Event::Draining), [Action::StopChangeset]);
    items.on(at(21), Event::Committed(Err(failure(reasons::CHANGESET_NOT_COMMITTED))));
    assert_eq!(reason(&items).as_deref(), Some("Drained"));
    // The supervisor leaves before the step has ended.
    for mut items in [committing(), running()] {
        items.on(at(20), Event::Draining);
        assert_eq!(items.on(at(21), Event::Leave), [Action::Conclude]);
        assert_eq!(items.conclude(at(21), RunOutput::default()), []);
        assert_eq!(reason(&items).as_deref(), Some("Drained"));
    }
    let mut late = running();
    late.on(at(2), Event::Ended(WELL));
    late.on(at(2), Event::Draining);
    late.on(at(3), Event::Leave);
    assert_eq!(late.conclude(at(3), RunOutput::default()), [], "there is no time for a commit");
    assert_eq!(reason(&late).as_deref(), Some("Drained"));
}

#[test]
fn a_pause_lets_no_step_fail_and_starts_no_hook_beside_one() {
    let mut preparing = items();
    preparing.on(at(0), Event::Take(assignment()));
    assert_eq!(preparing.on(at(1), wants(ItemOrder::Pause(1))), []);
    assert_eq!(preparing.on(at(2), Event::Prepared(Err(failure(reasons::WORKSPACE_NOT_PREPARED)))), [Action::Checkpoint(1)]);
    assert_eq!(preparing.finished(), None);
    preparing.on(at(2), Event::CheckpointEnded);
    assert_eq!(preparing.on(at(3), Event::Wanted(None)), [Action::Prepare]);
    assert_eq!(preparing.on(at(4), wants(ItemOrder::Pause(2))), []);
    assert_eq!(preparing.on(at(5), Event::Prepared(Ok(()))), [Action::Checkpoint(2)]);
    preparing.on(at(6), Event::CheckpointEnded);
    assert!(matches!(preparing.on(at(7), Event::Wanted(None))[..], [Action::Run { turn: 1, .. }]));
    let mut items = committing();
    assert_eq!(items.on(at(20), wants(ItemOrder::Pause(1))), []);
    assert_eq!(items.on(at(21), Event::Committed(Err(failure(reasons::CHANGESET_NOT_COMMITTED)))), [Action::Checkpoint(1)]);
    assert_eq!(items.finished(), None);
    items.on(at(21), Event::CheckpointEnded);
    assert_eq!(items.on(at(22), Event::Wanted(None)), [Action::Commit]);
    items.on(at(23), Event::Committed(Ok(report())));
    assert_eq!(reason(&items), None);
}

#[test]
fn a_settled_item_is_forgotten_when_its_step_has_stopped() {
    let mut items = committing();
    assert_eq!(items.on(at(20), Event::Settled(assignment().held)), [Action::StopChangeset]);
    assert_eq!(items.on(at(21), Event::Committed(Err(Interruption::Stopped))), []);
    assert_eq!(items.held(), None);
}
