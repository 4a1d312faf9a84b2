//! One definition of a program. Pure: whether the program exists is a question for its caller.
//!
//! | file | for |
//! |---|---|
//! | [`front_matter`] | the two parts of a file: fields and help |
//! | [`fields`] | the fields as people write them |
//! | [`load`] | from fields to a definition, or what is wrong with them |
//! | [`argument`] | the arguments that a call may give |
//! | [`pattern`] | the pattern of an argument |
//! | [`template`] | the words of a command, with places for arguments |

pub mod argument;
pub mod fields;
pub mod front_matter;
pub mod load;
pub mod pattern;
pub mod template;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

pub use argument::{Argument, ArgumentType};
pub use load::{credential_variable, is_interpreter, load};
pub use template::Template;

/// A definition that was loaded.
#[derive(Clone, Debug)]
pub struct Definition {
    /// Name of the program, for agents.
    pub name: String,
    /// What it does, in one line.
    pub description: String,
    /// The help, in Markdown.
    pub help: String,
    /// Absolute path of the program.
    pub command: PathBuf,
    /// The words after the program.
    pub words: Vec<Template>,
    /// The arguments of a call, in order.
    pub arguments: Vec<Argument>,
    /// Time limit in seconds.
    pub timeout_seconds: u32,
    /// The other limits.
    pub limits: Limits,
    /// Variables of its environment.
    pub environment: BTreeMap<String, String>,
    /// Credentials of its environment, by their names in the Toolset.
    pub credentials: Vec<String>,
    /// Whether a person approves each call.
    pub requires_approval: bool,
    /// Whether the program may be a shell or an interpreter.
    pub interpreter: bool,
    /// Whether a call may give any arguments: those of a tool of an upstream without rules. A program takes only those that are declared.
    pub takes_any_arguments: bool,
}

/// Limits of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of standard output that an answer has.
    pub stdout_bytes: usize,
    /// Bytes of standard error that an answer has.
    pub stderr_bytes: usize,
    /// Calls at once.
    pub concurrency: u32,
    /// Calls of one agent within a minute.
    pub per_agent_per_minute: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { stdout_bytes: 256 * 1024, stderr_bytes: 64 * 1024, concurrency: 4, per_agent_per_minute: 30 }
    }
}

/// The greatest values that a definition may set.
impl Limits {
    /// Of both streams.
    pub const MAX_OUTPUT_BYTES: usize = 1024 * 1024;
    /// Calls at once.
    pub const MAX_CONCURRENCY: u32 = 64;
    /// Calls of one agent within a minute.
    pub const MAX_PER_AGENT_PER_MINUTE: u32 = 6000;
}

/// What the platform allows to definitions.
#[derive(Clone, Debug)]
pub struct Allowed {
    /// Absolute paths of programs, or all programs of a folder (`/opt/tools/*`). None: all programs.
    pub commands: Option<Vec<String>>,
    /// Names of credentials.
    pub credentials: Vec<String>,
    /// The longest time limit in seconds.
    pub max_seconds: u32,
}

impl Allowed {
    /// Whether a definition may name this program.
    pub fn allows(&self, command: &Path) -> bool {
        let matches = |allowed: &String| match allowed.strip_suffix("/*") {
            Some(folder) => command.parent() == Some(Path::new(folder)),
            None => command == Path::new(allowed),
        };
        self.commands.as_ref().is_none_or(|commands| commands.iter().any(matches))
    }
}

/// What is wrong with a definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Line of the file, from 1. None: the whole file.
    pub line: Option<u32>,
    /// The rule, in one word.
    pub rule: &'static str,
    /// What is wrong, and what to do.
    pub message: String,
}

impl Fault {
    pub(crate) fn new(line: impl Into<Option<u32>>, rule: &'static str, message: impl Into<String>) -> Self {
        Self { line: line.into(), rule, message: message.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(out, "line {line}: {}: {}", self.rule, self.message),
            None => write!(out, "{}: {}", self.rule, self.message),
        }
    }
}
