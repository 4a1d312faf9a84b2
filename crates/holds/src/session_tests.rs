use super::*;
use crate::lines::{EndLine, HoldLine, LegacySettleLine};

const fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn open(id: u64) -> JournaledHold {
    JournaledHold { id, at: 7, path: vec!["place".into()], input: 10, output: 20 }
}

fn begun() -> Session {
    let mut session = Session::new("s".into());
    session.connected(Some(1));
    let Plan::Begin(begin) = session.plan(at(0), true) else { panic!("it begins") };
    assert_eq!(begin, Begin { session: "s".into(), next_hold: 1, ..Begin::default() });
    assert_eq!(session.began(at(0), Some(1), &begin, 0), None);
    session
}

fn written(session: &Session) -> Vec<Line> {
    session.snapshot().lines().collect()
}

fn held(session: &mut Session) -> u64 {
    let (id, _) = session.take_number("team").expect("room");
    session.given(id, &open(id)).expect("room");
    session.sent(id);
    id
}

fn exact(session: &mut Session, id: u64, output: i64) -> Option<Line> {
    session.end(id, Usage { output, ..Usage::default() }, Quality::Exact, CallEnd::default(), "m", 3)
}

fn telling(session: &Session, now: Duration) -> Settles {
    match session.plan(now, true) {
        Plan::Tell(settles) => settles,
        other => panic!("it tells, and not {other:?}"),
    }
}

#[test]
fn nothing_is_said_to_nobody_and_everything_to_a_new_one() {
    let mut session = Session::new("s".into());
    assert_eq!(session.plan(at(0), true), Plan::Wait(None));
    let (first, second) = (held(&mut session), held(&mut session));
    let (asked, _) = session.take_number("team").expect("room");
    exact(&mut session, first, 5);
    session.connected(Some(4));
    let Plan::Begin(begin) = session.plan(at(0), true) else { panic!("it begins") };
    assert_eq!((begin.next_hold, begin.acked), (asked, 0), "what is asked may be asked again");
    assert_eq!(begin.open, [open(second)]);
    assert_eq!(begin.settles.iter().map(|told| told.open.id).collect::<Vec<_>>(), [first]);
    session.began(at(0), Some(4), &begin, 1);
    assert!(session.is_attached() && session.unacknowledged_count() == 0);
    session.connected(Some(5));
    assert!(!session.is_attached(), "another connection may be another leader's");
}

#[test]
fn settles_go_in_order_once_and_again_if_nobody_takes_them() {
    let mut session = begun();
    let ids: Vec<u64> = (0..3).map(|_| held(&mut session)).collect();
    exact(&mut session, ids[1], 1);
    let first = telling(&session, at(10));
    assert_eq!(first.settles.iter().map(|settle| (settle.seq, settle.hold)).collect::<Vec<_>>(), [(1, ids[1])]);
    assert_eq!((first.floor, first.confirmed), (ids[0], 0));
    session.settles_answered(at(10), &first, 0);
    assert!(matches!(session.plan(at(10), true), Plan::Wait(Some(_))), "it waits for what it told");
    exact(&mut session, ids[0], 1);
    let second = telling(&session, at(20));
    assert_eq!(second.settles.iter().map(|settle| settle.seq).collect::<Vec<_>>(), [2], "only what was not told");
    session.settles_answered(at(20), &second, 1);
    assert_eq!(telling(&session, at(200)).settles, [], "how far is it");
    let again = telling(&session, at(20) + SETTLE_RESEND_DELAY);
    assert_eq!(again.settles.iter().map(|settle| settle.seq).collect::<Vec<_>>(), [2], "what nobody acknowledged is told again");
    assert_eq!(session.settles_answered(at(9_000), &again, 2), Some(Line::Acked(2)));
    assert_eq!(telling(&session, at(20_000)).floor, ids[2]);
    assert_eq!(telling(&session, at(20_000)).confirmed, 2);
}

