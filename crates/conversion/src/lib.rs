//! Conversion between the custom resources and the types of the decisions (`policy`). The operator and the plugin use
//! it, so that both read items and pools in the same way.
//!
//! The functions are pure. They must not decide, hold a client, or read a clock. Invariant: a record that is written to
//! a status and read again is the same record.

pub mod pool;
pub mod sandbox;
pub mod tool_approval;
pub mod work;

use spillway_api as api;
use spillway_policy as policy;
