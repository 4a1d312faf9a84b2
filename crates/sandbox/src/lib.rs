//! What an agent's program may do in its container: which files it may use, by Landlock, and which system calls it may make, by
//! seccomp. Both are set by the program's own parent, need no privilege, and hold for all that the program starts.
//!
//! What always holds: a sandbox is prepared whole before the program is forked, and a program whose sandbox cannot be installed is
//! not started. A program cannot leave its sandbox, and can only narrow it.
//!
//! This crate has the only `unsafe` code of the workspace, in `child`, [`install`], [`kernel`], [`process_limit`],
//! [`signals`] and [`watch`]. It does not
//! decide which agents get a sandbox, and it does not know Kubernetes.
//!
//! | file | for |
//! |---|---|
//! | [`kernel`] | what the kernel can enforce |
//! | [`plan`] | which guarantees are enforced, or why the program must not start |
//! | [`grants`] | the files that the program may use |
//! | [`rules`] | Landlock's rules |
//! | [`condition`] | conditions on the arguments of a system call |
//! | [`policy`] | the system calls that the program may make |
//! | [`filter`] | the policy as a program for the kernel |
//! | [`profile`] | the policy as a profile of container runtimes, and as a SeccompProfile object |
//! | `child` | system calls between fork and exec |
//! | [`install`] | a sandbox around a command |
//! | [`process_limit`] | the processes that a started program may have |
//! | [`signals`] | signals that a started program ignores |
//! | [`watch`] | hearing of the system calls of a command, to count them |
//! | [`container`] | the sandbox of a container, from its settings, and the report about it |

mod child;
pub mod condition;
pub mod container;
pub mod filter;
pub mod grants;
pub mod install;
pub mod kernel;
pub mod plan;
pub mod policy;
pub mod process_limit;
pub mod profile;
pub mod rules;
pub mod signals;
pub mod watch;

pub use install::Sandbox;
