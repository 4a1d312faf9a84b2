//! Table tests, and a simulated cluster: kubelets that renew, an API server that goes away, watches that break, leaders
//! that change, clocks that jump.

use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
/// The time between two renewals of a kubelet, in seconds.
const PERIOD: u64 = 10;

/// A cluster whose kubelets renew one after the other, seen by one leader.
struct Cluster {
    leader: NodeLiveness,
    now: Duration,
    marks: Vec<i64>,
    duration: Duration,
}

impl Cluster {
    fn of(nodes: usize) -> Self {
        Self::with_leases(nodes, DEFAULT_LEASE_DURATION)
    }

    fn with_leases(nodes: usize, duration: Duration) -> Self {
        let mut cluster = Self { leader: NodeLiveness::default(), now: 1000 * SECOND, marks: vec![0; nodes], duration };
        cluster.list();
        cluster
    }

    fn name(node: usize) -> String {
        format!("node-{node}")
    }

    /// The first list of a new leader, or of a watch that begins again.
    fn list(&mut self) -> Vec<String> {
        let names: Vec<_> = (0..self.marks.len()).map(Self::name).collect();
        let mut changed = self.leader.nodes(names.iter().map(|name| (name.as_str(), None)), true, self.now);
        let leases: Vec<_> = self.marks.iter().map(|mark| Lease { renewed: *mark, duration: self.duration }).collect();
        changed.extend(self.leader.leases(names.iter().map(String::as_str).zip(leases), true, self.now));
        changed
    }

    fn renew(&mut self, node: usize) -> Vec<String> {
        self.marks[node] += 1;
        let lease = Lease { renewed: self.marks[node], duration: self.duration };
        self.leader.leases([(Self::name(node).as_str(), lease)], false, self.now)
    }

    /// Runs for `seconds`, in which all nodes except `silent` renew. Returns the nodes that were judged unreachable
    /// meanwhile.
    fn runs(&mut self, seconds: u64, silent: &[usize]) -> Vec<String> {
        let mut judged = Vec::new();
        for second in 0..seconds {
            self.now += SECOND;
            for node in 0..self.marks.len() {
                if !silent.contains(&node) && (second + node as u64).is_multiple_of(PERIOD) {
                    judged.extend(self.renew(node));
                }
            }
        }
        judged.retain(|name| self.leader.judgement(name) == Judgement::Unreachable);
        judged
    }

    fn judgements(&self) -> Vec<Judgement> {
        (0..self.marks.len()).map(|node| self.leader.judgement(&Self::name(node))).collect()
    }

    fn all_are(&self, judgement: Judgement) -> bool {
        self.judgements().iter().all(|one| *one == judgement)
    }
}

#[test]
fn one_node_of_many_is_judged_after_a_minute_and_comes_back_with_its_next_renewal() {
    let mut cluster = Cluster::of(5);
    assert_eq!(cluster.runs(60, &[]), Vec::<String>::new());
    assert!(cluster.all_are(Judgement::Alive));
    assert_eq!(cluster.runs(49, &[2]), Vec::<String>::new());
    assert_eq!(cluster.runs(20, &[2]), ["node-2"]);
    assert_eq!(cluster.runs(600, &[2]), Vec::<String>::new(), "once");
    assert_eq!(cluster.renew(2), ["node-2"]);
    assert_eq!(cluster.leader.judgement("node-2"), Judgement::Alive);
}

#[test]
fn an_api_server_that_is_away_costs_no_node_anything() {
    for away in [40, 90, 300] {
        let mut cluster = Cluster::of(5);
        cluster.runs(60, &[]);
        cluster.now += away * SECOND;
        // Kubelets come back one after the other, the last one after twenty seconds.
        for node in 0..4 {
            assert_eq!(cluster.renew(node), Vec::<String>::new(), "{away} s");
            cluster.now += 5 * SECOND;
        }
        assert_eq!(cluster.renew(4), Vec::<String>::new(), "{away} s");
        assert_eq!(cluster.runs(300, &[]), Vec::<String>::new(), "{away} s");
        assert!(cluster.all_are(Judgement::Alive), "{away} s: {:?}", cluster.judgements());
    }
}

#[test]
fn silence_from_before_an_outage_does_not_count() {
    let mut cluster = Cluster::of(5);
    cluster.runs(60, &[]);
    assert_eq!(cluster.runs(45, &[4]), Vec::<String>::new());
    cluster.now += 90 * SECOND;
    assert_eq!(cluster.runs(55, &[4]), Vec::<String>::new());
    assert_eq!(cluster.runs(20, &[4]), ["node-4"]);
}

