//! Small histories of items, without a process.

use spillway_wire::work::MAX_RESULT_BYTES;

use super::outcome::fail;
use super::*;
use crate::samples;

fn at(millis: u64) -> BootTime {
    BootTime::from_millis(millis)
}

fn work(run: Run, max_turns: u32) -> WorkSettings {
    WorkSettings { run, input: Input::Stdin, continue_prompt: "go on".into(), max_turns, max_items: None, changeset: None }
}

fn items(run: Run, max_turns: u32) -> Items {
    Items { how: Some(work(run, max_turns)), grace: Duration::from_secs(15), ..Items::default() }
}

fn held(epoch: i64) -> LeaseRef {
    LeaseRef { uid: "u-1".into(), epoch }
}

fn assignment(epoch: i64) -> Box<Assignment> {
    Box::new(samples::assignment(epoch))
}

fn runs(turn: u32, text: &str) -> [Action; 1] {
    [Action::Run { turn, text: text.into(), input: Input::Stdin }]
}

fn exit(code: u8) -> Event {
    Event::Ended(Exit { code, killed: false })
}

fn killed(code: u8) -> Event {
    Event::Ended(Exit { code, killed: true })
}

fn wants(order: ItemOrder) -> Event {
    Event::Wanted(Some(ItemWanted { held: held(1), order }))
}

fn complete(result: Option<&str>) -> Outcome {
    Outcome::Complete { result: result.map(str::to_owned), changeset: None }
}

/// The reason of an outcome that is no success, and its exit code.
fn reason(items: &Items) -> (String, Option<i32>) {
    match items.finished().expect("it is over").1 {
        Outcome::Complete { .. } => ("Complete".into(), None),
        Outcome::Fail { reason, exit_code, .. } => (reason, exit_code),
        Outcome::Release { reason, .. } => (reason, None),
    }
}

/// Items with one in hand, for which the program runs.
fn busy(max_turns: u32) -> Items {
    let mut items = items(Run::PerItem, max_turns);
    assert_eq!(items.on(at(0), Event::Take(assignment(1))), runs(1, "do it"));
    assert_eq!(items.held(), Some(held(1)));
    items
}

/// The actions after the program ended by `event`, no process was left, and all output was read.
fn ended(items: &mut Items, event: Event) -> Vec<Action> {
    assert_eq!(items.on(at(1_000), event), [Action::AskAll], "what it left behind has to go first");
    assert_eq!(items.on(at(1_001), Event::Empty), []);
    assert!(items.copying() && items.finished().is_none());
    assert_eq!(items.on(at(1_002), Event::Copied), [], "what it said may be on its way");
    assert_eq!((items.copying(), items.wake()), (false, Some(at(1_003))));
    items.on(at(1_003), Event::Tick)
}

/// The actions after all output of the run was read, and the grace for the last report is over.
fn copied(items: &mut Items, now: u64) -> Vec<Action> {
    assert_eq!(items.on(at(now), Event::Copied), []);
    items.on(at(now + 2), Event::Tick)
}

/// The output of a program that wrote only to standard output.
fn words(result: Option<&str>, output: &str) -> RunOutput {
    RunOutput { result: result.map(str::to_owned), output: output.to_owned(), tail: output.to_owned() }
}

