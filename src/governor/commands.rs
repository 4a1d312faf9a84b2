//! The circuit breaker for commands of a namespace. Failures that pods count are reported to the circuit, its state is
//! sent to every agent, and an agent asks here for permission to try a command while the circuit is open.
//!
//! It decides nothing: `governor::breaker` owns the circuit.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;

use super::breaker::{BeginRefusal, Key as Circuit};
use super::caller::Caller;
use crate::api::Agent;
use crate::cluster::ObjectKey;
use crate::controller::Context;
use crate::policy::breaker::Outcome;
use crate::policy::interventions::Timeout;
use crate::wire::agent::Acknowledgement;
use crate::wire::command::{CommandBreakers, CommandCounts, CommandPermit, CommandRejected, EndTry, TryAnswer, TryCommand, TryOutcome};
use crate::wire::{Code, Refusal};

/// Changes that come within this time are sent together.
const CHANGE_BATCH_DELAY: Duration = Duration::from_millis(200);
/// How long, beyond its own timeout, a tried command may take to be ended and reported.
const COMMAND_REPORT_GRACE: Duration = Duration::from_secs(35);
/// Failures that one report may count: more than the breaker of one agent allows at once.
const MAX_REPORTED_FAILURES: u64 = 64;

/// Sends the state of the command breakers to every agent after each possible change. Never returns.
pub async fn run(context: Arc<Context>) {
    let mut changes = context.circuits.changes();
    loop {
        changes.mark_unchanged();
        send_to_all(&context);
        if changes.changed().await.is_err() {
            return;
        }
        tokio::time::sleep(CHANGE_BATCH_DELAY).await;
    }
}

fn send_to_all(context: &Context) {
    let mut of_pools = HashMap::new();
    for (uid, key) in context.live.expected_agents() {
        let stored = context.stores.agent(&key);
        let Some(agent) = stored.as_ref().and_then(|agent| agent.0.as_ref().ok()) else { continue };
        let pool = pool_of(&key.namespace, agent);
        let told = of_pools.entry(pool).or_insert_with_key(|pool| context.circuits.command_breakers(pool));
        if let Some(told) = told {
            context.live.commands(&uid, for_agent(agent, told.clone()));
        }
    }
}

fn pool_of(namespace: &str, agent: &Agent) -> ObjectKey {
    ObjectKey { namespace: namespace.to_owned(), name: agent.spec.pool_ref.name.clone() }
}

/// Updates the state of the command breakers for an agent that is about to be answered.
pub fn tell(caller: &Caller, agent: &Agent, context: &Context) {
    if let Some(told) = context.circuits.command_breakers(&pool_of(&caller.key.namespace, agent)) {
        context.live.commands(&caller.uid, for_agent(agent, told));
    }
}

/// The part that applies to this agent. Hanging commands in pods say nothing about agents outside the cluster.
fn for_agent(agent: &Agent, told: CommandBreakers) -> CommandBreakers {
    if agent.spec.external.is_some() { CommandBreakers { open_globally: None, ..told } } else { told }
}

/// Reports the failures that an agent's pod counted since its last report to the circuit of the namespace.
pub fn counted(caller: &Caller, agent: &Agent, counts: CommandCounts, context: &Context) {
    let CommandCounts { failed, opened } = context.live.commands_counted(&caller.uid, counts);
    (0..opened.min(MAX_REPORTED_FAILURES)).for_each(|_| context.live.timed_out(&caller.uid, Timeout::Commands));
    let namespace = &caller.key.namespace;
    for _ in 0..failed.min(MAX_REPORTED_FAILURES) {
        let why = format!("a command of Agent/{} hung or could not be started", caller.key.name);
        context.circuits.failed(&pool_of(namespace, agent), &Circuit::commands(namespace), &why);
    }
}

/// Permission to try a command while the breaker of the namespace is open. A repeated call for the same command gets
/// the same permit.
pub async fn try_command(caller: &Caller, agent: &Agent, request: TryCommand, context: &Context) -> Result<TryAnswer, Refusal> {
    if agent.spec.external.is_some() {
        let message =
            "an agent outside the cluster cannot try a command for the breaker of its namespace, which counts only commands in pods";
        return Err(Refusal::new(Code::NotAllowed, message));
    }
    let TryCommand { command, timeout_milliseconds } = request;
    let said = |permit: &crate::policy::breaker::Permit| CommandPermit { owner: permit.owner, epoch: permit.epoch, id: permit.id };
    if let Some(permit) = context.live.probe_permit(&caller.uid, command) {
        return Ok(TryAnswer::Permit(said(&permit)));
    }
    let namespace = &caller.key.namespace;
    let within = Duration::from_millis(timeout_milliseconds) + COMMAND_REPORT_GRACE;
    match context.circuits.admit(&pool_of(namespace, agent), &Circuit::commands(namespace), within).await {
        Ok(permit) => {
            context.live.add_probe(&caller.uid, command, permit);
            tracing::info!(%namespace, agent = %agent.name_any(), "an agent tries a command for its namespace");
            Ok(TryAnswer::Permit(said(&permit)))
        }
        Err(BeginRefusal::Open { rejection, words }) => {
            Ok(TryAnswer::Rejected(CommandRejected { message: words, retry_after_milliseconds: rejection.retry_after }))
        }
        Err(BeginRefusal::Away(words)) => Err(Refusal::unavailable(words)),
    }
}

/// Records how a tried command ended. Only the agent that holds the permit can report it, and only once.
pub fn end_try(caller: &Caller, EndTry { permit, outcome }: EndTry, context: &Context) -> Acknowledgement {
    if let Some(permit) = context.live.take_probe(&caller.uid, permit) {
        let outcome = match outcome {
            TryOutcome::Success => Outcome::Success,
            TryOutcome::Failure => Outcome::Failure { retry_after: None },
            TryOutcome::Neutral => Outcome::Neutral,
        };
        let why = format!("a command that Agent/{} tried hung or could not be started", caller.key.name);
        context.circuits.complete(&Circuit::commands(&caller.key.namespace), &permit, outcome, &why);
    }
    Acknowledgement {}
}
