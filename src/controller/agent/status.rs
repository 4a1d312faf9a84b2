//! The status of an Agent, from its state: the one place where states become phases and conditions. Pure.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::api::agent::{AgentPhase, PodRef};
use crate::api::conditions::{reasons, types};
use crate::api::{Agent, AgentStatus};
use crate::controller::conditions::{Builder, find, with_old_words};
use crate::policy::agent::{End, HindranceKind, State};
use crate::policy::presence::Verdict;
use crate::policy::publish::Change;

/// What there is to tell.
pub struct Told<'a> {
    /// The state.
    pub state: &'a State,
    /// The recorded pod, if it is there.
    pub pod: Option<&'a Pod>,
    /// The pod that was just made.
    pub made: Option<&'a PodRef>,
    /// Our owner epoch.
    pub epoch: i64,
    /// Now.
    pub now: jiff::Timestamp,
}

/// The status to apply, with what it changes, or `None` if the stored one says it all. Only our own fields are in it: what
/// other writers own is neither compared nor written.
pub fn next(agent: &Agent, told: &Told<'_>) -> Option<(AgentStatus, Change)> {
    let stored = own(agent.status.as_ref());
    let (phase, ready, reason, message) = describe(told.state)?;
    let generation = agent.metadata.generation.unwrap_or(0);
    let conditions = Builder { stored: &stored.conditions, generation, now: told.now };
    let mut next = AgentStatus {
        observed_generation: Some(generation),
        phase: Some(phase),
        pod_ref: told.made.cloned().or_else(|| stored.pod_ref.clone()),
        conditions: vec![
            conditions.build(types::READY, ready, reason, message),
            conditions.with_status(
                types::SANDBOX_ENFORCED,
                "Unknown",
                reasons::NOT_REPORTED,
                "the pod does not report its sandbox in this version",
            ),
        ],
        ..stored.clone()
    };
    if let Some(pod) = told.pod {
        let container = pod
            .status
            .as_ref()
            .and_then(|status| status.container_statuses.as_ref()?.iter().find(|one| one.name == super::build::CONTAINER));
        next.node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).or(next.node);
        next.container_id =
            container.and_then(|container| container.container_id.clone()).filter(|id| !id.is_empty()).or(next.container_id);
        next.start_time = container.and_then(started).or(next.start_time);
    }
    if phase.ended() && next.stop_time.is_none() {
        next.stop_time = Some(Time(told.now));
    }
    let change = if next == stored {
        return None;
    } else if (AgentStatus { conditions: with_old_words(&next.conditions, &stored.conditions), ..next.clone() }) == stored {
        Change::Counts // only words changed: a count in a quota's message, a back-off that goes on
    } else {
        Change::State
    };
    next.governor_epoch = Some(told.epoch);
    Some((next, change))
}

/// When the program started, also if it has ended since.
fn started(container: &ContainerStatus) -> Option<Time> {
    let state = container.state.as_ref()?;
    let running = state.running.as_ref().and_then(|running| running.started_at.clone());
    running.or_else(|| state.terminated.as_ref().and_then(|terminated| terminated.started_at.clone()))
}

/// What of a status this controller owns.
fn own(status: Option<&AgentStatus>) -> AgentStatus {
    let Some(status) = status else { return AgentStatus::default() };
    let ours = |condition: &&Condition| [types::READY, types::SANDBOX_ENFORCED].contains(&condition.type_.as_str());
    AgentStatus {
        observed_generation: status.observed_generation,
        phase: status.phase,
        pod_ref: status.pod_ref.clone(),
        node: status.node.clone(),
        container_id: status.container_id.clone(),
        start_time: status.start_time.clone(),
        stop_time: status.stop_time.clone(),
        governor_epoch: status.governor_epoch,
        conditions: status.conditions.iter().filter(ours).cloned().collect(),
        ..AgentStatus::default()
    }
}

/// Phase, readiness, reason and words of a state; `None`: what is stored stays.
fn describe(state: &State) -> Option<(AgentPhase, bool, &'static str, String)> {
    let told = match state {
        State::Keep => return None,
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
        State::Running { ready: true } => (AgentPhase::Running, true, reasons::POD_RUNNING, "the pod runs and is ready".to_owned()),
        State::Running { ready: false } => (AgentPhase::Running, false, reasons::POD_NOT_READY, "the pod runs and is not ready".to_owned()),
        State::Unreachable | State::Missing(Verdict::Unknown) => (
            AgentPhase::Stale,
            false,
            reasons::NODE_UNREACHABLE,
            "its node is not heard of: whether its processes run is not known".to_owned(),
        ),
        State::Stopping => (AgentPhase::Goodbye, false, reasons::POD_STOPPING, "the pod is being ended".to_owned()),
        State::Missing(Verdict::NotYet(_) | Verdict::Gone) => (
            AgentPhase::Goodbye,
            false,
            reasons::POD_MISSING,
            "the pod's object disappeared without a report that its processes ended; its healthy node proves that in a minute".to_owned(),
        ),
        State::Ended(End::Succeeded) => (AgentPhase::Stopped, false, reasons::POD_SUCCEEDED, "the program ended with success".to_owned()),
        State::Ended(End::Failed(message)) => (AgentPhase::Stopped, false, reasons::POD_FAILED, message.clone()),
        State::Ended(End::PodGone) => (AgentPhase::Stopped, false, reasons::POD_GONE, "the pod was deleted".to_owned()),
    };
    Some(told)
}

