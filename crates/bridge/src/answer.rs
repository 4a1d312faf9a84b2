//! The answer to a call of a program. Its fields are the public format of the tool `execute`.

use serde::Serialize;

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The program ended with exit code 0.
    Ok,
    /// The program ended with another exit code, or by a signal.
    Nonzero,
    /// The program did not end within its time limit, and was ended.
    Timeout,
    /// The program was not started, although the call was right.
    SpawnFailed,
    /// The call is wrong. No process was started.
    Rejected,
    /// A person denied the call, or nobody approved it in time. No process was started.
    Denied,
    /// A limit is reached. No process was started.
    Busy,
    /// Programs of this caller, or of all, keep hanging. No process was started.
    BreakerOpen,
    /// The client went away, or the bridge ends. The program was ended.
    Cancelled,
    /// The program was started, and how it ended is not known.
    Unknown,
}

impl Status {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Ok,
        Self::Nonzero,
        Self::Timeout,
        Self::SpawnFailed,
        Self::Rejected,
        Self::Denied,
        Self::Busy,
        Self::BreakerOpen,
        Self::Cancelled,
        Self::Unknown,
    ];

    /// The status as it is in JSON.
    pub fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Nonzero => "nonzero",
            Self::Timeout => "timeout",
            Self::SpawnFailed => "spawn_failed",
            Self::Rejected => "rejected",
            Self::Denied => "denied",
            Self::Busy => "busy",
            Self::BreakerOpen => "breaker_open",
            Self::Cancelled => "cancelled",
            Self::Unknown => "unknown",
        }
    }
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// How the call ended.
    pub status: Status,
    /// The exit code of the program; 128 plus the number of the signal that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Its standard output: the beginning and the end, if it was long.
    pub stdout: String,
    /// Its standard error, as above.
    pub stderr: String,
    /// Whether parts of its output were left out.
    pub truncated: bool,
    /// Milliseconds that it ran.
    pub duration_milliseconds: u64,
    /// The call's id in the audit log.
    pub audit_id: String,
    /// The revision of the definitions.
    pub revision: String,
    /// The argument that is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The rule that the call broke, or the limit that it reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<&'static str>,
    /// What is wrong, and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Milliseconds after which the same call may succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_milliseconds: Option<u64>,
    /// The result of a tool of an upstream, as JSON. Programs have none.
    #[serde(skip)]
    pub tool_result: Option<String>,
}

impl Answer {
    /// An answer without a process.
    pub fn not_run(status: Status, rule: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            exit_code: None,
            stdout: String::new(),
            stderr: String::new(),
            truncated: false,
            duration_milliseconds: 0,
            audit_id: String::new(),
            revision: String::new(),
            field: None,
            rule: Some(rule),
            message: Some(message.into()),
            retry_after_milliseconds: None,
            tool_result: None,
        }
    }

    /// Bytes of its texts.
    pub fn bytes(&self) -> usize {
        self.stdout.len() + self.stderr.len() + self.tool_result.as_ref().map_or(0, String::len)
    }
}
