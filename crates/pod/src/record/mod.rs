//! `spillway-agent sandbox --record`: runs a command without a sandbox, and says what the sandbox of a pod would refuse it, so that people
//! can adopt the sandbox without guessing.
//!
//! | file | for | must not |
//! |---|---|---|
//! | [`files`] | the file that a system call names, and what the call does to it | read a file |
//! | [`recording`] | what was seen, and the report about it | read a file |
//! | [`run`] | running the command and watching it | decide what would be refused |

pub mod files;
pub mod recording;
pub mod run;

pub use run::{Arguments, run};