#[test]
fn a_new_leader_judges_nobody_before_it_has_looked_for_as_long() {
    let mut cluster = Cluster::of(5);
    assert_eq!(cluster.runs(120, &[4]), ["node-4"]);
    cluster.leader = NodeLiveness::default();
    cluster.list();
    assert!(cluster.all_are(Judgement::NotObserved));
    assert_eq!(cluster.runs(55, &[4]), Vec::<String>::new());
    assert_eq!(cluster.leader.judgement("node-4"), Judgement::NotObserved);
    assert_eq!(cluster.runs(20, &[4]), ["node-4"]);
}

#[test]
fn the_only_node_is_never_judged() {
    let mut cluster = Cluster::of(1);
    cluster.runs(60, &[]);
    assert_eq!(cluster.runs(3600, &[0]), Vec::<String>::new());
    cluster.runs(60, &[]);
    assert!(cluster.all_are(Judgement::Alive));
}

#[test]
fn of_two_nodes_one_is_judged_and_then_the_other_is_not() {
    let mut cluster = Cluster::of(2);
    cluster.runs(60, &[]);
    assert_eq!(cluster.runs(120, &[0]), ["node-0"]);
    assert_eq!(cluster.runs(3600, &[0, 1]), Vec::<String>::new());
    assert_eq!(cluster.leader.judgement("node-1"), Judgement::Alive);
}

#[test]
fn when_more_than_half_are_silent_together_none_is_judged() {
    let mut cluster = Cluster::of(5);
    cluster.runs(60, &[]);
    assert_eq!(cluster.runs(3600, &[0, 1, 2]), Vec::<String>::new());
    assert!(cluster.leader.disrupted());
    // Half of the nodes are not more than half.
    let mut cluster = Cluster::of(4);
    cluster.runs(60, &[]);
    let mut judged = cluster.runs(120, &[0, 1]);
    judged.sort();
    assert_eq!(judged, ["node-0", "node-1"]);
    assert!(!cluster.leader.disrupted());
}

#[test]
fn those_that_fell_silent_another_day_do_not_count() {
    let mut cluster = Cluster::of(5);
    cluster.runs(60, &[]);
    let mut silent = Vec::new();
    for node in 0..3 {
        silent.push(node);
        assert_eq!(cluster.runs(120, &silent), [Cluster::name(node)]);
    }
    assert_eq!(cluster.runs(120, &[0, 1, 2, 3]), ["node-3"], "one of the two that are left");
    assert_eq!(cluster.runs(3600, &[0, 1, 2, 3, 4]), Vec::<String>::new());
}

#[test]
fn after_a_disruption_everybody_has_all_the_time_to_come_back() {
    let mut cluster = Cluster::of(5);
    cluster.runs(60, &[]);
    cluster.runs(600, &[0, 1, 2]);
    // One node comes back, and then fewer than half are silent.
    assert_eq!(cluster.runs(55, &[0, 1]), Vec::<String>::new());
    assert!(!cluster.leader.disrupted());
    let mut judged = cluster.runs(40, &[0, 1]);
    judged.sort();
    assert_eq!(judged, ["node-0", "node-1"]);
}

#[test]
fn a_list_without_changes_renews_nothing_and_one_after_a_gap_begins_anew() {
    let mut cluster = Cluster::of(3);
    cluster.runs(60, &[]);
    for _ in 0..600 {
        cluster.now += SECOND;
        assert_eq!(cluster.list(), Vec::<String>::new());
    }
    assert!(cluster.all_are(Judgement::Alive), "nobody renewed: nothing follows");
    cluster.marks[0] += 60;
    cluster.marks[1] += 60;
    assert_eq!(cluster.list(), Vec::<String>::new(), "two went on all along, and we did not see when");
    assert_eq!(cluster.runs(55, &[2]), Vec::<String>::new());
    assert_eq!(cluster.runs(20, &[2]), ["node-2"]);
}

#[test]
fn longer_leases_have_longer_patience() {
    let mut cluster = Cluster::with_leases(5, 4 * DEFAULT_LEASE_DURATION);
    cluster.runs(60, &[]);
    assert_eq!(cluster.runs(230, &[2]), Vec::<String>::new());
    assert_eq!(cluster.runs(40, &[2]), ["node-2"]);
    // A duration that no kubelet sets is cut to the valid range.
    let patience = |duration| Lease { renewed: 0, duration }.patience();
    assert_eq!((patience(Duration::ZERO), patience(Duration::MAX)), (60 * SECOND, 5400 * SECOND));
}

