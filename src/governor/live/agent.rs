//! The state of one agent, and the changes that follow from time alone.
//!
//! It must not depend on other agents.

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

/// Reports that an agent may miss, whatever the spec of its pool says now: the agent keeps the period that it got when
/// it registered.
pub(super) const MAX_MISSED_REPORTS: u32 = 3;
/// How long an agent may take to give its item back after it was told to.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an agent is kept that is not expected, and that no call and no reconciler touched. The last call of an
/// agent may come just after its end.
pub(super) const UNEXPECTED_AGENT_TTL: Duration = Duration::from_secs(3600);

/// Facts of the reconciler that a judgement on silence needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Its Agent.
    pub key: ObjectKey,
    /// The agent registered, with us or with a previous leader.
    pub registered: bool,
    /// The program was started, as a previous leader knew.
    pub started: bool,
    /// How long the start may take.
    pub startup: Duration,
    /// Silence after which the agent is given up.
    pub timeout: Duration,
    /// Its node. `None` outside the cluster.
    pub node: Option<String>,
    /// The agent holds an item, or a person is attached to it.
    pub active: bool,
    /// The agent is to take no new item.
    pub paused: bool,
    /// Its node is silent, so the silence of the agent proves nothing.
    pub excused: bool,
}

/// The item that an agent holds, and its time limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Working {
    /// The lease.
    pub held: LeaseRef,
    /// Silence of the pod after which the lease is lost.
    pub lease: Duration,
    /// Time without progress after which the lease is lost.
    pub stall: Duration,
    /// Time limit of the attempt.
    pub attempt: Duration,
    /// The agent was told to give the item back.
    pub cancelling: bool,
    /// Number of the current pause, if the item and its agent are paused. The clocks of the item stand still.
    pub paused: Option<i64>,
    /// The agent had used none of its lifetime tokens. The value from the start of the lease counts.
    pub had_all_tokens: bool,
}

/// The item that an agent holds, and its served times.
#[derive(Clone, Debug)]
pub(super) struct ItemInHand {
    pub working: Working,
    pub held: Duration,
    pub without_progress: Duration,
    pub cancelling: Duration,
}

/// A view of one agent.
#[derive(Clone, Debug)]
pub struct View {
    /// The agent registered with us or reported to us.
    pub registered: bool,
    /// The agent reported to us that its program was started.
    pub started: bool,
    /// The last report, and when it came.
    pub report: Option<(Report, jiff::Timestamp)>,
    /// The sandbox that the pod reported.
    pub sandbox: Option<Sandbox>,
    /// The finding about its silence.
    pub finding: Finding,
    /// The reason of its goodbye, and when it came.
    pub goodbye: Option<(String, jiff::Timestamp)>,
    /// What the agent asks people for, as its status is to show it.
    pub asks: Option<HumanRequest>,
    /// How long ago each signal was raised.
    pub occurrences: BTreeMap<Signal, Vec<Duration>>,
    /// The message of the last occurrence, if it says more than the name of the signal.
    pub words: BTreeMap<Signal, String>,
    /// The lifetime limit at the time when a call was refused for lack of tokens.
    pub refused_at_limit: Option<i64>,
    /// The agent had used none of its lifetime tokens when it got its current item.
    pub began_fresh: bool,
    /// Timeouts that the status does not count yet.
    pub timeouts: u32,
}

#[cfg(test)]
impl View {
    /// A running agent without anything special.
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
            refused_at_limit: None,
            began_fresh: false,
            timeouts: 0,
        }
    }
}

/// What an agent asks people for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HumanRequest {
    /// More tokens, with this message.
    Tokens(String),
    /// Nothing.
    Nothing,
}

/// The state of one agent, and the messages for it.
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
    /// The reconciler set the directive.
    pub directed: bool,
    pub notices: VecDeque<Notice>,
    pub notices_said: u64,
    pub revision: u64,
    pub occurrences: BTreeMap<Signal, VecDeque<BootTime>>,
    pub words: BTreeMap<Signal, String>,
    pub spawning: Arc<tokio::sync::Mutex<Vec<BootTime>>>,
    pub item_in_hand: Option<ItemInHand>,
    pub item: Option<ItemWanted>,
    pub command_state: CommandState,
    pub refused_at_limit: Option<i64>,
    pub refused: Option<(LeaseRef, RefusedCall, BootTime)>,
    pub timeouts: u32,
    /// System calls and uses of files that the sandbox refused, as the pod counts them. `None` before its first report.
    pub refusals: Option<[u64; 2]>,
    /// How long no call and no reconciler touched the agent.
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
            item_in_hand: None,
            item: None,
            command_state: CommandState::default(),
            refused_at_limit: None,
            refused: None,
            timeouts: 0,
            refusals: None,
            idle: Duration::ZERO,
        }
    }
}

impl AgentRecord {
    /// The report interval that the agent was given. Zero before the first report.
    pub fn period(&self) -> Duration {
        Duration::from_secs(self.report.as_ref().map_or(0, |(report, _)| report.period_seconds.into()))
    }

    /// Whether the agent is kept after `time` has passed.
    pub fn stays(&mut self, time: Duration) -> bool {
        self.idle += time;
        // A call is creating a child of this agent.
        let busy = Arc::strong_count(&self.spawning) > 1;
        busy || self.expected.is_some() || self.idle < UNEXPECTED_AGENT_TTL
    }
}

impl ItemInHand {
    /// Advances the clocks of the item.
    pub fn tick(&mut self, time: Duration) {
        if self.working.paused.is_some() {
            return;
        }
        self.held += time;
        self.without_progress += time;
        if self.working.cancelling {
            self.cancelling += time;
        }
    }

    /// The facts for the monitor. `period` is the report interval that the agent was given.
    pub fn facts(&self, period: Duration) -> health::Work {
        let Working { held: _, lease, stall, attempt, cancelling, paused: _, had_all_tokens: _ } = &self.working;
        // A lease cannot be shorter than the report interval of its holder allows.
        let periods = period.saturating_mul(MAX_MISSED_REPORTS);
        health::Work {
            lease: (*lease).max(periods),
            stall: *stall,
            attempt: *attempt,
            cancel: CANCEL_TIMEOUT.max(periods),
            held: self.held,
            without_progress: self.without_progress,
            cancelling: cancelling.then_some(self.cancelling),
        }
    }
}

/// The command state of an agent.
#[derive(Default)]
pub(super) struct CommandState {
    /// The state that the agent was sent, and until when the circuit of its namespace is open.
    pub told: Option<(CommandBreakers, Option<BootTime>)>,
    /// The counts of its pod. `None` before its first report.
    pub counts: Option<CommandCounts>,
    /// The commands that the agent tries for its namespace.
    pub tries: BTreeMap<CommandPermit, Permit>,
}
