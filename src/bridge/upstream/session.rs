//! One session with the upstream, by the SDK's client: open it, list the tools or call one, and close it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use rmcp::RoleClient;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, ClientCapabilities, ClientConfig, ClientRequest, Implementation, JsonObject,
    PaginatedRequestParams, ProtocolVersion, ServerResult, Tool,
};
use rmcp::service::{ClientInitializeError, ClientLifecycleMode, ClientServiceExt as _, PeerRequestOptions, RunningService, ServiceError};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use spillway_bridge::upstream::listed::RawTool;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::http::{FAREWELL_TIMEOUT, HttpFault, SessionHttp, SessionRecord, UpstreamConnector};
use crate::VERSION;

/// The most pages of a list of tools.
const MAX_PAGES: usize = 16;
/// The most bytes of a page.
pub const MAX_PAGE_BYTES: usize = 4 * 1024 * 1024;

/// The revision of the protocol that the upstream speaks, as far as it is known.
#[derive(Debug, Default)]
pub struct KnownRevision(AtomicU8);

const UNKNOWN: u8 = 0;
const OLDER: u8 = 1;
const NEWER: u8 = 2;

impl KnownRevision {
    /// How to begin a session.
    fn lifecycle(&self) -> ClientLifecycleMode {
        let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
        match self.0.load(Ordering::Relaxed) {
            OLDER => ClientLifecycleMode::Initialize,
            NEWER => ClientLifecycleMode::Discover { preferred_versions },
            _ => ClientLifecycleMode::Auto { preferred_versions, legacy_version: Some(ProtocolVersion::V_2025_11_25) },
        }
    }

    fn set(&self, revision: Option<&ProtocolVersion>) {
        let known = match revision {
            None => UNKNOWN,
            Some(version) if version.has_initialize() => OLDER,
            Some(_) => NEWER,
        };
        self.0.store(known, Ordering::Relaxed);
    }
}

/// Why a session did not do what it was to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionFault {
    /// It failed, and the upstream has not acted.
    NotRun(String),
    /// It failed, and the upstream may have acted.
    Unknown(String),
    /// The answer has too many bytes. The upstream may have acted.
    TooLong,
    /// The upstream refuses the call, by an error of the protocol.
    Protocol(String),
}

impl SessionFault {
    /// The words of it.
    pub fn message(&self) -> String {
        match self {
            Self::NotRun(message) | Self::Unknown(message) | Self::Protocol(message) => message.clone(),
            Self::TooLong => "its answer is too long".to_owned(),
        }
    }
}

/// How a call ended.
#[derive(Debug)]
pub enum CallEnd {
    /// The upstream answered.
    Answered(Box<CallToolResult>),
    /// The call was ended: nobody waits for it.
    Cancelled,
    /// The time was over.
    TimedOut,
    /// It has no answer.
    Failed(SessionFault),
}

/// An open session. It is closed when it is dropped.
pub struct Session {
    service: Option<RunningService<RoleClient, ClientConfig>>,
    record: Arc<SessionRecord>,
}

/// Where sessions are opened.
#[derive(Clone, Debug)]
pub struct SessionPlace {
    /// How to connect.
    pub connector: UpstreamConnector,
    /// The address.
    pub url: Arc<str>,
    /// What is known of the revision.
    pub revision: Arc<KnownRevision>,
}

impl SessionPlace {
    /// Opens a session that sends `token`, reads answers of at most `max_answer_bytes`, and waits for none beyond `until`.
    pub async fn open(&self, token: Option<&str>, max_answer_bytes: usize, until: Instant) -> Result<Session, SessionFault> {
        let http = SessionHttp::new(self.connector.clone(), token, max_answer_bytes, until).map_err(SessionFault::NotRun)?;
        let record = http.record();
        let config = StreamableHttpClientTransportConfig::with_uri(self.url.clone())
            // A call is never sent twice.
            .reinit_on_expired_session(false)
            .control_request_timeout(FAREWELL_TIMEOUT);
        let transport = StreamableHttpClientTransport::with_client(http, config);
        // Without capabilities: nothing that the upstream could ask of a client is passed on.
        let client = ClientConfig::new(ClientCapabilities::default(), Implementation::new("spillway-bridge", VERSION))
            .with_protocol_version(ProtocolVersion::V_2025_11_25);
        let opened = client.serve_with_lifecycle(transport, self.revision.lifecycle()).await;
        match opened {
            Ok(service) => {
                let version = service.peer_info().map(|info| info.protocol_version.clone());
                self.revision.set(version.as_ref());
                Ok(Session { service: Some(service), record })
            }
            Err(error) => {
                // It may speak another revision now.
                self.revision.set(None);
                Err(SessionFault::NotRun(record.fault().map_or_else(|| initialize_message(&error), |fault| fault.to_string())))
            }
        }
    }
}