#[test]
fn a_clock_of_a_node_that_is_set_back_renews_all_the_same() {
    let mut cluster = Cluster::of(3);
    cluster.runs(60, &[]);
    cluster.marks[1] = -1_000_000;
    assert_eq!(cluster.runs(300, &[]), Vec::<String>::new());
    assert!(cluster.all_are(Judgement::Alive));
}

#[test]
fn a_node_without_a_lease_is_heard_by_what_it_posts() {
    let mut leader = NodeLiveness::default();
    let nodes = |mark: i64| [("a", Some(mark)), ("b", Some(if mark > 60 { 60 } else { mark }))];
    let mut judged = Vec::new();
    for second in 0..200 {
        let changed = leader.nodes(nodes(second / 10 * 10), true, Duration::from_secs(second.unsigned_abs()));
        judged.extend(changed.into_iter().filter(|name| leader.judgement(name) == Judgement::Unreachable));
    }
    assert_eq!(judged, ["b"]);
}

#[test]
fn of_nodes_and_leases_that_are_gone_nothing_is_kept() {
    let mut cluster = Cluster::of(3);
    cluster.runs(120, &[2]);
    cluster.leader.node_gone("node-2");
    cluster.leader.lease_gone("node-2");
    assert_eq!(cluster.leader.judgement("node-2"), Judgement::NotObserved);
    assert_eq!((cluster.leader.nodes.len(), cluster.leader.leases.len()), (2, 2));
    cluster.leader.nodes([("node-0", None)], true, cluster.now);
    cluster.leader.leases([("node-0", Lease { renewed: 9, duration: DEFAULT_LEASE_DURATION })], true, cluster.now);
    assert_eq!((cluster.leader.nodes.len(), cluster.leader.leases.len()), (1, 1));
    // A lease without a node: its renewals prove nothing, and it is never judged.
    cluster.leader.leases([("ghost", Lease { renewed: 1, duration: DEFAULT_LEASE_DURATION })], false, cluster.now);
    assert_eq!(
        cluster.leader.leases([("ghost", Lease { renewed: 2, duration: DEFAULT_LEASE_DURATION })], false, cluster.now),
        Vec::<String>::new()
    );
}

#[test]
fn what_kubernetes_says_and_what_we_saw_are_put_together() {
    use Judgement::{Alive, NotObserved, Unreachable};
    for (unknown, judgement, stored, expected) in [
        (false, Unreachable, true, NodeReach::Heard),
        (false, NotObserved, true, NodeReach::Heard),
        (true, Alive, false, NodeReach::Silent),
        (true, NotObserved, false, NodeReach::Silent),
        (true, Unreachable, false, NodeReach::Unreachable),
        // The judgement of an earlier leader stays until the node reports: a replaced agent must not count again
        // meanwhile.
        (true, NotObserved, true, NodeReach::Unreachable),
        (true, Alive, true, NodeReach::Silent),
    ] {
        assert_eq!(reach(unknown, judgement, stored), expected, "{unknown} {judgement:?} {stored}");
    }
}

/// The events of a simulated cluster, in seconds.
#[derive(Clone, Debug)]
enum Event {
    Calm(u64),
    /// The API server accepts nothing, and then works for a while.
    ApiServerAway(u64),
    /// The leader sees nothing, and then lists again.
    WatchBroken(u64),
    /// The leader sees nothing, and then all events in order.
    WatchLate(u64),
    NewLeader,
}

/// A kubelet: whether it lives, and when it renews next.
struct Kubelet {
    lives: bool,
    next: u64,
}

struct Simulation {
    cluster: Cluster,
    kubelets: Vec<Kubelet>,
    second: u64,
    late: Vec<usize>,
    /// How long each kubelet takes to renew after the API server is back.
    returns: Vec<u64>,
    judged: BTreeSet<usize>,
}

impl Simulation {
    fn new(nodes: usize, returns: Vec<u64>) -> Self {
        let kubelets = (0..nodes).map(|node| Kubelet { lives: true, next: returns[node] % PERIOD }).collect();
        Self { cluster: Cluster::of(nodes), kubelets, second: 0, late: Vec::new(), returns, judged: BTreeSet::new() }
    }

    /// One second. `serves`: the API server works; `seen`: its events reach the leader.
    fn second(&mut self, serves: bool, seen: bool) {
        self.second += 1;
        self.cluster.now += SECOND;
        for node in 0..self.kubelets.len() {
            let kubelet = &mut self.kubelets[node];
            if !serves {
                kubelet.next = self.second + self.returns[node];
            } else if kubelet.lives && kubelet.next <= self.second {
                kubelet.next = self.second + PERIOD;
                if seen {
                    self.cluster.renew(node);
                } else {
                    self.cluster.marks[node] += 1;
                    self.late.push(node);
                }
            }
        }
        self.look();
    }

