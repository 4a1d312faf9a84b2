//! MCP over HTTP, by the official SDK. Each request is a call of its own: there are no sessions.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use axum::http::request::Parts;
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
use spillway_sandbox::kernel::Kernel;
use spillway_sandbox::plan::plan;
use spillway_wire::sandbox::SandboxSettings;
use tokio_util::sync::CancellationToken;

use super::admitted_request::AdmittedRequest;
use super::audit_log::AuditLog;
use super::call_files::{CallFiles, FILE_LIMITS};
use super::clients::Clients;
use super::end_of_input::when_input_ends;
use super::executor::{Executor, ProgramPlace};
use super::private_folder::WorkFolder;
use super::program_call::ProgramCall;
use super::served_catalog::{FolderWatch, ServedCatalog, UNKNOWN_PROGRAM, UNKNOWN_PROGRAM_MESSAGE};
use super::settings::ServeArguments;
use super::tools::{self, EXECUTE, ExecuteArguments, HELP, HelpArguments, LIST_PROGRAMS};
use super::upstream::server::UpstreamServer;
use super::upstream_tools::UpstreamHandler;
use crate::VERSION;
use crate::pki::bridge_tls;
use crate::serve::{Bounds, bind, serve_plain, serve_tls};
use crate::telemetry::{self, Health, Metrics};
use crate::wire::tools::BRIDGE_MCP_PATH;

/// For models, beside the tools.
const INSTRUCTIONS: &str = "Programs outside of your sandbox. Call list_programs, then help for a program, then execute.";

/// Serves until the process is to stop.
pub async fn run(arguments: ServeArguments, stop: CancellationToken) -> anyhow::Result<()> {
    let clients = Clients::of(&arguments)?;
    let (health, metrics) = (Health::default(), Metrics::default());
    let (served, watch) = open_catalog(&arguments)?;
    let served = Arc::new(served);
    let audit = AuditLog::open(arguments.audit_file.as_deref()).context("cannot open the audit log")?;
    // The tools of an upstream run elsewhere.
    let folder = watch.is_some().then(|| WorkFolder::make(arguments.work_folder.clone())).transpose()?;
    let path = folder.as_ref().map_or_else(PathBuf::new, |folder| folder.path().to_owned());
    let place = ProgramPlace { closed: closed_paths(&arguments, &path), folder: path, sandbox: arguments.sandbox() };
    if watch.is_some() {
        say_what_is_missing(&place.sandbox)?;
    }
    let (credentials, max_running) = (arguments.credential_files(), arguments.max_running);
    let files = match &folder {
        Some(folder) => CallFiles::new(folder.path(), FILE_LIMITS).context("cannot make a folder for artifacts")?,
        None => CallFiles::none(),
    };
    let files = Arc::new(files);
    let executor = Arc::new(Executor::new(served.clone(), credentials, audit, max_running, (place, files), stop.clone()));
    let listener = bind(arguments.listen).await?;
    let address = listener.local_addr()?;
    tracing::info!(%address, path = BRIDGE_MCP_PATH, revision = executor.served().catalog().revision(), "serving programs over MCP");
    if let Some(health_listen) = arguments.health_listen {
        let (health, metrics, stop) = (health.clone(), metrics.clone(), stop.clone());
        tokio::spawn(async move {
            if let Err(error) = telemetry::serve(health_listen, health, metrics, stop.clone()).await {
                tracing::error!(%error, "cannot serve health and metrics: check that no other process uses the address of --health-listen");
                stop.cancel();
            }
        });
    }
    match (watch, executor.served().upstream()) {
        (Some(watch), _) => drop(tokio::spawn(watch.follow(served, stop.clone()))),
        (None, Some(server)) => drop(tokio::spawn(server.clone().follow(stop.clone()))),
        (None, None) => {}
    }
    if arguments.end_with_input {
        let stop = stop.clone();
        when_input_ends(move || stop.cancel())?;
    }
    health.set("definitions", vec![]);
    let routes = router(executor.clone(), clients.clone(), &arguments.hosts);
    // The calls in progress end first, so that their clients get answers.
    let ended = match &arguments.gateway_ca {
        Some(authorities) => {
            let tls = bridge_tls::server(authorities.clone()).context("--gateway-ca")?;
            serve_tls(listener, tls, Bounds::TOOLSET, routes, metrics, stop).await
        }
        None => serve_plain(listener, Bounds::BRIDGE, routes, metrics, stop).await,
    };
    executor.finish().await;
    drop(folder);
    Ok(ended?)
}

