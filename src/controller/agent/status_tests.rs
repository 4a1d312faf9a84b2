//! How the status of an agent follows from its state.

use super::phase::HINDRANCE_REASONS;
use super::*;
use crate::api::AgentSpec;
use crate::policy::agent::{Activity, AgentEnd, GiveUpReason, Hindrance, HindranceKind};
use crate::policy::budget::blocker::ExhaustedLimit;
use crate::policy::budget::refusal::RefusalCause;
use crate::policy::budget::{Blocker, Holders, Key, Window};
use crate::policy::work::item::Phase;
use crate::wire::agent::{Checkpoint, CheckpointState, Program, Report, Sandbox};
use crate::wire::sandbox::{SandboxRefusals, SandboxUnavailable, UnavailableReason};

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
            tool_approvals: None,
            hibernated: None,
            resources: None,
            external: None,
        },
    );
    agent.metadata.generation = Some(3);
    agent
}
fn written(agent: &Agent, told: &StatusFacts<'_>) -> AgentStatus {
    next_status(agent, told).expect("news").0
}
fn told(state: &State) -> StatusFacts<'_> {
    let now = jiff::Timestamp::from_second(100).expect("a time");
    StatusFacts {
        state,
        pod: None,
        created_pod: None,
        claim: None,
        view: None,
        decision: None,
        holding: None,
        paused: None,
        tokens: TokenAvailability::Unknown,
        lifetime_spent: false,
        children: 0,
        parent_ended: false,
        external_not_allowed: false,
        epoch: 7,
        now,
    }
}

#[test]
fn an_unchanged_status_is_not_written_whatever_the_epoch() {
    let mut agent = agent();
    agent.status = Some(written(&agent, &told(&State::Pending(None))));
    let state = State::Pending(None);
    let later = StatusFacts { epoch: 99, now: jiff::Timestamp::from_second(200).expect("a time"), ..told(&state) };
    assert_eq!(next_status(&agent, &later), None);
}

#[test]
fn the_recorded_pod_is_kept_and_the_epoch_is_ours() {
    let pod = PodRef { name: "a".into(), uid: "u".into() };
    let mut agent = agent();
    let state = State::Pending(None);
    let first = written(&agent, &StatusFacts { created_pod: Some(&pod), ..told(&state) });
    assert_eq!((first.pod_ref.as_ref(), first.governor_epoch, first.observed_generation), (Some(&pod), Some(7), Some(3)));
    agent.status = Some(first);
    let second = written(&agent, &told(&State::Running(Activity::Idle)));
    assert_eq!(second.pod_ref, Some(pod));
}

#[test]
fn the_end_has_a_time_and_a_reason() {
    let ended = written(&agent(), &told(&State::Ended(AgentEnd::Failed("OOMKilled".into()))));
    assert_eq!((ended.phase, ended.stop_time.is_some()), (Some(AgentPhase::Stopped), true));
    assert_eq!(status_events(None, &ended), [StatusNews { warning: true, reason: reasons::POD_FAILED.into(), note: "OOMKilled".into() }]);
    assert_eq!(status_events(Some(&ended), &ended), [], "told once");
}

#[test]
fn what_others_own_is_neither_compared_nor_written() {
    let mut agent = agent();
    let state = State::Pending(None);
    let mut stored = written(&agent, &told(&state));
    stored.tokens = Some(Default::default());
    stored.conditions.push(Builder { stored: &[], generation: 3, now: jiff::Timestamp::UNIX_EPOCH }.build("Novelty", true, "A", ""));
    agent.status = Some(stored);
    assert_eq!(next_status(&agent, &told(&state)), None);
    let changed = written(&agent, &told(&State::Running(Activity::Idle)));
    assert_eq!((changed.tokens, find(&changed.conditions, "Novelty")), (None, None));
}

#[test]
fn a_changed_message_alone_may_wait() {
    let mut agent = agent();
    let quota = |used: u32| State::Hindered(Hindrance { kind: HindranceKind::QuotaExceeded, message: format!("used: pods={used}") });
    agent.status = Some(written(&agent, &told(&quota(2))));
    assert_eq!(next_status(&agent, &told(&quota(3))).map(|(_, change)| change), Some(StatusChange::Counts));
}

