//! The guarantees of the ledger with one leader, over random calls.

use std::sync::Arc;

use proptest::prelude::*;

use super::estimate::{Quality, Weights};
use super::hold::Settle;
use super::holding::HoldAnswer;
use super::node::{Grant, Key, NodeSpec};
use super::refusal::Refusal;
use super::session::{JournaledHold, JournaledSettle, SESSION_TIMEOUT_MS, SessionLog};
use super::simulation::{audit, places};
use super::single_leader::{NOW, SingleLeader, ask, hourly, route, top, used};
use super::view::LimitView;

#[derive(Clone, Debug)]
enum Step {
    Hold(bool, i64),
    Settle(usize, i64),
    Pass(i64),
    Extend(usize, i64),
    Die,
}

fn doings(beyond: i64) -> impl Strategy<Value = Vec<Step>> {
    let one = prop_oneof![
        6 => (any::<bool>(), 1i64..40).prop_map(|(low, output)| Step::Hold(low, output)),
        5 => (any::<usize>(), 0i64..100 + beyond).prop_map(|(which, percent)| Step::Settle(which, percent)),
        1 => (0i64..50_000).prop_map(Step::Pass),
        1 => (any::<usize>(), 1i64..60).prop_map(|(which, output)| Step::Extend(which, output)),
        1 => Just(Step::Die),
    ];
    proptest::collection::vec(one, 1..120)
}

/// Runs the steps at the places of the simulation, where `low` is guaranteed 60 a minute of `top`. `within`: gateways
/// die, and no call costs more than its hold. `each` sees every state. Returns for each call its time, its hold and its
/// usage.
fn play(doings: &[Step], within: bool, mut each: impl FnMut(&mut SingleLeader, Option<(&Key, &Refusal, i64)>)) -> Vec<(i64, i64, i64)> {
    let nodes: Vec<NodeSpec> = places("top").into_iter().map(|node| NodeSpec { weights: Weights::default(), ..node }).collect();
    let mut one = SingleLeader::new(&nodes);
    let (mut low, mut other) = (route("low"), route("other"));
    let mut open: Vec<(u64, i64, i64)> = Vec::new();
    let mut ended = Vec::new();
    let mut served = 0;
    for doing in doings {
        match doing {
            Step::Hold(is_low, output) => {
                let (route, key) =
                    if *is_low { (&mut low, Key::budget("team", "low")) } else { (&mut other, Key::budget("team", "other")) };
                let before = one.now;
                match one.try_hold(route, &ask(*output)) {
                    Ok((id, output)) => open.push((id, output, before)),
                    Err(refusal) => each(&mut one, Some((&key, &refusal, *output))),
                }
            }
            Step::Settle(which, percent) if !open.is_empty() => {
                let (id, output, at) = open.swap_remove(which % open.len());
                let actual = output * percent / 100;
                one.settle(id, actual);
                ended.push((at, output, actual));
            }
            Step::Pass(time) => one.now += time,
            Step::Extend(which, more) if !open.is_empty() => {
                let which = which % open.len();
                let (id, output, _) = open[which];
                for _ in 0..3 {
                    match one.ledger.extend(one.now, one.session, id, output + more) {
                        HoldAnswer::Write(_) => one.write(),
                        HoldAnswer::Given(given) => open[which].1 = given.output,
                        HoldAnswer::Refused(_) | HoldAnswer::Closed | HoldAnswer::Unattached => break,
                    }
                }
            }
            Step::Die if within => {
                served += SESSION_TIMEOUT_MS;
                one.ledger.tick(one.now, served);
                let log = SessionLog { next_hold: one.next, acked: one.seq, ..SessionLog::default() };
                // The new session is another pod.
                let name = format!("g{served}");
                one.session = one.ledger.begin(one.now, &name, &log).0;
                ended.extend(open.drain(..).map(|(_, output, at)| (at, output, output)));
                one.seq = log.acked;
            }
            Step::Settle(..) | Step::Extend(..) | Step::Die => {}
        }
        audit(&one.ledger, within);
        each(&mut one, None);
    }
    for (id, output, at) in open {
        one.settle(id, 0);
        ended.push((at, output, 0));
    }
    one.write();
    each(&mut one, None);
    ended
}

const TREE: [&str; 3] = ["top", "low", "other"];

