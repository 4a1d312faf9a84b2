//! The agents' API, version 1: calls that a pod's sidecar makes to the gateway, which forwards them to the governor.
//!
//! Every call can be repeated: a lost answer costs a second call and nothing else. The desired state (`wanted`) is a
//! whole state and not a command. Therefore the newest one alone is enough.

use serde::{Deserialize, Serialize};

use crate::body::{BoundedBody, at_most};
use crate::changeset::ChangesetSettings;
use crate::command::{BreakerState, CommandBreakers, CommandCounts, CommandLimits, TimeExemptions};
use crate::sandbox::{SandboxRefusals, SandboxUnavailable};
use crate::work::{ItemWanted, LeaseRef};

/// The first call of a sidecar after each of its starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Register {
    /// Version of the programs in the pod.
    pub version: String,
    /// The sandbox in force, as the pod detected it.
    #[serde(default)]
    pub sandbox: Option<Sandbox>,
}

impl BoundedBody for Register {
    fn check(&self) -> Result<(), (&'static str, String)> {
        at_most("version", &self.version, 64)?;
        self.sandbox.as_ref().map_or(Ok(()), Sandbox::check)
    }
}

/// The sandbox in force, as the pod detected it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Sandbox {
    /// Name of the isolation of the program.
    pub tier: String,
    /// Guarantees that are missing.
    #[serde(default)]
    pub missing: Vec<String>,
    /// Why the program does not start on its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<SandboxUnavailable>,
}

impl Sandbox {
    fn check(&self) -> Result<(), (&'static str, String)> {
        at_most("sandbox.tier", &self.tier, 63)?;
        if self.missing.len() > 16 {
            return Err(("sandbox.missing", format!("must have at most 16 entries, but has {}", self.missing.len())));
        }
        self.missing.iter().try_for_each(|one| at_most("sandbox.missing", one, 128))?;
        self.unavailable.iter().try_for_each(|unavailable| unavailable.check("sandbox.unavailable.message"))
    }
}

/// Settings of the pod's programs. They are the answer to [`Register`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// Name of the Agent.
    pub agent: String,
    /// Name of the agent that is shown to people.
    pub display_name: String,
    /// Seconds between reports.
    pub heartbeat_period_seconds: u32,
    /// Seconds without an answer from any gateway after which the pod ends itself.
    pub heartbeat_timeout_seconds: u32,
    /// Seconds from the request to stop until the agent is killed.
    pub goodbye_timeout_seconds: u32,
    /// Whether a person attaches to the agent's terminal (a Chat pool).
    pub chat: bool,
    /// Targets that must not be reachable from the pod, each as `host:port`.
    pub canaries: Vec<String>,
    /// Command that runs before the program is asked to stop.
    #[serde(default)]
    pub drain_hook: Vec<String>,
    /// Command that runs for each warning, which it gets on its standard input.
    #[serde(default)]
    pub warn_hook: Vec<String>,
    /// Command that runs before work is paused, so that the work can continue from that point.
    #[serde(default)]
    pub checkpoint_hook: Vec<String>,
    /// Command that must succeed before the program starts and the agent asks for work. Empty: there is no such
    /// command.
    #[serde(default)]
    pub preflight_command: Vec<String>,
    /// Seconds that this command may take. None: 30.
    #[serde(default)]
    pub preflight_seconds: Option<u32>,
    /// Settings for work from queues. None: the agent takes no items, and its program is started once.
    #[serde(default)]
    pub work: Option<WorkSettings>,
    /// Time limits of the agent's commands.
    #[serde(default)]
    pub commands: CommandLimits,
    /// Commands that have no time limit unless they ask for one.
    #[serde(default)]
    pub untimed: TimeExemptions,
    /// The desired state now.
    pub wanted: DesiredState,
}

/// Settings for work from queues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WorkSettings {
    /// Which of the pod's programs asks for an item.
    pub run: Run,
    /// How the payload of an item reaches the program that runs for it.
    pub input: Input,
    /// Prompt for a program that ended with success and did not report the end of its item. It runs again with this
    /// prompt.
    pub continue_prompt: String,
    /// Maximum number of runs of the program for one item.
    pub max_turns: u32,
    /// Number of items after which the agent says goodbye. None: there is no limit.
    #[serde(default)]
    pub max_items: Option<u32>,
    /// How the pod makes the changesets of items. None: items have no changesets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changeset: Option<Box<ChangesetSettings>>,
}

