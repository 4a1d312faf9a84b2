//! Approvals: calls of privileged programs that wait for a person, and people's answers.
//!
//! The questions are in the status of the Agent, and nowhere else. Both the call of a gateway and the reconciler of the Agent decide from the
//! live object and write by compare-and-swap, so they cannot use one approval twice. [`policy::tool_approval`](crate::policy::tool_approval)
//! decides. A verdict is told only after it is stored. This module must not run a call, and must not write a spec.

use std::time::Duration;

use kube::ResourceExt as _;
use serde_json::json;
use spillway_conversion::tool_approval::{answers, questions, status};

use super::caller::{Caller, is_over};
use super::work::common::turn;
use crate::api::Agent;
use crate::cluster::{Class, Error, ObjectKey, calls};
use crate::controller::Context;
use crate::policy::tool_approval::{
    self, Call, Facts, HeldItem, NewQuestion, News, Question, Reviewed, State, Verdict, next_change, review,
};
use crate::wire::text::visible;
use crate::wire::tools::{ApprovalVerdict, CallToApprove, MAX_SHOWN_ARGUMENTS_CHARS};
use crate::wire::work::LeaseRef;
use crate::wire::{Code, Refusal};

/// Attempts at a write that conflicts with other writers of the Agent.
const MAX_WRITE_ATTEMPTS: usize = 5;
/// How often the questions of an agent are looked at: not every loss of a lease wakes the reconciler of the agent that had it.
const LOOK_INTERVAL: Duration = Duration::from_secs(15);
/// The most characters of the arguments in an event.
const MAX_EVENT_ARGUMENTS_CHARS: usize = 300;
/// The most characters of the name of a program in the status.
const MAX_PROGRAM_CHARS: usize = 63;
/// The action of events.
const EVENT_ACTION: &str = "Approve";

/// A call that needs an approval.
pub struct ApprovalRequest {
    /// The Toolset.
    pub toolset: String,
    /// The call.
    pub call: CallToApprove,
    /// The item for which the agent acts.
    pub item: Option<LeaseRef>,
    /// Seconds in which a person can approve it.
    pub timeout_seconds: i32,
}

/// Answers a gateway's question whether a call may run. The agent may act, and its pool lists the Toolset.
pub async fn ask(caller: &Caller, agent: &Agent, asked: ApprovalRequest, context: &Context) -> Result<ApprovalVerdict, Refusal> {
    let ApprovalRequest { toolset, call: CallToApprove { id: digest, program, arguments }, item, timeout_seconds } = asked;
    let call = Call {
        digest,
        toolset,
        program: shown_whole("the name of the program", &program, MAX_PROGRAM_CHARS)?,
        arguments: shown_whole("its arguments", &arguments, MAX_SHOWN_ARGUMENTS_CHARS)?,
        pod_uid: caller.uid.clone(),
        item: item.map(|LeaseRef { uid, epoch }| HeldItem { name: item_name(&caller.key.namespace, &uid, context), uid, epoch }),
    };
    let decide = |stored: &[Question], facts: &Facts<'_>| {
        let id = format!("{:016x}", rand::random::<u64>());
        tool_approval::ask(stored, &call, NewQuestion { id, timeout_seconds: timeout_seconds.into() }, facts)
    };
    // Most questions are repeats, and nothing has changed. The cache may lag, and then this is asked again.
    let (reviewed, verdict) = with_facts(agent, &caller.key, context, decide);
    if reviewed.questions == questions(agent) {
        return told(verdict, &caller.uid, context);
    }
    let turn = turn(&caller.key.namespace, context).await?;
    let settled = settle(&caller.key, agent.metadata.uid.as_deref(), context, decide).await.map_err(|error| {
        tracing::warn!(%error, namespace = %caller.key.namespace, agent = %caller.key.name, "the approval of a call could not be stored");
        if error.class() == Class::LostLeadership {
            context.leadership.abdicate();
        }
        Refusal::unavailable("the approval of this call could not be stored; try again")
    })?;
    // Events may be slow, and others wait for the turn.
    drop(turn);
    let settled = settled.ok_or_else(|| Refusal::new(Code::AgentEnded, "this agent has ended and may make no more calls"))?;
    told(settled.publish(context).await.1, &caller.uid, context)
}

