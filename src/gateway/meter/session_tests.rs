use super::*;

const fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn open(id: u64) -> Open {
    Open { id, at: 7, path: vec!["place".into()], input: 10, output: 20 }
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
    let (id, _) = session.ask();
    session.given(id, &open(id));
    session.sent(id);
    id
}

fn exact(session: &mut Session, id: u64, output: i64) -> Option<Line> {
    session.end(id, Usage { output, ..Usage::default() }, Quality::Exact, End::default(), "m", 3)
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
    let (asked, _) = session.ask();
    exact(&mut session, first, 5);
    session.connected(Some(4));
    let Plan::Begin(begin) = session.plan(at(0), true) else { panic!("it begins") };
    assert_eq!((begin.next_hold, begin.acked), (asked, 0), "what is asked may be asked again");
    assert_eq!(begin.open, [open(second)]);
    assert_eq!(begin.settles.iter().map(|told| told.open.id).collect::<Vec<_>>(), [first]);
    session.began(at(0), Some(4), &begin, 1);
    assert!(session.is_attached() && session.owed() == 0);
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
    session.told(at(10), &first, 0);
    assert!(matches!(session.plan(at(10), true), Plan::Wait(Some(_))), "it waits for what it told");
    exact(&mut session, ids[0], 1);
    let second = telling(&session, at(20));
    assert_eq!(second.settles.iter().map(|settle| settle.seq).collect::<Vec<_>>(), [2], "only what was not told");
    session.told(at(20), &second, 1);
    assert_eq!(telling(&session, at(200)).settles, [], "how far is it");
    let again = telling(&session, at(20) + AGAIN);
    assert_eq!(again.settles.iter().map(|settle| settle.seq).collect::<Vec<_>>(), [2], "what nobody acknowledged is told again");
    assert_eq!(session.told(at(9_000), &again, 2), Some(Line::Acked(2)));
    assert_eq!(telling(&session, at(20_000)).floor, ids[2]);
    assert_eq!(telling(&session, at(20_000)).confirmed, 2);
}

#[test]
fn what_ends_soon_after_something_was_told_is_told_together() {
    let mut session = begun();
    let ids: Vec<u64> = (0..3).map(|_| held(&mut session)).collect();
    exact(&mut session, ids[0], 1);
    let first = telling(&session, at(50));
    session.told(at(51), &first, 0);
    exact(&mut session, ids[1], 1);
    exact(&mut session, ids[2], 1);
    assert_eq!(session.plan(at(52), true), Plan::Wait(Some(at(51) + TOGETHER)));
    assert_eq!(telling(&session, at(51) + TOGETHER).settles.iter().map(|settle| settle.seq).collect::<Vec<_>>(), [2, 3]);
}

#[test]
fn a_sign_of_life_comes_in_time() {
    let mut session = begun();
    assert_eq!(session.plan(at(1), true), Plan::Wait(Some(ALIVE)));
    let alive = telling(&session, ALIVE);
    assert_eq!(alive.settles, []);
    session.told(ALIVE, &alive, 0);
    assert_eq!(session.plan(ALIVE, true), Plan::Wait(Some(2 * ALIVE)));
}

#[test]
fn nothing_is_told_that_is_not_written_and_nothing_acknowledged_that_was_not_told() {
    let mut session = begun();
    let id = held(&mut session);
    exact(&mut session, id, 1);
    assert!(matches!(session.plan(at(10), false), Plan::Wait(_)));
    let told = telling(&session, at(10));
    assert_eq!(session.told(at(10), &told, 900), Some(Line::Acked(1)));
    let next = held(&mut session);
    assert!(matches!(exact(&mut session, next, 1), Some(Line::Ended(Ended { seq: 2, .. }))));
    session.detached();
    assert!(matches!(session.plan(at(11), false), Plan::Wait(_)));
    assert!(matches!(session.plan(at(11), true), Plan::Begin(_)));
}

