//! Over the unix socket: a program asks whether it may run a command, and says how that ended.
//!
//! What it says is its own word, and reaches nobody but the breaker of its own pod; that counts for the namespace what it believed.
//! How both breakers behave, and whether that of the namespace lets commands pass, is part of what is wanted of an agent.

use serde::{Deserialize, Serialize};

use crate::body::BoundedBody;

/// The longest that may be asked for (milliseconds); how long a command gets is the pool's to say.
const MAX_COMMAND_TIMEOUT_MS: u64 = 86_400_000;

/// A command that is about to be run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BeginCommand {
    /// How long it may take; none: as long as the pool's commands do.
    #[serde(default)]
    pub timeout_milliseconds: Option<u64>,
    /// Its program did not ask for a time; none: it did.
    #[serde(default)]
    pub unasked: Option<ObservedCommand>,
}

/// A command whose program did not ask for a time: a shell that it found on its `PATH`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ObservedCommand {
    /// When the program was started (milliseconds since boot).
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

/// It may be run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CommandBegun {
    /// To be given back with how it ended.
    pub permit: CommandPermit,
    /// How long it may take.
    pub timeout_milliseconds: u64,
    /// Names of programs that are meant to stay: with one of them, a command whose program did not ask for a time has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub untimed: Vec<String>,
}

/// The right to run one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CommandPermit {
    /// Who gave it: a start of the sidecar, or a governor.
    pub owner: u64,
    /// The breaker's epoch.
    pub epoch: u64,
    /// Its number.
    pub id: u64,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CommandEnded {
    /// The permit that it was run with.
    pub permit: CommandPermit,
    /// How.
    pub how: CommandEnd,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CommandEnd {
    /// By itself, with this code.
    Exited(i32),
    /// A signal ended it that was not ours.
    Signalled,
    /// Its time was over and it was killed.
    TimedOut,
    /// It could not be started.
    NotStarted,
    /// Whoever asked for it did not want it any more.
    Cancelled,
}

/// It must not be run now: a breaker is open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CommandRejected {
    /// Which breaker, why, and when to come back, for people and models.
    pub message: String,
    /// After so long it may pass.
    pub retry_after_milliseconds: u64,
}

/// Whether a breaker refuses, only counts, or neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum BreakerMode {
    /// It refuses.
    #[default]
    Enforce,
    /// It counts.
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

/// The breakers of an agent's commands: how its own behaves, and whether that of the namespace is open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CommandBreakers {
    /// Whether they refuse.
    pub mode: BreakerMode,
    /// Whether a person holds them.
    #[serde(default)]
    pub force: Option<BreakerForce>,
    /// Failures of the agent's commands within the window that open its own.
    pub failure_threshold: u32,
    /// How long a failure counts at least.
    pub window_milliseconds: u64,
    /// How long it stays open.
    pub open_milliseconds: u64,
    /// What each opening in a row multiplies that by.
    pub backoff_factor: u32,
    /// How long it stays open at most.
    pub max_open_milliseconds: u64,
    /// Commands in a row that work and close it.
    pub success_threshold: u32,
    /// Commands that are tried at once.
    pub half_open_probes: u32,
    /// After this a command that is tried has failed; none: after its own time.
    #[serde(default)]
    pub probe_milliseconds: Option<u64>,
    /// Exit codes that are failures.
    #[serde(default)]
    pub failure_exit_codes: Vec<i32>,
    /// That of the namespace is open; none: it is closed.
    #[serde(default)]
    pub open_globally: Option<OpenGlobally>,
}

/// The breaker of the namespace is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct OpenGlobally {
    /// A person holds it so: nobody need ask.
    #[serde(default)]
    pub forced: bool,
    /// After so long it may be asked for the right to try a command.
    pub retry_after_milliseconds: u64,
}

/// What a pod's breaker of commands counted, since the pod began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CommandCounts {
    /// Commands that hung or could not be started.
    #[serde(default)]
    pub failed: u64,
    /// Openings.
    #[serde(default)]
    pub opened: u64,
}

impl CommandCounts {
    /// Nothing happened.
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
    /// Commands are tried.
    HalfOpen,
    /// Commands are refused.
    Open,
}

impl BreakerState {
    /// Commands pass.
    pub fn is_closed(&self) -> bool {
        *self == Self::Closed
    }
}

/// A sidecar asks whether a command may be run although the breaker of the namespace is open: to try whether things work again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TryCommand {
    /// The permit of the pod's own breaker: it names the command, so that who asks again is given the same.
    pub command: CommandPermit,
    /// How long it may take.
    pub timeout_milliseconds: u64,
}

impl BoundedBody for TryCommand {
    fn check(&self) -> Result<(), (&'static str, String)> {
        BeginCommand { timeout_milliseconds: Some(self.timeout_milliseconds), unasked: None }.check()
    }
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum TryAnswer {
    /// It may, and how it ended is to be told.
    Permit(CommandPermit),
    /// It may not.
    Rejected(CommandRejected),
}

/// How a command ended that was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EndTry {
    /// What was given.
    pub permit: CommandPermit,
    /// What it says about commands.
    pub outcome: TryOutcome,
}

impl BoundedBody for EndTry {
    fn check(&self) -> Result<(), (&'static str, String)> {
        Ok(())
    }
}

/// What a command says about commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum TryOutcome {
    /// It worked.
    Success,
    /// It hung, or could not be started.
    Failure,
    /// Nothing.
    Neutral,
}

/// How long commands may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CommandLimits {
    /// Seconds for one that asks for no time of its own.
    pub timeout_seconds: u32,
    /// The most seconds that one may ask for.
    pub max_timeout_seconds: u32,
}

impl Default for CommandLimits {
    fn default() -> Self {
        Self { timeout_seconds: 120, max_timeout_seconds: 3600 }
    }
}

/// Which commands have no time unless their program asks for one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TimeExemptions {
    /// Those that one of these programs belongs to. [`ALL_COMMANDS`](Self::ALL_COMMANDS): every command.
    #[serde(default)]
    pub names: Vec<String>,
    /// Those that began before a model answered the program for the first time: a model has it run commands.
    pub until_answer: bool,
}

impl TimeExemptions {
    /// In the place of a name: no command has a time unless it asks for one.
    pub const ALL_COMMANDS: &str = "*";

    /// No command has a time unless it asks for one.
    pub fn all(&self) -> bool {
        self.names.iter().any(|name| name == Self::ALL_COMMANDS)
    }
}

impl Default for TimeExemptions {
    /// As long as nobody said it: only what is known to come from a model has a time.
    fn default() -> Self {
        Self { names: Vec::new(), until_answer: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{Ask, Hello};

    #[test]
    fn what_nobody_said_times_only_what_comes_from_a_model() {
        let read = |json: &str| serde_json::from_str::<TimeExemptions>(json).expect("it is understood");
        assert_eq!(TimeExemptions::default(), read(r#"{"untilAnswer": true}"#));
        assert!(read(r#"{"names": ["vite", "*"], "untilAnswer": false}"#).all() && !TimeExemptions::default().all());
    }

    #[test]
    fn a_time_is_none_or_possible() {
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
