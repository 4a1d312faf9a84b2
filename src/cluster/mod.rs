//! All Kubernetes I/O. It must not decide. Every call here is one request, or one long-lived watch. The decisions come
//! from `policy` through `controller`.

pub mod access;
pub mod adaptive_limit;
pub mod background_writes;
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
mod request;
pub mod served;
pub mod token;
pub mod tolerant;
pub mod trim;
pub mod ttl_cache;
pub mod watch;

pub use error::{Class, Error};
pub use object_key::ObjectKey;
