//! The decisions of Spillway, pure: facts in, plans with their reasons out.
//!
//! No I/O, no clock, no randomness: time comes in as an argument, seeds too. Nothing here knows of Kubernetes types, so
//! that every rule can be tested exhaustively and the record store can change without touching a decision.

pub mod agent;
pub mod attendance;
pub mod backoff;
pub mod breaker;
pub mod budget;
pub mod bulkhead_use;
pub mod certificates;
pub mod children;
pub mod compute;
pub mod external;
pub mod gang;
pub mod health;
pub mod history;
pub mod hub;
pub mod lease;
pub mod node_liveness;
pub mod outbox;
pub mod pace;
pub mod places;
pub mod pool;
pub mod preflight;
pub mod presence;
pub mod publish;
pub mod scaling;
pub mod sweep;
pub mod turns;
pub mod work;