/// Which of the pod's programs asks for an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Run {
    /// The sidecar asks. The program runs once for each item.
    PerItem,
    /// The program asks. It runs all the time.
    LongRunning,
}

/// How the payload of an item reaches the program that runs for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Input {
    /// On its standard input.
    Stdin,
    /// In the file that `SPILLWAY_PAYLOAD_FILE` names.
    File,
    /// As its last argument.
    Argument,
}

/// State of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Program {
    /// It has not started yet, or there is no item for it to run for.
    Waiting,
    /// It runs.
    Running,
    /// It exists and does not run: a signal stopped it.
    Frozen,
    /// It ended.
    Ended,
}

/// State of the agent's preflight command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum PreflightState {
    /// The command has not ended yet.
    Pending,
    /// The command succeeded: the program may run, and the agent may get work.
    Passed,
    /// The command failed and runs again.
    Failed,
}

/// Result of the agent's preflight command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Preflight {
    /// State of the command.
    pub state: PreflightState,
    /// How the last run failed, and the end of its output.
    #[serde(default)]
    pub message: String,
}

impl Preflight {
    /// Maximum number of characters of a message.
    pub const MAX_MESSAGE_CHARS: usize = 1024;

    fn check(&self) -> Result<(), (&'static str, String)> {
        at_most("preflight.message", &self.message, Self::MAX_MESSAGE_CHARS)
    }
}

/// State of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum CheckpointState {
    /// The hook runs.
    Running,
    /// The hook succeeded.
    Taken,
    /// The hook failed or took too long.
    Failed,
    /// There is no hook.
    NoHook,
}

/// Result of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Checkpoint {
    /// The lease of the item.
    pub held: LeaseRef,
    /// Number of the pause that asked for the checkpoint.
    pub pause: i64,
    /// State of the checkpoint.
    pub state: CheckpointState,
    /// How the hook failed. Empty if it did not.
    #[serde(default)]
    pub message: String,
}

impl Checkpoint {
    fn check(&self) -> Result<(), (&'static str, String)> {
        at_most("checkpoint.held.uid", &self.held.uid, 64)?;
        at_most("checkpoint.message", &self.message, 256)
    }
}

/// The heartbeat: state of the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Report {
    /// Seconds between reports, as the agent was told when it registered. A later change of the pool is no fault of the
    /// agent.
    #[serde(default)]
    pub period_seconds: u32,
    /// State of the program.
    pub program: Program,
    /// Milliseconds since the last visible activity of the program: output, a `spillway` call, or its terminal.
    pub silent_ms: u64,
    /// Milliseconds for which the program has been [`Program::Frozen`] without a break.
    #[serde(default)]
    pub frozen_ms: u64,
    /// Current action, as the program reports it.
    #[serde(default)]
    pub action: Option<String>,
    /// Whether the terminal was used in the last minute.
    #[serde(default)]
    pub attached: bool,
    /// Targets that are reachable from the pod and must not be.
    #[serde(default)]
    pub reachable: Vec<String>,
    /// Id of the last notice that was delivered in the pod.
    #[serde(default)]
    pub notices_seen: u64,
    /// Lease of the item that the agent works on.
    #[serde(default)]
    pub held: Option<LeaseRef>,
    /// Result of the preflight command. None: there is no such command, or it has not run yet. The field is left out
    /// then, because an older governor does not know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preflight: Option<Preflight>,
    /// Counts of the pod's command breaker. The field is left out while they are 0, for the same reason.
    #[serde(default, skip_serializing_if = "CommandCounts::is_nothing")]
    pub commands: CommandCounts,
    /// State of the pod's command breaker. The field is left out while the breaker is closed, for the same reason.
    #[serde(default, skip_serializing_if = "BreakerState::is_closed")]
    pub breaker: BreakerState,
    /// Result of the checkpoint that the last pause of the item asked for. The field is left out if there is none, for
    /// the same reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// What the sandbox refused. The field is left out while that is nothing, for the same reason.
    #[serde(default, skip_serializing_if = "SandboxRefusals::is_nothing")]
    pub refused: SandboxRefusals,
    /// Why the supervisor could not prepare the sandbox, so that the program does not start. The field is left out if it could, for the same
    /// reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<SandboxUnavailable>,
}

