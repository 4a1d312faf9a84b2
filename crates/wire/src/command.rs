//! Messages about commands over the unix socket: a program asks whether it may run a command, and reports how the
//! command ended.
//!
//! The report is not trusted. It reaches only the breaker of its own pod. That breaker reports its counts for the
//! namespace. The desired state of an agent contains the settings of both breakers, and whether the breaker of the
//! namespace is open.

use serde::{Deserialize, Serialize};

use crate::body::BoundedBody;

/// Maximum time limit that a program may ask for, in milliseconds. The pool decides the limit that a command gets.
const MAX_COMMAND_TIMEOUT_MS: u64 = 86_400_000;

/// A request to run a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BeginCommand {
    /// Time limit of the command. None: the default of the pool.
    #[serde(default)]
    pub timeout_milliseconds: Option<u64>,
    /// Set if the program did not ask for a time limit. None: it did.
    #[serde(default)]
    pub unasked: Option<ObservedCommand>,
}

/// A command whose program did not ask for a time limit: a shell that the program found on its `PATH`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ObservedCommand {
    /// When the program started, in milliseconds since boot.
    pub program_started: u64,
}

impl BoundedBody for BeginCommand {
    fn check(&self) -> Result<(), (&'static str, String)> {
        match self.timeout_milliseconds {
            Some(0) => Err(("timeoutMilliseconds", "must be at least 1".into())),
            Some(asked) if asked > MAX_COMMAND_TIMEOUT_MS => {
                Err(("timeoutMilliseconds", format!("must be at most {MAX_COMMAND_TIMEOUT_MS}")))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// The answer if the command may run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CommandBegun {
    /// Permit that is returned when the command has ended.
    pub permit: CommandPermit,
    /// Time limit of the command.
    pub timeout_milliseconds: u64,
    /// Names of programs that keep running. A command that contains one of them has no time limit, if its program did
    /// not ask for one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub untimed: Vec<String>,
}

/// A permit to run one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CommandPermit {
    /// Issuer of the permit: one start of the sidecar, or a governor.
    pub owner: u64,
    /// Epoch of the breaker.
    pub epoch: u64,
    /// Number of the permit.
    pub id: u64,
}

/// A report that a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CommandEnded {
    /// Permit of the command.
    pub permit: CommandPermit,
    /// How the command ended.
    pub how: CommandEnd,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CommandEnd {
    /// It exited with this code.
    Exited(i32),
    /// A signal ended it that Spillway did not send.
    Signalled,
    /// It reached its time limit and was killed.
    TimedOut,
    /// It could not be started.
    NotStarted,
    /// The requester cancelled it.
    Cancelled,
}

/// The answer if the command may not run now: a breaker is open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CommandRejected {
    /// Which breaker is open, why, and when to try again, for people and models.
    pub message: String,
    /// Time after which the command may pass.
    pub retry_after_milliseconds: u64,
}

/// Mode of a breaker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum BreakerMode {
    /// It refuses commands while it is open.
    #[default]
    Enforce,
    /// It counts failures and refuses nothing.
    Observe,
    /// It does nothing.
    Off,
}

/// The state in which a person holds a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum BreakerForce {
    /// Everything is refused.
    Open,
    /// Everything passes.
    Closed,
}

/// Settings of an agent's own command breaker, and the state of the namespace's breaker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CommandBreakers {
    /// Mode of both breakers.
    pub mode: BreakerMode,
    /// State in which a person holds both breakers. None: no person does.
    #[serde(default)]
    pub force: Option<BreakerForce>,
    /// Failures of the agent's commands within the window that open its own breaker.
    pub failure_threshold: u32,
    /// Minimum time for which a failure counts.
    pub window_milliseconds: u64,
    /// Time for which the breaker stays open.
    pub open_milliseconds: u64,
    /// Factor by which each consecutive opening multiplies that time.
    pub backoff_factor: u32,
    /// Maximum time for which the breaker stays open.
    pub max_open_milliseconds: u64,
    /// Consecutive successful commands that close the breaker.
    pub success_threshold: u32,
    /// Maximum number of probes at a time.
    pub half_open_probes: u32,
    /// Time after which a probe without a result has failed. None: the time limit of its command.
    #[serde(default)]
    pub probe_milliseconds: Option<u64>,
    /// Exit codes that count as failures.
    #[serde(default)]
    pub failure_exit_codes: Vec<i32>,
    /// Set if the breaker of the namespace is open. None: it is closed.
    #[serde(default)]
    pub open_globally: Option<OpenGlobally>,
}

/// State of the namespace's breaker while it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct OpenGlobally {
    /// Whether a person holds it open. A request for a probe is useless then.
    #[serde(default)]
    pub forced: bool,
    /// Time after which the sidecar may ask to run a command as a probe.
    pub retry_after_milliseconds: u64,
}

