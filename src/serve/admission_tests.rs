use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::super::Bounds;
use super::*;

const SMALL: Capacity = Capacity { strange: 64, strange_per_address: 8, known: 100, known_per_address: 50 };
/// With this many hostile addresses no connection waits: even if they share all slots evenly, one of them has more than
/// few.
const HOSTILE: u32 = 13;

fn address(number: u32) -> IpAddr {
    Ipv4Addr::from(number).into()
}

fn placed(arrival: Arrival) -> (Id, Option<Id>) {
    match arrival {
        Arrival::Place { id, evicted } => (id, evicted),
        Arrival::Later(after) => panic!("it has to wait for {after:?}"),
    }
}

#[test]
fn the_oldest_of_an_address_that_has_all_it_may_gives_way() {
    let mut all = Admission::new(SMALL);
    let first = placed(all.arrive(address(1), Duration::ZERO)).0;
    for _ in 1..SMALL.strange_per_address {
        assert_eq!(placed(all.arrive(address(1), Duration::ZERO)).1, None);
    }
    let (_, evicted) = placed(all.arrive(address(1), Duration::ZERO));
    assert_eq!(evicted, Some(first));
    assert_eq!(all.counts(), (SMALL.strange_per_address, 0));
    assert_eq!(all.admit(first, address(1), "n"), Err(AdmissionFull::Evicted), "it lost its place");
}

#[test]
fn ten_addresses_of_a_real_gateway_do_not_fill_it_and_twenty_keep_nobody_out() {
    for hostile in [10, 20, 200] {
        let mut all = Admission::new(Bounds::AGENTS.capacity);
        for attempt in 0..10_000 {
            placed(all.arrive(address(attempt % hostile), Duration::ZERO));
        }
        let (honest, evicted) = placed(all.arrive(address(1_000_000), Duration::ZERO));
        assert_eq!(evicted.is_some(), hostile > 16, "{hostile}");
        for attempt in 0..10_000 {
            let (_, evicted) = placed(all.arrive(address(attempt % hostile), Duration::ZERO));
            assert_ne!(evicted, Some(honest), "{hostile}");
        }
        assert_eq!(all.admit(honest, address(1_000_000), "n"), Ok(()));
        let (strange, known) = all.counts();
        assert!(strange <= 1_024 && known == 1, "{strange}, {known}");
    }
}

#[test]
fn many_that_begin_at_once_are_not_ended_by_each_other() {
    let mut all = Admission::new(SMALL);
    for number in 0..64 {
        assert_eq!(placed(all.arrive(address(number), Duration::ZERO)).1, None);
    }
    let later = Duration::from_secs(2);
    assert_eq!(all.arrive(address(64), later), Arrival::Later(RUSH_GRACE - later), "all have few, and are young");
    all.leave(1, address(0));
    assert_eq!(placed(all.arrive(address(64), later)).1, None, "a place was given back");
    assert_eq!(placed(all.arrive(address(65), RUSH_GRACE)).1, Some(2), "the oldest had its time");
}

#[test]
fn a_namespace_alone_gets_three_quarters_and_many_together_never_all() {
    let mut all = Admission::new(Capacity { known: 10_000, known_per_address: usize::MAX, ..SMALL });
    let mut got = Vec::new();
    for namespace in 0..6 {
        let mut count = 0;
        loop {
            let (id, _) = placed(all.arrive(address(namespace), Duration::ZERO));
            match all.admit(id, address(namespace), &namespace.to_string()) {
                Ok(()) if count >= 10_000 => panic!("{namespace} has all that there are"),
                Ok(()) => count += 1,
                Err(full) => {
                    assert_eq!(full, AdmissionFull::Namespace);
                    break;
                }
            }
        }
        got.push(count);
    }
    assert_eq!(got, [7_500, 1_875, 468, 117, 30, 7]);
    let (_, known) = all.counts();
    assert!(known < 10_000);
}

