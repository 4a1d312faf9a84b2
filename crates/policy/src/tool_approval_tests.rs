use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

fn call(digest: &str, toolset: &str) -> Call {
    let item = Some(HeldItem { name: "fix".into(), uid: "i".into(), epoch: 1 });
    Call { digest: digest.into(), toolset: toolset.into(), program: "deploy".into(), arguments: "{}".into(), pod_uid: "pod".into(), item }
}

fn answer(id: &str, toolset: &str, decision: Decision) -> Answer {
    Answer { id: id.into(), toolset: toolset.into(), decision, by: "alice".into(), reason: Some("because".into()) }
}

fn facts(now: i64, answers: &[Answer]) -> Facts<'_> {
    Facts { now, answers, void_until: None, may_act: &|_| true }
}

fn new(id: &str) -> NewQuestion {
    NewQuestion { id: id.into(), timeout_seconds: 100 }
}

/// The questions after one call at time 0, with the id `q`.
fn asked() -> Vec<Question> {
    let (Reviewed { questions, news }, verdict) = ask(&[], &call("d", "t"), new("q"), &facts(0, &[]));
    assert_eq!((verdict, news), (Verdict::Waiting, vec![News::Requested(questions[0].clone())]));
    questions
}

#[test]
fn an_approved_call_runs_once_and_then_a_person_is_asked_anew() {
    let approve = [answer("q", "t", Decision::Approve)];
    let waiting = asked();
    let (same, verdict) = ask(&waiting, &call("d", "t"), new("x"), &facts(1, &[]));
    assert_eq!((verdict, &same.questions, same.news.len()), (Verdict::Waiting, &waiting, 0), "a repeat changes nothing");
    let given = review(&waiting, &facts(1, &approve));
    assert!(matches!(given.news[..], [News::Given(_)]) && matches!(given.questions[0].state, State::Approved { .. }), "{given:?}");
    let (used, verdict) = ask(&given.questions, &call("d", "t"), new("x"), &facts(2, &approve));
    assert_eq!(verdict, Verdict::Approved { by: "alice".into() });
    assert!(matches!(used.news[..], [News::Used(_)]), "{used:?}");
    // The answer is still there, and approves no other question, whether it has the same arguments or not.
    let (again, verdict) = ask(&used.questions, &call("d", "t"), new("q2"), &facts(3, &approve));
    assert_eq!((verdict, again.questions.len(), &*again.questions[0].id), (Verdict::Waiting, 1, "q2"));
    let (still, verdict) = ask(&again.questions, &call("d", "t"), new("q3"), &facts(4, &approve));
    assert_eq!((verdict, still.questions), (Verdict::Waiting, again.questions));
    // A governor that sees the answer before the reconciler does it in one step.
    let (both, verdict) = ask(&waiting, &call("d", "t"), new("x"), &facts(1, &approve));
    assert_eq!(verdict, Verdict::Approved { by: "alice".into() });
    assert!(matches!(both.news[..], [News::Given(_), News::Used(_)]), "{both:?}");
}

#[test]
fn only_an_answer_for_this_id_and_this_toolset_counts() {
    for wrong in [answer("q", "other", Decision::Approve), answer("p", "t", Decision::Approve), answer("", "t", Decision::Deny)] {
        let reviewed = review(&asked(), &facts(1, std::slice::from_ref(&wrong)));
        assert_eq!((reviewed.questions, reviewed.news.len()), (asked(), 0), "{wrong:?}");
    }
}

#[test]
fn a_denial_holds_for_its_time_and_an_approval_can_be_taken_back() {
    let deny = [answer("q", "t", Decision::Deny)];
    let denied = Verdict::Denied { by: "alice".into(), reason: Some("because".into()) };
    let (first, verdict) = ask(&asked(), &call("d", "t"), new("x"), &facts(1, &deny));
    assert_eq!(verdict, denied);
    assert!(matches!(first.news[..], [News::Denied(_)]), "{first:?}");
    // Whoever repeats the call gets the same answer, also without the person's answer in the spec, and nobody is asked.
    for now in [2, 99, 100, 159] {
        let (again, verdict) = ask(&first.questions, &call("d", "t"), new("x"), &facts(now, &[]));
        assert_eq!((verdict, again.news.len(), &again.questions), (denied.clone(), 0, &first.questions));
    }
    let (later, verdict) = ask(&first.questions, &call("d", "t"), new("q2"), &facts(160, &deny));
    assert_eq!((verdict, &*later.questions[0].id), (Verdict::Waiting, "q2"));
    let approved = review(&asked(), &facts(1, &[answer("q", "t", Decision::Approve)])).questions;
    assert_eq!(ask(&approved, &call("d", "t"), new("x"), &facts(2, &deny)).1, denied);
    let withdrawn = review(&approved, &facts(2, &[]));
    assert_eq!(withdrawn.questions, approved, "an answer that is pruned was taken over");
}

