//! MCP over HTTP, by the official SDK. Each request is a call of its own: there are no sessions.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, Implementation, ListToolsResult, PaginatedRequestParams, ServerCapabilities,
    ServerConfig, Tool, ToolAnnotations,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use spillway_bridge::answer::Status;
use spillway_bridge::audit::Caller;
use spillway_bridge::idempotency::MAX_KEY_CHARS;
use tokio_util::sync::CancellationToken;

use super::audit_log::AuditLog;
use super::executor::{Executor, ProgramCall, make_private};
use super::served_catalog::ServedCatalog;
use super::settings::ServeArguments;
use super::tools::{self, EXECUTE, ExecuteArguments, HELP, HelpArguments, LIST_PROGRAMS};
use crate::VERSION;

/// The path of the server.
const PATH: &str = "/mcp";
/// The most bytes of a request.
const MAX_BODY_BYTES: usize = 256 * 1024;
/// The caller's name in the audit log, if the bridge was started by hand.
const LOCAL_CALLER: &str = "local";
/// For models, beside the tools.
const INSTRUCTIONS: &str = "Programs outside of your sandbox. Call list_programs, then help for a program, then execute.";

/// Serves until the process is to stop.
pub async fn run(arguments: ServeArguments, stop: CancellationToken) -> anyhow::Result<()> {
    let token = arguments.token_file.as_ref().map(read_token).transpose()?;
    if token.is_none() && !arguments.listen.ip().is_loopback() {
        anyhow::bail!(
            "{} can be reached from other machines, so that --token-file is needed: a file with the token that clients send",
            arguments.listen
        );
    }
    let (served, watch) = ServedCatalog::open(arguments.definitions.clone(), arguments.allowed())?;
    let served = Arc::new(served);
    let audit = AuditLog::open(arguments.audit_file.as_deref()).context("cannot open the audit log")?;
    let folder = WorkFolder::make(arguments.work_folder.clone())?;
    let credentials = arguments.credential_files();
    let executor = Arc::new(Executor::new(served.clone(), credentials, audit, arguments.max_running, folder.0.clone()));
    let listener =
        tokio::net::TcpListener::bind(arguments.listen).await.with_context(|| format!("cannot listen at {}", arguments.listen))?;
    let address = listener.local_addr()?;
    tracing::info!(%address, path = PATH, revision = executor.served().catalog().revision(), "serving programs over MCP");
    tokio::spawn(watch.follow(served, stop.clone()));
    let app = router(executor, token, &arguments.hosts, stop.clone());
    axum::serve(listener, app).with_graceful_shutdown(stop.cancelled_owned()).await?;
    drop(folder);
    Ok(())
}

fn read_token(file: &PathBuf) -> anyhow::Result<Arc<str>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    match text.trim() {
        "" => anyhow::bail!("{} has no token", file.display()),
        token => Ok(token.into()),
    }
}

/// The folder of the private folders of calls. It is removed with its content.
#[derive(Debug)]
struct WorkFolder(PathBuf);

impl WorkFolder {
    fn make(parent: Option<PathBuf>) -> anyhow::Result<Self> {
        let parent = parent.unwrap_or_else(std::env::temp_dir);
        let name: String = spillway_pod::random::key()?.chars().take(16).collect();
        let folder = parent.join(format!("spillway-bridge-{name}"));
        make_private(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        // Sandboxes know files by their paths without links.
        Ok(Self(std::fs::canonicalize(folder)?))
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(%error, folder = %self.0.display(), "the folder of the calls cannot be removed");
        }
    }
}

fn router(executor: Arc<Executor>, token: Option<Arc<str>>, hosts: &[String], stop: CancellationToken) -> Router {
    let own = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_max_request_body_bytes(MAX_BODY_BYTES)
        .with_allowed_hosts(own.into_iter().chain(hosts.iter().cloned()))
        // A browser sends this header, and no client of ours is a page.
        .enforce_origin_validation()
        .with_cancellation_token(stop);
    let handler = Handler { executor };
    let service = StreamableHttpService::new(move || Ok(handler.clone()), Arc::new(NeverSessionManager::default()), config);
    Router::new().route_service(PATH, service).layer(from_fn_with_state(token, check_token))
}

