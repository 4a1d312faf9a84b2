//! The internal certificates: an authority of Spillway's own, kept in a Secret, and what it signs.
//!
//! The leader makes and rotates them (`policy::certificates` decides when); gateways read theirs; agents' pods get what to
//! trust as a ConfigMap. Nobody outside Spillway trusts this authority, and it signs for two fixed names only.
//!
//! | file | for |
//! |---|---|
//! | [`authority`] | making and signing certificates |
//! | [`secrets`] | the leader's loop: Secrets read, decided on, written by compare-and-swap |
//! | [`tls`] | servers and clients made of them |

pub mod authority;
pub mod secrets;
pub mod tls;
