//! `approvals`, `approve` and `deny`: calls of privileged programs that wait for a person.
//!
//! An answer is written into the spec of the Agent, under the name of the user that the API server knows. It names the id of one call, and
//! the patch carries the resource version, so nobody approves a call that was not shown. Of texts of agents a person sees each
//! character ([`visible`]): nothing is cut or joined.

use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::{ListParams, PostParams};
use kube::core::DeserializeGuard;
use kube::{Api, ResourceExt as _};
use serde::Serialize;
use serde_json::json;
use spillway_wire::text::visible;

use super::connect::Cluster;
use super::console::{Console, Output};
use super::error::Error;
use super::find;
use super::input;
use super::table::{age, printable, table};
use super::write::{self, Decision, WriteOutcome, WriteTarget};
use crate::api::tool_approval::{ToolAnswer, ToolApproval, ToolApprovalState, ToolDecision};
use crate::api::{Agent, GROUP};

/// The most characters of arguments in a table.
const MAX_TABLE_ARGUMENTS_CHARS: usize = 60;

/// Arguments of `approvals`.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(after_help = "Examples:
  kubectl spillway approvals              # the calls of this namespace that wait for a person
  kubectl spillway approvals -A -o json   # those of all namespaces, with their whole arguments")]
pub struct ListArguments {
    /// List the calls of all namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    pub output: Option<Format>,
}

/// The output format; without one a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// The calls, as JSON
    Json,
}

/// Examples of `approve`.
pub const APPROVE_HELP: &str = "Examples:
  kubectl spillway approve coders-1f2e3d4c5b                      # the only call that waits
  kubectl spillway approve coders-1f2e3d4c5b 5f0e --reason 'OPS-7'  # the call whose id begins so

The call runs once. This needs the right to approve the Toolset (verb approve on toolsets.spillway.dev) and the right to patch
the agent. The answer carries your user name, and the admission policy accepts no other.";

/// Examples of `deny`.
pub const DENY_HELP: &str = "Examples:
  kubectl spillway deny coders-1f2e3d4c5b --reason 'not on a Friday'
  kubectl spillway deny coders-1f2e3d4c5b 5f0e

The agent reads the reason. An approval that was not used yet is taken back. This needs the same rights as approve.";

/// Arguments of `approve` and `deny`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct AnswerArguments {
    /// The agent
    #[arg(value_name = "AGENT", value_parser = input::agent)]
    pub agent: String,
    /// The id of the call, or its beginning [default: the only call that waits]
    #[arg(value_name = "ID", value_parser = input::approval_id)]
    pub id: Option<String>,
    /// The reason, for the agent and for people
    #[arg(long, value_name = "TEXT", value_parser = input::reason)]
    pub reason: Option<String>,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

/// A call that waits.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitingCall {
    /// The namespace.
    pub namespace: String,
    /// The agent.
    pub agent: String,
    /// The call.
    #[serde(flatten)]
    pub call: ToolApproval,
}

/// The result of `approvals`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListReport {
    /// The namespace; none for all namespaces.
    pub namespace: Option<String>,
    /// The calls, the one that expires first at the beginning.
    pub calls: Vec<WaitingCall>,
    /// One message for each stored object that does not fit its type.
    pub unreadable: Vec<String>,
}

/// Lists the calls that wait.
pub async fn list(cluster: &Cluster, arguments: &ListArguments, now: Timestamp) -> Result<ListReport, Error> {
    let api: Api<DeserializeGuard<Agent>> = if arguments.all_namespaces { Api::all(cluster.client.clone()) } else { cluster.api() };
    let found = api.list(&ListParams::default()).await.map_err(Error::of::<Agent>(&cluster.namespace, ""))?;
    let namespace = (!arguments.all_namespaces).then(|| cluster.namespace.clone());
    let mut report = ListReport { namespace, calls: Vec::new(), unreadable: Vec::new() };
    for object in found.items {
        match object.0 {
            Ok(agent) => report.calls.extend(calls(&agent).iter().filter(|call| is_waiting(call, now)).map(|call| WaitingCall {
                namespace: agent.namespace().unwrap_or_default(),
                agent: agent.name_any(),
                call: call.clone(),
            })),
            Err(invalid) => {
                let name = invalid.metadata.name.unwrap_or_default();
                report.unreadable.push(format!("Agent \"{name}\" does not fit this version of the plugin: {}", invalid.error));
            }
        }
    }
    report.calls.sort_by_cached_key(|call| (call.call.expire_time.0, call.namespace.clone(), call.agent.clone()));
    Ok(report)
}

