//! The agents' API as an OpenAPI 3.1 document, generated from the table of calls and from the types.

use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use crate::wire::Refusal;
use crate::wire::access::{ACCESS_TABLE, Call, Row};
use crate::wire::agent::{Acknowledgement, DesiredState, Goodbye, Register, Report, Settings, Spawn, Spawned};
use crate::wire::artifact::{Artifact, ArtifactList, NAME_RULE, SHA256_HEADER};
use crate::wire::budget::{AskTokens, RemainingTokens};
use crate::wire::command::{EndTry, TryAnswer, TryCommand};
use crate::wire::egress::{DESTINATION_HEADER, MAX_DESTINATION_CHARS};
use crate::wire::external::{EXTERNAL_HEADER, Enrol, Enrolled};
use crate::wire::follow::{Inbox, WorkList};
use crate::wire::plan::{Plan, Planned};
use crate::wire::work::{Assignment, Claim, Complete, Fail, ProgressUpdate, Release, Submit, Submitted};

/// The request and the response of a call.
struct Shape {
    summary: &'static str,
    body: Option<Value>,
    answer: Value,
}

/// The document.
pub fn document() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.definitions_path = "/components/schemas".into());
    let mut types = settings.into_generator();
    let refusal = reference::<Refusal>(&mut types);
    let mut paths = Map::new();
    for row in ACCESS_TABLE.iter().filter(|row| row.served && row.path.starts_with("/agent/")) {
        let Some(shape) = shape(row.call, &mut types) else { continue };
        let methods = paths.entry(row.path.to_owned()).or_insert_with(|| json!({}));
        methods[row.method.to_lowercase()] = operation(row, shape, &refusal);
    }
    let schemas: Map<String, Value> = types.take_definitions(true).into_iter().collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Spillway: the agents' API",
            "version": crate::VERSION,
            "description": "Calls of an agent's sidecar to the gateway. Every call is repeatable. The token is the pod's own, for the audience spillway.dev/gateway. Outside the cluster it is a user's token for that audience, with the header spillway-external.",
        },
        "security": [{"pod": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"pod": {"type": "http", "scheme": "bearer"}},
        },
    })
}

fn reference<T: JsonSchema>(types: &mut SchemaGenerator) -> Value {
    types.subschema_for::<T>().to_value()
}

