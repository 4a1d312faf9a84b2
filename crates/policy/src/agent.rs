//! The life of one Agent: from the facts about it and its pod to the next step and the status that is true now.
//!
//! An Agent is its pod's uid, as our own create response gave it (outside the cluster: what [`crate::external`] says).
//! A pod under our name with another uid belongs to no Agent. Labels and owner references prove nothing.
//!
//! What always holds:
//! * A recorded pod is never replaced while it may run. Either the Agent ends, and its pool makes another one. Or the
//!   Agent hibernates, and forgets its pod when that is proved gone, before it may get another one.
//! * Nothing is concluded from the absence of an object alone.
//! * An ended Agent never starts again.
//! * An end by force, a goodbye and the decision to hibernate are stored before the pod is touched, so that the next
//!   leader continues from there.

use crate::node_liveness::NodeReach;
use crate::pod_termination::Verdict;
use crate::preflight;

/// What is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The Agent carries a deletion time.
    pub deleting: bool,
    /// Our finalizer is on it.
    pub finalizer: bool,
    /// Its pool owns it by owner reference, or its pool is not known.
    pub owned: bool,
    /// Its stored phase is final.
    pub ended: bool,
    /// It has a recorded pod.
    pub recorded: bool,
    /// Its pod, as read.
    pub pod: Pod,
    /// Whether its pod can be made.
    pub spawn: Spawn,
    /// It said goodbye, and that is stored; or the agent that spawned it ended.
    pub goodbye: bool,
    /// It is being ended by force, and that is stored.
    pub condemned: bool,
    /// Whether it is to hibernate.
    pub sleep: Sleep,
    /// Its reports, and the decisions about it.
    pub life: Life,
}

/// Whether an agent is to hibernate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// No.
    No,
    /// Its pool wants it to. It may still hold an item.
    Wanted,
    /// Its pool wanted it to, and the decision is stored.
    Begun,
}

/// The facts about an agent's life from its own reports, and the decisions about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    /// Its pod has registered.
    pub registered: bool,
    /// Its program was started.
    pub started: bool,
    /// It holds an item, or a person uses its terminal.
    pub active: bool,
    /// It must take no new work.
    pub paused: bool,
    /// An address that its pod can reach and must not reach.
    pub forbidden_reachable: Option<String>,
    /// Whether it may be given work.
    pub preflight: preflight::Verdict,
    /// The pod has had a node for longer than a start may take.
    pub start_overdue: bool,
    /// The supervision wants to end it by force, for this reason and with this message.
    pub give_up: Option<(GiveUpReason, String)>,
}

/// Why an agent is ended by force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveUpReason {
    /// Its pod was silent for too long.
    HeartbeatLost,
    /// Its program was silent, or stopped, for too long.
    ProgramSilent,
    /// It did not register in time.
    StartTimedOut,
    /// A rule of its pool asks for it.
    Reaped,
    /// It holds an item and was silent for as long as the lease lasts. No other agent gets the item before this one is
    /// gone.
    LeaseExpired,
    /// It made no progress with its item for too long.
    ItemStalled,
    /// It has worked on its item for too long.
    ItemPastTime,
    /// It was told to give its item back and did not.
    CancelIgnored,
    /// Its lifetime tokens are spent, and its item shows no progress. The attempt counts nothing for the item.
    TokensSpent,
    /// It began its item with all its lifetime tokens and spent them without progress. Another agent would do the same.
    TokensExhausted,
    /// Too many agents that work on one group fail together.
    GangDivergence,
}

/// The pod under the Agent's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pod {
    /// There is none. With a recorded pod: whether that pod is proved gone.
    Absent(Verdict),
    /// There is one, and the Agent has not recorded it: it belongs to no Agent.
    Foreign,
    /// The recorded pod.
    Ours(PodObservation),
}

/// What the recorded pod shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodObservation {
    /// Where it is in its life.
    pub stage: Stage,
    /// It carries a deletion time.
    pub deleting: bool,
    /// Whether its node reports.
    pub node: NodeReach,
    /// It was asked to end, and should be gone by now.
    pub overdue: bool,
}

