//! The map of the house.
//!
//! Data flows one way: `api` -> `policy` -> (`controller`, `cli`). Only `cluster` and the drivers hold a Kubernetes client.
//!
//! | room | for | must not |
//! |---|---|---|
//! | [`api`] (crate) | the custom resources: types, defaults, CEL rules, names | hold a client or async code |
//! | [`policy`] (crate) | the decisions: scaling, the pool's plan, an agent's life, leadership, backoff | do I/O, read a clock, roll dice |
//! | [`cluster`] | all Kubernetes I/O: client, watches, server-side apply, lease, gate, events | decide |
//! | [`controller`] | one folder a kind: observe, plan, build, apply, status | hold state that a crash may not lose |
//! | [`telemetry`] | logs and metrics | know a kind |
//! | [`cli`] | the kubectl plugin: arguments to typed report, thin I/O | use rights that its user does not have |
//!
//! The programs in `bin/` parse arguments and call this library.

pub mod cli;
pub mod cluster;
pub mod controller;
pub mod generate;
pub mod telemetry;

pub use spillway_api as api;
pub use spillway_policy as policy;

/// The version of this build, as `--version` prints it and the User-Agent carries it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