fn shape(call: Call, types: &mut SchemaGenerator) -> Option<Shape> {
    let shape = match call {
        Call::Enrol => Shape {
            summary: "Creates an Agent for a process outside the cluster, within spec.external.maxAgents of the pool that the header names.",
            body: Some(reference::<Enrol>(types)),
            answer: reference::<Enrolled>(types),
        },
        Call::Register => Shape {
            summary: "The first call of a sidecar. It describes the sandbox, and gets its settings.",
            body: Some(reference::<Register>(types)),
            answer: reference::<Settings>(types),
        },
        Call::Report => Shape {
            summary: "The heartbeat. The answer comes at once, with the whole desired state.",
            body: Some(reference::<Report>(types)),
            answer: reference::<DesiredState>(types),
        },
        Call::Wanted => Shape {
            summary: "Long poll for the whole desired state. It is answered when the revision is not `after`, or with 204 after about 25 seconds.",
            body: None,
            answer: reference::<DesiredState>(types),
        },
        Call::Goodbye => Shape {
            summary: "The agent says goodbye. The call is answered when that is stored. Then the pod is asked to stop.",
            body: Some(reference::<Goodbye>(types)),
            answer: reference::<Acknowledgement>(types),
        },
        Call::Spawn => Shape {
            summary: "Creates a child agent, within spec.bulkhead.maxChildAgents and spec.may.spawnIn of the agent's pool.",
            body: Some(reference::<Spawn>(types)),
            answer: reference::<Spawned>(types),
        },
        Call::Claim => Shape {
            summary: "Leases an item of work to the caller: the item that it holds, or the next one. 204 if there is none within `waitSeconds`.",
            body: Some(reference::<Claim>(types)),
            answer: reference::<Assignment>(types),
        },
        Call::Complete => {
            Shape { summary: "The item is done.", body: Some(reference::<Complete>(types)), answer: reference::<Acknowledgement>(types) }
        }
        Call::Fail => Shape {
            summary: "The task failed. The retry rules of the queue apply.",
            body: Some(reference::<Fail>(types)),
            answer: reference::<Acknowledgement>(types),
        },
        Call::Release => Shape {
            summary: "Gives the item back. This does not count as a failure.",
            body: Some(reference::<Release>(types)),
            answer: reference::<Acknowledgement>(types),
        },
        Call::Advance => Shape {
            summary: "Reports the progress of the item.",
            body: Some(reference::<ProgressUpdate>(types)),
            answer: reference::<Acknowledgement>(types),
        },
        Call::Submit => Shape {
            summary: "Queues an item, within spec.may.submitTo of the agent's pool.",
            body: Some(reference::<Submit>(types)),
            answer: reference::<Submitted>(types),
        },
        Call::Plan => Shape {
            summary: "Queues several items that may depend on each other. No item is leased before all of them exist.",
            body: Some(reference::<Plan>(types)),
            answer: reference::<Planned>(types),
        },
        Call::ListWork => Shape {
            summary: "Lists the items that agents of the caller's pool submitted, with their phases.",
            body: None,
            answer: reference::<WorkList>(types),
        },
        Call::Inbox => Shape {
            summary: "Long poll for ended items and plans of the agents of the caller's pool, since `after`. 204 if none ended within `waitSeconds`.",
            body: None,
            answer: reference::<Inbox>(types),
        },
        Call::Budget => Shape {
            summary: "Lists every limit that applies to the caller's model calls, with its use. The limit that is closest to the agent is first.",
            body: None,
            answer: reference::<RemainingTokens>(types),
        },
        Call::AskBudget => Shape {
            summary: "Asks people for more tokens, with a condition of the Agent and an event. It raises no limit. The call is answered when the request is stored.",
            body: Some(reference::<AskTokens>(types)),
            answer: reference::<Acknowledgement>(types),
        },
        Call::TryCommand => Shape {
            summary: "Asks for a permit to run a command while the breaker of the namespace is open, to test whether commands work again.",
            body: Some(reference::<TryCommand>(types)),
            answer: reference::<TryAnswer>(types),
        },
        Call::EndTry => Shape {
            summary: "Reports how a command with such a permit ended. Only the caller that got the permit can report it, and only once.",
            body: Some(reference::<EndTry>(types)),
            answer: reference::<Acknowledgement>(types),
        },
        Call::Connect => Shape {
            summary: "Connects to a destination other than models. The body carries the bytes to it, and the answer the bytes from it.",
            body: None,
            answer: json!({"type": "string", "format": "binary"}),
        },
        Call::PutArtifact => Shape {
            summary: "Stores the body as an artifact of the item that the caller holds. An artifact of the same name is replaced.",
            body: None,
            answer: reference::<Artifact>(types),
        },
        Call::ListArtifacts => Shape {
            summary: "Lists the artifacts of an item: the caller's own, one that it depends on, or one that agents of the caller's pool submitted.",
            body: None,
            answer: reference::<ArtifactList>(types),
        },
        Call::GetArtifact => Shape {
            summary: "The content of an artifact of such an item.",
            body: None,
            answer: json!({"type": "string", "format": "binary"}),
        },
        Call::Changes | Call::Egress | Call::Git | Call::Tools | Call::Artifacts => return None,
        Call::MeterBegin | Call::MeterWay | Call::MeterHold | Call::MeterExtend | Call::MeterLate | Call::MeterSettle => return None,
        Call::ReadArtifact | Call::UnusedArtifacts | Call::WorkReplay => return None,
    };
    Some(shape)
}

