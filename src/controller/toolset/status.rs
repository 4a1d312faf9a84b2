//! The status of a Toolset, and the events about its changes, from the facts that a look found. Pure.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::definitions::DefinitionsProblem;
use super::rollout::PodState;
use crate::api::ToolsetStatus;
use crate::api::conditions::{reasons, types};
use crate::api::toolset::ProgramStatus;
use crate::controller::conditions::{Builder, find};
use crate::wire::tools::{BridgeStatus, UpstreamFault, UpstreamFaultKind};

/// Programs that a status names.
const MAX_PROGRAMS: usize = 128;
/// Characters of a program's name.
const MAX_NAME_CHARS: usize = 63;
/// Characters of a revision.
const MAX_REVISION_CHARS: usize = 64;
/// Characters of what a bridge says about its MCP server.
const MAX_FAULT_CHARS: usize = 512;
/// Looks without an answer of a bridge that served, before it counts as unreachable.
pub const MAX_SILENT_LOOKS: u32 = 3;

/// The state of the objects of a Toolset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectsState {
    /// They are in force.
    InForce,
    /// Those of an earlier spec are in force. The newest spec or its definitions are wrong.
    Earlier,
    /// There is no Deployment, because the spec or its definitions are wrong.
    NotMade,
    /// An object waits for another one, which is being deleted.
    Waiting(String),
    /// An object cannot be applied: reason and message.
    Failed(&'static str, String),
}

/// What the bridge said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BridgeAnswer {
    /// It was not asked.
    NotAsked,
    /// It serves this.
    Serves(BridgeStatus),
    /// It did not answer: the error, and the number of looks in a row without an answer.
    Silent(String, u32),
}

/// What one look at a Toolset found.
#[derive(Clone, Debug)]
pub struct ToolsetFacts {
    /// What is wrong with the spec.
    pub invalid_spec: Option<String>,
    /// Whether its ConfigMaps can be served.
    pub definitions: Result<(), DefinitionsProblem>,
    /// The state of its objects.
    pub objects: ObjectsState,
    /// Address of its Service.
    pub address: Option<SocketAddr>,
    /// Names in `spec.egress.allow` without a known address.
    pub unknown_names: Vec<String>,
    /// The state of its pod.
    pub pod: PodState,
    /// What its bridge said.
    pub answer: BridgeAnswer,
}

/// The status that follows from the facts. What a bridge said last stays until it says something else.
pub fn next_status(facts: &ToolsetFacts, stored: Option<&ToolsetStatus>, generation: i64, now: jiff::Timestamp) -> ToolsetStatus {
    let conditions = stored.map_or(&[][..], |status| &status.conditions);
    let builder = Builder { stored: conditions, generation, now };
    let ready = ready(facts, builder);
    let valid = definitions_valid(facts, builder);
    let (programs, revision) = match &facts.answer {
        BridgeAnswer::Serves(status) => (Some(programs(status)), Some(cut(&status.revision, MAX_REVISION_CHARS))),
        BridgeAnswer::NotAsked | BridgeAnswer::Silent(..) => {
            (stored.and_then(|stored| stored.programs.clone()), stored.and_then(|stored| stored.revision.clone()))
        }
    };
    ToolsetStatus {
        observed_generation: Some(generation),
        address: facts.address.map(|address| address.to_string()),
        program_count: programs.as_ref().map(|programs| i32::try_from(programs.len()).unwrap_or(i32::MAX)),
        programs,
        revision,
        conditions: vec![ready, valid],
    }
}

/// Each program once: the names are keys of a list.
fn programs(status: &BridgeStatus) -> Vec<ProgramStatus> {
    let names: BTreeSet<String> = status.programs.iter().map(|name| cut(name, MAX_NAME_CHARS)).filter(|name| !name.is_empty()).collect();
    names.into_iter().take(MAX_PROGRAMS).map(|name| ProgramStatus { name, valid: true, message: None }).collect()
}

fn cut(text: &str, chars: usize) -> String {
    text.chars().take(chars).collect()
}

/// Whether a bridge that served may still serve, although it did not answer now.
fn is_tolerated(facts: &ToolsetFacts, stored: &[Condition]) -> bool {
    let served = find(stored, types::READY).is_some_and(|ready| ready.status == "True");
    served && matches!(facts.answer, BridgeAnswer::Silent(_, looks) if looks < MAX_SILENT_LOOKS)
}

fn ready(facts: &ToolsetFacts, builder: Builder<'_>) -> Condition {
    let not_ready = |reason: &str, message: String| builder.build(types::READY, false, reason, message);
    if let Some(problem) = &facts.invalid_spec {
        let served = if facts.objects == ObjectsState::Earlier { ". The earlier spec is served on" } else { "" };
        return not_ready(reasons::INVALID_SPEC, format!("{problem}{served}"));
    }
    match &facts.objects {
        ObjectsState::InForce | ObjectsState::Earlier => {}
        ObjectsState::NotMade => {
            return not_ready(
                reasons::DEFINITIONS_INVALID,
                "nothing is served, because the definitions are wrong. The condition DefinitionsValid says what to do".to_owned(),
            );
        }
        ObjectsState::Waiting(message) => return not_ready(reasons::STARTING, message.clone()),
        ObjectsState::Failed(reason, message) => return not_ready(reason, message.clone()),
    }
    match &facts.pod {
        PodState::Ready => {}
        PodState::Starting(message) => return not_ready(reasons::STARTING, message.clone()),
        PodState::Failing(message) => return not_ready(reasons::BRIDGE_FAILING, message.clone()),
    }
    let serving = |message: String| builder.build(types::READY, true, reasons::SERVING, message);
    match &facts.answer {
        BridgeAnswer::NotAsked => not_ready(reasons::STARTING, "the Service has no address yet".to_owned()),
        BridgeAnswer::Serves(BridgeStatus { upstream: Some(fault), .. }) => upstream_condition(fault, &facts.unknown_names, builder),
        BridgeAnswer::Serves(status) => serving(serving_message(status.programs.len(), &facts.unknown_names)),
        BridgeAnswer::Silent(error, _) => match find(builder.stored, types::READY) {
            Some(stored) if is_tolerated(facts, builder.stored) => serving(stored.message.clone()),
            Some(_) | None => not_ready(
                reasons::BRIDGE_UNREACHABLE,
                format!("the pod is ready, and the controller gets no answer from its bridge: {error}"),
            ),
        },
    }
}

