//! The life of one agent, step by step.

use super::*;

fn facts(recorded: bool, pod: Pod) -> Facts {
    Facts {
        deleting: false,
        finalizer: true,
        owned: true,
        ended: false,
        recorded,
        pod,
        spawn: Spawn::Possible,
        goodbye: false,
        condemned: false,
        sleep: Sleep::No,
        life: life(),
    }
}
fn life() -> Life {
    Life {
        registered: true,
        started: true,
        active: false,
        paused: false,
        forbidden_reachable: None,
        preflight: preflight::Verdict::Passed,
        start_overdue: false,
        give_up: None,
    }
}
fn running(life: Life) -> Facts {
    Facts { life, ..facts(true, ours(Stage::Running { ready: true })) }
}
fn ours(stage: Stage) -> Pod {
    Pod::Ours(PodObservation { stage, deleting: false, node: NodeReach::Heard, overdue: false })
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
    assert_eq!(plan(&facts(true, Pod::Absent(Verdict::Gone))).1, State::Ended(AgentEnd::PodGone));
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
    let stopping =
        Pod::Ours(PodObservation { stage: Stage::Running { ready: true }, deleting: true, node: NodeReach::Heard, overdue: false });
    assert_eq!(plan(&deleting(true, stopping)).0, Step::None);
    let unreachable =
        Pod::Ours(PodObservation { stage: Stage::Running { ready: true }, deleting: true, node: NodeReach::Unreachable, overdue: false });
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
fn an_agent_goes_to_sleep_only_after_that_is_stored_and_with_its_grace() {
    let wanted = Facts { sleep: Sleep::Wanted, ..running(life()) };
    assert_eq!(plan(&wanted), (Step::None, State::Hibernating), "stored before its pod is touched");
    let begun = Facts { sleep: Sleep::Begun, ..wanted.clone() };
    assert_eq!(plan(&begun), (Step::DeletePod, State::Hibernating));
    let at = |overdue| Pod::Ours(PodObservation { stage: Stage::Running { ready: true }, deleting: true, node: NodeReach::Heard, overdue });
    assert_eq!(plan(&Facts { pod: at(false), ..begun.clone() }), (Step::None, State::Hibernating));
    assert_eq!(plan(&Facts { pod: at(true), ..begun.clone() }), (Step::ForcePod, State::Hibernating));
    assert_eq!(plan(&Facts { pod: ABSENT, ..begun.clone() }), (Step::None, State::Hibernated));
    assert_eq!(plan(&Facts { pod: Pod::Absent(Verdict::Unknown), ..begun }).1, State::Missing(Verdict::Unknown), "it may run still");
}

#[test]
fn who_holds_something_or_is_held_does_not_go_to_sleep() {
    let wanted = |life: Life| plan(&Facts { sleep: Sleep::Wanted, ..running(life) }).1;
    assert_eq!(wanted(Life { active: true, ..life() }), State::Running(Activity::Active));
    assert_eq!(wanted(Life { paused: true, ..life() }), State::Running(Activity::Paused));
    for leaves in [Facts { goodbye: true, ..running(life()) }, Facts { condemned: true, ..running(life()) }] {
        let sleepy = Facts { sleep: Sleep::Begun, ..leaves.clone() };
        assert_eq!(plan(&sleepy), plan(&leaves), "its end was stored before");
        let gone = plan(&Facts { pod: ABSENT, ..sleepy }).1;
        assert!(matches!(gone, State::Ended(AgentEnd::Goodbye | AgentEnd::Forced)), "{gone:?}");
    }
}

#[test]
fn how_a_program_takes_it_that_its_pod_is_given_back_says_nothing() {
    for stage in [Stage::Succeeded, Stage::Failed("exit code 143".into())] {
        let shown = |deleting, node| PodObservation { stage: stage.clone(), deleting, node, overdue: false };
        let of = |shown, sleep| plan(&Facts { sleep, ..facts(true, Pod::Ours(shown)) });
        assert_eq!(of(shown(true, NodeReach::Heard), Sleep::Begun), (Step::None, State::Hibernating), "its object has the name");
        assert_eq!(of(shown(false, NodeReach::Heard), Sleep::Begun), (Step::DeletePod, State::Hibernating), "it went when it was told to");
        assert_eq!(of(shown(true, NodeReach::Unreachable), Sleep::Begun), (Step::None, State::Unreachable), "it holds no place for ever");
        let by_itself = of(shown(false, NodeReach::Heard), Sleep::Wanted);
        assert!(
            matches!(by_itself, (Step::None, State::Ended(AgentEnd::Succeeded | AgentEnd::Failed(_)))),
            "nobody had asked: {by_itself:?}"
        );
    }
}

#[test]
fn one_that_sleeps_gets_a_pod_when_it_is_woken_and_not_before() {
    for verdict in [Verdict::Gone, Verdict::Unknown] {
        let asleep = Facts { sleep: Sleep::Wanted, ..facts(false, Pod::Absent(verdict)) };
        assert_eq!(plan(&asleep), (Step::None, State::Hibernated));
        assert_eq!(plan(&Facts { sleep: Sleep::No, ..asleep.clone() }).0, Step::CreatePod);
        assert_eq!(plan(&Facts { deleting: true, ..asleep }).0, Step::RemoveFinalizer, "nothing is waited for");
    }
    let found = Facts { sleep: Sleep::Wanted, ..facts(false, Pod::Foreign) };
    assert_eq!(plan(&found).0, Step::DeleteForeignPod, "one that was made and not recorded before it was put to sleep");
}

#[test]
fn a_pool_that_changes_its_mind_meanwhile_gets_its_agent_back_all_the_same() {
    // The pool wants the agent awake again while its pod is leaving. The hibernation is completed, and then the agent
    // wakes.
    let leaving = Facts { sleep: Sleep::Begun, ..facts(true, ABSENT) };
    assert_eq!(plan(&leaving).1, State::Hibernated);
    assert_eq!(plan(&Facts { sleep: Sleep::No, recorded: false, ..leaving }).0, Step::CreatePod);
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
        let pod = Pod::Ours(PodObservation { stage, deleting: true, node: NodeReach::Heard, overdue: false });
        assert_eq!(plan(&facts(true, pod)).1, State::Ended(AgentEnd::PodGone));
    }
}

