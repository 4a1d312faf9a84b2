//! The status of an Agent, from its state: the one place where states become phases and conditions. Pure.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::api::agent::{AgentPhase, PodRef};
use crate::api::conditions::{reasons, types};
use crate::api::{Agent, AgentStatus};
use crate::controller::conditions::{Builder, find};
use crate::policy::agent::{End, HindranceKind, State};
use crate::policy::presence::Verdict;

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

/// The status to store, or `None` if the stored one says it all.
pub fn next(agent: &Agent, told: &Told<'_>) -> Option<AgentStatus> {
    let stored = agent.status.clone().unwrap_or_default();
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
        let status = pod.status.as_ref();
        let container = status
            .and_then(|status| status.container_statuses.as_ref()?.iter().find(|container| container.name == super::build::CONTAINER));
        next.node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).or(next.node);
        next.container_id =
            container.and_then(|container| container.container_id.clone()).filter(|id| !id.is_empty()).or(next.container_id);
        next.start_time =
            container.and_then(|container| container.state.as_ref()?.running.as_ref()?.started_at.clone()).or(next.start_time);
    }
    if phase.ended() && next.stop_time.is_none() {
        next.stop_time = Some(Time(told.now));
    }
    if next == stored {
        return None;
    }
    next.governor_epoch = Some(told.epoch);
    Some(next)
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

/// The reason under which a hindrance is shown, on the Agent and as Blocked on its pool.
pub fn hindrance_reason(kind: HindranceKind) -> &'static str {
    match kind {
        HindranceKind::QuotaExceeded => reasons::QUOTA_EXCEEDED,
        HindranceKind::NamespaceTerminating => reasons::NAMESPACE_TERMINATING,
        HindranceKind::PodRefused => reasons::POD_REFUSED,
        HindranceKind::MissingReference => reasons::MISSING_REFERENCE,
        HindranceKind::Unsupported => reasons::UNSUPPORTED,
        HindranceKind::Unschedulable => reasons::UNSCHEDULABLE,
        HindranceKind::ImagePull => reasons::IMAGE_PULL,
        HindranceKind::ContainerStart => reasons::CONTAINER_START,
    }
}

/// What is worth an event: an Agent that failed or cannot start, when it begins.
pub fn news(stored: Option<&AgentStatus>, next: &AgentStatus) -> Option<(&'static str, String)> {
    let now = find(&next.conditions, types::READY)?;
    let before = stored.and_then(|stored| find(&stored.conditions, types::READY)).map(|condition| condition.reason.as_str());
    let trouble = [
        reasons::QUOTA_EXCEEDED,
        reasons::POD_REFUSED,
        reasons::UNSCHEDULABLE,
        reasons::IMAGE_PULL,
        reasons::CONTAINER_START,
        reasons::POD_FAILED,
        reasons::NODE_UNREACHABLE,
        reasons::POD_MISSING,
    ];
    let reason = trouble.into_iter().find(|reason| *reason == now.reason)?;
    (before != Some(reason)).then(|| (reason, now.message.clone()))
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
    fn told(state: &State) -> Told<'_> {
        Told { state, pod: None, made: None, epoch: 7, now: jiff::Timestamp::from_second(100).expect("a time") }
    }

    #[test]
    fn nothing_new_is_nothing_to_write_whatever_the_epoch() {
        let mut agent = agent();
        agent.status = next(&agent, &told(&State::Pending(None)));
        assert!(agent.status.is_some());
        let state = State::Pending(None);
        let later = Told { epoch: 99, now: jiff::Timestamp::from_second(200).expect("a time"), ..told(&state) };
        assert_eq!(next(&agent, &later), None);
    }

    #[test]
    fn the_recorded_pod_is_kept_and_the_epoch_is_ours() {
        let pod = PodRef { name: "a".into(), uid: "u".into() };
        let mut agent = agent();
        let state = State::Pending(None);
        let first = next(&agent, &Told { made: Some(&pod), ..told(&state) }).expect("news");
        assert_eq!((first.pod_ref.as_ref(), first.governor_epoch, first.observed_generation), (Some(&pod), Some(7), Some(3)));
        agent.status = Some(first);
        let second = next(&agent, &told(&State::Running { ready: true })).expect("news");
        assert_eq!(second.pod_ref, Some(pod));
    }

    #[test]
    fn the_end_has_a_time_and_a_reason() {
        let ended = next(&agent(), &told(&State::Ended(End::Failed("OOMKilled".into())))).expect("news");
        assert_eq!((ended.phase, ended.stop_time.is_some()), (Some(AgentPhase::Stopped), true));
        assert_eq!(news(None, &ended), Some((reasons::POD_FAILED, "OOMKilled".into())));
        assert_eq!(news(Some(&ended), &ended), None, "told once");
    }

    #[test]
    fn what_hinders_is_shown_under_its_reason() {
        let state = State::Hindered(Hindrance { kind: HindranceKind::QuotaExceeded, message: "exceeded quota: q".into() });
        let status = next(&agent(), &told(&state)).expect("news");
        let ready = find(&status.conditions, types::READY).expect("Ready");
        assert_eq!((ready.status.as_str(), ready.reason.as_str(), ready.message.as_str()), ("False", "QuotaExceeded", "exceeded quota: q"));
    }
}
