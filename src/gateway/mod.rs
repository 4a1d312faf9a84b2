//! The gateway: the only service that agents can reach. It identifies callers by their pod's token, forwards allowed
//! calls to the governor, holds long polls, and forwards model calls to their providers, each within the tokens that
//! the ledger gives. Its only state that must survive a restart is what model calls spent, which is in its journal: any
//! replica serves any agent. Its history of the last minutes is replayed after a rollback of the API server's store,
//! and is used for nothing else.
//!
//! | file | for |
//! |---|---|
//! | [`run`] | the life of the process |
//! | [`routes`] | one call: token, limits, table, body, governor |
//! | [`state`] | the shared state of the routes |
//! | `caller` | identifies callers by their tokens |
//! | `agent_end` | the end of an agent, for transfers that last |
//! | `call_slot` | the slot of a call in flight |
//! | [`governor`] | the connection to the leading governor |
//! | [`long_poll`] | long polls, and revoked agents |
//! | [`lease_history`] | the last answers about leases, replayed after a rollback of the store |
//! | [`limits`] | limits of calls, of one agent and of one namespace |
//! | `log_quota` | how many lines of the log refused callers may cause |
//! | [`meter`] | the session with the ledger: holds and settles, and their journal |
//! | [`credentials`] | the team's credentials for models and git |
//! | `origin_dialer` | connections to listed origins, at checked addresses |
//! | `connection_slots` | how many connections to servers there may be |
//! | `transfer_record` | what a transfer carried, and when it carried bytes last |
//! | `streamed_body` | a response body whose parts come from a task |
//! | `download` | the body of an answer that a task reads from a server or a store |
//! | [`models`] | model calls: held, forwarded with the team's credential, metered |
//! | [`egress`] | connections of programs to destinations other than models |
//! | [`git`] | requests of git clients for the repository of their pool |
//! | [`tools`] | requests of MCP clients for the Toolsets of their pool |
//! | [`artifacts`] | files that programs keep with their items |
//! | [`openapi`] | the agents' API as an OpenAPI document |

mod agent_end;
pub mod artifacts;
mod call_slot;
mod caller;
mod connection_slots;
pub mod credentials;
mod download;
pub mod egress;
pub mod git;
pub mod governor;
pub mod lease_history;
pub mod limits;
mod log_quota;
pub mod long_poll;
pub mod meter;
pub mod models;
pub mod openapi;
mod origin_dialer;
pub mod routes;
mod run;
pub mod state;
mod streamed_body;
pub mod tools;
mod transfer_record;

pub use run::{Settings, run};
