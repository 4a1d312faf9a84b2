//! What is known of one agent: data, and what follows for it from time alone.
//!
//! It must not know of other agents.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::cluster::ObjectKey;
use crate::cluster::clock::BootTime;
use crate::governor::work::refused::RefusedCall;
use crate::policy::breaker::Permit;
use crate::policy::health::{self, Finding};
use crate::policy::interventions::Signal;
use crate::wire::agent::{Directive, Notice, Report, Sandbox};
use crate::wire::command::{CommandBreakers, CommandCounts, CommandPermit};
use crate::wire::work::{ItemWanted, LeaseRef};

/// Reports that an agent may miss whatever its pool says now: it keeps the period that it was told when it registered.
pub(super) const MAX_MISSED_REPORTS: u32 = 3;
/// An agent that was told to give its item back has so long for it.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(30);
/// What nobody expects to hear of, and nobody heard of or looked at for so long, is forgotten: a call of an agent that had just
/// ended may have come last.
pub(super) const UNEXPECTED_AGENT_TTL: Duration = Duration::from_secs(3600);

/// What the reconciler knows of an agent that a judgement on its silence needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Its Agent.
    pub key: ObjectKey,
    /// It registered, with us or with a leader before us.
    pub registered: bool,
    /// Its program was started, as a leader before us knew.
    pub started: bool,
    /// How long that may take.
    pub startup: Duration,
    /// Silence after which it is given up.
    pub timeout: Duration,
    /// Its node; none: it runs outside the cluster.
    pub node: Option<String>,
    /// It holds an item, or a person is at it.
    pub active: bool,
    /// It is to take nothing new.
    pub paused: bool,
    /// Its node is not heard of: its silence says nothing.
    pub excused: bool,
}

/// What an agent holds, and how long what may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Working {
    /// The lease.
    pub held: LeaseRef,
    /// Silence of its pod after which it has lost the item.
    pub lease: Duration,
    /// Time without progress after which it has.
    pub stall: Duration,
    /// Time that the attempt may take.
    pub attempt: Duration,
    /// It was told to give the item back.
    pub cancelling: bool,
    /// It waits, with its agent, by the pause of this number: its times stand still.
    pub paused: Option<i64>,
    /// All tokens of the agent's life are there. As it was when the lease began is what counts.
    pub fresh: bool,
}

/// An item in an agent's hands, and its served times.
#[derive(Clone, Debug)]
pub(super) struct ItemInHand {
    pub working: Working,
    pub held: Duration,
    pub unmoved: Duration,
    pub cancelling: Duration,
}

/// What is known of one agent.
#[derive(Clone, Debug)]
pub struct View {
    /// It registered with us, or reported to us.
    pub registered: bool,
    /// It reported to us that its program was started.
    pub started: bool,
    /// Its last report, and when it came.
    pub report: Option<(Report, jiff::Timestamp)>,
    /// Its sandbox as it finds it.
    pub sandbox: Option<Sandbox>,
    /// What its silence means.
    pub finding: Finding,
    /// The goodbye it said, and when.
    pub goodbye: Option<(String, jiff::Timestamp)>,
    /// What it asks people for, as its Agent shall say it.
    pub asks: Option<HumanRequest>,
    /// How long ago each signal was raised.
    pub occurrences: BTreeMap<Signal, Vec<Duration>>,
    /// What was said with the last one, where that is more than the signal's name.
    pub words: BTreeMap<Signal, String>,
    /// How high the limit of its life was when a call was refused for want of more.
    pub short_at: Option<i64>,
    /// It had all tokens of its life when it got the item that it holds.
    pub began_fresh: bool,
    /// Time-outs that its status does not count yet.
    pub timeouts: u32,
}

#[cfg(test)]
impl View {
    /// AgentRecord that runs, and of which there is nothing else to say.
    pub fn well() -> Self {
        Self {
            registered: true,
            started: true,
            report: None,
            sandbox: None,
            finding: Finding::Well,
            goodbye: None,
            asks: None,
            occurrences: BTreeMap::new(),
            words: BTreeMap::new(),
            short_at: None,
            began_fresh: false,
            timeouts: 0,
        }
    }
}

/// What an agent asks people for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HumanRequest {
    /// More tokens, in these words.
    Tokens(String),
    /// Nothing any more.
    Nothing,
}