/// The state of a Toolset whose MCP server has a fault.
fn upstream_condition(fault: &UpstreamFault, unknown: &[String], builder: Builder<'_>) -> Condition {
    let said = cut(&fault.message, MAX_FAULT_CHARS);
    let (reason, serves, message) = match fault.kind {
        UpstreamFaultKind::Unreachable if !unknown.is_empty() => {
            let message =
                format!("the MCP server of spec.upstream does not work: {said}. These names have no address: {}", unknown.join(", "));
            (reasons::UPSTREAM_UNREACHABLE, false, message)
        }
        UpstreamFaultKind::Unreachable => {
            (reasons::UPSTREAM_UNREACHABLE, false, format!("the MCP server of spec.upstream does not work: {said}"))
        }
        UpstreamFaultKind::ToolMissing => {
            (reasons::UPSTREAM_TOOL_MISSING, false, format!("the MCP server does not offer all of spec.upstream.tools: {said}"))
        }
        UpstreamFaultKind::ToolRefused => (
            reasons::UPSTREAM_TOOL_REFUSED,
            false,
            format!("the MCP server says something else about a tool than spec.upstream.tools[].digest, so it is not offered: {said}"),
        ),
        UpstreamFaultKind::ToolChanged => (
            reasons::UPSTREAM_TOOL_CHANGED,
            true,
            format!("the MCP server says something else about a tool than before, and agents see what it said first: {said}"),
        ),
    };
    builder.build(types::READY, serves, reason, message)
}

fn serving_message(programs: usize, unknown: &[String]) -> String {
    let served = format!("the bridge serves {programs} {}", if programs == 1 { "program" } else { "programs" });
    if unknown.is_empty() {
        return served;
    }
    format!(
        "{served}. These names of spec.egress.allow or spec.upstream.url have no address, and cannot be reached: {}",
        unknown.join(", ")
    )
}

fn definitions_valid(facts: &ToolsetFacts, builder: Builder<'_>) -> Condition {
    let type_ = types::DEFINITIONS_VALID;
    if let Err(DefinitionsProblem { reason, message }) = &facts.definitions {
        // Nothing of the bridge is part of the message: one that answers only at times would make news each time.
        return builder.build(type_, false, reason, message.clone());
    }
    match &facts.answer {
        BridgeAnswer::Serves(BridgeStatus { problem: Some(problem), revision, .. }) => builder.build(
            type_,
            false,
            reasons::INVALID_DEFINITION,
            format!("{problem}. The bridge serves the last valid definitions, revision {}", cut(revision, MAX_REVISION_CHARS)),
        ),
        BridgeAnswer::Serves(BridgeStatus { problem: None, revision, .. }) => {
            let message = format!("the bridge serves all definitions, revision {}", cut(revision, MAX_REVISION_CHARS));
            builder.build(type_, true, reasons::DEFINITIONS_LOADED, message)
        }
        BridgeAnswer::NotAsked | BridgeAnswer::Silent(..) => match find(builder.stored, type_) {
            Some(stored) if is_tolerated(facts, builder.stored) => {
                builder.with_status(type_, &stored.status, &stored.reason, stored.message.clone())
            }
            Some(_) | None => {
                let message = "the bridge has not said yet whether the definitions are valid";
                builder.with_status(type_, "Unknown", reasons::NOT_REPORTED, message)
            }
        },
    }
}

/// A change to report as an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusChange {
    /// It may need a person's attention.
    pub warning: bool,
    /// Reason of the condition.
    pub reason: String,
    /// Message of the condition.
    pub note: String,
}

/// The changes from the stored conditions to the next ones that people should know.
pub fn changes(stored: &[Condition], next: &[Condition]) -> Vec<StatusChange> {
    next.iter()
        .filter(|next| next.status != "Unknown")
        .filter(|next| {
            let same = find(stored, &next.type_).filter(|was| was.status == next.status && was.reason == next.reason);
            // Another wrong definition is news.
            let same = same.filter(|was| next.reason != reasons::INVALID_DEFINITION || was.message == next.message);
            same.is_none()
        })
        // Ready says the rest.
        .filter(|next| next.reason != reasons::DEFINITIONS_LOADED && next.reason != reasons::DEFINITIONS_INVALID)
        .map(|next| StatusChange {
            // Each Toolset starts. A pod that cannot start has events of the kubelet.
            warning: (next.status == "False" && next.reason != reasons::STARTING) || next.reason == reasons::UPSTREAM_TOOL_CHANGED,
            reason: next.reason.clone(),
            note: next.message.clone(),
        })
        .collect()
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
