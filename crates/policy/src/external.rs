//! An agent outside the cluster has a process instead of a pod. This module describes that process as a pod. Spillway
//! cannot observe the process: it knows only its reports, and whether its calls are still accepted.
//!
//! What always holds: the process counts as gone only if its calls are refused, or if it was to leave and has reported
//! that nothing of it is left, or has had the time to leave. No pod is ever made for it.

use std::time::Duration;

use crate::agent::{Pod, PodObservation, Stage};
use crate::node_liveness::NodeReach;
use crate::pod_termination::Verdict;

/// Time after the grace period, for its last report.
pub const FINAL_REPORT_GRACE: Duration = Duration::from_secs(10);

/// The facts about the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its end is stored, by force or otherwise. All its calls are refused.
    pub over: bool,
    /// For how long it has had to leave: it said goodbye, or its Agent is being deleted.
    pub leaving: Option<Duration>,
    /// How long it may take to leave.
    pub grace: Duration,
    /// It reported that nothing of its program is left.
    pub ended: bool,
}

/// The process as a pod.
pub fn to_pod(process: &Process) -> Pod {
    let Process { over, leaving, grace, ended } = *process;
    let left = leaving.is_some_and(|leaving| ended || leaving >= grace.saturating_add(FINAL_REPORT_GRACE));
    if over || left {
        return Pod::Absent(Verdict::Gone);
    }
    // Its node is not known, so its silence is always its own.
    let stage = Stage::Running { ready: true };
    Pod::Ours(PodObservation { stage, deleting: leaving.is_some(), node: NodeReach::Heard, overdue: false })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::{Activity, AgentEnd, Facts, GiveUpReason, Life, Sleep, Spawn, State, Step, plan};
    use crate::preflight;
    use proptest::prelude::*;

    const GRACE: Duration = Duration::from_secs(15);

    fn process(leaving: Option<u64>, ended: bool) -> Process {
        Process { over: false, leaving: leaving.map(Duration::from_secs), grace: GRACE, ended }
    }

    fn facts(process: Process, give_up: Option<GiveUpReason>) -> Facts {
        let life = Life {
            registered: true,
            started: true,
            active: true,
            paused: false,
            forbidden_reachable: None,
            preflight: preflight::Verdict::Passed,
            start_overdue: false,
            give_up: give_up.map(|why| (why, "m".to_owned())),
        };
        Facts {
            deleting: false,
            finalizer: true,
            owned: true,
            ended: false,
            recorded: true,
            pod: to_pod(&process),
            spawn: Spawn::Possible,
            goodbye: process.leaving.is_some(),
            condemned: process.over,
            sleep: Sleep::No,
            life,
        }
    }

    #[test]
    fn it_works_leaves_and_is_gone_when_it_says_so_or_had_its_time() {
        assert_eq!(plan(&facts(process(None, false), None)), (Step::None, State::Running(Activity::Active)));
        assert_eq!(plan(&facts(process(Some(0), false), None)), (Step::None, State::Stopping));
        assert_eq!(plan(&facts(process(Some(24), false), None)), (Step::None, State::Stopping));
        let gone = (Step::None, State::Ended(AgentEnd::Goodbye));
        assert_eq!(plan(&facts(process(Some(25), false), None)), gone, "its grace and a little more");
        assert_eq!(plan(&facts(process(Some(0), true), None)), gone, "it said so");
        assert_eq!(plan(&facts(process(None, true), None)).1, State::Running(Activity::Active), "its goodbye is on its way");
    }

    #[test]
    fn it_is_given_up_for_its_silence_alone_and_gone_when_that_is_stored() {
        let silent = plan(&facts(process(None, false), Some(GiveUpReason::HeartbeatLost)));
        assert_eq!(silent, (Step::None, State::Condemned(Some((GiveUpReason::HeartbeatLost, "m".into())))), "stored first");
        let stored = Process { over: true, ..process(None, false) };
        assert_eq!(plan(&facts(stored, None)), (Step::None, State::Ended(AgentEnd::Forced)));
    }

    #[test]
    fn a_deleted_agent_keeps_its_finalizer_until_its_process_had_its_time() {
        let deleted = |process| plan(&Facts { deleting: true, goodbye: false, ..facts(process, None) }).0;
        assert_eq!(deleted(process(Some(1), false)), Step::None);
        assert_eq!(deleted(process(Some(1), true)), Step::RemoveFinalizer);
        assert_eq!(deleted(process(Some(25), false)), Step::RemoveFinalizer);
    }

    proptest! {
        /// With any facts, no pod is made, and no pod that has its name is touched.
        #[test]
        fn it_never_gets_a_pod(over: bool, leaving in proptest::option::of(0u64..100), ended: bool, deleting: bool, was: bool) {
            let process = Process { over, ..process(leaving, ended) };
            let (step, _) = plan(&Facts { deleting, ended: was, ..facts(process, None) });
            prop_assert!(!matches!(step, Step::CreatePod | Step::DeleteForeignPod | Step::ForcePod), "{step:?}");
        }
    }
}