fn initialize_message(error: &ClientInitializeError) -> String {
    match error {
        ClientInitializeError::JsonRpcError(error) => format!("it refuses the session: {}", error.message),
        ClientInitializeError::NoCompatibleProtocolVersion { .. } => {
            "it speaks none of the revisions 2025-11-25 and 2026-07-28 of the protocol".to_owned()
        }
        other => format!("it opens no session: {other}"),
    }
}

impl Session {
    fn service(&self) -> Result<&RunningService<RoleClient, ClientConfig>, SessionFault> {
        self.service.as_ref().ok_or_else(|| SessionFault::NotRun("the session is closed".to_owned()))
    }

    /// Lists the tools with these names. Of a name that is listed twice the first counts.
    pub async fn list(&self, is_wanted: impl Fn(&str) -> bool) -> Result<BTreeMap<String, RawTool>, SessionFault> {
        let service = self.service()?;
        let (mut tools, mut cursor) = (BTreeMap::new(), None);
        for _ in 0..MAX_PAGES {
            let params = PaginatedRequestParams::default().with_cursor(cursor);
            let page = service.list_tools(Some(params)).await.map_err(|error| self.fault(error))?;
            for tool in page.tools.into_iter().filter(|tool| is_wanted(&tool.name)) {
                tools.entry(tool.name.to_string()).or_insert_with(|| raw(tool));
            }
            cursor = page.next_cursor;
            if cursor.is_none() {
                return Ok(tools);
            }
        }
        Err(SessionFault::NotRun(format!("its list of tools has more than {MAX_PAGES} pages")))
    }

    /// Calls a tool.
    pub async fn call(&self, tool: String, arguments: JsonObject, until: Instant, end: &CancellationToken) -> CallEnd {
        let params = CallToolRequestParams::new(tool).with_arguments(arguments);
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        let begun = match self.service() {
            Ok(service) => {
                service.peer().send_cancellable_request(request, PeerRequestOptions::no_options()).await.map_err(|error| self.fault(error))
            }
            Err(fault) => Err(fault),
        };
        let mut handle = match begun {
            Ok(handle) => handle,
            Err(fault) => return CallEnd::Failed(fault),
        };
        let ended = tokio::select! {
            answer = &mut handle.rx => match answer {
                Ok(Ok(result)) => return answered(result),
                Ok(Err(error)) => return CallEnd::Failed(self.fault(error)),
                Err(_) => return CallEnd::Failed(self.fault(ServiceError::TransportClosed)),
            },
            () = end.cancelled() => CallEnd::Cancelled,
            () = tokio::time::sleep_until(until) => CallEnd::TimedOut,
        };
        let cancelling = handle.cancel(Some("nobody waits for this call any more".to_owned()));
        let _ = tokio::time::timeout(FAREWELL_TIMEOUT, cancelling).await; // it sees the end of the connection too
        ended
    }

    fn fault(&self, error: ServiceError) -> SessionFault {
        if let ServiceError::McpError(error) = &error
            && self.record.fault().is_none()
        {
            return SessionFault::Protocol(error.message.to_string());
        }
        let begun = self.record.call_begun();
        match self.record.fault() {
            Some(HttpFault::TooLong(_)) if begun => SessionFault::TooLong,
            Some(fault) if begun && fault.may_have_run() => SessionFault::Unknown(fault.to_string()),
            Some(fault) => SessionFault::NotRun(fault.to_string()),
            None if begun => SessionFault::Unknown(error.to_string()),
            None => SessionFault::NotRun(error.to_string()),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let Some(mut service) = self.service.take() else { return };
        // The session is deleted at the upstream. Nobody waits for that.
        tokio::spawn(async move { drop(service.close_with_timeout(FAREWELL_TIMEOUT).await) });
    }
}

fn answered(result: ServerResult) -> CallEnd {
    let not_passed = |what: &str| CallEnd::Failed(SessionFault::Protocol(format!("it asks for {what}, which is not passed on")));
    match result {
        ServerResult::CallToolResult(result) => CallEnd::Answered(Box::new(result)),
        ServerResult::InputRequiredResult(_) => not_passed("input of a user (elicitation)"),
        ServerResult::CreateTaskResult(_) => not_passed("a client that comes back for the result (tasks)"),
        _ => CallEnd::Failed(SessionFault::Unknown("its answer is no result of a tool".to_owned())),
    }
}

fn raw(tool: Tool) -> RawTool {
    let read_only = tool.annotations.as_ref().and_then(|annotations| annotations.read_only_hint);
    RawTool {
        name: tool.name.into_owned(),
        title: tool.title,
        description: tool.description.map(|description| description.into_owned()),
        schema: Arc::unwrap_or_clone(tool.input_schema),
        read_only,
        too_long: None,
    }
    .bounded()
}
