//! The governor: the one owner of what must be decided in one place. It lives in the controller that leads. Today it knows
//! who is alive, what is wanted of whom, who may spawn whom, and who may spend how much.
//!
//! What it holds in memory may be lost at any moment: what must not be lost is in the status of objects, written by their
//! reconcilers. It writes no agent's status itself but what its life has spent (`tokens`); it remembers, wakes the reconciler, and answers when that has
//! stored what was asked.
//!
//! | file | for |
//! |---|---|
//! | [`live`] | what agents reported, what is wanted of them, what they should know |
//! | [`preflight`] | whether an agent may be given work |
//! | [`caller`] | whether a pod, or a process outside the cluster, is the agent it says it is |
//! | [`calls`] | the agents' calls |
//! | `agent_creation` | what the calls that make an Agent share |
//! | [`breaker`] | circuits: what keeps failing is stopped for a while, and what is stored of it |
//! | [`bulkheads`] | how full each bulkhead is: the log's line of a project, and events |
//! | [`budget`] | tokens: what is held and spent, where, and what is stored of it |
//! | [`external`] | agents outside the cluster: their Agents, and how they behave |
//! | [`commands`] | what commands of agents concern a whole namespace |
//! | [`work`] | items of work: who gets which, and what becomes of it |
//! | [`rollback`] | events about a rollback of the API server's store |
//! | [`server`] | its HTTPS server: gateways only, the owner epoch on every answer |

mod agent_creation;
pub mod breaker;
pub mod budget;
pub mod bulkheads;
pub mod caller;
pub mod calls;
pub mod commands;
pub mod external;
pub mod live;
pub mod preflight;
pub mod rollback;
pub mod server;
pub mod work;

pub use live::Live;