#[test]
fn what_ends_soon_after_something_was_told_is_told_together() {
    let mut session = begun();
    let ids: Vec<u64> = (0..3).map(|_| held(&mut session)).collect();
    exact(&mut session, ids[0], 1);
    let first = telling(&session, at(50));
    session.settles_answered(at(51), &first, 0);
    exact(&mut session, ids[1], 1);
    exact(&mut session, ids[2], 1);
    assert_eq!(session.plan(at(52), true), Plan::Wait(Some(at(51) + SETTLE_BATCH_DELAY)));
    assert_eq!(telling(&session, at(51) + SETTLE_BATCH_DELAY).settles.iter().map(|settle| settle.seq).collect::<Vec<_>>(), [2, 3]);
}

#[test]
fn a_sign_of_life_comes_in_time() {
    let mut session = begun();
    assert_eq!(session.plan(at(1), true), Plan::Wait(Some(KEEPALIVE_INTERVAL)));
    let alive = telling(&session, KEEPALIVE_INTERVAL);
    assert_eq!(alive.settles, []);
    session.settles_answered(KEEPALIVE_INTERVAL, &alive, 0);
    assert_eq!(session.plan(KEEPALIVE_INTERVAL, true), Plan::Wait(Some(2 * KEEPALIVE_INTERVAL)));
}

#[test]
fn nothing_is_told_that_is_not_written_and_nothing_acknowledged_that_was_not_told() {
    let mut session = begun();
    let id = held(&mut session);
    exact(&mut session, id, 1);
    assert!(matches!(session.plan(at(10), false), Plan::Wait(_)));
    let told = telling(&session, at(10));
    assert_eq!(session.settles_answered(at(10), &told, 900), Some(Line::Acked(1)));
    let next = held(&mut session);
    assert!(matches!(exact(&mut session, next, 1), Some(Line::Over(EndLine { seq: 2, .. }))));
    session.detached();
    assert!(matches!(session.plan(at(11), false), Plan::Wait(_)));
    assert!(matches!(session.plan(at(11), true), Plan::Begin(_)));
}

#[test]
fn a_call_that_failed_is_made_again_later_and_later_with_all_in_it() {
    let mut session = begun();
    let id = held(&mut session);
    exact(&mut session, id, 1);
    let told = telling(&session, SETTLE_BATCH_DELAY);
    session.settles_answered(at(0), &told, 0);
    session.failed(at(0));
    assert_eq!(session.plan(at(0), true), Plan::Wait(Some(CALL_RETRY_BACKOFF[0])));
    assert_eq!(telling(&session, CALL_RETRY_BACKOFF[0]).settles.len(), 1);
    for _ in 0..40 {
        session.failed(at(0));
    }
    assert_eq!(session.plan(at(0), true), Plan::Wait(Some(CALL_RETRY_BACKOFF[1])));
}

#[test]
fn a_number_is_used_once_whatever_process_uses_it() {
    let mut session = Session::new("s".into());
    let mut lines = written(&session);
    let mut used = Vec::new();
    for _ in 0..3 {
        for _ in 0..1500 {
            let (id, line) = session.take_number("team").expect("room");
            lines.extend(line);
            assert!(lines.iter().any(|line| matches!(line, Line::Reserved(to) | Line::Session { reserved: to, .. } if *to > id)));
            used.push(id);
        }
        session = Session::restore(&lines, || unreachable!("it has a name")).expect("restored");
        lines = written(&session);
    }
    assert!(used.is_sorted_by(|one, next| one < next));
}

#[test]
fn what_a_dead_process_had_sent_is_charged_and_what_it_had_not_is_not() {
    let mut session = Session::new("s".into());
    let mut lines = written(&session);
    for _ in 0..3 {
        let (id, line) = session.take_number("team").expect("room");
        lines.extend(line);
        lines.push(session.given(id, &open(id)).expect("room"));
    }
    lines.push(session.sent(2));
    lines.extend(session.extended(2, 50));
    lines.extend(exact(&mut session, 1, 4));
    let (asked, _) = session.take_number("team").expect("room");
    let again = Session::restore(&lines, || unreachable!("it has a name")).expect("restored");
    let told: Vec<_> = again.settles.iter().map(|ended| (ended.seq, ended.hold.id, ended.quality)).collect();
    assert_eq!(told, [(1, 1, Quality::Exact), (2, 2, Quality::Estimated), (3, 3, Quality::Exact)]);
    assert_eq!(again.settles[1].hold.output, 50);
    assert_eq!((again.settles[0].usage.output, again.settles[2].usage), (4, Usage::default()));
    assert!(again.next_hold > asked);
    // And once more, before anything was sent.
    let once_more = Session::restore(&written(&again), || unreachable!("it has a name")).expect("restored");
    assert_eq!(once_more.settles, again.settles);
}