fn calls(agent: &Agent) -> &[ToolApproval] {
    agent.status.as_ref().and_then(|status| status.tool_approvals.as_deref()).unwrap_or_default()
}

fn is_waiting(call: &ToolApproval, now: Timestamp) -> bool {
    call.state == ToolApprovalState::Waiting && now < call.expire_time.0
}

/// The list as text.
pub fn render_list(report: &ListReport, format: Option<Format>, now: Timestamp) -> Result<Output, Error> {
    let mut output = Output::default();
    let ListReport { namespace, calls, unreadable } = report;
    match format {
        Some(Format::Json) => output.line(serde_json::to_string_pretty(report).map_err(|error| Error::Format(error.to_string()))?),
        None if calls.is_empty() => {
            let place = namespace.as_ref().map_or_else(|| "any namespace".to_owned(), |namespace| format!("namespace \"{namespace}\""));
            output.note(format!("No calls wait for approval in {place}."));
        }
        None => {
            let mut titles = vec!["AGENT", "ID", "TOOLSET", "PROGRAM", "ARGUMENTS", "AGE", "EXPIRES"];
            if namespace.is_none() {
                titles.insert(0, "NAMESPACE");
            }
            output.out = table(&titles, calls.iter().map(|call| row(call, namespace.is_none(), now)).collect());
        }
    }
    unreadable.iter().for_each(|words| output.note(format!("note: {}", printable(words))));
    Ok(output)
}

fn row(waiting: &WaitingCall, with_namespace: bool, now: Timestamp) -> Vec<String> {
    let WaitingCall { namespace, agent, call } = waiting;
    let mut arguments: String = call.arguments.chars().take(MAX_TABLE_ARGUMENTS_CHARS).collect();
    if arguments.len() < call.arguments.len() {
        arguments.push('…');
    }
    let expires = format!("in {}", age(Some(now), call.expire_time.0));
    let fields = [agent.clone(), call.id.clone(), call.toolset.clone(), call.program.clone(), visible(&arguments)];
    let place = with_namespace.then(|| namespace.clone());
    place.into_iter().chain(fields).chain([age(Some(call.request_time.0), now), expires]).collect()
}

/// What a person is asked about, and what is written afterwards.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The agent.
    pub agent: String,
    /// The decision.
    pub decision: ToolDecision,
    /// The call.
    pub call: ToolApproval,
    /// The reason.
    pub reason: Option<String>,
    /// Whether the user is asked first: the user has not named the call.
    pub ask: bool,
}

/// The result of `approve` and `deny`.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// What was decided.
    pub plan: Plan,
    /// The user.
    pub user: String,
    /// The error message.
    pub failure: Option<String>,
}

/// `approve` and `deny`: reads, asks the user if no call was named, and writes.
pub async fn answer(
    cluster: &Cluster,
    decision: ToolDecision,
    arguments: &AnswerArguments,
    console: &mut dyn Console,
) -> Result<(), Error> {
    let plan = plan(cluster, decision, arguments, Timestamp::now()).await?;
    if let Some(question) = question(&plan)
        && !console.confirm(&question)?
    {
        return Err(Error::Usage("nothing was answered".into()));
    }
    console.show(render(&run(cluster, plan, Timestamp::now()).await?));
    Ok(())
}

/// Reads the agent, and finds the call.
pub async fn plan(cluster: &Cluster, decision: ToolDecision, arguments: &AnswerArguments, now: Timestamp) -> Result<Plan, Error> {
    let AnswerArguments { agent: name, id, reason, yes } = arguments;
    let agent = find::agent(cluster, name).await?;
    let call = select(&agent, decision, id.as_deref(), now).map_err(|words| Error::Usage(visible(&format!("agent \"{name}\" {words}"))))?;
    Ok(Plan {
        agent: name.clone(),
        decision,
        call: call.clone(),
        reason: reason.clone(),
        ask: !yes && (id.is_none() || decision == ToolDecision::Approve),
    })
}

