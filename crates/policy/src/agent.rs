//! The life of one Agent: from what is known of it and its pod to the next step and the status that is true now.
//!
//! An Agent is its pod's uid as our own create response gave it (outside the cluster: what [`crate::external`] says). A pod under our name with another uid is nobody's; labels
//! and owner references prove nothing. What always holds: a recorded pod is never replaced while it may run (the Agent ends,
//! and its pool makes another; or it hibernates, and forgets its pod when that is proved gone, before it may get another),
//! nothing is concluded from the absence of an object alone, and an ended Agent never comes back. What ends an agent by
//! force, a goodbye it said, and that it goes to sleep, is stored before its pod is touched: whoever leads next goes on with
//! it.

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
    /// It said goodbye, and that is stored; or the agent that spawned it ended.
    pub goodbye: bool,
    /// It is being ended by force, and that is stored.
    pub condemned: bool,
    /// Whether it is to hibernate.
    pub sleep: Sleep,
    /// What its supervisor says of it.
    pub life: Life,
}

/// Whether an agent is to be without a pod for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// No.
    No,
    /// Its pool wants it to: it may still hold something.
    Wanted,
    /// Its pool wanted it to, and that it gives its pod back is stored.
    Begun,
}

/// What is known of an agent's life from its own reports, and what was decided about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    /// Its pod has registered.
    pub registered: bool,
    /// Its program was started.
    pub started: bool,
    /// It holds an item, or a person is at it.
    pub active: bool,
    /// It is to take nothing new.
    pub paused: bool,
    /// What must not be reachable from its pod, and is.
    pub walls_down: Option<String>,
    /// Whether it may be given work.
    pub preflight: preflight::Verdict,
    /// The pod has had a node for longer than a start may take.
    pub start_overdue: bool,
    /// The supervisor wants it ended by force: why.
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
    /// It holds an item and was silent for as long as the lease lasts: nobody else gets the item before it is gone.
    LeaseExpired,
    /// It made no progress with its item for too long.
    ItemStalled,
    /// It has worked on its item for too long.
    ItemPastTime,
    /// It was told to give its item back and did not.
    CancelIgnored,
    /// The tokens of its life are over, and what it did of its item is worth nothing: the item counts nothing of it.
    TokensSpent,
    /// It began its item with all the tokens of its life and spent them on it for nothing: another one would, too.
    TokensExhausted,
    /// Too many of those that work on one group fail together.
    GangDivergence,
}

/// The pod under the Agent's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pod {
    /// None; with a recorded pod, the judgement on where it went.
    Absent(Verdict),
    /// One, and none is recorded: it is nobody's.
    Foreign,
    /// The recorded one.
    Ours(PodObservation),
}