/// Looks at the questions of an agent: people may have answered, or time has passed. Returns the time until the next look.
pub async fn look(agent: &Agent, key: &ObjectKey, context: &Context) -> Result<Option<Duration>, Error> {
    let stored = questions(agent);
    if stored.is_empty() {
        return Ok(None);
    }
    let decide = |stored: &[Question], facts: &Facts<'_>| (review(stored, facts), ());
    let (reviewed, ()) = with_facts(agent, key, context, decide);
    let left = if reviewed.questions == stored {
        stored
    } else {
        match settle(key, agent.metadata.uid.as_deref(), context, decide).await? {
            Some(settled) => settled.publish(context).await.0,
            None => Vec::new(),
        }
    };
    let wait = |at: i64| Duration::from_secs(u64::try_from(at.saturating_sub(now())).unwrap_or(0).max(1));
    Ok(next_change(&left).map(|at| wait(at).min(LOOK_INTERVAL)))
}

/// Questions that are stored, and what is told of them.
struct StoredQuestions<T> {
    questions: Vec<Question>,
    told: T,
    /// The Agent as it was written, and what changed.
    news: Option<(Agent, Vec<News>)>,
}

impl<T> StoredQuestions<T> {
    /// Tells people what changed.
    async fn publish(self, context: &Context) -> (Vec<Question>, T) {
        let Self { questions, told, news } = self;
        if let Some((agent, all)) = news {
            for one in &all {
                publish(&agent, one, context).await;
            }
        }
        (questions, told)
    }
}

