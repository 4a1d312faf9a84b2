//! The tools of an upstream, as MCP describes them to agents: under their own names, so that agents call them as they would call the
//! upstream. Resources, prompts and all that an upstream may ask of a client are not passed on.

use std::borrow::Cow;
use std::sync::Arc;

use axum::http::request::Parts;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, Implementation, ListToolsResult, PaginatedRequestParams, ResultType,
    ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Value, json};
use spillway_bridge::answer::{Answer, Status};
use spillway_bridge::idempotency::MAX_KEY_CHARS;
use spillway_bridge::upstream::listed::OfferedTool;

use super::admitted_request::AdmittedRequest;
use super::executor::Executor;
use super::program_call::ProgramCall;
use super::upstream::server::UpstreamServer;
use crate::VERSION;

/// The member of `_meta` with the key of a call that must run once.
pub const KEY_MEMBER: &str = "spillway.dev/idempotencyKey";
/// The member of an answer's `_meta` with the id of the call in the audit log.
pub const AUDIT_ID_MEMBER: &str = "spillway.dev/auditId";

/// Answers requests of MCP.
#[derive(Clone, Debug)]
pub struct UpstreamHandler {
    /// Carries out calls.
    pub executor: Arc<Executor>,
    /// Whose tools these are.
    pub server: Arc<UpstreamServer>,
}

impl ServerHandler for UpstreamHandler {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("spillway-bridge", VERSION))
    }

    async fn list_tools(&self, _: Option<PaginatedRequestParams>, _: RequestContext<RoleServer>) -> Result<ListToolsResult, ErrorData> {
        let tools = self.server.tools().await;
        let tools = tools.map_err(|why| ErrorData::internal_error(format!("the tools of the upstream are not known: {why}"), None))?;
        Ok(ListToolsResult::with_all_items(tools.into_iter().map(described).collect()))
    }

    async fn call_tool(&self, request: CallToolRequestParams, context: RequestContext<RoleServer>) -> Result<CallToolResponse, ErrorData> {
        let admitted = context.extensions.get::<Parts>().and_then(|parts| parts.extensions.get::<AdmittedRequest>()).cloned();
        // Each request passes the admission. Without it nobody is known to be the caller, so that nothing runs.
        let AdmittedRequest { caller, provided, outcome } =
            admitted.ok_or_else(|| ErrorData::internal_error("the request was not admitted", None))?;
        let key = request.meta.as_ref().and_then(|meta| meta.get(KEY_MEMBER)).or_else(|| context.meta.get(KEY_MEMBER)).cloned();
        let answered = match key_of(key) {
            Ok(idempotency_key) => {
                let (program, arguments) = (request.name.into_owned(), request.arguments.unwrap_or_default());
                let call = ProgramCall { caller, provided, program, arguments, idempotency_key };
                self.executor.clone().execute(call, context.ct.clone()).await
            }
            Err(message) => Ok(self.executor.refuse(caller, "arguments", message).await),
        };
        outcome.set(answered.as_ref().map(|answer| answer.status).map_err(Clone::clone));
        // The gateway reads the outcome, and not this answer.
        let answer = answered.map_err(|_| ErrorData::internal_error("the call needs something of the gateway first", None))?;
        Ok(result(&answer).into())
    }
}

/// The key of a call, or what is wrong with it.
fn key_of(member: Option<Value>) -> Result<Option<String>, String> {
    match member {
        None => Ok(None),
        Some(Value::String(key)) if (1..=MAX_KEY_CHARS).contains(&key.chars().count()) => Ok(Some(key)),
        Some(_) => Err(format!("_meta: {KEY_MEMBER} must have 1 to {MAX_KEY_CHARS} characters")),
    }
}

fn described(tool: OfferedTool) -> Tool {
    let OfferedTool { name, title, description, schema, read_only } = tool;
    let mut described = Tool::new_with_raw(Cow::Owned(name), description.map(Cow::Owned), schema);
    described.title = title;
    match read_only {
        Some(read_only) => described.with_annotations(ToolAnnotations::new().read_only(read_only)),
        None => described,
    }
}

/// The result that the upstream gave, or why there is none.
fn result(answer: &Answer) -> CallToolResult {
    let of_upstream = answer.tool_result.as_ref().map(|text| serde_json::from_str::<CallToolResult>(text));
    let mut result = match of_upstream {
        Some(Ok(mut result)) => {
            // As each result that is made here: it is complete.
            result.result_type = Some(ResultType::COMPLETE);
            result
        }
        Some(Err(_)) | None => CallToolResult::structured_error(refusal(answer)),
    };
    if let Value::Object(meta) = json!({AUDIT_ID_MEMBER: answer.audit_id}) {
        result.meta = Some(meta.into());
    }
    result
}

/// The members of an answer that a call of a tool has.
fn refusal(answer: &Answer) -> Value {
    let Answer { status, audit_id, revision, field, rule, message, retry_after_milliseconds, .. } = answer;
    let mut all = json!({"status": status, "auditId": audit_id, "revision": revision});
    let more = [
        ("field", json!(field)),
        ("rule", json!(rule)),
        ("message", json!(message)),
        ("retryAfterMilliseconds", json!(retry_after_milliseconds)),
    ];
    for (name, value) in more.into_iter().filter(|(_, value)| !value.is_null()) {
        all[name] = value;
    }
    if *status == Status::Ok {
        all["message"] = json!("the result of the upstream cannot be shown");
    }
    all
}
