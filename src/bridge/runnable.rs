//! What a call runs: a program of this machine, or a tool of the upstream. Limits, keys, breakers, approvals and the audit log are the same.

use std::sync::Arc;

use spillway_bridge::answer::{Answer, Status};

use super::pinned_program::PinnedProgram;
use super::upstream::server::UpstreamServer;

/// What a call runs.
#[derive(Clone, Debug)]
pub enum Runnable {
    /// A program.
    Program(PinnedProgram),
    /// The tool of this upstream that has the name of the definition.
    Tool(Arc<UpstreamServer>),
}

impl Runnable {
    /// Whether it is as it was when it was loaded, or the answer of a call that is not carried out.
    pub async fn check(&self, name: &str) -> Result<(), Box<Answer>> {
        match self {
            Self::Program(program) => {
                let program = program.clone();
                // The file may be read.
                let rejected = |rule, message: String| Err(Box::new(Answer::not_run(Status::Rejected, rule, message)));
                match tokio::task::spawn_blocking(move || program.check()).await {
                    Ok(Ok(())) => Ok(()),
                    Ok(Err(error)) => rejected("commandChanged", error.to_string()),
                    Err(error) => rejected("internal", error.to_string()),
                }
            }
            Self::Tool(server) => server.check_offered(name),
        }
    }
}
