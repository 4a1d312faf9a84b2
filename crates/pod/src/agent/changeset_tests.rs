use super::*;
use crate::agent::processes::Exit;

const WELL: Exit = Exit { code: 0, killed: false };

fn at(seconds: u64) -> BootTime {
    BootTime::from_millis(seconds * 1000)
}

fn commit() -> PendingCommit {
    PendingCommit { old: "0".repeat(40), new: "a".repeat(40) }
}

fn made() -> String {
    let report =
        ChangesetReport { base: "b".into(), commit: Some(commit().new), branch: "x".into(), files: 1, ..ChangesetReport::default() };
    format!("{}\n", serde_json::json!(StepResult::Made { commit: commit(), report }))
}

fn line(result: &StepResult) -> String {
    serde_json::to_string(result).expect("JSON")
}

/// Runs the step that is under way to its end.
fn finish(changeset: &mut Changeset, exit: Exit, output: &str, tail: &str) -> Vec<Action> {
    assert_eq!(changeset.on(at(2), RunEvent::Ended(exit)), [Action::KillAll]);
    assert!(changeset.clearing() && changeset.on(at(2), RunEvent::Copied).is_empty());
    assert_eq!(changeset.on(at(2), RunEvent::Empty), []);
    assert!(changeset.copying());
    assert_eq!(changeset.on(at(2), RunEvent::Copied), [Action::Judge]);
    changeset.judge(at(2), output, tail)
}

fn prepared() -> Changeset {
    let mut changeset = Changeset::default();
    assert_eq!(changeset.prepare(at(1)), [Action::KillAll], "a hook may have left something");
    assert!(changeset.clearing());
    assert_eq!(changeset.on(at(2), RunEvent::Tick), [Action::KillAll]);
    assert_eq!(changeset.on(at(1), RunEvent::Empty), [Action::Run(Step::Prepare)]);
    let done = finish(&mut changeset, WELL, &line(&StepResult::Prepared { base: "b".into(), seal: "s".into() }), "");
    assert_eq!((done, changeset.seal()), (vec![Action::Prepared(Ok(()))], "s"));
    changeset
}

/// Begins the commit.
fn begin(changeset: &mut Changeset, verify: Option<u64>) {
    assert_eq!(changeset.commit(at(1), verify.map(Duration::from_secs)), [Action::KillAll]);
    assert_eq!(changeset.on(at(1), RunEvent::Empty), [Action::Run(Step::Commit("b".into()))]);
}

fn failed(reason: &str, message: &str) -> Vec<Action> {
    vec![Action::Committed(Err(Interruption::Failed(StepFailure::new(reason, message))))]
}

#[test]
fn a_commit_is_made_verified_named_and_pushed_in_this_order() {
    let mut changeset = prepared();
    begin(&mut changeset, Some(60));
    assert_eq!(finish(&mut changeset, WELL, &made(), ""), [Action::KillAll]);
    assert_eq!(changeset.on(at(1), RunEvent::Empty), [Action::Run(Step::Verify)]);
    assert_eq!(changeset.announced(), None, "it is not verified");
    assert_eq!(finish(&mut changeset, WELL, "all tests passed", ""), []);
    assert_eq!(changeset.announced(), Some(commit()));
    let other = PendingCommit { old: commit().old, new: "c".repeat(40) };
    assert_eq!(changeset.named(at(3), &other), []);
    assert_eq!(changeset.named(at(3), &commit()), [Action::KillAll]);
    assert_eq!(changeset.announced(), Some(commit()));
    assert_eq!(changeset.on(at(3), RunEvent::Empty), [Action::Run(Step::Push(commit()))]);
    assert_eq!(changeset.named(at(3), &commit()), [], "a sidecar that was started anew repeats it");
    assert_eq!(changeset.announced(), Some(commit()));
    let done = finish(&mut changeset, WELL, &line(&StepResult::Pushed), "");
    assert!(matches!(&done[..], [Action::Committed(Ok(report))] if report.commit == Some(commit().new)), "{done:?}");
    assert_eq!(changeset.announced(), None, "it is pushed");
}

#[test]
fn an_item_without_changes_pushes_nothing() {
    let mut changeset = prepared();
    begin(&mut changeset, Some(60));
    let report = ChangesetReport { base: "b".into(), branch: "x".into(), ..ChangesetReport::default() };
    assert_eq!(finish(&mut changeset, WELL, &line(&StepResult::Unchanged(report.clone())), ""), [Action::Committed(Ok(report))]);
}