#[test]
fn an_acknowledged_settle_is_gone_for_good() {
    let mut session = begun();
    let mut lines = written(&session);
    let (id, line) = session.take_number("team").expect("room");
    lines.extend(line);
    lines.push(session.given(id, &open(id)).expect("room"));
    lines.extend(exact(&mut session, id, 1));
    let told = telling(&session, SETTLE_BATCH_DELAY);
    lines.extend(session.settles_answered(SETTLE_BATCH_DELAY, &told, 1));
    let again = Session::restore(&lines, || unreachable!("it has a name")).expect("restored");
    assert_eq!((again.acked, again.unacknowledged_count(), again.last()), (1, 0, 1));
}

#[test]
fn a_journal_that_makes_no_sense_is_refused() {
    let first = written(&Session::new("s".into()));
    let told = JournaledSettle { open: open(1), usage: Usage::default(), quality: Quality::Exact, end: CallEnd::default() };
    let over = |seq, unanswered| {
        let (usage, quality, end) = (Usage::default(), Quality::Exact, CallEnd::default());
        Line::Over(EndLine { seq, id: 1, unanswered, usage, quality, end, model: String::new(), bytes: 0 })
    };
    let bad = [
        Line::Sent(3),
        Line::Ended(LegacySettleLine { seq: 2, told, model: String::new(), bytes: 0 }),
        over(2, true),
        over(1, false),
        Line::Gave(HoldLine { id: 1, path: vec![4], ..HoldLine::default() }),
        Line::Gave(HoldLine { id: 1, names: vec![(1, "a".into()), (1, "b".into())], path: vec![1], ..HoldLine::default() }),
        first[0].clone(),
    ];
    for bad in bad {
        let lines = [first.clone(), vec![bad.clone()]].concat();
        assert!(Session::restore(&lines, String::new).is_err(), "{bad:?}");
    }
    assert!(Session::restore(&[Line::Reserved(0)], String::new).is_err());
    // Numbers whose successor would overflow.
    for (reserved, acked) in [(u64::MAX, 0), (1, u64::MAX)] {
        let first = Line::Session { name: "s".into(), reserved, acked };
        assert!(Session::restore(&[first.clone(), over(u64::MAX, true)], String::new).is_err());
        assert!(Session::restore(&[first], String::new).is_err());
    }
    assert!(Session::restore(&[first[0].clone(), Line::Reserved(u64::MAX)], String::new).is_err());
}

#[test]
fn a_number_that_a_journal_holds_twice_takes_room_once() {
    let [first, second] = ["a", "b"].map(|place| Line::Held(JournaledHold { id: 1, at: 5, path: vec![place.into()], input: 0, output: 2 }));
    let session = Line::Session { name: "s".into(), reserved: 4, acked: 0 };
    let [once, twice] = [vec![session.clone(), second.clone()], vec![session, first, second]]
        .map(|lines| Session::restore(&lines, String::new).expect("restored"));
    assert_eq!(twice.snapshot().lines().count(), once.snapshot().lines().count(), "and its place is forgotten");
    assert_eq!(twice.bytes(), once.bytes());
}

