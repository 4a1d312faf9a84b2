//! Every reachable state of a small world, looked at one by one: one item, two agents, two governors of which one may not
//! know that it was replaced, replies that are lost, a node that is not heard of, and a person who interferes.

use std::collections::{HashSet, VecDeque};

use super::failure::{Action, Failure, Rule};
use super::item::{Holder, Phase, Policy, Record, Spec, UnixMillis, Verb};
use super::lease::{FailureJudges, Fence, LeaseRefusal, claim, complete, fail, release};
use super::transitions::{Dependencies, HolderState, TransitionFacts, settle};
use crate::work::admission::Admission;

/// Waits are over as soon as they begin: the model's time stands still and its dice fall on 0.
const NOW: UnixMillis = UnixMillis(1_000_000);
const AGENTS: [&str; 2] = ["a", "b"];
/// Claims that are looked at: more change nothing but the size of the world.
const CLAIMS: i64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Pod {
    Runs,
    /// Its end is decided and stored; it may run on for as long as its node is not heard of.
    Condemned,
    Gone,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Agent {
    pod: Pod,
    /// The epoch under which it believes to hold the item.
    believes: Option<i64>,
}

/// What one governor knows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Governor {
    /// Its owner epoch; 0 before it ever led. It believes to lead from then on.
    epoch: i64,
    /// What it knows of the item is the newest version. On an older one every write of it is refused, and nothing that it
    /// would say without one is said before a live look: so an older version need not be remembered here.
    fresh: bool,
    /// Agents whose end it knows of.
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
    /// What was accepted so far, for the invariants.
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

    /// The object is another version: nobody has seen it yet.
    fn changed(&mut self) {
        self.governors.iter_mut().for_each(|governor| governor.fresh = false);
    }

    fn spec(&self) -> Spec {
        Spec { queue: Some("q".into()), cancel: self.cancel, redrives: self.redrives, freed_epoch: self.freed_epoch, ..Spec::default() }
    }
}

fn policy() -> Policy {
    Policy { max_attempts: 2, max_stalls: 2, ..Policy::default() }
}

fn rules() -> Vec<Rule> {
    vec![Rule { action: Action::Retry, reasons: Vec::new(), exit_codes: Vec::new() }]
}

/// One step of the world: what happened, for the trace, and what is then.
type Step = (String, Model);

/// A write of governor `by`: taken only over the version that it decided on, and not from one that was replaced and whose
/// successor wrote (the schema refuses a falling governorEpoch).
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

/// What holds of every accepted write.
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
    // S3: whatever anybody says, at whatever time it arrives, only the whole fence is taken.
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
    // Who believes to hold the item under its present epoch holds it, or it was taken from the only one who could.
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
    // The other one leads now, and lists everything first; the former one does not know.
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
        // A decision that destroys: only after a renewal that began after it. A leader that was replaced has none.
        if world.leader == by && seen.holder.as_ref().is_some_and(|holder| holder.agent == *name) && world.agents[agent].pod == Pod::Runs {
            let mut after = world.clone();
            after.agents[agent].pod = Pod::Condemned;
            after.governors[by].knows_condemned[agent] = true;
            all.push((format!("governor {by} gives {} up", name), after));
        }
    }
    // What follows by itself. That a pod is gone is seen, and stays true.
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

/// The calls of one agent to one governor, each with its reply delivered and lost.
fn calls(world: &Model, by: usize, agent: usize, all: &mut Vec<Step>) {
    if !world.governors[by].fresh {
        return;
    }
    let (name, seen) = (AGENTS[agent], world.record.clone());
    let judged = policy();
    let rules = rules();
    let judges = FailureJudges { policy: &judged, rules: &rules, is_final: false, dice: 0.0 };
    // It asks for work: what it holds already, else the item.
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
            // The same answer again, or that it counts for nothing: it forgets the item either way.
            Err(LeaseRefusal::Again | LeaseRefusal::Stale | LeaseRefusal::EndedAlready(_)) => {
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
        // L1: while somebody leads, a held item can leave its holder: by its call, or when it is gone.
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
