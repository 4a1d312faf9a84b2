//! The modules of the crate.
//!
//! Data flows one way: (`api`, `wire`, `policy`) -> (`governor`, `controller`, `gateway`). Only `cluster` and the drivers hold
//! a Kubernetes client.
//!
//! | module | for | must not |
//! |---|---|---|
//! | [`api`] (crate) | the custom resources: types, defaults, CEL rules, names | hold a client or async code |
//! | [`wire`] (crate) | the HTTP APIs: types, refusals, the caller's rights for each call | do I/O, decide |
//! | [`policy`] (crate) | decisions on size, a pool's plan, an agent's life and silence, leadership | do I/O, read a clock, be random |
//! | `conversion` (crate) | custom resources to the inputs of decisions, and decisions to a status | do I/O, decide |
//! | [`cluster`] | all Kubernetes I/O: client, watches, server-side apply, lease, gate, events, token reviews | decide |
//! | [`controller`] | one folder for each kind: observe, plan, build, apply, status; the setup of namespaces | hold state that must survive a crash |
//! | [`governor`] | decisions of one process: which agents live, and their desired state | write an agent's status |
//! | [`gateway`] | all that agents can reach: identity, limits, forwarding, long polls | hold state that must survive a restart |
//! | [`notify`] | sends notices to webhooks | wait, or log a secret |
//! | [`pki`] | the internal certificates | sign other names than the two internal ones |
//! | [`serve`] | HTTP over TLS: limits and timeouts of connections | know the calls of an API |
//! | [`telemetry`] | logs, metrics, health | know the kinds of resources |
//! | [`egress_settings`] | the platform's rules of egress, as the chart writes them | decide |
//! | [`git_settings`] | the platform's rules of git, as the chart writes them | decide |
//! | [`origins`] | the servers that gateways may call: origins, addresses | resolve a name |
//! | [`source`] | `spillway source`: issues of a forge as items, and their ends as comments | use rights that its team does not have |
//! | [`node_profile`] | `spillway node-profile`: the system call profile on a node, and the labels that say so | change another node or another label |
//! | [`release`] | `spillway check` and `spillway end-agents`: a release of the chart, as its test and its removal need it | end an agent itself |
//! | [`bridge`] | `spillway bridge`: programs outside the sandbox, for agents, over MCP | start a program without a record of it |
//! | [`generate`] | the generated files: CRDs and their reference | use a cluster |
//!
//! The crate `spillway-holds` has a gateway's session with the ledger and its journal. The crate `spillway-pod` has the programs inside agents' pods. It shares `wire` and `policy`, and does not use
//! Kubernetes. The crate `kubectl-spillway` is the kubectl plugin. It shares `api`, `conversion` and `policy`, and runs
//! on its user's machine: Linux, macOS or Windows.
//!
//! The programs in `bin/` parse arguments and call this library.

pub mod bridge;
pub mod cluster;
pub mod controller;
pub mod egress_settings;
pub mod gateway;
pub mod generate;
pub mod git_settings;
pub mod governor;
pub mod node_profile;
pub mod notify;
pub mod origins;
pub mod pki;
pub mod release;
pub mod serve;
pub mod source;
pub mod telemetry;

pub use spillway_api as api;
pub use spillway_policy as policy;
pub use spillway_wire as wire;

/// The version of this build, as `--version` prints it and the User-Agent carries it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
