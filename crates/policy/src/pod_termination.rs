//! When a pod is gone. The absence of its object proves nothing: after a forced deletion, or on a cut-off node,
//! processes may still run. A pod counts as gone only when its kubelet, its node or a person proves it.

use std::time::Duration;

/// How long a node must have stayed healthy after a pod's object disappeared before its processes count as ended.
pub const NODE_HEALTHY_PROOF_DELAY: Duration = Duration::from_secs(60);

/// What was last known of a pod whose object is no longer there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastSeen {
    /// The kubelet had reported all its containers terminated, or it never was on a node.
    Ended,
    /// It had a node, and its containers were not all reported terminated.
    Running,
    /// We did not see its deletion (a new leader).
    Unknown,
}

/// The state of the node of a missing pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// Its node is not known, for this long now. So no node can prove anything.
    NotKnown(Duration),
    /// The Node object is gone.
    Deleted,
    /// The Node has the taint `node.kubernetes.io/out-of-service`: a person states that it is off.
    OutOfService,
    /// Ready and renewing since the pod went missing, for this long.
    HealthyFor(Duration),
    /// Not Ready, or not renewing.
    Unhealthy,
}

/// Whether a missing pod is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its processes ended.
    Gone,
    /// Not known yet; the node can prove it after this long.
    NotYet(Duration),
    /// Not known, and time alone will not tell.
    Unknown,
}

/// Judge a pod whose object is not there (by a live read).
pub fn judge(last: LastSeen, node: NodeState) -> Verdict {
    match (last, node) {
        (LastSeen::Ended, _) => Verdict::Gone,
        (_, NodeState::Deleted | NodeState::OutOfService) => Verdict::Gone,
        (_, NodeState::HealthyFor(time) | NodeState::NotKnown(time)) if time >= NODE_HEALTHY_PROOF_DELAY => Verdict::Gone,
        (_, NodeState::HealthyFor(time) | NodeState::NotKnown(time)) => Verdict::NotYet(NODE_HEALTHY_PROOF_DELAY - time),
        (_, NodeState::Unhealthy) => Verdict::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absence_alone_proves_nothing() {
        assert_eq!(judge(LastSeen::Running, NodeState::Unhealthy), Verdict::Unknown);
        assert_eq!(judge(LastSeen::Unknown, NodeState::Unhealthy), Verdict::Unknown);
        assert_eq!(judge(LastSeen::Running, NodeState::HealthyFor(Duration::from_secs(59))), Verdict::NotYet(Duration::from_secs(1)));
    }

    #[test]
    fn what_proves_it() {
        assert_eq!(judge(LastSeen::Ended, NodeState::Unhealthy), Verdict::Gone);
        assert_eq!(
            judge(LastSeen::Unknown, NodeState::NotKnown(Duration::ZERO)),
            Verdict::NotYet(NODE_HEALTHY_PROOF_DELAY),
            "never at once"
        );
        for node in [
            NodeState::NotKnown(NODE_HEALTHY_PROOF_DELAY),
            NodeState::Deleted,
            NodeState::OutOfService,
            NodeState::HealthyFor(NODE_HEALTHY_PROOF_DELAY),
        ] {
            assert_eq!(judge(LastSeen::Running, node), Verdict::Gone, "{node:?}");
        }
    }
}