fn operation(row: &Row, shape: Shape, refusal: &Value) -> Value {
    let content = |schema: &Value| json!({"application/json": {"schema": schema}});
    let refused = |what: &str| json!({"description": what, "content": content(refusal)});
    let mut responses = json!({
        "200": {"description": "Done.", "content": content(&shape.answer)},
        "400": refused("The body is invalid. `field` names the invalid field."),
        "401": refused("The token is missing, or the API server does not accept it."),
        "403": refused("The caller is not a living agent, or has no right to make this call."),
        "429": refused("Too many calls. Try again after the time in Retry-After."),
        "503": refused("The governor cannot be reached now; try again."),
    });
    let mut operation = json!({"operationId": format!("{:?}", row.call), "summary": shape.summary});
    match row.call {
        Call::Enrol => {
            responses["409"] = refused("The Idempotency-Key was used for another agent.");
            operation["parameters"] = json!([
                {"name": EXTERNAL_HEADER, "in": "header", "required": true, "schema": {"type": "string"}, "description": "NAMESPACE/POOL; on every later call NAMESPACE/POOL/AGENT/UID."},
                {"name": "Idempotency-Key", "in": "header", "required": true, "schema": {"type": "string", "maxLength": 128}},
            ]);
        }
        Call::Wanted => {
            responses["204"] = json!({"description": "Nothing new."});
            operation["parameters"] = json!([{"name": "after", "in": "query", "required": false, "schema": {"type": "string"}, "description": "The revision that the caller has."}]);
        }
        Call::Claim => responses["204"] = json!({"description": "There was no item within `waitSeconds`."}),
        Call::Complete | Call::Fail | Call::Release | Call::Advance => {
            responses["409"] = refused("The caller does not hold the lease any more, or the item has ended.");
            responses["410"] = refused("The item is gone.");
            operation["parameters"] =
                json!([{"name": "uid", "in": "path", "required": true, "schema": {"type": "string"}, "description": "The item's uid."}]);
        }
        Call::ListWork => {
            let of = |name: &str, what: &str| json!({"name": name, "in": "query", "required": false, "schema": {"type": "string"}, "description": what});
            operation["parameters"] =
                json!([of("submittedBy", "`me`, or unset."), of("group", "Only those of a group."), of("plan", "Only those of a plan.")]);
        }
        Call::Inbox => {
            responses["204"] = json!({"description": "There was no message within `waitSeconds`."});
            operation["parameters"] = json!([
                {"name": "after", "in": "query", "required": false, "schema": {"type": "string"}, "description": "The cursor of the last answer. Unset: from the beginning."},
                {"name": "waitSeconds", "in": "query", "required": false, "schema": {"type": "integer", "minimum": 0, "maximum": 25}, "description": "How long to wait for a message."},
            ]);
        }
        Call::Submit | Call::Plan => {
            responses["409"] =
                refused("The queue is full, an item of the same key exists, or the Idempotency-Key was used for another item.");
            responses["413"] = refused("The payload is larger than the queue allows.");
            responses["422"] = refused("The queue does not exist, it does not accept the type, or the item would wait for itself.");
            operation["parameters"] = json!([{"name": "Idempotency-Key", "in": "header", "required": false, "schema": {"type": "string", "maxLength": 253}, "description": "Required without a dedupKey."}]);
        }
        Call::Connect => {
            let bytes = json!({"application/octet-stream": {"schema": shape.answer}});
            responses["200"] = json!({"description": "The connection is open.", "content": bytes});
            responses["502"] = refused("The destination is allowed, but cannot be reached now.");
            operation["requestBody"] = json!({"required": true, "content": bytes});
            operation["parameters"] = json!([
                {"name": DESTINATION_HEADER, "in": "header", "required": true, "schema": {"type": "string", "maxLength": MAX_DESTINATION_CHARS}, "description": "HOST:PORT."},
            ]);
        }
        Call::PutArtifact | Call::ListArtifacts | Call::GetArtifact => {
            artifact_operation(row.call, &shape, &mut responses, &mut operation, &refused)
        }
        Call::Spawn => {
            responses["409"] = refused("The Idempotency-Key was used for another child.");
            operation["parameters"] =
                json!([{"name": "Idempotency-Key", "in": "header", "required": true, "schema": {"type": "string", "maxLength": 128}}]);
        }
        _ => {}
    }
    if let Some(body) = &shape.body {
        operation["requestBody"] = json!({"required": true, "content": content(body)});
    }
    operation["responses"] = responses;
    operation
}

/// The parts of an operation about artifacts that other operations do not have.
fn artifact_operation(call: Call, shape: &Shape, responses: &mut Value, operation: &mut Value, refused: &impl Fn(&str) -> Value) {
    let of = |name: &str, place: &str, what: &str| json!({"name": name, "in": place, "required": true, "schema": {"type": "string"}, "description": what});
    let item = || of("item", "path", "Name of the item; - is the one that the caller holds.");
    let name = || of("name", "path", NAME_RULE);
    responses["404"] = refused("There is no such artifact that the caller may read, or its time is over.");
    match call {
        Call::PutArtifact => {
            responses["409"] = refused("The caller holds no item, or does not hold it any more.");
            responses["502"] = refused("The store cannot be used now; try again.");
            let binary = json!({"type": "string", "format": "binary"});
            operation["requestBody"] = json!({"required": true, "content": {"application/octet-stream": {"schema": binary}}});
            operation["parameters"] =
                json!([name(), of("Content-Length", "header", "Size of the file. It is checked before the file is stored.")]);
        }
        Call::GetArtifact => {
            let bytes = json!({"application/octet-stream": {"schema": shape.answer}});
            let digest =
                json!({SHA256_HEADER: {"schema": {"type": "string"}, "description": "SHA-256 of the content, as hexadecimal digits."}});
            responses["200"] = json!({"description": "The content.", "content": bytes, "headers": digest});
            responses["502"] = refused("The store cannot be used now; try again.");
            operation["parameters"] = json!([item(), name()]);
        }
        _ => operation["parameters"] = json!([item()]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_served_call_is_in_the_document_and_every_reference_leads_somewhere() {
        let document = document();
        for row in ACCESS_TABLE.iter().filter(|row| row.served && row.path.starts_with("/agent/")) {
            assert!(document["paths"][row.path][row.method.to_lowercase()].is_object(), "{} {}", row.method, row.path);
        }
        let text = document.to_string();
        let mut rest = text.as_str();
        while let Some(at) = rest.find("#/components/schemas/") {
            rest = &rest[at + "#/components/schemas/".len()..];
            let name = rest.split('"').next().unwrap_or_default();
            assert!(document["components"]["schemas"][name].is_object(), "{name}");
        }
        assert_eq!(document["components"]["schemas"]["Goodbye"]["additionalProperties"], false);
    }
}