#[test]
fn every_hindrance_has_a_reason_of_its_own() {
    for (kind, reason) in HINDRANCE_REASONS {
        assert_eq!((hindrance_reason(kind), hindrance_of(reason)), (reason, Some(kind)));
    }
}

#[test]
fn a_failed_preflight_is_reported_once_whatever_its_next_message() {
    let mut agent = agent();
    let failed = |words: &str| State::Running(Activity::PreflightFailed(words.to_owned()));
    let status = written(&agent, &told(&failed("no login")));
    let ready = find(&status.conditions, types::READY).expect("Ready");
    assert_eq!((status.phase, ready.status.as_str()), (Some(AgentPhase::Running), "False"));
    assert_eq!(status_events(None, &status), [StatusNews { warning: true, reason: "PreflightFailed".into(), note: "no login".into() }]);
    agent.status = Some(status.clone());
    let (again, change) = next_status(&agent, &told(&failed("no login, again"))).expect("other words");
    assert_eq!((change, status_events(Some(&status), &again)), (StatusChange::Counts, Vec::new()));
    assert_eq!(next_status(&agent, &told(&State::Running(Activity::Idle))).map(|(_, change)| change), Some(StatusChange::State));
}

#[test]
fn a_hindrance_is_shown_under_its_reason() {
    let state = State::Hindered(Hindrance { kind: HindranceKind::QuotaExceeded, message: "exceeded quota: q".into() });
    let status = written(&agent(), &told(&state));
    let ready = find(&status.conditions, types::READY).expect("Ready");
    let words = "exceeded quota: q. Raise the quota, run fewer agents, or request less in spec.agent.resources of the pool";
    assert_eq!((ready.status.as_str(), ready.reason.as_str(), ready.message.as_str()), ("False", "QuotaExceeded", words));
}

#[test]
fn a_start_is_written_at_once_only_with_its_result() {
    let pod = PodRef { name: "a".into(), uid: "u".into() };
    let mut agent = agent();
    let pending = State::Pending(None);
    agent.status = Some(written(&agent, &StatusFacts { created_pod: Some(&pod), ..told(&pending) }));
    let registering = State::Running(Activity::Registering);
    assert_eq!(next_status(&agent, &told(&registering)).map(|(_, change)| change), Some(StatusChange::Counts));
    let idle = State::Running(Activity::Idle);
    assert_eq!(next_status(&agent, &told(&idle)).map(|(_, change)| change), Some(StatusChange::State));
    let stuck = State::Pending(Some(Hindrance { kind: HindranceKind::ImagePull, message: "m".into() }));
    assert_eq!(next_status(&agent, &told(&stuck)).map(|(_, change)| change), Some(StatusChange::State));
}

#[test]
fn a_hibernated_agent_keeps_its_volume_and_nothing_of_its_pod() {
    let (pod, claim) = (PodRef { name: "a".into(), uid: "u".into() }, ClaimRef { name: "a-workspace".into(), uid: "c".into() });
    let mut agent = agent();
    let pending = State::Pending(None);
    agent.status = Some(written(&agent, &StatusFacts { created_pod: Some(&pod), claim: Some(&claim), ..told(&pending) }));
    agent.status = Some(written(&agent, &told(&State::Running(Activity::Idle))));
    assert!(supervise::had_heartbeat(&agent) && supervise::was_started(&agent));
    let view = View { goodbye: Some(("I was asked to end".into(), jiff::Timestamp::UNIX_EPOCH)), ..View::well() };
    let going = State::Hibernating;
    let before = agent.status.replace(written(&agent, &StatusFacts { view: Some(&view), ..told(&going) }));
    assert_eq!(agent.status.as_ref().and_then(|status| status.goodbye.as_ref()), None, "it comes back");
    assert_eq!(status_events(before.as_ref(), agent.status.as_ref().expect("a status")), []);
    let asleep = written(&agent, &StatusFacts { view: Some(&view), ..told(&State::Hibernated) });
    assert_eq!((asleep.phase, asleep.pod_ref.as_ref(), asleep.claim_ref.as_ref()), (Some(AgentPhase::Hibernated), None, Some(&claim)));
    assert_eq!((asleep.node.as_ref(), asleep.start_time.as_ref(), asleep.stop_time.as_ref()), (None, None, None));
    assert_eq!(status_events(agent.status.as_ref(), &asleep).iter().map(|news| news.reason.as_str()).collect::<Vec<_>>(), ["Hibernated"]);
    agent.status = Some(asleep);
    assert!(!supervise::had_heartbeat(&agent) && !supervise::was_started(&agent), "its next pod has to call first");
    assert_eq!(next_status(&agent, &told(&State::Hibernated)), None);
    let again = PodRef { uid: "another".into(), ..pod };
    let woken = written(&agent, &StatusFacts { created_pod: Some(&again), claim: Some(&claim), ..told(&pending) });
    assert_eq!((woken.phase, woken.pod_ref.as_ref()), (Some(AgentPhase::Spawning), Some(&again)));
    assert_eq!(status_events(agent.status.as_ref(), &woken).iter().map(|news| news.reason.as_str()).collect::<Vec<_>>(), ["Woken"]);
}

