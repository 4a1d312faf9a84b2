//! Which nodes are unreachable, judged by their leases and by our own clock.
//!
//! A node whose kubelet does not renew its lease is not to blame while the API server accepts no renewals at all. So
//! the silence of a node counts only while the leases of *other* nodes are renewed, as we see it. Each renewal that we
//! see proves that the API server served since the one before, if that was a moment ago. After a longer gap (the API
//! server was away, a watch hung, this process slept) the silence of every node starts anew. Renew times are compared
//! only with earlier ones of the same lease, never with our clock.
//!
//! What always holds:
//! * a node is judged unreachable only after [`Lease::patience`] of such time without a renewal of its own;
//! * no node is judged while more than half of the nodes that are not judged yet are silent together. Then the network
//!   between the nodes and the API server is to blame, as Kubernetes' own node controller has it. So the only node of a
//!   cluster, and the last one that is left, are never judged;
//! * a judgement stays until the node's own lease is renewed. When a disruption ends, the silence of every node starts
//!   anew;
//! * a new leader judges no node before it has observed for as long.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The default duration of a kubelet's lease. The kubelet renews it each quarter of that.
const DEFAULT_LEASE_DURATION: Duration = Duration::from_secs(40);
/// The longest duration that is believed of a lease.
const MAX_LEASE_DURATION: Duration = Duration::from_secs(3600);
/// Time between two judgements. A judgement looks at all nodes, and a large cluster has a renewal every few
/// milliseconds.
const JUDGEMENT_INTERVAL: Duration = Duration::from_secs(1);

/// A node's lease as read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its renew time by the node's clock, in microseconds since 1970. Only a change of it counts.
    pub renewed: i64,
    /// The duration that it states.
    pub duration: Duration,
}

impl Lease {
    fn duration(&self) -> Duration {
        self.duration.clamp(DEFAULT_LEASE_DURATION, MAX_LEASE_DURATION)
    }

    /// Silence after which a node is unreachable: six renewals that did not come. A kubelet whose API server comes back needs
    /// up to twenty seconds until it renews.
    pub fn patience(&self) -> Duration {
        self.duration().saturating_mul(3) / 2
    }

    /// The longest time between two renewals that we see which still proves that the API server served: one and a half
    /// periods.
    fn longest_gap(&self) -> Duration {
        self.duration().saturating_mul(3) / 8
    }
}

/// The lease that is assumed for a node without one.
const NO_LEASE: Lease = Lease { renewed: 0, duration: DEFAULT_LEASE_DURATION };

/// What we have observed of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Nothing yet: its lease was not renewed since we began.
    NotObserved,
    /// Its lease was renewed, and it was not silent for long enough since.
    Alive,
    /// It was silent for long enough, while others were not.
    Unreachable,
}

/// Whether a node reports, and what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeReach {
    /// It reports.
    Heard,
    /// Its kubelet does not report, and nothing proves that the node itself is to blame. No pod on it is replaced, and
    /// no agent on it is given up.
    Silent,
    /// Only this node does not report. The pods on it do not count.
    Unreachable,
}

/// Decides about a node. `unknown`: Kubernetes says that the node does not report. `stored`: an earlier leader judged
/// it unreachable, and stored that with the Agents on it.
pub fn reach(unknown: bool, judgement: Judgement, stored: bool) -> NodeReach {
    match (unknown, judgement, stored) {
        (false, Judgement::NotObserved | Judgement::Alive | Judgement::Unreachable, _) => NodeReach::Heard,
        (true, Judgement::Unreachable, _) | (true, Judgement::NotObserved, true) => NodeReach::Unreachable,
        (true, Judgement::NotObserved, false) | (true, Judgement::Alive, _) => NodeReach::Silent,
    }
}

#[derive(Clone, Debug)]
struct Node {
    judgement: Judgement,
    /// The served time at which it last reported, or at which we began.
    last_report: Duration,
    /// When its kubelet last posted its status, by the node's clock. Kubelets without a lease do that instead.
    posted: Option<i64>,
}

/// What we know of all nodes and their leases.
#[derive(Clone, Debug)]
pub struct NodeLiveness {
    nodes: BTreeMap<String, Node>,
    leases: BTreeMap<String, Lease>,
    /// The time since we began in which leases were renewed.
    served: Duration,
    /// When we saw a renewal last, by our own clock.
    last_renewal: Option<Duration>,
    /// The served time since which silence counts.
    silence_from: Duration,
    /// The served time of the last judgement.
    judged: Duration,
    longest_gap: Duration,
    disrupted: bool,
}

impl Default for NodeLiveness {
    fn default() -> Self {
        Self {
            nodes: BTreeMap::new(),
            leases: BTreeMap::new(),
            served: Duration::ZERO,
            last_renewal: None,
            silence_from: Duration::ZERO,
            judged: Duration::ZERO,
            longest_gap: NO_LEASE.longest_gap(),
            disrupted: false,
        }
    }
}

