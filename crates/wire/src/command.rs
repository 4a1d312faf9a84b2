//! Over the unix socket: a program asks whether it may run a command, and says how that ended.
//!
//! What it says is its own word, and reaches nobody but the breaker of its own pod.

use serde::{Deserialize, Serialize};

use crate::body::Checked;

/// The longest that may be asked for (milliseconds); how long a command gets is the pool's to say.
const MOST: u64 = 86_400_000;

/// A command that is about to be run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BeginCommand {
    /// How long it may take; none: as long as the pool's commands do.
    #[serde(default)]
    pub timeout_milliseconds: Option<u64>,
}

impl Checked for BeginCommand {
    fn check(&self) -> Result<(), (&'static str, String)> {
        match self.timeout_milliseconds {
            Some(0) => Err(("timeoutMilliseconds", "must be at least 1".into())),
            Some(asked) if asked > MOST => Err(("timeoutMilliseconds", format!("must be at most {MOST}"))),
            Some(_) | None => Ok(()),
        }
    }
}

/// It may be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CommandBegun {
    /// To be given back with how it ended.
    pub permit: CommandPermit,
    /// How long it may take.
    pub timeout_milliseconds: u64,
}

/// The right to run one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CommandPermit {
    /// Which start of the sidecar gave it.
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
#[serde(rename_all = "camelCase")]
pub struct CommandRejected {
    /// Which breaker, why, and when to come back, for people and models.
    pub message: String,
    /// After so long it may pass.
    pub retry_after_milliseconds: u64,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{Ask, Hello};

    #[test]
    fn a_time_is_none_or_possible() {
        let read = |body: &str| crate::body::read::<Hello>(body.as_bytes());
        let begin = |timeout_milliseconds| Hello::Ask(Ask::BeginCommand(BeginCommand { timeout_milliseconds }));
        assert_eq!(read(r#"{"ask": {"beginCommand": {}}}"#).expect("a question"), begin(None));
        assert_eq!(read(r#"{"ask": {"beginCommand": {"timeoutMilliseconds": 5}}}"#).expect("a question"), begin(Some(5)));
        for wrong in ["0", "86400001", "-1", "\"5\""] {
            let refused = read(&format!(r#"{{"ask": {{"beginCommand": {{"timeoutMilliseconds": {wrong}}}}}}}"#)).expect_err(wrong);
            assert!(refused.field.is_some_and(|field| field.ends_with("timeoutMilliseconds")), "{wrong}");
        }
    }
}
