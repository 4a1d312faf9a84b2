//! The agents' API, version 1: calls of a pod's sidecar, to the gateway and by it to the governor.
//!
//! Every call is repeatable: an answer that is lost costs a second call and nothing else. `wanted` is a whole state, not a
//! command: whoever has the newest one knows everything.

use serde::{Deserialize, Serialize};

use crate::body::{BoundedBody, at_most};
use crate::command::{BreakerState, CommandBreakers, CommandCounts, CommandLimits, TimeExemptions};
use crate::work::{ItemWanted, LeaseRef};

/// First call of a sidecar, after each start of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Register {
    /// Version of the programs in the pod.
    pub version: String,
    /// The sandbox as the pod finds it.
    #[serde(default)]
    pub sandbox: Option<Sandbox>,
}

impl BoundedBody for Register {
    fn check(&self) -> Result<(), (&'static str, String)> {
        at_most("version", &self.version, 64)?;
        self.sandbox.as_ref().map_or(Ok(()), Sandbox::check)
    }
}

/// The sandbox in force, as the pod finds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Sandbox {
    /// What isolates the program.
    pub tier: String,
    /// Guarantees that are missing.
    #[serde(default)]
    pub missing: Vec<String>,
}

impl Sandbox {
    fn check(&self) -> Result<(), (&'static str, String)> {
        at_most("sandbox.tier", &self.tier, 63)?;
        if self.missing.len() > 16 {
            return Err(("sandbox.missing", format!("must have at most 16 entries, but has {}", self.missing.len())));
        }
        self.missing.iter().try_for_each(|one| at_most("sandbox.missing", one, 128))
    }
}

/// How the pod's programs behave; the answer to [`Register`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// Name of the Agent.
    pub agent: String,
    /// Its name for people.
    pub display_name: String,
    /// Seconds between reports.
    pub heartbeat_period_seconds: u32,
    /// Seconds of silence from everyone after which the pod ends itself.
    pub heartbeat_timeout_seconds: u32,
    /// Seconds between being asked to stop and being killed.
    pub goodbye_timeout_seconds: u32,
    /// A person attaches to its terminal.
    pub chat: bool,
    /// What must not be reachable from the pod, as `host:port`.
    pub canaries: Vec<String>,
    /// Run before the program is asked to stop.
    #[serde(default)]
    pub drain_hook: Vec<String>,
    /// Run for each warning, which it gets on its standard input.
    #[serde(default)]
    pub warn_hook: Vec<String>,
    /// Run before work is paused, so that it can go on from there.
    #[serde(default)]
    pub checkpoint_hook: Vec<String>,
    /// Has to succeed before the program is started and work is asked for; empty: nothing has to.
    #[serde(default)]
    pub preflight_command: Vec<String>,
    /// How it works from queues; none: it does not, and its program is started once.
    #[serde(default)]
    pub work: Option<WorkSettings>,
    /// How long its commands may take.
    #[serde(default)]
    pub commands: CommandLimits,
    /// Which of them have no time unless they ask for one.
    #[serde(default)]
    pub untimed: TimeExemptions,
    /// What is wanted now.
    pub wanted: DesiredState,
}

/// How an agent works from queues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WorkSettings {
    /// Who asks for an item.
    pub run: Run,
    /// How an item's payload reaches a program that is run for it.
    pub input: Input,
    /// What a program is given that is run again for the same item, because it ended well without a word about the item.
    pub continue_prompt: String,
    /// How often a program is run for one item at most.
    pub max_turns: u32,
    /// Items after which the agent says goodbye; none: no end.
    #[serde(default)]
    pub max_items: Option<u32>,
}

/// Who asks for an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Run {
    /// The sidecar, and the program is run for each.
    PerItem,
    /// The program, which runs all the time.
    LongRunning,
}

/// How an item's payload reaches a program that is run for it.
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

/// Where the program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Program {
    /// It was not started yet, or waits for an item to be run for.
    Waiting,
    /// It runs.
    Running,
    /// It exists and does not run: somebody stopped it with a signal.
    Frozen,
    /// It ended.
    Ended,
}

/// How the agent's preflight stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum PreflightState {
    /// Its command has not ended yet.
    Pending,
    /// Its command succeeded: the program may run, and work may come.
    Passed,
    /// Its command failed, and is run again.
    Failed,
}

/// What came of the agent's preflight command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Preflight {
    /// How it stands.
    pub state: PreflightState,
    /// How the last run failed, and the last that it wrote.
    #[serde(default)]
    pub message: String,
}

impl Preflight {
    /// The most characters of a message.
    pub const MAX_MESSAGE_CHARS: usize = 1024;

    fn check(&self) -> Result<(), (&'static str, String)> {
        at_most("preflight.message", &self.message, Self::MAX_MESSAGE_CHARS)
    }
}

/// How a checkpoint stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum CheckpointState {
    /// Its hook runs.
    Running,
    /// Its hook succeeded.
    Taken,
    /// Its hook failed, or took too long.
    Failed,
    /// There is no hook.
    NoHook,
}

