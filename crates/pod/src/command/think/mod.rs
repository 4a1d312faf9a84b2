//! `spillway think`: the small agents that ship with Spillway. Each turns words into a decision, by a model of the pool or by
//! rules, and asks Spillway to carry it out. It has the rights of its pool and no others.
//!
//! | file | for |
//! |---|---|
//! | [`arguments`] | the command line |
//! | [`output`] | printing texts of other programs and people without control characters |
//! | [`scheduler`], [`prd`], [`buddy`] | one role each: where requests come from, and where the answer goes |
//! | [`thinker`] | from a request to a decision, by a model |
//! | [`rules`] | from a request to a decision, without a model |
//! | [`routes`], [`prompt`] | the parts that a team edits: types of work, and instructions for the model |
//! | [`reply`], [`decision`] | the model's answer, checked; the decision |
//! | [`dialect`], [`model`] | one question in each protocol; the HTTP call |
//! | [`sidecar`] | queueing work, and its results |
//!
//! What always holds: a model's answer decides only which types of the table are queued and with which words, in the queues
//! that the table and the pool's `may.submitTo` allow. No text of a model, a person or an item reaches a shell.

mod arguments;
mod buddy;
mod decision;
pub(super) mod dialect;
pub(super) mod model;
mod output;
mod prd;
mod prompt;
mod reply;
mod routes;
mod rules;
mod scheduler;
mod sidecar;
mod thinker;

use super::output::{EXIT_USAGE, print_to_stderr};
use super::place::SidecarPaths;
use sidecar::Sidecar;
use thinker::Thinker;

pub use arguments::{Role, ThinkArguments};

/// Runs the program; returns the exit code.
pub fn run(place: &SidecarPaths, arguments: ThinkArguments) -> u8 {
    let role = arguments.role;
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let thinker = match Thinker::new(arguments, variable) {
        Ok(thinker) => thinker,
        Err(trouble) => {
            print_to_stderr(&format!("error: {trouble}"));
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