#[test]
fn each_failure_has_its_reason_and_the_last_words() {
    let broken = Exit { code: 1, killed: false };
    let mut changeset = Changeset::default();
    changeset.prepare(at(1));
    changeset.on(at(1), RunEvent::Empty);
    let failure = StepFailure::new(
        reasons::WORKSPACE_NOT_PREPARED,
        "the preparation of the workspace (spec.workspace) ended with exit code 1: fatal: no",
    );
    assert_eq!(finish(&mut changeset, broken, "", "fatal: no"), [Action::Prepared(Err(Interruption::Failed(failure)))]);
    let mut changeset = prepared();
    begin(&mut changeset, None);
    let refused = StepFailure::new(reasons::PROTECTED_PATH, "ci was changed");
    let line_of_it = line(&StepResult::Refused(refused));
    assert_eq!(finish(&mut changeset, WELL, &line_of_it, ""), failed(reasons::PROTECTED_PATH, "ci was changed"));
    begin(&mut changeset, None);
    let none = "the commit of the changes wrote no result (this is a fault of Spillway)";
    assert_eq!(finish(&mut changeset, WELL, "nonsense", ""), failed(reasons::CHANGESET_NOT_COMMITTED, none));
    begin(&mut changeset, Some(60));
    finish(&mut changeset, WELL, &made(), "");
    changeset.on(at(1), RunEvent::Empty);
    let red = "the verify command (spec.sandbox.changeset.verify) ended with exit code 1: 3 tests failed";
    assert_eq!(finish(&mut changeset, broken, "", "3 tests failed"), failed(reasons::CHANGESET_NOT_VERIFIED, red));
    begin(&mut changeset, None);
    assert_eq!(changeset.on(at(1), RunEvent::NotStarted("no file".into())), [Action::Judge]);
    let absent = "the commit of the changes was not started: no file";
    assert_eq!(changeset.judge(at(1), "", ""), failed(reasons::CHANGESET_NOT_COMMITTED, absent));
}

#[test]
fn a_step_that_takes_too_long_is_killed_until_nothing_is_left() {
    let mut changeset = prepared();
    begin(&mut changeset, Some(60));
    finish(&mut changeset, WELL, &made(), "");
    changeset.on(at(2), RunEvent::Empty);
    assert_eq!(changeset.on(at(61), RunEvent::Tick), []);
    assert_eq!(changeset.on(at(62), RunEvent::Tick), [Action::KillAll]);
    assert_eq!(changeset.on(at(63), RunEvent::Tick), [Action::KillAll], "a process may still start another");
    changeset.on(at(63), RunEvent::Empty);
    assert_eq!(changeset.on(at(65), RunEvent::Tick), [Action::Judge], "the output is not waited for without end");
    let late = "the verify command (spec.sandbox.changeset.verify) did not end within 60 s and was killed";
    assert_eq!(changeset.judge(at(65), "", ""), failed(reasons::CHANGESET_NOT_VERIFIED, late));
}

#[test]
fn work_that_is_to_stop_stops_at_each_step_and_a_push_that_is_done_stays() {
    let stopped = [Action::Committed(Err(Interruption::Stopped))];
    let mut changeset = Changeset::default();
    changeset.prepare(at(1));
    assert_eq!(changeset.stop(at(1)), [Action::Judge], "it has not begun");
    assert_eq!(changeset.judge(at(1), "", ""), [Action::Prepared(Err(Interruption::Stopped))]);
    changeset.prepare(at(1));
    changeset.on(at(1), RunEvent::Empty);
    assert_eq!(changeset.stop(at(1)), [Action::KillAll]);
    changeset.on(at(1), RunEvent::Empty);
    changeset.on(at(1), RunEvent::Copied);
    assert_eq!(changeset.judge(at(1), "", ""), [Action::Prepared(Err(Interruption::Stopped))]);
    let mut changeset = prepared();
    begin(&mut changeset, None);
    changeset.on(at(1), RunEvent::Ended(WELL));
    changeset.stop(at(1));
    changeset.on(at(1), RunEvent::Empty);
    changeset.on(at(1), RunEvent::Copied);
    assert_eq!(changeset.judge(at(1), &made(), ""), stopped);
    begin(&mut changeset, None);
    finish(&mut changeset, WELL, &made(), "");
    assert_eq!(changeset.stop(at(1)), stopped);
    assert_eq!(changeset.announced(), None);
    begin(&mut changeset, None);
    finish(&mut changeset, WELL, &made(), "");
    changeset.named(at(1), &commit());
    changeset.on(at(1), RunEvent::Empty);
    changeset.on(at(1), RunEvent::Ended(WELL));
    changeset.stop(at(1));
    changeset.on(at(1), RunEvent::Empty);
    changeset.on(at(1), RunEvent::Copied);
    assert!(matches!(&changeset.judge(at(1), &line(&StepResult::Pushed), "")[..], [Action::Committed(Ok(_))]));
    assert_eq!(changeset.stop(at(1)), [], "nothing is under way");
}
