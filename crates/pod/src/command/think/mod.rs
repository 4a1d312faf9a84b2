//! `spillway think`: the small agents that ship with Spillway. Each turns words into a decision, by a model of the pool or by
//! rules, and has Spillway carry it out, with the right of its pool and no other.
//!
//! | file | for |
//! |---|---|
//! | [`scheduler`], [`prd`], [`buddy`] | one role each: where words come from, and where the answer goes |
//! | [`thinker`] | from words to a decision, by a model |
//! | [`rules`] | the same without one |
//! | [`routes`], [`prompt`] | what a team edits: types of work, and what the model is told |
//! | [`reply`], [`decision`] | what a model says, checked; what is to be done |
//! | [`dialect`], [`model`] | one question in each protocol; the call |
//! | [`sidecar`] | queueing, and what became of it |
//!
//! What always holds: a model's answer decides nothing but which of the types of the table is queued with which words, in the
//! queues that the table and the pool's `may.submitTo` allow. Words of others never reach a shell.

mod buddy;
mod decision;
pub(super) mod dialect;
pub(super) mod model;
mod prd;
mod prompt;
mod reply;
mod routes;
mod rules;
mod scheduler;
mod sidecar;
mod thinker;

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{EXIT_USAGE, Place, print, tell};
use dialect::Dialect;
use sidecar::Sidecar;
use thinker::Thinker;

/// Arguments of `think`.
#[derive(Debug, Args)]
pub struct ThinkArguments {
    /// What it does
    #[arg(value_enum)]
    role: Role,
    /// The model that it asks; without one it goes by rules
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// The protocol of that model [default: of those that the pool's models have, the first of Anthropic, OpenAIChat, Gemini]
    #[arg(long, value_enum, value_name = "DIALECT")]
    dialect: Option<Dialect>,
    /// File with what the model is told, read for each request [default: a text of its own]
    #[arg(long, value_name = "FILE")]
    prompt: Option<PathBuf>,
    /// File with the types of work, their queues, priorities and words, read for each request [default: bug, idea, chore]
    #[arg(long, value_name = "FILE")]
    routes: Option<PathBuf>,
    /// The most tokens of an answer
    #[arg(long, value_name = "N", default_value_t = 4000, value_parser = clap::value_parser!(u32).range(1..))]
    max_output_tokens: u32,
    /// How long the model may take, with all tries; then it goes by rules
    #[arg(long, value_name = "N", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=3600))]
    answer_seconds: u64,
}

/// What the program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Turns requests in words into items of work (agent.run: LongRunning)
    Scheduler,
    /// Turns one idea into a product requirement document (once for each item)
    Prd,
    /// Talks to the person at the terminal (mode: Chat)
    Buddy,
}

/// Prints words of which others wrote a part: without what would steer the terminal of whoever reads them.
fn print_plain(words: &str) {
    print(&printable(words));
}

/// Without control characters but tabs and ends of lines, and without those that turn the direction of text.
fn printable(words: &str) -> String {
    let steers = |letter: char| {
        (letter.is_control() && !matches!(letter, '\n' | '\t'))
            || matches!(letter, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    words.chars().filter(|letter| !steers(*letter)).collect()
}

/// Runs the program; gives the exit code.
pub fn run(place: &Place, arguments: ThinkArguments) -> u8 {
    let role = arguments.role;
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let thinker = match Thinker::new(arguments, variable) {
        Ok(thinker) => thinker,
        Err(trouble) => {
            tell(&format!("error: {trouble}"));
            return EXIT_USAGE;
        }
    };
    let sidecar = Sidecar::new(place);
    match role {
        Role::Scheduler => scheduler::run(thinker, &sidecar),
        Role::Prd => prd::run(&thinker, &sidecar, variable),
        Role::Buddy => buddy::run(thinker, &sidecar),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_others_do_not_steer_a_terminal() {
        assert_eq!(printable("a\u{1b}]0;title\u{7}\r\n\tb\u{9b}2J\u{202e}c é"), "a]0;title\n\tb2Jc é");
    }
}
