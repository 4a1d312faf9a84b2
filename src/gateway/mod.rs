//! The gateway: the only thing that agents can reach. It knows who calls (the pod's token), forwards what may be called to
//! the governor, keeps long polls, and carries calls of models to their providers, each within what the ledger gives it. It
//! holds nothing that a restart could lose but what it spends, which is in its journal: any replica serves any agent. Its
//! history of the last minutes is replayed after a rollback of the API server's store, and nothing else relies on it.
//!
//! | file | for |
//! |---|---|
//! | [`run`] | the life of the process |
//! | [`routes`] | one call: token, limits, table, body, governor |
//! | [`state`] | what the routes work with |
//! | `caller` | who calls, by its token |
//! | `call_slot` | the place of a call among those in flight |
//! | [`governor`] | the connection to whoever leads |
//! | [`long_poll`] | long polls, and who was revoked |
//! | [`lease_history`] | the last answers about leases, replayed after a rollback of the store |
//! | [`limits`] | how much one agent may call |
//! | [`meter`] | the session with the ledger: holds and settles, and their journal |
//! | [`models`] | calls of models: held, forwarded with the team's credential, metered |
//! | [`openapi`] | the agents' API as an OpenAPI document |

mod call_slot;
mod caller;
pub mod governor;
pub mod lease_history;
pub mod limits;
pub mod long_poll;
pub mod meter;
pub mod models;
pub mod openapi;
pub mod routes;
mod run;
pub mod state;

pub use run::{Settings, run};