/// What the recorded pod shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodObservation {
    /// Where it is in its life.
    pub stage: Stage,
    /// It carries a deletion time.
    pub deleting: bool,
    /// Whether its node is heard of.
    pub node: NodeReach,
    /// It was asked to end, and should have been gone for a while.
    pub overdue: bool,
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
    /// A budget leaves no room for it.
    BudgetExhausted,
    /// Its namespace is not among the projects that may run agents.
    ProjectLimit,
    /// The namespace is being deleted.
    NamespaceTerminating,
    /// The API server refuses it otherwise.
    PodRefused,
    /// Its volume's claim cannot be had: another has its name, it is being deleted, or the API server refuses it.
    VolumeRefused,
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
    /// Not before what its pool's reconciler makes stands; that wakes us.
    NotYet,
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
    /// Delete our pod with the shortest grace there is.
    ForcePod,
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
    Running(Activity),
    /// The node is not heard of.
    Unreachable,
    /// The pod is being deleted.
    Stopping,
    /// The pod is given back, or will be as soon as that is stored; the agent stays.
    Hibernating,
    /// The agent is without a pod, for now: nothing of the last one is left.
    Hibernated,
    /// It is silent, or cannot be had to work: it is being ended by force. Stored before anything is done about it; `None`:
    /// as it is stored.
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
    /// It is held back: what must not be reachable is.
    WallsDown(String),
    /// It gets no work, because it is not fit for any: why.
    PreflightFailed(String),
    /// It waits for work.
    Idle,
    /// It works.
    Active,
    /// It is held.
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
        (Pod::Ours(observed), _) => alive(observed, how, life),
        (Pod::Absent(Verdict::Gone), true) => (Step::None, how.left(AgentEnd::PodGone)),
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
fn leave(finalizer: bool, recorded: bool, pod: &Pod) -> (Step, State) {
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

/// What was stored of the way in which an agent leaves.
#[derive(Clone, Copy)]
struct StoredLeave {
    goodbye: bool,
    condemned: bool,
    sleep: Sleep,
}

impl StoredLeave {
    /// How it ended, where its pod alone would say `otherwise`.
    fn end(self, otherwise: AgentEnd) -> AgentEnd {
        if self.condemned {
            AgentEnd::Forced
        } else if self.goodbye {
            AgentEnd::Goodbye
        } else {
            otherwise
        }
    }

    /// What is true when nothing of its pod is left.
    fn left(self, otherwise: AgentEnd) -> State {
        if self.sleeps() { State::Hibernated } else { State::Ended(self.end(otherwise)) }
    }

    /// Whether its pod's end is not its own.
    fn sleeps(self) -> bool {
        self.sleep != Sleep::No && !self.goodbye && !self.condemned
    }
}

fn alive(observed: &PodObservation, how: StoredLeave, life: &Life) -> (Step, State) {
    let PodObservation { stage, deleting, node, overdue } = observed;
    // On a node that is not heard of nobody would do as told, and nobody on it is to blame for anything.
    let (unreachable, heard) = (*node == NodeReach::Unreachable, *node == NodeReach::Heard);
    let overdue = *overdue && heard;
    match stage {
        // Its object goes next: while that has the name, there can be no other. One whose node is away may stay for long.
        Stage::Succeeded | Stage::Failed(_) if *deleting && how.sleeps() => {
            (Step::None, if unreachable { State::Unreachable } else { State::Hibernating })
        }
        // Told to go, it went.
        Stage::Succeeded | Stage::Failed(_) if how.sleep == Sleep::Begun && how.sleeps() => (Step::DeletePod, State::Hibernating),
        // Asked to end by somebody, it ended: how its program took that says nothing.
        Stage::Succeeded | Stage::Failed(_) if *deleting => (Step::None, State::Ended(how.end(AgentEnd::PodGone))),
        Stage::Succeeded => (Step::None, State::Ended(how.end(AgentEnd::Succeeded))),
        Stage::Failed(message) => (Step::None, State::Ended(how.end(AgentEnd::Failed(message.clone())))),
        Stage::Pending(_) | Stage::Running { .. } if unreachable => (Step::None, State::Unreachable),
        Stage::Pending(_) | Stage::Running { .. } if how.condemned => {
            (if *deleting && !overdue { Step::None } else { Step::ForcePod }, State::Condemned(None))
        }
        // The kubelet kills what outlives its grace; should it not, it is told so with the shortest one.
        Stage::Pending(_) | Stage::Running { .. } if *deleting => {
            let state = if how.sleeps() { State::Hibernating } else { State::Stopping };
            (if overdue { Step::ForcePod } else { Step::None }, state)
        }
        Stage::Pending(_) | Stage::Running { .. } if how.goodbye => (Step::DeletePod, State::Stopping),
        Stage::Pending(_) | Stage::Running { .. } if how.sleep == Sleep::Begun => (Step::DeletePod, State::Hibernating),
        // Who holds something finishes it, and who is held stays.
        Stage::Pending(_) | Stage::Running { .. } if how.sleep == Sleep::Wanted && !life.active && !life.paused => {
            (Step::None, State::Hibernating)
        }
        Stage::Pending(_) | Stage::Running { .. } if heard && life.give_up.is_some() => {
            (Step::None, State::Condemned(life.give_up.clone()))
        }
        Stage::Pending(hindrance) if heard && life.start_overdue => {
            let why =
                hindrance.as_ref().map_or_else(|| "the containers of its pod did not start".to_owned(), |found| found.message.clone());
            (Step::None, State::Condemned(Some((GiveUpReason::StartTimedOut, why))))
        }
        Stage::Running { .. } if heard && life.start_overdue => {
            let why = life.walls_down.as_ref().map_or_else(
                || {
                    let registered = "its pod registered with the gateway, but its program was not started";
                    if life.registered { registered } else { "its pod did not register with the gateway" }.to_owned()
                },
                |reachable| format!("{reachable} can be reached from its pod: its NetworkPolicy is not enforced"),
            );
            (Step::None, State::Condemned(Some((GiveUpReason::StartTimedOut, why))))
        }
        Stage::Pending(hindrance) => (Step::None, State::Pending(hindrance.clone())),
        Stage::Running { ready } => (Step::None, State::Running(doing(*ready, life))),
    }
}

fn doing(ready: bool, life: &Life) -> Activity {
    let Life { registered, started, active, paused, walls_down, preflight, start_overdue: _, give_up: _ } = life;
    // Of one that is at work it only says that a kubelet, or its sidecar, has just come again: no start, which may be undone
    // as one that has nothing to lose.
    let at_work = *registered && *started;
    if !ready && !at_work {
        return Activity::Starting;
    }
    match (registered, walls_down) {
        (false, _) => Activity::Registering,
        (true, Some(reachable)) => Activity::WallsDown(reachable.clone()),
        // Its sidecar looks at the walls first: before that, nobody says that the agent is ready.
        (true, None) if !*started => Activity::Starting,
        (true, None) if *paused => Activity::Paused,
        // What it holds it got while it was fit.
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