#[test]
fn a_goodbye_and_its_phase_are_one_write() {
    let view = View { goodbye: Some(("done".into(), jiff::Timestamp::UNIX_EPOCH)), ..View::well() };
    let mut agent = agent();
    let idle = State::Running(Activity::Idle);
    let said = written(&agent, &StatusFacts { view: Some(&view), ..told(&idle) });
    let requested = find(&said.conditions, types::GOODBYE_REQUESTED).expect("a condition");
    assert_eq!((said.phase, requested.message.as_str()), (Some(AgentPhase::Goodbye), "done"));
    agent.status = Some(said);
    assert_eq!(next_status(&agent, &StatusFacts { view: Some(&view), ..told(&State::Stopping) }), None);
    let ended = written(&agent, &StatusFacts { view: Some(&view), ..told(&State::Ended(AgentEnd::Goodbye)) });
    assert_eq!(
        (ended.phase, find(&ended.conditions, types::READY).map(|ready| ready.message.as_str())),
        (Some(AgentPhase::Stopped), Some("done"))
    );
}

#[test]
fn a_request_for_tokens_is_reported_once_survives_leaders_and_can_be_withdrawn() {
    let view = |asks: HumanRequest| View { asks: Some(asks), ..View::well() };
    let mut agent = agent();
    let idle = State::Running(Activity::Idle);
    let nothing = view(HumanRequest::Nothing);
    let quiet = written(&agent, &StatusFacts { view: Some(&nothing), ..told(&idle) });
    assert!(find(&quiet.conditions, types::TOKENS_REQUESTED).is_none(), "who never asked takes nothing back");
    assert_eq!(stored_request(&quiet), HumanRequest::Nothing);
    agent.status = Some(quiet);
    let wish = HumanRequest::Tokens("5 more: x".into());
    let wants = view(wish.clone());
    let (said, change) = next_status(&agent, &StatusFacts { view: Some(&wants), ..told(&idle) }).expect("news");
    assert_eq!((stored_request(&said), change), (wish.clone(), StatusChange::State));
    let told_people: Vec<_> =
        status_events(agent.status.as_ref(), &said).into_iter().map(|news| (news.warning, news.reason, news.note)).collect();
    assert_eq!(told_people, [(true, "AskedForTokens".to_owned(), "5 more: x".to_owned())]);
    agent.status = Some(said);
    assert_eq!(next_status(&agent, &told(&idle)), None, "a leader that did not hear it leaves it");
    let more = view(HumanRequest::Tokens("6 more: y".into()));
    let (other, change) = next_status(&agent, &StatusFacts { view: Some(&more), ..told(&idle) }).expect("other words");
    assert_eq!(
        (change, status_events(agent.status.as_ref(), &other)),
        (StatusChange::Counts, vec![]),
        "words again and again are no events"
    );
    let back = written(&agent, &StatusFacts { view: Some(&nothing), ..told(&idle) });
    assert_eq!(find(&back.conditions, types::TOKENS_REQUESTED).map(|asks| asks.status.as_str()), Some("False"));
    assert_eq!((stored_request(&back), status_events(agent.status.as_ref(), &back)), (HumanRequest::Nothing, vec![]));
    let ended = written(&agent, &StatusFacts { view: Some(&wants), ..told(&State::Ended(AgentEnd::Succeeded)) });
    assert!(find(&ended.conditions, types::TOKENS_REQUESTED).is_none(), "who ended needs nothing");
}