/// What came of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Checkpoint {
    /// The lease.
    pub held: LeaseRef,
    /// The pause that asked for it.
    pub pause: i64,
    /// How it stands.
    pub state: CheckpointState,
    /// How the hook failed.
    #[serde(default)]
    pub message: String,
}

impl Checkpoint {
    fn check(&self) -> Result<(), (&'static str, String)> {
        at_most("checkpoint.held.uid", &self.held.uid, 64)?;
        at_most("checkpoint.message", &self.message, 256)
    }
}

/// The heartbeat: how the agent is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Report {
    /// Seconds between its reports, as it was told when it registered: a pool that was changed since is not its fault.
    #[serde(default)]
    pub period_seconds: u32,
    /// Where its program is.
    pub program: Program,
    /// Milliseconds since the program last did something that can be seen: output, a `spillway` call, its terminal.
    pub silent_ms: u64,
    /// Milliseconds for which the program has been [`Program::Frozen`] without a break.
    #[serde(default)]
    pub frozen_ms: u64,
    /// What it says it does.
    #[serde(default)]
    pub action: Option<String>,
    /// Its terminal was used in the last minute.
    #[serde(default)]
    pub attached: bool,
    /// Targets that must not be reachable from the pod and are.
    #[serde(default)]
    pub reachable: Vec<String>,
    /// The highest notice that was delivered in the pod.
    #[serde(default)]
    pub notices_seen: u64,
    /// The item that it works on.
    #[serde(default)]
    pub held: Option<LeaseRef>,
    /// Its preflight; none: it was not asked for one, or not yet. Left out then: a governor of before does not know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preflight: Option<Preflight>,
    /// What its breaker of commands counted. Left out while that is nothing, for the same reason.
    #[serde(default, skip_serializing_if = "CommandCounts::is_nothing")]
    pub commands: CommandCounts,
    /// The state of its breaker of commands. Left out while that is closed, for the same reason.
    #[serde(default, skip_serializing_if = "BreakerState::is_closed")]
    pub breaker: BreakerState,
    /// What came of the checkpoint that the last pause of its item asked for. Left out for the same reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
}

impl Report {
    /// What is said of a program of which nothing more is known.
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
        }
    }
}

impl BoundedBody for Report {
    fn check(&self) -> Result<(), (&'static str, String)> {
        at_most("action", self.action.as_deref().unwrap_or_default(), 256)?;
        at_most("held.uid", self.held.as_ref().map_or("", |held| &held.uid), 64)?;
        self.preflight.as_ref().map_or(Ok(()), Preflight::check)?;
        self.checkpoint.as_ref().map_or(Ok(()), Checkpoint::check)?;
        if self.reachable.len() > 16 {
            return Err(("reachable", format!("must have at most 16 entries, but has {}", self.reachable.len())));
        }
        self.reachable.iter().try_for_each(|one| at_most("reachable", one, 260))
    }
}

/// What an agent is to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Directive {
    /// Work.
    #[default]
    Run,
    /// Take nothing new.
    Pause,
    /// Finish and leave: the pod is about to be ended.
    Drain,
    /// End now.
    Stop,
}

/// Something the agent, and the model behind it, should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Notice {
    /// Rises by one for each agent.
    pub id: u64,
    /// When it was said (RFC 3339).
    pub time: String,
    /// What it is about: the name of a signal or an event.
    pub about: String,
    /// In words.
    pub text: String,
}

/// Everything that is wanted of an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DesiredState {
    /// Names this state. Compared for equality only.
    pub revision: String,
    /// What to do.
    pub directive: Directive,
    /// What it should know and has not acknowledged yet, the oldest first.
    #[serde(default)]
    pub notices: Vec<Notice>,
    /// What is wanted of the item that it holds, if that is anything but to go on.
    #[serde(default)]
    pub item: Option<ItemWanted>,
    /// The breakers of its commands; none: nothing is known of them yet, and what was said before holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commands: Option<Box<CommandBreakers>>,
}

/// The query of `GET /agent/v1/wanted`: the whole wanted state as soon as it is another one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DesiredStateQuery {
    /// The revision that is known; unset: none.
    #[serde(default)]
    pub after: Option<String>,
}

impl BoundedBody for DesiredStateQuery {
    fn check(&self) -> Result<(), (&'static str, String)> {
        at_most("after", self.after.as_deref().unwrap_or_default(), 64)
    }
}

/// The agent says goodbye: recorded, and nothing is stopped by this call itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Goodbye {
    /// Why, for people.
    pub reason: String,
}

impl BoundedBody for Goodbye {
    fn check(&self) -> Result<(), (&'static str, String)> {
        at_most("reason", &self.reason, 1024)
    }
}

/// An agent asks for a child. Repeatable under its `Idempotency-Key` header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spawn {
    /// The pool whose program, bulkhead and sandbox the child has; one of the parent's pool's `may.spawnIn`.
    pub pool: String,
    /// A name for people.
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

/// The child.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Spawned {
    /// Name of its Agent.
    pub agent: String,
}

/// An answer that says nothing but that it was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Acknowledgement {}