/// Every kind of hindrance with the reason under which it is shown, on the Agent and as Blocked on its pool.
const HINDRANCES: [(HindranceKind, &str); 8] = [
    (HindranceKind::QuotaExceeded, reasons::QUOTA_EXCEEDED),
    (HindranceKind::NamespaceTerminating, reasons::NAMESPACE_TERMINATING),
    (HindranceKind::PodRefused, reasons::POD_REFUSED),
    (HindranceKind::MissingReference, reasons::MISSING_REFERENCE),
    (HindranceKind::Unsupported, reasons::UNSUPPORTED),
    (HindranceKind::Unschedulable, reasons::UNSCHEDULABLE),
    (HindranceKind::ImagePull, reasons::IMAGE_PULL),
    (HindranceKind::ContainerStart, reasons::CONTAINER_START),
];

/// The reason under which a hindrance is shown.
pub fn hindrance_reason(kind: HindranceKind) -> &'static str {
    HINDRANCES.iter().find(|(known, _)| *known == kind).map_or(reasons::POD_REFUSED, |(_, reason)| reason)
}

/// The hindrance that is shown under a reason.
pub fn hindrance_of(reason: &str) -> Option<HindranceKind> {
    HINDRANCES.iter().find(|(_, known)| *known == reason).map(|(kind, _)| *kind)
}

/// What is worth an event: an Agent that failed or cannot start, when it begins.
pub fn news(stored: Option<&AgentStatus>, next: &AgentStatus) -> Option<(String, String)> {
    let now = find(&next.conditions, types::READY)?;
    let before = stored.and_then(|stored| find(&stored.conditions, types::READY)).map(|condition| condition.reason.as_str());
    let trouble = hindrance_of(&now.reason).is_some()
        || [reasons::POD_FAILED, reasons::NODE_UNREACHABLE, reasons::POD_MISSING].contains(&now.reason.as_str());
    let reason = now.reason.clone();
    (trouble && before != Some(reason.as_str())).then(|| (reason, now.message.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::AgentSpec;
    use crate::policy::agent::Hindrance;

    fn agent() -> Agent {
        let mut agent = Agent::new(
            "a",
            AgentSpec {
                pool_ref: Default::default(),
                display_name: None,
                sequence: None,
                parent_ref: None,
                manual: None,
                paused: None,
                resume_pause: None,
                resources: None,
            },
        );
        agent.metadata.generation = Some(3);
        agent
    }
    fn written(agent: &Agent, told: &Told<'_>) -> AgentStatus {
        next(agent, told).expect("news").0
    }
    fn told(state: &State) -> Told<'_> {
        Told { state, pod: None, made: None, epoch: 7, now: jiff::Timestamp::from_second(100).expect("a time") }
    }

    #[test]
    fn nothing_new_is_nothing_to_write_whatever_the_epoch() {
        let mut agent = agent();
        agent.status = Some(written(&agent, &told(&State::Pending(None))));
        let state = State::Pending(None);
        let later = Told { epoch: 99, now: jiff::Timestamp::from_second(200).expect("a time"), ..told(&state) };
        assert_eq!(next(&agent, &later), None);
    }

    #[test]
    fn the_recorded_pod_is_kept_and_the_epoch_is_ours() {
        let pod = PodRef { name: "a".into(), uid: "u".into() };
        let mut agent = agent();
        let state = State::Pending(None);
        let first = written(&agent, &Told { made: Some(&pod), ..told(&state) });
        assert_eq!((first.pod_ref.as_ref(), first.governor_epoch, first.observed_generation), (Some(&pod), Some(7), Some(3)));
        agent.status = Some(first);
        let second = written(&agent, &told(&State::Running { ready: true }));
        assert_eq!(second.pod_ref, Some(pod));
    }

    #[test]
    fn the_end_has_a_time_and_a_reason() {
        let ended = written(&agent(), &told(&State::Ended(End::Failed("OOMKilled".into()))));
        assert_eq!((ended.phase, ended.stop_time.is_some()), (Some(AgentPhase::Stopped), true));
        assert_eq!(news(None, &ended), Some((reasons::POD_FAILED.into(), "OOMKilled".into())));
        assert_eq!(news(Some(&ended), &ended), None, "told once");
    }

    #[test]
    fn what_others_own_is_neither_compared_nor_written() {
        let mut agent = agent();
        let state = State::Pending(None);
        let mut stored = written(&agent, &told(&state));
        stored.current_action = Some("somebody else's".into());
        stored.conditions.push(Builder { stored: &[], generation: 3, now: jiff::Timestamp::UNIX_EPOCH }.build(
            "Heartbeating",
            true,
            "A",
            "",
        ));
        agent.status = Some(stored);
        assert_eq!(next(&agent, &told(&state)), None);
        let changed = written(&agent, &told(&State::Running { ready: true }));
        assert_eq!((changed.current_action, changed.conditions.len()), (None, 2));
    }

    #[test]
    fn words_alone_may_wait() {
        let mut agent = agent();
        let quota = |used: u32| State::Hindered(Hindrance { kind: HindranceKind::QuotaExceeded, message: format!("used: pods={used}") });
        agent.status = Some(written(&agent, &told(&quota(2))));
        assert_eq!(next(&agent, &told(&quota(3))).map(|(_, change)| change), Some(Change::Counts));
    }

    #[test]
    fn every_hindrance_has_a_reason_of_its_own() {
        for (kind, reason) in HINDRANCES {
            assert_eq!((hindrance_reason(kind), hindrance_of(reason)), (reason, Some(kind)));
        }
    }

    #[test]
    fn what_hinders_is_shown_under_its_reason() {
        let state = State::Hindered(Hindrance { kind: HindranceKind::QuotaExceeded, message: "exceeded quota: q".into() });
        let status = written(&agent(), &told(&state));
        let ready = find(&status.conditions, types::READY).expect("Ready");
        assert_eq!((ready.status.as_str(), ready.reason.as_str(), ready.message.as_str()), ("False", "QuotaExceeded", "exceeded quota: q"));
    }
}