/// The call that a person means.
fn select<'a>(agent: &'a Agent, decision: ToolDecision, id: Option<&str>, now: Timestamp) -> Result<&'a ToolApproval, String> {
    if find::ended(agent) {
        return Err(format!("has ended ({}): its calls cannot be answered", find::state(agent)));
    }
    let all = calls(agent);
    let Some(id) = id else {
        let waiting: Vec<&ToolApproval> = all.iter().filter(|call| is_waiting(call, now)).collect();
        return match waiting[..] {
            [only] => Ok(only),
            [] => Err("has no call that waits for approval; `kubectl spillway approvals -A` lists those that do".to_owned()),
            _ => Err(format!("has more than one call that waits: name one by its id ({})", listed(waiting.into_iter()))),
        };
    };
    let meant: Vec<&ToolApproval> = all.iter().filter(|call| call.id.starts_with(id)).collect();
    match meant[..] {
        [] => Err(format!("has no call with the id {id}: it was answered long ago, or the agent lost its item or repeated the call")),
        [call] => check(call, decision, now).map(|()| call),
        _ => Err(format!("has more than one call whose id begins with {id} ({})", listed(meant.into_iter()))),
    }
}

fn listed<'a>(calls: impl Iterator<Item = &'a ToolApproval>) -> String {
    calls.map(|call| format!("{} {}", call.id, call.program)).collect::<Vec<_>>().join(", ")
}

/// Whether a call can still be answered so.
fn check(call: &ToolApproval, decision: ToolDecision, now: Timestamp) -> Result<(), String> {
    let ToolApproval { id, by, .. } = call;
    let by = by.as_ref().map(|by| format!(" (by {by})")).unwrap_or_default();
    match (call.state, decision) {
        (ToolApprovalState::Waiting, _) | (ToolApprovalState::Approved, ToolDecision::Deny) if now < call.expire_time.0 => Ok(()),
        (ToolApprovalState::Waiting | ToolApprovalState::Approved | ToolApprovalState::TimedOut, _) if now >= call.expire_time.0 => {
            Err(format!("waits no more for call {id}: it expired at {}", call.expire_time.0))
        }
        (state, _) => Err(format!("waits no more for call {id}: it is {}{by}", state.name())),
    }
}

/// The question for the user, if one is needed.
pub fn question(plan: &Plan) -> Option<String> {
    plan.ask.then(|| {
        let (verb, _) = words(plan.decision);
        format!("{}\n{verb} this call?", described(plan))
    })
}

/// Writes the answer, under the name of the user.
pub async fn run(cluster: &Cluster, plan: Plan, now: Timestamp) -> Result<Report, Error> {
    let user = user(cluster).await?;
    let done = write::settle(cluster, "agent", &plan.agent, WriteTarget::Version, |agent| decide(agent, &plan, &user, now)).await?;
    let failure = match done {
        WriteOutcome::Written(_) => None,
        WriteOutcome::Unchanged(_, words) | WriteOutcome::Failed(words) => Some(words),
    };
    Ok(Report { plan, user, failure })
}

/// The name of the user, as the API server knows it.
async fn user(cluster: &Cluster) -> Result<String, Error> {
    let api: Api<SelfSubjectReview> = Api::all(cluster.client.clone());
    let review = api.create(&PostParams::default(), &SelfSubjectReview::default()).await;
    let review = review.map_err(Error::of::<SelfSubjectReview>("", ""))?;
    let name = review.status.and_then(|status| status.user_info).and_then(|user| user.username).unwrap_or_default();
    if name.is_empty() { Err(Error::Usage("the API server does not know your user name".into())) } else { Ok(name) }
}

