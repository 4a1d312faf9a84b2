//! `spillway bridge`: serves programs to agents over MCP. The programs run here, outside the agents' sandboxes, with credentials that agents
//! cannot read. What a program is, and which calls are right, decides the crate `spillway-bridge`.
//!
//! What always holds: no program starts before a record of the call is written. A call whose client is gone is ended with all that it
//! started. An agent gets no credential: only programs and the upstream do, and a printed one is taken out of the answer.
//!
//! | module | for | must not |
//! |---|---|---|
//! | [`command`] | the command and its subcommands | |
//! | [`settings`] | the arguments of the command | |
//! | [`install`] | copies this executable to a folder, for a container with another image | |
//! | [`capabilities`] | the capabilities of root, which programs do not get | |
//! | [`credentials`] | credentials, from files | keep a credential longer than a call |
//! | [`pinned_program`] | the file of a program, as it was when it was loaded | run it |
//! | [`served_catalog`] | the definitions that are served, read again when they change | run a program |
//! | [`admitted_request`] | who sends a request of MCP, what a gateway provides for it, and how its call ended | |
//! | [`call_files`] | the artifacts that programs get | read one |
//! | [`clients`] | who may call: programs of a laptop, or gateways | decide on a call of a program |
//! | [`audit_log`] | writes the audit log, and verifies one | decide |
//! | [`program_process`] | a process of ours around one program | know of MCP or of definitions |
//! | [`private_folder`] | the folders that programs write to | |
//! | [`end_of_input`] | hearing that standard input ends | |
//! | [`answers`] | the answers to calls | decide |
//! | [`call_approval`] | whether persons let a call run | ask one |
//! | [`program_call`] | a call, as it came in | |
//! | [`executor`] | one call, from its arguments to its answer | know of MCP |
//! | [`tools`] | the three tools, as MCP describes them | run a program |
//! | [`client`] | calls bridges in the cluster, for gateways and for the leader | run a program |
//! | [`upstream`] | the MCP server that a bridge fronts in the place of programs | decide on a call |
//! | [`runnable`] | what a call runs: a program, or a tool of an upstream | |
//! | [`upstream_tools`] | the tools of an upstream, as MCP describes them to agents | decide on a call |
//! | [`server`] | MCP over HTTP | decide on a call |

pub mod admitted_request;
pub mod answers;
pub mod audit_log;
pub mod call_approval;
pub mod call_files;
pub mod capabilities;
pub mod client;
pub mod clients;
pub mod command;
pub mod credentials;
pub mod end_of_input;
pub mod executor;
pub mod install;
pub mod pinned_program;
pub mod private_folder;
pub mod program_call;
pub mod program_process;
pub mod runnable;
pub mod served_catalog;
pub mod server;
pub mod settings;
pub mod tools;
pub mod upstream;
pub mod upstream_tools;

pub use command::BridgeArguments;
pub use server::run;
