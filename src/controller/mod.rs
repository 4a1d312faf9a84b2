//! The controllers: one folder a kind. A reconcile reads as observe, validate, plan, apply, status.
//!
//! What they must not do: keep state that a crash must not lose. State in memory (gates, backoffs, the last state of a
//! pod) only saves writes and time. Everything that decides is in the API server.

pub mod agent;
pub mod agent_pool;
pub mod budget;
pub mod capacity;
mod cluster_default;
mod compute_defaults;
pub mod conditions;
mod context;
mod due;
#[cfg(test)]
pub mod fake;
mod fleet;
mod gauges;
mod namespace_setup;
mod node_judgements;
pub mod program_files;
mod run;
mod served_namespace;
pub mod served_toolsets;
pub mod status_throttle;
mod stores;
pub mod supervised;
pub mod toolset;
mod wake;
mod watches;

pub use context::Context;
pub use run::{Settings, run};
pub use served_namespace::served_namespace;
pub use stores::{AgentObject, BudgetObject, ClusterBudgetObject, PoolObject, Stores};
