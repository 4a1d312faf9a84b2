//! From custom resources to what is decided on, and from a record back to a status: the operator and the plugin see an item
//! and a pool in the same way.
//!
//! Pure. It must not decide, hold a client, or read a clock. What always holds: a record that is written to a status and read
//! again is the same record.

pub mod pool;
pub mod work;

use spillway_api as api;
use spillway_policy as policy;
