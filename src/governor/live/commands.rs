//! The command state of agents: the breakers that they are sent, the counts of their pods, and the commands that they
//! try.

use std::time::Duration;

use super::{Live, State};
use crate::cluster::ObjectKey;
use crate::cluster::clock::BootTime;
use crate::policy::breaker::Permit;
use crate::wire::command::{BreakerState, CommandBreakers, CommandCounts, CommandPermit};

/// Commands that one agent tries for its namespace and whose results are awaited.
const MAX_PENDING_PROBES: usize = 64;
/// Openings that end within this time of each other are the same one: clock readings differ slightly.
const SAME_OPENING_TOLERANCE: Duration = Duration::from_secs(2);

impl State {
    /// Records the state of an agent's own command breaker.
    pub(super) fn set_breaker_state(&mut self, uid: &str, breaker: BreakerState) {
        if breaker.is_closed() {
            self.tripped.remove(uid);
        } else {
            self.tripped.insert(uid.to_owned(), breaker);
        }
    }
}

impl Live {
    /// The agents whose own command breaker is not closed, with the metric label of its state.
    pub fn tripped_agents(&self) -> Vec<(ObjectKey, &'static str)> {
        let state = self.lock();
        let of = |(uid, breaker): (&String, &BreakerState)| {
            let key = state.agents.get(uid)?.expected.as_ref()?.key.clone();
            match breaker {
                BreakerState::Closed => None,
                BreakerState::HalfOpen => Some((key, "half_open")),
                BreakerState::Open => Some((key, "open")),
            }
        };
        state.tripped.iter().filter_map(of).collect()
    }

    /// Every agent that is expected, by the uid of its pod.
    pub fn expected_agents(&self) -> Vec<(String, ObjectKey)> {
        let state = self.lock();
        let expected = state.agents.iter().filter_map(|(uid, one)| Some((uid.clone(), one.expected.as_ref()?.key.clone())));
        expected.collect()
    }

    /// Sets the state of the command breakers for an agent.
    pub fn commands(&self, uid: &str, breakers: CommandBreakers) {
        let mut state = self.lock();
        let one = state.agents.entry(uid.to_owned()).or_default();
        let mut breakers = breakers;
        let wait = breakers.open_globally.as_mut().map(|open| std::mem::take(&mut open.retry_after_milliseconds));
        let until = wait.map(|wait| BootTime::now().after(Duration::from_millis(wait)));
        let apart = |one: BootTime, other: BootTime| one.since(other).max(other.since(one));
        let same = |(known, known_until): &(CommandBreakers, Option<BootTime>)| {
            *known == breakers && known_until.zip(until).is_none_or(|(one, other)| apart(one, other) < SAME_OPENING_TOLERANCE)
        };
        if one.command_state.told.as_ref().is_some_and(same) {
            return;
        }
        one.command_state.told = Some((breakers, until));
        self.changed(uid, one);
    }

    /// Records the counts of a pod, and returns the increase. Counts from before the first report are not attributed.
    pub fn commands_counted(&self, uid: &str, counts: CommandCounts) -> CommandCounts {
        let mut state = self.lock();
        let one = state.agents.entry(uid.to_owned()).or_default();
        let known = one.command_state.counts.replace(counts).unwrap_or(counts);
        CommandCounts { failed: counts.failed.saturating_sub(known.failed), opened: counts.opened.saturating_sub(known.opened) }
    }

    /// The permit for this command, if the agent has one.
    pub fn probe_permit(&self, uid: &str, command: CommandPermit) -> Option<Permit> {
        self.lock().agents.get(uid)?.command_state.tries.get(&command).copied()
    }

    /// Gives an agent permission to try this command.
    pub fn add_probe(&self, uid: &str, command: CommandPermit, permit: Permit) {
        let mut state = self.lock();
        let tries = &mut state.agents.entry(uid.to_owned()).or_default().command_state.tries;
        while tries.len() >= MAX_PENDING_PROBES {
            tries.pop_first();
        }
        tries.insert(command, permit);
    }

    /// Takes back the permit of a tried command, if the agent holds this permit.
    pub fn take_probe(&self, uid: &str, CommandPermit { owner, epoch, id }: CommandPermit) -> Option<Permit> {
        let mut state = self.lock();
        let tries = &mut state.agents.get_mut(uid)?.command_state.tries;
        let given = |permit: &Permit| (permit.owner, permit.epoch, permit.id) == (owner, epoch, id);
        let command = tries.iter().find(|(_, permit)| given(permit)).map(|(command, _)| *command)?;
        tries.remove(&command)
    }
}
