//! MCP over HTTP, by the official SDK. Each request is a call of its own: there are no sessions.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::body::{Body, to_bytes};
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
use serde_json::{Value, json};
use spillway_bridge::answer::Status;
use spillway_bridge::audit::Caller;
use spillway_sandbox::kernel::Kernel;
use spillway_sandbox::plan::plan;
use spillway_wire::sandbox::SandboxSettings;
use tokio_util::sync::CancellationToken;

use super::audit_log::AuditLog;
use super::end_of_input::when_input_ends;
use super::executor::{Executor, ProgramCall, ProgramPlace, UNKNOWN_PROGRAM, UNKNOWN_PROGRAM_MESSAGE};
use super::private_folder::WorkFolder;
use super::served_catalog::ServedCatalog;
use super::settings::ServeArguments;
use super::tools::{self, EXECUTE, ExecuteArguments, HELP, HelpArguments, LIST_PROGRAMS};
use crate::VERSION;
use crate::serve::{Bounds, Connection, bind, serve_plain};
use crate::telemetry::Metrics;

/// The path of the server.
const PATH: &str = "/mcp";
/// The most bytes of a request.
const MAX_BODY_BYTES: usize = 256 * 1024;
/// Time limit of the body of a request.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
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
    let place =
        ProgramPlace { folder: folder.path().to_owned(), sandbox: arguments.sandbox(), closed: closed_paths(&arguments, folder.path()) };
    say_what_is_missing(&place.sandbox)?;
    let (credentials, max_running) = (arguments.credential_files(), arguments.max_running);
    let executor = Arc::new(Executor::new(served.clone(), credentials, audit, max_running, place, stop.clone()));
    let listener = bind(arguments.listen).await?;
    let address = listener.local_addr()?;
    tracing::info!(%address, path = PATH, revision = executor.served().catalog().revision(), "serving programs over MCP");
    tokio::spawn(watch.follow(served, stop.clone()));
    if arguments.end_with_input {
        let stop = stop.clone();
        when_input_ends(move || stop.cancel())?;
    }
    // The calls in progress end first, so that their clients get answers.
    let ended = serve_plain(listener, Bounds::BRIDGE, router(executor.clone(), token, &arguments.hosts), Metrics::default(), stop).await;
    executor.finish().await;
    drop(folder);
    Ok(ended?)
}

/// The files that programs must not read, without links. A file that does not exist is not closed.
fn closed_paths(arguments: &ServeArguments, folder: &Path) -> Vec<PathBuf> {
    let credentials = arguments.credentials.iter().map(|(_, file)| file);
    let files = credentials.chain(&arguments.token_file).chain(&arguments.audit_file);
    files.filter_map(|file| std::fs::canonicalize(file).ok()).chain([folder.to_owned()]).collect()
}

/// Says which limits this kernel cannot enforce, or ends the bridge if they are required.
fn say_what_is_missing(sandbox: &SandboxSettings) -> anyhow::Result<()> {
    let plan = plan(sandbox, &Kernel::probe()).map_err(|missing| anyhow::anyhow!("--require-sandbox: {}", missing.message))?;
    let missing = plan.missing(sandbox);
    if !missing.is_empty() {
        tracing::warn!(
            missing = missing.join(", "),
            "this kernel cannot enforce all limits of the sandbox of programs; --require-sandbox ends the bridge then"
        );
    }
    Ok(())
}

fn read_token(file: &PathBuf) -> anyhow::Result<Arc<str>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    match text.trim() {
        "" => anyhow::bail!("{} has no token", file.display()),
        token => Ok(token.into()),
    }
}

fn router(executor: Arc<Executor>, token: Option<Arc<str>>, hosts: &[String]) -> Router {
    let own = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_allowed_hosts(own.into_iter().chain(hosts.iter().cloned()))
        // A browser sends this header, and no client of ours is a page.
        .enforce_origin_validation();
    let handler = Handler { executor };
    let service = StreamableHttpService::new(move || Ok(handler.clone()), Arc::new(NeverSessionManager::default()), config);
    Router::new().route_service(PATH, service).layer(from_fn_with_state(token, admit))
}

/// Lets a request pass that has the token and is whole in time. A client that stops in the middle of its request would keep the place of
/// its connection otherwise.
async fn admit(State(token): State<Option<Arc<str>>>, request: Request, next: Next) -> Response {
    match token {
        Some(token) if !has_token(request.headers(), &token) => {
            let message = "this bridge asks for a token: Authorization: Bearer TOKEN, with the TOKEN of its --token-file\n";
            (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")], message).into_response()
        }
        Some(_) | None => match request.extensions().get::<Connection>().map(|connection| connection.admit(LOCAL_CALLER)) {
            Some(Err(_)) => (StatusCode::SERVICE_UNAVAILABLE, "too many connections\n").into_response(),
            Some(Ok(())) | None => match read_whole(request).await {
                Ok(request) => next.run(request).await,
                Err(refused) => refused.into_response(),
            },
        },
    }
}

/// The request with a body that is in memory.
async fn read_whole(request: Request) -> Result<Request, (StatusCode, &'static str)> {
    let (head, body) = request.into_parts();
    match tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, MAX_BODY_BYTES)).await {
        Ok(Ok(bytes)) => Ok(Request::from_parts(head, Body::from(bytes))),
        // A client whose connection broke does not read the answer.
        Ok(Err(_)) => Err((StatusCode::PAYLOAD_TOO_LARGE, "a request may have 256 KiB\n")),
        Err(_) => Err((StatusCode::REQUEST_TIMEOUT, "the request did not come within 10 s\n")),
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
        let refused = |rule: &str, message: &str| structured(json!({"status": Status::Rejected, "rule": rule, "message": message}), true);
        match serde_json::from_value(arguments) {
            Ok(HelpArguments { program }) => tools::help(self.executor.served().catalog(), &program)
                .map_or_else(|| refused(UNKNOWN_PROGRAM, UNKNOWN_PROGRAM_MESSAGE), |help| structured(help, false)),
            Err(error) => refused("arguments", &error.to_string()),
        }
    }

    async fn execute(&self, arguments: Value, gone: CancellationToken) -> CallToolResult {
        let caller = Caller { name: LOCAL_CALLER.to_owned() };
        let answer = match ExecuteArguments::read(arguments) {
            Ok(ExecuteArguments { program, args, idempotency_key }) => {
                let call = ProgramCall { caller, program, arguments: args, idempotency_key };
                self.executor.clone().execute(call, gone).await
            }
            Err(message) => self.executor.refuse(caller, message).await,
        };
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
