//! The refusals, and the sessions of gateways, without a server.

use super::super::simulation::{Leader, server};
use super::*;
use crate::policy::budget::Window;

#[test]
fn a_refusal_says_whether_to_wait_what_stands_in_the_way_and_what_to_raise() {
    let span = Window::Hour.at(0);
    let standing = LimitState { name: "hourly".into(), span, limit: 100, used: 95, held: 3, left: 2, asked: 10 };
    let of = |key: Key, when| {
        let refusal = budget::Refusal::new(key, RefusalCause::Used, when, "spec.tokens.limits[hourly].tokens");
        budget::Refusal { limit: Some(standing.clone()), ..refusal }
    };
    let waits = refused(&of(Key::budget("team", "default"), RetryHint::Wait(4)));
    assert_eq!((waits.code, waits.retry_after_seconds), (Code::BudgetHeld, Some(4)));
    let ends = refused(&of(Key::budget("team", "default"), RetryHint::Later(3_600_000)));
    assert_eq!((ends.code, ends.retry_after_seconds), (Code::BudgetExhausted, None));
    assert!(ends.message.contains("2 of 100 tokens are left"), "{}", ends.message);
    let shortage = ends.budget.expect("it says which");
    assert_eq!((shortage.because.as_str(), shortage.own), ("used", false));
    assert_eq!(shortage.field, "spec.tokens.limits[hourly].tokens of Budget/default in team");
    let room = shortage.room.expect("a limit of tokens");
    assert_eq!((room.left, room.resets_at), (2, Some(3_600_000)));
    assert!(refused(&of(Key::Agent("u".into()), RetryHint::Never)).budget.expect("it says which").own);
}

#[tokio::test]
async fn before_all_is_read_gateways_are_asked_to_come_again() {
    let meter = Meter::new(1);
    let refusal = ready(&meter).err().expect("nothing is read");
    assert_eq!((refusal.code, refusal.retry_after_seconds), (Code::GovernorAway, Some(1)));
}

#[test]
fn a_session_tells_of_places_by_their_names() {
    let begin = br#"{"session": "g", "nextHold": 2, "acked": 0, "settles": [],
        "open": [{"id": 1, "at": 5, "path": ["a:u", "of a later version", "b:team/default"], "input": 3, "output": 4}]}"#;
    let begin = read(begin).expect("it is well formed");
    let told = open(&begin.open[0]);
    assert_eq!(told.path.as_ref(), [Key::Agent("u".into()), Key::budget("team", "default")]);
    assert_eq!(
        read(br#"{"session": "", "nextHold": 1, "acked": 0, "settles": [], "open": []}"#).expect_err("no name").code,
        Code::InvalidBody
    );
    assert_eq!(read(b"[]").expect_err("no object").code, Code::InvalidBody);
}