#[test]
fn exit_codes_are_outcomes() {
    let cases = [
        (exit(0), words(Some("from the file"), "tail"), complete(Some("from the file"))),
        (exit(0), words(None, "tail"), complete(Some("tail"))),
        (exit(0), words(None, ""), complete(None)),
        (exit(0), RunOutput { tail: "a warning\nanswer".into(), ..words(None, "answer") }, complete(Some("answer"))),
        (exit(0), RunOutput { tail: "a warning".into(), ..words(None, "") }, complete(None)),
        (exit(4), RunOutput { tail: "answer\nwhy".into(), ..words(None, "answer") }, fail("Exited", "answer\nwhy", 4)),
        (exit(3), words(Some("not used"), "why"), fail("Exited", "why", 3)),
        (exit(143), words(None, ""), fail("Exited", "", 143)),
        (killed(137), words(None, "last"), fail("Killed", "last", 137)),
    ];
    for (event, words, expected) in cases {
        let mut items = busy(1);
        assert_eq!(ended(&mut items, event.clone()), [Action::Conclude]);
        assert_eq!(items.conclude(at(1_003), words), []);
        assert_eq!(items.finished(), Some((held(1), expected)), "{event:?}");
        assert_eq!(items.held(), Some(held(1)), "until it is settled");
        assert_eq!(items.on(at(2_000), Event::Settled(held(2))), []);
        assert!(items.finished().is_some(), "another lease");
        items.on(at(2_000), Event::Settled(held(1)));
        assert_eq!((items.held(), items.finished(), items.wake()), (None, None, None));
    }
}

#[test]
fn what_cannot_be_started_failed() {
    let mut items = busy(1);
    assert_eq!(items.on(at(0), Event::NotStarted(127, "cannot start x".into())), [Action::Conclude]);
    items.conclude(at(0), words(None, "of before"));
    assert_eq!(items.finished(), Some((held(1), fail("NotStarted", "cannot start x", 127))));
}

#[test]
fn an_item_is_run_once_however_often_it_is_said() {
    let mut items = busy(1);
    assert_eq!(items.on(at(1), Event::Take(assignment(1))), []);
    ended(&mut items, exit(0));
    items.conclude(at(2), RunOutput::default());
    assert_eq!(items.on(at(3), Event::Take(assignment(1))), [], "nor when it ended");
    // The next item may come before the order that settles this one.
    assert_eq!(items.on(at(4), Event::Take(assignment(2))), []);
    assert_eq!(items.on(at(5), Event::Settled(held(1))), runs(1, "do it"));
    assert_eq!(items.held(), Some(held(2)));
    assert_eq!(Items::default().on(at(0), Event::Take(assignment(1))), [], "one that works from no queue takes none");
}

#[test]
fn what_a_run_leaves_behind_is_killed_before_anything_is_reported() {
    let mut items = busy(1);
    assert_eq!(items.on(at(1_000), exit(0)), [Action::AskAll]);
    assert_eq!(items.wake(), Some(at(3_000)));
    assert_eq!(items.on(at(2_999), Event::Tick), []);
    assert_eq!(items.on(at(3_000), Event::Tick), [Action::KillAll]);
    for again in 1..1_000 {
        assert_eq!(items.on(at(3_000 + 50 * again), Event::Tick), [Action::KillAll], "for as long as it takes");
        assert!(items.finished().is_none() && items.clearing());
    }
    items.on(at(60_000), Event::Empty);
    assert_eq!(copied(&mut items, 60_000), [Action::Conclude]);
}

#[test]
fn output_that_nobody_reads_holds_up_for_two_seconds() {
    let mut items = busy(1);
    items.on(at(0), exit(0));
    items.on(at(10), Event::Empty);
    assert_eq!(items.wake(), Some(at(2_010)));
    assert_eq!(items.on(at(2_010), Event::Tick), [Action::Conclude]);
    assert_eq!(copied(&mut items, 2_011), [], "once");
}

#[test]
fn it_is_run_again_until_it_says_something_or_had_its_turns() {
    let mut items = busy(3);
    assert_eq!(ended(&mut items, exit(0)), runs(2, "go on"));
    assert_eq!(items.held(), Some(held(1)));
    assert_eq!(ended(&mut items, exit(0)), runs(3, "go on"));
    assert_eq!(ended(&mut items, exit(0)), [Action::Conclude]);
    items.conclude(at(3), words(None, "third"));
    assert_eq!(items.finished(), Some((held(1), complete(Some("third")))));
    // A failure is final at once, and so is a report of the program.
    let mut items = busy(3);
    assert_eq!(ended(&mut items, exit(1)), [Action::Conclude]);
    let mut items = busy(3);
    items.on(at(1), Event::ReportedByProgram(held(1), complete(None)));
    assert_eq!(ended(&mut items, exit(0)), [Action::Conclude]);
}

