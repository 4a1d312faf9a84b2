//! The result of each call of a holder, case by case. `model_tests.rs` checks all orders of events.

use super::*;
use crate::work::item::MAX_REMEMBERED_ATTEMPTS;

const NOW: UnixMillis = UnixMillis(1_000_000);

fn holder(pod: &str) -> Holder {
    Holder { pod: pod.into(), agent: format!("agent-of-{pod}"), since: NOW }
}
fn fence(epoch: i64, pod: &'static str) -> Fence<'static> {
    Fence { epoch, pod, agent: if pod == "p" { "agent-of-p" } else { "agent-of-q" } }
}
fn ready() -> Record {
    Record { phase: Phase::Ready, ..Record::default() }
}
fn leased() -> Record {
    claim(&Spec::default(), &ready(), holder("p"), NOW).expect("it is ready")
}
fn failure(reason: &str, exit_code: Option<i32>) -> Failure {
    Failure { reason: reason.into(), message: "words".into(), exit_code }
}
fn judged(record: &Record, rules: &[Rule], is_final: bool, exit_code: Option<i32>) -> Record {
    let policy = Policy { max_attempts: 2, ..Policy::default() };
    let judges = FailureJudges { policy: &policy, rules, is_final, dice: 0.5 };
    fail(record, fence(record.epoch, "p"), &failure("Exited", exit_code), judges, NOW).expect("it is held")
}
fn rule(action: Action) -> Vec<Rule> {
    vec![Rule { action, reasons: Vec::new(), exit_codes: vec![7] }]
}

#[test]
fn a_claim_raises_the_epoch_and_needs_a_ready_item() {
    let record = leased();
    assert_eq!((record.epoch, record.attempts, record.phase), (1, 1, Phase::Leased));
    for phase in Phase::ALL.into_iter().filter(|phase| *phase != Phase::Ready) {
        assert_eq!(claim(&Spec::default(), &Record { phase, ..Record::default() }, holder("p"), NOW), Err(LeaseRefusal::NotReady(phase)));
    }
    let asked = [
        Spec { cancel: true, ..Spec::default() },
        Spec { suspend: true, ..Spec::default() },
        Spec { deadline: Some(NOW), ..Spec::default() },
    ];
    for spec in asked {
        assert!(claim(&spec, &ready(), holder("p"), NOW).is_err(), "{spec:?}");
    }
    let late = Spec { deadline: Some(NOW), ..Spec::default() };
    assert!(claim(&late, &Record { redrives: 1, ..ready() }, holder("p"), NOW).is_ok(), "a person wants it done, however late");
}

fn replayed(record: &Record, fence: Fence, lost: LostAnswer) -> Result<Record, LeaseRefusal> {
    let policy = Policy::default();
    replay(record, fence, lost, FailureJudges { policy: &policy, rules: &[], is_final: false, dice: 0.5 }, NOW)
}

#[test]
fn a_lost_answer_is_applied_once() {
    let failure = failure("Exited", Some(1));
    let ends = [
        (LostAnswer::Completed, Phase::Succeeded),
        (LostAnswer::Failed(&failure), Phase::Scheduled),
        (LostAnswer::Released { reason: "Drained", message: "" }, Phase::Ready),
    ];
    // The claim is stored and its end is not, or neither is stored.
    for (record, attempts) in [(leased(), 1), (ready(), 1)] {
        for (lost, phase) in ends {
            let next = replayed(&record, fence(1, "p"), lost).expect("it is replayed for the first time");
            assert_eq!((next.phase, next.epoch, next.attempts, next.holder.clone()), (phase, 1, attempts, None), "{lost:?}");
            assert_eq!(next.history.last().map(|attempt| (attempt.epoch, attempt.agent.as_str())), Some((1, "agent-of-p")));
            assert_eq!(replayed(&next, fence(1, "p"), lost), Err(LeaseRefusal::Repeated), "{lost:?}");
        }
    }
    let held = replayed(&ready(), fence(3, "p"), LostAnswer::Granted).expect("nobody has it");
    assert_eq!((held.phase, held.epoch, held.attempts), (Phase::Leased, 3, 1));
    assert!(holds(&held, fence(3, "p")));
    assert_eq!(replayed(&held, fence(3, "p"), LostAnswer::Granted), Err(LeaseRefusal::Repeated));
    assert!(complete(&held, fence(3, "p"), NOW).is_ok(), "its holder goes on");
    // The holder at the time of the backup has lost the item since.
    let moved = replayed(&leased(), fence(2, "q"), LostAnswer::Granted).expect("it was given out again");
    assert!(holds(&moved, fence(2, "q")) && !holds(&moved, fence(1, "p")));
}

#[test]
fn a_lost_answer_waits_for_the_items_admission_and_revives_nothing_that_is_cancelled() {
    let failure = failure("Exited", Some(1));
    let released = LostAnswer::Released { reason: "Drained", message: "" };
    let pending = Record { phase: Phase::Pending, ..ready() };
    for lost in [LostAnswer::Granted, LostAnswer::Completed, LostAnswer::Failed(&failure), released] {
        assert_eq!(replayed(&pending, fence(1, "p"), lost), Err(LeaseRefusal::NotReady(Phase::Pending)), "{lost:?}");
    }
    let cancelling = Record { phase: Phase::Cancelling, ..leased() };
    let phase = |lost| replayed(&cancelling, fence(1, "p"), lost).map(|next| next.phase);
    assert_eq!((phase(LostAnswer::Failed(&failure)), phase(released)), (Ok(Phase::Cancelled), Ok(Phase::Cancelled)));
    assert_eq!(phase(LostAnswer::Completed), Ok(Phase::Succeeded), "it was faster");
}

#[test]
fn only_a_completion_counts_for_a_lease_that_the_record_has_passed() {
    let failure = failure("Exited", Some(1));
    // The item was claimed again since, under the same epoch.
    let anew = replayed(&ready(), fence(1, "q"), LostAnswer::Granted).expect("nobody has it");
    for lost in [LostAnswer::Granted, LostAnswer::Failed(&failure), LostAnswer::Released { reason: "Drained", message: "" }] {
        assert_eq!(replayed(&anew, fence(1, "p"), lost), Err(LeaseRefusal::Stale), "{lost:?}");
    }
    for epoch in [1, 5] {
        let record = Record { epoch, ..anew.clone() };
        let done = replayed(&record, fence(1, "p"), LostAnswer::Completed).expect("nobody has to do it again");
        assert_eq!((done.phase, done.epoch), (Phase::Succeeded, epoch), "epochs never fall");
        assert_eq!(done.history.last().map(|attempt| (attempt.epoch, attempt.agent.as_str())), Some((1, "agent-of-p")));
        assert_eq!(complete(&done, fence(epoch, "q"), NOW), Err(LeaseRefusal::Stale), "who had it is told that it is lost");
    }
    for phase in Phase::ALL.into_iter().filter(|phase| phase.ended()) {
        let record = Record { phase, ..Record::default() };
        assert_eq!(replayed(&record, fence(9, "p"), LostAnswer::Completed), Err(LeaseRefusal::EndedAlready(phase)));
    }
    let paused = Record { phase: Phase::Paused, ..leased() };
    assert_eq!(
        replayed(&paused, fence(1, "p"), LostAnswer::Completed).map(|next| next.phase),
        Ok(Phase::Succeeded),
        "it went on meanwhile"
    );
}

#[test]
fn only_the_whole_fence_finishes_an_item_and_saying_it_again_is_answered_the_same() {
    let record = leased();
    for (epoch, pod) in [(1, "q"), (2, "p"), (0, "p")] {
        assert_eq!(complete(&record, fence(epoch, pod), NOW), Err(LeaseRefusal::Stale));
    }
    let done = complete(&record, fence(1, "p"), NOW).expect("it is held");
    assert_eq!((done.phase, done.completed, done.holder.clone()), (Phase::Succeeded, Some(NOW), None));
    assert_eq!(complete(&done, fence(1, "p"), NOW), Err(LeaseRefusal::Repeated));
    let policy = Policy::default();
    let judges = FailureJudges { policy: &policy, rules: &[], is_final: false, dice: 0.5 };
    assert_eq!(fail(&done, fence(1, "p"), &failure("Exited", None), judges, NOW), Err(LeaseRefusal::EndedAlready(Phase::Succeeded)));
    assert_eq!(complete(&done, fence(1, "q"), NOW), Err(LeaseRefusal::Stale));
}

#[test]
fn a_paused_item_is_finished_later() {
    let paused = Record { phase: Phase::Paused, ..leased() };
    assert_eq!(complete(&paused, fence(1, "p"), NOW), Err(LeaseRefusal::Paused));
    let policy = Policy::default();
    let judges = FailureJudges { policy: &policy, rules: &[], is_final: false, dice: 0.5 };
    assert_eq!(fail(&paused, fence(1, "p"), &failure("Exited", Some(1)), judges, NOW), Err(LeaseRefusal::Paused));
    assert_eq!(release(&paused, fence(1, "q"), "Drained", "", judges, NOW), Err(LeaseRefusal::Stale));
    let back = release(&paused, fence(1, "p"), "Drained", "", judges, NOW).expect("its agent is being ended");
    assert_eq!((back.phase, back.failures, back.stalls), (Phase::Ready, 0, 0));
}

#[test]
fn a_failure_is_tried_again_set_aside_or_final_as_the_rules_say() {
    let again = judged(&leased(), &[], false, Some(1));
    assert_eq!((again.phase, again.failures, again.reason.as_deref()), (Phase::Scheduled, 1, Some(reasons::BACKOFF)));
    assert_eq!(again.next_attempt, Some(UnixMillis(NOW.0 + 5_000)), "half of ten seconds, as the dice fell");
    let over = judged(&Record { failures: 1, ..leased() }, &[], false, Some(1));
    assert_eq!((over.phase, over.failures, over.reason.as_deref()), (Phase::DeadLettered, 2, Some(reasons::TOO_MANY_FAILURES)));
    let cases = [
        (Action::Fail, Phase::Failed, 1),
        (Action::DeadLetter, Phase::DeadLettered, 1),
        (Action::Ignore, Phase::Scheduled, 0),
        (Action::RetryElsewhere, Phase::Scheduled, 1),
    ];
    for (action, phase, failures) in cases {
        let next = judged(&leased(), &rule(action), false, Some(7));
        assert_eq!((next.phase, next.failures), (phase, failures), "{action:?}");
        assert_eq!(next.history.last().map(|last| (last.verb, last.reason.clone())), Some((Verb::Fail, Some("Exited".into()))));
    }
    let elsewhere = judged(&leased(), &rule(Action::RetryElsewhere), false, Some(7));
    assert_eq!(elsewhere.excluded_agent(), Some("agent-of-p"));
    assert_eq!(judged(&leased(), &[], true, Some(1)).phase, Phase::Failed, "under a drone");
}

#[test]
fn what_is_given_back_counts_nothing_and_waits_when_it_is_given_back_again_and_again() {
    let policy = Policy::default();
    let judges = FailureJudges { policy: &policy, rules: &[], is_final: false, dice: 1.0 };
    let mut record = leased();
    for round in 1..5 {
        record = release(&record, fence(round, "p"), "Drained", "", judges, NOW).expect("it is held");
        assert_eq!((record.failures, record.stalls), (0, 0));
        assert_eq!(record.phase, if round == 1 { Phase::Ready } else { Phase::Scheduled }, "round {round}");
        record = claim(&Spec::default(), &Record { phase: Phase::Ready, ..record }, holder("p"), NOW).expect("it is ready");
    }
}

#[test]
fn who_was_told_to_stop_ends_the_item_whatever_it_says_unless_it_is_done() {
    let policy = Policy::default();
    let judges = FailureJudges { policy: &policy, rules: &[], is_final: false, dice: 0.5 };
    let told = |reason: &str| Record { phase: Phase::Cancelling, reason: Some(reason.into()), ..leased() };
    let cancelled = told(reasons::CANCEL_REQUESTED);
    assert_eq!(fail(&cancelled, fence(1, "p"), &failure("Exited", Some(143)), judges, NOW).expect("held").phase, Phase::Cancelled);
    assert_eq!(release(&cancelled, fence(1, "p"), "Cancelled", "", judges, NOW).expect("held").phase, Phase::Cancelled);
    let late = release(&told(reasons::DEADLINE_EXCEEDED), fence(1, "p"), "Cancelled", "", judges, NOW).expect("held");
    assert_eq!((late.phase, late.history.last().map(|last| last.verb)), (Phase::Expired, Some(Verb::CancelDone)));
    assert_eq!(complete(&cancelled, fence(1, "p"), NOW).expect("held").phase, Phase::Succeeded);
}

#[test]
fn only_the_last_attempts_are_remembered() {
    let policy = Policy { max_attempts: 100, ..Policy::default() };
    let judges = FailureJudges { policy: &policy, rules: &[], is_final: false, dice: 0.0 };
    let mut record = ready();
    for epoch in 1..=8 {
        record = claim(&Spec::default(), &Record { phase: Phase::Ready, ..record }, holder("p"), NOW).expect("it is ready");
        record = fail(&record, fence(epoch, "p"), &failure("Exited", None), judges, NOW).expect("it is held");
    }
    let epochs: Vec<_> = record.history.iter().map(|attempt| attempt.epoch).collect();
    assert_eq!((epochs.len(), epochs), (MAX_REMEMBERED_ATTEMPTS, vec![4, 5, 6, 7, 8]));
}