/// Decides from the live object, and stores the questions if they differ. `None`: the Agent is gone.
async fn settle<T>(
    key: &ObjectKey,
    uid: Option<&str>,
    context: &Context,
    decide: impl Fn(&[Question], &Facts<'_>) -> (Reviewed, T),
) -> Result<Option<StoredQuestions<T>>, Error> {
    let api = context.api::<Agent>(&key.namespace);
    for _ in 0..MAX_WRITE_ATTEMPTS {
        let live = api.get_opt(&key.name).await.map_err(Error::of("reading an Agent"))?;
        let Some(live) = live.filter(|live| live.metadata.uid.as_deref() == uid) else { return Ok(None) };
        if live.status.as_ref().and_then(|status| status.governor_epoch).is_some_and(|epoch| epoch > context.epoch) {
            return Err(Error::Fenced { call: "writing approvals" });
        }
        let (Reviewed { questions: next, news }, told) = with_facts(&live, key, context, &decide);
        if next == questions(&live) {
            return Ok(Some(StoredQuestions { questions: next, told, news: None }));
        }
        context.leadership.check()?;
        let body = json!({
            "metadata": {"uid": live.metadata.uid, "resourceVersion": live.metadata.resource_version},
            "status": {"toolApprovals": status(&next), "governorEpoch": context.epoch},
        });
        match calls::patch_status::<Agent>(&api, &key.name, &body).await {
            Ok(stored) => return Ok(Some(StoredQuestions { questions: next, told, news: Some((stored, news)) })),
            Err(error) if error.class() == Class::Conflict => {}
            Err(error) => return Err(error),
        }
    }
    Err(Error::Contended { call: "writing approvals" })
}

/// Decides about the questions of an agent as it is stored.
fn with_facts<T>(agent: &Agent, key: &ObjectKey, context: &Context, decide: impl FnOnce(&[Question], &Facts<'_>) -> T) -> T {
    let caller = agent.caller_uid().filter(|_| !is_over(agent));
    let leases_known = context.work_index.is_ready() && !context.replay_window_open();
    let may_act = |call: &Call| {
        let holds = |item: &HeldItem| {
            let lease = LeaseRef { uid: item.uid.clone(), epoch: item.epoch };
            !leases_known || context.work_index.with(&key.namespace, |work| work.holds(&call.pod_uid, &lease))
        };
        caller == Some(call.pod_uid.as_str()) && call.item.as_ref().is_none_or(holds)
    };
    let void_until = context.takeover.rollback.as_ref().map(|rollback| rollback.detected.div_euclid(1000));
    decide(&questions(agent), &Facts { now: now(), answers: &answers(&agent.spec), void_until, may_act: &may_act })
}

fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

fn item_name(namespace: &str, uid: &str, context: &Context) -> String {
    context.work_index.with(namespace, |work| work.by_uid(uid)).map(|(name, _)| name).unwrap_or_default()
}

/// A text of a bridge or of an agent, for people. It is whole: a person must not approve what is behind its end.
fn shown_whole(what: &str, text: &str, max_chars: usize) -> Result<String, Refusal> {
    let shown = visible(text);
    let chars = shown.chars().count();
    if chars <= max_chars {
        return Ok(shown);
    }
    let message =
        format!("a person who approves this call must see {what} whole: with escapes it has {chars} characters, and may have {max_chars}");
    Err(Refusal::new(Code::LimitReached, message))
}

fn told(verdict: Verdict, pod_uid: &str, context: &Context) -> Result<ApprovalVerdict, Refusal> {
    Ok(match verdict {
        Verdict::Waiting => {
            // The agent waits for a person, so its item does not stall. How long it may wait is bounded by the Toolset.
            context.live.progressed(pod_uid);
            ApprovalVerdict::Waiting
        }
        Verdict::Approved { by } => ApprovalVerdict::Approved { by },
        Verdict::Denied { by, reason } => ApprovalVerdict::Denied { by, reason: reason.unwrap_or_default() },
        Verdict::TimedOut => ApprovalVerdict::TimedOut,
        Verdict::Full { retry_seconds } => {
            let most = tool_approval::MAX_QUESTIONS;
            let message = format!("{most} calls of this agent wait for approval, or ended without one: try again in {retry_seconds} s");
            return Err(Refusal::new(Code::LimitReached, message).retry_after(u32::try_from(retry_seconds).unwrap_or(u32::MAX)));
        }
    })
}

/// Tells people about a change: an event, a metric, and for a call that waits a notice to the webhooks.
async fn publish(agent: &Agent, news: &News, context: &Context) {
    let events = &context.events;
    match news {
        News::Requested(question) => {
            context.metrics.tool_approval("requested");
            events.alert(agent, "ApprovalRequested", EVENT_ACTION, request_note(agent, question)).await;
        }
        News::Given(question) => {
            context.metrics.tool_approval("approved");
            events.normal(agent, "ApprovalGiven", EVENT_ACTION, verdict_note("approved", question)).await;
        }
        News::Denied(question) => {
            context.metrics.tool_approval("denied");
            events.normal(agent, "ApprovalDenied", EVENT_ACTION, verdict_note("denied", question)).await;
        }
        News::TimedOut(question) => {
            context.metrics.tool_approval("timed_out");
            let note = format!("nobody let the call {} run in time: it does not run", described(question));
            events.warning(agent, "ApprovalTimedOut", EVENT_ACTION, note).await;
        }
        News::Used(question) => {
            context.metrics.tool_approval("used");
            let (namespace, agent) = (agent.namespace().unwrap_or_default(), agent.name_any());
            tracing::info!(namespace, agent, toolset = question.call.toolset, id = question.id, "an approval was used");
        }
    }
}

fn described(question: &Question) -> String {
    let Question { id, call, .. } = question;
    format!("{id} of {} (Toolset/{})", call.program, call.toolset)
}

fn request_note(agent: &Agent, question: &Question) -> String {
    let (namespace, agent) = (agent.namespace().unwrap_or_default(), agent.name_any());
    let until = jiff::Timestamp::from_second(question.expires_at).unwrap_or(jiff::Timestamp::MAX);
    let arguments = &question.call.arguments;
    let start: String = arguments.chars().take(MAX_EVENT_ARGUMENTS_CHARS).collect();
    let cut = if start.len() < arguments.len() { "... (cut)" } else { "" };
    format!(
        "the call {} waits until {until} for a person: kubectl spillway approve {agent} {} -n {namespace}, or deny. Arguments: {start}{cut}",
        described(question),
        question.id
    )
}

fn verdict_note(verb: &str, question: &Question) -> String {
    let (by, reason) = match &question.state {
        State::Approved { by, reason } | State::Denied { by, reason } | State::Used { by, reason } => (by.as_str(), reason.as_deref()),
        State::Waiting | State::TimedOut => ("nobody", None),
    };
    let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    visible(&format!("{by} {verb} the call {}{reason}", described(question)))
}

#[cfg(test)]
#[path = "approvals_tests.rs"]
mod tests;
