//! Random kills that follow from a seed, so that a run can be repeated.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use rustix::process::Signal;

use super::node::{self, Process};
use super::{Operator, TestNamespace, stopped};

/// A victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    Controller,
    Gateway,
    /// PID 1 of an agent's container. The agent is lost.
    Supervisor,
    /// An agent's sidecar. The kubelet restarts it, and nothing is lost.
    Sidecar,
    /// It affects all pods of the node.
    Kubelet,
}

/// Pseudo-random numbers from a seed.
pub struct Dice(u64);

impl Dice {
    /// From `SPILLWAY_SEED`, or a random seed, which is printed.
    pub fn seeded() -> Self {
        let given = std::env::var("SPILLWAY_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(rand::random::<u64>);
        eprintln!("SPILLWAY_SEED={seed}");
        Self(seed)
    }

    /// A generator of its own, whose numbers do not depend on other users.
    pub fn fork(&mut self) -> Self {
        Self(u64::try_from(self.below(usize::MAX)).expect("a number"))
    }

    /// The next number, below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let limit = u64::try_from(limit).expect("a number");
        usize::try_from((mixed ^ (mixed >> 31)) % limit).expect("a number")
    }

    /// `count` times before `end`, in order.
    pub fn moments(&mut self, count: usize, end: usize) -> Vec<usize> {
        let mut moments: Vec<usize> = (0..count).map(|_| self.below(end)).collect();
        moments.sort_unstable();
        moments
    }

    /// Shuffles the items.
    pub fn shuffled<T>(&mut self, mut all: Vec<T>) -> Vec<T> {
        for at in (1..all.len()).rev() {
            all.swap(at, self.below(at + 1));
        }
        all
    }
}

/// A namespace's processes, which are killed one after the other.
pub struct Killer<'a> {
    room: &'a TestNamespace,
    /// The current controller.
    pub operator: Option<Operator>,
    kills: usize,
    /// Agents that were lost by kills.
    pub lost_agents: BTreeSet<String>,
}

impl<'a> Killer<'a> {
    pub fn new(room: &'a TestNamespace, operator: Operator) -> Self {
        Self { room, operator: Some(operator), kills: 0, lost_agents: BTreeSet::new() }
    }

    /// Kills the victim. A controller or a gateway is restarted at once.
    pub async fn kill(&mut self, victim: Victim, dice: &mut Dice) {
        self.kills += 1;
        let name = format!("{}", self.kills);
        match victim {
            Victim::Controller => {
                self.operator = None; // it ends before the next one starts
                self.operator = Some(self.room.operator(&format!("controller-{name}")));
            }
            Victim::Gateway => {
                self.room.kill_gateway();
                self.room.start_gateway(&format!("gateway-{name}"));
            }
            Victim::Supervisor => {
                if let Some((agent, process)) = self.one_of_an_agent(dice, node::supervisor).await {
                    self.lost_agents.insert(agent);
                    node::signal(&process, Signal::KILL);
                }
            }
            Victim::Sidecar => {
                if let Some((_, process)) = self.one_of_an_agent(dice, node::link).await {
                    node::signal(&process, Signal::KILL);
                }
            }
            Victim::Kubelet => drop(stopped::Kubelet::Killed.stop_or_kill()),
        }
    }

    async fn one_of_an_agent(&self, dice: &mut Dice, which: impl Fn(&str) -> Option<Process>) -> Option<(String, Process)> {
        let pods: Vec<Pod> = self.room.list().await;
        let running = pods.iter().filter_map(|pod| Some((pod.name_any(), which(&pod.uid()?)?)));
        let mut running: Vec<_> = running.collect();
        (!running.is_empty()).then(|| running.swap_remove(dice.below(running.len())))
    }
}
