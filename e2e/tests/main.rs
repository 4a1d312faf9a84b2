//! The whole system on a real cluster: real pods, a real kubelet, and operators as processes that can be killed,
//! stopped and cut off. `make e2e` runs the tests, inside `e2e/cluster/cluster run`.
//!
//! Each test has a namespace and operators of its own, which serve that namespace only. So tests run in parallel. They
//! do not measure times (`e2e/bench` does): a test waits with a generous limit. Some tests wait for ten minutes,
//! because they test such a period.
//!
//! Tests whose names begin with `alone_` stop something that every other test needs. `e2e/test.sh` runs them alone.

#[expect(dead_code, reason = "the tests of a bridge that is started by hand use the rest")]
#[path = "../../tests/bridge/support.rs"]
mod bridge;
mod support;

mod approvals;
mod artifacts;
mod bombs;
mod breakers;
mod budget_signals;
mod budgets;
mod certificates;
mod changeset;
mod codex;
mod commands;
mod compute;
mod egress;
mod external;
mod faults;
mod folder;
mod git;
mod hibernate;
mod hostile;
mod identity;
mod interventions;
mod issues;
mod life;
mod metrics;
mod model_circuits;
mod models;
mod node_profile;
mod nodes;
mod notifications;
mod outages;
mod packages;
mod pod_walls;
mod pools;
mod preflight;
mod program_commands;
mod quiet;
mod refusals;
mod reservations;
mod runc;
mod sandbox;
mod scheduler;
mod secrets;
mod store_rollback;
mod supervision;
mod tasks;
mod think;
mod tool_samples;
mod toolsets;
mod upstream;
mod work;
mod work_faults;
mod work_fleet;
mod work_rules;
