//! All Kubernetes I/O. What it must not do: decide. Every call here is one request, or one long-lived watch; what to send,
//! and whether, comes from `policy` through `controller`.

pub mod access;
pub mod backoff;
pub mod calls;
pub mod clock;
pub mod connect;
pub mod error;
pub mod events;
pub mod gate;
pub mod lease;
mod lease_rollback;
mod object_key;
pub mod pace;
pub mod quiet;
pub mod remembered;
mod request;
pub mod served;
pub mod token;
pub mod tolerant;
pub mod trim;
pub mod watch;

pub use error::{Class, Error};
pub use object_key::ObjectKey;