#[tokio::test]
async fn who_waits_for_a_write_is_answered_when_it_is_made() {
    let server = server(1000);
    let leader = Leader::new(&server, 7);
    leader.begin("g");
    let writing = leader.run();
    let all = (1..=30).map(|id| {
        until_written(&leader.meter, {
            let leader = &leader;
            move || leader.ask("g", id, 10)
        })
    });
    for held in futures::future::join_all(all).await {
        assert!(matches!(held, Some(HoldResult::Given { .. })), "{held:?}");
    }
    assert_eq!(leader.stands().1, 30 * 10);
    writing.abort();
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_write_that_is_never_made_is_sent_away() {
    let server = server(1000);
    let leader = Leader::new(&server, 7);
    leader.begin("g");
    assert_eq!(until_written(&leader.meter, || leader.ask("g", 1, 10)).await, None);
    assert_eq!(leader.stands().1, 0, "and nothing is held");
}

#[tokio::test]
async fn a_refused_extension_leaves_the_call_what_it_has() {
    let server = server(1000);
    let leader = Leader::new(&server, 7);
    leader.begin("g");
    let writing = leader.run();
    assert!(matches!(until_written(&leader.meter, || leader.ask("g", 1, 40)).await, Some(HoldResult::Given { .. })));
    let more = |id, output| Extend { session: "g".into(), id, output };
    assert_eq!(extend(&leader.meter, &more(1, 400)).await.expect("there is room").output, 400);
    assert_eq!(extend(&leader.meter, &more(1, 501)).await.expect("it may finish").output, 400);
    assert_eq!(extend(&leader.meter, &more(2, 1)).await.expect_err("nothing is held").code, Code::HoldClosed);
    let other = Extend { session: "h".into(), id: 1, output: 1 };
    assert_eq!(extend(&leader.meter, &other).await.expect_err("it has not begun").code, Code::SessionUnknown);
    writing.abort();
}

#[tokio::test]
async fn what_a_session_tells_is_answered_with_what_is_stored() {
    let server = server(1000);
    let leader = Leader::new(&server, 7);
    let told = Begin { session: "g".into(), next_hold: 1, ..Begin::default() };
    assert_eq!(begin(&leader.meter, &told, false).expect("it begins"), MeterAck { acked: 0 });
    assert!(matches!(leader.hold("g", 1, 40).await, HoldResult::Given { .. }));
    let used = meter::Usage { output: 30, ..meter::Usage::default() };
    let (seq, hold, quality) = (1, 1, meter::Quality::Exact);
    let end = CallEnd::default();
    let one = meter::Settle { seq, hold, usage: used, quality, input: 0, output: 40, end, model: "m".into(), bytes: 100 };
    let settles = |settles| Settles { session: "g".into(), settles, floor: 1, confirmed: 0 };
    assert_eq!(settle(&leader.meter, settles(vec![one])).expect("it counts").acked, 0, "not stored yet");
    leader.meter.pass(31_000);
    leader.write().await;
    assert_eq!(settle(&leader.meter, settles(Vec::new())).expect("a sign of life").acked, 1);
    let other = Settles { session: "h".into(), ..Settles::default() };
    assert_eq!(settle(&leader.meter, other).expect_err("it has not begun").code, Code::SessionUnknown);
}

/// The number of sent bytes that a gateway reports makes no difference.
#[tokio::test]
async fn usage_that_is_not_exact_teaches_nothing() {
    let server = server(100_000);
    let mut leader = Leader::new(&server, 7);
    leader.life.tokens = 100_000;
    leader.see();
    leader.begin("g");
    let asked = CallSize { bytes: 1000, output: Some(10), choices: 1, ..CallSize::default() };
    let hold = async |id: u64| {
        for _ in 0..5 {
            match leader.meter.hold("g", id, &mut leader.route(), &asked, ("team", "m")) {
                HoldResult::WritePending => leader.write().await,
                HoldResult::Given { given, .. } => return given.input,
                other => panic!("{other:?}"),
            }
        }
        panic!("it is not given");
    };
    for (id, quality, then) in [(1, meter::Quality::Partial, 500), (2, meter::Quality::Estimated, 500), (3, meter::Quality::Exact, 912)] {
        hold(id).await;
        let usage = meter::Usage { input: 900, ..meter::Usage::default() };
        let end = CallEnd::default();
        let one = meter::Settle { seq: id, hold: id, usage, quality, input: 500, output: 10, end, model: "m".into(), bytes: 1000 };
        settle(&leader.meter, Settles { session: "g".into(), settles: vec![one], floor: id + 1, confirmed: 0 }).expect("it is known");
        assert_eq!(hold(10 + id).await, then, "{quality:?}");
    }
}

#[tokio::test]
async fn a_call_that_nobody_knows_is_charged_for_its_text_whatever_its_namespace_learned() {
    let server = server(10_000_000);
    let mut leader = Leader::new(&server, 7);
    leader.life.tokens = 10_000_000;
    leader.see();
    leader.begin("g");
    let asked = CallSize { bytes: 1000, output: Some(10), choices: 1, ..CallSize::default() };
    let hold = async |id: u64, namespace: &'static str| {
        for _ in 0..5 {
            match leader.meter.hold("g", id, &mut leader.route(), &asked, (namespace, "m")) {
                HoldResult::WritePending => leader.write().await,
                HoldResult::Given { given, path, .. } => return (given.input, journaled_hold(id, given, path, &asked)),
                other => panic!("{other:?}"),
            }
        }
        panic!("it is not given");
    };
    // Its calls have 0.2 tokens a byte. Every third call sends only white space.
    for id in 1..=1500 {
        hold(id, "team").await;
        let quality = meter::Quality::Exact;
        let usage = meter::Usage { input: if id % 3 == 0 { 1 } else { 200 }, ..meter::Usage::default() };
        let end = CallEnd::default();
        let one = meter::Settle { seq: id, hold: id, usage, quality, input: 0, output: 10, end, model: "m".into(), bytes: 1000 };
        let settles = Settles { session: "g".into(), settles: vec![one], floor: id + 1, confirmed: 0 };
        settle(&leader.meter, settles).expect("it is known");
    }
    let ((held, open), (other, _)) = (hold(1501, "team").await, hold(1502, "other").await);
    assert_eq!((held, open.input), (208, 350));
    assert_eq!(other, 500, "another namespace learns nothing of it");
    // The same call, cancelled by its client.
    let usage = meter::Usage::default();
    let quality = meter::Quality::Estimated;
    let before = leader.stands().0;
    let one = meter::Settle {
        seq: 1501,
        hold: 1501,
        usage,
        quality,
        input: open.input,
        output: open.output,
        end: CallEnd::default(),
        model: "m".into(),
        bytes: 0,
    };
    settle(&leader.meter, Settles { session: "g".into(), settles: vec![one], floor: 1502, confirmed: 0 }).expect("it is known");
    assert_eq!(leader.stands().0 - before, 350 + 10);
}