proptest! {
    #[test]
    fn i1_i2_i9_a_parent_has_what_its_children_have_and_nobody_more_than_his_limit(doings in doings(0)) {
        let mut failed = None;
        play(&doings, true, |one, _| {
            let [top, low, other] = TREE.map(|name| one.ledger.view(&Key::budget("team", name)).remove(0));
            for view in [&top, &low, &other] {
                if view.used + view.held + view.lost > view.height {
                    failed.get_or_insert(format!("I2, I3: {view:?}"));
                }
            }
            let sums = [(top.used, low.used + other.used), (top.held, low.held + other.held), (top.lost, low.lost + other.lost)];
            if sums.iter().any(|(parent, children)| parent != children) {
                failed.get_or_insert(format!("I9: {sums:?}"));
            }
        });
        prop_assert_eq!(failed, None);
    }

    #[test]
    fn i4_what_is_overspent_is_no_more_than_what_calls_exceeded_their_estimates(doings in doings(150)) {
        let mut most = 0;
        let ended = play(&doings, false, |one, _| {
            for view in TREE.map(|name| one.ledger.view(&Key::budget("team", name)).remove(0)) {
                most = most.max(view.used + view.held + view.lost - view.height);
            }
        });
        let exceeded: i64 = ended.iter().map(|(_, held, used)| (used - held).max(0)).sum();
        prop_assert!(most <= exceeded, "{most} beyond the limit, {exceeded} beyond the estimates");
    }

    #[test]
    fn i6_after_quiet_nothing_is_held(doings in doings(50)) {
        let mut last = Vec::new();
        play(&doings, false, |one, _| {
            last = TREE.map(|name| one.ledger.view(&Key::budget("team", name)).remove(0).held).to_vec();
        });
        prop_assert_eq!(last, vec![0; 3]);
    }

    #[test]
    fn i8_who_is_sure_of_it_is_not_refused_because_of_siblings(doings in doings(0)) {
        let mut failed = None;
        let mut given = 0;
        play(&doings, true, |one, refused| {
            let Some((key, refusal, output)) = refused else {
                given += 1;
                return;
            };
            let sure = 60 - { let low = one.view(&Key::budget("team", "low")); low.used + low.held + low.lost };
            let minutely = refusal.limit.as_ref().is_some_and(|limit| limit.name == "minutely");
            if *key == Key::budget("team", "low") && refusal.key == top() && minutely && output <= sure {
                failed.get_or_insert(format!("{refusal} though sure of {sure}"));
            }
        });
        prop_assert_eq!(failed, None);
        prop_assert!(given > 0);
    }

    #[test]
    fn i5_settles_in_any_number_and_order_give_the_same_sum(order in proptest::collection::vec((0u64..12, 0i64..30), 1..80)) {
        let mut one = SingleLeader::new(&[hourly(10_000)]);
        let mut route = route("top");
        let holds: Vec<u64> = (0..12).map(|_| one.hold(&mut route, 20)).collect();
        let path: Arc<[Key]> = one.ledger.path(one.session, holds[0]).expect("it is open");
        let usage = |seq: u64| used(i64::try_from(seq * 7 % 25).unwrap_or(0));
        for (index, _) in &order {
            let hold = holds[usize::try_from(*index).unwrap_or(0)];
            let settle = Settle { seq: index + 1, hold, usage: usage(index + 1), quality: Quality::Exact, input: 0, output: 20 };
            one.ledger.settle(one.now, one.session, &settle);
        }
        let told = |seq: u64| {
            let open = JournaledHold { id: holds[usize::try_from(seq - 1).unwrap_or(0)], at: NOW, path: Arc::clone(&path), input: 0, output: 20 };
            JournaledSettle { hold: open, usage: usage(seq), quality: Quality::Exact }
        };
        let log = SessionLog { next_hold: 13, acked: 0, settles: (1..=12).map(told).collect(), open: Vec::new(), ..SessionLog::default() };
        one.ledger.begin(one.now, "g0", &log);
        let sum: i64 = (1..=12).map(|seq| usage(seq).output).sum();
        prop_assert_eq!(one.at(&top()), (sum, 0, 0));
        // The same at a leader that knows a part of it from the record.
        one.stored.clear();
        one.write();
        let mut next = one.next_leader(&[hourly(10_000)]);
        next.begin(one.now, "g0", &log);
        let LimitView { used, held, lost, unexplained: rest, .. } = next.view(&top()).remove(0);
        prop_assert_eq!((used, held, lost, rest), (sum, 0, 0, 0));
    }

    #[test]
    fn i11_grants_are_idempotent(mut grants in proptest::collection::vec((0u8..6, 1i64..50), 0..12), times in 1usize..4) {
        grants.sort();
        grants.dedup_by_key(|(id, _)| *id);
        let all: Vec<Grant> = grants.iter().map(|(id, tokens)| Grant { id: id.to_string(), limit: "hour".into(), tokens: *tokens, from: NOW, until: None }).collect();
        let mut one = SingleLeader::new(&[hourly(100)]);
        for time in 0..times {
            let mut told: Vec<Grant> = all.iter().chain(all.iter().take(time)).cloned().collect();
            let by = time.min(told.len());
            told.rotate_left(by);
            one.ledger.set_grants(NOW, &top(), &told);
        }
        let sum: i64 = grants.iter().map(|(_, tokens)| tokens).sum();
        prop_assert_eq!(one.view(&top()).height, 100 + sum);
    }
}