#[test]
fn a_number_that_nobody_answered_is_settled_with_nothing() {
    let mut session = begun();
    let (id, _) = session.take_number("team").expect("room");
    let (never, _) = session.take_number("team").expect("room");
    session.discard_number(never);
    let Some(Line::Over(ended)) = session.end(id, Usage::default(), Quality::Exact, CallEnd::default(), "", 0) else { panic!("settled") };
    assert_eq!((ended.id, ended.unanswered), (id, true));
    assert_eq!(session.end(never, Usage::default(), Quality::Exact, CallEnd::default(), "", 0), None);
    assert_eq!(telling(&session, SETTLE_BATCH_DELAY).floor, id);
}

/// The bytes of a session in a rewritten journal, and in its [`Begin`].
fn takes(session: &Session) -> (usize, usize) {
    let journal = session.snapshot().lines().map(|line| serde_json::to_vec(&line).expect("a line").len() + 1).sum();
    (journal, serde_json::to_vec(&session.begin()).expect("a body").len())
}

fn most() -> (Usage, CallEnd) {
    use spillway_wire::meter::{FaultCause, Outcome};
    let most = i64::MIN;
    let usage = Usage { input: most, cache_read: most, cache_write: most, output: most };
    let outcome = Outcome::Failed { why: FaultCause::Status(u16::MAX), retry_after: Some(u32::MAX) };
    (usage, CallEnd { outcome: Some(outcome), timed_out: false })
}

#[test]
fn a_hold_never_takes_more_than_was_set_aside_for_it() {
    let (usage, end) = most();
    let texts = [vec![], vec!["a:x".to_owned()], vec!["\u{1}\"\\".repeat(99); 3], vec!["p".to_owned(); 28]];
    for path in texts {
        for model in ["", "m", &"m".repeat(254), &"\u{1}".repeat(42), &"m".repeat(9000)] {
            let mut session = Session::new("s".into());
            (session.next_hold, session.reserved, session.acked) =
                (u64::MAX - 2 * HOLD_NUMBER_BATCH, u64::MAX - HOLD_NUMBER_BATCH, u64::MAX - HOLD_NUMBER_BATCH);
            let empty = takes(&session);
            let (id, _) = session.take_number("team").expect("room");
            let check = |session: &Session, when: &str| {
                let (set_aside, now) = (session.shares.all() + session.names.bytes(), takes(session));
                assert!(now.0 - empty.0 <= set_aside && now.1 - empty.1 <= set_aside, "{when}: {now:?} of {set_aside}");
                set_aside
            };
            check(&session, "asked");
            let open = JournaledHold { id, at: i64::MIN, path: path.clone(), input: i64::MIN, output: i64::MIN };
            session.given(id, &open).expect("room");
            session.extended(id, i64::MAX);
            session.sent(id);
            let before = check(&session, "open");
            session.end(id, usage, Quality::Estimated, end, model, i64::MIN);
            assert!(check(&session, "ended") <= before, "what ended takes no more than what was open");
            assert!(session.settles[0].model.is_empty() == (model.is_empty() || model.len() > 256), "what is learned from is kept");
        }
    }
}

/// One or many namespaces with the largest possible calls: the session can begin with any leader, and fits into the
/// space that is reserved for a rewrite.
#[test]
fn a_session_that_has_all_that_it_may_can_begin_and_be_written_anew() {
    let (usage, end) = most();
    let limit = 1024 * 1024;
    for (namespaces, places, length) in [(1, 4, 40), (3, 28, 500), (40, 8, 130), (300, 1, 40_000)] {
        let mut session = Session::new("s".repeat(128));
        session.shares = Shares::new(limit);
        let mut random = crate::fake_leader::Random(namespaces | 1);
        let (mut full, mut one) = (BTreeSet::new(), 0_u64);
        while (full.len() as u64) < namespaces {
            one += 1;
            let namespace = format!("team-{}", one % namespaces);
            let Ok((id, _)) = session.take_number(&namespace) else {
                full.insert(namespace);
                continue;
            };
            let path = (0..places).map(|place| format!("{place}:{:01$}", random.below(50), length)).collect();
            let given = session.given(id, &JournaledHold { id, at: i64::MAX, path, input: i64::MAX, output: i64::MAX });
            match random.below(8) {
                0 => {}
                _ => drop(session.end(id, usage, Quality::Estimated, end, "model", i64::MAX)),
            }
            if given.is_err() {
                session.end(id, Usage::default(), Quality::Exact, CallEnd::default(), "", 0);
                full.insert(namespace);
            }
        }
        let (journal, begin) = takes(&session);
        // Not more than the limit of a `Begin`.
        assert!(begin <= limit + MAX_SESSION_HEADER_BYTES, "{namespaces} namespaces begin with {begin} bytes");
        assert!(journal <= limit + MAX_SESSION_HEADER_BYTES && journal <= session.bytes(), "{namespaces} namespaces write {journal} bytes");
        assert!(session.bytes() > limit / 3, "they had a lot: {}", session.bytes());
    }
}

