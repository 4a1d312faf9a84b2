//! The decisions of Spillway, pure: facts in, plans with their reasons out.
//!
//! No I/O, no clock, no randomness: time comes in as an argument, seeds too. Nothing here knows of Kubernetes types, so
//! that every rule can be tested exhaustively and the record store can change without touching a decision.

pub mod adaptive_limit;
pub mod agent;
pub mod backoff;
pub mod breaker;
pub mod budget;
pub mod bulkhead_use;
pub mod capacity;
pub mod certificates;
pub mod children;
pub mod compute;
pub mod external;
pub mod fair_queue;
pub mod gang;
pub mod health;
pub mod history;
pub mod interventions;
pub mod lease;
pub mod liveness;
pub mod node_liveness;
pub mod outbox;
pub mod pod_termination;
pub mod pool;
pub mod preflight;
pub mod scaling;
pub mod status_throttle;
pub mod sweep;
pub mod work;
