//! The governor makes the decisions that need a single owner. It runs in the controller that leads. It knows which
//! agents are alive, the desired state of each agent, which agents may create children, and how many tokens each agent
//! may spend.
//!
//! Its memory may be lost at any moment. State that must survive is in the status of objects, which their reconcilers
//! write. Of an Agent's status the governor writes only `tokens` and `toolApprovals`. For everything else it wakes the
//! reconciler, and answers when the reconciler has stored the change.
//!
//! | file | for |
//! |---|---|
//! | [`live`] | reports of agents, their desired state, and notices for them |
//! | [`preflight`] | whether an agent is fit for work |
//! | `sandbox` | what the sandboxes of agents refused |
//! | `sandbox_offer` | what an agent's sandbox can give to an item |
//! | [`approvals`] | calls of privileged programs that a person approves |
//! | [`caller`] | whether a pod, or a process outside the cluster, is the agent that it claims to be |
//! | [`calls`] | the calls of agents |
//! | `agent_creation` | common parts of the calls that create an Agent |
//! | [`breaker`] | circuit breakers, and their stored state |
//! | [`bulkheads`] | use of the bulkheads: a log line for each project, and events |
//! | [`budget`] | token budgets: held and spent tokens, and their stored records |
//! | [`egress`] | whether an agent may reach a destination other than models |
//! | [`external`] | agents outside the cluster: their registration and settings |
//! | [`changeset`] | how agents make changesets, and the branch of each item |
//! | [`git`] | which repository an agent may use, and which refs it may push |
//! | [`tools`] | which Toolsets an agent may call, and where their bridges are |
//! | [`lease_check`] | whether an agent is not paused and holds the item that it names |
//! | [`commands`] | the circuit breaker for commands of a namespace |
//! | [`work`] | work items: assignment, transitions, results |
//! | [`rollback`] | events about a rollback of the API server's store |
//! | [`server`] | the HTTPS server for gateways |

mod agent_creation;
pub mod approvals;
pub mod breaker;
pub mod budget;
pub mod bulkheads;
pub mod caller;
pub mod calls;
pub mod changeset;
pub mod commands;
pub mod egress;
pub mod external;
pub mod git;
mod lease_check;
pub mod live;
pub mod preflight;
pub mod rollback;
mod sandbox;
mod sandbox_offer;
pub mod server;
pub mod tools;
pub mod work;

pub use live::Live;
