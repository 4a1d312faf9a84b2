//! The map of the crate: the decisions of Spillway. Facts go in, plans with their reasons come out.
//!
//! There is no I/O, no clock and no randomness: time and seeds are arguments. No module knows Kubernetes types. So every
//! rule can be tested exhaustively, and the store of records can change without a change of a decision.
//!
//! | module | holds |
//! |---|---|
//! | [`adaptive_limit`] | the limit on concurrent writes of one namespace, adapted to their latency |
//! | [`agent`] | the life of one Agent: the next step for its pod, and its state |
//! | [`artifacts`] | whether a file may be kept with an item, and which objects of the store are unused |
//! | [`backoff`] | exponential backoff with jitter |
//! | [`breaker`] | circuits: when work, commands and model calls are stopped, probed and let pass again |
//! | [`budget`] | tokens: the ledger of all limits, holds and settles, sessions of gateways, refusals |
//! | [`bulkhead_use`] | how full bulkheads are, and when people are notified |
//! | [`capacity`] | whether one more agent may get a pod, and which namespaces may be projects |
//! | [`certificates`] | when the internal certificates are renewed |
//! | [`children`] | how fast an agent may make children |
//! | [`compute`] | which Budget sets the compute of a namespace, and what is done with the object that carries it |
//! | [`external`] | the process of an agent outside the cluster, described as a pod |
//! | [`fair_queue`] | turns: fair queueing between namespaces |
//! | [`gang`] | whether the agents of one group of items fail together |
//! | [`git`] | which repository an agent fetches from, and which refs it pushes |
//! | [`health`] | the silence of agents: from facts about a living agent to the signals that it raises |
//! | [`history`] | recent values by namespace, bounded in time and in bytes |
//! | [`interventions`] | supervision: from the signals about an agent to one intervention |
//! | [`lease`] | leadership: when to acquire, renew or wait, owner epochs, rollbacks of the store |
//! | [`liveness`] | when each agent last reported, in served time |
//! | [`node_liveness`] | which nodes are unreachable |
//! | [`outbox`] | notifications that wait for one receiver: batches, order, retries |
//! | [`pod_termination`] | whether a pod whose object is missing is gone |
//! | [`pool`] | a pool's plan: which Agents are made, woken, hibernated and deleted |
//! | [`preflight`] | whether an agent may get work |
//! | [`scaling`] | the size of a pool, and its reason |
//! | [`status_throttle`] | when a changed status is written |
//! | [`sweep`] | when a map is searched for entries that are no longer used |
//! | [`tool_approval`] | calls of privileged programs that a person approves |
//! | [`work`] | items: admission, the ready queue, leases, transitions, the index of a namespace |

pub mod adaptive_limit;
pub mod agent;
pub mod artifacts;
pub mod backoff;
pub mod breaker;
pub mod budget;
pub mod bulkhead_use;
pub mod capacity;
pub mod certificates;
pub mod children;
pub mod compute;
pub mod egress;
pub mod external;
pub mod fair_queue;
pub mod gang;
pub mod git;
pub mod health;
pub mod history;
pub mod interventions;
pub mod lease;
pub mod liveness;
pub mod node_liveness;
pub mod outbox;
pub mod pod_termination;
pub mod pool;
pub mod preflight;
pub mod scaling;
pub mod status_throttle;
pub mod sweep;
pub mod tool_approval;
pub mod work;
