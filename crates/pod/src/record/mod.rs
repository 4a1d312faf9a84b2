//! What the sandbox of a pod refuses to processes, or would refuse: for `spillway-agent sandbox --record`, which runs a command without a
//! sandbox, so that people can adopt the sandbox without guessing, and for the supervisor, which counts.
//!
//! | file | for | must not |
//! |---|---|---|
//! | [`files`] | the file that a system call names, and what the call does to it | read a file |
//! | [`recording`] | what was seen, and the report about it | read a file |
//! | [`watcher`] | hearing of calls, and answering them | decide what is refused |
//! | [`run`] | `--record`: running the command and watching it | decide what would be refused |

pub mod files;
pub mod recording;
pub mod run;
pub mod watcher;

pub use run::{Arguments, run};
