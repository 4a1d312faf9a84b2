//! The internal certificates: Spillway's own authority, kept in a Secret, and the certificates that it signs.
//!
//! The leader creates and rotates them (`policy::certificates` decides when). Gateways read theirs. Agents' pods get
//! the trusted certificates as a ConfigMap. No program outside Spillway trusts this authority, and it signs two fixed
//! names only.
//!
//! | file | for |
//! |---|---|
//! | [`authority`] | creates and signs certificates |
//! | [`bridge_tls`] | TLS with the bridges of Toolsets |
//! | [`secrets`] | the leader's loop: reads the Secrets, decides, writes by compare-and-swap |
//! | [`tls`] | TLS servers and clients with these certificates |

pub mod authority;
pub mod bridge_tls;
pub mod secrets;
pub mod tls;