fn short(key: Key, because: RefusalCause) -> TokenAvailability {
    let limit = Some(ExhaustedLimit { name: "hourly".into(), span: Window::Hour.at(3_600_000), height: 100 });
    TokenAvailability::Blocked(Blocker {
        key,
        cause: because,
        limit,
        field: "spec.tokens.limits[hourly].tokens".into(),
        guaranteed: Holders::default(),
    })
}

#[test]
fn missing_tokens_are_reported_at_once_with_the_field_to_raise() {
    let mut agent = agent();
    let state = State::Running(Activity::Idle);
    let says = |status: &AgentStatus| {
        find(&status.conditions, "BudgetAvailable").map(|said| (said.status.clone(), said.reason.clone(), said.message.clone()))
    };
    agent.status = Some(written(&agent, &told(&state)));
    assert_eq!(agent.status.as_ref().and_then(says), None, "it is not known");
    let there = StatusFacts { tokens: TokenAvailability::Available, ..told(&state) };
    assert_eq!(next_status(&agent, &there), None, "what goes without saying is not worth a write");
    let active = State::Running(Activity::Paused);
    let first = written(
        &agent,
        &StatusFacts { paused: Some(Pause::Spec), ..StatusFacts { tokens: TokenAvailability::Available, ..told(&active) } },
    );
    assert_eq!(says(&first).map(|(status, reason, _)| (status, reason)), Some(("True".into(), "TokensLeft".into())), "it rides along");
    let budget = Key::budget("team", "default");
    let spent = StatusFacts { tokens: short(budget.clone(), RefusalCause::Used), ..told(&state) };
    let (is_short, change) = next_status(&agent, &spent).expect("news");
    let (status, reason, message) = says(&is_short).expect("it is told");
    assert_eq!((status.as_str(), reason.as_str(), change), ("False", "BudgetExhausted", StatusChange::State));
    for word in ["Budget/default in team", "hourly", "1970-01-01T02:00Z", "spec.tokens.limits[hourly].tokens"] {
        assert!(message.contains(word), "{word:?} is not said: {message}");
    }
    agent.status = Some(is_short);
    assert_eq!(next_status(&agent, &spent), None, "told once");
    assert_eq!(next_status(&agent, &told(&state)), None, "a new leader that does not know yet says nothing else");
    let paused = StatusFacts { tokens: short(budget, RefusalCause::Paused), ..told(&state) };
    assert_eq!(says(&written(&agent, &paused)).map(|said| said.1), Some("PausedByThreshold".into()));
    let life = StatusFacts { tokens: short(Key::Agent("u".into()), RefusalCause::Used), ..told(&state) };
    assert_eq!(says(&written(&agent, &life)).map(|said| said.1), Some("LifetimeSpent".into()));
    let (again, change) = next_status(&agent, &there).expect("news");
    assert_eq!((says(&again).map(|said| said.0), change), (Some("True".into()), StatusChange::State));
    let ended = State::Ended(AgentEnd::PodGone);
    let last = written(&agent, &StatusFacts { tokens: TokenAvailability::Available, ..told(&ended) });
    assert_eq!(says(&last).map(|said| said.0), Some("False".into()), "of one that ended it stays as it was");
}

#[test]
fn a_pause_for_lack_of_tokens_records_its_limit_until_it_ends() {
    let mut agent = agent();
    let (held, on) = (State::Running(Activity::Paused), State::Running(Activity::Active));
    let short = View { refused_at_limit: Some(500), ..View::well() };
    let first = written(&agent, &StatusFacts { view: Some(&short), paused: Some(Pause::Tokens), ..told(&held) });
    assert_eq!((first.phase, first.pauses, first.paused_at_limit), (Some(AgentPhase::Paused), Some(1), Some(500)));
    let paused = find(&first.conditions, "Paused").expect("it is said");
    assert_eq!((paused.status.as_str(), paused.reason.as_str()), ("True", "TokenBudgetExceeded"));
    assert_eq!(supervise::supervisor_pause_reason(&first), Some("TokenBudgetExceeded"));
    let above = written(&agent, &StatusFacts { view: Some(&View::well()), paused: Some(Pause::Tokens), ..told(&held) });
    let words = |status: &AgentStatus| find(&status.conditions, "Paused").map(|paused| paused.message.clone()).unwrap_or_default();
    assert!(words(&first).contains("It continues when") && words(&above).contains("resumePause"), "what ends it is said");
    agent.status = Some(first.clone());
    let other = View { refused_at_limit: Some(900), ..View::well() };
    assert_eq!(
        next_status(&agent, &StatusFacts { view: Some(&other), paused: Some(Pause::Tokens), ..told(&held) }),
        None,
        "as it was when it began"
    );
    let over = written(&agent, &StatusFacts { view: Some(&other), ..told(&on) });
    assert_eq!((over.pauses, over.paused_at_limit, supervise::supervisor_pause_reason(&over)), (Some(1), None, None));
}