#[test]
fn what_the_program_says_counts_whatever_its_exit_code() {
    let said = [complete(Some("said")), fail("NoSense", "as it says", 9), release("Released", "later")];
    for (said, event) in said.iter().flat_map(|said| [(said, exit(0)), (said, exit(7)), (said, killed(137))]) {
        let mut items = busy(3);
        items.on(at(1), Event::ReportedByProgram(held(2), complete(Some("of another lease"))));
        items.on(at(1), Event::ReportedByProgram(held(1), release("First", "")));
        items.on(at(2), Event::ReportedByProgram(held(1), said.clone()));
        ended(&mut items, event.clone());
        items.conclude(at(3), words(Some("file"), "tail"));
        assert_eq!(items.finished(), Some((held(1), said.clone())), "{event:?}");
    }
    let mut items = busy(1);
    items.on(at(1), Event::ReportedByProgram(held(1), complete(None)));
    ended(&mut items, exit(0));
    items.conclude(at(3), words(Some("file"), "tail"));
    assert_eq!(items.finished(), Some((held(1), complete(Some("file")))), "one that says no result may have written it");
}

#[test]
fn a_cancelled_item_is_given_back_unless_it_was_done() {
    let mut items = busy(3);
    assert_eq!(items.on(at(0), wants(ItemOrder::Cancel)), [Action::AskAll]);
    assert_eq!(items.wake(), Some(at(10_000)), "ten seconds, or the grace");
    assert_eq!(items.on(at(1), wants(ItemOrder::Cancel)), [], "said again");
    let mut done = items.clone();
    done.on(at(2), Event::ReportedByProgram(held(1), complete(Some("just in time"))));
    for (items, expected) in [(&mut items, "Cancelled"), (&mut done, "Complete")] {
        assert_eq!(items.on(at(10_000), Event::Tick), [Action::KillAll]);
        items.on(at(10_001), killed(137));
        items.on(at(10_001), Event::Empty);
        assert_eq!(copied(items, 10_002), [Action::Conclude]);
        items.conclude(at(10_002), RunOutput::default());
        assert_eq!(reason(items).0, expected);
    }
    // The program ended by itself before the order: that counts, but it does not run again.
    for (max_turns, expected) in [(1, "Complete"), (3, "Cancelled")] {
        let mut items = busy(max_turns);
        items.on(at(0), exit(0));
        items.on(at(1), wants(ItemOrder::Cancel));
        items.on(at(2), Event::Empty);
        assert_eq!(copied(&mut items, 2), [Action::Conclude]);
        items.conclude(at(2), RunOutput::default());
        assert_eq!(reason(&items).0, expected);
    }
    let mut items = items_of_a_short_grace();
    items.on(at(0), Event::Take(assignment(1)));
    items.on(at(0), wants(ItemOrder::Cancel));
    assert_eq!(items.wake(), Some(at(4_000)));
}

fn items_of_a_short_grace() -> Items {
    Items { grace: Duration::from_secs(4), ..items(Run::PerItem, 1) }
}

#[test]
fn a_lost_item_is_ended_at_once() {
    let mut items = busy(3);
    items.on(at(0), wants(ItemOrder::Cancel));
    assert_eq!(items.on(at(1_000), wants(ItemOrder::Lost)), []);
    assert_eq!(items.wake(), Some(at(3_000)), "sooner than a cancelled one");
    items.on(at(1_500), Event::ReportedByProgram(held(1), complete(None)));
    items.on(at(2_000), exit(0));
    items.on(at(2_000), Event::Empty);
    copied(&mut items, 2_000);
    items.conclude(at(2_000), RunOutput::default());
    assert_eq!(reason(&items).0, "Lost", "whatever was said");
    assert_eq!(items.on(at(2_000), Event::Take(assignment(2))), []);
    assert_eq!(items.on(at(2_000), Event::Settled(held(1))), runs(1, "do it"));
}