#[test]
fn a_call_that_failed_is_made_again_later_and_later_with_all_in_it() {
    let mut session = begun();
    let id = held(&mut session);
    exact(&mut session, id, 1);
    let told = telling(&session, TOGETHER);
    session.told(at(0), &told, 0);
    session.failed(at(0));
    assert_eq!(session.plan(at(0), true), Plan::Wait(Some(RETRY[0])));
    assert_eq!(telling(&session, RETRY[0]).settles.len(), 1);
    for _ in 0..40 {
        session.failed(at(0));
    }
    assert_eq!(session.plan(at(0), true), Plan::Wait(Some(RETRY[1])));
}

#[test]
fn a_number_is_used_once_whatever_process_uses_it() {
    let mut session = Session::new("s".into());
    let mut lines = written(&session);
    let mut used = Vec::new();
    for _ in 0..3 {
        for _ in 0..1500 {
            let (id, line) = session.ask();
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
        let (id, line) = session.ask();
        lines.extend(line);
        lines.push(session.given(id, &open(id)));
    }
    lines.push(session.sent(2));
    lines.extend(session.extended(2, 50));
    lines.extend(exact(&mut session, 1, 4));
    let (asked, _) = session.ask();
    let again = Session::restore(&lines, || unreachable!("it has a name")).expect("restored");
    let told: Vec<_> = again.settles.iter().map(|ended| (ended.seq, ended.told.open.id, ended.told.quality)).collect();
    assert_eq!(told, [(1, 1, Quality::Exact), (2, 2, Quality::Estimated), (3, 3, Quality::Exact)]);
    assert_eq!(again.settles[1].told.open.output, 50);
    assert_eq!((again.settles[0].told.usage.output, again.settles[2].told.usage), (4, Usage::default()));
    assert!(again.next_hold > asked);
    // And once more, before anything was told.
    let once_more = Session::restore(&written(&again), || unreachable!("it has a name")).expect("restored");
    assert_eq!(once_more.settles, again.settles);
}

#[test]
fn an_acknowledged_settle_is_gone_for_good() {
    let mut session = begun();
    let mut lines = written(&session);
    let (id, line) = session.ask();
    lines.extend(line);
    lines.push(session.given(id, &open(id)));
    lines.extend(exact(&mut session, id, 1));
    let told = telling(&session, TOGETHER);
    lines.extend(session.told(TOGETHER, &told, 1));
    let again = Session::restore(&lines, || unreachable!("it has a name")).expect("restored");
    assert_eq!((again.acked, again.owed(), again.last()), (1, 0, 1));
}

#[test]
fn a_journal_that_makes_no_sense_is_refused() {
    let first = written(&Session::new("s".into()));
    let ended = |seq| {
        Line::Ended(Ended {
            seq,
            told: Told { open: open(1), usage: Usage::default(), quality: Quality::Exact, end: End::default() },
            model: String::new(),
            bytes: 0,
        })
    };
    for bad in [Line::Sent(3), ended(2), first[0].clone()] {
        let lines = [first.clone(), vec![bad.clone()]].concat();
        assert!(Session::restore(&lines, String::new).is_err(), "{bad:?}");
    }
    assert!(Session::restore(&[Line::Reserved(0)], String::new).is_err());
}

#[test]
fn a_number_that_nobody_answered_is_settled_with_nothing() {
    let mut session = begun();
    let (id, _) = session.ask();
    let (never, _) = session.ask();
    session.never(never);
    let Some(Line::Ended(ended)) = session.end(id, Usage::default(), Quality::Exact, End::default(), "", 0) else { panic!("settled") };
    assert_eq!((ended.told.open.id, ended.told.open.path.len()), (id, 0));
    assert_eq!(session.end(never, Usage::default(), Quality::Exact, End::default(), "", 0), None);
    assert_eq!(telling(&session, TOGETHER).floor, id);
}

/// A leader that gives, counts and closes, as far as a session can tell; and the gateway around it, both of which may end.
mod world {
    use std::collections::BTreeSet;

    use super::*;

    #[derive(Clone, Default)]
    struct Leader {
        attached: bool,
        open: BTreeSet<u64>,
        closed: BTreeSet<u64>,
        floor: u64,
        received: u64,
        /// What is stored, with the holds that are charged by it.
        durable: u64,
        charged: Vec<(u64, u64, Quality)>,
    }

    impl Leader {
        /// Another one leads: it has what was stored.
        fn replaced(&mut self) {
            let durable = self.durable;
            self.charged.retain(|(seq, _, _)| *seq <= durable);
            *self = Self { received: durable, durable, charged: std::mem::take(&mut self.charged), ..Self::default() };
        }

        fn settle(&mut self, seq: u64, hold: u64, quality: Quality) {
            if seq <= self.received {
                return;
            }
            assert_eq!(seq, self.received + 1, "settles come without gaps");
            self.received = seq;
            self.closed.insert(hold);
            if self.open.remove(&hold) {
                assert!(self.charged.iter().all(|(_, known, _)| *known != hold), "{hold} is charged twice");
                self.charged.push((seq, hold, quality));
            }
        }

        fn begin(&mut self, begin: &Begin) -> u64 {
            for (told, seq) in begin.settles.iter().zip(begin.acked + 1..) {
                if seq > self.received && !self.closed.contains(&told.open.id) {
                    self.open.insert(told.open.id);
                }
                self.settle(seq, told.open.id, told.quality);
            }
            let kept: BTreeSet<u64> = begin.open.iter().map(|open| open.id).collect();
            self.open.extend(kept.difference(&self.closed));
            self.open.retain(|id| *id >= begin.next_hold || kept.contains(id));
            (self.attached, self.floor) = (true, self.floor.max(begin.next_hold));
            self.durable
        }

        fn tell(&mut self, settles: &Settles) -> Option<u64> {
            if !self.attached {
                return None;
            }
            settles.settles.iter().for_each(|settle| self.settle(settle.seq, settle.hold, settle.quality));
            self.floor = self.floor.max(settles.floor);
            self.open.retain(|id| *id >= settles.floor);
            Some(self.durable)
        }

        /// None: it must begin. Some(false): closed.
        fn hold(&mut self, id: u64) -> Option<bool> {
            if !self.attached {
                return None;
            }
            let free = !self.closed.contains(&id) && (id >= self.floor || self.open.contains(&id));
            if free {
                self.open.insert(id);
            }
            Some(free)
        }
    }

    struct Random(u64);

    impl Random {
        fn below(&mut self, most: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % most
        }

        fn one_in(&mut self, many: u64) -> bool {
            self.below(many) == 0
        }
    }

    struct Gateway {
        session: Session,
        lines: Vec<Line>,
        asking: Vec<u64>,
        held: Vec<(u64, bool)>,
        connection: u64,
    }

    impl Gateway {
        /// The process ends, perhaps while it writes its last line, and another one begins.
        fn restart(&mut self, torn: bool) {
            if torn && matches!(self.lines.last(), Some(Line::Held(_))) {
                self.lines.pop(); // nobody was told of it
            }
            self.session = Session::restore(&self.lines, || unreachable!("it has a name")).expect("a journal");
            self.lines = written(&self.session);
            (self.asking, self.held) = (Vec::new(), Vec::new());
            self.connection += 1;
            self.session.connected(Some(self.connection));
        }

        fn talk(&mut self, leader: &mut Leader, now: Duration, lost: u64) {
            let line = match self.session.plan(now, true) {
                Plan::Wait(_) => None,
                _ if lost == 1 => {
                    self.session.failed(now);
                    None
                }
                Plan::Begin(begin) => {
                    let acked = leader.begin(&begin);
                    if lost == 2 {
                        self.session.failed(now);
                        return;
                    }
                    self.session.began(now, Some(self.connection), &begin, acked)
                }
                Plan::Tell(settles) => match leader.tell(&settles) {
                    Some(_) if lost == 2 => {
                        self.session.failed(now);
                        None
                    }
                    Some(acked) => self.session.told(now, &settles, acked),
                    None => {
                        self.session.detached();
                        self.session.failed(now);
                        None
                    }
                },
            };
            self.lines.extend(line);
        }

        fn hold(&mut self, leader: &mut Leader, at: usize, lost: u64) {
            let id = self.asking[at];
            if lost == 1 {
                return;
            }
            match leader.hold(id) {
                None => self.session.detached(),
                Some(_) if lost == 2 => {}
                Some(given) => {
                    assert!(given, "{id} was never used, and is refused as closed");
                    self.asking.swap_remove(at);
                    let line = self.session.given(id, &open(id));
                    self.lines.push(line);
                    self.held.push((id, false));
                }
            }
        }

        fn end(&mut self, at: usize) {
            let (id, sent) = self.held.swap_remove(at);
            let quality = if sent { Quality::Partial } else { Quality::Exact };
            self.lines.extend(self.session.end(id, Usage::default(), quality, End::default(), "", 0));
        }
    }

    fn run(seed: u64) {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let mut leader = Leader::default();
        let session = Session::new("s".into());
        let lines = written(&session);
        let mut gateway = Gateway { session, lines, asking: Vec::new(), held: Vec::new(), connection: 0 };
        gateway.restart(false);
        let (mut now, mut used, mut sent) = (Duration::ZERO, BTreeSet::new(), BTreeSet::new());
        for _ in 0..200 {
            now += at(random.below(400));
            let lost = random.below(8); // 1: the call, 2: its answer
            match random.below(12) {
                0 | 1 => {
                    let (id, line) = gateway.session.ask();
                    gateway.lines.extend(line);
                    assert!(used.insert(id), "{id} is used again");
                    gateway.asking.push(id);
                }
                2 | 3 if !gateway.asking.is_empty() && gateway.session.is_attached() => {
                    let at = usize::try_from(random.below(gateway.asking.len() as u64)).expect("small");
                    gateway.hold(&mut leader, at, lost);
                }
                4 if !gateway.asking.is_empty() => {
                    // Who asked is gone: whatever was answered, nothing will be sent.
                    let id = gateway.asking.remove(0);
                    gateway.lines.extend(gateway.session.end(id, Usage::default(), Quality::Exact, End::default(), "", 0));
                }
                5 => {
                    if let Some((id, was)) = gateway.held.iter_mut().find(|(_, sent)| !sent) {
                        *was = true;
                        sent.insert(*id);
                        let line = gateway.session.sent(*id);
                        gateway.lines.push(line);
                    }
                }
                6 | 7 if !gateway.held.is_empty() => {
                    let at = usize::try_from(random.below(gateway.held.len() as u64)).expect("small");
                    gateway.end(at);
                }
                8 => leader.durable = leader.received,
                9 if random.one_in(4) => {
                    leader.replaced();
                    gateway.connection += 1;
                    gateway.session.connected(Some(gateway.connection));
                }
                10 if random.one_in(4) => gateway.restart(lost == 1),
                _ => gateway.talk(&mut leader, now, lost),
            }
        }
        while !gateway.held.is_empty() {
            gateway.end(0);
        }
        for id in std::mem::take(&mut gateway.asking) {
            gateway.lines.extend(gateway.session.end(id, Usage::default(), Quality::Exact, End::default(), "", 0));
        }
        for _ in 0..60 {
            now += Duration::from_secs(1);
            gateway.talk(&mut leader, now, 0);
            leader.durable = leader.received;
        }
        assert_eq!((gateway.session.owed(), leader.open.len()), (0, 0), "after quiet nothing is held or owed");
        let charged: BTreeSet<u64> =
            leader.charged.iter().filter(|(_, _, quality)| *quality != Quality::Exact).map(|(_, hold, _)| *hold).collect();
        assert_eq!(charged, sent, "what was sent is charged, and nothing else");
    }

    #[test]
    fn whatever_is_lost_what_was_sent_is_charged_once_and_nothing_stays_held() {
        for seed in 0..1000 {
            let ran = std::panic::catch_unwind(|| run(seed));
            assert!(ran.is_ok(), "seed {seed}");
        }
    }
}
