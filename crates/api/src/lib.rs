//! The custom resources of Spillway: the spec that people write and the status that Spillway writes.
//!
//! This crate holds types, defaults, CEL rules and names. It must hold no client, no clock and no async code: all of it can be checked
//! without a cluster. Every kind is in [`crds`], every field is bounded (so that CEL stays cheap), and `spec` is required (without it, the
//! transition rules would be bypassed).
#![expect(clippy::duplicated_attributes, reason = "a CRD has many columns, each an attribute of the same names")]

pub mod agent;
pub mod agent_pool;
pub mod agent_program;
pub mod artifact;
pub mod breaker;
pub mod budget;
pub mod cluster_budget;
pub mod conditions;
pub mod crds;
pub mod defaults;
pub mod grant;
pub mod item_changeset;
pub mod names;
pub mod owner;
pub mod preflight;
pub mod quantity;
pub mod sandbox;
mod schema;
pub mod shared;
pub mod supervision;
pub mod tool_approval;
pub mod toolset;
pub mod unsupported;
pub mod upstream;
pub mod work_item;
pub mod work_queue;

pub use agent::{Agent, AgentSpec, AgentStatus};
pub use agent_pool::{AgentPool, AgentPoolSpec, AgentPoolStatus};
pub use breaker::{Breaker, BreakerSpec, BreakerStatus};
pub use budget::{Budget, BudgetSpec, BudgetStatus};
pub use cluster_budget::{ClusterBudget, ClusterBudgetSpec, ClusterBudgetStatus};
pub use grant::{Grant, GrantSpec, GrantStatus};
pub use toolset::{Toolset, ToolsetSpec, ToolsetStatus};
pub use work_item::{WorkItem, WorkItemSpec, WorkItemStatus};
pub use work_queue::{WorkQueue, WorkQueueSpec, WorkQueueStatus};

/// API group of all kinds in this crate.
pub const GROUP: &str = "spillway.dev";
/// The only version that is served.
pub const VERSION: &str = "v1alpha1";