    fn look(&mut self) {
        let of = self.cluster.judgements().into_iter().enumerate();
        self.judged = of.filter(|(_, judgement)| *judgement == Judgement::Unreachable).map(|(node, _)| node).collect();
    }

    fn happens(&mut self, event: &Event) {
        match event {
            Event::Calm(seconds) => (0..*seconds).for_each(|_| self.second(true, true)),
            Event::ApiServerAway(seconds) => {
                (0..*seconds).for_each(|_| self.second(false, false));
                (0..30).for_each(|_| self.second(true, true));
            }
            Event::WatchBroken(seconds) => {
                (0..*seconds).for_each(|_| self.second(true, false));
                self.late.clear();
                self.cluster.list();
                self.look();
            }
            Event::WatchLate(seconds) => {
                (0..*seconds).for_each(|_| self.second(true, false));
                // Each renewal is an event of its own, with its own renew time.
                let late = std::mem::take(&mut self.late);
                let mut marks = self.cluster.marks.clone();
                late.iter().for_each(|node| marks[*node] -= 1);
                let last = std::mem::replace(&mut self.cluster.marks, marks);
                for node in late {
                    self.cluster.renew(node);
                    self.look();
                    assert!(self.judged.iter().all(|node| !self.kubelets[*node].lives), "{:?}", self.judged);
                }
                assert_eq!(self.cluster.marks, last);
            }
            Event::NewLeader => {
                self.late.clear();
                self.cluster.leader = NodeLiveness::default();
                self.cluster.list();
                self.look();
            }
        }
    }
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (1..200_u64).prop_map(Event::Calm),
        (1..400_u64).prop_map(Event::ApiServerAway),
        (1..200_u64).prop_map(Event::WatchBroken),
        (1..200_u64).prop_map(Event::WatchLate),
        Just(Event::NewLeader),
    ]
}

proptest! {
    #[test]
    fn no_living_node_is_ever_judged_and_dead_ones_are_if_they_are_not_most(
        nodes in 1..8_usize,
        dead in 0..8_usize,
        returns in proptest::collection::vec(1..=17_u64, 8),
        before in proptest::collection::vec(event(), 0..6),
        after in proptest::collection::vec(event(), 0..6),
    ) {
        let dead = dead.min(nodes);
        let most = dead * 2 > nodes;
        let mut world = Simulation::new(nodes, returns);
        for event in &before {
            world.happens(event);
            prop_assert!(world.judged.is_empty(), "all live: {:?}", world.judged);
        }
        world.kubelets.iter_mut().take(dead).for_each(|kubelet| kubelet.lives = false);
        for event in &after {
            world.happens(event);
            prop_assert!(world.judged.iter().all(|node| *node < dead && !most), "{:?}", world.judged);
        }
        // A minute of patience, a period for the last renewal, one until others renew, and possibly the end of a
        // disruption.
        for _ in 0..160 {
            world.second(true, true);
            prop_assert!(world.judged.iter().all(|node| *node < dead && !most), "{:?}", world.judged);
        }
        let expected: BTreeSet<_> = if most { BTreeSet::new() } else { (0..dead).collect() };
        prop_assert_eq!(&world.judged, &expected);
        // The dead nodes come back.
        world.kubelets.iter_mut().for_each(|kubelet| kubelet.lives = true);
        for _ in 0..20 {
            world.second(true, true);
        }
        prop_assert!(world.cluster.all_are(Judgement::Alive), "{:?}", world.cluster.judgements());
    }

    #[test]
    fn in_any_order_and_by_any_clock_who_renews_is_alive_and_nobody_is_judged_early(
        steps in proptest::collection::vec((0..4_usize, 0..40_u64, any::<bool>()), 1..200),
    ) {
        let mut cluster = Cluster::of(4);
        for (node, seconds, back) in steps {
            let step = Duration::from_secs(seconds);
            cluster.now = if back { cluster.now.saturating_sub(step) } else { cluster.now + step };
            let changed = cluster.renew(node);
            prop_assert_eq!(cluster.leader.judgement(&Cluster::name(node)), Judgement::Alive);
            for name in changed.iter().filter(|name| cluster.leader.judgement(name) == Judgement::Unreachable) {
                prop_assert!(*name != Cluster::name(node));
                let silence = cluster.leader.served.saturating_sub(cluster.leader.nodes[name].last_report);
                prop_assert!(silence >= 60 * SECOND, "{name}: {silence:?}");
            }
        }
    }
}