#[test]
fn who_has_most_is_refused_until_some_of_it_is_acknowledged() {
    let mut session = begun();
    let path = vec!["p".repeat(60_000)];
    let hold = |session: &mut Session, namespace: &str| -> Result<u64, ShareFull> {
        let (id, _) = session.take_number(namespace)?;
        if let Err(full) = session.given(id, &JournaledHold { path: path.clone(), ..open(id) }) {
            session.end(id, Usage::default(), Quality::Exact, CallEnd::default(), "", 0);
            return Err(full);
        }
        Ok(id)
    };
    let refused = (0..MAX_SESSION_BYTES / 60_000).find_map(|_| match hold(&mut session, "greedy") {
        Ok(id) => {
            exact(&mut session, id, 1);
            None
        }
        Err(full) => Some(full),
    });
    assert_eq!(refused, Some(ShareFull::Namespace));
    hold(&mut session, "quiet").expect("others go on");
    let Plan::Tell(settles) = session.plan(SETTLE_BATCH_DELAY, true) else { panic!("it tells") };
    session.settles_answered(SETTLE_BATCH_DELAY, &settles, settles.settles.len() as u64);
    hold(&mut session, "greedy").expect("some of it is acknowledged");
}

/// Lines in the format of the earlier version.
#[test]
fn a_journal_of_the_version_before_is_read() {
    let text = concat!(
        r#"{"session":{"name":"s","reserved":1025,"acked":3}}"#,
        "\n",
        r#"{"held":{"id":7,"at":5,"path":["a:x","b:team/default"],"input":1,"output":2}}"#,
        "\n",
        r#"{"sent":7}"#,
        "\n",
        r#"{"extended":{"id":7,"output":9}}"#,
        "\n",
        r#"{"ended":{"seq":4,"told":{"open":{"id":7,"at":5,"path":["a:x","b:team/default"],"input":1,"output":9},"usage":{"input":1,"cacheRead":0,"cacheWrite":0,"output":4},"quality":"Exact","end":{"outcome":"worked","timedOut":false}},"model":"m","bytes":3}}"#,
        "\n",
        r#"{"ended":{"seq":5,"told":{"open":{"id":8,"at":0,"path":[],"input":0,"output":0},"usage":{"input":0,"cacheRead":0,"cacheWrite":0,"output":0},"quality":"Exact","end":{"outcome":"nothing","timedOut":false}},"model":"","bytes":0}}"#,
        "\n",
        r#"{"held":{"id":9,"at":6,"path":["a:x"],"input":3,"output":4}}"#,
        "\n",
        r#"{"sent":9}"#,
    );
    let lines: Vec<Line> = text.lines().map(|line| serde_json::from_str(line).expect("a line")).collect();
    let session = Session::restore(&lines, || unreachable!("it has a name")).expect("restored");
    let begin = session.begin();
    let told: Vec<_> = begin.settles.iter().map(|told| (told.open.clone(), told.usage.output, told.quality)).collect();
    let open = |id, at, path: &[&str], input, output| JournaledHold {
        id,
        at,
        path: path.iter().map(|&text| text.into()).collect(),
        input,
        output,
    };
    assert_eq!(
        told,
        [
            (open(7, 5, &["a:x", "b:team/default"], 1, 9), 4, Quality::Exact),
            (open(8, 0, &[], 0, 0), 0, Quality::Exact),
            (open(9, 6, &["a:x"], 3, 4), 0, Quality::Estimated),
        ]
    );
    assert_eq!((begin.acked, session.next_hold), (3, 1025));
    let again = Session::restore(&written(&session), || unreachable!("it has a name")).expect("restored");
    assert_eq!(again.begin(), begin, "and is the same when this version has written it");
}

