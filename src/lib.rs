//! The map of the crate.
//!
//! Data flows one way: (`api`, `wire`, `policy`) -> (`governor`, `controller`, `gateway`). Only `cluster` and the drivers hold
//! a Kubernetes client.
//!
//! | module | for | must not |
//! |---|---|---|
//! | [`api`] (crate) | the custom resources: types, defaults, CEL rules, names | hold a client or async code |
//! | [`wire`] (crate) | the HTTP APIs: types, refusals, who may make which call | do I/O, decide |
//! | [`policy`] (crate) | the decisions: size, a pool's plan, an agent's life and silence, leadership | do I/O, read a clock, roll dice |
//! | `conversion` (crate) | from custom resources to what is decided on, and back to a status | do I/O, decide |
//! | [`cluster`] | all Kubernetes I/O: client, watches, server-side apply, lease, gate, events, token reviews | decide |
//! | [`controller`] | one folder a kind: observe, plan, build, apply, status; the setup of namespaces | hold state that a crash may not lose |
//! | [`governor`] | what must be decided in one place: who is alive, what is wanted of whom | write an agent's status |
//! | [`gateway`] | all that agents reach: identity, limits, forwarding, long polls | hold state that a restart may not lose |
//! | [`notify`] | webhooks: what people are told of, sent | wait, or log a secret |
//! | [`pki`] | the internal certificates | sign for other names than our two |
//! | [`serve`] | HTTP over TLS: bounds for connections and patience with them | know a call |
//! | [`telemetry`] | logs, metrics, health | know a kind |
//! | [`generate`] | the generated files: CRDs and their reference | know a cluster |
//!
//! The programs inside agents' pods are a crate of their own, `spillway-pod`: they share `wire` and `policy`, and know no
//! Kubernetes. So is the kubectl plugin, `kubectl-spillway`: it shares `api`, `conversion` and `policy`, and runs where its user
//! sits, on Linux, macOS or Windows.
//!
//! The programs in `bin/` parse arguments and call this library.

pub mod cluster;
pub mod controller;
pub mod gateway;
pub mod generate;
pub mod governor;
pub mod notify;
pub mod pki;
pub mod serve;
pub mod telemetry;

pub use spillway_api as api;
pub use spillway_policy as policy;
pub use spillway_wire as wire;

/// The version of this build, as `--version` prints it and the User-Agent carries it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
