//! Phase and readiness of an Agent, from its state, and the reasons under which hindrances are shown. Builds no condition.

use crate::api::AgentStatus;
use crate::api::agent::AgentPhase;
use crate::api::conditions::{reasons, types};
use crate::controller::agent::supervise;
use crate::controller::conditions::find;
use crate::policy::agent::{Activity, AgentEnd, Hindrance, HindranceKind, State};
use crate::policy::pod_termination::Verdict;

/// Phase, readiness, reason and message of a state; `None`: the stored ones stay.
pub(super) fn describe(state: &State, stored: &AgentStatus) -> Option<(AgentPhase, bool, String, String)> {
    let (phase, ready, reason, message) = match state {
        State::Keep | State::Condemned(None) => return None,
        State::Condemned(Some((why, message))) => (AgentPhase::Stale, false, supervise::reason(*why), message.clone()),
        // Reason and message were stored with the decision.
        State::Ended(AgentEnd::Forced) => {
            let given_up = find(&stored.conditions, types::GIVEN_UP)?;
            return Some((AgentPhase::ForceStopped, false, given_up.reason.clone(), given_up.message.clone()));
        }
        State::Creating => (AgentPhase::Spawning, false, reasons::POD_CREATING, "the agent's pod is not created yet".to_owned()),
        State::Replacing => (
            AgentPhase::Spawning,
            false,
            reasons::FOREIGN_POD,
            "a pod with the agent's name exists that the agent's status does not record. It is deleted first".to_owned(),
        ),
        State::Hindered(hindrance) | State::Pending(Some(hindrance)) => {
            (AgentPhase::Spawning, false, hindrance_reason(hindrance.kind), with_remedy(hindrance))
        }
        State::PoolMissing => (
            AgentPhase::Spawning,
            false,
            reasons::POOL_MISSING,
            "the agent's pool (spec.poolRef) does not exist any more, so the agent is deleted".to_owned(),
        ),
        State::Pending(None) => (AgentPhase::Spawning, false, reasons::POD_PENDING, "the agent's pod has not started yet".to_owned()),
        State::Running(doing) => running(doing),
        State::Unreachable | State::Missing(Verdict::Unknown) => (
            AgentPhase::Stale,
            false,
            reasons::NODE_UNREACHABLE,
            "the node of the agent's pod is unreachable, so it is unknown whether the pod's processes still run".to_owned(),
        ),
        State::Stopping => (AgentPhase::Goodbye, false, reasons::POD_STOPPING, "the agent's pod is being terminated".to_owned()),
        State::Hibernating => (
            AgentPhase::Goodbye,
            false,
            reasons::HIBERNATING,
            "there is no work for the agent, so its pod is deleted. Its volume is kept".to_owned(),
        ),
        State::Hibernated => (
            AgentPhase::Hibernated,
            false,
            reasons::HIBERNATED,
            "there is no work for the agent, so it has no pod. It keeps its name and its volume, and gets a pod when there is work"
                .to_owned(),
        ),
        State::Missing(Verdict::NotYet(_) | Verdict::Gone) => (
            AgentPhase::Goodbye,
            false,
            reasons::POD_MISSING,
            "the pod was deleted before the kubelet reported its end. It counts as ended when its node has been healthy for a minute"
                .to_owned(),
        ),
        State::Ended(AgentEnd::Succeeded) => {
            (AgentPhase::Stopped, false, reasons::POD_SUCCEEDED, "the program ended with exit code 0".to_owned())
        }
        State::Ended(AgentEnd::Failed(message)) => (AgentPhase::Stopped, false, reasons::POD_FAILED, message.clone()),
        State::Ended(AgentEnd::PodGone) => (AgentPhase::Stopped, false, reasons::POD_GONE, "the pod was deleted".to_owned()),
        State::Ended(AgentEnd::Goodbye) => {
            let said = stored.goodbye.as_ref().and_then(|goodbye| goodbye.reason.clone()).unwrap_or_default();
            (AgentPhase::Stopped, false, reasons::SAID_GOODBYE, said)
        }
    };
    Some((phase, ready, reason.to_owned(), message))
}

/// As [`describe`], for the states in which an agent outside the cluster differs, because it has no pod.
pub(super) fn describe_external(state: &State) -> Option<(AgentPhase, bool, String, String)> {
    let said = |phase, reason: &str, words: &str| Some((phase, false, reason.to_owned(), words.to_owned()));
    match state {
        State::Running(Activity::Registering) => {
            said(AgentPhase::Running, reasons::NOT_REGISTERED, "the agent's process has not registered with the gateway yet")
        }
        State::Running(Activity::Starting) => {
            said(AgentPhase::Running, reasons::PROCESS_NOT_READY, "the agent's process is registered, but its program is not ready to work")
        }
        State::Stopping => said(AgentPhase::Goodbye, reasons::PROCESS_LEAVING, "the agent's process was asked to stop"),
        State::Running(
            Activity::ForbiddenReachable(_) | Activity::PreflightFailed(_) | Activity::Idle | Activity::Active | Activity::Paused,
        )
        | State::Keep
        | State::Creating
        | State::Replacing
        | State::Hindered(_)
        | State::PoolMissing
        | State::Pending(_)
        | State::Unreachable
        | State::Hibernating
        | State::Hibernated
        | State::Condemned(_)
        | State::Missing(_)
        | State::Ended(_) => None,
    }
}