/// Decides the write to the agent: the answer, and those that still belong to a call.
fn decide(agent: &Agent, plan: &Plan, user: &str, now: Timestamp) -> Decision {
    let all = calls(agent);
    let Some(call) = all.iter().find(|call| call.id == plan.call.id && call.toolset == plan.call.toolset) else {
        return Decision::Refuse(format!("waits no more for call {}: it lost its item, or repeated the call", plan.call.id));
    };
    if let Err(words) = check(call, plan.decision, now) {
        return Decision::Refuse(words);
    }
    let stays = |answer: &&ToolAnswer| answer.id != call.id && all.iter().any(|call| call.id == answer.id);
    let mut answers: Vec<ToolAnswer> = agent.spec.tool_approvals.iter().flatten().filter(stays).cloned().collect();
    answers.push(ToolAnswer {
        id: call.id.clone(),
        toolset: call.toolset.clone(),
        decision: plan.decision,
        user: user.to_owned(),
        reason: plan.reason.clone(),
    });
    Decision::Write(json!({"toolApprovals": answers}))
}

fn words(decision: ToolDecision) -> (&'static str, &'static str) {
    match decision {
        ToolDecision::Approve => ("Approve", "approved"),
        ToolDecision::Deny => ("Deny", "denied"),
    }
}

/// What is approved, in lines.
fn described(plan: &Plan) -> String {
    let ToolApproval { toolset, program, arguments, item, expire_time, .. } = &plan.call;
    let item = item.as_ref().map(|item| format!("  item:      {}\n", visible(&item.name))).unwrap_or_default();
    format!(
        "  agent:     {}\n  toolset:   {}\n  program:   {}\n  arguments: {}\n{item}  expires:   {}",
        visible(&plan.agent),
        visible(toolset),
        visible(program),
        visible(arguments),
        expire_time.0
    )
}

