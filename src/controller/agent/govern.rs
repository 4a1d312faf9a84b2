//! Passes the desired state of an agent to the governor, and carries out interventions. The decisions are made
//! elsewhere (`supervise`, `policy::interventions`).

use std::time::Duration;

use kube::ResourceExt;

use super::observe::AgentObservation;
use super::{status, supervise};
use crate::api::{Agent, names};
use crate::cluster::ObjectKey;
use crate::controller::Context;
use crate::governor::live::Expected;
use crate::policy::agent::{Activity, Pod, Sleep, State};
use crate::policy::budget::Key as TokenKey;
use crate::policy::interventions::{Action, Decision, Signal};
use crate::policy::node_liveness::NodeReach;
use crate::wire::agent::Directive;
use crate::wire::follow::Message;

/// Tells the governor that the agent is expected to report, its directive, or that it ended.
pub fn update_governor(agent: &Agent, key: &ObjectKey, context: &Context, observed: &AgentObservation, state: &State) {
    let Some(uid) = agent.caller_uid() else { return };
    if is_leaving(state) {
        context.meter.write_soon(TokenKey::Agent(agent.uid().unwrap_or_default()));
    }
    // This includes a goodbye that an earlier leader stored: if the agent repeats it, it gets its answer at once.
    if agent.status.as_ref().is_some_and(|status| status.goodbye.is_some()) {
        context.live.goodbye_stored(uid);
    }
    if let Some(status) = &agent.status {
        context.live.asks_stored(uid, status::stored_request(status));
    }
    if observed.facts.condemned {
        return context.live.revoke(uid);
    }
    let directive = match state {
        State::Hibernated => return context.live.revoke(uid),
        // The agent is told nothing before its hibernation is stored. A goodbye that it says then has no effect: it
        // comes back.
        State::Hibernating if observed.facts.sleep != Sleep::Begun => return,
        State::Hibernating => {
            context.live.goodbye_stored(uid);
            Directive::Drain
        }
        State::Ended(_) | State::Keep | State::Missing(_) | State::PoolMissing => {
            if agent.has_ended() || matches!(state, State::Ended(_)) {
                context.live.revoke(uid);
            }
            return;
        }
        // The agent's end is decided and stored, so its calls are refused. Before it is stored, the agent is told
        // nothing.
        State::Condemned(None) => return context.live.revoke(uid),
        State::Condemned(Some(_)) => return,
        State::Stopping => Directive::Drain,
        State::Running(Activity::Paused) => Directive::Pause,
        State::Pending(_) | State::Running(_) | State::Unreachable => Directive::Run,
        State::Creating | State::Replacing | State::Hindered(_) => return,
    };
    let on_node = observed.pod.as_ref().and_then(|pod| pod.spec.as_ref()?.node_name.clone());
    // A pod without a node does not run yet; an agent outside the cluster has no node. The silence of an agent that
    // drains means nothing.
    let runs = on_node.is_some() || agent.spec.external.is_some();
    if let (Some(pool), true, true) = (observed.pool(), runs, directive != Directive::Drain) {
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        let life = &observed.facts.life;
        let expected = Expected {
            key: key.clone(),
            registered: life.registered,
            started: supervise::was_started(agent),
            startup: seconds(pool.spec.startup_timeout_seconds()),
            timeout: seconds(pool.spec.heartbeat_timeout_seconds()),
            node: on_node,
            active: life.active,
            paused: life.paused,
            excused: matches!(&observed.facts.pod, Pod::Ours(shown) if shown.node != NodeReach::Heard),
        };
        context.live.expect(uid, expected);
    }
    context.live.set_directive(uid, directive);
}