#[test]
fn what_is_not_written_is_not_relied_on() {
    let mut session = begun();
    session.is_written();
    let (first, second) = (held(&mut session), held(&mut session));
    session.is_written();
    exact(&mut session, first, 1);
    let told = telling(&session, SETTLE_BATCH_DELAY);
    session.settles_answered(SETTLE_BATCH_DELAY, &told, 1);
    let Plan::Tell(alive) = session.plan(at(60_000), false) else { panic!("it lives") };
    assert_eq!((alive.floor, alive.confirmed), (first, 0), "a process after this one would tell of it again");
    session.is_written();
    assert_eq!((telling(&session, at(60_000)).floor, telling(&session, at(60_000)).confirmed), (second, 1));
}

#[path = "session_world_tests.rs"]
mod world;

#[test]
fn acknowledged_settles_are_replayed_to_a_leader_whose_store_was_rolled_back() {
    let mut session = begun();
    let ids: Vec<u64> = (0..3).map(|_| held(&mut session)).collect();
    for id in &ids[..2] {
        exact(&mut session, *id, 5);
    }
    let told = telling(&session, at(10));
    session.settles_answered(at(10), &told, 2);
    session.connected(Some(2));
    let Plan::Begin(begin) = session.plan(at(20), true) else { panic!("it begins") };
    assert_eq!(begin.replayed, [], "its store has them");

    session.connected(Some(3));
    session.set_replay(true);
    let Plan::Begin(begin) = session.plan(at(20), true) else { panic!("it begins") };
    let replayed: Vec<_> = begin.replayed.iter().map(|settle| (settle.seq, settle.told.open.id, settle.told.usage.output)).collect();
    assert_eq!((replayed, begin.acked, begin.settles.len()), (vec![(1, ids[0], 5), (2, ids[1], 5)], 2, 0));
    assert_eq!(begin.open, [open(ids[2])]);

    // None expires before that leader has stored it.
    assert_eq!(session.began(at(30), Some(3), &begin, 0), None);
    let much_later = REPLAY_HISTORY_TTL * 3;
    let alive = telling(&session, much_later);
    session.settles_answered(much_later, &alive, 1);
    session.connected(Some(4));
    let Plan::Begin(once_more) = session.plan(much_later, true) else { panic!("it begins") };
    assert_eq!(once_more.replayed, begin.replayed);
    session.began(much_later, Some(4), &once_more, 2);
    session.connected(Some(5));
    let Plan::Begin(late) = session.plan(much_later, true) else { panic!("it begins") };
    assert_eq!(late.replayed, [], "they are stored, and older than the period");
}

#[test]
fn the_history_of_settles_is_bounded_and_a_flood_displaces_no_other_namespace() {
    let mut session = begun();
    let settle = |session: &mut Session, namespace: &str| {
        let (id, _) = session.take_number(namespace).expect("room");
        session.given(id, &open(id)).expect("room");
        exact(session, id, 1);
        let now = at(10 * id);
        let told = telling(session, now + SETTLE_RESEND_DELAY);
        session.settles_answered(now + SETTLE_RESEND_DELAY, &told, session.last());
        id
    };
    let quiet = settle(&mut session, "quiet");
    for _ in 0..ACKNOWLEDGED_BYTES / 100 {
        settle(&mut session, "loud");
    }
    session.connected(Some(2));
    session.set_replay(true);
    let begin = session.begin();
    assert_eq!(begin.replayed[0].told.open.id, quiet);
    assert!(begin.replayed.len() < ACKNOWLEDGED_BYTES / 100 && hold::bytes(&begin) < ACKNOWLEDGED_BYTES + MAX_SESSION_HEADER_BYTES);
}