/// The result as text.
pub fn render(report: &Report) -> Output {
    let Report { plan, user, failure } = report;
    let mut output = Output::default();
    match failure {
        Some(words) => output.failure(printable(words)),
        None => {
            let (_, past) = words(plan.decision);
            output.line(format!("agent.{GROUP}/{} call {} {past} by {}", plan.agent, plan.call.id, visible(user)));
            output.line(described(plan));
        }
    }
    output
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    fn now() -> Timestamp {
        at("2026-01-01T00:01:00Z")
    }

    fn call(id: &str, state: &str) -> Value {
        json!({"id": id, "call": "d", "toolset": "deploy", "program": "deploy", "arguments": "{\"version\":\"v7\"}", "podUid": "u",
            "requestTime": "2026-01-01T00:00:00Z", "expireTime": "2026-01-01T00:15:00Z", "state": state})
    }

    fn agent(calls: Value, answers: Value) -> Agent {
        let object = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Agent", "metadata": {"name": "a", "namespace": "n"},
            "spec": {"poolRef": {"name": "p"}, "toolApprovals": answers}, "status": {"phase": "Active", "toolApprovals": calls}});
        serde_json::from_value(object).expect("an Agent")
    }

    #[test]
    fn a_person_names_one_call_that_waits() {
        let two = agent(json!([call("5f0e", "Waiting"), call("5faa", "Waiting"), call("77", "Denied"), call("88", "Approved")]), json!([]));
        let chosen = |agent: &Agent, decision, id: Option<&str>| select(agent, decision, id, now()).map(|call| call.id.clone());
        let approve = |id| chosen(&two, ToolDecision::Approve, id);
        assert_eq!(approve(Some("5f0e")).as_deref(), Ok("5f0e"));
        assert_eq!(approve(Some("5f0")).as_deref(), Ok("5f0e"), "its beginning");
        assert!(approve(Some("5f")).expect_err("two").contains("more than one call whose id begins with 5f"));
        assert!(approve(None).expect_err("two").contains("name one by its id (5f0e deploy, 5faa deploy)"));
        assert!(approve(Some("99")).expect_err("none").contains("no call with the id 99"));
        assert!(approve(Some("77")).expect_err("over").contains("it is Denied"));
        assert!(approve(Some("88")).expect_err("over").contains("it is Approved"));
        assert_eq!(chosen(&two, ToolDecision::Deny, Some("88")).as_deref(), Ok("88"), "an approval is taken back");
        let one = agent(json!([call("5f0e", "Waiting"), call("77", "Used")]), json!([]));
        assert_eq!(chosen(&one, ToolDecision::Approve, None).as_deref(), Ok("5f0e"));
        let late = select(&one, ToolDecision::Approve, Some("5f0e"), at("2026-01-01T00:15:00Z")).expect_err("late");
        assert!(late.contains("it expired at 2026-01-01T00:15:00Z"), "{late}");
        assert!(select(&one, ToolDecision::Approve, None, at("2026-01-01T00:15:00Z")).expect_err("late").contains("no call that waits"));
        let mut over = one;
        over.status.as_mut().expect("a status").phase = Some(crate::api::agent::AgentPhase::Stopped);
        assert!(chosen(&over, ToolDecision::Deny, None).expect_err("over").contains("has ended"));
    }

    #[test]
    fn an_answer_leaves_those_of_other_calls_and_removes_old_ones() {
        let answer = |id: &str| json!({"id": id, "toolset": "deploy", "decision": "Approve", "user": "bob"});
        let agent = agent(json!([call("1", "Waiting"), call("2", "Waiting")]), json!([answer("2"), answer("3")]));
        let call = select(&agent, ToolDecision::Deny, Some("1"), now()).expect("a call").clone();
        let plan = Plan { agent: "a".into(), decision: ToolDecision::Deny, call, reason: Some("no".into()), ask: false };
        let ours = json!({"id": "1", "toolset": "deploy", "decision": "Deny", "user": "alice", "reason": "no"});
        assert_eq!(decide(&agent, &plan, "alice", now()), Decision::Write(json!({"toolApprovals": [answer("2"), ours]})));
        let gone = Plan { call: ToolApproval { id: "9".into(), ..plan.call.clone() }, ..plan };
        assert!(matches!(decide(&agent, &gone, "alice", now()), Decision::Refuse(words) if words.contains("waits no more for call 9")));
    }

    #[test]
    fn hostile_texts_reach_no_terminal() {
        let mut hostile = call("1", "Waiting");
        hostile["arguments"] = json!("{\"a\":\"\u{1b}[2J\u{202e}x\u{200b}\n\"}");
        hostile["program"] = json!("de\u{1b}ploy");
        let agent = agent(json!([hostile]), json!([]));
        let call = select(&agent, ToolDecision::Approve, None, now()).expect("a call").clone();
        let plan = Plan { agent: "a".into(), decision: ToolDecision::Approve, call: call.clone(), reason: None, ask: true };
        let waiting = WaitingCall { namespace: "n".into(), agent: "a".into(), call };
        let list = ListReport { namespace: None, calls: vec![waiting], unreadable: vec!["\u{1b}".into()] };
        let listed = render_list(&list, None, now()).expect("a table");
        let asked = question(&plan).expect("a question");
        let done = render(&Report { plan, user: "al\u{202e}ice".into(), failure: None });
        let failed =
            render(&Report { plan: Plan { ask: false, ..call_plan(&agent) }, user: String::new(), failure: Some("\u{1b}[31m".into()) });
        for text in [listed.out, listed.err, asked, done.out, failed.err] {
            let odd = |character: char| (character.is_control() && character != '\n') || matches!(character, '\u{202e}' | '\u{200b}');
            assert!(!text.contains(odd), "{text:?}");
        }
    }

    fn call_plan(agent: &Agent) -> Plan {
        let call = select(agent, ToolDecision::Approve, None, now()).expect("a call").clone();
        Plan { agent: "a".into(), decision: ToolDecision::Approve, call, reason: None, ask: false }
    }

    #[test]
    fn a_call_is_shown_with_its_age_and_its_end() {
        let agent = agent(json!([call("5f0e", "Waiting")]), json!([]));
        let call = call_plan(&agent).call;
        let waiting = WaitingCall { namespace: "n".into(), agent: "a".into(), call };
        let report = ListReport { namespace: Some("n".into()), calls: vec![waiting], unreadable: vec![] };
        assert_eq!(
            render_list(&report, None, now()).expect("a table").out,
            "AGENT   ID     TOOLSET   PROGRAM   ARGUMENTS          AGE   EXPIRES\n\
             a       5f0e   deploy    deploy    {\"version\":\"v7\"}   60s   in 14m\n"
        );
        let none = ListReport { calls: vec![], ..report };
        assert_eq!(render_list(&none, None, now()).expect("a note").err, "No calls wait for approval in namespace \"n\".\n");
    }
}