#[test]
fn a_checkpoint_is_reported_for_its_own_pause_only_and_while_that_lasts() {
    let mut agent = agent();
    let state = State::Running(Activity::Paused);
    let held = crate::wire::work::LeaseRef { uid: "i".into(), epoch: 4 };
    let holding = |phase, pauses| AgentHolding {
        name: "fix".into(),
        held: held.clone(),
        phase,
        policy: Default::default(),
        pauses,
        resumed: false,
        made_progress: true,
    };
    let reported = |pause, state, message: &str| {
        let checkpoint = Some(Checkpoint { held: held.clone(), pause, state, message: message.to_owned() });
        let report = crate::wire::agent::Report { checkpoint, ..crate::wire::agent::Report::of(crate::wire::agent::Program::Waiting) };
        View { report: Some((report, jiff::Timestamp::UNIX_EPOCH)), ..View::well() }
    };
    let says = |agent: &Agent, view: &View, holding: &AgentHolding, seconds: i64| {
        let now = jiff::Timestamp::from_second(100 + seconds).expect("a time");
        let told = StatusFacts { view: Some(view), paused: Some(Pause::Tokens), holding: Some(holding), now, ..told(&state) };
        let status = next_status(agent, &told).map_or_else(|| agent.status.clone().expect("a status"), |(status, _)| status);
        let said = find(&status.conditions, "Checkpointed").map(|said| (said.status.clone(), said.reason.clone()));
        said.map(|(status, reason)| format!("{status} {reason}"))
    };
    let (waits, leased) = (holding(Phase::Paused, 2), holding(Phase::Leased, 1));
    let taken = reported(2, CheckpointState::Taken, "");
    assert_eq!(says(&agent, &taken, &leased, 0), None, "its item does not wait yet");
    assert_eq!(says(&agent, &View::well(), &waits, 0).as_deref(), Some("Unknown CheckpointOrdered"));
    assert_eq!(says(&agent, &reported(1, CheckpointState::Taken, ""), &waits, 0).as_deref(), Some("Unknown CheckpointOrdered"));
    assert_eq!(says(&agent, &taken, &waits, 0).as_deref(), Some("True CheckpointTaken"));
    assert_eq!(says(&agent, &reported(2, CheckpointState::NoHook, ""), &waits, 0).as_deref(), Some("False NoCheckpointHook"));
    let failed = reported(2, CheckpointState::Failed, "ended with 3");
    assert_eq!(says(&agent, &failed, &waits, 0).as_deref(), Some("False CheckpointFailed"));
    agent.status = Some(written(
        &agent,
        &StatusFacts { view: Some(&View::well()), paused: Some(Pause::Tokens), holding: Some(&waits), ..told(&state) },
    ));
    assert_eq!(says(&agent, &View::well(), &waits, CHECKPOINT_TIMEOUT_SECONDS + 1).as_deref(), Some("False CheckpointUnanswered"));
    assert_eq!(
        says(&agent, &taken, &waits, CHECKPOINT_TIMEOUT_SECONDS + 1).as_deref(),
        Some("True CheckpointTaken"),
        "late is better than never"
    );
    let over = written(&agent, &StatusFacts { view: Some(&taken), holding: Some(&leased), ..told(&State::Running(Activity::Active)) });
    assert_eq!(find(&over.conditions, "Checkpointed"), None);
}

