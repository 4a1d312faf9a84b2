//! The whole system on a real cluster: real pods, real kubelet, operators as processes that can be killed, stopped and cut
//! off. Run by `make e2e`, inside `e2e/cluster/cluster run`.
//!
//! Each test has a namespace and operators of its own, which serve that namespace only: tests run side by side. Nothing
//! here is timed: a test waits, generously, for the thing to happen; times come from `e2e/bench`. Some wait for ten minutes,
//! because that is what they are about.
//!
//! Tests whose names begin with `alone_` take something away that every other test needs: `e2e/test.sh` runs them by
//! themselves.

mod support;

mod bombs;
mod breakers;
mod budget_signals;
mod budgets;
mod commands;
mod compute;
mod external;
mod faults;
mod hibernate;
mod hostile;
mod identity;
mod interventions;
mod life;
mod metrics;
mod model_circuits;
mod models;
mod nodes;
mod notifications;
mod outages;
mod pod_walls;
mod pools;
mod preflight;
mod program_commands;
mod quiet;
mod refusals;
mod reservations;
mod scheduler;
mod store_rollback;
mod supervision;
mod think;
mod work;
mod work_faults;
mod work_fleet;
mod work_rules;