/// Where a pod is in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Not running, with the hindrance that the scheduler or the kubelet reports.
    Pending(Option<Hindrance>),
    /// Its containers run.
    Running {
        /// The pod is Ready.
        ready: bool,
    },
    /// All containers ended with 0.
    Succeeded,
    /// A container failed, or the pod was evicted; with the kubelet's message.
    Failed(String),
}

/// What prevents a pod from running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hindrance {
    /// Its kind.
    pub kind: HindranceKind,
    /// The message of the component that refuses the pod.
    pub message: String,
}

/// Kinds of hindrance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HindranceKind {
    /// The namespace's quota refuses it.
    QuotaExceeded,
    /// A budget has no capacity for it.
    BudgetExhausted,
    /// Its namespace is not among the projects that may run agents.
    ProjectLimit,
    /// The namespace is being deleted.
    NamespaceTerminating,
    /// The API server refuses it for another reason.
    PodRefused,
    /// The claim of its volume cannot be made: another object has its name, it is being deleted, or the API server
    /// refuses it.
    VolumeRefused,
    /// An object that the pool names is missing.
    MissingReference,
    /// The pool uses a feature that this version does not have.
    Unsupported,
    /// No node that it could run on has the profile of system calls that its pool requires.
    NodeProfileMissing,
    /// No node takes it for another reason.
    Unschedulable,
    /// Its image cannot be pulled.
    ImagePull,
    /// Its container cannot be created.
    ContainerStart,
}

/// Whether a pod can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spawn {
    /// Yes.
    Possible,
    /// Not yet: the pool's reconciler has not made all that it needs. That triggers the next reconcile.
    NotYet,
    /// The Agent's pool does not exist.
    PoolMissing,
    /// A hindrance that a retry alone does not remove.
    Hindered(Hindrance),
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Do nothing; only write the state.
    None,
    /// Add our finalizer, before anything exists that it guards, and the owner reference to the pool.
    Adopt,
    /// Make the pod, and record it.
    CreatePod,
    /// Delete our pod, with its grace period.
    DeletePod,
    /// Delete our pod with the shortest grace period.
    ForcePod,
    /// Delete the pod under our name that is not ours (after a live read of the Agent).
    DeleteForeignPod,
    /// Remove our finalizer: nothing of the Agent is left.
    RemoveFinalizer,
    /// The Agent's pool is gone: the Agent goes too (after a live read of the pool).
    DeleteAgent,
}

/// The state to write. It becomes phase and conditions in one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The stored state stays.
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
    Running(Activity),
    /// The node is unreachable.
    Unreachable,
    /// The pod is being deleted.
    Stopping,
    /// The pod is deleted, or will be when that is stored. The Agent stays.
    Hibernating,
    /// The Agent has no pod for now, and nothing of its last pod is left.
    Hibernated,
    /// The Agent is being ended by force. The reason is stored before its pod is touched. `None`: the stored reason
    /// stays.
    Condemned(Option<(GiveUpReason, String)>),
    /// The pod disappeared, and nothing proves yet that it ended.
    Missing(Verdict),
    /// The Agent ended.
    Ended(AgentEnd),
}

/// What an agent whose pod runs is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Its containers are not ready, or its program is not started yet.
    Starting,
    /// Its pod has not registered yet.
    Registering,
    /// It is held back, because its pod can reach this address and must not.
    ForbiddenReachable(String),
    /// It gets no work, because its preflight failed with this message.
    PreflightFailed(String),
    /// It waits for work.
    Idle,
    /// It works.
    Active,
    /// It is paused.
    Paused,
}

/// How an Agent ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentEnd {
    /// Its program ended with 0.
    Succeeded,
    /// Its program failed, or its pod was evicted.
    Failed(String),
    /// Its pod was deleted.
    PodGone,
    /// It said goodbye.
    Goodbye,
    /// It was ended by force; why is stored.
    Forced,
}

