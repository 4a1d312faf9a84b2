//! The life of one Agent: from what is known of it and its pod to the next step and the status that is true now.
//!
//! An Agent is its pod's uid as our own create response gave it. A pod under our name with another uid is nobody's; labels
//! and owner references prove nothing. What always holds: a recorded pod is never replaced (the Agent ends, and its pool
//! makes another), nothing is concluded from the absence of an object alone, and an ended Agent never comes back.

use crate::presence::Verdict;

/// What is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The Agent carries a deletion time.
    pub deleting: bool,
    /// Our finalizer is on it.
    pub finalizer: bool,
    /// It is its pool's by owner reference, or its pool is not known.
    pub owned: bool,
    /// Its stored phase is final.
    pub ended: bool,
    /// It has a recorded pod.
    pub recorded: bool,
    /// Its pod, as read.
    pub pod: Pod,
    /// Whether its pod can be made.
    pub spawn: Spawn,
}

/// The pod under the Agent's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pod {
    /// None; with a recorded pod, the judgement on where it went.
    Absent(Verdict),
    /// One, and none is recorded: it is nobody's.
    Foreign,
    /// The recorded one.
    Ours(Observed),
}

/// What the recorded pod shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// Where it is in its life.
    pub stage: Stage,
    /// It carries a deletion time.
    pub deleting: bool,
    /// Its node is not heard of.
    pub node_unreachable: bool,
}

/// Where a pod is in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Not running; with what hinders it, in the words of scheduler or kubelet.
    Pending(Option<Hindrance>),
    /// Its containers run.
    Running {
        /// And it is Ready.
        ready: bool,
    },
    /// All containers ended with 0.
    Succeeded,
    /// A container failed, or the pod was evicted; with the words of the kubelet.
    Failed(String),
}

/// What hinders a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hindrance {
    /// Of which kind.
    pub kind: HindranceKind,
    /// In whose words it is told.
    pub message: String,
}

/// Kinds of hindrance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HindranceKind {
    /// The namespace's quota refuses it.
    QuotaExceeded,
    /// The namespace is being deleted.
    NamespaceTerminating,
    /// The API server refuses it otherwise.
    PodRefused,
    /// Something the pool names is missing.
    MissingReference,
    /// The pool asks for what this version cannot do.
    Unsupported,
    /// No node takes it.
    Unschedulable,
    /// Its image cannot be had.
    ImagePull,
    /// Its container cannot be made.
    ContainerStart,
}

/// Whether a pod can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spawn {
    /// Yes.
    Possible,
    /// The Agent's pool does not exist.
    PoolMissing,
    /// Something is in the way that a retry alone does not mend.
    Hindered(Hindrance),
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing to do but to tell the state.
    None,
    /// Put our finalizer on, before anything exists that it guards, and make it its pool's.
    Adopt,
    /// Make the pod, and record it.
    CreatePod,
    /// Delete our pod, with its grace.
    DeletePod,
    /// Delete the pod under our name that is not ours (after a live read of the Agent).
    DeleteForeignPod,
    /// Take our finalizer off: nothing of the Agent is left.
    RemoveFinalizer,
    /// The Agent's pool is gone: the Agent goes too (after a live read of the pool).
    DeleteAgent,
}

/// The state to tell; becomes phase and conditions in one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// What is stored stays: the Agent ended before.
    Keep,
    /// The pod is to be made.
    Creating,
    /// A pod we did not record is being removed first.
    Replacing,
    /// The pod cannot be made.
    Hindered(Hindrance),
    /// The pool is missing.
    PoolMissing,
    /// The pod has not started.
    Pending(Option<Hindrance>),
    /// The pod runs.
    Running {
        /// And it is Ready.
        ready: bool,
    },
    /// The node is not heard of.
    Unreachable,
    /// The pod is being deleted.
    Stopping,
    /// The pod disappeared, and nothing proves yet that it ended.
    Missing(Verdict),
    /// The Agent ended.
    Ended(End),
}

/// How an Agent ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Its program ended with 0.
    Succeeded,
    /// Its program failed, or its pod was evicted.
    Failed(String),
    /// Its pod was deleted.
    PodGone,
}

