//! The whole system on a real cluster: real pods, real kubelet, operators as processes that can be killed, stopped and cut
//! off. Run by `make e2e`, inside `e2e/cluster/cluster run`.
//!
//! Each test has a namespace and operators of its own, which serve that namespace only: tests run side by side. Nothing
//! here is timed: a test waits, generously, for the thing to happen; times come from `e2e/bench`.

mod support;

mod faults;
mod pools;
mod quiet;
mod refusals;
