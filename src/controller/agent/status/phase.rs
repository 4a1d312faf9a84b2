//! Phase and readiness of an Agent, from its state, and the reasons under which hindrances are shown. Builds no condition.

use crate::api::AgentStatus;
use crate::api::agent::AgentPhase;
use crate::api::conditions::{reasons, types};
use crate::controller::agent::supervise;
use crate::controller::conditions::find;
use crate::policy::agent::{Activity, AgentEnd, HindranceKind, State};
use crate::policy::pod_termination::Verdict;

/// Phase, readiness, reason and words of a state; `None`: what is stored stays.
pub(super) fn describe(state: &State, stored: &AgentStatus) -> Option<(AgentPhase, bool, String, String)> {
    let (phase, ready, reason, message) = match state {
        State::Keep | State::Condemned(None) => return None,
        State::Condemned(Some((why, message))) => (AgentPhase::Stale, false, supervise::reason(*why), message.clone()),
        // Why is stored since it was decided.
        State::Ended(AgentEnd::Forced) => {
            let given_up = find(&stored.conditions, types::GIVEN_UP)?;
            return Some((AgentPhase::ForceStopped, false, given_up.reason.clone(), given_up.message.clone()));
        }
        State::Creating => (AgentPhase::Spawning, false, reasons::POD_CREATING, "the pod is about to be made".to_owned()),
        State::Replacing => (
            AgentPhase::Spawning,
            false,
            reasons::FOREIGN_POD,
            "a pod of this name that we have no record of is being removed first".to_owned(),
        ),
        State::Hindered(hindrance) | State::Pending(Some(hindrance)) => {
            (AgentPhase::Spawning, false, hindrance_reason(hindrance.kind), hindrance.message.clone())
        }
        State::PoolMissing => (AgentPhase::Spawning, false, reasons::POOL_MISSING, "its pool does not exist any more".to_owned()),
        State::Pending(None) => (AgentPhase::Spawning, false, reasons::POD_PENDING, "the pod has not started yet".to_owned()),
        State::Running(doing) => running(doing),
        State::Unreachable | State::Missing(Verdict::Unknown) => (
            AgentPhase::Stale,
            false,
            reasons::NODE_UNREACHABLE,
            "its node is not heard of: whether its processes run is not known".to_owned(),
        ),
        State::Stopping => (AgentPhase::Goodbye, false, reasons::POD_STOPPING, "the pod is being ended".to_owned()),
        State::Hibernating => (
            AgentPhase::Goodbye,
            false,
            reasons::HIBERNATING,
            "there is no work for it: its pod is given back, its volume is kept".to_owned(),
        ),
        State::Hibernated => (
            AgentPhase::Hibernated,
            false,
            reasons::HIBERNATED,
            "there is no work for it: it has no pod, and keeps its name and its volume until there is".to_owned(),
        ),
        State::Missing(Verdict::NotYet(_) | Verdict::Gone) => (
            AgentPhase::Goodbye,
            false,
            reasons::POD_MISSING,
            "the pod's object disappeared without a report that its processes ended; its healthy node proves that in a minute".to_owned(),
        ),
        State::Ended(AgentEnd::Succeeded) => {
            (AgentPhase::Stopped, false, reasons::POD_SUCCEEDED, "the program ended with success".to_owned())
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

/// The same of an agent outside the cluster, where it differs: it has no pod of which anything could be said.
pub(super) fn describe_external(state: &State) -> Option<(AgentPhase, bool, String, String)> {
    let said = |phase, reason: &str, words: &str| Some((phase, false, reason.to_owned(), words.to_owned()));
    match state {
        State::Running(Activity::Registering) => {
            said(AgentPhase::Running, reasons::NOT_REGISTERED, "its process has its Agent and has not registered with the gateway yet")
        }
        State::Running(Activity::Starting) => {
            said(AgentPhase::Running, reasons::PROCESS_NOT_READY, "its process is registered and its program is not ready to work")
        }
        State::Stopping => said(AgentPhase::Goodbye, reasons::PROCESS_LEAVING, "its process is told to leave"),
        State::Running(Activity::WallsDown(_) | Activity::PreflightFailed(_) | Activity::Idle | Activity::Active | Activity::Paused)
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
            (AgentPhase::Running, false, reasons::POD_NOT_READY, "the pod runs and its program is not ready to work".to_owned())
        }
        Activity::Registering => {
            (AgentPhase::Running, false, reasons::NOT_REGISTERED, "the pod runs and has not registered with the gateway yet".to_owned())
        }
        Activity::WallsDown(reachable) => {
            let words =
                format!("{reachable} can be reached from the pod: its NetworkPolicy is not enforced (yet), so its program is held back");
            (AgentPhase::Running, false, reasons::EGRESS_NOT_ENFORCED, words)
        }
        Activity::PreflightFailed(why) => (AgentPhase::Running, false, reasons::PREFLIGHT_FAILED, why.clone()),
        Activity::Idle => registered(AgentPhase::Idle, "it is registered and waits for work"),
        Activity::Active => registered(AgentPhase::Active, "it works"),
        Activity::Paused => registered(AgentPhase::Paused, "it is held"),
    }
}

/// Every kind of hindrance with the reason under which it is shown, on the Agent and as Blocked on its pool.
pub(super) const HINDRANCE_REASONS: [(HindranceKind, &str); 11] = [
    (HindranceKind::QuotaExceeded, reasons::QUOTA_EXCEEDED),
    (HindranceKind::BudgetExhausted, reasons::BUDGET_EXHAUSTED),
    (HindranceKind::ProjectLimit, reasons::PROJECT_LIMIT),
    (HindranceKind::NamespaceTerminating, reasons::NAMESPACE_TERMINATING),
    (HindranceKind::PodRefused, reasons::POD_REFUSED),
    (HindranceKind::VolumeRefused, reasons::VOLUME_REFUSED),
    (HindranceKind::MissingReference, reasons::MISSING_REFERENCE),
    (HindranceKind::Unsupported, reasons::UNSUPPORTED),
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
