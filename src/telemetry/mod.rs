//! Logs, metrics, and the small server for health. It must not know the kinds of resources: labels are arguments.

mod health;
mod logs;
mod metrics;

pub use health::{Health, serve};
pub use logs::{LogFormat, start_logs};
pub use metrics::{Amounts, Depths, FleetCounts, Limit, Metrics, PoolStanding, Series, TransferKind};