#[test]
fn time_outs_are_counted_and_a_life_without_tokens_ends_with_a_goodbye_of_its_own() {
    let mut agent = agent();
    let idle = State::Running(Activity::Idle);
    let two = View { timeouts: 2, ..View::well() };
    agent.status = Some(written(&agent, &StatusFacts { view: Some(&two), ..told(&idle) }));
    let one = View { timeouts: 1, ..View::well() };
    let spent = written(&agent, &StatusFacts { view: Some(&one), lifetime_spent: true, ..told(&idle) });
    assert_eq!((spent.timeouts, spent.phase), (Some(3), Some(AgentPhase::Goodbye)));
    let said = |status: &AgentStatus| find(&status.conditions, "GoodbyeRequested").map(|said| said.reason.clone());
    assert_eq!(said(&spent).as_deref(), Some("LifetimeSpent"));
    agent.status = Some(spent);
    let later = written(&agent, &told(&State::Ended(AgentEnd::Goodbye)));
    assert_eq!(said(&later).as_deref(), Some("LifetimeSpent"), "why stays said");
}

#[test]
fn what_was_overruled_is_recorded() {
    use crate::policy::interventions::{Action, Signal};
    let overruled = vec![(Signal::ItemStalled, Action::Requeue)];
    let decision = Decision { signal: Signal::TokenBudgetExceeded, action: Action::Pause, message: "m".into(), enforced: true, overruled };
    let status = written(&agent(), &StatusFacts { decision: Some(&decision), ..told(&State::Running(Activity::Idle)) });
    let record = status.interventions.and_then(|all| all.into_iter().next()).expect("a record");
    assert_eq!(record.overruled, Some(vec!["ItemStalled: Requeue".to_owned()]));
}

fn external() -> Agent {
    let mut agent = agent();
    agent.spec.external = Some(crate::api::agent::ExternalProcess { user: "alice".into() });
    agent
}

#[test]
fn an_agent_outside_the_cluster_says_that_nothing_isolates_it_and_nothing_of_a_pod() {
    let states = [
        (State::Running(Activity::Registering), AgentPhase::Running, reasons::NOT_REGISTERED),
        (State::Running(Activity::Starting), AgentPhase::Running, reasons::PROCESS_NOT_READY),
        (State::Running(Activity::Idle), AgentPhase::Idle, reasons::REGISTERED),
        (State::Running(Activity::Active), AgentPhase::Active, reasons::REGISTERED),
        (State::Running(Activity::Paused), AgentPhase::Paused, reasons::REGISTERED),
        (State::Stopping, AgentPhase::Goodbye, reasons::PROCESS_LEAVING),
        (State::Condemned(Some((GiveUpReason::HeartbeatLost, "it was not heard of".into()))), AgentPhase::Stale, reasons::HEARTBEAT_LOST),
        (State::Ended(AgentEnd::Goodbye), AgentPhase::Stopped, reasons::SAID_GOODBYE),
    ];
    for (state, phase, reason) in states {
        let status = written(&external(), &told(&state));
        let ready = find(&status.conditions, types::READY).expect("Ready");
        assert_eq!((status.phase, ready.reason.as_str()), (Some(phase), reason), "{state:?}");
        let walls = find(&status.conditions, types::SANDBOX_ENFORCED).expect("SandboxEnforced");
        assert_eq!((walls.status.as_str(), walls.reason.as_str()), ("False", reasons::WALLS_NOT_ENFORCED), "{state:?}");
        for condition in status.conditions.iter().filter(|condition| condition.type_ != types::PAUSED) {
            assert!(!condition.message.contains("pod"), "{state:?}: {condition:?}");
        }
    }
}