#[test]
fn after_its_time_nothing_is_approved_and_the_caller_hears_of_it() {
    let approve = [answer("q", "t", Decision::Approve)];
    let (late, verdict) = ask(&asked(), &call("d", "t"), new("x"), &facts(100, &approve));
    assert_eq!(verdict, Verdict::TimedOut);
    assert!(matches!(late.news[..], [News::TimedOut(_)]), "{late:?}");
    let approved = review(&asked(), &facts(99, &approve)).questions;
    let (unused, verdict) = ask(&approved, &call("d", "t"), new("x"), &facts(100, &approve));
    assert_eq!(verdict, Verdict::TimedOut, "also an approval that was not used");
    assert_eq!(ask(&unused.questions, &call("d", "t"), new("x"), &facts(159, &approve)).1, Verdict::TimedOut);
    let (anew, verdict) = ask(&unused.questions, &call("d", "t"), new("q2"), &facts(160, &approve));
    assert_eq!((verdict, anew.questions.len(), anew.questions[0].expires_at), (Verdict::Waiting, 1, 260));
    let forgotten = review(&asked(), &facts(500, &approve));
    assert!(forgotten.questions.is_empty() && matches!(forgotten.news[..], [News::TimedOut(_)]), "nobody looked: {forgotten:?}");
}

#[test]
fn a_question_ends_with_the_lease_of_its_call_and_with_a_rollback_of_the_store() {
    let approve = [answer("q", "t", Decision::Approve)];
    let approved = review(&asked(), &facts(1, &approve)).questions;
    for questions in [asked(), approved] {
        let lost = review(&questions, &Facts { may_act: &|_| false, ..facts(2, &approve) });
        assert_eq!((lost.questions, lost.news), (vec![], vec![]), "the agent lost its item, or has ended");
        let rolled_back = Facts { void_until: Some(0), ..facts(2, &approve) };
        let (anew, verdict) = ask(&questions, &call("d", "t"), new("q2"), &rolled_back);
        assert_eq!((verdict, &*anew.questions[0].id), (Verdict::Waiting, "q2"));
    }
    // The same digest for another pod, another lease or another Toolset is another call.
    let other_lease = Call { item: Some(HeldItem { name: "fix".into(), uid: "i".into(), epoch: 2 }), ..call("d", "t") };
    for other in [call("d", "t2"), call("e", "t"), Call { pod_uid: "pod2".into(), ..call("d", "t") }, other_lease] {
        let (reviewed, verdict) = ask(&asked(), &other, new("q2"), &facts(1, &approve));
        assert_eq!((verdict, reviewed.questions.len()), (Verdict::Waiting, 2), "{other:?}");
    }
}

#[test]
fn a_full_list_takes_no_question_until_one_is_over() {
    let mut questions = Vec::new();
    for number in 0..MAX_QUESTIONS {
        let now = i64::try_from(number).expect("small");
        questions = ask(&questions, &call(&number.to_string(), "t"), new(&number.to_string()), &facts(now, &[])).0.questions;
    }
    let (same, verdict) = ask(&questions, &call("more", "t"), new("x"), &facts(10, &[]));
    assert_eq!((verdict, &same.questions), (Verdict::Full { retry_seconds: 150 }, &questions));
    assert_eq!(ask(&questions, &call("3", "t"), new("x"), &facts(10, &[])).1, Verdict::Waiting, "a repeat needs no room");
    let used = ask(&questions, &call("3", "t"), new("x"), &facts(10, &[answer("3", "t", Decision::Approve)])).0.questions;
    let (with, verdict) = ask(&used, &call("more", "t"), new("x"), &facts(10, &[]));
    assert_eq!((verdict, with.questions.len()), (Verdict::Waiting, MAX_QUESTIONS), "a call that ran leaves its place");
    assert_eq!(next_change(&questions), Some(100));
    assert_eq!(next_change(&[]), None);
}