/// Lets a request pass that has the token.
async fn check_token(State(token): State<Option<Arc<str>>>, request: Request, next: Next) -> Response {
    match token {
        Some(token) if !has_token(request.headers(), &token) => {
            let message = "this bridge asks for a token: Authorization: Bearer TOKEN, with the TOKEN of its --token-file\n";
            (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")], message).into_response()
        }
        Some(_) | None => next.run(request).await,
    }
}

fn has_token(headers: &HeaderMap, token: &str) -> bool {
    let sent = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(|value| value.strip_prefix("Bearer "));
    sent.is_some_and(|sent| spillway_pod::random::same(sent, token))
}

/// Answers requests of MCP.
#[derive(Clone, Debug)]
struct Handler {
    executor: Arc<Executor>,
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("spillway-bridge", VERSION))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(&self, _: Option<PaginatedRequestParams>, _: RequestContext<RoleServer>) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::tools().into_iter().filter_map(described).collect()))
    }

    async fn call_tool(&self, request: CallToolRequestParams, context: RequestContext<RoleServer>) -> Result<CallToolResponse, ErrorData> {
        let arguments = Value::Object(request.arguments.unwrap_or_default());
        let result = match request.name.as_ref() {
            LIST_PROGRAMS => structured(tools::list(self.executor.served().catalog()), false),
            HELP => self.help(arguments),
            EXECUTE => self.execute(arguments, context.ct).await,
            other => {
                let name: String = other.chars().take(64).collect();
                return Err(ErrorData::invalid_params(format!("there is no tool {name:?}"), None));
            }
        };
        Ok(result.into())
    }
}

impl Handler {
    fn help(&self, arguments: Value) -> CallToolResult {
        let HelpArguments { program } = match read(arguments) {
            Ok(arguments) => arguments,
            Err(wrong) => return wrong,
        };
        let unknown = || {
            structured(
                json!({"status": Status::Rejected, "rule": "unknownProgram", "message": "there is no such program; list_programs names all"}),
                true,
            )
        };
        tools::help(self.executor.served().catalog(), &program).map_or_else(unknown, |help| structured(help, false))
    }

    async fn execute(&self, arguments: Value, gone: CancellationToken) -> CallToolResult {
        let ExecuteArguments { program, args, idempotency_key } = match read(arguments) {
            Ok(arguments) => arguments,
            Err(wrong) => return wrong,
        };
        if idempotency_key.as_ref().is_some_and(|key| key.is_empty() || key.chars().count() > MAX_KEY_CHARS) {
            return wrong(format!("idempotencyKey must have 1 to {MAX_KEY_CHARS} characters"));
        }
        let caller = Caller { name: LOCAL_CALLER.to_owned() };
        let call = ProgramCall { caller, program, arguments: args, idempotency_key };
        let answer = self.executor.clone().execute(call, gone).await;
        let failed = answer.status != Status::Ok;
        structured(&answer, failed)
    }
}

fn described(tool: tools::ToolDescription) -> Option<Tool> {
    let tools::ToolDescription { name, description, schema, read_only } = tool;
    let Value::Object(schema) = schema else { return None };
    let annotations = ToolAnnotations::new().read_only(read_only);
    Some(Tool::new(name, Cow::Borrowed(description), schema).with_annotations(annotations))
}

/// Models read the text, and programs the structure.
fn structured(value: impl Serialize, failed: bool) -> CallToolResult {
    let value = serde_json::to_value(value).unwrap_or_default();
    if failed { CallToolResult::structured_error(value) } else { CallToolResult::structured(value) }
}

fn wrong(message: String) -> CallToolResult {
    structured(json!({"status": Status::Rejected, "rule": "arguments", "message": message}), true)
}

fn read<T: DeserializeOwned>(arguments: Value) -> Result<T, CallToolResult> {
    serde_json::from_value(arguments).map_err(|error| wrong(error.to_string()))
}