/// Decide.
pub fn plan(facts: &Facts) -> (Step, State) {
    let Facts { deleting, finalizer, owned, ended, recorded, pod, spawn, goodbye, condemned, sleep, life } = facts;
    let how = StoredLeave { goodbye: *goodbye, condemned: *condemned, sleep: *sleep };
    if *deleting {
        let (step, state) = plan_deletion(*finalizer, *recorded, pod);
        // An ended Agent keeps its phase while it is deleted.
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
        (Pod::Ours(observed), _) => plan_with_pod(observed, how, life),
        (Pod::Absent(Verdict::Gone), true) => (Step::None, how.state_without_pod(AgentEnd::PodGone)),
        (Pod::Absent(verdict @ (Verdict::NotYet(_) | Verdict::Unknown)), true) => (Step::None, State::Missing(*verdict)),
        (Pod::Foreign, _) => (Step::DeleteForeignPod, State::Replacing),
        (Pod::Absent(_), false) if *sleep != Sleep::No => (Step::None, State::Hibernated),
        (Pod::Absent(_), false) => match spawn {
            Spawn::Possible => (Step::CreatePod, State::Creating),
            Spawn::NotYet => (Step::None, State::Keep),
            Spawn::PoolMissing => (Step::DeleteAgent, State::PoolMissing), // answered above; the match stays exhaustive
            Spawn::Hindered(hindrance) => (Step::None, State::Hindered(hindrance.clone())),
        },
    }
}

/// The Agent is being deleted: its pod goes first, then our finalizer.
fn plan_deletion(finalizer: bool, recorded: bool, pod: &Pod) -> (Step, State) {
    if !finalizer {
        return (Step::None, State::Keep);
    }
    match pod {
        Pod::Ours(PodObservation { deleting: true, node: NodeReach::Unreachable, .. }) => (Step::None, State::Unreachable),
        Pod::Ours(PodObservation { deleting: true, overdue: true, node: NodeReach::Heard, .. }) => (Step::ForcePod, State::Stopping),
        Pod::Ours(PodObservation { deleting: true, .. }) => (Step::None, State::Stopping),
        Pod::Ours(PodObservation { deleting: false, .. }) => (Step::DeletePod, State::Stopping),
        Pod::Foreign => (Step::DeleteForeignPod, State::Stopping),
        Pod::Absent(Verdict::Gone) => (Step::RemoveFinalizer, State::Keep),
        Pod::Absent(_) if !recorded => (Step::RemoveFinalizer, State::Keep),
        Pod::Absent(verdict) => (Step::None, State::Missing(*verdict)),
    }
}

/// The stored facts about how an agent leaves.
#[derive(Clone, Copy)]
struct StoredLeave {
    goodbye: bool,
    condemned: bool,
    sleep: Sleep,
}

impl StoredLeave {
    /// How it ended. `otherwise`: the end that its pod alone shows.
    fn end(self, otherwise: AgentEnd) -> AgentEnd {
        if self.condemned {
            AgentEnd::Forced
        } else if self.goodbye {
            AgentEnd::Goodbye
        } else {
            otherwise
        }
    }

    /// The state when nothing of its pod is left.
    fn state_without_pod(self, otherwise: AgentEnd) -> State {
        if self.hibernates() { State::Hibernated } else { State::Ended(self.end(otherwise)) }
    }

    /// Whether its pod ends and the Agent stays.
    fn hibernates(self) -> bool {
        self.sleep != Sleep::No && !self.goodbye && !self.condemned
    }
}

