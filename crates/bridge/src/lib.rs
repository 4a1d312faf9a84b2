//! Privileged programs that agents may call from their sandbox. A *definition* is a Markdown file whose front matter says which program
//! runs with which arguments. Its text is the help of the program.
//!
//! What always holds: no shell reads what an agent gives. An argument reaches the program as part of one word, after a check of its type,
//! its pattern and its characters. A folder of definitions is loaded whole or not at all.
//!
//! | module | for | must not |
//! |---|---|---|
//! | [`definition`] | one definition: its fields, its arguments, what is wrong with it | read a file |
//! | [`catalog`] | all definitions of a folder, and their revision | run a program |
//! | [`check`] | `spillway bridge check` | run a program |
//! | [`call`] | the words of one call, or why it is refused | run a program |
//! | [`approval`] | whether a person has approved a call | ask a person |
//! | [`answer`] | the answer to a call | |
//! | [`admission`] | how many calls run, and how often an agent calls | read a clock |
//! | [`breakers`] | when programs that hang are stopped | read a clock |
//! | [`idempotency`] | calls that are repeated with a key | read a clock |
//! | [`redaction`] | credentials that a text contains | read a credential |
//! | [`upstream`] | a server of MCP whose tools agents may call: which tools, with which arguments | send a request |
//! | [`audit`] | the records of the audit log, and whether a log is whole | write a file |

pub mod admission;
pub mod answer;
pub mod approval;
pub mod audit;
pub mod breakers;
pub mod call;
pub mod catalog;
pub mod check;
pub mod definition;
pub mod idempotency;
pub mod redaction;
pub mod upstream;