/// Decide.
pub fn plan(facts: &Facts) -> (Step, State) {
    let Facts { deleting, finalizer, owned, ended, recorded, pod, spawn } = facts;
    if *deleting {
        let (step, state) = leave(*finalizer, *recorded, pod);
        // An ended Agent stays ended while it goes.
        return (step, if *ended { State::Keep } else { state });
    }
    if *spawn == Spawn::PoolMissing {
        return (Step::DeleteAgent, State::PoolMissing);
    }
    if *ended {
        return (Step::None, State::Keep);
    }
    if !*finalizer || !*owned {
        return (Step::Adopt, State::Keep);
    }
    match (pod, recorded) {
        (Pod::Ours(observed), _) => (Step::None, alive(observed)),
        (Pod::Absent(Verdict::Gone), true) => (Step::None, State::Ended(End::PodGone)),
        (Pod::Absent(verdict @ (Verdict::NotYet(_) | Verdict::Unknown)), true) => (Step::None, State::Missing(*verdict)),
        (Pod::Foreign, _) => (Step::DeleteForeignPod, State::Replacing),
        (Pod::Absent(_), false) => match spawn {
            Spawn::Possible => (Step::CreatePod, State::Creating),
            Spawn::PoolMissing => (Step::DeleteAgent, State::PoolMissing), // answered above; the match stays exhaustive
            Spawn::Hindered(hindrance) => (Step::None, State::Hindered(hindrance.clone())),
        },
    }
}

/// The Agent is being deleted: its pod goes first, then our finalizer.
fn leave(finalizer: bool, recorded: bool, pod: &Pod) -> (Step, State) {
    if !finalizer {
        return (Step::None, State::Keep);
    }
    match pod {
        Pod::Ours(Observed { deleting: true, node_unreachable: true, .. }) => (Step::None, State::Unreachable),
        Pod::Ours(Observed { deleting: true, .. }) => (Step::None, State::Stopping),
        Pod::Ours(Observed { deleting: false, .. }) => (Step::DeletePod, State::Stopping),
        Pod::Foreign => (Step::DeleteForeignPod, State::Stopping),
        Pod::Absent(Verdict::Gone) => (Step::RemoveFinalizer, State::Keep),
        Pod::Absent(_) if !recorded => (Step::RemoveFinalizer, State::Keep),
        Pod::Absent(verdict) => (Step::None, State::Missing(*verdict)),
    }
}