#[test]
fn an_unreachable_node_is_said_before_anything_else_of_a_living_pod() {
    let pod =
        Pod::Ours(PodObservation { stage: Stage::Running { ready: true }, deleting: true, node: NodeReach::Unreachable, overdue: false });
    assert_eq!(plan(&facts(true, pod)).1, State::Unreachable);
}

#[test]
fn on_a_node_that_is_silent_with_others_nobody_is_replaced_or_given_up() {
    let on = |node, deleting, overdue| Pod::Ours(PodObservation { stage: Stage::Running { ready: false }, deleting, node, overdue });
    let silent = || on(NodeReach::Silent, false, false);
    assert_eq!(plan(&facts(true, silent())), (Step::None, State::Running(Activity::Idle)), "it counts as before");
    let why = Some((GiveUpReason::LeaseExpired, "silent for 60 s".to_owned()));
    let give_up = |node| plan(&Facts { life: Life { give_up: why.clone(), ..life() }, ..facts(true, on(node, false, false)) });
    assert_eq!(give_up(NodeReach::Heard).1, State::Condemned(why.clone()));
    assert_eq!(give_up(NodeReach::Silent), (Step::None, State::Running(Activity::Idle)));
    for stage in [Stage::Running { ready: false }, Stage::Pending(None)] {
        let pod = Pod::Ours(PodObservation { stage, deleting: false, node: NodeReach::Silent, overdue: false });
        let (step, state) = plan(&Facts { life: Life { start_overdue: true, ..life() }, ..facts(true, pod) });
        assert!(step == Step::None && !matches!(state, State::Condemned(_)), "{state:?}");
    }
    // A silent kubelet does not receive a shorter grace period. A stored decision is still sent, once.
    let leaving = || on(NodeReach::Silent, true, true);
    assert_eq!(plan(&Facts { goodbye: true, ..facts(true, leaving()) }), (Step::None, State::Stopping));
    assert_eq!(plan(&Facts { deleting: true, ..facts(true, leaving()) }), (Step::None, State::Stopping));
    assert_eq!(plan(&Facts { condemned: true, ..facts(true, leaving()) }), (Step::None, State::Condemned(None)));
    assert_eq!(plan(&Facts { condemned: true, ..facts(true, silent()) }), (Step::ForcePod, State::Condemned(None)));
}

