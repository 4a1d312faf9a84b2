//! The transitions of an item that follow from its holder. `model_tests.rs` checks all orders of events.

use super::super::item::Holder;
use super::super::lease::claim;
use super::*;

const NOW: UnixMillis = UnixMillis(1_000_000);

fn leased() -> Record {
    let holder = Holder { pod: "p".into(), agent: "a".into(), since: NOW };
    claim(&Spec::default(), &Record { phase: Phase::Ready, ..Record::default() }, holder, NOW).expect("it is ready")
}
fn settled(spec: &Spec, record: &Record, holder: HolderState) -> Option<Record> {
    let policy = Policy { max_attempts: 2, ..Policy::default() };
    let facts = TransitionFacts {
        admission: Admission::Unknown,
        dependencies: Dependencies::Satisfied,
        queue_gone: false,
        group_cancelled: false,
        unmet: Some(false),
        holder,
        policy: &policy,
        rules: &[],
        dice: 0.5,
    };
    settle(spec, record, &facts, NOW)
}
fn paused() -> HolderState {
    HolderState::Paused("TokenBudgetExceeded".into())
}

#[test]
fn an_item_waits_and_goes_on_with_its_agent() {
    let spec = Spec::default();
    let waits = settled(&spec, &leased(), paused()).expect("its agent is held");
    assert_eq!((waits.phase, waits.pauses, waits.reason.as_deref()), (Phase::Paused, 1, Some("TokenBudgetExceeded")));
    assert_eq!((&waits.holder, waits.epoch), (&leased().holder, leased().epoch), "the lease is kept");
    assert_eq!(settled(&spec, &waits, paused()), None);
    let named = Spec { resume_pause: 1, ..Spec::default() };
    assert_eq!(settled(&named, &waits, paused()), None, "it does not go on before its agent does");
    let on = settled(&spec, &waits, HolderState::There).expect("its agent goes on");
    assert_eq!((on.phase, on.pauses, on.attempts), (Phase::Leased, 1, 1));
    assert_eq!(settled(&spec, &on, paused()).map(|again| again.pauses), Some(2), "each pause has its number");
}

#[test]
fn one_that_is_paused_ends_by_cancel_or_with_its_agent() {
    let waits = settled(&Spec::default(), &leased(), paused()).expect("its agent is held");
    let cancelled = settled(&Spec { cancel: true, ..Spec::default() }, &waits, paused()).expect("it is cancelled");
    assert_eq!(cancelled.phase, Phase::Cancelling);
    let gone = |verb| HolderState::Gone(verb, "R".into(), String::new());
    let lost = settled(&Spec::default(), &waits, gone(Verb::LeaseExpired)).expect("its pod is gone");
    assert_eq!((lost.phase, lost.stalls, lost.failures), (Phase::Scheduled, 1, 0));
    let back = settled(&Spec::default(), &waits, gone(Verb::Release)).expect("its pod is gone");
    assert_eq!((back.phase, back.stalls, back.failures), (Phase::Ready, 0, 0));
}

#[test]
fn what_an_agent_spent_its_whole_life_on_in_vain_failed() {
    let failed = |is_final| HolderState::Failed { reason: "TokensExhausted".into(), message: "m".into(), is_final };
    let again = settled(&Spec::default(), &leased(), failed(false)).expect("its pod is gone");
    assert_eq!((again.phase, again.failures, again.stalls), (Phase::Scheduled, 1, 0));
    assert_eq!(again.history.last().map(|last| (last.verb, last.reason.as_deref())), Some((Verb::Fail, Some("TokensExhausted"))));
    let over = settled(&Spec::default(), &Record { failures: 1, ..leased() }, failed(false)).expect("its pod is gone");
    assert_eq!(over.phase, Phase::DeadLettered);
    assert_eq!(settled(&Spec::default(), &leased(), failed(true)).map(|record| record.phase), Some(Phase::Failed), "under a drone");
    let cancelling = Record { phase: Phase::Cancelling, ..leased() };
    assert_eq!(settled(&Spec::default(), &cancelling, failed(false)).map(|record| record.phase), Some(Phase::Cancelled));
}