/// What is served: the programs of a folder, which is watched, or the tools of an upstream.
fn open_catalog(arguments: &ServeArguments) -> anyhow::Result<(ServedCatalog, Option<FolderWatch>)> {
    if let Some(fields) = arguments.upstream_fields()? {
        let server = UpstreamServer::open(&fields, arguments.max_seconds, arguments.credential_files())?;
        return Ok((ServedCatalog::of_upstream(Arc::new(server), arguments.allowed()), None));
    }
    let folder = arguments.definitions.clone().context("--definitions is missing: the folder of the definitions")?;
    let (served, watch) = ServedCatalog::open(folder, arguments.allowed())?;
    Ok((served, Some(watch)))
}

/// The files that programs must not read, without links. A file that does not exist is not closed.
fn closed_paths(arguments: &ServeArguments, folder: &Path) -> Vec<PathBuf> {
    let credentials = arguments.credentials.iter().map(|(_, file)| file);
    let files = credentials.chain(&arguments.token_file).chain(&arguments.identity_token).chain(&arguments.audit_file);
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

fn router(executor: Arc<Executor>, clients: Clients, hosts: &[String]) -> Router {
    let own = clients.own_hosts().map(str::to_owned);
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_allowed_hosts(own.chain(hosts.iter().cloned()))
        // A browser sends this header, and no client of ours is a page.
        .enforce_origin_validation();
    let sessions = Arc::new(NeverSessionManager::default());
    let mcp = match executor.served().upstream() {
        Some(server) => {
            let handler = UpstreamHandler { executor: executor.clone(), server: server.clone() };
            Router::new().route_service(BRIDGE_MCP_PATH, StreamableHttpService::new(move || Ok(handler.clone()), sessions, config))
        }
        None => {
            let handler = Handler { executor: executor.clone() };
            Router::new().route_service(BRIDGE_MCP_PATH, StreamableHttpService::new(move || Ok(handler.clone()), sessions, config))
        }
    };
    clients.routes(mcp, executor)
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
            EXECUTE => self.execute(arguments, &context).await?,
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

    async fn execute(&self, arguments: Value, context: &RequestContext<RoleServer>) -> Result<CallToolResult, ErrorData> {
        let request = context.extensions.get::<Parts>().and_then(|parts| parts.extensions.get::<AdmittedRequest>()).cloned();
        // Each request passes the admission. Without it nobody is known to be the caller, so that nothing runs.
        let request = request.ok_or_else(|| ErrorData::internal_error("the request was not admitted", None))?;
        let AdmittedRequest { caller, provided, outcome } = request;
        let answered = match ExecuteArguments::read(arguments) {
            Ok(ExecuteArguments { program, args, idempotency_key }) => {
                let call = ProgramCall { caller, provided, program, arguments: args, idempotency_key };
                self.executor.clone().execute(call, context.ct.clone()).await
            }
            Err(message) => Ok(self.executor.refuse(caller, "arguments", message).await),
        };
        outcome.set(answered.as_ref().map(|answer| answer.status).map_err(Clone::clone));
        // The gateway reads the outcome, and not this answer.
        let answer = answered.map_err(|_| ErrorData::internal_error("the call needs something of the gateway first", None))?;
        let failed = answer.status != Status::Ok;
        Ok(structured(&answer, failed))
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