fn running(doing: &Activity) -> (AgentPhase, bool, &'static str, String) {
    let registered = |phase, words: &str| (phase, true, reasons::REGISTERED, words.to_owned());
    match doing {
        Activity::Starting => {
            (AgentPhase::Running, false, reasons::POD_NOT_READY, "the agent's pod runs, but its program is not ready to work".to_owned())
        }
        Activity::Registering => (
            AgentPhase::Running,
            false,
            reasons::NOT_REGISTERED,
            "the agent's pod runs, but has not registered with the gateway yet".to_owned(),
        ),
        Activity::ForbiddenReachable(reachable) => {
            let words = format!("the pod can reach {reachable}: its NetworkPolicy is not enforced yet, so the program does not start");
            (AgentPhase::Running, false, reasons::EGRESS_NOT_ENFORCED, words)
        }
        Activity::PreflightFailed(why) => (AgentPhase::Running, false, reasons::PREFLIGHT_FAILED, why.clone()),
        Activity::Idle => registered(AgentPhase::Idle, "the agent is registered and waits for work"),
        Activity::Active => registered(AgentPhase::Active, "the agent is registered and works"),
        Activity::Paused => registered(AgentPhase::Paused, "the agent is registered and paused. The condition Paused says why"),
    }
}

/// The message of a hindrance, and what a person can do. The API server, the scheduler and the kubelet say only what is
/// wrong.
fn with_remedy(hindrance: &Hindrance) -> String {
    let remedy = match hindrance.kind {
        HindranceKind::QuotaExceeded => "Raise the quota, run fewer agents, or request less in spec.agent.resources of the pool",
        HindranceKind::PodRefused => "Correct the spec of the pool, or the object that the message names",
        HindranceKind::Unschedulable => {
            "Add capacity to the nodes, or correct spec.scheduling or spec.agent.resources of the pool and delete this Agent"
        }
        HindranceKind::ImagePull => {
            "Correct spec.agent.image or spec.scheduling.imagePullSecrets of the pool, and delete this Agent"
        }
        HindranceKind::ContainerStart => "Correct spec.agent of the pool, and delete this Agent",
        // Our own messages say it.
        HindranceKind::BudgetExhausted
        | HindranceKind::ProjectLimit
        | HindranceKind::VolumeRefused
        | HindranceKind::MissingReference
        | HindranceKind::Unsupported
        | HindranceKind::NodeProfileMissing
        // A person need not act.
        | HindranceKind::NamespaceTerminating => return hindrance.message.clone(),
    };
    format!("{}. {remedy}", hindrance.message.trim_end_matches('.'))
}

/// Every kind of hindrance with the reason under which it is shown, on the Agent and as Blocked on its pool.
pub(super) const HINDRANCE_REASONS: [(HindranceKind, &str); 12] = [
    (HindranceKind::QuotaExceeded, reasons::QUOTA_EXCEEDED),
    (HindranceKind::BudgetExhausted, reasons::BUDGET_EXHAUSTED),
    (HindranceKind::ProjectLimit, reasons::PROJECT_LIMIT),
    (HindranceKind::NamespaceTerminating, reasons::NAMESPACE_TERMINATING),
    (HindranceKind::PodRefused, reasons::POD_REFUSED),
    (HindranceKind::VolumeRefused, reasons::VOLUME_REFUSED),
    (HindranceKind::MissingReference, reasons::MISSING_REFERENCE),
    (HindranceKind::Unsupported, reasons::UNSUPPORTED),
    (HindranceKind::NodeProfileMissing, reasons::NODE_PROFILE_MISSING),
    (HindranceKind::Unschedulable, reasons::UNSCHEDULABLE),
    (HindranceKind::ImagePull, reasons::IMAGE_PULL),
    (HindranceKind::ContainerStart, reasons::CONTAINER_START),
];

/// The reason under which a hindrance is shown.
pub fn hindrance_reason(kind: HindranceKind) -> &'static str {
    HINDRANCE_REASONS.iter().find(|(known, _)| *known == kind).map_or(reasons::POD_REFUSED, |(_, reason)| reason)
}

/// The hindrance that is shown under a reason.
pub fn hindrance_of(reason: &str) -> Option<HindranceKind> {
    HINDRANCE_REASONS.iter().find(|(_, known)| *known == reason).map(|(kind, _)| *kind)
}