#[test]
fn what_is_not_wanted_any_more_is_not_begun_and_other_leases_are_no_concern() {
    for (order, expected) in [(ItemOrder::Cancel, "Cancelled"), (ItemOrder::Lost, "Lost")] {
        let mut items = items(Run::PerItem, 1);
        items.on(at(0), wants(order));
        assert_eq!(items.on(at(0), Event::Take(assignment(1))), []);
        assert_eq!(reason(&items).0, expected);
        items.on(at(0), Event::Settled(held(1)));
        assert_eq!(items.on(at(1), Event::Take(assignment(2))), runs(1, "do it"));
        assert_eq!(items.on(at(1), wants(order)), []);
    }
}

#[test]
fn a_settled_item_that_still_runs_is_ended_and_forgotten() {
    let mut items = busy(1);
    assert_eq!(items.on(at(0), Event::Settled(held(1))), [Action::AskAll]);
    items.on(at(1), killed(143));
    items.on(at(1), Event::Empty);
    items.on(at(1), Event::Take(assignment(2)));
    assert_eq!(copied(&mut items, 1), [Action::Conclude]);
    assert_eq!(items.conclude(at(1), RunOutput::default()), runs(1, "do it"));
    assert_eq!(items.held(), Some(held(2)));
}

#[test]
fn the_end_of_the_pod_gives_back_what_was_not_done() {
    // (turns, before the end began, while it went on, said, expected)
    let none: &[Event] = &[];
    let cases = [
        (1, none, &[killed(143)][..], None, ("Drained", None)),
        (1, none, &[exit(1)], None, ("Drained", None)),
        (1, none, &[exit(0)], None, ("Complete", None)),
        (2, none, &[exit(0)], None, ("Drained", None)), // it would have been run again
        (1, none, none, None, ("Drained", None)),       // not even killing helped
        (1, none, &[killed(137)], Some(complete(None)), ("Complete", None)),
        (1, none, &[killed(137)], Some(fail("NoSense", "", 9)), ("NoSense", Some(9))),
        (1, &[exit(4)], none, None, ("Exited", Some(4))), // it was over before
    ];
    for (turns, before, meanwhile, said, expected) in cases {
        let mut items = busy(turns);
        before.iter().for_each(|event| drop(items.on(at(0), event.clone())));
        assert_eq!(items.on(at(1), Event::Draining), []);
        assert_eq!(items.wake(), None, "it is the life's to ask and kill");
        if let Some(said) = said.clone() {
            items.on(at(2), Event::ReportedByProgram(held(1), said));
        }
        meanwhile.iter().for_each(|event| assert_eq!(items.on(at(3), event.clone()), []));
        assert_eq!(items.on(at(4), Event::Empty), []);
        assert_eq!(items.on(at(5), Event::Leave), [Action::Conclude]);
        items.conclude(at(5), RunOutput::default());
        let (reason, code) = reason(&items);
        assert_eq!((reason.as_str(), code), expected, "{turns} {before:?} {meanwhile:?} {said:?}");
    }
    // An item that comes too late is given back without a run.
    let mut items = items(Run::PerItem, 1);
    items.on(at(0), Event::Draining);
    assert_eq!(items.on(at(0), Event::Take(assignment(1))), []);
    assert_eq!(reason(&items).0, "Drained");
}

#[test]
fn a_run_is_not_followed_by_another_when_the_pod_ends() {
    let mut items = busy(2);
    items.on(at(0), exit(0));
    items.on(at(1), Event::Empty);
    items.on(at(2), Event::Draining);
    assert_eq!(copied(&mut items, 3), [Action::Conclude]);
    items.conclude(at(3), RunOutput::default());
    assert_eq!(reason(&items).0, "Drained");
}

