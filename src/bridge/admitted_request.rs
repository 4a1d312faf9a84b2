//! What is known of a request of MCP beside its words: who calls, and how its call ended.

use std::sync::{Arc, OnceLock};

use spillway_bridge::answer::Status;
use spillway_bridge::audit::Caller;

/// A request that was admitted. It goes with the request to the tools, as an extension.
#[derive(Clone, Debug)]
pub struct AdmittedRequest {
    /// Who calls.
    pub caller: Caller,
    /// How the call of a program ended.
    pub status: CallStatus,
}

impl AdmittedRequest {
    /// A request of this caller.
    pub fn of(caller: Caller) -> Self {
        Self { caller, status: CallStatus::default() }
    }
}

/// How the call of a program ended, once it has. It is told beside the answer, for gateways, which do not read answers.
#[derive(Clone, Debug, Default)]
pub struct CallStatus(Arc<OnceLock<Status>>);

impl CallStatus {
    /// The call has ended.
    pub fn set(&self, status: Status) {
        let _ = self.0.set(status); // a request has one call
    }

    /// How it ended. None: the request called no program.
    pub fn get(&self) -> Option<Status> {
        self.0.get().copied()
    }
}