#[test]
fn the_sandbox_is_what_the_pod_reports() {
    let (agent, state) = (agent(), State::Running(Activity::Idle));
    let condition = |tier: &str, missing: &[&str], unavailable: Option<SandboxUnavailable>| {
        let missing = missing.iter().map(|name| (*name).to_owned()).collect();
        let view = View { sandbox: Some(Sandbox { tier: tier.into(), missing, unavailable }), ..View::well() };
        let status = written(&agent, &StatusFacts { view: Some(&view), ..told(&state) });
        let found = find(&status.conditions, types::SANDBOX_ENFORCED).expect("SandboxEnforced").clone();
        (found.status, found.reason, found.message, status.sandbox.and_then(|sandbox| sandbox.unavailable))
    };
    let of = |tier, missing| condition(tier, missing, None);
    assert_eq!(of("Landlock-7", &[]).1, reasons::ENFORCED);
    assert_eq!(of("Landlock-7", &[]).0, "True");
    let degraded = of("AgentStrict", &["Landlock", "Signals"]);
    assert_eq!((degraded.0.as_str(), degraded.1.as_str()), ("False", reasons::SANDBOX_DEGRADED));
    assert!(degraded.2.contains("Landlock, Signals"), "{}", degraded.2);
    assert_eq!(of("Pod", &["Landlock", "AgentStrict"]).1, reasons::POD_WALLS_ONLY);
    let observed = of("Observed", &["Landlock", "AgentStrict"]);
    assert_eq!((observed.0.as_str(), observed.1.as_str()), ("False", reasons::SANDBOX_OBSERVED));
    assert!(observed.2.ends_with("It would refuse: nothing so far"), "{}", observed.2);
    let known = [
        reasons::LANDLOCK_NOT_BUILT,
        reasons::LANDLOCK_NOT_ENABLED,
        reasons::LANDLOCK_REFUSED,
        reasons::LANDLOCK_TOO_OLD,
        reasons::SECCOMP_UNAVAILABLE,
        reasons::USER_NAMESPACE_MISSING,
        reasons::SANDBOX_NOT_PREPARED,
    ];
    for (reason, expected) in UnavailableReason::ALL.into_iter().zip(known) {
        let unavailable = SandboxUnavailable { reason, message: "use another node".into() };
        let (status, reason, message, stored) = condition("Pod", &["Landlock"], Some(unavailable));
        assert_eq!((status.as_str(), reason.as_str()), ("False", expected));
        assert_eq!(message, "the program does not start: use another node");
        assert_eq!(stored.map(|stored| stored.reason), Some(expected.to_owned()), "a new leader finds it");
    }
}

#[test]
fn what_the_sandbox_refused_is_kept() {
    let (agent, state) = (agent(), State::Running(Activity::Idle));
    let sandbox = Sandbox { tier: "Observed".into(), missing: vec!["Landlock".into()], unavailable: None };
    let refused = SandboxRefusals { system_calls: 3, files: 1, uses: vec!["ptrace".into(), "read /x".into()] };
    let report = Report { refused, ..Report::of(Program::Running) };
    let view = View { sandbox: Some(sandbox.clone()), report: Some((report, jiff::Timestamp::UNIX_EPOCH)), ..View::well() };
    let status = written(&agent, &StatusFacts { view: Some(&view), ..told(&state) });
    let of = |status: &AgentStatus| status.sandbox.clone().and_then(|sandbox| sandbox.refused);
    assert_eq!(of(&status), Some(vec!["ptrace".to_owned(), "read /x".to_owned()]));
    let found = find(&status.conditions, types::SANDBOX_ENFORCED).expect("SandboxEnforced");
    assert!(found.message.ends_with("It would refuse: ptrace, read /x"), "{}", found.message);
    // A new leader that has no report of the agent yet.
    let news = Sandbox { missing: vec!["Landlock".into(), "Signals".into()], ..sandbox };
    let (mut later, view) = (agent, View { sandbox: Some(news), ..View::well() });
    later.status = Some(status);
    let status = written(&later, &StatusFacts { view: Some(&view), ..told(&state) });
    assert_eq!(of(&status).map(|refused| refused.len()), Some(2));
}

#[test]
fn an_external_agent_leaves_when_its_pool_accepts_none_any_more() {
    let mut agent = external();
    let state = State::Running(Activity::Idle);
    agent.status = Some(written(&agent, &told(&state)));
    let (status, change) = next_status(&agent, &StatusFacts { external_not_allowed: true, ..told(&state) }).expect("news");
    assert_eq!((status.phase, change), (Some(AgentPhase::Goodbye), StatusChange::State));
    assert!(status.goodbye.as_ref().and_then(|goodbye| goodbye.reason.as_deref()).is_some_and(|words| words.contains("spec.external")));
    let reason = |status: &AgentStatus| find(&status.conditions, types::GOODBYE_REQUESTED).map(|said| said.reason.clone());
    assert_eq!(reason(&status).as_deref(), Some(reasons::EXTERNAL_NOT_ALLOWED));
    // One that left by itself did.
    agent.status = Some(AgentStatus { conditions: Vec::new(), ..status });
    assert_eq!(
        reason(&written(&agent, &StatusFacts { external_not_allowed: true, ..told(&State::Stopping) })).as_deref(),
        Some(reasons::SAID_GOODBYE)
    );
}