impl NodeLiveness {
    /// Updates these nodes, with the time when each last posted its status. `all`: there are no others. Returns the
    /// nodes whose judgement changed.
    pub fn nodes<'a>(&mut self, there: impl IntoIterator<Item = (&'a str, Option<i64>)>, all: bool, now: Duration) -> Vec<String> {
        let (mut renewed, mut listed) = (Vec::new(), BTreeSet::new());
        for (name, posted) in there {
            if all {
                listed.insert(name.to_owned());
            }
            let begun = Node { judgement: Judgement::NotObserved, last_report: self.served, posted };
            let node = self.nodes.entry(name.to_owned()).or_insert(begun);
            if std::mem::replace(&mut node.posted, posted) != posted && !self.leases.contains_key(name) {
                renewed.push(name.to_owned());
            }
        }
        if all {
            self.nodes.retain(|name, _| listed.contains(name));
        }
        self.record_reports(renewed, now)
    }

    /// A node is gone.
    pub fn node_gone(&mut self, name: &str) {
        self.nodes.remove(name);
    }

    /// Updates these leases. `all`: there are no others. Returns the nodes whose judgement changed.
    pub fn leases<'a>(&mut self, there: impl IntoIterator<Item = (&'a str, Lease)>, all: bool, now: Duration) -> Vec<String> {
        let (mut renewed, mut listed) = (Vec::new(), BTreeSet::new());
        for (name, lease) in there {
            if all {
                listed.insert(name.to_owned());
            }
            // The first look at a lease says nothing: it may be a day old.
            if self.leases.insert(name.to_owned(), lease).is_some_and(|before| before.renewed != lease.renewed) {
                renewed.push(name.to_owned());
            }
        }
        if all {
            self.leases.retain(|name, _| listed.contains(name));
        }
        self.record_reports(renewed, now)
    }

    /// A lease is gone.
    pub fn lease_gone(&mut self, name: &str) {
        self.leases.remove(name);
    }

    /// What we have observed of a node.
    pub fn judgement(&self, node: &str) -> Judgement {
        self.nodes.get(node).map_or(Judgement::NotObserved, |node| node.judgement)
    }

    /// More than half of the nodes were silent together when we looked last.
    pub fn disrupted(&self) -> bool {
        self.disrupted
    }

    /// These nodes reported at `now`.
    fn record_reports(&mut self, names: Vec<String>, now: Duration) -> Vec<String> {
        let names: Vec<_> = names.into_iter().filter(|name| self.nodes.contains_key(name)).collect();
        if names.is_empty() {
            return Vec::new();
        }
        // The first renewal that we see begins the time.
        let gap = self.last_renewal.replace(now).map_or(Duration::ZERO, |last| now.saturating_sub(last));
        if gap <= self.longest_gap {
            self.served += gap;
        } else {
            self.silence_from = self.served;
        }
        let mut changed = Vec::new();
        for name in names {
            if let Some(node) = self.nodes.get_mut(&name) {
                node.last_report = self.served;
                if std::mem::replace(&mut node.judgement, Judgement::Alive) != Judgement::Alive {
                    changed.push(name);
                }
            }
        }
        if self.served.saturating_sub(self.judged) >= JUDGEMENT_INTERVAL {
            self.judged = self.served;
            self.judge(&mut changed);
        }
        changed
    }

    fn judge(&mut self, changed: &mut Vec<String>) {
        let (served, anew, leases) = (self.served, self.silence_from, &self.leases);
        let lease = |name: &str| leases.get(name).copied().unwrap_or(NO_LEASE);
        let silence = |node: &Node| served.saturating_sub(node.last_report.max(anew));
        self.longest_gap = self.nodes.keys().map(|name| lease(name).longest_gap()).min().unwrap_or_else(|| NO_LEASE.longest_gap());
        // Nodes that are judged already fell silent earlier, for another reason.
        let (mut silent, mut of) = (0_usize, 0_usize);
        for (name, node) in self.nodes.iter().filter(|(_, node)| node.judgement != Judgement::Unreachable) {
            of += 1;
            silent += usize::from(silence(node) >= lease(name).patience() / 2);
        }
        let disrupted = silent * 2 > of;
        if std::mem::replace(&mut self.disrupted, disrupted) && !disrupted {
            // The other nodes come back one after the other. Each gets its whole time.
            self.silence_from = served;
        } else if !disrupted {
            for (name, node) in &mut self.nodes {
                if node.judgement != Judgement::Unreachable && silence(node) >= lease(name).patience() {
                    node.judgement = Judgement::Unreachable;
                    changed.push(name.clone());
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "node_liveness_tests.rs"]
mod tests;