fn plan_with_pod(observed: &PodObservation, how: StoredLeave, life: &Life) -> (Step, State) {
    let PodObservation { stage, deleting, node, overdue } = observed;
    // A node that does not report executes no deletion, and the agents on it are not to blame.
    let (unreachable, heard) = (*node == NodeReach::Unreachable, *node == NodeReach::Heard);
    let overdue = *overdue && heard;
    match stage {
        // The object must go before another pod can have its name. If its node is away, it may stay for long.
        Stage::Succeeded | Stage::Failed(_) if *deleting && how.hibernates() => {
            (Step::None, if unreachable { State::Unreachable } else { State::Hibernating })
        }
        // The pod ended as it was asked to.
        Stage::Succeeded | Stage::Failed(_) if how.sleep == Sleep::Begun && how.hibernates() => (Step::DeletePod, State::Hibernating),
        // The pod ended as it was asked to. How its program reacted says nothing.
        Stage::Succeeded | Stage::Failed(_) if *deleting => (Step::None, State::Ended(how.end(AgentEnd::PodGone))),
        Stage::Succeeded => (Step::None, State::Ended(how.end(AgentEnd::Succeeded))),
        Stage::Failed(message) => (Step::None, State::Ended(how.end(AgentEnd::Failed(message.clone())))),
        Stage::Pending(_) | Stage::Running { .. } if unreachable => (Step::None, State::Unreachable),
        Stage::Pending(_) | Stage::Running { .. } if how.condemned => {
            (if *deleting && !overdue { Step::None } else { Step::ForcePod }, State::Condemned(None))
        }
        // The kubelet kills a pod after its grace period. If it does not, delete again with the shortest one.
        Stage::Pending(_) | Stage::Running { .. } if *deleting => {
            let state = if how.hibernates() { State::Hibernating } else { State::Stopping };
            (if overdue { Step::ForcePod } else { Step::None }, state)
        }
        Stage::Pending(_) | Stage::Running { .. } if how.goodbye => (Step::DeletePod, State::Stopping),
        Stage::Pending(_) | Stage::Running { .. } if how.sleep == Sleep::Begun => (Step::DeletePod, State::Hibernating),
        // An agent that holds an item finishes it first, and a paused agent stays.
        Stage::Pending(_) | Stage::Running { .. } if how.sleep == Sleep::Wanted && !life.active && !life.paused => {
            (Step::None, State::Hibernating)
        }
        Stage::Pending(_) | Stage::Running { .. } if heard && life.give_up.is_some() => {
            (Step::None, State::Condemned(life.give_up.clone()))
        }
        Stage::Pending(hindrance) if heard && life.start_overdue => {
            let why =
                hindrance.as_ref().map_or_else(|| "the containers of its pod did not start".to_owned(), |found| found.message.clone());
            (Step::None, State::Condemned(Some((GiveUpReason::StartTimedOut, start_timed_out(&why)))))
        }
        Stage::Running { .. } if heard && life.start_overdue => {
            let why = life.forbidden_reachable.as_ref().map_or_else(
                || {
                    let registered = "its pod registered with the gateway, but its program was not started";
                    if life.registered { registered } else { "its pod did not register with the gateway" }.to_owned()
                },
                |reachable| format!("{reachable} can be reached from its pod: its NetworkPolicy is not enforced"),
            );
            (Step::None, State::Condemned(Some((GiveUpReason::StartTimedOut, start_timed_out(&why)))))
        }
        Stage::Pending(hindrance) => (Step::None, State::Pending(hindrance.clone())),
        Stage::Running { ready } => (Step::None, State::Running(activity(*ready, life))),
    }
}

fn start_timed_out(why: &str) -> String {
    format!("the agent's program did not start within supervision.startupTimeoutSeconds of its pool: {why}")
}

fn activity(ready: bool, life: &Life) -> Activity {
    let Life { registered, started, active, paused, forbidden_reachable: walls_down, preflight, start_overdue: _, give_up: _ } = life;
    // If a working agent is not Ready, its kubelet or its sidecar has just restarted. It is not `Starting`: a pool may
    // end an agent that starts, because nothing is lost.
    let at_work = *registered && *started;
    if !ready && !at_work {
        return Activity::Starting;
    }
    match (registered, walls_down) {
        (false, _) => Activity::Registering,
        (true, Some(reachable)) => Activity::ForbiddenReachable(reachable.clone()),
        // The sidecar tests the isolation before the program starts.
        (true, None) if !*started => Activity::Starting,
        (true, None) if *paused => Activity::Paused,
        // It got its item while its preflight passed.
        (true, None) if *active => Activity::Active,
        (true, None) => match preflight {
            preflight::Verdict::Passed => Activity::Idle,
            preflight::Verdict::Pending => Activity::Starting,
            preflight::Verdict::Failed(why) => Activity::PreflightFailed(why.clone()),
        },
    }
}

#[cfg(test)]
#[path = "agent_tests.rs"]
mod tests;