/// What is known of one agent, and what it is told.
pub(super) struct AgentRecord {
    pub expected: Option<Expected>,
    pub registered: bool,
    pub started: bool,
    pub report: Option<(Report, jiff::Timestamp)>,
    pub sandbox: Option<Sandbox>,
    pub finding: Finding,
    pub goodbye: Option<(String, jiff::Timestamp)>,
    pub goodbye_stored: bool,
    pub asks: Option<HumanRequest>,
    pub asks_stored: Option<HumanRequest>,
    pub answered: BTreeMap<Signal, BootTime>,
    pub dealt_with: BTreeMap<Signal, BootTime>,
    pub directive: Directive,
    /// Its reconciler said so.
    pub directed: bool,
    pub notices: VecDeque<Notice>,
    pub notices_said: u64,
    pub revision: u64,
    pub occurrences: BTreeMap<Signal, VecDeque<BootTime>>,
    pub words: BTreeMap<Signal, String>,
    pub spawning: Arc<tokio::sync::Mutex<Vec<BootTime>>>,
    pub hand: Option<ItemInHand>,
    pub item: Option<ItemWanted>,
    pub commanding: CommandState,
    pub short_at: Option<i64>,
    pub refused: Option<(LeaseRef, RefusedCall, BootTime)>,
    pub timeouts: u32,
    /// For how long nobody heard of it or looked at it.
    pub idle: Duration,
}

impl Default for AgentRecord {
    fn default() -> Self {
        Self {
            expected: None,
            registered: false,
            started: false,
            report: None,
            sandbox: None,
            finding: Finding::Well,
            goodbye: None,
            goodbye_stored: false,
            asks: None,
            asks_stored: None,
            answered: BTreeMap::new(),
            dealt_with: BTreeMap::new(),
            directive: Directive::Run,
            directed: false,
            notices: VecDeque::new(),
            notices_said: 0,
            revision: 0,
            occurrences: BTreeMap::new(),
            words: BTreeMap::new(),
            spawning: Arc::default(),
            hand: None,
            item: None,
            commanding: CommandState::default(),
            short_at: None,
            refused: None,
            timeouts: 0,
            idle: Duration::ZERO,
        }
    }
}

impl AgentRecord {
    /// Between its reports, as it was told; zero before the first one.
    pub fn period(&self) -> Duration {
        Duration::from_secs(self.report.as_ref().map_or(0, |(report, _)| report.period_seconds.into()))
    }

    /// Whether it is to be remembered when `time` has passed.
    pub fn stays(&mut self, time: Duration) -> bool {
        self.idle += time;
        // Somebody makes a child of it.
        let busy = Arc::strong_count(&self.spawning) > 1;
        busy || self.expected.is_some() || self.idle < UNEXPECTED_AGENT_TTL
    }
}

impl ItemInHand {
    /// Time goes by.
    pub fn tick(&mut self, time: Duration) {
        if self.working.paused.is_some() {
            return;
        }
        self.held += time;
        self.unmoved += time;
        if self.working.cancelling {
            self.cancelling += time;
        }
    }

    /// What the monitor looks at. `period`: between reports, as the agent was told.
    pub fn facts(&self, period: Duration) -> health::Work {
        let Working { held: _, lease, stall, attempt, cancelling, paused: _, fresh: _ } = &self.working;
        // A lease cannot be shorter than what its holder was told about reporting.
        let periods = period.saturating_mul(MAX_MISSED_REPORTS);
        health::Work {
            lease: (*lease).max(periods),
            stall: *stall,
            attempt: *attempt,
            cancel: CANCEL_TIMEOUT.max(periods),
            held: self.held,
            unmoved: self.unmoved,
            cancelling: cancelling.then_some(self.cancelling),
        }
    }
}

/// What is known of an agent's commands.
#[derive(Default)]
pub(super) struct CommandState {
    /// What it is told, and until when the circuit of its namespace is open.
    pub told: Option<(CommandBreakers, Option<BootTime>)>,
    /// What its pod counted; none: it was not heard yet.
    pub counts: Option<CommandCounts>,
    /// The commands that it tries for its namespace.
    pub tries: BTreeMap<CommandPermit, Permit>,
}
