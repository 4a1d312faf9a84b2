//! `spillway work`: how a program reports the end of its item, and asks for the next one.

use std::path::Path;
use std::time::{Duration, Instant};

use clap::Subcommand;
use spillway_wire::link::{Answer, Ask};
use spillway_wire::work::{MAX_CLAIM_WAIT_SECONDS, Outcome};

use super::answer::{show, show_item};
use super::ask;
use super::output::unreachable_sidecar;

/// Between two questions for an item that found none.
const NEXT_ITEM_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The commands of `work`.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Print the task of the item in hand, or of the next item. Only for programs that run all the time (agent.run: LongRunning)
    Next {
        /// How long to wait for an item
        #[arg(long, value_name = "SECONDS", default_value_t = MAX_CLAIM_WAIT_SECONDS)]
        wait: u32,
        /// Print all data of the item as JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the items that the agents of this pool submitted, and their phases
    List(super::follow::ListArguments),
    /// Report that the item in hand is done
    Done {
        /// Result; at most 4,096 bytes [default: the content of the result file]
        #[arg(num_args = 0..)]
        result: Vec<String>,
    },
    /// Report that the item in hand failed
    Fail {
        /// Reason, as one word, for the rules of the queue
        #[arg(long, value_name = "WORD")]
        reason: String,
        /// Exit code with which it failed
        #[arg(long, value_name = "N", allow_negative_numbers = true)]
        exit_code: Option<i32>,
        /// Reason, for people; at most 1,024 characters
        #[arg(num_args = 0..)]
        message: Vec<String>,
    },
    /// Give the item in hand back. This does not count as a failure, and the item is tried again later
    Release {
        /// Reason, for people; at most 1,024 characters
        #[arg(num_args = 0..)]
        message: Vec<String>,
    },
}

/// Runs a command; returns the exit code.
pub fn run(socket: &Path, verb: Verb) -> u8 {
    let outcome = match verb {
        Verb::Next { wait, json } => return next(socket, Duration::from_secs(wait.into()), json),
        Verb::List(arguments) => return super::follow::list(socket, arguments),
        Verb::Done { result } => Outcome::Complete { result: (!result.is_empty()).then(|| result.join(" ")), changeset: None },
        Verb::Fail { reason, exit_code, message } => Outcome::Fail { reason, message: message.join(" "), exit_code },
        Verb::Release { message } => Outcome::Release { reason: "Released".to_owned(), message: message.join(" ") },
    };
    match ask::ask(socket, &Ask::Finish(outcome)) {
        Ok(answer) => show(&answer, None),
        Err(error) => unreachable_sidecar(&error),
    }
}

/// Asks until there is an item or the time is over. One question waits at most as long as the sidecar may wait.
fn next(socket: &Path, wait: Duration, json: bool) -> u8 {
    let began = Instant::now();
    loop {
        let left = wait.saturating_sub(began.elapsed());
        let wait_seconds = u32::try_from(left.as_secs_f64().ceil() as u64).unwrap_or(u32::MAX).min(MAX_CLAIM_WAIT_SECONDS);
        match ask::ask(socket, &Ask::Next { wait_seconds }) {
            Ok(Answer::Item(None)) if began.elapsed() < wait => std::thread::sleep(NEXT_ITEM_POLL_INTERVAL),
            Ok(Answer::Item(item)) => return show_item(item.as_deref(), json),
            Ok(answer) => return show(&answer, None),
            Err(error) => return unreachable_sidecar(&error),
        }
    }
}
