//! The arguments of `think`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::dialect::Dialect;

/// Arguments of `think`.
#[derive(Debug, Args)]
pub struct ThinkArguments {
    /// Role of the agent
    #[arg(value_enum)]
    pub(super) role: Role,
    /// Model to ask. Without a model, rules decide
    #[arg(long, value_name = "NAME")]
    pub(super) model: Option<String>,
    /// Protocol of the model [default: the first of Anthropic, OpenAIChat and Gemini that the pool's models have]
    #[arg(long, value_enum, value_name = "DIALECT")]
    pub(super) dialect: Option<Dialect>,
    /// File with the instructions for the model, read for each request [default: a built-in text]
    #[arg(long, value_name = "FILE")]
    pub(super) prompt: Option<PathBuf>,
    /// File with the types of work, their queues, priorities and words, read for each request [default: bug, idea, chore]
    #[arg(long, value_name = "FILE")]
    pub(super) routes: Option<PathBuf>,
    /// The most tokens of an answer
    #[arg(long, value_name = "N", default_value_t = 4000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) max_output_tokens: u32,
    /// Seconds that the model may take, with all tries. After that, rules decide
    #[arg(long, value_name = "N", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(super) answer_seconds: u64,
}

/// The role of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Turns requests in words into items of work (agent.run: LongRunning)
    Scheduler,
    /// Turns one idea into a product requirement document (runs once for each item)
    Prd,
    /// Talks to the person at the terminal (mode: Chat)
    Buddy,
}