impl Report {
    /// A report of a program of which only the state is known.
    pub fn of(program: Program) -> Self {
        Self {
            period_seconds: 0,
            program,
            silent_ms: 0,
            frozen_ms: 0,
            action: None,
            attached: false,
            reachable: Vec::new(),
            notices_seen: 0,
            held: None,
            preflight: None,
            commands: CommandCounts::default(),
            breaker: BreakerState::default(),
            checkpoint: None,
            refused: SandboxRefusals::default(),
            unavailable: None,
        }
    }
}

impl BoundedBody for Report {
    fn check(&self) -> Result<(), (&'static str, String)> {
        at_most("action", self.action.as_deref().unwrap_or_default(), 256)?;
        at_most("held.uid", self.held.as_ref().map_or("", |held| &held.uid), 64)?;
        self.preflight.as_ref().map_or(Ok(()), Preflight::check)?;
        self.checkpoint.as_ref().map_or(Ok(()), Checkpoint::check)?;
        self.refused.check()?;
        self.unavailable.iter().try_for_each(|unavailable| unavailable.check("unavailable.message"))?;
        if self.reachable.len() > 16 {
            return Err(("reachable", format!("must have at most 16 entries, but has {}", self.reachable.len())));
        }
        self.reachable.iter().try_for_each(|one| at_most("reachable", one, 260))
    }
}

/// Instruction to an agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Directive {
    /// Take items and work.
    #[default]
    Run,
    /// Take no new item.
    Pause,
    /// Finish the work and end: the pod ends soon.
    Drain,
    /// End at once.
    Stop,
}

/// A message for the agent and the model behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Notice {
    /// Number of the notice. It rises by one with each notice of an agent.
    pub id: u64,
    /// Time of the notice (RFC 3339).
    pub time: String,
    /// Subject: the name of a signal or an event.
    pub about: String,
    /// Text of the notice.
    pub text: String,
}

/// The whole desired state of an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DesiredState {
    /// Revision of this state. It is compared for equality only.
    pub revision: String,
    /// Instruction to the agent.
    pub directive: Directive,
    /// Notices that the agent has not acknowledged yet, oldest first.
    #[serde(default)]
    pub notices: Vec<Notice>,
    /// Instruction about the item that the agent holds. None: continue to work on it.
    #[serde(default)]
    pub item: Option<ItemWanted>,
    /// State of the command breakers. None: nothing is known about them yet, and the previous state applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commands: Option<Box<CommandBreakers>>,
}

/// The query of `GET /agent/v1/wanted`, which answers with the whole desired state when its revision changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DesiredStateQuery {
    /// The revision that the caller knows. Unset: it knows none.
    #[serde(default)]
    pub after: Option<String>,
}

impl BoundedBody for DesiredStateQuery {
    fn check(&self) -> Result<(), (&'static str, String)> {
        at_most("after", self.after.as_deref().unwrap_or_default(), 64)
    }
}

/// The goodbye of an agent. It is recorded. The call itself stops nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Goodbye {
    /// Reason of the goodbye, for people.
    pub reason: String,
}

impl BoundedBody for Goodbye {
    fn check(&self) -> Result<(), (&'static str, String)> {
        at_most("reason", &self.reason, 1024)
    }
}

/// An agent's request for a child agent. It can be repeated with the same `Idempotency-Key` header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spawn {
    /// Pool whose program, bulkhead and sandbox the child gets. `may.spawnIn` of the parent's pool must list it.
    pub pool: String,
    /// Name of the child that is shown to people.
    #[serde(default)]
    pub display_name: Option<String>,
}

impl BoundedBody for Spawn {
    fn check(&self) -> Result<(), (&'static str, String)> {
        at_most("pool", &self.pool, 63)?;
        let name = self.display_name.as_deref().unwrap_or("x");
        if name.is_empty() {
            return Err(("displayName", "must not be empty".into()));
        }
        at_most("displayName", name, 63)
    }
}

/// The child agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Spawned {
    /// Name of the child's Agent.
    pub agent: String,
}

/// An empty answer: the call was carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Acknowledgement {}