#[test]
fn a_program_that_runs_all_the_time_is_told_and_not_ended() {
    let mut long = items(Run::LongRunning, 1);
    assert_eq!(long.on(at(0), Event::Take(assignment(1))), []);
    assert_eq!(long.held(), Some(held(1)));
    let notices = long.on(at(1), wants(ItemOrder::Cancel));
    assert!(matches!(&notices[..], [Action::Notice("ItemCancelled", text)] if text.contains("fix-1")), "{notices:?}");
    assert_eq!(long.on(at(2), wants(ItemOrder::Cancel)), []);
    assert_eq!(long.held(), Some(held(1)), "it is its program's to give back");
    assert!(matches!(&long.on(at(3), wants(ItemOrder::Lost))[..], [Action::Notice("ItemLost", _)]));
    assert_eq!(long.held(), None);
    assert_eq!(long.on(at(4), Event::Settled(held(1))), []);
    long.on(at(5), Event::Take(assignment(2)));
    assert_eq!(long.on(at(6), Event::Settled(held(2))), [], "done, as its program told the sidecar");
    assert_eq!((long.held(), long.wake()), (None, None));
}

#[test]
fn the_end_of_a_program_that_runs_all_the_time_is_its_items_too() {
    let cases = [
        (false, exit(0), ("Exited", Some(0))),
        (false, exit(5), ("Exited", Some(5))),
        (false, killed(137), ("Killed", Some(137))),
        (true, exit(0), ("Drained", None)),
        (true, killed(143), ("Drained", None)),
    ];
    for (draining, event, expected) in cases {
        let mut items = items(Run::LongRunning, 1);
        items.on(at(0), Event::Take(assignment(1)));
        if draining {
            items.on(at(1), Event::Draining);
        }
        assert_eq!(items.on(at(2), event.clone()), []);
        items.on(at(2), Event::Draining);
        assert_eq!(items.on(at(3), Event::Leave), [Action::Conclude]);
        items.conclude(at(3), RunOutput::default());
        let (reason, code) = reason(&items);
        assert_eq!((reason.as_str(), code), expected, "{draining} {event:?}");
    }
}

fn goes_on() -> Event {
    Event::Wanted(None)
}

#[test]
fn a_program_that_died_of_what_its_item_waits_for_is_run_again_when_it_goes_on() {
    // The order comes before or after the end of the program, because the end may be known first.
    for late in [false, true] {
        let mut items = busy(1);
        let pause = |items: &mut Items| assert_eq!(items.on(at(2), wants(ItemOrder::Pause(1))), [Action::Checkpoint(1)]);
        if !late {
            pause(&mut items);
            assert_eq!(items.on(at(3), Event::CheckpointEnded), []);
        }
        assert_eq!(ended(&mut items, exit(1)), [Action::Conclude]);
        assert_eq!(items.conclude(at(1_003), words(None, "402")), []);
        if late {
            assert_eq!(items.finished(), Some((held(1), fail("Exited", "402", 1))), "nobody said that it waits");
            pause(&mut items);
            assert_eq!(items.on(at(3), Event::CheckpointEnded), []);
        }
        assert_eq!((items.finished(), items.held(), items.wake()), (None, Some(held(1)), None), "it is kept, late: {late}");
        assert_eq!(items.on(at(4), wants(ItemOrder::Pause(1))), [], "said again");
        assert_eq!(items.on(at(5), goes_on()), runs(2, "go on"));
        // A second pause has its own number and checkpoint.
        assert_eq!(items.on(at(6), wants(ItemOrder::Pause(2))), [Action::Checkpoint(2)]);
        assert_eq!(items.on(at(7), Event::CheckpointEnded), []);
        assert_eq!(items.on(at(8), goes_on()), [], "it never ended");
        assert_eq!(ended(&mut items, exit(0)), [Action::Conclude], "the pool's turns are as many as before");
        items.conclude(at(1_003), words(Some("done"), ""));
        assert_eq!(items.finished(), Some((held(1), complete(Some("done")))));
    }
}

