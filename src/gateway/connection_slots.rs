//! How many connections to servers there may be: of one agent, of one namespace, and in all. Egress and git have their own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::serve::fair_semaphore::{Bounds, FairSemaphore, Permit};
use crate::wire::{Code, Refusal};

/// The most connections.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionBounds {
    /// Of all agents, and of one namespace.
    pub all: Bounds,
    /// Of one agent.
    pub per_agent: u32,
    /// How long a connection waits for a slot.
    pub wait: Duration,
}

/// The slots.
pub struct ConnectionSlots {
    bounds: ConnectionBounds,
    all: FairSemaphore,
    of_agents: Arc<Mutex<HashMap<String, u32>>>,
}

/// The slot of one connection, until it is dropped.
pub struct ConnectionSlot {
    _permit: Permit,
    _agent: AgentSlot,
}

struct AgentSlot {
    of_agents: Arc<Mutex<HashMap<String, u32>>>,
    agent: String,
}

impl ConnectionSlots {
    /// No connection is open.
    pub fn new(bounds: ConnectionBounds) -> Self {
        Self { bounds, all: FairSemaphore::new(bounds.all), of_agents: Arc::default() }
    }

    /// Waits a moment for the slot of a connection.
    pub async fn take(&self, namespace: &str, agent: &str) -> Result<ConnectionSlot, Refusal> {
        let own = AgentSlot::take(&self.of_agents, agent, self.bounds.per_agent)?;
        let full = || Refusal::new(Code::TooManyCalls, "the agents of this namespace have as many connections as they may").retry_after(5);
        let permit = tokio::time::timeout(self.bounds.wait, self.all.take(namespace)).await.map_err(|_| full())?.map_err(|_| full())?;
        Ok(ConnectionSlot { _permit: permit, _agent: own })
    }
}

impl AgentSlot {
    fn take(of_agents: &Arc<Mutex<HashMap<String, u32>>>, agent: &str, most: u32) -> Result<Self, Refusal> {
        let mut all = locked(of_agents);
        let count = all.entry(agent.to_owned()).or_default();
        if *count >= most {
            let message = format!("this agent has {most} connections, and an agent may not have more");
            return Err(Refusal::new(Code::TooManyCalls, message).retry_after(5));
        }
        *count += 1;
        drop(all);
        Ok(Self { of_agents: of_agents.clone(), agent: agent.to_owned() })
    }
}

impl Drop for AgentSlot {
    fn drop(&mut self) {
        let mut all = locked(&self.of_agents);
        if let Some(count) = all.get_mut(&self.agent) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                all.remove(&self.agent);
            }
        }
    }
}

fn locked(of_agents: &Mutex<HashMap<String, u32>>) -> MutexGuard<'_, HashMap<String, u32>> {
    of_agents.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_agent_has_so_many_connections_and_gets_a_slot_back_with_each_that_ends() {
        let all = Bounds { total: 100, per_namespace: 100, max_waiting: 10 };
        let slots = ConnectionSlots::new(ConnectionBounds { all, per_agent: 64, wait: Duration::from_secs(10) });
        let mut held = Vec::new();
        for _ in 0..64 {
            held.push(slots.take("n", "a").await.expect("a slot"));
        }
        let refusal = slots.take("n", "a").await.err().expect("it has as many as it may");
        assert_eq!(refusal.code, Code::TooManyCalls);
        held.push(slots.take("n", "b").await.expect("another agent has its own"));
        held.remove(0);
        held.push(slots.take("n", "a").await.expect("one ended"));
        held.clear();
        assert!(locked(&slots.of_agents).is_empty(), "agents without a connection are forgotten");
    }
}
