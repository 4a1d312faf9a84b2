//! Checks every reachable state of a small model: one item, two agents, two governors of which one may not know that it
//! was replaced, lost replies, a silent node, and a person who interferes.

use std::collections::{HashSet, VecDeque};

use super::failure::{Action, Failure, Rule};
use super::item::{Holder, Phase, Policy, Record, Spec, UnixMillis, Verb};
use super::lease::{FailureJudges, Fence, LeaseRefusal, claim, complete, fail, release};
use super::transitions::{Dependencies, HolderState, TransitionFacts, settle};
use crate::work::admission::Admission;

/// Waits are over as soon as they begin: the model's time stands still, and its random numbers are 0.
const NOW: UnixMillis = UnixMillis(1_000_000);
const AGENTS: [&str; 2] = ["a", "b"];
/// Claims that are modelled. More of them only add states.
const CLAIMS: i64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Pod {
    Runs,
    /// Its end is decided and stored. It may run on while its node is silent.
    Condemned,
    Gone,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Agent {
    pod: Pod,
    /// The epoch under which it assumes to hold the item.
    believes: Option<i64>,
}

/// The knowledge of one governor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Governor {
    /// Its owner epoch; 0 before it first leads. From then on it assumes to lead.
    epoch: i64,
    /// It knows the newest version of the item. With an older version every write of it is refused, and it answers
    /// nothing without a write before a live read. So older versions need not be modelled.
    fresh: bool,
    /// Agents of whose end it knows.
    knows_condemned: [bool; 2],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Model {
    cancel: bool,
    redrives: i64,
    freed_epoch: i64,
    record: Record,
    written_by: i64,
    agents: [Agent; 2],
    governors: [Governor; 2],
    leader: usize,
    /// The accepted completions so far, for the invariants.
    completes: u8,
}

impl Model {
    fn new() -> Self {
        let agent = Agent { pod: Pod::Runs, believes: None };
        let governor = |epoch| Governor { epoch, fresh: true, knows_condemned: [false; 2] };
        Self {
            cancel: false,
            redrives: 0,
            freed_epoch: 0,
            record: Record::default(),
            written_by: 0,
            agents: [agent.clone(), agent],
            governors: [governor(1), governor(0)],
            leader: 0,
            completes: 0,
        }
    }

    /// The object has a new version, which no governor has seen.
    fn changed(&mut self) {
        self.governors.iter_mut().for_each(|governor| governor.fresh = false);
    }

    fn spec(&self) -> Spec {
        Spec { queue: Some("q".into()), cancel: self.cancel, redrives: self.redrives, released_epoch: self.freed_epoch, ..Spec::default() }
    }
}

fn policy() -> Policy {
    Policy { max_attempts: 2, max_stalls: 2, ..Policy::default() }
}

fn rules() -> Vec<Rule> {
    vec![Rule { action: Action::Retry, reasons: Vec::new(), exit_codes: Vec::new() }]
}

/// One step of the model: its name for the trace, and the state after it.
type Step = (String, Model);

/// A write of governor `by`. It is accepted only if the governor knows the newest version, and no successor of it has
/// written (the schema refuses a falling governorEpoch).
fn write(world: &Model, by: usize, next: Record) -> Option<Model> {
    let governor = &world.governors[by];
    if !governor.fresh || governor.epoch < world.written_by {
        return None;
    }
    let mut after = world.clone();
    check_transition(world, &next);
    after.record = next;
    after.written_by = governor.epoch;
    after.changed();
    after.governors[by].fresh = true;
    Some(after)
}

/// The invariants of every accepted write.
fn check_transition(world: &Model, next: &Record) {
    let before = &world.record;
    let claimed = next.epoch > before.epoch;
    assert!(next.epoch == before.epoch || next.epoch == before.epoch + 1, "S2: {before:?} -> {next:?}");
    assert_eq!(claimed, next.phase == Phase::Leased && before.phase == Phase::Ready, "S2, S3: {before:?} -> {next:?}");
    assert!(!(claimed && world.cancel), "S10: {before:?} -> {next:?}");
    if let Some(holder) = &before.holder
        && next.holder.as_ref().is_none_or(|next| next.pod != holder.pod)
    {
        let last = next.history.last().expect("an attempt that ended is written down");
        let gave_back = matches!(last.verb, Verb::Complete | Verb::Fail | Verb::Release | Verb::CancelDone);
        let index = AGENTS.iter().position(|agent| *agent == holder.agent).expect("an agent");
        let gone = world.agents[index].pod == Pod::Gone || world.freed_epoch >= before.epoch;
        assert!(gave_back || gone, "S15: {before:?} -> {next:?}");
    }
}

fn check_state(world: &Model) {
    let Record { phase, holder, epoch, failures, stalls, .. } = &world.record;
    assert_eq!(phase.held(), holder.is_some(), "S1, S5: {world:?}");
    assert!(*failures <= 2 && *stalls <= 2, "S6: {world:?}");
    assert!(world.completes <= 1, "S4: {world:?}");
    assert_eq!(world.completes == 1, *phase == Phase::Succeeded, "an accepted finish stays: {world:?}");
    // S3: for any caller and at any time, only a call with the whole fence is accepted.
    let (judged, rules) = (policy(), rules());
    let judges = FailureJudges { policy: &judged, rules: &rules, is_final: false, dice: 0.0 };
    let failure = Failure { reason: "Failed".into(), message: String::new(), exit_code: None };
    for (agent, said) in AGENTS.into_iter().flat_map(|agent| (0..=CLAIMS).map(move |epoch| (agent, epoch))) {
        let fence = Fence { epoch: said, pod: agent, agent };
        let record = &world.record;
        let taken = complete(record, fence, NOW).is_ok()
            || fail(record, fence, &failure, judges, NOW).is_ok()
            || release(record, fence, "Drained", "", judges, NOW).is_ok();
        let whole = phase.held() && *epoch == said && holder.as_ref().is_some_and(|holder| holder.pod == agent);
        assert!(!taken || whole, "S3: {fence:?} {world:?}");
    }
    // An agent that assumes to hold the item under its present epoch holds it, or lost it from the only agent that
    // could.
    let believers = world.agents.iter().filter(|agent| agent.believes == Some(*epoch) && *epoch > 0).count();
    assert!(believers <= 1, "S1: {world:?}");
}

fn steps(world: &Model) -> Vec<Step> {
    let mut all = Vec::new();
    for by in 0..2 {
        if world.governors[by].epoch > 0 {
            governor_steps(world, by, &mut all);
        }
    }
    for agent in 0..2 {
        pod_steps(world, agent, &mut all);
    }
    person_steps(world, &mut all);
    // The other governor leads now, and lists everything first. The former one does not know.
    let mut after = world.clone();
    after.leader = 1 - world.leader;
    let newest = world.governors.iter().map(|governor| governor.epoch).max().unwrap_or(0).max(world.written_by);
    if newest < 2 {
        let condemned = [0, 1].map(|agent| world.agents[agent].pod != Pod::Runs);
        after.governors[after.leader] = Governor { epoch: newest + 1, fresh: true, knows_condemned: condemned };
        all.push((format!("governor {} leads", after.leader), after));
    }
    all
}

fn governor_steps(world: &Model, by: usize, all: &mut Vec<Step>) {
    let governor = &world.governors[by];
    if !governor.fresh {
        let mut after = world.clone();
        after.governors[by].fresh = true;
        all.push((format!("governor {by} sees the item"), after));
    }
    let seen = &world.record;
    for (agent, name) in AGENTS.iter().enumerate() {
        if world.agents[agent].pod != Pod::Runs && !governor.knows_condemned[agent] {
            let mut after = world.clone();
            after.governors[by].knows_condemned[agent] = true;
            all.push((format!("governor {by} learns of {}'s end", name), after));
        }
        if world.agents[agent].pod != Pod::Gone && !governor.knows_condemned[agent] {
            calls(world, by, agent, all);
        }
        // A destructive decision needs a renewal that began after it. A replaced leader has none.
        if world.leader == by && seen.holder.as_ref().is_some_and(|holder| holder.agent == *name) && world.agents[agent].pod == Pod::Runs {
            let mut after = world.clone();
            after.agents[agent].pod = Pod::Condemned;
            after.governors[by].knows_condemned[agent] = true;
            all.push((format!("governor {by} gives {} up", name), after));
        }
    }
    // Transitions without a call. That a pod is gone is seen, and stays true.
    let holder = seen.holder.as_ref().and_then(|holder| AGENTS.iter().position(|agent| *agent == holder.agent));
    let gone = holder.is_some_and(|agent| world.agents[agent].pod == Pod::Gone);
    let holder = if gone { HolderState::Gone(Verb::LeaseExpired, "HeartbeatLost".into(), String::new()) } else { HolderState::There };
    let (policy, rules) = (policy(), rules());
    let around = TransitionFacts {
        admission: Admission::To("q".into()),
        dependencies: Dependencies::Satisfied,
        queue_gone: false,
        group_cancelled: false,
        unmet: Some(false),
        holder,
        policy: &policy,
        rules: &rules,
        dice: 0.0,
    };
    if let Some(next) = settle(&world.spec(), seen, &around, NOW)
        && let Some(after) = write(world, by, next)
    {
        all.push((format!("governor {by} settles"), after));
    }
}

/// The calls of one agent to one governor, each with the reply delivered and lost.
fn calls(world: &Model, by: usize, agent: usize, all: &mut Vec<Step>) {
    if !world.governors[by].fresh {
        return;
    }
    let (name, seen) = (AGENTS[agent], world.record.clone());
    let judged = policy();
    let rules = rules();
    let judges = FailureJudges { policy: &judged, rules: &rules, is_final: false, dice: 0.0 };
    // The agent asks for work: it gets the item that it holds, or claims it.
    if world.agents[agent].pod == Pod::Runs && world.agents[agent].believes.is_none() {
        if seen.phase.held() && seen.holder.as_ref().is_some_and(|holder| holder.agent == name) {
            let mut after = world.clone();
            after.agents[agent].believes = Some(seen.epoch);
            all.push((format!("{name} gets its lease again from governor {by}"), after));
        } else if seen.epoch < CLAIMS
            && let Ok(next) = claim(&world.spec(), &seen, Holder { pod: name.into(), agent: name.into(), since: NOW }, NOW)
            && let Some(lost) = write(world, by, next.clone())
        {
            let mut told = lost.clone();
            told.agents[agent].believes = Some(next.epoch);
            all.push((format!("{name} claims from governor {by}"), told));
            all.push((format!("{name} claims from governor {by}, and the reply is lost"), lost));
        }
    }
    let Some(epoch) = world.agents[agent].believes else { return };
    let fence = Fence { epoch, pod: name, agent: name };
    let failure = Failure { reason: "Failed".into(), message: String::new(), exit_code: Some(1) };
    let answers = [
        ("completes", complete(&seen, fence, NOW)),
        ("fails", fail(&seen, fence, &failure, judges, NOW)),
        ("releases", release(&seen, fence, "Drained", "", judges, NOW)),
    ];
    for (verb, answer) in answers {
        match answer {
            Ok(next) => {
                let done = next.phase == Phase::Succeeded;
                let Some(mut lost) = write(world, by, next) else { continue };
                lost.completes += u8::from(done);
                let mut told = lost.clone();
                told.agents[agent].believes = None;
                all.push((format!("{name} {verb} at governor {by}"), told));
                all.push((format!("{name} {verb} at governor {by}, and the reply is lost"), lost));
            }
            // The same answer again, or a refusal: the agent forgets the item in both cases.
            Err(LeaseRefusal::Repeated | LeaseRefusal::Stale | LeaseRefusal::EndedAlready(_)) => {
                let mut after = world.clone();
                after.agents[agent].believes = None;
                all.push((format!("{name} {verb} at governor {by}, for nothing"), after));
            }
            Err(LeaseRefusal::Paused | LeaseRefusal::NotReady(_)) => {}
        }
    }
}

fn pod_steps(world: &Model, agent: usize, all: &mut Vec<Step>) {
    if world.agents[agent].pod != Pod::Gone {
        let mut after = world.clone();
        after.agents[agent] = Agent { pod: Pod::Gone, believes: None };
        all.push((format!("{}'s pod is gone", AGENTS[agent]), after));
    }
}

fn person_steps(world: &Model, all: &mut Vec<Step>) {
    if !world.cancel {
        let mut after = world.clone();
        after.cancel = true;
        after.changed();
        all.push(("a person cancels".into(), after));
    }
    if world.redrives == 0 && world.record.phase.redrivable() {
        let mut after = world.clone();
        after.redrives = 1;
        after.changed();
        all.push(("a person redrives".into(), after));
    }
    if world.record.phase.held() && world.freed_epoch < world.record.epoch && world.record.epoch == 1 {
        let mut after = world.clone();
        after.freed_epoch = world.record.epoch;
        after.changed();
        all.push(("a person says that the node is dead".into(), after));
    }
}

#[test]
fn every_state_of_a_small_world_keeps_the_promises() {
    let first = Model::new();
    let mut seen = HashSet::from([first.clone()]);
    let mut ahead = VecDeque::from([first]);
    let mut phases = HashSet::new();
    let mut stuck = 0_usize;
    while let Some(world) = ahead.pop_front() {
        phases.insert(world.record.phase);
        let next = steps(&world);
        // L1: while a governor leads, a held item can leave its holder: by a call of the holder, or when the holder is
        // gone.
        if world.record.phase.held() && next.is_empty() {
            stuck += 1;
        }
        for (_, after) in next {
            if seen.insert(after.clone()) {
                check_state(&after);
                ahead.push_back(after);
            }
        }
    }
    assert_eq!(stuck, 0);
    println!("{} states", seen.len());
    assert!(seen.len() > 10_000, "the world is smaller than was thought: {}", seen.len());
    for phase in [Phase::Ready, Phase::Leased, Phase::Cancelling, Phase::Succeeded, Phase::DeadLettered, Phase::Cancelled] {
        assert!(phases.contains(&phase), "{phase:?} is never reached");
    }
}