fn alive(observed: &Observed) -> State {
    let Observed { stage, deleting, node_unreachable } = observed;
    match stage {
        // Asked to end by somebody, it ended: how its program took that says nothing.
        Stage::Succeeded | Stage::Failed(_) if *deleting => State::Ended(End::PodGone),
        Stage::Succeeded => State::Ended(End::Succeeded),
        Stage::Failed(message) => State::Ended(End::Failed(message.clone())),
        Stage::Pending(_) | Stage::Running { .. } if *node_unreachable => State::Unreachable,
        Stage::Pending(_) | Stage::Running { .. } if *deleting => State::Stopping,
        Stage::Pending(hindrance) => State::Pending(hindrance.clone()),
        Stage::Running { ready } => State::Running { ready: *ready },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(recorded: bool, pod: Pod) -> Facts {
        Facts { deleting: false, finalizer: true, owned: true, ended: false, recorded, pod, spawn: Spawn::Possible }
    }
    fn ours(stage: Stage) -> Pod {
        Pod::Ours(Observed { stage, deleting: false, node_unreachable: false })
    }
    const ABSENT: Pod = Pod::Absent(Verdict::Gone);

    #[test]
    fn an_agent_is_adopted_before_it_gets_its_pod() {
        assert_eq!(plan(&Facts { finalizer: false, ..facts(false, ABSENT) }).0, Step::Adopt);
        assert_eq!(
            plan(&Facts { owned: false, ..facts(true, ours(Stage::Running { ready: true })) }).0,
            Step::Adopt,
            "its pool came later, or its owner was taken off"
        );
        assert_eq!(plan(&facts(false, ABSENT)).0, Step::CreatePod);
    }

    #[test]
    fn a_pod_that_we_did_not_record_is_never_adopted() {
        assert_eq!(plan(&facts(false, Pod::Foreign)), (Step::DeleteForeignPod, State::Replacing));
    }

    #[test]
    fn a_recorded_pod_is_never_made_twice() {
        for verdict in [Verdict::Gone, Verdict::Unknown, Verdict::NotYet(std::time::Duration::from_secs(1))] {
            assert_ne!(plan(&facts(true, Pod::Absent(verdict))).0, Step::CreatePod, "{verdict:?}");
        }
    }

    #[test]
    fn absence_ends_an_agent_only_when_the_pod_is_proved_gone() {
        assert_eq!(plan(&facts(true, Pod::Absent(Verdict::Gone))).1, State::Ended(End::PodGone));
        assert_eq!(plan(&facts(true, Pod::Absent(Verdict::Unknown))).1, State::Missing(Verdict::Unknown));
    }

    #[test]
    fn what_hinders_is_told_and_not_retried_blindly() {
        let hindrance = Hindrance { kind: HindranceKind::MissingReference, message: "Budget/x is missing".into() };
        let got = plan(&Facts { spawn: Spawn::Hindered(hindrance.clone()), ..facts(false, ABSENT) });
        assert_eq!(got, (Step::None, State::Hindered(hindrance)));
    }

    #[test]
    fn a_deleted_agent_goes_only_after_its_pod() {
        let deleting = |recorded, pod| Facts { deleting: true, ..facts(recorded, pod) };
        assert_eq!(plan(&deleting(true, ours(Stage::Running { ready: true }))).0, Step::DeletePod);
        let stopping = Pod::Ours(Observed { stage: Stage::Running { ready: true }, deleting: true, node_unreachable: false });
        assert_eq!(plan(&deleting(true, stopping)).0, Step::None);
        let unreachable = Pod::Ours(Observed { stage: Stage::Running { ready: true }, deleting: true, node_unreachable: true });
        assert_eq!(plan(&deleting(true, unreachable)).1, State::Unreachable, "it does not hold its place for ever");
        assert_eq!(plan(&deleting(true, Pod::Absent(Verdict::Unknown))).0, Step::None);
        assert_eq!(plan(&deleting(true, ABSENT)).0, Step::RemoveFinalizer);
        assert_eq!(plan(&deleting(true, ours(Stage::Succeeded))).0, Step::DeletePod);
        let ended = Facts { ended: true, ..deleting(true, ours(Stage::Succeeded)) };
        assert_eq!(plan(&ended), (Step::DeletePod, State::Keep));
        assert_eq!(plan(&deleting(false, Pod::Foreign)).0, Step::DeleteForeignPod);
        assert_eq!(plan(&deleting(false, Pod::Absent(Verdict::Unknown))).0, Step::RemoveFinalizer);
    }

    #[test]
    fn an_ended_agent_stays_ended_whatever_its_pod_shows() {
        let ended = Facts { ended: true, ..facts(true, ours(Stage::Running { ready: true })) };
        assert_eq!(plan(&ended), (Step::None, State::Keep));
    }

    #[test]
    fn an_orphan_without_a_pool_is_collected() {
        for pod in [ABSENT, ours(Stage::Running { ready: true })] {
            assert_eq!(plan(&Facts { spawn: Spawn::PoolMissing, ..facts(true, pod) }).0, Step::DeleteAgent);
        }
    }

    #[test]
    fn a_pod_that_was_deleted_is_told_as_that_however_its_program_ended() {
        for stage in [Stage::Succeeded, Stage::Failed("exit code 143".into())] {
            let pod = Pod::Ours(Observed { stage, deleting: true, node_unreachable: false });
            assert_eq!(plan(&facts(true, pod)).1, State::Ended(End::PodGone));
        }
    }

    #[test]
    fn an_unreachable_node_is_said_before_anything_else_of_a_living_pod() {
        let pod = Pod::Ours(Observed { stage: Stage::Running { ready: true }, deleting: true, node_unreachable: true });
        assert_eq!(plan(&facts(true, pod)).1, State::Unreachable);
    }
}