/// Counts of a pod's command breaker since the pod started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CommandCounts {
    /// Commands that hung or could not be started.
    #[serde(default)]
    pub failed: u64,
    /// Openings of the breaker.
    #[serde(default)]
    pub opened: u64,
}

impl CommandCounts {
    /// Whether all counts are 0.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// The state of a breaker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum BreakerState {
    /// Commands pass.
    #[default]
    Closed,
    /// Commands run as probes.
    HalfOpen,
    /// Commands are refused.
    Open,
}

impl BreakerState {
    /// Whether commands pass.
    pub fn is_closed(&self) -> bool {
        *self == Self::Closed
    }
}

/// A sidecar's request to run a command as a probe while the breaker of the namespace is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TryCommand {
    /// Permit of the pod's own breaker. It identifies the command: a repeated request gets the same answer.
    pub command: CommandPermit,
    /// Time limit of the command.
    pub timeout_milliseconds: u64,
}

impl BoundedBody for TryCommand {
    fn check(&self) -> Result<(), (&'static str, String)> {
        BeginCommand { timeout_milliseconds: Some(self.timeout_milliseconds), unasked: None }.check()
    }
}

/// The answer to [`TryCommand`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum TryAnswer {
    /// The command may run. Its end must be reported.
    Permit(CommandPermit),
    /// The command may not run.
    Rejected(CommandRejected),
}

/// A report that a probe ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EndTry {
    /// Permit of the probe.
    pub permit: CommandPermit,
    /// Result of the probe.
    pub outcome: TryOutcome,
}

impl BoundedBody for EndTry {
    fn check(&self) -> Result<(), (&'static str, String)> {
        Ok(())
    }
}

/// Result of a probe for its breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum TryOutcome {
    /// The command worked.
    Success,
    /// The command hung or could not be started.
    Failure,
    /// The probe has no result.
    Neutral,
}

/// Time limits of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CommandLimits {
    /// Seconds for a command that asks for no time limit.
    pub timeout_seconds: u32,
    /// Maximum seconds that a command may ask for.
    pub max_timeout_seconds: u32,
}

impl Default for CommandLimits {
    fn default() -> Self {
        Self { timeout_seconds: 120, max_timeout_seconds: 3600 }
    }
}

/// Commands that have no time limit unless their program asks for one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TimeExemptions {
    /// Names of programs whose commands are exempt. [`ALL_COMMANDS`](Self::ALL_COMMANDS) exempts every command.
    #[serde(default)]
    pub names: Vec<String>,
    /// Whether commands are exempt that began before a model answered the program for the first time. No model has
    /// asked for these commands.
    pub until_answer: bool,
}

impl TimeExemptions {
    /// Name that stands for all programs: no command has a time limit unless it asks for one.
    pub const ALL_COMMANDS: &str = "*";

    /// Whether no command has a time limit unless it asks for one.
    pub fn exempts_every_command(&self) -> bool {
        self.names.iter().any(|name| name == Self::ALL_COMMANDS)
    }
}

impl Default for TimeExemptions {
    /// The value until the pool's settings arrive: only commands that a model is known to have caused have a time
    /// limit.
    fn default() -> Self {
        Self { names: Vec::new(), until_answer: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{Ask, Hello};

    #[test]
    fn default_exemptions_time_only_commands_of_a_model() {
        let read = |json: &str| serde_json::from_str::<TimeExemptions>(json).expect("it is understood");
        assert_eq!(TimeExemptions::default(), read(r#"{"untilAnswer": true}"#));
        assert!(
            read(r#"{"names": ["vite", "*"], "untilAnswer": false}"#).exempts_every_command()
                && !TimeExemptions::default().exempts_every_command()
        );
    }

    #[test]
    fn a_command_timeout_is_unset_or_in_range() {
        let read = |body: &str| crate::body::read::<Hello>(body.as_bytes());
        let begin = |timeout_milliseconds| Hello::Ask(Ask::BeginCommand(BeginCommand { timeout_milliseconds, unasked: None }));
        assert_eq!(read(r#"{"ask": {"beginCommand": {}}}"#).expect("a question"), begin(None));
        assert_eq!(read(r#"{"ask": {"beginCommand": {"timeoutMilliseconds": 5}}}"#).expect("a question"), begin(Some(5)));
        for wrong in ["0", "86400001", "-1", "\"5\""] {
            let refused = read(&format!(r#"{{"ask": {{"beginCommand": {{"timeoutMilliseconds": {wrong}}}}}}}"#)).expect_err(wrong);
            assert!(refused.field.is_some_and(|field| field.ends_with("timeoutMilliseconds")), "{wrong}");
        }
    }
}
