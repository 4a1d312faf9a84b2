//! The MCP server that a bridge fronts: its tools, and the calls of agents to them, with a credential that agents never see.
//!
//! What always holds: the credential goes to the address of the upstream alone, because no redirect is followed. What the upstream sends is
//! bounded in bytes and in time, whatever it is. Each call has a session of its own, so that no agent finds the state of another. Only the
//! answer of a call is passed on: no notification, and no request of the upstream to the client.
//!
//! | file | for | must not |
//! |---|---|---|
//! | [`http`] | requests and answers of HTTP, for the SDK | know of tools |
//! | [`event_stream`] | server-sent events | |
//! | [`session`] | one session of the SDK's client: list the tools, or call one | decide who may call |
//! | [`server`] | the upstream of a bridge: its tools now, and calls as answers | |

pub mod event_stream;
pub mod http;
pub mod server;
pub mod session;