#[test]
fn an_address_has_so_many_known_ones_and_what_ends_is_given_back() {
    let mut all = Admission::new(SMALL);
    let mut ids = Vec::new();
    for _ in 0..50 {
        let id = placed(all.arrive(address(1), Duration::ZERO)).0;
        assert_eq!(all.admit(id, address(1), "n"), Ok(()));
        assert_eq!(all.admit(id, address(1), "n"), Ok(()), "it is known already");
        ids.push(id);
    }
    let id = placed(all.arrive(address(1), Duration::ZERO)).0;
    assert_eq!(all.admit(id, address(1), "n"), Err(AdmissionFull::Address));
    assert_eq!(all.counts(), (1, 50), "it stays strange");
    ids.into_iter().chain([id]).for_each(|id| {
        all.leave(id, address(1));
        all.leave(id, address(1));
    });
    assert_eq!(all.counts(), (0, 0));
    assert!(all.strange.is_empty() && all.known_of_address.is_empty() && all.known_of_namespace.is_empty());
}

#[derive(Clone, Debug)]
enum Event {
    Hostile(u32),
    HostileLeaves(usize),
    HostileIsAdmitted(usize, u8),
    Honest(u32),
    HonestIsAdmitted(usize),
    HonestLeaves(usize),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        20 => (0..HOSTILE).prop_map(Event::Hostile),
        2 => any::<usize>().prop_map(Event::HostileLeaves),
        2 => (any::<usize>(), 0..2_u8).prop_map(|(which, namespace)| Event::HostileIsAdmitted(which, namespace)),
        1 => (0..3_u32).prop_map(Event::Honest),
        1 => any::<usize>().prop_map(Event::HonestIsAdmitted),
        1 => any::<usize>().prop_map(Event::HonestLeaves),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// 13 hostile addresses do anything, also with tokens of two namespaces. An address that has few connections gets a
    /// slot at once, keeps it, and becomes known.
    #[test]
    fn an_honest_newcomer_always_gets_a_place(events in prop::collection::vec(event(), 0..600)) {
        let mut all = Admission::new(Capacity { known: 40, ..SMALL });
        let (mut hostile, mut honest) = (Vec::<(Id, IpAddr)>::new(), Vec::<(Id, IpAddr)>::new());
        let mut now = Duration::ZERO;
        for event in events {
            now += Duration::from_millis(1);
            match event {
                Event::Hostile(number) => {
                    let (id, evicted) = placed(all.arrive(address(number), now));
                    prop_assert!(honest.iter().all(|(id, _)| Some(*id) != evicted), "an honest one was ended");
                    hostile.push((id, address(number)));
                }
                Event::HostileLeaves(which) if !hostile.is_empty() => {
                    let (id, address) = hostile.swap_remove(which % hostile.len());
                    all.leave(id, address);
                }
                Event::HostileIsAdmitted(which, namespace) if !hostile.is_empty() => {
                    let (id, address) = hostile[which % hostile.len()];
                    let _ = all.admit(id, address, ["a", "b"][usize::from(namespace)]);
                }
                Event::Honest(number) => {
                    let address = address(1_000 + number);
                    if honest.iter().filter(|(_, own)| *own == address).count() < HONEST_ADDRESS_CONNECTIONS {
                        let (id, evicted) = placed(all.arrive(address, now));
                        prop_assert!(honest.iter().all(|(id, _)| Some(*id) != evicted), "an honest one was ended");
                        honest.push((id, address));
                    }
                }
                Event::HonestIsAdmitted(which) if !honest.is_empty() => {
                    let (id, address) = honest.swap_remove(which % honest.len());
                    prop_assert_eq!(all.admit(id, address, "honest"), Ok(()));
                    all.leave(id, address);
                }
                Event::HonestLeaves(which) if !honest.is_empty() => {
                    let (id, address) = honest.swap_remove(which % honest.len());
                    all.leave(id, address);
                }
                Event::HostileLeaves(_) | Event::HostileIsAdmitted(..) | Event::HonestIsAdmitted(_) | Event::HonestLeaves(_) => {}
            }
            prop_assert!(all.strange_count <= SMALL.strange);
            prop_assert_eq!(all.strange_count, all.strange.values().map(BTreeMap::len).sum::<usize>());
            prop_assert!(all.strange.values().all(|own| !own.is_empty() && own.len() <= SMALL.strange_per_address));
            prop_assert!(all.known.len() < 40);
        }
    }
}
