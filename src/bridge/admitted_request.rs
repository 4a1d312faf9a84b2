//! What is known of a request of MCP beside its words: who calls, what a gateway provides for it, and how its call ended.

use std::sync::{Arc, OnceLock};

use spillway_bridge::answer::Status;
use spillway_bridge::audit::Caller;

use crate::wire::tools::{CallNeeds, JudgedCall};

/// A request that was admitted. It goes with the request to the tools, as an extension.
#[derive(Clone, Debug)]
pub struct AdmittedRequest {
    /// Who calls.
    pub caller: Caller,
    /// What the gateway provides. None: there is no gateway, so that nobody brings artifacts or asks a person.
    pub provided: Option<Provided>,
    /// How the call of a program ended.
    pub outcome: CallOutcome,
}

impl AdmittedRequest {
    /// A request of this caller.
    pub fn of(caller: Caller, provided: Option<Provided>) -> Self {
        Self { caller, provided, outcome: CallOutcome::default() }
    }
}

/// What a gateway provides for a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Provided {
    /// The gateway's id of the request, under which it brings files.
    pub request: String,
    /// The Toolset that the program calls.
    pub toolset: String,
    /// The verdict of persons.
    pub judged: Option<JudgedCall>,
}

/// How the call of a program ended, once it has. It is told beside the answer, for gateways, which do not read answers.
#[derive(Clone, Debug, Default)]
pub struct CallOutcome(Arc<OnceLock<Result<Status, CallNeeds>>>);

impl CallOutcome {
    /// The call has ended, or needs something before it runs.
    pub fn set(&self, outcome: Result<Status, CallNeeds>) {
        let _ = self.0.set(outcome); // a request has one call
    }

    /// How it ended. None: the request called no program.
    pub fn get(&self) -> Option<&Result<Status, CallNeeds>> {
        self.0.get()
    }
}
