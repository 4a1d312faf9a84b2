//! A simulated leader and a simulated gateway around a session. Both may end at any time.
use std::collections::BTreeSet;

use super::*;
use crate::fake_leader::{Leader, Random};

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
        if torn && matches!(self.lines.last(), Some(Line::Gave(_))) {
            self.lines.pop(); // no answer was given for it
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
                Some(acked) => self.session.settles_answered(now, &settles, acked),
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
                let line = self.session.given(id, &open(id)).expect("room");
                self.lines.push(line);
                self.held.push((id, false));
            }
        }
    }

    fn end(&mut self, at: usize) {
        let (id, sent) = self.held.swap_remove(at);
        let quality = if sent { Quality::Partial } else { Quality::Exact };
        self.lines.extend(self.session.end(id, Usage::default(), quality, CallEnd::default(), "", 0));
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
                let (id, line) = gateway.session.take_number("team").expect("room");
                gateway.lines.extend(line);
                assert!(used.insert(id), "{id} is used again");
                gateway.asking.push(id);
            }
            2 | 3 if !gateway.asking.is_empty() && gateway.session.is_attached() => {
                let at = usize::try_from(random.below(gateway.asking.len() as u64)).expect("small");
                gateway.hold(&mut leader, at, lost);
            }
            4 if !gateway.asking.is_empty() => {
                // The client is gone, so no call is sent, with any answer.
                let id = gateway.asking.remove(0);
                gateway.lines.extend(gateway.session.end(id, Usage::default(), Quality::Exact, CallEnd::default(), "", 0));
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
        gateway.lines.extend(gateway.session.end(id, Usage::default(), Quality::Exact, CallEnd::default(), "", 0));
    }
    for _ in 0..60 {
        now += Duration::from_secs(1);
        gateway.talk(&mut leader, now, 0);
        leader.durable = leader.received;
    }
    assert_eq!((gateway.session.unacknowledged_count(), leader.open.len()), (0, 0), "after quiet nothing is held or owed");
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