/// What happens next in a simulated cluster.
#[derive(Clone, Debug)]
enum Event {
    /// A gateway asks for one of the calls. The leader may decide from a stale list, end before its write, or end after it.
    Ask { call: usize, stale: bool, outcome: WriteOutcome },
    /// The reconciler looks.
    Review { stale: bool, outcome: WriteOutcome },
    /// A person answers one of the last questions, counted from the newest, for a Toolset.
    Answer { question: usize, toolset: usize, approve: bool },
    /// Answers are pruned.
    Prune,
    /// Time passes.
    Wait(i64),
    /// The agent loses its item, or has a new lease.
    Lease,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteOutcome {
    /// The write is made, and its answer arrives.
    Told,
    /// The write is made, and its answer is lost.
    Lost,
    /// The write is not made.
    Crashed,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let outcome = || prop_oneof![4 => Just(WriteOutcome::Told), 1 => Just(WriteOutcome::Lost), 1 => Just(WriteOutcome::Crashed)];
    let event = prop_oneof![
        6 => (0..4usize, prop::bool::weighted(0.2), outcome()).prop_map(|(call, stale, outcome)| Event::Ask { call, stale, outcome }),
        2 => (prop::bool::weighted(0.2), outcome()).prop_map(|(stale, outcome)| Event::Review { stale, outcome }),
        4 => (0..4usize, 0..2usize, prop::bool::weighted(0.7))
            .prop_map(|(question, toolset, approve)| Event::Answer { question, toolset, approve }),
        1 => Just(Event::Prune),
        2 => (1..70i64).prop_map(Event::Wait),
        1 => Just(Event::Lease),
    ];
    prop::collection::vec(event, 1..120)
}

proptest! {
    /// However leaders end, repeat and race, each question lets at most one call through: one that a person has approved by its id and
    /// its Toolset, in its time, and for the lease under which it was asked.
    #[test]
    fn one_answer_lets_one_call_through(events in events()) {
        let toolsets = ["t", "u"];
        let (mut now, mut epoch, mut version, mut ids) = (0, 1, 0u64, 0u32);
        let mut stored: Vec<Question> = Vec::new();
        let mut earlier: (u64, Vec<Question>) = (0, Vec::new());
        let mut answers: Vec<Answer> = Vec::new();
        let mut approved_by_person = BTreeSet::<(String, String)>::new();
        let mut asked = Vec::<Question>::new();
        let mut runs = BTreeMap::<String, u32>::new();
        for event in events {
            let (ask_for, stale, outcome) = match event {
                Event::Ask { call, stale, outcome } => (Some(call), stale, outcome),
                Event::Review { stale, outcome } => (None, stale, outcome),
                Event::Answer { question, toolset, approve } => {
                    if let Some(question) = asked.iter().rev().nth(question) {
                        let decision = if approve { Decision::Approve } else { Decision::Deny };
                        let said = answer(&question.id, toolsets[toolset], decision);
                        answers.retain(|answer| answer.id != said.id);
                        if approve {
                            approved_by_person.insert((said.id.clone(), said.toolset.clone()));
                        }
                        answers.push(said);
                    }
                    continue;
                }
                Event::Prune => {
                    answers.retain(|answer| stored.iter().any(|question| question.id == answer.id));
                    continue;
                }
                Event::Wait(seconds) => {
                    now += seconds;
                    continue;
                }
                Event::Lease => {
                    epoch += 1;
                    continue;
                }
            };
            // A stale list has the version that it was read at: its write is a conflict unless nothing was written since.
            let (read_version, read) = if stale { earlier.clone() } else { (version, stored.clone()) };
            let held = epoch;
            let may_act = move |call: &Call| call.item.as_ref().is_some_and(|item| item.epoch == held);
            let facts = Facts { now, answers: &answers, void_until: None, may_act: &may_act };
            let (reviewed, verdict) = match ask_for {
                Some(number) => {
                    ids += 1;
                    let item = Some(HeldItem { name: "fix".into(), uid: "i".into(), epoch });
                    let call = Call { item, ..call(&number.to_string(), toolsets[number % 2]) };
                    let (reviewed, verdict) = ask(&read, &call, NewQuestion { id: format!("q{ids}"), timeout_seconds: 100 }, &facts);
                    (reviewed, Some(verdict))
                }
                None => (review(&read, &facts), None),
            };
            prop_assert!(reviewed.questions.len() <= MAX_QUESTIONS);
            let changes = reviewed.questions != read;
            let approves = matches!(verdict, Some(Verdict::Approved { .. }));
            prop_assert!(changes || !approves, "an approval is used by a write");
            earlier = (version, stored.clone());
            if changes && (outcome == WriteOutcome::Crashed || read_version != version) {
                continue; // nothing was stored, so nothing is told
            }
            if changes {
                version += 1;
                stored.clone_from(&reviewed.questions);
            }
            for news in &reviewed.news {
                if let News::Requested(question) = news {
                    prop_assert!(asked.iter().all(|other| other.id != question.id));
                    asked.push(question.clone());
                }
            }
            // The call runs if the answer arrives; if it is lost, the approval is spent all the same.
            for news in &reviewed.news {
                let News::Used(question) = news else { continue };
                let told = matches!(verdict, Some(Verdict::Approved { .. }));
                prop_assert!(told, "{:?}", question);
                prop_assert!(approved_by_person.contains(&(question.id.clone(), question.call.toolset.clone())));
                prop_assert!(now < question.expires_at);
                prop_assert_eq!(question.call.item.as_ref().map(|item| item.epoch), Some(epoch));
                *runs.entry(question.id.clone()).or_default() += 1;
            }
        }
        prop_assert!(runs.values().all(|runs| *runs == 1), "{:?}", runs);
    }
}