/// Whether its program makes no model calls any more, or soon makes none: then its spent tokens are written at once.
fn is_leaving(state: &State) -> bool {
    match state {
        State::Stopping | State::Hibernating | State::Hibernated | State::Condemned(_) | State::Missing(_) | State::Ended(_) => true,
        State::Keep
        | State::Creating
        | State::Replacing
        | State::Hindered(_)
        | State::PoolMissing
        | State::Pending(_)
        | State::Running(_)
        | State::Unreachable => false,
    }
}

/// Whether this decision is new: a signal that persists is handled once.
pub fn is_new(agent: &Agent, context: &Context, decision: &Decision) -> bool {
    agent.caller_uid().is_some_and(|uid| context.live.is_unanswered(uid, decision.signal))
}

/// Reports an intervention, and carries out the part of it that does not change the agent's life.
pub async fn intervene(agent: &Agent, observed: &AgentObservation, context: &Context, decision: &Decision) {
    let Decision { signal, action, message, enforced, overruled } = decision;
    if let Some(uid) = agent.caller_uid() {
        context.live.answer_stored(uid, *signal);
    }
    context.metrics.intervention(signal.name(), action.name(), *enforced);
    let would = if *enforced { "" } else { " (not done: supervision.mode is Observe)" };
    let beside: Vec<String> = overruled.iter().map(|(signal, action)| format!("{}: {}", signal.name(), action.name())).collect();
    let beside = if beside.is_empty() { String::new() } else { format!("; overruled: {}", beside.join(", ")) };
    let note = format!("{}: {message}{would}{beside}", action.name());
    tracing::info!(namespace = %agent.namespace().unwrap_or_default(), agent = %agent.name_any(), signal = signal.name(), action = action.name(), enforced, "{message}");
    if let (Action::Escalate, true) = (action, *enforced) {
        escalate(agent, observed, context, decision);
    }
    match action {
        Action::Log => {}
        // Events with the same object, reason and action are counted as one: the signal is the reason, the intervention
        // the action.
        Action::Warn => {
            if let Some(uid) = agent.caller_uid().filter(|_| *enforced) {
                context.live.add_notice(uid, signal.name(), message, jiff::Timestamp::now());
            }
            context.events.warning(agent, signal.name(), action.name(), note).await;
        }
        // A gang is reported once, not once for each of its agents.
        _ if *signal == Signal::GangDivergence && !context.live.is_new_gang_notice(&agent.namespace().unwrap_or_default(), message) => {
            context.events.warning(agent, signal.name(), action.name(), note).await
        }
        // Actions that are stronger than a warning also go to the webhooks.
        Action::Notify | Action::Escalate | Action::Pause | Action::Requeue | Action::Restart | Action::RestartGang | Action::Reap => {
            context.events.alert(agent, signal.name(), action.name(), note).await
        }
    }
}

/// Sends the escalation to the pool whose agents submitted the agent's item, or, if no agent did, to all scheduler
/// pools of the namespace. The messages are in memory only; the Agent's status also records the intervention.
fn escalate(agent: &Agent, observed: &AgentObservation, context: &Context, decision: &Decision) {
    let namespace = agent.namespace().unwrap_or_default();
    let item = observed.holding.as_ref().map(|holding| holding.name.clone());
    let message = Message::Escalated {
        agent: agent.name_any(),
        signal: decision.signal.name().to_owned(),
        text: decision.message.chars().take(1024).collect(),
        item: item.clone(),
    };
    let submitter = item.and_then(|item| context.work_index.with(&namespace, |work| work.index.get(&item)?.spec.submitted_by.clone()));
    let schedulers = || {
        let pools = context.stores.pools.state().into_iter();
        let here = pools.filter_map(|pool| pool.0.as_ref().ok().cloned()).filter(|pool| pool.namespace().as_deref() == Some(&namespace));
        here.filter(|pool| pool.spec.type_ == names::SCHEDULER_TYPE).map(|pool| pool.name_any()).collect()
    };
    let pools: Vec<String> = submitter.map_or_else(schedulers, |pool| vec![pool]);
    context.work_index.tell(&namespace, &pools, &message);
}