#[test]
fn a_checkpoint_is_written_to_its_end_before_anything_is_asked_to_go() {
    let mut items = busy(1);
    items.on(at(0), wants(ItemOrder::Pause(1)));
    assert_eq!(items.on(at(1), exit(1)), [], "its hook would be asked to go too");
    assert_eq!(items.on(at(2), Event::Empty), []);
    assert_eq!(items.on(at(3), Event::CheckpointEnded), [Action::AskAll]);
    items.on(at(4), Event::Empty);
    assert_eq!(copied(&mut items, 5), [Action::Conclude]);
    items.conclude(at(5), RunOutput::default());
    assert_eq!(items.finished(), None);
    // If the pause ends while a hook runs, the program runs again after the hook.
    let mut items = busy(1);
    ended(&mut items, exit(1));
    items.conclude(at(1_003), RunOutput::default());
    assert_eq!(items.on(at(1_004), wants(ItemOrder::Pause(1))), [Action::Checkpoint(1)]);
    assert_eq!(items.on(at(1_005), goes_on()), []);
    assert_eq!(items.on(at(1_006), Event::CheckpointEnded), runs(2, "go on"));
}

#[test]
fn what_was_said_or_done_while_it_waits_is_told_and_its_end_ends_it() {
    let waiting = || {
        let mut items = busy(1);
        items.on(at(0), wants(ItemOrder::Pause(1)));
        items.on(at(0), Event::CheckpointEnded);
        items
    };
    let end = |mut items: Items, event: Event| {
        ended(&mut items, event);
        items.conclude(at(1_003), words(None, "tail"));
        items
    };
    assert_eq!(end(waiting(), exit(0)).finished(), Some((held(1), complete(Some("tail")))), "it was done all the same");
    let mut said = waiting();
    said.on(at(1), Event::ReportedByProgram(held(1), fail("NoSense", "as it says", 9)));
    assert_eq!(reason(&end(said, exit(1))).0, "NoSense");
    for (event, expected) in [(wants(ItemOrder::Cancel), "Cancelled"), (wants(ItemOrder::Lost), "Lost"), (Event::Draining, "Drained")] {
        let mut items = end(waiting(), exit(1));
        assert_eq!((items.on(at(2_000), event.clone()), items.finished().is_some()), (vec![], true), "{event:?}");
        assert_eq!(reason(&items).0, expected);
    }
    // An item that comes during its pause is begun after the pause.
    let mut items = items(Run::PerItem, 1);
    items.on(at(0), wants(ItemOrder::Pause(1)));
    assert_eq!(items.on(at(0), Event::Take(assignment(1))), [Action::Checkpoint(1)]);
    items.on(at(0), Event::CheckpointEnded);
    assert_eq!(items.on(at(1), goes_on()), runs(1, "do it"));
}

#[test]
fn a_program_that_runs_all_the_time_is_told_that_its_item_waits() {
    let mut long = items(Run::LongRunning, 1);
    long.on(at(0), Event::Take(assignment(1)));
    let told = long.on(at(1), wants(ItemOrder::Pause(1)));
    assert!(matches!(&told[..], [Action::Notice("ItemPaused", text), Action::Checkpoint(1)] if text.contains("fix-1")), "{told:?}");
    assert_eq!(long.on(at(2), Event::CheckpointEnded), []);
    assert_eq!((long.on(at(3), goes_on()), long.held()), (vec![], Some(held(1))));
}

#[test]
fn a_result_is_cut_between_two_characters() {
    assert_eq!(result_of(b""), None);
    assert_eq!(result_of(b"x\n").as_deref(), Some("x\n"));
    assert_eq!(result_of(b"a\xffb").as_deref(), Some("a\u{fffd}b"));
    let long = "\u{20ac}".repeat(2_000);
    let cut = result_of(long.as_bytes().get(..=MAX_RESULT_BYTES).expect("longer")).expect("a result");
    assert_eq!((cut.len(), cut.chars().all(|one| one == '\u{20ac}')), (4_095, true));
    let broken = result_of(&[0xff; 5_000]).expect("a result");
    assert!(broken.len() <= MAX_RESULT_BYTES && broken.chars().all(|one| one == '\u{fffd}'));
}