#[test]
fn a_running_agent_is_what_its_reports_say() {
    let of = |life: Life| match plan(&running(life)) {
        (Step::None, State::Running(doing)) => doing,
        other => panic!("{other:?}"),
    };
    assert_eq!(of(Life { registered: false, ..life() }), Activity::Registering);
    assert_eq!(of(Life { started: false, ..life() }), Activity::Starting, "its walls were not looked at yet");
    assert_eq!(of(life()), Activity::Idle);
    assert_eq!(of(Life { active: true, ..life() }), Activity::Active);
    assert_eq!(of(Life { active: true, paused: true, ..life() }), Activity::Paused);
    let failed = || preflight::Verdict::Failed("no login".into());
    assert_eq!(of(Life { preflight: failed(), ..life() }), Activity::PreflightFailed("no login".into()));
    assert_eq!(of(Life { preflight: preflight::Verdict::Pending, ..life() }), Activity::Starting);
    assert_eq!(of(Life { preflight: failed(), active: true, ..life() }), Activity::Active, "what it holds it may finish");
    assert_eq!(of(Life { preflight: failed(), paused: true, ..life() }), Activity::Paused);
    assert_eq!(
        of(Life { forbidden_reachable: Some("10.0.0.1:443".into()), ..life() }),
        Activity::ForbiddenReachable("10.0.0.1:443".into())
    );
}

#[test]
fn an_agent_at_work_is_not_starting_whatever_a_kubelet_that_came_again_says_of_its_pod() {
    let of = |life: Life| plan(&Facts { life, ..facts(true, ours(Stage::Running { ready: false })) }).1;
    assert_eq!(of(life()), State::Running(Activity::Idle));
    assert_eq!(of(Life { active: true, ..life() }), State::Running(Activity::Active));
    assert_eq!(of(Life { registered: false, started: false, ..life() }), State::Running(Activity::Starting));
    assert_eq!(of(Life { started: false, ..life() }), State::Running(Activity::Starting));
}

#[test]
fn a_stored_goodbye_ends_the_pod_with_its_grace_and_then_by_force() {
    let said = Facts { goodbye: true, ..running(life()) };
    assert_eq!(plan(&said), (Step::DeletePod, State::Stopping));
    let at = |overdue| Pod::Ours(PodObservation { stage: Stage::Running { ready: true }, deleting: true, node: NodeReach::Heard, overdue });
    assert_eq!(plan(&Facts { pod: at(false), ..said.clone() }), (Step::None, State::Stopping));
    assert_eq!(plan(&Facts { pod: at(true), ..said.clone() }), (Step::ForcePod, State::Stopping));
    assert_eq!(plan(&Facts { pod: ABSENT, ..said.clone() }).1, State::Ended(AgentEnd::Goodbye));
    assert_eq!(plan(&Facts { pod: ours(Stage::Succeeded), ..said }).1, State::Ended(AgentEnd::Goodbye), "it left by itself");
}

#[test]
fn nothing_is_ended_by_force_before_that_is_stored() {
    let why = (GiveUpReason::HeartbeatLost, "silent for 60 s".to_owned());
    let silent = running(Life { give_up: Some(why.clone()), ..life() });
    assert_eq!(plan(&silent), (Step::None, State::Condemned(Some(why))));
    let stored = Facts { condemned: true, ..running(life()) };
    assert_eq!(plan(&stored), (Step::ForcePod, State::Condemned(None)), "whatever it reports since");
    assert_eq!(plan(&Facts { pod: ABSENT, ..stored.clone() }).1, State::Ended(AgentEnd::Forced));
    let unreachable =
        Pod::Ours(PodObservation { stage: Stage::Running { ready: true }, deleting: false, node: NodeReach::Unreachable, overdue: false });
    assert_eq!(plan(&Facts { pod: unreachable, ..stored }).1, State::Unreachable, "nobody there would do it");
}

#[test]
fn a_start_that_takes_too_long_is_given_up_in_the_kubelets_words() {
    let hindrance = Hindrance { kind: HindranceKind::ImagePull, message: "ImagePullBackOff: no such image".into() };
    // The sidecar has its own image, and may have registered.
    for registered in [false, true] {
        let slow = Life { registered, start_overdue: true, ..life() };
        let facts = Facts { life: slow, ..facts(true, ours(Stage::Pending(Some(hindrance.clone())))) };
        let (step, state) = plan(&facts);
        assert_eq!(step, Step::None);
        assert_eq!(state, State::Condemned(Some((GiveUpReason::StartTimedOut, start_timed_out("ImagePullBackOff: no such image")))));
    }
}
