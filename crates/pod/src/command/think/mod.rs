//! `spillway think`: the small agents that ship with Spillway. Each turns words into a decision, by a model of the pool or by
//! rules, and has Spillway carry it out, with the right of its pool and no other.
//!
//! | file | for |
//! |---|---|
//! | [`arguments`] | arguments |
//! | [`output`] | words of others, printed |
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

use super::output::{EXIT_USAGE, tell};
use super::place::SidecarPaths;
use sidecar::Sidecar;
use thinker::Thinker;

pub use arguments::{Role, ThinkArguments};

/// Runs the program; gives the exit code.
pub fn run(place: &SidecarPaths, arguments: ThinkArguments) -> u8 {
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
